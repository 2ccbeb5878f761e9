/* dsd for up to 16 samples of 16-bit types and blocks of 8 features, b contiguous along the depth: whole
 * blocks come by asynchronous copies, so that little else than reading the kept weights should take time;
 * dsd_pieces.c plans what the tables say.
 *
 * A warp multiplies steps of four runs, 8 of the depth each. Its ring in shared memory holds SLOTS of
 * them: [run][8 lines of 16 bytes], where a line is a k with values across the depth, and a feature with
 * values along it. Samples lie along the rows of m16n8k16, features along its columns. Both operands want
 * pairs of neighbours along the depth, and which of them is the same for both: lane (g, q), g = lane / 4
 * and q = lane % 4, has the eight of run q, of b by one load of 16 bytes. So it has of weights along the
 * depth; across it ldmatrix.trans of the right lines brings them. */
#include <backends/cuda/sm90a/dsd_narrow_device.h>

/* A tile of 8 features by TN samples. FLIP: blocks are stored by columns of op(S). */
template <typename T_, bool FLIP_, int TN_> struct config {
    typedef T_ T;
    static constexpr bool FLIP = FLIP_;
    static constexpr int TI = 8, TN = TN_, NT = 1, ROWS = TN / 8;
    static constexpr int SCRATCH = DSD_NARROW_SCRATCH(TI, TN);
    static __device__ __forceinline__ void sum(const dsd_narrow_arg &a,
                                               const dsd_narrow_piece &piece, float *scratch);
};

enum { SLOTS = DSD_STREAM_SLOTS, LINE_BYTES = 16, RUN_BYTES = 128 };

/* Where a line is in a slot: neither those that eight lanes write nor those that they read meet in a
 * bank. */
FN uint32_t line_at(int run, int line)
{
    return (uint32_t)(run * RUN_BYTES + (line + 2 * run) % 8 * LINE_BYTES);
}

/* What a lane knows of a step: the run of the line that it copies, and its own of b. */
FN dsd_few_run step_find(const dsd_few_run *runs, int step, int steps, int lane)
{
    if (step >= steps)
        return {0, DSD_FEW_NONE};
    runs += step * DSD_FEW_STEP;
    return {__ldg(&runs[lane % 4].b), __ldg(&runs[lane / 8].s)};
}

/* Line lane % 8 of run lane / 8: neighbouring lanes have neighbouring bytes. */
FN void step_copy(uint32_t slot, const char *lines, const dsd_few_run &run, int lane)
{
    cp_async_16(slot + line_at(lane / 8, lane % 8), weights_address(lines, run.s),
                run.s != DSD_FEW_NONE ? LINE_BYTES : 0);
    cp_async_commit();
}

/* A lane's samples, g and g + 8, of its run. */
template <class C>
FN void samples_load(uint32_t (&x)[2][4], const dsd_few_operands &o, uint32_t run, int lane)
{
    const char *b = lines_address((const char *)o.b, run);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const int n = m * 8 + lane / 4;
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[m][i] = 0;
        if (m < C::ROWS && run >> DSD_FEW_PLACE && n < o.end.n)
            load_global<8, true>(x[m], b + (int64_t)n * o.b_pitch);
    }
}

template <class C>
FN void step_multiply(uint32_t slot, const uint32_t (&x)[2][4], float (&sum)[4], int lane)
{
    uint32_t w[4]; /* pairs along the depth of run q, of feature g */
    if (C::FLIP) {
        ldmatrix_x4_trans(w, slot + line_at(lane % 8 / 2, lane / 8 * 2 + lane % 2));
    } else {
        const uint4 v = shared_load_16(slot + line_at(lane % 4, lane / 4));
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    }
#pragma unroll
    for (int half = 0; half < 4; half += 2) {
        const uint32_t a[4] = {x[0][half], x[1][half], x[0][half + 1], x[1][half + 1]};
        mma_m16n8k16<typename C::T>(sum, a, w + half);
    }
}

template <typename T, bool FLIP, int TN>
__device__ __forceinline__ void config<T, FLIP, TN>::sum(const dsd_narrow_arg &a,
                                                         const dsd_narrow_piece &piece,
                                                         float *scratch)
{
    typedef config C;
    enum { TURN = SLOTS * DSD_NARROW_WARPS, AT_ONCE = 2 };
    extern __shared__ float shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, steps = piece.steps;
    const dsd_few_operands &o = a.operands;
    const dsd_few_run *runs = a.runs + (int64_t)piece.first * DSD_FEW_STEP;
    const char *lines = (const char *)o.s + lane % 8 * o.s_pitch;
    const uint32_t ring = shared_address(shared + DSD_NARROW_WARPS * SCRATCH) +
                          (uint32_t)(warp * SLOTS * DSD_STREAM_SLOT_BYTES);
    float v[4] = {};
    uint32_t b[SLOTS]; /* of the steps under way */
    dsd_few_run next[SLOTS];
    int step = warp * SLOTS;
#pragma unroll
    for (int i = 0; i < SLOTS; i++)
        next[i] = step_find(runs, step + i, steps, lane);
#pragma unroll
    for (int i = 0; i < SLOTS; i++)
        if (next[i].s != DSD_FEW_NONE)
            prefetch_global(weights_address(lines, next[i].s));
    grid_wait();
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        b[i] = next[i].b;
        step_copy(ring + i * DSD_STREAM_SLOT_BYTES, lines, next[i], lane);
        next[i] = step_find(runs, step + TURN + i, steps, lane);
    }
#pragma unroll 1
    for (; step < steps; step += TURN)
#pragma unroll
        for (int i = 0; i < SLOTS; i += AT_ONCE) {
            uint32_t x[AT_ONCE][2][4];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                samples_load<C>(x[j], o, b[i + j], lane);
            cp_async_wait<SLOTS - AT_ONCE>();
            __syncwarp();
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                step_multiply<C>(ring + (i + j) * DSD_STREAM_SLOT_BYTES, x[j], v, lane);
            __syncwarp(); /* all have read the slots */
#pragma unroll
            for (int j = i; j < i + AT_ONCE; j++) {
                b[j] = next[j].b;
                step_copy(ring + j * DSD_STREAM_SLOT_BYTES, lines, next[j], lane);
                next[j] = step_find(runs, step + 2 * TURN + j, steps, lane);
            }
        }
    cp_async_wait<0>();
    const int g = lane / 4, q = lane % 4;
#pragma unroll
    for (int e = 0; e < 2 * ROWS; e++)
        scratch[row_at<C>(g + e / 2 * 8) + 2 * q + e % 2] = v[e];
}

#define STREAM(type, T, flip, name, tn, blocks)                                                    \
    extern "C" __global__ void __launch_bounds__(DSD_NARROW_THREADS, blocks)                       \
        dsd_sm90a_stream_8_##tn##_##name##_##type(const __grid_constant__ dsd_narrow_arg a)        \
    {                                                                                              \
        narrow<config<T, flip, tn>>(a);                                                            \
    }
#define STREAM_HALVES(type, T) DSD_STREAM_HALVES(STREAM, type, T)
FOR_HALVES(STREAM_HALVES)
