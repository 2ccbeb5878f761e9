/* The gradient of attention for queries by wgmma. docs/cuda.md has a picture of the data flow.
 *
 * Roles and lists are those of attention.cu. A tile's dO, which comes through the ring, and half of
 * its queries stay in registers for all steps; O, which comes so too, is multiplied with dO at once. A step's products S = Q K^T and dP = dO V^T are
 * issued together with dQ += dS K of the step before; its keys stay in their slot until that
 * product. */
#include <backends/cuda/row_bound.h>
#include <backends/cuda/sm90a/attention_store.h>

struct maps {
    const CUtensorMap *q, *dout, *o, *k, *v;
};

/* --- Producers --- */

template <class F> struct dq_producer : ring_producer<F> {
    typedef ring_producer<F> base;
    maps map;

    /* The rows of one warpgroup, in a slot of their own. */
    __device__ void fetch_rows(const CUtensorMap *from, const tile_walk &w, int part)
    {
        const uint32_t to = base::m.slot(base::ring, base::at.slot);
        const uint32_t bar = base::m.full(base::ring, base::at.slot);
        base::wait_empty();
        if (base::leads()) {
            mbar_expect(bar, F::Q_BYTES);
            base::copy_rows(from, w, part, to, bar);
        }
        base::signal_told();
        __syncwarp();
        base::at.next();
    }

    /* A team's rows of O: in two slots, which lie together. */
    __device__ void fetch_out(const tile_walk &w)
    {
        cursor<F::SLOTS> next = base::at;
        next.next();
        const uint32_t bar = base::m.full(base::ring, base::at.slot);
        base::wait_empty();
        mbar_wait(base::m.empty(base::ring, next.slot), next.parity ^ 1);
        if (base::leads()) {
            mbar_expect(bar, F::Q_BYTES);
            base::copy_rows(map.o, w, 0, base::m.slot(base::ring, base::at.slot), bar);
            mbar_arrive(base::m.full(base::ring, next.slot));
        }
        base::signal_told();
        base::at.next();
        base::signal_told();
        base::at.next();
        __syncwarp();
    }

    __device__ void fetch_step(const tile_walk &w, const unit<F::BANDS> (&units)[F::TOLD],
                               int flags)
    {
        if (flags & FIRST) {
            tile_walk all = w;
            all.tile = all_rows<F::BANDS>(w.tile);
            if constexpr (F::TEAM > 1)
                fetch_out(all);
            for (int part = 0; F::TEAM == 1 && part < F::READERS; part++) {
                fetch_rows(map.dout, all, part);
                fetch_rows(map.o, all, part);
            }
            /* Before keys: their slot may still be that of the tile before. */
            base::fetch_queries(map.q, w, map.dout);
        }
        const source<F> now = base::describe_step(w, units, flags);
        base::fetch_cut(map.k, now);
        base::wait_empty();
        if (base::leads())
            base::copy(map.v, now, base::m.full(base::ring, base::at.slot));
        base::signal_told();
        __syncwarp();
        base::at.next();
    }

    __device__ void finish()
    {
    }
};

/* --- Consumers --- */

/* Panels of queries that registers hold; the others stay in shared memory. */
template <class F> __device__ constexpr int held()
{
    return F::GROUPS == 2 ? 1 : 0;
}

/* Of a lane's two rows, 8 apart. */
struct row_sums {
    float bound[2], delta[2];
};

/* The sums of O dO of a lane's rows; O is where load_rows finds it, and so is dO of a team. */
template <class F>
__device__ __forceinline__ void multiply_out(float (&sum)[2], const uint32_t *dout, uint32_t lines,
                                             uint32_t o)
{
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int panel = 0; panel < F::PANELS; panel++) {
        uint32_t part[16], other[16];
        load_rows<1>(part, o + panel * TILE_BYTES);
        if (F::TEAM > 1)
            load_rows<1>(other, lines + panel * TILE_BYTES);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const float2 x = numbers_of<typename F::T>(part[i]);
            const float2 y =
                numbers_of<typename F::T>(F::TEAM > 1 ? other[i] : dout[16 * panel + i]);
            sum[i % 2] = fmaf(x.x, y.x, fmaf(x.y, y.y, sum[i % 2]));
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
        sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
    }
}

/* Bounds and deltas, which the other pass needs too. lse: of the lane's rows. */
__device__ __forceinline__ row_sums make_sums(const attention_dq_arg &a, const float (&lse)[2],
                                              const float (&sum)[2], const int64_t (&line)[2])
{
    row_sums r;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        r.bound[h] = row_bound(lse[h]);
        r.delta[h] = lse[h] == -INFINITY ? 0 : a.slope * sum[h];
        if (threadIdx.x % 4 == 0) {
            a.bound[line[h]] = r.bound[h];
            a.delta[line[h]] = r.delta[h];
        }
    }
    return r;
}

/* Scores first .. first + count - 1 of rows h, whose bounds are given, become dS in the place of
 * dp. */
template <class F>
__device__ __forceinline__ void slope_range(float (&dp)[F::SCORES], const float (&s)[F::SCORES],
                                            int first, int count, const float (&bound)[2],
                                            const row_sums &r, const attention_dq_arg &a)
{
#pragma unroll
    for (int i = first; i < first + count; i++) {
        const int h = i / 2 % 2;
        const float p = power_of_two(fmaf(s[i], a.all.scale, -bound[h]));
        dp[i] = p * fmaf(dp[i], a.slope, -r.delta[h]);
    }
}

/* The same of a step of many bands, most of which have few of its units. */
template <class F>
__device__ __forceinline__ void slope_bands(float (&dp)[F::SCORES], const float (&s)[F::SCORES],
                                            const row_sums &r, const attention_dq_arg &a,
                                            uint32_t step, uint32_t tile, int row)
{
    constexpr int N = F::SIDE / 2;
    sight<F> sees;
    sees.load(step, row);
    if (sees.is_plain()) {
#pragma unroll
        for (int unit = 0; unit < F::UNITS; unit++) {
            const bool none[2] = {sees.is_nothing(unit, 0), sees.is_nothing(unit, 1)};
            if (F::BAND_ROWS >= 16 && none[0]) {
#pragma unroll
                for (int i = unit * N; i < (unit + 1) * N; i++)
                    dp[i] = 0;
                continue;
            }
            const float bound[2] = {none[0] ? INFINITY : r.bound[0],
                                    none[1] ? INFINITY : r.bound[1]};
            slope_range<F>(dp, s, unit * N, N, bound, r, a);
        }
        return;
    }
    uint64_t seen[F::BIT_WORDS][2];
    sees.of_rows(seen, a.all, tile, row);
    slope_range<F>(dp, s, 0, F::SCORES, r.bound, r, a);
#pragma unroll
    for (int i = 0; i < F::SCORES; i++)
        dp[i] = is_seen<F>(seen, i) ? dp[i] : 0;
}

/* Products become dS in the place of dp. */
template <class F>
__device__ __forceinline__ void slope(float (&dp)[F::SCORES], const float (&s)[F::SCORES],
                                      const row_sums &r, const attention_dq_arg &a,
                                      const place &here, uint32_t step, bool partial, uint32_t tile)
{
    if constexpr (F::MANY) {
        slope_bands<F>(dp, s, r, a, step, tile, row_of(here));
    } else {
        slope_range<F>(dp, s, 0, F::SCORES, r.bound, r, a);
        if (partial)
            for_hidden<F>(a.all, step, tile, row_of(here), [&](int i) { dp[i] = 0; });
    }
}

/* The rows of a warp that are marked, again: dQ element by element. own: a lane's. */
template <class F>
__device__ __forceinline__ void repeat_rows(const attention_dq_arg &a, uint32_t tile, int own,
                                            float own_bound, float own_delta, uint32_t rows,
                                            int first)
{
    const attention_arg &all = a.all;
    for (; rows; rows &= rows - 1) {
        const int lane = __ffs(rows) - 1;
        const int time = __shfl_sync(~0u, own, lane);
        const float bound = __shfl_sync(~0u, own_bound, lane);
        const float delta = __shfl_sync(~0u, own_delta, lane);
        const int head = shared_load_4(tile + 4 * HEAD_WORD) % all.heads;
        const auto weight = [&](int member, int kv, int run, int key) {
            const float s = dot<F>(all.q, line_at(all.q, member, head, run, time), all.k,
                                   line_at(all.k, member, kv, run, key));
            const float dp = dot<F>(a.dout, line_at(a.dout, member, head, run, time), all.v,
                                    line_at(all.v, member, kv, run, key));
            return power_of_two(fmaf(s, all.scale, -bound)) * fmaf(dp, a.slope, -delta);
        };
        repeat_row<F>(all, tile, time, all.k, a.alpha, a.beta, weight, first);
    }
}

/* dQ of a tile, from a feature on: rows that see nothing, and padding, have none. */
template <class F>
__device__ __forceinline__ void store_tile(const float (&dq)[F::WIDTH / 2], const row_sums &r,
                                           const attention_dq_arg &a, uint32_t tile, int row,
                                           int first)
{
    attention_out out = a.all.o;
    out.width = min(out.width - first, (int)F::WIDTH);
    const int64_t base = base_of(tile) + first;
    uint32_t again[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int time = time_of<F>(tile, row + 8 * h);
        const bool none = r.bound[h] == INFINITY, live = time < a.all.q_time;
        again[h] = F::BANDS > 1 ? rows_to_repeat<F>(dq, h, live && !none) : 0;
        const bool mine = again[h] >> threadIdx.x % LANES / 4 * 4 & 1;
        store_row<F, (F::BANDS > 1)>(dq, out, base + time * out.time, h, a.alpha, a.beta, none,
                                     live && !mine);
    }
    if constexpr (F::BANDS > 1)
#pragma unroll 1
        for (int h = 0; h < 2; h++)
            repeat_rows<F>(a, tile, time_of<F>(tile, row + 8 * h), h ? r.bound[1] : r.bound[0],
                           h ? r.delta[1] : r.delta[0], h ? again[1] : again[0], first);
}

/* One ring's slots as a warpgroup sees them. */
template <class F> struct reader {
    memory<F> m;
    int ring;
    cursor<F::SLOTS> at;

    /* The next slot, when its data have come. */
    __device__ int next()
    {
        const int slot = at.slot;
        /* Behind a branch: the compiler would serialize the products around a bare loop. */
        if (!mbar_try_wait(m.full(ring, slot), at.parity))
            mbar_wait(m.full(ring, slot), at.parity);
        at.next();
        return slot;
    }
    __device__ void release(int slot) const
    {
        mbar_arrive(m.empty(ring, slot));
    }
};

template <class F>
__device__ __forceinline__ void consume(const attention_dq_arg &a, memory<F> m, const place &here,
                                        int tiles)
{
    constexpr int HELD = held<F>();
    reader<F> r = {m, here.ring, {0, 0}};
    float dq[F::WIDTH / 2], s[F::SCORES], dp[F::SCORES];
    uint32_t q[HELD > 0 ? HELD * 16 : 1], dout[F::PANELS * 16], ds[F::SCORES / 2];
    for (int n = 0; n < tiles; n++) {
        const uint32_t tile = m.tile(here.ring, n);
        const int buffer = buffer_of<F>(n);
        const uint32_t queries = m.queries(here.ring, buffer, here.part);
        int flags;
        float lse[2], sum[2];
        const auto leave_queries = [&]() {
            if (flags & LAST)
                mbar_arrive(m.q_empty(here.ring, buffer));
        };
        const auto load_flags = [&](int slot) {
            return (int)__shfl_sync(~0u, shared_load_4(m.step(here.ring, slot)), 0);
        };

        mbar_wait(m.q_full(here.ring, buffer), parity_of<F>(n));
        load_rows<HELD>(q, queries);
        const int head = shared_load_4(tile + 4 * HEAD_WORD);
        const int there = shared_load_4(tile + 4 * QUERIES_WORD);
        const int run = shared_load_4(tile + 4 * RUN_WORD);
        int64_t line[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int time = time_of<F>(tile, row_of(here) + 8 * h);
            line[h] = (int64_t)head * a.pad + run * a.all.q_time + time;
            lse[h] = time < there
                         ? a.all.lse[((int64_t)head * a.all.q_time + time) * a.all.runs + run]
                         : -INFINITY;
        }
        int left = 0, right = 0; /* the slots of dO and O */
#pragma unroll
        for (int part = 0; part < F::READERS; part++) {
            const int x = r.next(), y = r.next();
            if (part == here.part) {
                left = x;
                right = y;
                load_rows<F::PANELS>(dout, m.slot(here.ring, left));
                multiply_out<F>(sum, dout, 0, m.slot(here.ring, right));
            } else {
                r.release(x);
                r.release(y);
            }
        }
        const row_sums rows = make_sums(a, lse, sum, line);
        /* Not before sums are stored, which need all of what was loaded: a signal may overtake loads
         * that wait for shared memory, which products of the other warpgroups keep busy. */
        r.release(left);
        r.release(right);
#pragma unroll
        for (int i = 0; i < F::WIDTH / 2; i++)
            dq[i] = 0;

        int keys = r.next();
        flags = load_flags(keys);
        wgmma_fence();
        multiply_rows<F, HELD>(s, q, queries, m.slot(here.ring, keys));
        int values = r.next();
        multiply_rows<F, F::PANELS>(dp, dout, 0, m.slot(here.ring, values));
        wgmma_wait<0>();
        wgmma_settle(s);
        wgmma_settle(dp);
        r.release(values);
        leave_queries();
        slope<F>(dp, s, rows, a, here, m.step(here.ring, keys), flags & PARTIAL, tile);
        round_scores<F>(ds, dp);
        int next = keys, next_flags = 0;
        const auto look_ahead = [&]() {
            next = r.next();
            next_flags = load_flags(next);
        };
        if (!(flags & LAST))
            look_ahead();
        /* A step, with the sums of the one before. */
        const auto take_step = [&](auto rare) {
            constexpr bool RARELY = decltype(rare)::value;
            const int before = keys;
            keys = next;
            flags = next_flags;
            wgmma_fence();
            multiply_rows<F, HELD>(s, q, queries, m.slot(here.ring, keys));
            values = r.next();
            multiply_rows<F, F::PANELS>(dp, dout, 0, m.slot(here.ring, values));
            multiply_lines<F>(dq, ds, m.slot(here.ring, before));
            wgmma_wait<1>();
            wgmma_settle(s);
            wgmma_settle(dp);
            r.release(values);
            if (RARELY)
                leave_queries();
            slope<F>(dp, s, rows, a, here, m.step(here.ring, keys), RARELY && flags & PARTIAL,
                     tile);
            /* A branch here: the compiler would move the wait up, before most of the slopes. */
            if (!RARELY || !(flags & LAST))
                look_ahead();
            wgmma_wait<0>();
            wgmma_settle(dq);
            r.release(before);
            round_scores<F>(ds, dp);
        };
        while (!(flags & LAST)) {
            /* See attention_dkv.cu. */
            if constexpr (F::BANDS == 1 && F::WIDTH <= 64)
                while (!(next_flags & (LAST | PARTIAL)))
                    take_step(std::false_type());
            take_step(std::true_type());
        }
        wgmma_fence();
        multiply_lines<F>(dq, ds, m.slot(here.ring, keys));
        wgmma_wait<0>();
        wgmma_settle(dq);
        r.release(keys);
        store_tile<F>(dq, rows, a, tile, row_of(here), 0);
    }
}

/* --- Consumers of wide heads ---
 *
 * Results take half of a warpgroup's registers, Q and dO of 64 rows a quarter of shared memory. So
 * two warpgroups have the same rows, and steps in turn; at the end of a tile each tells the other
 * what it has of the other's half of the features. */

template <class F> struct half_of : F {
    static constexpr int WIDTH = F::WIDTH / 2;
};

/* The sum of both warpgroups, of one half of the features. to: room for the halves that are told. */
template <class F>
__device__ __forceinline__ void join_halves(float (&sum)[F::WIDTH / 4],
                                            const float (&dq)[F::WIDTH / 2], int part, uint32_t to)
{
    constexpr int N = F::WIDTH / 4, THREADS = GROUP_WARPS * LANES;
    const int thread = threadIdx.x % THREADS;
    const auto place = [&](int half, int i) {
        return to + half * F::Q_BYTES + (i * THREADS + thread) * 16;
    };
    const auto told = [&](int i) { return __float_as_uint(part ? dq[i] : dq[N + i]); };
    /* Behind the products of both, which read what lies there. */
    named_barrier(1, F::TEAM * THREADS);
#pragma unroll
    for (int i = 0; i < N; i += 4)
        shared_store_16(place(1 - part, i / 4), told(i), told(i + 1), told(i + 2), told(i + 3));
    named_barrier(1, F::TEAM * THREADS);
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const uint4 v = shared_load_16(place(part, i / 4));
        const uint32_t other[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; j++)
            sum[i + j] = (part ? dq[N + i + j] : dq[i + j]) + __uint_as_float(other[j]);
    }
}

template <class F>
__device__ __forceinline__ void consume_team(const attention_dq_arg &a, memory<F> m,
                                             const place &here, int tiles)
{
    const place own = {here.ring, 0};
    reader<F> r = {m, here.ring, {0, 0}};
    const uint32_t queries = m.queries(here.ring, 0, 0), dout = queries + F::Q_BYTES;
    int steps = 0;
    float dq[F::WIDTH / 2], s[F::SCORES], dp[F::SCORES];
    uint32_t ds[F::SCORES / 2];
    for (int n = 0; n < tiles; n++) {
        const uint32_t tile = m.tile(here.ring, n);
        float lse[2], sum[2];
        int64_t line[2];
        mbar_wait(m.q_full(here.ring, 0), n & 1);
        const int head = shared_load_4(tile + 4 * HEAD_WORD);
        const int there = shared_load_4(tile + 4 * QUERIES_WORD);
        const int run = shared_load_4(tile + 4 * RUN_WORD);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int time = time_of<F>(tile, row_of(own) + 8 * h);
            line[h] = (int64_t)head * a.pad + run * a.all.q_time + time;
            lse[h] = time < there
                         ? a.all.lse[((int64_t)head * a.all.q_time + time) * a.all.runs + run]
                         : -INFINITY;
        }
        const int left = r.next(), right = r.next();
        multiply_out<F>(sum, nullptr, dout, m.slot(here.ring, left));
        const row_sums rows = make_sums(a, lse, sum, line); /* the same in both */
        r.release(left);
        r.release(right);
#pragma unroll
        for (int i = 0; i < F::WIDTH / 2; i++)
            dq[i] = 0;
        int before = NONE, flags;
        do {
            const int keys = r.next();
            flags = __shfl_sync(~0u, shared_load_4(m.step(here.ring, keys)), 0);
            if (steps++ % F::TEAM != here.part) {
                r.release(keys);
                r.release(r.next());
                continue;
            }
            const int values = r.next();
            wgmma_fence();
            multiply_rows<F, 0>(s, ds, queries, m.slot(here.ring, keys));
            multiply_rows<F, 0>(dp, ds, dout, m.slot(here.ring, values));
            wgmma_wait<0>();
            wgmma_settle(dq);
            wgmma_settle(s);
            wgmma_settle(dp);
            r.release(values);
            if (before != NONE)
                r.release(before);
            slope<F>(dp, s, rows, a, own, m.step(here.ring, keys), flags & PARTIAL, tile);
            round_scores<F>(ds, dp);
            wgmma_fence();
            multiply_lines<F>(dq, ds, m.slot(here.ring, keys));
            before = keys;
        } while (!(flags & LAST));
        wgmma_wait<0>();
        wgmma_settle(dq);
        if (before != NONE)
            r.release(before);
        float half[F::WIDTH / 4];
        join_halves<F>(half, dq, here.part, queries);
        store_tile<half_of<F>>(half, rows, a, tile, row_of(own), here.part * F::WIDTH / 2);
        async_fence();
        mbar_arrive(m.q_empty(here.ring, 0));
    }
}

template <class F>
__device__ __forceinline__ void attend(const maps &map, const attention_dq_arg &a)
{
    run_block<F, LANES>(
        a.all,
        [&](memory<F> m, int ring, int begin, int end) {
            dq_producer<F> p = {{a.all, m, ring, {0, 0}, 0, 0}, map};
            produce<F>(p, a.all, begin, end);
        },
        [&](memory<F> m, const place &here, int tiles) {
            if constexpr (F::TEAM > 1)
                consume_team<F>(a, m, here, tiles);
            else
                consume<F>(a, m, here, tiles);
        });
}

template <int TYPE, int STEP, int WIDTH, int... REST>
using dq_form = form<TYPE, STEP, WIDTH, REST..., ATTENTION_DQ_TEAM(WIDTH)>;

#define ATTENTION_KERNEL(name, type, suffix, ...)                                                  \
    extern "C" __global__ void __launch_bounds__(                                                  \
        (ATTENTION_THREADS((dq_form<type, __VA_ARGS__>::GROUPS))), 1)                              \
        cuda_attention_dq_##name##_##suffix(                                                       \
            const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap dout,       \
            const __grid_constant__ CUtensorMap o, const __grid_constant__ CUtensorMap k,          \
            const __grid_constant__ CUtensorMap v, const __grid_constant__ attention_dq_arg a)     \
    {                                                                                              \
        attend<dq_form<type, __VA_ARGS__>>({&q, &dout, &o, &k, &v}, a);                            \
    }
#define ATTENTION_KERNELS(...) FOR_HALVES_WGMMA(ATTENTION_KERNEL, __VA_ARGS__)
ATTENTION_DQ_FORMS(ATTENTION_KERNELS)
