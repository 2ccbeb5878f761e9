/* Numbers at the edges of f32, which cases with bounds of their own let pass: long sums of one sign,
 * and sums that only the order of operations keeps finite. */
#include <math.h>

#include "unit.h"

static const char *const archs[] = {"base", "avx2", "avx512", NULL};

static bsk_context *context_of(const char *arch, const bsk_device **device)
{
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    params.max_arch = arch;
    if (bsk_context_create(&params, &context)) /* not an architecture of this machine */
        return NULL;
    *device = bsk_context_device(context, 0);
    return context;
}

/* The sum of 2^20 equal products, one after the other, would be off by a percent. */
static void test_long_sum(const bsk_device *device, bsk_queue *queue)
{
    enum { N = 1 << 20 };
    bsk_dense_wgrad_params p = BSK_INIT(bsk_dense_wgrad_params);
    bsk_dense_wgrad_args a = BSK_INIT_ALPHA(bsk_dense_wgrad_args);
    bsk_plan *plan = NULL;
    float *x = malloc(N * sizeof *x), sum = 0;
    if (!x)
        abort();
    for (int i = 0; i < N; i++)
        x[i] = 0.69921875f;
    p.x = p.dy = bsk_tensor_2d(BSK_F32, N, 1);
    p.dw = bsk_tensor_2d(BSK_F32, 1, 1);
    a.x = a.dy = bsk_host_ptr(x);
    a.dw = bsk_host_ptr(&sum);
    if (CHECK_OK(bsk_dense_wgrad_plan(device, &p, NULL, &plan)) &&
        CHECK_OK(bsk_dense_wgrad_run(plan, queue, &a))) {
        CHECK_OK(bsk_queue_sync(queue));
        CHECK(fabs(sum / (N * 0.69921875 * 0.69921875) - 1) < 1e-5);
    }
    bsk_plan_destroy(&plan);
    free(x);
}

/* The deviation of the row is infinite in f32, and counts 0 times. */
static void test_sparse_relu(const bsk_device *device, bsk_queue *queue)
{
    enum { F = 64 };
    float x[F] = {1, 1e20f}, y[F];
    bsk_sparse_relu_params p = BSK_INIT(bsk_sparse_relu_params);
    bsk_sparse_relu_args a = BSK_INIT(bsk_sparse_relu_args);
    bsk_plan *plan = NULL;
    p.x = p.y = bsk_tensor_2d(BSK_F32, 1, F);
    a.x = bsk_host_ptr(x);
    a.y = bsk_host_ptr(y);
    if (CHECK_OK(bsk_sparse_relu_plan(device, &p, NULL, &plan)) &&
        CHECK_OK(bsk_sparse_relu_run(plan, queue, &a))) {
        CHECK_OK(bsk_queue_sync(queue));
        CHECK(y[0] <= 0 && y[1] > 9e19f && y[F - 1] <= 0);
    }
    bsk_plan_destroy(&plan);
}

/* Logits that are masked by the lowest number: their sum is beyond f32, the loss is not. */
static void test_smoothing(const bsk_device *device, bsk_queue *queue)
{
    enum { CLASSES = 64, MASKED = 3 };
    const float lowest = -3.4028235e38f;
    float logits[CLASSES] = {0}, loss = 0;
    int32_t label = CLASSES - 1;
    bsk_cross_entropy_params p = BSK_INIT(bsk_cross_entropy_params);
    bsk_cross_entropy_args a = BSK_INIT_ALPHA(bsk_cross_entropy_args);
    bsk_plan *plan = NULL;
    for (int i = 0; i < MASKED; i++)
        logits[i] = lowest;
    p.smoothing = 0.1;
    p.logits = bsk_tensor_2d(BSK_F32, 1, CLASSES);
    p.labels = bsk_tensor_1d(BSK_I32, 1);
    p.loss = bsk_tensor_1d(BSK_F32, 1);
    a.logits = bsk_host_ptr(logits);
    a.labels = bsk_host_ptr(&label);
    a.loss = bsk_host_ptr(&loss);
    if (CHECK_OK(bsk_cross_entropy_plan(device, &p, NULL, &plan)) &&
        CHECK_OK(bsk_cross_entropy_run(plan, queue, &a))) {
        CHECK_OK(bsk_queue_sync(queue));
        CHECK(fabs((double)loss / (0.1 / CLASSES * MASKED * -(double)lowest) - 1) < 1e-5);
    }
    bsk_plan_destroy(&plan);
}

/* Numbers halfway between two of the type but for their last bit, which f64 does not hold. */
static void test_whole_numbers(const bsk_device *device, bsk_queue *queue)
{
    static const int64_t x[] = {(1LL << 53) + (1 << 29) + 1, -(1LL << 53) - (1 << 29) - 1,
                                (1LL << 60) + (1LL << 52) + 1, INT64_MAX, INT64_MIN};
    static const float wanted[2][5] = {
        {0x1p53f + 0x1p30f, -0x1p53f - 0x1p30f, 0x1p60f + 0x1p52f, 0x1p63f, -0x1p63f},
        {0x1p53f, -0x1p53f, 0x1p60f + 0x1p53f, 0x1p63f, -0x1p63f}};
    enum { COUNT = sizeof x / sizeof *x };
    for (int t = 0; t < 2; t++) {
        float y[COUNT] = {0};
        uint16_t halves[COUNT];
        bsk_cast_params p = BSK_INIT(bsk_cast_params);
        bsk_cast_args a = BSK_INIT(bsk_cast_args);
        bsk_plan *plan = NULL;
        p.x = bsk_tensor_1d(BSK_I64, COUNT);
        p.y = bsk_tensor_1d(t ? BSK_BF16 : BSK_F32, COUNT);
        a.x = bsk_host_ptr((void *)(uintptr_t)x);
        a.y = bsk_host_ptr(t ? (void *)halves : (void *)y);
        if (CHECK_OK(bsk_cast_plan(device, &p, NULL, &plan)) &&
            CHECK_OK(bsk_cast_run(plan, queue, &a))) {
            CHECK_OK(bsk_queue_sync(queue));
            for (int i = 0; t && i < COUNT; i++) {
                const uint32_t bits = (uint32_t)halves[i] << 16;
                memcpy(&y[i], &bits, sizeof bits);
            }
            for (int i = 0; i < COUNT; i++)
                CHECK(y[i] == wanted[t][i]);
        }
        bsk_plan_destroy(&plan);
    }
}

/* A window beyond all positions hides nothing. */
static void test_window(bsk_context *context, const bsk_device *device, bsk_queue *queue)
{
    static const int64_t windows[] = {4, (int64_t)1 << 62, INT64_MAX - 1, INT64_MAX};
    float q[4] = {1, 1, 1, 1}, k[4] = {1, 1, 1, 1}, v[4] = {1, 2, 3, 4}, o[4];
    const bsk_layout_params shape = {sizeof shape, 4, 4, 4, 4, 1, BSK_ORDER_ROW};
    const bsk_tensor heads = {BSK_F32, 4, {1, 1, 4, 1}, {0}};
    bsk_layout *layout = NULL;
    CHECK_OK(bsk_layout_causal(context, &shape, 0, &layout));
    for (size_t i = 0; layout && i < UNIT_COUNT(windows); i++) {
        bsk_attention_params p = BSK_INIT(bsk_attention_params);
        bsk_attention_args a = BSK_INIT(bsk_attention_args);
        bsk_plan *plan = NULL;
        p.layout = layout;
        p.q = p.k = p.v = p.o = heads;
        p.causal = 1;
        p.window = windows[i];
        a.q = bsk_host_ptr(q);
        a.k = bsk_host_ptr(k);
        a.v = bsk_host_ptr(v);
        a.o = bsk_host_ptr(o);
        if (CHECK_OK(bsk_attention_plan(device, &p, NULL, &plan))) {
            bsk_plan_info info = BSK_INIT(bsk_plan_info);
            CHECK_OK(bsk_plan_query(plan, &info));
            CHECK_OK(bsk_mem_alloc(device, info.workspace_bytes, &a.workspace));
            CHECK_OK(bsk_attention_run(plan, queue, &a));
            CHECK_OK(bsk_queue_sync(queue));
            for (int row = 0; row < 4; row++)
                CHECK(fabs(o[row] - 0.5 * (row + 2)) < 1e-5);
            bsk_mem_free(device, &a.workspace);
        }
        bsk_plan_destroy(&plan);
    }
    bsk_layout_release(&layout);
}

/* A weight gradient on a layout of one block, with the entry that is chosen or one of a list. */
static void run_wgrad(const bsk_device *device, bsk_queue *queue, const char *kernels,
                      bsk_matmul_wgrad_params *p, bsk_matmul_wgrad_args *a)
{
    bsk_layout_params one = BSK_INIT(bsk_layout_params);
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    bsk_layout *layout = NULL;
    bsk_plan *plan = NULL;
    const int32_t at = 0;
    one.rows = one.cols = one.block_rows = one.block_cols = 1;
    options.kernels = kernels;
    CHECK_OK(bsk_layout_from_coo(NULL, &one, 1, NULL, &at, &at, &layout));
    p->layout = layout;
    if (CHECK_OK(bsk_matmul_wgrad_plan(device, p, &options, &plan))) {
        CHECK_OK(bsk_plan_query(plan, &info));
        CHECK_OK(bsk_mem_alloc(device, info.workspace_bytes, &a->workspace));
        CHECK_OK(bsk_matmul_wgrad_run(plan, queue, a));
        CHECK_OK(bsk_queue_sync(queue));
        bsk_mem_free(device, &a->workspace);
    }
    bsk_plan_destroy(&plan);
    bsk_layout_release(&layout);
}

/* From 2^24 on an f32 does not grow by 1. */
static void test_bias_sum(const bsk_device *device, bsk_queue *queue)
{
    enum { N = (1 << 24) + 1000 };
    bsk_matmul_wgrad_params p = BSK_INIT(bsk_matmul_wgrad_params);
    bsk_matmul_wgrad_args a = BSK_INIT_ALPHA(bsk_matmul_wgrad_args);
    float *x = malloc(N * sizeof *x), dw = 0, dbias = 0;
    if (!x)
        abort();
    for (int i = 0; i < N; i++)
        x[i] = 1;
    const bsk_mem mem = bsk_host_ptr(x);
    p.x = p.dy = bsk_tensor_2d(BSK_F32, N, 1);
    p.dw = bsk_tensor_3d(BSK_F32, 1, 1, 1);
    p.dbias = bsk_tensor_1d(BSK_F32, 1);
    a.x = a.dy = &mem;
    a.dw = bsk_host_ptr(&dw);
    a.dbias = bsk_host_ptr(&dbias);
    run_wgrad(device, queue, NULL, &p, &a);
    CHECK(dbias == N);
    free(x);
}

/* Exact sums of i8 become f32 before anything else, in the reference too. */
static void test_whole_sum(const bsk_device *device, bsk_queue *queue)
{
    enum { N = 4096 };
    static const char *const kernels[] = {NULL, "+ref_*"};
    static int8_t x[N], dy[N];
    for (int i = 0; i < N; i++)
        x[i] = dy[i] = 127;
    x[0] = 126; /* 66064257 in all */
    for (size_t i = 0; i < UNIT_COUNT(kernels); i++) {
        bsk_matmul_wgrad_params p = BSK_INIT(bsk_matmul_wgrad_params);
        bsk_matmul_wgrad_args a = BSK_INIT_ALPHA(bsk_matmul_wgrad_args);
        const bsk_mem left = bsk_host_ptr(x), right = bsk_host_ptr(dy);
        double dw = 0;
        p.x = p.dy = bsk_tensor_2d(BSK_I8, N, 1);
        p.dw = bsk_tensor_3d(BSK_F64, 1, 1, 1);
        a.x = &left;
        a.dy = &right;
        a.dw = bsk_host_ptr(&dw);
        run_wgrad(device, queue, kernels[i], &p, &a);
        CHECK(dw == 66064256);
    }
}

/* An eps that f32 does not hold still keeps divisors from being 0. */
static void test_least_eps(const bsk_device *device, bsk_queue *queue)
{
    enum { N = 4, M = 96 };
    float x[N * M], y[N * M], grad[N * M] = {0}, m[N * M] = {0}, v[N * M] = {0};
    for (int i = 0; i < N * M; i++)
        x[i] = 3;
    for (int axis = BSK_NC; axis <= BSK_CN; axis++) {
        bsk_layer_norm_params p = BSK_INIT(bsk_layer_norm_params);
        bsk_layer_norm_args a = BSK_INIT(bsk_layer_norm_args);
        bsk_plan *plan = NULL;
        p.axis = (bsk_axis)axis;
        p.eps = 1e-300;
        p.x = p.y = axis == BSK_NC ? bsk_tensor_2d(BSK_F32, N, M) : bsk_tensor_2d(BSK_F32, M, N);
        a.x = bsk_host_ptr(x);
        a.y = bsk_host_ptr(y);
        memset(y, 0xff, sizeof y);
        if (CHECK_OK(bsk_layer_norm_plan(device, &p, NULL, &plan)) &&
            CHECK_OK(bsk_layer_norm_run(plan, queue, &a))) {
            CHECK_OK(bsk_queue_sync(queue));
            for (int i = 0; i < N * M; i++)
                CHECK(y[i] == 0);
        }
        bsk_plan_destroy(&plan);
    }
    bsk_adam_params p = BSK_INIT(bsk_adam_params);
    bsk_adam_args a = BSK_INIT(bsk_adam_args);
    bsk_plan *plan = NULL;
    p.eps = 1e-300;
    p.param = p.grad = p.m = p.v = bsk_tensor_2d(BSK_F32, N, M);
    a.lr = 0.1;
    a.step = 1;
    a.param = bsk_host_ptr(x);
    a.grad = bsk_host_ptr(grad);
    a.m = bsk_host_ptr(m);
    a.v = bsk_host_ptr(v);
    if (CHECK_OK(bsk_adam_plan(device, &p, NULL, &plan)) &&
        CHECK_OK(bsk_adam_run(plan, queue, &a))) {
        CHECK_OK(bsk_queue_sync(queue));
        for (int i = 0; i < N * M; i++)
            CHECK(x[i] == 3);
    }
    bsk_plan_destroy(&plan);
}

/* Columns of equal numbers, whose squares, or what they are multiplied by, f32 does not hold. */
static void test_squares(bsk_context *context, const bsk_device *device, bsk_queue *queue)
{
    enum { ROWS = 64, COLS = 4 };
    static const float of[COLS] = {3e38f, 1e-30f, 1e-22f, 2}, gain[COLS] = {1e-4f, 1e35f, 1, 8};
    const bsk_layout_params shape = {sizeof shape, ROWS, COLS, ROWS, COLS, 1, BSK_ORDER_ROW};
    const uint8_t mask = 1;
    float w[ROWS * COLS], y[ROWS * COLS], norm = 0;
    bsk_layout *layout = NULL;
    bsk_plan *plan = NULL;
    for (int i = 0; i < ROWS * COLS; i++)
        w[i] = of[i % COLS];
    if (!CHECK_OK(bsk_layout_from_mask(context, &shape, &mask, &layout)))
        return;

    bsk_l2_normalize_params p = BSK_INIT(bsk_l2_normalize_params);
    bsk_l2_normalize_args a = BSK_INIT(bsk_l2_normalize_args);
    p.layout = layout;
    p.eps = 1e-300;
    p.w = p.y = bsk_tensor_3d(BSK_F32, 1, ROWS, COLS);
    p.gain = bsk_tensor_1d(BSK_F32, COLS);
    a.w = bsk_host_ptr(w);
    a.y = bsk_host_ptr(y);
    a.gain = bsk_host_ptr(gain);
    if (CHECK_OK(bsk_l2_normalize_plan(device, &p, NULL, &plan)) &&
        CHECK_OK(bsk_l2_normalize_run(plan, queue, &a))) {
        CHECK_OK(bsk_queue_sync(queue));
        for (int i = 0; i < ROWS * COLS; i++)
            CHECK(fabs(y[i] / (gain[i % COLS] * 0.125) - 1) < 1e-6);
    }
    bsk_plan_destroy(&plan);

    bsk_block_norm_params n = BSK_INIT(bsk_block_norm_params);
    bsk_block_norm_args b = BSK_INIT(bsk_block_norm_args);
    n.layout = layout;
    n.type = BSK_NORM_L2;
    n.w = p.w;
    n.norm = bsk_tensor_1d(BSK_F32, 1);
    b.w = a.w;
    b.norm = bsk_host_ptr(&norm);
    for (int i = 0; i < ROWS * COLS; i++)
        w[i] = 1e30f;
    if (CHECK_OK(bsk_block_norm_plan(device, &n, NULL, &plan)) &&
        CHECK_OK(bsk_block_norm_run(plan, queue, &b))) {
        CHECK_OK(bsk_queue_sync(queue));
        CHECK(fabs(norm / 16e30 - 1) < 1e-6);
    }
    bsk_plan_destroy(&plan);

    bsk_block_l2_decay_params d = BSK_INIT(bsk_block_l2_decay_params);
    bsk_block_l2_decay_args c = BSK_INIT(bsk_block_l2_decay_args);
    d.layout = layout;
    d.w = p.w;
    c.rate = 4e30;
    c.w = a.w;
    if (CHECK_OK(bsk_block_l2_decay_plan(device, &d, NULL, &plan)) &&
        CHECK_OK(bsk_block_l2_decay_run(plan, queue, &c))) {
        CHECK_OK(bsk_queue_sync(queue));
        for (int i = 0; i < ROWS * COLS; i++)
            CHECK(fabs(w[i] / 0.75e30 - 1) < 1e-6);
    }
    bsk_plan_destroy(&plan);
    bsk_layout_release(&layout);
}

/* The same of a gradient. */
static void test_squares_grad(bsk_context *context, const bsk_device *device, bsk_queue *queue)
{
    enum { ROWS = 64, COLS = 2 };
    static const float of[COLS] = {2e18f, 1}, gain[COLS] = {1e-25f, 8}, given[COLS] = {1e30f, 4};
    const bsk_layout_params shape = {sizeof shape, ROWS, COLS, ROWS, COLS, 1, BSK_ORDER_ROW};
    const uint8_t mask = 1;
    float dy[ROWS * COLS] = {given[0], given[1]}, w[ROWS * COLS], dw[ROWS * COLS], saved[COLS];
    bsk_l2_normalize_grad_params p = BSK_INIT(bsk_l2_normalize_grad_params);
    bsk_l2_normalize_grad_args a = BSK_INIT_ALPHA(bsk_l2_normalize_grad_args);
    bsk_layout *layout = NULL;
    bsk_plan *plan = NULL;
    for (int i = 0; i < ROWS * COLS; i++)
        w[i] = of[i % COLS];
    for (int j = 0; j < COLS; j++)
        saved[j] = ROWS * of[j] * of[j];
    if (!CHECK_OK(bsk_layout_from_mask(context, &shape, &mask, &layout)))
        return;
    p.layout = layout;
    p.dy = p.w = p.dw = bsk_tensor_3d(BSK_F32, 1, ROWS, COLS);
    p.saved = p.gain = bsk_tensor_1d(BSK_F32, COLS);
    a.dy = bsk_host_ptr(dy);
    a.w = bsk_host_ptr(w);
    a.dw = bsk_host_ptr(dw);
    a.saved = bsk_host_ptr(saved);
    a.gain = bsk_host_ptr(gain);
    if (CHECK_OK(bsk_l2_normalize_grad_plan(device, &p, NULL, &plan)) &&
        CHECK_OK(bsk_l2_normalize_grad_run(plan, queue, &a))) {
        CHECK_OK(bsk_queue_sync(queue));
        for (int i = 0; i < ROWS * COLS; i++) {
            const int j = i % COLS;
            const double unit = (double)gain[j] * (double)given[j] / (8 * (double)of[j]);
            const double want = (i < COLS ? 1 : 0) - 1.0 / ROWS;
            CHECK(fabs(dw[i] / unit - want) < 1e-6);
        }
    }
    bsk_plan_destroy(&plan);
    bsk_layout_release(&layout);
}

/* A scale cannot have a low limit above its high one. */
static void test_scale_limits(const bsk_device *device)
{
    bsk_loss_scale_params p = BSK_INIT(bsk_loss_scale_params);
    bsk_plan *plan = NULL;
    p.low = 8;
    p.high = 4;
    p.scale = p.norm_scale = bsk_tensor_1d(BSK_F32, 1);
    p.good = bsk_tensor_1d(BSK_I32, 1);
    CHECK_ERROR(bsk_loss_scale_plan(device, &p, NULL, &plan), BSK_E_INVALID, "low is 8");
    CHECK(!plan);
    p.high = 8;
    CHECK_OK(bsk_loss_scale_plan(device, &p, NULL, &plan));
    bsk_plan_destroy(&plan);
}

/* Within five standard deviations of what a coin would give. */
static int is_share(int64_t count, int64_t of, double chance)
{
    return fabs((double)count - (double)of * chance) <=
           5 * sqrt((double)of * chance * (1 - chance)) + (double)of * 0x1p-16;
}

/* What dropout keeps: as many as asked for, neighbours and those of two offsets by themselves. */
static void test_dropout_shares(const bsk_device *device, bsk_queue *queue)
{
    enum { N = 1 << 20 };
    static const double keeps[] = {0, 0.001, 0.3, 0.9, 1};
    bsk_dropout_params p = BSK_INIT(bsk_dropout_params);
    bsk_dropout_args a = BSK_INIT(bsk_dropout_args);
    bsk_plan *plan = NULL;
    float *x = malloc(3 * N * sizeof *x);
    if (!x)
        abort();
    float *const y[] = {x + N, x + 2 * N};
    for (int i = 0; i < N; i++)
        x[i] = 1;
    p.x = p.y = bsk_tensor_2d(BSK_F32, 1, N);
    a.x = bsk_host_ptr(x);
    a.seed = 5;
    if (CHECK_OK(bsk_dropout_plan(device, &p, NULL, &plan)))
        for (size_t k = 0; k < UNIT_COUNT(keeps); k++) {
            const double keep = a.keep = keeps[k];
            int64_t kept = 0, pairs = 0, both = 0;
            for (uint64_t offset = 0; offset < 2; offset++) {
                a.offset = offset;
                a.y = bsk_host_ptr(y[offset]);
                CHECK_OK(bsk_dropout_run(plan, queue, &a));
                CHECK_OK(bsk_queue_sync(queue));
            }
            for (int i = 0; i < N; i++) {
                kept += y[0][i] != 0;
                both += y[0][i] != 0 && y[1][i] != 0;
                pairs += i % 2 && y[0][i - 1] != 0 && y[0][i] != 0;
            }
            CHECK(is_share(kept, N, keep));
            CHECK(is_share(both, N, keep * keep));
            CHECK(is_share(pairs, N / 2, keep * keep));
        }
    bsk_plan_destroy(&plan);
    free(x);
}

int main(void)
{
    for (size_t i = 0; i < UNIT_COUNT(archs); i++) {
        const bsk_device *device = NULL;
        bsk_queue *queue = NULL;
        bsk_context *context = context_of(archs[i], &device);
        if (!context || !CHECK_OK(bsk_queue_create(device, &queue)))
            continue;
        test_long_sum(device, queue);
        test_sparse_relu(device, queue);
        test_smoothing(device, queue);
        test_whole_numbers(device, queue);
        test_window(context, device, queue);
        test_bias_sum(device, queue);
        test_whole_sum(device, queue);
        test_least_eps(device, queue);
        test_squares(context, device, queue);
        test_squares_grad(context, device, queue);
        test_scale_limits(device);
        test_dropout_shares(device, queue);
        bsk_queue_destroy(&queue);
        bsk_context_destroy(&context);
    }
    return unit_report();
}
