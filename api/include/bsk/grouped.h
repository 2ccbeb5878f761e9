/* Products of groups of rows, as in mixtures of experts. Part of bsk; include <bsk/bsk.h>.
 * The rules at the top of matmul.h hold here too.
 *
 * Rows are tokens, sorted so that those of a group lie next to each other; how many a group has is in
 * device memory, so that the host neither knows nor waits, also in a captured graph:
 *   offsets  [G + 1] i32: group g has the rows offsets[g] to offsets[g + 1] - 1
 * Numbers that nobody can check before a run are taken as they must be for nothing else to be
 * touched: offsets[g] counts as the largest of 0 and offsets[0 .. g], and as T where it is more. So
 * offsets that descend make empty groups, and rows before the first or from the last one on are of
 * no group. docs/moe.md has a layer of experts in these calls. */
#ifndef BSK_GROUPED_H
#define BSK_GROUPED_H

#include <bsk/matmul.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- grouped_matmul: each group of rows times its own matrix -------------------------------------
 * For the rows t of group g   pre[t] = alpha * x[t] w[g] + bias[g] + beta * y_old[t]
 *                             y[t] = act(pre[t])
 * and for rows of no group    y[t] = beta * y_old[t]
 * The gradient of x is the same op with the strides of w's last two axes exchanged.
 * Shapes    x [T, K]; offsets [G + 1]; w [G, K, M]; y [T, M]; bias [G, M]. T has 31 bits.
 * Dtypes    x and w equal floats; y any float; bias f32 (f64 with f64); offsets i32.
 * Strides   one of the two axes of x and y each contiguous, and of the last two of w; the stride of
 *           the groups is free. bias and offsets contiguous.
 * Numerics  f32 accumulation (f64 for f64), rounded once to y's type. What a row of y is depends on
 *           that row of x and its group alone: NaN and infinity do not reach others. */
typedef struct bsk_grouped_matmul_params {
    size_t struct_size;
    bsk_act act;
    bsk_tensor x, offsets, w, y;
    bsk_tensor bias; /* optional */
} bsk_grouped_matmul_params;

typedef struct bsk_grouped_matmul_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem x, offsets, w, y;
    bsk_mem bias;
} bsk_grouped_matmul_args;

BSK_API bsk_status bsk_grouped_matmul_plan(const bsk_device *device,
                                           const bsk_grouped_matmul_params *params,
                                           const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_grouped_matmul_run(const bsk_plan *plan, bsk_queue *queue,
                                          const bsk_grouped_matmul_args *args);

/* --- grouped_wgrad: the gradients of the matrices and biases -------------------------------------
 * dw[g] = alpha * the sum over the rows t of group g of x[t]^T dy[t] + beta * dw[g]
 * dbias[g] = alpha * the sum of dy[t] + beta * dbias[g], where it is given
 * The sum of an empty group is 0. Rows of no group are not read.
 * Shapes    x [T, K]; offsets [G + 1]; dy [T, M]; dw [G, K, M]; dbias [G, M]. T has 31 bits.
 * Dtypes    x and dy equal floats; dw any float; dbias f32 (f64 with f64); offsets i32.
 * Strides   one of the two axes of x and dy each contiguous, and of the last two of dw; the stride
 *           of the groups is free. dbias and offsets contiguous.
 * Numerics  as grouped_matmul. */
typedef struct bsk_grouped_wgrad_params {
    size_t struct_size;
    bsk_tensor x, offsets, dy, dw;
    bsk_tensor dbias; /* optional */
} bsk_grouped_wgrad_params;

typedef struct bsk_grouped_wgrad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem x, offsets, dy, dw;
    bsk_mem dbias;
} bsk_grouped_wgrad_args;

BSK_API bsk_status bsk_grouped_wgrad_plan(const bsk_device *device,
                                          const bsk_grouped_wgrad_params *params,
                                          const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_grouped_wgrad_run(const bsk_plan *plan, bsk_queue *queue,
                                         const bsk_grouped_wgrad_args *args);

/* --- moe_route: the rows of each expert, from the experts of each token --------------------------
 * Slot t * k + j is choice j of token t. Sorted by expert, in the order of the slots among equals:
 *   offsets[g]  how many slots chose experts below g
 *   order[p]    the slot at place p, or -1 from place offsets[G] on
 *   token[p]    its token, order[p] / k, or -1
 *   place[t, j] the place of slot t * k + j, or -1 where that is none
 * A choice below 0 or from G on is no slot of any expert: the token is dropped there. Tokens are
 * gathered by `embedding` with token as its index, and results are added up over the choices by
 * `embedding_grad` with the same index: -1 gives rows of 0 in the first, and nothing in the second.
 * Shapes    experts and place [T, k]; order and token [T * k], which has 31 bits; offsets [G + 1].
 * Dtypes    i32.
 * Strides   all contiguous. */
typedef struct bsk_moe_route_params {
    size_t struct_size;
    bsk_tensor experts, offsets, order;
    bsk_tensor token, place; /* optional */
} bsk_moe_route_params;

typedef struct bsk_moe_route_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem experts, offsets, order;
    bsk_mem token, place;
} bsk_moe_route_args;

BSK_API bsk_status bsk_moe_route_plan(const bsk_device *device, const bsk_moe_route_params *params,
                                      const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_moe_route_run(const bsk_plan *plan, bsk_queue *queue,
                                     const bsk_moe_route_args *args);

#ifdef __cplusplus
}
#endif
#endif
