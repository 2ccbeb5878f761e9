/* Kernels of dsd_mma_device.h for 16-bit types, and those that add up parts of the depth. */
#include <backends/cuda/sm90a/dsd_mma_device.h>

/* --- Adding up the parts of the depth --- */

/* A thread block has what a warp of a tile had: runs of 8 samples, one of each of its warps. */
template <int UNIT> FN void sums_add(const dsd_mma_sums_arg &a)
{
    constexpr int WARPS = DSD_MMA_WARPS(DSD_MMA_WIDE), EACH = DSD_MMA_WARP_SAMPLES(DSD_MMA_WIDE);
    const int lane = threadIdx.x % LANES, run = threadIdx.x / LANES, warp = blockIdx.x;
    const int panel = blockIdx.y, tile = blockIdx.z, column = warp % a.warp_cols;
    const int64_t panels = (int64_t)a.across * a.parts;
    const int64_t part = (int64_t)a.across * DSD_MMA_PART_SUMS / 4;
    const int samples = EACH * WARPS / a.warp_cols;
    const int32_t *columns =
        a.columns + (size_t)(panel * a.warp_cols + column) * (WARP_OUTPUTS / UNIT);
    const float4 *from =
        (const float4 *)a.sums +
        ((tile * panels + panel) * WARPS + warp) * (DSD_MMA_PART_SUMS / WARPS / 4) +
        2 * run * LANES + lane;
    float v[DSD_RUN] = {0};
    const int output = run_output<UNIT>(columns, lane);
    grid_allow_next();
    grid_wait();
#pragma unroll 4
    for (int p = 0; p < a.parts; p++, from += part) {
        const float4 low = from[0], high = from[LANES];
        v[0] += low.x, v[1] += low.y, v[2] += low.z, v[3] += low.w;
        v[4] += high.x, v[5] += high.y, v[6] += high.z, v[7] += high.w;
    }
    run_finish<UNIT>(a.epilogue, v, output,
                     (int64_t)tile * samples + warp / a.warp_cols * EACH + run * 8, lane);
}

#define SUMS_KERNEL(unit)                                                                          \
    extern "C" __global__ void __launch_bounds__(DSD_MMA_SUMS_THREADS)                             \
        dsd_sm90a_mma_sums_##unit(const __grid_constant__ dsd_mma_sums_arg a)                      \
    {                                                                                              \
        sums_add<unit>(a);                                                                         \
    }
SUMS_KERNEL(8)
SUMS_KERNEL(16)
SUMS_KERNEL(32)

/* --- Kernels --- */

#define KERNELS_TILE(type, T, unit, axis, cn)                                                      \
    DSD_MMA_KERNELS(type, T, unit, axis, cn, wide, DSD_MMA_WIDE)                                   \
    DSD_MMA_KERNELS(type, T, unit, axis, cn, square, DSD_MMA_SQUARE)
#define KERNELS_UNIT(type, T, axis, cn)                                                            \
    KERNELS_TILE(type, T, 8, axis, cn)                                                             \
    KERNELS_TILE(type, T, 16, axis, cn)                                                            \
    KERNELS_TILE(type, T, 32, axis, cn)
#define KERNELS(type, T)                                                                           \
    KERNELS_UNIT(type, T, nc, false)                                                               \
    KERNELS_UNIT(type, T, cn, true)                                                                \
    DSD_MMA_KERNELS(type, T, 16, nc, false, tall, DSD_MMA_TALL)
FOR_HALVES(KERNELS)
