/* Descriptors of the optimizers. */
#include <math.h>

#include "api/src/internal.h"
#include "common/dtype.h"

#define FLOATS BSKI_FLOATS

#define STATES                                                                                     \
    (BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_F64) | BSK_DTYPE_BIT(BSK_BF16) |                   \
     BSK_DTYPE_BIT(BSK_U16))

static const bski_arg adam_args[] = {
    {BSKI_ARG(adam, param), .role = BSKI_INOUT, .rank_min = 1, .rank_max = 5,
     .strides = BSKI_CONTIGUOUS, .dtypes = BSKI_SIDE},
    {BSKI_ARG(adam, grad), .rank_min = 1, .rank_max = 5, .strides = BSKI_CONTIGUOUS,
     .dtypes = FLOATS},
    {BSKI_ARG(adam, m), .role = BSKI_INOUT, .rank_min = 1, .rank_max = 5,
     .strides = BSKI_CONTIGUOUS, .dtypes = STATES},
    {BSKI_ARG(adam, v), .role = BSKI_INOUT, .rank_min = 1, .rank_max = 5,
     .strides = BSKI_CONTIGUOUS, .dtypes = BSKI_SAME},
    {BSKI_ARG(adam, norm_scale), .optional = 1, .rank_min = 0, .rank_max = 1,
     .strides = BSKI_CONTIGUOUS, .dtypes = BSK_DTYPE_BIT(BSK_F32)},
    {BSKI_ARG(adam, gate), .optional = 1, .rank_min = 1, .rank_max = 1, .strides = BSKI_CONTIGUOUS,
     .dtypes = BSK_DTYPE_BIT(BSK_F32)},
    {BSKI_ARG(adam, copy), .role = BSKI_OUT, .optional = 1, .rank_min = 1, .rank_max = 5,
     .strides = BSKI_CONTIGUOUS, .dtypes = FLOATS},
};

static const bski_field adam_attrs[] = {
    {.name = "beta1",
     .offset = offsetof(bsk_adam_params, beta1),
     .kind = BSKI_F64,
     .low = 0,
     .high = 1,
     .zero_means = 0.9,
     .open = 1},
    {.name = "beta2",
     .offset = offsetof(bsk_adam_params, beta2),
     .kind = BSKI_F64,
     .low = 0,
     .high = 1,
     .zero_means = 0.999,
     .open = 1},
    {.name = "eps",
     .offset = offsetof(bsk_adam_params, eps),
     .kind = BSKI_F64,
     .low = 0,
     .high = INFINITY,
     .zero_means = 1e-8,
     .open = 1},
    BSKI_ATTR(adam, lazy, I32, 0, 1),
    BSKI_ATTR(adam, stochastic, I32, 0, 1),
};

static const bski_field adam_scalars[] = {
    BSKI_SCALAR(adam, lr, F64, 0, INFINITY),
    BSKI_SCALAR(adam, grad_scale, F64, -INFINITY, INFINITY),
    BSKI_SCALAR(adam, weight_decay, F64, 0, INFINITY),
    BSKI_SCALAR(adam, clip_sigma, F64, 0, INFINITY),
    BSKI_SCALAR(adam, step, I64, 1, INFINITY),
    BSKI_SCALAR(adam, seed, U64, -INFINITY, INFINITY),
    BSKI_SCALAR(adam, offset, U64, -INFINITY, INFINITY),
};

static bsk_status adam_check(const bski_op_info *op, const void *params, const bsk_layout_tables *l)
{
    (void)l;
    const bsk_adam_params *p = params;
    BSKI_TRY(bski_expect_like(op, "grad", &p->grad, &p->param, "as param"));
    BSKI_TRY(bski_expect_like(op, "m", &p->m, &p->param, "as param"));
    BSKI_TRY(bski_expect_like(op, "v", &p->v, &p->param, "as param"));
    BSKI_TRY(bski_expect_like(op, "copy", &p->copy, &p->param, "as param"));
    BSKI_TRY(bski_expect_one(op, "norm_scale", &p->norm_scale));
    if (p->gate.dtype != BSK_NONE)
        BSKI_TRY(
            bski_expect_dim(op, "gate", &p->gate, 0, p->param.dims[0], "first dimension of param"));
    if (p->lazy && p->param.rank != 2)
        return bski_fail(BSK_E_INVALID, "%s: param.rank is %d; lazy = 1 needs 2", op->name,
                         (int)p->param.rank);
    if (p->stochastic && p->m.dtype != BSK_BF16)
        return bski_fail(BSK_E_INVALID, "%s: m.dtype is %s; stochastic = 1 needs bf16", op->name,
                         bsk_dtype_name(p->m.dtype));
    return BSK_OK;
}

const bski_op_info bski_op_adam = {
    .name = "adam",
    .kernel_op = BSK_OP_ADAM,
    BSKI_STRUCTS(adam),
    .layout = -1,
    .pairs = -1,
    .main = 2, /* entries are chosen by the type of the state */
    .args = adam_args,
    .arg_count = BSKI_COUNT(adam_args),
    .attrs = adam_attrs,
    .attr_count = BSKI_COUNT(adam_attrs),
    .scalars = adam_scalars,
    .scalar_count = BSKI_COUNT(adam_scalars),
    .check = adam_check,
};
BSKI_DEFINE_OP(adam, adam)
