/* Weight ops: initialisers, norms, gates, pruning, pattern search, projections. Bounds are stated
 * where they are computed: u is the rounding unit of the arithmetic, T a number of terms. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/philox.h"
#include "tests/harness/test.h"

TEST_CALLS(weight_identity)
TEST_CALLS(weight_orthogonal)
TEST_CALLS(weight_normal)
TEST_CALLS(weight_checker)
TEST_CALLS(l2_normalize)
TEST_CALLS(l2_normalize_grad)
TEST_CALLS(block_norm)
TEST_CALLS(prune_sparsity)
TEST_CALLS(prune_threshold)
TEST_CALLS(block_l2_decay)
TEST_CALLS(concrete_gate)
TEST_CALLS(concrete_gate_grad)
TEST_CALLS(concrete_gate_infer)
TEST_CALLS(block_renew)
TEST_CALLS(block_gather)
TEST_CALLS(proj_gather)
TEST_CALLS(proj_scatter)
TEST_CALLS(proj_scatter_add)
TEST_CALLS(proj_scatter_mul)
TEST_CALLS(proj_scatter_mul_grad)

/* Calls each(c, slot, i, j, at) for the elements of the matrix in w. */
#define FOR_BLOCK(c, slot, i, j, at)                                                               \
    for (int32_t i = 0; i < test_valid_rows(c, slot); i++)                                         \
        for (int64_t j = 0, at = ((slot) * (c)->spec.br + i) * (c)->spec.bc;                       \
             j < test_valid_cols(c, slot); j++, at++)

static double alpha_of(const test_case *c)
{
    return c->spec.alpha != 0 ? c->spec.alpha : 1;
}

static double old_of(const test_case *c, const test_tensor *t, int64_t at)
{
    return c->spec.beta != 0 ? c->spec.beta * t->value[at] : 0;
}

/* --- Initialisers --------------------------------------------------------------------------- */

static void build_init(test_case *c)
{
    bsk_weight_init_args *a = (void *)c->args;
    a->alpha = alpha_of(c);
    a->seed = c->spec.seed;
    if (strcmp(c->op->name, "weight_checker") == 0)
        test_set(c, "w", bsk_tensor_1d(BSK_F32, c->info.nnz));
    else
        test_set_blocks(c, "w", c->spec.dtype);
    test_arg_at(c, "w")->zero_ok = strcmp(c->op->name, "weight_normal") != 0;
}

static void oracle_identity(test_case *c)
{
    test_tensor *w = test_arg_at(c, "w");
    for (int64_t slot = 0; slot < c->info.nnz; slot++) {
        bool one = c->row[slot] % c->info.grid_cols == c->col[slot] % c->info.grid_rows;
        FOR_BLOCK (c, slot, i, j, at)
            test_expect(w, at, one && i == j ? alpha_of(c) : 0, 0);
    }
}

/* The generator is part of the contract: element i of the stored array is number i of the seed. */
static void oracle_normal(test_case *c)
{
    test_tensor *w = test_arg_at(c, "w");
    double sum = 0, square = 0, count = 0;
    for (int64_t slot = 0; slot < c->info.nnz; slot++)
        FOR_BLOCK (c, slot, i, j, at) {
            double z = bski_philox_normal(c->spec.seed, 0, (uint64_t)at);
            test_expect(w, at, alpha_of(c) * z, 16 * test_arith_eps(c) * fabs(alpha_of(c) * z));
            sum += z;
            square += z * z;
            count++;
        }
    /* five standard errors: a broken generator does not pass */
    if (count > 1000 &&
        (fabs(sum / count) > 5 / sqrt(count) || fabs(square / count - 1) > 5 * sqrt(2 / count)))
        w->want[0] = NAN;
}

static void oracle_checker(test_case *c)
{
    test_tensor *w = test_arg_at(c, "w");
    for (int64_t slot = 0; slot < c->info.nnz; slot++)
        test_expect(w, slot, c->row[slot] % 2 == c->col[slot] % 2, 0);
}

/* The kept elements of block column `column` as a dense matrix of `height` rows. */
static double *column_matrix(const test_case *c, const double *w, int32_t head, int32_t column,
                             int64_t *height, int32_t *width)
{
    int64_t capacity = 0, rows = 0;
    for (int64_t slot = 0; slot < c->info.nnz; slot++)
        if (c->head[slot] == head && c->col[slot] == column)
            capacity += (int64_t)c->spec.br * c->spec.bc;
    double *m = malloc(((size_t)capacity + 1) * sizeof *m);
    *width = 0;
    for (int64_t slot = 0; m && slot < c->info.nnz; slot++) {
        if (c->head[slot] != head || c->col[slot] != column)
            continue;
        *width = test_valid_cols(c, slot);
        FOR_BLOCK (c, slot, i, j, at)
            m[(rows + i) * *width + j] = w[at];
        rows += test_valid_rows(c, slot);
    }
    *height = rows;
    return m;
}

/* Orthonormal columns, or rows where the matrix is wider than high. A dot product of two unit
 * vectors whose elements were rounded with unit e is off by 2 e; 256 u for the factorization. */
static bool judge_orthogonal(const test_case *c, double *const *got, char *why, size_t why_size)
{
    int32_t heads = c->spec.heads ? c->spec.heads : 1;
    double square = alpha_of(c) * alpha_of(c);
    double limit = square * (2.5 * bski_epsilon(c->spec.dtype) + 256 * test_arith_eps(c));
    bool good = true;
    for (int32_t h = 0; good && h < heads; h++)
        for (int32_t q = 0; good && q < c->info.grid_cols; q++) {
            int64_t height;
            int32_t width;
            double *m = column_matrix(c, got[test_index(c, "w")], h, q, &height, &width);
            bool wide = width > height;
            int64_t vectors = wide ? height : width, length = wide ? width : height;
            for (int64_t a = 0; good && a < vectors; a++)
                for (int64_t b = 0; good && b <= a; b++) {
                    double dot = 0;
                    for (int64_t k = 0; k < length; k++)
                        dot += wide ? m[a * width + k] * m[b * width + k]
                                    : m[k * width + a] * m[k * width + b];
                    if (fabs(dot - (a == b ? square : 0)) <= limit)
                        continue;
                    good = false;
                    snprintf(why, why_size,
                             "head %d block column %d: vectors %lld and %lld have "
                             "dot product %.9g, allowed error %.3g",
                             h, q, (long long)a, (long long)b, dot, limit);
                }
            free(m);
        }
    return good;
}

/* --- l2_normalize --------------------------------------------------------------------------- */

/* "tiny": every sum of squares lies below eps. "nograd": operands are 0, and eps is 0 in f32. */
static double l2_eps(const test_case *c)
{
    return c->spec.options & OPT_TINY ? 100 : c->spec.options & OPT_NO_GRAD ? 1e-60 : 1e-12;
}

/* As parameter: 0 is the default. */
static double l2_eps_given(const test_case *c)
{
    return l2_eps(c) == 1e-12 ? 0 : l2_eps(c);
}

/* "nograd": zeros stay zeros. */
static void zeros_set(test_case *c, const char *in, const char *out)
{
    if (c->spec.options & OPT_NO_GRAD) {
        test_arg_at(c, in)->content = CONTENT_VALUE;
        test_arg_at(c, out)->zero_ok = true;
    }
}

static void build_l2(test_case *c)
{
    bsk_l2_normalize_params *p = (void *)c->params;
    bsk_dtype side = test_scalar_type(c);
    p->eps = l2_eps_given(c);
    test_set_blocks(c, "w", c->spec.dtype);
    test_set_blocks(c, "y", test_out_type(c));
    zeros_set(c, "w", "y");
    if (c->spec.options & OPT_GAIN)
        test_set(c, "gain", bsk_tensor_1d(side, c->spec.m));
    if (c->spec.options & OPT_SAVED)
        test_set(c, "saved", bsk_tensor_1d(side, c->spec.m))->zero_ok = true;
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, "y")->alias = (int32_t)(test_arg_at(c, "w") - c->t);
}

/* By column: sums of squares, of dy w and of |dy w|, and the number of terms. */
typedef struct column_sums {
    double *square, *dot, *mag, *terms;
} column_sums;

static column_sums sums_make(const test_case *c, const double *w, const double *dy)
{
    size_t n = (size_t)c->spec.m;
    double *all = calloc(4 * n + 1, sizeof *all);
    column_sums s = {all, all + n, all + 2 * n, all + 3 * n};
    for (int64_t slot = 0; slot < c->info.nnz; slot++)
        FOR_BLOCK (c, slot, i, j, at) {
            int64_t q = (int64_t)c->col[slot] * c->spec.bc + j;
            s.square[q] += w[at] * w[at];
            s.terms[q] += 1;
            if (dy) {
                s.dot[q] += dy[at] * w[at];
                s.mag[q] += fabs(dy[at] * w[at]);
            }
        }
    return s;
}

static void oracle_l2(test_case *c)
{
    test_tensor *w = test_arg_at(c, "w"), *y = test_arg_at(c, "y");
    test_tensor *gain = test_arg_at(c, "gain"), *saved = test_arg_at(c, "saved");
    double u = test_arith_eps(c);
    column_sums s = sums_make(c, w->value, NULL);
    for (int64_t slot = 0; slot < c->info.nnz; slot++)
        FOR_BLOCK (c, slot, i, j, at) {
            int64_t q = (int64_t)c->col[slot] * c->spec.bc + j;
            double v = w->value[at] / sqrt(fmax(s.square[q], l2_eps(c)));
            if (isnan(s.square[q]))
                v = NAN;
            v *= gain->desc.dtype ? gain->value[q] : 1;
            /* the sum of T squares: (T + 1) u, halved by the root; 6 u for the rest */
            test_expect(y, at, v, (s.terms[q] / 2 + 8) * u * fabs(v));
        }
    if (saved->desc.dtype)
        for (int64_t q = 0; q < c->spec.m; q++)
            test_expect(saved, q, s.square[q], (s.terms[q] + 2) * u * s.square[q]);
    free(s.square);
}

static void build_l2_grad(test_case *c)
{
    bsk_l2_normalize_grad_params *p = (void *)c->params;
    bsk_dtype side = test_scalar_type(c);
    p->eps = l2_eps_given(c);
    test_set_blocks(c, "dy", c->spec.dtype);
    test_set_blocks(c, "w", c->spec.dtype);
    test_set_blocks(c, "dw", test_out_type(c));
    zeros_set(c, "dy", "dw");
    zeros_set(c, "w", "dw");
    test_set(c, "saved", bsk_tensor_1d(side, c->spec.m))->content = CONTENT_POSITIVE;
    if (c->spec.options & OPT_GAIN) {
        test_set(c, "gain", bsk_tensor_1d(side, c->spec.m));
        test_set(c, "dgain", bsk_tensor_1d(side, c->spec.m));
    }
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, "dw")->alias = (int32_t)(test_arg_at(c, "dy") - c->t);
}

/* `saved` is what the forward would leave: the true sums of squares, rounded. */
static void prepare_l2_grad(test_case *c)
{
    test_tensor *w = test_arg_at(c, "w"), *saved = test_arg_at(c, "saved");
    column_sums s = sums_make(c, w->value, NULL);
    for (int64_t q = 0; q < c->spec.m; q++)
        bski_store(saved->desc.dtype, saved->init, saved->at[q], s.square[q]);
    test_values_refresh(saved);
    free(s.square);
}

static void oracle_l2_grad(test_case *c)
{
    prepare_l2_grad(c);
    test_tensor *w = test_arg_at(c, "w"), *dy = test_arg_at(c, "dy"), *dw = test_arg_at(c, "dw");
    test_tensor *gain = test_arg_at(c, "gain"), *dgain = test_arg_at(c, "dgain");
    const double *saved = test_arg_at(c, "saved")->value;
    double u = test_arith_eps(c), eps = l2_eps(c);
    column_sums s = sums_make(c, w->value, dy->value);
    for (int64_t slot = 0; slot < c->info.nnz; slot++)
        FOR_BLOCK (c, slot, i, j, at) {
            int64_t q = (int64_t)c->col[slot] * c->spec.bc + j;
            double g = gain->desc.dtype ? gain->value[q] : 1, norm = fmax(saved[q], eps);
            if (isnan(saved[q]))
                norm = NAN;
            bool live = saved[q] >= eps;
            double direct = g * dy->value[at] / sqrt(norm);
            double along = live ? w->value[at] * g * s.dot[q] / norm / sqrt(norm) : 0;
            double along_mag = live ? fabs(w->value[at] * g) * s.mag[q] / norm / sqrt(norm) : 0;
            double old = old_of(c, dw, at);
            double error =
                u * fabs(alpha_of(c)) * (8 * fabs(direct) + (s.terms[q] + 12) * along_mag) +
                2 * u * fabs(old);
            test_expect(dw, at, alpha_of(c) * (direct - along) + old, error);
        }
    for (int64_t q = 0; dgain->desc.dtype && q < c->spec.m; q++) {
        double norm = sqrt(fmax(saved[q], eps)), old = old_of(c, dgain, q);
        double v = alpha_of(c) * s.dot[q] / norm;
        test_expect(dgain, q, v + old,
                    u * ((s.terms[q] + 8) * fabs(alpha_of(c)) * s.mag[q] / norm + 2 * fabs(old)));
    }
    free(s.square);
}

/* --- block_norm, prune, decay --------------------------------------------------------------- */

static void build_norm(test_case *c)
{
    bsk_block_norm_params *p = (void *)c->params;
    p->type = c->spec.norm;
    test_set_blocks(c, "w", c->spec.dtype);
    test_set(c, "norm", bsk_tensor_1d(test_scalar_type(c), c->info.nnz));
}

static double square_of_block(test_case *c, int64_t slot, const double *w)
{
    double square = 0;
    FOR_BLOCK (c, slot, i, j, at)
        square += w[at] * w[at];
    return square;
}

static void oracle_norm(test_case *c)
{
    test_tensor *w = test_arg_at(c, "w"), *norm = test_arg_at(c, "norm");
    double u = test_arith_eps(c), terms = (double)c->spec.br * c->spec.bc;
    for (int64_t slot = 0; slot < c->info.nnz; slot++) {
        double most = 0, l2 = sqrt(square_of_block(c, slot, w->value));
        FOR_BLOCK (c, slot, i, j, at)
            if (fabs(w->value[at]) > most || isnan(w->value[at]))
                most = fabs(w->value[at]);
        bool is_max = c->spec.norm == BSK_NORM_MAX;
        test_expect(norm, slot, is_max ? most : l2, is_max ? 0 : (terms / 2 + 4) * u * l2);
    }
}

static void build_prune(test_case *c)
{
    bsk_prune_args *a = (void *)c->args;
    a->value = c->spec.value;
    /* the integer fill has many ties */
    test_set(c, "norm", bsk_tensor_1d(c->spec.dtype, c->spec.n))->content = CONTENT_POSITIVE;
    test_set(c, "gate", bsk_tensor_1d(BSK_F32, c->spec.n))->zero_ok =
        c->spec.value >= 0.9 || c->spec.n < 4;
}

static void oracle_threshold(test_case *c)
{
    test_tensor *norm = test_arg_at(c, "norm"), *gate = test_arg_at(c, "gate");
    for (int64_t i = 0; i < c->spec.n; i++)
        test_expect(gate, i, isnan(norm->value[i]) || norm->value[i] >= c->spec.value, 0);
}

/* A block is kept if fewer than `keep` blocks come before it: larger, or equal and in a lower
 * slot. */
static void oracle_sparsity(test_case *c)
{
    test_tensor *norm = test_arg_at(c, "norm"), *gate = test_arg_at(c, "gate");
    double keep = round((double)c->spec.n * (1 - c->spec.value));
    for (int64_t i = 0; i < c->spec.n; i++) {
        double before = 0, mine = isnan(norm->value[i]) ? INFINITY : norm->value[i];
        for (int64_t j = 0; j < c->spec.n; j++) {
            double other = isnan(norm->value[j]) ? INFINITY : norm->value[j];
            before += other > mine || (other == mine && j < i);
        }
        test_expect(gate, i, before < keep, 0);
    }
}

static void build_decay(test_case *c)
{
    bsk_block_l2_decay_args *a = (void *)c->args;
    bsk_block_l2_decay_params *p = (void *)c->params;
    a->rate = c->spec.value;
    p->eps = l2_eps_given(c);
    test_set_blocks(c, "w", c->spec.dtype)->zero_ok = c->spec.value > 1;
    zeros_set(c, "w", "w");
    if (c->spec.options & OPT_GATE)
        test_set(c, "gate", bsk_tensor_1d(BSK_F32, c->info.nnz))->content = CONTENT_GATE;
}

static void oracle_decay(test_case *c)
{
    test_tensor *w = test_arg_at(c, "w"), *gate = test_arg_at(c, "gate");
    double u = test_arith_eps(c), terms = (double)c->spec.br * c->spec.bc;
    for (int64_t slot = 0; slot < c->info.nnz; slot++) {
        bool skip = gate->desc.dtype && gate->value[slot] == 0;
        double square = square_of_block(c, slot, w->value);
        double ratio = c->spec.value / sqrt(square + l2_eps(c));
        double share = skip ? 0 : ratio < 1 || isnan(ratio) ? ratio : 1;
        FOR_BLOCK (c, slot, i, j, at) {
            double v = w->value[at];
            test_expect(w, at, v - v * share, skip ? 0 : u * fabs(v) * (2 + terms / 2 + 8));
        }
    }
}

/* --- concrete_gate -------------------------------------------------------------------------- */

static double temperature_of(const test_case *c)
{
    return c->spec.value != 0 ? c->spec.value : 2.0 / 3;
}

static void build_concrete(test_case *c)
{
    bsk_concrete_gate_args *a = (void *)c->args;
    bsk_tensor vector = bsk_tensor_1d(c->spec.dtype, c->spec.n);
    a->temperature = c->spec.value;
    a->seed = c->spec.seed;
    a->offset = 3;
    test_set(c, "loga", vector);
    test_set(c, "gate", vector)->zero_ok = c->spec.n < 8;
    test_set(c, "concrete", vector);
}

static double clamp_unit(double v)
{
    return v < 0 ? 0 : v > 1 ? 1 : v;
}

/* The logit's magnitude times 8 u, through the slope of the logistic (at most c (1 - c)), plus 8 u
 * of the result; log(1 - u) amplifies the rounding of u by u / (1 - u), which is at most 1e6 where
 * the slope makes it harmless. */
static void oracle_concrete(test_case *c)
{
    test_tensor *loga = test_arg_at(c, "loga"), *gate = test_arg_at(c, "gate");
    test_tensor *concrete = test_arg_at(c, "concrete");
    double u = test_arith_eps(c), eps = 1e-6, t = temperature_of(c);
    for (int64_t i = 0; i < c->spec.n; i++) {
        double r = bski_philox_uniform(c->spec.seed, 3, (uint64_t)i) * (1 - 2 * eps) + eps;
        double logit = log(r) - log(1 - r) + loga->value[i];
        double s = 1 / (1 + exp(-logit / t)), stretched = s * 1.2 - 0.1;
        double wobble =
            fabs(log(r)) + fabs(log(1 - r)) + fabs(loga->value[i]) + 1 / r + 1 / (1 - r);
        double error = u * (8 * s + 8 * s * (1 - s) / t * wobble);
        test_expect(concrete, i, s, error);
        test_expect(gate, i, clamp_unit(stretched), 1.2 * error + 4 * u);
    }
}

static void build_concrete_grad(test_case *c)
{
    bsk_concrete_gate_grad_args *a = (void *)c->args;
    bsk_tensor vector = bsk_tensor_1d(c->spec.dtype, c->spec.n);
    a->temperature = c->spec.value;
    test_set(c, "dgate", vector);
    test_set(c, "concrete", vector)->content = CONTENT_UNIT;
    test_set(c, "dloga", vector);
}

static void oracle_concrete_grad(test_case *c)
{
    test_tensor *dgate = test_arg_at(c, "dgate"), *concrete = test_arg_at(c, "concrete");
    test_tensor *dloga = test_arg_at(c, "dloga");
    double u = test_arith_eps(c), t = temperature_of(c);
    for (int64_t i = 0; i < c->spec.n; i++) {
        double s = concrete->value[i], stretched = s * 1.2 - 0.1, old = old_of(c, dloga, i);
        double v = stretched >= 0 && stretched <= 1
                       ? alpha_of(c) * dgate->value[i] * 1.2 * s * (1 - s) / t
                       : 0;
        test_expect(dloga, i, v + old, u * (16 * fabs(v) + 4 * fabs(old)));
    }
}

static void build_concrete_infer(test_case *c)
{
    bsk_tensor vector = bsk_tensor_1d(c->spec.dtype, c->spec.n);
    test_set(c, "loga", vector);
    test_set(c, "gate", vector)->zero_ok = c->spec.n < 4;
}

static void oracle_concrete_infer(test_case *c)
{
    test_tensor *loga = test_arg_at(c, "loga"), *gate = test_arg_at(c, "gate");
    for (int64_t i = 0; i < c->spec.n; i++)
        test_expect(gate, i, clamp_unit(1.2 / (1 + exp(-loga->value[i])) - 0.1),
                    16 * test_arith_eps(c));
}

/* --- block_renew, block_gather -------------------------------------------------------------- */

static void build_renew(test_case *c)
{
    bsk_block_renew_params *p = (void *)c->params;
    bsk_block_renew_args *a = (void *)c->args;
    p->renew = c->spec.renew;
    a->alpha = alpha_of(c);
    a->seed = c->spec.seed;
    test_tensor *w = test_set_blocks(c, "w", c->spec.dtype);
    w->zero_ok = c->info.nnz < 4;
    w->limit = 0x10000;
    test_set(c, "keep", bsk_tensor_1d(BSK_U8, c->info.nnz))->content = CONTENT_FLAG;
}

/* Kept blocks stay bit for bit. Renewed blocks: zeros exactly; random ones by their distribution:
 * uniform within +- scale * std, sample mean within six standard errors. */
static bool judge_renew(const test_case *c, double *const *got, char *why, size_t why_size)
{
    const double *before = c->t[test_index(c, "w")].value;
    const double *keep = c->t[test_index(c, "keep")].value, *after = got[test_index(c, "w")];
    double n = 0, sum = 0, square = 0, m = 0, new_sum = 0, new_square = 0, most = 0;
    for (int64_t slot = 0; slot < c->info.nnz; slot++)
        FOR_BLOCK (c, slot, i, j, at) {
            double v = after[at];
            if (keep[slot] != 0) {
                if (v != before[at]) {
                    snprintf(why, why_size, "kept block %lld changed at (%d, %lld)",
                             (long long)slot, i, (long long)j);
                    return false;
                }
                n++;
                sum += v;
                square += v * v;
            } else {
                m++;
                new_sum += v;
                new_square += v * v;
                most = fmax(most, fabs(v));
                if (c->spec.renew == BSK_RENEW_ZERO && v != 0) {
                    snprintf(why, why_size, "renewed block %lld is not zero", (long long)slot);
                    return false;
                }
            }
        }
    if (c->spec.renew == BSK_RENEW_ZERO || m < 64 || n < 64)
        return true;
    double scale = alpha_of(c), mean = sum / n, std = sqrt(square / n - mean * mean);
    bool normal = c->spec.renew == BSK_RENEW_NORMAL;
    double want_mean = normal ? scale * mean : 0,
           want_std = scale * std * (normal ? 1 : 1 / sqrt(3));
    double new_mean = new_sum / m, new_std = sqrt(new_square / m - new_mean * new_mean);
    bool good = fabs(new_mean - want_mean) < 6 * want_std / sqrt(m) &&
                fabs(new_std / want_std - 1) < 6 / sqrt(2 * m) + 0.01 &&
                (normal || most <= scale * std * 1.01);
    if (!good)
        snprintf(why, why_size,
                 "renewed blocks have mean %g, std %g, largest %g; expected mean %g, "
                 "std %g",
                 new_mean, new_std, most, want_mean, want_std);
    return good;
}

static void build_block_gather(test_case *c)
{
    const test_spec *s = &c->spec;
    int32_t r = s->value != 0 ? 8 : 5, q = s->value != 0 ? 16 : 3;
    test_set(c, "x", bsk_tensor_3d(s->dtype, s->k, r, q))->limit = 0x10000;
    test_tensor *index = test_set(c, "index", bsk_tensor_1d(BSK_I32, s->m));
    index->content = CONTENT_INDEX;
    index->limit = s->k;
    test_set(c, "y", bsk_tensor_3d(s->dtype, s->m, r, q))->zero_ok = s->k == 0 || s->m < 4;
}

static void oracle_block_gather(test_case *c)
{
    test_tensor *x = test_arg_at(c, "x"), *index = test_arg_at(c, "index");
    test_tensor *y = test_arg_at(c, "y");
    int64_t block = y->desc.dims[1] * y->desc.dims[2];
    for (int64_t e = 0; e < y->elems; e++) {
        double from = index->value[e / block];
        bool inside = from >= 0 && from < (double)c->spec.k;
        test_expect(y, e, inside ? x->value[(int64_t)from * block + e % block] : 0, 0);
    }
}

/* --- Projections ---------------------------------------------------------------------------- */

/* k is the large side, m the small one. */
static void set_projection(test_case *c, const char *name, int64_t features)
{
    test_set(c, name, test_act(c, c->spec.dtype, features))->zero_ok = c->spec.m < 4;
}

static void set_index(test_case *c)
{
    test_tensor *t = test_set(c, "index", bsk_tensor_1d(BSK_I32, c->spec.m));
    t->content = CONTENT_DISTINCT;
    t->limit = c->spec.k;
}

static void build_proj(test_case *c)
{
    bool gather = strcmp(c->op->name, "proj_gather") == 0;
    ((bsk_proj_params *)(void *)c->params)->axis = c->spec.axis;
    set_projection(c, "x", gather ? c->spec.k : c->spec.m);
    set_projection(c, "y", gather ? c->spec.m : c->spec.k);
    set_index(c);
}

static void build_proj_op(test_case *c)
{
    ((bsk_proj_scatter_op_params *)(void *)c->params)->axis = c->spec.axis;
    set_projection(c, "x", c->spec.k);
    set_projection(c, "v", c->spec.m);
    set_projection(c, "y", c->spec.k);
    set_index(c);
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, "y")->alias = (int32_t)(test_arg_at(c, "x") - c->t);
}

static void build_proj_grad(test_case *c)
{
    ((bsk_proj_scatter_mul_grad_params *)(void *)c->params)->axis = c->spec.axis;
    set_projection(c, "dy", c->spec.k);
    set_projection(c, "x", c->spec.k);
    set_projection(c, "v", c->spec.m);
    set_projection(c, "dx", c->spec.k);
    set_projection(c, "dv", c->spec.m);
    set_index(c);
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, "dx")->alias = (int32_t)(test_arg_at(c, "dy") - c->t);
}

static int64_t proj_at(const test_case *c, int64_t features, int64_t feature, int64_t n)
{
    return c->spec.axis == BSK_NC ? n * features + feature : feature * c->spec.n + n;
}

/* The row of the large side that small row i maps to, or -1. */
static int64_t proj_target(test_case *c, int64_t i)
{
    double v = test_arg_at(c, "index")->value[i];
    return v >= 0 && v < (double)c->spec.k ? (int64_t)v : -1;
}

static void oracle_gather(test_case *c)
{
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y");
    for (int64_t i = 0; i < c->spec.m; i++)
        for (int64_t n = 0; n < c->spec.n; n++) {
            int64_t from = proj_target(c, i);
            double v = from < 0 ? 0 : x->value[proj_at(c, c->spec.k, from, n)];
            test_expect(y, proj_at(c, c->spec.m, i, n), v, 0);
        }
}

static void oracle_scatter(test_case *c)
{
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y");
    bool add = strcmp(c->op->name, "proj_scatter_add") == 0;
    bool mul = strcmp(c->op->name, "proj_scatter_mul") == 0;
    test_tensor *small = add || mul ? test_arg_at(c, "v") : x;
    double u = test_arith_eps(c);
    for (int64_t e = 0; e < y->elems; e++)
        test_expect(y, e, add || mul ? x->value[e] : 0, 0);
    for (int64_t i = 0; i < c->spec.m; i++)
        for (int64_t n = 0; n < c->spec.n; n++) {
            int64_t to = proj_target(c, i), at = proj_at(c, c->spec.k, to, n);
            double v = small->value[proj_at(c, c->spec.m, i, n)];
            if (to < 0)
                continue;
            double r = add ? x->value[at] + v : mul ? x->value[at] * v : v;
            test_expect(y, at, r, add || mul ? u * fabs(r) : 0);
        }
}

static void oracle_proj_grad(test_case *c)
{
    test_tensor *dy = test_arg_at(c, "dy"), *x = test_arg_at(c, "x"), *v = test_arg_at(c, "v");
    test_tensor *dx = test_arg_at(c, "dx"), *dv = test_arg_at(c, "dv");
    double u = test_arith_eps(c);
    for (int64_t e = 0; e < dx->elems; e++)
        test_expect_blend(c, dx, e, dy->value[e], 0);
    for (int64_t i = 0; i < c->spec.m; i++)
        for (int64_t n = 0; n < c->spec.n; n++) {
            int64_t to = proj_target(c, i), at = proj_at(c, c->spec.k, to, n);
            int64_t small = proj_at(c, c->spec.m, i, n);
            test_expect_blend(c, dv, small, 0, 0);
            if (to < 0)
                continue;
            double a = dy->value[at] * v->value[small], b = dy->value[at] * x->value[at];
            test_expect_blend(c, dx, at, a, u * fabs(a));
            test_expect_blend(c, dv, small, b, u * fabs(b));
        }
}

const test_op test_weights[] = {
    TEST_OP(weight_identity, build_init, oracle_identity, NULL),
    TEST_OP(weight_orthogonal, build_init, NULL, judge_orthogonal),
    TEST_OP(weight_normal, build_init, oracle_normal, NULL),
    TEST_OP(weight_checker, build_init, oracle_checker, NULL),
    TEST_OP(l2_normalize, build_l2, oracle_l2, NULL),
    TEST_OP(l2_normalize_grad, build_l2_grad, oracle_l2_grad, NULL),
    TEST_OP(block_norm, build_norm, oracle_norm, NULL),
    TEST_OP(prune_sparsity, build_prune, oracle_sparsity, NULL),
    TEST_OP(prune_threshold, build_prune, oracle_threshold, NULL),
    TEST_OP(block_l2_decay, build_decay, oracle_decay, NULL),
    TEST_OP(concrete_gate, build_concrete, oracle_concrete, NULL),
    TEST_OP(concrete_gate_grad, build_concrete_grad, oracle_concrete_grad, NULL),
    TEST_OP(concrete_gate_infer, build_concrete_infer, oracle_concrete_infer, NULL),
    TEST_OP(block_renew, build_renew, NULL, judge_renew),
    TEST_OP(block_gather, build_block_gather, oracle_block_gather, NULL),
    TEST_OP(proj_gather, build_proj, oracle_gather, NULL),
    TEST_OP(proj_scatter, build_proj, oracle_scatter, NULL),
    TEST_OP(proj_scatter_add, build_proj_op, oracle_scatter, NULL),
    TEST_OP(proj_scatter_mul, build_proj_op, oracle_scatter, NULL),
    TEST_OP(proj_scatter_mul_grad, build_proj_grad, oracle_proj_grad, NULL),
};
const int32_t test_weights_count = TEST_COUNT(test_weights);
