/* A byte-level LSTM with block-sparse gates, after the one of openai/blocksparse:
 *
 *     g_t = x_t Wx + h_{t-1} Wh                          block-sparse, four gates side by side
 *     c_t, h_t = cell(norm of each gate of g_t, c_{t-1})
 *     x of the next layer = dropout(h); logits = h W + b
 *
 * A batch holds `time` steps of each row; its first state is the last one of the batch before, and
 * no gradient goes back beyond it. Tensors hold [time, rows, features]. */
#include <math.h>
#include <string.h>

#include "check.h"
#include "model.h"

enum { TOKEN, HEAD, HEAD_BIAS, SHARED };
enum { WX, WH, GAIN, BIAS, EACH };
enum { GATES = 4, MAX_LAYERS = 8 };

static int declare(model *m)
{
    const config *c = &m->c;
    param_store *p = &m->p;
    if (c->layers > MAX_LAYERS) {
        fprintf(stderr, "lm: an lstm has at most %d layers\n", MAX_LAYERS);
        return -1;
    }
    const int64_t k = c->hidden;
    const double scale = 1 / sqrt((double)k * c->density);
    params_add_dense(p, TEXT_CODES, c->width, 0.3);
    bsk_layout *head = model_layout(m, k, 256, 1);
    if (!head)
        return -1;
    params_add_sparse(p, head, 0.5 / sqrt((double)k));
    params_add_vector(p, 256, 0);
    for (int i = 0; i < c->layers; i++) {
        bsk_layout *wx = model_layout(m, i ? k : c->width, GATES * k, c->density);
        if (!wx)
            return -1;
        params_add_sparse(p, wx, scale);
        bsk_layout *wh = model_layout(m, k, GATES * k, c->density);
        if (!wh)
            return -1;
        params_add_sparse(p, wh, scale);
        params_add_vector(p, GATES * k, 1);
        params_add_vector(p, GATES * k, 0);
    }
    return 0;
}

typedef struct layer {
    linear wx, wh;
    layer_norm norm; /* of all steps */
    tensor x, gates, normed, h, c;
    uint64_t stream;
} layer;

typedef struct network {
    linear head;
    layer layers[MAX_LAYERS];
} network;

/* Step t of a tensor [time, rows, features]. */
static tensor step(const pass *x, tensor t, int64_t number)
{
    const int64_t cols = t.desc.dims[1];
    return tensor_view(t, (size_t)(number * x->rows * cols),
                       bsk_tensor_2d(BSK_NONE, x->rows, cols));
}

/* Steps [first, first + the batch's) of h or c, which have one step more. */
static tensor steps(const model *m, const pass *x, tensor t, int64_t first)
{
    tensor all = step(x, t, first);
    all.desc.dims[0] *= m->c.time;
    return all;
}

static layer_norm norm_step(const pass *x, const layer *l, int64_t t)
{
    const size_t at = (size_t)(t * GATES * x->rows);
    const bsk_tensor by_row = bsk_tensor_2d(BSK_NONE, GATES, x->rows);
    layer_norm n = l->norm;
    n.x = step(x, l->gates, t);
    n.mean = tensor_view(l->norm.mean, at, by_row);
    n.rstd = tensor_view(l->norm.rstd, at, by_row);
    return n;
}

static lstm_cell cell_step(const pass *x, const layer *l, int64_t t)
{
    return (lstm_cell){step(x, l->c, t), step(x, l->normed, t), step(x, l->c, t + 1),
                       step(x, l->h, t + 1)};
}

static void layer_forward(model *m, pass *x, int number, layer *l, tensor in)
{
    program *p = &x->program;
    const param_set set = x->train ? SET_TRAIN : SET_EVAL;
    const int64_t n = x->labels_count, k = m->c.hidden;
    const int base = SHARED + number * EACH;
    l->x = in;
    l->wx = model_linear(m, x, base + WX, -1);
    l->wh = model_linear(m, x, base + WH, -1);
    l->norm.segments = GATES;
    l->norm.gain = param_value(&m->p, base + GAIN, set);
    l->norm.bias = param_value(&m->p, base + BIAS, set);
    l->norm.dgain = param_grad(&m->p, base + GAIN);
    l->norm.dbias = param_grad(&m->p, base + BIAS);
    l->norm.mean = pass_exact(m, x, GATES, n);
    l->norm.rstd = pass_exact(m, x, GATES, n);
    l->gates = pass_activation(m, x, n, GATES * k);
    l->normed = pass_activation(m, x, n, GATES * k);
    l->h = pass_activation(m, x, n + x->rows, k);
    l->c = pass_exact(m, x, n + x->rows, k);
    x->state[x->states++] = step(x, l->h, 0);
    x->state[x->states++] = step(x, l->c, 0);

    op_linear(p, &l->wx, BSK_ACT_NONE, in, absent, l->gates);
    for (int64_t t = 0; t < m->c.time; t++) {
        const tensor gates = step(x, l->gates, t);
        op_linear(p, &l->wh, BSK_ACT_NONE, step(x, l->h, t), gates, gates);
        const layer_norm norm = norm_step(x, l, t);
        op_layer_norm(p, &norm, step(x, l->normed, t));
        const lstm_cell cell = cell_step(x, l, t);
        op_lstm_gates(p, &cell);
    }
}

static void states_advance(const model *m, pass *x, const network *net)
{
    for (int i = 0; i < m->c.layers; i++) {
        const layer *l = &net->layers[i];
        op_cast(&x->program, step(x, l->h, m->c.time), step(x, l->h, 0));
        op_cast(&x->program, step(x, l->c, m->c.time), step(x, l->c, 0));
    }
}

static void record_forward(model *m, pass *x)
{
    program *p = &x->program;
    network *net = x->detail = check_alloc(sizeof *net);
    memset(net, 0, sizeof *net);
    tensor in = pass_activation(m, x, x->labels_count, m->c.width);
    op_embedding(p, param_value(&m->p, TOKEN, x->train ? SET_TRAIN : SET_EVAL), x->input, in);
    for (int i = 0; i < m->c.layers; i++) {
        layer *l = &net->layers[i];
        l->stream = ++x->streams;
        if (x->train && m->c.dropout > 0) {
            const tensor dropped = program_tensor(p, in.desc);
            op_dropout(p, 1 - m->c.dropout, l->stream, in, dropped);
            in = dropped;
        }
        layer_forward(m, x, i, l, in);
        in = steps(m, x, l->h, 1);
    }
    net->head = model_linear(m, x, HEAD, HEAD_BIAS);
    op_linear(p, &net->head, BSK_ACT_NONE, in, absent, x->logits);
    if (!x->train)
        states_advance(m, x, net);
}

/* From the gradient of h, of all steps, to that of the input. */
static void layer_backward(model *m, pass *x, const layer *l, tensor dh, tensor dx)
{
    program *p = &x->program;
    const int64_t n = x->labels_count, k = m->c.hidden, time = m->c.time;
    const tensor dgates = pass_activation(m, x, n, GATES * k);
    const tensor dc = pass_exact(m, x, x->rows, k);
    for (int64_t t = time - 1; t >= 0; t--) {
        const lstm_cell cell = cell_step(x, l, t);
        const layer_norm norm = norm_step(x, l, t);
        const tensor mine = step(x, dgates, t);
        op_lstm_gates_grad(p, &cell, step(x, dh, t), t == time - 1 ? absent : dc, mine, dc);
        op_layer_norm_grad(p, &norm, mine, mine);
        if (t > 0)
            op_linear_dgrad(p, &l->wh, mine, 1, step(x, dh, t - 1));
    }
    // One launch for the steps of each matrix.
    tensor *list = check_alloc(2 * (size_t)time * sizeof *list);
    for (int64_t t = 0; t < time; t++) {
        list[t] = step(x, l->h, t);
        list[time + t] = step(x, dgates, t);
    }
    op_linear_wgrad(p, &l->wh, (int)time, list, list + time);
    free(list);
    op_linear_wgrad(p, &l->wx, 1, &l->x, &dgates);
    op_linear_dgrad(p, &l->wx, dgates, 0, dx);
    if (m->c.dropout > 0)
        op_dropout(p, 1 - m->c.dropout, l->stream, dx, dx);
}

static void record_backward(model *m, pass *x)
{
    program *p = &x->program;
    const network *net = x->detail;
    const int64_t n = x->labels_count;
    const tensor h = steps(m, x, net->layers[m->c.layers - 1].h, 1);
    tensor dh = pass_activation(m, x, n, m->c.hidden);
    op_linear_wgrad(p, &net->head, 1, &h, &x->dlogits);
    op_linear_dgrad(p, &net->head, x->dlogits, 0, dh);
    for (int i = m->c.layers - 1; i >= 0; i--) {
        const tensor dx = pass_activation(m, x, n, i ? m->c.hidden : m->c.width);
        layer_backward(m, x, &net->layers[i], dh, dx);
        dh = dx;
    }
    op_embedding_grad(p, dh, x->input, param_grad(&m->p, TOKEN));
    states_advance(m, x, net);
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

const model_kind lstm_kind = {"lstm",          1,        declare,  record_forward,
                              record_backward, row_size, row_size, fill};
