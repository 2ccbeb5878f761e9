/* Descriptors of the products of groups of rows. */
#include <math.h>
#include <stdio.h>

#include "api/src/internal.h"
#include "common/checked.h"
#include "common/dtype.h"

#define FLOATS BSKI_FLOATS
#define I32S   (1u << BSK_I32)

/* [T, features], [G, K, M] and [G, M]. */
#define ROWS(group, field)                                                                         \
    BSKI_ARG(group, field), .rank_min = 2, .rank_max = 2, .strides = BSKI_UNIT_AXIS
#define MATRICES(group, field)                                                                     \
    BSKI_ARG(group, field), .rank_min = 3, .rank_max = 3, .strides = BSKI_UNIT_AXIS
#define VECTORS(group, field)                                                                      \
    BSKI_ARG(group, field), .rank_min = 2, .rank_max = 2, .strides = BSKI_CONTIGUOUS

static bsk_status expect_31_bits(const bski_op_info *op, const char *what, int64_t count)
{
    return count <= INT32_MAX ? BSK_OK
                              : bski_fail(BSK_E_INVALID, "%s: %s are %lld; legal are 0 to %d",
                                          op->name, what, (long long)count, INT32_MAX);
}

/* x [T, K], offsets [G + 1], y or dy [T, M], w or dw [G, K, M] and bias or dbias [G, M]: the last
 * three by the names at the same places. */
static bsk_status expect_groups(const bski_op_info *op, const bsk_tensor *x,
                                const bsk_tensor *offsets, const bsk_tensor *const tensors[3],
                                const char *const names[3])
{
    const bsk_tensor *y = tensors[0], *w = tensors[1], *bias = tensors[2];
    const int64_t matrices[] = {offsets->dims[0] - 1, x->dims[1], y->dims[1]};
    const int64_t vectors[] = {matrices[0], matrices[2]};
    char what[64];
    BSKI_TRY(expect_31_bits(op, "rows of x", x->dims[0]));
    BSKI_TRY(bski_expect_dim(op, names[0], y, 0, x->dims[0], "rows of x"));
    snprintf(what, sizeof what, "one less than offsets, features of x and of %s", names[0]);
    BSKI_TRY(bski_expect_shape(op, names[1], w, 3, matrices, what));
    if (bias->dtype == BSK_NONE)
        return BSK_OK;
    return bski_expect_shape(op, names[2], bias, 2, vectors, "groups and features");
}

static double groups_flops(const bsk_tensor *x, const bsk_tensor *w)
{
    return 2 * (double)x->dims[0] * (double)w->dims[1] * (double)w->dims[2];
}

/* --- grouped_matmul ----------------------------------------------------------------------- */

static const bski_arg grouped_matmul_args[] = {
    {ROWS(grouped_matmul, x), .dtypes = FLOATS},
    {BSKI_VECTOR(grouped_matmul, offsets), .dtypes = I32S},
    {MATRICES(grouped_matmul, w), .dtypes = BSKI_SAME},
    {ROWS(grouped_matmul, y), .role = BSKI_OUT, .dtypes = FLOATS},
    {VECTORS(grouped_matmul, bias), .optional = 1, .dtypes = BSKI_SIDE},
};

static const bski_field grouped_matmul_attrs[] = {
    BSKI_ATTR(grouped_matmul, act, I32, 0, BSK_ACT_COUNT - 1),
};

static const bski_field grouped_matmul_scalars[] = {
    BSKI_ALPHA_BETA(grouped_matmul),
};

static bsk_status grouped_matmul_check(const bski_op_info *op, const void *params,
                                       const bsk_layout_tables *l)
{
    (void)l;
    const bsk_grouped_matmul_params *p = params;
    return expect_groups(op, &p->x, &p->offsets,
                         (const bsk_tensor *const[]){&p->y, &p->w, &p->bias},
                         (const char *const[]){"y", "w", "bias"});
}

static double grouped_matmul_flops(const void *params, const bsk_layout_tables *l)
{
    (void)l;
    const bsk_grouped_matmul_params *p = params;
    return groups_flops(&p->x, &p->w);
}

const bski_op_info bski_op_grouped_matmul = {
    .name = "grouped_matmul",
    .kernel_op = BSK_OP_GROUPED_MATMUL,
    BSKI_STRUCTS(grouped_matmul),
    BSKI_TABLE(arg, grouped_matmul_args),
    BSKI_TABLE(attr, grouped_matmul_attrs),
    BSKI_TABLE(scalar, grouped_matmul_scalars),
    .check = grouped_matmul_check,
    .flops = grouped_matmul_flops,
};
BSKI_DEFINE_OP(grouped_matmul, grouped_matmul)

/* --- grouped_wgrad ------------------------------------------------------------------------ */

static const bski_arg grouped_wgrad_args[] = {
    {ROWS(grouped_wgrad, x), .dtypes = FLOATS},
    {BSKI_VECTOR(grouped_wgrad, offsets), .dtypes = I32S},
    {ROWS(grouped_wgrad, dy), .dtypes = BSKI_SAME},
    {MATRICES(grouped_wgrad, dw), .role = BSKI_OUT, .dtypes = FLOATS},
    {VECTORS(grouped_wgrad, dbias), .role = BSKI_OUT, .optional = 1, .dtypes = BSKI_SIDE},
};

static const bski_field grouped_wgrad_scalars[] = {
    BSKI_ALPHA_BETA(grouped_wgrad),
};

static bsk_status grouped_wgrad_check(const bski_op_info *op, const void *params,
                                      const bsk_layout_tables *l)
{
    (void)l;
    const bsk_grouped_wgrad_params *p = params;
    return expect_groups(op, &p->x, &p->offsets,
                         (const bsk_tensor *const[]){&p->dy, &p->dw, &p->dbias},
                         (const char *const[]){"dy", "dw", "dbias"});
}

static double grouped_wgrad_flops(const void *params, const bsk_layout_tables *l)
{
    (void)l;
    const bsk_grouped_wgrad_params *p = params;
    return groups_flops(&p->x, &p->dw);
}

const bski_op_info bski_op_grouped_wgrad = {
    .name = "grouped_wgrad",
    .kernel_op = BSK_OP_GROUPED_WGRAD,
    BSKI_STRUCTS(grouped_wgrad),
    BSKI_TABLE(arg, grouped_wgrad_args),
    BSKI_TABLE(scalar, grouped_wgrad_scalars),
    .check = grouped_wgrad_check,
    .flops = grouped_wgrad_flops,
};
BSKI_DEFINE_OP(grouped_wgrad, grouped_wgrad)

/* --- moe_route ---------------------------------------------------------------------------- */

static const bski_arg moe_route_args[] = {
    {VECTORS(moe_route, experts), .dtypes = I32S},
    {BSKI_VECTOR(moe_route, offsets), .role = BSKI_OUT, .dtypes = I32S},
    {BSKI_VECTOR(moe_route, order), .role = BSKI_OUT, .dtypes = I32S},
    {BSKI_VECTOR(moe_route, token), .role = BSKI_OUT, .optional = 1, .dtypes = I32S},
    {VECTORS(moe_route, place), .role = BSKI_OUT, .optional = 1, .dtypes = I32S},
};

static bsk_status moe_route_check(const bski_op_info *op, const void *params,
                                  const bsk_layout_tables *l)
{
    (void)l;
    const bsk_moe_route_params *p = params;
    int64_t slots = 0;
    if (!bski_mul_i64(p->experts.dims[0], p->experts.dims[1], &slots))
        slots = INT64_MAX;
    BSKI_TRY(expect_31_bits(op, "elements of experts", slots));
    if (p->offsets.dims[0] < 1 || p->offsets.dims[0] > INT32_MAX)
        return bski_fail(BSK_E_INVALID, "%s: offsets.dims[0] is %lld; legal are 1 to %d", op->name,
                         (long long)p->offsets.dims[0], INT32_MAX);
    BSKI_TRY(bski_expect_dim(op, "order", &p->order, 0, slots, "elements of experts"));
    BSKI_TRY(bski_expect_vector(op, "token", &p->token, slots, "elements of experts"));
    return bski_expect_like(op, "place", &p->place, &p->experts, "as experts");
}

const bski_op_info bski_op_moe_route = {
    .name = "moe_route",
    .kernel_op = BSK_OP_MOE_ROUTE,
    BSKI_STRUCTS(moe_route),
    BSKI_TABLE(arg, moe_route_args),
    .check = moe_route_check,
};
BSKI_DEFINE_OP(moe_route, moe_route)
