/* sdd on Hopper by wgmma for blocks of 32. Panels have 32 features; the rows of a product are any
 * two panels of the stage, and its columns any two others. Features contiguous: how far it is from
 * the first half of an operand to the other is a field of its descriptor. Samples contiguous: it is
 * not, so the rows come from registers, each half from those of two warps, and meet one half of the
 * columns after the other. So it is with f32, whose products take operands along the samples alone:
 * where features are contiguous, a kernel before has turned both. */
#include <backends/cuda/sm90a/sdd_device.h>
#include <backends/cuda/sm90a/sdd_pair.h>

enum {
    WARPS = 4 * SDD_PAIR_GROUPS,
    THREADS = 32 * WARPS + 128,
    PRODUCT = 32, /* sums a lane */
    MOST = SDD_PAIR_SLOTS * PRODUCT
};

template <int TYPE, int HIGH, int SAMPLES, int ALONG_N> struct shape {
    static constexpr int type = TYPE, high = HIGH, samples = SAMPLES;
    static constexpr int row_bytes = SAMPLES * (TYPE == WGMMA_TF32 ? 4 : 2);
    static constexpr int panel_bytes = SDD_PAIR_CELL * row_bytes, steps = row_bytes / 32;
    static constexpr bool along_n = ALONG_N;
    static_assert(!along_n || row_bytes == 64, "rows of 64 bytes either way");
};

/* The place of a list's unit, and of its list of products, in this block of the cluster. */
PTX_FN size_t unit_own(const sdd_segment &s)
{
    return (size_t)s.unit * SDD_PAIR_CLUSTER + cluster_rank();
}

/* In both blocks of the cluster, as either copies for both. */
PTX_FN void stage_release(const sdd_ring &ring, int stage)
{
    const int lane = threadIdx.x % 32;
    if (lane < SDD_PAIR_CLUSTER)
        mbar_arrive_remote(ring_empty(ring, stage), lane);
}

/* The places of a warp's tiles, 16 a product, which its lanes hold: all are on their way while the
 * last products run, so that the store waits for none of them. */
template <int COUNT> struct places {
    static constexpr int count = (COUNT + 1) / 2;
    int place[count];
};

/* The row and the column of a tile of a product, from the corner of the unit. */
PTX_FN int tile_row(uint32_t product, int tile)
{
    const int warp = threadIdx.x / 32 % 4;
    return (int)(product >> 4 * (warp / 2) & 15) * 4 + warp % 2 * 2 + tile % 2;
}

PTX_FN int tile_col(uint32_t product, int tile)
{
    return (int)(product >> (SDD_PAIR_COL + tile / 8 * 4) & 15) * 4 + tile / 2 % 4;
}

template <int COUNT>
PTX_FN places<COUNT> places_load(const sdd_output &o, const uint32_t *products, int4 unit)
{
    const int lane = threadIdx.x % 32, second = threadIdx.x / 64 % 2;
    places<COUNT> p;
#pragma unroll
    for (int i = 0; i < places<COUNT>::count; i++) {
        const int at = i * 2 + lane / 16, tile = lane % 16;
        const uint32_t product = at < COUNT ? __ldg(products + at) : 0;
        const bool kept = product >> (SDD_PAIR_KEPT + 2 * second + tile / 8) & 1;
        p.place[i] = -1;
        if (kept)
            p.place[i] = place_load(o, unit.x / 8 + tile_row(product, tile),
                                    unit.y / 8 + tile_col(product, tile));
    }
    return p;
}

/* All tiles of a warp, whole rows of each. */
template <int COUNT, bool F32>
PTX_FN void store_rows(const sdd_output &o, const float *acc, const places<COUNT> &p)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int j = 0; j < 8; j += 4)
                store_four<F32>(o, acc + i * PRODUCT + j * 4 + h * 2, 4,
                                __shfl_sync(~0u, p.place[i / 2],
                                            i % 2 * 16 + 2 * (j + (int)threadIdx.x % 4) + h));
}

template <int COUNT>
PTX_FN void store_products(const sdd_output &o, float *acc, const places<COUNT> &p,
                           const uint32_t *products, int4 unit)
{
    if (output_rows(o)) {
        if (o.type == BSK_F32)
            store_rows<COUNT, true>(o, acc, p);
        else
            store_rows<COUNT, false>(o, acc, p);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < COUNT; i++) {
        const bool late = places<COUNT>::count > 1 && i >= 2;
        const int place = late ? p.place[places<COUNT>::count - 1] : p.place[0];
        const uint32_t product = __ldg(products + i);
        const int row = unit.x / 8 + tile_row(product, 0);
#pragma unroll 1
        for (int j = 0; j < 8; j++) {
            const int col = unit.y / 8 + tile_col(product, 2 * j), at = i % 2 * 16 + 2 * j;
            store_tile(o, make_float2(acc[0], acc[1]), row, col, __shfl_sync(~0u, place, at));
            store_tile(o, make_float2(acc[2], acc[3]), row + 1, col,
                       __shfl_sync(~0u, place, at + 1));
            rotate<PRODUCT, 4>(acc);
        }
        if (COUNT > 1)
            rotate<COUNT * PRODUCT, PRODUCT>(acc);
    }
}

/* The panels of a product. */
typedef struct sides {
    uint32_t row, row_next, col, col_next;
} sides;

PTX_FN sides sides_load(const uint32_t *product)
{
    const uint32_t p = __shfl_sync(~0u, __ldg(product), 0);
    return {p & 15, p >> 4 & 15, p >> SDD_PAIR_COL & 15, p >> (SDD_PAIR_COL + 4) & 15};
}

/* Adds the products of a segment's slices, features contiguous. All but the last batch are over at
 * the end, whose stage is returned, -1: there is none. */
template <typename S, int COUNT>
PTX_FN int multiply(float *acc, const sdd_segment &s, const uint32_t *products, sdd_ring &ring)
{
    constexpr uint32_t high = descriptor_high(512, SWIZZLE_64), step = 1024 >> 4;
    uint32_t a_at[COUNT], b_at[COUNT]; /* of the low halves of descriptors in a stage */
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const sides p = sides_load(products + i);
        a_at[i] = descriptor_low(p.row * S::panel_bytes, (p.row_next - p.row) * S::panel_bytes);
        b_at[i] = descriptor_low((S::high + p.col) * S::panel_bytes,
                                 (p.col_next - p.col) * S::panel_bytes);
    }

    /* A stage is given back when the products after it are under way: one batch is always so. */
    int before = -1;
    for (int t = 0; t < s.count; t++) {
        mbar_wait(ring_full(ring, ring.at), ring.parity);
        const uint32_t stage = descriptor_low(ring_stage(ring), 0);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < S::steps; k++)
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                wgmma_ss<S::type, 64, 1, 1>(acc + i * PRODUCT,
                                            descriptor(stage + a_at[i] + k * step, high),
                                            descriptor(stage + b_at[i] + k * step, high), 1);
        wgmma_commit();
        if (before >= 0) {
            wgmma_wait<1>();
            stage_release(ring, before);
        }
        before = ring.at;
        ring_next(ring);
    }
    return before;
}

/* The same, samples contiguous. The registers that wgmma may use are those of the sums and of the
 * rows of one product for 16 samples, of f32 8. The next one's rows wait in others until it is over, and get
 * there by an operation, since the compiler would undo a copy; meanwhile other warpgroups multiply.
 * No product is under way from one slice to the next, which would take more such registers. */
template <typename S, int COUNT>
PTX_FN void multiply_along_n(float *acc, const sdd_segment &s, const uint32_t *products,
                             sdd_ring &ring, uint32_t zero)
{
    constexpr uint32_t high = descriptor_high(512, SWIZZLE_64), step = 32 >> 4;
    constexpr uint32_t panel = S::panel_bytes >> 4;
    constexpr int steps = S::steps * COUNT;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int row = warp % 2 * 16 + lane % 16;
    const uint32_t lane_at = row * 64 + (lane / 16 ^ row / 2 % 4) * 16;
    uint32_t a_at[COUNT], b_at[COUNT]; /* of a lane's row; of the low halves of two descriptors */
    uint32_t a[4], next[4];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const sides p = sides_load(products + i);
        a_at[i] = lane_at + (warp < 2 ? p.row : p.row_next) * S::panel_bytes;
        b_at[i] = (S::high + p.col) * panel | (S::high + p.col_next) * panel << 16;
    }

    for (int t = 0; t < s.count; t++) {
        mbar_wait(ring_full(ring, ring.at), ring.parity);
        const uint32_t stage = ring_stage(ring), low = descriptor_low(stage, 0);
        ldmatrix_x4(next, stage + a_at[0]);
#pragma unroll
        for (int n = 0; n < steps; n++) {
            const int i = n % COUNT, after = n + 1;
            const uint32_t from = low + n / COUNT * step;
            float *const sums = acc + i * PRODUCT;
            wgmma_wait<0>();
#pragma unroll
            for (int j = 0; j < 4; j++)
                a[j] = next[j] ^ zero;
            wgmma_fence();
            wgmma_rs<S::type, 32, 0>(sums, a, descriptor(from + (b_at[i] & 0xffff), high), 1);
            wgmma_rs<S::type, 32, 0>(sums + PRODUCT / 2, a,
                                     descriptor(from + (b_at[i] >> 16), high), 1);
            wgmma_commit();
            if (after < steps)
                ldmatrix_x4(next, (stage + a_at[after % COUNT]) ^ after / COUNT * 32);
        }
        wgmma_wait<0>();
        stage_release(ring, ring.at);
        ring_next(ring);
    }
}

/* One segment of a warpgroup with COUNT products. */
template <typename S, int COUNT>
PTX_FN void sweep(const sdd_pair_arg &arg, const sdd_segment &s, const uint32_t *products,
                  sdd_ring &ring)
{
    float acc[COUNT * PRODUCT];
#pragma unroll
    for (int i = 0; i < COUNT * PRODUCT; i++)
        acc[i] = 0;
    int last = -1;
    if constexpr (S::along_n)
        multiply_along_n<S, COUNT>(acc, s, products, ring, arg.zero);
    else
        last = multiply<S, COUNT>(acc, s, products, ring);
    const int4 unit = __ldg((const int4 *)arg.tiles + unit_own(s));
    const places<COUNT> to = places_load<COUNT>(arg.out, products, unit);
    wgmma_wait<0>();
    if (last >= 0)
        stage_release(ring, last);

    if (parts_add<COUNT * PRODUCT>(acc, arg.work, s, threadIdx.x / 32, WARPS, MOST))
        store_products<COUNT>(arg.out, acc, to, products, unit);
}

/* A warpgroup without products of a unit only gives the stages back. */
PTX_FN void skip(const sdd_segment &s, sdd_ring &ring)
{
    for (int t = 0; t < s.count; t++) {
        mbar_wait(ring_full(ring, ring.at), ring.parity);
        __syncwarp();
        stage_release(ring, ring.at);
        ring_next(ring);
    }
}

/* Panels are dealt to the producing warps, which issue their copies one after the other. Those of A
 * are the same in both blocks, and either copies every other one for both. */
template <typename S>
PTX_FN void produce(const sdd_pair_arg &arg, sdd_ring &ring, int begin, int end)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - WARPS;
    const int panel = lane * SDD_PRODUCERS + warp, rank = (int)cluster_rank();
    const bool of_a = panel < S::high;
    const CUtensorMap *maps = of_a ? arg.a : arg.b;
    ring.parity = 1; /* all stages are empty */
    for (int i = begin; i < end; i++) {
        const sdd_segment s = segment_load(arg.work.segments + i);
        const int4 tile = __ldg((const int4 *)arg.tiles + unit_own(s));
        const int panels = S::high + tile.z;
        const bool copies = of_a ? lane % SDD_PAIR_CLUSTER == rank : panel < panels;
        const int feature =
            of_a ? tile.x + panel * SDD_PAIR_CELL : tile.y + (panel - S::high) * SDD_PAIR_CELL;
        sdd_cursor c = cursor_start(arg.work, s);
        for (int t = 0; t < s.count; t++) {
            const uint32_t full = ring_full(ring, ring.at);
            const uint32_t to = ring_stage(ring) + panel * S::panel_bytes;
            ring_acquire(ring, warp == 0, panels * S::panel_bytes);
            const int n = c.slice * S::samples;
            const int x = S::along_n ? n : feature, y = S::along_n ? feature : n;
            if (copies && of_a)
                tensor_load_2d_multicast(to, maps + c.pair, x, y, full,
                                         (1 << SDD_PAIR_CLUSTER) - 1);
            else if (copies)
                tensor_load_2d(to, maps + c.pair, x, y, full);
            cursor_next(c, arg.work, s);
            ring_next(ring);
        }
    }
}

template <typename S>
PTX_FN void consume(const sdd_pair_arg &arg, sdd_ring &ring, int begin, int end)
{
    const int group = threadIdx.x / 128;
    for (int i = begin; i < end; i++) {
        const sdd_segment s = segment_own<SDD_PAIR_CLUSTER>(arg.work.segments + i);
        const uint32_t *products =
            arg.products + (unit_own(s) * SDD_PAIR_GROUPS + group) * SDD_PAIR_SLOTS;
        int count = 0;
        for (int j = 0; j < SDD_PAIR_SLOTS; j++)
            count += __ldg(products + j) != 0;
        switch (__shfl_sync(~0u, count, 0)) {
        case 4:
            sweep<S, 4>(arg, s, products, ring);
            break;
        case 3:
            sweep<S, 3>(arg, s, products, ring);
            break;
        case 2:
            sweep<S, 2>(arg, s, products, ring);
            break;
        case 1:
            sweep<S, 1>(arg, s, products, ring);
            break;
        default:
            skip(s, ring);
        }
    }
}

template <typename S> PTX_FN void run(const sdd_pair_arg &arg)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t bars = shared_address(shared);
    sdd_ring ring = {bars, bars + SDD_HEAD_BYTES, (uint32_t)arg.stage_bytes, arg.work.stages, 0, 0};
    ring_init(ring, WARPS * SDD_PAIR_CLUSTER);
    cluster_sync();
    grid_allow_next();
    grid_wait();
    const int list = blockIdx.x / SDD_PAIR_CLUSTER;
    const int begin = arg.work.start[list], end = arg.work.start[list + 1];
    if (threadIdx.x / 32 >= WARPS) {
        registers_lower<32>();
        produce<S>(arg, ring, begin, end);
    } else {
        registers_raise<160>();
        consume<S>(arg, ring, begin, end);
    }
    __syncwarp();
    cluster_sync(); /* the other's copies and arrivals come here, too */
}

#define SDD_PAIR_KERNEL(type, TYPE, id, HIGH, WIDE, SAMPLES, ALONG_N)                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                       \
        sdd_pair_##id##_##type(const __grid_constant__ sdd_pair_arg arg)                           \
    {                                                                                              \
        run<shape<TYPE, HIGH, SAMPLES, ALONG_N>>(arg);                                             \
    }
#define SDD_PAIR_KERNELS(...)    FOR_HALVES_WGMMA(SDD_PAIR_KERNEL, __VA_ARGS__)
#define SDD_PAIR_KERNEL_F32(...) SDD_PAIR_KERNEL(tf32, WGMMA_TF32, __VA_ARGS__)
SDD_PAIR_SHAPES(SDD_PAIR_KERNELS)
SDD_PAIR_SHAPES_F32(SDD_PAIR_KERNEL_F32)
