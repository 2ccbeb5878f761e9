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

#if defined(BSK_ISA_AMX)
/* Four pieces of 8 x 8 numbers of 16 bits, each transposed in its quarter of the registers: row r of
 * piece i lies at src + from[i] + r * ld. */
OMP_INLINE void turn_pieces(__m512i x[8], const uint16_t *src, int64_t ld, const int64_t from[4])
{
    __m512i y[8];
    _Pragma("GCC unroll 8") for (int r = 0; r < 8; r++)
    {
        const uint16_t *row = src + r * ld;
        __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(row + from[0])));
        v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(row + from[1])), 1);
        v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(row + from[2])), 2);
        x[r] = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(row + from[3])), 3);
    }
    _Pragma("GCC unroll 4") for (int r = 0; r < 8; r += 2)
    {
        y[r] = _mm512_unpacklo_epi16(x[r], x[r + 1]);
        y[r + 1] = _mm512_unpackhi_epi16(x[r], x[r + 1]);
    }
    _Pragma("GCC unroll 2") for (int r = 0; r < 8; r += 4)
        _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++)
    {
        x[r + 2 * i] = _mm512_unpacklo_epi32(y[r + i], y[r + 2 + i]);
        x[r + 2 * i + 1] = _mm512_unpackhi_epi32(y[r + i], y[r + 2 + i]);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
    {
        y[2 * i] = _mm512_unpacklo_epi64(x[i], x[4 + i]);
        y[2 * i + 1] = _mm512_unpackhi_epi64(x[i], x[4 + i]);
    }
    _Pragma("GCC unroll 8") for (int r = 0; r < 8; r++) x[r] = y[r];
}

/* Features that turn_bf16 takes at once of a tile `depth` numbers deep, which has `rows` of a block's
 * `width`; or 0. */
static inline int64_t turn_rows_bf16(int64_t rows, int64_t depth, int64_t width)
{
    const int64_t most = depth == 16 ? 16 : 8;
    return (depth == 32 || depth == 16 || (depth == 8 && width == 8)) && rows % most == 0 ? most
                                                                                          : 0;
}

/* dst[i][depth] = src[depth][i] for as many features. */
OMP_INLINE void turn_bf16(float *restrict tile, const void *restrict from, int64_t ld,
                          int64_t depth)
{
    const uint16_t *src = from;
    uint16_t *dst = (uint16_t *)(void *)tile;
    __m512i x[8];
    if (depth == 32) {
        const int64_t at[] = {0, 8 * ld, 16 * ld, 24 * ld};
        turn_pieces(x, src, ld, at);
        _Pragma("GCC unroll 8") for (int r = 0; r < 8; r++) _mm512_storeu_si512(dst + r * 32, x[r]);
    } else if (depth == 16) {
        const int64_t at[] = {0, 8 * ld, 8, 8 * ld + 8};
        turn_pieces(x, src, ld, at);
        _Pragma("GCC unroll 8") for (int r = 0; r < 8; r++)
        {
            _mm256_storeu_si256((void *)(dst + r * 16), _mm512_castsi512_si256(x[r]));
            _mm256_storeu_si256((void *)(dst + (8 + r) * 16), _mm512_extracti64x4_epi64(x[r], 1));
        }
    } else {
        const __m512i low = _mm512_loadu_si512(src), high = _mm512_loadu_si512(src + 32);
        /* number k of feature i is number 8 k + i */
        const __m512i step =
            _mm512_set_epi16(59, 51, 43, 35, 27, 19, 11, 3, 58, 50, 42, 34, 26, 18, 10, 2, 57, 49,
                             41, 33, 25, 17, 9, 1, 56, 48, 40, 32, 24, 16, 8, 0);
        const __m512i more = _mm512_add_epi16(step, _mm512_set1_epi16(4));
        _mm512_storeu_si512(dst, _mm512_permutex2var_epi16(low, step, high));
        _mm512_storeu_si512(dst + 32, _mm512_permutex2var_epi16(low, more, high));
    }
}
#endif

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
