/* Backend modules: which are loaded from where, which are refused and how that is said, and faults
 * of every function of a backend. Arguments: the fake module, then the four broken ones. */
#include <bsk/backend.h>

#include "fake_use.h"
#include "unit.h"

static const fake_control *fake;
static const char *fake_path;

static bsk_context *context_in(const char *path, const char *backends)
{
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    params.plugin_path = path;
    params.backends = backends;
    CHECK_OK(bsk_context_create(&params, &context));
    return context;
}

/* The ids of all devices, in order. */
static const char *ids(const bsk_context *context, char text[128])
{
    text[0] = 0;
    for (size_t i = 0; i < bsk_context_device_count(context); i++) {
        bsk_device_info info = BSK_INIT(bsk_device_info);
        CHECK_OK(bsk_device_query(bsk_context_device(context, i), &info));
        strcat(strcat(text, i ? " " : ""), info.id);
    }
    return text;
}

static void check_ids(const char *path, const char *backends, const char *want)
{
    char text[128];
    bsk_context *context = context_in(path, backends);
    if (!CHECK(!strcmp(ids(context, text), want)))
        fprintf(stderr, "  devices are \"%s\", not \"%s\"\n", text, want);
    bsk_context_destroy(&context);
    fake_check_clean(fake);
}

static void test_found(const char *path)
{
    check_ids(NULL, NULL, "cpu:0");
    check_ids(path, NULL, "fake:0 fake:1 cpu:0");
    check_ids(path, "cpu", "cpu:0");
    check_ids(path, "cpu,fake", "cpu:0 fake:0 fake:1");
    check_ids(path, "fake", "fake:0 fake:1");

    char text[256];
    snprintf(text, sizeof text, "/nonexistent:%s:%s", path, path);
    check_ids(text, NULL, "fake:0 fake:1 cpu:0");

    bsk_context *context = NULL;
    setenv("BSK_PLUGIN_PATH", path, 1);
    CHECK_OK(bsk_context_create(NULL, &context));
    CHECK(!strcmp(ids(context, text), "fake:0 fake:1 cpu:0"));
    CHECK(!strcmp(bsk_context_backend_notes(context), ""));
    bsk_context_destroy(&context);
    unsetenv("BSK_PLUGIN_PATH");

    /* Never from the current directory. */
    char before[512];
    if (getcwd(before, sizeof before) && !chdir(path)) {
        check_ids(NULL, NULL, "cpu:0");
        CHECK(!chdir(before));
    }

    bsk_context_params params = unit_params();
    params.plugin_path = path;
    params.device = "fake:1";
    CHECK_OK(bsk_context_create(&params, &context));
    CHECK(fake_device_find(context, NULL) == fake_device_find(context, "fake:1"));
    bsk_device_info info = BSK_INIT(bsk_device_info);
    CHECK_OK(bsk_device_query(fake_device_find(context, NULL), &info));
    CHECK(!strcmp(info.name, "Fake One") && !strcmp(info.arch, "f1") && !info.host_memory);
    CHECK(!strcmp(info.backend, "fake") && !strcmp(info.driver, "fake 1.0"));
    bsk_context_destroy(&context);

    params = unit_params();
    params.backends = "cpu,nosuch";
    CHECK_ERROR(bsk_context_create(&params, &context), BSK_E_PLUGIN, "nosuch");
    CHECK(!context);
}

/* Modules that are refused: a note that names the file and the reason, and an error only for
 * those who ask for the backend. */
static void test_refused(char **broken)
{
    static const struct {
        const char *file, *reason;
    } rows[] = {
        {"bsk_abi.so", "ABI"},
        {"bsk_symbol.so", BSK_BACKEND_SYMBOL},
        {"bsk_null.so", "ABI"},
        {"bsk_slots.so", "missing"},
        {"bsk_events.so", "functions of events"},
    };
    fake_directory all = fake_directory_new();
    for (size_t i = 0; i < UNIT_COUNT(rows); i++) {
        fake_directory one = fake_directory_new();
        fake_directory_link(&one, broken[i], rows[i].file);
        fake_directory_link(&all, broken[i], rows[i].file);
        bsk_context *context = context_in(one.path, NULL);
        CHECK_TEXT(bsk_context_backend_notes(context), rows[i].file);
        CHECK_TEXT(bsk_context_backend_notes(context), rows[i].reason);
        CHECK(!strchr(bsk_context_backend_notes(context), '\n'));
        CHECK(bsk_context_device_count(context) == 1);
        CHECK_OK(fake_compute(bsk_context_device(context, 0)));
        bsk_context_destroy(&context);

        bsk_context_params params = unit_params();
        params.plugin_path = one.path;
        params.backends = "cpu,broken";
        CHECK_ERROR(bsk_context_create(&params, &context), BSK_E_PLUGIN, "broken");
        CHECK_TEXT(bsk_last_error(), rows[i].file);
        CHECK(!context);
        fake_directory_remove(&one);
    }

    /* Things that are no modules at all, among good ones. */
    FILE *text = fopen(fake_directory_file(&all, "bsk_text.so"), "w");
    fputs("This is no shared object.\n", text);
    fclose(text);
    fclose(fopen(fake_directory_file(&all, "bsk_empty.so"), "w"));
    fake_directory_link(&all, "/nonexistent", "bsk_dangling.so");
    fake_directory_link(&all, "/", "bsk_directory.so");
    fake_directory_link(&all, fake_path, "bsk_.so");     /* no name */
    fake_directory_link(&all, fake_path, "libbsk_x.so"); /* not the convention */
    fake_directory_link(&all, fake_path, "bsk_fake.so.1");
    check_ids(all.path, NULL, "cpu:0");
    fake_directory_link(&all, fake_path, "bsk_fake.so");
    fake_directory_link(&all, fake_path, "bsk_second.so"); /* the same backend once more */

    bsk_context *context = context_in(all.path, NULL);
    char list[128];
    CHECK(!strcmp(ids(context, list), "fake:0 fake:1 cpu:0"));
    const char *notes = bsk_context_backend_notes(context);
    static const char *const noted[] = {
        "bsk_abi.so",   "bsk_symbol.so",   "bsk_null.so",      "bsk_slots.so",  "bsk_text.so",
        "bsk_empty.so", "bsk_dangling.so", "bsk_directory.so", "bsk_second.so", "bsk_events.so"};
    size_t lines = 1;
    for (const char *p = notes; (p = strchr(p, '\n')); p++)
        lines++;
    CHECK(lines == UNIT_COUNT(noted));
    for (size_t i = 0; i < UNIT_COUNT(noted); i++)
        CHECK_TEXT(notes, noted[i]);
    CHECK(!strstr(notes, "bsk_fake.so") && !strstr(notes, "libbsk_x") &&
          !strstr(notes, "/bsk_.so"));
    CHECK_OK(fake_compute(fake_device_find(context, "fake:0")));
    bsk_context_destroy(&context);
    fake_check_clean(fake);

    unit_log *log = unit_log_new();
    bsk_context_params params = unit_params();
    params.plugin_path = all.path;
    params.log = unit_log_line;
    params.log_user = log;
    CHECK_OK(bsk_context_create(&params, &context));
    CHECK(log->length == 0); /* not a warning */
    bsk_context_destroy(&context);
    params.log_level = BSK_LOG_INFO;
    CHECK_OK(bsk_context_create(&params, &context));
    CHECK(log->lines[BSK_LOG_INFO] > 0);
    CHECK_TEXT(log->text, "bsk_text.so");
    bsk_context_destroy(&context);
    unit_log_free(log);
    fake_directory_remove(&all);

    context = context_in("/nonexistent", NULL);
    CHECK_TEXT(bsk_context_backend_notes(context), "/nonexistent");
    bsk_context_destroy(&context);
}

/* Faults while a context is made: a note and fewer devices, or an error for those who asked. */
static void test_probe_and_open(const char *path)
{
    char list[128];
    static const struct {
        fake_point point;
        int skip;
        const char *devices; /* "" where the backend is useless */
        const char *note;
    } rows[] = {
        {FAKE_PROBE, 0, "cpu:0", "probe fails as told"},
        {FAKE_OPEN, 0, "fake:1 cpu:0", "fake:0"},
        {FAKE_OPEN, 1, "fake:0 cpu:0", "fake:1"},
    };
    static const bsk_status statuses[] = {BSK_E_DEVICE, BSK_E_DEVICE_NOMEM, BSK_E_UNSUPPORTED,
                                          BSK_E_INTERNAL};
    for (size_t i = 0; i < UNIT_COUNT(rows); i++)
        for (size_t s = 0; s < UNIT_COUNT(statuses); s++) {
            fake->fail(rows[i].point, statuses[s], rows[i].skip);
            bsk_context *context = context_in(path, NULL);
            CHECK(!strcmp(ids(context, list), rows[i].devices));
            CHECK_TEXT(bsk_context_backend_notes(context), rows[i].note);
            CHECK_OK(fake_compute(fake_device_find(context, "cpu:0")));
            CHECK_OK(fake_compute(bsk_context_device(context, 0)));
            bsk_context_destroy(&context);
            fake_check_clean(fake);
        }

    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    params.plugin_path = path;
    params.backends = "cpu,fake";
    fake->fail(FAKE_PROBE, BSK_E_DEVICE, 0);
    CHECK_ERROR(bsk_context_create(&params, &context), BSK_E_PLUGIN, "probe fails as told");
    fake_check_clean(fake);

    /* Short memory is never a note. */
    params.backends = NULL;
    static const fake_point points[] = {FAKE_PROBE, FAKE_OPEN};
    for (size_t i = 0; i < UNIT_COUNT(points); i++) {
        fake->fail(points[i], BSK_E_NOMEM, 0);
        CHECK_STATUS(bsk_context_create(&params, &context), BSK_E_NOMEM);
        CHECK(!context);
        fake_check_clean(fake);
    }

    /* A driver that finds nothing. */
    fake->devices(0);
    context = context_in(path, NULL);
    CHECK(!strcmp(ids(context, list), "cpu:0"));
    bsk_context_destroy(&context);
    params.backends = "fake";
    CHECK_ERROR(bsk_context_create(&params, &context), BSK_E_PLUGIN, "fake");
    fake->devices(-1);
    params.backends = NULL;
    CHECK_OK(bsk_context_create(&params, &context));
    CHECK(bsk_context_device_count(context) == 1);
    bsk_context_destroy(&context);
    fake->reset();
    fake_check_clean(fake);
}

/* Which entry the fake's devices get under masks, bans and force. */
static void test_choice(const char *path)
{
    static const struct {
        const char *device, *max_arch, *kernels;
        bsk_fallback fallback;
        const char *entry;
    } rows[] = {
        {"fake:0", NULL, NULL, BSK_FALLBACK_FORBID, "bias_act_f32_f2"},
        {"fake:1", NULL, NULL, BSK_FALLBACK_FORBID, "bias_act_f32_f1"},
        {"fake:0", "f1", NULL, BSK_FALLBACK_FORBID, "bias_act_f32_f1"},
        {"fake:0", "f2", NULL, BSK_FALLBACK_FORBID, "bias_act_f32_f2"},
        {"fake:0", NULL, "-bias_act_f32_f2", BSK_FALLBACK_FORBID, "bias_act_f32_f1"},
        {"fake:0", NULL, "+bias_act_f32_f1", BSK_FALLBACK_FORBID, "bias_act_f32_f1"},
        {"fake:0", NULL, "+bias_act_f32_f?", BSK_FALLBACK_FORBID, "bias_act_f32_f2"},
        {"fake:0", NULL, "+bias_act_f32_f?,-*_f2", BSK_FALLBACK_FORBID, "bias_act_f32_f1"},
        {"fake:1", NULL, "+bias_act_f32_f2", BSK_FALLBACK_FORBID, ""},
        {"fake:0", NULL, "-bias_act_f32_f?", BSK_FALLBACK_FORBID, ""},
        {"fake:0", NULL, "-bias_act_f32_f?", BSK_FALLBACK_DEVICE, ""},
        {"fake:0", "f1", "+bias_act_f32_f2", BSK_FALLBACK_DEVICE, ""},
        {"fake:0", NULL, "+*_unproven", BSK_FALLBACK_FORBID, "bias_act_f32_unproven"},
        {"fake:0", NULL, "-bias_act_*,+ref_bias_act", BSK_FALLBACK_ALLOW, "ref_bias_act"},
    };
    for (size_t i = 0; i < UNIT_COUNT(rows); i++)
        for (int in_plan = 0; in_plan < 2; in_plan++) {
            bsk_context_params params = unit_params();
            bsk_plan_options options = BSK_INIT(bsk_plan_options);
            bsk_context *context = NULL;
            char name[64];
            params.plugin_path = path;
            params.max_arch = rows[i].max_arch;
            *(in_plan ? &options.kernels : &params.kernels) = rows[i].kernels;
            *(in_plan ? &options.fallback : &params.fallback) = rows[i].fallback;
            CHECK_OK(bsk_context_create(&params, &context));
            unit_chosen(fake_device_find(context, rows[i].device), &options, BSK_F32, name);
            if (!CHECK(!strcmp(name, rows[i].entry)))
                fprintf(stderr, "  row %zu (in plan: %d) chose \"%s\"\n", i, in_plan, name);
            bsk_context_destroy(&context);
        }
    fake_check_clean(fake);
}

/* Entries say whether they wait to be named. */
static void test_by_name(const char *path)
{
    bsk_context *context = context_in(path, NULL);
    bsk_entry_info e = BSK_INIT(bsk_entry_info);
    int waiting = 0;
    for (size_t i = 0; bsk_context_entry(context, i, &e) == BSK_OK; i++) {
        waiting += e.by_name != 0;
        CHECK((e.by_name != 0) == !strcmp(e.name, "bias_act_f32_unproven"));
    }
    CHECK(waiting == 1);
    bsk_context_destroy(&context);
}

/* What a plan says of itself is what its entry states. */
static void test_plan_info(const char *path)
{
    bsk_context *context = context_in(path, NULL);
    bsk_bias_act_params p = unit_bias_act(BSK_F32, 4, 10);
    bsk_plan *plan = NULL;
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    CHECK_OK(bsk_bias_act_plan(fake_device_find(context, "fake:0"), &p, NULL, &plan));
    CHECK_OK(bsk_plan_query(plan, &info));
    CHECK(!strcmp(info.backend, "fake") && !info.staged && !info.synchronous);
    CHECK(info.workspace_bytes == 40 && info.workspace_alignment == 128);
    CHECK(info.deterministic && info.capture_safe);
    bsk_plan_destroy(&plan);
    CHECK_OK(bsk_bias_act_plan(fake_device_find(context, "fake:1"), &p, NULL, &plan));
    CHECK_OK(bsk_plan_query(plan, &info));
    CHECK(!info.deterministic);
    bsk_plan_destroy(&plan);
    bsk_context_destroy(&context);
    fake_check_clean(fake);
}

/* --- Faults while a device works --- */

typedef struct bench {
    const bsk_device *device;
    bsk_queue *queue;
    bsk_event *start, *stop;
    bsk_plan *plan;
    bsk_bias_act_args args;
    float data[32];
} bench;

/* One call that reaches a point, and takes back what it made if it succeeds. */
static bsk_status fault_call(bench *b, fake_point point)
{
    bsk_queue *queue = (bsk_queue *)b;
    bsk_event *event = (bsk_event *)b;
    bsk_plan *plan = (bsk_plan *)b;
    bsk_mem mem = {BSK_MEM_DEVICE, b, 1, 2};
    bsk_bias_act_params p = unit_bias_act(BSK_F32, 4, 8);
    bsk_status status = BSK_E_INTERNAL;
    double ms = -1;
    switch (point) {
    case FAKE_QUEUE:
        status = bsk_queue_create(b->device, &queue);
        CHECK(!status == !!queue);
        bsk_queue_destroy(&queue);
        break;
    case FAKE_SYNC:
        status = bsk_queue_sync(b->queue);
        break;
    case FAKE_ALLOC:
        status = bsk_mem_alloc(b->device, 64, &mem);
        CHECK(!status == !!mem.handle);
        bsk_mem_free(b->device, &mem);
        break;
    case FAKE_UPLOAD:
        status = bsk_mem_upload(b->queue, b->args.x, b->data, sizeof b->data);
        break;
    case FAKE_DOWNLOAD:
        status = bsk_mem_download(b->queue, b->data, b->args.x, sizeof b->data);
        break;
    case FAKE_FILL:
        status = bsk_mem_fill(b->queue, b->args.x, 0, sizeof b->data);
        break;
    case FAKE_PREPARE:
        status = bsk_bias_act_plan(b->device, &p, NULL, &plan);
        CHECK(!status == !!plan);
        bsk_plan_destroy(&plan);
        break;
    case FAKE_LAUNCH:
        status = bsk_bias_act_run(b->plan, b->queue, &b->args);
        break;
    case FAKE_EVENT:
        status = bsk_event_create(b->device, &event);
        CHECK(!status == !!event);
        bsk_event_destroy(&event);
        break;
    case FAKE_RECORD:
        status = bsk_event_record(b->start, b->queue);
        break;
    case FAKE_ELAPSED:
        status = bsk_event_elapsed(b->start, b->stop, &ms);
        CHECK(status == BSK_OK ? ms > 0 : ms == -1);
        break;
    case FAKE_PROBE:
    case FAKE_OPEN:
    case FAKE_LEND: /* of collectives: test_comm */
    case FAKE_POINT_COUNT:
        break;
    }
    return status;
}

static void bench_make(bench *b, const bsk_device *device)
{
    bsk_bias_act_params p = unit_bias_act(BSK_F32, 4, 8);
    memset(b, 0, sizeof *b);
    b->device = device;
    b->args.struct_size = sizeof b->args;
    CHECK_OK(bsk_queue_create(device, &b->queue));
    CHECK_OK(bsk_event_create(device, &b->start));
    CHECK_OK(bsk_event_create(device, &b->stop));
    CHECK_OK(bsk_event_record(b->start, b->queue));
    CHECK_OK(bsk_event_record(b->stop, b->queue));
    CHECK_OK(bsk_bias_act_plan(device, &p, NULL, &b->plan));
    CHECK_OK(bsk_mem_alloc(device, 128, &b->args.x));
    CHECK_OK(bsk_mem_alloc(device, 128, &b->args.y));
    CHECK_OK(bsk_mem_alloc(device, 32, &b->args.bias));
    CHECK_OK(bsk_mem_alloc(device, 32, &b->args.workspace));
}

static void bench_free(bench *b)
{
    bsk_mem_free(b->device, &b->args.x);
    bsk_mem_free(b->device, &b->args.y);
    bsk_mem_free(b->device, &b->args.bias);
    bsk_mem_free(b->device, &b->args.workspace);
    bsk_plan_destroy(&b->plan);
    bsk_event_destroy(&b->start);
    bsk_event_destroy(&b->stop);
    bsk_queue_destroy(&b->queue);
}

static void test_faults(const char *path)
{
    static const bsk_status statuses[] = {BSK_E_DEVICE, BSK_E_DEVICE_NOMEM, BSK_E_NOMEM,
                                          BSK_E_INVALID, BSK_E_INTERNAL};
    bsk_context *context = context_in(path, NULL);
    bench b;
    bench_make(&b, fake_device_find(context, "fake:0"));
    for (fake_point point = FAKE_QUEUE; point < FAKE_POINT_COUNT; point++)
        for (size_t s = 0; s < UNIT_COUNT(statuses); s++) {
            fake->fail(point, statuses[s], 0);
            CHECK_ERROR(fault_call(&b, point), statuses[s], "fails as told");
            CHECK_OK(fault_call(&b, point)); /* the fault was set once */
            CHECK_OK(fake_compute(fake_device_find(context, "fake:1")));
            CHECK_OK(fake_compute(fake_device_find(context, "cpu:0")));
        }

    /* A lost device answers nothing but that; what it held can still be destroyed, and the other
     * backend's device stays as it was. */
    for (fake_point lost = FAKE_QUEUE; lost < FAKE_POINT_COUNT; lost++) {
        fake->fail(lost, BSK_E_DEVICE_LOST, 0);
        CHECK_STATUS(fault_call(&b, lost), BSK_E_DEVICE_LOST);
        for (fake_point point = FAKE_QUEUE; point < FAKE_POINT_COUNT; point++)
            CHECK_STATUS(fault_call(&b, point), BSK_E_DEVICE_LOST);
        CHECK_OK(fake_compute(fake_device_find(context, "cpu:0")));
        if (lost + 1 < FAKE_POINT_COUNT)
            fake->reset();
    }
    bench_free(&b);
    bsk_context_destroy(&context);
    fake_check_clean(fake);
    fake->reset();
}

/* A call that fails says why, not what another call failed for, even where the backend says nothing. */
static void test_silent_fault(const char *path)
{
    bsk_context *context = context_in(path, NULL);
    bench b;
    bench_make(&b, fake_device_find(context, "fake:0"));
    fake->silent(1);
    for (fake_point point = FAKE_QUEUE; point < FAKE_POINT_COUNT; point++) {
        CHECK_ERROR(bsk_bias_act_run(NULL, NULL, NULL), BSK_E_INVALID, "plan is NULL");
        fake->fail(point, BSK_E_NOMEM, 0);
        CHECK_ERROR(fault_call(&b, point), BSK_E_NOMEM, "BSK_E_NOMEM");
    }
    CHECK_ERROR(bsk_queue_sync(NULL), BSK_E_INVALID, "queue");
    fake->fail(FAKE_PREPARE, BSK_E_NOMEM, 0);
    CHECK_ERROR(fault_call(&b, FAKE_PREPARE), BSK_E_NOMEM, "bias_act_f32_");
    CHECK(!strstr(bsk_last_error(), "queue"));
    bench_free(&b);
    bsk_context_destroy(&context);
    fake_check_clean(fake);
    fake->reset();

    /* The same of the notes about a backend. */
    static const struct {
        fake_point point;
        const char *note;
    } rows[] = {{FAKE_PROBE, "fake: probe answers BSK_E_DEVICE"},
                {FAKE_OPEN, "fake:0: device_open answers BSK_E_DEVICE"}};
    for (size_t i = 0; i < UNIT_COUNT(rows); i++) {
        CHECK_STATUS(bsk_queue_sync(NULL), BSK_E_INVALID);
        fake->silent(1);
        fake->fail(rows[i].point, BSK_E_DEVICE, 0);
        context = context_in(path, NULL);
        CHECK(!strcmp(bsk_context_backend_notes(context), rows[i].note));
        bsk_context_destroy(&context);
        fake->reset();
    }
}

/* Times are of two events of one device. */
static void test_event_devices(const char *path)
{
    bsk_context *context = context_in(path, NULL);
    bsk_event *start = NULL, *stop = NULL;
    double ms;
    CHECK_OK(bsk_event_create(fake_device_find(context, "fake:0"), &start));
    CHECK_OK(bsk_event_create(fake_device_find(context, "fake:1"), &stop));
    CHECK_ERROR(bsk_event_elapsed(start, stop, &ms), BSK_E_INVALID,
                "start is of fake:0, stop of fake:1");
    bsk_event_destroy(&start);
    bsk_event_destroy(&stop);
    bsk_context_destroy(&context);
    fake_check_clean(fake);
}

/* Host memory that runs out at any moment leaves nothing behind in the backend either. */
static void test_allocator(const char *path)
{
    unit_heap heap = {0, -1};
    bsk_context_params params = unit_params();
    params.allocator = unit_allocator(&heap);
    params.plugin_path = path;
    bsk_status status = BSK_E_NOMEM;
    int tries = 0;
    for (; status != BSK_OK && tries < 500; tries++) {
        bsk_context *context = NULL;
        atomic_store(&heap.countdown, tries);
        status = bsk_context_create(&params, &context);
        CHECK(!status == !!context);
        if (!status)
            status = fake_compute(bsk_context_device(context, 0));
        if (status)
            CHECK_STATUS(status, BSK_E_NOMEM);
        else
            CHECK(bsk_context_device_count(context) == 3);
        bsk_context_destroy(&context);
        CHECK(atomic_load(&heap.live) == 0);
        fake_check_clean(fake);
    }
    CHECK(status == BSK_OK && tries > 10);
}

int main(int argc, char **argv)
{
    if (argc != 7)
        return 2;
    fake_path = argv[1];
    fake = fake_load(fake_path);
    fake_directory directory = fake_directory_new();
    fake_directory_link(&directory, fake_path, "bsk_fake.so");
    test_found(directory.path);
    test_refused(argv + 2);
    test_probe_and_open(directory.path);
    test_choice(directory.path);
    test_by_name(directory.path);
    test_plan_info(directory.path);
    test_faults(directory.path);
    test_silent_fault(directory.path);
    test_event_devices(directory.path);
    test_allocator(directory.path);
    fake_directory_remove(&directory);
    return unit_report();
}
