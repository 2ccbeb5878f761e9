/* What the maps and the sums of the element-wise ops compute of an element, for the type that
 * type.h set; after lanes.h. */
#ifndef BSKI_SIMT_ELEMENTWISE_TERMS_H
#define BSKI_SIMT_ELEMENTWISE_TERMS_H

/* Values of bsk_binary_kind. */
enum { BINARY_ADD, BINARY_SUB, BINARY_MUL, BINARY_DIV, BINARY_MAX, BINARY_MIN };

/* Options of cwise_linear, and which of its tensors are given. */
enum { CWISE_RELU = 1, CWISE_BIAS_FIRST = 2, CWISE_GAIN = 4 };

#endif

#ifdef SIMT_T
/* NaN where x or y is. */
DEVICE R NAME(binary_of)(i32 kind, R x, R y)
{
    if (kind == BINARY_ADD)
        return x + y;
    if (kind == BINARY_SUB)
        return x - y;
    if (kind == BINARY_MUL)
        return x * y;
    if (kind == BINARY_DIV)
        return x / y;
    if (kind == BINARY_MAX)
        return x > y ? x : x <= y ? y : x + y;
    return x < y ? x : x >= y ? y : x + y;
}

/* The derivative of max(x, y) by x. */
DEVICE R NAME(larger_share)(R x, R y)
{
    return x > y ? (R)1 : x < y ? (R)0 : x == y ? (R)0.5 : x + y;
}

/* The derivative by x, or by y. */
DEVICE R NAME(binary_slope)(i32 kind, i32 of_x, R x, R y)
{
    if (kind == BINARY_ADD)
        return 1;
    if (kind == BINARY_SUB)
        return of_x ? (R)1 : (R)-1;
    if (kind == BINARY_MUL)
        return of_x ? y : x;
    if (kind == BINARY_DIV)
        return of_x ? 1 / y : -(x / y) / y;
    if ((kind == BINARY_MAX) == (of_x != 0))
        return NAME(larger_share)(x, y);
    return NAME(larger_share)(y, x);
}

/* A run of dz in place of which its product with the derivative is put. */
DEVICE void NAME(binary_slope_run)(i32 kind, i32 of_x, const R *x, const R *y, R *dz)
{
#define EACH(code)                                                                                 \
    if (kind == code) {                                                                            \
        UNROLL                                                                                     \
        for (i32 e = 0; e < VEC; e++)                                                              \
            dz[e] *= NAME(binary_slope)(code, of_x, x[e], y[e]);                                   \
    }
    EACH(BINARY_SUB)
    EACH(BINARY_MUL)
    EACH(BINARY_DIV)
    EACH(BINARY_MAX)
    EACH(BINARY_MIN)
#undef EACH
}

/* gain and bias of one channel, before relu. */
DEVICE R NAME(cwise_value)(i32 option, R x, R gain, R bias)
{
    return option & CWISE_BIAS_FIRST ? (x + bias) * gain : x * gain + bias;
}

/* The gradient before relu from that behind it. */
DEVICE R NAME(cwise_slope)(i32 option, R dy, R x, R gain, R bias)
{
    if (option & CWISE_RELU)
        dy *= NAME(act_slope)(ACT_RELU, NAME(cwise_value)(option, x, gain, bias));
    return dy;
}
#endif
