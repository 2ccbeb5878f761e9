/* The last step of sums by feature: what thread blocks left of their rows is added up. */
#ifndef BSKI_CUDA_COLUMN_SUMS_H
#define BSKI_CUDA_COLUMN_SUMS_H

#include <stdint.h>

/* A thread block sums COLUMN_WIDE features, COLUMN_PARTS threads each. */
enum { COLUMN_WIDE = 32, COLUMN_PARTS = 16, COLUMN_OUTS = 2 };

/* out[i] = alpha * sum over shares of partial[i][shares][features] + beta * out[i] */
typedef struct column_sums_arg {
    const float *partial;
    float *out[COLUMN_OUTS]; /* each or NULL */
    int32_t shares, features;
    float alpha, beta;
} column_sums_arg;

#endif
