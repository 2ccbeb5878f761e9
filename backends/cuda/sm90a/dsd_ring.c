/* Plans and launches dsd_sm90a_ring: small minibatches, blocks as they are. One launch a run, one
 * thread block a multiprocessor, whose warps have equal numbers of steps. */
#include <stdlib.h>
#include <string.h>

#include <backends/cuda/host.h>
#include <backends/cuda/sm90a/dsd_few_host.h>
#include <backends/cuda/sm90a/dsd_ring.h>
#include <common/checked.h>

CUDA_FUNCTIONS(sm90a_dsd_ring)

bsk_reason cuda_sm90a_dsd_ring_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    (void)props;
    const bsk_reason reason = bski_dsd_few_refusal(problem);
    if (reason)
        return reason;
    /* Runs of 16 bytes apart: dsd_narrow takes these. */
    const dsd_few_shape s = bski_dsd_few_shape(problem);
    return s.along_k && s.tile == DSD_RUN ? BSK_REFUSE_BLOCK : BSK_ACCEPT;
}

double cuda_sm90a_dsd_ring_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    /* A launch and the chain of accesses of a thread block; bytes a second from memory; a
     * multiprocessor's time for a step, what it takes more where lines of both operands are shorter
     * than 64 bytes, for each sample of lines of 64 bytes and of shorter ones, and for each
     * product. Measured. */
    static const double launch = 3.5e-6, memory = 4.2e12;
    static const double step = 30e-9, short_lines = 20e-9, sample = 0.75e-9, part = 1.6e-9,
                        product = 0.4e-9 / 32;
    const bsk_layout_tables *t = problem->layout;
    const bsk_dsd_params *p = problem->params;
    const dsd_few_shape s = bski_dsd_few_shape(problem);
    const double kept = (double)t->nnz * t->block_rows * t->block_cols;
    const double steps = bski_dsd_few_steps(problem) / props->compute_units;
    const bool narrow = s.along_k && s.tile < 4 * DSD_RUN;
    const double each = narrow ? part : sample + product * s.tile;
    const double work = steps * (step + (narrow && !s.flip ? short_lines : 0) +
                                 each * (double)p->c.dims[p->c.rank - 1]);
    return launch + (work > 2 * kept / memory ? work : 2 * kept / memory);
}

/* --- Kernels --- */

#define SIZES(X, type, dtype, order, flip, axis, along_k, tile)                                    \
    X(type, dtype, order, flip, axis, along_k, tile, 16)                                           \
    X(type, dtype, order, flip, axis, along_k, tile, 32)                                           \
    X(type, dtype, order, flip, axis, along_k, tile, 64)
#define TILES(X, type, dtype, order, flip, axis, along_k)                                          \
    SIZES(X, type, dtype, order, flip, axis, along_k, 16)                                          \
    SIZES(X, type, dtype, order, flip, axis, along_k, 32)
#define ORDERS(X, type, dtype)                                                                     \
    TILES(X, type, dtype, rows, false, nc, true)                                                   \
    TILES(X, type, dtype, cols, true, nc, true)                                                    \
    TILES(X, type, dtype, rows, false, cn, false)                                                  \
    TILES(X, type, dtype, cols, true, cn, false)                                                   \
    SIZES(X, type, dtype, rows, false, cn, false, 8)                                               \
    SIZES(X, type, dtype, cols, true, cn, false, 8)
#define KERNELS(X)                                                                                 \
    ORDERS(X, bf16, BSK_BF16)                                                                      \
    ORDERS(X, f16, BSK_F16)

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
    int32_t count; /* thread blocks */
    size_t shared_bytes;
} state;

/* A tile of a block row, or some of its samples. */
typedef struct item {
    int32_t row, tile;
    int32_t rows; /* bits: parts of 16 samples */
    int32_t steps, block;
} item;

/* The tables of a plan, on their way to the device. */
typedef struct tables {
    dsd_few_shape shape;
    bski_lines lines;
    item *items;
    load *loads;
    int32_t *begin;          /* of a thread block's warps: the first of its steps; and the end */
    dsd_few_run *runs, *row; /* of all warps; of one tile */
    dsd_ring_share *shares;
    dsd_ring_segment *segments;
    int32_t count, others; /* items, segments but for the warps' first */
} tables;

/* What a step of a tile with these parts of 16 samples brings, in pieces of 64 bytes. */
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

/* By thread blocks, in each the longest first. */
static int neighbours(const void *x, const void *y)
{
    const item *a = x, *b = y;
    return a->block != b->block ? a->block - b->block : longer(x, y);
}

/* Into how many parts by its samples a tile is cut that takes more than twice as long as what a
 * thread block has to do. A part has as many steps, so that those of shorter ones stay whole. */
static int32_t tile_cuts(const dsd_few_shape *s, int64_t steps, int64_t fair)
{
    const int32_t parts = s->columns / 16;
    const int64_t whole = step_bytes(s, (1 << parts) - 1);
    int32_t cuts = 1;
    while (cuts < parts && steps * step_bytes(s, (1 << parts / cuts) - 1) > 2 * fair * whole)
        cuts *= 2;
    return cuts;
}

static void items_fill(const bsk_problem *problem, int32_t blocks, tables *t)
{
    enum { LEAST = 2 * DSD_RING_WARPS };
    const int32_t tiles = t->shape.block_i / t->shape.tile, parts = t->shape.columns / 16;
    int64_t all = 0;
    for (int32_t i = 0; i < t->lines.grid; i++)
        all += (int64_t)tiles * bski_dsd_few_row_steps(problem, &t->lines, i);
    const int64_t fair = all / blocks > LEAST ? all / blocks : LEAST;
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

/* Gives the tiles to thread blocks, the longest first, each to the one with the least to do. */
static void blocks_fill(int32_t blocks, tables *t)
{
    loads_open(t->loads, blocks);
    for (int32_t i = 0; i < t->count; i++) {
        item *x = &t->items[i];
        /* A tile's end takes about as long as a step. */
        const int64_t work = (x->steps + 1) * step_bytes(&t->shape, x->rows);
        x->block = loads_give(t->loads, blocks, (double)work);
    }
    qsort(t->items, (size_t)t->count, sizeof *t->items, neighbours);
}

/* Shares the steps of a thread block's tiles among its warps, in their order. Where it has more tiles
 * than warps, short ones come last, whose ends take the time of two steps each. */
static void warps_fill(const item *items, int32_t count, int32_t *begin)
{
    enum { END = 2 };
    int64_t all = 0, before = 0;
    int32_t at = 0, warp = 0, steps = 0;
    for (int32_t i = 0; i < count; i++) {
        all += items[i].steps + END;
        steps += items[i].steps;
    }
    if (count <= DSD_RING_WARPS || steps < DSD_RING_WARPS) {
        const int32_t each = (int32_t)bski_ceil_div(steps, DSD_RING_WARPS);
        for (; warp <= DSD_RING_WARPS; warp++)
            begin[warp] = warp * each < steps ? warp * each : steps;
        return;
    }
    for (int32_t i = 0; i < count; i++) {
        const int32_t own = items[i].steps, next = own + END;
        for (; all * warp < (before + next) * DSD_RING_WARPS; warp++) {
            const int64_t rest = all * warp / DSD_RING_WARPS - before;
            begin[warp] = at + (rest < own ? (int32_t)rest : own);
        }
        before += next;
        at += own;
    }
    for (; warp <= DSD_RING_WARPS; warp++)
        begin[warp] = at;
}

/* How many of a thread block's items there are from `first` on. */
static int32_t items_of_block(const tables *t, int32_t first)
{
    int32_t end = first;
    while (end < t->count && t->items[end].block == t->items[first].block)
        end++;
    return end - first;
}

/* The runs of a thread block's tiles, one tile after the other; each warp has places for the steps of
 * `stride`. */
static void runs_fill(const bsk_problem *problem, int32_t block, const item *items, int32_t count,
                      int32_t stride, tables *t)
{
    const int32_t *begin = t->begin + (int64_t)block * (DSD_RING_WARPS + 1);
    dsd_few_run *to = t->runs + (int64_t)block * DSD_RING_WARPS * stride * DSD_FEW_STEP;
    int32_t at = 0, warp = 0;
    for (int32_t i = 0; i < count; i++) {
        bski_dsd_few_runs(problem, &t->lines, items[i].row, items[i].tile, items[i].rows, t->row);
        for (int32_t step = 0; step < items[i].steps; step++, at++) {
            while (at >= begin[warp + 1])
                warp++;
            memcpy(to + ((int64_t)warp * stride + at - begin[warp]) * DSD_FEW_STEP,
                   t->row + (int64_t)step * DSD_FEW_STEP, DSD_FEW_STEP * sizeof *to);
        }
    }
}

/* The shares of a thread block's warps. */
static void shares_fill(int32_t block, const item *items, int32_t count, tables *t)
{
    const int32_t *begin = t->begin + (int64_t)block * (DSD_RING_WARPS + 1);
    dsd_ring_share *share = t->shares + (int64_t)block * DSD_RING_WARPS;
    int32_t at = 0, from = 0;
    for (int32_t i = 0; i < count; i++) {
        const int32_t end = at + items[i].steps;
        while (from + 1 < DSD_RING_WARPS && begin[from + 1] <= at)
            from++;
        int32_t last = from;
        while (last + 1 < DSD_RING_WARPS && begin[last + 1] < end)
            last++;
        for (int32_t w = from; w <= last; w++) {
            const int32_t first = at > begin[w] ? at : begin[w];
            const int32_t until = end < begin[w + 1] ? end : begin[w + 1];
            const dsd_ring_segment x = {.feature = items[i].row * t->shape.block_i +
                                                   items[i].tile * t->shape.tile,
                                        .steps = items[i].steps ? until - first : 0,
                                        .part = (int16_t)(w - from),
                                        .parts = (int16_t)(last - from + 1),
                                        .rows = items[i].rows};
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

static bsk_status tables_place(simt_device *d, const tables *t, int64_t runs, state *st)
{
    TRY(table_place(d, t->runs, runs, sizeof *t->runs, &st->runs, &st->arg.runs));
    TRY(table_place(d, t->shares, (int64_t)st->count * DSD_RING_WARPS, sizeof *t->shares,
                    &st->shares, &st->arg.shares));
    return table_place(d, t->segments, t->others, sizeof *t->segments, &st->segments,
                       &st->arg.segments);
}

/* Which tiles a thread block has, and how many steps a warp has at most. */
static bsk_status blocks_make(simt_device *d, const bsk_problem *problem, tables *t, state *st)
{
    const dsd_few_shape *s = &t->shape;
    const int64_t tiles = (int64_t)t->lines.grid * (s->block_i / s->tile) * (s->columns / 16);
    const int32_t units = d->props.compute_units, blocks = tiles < units ? (int32_t)tiles : units;
    TRY(host_array(d->host, &t->items, tiles, sizeof *t->items));
    TRY(host_array(d->host, &t->loads, blocks, sizeof *t->loads));
    TRY(host_array(d->host, &t->begin, (int64_t)blocks * (DSD_RING_WARPS + 1), sizeof *t->begin));
    items_fill(problem, blocks, t);
    st->count = t->count < blocks ? t->count : blocks;
    blocks_fill(st->count, t);
    st->arg.stride = 1;
    for (int32_t i = 0, count; i < t->count; i += count) {
        int32_t *begin = t->begin + (int64_t)t->items[i].block * (DSD_RING_WARPS + 1);
        count = items_of_block(t, i);
        warps_fill(t->items + i, count, begin);
        for (int w = 0; w < DSD_RING_WARPS; w++)
            if (begin[w + 1] - begin[w] > st->arg.stride)
                st->arg.stride = begin[w + 1] - begin[w];
    }
    return BSK_OK;
}

static bsk_status tables_make(simt_device *d, const bsk_problem *problem, tables *t, state *st)
{
    TRY(blocks_make(d, problem, t, st));
    const int64_t warps = (int64_t)st->count * DSD_RING_WARPS;
    const int64_t runs = warps * st->arg.stride * DSD_FEW_STEP;
    int32_t longest = 1;
    for (int32_t i = 0; i < t->count; i++)
        longest = t->items[i].steps > longest ? t->items[i].steps : longest;
    TRY(host_array(d->host, &t->runs, runs, sizeof *t->runs));
    TRY(host_array(d->host, &t->row, (int64_t)longest * DSD_FEW_STEP, sizeof *t->row));
    TRY(host_array(d->host, &t->shares, warps, sizeof *t->shares));
    TRY(host_array(d->host, &t->segments, t->count + warps, sizeof *t->segments));
    for (int64_t i = 0; i < runs; i++)
        t->runs[i] = (dsd_few_run){.s = DSD_FEW_NONE};
    for (int32_t i = 0, count; i < t->count; i += count) {
        const int32_t block = t->items[i].block;
        count = items_of_block(t, i);
        runs_fill(problem, block, t->items + i, count, st->arg.stride, t);
        shares_fill(block, t->items + i, count, t);
    }
    return tables_place(d, t, runs, st);
}

static bsk_status tables_put(simt_device *d, const bsk_problem *problem, state *st)
{
    tables t = {.shape = bski_dsd_few_shape(problem),
                .lines = bski_layout_lines(problem->layout, st->kernel->flip)};
    const bsk_status status = tables_make(d, problem, &t, st);
    host_drop(d->host, t.items);
    host_drop(d->host, t.loads);
    host_drop(d->host, t.begin);
    host_drop(d->host, t.runs);
    host_drop(d->host, t.row);
    host_drop(d->host, t.shares);
    host_drop(d->host, t.segments);
    return status;
}

/* --- Plans --- */

static bsk_status plan_make(bski_cuda_device *d, const bsk_problem *problem, state *st)
{
    static const double hertz = 1.8e9; /* what the chip runs at */
    const bsk_dsd_params *p = problem->params;
    const dsd_few_kernel *k = bski_dsd_few_find(kernels, sizeof kernels / sizeof *kernels, problem);
    if (!k)
        return d->simt.host->fail(d->simt.host->context, BSK_E_INTERNAL,
                                  "cuda: an unaccepted product");
    st->kernel = k;
    st->shared_bytes = DSD_RING_WARPS * (size_t)DSD_RING_WARP_BYTES(k->tile, k->columns);
    bski_dsd_few_fill(problem, &st->arg.operands);
    if (!p->c.dims[1])
        return BSK_OK;
    TRY(bski_cuda_kernel(d, k->function, st->shared_bytes, k->name));
    TRY(tables_put(&d->simt, problem, st));
    /* What comes before is taken for a product of this size. */
    if (DSD_RING_PAIR(k->tile, k->columns) && st->arg.stride <= DSD_RING_FEW)
        st->arg.later =
            (uint32_t)(cuda_sm90a_dsd_ring_seconds(problem, &d->simt.props) / 2 * hertz);
    return BSK_OK;
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
    dsd_ring_arg arg = st->arg;
    bski_dsd_few_bind(args, &arg.operands);
    void *arguments[] = {&arg};
    const bski_cuda_run run = {
        .function = st->kernel->function,
        .name = st->kernel->name,
        .grid = {(unsigned)st->count, 1, 1},
        .threads = DSD_RING_THREADS,
        .shared_bytes = st->shared_bytes,
        .arguments = arguments,
        .early = true,
    };
    return bski_cuda_launch(queue, &run);
}
