/* dK and dV of attention by wgmma. docs/cuda.md has a picture of the data flow.
 *
 * One thread block a multiprocessor. Its consumers are warpgroups with 64 keys each, whose sums
 * stay in registers; one more warpgroup has a producing warp for each ring, which walks over the
 * ring's tiles of keys, finds out which pieces of their lists of queries are visible, pairs them to
 * steps, and tells consumers with each step what it is. Scores are computed transposed, so that
 * shares and slopes are register operands of the products that make dV and dK. A consumer meets one
 * stream of steps: a step's first product is issued together with the last two of the step before,
 * also where a new tile begins. */
#include <backends/cuda/sm90a/attention_dkv_arg.h>
#include <backends/cuda/sm90a/attention_tile.h>

enum { INFO = 2 * DKV_SUM_BYTES, CODES = INFO + 16, MOST_PARTS = 2 };
enum { KEYS_K = 0, KEYS_V = 1 };
enum { HALVES = DKV_STEP / LANES }; /* of a step: a lane has a query of each */

/* Words of a tile's description: its first key, its member's keys (0 if it has no queries), from a
 * query to where it stands among the keys, and whose it is. */
enum { TILE_KEY, TILE_KEYS, TILE_SHIFT, TILE_HEAD, TILE_MEMBER };

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
    static constexpr int READERS = GROUPS / RINGS;  /* warpgroups of a ring */
    static constexpr int KEYS = READERS * DKV_KEYS; /* of a tile */
    static constexpr int PARTS = KEYS / PART;
    static constexpr uint32_t LINES_BYTES = PANELS * TILE_BYTES, PIECE_BYTES = PIECE * ROW_BYTES;
    static constexpr int BARRIERS = DKV_BARRIERS(SLOTS, STEPS, BUFFERS);
    static constexpr int CONSUMER_REGISTERS = GROUPS == 2 ? 232 : 160;
    static constexpr int PRODUCER_REGISTERS = GROUPS == 2 ? 40 : 32;
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
    __device__ uint32_t step(int ring, int i) const
    {
        return slot(F::RINGS, 0) + (ring * F::STEPS + i) * DKV_STEP_BYTES;
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
    /* Lines that the producer has to cut have come. */
    __device__ uint32_t cut(int ring) const
    {
        return barrier(ring, F::BARRIERS - 1);
    }
};

struct maps {
    const CUtensorMap *q, *k, *v, *dout;
};

/* A tile of keys, and what its member of the batch has. */
struct tile_view {
    int head, member, key; /* head: of keys, of the member */
    int queries, keys;
    int shift; /* from a query to where it stands among the keys */
};

template <class F>
__device__ __forceinline__ tile_view tile_of(const attention_dkv_arg &a, int number)
{
    const int all = number / a.tiles;
    tile_view t;
    t.member = all / a.key_heads;
    t.head = all - t.member * a.key_heads;
    t.key = (number - all * a.tiles) * F::KEYS;
    t.queries = length_of(a.all.q_len, t.member, a.all.q_time);
    t.keys = length_of(a.all.k_len, t.member, a.all.k_time);
    t.shift = a.all.align_end ? t.keys - t.queries : 0;
    return t;
}

/* --- Producers --- */

/* A piece, and what is visible of it for each part of the keys. */
template <int PARTS> struct piece {
    int row; /* NONE: there is no piece */
    int code[PARTS];

    __device__ bool exists() const
    {
        return row >= 0;
    }
    __device__ bool is(int what) const
    {
        bool all = true;
#pragma unroll
        for (int i = 0; i < PARTS; i++)
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

/* A step: pieces of one head. The lane's bounds of it are on their way. */
template <class F> struct dkv_step {
    int head; /* of queries, of the member */
    piece<F::PARTS> pieces[F::PIECES];
    float bound[HALVES];

    __device__ int row(int i, int none) const
    {
        return pieces[i].exists() ? pieces[i].row : none;
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
    piece<F::PARTS> mine; /* of the first 32 that are left */
    uint32_t live;        /* those of them that are still to come */

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
#pragma unroll
        for (int i = 0; i < F::PARTS; i++)
            mine.code[i] = code_of<F>(a, tile, v.x, tile.key + i * F::PART, i ? v.z : v.y);
        live = __ballot_sync(~0u, !mine.is(NOTHING));
    }
    /* On to the first lanes that have a piece, if the list has one. */
    __device__ void settle()
    {
        while (!live && left > LANES) {
            list += LANES;
            left -= LANES;
            look();
        }
    }
    __device__ void open()
    {
        const int from = next % LANES;
        list = __shfl_sync(~0u, first, from);
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
        while (!live && head + 1 < a.all.group) {
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
    __device__ piece<F::PARTS> take()
    {
        const bool some = live != 0;
        const int from = __ffs(live) - 1;
        piece<F::PARTS> p;
        live &= live - 1;
        p.row = __shfl_sync(~0u, mine.row, from);
        p.row = some ? p.row : NONE;
#pragma unroll
        for (int i = 0; i < F::PARTS; i++) {
            p.code[i] = __shfl_sync(~0u, mine.code[i], from);
            p.code[i] = some ? p.code[i] : NOTHING;
        }
        return p;
    }
    /* Where sums of a row of a query head of the tile are. */
    __device__ int64_t sum_at(int query_head, int row) const
    {
        return (int64_t)(tile.member * a.all.heads + query_head) * a.pad + row;
    }
    /* The tile's next step. A tile that sees nothing has one without pieces. */
    __device__ dkv_step<F> take_step()
    {
        dkv_step<F> s;
        s.head = tile.head * a.all.group + head;
#pragma unroll
        for (int i = 0; i < F::PIECES; i++) {
            if (i)
                settle();
            s.pieces[i] = take();
        }
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            const int piece = h * LANES / F::PIECE, row = s.row(piece, 0) + h * LANES % F::PIECE;
            s.bound[h] = __ldg(a.bound + sum_at(s.head, row) + lane());
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
        const int row = s.row(half * LANES / F::PIECE, a.all.q_time) + half * LANES % F::PIECE;
        return __ballot_sync(~0u, row + (int)threadIdx.x % LANES < a.all.q_time &&
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
    __device__ void fetch_lines(const CUtensorMap *from, const dkv_step<F> &s, int member,
                                const uint32_t (&dead)[HALVES])
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
                    tensor_load_4d(to + panel * TILE_BYTES + i * F::PIECE_BYTES, from,
                                   panel * PANEL, s.row(i, a.all.q_time), s.head, member, bar);
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
                    tensor_load_4d(m.keys(ring, buffer, kind, part) + panel * TILE_BYTES, from,
                                   panel * PANEL, t.key + part * DKV_KEYS, t.head, t.member, bar);
        }
        __syncwarp();
    }

    /* What a step is, and its sums. */
    __device__ void tell(const piece_walk<F> &w, const dkv_step<F> &s, int flags)
    {
        const uint32_t to = m.step(ring, entry.slot), bar = m.step_full(ring, entry.slot);
        bool whole = true;
#pragma unroll
        for (int i = 0; i < F::PIECES; i++)
            whole = whole && s.pieces[i].is(ALL);
        mbar_wait(m.step_empty(ring, entry.slot), entry.parity ^ 1);
        if (leads()) {
            const piece<F::PARTS> &x = s.pieces[0], &y = s.pieces[F::PIECES - 1];
            shared_store_16(to + INFO, flags | (whole ? 0 : PARTIAL), x.row, y.row, 0);
            shared_store_16(to + CODES, x.code[0], x.code[F::PARTS - 1], y.code[0],
                            y.code[F::PARTS - 1]);
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
#pragma unroll
        for (int half = 0; half < HALVES; half++)
            dead[half] = dead_rows(s, half);
        if ((flags & FIRST ? tiles : tiles - 1) % F::BUFFERS)
            flags |= SECOND_BUFFER;
        fetch_lines(map.q, s, tile.member, dead);
        tell(w, s, flags);
        if (flags & FIRST) {
            /* Without queries all results are those of keys that do not exist. */
            if (leads()) {
                const uint32_t info = m.tile(ring, tiles);
                shared_store_16(info, tile.key, s.pieces[0].exists() ? tile.keys : 0, tile.shift,
                                tile.head);
                shared_store_4(info + 4 * TILE_MEMBER, tile.member);
            }
            fetch_keys(map.k, tile, KEYS_K);
        }
        fetch_lines(map.dout, s, tile.member, dead);
        if (flags & FIRST) {
            fetch_keys(map.v, tile, KEYS_V);
            tiles++;
        }
    }

    __device__ void finish()
    {
        mbar_wait(m.step_empty(ring, entry.slot), entry.parity ^ 1);
        if (leads()) {
            shared_store_4(m.step(ring, entry.slot) + INFO, END);
            mbar_arrive(m.step_full(ring, entry.slot));
        }
    }
};

template <class F>
__device__ __forceinline__ void produce_dkv(const maps &map, const attention_dkv_arg &a,
                                            dkv_memory<F> m, int ring, int begin, int end)
{
    dkv_producer<F> p = {map, a, m, ring, {0, 0}, {0, 0}, 0, 0};
    piece_walk<F> w = {a, begin * a.all.group, end * a.all.group};
    w.load_lists();
    while (w.next < w.end) {
        w.begin_tile();
        dkv_step<F> now = w.take_step();
        int flags = FIRST;
        while (w.live) {
            const dkv_step<F> next = w.take_step();
            p.fetch_step(w, now, flags);
            now = next;
            flags = 0;
        }
        p.fetch_step(w, now, flags | LAST);
    }
    p.finish();
}

/* --- Consumers --- */

/* Number 4 j + 2 h + e of a lane's scores is that of key lane / 4 + 8 h of the warp's 16 and of
 * query 8 j + 2 (lane % 4) + e. */
enum { SCORES = DKV_STEP / 2, PACKED = SCORES / 2 };

/* scores = K Q^T, or V dO^T */
template <class F>
__device__ __forceinline__ void multiply_keys(float (&s)[SCORES], uint32_t keys, uint32_t lines)
{
    constexpr uint32_t high = descriptor_high(1024, SWIZZLE_128);
    const uint32_t a = descriptor_low(keys, 16), b = descriptor_low(lines, 16);
#pragma unroll
    for (int i = 0; i < F::WIDTH / 16; i++) {
        const uint32_t to = (i / 4 * TILE_BYTES + i % 4 * 32) >> 4;
        wgmma_ss<F::TYPE, DKV_STEP, 0, 0>(s, descriptor(a + to, high), descriptor(b + to, high),
                                          i > 0);
    }
    wgmma_commit();
}

/* sums += P^T dO, or dS^T Q; not accumulate: the sums begin. */
template <class F>
__device__ __forceinline__ void add_lines(float (&sums)[F::WIDTH / 2], const uint32_t (&p)[PACKED],
                                          uint32_t lines, bool accumulate)
{
    constexpr uint32_t high = descriptor_high(1024, SWIZZLE_128);
    const uint32_t b = descriptor_low(lines, TILE_BYTES);
#pragma unroll
    for (int i = 0; i < DKV_STEP / 16; i++)
        wgmma_rs<F::TYPE, F::WIDTH, 1>(
            sums, p + 4 * i, descriptor(b + (i * 16 * ROW_BYTES >> 4), high), i > 0 || accumulate);
}

/* Two numbers of a step's sums: of the lane's queries 8 i + 2 (lane % 4) + (0, 1). */
struct two {
    float v[2];
};

__device__ __forceinline__ two load_two(uint32_t from, int i)
{
    const uint2 v = shared_load_8(from + i * 32 + threadIdx.x % 4 * 8);
    return {{__uint_as_float(v.x), __uint_as_float(v.y)}};
}

/* Scores become shares. */
__device__ __forceinline__ void make_shares(float (&s)[SCORES], float scale, uint32_t entry)
{
#pragma unroll
    for (int i = 0; i < SCORES / 4; i++) {
        const two bound = load_two(entry, i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float &x = s[4 * i + j];
            x = power_of_two(fmaf(x, scale, -bound.v[j % 2]));
        }
    }
}

/* Products of dO and V become slopes of the scores. */
__device__ __forceinline__ void make_slopes(float (&dp)[SCORES], const float (&s)[SCORES],
                                            float slope, uint32_t entry)
{
#pragma unroll
    for (int i = 0; i < SCORES / 4; i++) {
        const two delta = load_two(entry + DKV_SUM_BYTES, i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float &x = dp[4 * i + j];
            x = s[4 * i + j] * fmaf(x, slope, -delta.v[j % 2]);
        }
    }
}

/* Bits 0 .. n - 1. */
__device__ __forceinline__ uint32_t low_bits(int n)
{
    return n <= 0 ? 0 : n >= 32 ? ~0u : (1u << n) - 1;
}

/* Which of 32 queries a key sees by its position: bit i, row + i. */
__device__ __forceinline__ uint32_t seen_by(const attention_dkv_arg &a, int row, int shift, int key)
{
    const int own = key - shift - row; /* the query that stands at the key */
    const int low = a.all.causal ? own : a.all.window ? own - a.all.window + 1 : 0;
    const int high = a.all.window ? own + a.all.window : 32;
    return low_bits(high) & ~low_bits(low);
}

/* The code of the lane's keys for half of a step's queries. line: the lane's first key in the
 * tile. */
template <class F> __device__ __forceinline__ int load_code(uint32_t entry, int half, int line)
{
    return shared_load_4(entry + CODES + half / (HALVES / F::PIECES) * MOST_PARTS * 4 +
                         line / F::PART * 4);
}

template <class F> __device__ __forceinline__ int load_row(uint32_t entry, int half)
{
    return shared_load_4(entry + INFO + 4 + half / (HALVES / F::PIECES) * 4) +
           half * LANES % F::PIECE;
}

/* Shares of what is not visible become 0. */
template <class F>
__device__ __forceinline__ void hide(float (&s)[SCORES], const attention_dkv_arg &a, uint32_t entry,
                                     uint32_t tile, int line)
{
    enum { HALF = SCORES / 2 };
    const int lane = threadIdx.x % LANES, column = lane % 4 * 2;
    const int key = shared_load_4(tile + 4 * TILE_KEY) + line;
    const int shift = shared_load_4(tile + 4 * TILE_SHIFT);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int code = load_code<F>(entry, half, line), row = load_row<F>(entry, half);
        if (code == ALL)
            continue;
        uint32_t seen[2] = {0, 0};
        if (code != NOTHING) {
            seen[0] = seen_by(a, row, shift, key) >> column;
            seen[1] = seen_by(a, row, shift, key + 8) >> column;
        }
        if (code >= 0) {
            /* Masks have a line of keys for each query: here are those of the warp's 16 keys. */
            const int keys = key - lane / 4, bytes = a.all.block_cols / 8;
            const uint8_t *from = a.all.bits + (keys & (a.all.block_cols - 1)) / 8;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int at = i / 2 * 8 + i % 2;
                const int64_t mask_line = (int64_t)code * a.all.block_rows +
                                          ((row + column + at) & (a.all.block_rows - 1));
                const uint32_t bits =
                    __ldg((const unsigned short *)(from + mask_line * bytes)) >> lane / 4;
                seen[0] &= ~((~bits & 1) << at);
                seen[1] &= ~((~bits >> 8 & 1) << at);
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (!(seen[h] >> (8 * j + e) & 1))
                        s[HALF * half + 4 * j + 2 * h + e] = 0;
    }
}

/* Where there is no block, what lies in memory does not count: neither do its products. */
template <class F>
__device__ __forceinline__ void forget(float (&dp)[SCORES], uint32_t entry, int line)
{
    enum { HALF = SCORES / 2 };
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (load_code<F>(entry, half, line) == NOTHING)
#pragma unroll
            for (int i = 0; i < HALF; i++)
                dp[HALF * half + i] = 0;
}

/* Keys of blocks of 32 share a step with keys whose blocks do not meet all of its queries. Theirs
 * have shares of 0, but 0 times what is not finite is not 0: a key with such a result is made again
 * by its warp alone, element by element, from the blocks that it has. */
template <class F>
__device__ __forceinline__ void repeat_key(const attention_dkv_arg &a, uint32_t tile, int key)
{
    const attention_arg &all = a.all;
    const int lane = threadIdx.x % LANES, head = shared_load_4(tile + 4 * TILE_HEAD);
    const int member = shared_load_4(tile + 4 * TILE_MEMBER);
    const int keys = shared_load_4(tile + 4 * TILE_KEYS);
    const int shift = shared_load_4(tile + 4 * TILE_SHIFT);
    const int list = key / F::KEYS / a.each, inner = key & (DKV_SMALL - 1);
    const int64_t k_line = line_at(all.k, member, head, key);
    const int64_t v_line = line_at(all.v, member, head, key);
    float dk[F::WIDTH / LANES] = {}, dv[F::WIDTH / LANES] = {};
#pragma unroll 1
    for (int g = 0; g < all.group; g++) {
        const int query_head = head * all.group + g;
        const int32_t *start = a.list_start + query_head / a.per_head * a.lists + list;
        const int64_t sums = (int64_t)(member * all.heads + query_head) * a.pad + lane;
#pragma unroll 1
        for (int i = __ldg(start); i < __ldg(start + 1); i++) {
            const int4 piece = __ldg((const int4 *)(a.pieces + i));
            const int row = piece.x + lane, slot = key & DKV_SMALL ? piece.z : piece.y;
            if (slot < 0)
                continue;
            const float bound = __ldg(a.bound + sums + piece.x);
            const bool seen =
                bound != INFINITY &&
                (visible<DKV_SMALL>(all, row, shift, keys, key - inner, mask_of(all, slot)) >>
                     inner &
                 1);
            float p = 0, ds = 0;
            if (seen) {
                const int64_t q_line = line_at(all.q, member, query_head, row);
                const int64_t dout_line = line_at(a.dout, member, query_head, row);
                p = power_of_two(fmaf(dot<F>(all.q, q_line, all.k, k_line), all.scale, -bound));
                ds = p * fmaf(dot<F>(a.dout, dout_line, all.v, v_line), a.slope,
                              -__ldg(a.delta + sums + piece.x));
            }
#pragma unroll 1
            for (uint32_t rows = __ballot_sync(~0u, seen); rows; rows &= rows - 1) {
                const int j = __ffs(rows) - 1;
                const float share = __shfl_sync(~0u, p, j), slope = __shfl_sync(~0u, ds, j);
                const int64_t q_line = line_at(all.q, member, query_head, piece.x + j) + lane;
                const int64_t dout_line = line_at(a.dout, member, query_head, piece.x + j) + lane;
#pragma unroll
                for (int f = 0; f < F::WIDTH / LANES; f++) {
                    if (f * LANES + lane < all.q.width)
                        dk[f] = fmaf(slope, number<F>(all.q, q_line + f * LANES), dk[f]);
                    if (f * LANES + lane < a.dout.width)
                        dv[f] = fmaf(share, number<F>(a.dout, dout_line + f * LANES), dv[f]);
                }
            }
        }
    }
    const int64_t dk_line = member * a.dk.batch + head * a.dk.head + key * a.dk.time + lane;
    const int64_t dv_line = member * a.dv.batch + head * a.dv.head + key * a.dv.time + lane;
#pragma unroll
    for (int f = 0; f < F::WIDTH / LANES; f++) {
        if (f * LANES + lane < a.dk.width)
            store_one(a.dk, dk_line + f * LANES, dk[f] * a.dk_factor, a.beta);
        if (f * LANES + lane < a.dv.width)
            store_one(a.dv, dv_line + f * LANES, dv[f] * a.dv_factor, a.beta);
    }
}

/* By half of the warp's 16 keys of a tile, which of them have been made again: bit 4 i is key i. */
struct repeated {
    uint32_t keys[2];
};

/* line: the lane's first key in the tile. */
template <class F>
__device__ __forceinline__ repeated repeat_keys(const float (&dk)[F::WIDTH / 2],
                                                const float (&dv)[F::WIDTH / 2],
                                                const attention_dkv_arg &a, uint32_t tile, int line)
{
    repeated again = {{0, 0}};
    if constexpr (F::SIDE >= DKV_KEYS)
        return again;
    const int first = shared_load_4(tile + 4 * TILE_KEY) + line;
    const int keys = shared_load_4(tile + 4 * TILE_KEYS);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const bool wanted = first + 8 * h < keys;
        again.keys[h] = rows_to_repeat<F>(dk, h, wanted) | rows_to_repeat<F>(dv, h, wanted);
    }
#pragma unroll 1
    for (int h = 0; h < 2; h++)
#pragma unroll 1
        for (uint32_t rows = h ? again.keys[1] : again.keys[0]; rows; rows &= rows - 1)
            repeat_key<F>(a, tile, __shfl_sync(~0u, first + 8 * h, __ffs(rows) - 1));
    return again;
}

/* dK and dV of a warp's 16 keys of a tile, but of those that have been made again. */
template <class F>
__device__ __forceinline__ void store_tile(const float (&dk)[F::WIDTH / 2],
                                           const float (&dv)[F::WIDTH / 2],
                                           const attention_dkv_arg &a, uint32_t tile, int line)
{
    const repeated again = repeat_keys<F>(dk, dv, a, tile, line);
    const int first = shared_load_4(tile + 4 * TILE_KEY) + line;
    const int keys = shared_load_4(tile + 4 * TILE_KEYS);
    const int head = shared_load_4(tile + 4 * TILE_HEAD);
    const int member = shared_load_4(tile + 4 * TILE_MEMBER);
    const int64_t dk_base = member * a.dk.batch + head * a.dk.head;
    const int64_t dv_base = member * a.dv.batch + head * a.dv.head;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int key = first + 8 * h;
        const bool none = key >= keys;
        const bool live = key < a.all.k_time && !(again.keys[h] >> threadIdx.x % LANES / 4 * 4 & 1);
        store_row<F>(dk, a.dk, dk_base + key * a.dk.time, h, a.dk_factor, a.beta, none, live);
        store_row<F>(dv, a.dv, dv_base + key * a.dv.time, h, a.dv_factor, a.beta, none, live);
    }
}

template <class F>
__device__ __forceinline__ void consume(const attention_dkv_arg &a, dkv_memory<F> m,
                                        const place &here)
{
    const int ring = here.ring, line = row_of(here);
    cursor<F::SLOTS> at = {0, 0};
    cursor<F::STEPS> entry = {0, 0};
    int tile = 0, flags, read; /* read: the step whose slopes are made */
    bool accumulate = false;
    float dk[F::WIDTH / 2], dv[F::WIDTH / 2], s[SCORES], dp[SCORES];
    uint32_t p[PACKED], ds[PACKED];

    const auto buffer = [&]() { return flags & SECOND_BUFFER ? 1 : 0; };
    const auto key_lines = [&](int kind) { return m.keys(ring, buffer(), kind, here.part); };
    const auto wait_keys = [&](int kind) {
        mbar_wait(m.keys_full(ring, buffer(), kind), tile / F::BUFFERS & 1);
    };
    const auto leave_keys = [&](int kind) { signal(m.keys_empty(ring, buffer(), kind)); };
    const auto load_flags = [&]() {
        mbar_wait(m.step_full(ring, entry.slot), entry.parity);
        return (int)__shfl_sync(~0u, shared_load_4(m.step(ring, entry.slot) + INFO), 0);
    };
    const auto wait_lines = [&]() {
        const int slot = at.slot;
        mbar_wait(m.full(ring, slot), at.parity);
        at.next();
        return slot;
    };
    const auto leave_lines = [&](int slot) { signal(m.empty(ring, slot)); };
    const auto scores_to_shares = [&]() {
        const uint32_t told = m.step(ring, entry.slot);
        make_shares(s, a.all.scale, told);
        if (flags & PARTIAL)
            hide<F>(s, a, told, m.tile(ring, tile), line);
    };
    const auto products_to_slopes = [&]() {
        const uint32_t told = m.step(ring, entry.slot);
        if (flags & PARTIAL)
            forget<F>(dp, told, line);
        make_slopes(dp, s, a.slope, told);
        read = entry.slot;
        entry.next();
        round_scores<F>(p, s);
        round_scores<F>(ds, dp);
    };

    flags = load_flags();
    int q = wait_lines();
    wait_keys(KEYS_K);
    wgmma_fence();
    multiply_keys<F>(s, key_lines(KEYS_K), m.slot(ring, q));
    wgmma_wait<0>();
    wgmma_settle(s);
    if (flags & LAST)
        leave_keys(KEYS_K);
    scores_to_shares();
    int dout = wait_lines();
    wait_keys(KEYS_V);
    wgmma_fence();
    multiply_keys<F>(dp, key_lines(KEYS_V), m.slot(ring, dout));
    wgmma_wait<0>();
    wgmma_settle(dp);
    if (flags & LAST)
        leave_keys(KEYS_V);
    products_to_slopes();
    for (;;) {
        flags = load_flags();
        if (flags & END)
            break;
        const int next_q = wait_lines();
        if (flags & FIRST) {
            tile++;
            wait_keys(KEYS_K);
        }
        wgmma_fence();
        multiply_keys<F>(s, key_lines(KEYS_K), m.slot(ring, next_q));
        add_lines<F>(dv, p, m.slot(ring, dout), accumulate);
        add_lines<F>(dk, ds, m.slot(ring, q), accumulate);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_settle(s);
        /* Not before products need what was made of it: a signal may overtake loads that wait for
         * shared memory. */
        signal(m.step_empty(ring, read));
        if (flags & LAST)
            leave_keys(KEYS_K);
        scores_to_shares();
        wgmma_wait<0>();
        wgmma_settle(dk);
        wgmma_settle(dv);
        leave_lines(q);
        leave_lines(dout);
        /* Where keys may have to be made again, there are no registers for products meanwhile. */
        if (F::SIDE < DKV_KEYS && flags & FIRST)
            store_tile<F>(dk, dv, a, m.tile(ring, tile - 1), line);
        q = next_q;
        dout = wait_lines();
        if (flags & FIRST)
            wait_keys(KEYS_V);
        wgmma_fence();
        multiply_keys<F>(dp, key_lines(KEYS_V), m.slot(ring, dout));
        if (F::SIDE >= DKV_KEYS && flags & FIRST)
            store_tile<F>(dk, dv, a, m.tile(ring, tile - 1), line);
        accumulate = !(flags & FIRST);
        wgmma_wait<0>();
        wgmma_settle(dp);
        if (flags & LAST)
            leave_keys(KEYS_V);
        products_to_slopes();
    }
    wgmma_fence();
    add_lines<F>(dv, p, m.slot(ring, dout), accumulate);
    add_lines<F>(dk, ds, m.slot(ring, q), accumulate);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(dk);
    wgmma_settle(dv);
    store_tile<F>(dk, dv, a, m.tile(ring, tile), line);
}

template <class F>
__device__ __forceinline__ void make_dkv(const maps &map, const attention_dkv_arg &a)
{
    extern __shared__ __align__(1024) char shared[];
    const dkv_memory<F> m = {shared_address(shared)};
    grid_wait();
    const int warp = __shfl_sync(~0u, threadIdx.x / LANES, 0), group = warp / GROUP_WARPS;
    if (threadIdx.x == 0) {
        constexpr int warps = F::READERS * GROUP_WARPS;
        for (int ring = 0; ring < F::RINGS; ring++) {
            for (int i = 0; i < F::SLOTS; i++) {
                mbar_init(m.full(ring, i), 1);
                mbar_init(m.empty(ring, i), warps);
            }
            for (int i = 0; i < F::STEPS; i++) {
                mbar_init(m.step_full(ring, i), 1);
                mbar_init(m.step_empty(ring, i), warps);
            }
            for (int i = 0; i < 2 * F::BUFFERS; i++) {
                mbar_init(m.keys_full(ring, 0, i), 1);
                mbar_init(m.keys_empty(ring, 0, i), warps);
            }
            mbar_init(m.cut(ring), 1);
        }
        mbar_init_fence();
    }
    __syncthreads();
    if (group == F::GROUPS) {
        registers_lower<F::PRODUCER_REGISTERS>();
        const int ring = warp - F::GROUPS * GROUP_WARPS;
        if (ring < F::RINGS) {
            const int *start = a.all.tile_start + blockIdx.x * F::RINGS + ring;
            const int begin = __ldg(start), end = __ldg(start + 1);
            if (begin < end)
                produce_dkv<F>(map, a, m, ring, begin, end);
        }
    } else {
        registers_raise<F::CONSUMER_REGISTERS>();
        const int ring = group / F::READERS, part = group % F::READERS;
        const int *start = a.all.tile_start + blockIdx.x * F::RINGS + ring;
        if (__ldg(start) < __ldg(start + 1))
            consume<F>(a, m, {ring, part});
    }
}

#define DKV_KERNEL(name, type, width, groups, rings, slots, steps, buffers, side)                  \
    extern "C" __global__ void __launch_bounds__(DKV_THREADS(groups), 1)                           \
        name(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,         \
             const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap dout,      \
             const __grid_constant__ attention_dkv_arg a)                                          \
    {                                                                                              \
        make_dkv<dkv_form<type, width, groups, rings, slots, steps, buffers, side>>(               \
            {&q, &k, &v, &dout}, a);                                                               \
    }
#define DKV_KERNELS(suffix, ...)                                                                   \
    DKV_KERNEL(cuda_attention_dkv_bf16_##suffix, WGMMA_BF16, __VA_ARGS__)                          \
    DKV_KERNEL(cuda_attention_dkv_f16_##suffix, WGMMA_F16, __VA_ARGS__)
DKV_FORMS(DKV_KERNELS)
