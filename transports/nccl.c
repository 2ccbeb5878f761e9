/* Collectives over NCCL or RCCL, which has the same interface: TRANSPORT, BACKEND and LIBRARY say
 * which. The library is loaded when a communicator is made, by its name, so that a copy that the
 * process has already, whose communicator the caller may hand over, is that one. */
#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#include <bsk/transport.h>

/* --- What is used of the library's interface, from version 2.10 on --- */

typedef int result; /* ncclResult_t */

enum { RESULT_OK = 0, RESULT_INVALID_ARGUMENT = 4, RESULT_INVALID_USAGE = 5, RESULT_PENDING = 7 };
enum { OP_SUM = 0 };
enum { OLDEST = 21000 }; /* the first with bf16 */

typedef struct library_comm library_comm; /* ncclComm_t is a pointer to one */
typedef bsk_comm_id unique_id;            /* ncclUniqueId: 128 bytes */

/* X(field, name of the function after "nccl", parameters) */
#define FUNCTIONS(X)                                                                               \
    X(version, GetVersion, (int *))                                                                \
    X(unique_id, GetUniqueId, (unique_id *))                                                       \
    X(init, CommInitRank, (library_comm **, int, unique_id, int))                                  \
    X(destroy, CommDestroy, (library_comm *))                                                      \
    X(error, CommGetAsyncError, (library_comm *, result *))                                        \
    X(size, CommCount, (const library_comm *, int *))                                              \
    X(rank, CommUserRank, (const library_comm *, int *))                                           \
    X(group_start, GroupStart, (void))                                                             \
    X(group_end, GroupEnd, (void))                                                                 \
    X(all_reduce, AllReduce, (const void *, void *, size_t, int, int, library_comm *, void *))     \
    X(reduce_scatter, ReduceScatter,                                                               \
      (const void *, void *, size_t, int, int, library_comm *, void *))                            \
    X(all_gather, AllGather, (const void *, void *, size_t, int, library_comm *, void *))          \
    X(broadcast, Broadcast, (const void *, void *, size_t, int, int, library_comm *, void *))

typedef struct library {
#define FIELD(field, name, parameters) result(*field) parameters;
    FUNCTIONS(FIELD)
#undef FIELD
    const char *(*text)(result);
} library;

/* The library's numbers of types (ncclDataType_t). */
static const int types[BSK_DTYPE_COUNT] = {
    [BSK_I8] = 0,  [BSK_U8] = 1,  [BSK_I32] = 2, [BSK_I64] = 4,
    [BSK_F16] = 6, [BSK_F32] = 7, [BSK_F64] = 8, [BSK_BF16] = 9};

#define SUMS                                                                                       \
    (BSK_DTYPE_BIT(BSK_F64) | BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_F16) |                    \
     BSK_DTYPE_BIT(BSK_BF16) | BSK_DTYPE_BIT(BSK_I64) | BSK_DTYPE_BIT(BSK_I32) |                   \
     BSK_DTYPE_BIT(BSK_U8) | BSK_DTYPE_BIT(BSK_I8))

typedef struct comm {
    const bsk_host *host;
    library lib;
    library_comm *handle;
    bool owned;
} comm;

/* --- Loading --- */

static bsk_status library_fail(const bsk_host *host, const library *lib, result r, const char *what)
{
    if (r == RESULT_PENDING)
        return host->fail(host->context, BSK_E_UNSUPPORTED,
                          TRANSPORT ": %s is not done: communicators must be in blocking mode",
                          what);
    return host->fail(host->context,
                      r == RESULT_INVALID_ARGUMENT || r == RESULT_INVALID_USAGE ? BSK_E_INVALID
                                                                                : BSK_E_DEVICE,
                      TRANSPORT ": %s: %s", what, lib->text(r));
}

/* Stays open until the process ends, as modules do. */
static bsk_status library_load(const bsk_host *host, library *lib)
{
    void *module = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!module)
        return host->fail(host->context, BSK_E_UNSUPPORTED, TRANSPORT ": %s", dlerror());
    const struct {
        const char *name;
        void *address; /* of the field */
    } rows[] = {
#define ROW(field, name, parameters) {"nccl" #name, &lib->field},
        FUNCTIONS(ROW)
#undef ROW
            {"ncclGetErrorString", &lib->text},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        void *function = dlsym(module, rows[i].name);
        if (!function)
            return host->fail(host->context, BSK_E_UNSUPPORTED, TRANSPORT ": %s has no %s", LIBRARY,
                              rows[i].name);
        memcpy(rows[i].address, &function, sizeof(function));
    }
    int version = 0;
    const result r = lib->version(&version);
    if (r)
        return library_fail(host, lib, r, "ncclGetVersion");
    if (version < OLDEST)
        return host->fail(host->context, BSK_E_UNSUPPORTED,
                          TRANSPORT ": %s has version %d; legal are %d and newer", LIBRARY, version,
                          OLDEST);
    return BSK_OK;
}

/* --- Calls --- */

static result call_run(const comm *m, void *stream, const bsk_transport_call *c)
{
    const int type = types[c->dtype];
    switch (c->kind) {
    case BSK_ALL_REDUCE:
        return m->lib.all_reduce(c->x, c->y, c->count, type, OP_SUM, m->handle, stream);
    case BSK_REDUCE_SCATTER:
        return m->lib.reduce_scatter(c->x, c->y, c->count, type, OP_SUM, m->handle, stream);
    case BSK_ALL_GATHER:
        return m->lib.all_gather(c->x, c->y, c->count, type, m->handle, stream);
    default:
        return m->lib.broadcast(c->x, c->y, c->count, type, c->root, m->handle, stream);
    }
}

/* Several calls go as one group, which takes one launch. */
static result calls_run(const comm *m, void *stream, const bsk_transport_call *calls, size_t count)
{
    result r = m->lib.group_start(), ended;
    if (r)
        return r;
    for (size_t i = 0; !r && i < count; i++)
        r = call_run(m, stream, &calls[i]);
    ended = m->lib.group_end();
    return r ? r : ended;
}

static bsk_status transport_run(void *handle, void *stream, const bsk_transport_call *calls,
                                size_t count)
{
    const comm *m = handle;
    result earlier = RESULT_OK;
    result r = m->lib.error(m->handle, &earlier);
    if (r || earlier)
        return library_fail(m->host, &m->lib, r ? r : earlier, "earlier work");
    r = count == 1 ? call_run(m, stream, calls) : calls_run(m, stream, calls, count);
    return r ? library_fail(m->host, &m->lib, r, "a collective") : BSK_OK;
}

/* --- Communicators --- */

static bsk_status transport_id(const bsk_host *host, bsk_comm_id *id)
{
    library lib;
    const bsk_status status = library_load(host, &lib);
    if (status)
        return status;
    const result r = lib.unique_id(id);
    return r ? library_fail(host, &lib, r, "ncclGetUniqueId") : BSK_OK;
}

static void transport_destroy(void *handle)
{
    comm *m = handle;
    const bsk_allocator *a = &m->host->allocator;
    if (m->owned)
        m->lib.destroy(m->handle);
    a->resize(a->user, m, 0);
}

/* Takes the caller's communicator or makes one. */
static bsk_status comm_fill(comm *m, bsk_transport_request *r)
{
    const bsk_status status = library_load(m->host, &m->lib);
    if (status)
        return status;
    m->handle = r->native;
    if (!m->handle) {
        const result made = m->lib.init(&m->handle, r->size, *r->id, r->rank);
        if (made)
            return library_fail(m->host, &m->lib, made, "ncclCommInitRank");
        m->owned = true;
    }
    int size = 0, rank = 0;
    result asked = m->lib.size(m->handle, &size);
    if (!asked)
        asked = m->lib.rank(m->handle, &rank);
    r->size = size;
    r->rank = rank;
    return asked ? library_fail(m->host, &m->lib, asked, "params.native") : BSK_OK;
}

static bsk_status transport_create(const bsk_host *host, bsk_transport_request *request,
                                   void **handle)
{
    if (strcmp(request->backend, BACKEND))
        return host->fail(host->context, BSK_E_UNSUPPORTED,
                          TRANSPORT ": devices of %s are not served; those of " BACKEND " are",
                          request->backend);
    if (!request->native && !request->id)
        return host->fail(host->context, BSK_E_INVALID,
                          TRANSPORT ": params.native and params.id are NULL; legal is one of them");
    comm *m = host->allocator.resize(host->allocator.user, NULL, sizeof(*m));
    if (!m)
        return host->fail(host->context, BSK_E_NOMEM, TRANSPORT ": no memory for a communicator");
    *m = (comm){.host = host};
    const bsk_status status = comm_fill(m, request);
    if (status)
        transport_destroy(m);
    else
        *handle = m;
    return status;
}

static const bsk_transport transport = {
    .struct_size = sizeof(bsk_transport),
    .abi = BSK_TRANSPORT_ABI,
    .name = TRANSPORT,
    .sums = SUMS,
    .capture_safe = 1,
    .id = transport_id,
    .create = transport_create,
    .destroy = transport_destroy,
    .run = transport_run,
};

BSK_API const bsk_transport *bsk_transport_query_v1(const bsk_host *host);

const bsk_transport *bsk_transport_query_v1(const bsk_host *host)
{
    return host->abi == BSK_BACKEND_ABI ? &transport : NULL;
}
