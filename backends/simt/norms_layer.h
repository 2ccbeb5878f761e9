/* Kernels of layer_norm and layer_norm_grad, for the type that type.h set. */

DEVICE R NAME(norm_relu)(i32 relu, R v)
{
    return relu && v <= 0 ? (R)0 : v; /* keeps NaN */
}

/* One run of a vector by feature. */
DEVICE void NAME(norm_vector)(const GLOBAL R *p, i64 first, i32 count, i32 vector, R otherwise,
                              R *v)
{
    if (p) {
        NAME(load_part)(R_TYPE, p, first, 1, count, vector, v);
    } else {
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] = otherwise;
    }
}

/* y in place of x. */
DEVICE void NAME(norm_run)(i32 relu, R mean, R rstd, const R *gain, const R *bias, R *v)
{
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        v[e] = FMA((v[e] - mean) * rstd, gain[e], bias[e]);
    if (relu) {
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] = NAME(norm_relu)(1, v[e]);
    }
}

DEVICE R NAME(norm_squares)(i32 count, R mean, const R *v)
{
    R sum = 0;
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        sum += e < count ? (v[e] - mean) * (v[e] - mean) : (R)0;
    return sum;
}

/* The statistics of row n's segment s. */
DEVICE void NAME(norm_save)(const layer_norm_arg *a, GLOBAL R *mean, GLOBAL R *rstd, i64 n, i64 s,
                            R m, R r)
{
    if (mean)
        mean[s * a->rows + n] = m;
    if (rstd)
        rstd[s * a->rows + n] = r;
}

KERNEL(layer_norm, LANES)
(BUF(const T, x), BUF(const R, gain), BUF(const R, bias), BUF(R, mean), BUF(R, rstd), BUF(u8, y),
 const layer_norm_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[ROW_SCRATCH] ALIGNED;
    OPEN(const T, x);
    OPEN(const R, gain);
    OPEN(const R, bias);
    OPEN(R, mean);
    OPEN(R, rstd);
    OPEN(u8, y);
    const i32 parts = LANES / a.lanes, lane = LANE % a.lanes;
    const i64 total = a.rows * a.segments, runs = (a.count + VEC - 1) / VEC;
    for (i64 first = GROUP(0) * parts; first < total; first += GROUPS(0) * parts) {
        const i64 number = first + LANE / a.lanes, here = number < total ? runs : 0;
        const i64 n = QUOTIENT(number, a.segments), s = number - n * a.segments;
        const i64 feature = s * a.count;
        NAME(row_of) row = NAME(row_make)(HALF_TYPE(a.x_type), x, a.x_col, a.count, a.x_vector);
        R v[VEC], m = 0, square = 0;
        row.at = n * a.x_row + feature * a.x_col;
        if (!a.rms) {
            NO_UNROLL
            for (i64 run = lane; run < here; run += a.lanes) {
                NAME(row_load)(&row, run, v);
                m += NAME(row_total)(v);
            }
            m = NAME(row_sum)(scratch, a.lanes, m) * NUM(a.inverse);
        }
        NO_UNROLL
        for (i64 run = lane; run < here; run += a.lanes) {
            NAME(row_load)(&row, run, v);
            square += NAME(norm_squares)(run_length(a.count, run * VEC, VEC), m, v);
        }
        square = NAME(row_sum)(scratch, a.lanes, square);
        const R r = 1 / MATH(sqrt)(square * NUM(a.inverse) + NUM(a.eps));
        if (number < total && lane == 0)
            NAME(norm_save)(&a, mean, rstd, n, s, m, r);
        NO_UNROLL
        for (i64 run = lane; run < here; run += a.lanes) {
            const i32 count = run_length(a.count, run * VEC, VEC);
            R g[VEC], b[VEC];
            NAME(norm_vector)(gain, feature + run * VEC, count, a.vector, 1, g);
            NAME(norm_vector)(bias, feature + run * VEC, count, a.vector, 0, b);
            NAME(row_load)(&row, run, v);
            NAME(norm_run)(a.relu, m, r, g, b, v);
            NAME(store_part)
            (a.y_type, y, n * a.y_row + (feature + run * VEC) * a.y_col, a.y_col, count, a.y_vector,
             v);
        }
    }
}

#if LANES > 1
/* Runs of a packed row that a lane holds. */
#undef NORM_RUNS
#define NORM_RUNS 4

/* y of a held run. */
DEVICE void NAME(norm_put)(const layer_norm_arg *a, const GLOBAL R *gain, const GLOBAL R *bias,
                           GLOBAL u8 *y, i64 n, i64 feature, R m, R r, R *v)
{
    R g[VEC], b[VEC];
    NAME(norm_vector)(gain, feature, VEC, 1, 1, g);
    NAME(norm_vector)(bias, feature, VEC, 1, 0, b);
    NAME(norm_run)(a->relu, m, r, g, b, v);
    NAME(store_run)(a->y_type, y, n * a->y_row + feature, v);
}

/* Packed rows that fit into registers. A group has one batch of them: in a loop, what belongs to
 * the next one would take registers. */
KERNEL(layer_norm_packed, LANES)
(BUF(const T, x), BUF(const R, gain), BUF(const R, bias), BUF(R, mean), BUF(R, rstd), BUF(u8, y),
 const layer_norm_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[ROW_SCRATCH] ALIGNED;
    OPEN(const T, x);
    OPEN(const R, gain);
    OPEN(const R, bias);
    OPEN(R, mean);
    OPEN(R, rstd);
    OPEN(u8, y);
    const i32 lane = LANE & (a.lanes - 1);
    const i64 number = (GROUP(0) * LANES + LANE) >> a.lanes_log;
    const i64 n = a.segments == 1 ? number : QUOTIENT(number, a.segments),
              s = number - n * a.segments;
    const i32 runs = n < a.rows ? (i32)(a.count / VEC) : 0;
    RAW q[NORM_RUNS];
    R v[VEC], m = 0, r = 0;
    NAME(row_hold)(a.x_type, x + n * a.x_row + s * a.count, lane, runs, a.lanes, NORM_RUNS, q);
    if (!a.rms) {
        UNROLL
        for (i32 u = 0; u < NORM_RUNS; u++)
            if (lane + u * a.lanes < runs) {
                NAME(unpack_run)(a.x_type, q[u], v);
                m += NAME(row_total)(v);
            }
        NAME(row_reduce_in_turn)(scratch, 0, a.lanes, 0, 1, &m);
        m *= NUM(a.inverse);
    }
    UNROLL
    for (i32 u = 0; u < NORM_RUNS; u++)
        if (lane + u * a.lanes < runs) {
            NAME(unpack_run)(a.x_type, q[u], v);
            r += NAME(norm_squares)(VEC, m, v);
        }
    NAME(row_reduce_in_turn)(scratch, 1, a.lanes, 0, 1, &r);
    r = 1 / MATH(sqrt)(r * NUM(a.inverse) + NUM(a.eps));
    if (lane == 0 && n < a.rows)
        NAME(norm_save)(&a, mean, rstd, n, s, m, r);
    UNROLL
    for (i32 u = 0; u < NORM_RUNS; u++)
        if (lane + u * a.lanes < runs) {
            NAME(unpack_run)(a.x_type, q[u], v);
            NAME(norm_put)
            (&a, gain, bias, y, n, s * a.count + (lane + u * a.lanes) * VEC, m, r, v);
        }
}

#endif

/* --- lanes along N ---------------------------------------------------------------------------- */

KERNEL(layer_norm_cols, LANES)
(BUF(const T, x), BUF(const R, gain), BUF(const R, bias), BUF(R, mean), BUF(R, rstd), BUF(u8, y),
 const layer_norm_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES * VEC];
    OPEN(const T, x);
    OPEN(const R, gain);
    OPEN(const R, bias);
    OPEN(R, mean);
    OPEN(R, rstd);
    OPEN(u8, y);
    const i32 parts = LANES / a.lanes, part = LANE / a.lanes;
    const i64 tiles = ((a.rows + VEC - 1) / VEC + a.lanes - 1) / a.lanes;
    for (i64 item = GROUP(0); item < tiles * a.segments; item += GROUPS(0)) {
        const i64 s = item / tiles, n = (item % tiles * a.lanes + LANE % a.lanes) * VEC;
        const i64 features = n < a.rows ? a.count : 0;
        const i32 count = n < a.rows ? run_length(a.rows, n, VEC) : 0;
        const GLOBAL T *const p = x + s * a.count * a.x_col;
        R v[VEC], m[VEC], r[VEC];
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            m[e] = r[e] = 0;
        for (i64 f = part; !a.rms && f < features; f += parts) {
            NAME(load_part)
            (HALF_TYPE(a.x_type), p, f * a.x_col + n * a.x_row, a.x_row, count, a.x_vector, v);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                m[e] += v[e];
        }
        if (!a.rms)
            NAME(column_join)(scratch, a.lanes, m);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            m[e] *= NUM(a.inverse);
        for (i64 f = part; f < features; f += parts) {
            NAME(load_part)
            (HALF_TYPE(a.x_type), p, f * a.x_col + n * a.x_row, a.x_row, count, a.x_vector, v);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                r[e] += (v[e] - m[e]) * (v[e] - m[e]);
        }
        NAME(column_join)(scratch, a.lanes, r);
        UNROLL
        for (i32 e = 0; e < VEC; e++) {
            r[e] = 1 / MATH(sqrt)(r[e] * NUM(a.inverse) + NUM(a.eps));
            if (part == 0 && e < count)
                NAME(norm_save)(&a, mean, rstd, n + e, s, m[e], r[e]);
        }
        for (i64 f = part; f < features; f += parts) {
            const i64 feature = s * a.count + f;
            const R g = gain ? gain[feature] : (R)1, b = bias ? bias[feature] : (R)0;
            NAME(load_part)
            (HALF_TYPE(a.x_type), p, f * a.x_col + n * a.x_row, a.x_row, count, a.x_vector, v);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                v[e] = NAME(norm_relu)(a.relu, FMA((v[e] - m[e]) * r[e], g, b));
            NAME(store_part)
            (a.y_type, y, feature * a.y_col + n * a.y_row, a.y_row, count, a.y_vector, v);
        }
    }
}

/* ========================================================================= layer_norm_grad ==== */

/* h and the gradient before gain of one element, in place of x and dy. */
DEVICE void NAME(norm_slope)(i32 relu, R mean, R rstd, R gain, R bias, R *h, R *d)
{
    *h = (*h - mean) * rstd;
    if (relu) {
        const R pre = FMA(*h, gain, bias);
        *d *= pre > 0 ? (R)1 : pre <= 0 ? (R)0 : pre;
    }
}

/* A run of dx from h and g. */
DEVICE void NAME(norm_dx)(R mean, R mean_h, R rstd, const R *gain, const R *h, R *d)
{
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        d[e] = rstd * (d[e] * gain[e] - FMA(h[e], mean_h, mean));
}

/* dx alone. */
KERNEL(layer_norm_grad, LANES)
(BUF(const T, dy), BUF(const u8, x), BUF(const R, mean), BUF(const R, rstd), BUF(const R, gain),
 BUF(const R, bias), BUF(u8, dx), const layer_norm_grad_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[ROW_SCRATCH] ALIGNED;
    OPEN(const T, dy);
    OPEN(const u8, x);
    OPEN(const R, mean);
    OPEN(const R, rstd);
    OPEN(const R, gain);
    OPEN(const R, bias);
    OPEN(u8, dx);
    const i32 parts = LANES / a.lanes, lane = LANE % a.lanes;
    const i64 total = a.rows * a.segments, runs = (a.count + VEC - 1) / VEC;
    for (i64 first = GROUP(0) * parts; first < total; first += GROUPS(0) * parts) {
        const i64 number = first + LANE / a.lanes, here = number < total ? runs : 0;
        const i64 n = QUOTIENT(number, a.segments), s = number - n * a.segments;
        const i64 feature = s * a.count;
        NAME(row_of) row = NAME(row_make)(HALF_TYPE(a.dy_type), dy, a.dy_col, a.count, a.dy_vector);
        NAME(row_of) x_row = NAME(row_make)(a.x_type, x, a.x_col, a.count, a.x_vector);
        const R m = mean && here ? mean[s * a.rows + n] : (R)0;
        const R r = here ? rstd[s * a.rows + n] : (R)0;
        R d[VEC], h[VEC], g[VEC], b[VEC], sum[2] = {0, 0};
        row.at = n * a.dy_row + feature * a.dy_col;
        x_row.at = n * a.x_row + feature * a.x_col;
        for (i32 pass = 0; pass < 2; pass++) {
            NO_UNROLL
            for (i64 run = lane; run < here; run += a.lanes) {
                const i32 count = run_length(a.count, run * VEC, VEC);
                NAME(norm_vector)(gain, feature + run * VEC, count, a.vector, 1, g);
                NAME(norm_vector)(bias, feature + run * VEC, count, a.vector, 0, b);
                NAME(row_load)(&row, run, d);
                NAME(row_load)(&x_row, run, h);
                UNROLL
                for (i32 e = 0; e < VEC; e++) {
                    NAME(norm_slope)(a.relu, m, r, g[e], b[e], h + e, d + e);
                    if (pass == 0 && e < count) {
                        sum[0] += a.rms ? (R)0 : d[e] * g[e];
                        sum[1] += d[e] * g[e] * h[e];
                    }
                }
                if (pass == 1) {
                    NAME(norm_dx)(sum[0], sum[1], r, g, h, d);
                    NAME(blend_part)
                    (a.dx_type, dx, n * a.dx_row + (feature + run * VEC) * a.dx_col, a.dx_col,
                     count, a.dx_vector, NUM(a.dx_alpha), NUM(a.dx_beta), d);
                }
            }
            if (pass == 0)
                NAME(row_reduce)(scratch, a.lanes, 0, 2, sum);
            sum[0] *= pass == 0 ? NUM(a.inverse) : (R)1;
            sum[1] *= pass == 0 ? NUM(a.inverse) : (R)1;
        }
    }
}

#if LANES > 1
/* Runs of a row that a lane holds: two sums for each of their elements take most registers. The
 * next row is loaded ahead where there is room for it. */
#undef GRAD_RUNS
#define GRAD_RUNS (VEC == 8 ? 2 : 4)
#undef GRAD_AHEAD
#define GRAD_AHEAD (VEC == 8)

/* What a lane has of a row: raw runs of dy and x, and the row's statistics. In the mixed form x is of
 * type R beside dy of 16 bits, so that its runs are two raw ones. */
typedef struct NAME(grad_row) {
    RAW dy[GRAD_RUNS], x[GRAD_RUNS], rest[GRAD_RUNS];
    R mean, rstd;
} NAME(grad_row);

/* Where a row of a segment is. */
typedef struct NAME(grad_place) {
    i64 row, dy, x, dx;
} NAME(grad_place);

DEVICE void NAME(grad_step)(const layer_norm_grad_arg *a, i32 rows, NAME(grad_place) * at)
{
    at->row += rows;
    at->dy += rows * a->dy_row;
    at->x += rows * a->x_row;
}

DEVICE void NAME(grad_load)(const layer_norm_grad_arg *a, i32 mixed, const GLOBAL T *dy,
                            const GLOBAL void *x, const GLOBAL R *mean, const GLOBAL R *rstd,
                            const NAME(grad_place) * at, i32 runs, i32 lane, NAME(grad_row) * row)
{
    row->mean = mean && runs ? mean[at->row] : (R)0;
    row->rstd = runs ? rstd[at->row] : (R)0;
    NAME(row_hold)(a->dy_type, dy + at->dy, lane, runs, a->lanes, GRAD_RUNS, row->dy);
    if (!mixed) {
        NAME(row_hold)
        (a->dy_type, (const GLOBAL T *)x + at->x, lane, runs, a->lanes, GRAD_RUNS, row->x);
        return;
    }
    const GLOBAL R *const from = (const GLOBAL R *)x + at->x;
    UNROLL
    for (i32 u = 0; u < GRAD_RUNS; u++)
        if (lane + u * a->lanes < runs) {
            const GLOBAL RAW *const q =
                (const GLOBAL RAW *)(from + (i64)(lane + u * a->lanes) * VEC);
            row->x[u] = q[0];
            row->rest[u] = q[1];
        }
}

/* The elements of a run of x. */
DEVICE void NAME(grad_unpack)(i32 type, const NAME(grad_row) * row, i32 u, i32 mixed, R *v)
{
#if VEC == 8
    if (mixed) {
        f32_unpack4(row->x[u], v);
        f32_unpack4(row->rest[u], v + 4);
        return;
    }
#endif
    NAME(unpack_run)(type, row->x[u], v);
}

/* A run of a row as x - mean, g and g * gain. */
DEVICE void NAME(grad_run)(i32 type, const NAME(grad_row) * row, i32 u, i32 mixed, i32 relu,
                           const GLOBAL R *gain, const GLOBAL R *bias, i64 feature, R *c, R *d,
                           R *t)
{
    R g[VEC], b[VEC];
    NAME(norm_vector)(gain, feature, VEC, 1, 1, g);
    NAME(unpack_run)(type, row->dy[u], d);
    NAME(grad_unpack)(type, row, u, mixed, c);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        c[e] -= row->mean;
    if (relu) {
        NAME(norm_vector)(bias, feature, VEC, 1, 0, b);
        UNROLL
        for (i32 e = 0; e < VEC; e++) {
            const R pre = FMA(c[e] * row->rstd, g[e], b[e]);
            d[e] *= pre > 0 ? (R)1 : pre <= 0 ? (R)0 : pre;
        }
    }
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        t[e] = d[e] * g[e];
}

/* Packed rows that fit into registers: dx, where given, and sums over a share of the rows for
 * dgain and dbias, where partial is given. Group (i, s): share i of segment s. mixed, of x and dx,
 * and relu are constants, since what they take would cost the form without them registers. */
DEVICE void NAME(grad_packed)(const layer_norm_grad_arg *a, i32 mixed, i32 relu, const GLOBAL T *dy,
                              const GLOBAL void *x, const GLOBAL R *mean, const GLOBAL R *rstd,
                              const GLOBAL R *gain, const GLOBAL R *bias, GLOBAL void *dx,
                              GLOBAL R *partial, LOCAL_ARG R *scratch)
{
    const i32 parts = LANES / a->lanes, lane = LANE % a->lanes, part = LANE / a->lanes;
    const i32 runs = (i32)(a->count / VEC);
    const i64 feature = GROUP(1) * a->count, begin = GROUP(0) * a->share;
    const i64 end = begin + a->share < a->rows ? begin + a->share : a->rows;
    NAME(grad_row) row, next;
    NAME(grad_place) at;
    at.row = GROUP(1) * a->rows + begin + part;
    at.dy = (begin + part) * a->dy_row + feature;
    at.x = (begin + part) * a->x_row + feature;
    at.dx = (begin + part) * a->dx_row + feature;
    R sum_h[GRAD_RUNS][VEC], sum_g[GRAD_RUNS][VEC], c[VEC], d[VEC], t[VEC];
    i32 turn = 0;
    UNROLL
    for (i32 u = 0; u < GRAD_RUNS; u++) {
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            sum_h[u][e] = sum_g[u][e] = 0;
    }
    if (GRAD_AHEAD)
        NAME(grad_load)
    (a, mixed, dy, x, mean, rstd, &at, begin + part < end ? runs : 0, lane, &next);
    NO_UNROLL
    for (i64 first = begin; first < end; first += parts) {
        const i64 n = first + part;
        const i32 here = n < end ? runs : 0;
        R sum[2] = {0, 0};
        if (GRAD_AHEAD) {
            row = next;
            NAME(grad_step)(a, parts, &at);
            NAME(grad_load)
            (a, mixed, dy, x, mean, rstd, &at, n + parts < end ? runs : 0, lane, &next);
        } else {
            NAME(grad_load)(a, mixed, dy, x, mean, rstd, &at, here, lane, &row);
            NAME(grad_step)(a, parts, &at);
        }
        UNROLL
        for (i32 u = 0; u < GRAD_RUNS; u++)
            if (lane + u * a->lanes < here) {
                NAME(grad_run)
                (a->dy_type, &row, u, mixed, relu, gain, bias,
                 feature + (lane + u * a->lanes) * VEC, c, d, t);
                UNROLL
                for (i32 e = 0; e < VEC; e++) {
                    sum[0] += t[e];
                    sum[1] = FMA(t[e], c[e], sum[1]);
                    sum_h[u][e] = FMA(d[e], c[e] * row.rstd, sum_h[u][e]);
                    sum_g[u][e] += d[e];
                }
            }
        if (!dx)
            continue;
        NAME(row_reduce_in_turn)(scratch, turn, a->lanes, 0, 2, sum);
        turn ^= 1;
        /* dx = rstd * (t - mean of t - h * mean of t * h) */
        const R base = a->rms ? (R)0 : -row.rstd * sum[0] * NUM(a->inverse);
        const R slope = -(sum[1] * NUM(a->inverse) * row.rstd) * row.rstd * row.rstd;
        UNROLL
        for (i32 u = 0; u < GRAD_RUNS; u++)
            if (lane + u * a->lanes < here) {
                const i32 col = (lane + u * a->lanes) * VEC;
                NAME(grad_run)
                (a->dy_type, &row, u, mixed, relu, gain, bias, feature + col, c, d, t);
                UNROLL
                for (i32 e = 0; e < VEC; e++)
                    d[e] = FMA(c[e], slope, FMA(t[e], row.rstd, base));
                NAME(store_run)(mixed ? R_TYPE : HALF_TYPE(a->dy_type), dx, at.dx + col, d);
            }
        at.dx += parts * a->dx_row;
    }
    const i64 features = a->segments * a->count, share = GROUP(0) * parts + part;
    const i64 plane = GROUPS(0) * parts * features;
    UNROLL
    for (i32 u = 0; u < GRAD_RUNS; u++)
        if (partial && lane + u * a->lanes < runs) {
            const i64 at = share * features + feature + (lane + u * a->lanes) * VEC;
            NAME(store_run)(R_TYPE, (GLOBAL u8 *)partial, at, sum_h[u]);
            NAME(store_run)(R_TYPE, (GLOBAL u8 *)partial, plane + at, sum_g[u]);
        }
}
#undef LAYER_NORM_GRAD
#define LAYER_NORM_GRAD(name, X, mixed, relu)                                                      \
    KERNEL(name, LANES)                                                                            \
    (BUF(const T, dy), BUF(const X, x), BUF(const R, mean), BUF(const R, rstd),                    \
     BUF(const R, gain), BUF(const R, bias), BUF(X, dx), BUF(R, partial),                          \
     const layer_norm_grad_arg a)                                                                  \
    {                                                                                              \
        QUEUE_WAIT();                                                                              \
        LOCAL R scratch[ROW_SCRATCH] ALIGNED;                                                      \
        OPEN(const T, dy);                                                                         \
        OPEN(const X, x);                                                                          \
        OPEN(const R, mean);                                                                       \
        OPEN(const R, rstd);                                                                       \
        OPEN(const R, gain);                                                                       \
        OPEN(const R, bias);                                                                       \
        OPEN(X, dx);                                                                               \
        OPEN(R, partial);                                                                          \
        NAME(grad_packed)(&a, mixed, relu, dy, x, mean, rstd, gain, bias, dx, partial, scratch);   \
    }

LAYER_NORM_GRAD(layer_norm_grad_packed, T, 0, 0)
LAYER_NORM_GRAD(layer_norm_grad_relu_packed, T, 0, 1)
#if VEC == 8
LAYER_NORM_GRAD(layer_norm_grad_mixed, R, 1, 0)
#endif
#endif

KERNEL(layer_norm_grad_cols, LANES)
(BUF(const T, dy), BUF(const u8, x), BUF(const R, mean), BUF(const R, rstd), BUF(const R, gain),
 BUF(const R, bias), BUF(u8, dx), const layer_norm_grad_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES * VEC];
    OPEN(const T, dy);
    OPEN(const u8, x);
    OPEN(const R, mean);
    OPEN(const R, rstd);
    OPEN(const R, gain);
    OPEN(const R, bias);
    OPEN(u8, dx);
    const i32 parts = LANES / a.lanes, part = LANE / a.lanes;
    const i64 tiles = ((a.rows + VEC - 1) / VEC + a.lanes - 1) / a.lanes;
    for (i64 item = GROUP(0); item < tiles * a.segments; item += GROUPS(0)) {
        const i64 s = item / tiles, n = (item % tiles * a.lanes + LANE % a.lanes) * VEC;
        const i64 features = n < a.rows ? a.count : 0;
        const i32 count = n < a.rows ? run_length(a.rows, n, VEC) : 0;
        R d[VEC], h[VEC], m[VEC], r[VEC], sum[VEC], sum_h[VEC];
        UNROLL
        for (i32 e = 0; e < VEC; e++) {
            m[e] = mean && e < count ? mean[s * a.rows + n + e] : (R)0;
            r[e] = e < count ? rstd[s * a.rows + n + e] : (R)0;
            sum[e] = sum_h[e] = 0;
        }
        for (i32 pass = 0; pass < 2; pass++) {
            for (i64 f = part; f < features; f += parts) {
                const i64 feature = s * a.count + f;
                const R g = gain ? gain[feature] : (R)1, b = bias ? bias[feature] : (R)0;
                NAME(load_part)
                (HALF_TYPE(a.dy_type), dy, feature * a.dy_col + n * a.dy_row, a.dy_row, count,
                 a.dy_vector, d);
                NAME(load_part)
                (a.x_type, x, feature * a.x_col + n * a.x_row, a.x_row, count, a.x_vector, h);
                UNROLL
                for (i32 e = 0; e < VEC; e++) {
                    NAME(norm_slope)(a.relu, m[e], r[e], g, b, h + e, d + e);
                    const R t = d[e] * g;
                    if (pass == 0) {
                        sum[e] += a.rms ? (R)0 : t;
                        sum_h[e] += t * h[e];
                    }
                    d[e] = r[e] * (t - FMA(h[e], sum_h[e], sum[e]));
                }
                if (pass == 1)
                    NAME(blend_part)
                (a.dx_type, dx, feature * a.dx_col + n * a.dx_row, a.dx_row, count, a.dx_vector,
                 NUM(a.dx_alpha), NUM(a.dx_beta), d);
            }
            if (pass == 0) {
                NAME(column_join)(scratch, a.lanes, sum);
                NAME(column_join)(scratch, a.lanes, sum_h);
                UNROLL
                for (i32 e = 0; e < VEC; e++) {
                    sum[e] *= NUM(a.inverse);
                    sum_h[e] *= NUM(a.inverse);
                }
            }
        }
    }
}
