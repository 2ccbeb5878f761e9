/* The host side of the portable kernels, shared by all backends that run them.
 *
 * An op's file (products.c, weights.c ...) implements accept, prepare and launch in plain C against
 * this interface; a backend implements the interface in its device.c and puts simt_device first in
 * its device struct and simt_queue first in its queue struct. So the dispatcher's void pointers
 * serve both. */
#ifndef BSKI_SIMT_LAUNCH_H
#define BSKI_SIMT_LAUNCH_H

#include <stdbool.h>

#include <bsk/backend.h>

/* Returns from the calling function what is not BSK_OK. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        bsk_status try_status = (call);                                                            \
        if (try_status)                                                                            \
            return try_status;                                                                     \
    } while (0)

typedef struct simt_device simt_device;

/* A queue of a simt device. */
typedef struct simt_queue {
    simt_device *device;
} simt_queue;

/* A compiled kernel, owned by the device and cached by it. */
typedef struct simt_kernel simt_kernel;

/* Groups of up to 256 lanes that every device takes: some count lanes in 32 bits. */
enum { SIMT_MAX_BUFFERS = 48, SIMT_MAX_GROUPS = UINT32_MAX / 256 };

/* One launch: groups along three axes, lanes in a group, buffers in the kernel's order, scalars. */
typedef struct simt_launch {
    int64_t groups[3];
    int32_t group_size;
    int32_t buffer_count;
    const bsk_mem *buffers; /* BSK_MEM_NULL for an absent one */
    const void *scalars;
    size_t scalar_bytes;
} simt_launch;

typedef struct simt_api {
    /* Finds kernel `name` of source `file` for a type, as in ("products", "dsd", BSK_F32). variant
     * is a list of -D options such as "-DTM=32", known to kernels.inc, or "". Called at plan time;
     * may compile. */
    bsk_status (*kernel)(simt_device *device, const char *file, const char *name, bsk_dtype type,
                         const char *variant, const simt_kernel **kernel);
    /* Enqueues one launch; no allocation. A grid with an empty axis is a valid no-op, of which the
     * kernel is not looked at. */
    bsk_status (*launch)(simt_queue *queue, const simt_kernel *kernel, const simt_launch *launch);
    /* Plan-time device memory for tables: allocates, uploads and waits. */
    bsk_status (*table)(simt_device *device, const void *data, size_t bytes, bsk_mem *mem);
    void (*table_free)(simt_device *device, bsk_mem *mem);
} simt_api;

struct simt_device {
    const simt_api *api;
    const bsk_host *host;
    bsk_device_props props;
    int32_t wide; /* a CPU behind OpenCL: wide vectors, no local memory, groups of one */
};

/* What simt_device.wide will be, for those who know the properties only. */
static inline bool simt_props_wide(const bsk_device_props *props)
{
    return props->wave == 1;
}

/* Whether a view starts where vectors may be loaded. */
static inline bool simt_aligned(bsk_mem mem)
{
    const size_t base = mem.kind == BSK_MEM_CL ? 0 : (size_t)(uintptr_t)mem.handle;
    return (base + mem.offset) % 16 == 0;
}

/* The type of the kernels that serve another one, in files that define SIMT_HALVES. */
static inline bsk_dtype simt_half(bsk_dtype type)
{
    return type == BSK_F16 ? BSK_BF16 : type;
}

/* The same in files that define SIMT_SINGLES. */
static inline bsk_dtype simt_single(bsk_dtype type)
{
    return type == BSK_F64 ? BSK_F64 : BSK_F32;
}

#endif
