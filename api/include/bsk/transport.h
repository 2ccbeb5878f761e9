/* The interface between the library and its transports, which carry collectives from rank to rank.
 * Not included by <bsk/bsk.h>.
 *
 * A transport is a shared module bsk_comm_<name>.so that exports one symbol, bsk_transport_query_v1. It
 * gets checked calls on contiguous memory, and neither casts nor packs.
 *
 * Stability: BSK_TRANSPORT_ABI changes with every incompatible change of this header or of bsk_host; a
 * module of another ABI is refused. */
#ifndef BSK_TRANSPORT_H
#define BSK_TRANSPORT_H

#include <bsk/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BSK_TRANSPORT_ABI = 1 };

typedef enum bsk_collective {
    BSK_ALL_REDUCE = 0,     /* y = sum of x */
    BSK_REDUCE_SCATTER = 1, /* y = rank's part of the sum of x, which has count elements for each */
    BSK_ALL_GATHER = 2,     /* y = x of all ranks; count of x */
    BSK_BROADCAST = 3,      /* x = y = that of root */
    BSK_COLLECTIVE_COUNT = 4
} bsk_collective;

/* In place as comm.h says: x = y, or one of them is rank's part of the other. */
typedef struct bsk_transport_call {
    bsk_collective kind;
    bsk_dtype dtype; /* of sums: one of bsk_transport.sums; else U8 */
    const void *x;
    void *y;
    size_t count; /* of elements; never 0 */
    int32_t root;
} bsk_transport_call;

/* What bsk_comm_params ask for, after their checks. */
typedef struct bsk_transport_request {
    size_t struct_size;
    const char *backend; /* of the device: "cuda" */
    void *native;
    const bsk_comm_id *id; /* NULL where native is given */
    int32_t rank, size;    /* with id; else to be filled by the transport */
    int32_t device_memory;
} bsk_transport_request;

typedef struct bsk_transport {
    size_t struct_size;
    uint32_t abi;        /* BSK_TRANSPORT_ABI */
    const char *name;    /* "nccl" */
    uint32_t sums;       /* types that it adds: bit 1 << bsk_dtype */
    int32_t synchronous; /* run reads memory at once, so that the queue must be waited for before */
    int32_t capture_safe; /* run may be captured in a graph */

    /* Makes an id. Optional. */
    bsk_status (*id)(const bsk_host *host, bsk_comm_id *id);
    /* Makes a communicator, with the device current. Fills rank and size. */
    bsk_status (*create)(const bsk_host *host, bsk_transport_request *request, void **comm);
    void (*destroy)(void *comm);
    /* Enqueues calls on a native stream, with the device current; NULL: the backend has none. No
     * allocation of device memory, no waiting unless `synchronous`. */
    bsk_status (*run)(void *comm, void *stream, const bsk_transport_call *calls, size_t count);
} bsk_transport;

/* The one exported symbol of a module. Returns NULL if it cannot serve host->abi. */
typedef const bsk_transport *(*bsk_transport_query_fn)(const bsk_host *host);
#define BSK_TRANSPORT_SYMBOL "bsk_transport_query_v1"

#ifdef __cplusplus
}
#endif
#endif
