/* Element-wise ops: binary, unary, sums, casts and transposes, channels, filters, dropout. */
#include <math.h>
#include <string.h>

#include "common/philox.h"
#include "tests/harness/test.h"

TEST_CALLS(binary)
TEST_CALLS(binary_grad)
TEST_CALLS(unary)
TEST_CALLS(unary_grad)
TEST_CALLS(add_n)
TEST_CALLS(assign_add)
TEST_CALLS(cast)
TEST_CALLS(transpose_2d)
TEST_CALLS(transpose_0213)
TEST_CALLS(cwise_linear)
TEST_CALLS(cwise_linear_grad)
TEST_CALLS(filter)
TEST_CALLS(sparse_relu)
TEST_CALLS(sparse_relu_grad)
TEST_CALLS(dropout)

static test_tensor *set_shaped(test_case *c, const char *name, bsk_dtype dtype)
{
    return test_set(c, name, test_shape(c, dtype));
}

/* An output; all of it may be zero if it is small. */
static test_tensor *set_output(test_case *c, const char *name, bsk_tensor desc)
{
    test_tensor *t = test_set(c, name, desc);
    int64_t elems = 1;
    for (int i = 0; i < desc.rank; i++)
        elems *= desc.dims[i];
    t->zero_ok = elems < 16;
    return t;
}

static void set_inplace(test_case *c, const char *out, const char *in)
{
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, out)->alias = test_index(c, in);
}

/* --- binary: count tells which dimensions of x (bits 0 to 4) and y (5 to 9) are 1 --------- */

static bsk_tensor repeated(const test_case *c, bsk_dtype dtype, int32_t bits)
{
    bsk_tensor t = test_shape(c, dtype);
    for (int d = 0; d < t.rank; d++)
        if (bits >> d & 1)
            t.dims[d] = 1;
    return t;
}

static bsk_tensor shape_x(const test_case *c)
{
    return repeated(c, c->spec.dtype, c->spec.count);
}

static bsk_tensor shape_y(const test_case *c)
{
    return repeated(c, c->spec.index ? c->spec.index : c->spec.dtype, c->spec.count >> 5);
}

/* The element of a tensor with dimensions of 1 that stands for element e of a full shape. */
static int64_t element_of(const bsk_tensor *full, const bsk_tensor *part, int64_t e)
{
    int64_t at = 0, stride = 1;
    for (int d = full->rank - 1; d >= 0; d--) {
        if (part->dims[d] > 1) {
            at += e % full->dims[d] * stride;
            stride *= part->dims[d];
        }
        e /= full->dims[d] > 0 ? full->dims[d] : 1;
    }
    return at;
}

static test_content divisor_content(const test_case *c)
{
    return c->spec.kind != BSK_BINARY_DIV ? CONTENT_DEFAULT
           : c->spec.fill == FILL_INT     ? CONTENT_SCALE
                                          : CONTENT_UNIT;
}

static void build_binary(test_case *c)
{
    ((bsk_binary_params *)(void *)c->params)->kind = (bsk_binary_kind)c->spec.kind;
    test_set(c, "x", shape_x(c));
    test_set(c, "y", shape_y(c))->content = divisor_content(c);
    set_output(c, "z", test_shape(c, test_out_type(c)));
    set_inplace(c, "z", "x");
}

static double binary_of(int32_t kind, double x, double y)
{
    switch (kind) {
    case BSK_BINARY_ADD:
        return x + y;
    case BSK_BINARY_SUB:
        return x - y;
    case BSK_BINARY_MUL:
        return x * y;
    case BSK_BINARY_DIV:
        return x / y;
    default:
        if (isnan(x) || isnan(y))
            return NAN;
        return kind == BSK_BINARY_MAX ? fmax(x, y) : fmin(x, y);
    }
}

static void oracle_binary(test_case *c)
{
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y"), *z = test_arg_at(c, "z");
    const double u = test_arith_eps(c);
    for (int64_t e = 0; e < z->elems; e++) {
        const double v = binary_of(c->spec.kind, x->value[element_of(&z->desc, &x->desc, e)],
                                   y->value[element_of(&z->desc, &y->desc, e)]);
        const bool exact = c->spec.kind >= BSK_BINARY_MAX || c->spec.fill == FILL_INT;
        test_expect(z, e, v, exact || !isfinite(v) ? 0 : 2 * u * fabs(v));
    }
}

static void build_binary_grad(test_case *c)
{
    ((bsk_binary_grad_params *)(void *)c->params)->kind = (bsk_binary_kind)c->spec.kind;
    bsk_tensor out = shape_x(c);
    set_shaped(c, "dz", c->spec.dtype);
    if (c->spec.kind > BSK_BINARY_SUB || (c->spec.options & OPT_SAVED)) {
        test_tensor *x = test_set(c, "x", shape_x(c)), *y = test_set(c, "y", shape_y(c));
        y->content = divisor_content(c);
        if (c->spec.options & OPT_GAIN) { /* y * y does not fit into f32, x / y / y does */
            x->content = y->content = CONTENT_VALUE;
            x->constant = 0x1.8p126;
            y->constant = 0x1p100;
        }
    }
    out.dtype = test_out_type(c);
    if (!(c->spec.options & OPT_NO_GRAD))
        set_output(c, "dx", out);
    set_output(c, "dy", shape_y(c));
}

static double share_of(double x, double y)
{
    if (isnan(x) || isnan(y))
        return NAN;
    return x > y ? 1 : x == y ? 0.5 : 0;
}

static double binary_slope(int32_t kind, double x, double y, bool of_x)
{
    switch (kind) {
    case BSK_BINARY_ADD:
        return 1;
    case BSK_BINARY_SUB:
        return of_x ? 1 : -1;
    case BSK_BINARY_MUL:
        return of_x ? y : x;
    case BSK_BINARY_DIV:
        return of_x ? 1 / y : -x / y / y;
    case BSK_BINARY_MAX:
        return of_x ? share_of(x, y) : share_of(y, x);
    default:
        return of_x ? share_of(y, x) : share_of(x, y);
    }
}

static void expect_operand(test_case *c, const char *name, bool of_x)
{
    test_tensor *dz = test_arg_at(c, "dz"), *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y");
    test_tensor *out = test_arg_at(c, name);
    if (!out->desc.dtype)
        return;
    const double u = test_arith_eps(c);
    const double terms = out->elems ? (double)dz->elems / (double)out->elems : 0;
    for (int64_t e = 0; e < out->elems; e++)
        out->want[e] = out->bound[e] = 0;
    for (int64_t e = 0; e < dz->elems; e++) {
        const int64_t at = element_of(&dz->desc, &out->desc, e);
        const double vx = x->desc.dtype ? x->value[element_of(&dz->desc, &x->desc, e)] : 0;
        const double vy = y->desc.dtype ? y->value[element_of(&dz->desc, &y->desc, e)] : 0;
        const double v = dz->value[e] * binary_slope(c->spec.kind, vx, vy, of_x);
        out->want[at] += v;
        out->bound[at] += fabs(v);
    }
    for (int64_t e = 0; e < out->elems; e++) {
        const double old = test_old(c, out, e), v = test_alpha(c) * out->want[e] + old;
        const double error =
            u * ((terms + 6) * fabs(test_alpha(c)) * out->bound[e] + 4 * fabs(old));
        test_expect(out, e, v, c->spec.fill == FILL_INT || !isfinite(v) ? 0 : error);
    }
}

static void oracle_binary_grad(test_case *c)
{
    expect_operand(c, "dx", true);
    expect_operand(c, "dy", false);
}

/* --- unary; "saved" gives the gradient the output instead of the input -------------------- */

static double coefficient_of(const test_case *c)
{
    return c->spec.value != 0 ? c->spec.value : 1;
}

/* Where the function, or its derivative by the output, is steep without end. */
static test_content domain_of(const test_case *c, bool output)
{
    switch (c->spec.kind) {
    case BSK_UNARY_RCP:
    case BSK_UNARY_SQRT:
    case BSK_UNARY_LOG:
        return CONTENT_UNIT;
    case BSK_UNARY_EXP:
    case BSK_UNARY_SIGMOID:
        return output ? CONTENT_UNIT : CONTENT_DEFAULT;
    default:
        return CONTENT_DEFAULT;
    }
}

static void build_unary(test_case *c)
{
    bsk_unary_params *p = (void *)c->params;
    p->kind = (bsk_unary_kind)c->spec.kind;
    p->coefficient = c->spec.value;
    set_shaped(c, "x", c->spec.dtype)->content = domain_of(c, false);
    set_output(c, "y", test_shape(c, test_out_type(c)));
    set_inplace(c, "y", "x");
}

static double logistic(double x)
{
    return 1 / (1 + exp(-x));
}

/* f(x), and f'(x) in *slope. */
static double unary_of(const test_case *c, double x, double *slope)
{
    const double k = coefficient_of(c);
    double y, t;
    switch (c->spec.kind) {
    case BSK_UNARY_NEG:
        *slope = -1;
        return -x;
    case BSK_UNARY_RCP:
        *slope = -1 / (x * x);
        return 1 / x;
    case BSK_UNARY_SQR:
        *slope = 2 * x;
        return x * x;
    case BSK_UNARY_SQRT:
        *slope = 0.5 / sqrt(x);
        return sqrt(x);
    case BSK_UNARY_EXP:
        *slope = exp(x);
        return exp(x);
    case BSK_UNARY_LOG:
        *slope = 1 / x;
        return log(x);
    case BSK_UNARY_SIGMOID:
        y = logistic(x);
        *slope = y * (1 - y);
        return y;
    case BSK_UNARY_TANH:
        y = tanh(x);
        *slope = 1 - y * y;
        return y;
    case BSK_UNARY_RELU:
        *slope = isnan(x) ? x : x > 0;
        return isnan(x) ? x : fmax(x, 0);
    case BSK_UNARY_ELU:
        *slope = x > 0 ? 1 : k * exp(x);
        return x > 0 ? x : k * expm1(x);
    case BSK_UNARY_GELU:
        t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
        *slope = isinf(x) ? x > 0
                          : 0.5 * (1 + t) +
                                0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
        return 0.5 * x * (1 + t);
    case BSK_UNARY_GELU_ERF:
        *slope = 0.5 * erfc(-x / sqrt(2.0)) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
        return 0.5 * x * erfc(-x / sqrt(2.0));
    default:
        y = logistic(k * x);
        *slope = isinf(x) ? x > 0 : y + k * x * y * (1 - y);
        return x * y;
    }
}

static double slope_of_output(const test_case *c, double y)
{
    switch (c->spec.kind) {
    case BSK_UNARY_NEG:
        return -1;
    case BSK_UNARY_RCP:
        return -y * y;
    case BSK_UNARY_SQRT:
        return 0.5 / y;
    case BSK_UNARY_EXP:
        return y;
    case BSK_UNARY_SIGMOID:
        return y - y * y;
    case BSK_UNARY_TANH:
        return 1 - y * y;
    case BSK_UNARY_RELU:
        return isnan(y) ? y : y > 0;
    default:
        return y > 0 ? 1 : y + coefficient_of(c);
    }
}

/* 16 units of the result, and as many of the argument through the slope. */
static void oracle_unary(test_case *c)
{
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y");
    const double u = test_arith_eps(c);
    for (int64_t e = 0; e < y->elems; e++) {
        double slope;
        const double v = unary_of(c, x->value[e], &slope);
        const bool exact = c->spec.kind == BSK_UNARY_NEG || c->spec.kind == BSK_UNARY_RELU;
        const double error = 16 * u * (fabs(v) + fabs(x->value[e] * slope));
        test_expect(y, e, v, exact || !isfinite(error) ? 0 : error);
    }
}

static void build_unary_grad(test_case *c)
{
    bsk_unary_grad_params *p = (void *)c->params;
    const char *given = c->spec.options & OPT_SAVED ? "y" : "x";
    p->kind = (bsk_unary_kind)c->spec.kind;
    p->coefficient = c->spec.value;
    set_shaped(c, "dy", c->spec.dtype);
    if (c->spec.kind != BSK_UNARY_NEG || (c->spec.options & OPT_SAVED))
        set_shaped(c, given, c->spec.dtype)->content = domain_of(c, c->spec.options & OPT_SAVED);
    if (c->spec.options & OPT_TINY) { /* where the derivative is beyond f32, and dx is not */
        const bool large = c->spec.kind == BSK_UNARY_RCP && (c->spec.options & OPT_SAVED);
        test_arg_at(c, "dy")->content = test_arg_at(c, given)->content = CONTENT_VALUE;
        test_arg_at(c, "dy")->constant = 0x1p-66;
        test_arg_at(c, given)->constant = large                           ? 0x1p76
                                          : c->spec.kind == BSK_UNARY_RCP ? 0x1p-76
                                                                          : 0x1p-130;
    }
    set_output(c, "dx", test_shape(c, test_out_type(c)));
    set_inplace(c, "dx", "dy");
}

static void oracle_unary_grad(test_case *c)
{
    test_tensor *dy = test_arg_at(c, "dy"), *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y");
    test_tensor *dx = test_arg_at(c, "dx");
    const double u = test_arith_eps(c);
    for (int64_t e = 0; e < dx->elems; e++) {
        double slope = -1;
        if (y->desc.dtype)
            slope = slope_of_output(c, y->value[e]);
        else if (x->desc.dtype)
            unary_of(c, x->value[e], &slope);
        const double d = test_alpha(c) * dy->value[e], old = test_old(c, dx, e);
        const double error = u * (24 * fabs(d) * (1 + fabs(slope)) + 4 * fabs(old));
        test_expect(dx, e, d * slope + old, isfinite(error) ? error : 0);
    }
}

/* --- add_n, assign_add -------------------------------------------------------------------- */

static void build_add_n(test_case *c)
{
    set_shaped(c, "x", c->spec.dtype);
    set_output(c, "y", test_shape(c, test_out_type(c)));
    set_inplace(c, "y", "x");
}

static void oracle_add_n(test_case *c)
{
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y");
    const bool assign = strcmp(c->op->name, "assign_add") == 0;
    const double u = test_arith_eps(c);
    for (int64_t e = 0; e < y->elems; e++) {
        const double old = assign ? y->value[e] : test_old(c, y, e);
        double sum = 0, mag = 0;
        for (int32_t v = 0; v < x->views; v++) {
            sum += x->value[v * x->elems + e];
            mag += fabs(x->value[v * x->elems + e]);
        }
        const double v = test_alpha(c) * sum + old;
        const double error = u * ((x->views + 3) * fabs(test_alpha(c)) * mag + 4 * fabs(old));
        test_expect(y, e, v, c->spec.fill == FILL_INT || !isfinite(v) ? 0 : error);
    }
}

/* --- cast and the transposes: index is the type of y -------------------------------------- */

static bool is_integer(bsk_dtype t)
{
    return (BSKI_INDICES >> t & 1) != 0;
}

static bsk_dtype cast_type(const test_case *c)
{
    return c->spec.index ? c->spec.index : c->spec.dtype;
}

static void set_cast_input(test_case *c, bsk_tensor desc)
{
    test_tensor *x = test_set(c, "x", desc);
    x->content = is_integer(desc.dtype) ? CONTENT_INDEX : CONTENT_DEFAULT;
    x->limit = 200;
}

static void build_cast(test_case *c)
{
    set_cast_input(c, test_shape(c, c->spec.dtype));
    const bsk_dtype to = cast_type(c);
    set_output(c, "y", test_shape(c, to))->zero_ok =
        is_integer(to) || to == BSK_I8 || c->spec.fill == FILL_BITS;
}

static double limited(double v, double low, double high)
{
    return isnan(v) ? 0 : v < low ? low : v > high ? high : trunc(v);
}

/* To 8 bits with so many of fraction, the least exponent of normal numbers and the largest number. */
static double eighth(double v, int fraction, int low, double most)
{
    if (isnan(v) || fabs(v) >= most)
        return isnan(v) ? v : copysign(most, v);
    const int exponent = v != 0 && ilogb(v) > low ? ilogb(v) : low;
    return ldexp(nearbyint(ldexp(v, fraction - exponent)), exponent - fraction);
}

static double cast_value(bsk_dtype from, bsk_dtype to, double v)
{
    switch (from == to ? BSK_NONE : to) {
    case BSK_F8E4M3:
        return eighth(v, 3, -6, 448);
    case BSK_F8E5M2:
        return eighth(v, 2, -14, 57344);
    case BSK_I64:
        return limited(v, -0x1p63, 0x1p63);
    case BSK_I32:
        return limited(v, INT32_MIN, INT32_MAX);
    case BSK_U16:
        return limited(v, 0, UINT16_MAX);
    case BSK_U8:
        return limited(v, 0, UINT8_MAX);
    case BSK_I8:
        return limited(nearbyint(v), INT8_MIN, INT8_MAX);
    default:
        return v;
    }
}

static void oracle_cast(test_case *c)
{
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y");
    for (int64_t e = 0; e < y->elems; e++)
        test_expect(y, e, cast_value(x->desc.dtype, y->desc.dtype, x->value[e]), 0);
}

/* [n, k], and [heads, n, k, m] */
static void build_transpose(test_case *c)
{
    const test_spec *s = &c->spec;
    const bool flat = strcmp(c->op->name, "transpose_2d") == 0;
    bsk_tensor x = {s->dtype, 4, {s->heads, s->n, s->k, s->m}, {0}};
    bsk_tensor y = {cast_type(c), 4, {s->heads, s->k, s->n, s->m}, {0}};
    if (flat) {
        x = bsk_tensor_2d(s->dtype, s->n, s->k);
        y = bsk_tensor_2d(cast_type(c), s->k, s->n);
    }
    set_cast_input(c, x);
    set_output(c, "y", y)->zero_ok = true;
}

static void oracle_transpose(test_case *c)
{
    const test_spec *s = &c->spec;
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y");
    const int64_t inner = strcmp(c->op->name, "transpose_2d") == 0 ? 1 : s->m;
    for (int64_t e = 0; e < y->elems; e++) {
        const int64_t last = e % inner, n = e / inner % s->n, k = e / inner / s->n % s->k;
        const int64_t head = e / inner / s->n / s->k;
        const double v = x->value[((head * s->n + n) * s->k + k) * inner + last];
        test_expect(y, e, cast_value(x->desc.dtype, y->desc.dtype, v), 0);
    }
}

/* --- cwise_linear: [n, k, m], k channels -------------------------------------------------- */

static bsk_tensor channels(const test_case *c, bsk_dtype dtype)
{
    return bsk_tensor_3d(dtype, c->spec.n, c->spec.k, c->spec.m);
}

static void set_channels(test_case *c)
{
    const bsk_tensor vector = bsk_tensor_1d(test_scalar_type(c), c->spec.k);
    if (c->spec.options & OPT_GAIN)
        test_set(c, "gain", vector);
    if (c->spec.options & OPT_BIAS)
        test_set(c, "bias", vector);
}

static void build_cwise(test_case *c)
{
    bsk_cwise_linear_params *p = (void *)c->params;
    p->relu = c->spec.act == BSK_ACT_RELU;
    p->bias_first = c->spec.kind;
    test_set(c, "x", channels(c, c->spec.dtype));
    set_output(c, "y", channels(c, test_out_type(c)))->zero_ok |= p->relu && c->spec.n < 2;
    set_channels(c);
    set_inplace(c, "y", "x");
}

/* The value before relu of element e, and the sum of magnitudes that went into it. */
static double cwise_value(test_case *c, int64_t e, double *mag)
{
    test_tensor *x = test_arg_at(c, "x"), *gain = test_arg_at(c, "gain");
    test_tensor *bias = test_arg_at(c, "bias");
    const int64_t k = e / c->spec.m % c->spec.k;
    const double g = gain->desc.dtype ? gain->value[k] : 1;
    const double b = bias->desc.dtype ? bias->value[k] : 0;
    const double v = x->desc.dtype ? x->value[e] : 0;
    *mag = c->spec.kind ? (fabs(v) + fabs(b)) * fabs(g) : fabs(v * g) + fabs(b);
    return c->spec.kind ? (v + b) * g : v * g + b;
}

static void oracle_cwise(test_case *c)
{
    test_tensor *y = test_arg_at(c, "y");
    const double u = test_arith_eps(c);
    for (int64_t e = 0; e < y->elems; e++) {
        double mag;
        const double v = cwise_value(c, e, &mag);
        const double r = c->spec.act == BSK_ACT_RELU ? test_activation(BSK_ACT_RELU, v) : v;
        test_expect(y, e, r, c->spec.fill == FILL_INT || !isfinite(mag) ? 0 : 4 * u * mag);
    }
}

static void build_cwise_grad(test_case *c)
{
    bsk_cwise_linear_grad_params *p = (void *)c->params;
    bsk_cwise_linear_grad_args *a = (void *)c->args;
    const bsk_tensor vector = bsk_tensor_1d(test_scalar_type(c), c->spec.k);
    p->relu = c->spec.act == BSK_ACT_RELU;
    p->bias_first = c->spec.kind;
    test_blend(c, &p->dx_blend, &a->dx_alpha, &a->dx_beta);
    test_set(c, "dy", channels(c, c->spec.dtype));
    set_channels(c);
    if (p->relu || (c->spec.options & OPT_GAIN))
        test_set(c, "x", channels(c, c->spec.dtype));
    if (!(c->spec.options & OPT_NO_GRAD))
        set_output(c, "dx", channels(c, test_out_type(c)));
    if (c->spec.options & OPT_GAIN)
        set_output(c, "dgain", vector);
    if (c->spec.options & OPT_DBIAS)
        set_output(c, "dbias", vector);
    set_inplace(c, "dx", "dy");
}

/* Integer and real fills keep the value before relu away from 0 or make it exact. */
static void oracle_cwise_grad(test_case *c)
{
    const test_spec *s = &c->spec;
    test_tensor *dy = test_arg_at(c, "dy"), *x = test_arg_at(c, "x"),
                *gain = test_arg_at(c, "gain");
    test_tensor *bias = test_arg_at(c, "bias"), *dx = test_arg_at(c, "dx");
    test_tensor *dgain = test_arg_at(c, "dgain"), *dbias = test_arg_at(c, "dbias");
    const double u = test_arith_eps(c), a = test_alpha(c), terms = (double)(s->n * s->m) + 6;
    const bool exact = s->fill == FILL_INT;
    for (int64_t k = 0; k < s->k; k++) {
        const double scale = gain->desc.dtype ? gain->value[k] : 1;
        const double shift = bias->desc.dtype && s->kind ? bias->value[k] : 0;
        double sum[2] = {0}, mag[2] = {0};
        for (int64_t i = 0; i < s->n * s->m; i++) {
            const int64_t e = (i / s->m * s->k + k) * s->m + i % s->m;
            double size;
            const bool live = s->act != BSK_ACT_RELU || cwise_value(c, e, &size) > 0;
            const double g = live ? dy->value[e] : 0;
            const double by_gain = g * ((x->desc.dtype ? x->value[e] : 0) + shift);
            const double by_bias = s->kind ? g * scale : g;
            sum[0] += by_gain;
            sum[1] += by_bias;
            mag[0] += fabs(by_gain) + fabs(g * shift);
            mag[1] += fabs(by_bias);
            if (dx->desc.dtype)
                test_expect_dx(c, dx, e, g * scale, exact ? 0 : 2 * u * fabs(g * scale));
        }
        test_tensor *out[2] = {dgain, dbias};
        for (int o = 0; o < 2; o++) {
            if (!out[o]->desc.dtype)
                continue;
            const double old = test_old(c, out[o], k);
            test_expect(out[o], k, a * sum[o] + old,
                        exact ? 0 : u * (terms * fabs(a) * mag[o] + 4 * fabs(old)));
        }
    }
}

/* --- filter: kind is zero_infs + 2 zero_nans, value the scale; "clip" saturates at 0.5 ---- */

static void build_filter(test_case *c)
{
    bsk_filter_params *p = (void *)c->params;
    bsk_filter_args *a = (void *)c->args;
    p->zero_infs = c->spec.kind & 1;
    p->zero_nans = c->spec.kind >> 1 & 1;
    a->scale = c->spec.value;
    a->saturate = c->spec.options & OPT_CLIP ? 0.5 : 0;
    set_shaped(c, "x", c->spec.dtype);
    set_output(c, "y", test_shape(c, test_out_type(c)));
    set_inplace(c, "y", "x");
}

static void oracle_filter(test_case *c)
{
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y");
    const double u = test_arith_eps(c);
    for (int64_t e = 0; e < y->elems; e++) {
        double v = x->value[e];
        if ((isinf(v) && (c->spec.kind & 1)) || (isnan(v) && (c->spec.kind & 2)))
            v = 0;
        v *= coefficient_of(c);
        if ((c->spec.options & OPT_CLIP) && fabs(v) > 0.5)
            v = copysign(0.5, v);
        test_expect(y, e, v, c->spec.value == 0 || !isfinite(v) ? 0 : u * fabs(v));
    }
}

/* --- sparse_relu: n rows of m features, value is sigmas ----------------------------------- */

static void build_sparse_relu(test_case *c)
{
    ((bsk_sparse_relu_params *)(void *)c->params)->axis = c->spec.axis;
    ((bsk_sparse_relu_args *)(void *)c->args)->sigmas = c->spec.value;
    test_set(c, "x", test_act(c, c->spec.dtype, c->spec.m));
    set_output(c, "y", test_act(c, test_out_type(c), c->spec.m))->zero_ok |= c->spec.m < 8;
    set_inplace(c, "y", "x");
}

typedef struct row_statistics {
    double mean, std, cut, error; /* error: of cut */
} row_statistics;

/* The mean and the sum of squares of F terms each; the root halves relative errors, but where std
 * is tiny beside the elements, those of the differences are what counts. */
static row_statistics statistics_of(const test_case *c, const test_tensor *x, int64_t n)
{
    row_statistics r = {0};
    const double features = (double)c->spec.m, u = test_arith_eps(c);
    double mag = 0;
    for (int64_t f = 0; f < c->spec.m; f++) {
        r.mean += x->value[test_row_element(c, n, f)] / features;
        mag += fabs(x->value[test_row_element(c, n, f)]) / features;
    }
    for (int64_t f = 0; f < c->spec.m; f++) {
        const double d = x->value[test_row_element(c, n, f)] - r.mean;
        r.std += d * d / features;
    }
    r.std = sqrt(r.std);
    r.cut = r.mean + c->spec.value * r.std;
    r.error = u * (features + 8) * (mag + fabs(c->spec.value) * (r.std + mag));
    return r;
}

static void oracle_sparse_relu(test_case *c)
{
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y");
    for (int64_t n = 0; n < c->spec.n; n++) {
        const row_statistics r = statistics_of(c, x, n);
        for (int64_t f = 0; f < c->spec.m; f++) {
            const int64_t e = test_row_element(c, n, f);
            const double v = x->value[e] - r.cut;
            const double error = r.error + test_arith_eps(c) * (fabs(x->value[e]) + fabs(r.cut));
            test_expect(y, e, v <= 0 ? 0 : v, isfinite(v) ? error : 0);
        }
    }
}

static void build_sparse_relu_grad(test_case *c)
{
    bsk_sparse_relu_grad_params *p = (void *)c->params;
    p->axis = c->spec.axis;
    p->constant_cut = c->spec.kind;
    ((bsk_sparse_relu_grad_args *)(void *)c->args)->sigmas = c->spec.value;
    test_set(c, "dy", test_act(c, c->spec.dtype, c->spec.m));
    test_set(c, "x", test_act(c, c->spec.dtype, c->spec.m));
    set_output(c, "dx", test_act(c, test_out_type(c), c->spec.m))->zero_ok |= c->spec.m < 8;
    set_inplace(c, "dx", "dy");
}

/* Whether an element lies as close to the cut as the cut's own error, and may fall on either side. */
static bool is_doubtful(const test_case *c, const row_statistics *r, double x)
{
    return fabs(x - r->cut) <= r->error + 4 * test_arith_eps(c) * fabs(x);
}

/* The bound admits both sides for a doubtful element itself, and for the sum of its row. */
static void oracle_sparse_relu_grad(test_case *c)
{
    test_tensor *dy = test_arg_at(c, "dy"), *x = test_arg_at(c, "x"), *dx = test_arg_at(c, "dx");
    const double features = (double)c->spec.m, u = test_arith_eps(c), a = test_alpha(c);
    for (int64_t n = 0; n < c->spec.n; n++) {
        const row_statistics r = statistics_of(c, x, n);
        double sum = 0, mag = 0, doubt = 0;
        for (int64_t f = 0; f < c->spec.m; f++) {
            const int64_t e = test_row_element(c, n, f);
            if (is_doubtful(c, &r, x->value[e]))
                doubt += fabs(dy->value[e]);
            sum += dy->value[e] * test_slope(BSK_ACT_RELU, x->value[e] - r.cut);
            mag += fabs(dy->value[e]);
        }
        for (int64_t f = 0; f < c->spec.m; f++) {
            const int64_t e = test_row_element(c, n, f);
            const double h = r.std == 0 ? 0 : (x->value[e] - r.mean) / r.std;
            const double g = dy->value[e] * test_slope(BSK_ACT_RELU, x->value[e] - r.cut);
            const double slope = (1 + c->spec.value * h) / features;
            const double v = a * (c->spec.kind ? g : g - sum * slope), old = test_old(c, dx, e);
            const double wobble =
                (1 + fabs(c->spec.value) * (1 + fabs(h)) * (1 + 1 / (r.std + 1e-9))) / features;
            const double flip = is_doubtful(c, &r, x->value[e]) ? fabs(dy->value[e]) : 0;
            const double error = u * ((features + 16) * mag * wobble + 4 * fabs(g)) + flip +
                                 (c->spec.kind ? 0 : doubt * fabs(slope));
            test_expect(dx, e, v + old, fabs(a) * error + 4 * u * fabs(old));
        }
    }
}

/* --- dropout: count is `shared`, value is keep -------------------------------------------- */

static void build_dropout(test_case *c)
{
    bsk_dropout_args *a = (void *)c->args;
    ((bsk_dropout_params *)(void *)c->params)->shared = c->spec.count;
    a->keep = c->spec.value;
    a->seed = c->spec.seed + 0x100000000u;
    a->offset = 3;
    set_shaped(c, "x", c->spec.dtype);
    set_output(c, "y", test_shape(c, test_out_type(c)))->zero_ok |=
        c->spec.value == 0 || c->spec.count;
    set_inplace(c, "y", "x");
}

static void oracle_dropout(test_case *c)
{
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y");
    const bsk_dropout_args *a = (void *)c->args;
    const bsk_tensor mask = repeated(c, c->spec.dtype, c->spec.count);
    for (int64_t e = 0; e < y->elems; e++) {
        const int64_t at = element_of(&y->desc, &mask, e);
        uint32_t words[4];
        bski_philox(a->seed, a->offset, (uint64_t)at / 8, words);
        const uint32_t number = words[at % 8 / 2] / (at % 2 ? 0x10000 : 1) % 0x10000;
        const bool kept = number < floor(a->keep * 0x1p16 + 0.5);
        const double v = kept ? x->value[e] / a->keep : 0;
        test_expect(y, e, v, kept && isfinite(v) ? 2 * test_arith_eps(c) * fabs(v) : 0);
    }
}

const test_op test_elementwise[] = {
    TEST_OP(binary, build_binary, oracle_binary, NULL),
    TEST_OP(binary_grad, build_binary_grad, oracle_binary_grad, NULL),
    TEST_OP(unary, build_unary, oracle_unary, NULL),
    TEST_OP(unary_grad, build_unary_grad, oracle_unary_grad, NULL),
    TEST_OP(add_n, build_add_n, oracle_add_n, NULL),
    TEST_OP(assign_add, build_add_n, oracle_add_n, NULL),
    TEST_OP(cast, build_cast, oracle_cast, NULL),
    TEST_OP(transpose_2d, build_transpose, oracle_transpose, NULL),
    TEST_OP(transpose_0213, build_transpose, oracle_transpose, NULL),
    TEST_OP(cwise_linear, build_cwise, oracle_cwise, NULL),
    TEST_OP(cwise_linear_grad, build_cwise_grad, oracle_cwise_grad, NULL),
    TEST_OP(filter, build_filter, oracle_filter, NULL),
    TEST_OP(sparse_relu, build_sparse_relu, oracle_sparse_relu, NULL),
    TEST_OP(sparse_relu_grad, build_sparse_relu_grad, oracle_sparse_relu_grad, NULL),
    TEST_OP(dropout, build_dropout, oracle_dropout, NULL),
};
const int32_t test_elementwise_count = TEST_COUNT(test_elementwise);
