/* sdd on Hopper by mma.sync and by FFMA, for small blocks: the choice of a shape and the lists of the
 * warps. */
#include <string.h>

#include <backends/cuda/sm90a/sdd_host.h>
#include <backends/cuda/sm90a/sdd_mma.h>
#include <common/checked.h>
#include <common/layout.h>

CUDA_FUNCTIONS(sdd_mma)
CUDA_FUNCTIONS(sdd_ffma)

/* --- Shapes --- */

typedef struct kernel {
    const void *function;
    const char *name;
} kernel;

typedef struct shape {
    int32_t cell;
    int32_t side;         /* of a tile, features */
    int32_t samples;      /* of a panel, of 16 bits */
    int32_t warps, slots; /* lists of a unit, and entries of a list */
    int32_t accumulators;
    bool pairs;
    bool lanes;           /* an entry is a lane's, and f32 exact */
    kernel kernels[3][2]; /* [bf16, f16, f32][features, samples contiguous] */
} shape;

#define DECLARE(id, cell, panels, samples, warps, slots)                                           \
    extern const char sdd_mma_##id##_bf16_nc[], sdd_mma_##id##_bf16_cn[];                          \
    extern const char sdd_mma_##id##_f16_nc[], sdd_mma_##id##_f16_cn[];                            \
    extern const char sdd_mma_##id##_tf32_nc[], sdd_mma_##id##_tf32_cn[];
SDD_MMA_SHAPES(DECLARE)
#undef DECLARE
extern const char sdd_ffma_f32[];

#define KERNEL(name)                                                                               \
    {                                                                                              \
        name, #name                                                                                \
    }
#define ROW(id, cell, panels, samples, warps, slots)                                               \
    {cell,                                                                                         \
     64 * (panels),                                                                                \
     samples,                                                                                      \
     warps,                                                                                        \
     slots,                                                                                        \
     (slots) * ((cell) == 8 ? 4 : (cell) * (cell) / 32),                                           \
     (cell) == 8,                                                                                  \
     false,                                                                                        \
     {{KERNEL(sdd_mma_##id##_bf16_nc), KERNEL(sdd_mma_##id##_bf16_cn)},                            \
      {KERNEL(sdd_mma_##id##_f16_nc), KERNEL(sdd_mma_##id##_f16_cn)},                              \
      {KERNEL(sdd_mma_##id##_tf32_nc), KERNEL(sdd_mma_##id##_tf32_cn)}}},
static const shape shapes[] = {
    SDD_MMA_SHAPES(ROW){.cell = SDD_FFMA_CELL,
                        .side = 64 * SDD_FFMA_PANELS,
                        .samples = SDD_FFMA_SAMPLES,
                        .warps = SDD_FFMA_WARPS,
                        .slots = 32,
                        .accumulators = SDD_FFMA_CELL * SDD_FFMA_CELL,
                        .lanes = true,
                        .kernels = {[2] = {KERNEL(sdd_ffma_f32)}}},
};
#undef ROW
#undef KERNEL
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Slices of a sweep in which thread blocks drift apart unless they wait for each other. Cells of 8 do
 * not need it: shared memory keeps them in step. */
enum { LONG_SWEEP = 256 };

/* FFMA: the largest side of blocks, and the fewest samples. What is left the portable kernels do as fast,
 * or faster. */
enum { FFMA_MOST = 16, FFMA_LEAST = 48 };

static int32_t stage_bytes(const shape *s)
{
    return s->side * 4 * s->samples;
}

/* Samples of a slice. */
static int32_t slice_samples(const shape *s, bsk_dtype dtype)
{
    return dtype == BSK_F32 ? s->samples / 2 : s->samples;
}

static sdd_mma_form form_of(const bsk_problem *problem)
{
    return bski_sdd_along_n(problem->params) ? SDD_MMA_CN
           : problem->dtype == BSK_F32       ? SDD_MMA_NC_F32
                                             : SDD_MMA_NC;
}

/* The largest cells that blocks are made of. */
static int32_t cell_of(const bsk_layout_tables *t)
{
    const int32_t sides = t->block_rows | t->block_cols;
    return sides % 32 == 0 ? 32 : sides % 16 == 0 ? 16 : 8;
}

/* Cycles of a slice of a unit with so many entries: copies from the L2 cache, or accesses to shared
 * memory, which copies fill and from which each entry's operands are read for every 16 samples. */
static double slice_cycles(const shape *s, double entries)
{
    if (s->lanes) {
        const double warps = entries / 32 > 4 ? entries / 32 : 4, lost = 1.65;
        return lost * warps / 4 * (s->samples / 2.0) * s->accumulators;
    }
    const double copy_rate = 38, shared_rate = 128 * 0.75;
    const double read = s->cell == 8 ? 480 : s->cell == 16 ? 550 : 1800;
    const double copies = stage_bytes(s) / copy_rate;
    const double accesses = (entries * read * (s->samples / 16.0) + stage_bytes(s)) / shared_rate;
    return copies > accesses ? copies : accesses;
}

typedef struct choice {
    const shape *shape;
    double cycles;
} choice;

/* Two blocks share rows where large tiles with short lists are one round: in more rounds they wait
 * for each other more than that saves. */
static int32_t cluster_size(const shape *s, const bsk_layout_tables *t, int32_t compute_units)
{
    enum { SIDE = 512 };
    const int64_t tiles = bski_ceil_div(t->rows, s->side) * bski_ceil_div(t->cols, s->side);
    return s->cell >= 16 && s->side == SIDE && tiles > 1 && tiles <= compute_units ? 2 : 1;
}

/* From the mean density: the units of the real lists are counted when they are made. */
static choice choose(const bsk_problem *problem, int32_t blocks)
{
    const bsk_sdd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const int32_t cell = cell_of(t);
    const double area = (double)t->rows * (double)t->cols;
    const double kept = (double)t->nnz * t->block_rows * t->block_cols;
    /* of what it takes with features contiguous, in 16 bits; cells of 32, which other entries take, too */
    const sdd_mma_form form = form_of(problem);
    const double slower = form == SDD_MMA_NC_F32             ? 1.12
                          : form == SDD_MMA_CN && cell == 32 ? 1.06
                                                             : 1;
    const bool lanes = problem->dtype == BSK_F32 && p->precision != BSK_PRECISION_TF32;
    choice best = {.cycles = 1e30};
    for (int32_t i = 0; i < SHAPES; i++) {
        const shape *s = &shapes[i];
        if (s->lanes != lanes || (!lanes && s->cell != cell))
            continue;
        const int64_t tiles = bski_ceil_div(t->rows, s->side) * bski_ceil_div(t->cols, s->side);
        const double share = area > 0 ? kept / area : 0;
        const double cells = share * s->side / s->cell * s->side / s->cell;
        /* half of the columns of a tile have an odd number of cells */
        const double odd = s->side / cell / 4.0 < cells / 2 ? s->side / cell / 4.0 : cells / 2;
        const double entries = s->pairs ? cells / 2 + odd : cells;
        const double fill = entries / (s->warps * s->slots);
        const int64_t each = fill > 1 ? (int64_t)fill + 1 : 1;
        /* of what cells of 32 take in blocks that share nothing */
        const double shared = cell == 32 && cluster_size(s, t, blocks) > 1 ? 0.91 : 1;
        const double cycles =
            slower * shared *
            bski_sdd_estimate(tiles * each, slice_cycles(s, entries / (double)each),
                              bski_sdd_slices(p, slice_samples(s, problem->dtype)), blocks, 0);
        if (cycles < best.cycles)
            best = (choice){s, cycles};
    }
    return best;
}

bsk_reason cuda_sdd_mma_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_reason reason = bski_sdd_refusal(problem, false);
    (void)props;
    if (reason)
        return reason;
    return problem->layout->nnz > INT32_MAX / 64 ? BSK_REFUSE_LIMIT : BSK_ACCEPT;
}

bsk_reason cuda_sdd_ffma_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_sdd_params *p = problem->params;
    const bsk_reason reason = bski_sdd_refusal(problem, true);
    (void)props;
    if (reason)
        return reason;
    if (bski_sdd_along_n(p))
        return BSK_REFUSE_STRIDE;
    if (cell_of(problem->layout) > FFMA_MOST)
        return BSK_REFUSE_BLOCK;
    if (p->a.dims[1] * p->pairs < FFMA_LEAST)
        return BSK_REFUSE_SHAPE;
    return problem->layout->nnz > INT32_MAX / 64 ? BSK_REFUSE_LIMIT : BSK_ACCEPT;
}

double cuda_sdd_mma_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    static const double hertz = 1.7e9, launch = 4e-6;
    return choose(problem, props->compute_units).cycles / hertz + launch;
}

double cuda_sdd_ffma_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    return cuda_sdd_mma_seconds(problem, props);
}

/* --- Lists --- */

/* The cells of a tile, in the order of the lists. */
typedef struct entry {
    uint32_t bits;
    int32_t row, col; /* of a pair: the column alone */
} entry;

typedef struct unit_list {
    int32_t *corners;
    uint32_t *heads, *entries;
    double *cost;
    int32_t count, capacity;
} unit_list;

typedef struct maker {
    const shape *shape;
    const bsk_layout_tables *layout;
    const bsk_host *host;
    uint8_t *kept; /* of the tile's cells: [row][col] */
    entry *entries;
    int32_t count;
    int32_t cluster; /* thread blocks that share rows */
    sdd_mma_form form;
    unit_list list;
} maker;

static uint32_t field_of(const maker *m, int32_t cell)
{
    const uint32_t eighth = (uint32_t)(cell * m->shape->cell / 8);
    return sdd_mma_field(m->form, m->shape->samples, eighth);
}

static void entry_add(maker *m, int32_t row, int32_t second, int32_t col)
{
    const int shift = sdd_mma_second(m->form, m->shape->samples);
    const bool pairs = m->shape->pairs;
    uint32_t bits = field_of(m, row) | field_of(m, col) << SDD_MMA_B;
    if (pairs)
        bits |= field_of(m, second) << shift;
    m->entries[m->count++] = (entry){bits, pairs ? -1 : row, col};
}

/* Marks the tile's kept cells; false if there are none. */
static bool tile_mark(maker *m, int64_t row0, int64_t col0)
{
    const bsk_layout_tables *t = m->layout;
    const int32_t cell = m->shape->cell, side = m->shape->side, cells = side / cell;
    bool any = false;
    memset(m->kept, 0, (size_t)cells * (size_t)cells);
    for (int64_t row = row0 / t->block_rows;
         row < t->grid_rows && row * t->block_rows < row0 + side; row++)
        for (int64_t e = t->row_start[row]; e < t->row_start[row + 1]; e++) {
            const int64_t top = row * t->block_rows, left = (int64_t)t->row_col[e] * t->block_cols;
            if (left >= col0 + side || left + t->block_cols <= col0)
                continue;
            for (int64_t y = top; y < top + t->block_rows && y < t->rows; y += cell)
                for (int64_t x = left; x < left + t->block_cols && x < t->cols; x += cell)
                    if (y >= row0 && y < row0 + side && x >= col0 && x < col0 + side) {
                        m->kept[(y - row0) / cell * cells + (x - col0) / cell] = 1;
                        any = true;
                    }
        }
    return any;
}

/* A walk over the kept cells of a tile: as sets, the columns of each row and the rows of each column,
 * and the rows that are left. */
enum { MAX_WALK = 32 };
typedef struct walk {
    uint32_t rows[MAX_WALK], cols[MAX_WALK], left;
} walk;

static walk walk_start(const maker *m)
{
    const int32_t side = m->shape->side / m->shape->cell;
    walk w = {.left = 0};
    for (int32_t row = 0; row < side; row++)
        for (int32_t col = 0; col < side; col++)
            if (m->kept[row * side + col]) {
                w.rows[row] |= UINT32_C(1) << col;
                w.cols[col] |= UINT32_C(1) << row;
                w.left |= UINT32_C(1) << row;
            }
    return w;
}

/* The row of a set from which the fewest ways lead on: others can still be left later. */
static int32_t walk_row(const walk *w, uint32_t among)
{
    int32_t best = -1, least = INT32_MAX;
    for (; among; among &= among - 1) {
        const int32_t row = __builtin_ctz(among);
        int32_t ways = 0;
        for (uint32_t cols = w->rows[row]; cols; cols &= cols - 1)
            ways += __builtin_popcount(w->cols[__builtin_ctz(cols)] & w->left);
        if (ways < least) {
            least = ways;
            best = row;
        }
    }
    return best;
}

/* The column of a set that fewest rows have that are left; -1: none has. */
static int32_t walk_col(const walk *w, uint32_t among)
{
    int32_t best = -1, least = INT32_MAX;
    for (; among; among &= among - 1) {
        const int32_t col = __builtin_ctz(among);
        const int32_t ways = __builtin_popcount(w->cols[col] & w->left);
        if (ways && ways < least) {
            least = ways;
            best = col;
        }
    }
    return best;
}

/* Row after row, and where possible the last cell of one is in the column of the first of the next:
 * so most entries need one operand anew, and not both. */
static void walk_entries(maker *m)
{
    walk w = walk_start(m);
    int32_t col = -1;
    while (w.left) {
        const int32_t row = walk_row(&w, col < 0 ? w.left : w.cols[col] & w.left);
        uint32_t rest = w.rows[row];
        w.left &= ~(UINT32_C(1) << row);
        if (col >= 0) {
            entry_add(m, row, row, col);
            rest &= ~(UINT32_C(1) << col);
        }
        col = walk_col(&w, rest ? rest : w.rows[row]);
        const uint32_t last = col < 0 ? 0 : rest & UINT32_C(1) << col;
        for (uint32_t cols = rest & ~last; cols; cols &= cols - 1)
            entry_add(m, row, row, __builtin_ctz(cols));
        if (last)
            entry_add(m, row, row, col);
    }
}

/* Two cells of a column each, or one that is left. */
static void pairs_entries(maker *m)
{
    const int32_t side = m->shape->side / m->shape->cell;
    for (int32_t col = 0; col < side; col++) {
        int32_t first = -1;
        for (int32_t row = 0; row < side; row++) {
            if (!m->kept[row * side + col])
                continue;
            if (first >= 0)
                entry_add(m, first, row, col);
            first = first >= 0 ? -1 : row;
        }
        if (first >= 0)
            entry_add(m, first, first, col);
    }
}

/* A cell each. Number i of them has a column whose number is i % 4 of four, as long as there are such: of
 * eight neighbours, which are of one row or of rows next to each other, no two then meet at a bank
 * (SDD_FFMA_CELL). */
static void lanes_entries(maker *m)
{
    enum { CLASSES = 4 };
    const int32_t side = m->shape->side / m->shape->cell, cells = side * side;
    int32_t at[CLASSES], left = 0;
    for (int32_t i = 0; i < CLASSES; i++)
        at[i] = i;
    for (int32_t i = 0; i < cells; i++)
        left += m->kept[i];
    for (int32_t turn = 0; left; turn++) {
        int32_t *next = &at[turn % CLASSES];
        while (*next < cells && !m->kept[*next])
            *next += CLASSES;
        if (*next >= cells)
            continue;
        entry_add(m, *next / side, *next / side, *next % side);
        *next += CLASSES;
        left--;
    }
}

static bool list_grow(maker *m)
{
    const bsk_allocator *allocator = &m->host->allocator;
    const shape *s = m->shape;
    unit_list *l = &m->list;
    if (l->count < l->capacity)
        return true;
    const int64_t capacity = l->capacity ? 2 * (int64_t)l->capacity : 64;
    const size_t unit[] = {2 * sizeof *l->corners, (size_t)s->warps * sizeof *l->heads,
                           (size_t)(s->warps * s->slots) * sizeof *l->entries, sizeof *l->cost};
    void **const arrays[] = {(void **)&l->corners, (void **)&l->heads, (void **)&l->entries,
                             (void **)&l->cost};
    for (int i = 0; i < 4; i++) {
        size_t bytes;
        if (!bski_mul_size((size_t)capacity, unit[i], &bytes))
            return false;
        void *grown = allocator->resize(allocator->user, *arrays[i], bytes);
        if (!grown)
            return false;
        *arrays[i] = grown;
    }
    l->capacity = (int32_t)capacity;
    return true;
}

/* Which operands an entry has in common with the one before. */
static uint32_t kept_bits(const entry *e, bool pairs)
{
    const uint32_t row = e->row == e[-1].row, col = e->col == e[-1].col;
    return pairs ? col : row | col << SDD_MMA_KEPT_B;
}

/* A unit more for the cluster of the last, without entries, so that all blocks of it have one.
 * Costs are those of the clusters. */
static bool list_even(maker *m)
{
    const shape *s = m->shape;
    unit_list *l = &m->list;
    if (m->cluster == 1)
        return true;
    if (l->count % 2) {
        const size_t entries = (size_t)(s->warps * s->slots);
        if (!list_grow(m))
            return false;
        memset(l->heads + (size_t)(l->count * s->warps), 0, (size_t)s->warps * sizeof *l->heads);
        memset(l->entries + (size_t)l->count * entries, 0, entries * sizeof *l->entries);
        memcpy(l->corners + 2 * l->count, l->corners + 2 * l->count - 2, 2 * sizeof *l->corners);
        l->cost[l->count++] = 0;
    }
    for (int32_t i = 0; i < l->count / 2; i++)
        l->cost[i] = l->cost[2 * i] > l->cost[2 * i + 1] ? l->cost[2 * i] : l->cost[2 * i + 1];
    return true;
}

/* Entries first .. first + count - 1 as one unit, dealt evenly to the owners. */
static void unit_add(maker *m, int64_t row0, int64_t col0, int32_t first, int32_t count)
{
    const shape *s = m->shape;
    unit_list *l = &m->list;
    uint32_t *heads = l->heads + (size_t)l->count * (size_t)s->warps;
    uint32_t *entries = l->entries + (size_t)l->count * (size_t)(s->warps * s->slots);
    memset(entries, 0, (size_t)(s->warps * s->slots) * sizeof *entries);
    const entry *from = m->entries + first;
    for (int32_t w = 0; w < s->warps; w++) {
        const int32_t even = count / s->warps + (w < count % s->warps), rest = count - w * s->slots;
        const int32_t own = !s->lanes ? even : rest < 0 ? 0 : rest < s->slots ? rest : s->slots;
        heads[w] = (uint32_t)own << 16;
        for (int32_t i = 0; i < own; i++, from++) {
            entries[w * s->slots + i] = from->bits;
            if (i && !s->lanes)
                heads[w] |= kept_bits(from, s->pairs) << i;
        }
    }
    l->corners[2 * l->count] = (int32_t)row0;
    l->corners[2 * l->count + 1] = (int32_t)col0;
    l->cost[l->count++] = slice_cycles(s, count);
}

static void tile_entries(maker *m)
{
    m->count = 0;
    if (m->shape->lanes)
        lanes_entries(m);
    else if (m->shape->pairs)
        pairs_entries(m);
    else
        walk_entries(m);
}

/* A unit that is alone in its row of a strip. */
typedef struct odd_unit {
    int64_t row0, col0;
    int32_t first, count;
} odd_unit;

/* The units of a tile; the last is told. */
static bool tile_add(maker *m, int64_t row0, int64_t col0, odd_unit *last)
{
    const int32_t most = m->shape->warps * m->shape->slots;
    if (!tile_mark(m, row0, col0))
        return true;
    tile_entries(m);
    const int32_t units = (int32_t)bski_ceil_div(m->count, most);
    for (int32_t u = 0, first = 0; u < units; u++) {
        const int32_t count = m->count / units + (u < m->count % units);
        if (!list_grow(m))
            return false;
        unit_add(m, row0, col0, first, count);
        *last = (odd_unit){row0, col0, first, count};
        first += count;
    }
    return true;
}

/* Tiles in strips of columns, so that those that run together share operands. Of clusters, units
 * that follow each other have the same rows, but for those at the end, of which each was left of a
 * row of a strip. */
static bool tiles_add(maker *m)
{
    enum { STRIP = 8 }; /* tiles */
    const int32_t side = m->shape->side;
    const bsk_allocator *allocator = &m->host->allocator;
    const int64_t across = bski_ceil_div(m->layout->cols, side);
    const int64_t down = bski_ceil_div(m->layout->rows, side);
    odd_unit *odd = bski_table_alloc(allocator, down * bski_ceil_div(across, STRIP), sizeof *odd);
    int64_t odds = 0;
    bool ok = odd != NULL;
    for (int64_t strip = 0; strip < across; strip += STRIP)
        for (int64_t i = 0; i < down; i++) {
            for (int64_t j = strip; j < strip + STRIP && j < across && ok; j++)
                ok = tile_add(m, i * side, j * side, &odd[odds]);
            if (!ok || m->list.count % m->cluster == 0)
                continue;
            odds++;
            m->list.count--;
        }
    for (int64_t i = 0; i < odds && ok; i++) {
        tile_mark(m, odd[i].row0, odd[i].col0);
        tile_entries(m);
        ok = list_grow(m);
        if (ok)
            unit_add(m, odd[i].row0, odd[i].col0, odd[i].first, odd[i].count);
    }
    bski_table_free(allocator, odd);
    return ok;
}

/* --- Plans --- */

typedef struct sdd_state {
    bski_sdd_plan plan;
    bsk_mem corners, heads, entries;
    const kernel *kernel;
    int32_t threads, cluster;
} sdd_state;

static bsk_status lists_put(simt_device *d, const shape *s, const unit_list *l, sdd_state *state)
{
    const int64_t units = l->count, owners = units * s->warps;
    TRY(table_put(d, l->corners, units * 2, sizeof *l->corners, &state->corners));
    TRY(table_put(d, l->heads, owners, sizeof *l->heads, &state->heads));
    return table_put(d, l->entries, owners * s->slots, sizeof *l->entries, &state->entries);
}

static bsk_status state_fill(bski_cuda_device *device, bsk_prepared *prepared, maker *m,
                             sdd_state *state)
{
    const bsk_host *host = device->simt.host;
    const bsk_sdd_params *p = prepared->problem->params;
    const shape *s = m->shape;
    const int32_t blocks = device->simt.props.compute_units / m->cluster;
    const int64_t cells = (int64_t)(s->side / s->cell) * (s->side / s->cell);
    const int32_t samples = slice_samples(s, prepared->problem->dtype);
    const int64_t slices = bski_sdd_slices(p, samples);
    const int32_t features = m->form == SDD_MMA_NC_F32 ? SDD_PANEL / 2 : SDD_PANEL;
    const bski_sdd_kernel form = {.features = features,
                                  .samples = samples,
                                  .warps = s->warps * m->cluster,
                                  .accumulators = s->accumulators,
                                  .stage_bytes = stage_bytes(s),
                                  .exact = s->lanes};
    bski_sdd_schedule schedule;
    m->kept = bski_table_alloc(&host->allocator, cells, sizeof *m->kept);
    m->entries = bski_table_alloc(&host->allocator, cells, sizeof *m->entries);
    if (!m->kept || !m->entries || !tiles_add(m) || !list_even(m))
        return host->fail(host->context, BSK_E_NOMEM, "cuda: no memory for the lists of sdd");
    const bski_sdd_deal deal = {.tails = 1};
    const int32_t count = m->list.count / m->cluster;
    TRY(bski_sdd_schedule_make(host, m->list.cost, count, (int32_t)slices, blocks, &deal,
                               &schedule));
    state->plan.work.lead = s->cell >= 16 && slices >= LONG_SWEEP && count > blocks;
    bsk_status status = bski_sdd_plan_make(device, prepared, &schedule, &form, &state->plan);
    bski_sdd_schedule_free(host, &schedule);
    return status ? status : lists_put(&device->simt, s, &m->list, state);
}

void cuda_sdd_mma_release(void *device, bsk_prepared *prepared)
{
    bski_cuda_device *d = device;
    sdd_state *state = prepared->state;
    if (!state)
        return;
    bsk_mem *const tables[] = {&state->corners, &state->heads, &state->entries};
    bski_sdd_plan_free(d, &state->plan);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        table_drop(&d->simt, tables[i]);
    state_free(&d->simt, prepared);
}

bsk_status cuda_sdd_mma_prepare(void *device, bsk_prepared *prepared)
{
    bski_cuda_device *d = device;
    const bsk_host *host = d->simt.host;
    const bsk_allocator *allocator = &host->allocator;
    const choice c = choose(prepared->problem, d->simt.props.compute_units);
    TRY(state_new(&d->simt, sizeof(sdd_state), prepared));
    sdd_state *state = prepared->state;
    maker m = {.shape = c.shape,
               .layout = prepared->problem->layout,
               .host = host,
               .form = form_of(prepared->problem)};
    m.cluster = cluster_size(c.shape, m.layout, d->simt.props.compute_units);
    state->cluster = m.cluster;
    const bsk_dtype dtype = prepared->problem->dtype;
    const int type = dtype == BSK_BF16 ? 0 : dtype == BSK_F16 ? 1 : 2;
    state->kernel = &c.shape->kernels[type][m.form == SDD_MMA_CN];
    state->threads = c.shape->warps * 32 + 128;
    bsk_status status = state_fill(d, prepared, &m, state);
    void *const temporary[] = {m.kept,       m.entries,      m.list.corners,
                               m.list.heads, m.list.entries, m.list.cost};
    for (size_t i = 0; i < sizeof temporary / sizeof *temporary; i++)
        bski_table_free(allocator, temporary[i]);
    if (!status)
        status =
            bski_cuda_kernel(d, state->kernel->function, SDD_SHARED_BYTES, state->kernel->name);
    if (status)
        cuda_sdd_mma_release(device, prepared);
    return status;
}

bsk_status cuda_sdd_mma_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const sdd_state *state = prepared->state;
    sdd_mma_arg arg;
    if (!state->plan.blocks)
        return BSK_OK;
    memset(&arg, 0, sizeof arg);
    TRY(bski_sdd_arguments(&state->plan, prepared->problem, queue, args, arg.a, arg.b, &arg.work,
                           &arg.out));
    arg.cluster = state->cluster;
    arg.corners = bsk_mem_address(state->corners);
    arg.heads = bsk_mem_address(state->heads);
    arg.entries = bsk_mem_address(state->entries);
    void *arguments[] = {&arg};
    const bski_cuda_run run = {.function = state->kernel->function,
                               .name = state->kernel->name,
                               .grid = {(unsigned)(state->plan.blocks * state->cluster), 1, 1},
                               .threads = (unsigned)state->threads,
                               .cluster = (unsigned)state->cluster,
                               .shared_bytes = state->plan.shared_bytes,
                               .arguments = arguments,
                               .early = true};
    return bski_cuda_launch(queue, &run);
}

bsk_status cuda_sdd_ffma_prepare(void *device, bsk_prepared *prepared)
{
    return cuda_sdd_mma_prepare(device, prepared);
}

bsk_status cuda_sdd_ffma_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    return cuda_sdd_mma_launch(prepared, queue, args);
}

void cuda_sdd_ffma_release(void *device, bsk_prepared *prepared)
{
    cuda_sdd_mma_release(device, prepared);
}
