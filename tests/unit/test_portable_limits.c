/* What the portable kernels of GPUs accept, by sizes that no test can run. */
#include "api/src/internal.h"
#include "unit.h"

bsk_reason simt_attn_scores_accept(const bsk_problem *problem, const bsk_device_props *props);

static const bsk_device_props gpu = {
    .struct_size = sizeof gpu,
    .dtypes = BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_F16) | BSK_DTYPE_BIT(BSK_BF16),
    .compute_units = 132,
    .local_bytes = 48 << 10,
    .max_group = 1024,
};

/* Scores of heads that have a layout of their own each: blocks of 8 on a diagonal. */
static bsk_reason scores_accept(bsk_context *context, int32_t heads, int64_t time, int64_t batch)
{
    enum { BLOCK = 8, WIDTH = 16, MOST = 8192 };
    bsk_layout *one = NULL, *layout = NULL;
    bsk_plan *plan = NULL;
    int32_t at[MOST / BLOCK];
    const int32_t blocks = (int32_t)(time / BLOCK);
    for (int32_t i = 0; i < blocks; i++)
        at[i] = i;
    bsk_layout_params size = BSK_INIT(bsk_layout_params);
    size.rows = size.cols = time;
    size.block_rows = size.block_cols = BLOCK;
    CHECK_OK(bsk_layout_from_coo(NULL, &size, blocks, NULL, at, at, &one));
    CHECK_OK(bsk_layout_broadcast(one, heads, &layout));
    bsk_attn_scores_params p = BSK_INIT(bsk_attn_scores_params);
    p.layout = layout;
    p.q = p.k = bsk_tensor_heads(BSK_F32, batch, heads, time, WIDTH);
    p.s = (bsk_tensor){BSK_F32, 5, {batch, 1, heads * time / BLOCK, BLOCK, BLOCK}, {0}};
    bsk_reason reason = BSK_REFUSE_OPTION;
    if (CHECK_OK(bsk_attn_scores_plan(bsk_context_device(context, 0), &p, NULL, &plan)))
        reason = simt_attn_scores_accept(&plan->problem, &gpu);
    bsk_plan_destroy(&plan);
    bsk_layout_release(&layout);
    bsk_layout_release(&one);
    return reason;
}

int main(void)
{
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    CHECK_OK(bsk_context_create(&params, &context));
    /* 16 heads of 8,192 times are 16,384 groups for each member of the batch. */
    CHECK(scores_accept(context, 16, 8192, 64) == BSK_ACCEPT);
    CHECK(scores_accept(context, 16, 8192, 1000) == BSK_ACCEPT);
    CHECK(scores_accept(context, 16, 8192, 1100) == BSK_REFUSE_LIMIT);
    bsk_context_destroy(&context);
    return unit_report();
}
