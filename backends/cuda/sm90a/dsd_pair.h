/* What the host plans and the kernels of dsd_pair.cu follow. */
#ifndef BSKI_CUDA_DSD_PAIR_H
#define BSKI_CUDA_DSD_PAIR_H

#include <backends/cuda/epilogue.h>

/* op(S) is cut into *units* of 32 features, which are the rows of products, and along the inner
 * dimension into *slices* of 32: pieces of 32 x 32, kept or not. Two units, any two, are a *pair*:
 * the 64 rows of a product. A *group* is the pairs of a tile: up to two for each warpgroup. */
enum {
    DSD_PAIR_UNIT = 32, /* features, and depth of a slice */
    DSD_PAIR_SAMPLES = 128,
    DSD_PAIR_OWNERS = 3, /* warpgroups that multiply */
    DSD_PAIR_OWNED = 2,  /* pairs of a warpgroup */
    DSD_PAIR_PAIRS = DSD_PAIR_OWNERS * DSD_PAIR_OWNED,
    DSD_PAIR_BITS = 2 * DSD_PAIR_PAIRS,
    DSD_PAIR_UNITS = (1 << DSD_PAIR_BITS) - 1, /* all of a group */
    DSD_PAIR_THREADS = (DSD_PAIR_OWNERS + 1) * 128,
    DSD_PAIR_SLICE_BYTES = DSD_PAIR_SAMPLES * DSD_PAIR_UNIT * 2,
    DSD_PAIR_PIECE_BYTES = DSD_PAIR_UNIT * DSD_PAIR_UNIT * 2,
    DSD_PAIR_MAX_SLOTS = 16, /* of the ring */
    DSD_PAIR_PRODUCERS = 4,  /* warps that fetch slices, in turn */
    DSD_PAIR_SCRATCH = 1024, /* bytes of a warp, of the epilogue */
    /* In even and in odd rounds a slot has another barrier that says that it has come. */
    DSD_PAIR_BARRIERS = 3 * DSD_PAIR_MAX_SLOTS * 8,
    /* Shared memory without the ring: zeros before and after it, scratch, barriers. */
    DSD_PAIR_FIXED =
        2 * DSD_PAIR_PIECE_BYTES + DSD_PAIR_OWNERS * 4 * DSD_PAIR_SCRATCH + DSD_PAIR_BARRIERS,
    DSD_PAIR_PACK_THREADS = 128 /* 16 bytes of a piece each */
};

/* A tile of a thread block's list. */
typedef struct dsd_pair_tile {
    int32_t first, slices;
    int32_t group;
    int32_t sample; /* the first */
} dsd_pair_tile;

/* A slice that a group needs, with as many pieces as a slot of the ring holds: one that has more is
 * several. */
typedef struct dsd_pair_slice {
    uint32_t number;
    uint32_t piece;  /* the first, of the image */
    uint32_t bits;   /* which units have a piece, pair by pair; above, warpgroups without a step */
    uint32_t unused; /* so that a lane reads 16 bytes */
} dsd_pair_slice;

/* A step of a warpgroup, of slices that it needs, or must not pass without waiting for them: which
 * of its units have a piece, above it how many pieces of the slot come before them, and how many
 * slots after the last step it is. */
typedef uint16_t dsd_pair_step;
enum { DSD_PAIR_BEFORE_AT = 4, DSD_PAIR_FURTHER_AT = 8, DSD_PAIR_FIELD = 15 };

typedef struct dsd_pair_group {
    int32_t feature[DSD_PAIR_BITS]; /* the first of each unit; -1: none */
    int32_t step[DSD_PAIR_OWNERS];  /* the first of each warpgroup */
    int32_t steps[DSD_PAIR_OWNERS];
} dsd_pair_group;

/* Where a piece comes from. */
typedef struct dsd_pair_piece {
    uint32_t source; /* element / 8 of its corner */
    int32_t valid;   /* of the depth: the rest is beyond the matrix */
} dsd_pair_piece;

typedef struct dsd_pair_arg {
    const char *image;
    const dsd_pair_slice *slices; /* group by group */
    const dsd_pair_step *steps;   /* group by group, in it by warpgroup */
    const dsd_pair_tile *tiles;
    const int32_t *tile_start; /* by thread block, and the end */
    const dsd_pair_group *groups;
    int32_t slots, slot_bytes; /* of the ring */
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
