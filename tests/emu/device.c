/* The emulator's device, queues and memory. All work is done when a call returns. */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct emu_device {
    simt_device simt; /* first: what the portable kernels see */
    emu_schedule schedule;
} emu_device;

static void *host_alloc(const bsk_host *host, size_t bytes, const char *what)
{
    void *p = host->allocator.resize(host->allocator.user, NULL, bytes);
    if (p)
        memset(p, 0, bytes);
    else
        host->fail(host->context, BSK_E_NOMEM, "emu: no memory for %s", what);
    return p;
}

static void host_free(const bsk_host *host, void *pointer)
{
    host->allocator.resize(host->allocator.user, pointer, 0);
}

/* --- The interface of the portable kernels --- */

static bsk_status device_kernel(simt_device *device, const char *file, const char *name,
                                bsk_dtype type, const char *variant, const simt_kernel **kernel)
{
    static const char *const types[BSK_DTYPE_COUNT] = {
        [BSK_F64] = "f64", [BSK_F32] = "f32", [BSK_F16] = "f16", [BSK_BF16] = "bf16"};
    const bsk_host *host = device->host;
    const char *type_name = (unsigned)type < BSK_DTYPE_COUNT ? types[type] : NULL;
    *kernel = type_name ? emu_kernel_find(file, name, type_name, variant) : NULL;
    return *kernel ? BSK_OK
                   : host->fail(host->context, BSK_E_INTERNAL,
                                "emu: no kernel %s (%s) for type %d in %s", name, variant,
                                (int)type, file);
}

static bsk_status device_launch(simt_queue *queue, const simt_kernel *kernel, const simt_launch *l)
{
    const emu_device *d = (const emu_device *)queue->device;
    const bsk_host *host = d->simt.host;
    char message[EMU_MESSAGE];
    return emu_launch(kernel, l, &d->schedule, message)
               ? BSK_OK
               : host->fail(host->context, BSK_E_DEVICE, "emu: %s", message);
}

static bsk_status device_table(simt_device *device, const void *data, size_t bytes, bsk_mem *mem)
{
    *mem = (bsk_mem){BSK_MEM_NULL, NULL, 0, 0};
    if (!bytes)
        return BSK_OK;
    bsk_status status = emu_mem_alloc(device, bytes, mem);
    if (status)
        return status;
    memcpy(mem->handle, data, bytes);
    emu_memory_written(mem->handle, bytes);
    return BSK_OK;
}

static void device_table_free(simt_device *device, bsk_mem *mem)
{
    emu_mem_free(device, *mem);
    *mem = (bsk_mem){BSK_MEM_NULL, NULL, 0, 0};
}

static const simt_api device_api = {
    .kernel = device_kernel,
    .launch = device_launch,
    .table = device_table,
    .table_free = device_table_free,
};

/* --- The functions of bsk_backend --- */

bsk_status emu_probe(const bsk_host *host, int32_t *count)
{
    (void)host;
    *count = 1;
    return BSK_OK;
}

bsk_status emu_device_open(const bsk_host *host, int32_t index, void **device,
                           bsk_device_props *props)
{
    emu_schedule schedule;
    const char *text = getenv("BSK_EMU_SCHEDULE");
    *device = NULL;
    if (index != 0)
        return host->fail(host->context, BSK_E_INVALID, "emu: device %d does not exist",
                          (int)index);
    if (!emu_schedule_parse(text, &schedule))
        return host->fail(host->context, BSK_E_INVALID,
                          "emu: BSK_EMU_SCHEDULE is %s; legal are forward, reverse, random and "
                          "random:SEED",
                          text);
    emu_device *d = host_alloc(host, sizeof *d, "a device");
    if (!d)
        return BSK_E_NOMEM;
    *props = (bsk_device_props){
        .struct_size = sizeof *props,
        .name = "emulator",
        .driver = "1",
        .arch = 1,
        .compute_units = 2, /* few, so that groups are short of work and loop */
        .memory_bytes = (uint64_t)1 << 30,
        .mem_kinds = 1u << BSK_MEM_DEVICE,
        .dtypes = BSK_DTYPE_BIT(BSK_F64) | BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_F16) |
                  BSK_DTYPE_BIT(BSK_BF16) | BSK_DTYPE_BIT(BSK_I64) | BSK_DTYPE_BIT(BSK_I32) |
                  BSK_DTYPE_BIT(BSK_U16) | BSK_DTYPE_BIT(BSK_U8),
        .local_bytes = EMU_LOCAL_BYTES,
        .max_group = EMU_MAX_LANES,
    };
    d->simt.api = &device_api;
    d->simt.host = host;
    d->simt.props = *props;
    d->schedule = schedule;
    *device = d;
    return BSK_OK;
}

void emu_device_close(void *device)
{
    emu_device *d = device;
    if (d)
        host_free(d->simt.host, d);
}

bsk_status emu_queue_create(void *device, void **queue)
{
    emu_device *d = device;
    simt_queue *q = host_alloc(d->simt.host, sizeof *q, "a queue");
    *queue = q;
    if (!q)
        return BSK_E_NOMEM;
    q->device = &d->simt;
    return BSK_OK;
}

void emu_queue_destroy(void *queue)
{
    simt_queue *q = queue;
    if (q)
        host_free(q->device->host, q);
}

bsk_status emu_queue_sync(void *queue)
{
    (void)queue;
    return BSK_OK;
}

bsk_status emu_mem_alloc(void *device, size_t bytes, bsk_mem *mem)
{
    const bsk_host *host = ((const emu_device *)device)->simt.host;
    void *memory = emu_memory_make(bytes);
    *mem = (bsk_mem){memory ? BSK_MEM_DEVICE : BSK_MEM_NULL, memory, 0, memory ? bytes : 0};
    return memory
               ? BSK_OK
               : host->fail(host->context, BSK_E_DEVICE_NOMEM, "emu: a buffer of %zu bytes", bytes);
}

void emu_mem_free(void *device, bsk_mem mem)
{
    (void)device;
    if (mem.kind == BSK_MEM_DEVICE)
        emu_memory_free(mem.handle);
}

bsk_status emu_mem_upload(void *queue, bsk_mem dst, const void *src, size_t bytes)
{
    (void)queue;
    if (bytes)
        memcpy(bsk_mem_address(dst), src, bytes);
    emu_memory_written(bsk_mem_address(dst), bytes);
    return BSK_OK;
}

bsk_status emu_mem_download(void *queue, void *dst, bsk_mem src, size_t bytes)
{
    (void)queue;
    if (bytes)
        memcpy(dst, bsk_mem_address(src), bytes);
    return BSK_OK;
}

bsk_status emu_mem_fill(void *queue, bsk_mem dst, uint8_t byte, size_t bytes)
{
    (void)queue;
    if (bytes)
        memset(bsk_mem_address(dst), byte, bytes);
    emu_memory_written(bsk_mem_address(dst), bytes);
    return BSK_OK;
}
