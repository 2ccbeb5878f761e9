/* Collectives over MPI, on a duplicate of the caller's communicator: its messages stay apart from the
 * caller's, and its errors are returned instead of ending the program. */
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include <mpi.h>

#include <bsk/transport.h>

/* Elements of one call, whose counts are ints. Tests have a module with a small one. */
#ifndef PIECE
#define PIECE INT_MAX
#endif

typedef struct comm {
    const bsk_host *host;
    MPI_Comm mpi;
    int rank, size;
} comm;

#define SUMS                                                                                       \
    (BSK_DTYPE_BIT(BSK_F64) | BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_I64) |                    \
     BSK_DTYPE_BIT(BSK_I32) | BSK_DTYPE_BIT(BSK_U8) | BSK_DTYPE_BIT(BSK_I8))

/* Not a table: the names need not be constants. */
static MPI_Datatype type_of(bsk_dtype dtype)
{
    switch (dtype) {
    case BSK_F64:
        return MPI_DOUBLE;
    case BSK_F32:
        return MPI_FLOAT;
    case BSK_I64:
        return MPI_INT64_T;
    case BSK_I32:
        return MPI_INT32_T;
    case BSK_I8:
        return MPI_INT8_T;
    default:
        return MPI_UINT8_T;
    }
}

static const size_t sizes[BSK_DTYPE_COUNT] = {
    [BSK_F64] = 8, [BSK_F32] = 4, [BSK_I64] = 8, [BSK_I32] = 4, [BSK_I8] = 1, [BSK_U8] = 1};

static bsk_status mpi_fail(const bsk_host *host, int error, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(error, text, &length);
    return host->fail(host->context, BSK_E_DEVICE, "mpi: %s: %s", what, text);
}

/* --- Calls: each answers an error of MPI --- */

/* A call's position, which moves on by pieces. */
typedef struct piece {
    const char *x;
    char *y;
    size_t size, left; /* of an element; elements */
} piece;

static int piece_count(const piece *p)
{
    return p->left < PIECE ? (int)p->left : PIECE;
}

static void piece_next(piece *p)
{
    const size_t n = (size_t)piece_count(p);
    p->x += n * p->size;
    p->y += n * p->size;
    p->left -= n;
}

static piece piece_first(const bsk_transport_call *c)
{
    return (piece){c->x, c->y, sizes[c->dtype], c->count};
}

static int all_reduce(const comm *m, const bsk_transport_call *c)
{
    int error = MPI_SUCCESS;
    for (piece p = piece_first(c); p.left && !error; piece_next(&p))
        error = MPI_Allreduce(c->x == c->y ? MPI_IN_PLACE : p.x, p.y, piece_count(&p),
                              type_of(c->dtype), MPI_SUM, m->mpi);
    return error;
}

static int broadcast_pieces(const comm *m, char *y, size_t bytes, int root)
{
    int error = MPI_SUCCESS;
    for (piece p = {y, y, 1, bytes}; p.left && !error; piece_next(&p))
        error = MPI_Bcast(p.y, piece_count(&p), MPI_BYTE, root, m->mpi);
    return error;
}

static int broadcast(const comm *m, const bsk_transport_call *c)
{
    return broadcast_pieces(m, c->y, c->count, c->root);
}

/* The sum of one rank's part, which may lie within x. */
static int reduce_part(const comm *m, const bsk_transport_call *c, int root)
{
    const size_t bytes = c->count * sizes[c->dtype];
    piece p = piece_first(c);
    p.x += bytes * (size_t)root;
    const bool here = m->rank == root && p.x == p.y;
    int error = MPI_SUCCESS;
    for (; p.left && !error; piece_next(&p))
        error = MPI_Reduce(here ? MPI_IN_PLACE : p.x, m->rank == root ? p.y : NULL, piece_count(&p),
                           type_of(c->dtype), MPI_SUM, root, m->mpi);
    return error;
}

/* MPI's own form leaves the result at the beginning of x where that is not to lie apart. */
static int reduce_scatter(const comm *m, const bsk_transport_call *c)
{
    const char *own = (const char *)c->x + c->count * sizes[c->dtype] * (size_t)m->rank;
    int error = MPI_SUCCESS;
    if (own != c->y && c->count <= PIECE)
        return MPI_Reduce_scatter_block(c->x, c->y, (int)c->count, type_of(c->dtype), MPI_SUM,
                                        m->mpi);
    for (int root = 0; root < m->size && !error; root++)
        error = reduce_part(m, c, root);
    return error;
}

static int all_gather(const comm *m, const bsk_transport_call *c)
{
    char *own = (char *)c->y + c->count * (size_t)m->rank;
    const bool here = own == c->x;
    if (c->count <= PIECE)
        return MPI_Allgather(here ? MPI_IN_PLACE : c->x, (int)c->count, MPI_BYTE, c->y,
                             (int)c->count, MPI_BYTE, m->mpi);
    /* More than a count tells: a broadcast of each part. MPI itself copies, since memory may be a
     * device's. */
    int error = MPI_SUCCESS;
    for (piece p = {c->x, own, 1, here ? 0 : c->count}; p.left && !error; piece_next(&p))
        error = MPI_Sendrecv(p.x, piece_count(&p), MPI_BYTE, 0, 0, p.y, piece_count(&p), MPI_BYTE,
                             0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE);
    for (int root = 0; root < m->size && !error; root++)
        error = broadcast_pieces(m, (char *)c->y + c->count * (size_t)root, c->count, root);
    return error;
}

static const struct {
    const char *name;
    int (*run)(const comm *m, const bsk_transport_call *c);
} kinds[BSK_COLLECTIVE_COUNT] = {
    [BSK_ALL_REDUCE] = {"all_reduce", all_reduce},
    [BSK_REDUCE_SCATTER] = {"reduce_scatter", reduce_scatter},
    [BSK_ALL_GATHER] = {"all_gather", all_gather},
    [BSK_BROADCAST] = {"broadcast", broadcast},
};

static bsk_status transport_run(void *handle, void *stream, const bsk_transport_call *calls,
                                size_t count)
{
    const comm *m = handle;
    (void)stream;
    for (size_t i = 0; i < count; i++) {
        const int error = kinds[calls[i].kind].run(m, &calls[i]);
        if (error)
            return mpi_fail(m->host, error, kinds[calls[i].kind].name);
    }
    return BSK_OK;
}

/* --- Communicators --- */

static bsk_status check_ready(const bsk_host *host)
{
    int initialised = 0, finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    if (initialised && !finalised)
        return BSK_OK;
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(version, &length);
    return host->fail(host->context, BSK_E_INVALID, "mpi: MPI is %s (this module's is %.60s)",
                      finalised ? "finalised" : "not initialised; the program calls MPI_Init",
                      version);
}

static bsk_status check_request(const bsk_host *host, const bsk_transport_request *r)
{
    if (r->id)
        return host->fail(host->context, BSK_E_UNSUPPORTED,
                          "mpi: there are no ids; params.native takes a communicator");
    const bool device = !strcmp(r->backend, "cuda") || !strcmp(r->backend, "hip");
    if (device && !r->device_memory)
        return host->fail(host->context, BSK_E_UNSUPPORTED,
                          "mpi: memory of %s is the device's; params.device_memory says that MPI "
                          "follows its pointers",
                          r->backend);
    if (!device && strcmp(r->backend, "cpu"))
        return host->fail(host->context, BSK_E_UNSUPPORTED,
                          "mpi: devices of %s are not served; those of cpu, cuda and hip are",
                          r->backend);
    return check_ready(host);
}

static void transport_destroy(void *handle)
{
    comm *m = handle;
    const bsk_allocator *a = &m->host->allocator;
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (!finalised && m->mpi != MPI_COMM_NULL)
        MPI_Comm_free(&m->mpi);
    a->resize(a->user, m, 0);
}

static int duplicate(MPI_Comm from, comm *m)
{
    int error = MPI_Comm_dup(from, &m->mpi);
    if (!error)
        error = MPI_Comm_set_errhandler(m->mpi, MPI_ERRORS_RETURN);
    if (!error)
        error = MPI_Comm_rank(m->mpi, &m->rank);
    return error ? error : MPI_Comm_size(m->mpi, &m->size);
}

static bsk_status transport_create(const bsk_host *host, bsk_transport_request *request,
                                   void **handle)
{
    const bsk_status status = check_request(host, request);
    if (status)
        return status;
    comm *m = host->allocator.resize(host->allocator.user, NULL, sizeof(*m));
    if (!m)
        return host->fail(host->context, BSK_E_NOMEM, "mpi: no memory for a communicator");
    *m = (comm){.host = host, .mpi = MPI_COMM_NULL};
    const int error = duplicate(request->native ? *(MPI_Comm *)request->native : MPI_COMM_WORLD, m);
    if (error) {
        transport_destroy(m);
        return mpi_fail(host, error, "MPI_Comm_dup");
    }
    request->rank = m->rank;
    request->size = m->size;
    *handle = m;
    return BSK_OK;
}

static const bsk_transport transport = {
    .struct_size = sizeof(bsk_transport),
    .abi = BSK_TRANSPORT_ABI,
    .name = "mpi",
    .sums = SUMS,
    .synchronous = 1,
    .create = transport_create,
    .destroy = transport_destroy,
    .run = transport_run,
};

BSK_API const bsk_transport *bsk_transport_query_v1(const bsk_host *host);

const bsk_transport *bsk_transport_query_v1(const bsk_host *host)
{
    return host->abi == BSK_BACKEND_ABI ? &transport : NULL;
}
