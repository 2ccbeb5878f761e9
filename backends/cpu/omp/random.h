/* Runs of random words, as common/philox.h defines them. */
#ifndef BSKI_OMP_RANDOM_H
#define BSKI_OMP_RANDOM_H

#include <stdbool.h>

#include <common/philox.h>

#include "isa.h"

/* Words that random_words may write beyond the run. */
enum { RANDOM_SLACK = 136 };

#if defined(BSK_ISA_AVX512) || defined(BSK_ISA_AVX2)

#if defined(BSK_ISA_AVX512)
#define RV(op)          _mm512_##op
#define RVI(op)         _mm512_##op##_si512
#define random_splat(x) _mm512_set1_epi64((long long)(x))
typedef __m512i random_vec;
#define random_order ((random_vec){0, 4, 1, 5, 2, 6, 3, 7})

OMP_INLINE random_vec random_xor3(random_vec a, random_vec b, random_vec c)
{
    return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}
#else
#define RV(op)          _mm256_##op
#define RVI(op)         _mm256_##op##_si256
#define random_splat(x) _mm256_set1_epi64x((long long)(x))
typedef __m256i random_vec;
#define random_order    ((random_vec){0, 2, 1, 3})

OMP_INLINE random_vec random_xor3(random_vec a, random_vec b, random_vec c)
{
    return RVI(xor)(RVI(xor)(a, b), c);
}
#endif

/* Counters of a vector; and of a step: as many vectors as there are registers for, since the rounds of
 * each wait for one another. */
enum { COUNTERS = VEC_BYTES / 8, STATES = VEC_BYTES / 16, RANDOM_LANES = STATES * COUNTERS };

typedef struct random_state {
    random_vec c0, c1, c2, c3;
} random_state;

/* One counter in each 64-bit lane. Only the lower halves of the lanes count: products read no more,
 * and what stands above them is dropped at the end. Counters are dealt out to the lanes such that
 * interleaving pairs of words puts them in order. */
OMP_INLINE random_state random_begin(uint64_t offset, uint64_t counter)
{
    const random_vec c0 = RV(add_epi64)(random_splat(counter), random_order);
    return (random_state){c0, RV(srli_epi64)(c0, 32), random_splat((uint32_t)offset),
                          random_splat(offset >> 32)};
}

/* The upper half of each lane in the lower one, by the unit that does not multiply. */
OMP_INLINE random_vec random_upper(random_vec p)
{
    return RV(shuffle_epi32)(p, 0xf5);
}

OMP_INLINE void random_round(random_state *s, random_vec k0, random_vec k1)
{
    const random_vec p0 = RV(mul_epu32)(s->c0, random_splat(0xD2511F53));
    const random_vec p1 = RV(mul_epu32)(s->c2, random_splat(0xCD9E8D57));
    s->c0 = random_xor3(random_upper(p1), s->c1, k0);
    s->c2 = random_xor3(random_upper(p0), s->c3, k1);
    s->c1 = p1;
    s->c3 = p0;
}

OMP_INLINE void random_end(const random_state *s, uint32_t *words)
{
    const random_vec low = random_splat(0xffffffff);
    const random_vec a = RVI(or)(RVI(and)(s->c0, low), RV(slli_epi64)(s->c1, 32));
    const random_vec b = RVI(or)(RVI(and)(s->c2, low), RV(slli_epi64)(s->c3, 32));
    RVI(storeu)((void *)words, RV(unpacklo_epi64)(a, b));
    RVI(storeu)((void *)(words + VEC_BYTES / 4), RV(unpackhi_epi64)(a, b));
}

OMP_INLINE void random_vectors(uint64_t seed, uint64_t offset, uint64_t counter, uint32_t *words)
{
    random_state s[STATES];
    random_vec k0 = random_splat((uint32_t)seed), k1 = random_splat(seed >> 32);
    _Pragma("GCC unroll 4") for (int i = 0; i < STATES; i++) s[i] =
        random_begin(offset, counter + (uint64_t)i * COUNTERS);
    _Pragma("GCC unroll 10") for (int round = 0; round < 10; round++)
    {
        _Pragma("GCC unroll 4") for (int i = 0; i < STATES; i++) random_round(&s[i], k0, k1);
        k0 = RV(add_epi32)(k0, random_splat(0x9E3779B9));
        k1 = RV(add_epi32)(k1, random_splat(0xBB67AE85));
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < STATES; i++)
        random_end(&s[i], words + 4 * COUNTERS * i);
}
#undef RV
#undef RVI
#undef random_splat
#undef random_order

#else

enum { RANDOM_LANES = 1 };

OMP_INLINE void random_vectors(uint64_t seed, uint64_t offset, uint64_t counter, uint32_t *words)
{
    bski_philox(seed, offset, counter, words);
}

#endif

/* The words of elements first .. first + count, somewhere in a buffer of count + RANDOM_SLACK. */
static inline const uint32_t *random_words(uint64_t seed, uint64_t offset, uint64_t first,
                                           int64_t count, uint32_t *buffer)
{
    const int64_t skip = (int64_t)(first % 4);
    for (int64_t i = 0; i < skip + count; i += 4 * RANDOM_LANES)
        random_vectors(seed, offset, first / 4 + (uint64_t)i / 4, buffer + i);
    return buffer + skip;
}

/* numbers[i] = bski_philox_u16 of element first + i; words: a buffer of count / 2 + 2 + RANDOM_SLACK. */
static inline void random_halves(uint64_t seed, uint64_t offset, uint64_t first, int64_t count,
                                 uint32_t *words, uint32_t *restrict numbers)
{
    const int64_t odd = (int64_t)(first % 2);
    const uint32_t *word = random_words(seed, offset, first / 2, (odd + count + 1) / 2, words);
    if (odd && count)
        numbers[0] = *word++ >> 16;
    for (int64_t i = odd; i + 1 < count; i += 2, word++) {
        numbers[i] = *word & 0xffff;
        numbers[i + 1] = *word >> 16;
    }
    if ((count - odd) % 2)
        numbers[count - 1] = *word & 0xffff;
}

#if defined(BSK_ISA_AVX512)
/* --- the words of a batch of counters, in registers ------------------------------------------- */

/* Pairs of vectors of words: four keep the units busy while the rounds of each wait for one another, and
 * all that they need stays in registers. */
enum { BATCH_PAIRS = 4 };

#define PHILOX_0 0xD2511F53u
#define PHILOX_1 0xCD9E8D57u

/* The keys of all rounds, and what the first two rounds have in common where counters agree in their
 * upper half: the offset is the same for all, so one product of each is. */
typedef struct random_batch {
    uint64_t upper; /* of the counters */
    uint32_t k0[10], k1[10];
    uint32_t to_c2, to_c0, to_c2_next, to_c2_last; /* by rounds 0, 1, 1 and 2 */
} random_batch;

static inline void random_batch_begin(random_batch *b, uint64_t seed, uint64_t offset,
                                      uint64_t upper)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        b->k0[round] = k0;
        b->k1[round] = k1;
    }
    const uint64_t p1 = (uint64_t)PHILOX_1 * (uint32_t)offset;
    const uint32_t c0 = (uint32_t)(p1 >> 32) ^ (uint32_t)upper ^ b->k0[0];
    const uint64_t p0 = (uint64_t)PHILOX_0 * c0;
    b->upper = upper;
    b->to_c2 = (uint32_t)(offset >> 32) ^ b->k1[0];
    b->to_c0 = (uint32_t)p1 ^ b->k0[1];
    b->to_c2_next = (uint32_t)(p0 >> 32) ^ b->k1[1];
    b->to_c2_last = (uint32_t)p0 ^ b->k1[2];
}

OMP_INLINE __m512i batch_xor(__m512i a, __m512i b, uint32_t key)
{
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi32((int)key), 0x96);
}

OMP_INLINE __m512i batch_upper(__m512i p)
{
    return _mm512_shuffle_epi32(p, 0xf5);
}

OMP_INLINE __m512i batch_times(__m512i c, uint32_t factor)
{
    return _mm512_mul_epu32(c, _mm512_set1_epi64((long long)factor));
}

/* The first three rounds of the counters in the lower halves of c0. */
OMP_INLINE void batch_begin(const random_batch *b, random_state *s)
{
    const __m512i p0 = batch_times(s->c0, PHILOX_0), zero = _mm512_setzero_si512();
    const __m512i c2 = batch_xor(batch_upper(p0), zero, b->to_c2), p1 = batch_times(c2, PHILOX_1);
    const __m512i next0 = batch_xor(batch_upper(p1), zero, b->to_c0);
    const __m512i next2 = batch_xor(p0, zero, b->to_c2_next);
    s->c3 = batch_times(next0, PHILOX_0);
    s->c1 = batch_times(next2, PHILOX_1);
    s->c0 = batch_xor(batch_upper(s->c1), p1, b->k0[2]);
    s->c2 = batch_xor(batch_upper(s->c3), zero, b->to_c2_last);
}

OMP_INLINE void batch_round(const random_batch *b, random_state *s, int round)
{
    const __m512i p0 = batch_times(s->c0, PHILOX_0), p1 = batch_times(s->c2, PHILOX_1);
    s->c0 = batch_xor(batch_upper(p1), s->c1, b->k0[round]);
    s->c2 = batch_xor(batch_upper(p0), s->c3, b->k1[round]);
    s->c1 = p1;
    s->c3 = p0;
}

/* The last one: words 0 and 2 of each counter beside each other in c0, words 1 and 3 in c1. */
OMP_INLINE void batch_end(const random_batch *b, random_state *s)
{
    enum { LOWER = 0x5555, UPPER = 0xaaaa };
    const __m512i p0 = batch_times(s->c0, PHILOX_0), p1 = batch_times(s->c2, PHILOX_1);
    const __m512i key = _mm512_set1_epi64((long long)((uint64_t)b->k1[9] << 32 | b->k0[9]));
    const __m512i high = _mm512_mask_shuffle_epi32(p0, LOWER, p1, 0xf5);
    const __m512i low = _mm512_mask_shuffle_epi32(s->c1, UPPER, s->c3, 0xa0);
    s->c0 = _mm512_ternarylogic_epi32(high, low, key, 0x96);
    s->c1 = _mm512_mask_shuffle_epi32(p1, UPPER, p0, 0xa0);
}

/* The words of `counter` and what follows it. All the counters have the upper half that b was made for. */
OMP_INLINE void random_pairs(const random_batch *b, uint64_t counter, __m512i words[BATCH_PAIRS][2])
{
    const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    random_state s[BATCH_PAIRS];
    _Pragma("GCC unroll 4") for (int i = 0; i < BATCH_PAIRS; i++)
    {
        s[i].c0 =
            _mm512_add_epi64(order, _mm512_set1_epi64((long long)(counter + 8 * (uint64_t)i)));
        batch_begin(b, &s[i]);
    }
    _Pragma("GCC unroll 6") for (int round = 3; round < 9; round++)
        _Pragma("GCC unroll 4") for (int i = 0; i < BATCH_PAIRS; i++) batch_round(b, &s[i], round);
    _Pragma("GCC unroll 4") for (int i = 0; i < BATCH_PAIRS; i++)
    {
        batch_end(b, &s[i]);
        words[i][0] = _mm512_unpacklo_epi32(s[i].c0, s[i].c1);
        words[i][1] = _mm512_unpackhi_epi32(s[i].c0, s[i].c1);
    }
}
#endif

#endif
