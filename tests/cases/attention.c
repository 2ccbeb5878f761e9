/* Block-sparse attention. k and m are the layout's rows and columns, n is the size of a head, heads
 * those of the layout with count query heads each, groups the batch, value the scale; rules say
 * what is visible and how heads lie. The expectation looks at every pair of times, not at lists. */
#include "tests/cases/attention.h"

#include "common/philox.h"

TEST_CALLS(attn_scores)
TEST_CALLS(attn_apply)
TEST_CALLS(attn_apply_t)
TEST_CALLS(block_softmax)
TEST_CALLS(block_softmax_grad)
TEST_CALLS(attention)
TEST_CALLS(attention_grad)

enum { INTERLEAVE = 3, MISSING = 2 };
#define KEEP 0.75

/* --- Sizes and tensors ---------------------------------------------------------------------- */

typedef struct sizes {
    int64_t batch, heads, kv_heads, per_head; /* per_head: query heads of a layout head */
    int64_t q_time, k_time, d, dv, interleave;
} sizes;

static sizes sizes_of(const test_case *c)
{
    const test_spec *s = &c->spec;
    sizes z = {.batch = s->groups ? s->groups : 1, .d = s->n, .dv = s->n, .interleave = 1};
    z.per_head = s->count ? s->count : 1;
    z.heads = (s->heads ? s->heads : 1) * z.per_head;
    z.kv_heads = has_rule(c, RULE_MQA) ? 1 : has_rule(c, RULE_GQA) ? z.heads / 2 : z.heads;
    if (has_rule(c, RULE_INTERLEAVE))
        z.interleave = c->text.stride ? c->text.stride : INTERLEAVE;
    z.q_time = s->k - (has_rule(c, RULE_SHORT) ? MISSING : 0);
    z.k_time = s->m - (has_rule(c, RULE_SHORT) ? MISSING : 0);
    if (has_rule(c, RULE_DV))
        z.dv = s->n / 2 + 3;
    return z;
}

static test_tensor *set_heads(test_case *c, const char *name, bsk_dtype dtype, int64_t heads,
                              int64_t time, int64_t d)
{
    const sizes z = sizes_of(c);
    bsk_tensor t = {dtype, 4, {z.batch, heads, time, d, 0}, {0}};
    test_tensor *set = test_set(
        c, name, has_rule(c, RULE_PACKED) ? bsk_tensor_heads(dtype, z.batch, heads, time, d) : t);
    set->zero_ok = c->spec.pattern == PATTERN_EMPTY || has_rule(c, RULE_SHORT);
    return set;
}

static test_tensor *set_scores(test_case *c, const char *name, bsk_dtype dtype)
{
    const sizes z = sizes_of(c);
    bsk_tensor t = {
        dtype, 5, {z.batch, z.per_head, c->info.nnz, c->spec.br, c->spec.bc}, {0, 0, 0, 0, 0}};
    test_tensor *set = test_set(c, name, t);
    set->blocks = true;
    /* with missing times, the only block may have no others */
    set->zero_ok = c->spec.pattern == PATTERN_EMPTY || has_rule(c, RULE_SHORT);
    return set;
}

/* Integers in [0, limit), some of them outside. */
static void set_ints(test_case *c, const char *name, bsk_tensor desc, int64_t limit)
{
    test_tensor *t = test_set(c, name, desc);
    t->content = CONTENT_INDEX;
    t->limit = limit;
}

/* The masks and score modifiers of ops on q_time x k_time. */
static void set_masks(test_case *c, int64_t q_time, int64_t k_time)
{
    const sizes z = sizes_of(c);
    const bsk_layout_info *l = &c->info;
    const bool row = has_rule(c, RULE_ROW_BIAS);
    const bsk_tensor bias = {test_out_type(c),
                             4,
                             {row ? z.batch : 1, row ? 1 : z.heads, row ? 1 : q_time, k_time, 0},
                             {0}};
    if (row || c->spec.options & OPT_BIAS)
        test_set(c, "bias", bias)->content =
            has_rule(c, RULE_ADDITIVE) ? CONTENT_ADDITIVE : CONTENT_DEFAULT;
    if (has_rule(c, RULE_ALIBI))
        test_set(c, "slopes", bsk_tensor_1d(test_scalar_type(c), z.heads))->content = CONTENT_UNIT;
    if (has_rule(c, RULE_RAGGED)) {
        set_ints(c, "q_len", bsk_tensor_1d(BSK_I32, z.batch), q_time + 1);
        set_ints(c, "k_len", bsk_tensor_1d(BSK_I32, z.batch), k_time + 1);
    }
    if (has_rule(c, RULE_PREFIX))
        set_ints(c, "prefix", bsk_tensor_1d(BSK_I32, z.batch), k_time);
    if (has_rule(c, RULE_DOCUMENTS))
        set_ints(c, "q_segment", bsk_tensor_2d(BSK_I32, z.batch, q_time), 3);
    if (has_rule(c, RULE_DOCUMENTS | RULE_KEY_MASK))
        set_ints(c, "k_segment",
                 bsk_tensor_2d(BSK_I32, has_rule(c, RULE_KEY_MASK) ? 1 : z.batch, k_time), 3);
    if (has_rule(c, RULE_BITS | RULE_BITS_INDEX)) {
        const int64_t masks = has_rule(c, RULE_BITS_INDEX) ? 3 : l->nnz;
        set_ints(c, "bits", bsk_tensor_3d(BSK_U8, masks, c->spec.br, (c->spec.bc + 7) / 8), 256);
        if (has_rule(c, RULE_BITS_INDEX))
            set_ints(c, "bits_index", bsk_tensor_1d(BSK_I32, l->nnz), masks);
    }
}

/* Of the layout's text, or some. */
static int64_t window_of(const test_case *c)
{
    if (!has_rule(c, RULE_WINDOW))
        return 0;
    return c->text.window ? c->text.window : c->spec.m / 3;
}

#define SET_CHOICES(c, type)                                                                       \
    do {                                                                                           \
        bsk_##type##_params *params_ = (bsk_##type##_params *)(void *)(c)->params;                 \
        params_->interleave = (int32_t)sizes_of(c).interleave;                                     \
        params_->causal = has_rule(c, RULE_CAUSAL);                                                \
        params_->align = has_rule(c, RULE_END) ? BSK_ALIGN_END : BSK_ALIGN_START;                  \
        params_->window = window_of(c);                                                            \
        params_->softcap = has_rule(c, RULE_SOFTCAP) ? SOFTCAP : 0;                                \
    } while (0)

#define SET_DROPOUT(c, type)                                                                       \
    do {                                                                                           \
        bsk_##type##_args *args_ = (bsk_##type##_args *)(void *)(c)->args;                         \
        ((bsk_##type##_params *)(void *)(c)->params)->dropout = has_rule(c, RULE_DROPOUT);         \
        args_->scale = (c)->spec.value;                                                            \
        args_->keep = KEEP;                                                                        \
        args_->seed = (c)->spec.seed;                                                              \
        args_->offset = 3;                                                                         \
    } while (0)

/* --- Which pairs of times meet -------------------------------------------------------------- */

/* What is read for each pair. */
enum {
    ARG_Q,
    ARG_K,
    ARG_V,
    ARG_O,
    ARG_DOUT,
    ARG_LSE,
    ARG_Q_LEN,
    ARG_K_LEN,
    ARG_PREFIX,
    ARG_Q_SEGMENT,
    ARG_K_SEGMENT,
    ARG_BITS,
    ARG_BITS_INDEX,
    ARG_BIAS,
    ARG_SLOPES,
    ARGS
};
static const char *const arg_names[ARGS] = {
    "q",      "k",         "v",         "o",    "dout",       "lse",  "q_len", "k_len",
    "prefix", "q_segment", "k_segment", "bits", "bits_index", "bias", "slopes"};

/* A problem, its tensors by time, and a map from blocks to slots. */
typedef struct problem {
    test_case *c;
    const test_tensor *arg[ARGS]; /* NULL where the op has no such argument */
    sizes z;
    int64_t grid_rows, grid_cols;
    int32_t *slot; /* [layout heads][grid_rows][grid_cols], -1: not kept */
    double scale;
    bool seen;  /* some pair is visible */
    bool dense; /* softmax of stored scores: times are those of the layout */
} problem;

static problem problem_of(test_case *c)
{
    problem p = {
        .c = c, .z = sizes_of(c), .grid_rows = c->info.grid_rows, .grid_cols = c->info.grid_cols};
    const int64_t count = p.grid_rows * p.grid_cols;
    for (int32_t i = 0; i < c->about->arg_count; i++)
        for (int a = 0; a < ARGS; a++)
            if (strcmp(c->about->args[i].name, arg_names[a]) == 0)
                p.arg[a] = &c->t[i];
    p.slot = malloc((size_t)(c->info.heads * count + 1) * sizeof *p.slot);
    if (!p.slot)
        abort();
    for (int64_t i = 0; i < c->info.heads * count; i++)
        p.slot[i] = -1;
    for (int64_t s = 0; s < c->info.nnz; s++)
        p.slot[c->head[s] * count + c->row[s] * p.grid_cols + c->col[s]] = (int32_t)s;
    p.scale = c->spec.value != 0 ? c->spec.value : 1 / sqrt((double)p.z.d);
    return p;
}

/* The layout's line of a time. */
static int64_t line_of(const problem *p, int64_t lines, int64_t time)
{
    return time % p->z.interleave * (lines / p->z.interleave) + time / p->z.interleave;
}

/* Where query i of head h meets key j; false if their block is not kept. */
static bool pair_find(const problem *p, int64_t h, int64_t i, int64_t j, pair *at)
{
    const test_case *c = p->c;
    const int64_t row = line_of(p, c->info.rows, i), col = line_of(p, c->info.cols, j);
    const int64_t head = h / p->z.per_head;
    at->row = row % c->spec.br;
    at->col = col % c->spec.bc;
    at->slot = p->slot[(head * p->grid_rows + row / c->spec.br) * p->grid_cols + col / c->spec.bc];
    return at->slot >= 0;
}

/* The element of a score array that a pair of member b and head h has. */
static int64_t pair_element(const problem *p, int64_t b, int64_t h, const pair *at)
{
    const test_case *c = p->c;
    const int64_t array = b * p->z.per_head + h % p->z.per_head;
    return ((array * c->info.nnz + at->slot) * c->spec.br + at->row) * c->spec.bc + at->col;
}

static double segment(const test_tensor *t, int64_t b, int64_t time)
{
    return t->value[(t->desc.dims[0] > 1 ? b : 0) * t->desc.dims[1] + time];
}

static bool segments_meet(const problem *p, int64_t b, int64_t i, int64_t j)
{
    const test_tensor *q = p->arg[ARG_Q_SEGMENT], *k = p->arg[ARG_K_SEGMENT];
    if (!k->desc.dtype)
        return true;
    const double document = segment(k, b, j);
    return document >= 0 && (!q->desc.dtype || segment(q, b, i) == document);
}

static bool bit_is_set(const problem *p, const pair *at)
{
    const test_tensor *bits = p->arg[ARG_BITS], *index = p->arg[ARG_BITS_INDEX];
    if (!bits->desc.dtype)
        return true;
    const double mask = index->desc.dtype ? index->value[at->slot] : (double)at->slot;
    if (mask < 0 || mask >= (double)bits->desc.dims[0])
        return true;
    const int64_t byte = ((int64_t)mask * bits->desc.dims[1] + at->row) * bits->desc.dims[2];
    return (int)bits->value[byte + at->col / 8] >> at->col % 8 & 1;
}

/* Whether query i sees key j, and how they meet. */
static bool pair_visible(problem *p, int64_t b, int64_t h, int64_t i, int64_t j, pair *at)
{
    const test_case *c = p->c;
    const int64_t q_time = p->dense ? c->info.rows : p->z.q_time;
    const int64_t k_time = p->dense ? c->info.cols : p->z.k_time;
    const int64_t q_len = clamped(p->arg[ARG_Q_LEN], b, q_time);
    const int64_t k_len = clamped(p->arg[ARG_K_LEN], b, k_time);
    const test_tensor *prefix = p->arg[ARG_PREFIX];
    if (!pair_find(p, h, i, j, at) || i >= q_len || j >= k_len || (i - j) % p->z.interleave != 0)
        return false;
    at->distance = i + (has_rule(c, RULE_END) ? k_len - q_len : 0) - j;
    if (has_rule(c, RULE_CAUSAL) && at->distance < 0 &&
        !(prefix->desc.dtype && (double)j < prefix->value[b]))
        return false;
    if (has_rule(c, RULE_WINDOW) && llabs(at->distance) >= window_of(c))
        return false;
    const bool visible = segments_meet(p, b, i, j) && bit_is_set(p, at);
    p->seen |= visible;
    return visible;
}

/* Where no pair is visible, outputs of zeros are what they should be. */
static void problem_free(problem *p)
{
    for (int32_t i = 0; !p->seen && i < p->c->about->arg_count; i++)
        p->c->t[i].zero_ok = true;
    free(p->slot);
}

/* --- Scores --------------------------------------------------------------------------------- */

static number score_of(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j, const pair *at,
                       number x)
{
    const test_tensor *bias = p->arg[ARG_BIAS];
    const double u = test_arith_eps(p->c);
    number s = plain_score(p->c, p->arg[ARG_SLOPES], p->scale, h, at->distance, x);
    if (bias->desc.dtype) {
        const int64_t *d = bias->desc.dims;
        const int64_t e =
            (((d[0] > 1 ? b : 0) * d[1] + (d[1] > 1 ? h : 0)) * d[2] + (d[2] > 1 ? i : 0)) * d[3] +
            (d[3] > 1 ? j : 0);
        s.v += bias->value[e];
        s.error += 4 * u * (fabs(s.v) + fabs(bias->value[e]));
        if (bias->value[e] < -1e30) /* nothing is left of the score, in any type */
            s = (number){bias->value[e], 0};
    }
    return s;
}

/* --- attn_scores, attn_apply ---------------------------------------------------------------- */

static void build_scores(test_case *c)
{
    const sizes z = sizes_of(c);
    ((bsk_attn_scores_params *)(void *)c->params)->interleave = (int32_t)z.interleave;
    set_heads(c, "q", c->spec.dtype, z.heads, z.q_time, z.d);
    set_heads(c, "k", c->spec.dtype, z.kv_heads, z.k_time, z.d);
    set_scores(c, "s", test_out_type(c));
}

static void expect_sum(test_case *c, test_tensor *t, int64_t e, number x)
{
    const double old = test_old(c, t, e), v = test_alpha(c) * x.v;
    const double error =
        fabs(test_alpha(c)) * x.error + 4 * test_arith_eps(c) * (fabs(v) + fabs(old));
    test_expect(t, e, v + old, c->spec.fill == FILL_INT ? 0 : error);
}

static void oracle_scores(test_case *c)
{
    problem p = problem_of(c);
    test_tensor *q = test_arg_at(c, "q"), *k = test_arg_at(c, "k"), *s = test_arg_at(c, "s");
    pair at;
    for (int64_t e = 0; e < s->elems; e++) /* times that are missing */
        if (s->at[e] >= 0)
            expect_sum(c, s, e, (number){0, 0});
    for (int64_t b = 0; b < p.z.batch; b++)
        for (int64_t h = 0; h < p.z.heads; h++)
            for (int64_t i = 0; i < p.z.q_time; i++)
                for (int64_t j = 0; j < p.z.k_time; j++)
                    if (pair_find(&p, h, i, j, &at))
                        expect_sum(c, s, pair_element(&p, b, h, &at),
                                   dot(c, vector_at(q, b, h, i),
                                       vector_at(k, b, h / (p.z.heads / p.z.kv_heads), j), p.z.d));
    free(p.slot);
}

static bool is_turned(const test_case *c)
{
    return c->spec.transpose || c->op->name[sizeof "attn_apply" - 1] == '_';
}

static void build_apply(test_case *c)
{
    const sizes z = sizes_of(c);
    bsk_attn_apply_params *params = (bsk_attn_apply_params *)(void *)c->params;
    params->interleave = (int32_t)z.interleave;
    params->transpose = c->spec.transpose;
    const bool turned = is_turned(c);
    set_scores(c, "s", c->spec.index ? c->spec.index : c->spec.dtype);
    set_heads(c, turned ? "v" : "y", turned ? c->spec.dtype : test_out_type(c), z.heads, z.q_time,
              z.dv);
    set_heads(c, turned ? "y" : "v", turned ? test_out_type(c) : c->spec.dtype, z.kv_heads,
              z.k_time, z.dv);
}

/* Scores of missing times are not read: they are no numbers. */
static void scores_spoil(const test_case *c, problem *p, test_tensor *s)
{
    uint8_t *there = calloc((size_t)s->elems + 1, 1);
    pair at;
    if (!there)
        abort();
    for (int64_t h = 0; h < p->z.heads; h++)
        for (int64_t i = 0; i < p->z.q_time; i++)
            for (int64_t j = 0; j < p->z.k_time; j++)
                for (int64_t b = 0; pair_find(p, h, i, j, &at) && b < p->z.batch; b++)
                    there[pair_element(p, b, h, &at)] = 1;
    for (int64_t e = 0; e < s->elems && !(c->spec.options & (OPT_REPEAT | OPT_SPLAT)); e++)
        if (!there[e] && s->at[e] >= 0)
            bski_store(s->desc.dtype, s->init, s->at[e], NAN);
    test_values_refresh(s);
    free(there);
}

static void oracle_apply(test_case *c)
{
    problem p = problem_of(c);
    test_tensor *s = test_arg_at(c, "s"), *v = test_arg_at(c, "v"), *y = test_arg_at(c, "y");
    scores_spoil(c, &p, s);
    const bool turned = is_turned(c);
    const int64_t group = p.z.heads / p.z.kv_heads;
    double *mag = calloc((size_t)y->elems + 1, sizeof *mag), *sum = calloc((size_t)y->elems + 1, 8);
    if (!mag || !sum)
        abort();
    pair at;
    for (int64_t b = 0; b < p.z.batch; b++)
        for (int64_t h = 0; h < p.z.heads; h++)
            for (int64_t i = 0; i < p.z.q_time; i++)
                for (int64_t j = 0; j < p.z.k_time; j++) {
                    if (!pair_find(&p, h, i, j, &at))
                        continue;
                    const double x = s->value[pair_element(&p, b, h, &at)];
                    const double *in =
                        turned ? vector_at(v, b, h, i) : vector_at(v, b, h / group, j);
                    const int64_t to =
                        (turned ? vector_at(y, b, h / group, j) : vector_at(y, b, h, i)) - y->value;
                    for (int64_t f = 0; f < p.z.dv; f++) {
                        sum[to + f] += x * in[f];
                        mag[to + f] += fabs(x * in[f]);
                    }
                }
    const double terms = (double)((turned ? p.z.q_time * group : p.z.k_time) + 4);
    for (int64_t e = 0; e < y->elems; e++)
        expect_sum(c, y, e, (number){sum[e], test_arith_eps(c) * terms * mag[e]});
    free(mag);
    free(sum);
    free(p.slot);
}

/* --- block_softmax -------------------------------------------------------------------------- */

static void build_softmax(test_case *c)
{
    const sizes z = sizes_of(c);
    SET_CHOICES(c, block_softmax);
    ((bsk_block_softmax_args *)(void *)c->args)->scale = c->spec.value;
    set_scores(c, "x", c->spec.dtype);
    set_scores(c, "y", test_out_type(c));
    if (c->spec.options & OPT_SAVED)
        test_set(c, "lse", bsk_tensor_3d(test_scalar_type(c), z.batch, z.heads, c->info.rows));
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, "y")->alias = test_index(c, "x");
    set_masks(c, c->info.rows, c->info.cols);
}

static void oracle_softmax(test_case *c)
{
    problem p = problem_of(c);
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y"), *lse = test_arg_at(c, "lse");
    const int64_t rows = c->info.rows, keys = c->info.cols;
    const double u = test_arith_eps(c);
    softmax_row r = row_make(keys);
    p.dense = true;
    p.scale = c->spec.value != 0 ? c->spec.value : 1;
    for (int64_t e = 0; e < y->elems; e++)
        if (y->at[e] >= 0)
            test_expect(y, e, 0, 0);
    for (int64_t b = 0; b < p.z.batch; b++)
        for (int64_t h = 0; h < p.z.heads; h++)
            for (int64_t i = 0; i < rows; i++) {
                double worst = 0;
                for (int64_t j = 0; j < keys; j++) {
                    r.score[j] = NAN;
                    if (!pair_visible(&p, b, h, i, j, &r.at[j]))
                        continue;
                    const number product = {x->value[pair_element(&p, b, h, &r.at[j])], 0};
                    const number s = score_of(&p, b, h, i, j, &r.at[j], product);
                    r.score[j] = s.v;
                    worst = fmax(worst, s.error);
                }
                row_close(c, &r, keys, worst);
                for (int64_t j = 0; j < keys; j++)
                    if (!isnan(r.score[j])) {
                        const double share = row_share(&r, j);
                        test_expect(y, pair_element(&p, b, h, &r.at[j]), share,
                                    share * (2 * r.error + 8 * u));
                    }
                row_expect_lse(lse, (b * p.z.heads + h) * rows + line_of(&p, rows, i), &r);
            }
    row_free(&r);
    problem_free(&p);
}

static void build_softmax_grad(test_case *c)
{
    ((bsk_block_softmax_grad_params *)(void *)c->params)->softcap =
        has_rule(c, RULE_SOFTCAP) ? SOFTCAP : 0;
    ((bsk_block_softmax_grad_args *)(void *)c->args)->scale = c->spec.value;
    set_scores(c, "dy", c->spec.kind == GRAD_OF_F32 ? BSK_F32 : c->spec.dtype);
    set_scores(c, "y", c->spec.dtype)->content =
        c->spec.options & OPT_TINY ? CONTENT_GATE : CONTENT_UNIT;
    set_scores(c, "dx", test_out_type(c));
    if (has_rule(c, RULE_SOFTCAP))
        set_scores(c, "x", c->spec.dtype);
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, "dx")->alias = test_index(c, c->spec.kind == GRAD_OVER_Y ? "y" : "dy");
}

/* d score / d product, and its error. */
static number slope_of(const problem *p, number x)
{
    const double u = test_arith_eps(p->c);
    if (!has_rule(p->c, RULE_SOFTCAP))
        return (number){p->scale, u * fabs(p->scale)};
    const double t = tanh(p->scale * x.v / SOFTCAP);
    return (number){p->scale * (1 - t * t),
                    fabs(p->scale) * (2 * fabs(p->scale) * x.error / SOFTCAP + 24 * u)};
}

static void oracle_softmax_grad(test_case *c)
{
    problem p = problem_of(c);
    test_tensor *dy = test_arg_at(c, "dy"), *y = test_arg_at(c, "y"), *dx = test_arg_at(c, "dx");
    const test_tensor *x = test_arg_at(c, "x");
    const double u = test_arith_eps(c);
    pair at;
    p.scale = c->spec.value != 0 ? c->spec.value : 1;
    for (int64_t b = 0; b < p.z.batch; b++)
        for (int64_t h = 0; h < p.z.heads; h++)
            for (int64_t i = 0; i < c->info.rows; i++) {
                double sum = 0, mag = 0;
                for (int64_t j = 0; j < c->info.cols; j++)
                    if (pair_find(&p, h, i, j, &at)) {
                        const int64_t e = pair_element(&p, b, h, &at);
                        sum += dy->value[e] * y->value[e];
                        mag += fabs(dy->value[e] * y->value[e]);
                    }
                for (int64_t j = 0; j < c->info.cols; j++)
                    if (pair_find(&p, h, i, j, &at)) {
                        const int64_t e = pair_element(&p, b, h, &at);
                        const number product = {x->desc.dtype ? x->value[e] : 0, 0};
                        const number slope = slope_of(&p, product);
                        const double d = y->value[e] * (dy->value[e] - sum);
                        const double error =
                            u * fabs(y->value[e]) *
                            ((double)(c->info.cols + 8) * mag + 8 * fabs(dy->value[e]));
                        expect_sum(
                            c, dx, e,
                            (number){d * slope.v, error * fabs(slope.v) + fabs(d) * slope.error});
                    }
            }
    free(p.slot);
}

/* --- attention ------------------------------------------------------------------------------ */

static void build_attention(test_case *c)
{
    const sizes z = sizes_of(c);
    SET_CHOICES(c, attention);
    SET_DROPOUT(c, attention);
    set_heads(c, "q", c->spec.dtype, z.heads, z.q_time, z.d);
    set_heads(c, "k", c->spec.dtype, z.kv_heads, z.k_time, z.d);
    set_heads(c, "v", c->spec.dtype, z.kv_heads, z.k_time, z.dv);
    set_heads(c, "o", test_out_type(c), z.heads, z.q_time, z.dv);
    if (c->spec.options & OPT_SAVED)
        test_set(c, "lse", bsk_tensor_3d(test_scalar_type(c), z.batch, z.heads, z.q_time));
    set_masks(c, z.q_time, z.k_time);
}

/* NaN beyond a member's length: it must not be read, or not count. Where members share memory, what
 * is one's padding another one sees. */
static void poison_padding(test_case *c, const char *name, const char *length)
{
    test_tensor *t = test_arg_at(c, name);
    const test_tensor *len = test_arg_at(c, length);
    const int64_t *d = t->desc.dims;
    const bool apart = d[0] <= 1 || t->desc.strides[0] != 0;
    for (int64_t e = 0; apart && len->desc.dtype && e < t->elems; e++)
        if (e / d[3] % d[2] >= clamped(len, e / (d[1] * d[2] * d[3]), d[2]))
            bski_store(t->desc.dtype, t->init, t->at[e], NAN);
    test_values_refresh(t);
}

/* Scores of query i of head h. */
static void row_scores(problem *p, int64_t b, int64_t h, int64_t i, softmax_row *r)
{
    const test_case *c = p->c;
    const double *q = vector_at(p->arg[ARG_Q], b, h, i);
    const int64_t kv_head = h / (p->z.heads / p->z.kv_heads);
    double worst = 0;
    for (int64_t j = 0; j < p->z.k_time; j++) {
        r->score[j] = NAN;
        if (!pair_visible(p, b, h, i, j, &r->at[j]))
            continue;
        const number x = dot(c, q, vector_at(p->arg[ARG_K], b, kv_head, j), p->z.d);
        const number s = score_of(p, b, h, i, j, &r->at[j], x);
        r->score[j] = isnan(s.v) ? INFINITY : s.v; /* NaN says that it is not visible */
        worst = fmax(worst, s.error);
    }
    row_close(c, r, p->z.k_time, worst);
}

static double drop_factor(const problem *p, int64_t b, int64_t h, const pair *at)
{
    if (!has_rule(p->c, RULE_DROPOUT))
        return 1;
    const uint64_t e = (uint64_t)pair_element(p, b, h, at);
    return bski_philox_u16(p->c->spec.seed, 3, e) < KEEP * 0x1p16 ? 1 / KEEP : 0;
}

static void oracle_attention(test_case *c)
{
    poison_padding(c, "q", "q_len");
    poison_padding(c, "k", "k_len");
    poison_padding(c, "v", "k_len");
    problem p = problem_of(c);
    test_tensor *v = test_arg_at(c, "v"), *o = test_arg_at(c, "o"), *lse = test_arg_at(c, "lse");
    const double u = test_arith_eps(c);
    softmax_row r = row_make(p.z.k_time);
    for (int64_t b = 0; b < p.z.batch; b++)
        for (int64_t h = 0; h < p.z.heads; h++)
            for (int64_t i = 0; i < p.z.q_time; i++) {
                row_scores(&p, b, h, i, &r);
                row_expect_lse(lse, (b * p.z.heads + h) * p.z.q_time + i, &r);
                for (int64_t f = 0; f < p.z.dv; f++) {
                    number sum = {0, 0};
                    for (int64_t j = 0; j < p.z.k_time; j++) {
                        if (isnan(r.score[j]))
                            continue;
                        const double share = row_share(&r, j) * drop_factor(&p, b, h, &r.at[j]);
                        const double x = vector_at(v, b, h / (p.z.heads / p.z.kv_heads), j)[f];
                        sum.v += share * x;
                        sum.error += fabs(x) * (share * (2 * r.error + (double)(r.live + 8) * u) +
                                                rounding(c, share) + test_arith_tiny(c));
                    }
                    test_expect(o, vector_at(o, b, h, i) - o->value + f, sum.v, sum.error);
                }
            }
    row_free(&r);
    problem_free(&p);
}

static void build_attention_grad(test_case *c)
{
    const sizes z = sizes_of(c);
    const bool queries = !(c->spec.options & OPT_SKIP), keys = !(c->spec.options & OPT_NO_GRAD);
    SET_CHOICES(c, attention_grad);
    SET_DROPOUT(c, attention_grad);
    set_heads(c, "q", c->spec.dtype, z.heads, z.q_time, z.d);
    set_heads(c, "k", c->spec.dtype, z.kv_heads, z.k_time, z.d);
    set_heads(c, "v", c->spec.dtype, z.kv_heads, z.k_time, z.dv);
    set_heads(c, "o", c->spec.dtype, z.heads, z.q_time, z.dv);
    set_heads(c, "dout", c->spec.dtype, z.heads, z.q_time, z.dv);
    test_set(c, "lse", bsk_tensor_3d(test_scalar_type(c), z.batch, z.heads, z.q_time))->content =
        CONTENT_UNIT;
    if (queries)
        set_heads(c, "dq", test_out_type(c), z.heads, z.q_time, z.d);
    if (keys) {
        set_heads(c, "dk", test_out_type(c), z.kv_heads, z.k_time, z.d);
        set_heads(c, "dv", test_out_type(c), z.kv_heads, z.k_time, z.dv);
    }
    set_masks(c, z.q_time, z.k_time);
}

/* Sums of one output, and of the errors and magnitudes of their terms. */
typedef struct sums {
    test_tensor *t;
    double *v, *error, *mag;
} sums;

static sums sums_make(test_case *c, const char *name)
{
    sums s = {.t = test_arg_at(c, name)};
    const size_t count = (size_t)s.t->elems + 1;
    s.v = calloc(3 * count, sizeof(double));
    if (!s.v)
        abort();
    s.error = s.v + count;
    s.mag = s.error + count;
    return s;
}

/* Adds x times a vector to row `time`. */
static void sums_add(sums *s, int64_t b, int64_t h, int64_t time, number x, const double *vector)
{
    const int64_t *d = s->t->desc.dims;
    const int64_t at = ((b * d[1] + h) * d[2] + time) * d[3];
    for (int64_t f = 0; s->t->desc.dtype && f < d[3]; f++) {
        s->v[at + f] += x.v * vector[f];
        s->error[at + f] += x.error * fabs(vector[f]);
        s->mag[at + f] += fabs(x.v * vector[f]);
    }
}

static void sums_close(test_case *c, sums *s, int64_t terms)
{
    for (int64_t e = 0; s->t->desc.dtype && e < s->t->elems; e++)
        expect_sum(
            c, s->t, e,
            (number){s->v[e], s->error[e] + test_arith_eps(c) * (double)(terms + 4) * s->mag[e]});
    free(s->v);
}

/* The element of query i and key j: its probability after dropout, and the gradient of x. */
static void grad_pair(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j, const pair *at,
                      number *share, number *dx)
{
    const test_case *c = p->c;
    const double u = test_arith_eps(c);
    const int64_t kv_head = h / (p->z.heads / p->z.kv_heads);
    const double *dout = vector_at(p->arg[ARG_DOUT], b, h, i);
    const double lse = p->arg[ARG_LSE]->value[(b * p->z.heads + h) * p->z.q_time + i];
    const number x =
        dot(c, vector_at(p->arg[ARG_Q], b, h, i), vector_at(p->arg[ARG_K], b, kv_head, j), p->z.d);
    const number s = score_of(p, b, h, i, j, at, x), slope = slope_of(p, x);
    const number dp = dot(c, dout, vector_at(p->arg[ARG_V], b, kv_head, j), p->z.dv);
    const number rest = dot(c, dout, vector_at(p->arg[ARG_O], b, h, i), p->z.dv);
    const double factor = drop_factor(p, b, h, at), full = exp(s.v - lse);
    const double relative = s.error + u * (16 + 8 * (fabs(s.v) + fabs(lse)));
    const double ds = full * (factor * dp.v - rest.v);
    const double tiny = test_arith_tiny(c), parts = fabs(factor * dp.v) + fabs(rest.v);
    const double ds_error = fabs(ds) * relative + tiny * parts +
                            full * (factor * dp.error + rest.error + 4 * u * parts);
    *share = (number){factor * full, factor * (full * (relative + 2 * u) + tiny)};
    share->error += rounding(c, share->v);
    *dx = (number){ds * slope.v, ds_error * fabs(slope.v) + fabs(ds) * slope.error};
    dx->error += 2 * rounding(c, dx->v) + rounding(c, ds) * fabs(slope.v);
}

static void oracle_attention_grad(test_case *c)
{
    static const char *const queries[] = {"q", "o", "dout"};
    for (int i = 0; i < TEST_COUNT(queries); i++)
        poison_padding(c, queries[i], "q_len");
    poison_padding(c, "k", "k_len");
    poison_padding(c, "v", "k_len");
    problem p = problem_of(c);
    const int64_t group = p.z.heads / p.z.kv_heads;
    sums dq = sums_make(c, "dq"), dk = sums_make(c, "dk"), dv = sums_make(c, "dv");
    pair at;
    number share, dx;
    for (int64_t b = 0; b < p.z.batch; b++)
        for (int64_t h = 0; h < p.z.heads; h++)
            for (int64_t i = 0; i < p.z.q_time; i++)
                for (int64_t j = 0; j < p.z.k_time; j++) {
                    if (!pair_visible(&p, b, h, i, j, &at))
                        continue;
                    grad_pair(&p, b, h, i, j, &at, &share, &dx);
                    sums_add(&dq, b, h, i, dx, vector_at(p.arg[ARG_K], b, h / group, j));
                    sums_add(&dk, b, h / group, j, dx, vector_at(p.arg[ARG_Q], b, h, i));
                    sums_add(&dv, b, h / group, j, share, vector_at(p.arg[ARG_DOUT], b, h, i));
                }
    sums_close(c, &dq, p.z.k_time);
    sums_close(c, &dk, p.z.q_time * group);
    sums_close(c, &dv, p.z.q_time * group);
    problem_free(&p);
}

const test_op test_attention[] = {
    TEST_OP(attn_scores, build_scores, oracle_scores, NULL),
    TEST_OP(attn_apply, build_apply, oracle_apply, NULL),
    TEST_OP(attn_apply_t, build_apply, oracle_apply, NULL),
    TEST_OP(block_softmax, build_softmax, oracle_softmax, NULL),
    TEST_OP(block_softmax_grad, build_softmax_grad, oracle_softmax_grad, NULL),
    TEST_OP(attention, build_attention, oracle_attention, NULL),
    TEST_OP(attention_grad, build_attention_grad, oracle_attention_grad, NULL),
};
const int32_t test_attention_count = TEST_COUNT(test_attention);
