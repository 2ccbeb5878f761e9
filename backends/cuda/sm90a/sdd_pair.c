/* sdd on Hopper by wgmma on pairs: the products that cover the kept cells of a tile, the tiles, and
 * the choice of a shape. */
#include <string.h>

#include <backends/cuda/sm90a/sdd_host.h>
#include <backends/cuda/sm90a/sdd_pair.h>
#include <common/checked.h>
#include <common/layout.h>

CUDA_FUNCTIONS(sdd_pair)

/* Columns of cells of a matrix at most: those of a strip lie on the stack. */
enum { CELL = SDD_PAIR_CELL, CLUSTER = SDD_PAIR_CLUSTER, MAX_COLS = 1 << 14 };
enum { MOST = SDD_PAIR_GROUPS * SDD_PAIR_SLOTS, WARPS = 4 * SDD_PAIR_GROUPS };
enum { ACCUMULATORS = 32 * SDD_PAIR_SLOTS, THREADS = 32 * WARPS + 128 };
/* Of a unit of the last round at most. */
enum { LAST_PARTS = 5 };

typedef struct kernel {
    const void *function;
    const char *name;
} kernel;

typedef struct shape {
    int32_t high, wide, samples;
    bool along_n, f32;
    kernel kernels[2]; /* bf16, f16; of f32 one */
} shape;

#define DECLARE(id, high, wide, samples, along_n)                                                  \
    extern const char sdd_pair_##id##_bf16[], sdd_pair_##id##_f16[];
SDD_PAIR_SHAPES(DECLARE)
#undef DECLARE
#define DECLARE(id, high, wide, samples, along_n) extern const char sdd_pair_##id##_tf32[];
SDD_PAIR_SHAPES_F32(DECLARE)
#undef DECLARE
#define KERNEL(name)                                                                               \
    {                                                                                              \
        name, #name                                                                                \
    }
#define ROW(id, high, wide, samples, along_n)                                                      \
    {high,    wide,  samples,                                                                      \
     along_n, false, {KERNEL(sdd_pair_##id##_bf16), KERNEL(sdd_pair_##id##_f16)}},
#define ROW_F32(id, high, wide, samples, along_n)                                                  \
    {high, wide, samples, along_n, true, {KERNEL(sdd_pair_##id##_tf32)}},
/* Samples contiguous: narrower tiles too, by the same kernel, of which four stages fit. */
static const shape shapes[] = {SDD_PAIR_SHAPES(ROW) ROW(along_n, 16, 10, 32, 1)
                                   SDD_PAIR_SHAPES_F32(ROW_F32) ROW_F32(along_n, 16, 10, 16, 1)};
#undef ROW_F32
#undef ROW
#undef KERNEL
enum { SHAPES = sizeof shapes / sizeof *shapes };

static int32_t row_bytes(const shape *s)
{
    return s->samples * (s->f32 ? 4 : 2);
}

static int32_t stage_bytes(const shape *s, int32_t wide)
{
    return (s->high + wide) * CELL * row_bytes(s);
}

/* Cycles of a slice of a unit: copies from the L2 cache, or accesses to shared memory, which copies
 * fill and from which a product reads 4 KB for every 32 bytes of rows; samples contiguous, also those
 * of the products of a warpgroup, of which each waits for the one before. */
static double slice_cycles(const shape *s, int32_t wide, int32_t products)
{
    const double copy_rate = 31, shared_rate = 128 * 0.86, panel = CELL * (double)row_bytes(s);
    const double wait = s->along_n ? 170 : 0, steps = row_bytes(s) / 32.0;
    const double copies = ((double)s->high / CLUSTER + wide) * panel / copy_rate;
    const double accesses = (products * 4096 * steps + stage_bytes(s, wide)) / shared_rate;
    const double waits = (double)bski_ceil_div(products, SDD_PAIR_GROUPS) * steps * wait;
    const double most = copies > accesses ? copies : accesses;
    return most > waits ? most : waits;
}

/* --- Products --- */

/* The products of a tile. */
typedef struct cover {
    uint32_t product[16 * 16 / 2];
    int32_t count;
} cover;

/* Two cells or more as a product, and takes them out of the columns' sets of rows. kept: a bit for
 * each of first row x first column, first x second, second x first, second x second. */
static void cover_add(cover *c, int32_t row, int32_t row_next, int32_t col, int32_t col_next,
                      uint32_t kept)
{
    c->product[c->count++] = (uint32_t)(row | row_next << 4) |
                             (uint32_t)(col | col_next << 4) << SDD_PAIR_COL |
                             kept << SDD_PAIR_KEPT;
}

static int32_t lowest(uint32_t set)
{
    return __builtin_ctz(set);
}

/* Products of two columns with all four cells, or with three: with one row in common and one that
 * only either has. */
static void cover_columns(cover *c, uint32_t *rows, int32_t col, int32_t next, bool whole)
{
    uint32_t *const a = rows + col, *const b = rows + next;
    for (;;) {
        const uint32_t both = *a & *b, rest = whole ? both & (both - 1) : *a ^ *b;
        if (!both || !rest)
            return;
        const uint32_t bits = (both & -both) | (rest & -rest);
        const int32_t row = lowest(bits), row_next = lowest(bits & (bits - 1));
        cover_add(c, row, row_next, col, next,
                  (*a >> row & 1) | (*b >> row & 1) << 1 | (*a >> row_next & 1) << 2 |
                      (*b >> row_next & 1) << 3);
        *a &= ~bits;
        *b &= ~bits;
    }
}

/* What is left, cell by cell: any two make a product. */
static void cover_rest(cover *c, const uint32_t *rows, int32_t wide)
{
    int32_t row = -1, col = 0;
    for (int32_t next = 0; next < wide; next++)
        for (uint32_t left = rows[next]; left; left &= left - 1) {
            const int32_t other = lowest(left);
            if (row < 0) {
                row = other;
                col = next;
                continue;
            }
            const bool turned = other < row;
            const int32_t first = turned ? other : row, second = turned ? row : other;
            const uint32_t at = UINT32_C(1) << 2 * (turned), to = UINT32_C(1) << 2 * !turned;
            cover_add(c, first, second, col, next, at | to << (next > col));
            row = -1;
        }
    if (row >= 0)
        cover_add(c, row, row, col, col, 1);
}

/* Covers the kept cells of a tile, of which each column has a set of rows. turn: the first column
 * that is looked at. */
static void cover_turned(const uint16_t *kept, int32_t wide, int32_t turn, cover *c)
{
    uint32_t rows[16];
    c->count = 0;
    for (int32_t i = 0; i < wide; i++)
        rows[i] = kept[i];
    for (int whole = 1; whole >= 0; whole--)
        for (int32_t i = 0; i < wide; i++)
            for (int32_t j = i + 1; j < wide; j++) {
                const int32_t a = (i + turn) % wide, b = (j + turn) % wide;
                cover_columns(c, rows, a < b ? a : b, a < b ? b : a, whole);
            }
    cover_rest(c, rows, wide);
}

/* Whether so many products at most are found that cover a tile: what is taken first decides. */
static bool cover_make(const uint16_t *kept, int32_t wide, int32_t most, cover *c)
{
    enum { TURNS = 4 };
    for (int32_t turn = 0; turn < wide && turn < TURNS; turn++) {
        cover_turned(kept, wide, turn, c);
        if (c->count <= most)
            return true;
    }
    return false;
}

/* --- Tiles --- */

/* Of the rows of cells from `first` on, which each column has. */
static void strip_mark(const bsk_layout_tables *t, int64_t first, int32_t high, uint16_t *kept)
{
    const int64_t down = t->block_rows / CELL, across = t->block_cols / CELL;
    const int64_t rows = bski_ceil_div(t->rows, CELL), cols = bski_ceil_div(t->cols, CELL);
    const int64_t end = first + high < rows ? first + high : rows;
    memset(kept, 0, (size_t)cols * sizeof *kept);
    for (int64_t row = first; row < end; row++)
        for (int64_t e = t->row_start[row / down]; e < t->row_start[row / down + 1]; e++) {
            const int64_t left = (int64_t)t->row_col[e] * across;
            for (int64_t i = left; i < left + across && i < cols; i++)
                kept[i] |= (uint16_t)(1u << (row - first));
        }
}

/* The widest tile from a column of a strip on with so many products at most. */
static int32_t tile_cover(const uint16_t *kept, int32_t wide, int32_t most, cover *c)
{
    cover next;
    int32_t count = 1;
    for (cover_make(kept, 1, most, c); count < wide; count++) {
        if (!cover_make(kept, count + 1, most, &next))
            break;
        *c = next;
    }
    return count;
}

/* The next tile of a strip from *col on; its columns, 0 if there is none. */
static int32_t tile_next(const uint16_t *kept, int64_t cols, int32_t wide, int32_t most,
                         int64_t *col, cover *c)
{
    while (*col < cols && !kept[*col])
        ++*col;
    const int64_t left = cols - *col;
    return left ? tile_cover(kept + *col, left < wide ? (int32_t)left : wide, most, c) : 0;
}

/* Two units each, so many clusters a strip takes. */
static int64_t strip_twos(const uint16_t *kept, int64_t cols, int32_t wide, int32_t most)
{
    int64_t units = 0, col = 0;
    cover c;
    for (int32_t own; (own = tile_next(kept, cols, wide, most, &col, &c)) > 0; col += own)
        units++;
    return bski_ceil_div(units, CLUSTER);
}

/* With how few products of each unit a strip takes no more clusters: so these have equal work. */
static int32_t strip_most(const uint16_t *kept, int64_t cols, int32_t wide, int32_t most)
{
    enum { COLUMN = 8 }; /* products of one column */
    const int64_t twos = strip_twos(kept, cols, wide, most);
    while (most > COLUMN && strip_twos(kept, cols, wide, most - 1) <= twos)
        most--;
    return most;
}

typedef struct unit_list {
    int32_t *tiles; /* [units][4] */
    uint32_t *products;
    double *cost;  /* of two units that run together */
    int32_t count; /* of such twos */
} unit_list;

static void unit_put(const cover *c, const int32_t *tile, int64_t at, unit_list *list)
{
    uint32_t *products = list->products + at * MOST;
    memcpy(list->tiles + 4 * at, tile, 4 * sizeof *tile);
    memset(products, 0, MOST * sizeof *products);
    for (int32_t g = 0, i = 0; g < SDD_PAIR_GROUPS; g++) {
        const int32_t own = c->count / SDD_PAIR_GROUPS + (g < c->count % SDD_PAIR_GROUPS);
        for (int32_t j = 0; j < own; j++)
            products[g * SDD_PAIR_SLOTS + j] = c->product[i++];
    }
}

/* What has been made so far. */
typedef struct progress {
    const shape *shape;
    unit_list *list; /* NULL: units are only counted */
    int64_t count;   /* of twos */
    int32_t rank;    /* units of the next two */
    double next;     /* cycles of a slice of these, */
    double cycles;   /* and of all before */
    double longest;  /* of any */
    int32_t wide;    /* of the widest tile */
} progress;

static void unit_add(progress *p, const cover *c, int64_t row, int64_t col, int32_t wide)
{
    const int32_t tile[4] = {(int32_t)row * CELL, (int32_t)col * CELL, wide, 0};
    const double cost = slice_cycles(p->shape, wide, c->count);
    if (p->list)
        unit_put(c, tile, p->count * CLUSTER + p->rank, p->list);
    p->next = p->rank && p->next > cost ? p->next : cost;
    p->wide = p->wide > wide ? p->wide : wide;
    if (++p->rank < CLUSTER)
        return;
    if (p->list)
        p->list->cost[p->count] = p->next;
    p->cycles += p->next;
    p->longest = p->longest > p->next ? p->longest : p->next;
    p->count++;
    p->rank = 0;
}

/* Units strip by strip, from left to right, in twos; the last of a strip may be alone. most:
 * products of a unit; list: NULL to count units. */
static progress units_make(const bsk_layout_tables *t, const shape *s, int32_t most,
                           unit_list *list)
{
    static const cover none = {.count = 0};
    const int64_t rows = bski_ceil_div(t->rows, CELL), cols = bski_ceil_div(t->cols, CELL);
    uint16_t kept[MAX_COLS];
    progress p = {.shape = s, .list = list};
    for (int64_t row = 0; row < rows; row += s->high) {
        int64_t col = 0;
        cover c;
        strip_mark(t, row, s->high, kept);
        const int32_t even = strip_most(kept, cols, s->wide, most);
        for (int32_t wide; (wide = tile_next(kept, cols, s->wide, even, &col, &c)) > 0; col += wide)
            unit_add(&p, &c, row, col, wide);
        if (p.rank)
            unit_add(&p, &none, row, cols, 0);
    }
    return p;
}

/* --- The choice of a shape --- */

typedef struct choice {
    const shape *shape;
    int32_t most; /* products of a unit */
    int32_t wide; /* columns of the widest tile */
    int64_t units;
    double cycles;
} choice;

/* Smaller units than there is room for may fill the last round of few better. */
static choice choose(const bsk_problem *problem, int32_t clusters)
{
    enum { LEAST = MOST - SDD_PAIR_GROUPS, FEW = 4 };
    const bool f32 = problem->dtype == BSK_F32;
    const bool along_n = f32 || bski_sdd_along_n(problem->params);
    choice best = {.cycles = 1e30};
    for (int32_t i = 0; i < SHAPES; i++) {
        if (shapes[i].along_n != along_n || shapes[i].f32 != f32)
            continue;
        for (int32_t most = MOST; most >= LEAST; most--) {
            const shape *s = &shapes[i];
            const progress p = units_make(problem->layout, s, most, NULL);
            const double cost = p.count > clusters ? p.cycles / (double)p.count : p.longest;
            const double cycles = bski_sdd_estimate(
                p.count, cost, bski_sdd_slices(problem->params, s->samples), clusters, LAST_PARTS);
            if (cycles < best.cycles)
                best = (choice){s, most, p.wide, p.count, cycles};
            if (p.count > FEW * (int64_t)clusters)
                break;
        }
    }
    return best;
}

bsk_reason cuda_sdd_pair_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_layout_tables *t = problem->layout;
    const bsk_reason reason = bski_sdd_refusal(problem, false);
    (void)props;
    if (reason)
        return reason;
    if (t->block_rows % CELL || t->block_cols % CELL)
        return BSK_REFUSE_BLOCK;
    return bski_ceil_div(t->cols, CELL) > MAX_COLS ? BSK_REFUSE_LIMIT : BSK_ACCEPT;
}

double cuda_sdd_pair_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    static const double hertz = 1.7e9, launch = 12e-6;
    return choose(problem, props->compute_units / CLUSTER).cycles / hertz + launch +
           bski_sdd_turn_seconds(problem, SDD_TURNS_BOTH);
}

/* --- Plans --- */

typedef struct sdd_state {
    bski_sdd_plan plan;
    bsk_mem tiles, products;
    const kernel *kernel;
    int32_t stage_bytes;
} sdd_state;

static bsk_status state_fill(bski_cuda_device *device, bsk_prepared *prepared, const choice *c,
                             unit_list *list, sdd_state *state)
{
    const bsk_host *host = device->simt.host;
    const shape *s = c->shape;
    const int64_t units = c->units * CLUSTER;
    state->stage_bytes = stage_bytes(s, c->wide);
    const int64_t slices = bski_sdd_slices(prepared->problem->params, s->samples);
    const bski_sdd_kernel form = {CELL,         s->samples,         WARPS * CLUSTER,
                                  ACCUMULATORS, state->stage_bytes, .turns = SDD_TURNS_BOTH};
    const bski_sdd_deal deal = {.tails = 1, .last_parts = LAST_PARTS};
    bski_sdd_schedule schedule;
    if (c->units > INT32_MAX / CLUSTER)
        return host->fail(host->context, BSK_E_UNSUPPORTED, "cuda: too many units of sdd");
    list->tiles = bski_table_alloc(&host->allocator, 4 * units, sizeof *list->tiles);
    list->products = bski_table_alloc(&host->allocator, MOST * units, sizeof *list->products);
    list->cost = bski_table_alloc(&host->allocator, c->units, sizeof *list->cost);
    if (!list->tiles || !list->products || !list->cost)
        return host->fail(host->context, BSK_E_NOMEM, "cuda: no memory for the lists of sdd");
    list->count = (int32_t)units_make(prepared->problem->layout, s, c->most, list).count;
    TRY(bski_sdd_schedule_make(host, list->cost, list->count, (int32_t)slices,
                               device->simt.props.compute_units / CLUSTER, &deal, &schedule));
    const bsk_status status = bski_sdd_plan_make(device, prepared, &schedule, &form, &state->plan);
    bski_sdd_schedule_free(host, &schedule);
    TRY(status);
    TRY(table_put(&device->simt, list->tiles, 4 * units, sizeof *list->tiles, &state->tiles));
    return table_put(&device->simt, list->products, MOST * units, sizeof *list->products,
                     &state->products);
}

bsk_status cuda_sdd_pair_prepare(void *device, bsk_prepared *prepared)
{
    bski_cuda_device *d = device;
    const bsk_allocator *allocator = &d->simt.host->allocator;
    const choice c = choose(prepared->problem, d->simt.props.compute_units / CLUSTER);
    TRY(state_new(&d->simt, sizeof(sdd_state), prepared));
    sdd_state *state = prepared->state;
    unit_list list = {0};
    state->kernel = &c.shape->kernels[prepared->problem->dtype == BSK_F16];
    bsk_status status = state_fill(d, prepared, &c, &list, state);
    bski_table_free(allocator, list.tiles);
    bski_table_free(allocator, list.products);
    bski_table_free(allocator, list.cost);
    if (!status)
        status =
            bski_cuda_kernel(d, state->kernel->function, SDD_SHARED_BYTES, state->kernel->name);
    if (status)
        cuda_sdd_pair_release(device, prepared);
    return status;
}

bsk_status cuda_sdd_pair_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const sdd_state *state = prepared->state;
    sdd_pair_arg arg;
    if (!state->plan.blocks)
        return BSK_OK;
    memset(&arg, 0, sizeof arg);
    TRY(bski_sdd_arguments(&state->plan, prepared->problem, queue, args, arg.a, arg.b, &arg.work,
                           &arg.out));
    arg.tiles = bsk_mem_address(state->tiles);
    arg.stage_bytes = state->stage_bytes;
    arg.products = bsk_mem_address(state->products);
    void *arguments[] = {&arg};
    const bski_cuda_run run = {.function = state->kernel->function,
                               .name = state->kernel->name,
                               .grid = {(unsigned)(state->plan.blocks * CLUSTER), 1, 1},
                               .cluster = CLUSTER,
                               .threads = THREADS,
                               .shared_bytes = state->plan.shared_bytes,
                               .arguments = arguments,
                               .early = true};
    return bski_cuda_launch(queue, &run);
}

void cuda_sdd_pair_release(void *device, bsk_prepared *prepared)
{
    bski_cuda_device *d = device;
    sdd_state *state = prepared->state;
    if (!state)
        return;
    bski_sdd_plan_free(d, &state->plan);
    table_drop(&d->simt, &state->tiles);
    table_drop(&d->simt, &state->products);
    state_free(&d->simt, prepared);
}
