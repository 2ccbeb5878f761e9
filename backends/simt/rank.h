/* The order of the k largest, and the search for the k-th: rows whose elements are factors times x,
 * less those that a mask of 0 excludes. NaN is larger than any number, and of equal elements the
 * first comes first. Include rows.h before. */

/* Numbers with the same order, and 0 below all of them. */
#undef KEY
#undef KEY_BITS
#if SIMT_CODE == 1
#define KEY      u64
#define KEY_BITS 64
#else
#define KEY      u32
#define KEY_BITS 32
#endif

typedef struct NAME(ranked_row) {
    NAME(row_of) x, mask;
    R scale;
    i32 masked;
} NAME(ranked_row);

/* An element is among the k largest if its key is larger, or equal and its position below `end`. */
typedef struct NAME(rank_cut) {
    KEY key;
    i64 end;
} NAME(rank_cut);

DEVICE KEY NAME(rank_key)(R v)
{
    const KEY sign = (KEY)1 << (KEY_BITS - 1);
    if (v != v)
        return ~(KEY)0;
#if SIMT_CODE == 1
    const KEY bits = v == 0 ? 0 : F64_AS_U64(v);
#else
    const KEY bits = v == 0 ? 0 : F32_AS_U32(v);
#endif
    return bits & sign ? ~bits : bits | sign;
}

/* The number behind a key. */
DEVICE R NAME(rank_value)(KEY key)
{
    const KEY sign = (KEY)1 << (KEY_BITS - 1);
    const KEY bits = key & sign ? key & ~sign : ~key;
#if SIMT_CODE == 1
    return I64_AS_F64((i64)bits);
#else
    return U32_AS_F32(bits);
#endif
}

/* Multiplies a run by its factors. Returns a bit for each element that is part of the row. */
DEVICE u32 NAME(rank_scale)(const NAME(ranked_row) * row, i64 run, R *v)
{
    const i32 count = run_length(row->x.count, run * VEC, VEC);
    u32 live = 0;
    if (row->masked) {
        R factor[VEC];
        NAME(row_load)(&row->mask, run, factor);
        UNROLL
        for (i32 e = 0; e < VEC; e++) {
            v[e] = v[e] * factor[e] * row->scale;
            live |= (u32)(e < count && factor[e] != 0) << e;
        }
    } else {
        UNROLL
        for (i32 e = 0; e < VEC; e++) {
            v[e] *= row->scale;
            live |= (u32)(e < count) << e;
        }
    }
    return live;
}

DEVICE u32 NAME(rank_run)(const NAME(ranked_row) * row, i64 run, R *v)
{
    NAME(row_load)(&row->x, run, v);
    return NAME(rank_scale)(row, run, v);
}

DEVICE i32 NAME(rank_in)(const NAME(rank_cut) * cut, R v, i64 at)
{
    const KEY key = NAME(rank_key)(v);
    return key > cut->key || (key == cut->key && at < cut->end);
}

/* The bits of those among the k largest. */
DEVICE u32 NAME(rank_live)(const NAME(rank_cut) * cut, i64 run, u32 live, const R *v)
{
    u32 in = 0;
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        in |= (u32)NAME(rank_in)(cut, v[e], run * VEC + e) << e;
    return in & live;
}

/* How many elements of a row are above the cut. The whole group calls it. */
DEVICE i32 NAME(rank_count)(const NAME(ranked_row) * row, i64 runs, i32 lanes,
                            LOCAL_ARG i32 *counts, const NAME(rank_cut) * cut)
{
    const i32 lane = LANE % lanes;
    i32 count = 0;
    NO_UNROLL
    for (i64 run = lane; run < runs; run += lanes) {
        R v[VEC];
        const u32 live = NAME(rank_run)(row, run, v);
        const u32 in = NAME(rank_live)(cut, run, live, v);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            count += (i32)(in >> e & 1);
    }
#if LANES > 1
    counts[LANE] = count;
    BARRIER();
    for (i32 reach = lanes / 2; reach > 0; reach /= 2) {
        if (lane < reach)
            counts[LANE] += counts[LANE + reach];
        BARRIER();
    }
    count = counts[LANE - lane];
    BARRIER();
#endif
    return count;
}

/* The cut that leaves the k largest, or all where there are no more. Where `exact` is set its key
 * and end are those of the k-th: the last of the elements that are left. */
DEVICE NAME(rank_cut) NAME(rank_kth)(const NAME(ranked_row) * row, i64 runs, i32 lanes,
                                     LOCAL_ARG i32 *counts, i64 k, i32 exact)
{
    NAME(rank_cut) cut;
    i32 left = 0; /* elements at or above cut.key */
    cut.key = 0;
    cut.end = row->x.count;
    for (i32 bit = KEY_BITS - 1; bit >= 0; bit--) {
        NAME(rank_cut) next = cut;
        next.key |= (KEY)1 << bit;
        const i32 count = NAME(rank_count)(row, runs, lanes, counts, &next);
        if (count >= k) {
            cut = next;
            left = count;
        }
        if (!exact && lanes == LANES && left == k)
            return cut;
    }
    /* positions: the smallest end that leaves k */
    i64 low = 0;
    i64 reach = 1;
    while (reach < row->x.count)
        reach *= 2;
    for (; reach > 0; reach /= 2) {
        NAME(rank_cut) next = cut;
        next.end = low + reach;
        const i32 count = NAME(rank_count)(row, runs, lanes, counts, &next);
        if (count < k)
            low += reach;
    }
    cut.end = low + 1;
    return cut;
}
