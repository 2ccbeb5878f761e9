/* CUDA devices, queues, memory, events and launches of the portable kernels.
 *
 * Every function makes its device current for the calls it makes, but for launches into streams that
 * name it, and leaves the thread's device as it was. */
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>

#include <backends/cuda/cuda.h>
#include <backends/simt/linked.h>
#include <backends/simt/plan.h>

/* --- Errors --- */

typedef struct error_row {
    cudaError_t error;
    bsk_status status;
} error_row;

/* Errors that are not here are BSK_E_DEVICE. */
static const error_row error_rows[] = {
    {cudaErrorMemoryAllocation, BSK_E_DEVICE_NOMEM},
    {cudaErrorInvalidValue, BSK_E_INVALID},
    {cudaErrorInvalidDevice, BSK_E_INVALID},
    {cudaErrorInvalidResourceHandle, BSK_E_INVALID},
    {cudaErrorStreamCaptureUnsupported, BSK_E_INVALID},
    {cudaErrorStreamCaptureInvalidated, BSK_E_INVALID},
    {cudaErrorStreamCaptureImplicit, BSK_E_INVALID},
    {cudaErrorCapturedEvent, BSK_E_INVALID},
    {cudaErrorInvalidDeviceFunction, BSK_E_UNSUPPORTED},
    {cudaErrorNoKernelImageForDevice, BSK_E_UNSUPPORTED},
    {cudaErrorUnsupportedPtxVersion, BSK_E_UNSUPPORTED},
    /* The context is dead after these: every later call gives the same error. */
    {cudaErrorECCUncorrectable, BSK_E_DEVICE_LOST},
    {cudaErrorNvlinkUncorrectable, BSK_E_DEVICE_LOST},
    {cudaErrorIllegalAddress, BSK_E_DEVICE_LOST},
    {cudaErrorLaunchTimeout, BSK_E_DEVICE_LOST},
    {cudaErrorContextIsDestroyed, BSK_E_DEVICE_LOST},
    {cudaErrorAssert, BSK_E_DEVICE_LOST},
    {cudaErrorHardwareStackError, BSK_E_DEVICE_LOST},
    {cudaErrorIllegalInstruction, BSK_E_DEVICE_LOST},
    {cudaErrorMisalignedAddress, BSK_E_DEVICE_LOST},
    {cudaErrorInvalidAddressSpace, BSK_E_DEVICE_LOST},
    {cudaErrorInvalidPc, BSK_E_DEVICE_LOST},
    {cudaErrorLaunchFailure, BSK_E_DEVICE_LOST},
    {(cudaError_t)226, BSK_E_DEVICE_LOST}, /* cudaErrorContained of newer toolkits */
};

bsk_status bski_cuda_fail(const bsk_host *host, cudaError_t error, const char *what)
{
    bsk_status status = BSK_E_DEVICE;
    for (size_t i = 0; i < sizeof error_rows / sizeof *error_rows; i++)
        if (error_rows[i].error == error)
            status = error_rows[i].status;
    cudaGetLastError(); /* the caller hears of it here, and not from the next call of its own */
    return host->fail(host->context, status, "cuda: %s: %s (%s)", what, cudaGetErrorName(error),
                      cudaGetErrorString(error));
}

static bsk_status status_of(const bsk_host *host, cudaError_t error, const char *what)
{
    return error ? bski_cuda_fail(host, error, what) : BSK_OK;
}

bsk_status bski_cuda_driver_find(const bsk_host *host, const char *name, unsigned version,
                                 const void **function)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *address = NULL;
    cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found);
    *function = address;
    if (error)
        return bski_cuda_fail(host, error, name);
    if (found != cudaDriverEntryPointSuccess || !address)
        return host->fail(host->context, BSK_E_UNSUPPORTED, "cuda: the driver has no %s", name);
    return BSK_OK;
}

/* --- The current device --- */

static cudaError_t device_enter(const bski_cuda_device *d, int *before)
{
    cudaError_t error = cudaGetDevice(before);
    if (error || *before == d->index)
        return error;
    error = cudaSetDevice(d->index);
    if (error)
        *before = d->index;
    return error;
}

static void device_leave(const bski_cuda_device *d, int before)
{
    if (before != d->index)
        cudaSetDevice(before);
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
        enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;                            \
        cudaThreadExchangeStreamCaptureMode(&mode);                                                \
        ON_DEVICE(error, d, call);                                                                 \
        cudaThreadExchangeStreamCaptureMode(&mode);                                                \
    } while (0)

/* --- Devices --- */

bsk_status bski_cuda_probe(const bsk_host *host, int32_t *count)
{
    int n = 0; /* left alone without a driver */
    cudaError_t error = cudaGetDeviceCount(&n);
    *count = error ? 0 : n;
    if (error) {
        const bool absent = error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice;
        host->log(host->context, absent ? BSK_LOG_INFO : BSK_LOG_WARN, "cuda: no device: %s (%s)",
                  cudaGetErrorName(error), cudaGetErrorString(error));
        cudaGetLastError();
    }
    return BSK_OK;
}

static bsk_status device_kernel(simt_device *device, const char *file, const char *name,
                                bsk_dtype type, const char *variant, const simt_kernel **kernel)
{
    const bski_cuda_device *d = (const bski_cuda_device *)device;
    const simt_kernel *k = linked_find(device->host, "cuda", file, name, type, variant);
    *kernel = NULL;
    if (!k)
        return BSK_E_INTERNAL;
    TRY(bski_cuda_kernel(d, k->function, 0, k->name));
    *kernel = k;
    return BSK_OK;
}

/* --- Launches --- */

enum { MAX_GROUPS_X = INT32_MAX, MAX_GROUPS_YZ = 65535 };

/* Whether a launch of a portable kernel may start early. Larger grids run for longer than the host
 * works on their launch, and a step of training with all of them early took longer
 * (docs/measuring.md). */
static bool starts_before(const bski_cuda_device *d, const int64_t *groups)
{
    return d->waits && groups[0] * groups[1] * groups[2] <= d->simt.props.compute_units;
}

static bsk_status device_launch(simt_queue *queue, const simt_kernel *kernel, const simt_launch *l)
{
    const bski_cuda_queue *q = (const bski_cuda_queue *)queue;
    const bski_cuda_device *d = (const bski_cuda_device *)queue->device;
    const bsk_host *host = queue->device->host;
    const int64_t *groups = l->groups;
    if (groups[0] <= 0 || groups[1] <= 0 || groups[2] <= 0)
        return BSK_OK;
    if (groups[0] > MAX_GROUPS_X || groups[1] > MAX_GROUPS_YZ || groups[2] > MAX_GROUPS_YZ)
        return host->fail(host->context, BSK_E_UNSUPPORTED,
                          "cuda: %s: a grid of %lld x %lld x %lld groups; at most %d x %d x %d are "
                          "legal",
                          kernel->name, (long long)groups[0], (long long)groups[1],
                          (long long)groups[2], MAX_GROUPS_X, MAX_GROUPS_YZ, MAX_GROUPS_YZ);
    void *address[SIMT_MAX_BUFFERS], *arguments[SIMT_MAX_BUFFERS + 1];
    for (int32_t i = 0; i < l->buffer_count; i++) {
        address[i] = bsk_mem_address(l->buffers[i]);
        arguments[i] = &address[i];
    }
    /* Read before the call returns; the cast is what the interface asks for. */
    arguments[l->buffer_count] = (void *)(uintptr_t)l->scalars;
    const bski_cuda_run run = {
        .function = kernel->function,
        .name = kernel->name,
        .grid = {(unsigned)groups[0], (unsigned)groups[1], (unsigned)groups[2]},
        .threads = (unsigned)l->group_size,
        .arguments = arguments,
        .early = starts_before(d, groups),
    };
    return bski_cuda_launch(q, &run);
}

/* --- Tuned kernels --- */

/* Asking for attributes brings the code to the device: a first launch that does so could not be
 * captured in a graph. A kernel's plans need not use as much memory: what one has been allowed,
 * others do not take away. */
static cudaError_t kernel_load(const void *function, size_t shared_bytes)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct cudaFuncAttributes attributes;
    cudaError_t error = bski_cuda_load(function);
    if (error)
        return error;
    const void *kernel = bski_cuda_loaded(function);
    pthread_mutex_lock(&lock);
    error = cudaFuncGetAttributes(&attributes, kernel);
    if (!error && shared_bytes > (size_t)attributes.maxDynamicSharedSizeBytes)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)shared_bytes);
    pthread_mutex_unlock(&lock);
    return error;
}

bsk_status bski_cuda_kernel(const bski_cuda_device *device, const void *function,
                            size_t shared_bytes, const char *name)
{
    cudaError_t error;
    APART_ON_DEVICE(error, device, kernel_load(function, shared_bytes));
    return status_of(device->simt.host, error, name);
}

typedef CUresult (*launch_fn)(const CUlaunchConfig *, CUfunction, void **, void **);

static cudaError_t kernel_launch(const bski_cuda_device *d, const CUlaunchConfig *config,
                                 const bski_cuda_run *run)
{
    const launch_fn launch = (launch_fn)(uintptr_t)d->launch;
    const CUfunction kernel = (CUfunction)(uintptr_t)bski_cuda_loaded(run->function);
    /* the runtime's errors have the driver's numbers */
    return (cudaError_t)launch(config, kernel, run->arguments, NULL);
}

/* A thread that has not used its device yet has no context. */
static cudaError_t kernel_launch_current(const bski_cuda_device *d, const CUlaunchConfig *config,
                                         const bski_cuda_run *run)
{
    cudaError_t error = kernel_launch(d, config, run);
    if (error == cudaErrorDeviceUninitialized && !cudaSetDevice(d->index))
        error = kernel_launch(d, config, run);
    return error;
}

bsk_status bski_cuda_wake(const bski_cuda_device *d)
{
    cudaError_t error;
    ON_DEVICE(error, d, cudaSetDevice(d->index));
    return status_of(d->simt.host, error, "cudaSetDevice");
}

bsk_status bski_cuda_launch(const bski_cuda_queue *queue, const bski_cuda_run *run)
{
    const bski_cuda_device *d = (const bski_cuda_device *)queue->simt.device;
    if (!run->grid[0] || !run->grid[1] || !run->grid[2])
        return BSK_OK;
    CUlaunchAttribute attributes[2];
    unsigned count = 0;
    if (run->cluster > 1)
        attributes[count++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                                  .value.clusterDim = {run->cluster, 1, 1}};
    if (run->early)
        attributes[count++] =
            (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                .value.programmaticStreamSerializationAllowed = 1};
    const CUlaunchConfig config = {
        .gridDimX = run->grid[0],
        .gridDimY = run->grid[1],
        .gridDimZ = run->grid[2],
        .blockDimX = run->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = (unsigned)run->shared_bytes,
        .hStream = queue->stream,
        .attrs = attributes,
        .numAttrs = count,
    };
    /* A stream of its own names the device; others are of the one that is current. */
    cudaError_t error = cudaErrorDeviceUninitialized;
    if (!queue->any_device)
        error = kernel_launch(d, &config, run);
    if (error == cudaErrorDeviceUninitialized)
        ON_DEVICE(error, d, kernel_launch_current(d, &config, run));
    return status_of(d->simt.host, error, run->name);
}

/* --- Tables --- */

/* Copies on a stream of its own, so that neither the caller's streams nor a capture of them are
 * touched, and waits. */
static cudaError_t table_fill(void *to, const void *data, size_t bytes)
{
    cudaStream_t stream;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error)
        return error;
    error = cudaMemcpyAsync(to, data, bytes, cudaMemcpyHostToDevice, stream);
    cudaError_t waited = cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    return error ? error : waited;
}

static bsk_status device_table(simt_device *device, const void *data, size_t bytes, bsk_mem *mem)
{
    const bski_cuda_device *d = (const bski_cuda_device *)device;
    bsk_status status = BSK_OK;
    *mem = (bsk_mem){BSK_MEM_NULL, NULL, 0, 0};
    if (bytes)
        status = bski_cuda_mem_alloc(device, bytes, mem);
    if (status || !bytes)
        return status;
    cudaError_t error;
    APART_ON_DEVICE(error, d, table_fill(mem->handle, data, bytes));
    if (error) {
        bski_cuda_mem_free(device, *mem);
        *mem = (bsk_mem){BSK_MEM_NULL, NULL, 0, 0};
    }
    return status_of(device->host, error, "a table");
}

static void device_table_free(simt_device *device, bsk_mem *mem)
{
    bski_cuda_mem_free(device, *mem);
    *mem = (bsk_mem){BSK_MEM_NULL, NULL, 0, 0};
}

static const simt_api device_api = {
    .kernel = device_kernel,
    .launch = device_launch,
    .table = device_table,
    .table_free = device_table_free,
};

/* --- Opening --- */

static int device_number(int index, enum cudaDeviceAttr what)
{
    int value = 0;
    return cudaDeviceGetAttribute(&value, what, index) ? 0 : value;
}

static cudaError_t device_props(int index, bsk_device_props *props)
{
    struct cudaDeviceProp p;
    int driver = 0;
    cudaError_t error = cudaGetDeviceProperties(&p, index);
    if (!error)
        error = cudaDriverGetVersion(&driver);
    if (error)
        return error;
    *props = (bsk_device_props){
        .struct_size = sizeof *props,
        .arch = bski_cuda_arch(10 * p.major + p.minor),
        .compute_units = p.multiProcessorCount,
        .memory_bytes = p.totalGlobalMem,
        .mem_kinds = 1u << BSK_MEM_DEVICE,
        .dtypes = BSK_DTYPE_BIT(BSK_F64) | BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_F16) |
                  BSK_DTYPE_BIT(BSK_BF16) | BSK_DTYPE_BIT(BSK_I64) | BSK_DTYPE_BIT(BSK_I32) |
                  BSK_DTYPE_BIT(BSK_U16) | BSK_DTYPE_BIT(BSK_U8),
        .local_bytes = p.sharedMemPerBlock,
        .max_group = device_number(index, cudaDevAttrMaxThreadsPerBlock),
        .wave = device_number(index, cudaDevAttrWarpSize),
    };
    snprintf(props->name, sizeof props->name, "%.*s", (int)sizeof props->name - 1, p.name);
    snprintf(props->driver, sizeof props->driver, "CUDA %d.%d", driver / 1000, driver % 1000 / 10);
    return cudaSuccess;
}

/* Code of portable kernels for 9.0 and all newer capabilities is made by one front end, whether the
 * build assembled it or the driver does: of older PTX nothing waits. */
static bool portable_wait(int index)
{
#ifdef CUDA_PORTABLE_WAITS
    return device_number(index, cudaDevAttrComputeCapabilityMajor) >= 9;
#else
    (void)index;
    return false;
#endif
}

bsk_status bski_cuda_device_open(const bsk_host *host, int32_t index, void **device,
                                 bsk_device_props *props)
{
    char what[32];
    *device = NULL;
    snprintf(what, sizeof what, "device %d", (int)index);
    cudaError_t error = device_props(index, props);
    if (error)
        return bski_cuda_fail(host, error, what);
    bski_cuda_device *d;
    TRY(host_array(host, &d, 1, sizeof *d));
    d->simt.api = &device_api;
    d->simt.host = host;
    d->simt.props = *props;
    d->index = index;
    d->waits = portable_wait(index);
    d->shared_bytes = (size_t)device_number(index, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    bsk_status status = bski_cuda_driver_find(host, "cuLaunchKernelEx", 11060, &d->launch);
    if (status)
        host_drop(host, d);
    else
        *device = d;
    return status;
}

void bski_cuda_device_close(void *device)
{
    bski_cuda_device *d = device;
    if (d)
        host_drop(d->simt.host, d);
}

/* --- Queues --- */

static const bski_cuda_device *queue_device(const bski_cuda_queue *q)
{
    return (const bski_cuda_device *)q->simt.device;
}

static bsk_status queue_make(bski_cuda_device *d, cudaStream_t stream, bool wrapped, void **queue)
{
    bski_cuda_queue *q;
    TRY(host_array(d->simt.host, &q, 1, sizeof *q));
    q->simt.device = &d->simt;
    q->stream = stream;
    q->wrapped = wrapped;
    q->any_device = !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
    *queue = q;
    return BSK_OK;
}

bsk_status bski_cuda_queue_create(void *device, void **queue)
{
    bski_cuda_device *d = device;
    cudaStream_t stream;
    cudaError_t error;
    *queue = NULL;
    APART_ON_DEVICE(error, d, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (error)
        return bski_cuda_fail(d->simt.host, error, "a queue");
    bsk_status status = queue_make(d, stream, false, queue);
    if (status)
        cudaStreamDestroy(stream);
    return status;
}

/* The device of a stream. The default streams belong to the current device, whichever that is. A
 * stream that captures answers no questions: it counts as one of the current device, and if it is
 * not, its first launch fails. */
static cudaError_t stream_device(cudaStream_t stream, int *index)
{
    enum cudaStreamCaptureStatus capture;
    cudaError_t error = cudaStreamIsCapturing(stream, &capture);
    if (error)
        return error;
    if (capture != cudaStreamCaptureStatusNone)
        return cudaGetDevice(index);
    return cudaStreamGetDevice(stream, index);
}

bsk_status bski_cuda_queue_wrap(void *device, void *native, void **queue)
{
    bski_cuda_device *d = device;
    const bsk_host *host = d->simt.host;
    int index = -1;
    cudaError_t error;
    *queue = NULL;
    ON_DEVICE(error, d, stream_device(native, &index));
    if (error)
        return bski_cuda_fail(host, error, "native");
    if (index != d->index)
        return host->fail(host->context, BSK_E_INVALID,
                          "cuda: native is a stream of another device than cuda:%d", d->index);
    return queue_make(d, native, true, queue);
}

void bski_cuda_queue_destroy(void *queue)
{
    bski_cuda_queue *q = queue;
    if (!q)
        return;
    if (!q->wrapped) {
        cudaError_t error;
        APART_ON_DEVICE(error, queue_device(q), cudaStreamSynchronize(q->stream));
        (void)error; /* of earlier work, and nobody is left to hear of it */
        cudaStreamDestroy(q->stream);
    }
    host_drop(q->simt.device->host, q);
}

bsk_status bski_cuda_queue_sync(void *queue)
{
    const bski_cuda_queue *q = queue;
    cudaError_t error;
    APART_ON_DEVICE(error, queue_device(q), cudaStreamSynchronize(q->stream));
    return status_of(q->simt.device->host, error, "work of the queue");
}

bsk_status bski_cuda_lend(void *device, void *queue, bsk_stream_use_fn use, void *argument)
{
    const bski_cuda_device *d = device;
    const bski_cuda_queue *q = queue;
    bsk_status status = BSK_OK;
    cudaError_t error;
    ON_DEVICE(error, d, (status = use(argument, q ? q->stream : NULL), cudaSuccess));
    return error ? bski_cuda_fail(d->simt.host, error, "the device") : status;
}

/* --- Memory --- */

bsk_status bski_cuda_mem_alloc(void *device, size_t bytes, bsk_mem *mem)
{
    const bski_cuda_device *d = device;
    void *p = NULL;
    char what[64];
    cudaError_t error;
    *mem = (bsk_mem){BSK_MEM_NULL, NULL, 0, 0};
    APART_ON_DEVICE(error, d, cudaMalloc(&p, bytes ? bytes : 1));
    if (error) {
        snprintf(what, sizeof what, "a buffer of %zu bytes", bytes);
        return bski_cuda_fail(d->simt.host, error, what);
    }
    *mem = (bsk_mem){BSK_MEM_DEVICE, p, 0, bytes};
    return BSK_OK;
}

void bski_cuda_mem_free(void *device, bsk_mem mem)
{
    const bski_cuda_device *d = device;
    cudaError_t error;
    if (mem.kind != BSK_MEM_DEVICE || !mem.handle)
        return;
    APART_ON_DEVICE(error, d, cudaFree(mem.handle));
    if (error) { /* most often of earlier work, which its queue reports */
        d->simt.host->log(d->simt.host->context, BSK_LOG_INFO, "cuda: freeing memory: %s",
                          cudaGetErrorName(error));
        cudaGetLastError();
    }
}

static bsk_status queue_copy(const bski_cuda_queue *q, void *dst, const void *src, size_t bytes,
                             enum cudaMemcpyKind kind, const char *what)
{
    cudaError_t error = cudaSuccess;
    if (bytes)
        APART_ON_DEVICE(error, queue_device(q), cudaMemcpyAsync(dst, src, bytes, kind, q->stream));
    return status_of(q->simt.device->host, error, what);
}

bsk_status bski_cuda_mem_upload(void *queue, bsk_mem dst, const void *src, size_t bytes)
{
    return queue_copy(queue, bsk_mem_address(dst), src, bytes, cudaMemcpyHostToDevice, "an upload");
}

bsk_status bski_cuda_mem_download(void *queue, void *dst, bsk_mem src, size_t bytes)
{
    return queue_copy(queue, dst, bsk_mem_address(src), bytes, cudaMemcpyDeviceToHost,
                      "a download");
}

bsk_status bski_cuda_mem_fill(void *queue, bsk_mem dst, uint8_t byte, size_t bytes)
{
    const bski_cuda_queue *q = queue;
    cudaError_t error = cudaSuccess;
    if (bytes)
        ON_DEVICE(error, queue_device(q),
                  cudaMemsetAsync(bsk_mem_address(dst), byte, bytes, q->stream));
    return status_of(q->simt.device->host, error, "a fill");
}

/* --- Events --- */

typedef struct queue_event {
    const bski_cuda_device *device;
    cudaEvent_t handle;
} queue_event;

bsk_status bski_cuda_event_create(void *device, void **event)
{
    const bski_cuda_device *d = device;
    const bsk_host *host = d->simt.host;
    queue_event *e;
    *event = NULL;
    TRY(host_array(host, &e, 1, sizeof *e));
    e->device = d;
    cudaError_t error;
    ON_DEVICE(error, d, cudaEventCreate(&e->handle));
    if (error) {
        host_drop(host, e);
        return bski_cuda_fail(host, error, "an event");
    }
    *event = e;
    return BSK_OK;
}

void bski_cuda_event_destroy(void *event)
{
    queue_event *e = event;
    if (!e)
        return;
    cudaEventDestroy(e->handle);
    host_drop(e->device->simt.host, e);
}

bsk_status bski_cuda_event_record(void *event, void *queue)
{
    const queue_event *e = event;
    const bski_cuda_queue *q = queue;
    cudaError_t error;
    ON_DEVICE(error, e->device, cudaEventRecord(e->handle, q->stream));
    return status_of(e->device->simt.host, error, "an event");
}

static cudaError_t events_elapsed(const queue_event *from, const queue_event *to, float *elapsed)
{
    cudaError_t error = cudaEventSynchronize(from->handle);
    if (!error)
        error = cudaEventSynchronize(to->handle);
    return error ? error : cudaEventElapsedTime(elapsed, from->handle, to->handle);
}

bsk_status bski_cuda_event_elapsed(void *start, void *stop, double *milliseconds)
{
    const queue_event *from = start;
    float elapsed = 0;
    cudaError_t error;
    APART_ON_DEVICE(error, from->device, events_elapsed(from, stop, &elapsed));
    if (!error)
        *milliseconds = elapsed;
    return status_of(from->device->simt.host, error, "the time between two events");
}
