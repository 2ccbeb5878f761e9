/* The products: how cases become tensors, and what the results must be.
 *
 * The expectation is computed from the definition in matmul.h: the kept blocks as a list of matrix
 * elements, plain sums in f64. It shares no code with the library's kernels.
 *
 * Error bound of a sum of T products in arithmetic with rounding unit u: every partial result is
 * off by at most (T + 8) u sum |a b|, whatever the order of summation; 8 covers the roundings of
 * the gate, scales and alpha. The f64 of the expectation itself has the same form. Operands that
 * may be rounded to tf32 add two of its rounding units to each product, and the product of both. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/test.h"

TEST_CALLS(matmul)
TEST_CALLS(matmul_dgrad)
TEST_CALLS(matmul_wgrad)
TEST_CALLS(dsd)
TEST_CALLS(dds)
TEST_CALLS(sdd)
TEST_CALLS(reduced_wgrad)

/* --- Building ----------------------------------------------------------------------------- */

static void set_if(test_case *c, uint32_t option, const char *name, bsk_tensor desc,
                   test_content content)
{
    if (c->spec.options & option)
        test_set(c, name, desc)->content = content;
}

/* The type of the second operand. */
static bsk_dtype second_type(const test_case *c)
{
    return c->spec.other ? c->spec.other : c->spec.dtype;
}

static void build_scales(test_case *c, const char *first, const char *second)
{
    set_if(c, OPT_SCALES, first, bsk_tensor_1d(BSK_F32, 1), CONTENT_SCALE);
    set_if(c, OPT_SCALES, second, bsk_tensor_1d(BSK_F32, 1), CONTENT_SCALE);
}

/* gate, bias, scales and residual, which matmul, dsd and dds name alike. */
static void build_epilogue(test_case *c, int64_t bias, int64_t rows, int64_t cols,
                           const char *output)
{
    bsk_dtype side = test_scalar_type(c);
    set_if(c, OPT_GATE, "gate", bsk_tensor_1d(side, c->info.nnz), CONTENT_GATE);
    set_if(c, OPT_BIAS, "bias", bsk_tensor_1d(side, bias), CONTENT_DEFAULT);
    set_if(c, OPT_ROW_SCALE, "row_scale", bsk_tensor_1d(side, rows), CONTENT_SCALE);
    set_if(c, OPT_COL_SCALE, "col_scale", bsk_tensor_1d(side, cols), CONTENT_SCALE);
    test_tensor *out = test_arg_at(c, output);
    set_if(c, OPT_RESIDUAL, "residual", out->desc, CONTENT_DEFAULT);
    if ((c->spec.options & (OPT_RESIDUAL | OPT_INPLACE)) == (OPT_RESIDUAL | OPT_INPLACE))
        out->alias = (int32_t)(test_arg_at(c, "residual") - c->t);
    out->zero_ok = c->spec.act == BSK_ACT_RELU;
}

static void build_matmul(test_case *c)
{
    const test_spec *s = &c->spec;
    int64_t in = s->transpose ? s->m : s->k, out = s->transpose ? s->k : s->m;
    bsk_matmul_params *p = (void *)c->params;
    p->axis = s->axis;
    p->transpose_w = s->transpose;
    p->act = s->act;
    p->precision = s->precision;
    test_set(c, "x", test_act(c, s->dtype, in));
    test_set_blocks(c, "w", second_type(c));
    build_scales(c, "x_scale", "w_scale");
    test_set(c, "y", test_act(c, test_out_type(c), out));
    build_epilogue(c, out, s->n, out, "y");
}

static void build_dgrad(test_case *c)
{
    const test_spec *s = &c->spec;
    int64_t in = s->transpose ? s->k : s->m, out = s->transpose ? s->m : s->k;
    bsk_matmul_dgrad_params *p = (void *)c->params;
    p->axis = s->axis;
    p->precision = s->precision;
    p->transpose_w = s->transpose;
    test_set(c, "dy", test_act(c, s->dtype, in));
    test_set_blocks(c, "w", second_type(c));
    build_scales(c, "dy_scale", "w_scale");
    test_set(c, "dx", test_act(c, test_out_type(c), out));
    set_if(c, OPT_GATE, "gate", bsk_tensor_1d(test_scalar_type(c), c->info.nnz), CONTENT_GATE);
}

static void build_gradient_extras(test_case *c, const char *bias_name, int64_t bias)
{
    bsk_dtype side = test_scalar_type(c);
    set_if(c, OPT_GATE, "gate", bsk_tensor_1d(side, c->info.nnz), CONTENT_GATE);
    set_if(c, OPT_DGATE, "dgate", bsk_tensor_1d(side, c->info.nnz), CONTENT_DEFAULT);
    set_if(c, OPT_DBIAS, bias_name, bsk_tensor_1d(side, bias), CONTENT_DEFAULT);
}

static void build_wgrad(test_case *c)
{
    const test_spec *s = &c->spec;
    int64_t in = s->transpose ? s->m : s->k, out = s->transpose ? s->k : s->m;
    bsk_matmul_wgrad_params *p = (void *)c->params;
    p->axis = s->axis;
    p->transpose_w = s->transpose;
    p->gate_mode = s->gate_mode;
    p->precision = s->precision;
    test_set(c, "x", test_act(c, s->dtype, in));
    test_set(c, "dy", test_act(c, second_type(c), out));
    build_scales(c, "x_scale", "dy_scale");
    test_set_blocks(c, "dw", test_out_type(c));
    if (s->options & OPT_DGATE)
        test_set_blocks(c, "w", s->dtype);
    build_gradient_extras(c, "dbias", out);
}

static int64_t batch_of(const test_spec *s)
{
    return s->groups ? (int64_t)s->groups * (s->heads ? s->heads : 1) : 0;
}

/* [d0, d1], or [batch, d0, d1]. */
static bsk_tensor batched(const test_case *c, bsk_dtype dtype, int64_t d0, int64_t d1)
{
    int64_t batch = batch_of(&c->spec);
    return batch ? bsk_tensor_3d(dtype, batch, d0, d1) : bsk_tensor_2d(dtype, d0, d1);
}

/* Whether "shared" means S in the rank 3 form: where it is an output, and of an even number of groups. */
static bool shared_flat(const test_spec *s, bool output)
{
    return s->options & OPT_SHARED && (output || s->groups % 2 == 0);
}

/* S: [nnz, r, c], or [groups, nnz, r, c]; with "shared" one group for all, in the rank 3 form or by a
 * group stride of 0. */
static void set_grouped(test_case *c, const char *name, bsk_dtype dtype)
{
    const test_spec *s = &c->spec;
    test_tensor *t = test_set_blocks(c, name, dtype);
    bool shared = s->options & OPT_SHARED;
    if (s->groups < 2 || shared_flat(s, t->output))
        return;
    int64_t block = (int64_t)s->br * s->bc;
    bsk_tensor d = {dtype, 4, {s->groups, c->info.nnz, s->br, s->bc}, {0}};
    if (shared) {
        const int64_t strides[4] = {0, block, s->bc, 1};
        memcpy(d.strides, strides, sizeof strides);
    }
    t->desc = d;
}

static void build_dsd(test_case *c)
{
    const test_spec *s = &c->spec;
    int64_t rows = s->transpose ? s->m : s->k, inner = s->transpose ? s->k : s->m;
    bsk_dsd_params *p = (void *)c->params;
    p->transpose_s = s->transpose;
    p->act = s->act;
    p->precision = s->precision;
    set_grouped(c, "s", second_type(c));
    build_scales(c, "b_scale", "s_scale");
    test_set(c, "b", batched(c, s->dtype, inner, s->n));
    test_set(c, "c", batched(c, test_out_type(c), rows, s->n));
    build_epilogue(c, rows, rows, s->n, "c");
}

static void build_dds(test_case *c)
{
    const test_spec *s = &c->spec;
    int64_t inner = s->transpose ? s->m : s->k, cols = s->transpose ? s->k : s->m;
    bsk_dds_params *p = (void *)c->params;
    p->transpose_s = s->transpose;
    p->act = s->act;
    p->precision = s->precision;
    test_set(c, "a", batched(c, s->dtype, s->n, inner));
    set_grouped(c, "s", second_type(c));
    build_scales(c, "a_scale", "s_scale");
    test_set(c, "c", batched(c, test_out_type(c), s->n, cols));
    build_epilogue(c, cols, s->n, cols, "c");
}

static void build_sdd(test_case *c)
{
    const test_spec *s = &c->spec;
    bsk_sdd_params *p = (void *)c->params;
    p->gate_mode = s->gate_mode;
    p->precision = s->precision;
    test_set(c, "a", batched(c, s->dtype, s->k, s->n));
    test_set(c, "b", batched(c, second_type(c), s->n, s->m));
    build_scales(c, "a_scale", "b_scale");
    set_grouped(c, "s", test_out_type(c));
    if (s->options & OPT_DGATE) {
        test_tensor *w = test_set_blocks(c, "w", s->dtype);
        w->desc.rank = test_arg_at(c, "s")->desc.rank;
        memcpy(w->desc.dims, test_arg_at(c, "s")->desc.dims, sizeof w->desc.dims);
    }
    build_gradient_extras(c, "bsum", s->m);
}

static void build_reduced(test_case *c)
{
    const test_spec *s = &c->spec;
    bsk_reduced_wgrad_params *p = (void *)c->params;
    p->axis = s->axis;
    p->norm = s->norm;
    p->block_rows = s->br;
    p->block_cols = s->bc;
    test_set(c, "x", test_act(c, s->dtype, s->k));
    test_set(c, "dy", test_act(c, s->dtype, s->m));
    test_set(
        c, "g",
        bsk_tensor_2d(test_scalar_type(c), (s->k + s->br - 1) / s->br, (s->m + s->bc - 1) / s->bc));
}

/* --- Expectations: sparse times dense ------------------------------------------------------ */

double test_activation(bsk_act act, double v)
{
    switch (act) {
    case BSK_ACT_RELU:
        return v > 0 || isnan(v) ? v : 0;
    case BSK_ACT_GELU:
        return 0.5 * v * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    case BSK_ACT_GELU_ERF:
        return 0.5 * v * erfc(-v / sqrt(2.0));
    case BSK_ACT_SILU:
        return v / (1 + exp(-v));
    case BSK_ACT_QUICK_GELU:
        return v / (1 + exp(-1.702 * v));
    default:
        return v;
    }
}

/* Sums of integers of magnitudes that add up to `mag`, scaled by powers of two, have no rounding
 * before the store while f32 can hold them; what is added to them may have. */
static bool is_exact(const test_spec *s, double mag)
{
    const bool alone =
        !(s->options & (OPT_GATE | OPT_BIAS | OPT_RESIDUAL)) && s->alpha == 0 && s->beta == 0;
    const bool whole = s->fill == FILL_INT || (s->dtype == BSK_I8 && alone && mag < 0x1p24);
    return whole && s->act <= BSK_ACT_RELU && s->norm == BSK_NORM_MAX;
}

/* The relative error of a sum's products for the rounding of their operands. test_expect allows twice
 * as much: of FILL_NEAR, where one operand is rounded, half of what is lost with the last bits. */
static double operand_error(const test_spec *s)
{
    const double tf32 = 0x1p-11;
    if (s->precision != BSK_PRECISION_TF32 || s->dtype != BSK_F32)
        return 0;
    return s->fill == FILL_NEAR ? tf32 / 2 : 2 * tf32 + tf32 * tf32;
}

/* A matrix or a batch of them, as numbers; element (batch, feature, sample). */
typedef struct grid {
    double *data;
    int64_t batch, feature, sample; /* strides in the value array */
} grid;

typedef struct product {
    test_case *c;
    const double *s; /* blocks */
    bool in_is_row;  /* features of the input run along the block rows */
    grid in, out;    /* out: index pattern of the output */
    int64_t batch, outs, samples;
    const double *feature_scale, *sample_scale, *bias;
} product;

static const double *values_of(test_case *c, const char *name)
{
    test_tensor *t = test_arg_at(c, name);
    return t->desc.dtype ? t->value : NULL;
}

/* What the scales of 8-bit operands make of a product; NULL: of all operands, else of that scale's. */
static double operand_scale(test_case *c, const char *only)
{
    static const char *const names[] = {"x_scale", "w_scale", "dy_scale",
                                        "s_scale", "a_scale", "b_scale"};
    double v = 1;
    if (!(c->spec.options & OPT_SCALES))
        return v;
    for (int32_t i = 0; i < c->about->arg_count; i++)
        for (int32_t n = 0; n < TEST_COUNT(names); n++)
            if (!strcmp(c->about->args[i].name, names[n]) && (!only || !strcmp(names[n], only)))
                v *= c->t[i].value[0];
    return v;
}

/* acc = sum w x, mag = sum |w x|, terms = count, of one batch member; blocks whose gate is exactly
 * zero do not take part. */
static void product_sum(const product *p, int64_t member, double *acc, double *mag, double *terms)
{
    const test_case *c = p->c;
    const test_spec *s = &c->spec;
    const double *gate = values_of(p->c, "gate");
    int32_t heads = s->heads ? s->heads : 1;
    bool groups = s->groups > 1 && !shared_flat(s, false);
    int64_t block = (int64_t)s->br * s->bc, group = groups ? member / heads : 0;
    const double *x = p->in.data + member * p->in.batch;
    for (int64_t slot = 0; slot < c->info.nnz; slot++) {
        if (c->head[slot] != member % heads || (gate && gate[slot] == 0))
            continue;
        const double *w = p->s + (group * c->info.nnz + slot) * block;
        for (int32_t i = 0; i < test_valid_rows(c, slot); i++)
            for (int32_t j = 0; j < test_valid_cols(c, slot); j++) {
                int64_t r = (int64_t)c->row[slot] * s->br + i;
                int64_t q = (int64_t)c->col[slot] * s->bc + j;
                int64_t in = p->in_is_row ? r : q, out = p->in_is_row ? q : r;
                double v = w[i * s->bc + j] * (gate ? gate[slot] : 1);
                terms[out] += 1;
                for (int64_t n = 0; n < p->samples; n++) {
                    double term = v * x[in * p->in.feature + n * p->in.sample];
                    acc[out * p->samples + n] += term;
                    mag[out * p->samples + n] += fabs(term);
                }
            }
    }
}

/* From a sum to the op's result: alpha, scales, bias, beta, activation, residual, rounding. */
static void product_finish(const product *p, int64_t at, double acc, double mag, double terms,
                           double scale, double bias, const double *residual, test_tensor *out)
{
    const test_spec *s = &p->c->spec;
    double u = test_arith_eps(p->c);
    double alpha = (s->alpha != 0 ? s->alpha : 1) * operand_scale(p->c, NULL);
    double old = s->beta != 0 ? s->beta * out->value[at] : 0;
    double pre = alpha * scale * acc + bias + old;
    double error = u * ((terms + 8) * fabs(alpha * scale) * mag + 4 * (fabs(bias) + fabs(old)));
    error += operand_error(s) * fabs(alpha * scale) * mag;
    double v = test_activation(s->act, pre);
    /* the slopes stay below 1.2; 16 units for exp, tanh and erf in the arithmetic type */
    if (s->act > BSK_ACT_RELU)
        error = 1.2 * error + 16 * u * fabs(pre);
    if (residual) {
        error += 2 * u * (fabs(v) + fabs(residual[at]));
        v += residual[at];
    }
    test_expect(out, at, v, is_exact(s, mag) ? 0 : error);
}

static void product_expect(product *p, test_tensor *out)
{
    test_case *c = p->c;
    size_t cells = (size_t)(p->outs * p->samples) + 1;
    double *acc = malloc(cells * sizeof *acc), *mag = malloc(cells * sizeof *mag);
    double *terms = malloc(((size_t)p->outs + 1) * sizeof *terms);
    bool has_residual = c->spec.options & OPT_RESIDUAL;
    const double *residual = has_residual ? values_of(c, "residual") : NULL;
    for (int64_t b = 0; b < p->batch; b++) {
        memset(acc, 0, cells * sizeof *acc);
        memset(mag, 0, cells * sizeof *mag);
        memset(terms, 0, ((size_t)p->outs + 1) * sizeof *terms);
        product_sum(p, b, acc, mag, terms);
        for (int64_t f = 0; f < p->outs; f++)
            for (int64_t n = 0; n < p->samples; n++) {
                double scale = (p->feature_scale ? p->feature_scale[f] : 1) *
                               (p->sample_scale ? p->sample_scale[n] : 1);
                int64_t at = b * p->out.batch + f * p->out.feature + n * p->out.sample;
                int64_t k = f * p->samples + n;
                product_finish(p, at, acc[k], mag[k], terms[f], scale, p->bias ? p->bias[f] : 0,
                               residual, out);
            }
    }
    free(acc);
    free(mag);
    free(terms);
}

static grid grid_axis(test_tensor *t, const test_spec *s, int64_t features)
{
    grid nc = {t->value, 0, 1, features}, cn = {t->value, 0, s->n, 1};
    return s->axis == BSK_NC ? nc : cn;
}

static void oracle_activation(test_case *c, const char *input, const char *output, bool in_is_row)
{
    const test_spec *s = &c->spec;
    test_tensor *out = test_arg_at(c, output);
    int64_t ins = in_is_row ? s->k : s->m, outs = in_is_row ? s->m : s->k;
    bool epilogue = strcmp(output, "y") == 0;
    product p = {c,
                 values_of(c, "w"),
                 in_is_row,
                 grid_axis(test_arg_at(c, input), s, ins),
                 grid_axis(out, s, outs),
                 1,
                 outs,
                 s->n,
                 epilogue ? values_of(c, "col_scale") : NULL,
                 epilogue ? values_of(c, "row_scale") : NULL,
                 epilogue ? values_of(c, "bias") : NULL};
    product_expect(&p, out);
}

static void oracle_matmul(test_case *c)
{
    oracle_activation(c, "x", "y", !c->spec.transpose);
}

static void oracle_dgrad(test_case *c)
{
    oracle_activation(c, "dy", "dx", c->spec.transpose);
}

static void oracle_dsd(test_case *c)
{
    const test_spec *s = &c->spec;
    int64_t outs = s->transpose ? s->m : s->k, ins = s->transpose ? s->k : s->m;
    test_tensor *b = test_arg_at(c, "b"), *out = test_arg_at(c, "c");
    int64_t batch = batch_of(s) ? batch_of(s) : 1;
    product p = {c,
                 values_of(c, "s"),
                 s->transpose != 0,
                 {b->value, ins * s->n, s->n, 1},
                 {out->value, outs * s->n, s->n, 1},
                 batch,
                 outs,
                 s->n,
                 values_of(c, "row_scale"),
                 values_of(c, "col_scale"),
                 values_of(c, "bias")};
    product_expect(&p, out);
}

static void oracle_dds(test_case *c)
{
    const test_spec *s = &c->spec;
    int64_t ins = s->transpose ? s->m : s->k, outs = s->transpose ? s->k : s->m;
    test_tensor *a = test_arg_at(c, "a"), *out = test_arg_at(c, "c");
    int64_t batch = batch_of(s) ? batch_of(s) : 1;
    product p = {c,
                 values_of(c, "s"),
                 !s->transpose,
                 {a->value, ins * s->n, 1, ins},
                 {out->value, outs * s->n, 1, outs},
                 batch,
                 outs,
                 s->n,
                 values_of(c, "col_scale"),
                 values_of(c, "row_scale"),
                 values_of(c, "bias")};
    product_expect(&p, out);
}

/* --- Expectations: dense times dense on the kept blocks ------------------------------------- */

typedef struct outer {
    test_case *c;
    const test_tensor *left, *right; /* run along block rows, and along block columns */
    grid l, r;
    int64_t batch, samples;
    int32_t heads;
    test_tensor *out;
} outer;

/* The sum over pairs, batch members of the slot's head (and group, or all groups) and samples. */
static void outer_element(const outer *o, int64_t slot, int64_t group, int64_t row, int64_t col,
                          double *sum, double *mag, double *terms)
{
    /* Samples of even and of odd number: an addition waits for the one before. */
    double even = 0, odd = 0, even_mag = 0, odd_mag = 0;
    *terms = 0;
    for (int32_t p = 0; p < o->left->views; p++)
        for (int64_t b = 0; b < o->batch; b++) {
            if (b % o->heads != o->c->head[slot] || (group >= 0 && b / o->heads != group))
                continue;
            const double *l =
                o->left->value + p * o->left->elems + b * o->l.batch + row * o->l.feature;
            const double *r =
                o->right->value + p * o->right->elems + b * o->r.batch + col * o->r.feature;
            for (int64_t n = 0; n < o->samples; n += 2) {
                int64_t next = n + 1;
                double v = l[n * o->l.sample] * r[n * o->r.sample];
                double w = next < o->samples ? l[next * o->l.sample] * r[next * o->r.sample] : 0;
                even += v;
                odd += w;
                even_mag += fabs(v);
                odd_mag += fabs(w);
            }
            *terms += (double)o->samples;
        }
    *sum = even + odd;
    *mag = even_mag + odd_mag;
}

static void accumulate(test_case *c, test_tensor *t, int64_t at, double sum, double mag,
                       double error)
{
    double u = test_arith_eps(c), alpha = c->spec.alpha != 0 ? c->spec.alpha : 1;
    double old = c->spec.beta != 0 ? c->spec.beta * t->value[at] : 0;
    error = fabs(alpha) * error + 4 * u * (fabs(alpha * sum) + fabs(old));
    test_expect(t, at, alpha * sum + old, is_exact(&c->spec, mag) ? 0 : error);
}

static void outer_blocks(const outer *o)
{
    test_case *c = o->c;
    const test_spec *s = &c->spec;
    test_tensor *dgate = test_arg_at(c, "dgate");
    const double *gate = values_of(c, "gate"), *w = values_of(c, "w");
    bool has_gate = gate && s->gate_mode != BSK_GATE_IGNORE;
    int64_t groups = o->out->desc.rank == 4 ? s->groups : 1;
    double u = test_arith_eps(c), rounding = operand_error(s);
    for (int64_t slot = 0; slot < c->info.nnz; slot++) {
        double dot = 0, dot_mag = 0, cells = 0, terms = 0;
        bool skip = has_gate && s->gate_mode == BSK_GATE_SKIP && gate[slot] == 0;
        double scale =
            (has_gate && s->gate_mode == BSK_GATE_SCALE ? gate[slot] : 1) * operand_scale(c, NULL);
        /* a gate of 0 gives 0 even where the product is not finite */
        bool zero = has_gate && gate[slot] == 0;
        for (int64_t g = 0; g < groups; g++)
            for (int32_t i = 0; i < test_valid_rows(c, slot); i++)
                for (int32_t j = 0; j < test_valid_cols(c, slot); j++) {
                    int64_t at = ((g * c->info.nnz + slot) * s->br + i) * s->bc + j;
                    double sum = 0, mag = 0;
                    if (!skip)
                        outer_element(o, slot, groups > 1 ? g : -1,
                                      (int64_t)c->row[slot] * s->br + i,
                                      (int64_t)c->col[slot] * s->bc + j, &sum, &mag, &terms);
                    accumulate(c, o->out, at, zero ? 0 : sum * scale, mag,
                               zero ? 0 : ((terms + 8) * u + rounding) * mag * fabs(scale));
                    if (w && !skip) {
                        dot += sum * w[at];
                        dot_mag += mag * fabs(w[at]);
                        cells++;
                    }
                }
        if (dgate->desc.dtype)
            accumulate(c, dgate, slot, dot, dot_mag,
                       ((terms + cells + 8) * u + rounding) * dot_mag);
    }
}

/* Sums of the right operand over pairs, batch and samples, by feature. */
static void outer_bias(const outer *o, const char *name, const test_tensor *t, const grid *g,
                       int64_t features)
{
    test_tensor *out = test_arg_at(o->c, name);
    if (!out->desc.dtype)
        return;
    double u = test_arith_eps(o->c);
    double scale = operand_scale(o->c, strcmp(name, "dbias") ? "b_scale" : "dy_scale");
    for (int64_t f = 0; f < features; f++) {
        double sum = 0, mag = 0, terms = 0;
        for (int32_t p = 0; p < t->views; p++)
            for (int64_t b = 0; b < o->batch; b++)
                for (int64_t n = 0; n < o->samples; n++) {
                    double v =
                        t->value[p * t->elems + b * g->batch + f * g->feature + n * g->sample];
                    sum += v;
                    mag += fabs(v);
                    terms++;
                }
        accumulate(o->c, out, f, scale * sum, mag, (terms + 8) * u * fabs(scale) * mag);
    }
}

static void oracle_wgrad(test_case *c)
{
    const test_spec *s = &c->spec;
    test_tensor *x = test_arg_at(c, "x"), *dy = test_arg_at(c, "dy");
    grid gx = grid_axis(x, s, s->transpose ? s->m : s->k);
    grid gy = grid_axis(dy, s, s->transpose ? s->k : s->m);
    outer o = {c,
               s->transpose ? dy : x,
               s->transpose ? x : dy,
               s->transpose ? gy : gx,
               s->transpose ? gx : gy,
               1,
               s->n,
               1,
               test_arg_at(c, "dw")};
    outer_blocks(&o);
    outer_bias(&o, "dbias", dy, &gy, s->transpose ? s->k : s->m);
}

static void oracle_sdd(test_case *c)
{
    const test_spec *s = &c->spec;
    test_tensor *a = test_arg_at(c, "a"), *b = test_arg_at(c, "b");
    grid ga = {a->value, s->k * s->n, s->n, 1}, gb = {b->value, s->n * s->m, 1, s->m};
    outer o = {c,
               a,
               b,
               ga,
               gb,
               batch_of(s) ? batch_of(s) : 1,
               s->n,
               s->heads ? s->heads : 1,
               test_arg_at(c, "s")};
    outer_blocks(&o);
    outer_bias(&o, "bsum", b, &gb, s->m);
}

/* --- Expectation: reduced_wgrad ------------------------------------------------------------ */

static double block_norm_of(const test_tensor *t, const grid *g, int32_t pair, int64_t sample,
                            int64_t first, int64_t last, bsk_norm norm)
{
    double r = 0;
    for (int64_t f = first; f < last; f++) {
        double v = fabs(t->value[pair * t->elems + f * g->feature + sample * g->sample]);
        r = norm == BSK_NORM_L2 ? r + v * v : (v > r || isnan(v) ? v : r);
    }
    return norm == BSK_NORM_L2 ? sqrt(r) : r;
}

static void oracle_reduced(test_case *c)
{
    const test_spec *s = &c->spec;
    test_tensor *x = test_arg_at(c, "x"), *dy = test_arg_at(c, "dy"), *g = test_arg_at(c, "g");
    grid gx = grid_axis(x, s, s->k), gy = grid_axis(dy, s, s->m);
    int64_t rows = g->desc.dims[0], cols = g->desc.dims[1];
    double u = test_arith_eps(c);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            int64_t i1 = (i + 1) * s->br < s->k ? (i + 1) * s->br : s->k;
            int64_t j1 = (j + 1) * s->bc < s->m ? (j + 1) * s->bc : s->m;
            double sum = 0, terms = 0;
            for (int32_t p = 0; p < x->views; p++)
                for (int64_t n = 0; n < s->n; n++) {
                    double v = block_norm_of(x, &gx, p, n, i * s->br, i1, s->norm) *
                               block_norm_of(dy, &gy, p, n, j * s->bc, j1, s->norm);
                    if (isfinite(x->desc.dtype == BSK_F64 ? v : (float)v))
                        sum += v;
                    terms++;
                }
            /* norms add the roundings of a block's squares, halved by the root */
            accumulate(c, g, i * cols + j, sum, sum, (terms + s->br + s->bc + 16) * u * sum);
        }
}

const test_op test_products[] = {
    TEST_OP_PACKED(matmul, build_matmul, oracle_matmul, NULL),
    TEST_OP_PACKED(matmul_dgrad, build_dgrad, oracle_dgrad, NULL),
    TEST_OP(matmul_wgrad, build_wgrad, oracle_wgrad, NULL),
    TEST_OP_PACKED(dsd, build_dsd, oracle_dsd, NULL),
    TEST_OP_PACKED(dds, build_dds, oracle_dds, NULL),
    TEST_OP(sdd, build_sdd, oracle_sdd, NULL),
    TEST_OP(reduced_wgrad, build_reduced, oracle_reduced, NULL),
};
const int32_t test_products_count = TEST_COUNT(test_products);
