/* What the kernels of layer_norm_grad.cu and the C code that plans them share. */
#ifndef BSKI_CUDA_LAYER_NORM_GRAD_H
#define BSKI_CUDA_LAYER_NORM_GRAD_H

#include <stdint.h>

enum {
    NORM_ROWS = 4,    /* rows of a step */
    NORM_HEAD = 2048, /* bytes for barriers, sums and statistics */
};

/* Kernels by their threads, each of which has eight features: X(threads, resident). Smallest first.
 */
#define LAYER_NORM_GRAD_KERNELS(X)                                                                 \
    X(128, 4)                                                                                      \
    X(256, 2)                                                                                      \
    X(512, 1)

/* Of dy and of x. */
#define NORM_GRAD_SHARED(threads) (NORM_HEAD + NORM_ROWS * 2 * (threads)*16)

typedef struct layer_norm_grad_arg {
    const void *dy, *x;
    void *dx;
    const float *mean, *rstd;            /* mean: or NULL, 0 */
    const float *gain;                   /* or NULL */
    float *partial;                      /* [2][gridDim.x][features], or NULL */
    int64_t rows, dy_row, x_row, dx_row; /* strides in bytes */
    int32_t runs;                        /* of a segment; segments are gridDim.y */
    int32_t rms;
    float inverse; /* 1 / features of a segment */
} layer_norm_grad_arg;

#endif
