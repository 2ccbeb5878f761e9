/* Kernels of quantize and tensor_stats. The host's side (quantize.c) includes this file without
 * SIMT_T for the structs of scalars. */
#define SIMT_SINGLES
#include "map.h"

#ifdef SIMT_T
#include "philox.h"
#endif

#ifndef BSKI_SIMT_QUANTIZE_H
#define BSKI_SIMT_QUANTIZE_H

/* map_arg.option; kind holds ebits * 32 + fbits, limit the exponent. */
enum { QUANTIZE_STOCHASTIC = 1, QUANTIZE_FLUSH = 2 };

/* Numbers in stats. */
enum { STATS_MEAN, STATS_STD, STATS_MAX, STATS_SATURATED, STATS_FLUSHED };

/* Sums of numbers below and from 1 on are scaled by 2^64 and 2^-64: neither can overflow, and what
 * underflows does not count. */
enum { PART_LOW, PART_HIGH, PART_MAX, PART_SATURATED, PART_FLUSHED, STATS_PARTS };

typedef struct stats_arg {
    shape_arg shape;
    view_arg x;
    i64 count;                  /* of elements */
    i64 saturate, tiny, spread; /* NUM */
    i32 parts, bias_pad;
} stats_arg;

#endif

#ifdef SIMT_T
/* --- quantize ------------------------------------------------------------------------------- */

/* An R as bits. */
#undef BITS
#undef FRACTION
#undef BIAS
#undef SIGN
#undef BITS_OF
#undef OF_BITS
#if SIMT_CODE == 1
#define BITS       u64
#define FRACTION   52
#define BIAS       1023
#define SIGN       63
#define BITS_OF(v) F64_AS_U64(v)
#define OF_BITS(u) I64_AS_F64((i64)(u))
#else
#define BITS       u32
#define FRACTION   23
#define BIAS       127
#define SIGN       31
#define BITS_OF(v) F32_AS_U32(v)
#define OF_BITS(u) U32_AS_F32(u)
#endif

/* 2^e, denormal ones too. */
DEVICE BITS NAME(power_bits)(i32 e)
{
    return e > -BIAS ? (BITS)(e + BIAS) << FRACTION : (BITS)1 << (e + BIAS - 1 + FRACTION);
}

/* A number format: its largest and its smallest normal number, the latter's exponent. */
typedef struct NAME(format) {
    BITS most, least;
    i32 low, fbits, option;
} NAME(format);

DEVICE NAME(format) NAME(format_of)(i32 ebits, i32 fbits, i32 option, i32 exponent)
{
    NAME(format) f;
    const i32 high = exponent < -126 ? -126 : exponent > 127 ? 127 : exponent;
    f.low = high - (1 << ebits) + 2;
    f.low = f.low < -126 ? -126 : f.low;
    f.fbits = fbits;
    f.option = option;
    f.least = NAME(power_bits)(f.low);
    f.most = NAME(power_bits)(high) | (((BITS)1 << fbits) - 1) << (FRACTION - fbits);
    return f;
}

/* Whether to round away from zero what is `rest` of 2^drop, given the bit above it and 24 random
 * ones. rest < 2^(FRACTION + 1), and drop may be larger. */
DEVICE i32 NAME(rounds_up)(i32 stochastic, BITS rest, i32 drop, i32 odd, u32 random)
{
    const BITS one = 1;
    if (!stochastic) {
        const BITS half = drop > FRACTION + 1 ? 0 : one << (drop - 1);
        return half && (rest > half || (rest == half && odd));
    }
    /* rest * 2^24 / 2^drop, rounded up */
    const i32 shift = drop - 24;
    if (shift <= 0)
        return random < rest << -shift;
    if (shift > FRACTION)
        return random < (rest != 0);
    return random < (rest >> shift) + ((rest & ((one << shift) - 1)) != 0);
}

/* In whole numbers: the bits of floats are in the order of their sizes, and a carry of the fraction
 * makes the next exponent. */
DEVICE R NAME(quantized)(const NAME(format) * f, R x, u32 random)
{
    const BITS one = 1, bits = BITS_OF(x), sign = bits >> SIGN << SIGN, size = bits ^ sign;
    const i32 biased = (i32)(size >> FRACTION), power = (biased ? biased : 1) - BIAS;
    const i32 spacing = (power > f->low ? power : f->low) - f->fbits; /* its exponent */
    const i32 drop = spacing - power + FRACTION; /* bits of x below the spacing */
    const BITS digits = (size & ((one << FRACTION) - 1)) | (biased ? one << FRACTION : 0);
    const i32 stochastic = f->option & QUANTIZE_STOCHASTIC;
    BITS y = size;
    if (x != x)
        return x;
    if (drop > FRACTION) {
        y = NAME(rounds_up)(stochastic, digits, drop, 0, random) ? NAME(power_bits)(spacing) : 0;
    } else if (drop > 0) {
        const BITS rest = digits & ((one << drop) - 1);
        y -= rest;
        if (NAME(rounds_up)(stochastic, rest, drop, (i32)(digits >> drop & 1), random))
            y += one << drop;
    }
    y = y > f->most ? f->most : y;
    if ((f->option & QUANTIZE_FLUSH) && y < f->least)
        y = 0;
    return OF_BITS(y | sign);
}

/* 24 bits: the number is 2^24 times philox_uniform. */
LANE_APART u32 NAME(uniform_number)(u64 seed, u64 offset, u64 i)
{
    return philox(seed, offset, i).own >> 8;
}

/* The same of VEC elements from number `first` on, `stride` apart. Neighbours that share counters are
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
        u[e] = e > 0 && stride == 0 ? u[0]
                                    : NAME(uniform_number)(seed, offset, (u64)(first + e * stride));
}

DEVICE void NAME(quantize_run)(const map_arg *a, const NAME(format) * f, const shape_walk *w, R *v)
{
    u32 u[VEC];
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        u[e] = 0;
    if (f->option & QUANTIZE_STOCHASTIC)
        NAME(uniform_run)
    ((u64)a->seed, (u64)a->offset, shape_offset(w->at, w->rank, VEC, a->number),
     a->number[SHAPE_LAST], u);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        v[e] = NAME(quantized)(f, v[e], u[e]);
}

KERNEL(quantize, LANES)
(BUF(const u8, x0), BUF(const i32, exponent), BUF(u8, y), const map_arg a)
{
    QUEUE_WAIT();
    OPEN(const u8, x0);
    OPEN(const i32, exponent);
    OPEN(u8, y);
    const GLOBAL u8 *const x[1] = {x0};
    const NAME(format) f =
        NAME(format_of)(a.kind >> 5, a.kind & 31, a.option, exponent ? exponent[0] : a.limit);
    MAP_EACH(1, NAME(quantize_run)(&a, &f, &w, v[0]); NAME(map_store)(&a, &w, y, v[0]);)
}

/* --- tensor_stats --------------------------------------------------------------------------- */

/* What each group has found in its share of x: part is [STATS_PARTS][parts]. */
KERNEL(stats_parts, LANES)(BUF(const u8, x), BUF(R, part), const stats_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const u8, x);
    OPEN(R, part);
    const R saturate = NUM(a.saturate), tiny = NUM(a.tiny), infinity = (R)INFINITY;
    R found[STATS_PARTS];
    UNROLL
    for (i32 k = 0; k < STATS_PARTS; k++)
        found[k] = 0;
    shape_walk w;
    NO_UNROLL
    for (shape_start(&w, &a.shape, VEC, LANES); w.left > 0; shape_next(&w)) {
        const i32 count = run_length(a.shape.size[SHAPE_LAST], w.at[SHAPE_LAST] * VEC, VEC);
        R v[VEC];
        NAME(view_load)(&a.x, x, shape_offset(w.at, w.rank, VEC, a.x.stride), count, v);
        UNROLL
        for (i32 e = 0; e < VEC; e++) {
            R s = v[e] != v[e] ? infinity : MATH(fabs)(v[e]);
            s = e < count ? s : (R)0;
            found[PART_LOW] += s < 1 ? s * (R)18446744073709551616.0 : (R)0;
            found[PART_HIGH] += s < 1 ? (R)0 : s * (R)5.42101086242752217e-20;
            found[PART_MAX] = s > found[PART_MAX] ? s : found[PART_MAX];
            found[PART_SATURATED] += s >= saturate && e < count ? (R)1 : (R)0;
            found[PART_FLUSHED] += s > 0 && s < tiny ? (R)1 : (R)0;
        }
    }
    UNROLL
    for (i32 k = 0; k < STATS_PARTS; k++) {
        const R all = k == PART_MAX ? NAME(tree_max)(scratch, LANE, LANES, found[k])
                                    : NAME(tree_sum)(scratch, LANE, LANES, found[k]);
        if (LANE == 0)
            part[k * a.parts + GROUP(0)] = all;
    }
}

/* All numbers but std from the parts, by one group. */
KERNEL(stats_join, LANES)(BUF(const R, part), BUF(R, stats), const stats_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const R, part);
    OPEN(R, stats);
    R found[STATS_PARTS];
    UNROLL
    for (i32 k = 0; k < STATS_PARTS; k++) {
        R all = 0;
        for (i32 i = LANE; i < a.parts; i += LANES) {
            const R one = part[k * a.parts + i];
            all = k != PART_MAX ? all + one : one > all ? one : all;
        }
        found[k] = k == PART_MAX ? NAME(tree_max)(scratch, LANE, LANES, all)
                                 : NAME(tree_sum)(scratch, LANE, LANES, all);
    }
    if (LANE == 0) {
        const R count = a.count ? (R)a.count : (R)1;
        stats[STATS_MEAN] = found[PART_LOW] / count * (R)5.42101086242752217e-20 +
                            found[PART_HIGH] / count * (R)18446744073709551616.0;
        stats[STATS_STD] = 0;
        stats[STATS_MAX] = found[PART_MAX];
        stats[STATS_SATURATED] = found[PART_SATURATED] / count;
        stats[STATS_FLUSHED] = found[PART_FLUSHED] / count;
    }
}

/* The largest power of two that is not above v, a finite number that is not 0. */
DEVICE i32 NAME(exponent_of)(R v)
{
    const BITS size = BITS_OF(v) << 1 >> 1;
    i32 e = (i32)(size >> FRACTION) - BIAS;
    if (e == -BIAS)
        for (BITS left = size << 1; !(left >> FRACTION); left <<= 1)
            e--;
    return e;
}

/* 1 / the power of two of the maximum, so that squares neither overflow nor underflow. */
DEVICE R NAME(stats_scale)(R most)
{
    if (!(most > 0) || most - most != 0)
        return 1;
    const i32 e = NAME(exponent_of)(most);
    return OF_BITS(NAME(power_bits)(e < 1 - BIAS ? BIAS - 1 : e < BIAS ? -e : 1 - BIAS));
}

/* Squares of the distances from the mean. */
KERNEL(stats_squares, LANES)
(BUF(const u8, x), BUF(const R, stats), BUF(R, part), const stats_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const u8, x);
    OPEN(const R, stats);
    OPEN(R, part);
    const R mean = stats[STATS_MEAN], scale = NAME(stats_scale)(stats[STATS_MAX]);
    R sum = 0;
    shape_walk w;
    NO_UNROLL
    for (shape_start(&w, &a.shape, VEC, LANES); w.left > 0; shape_next(&w)) {
        const i32 count = run_length(a.shape.size[SHAPE_LAST], w.at[SHAPE_LAST] * VEC, VEC);
        R v[VEC];
        NAME(view_load)(&a.x, x, shape_offset(w.at, w.rank, VEC, a.x.stride), count, v);
        UNROLL
        for (i32 e = 0; e < VEC; e++) {
            const R d = (MATH(fabs)(v[e]) - mean) * scale;
            sum += e < count ? d * d : (R)0;
        }
    }
    sum = NAME(tree_sum)(scratch, LANE, LANES, sum);
    if (LANE == 0)
        part[GROUP(0)] = sum;
}

KERNEL(stats_finish, LANES)
(BUF(const R, part), BUF(R, stats), BUF(i32, exponent), const stats_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const R, part);
    OPEN(R, stats);
    OPEN(i32, exponent);
    R sum = 0;
    for (i32 i = LANE; i < a.parts; i += LANES)
        sum += part[i];
    sum = NAME(tree_sum)(scratch, LANE, LANES, sum);
    if (LANE == 0) {
        const R mean = stats[STATS_MEAN], most = stats[STATS_MAX], spread = NUM(a.spread);
        const R std = mean - mean != 0 ? (R)INFINITY
                                       : MATH(sqrt)(sum / (a.count ? (R)a.count : (R)1)) /
                                             NAME(stats_scale)(most);
        const R v = spread > 0 ? mean + spread * std : most;
        stats[STATS_STD] = std;
        if (exponent) {
            i32 e = v == 0 ? -126 : 127;
            if (v != 0 && v - v == 0)
                e = NAME(exponent_of)(v) + a.bias_pad;
            exponent[0] = e < -126 ? -126 : e > 127 ? 127 : e;
        }
    }
}
#endif
