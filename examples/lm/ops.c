#include "ops.h"

#include <stddef.h>

#include "check.h"

/* One type of function for the runs of all ops. */
#define RUN(op)                                                                                    \
    static bsk_status op##_call(const bsk_plan *plan, bsk_queue *queue, const void *args)          \
    {                                                                                              \
        return bsk_##op##_run(plan, queue, args);                                                  \
    }
RUN(binary)
RUN(unary)
RUN(cast)
RUN(dropout)
RUN(embedding)
RUN(embedding_grad)
RUN(matmul)
RUN(matmul_dgrad)
RUN(matmul_wgrad)
RUN(bias_act)
RUN(bias_act_grad)
RUN(layer_norm)
RUN(layer_norm_grad)
RUN(attention)
RUN(attention_grad)
RUN(cross_entropy)
RUN(lstm_gates)
RUN(lstm_gates_grad)

/* Plans `params` and appends the call. */
#define RECORD_SEEDED(p, op, params, arguments, at, number)                                        \
    do {                                                                                           \
        bsk_plan *plan = NULL;                                                                     \
        CHECK(bsk_##op##_plan((p)->machine->device, &(params), NULL, &plan));                      \
        const op_call c = {plan, op##_call, &(arguments), offsetof(bsk_##op##_args, workspace),    \
                           at,   number};                                                          \
        program_add(p, &c, sizeof(arguments));                                                     \
    } while (0)
#define RECORD(p, op, params, arguments) RECORD_SEEDED(p, op, params, arguments, 0, 0)

/* The description and the memory of one operand. */
#define OPERAND(name, t) (params.name = (t).desc, args.name = (t).mem)

static void op_binary(program *p, bsk_binary_kind kind, tensor x, tensor y, tensor z)
{
    bsk_binary_params params = BSK_INIT(bsk_binary_params);
    bsk_binary_args args = BSK_INIT(bsk_binary_args);
    params.kind = kind;
    OPERAND(x, x);
    OPERAND(y, y);
    OPERAND(z, z);
    RECORD(p, binary, params, args);
}

void op_add(program *p, tensor x, tensor y, tensor z)
{
    op_binary(p, BSK_BINARY_ADD, x, y, z);
}

void op_multiply(program *p, tensor x, tensor y, tensor z)
{
    op_binary(p, BSK_BINARY_MUL, x, y, z);
}

void op_reciprocal(program *p, tensor x, tensor y)
{
    bsk_unary_params params = BSK_INIT(bsk_unary_params);
    bsk_unary_args args = BSK_INIT(bsk_unary_args);
    params.kind = BSK_UNARY_RCP;
    OPERAND(x, x);
    OPERAND(y, y);
    RECORD(p, unary, params, args);
}

void op_cast(program *p, tensor x, tensor y)
{
    bsk_cast_params params = BSK_INIT(bsk_cast_params);
    bsk_cast_args args = BSK_INIT(bsk_cast_args);
    OPERAND(x, x);
    OPERAND(y, y);
    RECORD(p, cast, params, args);
}

void op_dropout(program *p, double keep, uint64_t stream, tensor x, tensor y)
{
    bsk_dropout_params params = BSK_INIT(bsk_dropout_params);
    bsk_dropout_args args = BSK_INIT(bsk_dropout_args);
    OPERAND(x, x);
    OPERAND(y, y);
    args.keep = keep;
    RECORD_SEEDED(p, dropout, params, args, offsetof(bsk_dropout_args, seed), stream);
}

void op_embedding(program *p, tensor table, tensor index, tensor y)
{
    bsk_embedding_params params = BSK_INIT(bsk_embedding_params);
    bsk_embedding_args args = BSK_INIT(bsk_embedding_args);
    OPERAND(table, table);
    OPERAND(index, index);
    OPERAND(y, y);
    RECORD(p, embedding, params, args);
}

void op_embedding_grad(program *p, tensor dy, tensor index, tensor dtable)
{
    bsk_embedding_grad_params params = BSK_INIT(bsk_embedding_grad_params);
    bsk_embedding_grad_args args = BSK_INIT_ALPHA(bsk_embedding_grad_args);
    args.beta = 1;
    OPERAND(dy, dy);
    OPERAND(index, index);
    OPERAND(dtable, dtable);
    RECORD(p, embedding_grad, params, args);
}

void op_linear(program *p, const linear *l, bsk_act act, tensor x, tensor residual, tensor y)
{
    bsk_matmul_params params = BSK_INIT(bsk_matmul_params);
    bsk_matmul_args args = BSK_INIT_ALPHA(bsk_matmul_args);
    params.layout = l->layout;
    params.act = act;
    OPERAND(x, x);
    OPERAND(w, l->w);
    OPERAND(bias, l->bias);
    OPERAND(residual, residual);
    OPERAND(y, y);
    RECORD(p, matmul, params, args);
}

void op_linear_dgrad(program *p, const linear *l, tensor dy, double beta, tensor dx)
{
    bsk_matmul_dgrad_params params = BSK_INIT(bsk_matmul_dgrad_params);
    bsk_matmul_dgrad_args args = BSK_INIT_ALPHA(bsk_matmul_dgrad_args);
    params.layout = l->layout;
    args.beta = beta;
    OPERAND(dy, dy);
    OPERAND(w, l->w);
    OPERAND(dx, dx);
    RECORD(p, matmul_dgrad, params, args);
}

void op_linear_wgrad(program *p, const linear *l, int pairs, const tensor *x, const tensor *dy)
{
    bsk_matmul_wgrad_params params = BSK_INIT(bsk_matmul_wgrad_params);
    bsk_matmul_wgrad_args args = BSK_INIT_ALPHA(bsk_matmul_wgrad_args);
    bsk_mem *list = check_alloc(2 * (size_t)pairs * sizeof *list);
    for (int i = 0; i < pairs; i++) {
        list[i] = x[i].mem;
        list[pairs + i] = dy[i].mem;
    }
    const bsk_mem *kept = program_keep(p, list, 2 * (size_t)pairs * sizeof *list);
    free(list);
    params.layout = l->layout;
    params.pairs = pairs;
    params.x = x[0].desc;
    params.dy = dy[0].desc;
    args.x = kept;
    args.dy = kept + pairs;
    args.beta = 1;
    OPERAND(dw, l->dw);
    OPERAND(dbias, l->dbias);
    RECORD(p, matmul_wgrad, params, args);
}

void op_bias_act(program *p, bsk_act act, tensor x, tensor bias, tensor y)
{
    bsk_bias_act_params params = BSK_INIT(bsk_bias_act_params);
    bsk_bias_act_args args = BSK_INIT(bsk_bias_act_args);
    params.act = act;
    OPERAND(x, x);
    OPERAND(bias, bias);
    OPERAND(y, y);
    RECORD(p, bias_act, params, args);
}

void op_bias_act_grad(program *p, bsk_act act, tensor dy, tensor x, tensor bias, tensor dx,
                      tensor dbias)
{
    bsk_bias_act_grad_params params = BSK_INIT(bsk_bias_act_grad_params);
    bsk_bias_act_grad_args args = BSK_INIT_ALPHA(bsk_bias_act_grad_args);
    params.act = act;
    args.beta = 1;
    OPERAND(dy, dy);
    OPERAND(x, x);
    OPERAND(bias, bias);
    OPERAND(dx, dx);
    OPERAND(dbias, dbias);
    RECORD(p, bias_act_grad, params, args);
}

void op_layer_norm(program *p, const layer_norm *n, tensor y)
{
    bsk_layer_norm_params params = BSK_INIT(bsk_layer_norm_params);
    bsk_layer_norm_args args = BSK_INIT(bsk_layer_norm_args);
    params.segments = n->segments;
    OPERAND(x, n->x);
    OPERAND(gain, n->gain);
    OPERAND(bias, n->bias);
    OPERAND(mean, n->mean);
    OPERAND(rstd, n->rstd);
    OPERAND(y, y);
    RECORD(p, layer_norm, params, args);
}

void op_layer_norm_grad(program *p, const layer_norm *n, tensor dy, tensor dx)
{
    bsk_layer_norm_grad_params params = BSK_INIT(bsk_layer_norm_grad_params);
    bsk_layer_norm_grad_args args = BSK_INIT_ALPHA(bsk_layer_norm_grad_args);
    params.segments = n->segments;
    args.beta = 1;
    OPERAND(dy, dy);
    OPERAND(x, n->x);
    OPERAND(mean, n->mean);
    OPERAND(rstd, n->rstd);
    OPERAND(gain, n->gain);
    OPERAND(dgain, n->dgain);
    OPERAND(dbias, n->dbias);
    OPERAND(dx, dx);
    RECORD(p, layer_norm_grad, params, args);
}

/* What the attention and its gradient have in common. */
#define ATTENTION_SET(a)                                                                           \
    do {                                                                                           \
        params.layout = (a)->layout;                                                               \
        params.interleave = (a)->interleave;                                                       \
        params.causal = 1;                                                                         \
        params.window = (a)->window;                                                               \
        params.dropout = (a)->keep < 1;                                                            \
        args.keep = (a)->keep;                                                                     \
        OPERAND(q, (a)->q);                                                                        \
        OPERAND(k, (a)->k);                                                                        \
        OPERAND(v, (a)->v);                                                                        \
        OPERAND(o, (a)->o);                                                                        \
        OPERAND(lse, (a)->lse);                                                                    \
    } while (0)

void op_attention(program *p, const attention *a)
{
    bsk_attention_params params = BSK_INIT(bsk_attention_params);
    bsk_attention_args args = BSK_INIT(bsk_attention_args);
    ATTENTION_SET(a);
    RECORD_SEEDED(p, attention, params, args, offsetof(bsk_attention_args, seed), a->stream);
}

void op_attention_grad(program *p, const attention *a, tensor dout, tensor dq, tensor dk, tensor dv)
{
    bsk_attention_grad_params params = BSK_INIT(bsk_attention_grad_params);
    bsk_attention_grad_args args = BSK_INIT_ALPHA(bsk_attention_grad_args);
    ATTENTION_SET(a);
    OPERAND(dout, dout);
    OPERAND(dq, dq);
    OPERAND(dk, dk);
    OPERAND(dv, dv);
    RECORD_SEEDED(p, attention_grad, params, args, offsetof(bsk_attention_grad_args, seed),
                  a->stream);
}

void op_cross_entropy(program *p, double alpha, tensor logits, tensor labels, tensor dloss,
                      tensor loss, tensor dlogits)
{
    bsk_cross_entropy_params params = BSK_INIT(bsk_cross_entropy_params);
    bsk_cross_entropy_args args = BSK_INIT_ALPHA(bsk_cross_entropy_args);
    args.alpha = alpha;
    OPERAND(logits, logits);
    OPERAND(labels, labels);
    OPERAND(loss, loss);
    OPERAND(dlogits, dlogits);
    OPERAND(dloss, dloss);
    RECORD(p, cross_entropy, params, args);
}

void op_lstm_gates(program *p, const lstm_cell *cell)
{
    bsk_lstm_gates_params params = BSK_INIT(bsk_lstm_gates_params);
    bsk_lstm_gates_args args = BSK_INIT(bsk_lstm_gates_args);
    args.forget_bias = 1;
    OPERAND(c, cell->c);
    OPERAND(gates, cell->gates);
    OPERAND(c_next, cell->c_next);
    OPERAND(h_next, cell->h_next);
    RECORD(p, lstm_gates, params, args);
}

void op_lstm_gates_grad(program *p, const lstm_cell *cell, tensor dh, tensor dc_next, tensor dgates,
                        tensor dc)
{
    bsk_lstm_gates_grad_params params = BSK_INIT(bsk_lstm_gates_grad_params);
    bsk_lstm_gates_grad_args args = BSK_INIT(bsk_lstm_gates_grad_args);
    args.forget_bias = 1;
    OPERAND(dh, dh);
    OPERAND(c, cell->c);
    OPERAND(gates, cell->gates);
    OPERAND(dc_next, dc_next);
    OPERAND(dgates, dgates);
    OPERAND(dc, dc);
    RECORD(p, lstm_gates_grad, params, args);
}
