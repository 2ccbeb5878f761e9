/* dsd by wgmma for blocks whose sides are 8 to 128, on cells of 64 x 64, or for f32 that may be
 * rounded to tf32 of 64 x 32: what is said of 64 along the inner dimension is 32 there. docs/cuda.md
 * has a picture of the data flow.
 *
 * One thread block a multiprocessor walks over its list of tiles of C, 256 samples x 2 panels of 64
 * features. Two warpgroups multiply 128 samples each; samples are the rows of the product, so that
 * a stage can have cells of one panel or of both. Producer warps bring what they read through rings
 * in shared memory: a slice of 64 of the activations for each group by tensor copies, and the
 * packed cells by bulk copies. With clusters of two, neighbouring tiles along n share their cells:
 * each block fetches half of them for both. */
#include <backends/cuda/mma.h>
#include <backends/cuda/ptx.h>
#include <backends/cuda/sm90a/dsd_cell.h>
#include <backends/cuda/sm90a/dsd_wgmma.h>
#include <backends/cuda/sm90a/ring.h>

enum { LANES = 32, GROUP_WARPS = 4, CONSUMER_WARPS = 2 * GROUP_WARPS };
enum { CONSUMER_REGISTERS = 232, PRODUCER_REGISTERS = 40 };
enum { WEIGHTS = 2 }; /* of the rings: those of the groups' slices are 0 and 1 */

/* By the type of the products: what an operand's element is in memory, and how many make a row. */
template <int TYPE> struct stored {
    typedef uint16_t word;
    static constexpr int ROW = DSD_ROW_BYTES / sizeof(word);
    static __device__ __forceinline__ float number(word bits)
    {
        return numbers_of<typename element<TYPE>::type>(bits).x;
    }
};
template <> struct stored<WGMMA_TF32> {
    typedef uint32_t word;
    static constexpr int ROW = DSD_ROW_BYTES / sizeof(word);
    static __device__ __forceinline__ float number(word bits)
    {
        return __uint_as_float(bits);
    }
};

/* Whether activations lie across the depth, and products do not take them so. */
template <int TYPE, int TRANS> __device__ __forceinline__ constexpr bool is_turned()
{
    return TYPE == WGMMA_TF32 && TRANS;
}

/* Where things lie in shared memory. */
struct memory {
    uint32_t base;

    static __device__ int first(int ring)
    {
        return ring * DSD_SLICES;
    }
    __device__ uint32_t data(int ring, int slot) const
    {
        return base + (first(ring) + slot) * DSD_SLICE_BYTES;
    }
    __device__ uint32_t scratch(int warp) const
    {
        return base + DSD_SLOTS * DSD_SLICE_BYTES + warp * (DSD_SCRATCH_BYTES / CONSUMER_WARPS);
    }
    /* Barriers: the data of a slot has come; its readers are done. */
    __device__ uint32_t full(int ring, int slot) const
    {
        return scratch(CONSUMER_WARPS) + (first(ring) + slot) * 8;
    }
    __device__ uint32_t empty(int ring, int slot) const
    {
        return full(ring, slot) + DSD_SLOTS * 8;
    }
    /* Weights for clusters: the readers in all blocks are done. */
    __device__ uint32_t ready(int slot) const
    {
        return scratch(CONSUMER_WARPS) + (2 * DSD_SLOTS + slot) * 8;
    }
};

/* --- The lists: read ahead, because each read takes as long as a stage --- */

__device__ __forceinline__ dsd_tile load_tile(const dsd_wgmma_arg &a, int i, int end)
{
    const int4 *p = (const int4 *)(a.tiles + (i < end ? i : end - 1));
    const int4 low = __ldg(p), high = __ldg(p + 1);
    return {low.x, low.y, low.z, low.w, {high.x, high.y}, high.z, high.w};
}

__device__ __forceinline__ int count_stages(const dsd_tile &tile)
{
    return tile.two + tile.both + tile.one;
}

/* Of 32 stages from t on, one a lane. */
__device__ __forceinline__ dsd_stage load_stage(const dsd_wgmma_arg &a, const dsd_tile &tile, int t)
{
    const int mine = t + threadIdx.x % LANES;
    if (mine >= count_stages(tile))
        return {0, 0};
    const int2 v = __ldg((const int2 *)(a.stages + tile.first + mine));
    return {v.x, v.y};
}

/* --- Producers: a warp for each ring --- */

template <int TRANS, int ROW>
__device__ __forceinline__ void fetch_slice(const CUtensorMap *map, uint32_t to, int k, int sample,
                                            int member, uint32_t bar)
{
    mbar_expect(bar, DSD_SLICE_BYTES);
    if (TRANS) {
#pragma unroll
        for (int n = 0; n < DSD_GROUP_N; n += ROW)
            tensor_load_3d(to + n * DSD_ROW_BYTES, map, sample + n, k, member, bar);
    } else {
        tensor_load_3d(to, map, k, sample, member, bar);
    }
}

/* Of a long list: two slices of 64 samples. */
template <int TRANS>
__device__ __forceinline__ void fetch_slices(const CUtensorMap *map, uint32_t to, int slices,
                                             int sample, int member, uint32_t bar)
{
    mbar_expect(bar, DSD_SLICE_BYTES);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const int slice = m ? slices >> DSD_SECOND : slices & ((1 << DSD_SECOND) - 1);
        const int k = slice * DSD_CELL;
        tensor_load_3d(to + m * (DSD_SLICE_BYTES / 2), map, TRANS ? sample : k, TRANS ? k : sample,
                       member, bar);
    }
}

/* Each block of a cluster brings its share of the weights to all of them. */
template <int CLUSTER>
__device__ __forceinline__ void fetch_cells(memory m, int slot, uint32_t parity, const char *from,
                                            uint32_t bytes, uint32_t rank)
{
    const uint32_t to = m.data(WEIGHTS, slot), bar = m.full(WEIGHTS, slot);
    if (CLUSTER == 1) {
        mbar_wait(m.empty(WEIGHTS, slot), parity ^ 1);
        mbar_expect(bar, bytes);
        bulk_load(to, from, bytes, bar);
    } else {
        const uint32_t share = bytes / CLUSTER, skip = rank * share;
        mbar_wait(m.ready(slot), parity);
        mbar_expect(bar, bytes);
        bulk_load_multicast(to + skip, from + skip, share, bar, (1 << CLUSTER) - 1);
    }
}

template <int TYPE, int TRANS, int CLUSTER, bool LONG, int RING>
__device__ __forceinline__ void produce(const CUtensorMap *map, const CUtensorMap *narrow,
                                        const dsd_wgmma_arg &a, memory m, int begin, int end,
                                        uint32_t rank)
{
    cursor<RING == WEIGHTS ? DSD_WEIGHTS : DSD_SLICES> at = {0, 0};
    dsd_tile tile = load_tile(a, begin, end), next = load_tile(a, begin + 1, end);
    dsd_stage mine = load_stage(a, tile, 0);
    grid_wait();
    for (int i = begin; i < end; i++) {
        const dsd_tile after = load_tile(a, i + 2, end);
        const dsd_stage ahead = load_stage(a, next, 0);
        const int stages = count_stages(tile);
        const int n = tile.n * CLUSTER + rank;
        const bool quarter = LONG && tile.quarter;
        const int sample = n % a.member_tiles * DSD_TILE_N +
                           (quarter ? (tile.quarter - 1) * DSD_CELL : RING * DSD_GROUP_N);
        const int member = n / a.member_tiles;
        for (int t = 0; t < stages; t++) {
            if (t && t % LANES == 0)
                mine = load_stage(a, tile, t);
            const int k = __shfl_sync(~0u, mine.k, t % LANES);
            const int64_t cell = __shfl_sync(~0u, mine.cell, t % LANES);
            if (quarter && RING != WEIGHTS && t % 2 != RING)
                continue;
            if (threadIdx.x % LANES == 0) {
                if (RING == WEIGHTS) {
                    const bool both = quarter || (t >= tile.two && t < tile.two + tile.both);
                    fetch_cells<CLUSTER>(m, at.slot, at.parity, a.weights + cell * DSD_CELL_BYTES,
                                         both ? 2 * DSD_CELL_BYTES : DSD_CELL_BYTES, rank);
                } else {
                    mbar_wait(m.empty(RING, at.slot), at.parity ^ 1);
                    const uint32_t to = m.data(RING, at.slot), bar = m.full(RING, at.slot);
                    if (quarter)
                        fetch_slices<TRANS>(narrow, to, k, sample, member, bar);
                    else
                        fetch_slice<TRANS, stored<TYPE>::ROW>(map, to, k, sample, member, bar);
                }
            }
            __syncwarp();
            at.next();
        }
        tile = next;
        next = after;
        mine = ahead;
    }
}

/* One thread of each block of a cluster tells all of them when the readers of weights are done. */
template <int CLUSTER>
__device__ __forceinline__ void relay(const dsd_wgmma_arg &a, memory m, int begin, int end)
{
    cursor<DSD_WEIGHTS> at = {0, 0};
    dsd_tile tile = load_tile(a, begin, end);
    for (int i = begin; i < end; i++) {
        const dsd_tile next = load_tile(a, i + 1, end);
        const int stages = count_stages(tile);
        for (int t = 0; t < stages; t++) {
            mbar_wait(m.empty(WEIGHTS, at.slot), at.parity ^ 1);
#pragma unroll
            for (int block = 0; block < CLUSTER; block++)
                mbar_arrive_remote(m.ready(at.slot), block);
            at.next();
        }
        tile = next;
    }
}

/* --- Consumers: a warpgroup for each group --- */

/* A group's place in its rings. */
struct reader {
    int group;
    cursor<DSD_SLICES> slice;
    cursor<DSD_WEIGHTS> weights;
};

/* The products of one stage: this group's two parts of 64 samples by N features, in N / 2 of R
 * registers each. Of a long list the parts are two slices of the same samples, and each has a cell. */
template <int TYPE, int TRANS, int N, bool LONG, int R>
__device__ __forceinline__ void multiply(float (&acc)[2][R], uint32_t slice, uint32_t cells)
{
    /* Activations: rows of 128 bytes, swizzled. A row is a sample, or with TRANS a k. */
    constexpr uint32_t a_high = descriptor_high(1024, SWIZZLE_128);
    constexpr uint32_t a_step = TRANS ? 2048 : 32;
    /* Cells: core matrices along k first, so that the second cell continues the first. */
    constexpr uint32_t b_high = descriptor_high(1024, SWIZZLE_NONE);
    const uint32_t a = descriptor_low(slice, 16), b = descriptor_low(cells, 128);
#pragma unroll
    for (int k = 0; k < DSD_CELL / 16; k++)
#pragma unroll
        for (int m = 0; m < 2; m++)
            wgmma_ss<TYPE, N, TRANS, 0>(
                acc[m], descriptor(a + ((m * DSD_CELL * 128 + k * a_step) >> 4), a_high),
                descriptor(b + ((k * 256 + (LONG ? m * DSD_CELL_BYTES : 0)) >> 4), b_high), 1);
}

/* `count` stages of one kind; one stage of products stays in flight. Of a long list the group has
 * every second one, and gives the others back. */
template <int TYPE, int TRANS, int N, bool LONG = false, int R>
__device__ __forceinline__ void consume(float (&acc)[2][R], memory m, reader &r, int count)
{
    const bool speaker = threadIdx.x % LANES == 0;
    uint32_t slice = 0, weights = 0; /* barriers of the stage in flight */
    for (int t = 0; t < count; t++) {
        mbar_wait(m.full(WEIGHTS, r.weights.slot), r.weights.parity);
        if (LONG && t % 2 != r.group) {
            __syncwarp(); /* none still waits for what is given back */
            if (speaker)
                mbar_arrive(m.empty(WEIGHTS, r.weights.slot));
            r.weights.next();
            continue;
        }
        mbar_wait(m.full(r.group, r.slice.slot), r.slice.parity);
        wgmma_fence();
        multiply<TYPE, TRANS, N, LONG>(acc, m.data(r.group, r.slice.slot),
                                       m.data(WEIGHTS, r.weights.slot));
        wgmma_commit();
        wgmma_wait<1>();
        if (speaker && t > (LONG ? r.group : 0)) {
            mbar_arrive(slice);
            mbar_arrive(weights);
        }
        slice = m.empty(r.group, r.slice.slot);
        weights = m.empty(WEIGHTS, r.weights.slot);
        r.slice.next();
        r.weights.next();
    }
    wgmma_wait<0>(); /* on every path: the compiler must see that acc is complete */
    wgmma_settle(acc[0]);
    wgmma_settle(acc[1]);
    if (speaker && count > (LONG ? r.group : 0)) {
        mbar_arrive(slice);
        mbar_arrive(weights);
    }
}

/* Of f32 with samples contiguous: what a product 8 deep from k8 * 8 on wants of both parts of 64
 * samples. A lane reads four neighbouring samples, which become rows 0 and 8 of its part of both
 * products, of k that are even, then odd: the weights' order along k is the same. */
__device__ __forceinline__ void load_turned(uint32_t (&a)[2][4], uint32_t slice, int k8)
{
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES % GROUP_WARPS;
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
        const int k = k8 * 8 + lane % 4 * 2 + odd;
        const uint4 v =
            shared_load_16(slice + (warp * LANES + k) * DSD_ROW_BYTES + (lane / 4 ^ k % 8) * 16);
        a[0][2 * odd] = v.x;
        a[0][2 * odd + 1] = v.y;
        a[1][2 * odd] = v.z;
        a[1][2 * odd + 1] = v.w;
    }
}

/* The same as consume() for these, which products of tf32 take from registers alone. While those of
 * one step run, the operands of the next are loaded. */
template <int N, int R>
__device__ __forceinline__ void consume_turned(float (&acc)[2][R], memory m, reader &r, int count)
{
    constexpr uint32_t b_high = descriptor_high(1024, SWIZZLE_NONE);
    const bool speaker = threadIdx.x % LANES == 0;
    uint32_t a[2][2][4], weights = 0; /* the barrier of the stage before */
    for (int t = 0; t < count; t++) {
        mbar_wait(m.full(r.group, r.slice.slot), r.slice.parity);
        mbar_wait(m.full(WEIGHTS, r.weights.slot), r.weights.parity);
        const uint32_t slice = m.data(r.group, r.slice.slot);
        const uint32_t b = descriptor_low(m.data(WEIGHTS, r.weights.slot), 128);
#pragma unroll
        for (int k8 = 0; k8 < 4; k8++) {
            wgmma_wait<1>(); /* all but the last step's products are done */
            if (k8 == 1 && speaker && t)
                mbar_arrive(weights);
            load_turned(a[k8 % 2], slice, k8);
            wgmma_fence();
#pragma unroll
            for (int p = 0; p < 2; p++)
                wgmma_rs<WGMMA_TF32, N, 0>(acc[p], a[k8 % 2][p],
                                           descriptor(b + (k8 * 256 >> 4), b_high), 1);
            wgmma_commit();
        }
        /* Each lane for what it has read itself: racecheck follows signals by thread. */
        mbar_arrive(m.empty(r.group, r.slice.slot));
        weights = m.empty(WEIGHTS, r.weights.slot);
        r.slice.next();
        r.weights.next();
    }
    wgmma_wait<0>();
    wgmma_settle(acc[0]);
    wgmma_settle(acc[1]);
    if (speaker && count)
        mbar_arrive(weights);
}

/* A long list's sums: both parts of both groups, in the first group's first part. */
__device__ __forceinline__ void add_groups(float (&acc)[2][32], memory m, int group)
{
    const uint32_t mine = m.scratch(0) + threadIdx.x % 128 * 4;
#pragma unroll
    for (int j = 0; j < 32; j++)
        acc[0][j] += acc[1][j];
    named_barrier(3, DSD_CONSUMERS); /* the scratch of the last tile's stores is free */
    if (group) {
#pragma unroll
        for (int j = 0; j < 32; j++)
            shared_store_4(mine + j * 512, __float_as_uint(acc[0][j]));
    }
    named_barrier(3, DSD_CONSUMERS);
    if (!group) {
#pragma unroll
        for (int j = 0; j < 32; j++)
            acc[0][j] += __uint_as_float(shared_load_4(mine + j * 512));
    }
    named_barrier(3, DSD_CONSUMERS);
}

/* The packer orders a cell's features so that a thread has runs of 16 bytes: register 4 j + 2 h + e
 * of quad lane q is feature 32 (j / 4) + 8 q + 2 (j % 4) + e of its panel, of f32 16 (j / 2) + 4 q +
 * 2 (j % 2) + e. */

/* Where a warp's sums belong: the first of its 16 samples of the first part of 64, and how far the
 * second part is (of a long list, which has one part, beyond all samples). Of f32 with samples
 * contiguous, whose warps have 32 neighbouring samples, the first of these. */
struct place {
    int64_t sample, member, part;
};

template <int TYPE, int TRANS> __device__ __forceinline__ constexpr int warp_samples()
{
    return is_turned<TYPE, TRANS>() ? 32 : 16;
}

/* C = alpha * sum, straight from the registers. */
__device__ __forceinline__ void store_bare(const float (&acc)[2][64], const dsd_epilogue &e,
                                           const dsd_tile &tile, const place &at)
{
    const int lane = threadIdx.x % LANES;
    const bool bf16 = e.c.type == BSK_BF16;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int64_t n = at.sample + m * at.part + h * 8 + lane / 4;
            if (n >= e.n)
                continue;
            uint16_t *row = (uint16_t *)e.c.data + at.member * e.c.batch + n * e.c.n;
#pragma unroll
            for (int run = 0; run < 4; run++) {
                const int64_t f = tile.feature[run / 2] + run % 2 * 32 + lane % 4 * 8;
                uint32_t word[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float *v = acc[m] + run * 16 + j * 4 + h * 2;
                    word[j] = dsd_pack(bf16, e.alpha * v[0], e.alpha * v[1]);
                }
                if (f < e.features)
                    store_global_16(row + f, make_uint4(word[0], word[1], word[2], word[3]));
            }
        }
}

/* C = act(alpha * sum + bias) in the same way. The bias of the next run is fetched before this one
 * is stored, since loads do not overtake stores. */
__device__ __forceinline__ void store_biased(const float (&acc)[2][64], const dsd_epilogue &e,
                                             const dsd_tile &tile, const place &at)
{
    const int lane = threadIdx.x % LANES;
    const bool bf16 = e.c.type == BSK_BF16;
    float bias[2][DSD_RUN];
    dsd_bias(e, tile.feature[0] + lane % 4 * 8, bias[0]);
#pragma unroll
    for (int run = 0; run < 4; run++) {
        const int64_t f = tile.feature[run / 2] + run % 2 * 32 + lane % 4 * 8;
        if (run < 3)
            dsd_bias(e, tile.feature[(run + 1) / 2] + (run + 1) % 2 * 32 + lane % 4 * 8,
                     bias[(run + 1) % 2]);
#pragma unroll
        for (int line = 0; line < 4; line++) {
            const int m = line / 2, h = line % 2;
            const int64_t n = at.sample + m * at.part + h * 8 + lane / 4;
            float v[DSD_RUN];
#pragma unroll
            for (int i = 0; i < DSD_RUN; i++)
                v[i] = acc[m][run * 16 + i / 2 * 4 + h * 2 + i % 2];
            dsd_finish_plain<true>(e, bias[run % 2], v);
            if (f < e.features && n < e.n)
                *(uint4 *)((uint16_t *)e.c.data + at.member * e.c.batch + n * e.c.n + f) =
                    dsd_pack_run(bf16, v);
        }
    }
}

/* With bias, an older C and a residual, where all have runs along features. */
__device__ __forceinline__ void store_lines(const float (&acc)[2][64], const dsd_epilogue &e,
                                            const dsd_tile &tile, const place &at)
{
    const int lane = threadIdx.x % LANES;
    const float alpha = dsd_alpha(e);
#pragma unroll
    for (int run = 0; run < 4; run++) {
        const int64_t f = tile.feature[run / 2] + run % 2 * 32 + lane % 4 * 8;
        float bias[DSD_RUN];
        dsd_bias(e, f, bias);
#pragma unroll
        for (int line = 0; line < 4; line++) {
            const int m = line / 2, h = line % 2;
            float v[DSD_RUN];
#pragma unroll
            for (int i = 0; i < DSD_RUN; i++)
                v[i] = fmaf(alpha, acc[m][run * 16 + i / 2 * 4 + h * 2 + i % 2], bias[i]);
            dsd_finish_line(e, v, f, at.sample + m * at.part + h * 8 + lane / 4, at.member);
        }
    }
}

/* A plain end where n is contiguous: a group transposes 64 samples x 64 features at a time in
 * its scratch, of which rows are features, and stores whole lines. Rows are swizzled so that neither
 * way has bank conflicts. */
__device__ __forceinline__ uint32_t turned(uint32_t scratch, int feature, int run)
{
    const int swizzle = feature / 8 % 4 * 2 + feature % 2;
    return scratch + feature * 128 + (run ^ swizzle) * 16;
}

template <bool ANY>
__device__ __forceinline__ void store_plain_n(const float (&acc)[2][64], const dsd_epilogue &e,
                                              const dsd_tile &tile, const place &at,
                                              uint32_t scratch, int group)
{
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES % GROUP_WARPS;
    const int thread = threadIdx.x % 128;
    const bool bf16 = e.c.type == BSK_BF16;
    uint16_t *base = (uint16_t *)e.c.data + at.member * e.c.batch;
#pragma unroll
    for (int part = 0; part < 4; part++) {
        const int m = part / 2, panel = part % 2;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float bias[DSD_RUN] = {0};
            if (ANY)
                dsd_bias(e, tile.feature[panel] + half * 32 + lane % 4 * 8, bias);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float v[DSD_RUN];
#pragma unroll
                for (int i = 0; i < DSD_RUN; i++)
                    v[i] = acc[m][panel * 32 + half * 16 + i / 2 * 4 + h * 2 + i % 2];
                dsd_finish_plain<ANY>(e, bias, v);
                const uint4 word = dsd_pack_run(bf16, v);
                const int feature = half * 32 + lane % 8 / 2 * 8 + lane / 8 * 2 + lane % 2;
                store_matrix_x4_trans(turned(scratch, feature, warp * 2 + h), word.x, word.y,
                                      word.z, word.w);
            }
        }
        named_barrier(1 + group, 128);
        const int64_t n = at.sample - warp * 16 + m * at.part + thread % 8 * 8;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int feature = thread / 8 + i * 16;
            const int64_t f = tile.feature[panel] + feature;
            const uint4 v = shared_load_16(turned(scratch, feature, thread % 8));
            if (f < e.features && n < e.n)
                store_global_16(base + f * e.c.feature + n, v);
        }
        named_barrier(1 + group, 128);
    }
}

/* A plain end of f32, straight from the registers along the axis of the activations: a thread has
 * runs of four features of a sample, or four samples of a feature. */
template <int TRANS>
__device__ __forceinline__ void store_f32(const float (&acc)[2][64], const dsd_epilogue &e,
                                          const dsd_tile &tile, const place &at)
{
    const int lane = threadIdx.x % LANES;
    float *base = (float *)e.c.data + at.member * e.c.batch;
#pragma unroll
    for (int run = 0; run < 4; run++) {
        const int64_t feature = tile.feature[run / 2] + run % 2 * 32 + lane % 4 * 4;
#pragma unroll
        for (int line = 0; line < 4; line++) {
            /* Number i: of features i and, from the fifth on, 12 more, of one sample; or of two
             * features, the second from the fifth on, of samples i % 4. */
            float v[DSD_RUN], bias[DSD_RUN];
            int64_t f[2], n;
#pragma unroll
            for (int i = 0; i < DSD_RUN; i++) {
                const int j = TRANS ? line : i / 2, h = TRANS ? i % 2 : line % 2;
                const int m = TRANS ? i / 2 % 2 : line / 2, odd = TRANS ? i / 4 : i % 2;
                v[i] = acc[m][run * 16 + j * 4 + h * 2 + odd];
            }
            if (TRANS) {
                f[0] = feature + line / 2 * 16 + line % 2 * 2;
                f[1] = f[0] + 1;
                n = at.sample + lane / 4 * 4;
            } else {
                f[0] = feature;
                f[1] = feature + 16;
                n = at.sample + line / 2 * at.part + line % 2 * 8 + lane / 4;
            }
#pragma unroll
            for (int i = 0; i < DSD_RUN; i++) {
                const int64_t own = f[i / 4] + (TRANS ? 0 : i % 4);
                bias[i] = e.bias && own < e.features ? e.bias[own] : 0;
            }
            dsd_finish_plain<true>(e, bias, v);
#pragma unroll
            for (int x = 0; x < 2; x++)
                if (f[x] < e.features && n < e.n)
                    *(float4 *)(base + f[x] * e.c.feature + n * e.c.n) =
                        make_float4(v[4 * x], v[4 * x + 1], v[4 * x + 2], v[4 * x + 3]);
        }
    }
}

/* --- Sums that are not finite --- */

/* Whether a sum of the group is NaN or infinite. */
__device__ __forceinline__ bool any_wild(const float (&acc)[2][64], int group)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        sum = fmaf(acc[0][i], 0, sum);
        sum = fmaf(acc[1][i], 0, sum);
    }
    return named_barrier_any(1 + group, 128, sum != 0);
}

/* One weight of a cell's image, at a place along k. */
template <int TYPE>
__device__ __forceinline__ float image_value(const char *cell, int feature, int k)
{
    typedef typename stored<TYPE>::word word;
    constexpr int RUN = stored<TYPE>::ROW / 8;
    const int x = column_of<word>(feature % 32), core = feature / 32 * 4 + x / 8, row = x % 8;
    const word *p = (const word *)cell + (core * 8 + k / RUN) * (8 * RUN) + row * RUN + k % RUN;
    return stored<TYPE>::number(*p);
}

/* One sum anew over the kept blocks alone: a gap counts as a weight of 0 in the products, which is
 * nothing only times a finite number. */
template <int TYPE>
__device__ __forceinline__ float sum_kept(const dsd_wgmma_arg &a, const dsd_tile &tile, int panel,
                                          int feature, int64_t n, int64_t member)
{
    typedef typename stored<TYPE>::word word;
    constexpr int ROW = stored<TYPE>::ROW;
    const int across = DSD_CELL / a.parts.features, parts = ROW / a.parts.k * across;
    float sum = 0;
    if (n >= a.epilogue.n)
        return sum;
#pragma unroll 1
    for (int t = 0; t < count_stages(tile); t++) {
        const bool both = t >= tile.two && t < tile.two + tile.both;
        if (!both && panel != (t < tile.two))
            continue;
        const dsd_stage stage = a.stages[tile.first + t];
        const int64_t cell = stage.cell + (both && panel);
        const int32_t *slots = a.parts.slots + cell * parts + feature / a.parts.features;
        const word *x = (const word *)a.b + member * a.b_batch + n * a.b_n + stage.k * a.b_k;
#pragma unroll 1
        for (int k = 0; k < ROW && stage.k + k < a.depth; k++)
            if (slots[k / a.parts.k * across] >= 0)
                sum = fmaf(image_value<TYPE>(a.weights + cell * DSD_CELL_BYTES, feature,
                                             place_along<word>(a.parts, k)),
                           stored<TYPE>::number(x[k * a.b_k]), sum);
    }
    return sum;
}

/* What a group stored of such sums with a bare end, of f32 a plain one, anew. The sums themselves are
 * not asked, whose registers would not serve the products then. */
template <int TYPE, int TRANS>
__device__ __forceinline__ void store_wild(const dsd_wgmma_arg &a, const dsd_tile &tile,
                                           const place &at, int group)
{
    const dsd_epilogue &e = a.epilogue;
    const int warp = threadIdx.x / LANES % GROUP_WARPS;
    const bool bf16 = e.c.type == BSK_BF16;
    named_barrier(1 + group, 128);
#pragma unroll 1
    for (int x = threadIdx.x % 128; x < 2 * DSD_CELL * DSD_GROUP_N; x += 128) {
        const int panel = x / (DSD_CELL * DSD_GROUP_N), feature = x % DSD_CELL;
        const int64_t f = (panel ? tile.feature[1] : tile.feature[0]) + feature;
        const int64_t n =
            at.sample - warp * warp_samples<TYPE, TRANS>() + x / DSD_CELL % DSD_GROUP_N;
        if (f >= e.features || n >= e.n)
            continue;
        const int64_t to = at.member * e.c.batch + f * e.c.feature + n * e.c.n;
        if constexpr (TYPE == WGMMA_TF32) {
            float *c = (float *)e.c.data + to;
            if (isfinite(*c))
                continue;
            const float bias[DSD_RUN] = {e.bias ? e.bias[f] : 0};
            float v[DSD_RUN] = {sum_kept<TYPE>(a, tile, panel, feature, n, at.member)};
            dsd_finish_plain<true>(e, bias, v);
            *c = v[0];
        } else {
            uint16_t *c = (uint16_t *)e.c.data + to;
            if (dsd_is_wild(bf16, *c))
                *c = (uint16_t)dsd_pack(
                    bf16, e.alpha * sum_kept<TYPE>(a, tile, panel, feature, n, at.member), 0);
        }
    }
}

/* A piece of a warp's sums, 512 of them: 32 features of 16 samples, or of f32 with samples contiguous
 * 16 features of 32 samples. A lane has 16, of which number i, and of the piece it takes two runs
 * of eight. */
template <int TYPE, int TRANS> struct piece {
    static constexpr bool tall = warp_samples<TYPE, TRANS>() == 32;

    /* The first of piece number `part`. */
    static __device__ __forceinline__ int panel(int part)
    {
        return tall ? part / 4 : part / 2 % 2;
    }
    static __device__ __forceinline__ int feature(int part)
    {
        return tall ? part % 4 * 16 : part % 2 * 32;
    }
    static __device__ __forceinline__ int64_t sample(int part, const place &at)
    {
        return at.sample + (tall ? 0 : part / 4 * at.part);
    }
    /* Of all 128 of a thread's sums. */
    static __device__ __forceinline__ constexpr int sum(int part, int i)
    {
        return tall ? i / 8 * 64 + part * 8 + i % 4 / 2 * 4 + i / 4 % 2 * 2 + i % 2
                    : part * 16 + i % 8 / 2 * 4 + i / 8 * 2 + i % 2;
    }
    /* Number x of run h: its feature and sample, and where in the scratch. */
    static __device__ __forceinline__ int feature_at(bool along_n, int h, int x)
    {
        const int lane = threadIdx.x % LANES;
        if (tall)
            return along_n ? lane % 16 : h * 8 + x;
        return along_n ? lane : lane % 4 * 8 + x;
    }
    static __device__ __forceinline__ int sample_at(bool along_n, int h, int x)
    {
        const int lane = threadIdx.x % LANES;
        if (tall)
            return along_n ? (h * 2 + lane / 16) * 8 + x : lane;
        return h * 8 + (along_n ? x : lane / 4);
    }
    static __device__ __forceinline__ uint32_t spot(int row, int column)
    {
        return row * 128 + (column ^ row % 8 * 4) * 4;
    }
    static __device__ __forceinline__ uint32_t spot_at(bool along_n, int h, int x)
    {
        const int f = feature_at(along_n, h, x), n = sample_at(along_n, h, x);
        if (tall)
            return spot(n % 4 * 4 + f % 4, n / 4 * 4 + f / 4);
        if (TYPE == WGMMA_TF32)
            return spot(h * 8 + f / 16 * 4 + f % 4, n % 8 * 4 + f % 16 / 4);
        return h * 1024 + spot(f % 8, n % 8 * 4 + f / 8);
    }
};

/* Everything else. Sums go through shared memory that belongs to the warp, a piece at a time: so a
 * lane gets runs along either axis, and the code exists once. */
template <int TYPE, int TRANS>
__device__ __forceinline__ void store_any(const float (&acc)[2][64], const dsd_wgmma_arg &a,
                                          const dsd_tile &tile, const place &at, uint32_t scratch,
                                          bool wild)
{
    typedef piece<TYPE, TRANS> own;
    const dsd_epilogue &e = a.epilogue;
    const int lane = threadIdx.x % LANES;
#pragma unroll 1
    for (int part = 0; part < 8; part++) {
        /* Rows are numbers of a lane; exchanged so that neither writing nor reading has bank
         * conflicts. */
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float v = acc[0][own::sum(0, i)];
#pragma unroll
            for (int p = 1; p < 8; p++)
                v = part == p ? acc[own::sum(p, i) / 64][own::sum(p, i) % 64] : v;
            shared_store_4(scratch + own::spot(i, lane), __float_as_uint(v));
        }
        __syncwarp();
        const int panel = own::panel(part);
#pragma unroll 1
        for (int h = 0; h < 2; h++) {
            const int feature = own::feature(part) + own::feature_at(e.along_n, h, 0);
            const int64_t f = (panel ? tile.feature[1] : tile.feature[0]) + feature;
            const int64_t n = own::sample(part, at) + own::sample_at(e.along_n, h, 0);
            const int step = e.along_n ? 0 : 1; /* of the feature from number to number */
            float v[DSD_RUN];
#pragma unroll 1
            for (int i = 0; wild && i < DSD_RUN; i++) {
                const uint32_t p = scratch + own::spot_at(e.along_n, h, i);
                if (!isfinite(__uint_as_float(shared_load_4(p))))
                    shared_store_4(
                        p, __float_as_uint(sum_kept<TYPE>(a, tile, panel, feature + i * step,
                                                          n + (step ? 0 : i), at.member)));
            }
#pragma unroll
            for (int i = 0; i < DSD_RUN; i++)
                v[i] = __uint_as_float(shared_load_4(scratch + own::spot_at(e.along_n, h, i)));
            dsd_finish(e, v, f, n, at.member);
        }
        __syncwarp();
    }
}

/* --- Tiles --- */

/* `count` stages of one kind. */
template <int TYPE, int TRANS, int N, int R>
__device__ __forceinline__ void consume_kind(float (&acc)[2][R], memory m, reader &r, int count)
{
    if constexpr (is_turned<TYPE, TRANS>())
        consume_turned<N>(acc, m, r, count);
    else
        consume<TYPE, TRANS, N>(acc, m, r, count);
}

template <int TYPE, int TRANS, int CLUSTER, bool LONG, int END>
__device__ __forceinline__ void consume_tiles(const dsd_wgmma_arg &a, memory m, int begin, int end,
                                              uint32_t rank)
{
    const int warp = threadIdx.x / LANES, group = warp / GROUP_WARPS;
    reader r = {group, {0, 0}, {0, 0}};
    dsd_tile tile = load_tile(a, begin, end);
    grid_wait();
    for (int i = begin; i < end; i++) {
        const dsd_tile next = load_tile(a, i + 1, end);
        /* Cells of the second panel alone come first, on registers that are then moved, by an
         * addition that the compiler cannot remove: products on the upper half of a wider one's
         * registers make it serialize all. */
        float acc[2][64], upper[2][32];
        const float zero = hidden_zero();
#pragma unroll
        for (int j = 0; j < 32; j++)
            upper[0][j] = upper[1][j] = 0;
        const bool quarter = LONG && tile.quarter;
        if (quarter) {
            if constexpr (LONG)
                consume<TYPE, TRANS, 64, true>(upper, m, r, tile.two);
            add_groups(upper, m, group);
        } else {
            consume_kind<TYPE, TRANS, 64>(upper, m, r, tile.two);
        }
#pragma unroll
        for (int j = 0; j < 64; j++) {
            acc[0][j] = j < 32 ? 0 : upper[0][j % 32] + zero;
            acc[1][j] = j < 32 ? 0 : upper[1][j % 32] + zero;
        }
        consume_kind<TYPE, TRANS, 128>(acc, m, r, tile.both);
        consume_kind<TYPE, TRANS, 64>(acc, m, r, tile.one);
        const int n = tile.n * CLUSTER + rank;
        const int first = quarter ? (tile.quarter - 1) * DSD_CELL : group * DSD_GROUP_N;
        const place at = {(int64_t)(n % a.member_tiles) * DSD_TILE_N + first +
                              warp % GROUP_WARPS * warp_samples<TYPE, TRANS>(),
                          n / a.member_tiles, quarter ? INT64_C(1) << 40 : DSD_CELL};
        const bool wild = a.gaps && any_wild(acc, group);
        if (CLUSTER > 1 && at.member >= a.members)
            ; /* the second tile of a cluster where their number is odd */
        else if (quarter && group)
            ; /* the first has its sums */
        else if constexpr (END == DSD_END_BARE) {
            if constexpr (TYPE == WGMMA_TF32)
                store_f32<TRANS>(acc, a.epilogue, tile, at);
            else if (a.epilogue.plain)
                store_bare(acc, a.epilogue, tile, at);
            else
                store_plain_n<false>(acc, a.epilogue, tile, at, m.scratch(group * GROUP_WARPS),
                                     group);
            if (wild)
                store_wild<TYPE, TRANS>(a, tile, at, group);
        } else if (TYPE == WGMMA_TF32)
            store_any<TYPE, TRANS>(acc, a, tile, at, m.scratch(warp), wild);
        else if (a.epilogue.plain && !wild)
            store_biased(acc, a.epilogue, tile, at);
        else if (a.epilogue.plain_n && !wild)
            store_plain_n<true>(acc, a.epilogue, tile, at, m.scratch(group * GROUP_WARPS), group);
        else if (a.epilogue.lines && !wild)
            store_lines(acc, a.epilogue, tile, at);
        else
            store_any<TYPE, TRANS>(acc, a, tile, at, m.scratch(warp), wild);
        tile = next;
    }
}

template <int TYPE, int TRANS, int CLUSTER, bool LONG, int END>
__device__ __forceinline__ void dsd_body(const CUtensorMap *map, const CUtensorMap *narrow,
                                         const dsd_wgmma_arg &a)
{
    extern __shared__ __align__(1024) char shared[];
    const memory m = {shared_address(shared)};
    const int warp = threadIdx.x / LANES;
    const uint32_t rank = CLUSTER > 1 ? cluster_rank() : 0;
    if (threadIdx.x == 0) {
        const int readers = GROUP_WARPS * (is_turned<TYPE, TRANS>() ? LANES : 1); /* of a slice */
        for (int i = 0; i < DSD_SLOTS; i++) {
            mbar_init(m.full(0, i), 1);
            mbar_init(m.empty(0, i), i < 2 * DSD_SLICES ? readers : CONSUMER_WARPS);
        }
        for (int i = 0; i < DSD_WEIGHTS; i++)
            mbar_init(m.ready(i), CLUSTER);
        mbar_init_fence();
        tensor_map_prefetch(map);
        if (LONG)
            tensor_map_prefetch(narrow);
    }
    __syncthreads();
    if (CLUSTER > 1)
        cluster_sync();
    grid_allow_next();
    const int unit = blockIdx.x / CLUSTER;
    const int begin = a.tile_start[unit], end = a.tile_start[unit + 1];
    if (warp >= CONSUMER_WARPS) {
        registers_lower<PRODUCER_REGISTERS>();
        if (warp == CONSUMER_WARPS)
            produce<TYPE, TRANS, CLUSTER, LONG, 0>(map, narrow, a, m, begin, end, rank);
        else if (warp == CONSUMER_WARPS + 1)
            produce<TYPE, TRANS, CLUSTER, LONG, 1>(map, narrow, a, m, begin, end, rank);
        else if (warp == CONSUMER_WARPS + 2)
            produce<TYPE, TRANS, CLUSTER, LONG, WEIGHTS>(map, narrow, a, m, begin, end, rank);
        else if (CLUSTER > 1 && threadIdx.x % LANES == 0)
            relay<CLUSTER>(a, m, begin, end);
        __syncwarp();
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        consume_tiles<TYPE, TRANS, CLUSTER, LONG, END>(a, m, begin, end, rank);
    }
    /* A block must not end while its neighbour still writes to it. */
    if (CLUSTER > 1)
        cluster_sync();
}

#define DSD_KERNEL(type, TYPE, kind, trans, cluster, longs, end)                                   \
    extern "C" __global__ void __launch_bounds__(DSD_THREADS, 1) cuda_dsd_wgmma_##type##_##kind(   \
        const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap narrow,       \
        const __grid_constant__ dsd_wgmma_arg a)                                                   \
    {                                                                                              \
        dsd_body<TYPE, trans, cluster, longs, end>(&map, &narrow, a);                              \
    }
#define DSD_KERNELS(kind, trans, cluster, longs)                                                   \
    FOR_HALVES_WGMMA(DSD_KERNEL, kind##_bare, trans, cluster, longs, DSD_END_BARE)                 \
    FOR_HALVES_WGMMA(DSD_KERNEL, kind##_any, trans, cluster, longs, DSD_END_ANY)
DSD_KERNELS(nc_1, 0, 1, false)
DSD_KERNELS(nc_2, 0, 2, false)
DSD_KERNELS(nc_long, 0, 1, true)
DSD_KERNELS(cn_1, 1, 1, false)
DSD_KERNELS(cn_2, 1, 2, false)
DSD_KERNELS(cn_long, 1, 1, true)
#define DSD_KERNELS_F32(kind, trans, cluster)                                                      \
    DSD_KERNEL(tf32, WGMMA_TF32, kind##_bare, trans, cluster, false, DSD_END_BARE)                 \
    DSD_KERNEL(tf32, WGMMA_TF32, kind##_any, trans, cluster, false, DSD_END_ANY)
DSD_KERNELS_F32(nc_1, 0, 1)
DSD_KERNELS_F32(nc_2, 0, 2)
DSD_KERNELS_F32(cn_1, 1, 1)
DSD_KERNELS_F32(cn_2, 1, 2)
