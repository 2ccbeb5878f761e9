/* Host side of the weight ops: initialisers, norms, gates, pruning, renewal. */
#include <backends/simt/entry.h>

#include <math.h>

#include <backends/simt/plan.h>
#include <backends/simt/weights.h>

/* What kernels on blocks share. */
static block_arg blocks_of(const bsk_prepared *prepared)
{
    const bsk_layout_tables *t = prepared->problem->layout;
    return (block_arg){.rows = t->rows,
                       .cols = t->cols,
                       .count = t->nnz,
                       .block_rows = t->block_rows,
                       .block_cols = t->block_cols,
                       .grid_rows = t->grid_rows,
                       .grid_cols = t->grid_cols,
                       .type = (i32)prepared->problem->dtype};
}

static i64 block_size(const block_arg *arg)
{
    return (i64)arg->block_rows * arg->block_cols;
}

static i64 element_groups(const void *queue, const block_arg *arg)
{
    return bski_simt_groups(queue_device(queue), arg->count * block_size(arg));
}

#define SLOT_TABLES table_of(prepared, SLOT_ROW), table_of(prepared, SLOT_COL)
#define COL_TABLES                                                                                 \
    table_of(prepared, COL_START), table_of(prepared, COL_ROW), table_of(prepared, COL_SLOT)

/* --- Initialisers --- */

SIMT_PREPARE_BY(weight_identity, .file = "weights", .kernels = {"weight_identity"}, .slots = true)
SIMT_PREPARE_BY(weight_normal, .file = "weights", .kernels = {"weight_normal"}, .slots = true)
SIMT_PREPARE_BY(weight_checker, .file = "weights", .kernels = {"weight_checker"}, .slots = true)

SIMT_ACCEPT(weight_identity)
{
    const bsk_weight_init_params *p = problem->params;
    return ACCEPT(&p->w);
}

SIMT_ACCEPT(weight_normal)
{
    return simt_weight_identity_accept(problem, props);
}

SIMT_ACCEPT(weight_checker)
{
    return simt_weight_identity_accept(problem, props);
}

SIMT_LAUNCH(weight_identity)
{
    const bsk_weight_init_args *a = args;
    block_arg arg = blocks_of(prepared);
    bski_store(prepared->problem->dtype, &arg.alpha, 0, a->alpha);
    return LAUNCH(0, element_groups(queue, &arg), 1, arg, a->w, SLOT_TABLES);
}

SIMT_LAUNCH(weight_normal)
{
    const bsk_weight_init_args *a = args;
    block_arg arg = blocks_of(prepared);
    arg.alpha = bski_simt_num(prepared->problem->dtype, a->alpha);
    arg.seed = (i64)a->seed;
    return LAUNCH(0, element_groups(queue, &arg), 1, arg, a->w, SLOT_TABLES);
}

SIMT_LAUNCH(weight_checker)
{
    const bsk_weight_init_args *a = args;
    const block_arg arg = blocks_of(prepared);
    return LAUNCH(0, bski_simt_groups(queue_device(queue), arg.count), 1, arg, a->w, SLOT_TABLES);
}

/* --- weight_orthogonal: each block column has its place in the workspace --- */

SIMT_RELEASE(weight_orthogonal)

/* Whether a device takes a group for each of so many block columns. */
static bsk_reason columns_accept(i64 columns)
{
    return columns > SIMT_MAX_GROUPS ? BSK_REFUSE_LIMIT : BSK_ACCEPT;
}

SIMT_ACCEPT(weight_orthogonal)
{
    const bsk_layout_tables *t = problem->layout;
    const bsk_reason reason = simt_weight_identity_accept(problem, props);
    return reason ? reason : columns_accept((i64)t->heads * t->grid_cols);
}

/* Elements that a block column needs: its vectors, and a dot product with each. */
static bool column_space(const bsk_layout_tables *t, i64 head, i64 col, i64 *space)
{
    const int64_t *start = t->col_start + head * ((i64)t->grid_cols + 1) + col;
    const i64 left = t->cols - col * t->block_cols;
    const i64 width = left < t->block_cols ? left : t->block_cols;
    i64 height = 0;
    for (i64 e = start[0]; e < start[1]; e++) {
        const i64 below = t->rows - (i64)t->col_row[e] * t->block_rows;
        height += below < t->block_rows ? below : t->block_rows;
    }
    const i64 count = width < height ? width : height;
    return bski_mul_i64(width, height, space) && bski_add_i64(*space, count, space);
}

SIMT_PREPARE(weight_orthogonal)
{
    static const simt_need need = {
        .file = "weights", .kernels = {"weight_orthogonal"}, .cols = true};
    const bsk_layout_tables *t = prepared->problem->layout;
    const bsk_host *host = ((const simt_device *)device)->host;
    const i64 columns = (i64)t->heads * t->grid_cols;
    const size_t size = simt_num_size(prepared->problem->dtype);
    size_t at;
    i64 total = 0, space;
    i64 *place;
    TRY(host_array(host, &place, columns, sizeof *place));
    bool fits = true;
    for (i64 c = 0; fits && c < columns; c++) {
        place[c] = total;
        fits = column_space(t, c / t->grid_cols, c % t->grid_cols, &space) &&
               bski_add_i64(total, space, &total);
    }
    bsk_status status = BSK_E_NOMEM;
    if (fits && bski_simt_space(&prepared->workspace_bytes, total, size, &at))
        status = bski_simt_prepare(device, prepared, &need);
    else
        host->fail(host->context, status, "weight_orthogonal: no memory for a plan");
    if (!status)
        status = bski_simt_table(device, prepared, OWN_TABLE, place, columns, sizeof *place);
    host_drop(host, place);
    return status;
}

SIMT_LAUNCH(weight_orthogonal)
{
    const bsk_layout_tables *t = prepared->problem->layout;
    const bsk_weight_init_args *a = args;
    const orthogonal_arg arg = {.rows = t->rows,
                                .cols = t->cols,
                                .alpha = bski_simt_num(prepared->problem->dtype, a->alpha),
                                .seed = (i64)a->seed,
                                .block_rows = t->block_rows,
                                .block_cols = t->block_cols,
                                .grid_cols = t->grid_cols,
                                .type = (i32)prepared->problem->dtype};
    return LAUNCH(0, t->nnz ? (i64)t->heads * t->grid_cols : 0, 1, arg, a->w, a->workspace,
                  table_of(prepared, OWN_TABLE), COL_TABLES);
}

/* --- l2_normalize --- */

SIMT_PREPARE_BY(l2_normalize, .file = "weights", .kernels = {"l2_normalize"}, .cols = true)
SIMT_PREPARE_BY(l2_normalize_grad, .file = "weights", .kernels = {"l2_normalize_grad"},
                .cols = true)

/* The smallest power of two that is at least n, or most. */
static i32 lanes_for(i64 n, i32 most)
{
    i32 lanes = 1;
    while (lanes < n && lanes < most)
        lanes *= 2;
    return lanes;
}

/* A group takes up to 32 neighbouring columns of a block column, which is a whole cache line. */
static column_arg columns_of(const bsk_prepared *prepared, const simt_device *d, double eps)
{
    const bsk_layout_tables *t = prepared->problem->layout;
    return (column_arg){.rows = t->rows,
                        .cols = t->cols,
                        .eps = simt_eps(prepared, eps),
                        .block_rows = t->block_rows,
                        .block_cols = t->block_cols,
                        .grid_cols = t->grid_cols,
                        .lanes = d->wide ? 1 : lanes_for(t->block_cols, 32),
                        .type = (i32)prepared->problem->dtype};
}

SIMT_ACCEPT(l2_normalize)
{
    const bsk_l2_normalize_params *p = problem->params;
    const bsk_reason reason = ACCEPT(&p->w, &p->y);
    return reason ? reason : columns_accept(problem->layout->grid_cols);
}

SIMT_LAUNCH(l2_normalize)
{
    const bsk_l2_normalize_params *p = prepared->problem->params;
    const bsk_l2_normalize_args *a = args;
    column_arg arg = columns_of(prepared, queue_device(queue), p->eps);
    arg.y_type = (i32)p->y.dtype;
    return LAUNCH(0, arg.grid_cols, bski_ceil_div(arg.block_cols, arg.lanes), arg, a->w, a->y,
                  mem_of(&p->gain, a->gain), mem_of(&p->saved, a->saved), COL_TABLES);
}

SIMT_ACCEPT(l2_normalize_grad)
{
    const bsk_l2_normalize_grad_params *p = problem->params;
    const bsk_reason reason = ACCEPT(&p->w, &p->dy, &p->dw);
    return reason ? reason : columns_accept(problem->layout->grid_cols);
}

SIMT_LAUNCH(l2_normalize_grad)
{
    const bsk_l2_normalize_grad_params *p = prepared->problem->params;
    const bsk_l2_normalize_grad_args *a = args;
    column_arg arg = columns_of(prepared, queue_device(queue), p->eps);
    arg.alpha = bski_simt_num(prepared->problem->dtype, a->alpha);
    arg.beta = bski_simt_num(prepared->problem->dtype, a->beta);
    arg.dy_type = (i32)p->dy.dtype;
    arg.y_type = (i32)p->dw.dtype;
    return LAUNCH(0, arg.grid_cols, bski_ceil_div(arg.block_cols, arg.lanes), arg, a->dy, a->w,
                  a->saved, a->dw, mem_of(&p->gain, a->gain), mem_of(&p->dgain, a->dgain),
                  COL_TABLES);
}

/* --- block_norm, block_l2_decay --- */

SIMT_PREPARE_BY(block_norm, .file = "weights", .kernels = {"block_norm"}, .slots = true)
SIMT_PREPARE_BY(block_l2_decay, .file = "weights", .kernels = {"block_l2_decay"}, .slots = true)

/* A block gets a lane for every four of its elements; a group has room for several blocks. */
static i64 share_blocks(const simt_device *d, block_arg *arg)
{
    arg->lanes = lanes_for(bski_ceil_div(block_size(arg), 4), simt_lanes(d));
    return bski_simt_groups_most(d, bski_ceil_div(arg->count, simt_lanes(d) / arg->lanes), 64);
}

SIMT_ACCEPT(block_norm)
{
    const bsk_block_norm_params *p = problem->params;
    return ACCEPT(&p->w);
}

SIMT_LAUNCH(block_norm)
{
    const bsk_block_norm_params *p = prepared->problem->params;
    const bsk_block_norm_args *a = args;
    block_arg arg = blocks_of(prepared);
    arg.mode = p->type == BSK_NORM_MAX ? NORM_MAX : NORM_L2;
    const i64 groups = share_blocks(queue_device(queue), &arg);
    return LAUNCH(0, groups, 1, arg, a->w, a->norm, SLOT_TABLES);
}

SIMT_ACCEPT(block_l2_decay)
{
    const bsk_block_l2_decay_params *p = problem->params;
    return ACCEPT(&p->w);
}

SIMT_LAUNCH(block_l2_decay)
{
    const bsk_block_l2_decay_params *p = prepared->problem->params;
    const bsk_block_l2_decay_args *a = args;
    block_arg arg = blocks_of(prepared);
    arg.mode = NORM_L2;
    arg.alpha = bski_simt_num(prepared->problem->dtype, a->rate);
    arg.offset = simt_eps(prepared, p->eps);
    const i64 groups = share_blocks(queue_device(queue), &arg);
    return LAUNCH(0, groups, 1, arg, a->w, mem_of(&p->gate, a->gate), SLOT_TABLES);
}

/* --- Pruning --- */

SIMT_PREPARE_BY(prune_sparsity, .file = "weights", .kernels = {"prune_sparsity"})
SIMT_PREPARE_BY(prune_threshold, .file = "weights", .kernels = {"prune_threshold"})

/* Counts are 32 bits wide. */
SIMT_ACCEPT(prune_sparsity)
{
    const bsk_prune_params *p = problem->params;
    return p->norm.dims[0] > INT32_MAX ? BSK_REFUSE_LIMIT : ACCEPT(&p->norm);
}

SIMT_LAUNCH(prune_sparsity)
{
    const bsk_prune_params *p = prepared->problem->params;
    const bsk_prune_args *a = args;
    const double count = (double)p->norm.dims[0];
    const vector_arg arg = {.count = p->norm.dims[0], .keep = (i64)round(count * (1 - a->value))};
    return LAUNCH(0, arg.count > 0, 1, arg, a->norm, a->gate);
}

SIMT_ACCEPT(prune_threshold)
{
    const bsk_prune_params *p = problem->params;
    return ACCEPT(&p->norm);
}

/* An f32 norm reaches the f64 value exactly where it reaches the next f32 number above it. */
SIMT_LAUNCH(prune_threshold)
{
    const bsk_prune_params *p = prepared->problem->params;
    const bsk_prune_args *a = args;
    double value = a->value;
    if (p->norm.dtype == BSK_F32 && (double)(float)value < value)
        value = nextafterf((float)value, INFINITY);
    const vector_arg arg = {.count = p->norm.dims[0], .low = bski_simt_num(p->norm.dtype, value)};
    return LAUNCH(0, bski_simt_groups(queue_device(queue), arg.count), 1, arg, a->norm, a->gate);
}

/* --- Concrete gates --- */

SIMT_PREPARE_BY(concrete_gate, .file = "weights", .kernels = {"concrete_gate"})
SIMT_PREPARE_BY(concrete_gate_grad, .file = "weights", .kernels = {"concrete_gate_grad"})
SIMT_PREPARE_BY(concrete_gate_infer, .file = "weights", .kernels = {"concrete_gate_infer"})

/* The gate's limits, and 1 / temperature. */
static vector_arg gate_of(const bsk_tensor *t, double low, double high, double temperature)
{
    return (vector_arg){
        .count = t->dims[0],
        .low = bski_simt_num(t->dtype, low),
        .range = bski_simt_num(t->dtype, high - low),
        .rate = bski_simt_num(t->dtype, temperature != 0 ? 1 / temperature : 1.5),
    };
}

SIMT_ACCEPT(concrete_gate)
{
    const bsk_concrete_gate_params *p = problem->params;
    return ACCEPT(&p->loga);
}

SIMT_LAUNCH(concrete_gate)
{
    const bsk_concrete_gate_params *p = prepared->problem->params;
    const bsk_concrete_gate_args *a = args;
    vector_arg arg = gate_of(&p->loga, p->limit_a, p->limit_b, a->temperature);
    arg.eps = bski_simt_num(p->loga.dtype, p->eps);
    arg.rest = bski_simt_num(p->loga.dtype, 1 - 2 * p->eps);
    arg.seed = (i64)a->seed;
    arg.offset = (i64)a->offset;
    return LAUNCH(0, bski_simt_groups(queue_device(queue), arg.count), 1, arg, a->loga, a->gate,
                  a->concrete);
}

SIMT_ACCEPT(concrete_gate_grad)
{
    const bsk_concrete_gate_grad_params *p = problem->params;
    return ACCEPT(&p->dgate);
}

SIMT_LAUNCH(concrete_gate_grad)
{
    const bsk_concrete_gate_grad_params *p = prepared->problem->params;
    const bsk_concrete_gate_grad_args *a = args;
    vector_arg arg = gate_of(&p->dgate, p->limit_a, p->limit_b, a->temperature);
    arg.alpha = bski_simt_num(p->dgate.dtype, a->alpha);
    arg.beta = bski_simt_num(p->dgate.dtype, a->beta);
    return LAUNCH(0, bski_simt_groups(queue_device(queue), arg.count), 1, arg, a->dgate,
                  a->concrete, a->dloga);
}

SIMT_ACCEPT(concrete_gate_infer)
{
    const bsk_concrete_gate_infer_params *p = problem->params;
    return ACCEPT(&p->loga);
}

SIMT_LAUNCH(concrete_gate_infer)
{
    const bsk_concrete_gate_infer_params *p = prepared->problem->params;
    const bsk_concrete_gate_infer_args *a = args;
    const vector_arg arg = gate_of(&p->loga, p->limit_a, p->limit_b, 0);
    return LAUNCH(0, bski_simt_groups(queue_device(queue), arg.count), 1, arg, a->loga, a->gate);
}

/* --- block_renew --- */

SIMT_RELEASE(block_renew)

SIMT_ACCEPT(block_renew)
{
    const bsk_block_renew_params *p = problem->params;
    return ACCEPT(&p->w);
}

SIMT_PREPARE(block_renew)
{
    static const simt_need need = {.file = "weights",
                                   .kernels = {"block_renew", "renew_moments"},
                                   .slots = true,
                                   .u16_as = BSK_BF16};
    const bsk_block_renew_params *p = prepared->problem->params;
    if (p->renew != BSK_RENEW_ZERO)
        prepared->workspace_bytes = 3 * RENEW_PARTS * sizeof(double);
    return bski_simt_prepare(device, prepared, &need);
}

SIMT_LAUNCH(block_renew)
{
    const bsk_layout_tables *t = prepared->problem->layout;
    const bsk_block_renew_params *p = prepared->problem->params;
    const bsk_block_renew_args *a = args;
    const block_arg blocks = blocks_of(prepared);
    const i64 groups = element_groups(queue, &blocks);
    const bsk_mem partial = p->renew == BSK_RENEW_ZERO ? mem_none() : a->workspace;
    renew_arg arg = {.rows = t->rows,
                     .cols = t->cols,
                     .count = t->nnz,
                     .alpha = bski_simt_num(prepared->problem->dtype, a->alpha),
                     .seed = (i64)a->seed,
                     .block_rows = t->block_rows,
                     .block_cols = t->block_cols,
                     .type = (i32)(p->w.dtype == BSK_U16 ? BSK_BF16 : p->w.dtype)};
    if (p->renew != BSK_RENEW_ZERO) {
        arg.parts = (i32)(groups < RENEW_PARTS ? groups : RENEW_PARTS);
        for (arg.mode = 0; arg.mode < 2; arg.mode++)
            TRY(LAUNCH(1, arg.parts, 1, arg, a->w, a->keep, partial, SLOT_TABLES));
    }
    arg.mode = p->renew == BSK_RENEW_NORMAL    ? RENEW_NORMAL
               : p->renew == BSK_RENEW_UNIFORM ? RENEW_UNIFORM
                                               : RENEW_ZERO;
    return LAUNCH(0, groups, 1, arg, a->w, a->keep, partial, SLOT_TABLES);
}
