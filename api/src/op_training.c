/* Descriptors of Adafactor, averages, norms of gradients and the loss scale. */
#include <math.h>

#include "api/src/internal.h"
#include "common/dtype.h"

#define FLOATS BSKI_FLOATS

/* --- adafactor ---------------------------------------------------------------------------- */

static const bski_arg adafactor_args[] = {
    {BSKI_ARG(adafactor, param), .role = BSKI_INOUT, .rank_min = 1, .rank_max = 2,
     .strides = BSKI_CONTIGUOUS, .dtypes = BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_F64)},
    {BSKI_ARG(adafactor, grad), .rank_min = 1, .rank_max = 2, .strides = BSKI_CONTIGUOUS,
     .dtypes = FLOATS},
    {BSKI_VECTOR(adafactor, col), .role = BSKI_INOUT, .dtypes = BSKI_SAME},
    {BSKI_VECTOR(adafactor, row), .role = BSKI_INOUT, .optional = 1, .dtypes = BSKI_SAME},
    {BSKI_ARG(adafactor, norm_scale), .optional = 1, .rank_max = 1, .strides = BSKI_CONTIGUOUS,
     .dtypes = BSK_DTYPE_BIT(BSK_F32)},
    {BSKI_ARG(adafactor, steps), .optional = 1, .rank_max = 1, .strides = BSKI_CONTIGUOUS,
     .dtypes = BSK_DTYPE_BIT(BSK_I64)},
};

static const bski_field adafactor_attrs[] = {
    BSKI_ATTR_BELOW(adafactor, beta2, F64, 0, 1, 0.999),
    BSKI_ATTR_BELOW(adafactor, eps, F64, 0, INFINITY, 1e-30),
    BSKI_ATTR_BELOW(adafactor, clip, F64, 0, INFINITY, 1),
};

static const bski_field adafactor_scalars[] = {
    BSKI_SCALAR(adafactor, lr, F64, 0, INFINITY),
    BSKI_SCALAR(adafactor, grad_scale, F64, -INFINITY, INFINITY),
    BSKI_SCALAR(adafactor, step, I64, 1, INFINITY),
};

static bsk_status adafactor_check(const bski_op_info *op, const void *params,
                                  const bsk_layout_tables *l)
{
    (void)l;
    const bsk_adafactor_params *p = params;
    const bool matrix = p->param.rank == 2;
    if (matrix != (p->row.dtype != BSK_NONE))
        return bski_fail(BSK_E_INVALID, "%s: row is %s; param.rank is %d", op->name,
                         matrix ? "absent" : "given", (int)p->param.rank);
    BSKI_TRY(bski_expect_like(op, "grad", &p->grad, &p->param, "as param"));
    BSKI_TRY(
        bski_expect_vector(op, "col", &p->col, p->param.dims[matrix ? 1 : 0], "columns of param"));
    BSKI_TRY(bski_expect_vector(op, "row", &p->row, p->param.dims[0], "rows of param"));
    BSKI_TRY(bski_expect_one(op, "norm_scale", &p->norm_scale));
    return bski_expect_one(op, "steps", &p->steps);
}

const bski_op_info bski_op_adafactor = {
    .name = "adafactor",
    .kernel_op = BSK_OP_ADAFACTOR,
    BSKI_STRUCTS(adafactor),
    BSKI_TABLE(arg, adafactor_args),
    BSKI_TABLE(attr, adafactor_attrs),
    BSKI_TABLE(scalar, adafactor_scalars),
    .check = adafactor_check,
};
BSKI_DEFINE_OP(adafactor, adafactor)

/* --- ema ---------------------------------------------------------------------------------- */

static const bski_arg ema_args[] = {
    {BSKI_ARG(ema, average), .role = BSKI_INOUT, .rank_min = 1, .rank_max = 5,
     .strides = BSKI_CONTIGUOUS, .dtypes = FLOATS},
    {BSKI_ARG(ema, param), .rank_min = 1, .rank_max = 5, .strides = BSKI_CONTIGUOUS,
     .dtypes = FLOATS},
    {BSKI_VECTOR(ema, gate), .optional = 1, .dtypes = BSK_DTYPE_BIT(BSK_F32)},
};

static const bski_field ema_scalars[] = {
    BSKI_SCALAR(ema, decay, F64, 0, 1),
};

static bsk_status ema_check(const bski_op_info *op, const void *params, const bsk_layout_tables *l)
{
    (void)l;
    const bsk_ema_params *p = params;
    BSKI_TRY(bski_expect_like(op, "param", &p->param, &p->average, "as average"));
    return bski_expect_vector(op, "gate", &p->gate, p->average.dims[0],
                              "first dimension of average");
}

const bski_op_info bski_op_ema = {
    .name = "ema",
    .kernel_op = BSK_OP_EMA,
    BSKI_STRUCTS(ema),
    BSKI_TABLE(arg, ema_args),
    BSKI_TABLE(scalar, ema_scalars),
    .check = ema_check,
};
BSKI_DEFINE_OP(ema, ema)

/* --- global_norm -------------------------------------------------------------------------- */

static const bski_arg global_norm_args[] = {
    {BSKI_ARG(global_norm, x), .list = 1, .rank_max = 5, .strides = BSKI_CONTIGUOUS,
     .dtypes = FLOATS},
    {BSKI_ARG(global_norm, sum), .role = BSKI_OUT, .rank_max = 1, .strides = BSKI_CONTIGUOUS,
     .dtypes = BSKI_SIDE},
    {BSKI_ARG(global_norm, norm), .role = BSKI_OUT, .optional = 1, .rank_max = 1,
     .strides = BSKI_CONTIGUOUS, .dtypes = BSKI_SIDE},
    {BSKI_ARG(global_norm, norm_scale), .role = BSKI_OUT, .optional = 1, .rank_max = 1,
     .strides = BSKI_CONTIGUOUS, .dtypes = BSK_DTYPE_BIT(BSK_F32)},
};

static const bski_field global_norm_attrs[] = {
    BSKI_PAIRS(global_norm),
};

static const bski_field global_norm_scalars[] = {
    BSKI_SCALAR(global_norm, beta, F64, -INFINITY, INFINITY),
    BSKI_SCALAR(global_norm, grad_scale, F64, -INFINITY, INFINITY),
    BSKI_SCALAR(global_norm, clip, F64, 0, INFINITY),
};

static bsk_status global_norm_check(const bski_op_info *op, const void *params,
                                    const bsk_layout_tables *l)
{
    (void)l;
    const bsk_global_norm_params *p = params;
    BSKI_TRY(bski_expect_one(op, "sum", &p->sum));
    BSKI_TRY(bski_expect_one(op, "norm", &p->norm));
    return bski_expect_one(op, "norm_scale", &p->norm_scale);
}

const bski_op_info bski_op_global_norm = {
    .name = "global_norm",
    .kernel_op = BSK_OP_GLOBAL_NORM,
    BSKI_STRUCTS(global_norm),
    .pairs = offsetof(bsk_global_norm_params, pairs),
    BSKI_TABLE(arg, global_norm_args),
    BSKI_TABLE(attr, global_norm_attrs),
    BSKI_TABLE(scalar, global_norm_scalars),
    .check = global_norm_check,
};
BSKI_DEFINE_OP(global_norm, global_norm)

/* --- loss_scale --------------------------------------------------------------------------- */

static const bski_arg loss_scale_args[] = {
    {BSKI_ARG(loss_scale, scale), .role = BSKI_INOUT, .rank_max = 1, .strides = BSKI_CONTIGUOUS,
     .dtypes = BSK_DTYPE_BIT(BSK_F32)},
    {BSKI_ARG(loss_scale, norm_scale), .rank_max = 1, .strides = BSKI_CONTIGUOUS,
     .dtypes = BSK_DTYPE_BIT(BSK_F32)},
    {BSKI_ARG(loss_scale, good), .role = BSKI_INOUT, .rank_max = 1, .strides = BSKI_CONTIGUOUS,
     .dtypes = BSK_DTYPE_BIT(BSK_I32)},
    {BSKI_ARG(loss_scale, steps), .role = BSKI_INOUT, .optional = 1, .rank_max = 1,
     .strides = BSKI_CONTIGUOUS, .dtypes = BSK_DTYPE_BIT(BSK_I64)},
    {BSKI_ARG(loss_scale, norm), .optional = 1, .rank_max = 1, .strides = BSKI_CONTIGUOUS,
     .dtypes = BSK_DTYPE_BIT(BSK_F32)},
};

static const bski_field loss_scale_attrs[] = {
    BSKI_ATTR_BELOW(loss_scale, growth, F64, 0, INFINITY, 2),
    BSKI_ATTR_OR(loss_scale, backoff, F64, 0, 1, 0.5),
    BSKI_ATTR_BELOW(loss_scale, low, F64, 0, INFINITY, 1),
    BSKI_ATTR_BELOW(loss_scale, high, F64, 0, INFINITY, 0x1p24),
    BSKI_ATTR_OR(loss_scale, interval, I32, 0, INT32_MAX, 2000),
};

static bsk_status loss_scale_check(const bski_op_info *op, const void *params,
                                   const bsk_layout_tables *l)
{
    (void)l;
    const bsk_loss_scale_params *p = params;
    if (p->low > p->high)
        return bski_fail(BSK_E_INVALID, "%s: low is %g; legal are 0 to high, which is %g", op->name,
                         p->low, p->high);
    BSKI_TRY(bski_expect_one(op, "scale", &p->scale));
    BSKI_TRY(bski_expect_one(op, "norm_scale", &p->norm_scale));
    BSKI_TRY(bski_expect_one(op, "good", &p->good));
    BSKI_TRY(bski_expect_one(op, "steps", &p->steps));
    return bski_expect_one(op, "norm", &p->norm);
}

const bski_op_info bski_op_loss_scale = {
    .name = "loss_scale",
    .kernel_op = BSK_OP_LOSS_SCALE,
    BSKI_STRUCTS(loss_scale),
    BSKI_TABLE(arg, loss_scale_args),
    BSKI_TABLE(attr, loss_scale_attrs),
    .check = loss_scale_check,
};
BSKI_DEFINE_OP(loss_scale, loss_scale)
