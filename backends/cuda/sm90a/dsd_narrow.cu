/* dsd for a small minibatch: bound by reading the kept weights once, from memory into the registers
 * of the products without a stop in shared memory; dsd_narrow.c plans what the tables say.
 *
 * Samples lie along the rows of m16n8k16 (16), features along its columns (8). Both operands want
 * pairs of neighbours along the depth in a register; which of them is the same for both, so a lane
 * may hold any as long as its partner does: lane (g, q), g = lane / 4 and q = lane % 4, takes the
 * 8 of run q of a step of four runs, whose blocks need not be neighbours. Where an operand is
 * contiguous along the depth that is one load of 16 bytes; across it, eight loads of some
 * neighbours, whose halves are exchanged between pairs of rows, or for tiles of 8 features four of
 * two neighbours, which movmatrix brings to their lanes. */
#include <string.h>

#include <backends/cuda/mma.h>
#include <backends/cuda/ptx.h>
#include <backends/cuda/sm90a/dsd_narrow.h>

#define FN static __device__ __forceinline__

enum { PAIRS = DSD_RUN / 2 }; /* registers of a run */

/* A tile of TI features by TN samples. FLIP: blocks are stored by columns of op(S). ALONG_K: b is
 * contiguous along the depth, else along its columns. */
template <typename T_, bool FLIP_, bool ALONG_K_, int TI_, int TN_> struct config {
    typedef T_ T;
    static constexpr bool FLIP = FLIP_, ALONG_K = ALONG_K_;
    static constexpr int TI = TI_, TN = TN_, NT = TI / 8, ROWS = TN / 8;
    static constexpr int SCRATCH = DSD_NARROW_SCRATCH(TI, TN);
    /* Steps whose loads are under way together, as far as there are registers. */
    static constexpr int AHEAD = TN == 64 ? 1 : 2;
    /* Weights across the depth are loaded as matrices: lane (g, q) those of run g / 2. */
    static constexpr bool TURN = FLIP && TI == 8;
};

/* --- Loads --- */

/* Eight rows of WIDTH neighbours, as they were loaded. */
template <int WIDTH> struct rows {
    uint32_t v[DSD_RUN][(WIDTH + 1) / 2];
};

template <int WIDTH, bool KEEP>
FN void rows_load(rows<WIDTH> &r, bool on, const char *from, int32_t pitch)
{
#pragma unroll
    for (int i = 0; i < DSD_RUN; i++) {
#pragma unroll
        for (int e = 0; e < (WIDTH + 1) / 2; e++)
            r.v[i][e] = 0;
        if (on)
            load_global<WIDTH, KEEP>(r.v[i], from + (int64_t)i * pitch);
    }
}

/* Neighbour number e of the rows 2 p and 2 p + 1. */
template <int WIDTH> FN uint32_t rows_pair(const rows<WIDTH> &r, int e, int p)
{
    return __byte_perm(r.v[2 * p][e / 2], r.v[2 * p + 1][e / 2], e % 2 ? 0x7632 : 0x5410);
}

/* --- A step --- */

/* The runs of a step's operands, of one lane: NT columns of features, ROWS rows of samples. Column
 * g of tile j is feature 8 j + g, or with FLIP NT g + j; row g of half h of tile i is sample
 * 16 i + 8 h + g, or across the depth ROWS g + 2 i + h. */
template <class C> struct operands {
    uint32_t w[C::NT][PAIRS], x[C::ROWS][PAIRS];
};

/* Where a lane's operands lie, but for the run. */
struct place {
    const char *s, *b;
    int32_t s_pitch; /* from a feature tile, or with FLIP a k, to the next: bytes */
    int32_t b_pitch; /* from 8 samples, or across the depth a k, to the next: bytes */
    int32_t samples; /* b has so many from the lane's first on */
};

FN const char *run_address(const char *base, uint32_t run)
{
    return base + (uint64_t)run * 16;
}

/* Two rows of each run at a time are a matrix: lane (g, q) loads two features of row g % 2 of those
 * of run g / 2, and gets feature g of both rows of run q. Runs begin in the same banks of the cache,
 * so each has other rows first. */
FN void weights_turn(uint32_t (&w)[PAIRS], bool on, const char *s, int32_t pitch)
{
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    uint32_t v[PAIRS], odd[PAIRS];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        v[i] = 0;
        if (on)
            load_global<2, false>(v + i, s + ((i + g / 2) % PAIRS * 2 + g % 2) * pitch + q * 4);
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
        v[i] = movmatrix_trans(v[i]);
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
        odd[i] = q & 1 ? v[(i + 3) % PAIRS] : v[i];
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
        w[i] = q & 2 ? odd[(i + 2) % PAIRS] : odd[i];
}

template <class C> FN void step_load(const place &p, dsd_narrow_run run, operands<C> &o)
{
    const bool on = run.b != DSD_NARROW_NONE, kept = run.s != DSD_NARROW_NONE;
    const char *s = run_address(p.s, run.s), *b = run_address(p.b, run.b);
    rows<C::NT> flipped;
    rows<C::ROWS> across;
    if constexpr (C::TURN) {
        weights_turn(o.w[0], kept, s, p.s_pitch);
    } else if constexpr (C::FLIP) {
        rows_load<C::NT, false>(flipped, kept, s, p.s_pitch);
    } else {
#pragma unroll
        for (int j = 0; j < C::NT; j++) {
#pragma unroll
            for (int i = 0; i < PAIRS; i++)
                o.w[j][i] = 0;
            if (kept)
                load_global<DSD_RUN, false>(o.w[j], s + (int64_t)j * p.s_pitch);
        }
    }
    if constexpr (C::ALONG_K) {
#pragma unroll
        for (int h = 0; h < C::ROWS; h++) {
#pragma unroll
            for (int i = 0; i < PAIRS; i++)
                o.x[h][i] = 0;
            if (on && 8 * h < p.samples)
                load_global<DSD_RUN, true>(o.x[h], b + (int64_t)h * p.b_pitch);
        }
    } else {
        rows_load<C::ROWS, true>(across, on && p.samples > 0, b, p.b_pitch);
#pragma unroll
        for (int h = 0; h < C::ROWS; h++)
#pragma unroll
            for (int i = 0; i < PAIRS; i++)
                o.x[h][i] = rows_pair(across, h, i);
    }
    if constexpr (C::FLIP && !C::TURN)
#pragma unroll
        for (int j = 0; j < C::NT; j++)
#pragma unroll
            for (int i = 0; i < PAIRS; i++)
                o.w[j][i] = rows_pair(flipped, j, i);
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

/* Starts to bring a lane's weights into the second-level cache. Nothing is read, so this may go
 * ahead of the queue's earlier work. */
template <class C> FN void step_prefetch(const place &p, dsd_narrow_run run)
{
    const char *from = run_address(p.s, run.s);
    if (run.s != DSD_NARROW_NONE)
#pragma unroll
        for (int i = 0; i < (C::TURN ? 1 : C::FLIP ? DSD_RUN : C::NT); i++)
            prefetch_global(from + (int64_t)i * p.s_pitch);
}

/* A lane's run of b and of the weights. */
template <class C> FN dsd_narrow_run find_run(const dsd_narrow_run *runs, int step, int steps)
{
    const int lane = threadIdx.x % 32, q = lane % DSD_NARROW_STEP;
    dsd_narrow_run run = {DSD_NARROW_NONE, DSD_NARROW_NONE};
    runs += step * DSD_NARROW_STEP;
    if (step >= steps)
        return run;
    if (C::TURN) {
        run.b = __ldg(&runs[q].b);
        run.s = __ldg(&runs[lane / 8].s);
    } else {
        const uint2 v = __ldg((const uint2 *)(runs + q));
        run.b = v.x;
        run.s = v.y;
    }
    return run;
}

/* A warp's sum over its steps: every DSD_NARROW_WARPS-th of the piece. */
template <class C>
FN void piece_multiply(const dsd_narrow_run *runs, int steps, const place &p,
                       float (&sum)[C::ROWS / 2][C::NT][4])
{
    enum { TURN = C::AHEAD * DSD_NARROW_WARPS };
    int step = threadIdx.x / 32;
    dsd_narrow_run next[C::AHEAD];
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

/* --- Results --- */

/* Where the features of a sample begin in the scratch. Gaps, so that lanes that store together, and
 * those that load, mostly meet different banks. */
template <class C> FN constexpr int row_at(int n)
{
    return C::ALONG_K ? n * (C::TI + 1) : n * C::TI + n / C::ROWS * 5;
}

/* The sums of a warp, [samples][features]. */
template <class C> FN void sums_put(float *to, int lane, const float (&sum)[C::ROWS / 2][C::NT][4])
{
    const int g = lane / 4, q = lane % 4;
    to += row_at<C>(C::ALONG_K ? g : C::ROWS * g) + 2 * q * (C::FLIP ? C::NT : 1);
#pragma unroll
    for (int i = 0; i < C::ROWS / 2; i++)
#pragma unroll
        for (int j = 0; j < C::NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int h = 2 * i + e / 2, c = e % 2;
                to[row_at<C>(C::ALONG_K ? 8 * h : h) + (C::FLIP ? C::NT * c + j : 8 * j + c)] =
                    sum[i][j][e];
            }
}

/* The place of run number x of a tile in the scratch, and in the tile. */
struct run_place {
    float *at;
    int i, n;
    bool along_n;
};

template <class C> FN run_place place_run(const dsd_narrow_arg &a, float *scratch, int x)
{
    run_place r;
    r.along_n = a.end.along_n;
    r.i = r.along_n ? x / C::ROWS : x % C::NT * DSD_RUN;
    r.n = r.along_n ? x % C::ROWS * DSD_RUN : x / C::NT;
    r.at = scratch + row_at<C>(r.n) + r.i;
    return r;
}

/* From a run's first element to its number e. */
template <class C> FN int element_at(const run_place &r, int e)
{
    return r.along_n ? row_at<C>(e) : e;
}

/* Stores a run of sums. The plain end apart: all that dsd_finish can do takes long to fetch. */
FN void run_store(const dsd_epilogue &e, float (&v)[DSD_RUN], int64_t feature, int64_t n)
{
    if ((!e.plain && !e.plain_n) || e.bias) {
        dsd_finish(e, v, feature, n, 0);
        return;
    }
    if (feature >= e.features)
        return;
#pragma unroll
    for (int i = 0; i < DSD_RUN; i++)
        v[i] *= e.alpha;
    const bool bf16 = e.c.type == BSK_BF16;
    *(uint4 *)(e.c.data + (feature * e.c.feature + n * e.c.n) * 2) =
        make_uint4(dsd_pack(bf16, v[0], v[1]), dsd_pack(bf16, v[2], v[3]),
                   dsd_pack(bf16, v[4], v[5]), dsd_pack(bf16, v[6], v[7]));
}

/* Adds up the warps' sums in their order. They are what C needs, or a part of it, which stays in
 * the scratch. */
template <class C>
FN void warps_add(const dsd_narrow_arg &a, const dsd_narrow_piece &piece, int64_t feature,
                  float *scratch)
{
#pragma unroll 1
    for (int x = threadIdx.x; x < C::TN * C::NT; x += DSD_NARROW_THREADS) {
        const run_place r = place_run<C>(a, scratch, x);
        float v[DSD_RUN] = {0};
        if (r.n >= a.end.n)
            continue;
#pragma unroll
        for (int w = 0; w < DSD_NARROW_WARPS; w++)
#pragma unroll
            for (int e = 0; e < DSD_RUN; e++)
                v[e] += r.at[w * C::SCRATCH + element_at<C>(r, e)];
        if (piece.parts == 1)
            run_store(a.end, v, feature + r.i, r.n);
        else
#pragma unroll
            for (int e = 0; e < DSD_RUN; e++)
                r.at[element_at<C>(r, e)] = v[e];
    }
}

/* Adds up the parts of a list in their order; the thread blocks that have them share the runs. */
template <class C>
FN void parts_add(const dsd_narrow_arg &a, const dsd_narrow_piece &piece, int64_t feature,
                  float *scratch)
{
    const uint32_t first = cluster_rank() - piece.part;
#pragma unroll 1
    for (int x = threadIdx.x * piece.parts + piece.part; x < C::TN * C::NT;
         x += DSD_NARROW_THREADS * piece.parts) {
        const run_place r = place_run<C>(a, scratch, x);
        const uint32_t from = shared_address(r.at);
        float v[DSD_RUN] = {0};
        if (r.n >= a.end.n)
            continue;
#pragma unroll 1
        for (int p = 0; p < piece.parts; p++)
#pragma unroll
            for (int e = 0; e < DSD_RUN; e++)
                v[e] += cluster_load(from + element_at<C>(r, e) * 4, first + p);
        run_store(a.end, v, feature + r.i, r.n);
    }
}

template <class C> FN void narrow(const dsd_narrow_arg &a)
{
    extern __shared__ float shared[];
    const dsd_narrow_piece piece = a.pieces[blockIdx.x];
    const int lane = threadIdx.x % 32, g = lane / 4;
    grid_allow_next();
    const int first = blockIdx.y * C::TI; /* feature of the block row */
    const int row = C::ALONG_K ? g : C::ROWS * g;
    const int width = C::TI < 32 ? C::TI : a.features;
    place p;
    p.s = (const char *)a.s + (C::TURN   ? 0
                               : C::FLIP ? first + g * C::NT
                                         : (int64_t)(first + g) * a.block_k) *
                                  2;
    p.s_pitch = (C::FLIP ? width : 8 * a.block_k) * 2;
    p.b = (const char *)a.b + row * a.b_n * 2;
    p.b_pitch = C::ALONG_K ? (int32_t)(16 * a.b_n) : a.b_pitch;
    p.samples = (int32_t)a.end.n - row;
    float sum[C::ROWS / 2][C::NT][4] = {};
    piece_multiply<C>(a.runs + (int64_t)piece.first * DSD_NARROW_STEP, piece.steps, p, sum);
    sums_put<C>(shared + threadIdx.x / 32 * C::SCRATCH, lane, sum);
    __syncthreads();
    const int64_t feature = (int64_t)piece.row * a.features + first;
    if (piece.row >= 0)
        warps_add<C>(a, piece, feature, shared);
    if (a.cluster == 1)
        return;
    __syncwarp();
    cluster_sync();
    if (piece.parts > 1)
        parts_add<C>(a, piece, feature, shared);
    __syncwarp();
    cluster_sync(); /* others may still read the scratch */
}

#define NARROW(T, type, flip, order, along_k, axis, ti, tn, blocks)                                \
    extern "C" __global__ void __launch_bounds__(DSD_NARROW_THREADS, blocks)                       \
        dsd_sm90a_narrow_##ti##_##tn##_##order##_##axis##_##type(                                  \
            const __grid_constant__ dsd_narrow_arg a)                                              \
    {                                                                                              \
        narrow<config<T, flip, along_k, ti, tn>>(a);                                               \
    }
#define NARROW_SIZES(T, type, flip, order, along_k, axis)                                          \
    NARROW(T, type, flip, order, along_k, axis, 8, 16, 6)                                          \
    NARROW(T, type, flip, order, along_k, axis, 8, 32, 6)                                          \
    NARROW(T, type, flip, order, along_k, axis, 8, 64, 6)                                          \
    NARROW(T, type, flip, order, along_k, axis, 16, 16, 6)                                         \
    NARROW(T, type, flip, order, along_k, axis, 16, 32, 6)                                         \
    NARROW(T, type, flip, order, along_k, axis, 16, 64, 4)                                         \
    NARROW(T, type, flip, order, along_k, axis, 32, 16, 5)                                         \
    NARROW(T, type, flip, order, along_k, axis, 32, 32, 4)                                         \
    NARROW(T, type, flip, order, along_k, axis, 32, 64, 3)
#define NARROW_ORDERS(T, type)                                                                     \
    NARROW_SIZES(T, type, false, rows, true, nc)                                                   \
    NARROW_SIZES(T, type, false, rows, false, cn)                                                  \
    NARROW_SIZES(T, type, true, cols, true, nc)                                                    \
    NARROW_SIZES(T, type, true, cols, false, cn)
NARROW_ORDERS(__nv_bfloat16, bf16)
NARROW_ORDERS(__half, f16)
