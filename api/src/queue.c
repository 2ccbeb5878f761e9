/* Queues, memory and events: argument checks in front of the backend's functions. */
#include <string.h>

#include "api/src/internal.h"

static bsk_status null_argument(const char *function, const char *name)
{
    return bski_fail(BSK_E_INVALID, "%s: %s is NULL", function, name);
}

static bsk_status queue_make(const char *function, const bsk_device *device, bool wrap,
                             void *native, bsk_queue **queue)
{
    if (!queue)
        return null_argument(function, "queue");
    *queue = NULL;
    if (!device)
        return null_argument(function, "device");
    const bsk_backend *api = device->backend->api;
    if (wrap && !api->queue_wrap)
        return bski_fail(BSK_E_UNSUPPORTED, "%s: %s has no native streams", function, device->id);
    const bsk_allocator *allocator = &device->context->allocator;
    bsk_queue *q = bski_calloc(allocator, sizeof(*q));
    if (!q)
        return bski_fail(BSK_E_NOMEM, "%s: no memory for a queue", function);
    q->device = device;
    const unsigned before = bski_failures();
    bsk_status status = wrap ? api->queue_wrap(device->handle, native, &q->handle)
                             : api->queue_create(device->handle, &q->handle);
    status = bski_explained(before, status, function);
    if (status) {
        bski_free(allocator, q);
        return status;
    }
    *queue = q;
    return BSK_OK;
}

bsk_status bsk_queue_create(const bsk_device *device, bsk_queue **queue)
{
    return queue_make("bsk_queue_create", device, false, NULL, queue);
}

bsk_status bsk_queue_wrap(const bsk_device *device, void *native, bsk_queue **queue)
{
    return queue_make("bsk_queue_wrap", device, true, native, queue);
}

void bsk_queue_destroy(bsk_queue **queue)
{
    if (!queue || !*queue)
        return;
    bsk_queue *q = *queue;
    q->device->backend->api->queue_destroy(q->handle);
    bski_free(&q->device->context->allocator, q);
    *queue = NULL;
}

bsk_status bsk_queue_sync(bsk_queue *queue)
{
    if (!queue)
        return null_argument("bsk_queue_sync", "queue");
    BSKI_TRY_BACKEND("bsk_queue_sync", queue->device->backend->api->queue_sync(queue->handle));
    return BSK_OK;
}

bsk_status bsk_mem_alloc(const bsk_device *device, size_t bytes, bsk_mem *mem)
{
    if (!mem)
        return null_argument("bsk_mem_alloc", "mem");
    memset(mem, 0, sizeof(*mem));
    if (!device)
        return null_argument("bsk_mem_alloc", "device");
    BSKI_TRY_BACKEND("bsk_mem_alloc",
                     device->backend->api->mem_alloc(device->handle, bytes ? bytes : 1, mem));
    return BSK_OK;
}

void bsk_mem_free(const bsk_device *device, bsk_mem *mem)
{
    if (!device || !mem || mem->kind == BSK_MEM_NULL)
        return;
    device->backend->api->mem_free(device->handle, *mem);
    memset(mem, 0, sizeof(*mem));
}

bsk_status bski_kind_check(const char *function, const char *name, const bsk_device *device,
                           bsk_mem_kind kind)
{
    static const char *const kinds[] = {
        [BSK_MEM_HOST] = " HOST", [BSK_MEM_DEVICE] = " DEVICE", [BSK_MEM_CL] = " CL"};
    const uint32_t legal = device->props.mem_kinds;
    if (kind != BSK_MEM_NULL && (unsigned)kind < BSKI_COUNT(kinds) && legal >> kind & 1)
        return BSK_OK;
    char names[32] = "";
    for (size_t i = BSK_MEM_HOST; i < BSKI_COUNT(kinds); i++)
        if (legal >> i & 1)
            strcat(names, kinds[i]);
    return bski_fail(BSK_E_INVALID, "%s: the kind of %s is %d; legal on %s are%s", function, name,
                     (int)kind, device->id, names);
}

uintptr_t bski_address(const bsk_mem *mem)
{
    return (mem->kind == BSK_MEM_CL ? 0 : (uintptr_t)mem->handle) + mem->offset;
}

bsk_status bski_alignment_check(const char *function, const char *name, const bsk_mem *mem,
                                size_t align, const char *what)
{
    const size_t beyond = bski_address(mem) % align;
    if (!beyond)
        return BSK_OK;
    return bski_fail(
        BSK_E_INVALID,
        "%s: args.%s lies %zu bytes beyond a multiple of %zu; legal are multiples (%s)", function,
        name, beyond, align, what);
}

bsk_status bski_bytes_check(const char *function, const char *name, const bsk_device *device,
                            const bsk_mem *mem, size_t need, size_t align)
{
    if (mem->kind != BSK_MEM_NULL && !mem->handle)
        return bski_fail(BSK_E_INVALID, "%s: args.%s.handle is NULL; %zu bytes are needed",
                         function, name, need);
    if (mem->kind == BSK_MEM_NULL || mem->size < need)
        return bski_fail(BSK_E_INVALID, "%s: args.%s has %zu bytes%s; at least %zu are needed",
                         function, name, mem->kind == BSK_MEM_NULL ? 0 : mem->size,
                         mem->kind != BSK_MEM_NULL && !mem->size ? " by its view's size" : "",
                         need);
    BSKI_TRY(bski_kind_check(function, name, device, mem->kind));
    return bski_alignment_check(function, name, mem, align, "its alignment");
}

/* What uploads, downloads and fills have in common. */
static bsk_status check_transfer(const char *function, const bsk_queue *queue, bsk_mem mem,
                                 const void *host, size_t bytes)
{
    if (!queue)
        return null_argument(function, "queue");
    if (!bytes)
        return BSK_OK;
    if (!host)
        return null_argument(function, "host memory");
    BSKI_TRY(bski_kind_check(function, "the view", queue->device, mem.kind));
    if (!mem.handle)
        return null_argument(function, "the view's handle");
    if (mem.size && bytes > mem.size)
        return bski_fail(BSK_E_INVALID, "%s: bytes is %zu; legal are 0 to %zu", function, bytes,
                         mem.size);
    return BSK_OK;
}

bsk_status bsk_mem_upload(bsk_queue *queue, bsk_mem dst, const void *src, size_t bytes)
{
    BSKI_TRY(check_transfer("bsk_mem_upload", queue, dst, src, bytes));
    if (bytes)
        BSKI_TRY_BACKEND("bsk_mem_upload",
                         queue->device->backend->api->mem_upload(queue->handle, dst, src, bytes));
    return BSK_OK;
}

bsk_status bsk_mem_download(bsk_queue *queue, void *dst, bsk_mem src, size_t bytes)
{
    BSKI_TRY(check_transfer("bsk_mem_download", queue, src, dst, bytes));
    if (bytes)
        BSKI_TRY_BACKEND("bsk_mem_download",
                         queue->device->backend->api->mem_download(queue->handle, dst, src, bytes));
    return BSK_OK;
}

bsk_status bsk_mem_fill(bsk_queue *queue, bsk_mem dst, uint8_t byte, size_t bytes)
{
    BSKI_TRY(check_transfer("bsk_mem_fill", queue, dst, &byte, bytes));
    if (bytes)
        BSKI_TRY_BACKEND("bsk_mem_fill",
                         queue->device->backend->api->mem_fill(queue->handle, dst, byte, bytes));
    return BSK_OK;
}

bsk_status bsk_event_create(const bsk_device *device, bsk_event **event)
{
    if (!event)
        return null_argument("bsk_event_create", "event");
    *event = NULL;
    if (!device)
        return null_argument("bsk_event_create", "device");
    const bsk_backend *api = device->backend->api;
    if (!api->event_create)
        return bski_fail(BSK_E_UNSUPPORTED, "bsk_event_create: %s has no events", device->id);
    bsk_event *e = bski_calloc(&device->context->allocator, sizeof(*e));
    if (!e)
        return bski_fail(BSK_E_NOMEM, "bsk_event_create: no memory for an event");
    e->device = device;
    const unsigned before = bski_failures();
    bsk_status status = api->event_create(device->handle, &e->handle);
    status = bski_explained(before, status, "bsk_event_create");
    if (status) {
        bski_free(&device->context->allocator, e);
        return status;
    }
    *event = e;
    return BSK_OK;
}

void bsk_event_destroy(bsk_event **event)
{
    if (!event || !*event)
        return;
    bsk_event *e = *event;
    e->device->backend->api->event_destroy(e->handle);
    bski_free(&e->device->context->allocator, e);
    *event = NULL;
}

bsk_status bsk_event_record(bsk_event *event, bsk_queue *queue)
{
    if (!event || !queue)
        return null_argument("bsk_event_record", event ? "queue" : "event");
    if (event->device != queue->device)
        return bski_fail(BSK_E_INVALID, "bsk_event_record: the event is of %s, the queue of %s",
                         event->device->id, queue->device->id);
    BSKI_TRY_BACKEND("bsk_event_record",
                     event->device->backend->api->event_record(event->handle, queue->handle));
    event->recorded = true;
    return BSK_OK;
}

bsk_status bsk_event_elapsed(bsk_event *start, bsk_event *stop, double *milliseconds)
{
    if (!start || !stop || !milliseconds)
        return null_argument("bsk_event_elapsed", !start  ? "start"
                                                  : !stop ? "stop"
                                                          : "milliseconds");
    if (start->device != stop->device)
        return bski_fail(BSK_E_INVALID, "bsk_event_elapsed: start is of %s, stop of %s",
                         start->device->id, stop->device->id);
    if (!start->recorded || !stop->recorded)
        return bski_fail(BSK_E_INVALID, "bsk_event_elapsed: %s is not recorded",
                         start->recorded ? "stop" : "start");
    BSKI_TRY_BACKEND("bsk_event_elapsed", start->device->backend->api->event_elapsed(
                                              start->handle, stop->handle, milliseconds));
    return BSK_OK;
}
