/* dense_wgrad: dw = x^T dy in f32. A tile of dw belongs to one thread, which sums it over n in one
 * order: chunks of both operands are packed with n outermost, and a few rows by two vectors of
 * columns stay in registers over a chunk. */
#include "dense.h"

/* Rows and columns of a tile, steps of n in a chunk, chunks whose sums go on together, rows kept in
 * registers. */
enum { TILE_ROWS = 64, TILE_COLUMNS = 128, STEPS = 128, CHUNKS = 64, HIGH = SDD_MR };
enum { WIDE = 2 * F32_LANES };

OMP_DECLARE(dense_wgrad);
OMP_PREPARE_NONE(dense_wgrad)

/* The operands as [N, features]. */
typedef struct wgrad_operand {
    bsk_dtype type;
    const void *data;
    int64_t by_n, by_feature;
} wgrad_operand;

static wgrad_operand operand_of(const bsk_tensor *t, bsk_mem mem, bsk_axis axis)
{
    const int n = axis == BSK_NC ? 0 : 1;
    return (wgrad_operand){t->dtype, bsk_mem_address(mem), t->strides[n], t->strides[1 - n]};
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

/* to [steps][width] = steps of n by count features, zeros beyond them. */
static void operand_pack(const wgrad_operand *o, int64_t n, int64_t steps, int64_t feature,
                         int64_t count, float *restrict to, int64_t width)
{
    float lines[SQUARE_f32 * STEPS];
    if (o->by_feature == 1 || count == 1) {
        for (int64_t i = 0; i < steps; i++) {
            row_load_f32(to + i * width, o->type, o->data,
                         (n + i) * o->by_n + feature * o->by_feature, count);
            memset(to + i * width + count, 0, (size_t)(width - count) * sizeof *to);
        }
        return;
    }
    for (int64_t f = 0; f < width; f += SQUARE_f32) {
        memset(lines, 0, sizeof lines);
        for (int64_t k = 0; k < SQUARE_f32 && f + k < count; k++)
            row_load_f32(lines + k * STEPS, o->type, o->data,
                         n * o->by_n + (feature + f + k) * o->by_feature, steps);
        for (int64_t i = 0; i < STEPS; i += SQUARE_f32)
            transpose_square_f32(to + i * width + f, width, lines + i, STEPS);
    }
}

/* out [HIGH][WIDE] += a^T b over the steps, whose sums are made first: rounding then grows with the
 * number of chunks, not of steps. */
OMP_INLINE void wgrad_kernel(float *restrict out, const float *restrict a, const float *restrict b,
                             int64_t steps)
{
    vec_f32 sum[HIGH][2];
    for (int r = 0; r < HIGH; r++)
        for (int v = 0; v < 2; v++)
            sum[r][v] = splat_f32(0);
    for (int64_t i = 0; i < steps; i++) {
        const vec_f32 b0 = load_f32(b), b1 = load_f32(b + F32_LANES);
        _Pragma("GCC unroll 16") for (int r = 0; r < HIGH; r++)
        {
            sum[r][0] += a[r] * b0;
            sum[r][1] += a[r] * b1;
        }
        a += TILE_ROWS;
        b += TILE_COLUMNS;
    }
    for (int r = 0; r < HIGH; r++)
        for (int v = 0; v < 2; v++)
            store_f32(out + r * TILE_COLUMNS + v * F32_LANES,
                      load_f32(out + r * TILE_COLUMNS + v * F32_LANES) + sum[r][v]);
}

typedef struct wgrad_tile {
    float a[STEPS * TILE_ROWS], b[STEPS * TILE_COLUMNS];
    float part[TILE_ROWS * TILE_COLUMNS], out[TILE_ROWS * TILE_COLUMNS]; /* some chunks; all */
} wgrad_tile;

/* Takes the sums of some chunks to those of all. */
static void parts_fold(wgrad_tile *t)
{
    for (int i = 0; i < TILE_ROWS * TILE_COLUMNS; i++) {
        t->out[i] += t->part[i];
        t->part[i] = 0;
    }
}

static void wgrad_tile_run(const bsk_dense_wgrad_params *p, const bsk_dense_wgrad_args *a,
                           wgrad_tile *t, int64_t row, int64_t column)
{
    const wgrad_operand x = operand_of(&p->x, a->x, p->axis);
    const wgrad_operand dy = operand_of(&p->dy, a->dy, p->axis);
    const int64_t length = p->x.dims[p->axis == BSK_NC ? 0 : 1];
    const int64_t rows = min_i64(TILE_ROWS, p->dw.dims[0] - row);
    const int64_t columns = min_i64(TILE_COLUMNS, p->dw.dims[1] - column);

    memset(t->out, 0, sizeof t->out);
    memset(t->part, 0, sizeof t->part);
    for (int64_t n = 0; n < length; n += STEPS) {
        const int64_t steps = min_i64(STEPS, length - n);
        operand_pack(&x, n, steps, row, rows, t->a, TILE_ROWS);
        operand_pack(&dy, n, steps, column, columns, t->b, TILE_COLUMNS);
        for (int64_t c = 0; c < columns; c += WIDE)
            for (int64_t r = 0; r < rows; r += HIGH)
                wgrad_kernel(t->part + r * TILE_COLUMNS + c, t->a + r, t->b + c, steps);
        if (n / STEPS % CHUNKS == CHUNKS - 1)
            parts_fold(t);
    }
    parts_fold(t);
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
        wgrad_tile tile;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < down * right; i++)
            wgrad_tile_run(p, args, &tile, i / right * TILE_ROWS, i % right * TILE_COLUMNS);
    }
    return BSK_OK;
}
