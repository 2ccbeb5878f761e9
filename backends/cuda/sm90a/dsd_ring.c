/* Plans and launches dsd_sm90a_ring and dsd_sm90a_ring_tf32: small minibatches, blocks as they are. A
 * launch for each 64 samples, of which there may be three: weights then come from the L2 cache, if it
 * holds them, sooner than others pack them. One thread block a multiprocessor. Tiles are given to
 * groups: thread blocks, or clusters of two of them; the teams of a group, of one warp or of four,
 * share the steps of its tiles. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <backends/cuda/host.h>
#include <backends/cuda/sm90a/dsd_few_host.h>
#include <backends/cuda/sm90a/dsd_ring.h>
#include <common/checked.h>

CUDA_FUNCTIONS(sm90a_dsd_ring)

enum { MOST_SAMPLES = 3 * DSD_FEW_COLUMNS };

bsk_reason cuda_sm90a_dsd_ring_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_dsd_params *p = problem->params;
    (void)props;
    if (problem->dtype == BSK_F32 && p->precision != BSK_PRECISION_TF32)
        return BSK_REFUSE_OPTION;
    const bsk_reason reason = bski_dsd_few_refusal(problem, MOST_SAMPLES);
    if (reason)
        return reason;
    /* Runs of 16 bytes apart: dsd_narrow takes these of 16-bit types. */
    const dsd_few_shape s = bski_dsd_few_shape(problem);
    return s.along_k && s.tile == DSD_RUN && s.bytes == 2 ? BSK_REFUSE_BLOCK : BSK_ACCEPT;
}

enum { WIDE = 64 };

/* Whether tiles may be WIDE. With more than 32 samples these gain where b is contiguous along the
 * depth. There are no such kernels of f32. */
static bool may_widen(const dsd_few_shape *s)
{
    return s->bytes == 2 && s->block_i % WIDE == 0 && (s->columns < DSD_FEW_COLUMNS || s->along_k);
}

/* Of a launch with so many samples. */
static double launch_seconds(const bsk_problem *problem, const bsk_device_props *props,
                             int64_t samples)
{
    /* A launch and the chain of accesses of a thread block; bytes a second from memory; of 16-bit
     * types and of f32, a multiprocessor's time for a step, and what it takes more where lines of both
     * operands are shorter than 64 bytes; for each sample of lines of 64 bytes and of shorter ones, and
     * for each product; what wide tiles take more, and a multiprocessor's time for a step of one.
     * Measured. */
    static const double launch = 3.5e-6, memory = 4.2e12;
    static const double step[] = {30e-9, 20e-9}, short_lines[] = {20e-9, 10e-9};
    static const double sample = 0.75e-9, part = 1.6e-9, product = 0.4e-9 / 32, widen = 0.7e-6,
                        wide_step = 170e-9;
    enum { LINE_BYTES = 64, AT_ONCE = 8 /* what is alike takes longer than the longer one */ };
    const bsk_layout_tables *t = problem->layout;
    const dsd_few_shape s = bski_dsd_few_shape(problem);
    const double kept = (double)t->nnz * t->block_rows * t->block_cols;
    const double steps = bski_dsd_few_steps(problem) / props->compute_units;
    const bool narrow = s.along_k && s.tile * s.bytes < LINE_BYTES, f32 = s.bytes == 4;
    const double each = narrow ? part : sample + product * s.tile;
    const double once = step[f32] + (narrow && !s.flip ? short_lines[f32] : 0);
    double work = steps * (once + each * (double)samples);
    const double wide = widen + steps * s.tile / WIDE * wide_step;
    if (s.columns == DSD_FEW_COLUMNS && may_widen(&s) && wide < work)
        work = wide;
    const double reading = s.bytes * kept / memory;
    return launch + pow(pow(work, AT_ONCE) + pow(reading, AT_ONCE), 1.0 / AT_ONCE);
}

static int64_t first_samples(const bsk_problem *problem)
{
    const bsk_dsd_params *p = problem->params;
    const int64_t n = p->c.dims[p->c.rank - 1];
    return n < DSD_FEW_COLUMNS ? n : DSD_FEW_COLUMNS;
}

double cuda_sm90a_dsd_ring_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_dsd_params *p = problem->params;
    double sum = 0;
    for (int64_t left = p->c.dims[p->c.rank - 1]; left > 0; left -= DSD_FEW_COLUMNS)
        sum += launch_seconds(problem, props, left < DSD_FEW_COLUMNS ? left : DSD_FEW_COLUMNS);
    return sum;
}

/* --- Kernels --- */

#define SIZES(X, type, dtype, order, flip, axis, along_k, tile)                                    \
    X(type, dtype, order, flip, axis, along_k, tile, 16)                                           \
    X(type, dtype, order, flip, axis, along_k, tile, 32)                                           \
    X(type, dtype, order, flip, axis, along_k, tile, 64)
#define TILES(X, type, dtype, order, flip, axis, along_k)                                          \
    SIZES(X, type, dtype, order, flip, axis, along_k, 16)                                          \
    SIZES(X, type, dtype, order, flip, axis, along_k, 32)
#define NARROW(X, type, dtype)                                                                     \
    TILES(X, type, dtype, rows, false, nc, true)                                                   \
    TILES(X, type, dtype, cols, true, nc, true)                                                    \
    TILES(X, type, dtype, rows, false, cn, false)                                                  \
    TILES(X, type, dtype, cols, true, cn, false)                                                   \
    SIZES(X, type, dtype, rows, false, cn, false, 8)                                               \
    SIZES(X, type, dtype, cols, true, cn, false, 8)
#define ORDERS(X, type, dtype)                                                                     \
    NARROW(X, type, dtype)                                                                         \
    SIZES(X, type, dtype, rows, false, nc, true, 64)                                               \
    SIZES(X, type, dtype, cols, true, nc, true, 64)                                                \
    X(type, dtype, rows, false, cn, false, 64, 16)                                                 \
    X(type, dtype, rows, false, cn, false, 64, 32)                                                 \
    X(type, dtype, cols, true, cn, false, 64, 16)                                                  \
    X(type, dtype, cols, true, cn, false, 64, 32)
#define KERNELS(X)                                                                                 \
    ORDERS(X, bf16, BSK_BF16)                                                                      \
    ORDERS(X, f16, BSK_F16)                                                                        \
    NARROW(X, tf32, BSK_F32)                                                                       \
    SIZES(X, tf32, BSK_F32, rows, false, nc, true, 8)                                              \
    SIZES(X, tf32, BSK_F32, cols, true, nc, true, 8)

/* The address of the symbol that the compiler makes for a kernel stands for it. */
#define KERNEL(type, order, axis, tile, columns)                                                   \
    dsd_sm90a_ring_##tile##_##columns##_##order##_##axis##_##type
#define DECLARE(type, dtype, order, flip, axis, along_k, tile, columns)                            \
    extern const char KERNEL(type, order, axis, tile, columns)[];
KERNELS(DECLARE)
#undef DECLARE
#define ROW(type, dtype, order, flip, axis, along_k, tile, columns)                                \
    {KERNEL(type, order, axis, tile, columns),                                                     \
     "dsd_sm90a_ring_" #tile "_" #columns "_" #order "_" #axis "_" #type,                          \
     dtype,                                                                                        \
     flip,                                                                                         \
     along_k,                                                                                      \
     tile,                                                                                         \
     columns,                                                                                      \
     1},
static const dsd_few_kernel kernels[] = {KERNELS(ROW)};
#undef ROW

/* --- Shares --- */

typedef struct state {
    const dsd_few_kernel *kernel;
    bsk_mem runs, shares, segments;
    dsd_ring_arg arg;
    int32_t cluster, blocks; /* thread blocks of a cluster, and of all */
    size_t shared_bytes;
} state;

/* How tiles are shared out: what a product takes beside the copies of the multiprocessor with the
 * most to do, and how fast these are. Measured. */
typedef struct form {
    int32_t tile, cluster;   /* thread blocks whose teams share tiles: a group */
    double begin, many, few; /* seconds; bytes a second of more than 32 samples, and of others */
} form;

static const form forms[] = {
    {0, 1, 1.9e-6, 56e9, 40e9}, /* up to 32 features */
    {WIDE, 1, 2.6e-6, 48e9, 38e9},
    {WIDE, 2, 4.8e-6, 50e9, 36e9},
};

/* A tile of a block row, or some of its samples. */
typedef struct item {
    int32_t row, tile;
    int32_t rows; /* bits: parts of 16 samples */
    int32_t steps, group;
} item;

/* The tables of a plan, on their way to the device. */
typedef struct tables {
    const form *form;
    dsd_few_shape shape;
    bski_lines lines;
    item *items;
    load *loads;
    int32_t *begin;          /* of a group's teams: the first of its steps; and the end */
    dsd_few_run *runs, *row; /* of all teams; of one tile */
    dsd_ring_share *shares;
    dsd_ring_segment *segments;
    int32_t count, others; /* items, segments but for the teams' first */
    int32_t groups, teams; /* teams of a group */
    int32_t stride;        /* steps of a team, at most */
} tables;

enum { UNIT_BYTES = 64 }; /* of work */

/* What a step of a tile with these parts of 16 samples brings. */
static int64_t step_bytes(const dsd_few_shape *s, int32_t rows)
{
    int64_t samples = 0;
    for (; rows; rows &= rows - 1)
        samples += 16;
    return s->tile + (samples < s->columns ? samples : s->columns);
}

static int longer(const void *x, const void *y)
{
    const item *a = x, *b = y;
    if (a->steps != b->steps)
        return a->steps > b->steps ? -1 : 1;
    if (a->row != b->row)
        return a->row - b->row;
    if (a->tile != b->tile)
        return a->tile - b->tile;
    return a->rows - b->rows;
}

/* By groups, in each the longest first. */
static int neighbours(const void *x, const void *y)
{
    const item *a = x, *b = y;
    return a->group != b->group ? a->group - b->group : longer(x, y);
}

/* Into how many parts by its samples a tile is cut that takes more than twice as long as what a
 * group has to do. A part has as many steps, so that those of shorter ones stay whole. */
static int32_t tile_cuts(const dsd_few_shape *s, int64_t steps, int64_t fair)
{
    const int32_t parts = s->columns / 16;
    const int64_t whole = step_bytes(s, (1 << parts) - 1);
    int32_t cuts = 1;
    while (cuts < parts && steps * step_bytes(s, (1 << parts / cuts) - 1) > 2 * fair * whole)
        cuts *= 2;
    return cuts;
}

static void items_fill(const bsk_problem *problem, int32_t groups, tables *t)
{
    const int32_t least = 2 * t->teams;
    const int32_t tiles = t->shape.block_i / t->shape.tile, parts = t->shape.columns / 16;
    int64_t all = 0;
    for (int32_t i = 0; i < t->lines.grid; i++)
        all += (int64_t)tiles * bski_dsd_few_row_steps(problem, &t->lines, i);
    const int64_t fair = all / groups > least ? all / groups : least;
    for (int32_t i = 0; i < t->lines.grid; i++) {
        const int32_t steps = bski_dsd_few_row_steps(problem, &t->lines, i);
        const int32_t cuts = tile_cuts(&t->shape, steps, fair);
        for (int32_t tile = 0; tile < tiles; tile++)
            for (int32_t cut = 0; cut < cuts; cut++)
                t->items[t->count++] =
                    (item){.row = i,
                           .tile = tile,
                           .rows = ((1 << parts / cuts) - 1) << cut * (parts / cuts),
                           .steps = steps};
    }
    qsort(t->items, (size_t)t->count, sizeof *t->items, longer);
}

/* Gives the tiles to groups, the longest first, each to the one with the least to do. */
static void groups_fill(int32_t groups, tables *t)
{
    loads_open(t->loads, groups);
    for (int32_t i = 0; i < t->count; i++) {
        item *x = &t->items[i];
        /* A tile's end takes about as long as a step. */
        const int64_t work = (x->steps + 1) * step_bytes(&t->shape, x->rows);
        x->group = loads_give(t->loads, groups, (double)work);
    }
    qsort(t->items, (size_t)t->count, sizeof *t->items, neighbours);
}

/* Shares the steps of a group's tiles among its teams, in their order. Where it has more tiles than
 * teams, short ones come last, whose ends take the time of two steps each; and where a team has few
 * steps, an end counts as much beside them. */
static void teams_fill(const item *items, int32_t count, int32_t teams, int32_t *begin)
{
    enum { END = 2, FEW_STEPS = 5 };
    int64_t all = 0, before = 0;
    int32_t at = 0, team = 0, steps = 0;
    for (int32_t i = 0; i < count; i++) {
        all += items[i].steps + END;
        steps += items[i].steps;
    }
    if (steps < teams || (count <= teams && steps >= FEW_STEPS * teams)) {
        const int32_t each = (int32_t)bski_ceil_div(steps, teams);
        for (; team <= teams; team++)
            begin[team] = team * each < steps ? team * each : steps;
        return;
    }
    for (int32_t i = 0; i < count; i++) {
        const int32_t own = items[i].steps, next = own + END;
        for (; all * team < (before + next) * teams; team++) {
            const int64_t rest = all * team / teams - before;
            begin[team] = at + (rest < own ? (int32_t)rest : own);
        }
        before += next;
        at += own;
    }
    for (; team <= teams; team++)
        begin[team] = at;
}

/* How many of a group's items there are from `first` on. */
static int32_t items_of_group(const tables *t, int32_t first)
{
    int32_t end = first;
    while (end < t->count && t->items[end].group == t->items[first].group)
        end++;
    return end - first;
}

/* The runs of a group's tiles, one tile after the other; each team has places for the steps of
 * `stride`. */
static void runs_fill(const bsk_problem *problem, int32_t group, const item *items, int32_t count,
                      tables *t)
{
    const int32_t *begin = t->begin + (int64_t)group * (t->teams + 1);
    dsd_few_run *to = t->runs + (int64_t)group * t->teams * t->stride * DSD_FEW_STEP;
    int32_t at = 0, team = 0;
    for (int32_t i = 0; i < count; i++) {
        bski_dsd_few_runs(problem, &t->shape, &t->lines, items[i].row, items[i].tile, items[i].rows,
                          t->row);
        for (int32_t step = 0; step < items[i].steps; step++, at++) {
            while (at >= begin[team + 1])
                team++;
            memcpy(to + ((int64_t)team * t->stride + at - begin[team]) * DSD_FEW_STEP,
                   t->row + (int64_t)step * DSD_FEW_STEP, DSD_FEW_STEP * sizeof *to);
        }
    }
}

/* The shares of a group's teams. */
static void shares_fill(int32_t group, const item *items, int32_t count, tables *t)
{
    const int32_t *begin = t->begin + (int64_t)group * (t->teams + 1);
    dsd_ring_share *share = t->shares + (int64_t)group * t->teams;
    int32_t at = 0, from = 0;
    for (int32_t i = 0; i < count; i++) {
        const int32_t end = at + items[i].steps;
        while (from + 1 < t->teams && begin[from + 1] <= at)
            from++;
        int32_t last = from;
        while (last + 1 < t->teams && begin[last + 1] < end)
            last++;
        const bool all = DSD_RING_WIDE(t->shape.tile) || last == from || end == begin[last + 1];
        const int32_t adders = last - from + all;
        for (int32_t w = from; w <= last; w++) {
            const int32_t first = at > begin[w] ? at : begin[w];
            const int32_t until = end < begin[w + 1] ? end : begin[w + 1];
            const dsd_ring_segment x = {.feature = items[i].row * t->shape.block_i +
                                                   items[i].tile * t->shape.tile,
                                        .steps = items[i].steps ? until - first : 0,
                                        .part = (int16_t)(w - from),
                                        .parts = (int16_t)(last - from + 1),
                                        .rows = (int16_t)items[i].rows,
                                        .adders = (int16_t)adders};
            share[w].steps += x.steps;
            if (!share[w].segments++) {
                share[w].head = x;
                share[w].others = t->others;
            } else {
                t->segments[t->others++] = x;
            }
        }
        at = end;
    }
}

/* Which tiles a group has, and which steps of these a team. */
static bsk_status groups_make(simt_device *d, const bsk_problem *problem, tables *t)
{
    const dsd_few_shape *s = &t->shape;
    const int64_t tiles = (int64_t)t->lines.grid * (s->block_i / s->tile) * (s->columns / 16);
    const int32_t most = d->props.compute_units / t->form->cluster;
    const int32_t groups = tiles < most ? (int32_t)tiles : most;
    TRY(host_array(d->host, &t->items, tiles, sizeof *t->items));
    TRY(host_array(d->host, &t->loads, groups, sizeof *t->loads));
    TRY(host_array(d->host, &t->begin, (int64_t)groups * (t->teams + 1), sizeof *t->begin));
    items_fill(problem, groups, t);
    t->groups = t->count < groups ? t->count : groups;
    groups_fill(t->groups, t);
    t->stride = 1;
    for (int32_t i = 0, count; i < t->count; i += count) {
        int32_t *begin = t->begin + (int64_t)t->items[i].group * (t->teams + 1);
        count = items_of_group(t, i);
        teams_fill(t->items + i, count, t->teams, begin);
        for (int32_t team = 0; team < t->teams; team++)
            if (begin[team + 1] - begin[team] > t->stride)
                t->stride = begin[team + 1] - begin[team];
    }
    return BSK_OK;
}

/* What the teams read, of groups that are made. */
static bsk_status tables_fill(simt_device *d, const bsk_problem *problem, tables *t)
{
    const int64_t teams = (int64_t)t->groups * t->teams;
    const int64_t runs = teams * t->stride * DSD_FEW_STEP;
    int32_t longest = 1;
    for (int32_t i = 0; i < t->count; i++)
        longest = t->items[i].steps > longest ? t->items[i].steps : longest;
    TRY(host_array(d->host, &t->runs, runs, sizeof *t->runs));
    TRY(host_array(d->host, &t->row, (int64_t)longest * DSD_FEW_STEP, sizeof *t->row));
    TRY(host_array(d->host, &t->shares, teams, sizeof *t->shares));
    TRY(host_array(d->host, &t->segments, t->count + teams, sizeof *t->segments));
    for (int64_t i = 0; i < runs; i++)
        t->runs[i] = (dsd_few_run){.s = DSD_FEW_NONE};
    for (int32_t i = 0, count; i < t->count; i += count) {
        const int32_t group = t->items[i].group;
        count = items_of_group(t, i);
        runs_fill(problem, group, t->items + i, count, t);
        shares_fill(group, t->items + i, count, t);
    }
    return BSK_OK;
}

static bsk_status tables_place(simt_device *d, const tables *t, state *st)
{
    const int64_t teams = (int64_t)t->groups * t->teams;
    TRY(table_place(d, t->runs, teams * t->stride * DSD_FEW_STEP, sizeof *t->runs, &st->runs,
                    &st->arg.runs));
    TRY(table_place(d, t->shares, teams, sizeof *t->shares, &st->shares, &st->arg.shares));
    return table_place(d, t->segments, t->others, sizeof *t->segments, &st->segments,
                       &st->arg.segments);
}

static void tables_drop(simt_device *d, tables *t)
{
    host_drop(d->host, t->items);
    host_drop(d->host, t->loads);
    host_drop(d->host, t->begin);
    host_drop(d->host, t->runs);
    host_drop(d->host, t->row);
    host_drop(d->host, t->shares);
    host_drop(d->host, t->segments);
}

/* --- Plans --- */

static tables tables_open(const bsk_problem *problem, const form *f)
{
    tables t = {.form = f, .shape = bski_dsd_few_shape(problem)};
    if (f->tile)
        t.shape.tile = f->tile;
    t.lines = bski_layout_lines(problem->layout, t.shape.flip);
    t.teams = DSD_RING_TEAMS(t.shape.tile) * f->cluster;
    return t;
}

static double groups_seconds(const tables *t)
{
    const double rate = t->shape.columns == DSD_FEW_COLUMNS ? t->form->many : t->form->few;
    double most = 0;
    for (int32_t i = 0; i < t->groups; i++)
        most = t->loads[i].work > most ? t->loads[i].work : most;
    return t->form->begin + most * UNIT_BYTES / t->form->cluster / rate;
}

/* Makes the groups of the form that is done the soonest. Wide tiles read less of b, but there are
 * fewer of them to share out evenly. */
static bsk_status tables_choose(simt_device *d, const bsk_problem *problem, tables *best)
{
    *best = tables_open(problem, &forms[0]);
    const bool widen = may_widen(&best->shape) && d->props.compute_units > 1;
    TRY(groups_make(d, problem, best));
    for (size_t i = 1; widen && i < sizeof forms / sizeof *forms; i++) {
        tables t = tables_open(problem, &forms[i]);
        const bsk_status status = groups_make(d, problem, &t);
        if (!status && groups_seconds(&t) < groups_seconds(best)) {
            const tables worse = *best;
            *best = t;
            t = worse;
        }
        tables_drop(d, &t);
        TRY(status);
    }
    return BSK_OK;
}

static bsk_status plan_fill(bski_cuda_device *d, const bsk_problem *problem, tables *t, state *st)
{
    static const double hertz = 1.8e9; /* what the chip runs at */
    const bsk_dsd_params *p = problem->params;
    const dsd_few_kernel *k =
        bski_dsd_few_find(kernels, sizeof kernels / sizeof *kernels, problem->dtype, &t->shape);
    if (!k)
        return d->simt.host->fail(d->simt.host->context, BSK_E_INTERNAL,
                                  "cuda: an unaccepted product");
    st->kernel = k;
    st->cluster = t->form->cluster;
    st->blocks = t->groups * t->form->cluster;
    st->shared_bytes = DSD_RING_TEAMS(k->tile) * (size_t)DSD_RING_TEAM_BYTES(k->tile, k->columns);
    bski_dsd_few_fill(problem, &st->arg.operands);
    if (!p->c.dims[1])
        return BSK_OK;
    st->arg.stride = t->stride;
    /* By the bytes of a block's lines, as measured with 16-bit types. */
    st->arg.near = t->shape.block_i * t->shape.bytes > 128;
    TRY(bski_cuda_kernel(d, k->function, st->shared_bytes, k->name));
    TRY(tables_fill(&d->simt, problem, t));
    TRY(tables_place(&d->simt, t, st));
    /* What comes before is taken for a product of this size. */
    if (DSD_RING_PAIR(k->tile, k->columns) && !DSD_RING_WIDE(k->tile) && t->stride <= DSD_RING_FEW)
        st->arg.later =
            (uint32_t)(launch_seconds(problem, &d->simt.props, first_samples(problem)) / 2 * hertz);
    return BSK_OK;
}

static bsk_status plan_make(bski_cuda_device *d, const bsk_problem *problem, state *st)
{
    tables t;
    bsk_status status = tables_choose(&d->simt, problem, &t);
    if (!status)
        status = plan_fill(d, problem, &t, st);
    tables_drop(&d->simt, &t);
    return status;
}

bsk_status cuda_sm90a_dsd_ring_prepare(void *device, bsk_prepared *prepared)
{
    bski_cuda_device *d = device;
    TRY(state_new(&d->simt, sizeof(state), prepared));
    const bsk_status status = plan_make(d, prepared->problem, prepared->state);
    if (status)
        cuda_sm90a_dsd_ring_release(device, prepared);
    return status;
}

void cuda_sm90a_dsd_ring_release(void *device, bsk_prepared *prepared)
{
    bski_cuda_device *d = device;
    state *st = prepared->state;
    if (!st)
        return;
    table_drop(&d->simt, &st->runs);
    table_drop(&d->simt, &st->shares);
    table_drop(&d->simt, &st->segments);
    state_free(&d->simt, prepared);
}

bsk_status cuda_sm90a_dsd_ring_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const state *st = prepared->state;
    dsd_ring_arg arg;
    void *arguments[] = {&arg};
    const bski_cuda_run run = {
        .function = st->kernel->function,
        .name = st->kernel->name,
        .grid = {(unsigned)st->blocks, 1, 1},
        .threads = (unsigned)DSD_RING_THREADS(st->kernel->tile, st->kernel->columns),
        .cluster = (unsigned)st->cluster,
        .shared_bytes = st->shared_bytes,
        .arguments = arguments,
        .early = true,
    };
    const bsk_dsd_params *p = prepared->problem->params;
    for (int64_t first = 0; first < p->c.dims[1]; first += DSD_FEW_COLUMNS) {
        arg = st->arg;
        bski_dsd_few_bind(args, &arg.operands);
        bski_dsd_few_part(prepared->problem, first, &arg.operands);
        TRY(bski_cuda_launch(queue, &run));
    }
    return BSK_OK;
}
