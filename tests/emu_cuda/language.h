/* CUDA C++ on the host, as far as tuned kernels use it. Included before a kernel's file. */
#ifndef BSK_EMU_CUDA_LANGUAGE_H
#define BSK_EMU_CUDA_LANGUAGE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>
#include <utility>

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>

#include <backends/cuda/library.h>

#include "gpu.h"

/* Some files have parts for nvcc only. */
#define __CUDACC__

#undef __device__
#undef __global__
#undef __shared__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __device__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__    __attribute__((noinline))

/* What kernels.py finds kernels by; it takes __launch_bounds__ out. */
#define __global__ __attribute__((__used__))

/* A static array is the thread's: all lanes run on one. A dynamic one is reached by a pointer. The
 * names are those that kernels use. */
#define __shared__ thread_local
#define shared     (*gpu_dynamic_shared)
#define pool       (*gpu_dynamic_shared)

#define threadIdx gpu_now.thread
#define blockIdx  gpu_now.block
#define blockDim  gpu_now.threads
#define gridDim   gpu_now.blocks

/* --- Kernels as table rows --- */

constexpr int gpu_bound(int threads, int = 1)
{
    return threads;
}

constexpr int gpu_blocks(int, int blocks = 1)
{
    return blocks;
}

template <auto F> struct gpu_caller;
template <class... P, void (*F)(P...)> struct gpu_caller<F> {
    template <size_t... i> static void go(void **arguments, std::index_sequence<i...>)
    {
        F(*(P *)arguments[i]...);
    }
    static void call(void **arguments)
    {
        go(arguments, std::index_sequence_for<P...>());
    }
};

/* --- Lanes that meet --- */

inline void __syncthreads()
{
    gpu_barrier(0, 0, false);
}

inline void __syncwarp(unsigned mask = ~0u)
{
    if (gpu_gather("__syncwarp", mask, nullptr))
        gpu_release();
}

/* Each lane's value, and the lane whose it asks for. */
template <class V> struct gpu_offer {
    V value, result;
    int from;
};

template <class V> V gpu_exchange(const char *what, unsigned mask, V value, int from)
{
    static_assert(sizeof(V) == 4 || sizeof(V) == 8, "what the shuffles take");
    gpu_offer<V> mine = {value, value, from};
    if (gpu_gather(what, mask, &mine)) {
        void **slots = gpu_slots();
        for (int i = 0; i < GPU_LANES; i++)
            if (mask >> i & 1) {
                auto *offer = (gpu_offer<V> *)slots[i];
                /* What a lane that takes no part would give is undefined: a NaN shows. */
                if (mask >> offer->from & 1)
                    offer->result = ((const gpu_offer<V> *)slots[offer->from])->value;
                else
                    memset((void *)&offer->result, 0xff, sizeof offer->result);
            }
        gpu_release();
    }
    return mine.result;
}

template <class V> V __shfl_sync(unsigned mask, V value, int lane, int width = 32)
{
    const int self = (int)(threadIdx.x % 32);
    return gpu_exchange("__shfl_sync", mask, value, self / width * width + (lane & (width - 1)));
}

template <class V> V __shfl_xor_sync(unsigned mask, V value, int by, int width = 32)
{
    const int self = (int)(threadIdx.x % 32), from = self ^ by;
    return gpu_exchange("__shfl_xor_sync", mask, value, from / width <= self / width ? from : self);
}

template <class V> V __shfl_down_sync(unsigned mask, V value, unsigned by, int width = 32)
{
    const int self = (int)(threadIdx.x % 32), from = self + (int)by;
    return gpu_exchange("__shfl_down_sync", mask, value,
                        from / width == self / width ? from : self);
}

template <class V> V __shfl_up_sync(unsigned mask, V value, unsigned by, int width = 32)
{
    const int self = (int)(threadIdx.x % 32), from = self - (int)by;
    return gpu_exchange("__shfl_up_sync", mask, value, from >= self / width * width ? from : self);
}

struct gpu_vote {
    bool value;
    unsigned result;
};

inline unsigned __ballot_sync(unsigned mask, bool value)
{
    gpu_vote mine = {value, 0};
    if (gpu_gather("a vote", mask, &mine)) {
        void **slots = gpu_slots();
        unsigned all = 0;
        for (int i = 0; i < GPU_LANES; i++)
            if (mask >> i & 1)
                all |= (unsigned)((const gpu_vote *)slots[i])->value << i;
        for (int i = 0; i < GPU_LANES; i++)
            if (mask >> i & 1)
                ((gpu_vote *)slots[i])->result = all;
        gpu_release();
    }
    return mine.result;
}

/* The words of all lanes, combined. */
inline unsigned __reduce_or_sync(unsigned mask, unsigned value)
{
    unsigned all = value;
    for (int by = 1; by < GPU_LANES; by *= 2)
        all |= __shfl_xor_sync(mask, all, by);
    return all;
}

inline bool __any_sync(unsigned mask, bool value)
{
    return __ballot_sync(mask, value) != 0;
}

inline bool __all_sync(unsigned mask, bool value)
{
    return __ballot_sync(mask, value) == mask;
}

/* --- Memory --- */

template <class V> V __ldg(const V *p)
{
    return *p;
}

template <class V> V __ldcg(const V *p)
{
    return *p;
}

template <class V> void __stcg(V *p, V v)
{
    *p = v;
}

/* Only one lane runs at a time. */
template <class V, class W> V atomicAdd(V *p, W by)
{
    const V before = *p;
    *p = before + (V)by;
    return before;
}

template <class V, class W> V atomicMax(V *p, W other)
{
    const V before = *p;
    *p = before < (V)other ? (V)other : before;
    return before;
}

inline void __threadfence()
{
}

inline void __threadfence_block()
{
}

inline void __nanosleep(unsigned)
{
    gpu_pause();
}

inline size_t __cvta_generic_to_shared(const void *p)
{
    return gpu_shared_address(p);
}

/* --- Arithmetic --- */

template <class To, class From> To gpu_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

inline float __uint_as_float(unsigned v)
{
    return gpu_bits<float>(v);
}

inline unsigned __float_as_uint(float v)
{
    return gpu_bits<unsigned>(v);
}

inline float __int_as_float(int v)
{
    return gpu_bits<float>(v);
}

inline int __float_as_int(float v)
{
    return gpu_bits<int>(v);
}

inline double __longlong_as_double(long long v)
{
    return gpu_bits<double>(v);
}

inline long long __double_as_longlong(double v)
{
    return gpu_bits<long long>(v);
}

inline int __ffs(int v)
{
    return __builtin_ffs(v);
}

inline int __popc(unsigned v)
{
    return __builtin_popcount(v);
}

inline int __clz(int v)
{
    return v ? __builtin_clz((unsigned)v) : 32;
}

inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    const uint64_t both = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++)
        result |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}

inline float __fdividef(float a, float b)
{
    return a / b;
}

inline float __expf(float x)
{
    return expf(x);
}

inline float __logf(float x)
{
    return logf(x);
}

inline float __log2f(float x)
{
    return log2f(x);
}

inline float __frcp_rn(float x)
{
    return 1 / x;
}

inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}

inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}

template <class A, class B> typename std::common_type<A, B>::type min(A a, B b)
{
    return a < b ? a : b;
}

template <class A, class B> typename std::common_type<A, B>::type max(A a, B b)
{
    return a > b ? a : b;
}

using std::isfinite;
using std::isinf;
using std::isnan;

#endif
