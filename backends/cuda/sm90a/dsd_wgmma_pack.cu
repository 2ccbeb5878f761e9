/* Packs weights as dsd_wgmma multiplies them: cell by cell, of f32 rounded to tf32. */
#include <string.h>

#include <backends/cuda/mma.h>
#include <backends/cuda/sm90a/dsd_cell.h>

/* The elements of 16 bytes, as the products want them. */
template <typename WORD> struct pack_run {
    static constexpr int COUNT = 16 / sizeof(WORD);
    WORD word[COUNT];
};

PTX_FN void pack_round(pack_run<uint16_t> &)
{
}

PTX_FN void pack_round(pack_run<uint32_t> &run)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        run.word[i] = mma_tf32(__uint_as_float(run.word[i]));
}

/* A run of a row of core matrices; see place_along(). */
PTX_FN void pack_write(uint4 *row, int run, int, const pack_run<uint16_t> &v)
{
    uint4 all;
    memcpy(&all, &v, sizeof all);
    row[run * 8] = all;
}

PTX_FN void pack_write(uint4 *row, int run, int halves, const pack_run<uint32_t> &v)
{
    if (!halves) {
        row[run * 8] = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
        return;
    }
#pragma unroll
    for (int odd = 0; odd < 2; odd++)
        *((uint2 *)&row[(run / 2 * 2 + odd) * 8] + run % 2) =
            make_uint2(v.word[odd], v.word[odd + 2]);
}

/* Numbers of op(S) along its contiguous axis, from (feature, k) of a cell on. */
template <typename WORD>
PTX_FN uint4 pack_read(const dsd_pack_arg &a, const dsd_cell &cell, const int32_t *slots,
                       int feature, int k)
{
    const int part = k / a.parts.k * (DSD_CELL / a.parts.features) + feature / a.parts.features;
    const int32_t slot = slots[part];
    if (slot < 0 || cell.k + k >= a.depth)
        return make_uint4(0, 0, 0, 0);
    const int64_t at = slot * a.block +
                       (cell.feature + feature) % a.block_features * a.feature_stride +
                       (cell.k + k) % a.block_k * a.k_stride;
    return *(const uint4 *)((const WORD *)a.s + at);
}

/* A thread block a cell: core matrices of 8 features x 16 bytes along k, those along k first; features
 * in the order that the stores want. */
template <typename WORD> PTX_FN void pack(const dsd_pack_arg &a)
{
    typedef pack_run<WORD> run_of;
    constexpr int RUN = run_of::COUNT, ROW = DSD_ROW_BYTES / sizeof(WORD), RUNS = ROW / RUN;
    __shared__ __align__(16) WORD tile[ROW][DSD_CELL + RUN];
    const dsd_cell cell = a.cells[blockIdx.x];
    const int parts = (ROW / a.parts.k) * (DSD_CELL / a.parts.features);
    const int32_t *slots = a.parts.slots + (int64_t)blockIdx.x * parts;
    grid_allow_next();
    grid_wait();
    uint4 *to = (uint4 *)(a.weights + (int64_t)blockIdx.x * DSD_CELL_BYTES);
    const bool along_k = a.k_stride == 1;
    if (!along_k) {
        for (int i = threadIdx.x; i < ROW * DSD_CELL / RUN; i += DSD_PACK_THREADS) {
            const int k = i / (DSD_CELL / RUN), feature = i % (DSD_CELL / RUN) * RUN;
            *(uint4 *)&tile[k][feature] = pack_read<WORD>(a, cell, slots, feature, k);
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < DSD_CELL * RUNS; i += DSD_PACK_THREADS) {
        const int x = i % 32, run = i / 32 % RUNS, half = i / (32 * RUNS);
        const int feature = half * 32 + feature_of<WORD>(x);
        run_of v;
        if (along_k) {
            const uint4 all = pack_read<WORD>(a, cell, slots, feature, run * RUN);
            memcpy(&v, &all, sizeof v);
            const int64_t left = a.depth - cell.k - run * RUN;
            if (left > 0 && left < RUN) /* what lies beyond a cut block is not weights */
#pragma unroll
                for (int j = 0; j < RUN; j++)
                    v.word[j] = left > j ? v.word[j] : 0;
        } else {
#pragma unroll
            for (int j = 0; j < RUN; j++)
                v.word[j] = tile[run * RUN + j][feature];
        }
        pack_round(v);
        pack_write(to + ((half * 4 + x / 8) * RUNS * 8 + x % 8), run, a.parts.halves, v);
    }
}

#define PACK_KERNEL(name, word)                                                                    \
    extern "C" __global__ void __launch_bounds__(DSD_PACK_THREADS)                                 \
        cuda_dsd_wgmma_pack_##name(const __grid_constant__ dsd_pack_arg a)                         \
    {                                                                                              \
        pack<word>(a);                                                                             \
    }
PACK_KERNEL(halves, uint16_t)
PACK_KERNEL(tf32, uint32_t)
