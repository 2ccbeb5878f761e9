/* A block-sparse layer in one page: Y = X W, the input gradient and the weight gradient.
 *     cc quickstart.c $(pkg-config --cflags --libs bsk) && ./a.out [--device ID] */
#include <bsk/bsk.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        if ((call) != BSK_OK) {                                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, bsk_last_error());                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { N = 64, HIDDEN = 4096, BLOCK = 32 };
static float x[N * HIDDEN], y[N * HIDDEN];

static bsk_mem device_memory(const bsk_device *device, size_t bytes)
{
    bsk_mem mem;
    CHECK(bsk_mem_alloc(device, bytes, &mem));
    return mem;
}

/* The plan's part of the output, and how fast `runs` runs in `seconds` were. */
static void print_rate(const bsk_plan *plan, int runs, double seconds)
{
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    CHECK(bsk_plan_query(plan, &info));
    printf("%-13s %-16s %9.3f ms %8.1f GFLOP/s\n", info.op, info.entry, 1e3 * seconds / runs,
           1e-9 * info.flops * runs / seconds);
}

static double seconds_now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Repeats a run for half a second; work on a queue is asynchronous, so the clock needs a sync. */
#define TIME(run, plan, queue, args)                                                               \
    do {                                                                                           \
        const double start = seconds_now();                                                        \
        int runs = 0;                                                                              \
        for (; seconds_now() < start + 0.5; runs++) {                                              \
            CHECK(run(plan, queue, args));                                                         \
            CHECK(bsk_queue_sync(queue));                                                          \
        }                                                                                          \
        print_rate(plan, runs, seconds_now() - start);                                             \
    } while (0)

/* One element of Y from the definition: W[k, m] is zero outside the kept blocks. */
static double output_expected(const bsk_layout *layout, const float *w, int n, int m)
{
    double sum = 0;
    for (int k = 0; k < HIDDEN; k++) {
        int64_t slot;
        CHECK(bsk_layout_find(layout, 0, k / BLOCK, m / BLOCK, &slot));
        if (slot >= 0)
            sum += (double)x[n * HIDDEN + k] * w[(slot * BLOCK + k % BLOCK) * BLOCK + m % BLOCK];
    }
    return sum;
}

int main(int argc, char **argv)
{
    const char *id = argc == 3 && strcmp(argv[1], "--device") == 0 ? argv[2] : NULL;
    if (argc > 1 && !id) {
        fprintf(stderr, "usage: quickstart [--device ID]\n");
        return 2;
    }
    bsk_context *context;
    const bsk_device *device;
    bsk_queue *queue;
    CHECK(bsk_context_create(NULL, &context));
    CHECK(bsk_context_find_device(context, id, &device));
    CHECK(bsk_queue_create(device, &queue));

    // Which blocks of the 4096 x 4096 weights exist: a quarter, at random.
    bsk_layout *layout;
    bsk_layout_info shape = BSK_INIT(bsk_layout_info);
    bsk_layout_params grid = BSK_INIT(bsk_layout_params);
    grid.rows = grid.cols = HIDDEN;
    grid.block_rows = grid.block_cols = BLOCK;
    CHECK(bsk_layout_random(context, &grid, 0.25, 1, &layout));
    CHECK(bsk_layout_query(layout, &shape));
    printf("%d x %d, %lld blocks of %d x %d, density %.3f\n", HIDDEN, HIDDEN, (long long)shape.nnz,
           BLOCK, BLOCK, shape.density);

    // Plans are made once: they check the shapes and choose the kernel.
    bsk_plan *init, *forward, *dgrad, *wgrad;
    const bsk_tensor acts = bsk_tensor_2d(BSK_F32, N, HIDDEN);
    const bsk_tensor blocks = bsk_tensor_3d(BSK_F32, shape.nnz, BLOCK, BLOCK);
    bsk_weight_init_params pi = BSK_INIT(bsk_weight_init_params);
    bsk_matmul_params pf = BSK_INIT(bsk_matmul_params);
    bsk_matmul_dgrad_params pd = BSK_INIT(bsk_matmul_dgrad_params);
    bsk_matmul_wgrad_params pw = BSK_INIT(bsk_matmul_wgrad_params);
    pi.layout = pf.layout = pd.layout = pw.layout = layout;
    pi.w = pf.w = pd.w = pw.dw = blocks;
    pf.x = pf.y = pd.dy = pd.dx = pw.x = pw.dy = acts;
    CHECK(bsk_weight_normal_plan(device, &pi, NULL, &init));
    CHECK(bsk_matmul_plan(device, &pf, NULL, &forward));
    CHECK(bsk_matmul_dgrad_plan(device, &pd, NULL, &dgrad));
    CHECK(bsk_matmul_wgrad_plan(device, &pw, NULL, &wgrad));

    // All memory is the caller's, and so is the workspace, which the plans share.
    bsk_plan *const plans[] = {init, forward, dgrad, wgrad};
    size_t bytes = 0;
    for (int i = 0; i < 4; i++) {
        bsk_plan_info info = BSK_INIT(bsk_plan_info);
        CHECK(bsk_plan_query(plans[i], &info));
        bytes = info.workspace_bytes > bytes ? info.workspace_bytes : bytes;
    }
    const size_t w_bytes = (size_t)shape.nnz * BLOCK * BLOCK * sizeof(float);
    bsk_mem mx = device_memory(device, sizeof x), my = device_memory(device, sizeof y);
    bsk_mem mdx = device_memory(device, sizeof x), mw = device_memory(device, w_bytes);
    bsk_mem mdw = device_memory(device, w_bytes), workspace = device_memory(device, bytes);

    for (int i = 0; i < N * HIDDEN; i++)
        x[i] = (float)(i % 17 - 8) / 8.0f;
    CHECK(bsk_mem_upload(queue, mx, x, sizeof x));

    bsk_weight_init_args ai = BSK_INIT_ALPHA(bsk_weight_init_args);
    ai.alpha = 1.0 / 32; // 1 / sqrt(inputs of a unit)
    ai.workspace = workspace, ai.w = mw;
    CHECK(bsk_weight_normal_run(init, queue, &ai));

    bsk_matmul_args af = BSK_INIT_ALPHA(bsk_matmul_args);
    af.workspace = workspace, af.x = mx, af.w = mw, af.y = my;
    TIME(bsk_matmul_run, forward, queue, &af);

    // Gradients of the loss |Y|^2 / 2, for which dY = Y.
    bsk_matmul_dgrad_args ad = BSK_INIT_ALPHA(bsk_matmul_dgrad_args);
    ad.workspace = workspace, ad.dy = my, ad.w = mw, ad.dx = mdx;
    TIME(bsk_matmul_dgrad_run, dgrad, queue, &ad);

    bsk_matmul_wgrad_args aw = BSK_INIT_ALPHA(bsk_matmul_wgrad_args);
    aw.workspace = workspace, aw.x = &mx, aw.dy = &my, aw.dw = mdw; // arrays of one pair
    TIME(bsk_matmul_wgrad_run, wgrad, queue, &aw);

    // Look at some results from the host.
    float *w = malloc(w_bytes);
    if (!w)
        return 1;
    CHECK(bsk_mem_download(queue, y, my, sizeof y));
    CHECK(bsk_mem_download(queue, w, mw, w_bytes));
    CHECK(bsk_queue_sync(queue));
    double worst = 0;
    for (int n = 0; n < N; n++) {
        const int m = n * 65 % HIDDEN;
        const double error = output_expected(layout, w, n, m) - y[n * HIDDEN + m];
        worst = error > worst ? error : -error > worst ? -error : worst;
    }
    printf("largest error of %d outputs: %.1e\n", N, worst);

    free(w);
    bsk_mem *const memory[] = {&mx, &my, &mdx, &mw, &mdw, &workspace};
    for (int i = 0; i < 6; i++)
        bsk_mem_free(device, memory[i]);
    bsk_plan_destroy(&init);
    bsk_plan_destroy(&forward);
    bsk_plan_destroy(&dgrad);
    bsk_plan_destroy(&wgrad);
    bsk_layout_release(&layout);
    bsk_queue_destroy(&queue);
    bsk_context_destroy(&context);
    return worst < 1e-4 ? 0 : 1;
}
