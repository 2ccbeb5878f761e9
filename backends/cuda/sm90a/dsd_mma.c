/* dsd for blocks of 8, 16 and 32 by mma.sync: what to compute where, in which order.
 *
 * op(S) is cut into units of 8, 16 or 32 outputs, and each unit's weights into steps of 16 features
 * (units of 8, and f32 that is rounded to tf32: of 8). A *panel* is the units of a tile of outputs,
 * in the order of the warps that own them; its *stages* are the windows of 256, 128 or 64 features
 * (tf32: half as many) in which one of its units has weights, each in as many parts as the ring's
 * slots ask for. Where the depth is split, a part of it has panels of its own, which come after those
 * of the part before. All lists depend on the layout and the shapes alone. */
#include <string.h>

#include <backends/cuda/sm90a/dsd_mma_shape.h>
#include <common/checked.h>
#include <common/layout.h>

CUDA_PACKED_FUNCTIONS(sm90a_dsd_mma)

enum {
    SLOT_UNIT = 1024, /* of the 128-byte swizzle */
    MAX_SLOTS = 10,
    IMAGE_UNIT = 16,
    MIN_ROOM = 4096 /* of a slot, for weights */
};

typedef dsd_mma_shape shape;

/* --- Lists --- */

/* A stage, as the host sees it. */
typedef struct stage_plan {
    int64_t window;
    uint32_t bits; /* of the masks: its part of the window */
} stage_plan;

/* What prepare computes on the host. */
typedef struct lists {
    const bsk_host *host;
    shape s;
    bski_lines lines;
    int32_t *place;  /* [units] of a unit in the panels */
    int32_t *column; /* [panels * panel_units * columns] first output, or -1 */
    uint32_t *mask;  /* [panels * windows * panel_units] bit by step */
    int32_t *stage;  /* [panels * windows] the first; -1: none */
    uint8_t *cuts;   /* [panels * windows] log2 of the parts of a window */
    int32_t *stage_start, *stage_counts;
    dsd_mma_stage *stages;
    stage_plan *plan;
    uint32_t *parts, *codes;
    dsd_mma_step *steps;
    dsd_mma_tile *tiles;
    int32_t *tile_start;
    double *cost;           /* [panels] of a tile */
    int32_t *order, *owner; /* [panels]; [tiles] */
    load *loads;            /* [blocks] */
    int64_t stage_count, step_count, image_bytes, tile_count;
    int32_t blocks, slots;
    uint32_t slot_bytes;
} lists;

static void lists_free(lists *l)
{
    void *const all[] = {l->place,       l->column,       l->mask,   l->stage,      l->cuts,
                         l->stage_start, l->stage_counts, l->stages, l->plan,       l->parts,
                         l->codes,       l->steps,        l->tiles,  l->tile_start, l->cost,
                         l->order,       l->owner,        l->loads};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        host_drop(l->host, all[i]);
}

static const uint32_t *masks_of(const lists *l, int64_t panel, int64_t window)
{
    return l->mask + (panel * l->s.windows + window) * l->s.panel_units;
}

/* The bits of a part of a window that is cut in 1 << cuts. */
static uint32_t part_bits(const shape *s, int cuts, int part)
{
    const int bits = s->depth / s->step >> cuts;
    return UINT32_MAX >> (32 - bits) << (part * bits);
}

static int count_bits(uint32_t v)
{
    return __builtin_popcount(v);
}

/* Steps of a warp's first `units` units. */
static int steps_of(const uint32_t *masks, uint32_t bits, int32_t units)
{
    int steps = 0;
    for (int32_t u = 0; u < units; u++)
        steps += count_bits(masks[u] & bits);
    return steps;
}

/* What a warp finds in a stage; `first`: its first step. */
static void part_fill(const shape *s, const uint32_t *masks, uint32_t bits, uint32_t first,
                      uint32_t *part)
{
    const uint32_t a = masks[0] & bits, b = s->unit == 32 ? 0 : masks[1] & bits;
    if (has_masks(s)) {
        for (int32_t u = 0; u < DSD_MMA_SLICE_UNITS; u++)
            part[u] = masks[u] & bits;
        part[DSD_MMA_SLICE_UNITS] = first;
        return;
    }
    if (s->unit == 8) {
        uint32_t before = 0;
        part[0] = 0;
        part[1] = first;
        for (int32_t u = 0; u < DSD_MMA_SLICE_UNITS; u++) {
            const uint32_t mine = masks[u] & bits & ~before;
            part[0] |= (uint32_t)count_bits(mine) << u * DSD_MMA_COUNT_BITS;
            before |= mine;
        }
        return;
    }
    const uint32_t both = s->unit == 32 ? a : a & b;
    part[0] = (b & ~both) << DSD_MMA_KIND_BITS | (a & ~both);
    part[1] = first << DSD_MMA_KIND_BITS | both;
}

/* Where 8 features lie in a stage. */
static uint32_t place_in_stage(const shape *s, int32_t feature)
{
    const int32_t row = 128 / s->size, in_row = feature % row;
    if (s->cn && s->size == 2)
        return (uint32_t)(feature * 128);
    return (uint32_t)(feature / row * s->samples * 128 + in_row * (s->cn ? 128 : s->size));
}

/* A warp's codes of a stage. */
static void codes_fill(const shape *s, const uint32_t *masks, uint32_t bits, uint32_t *codes)
{
    uint32_t before = 0;
    for (int32_t u = 0; u < DSD_MMA_SLICE_UNITS; u++) {
        for (int32_t bit = 0; bit < s->depth / s->step; bit++) {
            if (!(masks[u] & bits & ~before & 1u << bit))
                continue;
            *codes = place_in_stage(s, bit * s->step);
            for (int32_t i = u + 1; i < DSD_MMA_SLICE_UNITS; i++)
                *codes |= (masks[i] >> bit & 1u) << i << DSD_MMA_OTHERS_AT;
            codes++;
        }
        before |= masks[u] & bits;
    }
}

/* Bytes of the codes of a stage. */
static int64_t code_bytes(const shape *s)
{
    return s->unit == 8 && !has_masks(s) ? DSD_MMA_CODE_BYTES(s->warp_cols) : 0;
}

/* The first of a warp's steps, of those of a stage. */
static uint32_t part_first(const shape *s, const uint32_t *part)
{
    return has_masks(s)   ? part[DSD_MMA_SLICE_UNITS]
           : s->unit == 8 ? part[1]
                          : part[1] >> DSD_MMA_KIND_BITS;
}

/* Slices are in the order of the first unit that has a block there, and in it of features; of a
 * slice that unit comes first. */
static int slice_rank(const uint32_t *masks, uint32_t bits, int32_t unit, int bit)
{
    const uint32_t here = 1u << bit;
    uint32_t before = 0;
    int32_t first = 0, rank = 0;
    for (; !(masks[first] & here); first++)
        before |= masks[first];
    before = (before | (masks[first] & (here - 1))) & bits;
    for (int32_t u = 0; u < DSD_MMA_SLICE_UNITS; u++)
        rank += count_bits(masks[u] & before) + (u < unit && masks[u] & here);
    return rank;
}

/* Which of the weights of a warp's steps those of a unit's bit are. */
static int step_rank(const shape *s, const uint32_t *masks, uint32_t bits, int32_t unit, int bit)
{
    const uint32_t below = (1u << bit) - 1;
    if (has_masks(s))
        return steps_of(masks, bits, unit) + count_bits(masks[unit] & bits & below);
    if (s->unit == 8)
        return slice_rank(masks, bits, unit, bit);
    if (s->unit == 16) {
        const uint32_t mine = masks[unit] & bits, other = masks[1 - unit] & bits;
        const uint32_t both = mine & other;
        if (both >> bit & 1)
            return count_bits(mine ^ other) + 2 * count_bits(both & below) + unit;
        return (unit ? count_bits(other & ~mine) : 0) + count_bits(mine & ~other & below);
    }
    return count_bits(masks[unit] & bits & below);
}

static int64_t step_bytes(const shape *s)
{
    return s->unit * s->step * s->size;
}

/* Bytes of the image of a part of a window. */
static int64_t part_bytes(const lists *l, const uint32_t *masks, uint32_t bits)
{
    const int steps = steps_of(masks, bits, l->s.panel_units);
    return steps ? steps * step_bytes(&l->s) + code_bytes(&l->s) : 0;
}

/* The fewest parts of a window that fit in `most` bytes each, as log2; at most one for each 32 bytes
 * of a sample's features. */
static int window_cuts(const lists *l, const uint32_t *masks, int64_t most)
{
    const int finest = __builtin_ctz((unsigned)(l->s.depth * l->s.size) / 32);
    for (int cuts = 0; cuts < finest; cuts++) {
        bool fits = true;
        for (int part = 0; part < 1 << cuts; part++)
            fits &= part_bytes(l, masks, part_bits(&l->s, cuts, part)) <= most;
        if (fits)
            return cuts;
    }
    return finest;
}

static int64_t slot_room(const shape *s, int slots)
{
    return ring_bytes(s) / slots / SLOT_UNIT * SLOT_UNIT - x_bytes(s);
}

/* Cuts all windows for a ring of so many slots; the number of stages. */
static int64_t cut_windows(lists *l, int slots, int64_t *largest)
{
    const int64_t room = slot_room(&l->s, slots);
    int64_t stages = 0;
    *largest = 0;
    for (int64_t i = 0; i < l->s.panels * l->s.windows; i++) {
        const uint32_t *masks = l->mask + i * l->s.panel_units;
        const int cuts = window_cuts(l, masks, room);
        l->cuts[i] = (uint8_t)cuts;
        for (int part = 0; part < 1 << cuts; part++) {
            const int64_t bytes = part_bytes(l, masks, part_bits(&l->s, cuts, part));
            stages += bytes > 0;
            *largest = bytes > *largest ? bytes : *largest;
        }
    }
    return stages;
}

/* The deepest ring that does not cost more stages than a few in a hundred. */
static void ring_choose(lists *l)
{
    int64_t largest;
    const int least = least_slots(&l->s, l->s.depth * l->s.size);
    const int64_t fewest = cut_windows(l, least, &largest);
    int slots = MAX_SLOTS;
    while (slots > least && (slot_room(&l->s, slots) < MIN_ROOM ||
                             cut_windows(l, slots, &largest) > fewest + fewest / 32))
        slots--;
    l->stage_count = cut_windows(l, slots, &largest);
    const int64_t bytes = x_bytes(&l->s) + largest;
    l->slot_bytes = (uint32_t)(bski_ceil_div(bytes, SLOT_UNIT) * SLOT_UNIT);
    l->slots = (int32_t)(ring_bytes(&l->s) / l->slot_bytes);
    l->slots = l->slots < DSD_MMA_MAX_STAGES ? l->slots : DSD_MMA_MAX_STAGES;
    if (is_few(&l->s)) /* each of the warps that take turns has its own */
        l->slots -= l->slots % DSD_MMA_TURNS;
}

/* One kept step of a unit: its source's corner and its place. */
typedef struct kept {
    int64_t unit, feature, source; /* source: element */
    int32_t valid;                 /* features that are in the matrix */
} kept;

typedef void (*kept_fn)(lists *l, const kept *k);

/* Calls `visit` for every step, unit by unit with ascending features. */
static void kept_each(lists *l, kept_fn visit)
{
    const shape *s = &l->s;
    const int64_t block = (int64_t)s->block_i * s->block_j;
    for (int64_t unit = 0; unit < s->units; unit++) {
        const int64_t line = unit * s->unit / s->block_i, row = unit * s->unit % s->block_i;
        for (int64_t e = l->lines.start[line]; e < l->lines.start[line + 1]; e++)
            for (int32_t j = 0; j < s->block_j; j += s->step) {
                kept k = {.unit = unit, .feature = (int64_t)l->lines.index[e] * s->block_j + j};
                const int64_t left = s->features - k.feature;
                if (left <= 0)
                    break;
                k.valid = (int32_t)(left < s->step ? left : s->step);
                k.source = l->lines.slot[e] * block + row * s->row_stride + j * s->feature_stride;
                visit(l, &k);
            }
    }
}

/* Where a step belongs. */
typedef struct spot {
    int64_t panel, window;
    int32_t unit; /* of the panel */
    int32_t bit;
} spot;

static spot spot_of(const lists *l, const kept *k)
{
    const shape *s = &l->s;
    const int32_t place = l->place[k->unit];
    const int64_t window = k->feature / s->depth;
    return (spot){window / s->windows * s->across + place / s->panel_units, window % s->windows,
                  place % s->panel_units, (int32_t)(k->feature % s->depth / s->step)};
}

static void kept_mark(lists *l, const kept *k)
{
    const spot at = spot_of(l, k);
    l->mask[(at.panel * l->s.windows + at.window) * l->s.panel_units + at.unit] |= 1u << at.bit;
}

/* Stages from one warp's parts of a panel to the next one's. */
static int64_t parts_stride(const lists *l, int64_t panel)
{
    return l->stage_start[panel + 1] - l->stage_start[panel];
}

/* A warp's part of a stage of a panel. */
static uint32_t *part_of(const lists *l, int64_t panel, int64_t warp, int64_t stage)
{
    const int64_t first = l->stage_start[panel];
    return l->parts + (first * l->s.warp_cols + warp * parts_stride(l, panel) + stage - first) *
                          l->s.part_words;
}

static void stage_fill(lists *l, int64_t panel, int64_t window, uint32_t bits, int64_t at)
{
    const shape *s = &l->s;
    const uint32_t *masks = masks_of(l, panel, window);
    int steps = 0;
    for (int32_t w = 0; w < s->warp_cols; w++) {
        const uint32_t *m = masks + w * s->warp_units;
        part_fill(s, m, bits, (uint32_t)steps, part_of(l, panel, w, at));
        if (code_bytes(s))
            codes_fill(s, m, bits, l->codes + (at * code_bytes(s) + w * DSD_MMA_WARP_CODES) / 4);
        steps += steps_of(m, bits, s->warp_units);
    }
    const int64_t bytes = steps * step_bytes(s) + code_bytes(s);
    l->plan[at] = (stage_plan){.window = window, .bits = bits};
    const int64_t before = panel / s->across * s->windows; /* of other parts of the depth */
    l->stages[at] = (dsd_mma_stage){(int32_t)((before + window) * s->depth),
                                    (uint32_t)(l->image_bytes / IMAGE_UNIT), (uint32_t)bytes, 0};
    l->image_bytes += bytes;
    l->step_count += steps;
}

static int64_t panel_stages(const lists *l, int64_t panel)
{
    int64_t count = 0;
    for (int64_t w = 0; w < l->s.windows; w++) {
        const int cuts = l->cuts[panel * l->s.windows + w];
        for (int part = 0; part < 1 << cuts; part++)
            count += part_bytes(l, masks_of(l, panel, w), part_bits(&l->s, cuts, part)) > 0;
    }
    return count;
}

/* Where the stages of each panel begin: one after the other; of few samples at equal distances, so
 * that blocks need not look for them. */
static bsk_status stages_place(lists *l)
{
    int64_t longest = 0, at = 0;
    for (int64_t panel = 0; panel < l->s.panels; panel++) {
        l->stage_counts[panel] = (int32_t)panel_stages(l, panel);
        longest = longest > l->stage_counts[panel] ? longest : l->stage_counts[panel];
    }
    if (is_few(&l->s))
        l->stage_count = longest * l->s.panels;
    if (l->stage_count > INT32_MAX)
        return l->host->fail(l->host->context, BSK_E_UNSUPPORTED, "dsd: too many stages");
    for (int64_t panel = 0; panel < l->s.panels; panel++) {
        l->stage_start[panel] = (int32_t)at;
        at += is_few(&l->s) ? longest : l->stage_counts[panel];
    }
    l->stage_start[l->s.panels] = (int32_t)at;
    return BSK_OK;
}

static void stages_fill(lists *l)
{
    for (int64_t panel = 0; panel < l->s.panels; panel++) {
        int64_t at = l->stage_start[panel];
        for (int64_t w = 0; w < l->s.windows; w++) {
            const int cuts = l->cuts[panel * l->s.windows + w];
            l->stage[panel * l->s.windows + w] = (int32_t)at;
            for (int part = 0; part < 1 << cuts; part++) {
                const uint32_t bits = part_bits(&l->s, cuts, part);
                if (part_bytes(l, masks_of(l, panel, w), bits))
                    stage_fill(l, panel, w, bits, at++);
            }
        }
    }
}

/* Words of the parts of all stages. */
static int64_t parts_count(const lists *l)
{
    return l->stage_count * l->s.warp_cols * l->s.part_words;
}

/* The stage that holds a step. */
static int64_t stage_of(const lists *l, const spot *at)
{
    int64_t stage = l->stage[at->panel * l->s.windows + at->window];
    while (!(l->plan[stage].bits >> at->bit & 1))
        stage++;
    return stage;
}

static void kept_pack(lists *l, const kept *k)
{
    const shape *s = &l->s;
    const spot at = spot_of(l, k);
    const int64_t stage = stage_of(l, &at);
    const int32_t warp = at.unit / s->warp_units, unit = at.unit % s->warp_units;
    const uint32_t *m = masks_of(l, at.panel, at.window) + warp * s->warp_units;
    const int64_t step = part_first(s, part_of(l, at.panel, warp, stage)) +
                         (int64_t)step_rank(s, m, l->plan[stage].bits, unit, at.bit);
    l->steps[l->step_count++] = (dsd_mma_step){
        l->stages[stage].weights + (uint32_t)((code_bytes(s) + step * step_bytes(s)) / IMAGE_UNIT),
        (uint32_t)(k->source / 8), (uint32_t)k->valid, 0};
}

/* Copies of the codes, which are part of the image, too. */
static int64_t code_pieces(const lists *l)
{
    return l->stage_count * code_bytes(&l->s) / DSD_MMA_CODE_PIECE;
}

static void codes_pack(lists *l)
{
    const int64_t pieces = code_bytes(&l->s) / DSD_MMA_CODE_PIECE;
    for (int64_t i = 0; i < pieces * l->stage_count; i++)
        l->steps[l->step_count++] =
            (dsd_mma_step){l->stages[i / pieces].weights +
                               (uint32_t)(i % pieces * DSD_MMA_CODE_PIECE / IMAGE_UNIT),
                           (uint32_t)i, 0, 0};
}

/* --- Tiles --- */

/* What a warp has to do in a tile of a panel, in cycles of shared memory, which take 128 bytes. */
static int64_t tile_work(const lists *l, int64_t panel, int64_t column)
{
    const shape *s = &l->s;
    const int64_t weights = step_bytes(s) / 128;
    int64_t work = 0;
    for (int64_t window = 0; window < s->windows; window++) {
        const uint32_t *masks = masks_of(l, panel, window) + column * s->warp_units;
        uint32_t any = 0;
        for (int32_t u = 0; u < s->warp_units; u++)
            any |= masks[u];
        /* 16 bytes of a sample's features are as many matrices as a warp has 8 samples. */
        work += (int64_t)count_bits(any) * s->step * s->size * DSD_MMA_WARP_SAMPLES(s->tile) / 128 +
                steps_of(masks, any, s->warp_units) * weights;
    }
    return work;
}

/* The same of all parts of the depth. */
static int64_t warp_work(const lists *l, int64_t warp)
{
    int64_t work = 0;
    for (int32_t part = 0; part < l->s.split.parts; part++)
        work += tile_work(l, part * l->s.across + warp / l->s.warp_cols, warp % l->s.warp_cols);
    return work;
}

/* What a tile of a panel costs, in bytes into shared memory. Its warps share the path of loads; one
 * that has much more to do than the others waits for itself. */
static double panel_cost(const lists *l, int64_t panel)
{
    enum { STORE = 160 << 10, SHARED_CYCLE = 45, LONE_CYCLE_8 = 750, LONE_CYCLE = 560 };
    const int64_t lone_cycle = l->s.unit == 8 ? LONE_CYCLE_8 : LONE_CYCLE;
    const int64_t stages = l->stage_counts[panel];
    int64_t work = 0, longest = 0;
    for (int32_t column = 0; column < l->s.warp_cols; column++) {
        const int64_t mine = tile_work(l, panel, column);
        work += mine;
        longest = mine > longest ? mine : longest;
    }
    const int64_t together = stages * x_bytes(&l->s) + SHARED_CYCLE * work;
    const int64_t alone = lone_cycle * longest;
    return (double)(STORE + (together > alone ? together : alone));
}

/* The panels by descending cost; ties as they are. */
static void panels_sort(const lists *l)
{
    double *cost = l->cost;
    int32_t *order = l->order;
    for (int32_t i = 0; i < l->s.panels; i++) {
        cost[i] = panel_cost(l, i);
        int32_t at = i;
        for (; at > 0 && cost[order[at - 1]] < cost[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

static dsd_mma_tile tile_of(const lists *l, int32_t panel, int64_t sample)
{
    return (dsd_mma_tile){l->stage_start[panel], l->stage_counts[panel], (int32_t)sample, panel};
}

/* As many rows together as run at a time, in them the heaviest tiles first; at the end twice as many,
 * or the heaviest of the last would start when all else is done. */
static tile_place place_of(const lists *l, int64_t i)
{
    enum { LAST = 2 };
    const int64_t panels = l->s.panels, rows = l->blocks > panels ? l->blocks / panels : 1;
    const int64_t last = LAST * rows < l->s.row_tiles ? LAST * rows : l->s.row_tiles;
    const int64_t early = l->s.row_tiles - last, left = i - early * panels;
    if (left < 0)
        return tile_place_of(i, early, panels, rows);
    const tile_place at = tile_place_of(left, last, panels, last);
    return (tile_place){early + at.row, at.rank};
}

/* Of few samples a tile's parts are a cluster. */
static void tiles_cluster(const lists *l)
{
    const int32_t parts = l->s.split.parts;
    for (int32_t b = 0; b < l->blocks; b++) {
        l->tiles[b] = tile_of(l, (int32_t)(b % parts * l->s.across + b / parts), 0);
        l->tile_start[b + 1] = b + 1;
    }
}

/* Each tile goes to the block with the least to do. */
static void tiles_assign(const lists *l)
{
    loads_open(l->loads, l->blocks);
    for (int64_t i = 0; i < l->tile_count; i++) {
        l->owner[i] = loads_give(l->loads, l->blocks, l->cost[l->order[place_of(l, i).rank]]);
        l->tile_start[l->owner[i] + 1]++;
    }
    for (int32_t b = 0; b < l->blocks; b++)
        l->tile_start[b + 1] += l->tile_start[b];
    int32_t *next = (int32_t *)l->loads;
    memcpy(next, l->tile_start, (size_t)l->blocks * sizeof *next);
    for (int64_t i = 0; i < l->tile_count; i++) {
        const tile_place at = place_of(l, i);
        l->tiles[next[l->owner[i]]++] = tile_of(l, l->order[at.rank], at.row * l->s.samples);
    }
}

static bsk_status tiles_make(lists *l, const bsk_host *host, int32_t compute_units)
{
    l->tile_count = l->s.panels * l->s.row_tiles;
    const bool few = is_few(&l->s);
    l->blocks = (int32_t)(few || l->tile_count < compute_units ? l->tile_count : compute_units);
    TRY(host_array(host, &l->tiles, l->tile_count, sizeof *l->tiles));
    TRY(host_array(host, &l->tile_start, (int64_t)l->blocks + 1, sizeof *l->tile_start));
    if (few) {
        tiles_cluster(l);
        return BSK_OK;
    }
    TRY(host_array(host, &l->cost, l->s.panels, sizeof *l->cost));
    TRY(host_array(host, &l->order, l->s.panels, sizeof *l->order));
    TRY(host_array(host, &l->owner, l->tile_count, sizeof *l->owner));
    TRY(host_array(host, &l->loads, l->blocks, sizeof *l->loads));
    panels_sort(l);
    tiles_assign(l);
    return BSK_OK;
}

static int64_t columns_count(const shape *s)
{
    return s->panels * s->panel_units * s->columns;
}

/* Fills the masks for the places of the units; the number of windows that are needed. */
static int64_t masks_fill(lists *l)
{
    const shape *s = &l->s;
    int64_t used = 0;
    memset(l->mask, 0, (size_t)(s->panels * s->windows * s->panel_units) * sizeof *l->mask);
    for (int64_t i = 0; i < columns_count(s); i++)
        l->column[i] = -1;
    for (int64_t i = 0; i < s->units * s->columns; i++)
        l->column[l->place[i / s->columns] * s->columns + i % s->columns] =
            (int32_t)(i * s->unit / s->columns);
    kept_each(l, kept_mark);
    for (int64_t i = 0; i < s->panels * s->windows; i++) {
        bool any = false;
        for (int32_t u = 0; u < s->panel_units; u++)
            any |= l->mask[i * s->panel_units + u] != 0;
        used += any;
    }
    return used;
}

/* The warps by descending work; how much more the busiest of the panels have than all on average. */
static double warps_sort(const lists *l, bski_pair *warps)
{
    const shape *s = &l->s;
    const int64_t count = s->across * s->warp_cols;
    double all = 0, waited = 0;
    for (int64_t i = 0, most = 0; i < count; i++) {
        const int64_t work = warp_work(l, i);
        most = i % s->warp_cols && most > work ? most : work;
        waited += (i + 1) % s->warp_cols ? 0 : (double)most * s->warp_cols;
        all += (double)work;
        warps[i] = (bski_pair){(uint64_t)(INT64_MAX - work), (uint32_t)i};
    }
    bski_sort_pairs(warps, warps + count, count, 64);
    return all > 0 ? waited / all : 1;
}

/* The natural order, in which neighbours often have similar lists; few samples always have it, whose
 * tiles are to be alike. Where some warps have more to do
 * than others, by their work, so that those of a tile have equal work; unless that needs many more
 * windows. Tiles then have unequal work instead, which many turns even out, but few do not. */
static bsk_status places_choose(lists *l, int32_t compute_units)
{
    enum { TURNS = 16 };
    static const double enough = 1.05, needed = 2;
    const shape *s = &l->s;
    const int64_t count = s->across * s->warp_cols;
    const bool many = s->panels * s->row_tiles >= TURNS * (int64_t)compute_units;
    bski_pair *warps;
    for (int64_t i = 0; i < s->units; i++)
        l->place[i] = (int32_t)i;
    const int64_t natural = masks_fill(l);
    TRY(host_array(l->host, &warps, 2 * count, sizeof *warps));
    if (!is_few(s) && warps_sort(l, warps) > (many ? enough : needed)) {
        for (int64_t i = 0; i < count * s->warp_units; i++) {
            const int64_t unit =
                warps[i / s->warp_units].value * (int64_t)s->warp_units + i % s->warp_units;
            if (unit < s->units)
                l->place[unit] = (int32_t)i;
        }
        if (masks_fill(l) > natural + natural / 8) {
            for (int64_t i = 0; i < s->units; i++)
                l->place[i] = (int32_t)i;
            masks_fill(l);
        }
    }
    host_drop(l->host, warps);
    return BSK_OK;
}

static bsk_status stages_make(lists *l, const bsk_host *host, int32_t compute_units)
{
    const int64_t windows = l->s.panels * l->s.windows;
    int64_t masks;
    if (!bski_mul_i64(windows, l->s.panel_units, &masks))
        return host->fail(host->context, BSK_E_UNSUPPORTED, "dsd: too many windows");
    TRY(host_array(host, &l->place, l->s.units, sizeof *l->place));
    TRY(host_array(host, &l->column, columns_count(&l->s), sizeof *l->column));
    TRY(host_array(host, &l->mask, masks, sizeof *l->mask));
    TRY(host_array(host, &l->stage, windows, sizeof *l->stage));
    TRY(host_array(host, &l->cuts, windows, sizeof *l->cuts));
    TRY(host_array(host, &l->stage_start, l->s.panels + 1, sizeof *l->stage_start));
    TRY(host_array(host, &l->stage_counts, l->s.panels, sizeof *l->stage_counts));
    TRY(places_choose(l, compute_units));
    ring_choose(l);
    TRY(stages_place(l));
    TRY(host_array(host, &l->stages, l->stage_count, sizeof *l->stages));
    TRY(host_array(host, &l->plan, l->stage_count, sizeof *l->plan));
    TRY(host_array(host, &l->parts, parts_count(l), sizeof *l->parts));
    TRY(host_array(host, &l->codes, code_pieces(l), DSD_MMA_CODE_PIECE));
    stages_fill(l);
    return BSK_OK;
}

static bsk_status steps_make(lists *l, const bsk_host *host)
{
    TRY(host_array(host, &l->steps, l->step_count + code_pieces(l), sizeof *l->steps));
    l->step_count = 0;
    kept_each(l, kept_pack);
    codes_pack(l);
    return BSK_OK;
}

/* --- Plans --- */

enum table { STAGES, PARTS, COLUMNS, TILES, TILE_START, STEPS, CODES, TABLE_COUNT };

typedef struct state {
    dsd_image image;
    bski_cuda_run sums; /* adds up parts of the depth */
    int32_t parts;
    bool tf32, cn;
    dsd_mma_arg arg;
    dsd_mma_pack_arg pack;
    dsd_mma_sums_arg add;
} state;

/* The kernels. */
typedef struct kernel_row {
    const void *function;
    const char *name;
    bsk_dtype dtype;
    int32_t unit, tile;
    bool cn, plain;
} kernel_row;

#define VARIANTS_END(X, type, dtype, unit, axis, cn, name, tile)                                   \
    X(type, dtype, unit, axis, cn, name, tile, plain, true)                                        \
    X(type, dtype, unit, axis, cn, name, tile, any, false)
#define VARIANTS_TILE(X, type, dtype, axis, cn, name, tile)                                        \
    VARIANTS_END(X, type, dtype, 8, axis, cn, name, tile)                                          \
    VARIANTS_END(X, type, dtype, 16, axis, cn, name, tile)                                         \
    VARIANTS_END(X, type, dtype, 32, axis, cn, name, tile)
#define VARIANTS_ANY(X, type, dtype, axis, cn, name, tile)                                         \
    X(type, dtype, 8, axis, cn, name, tile, any, false)                                            \
    X(type, dtype, 16, axis, cn, name, tile, any, false)                                           \
    X(type, dtype, 32, axis, cn, name, tile, any, false)
#define VARIANTS_FEW(X, type, dtype, axis, cn)                                                     \
    VARIANTS_ANY(X, type, dtype, axis, cn, few, DSD_MMA_FEW)                                       \
    VARIANTS_ANY(X, type, dtype, axis, cn, fewer, DSD_MMA_FEWER)
#define VARIANTS_AXIS(X, type, dtype, axis, cn)                                                    \
    VARIANTS_TILE(X, type, dtype, axis, cn, wide, DSD_MMA_WIDE)                                    \
    VARIANTS_TILE(X, type, dtype, axis, cn, square, DSD_MMA_SQUARE)
#define VARIANTS_TYPE(X, type, dtype)                                                              \
    VARIANTS_AXIS(X, type, dtype, nc, false)                                                       \
    VARIANTS_AXIS(X, type, dtype, cn, true)                                                        \
    VARIANTS_END(X, type, dtype, 16, nc, false, tall, DSD_MMA_TALL)                                \
    VARIANTS_FEW(X, type, dtype, nc, false)                                                        \
    VARIANTS_FEW(X, type, dtype, cn, true)
#define VARIANTS(X)                                                                                \
    VARIANTS_TYPE(X, bf16, BSK_BF16)                                                               \
    VARIANTS_TYPE(X, f16, BSK_F16)                                                                 \
    VARIANTS_TILE(X, tf32, BSK_F32, nc, false, wide, DSD_MMA_WIDE)                                 \
    VARIANTS_TILE(X, tf32, BSK_F32, cn, true, wide, DSD_MMA_WIDE)

#define KERNEL(type, unit, axis, name, end) dsd_sm90a_mma_##type##_##unit##_##axis##_##name##_##end
#define DECLARE(type, dtype, unit, axis, cn, name, tile, end, plain)                               \
    extern const char KERNEL(type, unit, axis, name, end)[];
VARIANTS(DECLARE)
#undef DECLARE
static const kernel_row *kernel_find(bsk_dtype dtype, const shape *s, bool plain)
{
#define ROW(type, dtype, unit, axis, cn, name, tile, end, plain)                                   \
    {KERNEL(type, unit, axis, name, end),                                                          \
     "dsd_sm90a_mma_" #type "_" #unit "_" #axis "_" #name "_" #end,                                \
     dtype,                                                                                        \
     unit,                                                                                         \
     tile,                                                                                         \
     cn,                                                                                           \
     plain},
    static const kernel_row rows[] = {VARIANTS(ROW)};
#undef ROW
    const kernel_row *found = rows;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].dtype == dtype && rows[i].unit == s->unit && rows[i].cn == s->cn &&
            rows[i].tile == s->tile && rows[i].plain == (plain && !is_few(s)))
            found = &rows[i];
    return found;
}

extern const char dsd_sm90a_mma_sums_8[], dsd_sm90a_mma_sums_16[], dsd_sm90a_mma_sums_32[];

static const void *sums_find(const shape *s)
{
    const int32_t order = s->unit / s->columns;
    return order == 8    ? dsd_sm90a_mma_sums_8
           : order == 16 ? dsd_sm90a_mma_sums_16
                         : dsd_sm90a_mma_sums_32;
}

extern const char dsd_sm90a_mma_pack_8[], dsd_sm90a_mma_pack_16[], dsd_sm90a_mma_pack_32[];
extern const char dsd_sm90a_mma_pack_tf32_8[], dsd_sm90a_mma_pack_tf32_16[],
    dsd_sm90a_mma_pack_tf32_32[];

static const void *pack_find(const shape *s)
{
    static const void *const kernels[][3] = {
        {dsd_sm90a_mma_pack_8, dsd_sm90a_mma_pack_16, dsd_sm90a_mma_pack_32},
        {dsd_sm90a_mma_pack_tf32_8, dsd_sm90a_mma_pack_tf32_16, dsd_sm90a_mma_pack_tf32_32},
    };
    return kernels[s->size == 4][s->unit / 16];
}

/* Of a block: the ring, where warps of few samples leave their sums at the end. */
static size_t shared_bytes(const lists *l)
{
    const shape *s = &l->s;
    const size_t ring = (size_t)l->slots * l->slot_bytes;
    const size_t sums = is_few(s) ? (size_t)(DSD_MMA_TURNS * s->warp_cols) *
                                        DSD_MMA_WARP_SAMPLES(s->tile) * DSD_MMA_WARP_OUTPUTS *
                                        sizeof(float)
                                  : 0;
    return (size_t)head_bytes(s) + (ring > sums ? ring : sums);
}

static bski_cuda_run product_run(const lists *l, bsk_dtype dtype, bool plain)
{
    const shape *s = &l->s;
    const kernel_row *row = kernel_find(dtype, s, plain);
    const int32_t warps = is_few(s) ? DSD_MMA_TURNS * s->warp_cols : DSD_MMA_WARPS(s->tile);
    return (bski_cuda_run){
        .function = row->function,
        .name = row->name,
        .grid = {(unsigned)l->blocks, 1, 1},
        .threads = (unsigned)(warps + DSD_MMA_PRODUCERS) * 32,
        .cluster = is_few(s) ? DSD_MMA_CLUSTER : 1,
        .early = true,
        .shared_bytes = shared_bytes(l),
    };
}

static void runs_fill(const lists *l, bsk_dtype dtype, state *st)
{
    st->image.plain = product_run(l, dtype, true);
    st->image.any = product_run(l, dtype, false);
    st->image.pack = (bski_cuda_run){
        .function = pack_find(&l->s),
        .name = "dsd_sm90a_mma_pack",
        .grid = {(unsigned)bski_ceil_div(l->step_count,
                                         DSD_MMA_PACK_WARPS * DSD_MMA_PACK_STEPS(l->s.unit)),
                 1, 1},
        .threads = DSD_MMA_PACK_WARPS * 32,
        .early = true,
    };
    st->sums = (bski_cuda_run){
        .function = sums_find(&l->s),
        .name = "dsd_sm90a_mma_sums",
        .grid = {DSD_MMA_WARPS(l->s.tile), (unsigned)l->s.across, (unsigned)l->s.row_tiles},
        .threads = DSD_MMA_SUMS_THREADS,
        .early = true,
    };
}

static void args_fill(const bsk_problem *problem, const lists *l, state *st)
{
    const bsk_mem *t = st->image.table;
    st->arg = (dsd_mma_arg){
        .stages = bsk_mem_address(t[STAGES]),
        .parts = bsk_mem_address(t[PARTS]),
        .columns = bsk_mem_address(t[COLUMNS]),
        .tiles = bsk_mem_address(t[TILES]),
        .tile_start = bsk_mem_address(t[TILE_START]),
        .slots = l->slots,
        .slot_bytes = l->slot_bytes,
        .depth = (uint32_t)l->s.depth,
        .panels = (int32_t)l->s.panels,
        .warp_cols = l->s.warp_cols,
        .stride = (int32_t)parts_stride(l, 0),
    };
    bski_cuda_epilogue_fill(problem, &st->arg.epilogue);
    st->parts = is_few(&l->s) ? 1 : l->s.split.parts;
    st->tf32 = l->s.size == 4;
    st->cn = l->s.cn;
    st->add = (dsd_mma_sums_arg){
        .columns = st->arg.columns,
        .across = (int32_t)l->s.across,
        .parts = l->s.split.parts,
        .warp_cols = l->s.warp_cols,
    };
    st->pack = (dsd_mma_pack_arg){
        .steps = bsk_mem_address(t[STEPS]),
        .codes = bsk_mem_address(t[CODES]),
        .count = l->step_count,
        .row_stride = l->s.row_stride,
        .feature_stride = l->s.feature_stride,
    };
}

static bsk_status plan_make(bski_cuda_device *d, bsk_prepared *prepared, lists *l)
{
    const bsk_host *host = d->simt.host;
    state *st = prepared->state;
    TRY(stages_make(l, host, d->simt.props.compute_units));
    TRY(steps_make(l, host));
    TRY(tiles_make(l, host, d->simt.props.compute_units));
    const dsd_image_table tables[TABLE_COUNT] = {
        [STAGES] = {l->stages, l->stage_count, sizeof *l->stages},
        [PARTS] = {l->parts, parts_count(l), sizeof *l->parts},
        [COLUMNS] = {l->column, columns_count(&l->s), sizeof *l->column},
        [TILES] = {l->tiles, l->tile_count, sizeof *l->tiles},
        [TILE_START] = {l->tile_start, (int64_t)l->blocks + 1, sizeof *l->tile_start},
        [STEPS] = {l->steps, l->step_count, sizeof *l->steps},
        [CODES] = {l->codes, code_pieces(l), DSD_MMA_CODE_PIECE},
    };
    runs_fill(l, prepared->problem->dtype, st);
    st->image.b = l->s.b;
    TRY(bski_cuda_kernel(d, st->sums.function, 0, st->sums.name));
    TRY(bski_dsd_image_prepare(d, prepared, tables, TABLE_COUNT, (size_t)l->image_bytes,
                               (size_t)l->s.split.sums * sizeof(float)));
    args_fill(prepared->problem, l, st);
    return BSK_OK;
}

bsk_status cuda_sm90a_dsd_mma_prepare(void *device, bsk_prepared *prepared)
{
    bski_cuda_device *d = device;
    const bsk_problem *problem = prepared->problem;
    const bsk_dsd_params *p = problem->params;
    const bsk_host *host = d->simt.host;
    lists l = {.host = host};
    if (bski_dsd_mma_shape(problem, d->simt.props.compute_units, &l.s))
        return host->fail(host->context, BSK_E_INTERNAL, "cuda: an unaccepted product");
    if (!l.s.n)
        return BSK_OK;
    TRY(state_new(&d->simt, sizeof(state), prepared));
    l.lines = bski_layout_lines(problem->layout, p->transpose_s != 0);
    const bsk_status status = plan_make(d, prepared, &l);
    lists_free(&l);
    if (status)
        cuda_sm90a_dsd_mma_release(device, prepared);
    return status;
}

void cuda_sm90a_dsd_mma_release(void *device, bsk_prepared *prepared)
{
    bski_dsd_image_release(device, prepared);
}

bsk_status cuda_sm90a_dsd_mma_pack(const bsk_prepared *prepared, void *queue, bsk_mem s,
                                   bsk_mem packed)
{
    const state *st = prepared->state;
    if (!st)
        return BSK_OK;
    dsd_mma_pack_arg arg = st->pack;
    arg.source = bsk_mem_address(s);
    arg.image = bsk_mem_address(packed);
    void *arguments[] = {&arg};
    bski_cuda_run run = st->image.pack;
    run.arguments = arguments;
    return bski_cuda_launch(queue, &run);
}

static bsk_status sums_launch(const state *st, void *queue, const dsd_mma_arg *product)
{
    dsd_mma_sums_arg arg = st->add;
    arg.sums = product->sums;
    arg.epilogue = product->epilogue;
    void *arguments[] = {&arg};
    bski_cuda_run run = st->sums;
    run.arguments = arguments;
    return bski_cuda_launch(queue, &run);
}

/* Whether the kernel for plain ends has this one: of f32 those along the activations' axis. */
static bool ends_plainly(const state *st, const dsd_epilogue *e)
{
    return st->tf32 ? e->plain_f32 && e->act == BSK_ACT_NONE && (e->along_n != 0) == st->cn
                    : bski_cuda_epilogue_linear(e);
}

bsk_status cuda_sm90a_dsd_mma_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_dsd_args *a = args;
    const state *st = prepared->state;
    if (!st)
        return BSK_OK;
    dsd_mma_arg arg = st->arg;
    TRY(bski_dsd_image_find(prepared, queue, a, cuda_sm90a_dsd_mma_pack, &arg.image));
    bski_cuda_epilogue_bind(a, &arg.epilogue);
    if (st->parts > 1) {
        arg.sums = bsk_mem_address(a->workspace);
        TRY(bski_dsd_image_run(&st->image, queue, a->b, true, &arg));
        return sums_launch(st, queue, &arg);
    }
    return bski_dsd_image_run(&st->image, queue, a->b, ends_plainly(st, &arg.epilogue), &arg);
}
