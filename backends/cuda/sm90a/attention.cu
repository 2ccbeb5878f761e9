/* Fused attention by wgmma. docs/cuda.md has a picture of the data flow.
 *
 * One thread block a multiprocessor. Its consumers are warpgroups with 64 rows of queries each; one
 * more warpgroup has a producing warp for each ring of keys and values, which walks over the ring's
 * tiles, finds out which units of their lists are visible, pairs them to steps, and tells consumers
 * with each step's keys what it is. So a consumer meets one stream of steps: a tile's first product
 * of scores is issued together with the last product of values of the tile before. */
#include <bsk/tensor.h>

#include <backends/cuda/mma.h>
#include <backends/cuda/ptx.h>
#include <backends/cuda/sm90a/attention.h>

enum { LANES = 32, GROUP_WARPS = 4, TILES = 4 /* that consumers know of at a time */ };
enum { PANEL = 64 /* features of a copy: rows of 128 bytes */, ROW_BYTES = 128 };
enum { UNIT_BYTES = ATTENTION_UNIT * ROW_BYTES, K_PANEL_BYTES = 2 * UNIT_BYTES };
enum { NONE = -1 };

/* What a step is. */
enum { FIRST = 1, LAST = 2, PARTIAL = 4, END = 8 /* no step: the stream is over */ };

/* In shared memory, 32 bytes each. */
struct step_info {
    int flags;
    int key[2];  /* the units' first */
    int mask[2]; /* of their blocks; NONE: all is visible */
};

struct tile_info {
    int head, row;
    int queries, keys; /* of its member of the batch */
    int shift;         /* from a query to where it stands among the keys */
};

enum { INFO_BYTES = 32 };

template <int TYPE> struct element;
template <> struct element<WGMMA_BF16> {
    typedef __nv_bfloat16 type;
};
template <> struct element<WGMMA_F16> {
    typedef __half type;
};

template <int TYPE_, int WIDTH_, int GROUPS_, int RINGS_, int SLOTS_, int BUFFERS_> struct form {
    static constexpr int TYPE = TYPE_, WIDTH = WIDTH_, GROUPS = GROUPS_, RINGS = RINGS_;
    static constexpr int SLOTS = SLOTS_, BUFFERS = BUFFERS_;
    static constexpr int PANELS = WIDTH / PANEL;
    static constexpr int READERS = GROUPS / RINGS; /* warpgroups of a ring */
    static constexpr uint32_t Q_BYTES = PANELS * UNIT_BYTES, SLOT_BYTES = 2 * Q_BYTES;
    static constexpr int CONSUMER_REGISTERS = GROUPS == 2 ? 232 : 160;
    static constexpr int PRODUCER_REGISTERS = GROUPS == 2 ? 40 : 32;
    typedef typename element<TYPE>::type T;
};

/* Where things lie in shared memory. */
template <class F> struct memory {
    uint32_t base;

    __device__ uint32_t queries(int ring, int buffer, int part) const
    {
        return base + ((ring * F::BUFFERS + buffer) * F::READERS + part) * F::Q_BYTES;
    }
    __device__ uint32_t slot(int ring, int i) const
    {
        return base + F::GROUPS * F::BUFFERS * F::Q_BYTES + (ring * F::SLOTS + i) * F::SLOT_BYTES;
    }
    __device__ uint32_t step(int ring, int i) const
    {
        return slot(F::RINGS, 0) + (ring * F::SLOTS + i) * INFO_BYTES;
    }
    __device__ uint32_t tile(int ring, int i) const
    {
        return step(F::RINGS, 0) + (ring * TILES + i % TILES) * INFO_BYTES;
    }
    /* Barriers: the data of a slot has come; its readers are done. */
    __device__ uint32_t full(int ring, int i) const
    {
        return tile(F::RINGS, 0) + (ring * F::SLOTS + i) * 8;
    }
    __device__ uint32_t empty(int ring, int i) const
    {
        return full(F::RINGS, i) + ring * F::SLOTS * 8;
    }
    __device__ uint32_t q_full(int ring, int buffer) const
    {
        return empty(F::RINGS, buffer) + ring * F::BUFFERS * 8;
    }
    __device__ uint32_t q_empty(int ring, int buffer) const
    {
        return q_full(F::RINGS, buffer) + ring * F::BUFFERS * 8;
    }
    /* Values that the producer has to cut have come. */
    __device__ uint32_t cut(int ring) const
    {
        return q_empty(F::RINGS, 0) + ring * 8;
    }
    static constexpr int CONTROL_BYTES =
        F::RINGS * ((F::SLOTS + TILES) * INFO_BYTES + (2 * F::SLOTS + 2 * F::BUFFERS + 1) * 8);
};

/* A position in a ring; parity is that of the round. */
template <int SLOTS> struct cursor {
    int slot;
    uint32_t parity;

    __device__ void next()
    {
        if (++slot == SLOTS) {
            slot = 0;
            parity ^= 1;
        }
    }
};

/* The buffer of a ring's tile number n, and the parity of its use. */
template <class F> __device__ __forceinline__ int buffer_of(int n)
{
    return n % F::BUFFERS;
}

template <class F> __device__ __forceinline__ uint32_t parity_of(int n)
{
    return n / F::BUFFERS & 1;
}

struct maps {
    const CUtensorMap *q, *k, *v;
};

/* --- Producers --- */

/* A unit of a list: its first key, a multiple of 64, with bit 0 set where not all is visible; or
 * NONE. */
struct unit {
    int code, mask;

    __device__ bool exists() const
    {
        return code >= 0;
    }
    __device__ int key(int none) const
    {
        return exists() ? code & ~1 : none;
    }
};

__device__ __forceinline__ int length_of(const int32_t *length, int member, int time)
{
    const int n = length ? __ldg(length + member) : time;
    return n < 0 ? 0 : n > time ? time : n;
}

__device__ __forceinline__ attention_tile load_tile(const attention_arg &a, int i, int end)
{
    const int4 v = __ldg((const int4 *)(a.tiles + (i < end ? i : end - 1)));
    return {v.x, v.y, v.z, v.w};
}

/* A lane's unit of 32 from `at` on. */
__device__ __forceinline__ attention_unit load_unit(const attention_arg &a,
                                                    const attention_tile &tile, int at)
{
    const int mine = at + threadIdx.x % LANES;
    if (mine >= tile.count)
        return {NONE, 0};
    const int2 v = __ldg((const int2 *)(a.units + tile.first + mine));
    return {v.x, v.y};
}

/* A tile, and what its member of the batch has. */
struct tile_walk {
    attention_tile tile;
    int queries, keys;

    __device__ void begin(const attention_arg &a, const attention_tile &t)
    {
        const int member = t.head / a.heads;
        tile = t;
        queries = length_of(a.q_len, member, a.q_time);
        keys = length_of(a.k_len, member, a.k_time);
    }
    __device__ int shift(const attention_arg &a) const
    {
        return a.align_end ? keys - queries : 0;
    }
};

/* How much of a unit `rows` rows of a tile see. */
__device__ __forceinline__ unit classify(const attention_arg &a, const tile_walk &w,
                                         const attention_unit &u, int rows)
{
    const int row = w.tile.row;
    if (u.key < 0 || u.key >= w.keys || row >= w.queries)
        return {NONE, NONE};
    const int row_end = min(row + rows, w.queries) - 1, key_end = u.key + ATTENTION_UNIT - 1;
    const int near = row + w.shift(a) - key_end, far = row_end + w.shift(a) - u.key;
    if ((a.causal && far < 0) || (a.window && (near >= a.window || -far >= a.window)))
        return {NONE, NONE};
    int mask = NONE;
    if (a.bits) {
        mask = a.bits_index ? __ldg(a.bits_index + u.slot) : u.slot;
        mask = mask >= 0 && mask < a.masks ? mask : NONE;
    }
    const bool partial = key_end >= w.keys || mask >= 0 || (a.causal && near < 0) ||
                         (a.window && (far >= a.window || -near >= a.window));
    return {u.key | (int)partial, mask};
}

/* Where a step's keys and values come from. */
struct source {
    int key[2];
    int keys; /* of the member */
    int head, member;

    /* Whether a unit has keys beyond the member's. Beyond the tensor copies bring zeros. */
    __device__ bool is_cut(const attention_arg &a, int half) const
    {
        return keys < a.k_time && key[half] < keys && keys < key[half] + ATTENTION_UNIT;
    }
};

/* One ring's producer. All lanes of its warp do the same, but for copies and signals, which are the
 * leader's. */
template <class F> struct producer {
    const maps &map;
    const attention_arg &a;
    memory<F> m;
    int ring;
    bool leader;
    cursor<F::SLOTS> at;
    int tiles; /* begun so far */
    uint32_t cut_parity;
    source last; /* the step whose values are still to be fetched */

    __device__ void wait_empty() const
    {
        mbar_wait(m.empty(ring, at.slot), at.parity ^ 1);
    }

    __device__ void copy(const CUtensorMap *from, const source &s, uint32_t bar) const
    {
        mbar_expect(bar, F::SLOT_BYTES);
#pragma unroll
        for (int panel = 0; panel < F::PANELS; panel++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                tensor_load_4d(m.slot(ring, at.slot) + panel * K_PANEL_BYTES + half * UNIT_BYTES,
                               from, panel * PANEL, s.key[half], s.head, s.member, bar);
    }

    /* Zeros instead of the values beyond the member's keys: a share of 0 times what lies there need
     * not be 0. */
    __device__ void clear(int half) const
    {
#pragma unroll
        for (int panel = 0; panel < F::PANELS; panel++) {
            const uint32_t to = m.slot(ring, at.slot) + panel * K_PANEL_BYTES + half * UNIT_BYTES;
            for (int i = (last.keys - last.key[half]) * ROW_BYTES + threadIdx.x % LANES * 16;
                 i < UNIT_BYTES; i += LANES * 16)
                shared_store_16(to + i, 0, 0, 0, 0);
        }
    }

    __device__ void fetch_values()
    {
        const bool cut = last.is_cut(a, 0) || last.is_cut(a, 1);
        wait_empty();
        if (leader)
            copy(map.v, last, cut ? m.cut(ring) : m.full(ring, at.slot));
        __syncwarp();
        if (cut) {
            mbar_wait(m.cut(ring), cut_parity);
            cut_parity ^= 1;
            for (int half = 0; half < 2; half++)
                if (last.is_cut(a, half))
                    clear(half);
            async_fence();
            __syncwarp();
            if (leader)
                mbar_arrive(m.full(ring, at.slot));
        }
        at.next();
    }

    __device__ void fetch_queries(const tile_walk &w)
    {
        const int buffer = buffer_of<F>(tiles);
        mbar_wait(m.q_empty(ring, buffer), parity_of<F>(tiles) ^ 1);
        if (leader) {
            const uint32_t info = m.tile(ring, tiles), bar = m.q_full(ring, buffer);
            shared_store_16(info, w.tile.head, w.tile.row, w.queries, w.keys);
            shared_store_4(info + 16, w.shift(a));
            mbar_expect(bar, F::READERS * F::Q_BYTES);
#pragma unroll
            for (int part = 0; part < F::READERS; part++)
#pragma unroll
                for (int panel = 0; panel < F::PANELS; panel++)
                    tensor_load_4d(m.queries(ring, buffer, part) + panel * UNIT_BYTES, map.q,
                                   panel * PANEL, w.tile.row + part * ATTENTION_UNIT,
                                   w.tile.head % a.heads, w.tile.head / a.heads, bar);
        }
        __syncwarp();
        tiles++;
    }

    /* The keys of a step, the values of the one before and a new tile's queries: in the order in
     * which they are needed. A unit that does not exist is beyond the keys. */
    __device__ void fetch_step(const tile_walk &w, const unit &x, const unit &y, int flags)
    {
        const source now = {{x.key(a.k_time), y.key(a.k_time)},
                            w.keys,
                            w.tile.head % a.heads / a.group,
                            w.tile.head / a.heads};
        const bool partial = !x.exists() || !y.exists() || ((x.code | y.code) & 1);
        wait_empty();
        if (leader) {
            const uint32_t info = m.step(ring, at.slot);
            shared_store_16(info, flags | (partial ? PARTIAL : 0), now.key[0], now.key[1], x.mask);
            shared_store_4(info + 16, y.mask);
            copy(map.k, now, m.full(ring, at.slot));
        }
        __syncwarp();
        at.next();
        if (last.member != NONE)
            fetch_values();
        if (flags & FIRST)
            fetch_queries(w);
        last = now;
    }

    __device__ void finish()
    {
        wait_empty();
        if (leader) {
            shared_store_4(m.step(ring, at.slot), END);
            mbar_arrive(m.full(ring, at.slot));
        }
        __syncwarp();
        at.next();
        fetch_values();
    }
};

/* The visible units of a tile's list, one after the other. */
struct unit_walk {
    const attention_arg &a;
    const tile_walk &w;
    int rows, at;
    unit mine;     /* of the 32 from `at` on */
    uint32_t live; /* those of them that are still to come */

    __device__ void look(const attention_unit &u)
    {
        mine = classify(a, w, u, rows);
        live = __ballot_sync(~0u, mine.exists());
    }
    __device__ unit next()
    {
        while (!live) {
            if (at + LANES >= w.tile.count)
                return {NONE, NONE};
            at += LANES;
            look(load_unit(a, w.tile, at));
        }
        const int lane = __ffs(live) - 1;
        live &= live - 1;
        return {__shfl_sync(~0u, mine.code, lane), __shfl_sync(~0u, mine.mask, lane)};
    }
};

/* Tables are read a tile ahead. A tile that sees nothing has one step without units, which makes
 * the zeros that belong there. */
template <class F>
__device__ __forceinline__ void produce(const maps &map, const attention_arg &a, memory<F> m,
                                        int ring, int begin, int end)
{
    producer<F> p = {map, a, m, ring, threadIdx.x % LANES == 0, {0, 0}, 0, 0, {{0, 0}, 0, 0, NONE}};
    tile_walk w;
    attention_tile ahead = load_tile(a, begin, end), after = load_tile(a, begin + 1, end);
    attention_unit listed = load_unit(a, ahead, 0);
    for (int i = begin; i < end; i++) {
        w.begin(a, ahead);
        unit_walk units = {a, w, F::READERS * ATTENTION_UNIT, 0, {NONE, NONE}, 0};
        units.look(listed);
        ahead = after;
        listed = load_unit(a, ahead, 0);
        after = load_tile(a, i + 2, end);
        unit x = units.next(), y = units.next();
        int flags = FIRST;
        do {
            const unit next_x = units.next(), next_y = units.next();
            p.fetch_step(w, x, y, flags | (next_x.exists() ? 0 : LAST));
            x = next_x;
            y = next_y;
            flags = 0;
        } while (x.exists());
    }
    p.finish();
}

/* --- Consumers --- */

/* Of a lane's two rows, 8 apart: the reference of their shares, in powers of two, and the lane's
 * part of their sums. */
struct row_state {
    float most[2], sum[2];
};

__device__ __forceinline__ float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Over the four lanes of a row. */
__device__ __forceinline__ float row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float row_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Number 4 j + 2 h + e of a lane's scores is that of row lane / 4 + 8 h of the warp's 16 and of key
 * 8 j + 2 (lane % 4) + e. */
enum { SCORES = ATTENTION_STEP / 2 };

/* scores = Q K^T */
template <class F>
__device__ __forceinline__ void multiply_keys(float (&s)[SCORES], uint32_t q, uint32_t k)
{
    constexpr uint32_t high = descriptor_high(1024, SWIZZLE_128);
    const uint32_t a = descriptor_low(q, 16), b = descriptor_low(k, 16);
#pragma unroll
    for (int i = 0; i < F::WIDTH / 16; i++) {
        const uint32_t in = i % 4 * 32;
        wgmma_ss<F::TYPE, ATTENTION_STEP, 0, 0>(
            s, descriptor(a + ((i / 4 * UNIT_BYTES + in) >> 4), high),
            descriptor(b + ((i / 4 * K_PANEL_BYTES + in) >> 4), high), i > 0);
    }
    wgmma_commit();
}

/* o += P V */
template <class F>
__device__ __forceinline__ void multiply_values(float (&o)[F::WIDTH / 2],
                                                const uint32_t (&p)[SCORES / 2], uint32_t v)
{
    constexpr uint32_t high = descriptor_high(1024, SWIZZLE_128);
    const uint32_t b = descriptor_low(v, K_PANEL_BYTES);
#pragma unroll
    for (int i = 0; i < ATTENTION_STEP / 16; i++)
        wgmma_rs<F::TYPE, F::WIDTH, 1>(o, p + 4 * i,
                                       descriptor(b + (i * 16 * ROW_BYTES >> 4), high), 1);
    wgmma_commit();
}

/* The scores of a warp once more, where the shares have taken their place: by the warp alone. */
template <class F>
__device__ __forceinline__ void multiply_again(float (&s)[SCORES], uint32_t q, uint32_t k)
{
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES % GROUP_WARPS;
    const int row = warp * 16 + lane % 16, key = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int i = 0; i < SCORES; i++)
        s[i] = 0;
#pragma unroll 1
    for (int i = 0; i < F::WIDTH / 16; i++) {
        uint32_t x[4];
        const int q_run = i % 4 * 2 + lane / 16, k_run = i % 4 * 2 + lane / 8 % 2;
        ldmatrix_x4(x, q + i / 4 * UNIT_BYTES + row * ROW_BYTES + (q_run ^ row % 8) * 16);
#pragma unroll
        for (int j = 0; j < ATTENTION_STEP / 16; j++) {
            uint32_t y[4];
            ldmatrix_x4(y, k + i / 4 * K_PANEL_BYTES + (j * 16 + key) * ROW_BYTES +
                               (k_run ^ key % 8) * 16);
            mma_m16n8k16<typename F::T>(s + 8 * j, x, y);
            mma_m16n8k16<typename F::T>(s + 8 * j + 4, x, y + 2);
        }
    }
}

/* Bits 0 .. n - 1. */
__device__ __forceinline__ uint64_t bits_below(int n)
{
    return n <= 0 ? 0 : n >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1;
}

/* Which keys of a unit the row sees: bit j, key + j. */
__device__ __forceinline__ uint64_t visible(const attention_arg &a, int row, int shift, int keys,
                                            int key, int mask)
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
    if (mask >= 0) {
        const int64_t line = (int64_t)mask * a.block_rows + (row & (a.block_rows - 1));
        const int byte = (key & (a.block_cols - 1)) / 8;
        seen &= __ldg((const unsigned long long *)(a.bits + line * (a.block_cols / 8) + byte));
    }
    return seen;
}

/* Scores of what is not visible become those of no share: -infinity where scale is positive. */
template <class F>
__device__ __forceinline__ void hide(float (&s)[SCORES], const attention_arg &a, memory<F> m,
                                     uint32_t step, uint32_t tile, int row)
{
    const float nothing = a.scale < 0 ? INFINITY : -INFINITY;
    const int keys = shared_load_4(tile + 12), shift = shared_load_4(tile + 16);
    const int first = shared_load_4(tile + 4) + row, column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int key = shared_load_4(step + 4 + 4 * half);
        const int mask = shared_load_4(step + 12 + 4 * half);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint64_t seen = visible(a, first + 8 * h, shift, keys, key, mask) >> column;
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (!(seen >> (8 * j + e) & 1))
                        s[32 * half + 4 * j + 2 * h + e] = nothing;
        }
    }
}

/* Shares under the reference that the rows have. True if they became too large for some row of the
 * warp, or are not numbers: then nothing but s has changed. */
__device__ __forceinline__ bool share_fast(float (&s)[SCORES], row_state &r, float scale)
{
    const float limit = 1024;
    float sum[2][2] = {{0, 0}, {0, 0}};
#pragma unroll
    for (int j = 0; j < SCORES / 4; j++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &x = s[4 * j + 2 * h + e];
                x = power_of_two(fmaf(x, scale, -r.most[h]));
                sum[h][e] += x;
            }
    const float x = sum[0][0] + sum[0][1], y = sum[1][0] + sum[1][1];
    if (__any_sync(~0u, !(x <= limit && y <= limit)))
        return true;
    r.sum[0] += x;
    r.sum[1] += y;
    return false;
}

/* Shares under the largest score so far. factor: what earlier sums are to be multiplied with. */
__device__ __forceinline__ void share_exact(float (&s)[SCORES], row_state &r, float scale,
                                            float (&factor)[2])
{
    if (scale < 0) {
#pragma unroll
        for (int i = 0; i < SCORES; i++)
            s[i] = -s[i];
        scale = -scale;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = s[2 * h], sum[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < SCORES / 4; j++)
            most = fmaxf(most, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
        most = fmaxf(r.most[h], row_max(most) * scale);
        const float reference = most == -INFINITY ? 0 : most; /* nothing seen yet */
        factor[h] = power_of_two(r.most[h] - reference);
#pragma unroll
        for (int j = 0; j < SCORES / 4; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &x = s[4 * j + 2 * h + e];
                x = power_of_two(fmaf(x, scale, -reference));
                sum[e] += x;
            }
        r.most[h] = most;
        r.sum[h] = r.sum[h] * factor[h] + (sum[0] + sum[1]);
    }
}

__device__ __forceinline__ bool has_reference(const row_state &r)
{
    return __all_sync(~0u, r.most[0] > -INFINITY && r.most[1] > -INFINITY);
}

template <class F>
__device__ __forceinline__ void round_shares(uint32_t (&p)[SCORES / 2], const float (&s)[SCORES])
{
#pragma unroll
    for (int i = 0; i < SCORES / 2; i++)
        p[i] = mma_pack<typename F::T>(s[2 * i], s[2 * i + 1]);
}

/* Stores a row's sums, times a factor, or zeros. Lanes exchange halves: each has 8 bytes. */
template <int WIDTH>
__device__ __forceinline__ void store_row(const float (&o)[WIDTH / 2], const attention_out &out,
                                          int64_t at, int h, float factor, bool none, bool live)
{
    const int quad = threadIdx.x % 4;
    const auto value = [&](int i) { return none ? 0.0f : o[i] * factor; };
    if (out.type == BSK_F32) {
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++)
            if (live && 8 * j < out.width)
                *(float2 *)((float *)out.data + at + 8 * j + 2 * quad) =
                    make_float2(value(4 * j + 2 * h), value(4 * j + 2 * h + 1));
        return;
    }
    const bool odd = quad % 2, bf16 = out.type == BSK_BF16;
    const int feature = quad / 2 * 4 + (odd ? 8 : 0);
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j += 2) {
        uint32_t word[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float low = value(4 * (j + i) + 2 * h), high = value(4 * (j + i) + 2 * h + 1);
            word[i] = bf16 ? mma_pack<__nv_bfloat16>(low, high) : mma_pack<__half>(low, high);
        }
        const uint32_t other = __shfl_xor_sync(~0u, odd ? word[0] : word[1], 1);
        if (live && 8 * j + feature < out.width)
            *(uint2 *)((uint16_t *)out.data + at + 8 * j + feature) =
                odd ? make_uint2(other, word[1]) : make_uint2(word[0], other);
    }
}

/* O and the log-sum-exp of a tile. Rows without visible keys, and padding, are zeros. */
template <class F>
__device__ __forceinline__ void store_tile(const float (&o)[F::WIDTH / 2], const row_state &r,
                                           const attention_arg &a, uint32_t tile, int row)
{
    const int head = shared_load_4(tile), queries = shared_load_4(tile + 8);
    const int first = shared_load_4(tile + 4) + row;
    const int64_t base = head / a.heads * a.o.batch + head % a.heads * a.o.head;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int time = first + 8 * h;
        const float sum = row_sum(r.sum[h]);
        /* Scores of NaN leave no maximum either. */
        const bool none = time >= queries || (r.most[h] == -INFINITY && sum == 0);
        const bool live = time < a.q_time;
        if (a.lse && live && threadIdx.x % 4 == 0)
            a.lse[(int64_t)head * a.q_time + time] =
                none ? -INFINITY : (r.most[h] + log2f(sum)) * 0.693147180559945f;
        store_row<F::WIDTH>(o, a.o, base + time * a.o.time, h, 1 / sum, none, live);
    }
}

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

/* One lane speaks for its warp at barriers. */
__device__ __forceinline__ bool is_speaker()
{
    return threadIdx.x % LANES == 0;
}

/* The scores of a step become shares. True: o has to be multiplied with the factors. */
template <class F>
__device__ __forceinline__ bool share(float (&s)[SCORES], row_state &r, bool &fast,
                                      float (&factor)[2], const attention_arg &a, memory<F> m,
                                      const place &here, uint32_t step, bool partial, uint32_t tile,
                                      uint32_t q, uint32_t k)
{
    if (partial)
        hide(s, a, m, step, tile, row_of(here));
    if (fast) {
        if (!share_fast(s, r, a.scale))
            return false;
        multiply_again<F>(s, q, k);
        if (partial)
            hide(s, a, m, step, tile, row_of(here));
    }
    share_exact(s, r, a.scale, factor);
    fast = has_reference(r);
    return true;
}

template <class F>
__device__ __forceinline__ void consume(const attention_arg &a, memory<F> m, const place &here)
{
    const int ring = here.ring;
    cursor<F::SLOTS> at = {0, 0};
    int tile = 0;
    bool fast = false;
    float o[F::WIDTH / 2], s[SCORES], factor[2];
    uint32_t p[SCORES / 2];
    row_state r = {{-INFINITY, -INFINITY}, {0, 0}};

    mbar_wait(m.full(ring, 0), 0);
    mbar_wait(m.q_full(ring, 0), 0);
    int flags = __shfl_sync(~0u, shared_load_4(m.step(ring, 0)), 0);
    wgmma_fence();
    multiply_keys<F>(s, m.queries(ring, 0, here.part), m.slot(ring, 0));
    wgmma_wait<0>();
    wgmma_settle(s);
    share(s, r, fast, factor, a, m, here, m.step(ring, 0), flags & PARTIAL, m.tile(ring, 0), 0, 0);
    if (is_speaker()) {
        mbar_arrive(m.empty(ring, 0));
        if (flags & LAST)
            mbar_arrive(m.q_empty(ring, 0));
    }
    at.next();
    round_shares<F>(p, s);
#pragma unroll
    for (int i = 0; i < F::WIDTH / 2; i++)
        o[i] = 0;
    for (;;) {
        const int keys = at.slot;
        mbar_wait(m.full(ring, keys), at.parity);
        at.next();
        flags = __shfl_sync(~0u, shared_load_4(m.step(ring, keys)), 0);
        if (flags & END)
            break;
        const int values = at.slot;
        const uint32_t values_parity = at.parity;
        at.next();
        const int before = tile;
        if (flags & FIRST) {
            tile++;
            mbar_wait(m.q_full(ring, buffer_of<F>(tile)), parity_of<F>(tile));
        }
        const uint32_t q = m.queries(ring, buffer_of<F>(tile), here.part);
        wgmma_fence();
        multiply_keys<F>(s, q, m.slot(ring, keys));
        /* Behind a branch: the compiler would serialize the products around a bare loop. */
        if (!mbar_try_wait(m.full(ring, values), values_parity))
            mbar_wait(m.full(ring, values), values_parity);
        multiply_values<F>(o, p, m.slot(ring, values));
        wgmma_wait<1>();
        wgmma_settle(s);
        const row_state done = r;
        if (flags & FIRST) {
            r = {{-INFINITY, -INFINITY}, {0, 0}};
            fast = false;
        }
        const bool scaled = share(s, r, fast, factor, a, m, here, m.step(ring, keys),
                                  flags & PARTIAL, m.tile(ring, tile), q, m.slot(ring, keys));
        if (is_speaker()) {
            mbar_arrive(m.empty(ring, keys));
            if (flags & LAST)
                mbar_arrive(m.q_empty(ring, buffer_of<F>(tile)));
        }
        wgmma_wait<0>();
        wgmma_settle(o);
        if (is_speaker())
            mbar_arrive(m.empty(ring, values));
        if (flags & FIRST) {
            store_tile<F>(o, done, a, m.tile(ring, before), row_of(here));
#pragma unroll
            for (int i = 0; i < F::WIDTH / 2; i++)
                o[i] = 0;
        } else if (scaled) {
#pragma unroll
            for (int i = 0; i < F::WIDTH / 2; i++)
                o[i] *= factor[i / 2 % 2];
        }
        round_shares<F>(p, s);
    }
    mbar_wait(m.full(ring, at.slot), at.parity);
    wgmma_fence();
    multiply_values<F>(o, p, m.slot(ring, at.slot));
    wgmma_wait<0>();
    wgmma_settle(o);
    store_tile<F>(o, r, a, m.tile(ring, tile), row_of(here));
}

template <class F> __device__ __forceinline__ void attend(const maps &map, const attention_arg &a)
{
    static_assert(memory<F>::CONTROL_BYTES <= ATTENTION_CONTROL_BYTES, "");
    extern __shared__ __align__(1024) char shared[];
    const memory<F> m = {shared_address(shared)};
    const int warp = __shfl_sync(~0u, threadIdx.x / LANES, 0), group = warp / GROUP_WARPS;
    if (threadIdx.x == 0) {
        constexpr int warps = F::READERS * GROUP_WARPS;
        for (int ring = 0; ring < F::RINGS; ring++) {
            for (int i = 0; i < F::SLOTS; i++) {
                mbar_init(m.full(ring, i), 1);
                mbar_init(m.empty(ring, i), warps);
            }
            for (int i = 0; i < F::BUFFERS; i++) {
                mbar_init(m.q_full(ring, i), 1);
                mbar_init(m.q_empty(ring, i), warps);
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
                produce<F>(map, a, m, ring, begin, end);
        }
    } else {
        registers_raise<F::CONSUMER_REGISTERS>();
        const int ring = group / F::READERS, part = group % F::READERS;
        const int *start = a.tile_start + blockIdx.x * F::RINGS + ring;
        if (__ldg(start) < __ldg(start + 1))
            consume<F>(a, m, {ring, part});
    }
}

#define ATTENTION_KERNEL(name, type, width, groups, rings, slots, buffers)                         \
    extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS(groups), 1)                     \
        name(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,         \
             const __grid_constant__ CUtensorMap v, const __grid_constant__ attention_arg a)       \
    {                                                                                              \
        attend<form<type, width, groups, rings, slots, buffers>>({&q, &k, &v}, a);                 \
    }
#define ATTENTION_KERNELS(suffix, ...)                                                             \
    ATTENTION_KERNEL(cuda_attention_bf16_##suffix, WGMMA_BF16, __VA_ARGS__)                        \
    ATTENTION_KERNEL(cuda_attention_f16_##suffix, WGMMA_F16, __VA_ARGS__)
ATTENTION_FORMS(ATTENTION_KERNELS)
