/* Adafactor, averages, clipping, loss scale. Part of bsk; include <bsk/bsk.h>.
 * The rules at the top of matmul.h hold here too. */
#ifndef BSK_TRAINING_H
#define BSK_TRAINING_H

#include <bsk/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- adafactor, in place: Adam without a first moment, the second one factored ---------------
 * g = grad * grad_scale * (norm_scale where given)
 * d = beta2 (1 - beta2^step) / (1 - beta2^(step + 1))
 * Matrices: col = d col + (1 - d) mean over rows of (g^2 + eps); row the same over columns;
 *           x = g / sqrt(row / mean of row) / sqrt(col)
 * Vectors:  col = d col + (1 - d) (g^2 + eps); x = g / sqrt(col)
 * p -= lr * x / max(1, root mean square of x / clip)
 * Shapes    param, grad [R, C] or [C], contiguous; col [C]; row [R] for matrices only; norm_scale
 *           and steps one element.
 * Dtypes    param, col, row f32 (or all f64); grad any float; norm_scale f32; steps i64.
 * norm_scale  lives on the device; if it is 0 or not finite nothing is written (a skipped step). The
 *           caller then does not count the step.
 * steps     optional: the number of steps made before, on the device, to which step is added in the
 *           formulas, as in adam (optim.h).
 * Source    openai/blocksparse Adafactor. */
typedef struct bsk_adafactor_params {
    size_t struct_size;
    double beta2; /* 0 means 0.999 */
    double eps;   /* 0 means 1e-30 */
    double clip;  /* 0 means 1 */
    bsk_tensor param, grad, col;
    bsk_tensor row, norm_scale; /* optional */
    bsk_tensor steps;           /* optional */
} bsk_adafactor_params;

typedef struct bsk_adafactor_args {
    size_t struct_size;
    double lr;         /* >= 0 */
    double grad_scale; /* 0 means 1 */
    int64_t step;      /* from 1 */
    bsk_mem workspace;
    bsk_mem param, grad, col;
    bsk_mem row, norm_scale;
    bsk_mem steps;
} bsk_adafactor_args;

BSK_API bsk_status bsk_adafactor_plan(const bsk_device *device, const bsk_adafactor_params *params,
                                      const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_adafactor_run(const bsk_plan *plan, bsk_queue *queue,
                                     const bsk_adafactor_args *args);

/* --- ema, in place: average -= (1 - decay) * (average - param) -------------------------------
 * Shapes    average, param: one shape of any rank but 0, contiguous; gate, optional, [dims[0]]:
 *           members of the first dimension (blocks) with gate 0 are left untouched.
 * Dtypes    average and param any floats; gate f32.
 * Source    openai/blocksparse Ema. */
typedef struct bsk_ema_params {
    size_t struct_size;
    bsk_tensor average, param;
    bsk_tensor gate; /* optional */
} bsk_ema_params;

typedef struct bsk_ema_args {
    size_t struct_size;
    double decay;
    bsk_mem workspace;
    bsk_mem average, param;
    bsk_mem gate;
} bsk_ema_args;

BSK_API bsk_status bsk_ema_plan(const bsk_device *device, const bsk_ema_params *params,
                                const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_ema_run(const bsk_plan *plan, bsk_queue *queue, const bsk_ema_args *args);

/* --- global_norm: the 2-norm of gradients, and the factor that clips it ----------------------
 * sum = sum over all x_p of (grad_scale * x)^2 + beta * sum; norm = sqrt(sum); norm_scale = clip /
 * max(norm, clip), or 1 without clip, and 0 where norm is 0 or not finite, which makes the optimizers
 * skip the step. Tensors of several shapes are several calls: the first with beta = 0, the others
 * with beta = 1, the last with norm and norm_scale. norm is the root of sum as it is stored: a sum in
 * f32 is infinite, and the step skipped, from a norm of 1.8e19 on; grad_scale may keep it below.
 * Shapes    pairs tensors x of one description, contiguous, of any rank; sum, norm, norm_scale one
 *           element.
 * Dtypes    x any float; sum and norm f32 (f64 where x is f64); norm_scale f32.
 * Memory    args.x points to an array of `pairs` views, read during the call only.
 * Source    openai/blocksparse ClipGlobalNorm (with atomics there). */
typedef struct bsk_global_norm_params {
    size_t struct_size;
    int32_t pairs; /* tensors in the list, at most 65536; 0 means 1 */
    bsk_tensor x, sum;
    bsk_tensor norm, norm_scale; /* optional */
} bsk_global_norm_params;

typedef struct bsk_global_norm_args {
    size_t struct_size;
    double beta;
    double grad_scale; /* 0 means 1 */
    double clip;       /* 0: none */
    bsk_mem workspace;
    const bsk_mem *x;
    bsk_mem sum;
    bsk_mem norm, norm_scale;
} bsk_global_norm_args;

BSK_API bsk_status bsk_global_norm_plan(const bsk_device *device,
                                        const bsk_global_norm_params *params,
                                        const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_global_norm_run(const bsk_plan *plan, bsk_queue *queue,
                                       const bsk_global_norm_args *args);

/* --- loss_scale, in place: the scale of the loss in mixed precision --------------------------
 * norm_scale is that of global_norm. If it is 0 or not finite, the step was skipped: scale =
 * max(scale * backoff, low), good = 0. Else good and steps rise by 1; when good reaches interval,
 * scale = min(scale * growth, high) and good = 0. steps thus counts the steps that were made, on
 * the device. Where norm, also that of global_norm, is given and 0, the step was skipped for want of a
 * gradient, not for its size: nothing is written.
 * Shapes    one element each; steps and norm are optional.
 * Dtypes    scale, norm_scale and norm f32, good i32, steps i64. */
typedef struct bsk_loss_scale_params {
    size_t struct_size;
    double growth;    /* 0 means 2 */
    double backoff;   /* 0 means 0.5 */
    double low;       /* 0 means 1 */
    double high;      /* 0 means 2^24 */
    int32_t interval; /* 0 means 2000 */
    bsk_tensor scale, norm_scale, good;
    bsk_tensor steps, norm; /* optional */
} bsk_loss_scale_params;

typedef struct bsk_loss_scale_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem scale, norm_scale, good;
    bsk_mem steps, norm;
} bsk_loss_scale_args;

BSK_API bsk_status bsk_loss_scale_plan(const bsk_device *device,
                                       const bsk_loss_scale_params *params,
                                       const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_loss_scale_run(const bsk_plan *plan, bsk_queue *queue,
                                      const bsk_loss_scale_args *args);

#ifdef __cplusplus
}
#endif
#endif
