/* Shared by the files of the CPU backend. */
#ifndef BSKI_CPU_H
#define BSKI_CPU_H

#include <stdbool.h>
#include <sys/types.h>
#include <unistd.h>

#include <bsk/backend.h>

/* Ranks of the CPU backend's architectures, of x86-64 and of 64-bit ARM; kernels.inc refers to
 * them. */
enum {
    BSK_CPU_BASE = 1,
    BSK_CPU_AVX2 = 10,
    BSK_CPU_AVX512 = 20,
    BSK_CPU_AVX512VNNI = 25,
    BSK_CPU_AVX512BF16 = 30,
    BSK_CPU_AMX = 40,
    BSK_CPU_NEON = 10,
    BSK_CPU_NEONBF16 = 30
};

/* The queue that launches receive: the device's thread count, and where it was opened. */
typedef struct bski_cpu_queue {
    int threads;   /* at least 1 */
    pid_t process; /* whose threads these are */
} bski_cpu_queue;

/* For num_threads() of every parallel region. One in a child of fork(), which would wait forever
 * for the threads of its parent. */
static inline int queue_threads(const void *queue)
{
    const bski_cpu_queue *q = queue;
    return q->threads > 1 && getpid() != q->process ? 1 : q->threads;
}

static inline bool is_float(bsk_dtype type)
{
    return type >= BSK_F64 && type <= BSK_BF16;
}

/* A kernel's functions are named after its entry: NAME_accept, NAME_prepare, NAME_launch, NAME_pack.
 * kernels.inc says which of them exist. */
#define BSKI_CPU_LAUNCH(name)                                                                      \
    bsk_status name##_launch(const bsk_prepared *prepared, void *queue, const void *args)
#define BSKI_CPU_ACCEPT(name)                                                                      \
    bsk_reason name##_accept(const bsk_problem *problem, const bsk_device_props *props)
#define BSKI_CPU_PACK(name)                                                                        \
    bsk_status name##_pack(const bsk_prepared *prepared, void *queue, bsk_mem s, bsk_mem packed)
#define BSKI_CPU_PREPARE(name) bsk_status name##_prepare(void *device, bsk_prepared *prepared)

#define BSK_REF(op, OP) BSKI_CPU_LAUNCH(ref_##op);
#define BSK_REF_PREPARE(op, OP)                                                                    \
    BSKI_CPU_PREPARE(ref_##op);                                                                    \
    BSKI_CPU_LAUNCH(ref_##op);
#define BSK_OMP(name, isa, arch, op, dtypes, blocks, priority)                                     \
    BSKI_CPU_ACCEPT(name##_##isa);                                                                 \
    BSKI_CPU_PREPARE(name##_##isa);                                                                \
    BSKI_CPU_LAUNCH(name##_##isa);
#define BSK_OMP_PACKED(name, isa, arch, op, dtypes, blocks, priority)                              \
    BSK_OMP(name, isa, arch, op, dtypes, blocks, priority)                                         \
    BSKI_CPU_PACK(name##_##isa);
#include "kernels.inc"
#undef BSK_REF
#undef BSK_REF_PREPARE
#undef BSK_OMP
#undef BSK_OMP_PACKED

/* The backend, linked into the library. NULL if it cannot serve host->abi. */
const bsk_backend *bski_cpu_backend_query(const bsk_host *host);

#endif
