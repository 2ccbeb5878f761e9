/* The tensor core of sm100a: products of operands in shared memory, whose sums lie in a memory of
 * its own. Device code for sm_100a only.
 *
 * Tensor memory has 128 lanes of 512 columns of 32 bits; an address is lane << 16 | column. A
 * product of 128 x N has row m in lane m, and column n in column n from its address on; one of 64 x N
 * has row m in lane 32 * (m / 16) + m % 16. */
#ifndef BSKI_CUDA_SM100A_TCGEN05_H
#define BSKI_CUDA_SM100A_TCGEN05_H

#include <backends/cuda/ptx.h>
#include <backends/cuda/sm100a/descriptor.h>

/* --- Tensor memory: by a whole warp, all threads with the same address --- */

/* Takes columns, a power of two from 32 on, and writes their address to shared memory. */
PTX_FN void tensor_memory_take(uint32_t to, uint32_t columns)
{
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to),
                 "r"(columns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}

PTX_FN void tensor_memory_give(uint32_t address, uint32_t columns)
{
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address),
                 "r"(columns));
}

/* Lists of N registers as text and as operands; those of wgmma are of twice as many columns. */
#define TENSOR_T8          WGMMA_T16
#define TENSOR_T16         WGMMA_T32
#define TENSOR_T32         WGMMA_T64
#define TENSOR_V4(kind, i) kind(v[i]), kind(v[(i) + 1]), kind(v[(i) + 2]), kind(v[(i) + 3])
#define TENSOR_V8(kind, i) TENSOR_V4(kind, i), TENSOR_V4(kind, (i) + 4)
#define TENSOR_X8(kind)    TENSOR_V8(kind, 0)
#define TENSOR_X16(kind)   TENSOR_X8(kind), TENSOR_V8(kind, 8)
#define TENSOR_X32(kind)   TENSOR_X16(kind), TENSOR_V8(kind, 16), TENSOR_V8(kind, 24)

#define TENSOR_LOAD(N)                                                                             \
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x" #N ".b32 {" TENSOR_T##N                        \
                 "}, [%" #N "];\n"                                                                 \
                 "tcgen05.wait::ld.sync.aligned;"                                                  \
                 : TENSOR_X##N("=f")                                                               \
                 : "r"(address)                                                                    \
                 : "memory")
#define TENSOR_STORE(N)                                                                            \
    asm volatile("tcgen05.st.sync.aligned.32x32b.x" #N ".b32 [%" #N "], {" TENSOR_T##N             \
                 "};" ::TENSOR_X##N("r"),                                                          \
                 "r"(address)                                                                      \
                 : "memory")

/* N columns (8, 16 or 32) of the lanes that are the warp's: 32 from 32 * (warp % 4) on, one a
 * thread. With the wait for them. */
template <int N> PTX_FN void tensor_memory_load(uint32_t address, float (&v)[N])
{
    static_assert(N == 8 || N == 16 || N == 32, "what is written out here");
    if constexpr (N == 8)
        TENSOR_LOAD(8);
    else if constexpr (N == 16)
        TENSOR_LOAD(16);
    else
        TENSOR_LOAD(32);
}

/* The other way. Nobody may read them before tensor_memory_store_wait. */
template <int N> PTX_FN void tensor_memory_store(uint32_t address, const uint32_t (&v)[N])
{
    static_assert(N == 8 || N == 16 || N == 32, "what is written out here");
    if constexpr (N == 8)
        TENSOR_STORE(8);
    else if constexpr (N == 16)
        TENSOR_STORE(16);
    else
        TENSOR_STORE(32);
}
#undef TENSOR_LOAD
#undef TENSOR_STORE

PTX_FN void tensor_memory_store_wait(void)
{
    asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}

/* --- Order between the tensor core and what threads learn from barriers --- */

PTX_FN void tensor_fence_before(void)
{
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

PTX_FN void tensor_fence_after(void)
{
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

/* --- Products: by one thread --- */

/* D[rows, columns] += A[rows, 16] B[16, columns]; accumulate = false overwrites D. */
PTX_FN void tensor_product(uint32_t d, uint64_t a, uint64_t b, uint32_t kind, bool accumulate)
{
    asm volatile("{.reg .pred p;\nsetp.ne.u32 p, %4, 0;\n"
                 "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;}" ::"r"(d),
                 "l"(a), "l"(b), "r"(kind), "r"((uint32_t)accumulate)
                 : "memory");
}

/* The same with A in tensor memory: rows in the lanes of those of D, from column `a` on two neighbours
 * along K in each of 8 columns, the first in the lower half. */
PTX_FN void tensor_product_from_memory(uint32_t d, uint32_t a, uint64_t b, uint32_t kind,
                                       bool accumulate)
{
    asm volatile("{.reg .pred p;\nsetp.ne.u32 p, %4, 0;\n"
                 "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;}" ::"r"(d),
                 "r"(a), "l"(b), "r"(kind), "r"((uint32_t)accumulate)
                 : "memory");
}

/* Arrives at a barrier when all earlier products of this thread are done. */
PTX_FN void tensor_commit(uint32_t bar)
{
    asm volatile(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(bar)
        : "memory");
}

#endif
