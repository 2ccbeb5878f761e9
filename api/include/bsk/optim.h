/* Optimizers. Part of bsk; include <bsk/bsk.h>. The rules at the top of matmul.h hold here too. */
#ifndef BSK_OPTIM_H
#define BSK_OPTIM_H

#include <bsk/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- adam, in place ---------------------------------------------------------------------------
 * g = grad * grad_scale * (norm_scale where given)
 * v = beta2 v + (1 - beta2) g^2;  s = sqrt(v)
 * g = clamp(g, -clip_sigma s, clip_sigma s) where clip_sigma > 0
 * m = beta1 m + (1 - beta1) g
 * p -= lr * (m sqrt(1 - beta2^step) / (1 - beta1^step) / (s + eps) + weight_decay p)
 *
 * Shapes    param, grad, m, v: one shape of any rank, contiguous; norm_scale: one element.
 * Dtypes    param, m, v: f32 (or all f64); grad any float; norm_scale f32.
 * norm_scale  lives on the device; if it is exactly 0 or not finite nothing is written (a skipped
 *           step). The caller then does not count the step.
 * lazy      rank 2 only: rows whose gradient is all zero are left untouched, moments included.
 * gate      f32 [dims[0]]: members of the first dimension (blocks) with gate 0 are left untouched.
 * copy      optional: the stored p rounded to another float type, for products in 16 bits; where p
 *           is left untouched, so is the copy.
 * Source    openai/blocksparse Adam (bias correction folded into the rate), decoupled decay. */
typedef struct bsk_adam_params {
    size_t struct_size;
    double beta1, beta2, eps; /* 0 means 0.9, 0.999, 1e-8; below 1 */
    int32_t lazy;
    bsk_tensor param, grad, m, v;
    bsk_tensor norm_scale, gate, copy; /* optional */
} bsk_adam_params;

typedef struct bsk_adam_args {
    size_t struct_size;
    double lr;           /* >= 0 */
    double grad_scale;   /* 0 means 1 */
    double weight_decay; /* >= 0 */
    double clip_sigma;   /* >= 0; 0: no clipping */
    int64_t step;        /* from 1 */
    bsk_mem workspace;
    bsk_mem param, grad, m, v;
    bsk_mem norm_scale, gate, copy;
} bsk_adam_args;

BSK_API bsk_status bsk_adam_plan(const bsk_device *device, const bsk_adam_params *params,
                                 const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_adam_run(const bsk_plan *plan, bsk_queue *queue, const bsk_adam_args *args);

#ifdef __cplusplus
}
#endif
#endif
