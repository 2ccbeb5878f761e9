/* dsd for a small minibatch: bound by reading the kept weights once, from memory into the registers
 * of the products without a stop in shared memory; dsd_narrow.c plans what the tables say.
 *
 * Samples lie along the rows of m16n8k16 (16), features along its columns (8). Both operands want
 * pairs of neighbours along the depth in a register; which of them is the same for both, so a lane
 * may hold any as long as its partner does: lane (g, q), g = lane / 4 and q = lane % 4, takes the
 * 8 of run q of a step of four runs, whose blocks need not be neighbours. Where an operand is
 * contiguous along the depth, as b always is, that is one load of 16 bytes; across it, four loads
 * of neighbours, which movmatrix brings to their lanes. */
#include <backends/cuda/sm90a/dsd_narrow_device.h>

enum { PAIRS = DSD_RUN / 2 }; /* registers of a run */

/* A tile of TI features by TN samples. FLIP: blocks are stored by columns of op(S). */
template <typename T_, bool FLIP_, int TI_, int TN_> struct config {
    typedef T_ T;
    static constexpr bool FLIP = FLIP_;
    static constexpr int TI = TI_, TN = TN_, NT = TI / 8, ROWS = TN / 8;
    static constexpr int SCRATCH = DSD_NARROW_SCRATCH(TI, TN);
    /* Steps whose loads are under way together, as far as there are registers. */
    static constexpr int AHEAD = TN == 64 ? 1 : 2;
    static __device__ __forceinline__ void sum(const dsd_narrow_arg &a,
                                               const dsd_narrow_piece &piece, float *scratch);
};

/* --- Loads --- */

/* A run of an operand that is contiguous across the depth, TILES of 8 neighbours wide. Two rows of
 * each of the four runs at a time are matrices: lane (g, q) loads 2 TILES neighbours, number q, of
 * row g % 2 of those of run g / 2, and movmatrix brings it a pair of rows of run q. Column g of
 * tile t is neighbour 2 TILES (g / 2) + 2 t + g % 2. Where rows are short, runs begin in the same
 * banks of the cache, so that each has other rows first. */
template <int TILES>
FN void turn_load(uint32_t (&to)[TILES][PAIRS], bool on, const char *from, int32_t pitch)
{
    enum { SKEW = 2 / TILES };
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int skew = g / 2 % (2 * SKEW);
    uint32_t v[TILES][PAIRS];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const char *row = from + (int64_t)((i ^ skew) * 2 + g % 2) * pitch;
        uint32_t line[TILES] = {};
        if (on)
            load_global<2 * TILES, false>(line, row);
#pragma unroll
        for (int t = 0; t < TILES; t++)
            v[t][i] = line[t];
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
            v[t][i] = movmatrix_trans(v[t][i]);
#pragma unroll
        for (int bit = 1; bit < 2 * SKEW; bit *= 2) {
            uint32_t other[PAIRS];
#pragma unroll
            for (int i = 0; i < PAIRS; i++)
                other[i] = q & bit ? v[t][i ^ bit] : v[t][i];
#pragma unroll
            for (int i = 0; i < PAIRS; i++)
                v[t][i] = other[i];
        }
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
            to[t][i] = v[t][i];
    }
}

/* A run of an operand that is contiguous along the depth: TILES lines, a tile apart. */
template <int TILES, bool KEEP>
FN void line_load(uint32_t (&to)[TILES][PAIRS], bool on, const char *from, int32_t pitch,
                  int32_t count)
{
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
            to[t][i] = 0;
        if (on && 8 * t < count)
            load_global<DSD_RUN, KEEP>(to[t], from + (int64_t)t * pitch);
    }
}

/* --- A step --- */

/* The runs of a step's operands, of one lane: NT tiles of 8 features, ROWS tiles of 8 samples. */
template <class C> struct operands {
    uint32_t w[C::NT][PAIRS], x[C::ROWS][PAIRS];
};

/* Column g of tile t along the axis that an operand shares with C. */
template <bool ACROSS, int TILES> FN constexpr int column_at(int g, int t)
{
    return ACROSS ? 2 * TILES * (g / 2) + 2 * t + g % 2 : 8 * t + g;
}

/* From a tile's first line to what a lane loads. */
template <bool ACROSS, int TILES> FN int lane_first(int lane)
{
    return ACROSS ? 2 * TILES * (lane % 4) : lane / 4;
}

/* Where a lane's operands lie, but for the run. */
struct place {
    const char *s, *b;
    int32_t s_pitch; /* from a feature tile, or with FLIP a k, to the next: bytes */
    int32_t b_pitch; /* from 8 samples to the next: bytes */
    int32_t samples; /* b has so many from the lane's first on */
};

template <class C> FN void step_load(const place &p, dsd_few_run run, operands<C> &o)
{
    const char *w = weights_address(p.s, run.s);
    if constexpr (C::FLIP)
        turn_load(o.w, run.s != DSD_FEW_NONE, w, p.s_pitch);
    else
        line_load<C::NT, false>(o.w, run.s != DSD_FEW_NONE, w, p.s_pitch, C::TI);
    line_load<C::ROWS, true>(o.x, run.b >> DSD_FEW_PLACE, lines_address(p.b, run.b), p.b_pitch,
                             p.samples);
}

template <class C> FN void step_multiply(const operands<C> &o, float (&sum)[C::ROWS / 2][C::NT][4])
{
#pragma unroll
    for (int half = 0; half < PAIRS; half += 2)
#pragma unroll
        for (int i = 0; i < C::ROWS / 2; i++) {
            const uint32_t x[4] = {o.x[2 * i][half], o.x[2 * i + 1][half], o.x[2 * i][half + 1],
                                   o.x[2 * i + 1][half + 1]};
#pragma unroll
            for (int j = 0; j < C::NT; j++)
                mma_m16n8k16<typename C::T>(sum[i][j], x, o.w[j] + half);
        }
}

/* Starts to bring a step's weights into the second-level cache. Nothing is read, so this may go
 * ahead of the queue's earlier work. */
template <class C> FN void step_prefetch(const place &p, dsd_few_run run)
{
    const int lane = threadIdx.x % 32;
    const char *from = weights_address(p.s, run.s);
    if (run.s == DSD_FEW_NONE)
        return;
    if (C::FLIP)
        prefetch_global(from + (lane % 4 * 2 + lane / 4 % 2) * p.s_pitch);
    else
#pragma unroll
        for (int j = 0; j < C::NT; j++)
            prefetch_global(from + (int64_t)j * p.s_pitch);
}

/* A lane's runs of the operands of a step. */
template <class C> FN dsd_few_run find_run(const dsd_few_run *runs, int step, int steps)
{
    const int lane = threadIdx.x % 32, q = lane % 4, turned = lane / 8;
    dsd_few_run run = {0, DSD_FEW_NONE};
    runs += step * DSD_FEW_STEP;
    if (step >= steps)
        return run;
    if (C::FLIP) {
        run.b = __ldg(&runs[q].b);
        run.s = __ldg(&runs[turned].s);
    } else {
        const uint2 v = __ldg((const uint2 *)(runs + q));
        run.b = v.x;
        run.s = v.y;
    }
    return run;
}

/* A warp's sum over its steps: every DSD_NARROW_WARPS-th of the piece. */
template <class C>
FN void piece_multiply(const dsd_few_run *runs, int steps, const place &p,
                       float (&sum)[C::ROWS / 2][C::NT][4])
{
    enum { TURN = C::AHEAD * DSD_NARROW_WARPS };
    int step = threadIdx.x / 32;
    dsd_few_run next[C::AHEAD];
#pragma unroll
    for (int i = 0; i < C::AHEAD; i++)
        next[i] = find_run<C>(runs, step + i * DSD_NARROW_WARPS, steps);
#pragma unroll
    for (int i = 0; i < C::AHEAD; i++)
        step_prefetch<C>(p, next[i]);
    grid_wait();
#pragma unroll 1
    for (; step < steps; step += TURN) {
        operands<C> o[C::AHEAD];
#pragma unroll
        for (int i = 0; i < C::AHEAD; i++)
            step_load<C>(p, next[i], o[i]);
#pragma unroll
        for (int i = 0; i < C::AHEAD; i++)
            next[i] = find_run<C>(runs, step + TURN + i * DSD_NARROW_WARPS, steps);
#pragma unroll
        for (int i = 0; i < C::AHEAD; i++)
            step_multiply<C>(o[i], sum);
    }
}

/* The sums of a warp, [samples][features]. */
template <class C> FN void sums_put(float *to, int lane, const float (&sum)[C::ROWS / 2][C::NT][4])
{
    const int g = lane / 4, q = lane % 4;
    to += row_at<C>(g) + column_at<C::FLIP, C::NT>(2 * q, 0);
#pragma unroll
    for (int i = 0; i < C::ROWS / 2; i++)
#pragma unroll
        for (int j = 0; j < C::NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                to[row_at<C>(16 * i + e / 2 * 8) + column_at<C::FLIP, C::NT>(e % 2, j)] =
                    sum[i][j][e];
}

template <typename T, bool FLIP, int TI, int TN>
__device__ __forceinline__ void config<T, FLIP, TI, TN>::sum(const dsd_narrow_arg &a,
                                                             const dsd_narrow_piece &piece,
                                                             float *scratch)
{
    typedef config C;
    const int lane = threadIdx.x % 32, row = lane / 4;
    const int feature_at = lane_first<C::FLIP, C::NT>(lane);
    place p;
    const dsd_few_operands &o = a.operands;
    p.s = (const char *)o.s + (int64_t)feature_at * (C::FLIP ? 2 : o.s_pitch);
    p.s_pitch = C::FLIP ? o.s_pitch : 8 * o.s_pitch;
    p.b = (const char *)o.b + (int64_t)row * o.b_pitch;
    p.b_pitch = 8 * o.b_pitch;
    p.samples = (int32_t)o.end.n - row;
    float v[C::ROWS / 2][C::NT][4] = {};
    piece_multiply<C>(a.runs + (int64_t)piece.first * DSD_FEW_STEP, piece.steps, p, v);
    sums_put<C>(scratch, lane, v);
}

#define NARROW(T, type, flip, order, ti, tn, blocks)                                               \
    extern "C" __global__ void __launch_bounds__(DSD_NARROW_THREADS, blocks)                       \
        dsd_sm90a_narrow_##ti##_##tn##_##order##_##type(const __grid_constant__ dsd_narrow_arg a)  \
    {                                                                                              \
        narrow<config<T, flip, ti, tn>>(a);                                                        \
    }
#define NARROW_SIZES(T, type, flip, order)                                                         \
    NARROW(T, type, flip, order, 8, 16, 6)                                                         \
    NARROW(T, type, flip, order, 8, 32, 6)                                                         \
    NARROW(T, type, flip, order, 8, 64, 6)                                                         \
    NARROW(T, type, flip, order, 16, 16, 6)                                                        \
    NARROW(T, type, flip, order, 16, 32, 6)                                                        \
    NARROW(T, type, flip, order, 16, 64, 4)
#define NARROW_ORDERS(type, T)                                                                     \
    NARROW_SIZES(T, type, false, rows)                                                             \
    NARROW_SIZES(T, type, true, cols)
FOR_HALVES(NARROW_ORDERS)
