/* The fake transport. */
#include <stdbool.h>
#include <string.h>

#include "comm.h"

#define EXPORT __attribute__((visibility("default")))

static fake_comm state;
static bsk_transport transport;

EXPORT fake_comm *bsk_fake_comm(void);
EXPORT const bsk_transport *bsk_transport_query_v1(const bsk_host *host);

fake_comm *bsk_fake_comm(void)
{
    return &state;
}

typedef struct comm {
    const bsk_host *host;
    int32_t rank, size;
} comm;

static bsk_status fail(const bsk_host *host, bsk_status status)
{
    return status && !state.silent ? host->fail(host->context, status, "fake: fails as told")
                                   : status;
}

static bsk_status fake_id(const bsk_host *host, bsk_comm_id *id)
{
    const bsk_status status = state.fail_create;
    state.fail_create = BSK_OK;
    memset(id->bytes, 7, sizeof(id->bytes));
    return fail(host, status);
}

static bsk_status fake_create(const bsk_host *host, bsk_transport_request *request, void **handle)
{
    const bsk_status status = state.fail_create;
    state.fail_create = BSK_OK;
    state.request = *request;
    if (status)
        return fail(host, status);
    comm *c = host->allocator.resize(host->allocator.user, NULL, sizeof(*c));
    if (!c)
        return host->fail(host->context, BSK_E_NOMEM, "fake: no memory for a communicator");
    if (!request->id) {
        request->rank = state.rank;
        request->size = state.size;
    }
    *c = (comm){host, request->rank, request->size};
    *handle = c;
    state.live++;
    return BSK_OK;
}

static void fake_destroy(void *handle)
{
    comm *c = handle;
    const bsk_allocator *a = &c->host->allocator;
    a->resize(a->user, c, 0);
    state.live--;
}

/* y = size * x; false for types that no test adds. */
static bool add(const comm *c, bsk_dtype dtype, const void *x, void *y, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (dtype == BSK_F32)
            ((float *)y)[i] = ((const float *)x)[i] * (float)c->size;
        else if (dtype == BSK_F64)
            ((double *)y)[i] = ((const double *)x)[i] * c->size;
        else if (dtype == BSK_I32)
            ((int32_t *)y)[i] = ((const int32_t *)x)[i] * c->size;
        else
            return false;
    }
    return true;
}

static bool call_run(const comm *c, const bsk_transport_call *call)
{
    const size_t part = call->count * (size_t)c->rank;
    const size_t size = call->dtype == BSK_F64 ? 8 : 4;
    switch (call->kind) {
    case BSK_ALL_REDUCE:
        return add(c, call->dtype, call->x, call->y, call->count);
    case BSK_REDUCE_SCATTER:
        return add(c, call->dtype, (const char *)call->x + part * size, call->y, call->count);
    case BSK_ALL_GATHER:
        for (int32_t r = 0; r < c->size; r++)
            memmove((char *)call->y + call->count * (size_t)r, call->x, call->count);
        return true;
    default:
        return true;
    }
}

static bsk_status fake_run(void *handle, void *stream, const bsk_transport_call *calls,
                           size_t count)
{
    const comm *c = handle;
    state.runs++;
    state.stream = stream;
    for (size_t i = 0; i < count; i++, state.count++)
        if (state.count < FAKE_COMM_CALLS)
            state.calls[state.count] = calls[i];
    if (state.fail_run && state.skip-- <= 0) {
        const bsk_status status = state.fail_run;
        state.fail_run = BSK_OK;
        return fail(c->host, status);
    }
    for (size_t i = 0; !stream && i < count; i++) /* memory of the fake backend is not to be read */
        if (!call_run(c, &calls[i]))
            return c->host->fail(c->host->context, BSK_E_INTERNAL, "fake: type %d is not added",
                                 (int)calls[i].dtype);
    return BSK_OK;
}

const bsk_transport *bsk_transport_query_v1(const bsk_host *host)
{
    transport = (bsk_transport){
        .struct_size = sizeof(transport),
        .abi = BSK_TRANSPORT_ABI + (uint32_t)state.abi_off,
        .name = "fake",
        .sums = state.sums,
        .synchronous = state.synchronous,
        .capture_safe = 1,
        .id = fake_id,
        .create = fake_create,
        .destroy = fake_destroy,
        .run = fake_run,
    };
    return host->abi == BSK_BACKEND_ABI ? &transport : NULL;
}
