/* Random numbers for the elements of a run, for the type that type.h set; after shape.h. */
#include "philox.h"

#ifndef BSKI_SIMT_UNIFORM_H
#define BSKI_SIMT_UNIFORM_H

/* 24 bits: the number is 2^24 times philox_uniform. */
#if LANES > 1
DEVICE_APART
#else
DEVICE
#endif
u32 philox_number(u64 seed, u64 offset, u64 i)
{
    return philox(seed, offset, i).own >> 8;
}

#endif

/* Those of VEC elements from number `first` on, `stride` apart. Neighbours that share counters are
 * drawn together. */
DEVICE void NAME(uniform_run)(u64 seed, u64 offset, i64 first, i64 stride, u32 *u)
{
    const i32 each = VEC < 4 ? VEC : 4; /* of one counter */
    if (stride == 1 && first % each == 0) {
        UNROLL
        for (i32 e = 0; e < VEC; e += each) {
            u32 word[4];
            philox_block(seed, offset, (u64)(first + e) / 4, word);
            UNROLL
            for (i32 i = 0; i < each; i++)
                u[e + i] = (each < 4 && first & 2 ? word[2 + i] : word[i]) >> 8;
        }
        return;
    }
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        u[e] = e > 0 && stride == 0 ? u[0] : philox_number(seed, offset, (u64)(first + e * stride));
}

/* The words of VEC neighbours: run number `run` of them. What depends on the upper half of counters
 * and on the key alone is the same for all runs, and is not computed again. */
DEVICE void NAME(word_run)(u64 seed, u64 offset, u32 run, u32 *word)
{
#if VEC < 4
    u32 four[4];
    philox_block(seed, offset, run / (4 / VEC), four);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        word[e] = run % (4 / VEC) ? four[VEC + e] : four[e];
#else
    UNROLL
    for (i32 e = 0; e < VEC; e += 4)
        philox_block(seed, offset, run * (u32)(VEC / 4) + (u32)e / 4, word + e);
#endif
}
