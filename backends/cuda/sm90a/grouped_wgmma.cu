/* grouped_matmul and grouped_wgrad on Hopper, by wgmma from shared memory. Of a tile of 128 rows by 256
 * columns two warpgroups have 64 rows each; a warp brings what they read by tensor copies. Two thread
 * blocks are a cluster, which walks over units of two tiles: neighbours along the rows, which share the
 * right operand, or where there is one row of tiles left, neighbours along the columns, which share
 * the left one. Each brings a half of what is shared to both.
 *
 * How many rows a group has is in device memory: each thread block makes the list of spans of rows
 * for itself. docs/moe.md has a picture. */
#include <backends/cuda/mma.h>
#include <backends/cuda/ptx.h>
#include <backends/cuda/sm90a/grouped.h>
#include <backends/cuda/sm90a/ring.h>

#define FN static __device__ __forceinline__

enum { CONSUMER_REGISTERS = 232, PRODUCER_REGISTERS = 40 };
enum { MATMUL, WGRAD };

struct memory {
    uint32_t base;
    int32_t *first_row, *first_unit; /* of each span, and the ends */

    __device__ uint32_t left(int slot, int part) const
    {
        return base + slot * GROUPED_STAGE_BYTES + part * GROUPED_PART_BYTES;
    }
    __device__ uint32_t right(int slot, int part) const
    {
        return left(slot, part) + GROUPED_RIGHT_AT;
    }
    __device__ uint32_t line(int warp) const
    {
        return base + GROUPED_LINES_AT + warp * GROUPED_LINE_BYTES;
    }
    __device__ uint32_t full(int slot) const
    {
        return base + GROUPED_BARRIERS_AT + slot * 8;
    }
    __device__ uint32_t empty(int slot) const
    {
        return full(slot) + GROUPED_STAGES * 8;
    }
};

/* --- Spans of rows, and units --- */

FN int32_t scan_max(int32_t v)
{
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const int32_t other = __shfl_up_sync(~0u, v, by);
        v = (int)(threadIdx.x % 32) >= by && other > v ? other : v;
    }
    return v;
}

FN int32_t scan_sum(int32_t v)
{
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const int32_t other = __shfl_up_sync(~0u, v, by);
        v += (int)(threadIdx.x % 32) >= by ? other : 0;
    }
    return v;
}

/* Units of so many tiles: pairs along the rows, and pairs along the columns of one that is left. */
FN int32_t units_of(int32_t rows, int32_t cols)
{
    return rows / 2 * cols + rows % 2 * ((cols + 1) / 2);
}

/* By one warp. Span s ends at offsets[s], or at the largest before it, the last one with all rows. */
FN void spans_make(const grouped_wgmma_arg &a, const memory &m)
{
    const int lane = threadIdx.x % 32, spans = a.groups + 2;
    int32_t row = 0, unit = 0;
    if (lane == 0)
        m.first_row[0] = m.first_unit[0] = 0;
#pragma unroll 1
    for (int at = 0; at < spans; at += 32) {
        const int s = at + lane;
        int32_t end = a.all;
        if (s + 1 < spans)
            end = min(max(a.offsets[s], row), a.all);
        end = scan_max(end);
        int32_t begin = __shfl_up_sync(~0u, end, 1);
        begin = lane ? begin : row;
        const int32_t tiles =
            (end - begin) / GROUPED_TILE_ROWS + ((end - begin) % GROUPED_TILE_ROWS != 0);
        const int32_t last = unit + scan_sum(units_of(tiles, a.cols));
        if (s < spans) {
            m.first_row[s + 1] = end;
            m.first_unit[s + 1] = last;
        }
        row = __shfl_sync(~0u, end, 31);
        unit = __shfl_sync(~0u, last, 31);
    }
}

/* This block's tile of a unit. */
struct tile {
    int span, group;      /* group -1: none */
    int row, end, column; /* of the result; where its rows end */
    int depth, depth_end; /* rows of x that are summed, of grouped_matmul features */
    bool along_columns;   /* the cluster's tiles are neighbours */
};

/* Where the block's tile of unit number `unit` of a matrix of tiles is. */
FN void tile_place(tile &t, int unit, int rows, int cols, int rank)
{
    const int pairs = rows / 2;
    t.along_columns = unit >= pairs * cols;
    if (t.along_columns) {
        t.row = (rows - 1) * GROUPED_TILE_ROWS;
        t.column = ((unit - pairs * cols) * 2 + rank) * GROUPED_TILE_COLS;
        return;
    }
    const int band = unit / (GROUPED_BAND * cols) * GROUPED_BAND;
    const int high = min(GROUPED_BAND, pairs - band), at = unit - band * cols;
    t.row = ((band + at % high) * 2 + rank) * GROUPED_TILE_ROWS;
    t.column = at / high * GROUPED_TILE_COLS;
}

/* Unit number `unit`; of grouped_matmul it is in span t.span or in one behind it. False: there is
 * none. */
template <int OP>
FN bool tile_find(const grouped_wgmma_arg &a, const memory &m, int unit, int rank, tile &t)
{
    if (OP == WGRAD) {
        const int each = units_of(a.rows, a.cols);
        t.group = unit / each;
        if (t.group >= a.groups)
            return false;
        tile_place(t, unit % each, a.rows, a.cols, rank);
        t.end = (int)a.end.n;
        t.depth = m.first_row[t.group + 1];
        t.depth_end = m.first_row[t.group + 2];
        return true;
    }
    const int spans = a.groups + 2;
    while (t.span < spans && unit >= m.first_unit[t.span + 1])
        t.span++;
    if (t.span == spans)
        return false;
    const int begin = m.first_row[t.span];
    t.end = m.first_row[t.span + 1];
    const int rows =
        (t.end - begin) / GROUPED_TILE_ROWS + ((t.end - begin) % GROUPED_TILE_ROWS != 0);
    tile_place(t, unit - m.first_unit[t.span], rows, a.cols, rank);
    t.row += begin;
    t.group = t.span <= a.groups ? t.span - 1 : -1;
    t.depth = 0;
    t.depth_end = t.group < 0 ? 0 : a.stages * GROUPED_DEPTH;
    return true;
}

/* --- Producer --- */

/* A part of the left operand, of rows from `row` on. */
template <int OP>
FN void left_load(const CUtensorMap *x, uint32_t to, int row, int k, uint32_t bar, bool both)
{
    const int inner = OP == WGRAD ? row : k, outer = OP == WGRAD ? k : row;
    if (both)
        tensor_load_2d_multicast(to, x, inner, outer, bar, (1 << GROUPED_CLUSTER) - 1);
    else
        tensor_load_2d(to, x, inner, outer, bar);
}

/* A part of the right operand; ACROSS: it lies along the columns. */
template <bool ACROSS>
FN void right_load(const CUtensorMap *w, uint32_t to, int column, int k, int matrix, uint32_t bar,
                   bool both)
{
    const int inner = ACROSS ? column : k, outer = ACROSS ? k : column;
    if (both)
        tensor_load_3d_multicast(to, w, inner, outer, matrix, bar, (1 << GROUPED_CLUSTER) - 1);
    else
        tensor_load_3d(to, w, inner, outer, matrix, bar);
}

template <int OP, bool ACROSS>
FN void produce(const CUtensorMap *x, const CUtensorMap *w, const grouped_wgmma_arg &a,
                const memory &m, int unit, int step, int rank)
{
    cursor<GROUPED_STAGES> at = {0, 0};
    tile t = {0};
    for (; tile_find<OP>(a, m, unit, rank, t); unit += step) {
        const bool along = t.along_columns;
        const int matrix = OP == MATMUL ? t.group : 0;
        for (int k = t.depth; k < t.depth_end; k += GROUPED_DEPTH) {
            const uint32_t full = m.full(at.slot);
            mbar_wait(m.empty(at.slot), at.parity ^ 1);
            mbar_expect(full, GROUPED_STAGE_BYTES);
#pragma unroll
            for (int i = 0; i < GROUPED_LEFT_PARTS; i++)
                if (!along || i == rank)
                    left_load<OP>(x, m.left(at.slot, i), t.row + i * GROUPED_PART, k, full, along);
#pragma unroll
            for (int i = 0; i < GROUPED_RIGHT_PARTS; i++)
                if (along || i / (GROUPED_RIGHT_PARTS / GROUPED_CLUSTER) == rank)
                    right_load<ACROSS>(w, m.right(at.slot, i), t.column + i * GROUPED_PART, k,
                                       matrix, full, !along);
            at.next();
        }
    }
}

/* --- Consumers --- */

/* A warpgroup's products of a stage. LEFT, RIGHT: the operand lies along rows or columns. */
template <int TYPE, bool LEFT, bool RIGHT>
FN void multiply(float *acc, uint32_t left, uint32_t right)
{
    constexpr uint32_t high = descriptor_high(1024, SWIZZLE_128);
    constexpr uint32_t left_step = (LEFT ? 2048 : 32) >> 4, right_step = (RIGHT ? 2048 : 32) >> 4;
    const uint32_t l = descriptor_low(left, 16);
    const uint32_t r = descriptor_low(right, RIGHT ? GROUPED_PART_BYTES : 16);
#pragma unroll
    for (int k = 0; k < GROUPED_DEPTH / 16; k++)
        wgmma_ss<TYPE, GROUPED_TILE_COLS, LEFT, RIGHT>(acc, descriptor(l + k * left_step, high),
                                                       descriptor(r + k * right_step, high), 1);
}

/* Zeros for rows of x and dy from number `keep` of a stage on, which are another group's. */
FN void rows_clear(const memory &m, int slot, int keep)
{
    const int group = threadIdx.x / 128;
    const uint32_t left = m.left(slot, group), end = GROUPED_PART * 128;
    for (uint32_t at = keep * 128 + threadIdx.x % 128 * 16; at < end; at += 128 * 16)
        shared_store_16(left + at, 0, 0, 0, 0);
#pragma unroll 1
    for (int part = 0; part < GROUPED_RIGHT_PARTS; part++)
        for (uint32_t at = keep * 128 + threadIdx.x * 16; at < end; at += 256 * 16)
            shared_store_16(m.right(slot, part) + at, 0, 0, 0, 0);
    async_fence();
    named_barrier(1, 32 * GROUPED_CONSUMERS);
}

/* The sum of a thread's column of the right operand over a stage. */
FN float column_sum(const memory &m, int slot, bool bf16)
{
    const int column = threadIdx.x % GROUPED_PART;
    const uint32_t part = m.right(slot, threadIdx.x / GROUPED_PART);
    float sum = 0;
#pragma unroll 8
    for (int k = 0; k < GROUPED_DEPTH; k++) {
        const uint32_t word =
            shared_load_4(part + k * 128 + ((column / 8 ^ k % 8) * 16 + column % 8 / 2 * 4));
        const float2 pair = dsd_unpack(bf16, word);
        sum += column % 2 ? pair.y : pair.x;
    }
    return sum;
}

/* Finishes a warp's 16 rows from `row` on where an end is plain: rounded in the registers of the
 * products, turned by stmatrix, 64 columns at a time. BARE: alpha is all that there is to the sums,
 * which makes the code short: it runs once a tile, as fast as instructions are fetched. */
template <bool BARE>
FN void rows_store_plain(const float *acc, uint32_t line, const dsd_epilogue &e, bool bf16,
                         int column, int row, int64_t batch)
{
    enum { COLS = 64 };
    const int lane = threadIdx.x % 32, q = lane % 4;
    const uint32_t own = line + lane % 16 * 128;
    const int64_t step = 4 * e.c.n;
    int64_t f = column + lane % 8 * 8;
    row += lane / 8;
    uint16_t *to = (uint16_t *)e.c.data + batch * e.c.batch + row * e.c.n + f;
#pragma unroll
    for (int chunk = 0; chunk < GROUPED_TILE_COLS / COLS; chunk++) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < COLS / 16; i++) {
            const float *sums = acc + (chunk * COLS / 16 + i) * 8;
            float v[DSD_RUN], bias[DSD_RUN] = {0};
            if (!BARE && e.bias) {
                const int at = column + chunk * COLS + i * 16 + 2 * q;
#pragma unroll
                for (int x = 0; x < DSD_RUN; x++)
                    if (at < e.features - x / 4 * 8)
                        bias[x] = e.bias[at + x / 4 * 8 + x % 2];
            }
#pragma unroll
            for (int x = 0; x < DSD_RUN; x++)
                v[x] = sums[x];
            dsd_finish_plain<!BARE>(e, bias, v);
            store_matrix_x4(own + ((i * 2 + lane / 16) ^ lane % 8) * 16, dsd_pack(bf16, v[0], v[1]),
                            dsd_pack(bf16, v[2], v[3]), dsd_pack(bf16, v[4], v[5]),
                            dsd_pack(bf16, v[6], v[7]));
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = i * 4 + lane / 8;
            const uint4 v = shared_load_16(line + r * 128 + (lane % 8 ^ r % 8) * 16);
            if (f < e.features && row + i * 4 < e.n)
                *(uint4 *)(to + i * step) = v;
        }
        f += COLS;
        to += COLS;
    }
}

/* The same of other ends, 32 columns at a time through the line. */
FN void rows_store_any(const float *acc, uint32_t line, const dsd_epilogue &e, int column, int row,
                       int64_t batch)
{
    enum { COLS = 32 };
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int chunk = 0; chunk < GROUPED_TILE_COLS / COLS; chunk++) {
        __syncwarp();
#pragma unroll
        for (int j = 0; j < COLS / 8; j++)
#pragma unroll
            for (int x = 0; x < 4; x++)
                shared_store_4(line + ((g + x / 2 * 8) * GROUPED_PITCH + 8 * j + 2 * q + x % 2) * 4,
                               __float_as_uint(acc[(chunk * COLS / 8 + j) * 4 + x]));
        __syncwarp();
        const int f = column + chunk * COLS + q * DSD_RUN;
#pragma unroll 1
        for (int h = 0; h < 2; h++) {
            const uint32_t from = line + ((g + 8 * h) * GROUPED_PITCH + q * DSD_RUN) * 4;
            float v[DSD_RUN];
#pragma unroll
            for (int i = 0; i < DSD_RUN; i++)
                v[i] = __uint_as_float(shared_load_4(from + i * 4));
            dsd_finish(e, v, f, row + g + 8 * h, batch);
        }
    }
}

template <int OP, int TYPE, bool ACROSS>
FN void consume(const grouped_wgmma_arg &a, const memory &m, int unit, int step, int rank)
{
    const int warp = threadIdx.x / 32, group = warp / 4;
    const bool speaker = threadIdx.x % 32 == 0;
    cursor<GROUPED_STAGES> at = {0, 0};
    tile t = {0};
    for (; tile_find<OP>(a, m, unit, rank, t); unit += step) {
        float acc[GROUPED_TILE_COLS / 2], column = 0;
#pragma unroll
        for (int i = 0; i < GROUPED_TILE_COLS / 2; i++)
            acc[i] = 0;
        const bool columns = OP == WGRAD && a.dbias && t.row == 0;
        uint32_t before = 0; /* the barrier of the stage whose products are under way */
        for (int k = t.depth; k < t.depth_end; k += GROUPED_DEPTH) {
            mbar_wait(m.full(at.slot), at.parity);
            if (OP == WGRAD && t.depth_end - k < GROUPED_DEPTH)
                rows_clear(m, at.slot, t.depth_end - k);
            wgmma_fence();
            multiply<TYPE, OP == WGRAD, ACROSS>(acc, m.left(at.slot, group), m.right(at.slot, 0));
            wgmma_commit();
            if (columns)
                column += column_sum(m, at.slot, a.bf16);
            wgmma_wait<1>();
            if (before && speaker) {
                mbar_arrive(before);
                mbar_arrive_remote(before, rank ^ 1);
            }
            before = m.empty(at.slot);
            at.next();
        }
        wgmma_wait<0>();
        wgmma_settle(acc);
        if (before && speaker) {
            mbar_arrive(before);
            mbar_arrive_remote(before, rank ^ 1);
        }
        dsd_epilogue e = a.end;
        e.n = t.end;
        if (t.group < 0) {
            e.act = BSK_ACT_NONE;
            e.bias = NULL;
        } else if (e.bias) {
            e.bias += t.group * e.features;
        }
        const int row = t.row + group * 64 + warp % 4 * 16;
        const int64_t batch = OP == WGRAD ? t.group : 0;
        const bool bf16 = e.c.type == BSK_BF16;
        if (!e.plain)
            rows_store_any(acc, m.line(warp), e, t.column, row, batch);
        else if (OP == MATMUL && !e.bare)
            rows_store_plain<false>(acc, m.line(warp), e, bf16, t.column, row, batch);
        else if (bf16)
            rows_store_plain<true>(acc, m.line(warp), e, true, t.column, row, batch);
        else
            rows_store_plain<true>(acc, m.line(warp), e, false, t.column, row, batch);
        const int64_t f = t.column + threadIdx.x;
        if (columns && f < e.features) {
            float *const to = a.dbias + t.group * e.features + f;
            *to = e.alpha * column + (e.beta != 0 ? e.beta * *to : 0);
        }
    }
}

template <int OP, int TYPE, bool ACROSS>
FN void product(const CUtensorMap *x, const CUtensorMap *w, const grouped_wgmma_arg &a)
{
    extern __shared__ __align__(1024) char shared[];
    int32_t *const spans = (int32_t *)(shared + GROUPED_SPANS_AT);
    const memory m = {shared_address(shared), spans, spans + GROUPED_SPANS + 2};
    const int warp = threadIdx.x / 32, rank = cluster_rank();
    const int unit = blockIdx.x / GROUPED_CLUSTER, step = gridDim.x / GROUPED_CLUSTER;
    if (threadIdx.x == 0) {
        for (int i = 0; i < GROUPED_STAGES; i++) {
            mbar_init(m.full(i), 1);
            mbar_init(m.empty(i), GROUPED_CLUSTER * GROUPED_CONSUMERS);
        }
        mbar_init_fence();
        tensor_map_prefetch(x);
        tensor_map_prefetch(w);
    }
    grid_allow_next();
    grid_wait();
    if (warp == GROUPED_CONSUMERS)
        spans_make(a, m);
    __syncthreads();
    cluster_sync();
    if (warp >= GROUPED_CONSUMERS) {
        registers_lower<PRODUCER_REGISTERS>();
        if (warp == GROUPED_CONSUMERS && threadIdx.x % 32 == 0)
            produce<OP, ACROSS>(x, w, a, m, unit, step, rank);
        __syncwarp();
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        consume<OP, TYPE, ACROSS>(a, m, unit, step, rank);
    }
    cluster_sync(); /* the other block may still signal to this one */
}

#define GROUPED(type, TYPE, name, op, across)                                                      \
    extern "C" __global__ void __launch_bounds__(GROUPED_THREADS, 1)                               \
        grouped_##name##_sm90a_##type(const __grid_constant__ CUtensorMap x,                       \
                                      const __grid_constant__ CUtensorMap w,                       \
                                      const __grid_constant__ grouped_wgmma_arg a)                 \
    {                                                                                              \
        product<op, TYPE, across>(&x, &w, a);                                                      \
    }
FOR_HALVES_WGMMA(GROUPED, matmul_km, MATMUL, true)
FOR_HALVES_WGMMA(GROUPED, matmul_mk, MATMUL, false)
FOR_HALVES_WGMMA(GROUPED, wgrad, WGRAD, true)
