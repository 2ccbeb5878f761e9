/* Products of groups of rows, by the tiles of dense ones, and the sorting of tokens by expert. */
#include "dense_tile.h"

#include "../ref/grouped.h"

/* A product of two operands that is stored along the columns of its tiles. Where the result is
 * contiguous the other way, the operands change places. */
typedef struct product {
    tile_operand rows, columns;
    int64_t height, width;
    const bsk_tensor *out;
    void *to;
    int64_t base, by_row;
    double alpha, beta;
    const float *row_bias, *column_bias; /* of the first row or column */
    bsk_act act;
} product;

static product product_turned(const product *p, bool turn)
{
    product q = *p;
    if (turn) {
        q.rows = p->columns;
        q.columns = p->rows;
        q.height = p->width;
        q.width = p->height;
        q.row_bias = p->column_bias;
        q.column_bias = p->row_bias;
    }
    return q;
}

/* out = act(alpha * product + bias + beta * out) for a tile, with a sum of `length` terms. */
static void product_tile(dense_tile *t, const product *p, int64_t length, int64_t row,
                         int64_t column)
{
    const int64_t rows = min_i64(TILE_ROWS, p->height - row);
    const int64_t columns = min_i64(TILE_COLUMNS, p->width - column);
    tile_product(t, &p->rows, &p->columns, length, row, rows, column, columns);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = p->base + (row + r) * p->by_row + column;
        float *line = t->out + r * TILE_COLUMNS;
        row_blend(line, p->alpha, p->beta, p->out->dtype, p->to, at, columns);
        for (int64_t c = 0; p->column_bias && c < columns; c++)
            line[c] += p->column_bias[column + c];
        for (int64_t c = 0; p->row_bias && c < columns; c++)
            line[c] += p->row_bias[row + r];
        act_row_f32(p->act, line, columns);
        row_store_f32(line, p->out->dtype, p->to, at, columns);
    }
}

static bool one_axis_contiguous(const bsk_tensor *t)
{
    return axis_contiguous(t, t->rank - 1) || axis_contiguous(t, t->rank - 2);
}

/* --- grouped_matmul --------------------------------------------------------------------------- */

OMP_DECLARE(grouped_matmul);
OMP_PREPARE_NONE(grouped_matmul)

OMP_ACCEPT(grouped_matmul)
{
    const bsk_grouped_matmul_params *p = problem->params;
    (void)props;
    if (!is_narrow(&p->x) || !is_narrow(&p->y))
        return BSK_REFUSE_DTYPE;
    return one_axis_contiguous(&p->x) && one_axis_contiguous(&p->w) && one_axis_contiguous(&p->y)
               ? BSK_ACCEPT
               : BSK_REFUSE_STRIDE;
}

/* The rows of tile number `tile`: of those of `side` rows that begin with each span, which has numbers
 * from begin / side + its own on. */
static group_span span_of_tile(const int32_t *offsets, int64_t groups, int64_t rows, int64_t side,
                               int64_t tile)
{
    group_span s = group_next(offsets, groups, rows, (group_span){-1, 0, 0});
    while (tile > s.end / side + s.number)
        s = group_next(offsets, groups, rows, s);
    s.begin += (tile - s.begin / side - s.number) * side;
    s.end = min_i64(s.end, s.begin + side);
    return s;
}

static product matmul_product(const bsk_grouped_matmul_params *p, const bsk_grouped_matmul_args *a,
                              const group_span *s, bool turn)
{
    const int64_t g = span_group(s, p->w.dims[0]);
    const float *bias = bsk_mem_address(a->bias);
    product q = {.height = s->end - s->begin,
                 .width = p->y.dims[1],
                 .out = &p->y,
                 .to = bsk_mem_address(a->y),
                 .base = s->begin * p->y.strides[0],
                 .by_row = p->y.strides[turn ? 1 : 0],
                 .alpha = a->alpha,
                 .beta = a->beta};
    q.rows = (tile_operand){p->x.dtype, bsk_mem_address(a->x), s->begin * p->x.strides[0],
                            p->x.strides[1], p->x.strides[0]};
    if (g >= 0) {
        q.columns = (tile_operand){p->w.dtype, bsk_mem_address(a->w), g * p->w.strides[0],
                                   p->w.strides[1], p->w.strides[2]};
        q.column_bias = p->bias.dtype ? bias + g * p->y.dims[1] : NULL;
        q.act = p->act;
    }
    return product_turned(&q, turn);
}

OMP_LAUNCH(grouped_matmul)
{
    const bsk_grouped_matmul_params *p = prepared->problem->params;
    const bsk_grouped_matmul_args *a = args;
    const int32_t *offsets = bsk_mem_address(a->offsets);
    const bool turn = !axis_contiguous(&p->y, 1);
    const int64_t side = turn ? TILE_COLUMNS : TILE_ROWS, step = turn ? TILE_ROWS : TILE_COLUMNS;
    const int64_t rows = p->x.dims[0], groups = p->w.dims[0];
    const int64_t down = rows / side + groups + 2, right = bski_ceil_div(p->y.dims[1], step);
#pragma omp parallel num_threads(queue_threads(queue))
    {
        dense_tile tile;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < down * right; i++) {
            const group_span s = span_of_tile(offsets, groups, rows, side, i / right);
            if (s.begin >= s.end)
                continue;
            const product q = matmul_product(p, a, &s, turn);
            const int64_t length = span_group(&s, groups) < 0 ? 0 : p->x.dims[1];
            const int64_t column = i % right * step;
            product_tile(&tile, &q, length, turn ? column : 0, turn ? 0 : column);
        }
    }
    return BSK_OK;
}

/* --- grouped_wgrad ---------------------------------------------------------------------------- */

OMP_DECLARE(grouped_wgrad);
OMP_PREPARE_NONE(grouped_wgrad)

OMP_ACCEPT(grouped_wgrad)
{
    const bsk_grouped_wgrad_params *p = problem->params;
    (void)props;
    if (!is_narrow(&p->x) || !is_narrow(&p->dw))
        return BSK_REFUSE_DTYPE;
    return one_axis_contiguous(&p->x) && one_axis_contiguous(&p->dy) && one_axis_contiguous(&p->dw)
               ? BSK_ACCEPT
               : BSK_REFUSE_STRIDE;
}

static group_span span_of_group(const int32_t *offsets, int64_t groups, int64_t rows, int64_t g)
{
    group_span s = {-1, 0, 0};
    do
        s = group_next(offsets, groups, rows, s);
    while (span_group(&s, groups) < g);
    return s;
}

/* The rows of x or dy from the first of a group on, as terms of its sums. */
static tile_operand rows_operand(const bsk_tensor *t, bsk_mem mem, const group_span *s)
{
    return (tile_operand){t->dtype, bsk_mem_address(mem), s->begin * t->strides[0], t->strides[0],
                          t->strides[1]};
}

/* dbias of a group, TILE_COLUMNS of its columns. */
static void sum_columns(const bsk_grouped_wgrad_params *p, const bsk_grouped_wgrad_args *a,
                        const group_span *s, float *chunk, int64_t column)
{
    const tile_operand dy = rows_operand(&p->dy, a->dy, s);
    const int64_t columns = min_i64(TILE_COLUMNS, p->dy.dims[1] - column);
    const int64_t at = span_group(s, p->dw.dims[0]) * p->dy.dims[1] + column;
    float sum[TILE_COLUMNS] = {0};
    for (int64_t n = 0; n < s->end - s->begin; n += STEPS) {
        const int64_t steps = min_i64(STEPS, s->end - s->begin - n);
        operand_pack(&dy, n, steps, column, columns, chunk, TILE_COLUMNS);
        for (int64_t i = 0; i < steps; i++)
            for (int64_t c = 0; c < TILE_COLUMNS; c++)
                sum[c] += chunk[i * TILE_COLUMNS + c];
    }
    row_blend(sum, a->alpha, a->beta, BSK_F32, bsk_mem_address(a->dbias), at, columns);
    row_store_f32(sum, BSK_F32, bsk_mem_address(a->dbias), at, columns);
}

OMP_LAUNCH(grouped_wgrad)
{
    const bsk_grouped_wgrad_params *p = prepared->problem->params;
    const bsk_grouped_wgrad_args *a = args;
    const int32_t *offsets = bsk_mem_address(a->offsets);
    const bool turn = !axis_contiguous(&p->dw, 2);
    const int64_t rows = p->x.dims[0], groups = p->dw.dims[0];
    const int64_t height = p->dw.dims[turn ? 2 : 1], width = p->dw.dims[turn ? 1 : 2];
    const int64_t down = bski_ceil_div(height, TILE_ROWS);
    const int64_t right = bski_ceil_div(width, TILE_COLUMNS);
    const int64_t strips = p->dbias.dtype ? bski_ceil_div(p->dy.dims[1], TILE_COLUMNS) : 0;
#pragma omp parallel num_threads(queue_threads(queue))
    {
        dense_tile tile;
#pragma omp for schedule(dynamic) nowait
        for (int64_t i = 0; i < groups * down * right; i++) {
            const int64_t g = i / right / down;
            const group_span s = span_of_group(offsets, groups, rows, g);
            product q = {.rows = rows_operand(&p->x, a->x, &s),
                         .columns = rows_operand(&p->dy, a->dy, &s),
                         .height = p->dw.dims[1],
                         .width = p->dw.dims[2],
                         .out = &p->dw,
                         .to = bsk_mem_address(a->dw),
                         .base = g * p->dw.strides[0],
                         .by_row = p->dw.strides[turn ? 2 : 1],
                         .alpha = a->alpha,
                         .beta = a->beta};
            q = product_turned(&q, turn);
            product_tile(&tile, &q, s.end - s.begin, i / right % down * TILE_ROWS,
                         i % right * TILE_COLUMNS);
        }
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < groups * strips; i++) {
            const group_span s = span_of_group(offsets, groups, rows, i / strips);
            sum_columns(p, a, &s, tile.b, i % strips * TILE_COLUMNS);
        }
    }
    return BSK_OK;
}

/* --- moe_route -------------------------------------------------------------------------------- */

/* Slots of a share, of which there are at most MOST_SHARES: each counts its own slots by expert. */
enum { LEAST_SHARE = 4096, MOST_SHARES = 64 };

OMP_DECLARE(moe_route);

OMP_ACCEPT(moe_route)
{
    (void)problem;
    (void)props;
    return BSK_ACCEPT;
}

static int64_t share_slots(const bsk_moe_route_params *p)
{
    return max_i64(LEAST_SHARE, bski_ceil_div(p->order.dims[0], MOST_SHARES));
}

OMP_PREPARE(moe_route)
{
    const bsk_moe_route_params *p = prepared->problem->params;
    const int64_t shares = bski_ceil_div(p->order.dims[0], share_slots(p));
    (void)device;
    return bski_mul_size((size_t)shares * sizeof(int32_t), (size_t)p->offsets.dims[0],
                         &prepared->workspace_bytes)
               ? BSK_OK
               : BSK_E_NOMEM;
}

/* counts [shares][experts]: of a share's slots by expert, then the place of its next one of each. */
static int32_t counts_to_places(int32_t *counts, int64_t shares, int64_t experts, int32_t *offsets)
{
    int32_t at = 0;
    for (int64_t g = 0; g < experts; g++) {
        offsets[g] = at;
        for (int64_t s = 0; s < shares; s++) {
            const int32_t count = counts[s * experts + g];
            counts[s * experts + g] = at;
            at += count;
        }
    }
    offsets[experts] = at;
    return at;
}

OMP_LAUNCH(moe_route)
{
    const bsk_moe_route_params *p = prepared->problem->params;
    const bsk_moe_route_args *a = args;
    const int64_t slots = p->order.dims[0], each = share_slots(p), choices = p->experts.dims[1];
    const int64_t shares = bski_ceil_div(slots, each), experts = p->offsets.dims[0] - 1;
    const int32_t *expert = bsk_mem_address(a->experts);
    int32_t *counts = bsk_mem_address(a->workspace), *order = bsk_mem_address(a->order);
    int32_t *token = p->token.dtype ? bsk_mem_address(a->token) : NULL;
    int32_t *place = p->place.dtype ? bsk_mem_address(a->place) : NULL;
    const int threads = queue_threads(queue);
#pragma omp parallel for num_threads(threads)
    for (int64_t s = 0; s < shares; s++) {
        int32_t *count = counts + s * experts;
        for (int64_t g = 0; g < experts; g++)
            count[g] = 0;
        for (int64_t i = s * each; i < min_i64(slots, (s + 1) * each); i++)
            if (expert[i] >= 0 && expert[i] < experts)
                count[expert[i]]++;
    }
    const int32_t kept = counts_to_places(counts, shares, experts, bsk_mem_address(a->offsets));
#pragma omp parallel for num_threads(threads)
    for (int64_t s = 0; s < shares; s++) {
        int32_t *next = counts + s * experts;
        for (int64_t i = s * each; i < min_i64(slots, (s + 1) * each); i++) {
            const bool counts_here = expert[i] >= 0 && expert[i] < experts;
            const int32_t at = counts_here ? next[expert[i]]++ : -1;
            if (place)
                place[i] = at;
            if (at < 0)
                continue;
            order[at] = (int32_t)i;
            if (token)
                token[at] = (int32_t)(i / choices);
        }
    }
    for (int64_t i = kept; i < slots; i++) {
        order[i] = -1;
        if (token)
            token[i] = -1;
    }
    return BSK_OK;
}
