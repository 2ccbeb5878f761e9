/* The host side of the products: which kernel in which tiles, with which tables and workspace. */
#include <stdlib.h>

#include <backends/simt/products_host.h>

ENTRY(dsd)
ENTRY(sdd)
ENTRY(dense_wgrad)

/* --- Operands of the wide form --- */

/* A copy that the wide form wants, in the type of the arithmetic. */
typedef struct spread {
    bool used;
    size_t at; /* in the workspace */
    i64 groups;
    spread_arg arg;
} spread;

/* An operand [outer][inner][rows][cols] of the wide form: its strides, which become the copy's. A
 * copy with panels is [outer][inner][panels][rows][panel]; its column stride is then that of a
 * panel's first column divided by the column. Pairs of rows may lie together. */
typedef struct operand {
    bsk_dtype dtype;
    i64 panel; /* columns that a panel has; 0: no panels, and no copy of what is contiguous */
    i64 outer, inner, rows, cols;
    i64 *outer_stride, *inner_stride, *row_stride, *col_stride;
    bool pairs;
} operand;

/* Adds a copy to the workspace unless the operand is as the wide form wants it. */
static bool spread_plan(spread *s, const operand *o, size_t *bytes)
{
    const bool real = o->dtype == BSK_F32 || o->dtype == BSK_F64;
    const i64 outer = *o->outer_stride ? o->outer : 1; /* repeated data is copied once */
    const i64 panel = o->panel ? o->panel : o->cols;
    const i64 panels = panel ? bski_ceil_div(o->cols, panel) : 0;
    const i64 rows = o->rows + (o->pairs && o->rows % 2);
    size_t own;
    i64 count, tiles;
    if (real && *o->col_stride == 1 && !o->panel)
        return true;
    if (!bski_mul_i64(outer, o->inner, &count) ||
        !grid_size(bski_ceil_div(o->rows, SPREAD_TILE), panels, bski_ceil_div(panel, SPREAD_TILE),
                   &tiles) ||
        !grid_size(count, tiles, 1, &s->groups) ||
        !plane_size(count, rows, panels * panel, o->dtype, &own))
        return false;
    s->used = true;
    s->at = *bytes;
    s->arg =
        (spread_arg){*o->outer_stride, *o->inner_stride, *o->row_stride, *o->col_stride, o->inner,
                     o->rows,          o->cols,          panel,          (i32)o->dtype,  o->pairs};
    *o->col_stride = o->panel ? rows : 1;
    *o->row_stride = panel;
    *o->inner_stride = rows * panels * panel;
    *o->outer_stride = outer > 1 ? o->inner * *o->inner_stride : 0;
    return bski_add_size(*bytes, own, bytes);
}

/* Makes the copy, if there is one; *mem becomes it. */
static bsk_status spread_run(const spread *s, simt_queue *queue, const simt_kernel *kernel,
                             bsk_mem workspace, bsk_mem *mem)
{
    if (!s->used)
        return BSK_OK;
    const bsk_mem buffers[] = {*mem, bsk_mem_at(workspace, s->at)};
    *mem = buffers[1];
    return LAUNCH(queue, kernel, s->groups, 1, buffers, s->arg);
}

/* --- dsd --- */

static i32 dsd_tile(bsk_dtype dtype, i32 block)
{
    return tile_of(block, dtype == BSK_F64 ? 32 : 64);
}

typedef struct dsd_state {
    const simt_kernel *product, *spread, *finish;
    bsk_mem lists, col, slot;
    spread s, b;
    i64 groups;
    i64 finish_groups; /* 0: the product stores C */
    dsd_arg arg;
} dsd_state;

/* Whether whole quads of elements stay whole and aligned across these strides. */
static bool quads(i64 x, i64 y, i64 z)
{
    return x % 4 == 0 && y % 4 == 0 && z % 4 == 0;
}

static void dsd_fill(const bsk_problem *problem, dsd_arg *a)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bool flip = p->transpose_s != 0;
    const int32_t cr = p->c.rank - 2, br = p->b.rank - 2, dr = p->residual.rank - 2;

    a->s_group = batch_stride(&p->s, 3);
    a->s_block = (i64)t->block_rows * t->block_cols;
    a->s_row = flip ? 1 : t->block_cols;
    a->s_col = flip ? t->block_cols : 1;
    a->b_batch = batch_stride(&p->b, 2);
    a->b_row = p->b.strides[br];
    a->b_col = p->b.strides[br + 1];
    a->c_batch = batch_stride(&p->c, 2);
    a->c_row = p->c.strides[cr];
    a->c_col = p->c.strides[cr + 1];
    if (p->residual.dtype != BSK_NONE) {
        a->d_batch = batch_stride(&p->residual, 2);
        a->d_row = p->residual.strides[dr];
        a->d_col = p->residual.strides[dr + 1];
    }
    a->rows = p->c.dims[cr];
    a->cols = p->c.dims[cr + 1];
    a->depth = flip ? t->rows : t->cols;
    a->members = batch_count(&p->c);
    a->grid_rows = flip ? t->grid_cols : t->grid_rows;
    a->block_rows = flip ? t->block_cols : t->block_rows;
    a->block_cols = flip ? t->block_rows : t->block_cols;
    a->heads = t->heads;
    a->groups = p->s.rank == 4 ? (i32)p->s.dims[0] : 1;
    a->type = (i32)problem->dtype;
    a->act = (i32)p->act;
    a->c_type = (i32)p->c.dtype;
    a->d_type = (i32)p->residual.dtype;
    a->s_along_k = !flip;
    a->b_along_n = a->b_col == 1 && (a->cols > 1 || a->b_row != 1);
    a->c_along_n = a->c_col == 1;
    const i64 s_other = flip ? a->s_col : a->s_row;
    const i64 b_other = a->b_along_n ? a->b_row : a->cols > 1 ? a->b_col : 0;
    a->s_vector = quads(a->s_group, a->s_block, s_other);
    a->b_vector = (a->b_along_n || (a->b_row == 1 && a->block_cols % 4 == 0)) &&
                  quads(a->b_batch, b_other, 0);
    a->plain = (a->c_along_n || (a->c_row == 1 && a->block_rows % 4 == 0)) &&
               quads(a->c_batch, a->c_along_n ? a->c_row : a->c_col, 0) && !p->act &&
               p->c.dtype == problem->dtype && p->bias.dtype == BSK_NONE &&
               p->residual.dtype == BSK_NONE && p->row_scale.dtype == BSK_NONE &&
               p->col_scale.dtype == BSK_NONE;
}

/* Columns of a tile of few. */
static i32 few_tile(const dsd_arg *a)
{
    return a->cols <= 8 ? 8 : 16;
}

/* Whether to read S is what takes time. */
static bool dsd_is_few(const dsd_arg *a)
{
    return a->cols <= FEW_COLS && a->block_rows % 4 == 0 && a->block_cols % 4 == 0 &&
           a->s_block <= INT32_MAX && a->depth <= INT32_MAX;
}

/* The same for few columns: lists are cut where that makes enough groups. False where there would be
 * more than every device takes, which larger tiles may not need. */
static bool few_shape(const bsk_problem *problem, const bsk_device_props *props, dsd_state *state,
                      size_t *bytes)
{
    dsd_arg *a = &state->arg;
    const i64 lists = (i64)a->heads * a->grid_rows;
    const i64 terms = lists ? problem->layout->nnz / lists * a->block_cols : 0;
    i64 groups;
    a->whole = a->depth % a->block_cols == 0 && (!a->b_along_n || a->cols % 4 == 0) &&
               a->depth < INT32_MAX / (a->b_row > 0 ? a->b_row : 1) &&
               a->cols < INT32_MAX / (a->b_col > 0 ? a->b_col : 1);
    const i32 most = few_tile(a) == 8 ? FEW_ROWS / 2 : FEW_ROWS;
    a->tile_rows = a->block_rows < most ? a->block_rows : most;
    a->tiles_m = (i32)bski_ceil_div(a->block_rows, a->tile_rows);
    a->tiles_n = bski_ceil_div(a->cols, few_tile(a));
    if (!grid_size((i64)a->grid_rows * a->tiles_m, a->tiles_n, a->members, &groups))
        return false;
    /* as many as run at a time: the sums of a tile are in registers */
    const i64 resident = (i64)props->compute_units * FEW_UNIT_GROUPS;
    const i64 wanted = groups ? resident / groups : 1;
    a->splits = (i32)clamp(wanted, 1, clamp(terms / FEW_TERMS, 1, MAX_SPLITS));
    state->groups = groups * a->splits;
    if (a->splits == 1)
        return true;
    /* so few groups that these fit, too */
    const i64 outputs = a->members * a->rows;
    state->finish_groups = bski_ceil_div(outputs * a->cols, LANES);
    return plane_size(a->splits, outputs, a->cols, problem->dtype, bytes);
}

/* Tiles, copies and workspace. */
static bool dsd_shape(const bsk_problem *problem, const bsk_device_props *props, dsd_state *state,
                      size_t *bytes)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bool wide = simt_props_wide(props);
    dsd_arg *a = &state->arg;
    dsd_fill(problem, a);
    *bytes = 0;
    if (!wide && dsd_is_few(a) && few_shape(problem, props, state, bytes))
        return true;
    a->splits = 0; /* which says which form it is */
    state->finish_groups = 0;

    const i32 tm = wide ? WIDE_ROWS : dsd_tile(problem->dtype, a->block_rows);
    const i32 tn = wide ? DSD_WIDE_COLS : problem->dtype == BSK_F64 ? 128 : (tm == 64 ? 128 : 256);
    a->tiles_m = (i32)bski_ceil_div(a->block_rows, tm);
    a->tiles_n = bski_ceil_div(a->cols, tn);
    if (!grid_size((i64)a->grid_rows * a->tiles_m, a->tiles_n, a->members, &state->groups))
        return false;
    if (!wide)
        return true;
    i64 none = 0;
    /* the blocks as they lie */
    const operand s = {problem->dtype,
                       0,
                       a->groups,
                       t->nnz,
                       t->block_rows,
                       t->block_cols,
                       &a->s_group,
                       &a->s_block,
                       a->s_along_k ? &a->s_row : &a->s_col,
                       a->s_along_k ? &a->s_col : &a->s_row,
                       false};
    const operand b = {problem->dtype,
                       a->cols < DSD_WIDE_PANEL ? a->cols : DSD_WIDE_PANEL,
                       1,
                       batch_count(&p->b),
                       a->depth,
                       a->cols,
                       &none,
                       &a->b_batch,
                       &a->b_row,
                       &a->b_col,
                       false};
    return spread_plan(&state->s, &s, bytes) && spread_plan(&state->b, &b, bytes);
}

bsk_reason simt_dsd_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_dsd_params *p = problem->params;
    dsd_state state = {0};
    size_t bytes;
    if (!dtype_runs(props, problem->dtype) || !dtype_runs(props, p->c.dtype) ||
        !dtype_runs(props, p->residual.dtype))
        return BSK_REFUSE_DTYPE;
    return device_fits(props) && dsd_shape(problem, props, &state, &bytes) ? BSK_ACCEPT
                                                                           : BSK_REFUSE_LIMIT;
}

/* Most entries first, then by row. */
static int lists_compare(const void *x, const void *y)
{
    const dsd_list *l = x, *r = y;
    const i32 left = l->last - l->first, right = r->last - r->first;
    return left != right ? (left < right ? 1 : -1) : l->row - r->row;
}

static bsk_status lists_put(simt_device *d, const i64 *start, i32 heads, i32 rows, bsk_mem *mem)
{
    dsd_list *lists;
    TRY(host_array(d->host, &lists, (i64)heads * rows, sizeof *lists));
    for (i32 h = 0; h < heads; h++, start += (i64)rows + 1) {
        dsd_list *own = lists + (i64)h * rows;
        for (i32 r = 0; r < rows; r++)
            own[r] = (dsd_list){r, (i32)start[r], (i32)start[r + 1]};
        qsort(own, (size_t)rows, sizeof *own, lists_compare);
    }
    const bsk_status status = table_put(d, lists, (i64)heads * rows, sizeof *lists, mem);
    host_drop(d->host, lists);
    return status;
}

/* The blocks of op(S) by block row. */
static bsk_status dsd_tables(simt_device *d, const bsk_problem *problem, dsd_state *state)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bool flip = p->transpose_s != 0;
    TRY(lists_put(d, flip ? t->col_start : t->row_start, t->heads, state->arg.grid_rows,
                  &state->lists));
    TRY(table_put(d, flip ? t->col_row : t->row_col, t->nnz, sizeof(i32), &state->col));
    return table_put(d, flip ? t->col_slot : t->row_slot, t->nnz, sizeof(i32), &state->slot);
}

static bsk_status dsd_kernels(simt_device *d, const bsk_problem *problem, dsd_state *state)
{
    if (state->arg.splits) {
        TRY(tile_kernel(d, "few", "dsd_few", few_tile(&state->arg), problem->dtype,
                        &state->product));
        return state->finish_groups
                   ? small_kernel(d, "few", "few_finish", problem->dtype, &state->finish)
                   : BSK_OK;
    }
    TRY(tile_kernel(d, "products", "dsd", dsd_tile(problem->dtype, state->arg.block_rows),
                    problem->dtype, &state->product));
    return d->wide ? tile_kernel(d, "products", "spread", 0, problem->dtype, &state->spread)
                   : BSK_OK;
}

bsk_status simt_dsd_prepare(void *device, bsk_prepared *prepared)
{
    simt_device *d = device;
    const bsk_problem *problem = prepared->problem;
    TRY(state_new(d, sizeof(dsd_state), prepared));
    dsd_state *state = prepared->state;
    bsk_status status = BSK_OK;
    if (!dsd_shape(problem, &d->props, state, &prepared->workspace_bytes))
        status = limit_fail(d, "dsd");
    if (!status)
        status = dsd_kernels(d, problem, state);
    if (!status)
        status = dsd_tables(d, problem, state);
    if (status)
        simt_dsd_release(device, prepared);
    return status;
}

bsk_status simt_dsd_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_dsd_args *a = args;
    const dsd_state *state = prepared->state;
    const bsk_dtype dtype = prepared->problem->dtype;
    simt_queue *q = queue;
    dsd_arg arg = state->arg;
    bsk_mem s = a->s, b = a->b;
    TRY(spread_run(&state->s, q, state->spread, a->workspace, &s));
    TRY(spread_run(&state->b, q, state->spread, a->workspace, &b));
    arg.alpha = real_bits(dtype, a->alpha);
    arg.beta = real_bits(dtype, a->beta);
    arg.s_vector = arg.s_vector && simt_aligned(s);
    arg.b_vector = arg.b_vector && simt_aligned(b);
    arg.plain = arg.plain && a->beta == 0 && simt_aligned(a->c);
    arg.whole = arg.whole && arg.s_vector && arg.b_vector && !bsk_mem_address(a->gate);
    const bsk_mem buffers[] = {s,
                               b,
                               a->c,
                               a->gate,
                               a->bias,
                               a->residual,
                               a->row_scale,
                               a->col_scale,
                               state->lists,
                               state->col,
                               state->slot,
                               a->workspace};
    const i32 count = (i32)(sizeof buffers / sizeof *buffers) - !arg.splits;
    TRY(launch(q, state->product, state->groups, tile_lanes(q->device), buffers, count, &arg,
               sizeof arg));
    const bsk_mem ends[] = {a->workspace, a->c, a->bias, a->residual, a->row_scale, a->col_scale};
    return LAUNCH(q, state->finish, state->finish_groups, LANES, ends, arg);
}

void simt_dsd_release(void *device, bsk_prepared *prepared)
{
    dsd_state *state = prepared->state;
    if (!state)
        return;
    table_drop(device, &state->lists);
    table_drop(device, &state->col);
    table_drop(device, &state->slot);
    state_free(device, prepared);
}

/* --- sdd --- */

typedef struct sdd_state {
    const simt_kernel *product, *spread, *finish, *sums, *sums_finish;
    bsk_mem row, col;                      /* of a block, by slot, where parts are summed */
    bsk_mem strips, strip_col, strip_slot; /* of the tiled form; by entry */
    bsk_mem blocks;                        /* of the wide form, and of few samples */
    spread a, b;
    bool dense;              /* of dense_wgrad, which has an end of its own for the parts */
    i64 groups;              /* of the product */
    i64 finish_groups;       /* 0: the product stores s */
    i64 sum_groups;          /* 0: no bsum */
    size_t parts, sum_parts; /* in the workspace */
    sdd_arg arg;
    bsum_arg sum;
    finish_arg sum_end;
} sdd_state;

/* Many small tiles rather than a few that are mostly empty, where the one block is a matrix. */
static i32 sdd_tile(const sdd_state *s, bsk_dtype dtype)
{
    const bool tall = s->arg.block_rows > s->arg.block_cols;
    return tile_of(tall != s->dense ? s->arg.block_rows : s->arg.block_cols,
                   dtype == BSK_F32 ? 64 : 32);
}

/* SDD_UNITS of a tile. */
static i32 strip_units(i32 tile, bsk_dtype dtype)
{
    return tile == 64 || (tile == 32 && dtype == BSK_F64) ? 2 : 4;
}

static void sdd_fill(const bsk_problem *problem, sdd_arg *a)
{
    const bsk_sdd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const int32_t ar = p->a.rank - 2, br = p->b.rank - 2;

    a->a_batch = batch_stride(&p->a, 2);
    a->a_row = p->a.strides[ar];
    a->a_k = p->a.strides[ar + 1];
    a->b_batch = batch_stride(&p->b, 2);
    a->b_k = p->b.strides[br];
    a->b_col = p->b.strides[br + 1];
    a->s_group = batch_stride(&p->s, 3);
    a->w_group = p->w.dtype == BSK_NONE ? 0 : batch_stride(&p->w, 3);
    a->rows = t->rows;
    a->cols = t->cols;
    a->n = p->a.dims[ar + 1];
    a->nnz = t->nnz;
    a->heads = t->heads;
    a->groups = p->s.rank == 4 ? (i32)p->s.dims[0] : 1;
    a->members = a->groups > 1 ? 1 : batch_count(&p->a) / t->heads;
    a->block_rows = t->block_rows;
    a->block_cols = t->block_cols;
    a->type = (i32)problem->dtype;
    a->gate_mode = (i32)p->gate_mode;
    a->s_type = (i32)p->s.dtype;
    a->a_along_k = a->a_k == 1 && a->a_row != 1;
    a->b_along_k = a->b_k == 1 && a->b_col != 1;
    a->a_vector = (a->a_along_k || (a->a_row == 1 && a->block_rows % 4 == 0)) &&
                  quads(a->a_batch, a->a_along_k ? a->a_row : a->a_k, 0);
    a->b_vector = (a->b_along_k || (a->b_col == 1 && a->block_cols % 4 == 0)) &&
                  quads(a->b_batch, a->b_along_k ? a->b_col : a->b_k, 0);
    a->s_vector = a->block_cols % 4 == 0;
}

/* How many units, of `all` of a row, a strip takes from number `first` on: one, or `most` as long as
 * the kernel's 32 bits reach from the first to each. */
static i64 strip_take(const sdd_arg *a, const i32 *cols, i64 first, i64 all, i64 most)
{
    const i64 reach = INT32_MAX / (a->b_col > 0 ? a->b_col : 1) / a->block_cols;
    i64 count = 1;
    while (count < most && first + count < all &&
           cols[(first + count) / a->tiles_n] - cols[first / a->tiles_n] < reach)
        count++;
    return count;
}

/* The strips of a layout, written to `strips` unless that is NULL; returns how many. */
static i64 strips_make(const bsk_layout_tables *t, const sdd_arg *a, i32 units, sdd_strip *strips)
{
    i64 count = 0;
    for (i32 h = 0; h < t->heads; h++)
        for (i32 r = 0; r < t->grid_rows; r++) {
            const i64 *start = t->row_start + h * ((i64)t->grid_rows + 1) + r;
            const i64 all = (start[1] - start[0]) * a->tiles_n;
            for (i64 first = 0, taken; first < all; first += taken, count++) {
                taken = strip_take(a, t->row_col + start[0], first, all, units);
                if (strips)
                    strips[count] = (sdd_strip){r, h, (i32)(start[0] + first / a->tiles_n),
                                                (i32)(first % a->tiles_n), (i32)taken};
            }
        }
    return count;
}

/* bsum: parts [splits][cols] in the workspace. */
static bool bsum_shape(const bsk_device_props *props, const bsk_problem *problem, sdd_state *state,
                       size_t *bytes)
{
    const bsk_sdd_params *p = problem->params;
    const sdd_arg *a = &state->arg;
    size_t own;
    if (p->bsum.dtype == BSK_NONE)
        return true;
    /* b as it is given, not as a copy */
    const int32_t br = p->b.rank - 2;
    const i64 tiles = bski_ceil_div(a->cols, SUM_COLS);
    state->sum = (bsum_arg){.b_batch = batch_stride(&p->b, 2),
                            .b_k = p->b.strides[br],
                            .b_col = p->b.strides[br + 1],
                            .n = a->n,
                            .cols = a->cols,
                            .batch = batch_count(&p->b),
                            .type = (i32)problem->dtype,
                            .splits = split_count(props, tiles, a->n, MAX_SPLITS)};
    state->sum.along_k = state->sum.b_col != 1;
    state->sum_end = finish_of(problem->dtype, 1, a->cols, a->cols, state->sum.splits);
    state->sum_parts = *bytes;
    i64 end_groups;
    return grid_size(tiles, state->sum.splits, 1, &state->sum_groups) &&
           finish_groups(&state->sum_end, &end_groups) &&
           plane_size(state->sum.splits, 1, a->cols, problem->dtype, &own) &&
           bski_add_size(*bytes, own, bytes);
}

/* Whether to write S is what takes time. All but members and blocks is counted in 32 bits. */
static bool sdd_is_few(const sdd_state *s, i32 pairs)
{
    const sdd_arg *a = &s->arg;
    const i64 reach = INT32_MAX / (8 * PATCH_ROWS * PATCH_ACROSS), each = a->n * pairs;
    return !s->dense && a->n <= FEW_COLS && each <= FEW_COLS &&
           a->members <= FEW_COLS / (each > 0 ? each : 1) && a->block_rows % 4 == 0 &&
           a->block_cols % 4 == 0 && a->rows <= INT32_MAX / 2 && a->cols <= INT32_MAX / 2 &&
           a->a_row <= reach && a->a_k <= reach && a->b_col <= reach && a->b_k <= reach;
}

/* As few_sdd.h divides. */
static i32 inverse_of(i64 x)
{
    return (i32)(uint32_t)bski_ceil_div((i64)1 << 31, x);
}

/* Patches of few samples, of so many columns. False where a block has too many of them, or there would
 * be more groups than every device takes, which larger tiles may not need. */
static bool patch_shape(sdd_arg *a, i32 cols, i64 *groups)
{
    const i64 lines = bski_ceil_div(a->block_cols, cols);
    const i64 octs = bski_ceil_div(a->block_rows, PATCH_ROWS);
    const i64 across = lines % PATCH_ACROSS == 0         ? PATCH_ACROSS
                       : lines % (PATCH_ACROSS / 2) == 0 ? PATCH_ACROSS / 2
                                                         : clamp(lines, 1, PATCH_ACROSS);
    const i64 cells = octs * across * bski_ceil_div(lines, across);
    const i64 at_once = cells < LANES ? LANES / cells : 1, tiles = bski_ceil_div(cells, LANES);
    const i64 strips = bski_ceil_div(a->nnz, at_once);
    if (cells > MAX_PATCHES || !grid_size(a->groups, strips, tiles, groups))
        return false;
    a->patch = cols * PATCH_ROWS;
    a->octs = (i32)octs;
    a->across = (i32)across;
    a->cells = (i32)cells;
    a->at_once = (i32)at_once;
    a->by_octs = inverse_of(octs);
    a->by_across = inverse_of(across);
    a->by_cells = inverse_of(cells);
    a->tiles_m = (i32)tiles;
    a->strips = (i32)strips;
    return true;
}

/* Large patches take less of each operand, but want registers, and rows of which neighbours' quads fill
 * sectors of memory; small ones make more groups. */
static bool patches_shape(const bsk_device_props *props, bsk_dtype dtype, sdd_arg *a)
{
    const i32 least = dtype == BSK_F32 ? 16 : 32;
    i64 groups;
    if (dtype != BSK_F64 && a->block_cols % least == 0 && patch_shape(a, 8, &groups) &&
        groups >= props->compute_units)
        return true;
    return patch_shape(a, 4, &groups);
}

/* Tiles, parts and workspace. */
static bool sdd_shape(const bsk_device_props *props, const bsk_problem *problem, sdd_state *state,
                      size_t *bytes)
{
    const bsk_sdd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bool wide = simt_props_wide(props);
    sdd_arg *a = &state->arg;
    const bsk_dtype dtype = problem->dtype;
    sdd_fill(problem, a);

    const i32 tm = wide ? WIDE_ROWS : sdd_tile(state, dtype);
    const i64 block = (i64)a->block_rows * a->block_cols;
    i64 groups, all;
    size_t own;
    a->tiles_m = (i32)bski_ceil_div(a->block_rows, tm);
    a->tiles_n = (i32)bski_ceil_div(a->block_cols, tm);
    *bytes = 0;
    const bool few = !wide && sdd_is_few(state, p->pairs) && patches_shape(props, dtype, a);
    const i64 strips = few    ? a->strips
                       : wide ? a->nnz * a->tiles_n
                              : strips_make(t, a, strip_units(tm, dtype), NULL);
    if (!grid_size(a->groups, strips, a->tiles_m, &groups) || !bski_mul_i64(a->members, a->n, &all))
        return false;
    a->strips = (i32)strips;
    a->splits = few ? 1 : split_count(props, groups, all, state->dense ? DENSE_SPLITS : MAX_SPLITS);
    a->direct = a->splits == 1 && p->pairs == 1 && p->dgate.dtype == BSK_NONE && !state->dense;
    if (!grid_size(groups, a->splits, 1, &state->groups) ||
        !bsum_shape(props, problem, state, bytes))
        return false;
    if (!a->direct) {
        a->part = (i64)a->groups * a->nnz * block;
        state->parts = *bytes;
        if (!grid_size(p->dgate.dtype == BSK_NONE ? a->groups : 1, a->nnz, 1,
                       &state->finish_groups) ||
            !plane_size(a->splits, (i64)a->groups * a->nnz, block, dtype, &own) ||
            !bski_add_size(*bytes, own, bytes))
            return false;
    }
    if (!wide)
        return true;
    i64 none = 0;
    const bool pairs = a->block_rows == 8 && a->block_cols == 8;
    const operand left = {dtype, a->block_rows, 1,       batch_count(&p->a), a->n, a->rows,
                          &none, &a->a_batch,   &a->a_k, &a->a_row,          pairs};
    const operand right = {dtype, a->block_cols, 1,       batch_count(&p->b), a->n, a->cols,
                           &none, &a->b_batch,   &a->b_k, &a->b_col,          pairs};
    return spread_plan(&state->a, &left, bytes) && spread_plan(&state->b, &right, bytes);
}

bsk_reason simt_sdd_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_sdd_params *p = problem->params;
    sdd_state state = {0};
    size_t bytes;
    if (!dtype_runs(props, problem->dtype) || !dtype_runs(props, p->s.dtype))
        return BSK_REFUSE_DTYPE;
    return device_fits(props) && sdd_shape(props, problem, &state, &bytes) ? BSK_ACCEPT
                                                                           : BSK_REFUSE_LIMIT;
}

/* The strips of the tiled form, and the blocks by entry. */
static bsk_status strip_tables(simt_device *d, const bsk_problem *problem, sdd_state *state)
{
    const bsk_layout_tables *t = problem->layout;
    const sdd_arg *a = &state->arg;
    sdd_strip *strips;
    TRY(table_put(d, t->row_col, t->nnz, sizeof(i32), &state->strip_col));
    TRY(table_put(d, t->row_slot, t->nnz, sizeof(i32), &state->strip_slot));
    if (a->strips == 0)
        return BSK_OK;
    TRY(host_array(d->host, &strips, a->strips, sizeof *strips));
    strips_make(t, a, strip_units(sdd_tile(state, problem->dtype), problem->dtype), strips);
    bsk_status status = table_put(d, strips, a->strips, sizeof *strips, &state->strips);
    host_drop(d->host, strips);
    return status;
}

/* The blocks of the wide form, or of few samples, in the order in which they are computed: row by row
 * within as many columns as have panels that a processor's own cache keeps. */
static void blocks_make(const bsk_layout_tables *t, i64 chunk, i64 *next, sdd_block *blocks)
{
    const i64 chunks = bski_ceil_div(t->grid_cols, chunk);
    for (i32 h = 0; h < t->heads; h++) {
        const i64 *row_start = t->row_start + h * ((i64)t->grid_rows + 1);
        const i64 *col_start = t->col_start + h * ((i64)t->grid_cols + 1);
        for (i64 c = 0; c < chunks; c++)
            next[c] = col_start[c * chunk];
        for (i32 r = 0; r < t->grid_rows; r++)
            for (i64 e = row_start[r]; e < row_start[r + 1]; e++)
                blocks[next[t->row_col[e] / chunk]++] =
                    (sdd_block){r, t->row_col[e], h, t->row_slot[e]};
    }
}

static bsk_status block_table(simt_device *d, const bsk_problem *problem, sdd_state *state)
{
    const bsk_layout_tables *t = problem->layout;
    const sdd_arg *a = &state->arg;
    const i64 panel = a->n / a->splits * a->block_cols * (i64)real_bytes(problem->dtype);
    const i64 cache = d->wide ? WIDE_PANELS : PATCH_PANELS;
    const i64 chunk = clamp(cache / (panel > 0 ? panel : 1), 1, INT32_MAX);
    i64 *next;
    sdd_block *blocks;
    if (t->nnz == 0)
        return BSK_OK;
    TRY(host_array(d->host, &next, bski_ceil_div(t->grid_cols, chunk), sizeof *next));
    bsk_status status = host_array(d->host, &blocks, t->nnz, sizeof *blocks);
    if (!status) {
        blocks_make(t, chunk, next, blocks);
        status = table_put(d, blocks, t->nnz, sizeof *blocks, &state->blocks);
        host_drop(d->host, blocks);
    }
    host_drop(d->host, next);
    return status;
}

static bsk_status sdd_tables(simt_device *d, const bsk_problem *problem, sdd_state *state)
{
    const bsk_layout_tables *t = problem->layout;
    if (state->finish_groups) {
        TRY(table_put(d, t->slot_row, t->nnz, sizeof(i32), &state->row));
        TRY(table_put(d, t->slot_col, t->nnz, sizeof(i32), &state->col));
    }
    return d->wide || state->arg.patch ? block_table(d, problem, state)
                                       : strip_tables(d, problem, state);
}

static bsk_status sdd_kernels(simt_device *d, const bsk_problem *problem, sdd_state *state)
{
    const bsk_dtype dtype = problem->dtype;
    TRY(state->arg.patch
            ? tile_kernel(d, "few", "sdd_few", state->arg.patch, dtype, &state->product)
            : tile_kernel(d, "products", "sdd", sdd_tile(state, dtype), dtype, &state->product));
    if (d->wide)
        TRY(tile_kernel(d, "products", "spread", 0, dtype, &state->spread));
    if (state->finish_groups)
        TRY(small_kernel(d, "products", state->dense ? "parts_finish" : "sdd_finish", dtype,
                         &state->finish));
    if (state->sum_groups) {
        TRY(small_kernel(d, "products", "column_sums", dtype, &state->sums));
        TRY(small_kernel(d, "products", "parts_finish", dtype, &state->sums_finish));
    }
    return BSK_OK;
}

bsk_status simt_sdd_prepare(void *device, bsk_prepared *prepared)
{
    simt_device *d = device;
    const bsk_problem *problem = prepared->problem;
    TRY(state_new(d, sizeof(sdd_state), prepared));
    sdd_state *state = prepared->state;
    bsk_status status = BSK_OK;
    if (!sdd_shape(&d->props, problem, state, &prepared->workspace_bytes))
        status = limit_fail(d, "sdd");
    if (!status)
        status = sdd_kernels(d, problem, state);
    if (!status)
        status = sdd_tables(d, problem, state);
    if (status)
        simt_sdd_release(device, prepared);
    return status;
}

/* One pair's product, stored in s or added to the partial results. */
static bsk_status sdd_pair(const sdd_state *state, simt_queue *q, const bsk_sdd_args *args,
                           const sdd_arg *arg, bsk_mem parts, i32 pair)
{
    bsk_mem a = args->a[pair], b = args->b[pair];
    TRY(spread_run(&state->a, q, state->spread, args->workspace, &a));
    TRY(spread_run(&state->b, q, state->spread, args->workspace, &b));
    const bool strips = !q->device->wide && !state->arg.patch;
    const bsk_mem buffers[] = {a,
                               b,
                               args->s,
                               parts,
                               args->gate,
                               strips ? state->strips : state->blocks,
                               state->strip_col,
                               state->strip_slot};
    sdd_arg own = *arg;
    own.a_vector = own.a_vector && simt_aligned(a);
    own.b_vector = own.b_vector && simt_aligned(b);
    own.s_vector = own.s_vector && (own.direct ? own.s_group % 4 == 0 && simt_aligned(args->s)
                                               : simt_aligned(parts));
    return launch(q, state->product, state->groups, tile_lanes(q->device), buffers, strips ? 8 : 6,
                  &own, sizeof own);
}

static bsk_status bsum_launch(const sdd_state *state, simt_queue *q, const bsk_sdd_args *args,
                              i32 pairs, bsk_dtype dtype)
{
    const bsk_mem parts = bsk_mem_at(args->workspace, state->sum_parts);
    bsum_arg sum = state->sum;
    for (i32 pair = 0; pair < pairs; pair++) {
        const bsk_mem buffers[] = {args->b[pair], parts};
        sum.accumulate = pair > 0;
        TRY(LAUNCH(q, state->sums, state->sum_groups, LANES, buffers, sum));
    }
    return finish_launch(q, state->sums_finish, &state->sum_end, dtype, args->alpha, args->beta,
                         parts, args->bsum);
}

bsk_status simt_sdd_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_sdd_args *a = args;
    const bsk_sdd_params *p = prepared->problem->params;
    const bsk_dtype dtype = prepared->problem->dtype;
    const sdd_state *state = prepared->state;
    simt_queue *q = queue;
    const bsk_mem parts =
        state->finish_groups ? bsk_mem_at(a->workspace, state->parts) : (bsk_mem){0};
    sdd_arg arg = state->arg;
    arg.alpha = real_bits(dtype, a->alpha);
    arg.beta = real_bits(dtype, a->beta);
    for (i32 pair = 0; pair < p->pairs; pair++) {
        arg.accumulate = pair > 0;
        TRY(sdd_pair(state, q, a, &arg, parts, pair));
    }
    if (state->finish_groups) {
        const bsk_mem buffers[] = {parts, a->s, a->w, a->gate, a->dgate, state->row, state->col};
        TRY(LAUNCH(q, state->finish, state->finish_groups, LANES, buffers, arg));
    }
    return state->sum_groups ? bsum_launch(state, q, a, p->pairs, dtype) : BSK_OK;
}

void simt_sdd_release(void *device, bsk_prepared *prepared)
{
    sdd_state *state = prepared->state;
    if (!state)
        return;
    table_drop(device, &state->row);
    table_drop(device, &state->col);
    table_drop(device, &state->strips);
    table_drop(device, &state->strip_col);
    table_drop(device, &state->strip_slot);
    table_drop(device, &state->blocks);
    state_free(device, prepared);
}

/* --- dense_wgrad: sdd on a layout of one block --- */

typedef struct dense_state {
    sdd_state product; /* the first: it is released as that of sdd */
    bsk_sdd_params params;
    bsk_layout_tables layout;
    bsk_problem problem;
    finish_arg end;
} dense_state;

static bsk_tensor turned(const bsk_tensor *t, bool turn)
{
    bsk_tensor out = *t;
    for (int i = 0; turn && i < 2; i++) {
        out.dims[i] = t->dims[1 - i];
        out.strides[i] = t->strides[1 - i];
    }
    return out;
}

/* The one block has the rows and columns of dw. Empty ones have no blocks. */
static bool dense_shape(const bsk_device_props *props, const bsk_problem *problem,
                        dense_state *state, size_t *bytes)
{
    static const i64 starts[] = {0, 1}, none[] = {0, 0};
    static const i32 zero[] = {0};
    const bsk_dense_wgrad_params *p = problem->params;
    const i64 rows = p->dw.dims[0], cols = p->dw.dims[1];
    const bool some = rows > 0 && cols > 0, nc = p->axis == BSK_NC;
    const i64 *start = some ? starts : none;
    if (rows > INT32_MAX || cols > INT32_MAX)
        return false;
    state->layout = (bsk_layout_tables){sizeof(bsk_layout_tables),
                                        rows,
                                        cols,
                                        some ? (i32)rows : 1,
                                        some ? (i32)cols : 1,
                                        1,
                                        1,
                                        1,
                                        1,
                                        some,
                                        start,
                                        start,
                                        zero,
                                        zero,
                                        start,
                                        zero,
                                        zero,
                                        zero,
                                        zero};
    state->params = (bsk_sdd_params){.pairs = 1,
                                     .a = turned(&p->x, nc),
                                     .b = turned(&p->dy, !nc),
                                     .s = bsk_tensor_3d(p->dw.dtype, 1, rows, cols)};
    state->problem = (bsk_problem){.op = BSK_OP_SDD,
                                   .dtype = problem->dtype,
                                   .params = &state->params,
                                   .layout = &state->layout};
    state->product.dense = true;
    if (!sdd_shape(props, &state->problem, &state->product, bytes))
        return false;
    const i32 splits = some ? state->product.arg.splits : 0;
    i64 groups;
    state->end = finish_of(problem->dtype, rows, cols, p->dw.strides[0], splits);
    state->end.col_stride = p->dw.strides[1];
    state->end.type = (i32)p->dw.dtype;
    return finish_groups(&state->end, &groups);
}

bsk_reason simt_dense_wgrad_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_dense_wgrad_params *p = problem->params;
    dense_state state = {0};
    size_t bytes;
    if (!dtype_runs(props, problem->dtype) || !dtype_runs(props, p->dw.dtype))
        return BSK_REFUSE_DTYPE;
    return device_fits(props) && dense_shape(props, problem, &state, &bytes) ? BSK_ACCEPT
                                                                             : BSK_REFUSE_LIMIT;
}

bsk_status simt_dense_wgrad_prepare(void *device, bsk_prepared *prepared)
{
    simt_device *d = device;
    TRY(state_new(d, sizeof(dense_state), prepared));
    dense_state *state = prepared->state;
    bsk_status status = BSK_OK;
    if (!dense_shape(&d->props, prepared->problem, state, &prepared->workspace_bytes))
        status = limit_fail(d, "dense_wgrad");
    if (!status)
        status = sdd_kernels(d, &state->problem, &state->product);
    if (!status)
        status = sdd_tables(d, &state->problem, &state->product);
    if (status)
        simt_sdd_release(device, prepared);
    return status;
}

bsk_status simt_dense_wgrad_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_dense_wgrad_args *a = args;
    const dense_state *state = prepared->state;
    const bsk_mem parts = bsk_mem_at(a->workspace, state->product.parts);
    const bsk_sdd_args product = {.a = &a->x, .b = &a->dy, .workspace = a->workspace};
    TRY(sdd_pair(&state->product, queue, &product, &state->product.arg, parts, 0));
    return finish_launch(queue, state->product.finish, &state->end, prepared->problem->dtype,
                         a->alpha, a->beta, parts, a->dw);
}

void simt_dense_wgrad_release(void *device, bsk_prepared *prepared)
{
    simt_sdd_release(device, prepared);
}
