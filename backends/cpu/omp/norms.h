/* Shared by layer_norm and its gradient: how rows and columns are shared out, and normalized x. */
#ifndef BSKI_OMP_NORMS_H
#define BSKI_OMP_NORMS_H

#include "affine.h"

/* Columns of a band, at most; partial sums of a column; rows of a band, and how many bands. */
enum { COLUMNS = 512, COLUMN_UNIT = 16, COLUMN_PART = 64, BAND_ROWS = 32, BANDS = 32 };

/* Columns of a band of so many features: as much as stays near, but enough bands to share out. */
static inline int64_t band_columns(const act_shape *s)
{
    const int64_t near = NEAR / (int64_t)sizeof(float) / max_i64(s->outer, 1);
    const int64_t share = bski_ceil_div(s->inner, BANDS / 2);
    const int64_t units = bski_ceil_div(min_i64(near, share), COLUMN_UNIT);
    return min_i64(COLUMNS, max_i64(units, 1) * COLUMN_UNIT);
}

/* Bands of rows, or of columns where the features lie across. */
static inline int64_t band_size(const act_shape *s)
{
    return s->features_inner ? max_i64(BAND_ROWS, bski_ceil_div(s->outer, BANDS)) : band_columns(s);
}

static inline int64_t band_count(const act_shape *s)
{
    return bski_ceil_div(s->features_inner ? s->outer : s->inner, band_size(s));
}

static inline const float *optional(bsk_dtype type, bsk_mem mem, int64_t at)
{
    return type == BSK_NONE ? NULL : (const float *)bsk_mem_address(mem) + at;
}

/* (x - mean) * rstd of some lines; early: the product before the difference, which is one instruction
 * less. It is as good for bf16, whose numbers were rounded more coarsely; but not before relu, which
 * asks for the sign of what may be small, nor where many of them are added. */
typedef struct normal {
    bool early;
    vec_f32 scale[LINES], shift[LINES];
} normal;

OMP_INLINE void normal_at(normal *n, int r, float mean, float rstd)
{
    n->scale[r] = splat_f32(rstd);
    n->shift[r] = splat_f32(n->early ? -mean * rstd : -mean);
}

OMP_INLINE vec_f32 normal_f32(const normal *n, int r, vec_f32 x)
{
    return n->early ? x * n->scale[r] + n->shift[r] : (x + n->shift[r]) * n->scale[r];
}

#endif
