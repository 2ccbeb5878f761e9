/* Element-wise ops, casts and transposes, dropout. Part of bsk; include <bsk/bsk.h>.
 * The rules at the top of matmul.h hold here too. */
#ifndef BSK_ELEMENTWISE_H
#define BSK_ELEMENTWISE_H

#include <bsk/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What binary computes of x and y. max and min give NaN where an operand is NaN. */
typedef enum bsk_binary_kind {
    BSK_BINARY_ADD = 0,
    BSK_BINARY_SUB = 1,
    BSK_BINARY_MUL = 2,
    BSK_BINARY_DIV = 3,
    BSK_BINARY_MAX = 4,
    BSK_BINARY_MIN = 5,
    BSK_BINARY_COUNT = 6,
    BSK_BINARY_FORCE_INT = 0x7fffffff
} bsk_binary_kind;

/* --- binary: z = x (kind) y, element by element ----------------------------------------------
 * Shapes    z of any shape; x and y of the same rank, each dimension that of z or 1, which repeats
 *           the element. A bias or a gain of the features is a y of [1, F] (NC) or [F, 1] (CN).
 * Dtypes    x, y and z any floats.
 * In place  z = x or z = y when types, shapes and strides agree.
 * Source    openai/blocksparse EwZXy and its broadcast forms. */
typedef struct bsk_binary_params {
    size_t struct_size;
    bsk_binary_kind kind;
    bsk_tensor x, y, z;
} bsk_binary_params;

typedef struct bsk_binary_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, y, z;
} bsk_binary_args;

BSK_API bsk_status bsk_binary_plan(const bsk_device *device, const bsk_binary_params *params,
                                   const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_binary_run(const bsk_plan *plan, bsk_queue *queue,
                                  const bsk_binary_args *args);

/* binary_grad: dx = alpha * sum of dz * (derivative of z by x) + beta * dx, and the same for y. The
 * sum runs over the dimensions in which x is 1 and dz is not. Where max or min tie, both operands
 * get half of the gradient; where one is NaN, both get NaN.
 * Shapes    dz as z; x and dx as x of binary, y and dy as y. x and y may be absent for add and sub.
 *           dx and dy each optional, one at least.
 * Dtypes    any floats. */
typedef struct bsk_binary_grad_params {
    size_t struct_size;
    bsk_binary_kind kind;
    bsk_tensor dz;
    bsk_tensor x, y, dx, dy; /* optional */
} bsk_binary_grad_params;

typedef struct bsk_binary_grad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem dz;
    bsk_mem x, y, dx, dy;
} bsk_binary_grad_args;

BSK_API bsk_status bsk_binary_grad_plan(const bsk_device *device,
                                        const bsk_binary_grad_params *params,
                                        const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_binary_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                       const bsk_binary_grad_args *args);

/* Functions of one number. gelu is the tanh form, gelu_erf the exact one; elu(x) = c (exp(x) - 1)
 * for x <= 0; swish(x) = x * sigmoid(c x), where c is the coefficient. NaN gives NaN. */
typedef enum bsk_unary_kind {
    BSK_UNARY_NEG = 0,
    BSK_UNARY_RCP = 1, /* 1 / x */
    BSK_UNARY_SQR = 2, /* x * x */
    BSK_UNARY_SQRT = 3,
    BSK_UNARY_EXP = 4,
    BSK_UNARY_LOG = 5,
    BSK_UNARY_SIGMOID = 6,
    BSK_UNARY_TANH = 7,
    BSK_UNARY_RELU = 8,
    BSK_UNARY_ELU = 9,
    BSK_UNARY_GELU = 10,
    BSK_UNARY_GELU_ERF = 11,
    BSK_UNARY_SWISH = 12,
    BSK_UNARY_COUNT = 13,
    BSK_UNARY_FORCE_INT = 0x7fffffff
} bsk_unary_kind;

/* --- unary: y = f(x), element by element -----------------------------------------------------
 * Shapes    x and y of one shape of any rank.
 * Dtypes    x and y any floats.
 * In place  y = x when types and strides agree.
 * Numerics  in f32 all but the reference may give 0 where a sigmoid, of x or in swish of c x, or what
 *           gelu multiplies x with is below 1.2e-38.
 * Source    openai/blocksparse EwZXa. */
typedef struct bsk_unary_params {
    size_t struct_size;
    bsk_unary_kind kind;
    double coefficient; /* of elu and swish; 0 means 1 */
    bsk_tensor x, y;
} bsk_unary_params;

typedef struct bsk_unary_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, y;
} bsk_unary_args;

BSK_API bsk_status bsk_unary_plan(const bsk_device *device, const bsk_unary_params *params,
                                  const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_unary_run(const bsk_plan *plan, bsk_queue *queue,
                                 const bsk_unary_args *args);

/* unary_grad: dx = alpha * dy * f'(x) + beta * dx.
 * Either x, the forward's input, is given, or y, its output: for rcp, sqrt, exp, sigmoid, tanh,
 * relu and elu (with coefficient > 0). neg needs neither. relu'(0) = 0, elu'(0) = coefficient.
 * Shapes and dtypes as unary. In place: dx = dy when types and strides agree.
 * Numerics  as unary: sigmoids below 1.2e-38 and what comes of them may be 0. */
typedef struct bsk_unary_grad_params {
    size_t struct_size;
    bsk_unary_kind kind;
    double coefficient; /* of elu and swish; 0 means 1 */
    bsk_tensor dy, dx;
    bsk_tensor x, y; /* optional */
} bsk_unary_grad_params;

typedef struct bsk_unary_grad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem dy, dx;
    bsk_mem x, y;
} bsk_unary_grad_args;

BSK_API bsk_status bsk_unary_grad_plan(const bsk_device *device,
                                       const bsk_unary_grad_params *params,
                                       const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_unary_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                      const bsk_unary_grad_args *args);

/* --- add_n: y = alpha * (sum over p of x_p, in order) + beta * y -----------------------------
 * Shapes    pairs tensors x of one description, and y, of one shape of any rank.
 * Dtypes    x and y any floats.
 * Memory    args.x points to an array of `pairs` views, read during the call only.
 * In place  y = any of the x when types and strides agree.
 * Source    openai/blocksparse AddN8 (at most 9 there). */
typedef struct bsk_add_n_params {
    size_t struct_size;
    int32_t pairs; /* tensors in the list, at most 65536; 0 means 1 */
    bsk_tensor x, y;
} bsk_add_n_params;

typedef struct bsk_add_n_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    const bsk_mem *x;
    bsk_mem y;
} bsk_add_n_args;

BSK_API bsk_status bsk_add_n_plan(const bsk_device *device, const bsk_add_n_params *params,
                                  const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_add_n_run(const bsk_plan *plan, bsk_queue *queue,
                                 const bsk_add_n_args *args);

/* assign_add: y = y + x. Shapes and dtypes as add_n. */
typedef struct bsk_assign_add_params {
    size_t struct_size;
    bsk_tensor x, y;
} bsk_assign_add_params;

typedef struct bsk_assign_add_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, y;
} bsk_assign_add_args;

BSK_API bsk_status bsk_assign_add_plan(const bsk_device *device,
                                       const bsk_assign_add_params *params,
                                       const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_assign_add_run(const bsk_plan *plan, bsk_queue *queue,
                                      const bsk_assign_add_args *args);

/* --- cast: y = x in another type, through any strides ----------------------------------------
 * Shapes    x and y of one shape of any rank.
 * Dtypes    every pair of types; between equal ones numbers stay as they are. To a float: rounded to
 *           nearest even, overflow to infinity, but in f8 to the largest number, infinity too. To an
 *           integer: fractions are cut off, but to i8 rounded to nearest even; what lies outside the
 *           range becomes the nearest limit, NaN becomes 0. i64 from and to f64 is exact up to 2^53;
 *           between integers exact.
 * Gradient  cast with the types exchanged.
 * Source    openai/blocksparse FloatCast. */
typedef struct bsk_cast_params {
    size_t struct_size;
    bsk_tensor x, y;
} bsk_cast_params;

typedef struct bsk_cast_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, y;
} bsk_cast_args;

BSK_API bsk_status bsk_cast_plan(const bsk_device *device, const bsk_cast_params *params,
                                 const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_cast_run(const bsk_plan *plan, bsk_queue *queue, const bsk_cast_args *args);

/* transpose_2d: y[j, i] = x[i, j]. x [A, B], y [B, A]; types as cast. Its own gradient.
 * Source    openai/blocksparse Transpose2D. */
typedef struct bsk_transpose_2d_params {
    size_t struct_size;
    bsk_tensor x, y;
} bsk_transpose_2d_params;

typedef struct bsk_transpose_2d_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, y;
} bsk_transpose_2d_args;

BSK_API bsk_status bsk_transpose_2d_plan(const bsk_device *device,
                                         const bsk_transpose_2d_params *params,
                                         const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_transpose_2d_run(const bsk_plan *plan, bsk_queue *queue,
                                        const bsk_transpose_2d_args *args);

/* transpose_0213: y[i, k, j, l] = x[i, j, k, l]: exchanges time and heads. x [A, B, C, D],
 * y [A, C, B, D]; types as cast. Its own gradient.
 * Source    openai/blocksparse Transpose0213. */
typedef struct bsk_transpose_0213_params {
    size_t struct_size;
    bsk_tensor x, y;
} bsk_transpose_0213_params;

typedef struct bsk_transpose_0213_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, y;
} bsk_transpose_0213_args;

BSK_API bsk_status bsk_transpose_0213_plan(const bsk_device *device,
                                           const bsk_transpose_0213_params *params,
                                           const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_transpose_0213_run(const bsk_plan *plan, bsk_queue *queue,
                                          const bsk_transpose_0213_args *args);

/* --- cwise_linear: y = act(x * gain + bias), or act((x + bias) * gain), by channel -----------
 * act is relu or nothing. With S = 1 this is NC, with N = 1 CN: gain and bias on the feature axis.
 * Shapes    x, y [N, C, S]; gain and bias [C], each optional, one at least.
 * Dtypes    x and y any float; gain and bias f32 (f64 where x is f64).
 * In place  y = x when types and strides agree.
 * Source    openai/blocksparse cwise_linear. */
typedef struct bsk_cwise_linear_params {
    size_t struct_size;
    int32_t relu;
    int32_t bias_first; /* the second form */
    bsk_tensor x, y;
    bsk_tensor gain, bias; /* optional */
} bsk_cwise_linear_params;

typedef struct bsk_cwise_linear_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, y;
    bsk_mem gain, bias;
} bsk_cwise_linear_args;

BSK_API bsk_status bsk_cwise_linear_plan(const bsk_device *device,
                                         const bsk_cwise_linear_params *params,
                                         const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_cwise_linear_run(const bsk_plan *plan, bsk_queue *queue,
                                        const bsk_cwise_linear_args *args);

/* cwise_linear_grad: with g = dy * act'(...): dx = g * gain; dgain = alpha * (sum over N and S of
 * g * x, or of g * (x + bias)) + beta * dgain; dbias = alpha * (sum of g, or of g * gain) + beta *
 * dbias. With dx_blend = 1 dx = dx_alpha * g * gain + dx_beta * dx. relu'(0) = 0.
 * Shapes    dy, x, dx [N, C, S]; the rest [C]. gain and bias as given to the forward; x may be
 *           absent without relu and dgain. dx, dgain and dbias each optional, one at least.
 * Dtypes    dy, x, dx any float; the rest f32 (f64 where dy is f64).
 * In place  dx = dy when types and strides agree. */
typedef struct bsk_cwise_linear_grad_params {
    size_t struct_size;
    int32_t relu;
    int32_t bias_first;
    int32_t dx_blend;
    bsk_tensor dy;
    bsk_tensor x, gain, bias, dx, dgain, dbias; /* optional */
} bsk_cwise_linear_grad_params;

typedef struct bsk_cwise_linear_grad_args {
    size_t struct_size;
    double alpha, beta;
    double dx_alpha, dx_beta; /* read with dx_blend alone */
    bsk_mem workspace;
    bsk_mem dy;
    bsk_mem x, gain, bias, dx, dgain, dbias;
} bsk_cwise_linear_grad_args;

BSK_API bsk_status bsk_cwise_linear_grad_plan(const bsk_device *device,
                                              const bsk_cwise_linear_grad_params *params,
                                              const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_cwise_linear_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                             const bsk_cwise_linear_grad_args *args);

/* --- filter: takes what is not finite out of a tensor, scales and clamps ---------------------
 * In this order: infinities become 0 with zero_infs, NaN becomes 0 with zero_nans; y = scale * x;
 * then y is clamped to [-saturate, saturate] where saturate > 0. A NaN that was kept stays NaN.
 * Shapes    x and y of one shape of any rank.
 * Dtypes    x and y any floats.
 * In place  y = x when types and strides agree.
 * Gradient  filter of dy with the same scale.
 * Source    openai/blocksparse FilterTensor, scale_tensor. */
typedef struct bsk_filter_params {
    size_t struct_size;
    int32_t zero_infs;
    int32_t zero_nans;
    bsk_tensor x, y;
} bsk_filter_params;

typedef struct bsk_filter_args {
    size_t struct_size;
    double scale;    /* 0 means 1 */
    double saturate; /* 0: no clamp */
    bsk_mem workspace;
    bsk_mem x, y;
} bsk_filter_args;

BSK_API bsk_status bsk_filter_plan(const bsk_device *device, const bsk_filter_params *params,
                                   const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_filter_run(const bsk_plan *plan, bsk_queue *queue,
                                  const bsk_filter_args *args);

/* --- sparse_relu: y = max(x - cut, 0), where cut = mean + sigmas * std of the row ------------
 * std is that of the population. NaN in a row makes the row NaN.
 * Shapes    x, y [N, F] (NC) or [F, N] (CN); a row is the F features of one n.
 * Dtypes    x and y any floats.
 * Strides   the feature or the N axis of x and y contiguous.
 * In place  y = x when types and strides agree.
 * Source    openai/blocksparse SparseRelu (alpha there is sigmas here). */
typedef struct bsk_sparse_relu_params {
    size_t struct_size;
    bsk_axis axis;
    bsk_tensor x, y;
} bsk_sparse_relu_params;

typedef struct bsk_sparse_relu_args {
    size_t struct_size;
    double sigmas;
    bsk_mem workspace;
    bsk_mem x, y;
} bsk_sparse_relu_args;

BSK_API bsk_status bsk_sparse_relu_plan(const bsk_device *device,
                                        const bsk_sparse_relu_params *params,
                                        const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_sparse_relu_run(const bsk_plan *plan, bsk_queue *queue,
                                       const bsk_sparse_relu_args *args);

/* sparse_relu_grad: with g = dy times the slope of relu(x - cut), and G its sum over the row:
 * dx = alpha * (g - G * (1 + sigmas * (x - mean) / std) / F) + beta * dx, and without the term of G
 * if constant_cut = 1. Where std is 0, its quotient counts as 0.
 * Shapes, dtypes and strides as sparse_relu. In place: dx = dy when types and strides agree.
 * Source    constant_cut = 1: openai/blocksparse, the relu gradient on y. */
typedef struct bsk_sparse_relu_grad_params {
    size_t struct_size;
    bsk_axis axis;
    int32_t constant_cut;
    bsk_tensor dy, x, dx;
} bsk_sparse_relu_grad_params;

typedef struct bsk_sparse_relu_grad_args {
    size_t struct_size;
    double alpha, beta, sigmas;
    bsk_mem workspace;
    bsk_mem dy, x, dx;
} bsk_sparse_relu_grad_args;

BSK_API bsk_status bsk_sparse_relu_grad_plan(const bsk_device *device,
                                             const bsk_sparse_relu_grad_params *params,
                                             const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_sparse_relu_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                            const bsk_sparse_relu_grad_args *args);

/* --- dropout: y = x / keep where the mask keeps, 0 elsewhere ---------------------------------
 * The mask is not stored: element i of it keeps if a number of 16 bits from (seed, offset, i) is
 * below keep * 2^16, rounded to a whole number (Philox 4x32-10: half i % 2, the lower one first, of
 * word i / 2 % 4 of counter i / 8; the same on every device). So what is kept differs from keep by
 * 2^-17 at most, while the factor is 1 / keep. Elements are counted row-major in the mask's shape:
 * that of x, with 1 for each dimension d whose bit 1 << d is set in `shared`, so that one decision
 * is shared along it. keep = 1 keeps everything, keep = 0 nothing; what is
 * dropped is 0 even where x is NaN.
 * Shapes    x and y of one shape of any rank.
 * Dtypes    x and y any floats.
 * In place  y = x when types and strides agree.
 * Gradient  dropout of dy with the same keep, seed and offset.
 * Source    openai/blocksparse dropout, with its mask_shape. */
typedef struct bsk_dropout_params {
    size_t struct_size;
    int32_t shared;
    bsk_tensor x, y;
} bsk_dropout_params;

typedef struct bsk_dropout_args {
    size_t struct_size;
    double keep;
    uint64_t seed, offset;
    bsk_mem workspace;
    bsk_mem x, y;
} bsk_dropout_args;

BSK_API bsk_status bsk_dropout_plan(const bsk_device *device, const bsk_dropout_params *params,
                                    const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_dropout_run(const bsk_plan *plan, bsk_queue *queue,
                                   const bsk_dropout_args *args);

#ifdef __cplusplus
}
#endif
#endif
