/* Passes over rows that memory limits. LINES rows are read together while as many before them are
 * written, a PIECE of each in turn: memory is read and written all the time, at several places at
 * once, and what is passed over a second time is still in a cache. Numbers of any storage type go
 * through registers as f32. */
#ifndef BSKI_OMP_LINES_H
#define BSKI_OMP_LINES_H

#include "dense.h"

/* Rows, and elements of each, that are taken at once; and those of two vectors. */
enum { LINES = 4, PIECE = 128, PAIR = 2 * F32_LANES };

/* One vector of any float type that f32 holds. */
OMP_INLINE vec_f32 line_load(bsk_dtype type, const void *src, int64_t at)
{
    if (type == BSK_F32)
        return load_f32((const float *)src + at);
    const uint16_t *half = (const uint16_t *)src + at;
#if defined(BSK_ISA_AVX512)
    const __m256i packed = _mm256_loadu_si256((const void *)half);
    return type == BSK_BF16 ? (vec_f32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(packed), 16)
                            : (vec_f32)_mm512_cvtph_ps(packed);
#elif defined(BSK_ISA_AVX2)
    const __m128i packed = _mm_loadu_si128((const void *)half);
    return type == BSK_BF16 ? (vec_f32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(packed), 16)
                            : (vec_f32)_mm256_cvtph_ps(packed);
#else
    float wide[F32_LANES];
    row_load_f32(wide, type, half, 0, F32_LANES);
    return load_f32(wide);
#endif
}

/* Asks for PAIR numbers that are loaded later: passes ask for as many as they load, one by one, since
 * many at once would keep the loads of the present ones waiting. */
OMP_INLINE void line_fetch(bsk_dtype type, const void *src, int64_t at)
{
    const char *from = (const char *)src + at * (int64_t)type_size(type);
    for (int64_t i = 0; i < PAIR * (int64_t)type_size(type); i += 64)
        __builtin_prefetch(from + i, 0, 2);
}

/* Two vectors as one of 16-bit numbers. */
OMP_INLINE void line_narrow(bsk_dtype type, uint16_t *half, vec_f32 a, vec_f32 b)
{
#if defined(BSK_ISA_AVX512)
    if (type == BSK_BF16) {
        _mm512_store_si512(half, pair_bf16((__m512)a, (__m512)b));
        return;
    }
#endif
    float wide[PAIR];
    store_f32(wide, a);
    store_f32(wide + F32_LANES, b);
    (type == BSK_BF16 ? f32_to_bf16_row : f32_to_f16_row)(half, wide, PAIR);
}

/* Two vectors, past the caches if `stream`; then dst + at is a multiple of the vector's bytes. */
OMP_INLINE void line_put(bsk_dtype type, void *dst, int64_t at, vec_f32 a, vec_f32 b, bool stream)
{
    uint16_t half[PAIR] __attribute__((aligned(VEC_BYTES)));
    if (type == BSK_F32) {
        vector_put((float *)dst + at, &a, stream);
        vector_put((float *)dst + at + F32_LANES, &b, stream);
    } else {
        line_narrow(type, half, a, b);
        vector_put((uint16_t *)dst + at, half, stream);
    }
}

/* The larger one; NaN of x is passed over. */
OMP_INLINE vec_f32 larger_f32(vec_f32 x, vec_f32 than)
{
#if defined(BSK_ISA_AVX512)
    return (vec_f32)_mm512_max_ps((__m512)x, (__m512)than);
#elif defined(BSK_ISA_AVX2)
    return (vec_f32)_mm256_max_ps((__m256)x, (__m256)than);
#else
    return select_f32(x > than, x, than);
#endif
}

/* Where number `at` of a type lies. What is empty has no address that could be added to. */
OMP_INLINE char *line_at(bsk_dtype type, const void *data, int64_t at)
{
    return data ? (char *)data + at * (int64_t)type_size(type) : NULL;
}

/* Whether every row of a matrix begins with a whole line of the cache. */
static inline bool lines_whole(const bsk_tensor *t, int32_t axis, const void *data)
{
    const size_t size = type_size(t->dtype), stride = (size_t)t->strides[1 - axis] * size;
    return ((uintptr_t)data | stride) % 64 == 0;
}

#endif
