/* Descriptors of the dense companions: embedding, bias and activation, cross-entropy. */
#include <math.h>

#include "api/src/internal.h"
#include "common/dtype.h"

#define FLOATS  BSKI_FLOATS
#define INDICES BSKI_INDICES

/* --- embedding ---------------------------------------------------------------------------- */

static const bski_arg embedding_args[] = {
    {BSKI_ARG(embedding, table), .rank_min = 2, .rank_max = 2, .strides = BSKI_UNIT_LAST,
     .dtypes = FLOATS},
    {BSKI_VECTOR(embedding, index), .dtypes = INDICES},
    {BSKI_ARG(embedding, y), .role = BSKI_OUT, .rank_min = 2, .rank_max = 2,
     .strides = BSKI_UNIT_LAST, .dtypes = FLOATS},
};

static bsk_status embedding_check(const bski_op_info *op, const void *params,
                                  const bsk_layout_tables *l)
{
    (void)l;
    const bsk_embedding_params *p = params;
    BSKI_TRY(bski_expect_dim(op, "y", &p->y, 0, p->index.dims[0], "entries of index"));
    return bski_expect_dim(op, "y", &p->y, 1, p->table.dims[1], "columns of table");
}

const bski_op_info bski_op_embedding = {
    .name = "embedding",
    .kernel_op = BSK_OP_EMBEDDING,
    BSKI_STRUCTS(embedding),
    BSKI_TABLE(arg, embedding_args),
    .check = embedding_check,
};
BSKI_DEFINE_OP(embedding, embedding)

static const bski_arg embedding_grad_args[] = {
    {BSKI_ARG(embedding_grad, dy), .rank_min = 2, .rank_max = 2, .strides = BSKI_UNIT_LAST,
     .dtypes = FLOATS},
    {BSKI_VECTOR(embedding_grad, index), .dtypes = INDICES},
    {BSKI_ARG(embedding_grad, dtable), .role = BSKI_OUT, .rank_min = 2, .rank_max = 2,
     .strides = BSKI_UNIT_LAST, .dtypes = FLOATS},
};

static const bski_field embedding_grad_scalars[] = {
    BSKI_ALPHA_BETA(embedding_grad),
};

static bsk_status embedding_grad_check(const bski_op_info *op, const void *params,
                                       const bsk_layout_tables *l)
{
    (void)l;
    const bsk_embedding_grad_params *p = params;
    BSKI_TRY(bski_expect_dim(op, "dy", &p->dy, 0, p->index.dims[0], "entries of index"));
    return bski_expect_dim(op, "dtable", &p->dtable, 1, p->dy.dims[1], "columns of dy");
}

const bski_op_info bski_op_embedding_grad = {
    .name = "embedding_grad",
    .kernel_op = BSK_OP_EMBEDDING_GRAD,
    BSKI_STRUCTS(embedding_grad),
    BSKI_TABLE(arg, embedding_grad_args),
    BSKI_TABLE(scalar, embedding_grad_scalars),
    .check = embedding_grad_check,
};
BSKI_DEFINE_OP(embedding_grad, embedding_grad)

/* --- dense_wgrad -------------------------------------------------------------------------- */

static const bski_arg dense_wgrad_args[] = {
    {BSKI_ACTIVATION(dense_wgrad, x), .dtypes = FLOATS},
    {BSKI_ACTIVATION(dense_wgrad, dy), .dtypes = BSKI_SAME},
    {BSKI_ACTIVATION(dense_wgrad, dw), .role = BSKI_OUT, .dtypes = FLOATS},
};

static const bski_field dense_wgrad_attrs[] = {
    BSKI_ATTR(dense_wgrad, axis, I32, 0, 1),
};

static const bski_field dense_wgrad_scalars[] = {
    BSKI_ALPHA_BETA(dense_wgrad),
};

static bsk_status dense_wgrad_check(const bski_op_info *op, const void *params,
                                    const bsk_layout_tables *l)
{
    (void)l;
    const bsk_dense_wgrad_params *p = params;
    const int rows = p->axis == BSK_NC ? 0 : 1, features = 1 - rows;
    BSKI_TRY(bski_expect_dim(op, "dy", &p->dy, rows, p->x.dims[rows], "rows of x"));
    BSKI_TRY(bski_expect_dim(op, "dw", &p->dw, 0, p->x.dims[features], "features of x"));
    return bski_expect_dim(op, "dw", &p->dw, 1, p->dy.dims[features], "features of dy");
}

static double dense_wgrad_flops(const void *params, const bsk_layout_tables *l)
{
    (void)l;
    const bsk_dense_wgrad_params *p = params;
    return 2 * (double)p->x.dims[0] * (double)p->x.dims[1] * (double)p->dw.dims[1];
}

const bski_op_info bski_op_dense_wgrad = {
    .name = "dense_wgrad",
    .kernel_op = BSK_OP_DENSE_WGRAD,
    BSKI_STRUCTS(dense_wgrad),
    BSKI_TABLE(arg, dense_wgrad_args),
    BSKI_TABLE(attr, dense_wgrad_attrs),
    BSKI_TABLE(scalar, dense_wgrad_scalars),
    .check = dense_wgrad_check,
    .flops = dense_wgrad_flops,
};
BSKI_DEFINE_OP(dense_wgrad, dense_wgrad)

/* --- bias_act ----------------------------------------------------------------------------- */

static const bski_arg bias_act_args[] = {
    {BSKI_ACTIVATION(bias_act, x), .dtypes = FLOATS},
    {BSKI_ACTIVATION(bias_act, y), .role = BSKI_OUT, .alias = 1 << 0, .dtypes = FLOATS},
    {BSKI_VECTOR(bias_act, bias), .optional = 1, .dtypes = BSKI_SIDE},
};

static const bski_field bias_act_attrs[] = {
    BSKI_ATTR(bias_act, axis, I32, 0, 1),
    BSKI_ATTR(bias_act, act, I32, 0, BSK_ACT_COUNT - 1),
};

static bsk_status expect_bias(const bski_op_info *op, const char *name, const bsk_tensor *t,
                              bsk_axis axis, const bsk_tensor *x)
{
    return t->dtype == BSK_NONE
               ? BSK_OK
               : bski_expect_dim(op, name, t, 0, x->dims[axis == BSK_NC ? 1 : 0], "features");
}

static bsk_status bias_act_check(const bski_op_info *op, const void *params,
                                 const bsk_layout_tables *l)
{
    (void)l;
    const bsk_bias_act_params *p = params;
    BSKI_TRY(bski_expect_like(op, "y", &p->y, &p->x, "as x"));
    return expect_bias(op, "bias", &p->bias, p->axis, &p->x);
}

const bski_op_info bski_op_bias_act = {
    .name = "bias_act",
    .kernel_op = BSK_OP_BIAS_ACT,
    BSKI_STRUCTS(bias_act),
    BSKI_TABLE(arg, bias_act_args),
    BSKI_TABLE(attr, bias_act_attrs),
    .check = bias_act_check,
};
BSKI_DEFINE_OP(bias_act, bias_act)

static const bski_arg bias_act_grad_args[] = {
    {BSKI_ACTIVATION(bias_act_grad, dy), .dtypes = FLOATS},
    {BSKI_ACTIVATION(bias_act_grad, x), .optional = 1, .dtypes = FLOATS},
    {BSKI_VECTOR(bias_act_grad, bias), .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_ACTIVATION(bias_act_grad, dx), .role = BSKI_OUT, .optional = 1, .alias = 1 << 0,
     .dtypes = FLOATS},
    {BSKI_VECTOR(bias_act_grad, dbias), .role = BSKI_OUT, .optional = 1, .dtypes = BSKI_SIDE},
};

static const bski_field bias_act_grad_attrs[] = {
    BSKI_ATTR(bias_act_grad, axis, I32, 0, 1),
    BSKI_ATTR(bias_act_grad, act, I32, 0, BSK_ACT_COUNT - 1),
    BSKI_DX_BLEND(bias_act_grad),
};

static const bski_field bias_act_grad_scalars[] = {
    BSKI_ALPHA_BETA(bias_act_grad),
    BSKI_DX_ALPHA_BETA(bias_act_grad),
};

BSKI_DX_LOWER(bias_act_grad)

static bsk_status bias_act_grad_check(const bski_op_info *op, const void *params,
                                      const bsk_layout_tables *l)
{
    (void)l;
    const bsk_bias_act_grad_params *p = params;
    if (p->dx.dtype == BSK_NONE && p->dbias.dtype == BSK_NONE)
        return bski_fail(BSK_E_INVALID, "%s: dx and dbias are absent; one is needed", op->name);
    if (p->act != BSK_ACT_NONE && p->x.dtype == BSK_NONE)
        return bski_fail(BSK_E_INVALID, "%s: x is absent; act %d needs it", op->name, (int)p->act);
    BSKI_TRY(bski_expect_like(op, "x", &p->x, &p->dy, "as dy"));
    BSKI_TRY(bski_expect_like(op, "dx", &p->dx, &p->dy, "as dy"));
    BSKI_TRY(expect_bias(op, "bias", &p->bias, p->axis, &p->dy));
    return expect_bias(op, "dbias", &p->dbias, p->axis, &p->dy);
}

const bski_op_info bski_op_bias_act_grad = {
    .name = "bias_act_grad",
    .kernel_op = BSK_OP_BIAS_ACT_GRAD,
    BSKI_STRUCTS(bias_act_grad),
    BSKI_TABLE(arg, bias_act_grad_args),
    BSKI_TABLE(attr, bias_act_grad_attrs),
    BSKI_TABLE(scalar, bias_act_grad_scalars),
    .check = bias_act_grad_check,
    .lower_args = bias_act_grad_lower,
};
BSKI_DEFINE_OP(bias_act_grad, bias_act_grad)

/* --- cross_entropy ------------------------------------------------------------------------ */

static const bski_arg cross_entropy_args[] = {
    {BSKI_ARG(cross_entropy, logits), .rank_min = 2, .rank_max = 2, .strides = BSKI_UNIT_LAST,
     .dtypes = FLOATS},
    {BSKI_VECTOR(cross_entropy, labels), .dtypes = INDICES},
    {BSKI_VECTOR(cross_entropy, loss), .role = BSKI_OUT, .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_ARG(cross_entropy, dlogits), .role = BSKI_OUT, .optional = 1, .rank_min = 2,
     .rank_max = 2, .strides = BSKI_UNIT_LAST, .alias = 1 << 0, .dtypes = FLOATS},
    {BSKI_VECTOR(cross_entropy, dloss), .optional = 1, .dtypes = BSKI_SIDE},
};

static const bski_field cross_entropy_attrs[] = {
    BSKI_ATTR_BELOW(cross_entropy, smoothing, F64, 0, 1, 0),
    BSKI_ATTR(cross_entropy, use_ignore_index, I32, 0, 1),
    BSKI_ATTR(cross_entropy, ignore_index, I64, -INFINITY, INFINITY),
};

static const bski_field cross_entropy_scalars[] = {
    BSKI_ALPHA_BETA(cross_entropy),
};

static bsk_status cross_entropy_check(const bski_op_info *op, const void *params,
                                      const bsk_layout_tables *l)
{
    (void)l;
    const bsk_cross_entropy_params *p = params;
    if (p->loss.dtype == BSK_NONE && p->dlogits.dtype == BSK_NONE)
        return bski_fail(BSK_E_INVALID, "%s: loss and dlogits are absent; one is needed", op->name);
    if (p->dloss.dtype != BSK_NONE && p->dlogits.dtype == BSK_NONE)
        return bski_fail(BSK_E_INVALID, "%s: dlogits is absent; dloss needs it", op->name);
    BSKI_TRY(bski_expect_dim(op, "labels", &p->labels, 0, p->logits.dims[0], "rows of logits"));
    if (p->loss.dtype != BSK_NONE)
        BSKI_TRY(bski_expect_dim(op, "loss", &p->loss, 0, p->logits.dims[0], "rows of logits"));
    if (p->dloss.dtype != BSK_NONE)
        BSKI_TRY(bski_expect_dim(op, "dloss", &p->dloss, 0, p->logits.dims[0], "rows of logits"));
    return bski_expect_like(op, "dlogits", &p->dlogits, &p->logits, "as logits");
}

const bski_op_info bski_op_cross_entropy = {
    .name = "cross_entropy",
    .kernel_op = BSK_OP_CROSS_ENTROPY,
    BSKI_STRUCTS(cross_entropy),
    BSKI_TABLE(arg, cross_entropy_args),
    BSKI_TABLE(attr, cross_entropy_attrs),
    BSKI_TABLE(scalar, cross_entropy_scalars),
    .check = cross_entropy_check,
};
BSKI_DEFINE_OP(cross_entropy, cross_entropy)
