/* Shared by the files of the OpenCL backend. */
#ifndef BSKI_OPENCL_H
#define BSKI_OPENCL_H

#include <pthread.h>
#include <stdbool.h>

/* Up to 2.0 for shared virtual memory, which is called only where a device has it; the rest is
 * OpenCL 1.2, of which clCreateCommandQueue is the part that every version has. */
#define CL_TARGET_OPENCL_VERSION 200
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <CL/cl_ext.h>

#include <backends/simt/launch.h>

/* --- device.c --------------------------------------------------------------------------------- */

typedef struct bski_cl_program bski_cl_program;

typedef struct bski_cl_device {
    simt_device simt; /* first: what the portable kernels see */
    cl_platform_id platform;
    cl_device_id id;
    bool svm;            /* takes pointers of clSVMAlloc */
    bool exact_division; /* correctly rounded f32 division and square root are an option */
    int32_t nvidia;      /* compute capability as 90 for 9.0; 0: another maker's device */
    char identity[768];  /* platform, device and driver with their versions */

    pthread_mutex_t lock; /* of what follows */
    cl_context context;
    bool used;                 /* the context is in use and stays */
    cl_command_queue service;  /* of mem_alloc; NULL until then */
    bski_cl_program *programs; /* program.c */
} bski_cl_device;

typedef struct bski_cl_queue {
    simt_queue simt; /* first: what launches see */
    cl_command_queue handle;
    bool wrapped;
    bool lost; /* the device went away: every later call says so */
} bski_cl_queue;

/* Sets a message with the name of an OpenCL error and answers the status that it stands for. */
bsk_status bski_cl_fail(const bsk_host *host, cl_int error, const char *what);
/* The same for work on a queue, which remembers a lost device. */
bsk_status bski_cl_queue_fail(bski_cl_queue *queue, cl_int error, const char *what);
/* OK, or DEVICE_LOST. */
bsk_status bski_cl_queue_check(const bski_cl_queue *queue);

/* The device's context; from the first call on it stays the same. */
cl_context bski_cl_context(bski_cl_device *device);

/* NULL if memory is short; zero-filled. */
void *bski_cl_alloc(const bsk_host *host, size_t bytes);
void bski_cl_free(const bsk_host *host, void *pointer);

/* The functions of bsk_backend. */
bsk_status bski_cl_probe(const bsk_host *host, int32_t *count);
bsk_status bski_cl_device_open(const bsk_host *host, int32_t index, void **device,
                               bsk_device_props *props);
void bski_cl_device_close(void *device);
bsk_status bski_cl_queue_create(void *device, void **queue);
bsk_status bski_cl_queue_wrap(void *device, void *native, void **queue);
void bski_cl_queue_destroy(void *queue);
bsk_status bski_cl_queue_sync(void *queue);
bsk_status bski_cl_mem_alloc(void *device, size_t bytes, bsk_mem *mem);
void bski_cl_mem_free(void *device, bsk_mem mem);
bsk_status bski_cl_mem_upload(void *queue, bsk_mem dst, const void *src, size_t bytes);
bsk_status bski_cl_mem_download(void *queue, void *dst, bsk_mem src, size_t bytes);
bsk_status bski_cl_mem_fill(void *queue, bsk_mem dst, uint8_t byte, size_t bytes);
bsk_status bski_cl_event_create(void *device, void **event);
void bski_cl_event_destroy(void *event);
bsk_status bski_cl_event_record(void *event, void *queue);
bsk_status bski_cl_event_elapsed(void *start, void *stop, double *milliseconds);

/* --- program.c -------------------------------------------------------------------------------- */

/* A kernel file with its includes, put into the module by ci/embed.py. */
typedef struct bski_cl_source {
    const char *name; /* "products" */
    const unsigned char *text;
    size_t bytes;
} bski_cl_source;

extern const bski_cl_source bski_cl_sources[];
extern const size_t bski_cl_source_count;

/* simt_api.kernel and simt_api.launch. */
bsk_status bski_cl_kernel(simt_device *device, const char *file, const char *name, bsk_dtype type,
                          const char *variant, const simt_kernel **kernel);
bsk_status bski_cl_launch(simt_queue *queue, const simt_kernel *kernel, const simt_launch *launch);
void bski_cl_programs_free(bski_cl_device *device);

/* --- cache.c: compiled programs in files ------------------------------------------------------ */

enum { BSKI_CL_KEY_BYTES = 32 };

/* The hash of everything that a binary depends on. */
typedef struct bski_cl_key {
    uint8_t bytes[BSKI_CL_KEY_BYTES];
} bski_cl_key;

typedef struct bski_cl_part {
    const void *data;
    size_t bytes;
} bski_cl_part;

bski_cl_key bski_cl_key_make(const bski_cl_part *parts, size_t count);

/* The payload that was written under the key, in memory for bski_cl_free; NULL if there is none or
 * anything about it is doubtful. */
unsigned char *bski_cl_cache_read(const bsk_host *host, const bski_cl_key *key, size_t *bytes);
/* Keeps a payload. Failing is a log line. */
void bski_cl_cache_write(const bsk_host *host, const bski_cl_key *key, const unsigned char *payload,
                         size_t bytes);

#endif
