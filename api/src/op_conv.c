/* Descriptors of the convolutions over blocks of channels. */
#include <math.h>

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
