/* How kernels that reduce rows share them out: `lanes` lanes (a power of two) take a row, a group
 * takes LANES / lanes rows at a time, and lane l the runs l, l + lanes, l + 2 lanes ... of its row.
 * Packed rows, of whole runs that are aligned and of the kernel's type, stay in registers from one
 * pass to the next where they are short enough.
 *
 * Included after lanes.h. */
#undef ROW_SCRATCH
#define ROW_SCRATCH (4 * LANES) /* numbers in local memory, for row_sums and row_max */

/* Elements of a row and of the arrays that go with it, with load_part's meaning. */
typedef struct NAME(row_of) {
    const GLOBAL u8 *base;
    i64 at, stride, count;
    i32 type, vector;
} NAME(row_of);

DEVICE NAME(row_of)
    NAME(row_make)(i32 type, const GLOBAL void *base, i64 stride, i64 count, i32 vector)
{
    NAME(row_of) row;
    row.base = (const GLOBAL u8 *)base;
    row.at = 0;
    row.stride = stride;
    row.count = count;
    row.type = type;
    row.vector = vector;
    return row;
}

DEVICE void NAME(row_load)(const NAME(row_of) * row, i64 run, R *v)
{
    NAME(load_part)
    (row->type, row->base, row->at + run * VEC * row->stride, row->stride,
     run_length(row->count, run * VEC, VEC), row->vector, v);
}

DEVICE R NAME(row_total)(const R *v)
{
    R sum = 0;
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        sum += v[e];
    return sum;
}

/* exp about `most` of the elements of a run that take part, 0 for the others; returns their sum.
 * NaN, and infinity by its difference, gets into the sum, and so into the row. */
DEVICE R NAME(row_exp)(u32 live, R most, R *v)
{
    const R shift = most == LOWEST ? (R)0 : most;
    R sum = 0;
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
        v[e] = live >> e & 1 ? NAME(fast_exp_above)(v[e], shift) : (R)0;
        sum += v[e];
    }
    return sum;
}

/* scale * exp(x - shift). What is denormal is rounded once, and not flushed. */
DEVICE R NAME(row_share)(R x, R shift, R scale)
{
#if SIMT_CODE == 1
    return MATH(exp)(x - shift) * scale;
#else
    const R power = (x - shift) * exp_scale;
    const i32 deep = power < -64;
    const R share = FAST_EXP2(deep ? power + 64 : power) * scale;
    return deep ? share * 5.4210108624275222e-20f : share; /* 2^-64 */
#endif
}

/* exp of the scores `factor` * (v - most) of a run, in place of v, as row_shares takes them; returns
 * their sum times ROW_LIFT. So that small shares are not flushed, those of types of 16 bits are lifted
 * by 2^24, which costs less accuracy than the type shows; of f32 what is below 2^-64 is lifted by as
 * much and made negative, and no part of the sum, which has a 1. Both v and most may be near the
 * largest number, so their difference comes first. */
#undef ROW_LIFT
#define ROW_LIFT ((R)(SIMT_CODE > 2 ? 16777216 : 1))

DEVICE R NAME(row_powers)(R factor, R most, R *v)
{
    R sum = 0;
#if SIMT_CODE > 1
    factor *= exp_scale;
#endif
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
#if SIMT_CODE > 2
        v[e] = FAST_EXP2(FMA(v[e] - most, factor, 24.0f));
        sum += v[e];
#elif SIMT_CODE == 2
        const R power = (v[e] - most) * factor;
        const i32 deep = power < -64;
        const R lifted = FAST_EXP2(deep ? power + 64 : power);
        v[e] = deep ? -lifted : lifted;
        sum += deep ? 0 : lifted;
#else
        v[e] = MATH(exp)((v[e] - most) * factor);
        sum += v[e];
#endif
    }
    return sum;
}

/* The shares of a run from its powers; scale is 1 / their sum. */
DEVICE void NAME(row_shares)(R scale, R *v)
{
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
        v[e] *= scale;
#if SIMT_CODE == 2
        v[e] = v[e] <= 0 ? v[e] * -5.4210108624275222e-20f : v[e]; /* 2^-64 */
#endif
    }
}

/* Up to `held` raw runs of a packed row: lane, lane + lanes ..., of `runs` runs. */
DEVICE void NAME(row_hold)(i32 type, const GLOBAL T *row, i32 lane, i32 runs, i32 lanes, i32 held,
                           RAW *q)
{
    UNROLL
    for (i32 u = 0; u < held; u++)
        if (lane + u * lanes < runs)
            q[u] = NAME(load_raw)(type, row + (i64)(lane + u * lanes) * VEC);
}

/* Joins one or two numbers of each of `lanes` lanes: their sums, or the largest ones, in which NaN
 * does not count. The whole group calls it; every lane gets the result. Between two calls nothing
 * else may use scratch. The order is fixed by `lanes`. */
#undef ROW_WAYS
#define ROW_WAYS 16

DEVICE R NAME(row_join)(i32 largest, R a, R b)
{
    return largest ? MATH(fmax)(a, b) : a + b;
}

#if LANES > 1
/* Joins `ways` numbers, a power of two, that lie `step` apart, for each of `count` arrays: four at a
 * time, since more of them would take registers from the rows. */
DEVICE void NAME(row_join_ways)(const LOCAL_ARG R *p, i32 step, i32 ways, i32 largest, i32 count,
                                R *v)
{
    UNROLL
    for (i32 c = 0; c < count; c++)
        v[c] = p[c * LANES];
    NO_UNROLL
    for (i32 from = 0; from < ways; from += 4) {
        UNROLL
        for (i32 u = 0; u < 4; u++)
            if (from + u > 0 && from + u < ways) {
                UNROLL
                for (i32 c = 0; c < count; c++)
                    v[c] = NAME(row_join)(largest, v[c], p[c * LANES + (from + u) * step]);
            }
    }
}

/* The same for neighbours, of which four are a vector. */
DEVICE void NAME(row_join_near)(const LOCAL_ARG R *p, i32 ways, i32 largest, i32 count, R *v)
{
    R four[4];
    UNROLL
    for (i32 c = 0; c < count; c++) {
        NAME(local_load4)(p + c * LANES, four);
        v[c] = NAME(row_join)(largest, four[0], four[1]);
        v[c] = NAME(row_join)(largest, v[c], four[2]);
        v[c] = NAME(row_join)(largest, v[c], four[3]);
    }
    NO_UNROLL
    for (i32 from = 4; from < ways; from += 4) {
        UNROLL
        for (i32 c = 0; c < count; c++) {
            NAME(local_load4)(p + c * LANES + from, four);
            UNROLL
            for (i32 u = 0; u < 4; u++)
                v[c] = NAME(row_join)(largest, v[c], four[u]);
        }
    }
}
#endif

#if LANES > 1 && defined(WAVE)
DEVICE R NAME(row_across)(R v, i32 reach)
{
#if SIMT_CODE == 1
    return f64_across(v, reach);
#else
    return f32_across(v, reach);
#endif
}

/* Lanes of a row are `near` apart: by exchange within waves, and between them through local memory,
 * where calls in turn use two places, so that one barrier is enough. */
DEVICE void NAME(row_reduce_waves)(LOCAL_ARG R *scratch, i32 turn, i32 near, i32 lanes, i32 largest,
                                   i32 count, R *v)
{
    const i32 all = near * lanes, waves = all / WAVE;
    NO_UNROLL
    for (i32 reach = near; reach < all && reach < WAVE; reach *= 2) {
        UNROLL
        for (i32 c = 0; c < count; c++)
            v[c] = NAME(row_join)(largest, v[c], NAME(row_across)(v[c], reach));
    }
    if (waves > 1) {
        const i32 wave = LANE / WAVE, at = wave & (waves - 1);
        LOCAL_ARG R *const place =
            scratch + turn * 2 * LANES + (wave - at) * near + (LANE & (near - 1)) * waves;
        if (LANE % WAVE < near) {
            UNROLL
            for (i32 c = 0; c < count; c++)
                place[c * LANES + at] = v[c];
        }
        BARRIER();
        if (waves >= 4)
            NAME(row_join_near)(place, waves, largest, count, v);
        else
            NAME(row_join_ways)(place, 1, waves, largest, count, v);
    }
}
#endif

/* Lanes of a row are `near` apart; this is number `lane` of `lanes`, whose places in local memory
 * begin at `first`. Calls that follow each other without a barrier between them take turns: 0, 1. */
DEVICE void NAME(row_reduce_turn)(LOCAL_ARG R *scratch, i32 turn, i32 lane, i32 first, i32 near,
                                  i32 lanes, i32 largest, i32 count, R *v)
{
#if LANES > 1 && defined(WAVE)
    NAME(row_reduce_waves)(scratch, turn, near, lanes, largest, count, v);
#elif LANES > 1
    const i32 left = lanes > ROW_WAYS ? lanes / ROW_WAYS : 1;
    const i32 ways = lanes > ROW_WAYS ? ROW_WAYS : lanes, at = first + lane;
    LOCAL_ARG R *const joined = scratch + 2 * LANES;
    UNROLL
    for (i32 c = 0; c < count; c++)
        scratch[c * LANES + at] = v[c];
    BARRIER();
    if (lane < left) {
        NAME(row_join_ways)(scratch + at, left, ways, largest, count, v);
        UNROLL
        for (i32 c = 0; c < count; c++)
            joined[c * LANES + at] = v[c];
    }
    BARRIER();
    if (left >= 4)
        NAME(row_join_near)(joined + first, left, largest, count, v);
    else
        NAME(row_join_ways)(joined + first, 1, left, largest, count, v);
#endif
}

/* The same for lanes next to each other. */
DEVICE void NAME(row_reduce_in_turn)(LOCAL_ARG R *scratch, i32 turn, i32 lanes, i32 largest,
                                     i32 count, R *v)
{
    const i32 lane = LANE & (lanes - 1);
    NAME(row_reduce_turn)(scratch, turn, lane, LANE - lane, 1, lanes, largest, count, v);
}

DEVICE void NAME(row_reduce)(LOCAL_ARG R *scratch, i32 lanes, i32 largest, i32 count, R *v)
{
    NAME(row_reduce_in_turn)(scratch, 0, lanes, largest, count, v);
#if LANES > 1 && defined(WAVE)
    if (lanes > WAVE)
        BARRIER();
#endif
}

DEVICE R NAME(row_sum)(LOCAL_ARG R *scratch, i32 lanes, R v)
{
    NAME(row_reduce)(scratch, lanes, 0, 1, &v);
    return v;
}

DEVICE R NAME(row_max)(LOCAL_ARG R *scratch, i32 lanes, R v)
{
    NAME(row_reduce)(scratch, lanes, 1, 1, &v);
    return v;
}
