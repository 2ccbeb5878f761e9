/* Instructions of Hopper for tuned kernels: asynchronous copies, barriers, clusters and wgmma, one
 * function an instruction. Device code for sm_90a; all but wgmma and setmaxnreg serves sm_100a too.
 *
 * Addresses in shared memory are 32-bit numbers (shared_address). An address of the executing block
 * also serves where an instruction expects one of the cluster's window. */
#ifndef BSKI_CUDA_PTX_H
#define BSKI_CUDA_PTX_H

#include <cuda.h> /* CUtensorMap */
#include <stdint.h>

#include <backends/cuda/approx.h>
#include <backends/cuda/halves.h>

#define PTX_FN static __device__ __forceinline__

PTX_FN uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* --- Barriers in shared memory: 8 bytes, aligned to 8 --- */

PTX_FN void mbar_init(uint32_t bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

/* After the inits, by the thread that did them: shows them to the copy engine and the cluster. */
PTX_FN void mbar_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

PTX_FN void mbar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Arrives, and makes the phase wait for `bytes` of copies. */
PTX_FN void mbar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

/* Arrives at the same barrier of another block of the cluster. Deliberately without .release: that
 * form compiles to a fence of the whole GPU. */
PTX_FN void mbar_arrive_remote(uint32_t bar, uint32_t rank)
{
    asm volatile("{.reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}

PTX_FN bool mbar_try_wait(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done != 0;
}

/* The same, but may stop for up to 0.1 ms before it says no. */
PTX_FN bool mbar_try_wait_long(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared.b64 p, [%1], %2, 100000;\n"
                 "selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done != 0;
}

/* Whether the phase ends within so many cycles. */
PTX_FN bool mbar_wait_for(uint32_t bar, uint32_t parity, uint32_t cycles)
{
    const long long begin = clock64();
    do {
        uint32_t done;
        asm volatile("{.reg .pred p;\n"
                     "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;}"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
        if (done)
            return true;
        __nanosleep(64);
    } while (clock64() - begin < cycles);
    return false;
}

/* Waits for the end of the phase of a parity: 0 for a barrier's first phase. */
PTX_FN void mbar_wait(uint32_t bar, uint32_t parity)
{
    while (!mbar_try_wait(bar, parity))
        ;
}

/* --- Bulk copies: addresses and sizes are multiples of 16 bytes --- */

PTX_FN void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}

/* The same bytes to the same place of every block in `mask`, with a signal to the barrier at the
 * same place there. */
PTX_FN void bulk_load_multicast(uint32_t to, const void *from, uint32_t bytes, uint32_t bar,
                                uint16_t mask)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar), "h"(mask)
                 : "memory");
}

PTX_FN void bulk_store(void *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}

/* --- Tensor copies: coordinates from the innermost axis on --- */

PTX_FN void tensor_map_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

PTX_FN void tensor_load_2d(uint32_t to, const CUtensorMap *map, int x, int y, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(bar)
                 : "memory");
}

PTX_FN void tensor_load_3d(uint32_t to, const CUtensorMap *map, int x, int y, int z, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar)
                 : "memory");
}

PTX_FN void tensor_load_5d(uint32_t to, const CUtensorMap *map, int x, int y, int z, int w, int u,
                           uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(u), "r"(bar)
                 : "memory");
}

PTX_FN void tensor_load_2d_multicast(uint32_t to, const CUtensorMap *map, int x, int y,
                                     uint32_t bar, uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(bar), "h"(mask)
                 : "memory");
}

PTX_FN void tensor_load_3d_multicast(uint32_t to, const CUtensorMap *map, int x, int y, int z,
                                     uint32_t bar, uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar), "h"(mask)
                 : "memory");
}

PTX_FN void tensor_store_2d(const CUtensorMap *map, int x, int y, uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], "
                 "[%3];" ::"l"(map),
                 "r"(x), "r"(y), "r"(from)
                 : "memory");
}

PTX_FN void tensor_store_3d(const CUtensorMap *map, int x, int y, int z, uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], "
                 "[%4];" ::"l"(map),
                 "r"(x), "r"(y), "r"(z), "r"(from)
                 : "memory");
}

/* Stores of a thread: closes a group; waits until at most N groups still read shared memory, or
 * are not yet complete. */
PTX_FN void store_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

template <int N> PTX_FN void store_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

template <int N> PTX_FN void store_wait(void)
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

/* Orders a thread's own accesses to shared memory before later ones by copies and wgmma. */
PTX_FN void async_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* --- Blocks, clusters, registers --- */

/* The thread's number in its warp. Of what is made of threadIdx the compiler keeps little: it asks for
 * that again in each round of a loop, and waits for the answer. */
PTX_FN uint32_t lane_number(void)
{
    uint32_t lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/* A barrier of `threads` threads of the block; id 0 is that of __syncthreads. */
PTX_FN void named_barrier(uint32_t id, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Arrives there, and goes on. */
PTX_FN void named_barrier_arrive(uint32_t id, uint32_t threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* The same as named_barrier, and whether the condition holds for any of them. */
PTX_FN bool named_barrier_any(uint32_t id, uint32_t threads, bool condition)
{
    uint32_t any;
    asm volatile("{.reg .pred p, q;\n"
                 "setp.ne.u32 p, %3, 0;\n"
                 "barrier.cta.red.or.pred q, %1, %2, p;\n"
                 "selp.u32 %0, 1, 0, q;}"
                 : "=r"(any)
                 : "r"(id), "r"(threads), "r"((uint32_t)condition)
                 : "memory");
    return any != 0;
}

PTX_FN uint32_t cluster_rank(void)
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

PTX_FN void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/* For a whole warpgroup, which takes registers from or gives them to the block's own share: the
 * sum over its warpgroups must not exceed what the launch gave it. */
template <int N> PTX_FN void registers_raise(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> PTX_FN void registers_lower(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* --- Arithmetic --- */

/* 0, in a way that the compiler does not see through. */
PTX_FN float hidden_zero(void)
{
    float zero;
    asm volatile("mov.f32 %0, 0f00000000;" : "=f"(zero));
    return zero;
}

/* f32 to the nearest tf32, of two the even one, by its bits; what is above the largest becomes
 * infinite. */
PTX_FN uint32_t to_tf32(uint32_t bits)
{
    uint32_t to;
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(to) : "f"(__uint_as_float(bits)));
    return to;
}

/* Two numbers of e4m3 in f16, the lower one in the lower half. */
PTX_FN uint32_t e4m3_to_f16(uint16_t two)
{
    uint32_t to;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(to) : "h"(two));
    return to;
}

/* --- Global memory --- */

/* WIDTH 16-bit elements (1, 2, 4 or 8) from an address that is a multiple of so much, into
 * registers that hold two each. KEEP: others of the multiprocessor may read them too. */
template <int WIDTH, bool KEEP> PTX_FN void load_global(uint32_t *v, const void *from)
{
    if constexpr (WIDTH == 1) {
        uint16_t one;
        if (KEEP)
            asm volatile("ld.global.u16 %0, [%1];" : "=h"(one) : "l"(from));
        else
            asm volatile("ld.global.L1::no_allocate.u16 %0, [%1];" : "=h"(one) : "l"(from));
        v[0] = one;
    } else if constexpr (WIDTH == 2) {
        if (KEEP)
            asm volatile("ld.global.u32 %0, [%1];" : "=r"(v[0]) : "l"(from));
        else
            asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(v[0]) : "l"(from));
    } else if constexpr (WIDTH == 4) {
        if (KEEP)
            asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "l"(from));
        else
            asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                         : "=r"(v[0]), "=r"(v[1])
                         : "l"(from));
    } else {
        if (KEEP)
            asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                         : "l"(from));
        else
            asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                         : "l"(from));
    }
}

/* 16 bytes, for which the first-level cache makes no room. */
PTX_FN void store_global_16(void *to, uint4 v)
{
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* Starts to bring a line into the second-level cache. Reads nothing. */
PTX_FN void prefetch_global(const void *from)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

/* A counter that all blocks of the device share: without any order to other accesses. */
PTX_FN void counter_add_one(uint32_t *counter)
{
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

PTX_FN void counter_add(uint32_t *counter, uint32_t by)
{
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(by) : "memory");
}

PTX_FN uint32_t counter_load(const uint32_t *counter)
{
    uint32_t now;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    return now;
}

/* --- Shared memory --- */

PTX_FN uint4 shared_load_16(uint32_t from)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

PTX_FN uint2 shared_load_8(uint32_t from)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
    return v;
}

PTX_FN uint32_t shared_load_4(uint32_t from)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

PTX_FN void shared_store_4(uint32_t to, uint32_t v)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}

PTX_FN void shared_store_16(uint32_t to, uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x), "r"(y), "r"(z),
                 "r"(w)
                 : "memory");
}

/* A number at the same place of another block of the cluster. */
PTX_FN float cluster_load(uint32_t from, uint32_t rank)
{
    float v;
    asm volatile("{.reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %1, %2;\n"
                 "ld.shared::cluster.f32 %0, [remote];}"
                 : "=f"(v)
                 : "r"(from), "r"(rank)
                 : "memory");
    return v;
}

/* Four numbers. */
PTX_FN float4 cluster_load_16(uint32_t from, uint32_t rank)
{
    float4 v;
    asm volatile("{.reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];}"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(from), "r"(rank)
                 : "memory");
    return v;
}

/* Loads if `on` is not 0: predicated, as a branch would part them from the products that they
 * overlap with. Destinations are inputs too: they keep what they have. */
PTX_FN void shared_load_8_if(uint32_t on, uint32_t *v, uint32_t from)
{
    asm volatile("{.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n"
                 "@p ld.shared.v2.u32 {%0, %1}, [%2];}"
                 : "+r"(v[0]), "+r"(v[1])
                 : "r"(from), "r"(on)
                 : "memory");
}

PTX_FN void shared_load_16_if(uint32_t on, uint32_t *v, uint32_t from)
{
    asm volatile("{.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
                 "@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];}"
                 : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3])
                 : "r"(from), "r"(on)
                 : "memory");
}

/* ldmatrix of four matrices (mma.h); `on` is that of the whole warp. */
template <bool TRANS> PTX_FN void load_matrix_x4_if(uint32_t on, uint32_t *v, uint32_t from)
{
    if constexpr (TRANS)
        asm volatile("{.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
                     "@p ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];}"
                     : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3])
                     : "r"(from), "r"(on)
                     : "memory");
    else
        asm volatile("{.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
                     "@p ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];}"
                     : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3])
                     : "r"(from), "r"(on)
                     : "memory");
}

/* Four 8x8 matrices of 16-bit numbers; lane 8 i + j gives the address of row j of matrix i. */
PTX_FN void store_matrix_x4(uint32_t to, uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

PTX_FN void store_matrix_x4_trans(uint32_t to, uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

/* --- wgmma: D[64, N] += A[64, 16] B[16, N] for 16-bit types, by four warps together; of tf32 8 deep ---
 *
 * Operands in shared memory are described by 64-bit descriptors: the address in units of 16 bytes
 * in bits 0-13, two distances ("leading", "stride") in the same units, and the swizzle. Advancing a
 * descriptor by k is an addition to its low word.
 *   no swizzle   8 x 8 core matrices of 128 contiguous bytes (8 rows of 16). K-major: leading =
 *                from one core matrix to the next along K, stride = along M or N.
 *   128 bytes    rows of 128 bytes in groups of 8 (1024 bytes, aligned so). K-major: leading
 *                unused, stride = 1024, a step of 16 along K is 32 bytes. M- or N-major
 *                (trans = 1): stride = 1024, from 8 k to the next 8; leading = from 64 features
 *                to the next 64; a step of 16 along K is 2048 bytes.
 *   64, 32 bytes the same with rows of 64 or 32 bytes, groups of 512 or 256. */
enum { SWIZZLE_NONE = 0, SWIZZLE_128 = 1, SWIZZLE_64 = 2, SWIZZLE_32 = 3 };

/* Halves of a descriptor; the cluster's window address is cut to the block's own. */
PTX_FN uint32_t descriptor_low(uint32_t address, uint32_t leading)
{
    return (address & 0x3ffff) >> 4 | (leading >> 4) << 16;
}

PTX_FN constexpr uint32_t descriptor_high(uint32_t stride, uint32_t swizzle)
{
    return stride >> 4 | swizzle << 30;
}

PTX_FN uint64_t descriptor(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

/* Before the first wgmma of a batch, and after other writes to its registers. */
PTX_FN void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

PTX_FN void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most N groups are unfinished. */
template <int N> PTX_FN void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* After a wait: keeps the compiler from moving reads of the accumulators before it. */
template <int N> PTX_FN void wgmma_settle(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* Lists of accumulator registers as text and as operands. */
#define WGMMA_T8  "%0, %1, %2, %3"
#define WGMMA_T16 WGMMA_T8 ", %4, %5, %6, %7"
#define WGMMA_T32 WGMMA_T16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_T64                                                                                  \
    WGMMA_T32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_T96                                                                                  \
    WGMMA_T64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_T128                                                                                 \
    WGMMA_T96 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_T192                                                                                 \
    WGMMA_T128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, "     \
               "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, "  \
               "%95"
#define WGMMA_T256                                                                                 \
    WGMMA_T192 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, "      \
               "%109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, "    \
               "%122, %123, %124, %125, %126, %127"
#define WGMMA_D4(i)   "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define WGMMA_D8      WGMMA_D4(0)
#define WGMMA_D8X(i)  WGMMA_D4(i), WGMMA_D4((i) + 4)
#define WGMMA_D16     WGMMA_D8X(0)
#define WGMMA_D16X(i) WGMMA_D8X(i), WGMMA_D8X((i) + 8)
#define WGMMA_D32     WGMMA_D16X(0)
#define WGMMA_D64     WGMMA_D32, WGMMA_D16X(16)
#define WGMMA_D96     WGMMA_D64, WGMMA_D16X(32)
#define WGMMA_D128    WGMMA_D96, WGMMA_D16X(48)
#define WGMMA_D192    WGMMA_D128, WGMMA_D16X(64), WGMMA_D16X(80)
#define WGMMA_D256    WGMMA_D192, WGMMA_D16X(96), WGMMA_D16X(112)

#define WGMMA_SS_ASM(N, A, B, P, TA, TB)                                                           \
    asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\n"                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WGMMA_T##N           \
                 "}, %" A ", %" B ", p, 1, 1, %" TA ", %" TB ";}" TYPE_MARK                        \
                 : WGMMA_D##N                                                                      \
                 : "l"(a), "l"(b), "r"(accumulate), "n"(TRANS_A), "n"(TRANS_B))
#define WGMMA_RS_ASM(N, A0, A1, A2, A3, B, P, TB)                                                  \
    asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\n"                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WGMMA_T##N           \
                 "}, {%" A0 ", %" A1 ", %" A2 ", %" A3 "}, %" B ", p, 1, 1, %" TB ";}" TYPE_MARK   \
                 : WGMMA_D##N                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate),            \
                   "n"(TRANS_B))

template <int TYPE, int N, int TRANS_A, int TRANS_B> struct wgmma_of;

/* One size: the numbers of the operands that follow the N / 2 accumulators. */
#define WGMMA_SIZE(N, P0, P1, P2, P3, P4, P5, P6)                                                  \
    template <int TRANS_A, int TRANS_B> struct wgmma_of<WGMMA_HALVES, N, TRANS_A, TRANS_B> {       \
        PTX_FN void ss(float *d, uint64_t a, uint64_t b, int accumulate)                           \
        {                                                                                          \
            WGMMA_SS_ASM(N, P0, P1, P2, P3, P4);                                                   \
        }                                                                                          \
        PTX_FN void rs(float *d, const uint32_t *a, uint64_t b, int accumulate)                    \
        {                                                                                          \
            WGMMA_RS_ASM(N, P0, P1, P2, P3, P4, P5, P6);                                           \
        }                                                                                          \
    };
WGMMA_SIZE(8, "4", "5", "6", "7", "8", "9", "10")
WGMMA_SIZE(16, "8", "9", "10", "11", "12", "13", "14")
WGMMA_SIZE(32, "16", "17", "18", "19", "20", "21", "22")
WGMMA_SIZE(64, "32", "33", "34", "35", "36", "37", "38")
WGMMA_SIZE(96, "48", "49", "50", "51", "52", "53", "54")
WGMMA_SIZE(128, "64", "65", "66", "67", "68", "69", "70")
WGMMA_SIZE(192, "96", "97", "98", "99", "100", "101", "102")
WGMMA_SIZE(256, "128", "129", "130", "131", "132", "133", "134")
#undef WGMMA_SIZE
/* Of tf32 operands lie along K. */
#define WGMMA_TF32_SIZE(N, P0, P1, P2, P3, P4, P5)                                                 \
    template <> struct wgmma_of<WGMMA_TF32, N, 0, 0> {                                             \
        PTX_FN void ss(float *d, uint64_t a, uint64_t b, int accumulate)                           \
        {                                                                                          \
            asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %" P2 ", 0;\n"                            \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" WGMMA_T##N    \
                         "}, %" P0 ", %" P1 ", p, 1, 1;}"                                          \
                         : WGMMA_D##N                                                              \
                         : "l"(a), "l"(b), "r"(accumulate));                                       \
        }                                                                                          \
        PTX_FN void rs(float *d, const uint32_t *a, uint64_t b, int accumulate)                    \
        {                                                                                          \
            asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %" P5 ", 0;\n"                            \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" WGMMA_T##N    \
                         "}, {%" P0 ", %" P1 ", %" P2 ", %" P3 "}, %" P4 ", p, 1, 1;}"             \
                         : WGMMA_D##N                                                              \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));   \
        }                                                                                          \
    };
WGMMA_TF32_SIZE(32, "16", "17", "18", "19", "20", "21")
WGMMA_TF32_SIZE(64, "32", "33", "34", "35", "36", "37")
WGMMA_TF32_SIZE(128, "64", "65", "66", "67", "68", "69")
WGMMA_TF32_SIZE(192, "96", "97", "98", "99", "100", "101")
WGMMA_TF32_SIZE(256, "128", "129", "130", "131", "132", "133")
#undef WGMMA_TF32_SIZE
#undef WGMMA_SS_ASM
#undef WGMMA_RS_ASM

/* Both operands in shared memory. d: N / 2 registers, of which number 4 j + 2 h + e of thread t
 * (of 128) is row 16 (t / 32) + 8 h + t % 32 / 4, column 8 j + 2 (t % 4) + e. trans: the operand is
 * M- or N-major. accumulate = 0 overwrites d. */
template <int TYPE, int N, int TRANS_A, int TRANS_B>
PTX_FN void wgmma_ss(float *d, uint64_t a, uint64_t b, int accumulate)
{
    wgmma_of<TYPE, N, TRANS_A, TRANS_B>::ss(d, a, b, accumulate);
}

/* A in registers: four, as for mma.sync.m16n8k16 or of tf32 m16n8k8, warp w having rows 16 w to
 * 16 w + 15. */
template <int TYPE, int N, int TRANS_B>
PTX_FN void wgmma_rs(float *d, const uint32_t *a, uint64_t b, int accumulate)
{
    wgmma_of<TYPE, N, 0, TRANS_B>::rs(d, a, b, accumulate);
}

#endif
