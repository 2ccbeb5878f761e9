/* How the kernels of attention store rows of their results on Hopper, and make some of them again. */
#ifndef BSKI_CUDA_SM90A_ATTENTION_STORE_H
#define BSKI_CUDA_SM90A_ATTENTION_STORE_H

#include <backends/cuda/sm90a/attention_tile.h>

/* Two neighbours of a result. */
__device__ __forceinline__ float2 load_pair(const attention_out &out, int64_t at)
{
    if (out.type == BSK_F32)
        return *(const float2 *)((const float *)out.data + at);
    const uint16_t *pair = (const uint16_t *)out.data + at;
    return out.type == BSK_BF16 ? __bfloat1622float2(*(const __nv_bfloat162 *)pair)
                                : __half22float2(*(const __half2 *)pair);
}

__device__ __forceinline__ void store_pair(const attention_out &out, int64_t at, float2 x,
                                           float beta)
{
    if (beta != 0) {
        const float2 old = load_pair(out, at);
        x.x += beta * old.x;
        x.y += beta * old.y;
    }
    if (out.type == BSK_F32)
        *(float2 *)((float *)out.data + at) = x;
    else
        *(uint32_t *)((uint16_t *)out.data + at) =
            out.type == BSK_BF16 ? mma_pack<__nv_bfloat16>(x.x, x.y) : mma_pack<__half>(x.x, x.y);
}

__device__ __forceinline__ void store_one(const attention_out &out, int64_t at, float x, float beta)
{
    if (out.type == BSK_F32) {
        float *to = (float *)out.data + at;
        *to = beta != 0 ? x + beta * *to : x;
    } else if (out.type == BSK_BF16) {
        __nv_bfloat16 *to = (__nv_bfloat16 *)out.data + at;
        *to = __float2bfloat16(beta != 0 ? x + beta * __bfloat162float(*to) : x);
    } else {
        __half *to = (__half *)out.data + at;
        *to = __float2half(beta != 0 ? x + beta * __half2float(*to) : x);
    }
}

/* A row's sums, times a factor, where the result has the inputs' type. Lanes exchange halves: each
 * has 8 bytes. */
template <class F>
__device__ __forceinline__ void store_plain(const float (&o)[F::WIDTH / 2],
                                            const attention_out &out, int64_t at, int h,
                                            float factor, bool live)
{
    const int quad = threadIdx.x % 4;
    const bool odd = quad % 2;
    const int feature = quad / 2 * 4 + (odd ? 8 : 0), room = live ? out.width - feature : 0;
    uint16_t *const to = (uint16_t *)out.data + at + feature;
#pragma unroll
    for (int j = 0; j < F::WIDTH / 8; j += 2) {
        uint32_t word[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float *const x = o + 4 * (j + i) + 2 * h;
            word[i] = mma_pack<typename F::T>(x[0] * factor, x[1] * factor);
        }
        const uint32_t other = __shfl_xor_sync(~0u, odd ? word[0] : word[1], 1);
        if (8 * j < room)
            *(uint2 *)(to + 8 * j) = odd ? make_uint2(other, word[1]) : make_uint2(word[0], other);
    }
}

/* Any result, plus beta times what was there; none: zeros. By a loop over a copy: code for each pair
 * took most of the kernels, and of the time to compile them. */
template <class F>
__device__ __forceinline__ void store_by_loop(const float (&o)[F::WIDTH / 2],
                                              const attention_out &out, int64_t at, int h,
                                              float factor, float beta, bool none)
{
    float2 sums[F::WIDTH / 8];
#pragma unroll
    for (int i = 0; i < F::WIDTH / 8; i++) {
        const float *const x = o + 4 * i + 2 * h;
        sums[i] = none ? make_float2(0, 0) : make_float2(x[0] * factor, x[1] * factor);
    }
    const int feature = threadIdx.x % 4 * 2;
#pragma unroll 1
    for (int i = 0; 8 * i + feature < out.width; i++)
        store_pair(out, at + 8 * i + feature, sums[i], beta);
}

/* The same by code for each pair. */
template <class F>
__device__ __forceinline__ void store_unrolled(const float (&o)[F::WIDTH / 2],
                                               const attention_out &out, int64_t at, int h,
                                               float factor, float beta, bool none, bool live)
{
    enum { WIDTH = F::WIDTH };
    const int quad = threadIdx.x % 4;
    const auto value = [&](int j) {
        float2 x = make_float2(0, 0);
        if (!none)
            x = make_float2(o[4 * j + 2 * h] * factor, o[4 * j + 2 * h + 1] * factor);
        if (beta != 0 && live && 8 * j < out.width) {
            const float2 old = load_pair(out, at + 8 * j + 2 * quad);
            x.x += beta * old.x;
            x.y += beta * old.y;
        }
        return x;
    };
    if (out.type == BSK_F32) {
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++)
            if (live && 8 * j < out.width)
                *(float2 *)((float *)out.data + at + 8 * j + 2 * quad) = value(j);
        return;
    }
    const bool odd = quad % 2, bf16 = out.type == BSK_BF16;
    const int feature = quad / 2 * 4 + (odd ? 8 : 0);
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j += 2) {
        uint32_t word[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float2 x = value(j + i);
            word[i] = bf16 ? mma_pack<__nv_bfloat16>(x.x, x.y) : mma_pack<__half>(x.x, x.y);
        }
        const uint32_t other = __shfl_xor_sync(~0u, odd ? word[0] : word[1], 1);
        if (live && 8 * j + feature < out.width)
            *(uint2 *)((uint16_t *)out.data + at + 8 * j + feature) =
                odd ? make_uint2(other, word[1]) : make_uint2(word[0], other);
    }
}

/* Stores a row's sums, times a factor, or zeros, plus beta times what was there. LOOP: how results
 * that are not plain are stored. */
template <class F, bool LOOP = true>
__device__ __forceinline__ void store_row(const float (&o)[F::WIDTH / 2], const attention_out &out,
                                          int64_t at, int h, float factor, float beta, bool none,
                                          bool live)
{
    const bool fits = LOOP || out.width == F::WIDTH;
    if (beta == 0 && out.type == dtype_of<typename F::T>() && fits && !__any_sync(~0u, none)) {
        store_plain<F>(o, out, at, h, factor, live);
        return;
    }
    if constexpr (!LOOP)
        store_unrolled<F>(o, out, at, h, factor, beta, none, live);
    else if (live)
        store_by_loop<F>(o, out, at, h, factor, beta, none);
}

/* --- Rows of unions once more ---
 *
 * Where only one of two bands has a block, shares of 0 keep the other away from it; but 0 times
 * what is not finite is not 0. A row with such a result is made again by its warp alone, element by
 * element, from the blocks that it has. That is rare: loops are not unrolled, and sums are in local
 * memory, since it was up to a quarter of the kernels' code. */

template <class F> __device__ __forceinline__ float number(const attention_in &x, int64_t at)
{
    return numbers_of<typename F::T>(((const uint16_t *)x.data)[at]).x;
}

__device__ __forceinline__ int64_t line_at(const attention_in &x, int member, int head, int run,
                                           int time)
{
    return member * x.batch + head * x.head + run * x.run + time * x.time;
}

template <class F>
__device__ __forceinline__ float dot(const attention_in &x, int64_t at, const attention_in &y,
                                     int64_t by)
{
    float sum = 0;
#pragma unroll 1
    for (int f = 0; f < x.width; f++)
        sum = fmaf(number<F>(x, at + f), number<F>(y, by + f), sum);
    return sum;
}

/* The lanes of a row say whether their part of its sums is all finite. Answers bit 4 g for row g of
 * the warp's eight. */
template <class F>
__device__ __forceinline__ uint32_t rows_to_repeat(const float (&sums)[F::WIDTH / 2], int h,
                                                   bool wanted)
{
    float x = 0;
#pragma unroll
    for (int i = 0; i < F::WIDTH / 4; i++)
        x = fmaf(sums[i / 2 * 4 + 2 * h + i % 2], 0, x);
    uint32_t rows = __ballot_sync(~0u, wanted && x != 0);
    rows |= rows >> 1;
    return (rows | rows >> 2) & 0x11111111;
}

/* Stores the sum of weight(member, head of keys, run, key) times lines of `from` over what the row
 * at `time` sees, times a factor, plus beta times what was there.
 * first_feature: of those that are stored. */
template <class F, class W>
__device__ __forceinline__ void repeat_row(const attention_arg &a, uint32_t tile, int time,
                                           const attention_in &from, float factor, float beta,
                                           const W &weight, int first_feature = 0)
{
    const int lane = threadIdx.x % LANES, head = shared_load_4(tile + 4 * HEAD_WORD);
    const int member = head / a.heads, kv = head % a.heads / a.group;
    const int run = shared_load_4(tile + 4 * RUN_WORD);
    int band = 0;
#pragma unroll 1
    for (int i = 1; i < F::BANDS; i++)
        if (time - shared_load_4(tile + 4 * (ROW_WORD + i)) < (uint32_t)F::BAND_ROWS)
            band = i;
    const int keys = shared_load_4(tile + 4 * KEYS_WORD);
    const int shift = shared_load_4(tile + 4 * SHIFT_WORD);
    const int first = shared_load_4(tile + 4 * FIRST_WORD);
    const int count = shared_load_4(tile + 4 * COUNT_WORD);
    float sum[F::WIDTH / LANES] = {};
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        const int2 u = __ldg((const int2 *)(a.unions + first + i));
        const int slot = slot_of<F::BANDS>(a, (int64_t)first + i, u.y, band);
        if (slot < 0 || u.x >= keys)
            continue;
        const uint64_t seen = visible<F::SIDE>(a, time, shift, keys, u.x, mask_of(a, slot));
        float share = 0;
#pragma unroll 1
        for (int j = 0; j < F::SIDE; j++) {
            const int key = u.x + j;
            if (j % LANES == 0)
                share = seen >> (j + lane) & 1 ? weight(member, kv, run, key + lane) : 0;
            const float x = __shfl_sync(~0u, share, j % LANES);
            if (seen >> j & 1)
#pragma unroll 1
                for (int f = 0; f < F::WIDTH / LANES; f++)
                    if (first_feature + f * LANES + lane < from.width)
                        sum[f] += x * number<F>(from, line_at(from, member, kv, run, key) +
                                                          first_feature + f * LANES + lane);
        }
    }
    const int64_t at =
        member * a.o.batch + head % a.heads * a.o.head + run * a.o.run + time * a.o.time;
#pragma unroll 1
    for (int f = 0; f < F::WIDTH / LANES; f++) {
        const int feature = first_feature + f * LANES + lane;
        if (feature < a.o.width)
            store_one(a.o, at + feature, sum[f] * factor, beta);
    }
}

#endif
