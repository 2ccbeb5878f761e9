/* Maps: y = f(x0, x1 ...) + beta * y, element by element, over tensors of any shape. Included
 * without SIMT_T by the host.
 *
 * MAP(name, inputs) defines kernel <name> by <name>_run, which puts f of the run of each input in
 * v[0], v[1] ... in place of v[0]; first is the number of the run's first element for random ones.
 * MAP_WHOLE(name, function, inputs) defines a kernel for tensors that are whole, and for beta = 0;
 * function is such a <name>_run. */
#include "shape.h"

#ifndef BSKI_SIMT_MAP_H
#define BSKI_SIMT_MAP_H

/* MAP_RUNS: what a lane of a kernel for whole tensors takes. */
enum { MAP_INPUTS = 4, MAP_RUNS = 2 };

typedef struct map_arg {
    shape_arg shape;
    view_arg x[MAP_INPUTS], y;
    i64 number[SHAPE_RANK]; /* strides of the numbers by which elements draw random ones */
    i64 whole;              /* runs of tensors without gaps, of the kernel's type, aligned; or 0 */
    i64 alpha, beta, c, d;  /* NUM */
    i64 seed, offset;
    i32 kind, option, limit, pad;
} map_arg;

#endif

#ifdef SIMT_T
/* Loads a run of the inputs ahead of its use, where runs are whole. */
DEVICE void NAME(map_fetch)(const map_arg *a, const GLOBAL u8 *const *x, i64 run, i32 inputs,
                            RAW *q)
{
#if LANES > 1
    if (run < a->whole) {
        UNROLL
        for (i32 k = 0; k < inputs; k++)
            q[k] = NAME(load_raw)(a->x[k].type, (const GLOBAL T *)x[k] + run * VEC);
    }
#endif
}

/* The inputs of a run; 0 where one is absent. */
DEVICE void NAME(map_load)(const map_arg *a, const GLOBAL u8 *const *x, const shape_walk *w,
                           i32 inputs, const RAW *q, R (*v)[VEC])
{
    const i64 run = w->at[SHAPE_LAST];
    UNROLL
    for (i32 k = 0; k < inputs; k++) {
        if (LANES > 1 && run < a->whole) {
            NAME(unpack_run)(a->x[k].type, q[k], v[k]);
        } else if (x[k]) {
            NAME(view_load)
            (&a->x[k], x[k], shape_offset(w->at, w->rank, VEC, a->x[k].stride),
             run_length(a->shape.size[SHAPE_LAST], run * VEC, VEC), v[k]);
        } else {
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                v[k][e] = 0;
        }
    }
}

DEVICE void NAME(map_store)(const map_arg *a, const shape_walk *w, GLOBAL u8 *y, R *v)
{
    const i64 run = w->at[SHAPE_LAST], at = shape_offset(w->at, w->rank, VEC, a->y.stride);
    const i32 count = run_length(a->shape.size[SHAPE_LAST], run * VEC, VEC);
    const R beta = NUM(a->beta);
    if (beta != 0) {
        R old[VEC];
        NAME(view_load)(&a->y, y, at, count, old);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] += beta * old[e];
    }
    if (LANES > 1 && run < a->whole)
        NAME(store_run)(HALF_TYPE(a->y.type), y, run * VEC, v);
    else
        NAME(view_store)(&a->y, y, at, count, v);
}

/* The loop of a kernel with argument a and inputs x: runs of them in v, at place w. */
#undef MAP_EACH
#define MAP_EACH(inputs, body) MAP_EACH_BY(NAME(map_load), inputs, body)
#undef MAP_EACH_BY
#define MAP_EACH_BY(load, inputs, body)                                                            \
    shape_walk w;                                                                                  \
    shape_start(&w, &a.shape, VEC, LANES);                                                         \
    RAW ahead[2][inputs];                                                                          \
    R v[inputs][VEC];                                                                              \
    NAME(map_fetch)(&a, x, w.at[SHAPE_LAST], inputs, ahead[0]);                                    \
    NAME(map_fetch)(&a, x, w.at[SHAPE_LAST] + w.step[SHAPE_LAST], inputs, ahead[1]);               \
    NO_UNROLL                                                                                      \
    for (; w.left > 0; shape_next(&w)) {                                                           \
        load(&a, x, &w, inputs, ahead[0], v);                                                      \
        UNROLL                                                                                     \
        for (i32 k = 0; k < inputs; k++)                                                           \
            ahead[0][k] = ahead[1][k];                                                             \
        NAME(map_fetch)(&a, x, w.at[SHAPE_LAST] + 2 * w.step[SHAPE_LAST], inputs, ahead[1]);       \
        body                                                                                       \
    }

#undef MAP
#define MAP(name, inputs)                                                                          \
    KERNEL(name, LANES)                                                                            \
    (BUF(const u8, x0), BUF(const u8, x1), BUF(const u8, x2), BUF(const u8, x3), BUF(u8, y),       \
     const map_arg a)                                                                              \
    {                                                                                              \
        QUEUE_WAIT();                                                                              \
        OPEN(const u8, x0);                                                                        \
        OPEN(const u8, x1);                                                                        \
        OPEN(const u8, x2);                                                                        \
        OPEN(const u8, x3);                                                                        \
        OPEN(u8, y);                                                                               \
        const GLOBAL u8 *const x[MAP_INPUTS] = {x0, x1, x2, x3};                                   \
        MAP_EACH(inputs, NAME(name##_run)(&a, shape_offset(w.at, w.rank, VEC, a.number), v);       \
                 NAME(map_store)(&a, &w, y, v[0]);)                                                \
    }

/* All that a lane reads is on its way before the first of it is used, and nothing is kept for a next
 * round, so that many groups fit. */
#undef MAP_WHOLE
#if LANES > 1
#define MAP_WHOLE(name, function, inputs)                                                          \
    KERNEL(name, LANES)                                                                            \
    (BUF(const T, x0), BUF(const T, x1), BUF(u8, y), const map_arg a)                              \
    {                                                                                              \
        QUEUE_WAIT();                                                                              \
        OPEN(const T, x0);                                                                         \
        OPEN(const T, x1);                                                                         \
        OPEN(u8, y);                                                                               \
        const GLOBAL T *const x[2] = {x0, x1};                                                     \
        const i64 first = GROUP(0) * (MAP_RUNS * LANES) + LANE;                                    \
        RAW q[MAP_RUNS][inputs];                                                                   \
        UNROLL                                                                                     \
        for (i32 u = 0; u < MAP_RUNS; u++) {                                                       \
            UNROLL                                                                                 \
            for (i32 k = 0; k < inputs; k++)                                                       \
                if (first + u * LANES < a.whole)                                                   \
                    q[u][k] = NAME(load_raw)(a.x[k].type, x[k] + (first + u * LANES) * VEC);       \
        }                                                                                          \
        UNROLL_RUNS                                                                                \
        for (i32 u = 0; u < MAP_RUNS; u++) {                                                       \
            const i64 run = first + u * LANES;                                                     \
            R v[inputs][VEC];                                                                      \
            if (run < a.whole) {                                                                   \
                UNROLL                                                                             \
                for (i32 k = 0; k < inputs; k++)                                                   \
                    NAME(unpack_run)(a.x[k].type, q[0][k], v[k]);                                  \
                NAME(function)(&a, run * VEC, v);                                                  \
                NAME(store_run)(HALF_TYPE(a.y.type), y, run * VEC, v[0]);                          \
            }                                                                                      \
            UNROLL                                                                                 \
            for (i32 k = 0; k < inputs; k++)                                                       \
                q[0][k] = q[1][k];                                                                 \
        }                                                                                          \
    }
#else
#define MAP_WHOLE(name, function, inputs)
#endif
#endif
