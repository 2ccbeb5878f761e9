/* What the portable kernels of GPUs, and of CPUs behind OpenCL, accept, by sizes that no test can
 * run. */
#include "api/src/internal.h"
#include "unit.h"

typedef bsk_reason (*accepts)(const bsk_problem *problem, const bsk_device_props *props);

#define ACCEPT_OF(op)                                                                              \
    bsk_reason simt_##op##_accept(const bsk_problem *problem, const bsk_device_props *props);

ACCEPT_OF(attn_scores)
ACCEPT_OF(attention)
ACCEPT_OF(attention_grad)
ACCEPT_OF(dsd)
ACCEPT_OF(sdd)

static const bsk_device_props gpu = {
    .struct_size = sizeof gpu,
    .dtypes = BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_F16) | BSK_DTYPE_BIT(BSK_BF16),
    .compute_units = 132,
    .local_bytes = 48 << 10,
    .max_group = 1024,
};

/* A CPU behind OpenCL. */
static const bsk_device_props wide = {
    .struct_size = sizeof wide,
    .dtypes = BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_F16) | BSK_DTYPE_BIT(BSK_BF16),
    .compute_units = 2,
    .local_bytes = 512 << 10,
    .max_group = 4096,
    .wave = 1,
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

/* --- ops whose tiles differ between the two --- */

enum { BLOCKS = 16, HEAD = 8 }; /* blocks on a diagonal; features of a head */

static bsk_status plan_dsd_of(const bsk_device *device, const bsk_layout *layout, int32_t block,
                              int64_t batch, int64_t cols, bsk_plan **plan)
{
    bsk_dsd_params p = BSK_INIT(bsk_dsd_params);
    p.layout = layout;
    p.s = bsk_tensor_3d(BSK_F32, BLOCKS, block, block);
    p.b = p.c = bsk_tensor_3d(BSK_F32, batch, (int64_t)BLOCKS * block, cols);
    return bsk_dsd_plan(device, &p, NULL, plan);
}

static bsk_status plan_dsd(const bsk_device *device, const bsk_layout *layout, int32_t block,
                           int64_t batch, bsk_plan **plan)
{
    return plan_dsd_of(device, layout, block, batch, 128, plan);
}

/* Tiles for few columns have half as many rows, of which too many make the others do. */
static bsk_status plan_dsd_few(const bsk_device *device, const bsk_layout *layout, int32_t block,
                               int64_t batch, bsk_plan **plan)
{
    return plan_dsd_of(device, layout, block, batch, 16, plan);
}

static bsk_status plan_sdd_of(const bsk_device *device, const bsk_layout *layout, int32_t block,
                              int64_t batch, int64_t samples, bsk_plan **plan)
{
    bsk_sdd_params p = BSK_INIT(bsk_sdd_params);
    p.layout = layout;
    p.a = bsk_tensor_3d(BSK_F32, batch, (int64_t)BLOCKS * block, samples);
    p.b = bsk_tensor_3d(BSK_F32, batch, samples, (int64_t)BLOCKS * block);
    p.s = (bsk_tensor){BSK_F32, 4, {batch, BLOCKS, block, block}, {0}};
    return bsk_sdd_plan(device, &p, NULL, plan);
}

static bsk_status plan_sdd(const bsk_device *device, const bsk_layout *layout, int32_t block,
                           int64_t batch, bsk_plan **plan)
{
    return plan_sdd_of(device, layout, block, batch, 72, plan);
}

/* Of few samples a group of lanes has two blocks. */
static bsk_status plan_sdd_few(const bsk_device *device, const bsk_layout *layout, int32_t block,
                               int64_t batch, bsk_plan **plan)
{
    return plan_sdd_of(device, layout, block, batch, 8, plan);
}

static bsk_status plan_attention(const bsk_device *device, const bsk_layout *layout, int32_t block,
                                 int64_t batch, bsk_plan **plan)
{
    bsk_attention_params p = BSK_INIT(bsk_attention_params);
    p.layout = layout;
    p.q = p.k = p.v = p.o = bsk_tensor_heads(BSK_F32, batch, 1, (int64_t)BLOCKS * block, HEAD);
    return bsk_attention_plan(device, &p, NULL, plan);
}

static bsk_status plan_attention_grad(const bsk_device *device, const bsk_layout *layout,
                                      int32_t block, int64_t batch, bsk_plan **plan)
{
    bsk_attention_grad_params p = BSK_INIT(bsk_attention_grad_params);
    p.layout = layout;
    p.q = p.k = p.v = p.o = bsk_tensor_heads(BSK_F32, batch, 1, (int64_t)BLOCKS * block, HEAD);
    p.dout = p.dq = p.dk = p.dv = p.q;
    p.lse = bsk_tensor_3d(BSK_F32, batch, 1, (int64_t)BLOCKS * block);
    return bsk_attention_grad_plan(device, &p, NULL, plan);
}

/* The largest batches, or nearly, on either. */
typedef struct limit {
    bsk_status (*plan)(const bsk_device *device, const bsk_layout *layout, int32_t block,
                       int64_t batch, bsk_plan **plan);
    accepts accept;
    int32_t block;
    int64_t gpu_fits, wide_fits; /* half as many again are refused */
} limit;

static const limit limits[] = {
    {plan_dsd, simt_dsd_accept, 64, 2000000, 250000},
    {plan_dsd_few, simt_dsd_accept, 64, 2000000, 1000000},
    {plan_sdd, simt_sdd_accept, 64, 2000000, 300000},
    {plan_sdd_few, simt_sdd_accept, 64, 4000000, 500000},
    {plan_attention, simt_attention_accept, 32, 1000000, 250000},
    {plan_attention_grad, simt_attention_grad_accept, 32, 500000, 250000},
};

static bsk_reason limit_reason(bsk_context *context, const limit *l, int64_t batch,
                               const bsk_device_props *props)
{
    static const int32_t at[BLOCKS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    bsk_layout_params size = BSK_INIT(bsk_layout_params);
    bsk_layout *layout = NULL;
    bsk_plan *plan = NULL;
    bsk_reason reason = BSK_REFUSE_OPTION;
    size.rows = size.cols = (int64_t)BLOCKS * l->block;
    size.block_rows = size.block_cols = l->block;
    CHECK_OK(bsk_layout_from_coo(NULL, &size, BLOCKS, NULL, at, at, &layout));
    if (CHECK_OK(l->plan(bsk_context_device(context, 0), layout, l->block, batch, &plan)))
        reason = l->accept(&plan->problem, props);
    bsk_plan_destroy(&plan);
    bsk_layout_release(&layout);
    return reason;
}

static void test_limits(bsk_context *context)
{
    for (size_t i = 0; i < UNIT_COUNT(limits); i++)
        for (int w = 0; w < 2; w++) {
            const limit *l = &limits[i];
            const bsk_device_props *props = w ? &wide : &gpu;
            const int64_t fits = w ? l->wide_fits : l->gpu_fits;
            CHECK(limit_reason(context, l, fits, props) == BSK_ACCEPT);
            CHECK(limit_reason(context, l, fits * 3 / 2, props) == BSK_REFUSE_LIMIT);
        }
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
    test_limits(context);
    bsk_context_destroy(&context);
    return unit_report();
}
