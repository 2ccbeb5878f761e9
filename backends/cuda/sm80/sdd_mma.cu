/* sdd for sm80: its kernels for 16-bit types and tf32, and what follows them. */
#include <backends/cuda/sm80/sdd_mma.h>

#define SDD_MMA_SIZES(type, T)                                                                     \
    SDD_MMA(sm80_sdd_mma_8_##type, T, 8, 256, 8, 32)                                               \
    SDD_MMA(sm80_sdd_mma_16_##type, T, 16, 256, 16, 32)                                            \
    SDD_MMA(sm80_sdd_mma_32_##type, T, 32, 256, 32, 32)                                            \
    SDD_MMA(sm80_sdd_mma_64_##type, T, 64, 128, 32, 32)                                            \
    SDD_MMA(sm80_sdd_mma_128_##type, T, 128, 128, 32, 64)
FOR_HALVES(SDD_MMA_SIZES)
SDD_MMA_SIZES(tf32, float)

/* --- The parts --- */

enum { FINISH_THREADS = 128 };

/* The sum over a thread block, in a fixed order, for its first thread. */
MMA_DEVICE float block_sum(float v)
{
    __shared__ float sums[FINISH_THREADS / 32];
    for (int step = 16; step; step /= 2)
        v += __shfl_down_sync(~0u, v, step);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int w = 0; w < FINISH_THREADS / 32; w++)
        v += sums[w];
    return v;
}

/* Adds up the parts of one block. With dgate, of a block in all groups, whose products with w add
 * up to one gate's gradient. */
extern "C" __global__ void __launch_bounds__(FINISH_THREADS)
    sm80_sdd_finish(const __grid_constant__ sdd_arg a)
{
    const int64_t slot = blockIdx.x % a.nnz, size = (int64_t)a.block_rows * a.block_cols;
    const int64_t first = a.dgate ? 0 : blockIdx.x / a.nnz, last = a.dgate ? a.groups : first + 1;
    const int64_t rows = a.rows - (int64_t)a.slot_row[slot] * a.block_rows;
    const int64_t cols = a.cols - (int64_t)a.slot_col[slot] * a.block_cols;
    const float gate = a.gate ? a.gate[slot] : 1;
    const bool zero = a.gate_mode != BSK_GATE_IGNORE && gate == 0;
    const bool skip = zero && a.gate_mode == BSK_GATE_SKIP;
    const float scale = a.gate_mode == BSK_GATE_SCALE ? a.alpha * gate : a.alpha;
    float dot = 0;
    for (int64_t group = first; group < last; group++)
        for (int x = threadIdx.x * DSD_RUN; x < size; x += FINISH_THREADS * DSD_RUN) {
            const int64_t left = cols - x % a.block_cols;
            const int count = left < DSD_RUN ? (int)left : DSD_RUN;
            if (count <= 0 || x / a.block_cols >= rows)
                continue;
            float v[DSD_RUN] = {0}, other[DSD_RUN];
            for (int p = 0; !skip && p < a.splits; p++) {
                const float *part =
                    a.parts + (((int64_t)p * a.groups + group) * a.nnz + slot) * size + x;
#pragma unroll
                for (int e = 0; e < DSD_RUN; e++)
                    v[e] += part[e];
            }
            if (a.dgate && !skip) {
                const dsd_matrix w = {(char *)a.w, 0, 0, 0, a.type, 1};
                dsd_read(w, group * a.w_group + slot * size + x, count, other);
#pragma unroll
                for (int e = 0; e < DSD_RUN; e++)
                    if (e < count)
                        dot += v[e] * other[e];
            }
            const int64_t at = group * a.s_group + slot * size + x;
            if (a.beta != 0)
                dsd_read(a.s, at, count, other);
#pragma unroll
            for (int e = 0; e < DSD_RUN; e++) {
                v[e] = zero ? 0 : scale * v[e];
                if (a.beta != 0)
                    v[e] += a.beta * other[e];
            }
            dsd_write(a.s, at, count, v);
        }
    if (!a.dgate)
        return;
    dot = block_sum(dot);
    if (threadIdx.x == 0) {
        float v = a.alpha * dot;
        if (a.beta != 0)
            v += a.beta * a.dgate[slot];
        a.dgate[slot] = v;
    }
}

/* --- Sums of the columns of b --- */

enum { SUM_THREADS = 256, SUM_COLUMNS = 64, SUM_SAMPLES = 32 };

/* Sums 64 columns over a share of the samples of all pairs and members. Where samples are
 * contiguous, four threads share a column, otherwise 32 share 8. */
extern "C" __global__ void __launch_bounds__(SUM_THREADS)
    sm80_sdd_columns(const __grid_constant__ sdd_arg a)
{
    __shared__ float sums[SUM_SAMPLES][SUM_COLUMNS + 1];
    const int64_t slices = (a.n + SUM_SAMPLES - 1) / SUM_SAMPLES, split = blockIdx.y;
    const int64_t from = slices * split / a.sum_splits * SUM_SAMPLES;
    const int64_t end = slices * (split + 1) / a.sum_splits * SUM_SAMPLES;
    const int64_t to = end < a.n ? end : a.n, column0 = (int64_t)blockIdx.x * SUM_COLUMNS;
    const int chunk = threadIdx.x % DSD_RUN, row = threadIdx.x / DSD_RUN;
    const int own = threadIdx.x / 4, quarter = threadIdx.x % 4;
    const int64_t column = column0 + (a.b_along_k ? own : chunk * DSD_RUN);
    const int count = run_left(a.cols, column);
    float v[DSD_RUN] = {0};
    for (int pair = 0; pair < a.pairs; pair++)
        for (int64_t member = 0; member < a.batch; member++) {
            const dsd_matrix b = {(char *)a.b[pair], 0, 0, 0, a.type, a.b_vector};
            const int64_t base = member * a.b_batch + column * (a.b_along_k ? a.b_col : 1);
            const int64_t first = from + (a.b_along_k ? quarter * DSD_RUN : row);
            for (int64_t n = first; count && n < to; n += SUM_SAMPLES) {
                float x[DSD_RUN] = {0};
                dsd_read(b, base + n * (a.b_along_k ? 1 : a.b_k),
                         a.b_along_k ? run_left(to, n) : count, x);
#pragma unroll
                for (int e = 0; e < DSD_RUN; e++)
                    v[e] += x[e];
            }
        }
    if (a.b_along_k) {
        sums[quarter][own] = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    } else {
#pragma unroll
        for (int e = 0; e < DSD_RUN; e++)
            sums[row][chunk * DSD_RUN + e] = v[e];
    }
    __syncthreads();
    if (threadIdx.x >= SUM_COLUMNS || column0 + threadIdx.x >= a.cols)
        return;
    float sum = 0;
    for (int r = 0; r < (a.b_along_k ? 4 : SUM_SAMPLES); r++)
        sum += sums[r][threadIdx.x];
    a.sums[split * a.cols + column0 + threadIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(SUM_THREADS)
    sm80_sdd_columns_finish(const __grid_constant__ sdd_arg a)
{
    const int64_t column = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x;
    if (column >= a.cols)
        return;
    float sum = 0;
    for (int p = 0; p < a.sum_splits; p++)
        sum += a.sums[p * a.cols + column];
    a.bsum[column] = a.alpha * sum + (a.beta != 0 ? a.beta * a.bsum[column] : 0);
}
