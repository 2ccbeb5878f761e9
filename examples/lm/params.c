#include "params.h"

#include <math.h>
#include <string.h>

#include "check.h"
#include "ops.h"

/* Views of parameters start at multiples of this many elements, which suits every device. */
enum { ALIGN = 128 };

/* loga of new gates: they are 0.96 without noise, and closed from -2.4 down. */
enum { GATES_OPEN = 2 };

/* Of the scale of the loss. */
enum { SCALE_START = 4096, SCALE_HIGH = 1 << 24, SCALE_INTERVAL = 200 };

void params_create(param_store *p, machine *m, bsk_dtype compute, const optimizer *options)
{
    memset(p, 0, sizeof *p);
    p->machine = m;
    p->compute = compute;
    p->master = compute == BSK_F64 ? BSK_F64 : BSK_F32;
    p->scaled = compute == BSK_F16;
    p->options = *options;
}

static void tensor_free(param_store *p, tensor *t)
{
    if (t->desc.dtype)
        machine_free(p->machine, &t->mem, tensor_size(t) * bsk_dtype_size(t->desc.dtype));
    memset(t, 0, sizeof *t);
}

void params_destroy(param_store *p)
{
    program_destroy(&p->update);
    program_destroy(&p->evaluate);
    tensor *const all[] = {&p->value,   &p->grad,  &p->m,         &p->v,
                           &p->average, &p->copy,  &p->eval_copy, &p->scale,
                           &p->good,    &p->steps, &p->norm,      &p->norm_scale};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tensor_free(p, all[i]);
    for (int i = 0; i < p->count; i++)
        bsk_layout_release(&p->list[i].layout);
    p->count = 0;
}

static int params_add(param_store *p, param_kind kind, bsk_layout *layout, bsk_tensor desc,
                      double init)
{
    if (p->count == MAX_PARAMS) {
        fprintf(stderr, "lm: too many layers\n");
        exit(1);
    }
    const tensor t = {desc, {BSK_MEM_NULL, NULL, 0, 0}};
    p->list[p->count] = (param){kind, layout, desc, p->total, tensor_size(&t), init, 0};
    p->total += (p->list[p->count].count + ALIGN - 1) / ALIGN * ALIGN;
    return p->count++;
}

int params_add_sparse(param_store *p, bsk_layout *layout, double init)
{
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    CHECK(bsk_layout_query(layout, &info));
    return params_add(p, PARAM_MATRIX, layout,
                      bsk_tensor_3d(p->compute, info.nnz, info.block_rows, info.block_cols), init);
}

int params_add_dense(param_store *p, int64_t rows, int64_t cols, double init)
{
    return params_add(p, PARAM_MATRIX, NULL, bsk_tensor_2d(p->compute, rows, cols), init);
}

int params_add_vector(param_store *p, int64_t count, double init)
{
    return params_add(p, PARAM_VECTOR, NULL, bsk_tensor_1d(p->master, count), init);
}

int param_is_sparse(const param *x)
{
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    if (!x->layout)
        return 0;
    CHECK(bsk_layout_query(x->layout, &info));
    return info.density < 1;
}

void params_add_gates(param_store *p)
{
    const int count = p->count;
    for (int i = 0; i < count; i++)
        if (param_is_sparse(&p->list[i]))
            p->list[i].gates =
                params_add(p, PARAM_GATES, NULL, bsk_tensor_1d(p->master, p->list[i].desc.dims[0]),
                           GATES_OPEN);
}

static tensor tensor_create(param_store *p, bsk_dtype dtype, size_t count)
{
    return (tensor){bsk_tensor_1d(dtype, (int64_t)count),
                    machine_alloc(p->machine, count * bsk_dtype_size(dtype))};
}

static void init_matrix(param_store *p, const param *x, uint64_t seed)
{
    bsk_layout *dense = NULL;
    const bsk_layout *layout = x->layout;
    if (!layout) { // a row is a block
        bsk_layout_params grid = BSK_INIT(bsk_layout_params);
        grid.rows = x->desc.dims[0];
        grid.cols = x->desc.dims[1];
        grid.block_rows = 1;
        grid.block_cols = (int32_t)grid.cols;
        CHECK(bsk_layout_random(p->machine->context, &grid, 1, 0, &dense));
        layout = dense;
    }
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    CHECK(bsk_layout_query(layout, &info));
    bsk_weight_init_params params = BSK_INIT(bsk_weight_init_params);
    params.layout = layout;
    params.w = bsk_tensor_3d(p->master, info.nnz, info.block_rows, info.block_cols);
    bsk_plan *plan = NULL;
    CHECK(bsk_weight_normal_plan(p->machine->device, &params, NULL, &plan));
    machine_workspace(p->machine, plan);
    bsk_weight_init_args args = BSK_INIT_ALPHA(bsk_weight_init_args);
    args.workspace = p->machine->workspace;
    args.alpha = x->init;
    args.seed = seed;
    args.w = tensor_view(p->value, x->at, params.w).mem;
    CHECK(bsk_weight_normal_run(plan, p->machine->queue, &args));
    CHECK(bsk_queue_sync(p->machine->queue));
    bsk_plan_destroy(&plan);
    bsk_layout_release(&dense);
}

static void init_vector(param_store *p, const param *x)
{
    const size_t size = bsk_dtype_size(p->master);
    char *values = check_alloc(x->count * size);
    const float single = (float)x->init;
    for (size_t i = 0; i < x->count; i++)
        if (p->master == BSK_F64)
            memcpy(values + i * size, &x->init, size);
        else
            memcpy(values + i * size, &single, size);
    machine_upload(p->machine, tensor_view(p->value, x->at, x->desc).mem, values, x->count * size);
    free(values);
}

static void record_update(param_store *p)
{
    program_create(&p->update, p->machine);
    if (p->scaled) {
        const tensor inverse = program_tensor(&p->update, p->scale.desc);
        op_reciprocal(&p->update, p->scale, inverse);
        op_multiply(&p->update, p->grad, inverse, p->grad);
    }
    op_global_norm(&p->update, p->options.clip, p->grad, p->norm, p->norm_scale);
    for (int i = 0; i < p->count; i++)
        p->decay[i] = p->options.lasso > 0 && param_is_sparse(&p->list[i])
                          ? op_block_decay(&p->update, p->list[i].layout,
                                           tensor_view(p->value, p->list[i].at, p->list[i].desc))
                          : NULL;
    const adam step = {p->options.beta2, p->options.weight_decay, p->value, p->grad, p->m, p->v,
                       p->copy,          p->norm_scale,           p->steps};
    p->adam = op_adam(&p->update, &step);
    op_loss_scale(&p->update, p->scaled ? SCALE_HIGH : 1, SCALE_INTERVAL, p->scale, p->norm,
                  p->norm_scale, p->good, p->steps); // which counts the steps, too
    if (p->average.desc.dtype)
        op_ema(&p->update, p->options.ema, p->value, p->average);

    program_create(&p->evaluate, p->machine);
    if (p->eval_copy.desc.dtype)
        op_cast(&p->evaluate, p->average, p->eval_copy);
}

void params_allocate(param_store *p, uint64_t seed)
{
    tensor *const masters[] = {&p->value, &p->grad, &p->m, &p->v};
    for (size_t i = 0; i < sizeof masters / sizeof *masters; i++)
        *masters[i] = tensor_create(p, p->master, p->total);
    const int rounded = p->compute != p->master;
    if (p->options.ema > 0)
        p->average = tensor_create(p, p->master, p->total);
    if (rounded)
        p->copy = tensor_create(p, p->compute, p->total);
    if (rounded && p->options.ema > 0)
        p->eval_copy = tensor_create(p, p->compute, p->total);
    p->scale = tensor_create(p, BSK_F32, 1);
    p->good = tensor_create(p, BSK_I32, 1);
    p->steps = tensor_create(p, BSK_I64, 1);
    p->norm = tensor_create(p, p->master, 1);
    p->norm_scale = tensor_create(p, BSK_F32, 1);

    for (int i = 0; i < p->count; i++)
        if (p->list[i].kind == PARAM_MATRIX)
            init_matrix(p, &p->list[i], seed_mix(seed, (uint64_t)i));
        else
            init_vector(p, &p->list[i]);
    const float scale = p->scaled ? SCALE_START : 1;
    machine_upload(p->machine, p->scale.mem, &scale, sizeof scale);
    record_update(p);
    program first;
    program_create(&first, p->machine);
    if (p->average.desc.dtype)
        op_cast(&first, p->value, p->average);
    program_run(&first, 0);
    program_destroy(&first);
    params_refresh(p);
}

tensor param_value(const param_store *p, int i, param_set set)
{
    const param *x = &p->list[i];
    const int average = set == SET_EVAL && p->average.desc.dtype;
    const int rounded = x->kind == PARAM_MATRIX && p->copy.desc.dtype;
    const tensor *from = rounded   ? average ? &p->eval_copy : &p->copy
                         : average ? &p->average
                                   : &p->value;
    return tensor_view(*from, x->at, x->desc);
}

tensor param_grad(const param_store *p, int i)
{
    return tensor_view(p->grad, p->list[i].at, p->list[i].desc);
}

double param_block_root(const param *x)
{
    return sqrt((double)x->desc.dims[1] * (double)x->desc.dims[2]);
}

void params_clear_grad(param_store *p)
{
    CHECK(bsk_mem_fill(p->machine->queue, p->grad.mem, 0, p->total * bsk_dtype_size(p->master)));
}

void params_update(param_store *p, double lr)
{
    p->adam->lr = lr;
    for (int i = 0; i < p->count; i++)
        if (p->decay[i])
            p->decay[i]->rate = lr * p->options.lasso * param_block_root(&p->list[i]);
    program_run(&p->update, 0);
}

void params_refresh(param_store *p)
{
    program copy;
    program_create(&copy, p->machine);
    if (p->copy.desc.dtype)
        op_cast(&copy, p->value, p->copy);
    program_run(&copy, 0);
    program_destroy(&copy);
}

void params_prepare_eval(param_store *p)
{
    program_run(&p->evaluate, 0);
}

int params_state(const param_store *p, int i, param_state *state)
{
    const param_state all[] = {
        {&p->value, -INFINITY, INFINITY},
        {&p->m, -INFINITY, INFINITY},
        {&p->v, 0, INFINITY},
        {&p->scale, 1, p->scaled ? SCALE_HIGH : 1},
        {&p->good, 0, SCALE_INTERVAL},
        {&p->steps, 0, INT32_MAX},
        {&p->average, -INFINITY, INFINITY},
    };
    if (i >= (int)(sizeof all / sizeof *all) || !all[i].tensor->desc.dtype)
        return -1;
    *state = all[i];
    return 0;
}
