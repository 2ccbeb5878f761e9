/* Gradient ops against finite differences of their forward ops, in f64: for L = sum(y o dy) the
 * gradient op must give dL/dx. Everything runs through the library. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/src/internal.h"
#include "tests/harness/test.h"

#define LINEAR .n = 7, .br = 8, .bc = 5, .k = 21, .m = 18, .pattern_value = 0.6
#define BLOCKS .n = -1, .br = 8, .bc = 5, .k = 21, .m = 18, .pattern_value = 0.6

static const test_gradient gradients[] = {
    {{.op = "matmul", LINEAR, .options = OPT_GATE},
     "matmul_dgrad",
     OPT_GATE,
     "x",
     "y",
     "dy",
     "dx",
     {"w", "gate"}},
    {{.op = "matmul", LINEAR, .axis = BSK_CN, .transpose = 1},
     "matmul_dgrad",
     0,
     "x",
     "y",
     "dy",
     "dx",
     {"w"}},
    {{.op = "matmul", LINEAR, .options = OPT_GATE, .gate_mode = BSK_GATE_SCALE},
     "matmul_wgrad",
     OPT_GATE,
     "w",
     "y",
     "dy",
     "dw",
     {"x", "gate"}},
    {{.op = "matmul", LINEAR, .axis = BSK_CN, .transpose = 1},
     "matmul_wgrad",
     0,
     "w",
     "y",
     "dy",
     "dw",
     {"x"}},
    {{.op = "matmul", LINEAR, .options = OPT_GATE},
     "matmul_wgrad",
     OPT_GATE | OPT_DGATE,
     "gate",
     "y",
     "dy",
     "dgate",
     {"x", "w", "gate"}},
    {{.op = "matmul", LINEAR, .options = OPT_BIAS},
     "matmul_wgrad",
     OPT_DBIAS,
     "bias",
     "y",
     "dy",
     "dbias",
     {"x"}},
    {{.op = "l2_normalize", BLOCKS, .options = OPT_GAIN | OPT_SAVED},
     "l2_normalize_grad",
     OPT_GAIN,
     "w",
     "y",
     "dy",
     "dw",
     {"w", "gain", "saved=saved"}},
    {{.op = "l2_normalize", BLOCKS, .options = OPT_GAIN | OPT_SAVED},
     "l2_normalize_grad",
     OPT_GAIN,
     "gain",
     "y",
     "dy",
     "dgain",
     {"w", "gain", "saved=saved"}},
    {{.op = "l2_normalize", BLOCKS, .options = OPT_SAVED | OPT_TINY},
     "l2_normalize_grad",
     OPT_TINY,
     "w",
     "y",
     "dy",
     "dw",
     {"w", "saved=saved"}},
    {{.op = "concrete_gate", .n = 60},
     "concrete_gate_grad",
     0,
     "loga",
     "gate",
     "dgate",
     "dloga",
     {"concrete=concrete"}},
    {{.op = "proj_gather", .n = 5, .k = 12, .m = 7},
     "proj_scatter",
     0,
     "x",
     "y",
     "x",
     "y",
     {"index"}},
    {{.op = "proj_scatter", .n = 5, .k = 12, .m = 7, .axis = BSK_CN},
     "proj_gather",
     0,
     "x",
     "y",
     "x",
     "y",
     {"index"}},
    {{.op = "proj_scatter_mul", .n = 5, .k = 12, .m = 7},
     "proj_scatter_mul_grad",
     0,
     "x",
     "y",
     "dy",
     "dx",
     {"x", "v", "index"}},
    {{.op = "proj_scatter_mul", .n = 5, .k = 12, .m = 7, .axis = BSK_CN},
     "proj_scatter_mul_grad",
     0,
     "v",
     "y",
     "dy",
     "dv",
     {"x", "v", "index"}},
    {{.op = "embedding", .n = 30, .k = 9, .m = 4, .index = BSK_I64},
     "embedding_grad",
     0,
     "table",
     "y",
     "dy",
     "dtable",
     {"index"}},
    {{.op = "bias_act", .n = 6, .m = 7, .act = BSK_ACT_RELU, .options = OPT_BIAS},
     "bias_act_grad",
     OPT_BIAS | OPT_DBIAS,
     "x",
     "y",
     "dy",
     "dx",
     {"x", "bias"}},
    {{.op = "bias_act", .n = 6, .m = 7, .act = BSK_ACT_GELU, .options = OPT_BIAS},
     "bias_act_grad",
     OPT_BIAS | OPT_DBIAS,
     "x",
     "y",
     "dy",
     "dx",
     {"x", "bias"}},
    {{.op = "bias_act", .n = 6, .m = 7, .act = BSK_ACT_GELU_ERF, .options = OPT_BIAS},
     "bias_act_grad",
     OPT_BIAS | OPT_DBIAS,
     "bias",
     "y",
     "dy",
     "dbias",
     {"x", "bias"}},
    {{.op = "bias_act", .n = 6, .m = 7, .act = BSK_ACT_SILU, .options = OPT_BIAS},
     "bias_act_grad",
     OPT_BIAS | OPT_DBIAS,
     "x",
     "y",
     "dy",
     "dx",
     {"x", "bias"}},
    {{.op = "bias_act", .n = 6, .m = 7, .act = BSK_ACT_QUICK_GELU, .options = OPT_BIAS},
     "bias_act_grad",
     OPT_BIAS | OPT_DBIAS,
     "bias",
     "y",
     "dy",
     "dbias",
     {"x", "bias"}},
    {{.op = "cross_entropy", .n = 9, .m = 6, .index = BSK_U16, .options = OPT_SMOOTH | OPT_IGNORE},
     "cross_entropy",
     OPT_SMOOTH | OPT_IGNORE | OPT_DLOSS,
     "logits",
     "loss",
     "dloss",
     "dlogits",
     {"logits", "labels"}},
};

/* Runs a case once with the device's own choice of entry and puts outputs into want. */
static bool evaluate(test_case *c, const test_device *d, test_result *r)
{
    bsk_plan *plan = NULL;
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    test_memory *m = malloc(sizeof *m);
    options.fallback = BSK_FALLBACK_DEVICE;
    bsk_status status = c->op->plan(d->device, c->params, &options, &plan);
    if (status || !m) {
        free(m);
        return test_fail(r, "plan of %s: %s", c->op->name, bsk_last_error());
    }
    bsk_plan_query(plan, &info);
    bool good = test_memory_make(m, c, d->device, info.workspace_bytes) &&
                test_memory_load(m, c, d->queue, 0) == BSK_OK &&
                c->op->run(plan, d->queue, c->args) == BSK_OK;
    for (int32_t i = 0; good && i < c->about->arg_count; i++) {
        test_tensor *t = &c->t[i];
        if (!t->output || !t->desc.dtype)
            continue;
        test_buffer *b = &m->buffer[i][0];
        good = bsk_mem_download(d->queue, b->image, b->whole, b->total) == BSK_OK &&
               bsk_queue_sync(d->queue) == BSK_OK;
        for (int64_t e = 0; good && e < t->elems; e++)
            t->want[e] =
                t->at[e] < 0 ? 0 : test_number(t->desc.dtype, b->image + b->lead, t->at[e]);
    }
    if (!good)
        test_fail(r, "run of %s: %s", c->op->name, bsk_last_error());
    test_memory_free(m);
    free(m);
    bsk_plan_destroy(&plan);
    return good;
}

static void copy_numbers(test_tensor *to, const double *from)
{
    for (int64_t e = 0; e < to->elems; e++)
        if (to->at[e] >= 0)
            test_store(to->desc.dtype, to->init, to->at[e], from[e]);
    test_values_refresh(to);
}

/* Gives the backward op the forward's inputs and what the forward saved. */
static void share(test_case *f, test_case *b, const test_gradient *g)
{
    for (int i = 0; i < TEST_COUNT(g->shared) && g->shared[i]; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s", g->shared[i]);
        char *equals = strchr(name, '=');
        if (equals) {
            *equals = 0;
            copy_numbers(test_arg_at(b, equals + 1), test_arg_at(f, name)->want);
            continue;
        }
        const test_tensor *from = test_arg_at(f, name);
        test_tensor *to = test_arg_at(b, name);
        memcpy(to->init, from->init, to->bytes);
        test_values_refresh(to);
    }
}

/* What is padding by the lengths that the backward op had of its own may be NaN. */
static void clear_padding(test_tensor *dy)
{
    for (int64_t e = 0; e < dy->elems; e++)
        if (dy->at[e] >= 0 && isnan(dy->value[e]))
            test_store(dy->desc.dtype, dy->init, dy->at[e], 0);
    test_values_refresh(dy);
}

static double objective(const test_tensor *y, const double *weights)
{
    double sum = 0;
    for (int64_t e = 0; e < y->elems; e++)
        if (y->at[e] >= 0)
            sum += y->want[e] * weights[e];
    return sum;
}

static bool differences(test_case *f, test_case *b, const test_gradient *g, const test_device *d,
                        test_result *r)
{
    test_tensor *x = test_arg_at(f, g->input), *y = test_arg_at(f, g->output);
    const double *dy = test_arg_at(b, g->upstream)->value, *dx = test_arg_at(b, g->result)->want;
    const double h = 1e-5;
    int64_t step = x->elems / 40 + 1;
    double largest = 0;
    for (int64_t e = 0; e < x->elems; e += step) {
        if (x->at[e] < 0 || (strcmp(g->input, "gate") == 0 && x->value[e] == 0))
            continue;
        double side[2];
        for (int k = 0; k < 2; k++) {
            bski_store(BSK_F64, x->init, x->at[e], x->value[e] + (k ? -h : h));
            if (!evaluate(f, d, r))
                return false;
            side[k] = objective(y, dy);
        }
        bski_store(BSK_F64, x->init, x->at[e], x->value[e]);
        double slope = (side[0] - side[1]) / (2 * h), error = fabs(slope - dx[e]);
        largest = fmax(largest, fabs(dx[e]));
        if (!(error <= 1e-7 + 1e-6 * fabs(slope)))
            return test_fail(r, "%s[%lld] is %.12g, the difference quotient %.12g", g->result,
                             (long long)e, dx[e], slope);
    }
    return largest > 0 || test_fail(r, "mistrusted: every gradient that was tried is zero");
}

static void gradient_check(test_session *s, const test_device *d, const test_gradient *g)
{
    test_spec forward = g->forward, backward;
    forward.dtype = BSK_F64;
    forward.seed = 5;
    backward = forward;
    backward.op = g->backward;
    backward.options = g->options;
    char name[TEST_NAME], full[TEST_NAME + 48];
    test_spec_name(&forward, name);
    snprintf(full, sizeof full, "gradient %s of %s", g->result, name);
    /* Differences need f64, which some devices lack. */
    if (!(d->device->props.dtypes & BSK_DTYPE_BIT(BSK_F64)) || !test_has_entry(d, forward.op) ||
        !test_has_entry(d, backward.op) || !test_wanted(s, full))
        return;
    test_result r = {TEST_PASS, "", 0, 0};
    test_case *f = test_case_make(&forward, false), *b = test_case_make(&backward, false);
    if (f && b) {
        test_case_expect(f);
        test_case_expect(b);
    }
    if (!f || !b)
        test_fail(&r, "cannot build the cases");
    else if (evaluate(f, d, &r)) {
        share(f, b, g);
        clear_padding(test_arg_at(b, g->upstream));
        if (evaluate(b, d, &r))
            differences(f, b, g, d, &r);
    }
    test_report(s, full, d, "", &r);
    test_case_free(f);
    test_case_free(b);
}

void suite_gradients(test_session *s, const test_device *d)
{
    for (int i = 0; i < TEST_COUNT(gradients); i++)
        gradient_check(s, d, &gradients[i]);
    for (int i = 0; i < test_gradients_dense_count; i++)
        gradient_check(s, d, &test_gradients_dense[i]);
    for (int i = 0; i < test_gradients_attention_count; i++)
        gradient_check(s, d, &test_gradients_attention[i]);
}
