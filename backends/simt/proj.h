/* Kernels of the sparse projections. The host's side (proj.c) includes this file without SIMT_T for
 * the struct of scalars. */
#define SIMT_HALVES
#ifndef BSKI_SIMT_PROJ_H
#define BSKI_SIMT_PROJ_H

/* Matrices are walked by rows and columns of the output; features lie on its columns or rows. */
typedef struct proj_arg {
    i64 rows, cols;
    i64 large, small; /* features of both sides */
    i64 x_row, x_col, v_row, v_col, y_row, y_col;
    i64 alpha, beta; /* NUM */
    i32 by_row;      /* features are rows */
    i32 mode;
    i32 type, pad;
} proj_arg;

enum { PROJ_COPY = 0, PROJ_ADD = 1, PROJ_MUL = 2, PROJ_MUL_GRAD = 3 };

#endif

#ifdef SIMT_T
#include "lanes.h"

/* inverse[f]: the small feature that maps to large feature f, or -1. First cleared (mode 0), then
 * filled: targets are distinct, so every element is written once. */
KERNEL(proj_inverse, LANES)(BUF(const i32, index), BUF(i32, inverse), const proj_arg a)
{
    QUEUE_WAIT();
    OPEN(const i32, index);
    OPEN(i32, inverse);
    for (walk w = walk_start(a.mode ? a.small : a.large, 1, 1); w.left > 0; walk_next(&w))
        if (!a.mode)
            inverse[w.row] = -1;
        else if (index[w.row] >= 0 && index[w.row] < a.large)
            inverse[index[w.row]] = (i32)w.row;
}

/* y = alpha * v + beta * y. */
DEVICE void NAME(proj_blend)(const proj_arg *a, GLOBAL T *y, i64 to, R v)
{
    const i32 type = HALF_TYPE(a->type);
    v *= NUM(a->alpha);
    if (NUM(a->beta) != 0)
        v += NUM(a->beta) * NAME(load_r)(type, y, to);
    NAME(store_r)(type, y, to, v);
}

/* y = x[index]; where v is given, x[index] * v[index], blended: the gradient of a factor. */
KERNEL(proj_gather, LANES)
(BUF(const T, x), BUF(const T, v), BUF(const i32, index), BUF(T, y), const proj_arg a)
{
    QUEUE_WAIT();
    OPEN(const T, x);
    OPEN(const T, v);
    OPEN(const i32, index);
    OPEN(T, y);
    const i32 type = HALF_TYPE(a.type);
    for (walk w = walk_start(a.rows, a.cols, 1); w.left > 0; walk_next(&w)) {
        const i64 to = w.row * a.y_row + w.run * a.y_col, from = index[a.by_row ? w.row : w.run];
        const i64 row = a.by_row ? from : w.row, col = a.by_row ? w.run : from;
        const i64 at = row * a.x_row + col * a.x_col;
        const i32 mapped = from >= 0 && from < a.large;
        if (v) {
            R d = 0;
            if (mapped)
                d = NAME(load_r)(type, x, at) *
                    NAME(load_r)(type, v, row * a.v_row + col * a.v_col);
            NAME(proj_blend)(&a, y, to, d);
        } else
            y[to] = mapped ? x[at] : 0;
    }
}

/* For every large feature: x, or 0 where there is none, and v of the small feature that maps to it,
 * if any, copied over it, added or multiplied. PROJ_MUL_GRAD multiplies and blends. */
KERNEL(proj_scatter, LANES)
(BUF(const T, x), BUF(const T, v), BUF(const i32, inverse), BUF(T, y), const proj_arg a)
{
    QUEUE_WAIT();
    OPEN(const T, x);
    OPEN(const T, v);
    OPEN(const i32, inverse);
    OPEN(T, y);
    const i32 type = HALF_TYPE(a.type);
    for (walk w = walk_start(a.rows, a.cols, 1); w.left > 0; walk_next(&w)) {
        const i64 to = w.row * a.y_row + w.run * a.y_col, at = w.row * a.x_row + w.run * a.x_col;
        const i64 small = inverse[a.by_row ? w.row : w.run];
        const i64 from =
            (a.by_row ? small : w.row) * a.v_row + (a.by_row ? w.run : small) * a.v_col;
        if (a.mode == PROJ_MUL_GRAD) {
            const R factor = small < 0 ? (R)1 : NAME(load_r)(type, v, from);
            NAME(proj_blend)(&a, y, to, NAME(load_r)(type, x, at) * factor);
        } else if (small < 0)
            y[to] = x ? x[at] : 0;
        else if (a.mode == PROJ_COPY)
            y[to] = v[from];
        else {
            const R left = NAME(load_r)(type, x, at), right = NAME(load_r)(type, v, from);
            NAME(store_r)(type, y, to, a.mode == PROJ_ADD ? left + right : left * right);
        }
    }
}

#endif
