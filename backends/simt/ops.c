/* Host side of the dense companions and of block_gather. */
#include <backends/simt/entry.h>

#include <backends/simt/loss.h>
#include <backends/simt/ops.h>

/* --- embedding, block_gather --- */

enum { CONVERT, COPY, COPY_SLICES };
/* Bytes of a slice of the table, which should stay in the cache, and its least width in runs. */
enum { SLICE_BYTES = 16 << 20, SLICE_RUNS = 16 };

static bsk_status copy_prepare(void *device, bsk_prepared *prepared)
{
    static const simt_need need = {
        .file = "ops", .kernels = {"embedding", "copy_rows", "copy_slices"}, .u16_as = BSK_BF16};
    static const simt_need wide = {
        .file = "ops", .kernels = {"embedding", "copy_rows"}, .u16_as = BSK_BF16};
    return bski_simt_prepare(device, prepared, ((const simt_device *)device)->wide ? &wide : &need);
}

/* Copies rows of a table as they are. */
static bsk_status copy_launch(const bsk_prepared *prepared, void *queue, embedding_arg *arg,
                              bsk_mem table, bsk_mem index, bsk_mem y)
{
    const simt_device *d = queue_device(queue);
    const i64 vec = simt_vec(d, prepared->problem->dtype), runs = simt_runs(arg->cols, vec);
    const i64 row_bytes = 16, slice_rows = SLICE_BYTES / row_bytes;
    i32 most = SIMT_LANES;
    while (most > SLICE_RUNS && arg->table_rows > slice_rows / most)
        most /= 2;
    arg->lanes_run = simt_lanes_across(d, runs, most);
    const i64 down = simt_lanes(d) / arg->lanes_run,
              shares = bski_ceil_div(arg->rows, down * COPY_ROWS);
    const i64 slices = bski_ceil_div(runs, arg->lanes_run);
    if (!d->wide && arg->vector && arg->cols % vec == 0 && slices <= UINT16_MAX &&
        shares <= SIMT_MAX_GROUPS)
        return LAUNCH(COPY_SLICES, shares, slices, *arg, table, index, y);
    return LAUNCH(COPY, simt_walk_groups(prepared, queue, arg->rows, arg->cols), 1, *arg, table,
                  index, y);
}

SIMT_RELEASE(embedding)

SIMT_PREPARE(embedding)
{
    return copy_prepare(device, prepared);
}

SIMT_RELEASE(block_gather)

static bool of_bytes(bsk_dtype type)
{
    return (BSK_DTYPE_BIT(type) & BSKI_SCALED) != 0;
}

SIMT_PREPARE(block_gather)
{
    static const simt_need bytes = {.file = "ops", .kernels = {"copy_bytes"}, .type = BSK_BF16};
    return of_bytes(prepared->problem->dtype) ? bski_simt_prepare(device, prepared, &bytes)
                                              : copy_prepare(device, prepared);
}

SIMT_ACCEPT(embedding)
{
    const bsk_embedding_params *p = problem->params;
    return ACCEPT(&p->table, &p->y);
}

SIMT_LAUNCH(embedding)
{
    const simt_device *d = queue_device(queue);
    const bsk_embedding_params *p = prepared->problem->params;
    const bsk_embedding_args *a = args;
    embedding_arg arg = {
        .rows = p->y.dims[0],
        .cols = p->y.dims[1],
        .table_rows = p->table.dims[0],
        .table_row = p->table.strides[0],
        .table_col = 1,
        .y_row = p->y.strides[0],
        .y_col = 1,
        .index_type = (i32)p->index.dtype,
        .table_type = (i32)p->table.dtype,
        .y_type = (i32)p->y.dtype,
        .vector = bski_simt_vector(d, p->table.dtype, &p->table, a->table, 1) &&
                  bski_simt_vector(d, p->table.dtype, &p->y, a->y, 1),
    };
    if (p->y.dtype == p->table.dtype)
        return copy_launch(prepared, queue, &arg, a->table, a->index, a->y);
    return LAUNCH(CONVERT, simt_walk_groups(prepared, queue, arg.rows, arg.cols), 1, arg, a->table,
                  a->index, a->y);
}

SIMT_ACCEPT(block_gather)
{
    const bsk_block_gather_params *p = problem->params;
    return ACCEPT(&p->x);
}

/* Blocks are rows of a table. */
SIMT_LAUNCH(block_gather)
{
    const simt_device *d = queue_device(queue);
    const bsk_block_gather_params *p = prepared->problem->params;
    const bsk_block_gather_args *a = args;
    const i64 size = p->y.dims[1] * p->y.dims[2];
    embedding_arg arg = {
        .rows = p->y.dims[0],
        .cols = size,
        .table_rows = p->x.dims[0],
        .table_row = size,
        .table_col = 1,
        .y_row = size,
        .y_col = 1,
        .index_type = (i32)p->index.dtype,
        .vector = bski_simt_vector_rows(d, p->x.dtype, a->x, p->x.dims[0], size) &&
                  bski_simt_vector_rows(d, p->x.dtype, a->y, p->y.dims[0], size),
    };
    if (!of_bytes(p->x.dtype))
        return copy_launch(prepared, queue, &arg, a->x, a->index, a->y);
    arg.vector = size % COPY_BYTES == 0 && simt_aligned(a->x) && simt_aligned(a->y);
    return LAUNCH(0, bski_simt_groups(d, arg.rows * simt_runs(size, COPY_BYTES)), 1, arg, a->x,
                  a->index, a->y);
}

/* --- embedding_grad --- */

enum { SORT_COUNT, SORT_MOVE, STARTS, PARTS, SUMS, SUMS_PACKED };
/* Groups of embedding_grad_packed on a multiprocessor. */
enum { SUMS_RESIDENT = 6 };

/* What sorting N indices into V rows takes, and the places in the workspace. */
typedef struct sort_plan {
    i64 parts;
    i32 chunks, tiles, passes;
    size_t counts, keys[2], values[2], start, partial, bytes;
} sort_plan;

/* Each chunk reads the counts of all, which is why wide devices have few. */
static bool sort_of(const bsk_embedding_grad_params *p, bool wide, sort_plan *s)
{
    const i64 count = p->index.dims[0], rows = p->dtable.dims[0];
    const i64 tiles = bski_ceil_div(count, SORT_TILE), each = bski_ceil_div(tiles, wide ? 32 : 128);
    const size_t size = simt_num_size(p->dy.dtype);
    i64 partial;
    *s = (sort_plan){.parts = bski_ceil_div(count, PART_COUNT), .passes = 1};
    s->tiles = (i32)(each < 2 ? 2 : each);
    s->chunks = (i32)bski_ceil_div(tiles, s->tiles);
    while (s->passes < 4 && rows >> (8 * s->passes))
        s->passes++;
    bool fits = bski_mul_i64(2 * s->parts, p->dy.dims[1], &partial) &&
                bski_simt_space(&s->bytes, (i64)SORT_DIGITS * s->chunks, sizeof(i32), &s->counts) &&
                bski_simt_space(&s->bytes, rows + 1, sizeof(i32), &s->start) &&
                bski_simt_space(&s->bytes, partial, size, &s->partial);
    for (int i = 0; fits && i < 2; i++)
        fits = bski_simt_space(&s->bytes, count, sizeof(i32), &s->keys[i]) &&
               bski_simt_space(&s->bytes, count, sizeof(i32), &s->values[i]);
    return fits;
}

SIMT_RELEASE(embedding_grad)

/* Keys and positions are 32 bits wide. */
SIMT_ACCEPT(embedding_grad)
{
    const bsk_embedding_grad_params *p = problem->params;
    sort_plan s;
    if (p->index.dims[0] >= INT32_MAX || p->dtable.dims[0] >= INT32_MAX || !sort_of(p, false, &s))
        return BSK_REFUSE_LIMIT;
    return ACCEPT(&p->dy, &p->dtable);
}

SIMT_PREPARE(embedding_grad)
{
    static const simt_need need = {.file = "ops",
                                   .kernels = {"sort_count", "sort_move", "embedding_starts",
                                               "embedding_parts", "embedding_grad",
                                               "embedding_grad_packed"}};
    static const simt_need wide = {.file = "ops",
                                   .kernels = {"sort_count", "sort_move", "embedding_starts",
                                               "embedding_parts", "embedding_grad"}};
    const simt_device *d = device;
    sort_plan s;
    if (!sort_of(prepared->problem->params, d->wide, &s))
        return BSK_E_NOMEM;
    prepared->workspace_bytes = s.bytes;
    return bski_simt_prepare(device, prepared, d->wide ? &wide : &need);
}

/* Sorts the indices; returns which of the two buffers holds the result. */
static bsk_status sort_launch(const bsk_prepared *prepared, void *queue, const sort_plan *s,
                              const bsk_embedding_grad_args *a, bsk_mem *keys, bsk_mem *values)
{
    const bsk_embedding_grad_params *p = prepared->problem->params;
    const bsk_mem counts = bsk_mem_at(a->workspace, s->counts);
    for (i32 pass = 0; pass < s->passes; pass++) {
        const sort_arg arg = {.count = p->index.dims[0],
                              .table_rows = p->dtable.dims[0],
                              .chunks = s->chunks,
                              .tiles = s->tiles,
                              .shift = 8 * pass,
                              .first = pass == 0,
                              .index_type = (i32)p->index.dtype};
        const bsk_mem keys_out = bsk_mem_at(a->workspace, s->keys[pass % 2]);
        const bsk_mem values_out = bsk_mem_at(a->workspace, s->values[pass % 2]);
        const bsk_mem keys_in = pass ? *keys : mem_none(), values_in = pass ? *values : mem_none();
        TRY(LAUNCH(SORT_COUNT, s->chunks, 1, arg, a->index, keys_in, counts));
        TRY(LAUNCH(SORT_MOVE, s->chunks, 1, arg, a->index, keys_in, values_in, counts, keys_out,
                   values_out));
        *keys = keys_out;
        *values = values_out;
    }
    return BSK_OK;
}

SIMT_LAUNCH(embedding_grad)
{
    const simt_device *d = queue_device(queue);
    const bsk_embedding_grad_params *p = prepared->problem->params;
    const bsk_embedding_grad_args *a = args;
    sort_plan s;
    bsk_mem keys, values;
    if (!sort_of(p, d->wide, &s))
        return bski_simt_unplanned(queue, "embedding_grad");
    if (p->dtable.dims[0] == 0)
        return BSK_OK;
    TRY(sort_launch(prepared, queue, &s, a, &keys, &values));
    const bsk_mem start = bsk_mem_at(a->workspace, s.start);
    const bsk_mem partial = bsk_mem_at(a->workspace, s.partial);
    embedding_grad_arg arg = {
        .count = p->index.dims[0],
        .parts = s.parts,
        .rows = p->dtable.dims[0],
        .cols = p->dtable.dims[1],
        .dy_row = p->dy.strides[0],
        .dtable_row = p->dtable.strides[0],
        .alpha = simt_num(prepared, a->alpha),
        .beta = simt_num(prepared, a->beta),
        .dy_type = (i32)p->dy.dtype,
        .dtable_type = (i32)p->dtable.dtype,
        .dy_vector = bski_simt_vector(d, p->dy.dtype, &p->dy, a->dy, 1),
        .dtable_vector = bski_simt_vector(d, p->dy.dtype, &p->dtable, a->dtable, 1),
    };
    arg.packed = arg.dy_vector && p->dy.dtype == prepared->problem->dtype &&
                 arg.cols % simt_vec(d, p->dy.dtype) == 0;
    TRY(LAUNCH(STARTS, bski_simt_groups(d, arg.rows + 1), 1, arg, keys, start));
    TRY(LAUNCH(PARTS, simt_walk_groups(prepared, queue, 2 * arg.parts, arg.cols), 1, arg, a->dy,
               keys, values, start, partial));
    const i64 runs = simt_runs(arg.cols, simt_vec(d, prepared->problem->dtype));
    arg.lanes_run = simt_lanes_across(d, runs, SIMT_LANES);
    const i64 across = bski_ceil_div(runs, arg.lanes_run);
    const i64 down = bski_ceil_div(arg.rows, simt_lanes(d) / arg.lanes_run);
    if (!d->wide && arg.packed && arg.dtable_vector && p->dtable.dtype == p->dy.dtype &&
        across <= UINT16_MAX)
        return LAUNCH(SUMS_PACKED,
                      bski_simt_groups_most(d, bski_ceil_div(down, SUM_ROWS), SUMS_RESIDENT),
                      across, arg, a->dy, values, start, partial, a->dtable);
    return LAUNCH(SUMS, bski_simt_groups_most(d, down, d->wide ? 4 : 64),
                  across < UINT16_MAX ? across : UINT16_MAX, arg, a->dy, values, start, partial,
                  a->dtable);
}

/* --- bias_act --- */

/* Kernels of bias_act, and how often its packed form reads BIAS_ROWS rows of ops_bias.h. */
enum { ADD, ADD_PACKED };
enum { BIAS_ROWS = 4, BIAS_STEPS = 2 };

SIMT_RELEASE(bias_act)

SIMT_PREPARE(bias_act)
{
    static const simt_need need = {.file = "ops", .kernels = {"bias_act", "bias_act_packed"}};
    static const simt_need wide = {.file = "ops", .kernels = {"bias_act"}};
    return bski_simt_prepare(device, prepared, ((const simt_device *)device)->wide ? &wide : &need);
}

/* The axis of a walk on which the features lie, where there is a bias. */
static i32 bias_of(const bsk_tensor *bias, bsk_axis axis, int inner)
{
    return bias->dtype == BSK_NONE             ? BIAS_NONE
           : (axis == BSK_NC ? 1 : 0) == inner ? BIAS_COL
                                               : BIAS_ROW;
}

SIMT_ACCEPT(bias_act)
{
    const bsk_bias_act_params *p = problem->params;
    return ACCEPT(&p->x, &p->y);
}

SIMT_LAUNCH(bias_act)
{
    const simt_device *d = queue_device(queue);
    const bsk_bias_act_params *p = prepared->problem->params;
    const bsk_bias_act_args *a = args;
    const bsk_tensor *const tensors[] = {&p->x, &p->y};
    const int inner = bski_simt_inner(tensors, 2), outer = 1 - inner;
    bias_act_arg arg = {
        .rows = p->x.dims[outer],
        .cols = p->x.dims[inner],
        .x_row = p->x.strides[outer],
        .x_col = p->x.strides[inner],
        .y_row = p->y.strides[outer],
        .y_col = p->y.strides[inner],
        .act = (i32)p->act,
        .bias = bias_of(&p->bias, p->axis, inner),
        .x_type = (i32)p->x.dtype,
        .y_type = (i32)p->y.dtype,
        .vector = bski_simt_vector(d, p->x.dtype, &p->x, a->x, inner) &&
                  bski_simt_vector(d, p->x.dtype, &p->y, a->y, inner),
        .bias_vector = bski_simt_vector_rows(d, p->x.dtype, mem_of(&p->bias, a->bias), 1, 0),
    };
    if (!d->wide && arg.vector && arg.bias_vector && p->y.dtype == p->x.dtype &&
        arg.cols % simt_vec(d, p->x.dtype) == 0) {
        const i64 runs = arg.cols / simt_vec(d, p->x.dtype);
        arg.lanes_run = simt_lanes_across(d, runs, SIMT_LANES);
        arg.share = SIMT_LANES / arg.lanes_run * BIAS_ROWS * BIAS_STEPS;
        const i64 across = bski_ceil_div(runs, arg.lanes_run);
        if (across <= UINT16_MAX)
            return LAUNCH(ADD_PACKED, bski_ceil_div(arg.rows, arg.share), across, arg, a->x,
                          mem_of(&p->bias, a->bias), a->y);
    }
    return LAUNCH(ADD, simt_walk_groups(prepared, queue, arg.rows, arg.cols), 1, arg, a->x,
                  mem_of(&p->bias, a->bias), a->y);
}

/* --- bias_act_grad --- */

enum { SLOPES, SLOPES_COLS, SLOPES_ROWS, DBIAS, SUMS_COLS };
/* Groups of a multiprocessor: those of columns all run at once, so that partial sums are few. */
enum { COLS_RESIDENT = 4, ROWS_RESIDENT = 24 };

/* How the sums over N are shared out. */
typedef struct slope_plan {
    int inner;
    bool by_cols; /* features are columns of the walk */
    bool alone;   /* sums of dy as it is, and nothing else */
    i64 runs, rows, features;
    i32 lanes_run;
    i64 across;      /* groups along the features */
    simt_shares cut; /* of the rows or runs */
} slope_plan;

static slope_plan slopes_of(const bsk_bias_act_grad_params *p, const simt_device *d)
{
    const bsk_tensor *const tensors[] = {&p->dy, &p->x, &p->dx};
    slope_plan s = {.inner = bski_simt_inner(tensors, 3)};
    s.by_cols = (p->axis == BSK_NC ? 1 : 0) == s.inner;
    s.runs = simt_runs(p->dy.dims[s.inner], simt_vec(d, p->dy.dtype));
    s.rows = p->dy.dims[1 - s.inner];
    s.features = p->dy.dims[p->axis == BSK_NC ? 1 : 0];
    s.lanes_run = s.by_cols ? simt_lanes_across(d, s.runs, 32) : simt_lanes(d);
    s.across = s.by_cols ? bski_ceil_div(s.runs, s.lanes_run) : s.rows;
    s.alone = s.by_cols && !d->wide && p->act == BSK_ACT_NONE && p->dx.dtype == BSK_NONE;
    s.cut = s.by_cols
                ? bski_simt_shares(d, s.rows, simt_lanes(d) / s.lanes_run, s.across, COLS_RESIDENT)
                : bski_simt_shares(d, s.runs, simt_lanes(d), s.across, ROWS_RESIDENT);
    return s;
}

SIMT_RELEASE(bias_act_grad)

SIMT_ACCEPT(bias_act_grad)
{
    const bsk_bias_act_grad_params *p = problem->params;
    return ACCEPT(&p->dy, &p->x, &p->dx);
}

SIMT_PREPARE(bias_act_grad)
{
    static const simt_need need = {.file = "ops",
                                   .kernels = {"bias_act_grad", "bias_act_grad_cols",
                                               "bias_act_grad_rows", "dbias_finish",
                                               "bias_grad_cols"}};
    static const simt_need wide = {
        .file = "ops",
        .kernels = {"bias_act_grad", "bias_act_grad_cols", "bias_act_grad_rows", "dbias_finish"}};
    const simt_device *d = device;
    const bsk_bias_act_grad_params *p = prepared->problem->params;
    if (p->dbias.dtype != BSK_NONE) {
        const slope_plan s = slopes_of(p, d);
        const size_t size = simt_num_size(p->dy.dtype);
        i64 count;
        size_t at;
        if (!bski_mul_i64(s.cut.shares, s.features, &count) ||
            !bski_simt_space(&prepared->workspace_bytes, count, size, &at))
            return BSK_E_NOMEM;
    }
    return bski_simt_prepare(device, prepared, d->wide ? &wide : &need);
}

SIMT_LAUNCH(bias_act_grad)
{
    const simt_device *d = queue_device(queue);
    const bsk_bias_act_grad_params *p = prepared->problem->params;
    const bsk_bias_act_grad_args *a = args;
    const slope_plan s = slopes_of(p, d);
    const int inner = s.inner, outer = 1 - inner;
    const bsk_dtype type = p->dy.dtype;
    const bsk_mem x = mem_of(&p->x, a->x), bias = mem_of(&p->bias, a->bias);
    const bsk_mem dx = mem_of(&p->dx, a->dx);
    bias_act_grad_arg arg = {
        .rows = s.rows,
        .cols = p->dy.dims[inner],
        .dy_row = p->dy.strides[outer],
        .dy_col = p->dy.strides[inner],
        .x_row = p->x.strides[outer],
        .x_col = p->x.strides[inner],
        .dx_row = p->dx.strides[outer],
        .dx_col = p->dx.strides[inner],
        .share = s.cut.share,
        .dx_alpha = simt_num(prepared, a->dx_alpha),
        .dx_beta = simt_num(prepared, a->dx_beta),
        .act = (i32)p->act,
        .bias = bias_of(&p->bias, p->axis, inner),
        .dy_type = (i32)type,
        .x_type = (i32)p->x.dtype,
        .dx_type = (i32)p->dx.dtype,
        .vector = bski_simt_vector(d, type, &p->dy, a->dy, inner) &&
                  bski_simt_vector(d, type, &p->x, a->x, inner) &&
                  bski_simt_vector(d, type, &p->dx, a->dx, inner),
        .bias_vector = bski_simt_vector_rows(d, type, bias, 1, 0),
        .lanes_run = s.lanes_run,
    };
    arg.packed = arg.vector && arg.bias_vector && arg.cols % simt_vec(d, type) == 0 &&
                 !p->dx_blend && (p->x.dtype == BSK_NONE || p->x.dtype == type);
    if (p->dbias.dtype == BSK_NONE)
        return LAUNCH(SLOPES, simt_walk_groups(prepared, queue, arg.rows, arg.cols), 1, arg, a->dy,
                      x, bias, dx);
    if (s.alone && arg.packed)
        TRY(LAUNCH(SUMS_COLS, s.across, s.cut.shares, arg, a->dy, a->workspace));
    else
        TRY(LAUNCH(s.by_cols ? SLOPES_COLS : SLOPES_ROWS, s.across, s.cut.shares, arg, a->dy, x,
                   bias, dx, a->workspace));
    const dbias_arg finish = {.features = s.features,
                              .shares = s.cut.shares,
                              .alpha = simt_num(prepared, a->alpha),
                              .beta = simt_num(prepared, a->beta)};
    return LAUNCH(DBIAS, simt_finish_groups(d, s.features), 1, finish, a->workspace, a->dbias);
}

/* --- cross_entropy --- */

SIMT_RELEASE(cross_entropy)

/* The second pass over a row, for the gradient, wants it in the cache: long rows get large groups,
 * and no more of them than have room there together. */
static bool rows_are_long(const bsk_cross_entropy_params *p, const simt_device *d)
{
    return p->dlogits.dtype != BSK_NONE && simt_long_lanes(d) > SIMT_LANES &&
           simt_runs(p->logits.dims[1], simt_vec(d, p->logits.dtype)) > 4 * SIMT_LANES;
}

SIMT_ACCEPT(cross_entropy)
{
    const bsk_cross_entropy_params *p = problem->params;
    return ACCEPT(&p->logits, &p->dlogits);
}

SIMT_PREPARE(cross_entropy)
{
    static const simt_need need = {.file = "loss", .kernels = {"cross_entropy"}};
    static const simt_need need_long = {.file = "loss", .kernels = {"cross_entropy_long"}};
    if (rows_are_long(prepared->problem->params, device)) {
        bsk_status status = bski_simt_prepare(device, prepared, &need_long);
        if (status != BSK_E_UNSUPPORTED) {
            if (!status)
                ((simt_state *)prepared->state)->number[0] = SIMT_LONG_LANES;
            return status;
        }
    } /* else, or where the device has no room for such a group */
    return bski_simt_prepare(device, prepared, &need);
}

SIMT_LAUNCH(cross_entropy)
{
    const simt_device *d = queue_device(queue);
    const bsk_cross_entropy_params *p = prepared->problem->params;
    const bsk_cross_entropy_args *a = args;
    const bsk_dtype type = p->logits.dtype;
    const cross_entropy_arg arg = {
        .rows = p->logits.dims[0],
        .classes = p->logits.dims[1],
        .logits_row = p->logits.strides[0],
        .dlogits_row = p->dlogits.strides[0],
        .ignore_index = p->ignore_index,
        .alpha = simt_num(prepared, a->alpha),
        .beta = simt_num(prepared, a->beta),
        .smoothing = simt_num(prepared, p->smoothing),
        .use_ignore_index = p->use_ignore_index,
        .label_type = (i32)p->labels.dtype,
        .logits_type = (i32)type,
        .dlogits_type = (i32)p->dlogits.dtype,
        .vector = bski_simt_vector(d, type, &p->logits, a->logits, 1),
        .dlogits_vector = bski_simt_vector(d, type, &p->dlogits, a->dlogits, 1),
    };
    const i32 lanes = (i32)state_of(prepared)->number[0];
    const i64 resident = d->wide ? 2 : lanes ? 2 : rows_are_long(p, d) ? 4 : 8;
    return LAUNCH_LANES(0, lanes, bski_simt_groups_most(d, arg.rows, resident), 1, arg, a->logits,
                        a->labels, mem_of(&p->loss, a->loss), mem_of(&p->dlogits, a->dlogits),
                        mem_of(&p->dloss, a->dloss));
}
