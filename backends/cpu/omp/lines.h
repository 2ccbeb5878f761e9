/* Passes over rows that memory limits. What is passed over a second time is still in a cache, and what
 * comes next is asked for meanwhile, so that memory is read and written all the time. Numbers of any
 * storage type go through registers as f32. */
#ifndef BSKI_OMP_LINES_H
#define BSKI_OMP_LINES_H

#include "dense.h"

/* Rows that gradients take together and write side by side, a pair of each in turn. With AVX2 one after
 * the other: where Zen 3 writes four rows past the caches by turns, loads wait for these stores. */
#if defined(BSK_ISA_AVX2)
enum { LINES = 1 };
#else
enum { LINES = 4 };
#endif

/* Elements of a row that are taken at once; those of two vectors. */
enum { PIECE = 128, PAIR = 2 * F32_LANES };

/* One vector of any float type that f32 holds. */
OMP_INLINE vec_f32 line_load(bsk_dtype type, const void *src, int64_t at)
{
    if (type == BSK_F32)
        return load_f32((const float *)src + at);
    const uint16_t *half = (const uint16_t *)src + at;
#if defined(BSK_ISA_AVX512)
    const __m256i words = _mm256_loadu_si256((const void *)half);
    return type == BSK_BF16 ? (vec_f32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16)
                            : (vec_f32)_mm512_cvtph_ps(words);
#elif defined(BSK_ISA_AVX2)
    const __m128i words = _mm_loadu_si128((const void *)half);
    return type == BSK_BF16 ? (vec_f32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16)
                            : (vec_f32)_mm256_cvtph_ps(words);
#else
    float wide[F32_LANES];
    row_load_f32(wide, type, half, 0, F32_LANES);
    return load_f32(wide);
#endif
}

/* Asks for PAIR numbers that are loaded later, where others are written. */
OMP_INLINE void line_fetch(bsk_dtype type, const void *src, int64_t at)
{
    const char *from = (const char *)src + at * (int64_t)type_size(type);
    for (int64_t i = 0; i < PAIR * (int64_t)type_size(type); i += 64)
        __builtin_prefetch(from + i, 0, 2);
}

/* The same of `count` numbers at once, before as many are written: twice, since a processor may drop
 * requests while others wait. Gains where memory is the limit and one matrix is read. */
OMP_INLINE void lines_fetch(bsk_dtype type, const void *src, int64_t at, int64_t count)
{
    for (int turn = 0; turn < 2; turn++)
        for (int64_t i = 0; i < count; i += PAIR)
            line_fetch(type, src, at + i);
}

/* The same of numbers that are loaded soon, a kilobyte behind those at `at`, into the first level. */
OMP_INLINE void line_fetch_near(bsk_dtype type, const void *src, int64_t at)
{
    const char *from = (const char *)src + at * (int64_t)type_size(type);
    for (int64_t i = 0; i < PAIR * (int64_t)type_size(type); i += 64)
        __builtin_prefetch(from + i + 1024, 0, 3);
}

/* Two vectors as one of 16-bit numbers. */
OMP_INLINE void line_narrow(bsk_dtype type, uint16_t *half, vec_f32 a, vec_f32 b)
{
#if defined(BSK_ISA_AVX512)
    if (type == BSK_BF16) {
        _mm512_store_si512(half, pair_bf16((__m512)a, (__m512)b));
        return;
    }
#elif defined(BSK_ISA_AVX2)
    if (type == BSK_BF16) {
        _mm256_store_si256((void *)half, pair_bf16((__m256)a, (__m256)b));
        return;
    }
#endif
    float wide[PAIR];
    store_f32(wide, a);
    store_f32(wide + F32_LANES, b);
    (type == BSK_BF16 ? f32_to_bf16_row : f32_to_f16_row)(half, wide, PAIR);
}

/* --- PAIR numbers of a line ------------------------------------------------------------------- */

/* In order, or `split`: bf16 numbers of even places in v[0], of odd ones in v[1], as they come out of
 * memory by one instruction each. What splits reads and writes bf16 alone, and computes with no other
 * NaN than bf16 has, so that rounding need not look for those that it would carry into the sign. */
typedef struct line_pair {
    vec_f32 v[2];
} line_pair;

typedef uint32_t vec_u32 __attribute__((vector_size(VEC_BYTES)));

OMP_INLINE line_pair pair_load(bsk_dtype type, const void *src, int64_t at, bool split)
{
    if (!split)
        return (line_pair){{line_load(type, src, at), line_load(type, src, at + F32_LANES)}};
#if defined(BSK_ISA_AVX512)
    __m512i both = _mm512_loadu_si512((const uint16_t *)src + at);
    __asm__("" : "+v"(both)); /* one load: GCC would make two, or a copy on the stack */
    return (line_pair){{(vec_f32)_mm512_slli_epi32(both, 16),
                        (vec_f32)_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000))}};
#else
    vec_u32 both;
    memcpy(&both, (const uint16_t *)src + at, sizeof both);
    return (line_pair){{(vec_f32)(both << 16), (vec_f32)(both & 0xffff0000u)}};
#endif
}

/* A pair that was split as one vector of bf16, rounded to nearest even. */
OMP_INLINE vec_u32 pair_join(line_pair p)
{
#if defined(BSK_ISA_AVX512)
    const __mmask32 odd = 0xaaaaaaaa;
    const __m512i a = (__m512i)p.v[0], b = (__m512i)p.v[1];
    const __m512i cut = _mm512_mask_mov_epi16(_mm512_srli_epi32(a, 16), odd, b);
    const __m512i rest = _mm512_mask_mov_epi16(a, odd, _mm512_slli_epi32(b, 16));
    /* half a unit is enough where the last bit is set, and has to be exceeded where it is not */
    const __m512i enough = _mm512_ternarylogic_epi32(cut, _mm512_set1_epi16(1),
                                                     _mm512_set1_epi16((short)0x8001), 0x6a);
    const __mmask32 up = _mm512_cmpge_epu16_mask(rest, enough);
    return (vec_u32)_mm512_mask_sub_epi16(cut, up, cut, _mm512_set1_epi16(-1));
#else
    const vec_u32 a = (vec_u32)p.v[0], b = (vec_u32)p.v[1];
    return ((a + 0x7fff + (a >> 16 & 1)) >> 16) | ((b + 0x7fff + (b >> 16 & 1)) & 0xffff0000u);
#endif
}

/* Two vectors, past the caches if `stream`; then dst + at is a multiple of the vector's bytes. */
OMP_INLINE void pair_put(bsk_dtype type, void *dst, int64_t at, line_pair p, bool split,
                         bool stream)
{
    uint16_t half[PAIR] __attribute__((aligned(VEC_BYTES)));
    if (split) {
        const vec_u32 joined = pair_join(p);
        vector_put((uint16_t *)dst + at, &joined, stream);
    } else if (type == BSK_F32) {
        vector_put((float *)dst + at, &p.v[0], stream);
        vector_put((float *)dst + at + F32_LANES, &p.v[1], stream);
    } else {
        line_narrow(type, half, p.v[0], p.v[1]);
        vector_put((uint16_t *)dst + at, half, stream);
    }
}

/* pair_join of numbers that computation has rounded before: what lies halfway by chance goes away from 0. */
OMP_INLINE vec_u32 pair_join_near(line_pair p)
{
    const vec_u32 a = (vec_u32)p.v[0] + 0x8000, b = (vec_u32)p.v[1] + 0x8000;
#if defined(BSK_ISA_AVX512)
    return (vec_u32)_mm512_mask_mov_epi16((__m512i)(a >> 16), 0xaaaaaaaa, (__m512i)b);
#else
    return a >> 16 | (b & 0xffff0000u);
#endif
}

/* pair_put of such numbers. */
OMP_INLINE void pair_put_near(bsk_dtype type, void *dst, int64_t at, line_pair p, bool split,
                              bool stream)
{
    if (split) {
        const vec_u32 joined = pair_join_near(p);
        vector_put((uint16_t *)dst + at, &joined, stream);
    } else {
        pair_put(type, dst, at, p, false, stream);
    }
}

/* A number that bf16 may have. */
OMP_INLINE float plain_f32(float x)
{
    return x != x ? NAN : x;
}

/* count numbers of f32, a multiple of PAIR, in the order of split pairs, or out of it. */
static inline void pairs_split(float *restrict dst, const float *restrict src, int64_t count)
{
#if defined(BSK_ISA_AVX512)
    const __m512i step =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    for (int64_t i = 0; i < count; i += PAIR)
        for (int odd = 0; odd < 2; odd++) {
            const __m512i at = _mm512_add_epi32(step, _mm512_set1_epi32(odd));
            const __m512 v = _mm512_permutex2var_ps(_mm512_loadu_ps(src + i), at,
                                                    _mm512_loadu_ps(src + i + F32_LANES));
            const __mmask16 none = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
            _mm512_storeu_ps(dst + i + odd * F32_LANES,
                             _mm512_mask_mov_ps(v, none, _mm512_set1_ps(NAN)));
        }
#else
    for (int64_t i = 0; i < count; i += PAIR)
        for (int64_t k = 0; k < F32_LANES; k++) {
            dst[i + k] = plain_f32(src[i + 2 * k]);
            dst[i + F32_LANES + k] = plain_f32(src[i + 2 * k + 1]);
        }
#endif
}

static inline void pairs_merge(float *restrict dst, const float *restrict src, int64_t count)
{
    for (int64_t i = 0; i < count; i += PAIR)
        for (int64_t k = 0; k < F32_LANES; k++) {
            dst[i + 2 * k] = src[i + k];
            dst[i + 2 * k + 1] = src[i + F32_LANES + k];
        }
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
