/* Host side of the products of groups of rows. */
#include <backends/simt/entry.h>

#include <backends/simt/grouped.h>

/* Tiles are of rows x cols of the result. */
typedef struct tile_size {
    i64 rows, cols;
} tile_size;

static tile_size tile_of(bool wide, bsk_dtype type)
{
    if (wide)
        return (tile_size){GROUPED_WIDE_ROWS, GROUPED_WIDE_COLS};
    return (tile_size){GROUPED_ROWS, type == BSK_F64 ? GROUPED_COLS_F64 : GROUPED_COLS};
}

/* The groups of a grid of so many tiles down, times as many results, and across. */
static bool grid_of(i64 down, i64 results, i64 across, i64 *groups)
{
    return bski_mul_i64(down, results, groups) && bski_mul_i64(*groups, across, groups) &&
           *groups <= SIMT_MAX_GROUPS;
}

static i32 lanes_of(const void *queue)
{
    return queue_device(queue)->wide ? 1 : GROUPED_LANES;
}

/* An operand with its lines along axis `line` and the sum along axis `k` of a tensor at mem. Its quads
 * are aligned where all strides are, unless they lie along the rows of x: groups start anywhere. */
static grouped_side side_of(const bsk_tensor *t, bsk_mem mem, int line, int k, int rows_axis)
{
    const int other = t->strides[k] == 1 ? line : k, along = other == line ? k : line;
    bool aligned = simt_aligned(mem) && along != rows_axis && t->strides[along] == 1;
    for (int d = 0; d < t->rank; d++)
        aligned = aligned && (d == along || t->strides[d] % 4 == 0);
    return (grouped_side){t->strides[line], t->strides[k], along == k, aligned};
}

/* Whether quads along the columns of the result are aligned. */
static bool out_aligned(const bsk_tensor *t, bsk_mem mem)
{
    const int cols = t->rank - 1;
    bool aligned = simt_aligned(mem) && t->strides[cols] == 1;
    for (int d = 0; d < cols; d++)
        aligned = aligned && t->strides[d] % 4 == 0;
    return aligned;
}

/* --- grouped_matmul --- */

SIMT_PREPARE_BY(grouped_matmul, .file = "grouped", .single = true, .kernels = {"grouped_matmul"})

/* Tiles of the rows: enough for any offsets (rows_of_tile). */
static i64 row_tiles(const bsk_grouped_matmul_params *p, tile_size tile)
{
    return p->x.dims[0] / tile.rows + p->w.dims[0] + 2;
}

SIMT_ACCEPT(grouped_matmul)
{
    const bsk_grouped_matmul_params *p = problem->params;
    const tile_size tile = tile_of(simt_props_wide(props), problem->dtype);
    i64 groups;
    if (!grid_of(row_tiles(p, tile), 1, bski_ceil_div(p->y.dims[1], tile.cols), &groups))
        return BSK_REFUSE_LIMIT;
    return ACCEPT(&p->x, &p->y);
}

SIMT_LAUNCH(grouped_matmul)
{
    const bsk_grouped_matmul_params *p = prepared->problem->params;
    const bsk_grouped_matmul_args *a = args;
    const tile_size tile = tile_of(queue_device(queue)->wide, prepared->problem->dtype);
    const grouped_arg arg = {.alpha = simt_num(prepared, a->alpha),
                             .beta = simt_num(prepared, a->beta),
                             .all = p->x.dims[0],
                             .groups = p->w.dims[0],
                             .cols = p->y.dims[1],
                             .k = p->x.dims[1],
                             .group = p->w.strides[0],
                             .out_row = p->y.strides[0],
                             .out_col = p->y.strides[1],
                             .tiles_m = row_tiles(p, tile),
                             .tiles_n = bski_ceil_div(p->y.dims[1], tile.cols),
                             .left = side_of(&p->x, a->x, 0, 1, 0),
                             .right = side_of(&p->w, a->w, 2, 1, -1),
                             .type = (i32)p->x.dtype,
                             .out_type = (i32)p->y.dtype,
                             .out_vector = out_aligned(&p->y, a->y),
                             .act = (i32)p->act};
    return LAUNCH_LANES(0, lanes_of(queue), arg.tiles_m * arg.tiles_n, 1, arg, a->x, a->offsets,
                        a->w, a->y, mem_of(&p->bias, a->bias));
}

/* --- grouped_wgrad --- */

SIMT_PREPARE_BY(grouped_wgrad, .file = "grouped", .single = true, .kernels = {"grouped_wgrad"})

/* Tiles of the rows of one dw: at least one, which sums dbias. */
static i64 matrix_tiles(const bsk_grouped_wgrad_params *p, tile_size tile)
{
    return p->x.dims[1] > 0 ? bski_ceil_div(p->x.dims[1], tile.rows) : 1;
}

SIMT_ACCEPT(grouped_wgrad)
{
    const bsk_grouped_wgrad_params *p = problem->params;
    const tile_size tile = tile_of(simt_props_wide(props), problem->dtype);
    i64 groups;
    if (!grid_of(matrix_tiles(p, tile), p->dw.dims[0], bski_ceil_div(p->dy.dims[1], tile.cols),
                 &groups))
        return BSK_REFUSE_LIMIT;
    return ACCEPT(&p->x, &p->dw);
}

SIMT_LAUNCH(grouped_wgrad)
{
    const bsk_grouped_wgrad_params *p = prepared->problem->params;
    const bsk_grouped_wgrad_args *a = args;
    const tile_size tile = tile_of(queue_device(queue)->wide, prepared->problem->dtype);
    const grouped_arg arg = {.alpha = simt_num(prepared, a->alpha),
                             .beta = simt_num(prepared, a->beta),
                             .all = p->x.dims[0],
                             .groups = p->dw.dims[0],
                             .k = p->x.dims[1],
                             .cols = p->dy.dims[1],
                             .group = p->dw.strides[0],
                             .out_row = p->dw.strides[1],
                             .out_col = p->dw.strides[2],
                             .tiles_m = matrix_tiles(p, tile),
                             .tiles_n = bski_ceil_div(p->dy.dims[1], tile.cols),
                             .left = side_of(&p->x, a->x, 1, 0, 0),
                             .right = side_of(&p->dy, a->dy, 1, 0, 0),
                             .type = (i32)p->x.dtype,
                             .out_type = (i32)p->dw.dtype,
                             .out_vector = out_aligned(&p->dw, a->dw)};
    return LAUNCH_LANES(0, lanes_of(queue), arg.groups * arg.tiles_m * arg.tiles_n, 1, arg, a->x,
                        a->offsets, a->dy, a->dw, mem_of(&p->dbias, a->dbias));
}
