#include "model.h"

#include <math.h>
#include <string.h>

#include "check.h"

/* Views of parameters start at multiples of this many elements, which suits every device. */
enum { ALIGN = 64 };

static size_t align_up(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static int64_t model_inputs(const model_shape *s)
{
    return (int64_t)features_count(&s->input) * s->width;
}

double model_layer_parameters(const model_shape *s, int hidden, double density)
{
    const double h = hidden;
    return density * ((double)model_inputs(s) * h + h * h) + 2 * h * s->classes + 2 * h +
           s->classes;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Elements of the kept blocks, without the parts of edge blocks that lie outside the matrix. */
static double layout_elements(const bsk_layout *layout)
{
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    CHECK(bsk_layout_query(layout, &info));
    double count = 0;
    for (int64_t slot = 0; slot < info.nnz; slot++) {
        int32_t row, col;
        CHECK(bsk_layout_block_coord(layout, slot, NULL, &row, &col));
        count += (double)smaller(info.block_rows, info.rows - (int64_t)row * info.block_rows) *
                 (double)smaller(info.block_cols, info.cols - (int64_t)col * info.block_cols);
    }
    return count;
}

double model_parameters(const model *m)
{
    double count = 0;
    for (int i = 0; i < LAYERS; i++)
        count += layout_elements(m->layers[i].layout) + (double)m->layers[i].outputs;
    return count;
}

/* A small generator for host-side choices; the library's own are for device data. */
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void shuffle(int32_t *deck, int count, uint64_t *state)
{
    for (int i = count - 1; i > 0; i--) {
        const int j = (int)(random_next(state) % (uint64_t)(i + 1));
        const int32_t t = deck[i];
        deck[i] = deck[j];
        deck[j] = t;
    }
}

/* Every block column keeps equally many block rows, dealt from a shuffled deck, so that every unit
 * has the same number of inputs and every input is used about equally often. */
static bsk_layout *layout_balanced(bsk_context *context, int64_t rows, int64_t cols, int block,
                                   double density, uint64_t seed)
{
    bsk_layout_params params = BSK_INIT(bsk_layout_params);
    params.rows = rows;
    params.cols = cols;
    params.block_rows = params.block_cols = block;
    const int grid_rows = (int)((rows + block - 1) / block);
    const int grid_cols = (int)((cols + block - 1) / block);
    int keep = (int)lround(density * grid_rows);
    keep = keep < 1 ? 1 : keep > grid_rows ? grid_rows : keep;

    uint8_t *mask = check_alloc((size_t)grid_rows * (size_t)grid_cols);
    memset(mask, 0, (size_t)grid_rows * (size_t)grid_cols);
    int32_t *deck = check_alloc((size_t)grid_rows * sizeof *deck);
    for (int i = 0; i < grid_rows; i++)
        deck[i] = i;
    int next = grid_rows;
    for (int col = 0; col < grid_cols; col++) {
        for (int kept = 0; kept < keep;) {
            if (next == grid_rows) {
                shuffle(deck, grid_rows, &seed);
                next = 0;
            }
            uint8_t *cell = &mask[(size_t)deck[next++] * (size_t)grid_cols + (size_t)col];
            kept += !*cell;
            *cell = 1;
        }
    }
    bsk_layout *layout = NULL;
    CHECK(bsk_layout_from_mask(context, &params, mask, &layout));
    free(deck);
    free(mask);
    return layout;
}

static bsk_mem mem_new(const model *m, size_t count, size_t size)
{
    bsk_mem mem;
    CHECK(bsk_mem_alloc(m->device, count * size, &mem));
    CHECK(bsk_mem_fill(m->queue, mem, 0, count * size));
    return mem;
}

/* Plans share one workspace, as they run one after the other. */
static void workspace_need(model *m, const bsk_plan *plan)
{
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    CHECK(bsk_plan_query(plan, &info));
    if (info.workspace_bytes > m->workspace_bytes)
        m->workspace_bytes = info.workspace_bytes;
}

/* A column range of the [N, 2 hidden] activations, or all of them. */
static bsk_tensor hidden_tensor(const model *m, int64_t cols)
{
    return bsk_tensor_ld(BSK_F32, m->batch, cols, 2 * (int64_t)m->shape.hidden);
}

static void layer_plan(model *m, int i)
{
    layer *l = &m->layers[i];
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    CHECK(bsk_layout_query(l->layout, &info));
    const bsk_tensor w = bsk_tensor_3d(BSK_F32, info.nnz, info.block_rows, info.block_cols);
    const bsk_tensor bias = bsk_tensor_1d(BSK_F32, l->outputs);
    const bsk_tensor x =
        i == 0 ? bsk_tensor_2d(BSK_F32, m->batch, l->inputs) : hidden_tensor(m, l->inputs);
    const bsk_tensor y = i == LAYERS - 1 ? bsk_tensor_2d(BSK_F32, m->batch, l->outputs)
                                         : hidden_tensor(m, l->outputs);

    bsk_matmul_params forward = BSK_INIT(bsk_matmul_params);
    forward.layout = l->layout;
    forward.act = i == LAYERS - 1 ? BSK_ACT_NONE : BSK_ACT_RELU;
    forward.x = x;
    forward.w = w;
    forward.y = y;
    forward.bias = bias;
    CHECK(bsk_matmul_plan(m->device, &forward, NULL, &l->forward));

    bsk_matmul_dgrad_params dgrad = BSK_INIT(bsk_matmul_dgrad_params);
    dgrad.layout = l->layout;
    dgrad.dy = y;
    dgrad.w = w;
    dgrad.dx = x;
    CHECK(bsk_matmul_dgrad_plan(m->device, &dgrad, NULL, &l->dgrad));

    bsk_matmul_wgrad_params wgrad = BSK_INIT(bsk_matmul_wgrad_params);
    wgrad.layout = l->layout;
    wgrad.x = x;
    wgrad.dy = y;
    wgrad.dw = w;
    if (i == LAYERS - 1) // the hidden layers get theirs from the gradient of the activation
        wgrad.dbias = bias;
    CHECK(bsk_matmul_wgrad_plan(m->device, &wgrad, NULL, &l->wgrad));

    workspace_need(m, l->forward);
    workspace_need(m, l->dgrad);
    workspace_need(m, l->wgrad);
}

static void layer_create(model *m, bsk_context *context, int i, bsk_layout *layout, uint64_t seed)
{
    const model_shape *s = &m->shape;
    layer *l = &m->layers[i];
    l->inputs = i == 0 ? model_inputs(s) : i == 1 ? s->hidden : 2 * (int64_t)s->hidden;
    l->outputs = i == LAYERS - 1 ? s->classes : s->hidden;
    l->layout = layout ? bsk_layout_retain(layout)
                       : layout_balanced(context, l->inputs, l->outputs, s->block,
                                         i == LAYERS - 1 ? 1.0 : s->density, seed);
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    CHECK(bsk_layout_query(l->layout, &info));
    l->weights = (size_t)info.nnz * (size_t)info.block_rows * (size_t)info.block_cols;
    l->at_w = m->weights.count;
    l->at_bias = l->at_w + align_up(l->weights);
    m->weights.count = l->at_bias + align_up((size_t)l->outputs);
    layer_plan(m, i);
}

static void tensor_set_create(model *m, tensor_set *t, bsk_tensor desc, int lazy)
{
    t->count = (size_t)(desc.rank == 2 ? desc.dims[0] * desc.dims[1] : desc.dims[0]);
    t->value = mem_new(m, t->count, sizeof(float));
    t->grad = mem_new(m, t->count, sizeof(float));
    t->m = mem_new(m, t->count, sizeof(float));
    t->v = mem_new(m, t->count, sizeof(float));
    bsk_adam_params adam = BSK_INIT(bsk_adam_params);
    adam.beta2 = 0.99;
    adam.lazy = lazy;
    adam.param = adam.grad = adam.m = adam.v = desc;
    CHECK(bsk_adam_plan(m->device, &adam, NULL, &t->adam));
    workspace_need(m, t->adam);
}

/* Characters start with random embeddings; hashed contexts start at zero, so that one that was
 * never met in training says nothing. */
static void table_init(model *m, uint64_t seed)
{
    const size_t count =
        (size_t)m->shape.input.context * (size_t)m->shape.input.codes * (size_t)m->shape.width;
    float *values = check_alloc(count * sizeof *values);
    for (size_t i = 0; i < count; i++) {
        // The sum of four uniform numbers is normal enough for a start.
        double sum = 0;
        for (int k = 0; k < 4; k++)
            sum += (double)(random_next(&seed) >> 11) * 0x1p-53 - 0.5;
        values[i] = (float)(0.5 * sum);
    }
    CHECK(bsk_mem_upload(m->queue, m->table.value, values, count * sizeof *values));
    CHECK(bsk_queue_sync(m->queue));
    free(values);
}

static bsk_mem weights_at(bsk_mem memory, size_t element)
{
    return bsk_mem_at(memory, element * sizeof(float));
}

static void layer_init(model *m, int i, uint64_t seed)
{
    const layer *l = &m->layers[i];
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    CHECK(bsk_layout_query(l->layout, &info));
    bsk_weight_init_params params = BSK_INIT(bsk_weight_init_params);
    params.layout = l->layout;
    params.w = bsk_tensor_3d(BSK_F32, info.nnz, info.block_rows, info.block_cols);
    bsk_plan *plan = NULL;
    CHECK(bsk_weight_normal_plan(m->device, &params, NULL, &plan));
    bsk_plan_info plan_info = BSK_INIT(bsk_plan_info);
    CHECK(bsk_plan_query(plan, &plan_info));

    bsk_weight_init_args args = BSK_INIT_ALPHA(bsk_weight_init_args);
    CHECK(bsk_mem_alloc(m->device, plan_info.workspace_bytes, &args.workspace));
    const double fan_in = (double)l->inputs * info.density;
    args.alpha = i == LAYERS - 1 ? 0.1 / sqrt(fan_in) : sqrt(2.0 / fan_in);
    args.seed = seed;
    args.w = weights_at(m->weights.value, l->at_w);
    CHECK(bsk_weight_normal_run(plan, m->queue, &args));
    CHECK(bsk_queue_sync(m->queue));
    bsk_mem_free(m->device, &args.workspace);
    bsk_plan_destroy(&plan);
}

static void dense_plans(model *m)
{
    const model_shape *s = &m->shape;
    const int64_t n = m->batch;
    const bsk_tensor table = bsk_tensor_2d(BSK_F32, features_rows(&s->input), s->width);
    const bsk_tensor index = bsk_tensor_1d(BSK_I32, n * features_count(&s->input));
    const bsk_tensor x = bsk_tensor_2d(BSK_F32, n * features_count(&s->input), s->width);

    bsk_embedding_params embedding = BSK_INIT(bsk_embedding_params);
    embedding.table = table;
    embedding.index = index;
    embedding.y = x;
    CHECK(bsk_embedding_plan(m->device, &embedding, NULL, &m->embedding));

    bsk_embedding_grad_params grad = BSK_INIT(bsk_embedding_grad_params);
    grad.dy = x;
    grad.index = index;
    grad.dtable = table;
    CHECK(bsk_embedding_grad_plan(m->device, &grad, NULL, &m->embedding_grad));

    bsk_bias_act_grad_params act = BSK_INIT(bsk_bias_act_grad_params);
    act.act = BSK_ACT_RELU;
    act.dy = act.x = act.dx = hidden_tensor(m, s->hidden);
    act.dbias = bsk_tensor_1d(BSK_F32, s->hidden);
    CHECK(bsk_bias_act_grad_plan(m->device, &act, NULL, &m->act_grad));

    bsk_cross_entropy_params loss = BSK_INIT(bsk_cross_entropy_params);
    loss.logits = bsk_tensor_2d(BSK_F32, n, s->classes);
    loss.labels = bsk_tensor_1d(BSK_I32, n);
    loss.loss = bsk_tensor_1d(BSK_F32, n);
    CHECK(bsk_cross_entropy_plan(m->device, &loss, NULL, &m->loss_only));
    loss.dlogits = loss.logits;
    CHECK(bsk_cross_entropy_plan(m->device, &loss, NULL, &m->loss_grad));

    const bsk_plan *const plans[] = {m->embedding, m->embedding_grad, m->act_grad, m->loss_only,
                                     m->loss_grad};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        workspace_need(m, plans[i]);
}

void model_create(model *m, bsk_context *context, const bsk_device *device,
                  const model_shape *shape, int batch, uint64_t seed,
                  bsk_layout *const layouts[LAYERS])
{
    memset(m, 0, sizeof *m);
    m->device = device;
    m->shape = *shape;
    m->batch = batch;
    CHECK(bsk_queue_create(device, &m->queue));

    for (int i = 0; i < LAYERS; i++)
        layer_create(m, context, i, layouts ? layouts[i] : NULL, seed + (uint64_t)i);
    dense_plans(m);
    tensor_set_create(m, &m->weights, bsk_tensor_1d(BSK_F32, (int64_t)m->weights.count), 0);
    tensor_set_create(m, &m->table,
                      bsk_tensor_2d(BSK_F32, features_rows(&shape->input), shape->width), 1);

    const size_t n = (size_t)batch;
    const size_t inputs = (size_t)model_inputs(shape);
    const size_t count = (size_t)features_count(&shape->input);
    m->index = mem_new(m, n * count, sizeof(int32_t));
    m->labels = mem_new(m, n, sizeof(int32_t));
    m->x = mem_new(m, n * inputs, sizeof(float));
    m->dx = mem_new(m, n * inputs, sizeof(float));
    m->h = mem_new(m, n * 2 * (size_t)shape->hidden, sizeof(float));
    m->dh = mem_new(m, n * 2 * (size_t)shape->hidden, sizeof(float));
    m->logits = mem_new(m, n * (size_t)shape->classes, sizeof(float));
    m->loss = mem_new(m, n, sizeof(float));
    m->workspace = mem_new(m, m->workspace_bytes, 1);
    m->host_index = check_alloc(n * count * sizeof *m->host_index);
    m->host_labels = check_alloc(n * sizeof *m->host_labels);
    m->host_loss = check_alloc(n * sizeof *m->host_loss);

    for (int i = 0; i < LAYERS; i++)
        layer_init(m, i, seed + 100 + (uint64_t)i);
    table_init(m, seed + 200);
}

static void tensor_set_destroy(model *m, tensor_set *t)
{
    bsk_plan_destroy(&t->adam);
    bsk_mem *const memory[] = {&t->value, &t->grad, &t->m, &t->v};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        bsk_mem_free(m->device, memory[i]);
}

void model_destroy(model *m)
{
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &m->layers[i];
        bsk_plan_destroy(&l->forward);
        bsk_plan_destroy(&l->dgrad);
        bsk_plan_destroy(&l->wgrad);
        bsk_layout_release(&l->layout);
    }
    tensor_set_destroy(m, &m->table);
    tensor_set_destroy(m, &m->weights);
    bsk_plan **const plans[] = {&m->embedding, &m->embedding_grad, &m->act_grad, &m->loss_grad,
                                &m->loss_only};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        bsk_plan_destroy(plans[i]);
    bsk_mem *const memory[] = {&m->index,  &m->x,      &m->dx,   &m->h,        &m->dh,
                               &m->logits, &m->labels, &m->loss, &m->workspace};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        bsk_mem_free(m->device, memory[i]);
    free(m->host_index);
    free(m->host_labels);
    free(m->host_loss);
    bsk_queue_destroy(&m->queue);
}

void model_put(model *m, const alphabet *a, const text_part *part, int i, uint32_t position)
{
    const features *f = &m->shape.input;
    m->host_labels[i] = part->code[position];
    features_fill(f, a, part->code, position,
                  m->host_index + (size_t)i * (size_t)features_count(f));
}

void model_put_nothing(model *m, int i)
{
    const size_t count = (size_t)features_count(&m->shape.input);
    m->host_labels[i] = -1;
    memset(m->host_index + (size_t)i * count, 0, count * sizeof *m->host_index);
}

static void batch_upload(model *m)
{
    const size_t n = (size_t)m->batch;
    const size_t count = n * (size_t)features_count(&m->shape.input);
    CHECK(bsk_mem_upload(m->queue, m->index, m->host_index, count * sizeof *m->host_index));
    CHECK(bsk_mem_upload(m->queue, m->labels, m->host_labels, n * sizeof *m->host_labels));
}

/* The host's batch may be refilled after this, as it waits. */
static double loss_sum(model *m)
{
    CHECK(
        bsk_mem_download(m->queue, m->host_loss, m->loss, (size_t)m->batch * sizeof *m->host_loss));
    CHECK(bsk_queue_sync(m->queue));
    double sum = 0;
    for (int i = 0; i < m->batch; i++)
        sum += m->host_loss[i];
    return sum;
}

/* Where a layer's output lies, in the activations or in their gradients. */
static bsk_mem layer_output(const model *m, int i, bsk_mem h, bsk_mem logits)
{
    return i == LAYERS - 1 ? logits : weights_at(h, (size_t)i * (size_t)m->shape.hidden);
}

static void forward(model *m)
{
    bsk_embedding_args lookup = BSK_INIT(bsk_embedding_args);
    lookup.workspace = m->workspace;
    lookup.table = m->table.value;
    lookup.index = m->index;
    lookup.y = m->x;
    CHECK(bsk_embedding_run(m->embedding, m->queue, &lookup));

    for (int i = 0; i < LAYERS; i++) {
        const layer *l = &m->layers[i];
        bsk_matmul_args args = BSK_INIT_ALPHA(bsk_matmul_args);
        args.workspace = m->workspace;
        args.x = i == 0 ? m->x : m->h;
        args.w = weights_at(m->weights.value, l->at_w);
        args.bias = weights_at(m->weights.value, l->at_bias);
        args.y = layer_output(m, i, m->h, m->logits);
        CHECK(bsk_matmul_run(l->forward, m->queue, &args));
    }
}

static void loss_run(model *m, bsk_plan *plan, bsk_mem dlogits)
{
    bsk_cross_entropy_args args = BSK_INIT_ALPHA(bsk_cross_entropy_args);
    args.alpha = 1.0 / m->batch;
    args.workspace = m->workspace;
    args.logits = m->logits;
    args.labels = m->labels;
    args.loss = m->loss;
    args.dlogits = dlogits;
    CHECK(bsk_cross_entropy_run(plan, m->queue, &args));
}

static void layer_backward(model *m, int i)
{
    const layer *l = &m->layers[i];
    const bsk_mem x = i == 0 ? m->x : m->h;
    // The logits were overwritten by their gradient.
    const bsk_mem dy = layer_output(m, i, m->dh, m->logits);

    if (i < LAYERS - 1) {
        bsk_bias_act_grad_args act = BSK_INIT_ALPHA(bsk_bias_act_grad_args);
        act.workspace = m->workspace;
        act.dy = act.dx = dy;
        act.x = layer_output(m, i, m->h, m->logits);
        act.dbias = weights_at(m->weights.grad, l->at_bias);
        CHECK(bsk_bias_act_grad_run(m->act_grad, m->queue, &act));
    }

    bsk_matmul_wgrad_args wgrad = BSK_INIT_ALPHA(bsk_matmul_wgrad_args);
    wgrad.workspace = m->workspace;
    wgrad.x = &x;
    wgrad.dy = &dy;
    wgrad.dw = weights_at(m->weights.grad, l->at_w);
    if (i == LAYERS - 1)
        wgrad.dbias = weights_at(m->weights.grad, l->at_bias);
    CHECK(bsk_matmul_wgrad_run(l->wgrad, m->queue, &wgrad));

    bsk_matmul_dgrad_args dgrad = BSK_INIT_ALPHA(bsk_matmul_dgrad_args);
    dgrad.workspace = m->workspace;
    dgrad.beta = i == 1; // h1 feeds two layers: its gradients add up
    dgrad.dy = dy;
    dgrad.w = weights_at(m->weights.value, l->at_w);
    dgrad.dx = i == 0 ? m->dx : m->dh;
    CHECK(bsk_matmul_dgrad_run(l->dgrad, m->queue, &dgrad));
}

static void tensor_set_update(model *m, const tensor_set *t, double lr)
{
    bsk_adam_args args = BSK_INIT(bsk_adam_args);
    args.lr = lr;
    args.step = m->step;
    args.workspace = m->workspace;
    args.param = t->value;
    args.grad = t->grad;
    args.m = t->m;
    args.v = t->v;
    CHECK(bsk_adam_run(t->adam, m->queue, &args));
}

double model_train(model *m, double lr, double table_lr)
{
    m->step++;
    batch_upload(m);
    forward(m);
    loss_run(m, m->loss_grad, m->logits);
    for (int i = LAYERS - 1; i >= 0; i--)
        layer_backward(m, i);

    bsk_embedding_grad_args grad = BSK_INIT_ALPHA(bsk_embedding_grad_args);
    grad.workspace = m->workspace;
    grad.dy = m->dx;
    grad.index = m->index;
    grad.dtable = m->table.grad;
    CHECK(bsk_embedding_grad_run(m->embedding_grad, m->queue, &grad));

    tensor_set_update(m, &m->weights, lr);
    tensor_set_update(m, &m->table, table_lr);
    return loss_sum(m) / m->batch;
}

double model_bits(model *m, const alphabet *a, const text_part *part, size_t stride)
{
    const size_t count = (part->count + stride - 1) / stride;
    double nats = 0;
    size_t escapes = 0;
    for (size_t at = 0; at < count; at += (size_t)m->batch) {
        for (int i = 0; i < m->batch; i++) {
            const size_t k = at + (size_t)i;
            if (k >= count) {
                model_put_nothing(m, i);
                continue;
            }
            const uint32_t position = part->position[k * stride];
            model_put(m, a, part, i, position);
            escapes += part->code[position] == a->escape;
        }
        batch_upload(m);
        forward(m);
        const bsk_mem none = {BSK_MEM_NULL, NULL, 0, 0};
        loss_run(m, m->loss_only, none);
        nats += loss_sum(m);
    }
    return (nats / log(2.0) + 8.0 * (double)escapes) / (double)count;
}
