/* The gradient of attention for queries by wgmma. docs/cuda.md has a picture of the data flow.
 *
 * Roles and lists are those of attention.cu. A tile's dO, which comes through the ring, and half of
 * its queries stay in registers for all steps; O, which comes so too, is multiplied with dO at once. A step's products S = Q K^T and dP = dO V^T are
 * issued together with dQ += dS K of the step before; its keys stay in their slot until that
 * product. */
#include <backends/cuda/row_bound.h>
#include <backends/cuda/sm90a/attention_tile.h>

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
        __syncwarp();
        base::at.next();
    }

    __device__ void fetch_step(const tile_walk &w, const unit<F::BANDS> (&units)[F::UNITS],
                               int flags)
    {
        if (flags & FIRST) {
            for (int part = 0; part < F::READERS; part++) {
                fetch_rows(map.dout, w, part);
                fetch_rows(map.o, w, part);
            }
            /* Before keys: their slot may still be that of the tile before. */
            base::fetch_queries(map.q, w);
        }
        const source<F> now = base::describe_step(w, units, flags);
        base::fetch_cut(map.k, now);
        base::wait_empty();
        if (base::leads())
            base::copy(map.v, now, base::m.full(base::ring, base::at.slot));
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

template <class F> __device__ __forceinline__ float2 two_numbers(uint32_t both)
{
    if constexpr (F::TYPE == WGMMA_BF16)
        return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000));
    else
        return __half22float2(*(const __half2 *)&both);
}

/* The sums of O dO of a lane's rows; O is where load_rows finds it. */
template <class F>
__device__ __forceinline__ void multiply_out(float (&sum)[2],
                                             const uint32_t (&dout)[F::PANELS * 16], uint32_t o)
{
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int panel = 0; panel < F::PANELS; panel++) {
        uint32_t part[16];
        load_rows<1>(part, o + panel * TILE_BYTES);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const float2 x = two_numbers<F>(part[i]), y = two_numbers<F>(dout[16 * panel + i]);
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
                                              const float (&sum)[2], int64_t line)
{
    row_sums r;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        r.bound[h] = row_bound(lse[h]);
        r.delta[h] = lse[h] == -INFINITY ? 0 : a.slope * sum[h];
        if (threadIdx.x % 4 == 0) {
            a.bound[line + 8 * h] = r.bound[h];
            a.delta[line + 8 * h] = r.delta[h];
        }
    }
    return r;
}

/* Products become dS in the place of dp. */
template <class F>
__device__ __forceinline__ void slope(float (&dp)[F::SCORES], const float (&s)[F::SCORES],
                                      const row_sums &r, const attention_dq_arg &a, memory<F> m,
                                      const place &here, uint32_t step, bool partial, uint32_t tile)
{
#pragma unroll
    for (int i = 0; i < F::SCORES; i++) {
        const int h = i / 2 % 2;
        const float p = power_of_two(fmaf(s[i], a.all.scale, -r.bound[h]));
        dp[i] = p * fmaf(dp[i], a.slope, -r.delta[h]);
    }
    if (partial)
        for_hidden<F>(a.all, step, tile, row_of(here), [&](int i) { dp[i] = 0; });
}

/* The rows of a warp that are marked, again: dQ element by element. */
template <class F>
__device__ __forceinline__ void repeat_rows(const attention_dq_arg &a, const row_sums &r,
                                            uint32_t tile, int first, int h, uint32_t rows)
{
    const attention_arg &all = a.all;
    for (; rows; rows &= rows - 1) {
        const int lane = __ffs(rows) - 1;
        const int time = __shfl_sync(~0u, first + 8 * h, lane);
        const float bound = __shfl_sync(~0u, r.bound[h], lane);
        const float delta = __shfl_sync(~0u, r.delta[h], lane);
        const int head = shared_load_4(tile + 4 * HEAD_WORD) % all.heads;
        repeat_row<F>(all, tile, time, all.k, a.alpha, a.beta, [&](int member, int kv, int key) {
            const float s = dot<F>(all.q, line_at(all.q, member, head, time), all.k,
                                   line_at(all.k, member, kv, key));
            const float dp = dot<F>(a.dout, line_at(a.dout, member, head, time), all.v,
                                    line_at(all.v, member, kv, key));
            return power_of_two(fmaf(s, all.scale, -bound)) * fmaf(dp, a.slope, -delta);
        });
    }
}

/* dQ of a tile: rows that see nothing, and padding, have none. */
template <class F>
__device__ __forceinline__ void store_tile(const float (&dq)[F::WIDTH / 2], const row_sums &r,
                                           const attention_dq_arg &a, uint32_t tile, int row)
{
    const attention_out &out = a.all.o;
    const int head = shared_load_4(tile + 4 * HEAD_WORD);
    const int first = time_of<F>(tile, row);
    const int64_t base = head / a.all.heads * out.batch + head % a.all.heads * out.head;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int time = first + 8 * h;
        const bool none = r.bound[h] == INFINITY, live = time < a.all.q_time;
        const uint32_t again = F::BANDS > 1 ? rows_to_repeat<F>(dq, h, live && !none) : 0;
        const bool mine = again >> threadIdx.x % LANES / 4 * 4 & 1;
        store_row<F>(dq, out, base + time * out.time, h, a.alpha, a.beta, none, live && !mine);
        if constexpr (F::BANDS > 1)
            repeat_rows<F>(a, r, tile, first, h, again);
    }
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
        signal(m.empty(ring, slot));
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
                signal(m.q_empty(here.ring, buffer));
        };
        const auto load_flags = [&](int slot) {
            return (int)__shfl_sync(~0u, shared_load_4(m.step(here.ring, slot)), 0);
        };

        mbar_wait(m.q_full(here.ring, buffer), parity_of<F>(n));
        load_rows<HELD>(q, queries);
        const int head = shared_load_4(tile + 4 * HEAD_WORD);
        const int there = shared_load_4(tile + 4 * QUERIES_WORD);
        const int time = time_of<F>(tile, row_of(here));
#pragma unroll
        for (int h = 0; h < 2; h++)
            lse[h] = time + 8 * h < there
                         ? __ldg(a.all.lse + (int64_t)head * a.all.q_time + time + 8 * h)
                         : -INFINITY;
        int left = 0, right = 0; /* the slots of dO and O */
#pragma unroll
        for (int part = 0; part < F::READERS; part++) {
            const int x = r.next(), y = r.next();
            if (part == here.part) {
                left = x;
                right = y;
                load_rows<F::PANELS>(dout, m.slot(here.ring, left));
                multiply_out<F>(sum, dout, m.slot(here.ring, right));
            } else {
                r.release(x);
                r.release(y);
            }
        }
        const row_sums rows = make_sums(a, lse, sum, (int64_t)head * a.pad + time);
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
        slope<F>(dp, s, rows, a, m, here, m.step(here.ring, keys), flags & PARTIAL, tile);
        round_scores<F>(ds, dp);
        int next = flags & LAST ? keys : r.next();
        while (!(flags & LAST)) {
            const int before = keys;
            keys = next;
            flags = load_flags(keys);
            wgmma_fence();
            multiply_rows<F, HELD>(s, q, queries, m.slot(here.ring, keys));
            values = r.next();
            multiply_rows<F, F::PANELS>(dp, dout, 0, m.slot(here.ring, values));
            multiply_lines<F>(dq, ds, m.slot(here.ring, before));
            wgmma_wait<1>();
            wgmma_settle(s);
            wgmma_settle(dp);
            r.release(values);
            leave_queries();
            slope<F>(dp, s, rows, a, m, here, m.step(here.ring, keys), flags & PARTIAL, tile);
            /* A branch here: the compiler would move the wait up, before most of the slopes. */
            next = flags & LAST ? keys : r.next();
            wgmma_wait<0>();
            wgmma_settle(dq);
            r.release(before);
            round_scores<F>(ds, dp);
        }
        wgmma_fence();
        multiply_lines<F>(dq, ds, m.slot(here.ring, keys));
        wgmma_wait<0>();
        wgmma_settle(dq);
        r.release(keys);
        store_tile<F>(dq, rows, a, tile, row_of(here));
    }
}

template <class F>
__device__ __forceinline__ void attend(const maps &map, const attention_dq_arg &a)
{
    grid_wait();
    grid_allow_next();
    run_block<F>(
        a.all,
        [&](memory<F> m, int ring, int begin, int end) {
            dq_producer<F> p = {{a.all, m, ring, {0, 0}, 0, 0}, map};
            produce<F>(p, a.all, begin, end);
        },
        [&](memory<F> m, const place &here, int tiles) { consume<F>(a, m, here, tiles); });
}

#define ATTENTION_KERNEL(name, type, ...)                                                          \
    extern "C" __global__ void __launch_bounds__(                                                  \
        (ATTENTION_THREADS((form<type, __VA_ARGS__>::GROUPS))), 1)                                 \
        name(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap dout,      \
             const __grid_constant__ CUtensorMap o, const __grid_constant__ CUtensorMap k,         \
             const __grid_constant__ CUtensorMap v, const __grid_constant__ attention_dq_arg a)    \
    {                                                                                              \
        attend<form<type, __VA_ARGS__>>({&q, &dout, &o, &k, &v}, a);                               \
    }
#define ATTENTION_KERNELS(suffix, ...)                                                             \
    ATTENTION_KERNEL(cuda_attention_dq_bf16_##suffix, WGMMA_BF16, __VA_ARGS__)                     \
    ATTENTION_KERNEL(cuda_attention_dq_f16_##suffix, WGMMA_F16, __VA_ARGS__)
ATTENTION_DQ_FORMS(ATTENTION_KERNELS)
