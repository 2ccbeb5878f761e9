/* What the headers promise about threads: contexts made at the same time, one context, layout and
 * plan shared by many threads with queues and workspaces of their own, a last error for each thread,
 * and runs in a child of fork(). Meant to run under ThreadSanitizer too. Optional argument: the fake module. */
#include <sched.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_use.h"
#include "unit.h"

enum { THREADS = 8, ROUNDS = 20, N = 5, SIDE = 64, BLOCK = 8 };

typedef struct shared {
    bsk_context *context;
    const bsk_device *device;
    bsk_layout *layout;
    bsk_plan *plan;
    int64_t nnz;
    const float *x, *w;
    const float *want;
    const char *plugin_path;
    atomic_int ready;
    atomic_int contexts; /* made and destroyed so far */
} shared;

static void thread_start(shared *s)
{
    atomic_fetch_add(&s->ready, 1);
    while (atomic_load(&s->ready) < THREADS)
        sched_yield();
}

static void threads_run(shared *s, void *(*body)(void *))
{
    pthread_t threads[THREADS];
    atomic_store(&s->ready, 0);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, body, s))
            abort();
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* The same plan with this thread's queue and workspace. */
static void *body_run(void *user)
{
    shared *s = user;
    float y[N * SIDE];
    bsk_queue *queue = NULL;
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    bsk_matmul_args args = BSK_INIT_ALPHA(bsk_matmul_args);
    thread_start(s);
    CHECK_OK(bsk_queue_create(s->device, &queue));
    CHECK_OK(bsk_plan_query(s->plan, &info));
    CHECK_OK(bsk_mem_alloc(s->device, info.workspace_bytes, &args.workspace));
    args.x = bsk_host_ptr(s->x);
    args.w = bsk_host_ptr(s->w);
    args.y = bsk_host_ptr(y);
    if (!info.workspace_bytes)
        bsk_mem_free(s->device, &args.workspace);
    for (int round = 0; round < ROUNDS; round++) {
        memset(y, 0xff, sizeof y);
        CHECK_OK(bsk_matmul_run(s->plan, queue, &args));
        CHECK_OK(bsk_queue_sync(queue));
        CHECK(!memcmp(y, s->want, sizeof y));
    }
    bsk_mem_free(s->device, &args.workspace);
    bsk_queue_destroy(&queue);
    return NULL;
}

/* Plans and layouts made and dropped in one context, while others read the same layout. */
static void *body_plan(void *user)
{
    shared *s = user;
    thread_start(s);
    for (int round = 0; round < ROUNDS; round++) {
        bsk_layout *mine = bsk_layout_retain(s->layout), *turned = NULL;
        bsk_layout_info info = BSK_INIT(bsk_layout_info);
        bsk_plan *plan = NULL;
        bsk_matmul_params p = BSK_INIT(bsk_matmul_params);
        CHECK_OK(bsk_layout_transpose(mine, &turned));
        CHECK_OK(bsk_layout_query(turned, &info));
        CHECK(info.nnz == s->nnz);
        p.layout = round % 2 ? mine : turned;
        p.x = p.y = bsk_tensor_2d(BSK_F32, N, SIDE);
        p.w = bsk_tensor_3d(BSK_F32, s->nnz, BLOCK, BLOCK);
        CHECK_OK(bsk_matmul_plan(s->device, &p, NULL, &plan));
        bsk_layout_release(&mine);
        bsk_layout_release(&turned);
        bsk_plan_destroy(&plan);
    }
    return NULL;
}

/* Contexts of each thread's own, at the same time, modules included. */
static void *body_context(void *user)
{
    shared *s = user;
    thread_start(s);
    for (int round = 0; round < ROUNDS; round++) {
        bsk_context *context = NULL;
        bsk_context_params params = unit_params();
        params.plugin_path = s->plugin_path;
        CHECK_OK(bsk_context_create(&params, &context));
        CHECK(bsk_context_device_count(context) == (s->plugin_path ? 3u : 1u));
        CHECK_OK(fake_compute(bsk_context_device(context, 0)));
        bsk_context_destroy(&context);
        atomic_fetch_add(&s->contexts, 1);
    }
    return NULL;
}

/* An error on one thread is not seen on another. */
static void *body_error(void *user)
{
    shared *s = user;
    char id[32], want[96];
    CHECK(!strcmp(bsk_last_error(), ""));
    snprintf(id, sizeof id, "none%d:0", atomic_load(&s->ready));
    thread_start(s);
    for (int round = 0; round < ROUNDS; round++) {
        const bsk_device *device = NULL;
        CHECK_STATUS(bsk_context_find_device(s->context, id, &device), BSK_E_INVALID);
        snprintf(want, sizeof want, "\"%s\"", id);
        CHECK_OK(bsk_context_find_device(s->context, "cpu:0", &device));
        CHECK_TEXT(bsk_last_error(), want);
    }
    return NULL;
}

/* Staged fallbacks of one plan from many threads: each has its own copies. */
static void *body_staged(void *user)
{
    shared *s = user;
    const bsk_device *device = fake_device_find(s->context, "fake:0");
    bsk_bias_act_params p = unit_bias_act(BSK_F32, N, SIDE);
    bsk_bias_act_args args = BSK_INIT(bsk_bias_act_args);
    bsk_plan *plan = NULL;
    bsk_queue *queue = NULL;
    float zero[SIDE] = {0}, y[N * SIDE];
    p.act = BSK_ACT_SILU; /* which the fake refuses */
    p.bias.dtype = BSK_NONE;
    thread_start(s);
    CHECK_OK(bsk_bias_act_plan(device, &p, NULL, &plan));
    CHECK_OK(bsk_queue_create(device, &queue));
    CHECK_OK(bsk_mem_alloc(device, sizeof y, &args.x));
    CHECK_OK(bsk_mem_alloc(device, sizeof y, &args.y));
    CHECK_OK(bsk_mem_fill(queue, args.x, 0, sizeof y));
    for (int round = 0; round < ROUNDS; round++) {
        CHECK_OK(bsk_mem_fill(queue, args.y, 0xff, sizeof y));
        CHECK_OK(bsk_bias_act_run(plan, queue, &args));
        CHECK_OK(bsk_mem_download(queue, y, args.y, sizeof y));
        CHECK_OK(bsk_queue_sync(queue));
        CHECK(!memcmp(y, zero, sizeof zero));
    }
    bsk_mem_free(device, &args.x);
    bsk_mem_free(device, &args.y);
    bsk_queue_destroy(&queue);
    bsk_plan_destroy(&plan);
    return NULL;
}

/* A child runs the plan that this thread ran, whose other threads it does not have. */
static void fork_run(shared *s)
{
    enum { SECONDS = 20 };
    int status = -1;
    body_run(s);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        alarm(SECONDS);
        body_run(s);
        _exit(atomic_load(&unit_failed) > 0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void shared_matmul(shared *s, float *x, float *w, float *want)
{
    bsk_layout_params lp = BSK_INIT(bsk_layout_params);
    lp.rows = lp.cols = SIDE;
    lp.block_rows = lp.block_cols = BLOCK;
    CHECK_OK(bsk_layout_random(s->context, &lp, 0.5, 3, &s->layout));
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    CHECK_OK(bsk_layout_query(s->layout, &info));
    s->nnz = info.nnz;
    for (int i = 0; i < N * SIDE; i++)
        x[i] = (float)(i % 5 - 2);
    for (int64_t i = 0; i < s->nnz * BLOCK * BLOCK; i++)
        w[i] = (float)(i % 7 - 3);
    memset(want, 0, N * SIDE * sizeof *want);
    for (int64_t slot = 0; slot < s->nnz; slot++) {
        int32_t row, col;
        CHECK_OK(bsk_layout_block_coord(s->layout, slot, NULL, &row, &col));
        for (int n = 0; n < N; n++)
            for (int i = 0; i < BLOCK; i++)
                for (int j = 0; j < BLOCK; j++)
                    want[n * SIDE + col * BLOCK + j] +=
                        x[n * SIDE + row * BLOCK + i] * w[(slot * BLOCK + i) * BLOCK + j];
    }
    bsk_matmul_params p = BSK_INIT(bsk_matmul_params);
    p.layout = s->layout;
    p.x = p.y = bsk_tensor_2d(BSK_F32, N, SIDE);
    p.w = bsk_tensor_3d(BSK_F32, s->nnz, BLOCK, BLOCK);
    CHECK_OK(bsk_matmul_plan(s->device, &p, NULL, &s->plan));
    s->x = x;
    s->w = w;
    s->want = want;
}

int main(int argc, char **argv)
{
    static float x[N * SIDE], w[SIDE * SIDE], want[N * SIDE];
    fake_directory directory = fake_directory_new();
    shared s = {0};
    unit_log *log = unit_log_new();
    bsk_context_params params = unit_params();
    if (argc > 1) {
        fake_directory_link(&directory, argv[1], "bsk_fake.so");
        s.plugin_path = directory.path;
    }
    params.plugin_path = s.plugin_path;
    params.log = unit_log_line;
    params.log_user = log;
    params.log_level = BSK_LOG_LAUNCH;
    params.num_threads = 2;
    CHECK_OK(bsk_context_create(&params, &s.context));
    s.device = fake_device_find(s.context, "cpu:0");
    shared_matmul(&s, x, w, want);
    threads_run(&s, body_run);
    threads_run(&s, body_plan);
    threads_run(&s, body_context);
    threads_run(&s, body_error);
    fork_run(&s);
    CHECK(atomic_load(&s.contexts) == THREADS * ROUNDS);
    if (s.plugin_path) {
        int before = log->lines[BSK_LOG_WARN];
        threads_run(&s, body_staged);
        CHECK(log->lines[BSK_LOG_WARN] == before + 1); /* once, whoever was first */
    }
    CHECK(log->lines[BSK_LOG_LAUNCH] >= THREADS * ROUNDS);
    bsk_plan_destroy(&s.plan);
    bsk_layout_release(&s.layout);
    bsk_context_destroy(&s.context);
    fake_directory_remove(&directory);
    unit_log_free(log);
    return unit_report();
}
