/* Scalar types: sizes, names and conversions. The conversions define bsk's rounding: to nearest
 * even, overflow to infinity (of 8-bit types to the largest number), denormals kept, NaN stays
 * NaN, and is 0 as i8. */
#ifndef BSKI_DTYPE_H
#define BSKI_DTYPE_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <bsk/tensor.h>

/* A positive number that is there to keep a divisor from being 0, in f32. */
static inline float bski_f32_eps(double eps)
{
    return eps > 0 && eps < FLT_MIN ? FLT_MIN : (float)eps;
}

/* The least number of f32 that is not below a limit. */
static inline float bski_f32_up(double limit)
{
    const float near = (float)limit;
    return (double)near < limit ? nextafterf(near, INFINITY) : near;
}

static inline uint32_t bski_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float bski_bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline float bski_bf16_to_f32(uint16_t h)
{
    return bski_bits_f32((uint32_t)h << 16);
}

static inline uint16_t bski_f32_to_bf16(float f)
{
    uint32_t u = bski_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u); /* quiet NaN; a bare rounding could make it infinity */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline float bski_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = h >> 10 & 31u, m = h & 0x3ffu;
    if (e == 31)
        return bski_bits_f32(sign | 0x7f800000u | m << 13);
    if (e)
        return bski_bits_f32(sign | (e + 112) << 23 | m << 13);
    /* zero and denormals: m * 2^-24, exact in f32 */
    float v = (float)m * 5.9604644775390625e-8f;
    return sign ? -v : v;
}

static inline uint16_t bski_f32_to_f16(float f)
{
    uint32_t u = bski_f32_bits(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x1ffu));
    if (a >= 0x477ff000u) /* 65520 and above */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* below 2^-14: adding 0.5 aligns the denormal grid and rounds to even */
        float v = bski_bits_f32(a) + 0.5f;
        return (uint16_t)(sign | (bski_f32_bits(v) - 0x3f000000u));
    }
    a += 0xfffu + (a >> 13 & 1u);
    return (uint16_t)(sign | (a - 0x38000000u) >> 13);
}

static inline float bski_f8e4m3_to_f32(uint8_t b)
{
    uint32_t sign = (uint32_t)(b & 0x80u) << 24, e = b >> 3 & 15u, m = b & 7u;
    if ((b & 0x7fu) == 0x7fu)
        return bski_bits_f32(sign | 0x7fc00000u);
    if (e)
        return bski_bits_f32(sign | (e + 120) << 23 | m << 20);
    float v = (float)m * 0.001953125f; /* 2^-9 */
    return sign ? -v : v;
}

static inline float bski_f8e5m2_to_f32(uint8_t b)
{
    return bski_f16_to_f32((uint16_t)(b << 8));
}

/* To 8 bits with `m` bits of fraction: the smallest normal number is 2^low, `most` the largest, in
 * bits of f32 and in its own. */
static inline uint8_t bski_f32_to_f8(float f, int m, int low, uint32_t most, uint8_t own_most)
{
    uint32_t u = bski_f32_bits(f), a = u & 0x7fffffffu;
    uint8_t sign = (uint8_t)(u >> 24 & 0x80u);
    if (a > 0x7f800000u)
        return sign | 0x7f;
    if (a >= most)
        return sign | own_most;
    int shift = 23 - m;
    if (a < (uint32_t)(low + 127) << 23) { /* an addition aligns the denormal grid and rounds */
        uint32_t grid = (uint32_t)(low - m + 23 + 127) << 23;
        return (uint8_t)(sign | (bski_f32_bits(bski_bits_f32(a) + bski_bits_f32(grid)) - grid));
    }
    a += (1u << (shift - 1)) - 1 + (a >> shift & 1u);
    return (uint8_t)(sign | (a - ((uint32_t)(low + 126) << 23)) >> shift);
}

static inline uint8_t bski_f32_to_f8e4m3(float f)
{
    return bski_f32_to_f8(f, 3, -6, 0x43e00000u, 0x7e); /* 448 */
}

static inline uint8_t bski_f32_to_f8e5m2(float f)
{
    return bski_f32_to_f8(f, 2, -14, 0x47600000u, 0x7b); /* 57344 */
}

static inline int8_t bski_f64_to_i8(double d)
{
    if (d != d)
        return 0;
    return (int8_t)(d < -128 ? -128 : d > 127 ? 127 : nearbyint(d));
}

/* f64 to a smaller type in one rounding: odd rounding to f32 first keeps the sticky information. */
static inline float bski_f64_to_f32_odd(double d)
{
    float f = (float)d;
    if ((double)f == d || f != f || isinf(f))
        return isinf(f) && !isinf(d) ? bski_bits_f32((bski_f32_bits(f) & 0x80000000u) | 0x7f7fffffu)
                                     : f;
    uint32_t u = bski_f32_bits(f);
    if (!(u & 1u)) { /* inexact and even: step to the odd neighbour on d's side */
        if (fabs((double)f) > fabs(d))
            u -= 1;
        else
            u += 1;
    }
    return bski_bits_f32(u);
}

/* Element i of an array of numbers, as f64; and the store with one rounding. */
static inline double bski_load(bsk_dtype t, const void *p, int64_t i)
{
    switch (t) {
    case BSK_F64:
        return ((const double *)p)[i];
    case BSK_F32:
        return ((const float *)p)[i];
    case BSK_F16:
        return bski_f16_to_f32(((const uint16_t *)p)[i]);
    case BSK_F8E4M3:
        return bski_f8e4m3_to_f32(((const uint8_t *)p)[i]);
    case BSK_F8E5M2:
        return bski_f8e5m2_to_f32(((const uint8_t *)p)[i]);
    case BSK_I8:
        return ((const int8_t *)p)[i];
    default: /* BSK_BF16 */
        return bski_bf16_to_f32(((const uint16_t *)p)[i]);
    }
}

static inline void bski_store(bsk_dtype t, void *p, int64_t i, double v)
{
    switch (t) {
    case BSK_F64:
        ((double *)p)[i] = v;
        break;
    case BSK_F32:
        ((float *)p)[i] = (float)v;
        break;
    case BSK_F16:
        ((uint16_t *)p)[i] = bski_f32_to_f16(bski_f64_to_f32_odd(v));
        break;
    case BSK_F8E4M3:
        ((uint8_t *)p)[i] = bski_f32_to_f8e4m3(bski_f64_to_f32_odd(v));
        break;
    case BSK_F8E5M2:
        ((uint8_t *)p)[i] = bski_f32_to_f8e5m2(bski_f64_to_f32_odd(v));
        break;
    case BSK_I8:
        ((int8_t *)p)[i] = bski_f64_to_i8(v);
        break;
    default: /* BSK_BF16 */
        ((uint16_t *)p)[i] = bski_f32_to_bf16(bski_f64_to_f32_odd(v));
        break;
    }
}

/* Element i of an array of an integer type. */
static inline int64_t bski_load_int(bsk_dtype t, const void *p, int64_t i)
{
    switch (t) {
    case BSK_I64:
        return ((const int64_t *)p)[i];
    case BSK_I32:
        return ((const int32_t *)p)[i];
    case BSK_U16:
        return ((const uint16_t *)p)[i];
    default: /* BSK_U8 */
        return ((const uint8_t *)p)[i];
    }
}

/* Half the distance from 1 to the next number: the relative error of one rounding. */
static inline double bski_epsilon(bsk_dtype t)
{
    switch (t) {
    case BSK_F64:
        return 0x1p-53;
    case BSK_F32:
        return 0x1p-24;
    case BSK_F16:
        return 0x1p-11;
    case BSK_BF16:
        return 0x1p-8;
    case BSK_F8E4M3:
        return 0x1p-4;
    case BSK_F8E5M2:
        return 0x1p-3;
    default:
        return 0;
    }
}

#define BSKI_FLOATS  (1u << BSK_F64 | 1u << BSK_F32 | 1u << BSK_F16 | 1u << BSK_BF16)
#define BSKI_F8      (1u << BSK_F8E4M3 | 1u << BSK_F8E5M2)
#define BSKI_SCALED  (BSKI_F8 | 1u << BSK_I8) /* operands of products only, which may have scales */
#define BSKI_INDICES (1u << BSK_I64 | 1u << BSK_I32 | 1u << BSK_U16 | 1u << BSK_U8)

#endif
