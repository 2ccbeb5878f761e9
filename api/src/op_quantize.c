/* Descriptors of quantize and tensor_stats. */
#include <math.h>

#include "api/src/internal.h"
#include "common/dtype.h"

#define FLOATS BSKI_FLOATS

/* --- quantize ----------------------------------------------------------------------------- */

static const bski_arg quantize_args[] = {
    {BSKI_ARG(quantize, x), .rank_max = 5, .dtypes = FLOATS},
    {BSKI_ARG(quantize, y), .role = BSKI_OUT, .rank_max = 5, .alias = 1 << 0, .dtypes = FLOATS},
    {BSKI_ARG(quantize, exponent), .optional = 1, .rank_max = 1, .strides = BSKI_CONTIGUOUS,
     .dtypes = BSK_DTYPE_BIT(BSK_I32)},
};

static const bski_field quantize_attrs[] = {
    BSKI_ATTR(quantize, ebits, I32, 1, 8),
    BSKI_ATTR(quantize, fbits, I32, 0, 23),
    BSKI_ATTR(quantize, stochastic, I32, 0, 1),
    BSKI_ATTR(quantize, flush, I32, 0, 1),
};

static const bski_field quantize_scalars[] = {
    BSKI_SCALAR(quantize, emax, I64, -126, 127),
    BSKI_SCALAR(quantize, seed, U64, -INFINITY, INFINITY),
    BSKI_SCALAR(quantize, offset, U64, -INFINITY, INFINITY),
};

static bsk_status quantize_check(const bski_op_info *op, const void *params,
                                 const bsk_layout_tables *l)
{
    (void)l;
    const bsk_quantize_params *p = params;
    BSKI_TRY(bski_expect_like(op, "y", &p->y, &p->x, "as x"));
    return bski_expect_one(op, "exponent", &p->exponent);
}

const bski_op_info bski_op_quantize = {
    .name = "quantize",
    .kernel_op = BSK_OP_QUANTIZE,
    BSKI_STRUCTS(quantize),
    BSKI_TABLE(arg, quantize_args),
    BSKI_TABLE(attr, quantize_attrs),
    BSKI_TABLE(scalar, quantize_scalars),
    .check = quantize_check,
};
BSKI_DEFINE_OP(quantize, quantize)

/* --- tensor_stats ------------------------------------------------------------------------- */

static const bski_arg tensor_stats_args[] = {
    {BSKI_ARG(tensor_stats, x), .rank_max = 5, .dtypes = FLOATS},
    {BSKI_VECTOR(tensor_stats, stats), .role = BSKI_OUT, .dtypes = BSKI_SIDE},
    {BSKI_ARG(tensor_stats, exponent), .role = BSKI_OUT, .optional = 1, .rank_max = 1,
     .strides = BSKI_CONTIGUOUS, .dtypes = BSK_DTYPE_BIT(BSK_I32)},
};

static const bski_field tensor_stats_attrs[] = {
    BSKI_ATTR(tensor_stats, bias_pad, I32, -100, 100),
    BSKI_ATTR_BELOW(tensor_stats, spread, F64, 0, INFINITY, 0),
};

static const bski_field tensor_stats_scalars[] = {
    BSKI_SCALAR(tensor_stats, saturate, F64, 0, INFINITY),
    BSKI_SCALAR(tensor_stats, tiny, F64, 0, INFINITY),
};

static bsk_status tensor_stats_check(const bski_op_info *op, const void *params,
                                     const bsk_layout_tables *l)
{
    (void)l;
    const bsk_tensor_stats_params *p = params;
    BSKI_TRY(bski_expect_vector(op, "stats", &p->stats, BSK_STATS_COUNT, "BSK_STATS_COUNT"));
    return bski_expect_one(op, "exponent", &p->exponent);
}

const bski_op_info bski_op_tensor_stats = {
    .name = "tensor_stats",
    .kernel_op = BSK_OP_TENSOR_STATS,
    BSKI_STRUCTS(tensor_stats),
    BSKI_TABLE(arg, tensor_stats_args),
    BSKI_TABLE(attr, tensor_stats_attrs),
    BSKI_TABLE(scalar, tensor_stats_scalars),
    .check = tensor_stats_check,
};
BSKI_DEFINE_OP(tensor_stats, tensor_stats)
