/* Runs of elements between memory of any float type and f32 buffers. */
#ifndef BSKI_OMP_ROWS_H
#define BSKI_OMP_ROWS_H

#include "isa.h"

/* Bytes of an element of a float type. */
static inline size_t type_size(bsk_dtype type)
{
    return type == BSK_F64 ? 8 : type == BSK_F32 ? 4 : 2;
}

static inline void f16_to_f32_row(float *dst, const uint16_t *src, int64_t count)
{
    int64_t i = 0;
#if defined(BSK_ISA_AVX512)
    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(dst + i, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(src + i))));
#elif defined(BSK_ISA_AVX2)
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(src + i))));
#endif
    for (; i < count; i++)
        dst[i] = bski_f16_to_f32(src[i]);
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
#endif
    for (; i < count; i++)
        dst[i] = bski_f32_to_f16(src[i]);
}

/* dst[0 .. count) = the elements of src from index on. */
static inline void row_load_f32(float *restrict dst, bsk_dtype type, const void *src, int64_t index,
                                int64_t count)
{
    switch (type) {
    case BSK_F32:
        memcpy(dst, (const float *)src + index, (size_t)count * sizeof(float));
        break;
    case BSK_F16:
        f16_to_f32_row(dst, (const uint16_t *)src + index, count);
        break;
    case BSK_BF16:
        for (int64_t i = 0; i < count; i++)
            dst[i] = bski_bf16_to_f32(((const uint16_t *)src + index)[i]);
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
        memcpy((float *)dst + index, src, (size_t)count * sizeof(float));
        break;
    case BSK_F16:
        f32_to_f16_row((uint16_t *)dst + index, src, count);
        break;
    case BSK_BF16:
        for (int64_t i = 0; i < count; i++) {
            uint32_t u = bski_f32_bits(src[i]), nan = (u & 0x7fffffffu) > 0x7f800000u;
            uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
            ((uint16_t *)dst + index)[i] = (uint16_t)(nan ? (u >> 16 | 0x40u) : rounded);
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
        memcpy(dst, (const double *)src + index, (size_t)count * sizeof(double));
    else
        for (int64_t i = 0; i < count; i++)
            dst[i] = bski_load(type, src, index + i);
}

static inline void row_store_f64(const double *restrict src, bsk_dtype type, void *dst,
                                 int64_t index, int64_t count)
{
    if (type == BSK_F64)
        memcpy((double *)dst + index, src, (size_t)count * sizeof(double));
    else
        for (int64_t i = 0; i < count; i++)
            bski_store(type, dst, index + i, src[i]);
}

#endif
