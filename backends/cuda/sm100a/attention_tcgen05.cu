/* Attention for sm100a: tensor copies, and tcgen05 products whose scores, shares and sums lie in
 * tensor memory. A thread block has a tile of query rows, those of a block row, and walks along its
 * list, 128 keys at a time. */
#include <backends/cuda/sm100a/tcgen05.h>
#include <backends/cuda/sm80/attention_tile.h>

#include <backends/cuda/sm100a/attention_arg.h>

enum {
    WARP_LANES = 32,
    LOADER = ROW_WARPS, /* warps */
    ISSUER,
    PANEL = 64, /* features of a row of 128 bytes */
    ROW_BYTES = 128,
    DEPTH = 16, /* of a product */
    WORD = 32,  /* keys of a word of bits, and columns that are loaded at once */
    WORDS = STEP_KEYS / WORD,
    PIECES = STEP_KEYS / PIECE,
    PIECE_BYTES = PIECE * ROW_BYTES,
    PANEL_BYTES = STEP_KEYS * ROW_BYTES,
    /* Tensor memory, by columns: the scores, which their shares replace, and the sums. */
    SCORES = 0,
    SUMS = STEP_KEYS,
    TAKEN = 256
};

/* By how much a row's largest score may pass its reference, in powers of two: shares stay in the
 * range of f16, and sums are rarely multiplied again. */
#define SLACK 8.f

template <typename TYPE, int ROWS_, int D_, int BUFFERS_> struct form {
    typedef TYPE T;
    enum {
        BF16 = std::is_same<TYPE, __nv_bfloat16>::value,
        TURNED = false,
        ROWS = ROWS_,
        D = D_,
        BUFFERS = BUFFERS_,
        PANELS = D / PANEL,
        WARP_ROWS = ROWS / ROW_WARPS,
        Q_BYTES = ROWS * D * 2,
        BUFFER_BYTES = STEP_KEYS * D * 2
    };
};

/* Barriers: copies have arrived, products have read them; scores are there, shares are there in
 * their place, sums have them. */
template <class C> struct control {
    uint64_t q_full, k_full[C::BUFFERS], k_empty[C::BUFFERS], v_full[C::BUFFERS],
        v_empty[C::BUFFERS], cut, scores, shares, sums;
    uint32_t memory; /* address in tensor memory */
};

/* Two pieces of the list; slot -1: nothing. */
struct attention_step {
    i32 line[PIECES], slot[PIECES];
};

/* What the roles of a thread block know. */
template <class C> struct tile_view {
    const attention80_arg &a;
    rules_data data;
    rules_member member;
    own_tile own;
    control<C> *bars;
    uint32_t base; /* queries, buffers of keys, buffers of values */

    __device__ uint32_t keys(int buffer) const
    {
        return base + C::Q_BYTES + buffer * C::BUFFER_BYTES;
    }
    __device__ uint32_t values(int buffer) const
    {
        return keys(C::BUFFERS + buffer);
    }
    /* How much ROWS rows from `row` on see of a piece. */
    template <int ROWS> __device__ int view(i32 row, i32 slot, i32 line) const
    {
        return lines_view<C, ROWS, PIECE>(&a.rules, &data, &member, a.tiles, slot, row, line);
    }
};

/* The steps of a tile, without pieces that none of its rows sees. All roles walk on their own. */
template <class C> struct step_walk {
    const tile_view<C> &t;
    walk_place at;

    __device__ explicit step_walk(const tile_view<C> &tile)
        : t(tile), at(walk_open<C>(tile.a.tiles, tile.a.group, tile.a.rules.per_head, tile.own))
    {
    }
    __device__ bool next(attention_step &s)
    {
        int count = 0;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            s.slot[i] = -1;
            s.line[i] = t.a.rules.k_time; /* there a copy finds zeros */
            for (; count == i && at.piece < at.end; at.piece++) {
                const i32 line = t.a.tiles.line[at.piece], slot = t.a.tiles.slot[at.piece];
                if (t.template view<C::ROWS>(t.own.first, slot, line) == RULES_EMPTY)
                    continue;
                s.line[i] = line;
                s.slot[i] = slot;
                count++;
            }
        }
        return count > 0;
    }
};

/* --- Copies: by a warp --- */

template <class C>
MMA_DEVICE void copy_pieces(const CUtensorMap *map, const tile_view<C> &t, const attention_step &s,
                            uint32_t to, uint32_t bar)
{
    const i32 head = t.own.head / t.a.group;
    mbar_expect(bar, C::BUFFER_BYTES);
#pragma unroll
    for (int panel = 0; panel < C::PANELS; panel++)
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            tensor_load_5d(to + panel * PANEL_BYTES + i * PIECE_BYTES, map, panel * PANEL,
                           s.line[i], 0, head, t.own.b, bar);
}

/* Zeros for a piece's lines beyond the member's keys: they may hold anything, and shares of 0 times
 * anything need not be 0. */
template <class C>
MMA_DEVICE void clear_lines(const tile_view<C> &t, uint32_t to, int first, int lane)
{
#pragma unroll 1
    for (int panel = 0; panel < C::PANELS; panel++)
        for (int at = first * ROW_BYTES + lane * 16; at < PIECE_BYTES; at += WARP_LANES * 16)
            shared_store_16(to + panel * PANEL_BYTES + at, 0, 0, 0, 0);
}

template <class C> MMA_DEVICE void copy_queries(const CUtensorMap *map, const tile_view<C> &t)
{
    const uint32_t bar = mma_shared(&t.bars->q_full);
    mbar_expect(bar, C::Q_BYTES);
#pragma unroll
    for (int panel = 0; panel < C::PANELS; panel++)
        tensor_load_5d(t.base + panel * C::ROWS * ROW_BYTES, map, panel * PANEL, t.own.first, 0,
                       t.own.head, t.own.b, bar);
}

template <class C>
MMA_DEVICE void load_tile(const CUtensorMap *q, const CUtensorMap *k, const CUtensorMap *v,
                          const tile_view<C> &t)
{
    const int lane = threadIdx.x % WARP_LANES;
    uint32_t cut_parity = 0;
    step_walk<C> walk(t);
    attention_step s;
    for (int n = 0; walk.next(s); n++) {
        const int buffer = n % C::BUFFERS;
        const uint32_t before = (n / C::BUFFERS - 1) & 1,
                       v_full = mma_shared(&t.bars->v_full[buffer]);
        if (n == 0 && lane == 0)
            copy_queries<C>(q, t);
        if (n >= C::BUFFERS)
            mbar_wait(mma_shared(&t.bars->k_empty[buffer]), before);
        if (lane == 0)
            copy_pieces<C>(k, t, s, t.keys(buffer), mma_shared(&t.bars->k_full[buffer]));
        if (n >= C::BUFFERS)
            mbar_wait(mma_shared(&t.bars->v_empty[buffer]), before);
        bool cut = false;
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            cut |= s.slot[i] >= 0 && s.line[i] + PIECE > t.member.keys;
        cut &= t.member.keys < t.a.rules.k_time; /* beyond it copies bring zeros */
        if (lane == 0)
            copy_pieces<C>(v, t, s, t.values(buffer), cut ? mma_shared(&t.bars->cut) : v_full);
        __syncwarp();
        if (!cut)
            continue;
        mbar_wait(mma_shared(&t.bars->cut), cut_parity);
        cut_parity ^= 1;
        for (int i = 0; i < PIECES; i++)
            if (s.slot[i] >= 0 && s.line[i] + PIECE > t.member.keys)
                clear_lines<C>(t, t.values(buffer) + i * PIECE_BYTES, t.member.keys - s.line[i],
                               lane);
        async_fence();
        __syncwarp();
        if (lane == 0)
            mbar_arrive(v_full);
    }
}

/* --- Products: by a thread --- */

template <class C> MMA_DEVICE void multiply(const tile_view<C> &t)
{
    const uint32_t scores = t.bars->memory + SCORES, sums = t.bars->memory + SUMS;
    const uint32_t scores_kind = tensor_kind(C::BF16, false, false, C::ROWS, STEP_KEYS);
    const uint32_t sums_kind = tensor_kind(C::BF16, false, true, C::ROWS, C::D);
    step_walk<C> walk(t);
    attention_step s;
    for (int n = 0; walk.next(s); n++) {
        const int buffer = n % C::BUFFERS;
        const uint32_t parity = n / C::BUFFERS & 1;
        if (n == 0)
            mbar_wait(mma_shared(&t.bars->q_full), 0);
        else /* where scores go, shares were read */
            mbar_wait(mma_shared(&t.bars->sums), (n - 1) & 1);
        mbar_wait(mma_shared(&t.bars->k_full[buffer]), parity);
        tensor_fence_after();
#pragma unroll
        for (int k = 0; k < C::D; k += DEPTH) {
            const uint32_t inner = k % PANEL * 2;
            tensor_product(scores,
                           tensor_operand(t.base + k / PANEL * C::ROWS * ROW_BYTES + inner, 0),
                           tensor_operand(t.keys(buffer) + k / PANEL * PANEL_BYTES + inner, 0),
                           scores_kind, k > 0);
        }
        tensor_commit(mma_shared(&t.bars->k_empty[buffer]));
        tensor_commit(mma_shared(&t.bars->scores));

        mbar_wait(mma_shared(&t.bars->v_full[buffer]), parity);
        mbar_wait(mma_shared(&t.bars->shares), n & 1);
        tensor_fence_after();
#pragma unroll
        for (int k = 0; k < STEP_KEYS; k += DEPTH)
            tensor_product_from_memory(
                sums, scores + k / 2, tensor_operand(t.values(buffer) + k * ROW_BYTES, PANEL_BYTES),
                sums_kind, n > 0 || k > 0);
        tensor_commit(mma_shared(&t.bars->v_empty[buffer]));
        tensor_commit(mma_shared(&t.bars->sums));
    }
}

/* --- Shares: a thread has a row --- */

struct row_state {
    float reference, sum; /* in units of the binary logarithm; of shares by it */
};

/* Which of a step's keys a row sees. time: -1 where there is no row. True: all rows of the warp see
 * all keys. */
template <class C>
MMA_DEVICE bool row_sees(uint32_t (&seen)[WORDS], const tile_view<C> &t, const attention_step &s,
                         i32 first, i32 time)
{
    bool all = true;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int view = t.template view<C::WARP_ROWS>(first, s.slot[i], s.line[i]);
        uint32_t low = view == RULES_FULL ? ~0u : 0, high = low;
        all &= view == RULES_FULL;
        if (view == RULES_PARTIAL && time >= 0) {
            const i64 mask = rules_mask(&t.a.rules, &t.data, s.slot[i]);
            const i32 row = time & (t.a.tiles.side - 1), col = s.line[i] & (t.a.tiles.other - 1);
#pragma unroll 1
            for (int key = 0; key < PIECE; key++) {
                const uint32_t one =
                    rules_visible(&t.a.rules, &t.data, &t.member, time, s.line[i] + key) &&
                    rules_bit(&t.a.rules, &t.data, mask, row, col + key);
                low = low >> 1 | high << 31;
                high = high >> 1 | one << 31;
            }
        }
        seen[2 * i] = low;
        seen[2 * i + 1] = high;
    }
    return all;
}

/* The largest score; ALL: all are seen. */
template <bool ALL>
MMA_DEVICE float row_most(uint32_t scores, const uint32_t (&seen)[WORDS], float scale)
{
    float most = -INFINITY;
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
        float v[WORD];
        tensor_memory_load(scores + w * WORD, v);
#pragma unroll
        for (int i = 0; i < WORD; i++)
            most = fmaxf(most, ALL || seen[w] >> i & 1 ? v[i] * scale : -INFINITY);
    }
    return most;
}

/* Scores become shares, two in a column, and go where the first half of the scores was. The answer
 * is their sum. */
template <class C, bool ALL>
MMA_DEVICE float row_shares(uint32_t scores, const uint32_t (&seen)[WORDS], float scale,
                            float reference)
{
    const float from = reference == -INFINITY ? 0 : reference;
    float sum[2] = {0, 0};
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
        float v[WORD];
        uint32_t pairs[WORD / 2];
        tensor_memory_load(scores + w * WORD, v);
#pragma unroll
        for (int i = 0; i < WORD; i++) {
            v[i] = ALL || seen[w] >> i & 1 ? power_of_two(fmaf(v[i], scale, -from)) : 0;
            sum[i % 2] += v[i];
        }
#pragma unroll
        for (int i = 0; i < WORD / 2; i++)
            pairs[i] = mma_pack<typename C::T>(v[2 * i], v[2 * i + 1]);
        tensor_memory_store(scores + w * WORD / 2, pairs);
    }
    return sum[0] + sum[1];
}

/* By a warp: the sums of its rows times a factor each. */
template <class C> MMA_DEVICE void sums_scale(uint32_t sums, float factor)
{
#pragma unroll 1
    for (int f = 0; f < C::D; f += WORD) {
        float v[WORD];
        uint32_t bits[WORD];
        tensor_memory_load(sums + f, v);
#pragma unroll
        for (int i = 0; i < WORD; i++)
            bits[i] = __float_as_uint(v[i] * factor);
        tensor_memory_store(sums + f, bits);
    }
}

/* A row's result; any: whether there are sums. */
template <class C>
MMA_DEVICE void row_store(const tile_view<C> &t, uint32_t sums, bool any, const row_state &r,
                          i32 time)
{
    const attention80_arg &a = t.a;
    /* Scores of NaN leave no maximum either. */
    const bool none = r.reference == -INFINITY && r.sum == 0;
    const float factor = none ? 0 : 1 / r.sum;
    const i64 at = heads_at(a.o, t.own.b, t.own.head) + (i64)time * a.o.time;
    if (a.lse && time >= 0)
        a.lse[((i64)t.own.b * a.rules.heads + t.own.head) * a.rules.q_time + time] =
            none ? -INFINITY : LN_2 * (r.reference + log2f(r.sum));
#pragma unroll 1
    for (int f = 0; f < C::D && f < a.dv; f += 8) {
        float v[8];
        if (any)
            tensor_memory_load(sums + f, v);
        if (time >= 0)
#pragma unroll
            for (int i = 0; i < 8; i += 2)
                store_pair(a.o.type, a.o_data, at + f + i, none ? 0 : factor * v[i],
                           none ? 0 : factor * v[i + 1]);
    }
}

template <class C> MMA_DEVICE void make_shares(const tile_view<C> &t)
{
    const int warp = threadIdx.x / WARP_LANES, lane = threadIdx.x % WARP_LANES;
    const uint32_t memory = t.bars->memory + ((uint32_t)warp * WARP_LANES << 16);
    const uint32_t scores = memory + SCORES, sums = memory + SUMS;
    const i32 first = t.own.first + warp * C::WARP_ROWS;
    /* Tiles of 64 rows have 16 in the first lanes of each warp. */
    const i32 row = lane < C::WARP_ROWS ? first + lane : -1;
    const i32 time = line_time(t.a.rules.rows, 1, t.a.rules.q_time, row);
    row_state r = {-INFINITY, 0};
    step_walk<C> walk(t);
    attention_step s;
    int n = 0;
    for (; walk.next(s); n++) {
        uint32_t seen[WORDS];
        const bool all = row_sees<C>(seen, t, s, first, time);
        mbar_wait(mma_shared(&t.bars->scores), n & 1);
        tensor_fence_after();
        const float scale = t.a.scale;
        const float most =
            all ? row_most<true>(scores, seen, scale) : row_most<false>(scores, seen, scale);
        const bool raise = most > r.reference + SLACK && row >= 0;
        const float factor = raise ? power_of_two(r.reference - most) : 1;
        if (raise)
            r.reference = most;
        if (n > 0 && __any_sync(~0u, raise))
            sums_scale<C>(sums, factor);
        r.sum *= factor;
        r.sum += all ? row_shares<C, true>(scores, seen, scale, r.reference)
                     : row_shares<C, false>(scores, seen, scale, r.reference);
        tensor_memory_store_wait();
        tensor_fence_before();
        mbar_arrive(mma_shared(&t.bars->shares));
    }
    if (n > 0) {
        mbar_wait(mma_shared(&t.bars->sums), (n - 1) & 1);
        tensor_fence_after();
    }
    row_store<C>(t, sums, n > 0, r, time);
}

/* --- The thread block --- */

template <class C>
MMA_DEVICE void attention_run(const CUtensorMap *q, const CUtensorMap *k, const CUtensorMap *v,
                              const attention80_arg &a)
{
    extern __shared__ __align__(1024) uint8_t pool[];
    __shared__ control<C> bars;
    const int warp = threadIdx.x / WARP_LANES;
    tile_view<C> t = {a, RULES_DATA(a), {}, {}, &bars, mma_shared(pool)};
    if (!own_open<C>(a.tiles, a.group, a.rules.per_head, C::ROWS, &t.own))
        return;
    rules_member_of(&a.rules, &t.data, t.own.b, &t.member);
    if (warp == ISSUER)
        tensor_memory_take(mma_shared(&bars.memory), TAKEN);
    if (threadIdx.x == 0) {
        mbar_init(mma_shared(&bars.q_full), 1);
        for (int i = 0; i < C::BUFFERS; i++) {
            mbar_init(mma_shared(&bars.k_full[i]), 1);
            mbar_init(mma_shared(&bars.k_empty[i]), 1);
            mbar_init(mma_shared(&bars.v_full[i]), 1);
            mbar_init(mma_shared(&bars.v_empty[i]), 1);
        }
        mbar_init(mma_shared(&bars.cut), 1);
        mbar_init(mma_shared(&bars.scores), 1);
        mbar_init(mma_shared(&bars.shares), ROW_WARPS * WARP_LANES);
        mbar_init(mma_shared(&bars.sums), 1);
        mbar_init_fence();
    }
    tensor_fence_before();
    __syncthreads();
    tensor_fence_after();

    if (warp == LOADER)
        load_tile<C>(q, k, v, t);
    else if (warp < ROW_WARPS)
        make_shares<C>(t);
    else if (threadIdx.x % WARP_LANES == 0)
        multiply<C>(t);
    __syncwarp();
    tensor_fence_before();
    __syncthreads();
    if (warp == ISSUER)
        tensor_memory_give(bars.memory, TAKEN);
}

#define TYPE_f16  __half
#define TYPE_bf16 __nv_bfloat16
#define ATTENTION_KERNEL(type, rows, d, buffers)                                                   \
    extern "C" __global__ void __launch_bounds__(ATTENTION_WARPS *WARP_LANES, 2)                   \
        sm100a_attention_##rows##_##d##_##type(                                                    \
            const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,          \
            const __grid_constant__ CUtensorMap v, const __grid_constant__ attention80_arg a)      \
    {                                                                                              \
        attention_run<form<TYPE_##type, rows, d, buffers>>(&q, &k, &v, a);                         \
    }
ATTENTION100_KERNELS(ATTENTION_KERNEL)
