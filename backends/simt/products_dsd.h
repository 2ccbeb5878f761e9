/* What all kernels of dsd share: their buffers, and the end of a product. Included once for each type
 * and form (FN). */
#include "act.h"

#ifndef DSD_BUFFERS
/* The buffers of a dsd kernel; wide kernels read s and b in the type of the arithmetic. */
#define DSD_BUFFERS(type)                                                                          \
    BUF(const type, s), BUF(const type, b), BUF(u8, c), BUF(const R, gate), BUF(const R, bias),    \
        BUF(const u8, residual), BUF(const R, row_scale), BUF(const R, col_scale),                 \
        BUF(const dsd_list, lists), BUF(const i32, col), BUF(const i32, slot)
#define DSD_OPEN(type)                                                                             \
    OPEN(const type, s);                                                                           \
    OPEN(const type, b);                                                                           \
    OPEN(u8, c);                                                                                   \
    OPEN(const R, gate);                                                                           \
    OPEN(const R, bias);                                                                           \
    OPEN(const u8, residual);                                                                      \
    OPEN(const R, row_scale);                                                                      \
    OPEN(const R, col_scale);                                                                      \
    OPEN(const dsd_list, lists);                                                                   \
    OPEN(const i32, col);                                                                          \
    OPEN(const i32, slot)
#endif

/* Stores C[i][j] of batch member m from the bare product v. */
DEVICE void FN(dsd_store)(const dsd_arg *a, GLOBAL u8 *c, const GLOBAL R *bias,
                          const GLOBAL u8 *residual, const GLOBAL R *row_scale,
                          const GLOBAL R *col_scale, i64 m, i64 i, i64 j, R v)
{
    i64 at = m * a->c_batch + i * a->c_row + j * a->c_col;
    v *= NUM(a->alpha);
    if (row_scale)
        v *= row_scale[i];
    if (col_scale)
        v *= col_scale[j];
    if (bias)
        v += bias[i];
    if (NUM(a->beta) != 0)
        v += NUM(a->beta) * NAME(load_r)(a->c_type, c, at);
    if (a->act)
        v = FN(act_value)(a->act, v);
    if (residual)
        v += NAME(load_r)(a->d_type, residual, m * a->d_batch + i * a->d_row + j * a->d_col);
    NAME(store_r)(a->c_type, c, at, v);
}
