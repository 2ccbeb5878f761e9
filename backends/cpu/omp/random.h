/* Runs of random words, as common/philox.h defines them. */
#ifndef BSKI_OMP_RANDOM_H
#define BSKI_OMP_RANDOM_H

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

#endif
