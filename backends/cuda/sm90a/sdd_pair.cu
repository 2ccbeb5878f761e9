/* sdd on Hopper by wgmma for blocks of 32, features contiguous: the 64 rows of a product are two
 * kept cells of one column. Panels have 32 features, and the distance between the two halves of
 * operand A is a field of its descriptor, so that any two panels of the stage can be halves. */
#include <backends/cuda/sm90a/sdd_device.h>
#include <backends/cuda/sm90a/sdd_mma.h>

enum { WARPS = 4 * SDD_PAIR_GROUPS, THREADS = 32 * WARPS + 128, PAIR = 16, FEATURES = 32 };

template <int TYPE, int HIGH, int WIDE, int SAMPLES> struct shape {
    static constexpr int type = TYPE, high = HIGH, wide = WIDE, samples = SAMPLES;
    static constexpr int panel_bytes = 2 * FEATURES * SAMPLES;
    static constexpr int panels = (HIGH + WIDE) / FEATURES;
    static constexpr int stage_bytes = panels * panel_bytes;
    static constexpr uint32_t mask = sdd_mma_mask(SDD_MMA_PANEL, HIGH / 64, SAMPLES);
    static constexpr int second = sdd_mma_second(SDD_MMA_PANEL, SAMPLES);
};

template <typename S, int COUNT>
PTX_FN void store_pairs(const sdd_output &o, float *acc, const uint32_t *entries, int count,
                        int2 corner)
{
    const int warp = threadIdx.x / 32 % 4;
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        const uint32_t entry = __ldg(entries + i);
        const uint32_t first = entry & S::mask, other = entry >> S::second & S::mask;
        const int row = corner.x / 8 + (int)(warp < 2 ? first : other) * 4 + warp % 2 * 2;
        const int col = corner.y / 8 + (int)(entry >> SDD_MMA_B) * 4;
#pragma unroll 1
        for (int j = 0; j < 4; j++) {
            if (warp < 2 || other != first) {
                store_tile(o, make_float2(acc[0], acc[1]), row, col + j);
                store_tile(o, make_float2(acc[2], acc[3]), row + 1, col + j);
            }
            rotate<PAIR, 4>(acc);
        }
        rotate<COUNT * PAIR, PAIR>(acc);
    }
}

/* One segment of a warpgroup with COUNT pairs, or less: then others are computed too, from whatever
 * an entry of 0 stands for, and not stored. */
template <typename S, int COUNT>
PTX_FN void sweep(const sdd_mma_arg &arg, const sdd_segment &s, int count, sdd_ring &ring)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t owner = (size_t)s.unit * SDD_PAIR_GROUPS + warp / 4;
    constexpr uint32_t high = descriptor_high(512, SWIZZLE_64), step = 1024 >> 4;
    uint32_t list[COUNT];
    float acc[COUNT * PAIR];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        list[i] = __shfl_sync(~0u, __ldg(arg.entries + owner * SDD_PAIR_SLOTS + i), 0);
#pragma unroll
    for (int i = 0; i < COUNT * PAIR; i++)
        acc[i] = 0;

    int before = -1;
    for (int t = 0; t < s.count; t++) {
        mbar_wait(ring_full(ring, ring.at), ring.parity);
        const uint32_t stage = ring_stage(ring);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const uint32_t first = list[i] & S::mask, other = list[i] >> S::second & S::mask;
            const uint32_t column = S::high / FEATURES + (list[i] >> SDD_MMA_B);
            const uint32_t a =
                descriptor_low(stage + first * S::panel_bytes, (other - first) * S::panel_bytes);
            const uint32_t b = descriptor_low(stage + column * S::panel_bytes, 0);
#pragma unroll
            for (int k = 0; k < S::samples / 16; k++)
                wgmma_ss<S::type, 32, 1, 1>(acc + i * PAIR, descriptor(a + k * step, high),
                                            descriptor(b + k * step, high), 1);
        }
        wgmma_commit();
        if (before >= 0) {
            wgmma_wait<1>();
            if (lane == 0)
                mbar_arrive(ring_empty(ring, before));
        }
        before = ring.at;
        ring_next(ring);
    }
    wgmma_wait<0>();
    if (before >= 0 && lane == 0)
        mbar_arrive(ring_empty(ring, before));

    if (!parts_add<COUNT * PAIR>(acc, arg.work, s, warp, WARPS, SDD_PAIR_SLOTS * PAIR))
        return;
    const int2 corner = __ldg((const int2 *)arg.corners + s.unit);
    store_pairs<S, COUNT>(arg.out, acc, arg.entries + owner * SDD_PAIR_SLOTS, count, corner);
}

/* A warpgroup without pairs of a unit only gives the stages back. */
PTX_FN void skip(const sdd_segment &s, sdd_ring &ring)
{
    for (int t = 0; t < s.count; t++) {
        mbar_wait(ring_full(ring, ring.at), ring.parity);
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            mbar_arrive(ring_empty(ring, ring.at));
        ring_next(ring);
    }
}

/* Panels are dealt to the producing warps, which issue their copies one after the other. */
template <typename S>
PTX_FN void produce(const sdd_mma_arg &arg, sdd_ring &ring, int begin, int end)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - WARPS;
    const int panel = lane * SDD_PRODUCERS + warp;
    ring.parity = 1; /* all stages are empty */
    for (int i = begin; i < end; i++) {
        const sdd_segment s = segment_load(arg.work.segments + i);
        const int2 corner = __ldg((const int2 *)arg.corners + s.unit);
        const bool of_a = panel < S::high / FEATURES;
        const int feature =
            of_a ? corner.x + panel * FEATURES : corner.y + panel * FEATURES - S::high;
        const CUtensorMap *maps = of_a ? arg.a : arg.b;
        sdd_cursor c = cursor_start(arg.work, s);
        for (int t = 0; t < s.count; t++) {
            const uint32_t full = ring_full(ring, ring.at);
            ring_acquire(ring, warp == 0, S::stage_bytes);
            if (panel < S::panels)
                tensor_load_2d(ring_stage(ring) + panel * S::panel_bytes, maps + c.pair, feature,
                               c.slice * S::samples, full);
            cursor_next(c, arg.work, s);
            ring_next(ring);
        }
    }
}

template <typename S>
PTX_FN void consume(const sdd_mma_arg &arg, sdd_ring &ring, int begin, int end)
{
    const int group = threadIdx.x / 128;
    for (int i = begin; i < end; i++) {
        const sdd_segment s = segment_load(arg.work.segments + i);
        const uint32_t head = __ldg(arg.heads + (size_t)s.unit * SDD_PAIR_GROUPS + group);
        const int own = __shfl_sync(~0u, head >> 16, 0);
        switch (own) {
#define CASE(count)                                                                                \
    case count:                                                                                    \
        sweep<S, count>(arg, s, own, ring);                                                        \
        break;
        case 1:
        case 2:
        case 3:
            CASE(4)
            CASE(5)
            CASE(6)
            CASE(7)
            CASE(8)
#undef CASE
        default:
            skip(s, ring);
        }
    }
}

template <typename S> PTX_FN void run(const sdd_mma_arg &arg)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t bars = shared_address(shared);
    sdd_ring ring = {bars, bars + SDD_HEAD_BYTES, S::stage_bytes, arg.work.stages, 0, 0};
    ring_init(ring, WARPS);
    const int begin = arg.work.start[blockIdx.x], end = arg.work.start[blockIdx.x + 1];
    if (threadIdx.x / 32 >= WARPS) {
        registers_lower<32>();
        produce<S>(arg, ring, begin, end);
    } else {
        registers_raise<160>();
        consume<S>(arg, ring, begin, end);
    }
}

#define SDD_PAIR_KERNEL(name, TYPE, HIGH, WIDE, SAMPLES)                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                       \
        name(const __grid_constant__ sdd_mma_arg arg)                                              \
    {                                                                                              \
        run<shape<TYPE, HIGH, WIDE, SAMPLES>>(arg);                                                \
    }
#define SDD_PAIR_KERNELS(id, HIGH, WIDE, SAMPLES)                                                  \
    SDD_PAIR_KERNEL(sdd_pair_##id##_bf16, WGMMA_BF16, HIGH, WIDE, SAMPLES)                         \
    SDD_PAIR_KERNEL(sdd_pair_##id##_f16, WGMMA_F16, HIGH, WIDE, SAMPLES)
SDD_PAIR_SHAPES(SDD_PAIR_KERNELS)
