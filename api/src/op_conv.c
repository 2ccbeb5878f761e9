/* Descriptors of the convolutions over blocks of channels. */
#include <math.h>
#include <stdbool.h>

#include "api/src/internal.h"
#include "common/checked.h"
#include "common/conv.h"
#include "common/dtype.h"

#define FLOATS BSKI_FLOATS

/* [N, channels, image], and filters. */
#define IMAGES(group, field)                                                                       \
    BSKI_ARG(group, field), .rank_min = 3, .rank_max = 5, .strides = BSKI_ANY_STRIDE

/* Of a filter's size, stride, dilation and padding: positions of 31 bits stay far below 63. */
enum { MOST = 1 << 20 };

#define SHAPE_ATTR(group, field, otherwise)                                                        \
    BSKI_ATTR_OR(group, shape.field[0], I32, 0, MOST, otherwise),                                  \
        BSKI_ATTR_OR(group, shape.field[1], I32, 0, MOST, otherwise),                              \
        BSKI_ATTR_OR(group, shape.field[2], I32, 0, MOST, otherwise)
#define SHAPE(group)                                                                               \
    SHAPE_ATTR(group, filter, 1), SHAPE_ATTR(group, stride, 1), SHAPE_ATTR(group, dilation, 1),    \
        SHAPE_ATTR(group, pad, 0)
#define SHAPE_LIST(group)                                                                          \
    .list = offsetof(bsk_##group##_params, shape.blocks),                                          \
    .list_size = offsetof(bsk_##group##_params, shape.blocks_size)

/* The tensors of a convolution under the names that the op has for them. */
typedef struct operands {
    const bsk_conv_shape *shape;
    const bsk_tensor *x, *w, *y;
    const char *x_name, *w_name, *y_name;
} operands;

static bsk_status expect_channels(const bski_op_info *op, const operands *o, const int32_t *list,
                                  int64_t count, const bsk_tensor *t, const char *name)
{
    for (int64_t i = 0; i < count; i++)
        if (list[i] < 0 || list[i] >= t->dims[1])
            return bski_fail(BSK_E_INVALID,
                             "%s: shape.blocks[%lld] is %d; legal are 0 to %lld (channels of %s)",
                             op->name, (long long)(list + i - o->shape->blocks), (int)list[i],
                             (long long)t->dims[1] - 1, name);
    return BSK_OK;
}

/* Sizes of the blocks, one after another, and with them the filters of all. */
static bsk_status expect_blocks(const bski_op_info *op, const operands *o, int64_t *pairs)
{
    const bsk_conv_shape *s = o->shape;
    *pairs = 0;
    for (int64_t at = 0; at < s->blocks_size;) {
        const int64_t left = s->blocks_size - at - 2;
        const int32_t *b = s->blocks + at;
        int64_t own;
        if (left < 0)
            return bski_fail(BSK_E_INVALID,
                             "%s: shape.blocks_size is %lld; the last block begins at %lld and "
                             "needs 2 numbers or more",
                             op->name, (long long)s->blocks_size, (long long)at);
        for (int i = 0; i < 2; i++)
            if (b[i] < 0 || b[i] > left - (i ? b[0] : 0))
                return bski_fail(BSK_E_INVALID,
                                 "%s: shape.blocks[%lld] is %d; legal are 0 to %lld (%s of a "
                                 "block)",
                                 op->name, (long long)at + i, (int)b[i],
                                 (long long)(left - (i ? b[0] : 0)), i ? "outputs" : "inputs");
        BSKI_TRY(expect_channels(op, o, b + 2, b[0], o->x, o->x_name));
        BSKI_TRY(expect_channels(op, o, b + 2 + b[0], b[1], o->y, o->y_name));
        if (!bski_mul_i64(b[0], b[1], &own) || !bski_add_i64(*pairs, own, pairs))
            return bski_fail(BSK_E_INVALID, "%s: shape.blocks has too many filters", op->name);
        at += 2 + (int64_t)b[0] + b[1];
    }
    return BSK_OK;
}

static bsk_status expect_31_bits(const bski_op_info *op, const bsk_tensor *t, const char *name)
{
    for (int d = 1; d < t->rank; d++)
        if (t->dims[d] > INT32_MAX)
            return bski_fail(BSK_E_INVALID, "%s: %s.dims[%d] is %lld; legal are 0 to %d", op->name,
                             name, d, (long long)t->dims[d], INT32_MAX);
    return BSK_OK;
}

static bsk_status expect_operands(const bski_op_info *op, const operands *o)
{
    BSKI_TRY(expect_31_bits(op, o->x, o->x_name));
    BSKI_TRY(expect_31_bits(op, o->y, o->y_name));
    if (o->x->rank != o->y->rank)
        return bski_fail(BSK_E_INVALID, "%s: %s.rank is %d; must be %d (rank of %s)", op->name,
                         o->y_name, (int)o->y->rank, (int)o->x->rank, o->x_name);
    BSKI_TRY(bski_expect_dim(op, o->y_name, o->y, 0, o->x->dims[0], "images"));
    int64_t filters;
    BSKI_TRY(expect_blocks(op, o, &filters));
    for (int d = 0; d < o->x->rank - 2; d++)
        if (!bski_mul_i64(filters, o->shape->filter[d], &filters))
            return bski_fail(BSK_E_INVALID,
                             "%s: shape.filter[%d] is %d; legal are filters of "
                             "2^63 elements in all",
                             op->name, d, (int)o->shape->filter[d]);
    return bski_expect_dim(op, o->w_name, o->w, 0, filters, "elements of all filters");
}

/* As if no tap were outside of the image. */
static double conv_ops(const bsk_tensor *w, const bsk_tensor *y)
{
    double positions = (double)y->dims[0];
    for (int d = 2; d < y->rank; d++)
        positions *= (double)y->dims[d];
    return 2 * positions * (double)w->dims[0];
}

#define CONV_OP(op, X, W, Y)                                                                       \
    static const bski_field op##_attrs[] = {SHAPE(op)};                                            \
    static const bski_field op##_scalars[] = {BSKI_ALPHA_BETA(op)};                                \
    static bsk_status op##_check(const bski_op_info *info, const void *params,                     \
                                 const bsk_layout_tables *l)                                       \
    {                                                                                              \
        const bsk_##op##_params *p = params;                                                       \
        (void)l;                                                                                   \
        return expect_operands(info, &(operands){&p->shape, &p->X, &p->W, &p->Y, #X, #W, #Y});     \
    }                                                                                              \
    static double op##_flops(const void *params, const bsk_layout_tables *l)                       \
    {                                                                                              \
        const bsk_##op##_params *p = params;                                                       \
        (void)l;                                                                                   \
        return conv_ops(&p->W, &p->Y);                                                             \
    }

static const bski_arg conv_args[] = {
    {IMAGES(conv, x), .dtypes = FLOATS},
    {BSKI_VECTOR(conv, w), .dtypes = BSKI_SAME},
    {IMAGES(conv, y), .role = BSKI_OUT, .dtypes = FLOATS},
};

static const bski_arg conv_dgrad_args[] = {
    {IMAGES(conv_dgrad, dy), .dtypes = FLOATS},
    {BSKI_VECTOR(conv_dgrad, w), .dtypes = BSKI_SAME},
    {IMAGES(conv_dgrad, dx), .role = BSKI_OUT, .dtypes = FLOATS},
};

static const bski_arg conv_wgrad_args[] = {
    {IMAGES(conv_wgrad, x), .dtypes = FLOATS},
    {IMAGES(conv_wgrad, dy), .dtypes = BSKI_SAME},
    {BSKI_VECTOR(conv_wgrad, dw), .role = BSKI_OUT, .dtypes = FLOATS},
};

CONV_OP(conv, x, w, y)
CONV_OP(conv_dgrad, dx, w, dy)
CONV_OP(conv_wgrad, x, dw, dy)

const bski_op_info bski_op_conv = {
    .name = "conv",
    .kernel_op = BSK_OP_CONV,
    SHAPE_LIST(conv),
    BSKI_STRUCTS(conv),
    BSKI_TABLE(arg, conv_args),
    BSKI_TABLE(attr, conv_attrs),
    BSKI_TABLE(scalar, conv_scalars),
    .check = conv_check,
    .flops = conv_flops,
};
BSKI_DEFINE_OP(conv, conv)

const bski_op_info bski_op_conv_dgrad = {
    .name = "conv_dgrad",
    .kernel_op = BSK_OP_CONV_DGRAD,
    SHAPE_LIST(conv_dgrad),
    BSKI_STRUCTS(conv_dgrad),
    BSKI_TABLE(arg, conv_dgrad_args),
    BSKI_TABLE(attr, conv_dgrad_attrs),
    BSKI_TABLE(scalar, conv_dgrad_scalars),
    .check = conv_dgrad_check,
    .flops = conv_dgrad_flops,
};
BSKI_DEFINE_OP(conv_dgrad, conv_dgrad)

const bski_op_info bski_op_conv_wgrad = {
    .name = "conv_wgrad",
    .kernel_op = BSK_OP_CONV_WGRAD,
    SHAPE_LIST(conv_wgrad),
    BSKI_STRUCTS(conv_wgrad),
    BSKI_TABLE(arg, conv_wgrad_args),
    BSKI_TABLE(attr, conv_wgrad_attrs),
    BSKI_TABLE(scalar, conv_wgrad_scalars),
    .check = conv_wgrad_check,
    .flops = conv_wgrad_flops,
};
BSKI_DEFINE_OP(conv_wgrad, conv_wgrad)

/* --- conv_edge_bias --- */

/* [C, sets]. */
#define EDGE_GAINS(group, field)                                                                   \
    BSKI_ARG(group, field), .rank_min = 2, .rank_max = 2, .strides = BSKI_ANY_STRIDE,              \
                            .dtypes = BSKI_SIDE

static bsk_status expect_edges(const bski_op_info *op, const char *name, const bsk_tensor *x,
                               const bsk_tensor *edges, const bsk_tensor *gain)
{
    int64_t positions = 1;
    BSKI_TRY(expect_31_bits(op, x, name));
    for (int d = 2; d < x->rank; d++)
        if (!bski_mul_i64(positions, x->dims[d], &positions))
            return bski_fail(BSK_E_INVALID, "%s: %s has too many positions", op->name, name);
    BSKI_TRY(bski_expect_dim(op, "edges", edges, 0, positions, "positions of an image"));
    BSKI_TRY(expect_31_bits(op, gain, "gain"));
    return bski_expect_dim(op, "gain", gain, 0, x->dims[1], "channels");
}

static bsk_status conv_edge_bias_check(const bski_op_info *op, const void *params,
                                       const bsk_layout_tables *l)
{
    const bsk_conv_edge_bias_params *p = params;
    (void)l;
    BSKI_TRY(expect_edges(op, "x", &p->x, &p->edges, &p->gain));
    BSKI_TRY(bski_expect_like(op, "bias", &p->bias, &p->gain, "as gain"));
    return bski_expect_like(op, "y", &p->y, &p->x, "as x");
}

static const bski_arg conv_edge_bias_args[] = {
    {IMAGES(conv_edge_bias, x), .dtypes = FLOATS},
    {BSKI_VECTOR(conv_edge_bias, edges), .dtypes = BSK_DTYPE_BIT(BSK_I32)},
    {EDGE_GAINS(conv_edge_bias, gain)},
    {EDGE_GAINS(conv_edge_bias, bias)},
    {IMAGES(conv_edge_bias, y), .role = BSKI_OUT, .alias = 1 << 0, .dtypes = FLOATS},
};

const bski_op_info bski_op_conv_edge_bias = {
    .name = "conv_edge_bias",
    .kernel_op = BSK_OP_CONV_EDGE_BIAS,
    BSKI_STRUCTS(conv_edge_bias),
    BSKI_TABLE(arg, conv_edge_bias_args),
    .check = conv_edge_bias_check,
};
BSKI_DEFINE_OP(conv_edge_bias, conv_edge_bias)

static bsk_status conv_edge_bias_grad_check(const bski_op_info *op, const void *params,
                                            const bsk_layout_tables *l)
{
    const bsk_conv_edge_bias_grad_params *p = params;
    (void)l;
    BSKI_TRY(expect_edges(op, "dy", &p->dy, &p->edges, &p->gain));
    BSKI_TRY(bski_expect_like(op, "x", &p->x, &p->dy, "as dy"));
    BSKI_TRY(bski_expect_like(op, "dx", &p->dx, &p->dy, "as dy"));
    BSKI_TRY(bski_expect_like(op, "dgain", &p->dgain, &p->gain, "as gain"));
    return bski_expect_like(op, "dbias", &p->dbias, &p->gain, "as gain");
}

static const bski_arg conv_edge_bias_grad_args[] = {
    {IMAGES(conv_edge_bias_grad, dy), .dtypes = FLOATS},
    {IMAGES(conv_edge_bias_grad, x), .dtypes = FLOATS},
    {BSKI_VECTOR(conv_edge_bias_grad, edges), .dtypes = BSK_DTYPE_BIT(BSK_I32)},
    {EDGE_GAINS(conv_edge_bias_grad, gain)},
    {IMAGES(conv_edge_bias_grad, dx), .role = BSKI_OUT, .alias = 1 << 0, .dtypes = FLOATS},
    {EDGE_GAINS(conv_edge_bias_grad, dgain), .role = BSKI_OUT},
    {EDGE_GAINS(conv_edge_bias_grad, dbias), .role = BSKI_OUT},
};

static const bski_field conv_edge_bias_grad_scalars[] = {BSKI_ALPHA_BETA(conv_edge_bias_grad)};

const bski_op_info bski_op_conv_edge_bias_grad = {
    .name = "conv_edge_bias_grad",
    .kernel_op = BSK_OP_CONV_EDGE_BIAS_GRAD,
    BSKI_STRUCTS(conv_edge_bias_grad),
    BSKI_TABLE(arg, conv_edge_bias_grad_args),
    BSKI_TABLE(scalar, conv_edge_bias_grad_scalars),
    .check = conv_edge_bias_grad_check,
};
BSKI_DEFINE_OP(conv_edge_bias_grad, conv_edge_bias_grad)

/* --- bsk_conv_edges --- */

/* Positions of one dimension, and whether they lack taps. */
typedef struct edge_axis {
    int64_t size, others; /* of the positions; of what they read */
    int64_t filter, stride, dilation, pad;
    bool deconv;
} edge_axis;

static bool lacks(const edge_axis *a, int64_t position, int64_t tap)
{
    if (a->deconv) {
        const int64_t far = position + a->pad - tap * a->dilation;
        return far % a->stride == 0 && (far < 0 || far / a->stride >= a->others);
    }
    const int64_t at = position * a->stride + tap * a->dilation - a->pad;
    return at < 0 || at >= a->others;
}

static int64_t lacks_count(const edge_axis *a, int64_t position)
{
    int64_t count = 0;
    for (int64_t t = 0; t < a->filter; t++)
        count += lacks(a, position, t);
    return count;
}

/* The first position that lacks the same taps. */
static int64_t first_like(const edge_axis *a, int64_t position)
{
    for (int64_t p = 0; p < position; p++) {
        int64_t t = 0;
        while (t < a->filter && lacks(a, p, t) == lacks(a, position, t))
            t++;
        if (t == a->filter)
            return p;
    }
    return position;
}

static bsk_status edge_axis_fill(edge_axis *a, const bsk_conv_shape *s, int d, int64_t inputs,
                                 int64_t outputs, int32_t deconv)
{
    const struct {
        const char *name;
        int64_t value, most;
    } sizes[] = {{"shape.filter", s->filter[d], MOST},
                 {"shape.stride", s->stride[d], MOST},
                 {"shape.dilation", s->dilation[d], MOST},
                 {"shape.pad", s->pad[d], MOST},
                 {"inputs", inputs, INT32_MAX},
                 {"outputs", outputs, INT32_MAX}};
    for (size_t i = 0; i < BSKI_COUNT(sizes); i++)
        if (sizes[i].value < 0 || sizes[i].value > sizes[i].most)
            return bski_fail(BSK_E_INVALID, "conv_edges: %s[%d] is %lld; legal are 0 to %lld",
                             sizes[i].name, d, (long long)sizes[i].value, (long long)sizes[i].most);
    *a = (edge_axis){.size = deconv ? inputs : outputs,
                     .others = deconv ? outputs : inputs,
                     .filter = s->filter[d] ? s->filter[d] : 1,
                     .stride = s->stride[d] ? s->stride[d] : 1,
                     .dilation = s->dilation[d] ? s->dilation[d] : 1,
                     .pad = s->pad[d],
                     .deconv = deconv != 0};
    return BSK_OK;
}

bsk_status bsk_conv_edges(const bsk_conv_shape *shape, int32_t rank, const int64_t *inputs,
                          const int64_t *outputs, int32_t deconv, int32_t *edges, int64_t *sets)
{
    edge_axis axes[3] = {{0}};
    int64_t positions = 1;
    if (!shape || !inputs || !outputs || !edges || !sets)
        return bski_fail(BSK_E_INVALID, "conv_edges: %s is NULL; it is needed",
                         !shape     ? "shape"
                         : !inputs  ? "inputs"
                         : !outputs ? "outputs"
                         : !edges   ? "edges"
                                    : "sets");
    if (rank < 1 || rank > 3)
        return bski_fail(BSK_E_INVALID, "conv_edges: rank is %d; legal are 1 to 3", (int)rank);
    if (deconv < 0 || deconv > 1)
        return bski_fail(BSK_E_INVALID, "conv_edges: deconv is %d; legal are 0 to 1", (int)deconv);
    for (int d = 0; d < rank; d++) {
        BSKI_TRY(edge_axis_fill(&axes[d], shape, d, inputs[d], outputs[d], deconv));
        if (!bski_mul_i64(positions, axes[d].size, &positions) || positions > INT32_MAX)
            return bski_fail(BSK_E_INVALID,
                             "conv_edges: %s[%d] is %lld; legal are %d positions in all",
                             deconv ? "inputs" : "outputs", d, (long long)axes[d].size, INT32_MAX);
    }
    int32_t count = 0, whole = -1; /* whole: the number of the set of all taps */
    for (int64_t q = 0; q < positions; q++) {
        int64_t rest = q, like = 0, step = 1;
        bool none = true, all = false;
        for (int d = rank - 1; d >= 0; d--) {
            const int64_t p = rest % axes[d].size, lacked = lacks_count(&axes[d], p);
            none &= lacked == 0;
            all |= lacked == axes[d].filter;
            like += first_like(&axes[d], p) * step;
            step *= axes[d].size;
            rest /= axes[d].size;
        }
        if (none)
            edges[q] = -1;
        else if (all)
            edges[q] = whole >= 0 ? whole : (whole = count++);
        else
            edges[q] = like < q ? edges[like] : count++;
    }
    *sets = count;
    return BSK_OK;
}
