/* Kernels of cross_entropy and adam, for the type that type.h set. */

#undef LOWEST
#define LOWEST (-(R)INFINITY)

/* What a pass over a row has met: the largest logit, the sum of exp about it, the sum of logits. */
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
    const R shift = s->most == LOWEST ? (R)0 : s->most, scaled = shift * exp_scale;
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        part += NAME(fast_exp_above)(v[e], shift, scaled);
    s->sum += part;
}

/* One run of a row. */
DEVICE void NAME(row_load)(const cross_entropy_arg *a, const GLOBAL T *logits, i64 n, i64 run, R *v)
{
    const i32 count = run_length(a->classes, run * VEC, VEC);
    NAME(load_part)(SIMT_CODE, logits, n * a->logits_row + run * VEC, 1, count, a->vector, v);
    if (count < VEC) {
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] = e < count ? v[e] : LOWEST;
    }
}

DEVICE void NAME(row_store)(const cross_entropy_arg *a, GLOBAL u8 *dlogits, i64 n, i64 run,
                            const R *v)
{
    NAME(store_part)
    (a->dlogits_type, dlogits, n * a->dlogits_row + run * VEC, 1,
     run_length(a->classes, run * VEC, VEC), a->dlogits_vector, v);
}

/* How many times all lanes take four whole runs of a row. */
DEVICE i64 NAME(row_fours)(const cross_entropy_arg *a, i32 lanes)
{
    return a->vector ? a->classes / VEC / (4 * lanes) : 0;
}

/* What the gradient of a row takes: factor * (exp(x - most) / sum - t), where t is `base` but for
 * the label. */
typedef struct NAME(row_slope) {
    R most, scaled, scale, factor, base, label_t;
    i64 label_run;
    i32 label_at;
} NAME(row_slope);

/* The gradient of a run in place of its logits. */
DEVICE void NAME(slope_of_run)(const NAME(row_slope) * s, i64 run, R *v)
{
    if (run == s->label_run) {
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] = s->factor * (NAME(exp_above)(v[e], s->most, s->scaled) * s->scale -
                                (e == s->label_at ? s->label_t : s->base));
    } else {
        const R gain = s->factor * s->scale, lift = s->factor * s->base;
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] = FMA(NAME(fast_exp_above)(v[e], s->most, s->scaled), gain, -lift);
    }
}

/* dlogits of a row from its logits, from its end on: what was read last is still in the cache. Of
 * the first runs `kept` for each lane lie in `keep`. */
DEVICE void NAME(row_gradient)(const cross_entropy_arg *a, const GLOBAL T *logits,
                               GLOBAL u8 *dlogits, i64 n, i64 label, R most, R sum, R factor,
                               const LOCAL_ARG RAW *keep, i32 kept, i32 lanes)
{
    const i64 runs = (a->classes + VEC - 1) / VEC, fours = NAME(row_fours)(a, lanes);
    const R smoothing = NUM(a->smoothing);
    NAME(row_slope) s;
    s.most = most;
    s.scaled = most * exp_scale;
    s.scale = 1 / sum;
    s.factor = factor;
    s.base = smoothing / (R)a->classes;
    s.label_t = s.base + (1 - smoothing);
    s.label_run = label / VEC;
    s.label_at = (i32)(label % VEC);
    NO_UNROLL
    for (i64 r = LANE + fours * 4 * lanes; r < runs; r += lanes) {
        R v[VEC];
        NAME(row_load)(a, logits, n, r, v);
        NAME(slope_of_run)(&s, r, v);
        NAME(row_store)(a, dlogits, n, r, v);
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
                q[u] = NAME(load_raw)(logits + n * a->logits_row + (r + u * lanes) * VEC);
        UNROLL
        for (i32 u = 0; u < 4; u++) {
            R v[VEC];
            NAME(unpack_run)(q[u], v);
            NAME(slope_of_run)(&s, r + u * lanes, v);
            NAME(row_store)(a, dlogits, n, r + u * lanes, v);
        }
    }
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
    for (i64 n = GROUP(0); n < a->rows; n += GROUPS(0)) {
        const i64 label = load_index(a->label_type, labels, n);
        if (label < 0 || label >= a->classes || (a->use_ignore_index && label == a->ignore_index)) {
            R zero[VEC];
            for (i32 e = 0; e < VEC; e++)
                zero[e] = 0;
            for (i64 r = LANE; dlogits && r < runs; r += lanes)
                NAME(row_store)(a, dlogits, n, r, zero);
            if (loss && LANE == 0)
                loss[n] = 0;
            continue;
        }
        NAME(row_sums) s;
        s.most = LOWEST;
        s.sum = s.total = 0;
        i64 r = LANE;
        NO_UNROLL
        for (i64 four = NAME(row_fours)(a, lanes); four > 0; four--, r += 4 * lanes) {
            RAW q[4];
            UNROLL
            for (i32 u = 0; u < 4; u++)
                q[u] = NAME(load_raw)(logits + n * a->logits_row + (r + u * lanes) * VEC);
            UNROLL
            for (i32 u = 0; u < kept; u++)
                if (r < lanes)
                    keep[u * lanes + LANE] = q[u];
            UNROLL
            for (i32 u = 0; u < 4; u++) {
                R v[VEC];
                NAME(unpack_run)(q[u], v);
                NAME(row_add)(&s, v);
                for (i32 e = 0; smoothing > 0 && e < VEC; e++)
                    s.total += v[e];
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
                s.total += e < count ? v[e] : (R)0;
        }
        const R chosen = LANE == 0 ? LD(logits, n * a->logits_row + label) : (R)0;
        GLOBAL_SYNC(); /* dlogits may be logits */
        const R most = NAME(tree_max)(scratch, LANE, lanes, s.most);
        if (s.most < most)
            s.sum *= NAME(fast_exp)(s.most - most);
        s.sum = NAME(tree_sum)(scratch, LANE, lanes, s.sum);
        if (smoothing > 0)
            s.total = NAME(tree_sum)(scratch, LANE, lanes, s.total);
        if (most == LOWEST)
            s.sum = most - most; /* only -infinity: NaN */
        if (loss && LANE == 0) {
            R l = MATH(log)(s.sum) - (1 - smoothing) * (chosen - most);
            if (smoothing > 0)
                l -= smoothing / (R)a->classes * (s.total - (R)a->classes * most);
            loss[n] = l;
        }
        if (dlogits)
            NAME(row_gradient)
        (a, logits, dlogits, n, label, most, s.sum, dloss ? alpha * dloss[n] : alpha, keep, kept,
         lanes);
    }
}

#undef CROSS_ENTROPY
#define CROSS_ENTROPY(name, lanes, kept)                                                           \
    KERNEL(name, lanes)                                                                            \
    (BUF(const T, logits), BUF(const u8, labels), BUF(R, loss), BUF(u8, dlogits),                  \
     BUF(const R, dloss), const cross_entropy_arg a)                                               \
    {                                                                                              \
        LOCAL R scratch[lanes];                                                                    \
        LOCAL RAW keep[(kept) > 0 ? (kept) * (lanes) : 1];                                         \
        OPEN(const T, logits);                                                                     \
        OPEN(const u8, labels);                                                                    \
        OPEN(R, loss);                                                                             \
        OPEN(u8, dlogits);                                                                         \
        OPEN(const R, dloss);                                                                      \
        NAME(cross_entropy_rows)                                                                   \
        (&a, logits, labels, loss, dlogits, dloss, scratch, keep, kept, lanes);                    \
    }

/* For long rows: few rows at a time, so that they stay in the cache, and all lanes busy. With what
 * is kept of a row, local memory is well below 32 KiB. */
CROSS_ENTROPY(cross_entropy, LANES, 0)
CROSS_ENTROPY(cross_entropy_long, LONG_LANES, LONG_LANES == 1 ? 0 : 3)

/* ================================================================================ adam ==== */
#if SIMT_CODE <= 2 /* moments are f32 or f64 */

/* live[k] = 1 if the gradient of row k has an element that is not 0. */
KERNEL(adam_live, LANES)(BUF(const u8, grad), BUF(i32, live), const adam_live_arg a)
{
    LOCAL R scratch[LANES];
    OPEN(const u8, grad);
    OPEN(i32, live);
    for (i64 k = GROUP(0); k < a.rows; k += GROUPS(0)) {
        R any = 0;
        for (i64 col = (i64)LANE * VEC; col < a.cols; col += LANES * VEC) {
            R g[VEC];
            NAME(load_part)
            (a.grad_type, grad, k * a.cols + col, 1, run_length(a.cols, col, VEC), a.vector, g);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                any = g[e] != 0 ? (R)1 : any;
        }
        any = NAME(tree_max)(scratch, LANE, LANES, any);
        if (LANE == 0)
            live[k] = any != 0;
    }
}

KERNEL(adam, LANES)
(BUF(T, param), BUF(const u8, grad), BUF(T, m), BUF(T, v), BUF(const f32, norm_scale),
 BUF(const f32, gate), BUF(u8, copy), BUF(const i32, live), const adam_arg a)
{
    OPEN(T, param);
    OPEN(const u8, grad);
    OPEN(T, m);
    OPEN(T, v);
    OPEN(const f32, norm_scale);
    OPEN(const f32, gate);
    OPEN(u8, copy);
    OPEN(const i32, live);
    const f32 norm = norm_scale ? norm_scale[0] : 1;
    if (norm == 0 || norm - norm != 0) /* infinite or NaN */
        return;
    const R beta1 = NUM(a.beta1), rest1 = NUM(a.rest1), beta2 = NUM(a.beta2);
    const R rest2 = NUM(a.rest2), eps = NUM(a.eps), rate = NUM(a.rate), decay = NUM(a.decay);
    const R grad_scale = NUM(a.grad_scale) * norm, clip = NUM(a.clip_sigma);
    for (walk w = walk_start(a.rows, a.cols, VEC); w.left > 0; walk_next(&w)) {
        if ((gate && gate[w.row] == 0) || (live && !live[w.row]))
            continue;
        const i64 i = w.row * a.cols + w.run * VEC;
        const i32 count = run_length(a.cols, w.run * VEC, VEC);
        R g[VEC], mv[VEC], vv[VEC], pv[VEC];
        NAME(load_part)(a.grad_type, grad, i, 1, count, a.vector, g);
        NAME(load_part)(SIMT_CODE, m, i, 1, count, a.vector, mv);
        NAME(load_part)(SIMT_CODE, v, i, 1, count, a.vector, vv);
        NAME(load_part)(SIMT_CODE, param, i, 1, count, a.vector, pv);
        UNROLL
        for (i32 e = 0; e < VEC; e++) {
            R x = g[e] * grad_scale;
            vv[e] = beta2 * vv[e] + rest2 * x * x;
            const R sigma = MATH(sqrt)(vv[e]);
            if (clip > 0) {
                x = x < -clip * sigma ? -clip * sigma : x;
                x = x > clip * sigma ? clip * sigma : x;
            }
            mv[e] = beta1 * mv[e] + rest1 * x;
            pv[e] -= rate * (mv[e] / (sigma + eps)) + decay * pv[e];
        }
        NAME(store_part)(SIMT_CODE, v, i, 1, count, a.vector, vv);
        NAME(store_part)(SIMT_CODE, m, i, 1, count, a.vector, mv);
        NAME(store_part)(SIMT_CODE, param, i, 1, count, a.vector, pv);
        if (copy)
            NAME(store_part)(a.copy_type, copy, i, 1, count, a.vector, pv);
    }
}

#endif
