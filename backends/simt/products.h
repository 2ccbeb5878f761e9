/* The block-sparse products. Kernels of f32 serve all types but f64, the tiled forms of bf16 both of
 * 16 bits. Variants:
 *     -DTM=8, 16, 32, 64   tiled forms dsd_<TM> and sdd_<TM> for blocks of up to TM x TM, or tiles
 *                          of larger ones; dsd_64 not of f64, sdd_64 of f32 alone
 *     -DWIDE=1             dsd_wide, sdd_wide and spread_wide for CPUs behind OpenCL
 *     none                 the small kernels that all of these need
 * The name of a kernel contains its variant, so that one program can hold them all. */
#define SIMT_HALVES
#define SIMT_SINGLES
#include "products_arg.h"

#define GROUP_LANES 128
#include "lanes.h"

#undef FORM
#if defined(WIDE)
#define FORM wide
#elif defined(TM)
#define FORM TM
#else
#define FORM any
#endif
#ifndef FORMED
#define FORMED(x) SIMT_JOIN(x, FORM)
#define FN(x)     NAME(FORMED(x))
#endif

#if defined(WIDE) || defined(TM)
#include "act.h"

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

/* Where the sums of one block of sdd go. */
DEVICE void FN(sdd_store)(const sdd_arg *a, GLOBAL u8 *s, GLOBAL R *parts, i64 split, i64 group,
                          i64 slot, i64 element, R gate, R sum)
{
    i64 block = (i64)a->block_rows * a->block_cols;
    if (a->direct) {
        i64 at = group * a->s_group + slot * block + element;
        R v = a->gate_mode && gate == 0 ? 0
              : a->gate_mode == 2       ? NUM(a->alpha) * sum * gate
                                        : NUM(a->alpha) * sum;
        if (NUM(a->beta) != 0)
            v += NUM(a->beta) * NAME(load_r)(a->s_type, s, at);
        NAME(store_r)(a->s_type, s, at, v);
    } else {
        i64 at = split * a->part + (group * a->nnz + slot) * block + element;
        parts[at] = a->accumulate ? parts[at] + sum : sum;
    }
}

/* The members of a batch that add up to a block: first, first + heads ... */
DEVICE i64 FN(sdd_first)(const sdd_arg *a, i64 group, i32 head)
{
    return a->groups > 1 ? group * a->heads + head : head;
}

#if defined(WIDE)
#include "products_wide.h"
#elif SIMT_CODE != 1 || TM != 64
#include "products_tile.h"
#endif

#elif SIMT_CODE <= 2
#include "products_any.h"
#endif
