/* Kernels of cross_entropy. The host's side (ops.c) includes this file without SIMT_T for the struct
 * of scalars. */
#ifndef BSKI_SIMT_LOSS_H
#define BSKI_SIMT_LOSS_H

typedef struct cross_entropy_arg {
    i64 rows, classes, logits_row, dlogits_row, ignore_index;
    i64 alpha, beta, smoothing; /* NUM */
    i32 use_ignore_index, label_type, logits_type, dlogits_type, vector, dlogits_vector;
} cross_entropy_arg;

#endif

#ifdef SIMT_T
#include "lanes.h"

#if LANES == 1
#define LONG_LANES 1
#elif !defined(LONG_LANES)
#define LONG_LANES 512
#endif

#include "stream.h"

/* What a pass over a row has met: the largest logit, the sum of exp about it, the sum of what logits
 * are above the label's, each times its share. */
typedef struct NAME(row_sums) {
    R most, sum, total;
} NAME(row_sums);

/* One run more; the sum is rescaled where a larger logit is met. Elements past the end are LOWEST.
 * A NaN does not count as larger, and makes the sum NaN. */
DEVICE void NAME(row_add)(NAME(row_sums) * s, const R *v)
{
    R high = s->most, part = 0;
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        high = MATH(fmax)(high, v[e]);
    if (high > s->most) {
        s->sum *= NAME(fast_exp)(s->most - high);
        s->most = high;
    }
    const R shift = s->most == LOWEST ? (R)0 : s->most;
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        part += NAME(fast_exp_above)(v[e], shift);
    s->sum += part;
}

/* The lanes' maxima and sums in every lane, joined by levels of LOSS_WAYS; scratch has LOSS_SCRATCH
 * numbers, which nothing else uses until the next barrier but one. */
#undef LOSS_WAYS
#define LOSS_WAYS 8
#undef LOSS_SCRATCH
#define LOSS_SCRATCH(lanes) (3 * (lanes))

DEVICE void NAME(row_sums_ways)(const LOCAL_ARG R *most, const LOCAL_ARG R *sum, i32 step, i32 ways,
                                NAME(row_sums) * s)
{
    s->most = most[0];
    s->sum = 0;
    UNROLL
    for (i32 k = 1; k < ways; k++)
        s->most = MATH(fmax)(s->most, most[k * step]);
    UNROLL
    for (i32 k = 0; k < ways; k++) {
        const R part = sum[k * step], below = most[k * step] - s->most;
        s->sum += below < 0 ? part * NAME(fast_exp)(below) : part;
    }
}

DEVICE void NAME(row_sums_join)(LOCAL_ARG R *scratch, i32 lanes, NAME(row_sums) * s)
{
#if LANES > 1
    i32 parts = lanes;
    scratch[LANE] = s->most;
    scratch[parts + LANE] = s->sum;
    BARRIER();
    UNROLL
    for (; parts > LOSS_WAYS; parts /= LOSS_WAYS) {
        const i32 left = parts / LOSS_WAYS;
        LOCAL_ARG R *const joined = scratch + 2 * parts;
        if (LANE < left) {
            NAME(row_sums_ways)(scratch + LANE, scratch + parts + LANE, left, LOSS_WAYS, s);
            joined[LANE] = s->most;
            joined[left + LANE] = s->sum;
        }
        BARRIER();
        scratch = joined;
    }
    NAME(row_sums_ways)(scratch, scratch + parts, 1, parts, s);
#endif
}

/* One run of a row. */
DEVICE void NAME(row_load)(const cross_entropy_arg *a, const GLOBAL T *logits, i64 n, i64 run, R *v)
{
    const i32 count = run_length(a->classes, run * VEC, VEC);
    NAME(load_part)
    (HALF_TYPE(a->logits_type), logits, n * a->logits_row + run * VEC, 1, count, a->vector, v);
    if (count < VEC) {
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] = e < count ? v[e] : LOWEST;
    }
}

DEVICE void NAME(row_store)(const cross_entropy_arg *a, GLOBAL u8 *dlogits, i64 n, i64 run,
                            const R *v)
{
    NAME(stream_part)
    (a->dlogits_type, dlogits, n * a->dlogits_row + run * VEC, 1,
     run_length(a->classes, run * VEC, VEC), a->dlogits_vector, v);
}

/* The same with beta * what is there added to v. */
DEVICE void NAME(row_blend)(const cross_entropy_arg *a, GLOBAL u8 *dlogits, i64 n, i64 run, R *v)
{
    const R beta = NUM(a->beta);
    if (beta != 0) {
        R old[VEC];
        NAME(load_part)
        (a->dlogits_type, dlogits, n * a->dlogits_row + run * VEC, 1,
         run_length(a->classes, run * VEC, VEC), a->dlogits_vector, old);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] = FMA(beta, old[e], v[e]);
    }
    NAME(row_store)(a, dlogits, n, run, v);
}

/* Run u of four, which are taken one after the other. */
DEVICE RAW NAME(four_turn)(RAW *q, i32 u)
{
#if LANES == 1
    return q[u];
#else
    const RAW first = q[0];
    UNROLL
    for (i32 next = 1; next < 4; next++)
        q[next - 1] = q[next];
    return first;
#endif
}

/* How many times all lanes take four whole runs of a row. */
DEVICE i64 NAME(row_fours)(const cross_entropy_arg *a, i32 lanes)
{
    return a->vector ? a->classes / VEC / (4 * lanes) : 0;
}

/* What the gradient of a row takes: factor * (exp(x - most) / sum - t), where t is `base` but for
 * the label. */
typedef struct NAME(row_slope) {
    R most, scale, factor, base, label_t;
    i64 label_run;
    i32 label_at;
} NAME(row_slope);

/* The gradient of a run in place of its logits. */
DEVICE void NAME(slope_of_run)(const NAME(row_slope) * s, i64 run, R *v)
{
    if (run == s->label_run) {
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] = s->factor * (NAME(exp_above)(v[e], s->most) * s->scale -
                                (e == s->label_at ? s->label_t : s->base));
    } else {
        UNROLL
        for (i32 e = 0; e < VEC; e++) /* factor may be infinite, base 0 */
            v[e] = s->factor * FMA(NAME(fast_exp_above)(v[e], s->most), s->scale, -s->base);
    }
}

/* dlogits of a row from its logits, from its end on: what was read last is still in the cache. Of
 * the first runs `kept` for each lane lie in `keep`. Runs are taken by four where beta is 0. A label
 * of -VEC is none. */
DEVICE void NAME(row_gradient)(const cross_entropy_arg *a, const GLOBAL T *logits,
                               GLOBAL u8 *dlogits, i64 n, i64 label, R most, R sum, R factor,
                               const LOCAL_ARG RAW *keep, i32 kept, i32 lanes)
{
    const i64 runs = (a->classes + VEC - 1) / VEC;
    const i64 fours = NUM(a->beta) != 0 ? 0 : NAME(row_fours)(a, lanes);
    const R smoothing = NUM(a->smoothing);
    NAME(row_slope) s;
    s.most = most;
    s.scale = 1 / sum;
    s.factor = factor;
    s.base = label < 0 ? (R)0 : smoothing / (R)a->classes; /* +0 where nothing counts */
    s.label_t = s.base + (1 - smoothing);
    s.label_run = label / VEC;
    s.label_at = (i32)(label % VEC);
    NO_UNROLL
    for (i64 r = LANE + fours * 4 * lanes; r < runs; r += lanes) {
        R v[VEC];
        NAME(row_load)(a, logits, n, r, v);
        NAME(slope_of_run)(&s, r, v);
        NAME(row_blend)(a, dlogits, n, r, v);
    }
    NO_UNROLL
    for (i64 four = fours - 1; four >= 0; four--) {
        const i64 r = LANE + four * 4 * lanes;
        RAW q[4];
        UNROLL
        for (i32 u = 0; u < 4; u++)
            if (four == 0 && u < kept)
                q[u] = keep[u * lanes + LANE];
            else
                q[u] = NAME(load_raw)(a->logits_type,
                                      logits + n * a->logits_row + (r + u * lanes) * VEC);
        UNROLL_RUNS
        for (i32 u = 0; u < 4; u++) {
            R v[VEC];
            NAME(unpack_run)(a->logits_type, NAME(four_turn)(q, u), v);
            NAME(slope_of_run)(&s, r + u * lanes, v);
            NAME(row_store)(a, dlogits, n, r + u * lanes, v);
        }
    }
}

/* Half of what v is above the pivot: all of it may be beyond R. */
DEVICE R NAME(half_above)(R v, R pivot)
{
    return FMA(v, (R)0.5, (R)-0.5 * pivot);
}

/* Rows to groups: a pass for the maximum and the sum of exp, and a pass for the gradient, which
 * finds the row in the cache. */
DEVICE void NAME(cross_entropy_rows)(const cross_entropy_arg *a, const GLOBAL T *logits,
                                     const GLOBAL u8 *labels, GLOBAL R *loss, GLOBAL u8 *dlogits,
                                     const GLOBAL R *dloss, LOCAL_ARG R *scratch,
                                     LOCAL_ARG RAW *keep, i32 kept, i32 lanes)
{
    const i64 runs = (a->classes + VEC - 1) / VEC;
    const R alpha = NUM(a->alpha), smoothing = NUM(a->smoothing);
    const R even = 2 * (smoothing / (R)a->classes); /* of half of a logit, which R holds */
    i64 next = GROUP(0) < a->rows ? load_index(a->label_type, labels, GROUP(0)) : 0;
    for (i64 n = GROUP(0); n < a->rows; n += GROUPS(0)) {
        const i64 label = next;
        if (n + GROUPS(0) < a->rows)
            next = load_index(a->label_type, labels, n + GROUPS(0));
        if (label < 0 || label >= a->classes || (a->use_ignore_index && label == a->ignore_index)) {
            for (i64 r = LANE; dlogits && r < runs; r += lanes) {
                R v[VEC];
                for (i32 e = 0; e < VEC; e++)
                    v[e] = 0;
                NAME(row_blend)(a, dlogits, n, r, v);
            }
            if (loss && LANE == 0)
                loss[n] = 0;
            continue;
        }
        const R chosen =
            LANE == 0 || smoothing > 0
                ? NAME(load_r)(HALF_TYPE(a->logits_type), logits, n * a->logits_row + label)
                : (R)0;
        const R pivot = chosen > LOWEST && chosen < -LOWEST ? chosen : (R)0;
        NAME(row_sums) s;
        s.most = LOWEST;
        s.sum = s.total = 0;
        i64 r = LANE;
        NO_UNROLL
        for (i64 four = NAME(row_fours)(a, lanes); four > 0; four--, r += 4 * lanes) {
            RAW q[4];
            UNROLL
            for (i32 u = 0; u < 4; u++)
                q[u] = NAME(load_raw)(a->logits_type,
                                      logits + n * a->logits_row + (r + u * lanes) * VEC);
            UNROLL
            for (i32 u = 0; u < kept; u++)
                if (r < lanes)
                    keep[u * lanes + LANE] = q[u];
            UNROLL_RUNS
            for (i32 u = 0; u < 4; u++) {
                R v[VEC];
                NAME(unpack_run)(a->logits_type, NAME(four_turn)(q, u), v);
                NAME(row_add)(&s, v);
                for (i32 e = 0; smoothing > 0 && e < VEC; e++)
                    s.total += even * NAME(half_above)(v[e], pivot);
            }
        }
        NO_UNROLL
        for (; r < runs; r += lanes) {
            const i32 count = run_length(a->classes, r * VEC, VEC);
            R v[VEC];
            NAME(row_load)(a, logits, n, r, v);
            NAME(row_add)(&s, v);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                s.total += e < count ? even * NAME(half_above)(v[e], pivot) : (R)0;
        }
        GLOBAL_SYNC(); /* dlogits may be logits */
        NAME(row_sums_join)(scratch, lanes, &s);
        const R most = s.most;
        if (smoothing > 0)
            s.total = NAME(tree_sum)(scratch, LANE, lanes, s.total);
        const i32 masked = s.sum == 0; /* only -infinity: zeros */
        if (loss && LANE == 0 && masked)
            loss[n] = 0;
        else if (loss && LANE == 0) {
            R l = MATH(log)(s.sum) - (1 - smoothing) * (chosen - most);
            if (smoothing > 0)
                l -= s.total + smoothing * (pivot - most);
            loss[n] = l;
        }
        const R factor = masked ? (R)0 : dloss ? alpha * dloss[n] : alpha;
        if (dlogits)
            NAME(row_gradient)
        (a, logits, dlogits, n, masked ? -VEC : label, masked ? (R)0 : most, masked ? (R)1 : s.sum,
         factor, keep, kept, lanes);
    }
}

#undef CROSS_ENTROPY
#define CROSS_ENTROPY(name, lanes, kept)                                                           \
    KERNEL(name, lanes)                                                                            \
    (BUF(const T, logits), BUF(const u8, labels), BUF(R, loss), BUF(u8, dlogits),                  \
     BUF(const R, dloss), const cross_entropy_arg a)                                               \
    {                                                                                              \
        QUEUE_WAIT();                                                                              \
        LOCAL R scratch[LOSS_SCRATCH(lanes)];                                                      \
        LOCAL RAW keep[(kept) > 0 ? (kept) * (lanes) : 1];                                         \
        OPEN(const T, logits);                                                                     \
        OPEN(const u8, labels);                                                                    \
        OPEN(R, loss);                                                                             \
        OPEN(u8, dlogits);                                                                         \
        OPEN(const R, dloss);                                                                      \
        NAME(cross_entropy_rows)                                                                   \
        (&a, logits, labels, loss, dlogits, dloss, scratch, keep, kept, lanes);                    \
    }

/* For long rows with a gradient: few rows at a time, so that they stay in the cache, and all lanes
 * busy. What is kept of a row is limited by local memory: two groups of a unit want theirs, which is
 * 64 KiB where nothing else is known. */
#undef LOSS_KEPT
#define LOSS_KEPT (SIMT_NVIDIA >= 80 ? 4 : 3)
CROSS_ENTROPY(cross_entropy, LANES, 0)
CROSS_ENTROPY(cross_entropy_long, LONG_LANES, LONG_LANES == 1 ? 0 : LOSS_KEPT)

#endif
