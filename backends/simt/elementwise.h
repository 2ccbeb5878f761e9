/* Kernels of the element-wise ops. The host's side (elementwise.c) includes this file without
 * SIMT_T for the structs of scalars. */
#include "map.h"

#ifdef SIMT_T
#include "ops_act.h"

#include "philox.h"
#endif

#include "elementwise_terms.h"

#ifndef BSKI_SIMT_ELEMENTWISE_H
#define BSKI_SIMT_ELEMENTWISE_H

/* Values of bsk_unary_kind. */
enum {
    UNARY_NEG,
    UNARY_RCP,
    UNARY_SQR,
    UNARY_SQRT,
    UNARY_EXP,
    UNARY_LOG,
    UNARY_SIGMOID,
    UNARY_TANH,
    UNARY_RELU,
    UNARY_ELU,
    UNARY_GELU,
    UNARY_GELU_ERF,
    UNARY_SWISH
};

/* Bits of map_arg.option. */
enum {
    UNARY_OF_OUTPUT = 1, /* unary_grad */
    FILTER_INFS = 1,     /* filter */
    FILTER_NANS = 2
};

/* Tensors of a list that one launch of add_n takes. */
enum { ADD_TENSORS = 8 };

/* Of a list that takes several launches, partial is the sum so far; all but the last write it. */
typedef struct add_n_arg {
    shape_arg shape;
    view_arg x, y, partial;
    i64 whole;       /* as map_arg, of x and y */
    i64 alpha, beta; /* NUM */
    i32 count, first, last, pad;
} add_n_arg;

#ifdef SIMT_T
/* Kinds that are activations. */
DEVICE i32 unary_act(i32 kind)
{
    return kind == UNARY_RELU       ? ACT_RELU
           : kind == UNARY_GELU     ? ACT_GELU
           : kind == UNARY_GELU_ERF ? ACT_GELU_ERF
                                    : ACT_NONE;
}
#endif

#endif

#ifdef SIMT_T
/* --- binary: x, y ---------------------------------------------------------------------------- */

DEVICE void NAME(binary_run)(const map_arg *a, i64 first, R (*v)[VEC])
{
#define EACH(code)                                                                                 \
    if (a->kind == code) {                                                                         \
        UNROLL                                                                                     \
        for (i32 e = 0; e < VEC; e++)                                                              \
            v[0][e] = NAME(binary_of)(code, v[0][e], v[1][e]);                                     \
    }
    EACH(BINARY_ADD)
    EACH(BINARY_SUB)
    EACH(BINARY_MUL)
    EACH(BINARY_DIV)
    EACH(BINARY_MAX)
    EACH(BINARY_MIN)
#undef EACH
}

MAP(binary, 2)

/* --- unary: x; unary_grad: dy, x or y ------------------------------------------------------- */

DEVICE R NAME(unary_of)(i32 kind, R c, R x)
{
    if (kind == UNARY_NEG)
        return -x;
    if (kind == UNARY_RCP)
        return 1 / x;
    if (kind == UNARY_SQR)
        return x * x;
    if (kind == UNARY_SQRT)
        return MATH(sqrt)(x);
    if (kind == UNARY_EXP)
        return MATH(exp)(x);
    if (kind == UNARY_LOG)
        return MATH(log)(x);
    if (kind == UNARY_SIGMOID)
        return NAME(sigmoid_of)(x);
    if (kind == UNARY_TANH)
        return NAME(tanh_of)(x);
    if (kind == UNARY_ELU)
        return x > 0 ? x : c * MATH(expm1)(x);
    return NAME(fast_divide)(x, 1 + NAME(fast_exp2)(-exp_scale * c * x)); /* UNARY_SWISH */
}

/* The derivative, from x; of what unary_grad_of does not divide. */
DEVICE R NAME(unary_slope)(i32 kind, R c, R x)
{
    R sigmoid;
    if (kind == UNARY_NEG)
        return -1;
    if (kind == UNARY_SQR)
        return 2 * x;
    if (kind == UNARY_SQRT)
        return (R)0.5 / MATH(sqrt)(x);
    if (kind == UNARY_EXP)
        return MATH(exp)(x);
    if (kind == UNARY_SIGMOID)
        return NAME(sigmoid_bend)(exp_scale * x, &sigmoid);
    if (kind == UNARY_TANH)
        return 4 * NAME(sigmoid_bend)(2 * exp_scale * x, &sigmoid);
    if (kind == UNARY_ELU)
        return x > 0 ? (R)1 : c * MATH(exp)(x);
    const R bend = NAME(sigmoid_bend)(exp_scale * c * x, &sigmoid); /* UNARY_SWISH */
    return bend > 0 ? FMA(c * x, bend, sigmoid) : sigmoid;
}

/* The same from y. */
DEVICE R NAME(unary_slope_of_output)(i32 kind, R c, R y)
{
    if (kind == UNARY_NEG)
        return -1;
    if (kind == UNARY_EXP)
        return y;
    if (kind == UNARY_SIGMOID)
        return y * (1 - y);
    if (kind == UNARY_TANH)
        return (1 - y) * (1 + y);
    if (kind == UNARY_RELU)
        return NAME(act_slope)(ACT_RELU, y);
    return y > 0 ? (R)1 : y + c; /* UNARY_ELU */
}

/* d times the derivative from x or from y. Where the derivative may be beyond R and the product is
 * not, d is divided instead. */
DEVICE R NAME(unary_grad_of)(i32 kind, R c, R x, R d)
{
    if (kind == UNARY_RCP)
        return -(d / x) / x;
    if (kind == UNARY_LOG)
        return d / x;
    return d * NAME(unary_slope)(kind, c, x);
}

DEVICE R NAME(unary_grad_of_output)(i32 kind, R c, R y, R d)
{
    if (kind == UNARY_RCP)
        return -(d * y) * y;
    if (kind == UNARY_SQRT)
        return (R)0.5 * d / y;
    return d * NAME(unary_slope_of_output)(kind, c, y);
}

/* The kinds that act_of does not have. */
#undef UNARY_EACH
#define UNARY_EACH(EACH)                                                                           \
    EACH(UNARY_NEG)                                                                                \
    EACH(UNARY_RCP)                                                                                \
    EACH(UNARY_SQR)                                                                                \
    EACH(UNARY_SQRT)                                                                               \
    EACH(UNARY_EXP)                                                                                \
    EACH(UNARY_LOG)                                                                                \
    EACH(UNARY_SIGMOID)                                                                            \
    EACH(UNARY_TANH)                                                                               \
    EACH(UNARY_ELU)                                                                                \
    EACH(UNARY_SWISH)

DEVICE void NAME(unary_whole_run)(const map_arg *a, i64 first, R (*v)[VEC])
{
    const R c = NUM(a->c);
    const i32 act = unary_act(a->kind);
    if (act != ACT_NONE) {
        NAME(act_run)(act, v[0]);
        return;
    }
#define EACH(code)                                                                                 \
    if (a->kind == code) {                                                                         \
        UNROLL                                                                                     \
        for (i32 e = 0; e < VEC; e++)                                                              \
            v[0][e] = NAME(unary_of)(code, c, v[0][e]);                                            \
    }
    UNARY_EACH(EACH)
#undef EACH
}

DEVICE void NAME(unary_grad_whole_run)(const map_arg *a, i64 first, R (*v)[VEC])
{
    const R alpha = NUM(a->alpha), c = NUM(a->c);
    const i32 act = unary_act(a->kind), of_output = a->option & UNARY_OF_OUTPUT;
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        v[0][e] *= alpha;
    if (act != ACT_NONE && !of_output) {
        NAME(slope_run)(act, v[1], v[0]);
        return;
    }
#define EACH(code)                                                                                 \
    if (a->kind == code) {                                                                         \
        UNROLL                                                                                     \
        for (i32 e = 0; e < VEC; e++)                                                              \
            v[0][e] = NAME(unary_grad_of_output)(code, c, v[1][e], v[0][e]);                       \
    }
    if (of_output) {
        EACH(UNARY_NEG)
        EACH(UNARY_RCP)
        EACH(UNARY_SQRT)
        EACH(UNARY_EXP)
        EACH(UNARY_SIGMOID)
        EACH(UNARY_TANH)
        EACH(UNARY_RELU)
        EACH(UNARY_ELU)
        return;
    }
#undef EACH
#define EACH(code)                                                                                 \
    if (a->kind == code) {                                                                         \
        UNROLL                                                                                     \
        for (i32 e = 0; e < VEC; e++)                                                              \
            v[0][e] = NAME(unary_grad_of)(code, c, v[1][e], v[0][e]);                              \
    }
    UNARY_EACH(EACH)
#undef EACH
}

/* Of tensors with gaps: one piece of code for all elements of a run, as act_turn. */
DEVICE void NAME(unary_run)(const map_arg *a, i64 first, R (*v)[VEC])
{
#if LANES == 1
    NAME(unary_whole_run)(a, first, v);
#else
    const R c = NUM(a->c);
    const i32 act = unary_act(a->kind);
    NO_UNROLL
    for (i32 e = 0; e < VEC; e++) {
        const R x = NAME(run_turn)(v[0]);
        v[0][VEC - 1] = act != ACT_NONE ? NAME(act_of)(act, x) : NAME(unary_of)(a->kind, c, x);
    }
#endif
}

DEVICE void NAME(unary_grad_run)(const map_arg *a, i64 first, R (*v)[VEC])
{
#if LANES == 1
    NAME(unary_grad_whole_run)(a, first, v);
#else
    const R alpha = NUM(a->alpha), c = NUM(a->c);
    const i32 act = unary_act(a->kind), of_output = a->option & UNARY_OF_OUTPUT;
    NO_UNROLL
    for (i32 e = 0; e < VEC; e++) {
        const R d = NAME(run_turn)(v[0]) * alpha, x = NAME(run_turn)(v[1]);
        v[0][VEC - 1] = of_output         ? NAME(unary_grad_of_output)(a->kind, c, x, d)
                        : act != ACT_NONE ? d * NAME(act_slope)(act, x)
                                          : NAME(unary_grad_of)(a->kind, c, x, d);
    }
#endif
}

MAP(unary, 1)
MAP(unary_grad, 2)
MAP_WHOLE(unary_whole, unary_whole_run, 1)
MAP_WHOLE(unary_grad_whole, unary_grad_whole_run, 2)

/* --- cwise_linear: x, gain, bias ------------------------------------------------------------- */

DEVICE void NAME(cwise_linear_run)(const map_arg *a, i64 first, R (*v)[VEC])
{
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
        const R gain = a->option & CWISE_GAIN ? v[1][e] : (R)1;
        const R value = NAME(cwise_value)(a->option, v[0][e], gain, v[2][e]);
        v[0][e] = a->option & CWISE_RELU ? NAME(act_of)(ACT_RELU, value) : value;
    }
}

MAP(cwise_linear, 3)

#undef DROPOUT_SOME
#define DROPOUT_SOME (VEC < 8 ? VEC : 8)

/* --- filter, dropout ------------------------------------------------------------------------- */

DEVICE void NAME(filter_run)(const map_arg *a, i64 first, R (*v)[VEC])
{
    const R scale = NUM(a->c), most = NUM(a->d);
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
        R x = v[0][e];
        const i32 strange = x != x ? FILTER_NANS : x - x != 0 ? FILTER_INFS : 0;
        x = (strange & a->option ? (R)0 : x) * scale;
        if (most > 0)
            x = x < -most ? -most : x > most ? most : x;
        v[0][e] = x;
    }
}

/* v where dropout keeps it: as many neighbours from element `first` on as a run has of one counter. */
DEVICE void NAME(dropout_some)(const map_arg *a, u64 counter, u32 first, R *v)
{
    const R scale = NUM(a->c);
    u32 word[4];
    philox_block((u64)a->seed, (u64)a->offset, counter, word);
    UNROLL
    for (i32 e = 0; e < DROPOUT_SOME; e++) {
        const u32 number = philox_half(word, (VEC < 8 ? first : 0) + (u32)e);
        v[e] = number < (u32)a->limit ? v[e] * scale : (R)0;
    }
}

LANE_APART u32 NAME(dropout_number)(u64 seed, u64 offset, u64 i)
{
    u32 word[4];
    philox_block(seed, offset, i / 8, word);
    return philox_half(word, (u32)i);
}

DEVICE void NAME(dropout_run)(const map_arg *a, i64 first, R (*v)[VEC])
{
    const i64 step = a->number[SHAPE_LAST];
    const R scale = NUM(a->c);
    u32 number = 0;
    if (step == 1 && first % DROPOUT_SOME == 0) {
        UNROLL
        for (i32 e = 0; e < VEC; e += DROPOUT_SOME)
            NAME(dropout_some)(a, (u64)(first + e) / 8, (u32)first + (u32)e, v[0] + e);
        return;
    }
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
        if (e == 0 || step != 0)
            number = NAME(dropout_number)((u64)a->seed, (u64)a->offset, (u64)(first + e * step));
        v[0][e] = number < (u32)a->limit ? v[0][e] * scale : (R)0;
    }
}

/* Few enough that counters fit 32 bits: what depends on their upper half and on the key alone is the
 * same for all, and is not computed again. */
DEVICE void NAME(dropout_whole_run)(const map_arg *a, i64 first, R (*v)[VEC])
{
    const u32 run = (u32)(first / VEC);
    NAME(dropout_some)(a, run / (8 / DROPOUT_SOME), run * DROPOUT_SOME, v[0]);
}

MAP(filter, 1)
MAP(dropout, 1)
MAP_WHOLE(dropout_whole, dropout_whole_run, 1)

/* --- add_n ----------------------------------------------------------------------------------- */

KERNEL(add_n, LANES)
(BUF(const u8, x0), BUF(const u8, x1), BUF(const u8, x2), BUF(const u8, x3), BUF(const u8, x4),
 BUF(const u8, x5), BUF(const u8, x6), BUF(const u8, x7), BUF(u8, y), BUF(u8, partial),
 const add_n_arg a)
{
    QUEUE_WAIT();
    OPEN(const u8, x0);
    OPEN(const u8, x1);
    OPEN(const u8, x2);
    OPEN(const u8, x3);
    OPEN(const u8, x4);
    OPEN(const u8, x5);
    OPEN(const u8, x6);
    OPEN(const u8, x7);
    OPEN(u8, y);
    OPEN(u8, partial);
    const GLOBAL u8 *const x[ADD_TENSORS] = {x0, x1, x2, x3, x4, x5, x6, x7};
    const R alpha = NUM(a.alpha), beta = NUM(a.beta);
    shape_walk w;
    shape_start(&w, &a.shape, VEC, LANES);
    NO_UNROLL
    for (; w.left > 0; shape_next(&w)) {
        const i64 run = w.at[SHAPE_LAST];
        const i32 count = run_length(a.shape.size[SHAPE_LAST], run * VEC, VEC);
        const i64 x_at = shape_offset(w.at, w.rank, VEC, a.x.stride);
        const i64 y_at = shape_offset(w.at, w.rank, VEC, a.y.stride);
        const i64 partial_at = shape_offset(w.at, w.rank, VEC, a.partial.stride);
        R sum[VEC], v[VEC];
        if (a.first) {
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                sum[e] = 0;
        } else {
            NAME(view_load)(&a.partial, partial, partial_at, count, sum);
        }
        if (LANES > 1 && run < a.whole) {
            RAW q[ADD_TENSORS];
            UNROLL
            for (i32 k = 0; k < ADD_TENSORS; k++)
                if (k < a.count)
                    q[k] = NAME(load_raw)(a.x.type, (const GLOBAL T *)x[k] + run * VEC);
            UNROLL
            for (i32 k = 0; k < ADD_TENSORS; k++)
                if (k < a.count)
                    NAME(add_raw)(a.x.type, q[k], sum);
        } else {
            for (i32 k = 0; k < a.count; k++) {
                NAME(view_load)(&a.x, x[k], x_at, count, v);
                UNROLL
                for (i32 e = 0; e < VEC; e++)
                    sum[e] += v[e];
            }
        }
        if (!a.last) {
            NAME(view_store)(&a.partial, partial, partial_at, count, sum);
            continue;
        }
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            sum[e] *= alpha;
        if (beta != 0) {
            NAME(view_load)(&a.y, y, y_at, count, v);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                sum[e] += beta * v[e];
        }
        NAME(view_store)(&a.y, y, y_at, count, sum);
    }
}
#endif
