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

/* Adding 1.5 * 2^23 rounds to an integer that can be read off the low bits. */
#define ROUND_F32 12582912.0f

/* Splits x into n ln 2 + r, n whole; returns e^r - 1 and n. The polynomial is e^r's series with the
 * seventh power replaced by lower ones, as Chebyshev's polynomial has it. */
OMP_INLINE vec_f32 exp_split(vec_f32 x, vec_f32 *n)
{
    *n = (x * 1.44269504f + ROUND_F32) - ROUND_F32;
    vec_f32 r = x - *n * 0.693145752f;
    r = r - *n * 1.42860677e-6f;

    vec_f32 p = r * 1.38888889e-3f + 8.36312340e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66665772e-1f;
    p = p * r + 0.5f;
    return p * (r * r) + r;
}

/* x within low and high; NaN stays. */
OMP_INLINE vec_f32 clamp_f32(vec_f32 x, float low, float high)
{
#if defined(BSK_ISA_AVX512)
    return (vec_f32)_mm512_min_ps(_mm512_set1_ps(high),
                                  _mm512_max_ps(_mm512_set1_ps(low), (__m512)x));
#elif defined(BSK_ISA_AVX2)
    return (vec_f32)_mm256_min_ps(_mm256_set1_ps(high),
                                  _mm256_max_ps(_mm256_set1_ps(low), (__m256)x));
#elif defined(BSK_ISA_NEON)
    return (vec_f32)vminq_f32(vdupq_n_f32(high), vmaxq_f32(vdupq_n_f32(low), (float32x4_t)x));
#else
    x = select_f32(x > high, splat_f32(high), x);
    return select_f32(x < low, splat_f32(low), x);
#endif
}

/* A whole number of that many bits. */
OMP_INLINE vec_i32 whole_i32(vec_f32 n)
{
    return (vec_i32)(n + ROUND_F32) - (vec_i32)splat_f32(ROUND_F32);
}

/* x 2^n, denormal results included. */
OMP_INLINE vec_f32 scale_f32(vec_f32 x, vec_f32 n)
{
#if defined(BSK_ISA_AVX512)
    return (vec_f32)_mm512_scalef_ps((__m512)x, (__m512)n);
#else
    /* in two factors, so that neither leaves the range of normal numbers */
    const vec_i32 e = whole_i32(n), half = e >> 1;
    return x * (vec_f32)((half + 127) << 23) * (vec_f32)((e - half + 127) << 23);
#endif
}

/* Element-wise e^x, within 1.5 units in the last place, denormal results included. */
OMP_INLINE vec_f32 exp_f32(vec_f32 x)
{
    vec_f32 n;
    vec_f32 p = exp_split(clamp_f32(x, -104.0f, 89.0f), &n) + 1.0f;
    return scale_f32(p, n);
}

/* The power that is cheapest, of 2 or of e, within 4 units in the last place; LOG_BASE: of e to its
 * base. brief: within 3e-6 of it, of which bf16 shows nothing. Lifted ones, for x up to 0, are 2^LIFT
 * times as large, so that shares that are denormal come of powers that are not; they may be 0 below
 * e^-131. */
enum { LIFT = 64 };

#if defined(BSK_ISA_AVX512) || defined(BSK_ISA_AVX2)
#define LOG_BASE 1.44269504f

/* one * 2^f of a fraction by a polynomial that is one at 0. */
OMP_INLINE vec_f32 power_fraction(vec_f32 f, bool brief, float one)
{
    vec_f32 p;
    if (brief) {
        p = f * (1.34266843e-2f * one) + 5.22424742e-2f * one;
        p = p * f + 2.41280205e-1f * one;
        p = p * f + 6.93044845e-1f * one;
    } else {
        p = f * (1.86713007e-3f * one) + 9.01703032e-3f * one;
        p = p * f + 5.57999131e-2f * one;
        p = p * f + 2.40164450e-1f * one;
        p = p * f + 6.93151312e-1f * one;
    }
    return p * f + one;
}
#endif

#if defined(BSK_ISA_AVX512)
OMP_INLINE vec_f32 power_lifted(vec_f32 x, bool brief, bool lifted)
{
    /* infinity has the fraction 0 */
    const vec_f32 f = (vec_f32)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF);
    const vec_f32 p = power_fraction(f, brief, lifted ? 0x1p64f : 1.0f);
    return (vec_f32)_mm512_scalef_ps((__m512)p, (__m512)x);
}
#elif defined(BSK_ISA_AVX2)
OMP_INLINE vec_f32 power_lifted(vec_f32 x, bool brief, bool lifted)
{
    /* lifted: one factor, which is 0 where it would be denormal */
    x = clamp_f32(x, lifted ? -127.0f - LIFT : -150.0f, lifted ? 0.0f : 128.0f);
    const vec_f32 n = (vec_f32)_mm256_floor_ps((__m256)x);
    const vec_f32 p = power_fraction(x - n, brief, 1.0f);
    return lifted ? p * (vec_f32)((whole_i32(n) + (127 + LIFT)) << 23) : scale_f32(p, n);
}
#else
#define LOG_BASE 1.0f

OMP_INLINE vec_f32 power_lifted(vec_f32 x, bool brief, bool lifted)
{
    const float least = -0.6931471f * (float)(125 + LIFT);
    vec_f32 n;
    (void)brief;
    if (!lifted)
        return exp_f32(x);
    const vec_f32 p = exp_split(clamp_f32(x, least, 0.0f), &n) + 1.0f;
    const vec_f32 power = p * (vec_f32)((whole_i32(n) + (127 + LIFT)) << 23);
    return select_f32(x < least, (vec_f32){0}, power);
}
#endif

/* 1 / x for x >= 1, within 1.5 units in the last place; 0 of infinity. */
OMP_INLINE vec_f32 inverse_f32(vec_f32 x)
{
#if defined(BSK_ISA_AVX512)
    const __m512 d = (__m512)x, near = _mm512_rcp14_ps(d), one = _mm512_set1_ps(1);
    const __mmask16 whole = _mm512_cmp_ps_mask(d, _mm512_set1_ps(INFINITY), _CMP_NEQ_UQ);
    return (vec_f32)_mm512_mask_fmadd_ps(near, whole, _mm512_fnmadd_ps(d, near, one), near);
#else
    return 1.0f / x;
#endif
}

/* e^x - 1 without cancellation, for x <= 0. */
OMP_INLINE vec_f32 expm1_f32(vec_f32 x)
{
    vec_f32 n;
    const vec_f32 p = exp_split(clamp_f32(x, -32.0f, 0.0f), &n);
    const vec_f32 power = (vec_f32)((whole_i32(n) + 127) << 23);
    return p * power + (power - 1.0f);
}

OMP_INLINE vec_f32 abs_f32(vec_f32 x)
{
    return (vec_f32)((vec_i32)x & 0x7fffffff);
}

/* x with the sign of y, for x >= 0. */
OMP_INLINE vec_f32 sign_f32(vec_f32 x, vec_f32 y)
{
    return (vec_f32)((vec_i32)x | ((vec_i32)y & ~0x7fffffff));
}

OMP_INLINE vec_f32 tanh_f32(vec_f32 x)
{
    vec_f32 e = expm1_f32(-2.0f * abs_f32(x));
    return sign_f32(abs_f32(e / (e + 2.0f)), x);
}

OMP_INLINE vec_f32 sigmoid_f32(vec_f32 x)
{
    return 1.0f / (exp_f32(-x) + 1.0f);
}

/* Natural logarithm. x = 2^n m with m from sqrt(1/2) to sqrt(2); log m is the series of
 * 2 atanh(s) with s = (m - 1) / (m + 1). */
OMP_INLINE vec_f32 log_f32(vec_f32 x)
{
    const vec_i32 tiny = x < 1.17549435e-38f;
    const vec_f32 scaled = abs_f32(select_f32(tiny, x * 8388608.0f, x));
    const vec_i32 bits = (vec_i32)scaled - 0x3f3504f3, n = (bits >> 23) + (tiny & -23);
    const vec_f32 m = (vec_f32)((bits & 0x7fffff) + 0x3f3504f3), d = m - 1.0f;
    const vec_f32 s = d / (m + 1.0f), q = s * s;

    vec_f32 p = q * 0.181818182f + 0.222222222f;
    p = p * q + 0.285714286f;
    p = p * q + 0.4f;
    p = p * q + 0.666666667f;
    const vec_f32 whole = __builtin_convertvector(n, vec_f32);
    /* log m = d - s (d - s^2 p); d is exact */
    vec_f32 y = whole * 0.693145752f + (d - s * (d - q * p) + whole * 1.42860677e-6f);

    y = select_f32(x < INFINITY, y, x); /* NaN and infinity */
    y = select_f32(x == 0.0f, splat_f32(-INFINITY), y);
    return select_f32(x < 0.0f, splat_f32(NAN), y);
}

/* The share of a normal distribution below x, exact in its tails; *density is e^(-x^2 / 2). With
 * z = |x| / sqrt(2) and t = (z - 2) / (z + 2), e^(z^2) erfc(z) (1 + 2 z) is a polynomial in t: it
 * interpolates at Chebyshev nodes up to z = 10.5, where the density vanishes. */
OMP_INLINE vec_f32 normal_below(vec_f32 x, vec_f32 *density)
{
    const vec_f32 size = clamp_f32(abs_f32(x), 0.0f, 14.8f);
    const vec_f32 z = size * (float)SQRT_1_OVER_2, t = (z - 2.0f) / (z + 2.0f);

    vec_f32 p = t * -4.20062308e-4f - 1.25541387e-3f;
    p = p * t + 1.33004459e-3f;
    p = p * t + 8.65846967e-3f;
    p = p * t - 8.06387421e-3f;
    p = p * t - 5.42132221e-2f;
    p = p * t + 1.64055616e-1f;
    p = p * t - 1.66030467e-1f;
    p = p * t - 9.27639827e-2f;
    p = p * t + 1.27697837f;

    *density = exp_f32(-0.5f * size * size);
    const vec_f32 tail = 0.5f * *density * (p / (z * 2.0f + 1.0f));
    return select_f32(x < 0.0f, tail, 1.0f - tail);
}

/* v of an activation x * sigmoid(v(x)), times LOG_BASE. */
OMP_INLINE vec_f32 act_argument(bsk_act act, vec_f32 x)
{
    const float scale = (float)(2 * SQRT_2_OVER_PI * LOG_BASE);
    switch (act) {
    case BSK_ACT_GELU:
        return x * (scale + scale * (float)GELU_CUBIC * (x * x));
    case BSK_ACT_QUICK_GELU:
        return x * (float)(QUICK_SCALE * LOG_BASE);
    default:
        return x * LOG_BASE;
    }
}

/* The slope of v itself. */
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

/* x * sigmoid(v); v times LOG_BASE. */
OMP_INLINE vec_f32 gated_f32(vec_f32 x, vec_f32 v)
{
    return x * inverse_f32(power_lifted(-v, false, false) + 1.0f);
}

/* The derivative of x * sigmoid(v(x)); v times LOG_BASE. */
OMP_INLINE vec_f32 gated_slope(vec_f32 x, vec_f32 v, vec_f32 v_slope)
{
    const vec_f32 e = power_lifted(-v, false, false), s = inverse_f32(e + 1.0f);
    const vec_f32 bend = s * (e * s); /* not a number where e is infinite: counts as 0 */
    return s + select_f32(bend > 0.0f, x * bend * v_slope, splat_f32(0.0f));
}

OMP_INLINE vec_f32 act_vector(bsk_act act, vec_f32 x)
{
    if (act == BSK_ACT_RELU) /* keeps NaN */
        return select_f32(x <= 0.0f, splat_f32(0.0f), x);
    if (act == BSK_ACT_GELU_ERF) {
        vec_f32 density;
        return x * normal_below(x, &density);
    }
    return gated_f32(x, act_argument(act, x));
}

OMP_INLINE vec_f32 act_slope_vector(bsk_act act, vec_f32 x)
{
    if (act == BSK_ACT_RELU) {
        vec_f32 negative = select_f32(x <= 0.0f, splat_f32(0.0f), x);
        return select_f32(x > 0.0f, splat_f32(1.0f), negative);
    }
    if (act == BSK_ACT_GELU_ERF) {
        vec_f32 density, below = normal_below(x, &density);
        return below + x * (density * (float)(0.5 * SQRT_2_OVER_PI));
    }
    return gated_slope(x, act_argument(act, x), act_argument_slope(act, x));
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
    if (act != BSK_ACT_NONE)
        ACT_ROW(x, count, act_vector);
}

/* x = act'(x) */
static inline void act_slope_row_f32(bsk_act act, float *x, int64_t count)
{
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
