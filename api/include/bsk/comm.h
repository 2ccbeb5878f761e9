/* Collectives: what the processes of a program add up, send and gather, on NCCL, RCCL and MPI as
 * they are. Part of bsk; include <bsk/bsk.h>. docs/distributed.md has a guide.
 *
 * The library links none of them. Each is a module, bsk_comm_<transport>.so, which is looked for when
 * the first communicator asks for it: in the install directory and then in those of
 * bsk_context_params.plugin_path. What is missing is UNSUPPORTED, with a message that says what.
 *
 * A communicator joins ranks, one device each. A collective is planned once, then run on queues:
 *  - All ranks make the same plans, with the same shapes and types, and run them in the same order.
 *    What differs cannot be noticed here: it ends in waiting forever or in an error of the transport.
 *  - NCCL and RCCL: runs enqueue on the queue's native stream and return; no host synchronisation and
 *    no allocation. May be captured in graphs. Each rank is driven by a process or a thread of its own,
 *    outside of groups of the caller's (ncclGroupStart).
 *  - MPI: runs wait for the queue, and return when the result is there. Memory is the host's, of
 *    devices "cpu:N", unless params.device_memory says that MPI follows device pointers.
 *  - Casts and packing run on the device by entries of op cast, in a workspace that the caller gives.
 *
 * Determinism. Tensors are packed in an order that depends on the list alone, and every rank gets the
 * same bits. The order of additions is the transport's: MPI's standard recommends, and NCCL's
 * documentation lets one expect, the same bits from the same inputs on the same ranks and machines;
 * neither promises them, nor the same bits for other numbers of ranks. Sums of integers, and of floats
 * that are exact, do not depend on it.
 *
 * Rounding. NCCL and RCCL add f16 and bf16 in their own type, as they please; MPI has neither, so they
 * are added in f32 and rounded once, at the end. Sums of integers must fit the type.
 *
 * Errors of runs: INVALID for bad arguments, and nothing was enqueued then; DEVICE and others from the
 * transport: outputs are undefined then, as is the communicator (NCCL) until the caller makes a new one.
 * Errors of another rank, where the transport hears of them, appear at the next run. */
#ifndef BSK_COMM_H
#define BSK_COMM_H

#include <bsk/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- Communicators ---------------------------------------------------------------------------- */

/* Ranks that run collectives together. Belongs to one device of its context, and goes before it.
 * Thread-safety: one thread at a time, the runs of its plans included. MPI: a thread that MPI's level
 * of thread support lets call it. */
typedef struct bsk_comm bsk_comm;

/* What ranks that have no communicator yet find each other by. One rank makes it and gives its bytes
 * to all, by whatever means it has: a file, a socket, MPI. */
typedef struct bsk_comm_id {
    uint8_t bytes[128];
} bsk_comm_id;

typedef struct bsk_comm_params {
    size_t struct_size;
    /* With id: this rank, 0 to size - 1, and how many there are; else 0. */
    int32_t rank, size;
    /* 0 or 1. 1: MPI follows pointers to device memory ("CUDA-aware"), so that devices of backends
     * cuda and hip may run on it. Not for others. */
    int32_t device_memory;
    /* "nccl", "rccl", "mpi", or the part <name> of a bsk_comm_<name>.so; NULL: that of the device's
     * backend: cuda nccl, hip rccl, cpu mpi. */
    const char *transport;
    /* The caller's communicator, which stays the caller's: an ncclComm_t, in blocking mode, which must
     * outlive this one; a pointer to an MPI_Comm, which is duplicated, by a call that is collective;
     * NULL: id, or, of MPI, MPI_COMM_WORLD. */
    void *native;
    /* nccl, rccl: without native; the same in all ranks. Waits for them. */
    const bsk_comm_id *id;
} bsk_comm_params;

/* Makes an id. params may be NULL; of them only the transport counts.
 * Errors: INVALID; UNSUPPORTED where the transport is missing or has no ids (MPI); DEVICE. */
BSK_API bsk_status bsk_comm_id_create(const bsk_device *device, const bsk_comm_params *params,
                                      bsk_comm_id *id);

/* Makes a communicator. params may be NULL. MPI must be initialised, by the caller, and not finalised.
 * Errors: INVALID; UNSUPPORTED where the transport or its library is missing, or does not serve the
 * device; VERSION, NOMEM, DEVICE; *comm is then NULL. */
BSK_API bsk_status bsk_comm_create(const bsk_device *device, const bsk_comm_params *params,
                                   bsk_comm **comm);

/* Destroys a communicator, after its plans and the work that they enqueued, and sets *comm to NULL;
 * *comm may be NULL. Not a native one. All ranks should do so; MPI: before MPI_Finalize. */
BSK_API void bsk_comm_destroy(bsk_comm **comm);

typedef struct bsk_comm_info {
    size_t struct_size;
    const char *transport; /* "mpi"; lives as long as the process */
    int32_t rank, size;
    uint32_t sums;       /* types that can be added: bit 1 << bsk_dtype */
    int32_t synchronous; /* runs wait for the queue and for the result */
} bsk_comm_info;

/* Fills *info, whose struct_size must be set. */
BSK_API bsk_status bsk_comm_query(const bsk_comm *comm, bsk_comm_info *info);

/* --- Plans ------------------------------------------------------------------------------------ */

/* A checked collective of one communicator. Thread-safety: as its communicator. */
typedef struct bsk_comm_plan bsk_comm_plan;

typedef struct bsk_comm_plan_info {
    size_t struct_size;
    const char *op;             /* "all_reduce"; lives as long as the process */
    size_t workspace_bytes;     /* to pass in args.workspace; 0: none is needed */
    size_t workspace_alignment; /* of the address in bytes; a power of two */
    int32_t calls;        /* of the transport in a run; group_all_reduce: one for each bucket */
    int32_t capture_safe; /* may be captured in a CUDA or HIP graph */
    double bytes;         /* that a rank hands to the transport in a run */
} bsk_comm_plan_info;

/* Fills *info, whose struct_size must be set. */
BSK_API bsk_status bsk_comm_plan_query(const bsk_comm_plan *plan, bsk_comm_plan_info *info);

/* Destroys a plan and sets *plan to NULL; *plan may be NULL. Runs that were already enqueued must
 * have finished. */
BSK_API void bsk_comm_plan_destroy(bsk_comm_plan **plan);

/* --- all_reduce, reduce_scatter, all_gather: of one tensor ------------------------------------
 * With R ranks:
 * all_reduce      y = sum of x over all ranks.
 * reduce_scatter  y = rank's part of that sum, which is cut in R along the first dimension.
 * all_gather      y = the x of all ranks, one after the other along the first dimension.
 * Shapes    rank 1 or more (all_reduce: any); all dimensions of x and y agree, but that of
 *           reduce_scatter x.dims[0] = R * y.dims[0], and of all_gather y.dims[0] = R * x.dims[0].
 *           Contiguous. Empty tensors are legal.
 * Dtypes    x and y the same; sums: f64 f32 f16 bf16 i64 i32 u8 i8; all_gather: any.
 * In place  all_reduce: x = y. reduce_scatter: y, and all_gather: x, may be rank's part of the other
 *           one. They must not overlap in other ways. All ranks run in place, or none does.
 * Memory    addresses are multiples of an element. */
typedef struct bsk_collective_params {
    size_t struct_size;
    bsk_tensor x, y;
} bsk_collective_params;

typedef struct bsk_collective_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, y;
} bsk_collective_args;

BSK_API bsk_status bsk_all_reduce_plan(bsk_comm *comm, const bsk_collective_params *params,
                                       bsk_comm_plan **plan);
BSK_API bsk_status bsk_all_reduce_run(const bsk_comm_plan *plan, bsk_queue *queue,
                                      const bsk_collective_args *args);
BSK_API bsk_status bsk_reduce_scatter_plan(bsk_comm *comm, const bsk_collective_params *params,
                                           bsk_comm_plan **plan);
BSK_API bsk_status bsk_reduce_scatter_run(const bsk_comm_plan *plan, bsk_queue *queue,
                                          const bsk_collective_args *args);
BSK_API bsk_status bsk_all_gather_plan(bsk_comm *comm, const bsk_collective_params *params,
                                       bsk_comm_plan **plan);
BSK_API bsk_status bsk_all_gather_run(const bsk_comm_plan *plan, bsk_queue *queue,
                                      const bsk_collective_args *args);

/* --- group_all_reduce, broadcast: of a list of tensors, in place ------------------------------
 * group_all_reduce  each tensor = its sum over all ranks. Tensors are packed into buckets, one for each
 *           type and so many bytes; a bucket is cast to its type, added, and cast back. Buckets are
 *           made type by type in the order of bsk_dtype, and in each of the list; one is closed where the next
 *           tensor would make it larger than bucket_bytes, so a larger tensor is alone. A tensor that is alone
 *           and not cast is added where it is.
 * broadcast         each tensor = that of rank `root`: one tensor, or all variables of a model.
 * Shapes    any, contiguous; empty tensors are legal, as are empty lists.
 * Dtypes    group_all_reduce as all_reduce, with mixed lists; wire: NONE or a float, in which all
 *           floats of the list are added; integers keep their type. Rounding as that of cast: once
 *           on the way there and once on the way back, if the type is narrower there.
 *           broadcast: any.
 * In place  always; tensors of the list must not overlap.
 * Memory    group_all_reduce: addresses are multiples of 16 bytes; broadcast: of an element.
 * Source    openai/blocksparse group_allreduce, sync_variables_op. */
typedef struct bsk_group_all_reduce_params {
    size_t struct_size;
    int32_t count;             /* of tensors: 0 to 65536 */
    bsk_dtype wire;            /* the type of floats on the way; NONE: each tensor's own */
    int64_t bucket_bytes;      /* on the way; 0 means 33554432 (32 MiB) */
    const bsk_tensor *tensors; /* [count] */
} bsk_group_all_reduce_params;

typedef struct bsk_broadcast_params {
    size_t struct_size;
    int32_t count;             /* of tensors: 0 to 65536 */
    int32_t root;              /* 0 to R - 1 */
    const bsk_tensor *tensors; /* [count] */
} bsk_broadcast_params;

typedef struct bsk_tensor_list_args {
    size_t struct_size;
    bsk_mem workspace;
    const bsk_mem *tensors; /* [count] in the order of the params */
} bsk_tensor_list_args;

BSK_API bsk_status bsk_group_all_reduce_plan(bsk_comm *comm,
                                             const bsk_group_all_reduce_params *params,
                                             bsk_comm_plan **plan);
BSK_API bsk_status bsk_group_all_reduce_run(const bsk_comm_plan *plan, bsk_queue *queue,
                                            const bsk_tensor_list_args *args);
BSK_API bsk_status bsk_broadcast_plan(bsk_comm *comm, const bsk_broadcast_params *params,
                                      bsk_comm_plan **plan);
BSK_API bsk_status bsk_broadcast_run(const bsk_comm_plan *plan, bsk_queue *queue,
                                     const bsk_tensor_list_args *args);

#ifdef __cplusplus
}
#endif
#endif
