/* Runs: eight neighbours of 16 bits, which a thread loads, computes with in f32 and stores. */
#ifndef BSKI_CUDA_SM90A_RUN_H
#define BSKI_CUDA_SM90A_RUN_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <backends/cuda/mma.h>
#include <backends/cuda/ptx.h>

#define LOG2_E 1.44269504088896340736f

enum { RUN = 8, RUN_BYTES = 16 };

template <class T> PTX_FN void unpack_two(uint32_t q, float *v);

template <> __device__ __forceinline__ void unpack_two<__nv_bfloat16>(uint32_t q, float *v)
{
    v[0] = __uint_as_float(q << 16);
    v[1] = __uint_as_float(q & 0xffff0000u);
}

template <> __device__ __forceinline__ void unpack_two<__half>(uint32_t q, float *v)
{
    v[0] = __half2float(__ushort_as_half((unsigned short)q));
    v[1] = __half2float(__ushort_as_half((unsigned short)(q >> 16)));
}

template <class T> PTX_FN void unpack_run(uint4 q, float *v)
{
    unpack_two<T>(q.x, v);
    unpack_two<T>(q.y, v + 2);
    unpack_two<T>(q.z, v + 4);
    unpack_two<T>(q.w, v + 6);
}

template <class T> PTX_FN uint4 pack_run(const float *v)
{
    return make_uint4(mma_pack<T>(v[0], v[1]), mma_pack<T>(v[2], v[3]), mma_pack<T>(v[4], v[5]),
                      mma_pack<T>(v[6], v[7]));
}

/* A run of a vector by feature; without one all are `otherwise`. */
PTX_FN void load_vector(const float *p, int64_t first, float otherwise, float *v)
{
    if (!p) {
#pragma unroll
        for (int e = 0; e < RUN; e++)
            v[e] = otherwise;
        return;
    }
    const float4 low = *(const float4 *)(p + first), high = *(const float4 *)(p + first + 4);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

PTX_FN void store_vector(float *p, int64_t first, const float *v)
{
    *(float4 *)(p + first) = make_float4(v[0], v[1], v[2], v[3]);
    *(float4 *)(p + first + 4) = make_float4(v[4], v[5], v[6], v[7]);
}

#endif
