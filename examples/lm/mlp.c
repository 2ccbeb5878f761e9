/* A byte model without memory of its own: features of the last bytes through two layers.
 *
 *     x  = embedding(features)
 *     h1 = relu(x W1 + b1)        block-sparse
 *     h2 = relu(h1 W2 + b2)       block-sparse
 *     logits = [h1 h2] W3 + b3
 *
 * The features of a position: its last `context` bytes, each with an embedding of its own place,
 * then hashes of the last 2, 3 ... bytes and of the words around the position. */
#include <ctype.h>
#include <math.h>

#include "check.h"
#include "model.h"

enum { TABLE, W1, B1, W2, B2, W3, B3 };
enum { FIRST_ORDER = 2, LAST_ORDER = 6, WORD_FEATURES = 3 };
enum { HASHED = LAST_ORDER - FIRST_ORDER + 1 + WORD_FEATURES };

static int row_labels(const config *c)
{
    (void)c;
    return 1;
}

static int row_inputs(const config *c)
{
    return c->context + HASHED;
}

static int declare(model *m)
{
    const config *c = &m->c;
    param_store *p = &m->p;
    const int64_t inputs = (int64_t)row_inputs(c) * c->width, hidden = c->hidden;
    const int64_t table = (int64_t)c->context * TEXT_CODES + ((int64_t)HASHED << c->buckets_log2);
    params_add_dense(p, table, c->width, 0.1);
    const struct {
        int64_t rows, cols;
        double density, init;
    } layers[] = {{inputs, hidden, c->density, sqrt(2 / ((double)inputs * c->density))},
                  {hidden, hidden, c->density, sqrt(2 / ((double)hidden * c->density))},
                  {2 * hidden, 256, 1, 0.1 / sqrt(2 * (double)hidden)}};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        bsk_layout *layout = model_layout(m, layers[i].rows, layers[i].cols, layers[i].density);
        if (!layout)
            return -1;
        params_add_sparse(p, layout, layers[i].init);
        params_add_vector(p, layers[i].cols, 0);
    }
    return 0;
}

typedef struct network {
    linear l1, l2, l3;
    tensor looked_up, x;
    tensor h, h1, h2; /* both layers side by side */
} network;

static void halves(tensor both, int64_t hidden, tensor *first, tensor *second)
{
    const bsk_tensor half = bsk_tensor_ld(BSK_NONE, both.desc.dims[0], hidden, 2 * hidden);
    *first = tensor_view(both, 0, half);
    *second = tensor_view(both, (size_t)hidden, half);
}

static void record_forward(model *m, pass *x)
{
    program *p = &x->program;
    const int64_t n = x->labels_count, features = row_inputs(&m->c);
    network *net = x->detail = check_alloc(sizeof *net);
    net->l1 = model_linear(m, x, W1, B1);
    net->l2 = model_linear(m, x, W2, B2);
    net->l3 = model_linear(m, x, W3, B3);
    net->looked_up = pass_activation(m, x, n * features, m->c.width);
    net->x = tensor_view(net->looked_up, 0, bsk_tensor_2d(BSK_NONE, n, features * m->c.width));
    net->h = pass_activation(m, x, n, 2 * (int64_t)m->c.hidden);
    halves(net->h, m->c.hidden, &net->h1, &net->h2);
    op_embedding(p, param_value(&m->p, TABLE, x->train ? SET_TRAIN : SET_EVAL), x->input,
                 net->looked_up);
    op_linear(p, &net->l1, BSK_ACT_RELU, net->x, absent, net->h1);
    op_linear(p, &net->l2, BSK_ACT_RELU, net->h1, absent, net->h2);
    op_linear(p, &net->l3, BSK_ACT_NONE, net->h, absent, x->logits);
}

static void record_backward(model *m, pass *x)
{
    program *p = &x->program;
    const network *net = x->detail;
    const tensor dh = pass_activation(m, x, x->labels_count, 2 * (int64_t)m->c.hidden);
    const tensor dlooked_up = program_tensor(p, net->looked_up.desc);
    const tensor dx = tensor_view(dlooked_up, 0, net->x.desc);
    tensor dh1, dh2;
    halves(dh, m->c.hidden, &dh1, &dh2);
    linear l1 = net->l1, l2 = net->l2;
    l1.dbias = l2.dbias = absent; // the gradient of the activation sums them

    op_linear_wgrad(p, &net->l3, 1, &net->h, &x->dlogits);
    op_linear_dgrad(p, &net->l3, x->dlogits, 0, dh);
    op_bias_act_grad(p, BSK_ACT_RELU, dh2, net->h2, absent, dh2, net->l2.dbias);
    op_linear_wgrad(p, &l2, 1, &net->h1, &dh2);
    op_linear_dgrad(p, &l2, dh2, 1, dh1); // h1 feeds two layers
    op_bias_act_grad(p, BSK_ACT_RELU, dh1, net->h1, absent, dh1, net->l1.dbias);
    op_linear_wgrad(p, &l1, 1, &net->x, &dh1);
    op_linear_dgrad(p, &l1, dh1, 0, dx);
    op_embedding_grad(p, dlooked_up, x->input, param_grad(&m->p, TABLE));
}

static uint32_t hash_add(uint32_t h, uint32_t value)
{
    h = (h ^ (value + 1)) * 0x9e3779b1u;
    return h ^ h >> 15;
}

static int code_is_word(uint16_t code)
{
    return code != TEXT_NONE && (isalnum(code) || code == '_' || code >= 0x80);
}

/* Hashes the word that ends before *back, of limited length, and moves *back before it; the padding
 * bounds the walk. */
static uint32_t hash_word(const uint16_t *code, int *back, uint32_t h)
{
    for (int k = 0; k < TEXT_PAD / 4 && code_is_word(code[*back - 1]); k++)
        h = hash_add(h, code[--*back]);
    return h;
}

static void fill(const config *c, const uint16_t *code, int32_t *input)
{
    for (int k = 0; k < c->context; k++)
        *input++ = k * TEXT_CODES + code[-1 - k];

    uint32_t hashes[HASHED];
    int count = 0;
    uint32_t h = 0;
    for (int k = 1; k <= LAST_ORDER; k++) {
        h = hash_add(h, code[-k]);
        if (k >= FIRST_ORDER)
            hashes[count++] = h;
    }
    // The word so far, with the character before it, and with the word before that.
    int back = 0;
    const uint32_t word = hash_word(code, &back, 1);
    hashes[count++] = word;
    hashes[count++] = hash_add(word, code[back - 1]);
    for (int k = 0;
         k < TEXT_PAD / 4 && !code_is_word(code[back - 1]) && code[back - 1] != TEXT_NONE; k++)
        back--;
    hashes[count++] = hash_word(code, &back, hash_add(word, 0x10000));

    const int64_t base = (int64_t)c->context * TEXT_CODES;
    for (int k = 0; k < HASHED; k++)
        *input++ = (int32_t)(base + ((int64_t)k << c->buckets_log2) +
                             (hashes[k] * 0x85ebca6bu >> (32 - c->buckets_log2)));
}

const model_kind mlp_kind = {"mlp",           0,          declare,    record_forward,
                             record_backward, row_labels, row_inputs, fill};
