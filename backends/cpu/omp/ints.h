/* Products of i8: a T holds UNIT neighbours along the depth, as they are, or widened to 16 bits where
 * the processor multiplies no bytes. Sums are i32, in the bits of a T, until the epilogue makes
 * numbers of them.
 *
 * INT_SHIFT: the instruction takes one of its operands without sign. That is B, packed with 128 added
 * to each element; so each sum is too large by 128 times the sum of its row of S. */
#ifndef BSKI_OMP_INTS_H
#define BSKI_OMP_INTS_H

#include "rows.h"

/* In results a T is a float. */
#define row_load_i8         row_load_f32
#define row_store_i8        row_store_f32
#define transpose_square_i8 transpose_square_f32
#define SQUARE_i8           SQUARE_f32
#define vec_mem_i8          vec_mem_f32
#define act_row_i8          act_row_f32
#define splat_pair_i8       splat_pair_f32

enum { INT_BITS = 32 / INT_UNIT, INT_MASK = INT_UNIT == 4 ? 0xff : 0xffff };
/* The depth of which i32 holds every sum. */
enum { INT_DEEPEST = INT32_MAX / (128 * 128) };

typedef uint32_t int_bits __attribute__((may_alias));
typedef int32_t int_sum __attribute__((may_alias));

OMP_INLINE vec_f32 vsplat_i8(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits); /* as numbers, some would change */
    return (vec_f32)(bits - (vec_i32){0});
}

#ifndef MATRIX_TILES
/* x: of S or of a. y: of B. */
OMP_INLINE vec_f32 madd_i8(vec_f32 sum, vec_f32 x, vec_f32 y)
{
#if defined(BSK_ISA_AVX512VNNI)
    return (vec_f32)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)y, (__m512i)x);
#elif defined(BSK_ISA_AVX512)
    return (vec_f32)((vec_i32)sum + (vec_i32)_mm512_madd_epi16((__m512i)x, (__m512i)y));
#elif defined(BSK_ISA_AVX2)
    return (vec_f32)((vec_i32)sum + (vec_i32)_mm256_madd_epi16((__m256i)x, (__m256i)y));
#elif defined(__SSE2__)
    return (vec_f32)((vec_i32)sum + (vec_i32)_mm_madd_epi16((__m128i)x, (__m128i)y));
#else
    const vec_i32 a = (vec_i32)x, b = (vec_i32)y;
    return (vec_f32)((vec_i32)sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16));
#endif
}
#endif

OMP_INLINE float plus_i8(float x, float y)
{
    int32_t a, b;
    memcpy(&a, &x, sizeof a);
    memcpy(&b, &y, sizeof b);
    a += b;
    memcpy(&x, &a, sizeof x);
    return x;
}

OMP_INLINE float number_i8(float sum)
{
    int32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    return (float)bits;
}

#if INT_SHIFT
/* Adds 128 to each element. */
static void shift_i8(float *x, int64_t count)
{
    int_bits *bits = (int_bits *)x;
    for (int64_t i = 0; i < count; i++)
        bits[i] ^= 0x80808080u;
}

/* sum[i] += 128 times all of column i of s[depth][step], for the first DSD_MR columns. */
OMP_INLINE void shift_sum_i8(int32_t *sum, const float *s, int64_t depth, int64_t step)
{
    const __m256i by = _mm256_set1_epi8((char)128);
    __m256i total = _mm256_loadu_si256((const void *)sum);
    _Static_assert(DSD_MR == 8 && SDD_MR == 8, "a vector of 256 bits");
    for (int64_t k = 0; k < depth; k++)
        total = _mm256_dpbusd_epi32(total, by, _mm256_loadu_si256((const void *)(s + k * step)));
    _mm256_storeu_si256((void *)sum, total);
}
#endif

/* One T from elements `step` apart, of which `count` exist. */
OMP_INLINE uint32_t unit_of_i8(const int8_t *src, int64_t step, int64_t count)
{
    uint32_t bits = 0;
    for (int64_t u = 0; u < INT_UNIT && u < count; u++)
        bits |= ((uint32_t)src[u * step] & INT_MASK) << (u * INT_BITS);
    return bits;
}

/* dst[count] from neighbours along the depth. */
static void run_load_i8(int_bits *restrict dst, const int8_t *restrict src, int64_t count)
{
#if INT_UNIT == 4
    memcpy(dst, src, (size_t)count * 4);
#else
    for (int64_t i = 0; i < count; i++)
        dst[i] = ((uint32_t)src[2 * i] & INT_MASK) | (uint32_t)src[2 * i + 1] << INT_BITS;
#endif
}

/* dst[cols] from UNIT rows of neighbours. */
OMP_INLINE void units_load_i8(int_bits *restrict dst, const int8_t *restrict src, int64_t step,
                              int64_t cols)
{
    for (int64_t c = 0; c < cols; c++) {
        uint32_t bits = (uint32_t)src[c] & INT_MASK;
        _Pragma("GCC unroll 4") for (int64_t u = 1; u < INT_UNIT; u++) bits |=
            ((uint32_t)src[c + u * step] & INT_MASK) << (u * INT_BITS);
        dst[c] = bits;
    }
}

/* dst[depth][DSD_MR]: rows of DSD_MR neighbours. */
OMP_INLINE void group_load_i8(float *restrict dst, const int8_t *restrict src, int64_t step,
                              int64_t depth)
{
    for (int64_t k = 0; k < depth; k++)
        units_load_i8((int_bits *)dst + k * DSD_MR, src + k * INT_UNIT * step, step, DSD_MR);
}

#endif
