/* The block-sparse products, dsd and sdd, in f32 and in f64 arithmetic. */
#include <stdbool.h>

#include "act.h"
#include "isa.h"
#include "rows.h"

/* Bytes: of packed operands at a time, of S in one task of dsd, and of the part of B that stays in
 * the first-level cache. */
enum { PACKED = 64 << 20, DSD_TASK = 256 << 10, DSD_SLICE = 24 << 10 };

/* The first block row of one of `ranges` ranges with about equal numbers of blocks. Each row counts
 * as one more block, so that empty rows are shared out as well. start: the rows' lists. */
static int64_t range_start(const int64_t *start, int64_t grid, int64_t range, int64_t ranges)
{
    const int64_t total = start[grid] - start[0] + grid;
    const int64_t target = (int64_t)((double)total * (double)range / (double)ranges);
    int64_t low = 0, high = grid;

    if (range >= ranges)
        return grid;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (start[middle] - start[0] + middle < target)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

#if VEC_PAIRS
/* Two elements, over and over. */
OMP_INLINE vec_f32 splat_pair_f32(const float *two)
{
    typedef int64_t wide __attribute__((vector_size(VEC_BYTES)));
    int64_t bits;
    memcpy(&bits, two, sizeof bits);
    return (vec_f32)(bits - (wide){0});
}
#endif

#define T        float
#define V        vec_f32
#define FN(name) name##_f32
#define OWN      BSK_F32
#define PAIRS    VEC_PAIRS
#include "tile.h"
#include "dsd.h"
#include "sdd.h"
#undef T
#undef V
#undef OWN
#undef PAIRS
#undef FN

#define T        double
#define V        vec_f64
#define FN(name) name##_f64
#define OWN      BSK_F64
#define PAIRS    0
#include "tile.h"
#include "dsd.h"
#include "sdd.h"
#undef T
#undef V
#undef OWN
#undef PAIRS
#undef FN

#define PRODUCT_ENTRY(op, type)                                                                    \
    OMP_DECLARE(op##_##type);                                                                      \
    OMP_ACCEPT(op##_##type)                                                                        \
    {                                                                                              \
        op##_##type shape;                                                                         \
        size_t bytes;                                                                              \
        (void)props;                                                                               \
        return op##_shape_##type(problem, &shape, &bytes) ? BSK_ACCEPT : BSK_REFUSE_LIMIT;         \
    }                                                                                              \
    OMP_PREPARE(op##_##type)                                                                       \
    {                                                                                              \
        op##_##type shape;                                                                         \
        (void)device;                                                                              \
        return op##_shape_##type(prepared->problem, &shape, &prepared->workspace_bytes)            \
                   ? BSK_OK                                                                        \
                   : BSK_E_UNSUPPORTED;                                                            \
    }                                                                                              \
    OMP_LAUNCH(op##_##type)                                                                        \
    {                                                                                              \
        op##_run_##type(prepared, ((const bski_cpu_queue *)queue)->threads, args);                 \
        return BSK_OK;                                                                             \
    }

PRODUCT_ENTRY(dsd, f32)
PRODUCT_ENTRY(dsd, f64)
PRODUCT_ENTRY(sdd, f32)
PRODUCT_ENTRY(sdd, f64)
