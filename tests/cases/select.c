/* Ops that choose elements: maxima, gathers, the k largest; and the dense softmax. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/test.h"

TEST_CALLS(reduce_max)
TEST_CALLS(reduce_max_grad)
TEST_CALLS(take_along)
TEST_CALLS(take_along_grad)
TEST_CALLS(fancy_gather)
TEST_CALLS(fancy_gather_grad)
TEST_CALLS(topk)
TEST_CALLS(topk_grad)
TEST_CALLS(rectified_topk)
TEST_CALLS(rectified_topk_grad)
TEST_CALLS(masked_softmax)
TEST_CALLS(masked_topk_softmax)
TEST_CALLS(masked_softmax_grad)

static bsk_dtype index_type(const test_case *c)
{
    return c->spec.index ? c->spec.index : BSK_I32;
}

static void set_indices(test_case *c, const char *name, bsk_tensor desc, int64_t limit)
{
    test_tensor *t = test_set(c, name, desc);
    t->content = CONTENT_INDEX;
    t->limit = limit;
}

static bsk_tensor matrix(const test_case *c, bsk_dtype dtype, int64_t columns)
{
    return bsk_tensor_2d(dtype, c->spec.n, columns);
}

/* --- maxima and gathers: x [n, k, m], count positions along k ----------------------------- */

static bsk_tensor whole(const test_case *c, bsk_dtype dtype)
{
    return bsk_tensor_3d(dtype, c->spec.n, c->spec.k, c->spec.m);
}

static bsk_tensor taken(const test_case *c, bsk_dtype dtype)
{
    return bsk_tensor_3d(dtype, c->spec.n, c->spec.count, c->spec.m);
}

static void build_reduce_max(test_case *c)
{
    test_set(c, "x", whole(c, c->spec.dtype));
    test_set(c, "y", matrix(c, test_out_type(c), c->spec.m))->zero_ok = c->spec.n < 4;
    if (c->spec.index)
        test_set(c, "argmax", matrix(c, c->spec.index, c->spec.m))->zero_ok = true;
}

static bool is_larger(double x, double y)
{
    return isnan(x) ? !isnan(y) : x > y;
}

static void oracle_reduce_max(test_case *c)
{
    const test_spec *s = &c->spec;
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y");
    test_tensor *argmax = test_arg_at(c, "argmax");
    for (int64_t e = 0; e < y->elems; e++) {
        const double *at = x->value + e / s->m * s->k * s->m + e % s->m;
        int64_t best = 0;
        for (int64_t j = 1; j < s->k; j++)
            if (is_larger(at[j * s->m], at[best * s->m]))
                best = j;
        test_expect(y, e, at[best * s->m], 0);
        if (argmax->desc.dtype)
            test_expect(argmax, e, (double)best, 0);
    }
}

static void build_take(test_case *c)
{
    const bool fancy = strcmp(c->op->name, "fancy_gather") == 0;
    test_tensor *x = test_set(c, "x", whole(c, c->spec.dtype));
    if (c->spec.dtype == BSK_I32) {
        x->content = CONTENT_INDEX;
        x->limit = INT32_MAX;
    }
    set_indices(c, "index",
                fancy ? bsk_tensor_1d(index_type(c), c->spec.n) : taken(c, index_type(c)),
                c->spec.k);
    test_set(c, "y", fancy ? matrix(c, test_out_type(c), c->spec.m) : taken(c, test_out_type(c)))
        ->zero_ok = true;
}

/* The index of element (n, j, m) of an op of this family. */
static double index_of(const test_case *c, const test_tensor *index, int64_t n, int64_t j,
                       int64_t m)
{
    const test_spec *s = &c->spec;
    if (index->desc.rank == 1)
        return index->value[n];
    if (index->desc.rank == 2)
        return index->value[n * index->desc.dims[1] + (s->m > 1 ? m : j)];
    return index->value[(n * s->count + j) * s->m + m];
}

static void oracle_take(test_case *c)
{
    const test_spec *s = &c->spec;
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y");
    const test_tensor *index = test_arg_at(c, "index");
    const int64_t count = y->desc.rank == 2 ? 1 : s->count;
    for (int64_t e = 0; e < y->elems; e++) {
        const int64_t m = e % s->m, j = e / s->m % count, n = e / s->m / count;
        const double at = index_of(c, index, n, j, m);
        const bool inside = at >= 0 && at < (double)s->k;
        test_expect(y, e, inside ? x->value[(n * s->k + (int64_t)at) * s->m + m] : 0, 0);
    }
}

static void build_take_grad(test_case *c)
{
    const test_spec *s = &c->spec;
    const bool whole_index = strcmp(c->op->name, "take_along_grad") == 0;
    const bool maxima = strcmp(c->op->name, "reduce_max_grad") == 0;
    test_set(c, "dy", whole_index ? taken(c, s->dtype) : matrix(c, s->dtype, s->m));
    set_indices(c, maxima ? "argmax" : "index",
                whole_index ? taken(c, index_type(c))
                : maxima    ? matrix(c, index_type(c), s->m)
                            : bsk_tensor_1d(index_type(c), s->n),
                s->k);
    test_set(c, "dx", whole(c, test_out_type(c)))->zero_ok = s->n < 4;
}

/* dx [n, k, m] from dy [n, count, m]. */
static void expect_taken(test_case *c, const test_tensor *index, int64_t count)
{
    const test_spec *s = &c->spec;
    test_tensor *dy = test_arg_at(c, "dy"), *dx = test_arg_at(c, "dx");
    const double u = test_arith_eps(c);
    for (int64_t e = 0; e < dx->elems; e++) {
        const int64_t m = e % s->m, k = e / s->m % s->k, n = e / s->m / s->k;
        double sum = 0, mag = 0;
        for (int64_t j = 0; j < count; j++)
            if (index_of(c, index, n, j, m) == (double)k) {
                sum += dy->value[(n * count + j) * s->m + m];
                mag += fabs(dy->value[(n * count + j) * s->m + m]);
            }
        const double old = test_old(c, dx, e), v = test_alpha(c) * sum + old;
        const double error = u * (((double)count + 4) * fabs(test_alpha(c)) * mag + 4 * fabs(old));
        test_expect(dx, e, v, s->fill == FILL_INT ? 0 : error);
    }
}

static void oracle_take_grad(test_case *c)
{
    const bool maxima = strcmp(c->op->name, "reduce_max_grad") == 0;
    const bool several = strcmp(c->op->name, "take_along_grad") == 0;
    expect_taken(c, test_arg_at(c, maxima ? "argmax" : "index"), several ? c->spec.count : 1);
}

/* --- the k largest: x [n, k], count of them ----------------------------------------------- */

typedef struct ranked {
    double value;
    int64_t at;
} ranked;

static int compare_ranks(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (is_larger(x->value, y->value))
        return -1;
    return is_larger(y->value, x->value) ? 1 : x->at < y->at ? -1 : 1;
}

/* A row in falling order; to be freed. */
static ranked *sorted_row(const double *x, int64_t count)
{
    ranked *r = malloc((size_t)(count + 1) * sizeof *r);
    if (!r)
        abort();
    for (int64_t i = 0; i < count; i++)
        r[i] = (ranked){x[i], i};
    qsort(r, (size_t)count, sizeof *r, compare_ranks);
    return r;
}

static void build_topk(test_case *c)
{
    test_set(c, "x", matrix(c, c->spec.dtype, c->spec.k));
    test_set(c, "values", matrix(c, test_out_type(c), c->spec.count))->zero_ok = c->spec.n < 4;
    if (c->spec.index)
        test_set(c, "index", matrix(c, c->spec.index, c->spec.count))->zero_ok = true;
}

static void oracle_topk(test_case *c)
{
    test_tensor *x = test_arg_at(c, "x"), *values = test_arg_at(c, "values");
    test_tensor *index = test_arg_at(c, "index");
    for (int64_t n = 0; n < c->spec.n; n++) {
        ranked *r = sorted_row(x->value + n * c->spec.k, c->spec.k);
        for (int32_t j = 0; j < c->spec.count; j++) {
            test_expect(values, n * c->spec.count + j, r[j].value, 0);
            if (index->desc.dtype)
                test_expect(index, n * c->spec.count + j, (double)r[j].at, 0);
        }
        free(r);
    }
}

static void build_topk_grad(test_case *c)
{
    test_set(c, "dy", matrix(c, c->spec.dtype, c->spec.count));
    set_indices(c, "index", matrix(c, index_type(c), c->spec.count), c->spec.k);
    test_set(c, "dx", matrix(c, test_out_type(c), c->spec.k))->zero_ok = c->spec.n < 4;
}

/* As take_along with m = 1, which such cases have. */
static void oracle_topk_grad(test_case *c)
{
    expect_taken(c, test_arg_at(c, "index"), c->spec.count);
}

/* kind is rebase + 2 constant_cut */
static void build_rectified(test_case *c)
{
    bsk_rectified_topk_params *p = (void *)c->params;
    p->k = c->spec.count;
    p->rebase = c->spec.kind & 1;
    test_set(c, "x", matrix(c, c->spec.dtype, c->spec.k));
    /* with ties the cut may be the largest number */
    test_set(c, "y", matrix(c, test_out_type(c), c->spec.k))->zero_ok =
        c->spec.n < 4 || (p->rebase && c->spec.fill == FILL_INT);
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, "y")->alias = test_index(c, "x");
}

static void oracle_rectified(test_case *c)
{
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y");
    const double u = test_arith_eps(c);
    for (int64_t n = 0; n < c->spec.n; n++) {
        ranked *r = sorted_row(x->value + n * c->spec.k, c->spec.k);
        const double last = r[c->spec.count - 1].value;
        const double cut = (c->spec.kind & 1) && !(last <= 0) ? last : 0;
        for (int64_t d = 0; d < c->spec.k; d++)
            test_expect(y, n * c->spec.k + d, 0, 0);
        for (int32_t j = 0; j < c->spec.count; j++) {
            const double v = r[j].value - cut;
            test_expect(y, n * c->spec.k + r[j].at, v <= 0 ? 0 : v,
                        v > 0 && isfinite(v) && cut > 0 ? u * fabs(v) : 0);
        }
        free(r);
    }
}

static void build_rectified_grad(test_case *c)
{
    bsk_rectified_topk_grad_params *p = (void *)c->params;
    p->k = c->spec.count;
    p->rebase = c->spec.kind & 1;
    p->constant_cut = c->spec.kind >> 1 & 1;
    test_set(c, "dy", matrix(c, c->spec.dtype, c->spec.k));
    test_set(c, "x", matrix(c, c->spec.dtype, c->spec.k));
    test_set(c, "dx", matrix(c, test_out_type(c), c->spec.k))->zero_ok =
        c->spec.n < 4 || (p->rebase && c->spec.fill == FILL_INT);
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, "dx")->alias = test_index(c, "dy");
}

static void oracle_rectified_grad(test_case *c)
{
    const test_spec *s = &c->spec;
    test_tensor *dy = test_arg_at(c, "dy"), *x = test_arg_at(c, "x"), *dx = test_arg_at(c, "dx");
    const double u = test_arith_eps(c), a = test_alpha(c);
    for (int64_t n = 0; n < s->n; n++) {
        ranked *r = sorted_row(x->value + n * s->k, s->k);
        const ranked last = r[s->count - 1];
        const double cut = s->kind & 1 ? fmax(last.value, 0) : 0;
        double sum = 0, mag = 0;
        for (int64_t j = 0; j < s->k; j++) {
            const int64_t e = n * s->k + r[j].at;
            const double g =
                j < s->count ? dy->value[e] * test_slope(BSK_ACT_RELU, r[j].value - cut) : 0;
            const double old = test_old(c, dx, e);
            sum += g;
            mag += fabs(g);
            test_expect(dx, e, a * g + old, u * (4 * fabs(a * g) + 4 * fabs(old)));
        }
        if (s->kind == 1 && last.value > 0) {
            const int64_t e = n * s->k + last.at;
            const double old = test_old(c, dx, e);
            test_expect(dx, e, old - a * sum, u * ((s->count + 6) * fabs(a) * mag + 4 * fabs(old)));
        }
        free(r);
    }
}

/* --- masked_softmax: rows of the last dimension ------------------------------------------------
 * "gate" has a mask, "shared" one with dimensions of 1; count is k, value is scale. */

static void set_mask(test_case *c)
{
    bsk_tensor mask = test_shape(c, test_out_type(c));
    if (!(c->spec.options & (OPT_GATE | OPT_SHARED)))
        return;
    for (int d = 0; (c->spec.options & OPT_SHARED) && d < mask.rank - 1; d += 2)
        mask.dims[d] = 1;
    test_set(c, "mask", mask)->content = CONTENT_GATE;
}

static void build_softmax(test_case *c)
{
    ((bsk_masked_softmax_params *)(void *)c->params)->k = c->spec.count;
    ((bsk_masked_softmax_args *)(void *)c->args)->scale = c->spec.value;
    test_set(c, "x", test_shape(c, c->spec.dtype));
    test_set(c, "y", test_shape(c, test_out_type(c)))->zero_ok = c->spec.n < 4;
    set_mask(c);
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, "y")->alias = test_index(c, "x");
}

/* The mask's value for element e of x. */
static double mask_at(const test_tensor *x, const test_tensor *mask, int64_t e)
{
    int64_t at = 0, stride = 1;
    if (!mask->desc.dtype)
        return 1;
    for (int d = x->desc.rank - 1; d >= 0; d--) {
        if (mask->desc.dims[d] > 1) {
            at += e % x->desc.dims[d] * stride;
            stride *= mask->desc.dims[d];
        }
        e /= x->desc.dims[d];
    }
    return mask->value[at];
}

/* Error of a probability: the sum's terms, 16 units for exp and the quotient, the rounding of the
 * arguments, which are as large as their magnitudes, and that of a power that is denormal. */
static void expect_softmax(test_case *c, int64_t first, int64_t count)
{
    test_tensor *x = test_arg_at(c, "x"), *y = test_arg_at(c, "y"), *mask = test_arg_at(c, "mask");
    const double u = test_arith_eps(c), scale = c->spec.value != 0 ? c->spec.value : 1;
    const double tiny = test_store_error(c->spec.dtype == BSK_F64 ? BSK_F64 : BSK_F32, 0);
    ranked *r = malloc((size_t)(count + 1) * sizeof *r);
    int64_t live = 0;
    double sum = 0, spread = 0;
    if (!r)
        abort();
    for (int64_t i = 0; i < count; i++) {
        const double factor = mask_at(x, mask, first + i);
        test_expect(y, first + i, 0, 0);
        if (factor != 0)
            r[live++] = (ranked){x->value[first + i] * factor * scale, first + i};
    }
    qsort(r, (size_t)live, sizeof *r, compare_ranks);
    if (c->spec.count && live > c->spec.count)
        live = c->spec.count;
    for (int64_t i = 0; i < live; i++) {
        sum += exp(r[i].value - r[0].value);
        if (isfinite(r[i].value))
            spread = fmax(spread, fabs(r[i].value));
    }
    for (int64_t i = 0; i < live && r[0].value != -INFINITY; i++) {
        const double v = exp(r[i].value - r[0].value) / sum;
        test_expect(y, r[i].at, v, isnan(v) ? 0 : u * v * ((double)live + 16 + 6 * spread) + tiny);
    }
    free(r);
}

static void oracle_softmax(test_case *c)
{
    const test_tensor *x = test_arg_at(c, "x");
    const int64_t count = x->desc.dims[x->desc.rank - 1];
    for (int64_t e = 0; e < x->elems; e += count)
        expect_softmax(c, e, count);
}

static void build_softmax_grad(test_case *c)
{
    ((bsk_masked_softmax_grad_args *)(void *)c->args)->scale = c->spec.value;
    test_set(c, "dy", test_shape(c, c->spec.dtype));
    test_set(c, "y", test_shape(c, c->spec.dtype))->content =
        c->spec.options & OPT_TINY ? CONTENT_GATE : CONTENT_UNIT;
    test_set(c, "dx", test_shape(c, test_out_type(c)))->zero_ok = c->spec.n < 4;
    set_mask(c);
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, "dx")->alias = test_index(c, c->spec.kind ? "y" : "dy");
}

static void oracle_softmax_grad(test_case *c)
{
    test_tensor *dy = test_arg_at(c, "dy"), *y = test_arg_at(c, "y"), *dx = test_arg_at(c, "dx");
    const test_tensor *mask = test_arg_at(c, "mask");
    const int64_t count = dy->desc.dims[dy->desc.rank - 1];
    const double u = test_arith_eps(c), scale = c->spec.value != 0 ? c->spec.value : 1;
    for (int64_t first = 0; first < dy->elems; first += count) {
        double sum = 0, mag = 0;
        for (int64_t e = first; e < first + count; e++) {
            sum += dy->value[e] * y->value[e];
            mag += fabs(dy->value[e] * y->value[e]);
        }
        for (int64_t e = first; e < first + count; e++) {
            const double factor = test_alpha(c) * scale * mask_at(dy, mask, e) * y->value[e];
            const double old = test_old(c, dx, e), v = factor * (dy->value[e] - sum) + old;
            const double error =
                fabs(factor) * (((double)count + 8) * mag + 8 * fabs(dy->value[e]));
            test_expect(dx, e, v, u * (error + 4 * fabs(old)));
        }
    }
}

const test_op test_select[] = {
    TEST_OP(reduce_max, build_reduce_max, oracle_reduce_max, NULL),
    TEST_OP(reduce_max_grad, build_take_grad, oracle_take_grad, NULL),
    TEST_OP(take_along, build_take, oracle_take, NULL),
    TEST_OP(take_along_grad, build_take_grad, oracle_take_grad, NULL),
    TEST_OP(fancy_gather, build_take, oracle_take, NULL),
    TEST_OP(fancy_gather_grad, build_take_grad, oracle_take_grad, NULL),
    TEST_OP(topk, build_topk, oracle_topk, NULL),
    TEST_OP(topk_grad, build_topk_grad, oracle_topk_grad, NULL),
    TEST_OP(rectified_topk, build_rectified, oracle_rectified, NULL),
    TEST_OP(rectified_topk_grad, build_rectified_grad, oracle_rectified_grad, NULL),
    TEST_OP(masked_softmax, build_softmax, oracle_softmax, NULL),
    TEST_OP(masked_topk_softmax, build_softmax, oracle_softmax, NULL),
    TEST_OP(masked_softmax_grad, build_softmax_grad, oracle_softmax_grad, NULL),
};
const int32_t test_select_count = TEST_COUNT(test_select);
