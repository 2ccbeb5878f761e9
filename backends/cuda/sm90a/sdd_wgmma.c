/* sdd on Hopper by wgmma: units of panels, and the choice among their shapes.
 *
 * The rows are cut into bands, and the panels of columns that hold a kept block anywhere in a band
 * are dealt to its units. In a *cross* there are two panels of A, and both warpgroups multiply with
 * the same panels of B. In a *star* there is one, and each warpgroup takes half of the panels of B.
 * Blocks smaller than a panel are computed together with what is not kept around them, and only they
 * are stored; that costs as much as a dense product, and no more. */
#include <string.h>

#include <backends/cuda/sm90a/sdd_host.h>
#include <common/checked.h>
#include <common/layout.h>

CUDA_FUNCTIONS(sdd_wgmma)

/* What sdd_wgmma.cu is compiled for. */
enum { THREADS = 384, WARPS = 8, ACCUMULATORS = 128 };
/* A bit of a mask on the stack for each panel of columns. */
enum { MAX_PANEL_COLS = 1 << 15 };

typedef struct kernel {
    const void *function;
    const char *name;
} kernel;

#define KERNEL(name) extern const char name[];
KERNEL(sdd_wgmma_bf16_nc)
KERNEL(sdd_wgmma_bf16_cn)
KERNEL(sdd_wgmma_f16_nc)
KERNEL(sdd_wgmma_f16_cn)
#undef KERNEL

#define KERNEL(name)                                                                               \
    {                                                                                              \
        name, #name                                                                                \
    }
static const kernel kernels[2][2] = {
    {KERNEL(sdd_wgmma_bf16_nc), KERNEL(sdd_wgmma_bf16_cn)},
    {KERNEL(sdd_wgmma_f16_nc), KERNEL(sdd_wgmma_f16_cn)},
};
#undef KERNEL

/* --- Shapes of units --- */

/* Panels of rows in a band, and panels of B in a unit at most. */
typedef struct shape {
    int32_t high, wide;
} shape;

static const shape shapes[] = {{2, 4}, {1, 4}, {1, 5}, {1, 6}, {1, 7}, {1, 8}};
enum { SHAPES = sizeof shapes / sizeof *shapes, CROSS_WIDE = 4 };

/* Cycles of a slice: products of 64 x 64 x 64, and copies of panels from the L2 cache. */
static const double piece_cycles = 128, panel_cycles = 205;

/* By a unit with so many panels of B. */
static double slice_cycles(const shape *s, double wide)
{
    const double products = s->high * wide * piece_cycles;
    const double copies = (s->high + wide) * panel_cycles;
    return products > copies ? products : copies;
}

/* Panels of columns as a set. */
typedef struct panel_set {
    uint64_t bits[MAX_PANEL_COLS / 64];
} panel_set;

/* The panels of columns that hold kept blocks in a band of `high` panels of rows; their number. */
static int32_t band_panels(const bsk_layout_tables *t, int64_t band, int32_t high, panel_set *set)
{
    const int64_t first = band * high * SDD_PANEL, last = first + high * SDD_PANEL - 1;
    const int64_t row_last = last / t->block_rows;
    const int64_t words = bski_ceil_div(bski_ceil_div(t->cols, SDD_PANEL), 64);
    int32_t count = 0;
    memset(set->bits, 0, (size_t)words * sizeof *set->bits);
    for (int64_t row = first / t->block_rows; row <= row_last && row < t->grid_rows; row++)
        for (int64_t e = t->row_start[row]; e < t->row_start[row + 1]; e++) {
            const int64_t col0 = (int64_t)t->row_col[e] * t->block_cols;
            const int64_t end = col0 + t->block_cols < t->cols ? col0 + t->block_cols : t->cols;
            for (int64_t p = col0 / SDD_PANEL; p * SDD_PANEL < end; p++)
                set->bits[p / 64] |= UINT64_C(1) << p % 64;
        }
    for (int64_t i = 0; i < words; i++)
        count += __builtin_popcountll(set->bits[i]);
    return count;
}

static int64_t band_count(const bsk_layout_tables *t, int32_t high)
{
    return bski_ceil_div(t->rows, (int64_t)high * SDD_PANEL);
}

/* The way a problem is computed. */
typedef struct choice {
    shape shape;
    bski_sdd_split split;
    int64_t units;
} choice;

static choice choose(const bsk_problem *problem, int32_t blocks)
{
    const bsk_sdd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const int64_t slices = bski_sdd_slices(p, SDD_PANEL);
    int64_t units[SHAPES] = {0}, panels[SHAPES] = {0};
    choice best = {.split.cycles = 1e30};
    panel_set set;
    for (int32_t high = 1; high <= 2; high++)
        for (int64_t band = 0; band < band_count(t, high); band++) {
            const int32_t count = band_panels(t, band, high, &set);
            for (int32_t i = 0; i < SHAPES; i++)
                if (shapes[i].high == high) {
                    units[i] += bski_ceil_div(count, shapes[i].wide);
                    panels[i] += count;
                }
        }
    for (int32_t i = 0; i < SHAPES; i++) {
        const double wide = units[i] ? (double)panels[i] / (double)units[i] : 0;
        const bski_sdd_split split =
            bski_sdd_split_best(units[i], slice_cycles(&shapes[i], wide), slices, blocks);
        if (split.cycles < best.split.cycles)
            best = (choice){shapes[i], split, units[i]};
    }
    return best;
}

bsk_reason cuda_sdd_wgmma_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_reason reason = bski_sdd_refusal(problem);
    (void)props;
    if (reason)
        return reason;
    return bski_ceil_div(problem->layout->cols, SDD_PANEL) > MAX_PANEL_COLS ? BSK_REFUSE_LIMIT
                                                                            : BSK_ACCEPT;
}

double cuda_sdd_wgmma_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    static const double hertz = 1.6e9, launch = 4e-6; /* at the power limit */
    return choose(problem, props->compute_units).split.cycles / hertz + launch;
}

/* --- Units --- */

typedef struct unit_list {
    sdd_unit *units;
    double *cost;
    int32_t count;
} unit_list;

static sdd_unit star_unit(int32_t band, const int32_t *panels, int32_t count)
{
    const int32_t half = (count + 1) / 2;
    sdd_unit u = {.panels = 1 + count,
                  .b = {1, 1 + half},
                  .count = {half, count - half},
                  .feature = {band * SDD_PANEL}};
    for (int32_t j = 0; j < count; j++)
        u.feature[1 + j] = panels[j] * SDD_PANEL | SDD_OF_B;
    return u;
}

/* rows: the two panels of A. */
static sdd_unit cross_unit(const int32_t *rows, const int32_t *panels, int32_t count)
{
    sdd_unit u = {.panels = 2 + count,
                  .a = {0, 1},
                  .b = {2, 2},
                  .count = {count, count},
                  .feature = {rows[0] * SDD_PANEL, rows[1] * SDD_PANEL}};
    for (int32_t j = 0; j < count; j++)
        u.feature[2 + j] = panels[j] * SDD_PANEL | SDD_OF_B;
    return u;
}

static void unit_add(const shape *s, const sdd_unit *unit, int32_t wide, unit_list *list)
{
    list->units[list->count] = *unit;
    list->cost[list->count++] = slice_cycles(s, wide);
}

/* Divides `count` panels of a band among the fewest units, as evenly as possible. */
static void band_units(const shape *s, int32_t band, const int32_t *panels, int32_t count,
                       unit_list *list)
{
    const int32_t parts = (int32_t)bski_ceil_div(count, s->wide);
    const int32_t rows[2] = {band * s->high, band * s->high + 1};
    for (int32_t i = 0, at = 0; i < parts; i++) {
        const int32_t wide = count / parts + (i < count % parts);
        const sdd_unit unit =
            s->high == 1 ? star_unit(band, panels + at, wide) : cross_unit(rows, panels + at, wide);
        unit_add(s, &unit, wide, list);
        at += wide;
    }
}

/* Units in patches, nearly square in features, of as many units as run at a time, so that these
 * share the panels that they read. */
static bsk_status units_order(const bsk_host *host, const bsk_layout_tables *t, const shape *s,
                              int32_t blocks, unit_list *list)
{
    const bsk_allocator *allocator = &host->allocator;
    const int64_t bands = band_count(t, s->high);
    const double span = (double)t->cols * (double)bands / list->count; /* of a unit, features */
    const double square = (double)blocks * s->high * SDD_PANEL * span;
    double side = 1; /* of a patch, in features */
    while (side * side < square)
        side *= 1.0625;
    const int64_t high = (int64_t)(side / (s->high * SDD_PANEL)) + 1, wide = (int64_t)side + 1;
    const int64_t across = bski_ceil_div(t->cols, wide);
    bski_pair *pairs = bski_table_alloc(allocator, 2 * (int64_t)list->count, sizeof *pairs);
    sdd_unit *units = bski_table_alloc(allocator, list->count, sizeof *units);
    double *cost = bski_table_alloc(allocator, list->count, sizeof *cost);
    const bool ok = pairs && units && cost;
    if (ok) {
        for (int32_t i = 0; i < list->count; i++) {
            const sdd_unit *u = &list->units[i];
            const int64_t band = u->feature[0] / (s->high * SDD_PANEL);
            const int64_t col = u->feature[u->b[0]] & ~SDD_OF_B;
            pairs[i] = (bski_pair){(uint64_t)(band / high * across + col / wide), (uint32_t)i};
        }
        bski_sort_pairs(pairs, pairs + list->count, list->count, 64);
        for (int32_t i = 0; i < list->count; i++) {
            units[i] = list->units[pairs[i].value];
            cost[i] = list->cost[pairs[i].value];
        }
        memcpy(list->units, units, (size_t)list->count * sizeof *units);
        memcpy(list->cost, cost, (size_t)list->count * sizeof *cost);
    }
    bski_table_free(allocator, pairs);
    bski_table_free(allocator, units);
    bski_table_free(allocator, cost);
    return ok ? BSK_OK : host->fail(host->context, BSK_E_NOMEM, "cuda: no memory for units of sdd");
}

/* The columns of all bands, and what is left of them while units are made. */
typedef struct band_sets {
    uint64_t *bits; /* [bands][words] */
    int32_t
        *partner;    /* [bands]: the band whose units are made together with this one's; -1: none */
    int32_t *panels; /* of one list */
    int64_t bands, words;
} band_sets;

/* Takes up to `most` of the panels that both sets have out of both. */
static int32_t sets_take(uint64_t *set, uint64_t *other, int64_t words, int32_t most,
                         int32_t *panels)
{
    int32_t count = 0;
    for (int64_t i = 0; i < words; i++)
        for (uint64_t both = set[i] & other[i]; both && count < most; both &= both - 1) {
            const uint64_t bit = both & -both;
            panels[count++] = (int32_t)(i * 64 + __builtin_ctzll(bit));
            set[i] &= ~bit;
            other[i] &= ~bit;
        }
    return count;
}

static int32_t sets_common(const uint64_t *set, const uint64_t *other, int64_t words)
{
    int32_t count = 0;
    for (int64_t i = 0; i < words; i++)
        count += __builtin_popcountll(set[i] & other[i]);
    return count;
}

/* Finds pairs of rows with columns in common, greedily: a row takes, of the next rows that are free,
 * the one with the most. */
static void rows_match(const band_sets *s)
{
    enum { WINDOW = 256 };
    for (int64_t i = 0; i < s->bands; i++) {
        int32_t most = CROSS_WIDE - 1;
        for (int64_t j = i + 1; s->partner[i] < 0 && j < s->bands && j < i + WINDOW; j++) {
            const uint64_t *set = s->bits + i * s->words, *other = s->bits + j * s->words;
            const int32_t same = s->partner[j] < 0 ? sets_common(set, other, s->words) : 0;
            if (same <= most)
                continue;
            most = same;
            s->panels[0] = (int32_t)j;
        }
        if (most < CROSS_WIDE)
            continue;
        s->partner[i] = s->panels[0];
        s->partner[s->panels[0]] = (int32_t)i;
    }
}

/* Stars with columns in common become crosses of two rows anywhere: for the same products they copy
 * six panels instead of nine. */
static void rows_cross(const band_sets *s, unit_list *list)
{
    static const shape cross = {2, CROSS_WIDE};
    rows_match(s);
    for (int64_t i = 0; i < s->bands; i++) {
        const int32_t rows[2] = {(int32_t)i, s->partner[i]};
        uint64_t *set = s->bits + i * s->words;
        if (rows[1] < rows[0])
            continue;
        uint64_t *other = s->bits + rows[1] * s->words;
        for (int32_t n = sets_common(set, other, s->words) / CROSS_WIDE; n > 0; n--) {
            sets_take(set, other, s->words, CROSS_WIDE, s->panels);
            const sdd_unit unit = cross_unit(rows, s->panels, CROSS_WIDE);
            unit_add(&cross, &unit, CROSS_WIDE, list);
        }
    }
}

static void sets_fill(const bsk_layout_tables *t, int32_t high, panel_set *set, const band_sets *s)
{
    for (int64_t band = 0; band < s->bands; band++) {
        band_panels(t, band, high, set);
        memcpy(s->bits + band * s->words, set->bits, (size_t)s->words * sizeof *s->bits);
        s->partner[band] = -1;
    }
}

static bsk_status units_make(const bsk_host *host, const bsk_layout_tables *t, const choice *c,
                             unit_list *list)
{
    const bsk_allocator *allocator = &host->allocator;
    const int64_t cols = bski_ceil_div(t->cols, SDD_PANEL), most = 2 * c->units;
    band_sets s = {.bands = band_count(t, c->shape.high), .words = bski_ceil_div(cols, 64)};
    panel_set *set = bski_table_alloc(allocator, 1, sizeof *set);
    s.bits = bski_table_alloc(allocator, s.bands * s.words, sizeof *s.bits);
    s.partner = bski_table_alloc(allocator, s.bands, sizeof *s.partner);
    s.panels = bski_table_alloc(allocator, cols, sizeof *s.panels);
    /* crosses come in addition to stars, and are not more than these */
    list->units = bski_table_alloc(allocator, most, sizeof *list->units);
    list->cost = bski_table_alloc(allocator, most, sizeof *list->cost);
    const bool ok = set && s.bits && s.partner && s.panels && list->units && list->cost;
    if (ok) {
        sets_fill(t, c->shape.high, set, &s);
        if (c->shape.high == 1)
            rows_cross(&s, list);
    }
    for (int64_t band = 0; ok && band < s.bands; band++) {
        uint64_t *left = s.bits + band * s.words;
        const int32_t count = sets_common(left, left, s.words);
        memcpy(set->bits, left, (size_t)s.words * sizeof *left);
        sets_take(left, set->bits, s.words, count, s.panels);
        band_units(&c->shape, (int32_t)band, s.panels, count, list);
    }
    void *const temporary[] = {set, s.bits, s.partner, s.panels};
    for (size_t i = 0; i < sizeof temporary / sizeof *temporary; i++)
        bski_table_free(allocator, temporary[i]);
    return ok ? BSK_OK : host->fail(host->context, BSK_E_NOMEM, "cuda: no memory for units of sdd");
}

/* --- Plans --- */

typedef struct sdd_state {
    bski_sdd_plan plan;
    bsk_mem units;
    const kernel *kernel;
    int32_t stage_bytes;
} sdd_state;

static bsk_status state_fill(bski_cuda_device *device, bsk_prepared *prepared, const choice *c,
                             unit_list *list, sdd_state *state)
{
    const bsk_host *host = device->simt.host;
    const bsk_sdd_params *p = prepared->problem->params;
    const bsk_layout_tables *t = prepared->problem->layout;
    const int32_t blocks = device->simt.props.compute_units;
    bski_sdd_schedule schedule;
    TRY(units_make(host, t, c, list));
    if (list->count > blocks)
        TRY(units_order(host, t, &c->shape, blocks, list));
    int32_t most = 1;
    for (int32_t i = 0; i < list->count; i++)
        most = list->units[i].panels > most ? list->units[i].panels : most;
    state->stage_bytes = most * SDD_PANEL_BYTES;
    const bski_sdd_kernel form = {SDD_PANEL, SDD_PANEL, WARPS, ACCUMULATORS, state->stage_bytes};
    /* stars reread so much that the sweeps must stay together */
    state->plan.work.lead = c->shape.high == 1 && list->count > blocks;
    double cost = 0;
    for (int32_t i = 0; i < list->count; i++)
        cost += list->cost[i] / list->count;
    const int64_t slices = bski_sdd_slices(p, SDD_PANEL);
    bski_sdd_split split = bski_sdd_split_best(list->count, cost, slices, blocks);
    split.by_cost = c->shape.high == 2; /* stars live on their order */
    TRY(bski_sdd_schedule_make(host, list->cost, list->count, (int32_t)slices, blocks, &split,
                               &schedule));
    bsk_status status = bski_sdd_plan_make(device, prepared, &schedule, &form, &state->plan);
    bski_sdd_schedule_free(host, &schedule);
    TRY(status);
    return table_put(&device->simt, list->units, list->count, sizeof *list->units, &state->units);
}

bsk_status cuda_sdd_wgmma_prepare(void *device, bsk_prepared *prepared)
{
    bski_cuda_device *d = device;
    const bsk_host *host = d->simt.host;
    const bsk_sdd_params *p = prepared->problem->params;
    TRY(state_new(&d->simt, sizeof(sdd_state), prepared));
    sdd_state *state = prepared->state;
    state->kernel = &kernels[prepared->problem->dtype == BSK_F16][bski_sdd_along_n(p)];
    const choice c = choose(prepared->problem, d->simt.props.compute_units);
    unit_list list = {NULL, NULL, 0};
    bsk_status status = state_fill(d, prepared, &c, &list, state);
    bski_table_free(&host->allocator, list.units);
    bski_table_free(&host->allocator, list.cost);
    if (!status)
        status =
            bski_cuda_kernel(d, state->kernel->function, SDD_SHARED_BYTES, state->kernel->name);
    if (status)
        cuda_sdd_wgmma_release(device, prepared);
    return status;
}

bsk_status cuda_sdd_wgmma_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const sdd_state *state = prepared->state;
    sdd_wgmma_arg arg;
    if (!state->plan.blocks)
        return BSK_OK;
    memset(&arg, 0, sizeof arg);
    TRY(bski_sdd_arguments(&state->plan, prepared->problem, queue, args, arg.a, arg.b, &arg.work,
                           &arg.out));
    arg.units = bsk_mem_address(state->units);
    arg.stage_bytes = state->stage_bytes;
    void *arguments[] = {&arg};
    const bski_cuda_run run = {.function = state->kernel->function,
                               .name = state->kernel->name,
                               .grid = {(unsigned)state->plan.blocks, 1, 1},
                               .threads = THREADS,
                               .shared_bytes = state->plan.shared_bytes,
                               .arguments = arguments};
    return bski_cuda_launch(queue, &run);
}

void cuda_sdd_wgmma_release(void *device, bsk_prepared *prepared)
{
    bski_cuda_device *d = device;
    sdd_state *state = prepared->state;
    if (!state)
        return;
    bski_sdd_plan_free(d, &state->plan);
    table_drop(&d->simt, &state->units);
    state_free(&d->simt, prepared);
}
