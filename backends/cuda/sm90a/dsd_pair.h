/* What the host plans and the kernels of dsd_pair.cu follow. */
#ifndef BSKI_CUDA_DSD_PAIR_H
#define BSKI_CUDA_DSD_PAIR_H

#include <backends/cuda/epilogue.h>

/* op(S) is cut into *units* of 32 features, which are the rows of products, and along the inner
 * dimension into *slices* of 32: pieces of 32 x 32, kept or not. Two units, any two, are a *pair*:
 * the 64 rows of a warpgroup, for 256 samples. A *group* is the pairs of a cluster: up to three in
 * each of its two thread blocks. */
enum {
    DSD_PAIR_UNIT = 32, /* features, and depth of a slice */
    DSD_PAIR_SAMPLES = 256,
    DSD_PAIR_RANKS = 2,  /* thread blocks of a cluster */
    DSD_PAIR_OWNERS = 3, /* warpgroups of a thread block that multiply */
    DSD_PAIR_UNITS = 2 * DSD_PAIR_OWNERS,
    DSD_PAIR_BITS = DSD_PAIR_RANKS * DSD_PAIR_UNITS,
    DSD_PAIR_THREADS = (DSD_PAIR_OWNERS + 1) * 128,
    DSD_PAIR_SLICE_BYTES = DSD_PAIR_SAMPLES * DSD_PAIR_UNIT * 2,
    DSD_PAIR_PIECE_BYTES = DSD_PAIR_UNIT * DSD_PAIR_UNIT * 2,
    DSD_PAIR_SLOTS = 10,     /* of the ring of slices: an even number */
    DSD_PAIR_CELLS = 4,      /* of each warpgroup's ring of weights: one or two pieces each */
    DSD_PAIR_SCRATCH = 1024, /* bytes of a warp, of the epilogue */
    DSD_PAIR_BARRIERS = 512,
    /* Zeros lie before and after the weights. */
    DSD_PAIR_SHARED = DSD_PAIR_SLOTS * DSD_PAIR_SLICE_BYTES +
                      (DSD_PAIR_OWNERS * DSD_PAIR_CELLS + 1) * 2 * DSD_PAIR_PIECE_BYTES +
                      DSD_PAIR_OWNERS * 4 * DSD_PAIR_SCRATCH + DSD_PAIR_BARRIERS,
    DSD_PAIR_PACK_THREADS = 128 /* 16 bytes of a piece each */
};

/* A tile of a cluster's list. Its slices are a number each, of a slice that the group needs, above
 * DSD_PAIR_BITS bits: which units have a piece there, pair by pair. */
typedef struct dsd_pair_tile {
    int32_t first, slices;
    int32_t group;
    int32_t sample; /* the first */
} dsd_pair_tile;

/* A thread block's share of a group. */
typedef struct dsd_pair_share {
    int32_t piece;                   /* the first of the image: slice by slice */
    int32_t feature[DSD_PAIR_UNITS]; /* the first of each unit; -1: none */
} dsd_pair_share;

/* Where a piece comes from. */
typedef struct dsd_pair_piece {
    uint32_t source; /* element / 8 of its corner */
    int32_t valid;   /* of the depth: the rest is beyond the matrix */
} dsd_pair_piece;

typedef struct dsd_pair_arg {
    const char *image;
    const uint32_t *slices;
    const dsd_pair_tile *tiles;
    const int32_t *tile_start;    /* by cluster, and the end */
    const dsd_pair_share *shares; /* group by group */
    /* for sums over gaps that are not finite */
    const uint16_t *b;
    int64_t b_k, b_n, depth;
    int32_t gaps; /* a pair has slices with one piece */
    dsd_epilogue epilogue;
} dsd_pair_arg;

typedef struct dsd_pair_pack_arg {
    const uint16_t *source;
    char *image;
    const dsd_pair_piece *pieces;
    int64_t row_stride, depth_stride; /* of an element within a block of op(S) */
} dsd_pair_pack_arg;

#endif
