/* Fused attention and its gradient; the host (attention.c) includes this file without SIMT_T for
 * the structs of scalars. Kernels of f32 serve all types but f64. Variants:
 *     -DTM=16, 32          attention_<TM> and attention_grad_<TM>, for tiles of up to TM lines of a
 *                          block row or block column
 *     -DWIDE=1             attention_wide, attention_grad_wide and attention_delta for CPUs behind
 *                          OpenCL: a group is one lane
 *     none                 attention_delta
 * The name of a kernel contains its variant, so that one program can hold them all. */
#define SIMT_SINGLES
#ifdef SIMT_T
#ifdef WIDE
#define TM 8
#endif
#define GROUP_LANES 128
#include "lanes.h"
#endif

#include "attention_rules.h"

#ifndef BSKI_SIMT_ATTENTION_H
#define BSKI_SIMT_ATTENTION_H

/* Lanes of a group, and of those that share a row of attention_delta. */
enum { ATTENTION_LANES = 128, DELTA_LANES = 8 };
/* The wide form's tile and features of a result. */
enum { ATTENTION_WIDE_TILE = 8, ATTENTION_WIDE_WIDTH = 64 };

/* One of q, k, v ...: strides of the batch, the heads and the times. Vectors: runs are aligned. */
typedef struct heads_arg {
    i64 batch, head, time;
    i32 type, vector;
} heads_arg;

/* Which tiles of lines there are: of query rows, or where `turned` is set of key columns. */
typedef struct tiles_arg {
    i32 grid, side, lines; /* blocks along them, lines of a block, all lines */
    i32 each, count;       /* tiles of a block, and of a head */
    i32 parts;             /* of the features of the result */
    i32 heads, turned;
} tiles_arg;

typedef struct attention_arg {
    rules_arg rules;
    heads_arg q, k, v, o;
    tiles_arg tiles;
    i32 d, dv;
    i32 group, pad; /* group: query heads of one of keys and values */
} attention_arg;

/* out = alpha * sum over the other lines of w z + beta * out, where a pair's product x y of width d
 * gives the probability p and its product x2 y2 of width dv the gradient of that. w is p after
 * dropout if `values` is set, otherwise the gradient of the product. */
typedef struct attention_grad_arg {
    rules_arg rules;
    i64 alpha, beta; /* NUM */
    heads_arg x, y, x2, y2, z, out;
    tiles_arg tiles;
    i32 d, dv;
    i32 width; /* of z and out */
    i32 group, values, pad;
} attention_grad_arg;

/* delta [batch][heads][time]: the products of rows of o and dout. */
typedef struct delta_arg {
    i64 rows;
    heads_arg o, dout;
    i32 heads, time;
    i32 dv, pad;
} delta_arg;

#ifdef SIMT_T
DEVICE i64 heads_at(const heads_arg *h, i64 batch, i64 head)
{
    return batch * h->batch + head * h->head;
}
#endif
#endif

#ifdef SIMT_T
#if defined(WIDE) || TM == 16 || TM == 32
#include "attention_tile.h"
#include "attention_forward.h"
#include "attention_grad.h"
#endif
#if !defined(TM) || defined(WIDE)
#include "rows.h"

#define DELTA_WAYS (LANES == 1 ? 1 : DELTA_LANES)

KERNEL(attention_delta, LANES)
(BUF(const u8, o), BUF(const u8, dout), BUF(R, delta), const delta_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[ROW_SCRATCH] ALIGNED;
    OPEN(const u8, o);
    OPEN(const u8, dout);
    OPEN(R, delta);
    const i64 row = GROUP(0) * (LANES / DELTA_WAYS) + LANE / DELTA_WAYS;
    const i64 heads = QUOTIENT(row, a.time), time = row - heads * a.time;
    const i64 b = QUOTIENT(heads, a.heads), head = heads - b * a.heads;
    const i64 o_at = heads_at(&a.o, b, head) + time * a.o.time;
    const i64 dout_at = heads_at(&a.dout, b, head) + time * a.dout.time;
    R sum = 0;
    if (row < a.rows)
        for (i32 at = LANE % DELTA_WAYS * VEC; at < a.dv; at += DELTA_WAYS * VEC) {
            R x[VEC], y[VEC];
            const i32 count = run_length(a.dv, at, VEC);
            NAME(load_part)(SINGLE_TYPE(a.o.type), o, o_at + at, 1, count, a.o.vector, x);
            NAME(load_part)
            (SINGLE_TYPE(a.dout.type), dout, dout_at + at, 1, count, a.dout.vector, y);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                sum = FMA(x[e], y[e], sum);
        }
    sum = NAME(row_sum)(scratch, DELTA_WAYS, sum);
    if (row < a.rows && LANE % DELTA_WAYS == 0)
        delta[row] = sum;
}
#endif
#endif
