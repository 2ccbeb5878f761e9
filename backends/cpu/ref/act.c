/* The activations and their derivatives. */
#include "ref.h"

#define SQRT_2_OVER_PI 0.79788456080286535588
#define SQRT_1_OVER_2  0.70710678118654752440
#define GELU_CUBIC     0.044715
#define QUICK_SCALE    1.702

/* v(x) and v'(x) of an activation x * sigmoid(v(x)). */
static double act_argument(bsk_act act, double x, double *slope)
{
    switch (act) {
    case BSK_ACT_GELU: /* (1 + tanh(u)) / 2 = sigmoid(2 u), without cancellation */
        *slope = 2 * SQRT_2_OVER_PI * (1 + 3 * GELU_CUBIC * x * x);
        return 2 * SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x);
    case BSK_ACT_QUICK_GELU:
        *slope = QUICK_SCALE;
        return QUICK_SCALE * x;
    default: /* BSK_ACT_SILU */
        *slope = 1;
        return x;
    }
}

double bski_ref_act(bsk_act act, double x)
{
    double slope;
    switch (act) {
    case BSK_ACT_NONE:
        return x;
    case BSK_ACT_RELU:
        return x <= 0 ? 0 : x; /* keeps NaN */
    case BSK_ACT_GELU_ERF:
        return 0.5 * x * erfc(-x * SQRT_1_OVER_2);
    default:
        return x * sigmoid(act_argument(act, x, &slope));
    }
}

double bski_ref_act_slope(bsk_act act, double x)
{
    if (act == BSK_ACT_NONE)
        return 1;
    if (act == BSK_ACT_RELU)
        return x > 0 ? 1 : x <= 0 ? 0 : x;
    if (act == BSK_ACT_GELU_ERF)
        return 0.5 * erfc(-x * SQRT_1_OVER_2) + x * 0.5 * SQRT_2_OVER_PI * exp(-0.5 * x * x);
    double slope, v = act_argument(act, x, &slope);
    double bend = sigmoid(v) * sigmoid(-v); /* sigmoid'(v); 0 where slope may have overflowed */
    return sigmoid(v) + (bend > 0 ? x * bend * slope : 0);
}
