/* Sums by feature, which batch_norm and both gradients need, and batch norm itself, for the type
 * that type.h set. */

/* Adds what an element brings: v is x or dy, x the x of a gradient. */
DEVICE void NAME(norm_add)(const norm_sums_arg *a, R v, R x, R mean, R rstd, R gain, R bias, R *sum,
                           R *other)
{
    if (a->what == SUM_PLAIN) {
        *sum += v;
    } else if (a->what == SUM_SQUARES) {
        *sum += (v - mean) * (v - mean);
    } else {
        NAME(norm_slope)(a->relu, mean, rstd, gain, bias, &x, &v);
        *sum += v * x;
        *other += v;
    }
}

/* 1 / sqrt(var + eps) for statistics by feature, rstd itself for those by position. */
DEVICE R NAME(norm_rstd)(const norm_sums_arg *a, const GLOBAL R *spread, i64 i)
{
    if (a->what == SUM_LAYER)
        return spread[i];
    return a->what == SUM_BATCH ? 1 / MATH(sqrt)(spread[i] + NUM(a->eps)) : (R)0;
}

DEVICE R NAME(norm_mean)(const GLOBAL R *mean, i64 i)
{
    return mean ? mean[i] : (R)0;
}

/* Lanes along the features. Group (i, j): `lanes` runs from i * lanes on, share j of the positions,
 * LANES / lanes of them at a time. */
KERNEL(norm_sums_cols, LANES)
(BUF(const T, dy), BUF(const u8, x), BUF(const R, mean), BUF(const R, spread), BUF(const R, gain),
 BUF(const R, bias), BUF(R, partial), const norm_sums_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES * VEC];
    OPEN(const T, dy);
    OPEN(const u8, x);
    OPEN(const R, mean);
    OPEN(const R, spread);
    OPEN(const R, gain);
    OPEN(const R, bias);
    OPEN(R, partial);
    const i32 parts = LANES / a.lanes, part = LANE / a.lanes;
    const i64 positions = a.outer * a.inner;
    const i64 f = (GROUP(0) * a.lanes + LANE % a.lanes) * VEC;
    const i32 count = f < a.features ? run_length(a.features, f, VEC) : 0;
    i64 end = (GROUP(1) + 1) * a.share < positions ? (GROUP(1) + 1) * a.share : positions;
    i64 stats[VEC];
    R sum[VEC], other[VEC], m[VEC], r[VEC], g[VEC], b[VEC], v[VEC], xv[VEC];
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
        const i32 here = e < count;
        sum[e] = other[e] = m[e] = r[e] = xv[e] = 0;
        g[e] = here && gain ? gain[f + e] : (R)1;
        b[e] = here && bias ? bias[f + e] : (R)0;
        stats[e] = here && a.what == SUM_LAYER ? QUOTIENT(f + e, a.segment) * positions : 0;
        if (here && a.what != SUM_LAYER) {
            m[e] = NAME(norm_mean)(mean, f + e);
            r[e] = NAME(norm_rstd)(&a, spread, f + e);
        }
    }
    if (count == 0)
        end = 0;
    NO_UNROLL
    for (i64 at = GROUP(1) * a.share + part; at < end; at += parts) {
        const i64 o = a.inner > 1 ? QUOTIENT(at, a.inner) : at, i = at - o * a.inner;
        NAME(load_part)
        (HALF_TYPE(a.dy_type), dy, o * a.dy_outer + i * a.dy_inner + f * a.dy_feature, a.dy_feature,
         count, a.dy_vector, v);
        if (x)
            NAME(load_part)
        (a.x_type, x, o * a.x_outer + i * a.x_inner + f * a.x_feature, a.x_feature, count,
         a.x_vector, xv);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            if (e < count) {
                if (a.what == SUM_LAYER) {
                    m[e] = NAME(norm_mean)(mean, stats[e] + at);
                    r[e] = spread[stats[e] + at];
                }
                NAME(norm_add)(&a, v[e], xv[e], m[e], r[e], g[e], b[e], sum + e, other + e);
            }
    }
    NAME(column_join)(scratch, a.lanes, sum);
    if (a.what >= SUM_BATCH)
        NAME(column_join)(scratch, a.lanes, other);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        if (part == 0 && e < count) {
            partial[GROUP(1) * a.features + f + e] = sum[e];
            if (a.what >= SUM_BATCH)
                partial[(GROUPS(1) + GROUP(1)) * a.features + f + e] = other[e];
        }
}

/* Lanes along the positions. Group (f, j): feature f, share j of the runs of positions. */
KERNEL(norm_sums_rows, LANES)
(BUF(const T, dy), BUF(const u8, x), BUF(const R, mean), BUF(const R, spread), BUF(const R, gain),
 BUF(const R, bias), BUF(R, partial), const norm_sums_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[ROW_SCRATCH] ALIGNED;
    OPEN(const T, dy);
    OPEN(const u8, x);
    OPEN(const R, mean);
    OPEN(const R, spread);
    OPEN(const R, gain);
    OPEN(const R, bias);
    OPEN(R, partial);
    const i64 f = GROUP(0), each = (a.inner + VEC - 1) / VEC, runs = a.outer * each;
    const i64 end = (GROUP(1) + 1) * a.share < runs ? (GROUP(1) + 1) * a.share : runs;
    const i64 stats = a.what == SUM_LAYER ? f / a.segment * a.inner : 0;
    const R g = gain ? gain[f] : (R)1, b = bias ? bias[f] : (R)0;
    R sum[2] = {0, 0}, v[VEC], xv[VEC], m = 0, r = 0;
    if (a.what != SUM_LAYER) {
        m = NAME(norm_mean)(mean, f);
        r = NAME(norm_rstd)(&a, spread, f);
    }
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        xv[e] = 0;
    NO_UNROLL
    for (i64 run = GROUP(1) * a.share + LANE; run < end; run += LANES) {
        const i64 o = a.outer > 1 ? run / each : 0, i = (run - o * each) * VEC;
        const i32 count = run_length(a.inner, i, VEC);
        NAME(load_part)
        (HALF_TYPE(a.dy_type), dy, f * a.dy_feature + o * a.dy_outer + i * a.dy_inner, a.dy_inner,
         count, a.dy_vector, v);
        if (x)
            NAME(load_part)
        (a.x_type, x, f * a.x_feature + o * a.x_outer + i * a.x_inner, a.x_inner, count, a.x_vector,
         xv);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            if (e < count) {
                if (a.what == SUM_LAYER) {
                    m = NAME(norm_mean)(mean, stats + i + e);
                    r = spread[stats + i + e];
                }
                NAME(norm_add)(&a, v[e], xv[e], m, r, g, b, sum, sum + 1);
            }
    }
    NAME(row_reduce)(scratch, LANES, 0, 2, sum);
    if (LANE == 0) {
        partial[GROUP(1) * a.features + f] = sum[0];
        if (a.what >= SUM_BATCH)
            partial[(GROUPS(1) + GROUP(1)) * a.features + f] = sum[1];
    }
}

/* Sums of the shares: those of dy * h (or the only ones) to `first`, those of dy to `second`. A
 * group sums SHARE_COLS features. */
KERNEL(norm_finish, LANES)
(BUF(const R, partial), BUF(R, first), BUF(R, second), const norm_finish_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const R, partial);
    OPEN(R, first);
    OPEN(R, second);
    const R alpha = NUM(a.alpha), beta = NUM(a.beta);
    GLOBAL R *const out = GROUP(1) ? second : first;
    const GLOBAL R *const in = partial + GROUP(1) * a.shares * a.features;
    for (i64 from = GROUP(0) * SHARE_COLS; out && from < a.features;
         from += GROUPS(0) * SHARE_COLS) {
        const i64 f = from + LANE % SHARE_COLS;
        const R sum = NAME(shares_sum)(scratch, SHARE_COLS, in, a.shares, a.features, f);
        if (LANE < SHARE_COLS && f < a.features)
            out[f] = beta != 0 ? alpha * sum + beta * out[f] : alpha * sum;
    }
}

/* ============================================================================== batch_norm ==== */

/* What a vector by channel holds for a run: channel c, or c and its neighbours. */
DEVICE void NAME(batch_vector)(const batch_norm_arg *a, const GLOBAL R *p, i64 c, i32 count,
                               R otherwise, R *v)
{
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        v[e] = p && e < count ? p[a->by_col ? c + e : c] : otherwise;
}

/* The places of a run, and its first channel. */
typedef struct NAME(batch_place) {
    i64 x, dy, y, channel;
    i32 count;
} NAME(batch_place);

DEVICE NAME(batch_place) NAME(batch_at)(const batch_norm_arg *a, const walk *w)
{
    const i64 o = QUOTIENT(w->row, a->middle), i = w->row - o * a->middle, col = w->run * VEC;
    NAME(batch_place) p;
    p.x = o * a->x_outer + i * a->x_middle + col * a->x_col;
    p.dy = o * a->dy_outer + i * a->dy_middle + col * a->dy_col;
    p.y = o * a->y_outer + i * a->y_middle + col * a->y_col;
    p.channel = a->by_col ? col : i;
    p.count = run_length(a->cols, col, VEC);
    return p;
}

KERNEL(batch_norm, LANES)
(BUF(const T, x), BUF(const R, mean), BUF(const R, var), BUF(const R, gain), BUF(const R, bias),
 BUF(u8, y), const batch_norm_arg a)
{
    QUEUE_WAIT();
    OPEN(const T, x);
    OPEN(const R, mean);
    OPEN(const R, var);
    OPEN(const R, gain);
    OPEN(const R, bias);
    OPEN(u8, y);
    for (walk w = walk_start(a.outer * a.middle, a.cols, VEC); w.left > 0; walk_next(&w)) {
        const NAME(batch_place) p = NAME(batch_at)(&a, &w);
        R v[VEC], m[VEC], s[VEC], g[VEC], b[VEC];
        NAME(batch_vector)(&a, mean, p.channel, p.count, 0, m);
        NAME(batch_vector)(&a, var, p.channel, p.count, 0, s);
        NAME(batch_vector)(&a, gain, p.channel, p.count, 1, g);
        NAME(batch_vector)(&a, bias, p.channel, p.count, 0, b);
        NAME(load_part)(HALF_TYPE(a.x_type), x, p.x, a.x_col, p.count, a.x_vector, v);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] = FMA(v[e] - m[e], g[e] / MATH(sqrt)(s[e] + NUM(a.eps)), b[e]);
        NAME(store_part)(a.y_type, y, p.y, a.y_col, p.count, a.y_vector, v);
    }
}

/* Without `total`, the sums of dy * h and then those of dy, mean and var are constants. */
KERNEL(batch_norm_grad, LANES)
(BUF(const T, dy), BUF(const u8, x), BUF(const R, mean), BUF(const R, var), BUF(const R, gain),
 BUF(const R, total), BUF(u8, dx), const batch_norm_arg a)
{
    QUEUE_WAIT();
    OPEN(const T, dy);
    OPEN(const u8, x);
    OPEN(const R, mean);
    OPEN(const R, var);
    OPEN(const R, gain);
    OPEN(const R, total);
    OPEN(u8, dx);
    const i64 channels = a.by_col ? a.cols : a.middle;
    for (walk w = walk_start(a.outer * a.middle, a.cols, VEC); w.left > 0; walk_next(&w)) {
        const NAME(batch_place) p = NAME(batch_at)(&a, &w);
        R d[VEC], h[VEC], m[VEC], s[VEC], g[VEC], sum[VEC], sum_h[VEC];
        NAME(batch_vector)(&a, var, p.channel, p.count, 0, s);
        NAME(batch_vector)(&a, gain, p.channel, p.count, 1, g);
        NAME(load_part)(HALF_TYPE(a.dy_type), dy, p.dy, a.dy_col, p.count, a.dy_vector, d);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            s[e] = 1 / MATH(sqrt)(s[e] + NUM(a.eps));
        if (total) {
            NAME(batch_vector)(&a, mean, p.channel, p.count, 0, m);
            NAME(batch_vector)(&a, total, p.channel, p.count, 0, sum_h);
            NAME(batch_vector)(&a, total + channels, p.channel, p.count, 0, sum);
            NAME(load_part)(a.x_type, x, p.x, a.x_col, p.count, a.x_vector, h);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                d[e] -= FMA((h[e] - m[e]) * s[e], sum_h[e], sum[e]) * NUM(a.inverse);
        }
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            d[e] *= g[e] * s[e];
        NAME(blend_part)
        (a.y_type, dx, p.y, a.y_col, p.count, a.y_vector, NUM(a.dx_alpha), NUM(a.dx_beta), d);
    }
}
