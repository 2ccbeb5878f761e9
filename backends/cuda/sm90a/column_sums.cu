/* Sums by feature of the rows of all thread blocks, in the order of the blocks. */
#include <backends/cuda/mma.h>
#include <backends/cuda/sm90a/column_sums.h>

extern "C" __global__ void __launch_bounds__(COLUMN_WIDE *COLUMN_PARTS)
    sm90a_column_sums(const __grid_constant__ column_sums_arg a)
{
    __shared__ float sums[COLUMN_PARTS][COLUMN_WIDE];
    const int lane = threadIdx.x % COLUMN_WIDE, part = threadIdx.x / COLUMN_WIDE;
    const int32_t feature = blockIdx.x * COLUMN_WIDE + lane;
    const float *const from = a.partial + (int64_t)blockIdx.y * a.shares * a.features + feature;
    float *const out = a.out[blockIdx.y];
    float sum = 0;
    grid_wait();
    if (out && feature < a.features) {
#pragma unroll 4
        for (int32_t share = part; share < a.shares; share += COLUMN_PARTS)
            sum += from[(int64_t)share * a.features];
    }
    sums[part][lane] = sum;
    __syncthreads();
    if (part > 0 || !out || feature >= a.features)
        return;
    for (int other = 1; other < COLUMN_PARTS; other++)
        sum += sums[other][lane];
    out[feature] = a.beta != 0 ? a.alpha * sum + a.beta * out[feature] : a.alpha * sum;
}
