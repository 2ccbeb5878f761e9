/* Convolutions over blocks of channels: n images; kind is the geometry, groups one more than the
 * number of the blocks, whose outputs are those of conv_edge_bias, which has count sets. "nc": channels lie next to each other, "cn": positions do. */
#include <math.h>
#include <stdlib.h>

#include "common/conv.h"
#include "tests/harness/test.h"

TEST_CALLS(conv)
TEST_CALLS(conv_dgrad)
TEST_CALLS(conv_wgrad)
TEST_CALLS(conv_edge_bias)
TEST_CALLS(conv_edge_bias_grad)

static const bsk_dtype dtypes[] = {BSK_F32, BSK_F16, BSK_BF16, BSK_F64};

/* --- Blocks and geometries ------------------------------------------------------------------ */

typedef struct channel_blocks {
    int64_t inputs, outputs;
    const int32_t *list;
    int64_t size;
} channel_blocks;

#define LIST(...)                                                                                  \
    (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)

static const channel_blocks blocks[] = {
    {1, 1, LIST(1, 1, 0, 0)},
    /* equal ones, apart */
    {4, 6, LIST(2, 3, 0, 1, 0, 1, 2, 2, 3, 2, 3, 3, 4, 5)},
    /* unequal ones in any order that share both sides; an output and an input of none */
    {6, 5, LIST(3, 2, 4, 0, 2, 3, 1, 1, 3, 2, 1, 3, 0, 2, 2, 2, 5, 4, 3)},
    /* one twice, one without outputs, one without inputs */
    {3, 3, LIST(2, 1, 0, 1, 2, 2, 1, 0, 1, 2, 1, 0, 2, 0, 2, 0, 1)},
    {2, 3, NULL, 0},
    {0, 2, LIST(0, 2, 0, 1)},
    /* more than a vector of either */
    {20, 19,
     LIST(18, 17, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 0, 1, 2, 3, 4, 5,
          6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18)},
};

typedef struct geometry {
    int32_t rank;
    int64_t inputs[3], outputs[3];
    int32_t filter[3], stride[3], dilation[3], pad[3];
} geometry;

/* By the words of name.c. */
static const geometry geometries[] = {
    {1, {9}, {9}, {3}, {1}, {1}, {1}},                                     /* line */
    {1, {11}, {6}, {5}, {2}, {1}, {2}},                                    /* stride */
    {1, {12}, {8}, {3}, {1}, {2}, {0}},                                    /* dilation */
    {1, {7}, {12}, {2}, {1}, {3}, {6}},                                    /* far: more outputs */
    {2, {5, 6}, {5, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},                   /* image */
    {2, {7, 4}, {4, 3}, {3, 2}, {2, 1}, {1, 2}, {2, 0}},                   /* uneven */
    {2, {4, 41}, {4, 38}, {2, 4}, {1, 1}, {1, 1}, {0, 0}},                 /* wide */
    {3, {3, 4, 5}, {2, 2, 5}, {2, 3, 3}, {1, 2, 1}, {1, 1, 1}, {0, 1, 1}}, /* volume */
    {3, {3, 3, 4}, {4, 2, 2}, {2, 1, 2}, {1, 2, 3}, {2, 1, 1}, {1, 0, 1}}, /* gaps */
    {2, {0, 3}, {2, 3}, {3, 1}, {1, 1}, {1, 1}, {1, 0}},                   /* none: no inputs */
    {2, {7, 38}, {4, 19}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},                 /* large */
    {1, {300}, {300}, {4}, {1}, {1}, {1}},                                 /* long */
};
enum { WIDE = 6, NONE = 9, LARGE = 10 };

/* --- Building ------------------------------------------------------------------------------- */

static const channel_blocks *blocks_of(const test_case *c)
{
    return &blocks[c->spec.groups - 1];
}

static bsk_conv_shape shape_of(const test_case *c)
{
    const geometry *g = &geometries[c->spec.kind];
    bsk_conv_shape s = {.blocks = blocks_of(c)->list, .blocks_size = blocks_of(c)->size};
    for (int d = 0; d < g->rank; d++) {
        s.filter[d] = g->filter[d];
        s.stride[d] = g->stride[d];
        s.dilation[d] = g->dilation[d];
        s.pad[d] = g->pad[d];
    }
    return s;
}

static void set_image(test_case *c, const char *name, bsk_dtype type, int64_t channels,
                      const int64_t sizes[3])
{
    const int32_t rank = 2 + geometries[c->spec.kind].rank;
    bsk_tensor t = {type, rank, {c->spec.n, channels}, {0}};
    for (int32_t d = 2; d < rank; d++)
        t.dims[d] = sizes[d - 2];
    const int64_t gap = c->spec.options & OPT_LD8 ? 8 : c->spec.options & OPT_LD ? 3 : 0;
    int64_t stride = 1;
    if (c->spec.axis == BSK_NC) {
        t.strides[1] = 1;
        stride = channels + gap + !channels;
    }
    for (int32_t d = rank - 1; d >= 0; d--) {
        if (d == 1 && c->spec.axis == BSK_NC)
            continue;
        t.strides[d] = stride;
        stride *= t.dims[d] + !t.dims[d];
        stride += c->spec.axis == BSK_CN && d == rank - 1 ? gap : 0;
    }
    test_set(c, name, t);
}

static int64_t filter_count(const test_case *c)
{
    const bsk_conv_shape s = shape_of(c);
    const geometry *g = &geometries[c->spec.kind];
    int64_t count = 0;
    for (bski_conv_block b = {0}; bski_conv_next(&s, &b);)
        count += b.ins * b.outs;
    for (int d = 0; d < g->rank; d++)
        count *= g->filter[d];
    return count;
}

#define BUILD(op, X, W, Y, out)                                                                    \
    static void build_##op(test_case *c)                                                           \
    {                                                                                              \
        const geometry *g = &geometries[c->spec.kind];                                             \
        ((bsk_##op##_params *)(void *)c->params)->shape = shape_of(c);                             \
        const bsk_dtype type = c->spec.dtype, to = test_out_type(c);                               \
        set_image(c, #X, out == 0 ? to : type, blocks_of(c)->inputs, g->inputs);                   \
        test_set(c, #W, bsk_tensor_1d(out == 1 ? to : type, filter_count(c)));                     \
        set_image(c, #Y, out == 2 ? to : type, blocks_of(c)->outputs, g->outputs);                 \
        test_arg_at(c, out == 0 ? #X : out == 1 ? #W : #Y)->zero_ok = true;                        \
    }
BUILD(conv, x, w, y, 2)
BUILD(conv_dgrad, dx, w, dy, 0)
BUILD(conv_wgrad, x, dw, dy, 1)

/* --- Expectations --------------------------------------------------------------------------- */

/* What each element of an output is the sum of. */
typedef struct sums {
    double *sum, *magnitude, *terms;
} sums;

static void sums_add(sums *s, int64_t at, double a, double b)
{
    s->sum[at] += a * b;
    s->magnitude[at] += fabs(a * b);
    s->terms[at]++;
}

/* The elements of x and y at one tap of one output position, or false: x[n, 0, from], y[n, 0, q]. */
static bool meet(const geometry *g, int64_t position, int64_t tap, int64_t *x, int64_t *y)
{
    int64_t x_step = 1, y_step = 1;
    *x = *y = 0;
    for (int d = g->rank - 1; d >= 0; d--) {
        const int64_t q = position % g->outputs[d], t = tap % g->filter[d];
        const int64_t p = q * g->stride[d] + t * g->dilation[d] - g->pad[d];
        if (p < 0 || p >= g->inputs[d])
            return false;
        *x += p * x_step;
        *y += q * y_step;
        x_step *= g->inputs[d];
        y_step *= g->outputs[d];
        position /= g->outputs[d];
        tap /= g->filter[d];
    }
    return true;
}

static int64_t product(const int64_t *sizes, int count)
{
    int64_t p = 1;
    for (int i = 0; i < count; i++)
        p *= sizes[i];
    return p;
}

/* Adds to the output `out` (0: x, 1: w, 2: y) what the others give. */
static void add_all(const test_case *c, const double *x, const double *w, const double *y, int out,
                    sums *to)
{
    const bsk_conv_shape s = shape_of(c);
    const geometry *g = &geometries[c->spec.kind];
    const channel_blocks *channels = blocks_of(c);
    const int64_t ins = product(g->inputs, g->rank), outs = product(g->outputs, g->rank);
    int64_t taps = 1;
    for (int d = 0; d < g->rank; d++)
        taps *= g->filter[d];
    int64_t first = 0;
    for (bski_conv_block b = {0}; bski_conv_next(&s, &b); first += b.ins * b.outs * taps)
        for (int64_t e = 0; e < b.ins * b.outs * taps; e++) {
            const int64_t k = b.out[e / taps / b.ins], in = b.in[e / taps % b.ins];
            for (int64_t i = 0; i < c->spec.n * outs; i++) {
                int64_t px, py;
                const int64_t n = i / outs;
                if (!meet(g, i % outs, e % taps, &px, &py))
                    continue;
                px += (n * channels->inputs + in) * ins;
                py += (n * channels->outputs + k) * outs;
                if (out == 0)
                    sums_add(to, px, y[py], w[first + e]);
                else if (out == 1)
                    sums_add(to, first + e, x[px], y[py]);
                else
                    sums_add(to, py, x[px], w[first + e]);
            }
        }
}

static void expect_sum(const test_case *c, test_tensor *t, int64_t e, const sums *s)
{
    const double alpha = test_alpha(c), old = test_old(c, t, e);
    const double error = test_arith_eps(c) * ((s->terms[e] + 4) * fabs(alpha) * s->magnitude[e] +
                                              4 * (fabs(alpha * s->sum[e]) + fabs(old)));
    test_expect(t, e, alpha * s->sum[e] + old, c->spec.fill == FILL_INT ? 0 : error);
}

static void expect(test_case *c, const char *const names[3], int out)
{
    test_tensor *t = test_arg_at(c, names[out]);
    double *room = calloc((size_t)(3 * t->elems + 1), sizeof *room);
    sums s = {room, room + t->elems, room + 2 * t->elems};
    if (!room)
        abort();
    add_all(c, test_arg_at(c, names[0])->value, test_arg_at(c, names[1])->value,
            test_arg_at(c, names[2])->value, out, &s);
    for (int64_t e = 0; e < t->elems; e++)
        expect_sum(c, t, e, &s);
    free(room);
}

static void oracle_conv(test_case *c)
{
    expect(c, (const char *const[]){"x", "w", "y"}, 2);
}

static void oracle_conv_dgrad(test_case *c)
{
    expect(c, (const char *const[]){"dx", "w", "dy"}, 0);
}

static void oracle_conv_wgrad(test_case *c)
{
    expect(c, (const char *const[]){"x", "dw", "dy"}, 1);
}

/* --- conv_edge_bias ------------------------------------------------------------------------- */

static void set_edges(test_case *c)
{
    const geometry *g = &geometries[c->spec.kind];
    test_tensor *edges = test_set(c, "edges", bsk_tensor_1d(BSK_I32, product(g->outputs, g->rank)));
    edges->content = CONTENT_INDEX;
    edges->limit = c->spec.count;
}

static test_tensor *set_gain(test_case *c, const char *name)
{
    bsk_tensor t = bsk_tensor_2d(test_scalar_type(c), blocks_of(c)->outputs, c->spec.count);
    if (c->spec.axis == BSK_NC) {
        t.strides[0] = 1;
        t.strides[1] = t.dims[0] + !t.dims[0];
    }
    return test_set(c, name, t);
}

static void set_alias(test_case *c, const char *out, const char *in)
{
    if (c->spec.options & OPT_INPLACE)
        test_arg_at(c, out)->alias = test_index(c, in);
}

static void build_edge_bias(test_case *c)
{
    const geometry *g = &geometries[c->spec.kind];
    const int64_t channels = blocks_of(c)->outputs;
    set_image(c, "x", c->spec.dtype, channels, g->outputs);
    set_edges(c);
    set_gain(c, "gain");
    set_gain(c, "bias");
    set_image(c, "y", test_out_type(c), channels, g->outputs);
    set_alias(c, "y", "x");
}

static void build_edge_bias_grad(test_case *c)
{
    const geometry *g = &geometries[c->spec.kind];
    const int64_t channels = blocks_of(c)->outputs;
    set_image(c, "dy", c->spec.dtype, channels, g->outputs);
    set_image(c, "x", test_out_type(c), channels, g->outputs);
    set_edges(c);
    set_gain(c, "gain");
    set_image(c, "dx", test_out_type(c), channels, g->outputs);
    set_gain(c, "dgain")->zero_ok = true;
    set_gain(c, "dbias")->zero_ok = true;
    set_alias(c, "dx", "dy");
}

/* The place in gain of element number i of an image, or -1 away from the edges. */
static int64_t gain_of(test_case *c, int64_t i)
{
    const geometry *g = &geometries[c->spec.kind];
    const int64_t positions = product(g->outputs, g->rank);
    const double e = test_arg_at(c, "edges")->value[i % positions];
    return e >= 0 && e < c->spec.count
               ? i / positions % blocks_of(c)->outputs * c->spec.count + (int64_t)e
               : -1;
}

/* out = in * gain + bias; without bias if that is NULL. */
static void expect_edges(test_case *c, const char *in, const double *bias, const char *out)
{
    const test_tensor *x = test_arg_at(c, in);
    const double *gain = test_arg_at(c, "gain")->value;
    test_tensor *y = test_arg_at(c, out);
    for (int64_t i = 0; i < y->elems; i++) {
        const int64_t at = gain_of(c, i);
        if (at < 0) {
            test_expect(y, i, x->value[i], 0);
            continue;
        }
        const double v = x->value[i] * gain[at], b = bias ? bias[at] : 0;
        test_expect(y, i, v + b, test_arith_eps(c) * (2 * fabs(v) + fabs(b)));
    }
}

static void oracle_conv_edge_bias(test_case *c)
{
    expect_edges(c, "x", test_arg_at(c, "bias")->value, "y");
}

static void oracle_conv_edge_bias_grad(test_case *c)
{
    const test_tensor *dy = test_arg_at(c, "dy"), *x = test_arg_at(c, "x");
    expect_edges(c, "dy", NULL, "dx");
    for (int bias = 0; bias < 2; bias++) {
        test_tensor *t = test_arg_at(c, bias ? "dbias" : "dgain");
        double *room = calloc((size_t)(3 * t->elems + 1), sizeof *room);
        sums s = {room, room + t->elems, room + 2 * t->elems};
        if (!room)
            abort();
        for (int64_t i = 0; i < dy->elems; i++)
            if (gain_of(c, i) >= 0)
                sums_add(&s, gain_of(c, i), dy->value[i], bias ? 1 : x->value[i]);
        for (int64_t e = 0; e < t->elems; e++)
            expect_sum(c, t, e, &s);
        free(room);
    }
}

const test_op test_conv[] = {
    TEST_OP(conv, build_conv, oracle_conv, NULL),
    TEST_OP(conv_dgrad, build_conv_dgrad, oracle_conv_dgrad, NULL),
    TEST_OP(conv_wgrad, build_conv_wgrad, oracle_conv_wgrad, NULL),
    TEST_OP(conv_edge_bias, build_edge_bias, oracle_conv_edge_bias, NULL),
    TEST_OP(conv_edge_bias_grad, build_edge_bias_grad, oracle_conv_edge_bias_grad, NULL),
};
const int32_t test_conv_count = TEST_COUNT(test_conv);

/* --- Cases ---------------------------------------------------------------------------------- */

static void emit_all(test_list *list, test_spec s)
{
    static const char *const ops[] = {"conv", "conv_dgrad", "conv_wgrad"};
    for (int i = 0; i < TEST_COUNT(ops); i++) {
        s.op = ops[i];
        test_emit(list, s);
    }
}

static void cases_edges(test_list *list)
{
    static const uint32_t options[] = {0, OPT_LD, OPT_INPLACE, OPT_OFFSET, OPT_LD | OPT_INPLACE};
    int i = 0;
    for (int g = 0; g < TEST_COUNT(geometries); g++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++, i++) {
            if (list->tier == TIER_QUICK && (i + g) % 3)
                continue;
            test_spec s = {.op = "conv_edge_bias", .dtype = dtypes[t], .kind = g};
            s.groups = 1 + (i + g) % TEST_COUNT(blocks);
            s.count = 1 + (i + g) % 5;
            s.n = i % 7 == 6 ? 0 : 1 + i % 3;
            s.axis = i % 2 ? BSK_NC : BSK_CN;
            s.options = options[i % TEST_COUNT(options)];
            s.out = s.options & OPT_INPLACE || i % 4 != 3 ? BSK_NONE : dtypes[i / 4 % 4];
            s.fill = i % 3 == 0 ? FILL_INT : i % 7 == 1 ? FILL_SPECIAL : FILL_REAL;
            test_emit(list, s);
            s.op = "conv_edge_bias_grad";
            s.alpha = i % 5 == 2 ? 0.5 : 0;
            s.beta = i % 4 == 1 ? 0.5 : 0;
            test_emit(list, s);
        }
}

void cases_conv(test_list *list)
{
    static const uint32_t options[] = {0, OPT_LD, OPT_OFFSET, OPT_LD | OPT_OFFSET, OPT_LD8};
    int i = 0;
    emit_all(list, (test_spec){.dtype = BSK_F32, .kind = 5, .groups = 3, .n = 1});
    for (int g = 0; g < TEST_COUNT(geometries); g++)
        for (int b = 0; b < TEST_COUNT(blocks); b++)
            for (int t = 0; t < TEST_COUNT(dtypes); t++, i++) {
                const bool large = g >= LARGE || (b == TEST_COUNT(blocks) - 1 && g >= WIDE);
                const int share = list->tier == TIER_FULL ? 1
                                  : list->tier == TIER_CI ? large ? 9 : 3
                                  : large                 ? 31
                                                          : 7;
                if ((i + g + b) % share)
                    continue;
                const int turn = i + g + b;
                test_spec s = {.dtype = dtypes[t], .kind = g, .groups = b + 1};
                s.n = turn % 5 == 4 ? 0 : 1 + turn % 3;
                s.axis = turn % 2 ? BSK_NC : BSK_CN;
                s.options = options[turn % TEST_COUNT(options)];
                s.out = turn % 4 == 3 ? dtypes[turn / 4 % TEST_COUNT(dtypes)] : BSK_NONE;
                s.fill = turn % 3 == 0 ? FILL_INT : turn % 7 == 1 ? FILL_SPECIAL : FILL_REAL;
                s.alpha = turn % 5 == 2 ? 0.5 : turn % 7 == 3 ? -2 : 0;
                s.beta = turn % 4 == 1 ? 0.5 : turn % 6 == 2 ? -1 : 0;
                emit_all(list, s);
            }
    cases_edges(list);
}
