/* What both sides of attention for sm100a know. Kernels take tensor maps of Q, K and V (axes:
 * feature, time, 1, head, member) and the argument of those for sm80. */
#ifndef BSKI_CUDA_SM100A_ATTENTION_ARG_H
#define BSKI_CUDA_SM100A_ATTENTION_ARG_H

/* Keys of a step; those that a copy brings, which are all of one block. */
enum { STEP_KEYS = 128, PIECE = 64 };

/* Warps: four have a row of the tile in each thread, one issues copies, one products. */
enum { ROW_WARPS = 4, ATTENTION_WARPS = ROW_WARPS + 2 };

/* Rows of a tile, which are a block row's; features of a head; buffers for keys and as many for
 * values. Two thread blocks run on a multiprocessor. */
#define ATTENTION100_KERNELS(X)                                                                    \
    X(f16, 64, 64, 2)                                                                              \
    X(f16, 64, 128, 1)                                                                             \
    X(f16, 128, 64, 2)                                                                             \
    X(f16, 128, 128, 1)                                                                            \
    X(bf16, 64, 64, 2) X(bf16, 64, 128, 1) X(bf16, 128, 64, 2) X(bf16, 128, 128, 1)

/* Of dynamic shared memory: the queries and the buffers. */
#define ATTENTION100_BYTES(rows, d, buffers) (((rows) + 2 * (buffers)*STEP_KEYS) * (d)*2)

#endif
