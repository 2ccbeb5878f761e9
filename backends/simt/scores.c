/* Host side of attention with stored scores: its products, and the softmax between them. */
#include <backends/simt/entry.h>

#include <stdio.h>
#include <string.h>

#include <backends/simt/plan.h>
#include <backends/simt/scores.h>
#include <backends/simt/scores_softmax.h>

enum { TILE_LANES = 128, TILE_COLS = 128, APPLY_COLS = 64, LOCAL_BYTES = 32 << 10 };

/* Strides along which a tensor of one member repeats are 0. */
static i64 stride_of(const bsk_tensor *t, int d)
{
    return t->dims[d] == 1 ? 0 : t->strides[d];
}

/* Whether `width` neighbours stay whole and aligned across these strides. */
static bool whole(i64 width, i64 x, i64 y, i64 z)
{
    return x % width == 0 && y % width == 0 && z % width == 0;
}

/* --- products --------------------------------------------------------------------------------- */

static i32 tile_of(i32 block)
{
    return block <= 16 ? 16 : 32;
}

/* The columns of a unit: a power of two, of which there are whole numbers in a tile. */
static i32 unit_of(i32 block)
{
    return block <= 8 ? 8 : block <= 16 ? 16 : block <= 32 ? 32 : 64;
}

static bool grid_fits(i64 a, i64 b, i64 c, i64 d, i64 *groups)
{
    return bski_mul_i64(a, b, groups) && bski_mul_i64(*groups, c, groups) &&
           bski_mul_i64(*groups, d, groups) && *groups <= SIMT_MAX_GROUPS;
}

/* shares: of the heads, that have groups of their own. */
static bsk_reason product_accept(const bsk_problem *problem, const bsk_device_props *props,
                                 i64 heads, i64 shares, i64 groups_of_each, i64 a, i64 b)
{
    const bsk_layout_tables *t = problem->layout;
    i64 groups;
    return props->local_bytes >= LOCAL_BYTES && t->nnz <= INT32_MAX && rules_fit(t, heads) &&
                   grid_fits(shares, groups_of_each, a, b, &groups)
               ? BSK_ACCEPT
               : BSK_REFUSE_LIMIT;
}

static bsk_status product_prepare(simt_device *d, bsk_prepared *prepared, const char *op, i32 tile,
                                  simt_need *need)
{
    char name[32], variant[16] = "-DWIDE=1";
    if (d->wide) {
        snprintf(name, sizeof name, "%s_wide", op);
    } else {
        snprintf(name, sizeof name, "%s_%d", op, (int)tile);
        snprintf(variant, sizeof variant, "-DTM=%d", (int)tile);
    }
    need->file = "scores";
    need->single = true;
    need->kernels[0] = name;
    need->variant = variant;
    return bski_simt_prepare(d, prepared, need);
}

static i32 product_lanes(const simt_device *d)
{
    return d->wide ? 1 : TILE_LANES;
}

/* --- attn_scores --- */

/* Tiles and units of a block. */
typedef struct scores_cut {
    i32 tile, unit, units; /* units: of a tile */
    i32 tiles_m, tiles_n;
} scores_cut;

static scores_cut cut_of(const bsk_layout_tables *t)
{
    const i32 tile = tile_of(t->block_rows), unit = unit_of(t->block_cols);
    return (scores_cut){tile, unit, TILE_COLS / unit, (i32)bski_ceil_div(t->block_rows, tile),
                        (i32)bski_ceil_div(t->block_cols, unit)};
}

/* The strips of a layout, written to `strips` unless that is NULL; returns how many. */
static i64 strips_make(const bsk_layout_tables *t, const scores_cut *cut, attn_strip *strips)
{
    i64 count = 0;
    for (i32 h = 0; h < t->heads; h++)
        for (i32 r = 0; r < t->grid_rows; r++) {
            const i64 *start = t->row_start + h * ((i64)t->grid_rows + 1) + r;
            const i64 all = (start[1] - start[0]) * cut->tiles_n;
            for (i64 first = 0; first < all; first += cut->units, count++)
                if (strips)
                    strips[count] = (attn_strip){
                        r, h, (i32)(start[0] + first / cut->tiles_n), (i32)(first % cut->tiles_n),
                        (i32)(all - first < cut->units ? all - first : cut->units)};
        }
    return count;
}

SIMT_RELEASE(attn_scores)

SIMT_ACCEPT(attn_scores)
{
    const bsk_attn_scores_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bsk_reason reason = ACCEPT(&p->q, &p->k, &p->s);
    const scores_cut cut = cut_of(t);
    return reason ? reason
                  : product_accept(problem, props, p->q.dims[1], p->q.dims[1] / t->heads,
                                   p->q.dims[0], strips_make(t, &cut, NULL), cut.tiles_m);
}

SIMT_PREPARE(attn_scores)
{
    simt_device *d = device;
    const bsk_layout_tables *t = prepared->problem->layout;
    const scores_cut cut = cut_of(t);
    const i64 count = strips_make(t, &cut, NULL);
    simt_need need = {.rows = true};
    TRY(product_prepare(d, prepared, "attn_scores", cut.tile, &need));
    ((simt_state *)prepared->state)->number[0] = count;
    if (count == 0)
        return bski_simt_table(device, prepared, OWN_TABLE, NULL, 0, sizeof(attn_strip));
    attn_strip *strips;
    bsk_status status = host_array(d->host, &strips, count, sizeof *strips);
    if (status) {
        simt_attn_scores_release(device, prepared);
        return status;
    }
    strips_make(t, &cut, strips);
    status = bski_simt_table(device, prepared, OWN_TABLE, strips, count, sizeof *strips);
    host_drop(d->host, strips);
    return status;
}

SIMT_LAUNCH(attn_scores)
{
    const simt_device *d = queue_device(queue);
    const bsk_attn_scores_params *p = prepared->problem->params;
    const bsk_layout_tables *t = prepared->problem->layout;
    const bsk_attn_scores_args *a = args;
    const scores_cut cut = cut_of(t);
    const i64 batch = p->q.dims[0], heads = p->q.dims[1], per_head = heads / t->heads;
    attn_scores_arg arg = {
        .alpha = simt_num(prepared, a->alpha),
        .beta = simt_num(prepared, a->beta),
        .q_batch = stride_of(&p->q, 0),
        .q_head = stride_of(&p->q, 1),
        .q_row = stride_of(&p->q, 2),
        .k_batch = stride_of(&p->k, 0),
        .k_head = stride_of(&p->k, 1),
        .k_row = stride_of(&p->k, 2),
        .s_batch = stride_of(&p->s, 0),
        .s_group = stride_of(&p->s, 1),
        .depth = p->q.dims[3],
        .strips = state_of(prepared)->number[0],
        .rows = (i32)t->rows,
        .cols = (i32)t->cols,
        .q_time = (i32)p->q.dims[2],
        .k_time = (i32)p->k.dims[2],
        .block_rows = t->block_rows,
        .block_cols = t->block_cols,
        .per_head = (i32)per_head,
        .kv_share = p->k.dims[1] > 0 ? (i32)(heads / p->k.dims[1]) : 1,
        .interleave = p->interleave,
        .unit_cols = cut.unit,
        .tile = cut.tile,
        .tiles_m = cut.tiles_m,
        .tiles_n = cut.tiles_n,
        .s_type = (i32)p->s.dtype,
        .type = (i32)p->q.dtype,
    };
    arg.q_vector = whole(4, arg.q_batch, arg.q_head, arg.q_row) && simt_aligned(a->q);
    arg.k_vector = whole(4, arg.k_batch, arg.k_head, arg.k_row) && simt_aligned(a->k);
    arg.s_vector = whole(4, arg.s_batch, arg.s_group, t->block_cols) && simt_aligned(a->s);
    return LAUNCH_LANES(0, product_lanes(d), arg.strips * arg.tiles_m * per_head * batch, 1, arg,
                        a->q, a->k, a->s, table_of(prepared, OWN_TABLE),
                        table_of(prepared, ROW_COL), table_of(prepared, ROW_SLOT));
}

/* --- attn_apply --- */

SIMT_RELEASE(attn_apply)

SIMT_ACCEPT(attn_apply)
{
    const bsk_attn_apply_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bsk_reason reason = ACCEPT(&p->v, &p->s, &p->y);
    const i32 side = p->transpose ? t->block_cols : t->block_rows;
    const i64 grid = p->transpose ? t->grid_cols : t->grid_rows,
              most = bski_ceil_div(side, tile_of(side));
    i64 tiles;
    if (reason || p->v.dims[1] > INT32_MAX || p->y.dims[1] > INT32_MAX)
        return reason ? reason : BSK_REFUSE_LIMIT;
    return bski_mul_i64(grid, most, &tiles)
               ? product_accept(problem, props, p->y.dims[1], p->y.dims[1], p->y.dims[0], tiles,
                                bski_ceil_div(p->y.dims[3], APPLY_COLS))
               : BSK_REFUSE_LIMIT;
}

SIMT_PREPARE(attn_apply)
{
    const bsk_attn_apply_params *p = prepared->problem->params;
    const bsk_layout_tables *t = prepared->problem->layout;
    simt_need need = {.rows = !p->transpose, .cols = p->transpose != 0};
    return product_prepare(device, prepared, "attn_apply",
                           tile_of(p->transpose ? t->block_cols : t->block_rows), &need);
}

SIMT_LAUNCH(attn_apply)
{
    const simt_device *d = queue_device(queue);
    const bsk_attn_apply_params *p = prepared->problem->params;
    const bsk_layout_tables *t = prepared->problem->layout;
    const bsk_attn_apply_args *a = args;
    const bool turned = p->transpose != 0;
    const i64 heads = turned ? p->v.dims[1] : p->y.dims[1], y_heads = p->y.dims[1];
    const i64 width = p->y.dims[3];
    const i32 side = turned ? t->block_cols : t->block_rows;
    attn_apply_arg arg = {
        .alpha = simt_num(prepared, a->alpha),
        .beta = simt_num(prepared, a->beta),
        .s_batch = stride_of(&p->s, 0),
        .s_group = stride_of(&p->s, 1),
        .s_block = (i64)t->block_rows * t->block_cols,
        .s_row = turned ? 1 : t->block_cols,
        .s_col = turned ? t->block_cols : 1,
        .v_batch = stride_of(&p->v, 0),
        .v_head = stride_of(&p->v, 1),
        .v_row = stride_of(&p->v, 2),
        .y_batch = stride_of(&p->y, 0),
        .y_head = stride_of(&p->y, 1),
        .y_row = stride_of(&p->y, 2),
        .width = width,
        .tiles_n = bski_ceil_div(width, APPLY_COLS),
        .lines = (i32)(turned ? t->cols : t->rows),
        .others = (i32)(turned ? t->rows : t->cols),
        .y_time = (i32)p->y.dims[2],
        .v_time = (i32)p->v.dims[2],
        .side = side,
        .other_side = turned ? t->block_rows : t->block_cols,
        .grid = turned ? t->grid_cols : t->grid_rows,
        .tile = tile_of(side),
        .tiles_m = (i32)bski_ceil_div(side, tile_of(side)),
        .y_heads = (i32)y_heads,
        .add = y_heads > 0 ? (i32)(heads / y_heads) : 1,
        .v_share = turned || p->v.dims[1] == 0 ? 1 : (i32)(heads / p->v.dims[1]),
        .per_head = (i32)(heads / t->heads),
        .interleave = p->interleave,
        .along_k = !turned,
        .s_type = (i32)p->s.dtype,
        .v_type = (i32)p->v.dtype,
        .y_type = (i32)p->y.dtype,
    };
    arg.s_vector = whole(4, arg.s_batch, arg.s_group, t->block_cols) && simt_aligned(a->s);
    arg.v_vector = whole(4, arg.v_batch, arg.v_head, arg.v_row) && simt_aligned(a->v);
    arg.y_vector = whole(4, arg.y_batch, arg.y_head, arg.y_row) && simt_aligned(a->y);
    return LAUNCH_LANES(0, product_lanes(d),
                        arg.tiles_n * arg.tiles_m * arg.grid * y_heads * p->y.dims[0], 1, arg, a->s,
                        a->v, a->y, table_of(prepared, turned ? COL_START : ROW_START),
                        table_of(prepared, turned ? COL_ROW : ROW_COL),
                        table_of(prepared, turned ? COL_SLOT : ROW_SLOT));
}

/* --- the softmax of stored scores ------------------------------------------------------------- */

enum { LANE_RUNS = 4 };   /* that a lane has under way */
enum { SCORES_RUNS = 5 }; /* of scores_softmax.h */
enum { LINE_RUNS = 8 };   /* of a line of the cache */
enum { ANY, PACKED };
enum { SOFTMAX_LANES, SOFTMAX_PACKED }; /* numbers of the plan; 0: rows are not packed */

static scores_view view_of(const simt_device *d, bsk_dtype type, const bsk_layout_tables *t,
                           const bsk_tensor *s, bsk_mem mem)
{
    scores_view v = {.type = (i32)s->dtype};
    if (s->dtype == BSK_NONE)
        return v;
    v.batch = stride_of(s, 0);
    v.group = stride_of(s, 1);
    v.vector =
        d->wide || (whole(simt_vec(d, type), v.batch, v.group, t->block_cols) && simt_aligned(mem));
    return v;
}

/* Runs of the longest row. */
static i64 row_runs(const simt_device *d, bsk_dtype type, const bsk_layout_tables *t)
{
    i64 most = 0;
    for (i64 line = 0; line < t->heads * ((i64)t->grid_rows + 1) - 1; line++)
        if (t->row_start[line + 1] - t->row_start[line] > most)
            most = t->row_start[line + 1] - t->row_start[line];
    return most * simt_runs(t->block_cols, simt_vec(d, type));
}

/* Lanes for rows of `runs` runs, of which each has some under way. */
static i32 row_lanes(const simt_device *d, i64 runs, i64 each)
{
    i32 lanes = 1;
    while (lanes < simt_lanes(d) && (i64)lanes * each < runs)
        lanes *= 2;
    return lanes;
}

static bool is_power(i64 n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

/* Lanes for packed rows, or 0 where rows are not packed: those that hold what rows have on average,
 * since waves that wait for each other cost more than runs that are read again. */
static i32 packed_lanes(const simt_device *d, bsk_dtype type, const bsk_layout_tables *t)
{
    const i64 vec = simt_vec(d, type), line = t->block_cols / vec;
    const bool fits = !d->wide && t->block_cols % vec == 0 && is_power(line) &&
                      line <= SIMT_LANES && is_power(t->block_rows) &&
                      t->cols % t->block_cols == 0 && t->nnz * t->block_rows * line <= INT32_MAX;
    if (!fits)
        return 0;
    const i32 average =
        row_lanes(d, bski_ceil_div(t->nnz * line, (i64)t->heads * t->grid_rows), SCORES_RUNS);
    const i32 most = row_lanes(d, row_runs(d, type, t), 4 * SCORES_RUNS);
    const i32 lanes = average > most ? average : most;
    return lanes > line ? lanes : (i32)line;
}

/* kernel, and the form for packed rows where there is one. */
static bsk_status softmax_prepare(void *device, bsk_prepared *prepared, const char *kernel,
                                  const char *packed)
{
    const simt_device *d = device;
    const bsk_problem *problem = prepared->problem;
    const i32 lanes = packed_lanes(d, problem->dtype, problem->layout);
    const simt_need need = {
        .file = "scores_softmax", .kernels = {kernel, lanes ? packed : NULL}, .rows = true};
    TRY(bski_simt_prepare(device, prepared, &need));
    i64 *number = ((simt_state *)prepared->state)->number;
    number[SOFTMAX_LANES] = row_lanes(d, row_runs(d, problem->dtype, problem->layout), LANE_RUNS);
    number[SOFTMAX_PACKED] = lanes;
    return BSK_OK;
}

static i32 bits_of(i64 power)
{
    i32 bits = 0;
    while (power >> bits > 1)
        bits++;
    return bits;
}

/* What the packed forms share: sizes, and where x and y lie. Groups take several members if there are
 * enough of them to keep the device busy. */
static scores_packed_arg packed_of(const bsk_prepared *prepared, const simt_device *d, i64 batch,
                                   i32 per_head, const scores_view *x, const scores_view *y)
{
    const bsk_layout_tables *t = prepared->problem->layout;
    const i32 lanes = (i32)state_of(prepared)->number[SOFTMAX_PACKED];
    scores_packed_arg a = {
        .x_batch = x->batch,
        .x_group = x->group,
        .y_batch = y->batch,
        .y_group = y->group,
        .rows = (i32)t->rows,
        .heads = t->heads * per_head,
        .per_head = per_head,
        .grid_rows = t->grid_rows,
        .lane_bits = bits_of(lanes),
        .block_bits = bits_of(t->block_rows),
        .line_bits = bits_of(t->block_cols / simt_vec(d, prepared->problem->dtype)),
        .type = (i32)prepared->problem->dtype,
    };
    if (lanes == 0 || batch * per_head > INT32_MAX)
        return a;
    while (a.near_bits + a.line_bits < bits_of(LINE_RUNS) && a.near_bits < a.block_bits &&
           lanes << a.near_bits < SIMT_LANES)
        a.near_bits++;
    const i64 items = bski_ceil_div(a.rows, SIMT_LANES / lanes) * t->heads * batch * per_head;
    const i64 share = items / bski_simt_groups_most(d, INT32_MAX, 24);
    a.members = (i32)(batch * per_head);
    a.shares = (i32)bski_ceil_div(a.members, share > 1 ? share : 1);
    a.share = (i32)bski_ceil_div(a.members, a.shares > 1 ? a.shares : 1);
    return a;
}

/* Launches over [rows, shares of heads]; an axis of 0 where the packed form cannot be used. */
static i64 packed_rows(const scores_packed_arg *a)
{
    const i64 shares = a->per_head > 0 ? (i64)a->heads / a->per_head * a->shares : 0;
    return shares > 0 && shares <= UINT16_MAX ? bski_ceil_div(a->rows, SIMT_LANES >> a->lane_bits)
                                              : 0;
}

/* Whether an array is of the problem's type, in aligned runs. */
static bool packed_view(const scores_view *v, bsk_dtype type)
{
    return v->type == (i32)type && v->vector;
}

static i64 softmax_groups(const simt_device *d, i64 rows, i32 lanes)
{
    return bski_simt_groups_most(d, bski_ceil_div(rows, simt_lanes(d) / lanes), d->wide ? 4 : 4096);
}

/* Runs of a row are counted with 32 bits. */
static bool softmax_fits(const bsk_layout_tables *t, i64 per_head)
{
    i64 heads;
    return t->nnz <= INT32_MAX && bski_mul_i64(per_head, t->heads, &heads) && rules_fit(t, heads);
}

/* --- block_softmax --- */

SIMT_RELEASE(block_softmax)

SIMT_PREPARE(block_softmax)
{
    return softmax_prepare(device, prepared, "block_softmax", "block_softmax_packed");
}

SIMT_ACCEPT(block_softmax)
{
    const bsk_block_softmax_params *p = problem->params;
    const bsk_reason reason = ACCEPT(&p->x, &p->y, &p->lse, &p->bias, &p->slopes);
    return reason                                        ? reason
           : softmax_fits(problem->layout, p->x.dims[1]) ? BSK_ACCEPT
                                                         : BSK_REFUSE_LIMIT;
}

SIMT_LAUNCH(block_softmax)
{
    const simt_device *d = queue_device(queue);
    const bsk_block_softmax_params *p = prepared->problem->params;
    const bsk_layout_tables *t = prepared->problem->layout;
    const bsk_block_softmax_args *a = args;
    const bsk_dtype type = p->x.dtype;
    const i64 heads = p->x.dims[1] * t->heads;
    const bool whole_rows = p->interleave == 1 && !p->causal && p->window == 0 &&
                            p->q_len.dtype == BSK_NONE && p->k_len.dtype == BSK_NONE &&
                            p->k_segment.dtype == BSK_NONE && p->bits.dtype == BSK_NONE;
    const block_softmax_arg arg = {
        .rules = RULES_ARG(type, t, p, heads, t->rows, t->cols, a->scale != 0 ? a->scale : 1),
        .x = view_of(d, type, t, &p->x, a->x),
        .y = view_of(d, type, t, &p->y, a->y),
        .rows = p->x.dims[0] * heads * t->rows,
        .grid_rows = t->grid_rows,
        .lanes = (i32)state_of(prepared)->number[SOFTMAX_LANES],
        .whole = whole_rows,
        .plain = whole_rows && p->softcap == 0 && p->slopes.dtype == BSK_NONE &&
                 p->bias.dtype == BSK_NONE,
    };
    scores_packed_arg rows =
        packed_of(prepared, d, p->x.dims[0], (i32)p->x.dims[1], &arg.x, &arg.y);
    const i64 groups = packed_rows(&rows);
    rows.factor = arg.rules.scale;
    if (arg.plain && a->scale >= 0 && groups > 0 && arg.x.vector && packed_view(&arg.y, type))
        return LAUNCH(PACKED, groups, t->heads * rows.shares, rows, a->x, a->y,
                      mem_of(&p->lse, a->lse), table_of(prepared, ROW_START),
                      table_of(prepared, ROW_SLOT));
    return LAUNCH(ANY, softmax_groups(d, arg.rows, arg.lanes), 1, arg, a->x, a->y,
                  mem_of(&p->lse, a->lse), table_of(prepared, ROW_START),
                  table_of(prepared, ROW_COL), table_of(prepared, ROW_SLOT), RULES_MEMS(p, a));
}

/* --- block_softmax_grad --- */

SIMT_RELEASE(block_softmax_grad)

SIMT_PREPARE(block_softmax_grad)
{
    return softmax_prepare(device, prepared, "block_softmax_grad", "block_softmax_grad_packed");
}

SIMT_ACCEPT(block_softmax_grad)
{
    const bsk_block_softmax_grad_params *p = problem->params;
    const bsk_reason reason = ACCEPT(&p->dy, &p->y, &p->dx, &p->x);
    return reason                                         ? reason
           : softmax_fits(problem->layout, p->dy.dims[1]) ? BSK_ACCEPT
                                                          : BSK_REFUSE_LIMIT;
}

SIMT_LAUNCH(block_softmax_grad)
{
    const simt_device *d = queue_device(queue);
    const bsk_block_softmax_grad_params *p = prepared->problem->params;
    const bsk_layout_tables *t = prepared->problem->layout;
    const bsk_block_softmax_grad_args *a = args;
    const bsk_dtype type = prepared->problem->dtype;
    const i64 heads = p->dy.dims[1] * t->heads;
    const bsk_mem x = mem_of(&p->x, a->x);
    const block_softmax_grad_arg arg = {
        .rules = {.scale = simt_num(prepared, a->scale != 0 ? a->scale : 1),
                  .softcap = simt_num(prepared, p->softcap),
                  .rows = (i32)t->rows,
                  .cols = (i32)t->cols,
                  .block_rows = t->block_rows,
                  .block_cols = t->block_cols,
                  .heads = (i32)heads,
                  .per_head = (i32)p->dy.dims[1]},
        .dy = view_of(d, type, t, &p->dy, a->dy),
        .y = view_of(d, type, t, &p->y, a->y),
        .dx = view_of(d, type, t, &p->dx, a->dx),
        .x = view_of(d, type, t, &p->x, x),
        .rows = p->dy.dims[0] * heads * t->rows,
        .alpha = simt_num(prepared, a->alpha),
        .beta = simt_num(prepared, a->beta),
        .grid_rows = t->grid_rows,
        .lanes = (i32)state_of(prepared)->number[SOFTMAX_LANES],
    };
    scores_packed_arg rows =
        packed_of(prepared, d, p->dy.dims[0], (i32)p->dy.dims[1], &arg.dy, &arg.y);
    const i64 groups = packed_rows(&rows);
    rows.dx_batch = arg.dx.batch;
    rows.dx_group = arg.dx.group;
    rows.factor = simt_num(prepared, a->alpha * (a->scale != 0 ? a->scale : 1));
    if (p->softcap == 0 && a->beta == 0 && groups > 0 && packed_view(&arg.dy, type) &&
        packed_view(&arg.y, type) && packed_view(&arg.dx, type))
        return LAUNCH(PACKED, groups, t->heads * rows.shares, rows, a->dy, a->y, a->dx,
                      table_of(prepared, ROW_START), table_of(prepared, ROW_SLOT));
    return LAUNCH(ANY, softmax_groups(d, arg.rows, arg.lanes), 1, arg, a->dy, a->y, x, a->dx,
                  table_of(prepared, ROW_START), table_of(prepared, ROW_COL),
                  table_of(prepared, ROW_SLOT));
}
