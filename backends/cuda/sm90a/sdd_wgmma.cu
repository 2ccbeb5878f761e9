/* sdd on Hopper by wgmma: both operands from shared memory, features contiguous (nc) or samples
 * (cn). Four warps copy panels, two warpgroups sweep over the samples; docs/cuda.md shows the flow.
 * Two thread blocks may make a cluster: either copies half of the panels that both need; or both
 * have the same unit, and halves of the samples. Products of tf32 take operands along the samples
 * alone: where features are contiguous, A goes through registers, and a kernel before has turned B. */
#include <backends/cuda/sm90a/sdd_device.h>

enum { CONSUMERS = 8, THREADS = 384, PIECE = 32, MOST = 4 * PIECE };

/* TYPE of elements, NC: features contiguous, CLUSTER: thread blocks that share panels, HALVES:
 * whether two have halves of a unit; and the descriptors of an operand of several panels, as the
 * copies leave them. */
template <int TYPE, int NC, int CLUSTER, bool HALVES> struct form {
    static constexpr int type = TYPE, cluster = CLUSTER;
    static constexpr bool halves = HALVES, turned = TYPE == WGMMA_TF32 && NC;
    static constexpr int samples = TYPE == WGMMA_TF32 ? SDD_PANEL_F32 : SDD_PANEL;
    static constexpr int nc = NC && !turned; /* of what products find in shared memory */
    static constexpr uint32_t leading = nc ? SDD_PANEL_BYTES : 0;
    static constexpr uint32_t high = descriptor_high(1024, SWIZZLE_128);
    static constexpr uint32_t step = (nc ? 2048 : 32) >> 4; /* of 16 samples, of f32 8 */
};

/* Where the sums of a warp belong: lanes hold the first columns of its pieces, and the places of
 * their tiles, 16 a piece. All are on their way while the last products run, so that the store waits
 * for none of them. */
template <int PIECES> struct places {
    static constexpr int count = (PIECES + 1) / 2;
    int row8, col8, place[count];
};

template <int PIECES>
PTX_FN places<PIECES> places_load(const sdd_output &o, int row0, const int32_t *features)
{
    const int lane = threadIdx.x % 32;
    places<PIECES> p;
    p.row8 = row0 / 8 + threadIdx.x / 32 % 4 * 2;
    p.col8 = lane < PIECES ? (table_load(features + lane) & SDD_FEATURE) / 8 : 0;
#pragma unroll
    for (int i = 0; i < places<PIECES>::count; i++) {
        const int piece = i * 2 + lane / 16, tile = lane % 16;
        const int col8 = __shfl_sync(~0u, p.col8, piece) + tile % 8;
        p.place[i] = -1;
        if (piece < PIECES)
            p.place[i] = place_load(o, p.row8 + tile / 8, col8);
    }
    return p;
}

/* The place of a tile of a piece, and its first column. */
template <int PIECES> PTX_FN int place_of(const places<PIECES> &p, int piece, int tile)
{
    int own = p.place[0];
    if (places<PIECES>::count > 1 && piece >= 2)
        own = p.place[places<PIECES>::count - 1];
    return __shfl_sync(~0u, own, piece % 2 * 16 + tile);
}

/* 16 rows by 64 columns of a warp, of which only alpha is to be applied. */
template <int PIECES>
PTX_FN void store_piece_plain(const sdd_output &o, const float *acc, const places<PIECES> &p,
                              int piece, int col8)
{
    const int lane = threadIdx.x % 32, col0 = col8 * 8 + lane % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const bool inside = (p.row8 + h) * 8 + lane / 4 < o.rows;
        const int in_tile = lane / 4 * o.block_cols + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float *d = acc + i * 4 + h * 2;
            const int place = place_of(p, piece, h * 8 + i);
            if (place >= 0 && inside && col0 + i * 8 < o.cols)
                output_store(o, (int64_t)place * 8 + in_tile,
                             make_float2(o.alpha * d[0], o.alpha * d[1]),
                             col0 + i * 8 + 1 < o.cols);
        }
    }
}

/* All tiles of a warp, whole rows of each. */
template <int PIECES, bool F32>
PTX_FN void store_rows(const sdd_output &o, const float *acc, const places<PIECES> &p)
{
#pragma unroll
    for (int j = 0; j < PIECES; j++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 8; i += 4)
                store_four<F32>(o, acc + j * PIECE + i * 4 + h * 2, 4,
                                place_of(p, j, h * 8 + i + threadIdx.x % 4));
}

/* What this thread block does of a segment. */
template <typename F> PTX_FN sdd_segment segment_of(const sdd_segment *p)
{
    sdd_segment s = segment_own<F::cluster>(p);
    if (F::halves) {
        s.first = (int)cluster_rank();
        s.step = 2;
        s.count = (s.count + 1 - s.first) / 2;
    }
    return s;
}

/* Adds the sums of both halves, and returns whether this warpgroup has them: that of its block's
 * number. The other's go through the stages, which are no longer in use. By all warps that compute,
 * with COUNT = 0 if without sums. */
template <int COUNT> PTX_FN bool halves_add(float *acc, const sdd_ring &ring)
{
    const uint32_t rank = cluster_rank(), place = ring.stages + threadIdx.x % 128 * 16;
    const bool mine = threadIdx.x / 128 == rank;
    named_barrier(1, 32 * CONSUMERS);
    if (!mine)
#pragma unroll
        for (int i = 0; i < COUNT; i += 4)
            shared_store_16(place + i * 512, __float_as_uint(acc[i]), __float_as_uint(acc[i + 1]),
                            __float_as_uint(acc[i + 2]), __float_as_uint(acc[i + 3]));
    cluster_sync();
    if (mine)
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            const float4 v = cluster_load_16(place + i * 512, rank ^ 1);
            acc[i] += v.x;
            acc[i + 1] += v.y;
            acc[i + 2] += v.z;
            acc[i + 3] += v.w;
        }
    return mine;
}

/* What this thread block has of a unit. */
template <typename F> PTX_FN const sdd_unit *unit_own(const sdd_wgmma_arg &arg, int unit)
{
    return arg.units + (F::cluster > 1 ? unit * F::cluster + (int)cluster_rank() : unit);
}

template <int PIECES>
PTX_FN void store_pieces(const sdd_output &o, float *acc, const places<PIECES> &p)
{
    const bool plain = output_plain(o);
    if (output_rows(o)) {
        if (o.type == BSK_F32)
            store_rows<PIECES, true>(o, acc, p);
        else
            store_rows<PIECES, false>(o, acc, p);
        return;
    }
#pragma unroll 1
    for (int j = 0; j < PIECES; j++) {
        const int col8 = __shfl_sync(~0u, p.col8, j);
        if (plain)
            store_piece_plain(o, acc, p, j, col8);
        else
#pragma unroll 1
            for (int i = 0; i < 8; i++) {
                store_tile(o, make_float2(acc[0], acc[1]), p.row8, col8 + i, place_of(p, j, i));
                store_tile(o, make_float2(acc[2], acc[3]), p.row8 + 1, col8 + i,
                           place_of(p, j, 8 + i));
                rotate<PIECE, 4>(acc);
            }
        if (PIECES > 1)
            rotate<PIECES * PIECE, PIECE>(acc);
    }
}

/* In all blocks of the cluster, as either copies for both. */
template <typename F> PTX_FN void stage_release(const sdd_ring &ring, int stage)
{
    const int lane = threadIdx.x % 32;
    if (F::cluster > 1 && lane < F::cluster)
        mbar_arrive_remote(ring_empty(ring, stage), lane);
    if (F::cluster == 1 && lane == 0)
        mbar_arrive(ring_empty(ring, stage));
}

/* What a warpgroup has of a unit: how many pieces. Brings the line with all that a sweep needs. */
template <typename F> PTX_FN int pieces_load(const sdd_wgmma_arg &arg, int unit)
{
    return table_load(unit_own<F>(arg, unit)->count + threadIdx.x / 128);
}

/* Of a panel of A in f32 with features contiguous, in halves of 32 of them: what a product 8 deep from
 * k8 * 8 on wants, of samples that are even, then odd. */
PTX_FN void load_turned(uint32_t *a, uint32_t panel, int k8)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int k = k8 * 8 + lane % 4 * 2 + i / 2, feature = warp % 2 * 16 + i % 2 * 8 + lane / 4;
        a[i] = shared_load_4(panel + warp / 2 * (SDD_PANEL_BYTES / 2) + k * 128 +
                             (feature / 4 ^ k % 8) * 16 + feature % 4 * 4);
    }
}

/* The products of a stage. With A in registers, those of one step run while the next loads, and the
 * stage before is done with when the second starts. */
template <typename F, int PIECES>
PTX_FN void multiply(float *acc, uint32_t a_panel, uint32_t b_panels, const sdd_ring &ring,
                     int before)
{
    const uint32_t a = descriptor_low(a_panel, F::leading);
    const uint32_t b = descriptor_low(b_panels, F::leading);
    if constexpr (F::turned) {
        uint32_t v[2][4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            wgmma_wait<1>();
            if (k == 1 && before >= 0)
                stage_release<F>(ring, before);
            load_turned(v[k % 2], a_panel, k);
            wgmma_fence();
            wgmma_rs<F::type, PIECES * 64, 0>(acc, v[k % 2], descriptor(b + k * F::step, F::high),
                                              1);
            wgmma_commit();
        }
    } else {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_ss<F::type, PIECES * 64, F::nc, F::nc>(acc, descriptor(a + k * F::step, F::high),
                                                         descriptor(b + k * F::step, F::high), 1);
        wgmma_commit();
        if (before >= 0) {
            wgmma_wait<1>();
            stage_release<F>(ring, before);
        }
    }
}

/* One segment of a warpgroup: 64 rows by PIECES * 64 columns. Returns the pieces of the next unit,
 * whose line arrives while this one's last products run. */
template <typename F, int PIECES>
PTX_FN int sweep(const sdd_wgmma_arg &arg, const sdd_segment &s, int next, sdd_ring &ring)
{
    const int warp = threadIdx.x / 32, group = warp / 4;
    const sdd_unit *unit = unit_own<F>(arg, s.unit);
    const uint32_t a_at = __shfl_sync(~0u, unit->a[group], 0) * SDD_PANEL_BYTES;
    const int b_panel = __shfl_sync(~0u, unit->b[group], 0);
    const uint32_t b_at = b_panel * SDD_PANEL_BYTES;
    float acc[PIECES * PIECE];
#pragma unroll
    for (int i = 0; i < PIECES * PIECE; i++)
        acc[i] = 0;

    /* A stage is given back when the products after it are under way: one batch is always so. */
    int before = -1;
    for (int t = 0; t < s.count; t++) {
        mbar_wait(ring_full(ring, ring.at), ring.parity);
        multiply<F, PIECES>(acc, ring_stage(ring) + a_at, ring_stage(ring) + b_at, ring, before);
        before = ring.at;
        ring_next(ring);
    }
    const int row0 = unit->feature[unit->a[group]] & SDD_FEATURE;
    const places<PIECES> to = places_load<PIECES>(arg.out, row0, unit->feature + b_panel);
    const int pieces = pieces_load<F>(arg, next);
    wgmma_wait<0>();
    if (before >= 0)
        stage_release<F>(ring, before);
    wgmma_settle(acc);

    if (F::halves ? !halves_add<PIECES * PIECE>(acc, ring)
                  : !parts_add<PIECES * PIECE>(acc, arg.work, s, warp, CONSUMERS, MOST))
        return pieces;
    store_pieces<PIECES>(arg.out, acc, to);
    return pieces;
}

/* A warpgroup without pieces of a unit only gives the stages back. */
template <typename F> PTX_FN void skip(const sdd_segment &s, sdd_ring &ring)
{
    for (int t = 0; t < s.count; t++) {
        mbar_wait(ring_full(ring, ring.at), ring.parity);
        __syncwarp();
        stage_release<F>(ring, ring.at);
        ring_next(ring);
    }
    float none[1];
    if (F::halves)
        halves_add<0>(none, ring);
}

/* Panels are dealt to the producing warps: a warp issues its copies one after the other, in some
 * hundred cycles each. */
template <typename F>
PTX_FN void produce(const sdd_wgmma_arg &arg, sdd_ring &ring, int begin, int end)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - CONSUMERS;
    const int panel = lane * SDD_PRODUCERS + warp;
    const sdd_work &work = arg.work;
    const bool leads = warp == 0 && lane == 0;
    sdd_pace pace = {0, 0, false};
    ring.parity = 1; /* all stages are empty */
    for (int i = begin; i < end; i++) {
        const sdd_segment s = segment_of<F>(arg.work.segments + i);
        const sdd_unit *unit = unit_own<F>(arg, s.unit);
        const int panels = unit->panels;
        const int feature = panel < panels ? unit->feature[panel] : 0;
        const CUtensorMap *maps = feature & SDD_OF_B ? arg.b : arg.a;
        const int at = feature & SDD_FEATURE;
        const bool both = F::cluster > 1 && feature & SDD_SHARED;
        const bool copies = panel < panels && (!both || panel % 2 == (int)cluster_rank());
        sdd_cursor c = cursor_start(work, s);
        for (int t = 0; t < s.count; t++) {
            const uint32_t full = ring_full(ring, ring.at);
            if (leads)
                pace_step(pace, work);
            ring_acquire(ring, warp == 0, panels * SDD_PANEL_BYTES);
            const int n = c.slice * F::samples;
            const uint32_t to = ring_stage(ring) + panel * SDD_PANEL_BYTES;
            const bool across = F::nc || (F::turned && maps == arg.a);
            const int x = across ? at : n, y = across ? n : at;
            if (copies && both)
                tensor_load_2d_multicast(to, maps + c.pair, x, y, full, (1 << F::cluster) - 1);
            else if (copies)
                tensor_load_2d(to, maps + c.pair, x, y, full);
            if (F::turned && copies && maps == arg.a) { /* the second half of a panel */
                if (both)
                    tensor_load_2d_multicast(to + SDD_PANEL_BYTES / 2, maps + c.pair,
                                             x + SDD_PANEL / 2, y, full, (1 << F::cluster) - 1);
                else
                    tensor_load_2d(to + SDD_PANEL_BYTES / 2, maps + c.pair, x + SDD_PANEL / 2, y,
                                   full);
            }
            cursor_next(c, work, s);
            ring_next(ring);
        }
    }
    if (leads)
        pace_finish(pace, work);
}

template <typename F>
PTX_FN void consume(const sdd_wgmma_arg &arg, sdd_ring &ring, int begin, int end)
{
    const sdd_segment *segments = arg.work.segments;
    int pieces = begin < end ? pieces_load<F>(arg, __ldg(&segments[begin].unit)) : 0;
    for (int i = begin; i < end; i++) {
        const int next = table_load(&segments[i + 1 < end ? i + 1 : i].unit);
        const sdd_segment s = segment_of<F>(segments + i);
        switch (__shfl_sync(~0u, pieces, 0)) {
        case 4:
            pieces = sweep<F, 4>(arg, s, next, ring);
            break;
        case 3:
            pieces = sweep<F, 3>(arg, s, next, ring);
            break;
        case 2:
            pieces = sweep<F, 2>(arg, s, next, ring);
            break;
        case 1:
            pieces = sweep<F, 1>(arg, s, next, ring);
            break;
        default:
            skip<F>(s, ring);
            pieces = pieces_load<F>(arg, next);
        }
    }
}

template <typename F> PTX_FN void run(const sdd_wgmma_arg &arg)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t bars = shared_address(shared);
    sdd_ring ring = {bars, bars + SDD_HEAD_BYTES, (uint32_t)arg.stage_bytes, arg.work.stages, 0, 0};
    ring_init(ring, CONSUMERS * F::cluster);
    if (F::cluster > 1)
        cluster_sync();
    grid_allow_next();
    grid_wait();
    const int list = blockIdx.x / (F::halves ? 2 : F::cluster);
    const int begin = arg.work.start[list], end = arg.work.start[list + 1];
    if (threadIdx.x / 32 >= CONSUMERS) {
        registers_lower<32>();
        produce<F>(arg, ring, begin, end);
        if (F::halves && begin < end) {
            __syncwarp();
            cluster_sync(); /* that of halves_add */
        }
    } else {
        registers_raise<232>();
        consume<F>(arg, ring, begin, end);
    }
    if (F::cluster > 1 || F::halves) {
        __syncwarp();
        cluster_sync(); /* the other's copies, arrivals and loads come here, too */
    }
}

#define SDD_WGMMA(type, TYPE, kind, axis, NC, CLUSTER, HALVES)                                     \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                       \
        sdd_wgmma_##kind##type##_##axis(const __grid_constant__ sdd_wgmma_arg arg)                 \
    {                                                                                              \
        run<form<TYPE, NC, CLUSTER, HALVES>>(arg);                                                 \
    }
FOR_HALVES_WGMMA(SDD_WGMMA, , nc, 1, 1, false)
FOR_HALVES_WGMMA(SDD_WGMMA, , cn, 0, 1, false)
FOR_HALVES_WGMMA(SDD_WGMMA, halves_, nc, 1, 1, true)
FOR_HALVES_WGMMA(SDD_WGMMA, halves_, cn, 0, 1, true)
FOR_HALVES_WGMMA(SDD_WGMMA, two_, nc, 1, 2, false)
FOR_HALVES_WGMMA(SDD_WGMMA, two_, cn, 0, 2, false)

#define SDD_WGMMA_TF32(kind, CLUSTER, HALVES)                                                      \
    SDD_WGMMA(tf32, WGMMA_TF32, kind, nc, 1, CLUSTER, HALVES)                                      \
    SDD_WGMMA(tf32, WGMMA_TF32, kind, cn, 0, CLUSTER, HALVES)
SDD_WGMMA_TF32(, 1, false)
SDD_WGMMA_TF32(halves_, 1, true)
SDD_WGMMA_TF32(two_, 2, false)

/* --- Turning --- */

/* A tile of features by samples, in quarters of a row of 16 bytes, through shared memory. */
extern "C" __global__ void __launch_bounds__(SDD_TURN_THREADS)
    sdd_turn(const __grid_constant__ sdd_turn_arg a)
{
    enum { TILE = SDD_TURN_TILE, QUADS = TILE / 4, COUNT = TILE * QUADS / SDD_TURN_THREADS };
    __shared__ float tile[TILE][TILE + 1];
    const int64_t tiles = (a.features + TILE - 1) / TILE;
    const int64_t f0 = blockIdx.x % tiles * TILE, n0 = blockIdx.x / tiles * TILE;
    const int quad = threadIdx.x % QUADS * 4, line = threadIdx.x / QUADS;
    grid_allow_next();
    grid_wait();
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const int sample = line + i * (SDD_TURN_THREADS / QUADS);
        const float *from = a.from + (n0 + sample) * a.from_row + f0 + quad;
        const int64_t left = n0 + sample < a.samples ? a.features - f0 - quad : 0;
        float4 v = make_float4(0, 0, 0, 0);
        if (left >= 4)
            v = *(const float4 *)from;
        else if (left > 0)
            v = make_float4(from[0], left > 1 ? from[1] : 0, left > 2 ? from[2] : 0, 0);
        tile[quad][sample] = v.x;
        tile[quad + 1][sample] = v.y;
        tile[quad + 2][sample] = v.z;
        tile[quad + 3][sample] = v.w;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const int feature = line + i * (SDD_TURN_THREADS / QUADS);
        const float *from = &tile[feature][quad / 8 * 8 + quad / 4 % 2];
        if (f0 + feature < a.features && n0 + quad < a.to_row)
            *(float4 *)(a.to + (f0 + feature) * a.to_row + n0 + quad) =
                make_float4(from[0], from[2], from[4], from[6]);
    }
}

/* Clears what all kernels of sdd count in. */
extern "C" __global__ void __launch_bounds__(SDD_CLEAR_THREADS)
    sdd_clear(uint4 *__restrict__ counters, int32_t count)
{
    const int i = blockIdx.x * SDD_CLEAR_THREADS + threadIdx.x;
    grid_allow_next();
    grid_wait();
    if (i < count)
        counters[i] = make_uint4(0, 0, 0, 0);
}
