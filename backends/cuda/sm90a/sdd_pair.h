/* What the host and the kernels of sdd by wgmma on pairs share: blocks whose sides are multiples of
 * 32.
 *
 * The matrix is cut into *cells* of 32 x 32. A unit is a tile of it with a corner; its kept cells
 * are covered by *products* of 64 x 64, of which each has any two rows of cells and any two columns
 * of the tile: up to four kept cells, and any two cells whatsoever. Products are dealt to the
 * warpgroups, up to SLOTS for each. Two units with the same rows run on the two thread blocks of a
 * cluster. */
#ifndef BSKI_CUDA_SM90A_SDD_PAIR_H
#define BSKI_CUDA_SM90A_SDD_PAIR_H

#include <backends/cuda/sm90a/sdd.h>

enum { SDD_PAIR_CELL = 32, SDD_PAIR_GROUPS = 3, SDD_PAIR_SLOTS = 4, SDD_PAIR_CLUSTER = 2 };

/* X(id, high, wide, samples, along_n): the shapes that are compiled: cells of a tile, up to 16 each
 * way and at most `wide` columns of them, samples of a slice, and whether these are contiguous
 * instead of features. */
#define SDD_PAIR_SHAPES(X)                                                                         \
    X(high, 16, 10, 32, 0)                                                                         \
    X(large, 16, 16, 16, 0)                                                                        \
    X(along_n, 16, 16, 32, 1)
/* The same of f32. */
#define SDD_PAIR_SHAPES_F32(X) X(along_n, 16, 16, 16, 1)

/* A product in 20 bits: the tile's rows of cells in bits 0-3 and 4-7, its columns in bits 8-11 and
 * 12-15, and a bit from SDD_PAIR_KEPT on for each of the four cells that belongs to it, those of
 * the first row first. The second row or column is not before the first. 0: none. */
enum { SDD_PAIR_COL = 8, SDD_PAIR_KEPT = 16 };

typedef struct sdd_pair_arg {
    CUtensorMap a[SDD_MAX_PAIRS], b[SDD_MAX_PAIRS];
    const int32_t *tiles;     /* [units][4]: the first row and column, how many columns, 0 */
    const uint32_t *products; /* [units][groups][slots] */
    int32_t stage_bytes;
    uint32_t zero; /* 0, which the compiler does not know */
    sdd_work work;
    sdd_output out;
} sdd_pair_arg;

#endif
