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

#include "products_form.h"

#if defined(WIDE) || defined(TM)
#include "products_dsd.h"

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
#include "bytes.h"

#include "products_any.h"
#endif
