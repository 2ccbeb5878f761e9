/* What the host plans and the kernels of dsd_wgmma.cu follow. */
#ifndef BSKI_CUDA_DSD_WGMMA_H
#define BSKI_CUDA_DSD_WGMMA_H

#include <backends/cuda/epilogue.h>

/* A tile of C: two panels of features by two groups of samples. Weights are cut into cells of
 * CELL features x CELL along the inner dimension, of f32 half as many; a stage is one slice of the
 * activations, a part of it for each group, and the cells of one or both panels that meet it.
 *
 * A panel whose list is much longer than the others' has tiles of its own, a quarter of the samples
 * wide: a stage is then two slices and their cells, and the groups take stages in turn. */
enum {
    DSD_CELL = 64,
    DSD_ROW_BYTES = 128, /* of a slice: along the inner dimension, or of as many samples */
    DSD_GROUP_N = 128,
    DSD_TILE_N = 2 * DSD_GROUP_N,
    DSD_SLICE_BYTES = DSD_GROUP_N * DSD_CELL * 2,
    DSD_CELL_BYTES = DSD_CELL * DSD_CELL * 2,
    /* of each group's ring of slices, and of the ring of weights, from which both groups read */
    DSD_SLICES = 4,
    DSD_WEIGHTS = 5,
    DSD_SLOTS = 2 * DSD_SLICES + DSD_WEIGHTS,
    /* consumers: a warpgroup for each group; then one warpgroup of which single warps feed them */
    DSD_CONSUMERS = 256,
    DSD_THREADS = DSD_CONSUMERS + 128,
    DSD_SCRATCH_BYTES = DSD_CONSUMERS * 64, /* of the epilogue */
    DSD_BARRIER_BYTES = 256,
    DSD_SHARED_BYTES = DSD_SLOTS * DSD_SLICE_BYTES + DSD_SCRATCH_BYTES + DSD_BARRIER_BYTES,
    DSD_PACK_THREADS = 256
};

/* The epilogues of a kernel: alpha times the sums (of f32, a plain end), or everything. In one kernel,
 * the second's registers would cost the products of the first. */
typedef enum dsd_end { DSD_END_BARE, DSD_END_ANY, DSD_ENDS } dsd_end;

typedef struct dsd_stage {
    int32_t k;    /* where the activations' slice begins, elements; in a quarter, below */
    int32_t cell; /* of the packed weights; in a quarter the first of two */
} dsd_stage;

/* `k` of a stage of a quarter: the numbers of two slices. */
enum { DSD_SECOND = 16 /* bits */, DSD_MOST_SLICES = (1 << (DSD_SECOND - 1)) - 1 };

/* A tile's stages in their order: those with a cell of the second panel only, of both, of the first
 * only. */
typedef struct dsd_tile {
    int32_t first; /* stage */
    int32_t two, both, one;
    int32_t feature[2]; /* where the panels begin; outside of C for a panel that is not there */
    int32_t n;          /* in tiles, of all members of the batch; in pairs of them for clusters */
    int32_t quarter; /* 0, or 1 + the quarter of the samples of a long list: all stages are `two` */
} dsd_tile;

/* How blocks lie in cells. */
typedef struct dsd_parts {
    const int32_t *slots; /* by cell: of each part of it, along k then features; -1: not kept */
    int32_t features, k;  /* elements of a part: of a block's share of one cell */
    int32_t halves;       /* of each eight along k, those of even number come first */
} dsd_parts;

typedef struct dsd_wgmma_arg {
    const char *weights;
    const dsd_stage *stages;
    const dsd_tile *tiles;
    const int32_t *tile_start; /* by thread block, and the end */
    int32_t member_tiles;      /* tiles along n of one member of the batch */
    int32_t members;
    int32_t gaps; /* cells have parts that are not kept */
    /* for sums over gaps that are not finite */
    dsd_parts parts;
    const void *b;
    int64_t b_k, b_n, b_batch, depth;
    dsd_epilogue epilogue;
} dsd_wgmma_arg;

/* A cell's place in op(S). */
typedef struct dsd_cell {
    int32_t feature, k;
} dsd_cell;

typedef struct dsd_pack_arg {
    const void *s;
    char *weights;
    const dsd_cell *cells;
    dsd_parts parts;
    int64_t block; /* elements */
    int64_t depth;
    int32_t block_features, block_k; /* of op(S) */
    int32_t feature_stride, k_stride;
} dsd_pack_arg;

#endif
