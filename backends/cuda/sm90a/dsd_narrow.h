/* What the kernels of dsd_narrow.cu and the C code that plans them share. */
#ifndef BSKI_CUDA_DSD_NARROW_H
#define BSKI_CUDA_DSD_NARROW_H

#include <backends/cuda/epilogue.h>

enum {
    DSD_NARROW_WARPS = 4,
    DSD_NARROW_THREADS = DSD_NARROW_WARPS * 32,
    DSD_NARROW_STEP = 4, /* runs of 8 along the depth that a warp multiplies at once */
    DSD_NARROW_COLUMNS = 64,
    DSD_NARROW_CLUSTER = 8 /* thread blocks that share a long list, at most */
};

/* Elements of shared memory for a warp's sums. */
#define DSD_NARROW_SCRATCH(features, samples) (((features) + 1) * (samples) + 8)

/* Eight of the depth of a kept block: where they begin in b and in the values, 16 bytes each. The
 * runs of a block row follow each other, and are filled up to whole steps. */
typedef struct dsd_narrow_run {
    uint32_t b, s; /* DSD_NARROW_NONE: none */
} dsd_narrow_run;

#define DSD_NARROW_NONE UINT32_MAX

/* A thread block's share of the list of a block row: part number `part` of `parts`, which are
 * neighbours in one cluster. row -1: none. */
typedef struct dsd_narrow_piece {
    int32_t first, steps; /* step number `first` of the table and those that follow */
    int32_t row;          /* block row */
    int16_t part, parts;
} dsd_narrow_piece;

typedef struct dsd_narrow_arg {
    const void *s, *b;
    const dsd_narrow_run *runs;
    const dsd_narrow_piece *pieces;
    int64_t b_n; /* from a sample of b to the next, elements */
    int32_t block_k;
    int32_t cluster; /* thread blocks of a cluster */
    dsd_epilogue end;
} dsd_narrow_arg;

#endif
