/* dsd for sm80 with a small minibatch: bound by reading the kept weights once. Each warp has its
 * own pipeline and takes every so-many-th stage of a block row's list, so that nothing waits for a
 * thread block until its warps add up, in their order. */
#include <backends/cuda/sm80/dsd_narrow.h>

/* A warp's tile: TI features by TN of the minibatch, KC of the depth a stage. */
template <typename T_, int TI_, int TN_, int STAGES_> struct narrow {
    typedef T_ T;
    enum {
        THREADS = 32,
        TI = TI_,
        TN = TN_,
        WARP_I = TI,
        WARP_N = TN,
        KC = 32,
        STAGES = STAGES_,
        RUN = DSD_RUN,
        RUNS = KC / RUN,
        ROWS_BYTES = TN * KC * 2,
        STAGE_BYTES = ROWS_BYTES + TI * KC * 2,
        ACROSS = THREADS / RUNS,
        MT = WARP_N / 16,
        NT = WARP_I / 8
    };
};

/* A warp's pipeline: number `turn` of its stages is stage warp + turn * warps of the list. */
template <class C> struct pipeline {
    copies<C> c;
    uint32_t memory;
    float *gates;
    int32_t first, step, runs; /* of the depth: a warp's first, to its next stage, all */
};

template <class C, bool PLAIN>
MMA_DEVICE void copy_turn(const dsd_arg *a, const pipeline<C> *p, int32_t run, int slot,
                          stage_blocks blocks)
{
    if (run < p->runs)
        copy_stage<C, PLAIN>(a, &p->c, p->memory + slot * C::STAGE_BYTES, p->gates + slot * C::RUNS,
                             run, blocks);
    cp_async_commit();
}

template <class C, bool PLAIN>
MMA_DEVICE void add_up(const dsd_arg *a, const pipeline<C> *p, float *acc)
{
    /* All blocks of the first turns before any copy: a copy waits for the look-up of its block. */
    stage_blocks ahead[C::STAGES];
    int32_t run = p->first;
#pragma unroll
    for (int turn = 0; turn < C::STAGES; turn++)
        ahead[turn] = find_blocks<C>(&p->c, run + turn * p->step);
    grid_wait();
#pragma unroll
    for (int turn = 0; turn < C::STAGES - 1; turn++)
        copy_turn<C, PLAIN>(a, p, run + turn * p->step, turn, ahead[turn]);
    stage_blocks next = ahead[C::STAGES - 1];
    int slot = 0;
#pragma unroll 1
    for (; run < p->runs; run += p->step) {
        cp_async_wait<C::STAGES - 2>();
        __syncwarp();
        const stage_blocks now = next;
        next = find_blocks<C>(&p->c, run + C::STAGES * p->step);
        copy_turn<C, PLAIN>(a, p, run + (C::STAGES - 1) * p->step, slot ? slot - 1 : C::STAGES - 1,
                            now);
        compute_stage<C>(a->b_along_k, !a->s_flip, p->memory + slot * C::STAGE_BYTES,
                         PLAIN || !a->gate ? NULL : p->gates + slot * C::RUNS, 0, 0, acc);
        slot = slot == C::STAGES - 1 ? 0 : slot + 1;
    }
    cp_async_wait<0>();
}

template <class C> MMA_DEVICE void dsd_narrow(const dsd_arg *a)
{
    extern __shared__ __align__(128) uint4 pool[];
    enum { GATES = C::STAGES * C::RUNS };
    const int64_t member = blockIdx.z;
    const int head = (int)(member % a->heads), tile = (int)blockIdx.x % a->tiles;
    const int32_t at = a->segment_start[head] + (int32_t)blockIdx.x / a->tiles;
    if (at >= a->segment_start[head + 1])
        return;
    const dsd_segment segment = a->segments[at];
    grid_allow_next();
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const walk w = {a->blocks + segment.first, segment.count << a->granule_shift, a->granule_shift};
    const pipeline<C> p = {
        copies_open<C>(a, w,
                       (const typename C::T *)a->s +
                           (a->groups > 1 ? member / a->heads : 0) * a->s_group +
                           (int64_t)tile * C::TI * (a->s_flip ? 1 : a->block_cols),
                       (const typename C::T *)a->b + member * a->b_batch, 0),
        mma_shared(pool) + warp * C::STAGES * C::STAGE_BYTES,
        (float *)((char *)pool + warps * C::STAGES * C::STAGE_BYTES) + warp * GATES,
        warp * C::RUNS,
        warps * C::RUNS,
        w.runs};

    float acc[4 * C::MT * C::NT];
#pragma unroll
    for (int i = 0; i < 4 * C::MT * C::NT; i++)
        acc[i] = 0;
    if (a->b_vector && !a->gate)
        add_up<C, true>(a, &p, acc);
    else
        add_up<C, false>(a, &p, acc);
    __syncthreads();

    store_sums<C>(a, &segment, tile, member, acc, (float *)pool);
}

/* Adds up the parts of block rows that were cut, in their order. */
extern "C" __global__ void __launch_bounds__(128)
    sm80_dsd_narrow_finish(const __grid_constant__ dsd_arg a)
{
    const int64_t member = blockIdx.z;
    const int head = (int)(member % a.heads), tile = (int)blockIdx.x % a.tiles;
    const int32_t at = a.cut_start[head] + (int32_t)blockIdx.x / a.tiles;
    if (at >= a.cut_start[head + 1])
        return;
    const dsd_segment cut = a.cuts[at];
    grid_allow_next();
    grid_wait();
    const int64_t size = (int64_t)a.tile_rows * a.tile_features;
    const float *parts =
        a.parts + member * a.part_stride + ((int64_t)cut.part * a.tiles + tile) * size;
    const int x = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (x >= size / DSD_RUN)
        return;
    int i, n;
    run_place(&a, x, a.tile_features, a.tile_rows, &i, &n);
    float v[DSD_RUN] = {0};
    for (int p = 0; p < cut.count; p++)
#pragma unroll
        for (int e = 0; e < DSD_RUN; e++)
            v[e] += parts[(int64_t)p * a.tiles * size + x * DSD_RUN + e];
    store_run(&a, v, (int64_t)cut.row * a.block_rows + tile * a.tile_features + i, n, member);
}

/* By which registers are limited: threads of a thread block, and blocks of a multiprocessor. */
#define DSD_NARROW(type, T, ti, tn, stages, threads, blocks)                                       \
    extern "C" __global__ void __launch_bounds__(threads, blocks)                                  \
        sm80_dsd_narrow_##ti##_##tn##_##type(const __grid_constant__ dsd_arg a)                    \
    {                                                                                              \
        dsd_narrow<narrow<T, ti, tn, stages>>(&a);                                                 \
    }
#define DSD_NARROW_SIZES(type, T)                                                                  \
    DSD_NARROW(type, T, 8, 16, 4, 256, 2)                                                          \
    DSD_NARROW(type, T, 16, 16, 4, 256, 2)                                                         \
    DSD_NARROW(type, T, 32, 16, 4, 256, 2)                                                         \
    DSD_NARROW(type, T, 8, 32, 3, 256, 2)                                                          \
    DSD_NARROW(type, T, 16, 32, 3, 256, 2)                                                         \
    DSD_NARROW(type, T, 32, 32, 3, 256, 2)                                                         \
    DSD_NARROW(type, T, 8, 64, 3, 256, 2)                                                          \
    DSD_NARROW(type, T, 16, 64, 3, 256, 2)                                                         \
    DSD_NARROW(type, T, 32, 64, 3, 128, 3)
FOR_HALVES(DSD_NARROW_SIZES)
