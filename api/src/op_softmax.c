/* Descriptors of the dense softmax. */
#include <math.h>

#include "api/src/internal.h"
#include "common/dtype.h"

#define FLOATS BSKI_FLOATS

/* --- masked_softmax ----------------------------------------------------------------------- */

/* A mask has the last dimension in full. */
static bsk_status expect_mask(const bski_op_info *op, const bsk_tensor *mask, const bsk_tensor *x)
{
    if (mask->dtype == BSK_NONE)
        return BSK_OK;
    BSKI_TRY(bski_expect_broadcast(op, "mask", mask, x, "as x"));
    return bski_expect_dim(op, "mask", mask, x->rank - 1, x->dims[x->rank - 1], "as x");
}

static bsk_status masked_softmax_check(const bski_op_info *op, const void *params,
                                       const bsk_layout_tables *l)
{
    (void)l;
    const bsk_masked_softmax_params *p = params;
    if (p->k > p->x.dims[p->x.rank - 1])
        return bski_fail(BSK_E_INVALID, "%s: k is %lld; legal are up to %lld", op->name,
                         (long long)p->k, (long long)p->x.dims[p->x.rank - 1]);
    BSKI_TRY(bski_expect_like(op, "y", &p->y, &p->x, "as x"));
    return expect_mask(op, &p->mask, &p->x);
}

static const bski_arg masked_softmax_args[] = {
    {BSKI_ARG(masked_softmax, x), .rank_min = 1, .rank_max = 5, .strides = BSKI_UNIT_LAST,
     .dtypes = FLOATS},
    {BSKI_ARG(masked_softmax, y), .role = BSKI_OUT, .rank_min = 1, .rank_max = 5,
     .strides = BSKI_UNIT_LAST, .alias = 1 << 0, .dtypes = FLOATS},
    {BSKI_ARG(masked_softmax, mask), .optional = 1, .rank_min = 1, .rank_max = 5, .dtypes = FLOATS},
};

static const bski_field masked_softmax_attrs[] = {
    BSKI_ATTR(masked_softmax, k, I64, 0, INFINITY),
};

static const bski_field masked_softmax_scalars[] = {
    BSKI_SCALAR(masked_softmax, scale, F64, -INFINITY, INFINITY),
};

const bski_op_info bski_op_masked_softmax = {
    .name = "masked_softmax",
    .kernel_op = BSK_OP_MASKED_SOFTMAX,
    BSKI_STRUCTS(masked_softmax),
    BSKI_TABLE(arg, masked_softmax_args),
    BSKI_TABLE(attr, masked_softmax_attrs),
    BSKI_TABLE(scalar, masked_softmax_scalars),
    .check = masked_softmax_check,
};
BSKI_DEFINE_OP(masked_softmax, masked_softmax)

/* --- masked_topk_softmax ------------------------------------------------------------------ */

static const bski_field masked_topk_softmax_attrs[] = {
    BSKI_ATTR(masked_softmax, k, I64, 1, INFINITY),
};

const bski_op_info bski_op_masked_topk_softmax = {
    .name = "masked_topk_softmax",
    .kernel_op = BSK_OP_MASKED_SOFTMAX,
    BSKI_STRUCTS(masked_softmax),
    BSKI_TABLE(arg, masked_softmax_args),
    BSKI_TABLE(attr, masked_topk_softmax_attrs),
    BSKI_TABLE(scalar, masked_softmax_scalars),
    .check = masked_softmax_check,
};
BSKI_DEFINE_OP(masked_topk_softmax, masked_softmax)

static const bski_arg masked_softmax_grad_args[] = {
    {BSKI_ARG(masked_softmax_grad, dy), .rank_min = 1, .rank_max = 5, .strides = BSKI_UNIT_LAST,
     .dtypes = FLOATS},
    {BSKI_ARG(masked_softmax_grad, y), .rank_min = 1, .rank_max = 5, .strides = BSKI_UNIT_LAST,
     .dtypes = FLOATS},
    {BSKI_ARG(masked_softmax_grad, dx), .role = BSKI_OUT, .rank_min = 1, .rank_max = 5,
     .strides = BSKI_UNIT_LAST, .alias = 1 << 0 | 1 << 1, .dtypes = FLOATS},
    {BSKI_ARG(masked_softmax_grad, mask), .optional = 1, .rank_min = 1, .rank_max = 5,
     .dtypes = FLOATS},
};

static const bski_field masked_softmax_grad_scalars[] = {
    BSKI_ALPHA_BETA(masked_softmax_grad),
    BSKI_SCALAR(masked_softmax_grad, scale, F64, -INFINITY, INFINITY),
};

static bsk_status masked_softmax_grad_check(const bski_op_info *op, const void *params,
                                            const bsk_layout_tables *l)
{
    (void)l;
    const bsk_masked_softmax_grad_params *p = params;
    BSKI_TRY(bski_expect_like(op, "y", &p->y, &p->dy, "as dy"));
    BSKI_TRY(bski_expect_like(op, "dx", &p->dx, &p->dy, "as dy"));
    return expect_mask(op, &p->mask, &p->dy);
}

const bski_op_info bski_op_masked_softmax_grad = {
    .name = "masked_softmax_grad",
    .kernel_op = BSK_OP_MASKED_SOFTMAX_GRAD,
    BSKI_STRUCTS(masked_softmax_grad),
    BSKI_TABLE(arg, masked_softmax_grad_args),
    BSKI_TABLE(scalar, masked_softmax_grad_scalars),
    .check = masked_softmax_grad_check,
};
BSKI_DEFINE_OP(masked_softmax_grad, masked_softmax_grad)
