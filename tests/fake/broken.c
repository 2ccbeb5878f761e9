/* Modules that must be refused. One source; FAKE_BROKEN selects what is wrong. */
#include <bsk/backend.h>

#define EXPORT __attribute__((visibility("default")))

#define BROKEN_ABI    1 /* the table is of another ABI */
#define BROKEN_SYMBOL 2 /* the symbol of another version */
#define BROKEN_NULL   3 /* the query declines */
#define BROKEN_SLOTS  4 /* functions are missing */
#define BROKEN_EVENTS 5 /* one function of events is there, the others are missing */

#if FAKE_BROKEN == BROKEN_SYMBOL
#define QUERY bsk_backend_query_v0
#else
#define QUERY bsk_backend_query_v1
#endif

EXPORT const bsk_backend *QUERY(const bsk_host *host);

#if FAKE_BROKEN == BROKEN_NULL
const bsk_backend *QUERY(const bsk_host *host)
{
    (void)host;
    return NULL;
}
#else
#if FAKE_BROKEN == BROKEN_EVENTS
static bsk_status probe(const bsk_host *host, int32_t *count)
{
    (void)host;
    *count = 0;
    return BSK_OK;
}

static bsk_status device_open(const bsk_host *host, int32_t index, void **device,
                              bsk_device_props *props)
{
    (void)host, (void)index, (void)device, (void)props;
    return BSK_E_DEVICE;
}

static void close(void *object)
{
    (void)object;
}

static bsk_status create(void *device, void **object)
{
    (void)device, (void)object;
    return BSK_E_DEVICE;
}

static bsk_status sync(void *queue)
{
    (void)queue;
    return BSK_E_DEVICE;
}

static bsk_status mem_alloc(void *device, size_t bytes, bsk_mem *mem)
{
    (void)device, (void)bytes, (void)mem;
    return BSK_E_DEVICE;
}

static void mem_free(void *device, bsk_mem mem)
{
    (void)device, (void)mem;
}

static bsk_status mem_upload(void *queue, bsk_mem dst, const void *src, size_t bytes)
{
    (void)queue, (void)dst, (void)src, (void)bytes;
    return BSK_E_DEVICE;
}

static bsk_status mem_download(void *queue, void *dst, bsk_mem src, size_t bytes)
{
    (void)queue, (void)dst, (void)src, (void)bytes;
    return BSK_E_DEVICE;
}

static bsk_status mem_fill(void *queue, bsk_mem dst, uint8_t byte, size_t bytes)
{
    (void)queue, (void)dst, (void)byte, (void)bytes;
    return BSK_E_DEVICE;
}

static const bsk_arch archs[] = {{"any", 1}};
#endif

static const bsk_backend backend = {
    .struct_size = sizeof(bsk_backend),
    .abi = BSK_BACKEND_ABI + (FAKE_BROKEN == BROKEN_ABI),
    .name = "broken",
#if FAKE_BROKEN == BROKEN_EVENTS
    .archs = archs,
    .arch_count = 1,
    .probe = probe,
    .device_open = device_open,
    .device_close = close,
    .queue_create = create,
    .queue_destroy = close,
    .queue_sync = sync,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .mem_upload = mem_upload,
    .mem_download = mem_download,
    .mem_fill = mem_fill,
    .event_create = create,
#endif
};

const bsk_backend *QUERY(const bsk_host *host)
{
    (void)host;
    return &backend;
}
#endif
