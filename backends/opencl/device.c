/* OpenCL devices, queues, memory and events. */
#include <stdio.h>
#include <string.h>

#include <backends/opencl/opencl.h>

/* --- Errors --- */

typedef struct error_row {
    cl_int error;
    const char *name;
    bsk_status status;
} error_row;

#define ROW(error, status)                                                                         \
    {                                                                                              \
        CL_##error, #error, status                                                                 \
    }
static const error_row error_rows[] = {
    ROW(DEVICE_NOT_AVAILABLE, BSK_E_DEVICE_LOST),
    /* What NVIDIA's driver says when a kernel reached outside of memory: the context is dead. */
    {-9999, "access outside of memory", BSK_E_DEVICE_LOST},
    ROW(MEM_OBJECT_ALLOCATION_FAILURE, BSK_E_DEVICE_NOMEM),
    ROW(OUT_OF_RESOURCES, BSK_E_DEVICE_NOMEM),
    ROW(INVALID_BUFFER_SIZE, BSK_E_DEVICE_NOMEM),
    ROW(OUT_OF_HOST_MEMORY, BSK_E_NOMEM),
    ROW(INVALID_VALUE, BSK_E_INVALID),
    ROW(INVALID_CONTEXT, BSK_E_INVALID),
    ROW(INVALID_COMMAND_QUEUE, BSK_E_INVALID),
    ROW(INVALID_MEM_OBJECT, BSK_E_INVALID),
    ROW(PROFILING_INFO_NOT_AVAILABLE, BSK_E_UNSUPPORTED),
    ROW(DEVICE_NOT_FOUND, BSK_E_DEVICE),
    ROW(COMPILER_NOT_AVAILABLE, BSK_E_DEVICE),
    ROW(BUILD_PROGRAM_FAILURE, BSK_E_DEVICE),
    ROW(MISALIGNED_SUB_BUFFER_OFFSET, BSK_E_DEVICE),
    ROW(EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, BSK_E_DEVICE),
    ROW(INVALID_DEVICE, BSK_E_DEVICE),
    ROW(INVALID_PLATFORM, BSK_E_DEVICE),
    ROW(INVALID_QUEUE_PROPERTIES, BSK_E_DEVICE),
    ROW(INVALID_HOST_PTR, BSK_E_DEVICE),
    ROW(INVALID_BINARY, BSK_E_DEVICE),
    ROW(INVALID_BUILD_OPTIONS, BSK_E_DEVICE),
    ROW(INVALID_PROGRAM, BSK_E_DEVICE),
    ROW(INVALID_PROGRAM_EXECUTABLE, BSK_E_DEVICE),
    ROW(INVALID_KERNEL_NAME, BSK_E_DEVICE),
    ROW(INVALID_KERNEL_DEFINITION, BSK_E_DEVICE),
    ROW(INVALID_KERNEL, BSK_E_DEVICE),
    ROW(INVALID_ARG_INDEX, BSK_E_DEVICE),
    ROW(INVALID_ARG_VALUE, BSK_E_DEVICE),
    ROW(INVALID_ARG_SIZE, BSK_E_DEVICE),
    ROW(INVALID_KERNEL_ARGS, BSK_E_DEVICE),
    ROW(INVALID_WORK_DIMENSION, BSK_E_DEVICE),
    ROW(INVALID_WORK_GROUP_SIZE, BSK_E_DEVICE),
    ROW(INVALID_WORK_ITEM_SIZE, BSK_E_DEVICE),
    ROW(INVALID_GLOBAL_WORK_SIZE, BSK_E_DEVICE),
    ROW(INVALID_EVENT_WAIT_LIST, BSK_E_DEVICE),
    ROW(INVALID_EVENT, BSK_E_DEVICE),
    ROW(INVALID_OPERATION, BSK_E_DEVICE),
};
#undef ROW

static const error_row *error_find(cl_int error)
{
    static const error_row unknown = {0, "an error without a name", BSK_E_DEVICE};
    for (size_t i = 0; i < sizeof error_rows / sizeof *error_rows; i++)
        if (error_rows[i].error == error)
            return &error_rows[i];
    return &unknown;
}

bsk_status bski_cl_fail(const bsk_host *host, cl_int error, const char *what)
{
    const error_row *row = error_find(error);
    return host->fail(host->context, row->status, "opencl: %s: %s (%d)", what, row->name,
                      (int)error);
}

bsk_status bski_cl_queue_fail(bski_cl_queue *queue, cl_int error, const char *what)
{
    bsk_status status = bski_cl_fail(queue->simt.device->host, error, what);
    queue->lost |= status == BSK_E_DEVICE_LOST;
    return status;
}

bsk_status bski_cl_queue_check(const bski_cl_queue *queue)
{
    const bsk_host *host = queue->simt.device->host;
    return queue->lost ? host->fail(host->context, BSK_E_DEVICE_LOST,
                                    "opencl: the device was lost by earlier work of the queue")
                       : BSK_OK;
}

void *bski_cl_alloc(const bsk_host *host, size_t bytes)
{
    void *p = host->allocator.resize(host->allocator.user, NULL, bytes ? bytes : 1);
    if (p)
        memset(p, 0, bytes);
    return p;
}

void bski_cl_free(const bsk_host *host, void *pointer)
{
    if (pointer)
        host->allocator.resize(host->allocator.user, pointer, 0);
}

static bsk_status fail_nomem(const bsk_host *host, const char *what)
{
    return host->fail(host->context, BSK_E_NOMEM, "opencl: no memory for %s", what);
}

/* --- Which devices there are --- */

typedef struct candidate {
    cl_platform_id platform;
    cl_device_id id;
} candidate;

typedef struct candidates {
    candidate *items;
    int32_t count;
} candidates;

/* A text without blanks around it, cut to size. */
static void text_trim(const char *from, char *to, size_t size)
{
    from += strspn(from, " \t\n");
    size_t n = strlen(from);
    while (n && strchr(" \t\n", from[n - 1]))
        n--;
    snprintf(to, size, "%.*s", (int)n, from);
}

static void device_text(cl_device_id id, cl_device_info what, char *to, size_t size)
{
    char text[512] = "";
    if (clGetDeviceInfo(id, what, sizeof text, text, NULL))
        text[0] = 0;
    text[sizeof text - 1] = 0;
    text_trim(text, to, size);
}

static void platform_text(cl_platform_id id, cl_platform_info what, char *to, size_t size)
{
    char text[512] = "";
    if (clGetPlatformInfo(id, what, sizeof text, text, NULL))
        text[0] = 0;
    text[sizeof text - 1] = 0;
    text_trim(text, to, size);
}

/* Numbers that a driver does not know are 0. */
static cl_ulong device_number(cl_device_id id, cl_device_info what, size_t bytes)
{
    cl_ulong wide = 0;
    cl_uint narrow = 0;
    void *to = bytes == sizeof wide ? (void *)&wide : (void *)&narrow;
    if (clGetDeviceInfo(id, what, bytes, to, NULL))
        return 0;
    return bytes == sizeof wide ? wide : narrow;
}

#define DEVICE_NUMBER(id, what, type) device_number(id, what, sizeof(type))

/* "OpenCL 1.2 ..." is 102; 0 if the text has another form. */
static int device_version(cl_device_id id)
{
    char text[128];
    int major, minor;
    device_text(id, CL_DEVICE_VERSION, text, sizeof text);
    return sscanf(text, "OpenCL %d.%d", &major, &minor) == 2 ? 100 * major + minor : 0;
}

/* Why the kernels cannot run on a device, or NULL. */
static const char *device_defect(cl_device_id id)
{
    char profile[64];
    device_text(id, CL_DEVICE_PROFILE, profile, sizeof profile);
    if (!DEVICE_NUMBER(id, CL_DEVICE_AVAILABLE, cl_bool))
        return "not available";
    if (!DEVICE_NUMBER(id, CL_DEVICE_COMPILER_AVAILABLE, cl_bool))
        return "no compiler";
    if (!DEVICE_NUMBER(id, CL_DEVICE_ENDIAN_LITTLE, cl_bool))
        return "big-endian";
    if (strcmp(profile, "FULL_PROFILE"))
        return "embedded profile";
    if (device_version(id) < 102)
        return "older than OpenCL 1.2";
    return NULL;
}

/* Appends the usable devices of a platform; says which are not, if asked to. */
static bsk_status platform_list(const bsk_host *host, cl_platform_id platform, bool say,
                                candidates *list)
{
    cl_uint count = 0;
    cl_int error = clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, NULL, &count);
    char name[128];
    platform_text(platform, CL_PLATFORM_NAME, name, sizeof name);
    if (error || !count) {
        if (say)
            host->log(host->context, BSK_LOG_INFO, "opencl: platform %s has no device", name);
        return BSK_OK;
    }
    cl_device_id *ids = bski_cl_alloc(host, count * sizeof *ids);
    candidate *grown = bski_cl_alloc(host, ((size_t)list->count + count) * sizeof *grown);
    if (!ids || !grown) {
        bski_cl_free(host, ids);
        bski_cl_free(host, grown);
        return fail_nomem(host, "the list of devices");
    }
    if (list->count)
        memcpy(grown, list->items, (size_t)list->count * sizeof *grown);
    bski_cl_free(host, list->items);
    list->items = grown;
    cl_uint got = 0;
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, ids, &got))
        got = 0;
    for (cl_uint i = 0; i < got && i < count; i++) {
        const char *defect = device_defect(ids[i]);
        char device[128];
        device_text(ids[i], CL_DEVICE_NAME, device, sizeof device);
        if (!defect)
            list->items[list->count++] = (candidate){platform, ids[i]};
        else if (say)
            host->log(host->context, BSK_LOG_INFO, "opencl: %s of %s is not used: %s", device, name,
                      defect);
    }
    bski_cl_free(host, ids);
    return BSK_OK;
}

/* All usable devices in the order of the platforms; items are for bski_cl_free, on errors too. */
static bsk_status candidates_list(const bsk_host *host, bool say, candidates *list)
{
    *list = (candidates){NULL, 0};
    cl_uint count = 0;
    /* Without any driver the loader answers -1001, which has a name only in an extension. */
    cl_int error = clGetPlatformIDs(0, NULL, &count);
    if (error || !count) {
        if (say)
            host->log(host->context, BSK_LOG_INFO, "opencl: no platform (%d)", (int)error);
        return BSK_OK;
    }
    cl_platform_id *platforms = bski_cl_alloc(host, count * sizeof *platforms);
    if (!platforms)
        return fail_nomem(host, "the list of platforms");
    cl_uint got = 0;
    if (clGetPlatformIDs(count, platforms, &got))
        got = 0;
    bsk_status status = BSK_OK;
    for (cl_uint i = 0; i < got && i < count && !status; i++)
        status = platform_list(host, platforms[i], say, list);
    bski_cl_free(host, platforms);
    return status;
}

bsk_status bski_cl_probe(const bsk_host *host, int32_t *count)
{
    candidates list;
    bsk_status status = candidates_list(host, true, &list);
    *count = status ? 0 : list.count;
    bski_cl_free(host, list.items);
    return status;
}

/* --- Devices --- */

static bsk_status device_table(simt_device *device, const void *data, size_t bytes, bsk_mem *mem)
{
    bski_cl_device *d = (bski_cl_device *)device;
    *mem = (bsk_mem){BSK_MEM_NULL, NULL, 0, 0};
    if (!bytes)
        return BSK_OK;
    cl_int error;
    /* The copy is made before the call returns; the cast is what the interface asks for. */
    cl_mem handle = clCreateBuffer(bski_cl_context(d), CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR,
                                   bytes, (void *)(uintptr_t)data, &error);
    if (error)
        return bski_cl_fail(device->host, error, "a table");
    *mem = (bsk_mem){BSK_MEM_CL, handle, 0, bytes};
    return BSK_OK;
}

static void device_table_free(simt_device *device, bsk_mem *mem)
{
    bski_cl_mem_free(device, *mem);
    *mem = (bsk_mem){BSK_MEM_NULL, NULL, 0, 0};
}

static const simt_api device_api = {
    .kernel = bski_cl_kernel,
    .launch = bski_cl_launch,
    .table = device_table,
    .table_free = device_table_free,
};

static void device_props(bski_cl_device *d, bsk_device_props *props)
{
    cl_device_id id = d->id;
    size_t items[8] = {0};
    cl_ulong group = DEVICE_NUMBER(id, CL_DEVICE_MAX_WORK_GROUP_SIZE, size_t);
    if (!clGetDeviceInfo(id, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof items, items, NULL) &&
        items[0] < group)
        group = items[0];
    uint32_t doubles = DEVICE_NUMBER(id, CL_DEVICE_DOUBLE_FP_CONFIG, cl_device_fp_config)
                           ? BSK_DTYPE_BIT(BSK_F64)
                           : 0;
    *props = (bsk_device_props){
        .struct_size = sizeof *props,
        .arch = 1,
        .compute_units = (int32_t)DEVICE_NUMBER(id, CL_DEVICE_MAX_COMPUTE_UNITS, cl_uint),
        .memory_bytes = DEVICE_NUMBER(id, CL_DEVICE_GLOBAL_MEM_SIZE, cl_ulong),
        .mem_kinds = 1u << BSK_MEM_CL | (d->svm ? 1u << BSK_MEM_DEVICE : 0),
        .dtypes = doubles | BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_F16) |
                  BSK_DTYPE_BIT(BSK_BF16) | BSK_DTYPE_BIT(BSK_I64) | BSK_DTYPE_BIT(BSK_I32) |
                  BSK_DTYPE_BIT(BSK_U16) | BSK_DTYPE_BIT(BSK_U8),
        .local_bytes = DEVICE_NUMBER(id, CL_DEVICE_LOCAL_MEM_SIZE, cl_ulong),
        .max_group = group < INT32_MAX ? (int32_t)group : INT32_MAX,
    };
    device_text(id, CL_DEVICE_NAME, props->name, sizeof props->name);
    device_text(id, CL_DRIVER_VERSION, props->driver, sizeof props->driver);
    /* Simulators say that they are everything, and are here for what GPUs run. */
    const cl_device_type type = DEVICE_NUMBER(id, CL_DEVICE_TYPE, cl_device_type);
    if (type & CL_DEVICE_TYPE_CPU && !(type & CL_DEVICE_TYPE_GPU))
        props->wave = 1;
    d->simt.props = *props;
    d->simt.wide = simt_props_wide(props);
}

static void device_identity(bski_cl_device *d)
{
    char platform[256], version[128], name[128], driver[128], device[128];
    platform_text(d->platform, CL_PLATFORM_NAME, platform, sizeof platform);
    platform_text(d->platform, CL_PLATFORM_VERSION, version, sizeof version);
    device_text(d->id, CL_DEVICE_NAME, name, sizeof name);
    device_text(d->id, CL_DEVICE_VERSION, device, sizeof device);
    device_text(d->id, CL_DRIVER_VERSION, driver, sizeof driver);
    snprintf(d->identity, sizeof d->identity, "%s\n%s\n%s\n%s\n%s", platform, version, name, device,
             driver);
}

/* For the kernels, which use instructions of some generations. Others do not know the question. */
static int32_t device_nvidia(cl_device_id id)
{
    cl_uint major = 0, minor = 0;
    const bool failed =
        clGetDeviceInfo(id, CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV, sizeof major, &major, NULL) ||
        clGetDeviceInfo(id, CL_DEVICE_COMPUTE_CAPABILITY_MINOR_NV, sizeof minor, &minor, NULL);
    return failed ? 0 : (int32_t)(10 * major + minor);
}

/* Whether the device takes pointers of clSVMAlloc. Older drivers lack the functions, so the version
 * is looked at first. */
static bool device_has_svm(cl_device_id id)
{
    return device_version(id) >= 200 &&
           (DEVICE_NUMBER(id, CL_DEVICE_SVM_CAPABILITIES, cl_device_svm_capabilities) &
            CL_DEVICE_SVM_COARSE_GRAIN_BUFFER);
}

bsk_status bski_cl_device_open(const bsk_host *host, int32_t index, void **device,
                               bsk_device_props *props)
{
    *device = NULL;
    candidates list;
    bsk_status status = candidates_list(host, false, &list);
    candidate chosen = {NULL, NULL};
    if (!status && index >= 0 && index < list.count)
        chosen = list.items[index];
    bski_cl_free(host, list.items);
    if (status)
        return status;
    if (!chosen.id)
        return host->fail(host->context, BSK_E_INVALID, "opencl: device %d does not exist",
                          (int)index);
    bski_cl_device *d = bski_cl_alloc(host, sizeof *d);
    if (!d)
        return fail_nomem(host, "a device");
    d->simt.api = &device_api;
    d->simt.host = host;
    d->platform = chosen.platform;
    d->id = chosen.id;
    d->svm = device_has_svm(d->id);
    d->exact_division = (DEVICE_NUMBER(d->id, CL_DEVICE_SINGLE_FP_CONFIG, cl_device_fp_config) &
                         CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) != 0;
    d->nvidia = device_nvidia(d->id);
    device_props(d, props);
    device_identity(d);
    const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM,
                                                (cl_context_properties)(uintptr_t)d->platform, 0};
    cl_int error;
    d->context = clCreateContext(properties, 1, &d->id, NULL, NULL, &error);
    if (error) {
        bski_cl_free(host, d);
        /* Whatever the driver is short of, other devices may have it. */
        return host->fail(host->context, BSK_E_DEVICE,
                          "opencl: %s is not used: no context: %s (%d)", props->name,
                          error_find(error)->name, (int)error);
    }
    pthread_mutex_init(&d->lock, NULL);
    *device = d;
    return BSK_OK;
}

void bski_cl_device_close(void *device)
{
    bski_cl_device *d = device;
    if (!d)
        return;
    bski_cl_programs_free(d);
    if (d->service)
        clReleaseCommandQueue(d->service);
    clReleaseContext(d->context);
    pthread_mutex_destroy(&d->lock);
    bski_cl_free(d->simt.host, d);
}

cl_context bski_cl_context(bski_cl_device *device)
{
    pthread_mutex_lock(&device->lock);
    device->used = true;
    cl_context context = device->context;
    pthread_mutex_unlock(&device->lock);
    return context;
}

/* --- Queues --- */

static bsk_status queue_make(bski_cl_device *d, cl_command_queue handle, bool wrapped, void **queue)
{
    bski_cl_queue *q = bski_cl_alloc(d->simt.host, sizeof *q);
    if (!q)
        return fail_nomem(d->simt.host, "a queue");
    q->simt.device = &d->simt;
    q->handle = handle;
    q->wrapped = wrapped;
    *queue = q;
    return BSK_OK;
}

bsk_status bski_cl_queue_create(void *device, void **queue)
{
    bski_cl_device *d = device;
    *queue = NULL;
    cl_context context = bski_cl_context(d);
    cl_int error;
    cl_command_queue handle =
        clCreateCommandQueue(context, d->id, CL_QUEUE_PROFILING_ENABLE, &error);
    if (error == CL_INVALID_QUEUE_PROPERTIES) /* then without times */
        handle = clCreateCommandQueue(context, d->id, 0, &error);
    if (error)
        return bski_cl_fail(d->simt.host, error, "a queue");
    bsk_status status = queue_make(d, handle, false, queue);
    if (status)
        clReleaseCommandQueue(handle);
    return status;
}

/* A device that has made nothing yet moves into the context of the first wrapped queue. */
static bool context_adopt(bski_cl_device *d, cl_context context)
{
    pthread_mutex_lock(&d->lock);
    if (!d->used && d->context != context && !clRetainContext(context)) {
        clReleaseContext(d->context);
        d->context = context;
    }
    bool same = d->context == context;
    d->used |= same;
    pthread_mutex_unlock(&d->lock);
    return same;
}

bsk_status bski_cl_queue_wrap(void *device, void *native, void **queue)
{
    bski_cl_device *d = device;
    const bsk_host *host = d->simt.host;
    cl_command_queue handle = native;
    cl_context context = NULL;
    cl_device_id id = NULL;
    cl_command_queue_properties properties = 0;
    *queue = NULL;
    if (!native)
        return host->fail(host->context, BSK_E_INVALID, "opencl: native is NULL");
    cl_int error = clGetCommandQueueInfo(handle, CL_QUEUE_CONTEXT, sizeof context, &context, NULL);
    if (!error)
        error = clGetCommandQueueInfo(handle, CL_QUEUE_DEVICE, sizeof id, &id, NULL);
    if (!error)
        error = clGetCommandQueueInfo(handle, CL_QUEUE_PROPERTIES, sizeof properties, &properties,
                                      NULL);
    if (error)
        return bski_cl_fail(host, error, "native");
    if (id != d->id)
        return host->fail(host->context, BSK_E_INVALID,
                          "opencl: native is a queue of another "
                          "device");
    if (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)
        return host->fail(host->context, BSK_E_INVALID,
                          "opencl: native executes out of order; legal is an in-order queue");
    if (!context_adopt(d, context))
        return host->fail(host->context, BSK_E_INVALID,
                          "opencl: native is of another cl_context than the device's queues, "
                          "memory and plans; wrap it before any of those is made");
    return queue_make(d, handle, true, queue);
}

void bski_cl_queue_destroy(void *queue)
{
    bski_cl_queue *q = queue;
    if (!q)
        return;
    if (!q->wrapped) {
        clFinish(q->handle);
        clReleaseCommandQueue(q->handle);
    }
    bski_cl_free(q->simt.device->host, q);
}

bsk_status bski_cl_queue_sync(void *queue)
{
    bski_cl_queue *q = queue;
    bsk_status status = bski_cl_queue_check(q);
    if (status)
        return status;
    cl_int error = clFinish(q->handle);
    return error ? bski_cl_queue_fail(q, error, "work of the queue") : BSK_OK;
}

/* --- Memory --- */

/* Makes the driver find the memory now. Some do so at first use only, and then every launch in the
 * context fails for as long as the buffer exists. */
static cl_int buffer_commit(bski_cl_device *d, cl_mem buffer)
{
    const uint8_t zero = 0;
    cl_int error = CL_SUCCESS;
    pthread_mutex_lock(&d->lock);
    if (!d->service)
        d->service = clCreateCommandQueue(d->context, d->id, 0, &error);
    if (!error)
        error = clEnqueueFillBuffer(d->service, buffer, &zero, 1, 0, 1, 0, NULL, NULL);
    if (!error)
        error = clFinish(d->service);
    pthread_mutex_unlock(&d->lock);
    return error;
}

bsk_status bski_cl_mem_alloc(void *device, size_t bytes, bsk_mem *mem)
{
    bski_cl_device *d = device;
    cl_mem handle = NULL;
    cl_int error = CL_MEM_OBJECT_ALLOCATION_FAILURE; /* sizes that cannot be are not even tried */
    *mem = (bsk_mem){BSK_MEM_NULL, NULL, 0, 0};
    if (bytes <= d->simt.props.memory_bytes)
        handle =
            clCreateBuffer(bski_cl_context(d), CL_MEM_READ_WRITE, bytes ? bytes : 1, NULL, &error);
    if (!error)
        error = buffer_commit(d, handle);
    if (error) {
        char what[64];
        snprintf(what, sizeof what, "a buffer of %zu bytes", bytes);
        if (handle)
            clReleaseMemObject(handle);
        return bski_cl_fail(d->simt.host, error, what);
    }
    *mem = (bsk_mem){BSK_MEM_CL, handle, 0, bytes};
    return BSK_OK;
}

void bski_cl_mem_free(void *device, bsk_mem mem)
{
    (void)device;
    if (mem.kind == BSK_MEM_CL && mem.handle)
        clReleaseMemObject(mem.handle);
}

bsk_status bski_cl_mem_upload(void *queue, bsk_mem dst, const void *src, size_t bytes)
{
    bski_cl_queue *q = queue;
    bsk_status status = bski_cl_queue_check(q);
    if (status || !bytes)
        return status;
    cl_int error = dst.kind == BSK_MEM_CL
                       ? clEnqueueWriteBuffer(q->handle, dst.handle, CL_FALSE, dst.offset, bytes,
                                              src, 0, NULL, NULL)
                       : clEnqueueSVMMemcpy(q->handle, CL_FALSE, bsk_mem_address(dst), src, bytes,
                                            0, NULL, NULL);
    return error ? bski_cl_queue_fail(q, error, "an upload") : BSK_OK;
}

bsk_status bski_cl_mem_download(void *queue, void *dst, bsk_mem src, size_t bytes)
{
    bski_cl_queue *q = queue;
    bsk_status status = bski_cl_queue_check(q);
    if (status || !bytes)
        return status;
    cl_int error = src.kind == BSK_MEM_CL
                       ? clEnqueueReadBuffer(q->handle, src.handle, CL_FALSE, src.offset, bytes,
                                             dst, 0, NULL, NULL)
                       : clEnqueueSVMMemcpy(q->handle, CL_FALSE, dst, bsk_mem_address(src), bytes,
                                            0, NULL, NULL);
    return error ? bski_cl_queue_fail(q, error, "a download") : BSK_OK;
}

bsk_status bski_cl_mem_fill(void *queue, bsk_mem dst, uint8_t byte, size_t bytes)
{
    bski_cl_queue *q = queue;
    bsk_status status = bski_cl_queue_check(q);
    if (status || !bytes)
        return status;
    cl_int error =
        dst.kind == BSK_MEM_CL
            ? clEnqueueFillBuffer(q->handle, dst.handle, &byte, 1, dst.offset, bytes, 0, NULL, NULL)
            : clEnqueueSVMMemFill(q->handle, bsk_mem_address(dst), &byte, 1, bytes, 0, NULL, NULL);
    return error ? bski_cl_queue_fail(q, error, "a fill") : BSK_OK;
}

/* --- Events: markers, whose end is the time --- */

typedef struct queue_event {
    const bsk_host *host;
    cl_event handle; /* NULL until recorded */
} queue_event;

bsk_status bski_cl_event_create(void *device, void **event)
{
    const bski_cl_device *d = device;
    queue_event *e = bski_cl_alloc(d->simt.host, sizeof *e);
    *event = e;
    if (!e)
        return fail_nomem(d->simt.host, "an event");
    e->host = d->simt.host;
    return BSK_OK;
}

void bski_cl_event_destroy(void *event)
{
    queue_event *e = event;
    if (!e)
        return;
    if (e->handle)
        clReleaseEvent(e->handle);
    bski_cl_free(e->host, e);
}

bsk_status bski_cl_event_record(void *event, void *queue)
{
    queue_event *e = event;
    bski_cl_queue *q = queue;
    bsk_status status = bski_cl_queue_check(q);
    if (status)
        return status;
    cl_event handle = NULL;
    cl_int error = clEnqueueMarkerWithWaitList(q->handle, 0, NULL, &handle);
    if (!error)
        error = clFlush(q->handle); /* or a wait for it might not end */
    if (error) {
        if (handle)
            clReleaseEvent(handle);
        return bski_cl_queue_fail(q, error, "an event");
    }
    if (e->handle)
        clReleaseEvent(e->handle);
    e->handle = handle;
    return BSK_OK;
}

bsk_status bski_cl_event_elapsed(void *start, void *stop, double *milliseconds)
{
    const queue_event *from = start, *to = stop;
    const bsk_host *host = from->host;
    if (!from->handle || !to->handle)
        return host->fail(host->context, BSK_E_INVALID, "opencl: an event was not recorded");
    const cl_event both[] = {from->handle, to->handle};
    cl_ulong times[2] = {0, 0};
    cl_int error = clWaitForEvents(2, both);
    for (int i = 0; i < 2 && !error; i++)
        error = clGetEventProfilingInfo(both[i], CL_PROFILING_COMMAND_END, sizeof times[i],
                                        &times[i], NULL);
    if (error)
        return bski_cl_fail(host, error, "the time between two events");
    *milliseconds = 1e-6 * (double)(int64_t)(times[1] - times[0]);
    return BSK_OK;
}
