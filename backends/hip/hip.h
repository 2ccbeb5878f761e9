/* Shared by the files of the HIP backend. */
#ifndef BSKI_HIP_H
#define BSKI_HIP_H

#include <stdbool.h>

#include <hip/hip_runtime_api.h>

#include <backends/simt/launch.h>

typedef struct bski_hip_device {
    simt_device simt; /* first: what the portable kernels see */
    int index;
} bski_hip_device;

typedef struct bski_hip_queue {
    simt_queue simt; /* first: what launches see */
    hipStream_t stream;
    bool wrapped;
} bski_hip_queue;

/* Sets a message with the name of a HIP error and answers the status that it stands for. */
bsk_status bski_hip_fail(const bsk_host *host, hipError_t error, const char *what);

/* The functions of bsk_backend. */
bsk_status bski_hip_probe(const bsk_host *host, int32_t *count);
bsk_status bski_hip_device_open(const bsk_host *host, int32_t index, void **device,
                                bsk_device_props *props);
void bski_hip_device_close(void *device);
bsk_status bski_hip_queue_create(void *device, void **queue);
bsk_status bski_hip_queue_wrap(void *device, void *native, void **queue);
void bski_hip_queue_destroy(void *queue);
bsk_status bski_hip_queue_sync(void *queue);
bsk_status bski_hip_mem_alloc(void *device, size_t bytes, bsk_mem *mem);
void bski_hip_mem_free(void *device, bsk_mem mem);
bsk_status bski_hip_mem_upload(void *queue, bsk_mem dst, const void *src, size_t bytes);
bsk_status bski_hip_mem_download(void *queue, void *dst, bsk_mem src, size_t bytes);
bsk_status bski_hip_mem_fill(void *queue, bsk_mem dst, uint8_t byte, size_t bytes);
bsk_status bski_hip_event_create(void *device, void **event);
void bski_hip_event_destroy(void *event);
bsk_status bski_hip_event_record(void *event, void *queue);
bsk_status bski_hip_event_elapsed(void *start, void *stop, double *milliseconds);
bsk_status bski_hip_lend(void *device, void *queue, bsk_stream_use_fn use, void *argument);

#endif
