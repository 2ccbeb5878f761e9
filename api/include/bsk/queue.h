/* Queues, memory, events and plans. Part of bsk; include <bsk/bsk.h>. */
#ifndef BSK_QUEUE_H
#define BSK_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#include <bsk/context.h>
#include <bsk/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An ordered sequence of work on one device. The CPU backend executes each call before it
 * returns; all others are asynchronous.
 * Thread-safety: one thread at a time. */
typedef struct bsk_queue bsk_queue;

/* Creates a queue of its own on the device. Errors: NOMEM, DEVICE_NOMEM, DEVICE. */
BSK_API bsk_status bsk_queue_create(const bsk_device *device, bsk_queue **queue);

/* Wraps a native stream, which stays the caller's and must outlive the queue:
 * cudaStream_t, hipStream_t or cl_command_queue, passed by value as a pointer.
 * OpenCL: the device moves into the cl_context of a queue that is wrapped before any queue, memory
 * or plan of the device is made; later only in-order queues of the device's context are legal.
 * Errors: UNSUPPORTED where the backend has no native streams (CPU); INVALID for a stream of
 * another device or context. */
BSK_API bsk_status bsk_queue_wrap(const bsk_device *device, void *native, bsk_queue **queue);

/* Waits for the queue, destroys it and sets *queue to NULL; a wrapped stream is neither waited
 * for nor destroyed. *queue may be NULL. */
BSK_API void bsk_queue_destroy(bsk_queue **queue);

/* Waits until all work is done and reports the first error of that work. Errors: DEVICE,
 * DEVICE_LOST. */
BSK_API bsk_status bsk_queue_sync(bsk_queue *queue);

/* Device memory. Allocation is aligned to at least 256 bytes and may block; it never happens
 * inside a run. bytes = 0 counts as 1, so that the view has a size, which 0 would not be.
 * Errors: NOMEM or DEVICE_NOMEM; *mem is then absent (BSK_MEM_NULL). */
BSK_API bsk_status bsk_mem_alloc(const bsk_device *device, size_t bytes, bsk_mem *mem);

/* Frees what bsk_mem_alloc gave, whole and not through bsk_mem_at, and sets *mem to an absent view;
 * absent views and NULL are allowed. Work that uses the memory must have finished. */
BSK_API void bsk_mem_free(const bsk_device *device, bsk_mem *mem);

/* Copies of `bytes` bytes between host and device, and fills with a byte, in the queue's order. The
 * host memory must stay valid until bsk_queue_sync(). bytes = 0 does nothing.
 * Errors: INVALID for absent or foreign memory, or where bytes exceeds a view's known size; DEVICE. */
BSK_API bsk_status bsk_mem_upload(bsk_queue *queue, bsk_mem dst, const void *src, size_t bytes);
BSK_API bsk_status bsk_mem_download(bsk_queue *queue, void *dst, bsk_mem src, size_t bytes);
BSK_API bsk_status bsk_mem_fill(bsk_queue *queue, bsk_mem dst, uint8_t byte, size_t bytes);

/* A point in a queue's order, with the device's time.
 * Thread-safety: one thread at a time. */
typedef struct bsk_event bsk_event;

/* Errors: UNSUPPORTED where the backend has no events; NOMEM, DEVICE. */
BSK_API bsk_status bsk_event_create(const bsk_device *device, bsk_event **event);

/* Destroys an event and sets *event to NULL; *event may be NULL. */
BSK_API void bsk_event_destroy(bsk_event **event);

/* Marks the point in the queue's order; a later record replaces it. Errors: INVALID for a queue of
 * another device; DEVICE. */
BSK_API bsk_status bsk_event_record(bsk_event *event, bsk_queue *queue);

/* Milliseconds between two recorded events; waits for both. Errors: INVALID unless both are recorded
 * on one device; DEVICE. */
BSK_API bsk_status bsk_event_elapsed(bsk_event *start, bsk_event *stop, double *milliseconds);

/* The frozen answer to "how does this device compute this problem": made by bsk_<op>_plan,
 * executed by bsk_<op>_run. Making a plan may compile, upload and block; a run does neither, nor
 * does it allocate, lock or read the environment, unless the plan is a staged fallback, or, in OpenCL,
 * other runs hold all copies of a kernel, which hold its arguments: then one more is made.
 * Thread-safety: immutable; any thread, many queues at once with distinct workspaces. */
typedef struct bsk_plan bsk_plan;

/* Choices for one plan, where they differ from the context's. NULL means none. */
typedef struct bsk_plan_options {
    size_t struct_size;
    const char *kernels; /* as BSK_KERNEL; added to the context's list */
    bsk_fallback fallback;
    int32_t alignment; /* bytes, a power of two up to 4096, of which every address in later runs
                          will be a multiple; 0 means 16. The fastest entries of GPUs need 16 */
    int32_t packed;    /* 0 or 1. 1: runs of a product will get args.packed, so that the time of
                       packing has no part in the choice of the entry, which may be another then. A
                       run of the plan may still do without args.packed, with the same results.
                       Without effect where bsk_<op>_prepack does not exist */
    int32_t reserved;  /* 0 */
} bsk_plan_options;

typedef struct bsk_plan_info {
    size_t struct_size;
    const char *op;             /* the public op, "matmul"; strings live as long as the plan */
    const char *entry;          /* the chosen entry, "dsd_f32_avx512" */
    const char *backend;        /* where that entry runs */
    size_t workspace_bytes;     /* to pass in args.workspace; 0: none is needed */
    size_t workspace_alignment; /* of the address in bytes; a power of two */
    int32_t deterministic;      /* the same inputs give the same bits */
    int32_t capture_safe;       /* may be captured in a CUDA or HIP graph */
    int32_t synchronous;        /* runs wait for the result: a staged fallback, or the CPU */
    int32_t staged;             /* a fallback: operands are copied to the host and back */
    double flops;               /* useful floating-point operations of one run, 0 if not counted */
    double bytes;               /* operand bytes, each counted once, or twice if read and written */
    size_t packed_bytes;        /* of the image that bsk_<op>_prepack makes; 0: there is none */
    size_t packed_alignment;    /* of its address in bytes; a power of two */
} bsk_plan_info;

/* Fills *info, whose struct_size must be set. */
BSK_API bsk_status bsk_plan_query(const bsk_plan *plan, bsk_plan_info *info);

/* Destroys a plan and sets *plan to NULL; *plan may be NULL. Runs that were already enqueued
 * must have finished. */
BSK_API void bsk_plan_destroy(bsk_plan **plan);

#ifdef __cplusplus
}
#endif
#endif
