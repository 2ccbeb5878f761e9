/* Dense companions: embedding, bias and activation, cross-entropy. */
#include <math.h>
#include <string.h>

#include "tests/harness/test.h"

TEST_CALLS(embedding)
TEST_CALLS(embedding_grad)
TEST_CALLS(dense_wgrad)
TEST_CALLS(bias_act)
TEST_CALLS(bias_act_grad)
TEST_CALLS(cross_entropy)

static double alpha_of(const test_case *c)
{
    return c->spec.alpha != 0 ? c->spec.alpha : 1;
}

static bool is_exact(const test_case *c)
{
    return c->spec.fill == FILL_INT && c->spec.act <= BSK_ACT_RELU;
}

/* --- embedding: k rows of m numbers, n indices ------------------------------------------------ */

static void set_index(test_case *c, const char *name, int64_t limit)
{
    bsk_dtype type = c->spec.index ? c->spec.index : BSK_I32;
    test_tensor *t = test_set(c, name, bsk_tensor_1d(type, c->spec.n));
    t->content = CONTENT_INDEX;
    t->limit = limit;
}

static void build_embedding(test_case *c)
{
    const test_spec *s = &c->spec;
    test_set(c, "table", bsk_tensor_2d(s->dtype, s->k, s->m));
    set_index(c, "index", s->k);
    test_set(c, "y", bsk_tensor_2d(test_out_type(c), s->n, s->m))->zero_ok = s->n < 4;
}

static void oracle_embedding(test_case *c)
{
    const test_spec *s = &c->spec;
    test_tensor *table = test_arg_at(c, "table"), *y = test_arg_at(c, "y");
    const double *index = test_arg_at(c, "index")->value;
    for (int64_t e = 0; e < y->elems; e++) {
        double v = index[e / s->m];
        bool inside = v >= 0 && v < (double)s->k;
        test_expect(y, e, inside ? table->value[(int64_t)v * s->m + e % s->m] : 0, 0);
    }
}

static void build_embedding_grad(test_case *c)
{
    const test_spec *s = &c->spec;
    test_set(c, "dy", bsk_tensor_2d(s->dtype, s->n, s->m));
    set_index(c, "index", s->k);
    test_set(c, "dtable", bsk_tensor_2d(test_out_type(c), s->k, s->m))->zero_ok = s->n < 4;
}

static void oracle_embedding_grad(test_case *c)
{
    const test_spec *s = &c->spec;
    test_tensor *dy = test_arg_at(c, "dy"), *dtable = test_arg_at(c, "dtable");
    const double *index = test_arg_at(c, "index")->value;
    double u = test_arith_eps(c);
    for (int64_t e = 0; e < dtable->elems; e++) {
        double sum = 0, mag = 0, terms = 0;
        double old = s->beta != 0 ? s->beta * dtable->value[e] : 0;
        for (int64_t n = 0; n < s->n; n++)
            if (index[n] == (double)(e / s->m)) {
                sum += dy->value[n * s->m + e % s->m];
                mag += fabs(dy->value[n * s->m + e % s->m]);
                terms++;
            }
        double error = u * ((terms + 4) * fabs(alpha_of(c)) * mag + 4 * fabs(old));
        test_expect(dtable, e, alpha_of(c) * sum + old, is_exact(c) ? 0 : error);
    }
}

/* --- dense_wgrad: n rows, k and m features ------------------------------------------------------ */

static void build_dense_wgrad(test_case *c)
{
    const test_spec *s = &c->spec;
    ((bsk_dense_wgrad_params *)(void *)c->params)->axis = s->axis;
    test_set(c, "x", test_act(c, s->dtype, s->k));
    test_set(c, "dy", test_act(c, s->dtype, s->m));
    test_set(c, "dw", bsk_tensor_2d(test_out_type(c), s->k, s->m))->zero_ok = s->k * s->m < 16;
}

static void oracle_dense_wgrad(test_case *c)
{
    const test_spec *s = &c->spec;
    test_tensor *x = test_arg_at(c, "x"), *dy = test_arg_at(c, "dy"), *dw = test_arg_at(c, "dw");
    const double u = test_arith_eps(c);
    for (int64_t e = 0; e < dw->elems; e++) {
        const int64_t k = e / s->m, m = e % s->m;
        double sum = 0, mag = 0;
        for (int64_t n = 0; n < s->n; n++) {
            const double v = s->axis == BSK_NC ? x->value[n * s->k + k] * dy->value[n * s->m + m]
                                               : x->value[k * s->n + n] * dy->value[m * s->n + n];
            sum += v;
            mag += fabs(v);
        }
        const double old = s->beta != 0 ? s->beta * dw->value[e] : 0;
        const double error = u * (((double)s->n + 4) * fabs(alpha_of(c)) * mag + 4 * fabs(old));
        test_expect(dw, e, alpha_of(c) * sum + old, is_exact(c) ? 0 : error);
    }
}

/* --- bias_act ------------------------------------------------------------------------------- */

static int64_t feature_of(const test_case *c, int64_t e)
{
    return c->spec.axis == BSK_NC ? e % c->spec.m : e / c->spec.n;
}

static void build_bias_act(test_case *c)
{
    const test_spec *s = &c->spec;
    bsk_bias_act_params *p = (void *)c->params;
    p->axis = s->axis;
    p->act = s->act;
    test_set(c, "x", test_act(c, s->dtype, s->m));
    test_set(c, "y", test_act(c, test_out_type(c), s->m))->zero_ok =
        s->act == BSK_ACT_RELU && s->n * s->m < 16;
    if (s->options & OPT_BIAS)
        test_set(c, "bias", bsk_tensor_1d(test_scalar_type(c), s->m));
    if (s->options & OPT_INPLACE)
        test_arg_at(c, "y")->alias = test_index(c, "x");
}

static void oracle_bias_act(test_case *c)
{
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y"), *bias = test_arg_at(c, "bias");
    double u = test_arith_eps(c);
    for (int64_t e = 0; e < y->elems; e++) {
        double b = bias->desc.dtype ? bias->value[feature_of(c, e)] : 0, pre = x->value[e] + b;
        /* one rounding of the sum through a slope below 1.2; 16 units for exp, tanh and erf */
        double error = u * 1.2 * fabs(pre) + (c->spec.act > BSK_ACT_RELU ? 16 * u * fabs(pre) : 0);
        test_expect(y, e, test_activation(c->spec.act, pre), is_exact(c) ? 0 : error);
    }
}

double test_slope(bsk_act act, double v)
{
    double t, s;
    switch (act) {
    case BSK_ACT_RELU:
        return v > 0 ? 1 : isnan(v) ? v : 0;
    case BSK_ACT_GELU:
        t = tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v));
        return 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * v * v);
    case BSK_ACT_GELU_ERF:
        return 0.5 * erfc(-v / sqrt(2.0)) + v * exp(-v * v / 2) / sqrt(2 * M_PI);
    case BSK_ACT_SILU:
        s = 1 / (1 + exp(-v));
        return s * (1 + v * (1 - s));
    case BSK_ACT_QUICK_GELU:
        s = 1 / (1 + exp(-1.702 * v));
        return s * (1 + 1.702 * v * (1 - s));
    default:
        return 1;
    }
}

static void build_bias_act_grad(test_case *c)
{
    const test_spec *s = &c->spec;
    bsk_bias_act_grad_params *p = (void *)c->params;
    bsk_bias_act_grad_args *a = (void *)c->args;
    p->axis = s->axis;
    p->act = s->act;
    test_blend(c, &p->dx_blend, &a->dx_alpha, &a->dx_beta);
    bsk_tensor desc = test_act(c, s->dtype, s->m);
    bool small = s->n * s->m < 16;
    test_set(c, "dy", desc);
    if (s->act != BSK_ACT_NONE)
        test_set(c, "x", desc);
    if ((s->options & OPT_BIAS) && s->act != BSK_ACT_NONE)
        test_set(c, "bias", bsk_tensor_1d(test_scalar_type(c), s->m));
    if (!(s->options & OPT_NO_GRAD))
        test_set(c, "dx", test_act(c, test_out_type(c), s->m))->zero_ok = small;
    if (s->options & OPT_DBIAS)
        test_set(c, "dbias", bsk_tensor_1d(test_scalar_type(c), s->m))->zero_ok = small;
    if (s->options & OPT_INPLACE)
        test_arg_at(c, "dx")->alias = test_index(c, "dy");
}

static void oracle_bias_act_grad(test_case *c)
{
    const test_spec *s = &c->spec;
    test_tensor *dy = test_arg_at(c, "dy"), *x = test_arg_at(c, "x"),
                *bias = test_arg_at(c, "bias");
    test_tensor *dx = test_arg_at(c, "dx"), *dbias = test_arg_at(c, "dbias");
    double u = test_arith_eps(c);
    for (int64_t f = 0; f < s->m; f++) {
        double sum = 0, mag = 0;
        for (int64_t n = 0; n < s->n; n++) {
            int64_t e = s->axis == BSK_NC ? n * s->m + f : f * s->n + n;
            double b = bias->desc.dtype ? bias->value[f] : 0;
            double pre = x->desc.dtype ? x->value[e] + b : 0;
            double v = dy->value[e] * test_slope(s->act, pre);
            /* slopes below 1.2 whose own slope is at most 1: the rounding of pre, 24 units for the
             * functions, and one for the product */
            double part = s->act > BSK_ACT_RELU
                              ? fabs(dy->value[e]) * u * (24 * 1.2 + 2 * fabs(pre))
                              : u * fabs(v);
            sum += v;
            mag += part + u * ((double)s->n + 4) * fabs(v);
            if (dx->desc.dtype)
                test_expect_dx(c, dx, e, v, is_exact(c) ? 0 : part);
        }
        if (!dbias->desc.dtype)
            continue;
        double old = s->beta != 0 ? s->beta * dbias->value[f] : 0;
        double error = fabs(alpha_of(c)) * mag + 4 * u * fabs(old);
        test_expect(dbias, f, alpha_of(c) * sum + old, is_exact(c) ? 0 : error);
    }
}

/* --- cross_entropy: n rows of m classes ------------------------------------------------------- */

static void build_cross_entropy(test_case *c)
{
    const test_spec *s = &c->spec;
    bsk_cross_entropy_params *p = (void *)c->params;
    bsk_dtype side = test_scalar_type(c);
    p->smoothing = s->options & OPT_SMOOTH ? 0.1 : 0;
    p->use_ignore_index = (s->options & OPT_IGNORE) != 0;
    p->ignore_index = s->m / 2;
    test_tensor *logits = test_set(c, "logits", bsk_tensor_2d(s->dtype, s->n, s->m));
    logits->content = s->value != 0 ? CONTENT_ABOUT : s->kind ? CONTENT_MASKED : CONTENT_DEFAULT;
    logits->constant = s->value;
    set_index(c, "labels", s->m);
    /* one class has loss 0 and gradient 0 */
    bool zero = s->m == 1 || s->n < 8;
    if (!(s->options & OPT_NO_LOSS))
        test_set(c, "loss", bsk_tensor_1d(side, s->n))->zero_ok = zero;
    if (!(s->options & OPT_NO_GRAD))
        test_set(c, "dlogits", bsk_tensor_2d(test_out_type(c), s->n, s->m))->zero_ok = zero;
    if (s->options & OPT_DLOSS)
        test_set(c, "dloss", bsk_tensor_1d(side, s->n));
    if (s->options & OPT_INPLACE)
        test_arg_at(c, "dlogits")->alias = test_index(c, "logits");
}

/* Error of a probability: V + 16 units for the sum, plus the logit's distance from the maximum,
 * which is rounded before exp. A loss sums what logits are below the maximum, whatever that is. */
static void expect_row(test_case *c, int64_t n, const double *logits, double label, bool counted)
{
    const test_spec *s = &c->spec;
    const bsk_cross_entropy_params *p = (void *)c->params;
    test_tensor *loss = test_arg_at(c, "loss"), *dlogits = test_arg_at(c, "dlogits");
    test_tensor *dloss = test_arg_at(c, "dloss");
    double u = test_arith_eps(c), most = -INFINITY, sum = 0, classes = (double)s->m;
    double total = 0, spread = 0, below = 0, factor = 1;
    bool bad = false;
    for (int64_t v = 0; v < s->m; v++) {
        bad |= isnan(logits[v]) || logits[v] == INFINITY;
        most = fmax(most, logits[v]);
    }
    for (int64_t v = 0; v < s->m; v++) {
        sum += exp(logits[v] - most);
        if (isfinite(logits[v])) {
            spread = fmax(spread, fabs(logits[v]) + fabs(most));
            below = fmax(below, most - logits[v]);
        }
    }
    if (dloss->desc.dtype)
        factor = dloss->value[n];
    counted = counted && (bad || most > -INFINITY);
    for (int64_t v = 0; v < s->m; v++) {
        double t = p->smoothing / classes + (label == (double)v ? 1 - p->smoothing : 0);
        double q = exp(logits[v] - most) / sum;
        if (t != 0)
            total -= t * (logits[v] - most - log(sum));
        if (!dlogits->desc.dtype)
            continue;
        double g = !counted ? 0 : bad ? NAN : factor * (q - t);
        double error = u * fabs(factor) * (q * (classes + 16 + 2 * spread) + 4 * t);
        test_expect_blend(c, dlogits, n * s->m + v, g, counted ? error : 0);
    }
    if (loss->desc.dtype)
        test_expect(loss, n,
                    !counted ? 0
                    : bad    ? NAN
                             : total,
                    counted ? u * ((classes + 24) * (1 + 2 * below + fabs(log(sum))) + 4 * spread)
                            : 0);
}

static void oracle_cross_entropy(test_case *c)
{
    const test_spec *s = &c->spec;
    const bsk_cross_entropy_params *p = (void *)c->params;
    const double *logits = test_arg_at(c, "logits")->value;
    const double *labels = test_arg_at(c, "labels")->value;
    for (int64_t n = 0; n < s->n; n++) {
        bool inside = labels[n] >= 0 && labels[n] < (double)s->m;
        bool ignored = p->use_ignore_index && labels[n] == (double)p->ignore_index;
        expect_row(c, n, logits + n * s->m, labels[n], inside && !ignored);
    }
}

const test_op test_ops[] = {
    TEST_OP(embedding, build_embedding, oracle_embedding, NULL),
    TEST_OP(embedding_grad, build_embedding_grad, oracle_embedding_grad, NULL),
    TEST_OP(dense_wgrad, build_dense_wgrad, oracle_dense_wgrad, NULL),
    TEST_OP(bias_act, build_bias_act, oracle_bias_act, NULL),
    TEST_OP(bias_act_grad, build_bias_act_grad, oracle_bias_act_grad, NULL),
    TEST_OP(cross_entropy, build_cross_entropy, oracle_cross_entropy, NULL),
};
const int32_t test_ops_count = TEST_COUNT(test_ops);
