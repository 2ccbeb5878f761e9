/* Philox 4x32-10, the counter-based generator behind every random number in bsk. Element i of a
 * call depends on (seed, offset, i) alone, so that every device draws the same numbers. */
#ifndef BSKI_PHILOX_H
#define BSKI_PHILOX_H

#include <math.h>
#include <stdint.h>

/* Four words for counter (index, offset) under the key seed. */
static inline void bski_philox(uint64_t seed, uint64_t offset, uint64_t index, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
    uint32_t c2 = (uint32_t)offset, c3 = (uint32_t)(offset >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The word of element i: four neighbours share one counter. */
static inline uint32_t bski_philox_u32(uint64_t seed, uint64_t offset, uint64_t i)
{
    uint32_t w[4];
    bski_philox(seed, offset, i / 4, w);
    return w[i % 4];
}

/* Uniform in [0, 1), 24 bits, exact in f32. */
static inline float bski_philox_uniform(uint64_t seed, uint64_t offset, uint64_t i)
{
    return (float)(bski_philox_u32(seed, offset, i) >> 8) * 0x1p-24f;
}

/* What dropout asks of element i: a number of 16 bits, half a word. Eight neighbours share one counter;
 * the even one of two has the lower half of their word. */
static inline uint32_t bski_philox_u16(uint64_t seed, uint64_t offset, uint64_t i)
{
    return bski_philox_u32(seed, offset, i / 2) >> i % 2 * 16 & 0xffff;
}

/* Dropout keeps the elements whose number is below this: keep, from 0 to 1, in units of 2^-16. */
static inline uint32_t bski_dropout_limit(double keep)
{
    return (uint32_t)(keep * 0x1p16 + 0.5);
}

/* Standard normal by Box-Muller: elements 2j and 2j + 1 share two words. In f64, so that the host
 * value is the definition. */
static inline double bski_philox_normal(uint64_t seed, uint64_t offset, uint64_t i)
{
    uint32_t w[4];
    bski_philox(seed, offset, i / 4, w);
    uint32_t a = w[i % 4 & 2], b = w[(i % 4 & 2) + 1];
    double radius = sqrt(-2.0 * log(((double)a + 0.5) * 0x1p-32));
    double angle = 6.283185307179586 * ((double)b * 0x1p-32);
    return i & 1 ? radius * sin(angle) : radius * cos(angle);
}

#endif
