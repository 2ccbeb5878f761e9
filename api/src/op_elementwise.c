/* Descriptors of the element-wise ops. */
#include <math.h>

#include "api/src/internal.h"
#include "common/dtype.h"

#define FLOATS  BSKI_FLOATS
#define INDICES BSKI_INDICES
#define CASTS   (FLOATS | INDICES | BSKI_SCALED)

/* --- binary ------------------------------------------------------------------------------- */

static const bski_arg binary_args[] = {
    {BSKI_ARG(binary, x), .rank_max = 5, .dtypes = FLOATS},
    {BSKI_ARG(binary, y), .rank_max = 5, .dtypes = FLOATS},
    {BSKI_ARG(binary, z), .role = BSKI_OUT, .rank_max = 5, .alias = 1 << 0 | 1 << 1,
     .dtypes = FLOATS},
};

static const bski_field binary_attrs[] = {
    BSKI_ATTR(binary, kind, I32, 0, BSK_BINARY_COUNT - 1),
};

static bsk_status binary_check(const bski_op_info *op, const void *params,
                               const bsk_layout_tables *l)
{
    (void)l;
    const bsk_binary_params *p = params;
    BSKI_TRY(bski_expect_broadcast(op, "x", &p->x, &p->z, "as z"));
    return bski_expect_broadcast(op, "y", &p->y, &p->z, "as z");
}

const bski_op_info bski_op_binary = {
    .name = "binary",
    .kernel_op = BSK_OP_BINARY,
    BSKI_STRUCTS(binary),
    BSKI_TABLE(arg, binary_args),
    BSKI_TABLE(attr, binary_attrs),
    .check = binary_check,
};
BSKI_DEFINE_OP(binary, binary)

static const bski_arg binary_grad_args[] = {
    {BSKI_ARG(binary_grad, dz), .rank_max = 5, .dtypes = FLOATS},
    {BSKI_ARG(binary_grad, x), .optional = 1, .rank_max = 5, .dtypes = FLOATS},
    {BSKI_ARG(binary_grad, y), .optional = 1, .rank_max = 5, .dtypes = FLOATS},
    {BSKI_ARG(binary_grad, dx), .role = BSKI_OUT, .optional = 1, .rank_max = 5, .dtypes = FLOATS},
    {BSKI_ARG(binary_grad, dy), .role = BSKI_OUT, .optional = 1, .rank_max = 5, .dtypes = FLOATS},
};

static const bski_field binary_grad_attrs[] = {
    BSKI_ATTR(binary_grad, kind, I32, 0, BSK_BINARY_COUNT - 1),
};

static const bski_field binary_grad_scalars[] = {
    BSKI_ALPHA_BETA(binary_grad),
};

static bsk_status binary_grad_check(const bski_op_info *op, const void *params,
                                    const bsk_layout_tables *l)
{
    (void)l;
    const bsk_binary_grad_params *p = params;
    const bool linear = p->kind == BSK_BINARY_ADD || p->kind == BSK_BINARY_SUB;
    if (p->dx.dtype == BSK_NONE && p->dy.dtype == BSK_NONE)
        return bski_fail(BSK_E_INVALID, "%s: dx and dy are absent; one is needed", op->name);
    if (!linear && (p->x.dtype == BSK_NONE || p->y.dtype == BSK_NONE))
        return bski_fail(BSK_E_INVALID, "%s: %s is absent; kind %d needs it", op->name,
                         p->x.dtype == BSK_NONE ? "x" : "y", (int)p->kind);
    BSKI_TRY(bski_expect_broadcast(op, "x", &p->x, &p->dz, "as dz"));
    BSKI_TRY(bski_expect_broadcast(op, "y", &p->y, &p->dz, "as dz"));
    BSKI_TRY(bski_expect_broadcast(op, "dx", &p->dx, &p->dz, "as dz"));
    BSKI_TRY(bski_expect_broadcast(op, "dy", &p->dy, &p->dz, "as dz"));
    if (p->x.dtype != BSK_NONE)
        BSKI_TRY(bski_expect_like(op, "dx", &p->dx, &p->x, "as x"));
    return p->y.dtype == BSK_NONE ? BSK_OK : bski_expect_like(op, "dy", &p->dy, &p->y, "as y");
}

const bski_op_info bski_op_binary_grad = {
    .name = "binary_grad",
    .kernel_op = BSK_OP_BINARY_GRAD,
    BSKI_STRUCTS(binary_grad),
    BSKI_TABLE(arg, binary_grad_args),
    BSKI_TABLE(attr, binary_grad_attrs),
    BSKI_TABLE(scalar, binary_grad_scalars),
    .check = binary_grad_check,
};
BSKI_DEFINE_OP(binary_grad, binary_grad)

/* --- unary -------------------------------------------------------------------------------- */

static const bski_arg unary_args[] = {
    {BSKI_ARG(unary, x), .rank_max = 5, .dtypes = FLOATS},
    {BSKI_ARG(unary, y), .role = BSKI_OUT, .rank_max = 5, .alias = 1 << 0, .dtypes = FLOATS},
};

static const bski_field unary_attrs[] = {
    BSKI_ATTR(unary, kind, I32, 0, BSK_UNARY_COUNT - 1),
    BSKI_ATTR_OR(unary, coefficient, F64, -INFINITY, INFINITY, 1),
};

static bsk_status unary_check(const bski_op_info *op, const void *params,
                              const bsk_layout_tables *l)
{
    (void)l;
    const bsk_unary_params *p = params;
    return bski_expect_like(op, "y", &p->y, &p->x, "as x");
}

const bski_op_info bski_op_unary = {
    .name = "unary",
    .kernel_op = BSK_OP_UNARY,
    BSKI_STRUCTS(unary),
    BSKI_TABLE(arg, unary_args),
    BSKI_TABLE(attr, unary_attrs),
    .check = unary_check,
};
BSKI_DEFINE_OP(unary, unary)

/* The functions whose derivative their output tells. */
static bool output_tells(const bsk_unary_grad_params *p)
{
    static const bool tells[BSK_UNARY_COUNT] = {
        [BSK_UNARY_NEG] = true,  [BSK_UNARY_RCP] = true,     [BSK_UNARY_SQRT] = true,
        [BSK_UNARY_EXP] = true,  [BSK_UNARY_SIGMOID] = true, [BSK_UNARY_TANH] = true,
        [BSK_UNARY_RELU] = true, [BSK_UNARY_ELU] = true};
    return tells[p->kind] && (p->kind != BSK_UNARY_ELU || p->coefficient > 0);
}

static const bski_arg unary_grad_args[] = {
    {BSKI_ARG(unary_grad, dy), .rank_max = 5, .dtypes = FLOATS},
    {BSKI_ARG(unary_grad, x), .optional = 1, .rank_max = 5, .dtypes = FLOATS},
    {BSKI_ARG(unary_grad, y), .optional = 1, .rank_max = 5, .dtypes = FLOATS},
    {BSKI_ARG(unary_grad, dx), .role = BSKI_OUT, .rank_max = 5, .alias = 1 << 0, .dtypes = FLOATS},
};

static const bski_field unary_grad_attrs[] = {
    BSKI_ATTR(unary_grad, kind, I32, 0, BSK_UNARY_COUNT - 1),
    BSKI_ATTR_OR(unary_grad, coefficient, F64, -INFINITY, INFINITY, 1),
};

static const bski_field unary_grad_scalars[] = {
    BSKI_ALPHA_BETA(unary_grad),
};

static bsk_status unary_grad_check(const bski_op_info *op, const void *params,
                                   const bsk_layout_tables *l)
{
    (void)l;
    const bsk_unary_grad_params *p = params;
    const bool x = p->x.dtype != BSK_NONE, y = p->y.dtype != BSK_NONE;
    if (y && !output_tells(p))
        return bski_fail(BSK_E_INVALID, "%s: y is given; kind %d needs x instead", op->name,
                         (int)p->kind);
    if (x ? y : !y && p->kind != BSK_UNARY_NEG)
        return bski_fail(BSK_E_INVALID, "%s: x and y are both %s; one is needed", op->name,
                         x ? "given" : "absent");
    BSKI_TRY(bski_expect_like(op, "x", &p->x, &p->dy, "as dy"));
    BSKI_TRY(bski_expect_like(op, "y", &p->y, &p->dy, "as dy"));
    return bski_expect_like(op, "dx", &p->dx, &p->dy, "as dy");
}

const bski_op_info bski_op_unary_grad = {
    .name = "unary_grad",
    .kernel_op = BSK_OP_UNARY_GRAD,
    BSKI_STRUCTS(unary_grad),
    BSKI_TABLE(arg, unary_grad_args),
    BSKI_TABLE(attr, unary_grad_attrs),
    BSKI_TABLE(scalar, unary_grad_scalars),
    .check = unary_grad_check,
};
BSKI_DEFINE_OP(unary_grad, unary_grad)

/* --- add_n -------------------------------------------------------------------------------- */

static const bski_arg add_n_args[] = {
    {BSKI_ARG(add_n, x), .list = 1, .rank_max = 5, .dtypes = FLOATS},
    {BSKI_ARG(add_n, y), .role = BSKI_OUT, .rank_max = 5, .alias = 1 << 0, .dtypes = FLOATS},
};

static const bski_field add_n_attrs[] = {
    BSKI_PAIRS(add_n),
};

static const bski_field add_n_scalars[] = {
    BSKI_ALPHA_BETA(add_n),
};

static bsk_status add_n_check(const bski_op_info *op, const void *params,
                              const bsk_layout_tables *l)
{
    (void)l;
    const bsk_add_n_params *p = params;
    return bski_expect_like(op, "y", &p->y, &p->x, "as x");
}

const bski_op_info bski_op_add_n = {
    .name = "add_n",
    .kernel_op = BSK_OP_ADD_N,
    BSKI_STRUCTS(add_n),
    .pairs = offsetof(bsk_add_n_params, pairs),
    BSKI_TABLE(arg, add_n_args),
    BSKI_TABLE(attr, add_n_attrs),
    BSKI_TABLE(scalar, add_n_scalars),
    .check = add_n_check,
};
BSKI_DEFINE_OP(add_n, add_n)

/* --- assign_add --------------------------------------------------------------------------- */

static void assign_add_params(const void *params, void *kernel_params)
{
    const bsk_assign_add_params *p = params;
    bsk_add_n_params *k = kernel_params;
    k->x = p->x;
    k->y = p->y;
    k->pairs = 1;
}

static void assign_add_lower(const void *params, const void *args, void *kernel_args)
{
    (void)params;
    const bsk_assign_add_args *a = args;
    bsk_add_n_args *k = kernel_args;
    k->alpha = k->beta = 1;
    k->workspace = a->workspace;
    k->x = &a->x;
    k->y = a->y;
}

static const bski_arg assign_add_args[] = {
    {BSKI_ARG(assign_add, x), .rank_max = 5, .dtypes = FLOATS},
    {BSKI_ARG(assign_add, y), .role = BSKI_INOUT, .rank_max = 5, .dtypes = FLOATS},
};

static bsk_status assign_add_check(const bski_op_info *op, const void *params,
                                   const bsk_layout_tables *l)
{
    (void)l;
    const bsk_assign_add_params *p = params;
    return bski_expect_like(op, "y", &p->y, &p->x, "as x");
}

const bski_op_info bski_op_assign_add = {
    .name = "assign_add",
    .kernel_op = BSK_OP_ADD_N,
    BSKI_STRUCTS(assign_add),
    BSKI_TABLE(arg, assign_add_args),
    .check = assign_add_check,
    .lower_params = assign_add_params,
    .lower_args = assign_add_lower,
};
BSKI_DEFINE_OP(assign_add, assign_add)

/* --- cast --------------------------------------------------------------------------------- */

static const bski_arg cast_args[] = {
    {BSKI_ARG(cast, x), .rank_max = 5, .dtypes = CASTS},
    {BSKI_ARG(cast, y), .role = BSKI_OUT, .rank_max = 5, .dtypes = CASTS},
};

static bsk_status cast_check(const bski_op_info *op, const void *params, const bsk_layout_tables *l)
{
    (void)l;
    const bsk_cast_params *p = params;
    return bski_expect_like(op, "y", &p->y, &p->x, "as x");
}

const bski_op_info bski_op_cast = {
    .name = "cast",
    .kernel_op = BSK_OP_CAST,
    BSKI_STRUCTS(cast),
    BSKI_TABLE(arg, cast_args),
    .check = cast_check,
};
BSKI_DEFINE_OP(cast, cast)

/* --- transpose_2d ------------------------------------------------------------------------- */

/* A tensor with dimensions i and i + 1 exchanged. */
static bsk_tensor swapped(const bsk_tensor *t, int i)
{
    bsk_tensor s = *t;
    s.dims[i] = t->dims[i + 1];
    s.dims[i + 1] = t->dims[i];
    s.strides[i] = t->strides[i + 1];
    s.strides[i + 1] = t->strides[i];
    return s;
}

static void transpose_2d_lower(const void *params, void *kernel_params)
{
    const bsk_transpose_2d_params *p = params;
    bsk_cast_params *k = kernel_params;
    k->x = swapped(&p->x, 0);
    k->y = p->y;
}

static void transpose_0213_lower(const void *params, void *kernel_params)
{
    const bsk_transpose_0213_params *p = params;
    bsk_cast_params *k = kernel_params;
    k->x = swapped(&p->x, 1);
    k->y = p->y;
}

/* The structs of both transposes and of cast have the same fields. */
static void transpose_args(const void *params, const void *args, void *kernel_args)
{
    (void)params;
    const bsk_transpose_2d_args *a = args;
    bsk_cast_args *k = kernel_args;
    k->workspace = a->workspace;
    k->x = a->x;
    k->y = a->y;
}

static const bski_arg transpose_2d_args[] = {
    {BSKI_ARG(transpose_2d, x), .rank_min = 2, .rank_max = 2, .dtypes = CASTS},
    {BSKI_ARG(transpose_2d, y), .role = BSKI_OUT, .rank_min = 2, .rank_max = 2, .dtypes = CASTS},
};

static bsk_status transpose_2d_check(const bski_op_info *op, const void *params,
                                     const bsk_layout_tables *l)
{
    (void)l;
    const bsk_transpose_2d_params *p = params;
    const bsk_tensor turned = swapped(&p->x, 0);
    return bski_expect_like(op, "y", &p->y, &turned, "those of x, exchanged");
}

const bski_op_info bski_op_transpose_2d = {
    .name = "transpose_2d",
    .kernel_op = BSK_OP_CAST,
    BSKI_STRUCTS(transpose_2d),
    BSKI_TABLE(arg, transpose_2d_args),
    .check = transpose_2d_check,
    .lower_params = transpose_2d_lower,
    .lower_args = transpose_args,
};
BSKI_DEFINE_OP(transpose_2d, transpose_2d)

/* --- transpose_0213 ----------------------------------------------------------------------- */

static const bski_arg transpose_0213_args[] = {
    {BSKI_ARG(transpose_0213, x), .rank_min = 4, .rank_max = 4, .dtypes = CASTS},
    {BSKI_ARG(transpose_0213, y), .role = BSKI_OUT, .rank_min = 4, .rank_max = 4, .dtypes = CASTS},
};

static bsk_status transpose_0213_check(const bski_op_info *op, const void *params,
                                       const bsk_layout_tables *l)
{
    (void)l;
    const bsk_transpose_0213_params *p = params;
    const bsk_tensor turned = swapped(&p->x, 1);
    return bski_expect_like(op, "y", &p->y, &turned, "those of x, the middle ones exchanged");
}

const bski_op_info bski_op_transpose_0213 = {
    .name = "transpose_0213",
    .kernel_op = BSK_OP_CAST,
    BSKI_STRUCTS(transpose_0213),
    BSKI_TABLE(arg, transpose_0213_args),
    .check = transpose_0213_check,
    .lower_params = transpose_0213_lower,
    .lower_args = transpose_args,
};
BSKI_DEFINE_OP(transpose_0213, transpose_0213)

/* --- cwise_linear ------------------------------------------------------------------------- */

static const bski_arg cwise_linear_args[] = {
    {BSKI_ARG(cwise_linear, x), .rank_min = 3, .rank_max = 3, .dtypes = FLOATS},
    {BSKI_ARG(cwise_linear, y), .role = BSKI_OUT, .rank_min = 3, .rank_max = 3, .alias = 1 << 0,
     .dtypes = FLOATS},
    {BSKI_VECTOR(cwise_linear, gain), .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(cwise_linear, bias), .optional = 1, .dtypes = BSKI_SIDE},
};

static const bski_field cwise_linear_attrs[] = {
    BSKI_ATTR(cwise_linear, relu, I32, 0, 1),
    BSKI_ATTR(cwise_linear, bias_first, I32, 0, 1),
};

static bsk_status cwise_linear_check(const bski_op_info *op, const void *params,
                                     const bsk_layout_tables *l)
{
    (void)l;
    const bsk_cwise_linear_params *p = params;
    if (p->gain.dtype == BSK_NONE && p->bias.dtype == BSK_NONE)
        return bski_fail(BSK_E_INVALID, "%s: gain and bias are absent; one is needed", op->name);
    BSKI_TRY(bski_expect_like(op, "y", &p->y, &p->x, "as x"));
    BSKI_TRY(bski_expect_vector(op, "gain", &p->gain, p->x.dims[1], "channels"));
    return bski_expect_vector(op, "bias", &p->bias, p->x.dims[1], "channels");
}

const bski_op_info bski_op_cwise_linear = {
    .name = "cwise_linear",
    .kernel_op = BSK_OP_CWISE_LINEAR,
    BSKI_STRUCTS(cwise_linear),
    BSKI_TABLE(arg, cwise_linear_args),
    BSKI_TABLE(attr, cwise_linear_attrs),
    .check = cwise_linear_check,
};
BSKI_DEFINE_OP(cwise_linear, cwise_linear)

static const bski_arg cwise_linear_grad_args[] = {
    {BSKI_ARG(cwise_linear_grad, dy), .rank_min = 3, .rank_max = 3, .dtypes = FLOATS},
    {BSKI_ARG(cwise_linear_grad, x), .optional = 1, .rank_min = 3, .rank_max = 3, .dtypes = FLOATS},
    {BSKI_VECTOR(cwise_linear_grad, gain), .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(cwise_linear_grad, bias), .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_ARG(cwise_linear_grad, dx), .role = BSKI_OUT, .optional = 1, .rank_min = 3, .rank_max = 3,
     .alias = 1 << 0, .dtypes = FLOATS},
    {BSKI_VECTOR(cwise_linear_grad, dgain), .role = BSKI_OUT, .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(cwise_linear_grad, dbias), .role = BSKI_OUT, .optional = 1, .dtypes = BSKI_SIDE},
};

static const bski_field cwise_linear_grad_attrs[] = {
    BSKI_ATTR(cwise_linear_grad, relu, I32, 0, 1),
    BSKI_ATTR(cwise_linear_grad, bias_first, I32, 0, 1),
    BSKI_DX_BLEND(cwise_linear_grad),
};

static const bski_field cwise_linear_grad_scalars[] = {
    BSKI_ALPHA_BETA(cwise_linear_grad),
    BSKI_DX_ALPHA_BETA(cwise_linear_grad),
};

BSKI_DX_LOWER(cwise_linear_grad)

static bsk_status cwise_linear_grad_check(const bski_op_info *op, const void *params,
                                          const bsk_layout_tables *l)
{
    (void)l;
    const bsk_cwise_linear_grad_params *p = params;
    if (p->dx.dtype == BSK_NONE && p->dgain.dtype == BSK_NONE && p->dbias.dtype == BSK_NONE)
        return bski_fail(BSK_E_INVALID, "%s: dx, dgain and dbias are absent; one is needed",
                         op->name);
    if (p->x.dtype == BSK_NONE && (p->relu || p->dgain.dtype != BSK_NONE))
        return bski_fail(BSK_E_INVALID, "%s: x is absent; %s needs it", op->name,
                         p->relu ? "relu = 1" : "dgain");
    BSKI_TRY(bski_expect_like(op, "x", &p->x, &p->dy, "as dy"));
    BSKI_TRY(bski_expect_like(op, "dx", &p->dx, &p->dy, "as dy"));
    BSKI_TRY(bski_expect_vector(op, "gain", &p->gain, p->dy.dims[1], "channels"));
    BSKI_TRY(bski_expect_vector(op, "bias", &p->bias, p->dy.dims[1], "channels"));
    BSKI_TRY(bski_expect_vector(op, "dgain", &p->dgain, p->dy.dims[1], "channels"));
    return bski_expect_vector(op, "dbias", &p->dbias, p->dy.dims[1], "channels");
}

const bski_op_info bski_op_cwise_linear_grad = {
    .name = "cwise_linear_grad",
    .kernel_op = BSK_OP_CWISE_LINEAR_GRAD,
    BSKI_STRUCTS(cwise_linear_grad),
    BSKI_TABLE(arg, cwise_linear_grad_args),
    BSKI_TABLE(attr, cwise_linear_grad_attrs),
    BSKI_TABLE(scalar, cwise_linear_grad_scalars),
    .check = cwise_linear_grad_check,
    .lower_args = cwise_linear_grad_lower,
};
BSKI_DEFINE_OP(cwise_linear_grad, cwise_linear_grad)

/* --- filter ------------------------------------------------------------------------------- */

static const bski_arg filter_args[] = {
    {BSKI_ARG(filter, x), .rank_max = 5, .dtypes = FLOATS},
    {BSKI_ARG(filter, y), .role = BSKI_OUT, .rank_max = 5, .alias = 1 << 0, .dtypes = FLOATS},
};

static const bski_field filter_attrs[] = {
    BSKI_ATTR(filter, zero_infs, I32, 0, 1),
    BSKI_ATTR(filter, zero_nans, I32, 0, 1),
};

static const bski_field filter_scalars[] = {
    BSKI_SCALAR(filter, scale, F64, -INFINITY, INFINITY),
    BSKI_SCALAR(filter, saturate, F64, 0, INFINITY),
};

static bsk_status filter_check(const bski_op_info *op, const void *params,
                               const bsk_layout_tables *l)
{
    (void)l;
    const bsk_filter_params *p = params;
    return bski_expect_like(op, "y", &p->y, &p->x, "as x");
}

const bski_op_info bski_op_filter = {
    .name = "filter",
    .kernel_op = BSK_OP_FILTER,
    BSKI_STRUCTS(filter),
    BSKI_TABLE(arg, filter_args),
    BSKI_TABLE(attr, filter_attrs),
    BSKI_TABLE(scalar, filter_scalars),
    .check = filter_check,
};
BSKI_DEFINE_OP(filter, filter)

/* --- sparse_relu -------------------------------------------------------------------------- */

static const bski_arg sparse_relu_args[] = {
    {BSKI_ACTIVATION(sparse_relu, x), .dtypes = FLOATS},
    {BSKI_ACTIVATION(sparse_relu, y), .role = BSKI_OUT, .alias = 1 << 0, .dtypes = FLOATS},
};

static const bski_field sparse_relu_attrs[] = {
    BSKI_ATTR(sparse_relu, axis, I32, 0, 1),
};

static const bski_field sparse_relu_scalars[] = {
    BSKI_SCALAR(sparse_relu, sigmas, F64, -INFINITY, INFINITY),
};

static bsk_status sparse_relu_check(const bski_op_info *op, const void *params,
                                    const bsk_layout_tables *l)
{
    (void)l;
    const bsk_sparse_relu_params *p = params;
    return bski_expect_like(op, "y", &p->y, &p->x, "as x");
}

const bski_op_info bski_op_sparse_relu = {
    .name = "sparse_relu",
    .kernel_op = BSK_OP_SPARSE_RELU,
    BSKI_STRUCTS(sparse_relu),
    BSKI_TABLE(arg, sparse_relu_args),
    BSKI_TABLE(attr, sparse_relu_attrs),
    BSKI_TABLE(scalar, sparse_relu_scalars),
    .check = sparse_relu_check,
};
BSKI_DEFINE_OP(sparse_relu, sparse_relu)

static const bski_arg sparse_relu_grad_args[] = {
    {BSKI_ACTIVATION(sparse_relu_grad, dy), .dtypes = FLOATS},
    {BSKI_ACTIVATION(sparse_relu_grad, x), .dtypes = FLOATS},
    {BSKI_ACTIVATION(sparse_relu_grad, dx), .role = BSKI_OUT, .alias = 1 << 0, .dtypes = FLOATS},
};

static const bski_field sparse_relu_grad_attrs[] = {
    BSKI_ATTR(sparse_relu_grad, axis, I32, 0, 1),
    BSKI_ATTR(sparse_relu_grad, constant_cut, I32, 0, 1),
};

static const bski_field sparse_relu_grad_scalars[] = {
    BSKI_ALPHA_BETA(sparse_relu_grad),
    BSKI_SCALAR(sparse_relu_grad, sigmas, F64, -INFINITY, INFINITY),
};

static bsk_status sparse_relu_grad_check(const bski_op_info *op, const void *params,
                                         const bsk_layout_tables *l)
{
    (void)l;
    const bsk_sparse_relu_grad_params *p = params;
    BSKI_TRY(bski_expect_like(op, "x", &p->x, &p->dy, "as dy"));
    return bski_expect_like(op, "dx", &p->dx, &p->dy, "as dy");
}

const bski_op_info bski_op_sparse_relu_grad = {
    .name = "sparse_relu_grad",
    .kernel_op = BSK_OP_SPARSE_RELU_GRAD,
    BSKI_STRUCTS(sparse_relu_grad),
    BSKI_TABLE(arg, sparse_relu_grad_args),
    BSKI_TABLE(attr, sparse_relu_grad_attrs),
    BSKI_TABLE(scalar, sparse_relu_grad_scalars),
    .check = sparse_relu_grad_check,
};
BSKI_DEFINE_OP(sparse_relu_grad, sparse_relu_grad)

/* --- dropout ------------------------------------------------------------------------------ */

static const bski_arg dropout_args[] = {
    {BSKI_ARG(dropout, x), .rank_max = 5, .dtypes = FLOATS},
    {BSKI_ARG(dropout, y), .role = BSKI_OUT, .rank_max = 5, .alias = 1 << 0, .dtypes = FLOATS},
};

static const bski_field dropout_attrs[] = {
    BSKI_ATTR(dropout, shared, I32, 0, 31),
};

static const bski_field dropout_scalars[] = {
    BSKI_SCALAR(dropout, keep, F64, 0, 1),
    BSKI_SCALAR(dropout, seed, U64, -INFINITY, INFINITY),
    BSKI_SCALAR(dropout, offset, U64, -INFINITY, INFINITY),
};

static bsk_status dropout_check(const bski_op_info *op, const void *params,
                                const bsk_layout_tables *l)
{
    (void)l;
    const bsk_dropout_params *p = params;
    if (p->shared >> p->x.rank)
        return bski_fail(BSK_E_INVALID, "%s: shared is %d; x has %d dimensions", op->name,
                         (int)p->shared, (int)p->x.rank);
    return bski_expect_like(op, "y", &p->y, &p->x, "as x");
}

const bski_op_info bski_op_dropout = {
    .name = "dropout",
    .kernel_op = BSK_OP_DROPOUT,
    BSKI_STRUCTS(dropout),
    BSKI_TABLE(arg, dropout_args),
    BSKI_TABLE(attr, dropout_attrs),
    BSKI_TABLE(scalar, dropout_scalars),
    .check = dropout_check,
};
BSKI_DEFINE_OP(dropout, dropout)
