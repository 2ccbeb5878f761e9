/* Kernels of the gradients of operands that may be repeated: maps, and sums over the dimensions
 * along which they are; sparse_relu. The host's side (sums.c, sparse_relu.c) includes this file
 * without SIMT_T for the structs of scalars. */
#define SIMT_SINGLES
#include "map.h"

#ifdef SIMT_T
#include "ops_act.h"
#endif

#include "elementwise_terms.h"

#ifndef BSKI_SIMT_SUMS_H
#define BSKI_SIMT_SUMS_H

/* A sum has kept dimensions, along which the results lie, and summed ones. Runs lie along the last
 * dimension of either; the other's last dimension is walked by elements. A group takes `kept_lanes`
 * positions of the kept dimensions, and LANES / kept_lanes lanes share the summed ones of each. */
enum { SUMS_INPUTS = 4, SUMS_MAX = 2 };

typedef struct sums_view {
    i64 kept[SHAPE_RANK], summed[SHAPE_RANK]; /* strides */
    i32 type, run;
} sums_view;

typedef struct sums_arg {
    shape_arg kept, summed;
    sums_view x[SUMS_INPUTS];
    i64 share;                 /* positions of the summed dimensions of one group */
    i64 shares;                /* partial is [sums][shares][elements kept] */
    i32 kept_lanes, runs_kept; /* runs_kept: runs lie along the kept dimensions */
    i32 kind, option;
} sums_arg;

/* y = alpha * sum + beta * y. */
typedef struct sums_finish_arg {
    shape_arg shape;
    view_arg y;
    i64 count, shares;
    i64 alpha, beta; /* NUM */
} sums_finish_arg;

#endif

#ifdef SIMT_T
/* dz, x, y; option: the derivative by x. */
DEVICE void NAME(binary_grad_run)(const map_arg *a, i64 first, R (*v)[VEC])
{
    const R alpha = NUM(a->alpha);
    NAME(binary_slope_run)(a->kind, a->option, v[1], v[2], v[0]);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        v[0][e] *= alpha;
}

/* dx from dy, x, gain, bias. */
DEVICE void NAME(cwise_linear_grad_run)(const map_arg *a, i64 first, R (*v)[VEC])
{
    const R alpha = NUM(a->alpha);
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
        const R gain = a->option & CWISE_GAIN ? v[2][e] : (R)1;
        v[0][e] = NAME(cwise_slope)(a->option, v[0][e], v[1][e], gain, v[3][e]) * gain * alpha;
    }
}

MAP(binary_grad, 3)
MAP(cwise_linear_grad, 4)

/* Where a lane of a group is. */
typedef struct sums_place {
    i64 slot, element; /* the position of the kept dimensions, and its first element */
    i64 at[SHAPE_RANK];
    i32 lane, lanes; /* among those that share it */
    i32 kept_lane, kept_unit, unit;
} sums_place;

DEVICE sums_place sums_find(const sums_arg *a, i32 vec, i32 group_lanes)
{
    sums_place p;
    i64 size[SHAPE_RANK];
    p.lanes = group_lanes / a->kept_lanes;
    p.kept_lane = a->runs_kept ? LANE % a->kept_lanes : LANE / p.lanes;
    p.lane = a->runs_kept ? LANE / a->kept_lanes : LANE % p.lanes;
    p.kept_unit = a->runs_kept ? vec : 1;
    p.unit = a->runs_kept ? 1 : vec;
    p.slot = GROUP(0) * a->kept_lanes + p.kept_lane;
    UNROLL
    for (i32 d = 0; d < SHAPE_RANK; d++)
        size[d] = a->kept.size[d];
    size[SHAPE_LAST] = (size[SHAPE_LAST] + p.kept_unit - 1) / p.kept_unit;
    shape_split(size, a->kept.rank, p.slot, p.at);
    const i64 line = QUOTIENT(p.slot, size[SHAPE_LAST]);
    p.element = line * a->kept.size[SHAPE_LAST] + (p.slot - line * size[SHAPE_LAST]) * p.kept_unit;
    return p;
}

/* The inputs of a run; 0 where one is absent. */
DEVICE void NAME(sums_load)(const sums_arg *a, const GLOBAL u8 *const *x, const sums_place *p,
                            const shape_walk *w, i32 inputs, i32 count, R (*v)[VEC])
{
    UNROLL
    for (i32 k = 0; k < inputs; k++) {
        const sums_view *t = &a->x[k];
        const i64 at = shape_offset(p->at, a->kept.rank, p->kept_unit, t->kept) +
                       shape_offset(w->at, w->rank, p->unit, t->summed);
        view_arg view;
        view.stride[SHAPE_LAST] = a->runs_kept ? t->kept[SHAPE_LAST] : t->summed[SHAPE_LAST];
        view.type = t->type;
        view.run = t->run;
        if (x[k]) {
            NAME(view_load)(&view, x[k], at, count, v[k]);
        } else {
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                v[k][e] = 0;
        }
    }
}

/* Joins the lanes' sums in a fixed order, and stores them. */
DEVICE void NAME(sums_store)(const sums_arg *a, const sums_place *p, GLOBAL R *partial,
                             LOCAL_ARG R *scratch, i32 number, R *sum)
{
    const i64 kept = shape_positions(&a->kept, 1);
    const i64 left = a->kept.size[SHAPE_LAST] - p->at[SHAPE_LAST] * p->kept_unit;
    const i32 place = p->lane * a->kept_lanes + p->kept_lane;
    i32 count = 1;
    if (a->runs_kept) {
        count = VEC;
    } else {
        for (i32 e = 1; e < VEC; e++)
            sum[0] += sum[e];
    }
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        if (e < count)
            scratch[e * LANES + place] = sum[e];
    SYNC();
    for (i32 reach = p->lanes / 2; reach > 0; reach /= 2) {
        if (p->lane < reach)
            for (i32 e = 0; e < count; e++)
                scratch[e * LANES + place] += scratch[e * LANES + place + reach * a->kept_lanes];
        SYNC();
    }
    if (p->lane == 0 && p->element < kept)
        for (i32 e = 0; e < count && e < left; e++)
            partial[(number * a->shares + GROUP(1)) * kept + p->element + e] =
                scratch[e * LANES + place];
    SYNC();
}

/* Kernel <name> by <name>_terms, which puts the terms of `sums` sums in v[0], v[1]. */
#undef SUMS
#define SUMS(name, inputs, sums)                                                                   \
    KERNEL(name, LANES)                                                                            \
    (BUF(const u8, x0), BUF(const u8, x1), BUF(const u8, x2), BUF(const u8, x3), BUF(R, partial),  \
     const sums_arg a)                                                                             \
    {                                                                                              \
        QUEUE_WAIT();                                                                              \
        LOCAL R scratch[LANES * VEC];                                                              \
        OPEN(const u8, x0);                                                                        \
        OPEN(const u8, x1);                                                                        \
        OPEN(const u8, x2);                                                                        \
        OPEN(const u8, x3);                                                                        \
        OPEN(R, partial);                                                                          \
        const GLOBAL u8 *const x[SUMS_INPUTS] = {x0, x1, x2, x3};                                  \
        const sums_place p = sums_find(&a, VEC, LANES);                                            \
        const i64 total = shape_positions(&a.summed, p.unit);                                      \
        const i64 share_end = (GROUP(1) + 1) * a.share < total ? (GROUP(1) + 1) * a.share : total; \
        const i64 end = p.element < shape_positions(&a.kept, 1) ? share_end : 0;                   \
        R sum[sums][VEC], v[inputs][VEC];                                                          \
        UNROLL                                                                                     \
        for (i32 e = 0; e < sums * VEC; e++)                                                       \
            sum[e / VEC][e % VEC] = 0;                                                             \
        shape_walk w;                                                                              \
        shape_range(&w, &a.summed, p.unit, GROUP(1) * a.share + p.lane, end, p.lanes);             \
        NO_UNROLL                                                                                  \
        for (; w.left > 0; shape_next(&w)) {                                                       \
            const i32 count =                                                                      \
                a.runs_kept ? run_length(a.kept.size[SHAPE_LAST], p.at[SHAPE_LAST] * VEC, VEC)     \
                            : run_length(a.summed.size[SHAPE_LAST], w.at[SHAPE_LAST] * VEC, VEC);  \
            NAME(sums_load)(&a, x, &p, &w, inputs, count, v);                                      \
            NAME(name##_terms)(&a, v);                                                             \
            UNROLL                                                                                 \
            for (i32 e = 0; e < sums * VEC; e++)                                                   \
                sum[e / VEC][e % VEC] += e % VEC < count ? v[e / VEC][e % VEC] : (R)0;             \
        }                                                                                          \
        UNROLL                                                                                     \
        for (i32 s = 0; s < sums; s++)                                                             \
            NAME(sums_store)(&a, &p, partial, scratch, s, sum[s]);                                 \
    }

/* As binary_grad. */
DEVICE void NAME(binary_sums_terms)(const sums_arg *a, R (*v)[VEC])
{
    NAME(binary_slope_run)(a->kind, a->option, v[1], v[2], v[0]);
}

/* dy, x, gain, bias: dgain and dbias. */
DEVICE void NAME(cwise_sums_terms)(const sums_arg *a, R (*v)[VEC])
{
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
        const R gain = a->option & CWISE_GAIN ? v[2][e] : (R)1;
        const R g = NAME(cwise_slope)(a->option, v[0][e], v[1][e], gain, v[3][e]);
        v[0][e] = g * (a->option & CWISE_BIAS_FIRST ? v[1][e] + v[3][e] : v[1][e]);
        v[1][e] = a->option & CWISE_BIAS_FIRST ? g * gain : g;
    }
}

SUMS(binary_sums, 3, 1)
SUMS(cwise_sums, 4, 2)

/* A group finishes SHARE_COLS elements. */
KERNEL(sums_finish, LANES)(BUF(const R, partial), BUF(u8, y), const sums_finish_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const R, partial);
    OPEN(u8, y);
    const R alpha = NUM(a.alpha), beta = NUM(a.beta);
    for (i64 first = GROUP(0) * SHARE_COLS; first < a.count; first += GROUPS(0) * SHARE_COLS) {
        const i64 element = first + LANE % SHARE_COLS;
        R sum = NAME(shares_sum)(scratch, SHARE_COLS, partial, a.shares, a.count, element);
        if (LANE < SHARE_COLS && element < a.count) {
            i64 at[SHAPE_RANK];
            shape_split(a.shape.size, a.shape.rank, element, at);
            const i64 place = shape_offset(at, a.shape.rank, 1, a.y.stride);
            sum *= alpha;
            if (beta != 0)
                sum += beta * NAME(load_r)(a.y.type, y, place);
            NAME(store_r)(a.y.type, y, place, sum);
        }
    }
}
#endif

#include "sparse_relu.h"
