/* Convolutions over blocks of channels, in 1 to 3 dimensions. Part of bsk; include <bsk/bsk.h>.
 * The rules at the top of matmul.h hold here too.
 *
 * A block joins some input channels to some output channels, each to each by a filter of its own.
 * Blocks may differ in size and share channels; what several give to an output is added up. Channels
 * of no block give nothing: outputs of none are 0. */
#ifndef BSK_CONV_H
#define BSK_CONV_H

#include <bsk/matmul.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The blocks and the geometry, of which plans keep a copy.
 * blocks has blocks_size numbers, one block after another: how many inputs it has, how many
 * outputs, its inputs, its outputs. A block of no inputs or no outputs is legal.
 * What follows is for each spatial dimension, the first of the image first; members beyond its
 * dimensions are not looked at. Tap t of output position q reads input position
 *   q * stride + t * dilation - pad
 * or nothing where that lies outside of the image. Padding on the far side needs no number: outputs
 * may have any size. Without padding (VALID) n inputs have
 *   (n - (filter - 1) * dilation - 1) / stride + 1
 * outputs; bsk_conv_same has the padding of SAME. At most 2^20 each. */
typedef struct bsk_conv_shape {
    const int32_t *blocks;
    int64_t blocks_size;
    int32_t filter[3];   /* 0 means 1 */
    int32_t stride[3];   /* 0 means 1 */
    int32_t dilation[3]; /* 0 means 1 */
    int32_t pad[3];
} bsk_conv_shape;

/* The padding before n inputs of one dimension where there are as many outputs as inputs, divided by
 * the stride and rounded up: half of what is missing, and the rest behind. */
static inline int32_t bsk_conv_same(int64_t n, int32_t filter, int32_t stride, int32_t dilation)
{
    const int64_t outputs = (n + stride - 1) / stride;
    const int64_t missing = (outputs - 1) * stride + (int64_t)(filter - 1) * dilation + 1 - n;
    return missing > 0 ? (int32_t)(missing / 2) : 0;
}

/* --- conv: convolution ----------------------------------------------------------------------------
 * y[n, k, q] = alpha * the sum over blocks with output k, their inputs c and taps t of
 *              x[n, c, q * stride + t * dilation - pad] w[block, k, c, t] + beta * y_old[n, k, q]
 * Shapes    x [N, C, image]; y [N, K, outputs]; image and outputs have the same 1 to 3 dimensions of
 *           31 bits, as C and K are; w is flat: for each block [outputs, inputs, filter].
 * Dtypes    x and w equal floats; y any float.
 * Strides   any of x and y: NHWC is the same shape with the strides of that order. w contiguous.
 * Numerics  f32 accumulation (f64 for f64) in a fixed order, rounded once to y's type. */
typedef struct bsk_conv_params {
    size_t struct_size;
    bsk_conv_shape shape;
    bsk_tensor x, w, y;
} bsk_conv_params;

typedef struct bsk_conv_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem x, w, y;
} bsk_conv_args;

BSK_API bsk_status bsk_conv_plan(const bsk_device *device, const bsk_conv_params *params,
                                 const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_conv_run(const bsk_plan *plan, bsk_queue *queue, const bsk_conv_args *args);

/* --- conv_dgrad: the gradient of its inputs, and deconvolution ------------------------------------
 * dx[n, c, p] = alpha * the sum over blocks with input c, their outputs k, taps t and positions q that
 *               read p by t of dy[n, k, q] w[block, k, c, t] + beta * dx_old[n, c, p]
 * A deconvolution (transposed convolution) is this op forward: dy is its input, dx its output, whose
 * size says which of the inputs of a stride is meant, and `outputs` of a block are the channels that it
 * reads. Its gradients are conv, by dy, and conv_wgrad with the two exchanged.
 * Shapes    dy as y of conv, dx as x; w as there.
 * Dtypes    dy and w equal floats; dx any float.
 * Strides, numerics   as conv. */
typedef struct bsk_conv_dgrad_params {
    size_t struct_size;
    bsk_conv_shape shape;
    bsk_tensor dy, w, dx;
} bsk_conv_dgrad_params;

typedef struct bsk_conv_dgrad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem dy, w, dx;
} bsk_conv_dgrad_args;

BSK_API bsk_status bsk_conv_dgrad_plan(const bsk_device *device,
                                       const bsk_conv_dgrad_params *params,
                                       const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_conv_dgrad_run(const bsk_plan *plan, bsk_queue *queue,
                                      const bsk_conv_dgrad_args *args);

/* --- conv_wgrad: the gradient of its filters ------------------------------------------------------
 * dw[block, k, c, t] = alpha * the sum over n and q of
 *                      x[n, c, q * stride + t * dilation - pad] dy[n, k, q] + beta * dw_old
 * Shapes    x, dy and dw as x, y and w of conv.
 * Dtypes    x and dy equal floats; dw any float.
 * Strides, numerics   as conv. */
typedef struct bsk_conv_wgrad_params {
    size_t struct_size;
    bsk_conv_shape shape;
    bsk_tensor x, dy, dw;
} bsk_conv_wgrad_params;

typedef struct bsk_conv_wgrad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem x, dy, dw;
} bsk_conv_wgrad_args;

BSK_API bsk_status bsk_conv_wgrad_plan(const bsk_device *device,
                                       const bsk_conv_wgrad_params *params,
                                       const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_conv_wgrad_run(const bsk_plan *plan, bsk_queue *queue,
                                      const bsk_conv_wgrad_args *args);

/* --- conv_edge_bias: gain and bias near the edges of an image --------------------------------------
 * y[n, c, q] = x[n, c, q] * gain[c, e] + bias[c, e] where e = edges[q] is one of the gains, and
 * x[n, c, q] elsewhere. Outputs of a convolution whose filter reaches beyond the image are sums of
 * fewer terms; for each set of taps that they lack there is a gain and a bias.
 * Shapes    x and y [N, C, image] in 1 to 3 dimensions; edges [positions of an image], the last
 *           dimension fastest; gain and bias [C, sets], of 31 bits.
 * Dtypes    x and y any float; edges i32; gain and bias f32 (f64 where x is f64).
 * Strides   any, those of edges excepted, which are contiguous.
 * In place  y = x when types and strides agree.
 * Source    openai/blocksparse EdgeBias. */
typedef struct bsk_conv_edge_bias_params {
    size_t struct_size;
    bsk_tensor x, edges, gain, bias, y;
} bsk_conv_edge_bias_params;

typedef struct bsk_conv_edge_bias_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, edges, gain, bias, y;
} bsk_conv_edge_bias_args;

BSK_API bsk_status bsk_conv_edge_bias_plan(const bsk_device *device,
                                           const bsk_conv_edge_bias_params *params,
                                           const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_conv_edge_bias_run(const bsk_plan *plan, bsk_queue *queue,
                                          const bsk_conv_edge_bias_args *args);

/* Fills edges, a number for each position of an output in the order of conv_edge_bias: that of the set
 * of taps that it lacks since they lie outside of the image, counted from 0 as sets appear, or -1 where
 * none does. *sets is how many there are. Sizes are those of x and y of conv, one for each of `rank`
 * dimensions; shape.blocks is not looked at. With deconv = 1 positions are those of dx of conv_dgrad as
 * a forward op, with `inputs`; steps between those of a stride are no positions of dy that one lacks.
 * Positions are of 31 bits in all. */
BSK_API bsk_status bsk_conv_edges(const bsk_conv_shape *shape, int32_t rank, const int64_t *inputs,
                                  const int64_t *outputs, int32_t deconv, int32_t *edges,
                                  int64_t *sets);

/* conv_edge_bias_grad: dx = dy * gain near the edges and dy elsewhere; dgain[c, e] = alpha * (sum over n
 * and the positions q of e of dy * x) + beta * dgain; dbias = alpha * (sum of dy) + beta * dbias.
 * Shapes    dy, x and dx as x of the forward; edges as there; dgain and dbias as gain.
 * Dtypes    dy, x and dx any float; gain, dgain and dbias f32 (f64 where dy is f64).
 * Strides   as the forward.
 * In place  dx = dy when types and strides agree.
 * Numerics  f32 accumulation (f64 for f64) in a fixed order. */
typedef struct bsk_conv_edge_bias_grad_params {
    size_t struct_size;
    bsk_tensor dy, x, edges, gain, dx, dgain, dbias;
} bsk_conv_edge_bias_grad_params;

typedef struct bsk_conv_edge_bias_grad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem dy, x, edges, gain, dx, dgain, dbias;
} bsk_conv_edge_bias_grad_args;

BSK_API bsk_status bsk_conv_edge_bias_grad_plan(const bsk_device *device,
                                                const bsk_conv_edge_bias_grad_params *params,
                                                const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_conv_edge_bias_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                               const bsk_conv_edge_bias_grad_args *args);

#ifdef __cplusplus
}
#endif
#endif
