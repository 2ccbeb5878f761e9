/* Normalisation of activations. Part of bsk; include <bsk/bsk.h>.
 * The rules at the top of matmul.h hold here too. */
#ifndef BSK_NORMS_H
#define BSK_NORMS_H

#include <bsk/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- layer_norm: y = act((x - mean) * rstd * gain + bias), row by row ------------------------
 * mean and rstd = 1 / sqrt(variance + eps), with the variance of the population, are those of the
 * F / segments features of one segment of one n: with segments = 4 the four gates of an LSTM are
 * normalised apart. act is relu or nothing. With rms = 1 the mean counts as 0: rms_norm.
 * Shapes    x, y [N, F] (NC) or [F, N] (CN); gain, bias [F]; mean, rstd [segments, N]: what the
 *           gradient needs. segments divides F.
 * Dtypes    x and y any floats; the rest f32 (f64 where x is f64).
 * Strides   the feature or the N axis of x and y contiguous.
 *           The rest contiguous.
 * In place  y = x when types and strides agree.
 * Numerics  the mean is subtracted before squares are summed.
 * Source    openai/blocksparse layer_norm (segments on the NC axis only there). */
typedef struct bsk_layer_norm_params {
    size_t struct_size;
    bsk_axis axis;
    int64_t segments; /* 0 means 1 */
    int32_t relu;
    int32_t rms;
    double eps; /* 0 means 1e-6 */
    bsk_tensor x, y;
    bsk_tensor gain, bias, mean, rstd; /* optional */
} bsk_layer_norm_params;

typedef struct bsk_layer_norm_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, y;
    bsk_mem gain, bias, mean, rstd;
} bsk_layer_norm_args;

BSK_API bsk_status bsk_layer_norm_plan(const bsk_device *device,
                                       const bsk_layer_norm_params *params,
                                       const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_layer_norm_run(const bsk_plan *plan, bsk_queue *queue,
                                      const bsk_layer_norm_args *args);

/* layer_norm_grad: with h = (x - mean) * rstd, g = dy * act'(h * gain + bias) and t = g * gain:
 * dx = rstd * (t - (sum of t + h * sum of t * h) / features of the segment), without the sum of t
 * where rms = 1; dgain = alpha * (sum over N of g * h) + beta * dgain; dbias = alpha * (sum over N
 * of g) + beta * dbias. With dx_blend = 1 dx = dx_alpha * (what it is above) + dx_beta * dx.
 * Shapes    as layer_norm. mean is needed unless rms = 1, bias (where the forward had one) with
 *           relu; dx, dgain and dbias each optional, one at least.
 * Dtypes    dy, x, dx any floats; the rest f32 (f64 where dy is f64).
 * Strides   the feature or the N axis of dy, x and dx contiguous.
 *           The rest contiguous.
 * In place  dx = dy when types and strides agree. */
typedef struct bsk_layer_norm_grad_params {
    size_t struct_size;
    bsk_axis axis;
    int64_t segments; /* 0 means 1 */
    int32_t relu;
    int32_t rms;
    int32_t dx_blend;
    bsk_tensor dy, x, rstd;
    bsk_tensor mean, gain, bias, dx, dgain, dbias; /* optional */
} bsk_layer_norm_grad_params;

typedef struct bsk_layer_norm_grad_args {
    size_t struct_size;
    double alpha, beta;
    double dx_alpha, dx_beta; /* read with dx_blend alone */
    bsk_mem workspace;
    bsk_mem dy, x, rstd;
    bsk_mem mean, gain, bias, dx, dgain, dbias;
} bsk_layer_norm_grad_args;

BSK_API bsk_status bsk_layer_norm_grad_plan(const bsk_device *device,
                                            const bsk_layer_norm_grad_params *params,
                                            const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_layer_norm_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                           const bsk_layer_norm_grad_args *args);

/* --- rms_norm: y = act(x * rstd * gain + bias) with rstd = 1 / sqrt(mean of x^2 + eps) -------
 * layer_norm and its gradient with rms = 1, whatever params.rms says; mean must be absent. */
BSK_API bsk_status bsk_rms_norm_plan(const bsk_device *device, const bsk_layer_norm_params *params,
                                     const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_rms_norm_run(const bsk_plan *plan, bsk_queue *queue,
                                    const bsk_layer_norm_args *args);
BSK_API bsk_status bsk_rms_norm_grad_plan(const bsk_device *device,
                                          const bsk_layer_norm_grad_params *params,
                                          const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_rms_norm_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                         const bsk_layer_norm_grad_args *args);

/* --- batch_norm: y = (x - mean) / sqrt(var + eps) * gain + bias, by channel ------------------
 * mean and var, the variance of the population, are those of the channel's N * S elements, and are
 * written; averages over time are ema's matter. A channel without elements has mean 0 and var 0.
 * Shapes    x, y [N, C, S]; with S = 1 this is NC, with N = 1 CN. The rest [C].
 * Dtypes    x and y any floats; the rest f32 (f64 where x is f64).
 * In place  y = x when types and strides agree.
 * Source    openai/blocksparse batch_norm. */
typedef struct bsk_batch_norm_params {
    size_t struct_size;
    double eps; /* 0 means 1e-6 */
    bsk_tensor x, y, mean, var;
    bsk_tensor gain, bias; /* optional */
} bsk_batch_norm_params;

typedef struct bsk_batch_norm_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, y, mean, var;
    bsk_mem gain, bias;
} bsk_batch_norm_args;

BSK_API bsk_status bsk_batch_norm_plan(const bsk_device *device,
                                       const bsk_batch_norm_params *params,
                                       const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_batch_norm_run(const bsk_plan *plan, bsk_queue *queue,
                                      const bsk_batch_norm_args *args);

/* batch_norm_infer: the same with a given mean and var. */
typedef struct bsk_batch_norm_infer_params {
    size_t struct_size;
    double eps; /* 0 means 1e-6 */
    bsk_tensor x, y, mean, var;
    bsk_tensor gain, bias; /* optional */
} bsk_batch_norm_infer_params;

typedef struct bsk_batch_norm_infer_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, y, mean, var;
    bsk_mem gain, bias;
} bsk_batch_norm_infer_args;

BSK_API bsk_status bsk_batch_norm_infer_plan(const bsk_device *device,
                                             const bsk_batch_norm_infer_params *params,
                                             const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_batch_norm_infer_run(const bsk_plan *plan, bsk_queue *queue,
                                            const bsk_batch_norm_infer_args *args);

/* batch_norm_grad: with h = (x - mean) * rstd and rstd = 1 / sqrt(var + eps):
 * dx = gain * rstd * (dy - (sum of dy + h * sum of dy * h) / (N * S)), or, with infer = 1, where
 * mean and var are constants, dx = gain * rstd * dy; dgain = alpha * (sum of dy * h) + beta *
 * dgain; dbias = alpha * (sum of dy) + beta * dbias. dx_blend as in layer_norm_grad.
 * Shapes    as batch_norm. dx, dgain and dbias each optional, one at least.
 * Dtypes    dy, x, dx any floats; the rest f32 (f64 where dy is f64).
 * In place  dx = dy when types and strides agree.
 * Source    openai/blocksparse, whose gradient in inference passes dy on unchanged. */
typedef struct bsk_batch_norm_grad_params {
    size_t struct_size;
    int32_t infer;
    int32_t dx_blend;
    double eps; /* 0 means 1e-6 */
    bsk_tensor dy, x, mean, var;
    bsk_tensor gain, dx, dgain, dbias; /* optional */
} bsk_batch_norm_grad_params;

typedef struct bsk_batch_norm_grad_args {
    size_t struct_size;
    double alpha, beta;
    double dx_alpha, dx_beta; /* read with dx_blend alone */
    bsk_mem workspace;
    bsk_mem dy, x, mean, var;
    bsk_mem gain, dx, dgain, dbias;
} bsk_batch_norm_grad_args;

BSK_API bsk_status bsk_batch_norm_grad_plan(const bsk_device *device,
                                            const bsk_batch_norm_grad_params *params,
                                            const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_batch_norm_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                           const bsk_batch_norm_grad_args *args);

#ifdef __cplusplus
}
#endif
#endif
