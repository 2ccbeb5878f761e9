/* Runs of elements between memory of any float type and f32 buffers. */
#ifndef BSKI_OMP_ROWS_H
#define BSKI_OMP_ROWS_H

#include <math.h>
#include <stdbool.h>

#include "isa.h"

/* Bytes of a number. */
static inline size_t type_size(bsk_dtype type)
{
    const bool byte = type == BSK_I8 || type == BSK_F8E4M3 || type == BSK_F8E5M2;
    return type == BSK_F64 ? 8 : type == BSK_F32 ? 4 : byte ? 1 : 2;
}

/* memcpy of short rows, without the call. */
OMP_INLINE void row_copy(void *restrict dst, const void *restrict src, size_t bytes)
{
    typedef char wide __attribute__((vector_size(32), aligned(1), may_alias));
    typedef char part __attribute__((vector_size(16), aligned(1), may_alias));
    char *d = dst;
    const char *s = src;
    for (; bytes >= 32; bytes -= 32, d += 32, s += 32)
        *(wide *)d = *(const wide *)s;
    for (; bytes >= 16; bytes -= 16, d += 16, s += 16)
        *(part *)d = *(const part *)s;
    if (bytes)
        memcpy(d, s, bytes);
}

/* Squares of SQUARE x SQUARE elements, transposed: dst[r][c] = src[c][r]. */
#if defined(BSK_ISA_AVX512) || defined(BSK_ISA_AVX2)
enum { SQUARE_f32 = 8, SQUARE_f64 = 4, LARGE_f32 = 16 };

OMP_INLINE void transpose_square_f32(float *dst, int64_t dst_ld, const float *src, int64_t src_ld)
{
    __m256 a[8], b[8];
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_ps(src + i * src_ld);
    _Pragma("GCC unroll 4") for (int i = 0; i < 8; i += 2)
    {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    _Pragma("GCC unroll 2") for (int i = 0; i < 8; i += 4)
    {
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
    {
        _mm256_storeu_ps(dst + i * dst_ld, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps(dst + (i + 4) * dst_ld, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}

/* The same for 4 x 4. */
OMP_INLINE void transpose_quad_f32(float *dst, int64_t dst_ld, const float *src, int64_t src_ld)
{
    __m128 a0 = _mm_loadu_ps(src), a1 = _mm_loadu_ps(src + src_ld);
    __m128 a2 = _mm_loadu_ps(src + 2 * src_ld), a3 = _mm_loadu_ps(src + 3 * src_ld);
    _MM_TRANSPOSE4_PS(a0, a1, a2, a3);
    _mm_storeu_ps(dst, a0);
    _mm_storeu_ps(dst + dst_ld, a1);
    _mm_storeu_ps(dst + 2 * dst_ld, a2);
    _mm_storeu_ps(dst + 3 * dst_ld, a3);
}

/* Four numbers of 16 or 8 bits; those of 8 by way of f16, as in f8_to_f32_row. */
OMP_INLINE __m128 quad_load_f16(const char *src)
{
    return _mm_cvtph_ps(_mm_loadl_epi64((const void *)src));
}

OMP_INLINE __m128 quad_load_bf16(const char *src)
{
    const __m128i low = _mm_loadl_epi64((const void *)src);
    return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), low));
}

OMP_INLINE __m128 quad_load_f8e5m2(const char *src)
{
    int32_t four;
    memcpy(&four, src, sizeof four);
    return _mm_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), _mm_cvtsi32_si128(four)));
}

OMP_INLINE __m128 quad_load_f8e4m3(const char *src)
{
    int32_t four;
    memcpy(&four, src, sizeof four);
    const __m128i low = _mm_cvtepu8_epi16(_mm_cvtsi32_si128(four)), bits = _mm_set1_epi16(0x7f);
    const __m128i size = _mm_and_si128(low, bits);
    const __m128i half =
        _mm_or_si128(_mm_slli_epi16(_mm_andnot_si128(bits, low), 8), _mm_slli_epi16(size, 7));
    const __m128i none = _mm_cvtepi16_epi32(_mm_cmpeq_epi16(size, bits));
    return _mm_or_ps(_mm_mul_ps(_mm_cvtph_ps(half), _mm_set1_ps(256)), _mm_castsi128_ps(none));
}

/* Few rows or columns of numbers of 16 or 8 bits, as many as a row group has, for which row_load would take
 * more time than for the numbers: dst[r][c] of what is at index + r * row_stride + c * col_stride, where
 * one of the strides is 1. False where it is not that. */
#define QUADS_EACH(load)                                                                           \
    for (int64_t c = 0; c < cols; c += 4)                                                          \
        for (int64_t r = 0; r < rows; r += lie ? 1 : 4) {                                          \
            const char *s = src + (r * row_stride + c * col_stride) * size;                        \
            float *to = dst + r * ld + c;                                                          \
            if (lie) {                                                                             \
                _mm_storeu_ps(to, load(s));                                                        \
            } else {                                                                               \
                __m128 a0 = load(s), a1 = load(s + col_stride * size);                             \
                __m128 a2 = load(s + 2 * col_stride * size);                                       \
                __m128 a3 = load(s + 3 * col_stride * size);                                       \
                _MM_TRANSPOSE4_PS(a0, a1, a2, a3);                                                 \
                _mm_storeu_ps(to, a0);                                                             \
                _mm_storeu_ps(to + ld, a1);                                                        \
                _mm_storeu_ps(to + 2 * ld, a2);                                                    \
                _mm_storeu_ps(to + 3 * ld, a3);                                                    \
            }                                                                                      \
        }

static inline bool quads_load_f32(float *restrict dst, int64_t ld, bsk_dtype type,
                                  const void *restrict data, int64_t index, int64_t row_stride,
                                  int64_t col_stride, int64_t rows, int64_t cols)
{
    const bool lie = col_stride == 1;
    const int64_t size = (int64_t)type_size(type);
    const char *src = (const char *)data + index * size;
    if (cols > 8 || cols % 4 != 0 || (!lie && (row_stride != 1 || rows % 4 != 0)))
        return false;
    if (type == BSK_F16)
        QUADS_EACH(quad_load_f16)
    else if (type == BSK_BF16)
        QUADS_EACH(quad_load_bf16)
    else if (type == BSK_F8E4M3)
        QUADS_EACH(quad_load_f8e4m3)
    else if (type == BSK_F8E5M2)
        QUADS_EACH(quad_load_f8e5m2)
    else
        return false;
    return true;
}
#undef QUADS_EACH

#ifdef BSK_ISA_AVX512
/* The same for 16 x 16, whose lines are whole ones of the cache. */
OMP_INLINE void transpose_large_f32(float *dst, int64_t dst_ld, const float *src, int64_t src_ld)
{
    __m512 a[16], b[16];
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_ps(src + i * src_ld);
    _Pragma("GCC unroll 8") for (int i = 0; i < 16; i += 2)
    {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 16; i += 4)
    {
        a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
    /* a[4 j + r]: rows r, 4 + r, 8 + r, 12 + r, of columns 4 j .. 4 j + 3 */
    _Pragma("GCC unroll 4") for (int r = 0; r < 4; r++)
    {
        const __m512 low = _mm512_shuffle_f32x4(a[r], a[r + 4], 0x88);
        const __m512 high = _mm512_shuffle_f32x4(a[r + 8], a[r + 12], 0x88);
        const __m512 low4 = _mm512_shuffle_f32x4(a[r], a[r + 4], 0xdd);
        const __m512 high4 = _mm512_shuffle_f32x4(a[r + 8], a[r + 12], 0xdd);
        _mm512_storeu_ps(dst + r * dst_ld, _mm512_shuffle_f32x4(low, high, 0x88));
        _mm512_storeu_ps(dst + (r + 8) * dst_ld, _mm512_shuffle_f32x4(low, high, 0xdd));
        _mm512_storeu_ps(dst + (r + 4) * dst_ld, _mm512_shuffle_f32x4(low4, high4, 0x88));
        _mm512_storeu_ps(dst + (r + 12) * dst_ld, _mm512_shuffle_f32x4(low4, high4, 0xdd));
    }
}
#endif

#ifdef BSK_ISA_AVX512
/* Whether rows of floats, each a multiple of LARGE_f32 of them, are whole lines of the cache. */
static inline bool lines_f32(const float *dst, int64_t ld)
{
    return (uintptr_t)dst % 64 == 0 && ld % LARGE_f32 == 0;
}

/* dst[r * dst_ld + c] = src[r * src_ld + c] past the caches, for whole lines; turned, dst[c * dst_ld
 * + r], for multiples of LARGE_f32 rows. */
static inline void stream_to_f32(float *dst, int64_t dst_ld, const float *src, int64_t src_ld,
                                 int64_t rows, int64_t cols, bool turned)
{
    float part[LARGE_f32 * LARGE_f32] __attribute__((aligned(64)));
    for (int64_t r = 0; r < rows && !turned; r++)
        for (int64_t c = 0; c < cols; c += LARGE_f32)
            _mm512_stream_ps(dst + r * dst_ld + c, _mm512_loadu_ps(src + r * src_ld + c));
    for (int64_t c = 0; c < cols && turned; c += LARGE_f32)
        for (int64_t r = 0; r < rows; r += LARGE_f32) {
            transpose_large_f32(part, LARGE_f32, src + r * src_ld + c, src_ld);
            for (int64_t k = 0; k < min_i64(LARGE_f32, cols - c); k++)
                _mm512_stream_ps(dst + (c + k) * dst_ld + r, _mm512_load_ps(part + k * LARGE_f32));
        }
}

/* Rounded to bf16 in the upper half of each element, to nearest even; NaN stays NaN. */
OMP_INLINE __m512i upper_bf16(__m512 v)
{
    const __m512i u = _mm512_castps_si512(v);
    const __m512i near = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
    const __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
    const __m512i up = _mm512_mask_sub_epi32(near, odd, near, _mm512_set1_epi32(-1));
    return _mm512_mask_or_epi32(up, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), u,
                                _mm512_set1_epi32(0x400000));
}

/* 32 numbers rounded to bf16, in order. */
OMP_INLINE __m512i pair_bf16(__m512 a, __m512 b)
{
    const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
    const __m512i low = _mm512_srli_epi32(upper_bf16(a), 16);
    const __m512i high = _mm512_srli_epi32(upper_bf16(b), 16);
    return _mm512_permutexvar_epi64(order, _mm512_packus_epi32(low, high));
}

OMP_INLINE __m512i line_bf16(const float *x)
{
    return pair_bf16(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16));
}

/* Whether rows of bf16 numbers, each BF16_LINE of them, are whole lines of the cache. */
enum { BF16_LINE = 32 };

static inline bool lines_bf16(const uint16_t *dst, int64_t ld)
{
    return (uintptr_t)dst % 64 == 0 && ld % BF16_LINE == 0;
}

/* dst[c * dst_ld + r] = src[r * src_ld + c] in bf16, for multiples of BF16_LINE rows and of LARGE_f32
 * columns. Pairs of rows are turned as one. dst is a multiple of four bytes, and dst_ld of two.
 * past: stores go past the caches, where they are of whole lines. */
static inline void turn_to_bf16(uint16_t *dst, int64_t dst_ld, const float *src, int64_t src_ld,
                                int64_t rows, int64_t cols, bool past)
{
    float pairs[LARGE_f32 * LARGE_f32] __attribute__((aligned(64)));
    const bool stream = past && lines_bf16(dst, dst_ld);
    for (int64_t c = 0; c < cols; c += LARGE_f32)
        for (int64_t r = 0; r < rows; r += BF16_LINE) {
            const float *s = src + r * src_ld + c;
            uint16_t *to = dst + c * dst_ld + r;
            for (int64_t k = 0; k < LARGE_f32; k++) {
                const __m512i low = upper_bf16(_mm512_loadu_ps(s + 2 * k * src_ld));
                const __m512i high = upper_bf16(_mm512_loadu_ps(s + (2 * k + 1) * src_ld));
                const __m512i pair =
                    _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(low, 16), high);
                _mm512_store_si512(pairs + k * LARGE_f32, pair);
            }
            if (!stream) {
                transpose_large_f32((float *)(void *)to, dst_ld / 2, pairs, LARGE_f32);
                continue;
            }
            transpose_large_f32(pairs, LARGE_f32, pairs, LARGE_f32);
            for (int64_t k = 0; k < LARGE_f32; k++)
                _mm512_stream_si512((void *)(to + k * dst_ld),
                                    _mm512_load_si512(pairs + k * LARGE_f32));
        }
}

/* dst[r * dst_ld + c] = src[r * src_ld + c] in bf16, past the caches, for whole lines. */
static inline void stream_to_bf16(uint16_t *dst, int64_t dst_ld, const float *src, int64_t src_ld,
                                  int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c += BF16_LINE)
            _mm512_stream_si512((void *)(dst + r * dst_ld + c), line_bf16(src + r * src_ld + c));
}
#endif

#ifdef BSK_ISA_AVX2
/* Rounded to bf16 in the lower half of each element, to nearest even; NaN stays NaN. */
OMP_INLINE __m256i lower_bf16(__m256 v)
{
    const __m256i u = _mm256_castps_si256(v), cut = _mm256_srli_epi32(u, 16);
    const __m256i odd = _mm256_and_si256(cut, _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i none = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(up, 16),
                              _mm256_or_si256(cut, _mm256_set1_epi32(0x40)), none);
}

/* 16 numbers rounded to bf16, in order. */
OMP_INLINE __m256i pair_bf16(__m256 a, __m256 b)
{
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(lower_bf16(a), lower_bf16(b)), 0xd8);
}
#endif

OMP_INLINE void transpose_square_f64(double *dst, int64_t dst_ld, const double *src, int64_t src_ld)
{
    __m256d s0 = _mm256_loadu_pd(src), s1 = _mm256_loadu_pd(src + src_ld);
    __m256d s2 = _mm256_loadu_pd(src + 2 * src_ld), s3 = _mm256_loadu_pd(src + 3 * src_ld);
    __m256d even01 = _mm256_unpacklo_pd(s0, s1), odd01 = _mm256_unpackhi_pd(s0, s1);
    __m256d even23 = _mm256_unpacklo_pd(s2, s3), odd23 = _mm256_unpackhi_pd(s2, s3);
    _mm256_storeu_pd(dst, _mm256_permute2f128_pd(even01, even23, 0x20));
    _mm256_storeu_pd(dst + dst_ld, _mm256_permute2f128_pd(odd01, odd23, 0x20));
    _mm256_storeu_pd(dst + 2 * dst_ld, _mm256_permute2f128_pd(even01, even23, 0x31));
    _mm256_storeu_pd(dst + 3 * dst_ld, _mm256_permute2f128_pd(odd01, odd23, 0x31));
}
#elif defined(BSK_ISA_NEON)
enum { SQUARE_f32 = 4, SQUARE_f64 = 2 };

OMP_INLINE void transpose_square_f32(float *dst, int64_t dst_ld, const float *src, int64_t src_ld)
{
    const float32x4_t s0 = vld1q_f32(src), s1 = vld1q_f32(src + src_ld);
    const float32x4_t s2 = vld1q_f32(src + 2 * src_ld), s3 = vld1q_f32(src + 3 * src_ld);
    const float64x2_t even01 = vreinterpretq_f64_f32(vtrn1q_f32(s0, s1));
    const float64x2_t odd01 = vreinterpretq_f64_f32(vtrn2q_f32(s0, s1));
    const float64x2_t even23 = vreinterpretq_f64_f32(vtrn1q_f32(s2, s3));
    const float64x2_t odd23 = vreinterpretq_f64_f32(vtrn2q_f32(s2, s3));
    vst1q_f32(dst, vreinterpretq_f32_f64(vzip1q_f64(even01, even23)));
    vst1q_f32(dst + dst_ld, vreinterpretq_f32_f64(vzip1q_f64(odd01, odd23)));
    vst1q_f32(dst + 2 * dst_ld, vreinterpretq_f32_f64(vzip2q_f64(even01, even23)));
    vst1q_f32(dst + 3 * dst_ld, vreinterpretq_f32_f64(vzip2q_f64(odd01, odd23)));
}

OMP_INLINE void transpose_square_f64(double *dst, int64_t dst_ld, const double *src, int64_t src_ld)
{
    const float64x2_t s0 = vld1q_f64(src), s1 = vld1q_f64(src + src_ld);
    vst1q_f64(dst, vzip1q_f64(s0, s1));
    vst1q_f64(dst + dst_ld, vzip2q_f64(s0, s1));
}
#else
enum { SQUARE_f32 = 4, SQUARE_f64 = 4 };

#define TRANSPOSE_SQUARE(name, type)                                                               \
    OMP_INLINE void name(type *dst, int64_t dst_ld, const type *src, int64_t src_ld)               \
    {                                                                                              \
        for (int64_t r = 0; r < 4; r++)                                                            \
            for (int64_t c = 0; c < 4; c++)                                                        \
                dst[r * dst_ld + c] = src[c * src_ld + r];                                         \
    }
TRANSPOSE_SQUARE(transpose_square_f32, float)
TRANSPOSE_SQUARE(transpose_square_f64, double)
#endif

/* Rows of a matrix with contiguous columns, for panels side by side: of `width` columns each, a
 * multiple of a vector's elements, and `size` elements apart. Rows further on are asked for
 * meanwhile, since a group's share of them is too short for the processor to foresee. */
static inline void rows_spread_f32(float *restrict dst, int64_t width, int64_t size,
                                   const float *restrict src, int64_t row_stride, int64_t rows,
                                   int64_t panels)
{
    enum { VL = VEC_BYTES / (int)sizeof(float), LINE = 64 / (int)sizeof(float), AHEAD = 16 };

    for (int64_t r = 0; r < rows; r++, src += row_stride, dst += width)
        for (int64_t q = 0; q < panels; q++)
            for (int64_t c = 0; c < width; c += VL) {
                const float *from = src + q * width + c;
                if (c % LINE == 0)
                    __builtin_prefetch(from + AHEAD * row_stride);
                *(vec_mem_f32 *)(dst + q * size + c) = *(const vec_mem_f32 *)from;
            }
}

static inline void f16_to_f32_row(float *dst, const uint16_t *src, int64_t count)
{
    int64_t i = 0;
#if defined(BSK_ISA_AVX512)
    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(dst + i, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(src + i))));
#endif
#if defined(BSK_ISA_AVX512) || defined(BSK_ISA_AVX2)
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(src + i))));
    for (; i + 4 <= count; i += 4)
        _mm_storeu_ps(dst + i, quad_load_f16((const char *)(src + i)));
#elif defined(BSK_ISA_NEON)
    for (; i + 4 <= count; i += 4)
        vst1q_f32(dst + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(src + i))));
#endif
    for (; i < count; i++)
        dst[i] = bski_f16_to_f32(src[i]);
}

static inline void bf16_to_f32_row(float *restrict dst, const uint16_t *restrict src, int64_t count)
{
    const int64_t vectors = count / 16 * 16;
    int64_t i = 0;
    for (; i < vectors; i++)
        dst[i] = bski_bf16_to_f32(src[i]);
#if defined(BSK_ISA_AVX512) || defined(BSK_ISA_AVX2)
    for (; i + 4 <= count; i += 4)
        _mm_storeu_ps(dst + i, quad_load_bf16((const char *)(src + i)));
#endif
    for (; i < count; i++)
        dst[i] = bski_bf16_to_f32(src[i]);
}

/* By way of f16, of which e5m2 is the upper half. e4m3 has its exponents less 8, denormals included,
 * and no infinity: only all bits set are NaN. */
static inline void f8_to_f32_row(float *dst, const uint8_t *src, int64_t count, bool e5m2)
{
    enum { RUN = 64 };
    uint16_t half[RUN];
    for (; count > 0; count -= RUN, src += RUN, dst += RUN) {
        const int64_t n = count < RUN ? count : RUN;
        for (int64_t i = 0; i < n; i++)
            half[i] = (uint16_t)(e5m2 ? src[i] << 8 : (src[i] & 0x80) << 8 | (src[i] & 0x7f) << 7);
        f16_to_f32_row(dst, half, n);
        for (int64_t i = 0; i < n && !e5m2; i++)
            dst[i] = (src[i] & 0x7f) == 0x7f ? NAN : dst[i] * 256;
    }
}

static inline void f32_to_f16_row(uint16_t *dst, const float *src, int64_t count)
{
    int64_t i = 0;
#if defined(BSK_ISA_AVX512)
    for (; i + 16 <= count; i += 16)
        _mm256_storeu_si256((void *)(dst + i), _mm512_cvtps_ph(_mm512_loadu_ps(src + i), 0));
#elif defined(BSK_ISA_AVX2)
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((void *)(dst + i), _mm256_cvtps_ph(_mm256_loadu_ps(src + i), 0));
#elif defined(BSK_ISA_NEON)
    for (; i + 4 <= count; i += 4)
        vst1_u16(dst + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(src + i))));
#endif
    for (; i < count; i++)
        dst[i] = bski_f32_to_f16(src[i]);
}

static inline void f32_to_bf16_row(uint16_t *restrict dst, const float *restrict src, int64_t count)
{
    int64_t i = 0;
#if defined(BSK_ISA_AVX512)
    for (; i + BF16_LINE <= count; i += BF16_LINE)
        _mm512_storeu_si512(dst + i, line_bf16(src + i));
#elif defined(BSK_ISA_AVX2)
    for (; i + 16 <= count; i += 16)
        _mm256_storeu_si256((void *)(dst + i),
                            pair_bf16(_mm256_loadu_ps(src + i), _mm256_loadu_ps(src + i + 8)));
#endif
    for (; i < count; i++) {
        uint32_t u = bski_f32_bits(src[i]), nan = (u & 0x7fffffffu) > 0x7f800000u;
        uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
        dst[i] = (uint16_t)(nan ? (u >> 16 | 0x40u) : rounded);
    }
}

/* dst[0 .. count) = the elements of src from index on. */
static inline void row_load_f32(float *restrict dst, bsk_dtype type, const void *src, int64_t index,
                                int64_t count)
{
    switch (type) {
    case BSK_F32:
        row_copy(dst, (const float *)src + index, (size_t)count * sizeof(float));
        break;
    case BSK_F16:
        f16_to_f32_row(dst, (const uint16_t *)src + index, count);
        break;
    case BSK_BF16:
        bf16_to_f32_row(dst, (const uint16_t *)src + index, count);
        break;
    case BSK_F8E4M3:
    case BSK_F8E5M2:
        f8_to_f32_row(dst, (const uint8_t *)src + index, count, type == BSK_F8E5M2);
        break;
    case BSK_I8:
        for (int64_t i = 0; i < count; i++)
            dst[i] = ((const int8_t *)src + index)[i];
        break;
    default:
        for (int64_t i = 0; i < count; i++)
            dst[i] = (float)((const double *)src + index)[i];
        break;
    }
}

static inline void row_store_f32(const float *restrict src, bsk_dtype type, void *dst,
                                 int64_t index, int64_t count)
{
    switch (type) {
    case BSK_F32:
        row_copy((float *)dst + index, src, (size_t)count * sizeof(float));
        break;
    case BSK_F16:
        f32_to_f16_row((uint16_t *)dst + index, src, count);
        break;
    case BSK_BF16:
        f32_to_bf16_row((uint16_t *)dst + index, src, count);
        break;
    case BSK_I8:
        for (int64_t i = 0; i < count; i++) {
            const float v = src[i] > -128 ? src[i] < 127 ? src[i] : 127 : -128;
            ((int8_t *)dst + index)[i] = (int8_t)(src[i] != src[i] ? 0 : nearbyintf(v));
        }
        break;
    default:
        for (int64_t i = 0; i < count; i++)
            ((double *)dst + index)[i] = (double)src[i];
        break;
    }
}

static inline void row_load_f64(double *restrict dst, bsk_dtype type, const void *src,
                                int64_t index, int64_t count)
{
    if (type == BSK_F64)
        row_copy(dst, (const double *)src + index, (size_t)count * sizeof(double));
    else
        for (int64_t i = 0; i < count; i++)
            dst[i] = bski_load(type, src, index + i);
}

static inline void row_store_f64(const double *restrict src, bsk_dtype type, void *dst,
                                 int64_t index, int64_t count)
{
    if (type == BSK_F64)
        row_copy((double *)dst + index, src, (size_t)count * sizeof(double));
    else
        for (int64_t i = 0; i < count; i++)
            bski_store(type, dst, index + i, src[i]);
}

#endif
