/* bias_act_grad for sm90a: rows of 16-bit numbers, features next to each other. A thread keeps the
 * bias and the sums of eight features and goes down its rows, four of them under way. Thread blocks
 * are short and many more than run at a time, so that those at work are at one place of memory and
 * end together. */
#include <backends/cuda/sm90a/bias_act_grad.h>
#include <backends/cuda/sm90a/run.h>

/* The derivative of relu: 0 at 0, NaN where x is. */
PTX_FN float relu_slope(float x)
{
    return x > 0 ? 1.0f : x <= 0 ? 0.0f : x;
}

/* Of gelu, x * s(v) with the logistic function s and v = 2 sqrt(2 / pi) (x + 0.044715 x^3), without
 * cancellation: s(v) + x v' s(v) (1 - s(v)). */
PTX_FN float gelu_slope(float x)
{
    const float twice = 1.59576912160573071176f, cubic = 0.044715f;
    const float scaled = x * fmaf(LOG2_E * twice * cubic, x * x, LOG2_E * twice);
    const float t = power_of_two(-fabsf(scaled)), high = __fdividef(1, 1 + t), low = t * high;
    const float value = scaled >= 0 ? high : low, bend = high * low;
    return bend > 0 ? fmaf(x * bend, fmaf(3 * twice * cubic, x * x, twice), value) : value;
}

/* dx of a run, which is added to sum. */
template <class T, bool GELU>
PTX_FN uint4 slope_run(uint4 dy, uint4 x, const float *bias, float *sum)
{
    float d[RUN], v[RUN];
    unpack_run<T>(dy, d);
    unpack_run<T>(x, v);
#pragma unroll
    for (int e = 0; e < RUN; e++) {
        const float pre = v[e] + bias[e];
        d[e] *= GELU ? gelu_slope(pre) : relu_slope(pre);
        sum[e] += d[e];
    }
    return pack_run<T>(d);
}

/* The sums of the threads that have the same features, in the first of them. */
PTX_FN void sums_join(int32_t lanes, float *sum)
{
    __shared__ float all[RUN][SLOPE_THREADS];
    if (lanes == SLOPE_THREADS)
        return;
#pragma unroll
    for (int e = 0; e < RUN; e++)
        all[e][threadIdx.x] = sum[e];
    __syncthreads();
    for (int32_t other = threadIdx.x + lanes; threadIdx.x < lanes && other < SLOPE_THREADS;
         other += lanes) {
#pragma unroll
        for (int e = 0; e < RUN; e++)
            sum[e] += all[e][other];
    }
}

template <class T, bool GELU> PTX_FN void bias_act_grad(const bias_act_grad_arg &a)
{
    const int32_t down = SLOPE_THREADS / a.lanes,
                  run = blockIdx.x * a.lanes + threadIdx.x % a.lanes;
    const int64_t begin = blockIdx.y * a.share, left = a.rows - begin;
    const int64_t end = run < a.runs ? begin + (left < a.share ? left : a.share) : 0;
    const char *const dy = (const char *)a.dy + (int64_t)run * RUN_BYTES;
    const char *const x = (const char *)a.x + (int64_t)run * RUN_BYTES;
    char *const dx = (char *)a.dx + (int64_t)run * RUN_BYTES;
    float bias[RUN], sum[RUN] = {0, 0, 0, 0, 0, 0, 0, 0};
    load_vector(run < a.runs ? a.bias : NULL, (int64_t)run * RUN, 0, bias);
    for (int64_t row = begin + threadIdx.x / a.lanes; row < end; row += down * SLOPE_ROWS) {
        uint4 d[SLOPE_ROWS], v[SLOPE_ROWS];
#pragma unroll
        for (int u = 0; u < SLOPE_ROWS; u++)
            if (row + u * down < end) {
                d[u] = *(const uint4 *)(dy + (row + u * down) * a.dy_row);
                v[u] = *(const uint4 *)(x + (row + u * down) * a.x_row);
            }
#pragma unroll
        for (int u = 0; u < SLOPE_ROWS; u++)
            if (row + u * down < end) {
                const uint4 q = slope_run<T, GELU>(d[u], v[u], bias, sum);
                if (a.dx)
                    store_global_16(dx + (row + u * down) * a.dx_row, q);
            }
    }
    sums_join(a.lanes, sum);
    if (threadIdx.x < a.lanes && run < a.runs)
        store_vector(a.partial, ((int64_t)blockIdx.y * a.runs + run) * RUN, sum);
}

#define BIAS_ACT_GRAD(T, type, name, gelu)                                                         \
    extern "C" __global__ void __launch_bounds__(SLOPE_THREADS, SLOPE_RESIDENT)                    \
        sm90a_bias_##name##_grad_##type(const __grid_constant__ bias_act_grad_arg a)               \
    {                                                                                              \
        bias_act_grad<T, gelu>(a);                                                                 \
    }
BIAS_ACT_GRAD(__half, f16, relu, false)
BIAS_ACT_GRAD(__half, f16, gelu, true)
BIAS_ACT_GRAD(__nv_bfloat16, bf16, relu, false)
BIAS_ACT_GRAD(__nv_bfloat16, bf16, gelu, true)
