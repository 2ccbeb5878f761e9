/* The activations, for the type that type.h set. No include guard, as there. */

/* v(x) of the activations x * sigmoid(v(x)); values of bsk_act. */
DEVICE R FN(act_argument)(i32 act, R x)
{
    if (act == 2) /* gelu: (1 + tanh(u)) / 2 = sigmoid(2 u) */
        return (R)1.59576912160573071 * (x + (R)0.044715 * x * x * x);
    return act == 5 ? (R)1.702 * x : x; /* quick_gelu, silu */
}

DEVICE R FN(act_value)(i32 act, R x)
{
    if (act == 0)
        return x;
    if (act == 1)
        return x <= 0 ? 0 : x; /* keeps NaN */
    if (act == 3)
        return (R)0.5 * x * MATH(erfc)(-x * (R)0.70710678118654752);
    return x / (1 + MATH(exp)(-FN(act_argument)(act, x)));
}
