/* Optimizers. */
#include <math.h>
#include <string.h>

#include "tests/harness/test.h"

TEST_CALLS(adam)
TEST_CALLS(adam_n)

/* The step, and how many were made before where those are counted on the device. */
enum { STEP = 3, STEPS_BEFORE = 5 };
#define RATE  0.01
#define DECAY 0.1

/* The scalars, in the params p and args a of either op. beta1 and beta2 are those of R1's test where
 * "clip" is set. */
#define SET_SCALARS(s, p, a)                                                                       \
    do {                                                                                           \
        (p)->stochastic = (s)->kind;                                                               \
        (p)->beta1 = (s)->options & OPT_CLIP ? 0.8 : 0;                                            \
        (p)->beta2 = (s)->options & OPT_CLIP ? 0.5 : 0;                                            \
        (a)->seed = (s)->seed + 0x100000000u;                                                      \
        (a)->offset = 7;                                                                           \
        (a)->lr = RATE;                                                                            \
        (a)->grad_scale = (s)->value;                                                              \
        (a)->weight_decay = (s)->options & OPT_DECAY ? DECAY : 0;                                  \
        (a)->clip_sigma = (s)->options & OPT_CLIP ? 1 : 0;                                         \
        (a)->step = STEP;                                                                          \
    } while (0)

/* Shape [k, m], or [k] where m is 0; index is the type of the moments, kind 1 rounds them at
 * random. "saved": with steps. */
static void set_tensors(test_case *c)
{
    const test_spec *s = &c->spec;
    bsk_dtype state = s->dtype == BSK_F64 ? BSK_F64 : BSK_F32;
    bsk_tensor shape = s->m ? bsk_tensor_2d(state, s->k, s->m) : bsk_tensor_1d(state, s->k);
    bsk_tensor moment = shape;
    moment.dtype = s->index ? s->index : state;
    test_set(c, "param", shape);
    test_set(c, "m", moment)->limit = 0x10000;
    test_set(c, "v", moment)->limit = 0x10000;
    if (moment.dtype != BSK_U16)
        test_arg_at(c, "v")->content = CONTENT_POSITIVE;
    shape.dtype = s->dtype;
    test_set(c, "grad", shape)->content = s->options & OPT_LAZY ? CONTENT_ROWS : CONTENT_DEFAULT;
    if (s->options & (OPT_NORM_SCALE | OPT_SKIP)) {
        test_tensor *t = test_set(c, "norm_scale", bsk_tensor_1d(BSK_F32, 1));
        t->content = CONTENT_VALUE;
        t->constant = !(s->options & OPT_SKIP) ? 0.25 : s->seed % 2 ? 0 : NAN;
    }
    if (s->options & OPT_SAVED) {
        test_tensor *t = test_set(c, "steps", bsk_tensor_1d(BSK_I64, 1));
        t->content = CONTENT_VALUE;
        t->constant = STEPS_BEFORE;
    }
    if (s->options & OPT_GATE)
        test_set(c, "gate", bsk_tensor_1d(BSK_F32, s->k))->content = CONTENT_GATE;
    if (s->options & OPT_COPY) {
        shape.dtype = test_out_type(c);
        test_set(c, "copy", shape);
    }
}

static void build_adam(test_case *c)
{
    bsk_adam_params *p = (void *)c->params;
    bsk_adam_args *a = (void *)c->args;
    SET_SCALARS(&c->spec, p, a);
    p->lazy = (c->spec.options & OPT_LAZY) != 0;
    set_tensors(c);
}

/* Lists of `pairs` tensors. */
static void build_adam_n(test_case *c)
{
    bsk_adam_n_params *p = (void *)c->params;
    bsk_adam_n_args *a = (void *)c->args;
    SET_SCALARS(&c->spec, p, a);
    set_tensors(c);
}

static bool row_is_zero(const double *g, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (g[i] != 0)
            return false;
    return true;
}

/* --- the formats of m (9 fraction bits and a sign) and v (10) in u16 ----------------------- */

static double decode(const test_tensor *t, int64_t e, int fraction)
{
    if (t->desc.dtype != BSK_U16)
        return t->value[e];
    const int code = (int)t->value[e], size = fraction == 9 ? code & 0x7fff : code;
    const double share = (double)(size & ((1 << fraction) - 1)) / (1 << fraction);
    const double v = size ? (1 + share) * pow(2, (size >> fraction) - 60) : 0;
    return size == code ? v : -v;
}

static double encode(double v, int fraction)
{
    const double one = 1 << fraction, most = 16 - 8 / one;
    const double power = floor(log2(fmin(fabs(v), most)));
    const double size = floor(fmin(fabs(v), most) / pow(2, power) * one + 0.5) - one;
    const double code = power < -60 ? 0 : (power + 60) * one + size;
    return v < 0 && code > 0 ? code + 0x8000 : code;
}

/* What is stored of a moment: within one step where chance decides, or where a tie may. */
static void expect_moment(test_case *c, test_tensor *t, int64_t e, double want, double error,
                          int fraction)
{
    if (t->desc.dtype == BSK_U16)
        test_expect(t, e, encode(want, fraction), 0.5);
    else
        test_expect(t, e, want, c->spec.kind ? error + 0x1p-8 * fabs(want) : error);
}

typedef struct adam_state {
    test_tensor *param, *grad, *m, *v, *copy;
    double beta1, beta2, eps, scale, rate, clip, decay;
    double u;
    test_case *c;
} adam_state;

/* Units of rounding: 3 for g, 10 for v and thus 7 for its root, 8 for m, and these together with
 * the three operations of the update. */
static void expect_update(const adam_state *s, int64_t e)
{
    double g = s->grad->value[e] * s->scale, p = s->param->value[e], u = s->u;
    double v = s->beta2 * decode(s->v, e, 10) + (1 - s->beta2) * g * g, root = sqrt(v);
    double limit = s->clip * root;
    if (s->clip > 0)
        g = g > limit ? limit : g < -limit ? -limit : g;
    double old = decode(s->m, e, 9), m = s->beta1 * old + (1 - s->beta1) * g;
    double mag = s->beta1 * fabs(old) + (1 - s->beta1) * fabs(g);
    double step = s->rate * m / (root + s->eps), decay = s->decay * p;
    double next = p - step - decay;
    double error = u * (32 * s->rate * mag / (root + s->eps) + 4 * fabs(decay) + 2 * fabs(p));
    expect_moment(s->c, s->v, e, v, 10 * u * v, 10);
    expect_moment(s->c, s->m, e, m, 16 * u * mag, 9);
    test_expect(s->param, e, next, error);
    if (s->copy->desc.dtype)
        test_expect(s->copy, e, next, error + u * fabs(next));
}

static void oracle_adam(test_case *c)
{
    const test_spec *s = &c->spec;
    const test_tensor *norm = test_arg_at(c, "norm_scale");
    const test_tensor *gate = strcmp(s->op, "adam_n") ? test_arg_at(c, "gate") : NULL;
    adam_state t = {test_arg_at(c, "param"), test_arg_at(c, "grad"), test_arg_at(c, "m"),
                    test_arg_at(c, "v"), test_arg_at(c, "copy")};
    t.beta1 = s->options & OPT_CLIP ? 0.8 : 0.9;
    t.beta2 = s->options & OPT_CLIP ? 0.5 : 0.999;
    t.eps = 1e-8;
    t.scale = (s->value != 0 ? s->value : 1) * (norm->desc.dtype ? norm->value[0] : 1);
    t.clip = s->options & OPT_CLIP ? 1 : 0;
    t.decay = s->options & OPT_DECAY ? RATE * DECAY : 0;
    const double step = STEP + (s->options & OPT_SAVED ? STEPS_BEFORE : 0);
    t.rate = RATE * sqrt(1 - pow(t.beta2, step)) / (1 - pow(t.beta1, step));
    t.u = test_arith_eps(c);
    t.c = c;
    int64_t width = s->m ? s->m : 1;
    for (int64_t e = 0; e < t.param->elems * t.param->views; e++) {
        int64_t row = e / width;
        bool still = (s->options & OPT_SKIP) ||
                     (gate && gate->desc.dtype && gate->value[row] == 0) ||
                     ((s->options & OPT_LAZY) && row_is_zero(t.grad->value + row * width, width));
        if (!still) {
            expect_update(&t, e);
            continue;
        }
        test_expect(t.param, e, t.param->value[e], 0);
        test_expect(t.m, e, t.m->value[e], 0);
        test_expect(t.v, e, t.v->value[e], 0);
    }
}

const test_op test_optim[] = {
    TEST_OP(adam, build_adam, oracle_adam, NULL),
    TEST_OP(adam_n, build_adam_n, oracle_adam, NULL),
};
const int32_t test_optim_count = TEST_COUNT(test_optim);
