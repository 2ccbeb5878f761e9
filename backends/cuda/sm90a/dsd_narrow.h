/* What the kernels of dsd_narrow.cu and the C code that plans them share. */
#ifndef BSKI_CUDA_DSD_NARROW_H
#define BSKI_CUDA_DSD_NARROW_H

#include <backends/cuda/sm90a/dsd_few.h>

enum {
    DSD_NARROW_WARPS = 4,
    DSD_NARROW_THREADS = DSD_NARROW_WARPS * 32,
    DSD_NARROW_CLUSTER = 8 /* thread blocks that share a long list, at most */
};

/* Elements of shared memory for a warp's sums. */
#define DSD_NARROW_SCRATCH(features, samples) (((features) + 1) * (samples) + 8)

/* A thread block's share of the list of a block row: part number `part` of `parts`, which are
 * neighbours in one cluster. row -1: none. */
typedef struct dsd_narrow_piece {
    int32_t first, steps; /* step number `first` of the table and those that follow */
    int32_t row;          /* block row */
    int16_t part, parts;
} dsd_narrow_piece;

typedef struct dsd_narrow_arg {
    dsd_few_operands operands;
    const dsd_few_run *runs;
    const dsd_narrow_piece *pieces;
    int32_t cluster; /* thread blocks of a cluster */
} dsd_narrow_arg;

#endif
