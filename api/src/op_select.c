/* Descriptors of the ops that choose elements. */
#include <math.h>

#include "api/src/internal.h"
#include "common/dtype.h"

#define FLOATS  BSKI_FLOATS
#define INDICES BSKI_INDICES
#define TAKEN   (FLOATS | BSK_DTYPE_BIT(BSK_I32))

#define RANKED(group, field, rank) BSKI_ARG(group, field), .rank_min = rank, .rank_max = rank
#define MATRIX(group, field)       RANKED(group, field, 2), .strides = BSKI_UNIT_LAST

/* --- reduce_max --------------------------------------------------------------------------- */

/* The largest number that an index type holds. */
static int64_t index_limit(bsk_dtype t)
{
    return t == BSK_U8    ? UINT8_MAX
           : t == BSK_U16 ? UINT16_MAX
           : t == BSK_I32 ? INT32_MAX
                          : INT64_MAX;
}

static bsk_status expect_index_type(const bski_op_info *op, const char *name,
                                    const bsk_tensor *index, int64_t size)
{
    if (index->dtype == BSK_NONE || size - 1 <= index_limit(index->dtype))
        return BSK_OK;
    return bski_fail(BSK_E_INVALID, "%s: %s.dtype is %s, which holds up to %lld; %lld is needed",
                     op->name, name, bsk_dtype_name(index->dtype),
                     (long long)index_limit(index->dtype), (long long)(size - 1));
}

/* x [A, B, C] without the middle dimension. */
static bsk_status expect_reduced(const bski_op_info *op, const char *name, const bsk_tensor *t,
                                 const bsk_tensor *x, const char *what)
{
    const int64_t dims[2] = {x->dims[0], x->dims[2]};
    return t->dtype == BSK_NONE ? BSK_OK : bski_expect_shape(op, name, t, 2, dims, what);
}

static const bski_arg reduce_max_args[] = {
    {RANKED(reduce_max, x, 3), .dtypes = FLOATS},
    {RANKED(reduce_max, y, 2), .role = BSKI_OUT, .dtypes = FLOATS},
    {RANKED(reduce_max, argmax, 2), .role = BSKI_OUT, .optional = 1, .dtypes = INDICES},
};

static bsk_status reduce_max_check(const bski_op_info *op, const void *params,
                                   const bsk_layout_tables *l)
{
    (void)l;
    const bsk_reduce_max_params *p = params;
    if (p->x.dims[1] < 1)
        return bski_fail(BSK_E_INVALID, "%s: x.dims[1] is %lld; legal are 1 and more", op->name,
                         (long long)p->x.dims[1]);
    BSKI_TRY(expect_index_type(op, "argmax", &p->argmax, p->x.dims[1]));
    BSKI_TRY(expect_reduced(op, "y", &p->y, &p->x, "dims 0 and 2 of x"));
    return expect_reduced(op, "argmax", &p->argmax, &p->x, "dims 0 and 2 of x");
}

const bski_op_info bski_op_reduce_max = {
    .name = "reduce_max",
    .kernel_op = BSK_OP_REDUCE_MAX,
    BSKI_STRUCTS(reduce_max),
    BSKI_TABLE(arg, reduce_max_args),
    .check = reduce_max_check,
};
BSKI_DEFINE_OP(reduce_max, reduce_max)

/* --- take_along --------------------------------------------------------------------------- */

static const bski_arg take_along_args[] = {
    {RANKED(take_along, x, 3), .dtypes = TAKEN},
    {RANKED(take_along, index, 3), .dtypes = INDICES},
    {RANKED(take_along, y, 3), .role = BSKI_OUT, .dtypes = TAKEN},
};

static bsk_status expect_taken_type(const bski_op_info *op, const bsk_tensor *y,
                                    const bsk_tensor *x)
{
    if (y->dtype == x->dtype || (y->dtype != BSK_I32 && x->dtype != BSK_I32))
        return BSK_OK;
    return bski_fail(BSK_E_INVALID, "%s: y.dtype is %s; legal beside %s in x is %s", op->name,
                     bsk_dtype_name(y->dtype), bsk_dtype_name(x->dtype),
                     x->dtype == BSK_I32 ? "i32" : "any float");
}

static bsk_status take_along_check(const bski_op_info *op, const void *params,
                                   const bsk_layout_tables *l)
{
    (void)l;
    const bsk_take_along_params *p = params;
    BSKI_TRY(expect_taken_type(op, &p->y, &p->x));
    BSKI_TRY(bski_expect_dim(op, "index", &p->index, 0, p->x.dims[0], "dims[0] of x"));
    BSKI_TRY(bski_expect_dim(op, "index", &p->index, 2, p->x.dims[2], "dims[2] of x"));
    return bski_expect_like(op, "y", &p->y, &p->index, "as index");
}

const bski_op_info bski_op_take_along = {
    .name = "take_along",
    .kernel_op = BSK_OP_TAKE_ALONG,
    BSKI_STRUCTS(take_along),
    BSKI_TABLE(arg, take_along_args),
    .check = take_along_check,
};
BSKI_DEFINE_OP(take_along, take_along)

static const bski_arg take_along_grad_args[] = {
    {RANKED(take_along_grad, dy, 3), .dtypes = FLOATS},
    {RANKED(take_along_grad, index, 3), .dtypes = INDICES},
    {RANKED(take_along_grad, dx, 3), .role = BSKI_OUT, .dtypes = FLOATS},
};

static const bski_field take_along_grad_scalars[] = {
    BSKI_ALPHA_BETA(take_along_grad),
};

static bsk_status take_along_grad_check(const bski_op_info *op, const void *params,
                                        const bsk_layout_tables *l)
{
    (void)l;
    const bsk_take_along_grad_params *p = params;
    BSKI_TRY(bski_expect_like(op, "index", &p->index, &p->dy, "as dy"));
    BSKI_TRY(bski_expect_dim(op, "dx", &p->dx, 0, p->dy.dims[0], "dims[0] of dy"));
    return bski_expect_dim(op, "dx", &p->dx, 2, p->dy.dims[2], "dims[2] of dy");
}

const bski_op_info bski_op_take_along_grad = {
    .name = "take_along_grad",
    .kernel_op = BSK_OP_TAKE_ALONG_GRAD,
    BSKI_STRUCTS(take_along_grad),
    BSKI_TABLE(arg, take_along_grad_args),
    BSKI_TABLE(scalar, take_along_grad_scalars),
    .check = take_along_grad_check,
};
BSKI_DEFINE_OP(take_along_grad, take_along_grad)

/* The rest of an op that is take_along_grad, by way of `op`_params; `at` is its index. */
#define LOWERED_GRAD(op, at)                                                                       \
    static void op##_lower(const void *params, const void *args, void *kernel_args)                \
    {                                                                                              \
        (void)params;                                                                              \
        const bsk_##op##_args *a = args;                                                           \
        bsk_take_along_grad_args *k = kernel_args;                                                 \
        k->alpha = a->alpha;                                                                       \
        k->beta = a->beta;                                                                         \
        k->workspace = a->workspace;                                                               \
        k->dy = a->dy;                                                                             \
        k->index = a->at;                                                                          \
        k->dx = a->dx;                                                                             \
    }                                                                                              \
    static const bski_field op##_scalars[] = {BSKI_ALPHA_BETA(op)};                                \
    const bski_op_info bski_op_##op = {                                                            \
        .name = #op,                                                                               \
        .kernel_op = BSK_OP_TAKE_ALONG_GRAD,                                                       \
        BSKI_STRUCTS(op),                                                                          \
        BSKI_TABLE(arg, op##_args),                                                                \
        BSKI_TABLE(scalar, op##_scalars),                                                          \
        .check = op##_check,                                                                       \
        .lower_params = op##_params,                                                               \
        .lower_args = op##_lower,                                                                  \
    };

/* A matrix [A, C] as [A, 1, C]. */
static bsk_tensor with_middle(const bsk_tensor *t)
{
    return (bsk_tensor){
        t->dtype, 3, {t->dims[0], 1, t->dims[1]}, {t->strides[0], 1, t->strides[1]}};
}

/* A vector of indices as [A, 1, C], shared along C. */
static bsk_tensor shared_index(const bsk_tensor *t, int64_t columns)
{
    return (bsk_tensor){t->dtype, 3, {t->dims[0], 1, columns}, {t->strides[0], 1, 0}};
}

/* A matrix [A, B] as [A, B, 1]. */
static bsk_tensor with_last(const bsk_tensor *t)
{
    return (bsk_tensor){
        t->dtype, 3, {t->dims[0], t->dims[1], 1}, {t->strides[0], t->strides[1], 1}};
}

static void reduce_max_grad_params(const void *params, void *kernel_params)
{
    const bsk_reduce_max_grad_params *p = params;
    bsk_take_along_grad_params *k = kernel_params;
    k->dy = with_middle(&p->dy);
    k->index = with_middle(&p->argmax);
    k->dx = p->dx;
}

static const bski_arg reduce_max_grad_args[] = {
    {RANKED(reduce_max_grad, dy, 2), .dtypes = FLOATS},
    {RANKED(reduce_max_grad, argmax, 2), .dtypes = INDICES},
    {RANKED(reduce_max_grad, dx, 3), .role = BSKI_OUT, .dtypes = FLOATS},
};

static bsk_status reduce_max_grad_check(const bski_op_info *op, const void *params,
                                        const bsk_layout_tables *l)
{
    (void)l;
    const bsk_reduce_max_grad_params *p = params;
    BSKI_TRY(expect_reduced(op, "dy", &p->dy, &p->dx, "dims 0 and 2 of dx"));
    return expect_reduced(op, "argmax", &p->argmax, &p->dx, "dims 0 and 2 of dx");
}

LOWERED_GRAD(reduce_max_grad, argmax)
BSKI_DEFINE_OP(reduce_max_grad, reduce_max_grad)

/* --- fancy_gather ------------------------------------------------------------------------- */

static void fancy_gather_params(const void *params, void *kernel_params)
{
    const bsk_fancy_gather_params *p = params;
    bsk_take_along_params *k = kernel_params;
    k->x = p->x;
    k->index = shared_index(&p->index, p->x.dims[2]);
    k->y = with_middle(&p->y);
}

static void fancy_gather_lower(const void *params, const void *args, void *kernel_args)
{
    (void)params;
    const bsk_fancy_gather_args *a = args;
    bsk_take_along_args *k = kernel_args;
    k->workspace = a->workspace;
    k->x = a->x;
    k->index = a->index;
    k->y = a->y;
}

static const bski_arg fancy_gather_args[] = {
    {RANKED(fancy_gather, x, 3), .dtypes = TAKEN},
    {RANKED(fancy_gather, index, 1), .dtypes = INDICES},
    {RANKED(fancy_gather, y, 2), .role = BSKI_OUT, .dtypes = TAKEN},
};

static bsk_status fancy_gather_check(const bski_op_info *op, const void *params,
                                     const bsk_layout_tables *l)
{
    (void)l;
    const bsk_fancy_gather_params *p = params;
    BSKI_TRY(expect_taken_type(op, &p->y, &p->x));
    BSKI_TRY(bski_expect_vector(op, "index", &p->index, p->x.dims[0], "dims[0] of x"));
    return expect_reduced(op, "y", &p->y, &p->x, "dims 0 and 2 of x");
}

const bski_op_info bski_op_fancy_gather = {
    .name = "fancy_gather",
    .kernel_op = BSK_OP_TAKE_ALONG,
    BSKI_STRUCTS(fancy_gather),
    BSKI_TABLE(arg, fancy_gather_args),
    .check = fancy_gather_check,
    .lower_params = fancy_gather_params,
    .lower_args = fancy_gather_lower,
};
BSKI_DEFINE_OP(fancy_gather, fancy_gather)

static void fancy_gather_grad_params(const void *params, void *kernel_params)
{
    const bsk_fancy_gather_grad_params *p = params;
    bsk_take_along_grad_params *k = kernel_params;
    k->dy = with_middle(&p->dy);
    k->index = shared_index(&p->index, p->dy.dims[1]);
    k->dx = p->dx;
}

static const bski_arg fancy_gather_grad_args[] = {
    {RANKED(fancy_gather_grad, dy, 2), .dtypes = FLOATS},
    {RANKED(fancy_gather_grad, index, 1), .dtypes = INDICES},
    {RANKED(fancy_gather_grad, dx, 3), .role = BSKI_OUT, .dtypes = FLOATS},
};

static bsk_status fancy_gather_grad_check(const bski_op_info *op, const void *params,
                                          const bsk_layout_tables *l)
{
    (void)l;
    const bsk_fancy_gather_grad_params *p = params;
    BSKI_TRY(bski_expect_vector(op, "index", &p->index, p->dy.dims[0], "dims[0] of dy"));
    return expect_reduced(op, "dy", &p->dy, &p->dx, "dims 0 and 2 of dx");
}

LOWERED_GRAD(fancy_gather_grad, index)
BSKI_DEFINE_OP(fancy_gather_grad, fancy_gather_grad)

/* --- topk --------------------------------------------------------------------------------- */

static const bski_arg topk_args[] = {
    {MATRIX(topk, x), .dtypes = FLOATS},
    {MATRIX(topk, values), .role = BSKI_OUT, .dtypes = FLOATS},
    {MATRIX(topk, index), .role = BSKI_OUT, .optional = 1, .dtypes = INDICES},
};

static bsk_status topk_check(const bski_op_info *op, const void *params, const bsk_layout_tables *l)
{
    (void)l;
    const bsk_topk_params *p = params;
    BSKI_TRY(bski_expect_dim(op, "values", &p->values, 0, p->x.dims[0], "rows of x"));
    if (p->values.dims[1] > p->x.dims[1])
        return bski_fail(BSK_E_INVALID, "%s: values.dims[1] is %lld; legal are 0 to %lld", op->name,
                         (long long)p->values.dims[1], (long long)p->x.dims[1]);
    BSKI_TRY(expect_index_type(op, "index", &p->index, p->x.dims[1]));
    return bski_expect_like(op, "index", &p->index, &p->values, "as values");
}

const bski_op_info bski_op_topk = {
    .name = "topk",
    .kernel_op = BSK_OP_TOPK,
    BSKI_STRUCTS(topk),
    BSKI_TABLE(arg, topk_args),
    .check = topk_check,
};
BSKI_DEFINE_OP(topk, topk)

static void topk_grad_params(const void *params, void *kernel_params)
{
    const bsk_topk_grad_params *p = params;
    bsk_take_along_grad_params *k = kernel_params;
    k->dy = with_last(&p->dy);
    k->index = with_last(&p->index);
    k->dx = with_last(&p->dx);
}

static const bski_arg topk_grad_args[] = {
    {MATRIX(topk_grad, dy), .dtypes = FLOATS},
    {MATRIX(topk_grad, index), .dtypes = INDICES},
    {MATRIX(topk_grad, dx), .role = BSKI_OUT, .dtypes = FLOATS},
};

static bsk_status topk_grad_check(const bski_op_info *op, const void *params,
                                  const bsk_layout_tables *l)
{
    (void)l;
    const bsk_topk_grad_params *p = params;
    BSKI_TRY(bski_expect_like(op, "index", &p->index, &p->dy, "as dy"));
    return bski_expect_dim(op, "dx", &p->dx, 0, p->dy.dims[0], "rows of dy");
}

LOWERED_GRAD(topk_grad, index)
BSKI_DEFINE_OP(topk_grad, topk_grad)

/* --- rectified_topk ----------------------------------------------------------------------- */

static const bski_arg rectified_topk_args[] = {
    {MATRIX(rectified_topk, x), .dtypes = FLOATS},
    {MATRIX(rectified_topk, y), .role = BSKI_OUT, .alias = 1 << 0, .dtypes = FLOATS},
};

static const bski_field rectified_topk_attrs[] = {
    BSKI_ATTR(rectified_topk, k, I64, 1, INFINITY),
    BSKI_ATTR(rectified_topk, rebase, I32, 0, 1),
};

static bsk_status rectified_topk_check(const bski_op_info *op, const void *params,
                                       const bsk_layout_tables *l)
{
    (void)l;
    const bsk_rectified_topk_params *p = params;
    if (p->k > p->x.dims[1])
        return bski_fail(BSK_E_INVALID, "%s: k is %lld; legal are 1 to %lld", op->name,
                         (long long)p->k, (long long)p->x.dims[1]);
    return bski_expect_like(op, "y", &p->y, &p->x, "as x");
}

const bski_op_info bski_op_rectified_topk = {
    .name = "rectified_topk",
    .kernel_op = BSK_OP_RECTIFIED_TOPK,
    BSKI_STRUCTS(rectified_topk),
    BSKI_TABLE(arg, rectified_topk_args),
    BSKI_TABLE(attr, rectified_topk_attrs),
    .check = rectified_topk_check,
};
BSKI_DEFINE_OP(rectified_topk, rectified_topk)

static const bski_arg rectified_topk_grad_args[] = {
    {MATRIX(rectified_topk_grad, dy), .dtypes = FLOATS},
    {MATRIX(rectified_topk_grad, x), .dtypes = FLOATS},
    {MATRIX(rectified_topk_grad, dx), .role = BSKI_OUT, .alias = 1 << 0, .dtypes = FLOATS},
};

static const bski_field rectified_topk_grad_attrs[] = {
    BSKI_ATTR(rectified_topk_grad, k, I64, 1, INFINITY),
    BSKI_ATTR(rectified_topk_grad, rebase, I32, 0, 1),
    BSKI_ATTR(rectified_topk_grad, constant_cut, I32, 0, 1),
};

static const bski_field rectified_topk_grad_scalars[] = {
    BSKI_ALPHA_BETA(rectified_topk_grad),
};

static bsk_status rectified_topk_grad_check(const bski_op_info *op, const void *params,
                                            const bsk_layout_tables *l)
{
    (void)l;
    const bsk_rectified_topk_grad_params *p = params;
    if (p->k > p->x.dims[1])
        return bski_fail(BSK_E_INVALID, "%s: k is %lld; legal are 1 to %lld", op->name,
                         (long long)p->k, (long long)p->x.dims[1]);

    BSKI_TRY(bski_expect_like(op, "x", &p->x, &p->dy, "as dy"));
    return bski_expect_like(op, "dx", &p->dx, &p->dy, "as dy");
}

const bski_op_info bski_op_rectified_topk_grad = {
    .name = "rectified_topk_grad",
    .kernel_op = BSK_OP_RECTIFIED_TOPK_GRAD,
    BSKI_STRUCTS(rectified_topk_grad),
    BSKI_TABLE(arg, rectified_topk_grad_args),
    BSKI_TABLE(attr, rectified_topk_grad_attrs),
    BSKI_TABLE(scalar, rectified_topk_grad_scalars),
    .check = rectified_topk_grad_check,
};
BSKI_DEFINE_OP(rectified_topk_grad, rectified_topk_grad)
