/* Descriptors of the ops that write lists of kept blocks. */
#include <math.h>

#include "api/src/internal.h"
#include "common/dtype.h"

#define I32S (1u << BSK_I32)

#define LIST_ARGS(group)                                                                           \
    {BSKI_ARG(group, index), .role = BSKI_OUT,           .rank_min = 2,                            \
     .rank_max = 4,          .strides = BSKI_CONTIGUOUS, .dtypes = I32S},                          \
    {                                                                                              \
        BSKI_ARG(group, count), .role = BSKI_OUT, .rank_min = 1, .rank_max = 3,                    \
                                .strides = BSKI_CONTIGUOUS, .dtypes = I32S                         \
    }

/* The lists of a tensor [..., rows, columns]. */
static bsk_status expect_lists(const bski_op_info *op, const bsk_tensor *from, const char *name,
                               const bsk_tensor *index, const bsk_tensor *count)
{
    const int32_t rank = from->rank;
    bsk_tensor lists = *from;
    lists.dims[rank - 1] = index->dims[index->rank - 1];
    if (from->dims[rank - 1] > INT32_MAX)
        return bski_fail(BSK_E_INVALID, "%s: %s.dims[%d] is %lld; columns have 32 bits", op->name,
                         name, (int)rank - 1, (long long)from->dims[rank - 1]);
    BSKI_TRY(bski_expect_shape(op, "index", index, rank, lists.dims, "rows and capacity"));
    return bski_expect_shape(op, "count", count, rank - 1, lists.dims, "rows");
}

/* --- layout_topk -------------------------------------------------------------------------- */

static const bski_arg layout_topk_args[] = {
    {BSKI_ARG(layout_topk, scores), .rank_min = 2, .rank_max = 4, .dtypes = BSKI_FLOATS},
    LIST_ARGS(layout_topk),
    {BSKI_ARG(layout_topk, limit), .optional = 1, .rank_min = 1, .rank_max = 3,
     .strides = BSKI_CONTIGUOUS, .dtypes = I32S},
};

static const bski_field layout_topk_attrs[] = {
    BSKI_ATTR(layout_topk, k, I64, 0, INFINITY),
    BSKI_ATTR(layout_topk, first, I64, 0, INFINITY),
    BSKI_ATTR(layout_topk, last, I64, 0, INFINITY),
};

static bsk_status layout_topk_check(const bski_op_info *op, const void *params,
                                    const bsk_layout_tables *l)
{
    const bsk_layout_topk_params *p = params;
    (void)l;
    BSKI_TRY(expect_lists(op, &p->scores, "scores", &p->index, &p->count));
    const int64_t capacity = p->index.dims[p->index.rank - 1], k = p->k > 0 ? p->k : capacity;
    if (k < 1 || k > capacity)
        return bski_fail(BSK_E_INVALID, "%s: k is %lld; legal are 1 to the capacity of index, %lld",
                         op->name, (long long)k, (long long)capacity);
    if (p->first > k || p->last > k - p->first)
        return bski_fail(BSK_E_INVALID, "%s: first is %lld and last %lld; k, %lld, has no room",
                         op->name, (long long)p->first, (long long)p->last, (long long)k);
    if (p->limit.dtype == BSK_NONE)
        return BSK_OK;
    return bski_expect_shape(op, "limit", &p->limit, p->count.rank, p->count.dims, "rows");
}

const bski_op_info bski_op_layout_topk = {
    .name = "layout_topk",
    .kernel_op = BSK_OP_LAYOUT_TOPK,
    BSKI_STRUCTS(layout_topk),
    BSKI_TABLE(arg, layout_topk_args),
    BSKI_TABLE(attr, layout_topk_attrs),
    .check = layout_topk_check,
};
BSKI_DEFINE_OP(layout_topk, layout_topk)

/* --- layout_mask -------------------------------------------------------------------------- */

static const bski_arg layout_mask_args[] = {
    {BSKI_ARG(layout_mask, mask), .rank_min = 2, .rank_max = 4, .dtypes = 1u << BSK_U8},
    LIST_ARGS(layout_mask),
};

static bsk_status layout_mask_check(const bski_op_info *op, const void *params,
                                    const bsk_layout_tables *l)
{
    const bsk_layout_mask_params *p = params;
    (void)l;
    return expect_lists(op, &p->mask, "mask", &p->index, &p->count);
}

const bski_op_info bski_op_layout_mask = {
    .name = "layout_mask",
    .kernel_op = BSK_OP_LAYOUT_MASK,
    BSKI_STRUCTS(layout_mask),
    BSKI_TABLE(arg, layout_mask_args),
    .check = layout_mask_check,
};
BSKI_DEFINE_OP(layout_mask, layout_mask)
