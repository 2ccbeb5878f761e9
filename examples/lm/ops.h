/* The ops of the models, each appended to a program with its shapes and its memory. Gradients of
 * parameters are added to what is there. Tensors that an op does not need may be `absent`. */
#ifndef OPS_H
#define OPS_H

#include "program.h"

static const tensor absent = {{BSK_NONE, 0, {0}, {0}}, {BSK_MEM_NULL, NULL, 0, 0}};

void op_add(program *p, tensor x, tensor y, tensor z);
void op_multiply(program *p, tensor x, tensor y, tensor z);
void op_reciprocal(program *p, tensor x, tensor y);
void op_cast(program *p, tensor x, tensor y);
void op_dropout(program *p, double keep, uint64_t stream, tensor x, tensor y);
void op_embedding(program *p, tensor table, tensor index, tensor y);
void op_embedding_grad(program *p, tensor dy, tensor index, tensor dtable);

/* Hard-concrete gates, one for each block of a layer: drawn anew by each forward of the training, and
 * fixed in an evaluation. */
typedef struct block_gates {
    tensor loga, value;
    tensor dloga, dvalue, concrete; /* of the training */
    tensor scale;                   /* of the loss */
    double penalty;                 /* its gradient: of the expected share of open gates */
} block_gates;

/* With `stream`, or what an evaluation takes. */
void op_gates(program *p, const block_gates *g, uint64_t stream);
void op_gates_infer(program *p, tensor loga, tensor gate);

/* A dense tensor through a block-sparse layer. */
typedef struct linear {
    const bsk_layout *layout;
    tensor w, bias, dw, dbias; /* biases may be absent */
    block_gates gates;         /* value absent: none */
} linear;

void op_linear(program *p, const linear *l, bsk_act act, tensor x, tensor residual, tensor y);
/* dx = dy W^T + beta * dx. */
void op_linear_dgrad(program *p, const linear *l, tensor dy, double beta, tensor dx);
/* The gradients of W, of the bias and of the gates, of all `pairs` in one launch. */
void op_linear_wgrad(program *p, const linear *l, int pairs, const tensor *x, const tensor *dy);

void op_bias_act(program *p, bsk_act act, tensor x, tensor bias, tensor y);
void op_bias_act_grad(program *p, bsk_act act, tensor dy, tensor x, tensor bias, tensor dx,
                      tensor dbias);
/* Sums dy, and where dx is given copies it, in dx's type. */
void op_bias_grad(program *p, tensor dy, tensor dx, tensor dbias);

typedef struct layer_norm {
    int64_t segments;
    tensor gain, bias, dgain, dbias;
    tensor x, mean, rstd; /* of the forward */
} layer_norm;

void op_layer_norm(program *p, const layer_norm *n, tensor y);
void op_layer_norm_grad(program *p, const layer_norm *n, tensor dy, tensor dx);

typedef struct attention {
    const bsk_layout *layout;
    int32_t interleave;
    int64_t window;
    double keep;     /* of dropout; 1: none */
    uint64_t stream; /* of dropout */
    tensor q, k, v, o, lse;
} attention;

void op_attention(program *p, const attention *a);
void op_attention_grad(program *p, const attention *a, tensor dout, tensor dq, tensor dk,
                       tensor dv);

/* The loss of each row; where dlogits is given, dlogits = alpha * dloss * its gradient. */
void op_cross_entropy(program *p, double alpha, tensor logits, tensor labels, tensor dloss,
                      tensor loss, tensor dlogits);

typedef struct lstm_cell {
    tensor c, gates, c_next, h_next;
} lstm_cell;

void op_lstm_gates(program *p, const lstm_cell *cell);
void op_lstm_gates_grad(program *p, const lstm_cell *cell, tensor dh, tensor dc_next, tensor dgates,
                        tensor dc);

/* --- The optimizer. Args that are returned may be changed between runs. --- */

void op_global_norm(program *p, double clip, tensor x, tensor norm, tensor norm_scale);

typedef struct adam {
    double beta2, weight_decay;
    tensor param, grad, m, v, copy, norm_scale, steps; /* copy may be absent */
} adam;

bsk_adam_args *op_adam(program *p, const adam *a);
/* The scale stays in [1, high]. */
void op_loss_scale(program *p, double high, int interval, tensor scale, tensor norm,
                   tensor norm_scale, tensor good, tensor steps);
void op_ema(program *p, double decay, tensor param, tensor average);

/* --- Blocks of weights --- */

/* Group lasso: shortens each block's norm by args.rate. */
bsk_block_l2_decay_args *op_block_decay(program *p, const bsk_layout *layout, tensor w);
void op_block_norm(program *p, const bsk_layout *layout, tensor w, tensor norm);
/* gate = 1 for the largest norms but the share `drop`; and where the norm is at least `low`. */
void op_prune_sparsity(program *p, double drop, tensor norm, tensor gate);
void op_prune_threshold(program *p, double low, tensor norm, tensor gate);
/* y[i] = x[index[i]], zeros where that is negative. */
void op_block_gather(program *p, tensor x, tensor index, tensor y);

#endif
