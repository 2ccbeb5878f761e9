/* layer_norm and rms_norm for sm90a: rows of 16-bit numbers that lanes hold from the load to the
 * store, two rows at a time where they are short, so that both take one load of gain and bias, and
 * one barrier. */
#include <backends/cuda/sm90a/layer_norm.h>
#include <backends/cuda/sm90a/run.h>

/* Adds up a number of each of ROWS rows over the rows' warps, which are neighbours. The whole thread
 * block calls it. */
template <int WARPS, int ROWS, int THREADS>
PTX_FN void rows_sum(float (*scratch)[THREADS / 32], float *v)
{
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int reach = 16; reach > 0; reach /= 2) {
#pragma unroll
        for (int row = 0; row < ROWS; row++)
            v[row] += __shfl_xor_sync(~0u, v[row], reach);
    }
    if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int row = 0; row < ROWS; row++)
            scratch[row][warp] = v[row];
    }
    __syncthreads();
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        v[row] = 0;
#pragma unroll
        for (int other = 0; other < WARPS; other++)
            v[row] += scratch[row][warp / WARPS * WARPS + other];
    }
}

PTX_FN float run_total(const float *v)
{
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

PTX_FN float run_squares(const float *v, float mean)
{
    float sum = 0;
#pragma unroll
    for (int e = 0; e < RUN; e++)
        sum = fmaf(v[e] - mean, v[e] - mean, sum);
    return sum;
}

/* y of a run, in place of x. */
PTX_FN void norm_run(int32_t relu, float mean, float rstd, const float *gain, const float *bias,
                     float *v)
{
#pragma unroll
    for (int e = 0; e < RUN; e++)
        v[e] = fmaf((v[e] - mean) * rstd, gain[e], bias[e]);
    if (relu) {
#pragma unroll
        for (int e = 0; e < RUN; e++)
            v[e] = v[e] <= 0 ? 0 : v[e]; /* keeps NaN */
    }
}

template <class T, int WARPS, int HELD, int ROWS, int THREADS>
PTX_FN void layer_norm(const layer_norm_arg &a)
{
    enum { LANES = WARPS * 32 };
    __shared__ float scratch[2][ROWS][THREADS / 32];
    const int lane = threadIdx.x % LANES;
    /* ROWS rows of one segment; segments next to each other */
    const int32_t item = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    const int32_t group = a.segments == 1 ? item : item / a.segments;
    const int32_t segment = item - group * a.segments, first = group * ROWS;
    const int32_t rows = a.rows - first; /* past the end: 0 or less */
    const int64_t run = (int64_t)segment * a.runs + lane;
    uint4 q[ROWS][HELD];
    float v[RUN], mean[ROWS], rstd[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        const uint4 *const x = (const uint4 *)((const char *)a.x + (first + row) * a.x_row) + run;
#pragma unroll
        for (int u = 0; u < HELD; u++) {
            q[row][u] = make_uint4(0, 0, 0, 0);
            if (row < rows && lane + u * LANES < a.runs)
                q[row][u] = x[u * LANES];
        }
        mean[row] = rstd[row] = 0;
    }
    if (!a.rms) {
#pragma unroll
        for (int i = 0; i < ROWS * HELD; i++)
            if (lane + i % HELD * LANES < a.runs) {
                unpack_run<T>(q[i / HELD][i % HELD], v);
                mean[i / HELD] += run_total(v);
            }
        rows_sum<WARPS, ROWS, THREADS>(scratch[0], mean);
#pragma unroll
        for (int row = 0; row < ROWS; row++)
            mean[row] *= a.inverse;
    }
#pragma unroll
    for (int i = 0; i < ROWS * HELD; i++)
        if (lane + i % HELD * LANES < a.runs) {
            unpack_run<T>(q[i / HELD][i % HELD], v);
            rstd[i / HELD] += run_squares(v, mean[i / HELD]);
        }
    rows_sum<WARPS, ROWS, THREADS>(scratch[1], rstd);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        rstd[row] = 1 / sqrtf(fmaf(rstd[row], a.inverse, a.eps));
        const int64_t stat = (int64_t)segment * a.rows + first + row;
        if (a.mean && lane == 0 && row < rows)
            a.mean[stat] = mean[row];
        if (a.rstd && lane == 0 && row < rows)
            a.rstd[stat] = rstd[row];
    }
#pragma unroll
    for (int u = 0; u < HELD; u++)
        if (lane + u * LANES < a.runs) {
            float gain[RUN], bias[RUN];
            load_vector(a.gain, (run + u * LANES) * RUN, 1, gain);
            load_vector(a.bias, (run + u * LANES) * RUN, 0, bias);
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                uint4 *const y = (uint4 *)((char *)a.y + (first + row) * a.y_row) + run;
                unpack_run<T>(q[row][u], v);
                norm_run(a.relu, mean[row], rstd[row], gain, bias, v);
                if (row < rows)
                    y[u * LANES] = pack_run<T>(v);
            }
        }
}

#define LAYER_NORM(T, type, name, warps, held, rows, threads, resident)                            \
    extern "C" __global__ void __launch_bounds__(threads, resident)                                \
        sm90a_layer_norm_##name##_##type(const __grid_constant__ layer_norm_arg a)                 \
    {                                                                                              \
        layer_norm<T, warps, held, rows, threads>(a);                                              \
    }
#define LAYER_NORM_F16(...)  LAYER_NORM(__half, f16, __VA_ARGS__)
#define LAYER_NORM_BF16(...) LAYER_NORM(__nv_bfloat16, bf16, __VA_ARGS__)
LAYER_NORM_KERNELS(LAYER_NORM_F16)
LAYER_NORM_KERNELS(LAYER_NORM_BF16)
