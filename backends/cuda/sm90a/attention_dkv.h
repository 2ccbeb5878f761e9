/* The pass of attention's gradient that makes dK and dV: its own plan and launch, for
 * attention_grad.c. */
#ifndef BSKI_CUDA_SM90A_ATTENTION_DKV_H
#define BSKI_CUDA_SM90A_ATTENTION_DKV_H

#include <backends/cuda/cuda.h>

/* problem: of attention_grad, with dk and dv given, and with options, types, head sizes and inputs
 * that its entry takes. What is peculiar to this pass: block sizes, strides of dk and dv, and how
 * long lists may be. Pure. */
bsk_reason bski_attention90_dkv_accept(const bsk_problem *problem);

/* *state: memory of the pass, which _free takes, also after an error; it may be NULL. */
bsk_status bski_attention90_dkv_plan(bski_cuda_device *device, const bsk_problem *problem,
                                     void **state);
void bski_attention90_dkv_free(bski_cuda_device *device, void *state);

/* bound, delta: f32 [batch * heads][row pad], which earlier work of the queue has written: the
 * log-sum-exp times log2(e), and the sum of O dO times the slope that bski_attention90_slope
 * answers; infinity and 0 in rows that see nothing, lie beyond their member's length or pad. */
bsk_status bski_attention90_dkv_launch(const void *state, const bsk_problem *problem,
                                       const bski_cuda_queue *queue,
                                       const bsk_attention_grad_args *args, const float *bound,
                                       const float *delta);

#endif
