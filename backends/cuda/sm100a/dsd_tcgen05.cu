/* dsd for sm100a: tensor copies, a ring of stages in shared memory, and tcgen05 products whose sums
 * lie in tensor memory. A thread block computes 256 columns of C, the minibatch, by one block row
 * of op(S): columns of C are the products' 128 rows, twice, and features their columns. */
#include <backends/cuda/sm100a/dsd_arg.h>
#include <backends/cuda/sm100a/tcgen05.h>
#include <backends/cuda/sm80/dsd_device.h>

enum { WARPS = 4, HALF = 128, HALVES = TILE_COLUMNS / HALF, STEP = 16, STEPS = STAGE_DEPTH / STEP };

/* TI features; STAGES of 64 of the depth under way. */
template <bool BF16_, int TI_, int STAGES_> struct tile {
    enum {
        BF16 = BF16_,
        TI = TI_,
        STAGES = STAGES_,
        B_BYTES = TILE_COLUMNS / BOX * BOX_BYTES,
        STAGE_BYTES = B_BYTES + TI / BOX * BOX_BYTES,
        SUMS = HALVES * TI /* columns of tensor memory */
    };
};

/* In shared memory: copies have arrived, products have read them, the sums are complete. */
template <class C> struct control {
    uint64_t full[C::STAGES], empty[C::STAGES], done;
    uint32_t sums; /* address in tensor memory */
};

/* Where a stage begins: in which block, and at which of its depth. */
typedef struct stage_place {
    dsd_block block;
    int32_t inner;
} stage_place;

MMA_DEVICE int stage_shift(const dsd_arg *a)
{
    return a->granule_shift - 3; /* runs of 8 -> stages of 64 */
}

MMA_DEVICE stage_place place_of(const dsd_arg *a, const dsd_segment *segment, int stage)
{
    const int shift = stage_shift(a);
    return stage_place{a->blocks[segment->first + (stage >> shift)],
                       (stage & ((1 << shift) - 1)) * STAGE_DEPTH};
}

/* One thread issues all copies. What lies beyond b arrives as zeros. */
template <class C>
MMA_DEVICE void produce(const dsd_arg *a, const dsd_maps *maps, const dsd_segment *segment,
                        int stages, control<C> *state, uint32_t memory, int n0, int member)
{
    const int group = a->groups > 1 ? member / a->heads : 0;
    for (int stage = 0; stage < stages; stage++) {
        const int slot = stage % C::STAGES;
        const uint32_t full = mma_shared(&state->full[slot]), to = memory + slot * C::STAGE_BYTES;
        if (stage >= C::STAGES)
            mbar_wait(mma_shared(&state->empty[slot]), (stage / C::STAGES - 1) & 1);
        mbar_expect(full, C::STAGE_BYTES);
        const stage_place at = place_of(a, segment, stage);
        const int k = at.block.column * a->block_cols + at.inner;
#pragma unroll
        for (int i = 0; i < TILE_COLUMNS / BOX; i++) {
            const int n = n0 + i * BOX;
            tensor_load_3d(to + i * BOX_BYTES, &maps->b, a->b_along_k ? k : n, a->b_along_k ? n : k,
                           member, full);
        }
        const int first = at.block.slot * (a->s_flip ? a->block_cols : a->block_rows);
#pragma unroll
        for (int i = 0; i < C::TI / BOX; i++)
            tensor_load_3d(to + C::B_BYTES + i * BOX_BYTES, &maps->s,
                           a->s_flip ? i * BOX : at.inner, first + (a->s_flip ? at.inner : i * BOX),
                           group, full);
    }
}

/* One thread issues all products. Steps beyond the depth are left out: blocks that are cut short
 * hold anything there. */
template <class C>
MMA_DEVICE void multiply(const dsd_arg *a, const dsd_segment *segment, int stages,
                         control<C> *state, uint32_t memory, int halves)
{
    const bool m_major = !a->b_along_k, n_major = a->s_flip;
    const uint32_t kind = tensor_kind(C::BF16, m_major, n_major, HALF, C::TI);
    const uint32_t sums = state->sums;
    const uint32_t b_step = m_major ? STEP * 2 * BOX : STEP * 2;
    const uint32_t s_step = n_major ? STEP * 2 * BOX : STEP * 2;
    for (int stage = 0; stage < stages; stage++) {
        const int slot = stage % C::STAGES;
        const uint32_t from = memory + slot * C::STAGE_BYTES;
        const stage_place at = place_of(a, segment, stage);
        const int64_t left = a->depth - (int64_t)at.block.column * a->block_cols - at.inner;
        const int steps = left >= STAGE_DEPTH ? STEPS : left > 0 ? (int)left / STEP : 0;
        mbar_wait(mma_shared(&state->full[slot]), stage / C::STAGES & 1);
        tensor_fence_after();
        for (int step = 0; step < steps; step++)
            for (int half = 0; half < halves; half++)
                tensor_product(
                    sums + half * C::TI,
                    tensor_operand(from + half * (HALF / BOX) * BOX_BYTES + step * b_step,
                                   BOX_BYTES),
                    tensor_operand(from + C::B_BYTES + step * s_step, BOX_BYTES), kind,
                    stage > 0 || step > 0);
        tensor_commit(mma_shared(&state->empty[slot]));
    }
    tensor_commit(mma_shared(&state->done));
}

/* Stores a warp's lanes of one half: 32 columns of C. With n contiguous, through shared memory. */
template <class C>
MMA_DEVICE void store_half(const dsd_arg *a, uint32_t sums, bool any, float *scratch,
                           int64_t feature, int64_t n0, int64_t member)
{
    enum { PART = 32, PITCH = PART + 1 };
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int part = 0; part < C::TI; part += PART) {
#pragma unroll 1
        for (int i = 0; i < PART; i += DSD_RUN) {
            float v[DSD_RUN] = {0};
            if (any)
                tensor_memory_load<DSD_RUN>(sums + part + i, v);
            if (!a->end.along_n)
                store_run(a, v, feature + part + i, n0 + lane, member);
            else
#pragma unroll
                for (int e = 0; e < DSD_RUN; e++)
                    scratch[lane * PITCH + i + e] = v[e];
        }
        if (!a->end.along_n)
            continue;
        __syncwarp();
#pragma unroll 1
        for (int at = lane; at < PART * PART / DSD_RUN; at += 32) {
            const int i = at / 4, n = at % 4 * DSD_RUN;
            float v[DSD_RUN];
#pragma unroll
            for (int e = 0; e < DSD_RUN; e++)
                v[e] = scratch[(n + e) * PITCH + i];
            store_run(a, v, feature + part + i, n0 + n, member);
        }
        __syncwarp();
    }
}

template <class C> MMA_DEVICE void dsd_tile(const dsd_arg *a, const dsd_maps *maps)
{
    extern __shared__ __align__(1024) uint8_t pool[];
    __shared__ control<C> state;
    const int64_t member = blockIdx.z, n0 = (int64_t)blockIdx.y * TILE_COLUMNS;
    const int head = (int)(member % a->heads), warp = threadIdx.x / 32;
    const int32_t place = a->segment_start[head] + (int32_t)blockIdx.x;
    if (place >= a->segment_start[head + 1])
        return;
    const dsd_segment segment = a->segments[place];
    const int stages = segment.count << stage_shift(a);
    const int halves = a->cols - n0 > HALF ? HALVES : 1;
    const uint32_t memory = mma_shared(pool);

    if (warp == 0)
        tensor_memory_take(mma_shared(&state.sums), C::SUMS);
    if (threadIdx.x == 32) {
        for (int i = 0; i < C::STAGES; i++) {
            mbar_init(mma_shared(&state.full[i]), 1);
            mbar_init(mma_shared(&state.empty[i]), 1);
        }
        mbar_init(mma_shared(&state.done), 1);
        mbar_init_fence();
    }
    tensor_fence_before();
    __syncthreads();
    tensor_fence_after();

    if (threadIdx.x == 32)
        produce<C>(a, maps, &segment, stages, &state, memory, (int)n0, (int)member);
    else if (threadIdx.x == 64)
        multiply<C>(a, &segment, stages, &state, memory, halves);
    __syncwarp();

    /* All copies have arrived and all products have read them when the last one is done. */
    mbar_wait(mma_shared(&state.done), 0);
    tensor_fence_after();
    float *scratch = (float *)pool + warp * 32 * 33;
    for (int half = 0; half < halves; half++)
        store_half<C>(a, state.sums + ((uint32_t)warp * 32 << 16) + half * C::TI, stages > 0,
                      scratch, (int64_t)segment.row * C::TI, n0 + half * HALF + warp * 32, member);
    tensor_fence_before();
    __syncthreads();
    if (warp == 0)
        tensor_memory_give(state.sums, C::SUMS);
}

#define DSD_TCGEN05(name, ...)                                                                     \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)                                    \
        name(const __grid_constant__ dsd_arg a, const __grid_constant__ dsd_maps maps)             \
    {                                                                                              \
        dsd_tile<tile<__VA_ARGS__>>(&a, &maps);                                                    \
    }
DSD_TCGEN05(sm100a_dsd_64_f16, false, 64, 5)
DSD_TCGEN05(sm100a_dsd_128_f16, false, 128, 4)
DSD_TCGEN05(sm100a_dsd_64_bf16, true, 64, 5)
DSD_TCGEN05(sm100a_dsd_128_bf16, true, 128, 4)
