/* Products of groups of rows, and the sorting of tokens by expert.
 * grouped_matmul, grouped_wgrad: n rows of k and m features in `groups` groups; kind says how they
 * are shared out. "cn": x is stored the other way round, "t": so are the matrices, "trans": all are,
 * but those that are twice.
 * moe_route: n tokens with k choices of `groups` experts each; kind says which. */
#include <math.h>
#include <stdlib.h>

#include "tests/harness/test.h"

TEST_CALLS(grouped_matmul)
TEST_CALLS(grouped_wgrad)
TEST_CALLS(moe_route)

static const bsk_dtype dtypes[] = {BSK_F32, BSK_F16, BSK_BF16, BSK_F64};

/* --- Products ------------------------------------------------------------------------------- */

/* Strides of the last two axes the other way round than the case's options have them. */
static void turn(const test_case *c, test_tensor *t)
{
    bsk_tensor *d = &t->desc;
    const uint32_t options = c->spec.options;
    const int last = d->rank - 1, inner = options & OPT_TRANS ? last : last - 1;
    const int outer = 2 * last - 1 - inner;
    const int64_t gap = options & OPT_LD8 ? 8 : options & OPT_LD ? 3 : 0;
    d->strides[inner] = 1;
    d->strides[outer] = d->dims[inner] + gap;
    if (last == 2)
        d->strides[0] = (d->strides[outer] + !d->strides[outer]) * (d->dims[outer] + 1);
}

static void set_groups(test_case *c, const char *y, bsk_dtype y_type, const char *w,
                       bsk_dtype w_type)
{
    const test_spec *s = &c->spec;
    test_tensor *x = test_set(c, "x", bsk_tensor_2d(s->dtype, s->n, s->k));
    test_tensor *matrices = test_set(c, w, bsk_tensor_3d(w_type, s->groups, s->k, s->m));
    test_tensor *offsets = test_set(c, "offsets", bsk_tensor_1d(BSK_I32, s->groups + 1));
    offsets->content = CONTENT_OFFSETS;
    offsets->limit = s->n;
    test_set(c, y, bsk_tensor_2d(y_type, s->n, s->m));
    if (s->axis == BSK_CN)
        turn(c, x);
    if (s->transpose)
        turn(c, matrices);
}

/* An output that few terms may leave 0. */
static void allow_zero(test_case *c, const char *name)
{
    const test_spec *s = &c->spec;
    test_arg_at(c, name)->zero_ok =
        s->act == BSK_ACT_RELU || s->n < 16 || !s->groups || !s->k || s->kind == GROUPS_ASTRAY;
}

static void build_grouped_matmul(test_case *c)
{
    const test_spec *s = &c->spec;
    ((bsk_grouped_matmul_params *)(void *)c->params)->act = s->act;
    set_groups(c, "y", test_out_type(c), "w", s->dtype);
    if (s->options & OPT_BIAS)
        test_set(c, "bias", bsk_tensor_2d(test_scalar_type(c), s->groups, s->m));
    allow_zero(c, "y");
}

static void build_grouped_wgrad(test_case *c)
{
    const test_spec *s = &c->spec;
    set_groups(c, "dy", s->dtype, "dw", test_out_type(c));
    allow_zero(c, "dw");
    if (s->options & OPT_DBIAS) {
        test_set(c, "dbias", bsk_tensor_2d(test_scalar_type(c), s->groups, s->m));
        allow_zero(c, "dbias");
    }
}

static bool is_exact(const test_case *c)
{
    return c->spec.fill == FILL_INT && c->spec.act <= BSK_ACT_RELU;
}

/* The group of each row, or -1: one less than the offsets that do not lie behind it, of which the
 * largest so far counts. */
static int64_t *groups_of_rows(test_case *c)
{
    const test_spec *s = &c->spec;
    const double *offsets = test_arg_at(c, "offsets")->value;
    int64_t *group = malloc((size_t)(s->n + 1) * sizeof *group);
    if (!group)
        abort();
    for (int64_t t = 0; t < s->n; t++) {
        double largest = 0;
        group[t] = -1;
        for (int64_t g = 0; g <= s->groups; g++) {
            largest = fmax(largest, offsets[g]);
            group[t] += largest <= (double)t;
        }
        if (group[t] == s->groups)
            group[t] = -1;
    }
    return group;
}

static void oracle_grouped_matmul(test_case *c)
{
    const test_spec *s = &c->spec;
    test_tensor *y = test_arg_at(c, "y"), *bias = test_arg_at(c, "bias");
    const double *x = test_arg_at(c, "x")->value, *w = test_arg_at(c, "w")->value;
    const double u = test_arith_eps(c), alpha = test_alpha(c);
    int64_t *group = groups_of_rows(c);
    for (int64_t e = 0; e < y->elems; e++) {
        const int64_t t = e / s->m, m = e % s->m, g = group[t];
        const double old = test_old(c, y, e),
                     b = bias->desc.dtype && g >= 0 ? bias->value[g * s->m + m] : 0;
        double sum = 0, mag = 0;
        for (int64_t k = 0; k < s->k && g >= 0; k++) {
            const double v = x[t * s->k + k] * w[(g * s->k + k) * s->m + m];
            sum += v;
            mag += fabs(v);
        }
        double v = (g >= 0 ? alpha * sum : 0) + b + old;
        double error = u * (((double)s->k + 4) * fabs(alpha) * mag + 4 * (fabs(b) + fabs(old)));
        /* the slopes stay below 1.2; 16 units for exp, tanh and erf in the arithmetic type */
        if (g >= 0 && s->act > BSK_ACT_RELU)
            error = 1.2 * error + 16 * u * fabs(v);
        if (g >= 0)
            v = test_activation(s->act, v);
        test_expect(y, e, v, is_exact(c) ? 0 : error);
    }
    free(group);
}

/* What row t adds to the sums of its group; an element of x is 1 where there is none. */
static void add_row(const double *x, int64_t x_count, const double *dy, int64_t dy_count,
                    double *sum, double *mag)
{
    for (int64_t k = 0; k < x_count; k++)
        for (int64_t m = 0; m < dy_count; m++) {
            const double v = (x ? x[k] : 1) * dy[m];
            sum[k * dy_count + m] += v;
            mag[k * dy_count + m] += fabs(v);
        }
}

/* The sums of all groups over their rows, of x^T dy, or of dy. */
static void expect_sums(test_case *c, test_tensor *out, const double *x, int64_t width)
{
    const test_spec *s = &c->spec;
    const double *dy = test_arg_at(c, "dy")->value, u = test_arith_eps(c);
    const double alpha = test_alpha(c);
    double *sum = calloc((size_t)(2 * out->elems + 1), sizeof *sum), *mag = sum + out->elems;
    int64_t *group = groups_of_rows(c), *rows = calloc((size_t)s->groups + 1, sizeof *rows);
    if (!sum || !rows)
        abort();
    for (int64_t t = 0; t < s->n; t++) {
        const int64_t at = group[t] * width * s->m;
        if (group[t] < 0)
            continue;
        rows[group[t]]++;
        add_row(x ? x + t * width : NULL, width, dy + t * s->m, s->m, sum + at, mag + at);
    }
    for (int64_t e = 0; e < out->elems; e++) {
        const double old = test_old(c, out, e);
        const double terms = (double)rows[e / (width * s->m)];
        const double error =
            u * ((terms + 4) * fabs(alpha) * mag[e] + 4 * (fabs(alpha * sum[e]) + fabs(old)));
        test_expect(out, e, alpha * sum[e] + old, is_exact(c) ? 0 : error);
    }
    free(rows);
    free(group);
    free(sum);
}

static void oracle_grouped_wgrad(test_case *c)
{
    expect_sums(c, test_arg_at(c, "dw"), test_arg_at(c, "x")->value, c->spec.k);
    if (c->spec.options & OPT_DBIAS)
        expect_sums(c, test_arg_at(c, "dbias"), NULL, 1);
}

/* --- moe_route ------------------------------------------------------------------------------ */

enum { ROUTE_ONE = 1, ROUTE_NONE };

static void build_moe_route(test_case *c)
{
    const test_spec *s = &c->spec;
    const bool any = s->n * s->k < 8 || s->groups < 2 || s->kind;
    test_tensor *experts = test_set(c, "experts", bsk_tensor_2d(BSK_I32, s->n, s->k));
    experts->content = s->kind ? CONTENT_VALUE : CONTENT_INDEX;
    experts->constant = s->kind == ROUTE_ONE ? s->groups / 2 : -1;
    experts->limit = s->groups;
    test_set(c, "offsets", bsk_tensor_1d(BSK_I32, s->groups + 1))->zero_ok = any;
    test_set(c, "order", bsk_tensor_1d(BSK_I32, s->n * s->k))->zero_ok = any;
    if (s->options & OPT_SAVED) {
        test_set(c, "token", bsk_tensor_1d(BSK_I32, s->n * s->k))->zero_ok = any;
        test_set(c, "place", experts->desc)->zero_ok = any;
    }
}

/* Each slot's place is the number of slots that come before it. */
static void oracle_moe_route(test_case *c)
{
    const test_spec *s = &c->spec;
    const double *experts = test_arg_at(c, "experts")->value;
    test_tensor *order = test_arg_at(c, "order"), *offsets = test_arg_at(c, "offsets");
    test_tensor *token = test_arg_at(c, "token"), *place = test_arg_at(c, "place");
    const bool all = s->options & OPT_SAVED;
    for (int64_t g = 0; g <= s->groups; g++) {
        int64_t below = 0;
        for (int64_t i = 0; i < order->elems; i++)
            below += experts[i] >= 0 && experts[i] < (double)g;
        test_expect(offsets, g, (double)below, 0);
    }
    for (int64_t i = 0; i < order->elems; i++) {
        test_expect(order, i, -1, 0);
        if (all)
            test_expect(token, i, -1, 0);
    }
    for (int64_t i = 0; i < order->elems; i++) {
        const bool counts = experts[i] >= 0 && experts[i] < (double)s->groups;
        int64_t at = 0;
        for (int64_t j = 0; counts && j < order->elems; j++)
            at +=
                experts[j] >= 0 && (experts[j] < experts[i] || (experts[j] == experts[i] && j < i));
        if (counts)
            test_expect(order, at, (double)i, 0);
        if (counts && all)
            test_expect(token, at, (double)(i / s->k), 0);
        if (all)
            test_expect(place, i, counts ? (double)at : -1, 0);
    }
}

const test_op test_grouped[] = {
    TEST_OP(grouped_matmul, build_grouped_matmul, oracle_grouped_matmul, NULL),
    TEST_OP(grouped_wgrad, build_grouped_wgrad, oracle_grouped_wgrad, NULL),
    TEST_OP(moe_route, build_moe_route, oracle_moe_route, NULL),
};
const int32_t test_grouped_count = TEST_COUNT(test_grouped);

/* --- Cases ---------------------------------------------------------------------------------- */

/* Rows, groups, k, m; the last ones have several tiles, more terms than are packed or staged at a
 * time, and more rows than are summed before the sums are added up. */
static const int32_t shapes[][4] = {
    {1, 1, 1, 1},     {5, 3, 4, 7},      {33, 4, 17, 9},   {7, 12, 8, 16},  {64, 1, 64, 64},
    {0, 2, 3, 4},     {6, 2, 0, 5},      {6, 2, 5, 0},     {9, 0, 4, 4},    {65, 2, 8, 132},
    {40, 3, 150, 33}, {200, 5, 24, 136}, {257, 3, 72, 40}, {8200, 2, 3, 5},
};

static const uint32_t options[] = {
    0, OPT_LD | OPT_OFFSET, OPT_TRANS | OPT_LD, OPT_LD8, OPT_TRANS, OPT_TRANS | OPT_LD8, OPT_LD};

/* A product and its gradients by the number of the case, with which all choices turn. */
static void emit_products(test_list *list, test_spec s, int i)
{
    s.options = options[i % TEST_COUNT(options)];
    s.axis = i / 2 % 3 == 1 ? BSK_CN : BSK_NC;
    s.transpose = i / 3 % 2;
    s.out = i % 4 == 3 ? dtypes[(i / 4) % 4] : BSK_NONE;
    s.fill = i % 3 == 0 ? FILL_INT : FILL_REAL;
    s.alpha = i % 5 == 2 ? 0.5 : i % 7 == 3 ? -2 : 0;
    s.beta = i % 4 == 1 ? 0.5 : i % 6 == 2 ? -1 : 0;
    s.op = "grouped_wgrad";
    s.options |= i % 2 ? OPT_DBIAS : 0;
    test_emit(list, s);
    s.op = "grouped_matmul";
    s.options = (s.options & ~(uint32_t)OPT_DBIAS) | (i % 3 != 1 ? OPT_BIAS : 0);
    s.act = (bsk_act)(i % BSK_ACT_COUNT);
    test_emit(list, s);
}

/* Several tiles of the tuned kernels in both directions, of which some are left over, and a depth of more
 * stages than they keep; what their copies can take. */
static void list_tiles(test_list *list)
{
    static const int32_t tiles[][4] = {
        {600, 2, 200, 328}, {330, 3, 136, 600}, {140, 4, 328, 264}, {900, 3, 72, 72}};
    static const bsk_dtype outs[] = {BSK_NONE, BSK_F32, BSK_BF16};
    for (int g = 0, i = 0; g < TEST_COUNT(tiles); g++)
        for (int kind = 0; kind < GROUPS_KINDS; kind++)
            for (int t = 0; t < 3; t++, i++) {
                test_spec s = {.dtype = dtypes[t], .kind = kind, .n = tiles[g][0]};
                if (i % (list->tier == TIER_FULL ? 1 : list->tier == TIER_CI ? 2 : 9))
                    continue;
                s.groups = tiles[g][1];
                s.k = tiles[g][2];
                s.m = tiles[g][3];
                s.out = outs[i / 2 % 3];
                s.transpose = i / 3 % 2;
                s.options = i / 4 % 2 ? OPT_LD8 : 0;
                s.fill = i % 5 == 4 ? FILL_SPECIAL : i % 5 == 0 ? FILL_INT : FILL_REAL;
                s.alpha = i % 5 == 2 ? 0.5 : 0;
                s.beta = i / 2 % 4 == 1 ? 0.5 : 0;
                s.op = "grouped_wgrad";
                s.options |= i / 2 % 2 ? OPT_DBIAS : 0;
                test_emit(list, s);
                s.op = "grouped_matmul";
                s.options = (s.options & ~(uint32_t)OPT_DBIAS) | (i / 2 % 3 ? OPT_BIAS : 0);
                s.act = (bsk_act)(i / 2 % BSK_ACT_COUNT);
                test_emit(list, s);
            }
}

/* NaN and infinities in all inputs, and products beyond the type of the output. */
static void list_specials(test_list *list)
{
    for (int t = 0; t < TEST_COUNT(dtypes); t++)
        for (int i = 0; i < 4; i++) {
            test_spec s = {.op = "grouped_matmul", .dtype = dtypes[t], .n = 70, .k = 20, .m = 9};
            s.groups = 3;
            s.kind = i % 2 ? GROUPS_SHORT : GROUPS_ANY;
            s.fill = i < 3 ? FILL_SPECIAL : FILL_HUGE;
            s.transpose = i / 2;
            s.options = i % 2 ? OPT_BIAS : 0;
            s.act = i % 3 == 1 ? BSK_ACT_SILU : BSK_ACT_NONE;
            if (i == 3 && dtypes[t] != BSK_F16)
                continue;
            if (list->tier == TIER_QUICK && (i + t) % 2)
                continue;
            test_emit(list, s);
            s.op = "grouped_wgrad";
            s.act = BSK_ACT_NONE;
            s.options = OPT_DBIAS;
            test_emit(list, s);
        }
}

/* Tokens, choices, experts. */
static const int32_t routes[][3] = {{1, 1, 1},   {7, 2, 3},    {0, 2, 4},    {5, 0, 3},
                                    {9, 3, 0},   {40, 1, 64},  {100, 2, 8},  {33, 8, 5},
                                    {700, 2, 7}, {1500, 1, 3}, {4300, 2, 70}};

static void list_routes(test_list *list)
{
    for (int i = 0; i < TEST_COUNT(routes); i++)
        for (int kind = 0; kind <= ROUTE_NONE; kind++) {
            test_spec s = {.op = "moe_route", .dtype = BSK_I32, .kind = kind};
            if (list->tier == TIER_QUICK && (i + kind) % 2)
                continue;
            s.n = routes[i][0];
            s.k = routes[i][1];
            s.groups = routes[i][2];
            s.options = (i + kind) % 3 ? OPT_SAVED : 0;
            test_emit(list, s);
            s.options ^= OPT_SAVED | OPT_OFFSET;
            test_emit(list, s);
        }
}

void cases_grouped(test_list *list)
{
    int i = 0;
    for (int g = 0; g < TEST_COUNT(shapes); g++)
        for (int kind = 0; kind < GROUPS_KINDS; kind++)
            for (int t = 0; t < TEST_COUNT(dtypes); t++, i++) {
                const int64_t work = (int64_t)shapes[g][0] * shapes[g][2] * shapes[g][3];
                const int share = list->tier == TIER_FULL ? 1
                                  : list->tier == TIER_CI ? (work > 50000 ? 3 : 1)
                                                          : (work > 50000 ? 11 : 7);
                if ((shapes[g][0] > 1000 && list->tier != TIER_FULL) || i % share)
                    continue;
                test_spec s = {.dtype = dtypes[t], .kind = kind, .n = shapes[g][0]};
                s.groups = shapes[g][1];
                s.k = shapes[g][2];
                s.m = shapes[g][3];
                emit_products(list, s, i + g);
            }
    list_tiles(list);
    list_specials(list);
    list_routes(list);
}
