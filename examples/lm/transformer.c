/* A byte-level transformer, as in "Generating Long Sequences with Sparse Transformers":
 *
 *     x  = token + row position + column position        positions are t / stride and t % stride
 *     x += dropout(attention(norm(x) Wqkv) Wo)           block-sparse attention
 *     x += dropout(gelu(norm(x) W1 + b1) W2 + b2)        block-sparse W1 and W2
 *     logits = norm(x) W
 *
 * x and its gradient keep the type of the masters; products have that of the model. */
#include <math.h>
#include <string.h>

#include "check.h"
#include "model.h"

/* Parameters in the order of their declaration: first the shared ones, then those of each layer. */
enum { TOKEN, PLACE_ROW, PLACE_COL, FINAL_GAIN, FINAL_BIAS, HEAD, SHARED };
enum {
    NORM1_GAIN,
    NORM1_BIAS,
    QKV,
    QKV_BIAS,
    OUT,
    OUT_BIAS,
    NORM2_GAIN,
    NORM2_BIAS,
    UP,
    UP_BIAS,
    DOWN,
    DOWN_BIAS,
    EACH
};

static int layer_param(int layer, int which)
{
    return SHARED + layer * EACH + which;
}

static int declare(model *m)
{
    const config *c = &m->c;
    param_store *p = &m->p;
    if (c->width % c->heads) {
        fprintf(stderr, "lm: --width must be a multiple of --heads\n");
        return -1;
    }
    m->group_count = layout_attention(m->machine->context, (pattern)c->pattern, c->heads, c->time,
                                      c->attention_block, c->stride, (uint64_t)c->seed, m->groups);
    if (m->group_count < 0) {
        m->group_count = 0;
        return -1;
    }
    const double in = 1 / sqrt(c->width);
    const double deep = 1 / sqrt(2.0 * c->layers); // branches add up along the layers
    const double up = in / sqrt(c->density), down = 1 / sqrt(c->hidden * c->density);
    params_add_dense(p, TEXT_CODES, c->width, 0.05);
    params_add_dense(p, (c->time + c->stride - 1) / c->stride, c->width, 0.05);
    params_add_dense(p, c->stride, c->width, 0.05);
    params_add_vector(p, c->width, 1);
    params_add_vector(p, c->width, 0);

    const struct {
        int64_t rows, cols;
        double density, init;
    } matrices[] = {{c->width, 3 * (int64_t)c->width, 1, in},
                    {c->width, c->width, 1, in * deep},
                    {c->width, c->hidden, c->density, up},
                    {c->hidden, c->width, c->density, down * deep}};
    enum { MATRICES = sizeof matrices / sizeof *matrices };
    bsk_layout *head = model_layout(m, c->width, 256, 1);
    if (!head)
        return -1;
    params_add_sparse(p, head, 0.5 * in);
    for (int layer = 0; layer < c->layers; layer++)
        for (int i = 0; i < MATRICES; i++) {
            if (i % 2 == 0) {
                params_add_vector(p, c->width, 1);
                params_add_vector(p, c->width, 0);
            }
            bsk_layout *layout =
                model_layout(m, matrices[i].rows, matrices[i].cols, matrices[i].density);
            if (!layout)
                return -1;
            params_add_sparse(p, layout, matrices[i].init);
            params_add_vector(p, matrices[i].cols, 0);
        }
    return 0;
}

/* What the backward of a layer needs of its forward. */
typedef struct layer {
    layer_norm norm1, norm2;
    linear qkv, out, up, down;
    tensor h1, h2; /* normalised */
    tensor qkv_values, o;
    attention groups[MAX_GROUPS];
    tensor u, a; /* before and after the activation */
    uint64_t out_stream, down_stream;
} layer;

typedef struct network {
    uint64_t input_stream;
    tensor rows, cols; /* positions */
    layer_norm final;
    linear head;
    tensor h;
    layer layers[];
} network;

static double keep(const model *m, const pass *x)
{
    return x->train ? 1 - m->c.dropout : 1;
}

static layer_norm norm_make(const model *m, pass *x, int gain, tensor in)
{
    const param_set set = x->train ? SET_TRAIN : SET_EVAL;
    layer_norm n = {.segments = 1,
                    .gain = param_value(&m->p, gain, set),
                    .bias = param_value(&m->p, gain + 1, set),
                    .dgain = param_grad(&m->p, gain),
                    .dbias = param_grad(&m->p, gain + 1),
                    .x = in};
    if (x->train) {
        n.mean = pass_exact(m, x, 1, x->labels_count);
        n.rstd = pass_exact(m, x, 1, x->labels_count);
    }
    return n;
}

/* The heads [first, first + heads) of [batch, time, cols], whose part begins at column `at`. */
static tensor heads_view(const model *m, const pass *x, tensor t, int64_t at, int first, int heads)
{
    const int64_t cols = t.desc.dims[1], time = m->c.time, d = m->c.width / m->c.heads;
    const bsk_tensor view = {
        BSK_NONE, 4, {x->rows, heads, time, d, 0}, {time * cols, d, cols, 1, 0}};
    return tensor_view(t, (size_t)(at + first * d), view);
}

/* y = x + dropout(a W + b). */
static void branch(const model *m, pass *x, const linear *l, tensor a, tensor in, tensor y,
                   uint64_t *stream)
{
    program *p = &x->program;
    if (keep(m, x) == 1) {
        op_linear(p, l, BSK_ACT_NONE, a, in, y);
        return;
    }
    const tensor t = pass_activation(m, x, in.desc.dims[0], in.desc.dims[1]);
    *stream = ++x->streams;
    op_linear(p, l, BSK_ACT_NONE, a, absent, t);
    op_dropout(p, keep(m, x), *stream, t, t);
    op_add(p, in, t, y);
}

static void attention_forward(const model *m, pass *x, layer *l)
{
    const int64_t d = m->c.width;
    int first = 0;
    for (int g = 0; g < m->group_count; g++) {
        const head_group *group = &m->groups[g];
        const bsk_tensor by_row = bsk_tensor_3d(m->p.master, x->rows, group->heads, m->c.time);
        attention *a = &l->groups[g];
        *a = (attention){.layout = group->layout,
                         .interleave = group->interleave,
                         .window = group->window,
                         .keep = keep(m, x),
                         .stream = ++x->streams};
        a->q = heads_view(m, x, l->qkv_values, 0, first, group->heads);
        a->k = heads_view(m, x, l->qkv_values, d, first, group->heads);
        a->v = heads_view(m, x, l->qkv_values, 2 * d, first, group->heads);
        a->o = heads_view(m, x, l->o, 0, first, group->heads);
        if (x->train)
            a->lse = program_tensor(&x->program, by_row);
        op_attention(&x->program, a);
        first += group->heads;
    }
}

/* Memory of what the backward needs. */
static void layer_allocate(const model *m, pass *x, layer *l)
{
    const int64_t n = x->labels_count, d = m->c.width;
    l->h1 = pass_activation(m, x, n, d);
    l->qkv_values = pass_activation(m, x, n, 3 * d);
    l->o = pass_activation(m, x, n, d);
    l->h2 = pass_activation(m, x, n, d);
    if (x->train)
        l->u = pass_activation(m, x, n, m->c.hidden);
    l->a = pass_activation(m, x, n, m->c.hidden);
}

/* Gives the layer's output. Without a backward it takes the place of the input. */
static tensor layer_forward(const model *m, pass *x, int number, layer *l, tensor in)
{
    const int64_t n = x->labels_count, d = m->c.width;
    program *p = &x->program;
    const int base = layer_param(number, 0);
    l->norm1 = norm_make(m, x, base + NORM1_GAIN, in);
    l->qkv = model_linear(m, x, base + QKV, base + QKV_BIAS);
    l->out = model_linear(m, x, base + OUT, base + OUT_BIAS);
    op_layer_norm(p, &l->norm1, l->h1);
    op_linear(p, &l->qkv, BSK_ACT_NONE, l->h1, absent, l->qkv_values);
    attention_forward(m, x, l);
    const tensor middle = x->train ? pass_exact(m, x, n, d) : in;
    branch(m, x, &l->out, l->o, in, middle, &l->out_stream);

    l->norm2 = norm_make(m, x, base + NORM2_GAIN, middle);
    l->up = model_linear(m, x, base + UP, base + UP_BIAS);
    l->down = model_linear(m, x, base + DOWN, base + DOWN_BIAS);
    op_layer_norm(p, &l->norm2, l->h2);
    if (x->train) {
        linear up = l->up;
        up.bias = absent; // added with the activation, whose gradient needs the sum
        op_linear(p, &up, BSK_ACT_NONE, l->h2, absent, l->u);
        op_bias_act(p, BSK_ACT_GELU, l->u, l->up.bias, l->a);
    } else {
        op_linear(p, &l->up, BSK_ACT_GELU, l->h2, absent, l->a);
    }
    const tensor out = x->train ? pass_exact(m, x, n, d) : in;
    branch(m, x, &l->down, l->a, middle, out, &l->down_stream);
    return out;
}

static tensor positions(const model *m, pass *x, int column)
{
    int32_t *host = check_alloc((size_t)x->labels_count * sizeof *host);
    for (int64_t i = 0; i < x->labels_count; i++) {
        const int64_t time = i % m->c.time;
        host[i] = (int32_t)(column ? time % m->c.stride : time / m->c.stride);
    }
    const tensor t = program_data(&x->program, bsk_tensor_1d(BSK_I32, x->labels_count), host);
    free(host);
    return t;
}

static void record_forward(model *m, pass *x)
{
    program *p = &x->program;
    const int64_t n = x->labels_count, d = m->c.width;
    const param_set set = x->train ? SET_TRAIN : SET_EVAL;
    const size_t bytes = sizeof(network) + (size_t)m->c.layers * sizeof(layer);
    network *net = x->detail = check_alloc(bytes);
    memset(net, 0, bytes);

    net->rows = positions(m, x, 0);
    net->cols = positions(m, x, 1);
    tensor in = pass_exact(m, x, n, d);
    const tensor place = pass_exact(m, x, n, d);
    op_embedding(p, param_value(&m->p, TOKEN, set), x->input, in);
    op_embedding(p, param_value(&m->p, PLACE_ROW, set), net->rows, place);
    op_add(p, in, place, in);
    op_embedding(p, param_value(&m->p, PLACE_COL, set), net->cols, place);
    op_add(p, in, place, in);
    net->input_stream = ++x->streams;
    if (keep(m, x) < 1)
        op_dropout(p, keep(m, x), net->input_stream, in, in);

    for (int i = 0; i < m->c.layers; i++) {
        if (x->train || i == 0)
            layer_allocate(m, x, &net->layers[i]);
        else
            net->layers[i] = net->layers[0];
        in = layer_forward(m, x, i, &net->layers[i], in);
    }
    net->final = norm_make(m, x, FINAL_GAIN, in);
    net->head = model_linear(m, x, HEAD, -1);
    net->h = pass_activation(m, x, n, d);
    op_layer_norm(p, &net->final, net->h);
    op_linear(p, &net->head, BSK_ACT_NONE, net->h, absent, x->logits);
}

/* Memory that all layers' gradients share. */
typedef struct scratch {
    tensor dx;     /* of the residual stream */
    tensor branch; /* the same for a branch, where that is not dx itself */
    tensor part, narrow, wide, qkv;
} scratch;

/* The gradient of W alone: the fastest products of GPUs have no sums beside them, so that those of
 * biases are left to passes that read all of the gradient anyway, where there are any. */
static void weight_grad(pass *x, const linear *l, tensor in, tensor dy)
{
    linear only = *l;
    only.dbias = absent;
    op_linear_wgrad(&x->program, &only, 1, &in, &dy);
}

/* The gradient of a W + b, and so that of b, from that of x + dropout(a W + b). */
static tensor branch_grad(const model *m, pass *x, const scratch *s, const linear *l,
                          uint64_t stream)
{
    program *p = &x->program;
    if (keep(m, x) < 1) {
        op_dropout(p, keep(m, x), stream, s->dx, s->branch);
        op_bias_grad(p, s->branch, absent, l->dbias);
        return s->branch;
    }
    op_bias_grad(p, s->dx, s->branch, l->dbias);
    return s->branch.desc.dtype ? s->branch : s->dx;
}

/* s->dx += the gradient through the norm of dy. */
static void norm_backward(pass *x, const layer_norm *n, const scratch *s)
{
    op_layer_norm_grad(&x->program, n, s->narrow, s->part);
    op_add(&x->program, s->dx, s->part, s->dx);
}

static void attention_backward(const model *m, pass *x, const layer *l, const scratch *s)
{
    int first = 0;
    for (int g = 0; g < m->group_count; g++) {
        const int heads = m->groups[g].heads;
        tensor grad[3];
        for (int i = 0; i < 3; i++)
            grad[i] = heads_view(m, x, s->qkv, (int64_t)i * m->c.width, first, heads);
        op_attention_grad(&x->program, &l->groups[g], heads_view(m, x, s->narrow, 0, first, heads),
                          grad[0], grad[1], grad[2]);
        first += heads;
    }
}

static void layer_backward(const model *m, pass *x, const layer *l, const scratch *s)
{
    program *p = &x->program;
    tensor dy = branch_grad(m, x, s, &l->down, l->down_stream);
    weight_grad(x, &l->down, l->a, dy);
    op_linear_dgrad(p, &l->down, dy, 0, s->wide);
    op_bias_act_grad(p, BSK_ACT_GELU, s->wide, l->u, l->up.bias, s->wide, l->up.dbias);
    weight_grad(x, &l->up, l->h2, s->wide);
    op_linear_dgrad(p, &l->up, s->wide, 0, s->narrow);
    norm_backward(x, &l->norm2, s);

    dy = branch_grad(m, x, s, &l->out, l->out_stream);
    weight_grad(x, &l->out, l->o, dy);
    op_linear_dgrad(p, &l->out, dy, 0, s->narrow);
    attention_backward(m, x, l, s);
    op_bias_grad(p, s->qkv, absent, l->qkv.dbias);
    weight_grad(x, &l->qkv, l->h1, s->qkv);
    op_linear_dgrad(p, &l->qkv, s->qkv, 0, s->narrow);
    norm_backward(x, &l->norm1, s);
}

static void record_backward(model *m, pass *x)
{
    program *p = &x->program;
    const int64_t n = x->labels_count, d = m->c.width;
    const network *net = x->detail;
    const int same = keep(m, x) == 1 && m->p.compute == m->p.master;
    const scratch s = {.dx = pass_exact(m, x, n, d),
                       .branch = same ? absent : pass_activation(m, x, n, d),
                       .part = pass_exact(m, x, n, d),
                       .narrow = pass_activation(m, x, n, d),
                       .wide = pass_activation(m, x, n, m->c.hidden),
                       .qkv = pass_activation(m, x, n, 3 * d)};
    weight_grad(x, &net->head, net->h, x->dlogits);
    op_linear_dgrad(p, &net->head, x->dlogits, 0, s.narrow);
    op_layer_norm_grad(p, &net->final, s.narrow, s.dx);
    for (int i = m->c.layers - 1; i >= 0; i--)
        layer_backward(m, x, &net->layers[i], &s);
    if (keep(m, x) < 1)
        op_dropout(p, keep(m, x), net->input_stream, s.dx, s.dx);
    op_embedding_grad(p, s.dx, x->input, param_grad(&m->p, TOKEN));
    op_embedding_grad(p, s.dx, net->rows, param_grad(&m->p, PLACE_ROW));
    op_embedding_grad(p, s.dx, net->cols, param_grad(&m->p, PLACE_COL));
}

static int row_size(const config *c)
{
    return c->time;
}

static void fill(const config *c, const uint16_t *code, int32_t *input)
{
    for (int t = 0; t < c->time; t++)
        input[t] = code[t - 1];
}

const model_kind transformer_kind = {"transformer",   0,        declare,  record_forward,
                                     record_backward, row_size, row_size, fill};
