/* Products of dense operands in f32 by tiles, which one thread sums over n in one order: chunks of both
 * operands are packed with n outermost, and a few rows by two vectors of columns stay in registers
 * over a chunk. */
#ifndef BSKI_OMP_DENSE_TILE_H
#define BSKI_OMP_DENSE_TILE_H

#include "dense.h"

/* Rows and columns of a tile, steps of n in a chunk, chunks whose sums go on together, rows kept in
 * registers. */
enum { TILE_ROWS = 64, TILE_COLUMNS = 128, STEPS = 128, CHUNKS = 64, HIGH = SDD_MR };
enum { WIDE = 2 * F32_LANES };

/* An operand as [n][features], from element `base` on; contiguous one way or the other. */
typedef struct tile_operand {
    bsk_dtype type;
    const void *data;
    int64_t base, by_n, by_feature;
} tile_operand;

/* to [steps][width] = steps of n by count features, zeros beyond them. */
static void operand_pack(const tile_operand *o, int64_t n, int64_t steps, int64_t feature,
                         int64_t count, float *restrict to, int64_t width)
{
    float lines[SQUARE_f32 * STEPS];
    if (o->by_feature == 1 || count == 1) {
        for (int64_t i = 0; i < steps; i++) {
            row_load_f32(to + i * width, o->type, o->data,
                         o->base + (n + i) * o->by_n + feature * o->by_feature, count);
            memset(to + i * width + count, 0, (size_t)(width - count) * sizeof *to);
        }
        return;
    }
    for (int64_t f = 0; f < width; f += SQUARE_f32) {
        memset(lines, 0, sizeof lines);
        for (int64_t k = 0; k < SQUARE_f32 && f + k < count; k++)
            row_load_f32(lines + k * STEPS, o->type, o->data,
                         o->base + n * o->by_n + (feature + f + k) * o->by_feature, steps);
        for (int64_t i = 0; i < STEPS; i += SQUARE_f32)
            transpose_square_f32(to + i * width + f, width, lines + i, STEPS);
    }
}

/* out [HIGH][WIDE] += a^T b over the steps, whose sums are made first: rounding then grows with the
 * number of chunks, not of steps. */
OMP_INLINE void tile_kernel(float *restrict out, const float *restrict a, const float *restrict b,
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

typedef struct dense_tile {
    float a[STEPS * TILE_ROWS], b[STEPS * TILE_COLUMNS];
    float part[TILE_ROWS * TILE_COLUMNS], out[TILE_ROWS * TILE_COLUMNS]; /* some chunks; all */
} dense_tile;

/* Takes the sums of some chunks to those of all. */
static void parts_fold(dense_tile *t)
{
    for (int i = 0; i < TILE_ROWS * TILE_COLUMNS; i++) {
        t->out[i] += t->part[i];
        t->part[i] = 0;
    }
}

/* t->out [TILE_ROWS][TILE_COLUMNS] = the sum over `length` steps of n of the products of a's features
 * from `row` on and b's from `column` on, of which `rows` and `columns` count. */
static void tile_product(dense_tile *t, const tile_operand *a, const tile_operand *b,
                         int64_t length, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    memset(t->out, 0, sizeof t->out);
    memset(t->part, 0, sizeof t->part);
    for (int64_t n = 0; n < length; n += STEPS) {
        const int64_t steps = min_i64(STEPS, length - n);
        operand_pack(a, n, steps, row, rows, t->a, TILE_ROWS);
        operand_pack(b, n, steps, column, columns, t->b, TILE_COLUMNS);
        for (int64_t c = 0; c < columns; c += WIDE)
            for (int64_t r = 0; r < rows; r += HIGH)
                tile_kernel(t->part + r * TILE_COLUMNS + c, t->a + r, t->b + c, steps);
        if (n / STEPS % CHUNKS == CHUNKS - 1)
            parts_fold(t);
    }
    parts_fold(t);
}

#endif
