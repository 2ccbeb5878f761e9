/* Dense companions of the products. Part of bsk; include <bsk/bsk.h>.
 * The rules at the top of matmul.h hold here too. */
#ifndef BSK_OPS_H
#define BSK_OPS_H

#include <bsk/matmul.h>
#include <bsk/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- embedding: y[n] = table[index[n]]; zeros where the index lies outside [0, V) --------------
 * Shapes    table [V, D], index [N] of i64, i32, u16 or u8, y [N, D].
 * Dtypes    table and y any float.
 * Strides   D contiguous.
 * Source    openai/blocksparse EmbeddingLookup. */
typedef struct bsk_embedding_params {
    size_t struct_size;
    bsk_tensor table, index, y;
} bsk_embedding_params;

typedef struct bsk_embedding_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem table, index, y;
} bsk_embedding_args;

BSK_API bsk_status bsk_embedding_plan(const bsk_device *device, const bsk_embedding_params *params,
                                      const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_embedding_run(const bsk_plan *plan, bsk_queue *queue,
                                     const bsk_embedding_args *args);

/* embedding_grad: dtable[v] = alpha * sum of dy[n] over index[n] = v, in order of n, + beta *
 * dtable[v]. Deterministic. dy and dtable any float; D contiguous in both. */
typedef struct bsk_embedding_grad_params {
    size_t struct_size;
    bsk_tensor dy, index, dtable;
} bsk_embedding_grad_params;

typedef struct bsk_embedding_grad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem dy, index, dtable;
} bsk_embedding_grad_args;

BSK_API bsk_status bsk_embedding_grad_plan(const bsk_device *device,
                                           const bsk_embedding_grad_params *params,
                                           const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_embedding_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                          const bsk_embedding_grad_args *args);

/* --- dense_wgrad: dw = alpha * sum over n of x[n] dy[n]^T + beta * dw --------------------------
 * The weight gradient of a dense layer, for any N, up to millions of rows.
 * Shapes    x [N, C], dy [N, K] (NC) or [C, N], [K, N] (CN); dw [C, K].
 * Dtypes    x and dy equal floats; dw any float. Sums in f32 (f64 with f64).
 * Strides   one of the two axes of x, dy and dw each contiguous.
 * Source    openai/blocksparse DwMatmulLargeN (with atomics there). */
typedef struct bsk_dense_wgrad_params {
    size_t struct_size;
    bsk_axis axis;
    bsk_tensor x, dy, dw;
} bsk_dense_wgrad_params;

typedef struct bsk_dense_wgrad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem x, dy, dw;
} bsk_dense_wgrad_args;

BSK_API bsk_status bsk_dense_wgrad_plan(const bsk_device *device,
                                        const bsk_dense_wgrad_params *params,
                                        const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_dense_wgrad_run(const bsk_plan *plan, bsk_queue *queue,
                                       const bsk_dense_wgrad_args *args);

/* --- bias_act: y = act(x + bias) ------------------------------------------------------------
 * Shapes    x, y [N, F] (NC) or [F, N] (CN); bias [F], optional.
 * Dtypes    x, y any float; bias f32 (f64 where x is f64).
 * Strides   the feature or the N axis of x and y contiguous.
 * In place  y = x when types and strides agree.
 * Source    openai/blocksparse bias_relu. */
typedef struct bsk_bias_act_params {
    size_t struct_size;
    bsk_axis axis;
    bsk_act act;
    bsk_tensor x, y;
    bsk_tensor bias; /* optional */
} bsk_bias_act_params;

typedef struct bsk_bias_act_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, y, bias;
} bsk_bias_act_args;

BSK_API bsk_status bsk_bias_act_plan(const bsk_device *device, const bsk_bias_act_params *params,
                                     const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_bias_act_run(const bsk_plan *plan, bsk_queue *queue,
                                    const bsk_bias_act_args *args);

/* bias_act_grad: with g = dy * act'(x + bias): dx = g, or with dx_blend = 1 dx = dx_alpha * g +
 * dx_beta * dx; dbias = alpha * sum over N of g + beta * dbias.
 * x is the forward's input; for BSK_ACT_RELU its output may be given instead, as x and without
 * bias, since the sign is the same; for BSK_ACT_NONE x is not needed. relu'(0) = 0.
 * Shapes and strides as bias_act; dx and dbias each optional, one at least.
 * In place: dx = dy when types and strides agree. */
typedef struct bsk_bias_act_grad_params {
    size_t struct_size;
    bsk_axis axis;
    bsk_act act;
    int32_t dx_blend;
    bsk_tensor dy;
    bsk_tensor x, bias, dx, dbias; /* optional, as described */
} bsk_bias_act_grad_params;

typedef struct bsk_bias_act_grad_args {
    size_t struct_size;
    double alpha, beta;
    double dx_alpha, dx_beta; /* read with dx_blend alone */
    bsk_mem workspace;
    bsk_mem dy, x, bias, dx, dbias;
} bsk_bias_act_grad_args;

BSK_API bsk_status bsk_bias_act_grad_plan(const bsk_device *device,
                                          const bsk_bias_act_grad_params *params,
                                          const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_bias_act_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                         const bsk_bias_act_grad_args *args);

/* --- cross_entropy: loss and gradient of softmax cross-entropy in one pass --------------------
 * t = (1 - smoothing) * onehot(label) + smoothing / V
 * loss[n] = -sum_v t[v] * log softmax(logits[n])[v]
 * dlogits[n] = alpha * (softmax(logits[n]) - t) * (dloss[n] where given) + beta * dlogits[n]
 * Rows whose label is ignore_index, or lies outside [0, V), have loss 0 and gradient 0 (dlogits
 * beta * dlogits); so have rows whose logits are all -infinity.
 *
 * Shapes    logits, dlogits [N, V]; labels [N] of i64, i32, u16 or u8; loss, dloss [N].
 *           loss and dlogits each optional, one at least; dloss needs dlogits.
 * Dtypes    logits and dlogits any float; loss and dloss f32 (f64 where logits is f64).
 * Strides   V, the last axis of logits and dlogits, contiguous; labels, loss and dloss contiguous.
 * In place  dlogits = logits when types and strides agree; beta is then that of logits.
 * Numerics  the exact form: maximum subtracted, f32 sums. A row with NaN or +infinity gives NaN.
 * Source    openai/blocksparse SoftmaxCrossEntropy, without its compressed gradient. */
typedef struct bsk_cross_entropy_params {
    size_t struct_size;
    double smoothing;     /* in [0, 1) */
    int64_t ignore_index; /* used where use_ignore_index is nonzero */
    int32_t use_ignore_index;
    bsk_tensor logits, labels;
    bsk_tensor loss, dlogits, dloss; /* optional, as described */
} bsk_cross_entropy_params;

typedef struct bsk_cross_entropy_args {
    size_t struct_size;
    double alpha, beta; /* of dlogits */
    bsk_mem workspace;
    bsk_mem logits, labels, loss, dlogits, dloss;
} bsk_cross_entropy_args;

BSK_API bsk_status bsk_cross_entropy_plan(const bsk_device *device,
                                          const bsk_cross_entropy_params *params,
                                          const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_cross_entropy_run(const bsk_plan *plan, bsk_queue *queue,
                                         const bsk_cross_entropy_args *args);

#ifdef __cplusplus
}
#endif
#endif
