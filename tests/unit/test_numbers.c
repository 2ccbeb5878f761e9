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
        bsk_queue_destroy(&queue);
        bsk_context_destroy(&context);
    }
    return unit_report();
}
