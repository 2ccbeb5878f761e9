/* Products of bf16 pairs: a T holds two neighbours along the depth, as the dot-product instruction
 * takes them. Numbers are rounded once, in the instruction's sums; it takes denormal operands as 0 and
 * leaves no denormal sums. */
#ifndef BSKI_OMP_PAIRS_H
#define BSKI_OMP_PAIRS_H

#include "rows.h"

/* In registers and in results a T is a float. */
#define row_load_bf16         row_load_f32
#define row_store_bf16        row_store_f32
#define transpose_square_bf16 transpose_square_f32
#define SQUARE_bf16           SQUARE_f32
#define vec_mem_bf16          vec_mem_f32
#define act_row_bf16          act_row_f32
#define splat_pair_bf16       splat_pair_f32

typedef uint32_t pair_bits __attribute__((may_alias));

#ifndef MATRIX_TILES
OMP_INLINE vec_f32 vsplat_bf16(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits); /* as numbers, some pairs would change */
    return (vec_f32)(bits - (vec_i32){0});
}

OMP_INLINE vec_f32 madd_bf16(vec_f32 sum, vec_f32 x, vec_f32 y)
{
    return (vec_f32)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y);
}
#endif

/* dst[depth][DSD_MR]: pairs of rows of DSD_MR neighbours. */
OMP_INLINE void group_load_bf16(float *restrict pairs, const uint16_t *restrict src,
                                int64_t row_stride, int64_t depth)
{
    pair_bits *dst = (pair_bits *)pairs;
    typedef uint16_t row __attribute__((vector_size(2 * DSD_MR), aligned(2), may_alias));
    typedef uint32_t wide __attribute__((vector_size(4 * DSD_MR), aligned(4), may_alias));
    for (int64_t k = 0; k < depth; k++, src += 2 * row_stride, dst += DSD_MR) {
        const wide low = __builtin_convertvector(*(const row *)src, wide);
        const wide high = __builtin_convertvector(*(const row *)(src + row_stride), wide);
        *(wide *)dst = low | high << 16;
    }
}

/* Pairs of rows 2 row, 2 row + 1 of a bf16 matrix; rows from `end` on count as zero. */
static void pairs_load(pair_bits *restrict dst, int64_t ld, const uint16_t *restrict src,
                       int64_t row_stride, int64_t col_stride, int64_t rows, int64_t cols,
                       int64_t end)
{
    for (int64_t r = 0; r < rows; r++) {
        const uint16_t *low = src + 2 * r * row_stride, *high = low + row_stride;
        const bool whole = 2 * r + 1 < end;
        for (int64_t c = 0; col_stride == 1 && c < cols; c += 32) {
            __builtin_prefetch(low + 2 * rows * row_stride + c);
            __builtin_prefetch(high + 2 * rows * row_stride + c);
        }
        if (whole && col_stride == 1)
            for (int64_t c = 0; c < cols; c++)
                dst[r * ld + c] = low[c] | (pair_bits)high[c] << 16;
        else
            for (int64_t c = 0; c < cols; c++)
                dst[r * ld + c] =
                    low[c * col_stride] | (whole ? (pair_bits)high[c * col_stride] << 16 : 0);
    }
}

/* Pairs of rows of a bf16 matrix with contiguous columns, for panels side by side: of `width`
 * columns each, a multiple of a vector's elements, and `size` pairs apart. Rows further on are
 * asked for meanwhile, since a group's share of them is too short for the processor to foresee. */
static void pairs_spread(pair_bits *restrict dst, int64_t width, int64_t size,
                         const uint16_t *restrict src, int64_t row_stride, int64_t rows,
                         int64_t panels)
{
    typedef uint16_t row __attribute__((vector_size(VEC_BYTES / 2), aligned(2), may_alias));
    typedef uint32_t wide __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));
    enum { VL = VEC_BYTES / 4, AHEAD = 16 };

    for (int64_t r = 0; r < rows; r++, src += 2 * row_stride, dst += width)
        for (int64_t q = 0; q < panels; q++)
            for (int64_t c = 0; c < width; c += VL) {
                const uint16_t *low = src + q * width + c, *high = low + row_stride;
                if (c % (2 * VL) == 0) {
                    __builtin_prefetch(low + AHEAD * row_stride);
                    __builtin_prefetch(high + AHEAD * row_stride);
                }
                const wide first = __builtin_convertvector(*(const row *)low, wide);
                const wide second = __builtin_convertvector(*(const row *)high, wide);
                *(wide *)(dst + q * size + c) = first | second << 16;
            }
}

#endif
