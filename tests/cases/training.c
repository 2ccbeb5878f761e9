/* Optimizers beside Adam, clipping, loss scale; number formats and statistics. */
#include <math.h>
#include <string.h>

#include "common/philox.h"
#include "tests/harness/test.h"

TEST_CALLS(adafactor)
TEST_CALLS(ema)
TEST_CALLS(global_norm)
TEST_CALLS(loss_scale)
TEST_CALLS(quantize)
TEST_CALLS(tensor_stats)

static double one_if_zero(double v)
{
    return v != 0 ? v : 1;
}

static test_tensor *set_number(test_case *c, const char *name, bsk_dtype dtype, double value)
{
    test_tensor *t = test_set(c, name, bsk_tensor_1d(dtype, 1));
    t->content = CONTENT_VALUE;
    t->constant = value;
    t->zero_ok = true;
    return t;
}

static void set_norm_scale(test_case *c)
{
    if (c->spec.options & (OPT_NORM_SCALE | OPT_SKIP))
        set_number(c, "norm_scale", BSK_F32,
                   !(c->spec.options & OPT_SKIP) ? 0.25
                   : c->spec.seed % 2            ? 0
                                                 : NAN);
}

/* --- adafactor: [k, m], or [k] where m is 0; "saved": with steps --------------------------- */

/* The step, and how many were made before where those are counted on the device. */
enum { STEP = 3, STEPS_BEFORE = 5 };

static void build_adafactor(test_case *c)
{
    const test_spec *s = &c->spec;
    bsk_adafactor_params *p = (void *)c->params;
    bsk_adafactor_args *a = (void *)c->args;
    const bsk_dtype state = test_scalar_type(c);
    bsk_tensor shape = s->m ? bsk_tensor_2d(state, s->k, s->m) : bsk_tensor_1d(state, s->k);
    p->beta2 = s->options & OPT_DECAY ? 0.5 : 0;
    p->clip = s->options & OPT_CLIP ? 0.25 : 0;
    a->lr = 0.01;
    a->grad_scale = s->value;
    a->step = STEP;
    test_set(c, "param", shape);
    test_set(c, "col", bsk_tensor_1d(state, s->m ? s->m : s->k))->content = CONTENT_POSITIVE;
    if (s->m)
        test_set(c, "row", bsk_tensor_1d(state, s->k))->content = CONTENT_POSITIVE;
    shape.dtype = s->dtype;
    test_set(c, "grad", shape);
    set_norm_scale(c);
    if (s->options & OPT_SAVED)
        set_number(c, "steps", BSK_I64, STEPS_BEFORE);
}

static void keep_all(test_tensor *t)
{
    for (int64_t e = 0; e < t->elems; e++)
        test_expect(t, e, t->value[e], 0);
}

typedef struct factored {
    test_tensor *param, *grad, *col, *row;
    int64_t rows, columns;
    double scale, decay, u;
} factored;

/* A moment along one row or column, from count gradients; the sum's error is relative. */
static void expect_moment(const factored *f, test_tensor *moment, int64_t i, int64_t first,
                          int64_t step, int64_t count)
{
    double sum = 0;
    for (int64_t j = 0; j < count; j++)
        sum += pow(f->grad->value[first + j * step] * f->scale, 2) + 1e-30;
    const double v = f->decay * moment->value[i] + (1 - f->decay) * sum / (double)count;
    test_expect(moment, i, v, f->u * ((double)count + 12) * v);
}

static double adafactor_step(const factored *f, int64_t e, double row_mean)
{
    const double g = f->grad->value[e] * f->scale;
    const double row = f->row->desc.dtype ? f->row->want[e / f->columns] / row_mean : 1;
    return g / sqrt(row) / sqrt(f->col->want[e % f->columns]);
}

static void oracle_adafactor(test_case *c)
{
    const test_spec *s = &c->spec;
    const bsk_adafactor_args *a = (void *)c->args;
    factored f = {test_arg_at(c, "param"), test_arg_at(c, "grad"),  test_arg_at(c, "col"),
                  test_arg_at(c, "row"),   .rows = s->m ? s->k : 1, .columns = s->m ? s->m : s->k};
    const test_tensor *norm = test_arg_at(c, "norm_scale");
    const double beta2 = s->options & OPT_DECAY ? 0.5 : 0.999;
    const int step = STEP + (s->options & OPT_SAVED ? STEPS_BEFORE : 0);
    double row_mean = 0, square = 0;
    if ((s->options & OPT_SKIP) || !f.param->elems) {
        keep_all(f.param);
        keep_all(f.col);
        keep_all(f.row);
        return;
    }
    f.u = test_arith_eps(c);
    f.scale = one_if_zero(a->grad_scale) * (norm->desc.dtype ? norm->value[0] : 1);
    /* beta2 (1 - beta2^step) / (1 - beta2^(step + 1)) as two sums */
    double before = 0, after = 1;
    for (int i = 1; i <= step; i++) {
        before += pow(beta2, i);
        after += pow(beta2, i);
    }
    f.decay = before / after;
    for (int64_t i = 0; i < f.columns; i++)
        expect_moment(&f, f.col, i, i, f.columns, f.rows);
    for (int64_t i = 0; f.row->desc.dtype && i < f.rows; i++) {
        expect_moment(&f, f.row, i, i * f.columns, 1, f.columns);
        row_mean += f.row->want[i] / (double)f.rows;
    }
    for (int64_t e = 0; e < f.param->elems; e++)
        square += pow(adafactor_step(&f, e, row_mean), 2);
    const double rms = sqrt(square / (double)f.param->elems);
    const double rate = a->lr / fmax(1, rms / (s->options & OPT_CLIP ? 0.25 : 1));
    for (int64_t e = 0; e < f.param->elems; e++) {
        const double p = f.param->value[e], move = rate * adafactor_step(&f, e, row_mean);
        const double terms = (double)(f.rows + f.columns + f.param->elems) + 60;
        test_expect(f.param, e, p - move, f.u * (2 * fabs(p) + terms * fabs(move)));
    }
}

/* --- ema: [k, m] -------------------------------------------------------------------------- */

static void build_ema(test_case *c)
{
    const test_spec *s = &c->spec;
    ((bsk_ema_args *)(void *)c->args)->decay = s->value;
    test_set(c, "average", bsk_tensor_2d(s->dtype, s->k, s->m));
    test_set(c, "param", bsk_tensor_2d(test_out_type(c), s->k, s->m));
    if (s->options & OPT_GATE)
        test_set(c, "gate", bsk_tensor_1d(BSK_F32, s->k))->content = CONTENT_GATE;
}

static void oracle_ema(test_case *c)
{
    test_tensor *average = test_arg_at(c, "average"), *param = test_arg_at(c, "param");
    const test_tensor *gate = test_arg_at(c, "gate");
    for (int64_t e = 0; e < average->elems; e++) {
        const double old = average->value[e], p = param->value[e];
        const bool still = gate->desc.dtype && gate->value[e / c->spec.m] == 0;
        const double v = still ? old : old - (1 - c->spec.value) * (old - p);
        test_expect(average, e, v,
                    still || !isfinite(v) ? 0 : 4 * test_arith_eps(c) * (fabs(old) + fabs(p)));
    }
}

/* --- global_norm: pairs tensors [n, k], value is grad_scale; "clip" clips at 1.5; "nograd":
 * all of x is 0 --- */

static void build_global_norm(test_case *c)
{
    bsk_global_norm_args *a = (void *)c->args;
    a->grad_scale = c->spec.value;
    a->clip = c->spec.options & OPT_CLIP ? 1.5 : 0;
    test_tensor *x = test_set(c, "x", test_shape(c, c->spec.dtype));
    if (c->spec.options & OPT_NO_GRAD)
        x->content = CONTENT_VALUE;
    set_number(c, "sum", test_scalar_type(c), 2);
    if (c->spec.options & OPT_SAVED) {
        set_number(c, "norm", test_scalar_type(c), 0);
        set_number(c, "norm_scale", BSK_F32, 0);
    }
}

static void oracle_global_norm(test_case *c)
{
    const test_tensor *x = test_arg_at(c, "x");
    test_tensor *sum = test_arg_at(c, "sum"), *norm = test_arg_at(c, "norm");
    test_tensor *norm_scale = test_arg_at(c, "norm_scale");
    const double u = test_arith_eps(c), count = (double)x->elems * x->views;
    double square = 0;
    for (int64_t e = 0; e < x->elems * x->views; e++)
        square += pow(x->value[e] * one_if_zero(c->spec.value), 2);
    const double old = c->spec.beta != 0 ? c->spec.beta * sum->value[0] : 0;
    const double total = square + old, root = sqrt(total), relative = u * (count + 8);
    const bool finite = isfinite(total);
    test_expect(sum, 0, total, finite ? relative * square + 4 * u * fabs(old) : 0);
    if (!norm->desc.dtype)
        return;
    const bool clips = (c->spec.options & OPT_CLIP) && root > 1.5;
    const double scale = !finite || total == 0 ? 0 : clips ? 1.5 / root : 1;
    test_expect(norm, 0, root, finite ? relative * root : 0);
    test_expect(norm_scale, 0, scale, clips && finite ? (relative + 0x1p-23) * scale : 0);
}

/* --- loss_scale: count is good before the step, value the scale; "norm" gives the norm, too,
 * "nograd" one of 0 --- */

static void build_loss_scale(test_case *c)
{
    bsk_loss_scale_params *p = (void *)c->params;
    p->interval = c->spec.options & OPT_DECAY ? 0 : 5;
    p->high = 4096;
    p->low = 0.5;
    set_number(c, "scale", BSK_F32, c->spec.value);
    set_number(c, "good", BSK_I32, c->spec.count);
    set_number(c, "norm_scale", BSK_F32,
               !(c->spec.options & OPT_SKIP) ? 0.25
               : c->spec.seed % 2            ? 0
                                             : NAN);
    if (c->spec.options & OPT_SAVED)
        set_number(c, "steps", BSK_I64, 41);
    if (c->spec.options & OPT_NORM_SCALE)
        set_number(c, "norm", BSK_F32, c->spec.options & OPT_NO_GRAD ? 0 : 3);
}

static void oracle_loss_scale(test_case *c)
{
    test_tensor *scale = test_arg_at(c, "scale"), *good = test_arg_at(c, "good");
    test_tensor *steps = test_arg_at(c, "steps");
    const bool skipped = c->spec.options & OPT_SKIP, still = c->spec.options & OPT_NO_GRAD;
    const int32_t interval = c->spec.options & OPT_DECAY ? 2000 : 5;
    const bool grows = !skipped && c->spec.count + 1 >= interval;
    const double v = c->spec.value;
    test_expect(scale, 0,
                still     ? v
                : skipped ? fmax(v / 2, 0.5)
                : grows   ? fmin(v * 2, 4096)
                          : v,
                0);
    test_expect(good, 0, still ? c->spec.count : skipped || grows ? 0 : c->spec.count + 1, 0);
    if (steps->desc.dtype)
        test_expect(steps, 0, still || skipped ? 41 : 42, 0);
}

/* --- quantize: count is 32 ebits + fbits, kind is stochastic + 2 flush, value the exponent --- */

static void build_quantize(test_case *c)
{
    bsk_quantize_params *p = (void *)c->params;
    bsk_quantize_args *a = (void *)c->args;
    p->ebits = c->spec.count >> 5;
    p->fbits = c->spec.count & 31;
    p->stochastic = c->spec.kind & 1;
    p->flush = c->spec.kind >> 1 & 1;
    a->emax = c->spec.options & OPT_SAVED ? 100 : (int64_t)c->spec.value;
    a->seed = c->spec.seed;
    a->offset = 5;
    test_set(c, "x", test_shape(c, c->spec.dtype));
    test_set(c, "y", test_shape(c, test_out_type(c)))->zero_ok = true;
    if (c->spec.options & OPT_SAVED)
        set_number(c, "exponent", BSK_I32, c->spec.value);
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, "y")->alias = test_index(c, "x");
}

/* Through the count of spacings, which is a whole number after rounding. */
static double quantize_one(const test_case *c, double x, int64_t e)
{
    const int ebits = c->spec.count >> 5, fbits = c->spec.count & 31;
    const int top = (int)fmin(fmax(c->spec.value, -126), 127);
    const int bottom = top - (1 << ebits) + 2 > -126 ? top - (1 << ebits) + 2 : -126;
    const double most = (2 - pow(2, -fbits)) * pow(2, top);
    int power;
    if (isnan(x) || x == 0)
        return x;
    if (fabs(x) >= most)
        return copysign(most, x);
    frexp(x, &power);
    const double spacing = pow(2, (power - 1 > bottom ? power - 1 : bottom) - fbits);
    double steps = fabs(x) / spacing;
    if (c->spec.kind & 1)
        steps = floor(steps) +
                (bski_philox_uniform(c->spec.seed, 5, (uint64_t)e) < steps - floor(steps));
    else
        steps = nearbyint(steps);
    double q = fmin(steps * spacing, most);
    if ((c->spec.kind & 2) && q < pow(2, bottom))
        q = 0;
    return copysign(q, x);
}

static void oracle_quantize(test_case *c)
{
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y");
    for (int64_t e = 0; e < y->elems; e++)
        test_expect(y, e, quantize_one(c, x->value[e], e), 0);
}

/* --- tensor_stats: value is spread; "clip": other limits; "tiny": x is 0.7, rounded to
 * its type, and the limits are 0.7 exactly --- */

static double stats_limit(const test_case *c, double clip, double otherwise)
{
    return c->spec.options & OPT_TINY ? 0.7 : c->spec.options & OPT_CLIP ? clip : otherwise;
}

static void build_stats(test_case *c)
{
    bsk_tensor_stats_params *p = (void *)c->params;
    bsk_tensor_stats_args *a = (void *)c->args;
    p->bias_pad = c->spec.count;
    p->spread = c->spec.value;
    a->saturate = stats_limit(c, 0.75, 0);
    a->tiny = stats_limit(c, 0.125, 0);
    test_tensor *x = test_set(c, "x", test_shape(c, c->spec.dtype));
    if (c->spec.options & (OPT_GAIN | OPT_TINY)) {
        x->content = CONTENT_VALUE; /* or such that neither sums nor squares fit into f32 */
        x->constant = c->spec.options & OPT_GAIN ? 0x1.8p126 : 0.7;
    }
    test_set(c, "stats", bsk_tensor_1d(test_scalar_type(c), BSK_STATS_COUNT))->zero_ok =
        c->spec.n == 0;
    if (c->spec.options & OPT_SAVED)
        set_number(c, "exponent", BSK_I32, 0);
}

static void oracle_stats(test_case *c)
{
    const test_tensor *x = test_arg_at(c, "x");
    test_tensor *stats = test_arg_at(c, "stats"), *exponent = test_arg_at(c, "exponent");
    const double u = test_arith_eps(c), count = (double)x->elems;
    const double saturate = stats_limit(c, 0.75, 65504), tiny = stats_limit(c, 0.125, 0x1p-24);
    double mean = 0, most = 0, square = 0, high = 0, low = 0;
    for (int64_t e = 0; e < x->elems; e++) {
        const double v = isnan(x->value[e]) ? INFINITY : fabs(x->value[e]);
        mean += v / count;
        most = fmax(most, v);
        high += v >= saturate;
        low += v > 0 && v < tiny;
    }
    for (int64_t e = 0; e < x->elems; e++)
        square += pow(fabs(x->value[e]) - mean, 2) / count;
    const bool finite = isfinite(mean);
    const double std = finite ? sqrt(square) : INFINITY;
    const double mean_error = u * (count + 4) * mean;
    test_expect(stats, BSK_STATS_MEAN, mean, finite ? mean_error : 0);
    test_expect(stats, BSK_STATS_STD, std,
                finite ? u * (count + 8) * std + 2 * mean_error + u * most : 0);
    test_expect(stats, BSK_STATS_MAX, most, 0);
    test_expect(stats, BSK_STATS_SATURATED, count > 0 ? high / count : 0,
                finite ? 2 * u * high / fmax(count, 1) : 2 * u);
    test_expect(stats, BSK_STATS_FLUSHED, count > 0 ? low / count : 0,
                low > 0 ? 2 * u * low / count : 0);
    if (!exponent->desc.dtype)
        return;
    const double v = c->spec.value > 0 ? mean + c->spec.value * std : most;
    double power = v == 0 ? -126 : isfinite(v) ? floor(log2(v)) + c->spec.count : 127;
    test_expect(exponent, 0, fmin(fmax(power, -126), 127), 0);
}

const test_op test_training[] = {
    TEST_OP(adafactor, build_adafactor, oracle_adafactor, NULL),
    TEST_OP(ema, build_ema, oracle_ema, NULL),
    TEST_OP(global_norm, build_global_norm, oracle_global_norm, NULL),
    TEST_OP(loss_scale, build_loss_scale, oracle_loss_scale, NULL),
    TEST_OP(quantize, build_quantize, oracle_quantize, NULL),
    TEST_OP(tensor_stats, build_stats, oracle_stats, NULL),
};
const int32_t test_training_count = TEST_COUNT(test_training);
