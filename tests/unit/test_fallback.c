/* What happens where a device has no entry of its own: policies, warnings, and every op through
 * staged copies, compared with the CPU device bit by bit. Argument: the fake module. */
#include <stdbool.h>

#include "fake_use.h"
#include "requests.h"
#include "unit.h"

static const fake_control *fake;
static const char *plugin_path;

static bsk_context *context_new(bsk_fallback fallback, unit_log *log,
                                const bsk_allocator *allocator)
{
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    params.plugin_path = plugin_path;
    params.fallback = fallback;
#ifdef UNIT_CPU_TUNED
    static const char *const sets[] = {UNIT_CPU_SETS};
    char kernels[128] = "";
    for (size_t i = 0, n = 0; i < sizeof sets / sizeof *sets; i++)
        n += snprintf(kernels + n, sizeof kernels - n, "%s-*_%s", i ? "," : "", sets[i]);
    params.kernels = kernels;
#endif
    params.log = log ? unit_log_line : NULL;
    params.log_user = log;
    if (allocator)
        params.allocator = *allocator;
    CHECK_OK(bsk_context_create(&params, &context));
    return context;
}

/* --- One op on one device --- */

typedef struct job {
    const bsk_device *device;
    const bski_op_info *op;
    request_struct params, args;
    bsk_plan *plan;
    bsk_plan_info info;
    bsk_queue *queue;
    bsk_mem memory[BSKI_MAX_ARGS][REQUEST_PAIRS];
    unsigned char *host[BSKI_MAX_ARGS][REQUEST_PAIRS];
    size_t bytes[BSKI_MAX_ARGS];
    bsk_mem workspace;
} job;

static int job_views(const job *j, int i)
{
    return j->op->args[i].list ? REQUEST_PAIRS : 1;
}

static bsk_status job_memory(job *j, int i, int p)
{
    const bsk_tensor *t = bski_arg_tensor(j->op, j->params.bytes, i);
    size_t bytes = j->bytes[i];
    j->host[i][p] = malloc(bytes);
    if (!j->host[i][p])
        abort();
    request_numbers(t, j->host[i][p], bytes, (unsigned)(i + 7 * p));
    bsk_status status = bsk_mem_alloc(j->device, bytes, &j->memory[i][p]);
    return status ? status : bsk_mem_upload(j->queue, j->memory[i][p], j->host[i][p], bytes);
}

/* Memory of all present arguments, in params' order, bound to args. */
static bsk_status job_bind(job *j)
{
    request_scalars(j->op, &j->args);
    for (int i = 0; i < j->op->arg_count; i++) {
        const bski_arg *a = &j->op->args[i];
        const bsk_tensor *t = bski_arg_tensor(j->op, j->params.bytes, i);
        if (t->dtype == BSK_NONE)
            continue;
        CHECK_OK(bsk_tensor_bytes(t, &j->bytes[i]));
        for (int p = 0; p < job_views(j, i); p++) {
            bsk_status status = job_memory(j, i, p);
            if (status)
                return status;
        }
        const bsk_mem *list = j->memory[i];
        if (a->list)
            memcpy(j->args.bytes + a->mem, &list, sizeof list);
        else
            memcpy(j->args.bytes + a->mem, list, sizeof *list);
    }
    bsk_status status = bsk_mem_alloc(j->device, j->info.workspace_bytes, &j->workspace);
    if (j->info.workspace_bytes)
        memcpy(j->args.bytes + j->op->workspace, &j->workspace, sizeof j->workspace);
    return status;
}

static bsk_status job_start(job *j, const bsk_device *device, const bski_op_info *op,
                            const bsk_layout *layout, int64_t nnz, bool optional)
{
    memset(j, 0, sizeof *j);
    j->device = device;
    j->op = op;
    j->info.struct_size = sizeof j->info;
    CHECK(request_fill(op, layout, nnz, BSK_F32, optional, &j->params));
    bsk_status status = bski_plan_create(op, device, j->params.bytes, NULL, &j->plan);
    if (!status)
        status = bsk_plan_query(j->plan, &j->info);
    if (!status)
        status = bsk_queue_create(device, &j->queue);
    return status ? status : job_bind(j);
}

static bsk_status job_run(job *j)
{
    bsk_status status = bski_plan_run(j->op, j->plan, j->queue, j->args.bytes);
    return status ? status : bsk_queue_sync(j->queue);
}

static void job_download(job *j)
{
    for (int i = 0; i < j->op->arg_count; i++)
        for (int p = 0; p < job_views(j, i); p++)
            if (j->host[i][p])
                CHECK_OK(bsk_mem_download(j->queue, j->host[i][p], j->memory[i][p], j->bytes[i]));
    CHECK_OK(bsk_queue_sync(j->queue));
}

static void job_free(job *j)
{
    bsk_queue_destroy(&j->queue);
    for (int i = 0; i < BSKI_MAX_ARGS; i++)
        for (int p = 0; p < REQUEST_PAIRS; p++) {
            bsk_mem_free(j->device, &j->memory[i][p]);
            free(j->host[i][p]);
        }
    bsk_mem_free(j->device, &j->workspace);
    bsk_plan_destroy(&j->plan);
}

/* --- Tests --- */

/* Both devices get the same bits in all arguments, outputs and inputs. */
static void compare(const bsk_context *context, const bski_op_info *op, const bsk_layout *layout,
                    int64_t nnz, bool optional)
{
    job direct, staged;
    bool good =
        CHECK_OK(job_start(&direct, fake_device_find(context, "cpu:0"), op, layout, nnz, optional));
    good &= CHECK_OK(
        job_start(&staged, fake_device_find(context, "fake:0"), op, layout, nnz, optional));
    bool own = op->kernel_op == BSK_OP_BIAS_ACT; /* the fake's own entry */
    if (good && !(op->kernel_op == BSK_OP_BIAS_ACT_GRAD)) {
        CHECK(staged.info.staged == !own && !direct.info.staged);
        CHECK(!strcmp(staged.info.backend, own ? "fake" : "cpu"));
        CHECK(!strcmp(staged.info.op, op->name));
        if (!own) {
            CHECK(staged.info.synchronous && !staged.info.capture_safe);
            CHECK(staged.info.workspace_bytes == 0);
        }
        CHECK_OK(job_run(&direct));
        CHECK_OK(job_run(&staged));
        bool changed = false;
        for (int i = 0; i < op->arg_count; i++) {
            const bsk_tensor *t = bski_arg_tensor(op, staged.params.bytes, i);
            for (int p = 0; p < job_views(&direct, i) && direct.host[i][p]; p++) {
                unsigned char *before = malloc(direct.bytes[i]);
                if (!before)
                    abort();
                request_numbers(t, before, direct.bytes[i], (unsigned)(i + 7 * p));
                CHECK_OK(bsk_mem_download(direct.queue, direct.host[i][p], direct.memory[i][p],
                                          direct.bytes[i]));
                CHECK_OK(bsk_mem_download(staged.queue, staged.host[i][p], staged.memory[i][p],
                                          staged.bytes[i]));
                CHECK_OK(bsk_queue_sync(direct.queue));
                CHECK_OK(bsk_queue_sync(staged.queue));
                if (!CHECK(!memcmp(direct.host[i][p], staged.host[i][p], direct.bytes[i])))
                    fprintf(stderr, "  %s.%s[%d]\n", op->name, op->args[i].name, p);
                changed |= memcmp(before, staged.host[i][p], direct.bytes[i]) != 0;
                free(before);
            }
        }
        if (!CHECK(changed))
            fprintf(stderr, "  %s wrote nothing\n", op->name);
    }
    if (!good)
        fprintf(stderr, "  %s%s\n", op->name, optional ? " with all options" : "");
    job_free(&direct);
    job_free(&staged);
}

/* Every op, with and without its optional arguments; then a new context in the same way with one
 * warning for each op that the fake lacks. */
static void test_staging(void)
{
    unit_log *log = unit_log_new();
    bsk_context *context = context_new(BSK_FALLBACK_ALLOW, log, NULL);
    bsk_layout *layout = NULL;
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    CHECK_OK(request_layout(context, &layout));
    CHECK_OK(bsk_layout_query(layout, &info));
    CHECK(bski_op_count == sizeof request_shapes / sizeof *request_shapes);
    for (int optional = 0; optional < 2; optional++)
        for (size_t i = 0; i < bski_op_count; i++) {
            const bski_op_info *op = bski_ops[i];
            int before = log->lines[BSK_LOG_WARN];
            compare(context, op, layout, info.nnz, optional);
            int warnings = log->lines[BSK_LOG_WARN] - before;
            /* Ops that share a kernel op, such as matmul and dsd, may share its warning. */
            bool own = op->kernel_op == BSK_OP_BIAS_ACT || op->kernel_op == BSK_OP_BIAS_ACT_GRAD;
            if (!CHECK(warnings == (!optional && !own && (bsk_op)i == op->kernel_op)))
                fprintf(stderr, "  %s: %d warnings\n", op->name, warnings);
        }
    CHECK(log->lines[BSK_LOG_WARN] == BSK_OP_COUNT - 2);
    CHECK_TEXT(log->text, "fake:0");
    CHECK_TEXT(log->text, "cross_entropy");
    CHECK(!log->lines[BSK_LOG_ERROR] && !log->lines[BSK_LOG_DISPATCH]);

    /* The other device of the backend is warned about on its own. */
    int before = log->lines[BSK_LOG_WARN];
    job j;
    CHECK_OK(job_start(&j, fake_device_find(context, "fake:1"), bski_op_find("adam"), NULL, 0, 0));
    job_free(&j);
    CHECK(log->lines[BSK_LOG_WARN] == before + 1);
    CHECK_TEXT(log->text, "fake:1");
    bsk_layout_release(&layout);
    bsk_context_destroy(&context);
    unit_log_free(log);
    fake_check_clean(fake);
}

/* device and forbid: no staging; the reasons are in the message. */
static void test_policies(void)
{
    bsk_context *context = context_new(BSK_FALLBACK_ALLOW, NULL, NULL);
    const bsk_device *device = fake_device_find(context, "fake:0");
    bsk_plan *plan = NULL;
    bsk_layout *layout = NULL;
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    CHECK_OK(request_layout(context, &layout));
    CHECK_OK(bsk_layout_query(layout, &info));
    for (size_t i = 0; i < bski_op_count; i++) {
        const bski_op_info *op = bski_ops[i];
        request_struct params;
        CHECK(request_fill(op, layout, info.nnz, BSK_F32, false, &params));
        bool own = op->kernel_op == BSK_OP_BIAS_ACT;
        bool reference = op->kernel_op == BSK_OP_BIAS_ACT_GRAD;
        bsk_plan_options options = BSK_INIT(bsk_plan_options);
        options.fallback = BSK_FALLBACK_DEVICE;
        CHECK_STATUS(bski_plan_create(op, device, params.bytes, &options, &plan),
                     own || reference ? BSK_OK : BSK_E_UNSUPPORTED);
        CHECK(!plan == !(own || reference));
        if (!plan)
            CHECK_TEXT(bsk_last_error(), op->kernel_op == (bsk_op)i ? op->name : "fake:0");
        bsk_plan_destroy(&plan);
        options.fallback = BSK_FALLBACK_FORBID;
        CHECK_STATUS(bski_plan_create(op, device, params.bytes, &options, &plan),
                     own ? BSK_OK : BSK_E_UNSUPPORTED);
        bsk_plan_destroy(&plan);
    }

    /* Refusals for a reason of each kind. */
    bsk_bias_act_params p = unit_bias_act(BSK_F32, 4, 8);
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    options.fallback = BSK_FALLBACK_FORBID;
    p.act = BSK_ACT_GELU;
    CHECK_ERROR(bsk_bias_act_plan(device, &p, &options, &plan), BSK_E_UNSUPPORTED, "epilogue");
    p = unit_bias_act(BSK_F32, 4, 8);
    p.x = bsk_tensor_ld(BSK_F32, 4, 8, 9);
    CHECK_ERROR(bsk_bias_act_plan(device, &p, &options, &plan), BSK_E_UNSUPPORTED, "stride");
    p = unit_bias_act(BSK_F64, 4, 8);
    CHECK_ERROR(bsk_bias_act_plan(device, &p, &options, &plan), BSK_E_UNSUPPORTED, "dtype");
    p = unit_bias_act(BSK_F32, 4, 8);
    for (int reason = BSK_REFUSE_DTYPE; reason < BSK_REASON_COUNT; reason++) {
        fake->refuse(reason);
        CHECK_ERROR(bsk_bias_act_plan(device, &p, &options, &plan), BSK_E_UNSUPPORTED,
                    "bias_act_f32_f2");
        options.fallback = BSK_FALLBACK_ALLOW;
        CHECK_OK(bsk_bias_act_plan(device, &p, &options, &plan));
        bsk_plan_destroy(&plan);
        options.fallback = BSK_FALLBACK_FORBID;
    }
    fake->refuse(12345); /* a module's nonsense is a refusal too */
    CHECK_STATUS(bsk_bias_act_plan(device, &p, &options, &plan), BSK_E_UNSUPPORTED);
    CHECK(!plan);
    fake->reset();
    bsk_layout_release(&layout);
    bsk_context_destroy(&context);
    fake_check_clean(fake);
}

/* A success leaves the thread's last error alone, a fallback included. */
static void test_last_error(void)
{
    bsk_context *context = context_new(BSK_FALLBACK_ALLOW, NULL, NULL);
    char before[512];
    CHECK_STATUS(bsk_context_find_device(context, "tpu:3", &(const bsk_device *){NULL}),
                 BSK_E_INVALID);
    snprintf(before, sizeof before, "%s", bsk_last_error());
    job j;
    CHECK_OK(job_start(&j, fake_device_find(context, "fake:0"), bski_op_find("adam"), NULL, 0, 0));
    CHECK_OK(job_run(&j));
    CHECK(!strcmp(before, bsk_last_error()));
    job_free(&j);
    bsk_context_destroy(&context);
    fake->fail(FAKE_OPEN, BSK_E_DEVICE, 0);
    context = context_new(BSK_FALLBACK_ALLOW, NULL, NULL);
    CHECK(!strcmp(before, bsk_last_error()));
    bsk_context_destroy(&context);
    fake->reset();
}

/* Faults in the middle of a staged run, and host memory that runs out there. */
static void test_staged_faults(void)
{
    static const fake_point points[] = {FAKE_DOWNLOAD, FAKE_UPLOAD, FAKE_SYNC};
    unit_heap heap = {0, -1};
    bsk_allocator allocator = unit_allocator(&heap);
    bsk_context *context = context_new(BSK_FALLBACK_ALLOW, NULL, &allocator);
    job j;
    CHECK_OK(job_start(&j, fake_device_find(context, "fake:0"), bski_op_find("adam"), NULL, 0, 1));
    CHECK_OK(job_run(&j));
    long live = atomic_load(&heap.live);
    for (size_t i = 0; i < UNIT_COUNT(points); i++) {
        int calls = 0;
        bsk_status status = BSK_E_DEVICE;
        for (; status != BSK_OK && calls < 50; calls++) {
            fake->fail(points[i], BSK_E_DEVICE, calls);
            status = job_run(&j);
            if (status)
                CHECK_ERROR(status, BSK_E_DEVICE, "fails as told");
            CHECK(atomic_load(&heap.live) == live);
        }
        CHECK(status == BSK_OK && calls > 1);
        fake->reset();
    }
    int tries = 0;
    bsk_status status = BSK_E_NOMEM;
    for (; status != BSK_OK && tries < 100; tries++) {
        atomic_store(&heap.countdown, tries);
        status = job_run(&j);
        if (status)
            CHECK_STATUS(status, BSK_E_NOMEM);
        CHECK(atomic_load(&heap.live) == live);
    }
    CHECK(status == BSK_OK && tries > 4);
    atomic_store(&heap.countdown, -1);
    job_free(&j);
    bsk_context_destroy(&context);
    CHECK(atomic_load(&heap.live) == 0);
    fake_check_clean(fake);
}

/* A hidden CPU still serves as the fallback, and views are checked against the plan's device. */
static void test_hidden_cpu(void)
{
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    params.plugin_path = plugin_path;
    params.backends = "fake";
    CHECK_OK(bsk_context_create(&params, &context));
    CHECK(bsk_context_device_count(context) == 2);
    job j;
    CHECK_OK(job_start(&j, fake_device_find(context, NULL), bski_op_find("adam"), NULL, 0, 0));
    CHECK(j.info.staged);
    CHECK_OK(job_run(&j));
    job_download(&j);
    float host[REQUEST_K * REQUEST_M];
    bsk_mem wrong = bsk_host_ptr(host);
    memcpy(j.args.bytes + j.op->args[j.op->main].mem, &wrong, sizeof wrong);
    CHECK_STATUS(job_run(&j), BSK_E_INVALID);
    job_free(&j);
    bsk_context_destroy(&context);
    fake_check_clean(fake);
}

/* The outputs of attention_grad side by side in the rows of one array, as those of one product are:
 * what each writes lies between the elements of the others. */
static void test_interleaved_outputs(const char *id, int shared, float *result)
{
    enum { BATCH = 2, TIME = 6, HEADS = 2, D = 4, ROW = HEADS * D, COUNT = BATCH * TIME * ROW };
    bsk_context *context = context_new(BSK_FALLBACK_ALLOW, NULL, NULL);
    const bsk_device *device = fake_device_find(context, id);
    bsk_layout_params grid = BSK_INIT(bsk_layout_params);
    bsk_layout *layout = NULL;
    bsk_queue *queue = NULL;
    bsk_plan *plan = NULL;
    bsk_mem in, out;
    float host[5 * COUNT];
    grid.rows = grid.cols = TIME;
    grid.block_rows = grid.block_cols = 2;
    CHECK_OK(bsk_layout_causal(context, &grid, 0, &layout));
    CHECK_OK(bsk_queue_create(device, &queue));
    CHECK_OK(bsk_mem_alloc(device, sizeof host, &in));
    CHECK_OK(bsk_mem_alloc(device, 3 * COUNT * sizeof *host, &out));
    for (int i = 0; i < 5 * COUNT; i++) // the last fifth: lse, q, k, v, dout before it
        host[i] = (float)(i * 37 % 23 - 11) / 16;
    CHECK_OK(bsk_mem_upload(queue, in, host, sizeof host));

    const bsk_tensor plain = bsk_tensor_heads(BSK_F32, BATCH, HEADS, TIME, D);
    bsk_attention_grad_params p = BSK_INIT(bsk_attention_grad_params);
    bsk_attention_grad_args a = BSK_INIT_ALPHA(bsk_attention_grad_args);
    p.layout = layout;
    p.causal = 1;
    p.q = p.k = p.v = p.o = p.dout = p.dq = plain;
    p.lse = bsk_tensor_3d(BSK_F32, BATCH, HEADS, TIME);
    if (shared) {
        p.dq.strides[0] *= 3;
        p.dq.strides[2] *= 3;
    }
    p.dk = p.dv = p.dq;
    CHECK_OK(bsk_attention_grad_plan(device, &p, NULL, &plan));
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    CHECK_OK(bsk_plan_query(plan, &info));
    CHECK(info.staged == !strcmp(id, "fake:0"));
    CHECK_OK(bsk_mem_alloc(device, info.workspace_bytes + 1, &a.workspace));
    bsk_mem *const inputs[] = {&a.q, &a.k, &a.v, &a.dout, &a.lse}, *const outputs[] = {&a.dq, &a.dk,
                                                                                       &a.dv};
    for (size_t i = 0; i < UNIT_COUNT(inputs); i++)
        *inputs[i] = bsk_mem_at(in, i * COUNT * sizeof *host);
    a.o = a.dout;
    const size_t apart = (shared ? ROW : COUNT) * sizeof *host;
    for (size_t i = 0; i < UNIT_COUNT(outputs); i++)
        *outputs[i] = bsk_mem_at(out, i * apart);
    CHECK_OK(bsk_attention_grad_run(plan, queue, &a));
    CHECK_OK(bsk_mem_download(queue, host, out, 3 * COUNT * sizeof *host));
    CHECK_OK(bsk_queue_sync(queue));
    for (int t = 0; t < BATCH * TIME; t++)
        for (int i = 0; i < 3; i++)
            memcpy(result + (t * 3 + i) * ROW,
                   host + (shared ? (t * 3 + i) : (i * BATCH * TIME + t)) * ROW,
                   ROW * sizeof *host);
    if (shared) { // one column too far to the left
        a.dv = bsk_mem_at(a.dv, 0);
        a.dv.offset -= sizeof *host;
        CHECK_ERROR(bsk_attention_grad_run(plan, queue, &a), BSK_E_INVALID, "overlaps");
    }
    bsk_plan_destroy(&plan);
    bsk_mem_free(device, &a.workspace);
    bsk_mem_free(device, &in);
    bsk_mem_free(device, &out);
    bsk_queue_destroy(&queue);
    bsk_layout_release(&layout);
    bsk_context_destroy(&context);
}

static void test_interleaved(void)
{
    enum { SIZE = 3 * 2 * 6 * 8 };
    float apart[SIZE], side_by_side[SIZE], staged[SIZE];
    test_interleaved_outputs("cpu:0", 0, apart);
    test_interleaved_outputs("cpu:0", 1, side_by_side);
    test_interleaved_outputs("fake:0", 1, staged);
    CHECK(!memcmp(apart, side_by_side, sizeof apart));
    CHECK(!memcmp(apart, staged, sizeof apart));
    fake_check_clean(fake);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    fake = fake_load(argv[1]);
    fake_directory directory = fake_directory_new();
    fake_directory_link(&directory, argv[1], "bsk_fake.so");
    plugin_path = directory.path;
    test_staging();
    test_policies();
    test_last_error();
    test_staged_faults();
    test_hidden_cpu();
    test_interleaved();
    fake_directory_remove(&directory);
    return unit_report();
}
