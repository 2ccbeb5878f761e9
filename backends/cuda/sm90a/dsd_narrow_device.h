/* What the kernels of dsd_narrow.cu, dsd_stream.cu and dsd_stream_mma.cu share: how the sums of a
 * thread block's warps become results. A kernel's class C has
 *   TI, TN    features and samples of a tile, TN a multiple of 8; NT = TI / 8 and ROWS = TN / 8
 *   SCRATCH   DSD_NARROW_SCRATCH(TI, TN)
 *   sum(arg, piece, scratch): adds up the warp's share of a piece and leaves the sums at row_at. */
#ifndef BSKI_CUDA_SM90A_DSD_NARROW_DEVICE_H
#define BSKI_CUDA_SM90A_DSD_NARROW_DEVICE_H

#include <backends/cuda/sm90a/dsd_few_device.h>
#include <backends/cuda/sm90a/dsd_narrow.h>

#define FN static __device__ __forceinline__

/* Where the features of a sample begin in the scratch. A gap, so that lanes that store together,
 * and those that load, mostly meet different banks. */
template <class C> FN constexpr int row_at(int n)
{
    return n * (C::TI + 1);
}

/* The place of run number x of a tile in the scratch, and in the tile. */
struct run_place {
    float *at;
    int i, n;
    bool along_n;
};

template <class C> FN run_place place_run(const dsd_narrow_arg &a, float *scratch, int x)
{
    run_place r;
    r.along_n = a.operands.end.along_n;
    r.i = r.along_n ? x / C::ROWS : x % C::NT * DSD_RUN;
    r.n = r.along_n ? x % C::ROWS * DSD_RUN : x / C::NT;
    r.at = scratch + row_at<C>(r.n) + r.i;
    return r;
}

/* From a run's first element to its number e. */
template <class C> FN int element_at(const run_place &r, int e)
{
    return r.along_n ? row_at<C>(e) : e;
}

/* Stores a run of sums. The bare end apart: all that dsd_finish can do takes long to fetch. */
FN void run_store(const dsd_epilogue &e, float (&v)[DSD_RUN], int64_t feature, int64_t n)
{
    if (!e.bare) {
        dsd_finish(e, v, feature, n, 0);
        return;
    }
    if (feature >= e.features)
        return;
#pragma unroll
    for (int i = 0; i < DSD_RUN; i++)
        v[i] *= e.alpha;
    const bool bf16 = e.c.type == BSK_BF16;
    *(uint4 *)(e.c.data + (feature * e.c.feature + n * e.c.n) * 2) = dsd_pack_run(bf16, v);
}

/* Adds up the warps' sums in their order. They are what C needs, or a part of it, which stays in
 * the scratch. */
template <class C>
FN void warps_add(const dsd_narrow_arg &a, const dsd_narrow_piece &piece, int64_t feature,
                  float *scratch)
{
#pragma unroll 1
    for (int x = threadIdx.x; x < C::TN * C::NT; x += DSD_NARROW_THREADS) {
        const run_place r = place_run<C>(a, scratch, x);
        float v[DSD_RUN] = {0};
        if (r.n >= a.operands.end.n)
            continue;
#pragma unroll
        for (int w = 0; w < DSD_NARROW_WARPS; w++)
#pragma unroll
            for (int e = 0; e < DSD_RUN; e++)
                v[e] += r.at[w * C::SCRATCH + element_at<C>(r, e)];
        if (piece.parts == 1)
            run_store(a.operands.end, v, feature + r.i, r.n);
        else
#pragma unroll
            for (int e = 0; e < DSD_RUN; e++)
                r.at[element_at<C>(r, e)] = v[e];
    }
}

/* Adds up the parts of a list in their order; the thread blocks that have them share the runs. */
template <class C>
FN void parts_add(const dsd_narrow_arg &a, const dsd_narrow_piece &piece, int64_t feature,
                  float *scratch)
{
    const uint32_t first = cluster_rank() - piece.part;
#pragma unroll 1
    for (int x = threadIdx.x * piece.parts + piece.part; x < C::TN * C::NT;
         x += DSD_NARROW_THREADS * piece.parts) {
        const run_place r = place_run<C>(a, scratch, x);
        const uint32_t from = shared_address(r.at);
        float v[DSD_RUN] = {0};
        if (r.n >= a.operands.end.n)
            continue;
#pragma unroll 1
        for (int p = 0; p < piece.parts; p++)
#pragma unroll
            for (int e = 0; e < DSD_RUN; e++)
                v[e] += cluster_load(from + element_at<C>(r, e) * 4, first + p);
        run_store(a.operands.end, v, feature + r.i, r.n);
    }
}

template <class C> FN void narrow(const dsd_narrow_arg &a)
{
    extern __shared__ float shared[];
    const dsd_narrow_piece piece = a.pieces[blockIdx.x];
    grid_allow_next();
    C::sum(a, piece, shared + threadIdx.x / 32 * C::SCRATCH);
    __syncthreads();
    const int64_t feature = (int64_t)piece.row * C::TI;
    if (piece.row >= 0)
        warps_add<C>(a, piece, feature, shared);
    if (a.cluster == 1)
        return;
    __syncwarp();
    cluster_sync();
    if (piece.parts > 1)
        parts_add<C>(a, piece, feature, shared);
    __syncwarp();
    cluster_sync(); /* others may still read the scratch */
}

#endif
