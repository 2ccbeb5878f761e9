/* What the host hands to the kernels of dsd for sm80: one definition for both sides. Strides count
 * elements. */
#ifndef BSKI_CUDA_SM80_DSD_ARG_H
#define BSKI_CUDA_SM80_DSD_ARG_H

#include <stdint.h>

#include <backends/cuda/epilogue.h>

/* A kept block of op(S), in the order of the lists by block row. */
typedef struct dsd_block {
    int32_t column, slot;
} dsd_block;

/* A share of a block row's list: what one thread block adds up. In the table of cuts, a block row
 * whose list was cut: parts `part` .. `part` + `count` - 1. */
typedef struct dsd_segment {
    int64_t first;
    int32_t count;
    int32_t row;  /* block row */
    int32_t part; /* where the sums go in the workspace; -1: the whole list, straight to C */
    int32_t pad;
} dsd_segment;

typedef struct dsd_arg {
    const void *s, *b;
    const float *gate;
    const dsd_block *blocks;
    const dsd_segment *segments, *cuts;
    const int32_t *segment_start, *cut_start; /* [heads + 1] */
    float *parts;                             /* [members][parts][tiles][a tile's sums] */
    int64_t part_stride;                      /* elements of a member's */
    int64_t s_group;
    int64_t b_batch, b_row, b_col;
    int64_t cols, depth;            /* columns of C, depth of op(S) */
    int32_t block_rows, block_cols; /* of op(S) */
    int32_t granule_shift;          /* log2 of a block's runs of 16 bytes of the depth */
    int32_t tiles;                  /* feature tiles of a block row */
    int32_t tile_rows, tile_features;
    int32_t heads, groups;
    int32_t s_flip;    /* blocks are stored by columns of op(S) */
    int32_t b_along_k; /* b is contiguous along the depth, otherwise along its columns */
    int32_t b_vector;  /* b may be read in runs of 16 bytes */
    int32_t bare;      /* C = alpha * sum */
    dsd_epilogue end;
} dsd_arg;

#endif
