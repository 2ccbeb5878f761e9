/* The end of the kernels for small minibatches: the warps of a thread block each have sums of the
 * same tile, which are added up in the order of the warps. */
#ifndef BSKI_CUDA_SM80_DSD_NARROW_H
#define BSKI_CUDA_SM80_DSD_NARROW_H

#include <backends/cuda/sm80/dsd_device.h>

/* Run number `at` of a tile [TN][TI], along C's contiguous axis. */
MMA_DEVICE void run_place(const dsd_arg *a, int at, int ti, int tn, int *i, int *n)
{
    *i = a->end.along_n ? at / (tn / DSD_RUN) : at % (ti / DSD_RUN) * DSD_RUN;
    *n = a->end.along_n ? at % (tn / DSD_RUN) * DSD_RUN : at / (ti / DSD_RUN);
}

/* Adds up the warps' sums in `scratch`, and stores them in C, or as the segment's part. The shared
 * memory is free before. */
template <class C>
MMA_DEVICE void store_sums(const dsd_arg *a, const dsd_segment *segment, int tile, int64_t member,
                           const float *acc, float *scratch)
{
    enum { PITCH = C::TI + 1 };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    float *sums = scratch + warp * C::TN * PITCH;
#pragma unroll
    for (int m = 0; m < C::MT; m++)
#pragma unroll
        for (int j = 0; j < C::NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums[(16 * m + e / 2 * 8 + lane / 4) * PITCH + 8 * j + lane % 4 * 2 + e % 2] =
                    acc[4 * (m * C::NT + j) + e];
    __syncthreads();

    float *part = NULL;
    if (segment->part >= 0)
        part = a->parts + member * a->part_stride +
               ((int64_t)segment->part * a->tiles + tile) * C::TN * C::TI;
#pragma unroll 1
    for (int x = threadIdx.x; x < C::TN * C::TI / DSD_RUN; x += blockDim.x) {
        int i, n;
        run_place(a, x, C::TI, C::TN, &i, &n);
        const float *from = scratch + n * PITCH + i;
        const int step = a->end.along_n ? PITCH : 1;
        float v[DSD_RUN] = {0};
#pragma unroll 1
        for (int w = 0; w < warps; w++)
#pragma unroll
            for (int e = 0; e < DSD_RUN; e++)
                v[e] += from[w * C::TN * PITCH + e * step];
        if (part)
#pragma unroll
            for (int e = 0; e < DSD_RUN; e++)
                part[x * DSD_RUN + e] = v[e];
        else
            store_run(a, v, (int64_t)segment->row * a->block_rows + tile * C::TI + i, n, member);
    }
}

#endif
