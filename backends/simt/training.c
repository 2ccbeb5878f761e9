/* Host side of the optimizers, of averages and norms, and of the loss scale. */
#include <backends/simt/entry.h>

#include <math.h>

#include <backends/simt/training.h>

static double one_if_zero(double v)
{
    return v != 0 ? v : 1;
}

/* Elements of one member of the first dimension. */
static i64 member_of(const bsk_tensor *t)
{
    i64 member = 1;
    for (int32_t i = 1; i < t->rank; i++)
        member *= t->dims[i];
    return member;
}

static i64 count_of(const bsk_tensor *t)
{
    i64 count = 1;
    for (int32_t i = 0; i < t->rank; i++)
        count *= t->dims[i];
    return count;
}

/* Whether all memory may be loaded as vectors in rows of cols elements. */
static bool all_vector(const simt_device *d, bsk_dtype type, const bsk_mem *views, size_t count,
                       i64 rows, i64 cols)
{
    bool vector = true;
    for (size_t i = 0; i < count; i++)
        vector &= bski_simt_vector_rows(d, type, views[i], rows, cols);
    return vector;
}

#define ALL_VECTOR(rows, cols, ...)                                                                \
    all_vector(queue_device(queue), prepared->problem->dtype, (const bsk_mem[]){__VA_ARGS__},      \
               sizeof((const bsk_mem[]){__VA_ARGS__}) / sizeof(bsk_mem), rows, cols)

/* --- adam --- */

enum { STEP, LIVE };

SIMT_RELEASE(adam)

SIMT_ACCEPT(adam)
{
    const bsk_adam_params *p = problem->params;
    return ACCEPT(&p->param, &p->grad, &p->m, &p->copy);
}

SIMT_PREPARE(adam)
{
    static const simt_need need = {
        .file = "training", .kernels = {"adam", "adam_live"}, .u16_as = BSK_BF16};
    const bsk_adam_params *p = prepared->problem->params;
    size_t at;
    if (p->lazy && !bski_simt_space(&prepared->workspace_bytes, p->param.dims[0], sizeof(i32), &at))
        return BSK_E_NOMEM;
    return bski_simt_prepare(device, prepared, &need);
}

static i32 state_of_moments(bsk_dtype type, int32_t stochastic)
{
    return type == BSK_U16 ? STATE_CODE : stochastic ? STATE_RANDOM : STATE_FLOAT;
}

static adam_arg adam_of(const bsk_prepared *prepared, const bsk_adam_params *p,
                        const bsk_adam_args *a)
{
    const double step = (double)a->step;
    const double correction = sqrt(1 - pow(p->beta2, step)) / (1 - pow(p->beta1, step));
    return (adam_arg){
        .beta1 = simt_num(prepared, p->beta1),
        .rest1 = simt_num(prepared, 1 - p->beta1),
        .beta2 = simt_num(prepared, p->beta2),
        .rest2 = simt_num(prepared, 1 - p->beta2),
        .eps = simt_eps(prepared, p->eps),
        .grad_scale = simt_num(prepared, one_if_zero(a->grad_scale)),
        .rate = simt_num(prepared, p->steps.dtype != BSK_NONE ? a->lr : a->lr * correction),
        .decay = simt_num(prepared, a->lr * a->weight_decay),
        .clip_sigma = simt_num(prepared, a->clip_sigma),
        .log_beta1 = simt_num(prepared, log(p->beta1)),
        .log_beta2 = simt_num(prepared, log(p->beta2)),
        .step = a->step,
        .seed = (i64)a->seed,
        .offset = (i64)a->offset,
        .grad_type = (i32)p->grad.dtype,
        .copy_type = (i32)p->copy.dtype,
        .state = state_of_moments(p->m.dtype, p->stochastic),
    };
}

SIMT_LAUNCH(adam)
{
    const simt_device *d = queue_device(queue);
    const bsk_adam_params *p = prepared->problem->params;
    const bsk_adam_args *a = args;
    const bsk_mem gate = mem_of(&p->gate, a->gate), copy = mem_of(&p->copy, a->copy);
    const bsk_mem live = p->lazy ? a->workspace : mem_none();
    const bool by_row = gate.kind != BSK_MEM_NULL || p->lazy;
    const i64 member = member_of(&p->param);
    adam_arg arg = adam_of(prepared, p, a);
    arg.rows = by_row ? p->param.dims[0] : 1;
    arg.cols = by_row ? member : p->param.dims[0] * member;
    arg.vector = ALL_VECTOR(arg.rows, arg.cols, a->param, a->grad, a->m, a->v, copy);
    if (p->lazy) {
        const adam_live_arg rows = {
            .rows = arg.rows, .cols = arg.cols, .grad_type = arg.grad_type, .vector = arg.vector};
        TRY(LAUNCH(LIVE, bski_simt_groups_most(d, rows.rows, 16), 1, rows, a->grad, live));
    }
    return LAUNCH(STEP, simt_walk_groups(prepared, queue, arg.rows, arg.cols), 1, arg, a->param,
                  a->grad, a->m, a->v, mem_of(&p->norm_scale, a->norm_scale), gate, copy, live,
                  mem_of(&p->steps, a->steps));
}

/* --- adam_n --- */

SIMT_RELEASE(adam_n)

SIMT_ACCEPT(adam_n)
{
    const bsk_adam_n_params *p = problem->params;
    return ACCEPT(&p->param, &p->grad, &p->m, &p->copy);
}

SIMT_PREPARE(adam_n)
{
    static const simt_need need = {.file = "training", .kernels = {"adam_n"}, .u16_as = BSK_BF16};
    return bski_simt_prepare(device, prepared, &need);
}

/* The scalars, which are those of adam. */
static adam_arg adam_n_of(const bsk_prepared *prepared, const bsk_adam_n_args *a)
{
    const bsk_adam_n_params *p = prepared->problem->params;
    const bsk_adam_params params = {.beta1 = p->beta1,
                                    .beta2 = p->beta2,
                                    .eps = p->eps,
                                    .grad = p->grad,
                                    .m = p->m,
                                    .copy = p->copy,
                                    .stochastic = p->stochastic,
                                    .steps = p->steps};
    const bsk_adam_args args = {.lr = a->lr,
                                .grad_scale = a->grad_scale,
                                .weight_decay = a->weight_decay,
                                .clip_sigma = a->clip_sigma,
                                .step = a->step,
                                .seed = a->seed,
                                .offset = a->offset};
    return adam_of(prepared, &params, &args);
}

/* Tensors first .. of a list for a launch: the views, of which those past the end are absent.
 * Returns how many there are. */
static i64 list_take(bsk_mem *views, const bsk_mem *list, i64 first, i64 pairs)
{
    const i64 count = pairs - first < LIST_TENSORS ? pairs - first : LIST_TENSORS;
    for (i64 i = 0; i < LIST_TENSORS; i++)
        views[i] = i < count && list ? list[first + i] : mem_none();
    return count;
}

SIMT_LAUNCH(adam_n)
{
    enum { OTHERS = 2, LISTS = 5 };
    const bsk_adam_n_params *p = prepared->problem->params;
    const bsk_adam_n_args *a = args;
    const bool copied = p->copy.dtype != BSK_NONE;
    const bsk_mem *const lists[LISTS] = {a->param, a->grad, a->m, a->v, copied ? a->copy : NULL};
    adam_arg arg = adam_n_of(prepared, a);
    arg.rows = 1;
    arg.cols = count_of(&p->param);
    const i64 groups = simt_walk_groups(prepared, queue, 1, arg.cols);
    for (i64 first = 0; groups > 0 && first < p->pairs; first += LIST_TENSORS) {
        bsk_mem buffers[OTHERS + LISTS * LIST_TENSORS] = {mem_of(&p->norm_scale, a->norm_scale),
                                                          mem_of(&p->steps, a->steps)};
        i64 tensors = 0;
        for (int i = 0; i < LISTS; i++)
            tensors = list_take(buffers + OTHERS + i * LIST_TENSORS, lists[i], first, p->pairs);
        arg.vector = all_vector(queue_device(queue), prepared->problem->dtype, buffers + OTHERS,
                                LISTS * LIST_TENSORS, 1, arg.cols);
        arg.offset = (i64)(a->offset + (uint64_t)first);
        TRY(bski_simt_run(&(const simt_run){.prepared = prepared,
                                            .queue = queue,
                                            .x = groups,
                                            .y = tensors,
                                            .scalars = &arg,
                                            .scalar_bytes = sizeof arg,
                                            .buffers = buffers,
                                            .buffer_count = OTHERS + LISTS * LIST_TENSORS}));
    }
    return BSK_OK;
}

/* --- ema --- */

SIMT_PREPARE_BY(ema, .file = "training", .kernels = {"ema"})

SIMT_ACCEPT(ema)
{
    const bsk_ema_params *p = problem->params;
    return ACCEPT(&p->average, &p->param);
}

SIMT_LAUNCH(ema)
{
    const bsk_ema_params *p = prepared->problem->params;
    const bsk_ema_args *a = args;
    const bsk_mem gate = mem_of(&p->gate, a->gate);
    const bool by_row = gate.kind != BSK_MEM_NULL;
    const i64 member = member_of(&p->average);
    ema_arg arg = {.rows = by_row ? p->average.dims[0] : 1,
                   .cols = by_row ? member : p->average.dims[0] * member,
                   .rest = simt_num(prepared, 1 - a->decay),
                   .average_type = (i32)p->average.dtype,
                   .param_type = (i32)p->param.dtype};
    arg.vector = ALL_VECTOR(arg.rows, arg.cols, a->average, a->param);
    return LAUNCH(0, simt_walk_groups(prepared, queue, arg.rows, arg.cols), 1, arg, a->average,
                  a->param, gate);
}

/* --- global_norm --- */

enum { NORM_PARTS, NORM_FINISH };

/* The last kernel is one group: it adds up no more than so many sums of shares, if there are not
 * more tensors. */
enum { NORM_SHARES = 8192 };

SIMT_RELEASE(global_norm)

/* How many shares a tensor is cut into. Fixed by the plan, so that the bits are. */
static i64 norm_shares(const bsk_global_norm_params *p, const simt_device *d)
{
    const i64 runs = simt_runs(count_of(&p->x), simt_vec(d, p->x.dtype));
    const i64 most = NORM_SHARES / p->pairs, shares = bski_simt_groups(d, bski_ceil_div(runs, 4));
    return most < 1 ? 1 : shares < most ? shares : most;
}

SIMT_ACCEPT(global_norm)
{
    const bsk_global_norm_params *p = problem->params;
    return ACCEPT(&p->x);
}

SIMT_PREPARE(global_norm)
{
    static const simt_need need = {.file = "training",
                                   .kernels = {"global_norm_parts", "global_norm_finish"}};
    const bsk_global_norm_params *p = prepared->problem->params;
    size_t at;
    if (!bski_simt_space(&prepared->workspace_bytes, p->pairs * norm_shares(p, device),
                         simt_num_size(p->x.dtype), &at))
        return BSK_E_NOMEM;
    return bski_simt_prepare(device, prepared, &need);
}

SIMT_LAUNCH(global_norm)
{
    const simt_device *d = queue_device(queue);
    const bsk_global_norm_params *p = prepared->problem->params;
    const bsk_global_norm_args *a = args;
    const i64 shares = norm_shares(p, d), total = count_of(&p->x);
    global_norm_parts_arg arg = {.count = total,
                                 .shares = shares,
                                 .grad_scale = simt_num(prepared, one_if_zero(a->grad_scale)),
                                 .type = (i32)p->x.dtype};
    for (arg.first = 0; shares > 0 && arg.first < p->pairs; arg.first += LIST_TENSORS) {
        bsk_mem buffers[LIST_TENSORS + 1] = {0};
        const i64 count = list_take(buffers, a->x, arg.first, p->pairs);
        buffers[LIST_TENSORS] = a->workspace;
        arg.vector = all_vector(d, p->x.dtype, buffers, LIST_TENSORS, 1, total);
        TRY(bski_simt_run(&(const simt_run){.prepared = prepared,
                                            .queue = queue,
                                            .kernel = NORM_PARTS,
                                            .x = shares,
                                            .y = count,
                                            .scalars = &arg,
                                            .scalar_bytes = sizeof arg,
                                            .buffers = buffers,
                                            .buffer_count = LIST_TENSORS + 1}));
    }
    const global_norm_finish_arg finish = {.parts = shares * p->pairs,
                                           .beta = simt_num(prepared, a->beta),
                                           .clip = simt_num(prepared, a->clip)};
    return LAUNCH(NORM_FINISH, 1, 1, finish, a->workspace, a->sum, mem_of(&p->norm, a->norm),
                  mem_of(&p->norm_scale, a->norm_scale));
}

/* --- loss_scale --- */

SIMT_PREPARE_BY(loss_scale, .file = "training", .kernels = {"loss_scale"})

SIMT_ACCEPT(loss_scale)
{
    const bsk_loss_scale_params *p = problem->params;
    return ACCEPT(&p->scale);
}

SIMT_LAUNCH(loss_scale)
{
    const bsk_loss_scale_params *p = prepared->problem->params;
    const bsk_loss_scale_args *a = args;
    const loss_scale_arg arg = {.growth = simt_num(prepared, p->growth),
                                .backoff = simt_num(prepared, p->backoff),
                                .low = simt_num(prepared, p->low),
                                .high = simt_num(prepared, p->high),
                                .interval = p->interval};
    return LAUNCH(0, 1, 1, arg, a->scale, a->norm_scale, a->good, mem_of(&p->steps, a->steps),
                  mem_of(&p->norm, a->norm));
}

/* --- adafactor --- */

enum { FACTOR_ROWS, FACTOR_COL_PARTS, FACTOR_COL, FACTOR_SQUARE, FACTOR_STEP };

/* The matrix, how its sums are shared out, and the places of those in the workspace. A vector is a
 * row. */
typedef struct factor_plan {
    i64 rows, cols, across, row_parts, square_parts;
    simt_shares cut; /* of the rows */
    i32 lanes_run;
    size_t cols_at, rows_at, squares_at, bytes;
} factor_plan;

static bool factor_of(const bsk_adafactor_params *p, const simt_device *d, factor_plan *f)
{
    const bool matrix = p->param.rank == 2;
    const size_t size = simt_num_size(p->param.dtype);
    *f =
        (factor_plan){.rows = matrix ? p->param.dims[0] : 1, .cols = p->param.dims[matrix ? 1 : 0]};
    const i64 runs = simt_runs(f->cols, simt_vec(d, p->param.dtype));
    f->lanes_run = simt_lanes_across(d, runs, 32);
    f->across = bski_ceil_div(runs, f->lanes_run);
    f->cut = bski_simt_shares(d, f->rows, simt_lanes(d) / f->lanes_run, f->across, 16);
    f->row_parts = matrix ? bski_simt_groups_most(d, f->rows, 8) : 0;
    f->square_parts = bski_simt_groups(d, f->rows * runs);
    i64 count;
    return bski_mul_i64(f->cut.shares, f->cols, &count) &&
           bski_simt_space(&f->bytes, count, size, &f->cols_at) &&
           bski_simt_space(&f->bytes, f->row_parts, size, &f->rows_at) &&
           bski_simt_space(&f->bytes, f->square_parts, size, &f->squares_at);
}

SIMT_RELEASE(adafactor)

SIMT_ACCEPT(adafactor)
{
    const bsk_adafactor_params *p = problem->params;
    return ACCEPT(&p->param, &p->grad);
}

SIMT_PREPARE(adafactor)
{
    static const simt_need need = {.file = "training",
                                   .kernels = {"adafactor_rows", "adafactor_cols", "adafactor_col",
                                               "adafactor_square", "adafactor_step"}};
    factor_plan f;
    if (!factor_of(prepared->problem->params, device, &f))
        return BSK_E_NOMEM;
    prepared->workspace_bytes = f.bytes;
    return bski_simt_prepare(device, prepared, &need);
}

static adafactor_arg adafactor_of(const bsk_prepared *prepared, const bsk_adafactor_args *a,
                                  const factor_plan *f)
{
    const bsk_adafactor_params *p = prepared->problem->params;
    const bool counted = p->steps.dtype != BSK_NONE; /* on the device */
    const double step = (double)a->step;
    const double log_beta2 = log(p->beta2); /* 1 - beta2^step would cancel */
    const double decay = p->beta2 * expm1(step * log_beta2) / expm1((step + 1) * log_beta2);
    return (adafactor_arg){
        .rows = f->rows,
        .cols = f->cols,
        .share = f->cut.share,
        .shares = f->cut.shares,
        .row_parts = f->row_parts,
        .square_parts = f->square_parts,
        .grad_scale = simt_num(prepared, one_if_zero(a->grad_scale)),
        .decay = simt_num(prepared, counted ? p->beta2 : decay),
        .rest = simt_num(prepared, 1 - (counted ? p->beta2 : decay)),
        .eps = simt_eps(prepared, p->eps),
        .rate = simt_num(prepared, a->lr),
        .clip = simt_num(prepared, p->clip),
        .log_beta2 = simt_num(prepared, log_beta2),
        .step = a->step,
        .grad_type = (i32)p->grad.dtype,
        .lanes_run = f->lanes_run,
    };
}

SIMT_LAUNCH(adafactor)
{
    const simt_device *d = queue_device(queue);
    const bsk_adafactor_params *p = prepared->problem->params;
    const bsk_adafactor_args *a = args;
    const bsk_mem row = mem_of(&p->row, a->row), norm = mem_of(&p->norm_scale, a->norm_scale);
    const bsk_mem steps = mem_of(&p->steps, a->steps);
    factor_plan f;
    if (!factor_of(p, d, &f))
        return bski_simt_unplanned(queue, "adafactor");
    if (f.rows == 0 || f.cols == 0)
        return BSK_OK;
    const bsk_mem col_parts = bsk_mem_at(a->workspace, f.cols_at);
    const bsk_mem row_parts = bsk_mem_at(a->workspace, f.rows_at);
    const bsk_mem squares = bsk_mem_at(a->workspace, f.squares_at);
    adafactor_arg arg = adafactor_of(prepared, a, &f);
    arg.vector = ALL_VECTOR(arg.rows, arg.cols, a->param, a->grad);
    arg.col_vector = ALL_VECTOR(1, arg.cols, a->col);
    if (f.row_parts > 0)
        TRY(LAUNCH(FACTOR_ROWS, f.row_parts, 1, arg, a->grad, norm, steps, row, row_parts));
    TRY(LAUNCH(FACTOR_COL_PARTS, f.across, f.cut.shares, arg, a->grad, norm, col_parts));
    TRY(LAUNCH(FACTOR_COL, simt_finish_groups(d, f.cols), 1, arg, col_parts, norm, steps, a->col));
    TRY(LAUNCH(FACTOR_SQUARE, f.square_parts, 1, arg, a->grad, norm, a->col, row, row_parts,
               squares));
    return LAUNCH(FACTOR_STEP, f.square_parts, 1, arg, a->param, a->grad, norm, a->col, row,
                  row_parts, squares);
}
