/* Tiles, and the parts of the depth, of a product by dsd_mma, and what it takes. */
#include <math.h>

#include <backends/cuda/sm90a/dsd_mma_shape.h>
#include <common/checked.h>
#include <common/layout.h>

CUDA_PACKED_FUNCTIONS(sm90a_dsd_mma)

enum {
    LEAST_PART = 1024, /* bytes of a sample's features in a part of the depth */
    STEP_BYTES = 32,   /* of a sample's features in a step, but of units of 8 of 16 bits */
    ROW_BYTES = 128
};

/* The largest unit that divides both sides of a block, the other into steps. */
static int32_t unit_of(int32_t rows, int32_t cols, int32_t step)
{
    return rows % 32 == 0 && cols % step == 0   ? 32
           : rows % 16 == 0 && cols % step == 0 ? 16
           : rows % 8 == 0 && cols % 8 == 0     ? 8
                                                : 0;
}

/* The activations as the copy engine reads them: boxes 128 bytes wide. */
static bski_cuda_tensor tensor_of(const bsk_tensor *b, bool cn, int32_t row, int32_t samples)
{
    bski_cuda_tensor t = {.dtype = b->dtype, .rank = 2, .swizzle = 128};
    t.dims[0] = b->dims[cn ? 1 : 0];
    t.dims[1] = b->dims[cn ? 0 : 1];
    t.strides[0] = 1;
    t.strides[1] = b->strides[cn ? 0 : 1];
    t.box[0] = row;
    t.box[1] = cn ? row : samples;
    return t;
}

/* Tiles 512 outputs wide read activations once for more outputs, and weights for fewer samples.
 * Tall ones load less for a product, but have fewer warps that hide it: where these have much to do
 * in a stage, and thread blocks so many tiles that those of a panel not full hardly count. Of tf32
 * there are wide ones only: where these lose, cells are full (dsd_wgmma). */
static int32_t tile_of(const dsd_mma_shape *s, const bsk_layout_tables *t, int32_t compute_units)
{
    enum { SQUARE_OUTPUTS = 256, SQUARE_PERCENT = 30, TALL_PERCENT = 20, TALL_TURNS = 16 };
    const double percent = 100.0 * (double)t->nnz * t->block_rows * t->block_cols /
                           ((double)t->rows * (double)t->cols);
    const double turns = (double)s->outputs * (double)s->n / (96.0 * 384 * compute_units);
    if (s->size == 4)
        return DSD_MMA_WIDE;
    if (s->unit == 16 && !s->cn && percent >= TALL_PERCENT && turns >= TALL_TURNS)
        return DSD_MMA_TALL;
    return s->outputs > SQUARE_OUTPUTS && percent < SQUARE_PERCENT ? DSD_MMA_WIDE : DSD_MMA_SQUARE;
}

/* Deep stages, as each costs a turn of every warp, if there is room for enough of them. */
static int32_t depth_of(const dsd_mma_shape *s, const bsk_layout_tables *t)
{
    const double density =
        (double)t->nnz * t->block_rows * t->block_cols / ((double)t->rows * (double)t->cols);
    const double weights = 1.1 * density * s->panel_units * s->unit; /* of a feature */
    int32_t bytes = DSD_MMA_STAGE;
    while (bytes > ROW_BYTES &&
           (bytes / 2 >= s->features * s->size ||
            least_slots(s, bytes) * bytes * (s->samples + weights) > ring_bytes(s)))
        bytes /= 2;
    return bytes / s->size;
}

static const double launch_seconds = 2.5e-6;

/* What a product takes, with the kernel that adds up parts of the depth. */
static double product_seconds(const dsd_mma_shape *s, const bsk_layout_tables *t,
                              int32_t compute_units)
{
    /* By unit, of 16-bit types and of tf32, measured: bytes a second from L2 into shared memory, and
     * through shared memory in all; seconds of the share of two bytes of a sample in a stage's turn. */
    static const struct {
        double copy, nc, cn, turn;
    } rates[][3] = {{{8.2e12, 24.5e12, 14e12, 1.2e-9},
                     {7.5e12, 31.5e12, 26.5e12, 0.45e-9},
                     {7.0e12, 25e12, 14e12, 0.5e-9}},
                    {{8.2e12, 32e12, 31e12, 1.2e-9},
                     {7.5e12, 34e12, 31e12, 0.45e-9},
                     {7.0e12, 27e12, 24e12, 0.5e-9}}};
    static const double tile = 1e-6; /* its end */
    /* Bytes a second from memory, of weights, which are read once at least. */
    static const double memory = 3.6e12;
    /* Of the rate through shared memory: warps of square tiles have more to do in a stage, of tall
     * ones there are fewer. */
    static const double shares[] = {
        [DSD_MMA_WIDE] = 1, [DSD_MMA_SQUARE] = 0.94, [DSD_MMA_TALL] = 0.9};
    enum { X_STEP_BYTES = 64 * STEP_BYTES };
    const int tf32 = s->size == 4, row = s->unit / 16;
    const double rate = shares[s->tile] * (s->cn ? rates[tf32][row].cn : rates[tf32][row].nc);
    const double kept = (double)t->nnz * t->block_rows * t->block_cols;
    const double density = kept / ((double)s->outputs * (double)s->features);
    const double rows = (double)(s->row_tiles * s->samples);
    const double steps = rows / 64 * kept * s->size / (STEP_BYTES * s->unit);
    const double filled = (double)s->row_tiles *
                          ((double)s->across * (double)s->features * s->samples + kept) * s->size;
    /* Of units of a warp that meet the same features, activations are read once. */
    double gap = 1;
    for (int i = 0; i < s->warp_units; i++)
        gap *= 1 - density;
    const double read = X_STEP_BYTES * (density > 0 ? (1 - gap) / (density * s->warp_units) : 1);
    const double shared =
        filled + steps * (read + STEP_BYTES * s->unit * 64 / DSD_MMA_WARP_SAMPLES(s->tile));
    const double tiles = (double)(s->panels * s->row_tiles);
    const double blocks = compute_units > 0 ? compute_units : 1;
    const double turns = tiles / blocks, whole = (double)(int64_t)(turns + 0.999);
    const double copies = filled / rates[tf32][row].copy / turns;
    const double reads = shared / rate / turns + rates[tf32][row].turn * (double)s->features *
                                                     s->size / (2 * s->split.parts);
    double work = copies > reads ? copies : reads;
    if (work * turns < s->size * kept / memory)
        work = s->size * kept / memory / turns;
    return (work + tile) * (whole > turns ? whole : turns) + bski_dsd_split_seconds(&s->split);
}

/* As many parts of the depth as there are thread blocks for. */
static void split_set(dsd_mma_shape *s, int32_t compute_units)
{
    s->split = bski_dsd_split_of(s->across * s->row_tiles, DSD_MMA_PART_SUMS,
                                 bski_ceil_div(s->features, s->depth),
                                 LEAST_PART / (s->depth * s->size), compute_units);
    s->windows = s->split.each;
    s->panels = s->across * s->split.parts;
}

/* In parts, if adding them up does not take longer than what they save. */
static void split_choose(dsd_mma_shape *s, const bsk_layout_tables *t, int32_t compute_units)
{
    dsd_mma_shape whole = *s;
    split_set(&whole, 0);
    split_set(s, compute_units);
    whole.seconds = launch_seconds + product_seconds(&whole, t, compute_units);
    s->seconds = launch_seconds + product_seconds(s, t, compute_units);
    if (s->seconds >= whole.seconds)
        *s = whole;
}

/* --- Few samples --- */

/* How much more than the average the heaviest tile has. */
static double few_skew(const dsd_mma_shape *s, const bski_lines *lines)
{
    const int64_t tile = s->panel_units * (int64_t)s->unit, count = lines->grid;
    int64_t most = 0;
    for (int64_t i = 0; i < s->across; i++) {
        const int64_t first = i * tile / s->block_i,
                      last = bski_ceil_div((i + 1) * tile, s->block_i);
        const int64_t blocks = lines->start[last < count ? last : count] - lines->start[first];
        most = blocks > most ? blocks : most;
    }
    const double rows = (double)(tile > s->block_i ? tile : s->block_i) / s->block_i;
    const double mean = (double)lines->start[count] / (double)count * rows;
    return mean > 0 ? (double)most / mean : 1;
}

/* Thread blocks of few samples for each multiprocessor, which has one at a time. */
static int64_t few_turns(const dsd_mma_shape *s, int32_t compute_units)
{
    return bski_ceil_div(s->panels, compute_units > 0 ? compute_units : 1);
}

/* What a product of few samples takes. skew: of the heaviest tile, beside the average. */
static double few_seconds(const dsd_mma_shape *s, const bsk_layout_tables *t, double skew,
                          int32_t compute_units)
{
    /* What begins and ends a tile; bytes a second from memory, and with blocks that several warps
     * have in common, which wait for each other; of a multiprocessor from L2 and, by unit, from
     * shared memory. Measured. */
    static const double ends = 3.5e-6, memory[] = {4.3e12, 3.9e12}, copy = 62e9;
    static const double shared[] = {200e9, 200e9, 130e9};
    const double weights = (double)s->size * (double)t->nnz * t->block_rows * t->block_cols;
    const double reading = weights / memory[s->block_i > DSD_MMA_WARP_OUTPUTS];
    const double filled =
        (double)s->across * (double)s->features * (double)s->samples * s->size + weights;
    const double loads = filled + weights * (1 + (double)DSD_MMA_WARP_SAMPLES(s->tile) / s->unit);
    const double rate = shared[s->unit / 16];
    const double work = filled / copy > loads / rate ? filled / copy : loads / rate;
    const double tile = ends + work / (double)s->panels * skew;
    const double tiles = tile * (double)few_turns(s, compute_units);
    return launch_seconds + (tiles > ends + reading ? tiles : ends + reading);
}

/* A tile of so many warps side by side, its depth in two parts; whether its lists are of like
 * length, since all have room for the longest. */
static bool few_set(dsd_mma_shape *s, const bsk_problem *problem, int32_t warp_cols,
                    int32_t compute_units)
{
    enum { MOST_SKEW = 4 };
    const bsk_dsd_params *p = problem->params;
    const bski_lines lines = bski_layout_lines(problem->layout, p->transpose_s != 0);
    s->warp_cols = warp_cols;
    s->panel_units = warp_cols * s->warp_units;
    s->across = bski_ceil_div(s->units, s->panel_units);
    s->depth = depth_of(s, problem->layout);
    s->windows = bski_ceil_div(bski_ceil_div(s->features, s->depth), DSD_MMA_CLUSTER);
    s->split = (dsd_split){.parts = DSD_MMA_CLUSTER, .each = s->windows};
    s->panels = s->across * DSD_MMA_CLUSTER;
    const double skew = few_skew(s, &lines);
    s->seconds = few_seconds(s, problem->layout, skew, compute_units);
    return skew <= MOST_SKEW;
}

/* Few samples have tiles of their own, unless some have much longer lists than others, or wide ones
 * take less time: in parts, or where these are more than the multiprocessors. Of their widths the
 * one that takes the least: wide ones read activations for more outputs, of narrow ones there are
 * enough for all multiprocessors. */
static void few_choose(dsd_mma_shape *s, const bsk_problem *problem, int32_t compute_units)
{
    enum { WIDEST = 8, NARROWEST = 2, ROW_SAMPLES = 64 /* of 128 bytes */ };
    dsd_mma_shape few = *s, best = *s;
    if (s->size != 2 || s->n > DSD_MMA_WARP_SAMPLES(DSD_MMA_FEW))
        return;
    few.tile = s->n > DSD_MMA_WARP_SAMPLES(DSD_MMA_FEWER) ? DSD_MMA_FEW : DSD_MMA_FEWER;
    few.samples = s->cn ? ROW_SAMPLES : DSD_MMA_WARP_SAMPLES(few.tile);
    few.row_tiles = 1;
    few.part_words = s->unit == 8 ? DSD_MMA_MASKS_WORDS : DSD_MMA_PART_WORDS;
    best.seconds = HUGE_VAL;
    for (int32_t warp_cols = WIDEST; warp_cols >= NARROWEST; warp_cols /= 2)
        if (few_set(&few, problem, warp_cols, compute_units) && few.seconds < best.seconds)
            best = few;
    const bool alike = s->split.parts == 1 && few_turns(&best, compute_units) == 1;
    if (is_few(&best) && (alike || best.seconds < s->seconds))
        *s = best;
}

/* Tiles, and what they cut the product into. */
static void tiles_set(dsd_mma_shape *s, const bsk_layout_tables *t, int32_t compute_units)
{
    s->tile = tile_of(s, t, compute_units);
    const int32_t rows = s->tile == DSD_MMA_SQUARE ? 2 : 1; /* of warps */
    s->samples = rows * DSD_MMA_WARP_SAMPLES(s->tile);
    s->warp_cols = DSD_MMA_WARPS(s->tile) / rows;
    s->warp_units = DSD_MMA_WARP_OUTPUTS / s->unit;
    s->part_words = DSD_MMA_PART_WORDS;
    s->panel_units = s->warp_cols * s->warp_units;
    s->across = bski_ceil_div(s->units, s->panel_units);
    s->row_tiles = bski_ceil_div(s->n, s->samples);
    s->depth = depth_of(s, t);
}

bsk_reason bski_dsd_mma_shape(const bsk_problem *problem, int32_t compute_units, dsd_mma_shape *s)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bool flip = p->transpose_s != 0;
    *s = (dsd_mma_shape){0};
    if (p->b.rank != 2 || t->heads != 1)
        return BSK_REFUSE_RANK;
    s->block_i = flip ? t->block_cols : t->block_rows;
    s->block_j = flip ? t->block_rows : t->block_cols;
    s->row_stride = flip ? 1 : t->block_cols;
    s->feature_stride = flip ? t->block_cols : 1;
    s->outputs = flip ? t->cols : t->rows;
    s->features = flip ? t->rows : t->cols;
    s->n = p->b.dims[1];
    s->size = problem->dtype == BSK_F32 ? 4 : 2;
    s->unit = unit_of(s->block_i, s->block_j, STEP_BYTES / s->size);
    if (!s->unit)
        return BSK_REFUSE_BLOCK;
    if (s->outputs > INT32_MAX / 2 || s->features > INT32_MAX / 2 || s->n > INT32_MAX / 2 ||
        !bski_dsd_image_counts(t, s->size))
        return BSK_REFUSE_LIMIT;
    s->step = s->unit == 8 ? 8 : STEP_BYTES / s->size;
    s->columns = s->unit == 32 && s->size == 4 ? 2 : 1;
    s->units = bski_ceil_div(s->outputs, s->unit);
    for (int cn = 0; cn < 2; cn++) {
        s->cn = cn;
        tiles_set(s, t, compute_units);
        if (s->across * s->row_tiles > INT32_MAX / 2)
            return BSK_REFUSE_LIMIT;
        if (!s->n)
            return BSK_ACCEPT;
        s->b = tensor_of(&p->b, s->cn, ROW_BYTES / s->size, s->samples);
        if (p->b.strides[cn] == 1 && bski_cuda_tensor_fits(&s->b)) {
            split_choose(s, t, compute_units);
            few_choose(s, problem, compute_units);
            s->b = tensor_of(&p->b, s->cn, ROW_BYTES / s->size, s->samples);
            return BSK_ACCEPT;
        }
    }
    return BSK_REFUSE_STRIDE;
}

bsk_reason cuda_sm90a_dsd_mma_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_dsd_params *p = problem->params;
    dsd_mma_shape s;
    if (p->gate.dtype != BSK_NONE ||
        (problem->dtype == BSK_F32 && p->precision != BSK_PRECISION_TF32))
        return BSK_REFUSE_OPTION;
    const bsk_reason reason = bski_dsd_mma_shape(problem, props->compute_units, &s);
    return reason ? reason : bski_cuda_epilogue_accept(problem);
}

double cuda_sm90a_dsd_mma_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    /* of packing, by unit, of 16-bit types and of tf32 */
    static const double rates[][3] = {{1.75e12, 1.9e12, 2e12}, {1.4e12, 2.1e12, 2.1e12}};
    const bsk_layout_tables *t = problem->layout;
    dsd_mma_shape s;
    if (bski_dsd_mma_shape(problem, props->compute_units, &s) || !s.n)
        return launch_seconds;
    const double image = (double)s.size * (double)t->nnz * t->block_rows * t->block_cols;
    return s.seconds + bski_dsd_image_seconds(problem, image, rates[s.size == 4][s.unit / 16]);
}
