/* Philox 4x32-10 and the numbers drawn from it: the device's side of common/philox.h, bit for bit
 * up to the uniform numbers. Include after type.h; normal numbers are made in R. */
#ifndef BSKI_SIMT_PHILOX_H
#define BSKI_SIMT_PHILOX_H

/* The four words of a counter: those of elements 4 index to 4 index + 3. */
DEVICE void philox_block(u64 seed, u64 offset, u64 index, u32 *word)
{
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32), c0 = (u32)index, c1 = (u32)(index >> 32);
    u32 c2 = (u32)offset, c3 = (u32)(offset >> 32);
    UNROLL
    for (i32 round = 0; round < 10; round++) {
        u32 high0, high1;
        const u32 low0 = u32_multiply(0xD2511F53u, c0, &high0);
        const u32 low1 = u32_multiply(0xCD9E8D57u, c2, &high1);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    word[0] = c0;
    word[1] = c1;
    word[2] = c2;
    word[3] = c3;
}

/* Words a and b of the pair that element i shares with its neighbour i ^ 1, and element i's own
 * word of the four of its counter. */
typedef struct philox_words {
    u32 a, b, own;
} philox_words;

DEVICE philox_words philox(u64 seed, u64 offset, u64 i)
{
    u32 c[4];
    philox_words w;
    philox_block(seed, offset, i / 4, c);
    w.a = i & 2 ? c[2] : c[0];
    w.b = i & 2 ? c[3] : c[1];
    w.own = i & 1 ? w.b : w.a;
    return w;
}

/* The 16 bits of element i, of the words of the eight elements that share its counter. */
DEVICE u32 philox_half(const u32 *word, u32 i)
{
    const u32 a = i & 4 ? word[2] : word[0], b = i & 4 ? word[3] : word[1];
    return (i & 2 ? b : a) >> (i & 1) * 16 & 0xffff;
}

/* Uniform in [0, 1), 24 bits. */
DEVICE f32 philox_uniform(u64 seed, u64 offset, u64 i)
{
    return (f32)(philox(seed, offset, i).own >> 8) * 5.9604644775390625e-8f;
}

/* Box-Muller in f32, with a relative error of a few units everywhere: the logarithm is taken from
 * the side where its argument is exact, and the angle is reduced to an eighth of a turn while it is
 * still an integer. */
DEVICE f32 normal_f32(philox_words w, i32 odd)
{
    const f32 log_u = w.a < 0x80000000u
                          ? MATH(log)(((f32)w.a + 0.5f) * 2.3283064365386963e-10f)
                          : MATH(log1p)(-(((f32)~w.a + 0.5f) * 2.3283064365386963e-10f));
    const f32 radius = MATH(sqrt)(-2.0f * log_u);
    const u32 quarter = (w.b + 0x20000000u) >> 30;
    const f32 x = (f32)(i32)(w.b - (quarter << 30)) * 1.46291807926715968e-9f; /* 2 pi / 2^32 */
    const f32 x2 = x * x;
    const f32 sine =
        x + x * x2 * (-1.6666654611e-1f + x2 * (8.3321608736e-3f + x2 * -1.9515295891e-4f));
    const f32 cosine =
        1 - 0.5f * x2 +
        x2 * x2 *
            (4.166664568298827e-2f + x2 * (-1.388731625493765e-3f + x2 * 2.443315711809948e-5f));
    const u32 turn = odd ? quarter + 3 : quarter; /* sin(x) = cos(x - pi / 2) */
    const f32 value = turn & 1 ? sine : cosine;
    return radius * ((turn + 1) & 2 ? -value : value);
}

#ifdef SIMT_HAS_F64
DEVICE f64 normal_f64(philox_words w, i32 odd)
{
    const f64 radius = MATH(sqrt)(-2.0 * MATH(log)(((f64)w.a + 0.5) * 2.3283064365386963e-10));
    const f64 angle = 6.283185307179586 * ((f64)w.b * 2.3283064365386963e-10);
    return radius * (odd ? MATH(sin)(angle) : MATH(cos)(angle));
}
#endif

#endif

#undef NORMAL
#if SIMT_CODE == 1
#define NORMAL(seed, i) normal_f64(philox(seed, 0, i), (i32)((i)&1))
#else
#define NORMAL(seed, i) normal_f32(philox(seed, 0, i), (i32)((i)&1))
#endif
