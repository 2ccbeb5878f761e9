/* sdd on Hopper by mma.sync, for small blocks at low densities: a thread block holds a large tile
 * of the matrix, of which every warp owns a fixed list of cells. docs/cuda.md shows the flow.
 * Of f32, what products of tf32 want of samples that are contiguous lies as 16-bit elements do; where
 * features are, a lane loads word by word. */
#include <backends/cuda/sm90a/sdd_mma_device.h>

/* What the shape of a kernel fixes. */
template <typename T, int NC, int CELL, int PANELS, int SAMPLES, int WARPS, int SLOTS>
struct shape {
    typedef T type;
    static constexpr bool f32 = sizeof(T) == sizeof(float);
    static constexpr sdd_mma_form form = !NC ? SDD_MMA_CN : f32 ? SDD_MMA_NC_F32 : SDD_MMA_NC;
    static constexpr int nc = NC, cell = CELL, samples = SAMPLES, warps = WARPS, slots = SLOTS;
    static constexpr bool words = NC && f32;                           /* loads are word by word */
    static constexpr int features = words ? SDD_PANEL / 2 : SDD_PANEL; /* of a panel */
    static constexpr int panels = PANELS * SDD_PANEL / features;
    static constexpr int panel_bytes = 2 * SAMPLES * features,
                         stage_bytes = 2 * panels * panel_bytes;
    static constexpr int slice = f32 ? SAMPLES / 2 : SAMPLES; /* samples of a stage */
    static constexpr int steps = SAMPLES / 16;                /* of 16 samples, of f32 8 */
    static constexpr int most = CELL * CELL / 32;             /* accumulators of a cell */
    static constexpr int cell_most = CELL == 8 ? 4 : most;    /* two cells of 8 x 8 together */
    static constexpr int count = SLOTS * cell_most;
    static constexpr int threads = WARPS * 32 + 128;
    static constexpr int registers = WARPS == 16 ? 112 : 160;
    static constexpr int row_bytes = NC ? 128 : 2 * SAMPLES; /* of a panel in shared memory */
    static constexpr uint32_t mask = sdd_mma_mask(form, PANELS, SAMPLES);
    static constexpr int second = sdd_mma_second(form, SAMPLES);
    static constexpr bool branches = NC && SAMPLES == 64; /* an entry's loads are worth a jump */
};

/* A lane's place in a group of 8 x 8 matrices: its row, and the swizzled chunk of 16 bytes. */
template <typename S> PTX_FN uint32_t lane_place(int row, int chunk)
{
    const int turn = S::row_bytes == 128 ? row & 7 : row >> 1 & 3;
    return row * S::row_bytes + ((chunk ^ turn) << 4);
}

/* The products of a step, which is 32 bytes of each feature. */
template <typename T> PTX_FN void multiply(float *acc, const uint32_t *a, const uint32_t *b)
{
    if constexpr (sizeof(T) == sizeof(float))
        mma_m16n8k8_tf32(acc, a, b);
    else
        mma_m16n8k16<T>(acc, a, b);
}

/* Where words are loaded, a lane's in a step of f32, g = lane / 4, t = lane % 4: feature g of sample
 * 2t, and what leads from there to the next sample and to the next 8 and 16 features. So samples of
 * even number count first, and no bank serves two lanes. */
enum { WORD_NEXT = 1 << 7 | 1 << 4, WORD_8 = 1 << 5, WORD_16 = 1 << 6, WORD_STEP = 8 * 128 };

PTX_FN uint32_t lane_word(void)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    return 2 * t * 128 + ((g / 4 ^ 2 * t) << 4) + g % 4 * 4;
}

/* Words of a sample and the next. */
PTX_FN void load_words(uint32_t &even, uint32_t &odd, uint32_t at, uint32_t place)
{
    even = shared_load_4(at + place);
    odd = shared_load_4(at + (place ^ WORD_NEXT));
}

/* 16 features by 16 samples: registers as the operand a of mma, or two of b, {0, 1} and {2, 3}, which
 * the products take as pairs. at: the operand's stage; field: of the first feature. */
enum operand { OPERAND_A, OPERAND_B };

template <typename S, operand OF>
PTX_FN void load_16x16(uint32_t *r, uint32_t at, uint32_t field, uint32_t lane_at, int step)
{
    constexpr int next = OF == OPERAND_A ? 2 : 1;
    if (S::words) {
        load_words(r[0], r[next], at + step * WORD_STEP, lane_at ^ field);
        load_words(r[3 - next], r[3], at + step * WORD_STEP, lane_at ^ field ^ WORD_8);
    } else if (S::nc)
        ldmatrix_x4_trans(r, at + (lane_at ^ field) + step * 16 * 128);
    else
        ldmatrix_x4(r, at + field + (lane_at ^ step << 5));
}

/* The same for the second 16 features of a cell of 32. */
template <typename S, operand OF>
PTX_FN void load_next_16x16(uint32_t *r, uint32_t at, uint32_t field, uint32_t lane_at, int step)
{
    if (S::words)
        load_16x16<S, OF>(r, at, field ^ WORD_16, lane_at, step);
    else if (S::nc)
        ldmatrix_x4_trans(r, at + (lane_at ^ field ^ 32) + step * 16 * 128);
    else
        ldmatrix_x4(r, at + field + 16 * S::row_bytes + (lane_at ^ step << 5));
}

/* 8 features by 32 samples, as the operand b of two steps: {0, 1} and {2, 3}. */
template <typename S>
PTX_FN void load_8x32(uint32_t *r, uint32_t at, uint32_t field, uint32_t lane_at, int half)
{
    if (S::words) {
        load_words(r[0], r[1], at + 2 * half * WORD_STEP, lane_at ^ field);
        load_words(r[2], r[3], at + (2 * half + 1) * WORD_STEP, lane_at ^ field);
    } else if (S::nc)
        ldmatrix_x4_trans(r, at + (lane_at ^ field) + half * 32 * 128);
    else
        ldmatrix_x4(r, at + field + (lane_at ^ half << 6));
}

template <typename S> PTX_FN uint32_t field_a(uint32_t entry)
{
    return entry & S::mask;
}

template <typename S> PTX_FN uint32_t field_b(uint32_t entry)
{
    return entry >> SDD_MMA_B & S::mask;
}

/* As load_16x16, of an entry's two cells of 8 features, which half of the lanes address each, or with
 * words all both. */
template <typename S>
PTX_FN void load_cells(uint32_t *r, uint32_t at, uint32_t entry, uint32_t lane_at, int step)
{
    if (S::words) {
        load_words(r[0], r[2], at + step * WORD_STEP, lane_at ^ field_a<S>(entry));
        load_words(r[1], r[3], at + step * WORD_STEP, lane_at ^ (entry >> S::second & S::mask));
    } else {
        const int half_of = threadIdx.x % 32 / 8 % 2 ? S::second : 0;
        load_16x16<S, OPERAND_A>(r, at, entry >> half_of & S::mask, lane_at, step);
    }
}

/* A lane's place in 16 features by 16 samples: the second eight lanes have the next features of
 * operand a, of b the next samples. */
template <typename S, operand OF> PTX_FN uint32_t lane_16x16(void)
{
    const int lane = threadIdx.x % 32, in_8 = lane % 8, odd = lane / 8 % 2, high = lane / 16;
    const int feature = OF == OPERAND_A ? odd : high, sample = OF == OPERAND_A ? high : odd;
    return S::words ? lane_word()
           : S::nc  ? lane_place<S>(in_8 + sample * 8, feature)
                    : lane_place<S>(in_8 + feature * 8, sample);
}

/* --- A stage: the products of a warp's cells --- */

/* Cells of 8: two of one column make the 16 rows of a product. Those of the next entry are loaded
 * while this one's are multiplied; columns stay while the list does. */
template <typename S>
PTX_FN void stage_8(float *acc, const uint32_t *list, int count, uint32_t keep, uint32_t stage)
{
    const int lane = threadIdx.x % 32, in_8 = lane % 8, quarter = lane / 8;
    const uint32_t b_stage = stage + S::panels * S::panel_bytes;
    const uint32_t a_lane = S::words ? lane_word()
                            : S::nc  ? lane_place<S>(in_8 + quarter / 2 * 8, 0)
                                     : lane_place<S>(in_8, quarter / 2);
    const uint32_t b_lane = S::words ? lane_word()
                            : S::nc  ? lane_place<S>(lane, 0)
                                     : lane_place<S>(in_8, quarter);
    uint32_t a[2][S::steps][4], b[S::samples / 32][4];
#pragma unroll
    for (int k = 0; k < S::steps; k++)
        load_cells<S>(a[0][k], stage, list[0], a_lane, k);
#pragma unroll
    for (int i = 0; i < S::slots; i++) {
        if (i >= count)
            break;
        if (!(keep >> i & 1))
#pragma unroll
            for (int h = 0; h < S::samples / 32; h++)
                load_8x32<S>(b[h], b_stage, field_b<S>(list[i]), b_lane, h);
        if (i + 1 < S::slots)
#pragma unroll
            for (int k = 0; k < S::steps; k++)
                load_cells<S>(a[(i + 1) % 2][k], stage, list[i + 1], a_lane, k);
#pragma unroll
        for (int k = 0; k < S::steps; k++)
            multiply<typename S::type>(acc + i * 4, a[i % 2][k], b[k / 2] + k % 2 * 2);
    }
}

/* Cells of 16. Both operands stay where those of the next entry are the same; registers of columns
 * receive the next entry's as soon as the products have read them. row: the entry has another row than
 * the one before; follows: the next one has another column. */
template <typename S>
PTX_FN void entry_16(float *acc, uint32_t (&a)[S::steps][4], uint32_t (&b)[S::steps][4],
                     uint32_t entry, uint32_t next, uint32_t stage, uint32_t a_lane,
                     uint32_t b_lane, bool row, bool follows)
{
    const uint32_t b_stage = stage + S::panels * S::panel_bytes;
    if (row)
#pragma unroll
        for (int k = 0; k < S::steps; k++)
            load_16x16<S, OPERAND_A>(a[k], stage, field_a<S>(entry), a_lane, k);
#pragma unroll
    for (int k = 0; k < S::steps; k++) {
#pragma unroll
        for (int j = 0; j < 2; j++)
            multiply<typename S::type>(acc + j * 4, a[k], b[k] + j * 2);
        if (follows)
            load_16x16<S, OPERAND_B>(b[k], b_stage, field_b<S>(next), b_lane, k);
    }
}

/* Loads that an entry does without are off by a predicate, which takes a turn on the path of loads,
 * or where S::branches, jumped over. */
template <typename S>
PTX_FN void stage_16(float *acc, const uint32_t *list, int count, uint32_t keep, uint32_t stage)
{
    const uint32_t a_lane = lane_16x16<S, OPERAND_A>(), b_lane = lane_16x16<S, OPERAND_B>();
    const uint32_t b_stage = stage + S::panels * S::panel_bytes;
    uint32_t a[S::steps][4], b[S::steps][4];
#pragma unroll
    for (int k = 0; k < S::steps; k++)
        load_16x16<S, OPERAND_B>(b[k], b_stage, field_b<S>(list[0]), b_lane, k);
#pragma unroll
    for (int i = 0; i < S::slots; i++) {
        if (i >= count)
            break;
        const bool row = !(keep >> i & 1);
        const bool follows = i + 1 < S::slots && !(keep >> (i + 1 + SDD_MMA_KEPT_B) & 1);
        const uint32_t next = list[i + 1 < S::slots ? i + 1 : i];
        const auto entry = [&](bool row, bool follows) {
            entry_16<S>(acc + i * 8, a, b, list[i], next, stage, a_lane, b_lane, row, follows);
        };
        if (!S::branches)
            entry(row, follows);
        else if (row && follows)
            entry(true, true);
        else if (row)
            entry(true, false);
        else if (follows)
            entry(false, true);
        else
            entry(false, false);
    }
}

/* Cells of 32, likewise: each of the two registers of columns has the same step of every entry. */
template <typename S, operand OF>
PTX_FN void load_32x16(uint32_t (*r)[4], uint32_t at, uint32_t field, uint32_t lane_at, int step)
{
    load_16x16<S, OF>(r[0], at, field, lane_at, step);
    load_next_16x16<S, OF>(r[1], at, field, lane_at, step);
}

template <typename S>
PTX_FN void stage_32(float *acc, const uint32_t *list, int count, uint32_t keep, uint32_t stage)
{
    static_assert(S::cell != 32 || S::steps == 2, "a register of columns for each step");
    const uint32_t a_lane = lane_16x16<S, OPERAND_A>(), b_lane = lane_16x16<S, OPERAND_B>();
    const uint32_t b_stage = stage + S::panels * S::panel_bytes;
    uint32_t a[2][2][4], b[2][2][4];
    load_32x16<S, OPERAND_B>(b[0], b_stage, field_b<S>(list[0]), b_lane, 0);
#pragma unroll
    for (int i = 0; i < S::slots; i++) {
        if (i >= count)
            break;
        if (!(keep >> i & 1))
#pragma unroll
            for (int k = 0; k < 2; k++)
                load_32x16<S, OPERAND_A>(a[k], stage, field_a<S>(list[i]), a_lane, k);
        const bool next = i + 1 < S::slots && !(keep >> (i + 1 + SDD_MMA_KEPT_B) & 1);
        const bool own = i == 0 || !(keep >> (i + SDD_MMA_KEPT_B) & 1);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if (k == 0 && own)
                load_32x16<S, OPERAND_B>(b[1], b_stage, field_b<S>(list[i]), b_lane, 1);
            else if (k == 1 && next)
                load_32x16<S, OPERAND_B>(b[0], b_stage,
                                         field_b<S>(list[i + 1 < S::slots ? i + 1 : i]), b_lane, 0);
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    multiply<typename S::type>(acc + i * 32 + m * 16 + j * 4, a[k][m],
                                               b[k][j / 2] + j % 2 * 2);
        }
    }
}

/* --- The store --- */

/* The tiles of 8 x 8 of a warp's cells: two for every four sums of a lane. Lanes hold their places,
 * and the entries of the list that they belong to. */
template <typename S> struct places {
    static constexpr int quads = S::cell_most / 4, tiles = 2 * quads; /* of an entry */
    static constexpr int count = (S::slots * tiles + 31) / 32;
    uint32_t entry[count];
    int place[count];
};

/* The row and the column of a tile of an entry, in tiles, from the corner of the unit. */
template <typename S> PTX_FN int tile_row(uint32_t entry, int tile)
{
    const uint32_t other = entry >> S::second & S::mask;
    const uint32_t field = S::cell == 8 && tile % 2 ? other : field_a<S>(entry);
    const int row = sdd_mma_eighth(S::form, S::samples, field);
    return S::cell == 8 ? row : row + tile / 2 / (S::cell / 8) * 2 + tile % 2;
}

template <typename S> PTX_FN int tile_col(uint32_t entry, int tile)
{
    return sdd_mma_eighth(S::form, S::samples, field_b<S>(entry)) + tile / 2 % (S::cell / 8);
}

/* All loads are under way before the first is waited for. */
template <typename S>
PTX_FN places<S> places_load(const sdd_output &o, const uint32_t *entries, int count, int row8,
                             int col8)
{
    places<S> p;
#pragma unroll
    for (int i = 0; i < places<S>::count; i++) {
        const int at = i * 32 + threadIdx.x % 32, tile = at % places<S>::tiles;
        const bool own = at / places<S>::tiles < count;
        const uint32_t entry = own ? __ldg(entries + at / places<S>::tiles) : 0;
        const bool alone = (entry >> S::second & S::mask) == field_a<S>(entry);
        p.entry[i] = entry;
        p.place[i] = -1;
        if (own && !(S::cell == 8 && tile == 1 && alone))
            p.place[i] =
                place_load(o, row8 + tile_row<S>(entry, tile), col8 + tile_col<S>(entry, tile));
    }
    return p;
}

/* All tiles of a warp, whole rows of each. Four go together: of cells of 32 those of one row, of others
 * those that follow each other. */
template <typename S, bool F32>
PTX_FN void store_rows(const sdd_output &o, const float *acc, const places<S> &p, int count)
{
    constexpr int tiles = S::slots * places<S>::tiles, step = S::cell == 32 ? 2 : 1;
#pragma unroll
    for (int g = 0; g < tiles / 4; g++) {
        if (g * 4 >= count * places<S>::tiles)
            break;
        const int first = step == 2 ? g / 2 * 8 + g % 2 : g * 4;
        const int tile = first + (int)threadIdx.x % 4 * step;
        store_four<F32>(o, acc + first * 2, step * 2, __shfl_sync(~0u, p.place[g / 8], tile % 32));
    }
}

template <typename S>
PTX_FN void store_cells(const sdd_output &o, float *acc, const places<S> &p, int count, int row8,
                        int col8)
{
    if (output_rows(o)) {
        if (o.type == BSK_F32)
            store_rows<S, true>(o, acc, p, count);
        else
            store_rows<S, false>(o, acc, p, count);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < count; i++) {
#pragma unroll 1
        for (int q = 0; q < places<S>::quads; q++) {
            const int at = i * places<S>::tiles + 2 * q;
            const bool late = places<S>::count > 1 && at >= 32;
            const int own = late ? p.place[places<S>::count - 1] : p.place[0];
            const uint32_t of = late ? p.entry[places<S>::count - 1] : p.entry[0];
            const uint32_t entry = __shfl_sync(~0u, of, at % 32);
            const int col = col8 + tile_col<S>(entry, 2 * q);
#pragma unroll
            for (int h = 0; h < 2; h++)
                store_tile(o, make_float2(acc[2 * h], acc[2 * h + 1]),
                           row8 + tile_row<S>(entry, 2 * q + h), col,
                           __shfl_sync(~0u, own, at % 32 + h));
            rotate<S::cell_most, 4>(acc);
        }
        if (S::slots > 1)
            rotate<S::count, S::cell_most>(acc);
    }
}

/* --- Warps --- */

template <typename S>
PTX_FN void consume(const sdd_mma_arg &arg, sdd_ring &ring, int begin, int end)
{
    const int warp = threadIdx.x / 32;
    for (int i = begin; i < end; i++) {
        const sdd_segment s = segment_mine(arg, i);
        const size_t owner = (size_t)s.unit * S::warps + warp;
        const uint32_t head = __ldg(arg.heads + owner);
        const int count = __shfl_sync(~0u, head >> 16, 0);
        const uint32_t keep = __shfl_sync(~0u, head & 0xffff, 0);
        uint32_t list[S::slots];
#pragma unroll
        for (int j = 0; j < S::slots; j++)
            list[j] = __ldg(arg.entries + owner * S::slots + j);
        float acc[S::count];
#pragma unroll
        for (int j = 0; j < S::count; j++)
            acc[j] = 0;
        for (int t = 0; t < s.count; t++) {
            mbar_wait(ring_full(ring, ring.at), ring.parity);
            if (S::cell == 8)
                stage_8<S>(acc, list, count, keep, ring_stage(ring));
            else if (S::cell == 16)
                stage_16<S>(acc, list, count, keep, ring_stage(ring));
            else
                stage_32<S>(acc, list, count, keep, ring_stage(ring));
            __syncwarp();
            stage_release(ring, arg.cluster);
            ring_next(ring);
        }
        const int2 corner = __ldg((const int2 *)arg.corners + s.unit);
        const int row8 = corner.x / 8, col8 = corner.y / 8;
        const places<S> to =
            places_load<S>(arg.out, arg.entries + owner * S::slots, count, row8, col8);
        if (parts_add<S::count>(acc, arg.work, s, warp, S::warps, S::count))
            store_cells<S>(arg.out, acc, to, count, row8, col8);
    }
}

#define SDD_MMA_KERNEL(type, T, id, axis, NC, CELL, PANELS, SAMPLES, WARPS, SLOTS)                 \
    extern "C" __global__ void __launch_bounds__(WARPS * 32 + 128, 1)                              \
        sdd_mma_##id##_##type##_##axis(const __grid_constant__ sdd_mma_arg arg)                    \
    {                                                                                              \
        run<shape<T, NC, CELL, PANELS, SAMPLES, WARPS, SLOTS>>(arg);                               \
    }
#define SDD_MMA_KERNELS(id, ...)                                                                   \
    FOR_HALVES_WITH(SDD_MMA_KERNEL, id, nc, 1, __VA_ARGS__)                                        \
    FOR_HALVES_WITH(SDD_MMA_KERNEL, id, cn, 0, __VA_ARGS__)
#define SDD_MMA_TF32(id, ...)                                                                      \
    SDD_MMA_KERNEL(tf32, float, id, nc, 1, __VA_ARGS__)                                            \
    SDD_MMA_KERNEL(tf32, float, id, cn, 0, __VA_ARGS__)
SDD_MMA_SHAPES(SDD_MMA_KERNELS)
SDD_MMA_SHAPES(SDD_MMA_TF32)
