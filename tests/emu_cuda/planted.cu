#include <backends/cuda/mma.h>
#include <backends/cuda/ptx.h>

#include "planted.h"

/* y[i] = x[i + 3], through shared memory. */
extern "C" __global__ void __launch_bounds__(PLANTED_LANES)
    planted_lanes(const __grid_constant__ planted_arg a)
{
    extern __shared__ __align__(1024) char shared[];
    const uint32_t base = shared_address(shared);
    const int i = threadIdx.x, lane = i % 32;
    cp_async_ca<4>(base + i * 4, a.fault == OUT_OF_MEMORY ? a.x + PLANTED_LANES + i : a.x + i, 4);
    cp_async_commit();
    if (a.fault != NO_ASYNC_WAIT)
        cp_async_wait<0>();
    if (a.fault == HALF_BARRIER && i < 32)
        named_barrier(1, PLANTED_LANES);
    if (a.fault == OUT_OF_BOUNDS)
        shared_store_4(base + (i + 1) * 4, 0);
    if (a.fault == PAST_SHARED)
        shared[i + 4096] = 0;
    if (a.fault == PAST_MEMORY)
        a.y[PLANTED_SIZE * PLANTED_SIZE + i] = 0;
    if (a.fault == MISALIGNED)
        shared_load_16(base + i * 4);
    if (a.fault == WRONG_MASK)
        __shfl_sync(0xffff0000u, i, 0);
    if (a.fault == DIVERGENT) {
        if (lane < 16)
            __syncwarp();
        else
            __shfl_sync(~0u, i, 0);
    }
    if (a.fault == REGISTERS)
        registers_raise<256>();
    if (a.fault != NO_BARRIER)
        __syncthreads();
    a.y[i] = __uint_as_float(load_shared(base + (i + 3) % PLANTED_LANES * 4));
}

/* y = a transposed(b), of 64 x 64 numbers each, by tensor copies and wgmma. */
extern "C" __global__ void __launch_bounds__(128, 1)
    planted_product(const __grid_constant__ CUtensorMap map_a,
                    const __grid_constant__ CUtensorMap map_b,
                    const __grid_constant__ planted_arg a)
{
    extern __shared__ __align__(1024) char shared[];
    enum { BYTES = PLANTED_SIZE * PLANTED_SIZE * 2, LANES = 128 };
    const uint32_t base = shared_address(shared), bar = base + 2 * BYTES;
    const int fault = a.fault, thread = threadIdx.x;
    if (thread == 0 && fault != NO_INIT) {
        mbar_init(bar, 1);
        mbar_init_fence();
    }
    __syncthreads();
    if (thread == 0) {
        mbar_expect(bar, 2 * BYTES + (fault == MANY_BYTES ? 16 : fault == FEW_BYTES ? -16 : 0));
        tensor_load_2d(base + (fault == MISPLACED ? 64 : 0), &map_a, 0, 0, bar);
        tensor_load_2d(base + BYTES, &map_b, 0, 0, bar);
    }
    if (fault != NO_COPY_WAIT)
        mbar_wait(bar, 0);
    const uint32_t high = descriptor_high(fault == WRONG_STRIDE ? 512 : 1024,
                                          fault == UNSWIZZLED ? SWIZZLE_NONE : SWIZZLE_128);
    const uint32_t first = descriptor_low(base, 16), second = descriptor_low(base + BYTES, 16);
    float d[PLANTED_SIZE / 2], early = 0;
    for (int i = 0; i < PLANTED_SIZE / 2; i++)
        d[i] = 0;
    if (fault != NO_FENCE)
        wgmma_fence();
    for (int k = 0; k < PLANTED_SIZE / 16; k++)
        wgmma_ss<WGMMA_BF16, PLANTED_SIZE, 0, 0>(
            d, descriptor(first + k * 2 + (fault == LANES_DIFFER ? thread % 2 : 0), high),
            descriptor(second + k * 2, high), 1);
    wgmma_commit();
    if (fault == EARLY_READ)
        early = d[0];
    if (fault == EARLY_STORE)
        shared_store_16(base + thread * 16, 0, 0, 0, 0);
    if (fault != NO_PRODUCT_WAIT)
        wgmma_wait<0>();
    wgmma_settle(d);
    for (int i = 0; i < PLANTED_SIZE / 2; i++) {
        const int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
        a.y[row * PLANTED_SIZE + i / 4 * 8 + thread % 4 * 2 + i % 2] = d[i] + early;
    }
}

/* Two blocks; y of a block is x, which block 0 copies to both and each reads from the other. */
extern "C" __global__ void __launch_bounds__(32, 1)
    planted_cluster(const __grid_constant__ planted_arg a)
{
    extern __shared__ __align__(1024) char shared[];
    enum { BYTES = PLANTED_LANES * 4 };
    const uint32_t base = shared_address(shared), bar = base + BYTES, rank = cluster_rank();
    if (threadIdx.x == 0) {
        mbar_init(bar, 1);
        mbar_init_fence();
    }
    __syncwarp();
    if (a.fault != NO_FIRST_SYNC)
        cluster_sync();
    if (threadIdx.x == 0) {
        mbar_expect(bar, BYTES);
        if (rank == 0)
            bulk_load_multicast(base, a.x, BYTES, bar, a.fault == OTHER_MASK ? 5 : 3);
    }
    __syncwarp();
    mbar_wait(bar, 0);
    cluster_sync(); /* the other has got its part, too */
    for (int i = threadIdx.x; i < PLANTED_LANES; i += 32)
        a.y[rank * PLANTED_LANES + i] = cluster_load(base + i * 4, rank ^ 1);
    if (a.fault != NO_LAST_SYNC)
        cluster_sync();
}

/* y = x, by a bulk store. */
extern "C" __global__ void __launch_bounds__(PLANTED_LANES)
    planted_store(const __grid_constant__ planted_arg a)
{
    extern __shared__ __align__(1024) char shared[];
    const int i = threadIdx.x;
    float *place = (float *)shared;
    place[i] = a.x[i];
    async_fence();
    __syncthreads();
    if (i == 0) {
        bulk_store(a.y, shared_address(shared), PLANTED_LANES * 4);
        store_commit();
        if (a.fault == OVERWRITTEN)
            place[i + 1] = 0;
        if (a.fault != NO_STORE_WAIT)
            store_wait<0>();
    }
}
