/* Kernels of the LSTM cells, of split4 and of concat4. The host's side (lstm.c) includes this file
 * without SIMT_T for the structs of scalars. */
#define SIMT_SINGLES
#include "shape.h"

#ifdef SIMT_T
#include "ops_act.h"
#endif

#ifndef BSKI_SIMT_LSTM_H
#define BSKI_SIMT_LSTM_H

/* In the order of merged gates. */
enum { GATE_I, GATE_U, GATE_F, GATE_O, GATES };

/* Which axis of the walk the features lie on, where there is a bias. */
enum { GATE_BIAS_NONE = 0, GATE_BIAS_COL = 1, GATE_BIAS_ROW = 2 };

typedef struct lstm_arg {
    i64 rows, cols;
    i64 features, forget; /* NUM */
    matrix_arg c, c_next, h_next, gate[GATES];
    i32 bias, bias_vector;
} lstm_arg;

typedef struct lstm_grad_arg {
    lstm_arg cell; /* without c_next and h_next */
    matrix_arg dh, dc_next, dc, dgate[GATES];
    i64 alpha, beta; /* NUM */
} lstm_grad_arg;

/* Quarter q of `whole` starts at element q * step. */
typedef struct quarters_arg {
    i64 rows, cols, step;
    matrix_arg whole, quarter[GATES];
    i32 concat, pad;
} quarters_arg;

#endif

#ifdef SIMT_T
/* The activated gates of a run. */
DEVICE void NAME(lstm_gates_of)(const lstm_arg *a, const GLOBAL u8 *const *gate,
                                const GLOBAL R *bias, i64 row, i64 col, i32 count, R (*v)[VEC])
{
    UNROLL
    for (i32 g = 0; g < GATES; g++) {
        NAME(matrix_load)(&a->gate[g], gate[g], row, col, count, v[g]);
        if (a->bias == GATE_BIAS_COL) {
            R b[VEC];
            NAME(load_part)(R_TYPE, bias, g * a->features + col, 1, count, a->bias_vector, b);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                v[g][e] += b[e];
        } else if (a->bias == GATE_BIAS_ROW) {
            const R b = bias[g * a->features + row];
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                v[g][e] += b;
        }
    }
    const R forget = NUM(a->forget);
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
        v[GATE_I][e] = NAME(sigmoid_of)(v[GATE_I][e]);
        v[GATE_U][e] = NAME(tanh_of)(v[GATE_U][e]);
        v[GATE_F][e] = NAME(sigmoid_of)(v[GATE_F][e] + forget);
        v[GATE_O][e] = NAME(sigmoid_of)(v[GATE_O][e]);
    }
}

KERNEL(lstm_gates, LANES)
(BUF(const u8, c), BUF(const u8, gate_i), BUF(const u8, gate_u), BUF(const u8, gate_f),
 BUF(const u8, gate_o), BUF(const R, bias), BUF(u8, c_next), BUF(u8, h_next), const lstm_arg a)
{
    QUEUE_WAIT();
    OPEN(const u8, c);
    OPEN(const u8, gate_i);
    OPEN(const u8, gate_u);
    OPEN(const u8, gate_f);
    OPEN(const u8, gate_o);
    OPEN(const R, bias);
    OPEN(u8, c_next);
    OPEN(u8, h_next);
    const GLOBAL u8 *const gate[GATES] = {gate_i, gate_u, gate_f, gate_o};
    NO_UNROLL
    for (walk w = walk_start(a.rows, a.cols, VEC); w.left > 0; walk_next(&w)) {
        const i64 row = w.row, col = w.run * VEC;
        const i32 count = run_length(a.cols, col, VEC);
        R next[VEC], v[GATES][VEC];
        NAME(matrix_load)(&a.c, c, row, col, count, next);
        NAME(lstm_gates_of)(&a, gate, bias, row, col, count, v);
        UNROLL
        for (i32 e = 0; e < VEC; e++) {
            next[e] = v[GATE_F][e] * next[e] + v[GATE_I][e] * v[GATE_U][e];
            v[GATE_O][e] *= NAME(tanh_of)(next[e]);
        }
        NAME(matrix_store)(&a.c_next, c_next, row, col, count, next);
        NAME(matrix_store)(&a.h_next, h_next, row, col, count, v[GATE_O]);
    }
}

KERNEL(lstm_gates_grad, LANES)
(BUF(const u8, dh), BUF(const u8, c), BUF(const u8, dc_next), BUF(const u8, gate_i),
 BUF(const u8, gate_u), BUF(const u8, gate_f), BUF(const u8, gate_o), BUF(const R, bias),
 BUF(u8, dc), BUF(u8, di), BUF(u8, du), BUF(u8, df), BUF(u8, dout), const lstm_grad_arg a)
{
    QUEUE_WAIT();
    OPEN(const u8, dh);
    OPEN(const u8, c);
    OPEN(const u8, dc_next);
    OPEN(const u8, gate_i);
    OPEN(const u8, gate_u);
    OPEN(const u8, gate_f);
    OPEN(const u8, gate_o);
    OPEN(const R, bias);
    OPEN(u8, dc);
    OPEN(u8, di);
    OPEN(u8, du);
    OPEN(u8, df);
    OPEN(u8, dout);
    const GLOBAL u8 *const gate[GATES] = {gate_i, gate_u, gate_f, gate_o};
    GLOBAL u8 *const dgate[GATES] = {di, du, df, dout};
    const R alpha = NUM(a.alpha), beta = NUM(a.beta);
    NO_UNROLL
    for (walk w = walk_start(a.cell.rows, a.cell.cols, VEC); w.left > 0; walk_next(&w)) {
        const i64 row = w.row, col = w.run * VEC;
        const i32 count = run_length(a.cell.cols, col, VEC);
        R old[VEC], upper[VEC], d[VEC], v[GATES][VEC];
        NAME(matrix_load)(&a.cell.c, c, row, col, count, old);
        NAME(matrix_load)(&a.dh, dh, row, col, count, upper);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            d[e] = 0;
        if (dc_next)
            NAME(matrix_load)(&a.dc_next, dc_next, row, col, count, d);
        NAME(lstm_gates_of)(&a.cell, gate, bias, row, col, count, v);
        UNROLL
        for (i32 e = 0; e < VEC; e++) {
            const R i = v[GATE_I][e], u = v[GATE_U][e], f = v[GATE_F][e], o = v[GATE_O][e];
            const R t = NAME(tanh_of)(f * old[e] + i * u);
            const R g = upper[e] * o * ((1 - t) * (1 + t)) + d[e];
            v[GATE_I][e] = g * u * i * (1 - i);
            v[GATE_U][e] = g * i * ((1 - u) * (1 + u));
            v[GATE_F][e] = g * old[e] * f * (1 - f);
            v[GATE_O][e] = upper[e] * t * o * (1 - o);
            d[e] = g * f;
        }
        UNROLL
        for (i32 g = 0; g < GATES; g++)
            NAME(matrix_blend)(&a.dgate[g], dgate[g], row, col, count, alpha, beta, v[g]);
        if (dc)
            NAME(matrix_blend)(&a.dc, dc, row, col, count, alpha, beta, d);
    }
}

/* split4 and concat4. Group (i, q): quarter q. */
KERNEL(quarters, LANES)
(BUF(u8, whole), BUF(u8, y0), BUF(u8, y1), BUF(u8, y2), BUF(u8, y3), const quarters_arg a)
{
    QUEUE_WAIT();
    OPEN(u8, whole);
    OPEN(u8, y0);
    OPEN(u8, y1);
    OPEN(u8, y2);
    OPEN(u8, y3);
    const i64 q = GROUP(1);
    GLOBAL u8 *const y = q == 0 ? y0 : q == 1 ? y1 : q == 2 ? y2 : y3;
    const matrix_arg part = q == 0   ? a.quarter[0]
                            : q == 1 ? a.quarter[1]
                            : q == 2 ? a.quarter[2]
                                     : a.quarter[3];
    NO_UNROLL
    for (walk w = walk_start(a.rows, a.cols, VEC); w.left > 0; walk_next(&w)) {
        const i64 row = w.row, col = w.run * VEC;
        const i64 at = q * a.step + row * a.whole.row + col * a.whole.col;
        const i32 count = run_length(a.cols, col, VEC);
        R v[VEC];
        if (a.concat) {
            NAME(matrix_load)(&part, y, row, col, count, v);
            NAME(store_part)(a.whole.type, whole, at, a.whole.col, count, a.whole.vector, v);
        } else {
            NAME(load_part)(a.whole.type, whole, at, a.whole.col, count, a.whole.vector, v);
            NAME(matrix_store)(&part, y, row, col, count, v);
        }
    }
}
#endif
