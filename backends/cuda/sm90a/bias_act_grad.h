/* What the kernels of bias_act_grad.cu and the C code that plans them share. */
#ifndef BSKI_CUDA_BIAS_ACT_GRAD_H
#define BSKI_CUDA_BIAS_ACT_GRAD_H

#include <stdint.h>

enum {
    SLOPE_THREADS = 256,
    SLOPE_LANES = 32,   /* at most, next to each other */
    SLOPE_ROWS = 4,     /* that a thread has under way */
    SLOPE_RESIDENT = 3, /* thread blocks of a multiprocessor */
};

/* A thread block takes `lanes` runs next to each other of `share` rows, SLOPE_THREADS / lanes *
 * SLOPE_ROWS at a time. */
typedef struct bias_act_grad_arg {
    const void *dy, *x;
    const float *bias; /* or NULL */
    void *dx;          /* or NULL */
    float *partial;    /* [gridDim.y][runs * 8] */
    int64_t rows, share;
    int64_t dy_row, x_row, dx_row; /* bytes */
    int32_t runs, lanes;
} bias_act_grad_arg;

#endif
