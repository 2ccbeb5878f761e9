/* Kernels that choose elements; those of f32 serve all types but f64. The host's side (select.c)
 * includes this file without SIMT_T for the structs of scalars. */
#define SIMT_SINGLES
#ifndef BSKI_SIMT_SELECT_H
#define BSKI_SIMT_SELECT_H

/* Tensors [outer, along, cols]; x has `count` elements along the middle axis, an index `along`. */
typedef struct reduce_max_arg {
    i64 outer, count, cols;
    i64 x_outer, x_along, x_col, y_outer, y_col, at_outer, at_col;
    i32 lanes, x_type, y_type, at_type, x_vector, y_vector;
} reduce_max_arg;

/* shared: one index for all columns of a row. */
typedef struct take_along_arg {
    i64 outer, along, count, cols;
    i64 x_outer, x_along, x_col, index_outer, index_along, index_col, y_outer, y_along, y_col;
    i32 shared, x_type, index_type, y_type, x_vector, y_vector;
} take_along_arg;

/* Runs lie along the middle axis of dx (by_along) or along its columns. */
typedef struct take_along_grad_arg {
    i64 outer, along, count, cols;
    i64 dy_outer, dy_along, dy_col, index_outer, index_along, index_col;
    i64 dx_outer, dx_along, dx_col;
    i64 alpha, beta; /* NUM */
    i32 by_along, dy_type, index_type, dx_type, dx_vector, pad;
} take_along_grad_arg;

/* A group sorts the k largest of a row in `size` places of its own, a power of two. */
typedef struct topk_arg {
    i64 rows, count, k, size;
    i64 x_row, values_row, index_row;
    i32 x_type, values_type, index_type, x_vector;
} topk_arg;

typedef struct rectified_topk_arg {
    i64 rows, count, k;
    i64 x_row, dy_row, y_row; /* y: or dx */
    i64 alpha, beta;          /* NUM */
    i32 rebase, constant_cut, lanes, x_type, dy_type, y_type, x_vector, dy_vector, y_vector, pad;
} rectified_topk_arg;

#endif

#ifdef SIMT_T
#include "lanes.h"

#include "rows.h"

#include "rank.h"

DEVICE void NAME(store_index)(i32 type, GLOBAL u8 *p, i64 i, i64 v)
{
    if (type == SIMT_I64)
        ((GLOBAL i64 *)p)[i] = v;
    else if (type == SIMT_I32)
        ((GLOBAL i32 *)p)[i] = (i32)v;
    else if (type == SIMT_U16)
        ((GLOBAL u16 *)p)[i] = (u16)v;
    else
        p[i] = (u8)v;
}

/* Whether element (b, j) takes the place of (a, i): it is larger, or equal and comes first. A
 * position below 0 is that of no element. */
DEVICE i32 NAME(max_moves)(R a, i32 i, R b, i32 j)
{
    const i32 larger = b > a || (b != b && a == a), smaller = a > b || (a != a && b == b);
    return j >= 0 && (i < 0 || larger || (!smaller && j < i));
}

/* Items are tiles of `lanes` runs of columns; LANES / lanes elements of the middle axis at a
 * time. */
KERNEL(reduce_max, LANES)
(BUF(const u8, x), BUF(u8, y), BUF(u8, argmax), const reduce_max_arg a)
{
    QUEUE_WAIT();
    LOCAL R most[LANES * VEC];
    LOCAL i32 place[LANES * VEC];
    OPEN(const u8, x);
    OPEN(u8, y);
    OPEN(u8, argmax);
    const i32 parts = LANES / a.lanes, part = LANE / a.lanes;
    const i64 tiles = ((a.cols + VEC - 1) / VEC + a.lanes - 1) / a.lanes;
    for (i64 item = GROUP(0); item < tiles * a.outer; item += GROUPS(0)) {
        const i64 o = item / tiles, col = (item % tiles * a.lanes + LANE % a.lanes) * VEC;
        const i32 count = col < a.cols ? run_length(a.cols, col, VEC) : 0;
        R best[VEC], v[VEC];
        i32 at[VEC];
        UNROLL
        for (i32 e = 0; e < VEC; e++) {
            best[e] = LOWEST;
            at[e] = -1;
        }
        for (i64 j = part; count > 0 && j < a.count; j += parts) {
            NAME(load_part)
            (SINGLE_TYPE(a.x_type), x, o * a.x_outer + j * a.x_along + col * a.x_col, a.x_col,
             count, a.x_vector, v);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                if (NAME(max_moves)(best[e], at[e], v[e], (i32)j)) {
                    best[e] = v[e];
                    at[e] = (i32)j;
                }
        }
        UNROLL
        for (i32 e = 0; e < VEC; e++) {
            most[e * LANES + LANE] = best[e];
            place[e * LANES + LANE] = at[e];
        }
        SYNC();
        for (i32 reach = parts / 2; reach > 0; reach /= 2) {
            for (i32 e = 0; part < reach && e < count; e++) {
                const i32 mine = e * LANES + LANE, other = mine + reach * a.lanes;
                if (NAME(max_moves)(most[mine], place[mine], most[other], place[other])) {
                    most[mine] = most[other];
                    place[mine] = place[other];
                }
            }
            SYNC();
        }
        if (part == 0 && count > 0) {
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                v[e] = most[e * LANES + LANE];
            NAME(store_part)
            (a.y_type, y, o * a.y_outer + col * a.y_col, a.y_col, count, a.y_vector, v);
            for (i32 e = 0; argmax && e < count; e++)
                NAME(store_index)
            (a.at_type, argmax, o * a.at_outer + (col + e) * a.at_col, place[e * LANES + LANE]);
        }
        SYNC();
    }
}

KERNEL(take_along, LANES)
(BUF(const u8, x), BUF(const u8, index), BUF(u8, y), const take_along_arg a)
{
    QUEUE_WAIT();
    OPEN(const u8, x);
    OPEN(const u8, index);
    OPEN(u8, y);
    for (walk w = walk_start(a.outer * a.along, a.cols, VEC); w.left > 0; walk_next(&w)) {
        const i64 o = QUOTIENT(w.row, a.along), j = w.row - o * a.along, col = w.run * VEC;
        const i64 index_at = o * a.index_outer + j * a.index_along + col * a.index_col;
        const i64 x_at = o * a.x_outer + col * a.x_col;
        const i32 count = run_length(a.cols, col, VEC);
        R v[VEC];
        if (a.shared) {
            const i64 from = load_index(a.index_type, index, index_at);
            const i32 inside = from >= 0 && from < a.count;
            NAME(load_part)
            (SINGLE_TYPE(a.x_type), x, x_at + (inside ? from : 0) * a.x_along, a.x_col,
             inside ? count : 0, a.x_vector, v);
        } else {
            UNROLL
            for (i32 e = 0; e < VEC; e++) {
                i64 from = -1;
                if (e < count)
                    from = load_index(a.index_type, index, index_at + e * a.index_col);
                v[e] = from >= 0 && from < a.count
                           ? NAME(load_r)(SINGLE_TYPE(a.x_type), x,
                                          x_at + from * a.x_along + e * a.x_col)
                           : (R)0;
            }
        }
        NAME(store_part)
        (a.y_type, y, o * a.y_outer + j * a.y_along + col * a.y_col, a.y_col, count, a.y_vector, v);
    }
}

/* Every element of dx looks for the positions that took it, in their order. */
KERNEL(take_along_grad, LANES)
(BUF(const u8, dy), BUF(const u8, index), BUF(u8, dx), const take_along_grad_arg a)
{
    QUEUE_WAIT();
    OPEN(const u8, dy);
    OPEN(const u8, index);
    OPEN(u8, dx);
    const i64 cols = a.by_along ? a.count : a.cols, across = a.by_along ? a.cols : a.count;
    const i64 stride = a.by_along ? a.dx_along : a.dx_col;
    const R alpha = NUM(a.alpha), beta = NUM(a.beta);
    for (walk w = walk_start(a.outer * across, cols, VEC); w.left > 0; walk_next(&w)) {
        const i64 o = QUOTIENT(w.row, across), i = w.row - o * across, first = w.run * VEC;
        const i64 col = a.by_along ? i : first;
        const i64 dx_at = o * a.dx_outer + i * (a.by_along ? a.dx_col : a.dx_along);
        const i32 count = run_length(cols, first, VEC);
        R sum[VEC], old[VEC];
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            sum[e] = 0;
        NO_UNROLL
        for (i64 j = 0; j < a.along; j++) {
            const i64 index_at = o * a.index_outer + j * a.index_along + col * a.index_col;
            const i64 dy_at = o * a.dy_outer + j * a.dy_along + col * a.dy_col;
            if (a.by_along) {
                const i64 e_hit = load_index(a.index_type, index, index_at) - first;
                if (e_hit >= 0 && e_hit < count) {
                    const R d = NAME(load_r)(SINGLE_TYPE(a.dy_type), dy, dy_at);
                    UNROLL
                    for (i32 e = 0; e < VEC; e++)
                        sum[e] += e == e_hit ? d : (R)0;
                }
            } else {
                UNROLL
                for (i32 e = 0; e < VEC; e++)
                    if (e < count &&
                        load_index(a.index_type, index, index_at + e * a.index_col) == i)
                        sum[e] += NAME(load_r)(SINGLE_TYPE(a.dy_type), dy, dy_at + e * a.dy_col);
            }
        }
        if (beta != 0)
            NAME(load_part)
        (a.dx_type, dx, dx_at + first * stride, stride, count, a.dx_vector, old);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            sum[e] = beta != 0 ? alpha * sum[e] + beta * old[e] : alpha * sum[e];
        NAME(store_part)
        (a.dx_type, dx, dx_at + first * stride, stride, count, a.dx_vector, sum);
    }
}

/* =========================================================================== the k largest ==== */

/* A row as it is. */
DEVICE NAME(ranked_row)
    NAME(plain_row)(i32 type, const GLOBAL void *x, i64 at, i64 count, i32 vector)
{
    NAME(ranked_row) row;
    row.x = NAME(row_make)(type, x, 1, count, vector);
    row.x.at = at;
    row.mask = row.x;
    row.scale = 1;
    row.masked = 0;
    return row;
}

/* How many elements the lanes before this one have. */
DEVICE i32 NAME(count_before)(LOCAL_ARG i32 *counts, i32 mine)
{
#if LANES > 1
    i32 sum = mine;
    counts[LANE] = mine;
    BARRIER();
    for (i32 reach = 1; reach < LANES; reach *= 2) {
        const i32 other = LANE >= reach ? counts[LANE - reach] : 0;
        BARRIER();
        sum += other;
        counts[LANE] = sum;
        BARRIER();
    }
    return sum - mine;
#else
    return 0;
#endif
}

/* Falling order of keys, rising order of the positions of equal ones: a network, in memory. */
DEVICE void NAME(rank_sort)(GLOBAL KEY *keys, GLOBAL i32 *at, i64 size)
{
    for (i64 block = 2; block <= size; block *= 2)
        for (i64 reach = block / 2; reach > 0; reach /= 2) {
            for (i64 i = LANE; i < size / 2; i += LANES) {
                const i64 low = 2 * i - (i & (reach - 1)), high = low + reach;
                const KEY a = keys[low], b = keys[high];
                const i32 p = at[low], q = at[high];
                const i32 before = b > a || (b == a && q < p); /* high before low */
                if (before == ((low & block) == 0)) {
                    keys[low] = b;
                    keys[high] = a;
                    at[low] = q;
                    at[high] = p;
                }
            }
            GLOBAL_SYNC();
        }
}

KERNEL(topk, LANES)
(BUF(const u8, x), BUF(u8, values), BUF(u8, index), BUF(KEY, all_keys), BUF(i32, all_places),
 const topk_arg a)
{
    QUEUE_WAIT();
    LOCAL i32 counts[LANES];
    OPEN(const u8, x);
    OPEN(u8, values);
    OPEN(u8, index);
    OPEN(KEY, all_keys);
    OPEN(i32, all_places);
    GLOBAL KEY *const keys = all_keys + GROUP(0) * a.size;
    GLOBAL i32 *const places = all_places + GROUP(0) * a.size;
    const i64 runs = (a.count + VEC - 1) / VEC;
    for (i64 n = GROUP(0); n < a.rows; n += GROUPS(0)) {
        const NAME(ranked_row) row =
            NAME(plain_row)(SINGLE_TYPE(a.x_type), x, n * a.x_row, a.count, a.x_vector);
        const NAME(rank_cut) cut = NAME(rank_kth)(&row, runs, LANES, counts, a.k, 0);
        i32 count = 0, next = 0;
        for (i32 pass = 0; pass < 2; pass++) {
            if (pass == 1)
                next = NAME(count_before)(counts, count);
            NO_UNROLL
            for (i64 run = LANE; run < runs; run += LANES) {
                R v[VEC];
                u32 live = NAME(rank_run)(&row, run, v);
                live = NAME(rank_live)(&cut, run, live, v);
                UNROLL
                for (i32 e = 0; e < VEC; e++)
                    if (live >> e & 1) {
                        if (pass == 1) {
                            keys[next] = NAME(rank_key)(v[e]);
                            places[next] = (i32)(run * VEC + e);
                        }
                        next++;
                    }
            }
            count = next;
        }
        for (i64 i = a.k + LANE; i < a.size; i += LANES) {
            keys[i] = 0;
            places[i] = 0x7fffffff;
        }
        GLOBAL_SYNC();
        NAME(rank_sort)(keys, places, a.size);
        for (i64 j = LANE; j < a.k; j += LANES) {
            const i32 at = places[j];
            NAME(store_r)
            (a.values_type, values, n * a.values_row + j,
             NAME(load_r)(SINGLE_TYPE(a.x_type), x, n * a.x_row + at));
            if (index)
                NAME(store_index)(a.index_type, index, n * a.index_row + j, at);
        }
        GLOBAL_SYNC();
    }
}

/* What rectified_topk subtracts. */
DEVICE R NAME(topk_cut)(const rectified_topk_arg *a, const NAME(rank_cut) * cut)
{
    const R kth = NAME(rank_value)(cut->key);
    return !a->rebase || kth < 0 ? (R)0 : kth;
}

KERNEL(rectified_topk, LANES)
(BUF(const u8, x), BUF(u8, y), const rectified_topk_arg a)
{
    QUEUE_WAIT();
    LOCAL i32 counts[LANES];
    OPEN(const u8, x);
    OPEN(u8, y);
    const i32 parts = LANES / a.lanes;
    const i64 runs = (a.count + VEC - 1) / VEC;
    for (i64 first = GROUP(0) * parts; first < a.rows; first += GROUPS(0) * parts) {
        const i64 n = first + LANE / a.lanes, here = n < a.rows ? runs : 0;
        const NAME(ranked_row) row =
            NAME(plain_row)(SINGLE_TYPE(a.x_type), x, n * a.x_row, a.count, a.x_vector);
        const NAME(rank_cut) cut = NAME(rank_kth)(&row, here, a.lanes, counts, a.k, 1);
        const R low = NAME(topk_cut)(&a, &cut);
        for (i64 run = LANE % a.lanes; run < here; run += a.lanes) {
            R v[VEC];
            u32 live = NAME(rank_run)(&row, run, v);
            live = NAME(rank_live)(&cut, run, live, v);
            UNROLL
            for (i32 e = 0; e < VEC; e++) {
                v[e] -= low;
                v[e] = !(live >> e & 1) || v[e] <= 0 ? (R)0 : v[e];
            }
            NAME(store_part)
            (a.y_type, y, n * a.y_row + run * VEC, 1, run_length(a.count, run * VEC, VEC),
             a.y_vector, v);
        }
    }
}

/* g of a run in place of dy. */
DEVICE void NAME(topk_slope)(u32 live, R low, const R *v, R *d)
{
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
        const R over = v[e] - low;
        d[e] = live >> e & 1 ? d[e] * (over > 0 ? (R)1 : over <= 0 ? (R)0 : over) : (R)0;
    }
}

KERNEL(rectified_topk_grad, LANES)
(BUF(const u8, dy), BUF(const u8, x), BUF(u8, dx), const rectified_topk_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[ROW_SCRATCH] ALIGNED;
    LOCAL i32 counts[LANES];
    OPEN(const u8, dy);
    OPEN(const u8, x);
    OPEN(u8, dx);
    const i32 parts = LANES / a.lanes;
    const i64 runs = (a.count + VEC - 1) / VEC;
    const R alpha = NUM(a.alpha), beta = NUM(a.beta);
    for (i64 first = GROUP(0) * parts; first < a.rows; first += GROUPS(0) * parts) {
        const i64 n = first + LANE / a.lanes, here = n < a.rows ? runs : 0;
        const NAME(ranked_row) row = NAME(plain_row)(a.x_type, x, n * a.x_row, a.count, a.x_vector);
        NAME(row_of) d_row = NAME(row_make)(SINGLE_TYPE(a.dy_type), dy, 1, a.count, a.dy_vector);
        const NAME(rank_cut) cut = NAME(rank_kth)(&row, here, a.lanes, counts, a.k, 1);
        const R low = NAME(topk_cut)(&a, &cut);
        const i32 moves = a.rebase && !a.constant_cut && low > 0;
        R v[VEC], d[VEC], old[VEC], sum = 0;
        d_row.at = n * a.dy_row;
        for (i32 pass = 0; pass < 2; pass++) {
            NO_UNROLL
            for (i64 run = LANE % a.lanes; run < here; run += a.lanes) {
                const i32 count = run_length(a.count, run * VEC, VEC);
                u32 live = NAME(rank_run)(&row, run, v);
                live = NAME(rank_live)(&cut, run, live, v);
                NAME(row_load)(&d_row, run, d);
                NAME(topk_slope)(live, low, v, d);
                if (pass == 0) {
                    sum += NAME(row_total)(d);
                    continue;
                }
                if (beta != 0)
                    NAME(load_part)
                (a.y_type, dx, n * a.y_row + run * VEC, 1, count, a.y_vector, old);
                UNROLL
                for (i32 e = 0; e < VEC; e++) {
                    d[e] -= moves && run * VEC + e == cut.end - 1 ? sum : (R)0;
                    d[e] = beta != 0 ? alpha * d[e] + beta * old[e] : alpha * d[e];
                }
                NAME(store_part)
                (a.y_type, dx, n * a.y_row + run * VEC, 1, count, a.y_vector, d);
            }
            if (pass == 0)
                sum = NAME(row_sum)(scratch, a.lanes, sum);
        }
    }
}

#endif
