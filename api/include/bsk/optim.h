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
 * Shapes    param, grad, m, v: one shape of any rank but 0, contiguous; norm_scale: one element.
 * Dtypes    param f32, or f64 where m is f64; m and v of one type: f32, f64, bf16, or u16, which
 *           holds the formats below; grad any float; norm_scale f32.
 * 16 bits   m and v are rounded where they are stored; p is updated with what they were before.
 *           With stochastic = 1, for bf16: the upper 16 bits of the f32 number, plus one if its
 *           lower 16 bits and a random 16-bit number add up to 2^16 or more. The random number is
 *           the upper half of word 2i (m) or 2i + 1 (v) of (seed, offset), for element i (Philox
 *           4x32-10).
 *           u16: 6 exponent bits, where e stands for 2^(e - 60); m has a sign and 9 fraction bits,
 *           v no sign and 10. The magnitude of code 0 is 0, as is what lies below 2^-60; ties are
 *           rounded away from zero; larger magnitudes and NaN are clamped.
 * norm_scale  lives on the device; if it is exactly 0 or not finite nothing is written (a skipped
 *           step). The caller then does not count the step.
 * steps     i64, one element, optional: the number of steps made before, on the device, to which
 *           step is added in the formulas. With step = 1, the steps of loss_scale, and loss_scale
 *           run after this, a skipped step is not counted and the host need not know.
 * beta1, beta2, eps  0 stands for the default; 1e-300 does what 0 would, but that eps is at least
 *           1.2e-38 where the arithmetic is f32: a gradient that was always 0 moves nothing.
 * lazy      rank 2 only: rows whose gradient is all zero are left untouched, moments included.
 * gate      f32 [dims[0]]: members of the first dimension (blocks) with gate 0 are left untouched.
 *           Two rates by block are two runs with complementary gates.
 * copy      optional: the stored p rounded to another float type, for products in 16 bits; where p
 *           is left untouched, so is the copy.
 * Source    openai/blocksparse Adam (bias correction folded into the rate), decoupled decay. */
typedef struct bsk_adam_params {
    size_t struct_size;
    double beta1, beta2, eps; /* 0 means 0.9, 0.999, 1e-8; below 1 */
    int32_t lazy;
    bsk_tensor param, grad, m, v;
    bsk_tensor norm_scale, gate, copy; /* optional */
    int32_t stochastic;                /* for m and v of bf16 */
    bsk_tensor steps;                  /* optional */
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
    uint64_t seed, offset;
    bsk_mem steps;
} bsk_adam_args;

BSK_API bsk_status bsk_adam_plan(const bsk_device *device, const bsk_adam_params *params,
                                 const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_adam_run(const bsk_plan *plan, bsk_queue *queue, const bsk_adam_args *args);

/* --- adam_n, in place: adam for a list of tensors of one description -------------------------
 * For many small tensors, such as the biases of all layers, of which a launch takes several.
 * Tensors of several shapes are several calls.
 * Shapes    pairs tensors of one description in each of the lists param, grad, m, v and, optional,
 *           copy. norm_scale and steps are shared by all.
 * 16 bits   as in adam; tensor p of the list draws its random numbers from (seed, offset + p).
 * Memory    args.param, grad, m, v and copy point to arrays of `pairs` views, read during the call
 *           only. All else as in adam, without lazy and gate. */
typedef struct bsk_adam_n_params {
    size_t struct_size;
    double beta1, beta2, eps; /* 0 means 0.9, 0.999, 1e-8; below 1 */
    int32_t pairs;            /* tensors in a list, at most 65536; 0 means 1 */
    int32_t stochastic;       /* for m and v of bf16 */
    bsk_tensor param, grad, m, v;
    bsk_tensor copy, norm_scale, steps; /* optional */
} bsk_adam_n_params;

typedef struct bsk_adam_n_args {
    size_t struct_size;
    double lr;           /* >= 0 */
    double grad_scale;   /* 0 means 1 */
    double weight_decay; /* >= 0 */
    double clip_sigma;   /* >= 0; 0: no clipping */
    int64_t step;        /* from 1 */
    bsk_mem workspace;
    const bsk_mem *param, *grad, *m, *v;
    const bsk_mem *copy;
    bsk_mem norm_scale, steps;
    uint64_t seed, offset;
} bsk_adam_n_args;

BSK_API bsk_status bsk_adam_n_plan(const bsk_device *device, const bsk_adam_n_params *params,
                                   const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_adam_n_run(const bsk_plan *plan, bsk_queue *queue,
                                  const bsk_adam_n_args *args);

#ifdef __cplusplus
}
#endif
#endif
