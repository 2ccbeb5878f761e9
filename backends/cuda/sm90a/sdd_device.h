/* Device code that the kernels of sdd share: the ring of stages, partial sums and the store. */
#ifndef BSKI_CUDA_SM90A_SDD_DEVICE_H
#define BSKI_CUDA_SM90A_SDD_DEVICE_H

#include <backends/cuda/mma.h>
#include <backends/cuda/ptx.h>
#include <backends/cuda/sm90a/sdd.h>
#include <bsk/matmul.h>

/* --- The ring --- */

/* Barriers lie at the start of shared memory: full[16], empty[16]; the stages follow. */
typedef struct sdd_ring {
    uint32_t bars, stages, stage_bytes;
    int count, at;
    uint32_t parity;
} sdd_ring;

PTX_FN uint32_t ring_full(const sdd_ring &r, int stage)
{
    return r.bars + stage * 8;
}

PTX_FN uint32_t ring_empty(const sdd_ring &r, int stage)
{
    return r.bars + (SDD_MAX_STAGES + stage) * 8;
}

PTX_FN uint32_t ring_stage(const sdd_ring &r)
{
    return r.stages + r.at * r.stage_bytes;
}

PTX_FN void ring_next(sdd_ring &r)
{
    if (++r.at == r.count) {
        r.at = 0;
        r.parity ^= 1;
    }
}

/* By all threads of the block. consumers: arrivals that empty a stage. Every producing warp arrives
 * at every stage, with copies of its own or without: so none can fall behind by a round of the ring,
 * after which it would take the parity of one phase for that of another. */
PTX_FN void ring_init(const sdd_ring &r, int consumers)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < r.count; i++) {
            mbar_init(ring_full(r, i), SDD_PRODUCERS);
            mbar_init(ring_empty(r, i), consumers);
        }
        mbar_init_fence();
    }
    __syncthreads();
}

/* By a producing warp, before its copies to the stage: waits until it is empty, and announces the
 * bytes of all warps' copies if it is the first. */
PTX_FN void ring_acquire(const sdd_ring &r, bool first, uint32_t bytes)
{
    mbar_wait(ring_empty(r, r.at), r.parity);
    if (threadIdx.x % 32 == 0) {
        if (first)
            mbar_expect(ring_full(r, r.at), bytes);
        else
            mbar_arrive(ring_full(r, r.at));
    }
    __syncwarp();
}

/* --- Work --- */

/* Starts to load a word of a table, here: the compiler would at its use. */
PTX_FN int table_load(const int32_t *from)
{
    uint32_t v;
    load_global<2, true>(&v, from);
    return (int)v;
}

PTX_FN sdd_segment segment_load(const sdd_segment *p)
{
    const int4 x = __ldg((const int4 *)p), y = __ldg((const int4 *)p + 1);
    sdd_segment s;
    s.unit = x.x;
    s.first = x.y;
    s.count = x.z;
    s.step = x.w;
    s.part = y.x;
    s.parts = y.y;
    s.place = y.z;
    s.counter = y.w;
    return s;
}

/* A segment of the list of a cluster of so many blocks, with the parts and the counter of this one. */
template <int CLUSTER> PTX_FN sdd_segment segment_own(const sdd_segment *p)
{
    sdd_segment s = segment_load(p);
    if (CLUSTER > 1) {
        const int rank = cluster_rank();
        s.place = s.place * CLUSTER + rank * s.parts;
        s.counter = s.counter * CLUSTER + rank;
    }
    return s;
}

/* The samples of a slice: a pair and the first sample. */
typedef struct sdd_cursor {
    int pair, slice;
} sdd_cursor;

PTX_FN sdd_cursor cursor_start(const sdd_work &w, const sdd_segment &s)
{
    sdd_cursor c = {0, s.first};
    while (s.count && c.slice >= w.slices) {
        c.slice -= w.slices;
        c.pair++;
    }
    return c;
}

PTX_FN void cursor_next(sdd_cursor &c, const sdd_work &w, const sdd_segment &s)
{
    c.slice += s.step;
    while (c.slice >= w.slices) {
        c.slice -= w.slices;
        c.pair++;
    }
}

/* Keeps the sweeps of all thread blocks in step, so that what one reads the others find in the L2
 * cache: the producing lane calls it at every slice. The wait is for speed alone and gives up,
 * since the blocks that it waits for need not be running. */
enum { PACE_PATIENCE = 1 << 12 };

typedef struct sdd_pace {
    int slices, rounds;
    bool off;
} sdd_pace;

PTX_FN void pace_step(sdd_pace &p, const sdd_work &w)
{
    if (w.lead == 0 || p.slices++ % SDD_PACE)
        return;
    p.rounds++;
    counter_add_one(w.progress);
    if (p.off || p.rounds <= w.lead)
        return;
    const uint32_t wanted = (uint32_t)(p.rounds - w.lead) * gridDim.x;
    for (int i = 0; i < PACE_PATIENCE; i++) {
        if (counter_load(w.progress) >= wanted)
            return;
    }
    p.off = true;
}

/* A block with less work than others counts as if it went on with them. */
PTX_FN void pace_finish(const sdd_pace &p, const sdd_work &w)
{
    if (w.lead)
        counter_add(w.progress, (uint32_t)(w.rounds - p.rounds));
}

/* --- Partial sums --- */

/* Replaces a warp's COUNT accumulators by the sums over all parts of its unit if all are there now;
 * otherwise leaves its own and returns false. A part has `most` accumulators a lane. */
template <int COUNT>
PTX_FN bool parts_add(float *acc, const sdd_work &w, const sdd_segment &s, int warp, int warps,
                      int most)
{
    if (s.parts == 1)
        return true;
    const int lane = threadIdx.x % 32;
    const size_t of_warp = (size_t)most * 32, of_part = of_warp * warps;
    float *base = w.parts + s.place * of_part + warp * of_warp + lane * 4;
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
        __stcg((float4 *)(base + s.part * of_part + i * 32),
               make_float4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3]));
    __threadfence();
    __syncwarp();
    uint32_t before = 0;
    if (lane == 0)
        before = atomicAdd(w.counters + (size_t)s.counter * warps + warp, 1);
    before = __shfl_sync(~0u, before, 0);
    if (before != (uint32_t)s.parts - 1)
        return false;
    __threadfence();
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        acc[i] = 0;
    for (int part = 0; part < s.parts; part++)
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            const float4 v = __ldcg((const float4 *)(base + part * of_part + i * 32));
            acc[i] += v.x;
            acc[i + 1] += v.y;
            acc[i + 2] += v.z;
            acc[i + 3] += v.w;
        }
    return true;
}

/* --- The store ---
 *
 * Registers cannot be indexed at run time, and code without loops for all sums of a lane would be
 * tens of kilobytes that run once a unit, at the speed of fetching instructions. So the loops are
 * real, and the registers move along: what is to be stored next is always in the first ones. */

/* Moves all of COUNT registers down by STEP, the first ones to the end. */
template <int COUNT, int STEP> PTX_FN void rotate(float *acc)
{
    float first[STEP];
#pragma unroll
    for (int i = 0; i < STEP; i++)
        first[i] = acc[i];
#pragma unroll
    for (int i = 0; i < COUNT - STEP; i++)
        acc[i] = acc[i + STEP];
#pragma unroll
    for (int i = 0; i < STEP; i++)
        acc[COUNT - STEP + i] = first[i];
}

PTX_FN uint32_t pack(int type, float2 v)
{
    return type == BSK_BF16 ? mma_pack<__nv_bfloat16>(v.x, v.y) : mma_pack<__half>(v.x, v.y);
}

PTX_FN float2 unpack(int type, uint32_t v)
{
    return type == BSK_BF16 ? __bfloat1622float2(*(const __nv_bfloat162 *)&v)
                            : __half22float2(*(const __half2 *)&v);
}

/* Whether alpha is all that there is to the sums. */
PTX_FN bool output_plain(const sdd_output &o)
{
    return o.beta == 0 && o.gate_mode == BSK_GATE_IGNORE;
}

/* Gate, alpha and beta for two neighbouring sums of a row. at: the first one's element of s;
 * second: whether the other is inside of s too. */
PTX_FN float2 output_value(const sdd_output &o, int64_t at, float2 v, bool second)
{
    float scale = o.alpha;
    bool none = false;
    if (o.gate_mode != BSK_GATE_IGNORE) {
        const float gate = o.gate[(uint32_t)(at >> 3) / (uint32_t)o.block_eighth];
        none = gate == 0;
        scale *= o.gate_mode == BSK_GATE_SCALE ? gate : 1;
    }
    v = none ? make_float2(0, 0) : make_float2(v.x * scale, v.y * scale);
    if (o.beta == 0)
        return v;
    float2 old;
    if (o.type == BSK_F32) {
        const float *from = (const float *)o.s + at;
        old = make_float2(from[0], second ? from[1] : 0);
    } else {
        const uint16_t *from = (const uint16_t *)o.s + at;
        old = unpack(o.type, second ? *(const uint32_t *)from : *from);
    }
    return make_float2(v.x + o.beta * old.x, v.y + o.beta * old.y);
}

PTX_FN void output_store(const sdd_output &o, int64_t at, float2 v, bool second)
{
    if (o.type == BSK_F32) {
        float *to = (float *)o.s + at;
        if (second)
            *(float2 *)to = v;
        else
            *to = v.x;
    } else {
        uint16_t *to = (uint16_t *)o.s + at;
        const uint32_t both = pack(o.type, v);
        if (second)
            *(uint32_t *)to = both;
        else
            *to = (uint16_t)both;
    }
}

/* Where a tile of 8 x 8 elements lies in s, in units of 8 elements; -1: not kept, or outside. */
PTX_FN int place_load(const sdd_output &o, int row8, int col8)
{
    int place = -1;
    if (row8 * 8 < o.rows && col8 * 8 < o.cols)
        place = table_load(o.where + (size_t)row8 * o.where_cols + col8);
    return place;
}

/* Whether all tiles are whole and need alpha alone: they go by rows. */
PTX_FN bool output_rows(const sdd_output &o)
{
    return output_plain(o) && (o.rows | o.cols) % 8 == 0;
}

/* A 4 x 4 transpose across each four lanes. */
PTX_FN void quad_transpose(uint32_t *v)
{
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t x = __shfl_xor_sync(~0u, odd ? v[i] : v[i + 1], 1);
        v[i] = odd ? x : v[i];
        v[i + 1] = odd ? v[i + 1] : x;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t x = __shfl_xor_sync(~0u, high ? v[i] : v[i + 2], 2);
        v[i] = high ? x : v[i];
        v[i + 2] = high ? v[i + 2] : x;
    }
}

/* Four tiles, of each of which a lane has two neighbours of a row: the sums i * step and the next.
 * Each of four lanes has the place of one of them, and stores a row of it, 16 bytes; of f32 its
 * neighbours of each. */
template <bool F32>
PTX_FN void store_four(const sdd_output &o, const float *sums, int step, int place)
{
    const int lane = threadIdx.x % 32, row = lane / 4 * o.block_cols;
    if constexpr (F32) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int own = __shfl_sync(~0u, place, (lane & ~3) + i);
            float *to = (float *)o.s + (int64_t)own * 8 + row + lane % 4 * 2;
            if (own >= 0)
                *(float2 *)to = make_float2(o.alpha * sums[i * step], o.alpha * sums[i * step + 1]);
        }
    } else {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] =
                pack(o.type, make_float2(o.alpha * sums[i * step], o.alpha * sums[i * step + 1]));
        quad_transpose(v);
        uint16_t *to = (uint16_t *)o.s + (int64_t)place * 8 + row;
        if (place >= 0)
            *(uint4 *)to = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

/* A tile of 8 x 8 with a place: two sums a lane, in eight rows of four pairs. */
PTX_FN void store_tile(const sdd_output &o, float2 v, int row8, int col8, int place)
{
    const int lane = threadIdx.x % 32, row = row8 * 8 + lane / 4, col = col8 * 8 + lane % 4 * 2;
    const bool second = col + 1 < o.cols;
    if (place < 0 || row >= o.rows || col >= o.cols)
        return;
    const int64_t at = (int64_t)place * 8 + lane / 4 * o.block_cols + lane % 4 * 2;
    output_store(o, at, output_value(o, at, v, second), second);
}

#endif
