/* What the host sides of fused attention share. */
#ifndef BSKI_SIMT_ATTENTION_HOST_H
#define BSKI_SIMT_ATTENTION_HOST_H

#include <math.h>

#include <backends/simt/entry.h>

/* The scale of products for heads of d features: 0 stands for one that keeps their variance. */
static inline double attention_scale(double scale, i64 d)
{
    return scale != 0 ? scale : d > 0 ? 1 / sqrt((double)d) : 1;
}

/* Two factors of that scale: the one that gradients of scores have where they are rounded to 16
 * bits, whose range they may leave without it, is at most 1; *rest is the other. */
static inline double attention_slope(double scale, i64 d, double *rest)
{
    const double whole = attention_scale(scale, d), slope = fabs(whole) <= 1 ? whole : 1;
    *rest = whole / slope;
    return slope;
}

/* Query heads of one of keys and values. */
static inline i32 attention_group(const bsk_tensor *q, const bsk_tensor *k)
{
    return k->dims[1] > 0 ? (i32)(q->dims[1] / k->dims[1]) : 1;
}

/* Query rows of all heads; false: more than can be counted. */
static inline bool attention_rows(const bsk_tensor *q, i64 *rows)
{
    return bski_mul_i64(q->dims[0], q->dims[1], rows) && bski_mul_i64(*rows, q->dims[2], rows);
}

#endif
