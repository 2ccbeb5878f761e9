/* dK and dV of attention by wgmma. docs/cuda.md has a picture of the data flow.
 *
 * One thread block a multiprocessor. Its consumers are warpgroups with 64 keys each, whose sums
 * stay in registers; one more warpgroup has a producing warp for each ring, which walks over the
 * ring's tiles of keys, finds out which pieces of their lists of queries are visible, pairs them to
 * steps, and tells consumers with each step what it is. Scores are computed transposed, so that
 * shares and slopes are register operands of the products that make dV and dK. A consumer meets one
 * stream of steps: a step's first product is issued together with the last two of the step before,
 * also where a new tile begins. */
#include <backends/cuda/sm90a/attention_dkv_produce.h>

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

/* Where a lane's first two numbers of a step's sums are: of its queries 2 (lane % 4) + (0, 1). */
__device__ __forceinline__ uint32_t sums_of(uint32_t step, int lane)
{
    return step + lane % 4 * 8;
}

/* Two of those: of the lane's queries 8 i + 2 (lane % 4) + (0, 1). */
struct two {
    float v[2];
};

__device__ __forceinline__ two load_two(uint32_t sums, int i)
{
    const uint2 v = shared_load_8(sums + i * 32);
    return {{__uint_as_float(v.x), __uint_as_float(v.y)}};
}

/* Scores become shares. */
__device__ __forceinline__ void make_shares(float (&s)[SCORES], float scale, uint32_t sums)
{
#pragma unroll
    for (int i = 0; i < SCORES / 4; i++) {
        const two bound = load_two(sums, i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float &x = s[4 * i + j];
            x = power_of_two(fmaf(x, scale, -bound.v[j % 2]));
        }
    }
}

/* Products of dO and V become slopes of the scores. */
__device__ __forceinline__ void make_slopes(float (&dp)[SCORES], const float (&s)[SCORES],
                                            float slope, uint32_t sums)
{
#pragma unroll
    for (int i = 0; i < SCORES / 4; i++) {
        const two delta = load_two(sums + DKV_SUM_BYTES, i);
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

/* What the lane's keys h see of a piece: nothing, or all of it. line: the lane's first key in the
 * tile. */
template <class F> __device__ __forceinline__ bool sees_nothing(int code, int line, int h)
{
    return code >> (line + 8 * h) / F::PART & 1;
}

template <class F> __device__ __forceinline__ bool sees_all(int code, int line, int h)
{
    return code >> (ATTENTION_BANDS + (line + 8 * h) / F::PART) & 1;
}

/* Which queries of piece number `at` the lane's key sees: bits 2 i and 2 i + 1, queries
 * 8 i + 2 (lane % 4) and the next. */
template <class F>
__device__ __forceinline__ uint32_t look_up(const attention_dkv_arg &a, int at, int shift, int key,
                                            int part)
{
    const int column = threadIdx.x % 4 * 2;
    const int row = __ldg(&a.pieces[at].row);
    const int slot = a.all.masks > 0 ? __ldg(a.all.slots + (int64_t)at * F::PARTS + part) : 0;
    const int mask = mask_of(a.all, slot), inner = key & (F::PART - 1);
    const uint32_t seen = seen_by(a, row, shift, key) >> column;
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < F::PIECE / 4; i++) {
        const int in = i / 2 * 8 + i % 2;
        bool x = seen >> in & 1;
        if (mask >= 0) {
            const int64_t line = (int64_t)mask * F::PIECE + column + in;
            x = x && a.all.bits[line * (F::PART / 8) + inner / 8] >> inner % 8 & 1;
        }
        bits |= (uint32_t)x << i;
    }
    return bits;
}

/* Shares of what is not visible become 0, where parts are many. */
template <class F>
__device__ __forceinline__ void hide_parts(float (&s)[SCORES], const attention_dkv_arg &a,
                                           uint32_t entry, uint32_t tile, int line)
{
    enum { EACH = F::PIECE / 8 }; /* runs of 8 queries of a piece */
    int code[F::PIECES];
    bool plain = true;
#pragma unroll
    for (int i = 0; i < F::PIECES; i++) {
        code[i] = shared_load_4(entry + CODES + 4 * i);
#pragma unroll
        for (int h = 0; h < 2; h++)
            plain = plain && (sees_nothing<F>(code[i], line, h) || sees_all<F>(code[i], line, h));
    }
    if (__all_sync(~0u, plain)) {
#pragma unroll
        for (int i = 0; i < F::PIECES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (sees_nothing<F>(code[i], line, h))
#pragma unroll
                    for (int j = EACH * i; j < EACH * (i + 1); j++)
                        s[4 * j + 2 * h] = s[4 * j + 2 * h + 1] = 0;
        return;
    }
    uint32_t seen[2] = {0, 0}; /* bit 2 j + e: of the lane's query 8 j + e */
    const int list = shared_load_4(entry + INFO + 4);
    const int key = shared_load_4(tile + 4 * TILE_KEY) + line;
    const int shift = shared_load_4(tile + 4 * TILE_SHIFT);
#pragma unroll 1
    for (int i = 0; i < F::PIECES; i++) {
        const int x = shared_load_4(entry + CODES + 4 * i);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int at = list + (int)((unsigned)x >> VIEW_AT);
            uint32_t bits = sees_all<F>(x, line, h) ? (1u << 2 * EACH) - 1 : 0;
            if (!sees_all<F>(x, line, h) && !sees_nothing<F>(x, line, h))
                bits = look_up<F>(a, at, shift, key + 8 * h, (line + 8 * h) / F::PART);
            seen[h] |= bits << 2 * EACH * i;
        }
    }
#pragma unroll
    for (int i = 0; i < SCORES; i++)
        if (!(seen[i / 2 % 2] >> (i / 4 * 2 + i % 2) & 1))
            s[i] = 0;
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

/* The same, where they are not. */
template <class F>
__device__ __forceinline__ void hide_halves(float (&s)[SCORES], const attention_dkv_arg &a,
                                            uint32_t entry, uint32_t tile, int line)
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
                    *(const unsigned short *)(from + mask_line * bytes) >> lane / 4;
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

template <class F>
__device__ __forceinline__ void hide(float (&s)[SCORES], const attention_dkv_arg &a, uint32_t entry,
                                     uint32_t tile, int line)
{
    if constexpr (F::MANY)
        hide_parts<F>(s, a, entry, tile, line);
    else
        hide_halves<F>(s, a, entry, tile, line);
}

/* Where there is no block, what lies in memory does not count: neither do its products. Of many
 * parts, keys are made again where they are not numbers. */
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

/* Which gradients a warpgroup makes. */
enum { MAKES_DK = 1, MAKES_DV = 2, MAKES_BOTH = 3 };

/* Keys of blocks of 32 and less share a step with keys whose blocks do not meet all of its queries. Theirs
 * have shares of 0, but 0 times what is not finite is not 0: a key with such a result is made again
 * by its warp alone, element by element, from the blocks that it has. */
template <class F>
__device__ __forceinline__ int slot_of(const attention_dkv_arg &a, int at, const int4 &piece,
                                       int part)
{
    if constexpr (F::MANY) {
        if (!(piece.y >> part & 1))
            return NONE;
        return a.all.masks > 0 ? __ldg(a.all.slots + (int64_t)at * F::PARTS + part) : 0;
    }
    return part ? piece.z : piece.y;
}

template <class F, int MAKES>
__device__ __forceinline__ void repeat_key(const attention_dkv_arg &a, uint32_t tile, int key)
{
    const attention_arg &all = a.all;
    const int lane = threadIdx.x % LANES, head = shared_load_4(tile + 4 * TILE_HEAD);
    const int member = shared_load_4(tile + 4 * TILE_MEMBER);
    const int keys = shared_load_4(tile + 4 * TILE_KEYS);
    const int shift = shared_load_4(tile + 4 * TILE_SHIFT);
    const int run = shared_load_4(tile + 4 * TILE_RUN);
    const int list = (run * a.run_tiles + key / F::KEYS) / a.each, inner = key & (F::PART - 1);
    const int part = key % F::KEYS / F::PART;
    const int64_t k_line = line_at(all.k, member, head, run, key);
    const int64_t v_line = line_at(all.v, member, head, run, key);
    float dk[F::WIDTH / LANES] = {}, dv[F::WIDTH / LANES] = {};
#pragma unroll 1
    for (int g = 0; g < all.group; g++) {
        const int query_head = head * all.group + g;
        const int32_t *start = a.list_start + query_head / a.per_head * a.lists + list;
        const int64_t sums =
            (int64_t)(member * all.heads + query_head) * a.pad + run * all.q_time + lane;
#pragma unroll 1
        for (int i = __ldg(start); i < __ldg(start + 1); i++) {
            const int4 piece = __ldg((const int4 *)(a.pieces + i));
            const int row = piece.x + lane, slot = slot_of<F>(a, i, piece, part);
            if (slot < 0)
                continue;
            const float bound = lane < F::PIECE ? a.bound[sums + piece.x] : INFINITY;
            const bool seen =
                bound != INFINITY &&
                (visible<F::PART>(all, row, shift, keys, key - inner, mask_of(all, slot)) >> inner &
                 1);
            float p = 0, ds = 0;
            if (seen) {
                const int64_t q_line = line_at(all.q, member, query_head, run, row);
                const int64_t dout_line = line_at(a.dout, member, query_head, run, row);
                p = power_of_two(fmaf(dot<F>(all.q, q_line, all.k, k_line), all.scale, -bound));
                ds = p * fmaf(dot<F>(a.dout, dout_line, all.v, v_line), a.slope,
                              -a.delta[sums + piece.x]);
            }
#pragma unroll 1
            for (uint32_t rows = __ballot_sync(~0u, seen); rows; rows &= rows - 1) {
                const int j = __ffs(rows) - 1;
                const float share = __shfl_sync(~0u, p, j), slope = __shfl_sync(~0u, ds, j);
                const int at = piece.x + j;
                const int64_t q_line = line_at(all.q, member, query_head, run, at) + lane;
                const int64_t dout_line = line_at(a.dout, member, query_head, run, at) + lane;
#pragma unroll 1
                for (int f = 0; f < F::WIDTH / LANES; f++) {
                    if (f * LANES + lane < all.q.width)
                        dk[f] = fmaf(slope, number<F>(all.q, q_line + f * LANES), dk[f]);
                    if (f * LANES + lane < a.dout.width)
                        dv[f] = fmaf(share, number<F>(a.dout, dout_line + f * LANES), dv[f]);
                }
            }
        }
    }
    const int64_t dk_line =
        member * a.dk.batch + head * a.dk.head + run * a.dk.run + key * a.dk.time + lane;
    const int64_t dv_line =
        member * a.dv.batch + head * a.dv.head + run * a.dv.run + key * a.dv.time + lane;
#pragma unroll 1
    for (int f = 0; f < F::WIDTH / LANES; f++) {
        if (MAKES & MAKES_DK && f * LANES + lane < a.dk.width)
            store_one(a.dk, dk_line + f * LANES, dk[f] * a.dk_factor, a.beta);
        if (MAKES & MAKES_DV && f * LANES + lane < a.dv.width)
            store_one(a.dv, dv_line + f * LANES, dv[f] * a.dv_factor, a.beta);
    }
}

/* Of the warp's 16 keys of a tile those that are marked, again. first: the lane's first key; keys: by
 * half, bit 4 i is key i. */
template <class F, int MAKES>
__device__ __forceinline__ void repeat_keys(const attention_dkv_arg &a, uint32_t tile, int first,
                                            const uint32_t (&keys)[2])
{
#pragma unroll 1
    for (int h = 0; h < 2; h++)
#pragma unroll 1
        for (uint32_t rows = h ? keys[1] : keys[0]; rows; rows &= rows - 1)
            repeat_key<F, MAKES>(a, tile, __shfl_sync(~0u, first + 8 * h, __ffs(rows) - 1));
}

/* dK and dV of a warp's 16 keys of a tile, but of those that have been made again. */
template <class F>
__device__ __forceinline__ void store_tile(const float (&dk)[F::WIDTH / 2],
                                           const float (&dv)[F::WIDTH / 2],
                                           const attention_dkv_arg &a, uint32_t tile, int line)
{
    const int first = shared_load_4(tile + 4 * TILE_KEY) + line;
    const int keys = shared_load_4(tile + 4 * TILE_KEYS);
    uint32_t again[2] = {0, 0};
    if constexpr (F::SIDE < DKV_KEYS) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const bool wanted = first + 8 * h < keys;
            again[h] = rows_to_repeat<F>(dk, h, wanted) | rows_to_repeat<F>(dv, h, wanted);
        }
        repeat_keys<F, MAKES_BOTH>(a, tile, first, again);
    }
    const int head = shared_load_4(tile + 4 * TILE_HEAD);
    const int member = shared_load_4(tile + 4 * TILE_MEMBER);
    const int run = shared_load_4(tile + 4 * TILE_RUN);
    const int64_t dk_base = member * a.dk.batch + head * a.dk.head + run * a.dk.run;
    const int64_t dv_base = member * a.dv.batch + head * a.dv.head + run * a.dv.run;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int key = first + 8 * h;
        const bool none = key >= keys;
        const bool live = key < a.all.k_time && !(again[h] >> threadIdx.x % LANES / 4 * 4 & 1);
        store_row<F>(dk, a.dk, dk_base + key * a.dk.time, h, a.dk_factor, a.beta, none, live);
        store_row<F>(dv, a.dv, dv_base + key * a.dv.time, h, a.dv_factor, a.beta, none, live);
    }
}

template <class F>
__device__ __forceinline__ void consume(const attention_dkv_arg &a, dkv_memory<F> m,
                                        const place &here)
{
    constexpr int RARE = FIRST | LAST | PARTIAL | END;
    const int ring = here.ring, line = row_of(here), lane = lane_number();
    cursor<F::SLOTS> at = {0, 0};
    cursor<F::STEPS> entry = {0, 0};
    int tile = 0, flags, read; /* read: the step whose slopes are made */
    int q, dout, next_q, next_flags;
    bool accumulate = false;
    float dk[F::WIDTH / 2], dv[F::WIDTH / 2], s[SCORES], dp[SCORES];
    uint32_t p[PACKED], ds[PACKED];

    const auto buffer = [&]() { return flags & SECOND_BUFFER ? 1 : 0; };
    const auto key_lines = [&](int kind) { return m.keys(ring, buffer(), kind, here.part); };
    const auto wait_keys = [&](int kind) {
        mbar_wait(m.keys_full(ring, buffer(), kind), tile / F::BUFFERS & 1);
    };
    const auto leave_keys = [&](int kind) {
        signal(m.keys_empty(ring, buffer(), kind), lane == 0);
    };
    const auto wait_lines = [&]() {
        const int slot = at.slot;
        mbar_wait(m.full(ring, slot), at.parity);
        at.next();
        return slot;
    };
    const auto leave_lines = [&](int slot) { signal(m.empty(ring, slot), lane == 0); };
    const auto load_flags = [&](const cursor<F::STEPS> &of) {
        mbar_wait(m.step_full(ring, of.slot), of.parity);
        return (int)__shfl_sync(~0u, shared_load_4(m.step(ring, of.slot) + INFO), 0);
    };
    /* What the next step is, and its queries, while this one's products run. */
    const auto look_ahead = [&]() {
        cursor<F::STEPS> next = entry;
        next.next();
        next_flags = load_flags(next);
        if (!(next_flags & END))
            next_q = wait_lines();
    };
    const auto scores_to_shares = [&](bool partial) {
        const uint32_t told = m.step(ring, entry.slot);
        make_shares(s, a.all.scale, sums_of(told, lane));
        if (partial)
            hide<F>(s, a, told, m.tile(ring, tile), line);
    };
    const auto products_to_slopes = [&](bool partial) {
        const uint32_t told = m.step(ring, entry.slot);
        if constexpr (!F::MANY)
            if (partial)
                forget<F>(dp, told, line);
        make_slopes(dp, s, a.slope, sums_of(told, lane));
        read = entry.slot;
        entry.next();
        round_scores<F>(p, s);
        round_scores<F>(ds, dp);
        flags = next_flags;
    };
    /* A step, with the sums of the one before. */
    const auto take_step = [&](auto rare) {
        constexpr bool RARELY = decltype(rare)::value;
        const bool first = RARELY && flags & FIRST, last = RARELY && flags & LAST;
        const bool partial = RARELY && flags & PARTIAL;
        if (first) {
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
        mbar_arrive(m.step_empty(ring, read));
        if (last)
            leave_keys(KEYS_K);
        scores_to_shares(partial);
        wgmma_wait<0>();
        wgmma_settle(dk);
        wgmma_settle(dv);
        leave_lines(q);
        leave_lines(dout);
        /* Where keys may have to be made again, there are no registers for products meanwhile. */
        if (F::SIDE < DKV_KEYS && first)
            store_tile<F>(dk, dv, a, m.tile(ring, tile - 1), line);
        q = next_q;
        dout = wait_lines();
        if (first)
            wait_keys(KEYS_V);
        wgmma_fence();
        multiply_keys<F>(dp, key_lines(KEYS_V), m.slot(ring, dout));
        if (F::SIDE >= DKV_KEYS && first)
            store_tile<F>(dk, dv, a, m.tile(ring, tile - 1), line);
        accumulate = !first;
        look_ahead();
        wgmma_wait<0>();
        wgmma_settle(dp);
        if (last)
            leave_keys(KEYS_V);
        products_to_slopes(partial);
    };

    flags = load_flags(entry);
    q = wait_lines();
    wait_keys(KEYS_K);
    wgmma_fence();
    multiply_keys<F>(s, key_lines(KEYS_K), m.slot(ring, q));
    wgmma_wait<0>();
    wgmma_settle(s);
    if (flags & LAST)
        leave_keys(KEYS_K);
    scores_to_shares(flags & PARTIAL);
    dout = wait_lines();
    wait_keys(KEYS_V);
    wgmma_fence();
    multiply_keys<F>(dp, key_lines(KEYS_V), m.slot(ring, dout));
    look_ahead();
    wgmma_wait<0>();
    wgmma_settle(dp);
    if (flags & LAST)
        leave_keys(KEYS_V);
    products_to_slopes(flags & PARTIAL);
    for (;;) {
        /* The code of most steps lies together, if it is of its own. Of small blocks most steps are seen
         * in part; of wide heads the compiler would move the exponentials behind the wait for sums,
         * where no branch keeps them. */
        if constexpr (F::SIDE >= DKV_KEYS && F::WIDTH <= 64)
            while (!(flags & RARE))
                take_step(std::false_type());
        if (flags & END)
            break;
        take_step(std::true_type());
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

/* --- Consumers of wide heads --- */

/* One of the gradients of a warp's 16 keys of a tile. */
template <class F, int MAKES>
__device__ __forceinline__ void store_one_of(const float (&sums)[F::WIDTH / 2],
                                             const attention_dkv_arg &a, uint32_t tile, int line)
{
    const attention_out &out = MAKES == MAKES_DK ? a.dk : a.dv;
    const int first = shared_load_4(tile + 4 * TILE_KEY) + line;
    const int keys = shared_load_4(tile + 4 * TILE_KEYS);
    const int64_t base = shared_load_4(tile + 4 * TILE_MEMBER) * out.batch +
                         shared_load_4(tile + 4 * TILE_HEAD) * out.head +
                         shared_load_4(tile + 4 * TILE_RUN) * out.run;
    uint32_t again[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int key = first + 8 * h;
        const bool none = key >= keys;
        again[h] = F::SIDE < DKV_KEYS ? rows_to_repeat<F>(sums, h, !none) : 0;
        const bool live = key < a.all.k_time && !(again[h] >> threadIdx.x % LANES / 4 * 4 & 1);
        store_row<F>(sums, out, base + key * out.time, h,
                     MAKES == MAKES_DK ? a.dk_factor : a.dv_factor, a.beta, none, live);
    }
    if constexpr (F::SIDE < DKV_KEYS)
        repeat_keys<F, MAKES>(a, tile, first, again);
}

/* What both warpgroups of a tile do: the walk over its steps. Each of them multiplies one of Q and
 * dO with its keys or values, and adds lines of the other to its sums a step later. Behind the last
 * step there is one more without lines, whose products nobody looks at, so that tiles are stored in
 * one place. */
template <class F> struct wide_reader {
    const attention_dkv_arg &a;
    dkv_memory<F> m;
    int ring, line;
    cursor<F::SLOTS> at;
    cursor<F::STEPS> entry;
    int tile, flags;
    uint32_t parity; /* of shares */

    __device__ int wait_lines()
    {
        const int slot = at.slot;
        mbar_wait(m.full(ring, slot), at.parity);
        at.next();
        return slot;
    }
    __device__ void leave_lines(int slot) const
    {
        signal(m.empty(ring, slot));
    }
    __device__ bool next_step()
    {
        mbar_wait(m.step_full(ring, entry.slot), entry.parity);
        flags = __shfl_sync(~0u, shared_load_4(m.step(ring, entry.slot) + INFO), 0);
        return !(flags & END);
    }
    __device__ void leave_step()
    {
        mbar_arrive(m.step_empty(ring, entry.slot));
        entry.next();
    }
    __device__ uint32_t wait_keys(int kind) const
    {
        const int buffer = tile % F::BUFFERS;
        if (flags & FIRST)
            mbar_wait(m.keys_full(ring, buffer, kind), tile / F::BUFFERS & 1);
        return m.keys(ring, buffer, kind, 0);
    }
    __device__ void leave_keys(int kind) const
    {
        if (flags & LAST)
            signal(m.keys_empty(ring, tile % F::BUFFERS, kind));
    }
    __device__ uint32_t own_shares(int i) const
    {
        return m.shares(ring) +
               (i * GROUP_WARPS * LANES + threadIdx.x % (GROUP_WARPS * LANES)) * 16;
    }
};

/* dV, and the shares of the other warpgroup. */
template <class F>
__device__ __forceinline__ void consume_shares(const attention_dkv_arg &a, dkv_memory<F> m,
                                               const place &here)
{
    wide_reader<F> r = {a, m, here.ring, row_of({here.ring, 0}), {0, 0}, {0, 0}, 0, 0, 0};
    bool accumulate = false;
    float dv[F::WIDTH / 2], s[SCORES];
    uint32_t p[PACKED];

    const auto scores_to_shares = [&]() {
        const uint32_t told = m.step(r.ring, r.entry.slot);
        make_shares(s, a.all.scale, sums_of(told, threadIdx.x));
        if (r.flags & PARTIAL)
            hide<F>(s, a, told, m.tile(r.ring, r.tile), r.line);
        mbar_wait(m.shares_empty(r.ring), r.parity ^ 1);
        r.parity ^= 1;
#pragma unroll
        for (int i = 0; i < SCORES / 4; i++)
            shared_store_16(r.own_shares(i), __float_as_uint(s[4 * i]),
                            __float_as_uint(s[4 * i + 1]), __float_as_uint(s[4 * i + 2]),
                            __float_as_uint(s[4 * i + 3]));
        mbar_arrive(m.shares_full(r.ring));
        r.leave_step();
        round_scores<F>(p, s);
    };

    r.next_step();
    int q = r.wait_lines();
    wgmma_fence();
    multiply_keys<F>(s, r.wait_keys(KEYS_K), m.slot(r.ring, q));
    wgmma_wait<0>();
    wgmma_settle(s);
    r.leave_lines(q);
    r.leave_keys(KEYS_K);
    scores_to_shares();
    int dout = r.wait_lines();
    for (;;) {
        const bool over = !r.next_step();
        if (!over)
            q = r.wait_lines();
        r.tile += r.flags & FIRST ? 1 : 0;
        const uint32_t keys = r.wait_keys(KEYS_K);
        wgmma_fence();
        add_lines<F>(dv, p, m.slot(r.ring, dout), accumulate);
        wgmma_commit();
        multiply_keys<F>(s, keys, m.slot(r.ring, q));
        wgmma_wait<1>();
        wgmma_settle(dv);
        r.leave_lines(dout);
        if (r.flags & (FIRST | END))
            store_one_of<F, MAKES_DV>(dv, a, m.tile(r.ring, over ? r.tile : r.tile - 1), r.line);
        accumulate = !(r.flags & FIRST);
        wgmma_wait<0>();
        wgmma_settle(s);
        if (over)
            return;
        r.leave_lines(q);
        r.leave_keys(KEYS_K);
        scores_to_shares();
        dout = r.wait_lines();
    }
}

/* dK. */
template <class F>
__device__ __forceinline__ void consume_slopes(const attention_dkv_arg &a, dkv_memory<F> m,
                                               const place &here)
{
    wide_reader<F> r = {a, m, here.ring, row_of({here.ring, 0}), {0, 0}, {0, 0}, 0, 0, 0};
    bool accumulate = false;
    int read; /* the step whose slopes are made */
    float dk[F::WIDTH / 2], dp[SCORES], s[SCORES];
    uint32_t ds[PACKED];

    const auto products_to_slopes = [&]() {
        const uint32_t told = m.step(r.ring, r.entry.slot);
        if constexpr (!F::MANY)
            if (r.flags & PARTIAL)
                forget<F>(dp, told, r.line);
        mbar_wait(m.shares_full(r.ring), r.parity);
        r.parity ^= 1;
#pragma unroll
        for (int i = 0; i < SCORES / 4; i++) {
            const uint4 v = shared_load_16(r.own_shares(i));
            s[4 * i] = __uint_as_float(v.x);
            s[4 * i + 1] = __uint_as_float(v.y);
            s[4 * i + 2] = __uint_as_float(v.z);
            s[4 * i + 3] = __uint_as_float(v.w);
        }
        make_slopes(dp, s, a.slope, sums_of(told, threadIdx.x));
        round_scores<F>(ds, dp);
        read = r.entry.slot;
        r.entry.next();
    };
    /* Not before products need what was made of it: a signal may overtake loads that wait for
     * shared memory. */
    const auto leave_step = [&]() {
        mbar_arrive(m.shares_empty(r.ring));
        mbar_arrive(m.step_empty(r.ring, read));
    };

    r.next_step();
    int q = r.wait_lines(), dout = r.wait_lines();
    wgmma_fence();
    multiply_keys<F>(dp, r.wait_keys(KEYS_V), m.slot(r.ring, dout));
    wgmma_wait<0>();
    wgmma_settle(dp);
    r.leave_lines(dout);
    r.leave_keys(KEYS_V);
    products_to_slopes();
    for (;;) {
        const bool over = !r.next_step();
        const int next_q = over ? q : r.wait_lines();
        if (!over)
            dout = r.wait_lines();
        r.tile += r.flags & FIRST ? 1 : 0;
        const uint32_t values = r.wait_keys(KEYS_V);
        wgmma_fence();
        add_lines<F>(dk, ds, m.slot(r.ring, q), accumulate);
        wgmma_commit();
        multiply_keys<F>(dp, values, m.slot(r.ring, dout));
        wgmma_wait<1>();
        wgmma_settle(dk);
        leave_step();
        r.leave_lines(q);
        q = next_q;
        if (r.flags & (FIRST | END))
            store_one_of<F, MAKES_DK>(dk, a, m.tile(r.ring, over ? r.tile : r.tile - 1), r.line);
        accumulate = !(r.flags & FIRST);
        wgmma_wait<0>();
        wgmma_settle(dp);
        if (over)
            return;
        r.leave_lines(dout);
        r.leave_keys(KEYS_V);
        products_to_slopes();
    }
}

template <class F>
__device__ __forceinline__ void make_dkv(const maps &map, const attention_dkv_arg &a)
{
    extern __shared__ __align__(1024) char shared[];
    const dkv_memory<F> m = {shared_address(shared)};
    const int warp = __shfl_sync(~0u, threadIdx.x / LANES, 0), group = warp / GROUP_WARPS;
    if (threadIdx.x == 0) {
        constexpr int warps = F::TEAM * GROUP_WARPS;
        for (int ring = 0; ring < F::RINGS; ring++) {
            for (int i = 0; i < F::SLOTS; i++) {
                mbar_init(m.full(ring, i), 1);
                mbar_init(m.empty(ring, i), warps);
            }
            for (int i = 0; i < F::STEPS; i++) {
                mbar_init(m.step_full(ring, i), F::MANY ? LANES : 1);
                mbar_init(m.step_empty(ring, i), warps * LANES);
            }
            for (int i = 0; i < 2 * F::BUFFERS; i++) {
                mbar_init(m.keys_full(ring, 0, i), 1);
                mbar_init(m.keys_empty(ring, 0, i), F::READERS * GROUP_WARPS);
            }
            if (F::WIDE) {
                mbar_init(m.shares_full(ring), GROUP_WARPS * LANES);
                mbar_init(m.shares_empty(ring), GROUP_WARPS * LANES);
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
        const int ring = group / F::TEAM, part = group % F::TEAM;
        const int *start = a.all.tile_start + blockIdx.x * F::RINGS + ring;
        if (__ldg(start) >= __ldg(start + 1))
            return;
        grid_wait();
        if constexpr (F::WIDE) {
            if (part == 0)
                consume_shares<F>(a, m, {ring, part});
            else
                consume_slopes<F>(a, m, {ring, part});
        } else {
            consume<F>(a, m, {ring, part});
        }
    }
}

#define DKV_KERNEL(name, type, suffix, width, groups, rings, slots, steps, buffers, side)          \
    extern "C" __global__ void __launch_bounds__(DKV_THREADS(groups), 1)                           \
        cuda_attention_dkv_##name##_##suffix(                                                      \
            const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,          \
            const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap dout,       \
            const __grid_constant__ attention_dkv_arg a)                                           \
    {                                                                                              \
        make_dkv<dkv_form<type, width, groups, rings, slots, steps, buffers, side>>(               \
            {&q, &k, &v, &dout}, a);                                                               \
    }
#define DKV_KERNELS(...) FOR_HALVES_WGMMA(DKV_KERNEL, __VA_ARGS__)
DKV_FORMS(DKV_KERNELS)
