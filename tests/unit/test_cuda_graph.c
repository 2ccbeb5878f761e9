/* The CUDA backend round the kernels: plans by several threads, all ops captured in one CUDA graph
 * and replayed, wrapped streams, the thread's current device, and faults. Arguments: the module, and
 * the backend's name if that is not cuda: the HIP backend's host code runs on NVIDIA devices too
 * (tests/hip_on_cuda). */
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "requests.h"
#include "unit.h"

#define CHECK_CUDA(call) CHECK((call) == cudaSuccess)

/* --- One op with its memory on the device --- */

typedef struct job {
    const bsk_device *device;
    const bski_op_info *op;
    request_struct params, args;
    bsk_plan *plan;
    bsk_plan_info info;
    bsk_mem memory[BSKI_MAX_ARGS][REQUEST_PAIRS];
    unsigned char *wanted[BSKI_MAX_ARGS][REQUEST_PAIRS]; /* after a run; NULL: absent */
    size_t bytes[BSKI_MAX_ARGS];
    bsk_mem workspace;
} job;

static int job_views(const job *j, int i)
{
    return j->op->args[i].list ? REQUEST_PAIRS : 1;
}

/* The numbers that argument i starts from. */
static unsigned char *job_numbers(const job *j, int i, int p)
{
    unsigned char *numbers = malloc(j->bytes[i]);
    if (!numbers)
        abort();
    request_numbers(bski_arg_tensor(j->op, j->params.bytes, i), numbers, j->bytes[i],
                    (unsigned)(i + 7 * p));
    return numbers;
}

/* What a job is made of: `kernels` is as in bsk_plan_options. */
typedef struct job_request {
    const bsk_device *device;
    const bsk_layout *layout;
    request_size size;
    bsk_dtype dtype;
    const char *kernels;
} job_request;

/* False, with nothing kept, where no plan can be made. */
static bool job_start(job *j, const job_request *r, const bski_op_info *op, bool optional)
{
    const bsk_device *device = r->device;
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    options.fallback = BSK_FALLBACK_FORBID;
    options.kernels = r->kernels;
    memset(j, 0, sizeof *j);
    j->device = device;
    j->op = op;
    j->info.struct_size = sizeof j->info;
    CHECK(request_fill_sized(op, r->layout, &r->size, r->dtype, optional, &j->params));
    if (bski_plan_create(op, device, j->params.bytes, &options, &j->plan))
        return false;
    CHECK_OK(bsk_plan_query(j->plan, &j->info));
    CHECK(j->info.capture_safe && !j->info.synchronous);
    request_scalars(op, &j->args);
    for (int i = 0; i < op->arg_count; i++) {
        const bski_arg *a = &op->args[i];
        const bsk_tensor *t = bski_arg_tensor(op, j->params.bytes, i);
        const bsk_mem *list = j->memory[i];
        if (t->dtype == BSK_NONE)
            continue;
        CHECK_OK(bsk_tensor_bytes(t, &j->bytes[i]));
        for (int p = 0; p < job_views(j, i); p++) {
            CHECK_OK(bsk_mem_alloc(device, j->bytes[i], &j->memory[i][p]));
            j->wanted[i][p] = job_numbers(j, i, p);
        }
        if (a->list)
            memcpy(j->args.bytes + a->mem, &list, sizeof list);
        else
            memcpy(j->args.bytes + a->mem, list, sizeof *list);
    }
    CHECK_OK(bsk_mem_alloc(device, j->info.workspace_bytes, &j->workspace));
    if (j->info.workspace_bytes)
        memcpy(j->args.bytes + op->workspace, &j->workspace, sizeof j->workspace);
    return true;
}

static void job_free(job *j)
{
    for (int i = 0; i < BSKI_MAX_ARGS; i++)
        for (int p = 0; p < REQUEST_PAIRS; p++) {
            bsk_mem_free(j->device, &j->memory[i][p]);
            free(j->wanted[i][p]);
        }
    bsk_mem_free(j->device, &j->workspace);
    bsk_plan_destroy(&j->plan);
}

/* Every argument as it was before any run, and poison in the workspace. */
static void job_reset(const job *j, bsk_queue *queue)
{
    for (int i = 0; i < j->op->arg_count; i++)
        for (int p = 0; p < REQUEST_PAIRS && j->wanted[i][p]; p++) {
            unsigned char *numbers = job_numbers(j, i, p);
            CHECK_OK(bsk_mem_upload(queue, j->memory[i][p], numbers, j->bytes[i]));
            CHECK_OK(bsk_queue_sync(queue));
            free(numbers);
        }
    CHECK_OK(bsk_mem_fill(queue, j->workspace, 0xa5, j->info.workspace_bytes));
}

/* Takes what the device holds as what later runs must give; answers whether that is new. */
static bool job_keep(job *j, bsk_queue *queue)
{
    bool changed = false;
    for (int i = 0; i < j->op->arg_count; i++)
        for (int p = 0; p < REQUEST_PAIRS && j->wanted[i][p]; p++) {
            unsigned char *numbers = job_numbers(j, i, p);
            CHECK_OK(bsk_mem_download(queue, j->wanted[i][p], j->memory[i][p], j->bytes[i]));
            CHECK_OK(bsk_queue_sync(queue));
            changed |= memcmp(numbers, j->wanted[i][p], j->bytes[i]) != 0;
            free(numbers);
        }
    return changed;
}

/* Whether the device holds what is wanted, or, with wanted = false, what the job started from. */
static bool job_holds(const job *j, bsk_queue *queue, bool wanted)
{
    bool same = true;
    for (int i = 0; i < j->op->arg_count; i++)
        for (int p = 0; p < REQUEST_PAIRS && j->wanted[i][p]; p++) {
            unsigned char *numbers = job_numbers(j, i, p), *got = malloc(j->bytes[i]);
            if (!got)
                abort();
            CHECK_OK(bsk_mem_download(queue, got, j->memory[i][p], j->bytes[i]));
            CHECK_OK(bsk_queue_sync(queue));
            same &= !memcmp(got, wanted ? j->wanted[i][p] : numbers, j->bytes[i]);
            free(numbers);
            free(got);
        }
    return same;
}

/* --- Graphs --- */

/* All ops in one graph. Capturing executes nothing, and every replay gives the bits of the runs. */
static void graph_check(job *jobs, size_t count, cudaStream_t stream, bsk_queue *queue)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t runs = NULL;
    size_t nodes = 0;
    for (size_t i = 0; i < count; i++) {
        job_reset(&jobs[i], queue);
        CHECK_OK(bski_plan_run(jobs[i].op, jobs[i].plan, queue, jobs[i].args.bytes));
        if (!CHECK(job_keep(&jobs[i], queue)))
            fprintf(stderr, "  %s wrote nothing\n", jobs[i].op->name);
        job_reset(&jobs[i], queue);
    }
    CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (size_t i = 0; i < count; i++)
        if (!CHECK_OK(bski_plan_run(jobs[i].op, jobs[i].plan, queue, jobs[i].args.bytes)))
            fprintf(stderr, "  %s\n", jobs[i].op->name);
    CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
    CHECK(graph && cudaGraphGetNodes(graph, NULL, &nodes) == cudaSuccess && nodes >= count);
    for (size_t i = 0; i < count; i++)
        if (!CHECK(job_holds(&jobs[i], queue, false)))
            fprintf(stderr, "  %s ran while it was captured\n", jobs[i].op->name);
    CHECK_CUDA(cudaGraphInstantiate(&runs, graph, 0));
    for (int replay = 0; replay < 3 && runs; replay++) {
        for (size_t i = 0; i < count; i++)
            job_reset(&jobs[i], queue);
        CHECK_CUDA(cudaGraphLaunch(runs, stream));
        for (size_t i = 0; i < count; i++)
            if (!CHECK(job_holds(&jobs[i], queue, true)))
                fprintf(stderr, "  %s by %s differs in replay %d\n", jobs[i].op->name,
                        jobs[i].info.entry, replay);
    }
    if (runs)
        CHECK_CUDA(cudaGraphExecDestroy(runs));
    if (graph)
        CHECK_CUDA(cudaGraphDestroy(graph));
}

static bool has_entry(const bsk_context *context, const bsk_device *device, const bski_op_info *op)
{
    bsk_entry_info e = BSK_INIT(bsk_entry_info);
    bsk_device_info d = BSK_INIT(bsk_device_info);
    const char *kernel = bski_kernel_op(op->kernel_op)->name;
    CHECK_OK(bsk_device_query(device, &d));
    for (size_t i = 0; bsk_context_entry(context, i, &e) == BSK_OK; i++)
        if (!strcmp(e.backend, d.backend) && !strcmp(e.op, kernel))
            return true;
    return false;
}

/* Runs `count` jobs as graph_check says, and frees them. */
static void graph_jobs(const bsk_device *device, job *jobs, size_t count)
{
    cudaStream_t stream = NULL;
    bsk_queue *queue = NULL;
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK_OK(bsk_queue_wrap(device, stream, &queue));
    graph_check(jobs, count, stream, queue);
    while (count)
        job_free(&jobs[--count]);
    bsk_queue_destroy(&queue);
    CHECK_CUDA(cudaStreamDestroy(stream)); /* still the caller's */
}

/* Every op, plain and with all options; in other types than f32 those that have entries for them. */
static void test_graph(bsk_context *context, const bsk_device *device, bsk_dtype dtype)
{
    bsk_layout *layout = NULL;
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    job *jobs = calloc(2 * bski_op_count, sizeof *jobs);
    size_t count = 0;
    if (!jobs)
        abort();
    CHECK_OK(request_layout(context, &layout));
    CHECK_OK(bsk_layout_query(layout, &info));
    const job_request r = {device, layout, request_small(info.nnz), dtype, NULL};
    for (size_t i = 0; i < 2 * bski_op_count; i++) {
        const bski_op_info *op = bski_ops[i / 2];
        if (!has_entry(context, device, op))
            continue;
        const bool planned = job_start(&jobs[count], &r, op, i % 2);
        count += planned;
        if (dtype == BSK_F32 && !CHECK(planned))
            fprintf(stderr, "  %s%s: %s\n", op->name, i % 2 ? " with all options" : "",
                    bsk_last_error());
    }
    CHECK(count >= bski_op_count / 2);
    graph_jobs(device, jobs, count);
    free(jobs);
    bsk_layout_release(&layout);
}

/* --- Plans by several threads --- */

typedef struct planner {
    bsk_context *context;
    job_request request;
} planner;

static void *planner_run(void *argument)
{
    const planner *p = argument;
    job j;
    for (size_t i = 0; i < bski_op_count; i++)
        if (has_entry(p->context, p->request.device, bski_ops[i]) &&
            CHECK(job_start(&j, &p->request, bski_ops[i], false)))
            job_free(&j);
    return NULL;
}

/* Threads that plan the same ops at once, before any kernel is loaded. */
static void test_plans(bsk_context *context, const bsk_device *device)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    bsk_layout *layout = NULL;
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    CHECK_OK(request_layout(context, &layout));
    CHECK_OK(bsk_layout_query(layout, &info));
    planner p = {context, {device, layout, request_small(info.nnz), BSK_F32, NULL}};
    for (int t = 0; t < THREADS; t++)
        if (pthread_create(&threads[t], NULL, planner_run, &p))
            abort();
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    bsk_layout_release(&layout);
}

/* A type of operands that an entry takes. */
static bsk_dtype entry_dtype(const bsk_entry_info *e)
{
    static const bsk_dtype dtypes[] = {BSK_BF16, BSK_F16, BSK_F8E4M3, BSK_F8E5M2, BSK_F32};
    size_t i = 0;
    while (i + 1 < UNIT_COUNT(dtypes) && !(e->dtypes & 1u << dtypes[i]))
        i++;
    return dtypes[i];
}

/* Whether an entry is one of those that are asked for, and runs an op. Portable ones that are no
 * products are what test_graph has. */
static bool is_wanted(const bsk_entry_info *e, const bski_op_info *op, bool products)
{
    const bool product = !strcmp(e->op, "dsd") || !strcmp(e->op, "sdd");
    return !strcmp(e->op, bski_kernel_op(op->kernel_op)->name) && product == products &&
           (product ? !strncmp(op->name, "matmul", 6) : *e->arch != 0);
}

/* Each entry of the products by name, or each tuned one of other ops, on layouts that suit it: all of
 * them are captured too. */
static void test_graph_entries(bsk_context *context, const bsk_device *device, bool products)
{
    /* sizes of heads, and samples of what has no layout, the second with all options; or samples */
    static const int64_t numbers[2][3] = {{64, 128, 0}, {32, 160, 1}};
    static const int32_t blocks[] = {8, 16, 32, 64, 128};
    enum { SIZE = 512, WIDE = 8200, LAYOUTS = UNIT_COUNT(blocks), MAX_JOBS = 1024 };
    bsk_layout *layouts[LAYOUTS] = {NULL};
    job_request r = {.device = device};
    bsk_device_info d = BSK_INIT(bsk_device_info);
    bsk_entry_info e = BSK_INIT(bsk_entry_info);
    job *jobs = calloc(MAX_JOBS, sizeof *jobs);
    size_t count = 0;
    bool any = false; /* of the device's entries is wanted */
    if (!jobs)
        abort();
    CHECK_OK(bsk_device_query(device, &d));
    for (int b = 0; b < LAYOUTS; b++) {
        bsk_layout_params p = BSK_INIT(bsk_layout_params);
        p.rows = p.cols = SIZE;
        p.block_rows = p.block_cols = blocks[b];
        CHECK_OK(bsk_layout_random(context, &p, 0.4, 3, &layouts[b]));
    }
    for (size_t i = 0; bsk_context_entry(context, i, &e) == BSK_OK; i++) {
        size_t before = count;
        char kernels[128];
        snprintf(kernels, sizeof kernels, "+%s", e.name);
        r.kernels = kernels;
        r.dtype = entry_dtype(&e);
        bool wanted = false;
        for (size_t o = 0; o < bski_op_count && !strcmp(e.backend, d.backend); o++) {
            if (!is_wanted(&e, bski_ops[o], products))
                continue;
            wanted = any = true;
            for (int b = 0; b < LAYOUTS; b++)
                for (size_t n = 0; n < UNIT_COUNT(numbers[0]) && numbers[products][n]; n++) {
                    bsk_layout_info info = BSK_INIT(bsk_layout_info);
                    const int64_t wide = bski_ops[o]->layout || b ? SIZE : WIDE;
                    const bool optional = !products && n;
                    CHECK_OK(bsk_layout_query(layouts[b], &info));
                    r.layout = layouts[b];
                    r.size = (request_size){numbers[products][n], SIZE, wide, blocks[b], info.nnz};
                    if (count == MAX_JOBS || !job_start(&jobs[count], &r, bski_ops[o], optional))
                        continue;
                    CHECK(!strcmp(jobs[count].info.entry, e.name));
                    count++;
                }
        }
        if (wanted && count == before) { /* for another generation */
            fprintf(stderr, "  no plan by %s: %s\n", e.name, bsk_last_error());
            atomic_fetch_add(&unit_skipped, 1);
        }
    }
    CHECK((count > 0 || !any) && count < MAX_JOBS);
    graph_jobs(device, jobs, count);
    for (int b = 0; b < LAYOUTS; b++)
        bsk_layout_release(&layouts[b]);
    free(jobs);
}

/* --- Streams, devices, faults --- */

/* Memory, a plan and a queue of its own, while a stream of the thread captures, which forbids them to
 * all threads: none is part of the capture or ends it. */
static void use_apart(const bsk_device *device)
{
    float numbers[64] = {3};
    bsk_mem memory;
    bsk_queue *queue;
    bsk_plan *plan;
    bsk_unary_params p = BSK_INIT(bsk_unary_params);
    bsk_unary_args a = BSK_INIT(bsk_unary_args);
    p.kind = BSK_UNARY_NEG;
    p.x = p.y = bsk_tensor_1d(BSK_F32, 64);
    CHECK_OK(bsk_mem_alloc(device, sizeof numbers, &memory));
    CHECK_OK(bsk_queue_create(device, &queue));
    CHECK_OK(bsk_unary_plan(device, &p, NULL, &plan));
    CHECK_OK(bsk_mem_upload(queue, memory, numbers, sizeof numbers));
    a.x = a.y = memory;
    CHECK_OK(bsk_unary_run(plan, queue, &a));
    CHECK_OK(bsk_mem_download(queue, numbers, memory, sizeof numbers));
    CHECK_OK(bsk_queue_sync(queue));
    CHECK(numbers[0] == -3);
    bsk_plan_destroy(&plan);
    bsk_queue_destroy(&queue);
    bsk_mem_free(device, &memory);
}

static void test_streams(const bsk_device *device, const bsk_device *other)
{
    static void *const defaults[] = {NULL, (void *)0x1, (void *)0x2}; /* legacy, by thread */
    int before = -1, after = -1;
    bsk_queue *queue = NULL;
    bsk_mem memory;
    unsigned char bytes[64] = {0};
    CHECK_CUDA(cudaGetDevice(&before));
    for (size_t i = 0; i < UNIT_COUNT(defaults); i++) {
        CHECK_OK(bsk_queue_wrap(device, defaults[i], &queue));
        CHECK_OK(bsk_mem_alloc(device, sizeof bytes, &memory));
        CHECK_OK(bsk_mem_fill(queue, memory, (uint8_t)(i + 1), sizeof bytes));
        CHECK_OK(bsk_mem_download(queue, bytes, memory, sizeof bytes));
        CHECK_OK(bsk_queue_sync(queue));
        CHECK(bytes[0] == i + 1 && bytes[63] == i + 1);
        bsk_mem_free(device, &memory);
        bsk_queue_destroy(&queue);
    }
    cudaStream_t capturing = NULL; /* can be wrapped while it captures */
    cudaGraph_t graph = NULL;
    CHECK_CUDA(cudaStreamCreateWithFlags(&capturing, cudaStreamNonBlocking));
    CHECK_OK(bsk_mem_alloc(device, sizeof bytes, &memory));
    CHECK_CUDA(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeGlobal));
    CHECK_OK(bsk_queue_wrap(device, capturing, &queue));
    CHECK_OK(bsk_mem_fill(queue, memory, 1, sizeof bytes));
    use_apart(device);
    CHECK_CUDA(cudaStreamEndCapture(capturing, &graph));
    CHECK(graph != NULL);
    CHECK_CUDA(cudaGraphDestroy(graph));
    bsk_queue_destroy(&queue);
    bsk_mem_free(device, &memory);
    CHECK_CUDA(cudaStreamDestroy(capturing));
    if (other) { /* works while the thread's device is another one, and leaves it */
        cudaStream_t stream = NULL;
        CHECK_CUDA(cudaStreamCreate(&stream));
        CHECK_ERROR(bsk_queue_wrap(other, stream, &queue), BSK_E_INVALID, "another device");
        CHECK(!queue);
        CHECK_CUDA(cudaStreamDestroy(stream));
        CHECK_OK(bsk_queue_create(other, &queue));
        CHECK_OK(bsk_mem_alloc(other, sizeof bytes, &memory));
        CHECK_OK(bsk_mem_fill(queue, memory, 0x3c, sizeof bytes));
        CHECK_OK(bsk_mem_download(queue, bytes, memory, sizeof bytes));
        CHECK_OK(bsk_queue_sync(queue));
        CHECK(bytes[0] == 0x3c && bytes[63] == 0x3c);
        bsk_mem_free(other, &memory);
        bsk_queue_destroy(&queue);
    } else {
        atomic_fetch_add(&unit_skipped, 1);
    }
    CHECK_CUDA(cudaGetDevice(&after));
    CHECK(before == after);
}

static void test_memory_short(const bsk_device *device)
{
    bsk_mem memory, small;
    CHECK_ERROR(bsk_mem_alloc(device, (size_t)1 << 46, &memory), BSK_E_DEVICE_NOMEM, "bytes");
    CHECK(memory.kind == BSK_MEM_NULL);
    CHECK_OK(bsk_mem_alloc(device, 0, &small));
    CHECK(small.kind == BSK_MEM_DEVICE && small.size == 1);
    bsk_mem_free(device, &small);
    CHECK_OK(bsk_mem_alloc(device, 1000, &small));
    CHECK((uintptr_t)small.handle % 256 == 0);
    bsk_mem_free(device, &small);
}

static void test_events(const bsk_device *device)
{
    enum { BYTES = 1 << 26 };
    bsk_queue *queue = NULL;
    bsk_event *start = NULL, *stop = NULL;
    bsk_mem memory;
    double ms = -1;
    CHECK_OK(bsk_queue_create(device, &queue));
    CHECK_OK(bsk_mem_alloc(device, BYTES, &memory));
    CHECK_OK(bsk_event_create(device, &start));
    CHECK_OK(bsk_event_create(device, &stop));
    CHECK_OK(bsk_event_record(start, queue));
    CHECK_OK(bsk_mem_fill(queue, memory, 1, BYTES));
    CHECK_OK(bsk_event_record(stop, queue));
    CHECK_OK(bsk_event_elapsed(start, stop, &ms));
    CHECK(ms > 0 && ms < 10000);
    bsk_event_destroy(&start);
    bsk_event_destroy(&stop);
    bsk_mem_free(device, &memory);
    bsk_queue_destroy(&queue);
}

int main(int argc, char **argv)
{
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    const bsk_device *device = NULL, *other = NULL;
    char here[2048] = "", directory[4096], first[32], second[32];
    const char *module = argc > 1 ? argv[1] : "", *end = strrchr(module, '/');
    const char *backend = argc > 2 ? argv[2] : "cuda";
    snprintf(first, sizeof first, "%s:0", backend);
    snprintf(second, sizeof second, "%s:1", backend);
    if (*module != '/' && !getcwd(here, sizeof here))
        abort();
    snprintf(directory, sizeof directory, "%s%s%.*s", here, *here ? "/" : "",
             end ? (int)(end - module) : 0, module);
    params.plugin_path = directory;
    if (!CHECK_OK(bsk_context_create(&params, &context)))
        return unit_report();
    if (bsk_context_find_device(context, first, &device)) {
        int count = 0;
        CHECK(cudaGetDeviceCount(&count) != cudaSuccess || !count);
        CHECK_TEXT(bsk_last_error(), backend);
        bsk_context_destroy(&context);
        return unit_report() ? 1 : 77;
    }
    if (bsk_context_find_device(context, second, &other))
        other = NULL;
    test_plans(context, device);
    test_graph(context, device, BSK_F32);
    test_graph(context, device, BSK_BF16);
    test_graph_entries(context, device, true);
    test_graph_entries(context, device, false);
    test_streams(device, other);
    test_memory_short(device);
    test_events(device);
    bsk_context_destroy(&context);
    return unit_report();
}
