/* Packs weights as dsd_mma multiplies them: step by step, of f32 rounded to tf32. */
#include <backends/cuda/mma.h>
#include <backends/cuda/ptx.h>
#include <backends/cuda/sm90a/dsd_mma.h>

#define FN static __device__ __forceinline__

enum { LANES = 32 };

/* Which output of a unit is in a row of its w-th matrix of 8 x 8: the order that makes a lane's sums
 * neighbours, see run_sort. */
template <int UNIT> FN int pack_output(int row, int w)
{
    return UNIT == 8 ? row : row / 2 * (UNIT / 4) + w / 4 * 4 + row % 2 + w / 2 % 2 * 2;
}

/* Two neighbours in memory of the w-th matrix, of features that are there. ALONG: two of an output, as
 * the product wants them; else of a feature, for outputs that lanes turn the matrix for. */
template <int UNIT, bool ALONG>
FN uint32_t pack_load(const dsd_mma_pack_arg &a, const uint16_t *from, int w, int valid, int lane)
{
    const int row = lane / 4, two = lane % 4 * 2;
    const int feature = w % 2 * 8 + (ALONG ? two : row);
    const uint16_t *p = from + (ALONG ? pack_output<UNIT>(row, w) * a.row_stride + feature
                                      : pack_output<UNIT>(two, w) + feature * a.feature_stride);
    if (ALONG && feature + 1 == valid)
        return *p;
    return feature < valid ? *(const uint32_t *)p : 0;
}

/* What a lane packs of a step, by the size of an element. */
template <int UNIT, int SIZE, bool ALONG> struct words {
    typedef uint16_t element;
    static constexpr bool TURN = !ALONG; /* whether lanes turn matrices */
    static constexpr int COUNT = UNIT == 8 ? 1 : UNIT / 4;
    FN uint32_t load(const dsd_mma_pack_arg &a, const uint16_t *from, int w, int valid, int lane)
    {
        return pack_load<UNIT, ALONG>(a, from, w, valid, lane);
    }
};

/* Of f32 a number each. Outputs of units of 32 are in the order of two units of 16. */
template <int UNIT, bool ALONG> struct words<UNIT, 4, ALONG> {
    typedef float element;
    static constexpr bool TURN = false;
    static constexpr int COUNT = UNIT / 4, ORDER = UNIT == 32 ? 16 : UNIT;
    FN uint32_t load(const dsd_mma_pack_arg &a, const float *from, int w, int valid, int lane)
    {
        const int feature = w % 2 * 4 + lane % 4;
        const int output = w / 4 * 16 + pack_output<ORDER>(lane / 4, w % 4);
        const float *p = from + output * a.row_stride + feature * a.feature_stride;
        return feature < valid ? mma_tf32(*p) : 0;
    }
};

/* Writes some steps a warp: operands of products in the order in which lanes load them. All of a warp's
 * loads are under way before the first store. */
template <int UNIT, int SIZE, bool ALONG>
FN void pack_steps(const dsd_mma_pack_arg &a, uint4 own, int count)
{
    typedef words<UNIT, SIZE, ALONG> words;
    constexpr int STEPS = DSD_MMA_PACK_STEPS(UNIT), WORDS = words::COUNT;
    const int lane = threadIdx.x % LANES;
    uint32_t word[STEPS][WORDS];
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const uint32_t source = __shfl_sync(~0u, own.y, i);
        const int valid = (int)__shfl_sync(~0u, own.z, i);
        const auto *from = (const typename words::element *)a.source + (size_t)source * 8;
        if (UNIT == 8 && !valid)
            word[i][0] = __ldg(a.codes + (size_t)source * LANES + lane);
        else
#pragma unroll
            for (int w = 0; w < WORDS; w++)
                word[i][w] = words::load(a, from, w, valid, lane);
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        char *to = (char *)a.image + (size_t)__shfl_sync(~0u, own.x, i) * 16;
        if (i >= count)
            break;
        if (words::TURN && (UNIT > 8 || __shfl_sync(~0u, own.z, i)))
#pragma unroll
            for (int w = 0; w < WORDS; w++)
                word[i][w] = movmatrix_trans(word[i][w]);
        if (WORDS == 1 || (UNIT == 8 && !__shfl_sync(~0u, own.z, i))) {
            ((uint32_t *)to)[lane] = word[i][0];
        } else if constexpr (WORDS > 1) {
#pragma unroll
            for (int w = 0; w < WORDS; w += 2)
                ((uint2 *)to)[w / 2 * LANES + lane] = make_uint2(word[i][w], word[i][w + 1]);
        }
    }
}

template <int UNIT, int SIZE> FN void pack(const dsd_mma_pack_arg &a)
{
    constexpr int STEPS = DSD_MMA_PACK_STEPS(UNIT);
    const int lane = threadIdx.x % LANES;
    const int64_t first = ((int64_t)blockIdx.x * DSD_MMA_PACK_WARPS + threadIdx.x / LANES) * STEPS;
    grid_allow_next();
    if (first >= a.count)
        return;
    const int count = a.count - first < STEPS ? (int)(a.count - first) : STEPS;
    /* to, source, valid: a plain load, which stays before the wait */
    const uint4 own = *(const uint4 *)(a.steps + first + (lane < count ? lane : count - 1));
    grid_wait();
    if (a.feature_stride == 1)
        pack_steps<UNIT, SIZE, true>(a, own, count);
    else
        pack_steps<UNIT, SIZE, false>(a, own, count);
}

#define PACK(name, unit, size)                                                                     \
    extern "C" __global__ void __launch_bounds__(DSD_MMA_PACK_WARPS * 32)                          \
        dsd_sm90a_mma_pack_##name(const __grid_constant__ dsd_mma_pack_arg a)                      \
    {                                                                                              \
        pack<unit, size>(a);                                                                       \
    }
PACK(8, 8, 2)
PACK(16, 16, 2)
PACK(32, 32, 2)
PACK(tf32_8, 8, 4)
PACK(tf32_16, 16, 4)
PACK(tf32_32, 32, 4)
