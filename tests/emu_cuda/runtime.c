#define _GNU_SOURCE /* MAP_ANONYMOUS */
/* The part of the CUDA runtime that the backend uses, on host memory. Everything is done when a
 * call returns. BSK_EMU_CUDA is the compute capability, as 90 for 9.0; BSK_EMU_SEED changes the
 * order in which lanes run and copies are done. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "machine.h"
#include "tensor.h"

/* --- The device --- */

enum { UNITS = 4 /* few, so that blocks are short of work and loop */, DRIVER = 13000 };

typedef struct capability_row {
    int capability;
    size_t shared; /* dynamic, of a block that asks for more than 48 KiB */
} capability_row;

static const capability_row capabilities[] = {{75, 64 << 10}, {80, 163 << 10}, {86, 99 << 10},
                                              {89, 99 << 10}, {90, 227 << 10}, {100, 227 << 10},
                                              {120, 99 << 10}};

enum { SHARED_DEFAULT = 48 << 10 };

static const capability_row *capability(void)
{
    const char *text = getenv("BSK_EMU_CUDA");
    const int wanted = text ? atoi(text) : 90;
    for (size_t i = 0; i < sizeof capabilities / sizeof *capabilities; i++)
        if (capabilities[i].capability == wanted)
            return &capabilities[i];
    return NULL;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = capability() ? 1 : 0;
    return *count ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

/* The driver launches and encodes for threads that have a context; the runtime's call gives them one. */
static _Thread_local bool has_context;

cudaError_t cudaSetDevice(int device)
{
    has_context = has_context || !device;
    return device ? cudaErrorInvalidDevice : cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    const capability_row *c = capability();
    const char *seed = getenv("BSK_EMU_SEED");
    if (device || !c)
        return cudaErrorInvalidDevice;
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulator of sm%d", c->capability);
    p->major = c->capability / 10;
    p->minor = c->capability % 10;
    p->multiProcessorCount = UNITS;
    p->totalGlobalMem = (size_t)1 << 30;
    p->sharedMemPerBlock = SHARED_DEFAULT;
    p->sharedMemPerBlockOptin = c->shared;
    p->warpSize = GPU_LANES;
    p->maxThreadsPerBlock = 1024;
    gpu_schedule(seed ? strtoull(seed, NULL, 10) : 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr what, int device)
{
    const capability_row *c = capability();
    if (device || !c)
        return cudaErrorInvalidDevice;
    switch (what) {
    case cudaDevAttrWarpSize:
        *value = GPU_LANES;
        return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)c->shared;
        return cudaSuccess;
    default:
        return cudaErrorInvalidValue;
    }
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = DRIVER;
    return cudaSuccess;
}

/* --- Errors --- */

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaSuccess ? "success" : error == cudaErrorLaunchFailure ? "fault" : "error";
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorLaunchFailure ? gpu.message : "what the emulator does not take";
}

/* --- Memory --- */

/* What lies behind the last byte, rounded up to ALIGNMENT, is a page that nobody may touch. */
enum { ALIGNMENT = 64, PAGE = 4096 };

typedef struct allocation {
    struct allocation *next;
    char *memory, *pages;
    size_t bytes, page_bytes;
} allocation;

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static allocation *allocations;

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    allocation *a = malloc(sizeof *a);
    const size_t page_bytes = round_up(bytes, PAGE) + PAGE;
    char *pages =
        mmap(NULL, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!a || pages == MAP_FAILED || mprotect(pages + page_bytes - PAGE, PAGE, PROT_NONE)) {
        if (pages != MAP_FAILED)
            munmap(pages, page_bytes);
        free(a);
        return cudaErrorMemoryAllocation;
    }
    char *memory = pages + page_bytes - PAGE - round_up(bytes, ALIGNMENT);
    memset(memory, 0xff, bytes); /* NaN in every type */
    pthread_mutex_lock(&memory_lock);
    *a = (allocation){allocations, memory, pages, bytes, page_bytes};
    allocations = a;
    pthread_mutex_unlock(&memory_lock);
    *p = memory;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    if (!p)
        return cudaSuccess;
    pthread_mutex_lock(&memory_lock);
    allocation **at = &allocations;
    while (*at && (*at)->memory != p)
        at = &(*at)->next;
    allocation *a = *at;
    if (a)
        *at = a->next;
    pthread_mutex_unlock(&memory_lock);
    if (!a)
        return cudaErrorInvalidValue;
    munmap(a->pages, a->page_bytes);
    free(a);
    return cudaSuccess;
}

bool gpu_global_has(const void *p, size_t bytes)
{
    pthread_mutex_lock(&memory_lock);
    const allocation *a = allocations;
    while (a && ((size_t)((uintptr_t)p - (uintptr_t)a->memory) > a->bytes ||
                 bytes > a->bytes - (size_t)((uintptr_t)p - (uintptr_t)a->memory)))
        a = a->next;
    pthread_mutex_unlock(&memory_lock);
    return a != NULL;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)stream;
    const void *on_device = kind == cudaMemcpyHostToDevice ? to : from;
    if (!gpu_global_has(on_device, bytes))
        return cudaErrorInvalidValue;
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    if (!gpu_global_has(to, bytes))
        return cudaErrorInvalidValue;
    memset(to, byte, bytes);
    return cudaSuccess;
}

/* --- Streams and events: there is nothing to wait for --- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    *stream = malloc(1);
    return *stream ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}

/* Nothing captures. */
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    (void)mode;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    (void)stream;
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device)
{
    (void)stream;
    return cudaGetDevice(device);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = malloc(1);
    return *event ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    (void)event;
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    (void)event;
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t stop)
{
    (void)start;
    (void)stop;
    *milliseconds = 0;
    return cudaSuccess;
}

/* --- Kernels --- */

cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code,
                                enum cudaJitOption *options, void **values, unsigned count,
                                enum cudaLibraryOption *library_options, void **library_values,
                                unsigned library_count)
{
    (void)options;
    (void)values;
    (void)library_options;
    (void)library_values;
    *library = (cudaLibrary_t)(uintptr_t)code;
    return count || library_count ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library)
{
    (void)library;
    return cudaSuccess;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name)
{
    gpu_kernel *k = (gpu_kernel *)(void *)library;
    while (k->name && strcmp(k->name, name))
        k++;
    *kernel = (cudaKernel_t)(void *)k;
    return k->name ? cudaSuccess : cudaErrorSymbolNotFound;
}

static pthread_mutex_t allowed_lock = PTHREAD_MUTEX_INITIALIZER;

/* The dynamic shared memory that launches of a kernel may use. */
static size_t allowed_most(const gpu_kernel *kernel)
{
    pthread_mutex_lock(&allowed_lock);
    const size_t most = kernel->allowed > SHARED_DEFAULT ? kernel->allowed : SHARED_DEFAULT;
    pthread_mutex_unlock(&allowed_lock);
    return most;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    memset(attributes, 0, sizeof *attributes);
    if (!function)
        return cudaErrorInvalidDeviceFunction;
    attributes->maxDynamicSharedSizeBytes = (int)allowed_most(function);
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute what, int value)
{
    gpu_kernel *kernel = (gpu_kernel *)(uintptr_t)function;
    if (!kernel)
        return cudaErrorInvalidDeviceFunction;
    if (what != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        (size_t)value > capability()->shared)
        return cudaErrorInvalidValue;
    pthread_mutex_lock(&allowed_lock);
    kernel->allowed = (size_t)value;
    pthread_mutex_unlock(&allowed_lock);
    return cudaSuccess;
}

static cudaError_t launch(const gpu_kernel *kernel, dim3 grid, dim3 block, unsigned cluster,
                          size_t shared, void **arguments)
{
    if (!kernel) /* which no plan has loaded */
        return cudaErrorInvalidDeviceFunction;
    if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535 ||
        shared > allowed_most(kernel) || block.y != 1 || block.z != 1)
        return cudaErrorInvalidValue;
    if (!gpu_launch(kernel, grid, block.x, cluster, (uint32_t)shared, arguments))
        return cudaErrorInvalidConfiguration;
    return gpu.fault ? cudaErrorLaunchFailure : cudaSuccess;
}

static CUresult launch_ex(const CUlaunchConfig *c, CUfunction function, void **arguments,
                          void **extra)
{
    unsigned cluster = 1;
    if (!has_context)
        return CUDA_ERROR_INVALID_CONTEXT;
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            cluster = c->attrs[i].value.clusterDim.x;
    const dim3 grid = {c->gridDimX, c->gridDimY, c->gridDimZ};
    const dim3 block = {c->blockDimX, c->blockDimY, c->blockDimZ};
    (void)extra;
    return (CUresult)launch((const gpu_kernel *)(void *)function, grid, block, cluster,
                            c->sharedMemBytes, arguments);
}

/* --- Tensor maps --- */

static CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                       const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                       const cuuint32_t *steps, CUtensorMapInterleave interleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                       CUtensorMapFloatOOBfill fill)
{
    static const uint8_t changed[] = {[CU_TENSOR_MAP_SWIZZLE_NONE] = 0,
                                      [CU_TENSOR_MAP_SWIZZLE_32B] = 1,
                                      [CU_TENSOR_MAP_SWIZZLE_64B] = 3,
                                      [CU_TENSOR_MAP_SWIZZLE_128B] = 7};
    const bool tf32 = type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
    const unsigned size = tf32                                       ? 4
                          : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32  ? 4
                          : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16  ? 2
                          : type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ? 2
                          : type == CU_TENSOR_MAP_DATA_TYPE_UINT8    ? 1
                                                                     : 0;
    (void)promotion;
    if (!size || rank < 1 || rank > TENSOR_RANK || (uintptr_t)map % 64 || (uintptr_t)address % 16 ||
        interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ||
        swizzle > CU_TENSOR_MAP_SWIZZLE_128B)
        return CUDA_ERROR_INVALID_VALUE;
    if (!has_context)
        return CUDA_ERROR_INVALID_CONTEXT;
    tensor_map m = {.mark = TENSOR_MARK,
                    .address = address,
                    .size = (uint8_t)size,
                    .rank = (uint8_t)rank,
                    .tf32 = tf32,
                    .swizzle = changed[swizzle]};
    for (cuuint32_t i = 0; i < rank; i++) {
        if (dims[i] < 1 || dims[i] > UINT64_C(1) << 32 || box[i] < 1 || box[i] > 256 ||
            steps[i] != 1)
            return CUDA_ERROR_INVALID_VALUE;
        if (i && (strides[i - 1] % 16 || strides[i - 1] >= UINT64_C(1) << 40))
            return CUDA_ERROR_INVALID_VALUE;
        m.dims[i] = dims[i];
        m.box[i] = (uint16_t)box[i];
        if (i)
            m.strides[i - 1] = strides[i - 1];
    }
    if (box[0] * size % 16 || (m.swizzle && box[0] * size > 16u * (m.swizzle + 1u)))
        return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof *map);
    memcpy(map, &m, sizeof m);
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    (void)version;
    (void)flags;
    *function = !strcmp(name, "cuTensorMapEncodeTiled") ? (void *)(uintptr_t)encode
                : !strcmp(name, "cuLaunchKernelEx")     ? (void *)(uintptr_t)launch_ex
                                                        : NULL;
    *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
