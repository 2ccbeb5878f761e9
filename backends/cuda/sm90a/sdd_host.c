/* The host side that the entries of sdd on Hopper share. */
#include <string.h>

#include <backends/cuda/sm90a/sdd_host.h>
#include <common/checked.h>
#include <common/layout.h>

extern const char sdd_clear[], sdd_turn[];

/* Tiles of the table of places: as many rows and columns as the largest unit's. */
enum { TILE = 8, WHERE_ROWS = 16, WHERE_COLS = 32 };
/* Of the counters: the line of the common progress before those of units. */
enum { PROGRESS_BYTES = 64, PARTS_ALIGNMENT = 256 };

/* --- What is taken --- */

static int32_t element_bytes(bsk_dtype dtype)
{
    return dtype == BSK_F32 ? 4 : 2;
}

/* A matrix of features and samples as the copy engine sees it; inner: its contiguous axis. */
static bski_cuda_tensor operand_tensor(const bsk_tensor *t, int inner, bool along_n,
                                       int32_t features, int32_t samples)
{
    const int outer = 1 - inner;
    return (bski_cuda_tensor){.dtype = t->dtype,
                              .rank = 2,
                              .dims = {t->dims[inner], t->dims[outer]},
                              .strides = {1, t->strides[outer]},
                              .box = {along_n ? samples : features, along_n ? features : samples},
                              .swizzle = element_bytes(t->dtype) * (along_n ? samples : features)};
}

/* Whether the axis of samples, or of features, is contiguous in both operands. */
static bool contiguous(const bsk_sdd_params *p, bool along_n)
{
    return p->a.strides[along_n] == 1 && p->b.strides[!along_n] == 1;
}

bool bski_sdd_along_n(const bsk_sdd_params *p)
{
    return !contiguous(p, false);
}

int64_t bski_sdd_slices(const bsk_sdd_params *p, int32_t samples)
{
    return bski_ceil_div(p->a.dims[1], samples) * p->pairs;
}

/* --- Turned operands ---
 *
 * wgmma of tf32 takes operands along the samples. Where features are contiguous, B is copied first,
 * pair after pair, to rows of features, and A where a kernel does not do it in registers. */

enum { TURNED_ROW = 32 /* elements: a row's length is a multiple */, OF_A = 0, OF_B = 1 };

static bool across(const bsk_problem *problem)
{
    return problem->dtype == BSK_F32 && !bski_sdd_along_n(problem->params);
}

/* An operand, whose axis of features is number `features`, as [features][samples]. */
static bsk_tensor turned_tensor(const bsk_tensor *t, int features)
{
    const int64_t row = bski_ceil_div(t->dims[1 - features], TURNED_ROW) * TURNED_ROW;
    return (bsk_tensor){
        .dtype = BSK_F32, .rank = 2, .dims = {t->dims[features], row}, .strides = {row, 1}};
}

static size_t turned_bytes(const bsk_tensor *t, int features)
{
    const bsk_tensor turned = turned_tensor(t, features);
    return (size_t)(turned.dims[0] * turned.dims[1]) * sizeof(float);
}

/* Of the operands of a pair. */
static size_t pair_bytes(const bsk_sdd_params *p, bski_sdd_turns turns)
{
    return (turns >= SDD_TURNS_B ? turned_bytes(&p->b, OF_B) : 0) +
           (turns == SDD_TURNS_BOTH ? turned_bytes(&p->a, OF_A) : 0);
}

/* Thread blocks that turn an operand. */
static int64_t turn_tiles(const bsk_tensor *t, int features)
{
    const bsk_tensor turned = turned_tensor(t, features);
    return bski_ceil_div(turned.dims[0], SDD_TURN_TILE) *
           bski_ceil_div(turned.dims[1], SDD_TURN_TILE);
}

double bski_sdd_turn_seconds(const bsk_problem *problem, bski_sdd_turns turns)
{
    static const double memory_rate = 3.6e12, launch = 1e-6; /* bytes/s, read and written */
    const bsk_sdd_params *p = problem->params;
    return across(problem)
               ? p->pairs * (2.0 * (double)pair_bytes(p, turns) / memory_rate + turns * launch)
               : 0;
}

static bsk_status turn(void *queue, const bsk_tensor *t, int features, bsk_mem data, void *to)
{
    sdd_turn_arg arg = {.from = bsk_mem_address(data),
                        .to = to,
                        .features = t->dims[features],
                        .samples = t->dims[1 - features],
                        .from_row = t->strides[1 - features],
                        .to_row = turned_tensor(t, features).strides[0]};
    void *arguments[] = {&arg};
    const bski_cuda_run run = {.function = sdd_turn,
                               .name = "sdd_turn",
                               .grid = {(unsigned)turn_tiles(t, features), 1, 1},
                               .threads = SDD_TURN_THREADS,
                               .arguments = arguments,
                               .early = true};
    return bski_cuda_launch(queue, &run);
}

/* Whole blocks, also what the last ones have outside of the matrix. */
static int64_t where_cols(const bsk_layout_tables *t)
{
    const int64_t cols = (int64_t)t->grid_cols * t->block_cols;
    return bski_ceil_div(cols, WHERE_COLS * TILE) * WHERE_COLS;
}

static int64_t where_rows(const bsk_layout_tables *t)
{
    const int64_t rows = (int64_t)t->grid_rows * t->block_rows;
    return bski_ceil_div(rows, WHERE_ROWS * TILE) * WHERE_ROWS;
}

bsk_reason bski_sdd_refusal(const bsk_problem *problem, bool exact)
{
    static const int64_t max_where = INT64_C(1) << 26, max_n = INT64_C(1) << 30;
    const bsk_sdd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bool out_ok = p->s.dtype == BSK_F32 || p->s.dtype == BSK_BF16 || p->s.dtype == BSK_F16;
    if (!out_ok)
        return BSK_REFUSE_DTYPE;
    if (t->block_rows % TILE || t->block_cols % TILE)
        return BSK_REFUSE_BLOCK;
    if (p->a.rank != 2 || p->s.rank != 3 || t->heads != 1)
        return BSK_REFUSE_RANK;
    if (p->dgate.dtype != BSK_NONE || p->bsum.dtype != BSK_NONE)
        return BSK_REFUSE_OPTION;
    const bool along_n = bski_sdd_along_n(p);
    if (!contiguous(p, along_n))
        return BSK_REFUSE_STRIDE;
    if (problem->dtype == BSK_F32 && (p->precision == BSK_PRECISION_TF32) == exact)
        return BSK_REFUSE_OPTION;
    if (problem->dtype == BSK_F32 && sdd_is_portable(p))
        return BSK_REFUSE_SHAPE;
    if (p->a.dims[1] > 0) {
        const int32_t side = SDD_PANEL_BYTES / SDD_PANEL / element_bytes(problem->dtype);
        const bski_cuda_tensor a = operand_tensor(&p->a, along_n, along_n, side, side);
        const bski_cuda_tensor b = operand_tensor(&p->b, !along_n, along_n, side, side);
        if (!bski_cuda_tensor_fits(&a) || !bski_cuda_tensor_fits(&b))
            return BSK_REFUSE_STRIDE;
    }
    const int64_t eighth = (int64_t)t->block_rows * t->block_cols / TILE;
    if (p->pairs > SDD_MAX_PAIRS || t->rows > SDD_SHARED - 256 || t->cols > SDD_SHARED - 256 ||
        where_rows(t) > max_where / where_cols(t) || t->nnz > INT32_MAX / eighth ||
        p->a.dims[1] > max_n / SDD_MAX_PAIRS)
        return BSK_REFUSE_LIMIT;
    const bool many = turn_tiles(&p->a, OF_A) > INT32_MAX || turn_tiles(&p->b, OF_B) > INT32_MAX;
    return across(problem) && many ? BSK_REFUSE_LIMIT : BSK_ACCEPT;
}

/* --- Schedules --- */

/* Cycles: to leave and to collect a partial sum, and for each more to collect; to exchange the sums of
 * halves; and to store a unit's blocks. A tail reads samples that no other block reads at that time,
 * and so is slower by this share. */
static const double flush_cycles = 7000, collect_cycles = 1600, exchange_cycles = 5000;
static const double store_cycles = 2500, tail_penalty = 0.8;
enum { MAX_PARTS = 16, MIN_TAIL = 4 };

/* With tails, of blocks that would have `even` cycles each, and on average `excess` more than that. */
static double tailed_cycles(double even, double excess)
{
    return even + 2 * flush_cycles + tail_penalty * excess;
}

/* Of an uneven last round of so many units in parts. */
static double last_cycles(double unit, int64_t rest, int64_t parts, int32_t blocks)
{
    return (double)bski_ceil_div(rest * parts, blocks) * (unit / (double)parts + flush_cycles);
}

double bski_sdd_estimate(int64_t units, double cost, int64_t slices, int32_t blocks,
                         int32_t last_parts)
{
    const double unit = (double)slices * cost + store_cycles, even = (double)units * unit / blocks;
    const int64_t whole = units / blocks, rest = units % blocks;
    double best = (double)(whole + (rest > 0)) * unit;
    if (whole && rest) {
        const double tailed = tailed_cycles(even, (double)rest * (best - even) / blocks);
        best = tailed < best ? tailed : best;
    }
    for (int64_t parts = 2; whole && rest && parts <= last_parts; parts++) {
        const double cycles = (double)whole * unit + last_cycles(unit, rest, parts, blocks);
        best = cycles < best ? cycles : best;
    }
    for (int64_t parts = 2; parts <= MAX_PARTS && parts <= slices && units * parts <= blocks;
         parts++) {
        const double divided = (double)bski_ceil_div(slices, parts) * cost + flush_cycles;
        best = divided < best ? divided : best;
    }
    return best;
}

/* A segment before it has its numbers. */
typedef struct piece {
    int32_t unit, first, count, step, block;
} piece;

typedef struct pieces {
    piece *at;
    int64_t count, capacity;
    double *load; /* of each block, in cycles */
    const double *cost;
    int32_t blocks;
} pieces;

static int32_t idlest(const pieces *p)
{
    int32_t best = 0;
    for (int32_t i = 1; i < p->blocks; i++)
        if (p->load[i] < p->load[best])
            best = i;
    return best;
}

static double piece_cycles(const pieces *p, const piece *x)
{
    return p->cost[x->unit] * x->count + (x->step > 1 ? flush_cycles : store_cycles);
}

/* Every unit in its parts, each to the block with the least to do. */
static void pieces_deal(pieces *p, const bski_pair *order, int32_t units, int32_t slices,
                        const int32_t *parts)
{
    p->count = 0;
    memset(p->load, 0, (size_t)p->blocks * sizeof *p->load);
    for (int32_t u = 0; u < units; u++) {
        const int32_t unit = (int32_t)order[u].value, step = parts[unit];
        for (int32_t i = 0; i < step; i++) {
            piece x = {unit, i, (int32_t)bski_ceil_div(slices - i, step), step, idlest(p)};
            p->load[x.block] += piece_cycles(p, &x);
            p->at[p->count++] = x;
        }
    }
}

/* The cycles of the longest part of all units. */
static double parts_longest(const double *cost, int32_t units, int32_t slices, const int32_t *parts,
                            int32_t *which)
{
    double most = -1;
    for (int32_t u = 0; u < units; u++) {
        const double cycles = cost[u] * (double)bski_ceil_div(slices, parts[u]);
        if (cycles <= most)
            continue;
        most = cycles;
        *which = u;
    }
    return most;
}

/* Divides units among blocks that are more than these: the longest part is always made shorter.
 * Returns its cycles. Units are not cut more than others make them wait for. */
static double parts_divide(const double *cost, int32_t units, int32_t slices, int32_t blocks,
                           int32_t *parts)
{
    int32_t which = 0;
    for (int32_t left = blocks - units; left > 0; left--) {
        parts_longest(cost, units, slices, parts, &which);
        if (parts[which] == MAX_PARTS || parts[which] >= slices)
            break;
        parts[which]++;
    }
    const double most = parts_longest(cost, units, slices, parts, &which);
    for (int32_t u = 0; u < units; u++)
        while (parts[u] > 1 && cost[u] * (double)bski_ceil_div(slices, parts[u] - 1) <= most)
            parts[u]--;
    return most + flush_cycles;
}

/* Units in their order, or the costliest first. */
static void units_sort(const double *cost, int32_t units, bool by_cost, bski_pair *order)
{
    for (int32_t u = 0; u < units; u++)
        order[u] = (bski_pair){UINT32_MAX - (uint32_t)cost[u], (uint32_t)u};
    if (by_cost)
        bski_sort_pairs(order, order + units, units, 32);
}

/* Hands one tail out in pieces that fill idle blocks up to the level. */
static void tail_deal(pieces *p, piece tail, double level)
{
    const double cost = p->cost[tail.unit];
    while (tail.count > 0) {
        piece x = tail;
        x.block = idlest(p);
        const double room = (level - p->load[x.block] - flush_cycles) / cost;
        x.count = room > MIN_TAIL ? (int32_t)room + 1 : MIN_TAIL;
        if (tail.count - x.count < MIN_TAIL || p->count + 1 == p->capacity)
            x.count = tail.count;
        p->load[x.block] += cost * x.count + flush_cycles;
        p->at[p->count++] = x;
        tail.first += x.count * tail.step;
        tail.count -= x.count;
    }
}

/* Cuts what is above the level from the last pieces of each block, and hands it out. */
static void pieces_level(pieces *p, double level)
{
    const int64_t dealt = p->count;
    const double limit = level + flush_cycles;
    for (int64_t i = dealt - 1; i >= 0; i--) {
        if (p->count == p->capacity)
            return;
        piece *x = &p->at[i];
        const double over = p->load[x->block] - level, cost = p->cost[x->unit];
        if (p->load[x->block] <= limit || cost * MIN_TAIL > over)
            continue;
        piece tail = *x;
        tail.count = over / cost < x->count ? (int32_t)(over / cost) : x->count;
        x->count -= tail.count;
        tail.first += x->count * x->step;
        p->load[x->block] -= cost * tail.count;
        tail_deal(p, tail, level);
    }
}

/* Segments in block order, numbered within their units. per_unit: room for 3 numbers a unit. */
static void segments_number(const pieces *p, int32_t units, int32_t *per_unit, bski_sdd_schedule *s)
{
    int32_t *parts = per_unit, *next = per_unit + units, *place = next + units;
    memset(per_unit, 0, (size_t)units * 3 * sizeof *per_unit);
    memset(s->start, 0, ((size_t)p->blocks + 1) * sizeof *s->start);
    /* A piece that lost all its slices to a tail is gone, unless its unit has no others. */
    for (int64_t i = 0; i < p->count; i++)
        parts[p->at[i].unit] += p->at[i].count > 0;
    int32_t *empty = next; /* until the numbering: the unit's empty piece is to stay */
    for (int64_t i = 0; i < p->count; i++) {
        piece *x = &p->at[i];
        if (x->count == 0 && (parts[x->unit] || empty[x->unit]))
            x->block = -1;
        else if (x->count == 0)
            empty[x->unit] = 1;
        if (x->block >= 0)
            s->start[x->block + 1]++;
    }
    memset(next, 0, (size_t)units * sizeof *next);
    for (int32_t i = 0; i < p->blocks; i++)
        s->start[i + 1] += s->start[i];
    s->count = s->start[p->blocks];
    for (int32_t u = 0; u < units; u++) {
        place[u] = s->places;
        if (parts[u] > 1) {
            s->places += parts[u];
            s->split++;
        }
    }
    for (int64_t i = 0; i < p->count; i++) {
        const piece *x = &p->at[i];
        if (x->block < 0)
            continue;
        s->segments[s->start[x->block]++] =
            (sdd_segment){.unit = x->unit,
                          .first = x->first,
                          .count = x->count,
                          .step = x->step,
                          .part = next[x->unit]++,
                          .parts = parts[x->unit] > 1 ? parts[x->unit] : 1,
                          .place = place[x->unit]};
    }
    memmove(s->start + 1, s->start, (size_t)p->blocks * sizeof *s->start);
    s->start[0] = 0;
    /* counters are numbered by first place: units that are split come in ascending order */
    int32_t counter = 0;
    for (int32_t u = 0; u < units; u++)
        next[u] = parts[u] > 1 ? counter++ : 0;
    for (int32_t i = 0; i < s->count; i++)
        s->segments[i].counter = next[s->segments[i].unit];
}

static int32_t longest_rounds(const bski_sdd_schedule *s)
{
    int64_t most = 0;
    for (int32_t b = 0; b < s->blocks; b++) {
        int64_t slices = 0;
        for (int32_t i = s->start[b]; i < s->start[b + 1]; i++)
            slices += s->segments[i].count;
        most = slices > most ? slices : most;
    }
    return (int32_t)bski_ceil_div(most, SDD_PACE);
}

/* The last `rest` units in so many parts. */
static void last_set(const bski_pair *order, int32_t units, int32_t rest, int32_t count,
                     int32_t *parts)
{
    for (int32_t u = units - rest; u < units; u++)
        parts[order[u].value] = count;
}

/* The cycles of all rounds where the last one's units are in so many parts: by a trial if their costs
 * differ, which leaves the pieces dealt so. */
static double last_try(pieces *p, const bski_pair *order, int32_t units, int32_t slices,
                       const bski_sdd_deal *deal, double total, int32_t count, int32_t *parts)
{
    const int32_t rest = units % p->blocks;
    const double unit = total / units;
    double most = 0;
    if (!deal->by_cost)
        return unit * (units / p->blocks) + last_cycles(unit, rest, count, p->blocks);
    last_set(order, units, rest, count, parts);
    pieces_deal(p, order, units, slices, parts);
    last_set(order, units, rest, 1, parts);
    for (int32_t i = 0; i < p->blocks; i++)
        most = p->load[i] > most ? p->load[i] : most;
    return most + count * collect_cycles;
}

/* In how many parts the units of an uneven last round should be, and the cycles of all rounds
 * then. */
static double last_find(pieces *p, const bski_pair *order, int32_t units, int32_t slices,
                        const bski_sdd_deal *deal, double total, int32_t *parts, int32_t *count)
{
    const int32_t rest = units % p->blocks;
    double best = 1e30;
    for (int32_t i = 2; units > p->blocks && rest && i <= deal->last_parts && i <= slices; i++) {
        if (units + (int64_t)rest * (i - 1) > p->capacity)
            break;
        const double cycles = last_try(p, order, units, slices, deal, total, i, parts);
        if (cycles >= best)
            continue;
        best = cycles;
        *count = i;
    }
    return best;
}

/* Cuts units over the samples if that should be faster than to leave them whole: into equal parts
 * where there are fewer than blocks, or by tails. parts: of each unit, 1 at first. */
static void pieces_cut(pieces *p, const bski_pair *order, int32_t units, int32_t slices,
                       const bski_sdd_deal *deal, int32_t *parts, double *cycles)
{
    static const double last_gain = 0.99; /* less is lost where parts read what no others do */
    double total = 0, most = 0, excess = 0;
    int32_t last_parts = 1;
    pieces_deal(p, order, units, slices, parts);
    for (int32_t i = 0; i < p->blocks; i++) {
        total += p->load[i];
        most = p->load[i] > most ? p->load[i] : most;
    }
    const double even = total / p->blocks;
    for (int32_t i = 0; i < p->blocks; i++)
        excess += p->load[i] > even ? (p->load[i] - even) / p->blocks : 0;
    *cycles = most;
    const double tailed = tailed_cycles(even, excess);
    const double last = last_find(p, order, units, slices, deal, total, parts, &last_parts);
    const bool lasts = last < last_gain * most && last < tailed;
    if (lasts)
        last_set(order, units, units % p->blocks, last_parts, parts);
    pieces_deal(p, order, units, slices, parts);
    if (lasts) {
        *cycles = last;
        return;
    }
    if (units && units < p->blocks) {
        const double divided = parts_divide(p->cost, units, slices, p->blocks, parts);
        const bool tails = deal->few_tails && tailed < deal->tails * divided;
        const bool divides = divided < most && !tails;
        if (divides)
            *cycles = divided;
        else
            for (int32_t u = 0; u < units; u++)
                parts[u] = 1;
        pieces_deal(p, order, units, slices, parts);
        if (!tails)
            return;
    }
    if (tailed < deal->tails * most) {
        *cycles = tailed / deal->tails;
        pieces_level(p, even + flush_cycles);
    }
}

/* Every unit whole, to two blocks that share its slices. */
static void pieces_halve(pieces *p, int32_t units, int32_t slices, double *cycles)
{
    double most = 0;
    p->count = 0;
    for (int32_t u = 0; u < units; u++) {
        p->at[p->count++] = (piece){.unit = u, .count = slices, .step = 1, .block = u};
        most = p->cost[u] > most ? p->cost[u] : most;
    }
    *cycles = most * (double)bski_ceil_div(slices, 2) + exchange_cycles;
}

static bsk_status schedule_fill(const bsk_host *host, pieces *p, int32_t units, int32_t slices,
                                const bski_sdd_deal *deal, bski_sdd_schedule *s)
{
    const bsk_allocator *allocator = &host->allocator;
    int32_t *per_unit = bski_table_alloc(allocator, (int64_t)units * 3, sizeof *per_unit);
    s->segments = bski_table_alloc(allocator, p->capacity, sizeof *s->segments);
    s->start = bski_table_alloc(allocator, (int64_t)p->blocks + 1, sizeof *s->start);
    bski_pair *order = bski_table_alloc(allocator, 2 * (int64_t)units, sizeof *order);
    const bool ok = per_unit && order && s->segments && s->start && p->at && p->load;
    if (ok) {
        int32_t *parts = per_unit; /* until the numbering */
        for (int32_t u = 0; u < units; u++)
            parts[u] = 1;
        units_sort(p->cost, units, deal->by_cost, order);
        if (s->halves)
            pieces_halve(p, units, slices, &s->cycles);
        else
            pieces_cut(p, order, units, slices, deal, parts, &s->cycles);
        segments_number(p, units, per_unit, s);
        s->rounds = longest_rounds(s);
    }
    bski_table_free(allocator, order);
    bski_table_free(allocator, per_unit);
    return ok ? BSK_OK
              : host->fail(host->context, BSK_E_NOMEM, "cuda: no memory for a schedule of sdd");
}

bsk_status bski_sdd_schedule_make(const bsk_host *host, const double *cost, int32_t units,
                                  int32_t slices, int32_t blocks, const bski_sdd_deal *deal,
                                  bski_sdd_schedule *schedule)
{
    const bsk_allocator *allocator = &host->allocator;
    const bool halves = deal->halves && 2 * (int64_t)units <= blocks && 4 * (int64_t)units > blocks;
    if (halves)
        blocks /= 2;
    const int64_t capacity = (int64_t)units + 8 * (int64_t)blocks + 16;
    pieces p = {.at = bski_table_alloc(allocator, capacity, sizeof *p.at),
                .capacity = capacity,
                .load = bski_table_alloc(allocator, blocks, sizeof *p.load),
                .cost = cost,
                .blocks = blocks};
    *schedule = (bski_sdd_schedule){.blocks = blocks, .halves = halves};
    const bsk_status status = schedule_fill(host, &p, units, slices, deal, schedule);
    bski_table_free(allocator, p.at);
    bski_table_free(allocator, p.load);
    if (status)
        bski_sdd_schedule_free(host, schedule);
    return status;
}

void bski_sdd_schedule_free(const bsk_host *host, bski_sdd_schedule *schedule)
{
    bski_table_free(&host->allocator, schedule->segments);
    bski_table_free(&host->allocator, schedule->start);
    schedule->segments = NULL;
    schedule->start = NULL;
}

/* --- A plan's share --- */

/* Where each tile of 8 x 8 elements of the matrix lies in s. */
static bsk_status where_put(simt_device *d, const bsk_layout_tables *t, bski_sdd_plan *plan)
{
    const bsk_host *host = d->host;
    const int64_t rows = where_rows(t), cols = where_cols(t);
    int32_t *where;
    TRY(host_array(host, &where, rows * cols, sizeof *where));
    memset(where, 0xff, (size_t)(rows * cols) * sizeof *where);
    const int64_t high = t->block_rows / TILE, wide = t->block_cols / TILE;
    for (int64_t slot = 0; slot < t->nnz; slot++) {
        const int64_t row0 = t->slot_row[slot] * high, col0 = t->slot_col[slot] * wide;
        const int64_t first = slot * high * t->block_cols;
        for (int64_t i = 0; i < high && row0 + i < rows; i++)
            for (int64_t j = 0; j < wide && col0 + j < cols; j++)
                where[(row0 + i) * cols + col0 + j] = (int32_t)(first + i * t->block_cols + j);
    }
    const bsk_status status =
        table_place(d, where, rows * cols, sizeof *where, &plan->where, &plan->out.where);
    host_drop(host, where);
    return status;
}

static bsk_status plan_workspace(const bsk_host *host, bsk_prepared *prepared,
                                 const bski_sdd_schedule *s, const bski_sdd_kernel *kernel,
                                 bski_sdd_plan *plan)
{
    size_t parts, counters = 0;
    const bool paced = plan->work.lead > 0;
    const size_t warps = (size_t)kernel->warps;
    const size_t part = warps * (size_t)kernel->accumulators * 32 * sizeof(float);
    bool ok = bski_mul_size((size_t)s->places, part, &parts);
    if (s->split || paced)
        counters = PROGRESS_BYTES + (size_t)s->split * warps * sizeof(uint32_t);
    plan->counters = (counters + PARTS_ALIGNMENT - 1) / PARTS_ALIGNMENT * PARTS_ALIGNMENT;
    const bsk_sdd_params *p = prepared->problem->params;
    const size_t turned = (size_t)p->pairs * pair_bytes(p, plan->turns);
    ok = ok && bski_add_size(parts, plan->counters, &plan->turned) &&
         bski_add_size(plan->turned, turned, &prepared->workspace_bytes);
    prepared->workspace_alignment = PARTS_ALIGNMENT;
    return ok ? BSK_OK
              : host->fail(host->context, BSK_E_UNSUPPORTED,
                           "cuda: the partial sums of sdd are more than can be counted");
}

bsk_status bski_sdd_plan_make(bski_cuda_device *device, bsk_prepared *prepared,
                              const bski_sdd_schedule *schedule, const bski_sdd_kernel *kernel,
                              bski_sdd_plan *plan)
{
    const bsk_sdd_params *p = prepared->problem->params;
    const bsk_layout_tables *t = prepared->problem->layout;
    const bool along_n = bski_sdd_along_n(p);
    const int32_t fit = (SDD_SHARED_BYTES - SDD_HEAD_BYTES) / kernel->stage_bytes;
    const int32_t features = kernel->features, samples = kernel->samples;
    plan->a = operand_tensor(&p->a, along_n, along_n, features, samples);
    plan->b = operand_tensor(&p->b, !along_n, along_n, features, samples);
    plan->a.exact = plan->b.exact = kernel->exact;
    plan->turns = across(prepared->problem) ? kernel->turns : SDD_TURNS_NONE;
    if (plan->turns) {
        const bsk_tensor a = turned_tensor(&p->a, OF_A), b = turned_tensor(&p->b, OF_B);
        TRY(bski_cuda_kernel(device, sdd_turn, 0, "sdd_turn"));
        plan->a = plan->turns == SDD_TURNS_BOTH
                      ? operand_tensor(&a, 1, true, features, samples)
                      : operand_tensor(&p->a, 0, false, features / 2, samples);
        plan->b = operand_tensor(&b, 1, true, features, samples);
    }
    plan->work.stages = fit < SDD_MAX_STAGES ? fit : SDD_MAX_STAGES;
    plan->shared_bytes = SDD_HEAD_BYTES + (size_t)(plan->work.stages * kernel->stage_bytes);
    plan->blocks = t->nnz ? schedule->blocks : 0;
    TRY(bski_cuda_kernel(device, sdd_clear, 0, "sdd_clear"));
    plan->work.slices = (int32_t)(bski_sdd_slices(p, kernel->samples) / p->pairs);
    plan->work.rounds = schedule->rounds;
    TRY(bski_cuda_encoder_find(&device->simt, &plan->encoder));
    TRY(plan_workspace(device->simt.host, prepared, schedule, kernel, plan));
    TRY(table_place(&device->simt, schedule->segments, schedule->count, sizeof *schedule->segments,
                    &plan->segments, &plan->work.segments));
    TRY(table_place(&device->simt, schedule->start, (int64_t)schedule->blocks + 1,
                    sizeof *schedule->start, &plan->start, &plan->work.start));
    plan->out = (sdd_output){
        .rows = t->rows,
        .cols = t->cols,
        .where_cols = (int32_t)where_cols(t),
        .block_cols = t->block_cols,
        .block_eighth = (int32_t)((int64_t)t->block_rows * t->block_cols / TILE),
        .type = (int32_t)p->s.dtype,
        .gate_mode = p->gate.dtype == BSK_NONE ? BSK_GATE_IGNORE : (int32_t)p->gate_mode};
    return where_put(&device->simt, t, plan);
}

void bski_sdd_plan_free(bski_cuda_device *device, bski_sdd_plan *plan)
{
    table_drop(&device->simt, &plan->segments);
    table_drop(&device->simt, &plan->start);
    table_drop(&device->simt, &plan->where);
}

/* By a kernel that starts early, as those after it do: they would not after a fill. */
static bsk_status counters_clear(void *queue, void *counters, size_t bytes)
{
    int32_t count = (int32_t)(bytes / 16);
    void *arguments[] = {&counters, &count};
    const bski_cuda_run run = {.function = sdd_clear,
                               .name = "sdd_clear",
                               .grid = {(unsigned)bski_ceil_div(count, SDD_CLEAR_THREADS), 1, 1},
                               .threads = SDD_CLEAR_THREADS,
                               .arguments = arguments,
                               .early = true};
    return bski_cuda_launch(queue, &run);
}

bsk_status bski_sdd_arguments(const bski_sdd_plan *plan, const bsk_problem *problem, void *queue,
                              const bsk_sdd_args *args, CUtensorMap *a, CUtensorMap *b,
                              sdd_work *work, sdd_output *out)
{
    const bsk_sdd_params *p = problem->params;
    char *workspace = bsk_mem_address(args->workspace);
    for (int32_t i = 0; p->a.dims[1] > 0 && i < p->pairs; i++) {
        void *of_a = bsk_mem_address(args->a[i]), *of_b = bsk_mem_address(args->b[i]);
        if (plan->turns) {
            of_b = workspace + plan->turned + (size_t)i * pair_bytes(p, plan->turns);
            TRY(turn(queue, &p->b, OF_B, args->b[i], of_b));
            if (plan->turns == SDD_TURNS_BOTH) {
                of_a = (char *)of_b + turned_bytes(&p->b, OF_B);
                TRY(turn(queue, &p->a, OF_A, args->a[i], of_a));
            }
        }
        TRY(bski_cuda_tensor_map(&plan->encoder, &plan->a, of_a, &a[i]));
        TRY(bski_cuda_tensor_map(&plan->encoder, &plan->b, of_b, &b[i]));
    }
    *work = plan->work;
    if (plan->counters) {
        work->progress = (uint32_t *)(void *)workspace;
        work->counters = (uint32_t *)(void *)(workspace + PROGRESS_BYTES);
        work->parts = (float *)(void *)(workspace + plan->counters);
        TRY(counters_clear(queue, workspace, plan->counters));
    }
    *out = plan->out;
    out->s = bsk_mem_address(args->s);
    out->gate = bsk_mem_address(args->gate);
    out->alpha = (float)args->alpha;
    out->beta = (float)args->beta;
    return BSK_OK;
}
