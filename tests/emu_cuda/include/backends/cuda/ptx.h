/* The functions of the backend's header of this name, on the emulator. */
#ifndef BSKI_CUDA_PTX_H
#define BSKI_CUDA_PTX_H

#include <cuda.h> /* CUtensorMap */
#include <stdint.h>

#include <backends/cuda/approx.h>
#include <backends/cuda/halves.h>

#define PTX_FN static inline __attribute__((unused))

PTX_FN uint32_t shared_address(const void *p)
{
    return gpu_shared_address(p);
}

/* --- Barriers in shared memory --- */

PTX_FN void mbar_init(uint32_t bar, uint32_t arrivals)
{
    gpu_mbar_init(bar, arrivals);
}

PTX_FN void mbar_init_fence(void)
{
}

PTX_FN void mbar_arrive(uint32_t bar)
{
    gpu_mbar_arrive(bar, 0);
}

PTX_FN void mbar_expect(uint32_t bar, uint32_t bytes)
{
    gpu_mbar_arrive(bar, bytes);
}

PTX_FN void mbar_arrive_remote(uint32_t bar, uint32_t rank)
{
    gpu_mbar_arrive_remote(bar, rank);
}

PTX_FN bool mbar_try_wait(uint32_t bar, uint32_t parity)
{
    return gpu_mbar_try_wait(bar, parity);
}

PTX_FN bool mbar_try_wait_long(uint32_t bar, uint32_t parity)
{
    return gpu_mbar_try_wait(bar, parity);
}

PTX_FN bool mbar_wait_for(uint32_t bar, uint32_t parity, uint32_t)
{
    return gpu_mbar_try_wait(bar, parity);
}

PTX_FN void mbar_wait(uint32_t bar, uint32_t parity)
{
    gpu_mbar_wait(bar, parity);
}

/* --- Bulk copies --- */

PTX_FN void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t bar)
{
    gpu_bulk_load(to, from, bytes, bar, 0);
}

PTX_FN void bulk_load_multicast(uint32_t to, const void *from, uint32_t bytes, uint32_t bar,
                                uint16_t mask)
{
    gpu_bulk_load(to, from, bytes, bar, mask);
}

PTX_FN void bulk_store(void *to, uint32_t from, uint32_t bytes)
{
    gpu_bulk_store(to, from, bytes);
}

/* --- Tensor copies --- */

PTX_FN void tensor_map_prefetch(const CUtensorMap *)
{
}

PTX_FN void tensor_load_2d(uint32_t to, const CUtensorMap *map, int x, int y, uint32_t bar)
{
    const int at[] = {x, y};
    gpu_tensor_load(to, map, 2, at, bar, 0);
}

PTX_FN void tensor_load_3d(uint32_t to, const CUtensorMap *map, int x, int y, int z, uint32_t bar)
{
    const int at[] = {x, y, z};
    gpu_tensor_load(to, map, 3, at, bar, 0);
}

PTX_FN void tensor_load_5d(uint32_t to, const CUtensorMap *map, int x, int y, int z, int w, int u,
                           uint32_t bar)
{
    const int at[] = {x, y, z, w, u};
    gpu_tensor_load(to, map, 5, at, bar, 0);
}

PTX_FN void tensor_load_2d_multicast(uint32_t to, const CUtensorMap *map, int x, int y,
                                     uint32_t bar, uint16_t mask)
{
    const int at[] = {x, y};
    gpu_tensor_load(to, map, 2, at, bar, mask);
}

PTX_FN void tensor_load_3d_multicast(uint32_t to, const CUtensorMap *map, int x, int y, int z,
                                     uint32_t bar, uint16_t mask)
{
    const int at[] = {x, y, z};
    gpu_tensor_load(to, map, 3, at, bar, mask);
}

PTX_FN void tensor_store_2d(const CUtensorMap *map, int x, int y, uint32_t from)
{
    const int at[] = {x, y};
    gpu_tensor_store(map, 2, at, from);
}

PTX_FN void tensor_store_3d(const CUtensorMap *map, int x, int y, int z, uint32_t from)
{
    const int at[] = {x, y, z};
    gpu_tensor_store(map, 3, at, from);
}

PTX_FN void store_commit(void)
{
    gpu_store_commit();
}

template <int N> PTX_FN void store_wait_read(void)
{
    gpu_store_wait(N);
}

template <int N> PTX_FN void store_wait(void)
{
    gpu_store_wait(N);
}

PTX_FN void async_fence(void)
{
}

/* --- Blocks, clusters, registers --- */

PTX_FN uint32_t lane_number(void)
{
    return threadIdx.x % 32;
}

PTX_FN void named_barrier(uint32_t id, uint32_t threads)
{
    gpu_barrier(id, threads, false);
}

PTX_FN void named_barrier_arrive(uint32_t id, uint32_t threads)
{
    gpu_barrier_arrive(id, threads);
}

PTX_FN bool named_barrier_any(uint32_t id, uint32_t threads, bool condition)
{
    return gpu_barrier(id, threads, condition);
}

PTX_FN uint32_t cluster_rank(void)
{
    return gpu_cluster_rank();
}

PTX_FN void cluster_sync(void)
{
    gpu_cluster_sync();
}

template <int N> PTX_FN void registers_raise(void)
{
    gpu_registers(N, true);
}

template <int N> PTX_FN void registers_lower(void)
{
    gpu_registers(N, false);
}

/* --- Arithmetic --- */

PTX_FN float hidden_zero(void)
{
    return 0;
}

PTX_FN uint32_t to_tf32(uint32_t bits)
{
    return gpu_tf32(bits);
}

PTX_FN uint32_t e4m3_to_f16(uint16_t two)
{
    return gpu_bits<uint32_t>(
        __floats2half2_rn(gpu_element(GPU_E4M3, two, 0), gpu_element(GPU_E4M3, two, 1)));
}

/* --- Global memory --- */

template <int WIDTH, bool KEEP> PTX_FN void load_global(uint32_t *v, const void *from)
{
    gpu_global_check(from, 2 * WIDTH);
    if (WIDTH == 1)
        v[0] = 0;
    memcpy(v, from, 2 * WIDTH);
}

PTX_FN void store_global_16(void *to, uint4 v)
{
    gpu_global_check(to, sizeof v);
    memcpy(to, &v, sizeof v);
}

PTX_FN void prefetch_global(const void *)
{
}

PTX_FN void counter_add_one(uint32_t *counter)
{
    ++*counter;
}

PTX_FN void counter_add(uint32_t *counter, uint32_t by)
{
    *counter += by;
}

PTX_FN uint32_t counter_load(const uint32_t *counter)
{
    return *(const volatile uint32_t *)counter;
}

/* --- Shared memory --- */

template <class V> PTX_FN V shared_load(uint32_t from)
{
    V v;
    memcpy(&v, gpu_shared(from, sizeof v, sizeof v), sizeof v);
    return v;
}

template <class V> PTX_FN void shared_store(uint32_t to, V v)
{
    memcpy(gpu_shared(to, sizeof v, sizeof v), &v, sizeof v);
}

PTX_FN uint4 shared_load_16(uint32_t from)
{
    return shared_load<uint4>(from);
}

PTX_FN uint2 shared_load_8(uint32_t from)
{
    return shared_load<uint2>(from);
}

PTX_FN uint32_t shared_load_4(uint32_t from)
{
    return shared_load<uint32_t>(from);
}

PTX_FN void shared_store_4(uint32_t to, uint32_t v)
{
    shared_store(to, v);
}

PTX_FN void shared_store_16(uint32_t to, uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    shared_store(to, make_uint4(x, y, z, w));
}

PTX_FN float cluster_load(uint32_t from, uint32_t rank)
{
    float v;
    memcpy(&v, gpu_shared_of(rank, from, sizeof v, sizeof v), sizeof v);
    return v;
}

PTX_FN float4 cluster_load_16(uint32_t from, uint32_t rank)
{
    float4 v;
    memcpy(&v, gpu_shared_of(rank, from, sizeof v, sizeof v), sizeof v);
    return v;
}

PTX_FN void shared_load_8_if(uint32_t on, uint32_t *v, uint32_t from)
{
    if (on)
        memcpy(v, gpu_shared(from, 8, 8), 8);
}

PTX_FN void shared_load_16_if(uint32_t on, uint32_t *v, uint32_t from)
{
    if (on)
        memcpy(v, gpu_shared(from, 16, 16), 16);
}

template <bool TRANS> PTX_FN void load_matrix_x4_if(uint32_t on, uint32_t *v, uint32_t from)
{
    if (on)
        gpu_load_matrix(v, from, 4, TRANS);
}

PTX_FN void store_matrix_x4(uint32_t to, uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    const uint32_t v[] = {x, y, z, w};
    gpu_store_matrix(v, to, 4, false);
}

PTX_FN void store_matrix_x4_trans(uint32_t to, uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    const uint32_t v[] = {x, y, z, w};
    gpu_store_matrix(v, to, 4, true);
}

/* --- wgmma --- */

enum { SWIZZLE_NONE = 0, SWIZZLE_128 = 1, SWIZZLE_64 = 2, SWIZZLE_32 = 3 };

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

PTX_FN void wgmma_fence(void)
{
    gpu_wgmma_fence();
}

PTX_FN void wgmma_commit(void)
{
    gpu_wgmma_commit();
}

template <int N> PTX_FN void wgmma_wait(void)
{
    gpu_wgmma_wait(N);
}

template <int N> PTX_FN void wgmma_settle(float (&)[N])
{
}

template <int TYPE> PTX_FN constexpr gpu_type wgmma_type(void)
{
    return TYPE == WGMMA_TF32 ? GPU_TF32 : TYPE == WGMMA_BF16 ? GPU_BF16 : GPU_F16;
}

template <int TYPE, int N, int TRANS_A, int TRANS_B>
PTX_FN void wgmma_ss(float *d, uint64_t a, uint64_t b, int accumulate)
{
    static_assert(N % 8 == 0 && N >= 8 && N <= 256, "what the instruction takes");
    static_assert(TYPE != WGMMA_TF32 || (!TRANS_A && !TRANS_B), "K-major");
    const gpu_product p = {wgmma_type<TYPE>(), N, TRANS_A, TRANS_B, accumulate, a, b};
    gpu_wgmma(&p, d, nullptr);
}

template <int TYPE, int N, int TRANS_B>
PTX_FN void wgmma_rs(float *d, const uint32_t *a, uint64_t b, int accumulate)
{
    static_assert(N % 8 == 0 && N >= 8 && N <= 256, "what the instruction takes");
    static_assert(TYPE != WGMMA_TF32 || !TRANS_B, "K-major");
    const gpu_product p = {wgmma_type<TYPE>(), N, 0, TRANS_B, accumulate, 0, b};
    gpu_wgmma(&p, d, a);
}

#endif
