/* dsd by wgmma on pairs of units of 32 features: which units share a product, which pairs a tile,
 * and which thread block computes which tiles. All lists depend on the layout and the shapes
 * alone. */
#include <backends/cuda/sm90a/dsd_image.h>
#include <backends/cuda/sm90a/dsd_pair.h>
#include <backends/cuda/sm90a/dsd_pairing.h>
#include <common/checked.h>

CUDA_PACKED_FUNCTIONS(sm90a_dsd_pair)

enum { WORD = 64, OWNED_BITS = 2 * DSD_PAIR_OWNED, RING_BYTES = (227 << 10) - DSD_PAIR_FIXED };

#define NONE UINT32_MAX

/* --- Shape --- */

typedef struct shape {
    int32_t block_i, block_j;           /* of op(S) */
    int64_t row_stride, feature_stride; /* of an element in a block */
    int64_t outputs, features, n;
    int64_t units, pairs, slices, row_tiles;
    bool cn; /* samples are contiguous */
    bski_cuda_tensor b;
} shape;

/* The activations as the copy engine reads them. */
static bski_cuda_tensor tensor_of(const bsk_tensor *b, bool cn)
{
    bski_cuda_tensor t = {.dtype = b->dtype, .rank = 2, .swizzle = cn ? 128 : 64};
    t.dims[0] = b->dims[cn ? 1 : 0];
    t.dims[1] = b->dims[cn ? 0 : 1];
    t.strides[0] = 1;
    t.strides[1] = b->strides[cn ? 0 : 1];
    t.box[0] = cn ? 64 : DSD_PAIR_UNIT;
    t.box[1] = cn ? DSD_PAIR_UNIT : DSD_PAIR_SAMPLES;
    return t;
}

static bsk_reason shape_set(const bsk_problem *problem, shape *s)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bool flip = p->transpose_s != 0;
    *s = (shape){0};
    if (p->b.rank != 2 || t->heads != 1)
        return BSK_REFUSE_RANK;
    s->block_i = flip ? t->block_cols : t->block_rows;
    s->block_j = flip ? t->block_rows : t->block_cols;
    if (s->block_i % DSD_PAIR_UNIT || s->block_j % DSD_PAIR_UNIT)
        return BSK_REFUSE_BLOCK;
    s->row_stride = flip ? 1 : t->block_cols;
    s->feature_stride = flip ? t->block_cols : 1;
    s->outputs = flip ? t->cols : t->rows;
    s->features = flip ? t->rows : t->cols;
    s->n = p->b.dims[1];
    s->units = bski_ceil_div(s->outputs, DSD_PAIR_UNIT);
    s->pairs = bski_ceil_div(s->units, 2);
    s->slices = bski_ceil_div(s->features, DSD_PAIR_UNIT);
    s->row_tiles = bski_ceil_div(s->n, DSD_PAIR_SAMPLES);
    if (s->outputs > INT32_MAX / 2 || s->n > INT32_MAX / 2 || s->slices > INT32_MAX / 2 ||
        s->units * s->slices > INT32_MAX / 2 || !bski_dsd_image_counts(t, sizeof(uint16_t)))
        return BSK_REFUSE_LIMIT;
    if (!s->n)
        return BSK_ACCEPT;
    for (int cn = 0; cn < 2; cn++) {
        s->cn = cn;
        s->b = tensor_of(&p->b, s->cn);
        if (p->b.strides[cn] == 1 && bski_cuda_tensor_fits(&s->b))
            return BSK_ACCEPT;
    }
    return BSK_REFUSE_STRIDE;
}

bsk_reason cuda_sm90a_dsd_pair_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_dsd_params *p = problem->params;
    shape s;
    (void)props;
    if (p->gate.dtype != BSK_NONE)
        return BSK_REFUSE_OPTION;
    const bsk_reason reason = shape_set(problem, &s);
    return reason ? reason : bski_cuda_epilogue_accept(problem);
}

/* --- The model --- */

/* Seconds of a slice that comes into a thread block, of a pair's products with one, of a tile's begin
 * and end, and of a launch. Fitted to times of an H200. */
static const double slice_seconds = 100e-9, cell_seconds = 55e-9;
static const double tile_seconds = 2e-6, launch_seconds = 2.5e-6;
static const double packing_rate = 2e12; /* bytes/s of an image */

static double share_seconds(double slices, double cells)
{
    return slices * slice_seconds + cells * cell_seconds + tile_seconds;
}

/* How many slices two lines of blocks need together, in blocks. */
static int64_t count_union(const bski_lines *l, int64_t x, int64_t y)
{
    int64_t i = l->start[x], j = l->start[y], count = 0;
    const int64_t i_end = l->start[x + 1], j_end = l->start[y + 1];
    for (; i < i_end && j < j_end; count++) {
        const int32_t a = l->index[i], b = l->index[j];
        i += a <= b;
        j += b <= a;
    }
    return count + (i_end - i) + (j_end - j);
}

double cuda_sm90a_dsd_pair_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    shape s;
    if (shape_set(problem, &s) || !s.n)
        return launch_seconds;
    const bsk_dsd_params *p = problem->params;
    const bski_lines l = bski_layout_lines(problem->layout, p->transpose_s != 0);
    const int64_t blocks = s.block_i / DSD_PAIR_UNIT, lines = bski_ceil_div(s.units, blocks);
    int64_t cells = 0;
    for (int64_t i = 0; i<lines; i += blocks> 1 ? 1 : 2) {
        const int64_t other = blocks > 1 || i + 1 == lines ? i : i + 1;
        cells += count_union(&l, i, other) * (s.block_j / DSD_PAIR_UNIT) * bski_ceil_div(blocks, 2);
    }
    const double pair_cells = (double)cells / (double)s.pairs;
    const int64_t groups = bski_ceil_div(s.pairs, DSD_PAIR_PAIRS);
    const double pairs = (double)s.pairs / (double)groups, slices = (double)s.slices;
    double gap = 1; /* the share of slices that no pair of a group needs */
    for (int i = 0; i < (int)(pairs + 0.5); i++)
        gap *= 1 - pair_cells / slices;
    const double tile = share_seconds((1 - gap) * slices, pair_cells * pairs);
    const double workers = props->compute_units > 0 ? props->compute_units : 1;
    const double turns = (double)(groups * s.row_tiles) / workers;
    const double whole = (double)(int64_t)(turns + 0.999);
    const double image = 2.0 * (double)problem->layout->nnz * s.block_i * s.block_j;
    return launch_seconds + tile * (turns > 4 ? (turns + whole) / 2 : whole) +
           bski_dsd_image_seconds(problem, image, packing_rate);
}

/* --- Lists --- */

/* What prepare computes on the host. */
typedef struct lists {
    const bsk_host *host;
    shape s;
    bski_lines lines;
    int64_t words;
    uint64_t *kept;         /* [2 * pairs][words] slices of a unit, by unit */
    uint64_t *any, *more;   /* [groups][words] slices of a group, of two of its units or more */
    uint64_t *members_kept; /* [DSD_PAIR_BITS][words] slices of a group's units */
    uint32_t *source;       /* [units][slices] as in dsd_pair_piece; NONE: not kept */
    int32_t *order;         /* [2 * pairs] units, pair by pair */
    int32_t *sorted;        /* [2 * pairs] */
    int32_t *neighbours;    /* [2 * pairs] the order before units are exchanged */
    bski_pair *by_count;
    dsd_pair_slice *slices;
    dsd_pair_step *steps;
    dsd_pair_piece *pieces;
    dsd_pair_group *members; /* [groups] */
    int32_t *first;          /* [groups + 1] slice */
    double *cost;            /* [groups] of a tile */
    int32_t *rank, *owner;   /* [groups] by descending cost; [tiles] thread block */
    load *loads;
    dsd_pair_tile *tiles;
    int32_t *tile_start;
    int64_t step_count;
    int64_t groups, slice_count, piece_count, tile_count;
    int32_t blocks, slots, room; /* room: pieces of a slot */
    int32_t further;             /* slots from one step to the next at most */
    bool gaps;
} lists;

static void lists_free(lists *l)
{
    void *const all[] = {l->any,    l->more,   l->members_kept, l->neighbours, l->steps,
                         l->kept,   l->sorted, l->by_count,     l->source,     l->order,
                         l->slices, l->pieces, l->members,      l->first,      l->cost,
                         l->rank,   l->owner,  l->loads,        l->tiles,      l->tile_start};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        host_drop(l->host, all[i]);
}

/* Where the weights of units come from, slice by slice. */
static bsk_status kept_fill(lists *l)
{
    const shape *s = &l->s;
    const int64_t block = (int64_t)s->block_i * s->block_j, places = s->units * s->slices;
    l->words = bski_ceil_div(s->slices, WORD);
    TRY(host_array(l->host, &l->kept, 2 * s->pairs * l->words, sizeof *l->kept));
    TRY(host_array(l->host, &l->source, places, sizeof *l->source));
    memset(l->source, 0xff, (size_t)places * sizeof *l->source);
    for (int64_t unit = 0; unit < s->units; unit++) {
        const int64_t line = unit * DSD_PAIR_UNIT / s->block_i;
        const int64_t row = unit * DSD_PAIR_UNIT % s->block_i;
        for (int64_t e = l->lines.start[line]; e < l->lines.start[line + 1]; e++)
            for (int32_t j = 0; j < s->block_j; j += DSD_PAIR_UNIT) {
                const int64_t slice = ((int64_t)l->lines.index[e] * s->block_j + j) / DSD_PAIR_UNIT;
                const int64_t from =
                    l->lines.slot[e] * block + row * s->row_stride + j * s->feature_stride;
                if (slice >= s->slices)
                    break;
                l->source[unit * s->slices + slice] = (uint32_t)(from / 8);
                l->kept[unit * l->words + slice / WORD] |= UINT64_C(1) << slice % WORD;
            }
    }
    return BSK_OK;
}

/* Slices that a pair needs. */
static int64_t pair_slices(const lists *l, int64_t pair)
{
    const uint64_t *x = l->kept + l->order[2 * pair] * l->words;
    const uint64_t *y = l->kept + l->order[2 * pair + 1] * l->words;
    int64_t count = 0;
    for (int64_t i = 0; i < l->words; i++)
        count += __builtin_popcountll(x[i] | y[i]);
    return count;
}

/* Where some pairs need so many more slices than others that groups would wait for them: pairs by
 * descending number, so that those of a group have equal work. Else as they are, as neighbours often
 * need the same slices. */
static bsk_status pairs_sort(lists *l)
{
    enum { GROUP = DSD_PAIR_PAIRS, MOST = 2 };
    const int64_t pairs = l->s.pairs;
    int64_t all = 0, waited = 0, most = 0;
    TRY(host_array(l->host, &l->by_count, 2 * pairs, sizeof *l->by_count));
    TRY(host_array(l->host, &l->sorted, 2 * pairs, sizeof *l->sorted));
    for (int64_t i = 0; i < pairs; i++) {
        const int64_t count = pair_slices(l, i);
        l->by_count[i] = (bski_pair){(uint64_t)(l->s.slices - count), (uint32_t)i};
        most = i % GROUP && most > count ? most : count;
        waited += i % GROUP == GROUP - 1 || i == pairs - 1 ? most * (i % GROUP + 1) : 0;
        all += count;
    }
    if (waited <= MOST * all)
        return BSK_OK;
    bski_sort_pairs(l->by_count, l->by_count + pairs, pairs, 32);
    memcpy(l->sorted, l->order, (size_t)(2 * pairs) * sizeof *l->sorted);
    for (int64_t i = 0; i < pairs; i++)
        memcpy(l->order + 2 * i, l->sorted + 2 * l->by_count[i].value, 2 * sizeof *l->order);
    return BSK_OK;
}

/* The first pair of a group; of the one after the last, the end. */
static int64_t group_first(const lists *l, int64_t group)
{
    return l->s.pairs * group / l->groups;
}

/* Which slices a group needs, and which of them two of its units or more need. */
static void group_needs(lists *l, int64_t group)
{
    uint64_t *any = l->any + group * l->words, *more = l->more + group * l->words;
    memset(any, 0, (size_t)l->words * sizeof *any);
    memset(more, 0, (size_t)l->words * sizeof *more);
    for (int64_t i = 2 * group_first(l, group); i < 2 * group_first(l, group + 1); i++)
        for (int64_t w = 0; w < l->words; w++) {
            const uint64_t word = l->kept[l->order[i] * l->words + w];
            more[w] |= any[w] & word;
            any[w] |= word;
        }
}

/* The slices that a group needs if unit `out` leaves it and unit `in` comes. */
static int64_t group_slices(const lists *l, int64_t group, int64_t out, int64_t in)
{
    const uint64_t *any = l->any + group * l->words, *more = l->more + group * l->words;
    const uint64_t *x = l->kept + out * l->words, *y = l->kept + in * l->words;
    int64_t count = 0;
    for (int64_t w = 0; w < l->words; w++)
        count += __builtin_popcountll((any[w] & ~x[w]) | more[w] | y[w]);
    return count;
}

/* The slices that some groups need, each for itself. */
static int64_t needs_count(const lists *l, int64_t first, int64_t groups)
{
    int64_t count = 0;
    for (int64_t i = first * l->words; i < (first + groups) * l->words; i++)
        count += __builtin_popcountll(l->any[i]);
    return count;
}

/* Exchanges units of two groups where that costs no slices: some such exchanges make others
 * possible that save. */
static void groups_improve(lists *l, int64_t g, int64_t h)
{
    const int64_t i_end = 2 * group_first(l, g + 1), j_end = 2 * group_first(l, h + 1);
    int64_t now = needs_count(l, g, 1) + needs_count(l, h, 1);
    for (int64_t i = 2 * group_first(l, g); i < i_end; i++)
        for (int64_t j = 2 * group_first(l, h); j < j_end; j++) {
            const int32_t x = l->order[i], y = l->order[j];
            const int64_t then = group_slices(l, g, x, y) + group_slices(l, h, y, x);
            if (then > now)
                continue;
            now = then;
            l->order[i] = y;
            l->order[j] = x;
            group_needs(l, g);
            group_needs(l, h);
        }
}

/* Pairs of a group's units. */
static void group_pair(lists *l, int64_t group)
{
    const int64_t first = 2 * group_first(l, group), units = 2 * group_first(l, group + 1) - first;
    int32_t *unit = l->order + first, before[DSD_PAIR_BITS], pairs[DSD_PAIR_BITS];
    memcpy(before, unit, (size_t)units * sizeof *unit);
    for (int64_t i = 0; i < units; i++)
        memcpy(l->members_kept + i * l->words, l->kept + unit[i] * l->words,
               (size_t)l->words * sizeof *l->kept);
    bski_dsd_pairing(l->members_kept, (int32_t)l->words, (int32_t)units / 2, pairs);
    for (int64_t i = 0; i < units; i++)
        unit[i] = before[pairs[i]];
}

/* Which units make a group: those that need the same slices, as each is loaded once for all; or
 * neighbours, whose stores are neighbours too, unless that saves enough. */
static bsk_status groups_search(lists *l)
{
    enum { ROUNDS = 16, WINDOW = 32, ENOUGH = 32, LITTLE = 2048 };
    const int64_t units = 2 * l->s.pairs, words = l->groups * l->words;
    TRY(host_array(l->host, &l->any, words, sizeof *l->any));
    TRY(host_array(l->host, &l->more, words, sizeof *l->more));
    TRY(host_array(l->host, &l->members_kept, DSD_PAIR_BITS * l->words, sizeof *l->kept));
    TRY(host_array(l->host, &l->neighbours, units, sizeof *l->neighbours));
    memcpy(l->neighbours, l->order, (size_t)units * sizeof *l->order);
    for (int64_t g = 0; g < l->groups; g++)
        group_needs(l, g);
    const int64_t before = needs_count(l, 0, l->groups);
    int64_t now = before, last = INT64_MAX;
    for (int round = 0; round < ROUNDS && last - now > before / LITTLE; round++) {
        for (int64_t g = 0; g < l->groups; g++)
            for (int64_t h = g + 1; h < l->groups && h < g + WINDOW; h++)
                groups_improve(l, g, h);
        last = now;
        now = needs_count(l, 0, l->groups);
    }
    if (before - now < before / ENOUGH)
        memcpy(l->order, l->neighbours, (size_t)units * sizeof *l->order);
    else
        for (int64_t g = 0; g < l->groups; g++)
            group_pair(l, g);
    return BSK_OK;
}

/* The unit of a bit of a group's slices; -1: none. */
static int64_t unit_of(const lists *l, int64_t group, int32_t bit)
{
    const int64_t pair = group_first(l, group) + bit / 2;
    const int32_t unit = pair < group_first(l, group + 1) ? l->order[2 * pair + bit % 2] : -1;
    return unit < l->s.units ? unit : -1;
}

static uint32_t source_of(const lists *l, int64_t group, int32_t bit, int64_t slice)
{
    const int64_t unit = unit_of(l, group, bit);
    return unit < 0 ? NONE : l->source[unit * l->s.slices + slice];
}

/* Which units of a group have a piece in a slice. */
static uint32_t bits_of(const lists *l, int64_t group, int64_t slice)
{
    uint32_t bits = 0;
    for (int32_t bit = 0; bit < DSD_PAIR_BITS; bit++)
        bits |= (uint32_t)(source_of(l, group, bit, slice) != NONE) << bit;
    return bits;
}

static int count_bits(uint32_t v)
{
    return __builtin_popcount(v);
}

/* How many pieces the slices of all groups have. */
static void pieces_count(const lists *l, int64_t (*counts)[DSD_PAIR_BITS + 1])
{
    for (int64_t group = 0; group < l->groups; group++)
        for (int64_t slice = 0; slice < l->s.slices; slice++)
            (*counts)[count_bits(bits_of(l, group, slice))]++;
}

/* The deepest ring that does not cost more than a few slices in a hundred twice. */
static void ring_choose(lists *l)
{
    enum { FEW = 32 };
    int64_t counts[DSD_PAIR_BITS + 1] = {0}, all = 0, cut = 0;
    pieces_count(l, &counts);
    for (int32_t i = 1; i <= DSD_PAIR_BITS; i++)
        all += counts[i];
    l->room = DSD_PAIR_BITS;
    while (l->room > 1 && cut + counts[l->room] <= all / FEW)
        cut += counts[l->room--];
    l->slots = RING_BYTES / (DSD_PAIR_SLICE_BYTES + l->room * DSD_PAIR_PIECE_BYTES);
    l->slots = l->slots < DSD_PAIR_MAX_SLOTS ? l->slots : DSD_PAIR_MAX_SLOTS;
    l->further = l->slots - DSD_PAIR_PRODUCERS;
}

/* The lowest bits of a slice, as many as a slot has room for. */
static uint32_t bits_cut(const lists *l, uint32_t bits)
{
    while (count_bits(bits) > l->room)
        bits &= ~(UINT32_C(1) << (31 - __builtin_clz(bits)));
    return bits;
}

/* Counts the group's slices and pieces; its cost. */
static void group_measure(lists *l, int64_t group)
{
    int64_t slices = 0, cells = 0;
    for (int64_t slice = 0; slice < l->s.slices; slice++) {
        const uint32_t bits = bits_of(l, group, slice);
        slices += bski_ceil_div(count_bits(bits), l->room);
        l->piece_count += count_bits(bits);
        for (int32_t bit = 0; bit < DSD_PAIR_BITS; bit += 2)
            cells += (bits >> bit & 3) != 0;
    }
    l->cost[group] = share_seconds((double)slices, (double)cells);
    l->slice_count += slices;
}

/* Lists a part of a slice, and its pieces. */
static void slice_fill(lists *l, int64_t group, int64_t slice, uint32_t bits)
{
    const int64_t left = l->s.features - slice * DSD_PAIR_UNIT;
    l->slices[l->slice_count++] =
        (dsd_pair_slice){(uint32_t)slice, (uint32_t)l->piece_count, bits, 0};
    for (int32_t bit = 0; bit < DSD_PAIR_BITS; bit++) {
        l->gaps |= (bits >> bit & 1) != (bits >> (bit ^ 1) & 1);
        if (bits >> bit & 1)
            l->pieces[l->piece_count++] =
                (dsd_pair_piece){source_of(l, group, bit, slice),
                                 (int32_t)(left < DSD_PAIR_UNIT ? left : DSD_PAIR_UNIT)};
    }
}

/* Lists the steps of a warpgroup: where its pairs have pieces, where it would be too far from the
 * last one, and the last slice, so that each tile begins anew. */
static void steps_fill(lists *l, int64_t group, int32_t owner)
{
    const int64_t start = l->step_count;
    int32_t further = 0;
    for (int32_t i = l->first[group]; i < l->first[group + 1]; i++) {
        dsd_pair_slice *slice = &l->slices[i];
        const uint32_t below = (UINT32_C(1) << OWNED_BITS * owner) - 1;
        const uint32_t has = slice->bits >> OWNED_BITS * owner & ((1u << OWNED_BITS) - 1);
        further++;
        if (has || further == l->further || i + 1 == l->first[group + 1]) {
            l->steps[l->step_count++] =
                (dsd_pair_step)(has |
                                (uint32_t)count_bits(slice->bits & below) << DSD_PAIR_BEFORE_AT |
                                (uint32_t)further << DSD_PAIR_FURTHER_AT);
            further = 0;
        } else {
            slice->bits += UINT32_C(1) << DSD_PAIR_BITS;
        }
    }
    l->members[group].step[owner] = (int32_t)start;
    l->members[group].steps[owner] = (int32_t)(l->step_count - start);
}

static void group_fill(lists *l, int64_t group)
{
    for (int32_t bit = 0; bit < DSD_PAIR_BITS; bit++) {
        const int64_t unit = unit_of(l, group, bit);
        l->members[group].feature[bit] = unit < 0 ? -1 : (int32_t)(unit * DSD_PAIR_UNIT);
    }
    for (int64_t slice = 0; slice < l->s.slices; slice++)
        for (uint32_t bits = bits_of(l, group, slice), now; bits; bits &= ~now) {
            now = bits_cut(l, bits);
            slice_fill(l, group, slice, now);
        }
    l->first[group + 1] = (int32_t)l->slice_count;
    for (int32_t owner = 0; owner < DSD_PAIR_OWNERS; owner++)
        steps_fill(l, group, owner);
}

static bsk_status groups_fill(lists *l)
{
    TRY(host_array(l->host, &l->cost, l->groups, sizeof *l->cost));
    TRY(host_array(l->host, &l->first, l->groups + 1, sizeof *l->first));
    TRY(host_array(l->host, &l->members, l->groups, sizeof *l->members));
    ring_choose(l);
    for (int64_t group = 0; group < l->groups; group++)
        group_measure(l, group);
    TRY(host_array(l->host, &l->slices, l->slice_count, sizeof *l->slices));
    TRY(host_array(l->host, &l->steps, l->slice_count * DSD_PAIR_OWNERS, sizeof *l->steps));
    TRY(host_array(l->host, &l->pieces, l->piece_count, sizeof *l->pieces));
    l->slice_count = l->piece_count = 0;
    for (int64_t group = 0; group < l->groups; group++)
        group_fill(l, group);
    return BSK_OK;
}

/* --- Tiles --- */

/* Half as many rows together as run at a time, in them groups by descending cost. The last ones by
 * size, so that all blocks end together: first the groups that have a pair more. */
static tile_place place_of(const lists *l, int64_t groups, int64_t i)
{
    enum { LAST = 4 }; /* tiles of a block */
    const int64_t half = l->blocks / (2 * groups);
    const int64_t rows = l->s.row_tiles, late = bski_ceil_div(LAST * l->blocks, groups);
    const int64_t early = late < rows ? rows - late : 0, left = rows - early;
    const int64_t large = l->s.pairs % groups;
    if (i < early * groups)
        return tile_place_of(i, early, groups, half > 1 ? half : 1);
    i -= early * groups;
    if (i < left * large)
        return (tile_place){early + i / large, i % large};
    i -= left * large;
    return (tile_place){early + i / (groups - large), large + i % (groups - large)};
}

/* The time of all tiles if each group has its share of the pairs. */
static double groups_seconds(const lists *l, int64_t groups, double density)
{
    const double slices = (double)l->s.slices;
    double longest = 0, cost[2];
    for (int more = 0; more < 2; more++) {
        const int64_t pairs = l->s.pairs / groups + more;
        double gap = 1;
        for (int64_t i = 0; i < pairs; i++)
            gap *= 1 - density;
        cost[more] = share_seconds((1 - gap) * slices, (double)pairs * density * slices);
    }
    loads_open(l->loads, l->blocks);
    for (int64_t i = 0; i < groups * l->s.row_tiles; i++)
        loads_give(l->loads, l->blocks, cost[place_of(l, groups, i).rank < l->s.pairs % groups]);
    for (int32_t i = 0; i < l->blocks; i++)
        longest = l->loads[i].work > longest ? l->loads[i].work : longest;
    return longest;
}

/* The fewest groups that hold all pairs, or some more if that spreads the work better. */
static void groups_choose(lists *l)
{
    const shape *s = &l->s;
    const int64_t fewest = bski_ceil_div(s->pairs, DSD_PAIR_PAIRS);
    int64_t cells = 0;
    for (int64_t pair = 0; pair < s->pairs; pair++)
        cells += pair_slices(l, pair);
    const double density = (double)cells / (double)(s->pairs * s->slices);
    double best = 0;
    for (int64_t groups = fewest; groups <= s->pairs && groups <= fewest + fewest / 4 + 1;
         groups++) {
        const double seconds = groups_seconds(l, groups, density);
        if (groups == fewest || seconds < best) {
            best = seconds;
            l->groups = groups;
        }
    }
}

/* Each tile goes to the thread block with the least to do. */
static bsk_status tiles_make(lists *l)
{
    l->tile_count = l->groups * l->s.row_tiles;
    l->blocks = l->tile_count < l->blocks ? (int32_t)l->tile_count : l->blocks;
    TRY(host_array(l->host, &l->rank, l->groups, sizeof *l->rank));
    TRY(host_array(l->host, &l->owner, l->tile_count, sizeof *l->owner));
    TRY(host_array(l->host, &l->tiles, l->tile_count, sizeof *l->tiles));
    TRY(host_array(l->host, &l->tile_start, (int64_t)l->blocks + 1, sizeof *l->tile_start));
    for (int32_t i = 0; i < l->groups; i++) {
        int32_t at = i;
        for (; at > 0 && l->cost[l->rank[at - 1]] < l->cost[i]; at--)
            l->rank[at] = l->rank[at - 1];
        l->rank[at] = i;
    }
    loads_open(l->loads, l->blocks);
    for (int64_t i = 0; i < l->tile_count; i++) {
        l->owner[i] =
            loads_give(l->loads, l->blocks, l->cost[l->rank[place_of(l, l->groups, i).rank]]);
        l->tile_start[l->owner[i] + 1]++;
    }
    for (int32_t b = 0; b < l->blocks; b++)
        l->tile_start[b + 1] += l->tile_start[b];
    int32_t *next = (int32_t *)l->loads;
    memcpy(next, l->tile_start, (size_t)l->blocks * sizeof *next);
    for (int64_t i = 0; i < l->tile_count; i++) {
        const tile_place at = place_of(l, l->groups, i);
        const int32_t group = l->rank[at.rank];
        l->tiles[next[l->owner[i]]++] =
            (dsd_pair_tile){l->first[group], l->first[group + 1] - l->first[group], group,
                            (int32_t)(at.row * DSD_PAIR_SAMPLES)};
    }
    return BSK_OK;
}

static bsk_status lists_fill(lists *l, int32_t compute_units)
{
    const shape *s = &l->s;
    const int64_t most = s->pairs * s->row_tiles;
    if (most > INT32_MAX / 2)
        return l->host->fail(l->host->context, BSK_E_UNSUPPORTED, "dsd: too many tiles");
    l->blocks = compute_units > 0 ? compute_units : 1;
    l->blocks = most < l->blocks ? (int32_t)most : l->blocks;
    TRY(host_array(l->host, &l->order, 2 * s->pairs, sizeof *l->order));
    TRY(host_array(l->host, &l->loads, l->blocks, sizeof *l->loads));
    TRY(kept_fill(l));
    bski_dsd_pairing(l->kept, (int32_t)l->words, (int32_t)s->pairs, l->order);
    TRY(pairs_sort(l));
    groups_choose(l);
    TRY(groups_search(l));
    TRY(groups_fill(l));
    return tiles_make(l);
}

/* --- Plans --- */

enum table { SLICES, STEPS, TILES, TILE_START, GROUPS, PIECES, TABLE_COUNT };

typedef struct state {
    dsd_image image;
    dsd_pair_arg arg;
    dsd_pair_pack_arg pack;
} state;

typedef struct kernel_row {
    bsk_dtype dtype;
    bool cn, plain;
    const char *name;
    const void *function;
} kernel_row;

extern const char dsd_sm90a_pair_pack[];
#define KERNELS(X)                                                                                 \
    X(BSK_BF16, false, true, dsd_sm90a_pair_bf16_nc_plain)                                         \
    X(BSK_BF16, false, false, dsd_sm90a_pair_bf16_nc_any)                                          \
    X(BSK_BF16, true, true, dsd_sm90a_pair_bf16_cn_plain)                                          \
    X(BSK_BF16, true, false, dsd_sm90a_pair_bf16_cn_any)                                           \
    X(BSK_F16, false, true, dsd_sm90a_pair_f16_nc_plain)                                           \
    X(BSK_F16, false, false, dsd_sm90a_pair_f16_nc_any)                                            \
    X(BSK_F16, true, true, dsd_sm90a_pair_f16_cn_plain)                                            \
    X(BSK_F16, true, false, dsd_sm90a_pair_f16_cn_any)
#define KERNEL_EXTERN(dtype, cn, plain, name) extern const char name[];
KERNELS(KERNEL_EXTERN)
#undef KERNEL_EXTERN

static const kernel_row *kernel_find(bsk_dtype dtype, bool cn, bool plain)
{
#define KERNEL_ROW(dtype, cn, plain, name) {dtype, cn, plain, #name, name},
    static const kernel_row rows[] = {KERNELS(KERNEL_ROW)};
#undef KERNEL_ROW
    const kernel_row *found = rows;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].dtype == dtype && rows[i].cn == cn && rows[i].plain == plain)
            found = &rows[i];
    return found;
}

static int32_t slot_bytes(const lists *l)
{
    return DSD_PAIR_SLICE_BYTES + l->room * DSD_PAIR_PIECE_BYTES;
}

static bski_cuda_run product_run(const lists *l, bsk_dtype dtype, bool plain)
{
    const kernel_row *row = kernel_find(dtype, l->s.cn, plain);
    return (bski_cuda_run){
        .function = row->function,
        .name = row->name,
        .grid = {(unsigned)l->blocks, 1, 1},
        .threads = DSD_PAIR_THREADS,
        .early = true,
        .shared_bytes = DSD_PAIR_FIXED + (size_t)l->slots * slot_bytes(l),
    };
}

static void runs_fill(const lists *l, bsk_dtype dtype, state *st)
{
    st->image.plain = product_run(l, dtype, true);
    st->image.any = product_run(l, dtype, false);
    st->image.pack = (bski_cuda_run){
        .function = dsd_sm90a_pair_pack,
        .name = "dsd_sm90a_pair_pack",
        .grid = {(unsigned)l->piece_count, 1, 1},
        .threads = DSD_PAIR_PACK_THREADS,
        .early = true,
    };
}

static void args_fill(const bsk_problem *problem, const lists *l, state *st)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_mem *t = st->image.table;
    st->arg = (dsd_pair_arg){
        .slices = bsk_mem_address(t[SLICES]),
        .steps = bsk_mem_address(t[STEPS]),
        .tiles = bsk_mem_address(t[TILES]),
        .tile_start = bsk_mem_address(t[TILE_START]),
        .groups = bsk_mem_address(t[GROUPS]),
        .slots = l->slots,
        .slot_bytes = slot_bytes(l),
        .b_k = p->b.strides[0],
        .b_n = p->b.strides[1],
        .depth = l->s.features,
        .gaps = l->gaps,
    };
    bski_cuda_epilogue_fill(problem, &st->arg.epilogue);
    st->pack = (dsd_pair_pack_arg){
        .pieces = bsk_mem_address(t[PIECES]),
        .row_stride = l->s.row_stride,
        .depth_stride = l->s.feature_stride,
    };
}

static bsk_status plan_make(bski_cuda_device *d, bsk_prepared *prepared, lists *l)
{
    state *st = prepared->state;
    TRY(lists_fill(l, d->simt.props.compute_units));
    const dsd_image_table tables[TABLE_COUNT] = {
        [SLICES] = {l->slices, l->slice_count, sizeof *l->slices},
        [STEPS] = {l->steps, l->step_count, sizeof *l->steps},
        [TILES] = {l->tiles, l->tile_count, sizeof *l->tiles},
        [TILE_START] = {l->tile_start, (int64_t)l->blocks + 1, sizeof *l->tile_start},
        [GROUPS] = {l->members, l->groups, sizeof *l->members},
        [PIECES] = {l->pieces, l->piece_count, sizeof *l->pieces},
    };
    runs_fill(l, prepared->problem->dtype, st);
    st->image.b = l->s.b;
    TRY(bski_dsd_image_prepare(d, prepared, tables, TABLE_COUNT,
                               (size_t)l->piece_count * DSD_PAIR_PIECE_BYTES, 0));
    args_fill(prepared->problem, l, st);
    return BSK_OK;
}

bsk_status cuda_sm90a_dsd_pair_prepare(void *device, bsk_prepared *prepared)
{
    bski_cuda_device *d = device;
    const bsk_problem *problem = prepared->problem;
    const bsk_dsd_params *p = problem->params;
    const bsk_host *host = d->simt.host;
    lists l = {.host = host};
    if (shape_set(problem, &l.s))
        return host->fail(host->context, BSK_E_INTERNAL, "cuda: an unaccepted product");
    if (!l.s.n)
        return BSK_OK;
    TRY(state_new(&d->simt, sizeof(state), prepared));
    l.lines = bski_layout_lines(problem->layout, p->transpose_s != 0);
    const bsk_status status = plan_make(d, prepared, &l);
    lists_free(&l);
    if (status)
        cuda_sm90a_dsd_pair_release(device, prepared);
    return status;
}

void cuda_sm90a_dsd_pair_release(void *device, bsk_prepared *prepared)
{
    bski_dsd_image_release(device, prepared);
}

bsk_status cuda_sm90a_dsd_pair_pack(const bsk_prepared *prepared, void *queue, bsk_mem s,
                                    bsk_mem packed)
{
    const state *st = prepared->state;
    if (!st)
        return BSK_OK;
    dsd_pair_pack_arg arg = st->pack;
    arg.source = bsk_mem_address(s);
    arg.image = bsk_mem_address(packed);
    void *arguments[] = {&arg};
    bski_cuda_run run = st->image.pack;
    run.arguments = arguments;
    return bski_cuda_launch(queue, &run);
}

bsk_status cuda_sm90a_dsd_pair_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_dsd_args *a = args;
    const state *st = prepared->state;
    if (!st)
        return BSK_OK;
    dsd_pair_arg arg = st->arg;
    TRY(bski_dsd_image_find(prepared, queue, a, cuda_sm90a_dsd_pair_pack, &arg.image));
    arg.b = bsk_mem_address(a->b);
    bski_cuda_epilogue_bind(a, &arg.epilogue);
    return bski_dsd_image_run(&st->image, queue, a->b, bski_cuda_epilogue_linear(&arg.epilogue),
                              &arg);
}
