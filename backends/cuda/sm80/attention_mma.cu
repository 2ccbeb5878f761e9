/* The kernels of attention for sm80: head sizes up to D, and tiles of up to WARPS * M squares of own
 * lines: a block has as many warps as its tile asks for. */
#include <backends/cuda/sm80/attention_forward.h>
#include <backends/cuda/sm80/attention_grad.h>

/* Squares of a warp, most warps, and other lines of a step. */
#define FORWARD(type, T, D, M, WARPS, N)                                                           \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                       \
        sm80_attention_##D##_##type(const __grid_constant__ attention80_arg a)                     \
    {                                                                                              \
        attention_forward<kind<T, D, M, WARPS, N, false>>(a);                                      \
    }
#define GRAD(name, type, T, D, M, WARPS, N, TURNED)                                                \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                       \
        sm80_attention_##name##_##D##_##type(const __grid_constant__ attention80_grad_arg a)       \
    {                                                                                              \
        attention_grad<kind<T, D, M, WARPS, N, TURNED>>(a);                                        \
    }
#define KERNELS(type, T)                                                                           \
    FORWARD(type, T, 64, 2, 4, 64)                                                                 \
    FORWARD(type, T, 128, 2, 4, 32)                                                                \
    GRAD(dq, type, T, 64, 2, 2, 32, false)                                                         \
    GRAD(dq, type, T, 128, 1, 4, 64, false)                                                        \
    GRAD(dkv, type, T, 64, 2, 2, 32, true)                                                         \
    GRAD(dkv, type, T, 128, 1, 4, 64, true)
FOR_HALVES(KERNELS)

/* Eight threads a row. */
extern "C" __global__ void __launch_bounds__(DELTA_THREADS)
    sm80_attention_delta(const __grid_constant__ attention80_delta_arg a)
{
    const i64 row = ((i64)blockIdx.x * DELTA_THREADS + threadIdx.x) / DELTA_ROW;
    const i64 number = row / a.pad, time = row % a.pad;
    i32 there = a.time;
    if (a.q_len)
        there = min(max(a.q_len[number < a.rows / a.pad ? number / a.heads : 0], 0), there);
    const bool live = row < a.rows && time < there;
    const i64 o = heads_at(a.o, number / a.heads, number % a.heads) + time * a.o.time;
    const i64 dout = heads_at(a.dout, number / a.heads, number % a.heads) + time * a.dout.time;
    float sum = 0;
    if (live)
        for (int at = threadIdx.x % DELTA_ROW * 8; at < a.dv; at += DELTA_ROW * 8) {
            float x[8], y[8];
            const u32x4 left = *(const u32x4 *)(a.o_data + o + at);
            const u32x4 right = *(const u32x4 *)(a.dout_data + dout + at);
            if (a.bf16) {
                bf16_unpack(left.x, x), bf16_unpack(left.y, x + 2);
                bf16_unpack(left.z, x + 4), bf16_unpack(left.w, x + 6);
                bf16_unpack(right.x, y), bf16_unpack(right.y, y + 2);
                bf16_unpack(right.z, y + 4), bf16_unpack(right.w, y + 6);
            } else {
                f16_unpack8(left, x);
                f16_unpack8(right, y);
            }
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum = fmaf(x[e], y[e], sum);
        }
    for (int step = 1; step < DELTA_ROW; step *= 2)
        sum += __shfl_xor_sync(~0u, sum, step);
    if (row >= a.rows || threadIdx.x % DELTA_ROW)
        return;
    const float lse = a.bound && live ? a.lse[number * a.time + time] : -INFINITY;
    if (a.bound)
        a.bound[row] = row_bound(lse);
    a.delta[row] = a.bound && lse == -INFINITY ? 0 : a.slope * sum;
}
