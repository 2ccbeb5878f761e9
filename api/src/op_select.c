/* Descriptors of the ops that choose elements. */
#include <math.h>

#include "api/src/internal.h"
#include "common/dtype.h"

#define FLOATS  BSKI_FLOATS
#define INDICES BSKI_INDICES

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
    {BSKI_ARG(reduce_max, x), .rank_min = 3, .rank_max = 3, .dtypes = FLOATS},
    {BSKI_ARG(reduce_max, y), .role = BSKI_OUT, .rank_min = 2, .rank_max = 2, .dtypes = FLOATS},
    {BSKI_ARG(reduce_max, argmax), .role = BSKI_OUT, .optional = 1, .rank_min = 2, .rank_max = 2,
     .dtypes = INDICES},
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
    .layout = -1,
    .pairs = -1,
    .args = reduce_max_args,
    .arg_count = BSKI_COUNT(reduce_max_args),
    .check = reduce_max_check,
};
BSKI_DEFINE_OP(reduce_max, reduce_max)

/* --- take_along --------------------------------------------------------------------------- */

static const bski_arg take_along_args[] = {
    {BSKI_ARG(take_along, x), .rank_min = 3, .rank_max = 3, .dtypes = FLOATS},
    {BSKI_ARG(take_along, index), .rank_min = 3, .rank_max = 3, .dtypes = INDICES},
    {BSKI_ARG(take_along, y), .role = BSKI_OUT, .rank_min = 3, .rank_max = 3, .dtypes = FLOATS},
};

static bsk_status take_along_check(const bski_op_info *op, const void *params,
                                   const bsk_layout_tables *l)
{
    (void)l;
    const bsk_take_along_params *p = params;
    BSKI_TRY(bski_expect_dim(op, "index", &p->index, 0, p->x.dims[0], "dims[0] of x"));
    BSKI_TRY(bski_expect_dim(op, "index", &p->index, 2, p->x.dims[2], "dims[2] of x"));
    return bski_expect_like(op, "y", &p->y, &p->index, "as index");
}

const bski_op_info bski_op_take_along = {
    .name = "take_along",
    .kernel_op = BSK_OP_TAKE_ALONG,
    BSKI_STRUCTS(take_along),
    .layout = -1,
    .pairs = -1,
    .args = take_along_args,
    .arg_count = BSKI_COUNT(take_along_args),
    .check = take_along_check,
};
BSKI_DEFINE_OP(take_along, take_along)

static const bski_arg take_along_grad_args[] = {
    {BSKI_ARG(take_along_grad, dy), .rank_min = 3, .rank_max = 3, .dtypes = FLOATS},
    {BSKI_ARG(take_along_grad, index), .rank_min = 3, .rank_max = 3, .dtypes = INDICES},
    {BSKI_ARG(take_along_grad, dx), .role = BSKI_OUT, .rank_min = 3, .rank_max = 3,
     .dtypes = FLOATS},
};

static const bski_field take_along_grad_scalars[] = {
    BSKI_SCALAR(take_along_grad, alpha, F64, -INFINITY, INFINITY),
    BSKI_SCALAR(take_along_grad, beta, F64, -INFINITY, INFINITY),
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
    .layout = -1,
    .pairs = -1,
    .args = take_along_grad_args,
    .arg_count = BSKI_COUNT(take_along_grad_args),
    .scalars = take_along_grad_scalars,
    .scalar_count = BSKI_COUNT(take_along_grad_scalars),
    .check = take_along_grad_check,
};
BSKI_DEFINE_OP(take_along_grad, take_along_grad)

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

static void reduce_max_grad_lower(const void *params, const void *args, void *kernel_args)
{
    (void)params;
    const bsk_reduce_max_grad_args *a = args;
    bsk_take_along_grad_args *k = kernel_args;
    k->alpha = a->alpha;
    k->beta = a->beta;
    k->workspace = a->workspace;
    k->dy = a->dy;
    k->index = a->argmax;
    k->dx = a->dx;
}

static const bski_arg reduce_max_grad_args[] = {
    {BSKI_ARG(reduce_max_grad, dy), .rank_min = 2, .rank_max = 2, .dtypes = FLOATS},
    {BSKI_ARG(reduce_max_grad, argmax), .rank_min = 2, .rank_max = 2, .dtypes = INDICES},
    {BSKI_ARG(reduce_max_grad, dx), .role = BSKI_OUT, .rank_min = 3, .rank_max = 3,
     .dtypes = FLOATS},
};

static const bski_field reduce_max_grad_scalars[] = {
    BSKI_SCALAR(reduce_max_grad, alpha, F64, -INFINITY, INFINITY),
    BSKI_SCALAR(reduce_max_grad, beta, F64, -INFINITY, INFINITY),
};

static bsk_status reduce_max_grad_check(const bski_op_info *op, const void *params,
                                        const bsk_layout_tables *l)
{
    (void)l;
    const bsk_reduce_max_grad_params *p = params;
    BSKI_TRY(expect_reduced(op, "dy", &p->dy, &p->dx, "dims 0 and 2 of dx"));
    return expect_reduced(op, "argmax", &p->argmax, &p->dx, "dims 0 and 2 of dx");
}

const bski_op_info bski_op_reduce_max_grad = {
    .name = "reduce_max_grad",
    .kernel_op = BSK_OP_TAKE_ALONG_GRAD,
    BSKI_STRUCTS(reduce_max_grad),
    .layout = -1,
    .pairs = -1,
    .args = reduce_max_grad_args,
    .arg_count = BSKI_COUNT(reduce_max_grad_args),
    .scalars = reduce_max_grad_scalars,
    .scalar_count = BSKI_COUNT(reduce_max_grad_scalars),
    .check = reduce_max_grad_check,
    .lower_params = reduce_max_grad_params,
    .lower_args = reduce_max_grad_lower,
};
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
    {BSKI_ARG(fancy_gather, x), .rank_min = 3, .rank_max = 3, .dtypes = FLOATS},
    {BSKI_ARG(fancy_gather, index), .rank_min = 1, .rank_max = 1, .dtypes = INDICES},
    {BSKI_ARG(fancy_gather, y), .role = BSKI_OUT, .rank_min = 2, .rank_max = 2, .dtypes = FLOATS},
};

static bsk_status fancy_gather_check(const bski_op_info *op, const void *params,
                                     const bsk_layout_tables *l)
{
    (void)l;
    const bsk_fancy_gather_params *p = params;
    BSKI_TRY(bski_expect_vector(op, "index", &p->index, p->x.dims[0], "dims[0] of x"));
    return expect_reduced(op, "y", &p->y, &p->x, "dims 0 and 2 of x");
}

const bski_op_info bski_op_fancy_gather = {
    .name = "fancy_gather",
    .kernel_op = BSK_OP_TAKE_ALONG,
    BSKI_STRUCTS(fancy_gather),
    .layout = -1,
    .pairs = -1,
    .args = fancy_gather_args,
    .arg_count = BSKI_COUNT(fancy_gather_args),
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

static void fancy_gather_grad_lower(const void *params, const void *args, void *kernel_args)
{
    (void)params;
    const bsk_fancy_gather_grad_args *a = args;
    bsk_take_along_grad_args *k = kernel_args;
    k->alpha = a->alpha;
    k->beta = a->beta;
    k->workspace = a->workspace;
    k->dy = a->dy;
    k->index = a->index;
    k->dx = a->dx;
}

static const bski_arg fancy_gather_grad_args[] = {
    {BSKI_ARG(fancy_gather_grad, dy), .rank_min = 2, .rank_max = 2, .dtypes = FLOATS},
    {BSKI_ARG(fancy_gather_grad, index), .rank_min = 1, .rank_max = 1, .dtypes = INDICES},
    {BSKI_ARG(fancy_gather_grad, dx), .role = BSKI_OUT, .rank_min = 3, .rank_max = 3,
     .dtypes = FLOATS},
};

static const bski_field fancy_gather_grad_scalars[] = {
    BSKI_SCALAR(fancy_gather_grad, alpha, F64, -INFINITY, INFINITY),
    BSKI_SCALAR(fancy_gather_grad, beta, F64, -INFINITY, INFINITY),
};

static bsk_status fancy_gather_grad_check(const bski_op_info *op, const void *params,
                                          const bsk_layout_tables *l)
{
    (void)l;
    const bsk_fancy_gather_grad_params *p = params;
    BSKI_TRY(bski_expect_vector(op, "index", &p->index, p->dy.dims[0], "dims[0] of dy"));
    return expect_reduced(op, "dy", &p->dy, &p->dx, "dims 0 and 2 of dx");
}

const bski_op_info bski_op_fancy_gather_grad = {
    .name = "fancy_gather_grad",
    .kernel_op = BSK_OP_TAKE_ALONG_GRAD,
    BSKI_STRUCTS(fancy_gather_grad),
    .layout = -1,
    .pairs = -1,
    .args = fancy_gather_grad_args,
    .arg_count = BSKI_COUNT(fancy_gather_grad_args),
    .scalars = fancy_gather_grad_scalars,
    .scalar_count = BSKI_COUNT(fancy_gather_grad_scalars),
    .check = fancy_gather_grad_check,
    .lower_params = fancy_gather_grad_params,
    .lower_args = fancy_gather_grad_lower,
};
BSKI_DEFINE_OP(fancy_gather_grad, fancy_gather_grad)

/* --- topk --------------------------------------------------------------------------------- */

static const bski_arg topk_args[] = {
    {BSKI_ARG(topk, x), .rank_min = 2, .rank_max = 2, .strides = BSKI_UNIT_LAST, .dtypes = FLOATS},
    {BSKI_ARG(topk, values), .role = BSKI_OUT, .rank_min = 2, .rank_max = 2,
     .strides = BSKI_UNIT_LAST, .dtypes = FLOATS},
    {BSKI_ARG(topk, index), .role = BSKI_OUT, .optional = 1, .rank_min = 2, .rank_max = 2,
     .strides = BSKI_UNIT_LAST, .dtypes = INDICES},
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
    .layout = -1,
    .pairs = -1,
    .args = topk_args,
    .arg_count = BSKI_COUNT(topk_args),
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

static void topk_grad_lower(const void *params, const void *args, void *kernel_args)
{
    (void)params;
    const bsk_topk_grad_args *a = args;
    bsk_take_along_grad_args *k = kernel_args;
    k->alpha = a->alpha;
    k->beta = a->beta;
    k->workspace = a->workspace;
    k->dy = a->dy;
    k->index = a->index;
    k->dx = a->dx;
}

static const bski_arg topk_grad_args[] = {
    {BSKI_ARG(topk_grad, dy), .rank_min = 2, .rank_max = 2, .strides = BSKI_UNIT_LAST,
     .dtypes = FLOATS},
    {BSKI_ARG(topk_grad, index), .rank_min = 2, .rank_max = 2, .strides = BSKI_UNIT_LAST,
     .dtypes = INDICES},
    {BSKI_ARG(topk_grad, dx), .role = BSKI_OUT, .rank_min = 2, .rank_max = 2,
     .strides = BSKI_UNIT_LAST, .dtypes = FLOATS},
};

static const bski_field topk_grad_scalars[] = {
    BSKI_SCALAR(topk_grad, alpha, F64, -INFINITY, INFINITY),
    BSKI_SCALAR(topk_grad, beta, F64, -INFINITY, INFINITY),
};

static bsk_status topk_grad_check(const bski_op_info *op, const void *params,
                                  const bsk_layout_tables *l)
{
    (void)l;
    const bsk_topk_grad_params *p = params;
    BSKI_TRY(bski_expect_like(op, "index", &p->index, &p->dy, "as dy"));
    return bski_expect_dim(op, "dx", &p->dx, 0, p->dy.dims[0], "rows of dy");
}

const bski_op_info bski_op_topk_grad = {
    .name = "topk_grad",
    .kernel_op = BSK_OP_TAKE_ALONG_GRAD,
    BSKI_STRUCTS(topk_grad),
    .layout = -1,
    .pairs = -1,
    .args = topk_grad_args,
    .arg_count = BSKI_COUNT(topk_grad_args),
    .scalars = topk_grad_scalars,
    .scalar_count = BSKI_COUNT(topk_grad_scalars),
    .check = topk_grad_check,
    .lower_params = topk_grad_params,
    .lower_args = topk_grad_lower,
};
BSKI_DEFINE_OP(topk_grad, topk_grad)

/* --- rectified_topk ----------------------------------------------------------------------- */

static const bski_arg rectified_topk_args[] = {
    {BSKI_ARG(rectified_topk, x), .rank_min = 2, .rank_max = 2, .strides = BSKI_UNIT_LAST,
     .dtypes = FLOATS},
    {BSKI_ARG(rectified_topk, y), .role = BSKI_OUT, .rank_min = 2, .rank_max = 2,
     .strides = BSKI_UNIT_LAST, .alias = 1 << 0, .dtypes = FLOATS},
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
    .layout = -1,
    .pairs = -1,
    .args = rectified_topk_args,
    .arg_count = BSKI_COUNT(rectified_topk_args),
    .attrs = rectified_topk_attrs,
    .attr_count = BSKI_COUNT(rectified_topk_attrs),
    .check = rectified_topk_check,
};
BSKI_DEFINE_OP(rectified_topk, rectified_topk)

static const bski_arg rectified_topk_grad_args[] = {
    {BSKI_ARG(rectified_topk_grad, dy), .rank_min = 2, .rank_max = 2, .strides = BSKI_UNIT_LAST,
     .dtypes = FLOATS},
    {BSKI_ARG(rectified_topk_grad, x), .rank_min = 2, .rank_max = 2, .strides = BSKI_UNIT_LAST,
     .dtypes = FLOATS},
    {BSKI_ARG(rectified_topk_grad, dx), .role = BSKI_OUT, .rank_min = 2, .rank_max = 2,
     .strides = BSKI_UNIT_LAST, .alias = 1 << 0, .dtypes = FLOATS},
};

static const bski_field rectified_topk_grad_attrs[] = {
    BSKI_ATTR(rectified_topk_grad, k, I64, 1, INFINITY),
    BSKI_ATTR(rectified_topk_grad, rebase, I32, 0, 1),
    BSKI_ATTR(rectified_topk_grad, constant_cut, I32, 0, 1),
};

static const bski_field rectified_topk_grad_scalars[] = {
    BSKI_SCALAR(rectified_topk_grad, alpha, F64, -INFINITY, INFINITY),
    BSKI_SCALAR(rectified_topk_grad, beta, F64, -INFINITY, INFINITY),
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
    .layout = -1,
    .pairs = -1,
    .args = rectified_topk_grad_args,
    .arg_count = BSKI_COUNT(rectified_topk_grad_args),
    .attrs = rectified_topk_grad_attrs,
    .attr_count = BSKI_COUNT(rectified_topk_grad_attrs),
    .scalars = rectified_topk_grad_scalars,
    .scalar_count = BSKI_COUNT(rectified_topk_grad_scalars),
    .check = rectified_topk_grad_check,
};
BSKI_DEFINE_OP(rectified_topk_grad, rectified_topk_grad)
