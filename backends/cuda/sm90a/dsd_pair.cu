/* dsd by wgmma for blocks whose sides are multiples of 32: the 64 rows of a product are two rows of
 * blocks, any two. dsd_pair.c plans what the tables say; docs/cuda.md has a picture of the data flow.
 *
 * A cluster of two thread blocks computes tiles of up to 384 features x 256 samples, one after the
 * other, each of six warpgroups 64 x 256. Slices of the activations that any of them needs come into
 * a ring of both blocks at once: one of them copies the even slices, the other one the odd ones. A
 * warpgroup multiplies where its pair has weights, which come through a ring of its own, and else
 * gives the slice back. */
#include <backends/cuda/ptx.h>
#include <backends/cuda/sm90a/dsd_pair.h>
#include <backends/cuda/sm90a/ring.h>

#define FN static __device__ __forceinline__

enum { LANES = 32, GROUP_WARPS = 4, CONSUMER_WARPS = DSD_PAIR_OWNERS * GROUP_WARPS };
enum { CONSUMER_REGISTERS = 160, PRODUCER_REGISTERS = 32 };
enum { SUMS = DSD_PAIR_SAMPLES / 2, BOX = 64 /* samples of a copy with TRANS */ };
enum { WIDTH = 128 }; /* N of a product: one of 256 would need more registers than there are */

/* Where things lie in shared memory. */
struct memory {
    uint32_t base;

    __device__ uint32_t slice(int slot) const
    {
        return base + slot * DSD_PAIR_SLICE_BYTES;
    }
    /* A slot of weights of a warpgroup. Zeros, as large as a piece, lie before and after all. */
    __device__ uint32_t cell(int owner, int slot) const
    {
        return zeros(0) + DSD_PAIR_PIECE_BYTES +
               (owner * DSD_PAIR_CELLS + slot) * 2 * DSD_PAIR_PIECE_BYTES;
    }
    __device__ uint32_t zeros(int after) const
    {
        return slice(DSD_PAIR_SLOTS) +
               after * (DSD_PAIR_OWNERS * DSD_PAIR_CELLS * 2 + 1) * DSD_PAIR_PIECE_BYTES;
    }
    __device__ uint32_t scratch(int warp) const
    {
        return zeros(1) + DSD_PAIR_PIECE_BYTES + warp * DSD_PAIR_SCRATCH;
    }
    /* Barriers: a slice has come; its readers are done; they are, and the block expects the next,
     * for the block that copies it; the same of cells. */
    __device__ uint32_t full(int slot) const
    {
        return scratch(CONSUMER_WARPS) + slot * 8;
    }
    __device__ uint32_t empty(int slot) const
    {
        return full(DSD_PAIR_SLOTS) + slot * 8;
    }
    __device__ uint32_t ready(int rank, int slot) const
    {
        return empty(DSD_PAIR_SLOTS) + (rank * DSD_PAIR_SLOTS + slot) * 8;
    }
    __device__ uint32_t full_cell(int owner, int slot) const
    {
        return ready(DSD_PAIR_RANKS, 0) + (owner * DSD_PAIR_CELLS + slot) * 8;
    }
    __device__ uint32_t empty_cell(int owner, int slot) const
    {
        return full_cell(DSD_PAIR_OWNERS, 0) + (owner * DSD_PAIR_CELLS + slot) * 8;
    }
};

FN dsd_pair_tile tile_load(const dsd_pair_arg &a, int i, int end)
{
    const int4 v = __ldg((const int4 *)(a.tiles + (i < end ? i : end - 1)));
    return {v.x, v.y, v.z, v.w};
}

/* Lanes' share of 32 slices of a tile. */
FN uint32_t slices_load(const dsd_pair_arg &a, const dsd_pair_tile &tile, int at)
{
    at += threadIdx.x % LANES;
    return at < tile.slices ? __ldg(a.slices + tile.first + at) : 0;
}

/* Which units of a thread block have a piece in a slice: two bits for each pair. */
FN uint32_t pieces_of(uint32_t slice, uint32_t rank)
{
    return slice >> rank * DSD_PAIR_UNITS & ((1 << DSD_PAIR_UNITS) - 1);
}

/* How many pieces of a slice come before those of a unit. */
FN int pieces_before(uint32_t has, int unit)
{
    return __popc(has & ((1 << unit) - 1));
}

/* --- Producers --- */

/* Calls visit(tile, slice, first of the tile) for each slice of a block's tiles, in a whole warp.
 * Lists are read ahead, because each read takes as long as some slices. */
template <class Visit> FN void slices_each(const dsd_pair_arg &a, int begin, int end, Visit visit)
{
    dsd_pair_tile next = tile_load(a, begin, end);
    uint32_t ahead = slices_load(a, next, 0);
    for (int i = begin; i < end; i++) {
        const dsd_pair_tile tile = next;
        next = tile_load(a, i + 1, end);
        for (int first = 0; first < tile.slices; first += LANES) {
            const uint32_t mine = ahead;
            const bool more = first + LANES < tile.slices;
            const int count = more ? LANES : tile.slices - first;
            ahead = more ? slices_load(a, tile, first + LANES) : slices_load(a, next, 0);
            for (int t = 0; t < count; t++) {
                visit(tile, __shfl_sync(~0u, mine, t), first + t == 0);
                __syncwarp();
            }
        }
        if (!tile.slices)
            ahead = slices_load(a, next, 0);
    }
}

/* Slices of the activations, every other one, for the blocks that have pieces there. */
template <int TRANS>
FN void produce_slices(const CUtensorMap *map, const dsd_pair_arg &a, memory m, int begin, int end,
                       uint32_t rank)
{
    cursor<DSD_PAIR_SLOTS> at = {0, 0};
    uint32_t parities[DSD_PAIR_RANKS] = {}; /* of the barriers of both blocks: a bit a slot */
    slices_each(a, begin, end, [&](const dsd_pair_tile &tile, uint32_t slice, bool) {
        if (threadIdx.x % LANES == 0 && at.slot % DSD_PAIR_RANKS == rank) {
            const int k = (int)(slice >> DSD_PAIR_BITS) * DSD_PAIR_UNIT;
            const uint32_t to = m.slice(at.slot), bar = m.full(at.slot);
            uint16_t blocks = 0;
#pragma unroll
            for (int r = 0; r < DSD_PAIR_RANKS; r++)
                if (pieces_of(slice, r)) {
                    mbar_wait(m.ready(r, at.slot), parities[r] >> at.slot & 1);
                    parities[r] ^= 1u << at.slot;
                    blocks |= 1 << r;
                }
            if (TRANS) {
#pragma unroll
                for (int n = 0; n < DSD_PAIR_SAMPLES; n += BOX)
                    tensor_load_2d_multicast(to + n * DSD_PAIR_UNIT * 2, map, tile.sample + n, k,
                                             bar, blocks);
            } else {
                tensor_load_2d_multicast(to, map, k, tile.sample, bar, blocks);
            }
        }
        at.next();
    });
}

/* In each block, as soon as the readers of a slot are done, it expects the next slice, and tells the
 * block that copies it; one without pieces for the block comes at once. */
FN void relay(const dsd_pair_arg &a, memory m, int begin, int end, uint32_t rank)
{
    cursor<DSD_PAIR_SLOTS> at = {0, 0};
    slices_each(a, begin, end, [&](const dsd_pair_tile &, uint32_t slice, bool) {
        if (threadIdx.x % LANES == 0) {
            mbar_wait(m.empty(at.slot), at.parity ^ 1);
            if (pieces_of(slice, rank)) {
                mbar_expect(m.full(at.slot), DSD_PAIR_SLICE_BYTES);
                mbar_arrive_remote(m.ready(rank, at.slot), at.slot % DSD_PAIR_RANKS);
            } else {
                mbar_arrive(m.full(at.slot));
            }
        }
        at.next();
    });
}

/* Weights of the block, a lane for each warpgroup. They wait for one that is behind, which has what
 * it needs to go on. */
FN void produce_weights(const dsd_pair_arg &a, memory m, int begin, int end, uint32_t rank)
{
    const int owner = threadIdx.x % LANES;
    cursor<DSD_PAIR_CELLS> at = {0, 0};
    const char *from = a.image;
    slices_each(a, begin, end, [&](const dsd_pair_tile &tile, uint32_t slice, bool first) {
        const uint32_t has = pieces_of(slice, rank);
        if (first)
            from = a.image + (size_t)__ldg(&a.shares[tile.group * DSD_PAIR_RANKS + rank].piece) *
                                 DSD_PAIR_PIECE_BYTES;
        const uint32_t mine = owner < DSD_PAIR_OWNERS ? has >> 2 * owner & 3 : 0;
        if (mine) {
            const uint32_t bar = m.full_cell(owner, at.slot);
            const uint32_t bytes = __popc(mine) * DSD_PAIR_PIECE_BYTES;
            mbar_wait(m.empty_cell(owner, at.slot), at.parity ^ 1);
            mbar_expect(bar, bytes);
            bulk_load(m.cell(owner, at.slot),
                      from + pieces_before(has, 2 * owner) * DSD_PAIR_PIECE_BYTES, bytes, bar);
            at.next();
        }
        from += __popc(has) * DSD_PAIR_PIECE_BYTES;
    });
}

/* --- Products --- */

/* A warpgroup's place in the rings. */
struct reader {
    cursor<DSD_PAIR_SLOTS> slice;
    cursor<DSD_PAIR_CELLS> cell;
};

/* has: which halves of the pair have a piece in the slot, the first or only one at its begin. */
template <int TYPE, int TRANS>
FN void multiply(float (&acc)[2][SUMS / 2], memory m, uint32_t slice, uint32_t cell, uint32_t has)
{
    /* Weights: rows of 64 bytes, a row is a k; how far it is from the first 32 features to the
     * others is a field of the descriptor, so that zeros can be either half. Activations: rows of 64
     * bytes, a row is a sample; with TRANS of 128 bytes, a row is a k. */
    constexpr uint32_t a_high = descriptor_high(512, SWIZZLE_64);
    constexpr uint32_t b_high =
        TRANS ? descriptor_high(1024, SWIZZLE_128) : descriptor_high(512, SWIZZLE_64);
    constexpr uint32_t a_step = 1024, b_step = TRANS ? 2048 : 32;
    constexpr uint32_t half = WIDTH * DSD_PAIR_UNIT * 2;
    const uint32_t upper = has & 1 ? cell : m.zeros(0);
    const uint32_t lower = has == 3 ? cell + DSD_PAIR_PIECE_BYTES : has == 2 ? cell : m.zeros(1);
    const uint32_t a = descriptor_low(upper, lower - upper);
    const uint32_t b = descriptor_low(slice, TRANS ? BOX * DSD_PAIR_UNIT * 2 : 16);
#pragma unroll
    for (int k = 0; k < DSD_PAIR_UNIT / 16; k++)
#pragma unroll
        for (int n = 0; n < 2; n++)
            wgmma_ss<TYPE, WIDTH, 1, TRANS>(acc[n], descriptor(a + (k * a_step >> 4), a_high),
                                            descriptor(b + ((k * b_step + n * half) >> 4), b_high),
                                            1);
}

/* All slices of a tile. Products stay in flight while the pair has pieces in the next slice too;
 * else slices are given back at once, as others wait for them. */
template <int TYPE, int TRANS>
FN void tile_multiply(float (&acc)[2][SUMS / 2], const uint32_t *slices, int count, memory m,
                      reader &r, uint32_t rank, int owner)
{
    const int lane = threadIdx.x % LANES;
    uint32_t now = 0, slice = 0, cell = 0; /* barriers of what is in flight */
    for (int t = 0; t < count; t++) {
        if (t % LANES == 0)
            now = t + lane < count ? __ldg(slices + t + lane) : 0;
        const uint32_t has = pieces_of(__shfl_sync(~0u, now, t % LANES), rank) >> 2 * owner & 3;
        mbar_wait(m.full(r.slice.slot), r.slice.parity);
        if (has) {
            mbar_wait(m.full_cell(owner, r.cell.slot), r.cell.parity);
            wgmma_fence();
            multiply<TYPE, TRANS>(acc, m, m.slice(r.slice.slot), m.cell(owner, r.cell.slot), has);
            wgmma_commit();
            wgmma_wait<1>();
            if (lane == 0 && slice) {
                mbar_arrive(slice);
                mbar_arrive(cell);
            }
            slice = m.empty(r.slice.slot);
            cell = m.empty_cell(owner, r.cell.slot);
            r.cell.next();
        } else {
            wgmma_wait<0>();
            if (lane == 0) {
                if (slice) {
                    mbar_arrive(slice);
                    mbar_arrive(cell);
                }
                mbar_arrive(m.empty(r.slice.slot));
            }
            slice = 0;
        }
        r.slice.next();
    }
    wgmma_wait<0>();
    wgmma_settle(acc[0]);
    wgmma_settle(acc[1]);
    if (lane == 0 && slice) {
        mbar_arrive(slice);
        mbar_arrive(cell);
    }
}

/* --- The end of a tile: each warp stores its 16 features of 256 samples --- */

/* What a warp stores. */
struct place {
    uint32_t scratch;
    int64_t feature; /* the first; beyond C where the pair has no such unit */
    int64_t sample;
};

/* C = alpha * sum + bias, 32 samples at a time through scratch, of which rows are samples, or with
 * ALONG_N features. Rows are exchanged so that neither way has bank conflicts. */
template <bool ALONG_N> FN uint32_t plain_at(uint32_t scratch, int run, int row)
{
    return ALONG_N ? scratch + row * 64 + ((run ^ row / 2 % 4) << 4)
                   : scratch + row * 32 + ((run ^ row / 4 % 2) << 4);
}

template <bool ALONG_N>
FN void store_plain(const float (&acc)[2][SUMS / 2], const dsd_epilogue &e, const place &at)
{
    enum { PART = 32 };
    const int lane = threadIdx.x % LANES;
    const bool bf16 = e.c.type == BSK_BF16;
    uint16_t *base = (uint16_t *)e.c.data;
    float bias[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int64_t f = at.feature + h * 8 + lane / 4;
        bias[h] = e.bias && f < e.features ? __ldg(e.bias + f) : 0;
    }
#pragma unroll
    for (int part = 0; part < DSD_PAIR_SAMPLES / PART; part++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t word[4];
#pragma unroll
            for (int w = 0; w < 4; w++) { /* features 8 (w % 2) .., samples 8 (w / 2) .. of 16 */
                const float *v = acc[part / 4] + part % 4 * 16 + i * 8 + w / 2 * 4 + w % 2 * 2;
                word[w] =
                    dsd_pack(bf16, e.alpha * v[0] + bias[w % 2], e.alpha * v[1] + bias[w % 2]);
            }
            const int run = i * 2 + lane / 16, half = lane / 8 % 2;
            if (ALONG_N)
                store_matrix_x4(plain_at<true>(at.scratch, run, half * 8 + lane % 8), word[0],
                                word[1], word[2], word[3]);
            else
                store_matrix_x4_trans(plain_at<false>(at.scratch, half, run * 8 + lane % 8),
                                      word[0], word[1], word[2], word[3]);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = ALONG_N ? i * 8 + lane / 4 : i * 16 + lane / 2;
            const int run = ALONG_N ? lane % 4 : lane % 2;
            const int64_t f = at.feature + (ALONG_N ? row : run * 8);
            const int64_t n = at.sample + part * PART + (ALONG_N ? run * 8 : row);
            const uint4 v = shared_load_16(plain_at<ALONG_N>(at.scratch, run, row));
            if (f < e.features && n < e.n)
                *(uint4 *)(base + f * e.c.feature + n * e.c.n) = v;
        }
        __syncwarp();
    }
}

/* Whether a sum of the warp is NaN or infinite. */
FN bool any_wild(const float (&acc)[2][SUMS / 2])
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        sum = fmaf(acc[i % 2][i / 2], 0, sum);
    return __any_sync(~0u, sum != 0);
}

/* One weight of a piece's image. */
FN float image_value(const char *piece, int feature, int k, bool bf16)
{
    const uint16_t *p =
        (const uint16_t *)(piece + k * 64 + (feature / 8 ^ k / 2 % 4) * 16) + feature % 8;
    return dsd_unpack(bf16, *p).x;
}

/* One sum anew over the kept blocks alone: a gap counts as a weight of 0 in the products, which is
 * nothing only times a finite number. */
template <int TYPE>
FN float sum_kept(const dsd_pair_arg &a, const dsd_pair_tile &tile, uint32_t rank, int warp,
                  int feature, int64_t n)
{
    const bool bf16 = TYPE == WGMMA_BF16;
    const int unit = warp / 2;
    int piece = __ldg(&a.shares[tile.group * DSD_PAIR_RANKS + rank].piece);
    float sum = 0;
    if (n >= a.epilogue.n)
        return sum;
#pragma unroll 1
    for (int t = 0; t < tile.slices; t++) {
        const uint32_t slice = __ldg(a.slices + tile.first + t), has = pieces_of(slice, rank);
        const char *image =
            a.image + (size_t)(piece + pieces_before(has, unit)) * DSD_PAIR_PIECE_BYTES;
        const int64_t first = (int64_t)(slice >> DSD_PAIR_BITS) * DSD_PAIR_UNIT;
        const uint16_t *x = a.b + n * a.b_n + first * a.b_k;
        piece += __popc(has);
        if (has >> unit & 1)
#pragma unroll 1
            for (int k = 0; k < DSD_PAIR_UNIT && first + k < a.depth; k++)
                sum = fmaf(image_value(image, warp % 2 * 16 + feature, k, bf16),
                           dsd_unpack(bf16, x[k * a.b_k]).x, sum);
    }
    return sum;
}

/* Everything else. Sums go through scratch, 16 features of 16 samples at a time: so a lane gets a
 * run along either axis, and the code exists once. Number i of a lane has bit 0 of the sample, bit 3
 * of the feature and bit 3 of the sample; lanes are exchanged so that bank conflicts are few. */
FN uint32_t number_at(uint32_t scratch, int i, int lane)
{
    return scratch + i * 128 + (lane ^ (i % 2 + i / 4 * 2 + i / 2 % 2 * 4) * 4) * 4;
}

template <int TYPE>
FN void store_any(const float (&acc)[2][SUMS / 2], const dsd_pair_arg &a, const dsd_pair_tile &tile,
                  const place &at, uint32_t rank, int warp, bool wild)
{
    enum { PART = 16, SHARE = PART / 2 /* sums of a lane */ };
    const dsd_epilogue &e = a.epilogue;
    const int lane = threadIdx.x % LANES;
    /* A lane's run: of a sample, 8 features; along n of a feature, 8 samples. */
    const int feature = e.along_n ? lane % 16 : lane / 16 * 8;
    const int sample = e.along_n ? lane / 16 * 8 : lane % 16;
#pragma unroll 1
    for (int part = 0; part < SUMS / SHARE; part++) {
#pragma unroll
        for (int i = 0; i < SHARE; i++) {
            float v = acc[0][i];
#pragma unroll
            for (int p = 1; p < SUMS / SHARE; p++)
                v = part == p ? acc[p / 8][p % 8 * SHARE + i] : v;
            shared_store_4(number_at(at.scratch, i, lane), __float_as_uint(v));
        }
        __syncwarp();
        const int64_t n = at.sample + part * PART + sample;
        const auto number = [&](int k) {
            const int f = feature + (e.along_n ? 0 : k), s = sample + (e.along_n ? k : 0);
            return number_at(at.scratch, s / 8 * 4 + f / 8 * 2 + s % 2, f % 8 * 4 + s % 8 / 2);
        };
        float v[DSD_RUN];
#pragma unroll 1
        for (int k = 0; wild && k < DSD_RUN; k++)
            if (!isfinite(__uint_as_float(shared_load_4(number(k)))))
                shared_store_4(number(k), __float_as_uint(sum_kept<TYPE>(
                                              a, tile, rank, warp, feature + (e.along_n ? 0 : k),
                                              n + (e.along_n ? k : 0))));
#pragma unroll
        for (int k = 0; k < DSD_RUN; k++)
            v[k] = __uint_as_float(shared_load_4(number(k)));
        dsd_finish(e, v, at.feature + feature, n, 0);
        __syncwarp();
    }
}

template <int TYPE, int TRANS>
FN void consume(const dsd_pair_arg &a, memory m, int begin, int end, uint32_t rank)
{
    const int warp = __shfl_sync(~0u, threadIdx.x / LANES, 0);
    reader r = {{0, 0}, {0, 0}};
    for (int i = begin; i < end; i++) {
        const dsd_pair_tile tile = tile_load(a, i, end);
        float acc[2][SUMS / 2];
#pragma unroll
        for (int j = 0; j < SUMS; j++)
            acc[j % 2][j / 2] = 0;
        tile_multiply<TYPE, TRANS>(acc, a.slices + tile.first, tile.slices, m, r, rank,
                                   warp / GROUP_WARPS);
        const dsd_pair_share *share = a.shares + tile.group * DSD_PAIR_RANKS + rank;
        const int feature = __ldg(share->feature + warp / 2);
        const place at = {m.scratch(warp),
                          feature < 0 ? a.epilogue.features : feature + warp % 2 * 16, tile.sample};
        const bool wild = a.gaps && any_wild(acc);
        if (a.epilogue.plain && !wild)
            store_plain<false>(acc, a.epilogue, at);
        else if (a.epilogue.plain_n && !wild)
            store_plain<true>(acc, a.epilogue, at);
        else
            store_any<TYPE>(acc, a, tile, at, rank, warp, wild);
    }
}

template <int TYPE, int TRANS> FN void product(const CUtensorMap *map, const dsd_pair_arg &a)
{
    extern __shared__ __align__(1024) char shared[];
    const memory m = {shared_address(shared)};
    const int warp = threadIdx.x / LANES;
    const uint32_t rank = cluster_rank();
    if (threadIdx.x == 0) {
        for (int i = 0; i < DSD_PAIR_SLOTS; i++) {
            mbar_init(m.full(i), 1);
            mbar_init(m.empty(i), CONSUMER_WARPS);
            for (int r = 0; r < DSD_PAIR_RANKS; r++)
                mbar_init(m.ready(r, i), 1);
        }
        for (int i = 0; i < DSD_PAIR_OWNERS * DSD_PAIR_CELLS; i++) {
            mbar_init(m.full_cell(0, i), 1);
            mbar_init(m.empty_cell(0, i), GROUP_WARPS);
        }
        mbar_init_fence();
        tensor_map_prefetch(map);
    }
    if (threadIdx.x < 2 * DSD_PAIR_PIECE_BYTES / 16)
        shared_store_16(m.zeros(threadIdx.x * 16 / DSD_PAIR_PIECE_BYTES) +
                            threadIdx.x * 16 % DSD_PAIR_PIECE_BYTES,
                        0, 0, 0, 0);
    async_fence();
    __syncthreads();
    cluster_sync();
    const int cluster = blockIdx.x / DSD_PAIR_RANKS;
    const int begin = a.tile_start[cluster], end = a.tile_start[cluster + 1];
    if (warp >= CONSUMER_WARPS) {
        registers_lower<PRODUCER_REGISTERS>();
        if (warp == CONSUMER_WARPS)
            produce_slices<TRANS>(map, a, m, begin, end, rank);
        else if (warp == CONSUMER_WARPS + 1)
            produce_weights(a, m, begin, end, rank);
        else if (warp == CONSUMER_WARPS + 2)
            relay(a, m, begin, end, rank);
        __syncwarp();
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        consume<TYPE, TRANS>(a, m, begin, end, rank);
    }
    /* A block must not end while its neighbour still writes to it. */
    cluster_sync();
}

#define KERNEL(type, TYPE, axis, TRANS)                                                            \
    extern "C" __global__ void __launch_bounds__(DSD_PAIR_THREADS, 1)                              \
        dsd_sm90a_pair_##type##_##axis(const __grid_constant__ CUtensorMap map,                    \
                                       const __grid_constant__ dsd_pair_arg a)                     \
    {                                                                                              \
        product<TYPE, TRANS>(&map, a);                                                             \
    }
KERNEL(bf16, WGMMA_BF16, nc, 0)
KERNEL(bf16, WGMMA_BF16, cn, 1)
KERNEL(f16, WGMMA_F16, nc, 0)
KERNEL(f16, WGMMA_F16, cn, 1)

/* --- Packing: a piece for each thread block --- */

extern "C" __global__ void __launch_bounds__(DSD_PAIR_PACK_THREADS)
    dsd_sm90a_pair_pack(const __grid_constant__ dsd_pair_pack_arg a)
{
    enum { RUN = 8, RUNS = DSD_PAIR_UNIT / RUN };
    const int2 piece = __ldg((const int2 *)(a.pieces + blockIdx.x)); /* source, valid */
    /* Neighbours in a warp read neighbours: along the features, or along the depth. */
    const bool along = a.row_stride == 1;
    const int run = along ? threadIdx.x % RUNS : threadIdx.x / DSD_PAIR_UNIT;
    const int k = along ? threadIdx.x / RUNS : threadIdx.x % DSD_PAIR_UNIT;
    const uint16_t *from =
        a.source + (size_t)(uint32_t)piece.x * 8 + run * RUN * a.row_stride + k * a.depth_stride;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (k < piece.y && along) {
        v = __ldg((const uint4 *)from);
    } else if (k < piece.y) {
        uint32_t word[RUN / 2];
#pragma unroll
        for (int i = 0; i < RUN / 2; i++)
            word[i] = __ldg(from + 2 * i * a.row_stride) |
                      (uint32_t)__ldg(from + (2 * i + 1) * a.row_stride) << 16;
        v = make_uint4(word[0], word[1], word[2], word[3]);
    }
    uint4 *to = (uint4 *)(a.image + (size_t)blockIdx.x * DSD_PAIR_PIECE_BYTES);
    to[k * RUNS + (run ^ k / 2 % RUNS)] = v;
}
