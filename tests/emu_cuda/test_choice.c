/* What plans of tuned products choose, seen from outside on an emulated device; nothing runs. */
#include <string.h>

#include <tests/unit/unit.h>

typedef struct product {
    int32_t block;
    int64_t n, k, m;
    bsk_dtype dtype; /* of both operands; none: bf16 */
} product;

static bsk_plan_info plan_info(bsk_context *context, const bsk_device *device, const product *of,
                               const bsk_plan_options *options)
{
    bsk_layout_params grid = BSK_INIT(bsk_layout_params);
    bsk_layout_info kept = BSK_INIT(bsk_layout_info);
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    bsk_matmul_params p = BSK_INIT(bsk_matmul_params);
    bsk_layout *layout = NULL;
    bsk_plan *plan = NULL;
    grid.rows = of->k;
    grid.cols = of->m;
    grid.block_rows = grid.block_cols = of->block;
    CHECK_OK(bsk_layout_random(context, &grid, 0.25, 7, &layout));
    CHECK_OK(bsk_layout_query(layout, &kept));
    p.layout = layout;
    const bsk_dtype dtype = of->dtype ? of->dtype : BSK_BF16;
    p.x = bsk_tensor_2d(dtype, of->n, of->k);
    p.y = bsk_tensor_2d(dtype == BSK_F32 ? BSK_F32 : BSK_BF16, of->n, of->m);
    p.w = bsk_tensor_3d(dtype, kept.nnz, of->block, of->block);
    CHECK_OK(bsk_matmul_plan(device, &p, options, &plan));
    CHECK_OK(bsk_plan_query(plan, &info));
    bsk_plan_destroy(&plan);
    bsk_layout_release(&layout);
    return info;
}

/* Where tiles are fewer than thread blocks, these share the depth: beside the image of the weights
 * the workspace has their sums. */
static void test_parts(bsk_context *context, const bsk_device *device)
{
    static const product few[] = {{8, 72, 16384, 64}, {16, 72, 16384, 64}, {32, 72, 16384, 64}};
    static const product many[] = {{8, 4096, 256, 512}, {16, 4096, 256, 512}, {32, 4096, 256, 512}};
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    options.kernels = "+dsd_sm90a_mma";
    for (size_t i = 0; i < UNIT_COUNT(few); i++) {
        const bsk_plan_info parts = plan_info(context, device, &few[i], &options);
        const bsk_plan_info whole = plan_info(context, device, &many[i], &options);
        CHECK(parts.packed_bytes && parts.workspace_bytes > parts.packed_bytes);
        CHECK(whole.packed_bytes && whole.workspace_bytes == whole.packed_bytes);
    }
}

/* Up to 64 samples have tiles whose parts of the depth are a cluster: they leave nothing in the
 * workspace. */
static void test_clusters(bsk_context *context, const bsk_device *device)
{
    static const product rows[] = {
        {8, 64, 16384, 64}, {16, 33, 16384, 64}, {32, 32, 16384, 64}, {8, 1, 16384, 64}};
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    options.kernels = "+dsd_sm90a_mma";
    for (size_t i = 0; i < UNIT_COUNT(rows); i++) {
        const bsk_plan_info info = plan_info(context, device, &rows[i], &options);
        CHECK(info.packed_bytes && info.workspace_bytes == info.packed_bytes);
    }
}

/* Few samples do not pay for packing the weights; where these come packed, they need not. */
static void test_packed(bsk_context *context, const bsk_device *device)
{
    static const product of = {8, 24, 1536, 16};
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    CHECK(plan_info(context, device, &of, &options).packed_bytes == 0);
    options.packed = 1;
    CHECK(plan_info(context, device, &of, &options).packed_bytes != 0);
}

/* Who has one sample, and some more. */
static void test_one(bsk_context *context, const bsk_device *device)
{
    static const struct {
        product of;
        const char *entry;
    } rows[] = {
        {{8, 1, 1024, 1024, BSK_BF16}, "dsd_sm90a_stream"},
        {{8, 8, 1024, 1024, BSK_BF16}, "dsd_sm90a_stream"},
        {{32, 1, 1024, 1024, BSK_F32}, "dsd_sm90a_stream_f32"},
        {{32, 1, 1024, 1024, BSK_F8E4M3}, "dsd_sm90a_stream_f8"},
        {{32, 5, 1024, 1024, BSK_F8E4M3}, "dsd_sm90a_ring_f8"},
    };
    const bsk_plan_options options = BSK_INIT(bsk_plan_options);
    for (size_t i = 0; i < UNIT_COUNT(rows); i++)
        CHECK(!strcmp(plan_info(context, device, &rows[i].of, &options).entry, rows[i].entry));
}

/* Gradients of few samples in tf32 are left to the portable kernels, which this device has not: they are
 * staged. */
static void test_few(bsk_context *context, const bsk_device *device)
{
    static const struct {
        int64_t n;
        int32_t pairs;
        int32_t left;
    } cases[] = {{8, 1, 1}, {4, 2, 1}, {9, 1, 0}, {8, 2, 0}, {4096, 1, 0}};
    bsk_layout_params grid = BSK_INIT(bsk_layout_params);
    bsk_layout_info kept = BSK_INIT(bsk_layout_info);
    bsk_layout *layout = NULL;
    grid.rows = grid.cols = 256;
    grid.block_rows = grid.block_cols = 16;
    CHECK_OK(bsk_layout_random(context, &grid, 0.25, 7, &layout));
    CHECK_OK(bsk_layout_query(layout, &kept));
    for (size_t i = 0; i < UNIT_COUNT(cases); i++) {
        bsk_matmul_wgrad_params p = BSK_INIT(bsk_matmul_wgrad_params);
        bsk_plan_info info = BSK_INIT(bsk_plan_info);
        bsk_plan *plan = NULL;
        p.layout = layout;
        p.pairs = cases[i].pairs;
        p.precision = BSK_PRECISION_TF32;
        p.x = p.dy = bsk_tensor_2d(BSK_F32, cases[i].n, 256);
        p.dw = bsk_tensor_3d(BSK_F32, kept.nnz, 16, 16);
        CHECK_OK(bsk_matmul_wgrad_plan(device, &p, NULL, &plan));
        CHECK_OK(bsk_plan_query(plan, &info));
        CHECK((info.staged != 0) == cases[i].left);
        bsk_plan_destroy(&plan);
    }
    bsk_layout_release(&layout);
}

int main(void)
{
    bsk_context_params params = BSK_INIT(bsk_context_params);
    bsk_context *context = NULL;
    const bsk_device *device = NULL;
    CHECK_OK(bsk_context_create(&params, &context));
    if (CHECK_OK(bsk_context_find_device(context, "cuda_emu:0", &device))) {
        test_parts(context, device);
        test_clusters(context, device);
        test_packed(context, device);
        test_one(context, device);
        test_few(context, device);
    }
    bsk_context_destroy(&context);
    return unit_report();
}
