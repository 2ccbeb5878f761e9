/* What the host hands to the kernels of sdd for sm80: one definition for both sides. Strides count
 * elements. */
#ifndef BSKI_CUDA_SM80_SDD_ARG_H
#define BSKI_CUDA_SM80_SDD_ARG_H

#include <stdint.h>

#include <backends/cuda/epilogue.h>

enum { SDD80_PAIRS = 16 };

/* A kept block in the order of the lists by block row. */
typedef struct sdd_block {
    int32_t column, slot;
} sdd_block;

/* Blocks of one block row, which one thread block computes side by side. */
typedef struct sdd_tile {
    int64_t first;
    int32_t count, row, head, pad;
} sdd_tile;

typedef struct sdd_arg {
    const void *a[SDD80_PAIRS], *b[SDD80_PAIRS];
    const float *gate, *scales[2]; /* scales: of a and b, for 8-bit types */
    const sdd_tile *tiles;
    const sdd_block *blocks;
    const int32_t *slot_row, *slot_col;
    float *parts; /* [splits][groups][nnz][block], if not direct */
    const void *w;
    float *dgate, *bsum;
    float *sums; /* of the columns of b: [sum_splits][cols] */
    int64_t a_batch, a_row, a_k;
    int64_t b_batch, b_k, b_col;
    int64_t s_group, w_group;
    int64_t rows, cols, n, nnz;
    int32_t pairs, members; /* members of the batch that add up to one block */
    int32_t heads, groups, splits;
    int32_t block_rows, block_cols;
    int32_t column_shift; /* log2 of a block's runs of 8 columns */
    int32_t gate_mode;
    int32_t a_along_k, b_along_k, a_vector, b_vector;
    int32_t direct; /* stores s, otherwise partial sums */
    int32_t type;   /* bsk_dtype of a, b and w */
    int32_t sum_splits;
    int64_t batch; /* members of b */
    float alpha, beta;
    dsd_matrix s; /* of blocks: type, address, whether runs are aligned */
} sdd_arg;

#endif
