/* The tensor core of sm100a: products of operands in shared memory, whose sums lie in a memory of
 * its own. Device code for sm_100a only.
 *
 * Tensor memory has 128 lanes of 512 columns of 32 bits; an address is lane << 16 | column. A
 * product of 128 x N has row m in lane m, and column n in column n from its address on. */
#ifndef BSKI_CUDA_SM100A_TCGEN05_H
#define BSKI_CUDA_SM100A_TCGEN05_H

#include <backends/cuda/ptx.h>

/* --- Tensor memory: by a whole warp, the same for both --- */

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

/* Eight columns of the lanes that are the warp's: 32 from 32 * (warp % 4) on, one a thread. */
PTX_FN void tensor_memory_load_8(uint32_t address, float (&v)[8])
{
    uint32_t r[8];
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]),
                   "=r"(r[6]), "=r"(r[7])
                 : "r"(address)
                 : "memory");
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 8; i++) {
        asm volatile("" : "+r"(r[i])::"memory"); /* no use before the wait */
        v[i] = __uint_as_float(r[i]);
    }
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

/* An operand in rows of 128 bytes, swizzled, in groups of 8 rows (1024 bytes, aligned so). K-major:
 * a step of 16 along K is 32 bytes. M- or N-major: groups of 8 k follow each other, `leading` is
 * from 64 features to the next 64, and a step of 16 along K is 2048 bytes. */
PTX_FN uint64_t tensor_operand(uint32_t address, uint32_t leading)
{
    enum { GROUP = 1024, VERSION = 1, SWIZZLE = 2 };
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(GROUP >> 4) << 32 | (uint64_t)VERSION << 46 | (uint64_t)SWIZZLE << 61;
}

/* A product's kind: f32 sums of 128 rows x `columns` of a 16-bit type. */
PTX_FN uint32_t tensor_kind(bool bf16, bool a_m_major, bool b_n_major, uint32_t columns)
{
    enum { ROWS = 128, SUMS_F32 = 1 };
    const uint32_t type = bf16;
    return SUMS_F32 << 4 | type << 7 | type << 10 | (uint32_t)a_m_major << 15 |
           (uint32_t)b_n_major << 16 | columns >> 3 << 17 | (uint32_t)(ROWS >> 4) << 24;
}

/* D[128, columns] += A[128, 16] B[16, columns]; accumulate = false overwrites D. */
PTX_FN void tensor_product(uint32_t d, uint64_t a, uint64_t b, uint32_t kind, bool accumulate)
{
    asm volatile("{.reg .pred p;\nsetp.ne.u32 p, %4, 0;\n"
                 "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;}" ::"r"(d),
                 "l"(a), "l"(b), "r"(kind), "r"((uint32_t)accumulate)
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
