/* Fused attention by wgmma. docs/cuda.md has a picture of the data flow.
 *
 * One thread block a multiprocessor. Its consumers are warpgroups with 64 rows of queries each; one
 * more warpgroup has a producing warp for each ring of keys and values, which walks over the ring's
 * tiles, finds out which units of their lists are visible, joins them to steps, and tells consumers
 * with each step's keys what it is. So a consumer meets one stream of steps: a tile's first product
 * of scores is issued together with the last product of values of the tile before. */
#include <backends/cuda/sm90a/attention_store.h>

struct maps {
    const CUtensorMap *q, *k, *v;
};

/* --- Producers --- */

template <class F> struct producer : ring_producer<F> {
    typedef ring_producer<F> base;
    maps map;
    source<F> last; /* the step whose values are still to be fetched */

    /* The keys of a step, the values of the one before and a new tile's queries: in the order in
     * which they are needed. */
    __device__ void fetch_step(const tile_walk &w, const unit<F::BANDS> (&units)[F::TOLD],
                               int flags)
    {
        const source<F> now = base::describe_step(w, units, flags);
        if (base::leads())
            base::copy(map.k, now, base::m.full(base::ring, base::at.slot));
        base::signal_told();
        __syncwarp();
        base::at.next();
        if (last.member != NONE)
            base::fetch_cut(map.v, last);
        if (flags & FIRST)
            base::fetch_queries(map.q, w);
        last = now;
    }

    __device__ void finish()
    {
        base::wait_empty();
        if (base::leads()) {
            shared_store_4(base::m.step(base::ring, base::at.slot), END);
            mbar_arrive(base::m.full(base::ring, base::at.slot));
        }
        base::signal_told();
        __syncwarp();
        base::at.next();
        base::fetch_cut(map.v, last);
    }
};

/* --- Consumers --- */

/* Of a lane's two rows, 8 apart: the reference of their shares, in powers of two, and the lane's
 * part of their sums. */
struct row_state {
    float most[2], sum[2];
};

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

/* A tile's queries: in registers, or in shared memory. */
template <class F> struct queries {
    static constexpr int HELD = F::HOLDS ? F::PANELS : 0;
    uint32_t at;
    uint32_t held[HELD > 0 ? HELD * 16 : 1];
};

/* Scores and their shares; where steps are long, shares take the place of scores. */
template <class F> struct score_set {
    float score[F::SCORES], apart[F::SHORT ? F::SCORES : 1];

    __device__ float (&shares())[F::SCORES]
    {
        if constexpr (F::SHORT)
            return apart;
        else
            return score;
    }
};

/* The warp's 16 rows of 16 queries' features as left operand, from memory. row: the lane's first in
 * the tile. */
template <class F>
__device__ __forceinline__ void reload_rows(uint32_t (&x)[4], const attention_arg &a, uint32_t tile,
                                            int row, int features)
{
    const int head = shared_load_4(tile + 4 * HEAD_WORD), run = shared_load_4(tile + 4 * RUN_WORD);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int time = time_of<F>(tile, row + i % 2 * 8);
        const int feature = features + i / 2 * 8 + threadIdx.x % 4 * 2;
        const int64_t at = line_at(a.q, head / a.heads, head % a.heads, run, time) + feature;
        x[i] = time < a.q_time && feature < a.q.width
                   ? *(const uint32_t *)((const uint16_t *)a.q.data + at)
                   : 0;
    }
}

/* The scores of a warp once more, where the shares have taken their place: by the warp alone. Its
 * queries may have left shared memory. */
template <class F>
__device__ __forceinline__ void multiply_again(float (&s)[F::SCORES], const attention_arg &a,
                                               uint32_t tile, int row, uint32_t k)
{
    const int lane = threadIdx.x % LANES, key = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int i = 0; i < F::SCORES; i++)
        s[i] = 0;
#pragma unroll 1
    for (int i = 0; i < F::WIDTH / 16; i++) {
        uint32_t x[4];
        const int k_run = i % 4 * 2 + lane / 8 % 2;
        reload_rows<F>(x, a, tile, row, 16 * i);
#pragma unroll
        for (int j = 0; j < F::STEP / 16; j++) {
            uint32_t y[4];
            ldmatrix_x4(y, k + i / 4 * F::PANEL_BYTES + (j * 16 + key) * ROW_BYTES +
                               (k_run ^ key % 8) * 16);
            mma_m16n8k16<typename F::T>(s + 8 * j, x, y);
            mma_m16n8k16<typename F::T>(s + 8 * j + 4, x, y + 2);
        }
    }
}

/* Shares under the reference that the rows have. True if they became too large for some row of the
 * warp, or are not numbers: then r has not changed. */
template <class F>
__device__ __forceinline__ bool share_fast(float (&p)[F::SCORES], const float (&s)[F::SCORES],
                                           row_state &r, const attention_arg &a,
                                           const sight<F> &sees, int flags, uint32_t tile, int row)
{
    const float limit = 1024;
    float sum[2][2] = {{0, 0}, {0, 0}};
    if (F::BANDS == 1 && !(flags & PARTIAL)) {
#pragma unroll
        for (int i = 0; i < F::SCORES; i++) {
            const int h = i / 2 % 2;
            p[i] = power_of_two(fmaf(s[i], a.scale, -r.most[h]));
            sum[h][i % 2] += p[i];
        }
    } else if (F::BANDS > 1 && sees.is_plain()) {
#pragma unroll
        for (int unit = 0; unit < F::UNITS; unit++) {
            constexpr int N = F::SIDE / 2;
            const bool none[2] = {sees.is_nothing(unit, 0), sees.is_nothing(unit, 1)};
            if (F::BAND_ROWS >= 16 && none[0]) {
#pragma unroll
                for (int i = unit * N; i < (unit + 1) * N; i++)
                    p[i] = 0;
                continue;
            }
#pragma unroll
            for (int i = unit * N; i < (unit + 1) * N; i++) {
                const int h = i / 2 % 2;
                p[i] = power_of_two(fmaf(s[i], a.scale, none[h] ? -INFINITY : -r.most[h]));
                sum[h][i % 2] += p[i];
            }
        }
    } else {
        uint64_t seen[F::BIT_WORDS][2];
        sees.of_rows(seen, a, tile, row);
#pragma unroll
        for (int i = 0; i < F::SCORES; i++) {
            const int h = i / 2 % 2;
            const float x = fmaf(s[i], a.scale, -r.most[h]);
            p[i] = power_of_two(is_seen<F>(seen, i) ? x : -INFINITY);
            sum[h][i % 2] += p[i];
        }
    }
    const float x = sum[0][0] + sum[0][1], y = sum[1][0] + sum[1][1];
    if (__any_sync(~0u, !(x <= limit && y <= limit)))
        return true;
    r.sum[0] += x;
    r.sum[1] += y;
    return false;
}

/* Shares under the largest score so far. factor: what earlier sums are to be multiplied with. */
template <class F>
__device__ __forceinline__ void share_exact(float (&p)[F::SCORES], const float (&s)[F::SCORES],
                                            row_state &r, float (&factor)[2],
                                            const attention_arg &a, const sight<F> &sees, int flags,
                                            uint32_t tile, int row)
{
    if (F::BANDS == 1 ? !(flags & PARTIAL) : sees.is_whole()) {
#pragma unroll
        for (int i = 0; i < F::SCORES; i++)
            p[i] = s[i] * a.scale;
    } else {
        uint64_t seen[F::BIT_WORDS][2];
        sees.of_rows(seen, a, tile, row);
#pragma unroll
        for (int i = 0; i < F::SCORES; i++)
            p[i] = is_seen<F>(seen, i) ? s[i] * a.scale : -INFINITY;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = p[2 * h], sum[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < F::SCORES / 4; j++)
            most = fmaxf(most, fmaxf(p[4 * j + 2 * h], p[4 * j + 2 * h + 1]));
        most = fmaxf(r.most[h], row_max(most));
        const float reference = most == -INFINITY ? 0 : most; /* nothing seen yet */
        factor[h] = power_of_two(r.most[h] - reference);
#pragma unroll
        for (int j = 0; j < F::SCORES / 4; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &x = p[4 * j + 2 * h + e];
                x = power_of_two(x - reference);
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

/* The rows of a warp that are marked, again: O element by element. time, bound: a lane's. */
template <class F>
__device__ __forceinline__ void repeat_rows(const attention_arg &a, uint32_t tile, int time,
                                            float bound, uint32_t rows)
{
    for (; rows; rows &= rows - 1) {
        const int lane = __ffs(rows) - 1, head = shared_load_4(tile + 4 * HEAD_WORD) % a.heads;
        const int row = __shfl_sync(~0u, time, lane);
        const float reference = __shfl_sync(~0u, bound, lane);
        repeat_row<F>(a, tile, row, a.v, 1, 0, [&](int member, int kv, int run, int key) {
            const float s = dot<F>(a.q, line_at(a.q, member, head, run, row), a.k,
                                   line_at(a.k, member, kv, run, key));
            return power_of_two(fmaf(s, a.scale, -reference));
        });
    }
}

/* What a lane's two rows of a tile need besides their sums, which the last product still adds to. */
struct row_end {
    int time[2];
    float factor[2], bound[2];
    bool none[2];
};

/* Rows without visible keys, and padding, have none. Stores the log-sum-exp. */
template <class F>
__device__ __forceinline__ row_end end_rows(const row_state &r, const attention_arg &a,
                                            uint32_t tile, int row)
{
    const int head = shared_load_4(tile + 4 * HEAD_WORD);
    const int queries = shared_load_4(tile + 4 * QUERIES_WORD);
    const int run = shared_load_4(tile + 4 * RUN_WORD);
    row_end end;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int time = time_of<F>(tile, row + 8 * h);
        const float sum = row_sum(r.sum[h]);
        end.time[h] = time;
        /* Scores of NaN leave no maximum either. */
        end.none[h] = time >= queries || (r.most[h] == -INFINITY && sum == 0);
        end.factor[h] = __fdividef(1, sum);
        end.bound[h] = r.most[h] + __log2f(sum);
        if (a.lse && time < a.q_time && threadIdx.x % 4 == 0)
            a.lse[((int64_t)head * a.q_time + time) * a.runs + run] =
                end.none[h] ? -INFINITY : end.bound[h] * 0.693147180559945f;
    }
    return end;
}

/* O of a tile. Rows that have none are zeros. */
template <class F>
__device__ __forceinline__ void store_tile(const float (&o)[F::WIDTH / 2], const row_end &end,
                                           const attention_arg &a, uint32_t tile)
{
    const int64_t base = base_of(tile);
    uint32_t again[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const bool live = end.time[h] < a.q_time;
        again[h] = F::BANDS > 1 ? rows_to_repeat<F>(o, h, live && !end.none[h]) : 0;
        const bool mine = again[h] >> threadIdx.x % LANES / 4 * 4 & 1;
        store_row<F>(o, a.o, base + end.time[h] * a.o.time, h, end.factor[h], 0, end.none[h],
                     live && !mine);
    }
    if constexpr (F::BANDS > 1)
#pragma unroll 1
        for (int h = 0; h < 2; h++)
            repeat_rows<F>(a, tile, h ? end.time[1] : end.time[0], h ? end.bound[1] : end.bound[0],
                           h ? again[1] : again[0]);
}

/* The scores of a step become shares by the reference that the rows have. True: that would not do
 * (lost: as is known), and they became so by another one; earlier sums have to be multiplied with the
 * factors. */
template <class F>
__device__ __forceinline__ bool share(score_set<F> &s, row_state &r, bool &fast, bool lost,
                                      float (&factor)[2], const attention_arg &a,
                                      const sight<F> &sees, int flags, uint32_t tile, int row,
                                      uint32_t k)
{
    if (fast) {
        /* Steps of several bands have been tried. */
        if (F::BANDS == 1 && !lost &&
            !share_fast<F>(s.shares(), s.score, r, a, sees, flags, tile, row))
            return false;
        if constexpr (!F::SHORT)
            multiply_again<F>(s.score, a, tile, row, k);
    }
    share_exact<F>(s.shares(), s.score, r, factor, a, sees, flags, tile, row);
    fast = has_reference(r);
    return true;
}

/* The queries of a ring's tile number n, when they have come. */
template <class F>
__device__ __forceinline__ void meet_queries(queries<F> &q, memory<F> m, const place &here, int n)
{
    const int buffer = buffer_of<F>(n);
    mbar_wait(m.q_full(here.ring, buffer), parity_of<F>(n));
    q.at = m.queries(here.ring, buffer, here.part);
    if constexpr (queries<F>::HELD > 0)
        load_rows<queries<F>::HELD>(q.held, q.at);
}

/* After the last step's product of scores queries are read no more. Those that registers hold are
 * left after the first: a signal may overtake loads that wait for shared memory. */
template <class F>
__device__ __forceinline__ void release_queries(memory<F> m, int ring, int flags, int tile,
                                                bool speaker)
{
    if (flags & (queries<F>::HELD > 0 ? FIRST : LAST))
        signal(m.q_empty(ring, buffer_of<F>(tile)), speaker);
}

template <class F>
__device__ __forceinline__ void consume(const attention_arg &a, memory<F> m, const place &here)
{
    constexpr int RARE = FIRST | END | (F::BANDS == 1 ? PARTIAL : 0);
    const int ring = here.ring, row = row_of(here);
    const bool speaker = lane_number() == 0;
    cursor<F::SLOTS> at = {0, 0};
    int tile = NONE;
    bool begun = false; /* whether o holds sums of the tile */
    bool fast = false;
    float o[F::WIDTH / 2], factor[2];
    uint32_t p[F::SCORES / 2] = {};
    row_state r = {{-INFINITY, -INFINITY}, {0, 0}};
    score_set<F> s;
    queries<F> q;
    sight<F> sees;

    for (;;) {
        int keys, values, flags;
        bool some, lost = false; /* lost: shares by the reference that rows have became too large */
        /* Most steps stay in this loop, whose code lies together: elsewhere it would be scattered among
         * that of the rare ones. */
        for (;;) {
            keys = at.slot;
            mbar_wait(m.full(ring, keys), at.parity);
            at.next();
            flags = sees.meet(m.step(ring, keys), row);
            /* Before the first step there are no values, behind the last no keys: what is
             * multiplied then nobody looks at. */
            some = tile != NONE;
            values = some ? at.slot : keys;
            const uint32_t values_parity = at.parity;
            if (some)
                at.next();
            if (flags & FIRST)
                meet_queries(q, m, here, ++tile);
            wgmma_fence();
            multiply_rows<F, queries<F>::HELD>(s.score, q.held, q.at, m.slot(ring, keys));
            /* Behind a branch: the compiler would serialize the products around a bare loop. */
            if (some && !mbar_try_wait(m.full(ring, values), values_parity))
                mbar_wait(m.full(ring, values), values_parity);
            multiply_lines<F>(o, p, m.slot(ring, values), begun);
            begun = true;
            wgmma_wait<1>();
            wgmma_settle(s.score);
            release_queries<F>(m, ring, flags, tile, speaker);
            if constexpr (F::SHORT)
                signal(m.empty(ring, keys), speaker);
            if (!fast || flags & RARE)
                break;
            lost = share_fast<F>(s.shares(), s.score, r, a, sees, flags & ~RARE, m.tile(ring, tile),
                                 row);
            if (lost)
                break;
            if constexpr (!F::SHORT)
                signal(m.empty(ring, keys), speaker);
            wgmma_wait<0>();
            wgmma_settle(o);
            signal(m.empty(ring, values), speaker);
            round_scores<F>(p, s.shares());
        }
        if (!(flags & (FIRST | END))) {
            const bool scaled = share(s, r, fast, lost, factor, a, sees, flags, m.tile(ring, tile),
                                      row, m.slot(ring, keys));
            if constexpr (!F::SHORT)
                signal(m.empty(ring, keys), speaker);
            wgmma_wait<0>();
            wgmma_settle(o);
            signal(m.empty(ring, values), speaker);
            if (scaled) {
#pragma unroll
                for (int i = 0; i < F::WIDTH / 2; i++)
                    o[i] *= factor[i / 2 % 2];
            }
        } else {
            const bool over = flags & END;
            const uint32_t before = m.tile(ring, over ? tile : tile - 1);
            row_end end;
            if (some)
                end = end_rows<F>(r, a, before, row);
            const auto begin_rows = [&]() {
                r = {{-INFINITY, -INFINITY}, {0, 0}};
                share_exact<F>(s.shares(), s.score, r, factor, a, sees, flags, m.tile(ring, tile),
                               row);
                fast = has_reference(r);
                if constexpr (!F::SHORT)
                    signal(m.empty(ring, keys), speaker);
            };
            if (F::SHARES_FIRST && !over)
                begin_rows();
            wgmma_wait<0>();
            wgmma_settle(o);
            if (some) {
                signal(m.empty(ring, values), speaker);
                store_tile<F>(o, end, a, before);
            }
            if (over)
                return;
            begun = false;
            if constexpr (!F::SHARES_FIRST)
                begin_rows();
        }
        round_scores<F>(p, s.shares());
    }
}

template <class F> __device__ __forceinline__ void attend(const maps &map, const attention_arg &a)
{
    run_block<F, 1>(
        a,
        [&](memory<F> m, int ring, int begin, int end) {
            producer<F> p = {{a, m, ring, {0, 0}, 0, 0}, map};
            p.last.member = NONE;
            produce<F>(p, a, begin, end);
        },
        [&](memory<F> m, const place &here, int) { consume<F>(a, m, here); });
}

#define ATTENTION_KERNEL(name, type, suffix, ...)                                                  \
    extern "C" __global__ void __launch_bounds__(                                                  \
        (ATTENTION_THREADS((form<type, __VA_ARGS__>::GROUPS))), 1)                                 \
        cuda_attention_##name##_##suffix(                                                          \
            const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,          \
            const __grid_constant__ CUtensorMap v, const __grid_constant__ attention_arg a)        \
    {                                                                                              \
        attend<form<type, __VA_ARGS__>>({&q, &k, &v}, a);                                          \
    }
#define ATTENTION_KERNELS(...) FOR_HALVES_WGMMA(ATTENTION_KERNEL, __VA_ARGS__)
ATTENTION_FORMS(ATTENTION_KERNELS)
