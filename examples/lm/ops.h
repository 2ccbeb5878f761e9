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

/* A dense tensor through a block-sparse layer. */
typedef struct linear {
    const bsk_layout *layout;
    tensor w, bias, dw, dbias; /* biases may be absent */
} linear;

void op_linear(program *p, const linear *l, bsk_act act, tensor x, tensor residual, tensor y);
/* dx = dy W^T + beta * dx. */
void op_linear_dgrad(program *p, const linear *l, tensor dy, double beta, tensor dx);
/* The gradients of W and of the bias, of all `pairs` in one launch. */
void op_linear_wgrad(program *p, const linear *l, int pairs, const tensor *x, const tensor *dy);

void op_bias_act(program *p, bsk_act act, tensor x, tensor bias, tensor y);
void op_bias_act_grad(program *p, bsk_act act, tensor dy, tensor x, tensor bias, tensor dx,
                      tensor dbias);

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

#endif
