/* Normalisations and LSTM cells. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "tests/harness/test.h"

TEST_CALLS(layer_norm)
TEST_CALLS(layer_norm_grad)
TEST_CALLS(rms_norm)
TEST_CALLS(rms_norm_grad)
TEST_CALLS(batch_norm)
TEST_CALLS(batch_norm_infer)
TEST_CALLS(batch_norm_grad)
TEST_CALLS(lstm_gates)
TEST_CALLS(lstm_gates_grad)
TEST_CALLS(split4)
TEST_CALLS(concat4)

#define EPS 1e-6

static test_tensor *set_vector(test_case *c, const char *name, int64_t size)
{
    return test_set(c, name, bsk_tensor_1d(test_scalar_type(c), size));
}

static double at_or(const test_tensor *t, int64_t i, double otherwise)
{
    return t->desc.dtype ? t->value[i] : otherwise;
}

/* --- layer_norm: n rows of m features, count segments ------------------------------------- */

static bool is_rms(const test_case *c)
{
    return strncmp(c->op->name, "rms", 3) == 0;
}

static int64_t segments_of(const test_case *c)
{
    return c->spec.count ? c->spec.count : 1;
}

static void set_statistics(test_case *c)
{
    const bsk_tensor t = bsk_tensor_2d(test_scalar_type(c), segments_of(c), c->spec.n);
    test_set(c, "rstd", t)->content = CONTENT_UNIT;
    if (!is_rms(c))
        test_set(c, "mean", t)->zero_ok = true;
}

/* value: what x is about, or if below 1, all of it; then eps is as small as it may be. */
static double norm_eps(const test_case *c)
{
    return c->spec.value > 0 && c->spec.value < 1 ? FLT_MIN : EPS;
}

static void build_layer_norm(test_case *c)
{
    bsk_layer_norm_params *p = (void *)c->params;
    p->eps = norm_eps(c) == EPS ? 0 : norm_eps(c); /* 0 means EPS */
    p->axis = c->spec.axis;
    p->segments = c->spec.count;
    p->relu = c->spec.act == BSK_ACT_RELU;
    test_tensor *x = test_set(c, "x", test_act(c, c->spec.dtype, c->spec.m));
    if (c->spec.value != 0) {
        x->content = c->spec.value < 1 ? CONTENT_VALUE : CONTENT_ABOUT;
        x->constant = c->spec.value;
    }
    test_set(c, "y", test_act(c, test_out_type(c), c->spec.m))->zero_ok = c->spec.m < 4;
    if (c->spec.options & OPT_GAIN)
        set_vector(c, "gain", c->spec.m);
    if (c->spec.options & OPT_BIAS)
        set_vector(c, "bias", c->spec.m);
    if (c->spec.options & OPT_SAVED)
        set_statistics(c);
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, "y")->alias = test_index(c, "x");
}

typedef struct moments {
    double mean, rstd;
    double mean_error, rstd_error; /* the latter relative */
} moments;

/* A sum of F terms has an error of F + 4 units of its magnitude; the mean's moves each difference,
 * and with that the sum of squares by twice its share. */
static moments moments_of(const test_case *c, const test_tensor *x, int64_t n, int64_t s)
{
    const int64_t count = c->spec.m / segments_of(c);
    const double u = test_arith_eps(c), terms = (double)count;
    double mag = 0, var = 0;
    moments r = {0};
    for (int64_t f = s * count; f < (s + 1) * count; f++) {
        r.mean += x->value[test_row_element(c, n, f)] / terms;
        mag += fabs(x->value[test_row_element(c, n, f)]) / terms;
    }
    if (is_rms(c))
        r.mean = 0;
    for (int64_t f = s * count; f < (s + 1) * count; f++) {
        const double d = x->value[test_row_element(c, n, f)] - r.mean;
        var += d * d / terms;
    }
    r.rstd = 1 / sqrt(var + norm_eps(c));
    r.mean_error = is_rms(c) ? 0 : u * (terms + 4) * mag;
    const double step = r.mean_error + u * mag;
    r.rstd_error = u * (terms + 8) + (2 * step * sqrt(var) + step * step) / (var + norm_eps(c));
    return r;
}

static void oracle_layer_norm(test_case *c)
{
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y"), *gain = test_arg_at(c, "gain");
    test_tensor *bias = test_arg_at(c, "bias"), *mean = test_arg_at(c, "mean");
    test_tensor *rstd = test_arg_at(c, "rstd");
    const double u = test_arith_eps(c);
    const int64_t count = c->spec.m / segments_of(c);
    for (int64_t n = 0; n < c->spec.n; n++)
        for (int64_t s = 0; s < segments_of(c); s++) {
            const moments r = moments_of(c, x, n, s);
            if (mean->desc.dtype)
                test_expect(mean, s * c->spec.n + n, r.mean, r.mean_error);
            if (rstd->desc.dtype)
                test_expect(rstd, s * c->spec.n + n, r.rstd,
                            r.rstd > 0 ? r.rstd_error * r.rstd : 0);
            for (int64_t f = s * count; f < (s + 1) * count; f++) {
                const int64_t e = test_row_element(c, n, f);
                const double h = (x->value[e] - r.mean) * r.rstd, g = at_or(gain, f, 1);
                const double v = h * g + at_or(bias, f, 0);
                const double error = fabs(g) * (fabs(h) * (r.rstd_error + 6 * u) +
                                                r.rstd * (r.mean_error + u * fabs(x->value[e]))) +
                                     2 * u * fabs(v);
                test_expect(y, e,
                            c->spec.act == BSK_ACT_RELU ? test_activation(BSK_ACT_RELU, v) : v,
                            isfinite(error) ? error : 0);
            }
        }
}

static void build_layer_norm_grad(test_case *c)
{
    bsk_layer_norm_grad_params *p = (void *)c->params;
    bsk_layer_norm_grad_args *a = (void *)c->args;
    p->axis = c->spec.axis;
    p->segments = c->spec.count;
    p->relu = c->spec.act == BSK_ACT_RELU;
    test_blend(c, &p->dx_blend, &a->dx_alpha, &a->dx_beta);
    test_set(c, "dy", test_act(c, c->spec.dtype, c->spec.m));
    test_set(c, "x", test_act(c, test_out_type(c), c->spec.m));
    set_statistics(c);
    if (c->spec.options & OPT_GAIN)
        set_vector(c, "gain", c->spec.m);
    if (c->spec.options & OPT_BIAS)
        set_vector(c, "bias", c->spec.m);
    if (!(c->spec.options & OPT_NO_GRAD))
        test_set(c, "dx", test_act(c, test_out_type(c), c->spec.m))->zero_ok = c->spec.n < 4;
    if (c->spec.options & OPT_DBIAS) {
        set_vector(c, "dgain", c->spec.m)->zero_ok = c->spec.n < 4;
        set_vector(c, "dbias", c->spec.m)->zero_ok = c->spec.n < 4;
    }
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, "dx")->alias = test_index(c, "dy");
}

/* h and g of one element; doubt is |dy| where rounding may decide the relu. */
typedef struct layer_element {
    double h, g, doubt;
} layer_element;

static layer_element layer_at(test_case *c, int64_t n, int64_t f)
{
    const int64_t e = test_row_element(c, n, f), s = f / (c->spec.m / segments_of(c));
    const double x = test_arg_at(c, "x")->value[e], dy = test_arg_at(c, "dy")->value[e];
    const double mean = at_or(test_arg_at(c, "mean"), s * c->spec.n + n, 0);
    const double h = (x - mean) * test_arg_at(c, "rstd")->value[s * c->spec.n + n];
    const double gain = at_or(test_arg_at(c, "gain"), f, 1);
    const double bias = at_or(test_arg_at(c, "bias"), f, 0), pre = h * gain + bias;
    layer_element r = {h, dy, 0};
    if (c->spec.act == BSK_ACT_RELU) {
        r.g = pre > 0 ? dy : 0;
        if (fabs(pre) <= 8 * test_arith_eps(c) * (fabs(h * gain) + fabs(bias)))
            r.doubt = fabs(dy);
    }
    return r;
}

static void expect_vectors(test_case *c, int64_t f)
{
    test_tensor *out[2] = {test_arg_at(c, "dgain"), test_arg_at(c, "dbias")};
    double sum[2] = {0}, mag[2] = {0}, doubt = 0;
    const double u = test_arith_eps(c), a = test_alpha(c);
    for (int64_t n = 0; n < c->spec.n; n++) {
        const layer_element v = layer_at(c, n, f);
        sum[0] += v.g * v.h;
        sum[1] += v.g;
        mag[0] += fabs(v.g * v.h);
        mag[1] += fabs(v.g);
        doubt += v.doubt > 0 ? v.doubt * (1 + fabs(v.h)) : 0;
    }
    for (int o = 0; o < 2; o++) {
        const double old = out[o]->desc.dtype ? test_old(c, out[o], f) : 0;
        if (out[o]->desc.dtype)
            test_expect(out[o], f, a * sum[o] + old,
                        fabs(a) * (u * ((double)c->spec.n + 8) * mag[o] + doubt) +
                            4 * u * fabs(old));
    }
}

static void expect_segment(test_case *c, int64_t n, int64_t s)
{
    test_tensor *dx = test_arg_at(c, "dx"), *gain = test_arg_at(c, "gain");
    const int64_t count = c->spec.m / segments_of(c);
    const double u = test_arith_eps(c), terms = (double)count;
    const double rstd = test_arg_at(c, "rstd")->value[s * c->spec.n + n];
    double sum = 0, sum_h = 0, mag = 0, mag_h = 0, doubt = 0;
    for (int64_t f = s * count; f < (s + 1) * count; f++) {
        const layer_element v = layer_at(c, n, f);
        const double t = v.g * at_or(gain, f, 1);
        sum += is_rms(c) ? 0 : t;
        sum_h += t * v.h;
        mag += is_rms(c) ? 0 : fabs(t);
        mag_h += fabs(t * v.h);
        if (v.doubt > 0)
            doubt += v.doubt * fabs(at_or(gain, f, 1)) * (1 + fabs(v.h));
    }
    for (int64_t f = s * count; f < (s + 1) * count; f++) {
        const layer_element v = layer_at(c, n, f);
        const double t = v.g * at_or(gain, f, 1);
        const double error = u * ((terms + 12) * (mag + fabs(v.h) * mag_h) / terms + 6 * fabs(t)) +
                             doubt * (1 + fabs(v.h));
        test_expect_dx(c, dx, test_row_element(c, n, f), rstd * (t - (sum + v.h * sum_h) / terms),
                       rstd * error);
    }
}

static void oracle_layer_norm_grad(test_case *c)
{
    for (int64_t f = 0; f < c->spec.m; f++)
        expect_vectors(c, f);
    for (int64_t n = 0; test_arg_at(c, "dx")->desc.dtype && n < c->spec.n; n++)
        for (int64_t s = 0; s < segments_of(c); s++)
            expect_segment(c, n, s);
}

/* --- batch_norm: [n, k, m], k channels; kind 1: the gradient of inference ----------------- */

static bsk_tensor channels(const test_case *c, bsk_dtype dtype)
{
    return bsk_tensor_3d(dtype, c->spec.n, c->spec.k, c->spec.m);
}

static void build_batch_norm(test_case *c)
{
    test_set(c, "x", channels(c, c->spec.dtype));
    test_set(c, "y", channels(c, test_out_type(c)))->zero_ok = c->spec.n * c->spec.m < 4;
    set_vector(c, "mean", c->spec.k)->zero_ok = c->spec.k < 4;
    set_vector(c, "var", c->spec.k)->content = CONTENT_UNIT;
    test_arg_at(c, "var")->zero_ok = c->spec.n * c->spec.m < 4;
    if (c->spec.options & OPT_GAIN)
        set_vector(c, "gain", c->spec.k);
    if (c->spec.options & OPT_BIAS)
        set_vector(c, "bias", c->spec.k);
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, "y")->alias = test_index(c, "x");
}

/* Element i of channel k. */
static int64_t channel_element(const test_case *c, int64_t k, int64_t i)
{
    return (i / c->spec.m * c->spec.k + k) * c->spec.m + i % c->spec.m;
}

static void oracle_batch_norm(test_case *c)
{
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y"), *gain = test_arg_at(c, "gain");
    test_tensor *bias = test_arg_at(c, "bias"), *mean = test_arg_at(c, "mean");
    test_tensor *var = test_arg_at(c, "var");
    const bool infer = strcmp(c->op->name, "batch_norm_infer") == 0;
    const int64_t count = c->spec.n * c->spec.m;
    const double u = test_arith_eps(c), terms = (double)count;
    for (int64_t k = 0; k < c->spec.k; k++) {
        double m = infer ? mean->value[k] : 0, v = infer ? var->value[k] : 0, mag = 0;
        for (int64_t i = 0; i < count && !infer; i++) {
            m += x->value[channel_element(c, k, i)] / terms;
            mag += fabs(x->value[channel_element(c, k, i)]) / terms;
        }
        for (int64_t i = 0; i < count && !infer; i++)
            v += pow(x->value[channel_element(c, k, i)] - m, 2) / terms;
        const double mean_error = infer ? 0 : u * (terms + 4) * mag, step = mean_error + u * mag;
        const double var_error = infer ? 0 : u * (terms + 8) * v + 2 * step * sqrt(v) + step * step;
        const double rstd = 1 / sqrt(v + EPS), relative = var_error / (v + EPS) + 8 * u;
        for (int64_t i = 0; i < count; i++) {
            const int64_t e = channel_element(c, k, i);
            const double h = (x->value[e] - m) * rstd, g = at_or(gain, k, 1);
            const double r = h * g + at_or(bias, k, 0);
            const double error =
                fabs(g) * (fabs(h) * relative +
                           rstd * (mean_error + u * fabs(x->value[e]) + 2 * u * fabs(m))) +
                4 * u * (fabs(r) + fabs(at_or(bias, k, 0)));
            test_expect(y, e, r, error);
        }
        if (!infer) {
            test_expect(mean, k, m, mean_error);
            test_expect(var, k, v, var_error);
        }
    }
}

static void build_batch_norm_grad(test_case *c)
{
    bsk_batch_norm_grad_params *p = (void *)c->params;
    bsk_batch_norm_grad_args *a = (void *)c->args;
    p->infer = c->spec.kind;
    test_blend(c, &p->dx_blend, &a->dx_alpha, &a->dx_beta);
    test_set(c, "dy", channels(c, c->spec.dtype));
    test_set(c, "x", channels(c, c->spec.dtype));
    set_vector(c, "mean", c->spec.k);
    set_vector(c, "var", c->spec.k)->content = CONTENT_UNIT;
    if (c->spec.options & OPT_GAIN)
        set_vector(c, "gain", c->spec.k);
    const bool small = c->spec.n * c->spec.m < 4;
    if (!(c->spec.options & OPT_NO_GRAD))
        test_set(c, "dx", channels(c, test_out_type(c)))->zero_ok = small;
    if (c->spec.options & OPT_DBIAS) {
        set_vector(c, "dgain", c->spec.k)->zero_ok = small;
        set_vector(c, "dbias", c->spec.k)->zero_ok = small;
    }
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, "dx")->alias = test_index(c, "dy");
}

static void oracle_batch_norm_grad(test_case *c)
{
    test_tensor *dy = test_arg_at(c, "dy"), *x = test_arg_at(c, "x"), *dx = test_arg_at(c, "dx");
    test_tensor *out[2] = {test_arg_at(c, "dgain"), test_arg_at(c, "dbias")};
    const int64_t count = c->spec.n * c->spec.m;
    const double u = test_arith_eps(c), terms = (double)count, a = test_alpha(c);
    for (int64_t k = 0; k < c->spec.k; k++) {
        const double mean = test_arg_at(c, "mean")->value[k];
        const double rstd = 1 / sqrt(test_arg_at(c, "var")->value[k] + EPS);
        const double scale = at_or(test_arg_at(c, "gain"), k, 1) * rstd;
        double sum[2] = {0}, mag[2] = {0};
        for (int64_t i = 0; i < count; i++) {
            const int64_t e = channel_element(c, k, i);
            const double h = (x->value[e] - mean) * rstd;
            sum[0] += dy->value[e] * h;
            sum[1] += dy->value[e];
            mag[0] += fabs(dy->value[e]) * (fabs(x->value[e]) + fabs(mean)) * rstd;
            mag[1] += fabs(dy->value[e]);
        }
        for (int64_t i = 0; dx->desc.dtype && i < count; i++) {
            const int64_t e = channel_element(c, k, i);
            const double h = (x->value[e] - mean) * rstd;
            const double wide = (fabs(x->value[e]) + fabs(mean)) * rstd;
            const double part = c->spec.kind ? 0 : (sum[1] + h * sum[0]) / terms;
            const double error = c->spec.kind ? 0 : (terms + 16) * (mag[1] + wide * mag[0]) / terms;
            test_expect_dx(c, dx, e, scale * (dy->value[e] - part),
                           u * fabs(scale) * (error + 12 * fabs(dy->value[e])));
        }
        for (int o = 0; o < 2; o++)
            if (out[o]->desc.dtype) {
                const double old = test_old(c, out[o], k);
                test_expect(out[o], k, a * sum[o] + old,
                            u * ((terms + 12) * fabs(a) * mag[o] + 4 * fabs(old)));
            }
    }
}

/* --- lstm: n rows of m units; kind 1: split gates ----------------------------------------- */

static const char *const gate_names[4] = {"i", "u", "f", "o"};
static const char *const dgate_names[4] = {"di", "du", "df", "do_"};

static void set_gates(test_case *c, const char *merged, const char *const split[4])
{
    if (!c->spec.kind) {
        test_set(c, merged, test_act(c, test_out_type(c), 4 * c->spec.m));
        return;
    }
    for (int g = 0; g < 4; g++)
        test_set(c, split[g], test_act(c, test_out_type(c), c->spec.m));
}

static void build_lstm(test_case *c)
{
    ((bsk_lstm_gates_params *)(void *)c->params)->axis = c->spec.axis;
    ((bsk_lstm_gates_args *)(void *)c->args)->forget_bias = c->spec.value;
    const bsk_tensor desc = test_act(c, c->spec.dtype, c->spec.m);
    test_set(c, "c", desc);
    test_set(c, "c_next", desc);
    test_set(c, "h_next", test_act(c, test_out_type(c), c->spec.m));
    set_gates(c, "gates", gate_names);
    if (c->spec.options & OPT_BIAS)
        set_vector(c, "bias", 4 * c->spec.m);
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, "c_next")->alias = test_index(c, "c");
}

/* The activated gates i, u, f, o of one element, and c_next. */
static void cell_at(test_case *c, int64_t n, int64_t k, double cell[5])
{
    const test_tensor *bias = test_arg_at(c, "bias");
    const int64_t m = c->spec.m;
    for (int g = 0; g < 4; g++) {
        const test_tensor *t = test_arg_at(c, c->spec.kind ? gate_names[g] : "gates");
        const int64_t feature = c->spec.kind ? k : g * m + k, width = c->spec.kind ? m : 4 * m;
        double v = t->value[c->spec.axis == BSK_NC ? n * width + feature : feature * c->spec.n + n];
        v += at_or(bias, g * m + k, 0) + (g == 2 ? c->spec.value : 0);
        cell[g] = g == 1 ? tanh(v) : 1 / (1 + exp(-v));
    }
    cell[4] = cell[2] * test_arg_at(c, "c")->value[test_row_element(c, n, k)] + cell[0] * cell[1];
}

/* Gates have an absolute error of 32 units: slopes of at most 1, arguments of at most 4. */
static void oracle_lstm(test_case *c)
{
    const double u = test_arith_eps(c);
    for (int64_t n = 0; n < c->spec.n; n++)
        for (int64_t k = 0; k < c->spec.m; k++) {
            double v[5];
            const int64_t e = test_row_element(c, n, k);
            cell_at(c, n, k, v);
            test_expect(test_arg_at(c, "c_next"), e, v[4], 96 * u);
            test_expect(test_arg_at(c, "h_next"), e, v[3] * tanh(v[4]), 160 * u);
        }
}

static void build_lstm_grad(test_case *c)
{
    ((bsk_lstm_gates_grad_params *)(void *)c->params)->axis = c->spec.axis;
    ((bsk_lstm_gates_grad_args *)(void *)c->args)->forget_bias = c->spec.value;
    const bsk_tensor desc = test_act(c, c->spec.dtype, c->spec.m);
    test_set(c, "dh", desc);
    test_set(c, "c", desc);
    if (c->spec.options & OPT_DLOSS)
        test_set(c, "dc_next", desc);
    if (!(c->spec.options & OPT_NO_GRAD))
        test_set(c, "dc", desc);
    set_gates(c, "gates", gate_names);
    set_gates(c, "dgates", dgate_names);
    if (c->spec.options & OPT_BIAS)
        set_vector(c, "bias", 4 * c->spec.m);
    if ((c->spec.options & OPT_INPLACE) && !c->spec.kind)
        test_arg_at(c, "dgates")->alias = test_index(c, "gates");
    if ((c->spec.options & OPT_INPLACE) && (c->spec.options & OPT_DLOSS))
        test_arg_at(c, "dc")->alias = test_index(c, "dc_next");
}

static void oracle_lstm_grad(test_case *c)
{
    test_tensor *dh = test_arg_at(c, "dh"), *dc_next = test_arg_at(c, "dc_next");
    test_tensor *dc = test_arg_at(c, "dc"), *old = test_arg_at(c, "c");
    const double u = test_arith_eps(c);
    const int64_t m = c->spec.m;
    for (int64_t n = 0; n < c->spec.n; n++)
        for (int64_t k = 0; k < m; k++) {
            const int64_t e = test_row_element(c, n, k);
            double v[5];
            cell_at(c, n, k, v);
            const double i = v[0], g = v[1], f = v[2], o = v[3], t = tanh(v[4]);
            const double d = dh->value[e] * o * (1 - t * t) + at_or(dc_next, e, 0);
            const double grads[4] = {d * g * i * (1 - i), d * i * (1 - g * g),
                                     d * old->value[e] * f * (1 - f),
                                     dh->value[e] * t * o * (1 - o)};
            const double error[2] = {400 * u * (fabs(dh->value[e]) + fabs(at_or(dc_next, e, 0))),
                                     400 * u * fabs(dh->value[e])};
            for (int q = 0; q < 4; q++) {
                test_tensor *out = test_arg_at(c, c->spec.kind ? dgate_names[q] : "dgates");
                const int64_t feature = c->spec.kind ? k : q * m + k;
                const int64_t width = c->spec.kind ? m : 4 * m;
                const int64_t at =
                    c->spec.axis == BSK_NC ? n * width + feature : feature * c->spec.n + n;
                test_expect_blend(c, out, at, grads[q], error[q == 3]);
            }
            if (dc->desc.dtype)
                test_expect_blend(c, dc, e, d * f, error[0]);
        }
}

/* The quarters q of split4 and concat4, and the whole. */
static const char *const split_names[4] = {"y0", "y1", "y2", "y3"};
static const char *const concat_names[4] = {"x0", "x1", "x2", "x3"};

static void build_quarters(test_case *c)
{
    const bool split = strcmp(c->op->name, "split4") == 0;
    const bsk_dtype in = c->spec.dtype, out = test_out_type(c);
    if (split)
        ((bsk_split4_params *)(void *)c->params)->axis = c->spec.axis;
    else
        ((bsk_concat4_params *)(void *)c->params)->axis = c->spec.axis;
    test_set(c, split ? "x" : "y", test_act(c, split ? in : out, 4 * c->spec.m));
    for (int q = 0; q < 4; q++)
        test_set(c, split ? split_names[q] : concat_names[q],
                 test_act(c, split ? out : in, c->spec.m))
            ->zero_ok = c->spec.n * c->spec.m < 16;
}

static void oracle_quarters(test_case *c)
{
    const bool split = strcmp(c->op->name, "split4") == 0;
    test_tensor *all = test_arg_at(c, split ? "x" : "y");
    const int64_t m = c->spec.m;
    for (int q = 0; q < 4; q++) {
        test_tensor *part = test_arg_at(c, split ? split_names[q] : concat_names[q]);
        for (int64_t e = 0; e < part->elems; e++) {
            const int64_t at =
                c->spec.axis == BSK_NC ? e / m * 4 * m + q * m + e % m : q * m * c->spec.n + e;
            if (split)
                test_expect(part, e, all->value[at], 0);
            else
                test_expect(all, at, part->value[e], 0);
        }
    }
}

const test_op test_norms[] = {
    TEST_OP(layer_norm, build_layer_norm, oracle_layer_norm, NULL),
    TEST_OP(layer_norm_grad, build_layer_norm_grad, oracle_layer_norm_grad, NULL),
    TEST_OP(rms_norm, build_layer_norm, oracle_layer_norm, NULL),
    TEST_OP(rms_norm_grad, build_layer_norm_grad, oracle_layer_norm_grad, NULL),
    TEST_OP(batch_norm, build_batch_norm, oracle_batch_norm, NULL),
    TEST_OP(batch_norm_infer, build_batch_norm, oracle_batch_norm, NULL),
    TEST_OP(batch_norm_grad, build_batch_norm_grad, oracle_batch_norm_grad, NULL),
    TEST_OP(lstm_gates, build_lstm, oracle_lstm, NULL),
    TEST_OP(lstm_gates_grad, build_lstm_grad, oracle_lstm_grad, NULL),
    TEST_OP(split4, build_quarters, oracle_quarters, NULL),
    TEST_OP(concat4, build_quarters, oracle_quarters, NULL),
};
const int32_t test_norms_count = TEST_COUNT(test_norms);
