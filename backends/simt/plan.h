/* What the host sides of GPU entries share while they plan: arrays on the host, tables on the
 * device, and the state of a plan. */
#ifndef BSKI_SIMT_PLAN_H
#define BSKI_SIMT_PLAN_H

#include <string.h>

#include <backends/simt/launch.h>
#include <common/layout.h>

/* A zero-filled array of the host's allocator; *array, a pointer to its elements, is NULL if memory
 * is short. Dropped by host_drop. */
static inline bsk_status host_array(const bsk_host *host, void *array, int64_t count, size_t size)
{
    void *memory = bski_table_alloc(&host->allocator, count, size);
    memcpy(array, &memory, sizeof memory);
    if (!memory)
        return host->fail(host->context, BSK_E_NOMEM, "no memory for a plan");
    memset(memory, 0, (size_t)count * size);
    return BSK_OK;
}

static inline void host_drop(const bsk_host *host, void *array)
{
    bski_table_free(&host->allocator, array);
}

/* The zero-filled state of a plan. */
static inline bsk_status state_new(const simt_device *d, size_t bytes, bsk_prepared *prepared)
{
    return host_array(d->host, &prepared->state, 1, bytes);
}

static inline void state_free(const simt_device *d, bsk_prepared *prepared)
{
    host_drop(d->host, prepared->state);
    prepared->state = NULL;
}

/* A table in device memory; empty ones are never read. */
static inline bsk_status table_put(simt_device *d, const void *data, int64_t count, size_t size,
                                   bsk_mem *mem)
{
    return count > 0 ? d->api->table(d, data, (size_t)count * size, mem) : BSK_OK;
}

/* The same, and where a kernel finds it: *address is a pointer to its elements, NULL if empty. */
static inline bsk_status table_place(simt_device *d, const void *data, int64_t count, size_t size,
                                     bsk_mem *mem, void *address)
{
    TRY(table_put(d, data, count, size, mem));
    void *at = bsk_mem_address(*mem);
    memcpy(address, &at, sizeof at);
    return BSK_OK;
}

static inline void table_drop(simt_device *d, bsk_mem *mem)
{
    if (mem->kind != BSK_MEM_NULL)
        d->api->table_free(d, mem);
}

#endif
