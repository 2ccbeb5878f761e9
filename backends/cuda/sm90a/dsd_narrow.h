/* What the kernels of dsd_narrow.cu, dsd_stream.cu and dsd_stream_mma.cu and the C code that plans them
 * share. */
#ifndef BSKI_CUDA_DSD_NARROW_H
#define BSKI_CUDA_DSD_NARROW_H

#include <backends/cuda/sm90a/dsd_few.h>

enum {
    DSD_NARROW_WARPS = 4,
    DSD_NARROW_THREADS = DSD_NARROW_WARPS * 32,
    DSD_NARROW_CLUSTER = 8, /* thread blocks that share a long list, at most */
    /* Of the latter two: loads that a lane has under way, for more of which there are no registers, and
     * what each brings to a warp. */
    DSD_STREAM_SLOTS = 4,
    DSD_STREAM_SLOT_BYTES = 512
};

/* Elements of shared memory for a warp's sums. */
#define DSD_NARROW_SCRATCH(features, samples) (((features) + 1) * (samples) + 8)

/* How a piece of 16 bytes lies in a block, and so which of them neighbouring lanes of dsd_stream.cu
 * have. */
typedef enum dsd_piece_order {
    DSD_COLS, /* across the depth: of one k, then of the next */
    DSD_ROWS, /* along it: the same run of one feature, then of the next */
    DSD_RUNS  /* along it: four runs of one feature, then of the next */
} dsd_piece_order;

/* A thread block's share of the list of a tile: part number `part` of `parts`, which are
 * neighbours in one cluster. row -1: none. */
typedef struct dsd_narrow_piece {
    int32_t first, steps; /* step number `first` of the table and those that follow */
    int32_t row;          /* tile */
    int16_t part, parts;
} dsd_narrow_piece;

typedef struct dsd_narrow_arg {
    dsd_few_operands operands;
    const dsd_few_run *runs;
    const dsd_narrow_piece *pieces;
    int32_t cluster; /* thread blocks of a cluster */
    /* Of dsd_stream.cu: from a k of b, and from a sample, to the next, bytes; types of f8. */
    int32_t k_pitch, n_pitch;
    int32_t s_e5m2, b_e5m2;
} dsd_narrow_arg;

/* The kernels of dsd_stream_mma.cu: X(type, T, whether values lie across the depth, name of that,
 * samples of a tile, thread blocks of a multiprocessor). */
#define DSD_STREAM_HALVES(X, type, T)                                                              \
    X(type, T, false, rows, 8, 8)                                                                  \
    X(type, T, false, rows, 16, 8)                                                                 \
    X(type, T, true, cols, 8, 8)                                                                   \
    X(type, T, true, cols, 16, 8)

/* Those of dsd_stream.cu: X(type, T, order of the pieces, name of the order, features and samples of a
 * tile, thread blocks of a multiprocessor). */
#define DSD_STREAM_F32(X, type, T)                                                                 \
    X(type, T, DSD_RUNS, runs, 8, 1, 8)                                                            \
    X(type, T, DSD_COLS, cols, 8, 1, 8)                                                            \
    X(type, T, DSD_COLS, cols, 16, 1, 8)                                                           \
    X(type, T, DSD_COLS, cols, 32, 1, 8)
#define DSD_STREAM_F8(X, type, T)                                                                  \
    X(type, T, DSD_ROWS, rows, 8, 1, 8)                                                            \
    X(type, T, DSD_ROWS, rows, 8, 4, 6)                                                            \
    X(type, T, DSD_RUNS, runs, 8, 1, 8)                                                            \
    X(type, T, DSD_RUNS, runs, 8, 4, 6)                                                            \
    X(type, T, DSD_COLS, cols, 16, 1, 8)                                                           \
    X(type, T, DSD_COLS, cols, 16, 4, 4)                                                           \
    X(type, T, DSD_COLS, cols, 32, 1, 8)                                                           \
    X(type, T, DSD_COLS, cols, 32, 4, 4)

#endif
