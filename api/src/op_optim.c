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
    {BSKI_VECTOR(adam, gate), .optional = 1, .dtypes = BSK_DTYPE_BIT(BSK_F32)},
    {BSKI_ARG(adam, copy), .role = BSKI_OUT, .optional = 1, .rank_min = 1, .rank_max = 5,
     .strides = BSKI_CONTIGUOUS, .dtypes = FLOATS},
    {BSKI_ARG(adam, steps), .optional = 1, .rank_max = 1, .strides = BSKI_CONTIGUOUS,
     .dtypes = BSK_DTYPE_BIT(BSK_I64)},
};

/* The fields of params and args that adam and adam_n have in common. */
#define STEP_ATTRS(group)                                                                          \
    BSKI_ATTR_BELOW(group, beta1, F64, 0, 1, 0.9),                                                 \
        BSKI_ATTR_BELOW(group, beta2, F64, 0, 1, 0.999),                                           \
        BSKI_ATTR_BELOW(group, eps, F64, 0, INFINITY, 1e-8),                                       \
        BSKI_ATTR(group, stochastic, I32, 0, 1)
#define STEP_SCALARS(group)                                                                        \
    BSKI_SCALAR(group, lr, F64, 0, INFINITY),                                                      \
        BSKI_SCALAR(group, grad_scale, F64, -INFINITY, INFINITY),                                  \
        BSKI_SCALAR(group, weight_decay, F64, 0, INFINITY),                                        \
        BSKI_SCALAR(group, clip_sigma, F64, 0, INFINITY),                                          \
        BSKI_SCALAR(group, step, I64, 1, INFINITY),                                                \
        BSKI_SCALAR(group, seed, U64, -INFINITY, INFINITY),                                        \
        BSKI_SCALAR(group, offset, U64, -INFINITY, INFINITY)

static const bski_field adam_attrs[] = {
    STEP_ATTRS(adam),
    BSKI_ATTR(adam, lazy, I32, 0, 1),
};

static const bski_field adam_scalars[] = {STEP_SCALARS(adam)};

/* The shapes of what a step takes, and the type of the moments. */
static bsk_status check_step(const bski_op_info *op, const bsk_tensor *param,
                             const bsk_tensor *grad, const bsk_tensor *m, const bsk_tensor *v,
                             const bsk_tensor *copy, const bsk_tensor *norm_scale,
                             const bsk_tensor *steps, int32_t stochastic)
{
    BSKI_TRY(bski_expect_like(op, "grad", grad, param, "as param"));
    BSKI_TRY(bski_expect_like(op, "m", m, param, "as param"));
    BSKI_TRY(bski_expect_like(op, "v", v, param, "as param"));
    BSKI_TRY(bski_expect_like(op, "copy", copy, param, "as param"));
    BSKI_TRY(bski_expect_one(op, "norm_scale", norm_scale));
    BSKI_TRY(bski_expect_one(op, "steps", steps));
    if (stochastic && m->dtype != BSK_BF16)
        return bski_fail(BSK_E_INVALID, "%s: m.dtype is %s; stochastic = 1 needs bf16", op->name,
                         bsk_dtype_name(m->dtype));
    return BSK_OK;
}

static bsk_status adam_check(const bski_op_info *op, const void *params, const bsk_layout_tables *l)
{
    (void)l;
    const bsk_adam_params *p = params;
    BSKI_TRY(check_step(op, &p->param, &p->grad, &p->m, &p->v, &p->copy, &p->norm_scale, &p->steps,
                        p->stochastic));
    if (p->gate.dtype != BSK_NONE)
        BSKI_TRY(
            bski_expect_dim(op, "gate", &p->gate, 0, p->param.dims[0], "first dimension of param"));
    if (p->lazy && p->param.rank != 2)
        return bski_fail(BSK_E_INVALID, "%s: param.rank is %d; lazy = 1 needs 2", op->name,
                         (int)p->param.rank);
    return BSK_OK;
}

const bski_op_info bski_op_adam = {
    .name = "adam",
    .kernel_op = BSK_OP_ADAM,
    BSKI_STRUCTS(adam),
    .main = 2, /* entries are chosen by the type of the state */
    BSKI_TABLE(arg, adam_args),
    BSKI_TABLE(attr, adam_attrs),
    BSKI_TABLE(scalar, adam_scalars),
    .check = adam_check,
};
BSKI_DEFINE_OP(adam, adam)

/* --- adam_n ------------------------------------------------------------------------------- */

#define LIST(field)                                                                                \
    BSKI_ARG(adam_n, field), .list = 1, .rank_min = 1, .rank_max = 5, .strides = BSKI_CONTIGUOUS

static const bski_arg adam_n_args[] = {
    {LIST(param), .role = BSKI_INOUT, .dtypes = BSKI_SIDE},
    {LIST(grad), .dtypes = FLOATS},
    {LIST(m), .role = BSKI_INOUT, .dtypes = STATES},
    {LIST(v), .role = BSKI_INOUT, .dtypes = BSKI_SAME},
    {LIST(copy), .role = BSKI_OUT, .optional = 1, .dtypes = FLOATS},
    {BSKI_ARG(adam_n, norm_scale), .optional = 1, .rank_max = 1, .strides = BSKI_CONTIGUOUS,
     .dtypes = BSK_DTYPE_BIT(BSK_F32)},
    {BSKI_ARG(adam_n, steps), .optional = 1, .rank_max = 1, .strides = BSKI_CONTIGUOUS,
     .dtypes = BSK_DTYPE_BIT(BSK_I64)},
};

static const bski_field adam_n_attrs[] = {
    STEP_ATTRS(adam_n),
    BSKI_PAIRS(adam_n),
};

static const bski_field adam_n_scalars[] = {STEP_SCALARS(adam_n)};

static bsk_status adam_n_check(const bski_op_info *op, const void *params,
                               const bsk_layout_tables *l)
{
    (void)l;
    const bsk_adam_n_params *p = params;
    return check_step(op, &p->param, &p->grad, &p->m, &p->v, &p->copy, &p->norm_scale, &p->steps,
                      p->stochastic);
}

const bski_op_info bski_op_adam_n = {
    .name = "adam_n",
    .kernel_op = BSK_OP_ADAM_N,
    BSKI_STRUCTS(adam_n),
    .pairs = offsetof(bsk_adam_n_params, pairs),
    .main = 2, /* entries are chosen by the type of the state */
    BSKI_TABLE(arg, adam_n_args),
    BSKI_TABLE(attr, adam_n_attrs),
    BSKI_TABLE(scalar, adam_n_scalars),
    .check = adam_n_check,
};
BSKI_DEFINE_OP(adam_n, adam_n)
