/* LSTM cells. Part of bsk; include <bsk/bsk.h>.
 * The rules at the top of matmul.h hold here too. */
#ifndef BSK_LSTM_H
#define BSK_LSTM_H

#include <bsk/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- lstm_gates: one step of an LSTM cell from its gates before activation -------------------
 * i = sigmoid(i), f = sigmoid(f + forget_bias), o = sigmoid(o), u = tanh(u), each after its share
 * of bias was added; c_next = f * c + i * u; h_next = o * tanh(c_next).
 * forget_bias is used as it is: 0 adds nothing, and no other default takes its place.
 * Shapes    c, c_next, h_next [N, K] (NC) or [K, N] (CN). The gates either merged, in the order i,
 *           u, f, o along the features: gates [N, 4K] or [4K, N]; or split: i, u, f and o, each as
 *           c. bias [4K] in the same order, optional for both.
 * Dtypes    any floats; bias f32 (f64 where c is f64).
 * Strides   the feature or the N axis of each tensor contiguous.
 * In place  c_next = c when types and strides agree.
 * Numerics  in f32 all but the reference may take a gate below 1.2e-38 as 0.
 * Source    openai/blocksparse LSTMGates, LSTMGates4 (bias for merged gates only there, forget_bias
 *           1 where none is given). */
typedef struct bsk_lstm_gates_params {
    size_t struct_size;
    bsk_axis axis;
    bsk_tensor c, c_next, h_next;
    bsk_tensor gates, i, u, f, o, bias; /* optional */
} bsk_lstm_gates_params;

typedef struct bsk_lstm_gates_args {
    size_t struct_size;
    double forget_bias;
    bsk_mem workspace;
    bsk_mem c, c_next, h_next;
    bsk_mem gates, i, u, f, o, bias;
} bsk_lstm_gates_args;

BSK_API bsk_status bsk_lstm_gates_plan(const bsk_device *device,
                                       const bsk_lstm_gates_params *params,
                                       const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_lstm_gates_run(const bsk_plan *plan, bsk_queue *queue,
                                      const bsk_lstm_gates_args *args);

/* lstm_gates_grad: from dh, the gradient of h_next, and dc_next, that of c_next (absent: 0), with
 * the activated gates: d = dh * o * (1 - tanh(c_next)^2) + dc_next; dc = d * f; and of the gates
 * before activation di = d * u * i (1 - i), du = d * i * (1 - u^2), df = d * c * f (1 - f), do_ =
 * dh * tanh(c_next) * o (1 - o). c_next is computed anew from c. Each output becomes alpha times
 * its value here + beta times what it was. bias_act_grad sums the bias gradient. forget_bias is that
 * of lstm_gates.
 * Shapes    as lstm_gates; the gradients of the gates are merged or split as the gates are. dc is
 *           optional.
 * Dtypes    any floats; bias f32 (f64 where dh is f64).
 * Strides   as lstm_gates.
 * In place  dc = dc_next, dgates = gates when types and strides agree. */
typedef struct bsk_lstm_gates_grad_params {
    size_t struct_size;
    bsk_axis axis;
    bsk_tensor dh, c;
    bsk_tensor dc_next, dc, gates, i, u, f, o, bias, dgates, di, du, df, do_; /* optional */
} bsk_lstm_gates_grad_params;

typedef struct bsk_lstm_gates_grad_args {
    size_t struct_size;
    double alpha, beta;
    double forget_bias;
    bsk_mem workspace;
    bsk_mem dh, c;
    bsk_mem dc_next, dc, gates, i, u, f, o, bias, dgates, di, du, df, do_;
} bsk_lstm_gates_grad_args;

BSK_API bsk_status bsk_lstm_gates_grad_plan(const bsk_device *device,
                                            const bsk_lstm_gates_grad_params *params,
                                            const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_lstm_gates_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                           const bsk_lstm_gates_grad_args *args);

/* --- split4: the four quarters of x along the features, y0 to y3 -----------------------------
 * Shapes    x [N, 4K] (NC) or [4K, N] (CN); y0 to y3 [N, K] or [K, N].
 * Dtypes    any floats.
 * Strides   the feature or the N axis of each tensor contiguous.
 * Gradient  concat4, and the reverse. */
typedef struct bsk_split4_params {
    size_t struct_size;
    bsk_axis axis;
    bsk_tensor x, y0, y1, y2, y3;
} bsk_split4_params;

typedef struct bsk_split4_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, y0, y1, y2, y3;
} bsk_split4_args;

BSK_API bsk_status bsk_split4_plan(const bsk_device *device, const bsk_split4_params *params,
                                   const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_split4_run(const bsk_plan *plan, bsk_queue *queue,
                                  const bsk_split4_args *args);

/* concat4: y = x0 to x3 side by side along the features. y [N, 4K] (NC) or [4K, N] (CN).
 * Strides as split4. */
typedef struct bsk_concat4_params {
    size_t struct_size;
    bsk_axis axis;
    bsk_tensor x0, x1, x2, x3, y;
} bsk_concat4_params;

typedef struct bsk_concat4_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x0, x1, x2, x3, y;
} bsk_concat4_args;

BSK_API bsk_status bsk_concat4_plan(const bsk_device *device, const bsk_concat4_params *params,
                                    const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_concat4_run(const bsk_plan *plan, bsk_queue *queue,
                                   const bsk_concat4_args *args);

#ifdef __cplusplus
}
#endif
#endif
