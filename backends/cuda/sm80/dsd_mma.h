/* dsd by mma.sync, blocks as they are. One thread block computes TN columns of the minibatch by one
 * block row. */
#ifndef BSKI_CUDA_SM80_DSD_MMA_H
#define BSKI_CUDA_SM80_DSD_MMA_H

#include <backends/cuda/sm80/dsd_device.h>

/* A thread block's tile: TI features by TN of the minibatch, in warps of WARP_I x WARP_N; KC of the
 * depth, 64 bytes, a stage, STAGES under way. */
template <typename T_, int TI_, int TN_, int WARP_I_, int WARP_N_, int STAGES_> struct tile {
    typedef T_ T;
    enum {
        THREADS = 256,
        TI = TI_,
        TN = TN_,
        WARP_I = WARP_I_,
        WARP_N = WARP_N_,
        RUN = 16 / sizeof(T),
        RUNS = 4,
        KC = RUNS * RUN,
        STAGES = STAGES_,
        ROWS_BYTES = TN * KC * sizeof(T),
        STAGE_BYTES = ROWS_BYTES + TI * KC * sizeof(T),
        ACROSS = THREADS / RUNS,
        MT = WARP_N / 16,
        NT = WARP_I / 8
    };
};

/* Stores a warp's sums, through 32 rows of shared memory, so that lanes store runs of C's
 * contiguous axis. */
template <class C>
MMA_DEVICE void store_tile(const dsd_arg *a, const float *acc, float *scratch, int64_t feature,
                           int64_t n0, int64_t member)
{
    enum { PITCH = C::WARP_I + 1, RUNS = C::WARP_I / DSD_RUN };
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int part = 0; part < C::MT / 2; part++) {
        put_sums<C, PITCH>(scratch, acc, part, a->b_along_k, !a->s_flip);
        __syncwarp();
#pragma unroll 1
        for (int at = lane; at < 32 * RUNS; at += 32) {
            const int i = a->end.along_n ? at / 4 : at % RUNS * DSD_RUN;
            const int n = a->end.along_n ? at % 4 * DSD_RUN : at / RUNS;
            const float *from = scratch + n * PITCH + i;
            const int step = a->end.along_n ? PITCH : 1;
            float v[DSD_RUN];
#pragma unroll
            for (int e = 0; e < DSD_RUN; e++)
                v[e] = from[e * step];
            store_run(a, v, feature + i, n0 + 32 * part + n, member);
        }
        __syncwarp();
    }
}

/* Adds up a warp's sums over the whole list. */
template <class C, bool PLAIN>
MMA_DEVICE void add_up(const dsd_arg *a, const copies<C> *c, uint32_t memory, float *gates,
                       int warp_n, int warp_i, float *acc)
{
    const int stages = (c->w.runs + C::RUNS - 1) / C::RUNS;
    stage_blocks next = find_blocks<C>(c, 0);
#pragma unroll 1
    for (int stage = 0; stage < C::STAGES - 1; stage++) {
        const stage_blocks now = next;
        next = find_blocks<C>(c, (stage + 1) * C::RUNS);
        if (stage < stages)
            copy_stage<C, PLAIN>(a, c, memory + stage * C::STAGE_BYTES, gates + stage * C::RUNS,
                                 stage * C::RUNS, now);
        cp_async_commit();
    }
#pragma unroll 1
    for (int stage = 0; stage < stages; stage++) {
        cp_async_wait<C::STAGES - 2>();
        __syncthreads();
        const int copied = stage + C::STAGES - 1, to = copied % C::STAGES;
        const stage_blocks now = next;
        next = find_blocks<C>(c, (copied + 1) * C::RUNS);
        if (copied < stages)
            copy_stage<C, PLAIN>(a, c, memory + to * C::STAGE_BYTES, gates + to * C::RUNS,
                                 copied * C::RUNS, now);
        cp_async_commit();
        const int slot = stage % C::STAGES;
        compute_stage<C>(a->b_along_k, !a->s_flip, memory + slot * C::STAGE_BYTES,
                         PLAIN || !a->gate ? NULL : gates + slot * C::RUNS, warp_n, warp_i, acc);
    }
    cp_async_wait<0>();
    __syncthreads();
}

template <class C> MMA_DEVICE void dsd_tile(const dsd_arg *a)
{
    extern __shared__ __align__(128) uint4 pool[];
    __shared__ float gates[C::STAGES * C::RUNS];
    const int64_t member = blockIdx.z, n0 = (int64_t)blockIdx.y * C::TN;
    const int head = (int)(member % a->heads);
    const int32_t at = a->segment_start[head] + (int32_t)blockIdx.x;
    if (at >= a->segment_start[head + 1])
        return;
    const dsd_segment segment = a->segments[at];
    const walk w = {a->blocks + segment.first, segment.count << a->granule_shift, a->granule_shift};
    const copies<C> c = copies_open<C>(
        a, w, (const typename C::T *)a->s + (a->groups > 1 ? member / a->heads : 0) * a->s_group,
        (const typename C::T *)a->b + member * a->b_batch, n0);
    const uint32_t memory = mma_shared(pool);
    const int warp = threadIdx.x / 32;
    const int warp_i = warp % (C::TI / C::WARP_I) * C::WARP_I;
    const int warp_n = warp / (C::TI / C::WARP_I) * C::WARP_N;

    float acc[4 * C::MT * C::NT];
#pragma unroll
    for (int i = 0; i < 4 * C::MT * C::NT; i++)
        acc[i] = 0;
    if (a->b_vector && !a->gate)
        add_up<C, true>(a, &c, memory, gates, warp_n, warp_i, acc);
    else
        add_up<C, false>(a, &c, memory, gates, warp_n, warp_i, acc);
    store_tile<C>(a, acc, (float *)pool + warp * 32 * (C::WARP_I + 1),
                  (int64_t)segment.row * C::TI + warp_i, n0 + warp_n, member);
}

#define DSD_MMA(name, type, ...)                                                                   \
    extern "C" __global__ void __launch_bounds__(256, 2) name(const __grid_constant__ dsd_arg a)   \
    {                                                                                              \
        dsd_tile<tile<type, __VA_ARGS__>>(&a);                                                     \
    }

#endif
