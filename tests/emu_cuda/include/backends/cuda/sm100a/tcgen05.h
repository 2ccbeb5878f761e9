/* The functions of the backend's header of this name, on the emulator. */
#ifndef BSKI_CUDA_SM100A_TCGEN05_H
#define BSKI_CUDA_SM100A_TCGEN05_H

#include <backends/cuda/ptx.h>
#include <backends/cuda/sm100a/descriptor.h>

PTX_FN void tensor_memory_take(uint32_t to, uint32_t columns)
{
    gpu_columns_take(to, columns);
    gpu_columns_relinquish();
}

PTX_FN void tensor_memory_give(uint32_t address, uint32_t columns)
{
    gpu_columns_give(address, columns);
}

template <int N> PTX_FN void tensor_memory_load(uint32_t address, float (&v)[N])
{
    static_assert(N == 8 || N == 16 || N == 32, "what the backend's header has");
    uint32_t bits[N];
    gpu_columns_load(address, bits, N);
    memcpy(v, bits, sizeof v);
}

template <int N> PTX_FN void tensor_memory_store(uint32_t address, const uint32_t (&v)[N])
{
    static_assert(N == 8 || N == 16 || N == 32, "what the backend's header has");
    gpu_columns_store(address, v, N);
}

PTX_FN void tensor_memory_store_wait(void)
{
    gpu_columns_store_wait();
}

PTX_FN void tensor_fence_before(void)
{
    gpu_tensor_fence(false);
}

PTX_FN void tensor_fence_after(void)
{
    gpu_tensor_fence(true);
}

PTX_FN void tensor_product(uint32_t d, uint64_t a, uint64_t b, uint32_t kind, bool accumulate)
{
    const gpu_tensor_op op = {d, kind, a, b, false, accumulate};
    gpu_tensor_multiply(&op);
}

PTX_FN void tensor_product_from_memory(uint32_t d, uint32_t a, uint64_t b, uint32_t kind,
                                       bool accumulate)
{
    const gpu_tensor_op op = {d, kind, a, b, true, accumulate};
    gpu_tensor_multiply(&op);
}

PTX_FN void tensor_commit(uint32_t bar)
{
    gpu_tensor_commit(bar);
}

#endif
