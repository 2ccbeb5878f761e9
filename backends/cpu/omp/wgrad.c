/* dense_wgrad: dw = x^T dy in f32, a tile of dw after another. */
#include "dense_tile.h"

OMP_DECLARE(dense_wgrad);
OMP_PREPARE_NONE(dense_wgrad)

static tile_operand operand_of(const bsk_tensor *t, bsk_mem mem, bsk_axis axis)
{
    const int n = axis == BSK_NC ? 0 : 1;
    return (tile_operand){t->dtype, bsk_mem_address(mem), 0, t->strides[n], t->strides[1 - n]};
}

OMP_ACCEPT(dense_wgrad)
{
    const bsk_dense_wgrad_params *p = problem->params;
    (void)props;
    if (!is_narrow(&p->x) || !is_narrow(&p->dy) || !is_narrow(&p->dw))
        return BSK_REFUSE_DTYPE;
    for (int i = 0; i < 2; i++) {
        const bsk_tensor *t = i ? &p->dy : &p->x;
        if (!axis_contiguous(t, 0) && !axis_contiguous(t, 1))
            return BSK_REFUSE_STRIDE;
    }
    return axis_contiguous(&p->dw, 1) ? BSK_ACCEPT : BSK_REFUSE_STRIDE;
}

static void wgrad_tile_run(const bsk_dense_wgrad_params *p, const bsk_dense_wgrad_args *a,
                           dense_tile *t, int64_t row, int64_t column)
{
    const tile_operand x = operand_of(&p->x, a->x, p->axis);
    const tile_operand dy = operand_of(&p->dy, a->dy, p->axis);
    const int64_t length = p->x.dims[p->axis == BSK_NC ? 0 : 1];
    const int64_t rows = min_i64(TILE_ROWS, p->dw.dims[0] - row);
    const int64_t columns = min_i64(TILE_COLUMNS, p->dw.dims[1] - column);

    tile_product(t, &x, &dy, length, row, rows, column, columns);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t to = (row + r) * p->dw.strides[0] + column;
        float *line = t->out + r * TILE_COLUMNS;
        row_blend(line, a->alpha, a->beta, p->dw.dtype, bsk_mem_address(a->dw), to, columns);
        row_store_f32(line, p->dw.dtype, bsk_mem_address(a->dw), to, columns);
    }
}

OMP_LAUNCH(dense_wgrad)
{
    const bsk_dense_wgrad_params *p = prepared->problem->params;
    const int64_t right = bski_ceil_div(p->dw.dims[1], TILE_COLUMNS);
    const int64_t down = bski_ceil_div(p->dw.dims[0], TILE_ROWS);
#pragma omp parallel num_threads(queue_threads(queue))
    {
        dense_tile tile;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < down * right; i++)
            wgrad_tile_run(p, args, &tile, i / right * TILE_ROWS, i % right * TILE_COLUMNS);
    }
    return BSK_OK;
}
