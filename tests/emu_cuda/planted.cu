#include <backends/cuda/mma.h>
#include <backends/cuda/ptx.h>
#include <backends/cuda/sm100a/tcgen05.h>

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

enum { TENSOR_SUMS = PLANTED_SIZE, TENSOR_TAKEN = 2 * TENSOR_SUMS, TENSOR_BYTES = 64 * 128 };

/* Where things lie in shared memory: a twice, b, barriers and the address of columns. */
struct tensor_places {
    uint32_t a, b, full, first, second, columns;
};

/* By thread 32: barriers, and both matrices as they lie. */
PTX_FN void planted_copy(const tensor_places *at, const CUtensorMap *map_a,
                         const CUtensorMap *map_b)
{
    mbar_init(at->full, 1);
    mbar_init(at->first, 1);
    mbar_init(at->second, 1);
    mbar_init_fence();
    mbar_expect(at->full, 3 * TENSOR_BYTES);
    tensor_load_2d(at->a, map_a, 0, 0, at->full);
    tensor_load_2d(at->a + TENSOR_BYTES, map_a, 0, 0, at->full);
    tensor_load_2d(at->b, map_b, 0, 0, at->full);
}

/* A row of a, as it was copied, into columns of the thread's lane. */
PTX_FN void planted_row(const tensor_places *at, uint32_t to, int row, int fault)
{
    uint32_t words[PLANTED_SIZE / 2];
    for (int i = 0; i < PLANTED_SIZE / 8; i++) {
        const uint4 v = shared_load_16(at->a + row * 128 + (i ^ row % 8) * 16);
        words[4 * i] = v.x;
        words[4 * i + 1] = v.y;
        words[4 * i + 2] = v.z;
        words[4 * i + 3] = v.w;
    }
    tensor_memory_store(to, words);
    if (fault != NO_COLUMNS_WAIT)
        tensor_memory_store_wait();
    if (fault != NO_FENCE_BEFORE)
        tensor_fence_before();
}

PTX_FN uint32_t planted_kind(int rows, bool m_major, int fault)
{
    return tensor_kind(true, m_major, false, rows, PLANTED_SIZE - (fault == ODD_COLUMNS ? 8 : 0)) |
           (fault == RESERVED_KIND ? 1u << 23 : 0);
}

/* a transposed(b), both in shared memory. */
PTX_FN void planted_shared(const tensor_places *at, uint32_t sums, int rows, int fault)
{
    const uint32_t kind = planted_kind(rows, fault == WRONG_MAJOR, fault);
    const uint64_t wrong = (uint64_t)(fault == RESERVED_OPERAND) << 46;
    for (int k = 0; k < PLANTED_SIZE / 16; k++)
        tensor_product(sums + (fault == OTHER_SUMS ? 8 * k : 0), tensor_operand(at->a + k * 32, 16),
                       tensor_operand(at->b + k * 32, 16) ^ wrong, kind, k > 0);
    if (fault == SUMS_READ)
        tensor_product_from_memory(sums + TENSOR_SUMS, sums, tensor_operand(at->b, 16), kind,
                                   false);
    if (fault != NO_COMMIT)
        tensor_commit(at->first);
}

/* The same once more, with a in tensor memory. */
PTX_FN void planted_memory(const tensor_places *at, uint32_t sums, int rows, int fault)
{
    const uint32_t kind = planted_kind(rows, false, fault);
    tensor_fence_after();
    for (int k = 0; k < PLANTED_SIZE / 16; k++)
        tensor_product_from_memory(sums, sums + TENSOR_SUMS + k * 8,
                                   tensor_operand(at->b + k * 32, 16), kind, true);
    tensor_commit(at->second);
}

/* Halves of the sums: of 64 rows a warp has 16, else those of warps 2 and 3 are there twice. */
PTX_FN void planted_result(float *y, uint32_t from, int rows, int row)
{
    for (int part = 0; part < 2; part++) {
        float v[PLANTED_SIZE / 2];
        tensor_memory_load(from + part * PLANTED_SIZE / 2, v);
        if (rows == 64 ? threadIdx.x % 32 < 16 : part == (int)threadIdx.x / 64)
            for (int i = 0; i < PLANTED_SIZE / 2; i++)
                y[row * PLANTED_SIZE + part * PLANTED_SIZE / 2 + i] = v[i] / 2;
    }
}

PTX_FN void planted_columns(const tensor_places *at, uint32_t taken, const planted_arg *a, int rows)
{
    const int fault = a->fault, thread = threadIdx.x, warp = thread / 32;
    const int row = rows == 64 ? warp * 16 + thread % 16 : thread % 64;
    const uint32_t sums = taken + (fault == NOT_TAKEN ? TENSOR_TAKEN : 0);
    const uint32_t own = sums + ((uint32_t)warp * 32 << 16);
    mbar_wait(at->full, 0);
    if (thread == 64 || (warp == 2 && fault == WHOLE_WARP))
        planted_shared(at, sums, rows, fault);
    if (fault == EARLY_OPERAND_STORE)
        shared_store_16(at->a + thread * 16, 0, 0, 0, 0);
    __syncwarp();
    if (fault == EARLY_COLUMNS && warp == 2)
        planted_result(a->y, own, rows, row);
    if (fault == EARLY_COLUMNS_STORE && warp == 2)
        planted_row(at, own, row, fault);
    mbar_wait(at->first, 0);
    planted_row(at, own + TENSOR_SUMS, row, fault);
    __syncthreads();
    if (thread == 64)
        planted_memory(at, sums, rows, fault);
    __syncwarp();
    mbar_wait(at->second, 0);
    if (fault != NO_FENCE_AFTER)
        tensor_fence_after();
    planted_result(a->y, fault == OTHER_LANES ? own ^ 32u << 16 : own, rows, row);
}

/* y = a transposed(b) as in planted_product, as half of what tcgen05 adds up twice: with a from
 * shared memory and from tensor memory. */
#define PLANTED_TENSOR(name, rows)                                                                 \
    extern "C" __global__ void __launch_bounds__(128, 1)                                           \
        name(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, \
             const __grid_constant__ planted_arg a)                                                \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        planted_tensor_rows(shared_address(shared), &map_a, &map_b, &a, rows);                     \
    }

PTX_FN void planted_tensor_rows(uint32_t base, const CUtensorMap *map_a, const CUtensorMap *map_b,
                                const planted_arg *a, int rows)
{
    const uint32_t end = base + 3 * TENSOR_BYTES;
    const tensor_places at = {base, base + 2 * TENSOR_BYTES, end, end + 8, end + 16, end + 24};
    const int warp = threadIdx.x / 32;
    if (warp == 0)
        tensor_memory_take(at.columns, TENSOR_TAKEN);
    if (warp == 0 && a->fault == TAKEN_LATE)
        tensor_memory_take(at.columns, TENSOR_TAKEN);
    if (threadIdx.x == 32)
        planted_copy(&at, map_a, map_b);
    tensor_fence_before();
    __syncthreads();
    tensor_fence_after();
    const uint32_t taken = shared_load_4(at.columns);
    planted_columns(&at, taken, a, rows);
    __syncthreads();
    if (warp == 0 && a->fault != NOT_GIVEN)
        tensor_memory_give(taken, TENSOR_TAKEN / (a->fault == HALF_GIVEN ? 2 : 1));
}
PLANTED_TENSOR(planted_tensor, 128)
PLANTED_TENSOR(planted_tensor_64, 64)
