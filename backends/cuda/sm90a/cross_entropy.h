/* What the kernels of cross_entropy.cu and the C code that plans them share. */
#ifndef BSKI_CUDA_CROSS_ENTROPY_H
#define BSKI_CUDA_CROSS_ENTROPY_H

#include <stdint.h>

enum {
    CROSS_WARPS = 24, /* that compute; one more copies */
    CROSS_THREADS = CROSS_WARPS * 32,
    CROSS_PIECE = CROSS_THREADS * 16, /* bytes of a row that are copied at once */
    CROSS_SLOTS = 18,
    CROSS_HEAD = 1024, /* bytes for barriers and sums */
    CROSS_SHARED = CROSS_HEAD + CROSS_SLOTS * CROSS_PIECE
};

typedef struct cross_entropy_arg {
    const void *logits, *labels;
    void *dlogits;
    float *loss;                           /* or NULL */
    const float *dloss;                    /* or NULL */
    int64_t rows, logits_row, dlogits_row; /* strides in bytes */
    int64_t ignore_index;
    int32_t classes, use_ignore_index;
    int32_t label_bytes; /* of 4 and 8: signed */
    float alpha, beta, smoothing;
} cross_entropy_arg;

#endif
