/* Tensors of any shape and strides: the host joins and orders their dimensions (dims.c), kernels
 * walk over them in runs of VEC elements of the last one, in groups of 256. The host includes this
 * file without SIMT_T. */
#ifdef SIMT_T
#include "lanes.h"
#endif

#ifndef BSKI_SIMT_SHAPE_H
#define BSKI_SIMT_SHAPE_H

enum { SHAPE_RANK = 5, SHAPE_LAST = 4 };

/* Dimensions are counted from the last; those before the first one in use are 1. */
typedef struct shape_arg {
    i64 size[SHAPE_RANK];
    i32 rank, pad;
} shape_arg;

/* How a run of a tensor lies: at the stride of the last dimension, as aligned neighbours, or as one
 * element that is repeated. */
enum { RUN_STRIDED = 0, RUN_VECTOR = 1, RUN_SAME = 2 };

typedef struct view_arg {
    i64 stride[SHAPE_RANK];
    i32 type, run; /* of bsk_dtype; RUN_ */
} view_arg;

/* A matrix, of which runs along columns are aligned neighbours if `vector` is set. */
typedef struct matrix_arg {
    i64 row, col; /* strides */
    i32 type, vector;
} matrix_arg;

#ifdef SIMT_T
/* A lane's walk: `step` positions at a time of those from `first` to `end`. The last place of `at`
 * counts runs. */
typedef struct shape_walk {
    i64 at[SHAPE_RANK], step[SHAPE_RANK];
    i64 size[SHAPE_RANK];
    i64 left;
    i32 rank;
} shape_walk;

/* The digits of a position. */
DEVICE void shape_split(const i64 *size, i32 rank, i64 position, i64 *at)
{
    UNROLL
    for (i32 d = 0; d < SHAPE_RANK; d++)
        at[d] = 0;
    if (rank > 1) {
        UNROLL
        for (i32 d = SHAPE_LAST; d > 0; d--) {
            if (SHAPE_RANK - d < rank) {
                const i64 rest = QUOTIENT(position, size[d]);
                at[d] = position - rest * size[d];
                position = rest;
            } else if (SHAPE_RANK - d == rank) {
                at[d] = position;
                position = 0;
            }
        }
        at[0] = position;
    } else {
        at[SHAPE_LAST] = position;
    }
}

/* With runs of `unit` elements. */
DEVICE void shape_range(shape_walk *w, const shape_arg *s, i32 unit, i64 first, i64 end, i64 step)
{
    UNROLL
    for (i32 d = 0; d < SHAPE_RANK; d++)
        w->size[d] = s->size[d];
    w->size[SHAPE_LAST] = (s->size[SHAPE_LAST] + unit - 1) / unit;
    w->rank = s->rank;
    w->left = first < end ? QUOTIENT(end - first - 1, step) + 1 : 0;
    shape_split(w->size, w->rank, first, w->at);
    shape_split(w->size, w->rank, step, w->step);
}

DEVICE i64 shape_positions(const shape_arg *s, i32 unit)
{
    i64 count = (s->size[SHAPE_LAST] + unit - 1) / unit;
    UNROLL
    for (i32 d = 0; d < SHAPE_LAST; d++)
        count *= s->size[d];
    return count;
}

/* This lane's share of all runs, as walk_begin's. */
DEVICE void shape_start(shape_walk *w, const shape_arg *s, i32 vec, i32 lanes)
{
    const i64 total = shape_positions(s, vec);
#if LANES == 1
    const i64 each = total / GROUPS(0), more = total % GROUPS(0);
    shape_range(w, s, vec, each * GROUP(0) + more * GROUP(0) / GROUPS(0),
                each * (GROUP(0) + 1) + more * (GROUP(0) + 1) / GROUPS(0), 1);
#else
    shape_range(w, s, vec, GROUP(0) * lanes + LANE, total, GROUPS(0) * lanes);
#endif
}

DEVICE void shape_next(shape_walk *w)
{
    w->left--;
    w->at[SHAPE_LAST] += w->step[SHAPE_LAST];
    if (w->rank > 1) {
        UNROLL
        for (i32 d = SHAPE_LAST; d > 0; d--) {
            if (SHAPE_RANK - d < w->rank) {
                const i32 carry = w->at[d] >= w->size[d];
                w->at[d] -= carry ? w->size[d] : 0;
                w->at[d - 1] += w->step[d - 1] + carry;
            }
        }
    }
}

/* The element at a place whose last digit counts runs of `unit` elements. */
DEVICE i64 shape_offset(const i64 *at, i32 rank, i32 unit, const i64 *stride)
{
    i64 offset = at[SHAPE_LAST] * unit * stride[SHAPE_LAST];
    if (rank > 1) {
        UNROLL
        for (i32 d = 0; d < SHAPE_LAST; d++)
            if (SHAPE_RANK - d <= rank)
                offset += at[d] * stride[d];
    }
    return offset;
}

#endif
#endif

#ifdef SIMT_T
/* `count` elements of a tensor, as load_part. */
DEVICE void NAME(view_load)(const view_arg *t, const GLOBAL u8 *p, i64 at, i32 count, R *v)
{
    if (t->run == RUN_SAME) {
        const R one = NAME(load_r)(t->type, p, at);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] = one;
    } else {
        NAME(load_part)(t->type, p, at, t->stride[SHAPE_LAST], count, t->run == RUN_VECTOR, v);
    }
}

DEVICE void NAME(view_store)(const view_arg *t, GLOBAL u8 *p, i64 at, i32 count, const R *v)
{
    NAME(store_part)(t->type, p, at, t->stride[SHAPE_LAST], count, t->run == RUN_VECTOR, v);
}

/* A run that is 0 past its end. */
DEVICE void NAME(matrix_load)(const matrix_arg *m, const GLOBAL u8 *p, i64 row, i64 col, i32 count,
                              R *v)
{
    NAME(load_part)(m->type, p, row * m->row + col * m->col, m->col, count, m->vector, v);
}

DEVICE void NAME(matrix_store)(const matrix_arg *m, GLOBAL u8 *p, i64 row, i64 col, i32 count,
                               const R *v)
{
    NAME(store_part)(m->type, p, row * m->row + col * m->col, m->col, count, m->vector, v);
}

DEVICE void NAME(matrix_blend)(const matrix_arg *m, GLOBAL u8 *p, i64 row, i64 col, i32 count,
                               R alpha, R beta, const R *v)
{
    NAME(blend_part)
    (m->type, p, row * m->row + col * m->col, m->col, count, m->vector, alpha, beta, v);
}
#endif
