/* What producers and consumers of dK and dV share on Hopper, and the producers: a warp for each ring
 * walks over its tiles of keys and fetches steps of queries and dO. */
#ifndef BSKI_CUDA_SM90A_ATTENTION_DKV_PRODUCE_H
#define BSKI_CUDA_SM90A_ATTENTION_DKV_PRODUCE_H

#include <backends/cuda/sm90a/attention_dkv_arg.h>
#include <backends/cuda/sm90a/attention_store.h>

enum { INFO = 2 * DKV_SUM_BYTES, CODES = INFO + 16, MOST_PARTS = 2 /* but where they are many */ };
enum { KEYS_K = 0, KEYS_V = 1 };
enum { HALVES = DKV_STEP / LANES }; /* of a step: a lane has a query of each */

/* Words of a tile's description: its first key, its member's keys (0 if it has no queries), from a
 * query to where it stands among the keys, and whose it is. */
enum { TILE_KEY, TILE_KEYS, TILE_SHIFT, TILE_HEAD, TILE_MEMBER, TILE_RUN };

/* Of what a step is, beside FIRST ...: where the tile's keys are. */
enum { SECOND_BUFFER = 16 };

template <int TYPE_, int WIDTH_, int GROUPS_, int RINGS_, int SLOTS_, int STEPS_, int BUFFERS_,
          int SIDE_>
struct dkv_form {
    static constexpr int SCORES = DKV_STEP / 2;                               /* of a lane */
    static constexpr int PIECE = DKV_PIECE(SIDE_), PIECES = DKV_STEP / PIECE; /* of a step */
    static constexpr int PART = SIDE_ < DKV_KEYS ? SIDE_ : DKV_KEYS; /* keys told of together */
    static constexpr int TYPE = TYPE_, WIDTH = WIDTH_, GROUPS = GROUPS_, RINGS = RINGS_;
    static constexpr int SLOTS = SLOTS_, STEPS = STEPS_, BUFFERS = BUFFERS_, SIDE = SIDE_;
    static constexpr int PANELS = WIDTH / PANEL;
    static constexpr bool WIDE = DKV_WIDE(WIDTH_);
    static constexpr int TEAM = GROUPS / RINGS;                      /* warpgroups of a ring */
    static constexpr int KEYS = DKV_TILE_KEYS(WIDTH, GROUPS, RINGS); /* of a tile */
    static constexpr int READERS = KEYS / DKV_KEYS;                  /* of keys, and of values */
    static constexpr int PARTS = KEYS / PART;
    /* Codes of many parts share a word, and each lane of a step's pieces holds one of them. */
    static constexpr bool MANY = DKV_MANY(SIDE_);
    static constexpr int CODE_WORDS = MANY ? 1 : PARTS, TOLD = MANY ? 1 : PIECES;
    static constexpr int ALL_PARTS = (1 << PARTS) - 1;
    static constexpr uint32_t LINES_BYTES = PANELS * TILE_BYTES, PIECE_BYTES = PIECE * ROW_BYTES;
    static constexpr int BARRIERS = DKV_BARRIERS(WIDTH, SLOTS, STEPS, BUFFERS);
    static constexpr int PRODUCER_REGISTERS = MANY          ? (WIDTH == 128 ? 56 : 88)
                                              : GROUPS == 2 ? 40
                                                            : 32;
    static constexpr int CONSUMER_REGISTERS =
        GROUPS == 2 ? (504 - PRODUCER_REGISTERS) / 16 * 8 : 160;
    typedef typename element<TYPE>::type T;
};

/* Where things lie in shared memory. */
template <class F> struct dkv_memory {
    uint32_t base;

    /* Keys or values of a warpgroup. */
    __device__ uint32_t keys(int ring, int buffer, int kind, int part) const
    {
        return base +
               (((ring * F::BUFFERS + buffer) * 2 + kind) * F::READERS + part) * F::LINES_BYTES;
    }
    __device__ uint32_t slot(int ring, int i) const
    {
        return keys(F::RINGS, 0, 0, 0) + (ring * F::SLOTS + i) * F::LINES_BYTES;
    }
    /* What one warpgroup tells the other. */
    __device__ uint32_t shares(int ring) const
    {
        return slot(F::RINGS, 0) + ring * DKV_SHARE_BYTES(F::WIDTH);
    }
    __device__ uint32_t step(int ring, int i) const
    {
        return shares(F::RINGS) + (ring * F::STEPS + i) * DKV_STEP_BYTES;
    }
    __device__ uint32_t tile(int ring, int i) const
    {
        return step(F::RINGS, 0) + (ring * DKV_TILES + i % DKV_TILES) * DKV_TILE_BYTES;
    }
    __device__ uint32_t barrier(int ring, int i) const
    {
        return tile(F::RINGS, 0) + (ring * F::BARRIERS + i) * DKV_BARRIER_BYTES;
    }
    /* Barriers: data has come; its readers are done. */
    __device__ uint32_t full(int ring, int i) const
    {
        return barrier(ring, i);
    }
    __device__ uint32_t empty(int ring, int i) const
    {
        return barrier(ring, F::SLOTS + i);
    }
    __device__ uint32_t step_full(int ring, int i) const
    {
        return barrier(ring, 2 * F::SLOTS + i);
    }
    __device__ uint32_t step_empty(int ring, int i) const
    {
        return barrier(ring, 2 * F::SLOTS + F::STEPS + i);
    }
    __device__ uint32_t keys_full(int ring, int buffer, int kind) const
    {
        return barrier(ring, 2 * (F::SLOTS + F::STEPS) + 2 * buffer + kind);
    }
    __device__ uint32_t keys_empty(int ring, int buffer, int kind) const
    {
        return keys_full(ring, F::BUFFERS + buffer, kind);
    }
    __device__ uint32_t shares_full(int ring) const
    {
        return keys_empty(ring, F::BUFFERS, 0);
    }
    __device__ uint32_t shares_empty(int ring) const
    {
        return keys_empty(ring, F::BUFFERS, 1);
    }
    /* Lines that the producer has to cut have come. */
    __device__ uint32_t cut(int ring) const
    {
        return barrier(ring, F::BARRIERS - 1);
    }
    /* Of many parts: which lanes have the visible pieces of a list's 32. */
    __device__ uint32_t order(int ring) const
    {
        return barrier(F::RINGS, 0) + ring * DKV_ORDER_BYTES(F::SIDE);
    }
};

struct maps {
    const CUtensorMap *q, *k, *v, *dout;
};

/* A tile of keys, and what its member of the batch has. */
struct tile_view {
    int head, member, run, key; /* head: of keys, of the member */
    int queries, keys;
    int shift; /* from a query to where it stands among the keys */
};

template <class F>
__device__ __forceinline__ tile_view tile_of(const attention_dkv_arg &a, int number)
{
    const int all = number / a.tiles, tile = number - all * a.tiles;
    tile_view t;
    t.member = all / a.key_heads;
    t.head = all - t.member * a.key_heads;
    t.run = tile / a.run_tiles;
    t.key = (tile - t.run * a.run_tiles) * F::KEYS;
    t.queries = length_of(a.all.q_len, t.member, a.all.q_time);
    t.keys = length_of(a.all.k_len, t.member, a.all.k_time);
    t.shift = a.all.align_end ? t.keys - t.queries : 0;
    return t;
}

/* --- Producers --- */

/* A piece, and what is visible of it for each part of the keys; of many parts as views of many
 * bands. */
template <class F> struct piece {
    int row; /* NONE: there is no piece */
    int code[F::CODE_WORDS];

    __device__ bool exists() const
    {
        return row >= 0;
    }
    __device__ bool is(int what) const
    {
        if constexpr (F::MANY)
            return (code[0] >> (what == ALL ? ATTENTION_BANDS : 0) & F::ALL_PARTS) == F::ALL_PARTS;
        bool all = true;
#pragma unroll
        for (int i = 0; i < F::CODE_WORDS; i++)
            all = all && code[i] == what;
        return all;
    }
};

template <class F>
__device__ __forceinline__ int code_of(const attention_dkv_arg &a, const tile_view &t, int row,
                                       int key, int slot)
{
    if (slot < 0 || row >= t.queries || key >= t.keys)
        return NOTHING;
    const int row_end = min(row + F::PIECE, t.queries) - 1;
    const int key_end = min(key + F::PART, t.keys) - 1;
    const int near = row + t.shift - key_end, far = row_end + t.shift - key;
    if ((a.all.causal && far < 0) ||
        (a.all.window && (near >= a.all.window || -far >= a.all.window)))
        return NOTHING;
    const int mask = mask_of(a.all, slot);
    if (mask >= 0)
        return mask;
    const bool edge = (a.all.causal && near < 0) ||
                      (a.all.window && (far >= a.all.window || -near >= a.all.window));
    return edge ? SOME : ALL;
}

/* A step: pieces of one head. The lane's bounds of it, and of many parts the deltas, are on their
 * way. */
template <class F> struct dkv_step {
    int head; /* of queries, of the member */
    int list; /* of many parts: the first of the list's pieces */
    piece<F> pieces[F::TOLD];
    float bound[HALVES], delta[F::MANY ? HALVES : 1];

    /* By all lanes. */
    __device__ int row(int i, int none) const
    {
        const int row = F::MANY ? __shfl_sync(~0u, pieces[0].row, i) : pieces[i].row;
        return row >= 0 ? row : none;
    }
    /* The lane's query of half a step. */
    __device__ int own_row(int half, int none) const
    {
        const int lane = half * LANES + threadIdx.x % LANES;
        const int first = row(F::MANY ? lane / F::PIECE : half * LANES / F::PIECE, NONE);
        return first >= 0 ? first + lane % F::PIECE : none;
    }
};

/* The visible pieces of a tile's lists, one for each of its query heads. Lists are counted over all
 * tiles; lanes know the tables of 32. */
template <class F> struct piece_walk {
    const attention_dkv_arg &a;
    int next, end;            /* lists */
    int number, first, count; /* the lane's list of 32: its tile, its pieces */
    /* The list that is being walked over. */
    tile_view tile;
    int head; /* of queries, of those of the tile */
    int list, left;
    piece<F> mine; /* of the first 32 that are left */
    /* Those of them that are still to come; of many parts, all that are visible, whose lanes are in
     * shared memory, of which so many are gone. */
    uint32_t live;
    int gone;
    uint32_t order;
    int begin; /* of the list */

    __device__ static int lane()
    {
        return threadIdx.x % LANES;
    }
    __device__ void load_lists()
    {
        const int n = next / LANES * LANES + lane(), from = n / a.all.group;
        number = first = count = 0;
        if (n < end) {
            number = __ldg(a.order + from);
            const int all = number / a.tiles,
                      query_head = all * a.all.group + n - from * a.all.group;
            const int line =
                query_head % a.all.heads / a.per_head * a.lists + (number - all * a.tiles) / a.each;
            first = __ldg(a.list_start + line);
            count = __ldg(a.list_start + line + 1) - first;
        }
    }
    __device__ void look()
    {
        const bool some = lane() < left;
        int4 v = {NONE, NONE, NONE, 0};
        if (some)
            v = __ldg((const int4 *)(a.pieces + list + lane()));
        mine.row = v.x;
        if constexpr (F::MANY)
            mine.code[0] = some ? codes_of(v.y, list + lane()) : F::ALL_PARTS;
        else
#pragma unroll
            for (int i = 0; i < F::PARTS; i++)
                mine.code[i] = code_of<F>(a, tile, v.x, tile.key + i * F::PART, i ? v.z : v.y);
        const bool seen = !mine.is(NOTHING);
        live = __ballot_sync(~0u, seen);
        if constexpr (F::MANY) {
            __syncwarp(); /* behind the reads of the 32 before */
            if (seen)
                shared_store_4(order + 4 * __popc(live & ((1u << lane()) - 1)), lane());
            __syncwarp();
            gone = 0;
        }
    }
    /* Of many parts: the code of piece number `at`, of which some are kept. */
    __device__ int codes_of(int kept, int at) const
    {
        int code = (at - begin) << VIEW_AT;
#pragma unroll
        for (int i = 0; i < F::PARTS; i++) {
            const int slot = !(kept >> i & 1)  ? NONE
                             : a.all.masks > 0 ? __ldg(a.all.slots + (int64_t)at * F::PARTS + i)
                                               : 0;
            const int x = code_of<F>(a, tile, mine.row, tile.key + i * F::PART, slot);
            code |= (x == NOTHING) << i | (x == ALL) << (ATTENTION_BANDS + i);
        }
        return code;
    }
    __device__ bool is_live() const
    {
        return F::MANY ? gone < __popc(live) : live != 0;
    }
    /* On to the first lanes that have a piece, if the list has one. */
    __device__ void settle()
    {
        while (!is_live() && left > LANES) {
            list += LANES;
            left -= LANES;
            look();
        }
    }
    __device__ void open()
    {
        const int from = next % LANES;
        list = begin = __shfl_sync(~0u, first, from);
        left = __shfl_sync(~0u, count, from);
        look();
        settle();
        if (++next % LANES == 0)
            load_lists();
    }
    /* On to the tile's next list that has a piece, if there is one. */
    __device__ void settle_tile()
    {
        settle();
        while (!is_live() && head + 1 < a.all.group) {
            head++;
            open();
        }
    }
    __device__ void begin_tile()
    {
        tile = tile_of<F>(a, __shfl_sync(~0u, number, next % LANES));
        head = 0;
        open();
        settle_tile();
    }
    __device__ piece<F> take()
    {
        const bool some = live != 0;
        const int from = __ffs(live) - 1;
        piece<F> p;
        live &= live - 1;
        p.row = __shfl_sync(~0u, mine.row, from);
        p.row = some ? p.row : NONE;
#pragma unroll
        for (int i = 0; i < F::CODE_WORDS; i++) {
            p.code[i] = __shfl_sync(~0u, mine.code[i], from);
            p.code[i] = some ? p.code[i] : NOTHING;
        }
        return p;
    }
    /* Of many parts: a step's pieces, each in its lane. */
    __device__ piece<F> take_all()
    {
        piece<F> p = {NONE, {F::ALL_PARTS}};
        for (int count = 0; count < F::PIECES && is_live(); settle()) {
            const int take = min(F::PIECES - count, __popc(live) - gone);
            const bool taken = lane() >= count && lane() < count + take;
            const int from = shared_load_4(order + 4 * (gone + (taken ? lane() - count : 0)));
            const int row = __shfl_sync(~0u, mine.row, from);
            const int code = __shfl_sync(~0u, mine.code[0], from);
            if (taken)
                p = {row, {code}};
            count += take;
            gone += take;
        }
        return p;
    }
    /* Where sums of a row of a query head of the tile are. */
    __device__ int64_t sum_at(int query_head, int row) const
    {
        return (int64_t)(tile.member * a.all.heads + query_head) * a.pad + tile.run * a.all.q_time +
               row;
    }
    /* The tile's next step. A tile that sees nothing has one without pieces. */
    __device__ dkv_step<F> take_step()
    {
        dkv_step<F> s;
        s.head = tile.head * a.all.group + head;
        s.list = begin;
        if constexpr (F::MANY) {
            s.pieces[0] = take_all();
        } else {
#pragma unroll
            for (int i = 0; i < F::PIECES; i++) {
                if (i)
                    settle();
                s.pieces[i] = take();
            }
        }
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            const int64_t at = sum_at(s.head, s.own_row(h, lane()));
            s.bound[h] = a.bound[at];
            if constexpr (F::MANY)
                s.delta[h] = a.delta[at];
        }
        settle_tile();
        return s;
    }
};

/* One ring's producer. All lanes of its warp do the same, but for copies and signals, which are the
 * leader's. */
template <class F> struct dkv_producer {
    const maps &map;
    const attention_dkv_arg &a;
    dkv_memory<F> m;
    int ring;
    cursor<F::SLOTS> at;
    cursor<F::STEPS> entry;
    int tiles; /* begun so far */
    uint32_t cut_parity;

    __device__ static bool leads()
    {
        return threadIdx.x % LANES == 0;
    }

    /* Rows without a bound, inside of the tensor. */
    __device__ uint32_t dead_rows(const dkv_step<F> &s, int half) const
    {
        return __ballot_sync(~0u, s.own_row(half, a.all.q_time) < a.all.q_time &&
                                      s.bound[half] == INFINITY);
    }

    /* They are zeros: shares of 0 times what lies there need not be 0. */
    __device__ void clear(uint32_t to, uint32_t rows) const
    {
        const int lane = threadIdx.x % LANES;
#pragma unroll 1
        for (int row = lane / 8; row < LANES; row += LANES / 8)
            if (rows >> row & 1)
#pragma unroll
                for (int panel = 0; panel < F::PANELS; panel++)
                    shared_store_16(to + panel * TILE_BYTES + row * ROW_BYTES + lane % 8 * 16, 0, 0,
                                    0, 0);
    }

    /* Queries or dO. A piece that does not exist is beyond the queries, where copies bring zeros. */
    __device__ void fetch_lines(const CUtensorMap *from, const dkv_step<F> &s, const tile_view &t,
                                const int (&rows)[F::PIECES], const uint32_t (&dead)[HALVES])
    {
        const uint32_t to = m.slot(ring, at.slot), full = m.full(ring, at.slot);
        const bool cut = (dead[0] | dead[1]) != 0;
        mbar_wait(m.empty(ring, at.slot), at.parity ^ 1);
        if (leads()) {
            const uint32_t bar = cut ? m.cut(ring) : full;
            mbar_expect(bar, F::LINES_BYTES);
#pragma unroll
            for (int panel = 0; panel < F::PANELS; panel++)
#pragma unroll
                for (int i = 0; i < F::PIECES; i++)
                    tensor_load_5d(to + panel * TILE_BYTES + i * F::PIECE_BYTES, from,
                                   panel * PANEL, rows[i], t.run, s.head, t.member, bar);
        }
        __syncwarp();
        if (cut) {
            mbar_wait(m.cut(ring), cut_parity);
            cut_parity ^= 1;
#pragma unroll
            for (int half = 0; half < HALVES; half++)
                clear(to + half * LANES * ROW_BYTES, dead[half]);
            async_fence();
            __syncwarp();
            if (leads())
                mbar_arrive(full);
        }
        at.next();
    }

    /* Keys or values of a tile. */
    __device__ void fetch_keys(const CUtensorMap *from, const tile_view &t, int kind)
    {
        const int buffer = tiles % F::BUFFERS;
        mbar_wait(m.keys_empty(ring, buffer, kind), (tiles / F::BUFFERS & 1) ^ 1);
        if (leads()) {
            const uint32_t bar = m.keys_full(ring, buffer, kind);
            mbar_expect(bar, F::READERS * F::LINES_BYTES);
#pragma unroll
            for (int part = 0; part < F::READERS; part++)
#pragma unroll
                for (int panel = 0; panel < F::PANELS; panel++)
                    tensor_load_5d(m.keys(ring, buffer, kind, part) + panel * TILE_BYTES, from,
                                   panel * PANEL, t.key + part * DKV_KEYS, t.run, t.head, t.member,
                                   bar);
        }
        __syncwarp();
    }

    /* The same of many parts, by all lanes. */
    __device__ void tell_many(const dkv_step<F> &s, int flags)
    {
        const uint32_t to = m.step(ring, entry.slot);
        const int lane = threadIdx.x % LANES;
        const bool whole = __all_sync(~0u, lane >= F::PIECES || s.pieces[0].is(ALL));
        mbar_wait(m.step_empty(ring, entry.slot), entry.parity ^ 1);
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            const uint32_t at = to + (h * LANES + lane) * 4;
            shared_store_4(at, __float_as_uint(s.bound[h]));
            shared_store_4(at + DKV_SUM_BYTES, __float_as_uint(s.delta[h]));
        }
        if (lane < F::PIECES)
            shared_store_4(to + CODES + 4 * lane, s.pieces[0].code[0]);
        if (leads())
            shared_store_16(to + INFO, flags | (whole ? 0 : PARTIAL), s.list, 0, 0);
        mbar_arrive(m.step_full(ring, entry.slot));
        entry.next();
    }

    /* What a step is, and its sums. */
    __device__ void tell(const piece_walk<F> &w, const dkv_step<F> &s, int flags)
    {
        if constexpr (F::MANY) {
            tell_many(s, flags);
            return;
        }
        const uint32_t to = m.step(ring, entry.slot), bar = m.step_full(ring, entry.slot);
        bool whole = true;
#pragma unroll
        for (int i = 0; i < F::TOLD; i++)
            whole = whole && s.pieces[i].is(ALL);
        mbar_wait(m.step_empty(ring, entry.slot), entry.parity ^ 1);
        if (leads()) {
            const piece<F> &x = s.pieces[0], &y = s.pieces[F::TOLD - 1];
            shared_store_16(to + INFO, flags | (whole ? 0 : PARTIAL), x.row, y.row, 0);
            shared_store_16(to + CODES, x.code[0], x.code[F::CODE_WORDS - 1], y.code[0],
                            y.code[F::CODE_WORDS - 1]);
            mbar_expect(bar, 2 * DKV_SUM_BYTES);
#pragma unroll
            for (int i = 0; i < F::PIECES; i++) {
                const int64_t from = w.sum_at(s.head, s.row(i, s.row(0, 0)));
                const uint32_t at_piece = to + i * F::PIECE * 4;
                bulk_load(at_piece, a.bound + from, F::PIECE * 4, bar);
                bulk_load(at_piece + DKV_SUM_BYTES, a.delta + from, F::PIECE * 4, bar);
            }
        }
        __syncwarp();
        entry.next();
    }

    __device__ void fetch_step(const piece_walk<F> &w, const dkv_step<F> &s, int flags)
    {
        const tile_view &tile = w.tile;
        uint32_t dead[HALVES];
        int rows[F::PIECES];
#pragma unroll
        for (int half = 0; half < HALVES; half++)
            dead[half] = dead_rows(s, half);
#pragma unroll
        for (int i = 0; i < F::PIECES; i++)
            rows[i] = s.row(i, a.all.q_time);
        if ((flags & FIRST ? tiles : tiles - 1) % F::BUFFERS)
            flags |= SECOND_BUFFER;
        fetch_lines(map.q, s, tile, rows, dead);
        tell(w, s, flags);
        if (flags & FIRST) {
            /* Without queries all results are those of keys that do not exist. */
            if (leads()) {
                const uint32_t info = m.tile(ring, tiles);
                shared_store_16(info, tile.key, s.pieces[0].exists() ? tile.keys : 0, tile.shift,
                                tile.head);
                shared_store_4(info + 4 * TILE_MEMBER, tile.member);
                shared_store_4(info + 4 * TILE_RUN, tile.run);
            }
            fetch_keys(map.k, tile, KEYS_K);
        }
        fetch_lines(map.dout, s, tile, rows, dead);
        if (flags & FIRST) {
            fetch_keys(map.v, tile, KEYS_V);
            tiles++;
        }
    }

    __device__ void finish()
    {
        mbar_wait(m.step_empty(ring, entry.slot), entry.parity ^ 1);
        if (leads())
            shared_store_4(m.step(ring, entry.slot) + INFO, END);
        if (F::MANY || leads())
            mbar_arrive(m.step_full(ring, entry.slot));
    }
};

template <class F>
__device__ __forceinline__ void produce_dkv(const maps &map, const attention_dkv_arg &a,
                                            dkv_memory<F> m, int ring, int begin, int end)
{
    dkv_producer<F> p = {map, a, m, ring, {0, 0}, {0, 0}, 0, 0};
    piece_walk<F> w = {a, begin * a.all.group, end * a.all.group};
    w.order = m.order(ring);
    w.load_lists();
    grid_wait(); /* only tables of the plan are read before */
    while (w.next < w.end) {
        w.begin_tile();
        dkv_step<F> now = w.take_step();
        int flags = FIRST;
        while (w.is_live()) {
            const dkv_step<F> next = w.take_step();
            p.fetch_step(w, now, flags);
            now = next;
            flags = 0;
        }
        p.fetch_step(w, now, flags | LAST);
    }
    p.finish();
}

#endif
