/* Choosing elements: maxima, gathers, the k largest. Part of bsk; include <bsk/bsk.h>.
 * The rules at the top of matmul.h hold here too. */
#ifndef BSK_SELECT_H
#define BSK_SELECT_H

#include <bsk/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- reduce_max: y[i, k] = the largest of x[i, :, k], and where it is ------------------------
 * The first of several equal ones wins; NaN is larger than any number.
 * Shapes    x [A, B, C], B >= 1; y and argmax [A, C]. Any axis of any tensor: A is what lies before
 *           it, C what lies behind it.
 * Dtypes    x and y any floats; argmax optional, i64, i32, u16 or u8, which must hold B - 1.
 * Source    openai/blocksparse ReduceMax. */
typedef struct bsk_reduce_max_params {
    size_t struct_size;
    bsk_tensor x, y;
    bsk_tensor argmax; /* optional */
} bsk_reduce_max_params;

typedef struct bsk_reduce_max_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, y;
    bsk_mem argmax;
} bsk_reduce_max_args;

BSK_API bsk_status bsk_reduce_max_plan(const bsk_device *device,
                                       const bsk_reduce_max_params *params,
                                       const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_reduce_max_run(const bsk_plan *plan, bsk_queue *queue,
                                      const bsk_reduce_max_args *args);

/* --- take_along: y[i, j, k] = x[i, index[i, j, k], k]; 0 where the index lies outside [0, B) ---
 * Shapes    x [A, B, C]; index and y [A, J, C]. A stride of 0 shares an index along C or A.
 * Dtypes    x and y any floats, or both i32; index i64, i32, u16 or u8. */
typedef struct bsk_take_along_params {
    size_t struct_size;
    bsk_tensor x, index, y;
} bsk_take_along_params;

typedef struct bsk_take_along_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, index, y;
} bsk_take_along_args;

BSK_API bsk_status bsk_take_along_plan(const bsk_device *device,
                                       const bsk_take_along_params *params,
                                       const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_take_along_run(const bsk_plan *plan, bsk_queue *queue,
                                      const bsk_take_along_args *args);

/* take_along_grad: dx[i, b, k] = alpha * (sum of dy[i, j, k] over index[i, j, k] = b, in order of
 * j) + beta * dx[i, b, k]. Shapes and dtypes as take_along, but dy and dx any floats.
 * Cost      GPUs look at all J indices for each element of dx: A * B * J * C in all. With A = 1 and
 *           one index for a row, embedding_grad computes the same in about J * C. */
typedef struct bsk_take_along_grad_params {
    size_t struct_size;
    bsk_tensor dy, index, dx;
} bsk_take_along_grad_params;

typedef struct bsk_take_along_grad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem dy, index, dx;
} bsk_take_along_grad_args;

BSK_API bsk_status bsk_take_along_grad_plan(const bsk_device *device,
                                            const bsk_take_along_grad_params *params,
                                            const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_take_along_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                           const bsk_take_along_grad_args *args);

/* reduce_max_grad: dx[i, argmax[i, k], k] = alpha * dy[i, k] + beta * dx[...]; beta * dx elsewhere.
 * Shapes and dtypes as reduce_max, but argmax of any index type. */
typedef struct bsk_reduce_max_grad_params {
    size_t struct_size;
    bsk_tensor dy, argmax, dx;
} bsk_reduce_max_grad_params;

typedef struct bsk_reduce_max_grad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem dy, argmax, dx;
} bsk_reduce_max_grad_args;

BSK_API bsk_status bsk_reduce_max_grad_plan(const bsk_device *device,
                                            const bsk_reduce_max_grad_params *params,
                                            const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_reduce_max_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                           const bsk_reduce_max_grad_args *args);

/* --- fancy_gather: y[i] = x[i, index[i]]; zeros where the index lies outside [0, B) ----------
 * Shapes    x [A, B, C], index [A], y [A, C].
 * Dtypes    x and y any floats, or both i32; index i64, i32, u16 or u8.
 * Strides   free, that of index too.
 * Source    openai/blocksparse FancyGather. */
typedef struct bsk_fancy_gather_params {
    size_t struct_size;
    bsk_tensor x, index, y;
} bsk_fancy_gather_params;

typedef struct bsk_fancy_gather_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, index, y;
} bsk_fancy_gather_args;

BSK_API bsk_status bsk_fancy_gather_plan(const bsk_device *device,
                                         const bsk_fancy_gather_params *params,
                                         const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_fancy_gather_run(const bsk_plan *plan, bsk_queue *queue,
                                        const bsk_fancy_gather_args *args);

/* fancy_gather_grad: dx[i, index[i]] = alpha * dy[i] + beta * dx[...]; beta * dx elsewhere.
 * Shapes and dtypes as fancy_gather. */
typedef struct bsk_fancy_gather_grad_params {
    size_t struct_size;
    bsk_tensor dy, index, dx;
} bsk_fancy_gather_grad_params;

typedef struct bsk_fancy_gather_grad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem dy, index, dx;
} bsk_fancy_gather_grad_args;

BSK_API bsk_status bsk_fancy_gather_grad_plan(const bsk_device *device,
                                              const bsk_fancy_gather_grad_params *params,
                                              const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_fancy_gather_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                             const bsk_fancy_gather_grad_args *args);

/* --- topk: the k largest of each row in falling order, and where they are --------------------
 * Of equal ones the first comes first; NaN is larger than any number.
 * Shapes    x [N, D]; values and index [N, k], k <= D. Rows of any length.
 * Dtypes    x and values any floats; index optional, i64, i32, u16 or u8, which must hold D - 1.
 * Strides   the last axis of x, values and index contiguous.
 * Source    openai/blocksparse TopK (rows of at most 1024 there). */
typedef struct bsk_topk_params {
    size_t struct_size;
    bsk_tensor x, values;
    bsk_tensor index; /* optional */
} bsk_topk_params;

typedef struct bsk_topk_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, values;
    bsk_mem index;
} bsk_topk_args;

BSK_API bsk_status bsk_topk_plan(const bsk_device *device, const bsk_topk_params *params,
                                 const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_topk_run(const bsk_plan *plan, bsk_queue *queue, const bsk_topk_args *args);

/* topk_grad: dx[n, index[n, j]] = alpha * dy[n, j] + beta * dx[...]; beta * dx elsewhere.
 * Shapes    dy, index [N, k]; dx [N, D], of any floats; index of any index type.
 * Strides   the last axis of dy, index and dx contiguous. */
typedef struct bsk_topk_grad_params {
    size_t struct_size;
    bsk_tensor dy, index, dx;
} bsk_topk_grad_params;

typedef struct bsk_topk_grad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem dy, index, dx;
} bsk_topk_grad_args;

BSK_API bsk_status bsk_topk_grad_plan(const bsk_device *device, const bsk_topk_grad_params *params,
                                      const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_topk_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                     const bsk_topk_grad_args *args);

/* --- rectified_topk: y = max(x, cut) - cut for the k largest of each row, 0 for the others ---
 * The order is that of topk. With rebase the k-th largest itself gives 0, or NaN where it is infinite.
 * NaN among the k largest stays NaN.
 * Shapes    x, y [N, D].
 * Dtypes    x and y any floats.
 * Strides   the last axis of x and y contiguous.
 * In place  y = x when types and strides agree.
 * Source    openai/blocksparse RectifiedTopK. */
typedef struct bsk_rectified_topk_params {
    size_t struct_size;
    int64_t k;      /* from 1 to D */
    int32_t rebase; /* 1: cut = max(k-th largest, 0); 0: cut = 0 */
    bsk_tensor x, y;
} bsk_rectified_topk_params;

typedef struct bsk_rectified_topk_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, y;
} bsk_rectified_topk_args;

BSK_API bsk_status bsk_rectified_topk_plan(const bsk_device *device,
                                           const bsk_rectified_topk_params *params,
                                           const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_rectified_topk_run(const bsk_plan *plan, bsk_queue *queue,
                                          const bsk_rectified_topk_args *args);

/* rectified_topk_grad: dx = alpha * g + beta * dx, where g = dy times the slope of relu(x - cut) for the
 * k largest, 0 for the others; and the k-th largest, where it is the cut, gets minus the sum
 * of the row's g, unless constant_cut = 1.
 * Shapes, dtypes and strides as rectified_topk. In place: dx = dy when types and strides agree. */
typedef struct bsk_rectified_topk_grad_params {
    size_t struct_size;
    int64_t k;      /* from 1 to D */
    int32_t rebase; /* 1: cut = max(k-th largest, 0); 0: cut = 0 */
    int32_t constant_cut;
    bsk_tensor dy, x, dx;
} bsk_rectified_topk_grad_params;

typedef struct bsk_rectified_topk_grad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem dy, x, dx;
} bsk_rectified_topk_grad_args;

BSK_API bsk_status bsk_rectified_topk_grad_plan(const bsk_device *device,
                                                const bsk_rectified_topk_grad_params *params,
                                                const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_rectified_topk_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                               const bsk_rectified_topk_grad_args *args);

#ifdef __cplusplus
}
#endif
#endif
