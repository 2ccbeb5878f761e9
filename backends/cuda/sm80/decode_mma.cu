/* attention_decode for sm80. A thread block meets 16 rows, queries of heads that share keys and
 * values, with one part of their list. Its warps take turns at C::N keys, each with copies of its
 * own under way, and wait for no other until their sums are added up. */
#include <backends/cuda/sm80/attention_forward.h>
#include <backends/cuda/sm80/decode_arg.h>

/* Entries of a list that are looked up at a time, and keys that they have at most. */
enum { DECODE_ENTRIES = 256, DECODE_SLOTS = 1 << 28 };

/* A block of keys: the first one, the page and the first one's place there; page -1: none. */
struct decode_entry {
    i32 key, page, at;
};

/* The 16 rows of a thread block; -1: there is no such row. */
struct decode_rows {
    i32 head[DECODE_ROWS], time[DECODE_ROWS];
};

/* What a thread block has to do. */
struct decode_task {
    i32 b, kv_head, list, tile, part;
    i32 first, end;    /* keys that some query of the list sees lie between */
    bool alike;        /* all queries see the same ones */
    i32 entry, behind; /* of the list */
    const i32 *index;  /* or NULL: entries are blocks */
};

MMA_DEVICE decode_task decode_task_of(const decode80_arg &a, const rules_data &data,
                                      rules_member *m)
{
    decode_task t;
    i32 rest = (i32)blockIdx.x;
    t.part = rest % a.parts, rest /= a.parts;
    t.tile = rest % a.tiles, rest /= a.tiles;
    t.list = rest % a.lists, rest /= a.lists;
    t.kv_head = rest % a.kv_heads;
    t.b = rest / a.kv_heads;
    rules_member_of(&a.rules, &data, t.b, m);
    const i32 from = t.list * a.q_block;
    const i32 left = m->queries - from, queries = left < a.q_block ? left : a.q_block;
    const i32 low = from + m->shift, high = low + queries - 1;
    t.first = 0;
    t.end = queries > 0 ? m->keys : 0;
    if (a.rules.causal)
        t.end = min(t.end, high + 1);
    if (a.rules.window > 0) {
        t.first = max(0, low - a.rules.window + 1);
        t.end = (i32)min((i64)t.end, (i64)high + a.rules.window);
    }
    t.alike = queries == 1 || (!a.rules.causal && a.rules.window <= 0);
    i32 begin = 0, behind = a.capacity;
    t.index = NULL;
    if (a.index_data) {
        const i32 *count = a.count_data;
        t.index = a.index_data + t.b * a.index[0] + t.kv_head * a.index[1] + t.list * a.index[2];
        if (count)
            behind =
                min(max(count[t.b * a.count[0] + t.kv_head * a.count[1] + t.list * a.count[2]], 0),
                    behind);
    } else {
        begin = t.first / a.block;
        behind = min((t.end + a.block - 1) / a.block, behind);
    }
    if (t.first >= t.end)
        behind = begin;
    const i32 entries = max(behind - begin, 0);
    const i64 each = max((entries + a.parts - 1) / a.parts, a.part_entries);
    t.entry = begin + (i32)min(t.part * each, (i64)entries);
    t.behind = begin + (i32)min((t.part + 1) * each, (i64)entries);
    return t;
}

MMA_DEVICE decode_entry decode_find(const decode80_arg &a, const decode_task &t, i32 entry)
{
    const i32 block = t.index ? t.index[entry * a.index[3]] : entry;
    decode_entry e = {0, -1, 0};
    if (block < 0 || block >= a.blocks)
        return e;
    e.key = block * a.block;
    if (e.key >= t.end || e.key + a.block <= t.first)
        return e;
    const i32 page = a.table ? a.table[(i64)t.b * a.columns + e.key / a.page] : t.b;
    e.page = page < a.pages ? page : -1;
    e.at = e.key % a.page;
    return e;
}

/* Row `row` of a tile of the list. */
MMA_DEVICE void decode_row(const decode80_arg &a, const decode_task &t, const rules_member &m,
                           int row, decode_rows *rows)
{
    const i32 from = t.list * a.q_block, left = a.rules.q_time - from;
    const i32 queries = left < a.q_block ? left : a.q_block;
    const i64 number = (i64)t.tile * DECODE_ROWS + row;
    const bool there = number < (i64)a.group * queries;
    rows->head[row] = there ? t.kv_head * a.group + (i32)(number / queries) : -1;
    rows->time[row] = there ? from + (i32)(number % queries) : -1;
    if (rows->time[row] >= m.queries)
        rows->time[row] = -1 - rows->time[row];
}

/* Starts to copy lines of a warp, one of which each lane has the place of; zeros for key -1. */
template <class C>
MMA_DEVICE void decode_copy(uint32_t to, const u16 *from, i64 place, i32 key, i32 width)
{
    enum { TOGETHER = 8 }; /* lanes at a line: 128 bytes */
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < C::N; i += 32 / TOGETHER) {
        const int line = i + lane / TOGETHER;
        const i64 at = __shfl_sync(~0u, place, line);
        const bool there = __shfl_sync(~0u, key, line) >= 0;
#pragma unroll
        for (int run = lane % TOGETHER; run < C::RUNS; run += TOGETHER) {
            const bool some = there && run * 8 < width;
            cp_async_16(to + (line * C::RUNS + (run ^ line_turn<C::D>(line))) * 16,
                        from + (some ? at + run * 8 : 0), some ? 16 : 0);
        }
    }
}

/* Scores of a warp where more than a scale makes them, or not all are visible. The sums are turned
 * round a short loop, so that one element's code serves all. */
template <class C>
MMA_DEVICE void decode_scores(float (*sums)[C::NT][4], const decode80_arg &a,
                              const rules_data &data, const rules_member &m, const decode_task &t,
                              const decode_rows &rows, i32 key, bool plain)
{
    float *all = &sums[0][0][0];
    const int row = (int)threadIdx.x % 32 / 4;
    const i32 head[2] = {rows.head[row], rows.head[row + 8]};
    const i32 time[2] = {rows.time[row], rows.time[row + 8]};
#pragma unroll 1
    for (int n = 0; n < C::NT; n++) {
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const i32 other = __shfl_sync(~0u, key, n * 8 + (int)threadIdx.x % 4 * 2 + e % 2);
            const i32 own = e < 2 ? time[0] : time[1], h = e < 2 ? head[0] : head[1];
            v[e] = -INFINITY;
            if (other >= 0 && own >= 0 &&
                (t.alike || rules_visible(&a.rules, &data, &m, own, other)))
                v[e] = plain ? a.scale * all[e]
                             : LOG2_E * rules_score_f32(&a.rules, &data, &m, h, own, other, all[e]);
        }
#pragma unroll
        for (int i = 0; i < 4 * (C::NT - 1); i++)
            all[i] = all[i + 4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            all[4 * (C::NT - 1) + e] = v[e];
    }
}

/* A row's part: sums of features, the largest score and the sum of powers. */
template <class C> struct decode_sums {
    enum { LD = C::D + 8 }; /* that rows lie in different banks */
    float most[C::WARPS][DECODE_ROWS], sum[C::WARPS][DECODE_ROWS];
};

/* exp2(most - all), where nothing may have been seen at all. */
MMA_DEVICE float decode_weight(float most, float all)
{
    return FAST_EXP2(most - (all == -INFINITY ? 0 : all));
}

/* A row's result from its sums. */
MMA_DEVICE float decode_inverse(float most, float sum)
{
    return most == -INFINITY && sum == 0 ? 0 : 1 / sum;
}

MMA_DEVICE float decode_lse(float most, float sum)
{
    return most == -INFINITY && sum == 0 ? -INFINITY : LN_2 * (most + log2f(sum));
}

MMA_DEVICE i64 decode_line(const decode80_arg &a, i32 b, i32 head, i32 time)
{
    return ((i64)b * a.rules.heads + head) * a.rules.q_time + time;
}

/* Adds up the warps' sums, and stores those of a part or, if it is the only one, the result. */
template <class C>
MMA_DEVICE void decode_store(const decode80_arg &a, const decode_task &t, const decode_rows &rows,
                             const decode_sums<C> &sums, const float *out)
{
    const int width = a.dv / 2 + 1;
    for (int n = (int)threadIdx.x; n < DECODE_ROWS * width; n += C::THREADS) {
        const int row = n / width, f = n % width * 2;
        const bool live = rows.time[row] >= 0;
        const i32 head = rows.head[row], time = live ? rows.time[row] : -1 - rows.time[row];
        float most = -INFINITY, sum = 0, x = 0, y = 0;
        if (head < 0)
            continue;
        for (int w = 0; w < C::WARPS && live; w++)
            most = fmaxf(most, sums.most[w][row]);
        for (int w = 0; w < C::WARPS && live; w++) {
            const float weight = decode_weight(sums.most[w][row], most);
            const float *from = out + (w * DECODE_ROWS + row) * decode_sums<C>::LD + f;
            sum += weight * sums.sum[w][row];
            if (f < a.dv) {
                x += weight * from[0];
                y += weight * from[1];
            }
        }
        const i64 line = decode_line(a, t.b, head, time);
        if (a.parts > 1) {
            float2 *to = (float2 *)(a.partial + (line * a.parts + t.part) * (a.dv + 2) + f);
            *to = f < a.dv ? make_float2(x, y) : make_float2(most, sum);
        } else if (f < a.dv) {
            const float factor = decode_inverse(most, sum);
            store_pair(a.o.type, a.o_data, heads_at(a.o, t.b, head) + time * a.o.time + f,
                       factor * x, factor * y);
        } else if (a.lse) {
            a.lse[line] = decode_lse(most, sum);
        }
    }
}

/* What a warp's lanes know of keys whose copies are under way. */
template <class C> struct decode_step {
    i32 key;  /* of line lane % C::N; -1: nothing is there */
    bool any; /* some are */
};

/* Starts to copy the keys and values of a step: slots of the entries from `slot` on. */
template <class C>
MMA_DEVICE decode_step<C> decode_load(const decode80_arg &a, const decode_task &t,
                                      const decode_entry *entries, i32 slots, i32 slot, uint32_t to,
                                      const u16 *k, const u16 *v)
{
    decode_step<C> step = {-1, false};
    i64 k_at = 0, v_at = 0;
    slot += (int)threadIdx.x % C::N;
    if (slot < slots) {
        const i32 number = (i32)((u32)slot / (u32)a.block), in = slot - number * a.block;
        const decode_entry e = entries[number];
        const i32 key = e.key + in;
        if (e.page >= 0 && key >= t.first && key < t.end) {
            step.key = key;
            k_at = e.page * a.k.batch + (e.at + in) * a.k.time;
            v_at = e.page * a.v.batch + (e.at + in) * a.v.time;
        }
    }
    step.any = __any_sync(~0u, step.key >= 0);
    if (step.any) {
        decode_copy<C>(to, k, k_at, step.key, a.d);
        decode_copy<C>(to + C::N * C::D * 2, v, v_at, step.key, a.dv);
    }
    cp_async_commit();
    return step;
}

template <class C>
MMA_DEVICE void decode_meet(const decode80_arg &a, const rules_data &data, const rules_member &m,
                            const decode_task &t, const decode_rows &rows,
                            const decode_step<C> &step, bool plain, const lane_lines &q,
                            uint32_t stage, float (*out)[C::DT][4], row_state<C> *state)
{
    float sums[1][C::NT][4];
    warp_view<C> view = {{0x01010101u * RULES_FULL}, false, true, true};
    line_products<C>(sums, q, lines_along<C>(stage), view);
    if (plain && t.alike && __all_sync(~0u, step.key >= 0)) {
#pragma unroll
        for (int n = 0; n < C::NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums[0][n][e] *= a.scale;
    } else {
        decode_scores<C>(sums, a, data, m, t, rows, step.key, plain);
    }
    shares_make<C>(sums, out, state);
    result_add<C>(out, sums, lines_down<C>(stage + C::N * C::D * 2), view);
}

template <class C> MMA_DEVICE void decode_parts(const decode80_arg &a)
{
    enum { LINES = C::N * C::D * 2, Q_BYTES = DECODE_ROWS * C::D * 2 };
    extern __shared__ __align__(128) uint4 pool[];
    __shared__ decode_entry entries[DECODE_ENTRIES];
    __shared__ decode_rows rows;
    __shared__ decode_sums<C> sums;
    const rules_data data = {NULL, (const u8 *)a.slopes, a.q_len, a.k_len, NULL, NULL, NULL, NULL,
                             NULL};
    rules_member m;
    grid_allow_next();
    const decode_task t = decode_task_of(a, data, &m);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const uint32_t memory = mma_shared(pool);
    const uint32_t stages = memory + Q_BYTES + warp * ATTENTION_STAGES * 2 * LINES;
    const u16 *k = a.k_data + t.kv_head * a.k.head, *v = a.v_data + t.kv_head * a.v.head;
    const bool plain = !(NUM(a.rules.softcap) > 0) && !a.slopes;
    const i32 room = a.block < DECODE_SLOTS / DECODE_ENTRIES ? DECODE_ENTRIES : 1;
    row_state<C> state = {{{-INFINITY, -INFINITY}}, {{0, 0}}};
    float out[1][C::DT][4] = {};
    if (threadIdx.x < DECODE_ROWS)
        decode_row(a, t, m, (int)threadIdx.x, &rows);
    __syncthreads();
    for (int n = (int)threadIdx.x; n < DECODE_ROWS * C::RUNS; n += C::THREADS) {
        const int line = n / C::RUNS, run = n % C::RUNS;
        const bool some = rows.time[line] >= 0 && run * 8 < a.d;
        const i64 at = heads_at(a.q, t.b, rows.head[line]) + rows.time[line] * a.q.time + run * 8;
        cp_async_16(memory + (line * C::RUNS + (run ^ line_turn<C::D>(line))) * 16,
                    a.q_data + (some ? at : 0), some ? 16 : 0);
    }
    cp_async_commit();
    const lane_lines q = lines_down<C>(memory);
#pragma unroll 1
    for (i32 base = t.entry; base < t.behind; base += room) {
        const i32 count = min(t.behind - base, room), slots = count * a.block;
        __syncthreads();
        for (i32 e = (i32)threadIdx.x; e < count; e += C::THREADS)
            entries[e] = decode_find(a, t, base + e);
        cp_async_wait<0>();
        __syncthreads();
        i32 slot = warp * C::N;
        uint32_t stage = stages, other = stages + 2 * LINES;
        decode_step<C> step = decode_load<C>(a, t, entries, slots, slot, stage, k, v);
#pragma unroll 1
        for (; slot < slots; slot += C::WARPS * C::N) {
            const decode_step<C> next =
                decode_load<C>(a, t, entries, slots, slot + C::WARPS * C::N, other, k, v);
            cp_async_wait<1>();
            __syncwarp();
            if (step.any)
                decode_meet<C>(a, data, m, t, rows, step, plain, q, stage, out, &state);
            __syncwarp();
            const uint32_t free = stage;
            stage = other;
            other = free;
            step = next;
        }
    }
    cp_async_wait<0>();
    __syncthreads();
    float *all = (float *)pool;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = lane / 4 + half * 8;
        const float sum = quad_sum(state.sum[0][half]);
        float *to = all + (warp * DECODE_ROWS + row) * decode_sums<C>::LD + lane % 4 * 2;
        if (lane % 4 == 0) {
            sums.most[warp][row] = state.most[0][half];
            sums.sum[warp][row] = sum;
        }
#pragma unroll
        for (int f = 0; f < C::DT; f++)
            *(float2 *)(to + f * 8) = make_float2(out[0][f][2 * half], out[0][f][2 * half + 1]);
    }
    __syncthreads();
    decode_store<C>(a, t, rows, sums, all);
}

/* Head sizes up to D, warps, keys of a step, thread blocks at a time. */
#define PARTS(type, T, D, WARPS, N, BLOCKS)                                                        \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)                               \
        sm80_decode_##D##_##type(const __grid_constant__ decode80_arg a)                           \
    {                                                                                              \
        decode_parts<kind<T, D, 1, WARPS, N, false>>(a);                                           \
    }
#define KERNELS(type, T)                                                                           \
    PARTS(type, T, 64, 4, 32, 3)                                                                   \
    PARTS(type, T, 128, 4, 16, 3)                                                                  \
    PARTS(type, T, 256, 2, 16, 3)
FOR_HALVES(KERNELS)

/* The parts of a row in their order. */
extern "C" __global__ void __launch_bounds__(DECODE_PARTS)
    sm80_decode_join(const __grid_constant__ decode80_arg a)
{
    __shared__ float most[DECODE_PARTS], sums[DECODE_PARTS];
    const i64 row = blockIdx.x;
    const i32 time = (i32)(row % a.rules.q_time);
    const i32 head = (i32)(row / a.rules.q_time % a.rules.heads);
    const i32 b = (i32)(row / a.rules.q_time / a.rules.heads);
    const i32 width = a.dv + 2, part = (i32)threadIdx.x, f = 2 * (i32)threadIdx.x;
    const float *from = a.partial + row * a.parts * width;
    float top = -INFINITY, sum = 0, x = 0, y = 0;
    grid_wait();
    if (part < a.parts) {
        const float2 end = *(const float2 *)(from + part * width + a.dv);
        most[part] = end.x;
        sums[part] = end.y;
    }
    __syncthreads();
    for (i32 p = 0; p < a.parts; p++)
        top = fmaxf(top, most[p]);
    for (i32 p = 0; p < a.parts; p++)
        sum += decode_weight(most[p], top) * sums[p];
    const float factor = decode_inverse(top, sum);
    if (threadIdx.x == 0 && a.lse)
        a.lse[row] = decode_lse(top, sum);
    if (f >= a.dv)
        return;
#pragma unroll 8
    for (i32 p = 0; p < a.parts; p++) {
        const float2 v = *(const float2 *)(from + p * width + f);
        const float weight = factor * decode_weight(most[p], top);
        x += weight * v.x;
        y += weight * v.y;
    }
    store_pair(a.o.type, a.o_data, heads_at(a.o, b, head) + time * a.o.time + f, x, y);
}
