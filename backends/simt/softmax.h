/* Kernels of the dense softmax. The host's side (softmax.c) includes this file without SIMT_T for
 * the structs of scalars. */
#define SIMT_HALVES
#ifndef BSKI_SIMT_SOFTMAX_H
#define BSKI_SIMT_SOFTMAX_H

/* Rows are numbered over `rank` dimensions, the last of which runs fastest; their elements have
 * stride 1, those of the mask mask_last. */
enum { SOFTMAX_DIMS = 4 };

typedef struct softmax_arg {
    i64 rows, count, k;
    i64 dims[SOFTMAX_DIMS], x[SOFTMAX_DIMS], y[SOFTMAX_DIMS], mask[SOFTMAX_DIMS];
    i64 mask_last;
    i64 scale; /* NUM */
    i32 rank, lanes, x_type, y_type, mask_type, x_vector, y_vector, mask_vector;
} softmax_arg;

typedef struct softmax_grad_arg {
    i64 rows, count;
    i64 dims[SOFTMAX_DIMS], dy[SOFTMAX_DIMS], y[SOFTMAX_DIMS], dx[SOFTMAX_DIMS];
    i64 mask[SOFTMAX_DIMS];
    i64 mask_last;
    i64 factor, beta; /* NUM; factor: alpha * scale */
    i32 rank, lanes, dy_type, y_type, dx_type, mask_type;
    i32 dy_vector, y_vector, dx_vector, mask_vector;
} softmax_grad_arg;

/* Packed rows, of whole runs that are aligned and of one type in all tensors. factor: scale, and
 * alpha * scale in the gradient. */
typedef struct softmax_packed_arg {
    i64 rows, x_row, y_row, dx_row;
    i64 factor; /* NUM */
    i32 runs, lanes, type, pad;
} softmax_packed_arg;

#endif

#ifdef SIMT_T
#include "lanes.h"

#include "rows.h"

/* Runs of a packed row that a lane holds. */
#undef ROW_RUNS
#define ROW_RUNS 4

#include "rank.h"

/* What of the number of a row is its index in dimension d; *row keeps the rest. */
DEVICE i64 NAME(softmax_index)(i32 rank, i32 d, i64 size, i64 *row)
{
    i64 i = 0;
    if (d < rank) {
        const i64 rest = d > 0 ? QUOTIENT(*row, size) : 0;
        i = *row - rest * size;
        *row = rest;
    }
    return i;
}

/* The largest element of a row, and the sum of exp about it. */
typedef struct NAME(softmax_sums) {
    R most, sum;
} NAME(softmax_sums);

/* A row whose sum is 0 gives zeros. */
DEVICE R NAME(softmax_scale)(R sum)
{
    return sum == 0 ? (R)0 : 1 / sum;
}

DEVICE R NAME(softmax_most)(u32 live, const R *v, R most)
{
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        most = NAME(row_join)(1, most, live >> e & 1 ? v[e] : LOWEST);
    return most;
}

/* A run of a row, and which of its elements take part. */
DEVICE u32 NAME(softmax_run)(const softmax_arg *a, const NAME(ranked_row) * row, i64 run,
                             const NAME(rank_cut) * cut, R *v)
{
    const u32 live = NAME(rank_run)(row, run, v);
    return a->k > 0 ? NAME(rank_live)(cut, run, live, v) : live;
}

/* A pass for the largest and the sum about what a lane has met of it, a pass that writes. */
DEVICE void NAME(softmax_row)(const softmax_arg *a, const NAME(ranked_row) * row, i64 runs,
                              const NAME(rank_cut) * cut, GLOBAL u8 *y, i64 y_at,
                              LOCAL_ARG R *scratch)
{
    R most = LOWEST, sum = 0, v[VEC];
    NO_UNROLL
    for (i64 run = LANE % a->lanes; run < runs; run += a->lanes) {
        const u32 live = NAME(softmax_run)(a, row, run, cut, v);
        const R high = NAME(softmax_most)(live, v, most);
        if (high > most)
            sum *= NAME(fast_exp)(most - high);
        most = high;
        sum += NAME(row_exp)(live, most, v);
    }
    const R mine = most;
    most = NAME(row_max)(scratch, a->lanes, mine);
    if (mine < most)
        sum *= NAME(fast_exp)(mine - most);
    const R scale = NAME(softmax_scale)(NAME(row_sum)(scratch, a->lanes, sum));
    const R shift = most == LOWEST ? (R)0 : most;
    NO_UNROLL
    for (i64 run = LANE % a->lanes; run < runs; run += a->lanes) {
        const u32 live = NAME(softmax_run)(a, row, run, cut, v);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] = live >> e & 1 ? NAME(row_share)(v[e], shift, scale) : (R)0;
        NAME(store_part)
        (a->y_type, y, y_at + run * VEC, 1, run_length(a->count, run * VEC, VEC), a->y_vector, v);
    }
}

KERNEL(masked_softmax, LANES)
(BUF(const T, x), BUF(const u8, mask), BUF(u8, y), const softmax_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[ROW_SCRATCH] ALIGNED;
    LOCAL i32 counts[LANES];
    OPEN(const T, x);
    OPEN(const u8, mask);
    OPEN(u8, y);
    const i32 parts = LANES / a.lanes;
    const i64 runs = (a.count + VEC - 1) / VEC;
    for (i64 first = GROUP(0) * parts; first < a.rows; first += GROUPS(0) * parts) {
        const i64 number = first + LANE / a.lanes, here = number < a.rows ? runs : 0;
        NAME(ranked_row) row;
        NAME(rank_cut) cut;
        i64 y_at = 0, rest = number;
        cut.key = 0;
        cut.end = 0;
        row.x = NAME(row_make)(HALF_TYPE(a.x_type), x, 1, a.count, a.x_vector);
        row.mask = NAME(row_make)(a.mask_type, mask, a.mask_last, a.count, a.mask_vector);
        row.masked = mask != 0;
        row.scale = NUM(a.scale);
        UNROLL
        for (i32 d = SOFTMAX_DIMS - 1; d >= 0; d--) {
            const i64 i = NAME(softmax_index)(a.rank, d, a.dims[d], &rest);
            row.x.at += i * a.x[d];
            row.mask.at += i * a.mask[d];
            y_at += i * a.y[d];
        }
        if (a.k > 0)
            cut = NAME(rank_kth)(&row, here, a.lanes, counts, a.k, 0);
        NAME(softmax_row)(&a, &row, here, &cut, y, y_at, scratch);
    }
}

#if LANES > 1
/* Packed rows that fit into registers, numbered over one dimension: all elements take part. A group
 * has one batch of rows: in a loop, what belongs to the next one would take registers. */
KERNEL(masked_softmax_packed, LANES)
(BUF(const T, x), BUF(T, y), const softmax_packed_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[ROW_SCRATCH] ALIGNED;
    OPEN(const T, x);
    OPEN(T, y);
    const i32 lane = LANE % a.lanes;
    const i64 n = GROUP(0) * (LANES / a.lanes) + LANE / a.lanes;
    const i32 runs = n < a.rows ? a.runs : 0;
    const R factor = NUM(a.factor);
    RAW q[ROW_RUNS];
    R v[ROW_RUNS][VEC], most = LOWEST, sum = 0;
    NAME(row_hold)(a.type, x + n * a.x_row, lane, runs, a.lanes, ROW_RUNS, q);
    UNROLL
    for (i32 u = 0; u < ROW_RUNS; u++)
        if (lane + u * a.lanes < runs) {
            NAME(unpack_run)(a.type, q[u], v[u]);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                v[u][e] *= factor;
            most = NAME(softmax_most)(~0u, v[u], most);
        }
    NAME(row_reduce_in_turn)(scratch, 0, a.lanes, 1, 1, &most);
    const R shift = most == LOWEST ? (R)0 : most;
    UNROLL
    for (i32 u = 0; u < ROW_RUNS; u++)
        if (lane + u * a.lanes < runs)
            sum += NAME(row_powers)(1, shift, v[u]);
    NAME(row_reduce_in_turn)(scratch, 1, a.lanes, 0, 1, &sum);
    const R scale = NAME(softmax_scale)(sum);
    UNROLL
    for (i32 u = 0; u < ROW_RUNS; u++)
        if (lane + u * a.lanes < runs) {
            NAME(row_shares)(scale, v[u]);
            NAME(store_run)
            (HALF_TYPE(a.type), (GLOBAL u8 *)y, n * a.y_row + (lane + u * a.lanes) * VEC, v[u]);
        }
}
#endif

/* ====================================================================== gradient ==== */

typedef struct NAME(softmax_rows) {
    NAME(row_of) dy, y, mask;
    i64 dx_at;
} NAME(softmax_rows);

/* dx of a run from dy and y of it. */
DEVICE void NAME(softmax_slope)(const softmax_grad_arg *a, const NAME(softmax_rows) * row, i64 run,
                                R sum, const GLOBAL u8 *mask, GLOBAL u8 *dx, const R *y, R *d)
{
    const R scale = NUM(a->factor), beta = NUM(a->beta);
    const i32 count = run_length(a->count, run * VEC, VEC);
    R factor[VEC];
    if (mask)
        NAME(row_load)(&row->mask, run, factor);
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
        const R each = (d[e] - sum) * y[e] * (mask ? factor[e] * scale : scale);
        d[e] = y[e] != 0 ? each : (R)0;
    }
    if (beta != 0) {
        NAME(load_part)(a->dx_type, dx, row->dx_at + run * VEC, 1, count, a->dx_vector, factor);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            d[e] += beta * factor[e];
    }
    NAME(store_part)(a->dx_type, dx, row->dx_at + run * VEC, 1, count, a->dx_vector, d);
}

DEVICE R NAME(softmax_dot)(const R *y, const R *d)
{
    R sum = 0;
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        sum += y[e] != 0 ? d[e] * y[e] : (R)0;
    return sum;
}

KERNEL(masked_softmax_grad, LANES)
(BUF(const T, dy), BUF(const u8, y), BUF(const u8, mask), BUF(u8, dx), const softmax_grad_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[ROW_SCRATCH] ALIGNED;
    OPEN(const T, dy);
    OPEN(const u8, y);
    OPEN(const u8, mask);
    OPEN(u8, dx);
    const i32 parts = LANES / a.lanes, lane = LANE % a.lanes;
    const i64 runs = (a.count + VEC - 1) / VEC;
    for (i64 first = GROUP(0) * parts; first < a.rows; first += GROUPS(0) * parts) {
        const i64 number = first + LANE / a.lanes, here = number < a.rows ? runs : 0;
        NAME(softmax_rows) row;
        R v[VEC], d[VEC], sum = 0;
        i64 rest = number;
        row.dx_at = 0;
        row.dy = NAME(row_make)(HALF_TYPE(a.dy_type), dy, 1, a.count, a.dy_vector);
        row.y = NAME(row_make)(a.y_type, y, 1, a.count, a.y_vector);
        row.mask = NAME(row_make)(a.mask_type, mask, a.mask_last, a.count, a.mask_vector);
        UNROLL
        for (i32 k = SOFTMAX_DIMS - 1; k >= 0; k--) {
            const i64 i = NAME(softmax_index)(a.rank, k, a.dims[k], &rest);
            row.dy.at += i * a.dy[k];
            row.y.at += i * a.y[k];
            row.mask.at += i * a.mask[k];
            row.dx_at += i * a.dx[k];
        }
        NO_UNROLL
        for (i64 run = lane; run < here; run += a.lanes) {
            NAME(row_load)(&row.dy, run, d);
            NAME(row_load)(&row.y, run, v);
            sum += NAME(softmax_dot)(v, d);
        }
        sum = NAME(row_sum)(scratch, a.lanes, sum);
        NO_UNROLL
        for (i64 run = lane; run < here; run += a.lanes) {
            NAME(row_load)(&row.dy, run, d);
            NAME(row_load)(&row.y, run, v);
            NAME(softmax_slope)(&a, &row, run, sum, mask, dx, v, d);
        }
    }
}

#if LANES > 1
/* The same for packed rows that fit into registers, without a mask and an old dx. x is dy. */
KERNEL(masked_softmax_grad_packed, LANES)
(BUF(const T, dy), BUF(const T, y), BUF(T, dx), const softmax_packed_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[ROW_SCRATCH] ALIGNED;
    OPEN(const T, dy);
    OPEN(const T, y);
    OPEN(T, dx);
    const i32 lane = LANE % a.lanes;
    const i64 n = GROUP(0) * (LANES / a.lanes) + LANE / a.lanes;
    const i32 runs = n < a.rows ? a.runs : 0;
    const R factor = NUM(a.factor);
    RAW q[ROW_RUNS], p[ROW_RUNS];
    R v[VEC], d[VEC], sum = 0;
    NAME(row_hold)(a.type, dy + n * a.x_row, lane, runs, a.lanes, ROW_RUNS, q);
    NAME(row_hold)(a.type, y + n * a.y_row, lane, runs, a.lanes, ROW_RUNS, p);
    UNROLL
    for (i32 u = 0; u < ROW_RUNS; u++)
        if (lane + u * a.lanes < runs) {
            NAME(unpack_run)(a.type, q[u], d);
            NAME(unpack_run)(a.type, p[u], v);
            sum += NAME(softmax_dot)(v, d);
        }
    NAME(row_reduce_in_turn)(scratch, 0, a.lanes, 0, 1, &sum);
    UNROLL
    for (i32 u = 0; u < ROW_RUNS; u++)
        if (lane + u * a.lanes < runs) {
            NAME(unpack_run)(a.type, q[u], d);
            NAME(unpack_run)(a.type, p[u], v);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                d[e] = v[e] != 0 ? (d[e] - sum) * v[e] * factor : (R)0;
            NAME(store_run)
            (HALF_TYPE(a.type), (GLOBAL u8 *)dx, n * a.dx_row + (lane + u * a.lanes) * VEC, d);
        }
}
#endif

#endif
