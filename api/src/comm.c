/* Communicators: finding the module of a transport, and calling it. */
#include <stdio.h>
#include <string.h>

#include "api/src/internal.h"

/* The transport of a backend's devices unless another one is named. */
static const struct {
    const char *backend, *transport;
} usual[] = {{"cuda", "nccl"}, {"hip", "rccl"}, {"cpu", "mpi"}};

/* A name is part of a file's name. */
static bool name_is_legal(const char *name)
{
    const size_t n = strlen(name);
    return n >= 1 && n <= 16 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == n;
}

static bsk_status choose_name(const char *function, const bsk_device *device, const char *wanted,
                              const char **name)
{
    const char *backend = device->backend->api->name;
    *name = wanted;
    for (size_t i = 0; !*name && i < BSKI_COUNT(usual); i++)
        if (!strcmp(usual[i].backend, backend))
            *name = usual[i].transport;
    if (!*name)
        return bski_fail(BSK_E_UNSUPPORTED,
                         "%s: %s has no transport of its own; params.transport may name one",
                         function, device->id);
    if (!name_is_legal(*name))
        return bski_fail(BSK_E_INVALID,
                         "%s: params.transport is \"%.40s\"; legal are 1 to 16 of a-z, 0-9 and _",
                         function, *name);
    return BSK_OK;
}

/* What an incompatible or careless module gets wrong, or NULL. */
static const char *transport_defect(const bsk_transport *t)
{
    if (!t || t->abi != BSK_TRANSPORT_ABI || t->struct_size < sizeof(bsk_transport))
        return "other ABI version";
    if (!t->name || !t->create || !t->destroy || !t->run)
        return "a required function is missing";
    return NULL;
}

static bsk_status find_transport(const char *function, const bsk_device *device, const char *wanted,
                                 const bsk_transport **transport)
{
    const bsk_context *c = device->context;
    const char *name, *path = c->settings.plugin_path;
    bsk_transport_query_fn query = NULL;
    char *notes = NULL;
    BSKI_TRY(choose_name(function, device, wanted, &name));
    bsk_status status = bski_registry_transport(&c->allocator, path, name, &query, &notes);
    if (!status && !query)
        status = notes
                     ? bski_fail(BSK_E_UNSUPPORTED, "%s: transport %s: %s", function, name, notes)
                     : bski_fail(BSK_E_UNSUPPORTED,
                                 "%s: transport %s: there is no bsk_comm_%s.so in %s%s%s", function,
                                 name, name, BSK_PLUGIN_DIR, path ? ":" : "", path ? path : "");
    bski_free(&c->allocator, notes);
    if (status)
        return status;
    *transport = query(&c->host);
    const char *defect = transport_defect(*transport);
    return defect ? bski_fail(BSK_E_UNSUPPORTED, "%s: bsk_comm_%s.so: %s (this library has ABI %d)",
                              function, name, defect, BSK_TRANSPORT_ABI)
                  : BSK_OK;
}

static bsk_status read_params(const char *function, const bsk_device *device,
                              const bsk_comm_params *from, bsk_comm_params *params)
{
    *params = (bsk_comm_params)BSK_INIT(bsk_comm_params);
    if (!device)
        return bski_fail(BSK_E_INVALID, "%s: device is NULL", function);
    return from ? bski_struct_read("bsk_comm_params", from, sizeof(*params), params) : BSK_OK;
}

/* --- making communicators --------------------------------------------------------------------- */

/* What calls that are made while the device is current need. */
typedef struct making {
    const bsk_transport *transport;
    const bsk_host *host;
    bsk_comm_id *id;
    bsk_transport_request request;
    void *handle;
} making;

static bsk_status make_id(void *argument, void *stream)
{
    making *m = argument;
    (void)stream;
    return m->transport->id(m->host, m->id);
}

static bsk_status make_handle(void *argument, void *stream)
{
    making *m = argument;
    (void)stream;
    return m->transport->create(m->host, &m->request, &m->handle);
}

static bsk_status lend(const bsk_device *device, const bsk_queue *queue, bsk_stream_use_fn use,
                       void *argument)
{
    const bsk_backend *api = device->backend->api;
    return api->lend ? api->lend(device->handle, queue ? queue->handle : NULL, use, argument)
                     : use(argument, NULL);
}

bsk_status bsk_comm_id_create(const bsk_device *device, const bsk_comm_params *params,
                              bsk_comm_id *id)
{
    const char *function = "bsk_comm_id_create";
    bsk_comm_params p;
    making m = {.id = id};
    if (!id)
        return bski_fail(BSK_E_INVALID, "%s: id is NULL", function);
    memset(id, 0, sizeof(*id));
    BSKI_TRY(read_params(function, device, params, &p));
    BSKI_TRY(find_transport(function, device, p.transport, &m.transport));
    if (!m.transport->id)
        return bski_fail(BSK_E_UNSUPPORTED,
                         "%s: transport %s has no ids; params.native takes a communicator",
                         function, m.transport->name);
    m.host = &device->context->host;
    BSKI_TRY_BACKEND(function, lend(device, NULL, make_id, &m));
    return BSK_OK;
}

static bsk_status check_params(const char *function, const bsk_comm_params *p)
{
    if (p->native && p->id)
        return bski_fail(BSK_E_INVALID,
                         "%s: params.native and params.id are both given; legal is "
                         "one of them",
                         function);
    if (p->device_memory < 0 || p->device_memory > 1)
        return bski_fail(BSK_E_INVALID, "%s: params.device_memory is %d; legal are 0 and 1",
                         function, (int)p->device_memory);
    if (p->id && p->size < 1)
        return bski_fail(BSK_E_INVALID, "%s: params.size is %d; legal are 1 to %d with params.id",
                         function, (int)p->size, INT32_MAX);
    if (p->id && (p->rank < 0 || p->rank >= p->size))
        return bski_fail(BSK_E_INVALID, "%s: params.rank is %d; legal are 0 to %d", function,
                         (int)p->rank, (int)p->size - 1);
    if (!p->id && (p->rank || p->size))
        return bski_fail(BSK_E_INVALID,
                         "%s: params.rank is %d and params.size %d; legal is 0 without params.id",
                         function, (int)p->rank, (int)p->size);
    return BSK_OK;
}

static bsk_status comm_fill(const char *function, bsk_comm *comm, const bsk_comm_params *p)
{
    const bsk_device *device = comm->device;
    making m = {.host = &device->context->host,
                .request = {.struct_size = sizeof(m.request),
                            .backend = device->backend->api->name,
                            .native = p->native,
                            .id = p->id,
                            .rank = p->rank,
                            .size = p->size,
                            .device_memory = p->device_memory}};
    BSKI_TRY(check_params(function, p));
    if (device->props.mem_kinds >> BSK_MEM_CL & 1)
        return bski_fail(BSK_E_UNSUPPORTED,
                         "%s: memory of %s has no addresses, which transports take", function,
                         device->id);
    BSKI_TRY(find_transport(function, device, p->transport, &m.transport));
    comm->transport = m.transport;
    BSKI_TRY_BACKEND(function, lend(device, NULL, make_handle, &m));
    comm->handle = m.handle;
    comm->rank = m.request.rank;
    comm->size = m.request.size;
    return BSK_OK;
}

bsk_status bsk_comm_create(const bsk_device *device, const bsk_comm_params *params, bsk_comm **comm)
{
    const char *function = "bsk_comm_create";
    bsk_comm_params p;
    if (!comm)
        return bski_fail(BSK_E_INVALID, "%s: comm is NULL", function);
    *comm = NULL;
    BSKI_TRY(read_params(function, device, params, &p));
    const bsk_allocator *allocator = &device->context->allocator;
    bsk_comm *c = bski_calloc(allocator, sizeof(*c));
    if (!c)
        return bski_fail(BSK_E_NOMEM, "%s: no memory for a communicator", function);
    c->device = device;
    bsk_status status = comm_fill(function, c, &p);
    if (status) {
        bski_free(allocator, c);
        return status;
    }
    *comm = c;
    return BSK_OK;
}

void bsk_comm_destroy(bsk_comm **comm)
{
    if (!comm || !*comm)
        return;
    bsk_comm *c = *comm;
    c->transport->destroy(c->handle);
    bski_free(&c->device->context->allocator, c);
    *comm = NULL;
}

bsk_status bsk_comm_query(const bsk_comm *comm, bsk_comm_info *info)
{
    if (!comm || !info)
        return bski_fail(BSK_E_INVALID, "bsk_comm_query: %s is NULL", comm ? "info" : "comm");
    const bsk_transport *t = comm->transport;
    bsk_comm_info full = {
        .transport = t->name,
        .rank = comm->rank,
        .size = comm->size,
        .sums = bski_comm_sums(comm),
        .synchronous = t->synchronous,
    };
    return bski_struct_write("bsk_comm_query: info", &full, sizeof(full), info);
}

/* --- running ---------------------------------------------------------------------------------- */

uint32_t bski_comm_sums(const bsk_comm *comm)
{
    const uint32_t own = comm->transport->sums;
    const uint32_t halves = BSK_DTYPE_BIT(BSK_F16) | BSK_DTYPE_BIT(BSK_BF16);
    return own & BSK_DTYPE_BIT(BSK_F32) ? own | halves : own;
}

typedef struct running {
    const bsk_comm *comm;
    const bsk_transport_call *calls;
    size_t count;
} running;

static bsk_status run_calls(void *argument, void *stream)
{
    const running *r = argument;
    return r->comm->transport->run(r->comm->handle, stream, r->calls, r->count);
}

bsk_status bski_comm_run(const bsk_comm *comm, bsk_queue *queue, const char *op,
                         const bsk_transport_call *calls, size_t count)
{
    running r = {comm, calls, count};
    if (comm->transport->synchronous)
        BSKI_TRY(bsk_queue_sync(queue));
    BSKI_TRY_BACKEND(op, lend(comm->device, queue, run_calls, &r));
    return BSK_OK;
}
