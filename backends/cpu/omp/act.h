/* Vector exponential, activations and their slopes, over runs of elements. */
#ifndef BSKI_OMP_ACT_H
#define BSKI_OMP_ACT_H

#include <math.h>

#include "isa.h"

enum { F32_LANES = VEC_BYTES / 4 };

#define SQRT_2_OVER_PI 0.79788456080286535588
#define SQRT_1_OVER_2  0.70710678118654752440
#define GELU_CUBIC     0.044715
#define QUICK_SCALE    1.702

OMP_INLINE vec_f32 load_f32(const float *p)
{
    return *(const vec_mem_f32 *)p;
}

OMP_INLINE void store_f32(float *p, vec_f32 v)
{
    *(vec_mem_f32 *)p = v;
}

OMP_INLINE vec_f32 splat_f32(float x)
{
    return x - (vec_f32){0}; /* exact, -0 included */
}

/* Lanes of a where the mask is set, else of b. */
OMP_INLINE vec_f32 select_f32(vec_i32 mask, vec_f32 a, vec_f32 b)
{
    return (vec_f32)((mask & (vec_i32)a) | (~mask & (vec_i32)b));
}

/* Element-wise e^x, within 1.5 units in the last place, denormal results included. x is split into
 * n ln 2 + r; adding 1.5 * 2^23 rounds n to an integer that can be read off the low bits. 2^n is
 * applied in two factors, so that neither leaves the range of normal numbers. */
OMP_INLINE vec_f32 exp_f32(vec_f32 x)
{
    const float magic = 12582912.0f, high = 89.0f, low = -104.0f;
    x = select_f32(x > high, splat_f32(high), x);
    x = select_f32(x < low, splat_f32(low), x);

    vec_f32 shifted = x * 1.44269504f + magic, n = shifted - magic;
    vec_i32 e = (vec_i32)shifted - (vec_i32)splat_f32(magic);
    vec_f32 r = x - n * 0.693145752f;
    r = r - n * 1.42860677e-6f;

    vec_f32 p = r * 1.98412698e-4f + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * (r * r) + r + 1.0f;

    vec_i32 half = e >> 1;
    vec_f32 a = (vec_f32)((half + 127) << 23), b = (vec_f32)((e - half + 127) << 23);
    return p * a * b;
}

/* v of an activation x * sigmoid(v(x)). */
OMP_INLINE vec_f32 act_argument(bsk_act act, vec_f32 x)
{
    const float scale = (float)(2 * SQRT_2_OVER_PI), cubic = (float)GELU_CUBIC;
    switch (act) {
    case BSK_ACT_GELU:
        return scale * (x + cubic * (x * x * x));
    case BSK_ACT_QUICK_GELU:
        return x * (float)QUICK_SCALE;
    default:
        return x;
    }
}

OMP_INLINE vec_f32 act_argument_slope(bsk_act act, vec_f32 x)
{
    const float scale = (float)(2 * SQRT_2_OVER_PI), cubic = (float)(3 * GELU_CUBIC);
    switch (act) {
    case BSK_ACT_GELU:
        return scale * (cubic * (x * x) + 1.0f);
    case BSK_ACT_QUICK_GELU:
        return splat_f32((float)QUICK_SCALE);
    default:
        return splat_f32(1.0f);
    }
}

OMP_INLINE vec_f32 act_vector(bsk_act act, vec_f32 x)
{
    if (act == BSK_ACT_RELU) /* keeps NaN */
        return select_f32(x <= 0.0f, splat_f32(0.0f), x);
    return x / (exp_f32(-act_argument(act, x)) + 1.0f);
}

OMP_INLINE vec_f32 act_slope_vector(bsk_act act, vec_f32 x)
{
    if (act == BSK_ACT_RELU) {
        vec_f32 negative = select_f32(x <= 0.0f, splat_f32(0.0f), x);
        return select_f32(x > 0.0f, splat_f32(1.0f), negative);
    }
    vec_f32 e = exp_f32(-act_argument(act, x)), s = 1.0f / (e + 1.0f);
    vec_f32 bend = s * (e * s); /* not a number where e is infinite: counts as 0 */
    vec_f32 rest = x * bend * act_argument_slope(act, x);
    return s + select_f32(bend > 0.0f, rest, splat_f32(0.0f));
}

#define ACT_ROW(x, count, vector)                                                                  \
    do {                                                                                           \
        int64_t i_ = 0;                                                                            \
        for (; i_ + F32_LANES <= (count); i_ += F32_LANES)                                         \
            store_f32((x) + i_, vector(act, load_f32((x) + i_)));                                  \
        if (i_ < (count)) {                                                                        \
            float tail_[F32_LANES] = {0};                                                          \
            memcpy(tail_, (x) + i_, (size_t)((count)-i_) * sizeof(float));                         \
            store_f32(tail_, vector(act, load_f32(tail_)));                                        \
            memcpy((x) + i_, tail_, (size_t)((count)-i_) * sizeof(float));                         \
        }                                                                                          \
    } while (0)

/* x = act(x) */
static inline void act_row_f32(bsk_act act, float *x, int64_t count)
{
    if (act == BSK_ACT_GELU_ERF)
        for (int64_t i = 0; i < count; i++)
            x[i] = 0.5f * x[i] * erfcf(-x[i] * (float)SQRT_1_OVER_2);
    else if (act != BSK_ACT_NONE)
        ACT_ROW(x, count, act_vector);
}

/* x = act'(x) */
static inline void act_slope_row_f32(bsk_act act, float *x, int64_t count)
{
    if (act == BSK_ACT_GELU_ERF)
        for (int64_t i = 0; i < count; i++)
            x[i] = 0.5f * erfcf(-x[i] * (float)SQRT_1_OVER_2) +
                   x[i] * (float)(0.5 * SQRT_2_OVER_PI) * expf(-0.5f * x[i] * x[i]);
    else
        ACT_ROW(x, count, act_slope_vector);
}

static inline void act_row_f64(bsk_act act, double *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const double v = x[i];
        switch (act) {
        case BSK_ACT_NONE:
            break;
        case BSK_ACT_RELU:
            x[i] = v <= 0 ? 0 : v;
            break;
        case BSK_ACT_GELU_ERF:
            x[i] = 0.5 * v * erfc(-v * SQRT_1_OVER_2);
            break;
        case BSK_ACT_GELU:
            x[i] = v / (1 + exp(-2 * SQRT_2_OVER_PI * (v + GELU_CUBIC * v * v * v)));
            break;
        case BSK_ACT_QUICK_GELU:
            x[i] = v / (1 + exp(-QUICK_SCALE * v));
            break;
        default:
            x[i] = v / (1 + exp(-v));
            break;
        }
    }
}

#endif
