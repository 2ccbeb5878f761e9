/* Two CUDA devices in one process: streams and memory of the other one, both in turn and from two
 * threads. Arguments: the module, and `foreign` in a process of its own, whose device is lost. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "requests.h"
#include "unit.h"

#define CHECK_CUDA(call) CHECK((call) == cudaSuccess)

enum { N = 256, SIZE = 512, BLOCK = 32, DEVICES = 2, TURNS = 40, UNDER_WAY = 8 };

/* A product on one device: its numbers are eighths, so that every device's sums are exact. */
typedef struct product {
    const bsk_device *device;
    bsk_queue *queue;
    bsk_plan *plan;
    bsk_mem memory[BSKI_MAX_ARGS], workspace;
    size_t bytes[BSKI_MAX_ARGS];
    request_struct args;
} product;

static const bski_op_info *product_op(void)
{
    return bski_op_find("matmul");
}

/* The number of its only output. */
static int product_out(void)
{
    int i = 0;
    while (product_op()->args[i].role == BSKI_IN)
        i++;
    return i;
}

static void product_bind(product *p)
{
    const bski_op_info *op = product_op();
    for (int i = 0; i < op->arg_count; i++)
        memcpy(p->args.bytes + op->args[i].mem, &p->memory[i], sizeof p->memory[i]);
    memcpy(p->args.bytes + op->workspace, &p->workspace, sizeof p->workspace);
}

static bool product_make(product *p, const bsk_device *device, const bsk_layout *layout)
{
    const bski_op_info *op = product_op();
    bsk_layout_info l = BSK_INIT(bsk_layout_info);
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    request_struct params;
    *p = (product){.device = device};
    CHECK_OK(bsk_layout_query(layout, &l));
    const request_size size = {N, SIZE, SIZE, BLOCK, l.nnz};
    CHECK(request_fill_sized(op, layout, &size, BSK_F32, false, &params));
    if (!CHECK_OK(bsk_queue_create(device, &p->queue)) ||
        !CHECK_OK(bski_plan_create(op, device, params.bytes, NULL, &p->plan)))
        return false;
    CHECK_OK(bsk_plan_query(p->plan, &info));
    request_scalars(op, &p->args);
    for (int i = 0; i < op->arg_count; i++) {
        const bsk_tensor *t = bski_arg_tensor(op, params.bytes, i);
        if (t->dtype == BSK_NONE)
            continue;
        CHECK_OK(bsk_tensor_bytes(t, &p->bytes[i]));
        CHECK_OK(bsk_mem_alloc(device, p->bytes[i], &p->memory[i]));
        unsigned char *numbers = malloc(p->bytes[i]);
        if (!numbers)
            abort();
        request_numbers(t, numbers, p->bytes[i], (unsigned)i);
        CHECK_OK(bsk_mem_upload(p->queue, p->memory[i], numbers, p->bytes[i]));
        CHECK_OK(bsk_queue_sync(p->queue));
        free(numbers);
    }
    if (info.workspace_bytes)
        CHECK_OK(bsk_mem_alloc(device, info.workspace_bytes, &p->workspace));
    product_bind(p);
    return true;
}

static void product_free(product *p)
{
    for (int i = 0; i < BSKI_MAX_ARGS; i++)
        bsk_mem_free(p->device, &p->memory[i]);
    bsk_mem_free(p->device, &p->workspace);
    bsk_plan_destroy(&p->plan);
    bsk_queue_destroy(&p->queue);
}

/* Runs from zeros on; the result goes to `out`. */
static bsk_status product_run(const product *p, unsigned char *out)
{
    const int y = product_out();
    bsk_status status = bsk_mem_fill(p->queue, p->memory[y], 0, p->bytes[y]);
    if (!status)
        status = bski_plan_run(product_op(), p->plan, p->queue, p->args.bytes);
    if (!status)
        status = bsk_mem_download(p->queue, out, p->memory[y], p->bytes[y]);
    return status ? status : bsk_queue_sync(p->queue);
}

/* Two products, and what both have to give: what the CPU gives. */
typedef struct pair {
    product on[DEVICES];
    product host;
    unsigned char *wanted;
} pair;

static bool product_right(const pair *s, const product *p)
{
    const size_t bytes = s->host.bytes[product_out()];
    unsigned char *got = calloc(1, bytes);
    if (!got)
        abort();
    const bool right = !product_run(p, got) && !memcmp(got, s->wanted, bytes);
    free(got);
    return right;
}

static bool pair_make(pair *s, bsk_context *context, const bsk_device *const *devices,
                      bsk_layout **layout)
{
    bsk_layout_params l = BSK_INIT(bsk_layout_params);
    const bsk_device *cpu = NULL;
    memset(s, 0, sizeof *s);
    l.rows = l.cols = SIZE;
    l.block_rows = l.block_cols = BLOCK;
    CHECK_OK(bsk_layout_random(context, &l, 0.4, 3, layout));
    CHECK_OK(bsk_context_find_device(context, "cpu:0", &cpu));
    if (!product_make(&s->host, cpu, *layout) || !product_make(&s->on[0], devices[0], *layout) ||
        !product_make(&s->on[1], devices[1], *layout))
        return false;
    s->wanted = calloc(1, s->host.bytes[product_out()]);
    if (!s->wanted)
        abort();
    return CHECK_OK(product_run(&s->host, s->wanted));
}

static void pair_free(pair *s)
{
    for (int i = 0; i < DEVICES; i++)
        product_free(&s->on[i]);
    product_free(&s->host);
    free(s->wanted);
}

/* --- Streams --- */

/* A stream of one device, whichever is current, is no queue of the other. */
static void test_streams(const pair *s)
{
    for (int own = 0; own < DEVICES; own++)
        for (int current = 0; current < DEVICES; current++) {
            cudaStream_t stream = NULL;
            bsk_queue *queue = NULL;
            int now = -1;
            product wrapped = s->on[own];
            CHECK_CUDA(cudaSetDevice(own));
            CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            CHECK_CUDA(cudaSetDevice(current));
            CHECK_ERROR(bsk_queue_wrap(s->on[1 - own].device, stream, &queue), BSK_E_INVALID,
                        "another device");
            CHECK(!queue);
            CHECK_OK(bsk_queue_wrap(s->on[own].device, stream, &wrapped.queue));
            CHECK(product_right(s, &wrapped));
            bsk_queue_destroy(&wrapped.queue);
            CHECK_OK(bsk_queue_wrap(s->on[own].device, NULL, &wrapped.queue)); /* its default */
            CHECK(product_right(s, &wrapped));
            bsk_queue_destroy(&wrapped.queue);
            CHECK(product_right(s, &s->on[1 - own]));
            CHECK_CUDA(cudaGetLastError());
            CHECK_CUDA(cudaGetDevice(&now));
            CHECK(now == current);
            CHECK_CUDA(cudaStreamDestroy(stream));
        }
    CHECK_CUDA(cudaSetDevice(0));
}

/* A plan runs on queues of its own device alone. */
static void test_queues(const pair *s)
{
    for (int i = 0; i < DEVICES; i++) {
        product mixed = s->on[i];
        mixed.queue = s->on[1 - i].queue;
        CHECK_ERROR(bski_plan_run(product_op(), mixed.plan, mixed.queue, mixed.args.bytes),
                    BSK_E_INVALID, "the queue is of");
        CHECK(product_right(s, &s->on[i]));
    }
}

/* --- Both devices at once --- */

static void test_turns(const pair *s)
{
    unsigned char *out[DEVICES];
    const size_t bytes = s->host.bytes[product_out()];
    bool right = true;
    for (int i = 0; i < TURNS; i++)
        right &= product_right(s, &s->on[i % DEVICES]);
    CHECK(right);
    for (int i = 0; i < DEVICES; i++)
        if (!(out[i] = calloc(1, bytes)))
            abort();
    for (int i = 0; i < UNDER_WAY; i++) { /* y = x w + y / 2, exact for as many */
        const product *p = &s->on[i % DEVICES];
        CHECK_OK(bski_plan_run(product_op(), p->plan, p->queue, p->args.bytes));
    }
    for (int i = 0; i < DEVICES; i++) {
        const product *p = &s->on[i];
        CHECK_OK(bsk_mem_download(p->queue, out[i], p->memory[product_out()], bytes));
    }
    for (int i = 0; i < DEVICES; i++)
        CHECK_OK(bsk_queue_sync(s->on[i].queue));
    CHECK(!memcmp(out[0], out[1], bytes));
    for (int i = 0; i < DEVICES; i++)
        free(out[i]);
}

/* A thread that goes from one device to the other, with memory and queues of its own. */
typedef struct walker {
    pair own;
    int first;
    bool right;
} walker;

static void *walker_run(void *user)
{
    walker *w = user;
    w->right = true;
    for (int i = 0; i < TURNS; i++)
        w->right &= product_right(&w->own, &w->own.on[(w->first + i) % DEVICES]);
    return NULL;
}

static void test_threads(bsk_context *context, const bsk_device *const *devices)
{
    walker walkers[2];
    bsk_layout *layouts[2] = {NULL};
    pthread_t threads[2];
    bool good = true;
    for (int i = 0; i < 2; i++) {
        walkers[i] = (walker){.first = i};
        good &= pair_make(&walkers[i].own, context, devices, &layouts[i]);
    }
    for (int i = 0; good && i < 2; i++)
        CHECK(!pthread_create(&threads[i], NULL, walker_run, &walkers[i]));
    for (int i = 0; i < 2; i++) {
        CHECK(good && !pthread_join(threads[i], NULL) && walkers[i].right);
        pair_free(&walkers[i].own);
        bsk_layout_release(&layouts[i]);
    }
}

/* --- Memory of the other device --- */

/* The product of device 0 with the operands of device 1. */
static product product_reaching(const pair *s)
{
    product p = s->on[0];
    for (int i = 0; i < product_out(); i++)
        p.memory[i] = s->on[1].memory[i];
    product_bind(&p);
    return p;
}

/* Legal where the caller has opened it to the plan's device. */
static void test_peer_memory(const pair *s)
{
    int can = 0;
    CHECK_CUDA(cudaDeviceCanAccessPeer(&can, 0, 1));
    if (!can) {
        fprintf(stderr, "  device 0 does not reach the memory of device 1\n");
        atomic_fetch_add(&unit_skipped, 1);
        return;
    }
    const product reaching = product_reaching(s);
    CHECK_CUDA(cudaSetDevice(0));
    CHECK_CUDA(cudaDeviceEnablePeerAccess(1, 0));
    CHECK(product_right(s, &reaching));
    CHECK_CUDA(cudaDeviceDisablePeerAccess(1));
    CHECK(product_right(s, &s->on[0]) && product_right(s, &s->on[1]));
}

/* Otherwise the device is lost, and the process goes on: in a process of its own. */
static void test_foreign_memory(const pair *s)
{
    const size_t bytes = s->host.bytes[product_out()];
    unsigned char *got = calloc(1, bytes);
    bsk_mem memory;
    if (!got)
        abort();
    const product reaching = product_reaching(s);
    const bsk_status status = product_run(&reaching, got);
    if (status == BSK_OK) { /* devices with one page table */
        CHECK(!memcmp(got, s->wanted, bytes));
    } else {
        CHECK_ERROR(status, BSK_E_DEVICE_LOST, "cuda");
        CHECK_STATUS(bsk_queue_sync(reaching.queue), BSK_E_DEVICE_LOST);
        CHECK(bsk_mem_alloc(s->on[0].device, bytes, &memory) != BSK_OK);
    }
    CHECK(product_right(s, &s->host));
    free(got);
}

static void test_foreign_process(const char *program, const char *module)
{
    int status = -1;
    const pid_t child = fork();
    if (child == 0) {
        execl(program, program, module, "foreign", (char *)NULL);
        _exit(127);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    const bsk_device *devices[DEVICES] = {NULL};
    bsk_layout *layout = NULL;
    char here[2048] = "", directory[4096];
    const char *module = argc > 1 ? argv[1] : "", *end = strrchr(module, '/');
    pair s;
    if (*module != '/' && !getcwd(here, sizeof here))
        abort();
    snprintf(directory, sizeof directory, "%s%s%.*s", here, *here ? "/" : "",
             end ? (int)(end - module) : 0, module);
    params.plugin_path = directory;
    if (!CHECK_OK(bsk_context_create(&params, &context)))
        return unit_report();
    if (bsk_context_find_device(context, "cuda:0", &devices[0]) ||
        bsk_context_find_device(context, "cuda:1", &devices[1])) {
        int count = 0;
        CHECK(cudaGetDeviceCount(&count) != cudaSuccess || count < DEVICES);
        bsk_context_destroy(&context);
        return unit_report() ? 1 : 77;
    }
    if (pair_make(&s, context, devices, &layout)) {
        if (argc > 2) {
            test_foreign_memory(&s);
        } else {
            test_streams(&s);
            test_queues(&s);
            test_turns(&s);
            test_threads(context, devices);
            test_peer_memory(&s);
            test_foreign_process(argv[0], module);
        }
    }
    pair_free(&s);
    bsk_layout_release(&layout);
    bsk_context_destroy(&context);
    return unit_report();
}
