/* What the kernels of attention that own query rows share on Hopper: the walk over a tile's list, the
 * producer's copies, and masks. */
#ifndef BSKI_CUDA_SM90A_ATTENTION_TILE_H
#define BSKI_CUDA_SM90A_ATTENTION_TILE_H

#include <bsk/tensor.h>

#include <backends/cuda/mma.h>
#include <backends/cuda/ptx.h>
#include <backends/cuda/sm90a/attention_form.h>
#include <backends/cuda/sm90a/ring.h>

/* --- Producers --- */

/* A unit of a list: its first key, with bit 0 set where a band sees not all of it, or NONE; and
 * what each band sees. */
template <int BANDS> struct unit {
    int code, view[BANDS > 2 ? 1 : BANDS];

    __device__ bool exists() const
    {
        return code >= 0;
    }
    __device__ int key(int none) const
    {
        return exists() ? code & ~1 : none;
    }
};

/* A unit as it is listed: bands: the slot of its block, or which bands have one. */
struct listed {
    int key, bands;
};

__device__ __forceinline__ int length_of(const int32_t *length, int member, int time)
{
    const int n = length ? length[member] : time;
    return n < 0 ? 0 : n > time ? time : n;
}

/* Of many bands a lane has the first row of its own, which all_rows tells the others. */
template <int BANDS>
__device__ __forceinline__ attention_tile load_tile(const attention_arg &a, int i, int end)
{
    const attention_tile *tile = a.tiles + (i < end ? i : end - 1);
    const int4 v = __ldg((const int4 *)tile);
    const int run = __ldg(&tile->run);
    if constexpr (BANDS > 2)
        return {v.x, v.y, v.z, {__ldg(tile->row + threadIdx.x % BANDS)}, run};
    else
        return {v.x, v.y, v.z, {v.w, __ldg(tile->row + 1)}, run};
}

template <int BANDS> __device__ __forceinline__ attention_tile all_rows(const attention_tile &own)
{
    attention_tile tile = own;
#pragma unroll
    for (int i = 0; BANDS > 2 && i < BANDS; i++)
        tile.row[i] = __shfl_sync(~0u, own.row[0], i);
    return tile;
}

/* A lane's unit of 32 from `at` on. */
template <int BANDS>
__device__ __forceinline__ listed load_unit(const attention_arg &a, const attention_tile &tile,
                                            int at)
{
    const int mine = at + threadIdx.x % LANES;
    const void *list = BANDS > 1 ? (const void *)(a.unions + tile.first + mine)
                                 : (const void *)(a.units + tile.first + mine);
    if (mine >= tile.count)
        return {NONE, 0};
    const int2 v = __ldg((const int2 *)list);
    return {v.x, v.y};
}

/* The slot of a unit's block for a band, or NONE; 0 where nobody asks which. */
template <int BANDS>
__device__ __forceinline__ int slot_of(const attention_arg &a, int64_t place, int bands, int band)
{
    if (BANDS == 1)
        return bands;
    if (!(bands >> band & 1))
        return NONE;
    return a.masks > 0 ? __ldg(a.slots + place * BANDS + band) : 0;
}

/* A tile, and what its member of the batch has. */
struct tile_walk {
    attention_tile tile;
    int queries, keys;
    int member, head, key_head; /* heads of the member */

    __device__ void begin(const attention_arg &a, const attention_tile &t)
    {
        tile = t;
        member = t.head / a.heads;
        head = t.head - member * a.heads;
        key_head = head / a.group;
        queries = length_of(a.q_len, member, a.q_time);
        keys = length_of(a.k_len, member, a.k_time);
    }
    __device__ int shift(const attention_arg &a) const
    {
        return a.align_end ? keys - queries : 0;
    }
};

/* The bit mask of a block, or SOME. */
__device__ __forceinline__ int mask_of(const attention_arg &a, int slot)
{
    if (!a.bits)
        return SOME;
    const int mask = a.bits_index ? a.bits_index[slot] : slot;
    return mask >= 0 && mask < a.masks ? mask : SOME;
}

/* What `rows` rows from `row` on see of `side` keys in a block. */
__device__ __forceinline__ int view_of(const attention_arg &a, const tile_walk &w, int row,
                                       int rows, int key, int side, int slot)
{
    if (slot < 0 || key >= w.keys || row >= w.queries)
        return NOTHING;
    const int row_end = min(row + rows, w.queries) - 1, key_end = key + side - 1;
    const int near = row + w.shift(a) - key_end, far = row_end + w.shift(a) - key;
    if ((a.causal && far < 0) || (a.window && (near >= a.window || -far >= a.window)))
        return NOTHING;
    const int mask = mask_of(a, slot);
    if (mask >= 0)
        return mask;
    const bool partial = key_end >= w.keys || (a.causal && near < 0) ||
                         (a.window && (far >= a.window || -near >= a.window));
    return partial ? SOME : ALL;
}

/* at: the unit's place in the tile's list. */
template <class F>
__device__ __forceinline__ unit<F::BANDS> classify(const attention_arg &a, const tile_walk &w,
                                                   const listed &u, int at)
{
    const attention_tile tile = all_rows<F::BANDS>(w.tile);
    unit<F::BANDS> x = {};
    bool seen = false, whole = true;
#pragma unroll
    for (int i = 0; i < F::BANDS; i++) {
        const int view = u.key < 0
                             ? NOTHING
                             : view_of(a, w, tile.row[i], F::BAND_ROWS, u.key, F::SIDE,
                                       slot_of<F::BANDS>(a, (int64_t)tile.first + at, u.bands, i));
        seen = seen || view != NOTHING;
        whole = whole && view == ALL;
        if constexpr (F::MANY)
            x.view[0] |= (view == NOTHING) << i | (view == ALL) << (ATTENTION_BANDS + i);
        else
            x.view[i] = view;
    }
    if constexpr (F::MANY)
        x.view[0] |= at << VIEW_AT;
    x.code = seen ? u.key | (int)!whole : NONE;
    return x;
}

/* The visible units of a tile's list, one after the other. */
template <class F> struct unit_walk {
    const attention_arg &a;
    const tile_walk &w;
    int at;
    unit<F::BANDS> mine; /* of the 32 from `at` on */
    uint32_t live;       /* those of them that are visible, and, but of many bands, still to come */
    /* Of many bands: lanes of the visible units in shared memory, and how many of them are gone. */
    uint32_t order;
    int gone;

    __device__ void look(const listed &u)
    {
        const int lane = threadIdx.x % LANES;
        mine = classify<F>(a, w, u, at + lane);
        live = __ballot_sync(~0u, mine.exists());
        if constexpr (F::MANY) {
            __syncwarp(); /* behind the reads of the 32 before */
            if (mine.exists())
                shared_store_4(order + 4 * __popc(live & ((1u << lane) - 1)), lane);
            __syncwarp();
            gone = 0;
        }
    }
    /* Of many bands: a step's units, each in its lane. */
    __device__ unit<F::BANDS> next_step()
    {
        const int lane = threadIdx.x % LANES;
        unit<F::BANDS> x = {NONE, {VIEW_NOTHING}};
        for (int count = 0; count < F::UNITS && more();) {
            const int take = min(F::UNITS - count, __popc(live) - gone);
            const bool taken = lane >= count && lane < count + take;
            const int from = shared_load_4(order + 4 * (gone + (taken ? lane - count : 0)));
            const int code = __shfl_sync(~0u, mine.code, from);
            const int view = __shfl_sync(~0u, mine.view[0], from);
            if (taken)
                x = {code, {view}};
            count += take;
            gone += take;
        }
        return x;
    }
    __device__ bool is_empty() const
    {
        return F::MANY ? gone == __popc(live) : !live;
    }
    __device__ bool more()
    {
        while (is_empty() && at + LANES < w.tile.count) {
            at += LANES;
            look(load_unit<F::BANDS>(a, w.tile, at));
        }
        return !is_empty();
    }
    /* The next unit, the same for all lanes. */
    __device__ unit<F::BANDS> next()
    {
        const bool some = more();
        const int lane = __ffs(live) - 1;
        unit<F::BANDS> x;
        live &= live - 1;
        x.code = __shfl_sync(~0u, mine.code, lane);
        x.code = some ? x.code : NONE;
#pragma unroll
        for (int i = 0; i < F::VIEWS; i++) {
            x.view[i] = __shfl_sync(~0u, mine.view[i], lane);
            x.view[i] = some ? x.view[i] : NOTHING;
        }
        return x;
    }
};

/* Where a step's lines come from. */
template <class F> struct source {
    int key[F::UNITS]; /* the first of each unit */
    int keys;          /* of the member */
    int run, head, member;

    /* Whether a unit has keys beyond the member's. Beyond the tensor copies bring zeros. */
    __device__ bool is_cut(const attention_arg &a, int i) const
    {
        return keys < a.k_time && key[i] < keys && keys < key[i] + F::SIDE;
    }
    __device__ bool is_cut(const attention_arg &a) const
    {
        bool cut = false;
#pragma unroll
        for (int i = 0; i < F::UNITS; i++)
            cut = cut || is_cut(a, i);
        return cut;
    }
};

/* One ring's producer. All lanes of its warp do the same, but for copies and signals, which are the
 * leader's. */
template <class F> struct ring_producer {
    const attention_arg &a;
    memory<F> m;
    int ring;
    cursor<F::SLOTS> at;
    int tiles; /* begun so far */
    uint32_t cut_parity;

    __device__ static bool leads()
    {
        return threadIdx.x % LANES == 0;
    }
    __device__ void wait_empty() const
    {
        mbar_wait(m.empty(ring, at.slot), at.parity ^ 1);
    }

    /* A slot's data are signalled by each lane that may have told of it; the leader's signal, which
     * counts the copies, is not made here. */
    __device__ void signal_told() const
    {
        const int lane = threadIdx.x % LANES;
        if (F::TELLERS > 1 && lane > 0 && lane < F::TELLERS)
            mbar_arrive(m.full(ring, at.slot));
    }

    __device__ void copy(const CUtensorMap *from, const source<F> &s, uint32_t bar) const
    {
        mbar_expect(bar, F::SLOT_BYTES);
#pragma unroll
        for (int panel = 0; panel < F::PANELS; panel++)
#pragma unroll
            for (int i = 0; i < F::UNITS; i++)
                tensor_load_5d(m.slot(ring, at.slot) + panel * F::PANEL_BYTES + i * F::UNIT_BYTES,
                               from, panel * PANEL, s.key[i], s.run, s.head, s.member, bar);
    }

    /* Zeros instead of a unit's lines beyond the member's keys. */
    __device__ void clear(const source<F> &s, int i) const
    {
#pragma unroll
        for (int panel = 0; panel < F::PANELS; panel++) {
            const uint32_t to = m.slot(ring, at.slot) + panel * F::PANEL_BYTES + i * F::UNIT_BYTES;
            for (int x = (s.keys - s.key[i]) * ROW_BYTES + threadIdx.x % LANES * 16;
                 x < (int)F::UNIT_BYTES; x += LANES * 16)
                shared_store_16(to + x, 0, 0, 0, 0);
        }
    }

    /* The lines that shares are multiplied with: those beyond the member's keys, which may hold
     * anything, have shares of 0, but 0 times anything need not be 0. */
    __device__ void fetch_cut(const CUtensorMap *from, const source<F> &s)
    {
        const bool cut = s.is_cut(a);
        wait_empty();
        if (leads())
            copy(from, s, cut ? m.cut(ring) : m.full(ring, at.slot));
        __syncwarp();
        if (cut) {
            mbar_wait(m.cut(ring), cut_parity);
            cut_parity ^= 1;
            for (int i = 0; i < F::UNITS; i++)
                if (s.is_cut(a, i))
                    clear(s, i);
            async_fence();
            __syncwarp();
            if (leads())
                mbar_arrive(m.full(ring, at.slot));
        }
        signal_told();
        at.next();
    }

    /* What the next slot's step is, by all lanes. A unit that does not exist is beyond the keys. */
    __device__ source<F> describe_step(const tile_walk &w, const unit<F::BANDS> (&units)[F::TOLD],
                                       int flags) const
    {
        source<F> s;
        const uint32_t step = m.step(ring, at.slot);
        bool partial = false;
        s.keys = w.keys;
        s.run = w.tile.run;
        s.head = w.key_head;
        s.member = w.member;
        if constexpr (F::MANY) {
            const int lane = threadIdx.x % LANES;
#pragma unroll
            for (int i = 0; i < F::UNITS; i++)
                s.key[i] = __shfl_sync(~0u, units[0].key(a.k_time), i);
            wait_empty();
            if (leads())
                shared_store_4(step, flags);
            if (lane < F::UNITS)
                shared_store_4(step + 4 * (F::VIEW_WORD + lane), units[0].view[0]);
            return s;
        }
#pragma unroll
        for (int i = 0; i < F::TOLD; i++) {
            partial = partial || !units[i].exists() || (units[i].code & 1);
            s.key[i] = units[i].key(a.k_time);
        }
        wait_empty();
        if (leads()) {
            shared_store_4(step, flags | (partial ? PARTIAL : 0));
#pragma unroll
            for (int i = 0; i < F::TOLD; i++) {
                shared_store_4(step + 4 * (F::KEY_WORD + i), s.key[i]);
#pragma unroll
                for (int view = 0; view < F::VIEWS; view++)
                    shared_store_4(step + 4 * (F::VIEW_WORD + i * F::VIEWS + view),
                                   units[i].view[view]);
            }
        }
        __syncwarp();
        return s;
    }

    /* By the leader, before the tile's rows are signalled. */
    __device__ void describe_tile(const tile_walk &w) const
    {
        const uint32_t info = m.tile(ring, tiles);
        shared_store_16(info, w.tile.head, w.queries, w.keys, w.shift(a));
#pragma unroll
        for (int i = 0; i < F::BANDS; i++)
            shared_store_4(info + 4 * (ROW_WORD + i), w.tile.row[i]);
        shared_store_4(info + 4 * RUN_WORD, w.tile.run);
        const int64_t base =
            w.member * a.o.batch + w.head * a.o.head + (int64_t)w.tile.run * a.o.run;
        shared_store_4(info + 4 * BASE_WORD, (uint32_t)base);
        shared_store_4(info + 4 * (BASE_WORD + 1), (uint32_t)(base >> 32));
        if (F::BANDS > 1) {
            shared_store_4(info + 4 * FIRST_WORD, w.tile.first);
            shared_store_4(info + 4 * COUNT_WORD, w.tile.count);
        }
    }

    /* The rows of one warpgroup, by the leader. */
    __device__ void copy_rows(const CUtensorMap *from, const tile_walk &w, int part, uint32_t to,
                              uint32_t bar) const
    {
#pragma unroll
        for (int panel = 0; panel < F::PANELS; panel++)
#pragma unroll
            for (int i = 0; i < ATTENTION_UNIT; i += F::BOX) {
                const int row = part * ATTENTION_UNIT + i;
                tensor_load_5d(to + panel * TILE_BYTES + i * ROW_BYTES, from, panel * PANEL,
                               w.tile.row[row / F::BAND_ROWS] + row % F::BAND_ROWS, w.tile.run,
                               w.head, w.member, bar);
            }
    }

    /* A new tile's; of teams, lines of another tensor behind them. */
    __device__ void fetch_queries(const CUtensorMap *from, const tile_walk &w,
                                  const CUtensorMap *behind = nullptr)
    {
        const int buffer = buffer_of<F>(tiles);
        tile_walk all = w;
        all.tile = all_rows<F::BANDS>(w.tile);
        mbar_wait(m.q_empty(ring, buffer), parity_of<F>(tiles) ^ 1);
        if (leads()) {
            const uint32_t bar = m.q_full(ring, buffer);
            describe_tile(all);
            mbar_expect(bar, F::READERS * F::TEAM * F::Q_BYTES);
#pragma unroll
            for (int part = 0; part < F::READERS; part++)
                copy_rows(from, all, part, m.queries(ring, buffer, part), bar);
            if (F::TEAM > 1)
                copy_rows(behind, all, 0, m.queries(ring, buffer, 0) + F::Q_BYTES, bar);
        }
        __syncwarp();
        tiles++;
    }
};

/* Walks over a ring's tiles, of which there is one at least. P::fetch_step(walk, units, flags) is
 * called for each step of each tile, P::finish at the end.
 * Tables are read a tile ahead. A tile that sees nothing has one step without units, which makes
 * the zeros that belong there. */
template <class F, class P>
__device__ __forceinline__ void produce(P &p, const attention_arg &a, int begin, int end)
{
    tile_walk w;
    attention_tile ahead = load_tile<F::BANDS>(a, begin, end);
    attention_tile after = load_tile<F::BANDS>(a, begin + 1, end);
    listed list = load_unit<F::BANDS>(a, ahead, 0);
    grid_wait(); /* only tables of the plan are read before */
    for (int i = begin; i < end; i++) {
        w.begin(a, ahead);
        unit_walk<F> walk = {a, w, 0};
        walk.order = p.m.order(p.ring);
        walk.look(list);
        ahead = after;
        list = load_unit<F::BANDS>(a, ahead, 0);
        after = load_tile<F::BANDS>(a, i + 2, end);
        bool more = true;
        for (int flags = FIRST; more; flags = 0) {
            unit<F::BANDS> now[F::TOLD];
            if constexpr (F::MANY) {
                now[0] = walk.next_step();
            } else {
#pragma unroll
                for (int u = 0; u < F::TOLD; u++)
                    now[u] = walk.next();
            }
            more = walk.more();
            p.fetch_step(w, now, flags | (more ? 0 : LAST));
        }
    }
    p.finish();
}

/* --- Consumers --- */

/* A warpgroup's ring, and its part of the ring's tiles. */
struct place {
    int ring, part;
};

/* A lane's first row in a tile. */
__device__ __forceinline__ int row_of(const place &here)
{
    const int warp = threadIdx.x / LANES % GROUP_WARPS;
    return here.part * ATTENTION_UNIT + warp * 16 + threadIdx.x % LANES / 4;
}

/* The band of a tile's row, and when that row is. */
template <class F> __device__ __forceinline__ int band_of(int row)
{
    return F::BANDS > 1 ? row / F::BAND_ROWS : 0;
}

template <class F> __device__ __forceinline__ int time_of(uint32_t tile, int row)
{
    return shared_load_4(tile + 4 * (ROW_WORD + band_of<F>(row))) + row % F::BAND_ROWS;
}

/* Where the results of a tile's head and run begin. */
__device__ __forceinline__ int64_t base_of(uint32_t tile)
{
    const uint2 base = shared_load_8(tile + 4 * BASE_WORD);
    return (int64_t)((uint64_t)base.y << 32 | base.x);
}

/* One lane speaks for its warp at barriers. */
__device__ __forceinline__ bool is_speaker()
{
    return threadIdx.x % LANES == 0;
}

/* A warp has done what the barrier waits for, where lanes have read nothing themselves but by
 * products. Of what they have loaded each lane signals for itself. */
__device__ __forceinline__ void signal(uint32_t bar, bool speaker = is_speaker())
{
    __syncwarp();
    if (speaker)
        mbar_arrive(bar);
}

/* The warp's 16 rows of some panels as left operand. */
template <int PANELS> __device__ __forceinline__ void load_rows(uint32_t *x, uint32_t from)
{
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES % GROUP_WARPS;
    const int row = warp * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < PANELS * 4; i++)
        ldmatrix_x4(x + 4 * i, from + i / 4 * TILE_BYTES + row * ROW_BYTES +
                                   ((i % 4 * 2 + lane / 16) ^ row % 8) * 16);
}

/* s = X Y^T for a slot of keys or values and rows of which registers hold some panels. */
template <class F, int PANELS>
__device__ __forceinline__ void multiply_rows(float (&s)[F::SCORES], const uint32_t *x,
                                              uint32_t rows, uint32_t slot)
{
    constexpr uint32_t high = descriptor_high(1024, SWIZZLE_128);
    const uint32_t a = descriptor_low(rows, 16), b = descriptor_low(slot, 16);
#pragma unroll
    for (int i = 0; i < F::WIDTH / 16; i++) {
        const uint32_t in = i % 4 * 32;
        const uint64_t y = descriptor(b + ((i / 4 * F::PANEL_BYTES + in) >> 4), high);
        if (i < PANELS * 4)
            wgmma_rs<F::TYPE, F::STEP, 0>(s, x + 4 * i, y, i > 0);
        else
            wgmma_ss<F::TYPE, F::STEP, 0, 0>(
                s, descriptor(a + ((i / 4 * TILE_BYTES + in) >> 4), high), y, i > 0);
    }
    wgmma_commit();
}

/* sums += P V, or = where none have begun; lines of V run across the keys. */
template <class F>
__device__ __forceinline__ void multiply_lines(float (&sums)[F::WIDTH / 2],
                                               const uint32_t (&p)[F::SCORES / 2], uint32_t v,
                                               bool begun = true)
{
    constexpr uint32_t high = descriptor_high(1024, SWIZZLE_128);
    const uint32_t b = descriptor_low(v, F::PANEL_BYTES);
#pragma unroll
    for (int i = 0; i < F::STEP / 16; i++)
        wgmma_rs<F::TYPE, F::WIDTH, 1>(
            sums, p + 4 * i, descriptor(b + (i * 16 * ROW_BYTES >> 4), high), i > 0 || begun);
    wgmma_commit();
}

template <class F>
__device__ __forceinline__ void round_scores(uint32_t (&p)[F::SCORES / 2],
                                             const float (&s)[F::SCORES])
{
#pragma unroll
    for (int i = 0; i < F::SCORES / 2; i++)
        p[i] = mma_pack<typename F::T>(s[2 * i], s[2 * i + 1]);
}

/* Bits 0 .. n - 1. */
__device__ __forceinline__ uint64_t bits_below(int n)
{
    return n <= 0 ? 0 : n >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1;
}

/* Which keys of a unit the row sees: bit j, key + j. */
template <int SIDE>
__device__ __forceinline__ uint64_t visible(const attention_arg &a, int row, int shift, int keys,
                                            int key, int view)
{
    const int position = row + shift;
    int low = 0, high = keys;
    if (a.causal)
        high = min(high, position + 1);
    if (a.window) {
        high = min(high, position + a.window);
        low = position - a.window + 1;
    }
    uint64_t seen = bits_below(high - key) & ~bits_below(low - key);
    if (view >= 0) {
        const int64_t line = (int64_t)view * a.block_rows + (row & (a.block_rows - 1));
        const int byte = (key & (a.block_cols - 1)) / 8;
        const uint8_t *bits = a.bits + line * (a.block_cols / 8) + byte;
        if constexpr (SIDE == 64)
            seen &= *(const unsigned long long *)bits;
        else if constexpr (SIDE == 32)
            seen &= *(const unsigned *)bits;
        else if constexpr (SIDE == 16)
            seen &= *(const unsigned short *)bits;
        else
            seen &= *bits;
    }
    return seen;
}

/* A unit of a tile's list, where a view leads to it, as a row of a band sees it. */
template <class F>
__device__ __forceinline__ uint64_t look_up(const attention_arg &a, uint32_t tile, int row, int at)
{
    const int64_t place = (int64_t)shared_load_4(tile + 4 * FIRST_WORD) + at;
    const int2 u = __ldg((const int2 *)(a.unions + place));
    const int slot = slot_of<F::BANDS>(a, place, u.y, band_of<F>(row));
    return visible<F::SIDE>(a, time_of<F>(tile, row), shared_load_4(tile + 4 * SHIFT_WORD),
                            shared_load_4(tile + 4 * KEYS_WORD), u.x, mask_of(a, slot)) &
           bits_below(F::SIDE);
}

/* A step's units, and what a warp's rows see of them. */
template <class F> struct sight {
    int key[F::MANY ? 1 : F::UNITS], view[F::UNITS];
    int band; /* of many: that of the lane's first row */

    __device__ void load(uint32_t step, int row)
    {
        band = band_of<F>(row);
#pragma unroll
        for (int i = 0; i < F::UNITS; i++) {
            const int from = F::MANY ? i : i * F::BANDS + band;
            if constexpr (!F::MANY)
                key[i] = shared_load_4(step + 4 * (F::KEY_WORD + i));
            view[i] = shared_load_4(step + 4 * (F::VIEW_WORD + from));
        }
    }
    /* A step's flags, with what they call for. Four warpgroups have it read by the lane that will
     * signal that the warp has: racecheck follows signals by thread. Two would wait for it. */
    __device__ int meet(uint32_t step, int row)
    {
        constexpr bool ALONE = F::GROUPS == 4;
        const auto told = [&](int word) {
            const bool reads = !ALONE || is_speaker();
            return (int)__shfl_sync(~0u, reads ? shared_load_4(step + 4 * word) : 0, 0);
        };
        const int flags = told(0);
        if constexpr (!ALONE) {
            if (!(flags & END))
                load(step, row);
        } else if (flags & PARTIAL) {
#pragma unroll
            for (int i = 0; i < F::UNITS; i++) {
                key[i] = told(F::KEY_WORD + i);
                view[i] = told(F::VIEW_WORD + i);
            }
        }
        return flags;
    }
    /* Whether the lane's row h sees nothing of a unit, or all of it. */
    __device__ bool is_nothing(int i, int h) const
    {
        if constexpr (F::MANY)
            return view[i] >> (band + h * 8 / F::BAND_ROWS) & 1;
        else
            return view[i] == NOTHING;
    }
    __device__ bool is_all(int i, int h) const
    {
        if constexpr (F::MANY)
            return view[i] >> (ATTENTION_BANDS + band + h * 8 / F::BAND_ROWS) & 1;
        else
            return view[i] == ALL;
    }
    /* Whether each unit is seen as a whole, or as a whole or not at all; the same for all lanes. */
    __device__ bool is_whole() const
    {
        bool whole = true;
#pragma unroll
        for (int i = 0; i < F::UNITS; i++)
            whole = whole && is_all(i, 0) && is_all(i, 1);
        return __all_sync(~0u, whole);
    }
    __device__ bool is_plain() const
    {
        bool plain = true;
#pragma unroll
        for (int i = 0; i < 2 * F::UNITS; i++)
            plain = plain && (is_all(i / 2, i % 2) || is_nothing(i / 2, i % 2));
        return __all_sync(~0u, plain);
    }
    /* The same as below, of all units of a step. */
    __device__ void of_step(uint64_t (&seen)[2], const attention_arg &a, uint32_t tile,
                            int row) const
    {
        sight<F> rest = *this;
        seen[0] = seen[1] = 0;
#pragma unroll 1
        for (int n = 0; n < F::UNITS; n++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint64_t bits = rest.is_all(0, h) ? bits_below(F::SIDE) : 0;
                if (!rest.is_all(0, h) && !rest.is_nothing(0, h))
                    bits = look_up<F>(a, tile, row + 8 * h, (unsigned)rest.view[0] >> VIEW_AT);
                seen[h] |= bits << n * F::SIDE;
            }
#pragma unroll
            for (int i = 0; i + 1 < F::UNITS; i++)
                rest.view[i] = rest.view[i + 1];
        }
        seen[0] >>= threadIdx.x % 4 * 2;
        seen[1] >>= threadIdx.x % 4 * 2;
    }
    /* What a lane's two rows, 8 apart, see of a unit: bit j, its key 2 (lane % 4) + j. row: the
     * lane's first in the tile. */
    __device__ void of_rows(uint64_t (&seen)[2], const attention_arg &a, uint32_t tile, int row,
                            int i) const
    {
        seen[0] = seen[1] = view[i] == ALL ? ~UINT64_C(0) : 0;
        if (view[i] == ALL || view[i] == NOTHING)
            return;
        const int keys = shared_load_4(tile + 4 * KEYS_WORD);
        const int shift = shared_load_4(tile + 4 * SHIFT_WORD);
#pragma unroll
        for (int h = 0; h < 2; h++)
            seen[h] =
                visible<F::SIDE>(a, time_of<F>(tile, row) + 8 * h, shift, keys, key[i], view[i]) >>
                threadIdx.x % 4 * 2;
    }
    /* Of all units, or of the step, which then has one word for all. */
    __device__ void of_rows(uint64_t (&seen)[F::BIT_WORDS][2], const attention_arg &a,
                            uint32_t tile, int row) const
    {
        if constexpr (F::MANY) {
            of_step(seen[0], a, tile, row);
        } else {
#pragma unroll
            for (int i = 0; i < F::UNITS; i++)
                of_rows(seen[i], a, tile, row, i);
        }
    }
};

/* Whether a lane's score is that of a key that its row sees.
 *
 * Number 4 j + 2 h + e of a lane's scores is that of row lane / 4 + 8 h of the warp's 16 and of key
 * 8 j + 2 (lane % 4) + e. */
template <class F>
__device__ __forceinline__ bool is_seen(const uint64_t (&seen)[F::BIT_WORDS][2], int i)
{
    const int word = i / (F::BIT_SIDE / 2), in = i % (F::BIT_SIDE / 2);
    return seen[word][in / 2 % 2] >> (in / 4 * 8 + in % 2) & 1;
}

/* Calls hide(i) for those scores i of a lane that are not visible. row: the lane's first in the
 * tile. */
template <class F, class H>
__device__ __forceinline__ void for_hidden(const attention_arg &a, uint32_t step, uint32_t tile,
                                           int row, const H &hide)
{
    uint64_t seen[F::UNITS][2];
    sight<F> sees;
    sees.load(step, row);
#pragma unroll
    for (int i = 0; i < F::UNITS; i++) {
        if (sees.view[i] == ALL)
            continue;
        sees.of_rows(seen[i], a, tile, row, i);
#pragma unroll
        for (int j = F::SIDE / 2 * i; j < F::SIDE / 2 * (i + 1); j++)
            if (!is_seen<F>(seen, j))
                hide(j);
    }
}

/* --- Thread blocks --- */

/* Sets up the barriers, at which warps of consumers make so many signals when they leave what they
 * have read, and hands out the roles: produce(m, ring, begin, end) for each ring with
 * tiles begin .. end - 1, consume(m, place, tiles) for each warpgroup of such a ring. */
template <class F, int SIGNALS, class P, class C>
__device__ __forceinline__ void run_block(const attention_arg &a, const P &produce,
                                          const C &consume)
{
    static_assert(memory<F>::CONTROL_BYTES <= ATTENTION_CONTROL_BYTES(F::WIDTH), "");
    extern __shared__ __align__(1024) char shared[];
    const memory<F> m = {shared_address(shared)};
    grid_allow_next();
    const int warp = __shfl_sync(~0u, threadIdx.x / LANES, 0), group = warp / GROUP_WARPS;
    if (threadIdx.x == 0) {
        constexpr int signals = F::READERS * F::TEAM * GROUP_WARPS * SIGNALS;
        for (int ring = 0; ring < F::RINGS; ring++) {
            for (int i = 0; i < F::SLOTS; i++) {
                mbar_init(m.full(ring, i), F::TELLERS);
                mbar_init(m.empty(ring, i), signals);
            }
            for (int i = 0; i < F::BUFFERS; i++) {
                mbar_init(m.q_full(ring, i), 1);
                mbar_init(m.q_empty(ring, i), signals);
            }
            mbar_init(m.cut(ring), 1);
        }
        mbar_init_fence();
    }
    __syncthreads();
    const bool consumer = group < F::GROUPS;
    if (!consumer) {
        registers_lower<F::PRODUCER_REGISTERS>();
        const int ring = warp - F::GROUPS * GROUP_WARPS;
        if (ring < F::RINGS) {
            const int *start = a.tile_start + blockIdx.x * F::RINGS + ring;
            const int begin = __ldg(start), end = __ldg(start + 1);
            if (begin < end)
                produce(m, ring, begin, end);
        }
    } else {
        registers_raise<F::CONSUMER_REGISTERS>();
        constexpr int together = F::READERS * F::TEAM;
        const int ring = group / together, part = group % together;
        const int *start = a.tile_start + blockIdx.x * F::RINGS + ring;
        const int tiles = __ldg(start + 1) - __ldg(start);
        grid_wait();
        if (tiles > 0)
            consume(m, place{ring, part}, tiles);
    }
}

#endif
