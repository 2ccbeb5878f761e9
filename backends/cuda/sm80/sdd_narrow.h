/* What the host hands to the kernels of sdd for a small minibatch: one definition for both sides. */
#ifndef BSKI_CUDA_SM80_SDD_NARROW_H
#define BSKI_CUDA_SM80_SDD_NARROW_H

#include <stdint.h>

enum { SDD_NARROW_PAIRS = 16, SDD_NARROW_SAMPLES = 64 };
/* Warps of a thread block; elements of s that a cell's place counts. */
enum { SDD_NARROW_TEAM = 4, SDD_NARROW_UNIT = 16 };
/* Bytes of a pitch, so that those of a cell have 32 bits. */
enum { SDD_NARROW_PITCH = INT32_MAX / 64 };

/* X(rows, samples, ...): a warp multiplies a cell of so many rows at a time. */
#define SDD_NARROW_SHAPES(X, ...)                                                                  \
    X(8, 32, __VA_ARGS__)                                                                          \
    X(8, 64, __VA_ARGS__)                                                                          \
    X(16, 32, __VA_ARGS__)                                                                         \
    X(16, 64, __VA_ARGS__)                                                                         \
    X(32, 32, __VA_ARGS__)                                                                         \
    X(32, 64, __VA_ARGS__)
/* A cell's columns: no more than a warp has registers to load ahead. */
#define SDD_NARROW_COLS(rows, samples) ((rows) == 32 && (samples) == 64 ? 16 : (rows))
/* Cells that a warp takes at a time: two of 8 are the 16 rows of a product. */
#define SDD_NARROW_CELLS(rows) ((rows) == 8 ? 2 : 1)
/* Warps of a compute unit: as many as registers allow. */
#define SDD_NARROW_WARPS(rows, samples)                                                            \
    ((rows) == 32 ? 16 : (samples) == 32 ? 32 : (rows) == 16 ? 20 : 24)

/* A cell of a kept block: its place among the cells of the matrix, and that of its first element in
 * s. Cells that a warp takes at a time are of one row. */
typedef struct sdd_narrow_cell {
    int32_t row, column;
    int32_t place; /* in SDD_NARROW_UNIT; < 0: none, to fill up */
    int32_t pad;
} sdd_narrow_cell;

typedef struct sdd_narrow_arg {
    const char *a[SDD_NARROW_PAIRS], *b[SDD_NARROW_PAIRS];
    void *s;
    const sdd_narrow_cell *cells;
    int32_t a_pitch, b_pitch; /* bytes from a feature to the next, or from a sample */
    int32_t turns, warps;     /* turns: of all warps, each of SDD_NARROW_CELLS cells */
    int32_t n, pairs;
    int32_t s_pitch, s_f32; /* elements from a block's row to the next; whether its type is f32 */
    float alpha, beta;
} sdd_narrow_arg;

#endif
