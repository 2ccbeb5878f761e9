/* Device code that the kernels of sdd for small blocks share: the warps that copy, and the frame. */
#ifndef BSKI_CUDA_SM90A_SDD_MMA_DEVICE_H
#define BSKI_CUDA_SM90A_SDD_MMA_DEVICE_H

#include <backends/cuda/sm90a/sdd_device.h>
#include <backends/cuda/sm90a/sdd_mma.h>

/* In all blocks of the cluster, as either copies for both. */
PTX_FN void stage_release(const sdd_ring &ring, int cluster)
{
    const int lane = threadIdx.x % 32;
    if (cluster > 1 && lane < cluster)
        mbar_arrive_remote(ring_empty(ring, ring.at), lane);
    if (cluster == 1 && lane == 0)
        mbar_arrive(ring_empty(ring, ring.at));
}

/* A segment with this block's unit, parts and counter. */
PTX_FN sdd_segment segment_mine(const sdd_mma_arg &arg, int i)
{
    sdd_segment s = arg.cluster > 1 ? segment_own<2>(arg.work.segments + i)
                                    : segment_load(arg.work.segments + i);
    if (arg.cluster > 1)
        s.unit = s.unit * 2 + (int)cluster_rank();
    return s;
}

/* Panels are dealt to the producing warps, which issue their copies one after the other. Those of
 * rows that both blocks of a cluster have are copied by either in turn, for both. */
template <typename S>
PTX_FN void produce(const sdd_mma_arg &arg, sdd_ring &ring, int begin, int end)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - S::warps;
    const int panel = lane * SDD_PRODUCERS + warp;
    const bool leads = warp == 0 && lane == 0;
    sdd_pace pace = {0, 0, false};
    ring.parity = 1; /* all stages are empty */
    for (int i = begin; i < end; i++) {
        const sdd_segment s = segment_mine(arg, i);
        const int2 corner = __ldg((const int2 *)arg.corners + s.unit);
        const bool of_a = panel < S::panels;
        const bool both = arg.cluster > 1 && of_a &&
                          __ldg((const int2 *)arg.corners + (s.unit ^ 1)).x == corner.x;
        const bool copies = both ? lane % 2 == (int)cluster_rank() : panel < 2 * S::panels;
        const int feature =
            of_a ? corner.x + panel * S::features : corner.y + (panel - S::panels) * S::features;
        const CUtensorMap *maps = of_a ? arg.a : arg.b;
        sdd_cursor c = cursor_start(arg.work, s);
        for (int t = 0; t < s.count; t++) {
            const uint32_t full = ring_full(ring, ring.at);
            if (leads)
                pace_step(pace, arg.work);
            ring_acquire(ring, warp == 0, S::stage_bytes);
            const int n = c.slice * S::slice;
            const uint32_t to = ring_stage(ring) + panel * S::panel_bytes;
            const int x = S::nc ? feature : n, y = S::nc ? n : feature;
            if (copies && both)
                tensor_load_2d_multicast(to, maps + c.pair, x, y, full, 3);
            else if (copies)
                tensor_load_2d(to, maps + c.pair, x, y, full);
            cursor_next(c, arg.work, s);
            ring_next(ring);
        }
    }
    if (leads)
        pace_finish(pace, arg.work);
}

/* What the warps that compute do with segments begin .. end - 1: each kernel has its own. */
template <typename S>
PTX_FN void consume(const sdd_mma_arg &arg, sdd_ring &ring, int begin, int end);

template <typename S> PTX_FN void run(const sdd_mma_arg &arg)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t bars = shared_address(shared);
    sdd_ring ring = {bars, bars + SDD_HEAD_BYTES, S::stage_bytes, arg.work.stages, 0, 0};
    ring_init(ring, S::warps * arg.cluster);
    if (arg.cluster > 1)
        cluster_sync();
    grid_allow_next();
    grid_wait();
    const int list = blockIdx.x / arg.cluster;
    const int begin = arg.work.start[list], end = arg.work.start[list + 1];
    if (threadIdx.x / 32 >= S::warps) {
        registers_lower<32>();
        produce<S>(arg, ring, begin, end);
    } else {
        registers_raise<S::registers>();
        consume<S>(arg, ring, begin, end);
    }
    /* The other block's copies and arrivals come here, too. */
    __syncwarp();
    if (arg.cluster > 1)
        cluster_sync();
}

#endif
