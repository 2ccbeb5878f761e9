/* Faults of the OpenCL driver, seen from a program: a status, a message, and everything else goes
 * on. Argument: the build of the backend whose calls of the driver fail on command. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <dirent.h>

#include <bsk/backend.h>

#include "fake_use.h"
#include "tests/fake/opencl_faults.h"
#include "unit.h"

static const opencl_faults *faults;
static const char *plugin_path;

/* What NVIDIA's driver answers once a kernel reached outside of memory. */
enum { CL_DEAD = -9999, CL_NO_PLATFORM = -1001 };

static void host_log(void *user, bsk_log_level level, const char *line)
{
    unit_log_line(user, level, line);
}

static bsk_context *context_make(const char *cache_dir, unit_log *log)
{
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    params.plugin_path = plugin_path;
    params.cache_dir = cache_dir;
    if (log) {
        params.log = host_log;
        params.log_user = log;
        params.log_level = BSK_LOG_INFO;
    }
    CHECK_OK(bsk_context_create(&params, &context));
    return context;
}

static const bsk_device *first_opencl(const bsk_context *context)
{
    const bsk_device *device = NULL;
    CHECK_OK(bsk_context_find_device(context, "opencl:0", &device));
    return device;
}

static void check_cpu(const bsk_context *context)
{
    CHECK_OK(fake_compute(fake_device_find(context, "cpu:0")));
}

/* --- Nothing to run on --- */

static const struct {
    const char *call;
    int error;
    const char *text; /* in the log */
} absences[] = {
    {"clGetPlatformIDs", CL_NO_PLATFORM, "opencl: no platform (-1001)"},
    {"clGetPlatformIDs", CL_OUT_OF_HOST_MEMORY, "opencl: no platform (-6)"},
    {"clGetDeviceIDs", CL_DEVICE_NOT_FOUND, " has no device"},
    {"clGetDeviceIDs", CL_INVALID_PLATFORM, " has no device"},
    {"clCreateContext", CL_DEVICE_NOT_AVAILABLE, "no context: DEVICE_NOT_AVAILABLE"},
    {"clCreateContext", CL_OUT_OF_HOST_MEMORY, "no context: OUT_OF_HOST_MEMORY"},
};

static void test_absence(void)
{
    for (size_t i = 0; i < UNIT_COUNT(absences); i++) {
        unit_log *log = unit_log_new();
        const bsk_device *device = NULL;
        faults->set(absences[i].call, absences[i].error, 0);
        bsk_context *context = context_make("off", log);
        CHECK(faults->met() > 0);
        CHECK_TEXT(log->text, absences[i].text);
        CHECK_ERROR(bsk_context_find_device(context, "opencl:0", &device), BSK_E_INVALID,
                    "opencl:0");
        check_cpu(context);
        bsk_context_destroy(&context);
        faults->set("", 0, 0);
        context = context_make("off", NULL);
        CHECK_OK(fake_compute(first_opencl(context)));
        bsk_context_destroy(&context);
        unit_log_free(log);
    }
}

/* --- Calls that fail, and work again --- */

static const struct {
    const char *call;
    int error;
    int skip;
    bsk_status status;
    const char *text;
} failures[] = {
    {"clCreateCommandQueue", CL_OUT_OF_RESOURCES, 0, BSK_E_DEVICE_NOMEM,
     "opencl: a queue: OUT_OF_RESOURCES"},
    {"clCreateCommandQueue", CL_OUT_OF_RESOURCES, 1, BSK_E_DEVICE_NOMEM, "opencl: a buffer of 60"},
    {"clCreateBuffer", CL_MEM_OBJECT_ALLOCATION_FAILURE, 0, BSK_E_DEVICE_NOMEM,
     "opencl: a buffer of 60 bytes: MEM_OBJECT_ALLOCATION_FAILURE"},
    {"clCreateBuffer", CL_INVALID_BUFFER_SIZE, 1, BSK_E_DEVICE_NOMEM, "INVALID_BUFFER_SIZE"},
    {"clCreateBuffer", CL_OUT_OF_HOST_MEMORY, 2, BSK_E_NOMEM, "OUT_OF_HOST_MEMORY"},
    {"clEnqueueFillBuffer", CL_MEM_OBJECT_ALLOCATION_FAILURE, 0, BSK_E_DEVICE_NOMEM,
     "opencl: a buffer of 60 bytes"},
    {"clEnqueueWriteBuffer", CL_OUT_OF_RESOURCES, 0, BSK_E_DEVICE_NOMEM,
     "opencl: an upload: OUT_OF_RESOURCES"},
    {"clEnqueueReadBuffer", CL_OUT_OF_RESOURCES, 0, BSK_E_DEVICE_NOMEM,
     "opencl: a download: OUT_OF_RESOURCES"},
    {"clSetKernelArg", CL_INVALID_ARG_VALUE, 0, BSK_E_DEVICE, "INVALID_ARG_VALUE"},
    {"clEnqueueNDRangeKernel", CL_MEM_OBJECT_ALLOCATION_FAILURE, 0, BSK_E_DEVICE_NOMEM,
     "opencl: bias_act_f32: MEM_OBJECT_ALLOCATION_FAILURE"},
    {"clEnqueueNDRangeKernel", CL_INVALID_WORK_GROUP_SIZE, 0, BSK_E_DEVICE,
     "opencl: bias_act_f32: INVALID_WORK_GROUP_SIZE"},
    {"clEnqueueNDRangeKernel", -77, 0, BSK_E_DEVICE, "(-77)"},
};

static void test_failures(void)
{
    bsk_context *context = context_make("off", NULL);
    const bsk_device *device = first_opencl(context);
    for (size_t i = 0; i < UNIT_COUNT(failures); i++) {
        /* Where the device's own queue is in question, it must not be there yet. */
        if (failures[i].call == failures[1].call) {
            bsk_context_destroy(&context);
            context = context_make("off", NULL);
            device = first_opencl(context);
        }
        faults->set(failures[i].call, failures[i].error, failures[i].skip);
        CHECK_ERROR(fake_compute(device), failures[i].status, failures[i].text);
        CHECK(faults->met() == failures[i].skip + 1);
        check_cpu(context);
        faults->set("", 0, 0);
        CHECK_OK(fake_compute(device));
    }
    bsk_context_destroy(&context);
}

/* --- Kernels that do not compile --- */

static const struct {
    const char *call;
    int error;
    bsk_status status;
    const char *text;
} refusals[] = {
    {"clBuildProgram", CL_BUILD_PROGRAM_FAILURE, BSK_E_DEVICE, "opencl: ops does not compile for"},
    {"clBuildProgram", CL_COMPILER_NOT_AVAILABLE, BSK_E_DEVICE, "ops: COMPILER_NOT_AVAILABLE"},
    {"clCreateProgramWithSource", CL_OUT_OF_HOST_MEMORY, BSK_E_NOMEM, "ops: OUT_OF_HOST_MEMORY"},
    {"clCreateKernel", CL_INVALID_KERNEL_NAME, BSK_E_DEVICE, "bias_act_f32: INVALID_KERNEL_NAME"},
    {"clGetKernelInfo", CL_INVALID_KERNEL, BSK_E_DEVICE, "bias_act_f32: INVALID_KERNEL"},
    {"clGetKernelWorkGroupInfo", CL_INVALID_DEVICE, BSK_E_DEVICE, "bias_act_f32: INVALID_DEVICE"},
};

static void test_refusals(void)
{
    for (size_t i = 0; i < UNIT_COUNT(refusals); i++) {
        bsk_context *context = context_make("off", NULL);
        const bsk_device *device = first_opencl(context);
        faults->set(refusals[i].call, refusals[i].error, 0);
        CHECK_ERROR(fake_compute(device), refusals[i].status, refusals[i].text);
        CHECK(faults->met() > 0);
        check_cpu(context);
        faults->set("", 0, 0);
        bsk_context_destroy(&context);
    }
}

/* --- A device that is lost --- */

typedef struct work {
    bsk_plan *plan;
    bsk_queue *queue;
    bsk_event *event;
    bsk_bias_act_args args;
    float data[15];
} work;

static void work_make(work *w, const bsk_device *device)
{
    bsk_bias_act_params p = unit_bias_act(BSK_F32, 3, 5);
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    *w = (work){.args = BSK_INIT(bsk_bias_act_args)};
    CHECK_OK(bsk_bias_act_plan(device, &p, NULL, &w->plan));
    CHECK_OK(bsk_plan_query(w->plan, &info));
    CHECK_OK(bsk_queue_create(device, &w->queue));
    CHECK_OK(bsk_event_create(device, &w->event));
    CHECK_OK(bsk_mem_alloc(device, sizeof w->data, &w->args.x));
    CHECK_OK(bsk_mem_alloc(device, sizeof w->data, &w->args.y));
    CHECK_OK(bsk_mem_alloc(device, 5 * sizeof *w->data, &w->args.bias));
    CHECK_OK(bsk_mem_alloc(device, info.workspace_bytes, &w->args.workspace));
}

static void work_free(work *w, const bsk_device *device)
{
    bsk_mem_free(device, &w->args.x);
    bsk_mem_free(device, &w->args.y);
    bsk_mem_free(device, &w->args.bias);
    bsk_mem_free(device, &w->args.workspace);
    bsk_event_destroy(&w->event);
    bsk_queue_destroy(&w->queue);
    bsk_plan_destroy(&w->plan);
}

enum { STEPS = 6 };

static bsk_status work_step(work *w, int step)
{
    switch (step) {
    case 0:
        return bsk_mem_upload(w->queue, w->args.x, w->data, sizeof w->data);
    case 1:
        return bsk_mem_fill(w->queue, w->args.bias, 0, 5 * sizeof *w->data);
    case 2:
        return bsk_bias_act_run(w->plan, w->queue, &w->args);
    case 3:
        return bsk_event_record(w->event, w->queue);
    case 4:
        return bsk_mem_download(w->queue, w->data, w->args.y, sizeof w->data);
    default:
        return bsk_queue_sync(w->queue);
    }
}

static void test_lost(void)
{
    static const char *const calls[STEPS] = {
        "clEnqueueWriteBuffer",        "clEnqueueFillBuffer", "clEnqueueNDRangeKernel",
        "clEnqueueMarkerWithWaitList", "clEnqueueReadBuffer", "clFinish"};
    static const int errors[] = {CL_DEVICE_NOT_AVAILABLE, CL_DEAD};
    for (int call = 0; call < STEPS; call++)
        for (size_t e = 0; e < UNIT_COUNT(errors); e++) {
            bsk_context *context = context_make("off", NULL);
            const bsk_device *device = first_opencl(context);
            work w;
            work_make(&w, device);
            faults->set(calls[call], errors[e], 0);
            CHECK_STATUS(work_step(&w, call), BSK_E_DEVICE_LOST);
            faults->set("", 0, 0);
            /* The queue keeps saying so, whatever the driver would answer now. */
            for (int step = 0; step < STEPS; step++)
                CHECK_ERROR(work_step(&w, step), BSK_E_DEVICE_LOST, "lost by earlier work");
            check_cpu(context);
            work_free(&w, device);
            bsk_context_destroy(&context);
        }
}

/* --- A cache whose programs the driver no longer takes --- */

static void test_stale_cache(void)
{
    char directory[] = "/tmp/bsk-test-XXXXXX", path[512];
    if (!mkdtemp(directory))
        abort();
    for (int round = 0; round < 3; round++) {
        unit_log *log = unit_log_new();
        bsk_context *context = context_make(directory, log);
        if (round == 2)
            faults->set("clCreateProgramWithBinary", CL_INVALID_BINARY, 0);
        CHECK_OK(fake_compute(first_opencl(context)));
        CHECK_TEXT(log->text, round == 0   ? "compiled in"
                              : round == 1 ? "from the cache"
                                           : "the driver refuses what the cache has");
        CHECK(round < 2 || strstr(log->text, "compiled in"));
        faults->set("", 0, 0);
        bsk_context_destroy(&context);
        unit_log_free(log);
    }
    DIR *d = opendir(directory);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", directory, e->d_name);
        unlink(path);
    }
    if (d)
        closedir(d);
    rmdir(directory);
}

/* --- Every call, at every moment --- */

static void test_sweep(void)
{
    static const char *const calls[] = {"clGetPlatformIDs",     "clGetDeviceIDs",
                                        "clCreateContext",      "clCreateCommandQueue",
                                        "clCreateBuffer",       "clCreateProgramWithSource",
                                        "clBuildProgram",       "clCreateKernel",
                                        "clGetKernelInfo",      "clGetKernelWorkGroupInfo",
                                        "clSetKernelArg",       "clEnqueueNDRangeKernel",
                                        "clEnqueueWriteBuffer", "clEnqueueReadBuffer",
                                        "clEnqueueFillBuffer",  "clFinish"};
    unit_heap heap = {0, -1};
    for (size_t i = 0; i < UNIT_COUNT(calls); i++) {
        int reached = 1;
        for (int skip = 0; reached && skip < 40; skip++) {
            bsk_context_params params = unit_params();
            bsk_context *context = NULL;
            const bsk_device *device = NULL;
            params.plugin_path = plugin_path;
            params.cache_dir = "off";
            params.allocator = unit_allocator(&heap);
            faults->set(calls[i], CL_OUT_OF_RESOURCES, skip);
            CHECK_OK(bsk_context_create(&params, &context));
            if (!bsk_context_find_device(context, "opencl:0", &device)) {
                bsk_status status = fake_compute(device);
                CHECK(!status || strstr(bsk_last_error(), "opencl: "));
            }
            check_cpu(context);
            bsk_context_destroy(&context);
            reached = faults->met() > skip;
        }
        CHECK(!reached);
    }
    faults->set("", 0, 0);
    CHECK(atomic_load(&heap.live) == 0);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    void *module = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    opencl_faults_fn get = NULL;
    if (module)
        *(void **)&get = dlsym(module, OPENCL_FAULTS_SYMBOL);
    if (!get) {
        fprintf(stderr, "%s: %s\n", argv[1], dlerror());
        return 1;
    }
    faults = get();
    fake_directory directory = fake_directory_new();
    fake_directory_link(&directory, argv[1], "bsk_opencl.so");
    plugin_path = directory.path;
    bsk_context *context = context_make("off", NULL);
    const bsk_device *device = NULL;
    if (bsk_context_find_device(context, "opencl:0", &device)) {
        atomic_fetch_add(&unit_skipped, 1);
        bsk_context_destroy(&context);
    } else {
        bsk_context_destroy(&context);
        test_absence();
        test_failures();
        test_refusals();
        test_lost();
        test_stale_cache();
        test_sweep();
    }
    fake_directory_remove(&directory);
    return unit_report();
}
