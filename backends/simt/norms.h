/* Kernels of the normalisations. The host's side (norms.c) includes this file without SIMT_T for
 * the structs of scalars. */
#ifndef BSKI_SIMT_NORMS_H
#define BSKI_SIMT_NORMS_H

/* Layer norm of [rows, segments, count] elements: rows are what N counts, each segment of `count`
 * features has statistics of its own. `lanes` (1 << lanes_log) take a row's segment (lanes are along
 * the features), or as many runs of rows next to each other (the _cols kernels, where lanes are
 * along N). vector: gain and bias. */
typedef struct layer_norm_arg {
    i64 rows, segments, count;
    i64 x_row, x_col, y_row, y_col;
    i64 eps, inverse; /* NUM; inverse: 1 / count */
    i32 rms, relu, lanes, lanes_log, x_type, y_type, x_vector, y_vector, vector, pad;
} layer_norm_arg;

typedef struct layer_norm_grad_arg {
    i64 rows, segments, count;
    i64 dy_row, dy_col, x_row, x_col, dx_row, dx_col;
    i64 share;                      /* rows of a group, in the packed form */
    i64 inverse, dx_alpha, dx_beta; /* NUM; the packed form takes 1 and 0 alone */
    i32 rms, relu, lanes, dy_type, x_type, dx_type, dy_vector, x_vector, dx_vector, vector;
} layer_norm_grad_arg;

/* Sums over the outer * inner positions of each feature, for vectors by feature. */
enum {
    SUM_PLAIN,   /* of x */
    SUM_SQUARES, /* of (x - mean)^2 */
    SUM_BATCH,   /* of dy * h and of dy, with h = (x - mean) / sqrt(var + eps) by feature */
    SUM_LAYER    /* of g * h and of g; mean and rstd by segment and position */
};

/* A share is a piece of the positions (norm_sums_cols) or of the runs of positions (_rows). Sums go
 * to partial[2][shares][features]. */
typedef struct norm_sums_arg {
    i64 features, outer, inner, segment;
    i64 dy_feature, dy_outer, dy_inner, x_feature, x_outer, x_inner;
    i64 share;
    i64 eps; /* NUM */
    i32 what, relu, lanes, dy_type, x_type, dy_vector, x_vector, pad;
} norm_sums_arg;

typedef struct norm_finish_arg {
    i64 features, shares;
    i64 alpha, beta; /* NUM */
} norm_finish_arg;

/* Batch norm element by element: rows [outer, middle] of `cols` elements; channels are the columns
 * or the middle dimension. */
typedef struct batch_norm_arg {
    i64 outer, middle, cols;
    i64 x_outer, x_middle, x_col, dy_outer, dy_middle, dy_col, y_outer, y_middle, y_col;
    i64 eps, inverse;      /* NUM; inverse: 1 / elements of a channel */
    i64 dx_alpha, dx_beta; /* NUM; the gradient's */
    i32 by_col, x_type, dy_type, y_type, x_vector, dy_vector, y_vector, pad;
} batch_norm_arg;

#endif

#ifdef SIMT_T
#include "lanes.h"

#include "rows.h"

#include "norms_layer.h"

#include "norms_batch.h"

#endif
