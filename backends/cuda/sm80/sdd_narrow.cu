/* sdd for sm80 with a small minibatch: bound by writing s, and by reading the operands from L2. A
 * warp takes cells one after the other, and waits for no other: what its lanes load lies as the
 * tensor cores want it, so that nothing passes through shared memory.
 *
 * A sum over samples may take them in any order that a and b agree on, and the rows and columns of
 * a product may be any features, if the store knows which. So row g of tile t of 8 features, of a
 * cell's WIDTH, is feature WIDTH / 4 * (g / 2) + 2 * t + g % 2: a lane's sums of a row are then
 * neighbours, over all tiles, and so are what it loads of a sample. With g = lane / 4, q = lane % 4:
 *
 *     samples contiguous    a lane loads samples 8q to 8q + 7 of the feature of row g of each tile:
 *                           four words, each two neighbours along k of a fragment
 *     features contiguous   a lane loads features WIDTH / 4 * q and following of sample g: a word
 *                           for each tile, which is a fragment once the warp has transposed it */
#include <backends/cuda/sm80/mma_tile.h>
#include <backends/cuda/sm80/sdd_narrow.h>

/* Cells of ROWS features of a by COLS of b. ALONG_N: samples are contiguous, else features. */
template <typename T_, bool ALONG_N_, int ROWS_, int SAMPLES> struct narrow {
    typedef T_ T;
    static constexpr bool ALONG_N = ALONG_N_;
    static constexpr int ROWS = ROWS_, COLS = SDD_NARROW_COLS(ROWS, SAMPLES);
    static constexpr int CELLS = SDD_NARROW_CELLS(ROWS);
    static constexpr int EIGHTS = SAMPLES / 8; /* of samples */
    /* Two cells of 8 are transposed: their columns are a product's rows. */
    static constexpr bool TURNED = CELLS == 2;
    static constexpr int SUMS = TURNED ? 4 : ROWS * COLS / 32;
};

/* The cells of a turn. */
template <class C> struct turn {
    sdd_narrow_cell cell[C::CELLS];
};

template <class C> MMA_DEVICE turn<C> turn_read(const sdd_narrow_arg &a, int32_t at)
{
    turn<C> t;
#pragma unroll
    for (int i = 0; i < C::CELLS; i++) {
        const int4 v = __ldg((const int4 *)a.cells + (int64_t)at * C::CELLS + i);
        t.cell[i] = {v.x, v.y, v.z, v.w};
    }
    return t;
}

/* --- Loads --- */

/* COUNT neighbouring words. */
template <int COUNT> MMA_DEVICE void words_load(uint32_t *w, const char *from)
{
    if constexpr (COUNT == 4) {
        const uint4 v = *(const uint4 *)from;
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    } else if constexpr (COUNT == 2) {
        const uint2 v = *(const uint2 *)from;
        w[0] = v.x, w[1] = v.y;
    } else {
        w[0] = *(const uint32_t *)from;
    }
}

/* A lane's words of cells of an operand: bytes to its first one, and from a cell to the next. */
struct lane_place {
    int32_t first, cell, pitch;
    int32_t left; /* samples from a lane's first one on */
};

template <class C, int WIDTH> MMA_DEVICE lane_place lane_open(int32_t pitch, int32_t n)
{
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    if (C::ALONG_N)
        return {(WIDTH / 4 * (g / 2) + g % 2) * pitch + 16 * q, WIDTH * pitch, pitch, n - 8 * q};
    return {g * pitch + WIDTH / 2 * q, 2 * WIDTH, pitch, n - g};
}

/* Words of 8 samples each of WIDTH / 8 tiles, with zeros for samples beyond the last. */
template <class C, int WIDTH>
MMA_DEVICE void cell_load(uint32_t (*w)[C::EIGHTS], const lane_place &p, const char *data,
                          int32_t number, bool any)
{
    const char *from = data + p.first + (int64_t)number * p.cell;
    const int left = any ? p.left : 0;
    if constexpr (C::ALONG_N) {
#pragma unroll
        for (int t = 0; t < WIDTH / 8; t++)
#pragma unroll
            for (int k = 0; k < C::EIGHTS; k += 4) {
                uint32_t v[4] = {0, 0, 0, 0};
                if (8 * k < left)
                    words_load<4>(v, from + 2 * t * p.pitch + 16 * k);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    w[t][k + e] = v[e];
            }
    } else {
#pragma unroll
        for (int k = 0; k < C::EIGHTS; k++) {
            uint32_t v[WIDTH / 8] = {};
            if (8 * k < left)
                words_load<WIDTH / 8>(v, from + 8 * k * p.pitch);
#pragma unroll
            for (int t = 0; t < WIDTH / 8; t++)
                w[t][k] = v[t];
        }
    }
}

/* What was loaded becomes fragments. */
template <class C, int TILES> MMA_DEVICE void fragments(uint32_t (&w)[TILES][C::EIGHTS])
{
    if constexpr (!C::ALONG_N)
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int k = 0; k < C::EIGHTS; k++)
                w[t][k] = movmatrix_trans(w[t][k]);
}

/* --- Products --- */

/* sum[16 rows][8 columns] of tiles of rows and columns. */
template <class C, int ROW_TILES, int COLUMN_TILES>
MMA_DEVICE void add_products(float (&sum)[C::SUMS], const uint32_t (&rows)[ROW_TILES][C::EIGHTS],
                             const uint32_t (&columns)[COLUMN_TILES][C::EIGHTS])
{
#pragma unroll
    for (int k = 0; k < C::EIGHTS; k += 2) {
        uint32_t x[2 * ROW_TILES], w[2 * COLUMN_TILES];
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
            x[t / 2 * 4 + t % 2] = rows[t][k];
            x[t / 2 * 4 + t % 2 + 2] = rows[t][k + 1];
        }
#pragma unroll
        for (int t = 0; t < COLUMN_TILES; t++) {
            w[2 * t] = columns[t][k];
            w[2 * t + 1] = columns[t][k + 1];
        }
        multiply<typename C::T, ROW_TILES / 2, COLUMN_TILES>(sum, x, w);
    }
}

/* --- Stores --- */

/* alpha * sum + beta * old for the pair of neighbours `old`, rounded. */
template <typename T>
MMA_DEVICE uint32_t pair_end(const sdd_narrow_arg &a, float lo, float hi, uint32_t old)
{
    lo *= a.alpha, hi *= a.alpha;
    if (a.beta != 0) {
        const float2 v = numbers_of<T>(old);
        lo += a.beta * v.x, hi += a.beta * v.y;
    }
    return mma_pack<T>(lo, hi);
}

MMA_DEVICE float2 pair_end(const sdd_narrow_arg &a, float lo, float hi, float2 old)
{
    lo *= a.alpha, hi *= a.alpha;
    if (a.beta != 0)
        lo += a.beta * old.x, hi += a.beta * old.y;
    return make_float2(lo, hi);
}

/* COUNT neighbours of a row, 4 or 8. */
template <typename T, int COUNT>
MMA_DEVICE void row_store(const sdd_narrow_arg &a, int64_t at, const float (&v)[COUNT])
{
    if (a.s_f32) {
        float4 *to = (float4 *)((float *)a.s + at);
#pragma unroll
        for (int i = 0; i < COUNT / 4; i++) {
            float4 old = make_float4(0, 0, 0, 0);
            if (a.beta != 0)
                old = to[i];
            const float2 lo = pair_end(a, v[4 * i], v[4 * i + 1], make_float2(old.x, old.y));
            const float2 hi = pair_end(a, v[4 * i + 2], v[4 * i + 3], make_float2(old.z, old.w));
            to[i] = make_float4(lo.x, lo.y, hi.x, hi.y);
        }
        return;
    }
    char *to = (char *)a.s + 2 * at;
    uint32_t w[COUNT / 2] = {};
    if (a.beta != 0)
        words_load<COUNT / 2>(w, to);
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++)
        w[i] = pair_end<T>(a, v[2 * i], v[2 * i + 1], w[i]);
    if constexpr (COUNT == 8)
        *(uint4 *)to = make_uint4(w[0], w[1], w[2], w[3]);
    else
        *(uint2 *)to = make_uint2(w[0], w[1]);
}

template <class C>
MMA_DEVICE void cell_store(const sdd_narrow_arg &a, const sdd_narrow_cell &cell, const float *sum)
{
    enum { TILES = C::COLS / 8, RUN = C::COLS / 4 };
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    const int64_t first = (int64_t)cell.place * SDD_NARROW_UNIT + RUN * q;
#pragma unroll
    for (int t = 0; t < C::ROWS / 8; t++) {
        float v[RUN];
#pragma unroll
        for (int e = 0; e < RUN; e++)
            v[e] = sum[4 * (t / 2 * TILES + e / 2) + t % 2 * 2 + e % 2];
        const int row = C::ROWS / 4 * (g / 2) + 2 * t + g % 2;
        row_store<typename C::T>(a, first + row * a.s_pitch, v);
    }
}

/* A block of 8 whose column g a lane has two neighbours of: rows 2q and 2q + 1. */
template <class C>
MMA_DEVICE void turned_store(const sdd_narrow_arg &a, const sdd_narrow_cell &cell, float lo,
                             float hi)
{
    typedef typename C::T T;
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int64_t first = (int64_t)cell.place * SDD_NARROW_UNIT;
    if (a.s_f32) {
        float *to = (float *)a.s + first + 16 * q + g;
        float2 old = make_float2(0, 0);
        if (a.beta != 0)
            old = make_float2(to[0], to[8]);
        const float2 v = pair_end(a, lo, hi, old);
        to[0] = v.x, to[8] = v.y;
        return;
    }
    uint32_t *to = (uint32_t *)((char *)a.s + 2 * first) + lane, old = 0;
    if (a.beta != 0)
        old = movmatrix_trans(*to);
    *to = movmatrix_trans(pair_end<T>(a, lo, hi, old));
}

template <class C>
MMA_DEVICE void turn_store(const sdd_narrow_arg &a, const turn<C> &t, const float (&sum)[C::SUMS])
{
    if constexpr (C::TURNED) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (t.cell[i].place >= 0)
                turned_store<C>(a, t.cell[i], sum[2 * i], sum[2 * i + 1]);
    } else {
        cell_store<C>(a, t.cell[0], sum);
    }
}

/* --- A warp --- */

/* The columns of a turn's cells. */
template <class C>
MMA_DEVICE void columns_load(uint32_t (&w)[C::CELLS * C::COLS / 8][C::EIGHTS], const lane_place &p,
                             const char *data, const turn<C> &t)
{
#pragma unroll
    for (int i = 0; i < C::CELLS; i++)
        cell_load<C, C::COLS>(w + i * C::COLS / 8, p, data, t.cell[i].column, t.cell[i].place >= 0);
}

template <class C> MMA_DEVICE void product(const sdd_narrow_arg &a)
{
    const int warp = (int)(blockIdx.x * SDD_NARROW_TEAM + threadIdx.x / 32);
    grid_allow_next();
    if (warp >= a.warps)
        return;
    const int each = a.turns / a.warps, more = a.turns % a.warps;
    int32_t at = warp * each + (warp < more ? warp : more);
    const int32_t last = at + each - (warp < more ? 0 : 1);
    turn<C> now = turn_read<C>(a, at), next = turn_read<C>(a, at < last ? at + 1 : last);
    const lane_place pa = lane_open<C, C::ROWS>(a.a_pitch, a.n);
    const lane_place pb = lane_open<C, C::COLS>(a.b_pitch, a.n);
    grid_wait();
    uint32_t rows[C::ROWS / 8][C::EIGHTS], columns[C::CELLS * C::COLS / 8][C::EIGHTS];
    float sum[C::SUMS] = {};
    int32_t pair = 0;
    cell_load<C, C::ROWS>(rows, pa, a.a[0], now.cell[0].row, true);
    columns_load<C>(columns, pb, a.b[0], now);
    fragments<C>(rows);
    /* All pairs of a turn, then the next turn: what comes next is under way while this is multiplied,
     * the rows, which seldom change, while it is stored. */
    for (;;) {
        const bool whole = pair + 1 == a.pairs, ends = whole && at == last;
        const turn<C> coming = whole ? next : now;
        const bool other = !ends && (a.pairs > 1 || coming.cell[0].row != now.cell[0].row);
        pair = whole ? 0 : pair + 1;
        fragments<C>(columns);
        uint32_t ahead[C::CELLS * C::COLS / 8][C::EIGHTS] = {};
        if (!ends)
            columns_load<C>(ahead, pb, a.b[pair], coming);
        if (whole)
            next = turn_read<C>(a, at + 2 <= last ? at + 2 : last);
        if constexpr (C::TURNED)
            add_products<C>(sum, columns, rows);
        else
            add_products<C>(sum, rows, columns);
        if (other)
            cell_load<C, C::ROWS>(rows, pa, a.a[pair], coming.cell[0].row, true);
        if (whole) {
            turn_store<C>(a, now, sum);
#pragma unroll
            for (int i = 0; i < C::SUMS; i++)
                sum[i] = 0;
            at++;
        }
        if (ends)
            return;
        if (other)
            fragments<C>(rows);
        now = coming;
        memcpy(columns, ahead, sizeof columns);
    }
}

#define SDD_NARROW(rows, samples, T, along_n, axis, type)                                          \
    extern "C" __global__ void __launch_bounds__(                                                  \
        32 * SDD_NARROW_TEAM, SDD_NARROW_WARPS(rows, samples) / SDD_NARROW_TEAM)                   \
        sm80_sdd_narrow_##rows##_##samples##_##axis##_##type(                                      \
            const __grid_constant__ sdd_narrow_arg a)                                              \
    {                                                                                              \
        product<narrow<T, along_n, rows, samples>>(a);                                             \
    }
#define SDD_NARROW_AXES(type, T)                                                                   \
    SDD_NARROW_SHAPES(SDD_NARROW, T, true, cn, type)                                               \
    SDD_NARROW_SHAPES(SDD_NARROW, T, false, nc, type)
FOR_HALVES(SDD_NARROW_AXES)
