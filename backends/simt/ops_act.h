/* The activations and their slopes, for the type that type.h set; after lanes.h. */

/* Values of bsk_act. */
#ifndef BSKI_SIMT_OPS_ACT_H
#define BSKI_SIMT_OPS_ACT_H
enum {
    ACT_NONE = 0,
    ACT_RELU = 1,
    ACT_GELU = 2,
    ACT_GELU_ERF = 3,
    ACT_SILU = 4,
    ACT_QUICK_GELU = 5
};
#endif

#undef SQRT_2_OVER_PI
#undef SQRT_1_OVER_2
#define SQRT_2_OVER_PI ((R)0.79788456080286535588)
#define SQRT_1_OVER_2  ((R)0.70710678118654752440)

/* The normal distribution's function. */
LANE_APART R NAME(normal_cdf)(R x)
{
    return (R)0.5 * MATH(erfc)(-x * SQRT_1_OVER_2);
}

/* Activations x * sigmoid(v(x)): v(x) * log2(e), and v'(x). */
DEVICE R NAME(act_argument)(i32 act, R x, R *slope)
{
    const R twice = 2 * SQRT_2_OVER_PI, cubic = (R)0.044715;
    if (act == ACT_GELU) {
        *slope = FMA(3 * twice * cubic, x * x, twice);
        return x * FMA(exp_scale * twice * cubic, x * x, exp_scale * twice);
    }
    *slope = act == ACT_SILU ? (R)1 : (R)1.702;
    return exp_scale * *slope * x;
}

DEVICE R NAME(sigmoid_of)(R x)
{
    return NAME(fast_divide)(1, 1 + NAME(fast_exp2)(-exp_scale * x));
}

/* The derivative of sigmoid at v, where scaled = v * log2(e), and its value, both without
 * cancellation; NaN if v is. */
DEVICE R NAME(sigmoid_bend)(R scaled, R *sigmoid)
{
    const R t = NAME(fast_exp2)(-MATH(fabs)(scaled));
    const R high = NAME(fast_divide)(1, 1 + t), low = t * high;
    *sigmoid = scaled >= 0 ? high : low;
    return high * low;
}

/* Without cancellation, and exactly 1 at infinity, where libraries may be a unit off. */
DEVICE R NAME(tanh_of)(R x)
{
    const R m = MATH(expm1)(-2 * MATH(fabs)(x)), y = NAME(fast_divide)(-m, 2 + m);
    return x < 0 ? -y : y;
}

DEVICE R NAME(act_of)(i32 act, R x)
{
    R slope;
    if (act == ACT_NONE)
        return x;
    if (act == ACT_RELU)
        return x <= 0 ? (R)0 : x; /* keeps NaN */
    if (act == ACT_GELU_ERF)
        return x * NAME(normal_cdf)(x);
    return NAME(fast_divide)(x, 1 + NAME(fast_exp2)(-NAME(act_argument)(act, x, &slope)));
}

DEVICE R NAME(act_slope)(i32 act, R x)
{
    if (act == ACT_NONE)
        return 1;
    if (act == ACT_RELU)
        return x > 0 ? (R)1 : x <= 0 ? (R)0 : x;
    if (act == ACT_GELU_ERF)
        return NAME(normal_cdf)(x) +
               x * ((R)0.5 * SQRT_2_OVER_PI) * NAME(fast_exp)((R)-0.5 * x * x);
    R slope, sigmoid;
    const R v = NAME(act_argument)(act, x, &slope), bend = NAME(sigmoid_bend)(v, &sigmoid);
    return bend > 0 ? FMA(x * bend, slope, sigmoid) : sigmoid;
}

/* Branches on act once for a run. */
DEVICE void NAME(act_run)(i32 act, R *v)
{
#define EACH(code)                                                                                 \
    if (act == code) {                                                                             \
        UNROLL                                                                                     \
        for (i32 e = 0; e < VEC; e++)                                                              \
            v[e] = NAME(act_of)(code, v[e]);                                                       \
    }
    EACH(ACT_RELU)
    EACH(ACT_GELU)
    EACH(ACT_GELU_ERF)
    EACH(ACT_SILU)
    EACH(ACT_QUICK_GELU)
#undef EACH
}

/* The same where a short kernel matters more: one piece of code for all elements, which take each
 * other's place. */
DEVICE void NAME(act_turn)(i32 act, R *v)
{
#ifndef ROLLED_RUNS
    NAME(act_run)(act, v);
#else
    NO_UNROLL
    for (i32 e = 0; e < VEC; e++) {
        const R x = NAME(run_turn)(v);
        v[VEC - 1] = NAME(act_of)(act, x);
    }
#endif
}

/* d *= act'(v), element by element. */
DEVICE void NAME(slope_run)(i32 act, const R *v, R *d)
{
#define EACH(code)                                                                                 \
    if (act == code) {                                                                             \
        UNROLL                                                                                     \
        for (i32 e = 0; e < VEC; e++)                                                              \
            d[e] *= NAME(act_slope)(code, v[e]);                                                   \
    }
    EACH(ACT_RELU)
    EACH(ACT_GELU)
    EACH(ACT_GELU_ERF)
    EACH(ACT_SILU)
    EACH(ACT_QUICK_GELU)
#undef EACH
}

DEVICE void NAME(slope_turn)(i32 act, R *v, R *d)
{
#ifndef ROLLED_RUNS
    NAME(slope_run)(act, v, d);
#else
    NO_UNROLL
    for (i32 e = 0; e < VEC; e++) {
        const R x = NAME(run_turn)(v), slope = NAME(run_turn)(d);
        d[VEC - 1] = slope * NAME(act_slope)(act, x);
    }
#endif
}
