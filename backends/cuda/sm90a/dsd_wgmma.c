/* The host side of dsd by wgmma: which cells of the weights are kept, which panels share a tile,
 * and which thread block computes which tiles. */
#include <string.h>

#include <backends/cuda/host.h>
#include <backends/cuda/sm90a/dsd_image.h>
#include <backends/cuda/sm90a/dsd_pairing.h>
#include <backends/cuda/sm90a/dsd_wgmma.h>
#include <backends/cuda/tensor_map.h>
#include <common/checked.h>

CUDA_PACKED_FUNCTIONS(dsd_wgmma)

/* --- The problem in the kernel's terms --- */

enum { MAX_BLOCK = 128, PAIR = 2, QUARTERS = 4, WORD = 64, PACKED_ALIGNMENT = 128 };

/* op(S) as lists of blocks by block of features, and as a grid of cells. */
typedef struct weights {
    int32_t block_features, block_k; /* elements */
    int32_t grid;                    /* blocks of features */
    int64_t features, depth;
    const int64_t *start;
    const int32_t *k, *slot;
    int32_t cell_k;         /* elements of a cell along k */
    int32_t panels, slices; /* cells along features and along k */
} weights;

/* Bytes of an element: of f32, rounded to tf32, or of 16 bits. */
static int32_t element_bytes(const bsk_problem *problem)
{
    return problem->dtype == BSK_F32 ? 4 : 2;
}

/* Elements of a row of a slice. */
static int32_t row_of(const bsk_problem *problem)
{
    return DSD_ROW_BYTES / element_bytes(problem);
}

static weights weights_of(const bsk_problem *problem)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bool flip = p->transpose_s != 0;
    weights w = {
        .block_features = flip ? t->block_cols : t->block_rows,
        .block_k = flip ? t->block_rows : t->block_cols,
        .grid = flip ? t->grid_cols : t->grid_rows,
        .features = flip ? t->cols : t->rows,
        .depth = flip ? t->rows : t->cols,
        .start = flip ? t->col_start : t->row_start,
        .k = flip ? t->col_row : t->row_col,
        .slot = flip ? t->col_slot : t->row_slot,
        .cell_k = row_of(problem),
    };
    w.panels = (int32_t)bski_ceil_div(w.features, DSD_CELL);
    w.slices = (int32_t)bski_ceil_div(w.depth, w.cell_k);
    return w;
}

static int64_t members(const bsk_tensor *t)
{
    return t->rank == 3 ? t->dims[0] : 1;
}

/* The activations as the copy engine sees them. along_n: n is contiguous. */
static bski_cuda_tensor activations_of(const bsk_problem *problem, bool *along_n)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_tensor *b = &p->b;
    const int32_t k = b->rank - 2, n = b->rank - 1;
    *along_n = b->strides[k] != 1 || (b->strides[n] == 1 && b->dims[k] == 1);
    const int32_t inner = *along_n ? n : k, outer = *along_n ? k : n, row = row_of(problem);
    return (bski_cuda_tensor){
        .dtype = problem->dtype,
        .rank = 3,
        .dims = {b->dims[inner], b->dims[outer], members(b)},
        .strides = {1, b->strides[outer], b->rank == 3 ? b->strides[0] : 0},
        .box = {row, *along_n ? row : DSD_GROUP_N, 1},
        .swizzle = DSD_ROW_BYTES,
    };
}

/* Tiles along n, of all members of the batch; 0 if there are too many. */
static int32_t count_tiles(const bsk_problem *problem)
{
    const bsk_dsd_params *p = problem->params;
    int64_t tiles = bski_ceil_div(p->c.dims[p->c.rank - 1], DSD_TILE_N);
    if (!bski_mul_i64(tiles, members(&p->c), &tiles) || tiles > INT32_MAX - PAIR)
        return 0;
    return (int32_t)tiles;
}

static bool block_fits(int32_t size)
{
    return size >= DSD_RUN && size <= MAX_BLOCK && !(size & (size - 1));
}

bsk_reason cuda_dsd_wgmma_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_dsd_params *p = problem->params;
    const weights w = weights_of(problem);
    bool along_n;
    const bski_cuda_tensor b = activations_of(problem, &along_n);
    const int64_t n = p->c.dims[p->c.rank - 1];
    (void)props; /* every device of the generation has the shared memory */
    if (!block_fits(w.block_features) || !block_fits(w.block_k))
        return BSK_REFUSE_BLOCK;
    if (p->gate.dtype != BSK_NONE ||
        (problem->dtype == BSK_F32 && p->precision != BSK_PRECISION_TF32))
        return BSK_REFUSE_OPTION;
    if (problem->layout->heads != 1 || (p->s.rank == 4 && p->s.dims[0] != 1))
        return BSK_REFUSE_RANK;
    const bsk_reason reason = bski_cuda_epilogue_accept(problem);
    if (reason)
        return reason;
    if (n == 0 || members(&p->c) == 0)
        return BSK_ACCEPT;
    if (p->b.strides[p->b.rank - (along_n ? 1 : 2)] != 1 || !bski_cuda_tensor_fits(&b))
        return BSK_REFUSE_STRIDE;
    const bool counted = w.features <= INT32_MAX / 2 && w.depth <= INT32_MAX / 2;
    return counted && count_tiles(problem) ? BSK_ACCEPT : BSK_REFUSE_LIMIT;
}

/* --- The model --- */

/* Rates of one multiprocessor of an H200 and times, as measured with all at work; alone it takes
 * less of them. */
static const double load_rate = 68e9;      /* bytes/s from the L2 cache */
static const double product_rate = 5.9e12; /* flop/s */
static const double alone = 0.7;
static const double memory_rate = 3.9e12; /* bytes/s, of the device */
static const double packing_rate = 2e12;  /* bytes/s of an image */
static const double tile_seconds = 1.5e-6, launch_seconds = 3e-6;

/* The time of a stage with one cell or two. */
static double stage_seconds(int cells)
{
    const double loads = (2 * DSD_SLICE_BYTES + cells * DSD_CELL_BYTES) / load_rate;
    const double product = 2.0 * DSD_TILE_N * DSD_CELL * DSD_CELL * cells / product_rate;
    return loads > product ? loads : product;
}

/* The time of a stage of a long list: 16 KB of activations and two cells, for one group or the other. */
static double quarter_seconds(void)
{
    return (DSD_SLICE_BYTES + 2 * DSD_CELL_BYTES) / load_rate;
}

/* A list that is so many times as long as the mean may be a long one (find_long). */
enum { LONG_MEANS = 4 };

/* Whether there can be any, which are not looked at for gaps; f32 has no kernels for them. */
static bool takes_long(const weights *w)
{
    return w->cell_k == DSD_CELL && w->block_features >= DSD_CELL && w->block_k >= DSD_CELL &&
           w->slices <= DSD_MOST_SLICES;
}

/* Panels of a tile: one where even so each multiprocessor has at most one tile, but not where all of
 * them would read the same few samples at nearly all of the depth, as small blocks make them. */
static int32_t tile_panels(const weights *w, int64_t rows, int64_t samples, int64_t units)
{
    const bool small = w->block_features * w->block_k < DSD_CELL * DSD_CELL / 4;
    const bool few = samples <= DSD_CELL;
    return rows * w->panels <= units && !(few && small) ? 1 : PAIR;
}

/* Counts the slices of k that blocks of a panel, and with `halves` of 2 of the next one, meet: both or
 * one of them. */
static void count_stages(const weights *w, int32_t panel, int32_t halves, int64_t *both,
                         int64_t *single)
{
    enum { MAX_LISTS = PAIR * DSD_CELL / DSD_RUN };
    const int32_t blocks = w->block_features > DSD_CELL ? 1 : DSD_CELL / w->block_features;
    int64_t at[MAX_LISTS], end[MAX_LISTS];
    int32_t lists = 0;
    for (int32_t half = 0; half < halves; half++)
        for (int32_t i = 0; i < blocks; i++) {
            const int64_t row = (int64_t)(panel + half) * DSD_CELL / w->block_features + i;
            at[lists] = row < w->grid ? w->start[row] : 0;
            end[lists++] = row < w->grid ? w->start[row + 1] : 0;
        }
    for (;;) {
        /* The next slice that any list meets, and which halves meet it. */
        int64_t slice = INT64_MAX;
        for (int32_t i = 0; i < lists; i++) {
            const int64_t s =
                at[i] < end[i] ? (int64_t)w->k[at[i]] * w->block_k / w->cell_k : slice;
            slice = s < slice ? s : slice;
        }
        if (slice == INT64_MAX)
            return;
        int met = 0;
        for (int32_t i = 0; i < lists; i++)
            for (; at[i] < end[i] && (int64_t)w->k[at[i]] * w->block_k / w->cell_k == slice;
                 at[i]++)
                met |= i < blocks ? 1 : 2;
        const int64_t slices = w->block_k > w->cell_k ? w->block_k / w->cell_k : 1;
        *(met == 3 ? both : single) += slices;
    }
}

/* The time of a tile of so many panels, whose cells it adds to those that it is given. */
static double tile_time(const weights *w, int32_t panel, int32_t panels, double *cells)
{
    int64_t both = 0, single = 0;
    count_stages(w, panel, panels, &both, &single);
    *cells += (double)(2 * both + single);
    return (double)both * stage_seconds(2) + (double)single * stage_seconds(1) + tile_seconds;
}

double cuda_dsd_wgmma_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_dsd_params *p = problem->params;
    const weights w = weights_of(problem);
    const double tiles = count_tiles(problem), units = props->compute_units;
    const int64_t samples = p->c.dims[p->c.rank - 1];
    const int32_t wide = tile_panels(&w, (int64_t)tiles, samples, props->compute_units);
    double sum = 0, cells = 0;
    for (int32_t panel = 0; panel < w.panels; panel += wide)
        sum += tile_time(&w, panel, wide, &cells);
    const double mean = sum / (double)bski_ceil_div(w.panels, wide);
    double longest = 0;
    for (int32_t panel = 0; panel < w.panels; panel += wide) {
        double unused = 0, tile = tile_time(&w, panel, wide, &unused);
        if (takes_long(&w) && tile > LONG_MEANS * mean) {
            const double whole = tile;
            tile *= quarter_seconds() / (2 * stage_seconds(1));
            sum += QUARTERS * tile - whole;
        }
        longest = tile > longest ? tile : longest;
    }
    const double spread = sum * tiles / units;
    const double outputs = (double)members(&p->c) * (double)samples;
    const double bytes =
        element_bytes(problem) * outputs * (double)(w.features + w.depth) + cells * DSD_CELL_BYTES;
    const double memory = bytes / memory_rate;
    const double packing = bski_dsd_image_seconds(problem, cells * DSD_CELL_BYTES, packing_rate);
    const double busy = tiles * (double)bski_ceil_div(w.panels, wide) / units;
    /* narrow tiles of whole cells were as fast as a lone one, wherever they were measured */
    const bool swift = wide == 1 && w.block_features >= DSD_CELL && w.block_k >= DSD_CELL;
    const double crowd = swift ? alone : busy < 1 ? alone + (1 - alone) * busy : 1;
    const double product = spread > longest ? spread : longest * crowd;
    return launch_seconds + packing + (product > memory ? product : memory);
}

/* --- Plans --- */

/* Two panels that share tiles, one alone, or one with a long list: their stages, as in dsd_tile. */
typedef struct dsd_pair {
    int32_t first;
    int32_t two, both, one;
    int32_t feature[PAIR];
    bool quarters;
} dsd_pair;

typedef struct kernel_row {
    bsk_dtype dtype;
    bool along_n;
    int32_t cluster;
    bool longs;
    dsd_end end;
    const char *name;
    const void *function;
} kernel_row;

typedef struct state {
    const bsk_host *host;
    bski_cuda_encoder encoder;
    bski_cuda_tensor b, narrow; /* the activations, for whole tiles and for quarters */
    const kernel_row *kernel[DSD_ENDS];
    int32_t cluster;
    int32_t units; /* thread blocks or clusters that have tiles */
    int64_t cells;
    bool idle;                                     /* C is empty */
    bool quarters;                                 /* there are long lists */
    bski_cuda_run pack_run;                        /* but for its arguments */
    bsk_mem stages, tiles, tile_start, cell, slot; /* device */
    dsd_wgmma_arg arg;
    dsd_pack_arg pack;
} state;

/* Host memory while a plan is made. */
typedef struct scratch {
    uint64_t *kept;      /* [2 pairs][words] bit k % 64 of word k / 64: slice k is kept */
    uint64_t *kept_long; /* [longs][words] the same of long lists, which are empty in kept */
    int32_t *panel;      /* [longs] theirs */
    int32_t *order;      /* [2 pairs] panels */
    int32_t *cell;       /* [panels][slices] number of the cell in the image */
    dsd_pair *pairs;     /* [pairs + longs] */
    dsd_stage *stages;   /* [stages] */
    dsd_cell *cells;     /* [cells] */
    int32_t *slots;      /* [cells][parts] */
    load *loads;         /* [units] */
    dsd_tile *tiles, *assigned;
    int32_t *rank, *unit, *tile_start;
} scratch;

typedef struct builder {
    simt_device *device;
    const bsk_host *host;
    weights w;
    int32_t pairs, longs, words, parts_features, parts_k;
    int64_t samples; /* of a member of the batch */
    int64_t stage_count, tile_count;
    scratch s;
    state *out;
} builder;

static void scratch_free(builder *b)
{
    void *all[] = {b->s.kept,     b->s.kept_long, b->s.panel, b->s.order, b->s.cell,
                   b->s.pairs,    b->s.stages,    b->s.cells, b->s.slots, b->s.loads,
                   b->s.assigned, b->s.tiles,     b->s.rank,  b->s.unit,  b->s.tile_start};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        host_drop(b->host, all[i]);
}

/* --- Which cells are kept --- */

/* Calls visit for each cell that a block meets, with the block's slot and the number of the part of
 * the cell that it covers. */
static void for_each_part(builder *b, void (*visit)(builder *b, int32_t panel, int32_t slice,
                                                    int32_t part, int32_t slot))
{
    const weights *w = &b->w;
    for (int32_t row = 0; row < w->grid; row++)
        for (int64_t i = w->start[row]; i < w->start[row + 1]; i++) {
            const int64_t f0 = (int64_t)row * w->block_features, k0 = (int64_t)w->k[i] * w->block_k;
            const int32_t part = (int32_t)(k0 % w->cell_k / w->block_k * b->parts_features +
                                           f0 % DSD_CELL / w->block_features);
            for (int64_t f = f0; f < f0 + w->block_features && f < w->features; f += DSD_CELL)
                for (int64_t k = k0; k < k0 + w->block_k && k < w->depth; k += w->cell_k)
                    visit(b, (int32_t)(f / DSD_CELL), (int32_t)(k / w->cell_k), part, w->slot[i]);
        }
}

static void keep_part(builder *b, int32_t panel, int32_t slice, int32_t part, int32_t slot)
{
    (void)part;
    (void)slot;
    b->s.kept[(int64_t)panel * b->words + slice / WORD] |= UINT64_C(1) << slice % WORD;
}

static void place_part(builder *b, int32_t panel, int32_t slice, int32_t part, int32_t slot)
{
    const int64_t cell = b->s.cell[(int64_t)panel * b->w.slices + slice];
    b->s.slots[cell * b->parts_features * b->parts_k + part] = slot;
}

static bool is_kept(const builder *b, const uint64_t *lists, int32_t line, int32_t slice)
{
    return lists[(int64_t)line * b->words + slice / WORD] >> slice % WORD & 1;
}

/* Takes the lists out that would keep a thread block busy when all others are done: those that take
 * half of a unit's work and are several times as long as the mean. */
static bsk_status find_long(builder *b, int32_t rows, int32_t units)
{
    enum { SHARE = 2 };
    int64_t sum = 0;
    if (!takes_long(&b->w))
        return BSK_OK;
    TRY(host_array(b->host, &b->s.panel, b->w.panels, sizeof *b->s.panel));
    for (int64_t i = 0; i < (int64_t)b->w.panels * b->words; i++)
        sum += __builtin_popcountll(b->s.kept[i]);
    const double work = (double)sum * stage_seconds(1) + b->pairs * tile_seconds;
    for (int32_t panel = 0; panel < b->w.panels; panel++) {
        int64_t count = 0;
        for (int32_t i = 0; i < b->words; i++)
            count += __builtin_popcountll(b->s.kept[(int64_t)panel * b->words + i]);
        if (count * b->w.panels > LONG_MEANS * sum &&
            (double)count * stage_seconds(1) * SHARE > work * rows / units)
            b->s.panel[b->longs++] = panel;
    }
    TRY(host_array(b->host, &b->s.kept_long, (int64_t)b->longs * b->words, sizeof *b->s.kept_long));
    for (int32_t i = 0; i < b->longs; i++) {
        uint64_t *list = b->s.kept + (int64_t)b->s.panel[i] * b->words;
        memcpy(b->s.kept_long + (int64_t)i * b->words, list, (size_t)b->words * sizeof *list);
        memset(list, 0, (size_t)b->words * sizeof *list);
    }
    b->out->quarters = b->longs > 0;
    return BSK_OK;
}

static bool is_long(const builder *b, int32_t panel)
{
    bool found = false;
    for (int32_t i = 0; i < b->longs; i++)
        found |= b->s.panel[i] == panel;
    return found;
}

/* --- Stages --- */

static void add_cell(builder *b, int32_t panel, int32_t slice)
{
    if (slice < b->w.slices)
        b->s.cell[(int64_t)panel * b->w.slices + slice] = (int32_t)b->out->cells;
    b->s.cells[b->out->cells++] = (dsd_cell){panel * DSD_CELL, slice * b->w.cell_k};
}

/* The stages of a pair in which exactly these of its panels have cells: bit 0, bit 1. Writes them
 * unless it only counts. */
static int32_t list_stages(builder *b, const int32_t *panel, int wanted, bool write)
{
    int32_t count = 0;
    for (int32_t slice = 0; slice < b->w.slices; slice++) {
        const int has = (int)is_kept(b, b->s.kept, panel[0], slice) |
                        (int)is_kept(b, b->s.kept, panel[1], slice) << 1;
        if (has != wanted)
            continue;
        count++;
        if (!write)
            continue;
        b->s.stages[b->stage_count++] = (dsd_stage){slice * b->w.cell_k, (int32_t)b->out->cells};
        for (int half = 0; half < PAIR; half++) {
            if (!(wanted >> half & 1))
                continue;
            add_cell(b, panel[half], slice);
        }
    }
    return count;
}

/* The same of long list i, two slices a stage; with the last of an odd number go a slice and a cell
 * of zeros. */
static int32_t list_long(builder *b, int32_t i, bool write)
{
    int32_t count = 0;
    for (int32_t slice = 0; slice < b->w.slices; slice++) {
        if (!is_kept(b, b->s.kept_long, i, slice))
            continue;
        if (count++ % 2 == 0 && write)
            b->s.stages[b->stage_count++] = (dsd_stage){slice, (int32_t)b->out->cells};
        else if (write)
            b->s.stages[b->stage_count - 1].k |= slice << DSD_SECOND;
        if (write)
            add_cell(b, b->s.panel[i], slice);
    }
    if (write && count % 2) {
        b->s.stages[b->stage_count - 1].k |= b->w.slices << DSD_SECOND;
        add_cell(b, b->s.panel[i], b->w.slices);
    }
    return (count + 1) / 2;
}

static void make_pairs(builder *b, bool write)
{
    static const int kinds[] = {2, 3, 1}; /* in the order of dsd_pair */
    const int32_t outside = b->w.panels * DSD_CELL;
    int64_t stages = 0, cells = 0;
    b->stage_count = b->out->cells = 0;
    for (int32_t i = 0; i < b->pairs; i++) {
        const int32_t *panel = b->s.order + PAIR * i;
        int32_t count[3];
        const int64_t first = stages;
        for (int kind = 0; kind < 3; kind++) {
            count[kind] = list_stages(b, panel, kinds[kind], write);
            stages += count[kind];
            cells += (int64_t)count[kind] * (kinds[kind] == 3 ? PAIR : 1);
        }
        b->s.pairs[i] =
            (dsd_pair){.first = (int32_t)first,
                       .two = count[0],
                       .both = count[1],
                       .one = count[2],
                       .feature = {is_long(b, panel[0]) ? outside : panel[0] * DSD_CELL,
                                   is_long(b, panel[1]) ? outside : panel[1] * DSD_CELL}};
    }
    for (int32_t i = 0; i < b->longs; i++) {
        const int32_t count = list_long(b, i, write);
        b->s.pairs[b->pairs + i] = (dsd_pair){.first = (int32_t)stages,
                                              .two = count,
                                              .feature = {outside, b->s.panel[i] * DSD_CELL},
                                              .quarters = true};
        stages += count;
        cells += PAIR * (int64_t)count;
    }
    b->stage_count = stages;
    b->out->cells = cells;
}

static bsk_status build_cells(builder *b, int32_t rows)
{
    const weights *w = &b->w;
    int64_t words, grid, slots;
    const int64_t parts = (int64_t)b->parts_features * b->parts_k;
    if (!bski_mul_i64((int64_t)PAIR * b->pairs, b->words, &words) ||
        !bski_mul_i64(w->panels, w->slices, &grid) || grid > INT32_MAX)
        return b->host->fail(b->host->context, BSK_E_UNSUPPORTED, "dsd: too many cells");
    TRY(host_array(b->host, &b->s.kept, words, sizeof *b->s.kept));
    TRY(host_array(b->host, &b->s.order, PAIR * b->pairs, sizeof *b->s.order));
    TRY(host_array(b->host, &b->s.cell, grid, sizeof *b->s.cell));
    for_each_part(b, keep_part);
    TRY(find_long(b, rows, b->device->props.compute_units));
    TRY(host_array(b->host, &b->s.pairs, b->pairs + b->longs, sizeof *b->s.pairs));
    if (b->pairs < w->panels)
        bski_dsd_pairing(b->s.kept, b->words, b->pairs, b->s.order);
    for (int32_t i = 0; b->pairs == w->panels && i < b->pairs; i++) {
        b->s.order[PAIR * i] = i;
        b->s.order[PAIR * i + 1] = w->panels; /* beside nothing */
    }
    make_pairs(b, false);
    slots = b->out->cells * parts; /* at most a cell for each pair of 32-bit counts */
    TRY(host_array(b->host, &b->s.stages, b->stage_count, sizeof *b->s.stages));
    TRY(host_array(b->host, &b->s.cells, b->out->cells, sizeof *b->s.cells));
    TRY(host_array(b->host, &b->s.slots, slots, sizeof *b->s.slots));
    memset(b->s.slots, 0xff, (size_t)slots * sizeof *b->s.slots);
    make_pairs(b, true);
    for_each_part(b, place_part);
    return BSK_OK;
}

/* --- Who computes which tile --- */

/* How many tiles it has at tile n along the samples: quarters that have any. */
static int32_t tiles_of(const builder *b, const dsd_pair *p, int32_t n)
{
    const int64_t samples = b->samples - (int64_t)n % b->out->arg.member_tiles * DSD_TILE_N;
    if (!p->quarters)
        return 1;
    return samples < DSD_TILE_N ? (int32_t)bski_ceil_div(samples, DSD_CELL) : QUARTERS;
}

/* Of one of its tiles. */
static double pair_seconds(const dsd_pair *p)
{
    if (p->quarters)
        return p->two * quarter_seconds() + tile_seconds;
    return p->both * stage_seconds(2) + (p->one + p->two) * stage_seconds(1) + tile_seconds;
}

/* Numbers the pairs from the longest to the shortest. */
static void rank_pairs(builder *b)
{
    /* Insertion by halves: pairs are few, and the order of equals must not depend on a library. */
    for (int32_t i = 0; i < b->pairs + b->longs; i++) {
        int32_t low = 0, high = i;
        const double mine = pair_seconds(&b->s.pairs[i]);
        while (low < high) {
            const int32_t middle = low + (high - low) / 2;
            if (pair_seconds(&b->s.pairs[b->s.rank[middle]]) >= mine)
                low = middle + 1;
            else
                high = middle;
        }
        memmove(b->s.rank + low + 1, b->s.rank + low, (size_t)(i - low) * sizeof *b->s.rank);
        b->s.rank[low] = i;
    }
}

static void assign(builder *b, int32_t pair, int32_t n)
{
    const dsd_pair *p = &b->s.pairs[pair];
    for (int32_t i = 0; i < tiles_of(b, p, n); i++) {
        const int32_t unit = loads_give(b->s.loads, b->out->units, pair_seconds(p));
        b->s.assigned[b->tile_count] = (dsd_tile){p->first,
                                                  p->two,
                                                  p->both,
                                                  p->one,
                                                  {p->feature[0], p->feature[1]},
                                                  n,
                                                  p->quarters ? 1 + i : 0};
        b->s.unit[b->tile_count++] = unit;
        b->s.tile_start[unit + 1]++;
    }
}

/* How many of the ranked pairs are so long that their tiles must be handed out first. */
static int32_t count_first(const builder *b, int32_t rows, int32_t units)
{
    enum { SHARE = 2 }; /* of a unit's work */
    const int32_t lists = b->pairs + b->longs;
    double sum = 0;
    int32_t count = 0;
    for (int32_t i = 0; i < lists; i++)
        sum += tiles_of(b, &b->s.pairs[i], 0) * pair_seconds(&b->s.pairs[i]);
    const double limit = sum * rows / units / SHARE;
    while (count < lists && pair_seconds(&b->s.pairs[b->s.rank[count]]) > limit)
        count++;
    return count < lists ? count : 0; /* all alike: none is long */
}

/* How many rows of tiles go together. Weights that the L2 cache cannot keep are read from memory for
 * each of these, so once for two rows; but samples of two rows stay there only while all tiles go
 * through the depth in step, in one sweep. Beside long lists as many as run at a time. */
static int32_t rows_together(const builder *b)
{
    static const int64_t kept = 24 << 20, swept = 10; /* bytes; one stage in so many may not be */
    const int32_t at_once = b->out->units / (b->pairs + b->longs);
    if (b->longs)
        return at_once > 1 ? at_once : 1;
    int64_t both = 0, others = 0;
    for (int32_t i = 0; i < b->pairs; i++) {
        both += b->s.pairs[i].both;
        others += b->s.pairs[i].two + b->s.pairs[i].one;
    }
    return (2 * both + others) * DSD_CELL_BYTES > kept && others * swept <= both ? 2 : 1;
}

/* Hands out the tiles of ranked pairs first .. last - 1 at tiles low .. high - 1 along n, so many of
 * these together. */
static void assign_all(builder *b, int32_t first, int32_t last, int32_t low, int32_t high,
                       int32_t together)
{
    const int64_t ranks = last - first, rows = high - low;
    for (int64_t i = 0; i < ranks * rows; i++) {
        const tile_place at = tile_place_of(i, rows, ranks, together);
        assign(b, b->s.rank[first + at.rank], low + (int32_t)at.row);
    }
}

/* Each tile goes to the unit that has least to do: very long ones first, then those that share
 * activations at one time, and the last ones by length, so that all units end together. */
static bsk_status build_schedule(builder *b, int32_t rows, int32_t units)
{
    enum { LAST = 2 }; /* tiles of a unit: more, and too many samples were in use at once */
    const int32_t lists = b->pairs + b->longs;
    int64_t tiles;
    if (!bski_mul_i64(rows, b->pairs + (int64_t)QUARTERS * b->longs, &tiles) || tiles > INT32_MAX)
        return b->host->fail(b->host->context, BSK_E_UNSUPPORTED, "dsd: too many tiles");
    units = tiles < units ? (int32_t)tiles : units;
    TRY(host_array(b->host, &b->s.loads, units, sizeof *b->s.loads));
    loads_open(b->s.loads, units);
    TRY(host_array(b->host, &b->s.rank, lists, sizeof *b->s.rank));
    TRY(host_array(b->host, &b->s.assigned, tiles, sizeof *b->s.assigned));
    TRY(host_array(b->host, &b->s.tiles, tiles, sizeof *b->s.tiles));
    TRY(host_array(b->host, &b->s.unit, tiles, sizeof *b->s.unit));
    TRY(host_array(b->host, &b->s.tile_start, (int64_t)units + 1, sizeof *b->s.tile_start));
    rank_pairs(b);
    b->out->units = units;
    const int32_t many = count_first(b, rows, units);
    const int64_t last = bski_ceil_div(LAST * (int64_t)units, lists);
    const int32_t early = last < rows ? rows - (int32_t)last : 0;
    assign_all(b, 0, many, 0, rows, rows);
    assign_all(b, many, lists, 0, early, rows_together(b));
    assign_all(b, many, lists, early, rows, rows - early);
    for (int32_t u = 0; u < units; u++)
        b->s.tile_start[u + 1] += b->s.tile_start[u];
    /* tile_start serves as the next free place of each unit, and is then one unit ahead. */
    for (int64_t i = 0; i < b->tile_count; i++)
        b->s.tiles[b->s.tile_start[b->s.unit[i]]++] = b->s.assigned[i];
    memmove(b->s.tile_start + 1, b->s.tile_start, (size_t)units * sizeof *b->s.tile_start);
    b->s.tile_start[0] = 0;
    return BSK_OK;
}

/* --- Preparing --- */

/* The address of the symbol that the compiler makes for a kernel stands for it. */
extern const char cuda_dsd_wgmma_pack_halves[], cuda_dsd_wgmma_pack_tf32[];
#define KERNEL_ENDS(X, dtype, type, axis, along_n, kind, cluster, longs)                           \
    X(dtype, along_n, cluster, longs, DSD_END_BARE,                                                \
      cuda_dsd_wgmma_##type##_##axis##_##kind##_bare)                                              \
    X(dtype, along_n, cluster, longs, DSD_END_ANY, cuda_dsd_wgmma_##type##_##axis##_##kind##_any)
#define KERNEL_KINDS(X, dtype, type, axis, along_n)                                                \
    KERNEL_ENDS(X, dtype, type, axis, along_n, 1, 1, false)                                        \
    KERNEL_ENDS(X, dtype, type, axis, along_n, 2, 2, false)                                        \
    KERNEL_ENDS(X, dtype, type, axis, along_n, long, 1, true)
#define KERNELS(X)                                                                                 \
    KERNEL_KINDS(X, BSK_BF16, bf16, nc, false)                                                     \
    KERNEL_KINDS(X, BSK_BF16, bf16, cn, true)                                                      \
    KERNEL_KINDS(X, BSK_F16, f16, nc, false)                                                       \
    KERNEL_KINDS(X, BSK_F16, f16, cn, true)                                                        \
    KERNEL_ENDS(X, BSK_F32, tf32, nc, false, 1, 1, false)                                          \
    KERNEL_ENDS(X, BSK_F32, tf32, nc, false, 2, 2, false)                                          \
    KERNEL_ENDS(X, BSK_F32, tf32, cn, true, 1, 1, false)                                           \
    KERNEL_ENDS(X, BSK_F32, tf32, cn, true, 2, 2, false)
#define KERNEL_EXTERN(dtype, along_n, cluster, longs, end, name) extern const char name[];
KERNELS(KERNEL_EXTERN)
#undef KERNEL_EXTERN
#define KERNEL_ROW(dtype, along_n, cluster, longs, end, name)                                      \
    {dtype, along_n, cluster, longs, end, #name, name},
static const kernel_row kernels[] = {KERNELS(KERNEL_ROW)};
#undef KERNEL_ROW

static bsk_status find_kernels(builder *b, bsk_dtype dtype, bool along_n)
{
    const bski_cuda_device *d = (const bski_cuda_device *)b->device;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        const kernel_row *k = &kernels[i];
        if (k->dtype != dtype || k->along_n != along_n || k->cluster != b->out->cluster ||
            k->longs != b->out->quarters)
            continue;
        b->out->kernel[k->end] = k;
        TRY(bski_cuda_kernel(d, k->function, DSD_SHARED_BYTES, k->name));
    }
    b->out->pack_run = (bski_cuda_run){
        .function = dtype == BSK_F32 ? cuda_dsd_wgmma_pack_tf32 : cuda_dsd_wgmma_pack_halves,
        .name = "cuda_dsd_wgmma_pack",
        .grid = {1, 1, 1},
        .threads = DSD_PACK_THREADS,
    };
    return bski_cuda_kernel(d, b->out->pack_run.function, 0, b->out->pack_run.name);
}

static bsk_status put_tables(builder *b)
{
    state *s = b->out;
    const int64_t parts = (int64_t)b->parts_features * b->parts_k, units = s->units;
    const int64_t tiles = b->s.tile_start[units];
    dsd_wgmma_arg *a = &s->arg;
    dsd_pack_arg *p = &s->pack;
    TRY(table_place(b->device, b->s.stages, b->stage_count, sizeof *b->s.stages, &s->stages,
                    &a->stages));
    TRY(table_place(b->device, b->s.tiles, tiles, sizeof *b->s.tiles, &s->tiles, &a->tiles));
    TRY(table_place(b->device, b->s.tile_start, units + 1, sizeof(int32_t), &s->tile_start,
                    &a->tile_start));
    TRY(table_place(b->device, b->s.cells, s->cells, sizeof *b->s.cells, &s->cell, &p->cells));
    return table_place(b->device, b->s.slots, s->cells * parts, sizeof *b->s.slots, &s->slot,
                       &p->parts.slots);
}

/* What the kernel needs to sum around gaps. */
static void fill_gaps(builder *b, const bsk_problem *problem)
{
    const bsk_dsd_params *p = problem->params;
    dsd_wgmma_arg *a = &b->out->arg;
    a->gaps = b->parts_features * b->parts_k > 1;
    a->b_k = p->b.strides[p->b.rank - 2];
    a->b_n = p->b.strides[p->b.rank - 1];
    a->b_batch = p->b.rank == 3 ? p->b.strides[0] : 0;
    a->depth = b->w.depth;
}

static void fill_pack(builder *b, const bsk_problem *problem, bool halves)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const weights *w = &b->w;
    b->out->pack = (dsd_pack_arg){
        .block = (int64_t)t->block_rows * t->block_cols,
        .depth = w->depth,
        .block_features = w->block_features,
        .block_k = w->block_k,
        .parts = {NULL, DSD_CELL / b->parts_features, w->cell_k / b->parts_k, halves},
        .feature_stride = p->transpose_s ? 1 : t->block_cols,
        .k_stride = p->transpose_s ? t->block_cols : 1,
    };
}

/* Sharing weights saves loads, but blocks then wait for each other, work is handed out in larger
 * pieces, and of an odd number of tiles along n one has no partner: worth it for long and many
 * tiles, by measurement. */
static int32_t cluster_size(const builder *b, int32_t rows)
{
    enum { LONG = 12 /* stages */, TILES = 6 /* of a unit */, ROWS = 16 };
    const bool many = (int64_t)rows * b->pairs >= (int64_t)TILES * b->device->props.compute_units;
    const bool even = rows % 2 == 0 || rows >= ROWS;
    return many && even && !b->longs && b->stage_count > (int64_t)LONG * b->pairs ? 2 : 1;
}

static bsk_status build(builder *b, const bsk_problem *problem)
{
    const bsk_dsd_params *p = problem->params;
    state *s = b->out;
    bool along_n;
    const int32_t rows = count_tiles(problem);
    b->w = weights_of(problem);
    b->samples = p->c.dims[p->c.rank - 1];
    b->pairs = (int32_t)bski_ceil_div(
        b->w.panels, tile_panels(&b->w, rows, b->samples, b->device->props.compute_units));
    b->words = (int32_t)bski_ceil_div(b->w.slices, WORD);
    b->parts_features = b->w.block_features < DSD_CELL ? DSD_CELL / b->w.block_features : 1;
    b->parts_k = b->w.block_k < b->w.cell_k ? b->w.cell_k / b->w.block_k : 1;
    s->host = b->host;
    s->b = s->narrow = activations_of(problem, &along_n);
    s->narrow.box[1] = DSD_CELL; /* of long lists, which f32 has not */
    bski_cuda_epilogue_fill(problem, &s->arg.epilogue);
    fill_gaps(b, problem);
    fill_pack(b, problem, along_n && problem->dtype == BSK_F32);
    TRY(bski_cuda_encoder_find(b->device, &s->encoder));
    TRY(build_cells(b, rows));
    s->cluster = cluster_size(b, rows);
    TRY(find_kernels(b, problem->dtype, along_n));
    s->idle = rows == 0;
    if (s->idle) {
        s->cells = 0; /* no image either */
        return BSK_OK;
    }
    s->arg.members = (int32_t)members(&p->c);
    s->arg.member_tiles = (int32_t)bski_ceil_div(b->samples, DSD_TILE_N);
    TRY(build_schedule(b, (int32_t)bski_ceil_div(rows, s->cluster),
                       b->device->props.compute_units / s->cluster));
    return put_tables(b);
}

/* Whether packing has thread blocks for half of the device at least: fewer, started early, cost more
 * than that saves (docs/cuda.md). */
static bool pack_fills(int64_t cells, int32_t compute_units)
{
    enum { THREADS = 2048 }; /* of a multiprocessor */
    return 2 * cells * DSD_PACK_THREADS >= (int64_t)compute_units * THREADS;
}

bsk_status cuda_dsd_wgmma_prepare(void *device, bsk_prepared *prepared)
{
    simt_device *d = device;
    builder b = {.device = d, .host = d->host};
    TRY(state_new(d, sizeof *b.out, prepared));
    b.out = prepared->state;
    const bsk_status status = build(&b, prepared->problem);
    scratch_free(&b);
    if (status) {
        cuda_dsd_wgmma_release(device, prepared);
        return status;
    }
    b.out->pack_run.early = pack_fills(b.out->cells, d->props.compute_units);
    b.out->pack_run.grid[0] = (unsigned)b.out->cells;
    prepared->packed_bytes = prepared->workspace_bytes = (size_t)b.out->cells * DSD_CELL_BYTES;
    prepared->packed_alignment = prepared->workspace_alignment = PACKED_ALIGNMENT;
    return BSK_OK;
}

void cuda_dsd_wgmma_release(void *device, bsk_prepared *prepared)
{
    simt_device *d = device;
    state *s = prepared->state;
    if (!s)
        return;
    bsk_mem *all[] = {&s->stages, &s->tiles, &s->tile_start, &s->cell, &s->slot};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        table_drop(d, all[i]);
    state_free(d, prepared);
}

/* --- Running --- */

bsk_status cuda_dsd_wgmma_pack(const bsk_prepared *prepared, void *queue, bsk_mem s, bsk_mem packed)
{
    const state *st = prepared->state;
    dsd_pack_arg arg = st->pack;
    arg.s = bsk_mem_address(s);
    arg.weights = bsk_mem_address(packed);
    void *arguments[] = {&arg};
    bski_cuda_run run = st->pack_run;
    run.arguments = arguments;
    return bski_cuda_launch(queue, &run);
}

/* Whether an end is one that kernels have apart: C = alpha * sum; of f32 also with bias and
 * activation, but along the axis of the activations alone. */
static bool ends_bare(const state *st, const dsd_epilogue *e)
{
    const kernel_row *k = st->kernel[DSD_END_BARE];
    if (k->dtype == BSK_F32)
        return e->plain_f32 && e->along_n == k->along_n;
    return e->bare;
}

bsk_status cuda_dsd_wgmma_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_dsd_args *a = args;
    const state *st = prepared->state;
    bsk_mem packed = a->packed;
    if (st->idle)
        return BSK_OK;
    if (packed.kind == BSK_MEM_NULL) {
        packed = a->workspace;
        TRY(cuda_dsd_wgmma_pack(prepared, queue, a->s, packed));
    }
    CUtensorMap map, narrow = {0};
    TRY(bski_cuda_tensor_map(&st->encoder, &st->b, bsk_mem_address(a->b), &map));
    if (st->quarters)
        TRY(bski_cuda_tensor_map(&st->encoder, &st->narrow, bsk_mem_address(a->b), &narrow));
    dsd_wgmma_arg arg = st->arg;
    arg.b = bsk_mem_address(a->b);
    arg.parts = st->pack.parts;
    arg.weights = bsk_mem_address(packed);
    bski_cuda_epilogue_bind(a, &arg.epilogue);
    const kernel_row *kernel =
        st->kernel[ends_bare(st, &arg.epilogue) ? DSD_END_BARE : DSD_END_ANY];
    void *arguments[] = {&map, &narrow, &arg};
    const bski_cuda_run run = {.function = kernel->function,
                               .name = kernel->name,
                               .grid = {(unsigned)(st->units * st->cluster), 1, 1},
                               .threads = DSD_THREADS,
                               .cluster = (unsigned)st->cluster,
                               .shared_bytes = DSD_SHARED_BYTES,
                               .arguments = arguments,
                               .early = true};
    return bski_cuda_launch(queue, &run);
}
