/* Kernels of dsd_mma_device.h for up to 64 samples, all of which are in a tile: what counts is to
 * read the weights once, and activations once for as many outputs as can be.
 *
 * A cluster of two has a tile of outputs, either block of threads half of the depth. Two warps of a
 * block have the same outputs, and take its stages by turns. At the end all leave their sums in
 * shared memory, and each adds up a share of the runs, in the order of the blocks and their warps. */
#include <backends/cuda/sm90a/dsd_mma_device.h>

enum { CONSUMERS_BARRIER = 1 };
static_assert(DSD_MMA_RING + DSD_MMA_WARPS(DSD_MMA_FEW) * DSD_MMA_PLACES * sizeof(uint16_t) <=
                  DSD_MMA_FEW_HEAD,
              "places reach into the ring");

/* --- Units of 8 --- */

/* Any two slices of a unit are the k16 of a product: half of the lanes of an ldmatrix have the rows
 * of one, half of the other. Where a warp's slices lie in a stage, unit by unit, is listed first. */
struct slices {
    uint32_t x, turn;     /* of a lane's row in a slice: see lane_place */
    uint32_t place;       /* of the slice of a lane's bit */
    uint16_t *places;     /* of the warp */
    const uint16_t *mine; /* from the first slice of a lane on */
};

template <class C> FN slices slices_of(uint16_t *places, int lane)
{
    const uint32_t row = C::CN ? lane % 8 : lane % 16, k = lane;
    for (int i = lane; i < DSD_MMA_PLACES; i += LANES)
        places[i] = 0;
    return {row * 128 + (C::CN ? (lane / 8 % 2 ^ row) << 4 : 0), C::CN ? 0 : row % 8 << 4,
            C::CN ? k * 1024 : k / 8 * C::PANEL_BYTES + k % 8 * 16, places, places + lane / 16};
}

/* Lists the slices of a stage, from the bits of its units. */
FN void slices_list(const slices &p, const uint32_t (&masks)[DSD_MMA_SLICE_UNITS], int lane)
{
    const uint32_t below = (1u << lane) - 1;
    uint16_t *to = p.places;
    __syncwarp();
#pragma unroll
    for (int unit = 0; unit < DSD_MMA_SLICE_UNITS; unit++) {
        if (masks[unit] >> lane & 1)
            to[__popc(masks[unit] & below)] = (uint16_t)p.place;
        to += __popc(masks[unit]);
    }
    __syncwarp();
}

/* Whether the m-th 16 samples count. more: there are more than 16. */
template <class C> FN bool band_counts(int m, bool more)
{
    return m == 0 || C::TILE == DSD_MMA_FEW || more;
}

/* The activations of two slices. */
template <class C>
FN void slices_load(uint32_t (&a)[C::BANDS][4], uint32_t x, uint32_t place, const slices &p,
                    bool more)
{
    const uint32_t from = x + (place ^ p.turn);
#pragma unroll
    for (int m = 0; m < C::BANDS; m++)
        if (band_counts<C>(m, more))
            load_matrix_x4_if<C::CN>(1, a[m], C::CN ? from ^ m * 32 : from + m * (BAND * 128));
}

/* Where a warp is in a stage: in its list of slices, of which the next place is loaded ahead, and
 * in the weights. */
struct slices_at {
    const uint16_t *mine;
    uint32_t place, w;
};

FN void slices_step(slices_at &at, int count, uint32_t bytes)
{
    at.mine += count;
    at.place = *at.mine;
    at.w += bytes;
}

/* The products of a unit with so many slices. */
template <class C>
FN void unit_multiply(float (&sum)[C::SUMS], int unit, int count, uint32_t x, slices_at &at,
                      const slices &p, bool more)
{
    typedef typename C::type type;
    uint32_t a[C::BANDS][4];
#pragma unroll 1
    for (; count > 1; count -= 2) {
        slices_load<C>(a, x, at.place, p, more);
        const uint32_t b[] = {shared_load_4(at.w), shared_load_4(at.w + C::STEP_BYTES)};
        slices_step(at, 2, 2 * C::STEP_BYTES);
#pragma unroll
        for (int m = 0; m < C::BANDS; m++)
            if (band_counts<C>(m, more))
                mma_m16n8k16<type>(sum + (m * WARP_TILES + unit) * 4, a[m], b);
    }
    if (count) {
        slices_load<C>(a, x, at.place, p, more);
        const uint32_t b[] = {shared_load_4(at.w)};
        slices_step(at, 1, C::STEP_BYTES);
#pragma unroll
        for (int m = 0; m < C::BANDS; m++)
            if (band_counts<C>(m, more))
                mma_m16n8k8<type>(sum + (m * WARP_TILES + unit) * 4, a[m], b);
    }
}

/* --- A warp's stages --- */

/* What lanes find in 32 stages from one on: part_multiply's words, or of units of 8 the bits of
 * each, and where the weights lie. */
struct words {
    uint4 masks;
    uint32_t first;
};

template <class C> FN words words_load(const uint32_t *parts, int at, int stages)
{
    words w = {};
    if (at < stages && C::UNIT == 8) {
        w.masks = __ldg((const uint4 *)parts + 2 * at);
        w.first = __ldg(parts + at * DSD_MMA_MASKS_WORDS + DSD_MMA_SLICE_UNITS);
    } else if (at < stages) {
        const uint2 part = __ldg((const uint2 *)parts + at);
        w.masks = make_uint4(part.x, part.y, 0, 0);
    }
    return w;
}

/* A warp's steps of the stage in the ring's slot: see part_multiply. */
template <class C>
FN void masks_multiply(float (&sum)[C::SUMS], const words &own, int i, const ring &r,
                       uint32_t x_bytes, int lane, const slices &p, bool more)
{
    const uint32_t slot = r.slots + r.slot * r.slot_bytes, x = slot + p.x;
    const uint32_t masks[] = {word_of(own.masks.x, i, lane), word_of(own.masks.y, i, lane),
                              word_of(own.masks.z, i, lane), word_of(own.masks.w, i, lane)};
    slices_list(p, masks, lane);
    slices_at at = {p.mine, *p.mine,
                    slot + x_bytes + lane * 4 + word_of(own.first, i, lane) * C::STEP_BYTES};
    mbar_wait(r.barriers + FULL_AT + 8 * r.slot, r.phase);
#pragma unroll
    for (int unit = 0; unit < DSD_MMA_SLICE_UNITS; unit++)
        unit_multiply<C>(sum, unit, __popc(masks[unit]), x, at, p, more);
}

/* The first stage of this block's tile, whose place does not depend on how many others have. */
FN int few_first(const dsd_mma_arg &a)
{
    const int across = a.panels / DSD_MMA_CLUSTER;
    return (int)(blockIdx.x % DSD_MMA_CLUSTER * across + blockIdx.x / DSD_MMA_CLUSTER) * a.stride;
}

/* A warp's sums of its stages, left where the ring was. */
template <class C>
FN void few_multiply(const dsd_mma_arg &a, ring r, uint8_t *head, int warp, int lane)
{
    const int column = warp % a.warp_cols, turn = warp / a.warp_cols;
    const uint32_t *parts =
        a.parts + ((size_t)few_first(a) * a.warp_cols + column * a.stride) *
                      (C::UNIT == 8 ? (int)DSD_MMA_MASKS_WORDS : (int)DSD_MMA_PART_WORDS);
    words now = words_load<C>(parts, lane, a.stride);
    const int stages = tile_load(a.tiles, blockIdx.x, blockIdx.x + 1).stages;
    const lane_place place = place_of<C>(0, lane, a.depth);
    uint16_t *places = (uint16_t *)head + warp * DSD_MMA_PLACES;
    const slices list = C::UNIT == 8 ? slices_of<C>(places, lane) : slices();
    const uint32_t x_bytes = C::SAMPLES * a.depth * sizeof(typename C::type);
    float sum[C::SUMS];
#pragma unroll
    for (int k = 0; k < C::SUMS; k++)
        sum[k] = 0;
    if (turn)
        ring_step(r);
    grid_wait();
    for (int first = 0; first < stages; first += LANES) {
        const words next = words_load<C>(parts, first + LANES + lane, a.stride);
        const int count = stages - first < LANES ? stages - first : LANES;
        for (int i = turn; i < count; i += DSD_MMA_TURNS) {
            if constexpr (C::UNIT == 8)
                masks_multiply<C>(sum, now, i, r, x_bytes, lane, list, a.epilogue.n > BAND);
            else
                part_multiply<C>(sum, make_uint2(now.masks.x, now.masks.y), i, r, column, x_bytes,
                                 place);
            mbar_arrive(r.barriers + EMPTY_AT + 8 * r.slot); /* each lane: see tile_multiply */
            for (int k = 0; k < DSD_MMA_TURNS; k++)
                ring_step(r);
        }
        now = next;
    }
    named_barrier(CONSUMERS_BARRIER, a.warp_cols * (DSD_MMA_TURNS * LANES)); /* all have read it */
    sums_store<C>((float *)(head + DSD_MMA_FEW_HEAD - DSD_MMA_RING) + warp * (C::SUMS * LANES), sum,
                  lane);
}

/* One producer: of several, one might pass a slot by a phase of the turn before, as turns give their
 * slots back independently. */
template <class C> FN void few_produce(const CUtensorMap *x, const dsd_mma_arg &a, ring r, int lane)
{
    dsd_mma_tile tile = {few_first(a), a.stride, 0, 0};
    const uint4 ahead = stages_load(a, tile, lane);
    tile = tile_load(a.tiles, blockIdx.x, blockIdx.x + 1);
    if (lane == 0)
        tensor_map_prefetch(x);
    grid_wait();
    int turn = 0;
    r.phase = 1; /* the slots are empty */
    tile_produce<C>(x, a, r, tile, ahead, turn, 1, 0, lane);
}

/* Of the runs of a column of warps those that this one adds up. */
template <class C> FN void few_finish(const dsd_mma_arg &a, uint32_t sums, int warp, int lane)
{
    enum { ALL = DSD_MMA_CLUSTER * DSD_MMA_TURNS, RUN_BYTES = DSD_RUN * LANES * sizeof(float) };
    constexpr uint32_t WARP_BYTES = C::RUNS * RUN_BYTES;
    const int column = warp % a.warp_cols, turn = warp / a.warp_cols;
    const int tile = blockIdx.x / DSD_MMA_CLUSTER;
    const int output =
        run_output<C::ORDER>(a.columns + (tile * a.warp_cols + column) * C::COLUMNS, lane);
    const uint32_t from = sums + column * WARP_BYTES + lane * sizeof(float4);
    for (int i = cluster_rank() * DSD_MMA_TURNS + turn; i < C::RUNS && i * 8 < a.epilogue.n;
         i += ALL) {
        float v[DSD_RUN] = {0};
#pragma unroll
        for (int k = 0; k < ALL; k++) {
            const uint32_t at = from + k % DSD_MMA_TURNS * a.warp_cols * WARP_BYTES + i * RUN_BYTES;
            const float4 low = cluster_load_16(at, k / DSD_MMA_TURNS);
            const float4 high = cluster_load_16(at + RUN_BYTES / 2, k / DSD_MMA_TURNS);
            v[0] += low.x, v[1] += low.y, v[2] += low.z, v[3] += low.w;
            v[4] += high.x, v[5] += high.y, v[6] += high.z, v[7] += high.w;
        }
        run_finish<C::ORDER>(a.epilogue, v, output, i * 8, lane);
    }
}

template <class C> FN void few_product(const CUtensorMap *x, const dsd_mma_arg &a)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = __shfl_sync(~0u, threadIdx.x / LANES, 0), lane = threadIdx.x % LANES;
    const int warps = a.warp_cols * DSD_MMA_TURNS;
    const uint32_t barriers = __shfl_sync(~0u, shared_address(shared), 0);
    const ring r = {barriers, barriers + DSD_MMA_FEW_HEAD, a.slot_bytes, (uint32_t)a.slots, 0, 0};
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.slots; i++) {
            mbar_init(barriers + FULL_AT + 8 * i, 1);
            mbar_init(barriers + EMPTY_AT + 8 * i, LANES * a.warp_cols);
        }
        mbar_init_fence();
    }
    __syncthreads();
    grid_allow_next();
    if (warp >= warps) {
        registers_lower<PRODUCER_REGISTERS>();
        if (warp == warps)
            few_produce<C>(x, a, r, lane);
        cluster_sync();
    } else {
        registers_raise<C::REGISTERS>();
        few_multiply<C>(a, r, shared + DSD_MMA_RING, warp, lane);
        cluster_sync();
        few_finish<C>(a, r.slots, warp, lane);
    }
    cluster_sync(); /* the other block has read what is here */
}

#define KERNEL(type, T, unit, axis, cn, name, tile)                                                \
    extern "C" __global__ void __launch_bounds__(DSD_MMA_THREADS(tile), 1)                         \
        dsd_sm90a_mma_##type##_##unit##_##axis##_##name##_any(                                     \
            const __grid_constant__ CUtensorMap x, const __grid_constant__ dsd_mma_arg a)          \
    {                                                                                              \
        few_product<config<T, unit, cn, tile, false>>(&x, a);                                      \
    }
#define KERNELS_TILE(type, T, axis, cn, name, tile)                                                \
    KERNEL(type, T, 8, axis, cn, name, tile)                                                       \
    KERNEL(type, T, 16, axis, cn, name, tile)                                                      \
    KERNEL(type, T, 32, axis, cn, name, tile)
#define KERNELS(type, T)                                                                           \
    KERNELS_TILE(type, T, nc, false, few, DSD_MMA_FEW)                                             \
    KERNELS_TILE(type, T, nc, false, fewer, DSD_MMA_FEWER)                                         \
    KERNELS_TILE(type, T, cn, true, few, DSD_MMA_FEW)                                              \
    KERNELS_TILE(type, T, cn, true, fewer, DSD_MMA_FEWER)
FOR_HALVES(KERNELS)
