#include "ops.h"

#include <math.h>
#include <stddef.h>

#include "check.h"

/* Planning, running and the place of the workspace, the same for all ops. */
#define OP_AS(op, type)                                                                            \
    enum { op##_workspace = offsetof(bsk_##type##_args, workspace) };                              \
    static bsk_plan *op##_make(const program *p, const bsk_##type##_params *params)                \
    {                                                                                              \
        bsk_plan *plan = NULL;                                                                     \
        CHECK(bsk_##op##_plan(p->machine->device, params, NULL, &plan));                           \
        return plan;                                                                               \
    }                                                                                              \
    static bsk_status op##_call(const bsk_plan *plan, bsk_queue *queue, const void *args)          \
    {                                                                                              \
        return bsk_##op##_run(plan, queue, args);                                                  \
    }
#define OP(op) OP_AS(op, op)
OP(binary)
OP(unary)
OP(cast)
OP(dropout)
OP(embedding)
OP(embedding_grad)
OP(matmul)
OP(matmul_dgrad)
OP(matmul_wgrad)
OP(bias_act)
OP(bias_act_grad)
OP(layer_norm)
OP(layer_norm_grad)
OP(attention)
OP(attention_grad)
OP(cross_entropy)
OP(lstm_gates)
OP(lstm_gates_grad)
OP(unary_grad)
OP(concrete_gate)
OP(concrete_gate_grad)
OP(concrete_gate_infer)
OP(global_norm)
OP(adam)
OP(loss_scale)
OP(ema)
OP(block_l2_decay)
OP(block_norm)
OP_AS(prune_sparsity, prune)
OP_AS(prune_threshold, prune)
OP(block_gather)

/* Plans `params` and appends the call; gives the program's copy of the arguments. */
#define RECORD_SEEDED(p, op, params, arguments, at, number)                                        \
    program_add(                                                                                   \
        p,                                                                                         \
        &(op_call){op##_make(p, &(params)), op##_call, &(arguments), op##_workspace, at, number},  \
        sizeof(arguments))
#define RECORD(p, op, params, arguments) RECORD_SEEDED(p, op, params, arguments, 0, 0)

/* The description and the memory of one operand. */
#define OPERAND(name, t)                                                                           \
    do {                                                                                           \
        const tensor operand = (t);                                                                \
        params.name = operand.desc;                                                                \
        args.name = operand.mem;                                                                   \
    } while (0)

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

static void op_sigmoid_grad(program *p, double alpha, tensor dy, tensor x, tensor dx)
{
    bsk_unary_grad_params params = BSK_INIT(bsk_unary_grad_params);
    bsk_unary_grad_args args = BSK_INIT_ALPHA(bsk_unary_grad_args);
    params.kind = BSK_UNARY_SIGMOID;
    args.alpha = alpha;
    args.beta = 1;
    OPERAND(dy, dy);
    OPERAND(x, x);
    OPERAND(dx, dx);
    RECORD(p, unary_grad, params, args);
}

void op_gates(program *p, const block_gates *g, uint64_t stream)
{
    bsk_concrete_gate_params params = BSK_INIT(bsk_concrete_gate_params);
    bsk_concrete_gate_args args = BSK_INIT(bsk_concrete_gate_args);
    OPERAND(loga, g->loga);
    OPERAND(gate, g->value);
    OPERAND(concrete, g->concrete);
    RECORD_SEEDED(p, concrete_gate, params, args, offsetof(bsk_concrete_gate_args, seed), stream);
}

void op_gates_infer(program *p, tensor loga, tensor gate)
{
    bsk_concrete_gate_infer_params params = BSK_INIT(bsk_concrete_gate_infer_params);
    bsk_concrete_gate_infer_args args = BSK_INIT(bsk_concrete_gate_infer_args);
    OPERAND(loga, loga);
    OPERAND(gate, gate);
    RECORD(p, concrete_gate_infer, params, args);
}

/* From the gradient of the gates to that of loga, with that of the penalty: a gate is open with the
 * probability sigmoid(loga - temperature * log(-limit_a / limit_b)). */
static void op_gates_grad(program *p, const block_gates *g)
{
    bsk_concrete_gate_grad_params params = BSK_INIT(bsk_concrete_gate_grad_params);
    bsk_concrete_gate_grad_args args = BSK_INIT_ALPHA(bsk_concrete_gate_grad_args);
    args.beta = 1;
    OPERAND(dgate, g->dvalue);
    OPERAND(concrete, g->concrete);
    OPERAND(dloga, g->dloga);
    RECORD(p, concrete_gate_grad, params, args);
    if (g->penalty > 0) {
        const double shift = 2.0 / 3 * log(1.1 / 0.1); // of the op's defaults
        const tensor odds = program_tensor(p, g->value.desc), dy = program_tensor(p, odds.desc);
        op_add(p, g->loga, program_constant(p, odds.desc.dtype, shift), odds);
        op_add(p, program_tensor(p, odds.desc), g->scale, dy);
        op_sigmoid_grad(p, g->penalty / (double)tensor_size(&odds), dy, odds, g->dloga);
    }
}

void op_linear(program *p, const linear *l, bsk_act act, tensor x, tensor residual, tensor y)
{
    bsk_matmul_params params = BSK_INIT(bsk_matmul_params);
    bsk_matmul_args args = BSK_INIT_ALPHA(bsk_matmul_args);
    params.layout = l->layout;
    params.act = act;
    OPERAND(x, x);
    OPERAND(w, l->w);
    OPERAND(gate, l->gates.value);
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
    OPERAND(gate, l->gates.value);
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
    const int gated = l->gates.value.desc.dtype != BSK_NONE;
    if (gated) {
        params.gate_mode = BSK_GATE_SCALE;
        OPERAND(gate, l->gates.value);
        OPERAND(w, l->w);
        OPERAND(dgate, l->gates.dvalue);
        op_cast(p, program_tensor(p, l->gates.dvalue.desc), l->gates.dvalue); // zeros
    }
    RECORD(p, matmul_wgrad, params, args);
    if (gated)
        op_gates_grad(p, &l->gates);
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

void op_bias_grad(program *p, tensor dy, tensor dx, tensor dbias)
{
    op_bias_act_grad(p, BSK_ACT_NONE, dy, absent, absent, dx, dbias);
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
    bsk_lstm_gates_grad_args args = BSK_INIT_ALPHA(bsk_lstm_gates_grad_args);
    args.forget_bias = 1;
    OPERAND(dh, dh);
    OPERAND(c, cell->c);
    OPERAND(gates, cell->gates);
    OPERAND(dc_next, dc_next);
    OPERAND(dgates, dgates);
    OPERAND(dc, dc);
    RECORD(p, lstm_gates_grad, params, args);
}

void op_global_norm(program *p, double clip, tensor x, tensor norm, tensor norm_scale)
{
    bsk_global_norm_params params = BSK_INIT(bsk_global_norm_params);
    bsk_global_norm_args args = BSK_INIT(bsk_global_norm_args);
    args.clip = clip;
    params.x = x.desc;
    args.x = program_keep(p, &x.mem, sizeof x.mem);
    OPERAND(sum, program_tensor(p, norm.desc));
    OPERAND(norm, norm);
    OPERAND(norm_scale, norm_scale);
    RECORD(p, global_norm, params, args);
}

bsk_adam_args *op_adam(program *p, const adam *a)
{
    bsk_adam_params params = BSK_INIT(bsk_adam_params);
    bsk_adam_args args = BSK_INIT(bsk_adam_args);
    params.beta2 = a->beta2;
    args.weight_decay = a->weight_decay;
    args.step = 1;
    OPERAND(param, a->param);
    OPERAND(grad, a->grad);
    OPERAND(m, a->m);
    OPERAND(v, a->v);
    OPERAND(copy, a->copy);
    OPERAND(norm_scale, a->norm_scale);
    OPERAND(steps, a->steps);
    return RECORD(p, adam, params, args);
}

void op_loss_scale(program *p, double high, int interval, tensor scale, tensor norm,
                   tensor norm_scale, tensor good, tensor steps)
{
    bsk_loss_scale_params params = BSK_INIT(bsk_loss_scale_params);
    bsk_loss_scale_args args = BSK_INIT(bsk_loss_scale_args);
    params.high = high;
    params.interval = interval;
    OPERAND(scale, scale);
    if (norm.desc.dtype == BSK_F32) /* in f64 nothing is scaled */
        OPERAND(norm, norm);
    OPERAND(norm_scale, norm_scale);
    OPERAND(good, good);
    OPERAND(steps, steps);
    RECORD(p, loss_scale, params, args);
}

void op_ema(program *p, double decay, tensor param, tensor average)
{
    bsk_ema_params params = BSK_INIT(bsk_ema_params);
    bsk_ema_args args = BSK_INIT(bsk_ema_args);
    args.decay = decay;
    OPERAND(average, average);
    OPERAND(param, param);
    RECORD(p, ema, params, args);
}

bsk_block_l2_decay_args *op_block_decay(program *p, const bsk_layout *layout, tensor w)
{
    bsk_block_l2_decay_params params = BSK_INIT(bsk_block_l2_decay_params);
    bsk_block_l2_decay_args args = BSK_INIT(bsk_block_l2_decay_args);
    params.layout = layout;
    OPERAND(w, w);
    return RECORD(p, block_l2_decay, params, args);
}

void op_block_norm(program *p, const bsk_layout *layout, tensor w, tensor norm)
{
    bsk_block_norm_params params = BSK_INIT(bsk_block_norm_params);
    bsk_block_norm_args args = BSK_INIT(bsk_block_norm_args);
    params.layout = layout;
    params.type = BSK_NORM_L2;
    OPERAND(w, w);
    OPERAND(norm, norm);
    RECORD(p, block_norm, params, args);
}

void op_prune_sparsity(program *p, double drop, tensor norm, tensor gate)
{
    bsk_prune_params params = BSK_INIT(bsk_prune_params);
    bsk_prune_args args = BSK_INIT(bsk_prune_args);
    args.value = drop;
    OPERAND(norm, norm);
    OPERAND(gate, gate);
    RECORD(p, prune_sparsity, params, args);
}

void op_prune_threshold(program *p, double low, tensor norm, tensor gate)
{
    bsk_prune_params params = BSK_INIT(bsk_prune_params);
    bsk_prune_args args = BSK_INIT(bsk_prune_args);
    args.value = low;
    OPERAND(norm, norm);
    OPERAND(gate, gate);
    RECORD(p, prune_threshold, params, args);
}

void op_block_gather(program *p, tensor x, tensor index, tensor y)
{
    bsk_block_gather_params params = BSK_INIT(bsk_block_gather_params);
    bsk_block_gather_args args = BSK_INIT(bsk_block_gather_args);
    OPERAND(x, x);
    OPERAND(index, index);
    OPERAND(y, y);
    RECORD(p, block_gather, params, args);
}
