/* What the kernels of layer_norm.cu and the C code that plans them share. */
#ifndef BSKI_CUDA_LAYER_NORM_H
#define BSKI_CUDA_LAYER_NORM_H

#include <stdint.h>

/* Kernels by the warps that take a row (a segment of one), how many runs of it each lane holds, rows
 * of a warp, threads: X(name, warps, held, rows, threads, resident). Smallest rows first. */
#define LAYER_NORM_KERNELS(X)                                                                      \
    X(1024, 2, 2, 2, 256, 5)                                                                       \
    X(2048, 4, 2, 2, 256, 5)                                                                       \
    X(4096, 4, 4, 1, 256, 5)                                                                       \
    X(8192, 8, 4, 1, 256, 5)                                                                       \
    X(16384, 16, 4, 1, 512, 2)

typedef struct layer_norm_arg {
    const void *x;
    void *y;
    const float *gain, *bias;     /* each or NULL */
    float *mean, *rstd;           /* each or NULL */
    int64_t x_row, y_row;         /* strides in bytes */
    int32_t rows, segments, runs; /* runs of a segment */
    int32_t rms, relu;
    float inverse, eps; /* 1 / features of a segment */
} layer_norm_arg;

#endif
