/* Shared by the files of the CUDA backend. */
#ifndef BSKI_CUDA_H
#define BSKI_CUDA_H

#include <stdbool.h>

#include <cuda_runtime_api.h>

#include <backends/simt/launch.h>

typedef struct bski_cuda_device {
    simt_device simt; /* first: what the portable kernels see */
    int index;
    bool waits; /* its code of portable kernels waits for the queue's earlier work itself */
    size_t shared_bytes; /* of a thread block that asks for more than usual */
    const void *launch;  /* cuLaunchKernelEx */
} bski_cuda_device;

typedef struct bski_cuda_queue {
    simt_queue simt; /* first: what launches see */
    cudaStream_t stream;
    bool wrapped;
    bool any_device; /* the stream belongs to the device that is current */
} bski_cuda_queue;

/* The rank of the newest architecture whose code a device of a compute capability (10 x major +
 * minor) runs. Code for an architecture with an "a" runs on that capability alone. */
int32_t bski_cuda_arch(int capability);

/* Sets a message with the name of a CUDA error and answers the status that it stands for. */
bsk_status bski_cuda_fail(const bsk_host *host, cudaError_t error, const char *what);

/* A function of the driver, as it was in a version (12000 for 12.0). */
bsk_status bski_cuda_driver_find(const bsk_host *host, const char *name, unsigned version,
                                 const void **function);

/* --- For tuned entries: kernels are extern "C" in .cu files; C files plan and launch them. --- */

/* The functions of a family of entries, which kernels.inc names by the macro of the same kind. */
#define CUDA_SOLE_FUNCTIONS(family)                                                                \
    bsk_reason cuda_##family##_accept(const bsk_problem *problem, const bsk_device_props *props);  \
    bsk_status cuda_##family##_prepare(void *device, bsk_prepared *prepared);                      \
    bsk_status cuda_##family##_launch(const bsk_prepared *prepared, void *queue,                   \
                                      const void *args);                                           \
    void cuda_##family##_release(void *device, bsk_prepared *prepared);
#define CUDA_FUNCTIONS(family)                                                                     \
    CUDA_SOLE_FUNCTIONS(family)                                                                    \
    double cuda_##family##_seconds(const bsk_problem *problem, const bsk_device_props *props);
#define CUDA_PACKED_FUNCTIONS(family)                                                              \
    CUDA_FUNCTIONS(family)                                                                         \
    bsk_status cuda_##family##_pack(const bsk_prepared *prepared, void *queue, bsk_mem s,          \
                                    bsk_mem packed);

/* Loads a kernel onto a device, so that its first launch can be captured, and allows it so much
 * dynamic shared memory. To be called before any launch. */
bsk_status bski_cuda_kernel(const bski_cuda_device *device, const void *function,
                            size_t shared_bytes, const char *name);

/* One launch. cluster: thread blocks of a cluster along x; 0 or 1: none. */
typedef struct bski_cuda_run {
    const void *function;
    const char *name;
    unsigned grid[3]; /* an empty axis: a valid no-op */
    unsigned threads, cluster;
    size_t shared_bytes;
    void **arguments;
    bool early; /* may start before the queue's earlier work ends, for which the kernel waits itself
                   (griddepcontrol, sm90) before it touches anything but tables of its plan */
} bski_cuda_run;

bsk_status bski_cuda_launch(const bski_cuda_queue *queue, const bski_cuda_run *run);

/* Gives the calling thread a context, which it has not if it never used a device; the device that is
 * current to it stays the same. */
bsk_status bski_cuda_wake(const bski_cuda_device *device);

/* A kernel's cudaKernel_t: bski_cuda_load asks for it, bski_cuda_loaded answers what was found, NULL
 * before. Any thread may call both. */
cudaError_t bski_cuda_load(const void *function);
const void *bski_cuda_loaded(const void *function);

/* The functions of bsk_backend. */
bsk_status bski_cuda_probe(const bsk_host *host, int32_t *count);
bsk_status bski_cuda_device_open(const bsk_host *host, int32_t index, void **device,
                                 bsk_device_props *props);
void bski_cuda_device_close(void *device);
bsk_status bski_cuda_queue_create(void *device, void **queue);
bsk_status bski_cuda_queue_wrap(void *device, void *native, void **queue);
void bski_cuda_queue_destroy(void *queue);
bsk_status bski_cuda_queue_sync(void *queue);
bsk_status bski_cuda_mem_alloc(void *device, size_t bytes, bsk_mem *mem);
void bski_cuda_mem_free(void *device, bsk_mem mem);
bsk_status bski_cuda_mem_upload(void *queue, bsk_mem dst, const void *src, size_t bytes);
bsk_status bski_cuda_mem_download(void *queue, void *dst, bsk_mem src, size_t bytes);
bsk_status bski_cuda_mem_fill(void *queue, bsk_mem dst, uint8_t byte, size_t bytes);
bsk_status bski_cuda_event_create(void *device, void **event);
void bski_cuda_event_destroy(void *event);
bsk_status bski_cuda_event_record(void *event, void *queue);
bsk_status bski_cuda_event_elapsed(void *start, void *stop, double *milliseconds);
bsk_status bski_cuda_lend(void *device, void *queue, bsk_stream_use_fn use, void *argument);

#endif
