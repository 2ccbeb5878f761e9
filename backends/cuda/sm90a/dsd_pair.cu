/* dsd by wgmma for blocks whose sides are multiples of 32: the 64 rows of a product are two rows of
 * blocks, any two. dsd_pair.c plans what the tables say; docs/cuda.md has a picture of the data flow.
 *
 * A thread block computes tiles of up to 384 features x 128 samples, one after the other: each of
 * three warpgroups those of two pairs. Slices of the activations that any of them needs come into a
 * ring, each with the weights that meet it. A warpgroup goes from one that its pairs have weights
 * for to the next, and passes the others. */
#include <backends/cuda/mma.h>
#include <backends/cuda/ptx.h>
#include <backends/cuda/sm90a/dsd_pair.h>

#define FN static __device__ __forceinline__

enum { LANES = 32, GROUP_WARPS = 4, CONSUMER_WARPS = DSD_PAIR_OWNERS * GROUP_WARPS };
enum { CONSUMER_REGISTERS = 160, PRODUCER_REGISTERS = 32 };
enum { SUMS = DSD_PAIR_SAMPLES / 2 /* of a pair */, BOX = 64 /* samples of a copy with TRANS */ };

/* Where things lie in shared memory: zeros, as large as a piece, before and after the slots. */
struct memory {
    uint32_t base, slots, slot_bytes;

    __device__ uint32_t slot(int i) const
    {
        return base + DSD_PAIR_PIECE_BYTES + i * slot_bytes;
    }
    __device__ uint32_t zeros(int after) const
    {
        return after ? slot(slots) : base;
    }
    __device__ uint32_t scratch(int warp) const
    {
        return slot(slots) + DSD_PAIR_PIECE_BYTES + warp * DSD_PAIR_SCRATCH;
    }
    /* Barriers: a slot has come, in an even or an odd round; its readers are done. */
    __device__ uint32_t full(int i, uint32_t odd) const
    {
        return scratch(CONSUMER_WARPS) + i * 8 + odd * (DSD_PAIR_MAX_SLOTS * 8);
    }
    __device__ uint32_t empty(int i) const
    {
        return full(i, 2);
    }
};

/* A position in the ring, and the round. */
struct cursor {
    uint32_t slot, round;

    /* At most a round. */
    __device__ void forward(uint32_t by, uint32_t slots)
    {
        slot += by;
        if (slot >= slots) {
            slot -= slots;
            round++;
        }
    }
    __device__ uint32_t full(const memory &m) const
    {
        return m.full(slot, round & 1);
    }
    __device__ void wait_full(const memory &m) const
    {
        mbar_wait(full(m), round >> 1 & 1);
    }
};

FN dsd_pair_tile tile_load(const dsd_pair_arg &a, int i, int end)
{
    const int4 v = i < end ? __ldg((const int4 *)(a.tiles + i)) : make_int4(0, 0, 0, 0);
    return {v.x, v.y, v.z, v.w};
}

/* --- Producers: slices of a thread block's tiles go round its warps in turn --- */

enum { PRODUCERS = DSD_PAIR_PRODUCERS, CHUNK = PRODUCERS * LANES };
enum { PRODUCERS_BARRIER = 1, STORE_BARRIER /* and more, one for two warps */ };

/* Lanes' share of a warp's slices of a tile. */
FN uint4 slices_load(const dsd_pair_arg &a, const dsd_pair_tile &tile, int at)
{
    at += threadIdx.x % LANES * PRODUCERS;
    return at < tile.slices ? __ldg((const uint4 *)(a.slices + tile.first + at))
                            : make_uint4(0, 0, 0, 0);
}

/* The first of a warp's slices of the next tile. */
FN int slice_after(const dsd_pair_tile &tile, int first)
{
    return first + (max(tile.slices - first, 0) + PRODUCERS - 1) / PRODUCERS * PRODUCERS -
           tile.slices;
}

/* Calls visit(first sample, slice) for each PRODUCERS-th slice of a block's tiles, in a whole warp.
 * No warp is more than a slice ahead of another. Lists are read ahead, because each read takes as
 * long as some slices; the first before the queue's earlier work has ended. */
template <class Visit>
FN void slices_each(const dsd_pair_arg &a, int begin, int end, int number, Visit visit)
{
    int start = number;
    uint4 ahead = slices_load(a, tile_load(a, begin, end), start);
    grid_wait();
    for (int i = begin; i < end; i++) {
        const dsd_pair_tile tile = tile_load(a, i, end);
        int first = start;
        start = slice_after(tile, first);
        do {
            const uint4 mine = ahead;
            ahead = tile.slices - first > CHUNK ? slices_load(a, tile, first + CHUNK)
                                                : slices_load(a, tile_load(a, i + 1, end), start);
            const int rest = tile.slices - first;
            for (int t = 0; t < LANES && t * PRODUCERS < rest; t++) {
                named_barrier(PRODUCERS_BARRIER, CHUNK);
                visit(tile.sample,
                      dsd_pair_slice{__shfl_sync(~0u, mine.x, t), __shfl_sync(~0u, mine.y, t),
                                     __shfl_sync(~0u, mine.z, t)});
            }
            first += CHUNK;
        } while (first < tile.slices);
    }
    /* What the last round has no slices for. */
    const int rest = (number - start) & (PRODUCERS - 1);
    if (rest && number >= rest)
        named_barrier(PRODUCERS_BARRIER, CHUNK);
}

/* Slices of the activations, each with the weights that meet it. This gives slots back for
 * warpgroups that have no step there. As the warps stay together, the slices PRODUCERS before one
 * that a warpgroup has seen full have started: so where it waits, at most so many slots less than a
 * ring further, all but the last round and the one to come are over, which one barrier for even and
 * one for odd rounds tell apart. */
template <int TRANS>
FN void produce(const CUtensorMap *map, const dsd_pair_arg &a, const memory &m, int begin, int end,
                int number)
{
    const int lane = threadIdx.x % LANES;
    cursor at = {0, 0};
    at.forward(number, m.slots);
    slices_each(a, begin, end, number, [&](int sample, const dsd_pair_slice &slice) {
        const int k = (int)slice.number * DSD_PAIR_UNIT;
        const uint32_t bytes = __popc(slice.bits & DSD_PAIR_UNITS) * DSD_PAIR_PIECE_BYTES;
        const uint32_t to = m.slot(at.slot), bar = at.full(m), empty = m.empty(at.slot);
        mbar_wait(empty, ~at.round & 1);
        if (lane == 0) {
            mbar_expect(bar, DSD_PAIR_SLICE_BYTES + bytes);
            if (TRANS) {
#pragma unroll
                for (int n = 0; n < DSD_PAIR_SAMPLES; n += BOX)
                    tensor_load_2d(to + n * DSD_PAIR_UNIT * 2, map, sample + n, k, bar);
            } else {
                tensor_load_2d(to, map, k, sample, bar);
            }
            bulk_load(to + DSD_PAIR_SLICE_BYTES,
                      a.image + (size_t)slice.piece * DSD_PAIR_PIECE_BYTES, bytes, bar);
        }
        if (lane < (int)(slice.bits >> DSD_PAIR_BITS) * GROUP_WARPS)
            mbar_arrive(empty);
        __syncwarp();
        at.forward(PRODUCERS, m.slots);
    });
}

/* --- Products: addresses in units of 16 bytes, as descriptors have them --- */

enum { PIECE = DSD_PAIR_PIECE_BYTES / 16, LEADING = 1 << 16 };

/* One pair's product with a slice: which of its units have a piece, the first or only one where. */
template <int TYPE, int TRANS>
FN void multiply(float (&acc)[SUMS], const memory &m, uint32_t slice, uint32_t piece, uint32_t has)
{
    /* Weights: rows of 64 bytes, a row is a k; how far it is from the first 32 features to the
     * others is a field of the descriptor, so that zeros can be either half. Activations: rows of 64
     * bytes, a row is a sample; with TRANS of 128 bytes, a row is a k. */
    constexpr uint32_t a_high = descriptor_high(512, SWIZZLE_64);
    constexpr uint32_t b_high =
        TRANS ? descriptor_high(1024, SWIZZLE_128) : descriptor_high(512, SWIZZLE_64);
    constexpr uint32_t a_step = 1024, b_step = TRANS ? 2048 : 32;
    const uint32_t upper = has & 1 ? piece : m.zeros(0) >> 4;
    const uint32_t lower = has == 3 ? piece + PIECE : has == 2 ? piece : m.zeros(1) >> 4;
    const uint32_t a = upper + (lower - upper) * LEADING;
    const uint32_t b = slice + (TRANS ? BOX * DSD_PAIR_UNIT * 2 >> 4 : 1) * LEADING;
#pragma unroll
    for (int k = 0; k < DSD_PAIR_UNIT / 16; k++)
        wgmma_ss<TYPE, DSD_PAIR_SAMPLES, 1, TRANS>(acc, descriptor(a + (k * a_step >> 4), a_high),
                                                   descriptor(b + (k * b_step >> 4), b_high), 1);
}

/* A warpgroup's products with a slice. A batch ends in each case, not after them: else the compiler
 * would end it twice. */
template <int TYPE, int TRANS>
FN void pairs_multiply(float (&acc)[DSD_PAIR_OWNED][SUMS], const memory &m, uint32_t slice,
                       uint32_t step)
{
    const uint32_t first = step & 3, second = step >> 2 & 3;
    const uint32_t piece =
        slice + DSD_PAIR_SLICE_BYTES / 16 + (step >> DSD_PAIR_BEFORE_AT & DSD_PAIR_FIELD) * PIECE;
    wgmma_fence();
    if (!second) {
        multiply<TYPE, TRANS>(acc[0], m, slice, piece, first);
        wgmma_commit();
    } else if (!first) {
        multiply<TYPE, TRANS>(acc[1], m, slice, piece, second);
        wgmma_commit();
    } else {
        multiply<TYPE, TRANS>(acc[0], m, slice, piece, first);
        multiply<TYPE, TRANS>(acc[1], m, slice, piece + __popc(first) * PIECE, second);
        wgmma_commit();
    }
}

/* A warpgroup's steps of a tile. */
struct steps {
    int first, count;
};

FN uint32_t step_load(const dsd_pair_arg &a, const steps &s, int at)
{
    at += threadIdx.x % LANES;
    return at < s.count ? __ldg(a.steps + s.first + at) : 0;
}

FN steps steps_load(const dsd_pair_arg &a, int group, int owner)
{
    return {__ldg(a.groups[group].step + owner), __ldg(a.groups[group].steps + owner)};
}

/* All steps of a tile. now: a lane's of the first 32, then of those of the tile that comes next. A
 * slot is given back when the products of the next step are on their way and its own are done; before
 * a step without any, as many of those may follow. */
template <int TYPE, int TRANS>
FN void tile_multiply(float (&acc)[DSD_PAIR_OWNED][SUMS], const dsd_pair_arg &a, const steps &s,
                      const steps &after, uint32_t &now, const memory &m, cursor &at, int lane)
{
    uint32_t flying = 0; /* the barrier of the slot of products in flight */
    int first = 0;
    do {
        const bool last = s.count - first <= LANES;
        const uint32_t next = last ? step_load(a, after, 0) : step_load(a, s, first + LANES);
        const int count = min(s.count - first, (int)LANES);
        uint32_t step = __shfl_sync(~0u, now, 0);
        for (int t = 0; t < count; t++) {
            at.forward(step >> DSD_PAIR_FURTHER_AT, m.slots);
            const uint32_t empty = m.empty(at.slot);
            at.wait_full(m);
            if (step & DSD_PAIR_FIELD) {
                pairs_multiply<TYPE, TRANS>(acc, m, m.slot(at.slot) >> 4, step);
                step = __shfl_sync(~0u, now, t + 1);
                wgmma_wait<1>();
                if (lane == 0 && flying)
                    mbar_arrive(flying);
                flying = empty;
            } else {
                step = __shfl_sync(~0u, now, t + 1);
                wgmma_wait<0>();
                if (lane == 0 && flying)
                    mbar_arrive(flying);
                if (lane == 0)
                    mbar_arrive(empty);
                flying = 0;
            }
        }
        now = next;
        first += LANES;
    } while (first < s.count);
    wgmma_wait<0>();
    wgmma_settle(acc[0]);
    wgmma_settle(acc[1]);
    if (lane == 0 && flying)
        mbar_arrive(flying);
}

/* --- The end of a tile: each warp stores 16 features of each pair --- */

/* What a warp stores. */
struct place {
    uint32_t scratch;
    int64_t feature[DSD_PAIR_OWNED]; /* the first; beyond C where a pair has no such unit */
    int64_t sample;
};

/* A plain end. Where a run of 8 lies in scratch, whose rows are exchanged so that neither way has
 * bank conflicts: rows are samples, whose 32 features two warps have, or with ALONG_N features. */
template <bool ALONG_N> FN uint32_t plain_at(uint32_t scratch, int run, int row)
{
    return ALONG_N ? scratch + row * 128 + ((run ^ row) % 8 << 4)
                   : scratch + row * 64 + ((run ^ row / 2) % 4 << 4);
}

/* Along the features: 32 samples of a unit at a time, through the scratch of two warps. */
template <bool ACT>
FN void store_plain(const float (&acc)[SUMS], const dsd_epilogue &e, const place &at,
                    int64_t feature, int warp)
{
    enum { PART = 32, TOGETHER = 2 * LANES };
    const int lane = threadIdx.x % LANES, half = warp % 2, barrier = STORE_BARRIER + warp / 2;
    const float alpha = ACT ? dsd_alpha(e) : e.alpha;
    const uint32_t scratch = at.scratch - half * DSD_PAIR_SCRATCH;
    const bool bf16 = e.c.type == BSK_BF16;
    float bias[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int64_t f = feature + h * 8 + lane / 4;
        bias[h] = e.bias && f < e.features ? e.bias[f] : 0;
    }
    const int64_t f = feature - half * 16 + lane % 4 * 8;
    uint16_t *c = (uint16_t *)e.c.data + f + (at.sample + half * 16 + lane / 4) * e.c.n;
#pragma unroll
    for (int part = 0; part < DSD_PAIR_SAMPLES / PART; part++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float v[DSD_RUN]; /* by sample of two; feature, by 8 of 16; sample, by 8 of 16 */
#pragma unroll
            for (int k = 0; k < DSD_RUN; k++)
                v[k] = alpha * acc[part * 16 + i * 8 + k] + bias[k / 2 % 2];
            if (ACT && e.act != BSK_ACT_NONE)
                dsd_activate_plain(e, v);
            const uint4 word = dsd_pack_run(bf16, v);
            store_matrix_x4_trans(plain_at<false>(scratch, half * 2 + lane / 8 % 2,
                                                  i * 16 + lane / 16 * 8 + lane % 8),
                                  word.x, word.y, word.z, word.w);
        }
        named_barrier(barrier, TOGETHER);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = half * 16 + i * 8 + lane / 4;
            const uint4 v = shared_load_16(plain_at<false>(scratch, lane % 4, row));
            if (f < e.features && at.sample + part * PART + row < e.n)
                store_global_16(c + (part * PART + i * 8) * e.c.n, v);
        }
        named_barrier(barrier, TOGETHER);
    }
}

/* Along n: 64 samples of 8 features at a time. */
template <bool ACT>
FN void store_plain_n(const float (&acc)[SUMS], const dsd_epilogue &e, const place &at,
                      int64_t feature)
{
    enum { PART = 64, FEATURES = 8, RUNS = PART / DSD_RUN };
    const int lane = threadIdx.x % LANES;
    const float alpha = ACT ? dsd_alpha(e) : e.alpha;
    const bool bf16 = e.c.type == BSK_BF16;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int64_t first = feature + h * FEATURES;
        const float bias = e.bias && first + lane / 4 < e.features ? e.bias[first + lane / 4] : 0;
#pragma unroll
        for (int part = 0; part < DSD_PAIR_SAMPLES / PART; part++) {
#pragma unroll
            for (int i = 0; i < RUNS; i += 4) {
                float v[DSD_RUN];
#pragma unroll
                for (int k = 0; k < DSD_RUN; k++)
                    v[k] = alpha * acc[(part * RUNS + i + k / 2) * 4 + h * 2 + k % 2] + bias;
                if (ACT && e.act != BSK_ACT_NONE)
                    dsd_activate_plain(e, v);
                const uint4 word = dsd_pack_run(bf16, v);
                store_matrix_x4(plain_at<true>(at.scratch, i + lane / 8, lane % 8), word.x, word.y,
                                word.z, word.w);
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = i * 4 + lane / 8;
                const int64_t f = first + row, n = at.sample + part * PART + lane % 8 * DSD_RUN;
                const uint4 v = shared_load_16(plain_at<true>(at.scratch, lane % 8, row));
                if (f < e.features && n < e.n)
                    store_global_16((uint16_t *)e.c.data + f * e.c.feature + n, v);
            }
            __syncwarp();
        }
    }
}

/* Whether a sum of the warp is NaN or infinite. */
FN bool any_wild(const float (&acc)[DSD_PAIR_OWNED][SUMS])
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < DSD_PAIR_OWNED * SUMS; i++)
        sum = fmaf(acc[i / SUMS][i % SUMS], 0, sum);
    return __any_sync(~0u, sum != 0);
}

/* One weight of a piece's image. */
template <typename T> FN float image_value(const char *piece, int feature, int k)
{
    const uint16_t *p =
        (const uint16_t *)(piece + k * 64 + (feature / 8 ^ k / 2 % 4) * 16) + feature % 8;
    return numbers_of<T>(*p).x;
}

/* One sum of a unit anew over the kept blocks alone: a gap counts as a weight of 0 in the products,
 * which is nothing only times a finite number. */
template <int TYPE>
FN float sum_kept(const dsd_pair_arg &a, const dsd_pair_tile &tile, int unit, int feature,
                  int64_t n)
{
    typedef typename element<TYPE>::type T;
    float sum = 0;
    if (n >= a.epilogue.n)
        return sum;
#pragma unroll 1
    for (int t = 0; t < tile.slices; t++) {
        const uint4 slice =
            __ldg((const uint4 *)(a.slices + tile.first + t)); /* piece, bits: y, z */
        const uint32_t piece = slice.y + __popc(slice.z & ((1u << unit) - 1));
        const char *image = a.image + (size_t)piece * DSD_PAIR_PIECE_BYTES;
        const int64_t first = (int64_t)slice.x * DSD_PAIR_UNIT;
        const uint16_t *x = a.b + n * a.b_n + first * a.b_k;
        if (slice.z >> unit & 1)
#pragma unroll 1
            for (int k = 0; k < DSD_PAIR_UNIT && first + k < a.depth; k++)
                sum = fmaf(image_value<T>(image, feature, k), numbers_of<T>(x[k * a.b_k]).x, sum);
    }
    return sum;
}

/* The unit of a warp's features of a pair. */
FN int unit_of(int warp, int pair)
{
    return (warp / GROUP_WARPS * DSD_PAIR_OWNED + pair) * 2 + warp % GROUP_WARPS / 2;
}

/* What a plain end stored of such sums, anew. The sums themselves are not asked, whose registers
 * would not serve the products then. */
template <int TYPE>
FN void store_wild(const dsd_pair_arg &a, const dsd_pair_tile &tile, const place &at, int warp)
{
    enum { FEATURES = 16 };
    const dsd_epilogue &e = a.epilogue;
    const bool bf16 = e.c.type == BSK_BF16;
    __syncwarp();
#pragma unroll 1
    for (int x = threadIdx.x % LANES; x < DSD_PAIR_OWNED * FEATURES * DSD_PAIR_SAMPLES;
         x += LANES) {
        const int pair = x / (FEATURES * DSD_PAIR_SAMPLES), feature = x % FEATURES;
        const int64_t f = (pair ? at.feature[1] : at.feature[0]) + feature;
        const int64_t n = at.sample + x / FEATURES % DSD_PAIR_SAMPLES;
        if (f >= e.features || n >= e.n)
            continue;
        uint16_t *c = (uint16_t *)e.c.data + f * e.c.feature + n * e.c.n;
        if (!dsd_is_wild(bf16, *c))
            continue;
        const float sum = sum_kept<TYPE>(a, tile, unit_of(warp, pair), warp % 2 * 16 + feature, n);
        *c = (uint16_t)dsd_pack(bf16, e.alpha * sum + (e.bias ? e.bias[f] : 0), 0);
    }
}

/* Everything else. Sums go through scratch, 16 features of 16 samples at a time: so a lane gets a
 * run along either axis, and the code exists once. Number i of a lane has bit 0 of the sample, bit 3
 * of the feature and bit 3 of the sample; lanes are exchanged so that bank conflicts are few. */
FN uint32_t number_at(uint32_t scratch, int i, int lane)
{
    return scratch + i * 128 + (lane ^ (i % 2 + i / 4 * 2 + i / 2 % 2 * 4) * 4) * 4;
}

template <int TYPE>
FN void store_any(const float (&acc)[DSD_PAIR_OWNED][SUMS], const dsd_pair_arg &a,
                  const dsd_pair_tile &tile, const place &at, int warp, bool wild)
{
    enum { PART = 16, SHARE = PART / 2 /* sums of a lane */, PARTS = SUMS / SHARE };
    const dsd_epilogue &e = a.epilogue;
    const int lane = threadIdx.x % LANES;
    /* A lane's run: of a sample, 8 features; along n of a feature, 8 samples. */
    const int feature = e.along_n ? lane % 16 : lane / 16 * 8;
    const int sample = e.along_n ? lane / 16 * 8 : lane % 16;
#pragma unroll 1
    for (int part = 0; part < DSD_PAIR_OWNED * PARTS; part++) {
        const int pair = part / PARTS;
#pragma unroll
        for (int i = 0; i < SHARE; i++) {
            float v = acc[0][i];
#pragma unroll
            for (int p = 1; p < DSD_PAIR_OWNED * PARTS; p++)
                v = part == p ? acc[p / PARTS][p % PARTS * SHARE + i] : v;
            shared_store_4(number_at(at.scratch, i, lane), __float_as_uint(v));
        }
        __syncwarp();
        const int64_t n = at.sample + part % PARTS * PART + sample;
        const int unit = unit_of(warp, pair);
        const auto number = [&](int k) {
            const int f = feature + (e.along_n ? 0 : k), s = sample + (e.along_n ? k : 0);
            return number_at(at.scratch, s / 8 * 4 + f / 8 * 2 + s % 2, f % 8 * 4 + s % 8 / 2);
        };
        float v[DSD_RUN];
#pragma unroll 1
        for (int k = 0; wild && k < DSD_RUN; k++)
            if (!isfinite(__uint_as_float(shared_load_4(number(k)))))
                shared_store_4(number(k),
                               __float_as_uint(sum_kept<TYPE>(
                                   a, tile, unit, warp % 2 * 16 + feature + (e.along_n ? 0 : k),
                                   n + (e.along_n ? k : 0))));
#pragma unroll
        for (int k = 0; k < DSD_RUN; k++)
            v[k] = __uint_as_float(shared_load_4(number(k)));
        dsd_finish(e, v, (pair ? at.feature[1] : at.feature[0]) + feature, n, 0);
        __syncwarp();
    }
}

/* The first of a warp's features of a pair. */
FN int64_t feature_of(const dsd_pair_arg &a, const dsd_pair_tile &tile, int warp, int pair)
{
    const int feature = __ldg(a.groups[tile.group].feature + unit_of(warp, pair));
    return (feature < 0 ? a.epilogue.features : feature) + warp % 2 * 16;
}

/* The end of a tile. */
template <int TYPE, bool PLAIN>
FN void store(const float (&acc)[DSD_PAIR_OWNED][SUMS], const dsd_pair_arg &a,
              const dsd_pair_tile &tile, const memory &m, int warp)
{
    const dsd_epilogue &e = a.epilogue;
    place at = {m.scratch(warp), {}, tile.sample};
#pragma unroll
    for (int pair = 0; pair < DSD_PAIR_OWNED; pair++)
        at.feature[pair] = feature_of(a, tile, warp, pair);
    bool wild = a.gaps && any_wild(acc);
    if (!PLAIN) /* the two that store together decide together */
        wild = named_barrier_any(STORE_BARRIER + warp / 2, 2 * LANES, wild);
    if (PLAIN || ((e.plain || e.plain_n) && !wild)) {
#pragma unroll
        for (int pair = 0; pair < DSD_PAIR_OWNED; pair++)
            if (e.plain)
                store_plain<!PLAIN>(acc[pair], e, at, at.feature[pair], warp);
            else
                store_plain_n<!PLAIN>(acc[pair], e, at, at.feature[pair]);
        if (PLAIN && wild)
            store_wild<TYPE>(a, tile, at, warp);
    } else {
        store_any<TYPE>(acc, a, tile, at, warp, wild);
    }
}

/* What comes after a tile is read while it is multiplied, because each read takes as long as some
 * steps. */
template <int TYPE, int TRANS, bool PLAIN>
FN void consume(const dsd_pair_arg &a, const memory &m, int begin, int end, int warp)
{
    /* Through a shuffle: else the compiler would compute it anew from the thread's index. */
    const int lane = __shfl_xor_sync(~0u, threadIdx.x % LANES, 0);
    const int owner = warp / GROUP_WARPS;
    cursor ring = {m.slots - 1, ~0u};
    steps todo = steps_load(a, tile_load(a, begin, end).group, owner);
    uint32_t now = step_load(a, todo, 0);
    grid_wait();
    for (int i = begin; i < end; i++) {
        const steps after = steps_load(a, tile_load(a, i + 1, end).group, owner);
        float acc[DSD_PAIR_OWNED][SUMS];
#pragma unroll
        for (int j = 0; j < DSD_PAIR_OWNED * SUMS; j++)
            acc[j / SUMS][j % SUMS] = 0;
        tile_multiply<TYPE, TRANS>(acc, a, todo, after, now, m, ring, lane);
        todo = after;
        store<TYPE, PLAIN>(acc, a, tile_load(a, i, end), m, warp);
    }
}

template <int TYPE, int TRANS, bool PLAIN>
FN void product(const CUtensorMap *map, const dsd_pair_arg &a)
{
    extern __shared__ __align__(1024) char shared[];
    const int warp = __shfl_sync(~0u, threadIdx.x / LANES, 0);
    const memory m = {__shfl_sync(~0u, shared_address(shared), 0), (uint32_t)a.slots,
                      (uint32_t)a.slot_bytes};
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.slots; i++) {
            mbar_init(m.full(i, 0), 1);
            mbar_init(m.full(i, 1), 1);
            mbar_init(m.empty(i), CONSUMER_WARPS);
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
    grid_allow_next();
    const int begin = a.tile_start[blockIdx.x], end = a.tile_start[blockIdx.x + 1];
    if (warp >= CONSUMER_WARPS) {
        registers_lower<PRODUCER_REGISTERS>();
        produce<TRANS>(map, a, m, begin, end, warp - CONSUMER_WARPS);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        consume<TYPE, TRANS, PLAIN>(a, m, begin, end, warp);
    }
}

/* PLAIN: as the epilogue has it, without activation; kernels of their own, because what any other
 * end needs in registers costs the products theirs. */
#define KERNEL(type, TYPE, axis, TRANS, PLAIN)                                                     \
    extern "C" __global__ void __launch_bounds__(DSD_PAIR_THREADS, 1)                              \
        dsd_sm90a_pair_##type##_##axis(const __grid_constant__ CUtensorMap map,                    \
                                       const __grid_constant__ dsd_pair_arg a)                     \
    {                                                                                              \
        product<TYPE, TRANS, PLAIN>(&map, a);                                                      \
    }
FOR_HALVES_WGMMA(KERNEL, nc_plain, 0, true)
FOR_HALVES_WGMMA(KERNEL, nc_any, 0, false)
FOR_HALVES_WGMMA(KERNEL, cn_plain, 1, true)
FOR_HALVES_WGMMA(KERNEL, cn_any, 1, false)

/* --- Packing: a piece for each thread block --- */

extern "C" __global__ void __launch_bounds__(DSD_PAIR_PACK_THREADS)
    dsd_sm90a_pair_pack(const __grid_constant__ dsd_pair_pack_arg a)
{
    enum { RUN = 8, RUNS = DSD_PAIR_UNIT / RUN };
    const int2 piece = __ldg((const int2 *)(a.pieces + blockIdx.x)); /* source, valid */
    grid_allow_next();
    grid_wait();
    /* Neighbours in a warp read neighbours: along the features, or along the depth. */
    const bool along = a.row_stride == 1;
    const int run = along ? threadIdx.x % RUNS : threadIdx.x / DSD_PAIR_UNIT;
    const int k = along ? threadIdx.x / RUNS : threadIdx.x % DSD_PAIR_UNIT;
    const uint16_t *from =
        a.source + (size_t)(uint32_t)piece.x * 8 + run * RUN * a.row_stride + k * a.depth_stride;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (k < piece.y && along) {
        v = *(const uint4 *)from;
    } else if (k < piece.y) {
        uint32_t word[RUN / 2];
#pragma unroll
        for (int i = 0; i < RUN / 2; i++)
            word[i] = from[2 * i * a.row_stride] | (uint32_t)from[(2 * i + 1) * a.row_stride] << 16;
        v = make_uint4(word[0], word[1], word[2], word[3]);
    }
    uint4 *to = (uint4 *)(a.image + (size_t)blockIdx.x * DSD_PAIR_PIECE_BYTES);
    to[k * RUNS + (run ^ k / 2 % RUNS)] = v;
}
