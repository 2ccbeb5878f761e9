/* The functions of the backend's header of this name, on the emulator. */
#ifndef BSKI_CUDA_MMA_H
#define BSKI_CUDA_MMA_H

#include <stdint.h>

#include <backends/cuda/halves.h>

#define MMA_DEVICE static inline __attribute__((unused))

MMA_DEVICE uint32_t mma_shared(const void *p)
{
    return gpu_shared_address(p);
}

/* --- Loads --- */

#define MMA_LOAD(count)                                                                            \
    MMA_DEVICE void ldmatrix_x##count(uint32_t *r, uint32_t address)                               \
    {                                                                                              \
        gpu_load_matrix(r, address, count, false);                                                 \
    }                                                                                              \
    MMA_DEVICE void ldmatrix_x##count##_trans(uint32_t *r, uint32_t address)                       \
    {                                                                                              \
        gpu_load_matrix(r, address, count, true);                                                  \
    }
MMA_LOAD(1)
MMA_LOAD(2)
MMA_LOAD(4)
#undef MMA_LOAD

MMA_DEVICE uint32_t movmatrix_trans(uint32_t v)
{
    const int lane = threadIdx.x % 32, from = lane % 4 * 8 + lane / 8;
    const uint32_t low = __shfl_sync(~0u, v, from), high = __shfl_sync(~0u, v, from + 4);
    return lane / 4 % 2 ? low >> 16 | (high & 0xffff0000u) : (low & 0xffff) | high << 16;
}

MMA_DEVICE uint32_t load_shared(uint32_t address)
{
    uint32_t v;
    memcpy(&v, gpu_shared(address, sizeof v, sizeof v), sizeof v);
    return v;
}

MMA_DEVICE void store_shared_16(uint32_t address, const uint32_t *v)
{
    memcpy(gpu_shared(address, 16, 16), v, 16);
}

/* --- Products --- */

template <typename T> MMA_DEVICE void mma_m16n8k16(float *d, const uint32_t *a, const uint32_t *b);
template <typename T> MMA_DEVICE void mma_m16n8k8(float *d, const uint32_t *a, const uint32_t *b);

#define MMA_16(name, type, k, number)                                                              \
    template <> inline void name<type>(float *d, const uint32_t *a, const uint32_t *b)             \
    {                                                                                              \
        gpu_multiply(number, number, k, d, a, b);                                                  \
    }
MMA_16(mma_m16n8k16, __nv_bfloat16, 16, GPU_BF16)
MMA_16(mma_m16n8k16, __half, 16, GPU_F16)
MMA_16(mma_m16n8k8, __nv_bfloat16, 8, GPU_BF16)
MMA_16(mma_m16n8k8, __half, 8, GPU_F16)
#undef MMA_16

MMA_DEVICE void mma_m16n8k8_tf32(float *d, const uint32_t *a, const uint32_t *b)
{
    gpu_multiply(GPU_TF32, GPU_TF32, 8, d, a, b);
}

MMA_DEVICE void mma_m16n8k4_tf32(float *d, const uint32_t *a, const uint32_t *b)
{
    gpu_multiply(GPU_TF32, GPU_TF32, 4, d, a, b);
}

template <bool A_E5M2, bool B_E5M2> struct mma_f8 {
    uint8_t bits;
};

template <typename T> struct mma_f8_types;
template <bool A_E5M2, bool B_E5M2> struct mma_f8_types<mma_f8<A_E5M2, B_E5M2>> {
    static constexpr gpu_type a = A_E5M2 ? GPU_E5M2 : GPU_E4M3, b = B_E5M2 ? GPU_E5M2 : GPU_E4M3;
};

template <typename T> MMA_DEVICE void mma_m16n8k32(float *d, const uint32_t *a, const uint32_t *b)
{
    gpu_multiply(mma_f8_types<T>::a, mma_f8_types<T>::b, 32, d, a, b);
}

MMA_DEVICE uint32_t mma_tf32(float v)
{
    const uint32_t u = __float_as_uint(v), half = 1u << 12;
    return fabsf(v) < __uint_as_float(0x7f7ff000u) ? u + half : v == v ? u : 0x7fffffffu;
}

template <typename T> MMA_DEVICE uint32_t mma_pack(float lo, float hi);

template <> inline uint32_t mma_pack<__nv_bfloat16>(float lo, float hi)
{
    return gpu_bits<uint32_t>(__floats2bfloat162_rn(lo, hi));
}

template <> inline uint32_t mma_pack<__half>(float lo, float hi)
{
    return gpu_bits<uint32_t>(__floats2half2_rn(lo, hi));
}

/* --- Asynchronous copies --- */

#ifdef MMA_SM75

MMA_DEVICE void cp_async_16(uint32_t to, const void *global, uint32_t bytes)
{
    uint32_t word[4] = {0, 0, 0, 0};
    gpu_global_check(global, bytes);
    memcpy(word, global, bytes);
    store_shared_16(to, word);
}

MMA_DEVICE void cp_async_commit(void)
{
}

template <int PENDING> MMA_DEVICE void cp_async_wait(void)
{
}

#else

MMA_DEVICE void cp_async_16(uint32_t to, const void *global, uint32_t bytes)
{
    gpu_async_copy(to, global, 16, bytes);
}

MMA_DEVICE void cp_async_16_near(uint32_t to, const void *global, uint32_t bytes)
{
    gpu_async_copy(to, global, 16, bytes);
}

template <int SIZE> MMA_DEVICE void cp_async_ca(uint32_t to, const void *global, uint32_t bytes)
{
    static_assert(SIZE == 4 || SIZE == 8 || SIZE == 16, "what the instruction takes");
    gpu_async_copy(to, global, SIZE, bytes);
}

MMA_DEVICE void cp_async_commit(void)
{
    gpu_async_commit();
}

template <int PENDING> MMA_DEVICE void cp_async_wait(void)
{
    gpu_async_wait(PENDING);
}

#endif

/* --- Launches that overlap: here they do not --- */

MMA_DEVICE void grid_allow_next(void)
{
}

MMA_DEVICE void grid_wait(void)
{
}

#endif
