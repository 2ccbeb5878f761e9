/* layer_norm_grad and rms_norm_grad for sm90a: dx and the sums for gain and bias in one pass over
 * rows of 16-bit numbers. A thread has eight features, whose sums stay in its registers. Four rows at
 * a time come to shared memory by bulk copies and go on to registers; the next four come while the
 * sums of these are joined, at one barrier, and their gradients written. */
#include <backends/cuda/sm90a/layer_norm_grad.h>
#include <backends/cuda/sm90a/ring.h>
#include <backends/cuda/sm90a/run.h>

enum { ROWS = NORM_ROWS, SUMS = 2 * ROWS }; /* two sums of each row */
static_assert(SUMS == 8, "a warp joins eight sums in its order of lanes");

/* Steps whose statistics are kept: warps may be a step apart, and those of the next step are there
 * before its barrier. */
enum { STATS = 3 };

/* What lies before the rows. */
template <int WARPS> struct head {
    uint64_t full;              /* first: at the base */
    float sums[2][SUMS][WARPS]; /* of this step or the last */
    float stats[STATS][SUMS];   /* mean of the rows, rstd of the rows */
};

/* Where a row of dy (0) or x (1) is. */
template <int THREADS> PTX_FN uint32_t row_at(uint32_t base, int which, int row)
{
    return base + NORM_HEAD + (which * ROWS + row) * THREADS * RUN_BYTES;
}

/* Copies the rows of a step, if there are any: those that follow each other at once. */
template <int THREADS>
PTX_FN void copy_step(const layer_norm_grad_arg &a, uint32_t base, int64_t step)
{
    const int32_t bytes = a.runs * RUN_BYTES;
    const int64_t first = step * ROWS, left = a.rows - first;
    if (left <= 0)
        return;
    const int rows = left < ROWS ? (int)left : ROWS;
    const char *dy = (const char *)a.dy + (int64_t)blockIdx.y * bytes + first * a.dy_row;
    const char *x = (const char *)a.x + (int64_t)blockIdx.y * bytes + first * a.x_row;
    mbar_expect(base, rows * 2 * bytes);
    if (rows == ROWS && bytes == THREADS * RUN_BYTES && a.dy_row == bytes && a.x_row == bytes) {
        bulk_load(row_at<THREADS>(base, 0, 0), dy, ROWS * bytes, base);
        bulk_load(row_at<THREADS>(base, 1, 0), x, ROWS * bytes, base);
        return;
    }
    for (int row = 0; row < rows; row++, dy += a.dy_row, x += a.x_row) {
        bulk_load(row_at<THREADS>(base, 0, row), dy, bytes, base);
        bulk_load(row_at<THREADS>(base, 1, row), x, bytes, base);
    }
}

/* Number `i` of the statistics of a step; 0 past the end. */
PTX_FN float stat_of(const layer_norm_grad_arg &a, int64_t step, int i)
{
    const int64_t row = step * ROWS + i % ROWS;
    const float *const from = i < ROWS ? a.mean : a.rstd;
    return from && row < a.rows ? from[(int64_t)blockIdx.y * a.rows + row] : 0;
}

/* Adds up each of eight numbers over the warp: lane l gets the sum of number l % 8 reversed. */
PTX_FN float warp_sums(float *s)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int bit = 0, half = SUMS / 2; half > 0; bit++, half /= 2) {
        const bool high = lane >> bit & 1;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float mine = high ? s[i + half] : s[i], other = high ? s[i] : s[i + half];
            s[i] = mine + __shfl_xor_sync(~0u, other, 1 << bit);
        }
    }
    s[0] += __shfl_xor_sync(~0u, s[0], 8);
    return s[0] + __shfl_xor_sync(~0u, s[0], 16);
}

/* The number whose sum a lane has. */
PTX_FN int reversed(int lane)
{
    return (lane & 1) * 4 + (lane & 2) + (lane >> 2 & 1);
}

/* The sums over the warps in every lane. */
template <int WARPS> PTX_FN void join_warps(const float (*sums)[WARPS], float *s)
{
    const int lane = threadIdx.x % 32, part = lane / SUMS;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS / 4; i++)
        sum += sums[lane % SUMS][part * (WARPS / 4) + i];
    sum += __shfl_xor_sync(~0u, sum, 8);
    sum += __shfl_xor_sync(~0u, sum, 16);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        s[i] = __shfl_sync(~0u, sum, i);
}

/* A row's share of the sums. */
template <class T>
PTX_FN void row_sums(uint4 dy, uint4 x, float mean, float rstd, const float *gain, float *sum_h,
                     float *sum_g, float *s)
{
    float d[RUN], c[RUN], total = 0, slope = 0;
    unpack_run<T>(dy, d);
    unpack_run<T>(x, c);
#pragma unroll
    for (int e = 0; e < RUN; e++) {
        const float t = d[e] * gain[e];
        c[e] -= mean;
        total += t;
        slope = fmaf(t, c[e], slope);
        sum_h[e] = fmaf(d[e], c[e] * rstd, sum_h[e]);
        sum_g[e] += d[e];
    }
    s[0] = total;
    s[1] = slope;
}

/* dx = rstd * (t - mean of t - h * mean of t * h) */
template <class T>
PTX_FN uint4 row_dx(uint4 dy, uint4 x, float mean, float rstd, const float *gain, float base,
                    float slope)
{
    float d[RUN], c[RUN];
    unpack_run<T>(dy, d);
    unpack_run<T>(x, c);
#pragma unroll
    for (int e = 0; e < RUN; e++)
        d[e] = fmaf(c[e] - mean, slope, fmaf(d[e] * gain[e], rstd, base));
    return pack_run<T>(d);
}

template <class T, int THREADS> PTX_FN void layer_norm_grad(const layer_norm_grad_arg &a)
{
    enum { WARPS = THREADS / 32 };
    static_assert(sizeof(head<WARPS>) <= NORM_HEAD, "what lies before the rows");
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t base = shared_address(shared);
    head<WARPS> *const h = (head<WARPS> *)shared;
    const int32_t thread = threadIdx.x, lane = thread % 32;
    const bool here = thread < a.runs;
    const int64_t feature = ((int64_t)blockIdx.y * a.runs + thread) * RUN;
    const int64_t steps = (a.rows + ROWS - 1) / ROWS;
    char *const dx = (char *)a.dx + feature * 2;
    float gain[RUN], sum_h[RUN], sum_g[RUN], s[SUMS], ahead = 0;
    load_vector(here ? a.gain : NULL, feature, 1, gain);
#pragma unroll
    for (int e = 0; e < RUN; e++)
        sum_h[e] = sum_g[e] = 0;
    if (thread == 0) {
        mbar_init(base, 1);
        mbar_init_fence();
        copy_step<THREADS>(a, base, blockIdx.x);
    }
    if (thread < SUMS) {
        h->stats[0][thread] = stat_of(a, blockIdx.x, thread);
        ahead = stat_of(a, blockIdx.x + (int64_t)gridDim.x, thread);
    }
    __syncthreads();
    cursor<STATS> at = {0, 0};
    uint32_t turn = 0;
    for (int64_t step = blockIdx.x; step < steps; step += gridDim.x, turn ^= 1) {
        const float *const mean = h->stats[at.slot], *const rstd = mean + ROWS;
        const int64_t left = a.rows - step * ROWS;
        uint4 dy[ROWS], x[ROWS];
        mbar_wait(base, turn);
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            dy[row] = x[row] = make_uint4(0, 0, 0, 0);
            if (here && row < left) {
                dy[row] = shared_load_16(row_at<THREADS>(base, 0, row) + thread * RUN_BYTES);
                x[row] = shared_load_16(row_at<THREADS>(base, 1, row) + thread * RUN_BYTES);
            }
        }
#pragma unroll
        for (int row = 0; row < ROWS; row++)
            row_sums<T>(dy[row], x[row], mean[row], rstd[row], gain, sum_h, sum_g, s + 2 * row);
        const float joined = warp_sums(s);
        if (lane < SUMS)
            h->sums[turn][reversed(lane)][thread / 32] = joined;
        at.next();
        if (thread < SUMS)
            h->stats[at.slot][thread] = ahead;
        __syncthreads();
        if (thread == THREADS - 32) /* not one of those that have statistics to load */
            copy_step<THREADS>(a, base, step + gridDim.x);
        if (thread < SUMS)
            ahead = stat_of(a, step + 2 * (int64_t)gridDim.x, thread);
        join_warps<WARPS>(h->sums[turn], s);
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            const float r = rstd[row], from = a.rms ? 0 : -r * s[2 * row] * a.inverse;
            const float slope = -(s[2 * row + 1] * a.inverse * r) * r * r;
            if (here && row < left)
                store_global_16(dx + (step * ROWS + row) * a.dx_row,
                                row_dx<T>(dy[row], x[row], mean[row], r, gain, from, slope));
        }
    }
    if (a.partial && here) {
        const int64_t features = (int64_t)gridDim.y * a.runs * RUN;
        store_vector(a.partial, blockIdx.x * features + feature, sum_h);
        store_vector(a.partial, (gridDim.x + blockIdx.x) * features + feature, sum_g);
    }
}

#define LAYER_NORM_GRAD(T, type, threads, resident)                                                \
    extern "C" __global__ void __launch_bounds__(threads, resident)                                \
        sm90a_layer_norm_grad_##threads##_##type(const __grid_constant__ layer_norm_grad_arg a)    \
    {                                                                                              \
        layer_norm_grad<T, threads>(a);                                                            \
    }
#define LAYER_NORM_GRAD_F16(...)  LAYER_NORM_GRAD(__half, f16, __VA_ARGS__)
#define LAYER_NORM_GRAD_BF16(...) LAYER_NORM_GRAD(__nv_bfloat16, bf16, __VA_ARGS__)
LAYER_NORM_GRAD_KERNELS(LAYER_NORM_GRAD_F16)
LAYER_NORM_GRAD_KERNELS(LAYER_NORM_GRAD_BF16)
