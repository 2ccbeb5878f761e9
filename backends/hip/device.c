/* HIP devices, queues, memory, events and launches of the portable kernels.
 *
 * Every function makes its device current for the calls it makes, and leaves the thread's device as
 * it was. */
#include <stdio.h>
#include <string.h>

#include <backends/hip/arch.h>
#include <backends/hip/hip.h>
#include <backends/simt/linked.h>
#include <backends/simt/plan.h>

/* --- Errors --- */

typedef struct error_row {
    hipError_t error;
    bsk_status status;
} error_row;

/* Errors that are not here are BSK_E_DEVICE. */
static const error_row error_rows[] = {
    {hipErrorOutOfMemory, BSK_E_DEVICE_NOMEM},
    {hipErrorInvalidValue, BSK_E_INVALID},
    {hipErrorInvalidDevice, BSK_E_INVALID},
    {hipErrorInvalidHandle, BSK_E_INVALID},
    {hipErrorStreamCaptureUnsupported, BSK_E_INVALID},
    {hipErrorStreamCaptureInvalidated, BSK_E_INVALID},
    {hipErrorStreamCaptureImplicit, BSK_E_INVALID},
    {hipErrorCapturedEvent, BSK_E_INVALID},
    {hipErrorInvalidDeviceFunction, BSK_E_UNSUPPORTED},
    {hipErrorNoBinaryForGpu, BSK_E_UNSUPPORTED},
    /* The device does no more work for this process after these. */
    {hipErrorECCNotCorrectable, BSK_E_DEVICE_LOST},
    {hipErrorIllegalAddress, BSK_E_DEVICE_LOST},
    {hipErrorLaunchTimeOut, BSK_E_DEVICE_LOST},
    {hipErrorContextIsDestroyed, BSK_E_DEVICE_LOST},
    {hipErrorAssert, BSK_E_DEVICE_LOST},
    {hipErrorLaunchFailure, BSK_E_DEVICE_LOST},
};

bsk_status bski_hip_fail(const bsk_host *host, hipError_t error, const char *what)
{
    bsk_status status = BSK_E_DEVICE;
    for (size_t i = 0; i < sizeof error_rows / sizeof *error_rows; i++)
        if (error_rows[i].error == error)
            status = error_rows[i].status;
    hipGetLastError(); /* the caller hears of it here, and not from the next call of its own */
    return host->fail(host->context, status, "hip: %s: %s (%s)", what, hipGetErrorName(error),
                      hipGetErrorString(error));
}

static bsk_status status_of(const bsk_host *host, hipError_t error, const char *what)
{
    return error ? bski_hip_fail(host, error, what) : BSK_OK;
}

/* --- The current device --- */

static hipError_t device_enter(const bski_hip_device *d, int *before)
{
    hipError_t error = hipGetDevice(before);
    if (error || *before == d->index)
        return error;
    error = hipSetDevice(d->index);
    if (error)
        *before = d->index;
    return error;
}

static void device_leave(const bski_hip_device *d, int before)
{
    if (before != d->index)
        hipSetDevice(before);
}

/* Evaluates a call with the device current. */
#define ON_DEVICE(error, d, call)                                                                  \
    do {                                                                                           \
        int before = (d)->index;                                                                   \
        (error) = device_enter(d, &before);                                                        \
        if (!(error))                                                                              \
            (error) = (call);                                                                      \
        device_leave(d, before);                                                                   \
    } while (0)

/* The same for what the runtime forbids to every thread while one captures, unless it is told that
 * this is no part of it: memory, code and waiting. */
#define APART_ON_DEVICE(error, d, call)                                                            \
    do {                                                                                           \
        hipStreamCaptureMode mode = hipStreamCaptureModeRelaxed;                                   \
        hipThreadExchangeStreamCaptureMode(&mode);                                                 \
        ON_DEVICE(error, d, call);                                                                 \
        hipThreadExchangeStreamCaptureMode(&mode);                                                 \
    } while (0)

/* --- Devices --- */

bsk_status bski_hip_probe(const bsk_host *host, int32_t *count)
{
    int n = 0; /* left alone without a driver */
    hipError_t error = hipGetDeviceCount(&n);
    *count = error ? 0 : n;
    if (error) {
        const bool absent = error == hipErrorInsufficientDriver || error == hipErrorNoDevice;
        host->log(host->context, absent ? BSK_LOG_INFO : BSK_LOG_WARN, "hip: no device: %s (%s)",
                  hipGetErrorName(error), hipGetErrorString(error));
        hipGetLastError();
    }
    return BSK_OK;
}

static bsk_status device_kernel(simt_device *device, const char *file, const char *name,
                                bsk_dtype type, const char *variant, const simt_kernel **kernel)
{
    const bski_hip_device *d = (const bski_hip_device *)device;
    const bsk_host *host = device->host;
    const simt_kernel *k = linked_find(host, "hip", file, name, type, variant);
    *kernel = NULL;
    if (!k)
        return BSK_E_INTERNAL;
    /* Loads the kernel now: a first launch that loads it could not be captured in a graph. */
    hipFuncAttributes attributes;
    hipError_t error;
    APART_ON_DEVICE(error, d, hipFuncGetAttributes(&attributes, k->function));
    if (error)
        return bski_hip_fail(host, error, k->name);
    *kernel = k;
    return BSK_OK;
}

/* --- Launches --- */

enum { MAX_GROUPS_YZ = 65535 };

static bsk_status device_launch(simt_queue *queue, const simt_kernel *kernel, const simt_launch *l)
{
    const bski_hip_queue *q = (const bski_hip_queue *)queue;
    const bski_hip_device *d = (const bski_hip_device *)queue->device;
    const bsk_host *host = queue->device->host;
    const int64_t *groups = l->groups;
    /* The device counts lanes, not groups, in 32 bits. */
    const int64_t most = UINT32_MAX / (l->group_size > 0 ? l->group_size : 1);
    if (groups[0] <= 0 || groups[1] <= 0 || groups[2] <= 0)
        return BSK_OK;
    if (groups[0] > most || groups[1] > MAX_GROUPS_YZ || groups[2] > MAX_GROUPS_YZ)
        return host->fail(host->context, BSK_E_UNSUPPORTED,
                          "hip: %s: a grid of %lld x %lld x %lld groups; at most %lld x %d x %d "
                          "are legal",
                          kernel->name, (long long)groups[0], (long long)groups[1],
                          (long long)groups[2], (long long)most, MAX_GROUPS_YZ, MAX_GROUPS_YZ);
    void *address[SIMT_MAX_BUFFERS], *arguments[SIMT_MAX_BUFFERS + 1];
    for (int32_t i = 0; i < l->buffer_count; i++) {
        address[i] = bsk_mem_address(l->buffers[i]);
        arguments[i] = &address[i];
    }
    /* Read before the call returns; the cast is what the interface asks for. */
    arguments[l->buffer_count] = (void *)(uintptr_t)l->scalars;
    const dim3 grid = {(unsigned)groups[0], (unsigned)groups[1], (unsigned)groups[2]};
    const dim3 group = {(unsigned)l->group_size, 1, 1};
    hipError_t error;
    ON_DEVICE(error, d, hipLaunchKernel(kernel->function, grid, group, arguments, 0, q->stream));
    return status_of(host, error, kernel->name);
}

/* --- Tables --- */

/* Copies on a stream of its own, so that neither the caller's streams nor a capture of them are
 * touched, and waits. */
static hipError_t table_fill(void *to, const void *data, size_t bytes)
{
    hipStream_t stream;
    hipError_t error = hipStreamCreateWithFlags(&stream, hipStreamNonBlocking);
    if (error)
        return error;
    error = hipMemcpyAsync(to, data, bytes, hipMemcpyHostToDevice, stream);
    hipError_t waited = hipStreamSynchronize(stream);
    hipStreamDestroy(stream);
    return error ? error : waited;
}

static bsk_status device_table(simt_device *device, const void *data, size_t bytes, bsk_mem *mem)
{
    const bski_hip_device *d = (const bski_hip_device *)device;
    bsk_status status = BSK_OK;
    *mem = (bsk_mem){BSK_MEM_NULL, NULL, 0, 0};
    if (bytes)
        status = bski_hip_mem_alloc(device, bytes, mem);
    if (status || !bytes)
        return status;
    hipError_t error;
    APART_ON_DEVICE(error, d, table_fill(mem->handle, data, bytes));
    if (error) {
        bski_hip_mem_free(device, *mem);
        *mem = (bsk_mem){BSK_MEM_NULL, NULL, 0, 0};
    }
    return status_of(device->host, error, "a table");
}

static void device_table_free(simt_device *device, bsk_mem *mem)
{
    bski_hip_mem_free(device, *mem);
    *mem = (bsk_mem){BSK_MEM_NULL, NULL, 0, 0};
}

static const simt_api device_api = {
    .kernel = device_kernel,
    .launch = device_launch,
    .table = device_table,
    .table_free = device_table_free,
};

/* --- Opening --- */

static int device_number(int index, hipDeviceAttribute_t what)
{
    int value = 0;
    if (!hipDeviceGetAttribute(&value, what, index))
        return value;
    hipGetLastError();
    return 0;
}

/* The attribute that ROCm 5 calls hipDeviceAttributeGcnArchName, and later ones do not have: a text. */
enum { ARCH_NAME = 10004 };

static int32_t device_arch(int index)
{
    union {
        int numbers[256];
        char text[256 * sizeof(int)];
    } name;
    memset(&name, 0, sizeof name);
    if (hipDeviceGetAttribute(name.numbers, (hipDeviceAttribute_t)ARCH_NAME, index))
        hipGetLastError();
    return bski_hip_arch(name.text, device_number(index, hipDeviceAttributeComputeCapabilityMajor),
                         device_number(index, hipDeviceAttributeComputeCapabilityMinor));
}

/* By attribute: the layout of the struct of all properties is not the same in all versions. */
static hipError_t device_props(int index, bsk_device_props *props)
{
    int driver = 0;
    size_t memory = 0;
    hipDevice_t id;
    char name[256] = "";
    hipError_t error = hipDeviceGet(&id, index);
    if (!error)
        error = hipDeviceGetName(name, (int)sizeof name - 1, id);
    if (!error)
        error = hipDeviceTotalMem(&memory, id);
    if (!error)
        error = hipDriverGetVersion(&driver);
    if (error)
        return error;
    *props = (bsk_device_props){
        .struct_size = sizeof *props,
        .arch = device_arch(index),
        .compute_units = device_number(index, hipDeviceAttributeMultiprocessorCount),
        .memory_bytes = memory,
        .mem_kinds = 1u << BSK_MEM_DEVICE,
        .dtypes = BSK_DTYPE_BIT(BSK_F64) | BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_F16) |
                  BSK_DTYPE_BIT(BSK_BF16) | BSK_DTYPE_BIT(BSK_I64) | BSK_DTYPE_BIT(BSK_I32) |
                  BSK_DTYPE_BIT(BSK_U16) | BSK_DTYPE_BIT(BSK_U8),
        .local_bytes = (uint64_t)device_number(index, hipDeviceAttributeMaxSharedMemoryPerBlock),
        .max_group = device_number(index, hipDeviceAttributeMaxThreadsPerBlock),
        .wave = device_number(index, hipDeviceAttributeWarpSize),
    };
    snprintf(props->name, sizeof props->name, "%.*s", (int)sizeof props->name - 1, name);
    snprintf(props->driver, sizeof props->driver, "HIP %d", driver);
    return hipSuccess;
}

bsk_status bski_hip_device_open(const bsk_host *host, int32_t index, void **device,
                                bsk_device_props *props)
{
    char what[32];
    *device = NULL;
    snprintf(what, sizeof what, "device %d", (int)index);
    hipError_t error = device_props(index, props);
    if (error)
        return bski_hip_fail(host, error, what);
    bski_hip_device *d;
    TRY(host_array(host, &d, 1, sizeof *d));
    d->simt.api = &device_api;
    d->simt.host = host;
    d->simt.props = *props;
    d->index = index;
    *device = d;
    return BSK_OK;
}

void bski_hip_device_close(void *device)
{
    bski_hip_device *d = device;
    if (d)
        host_drop(d->simt.host, d);
}

/* --- Queues --- */

static const bski_hip_device *queue_device(const bski_hip_queue *q)
{
    return (const bski_hip_device *)q->simt.device;
}

static bsk_status queue_make(bski_hip_device *d, hipStream_t stream, bool wrapped, void **queue)
{
    bski_hip_queue *q;
    TRY(host_array(d->simt.host, &q, 1, sizeof *q));
    q->simt.device = &d->simt;
    q->stream = stream;
    q->wrapped = wrapped;
    *queue = q;
    return BSK_OK;
}

bsk_status bski_hip_queue_create(void *device, void **queue)
{
    bski_hip_device *d = device;
    hipStream_t stream;
    hipError_t error;
    *queue = NULL;
    APART_ON_DEVICE(error, d, hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    if (error)
        return bski_hip_fail(d->simt.host, error, "a queue");
    bsk_status status = queue_make(d, stream, false, queue);
    if (status)
        hipStreamDestroy(stream);
    return status;
}

/* Whether a stream belongs to the current device. Not all versions have a call for that; but an
 * event goes only into streams of its own device. */
static hipError_t stream_check(hipStream_t stream, bool *own)
{
    hipEvent_t event;
    hipError_t error = hipEventCreateWithFlags(&event, hipEventDisableTiming);
    if (error)
        return error;
    error = hipEventRecord(event, stream);
    *own = !error;
    hipError_t destroyed = hipEventDestroy(event);
    if (error != hipErrorInvalidHandle)
        return error;
    hipGetLastError(); /* an answer, and no error of the caller's */
    return destroyed;
}

bsk_status bski_hip_queue_wrap(void *device, void *native, void **queue)
{
    bski_hip_device *d = device;
    const bsk_host *host = d->simt.host;
    bool own = false;
    hipError_t error;
    *queue = NULL;
    ON_DEVICE(error, d, stream_check(native, &own));
    if (error)
        return bski_hip_fail(host, error, "native");
    if (!own)
        return host->fail(host->context, BSK_E_INVALID,
                          "hip: native is a stream of another device than hip:%d", d->index);
    return queue_make(d, native, true, queue);
}

void bski_hip_queue_destroy(void *queue)
{
    bski_hip_queue *q = queue;
    if (!q)
        return;
    if (!q->wrapped) {
        hipError_t error;
        APART_ON_DEVICE(error, queue_device(q), hipStreamSynchronize(q->stream));
        (void)error; /* of earlier work, and nobody is left to hear of it */
        hipStreamDestroy(q->stream);
    }
    host_drop(q->simt.device->host, q);
}

bsk_status bski_hip_queue_sync(void *queue)
{
    const bski_hip_queue *q = queue;
    hipError_t error;
    APART_ON_DEVICE(error, queue_device(q), hipStreamSynchronize(q->stream));
    return status_of(q->simt.device->host, error, "work of the queue");
}

bsk_status bski_hip_lend(void *device, void *queue, bsk_stream_use_fn use, void *argument)
{
    const bski_hip_device *d = device;
    const bski_hip_queue *q = queue;
    bsk_status status = BSK_OK;
    hipError_t error;
    ON_DEVICE(error, d, (status = use(argument, q ? q->stream : NULL), hipSuccess));
    return error ? bski_hip_fail(d->simt.host, error, "the device") : status;
}

/* --- Memory --- */

bsk_status bski_hip_mem_alloc(void *device, size_t bytes, bsk_mem *mem)
{
    const bski_hip_device *d = device;
    void *p = NULL;
    char what[64];
    hipError_t error;
    *mem = (bsk_mem){BSK_MEM_NULL, NULL, 0, 0};
    APART_ON_DEVICE(error, d, hipMalloc(&p, bytes ? bytes : 1));
    if (error) {
        snprintf(what, sizeof what, "a buffer of %zu bytes", bytes);
        return bski_hip_fail(d->simt.host, error, what);
    }
    *mem = (bsk_mem){BSK_MEM_DEVICE, p, 0, bytes};
    return BSK_OK;
}

void bski_hip_mem_free(void *device, bsk_mem mem)
{
    const bski_hip_device *d = device;
    hipError_t error;
    if (mem.kind != BSK_MEM_DEVICE || !mem.handle)
        return;
    APART_ON_DEVICE(error, d, hipFree(mem.handle));
    if (error) { /* most often of earlier work, which its queue reports */
        d->simt.host->log(d->simt.host->context, BSK_LOG_INFO, "hip: freeing memory: %s",
                          hipGetErrorName(error));
        hipGetLastError();
    }
}

static bsk_status queue_copy(const bski_hip_queue *q, void *dst, const void *src, size_t bytes,
                             hipMemcpyKind kind, const char *what)
{
    hipError_t error = hipSuccess;
    if (bytes)
        APART_ON_DEVICE(error, queue_device(q), hipMemcpyAsync(dst, src, bytes, kind, q->stream));
    return status_of(q->simt.device->host, error, what);
}

bsk_status bski_hip_mem_upload(void *queue, bsk_mem dst, const void *src, size_t bytes)
{
    return queue_copy(queue, bsk_mem_address(dst), src, bytes, hipMemcpyHostToDevice, "an upload");
}

bsk_status bski_hip_mem_download(void *queue, void *dst, bsk_mem src, size_t bytes)
{
    return queue_copy(queue, dst, bsk_mem_address(src), bytes, hipMemcpyDeviceToHost, "a download");
}

bsk_status bski_hip_mem_fill(void *queue, bsk_mem dst, uint8_t byte, size_t bytes)
{
    const bski_hip_queue *q = queue;
    hipError_t error = hipSuccess;
    if (bytes)
        ON_DEVICE(error, queue_device(q),
                  hipMemsetAsync(bsk_mem_address(dst), byte, bytes, q->stream));
    return status_of(q->simt.device->host, error, "a fill");
}

/* --- Events --- */

typedef struct queue_event {
    const bski_hip_device *device;
    hipEvent_t handle;
} queue_event;

bsk_status bski_hip_event_create(void *device, void **event)
{
    const bski_hip_device *d = device;
    const bsk_host *host = d->simt.host;
    queue_event *e;
    *event = NULL;
    TRY(host_array(host, &e, 1, sizeof *e));
    e->device = d;
    hipError_t error;
    ON_DEVICE(error, d, hipEventCreate(&e->handle));
    if (error) {
        host_drop(host, e);
        return bski_hip_fail(host, error, "an event");
    }
    *event = e;
    return BSK_OK;
}

void bski_hip_event_destroy(void *event)
{
    queue_event *e = event;
    if (!e)
        return;
    hipEventDestroy(e->handle);
    host_drop(e->device->simt.host, e);
}

bsk_status bski_hip_event_record(void *event, void *queue)
{
    const queue_event *e = event;
    const bski_hip_queue *q = queue;
    hipError_t error;
    ON_DEVICE(error, e->device, hipEventRecord(e->handle, q->stream));
    return status_of(e->device->simt.host, error, "an event");
}

static hipError_t events_elapsed(const queue_event *from, const queue_event *to, float *elapsed)
{
    hipError_t error = hipEventSynchronize(from->handle);
    if (!error)
        error = hipEventSynchronize(to->handle);
    return error ? error : hipEventElapsedTime(elapsed, from->handle, to->handle);
}

bsk_status bski_hip_event_elapsed(void *start, void *stop, double *milliseconds)
{
    const queue_event *from = start;
    float elapsed = 0;
    hipError_t error;
    APART_ON_DEVICE(error, from->device, events_elapsed(from, stop, &elapsed));
    if (!error)
        *milliseconds = elapsed;
    return status_of(from->device->simt.host, error, "the time between two events");
}
