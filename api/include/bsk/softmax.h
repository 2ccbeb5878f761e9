/* Dense softmax. Part of bsk; include <bsk/bsk.h>.
 * The rules at the top of matmul.h hold here too. */
#ifndef BSK_SOFTMAX_H
#define BSK_SOFTMAX_H

#include <bsk/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- masked_softmax: y = softmax of scale * mask * x along the last dimension ----------------
 * A mask of 0 excludes the element, whatever x holds: y is 0 there; other values are a factor of
 * their own. A row without elements, or with -infinity in all of them, gives zeros. NaN or
 * +infinity in an element that takes part makes all such elements of its row NaN.
 * With k > 0 only the k largest products of the row take part, in the order of topk.
 * Shapes    x, y of one shape; mask of the same rank, each dimension that of x or 1, the last
 *           that of x. Rows of any length.
 * Dtypes    x, y and mask any floats.
 * Strides   the last axis of x and y contiguous; of mask any.
 * In place  y = x when types and strides agree.
 * Numerics  the maximum subtracted; sums in f32 (f64 with f64).
 * Source    openai/blocksparse MaskedSoftmax. */
typedef struct bsk_masked_softmax_params {
    size_t struct_size;
    int64_t k; /* 0: all elements; at most the row's length */
    bsk_tensor x, y;
    bsk_tensor mask; /* optional */
} bsk_masked_softmax_params;

typedef struct bsk_masked_softmax_args {
    size_t struct_size;
    double scale; /* 0 means 1 */
    bsk_mem workspace;
    bsk_mem x, y;
    bsk_mem mask;
} bsk_masked_softmax_args;

BSK_API bsk_status bsk_masked_softmax_plan(const bsk_device *device,
                                           const bsk_masked_softmax_params *params,
                                           const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_masked_softmax_run(const bsk_plan *plan, bsk_queue *queue,
                                          const bsk_masked_softmax_args *args);

/* masked_topk_softmax: the same with k >= 1. The gradient is that of masked_softmax, too.
 * Source    openai/blocksparse MaskedTopKSoftmax (rows of at most 1024 there). */
BSK_API bsk_status bsk_masked_topk_softmax_plan(const bsk_device *device,
                                                const bsk_masked_softmax_params *params,
                                                const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_masked_topk_softmax_run(const bsk_plan *plan, bsk_queue *queue,
                                               const bsk_masked_softmax_args *args);

/* masked_softmax_grad: dx = alpha * scale * mask * y * (dy - sum of dy * y) + beta * dx. Elements
 * whose y is 0 add nothing to the sum, and their gradient is 0, whatever dy holds.
 * Shapes and dtypes as masked_softmax; scale and mask as given to the forward.
 * Strides   the last axis of dy, y and dx contiguous; of mask any.
 * In place  dx = dy or dx = y when types and strides agree. */
typedef struct bsk_masked_softmax_grad_params {
    size_t struct_size;
    bsk_tensor dy, y, dx;
    bsk_tensor mask; /* optional */
} bsk_masked_softmax_grad_params;

typedef struct bsk_masked_softmax_grad_args {
    size_t struct_size;
    double alpha, beta;
    double scale; /* 0 means 1 */
    bsk_mem workspace;
    bsk_mem dy, y, dx;
    bsk_mem mask;
} bsk_masked_softmax_grad_args;

BSK_API bsk_status bsk_masked_softmax_grad_plan(const bsk_device *device,
                                                const bsk_masked_softmax_grad_params *params,
                                                const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_masked_softmax_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                               const bsk_masked_softmax_grad_args *args);

#ifdef __cplusplus
}
#endif
#endif
