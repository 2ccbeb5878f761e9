/* Plans and launches dsd_sm90a_ring: small minibatches, blocks as they are. One launch a run, one
 * thread block a multiprocessor, whose warps have equal numbers of steps. */
#include <stdlib.h>
#include <string.h>

#include <backends/cuda/host.h>
#include <backends/cuda/sm90a/dsd_ring.h>
#include <common/checked.h>
#include <common/layout.h>

CUDA_FUNCTIONS(sm90a_dsd_ring)

enum { MAX_TILE = 32, MIN_COLUMNS = 16, UNIT_BYTES = 16 /* of offsets */ };
#define MOST_BYTES   ((double)UNIT_BYTES * (UINT32_MAX - 1))
#define MOST_B_BYTES ((double)UNIT_BYTES * (1 << DSD_RING_PLACE))

/* --- The problem --- */

typedef struct shape {
    int32_t block_i, block_k; /* of op(S) */
    int32_t tile, columns;    /* features and samples of a tile */
    bool flip, along_k;
} shape;

static shape shape_of(const bsk_problem *problem)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const int64_t n = p->c.dims[p->c.rank - 1];
    shape s = {.flip = p->transpose_s != 0, .along_k = p->b.strides[p->b.rank - 2] == 1};
    s.block_i = s.flip ? t->block_cols : t->block_rows;
    s.block_k = s.flip ? t->block_rows : t->block_cols;
    s.tile = s.block_i < MAX_TILE ? s.block_i : MAX_TILE;
    s.columns = MIN_COLUMNS;
    while (s.columns < n)
        s.columns *= 2;
    return s;
}

bsk_reason cuda_sm90a_dsd_ring_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bsk_tensor *b = &p->b;
    (void)props;
    if (p->c.rank != 2 || t->heads != 1 || (p->s.rank == 4 && p->s.dims[0] != 1))
        return BSK_REFUSE_RANK;
    if (p->gate.dtype != BSK_NONE)
        return BSK_REFUSE_OPTION;
    if (p->c.dims[1] > DSD_RING_COLUMNS)
        return BSK_REFUSE_SHAPE;
    const shape s = shape_of(problem);
    /* Runs of 16 bytes apart: dsd_narrow takes these. */
    if (s.along_k && s.tile == DSD_RUN)
        return BSK_REFUSE_BLOCK;
    /* The axis that runs are loaded along: how many elements at once, and how far apart. */
    const int64_t unit = s.along_k || s.columns >= 4 * DSD_RUN ? DSD_RUN : s.columns / 4;
    const int64_t length = s.along_k ? b->dims[0] : b->dims[1];
    const int64_t lines = s.along_k ? b->dims[1] : b->dims[0];
    if (b->strides[s.along_k ? 0 : 1] != 1 ||
        (lines > 1 && b->strides[s.along_k ? 1 : 0] % unit != 0))
        return BSK_REFUSE_STRIDE;
    if (length % unit != 0 || b->dims[0] % DSD_RUN != 0)
        return BSK_REFUSE_SHAPE;
    if ((double)t->nnz * t->block_rows * t->block_cols * 2 >= MOST_BYTES ||
        (double)b->dims[0] * (double)b->strides[0] * 2 >= MOST_B_BYTES ||
        (double)t->nnz * s.block_k / DSD_RUN >= INT32_MAX / 4 || b->strides[0] >= INT32_MAX / 2 ||
        b->strides[1] >= INT32_MAX / 16)
        return BSK_REFUSE_LIMIT;
    return bski_cuda_epilogue_accept(problem);
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
    const shape s = shape_of(problem);
    const double kept = (double)t->nnz * t->block_rows * t->block_cols;
    const double steps = kept / (s.tile * DSD_RING_STEP * DSD_RUN) / props->compute_units;
    const bool narrow = s.along_k && s.tile < MAX_TILE;
    const double each = narrow ? part : sample + product * s.tile;
    const double work = steps * (step + (narrow && !s.flip ? short_lines : 0) +
                                 each * (double)p->c.dims[p->c.rank - 1]);
    return launch + (work > 2 * kept / memory ? work : 2 * kept / memory);
}

/* --- Kernels --- */

typedef struct kernel_row {
    const void *function;
    const char *name;
    bsk_dtype dtype;
    bool flip, along_k;
    int32_t tile, columns;
} kernel_row;

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
     columns},
static const kernel_row kernels[] = {KERNELS(ROW)};
#undef ROW

static const kernel_row *kernel_find(bsk_dtype dtype, const shape *s)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        const kernel_row *k = &kernels[i];
        if (k->dtype == dtype && k->flip == s->flip && k->along_k == s->along_k &&
            k->tile == s->tile && k->columns == s->columns)
            return k;
    }
    return NULL;
}

/* --- Shares --- */

typedef struct state {
    const kernel_row *kernel;
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
    item *items;
    load *loads;
    int32_t *steps; /* of a thread block */
    dsd_ring_run *runs;
    dsd_ring_share *shares;
    dsd_ring_segment *segments;
    int32_t count, others; /* items, segments but for the warps' first */
} tables;

/* What a step of a tile with these parts of 16 samples brings, in pieces of 64 bytes. */
static int64_t step_bytes(const shape *s, int32_t rows)
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

static int32_t row_steps(const bsk_problem *problem, const shape *s, const bski_lines *lines,
                         int32_t row)
{
    const bsk_dsd_params *p = problem->params;
    int64_t runs = 0;
    for (int64_t e = lines->start[row]; e < lines->start[row + 1]; e++) {
        const int64_t left = p->b.dims[0] - (int64_t)lines->index[e] * s->block_k;
        runs += (left < s->block_k ? left > 0 ? left : 0 : s->block_k) / DSD_RUN;
    }
    return (int32_t)bski_ceil_div(runs, DSD_RING_STEP);
}

/* Tiles; those that would take much longer than all others together, if these are shared evenly,
 * are cut by their samples. */
static void items_fill(const bsk_problem *problem, const shape *s, const bski_lines *lines,
                       int32_t blocks, tables *t)
{
    enum { LEAST = 2 * DSD_RING_WARPS };
    const int32_t tiles = s->block_i / s->tile, parts = s->columns / 16;
    int64_t all = 0;
    for (int32_t i = 0; i < lines->grid; i++)
        all += (int64_t)tiles * row_steps(problem, s, lines, i);
    const int64_t fair = all / blocks > LEAST ? all / blocks : LEAST;
    const int64_t whole = step_bytes(s, (1 << parts) - 1);
    for (int32_t i = 0; i < lines->grid; i++) {
        const int32_t steps = row_steps(problem, s, lines, i);
        int32_t cuts = 1;
        while (cuts < parts &&
               4 * steps * step_bytes(s, (1 << parts / cuts) - 1) > 5 * fair * whole)
            cuts *= 2;
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
static void blocks_fill(const shape *s, int32_t blocks, tables *t)
{
    loads_open(t->loads, blocks);
    for (int32_t i = 0; i < t->count; i++) {
        item *x = &t->items[i];
        /* A tile's end takes about as long as a step. */
        x->block = loads_give(t->loads, blocks, (double)((x->steps + 1) * step_bytes(s, x->rows)));
        t->steps[x->block] += x->steps;
    }
    qsort(t->items, (size_t)t->count, sizeof *t->items, neighbours);
}

/* Where a thread block's runs go: each of its warps has places for `stride` steps, of which it
 * takes `each`. */
typedef struct places {
    dsd_ring_run *runs; /* of the first warp */
    int64_t each, stride;
    int64_t count; /* runs so far */
} places;

static void run_put(places *to, uint32_t b, uint32_t s)
{
    const int64_t step = to->count / DSD_RING_STEP;
    const int64_t at = step / to->each * to->stride + step % to->each;
    to->runs[at * DSD_RING_STEP + to->count % DSD_RING_STEP] = (dsd_ring_run){b, s};
    to->count++;
}

/* The runs of a tile. Those beyond the depth are left out. */
static void runs_fill(const bsk_problem *problem, const shape *s, const bski_lines *lines,
                      const item *x, places *to)
{
    const bsk_dsd_params *p = problem->params;
    const int64_t block = (int64_t)s->block_i * s->block_k, depth = p->b.dims[0];
    const int64_t pitch = s->flip ? s->block_i : 1; /* of the values, along the depth */
    const int64_t first = (int64_t)x->tile * s->tile * (s->flip ? 1 : s->block_k);
    for (int64_t e = lines->start[x->row]; e < lines->start[x->row + 1]; e++)
        for (int32_t inner = 0; inner < s->block_k; inner += DSD_RUN) {
            const int64_t k = (int64_t)lines->index[e] * s->block_k + inner;
            const int64_t value = lines->slot[e] * block + inner * pitch + first;
            if (k < depth)
                run_put(to,
                        (uint32_t)(k * p->b.strides[0] * 2 / UNIT_BYTES) | (uint32_t)x->rows
                                                                               << DSD_RING_PLACE,
                        (uint32_t)(value * 2 / UNIT_BYTES));
        }
    while (to->count % DSD_RING_STEP)
        run_put(to, 0, DSD_RING_NONE);
}

static int32_t steps_each(const tables *t, int32_t block)
{
    return t->steps[block] > DSD_RING_WARPS ? (t->steps[block] - 1) / DSD_RING_WARPS + 1 : 1;
}

/* The shares of a thread block's warps, equal numbers of the steps of its tiles in their order. */
static void shares_fill(const shape *s, int32_t block, const item *items, int32_t count, tables *t)
{
    const int32_t each = steps_each(t, block);
    dsd_ring_share *share = t->shares + (int64_t)block * DSD_RING_WARPS;
    int32_t at = 0;
    for (int32_t i = 0; i < count; i++) {
        const int32_t end = at + items[i].steps;
        const int32_t from = at / each < DSD_RING_WARPS ? at / each : DSD_RING_WARPS - 1;
        const int32_t last = end > at ? (end - 1) / each : from;
        for (int32_t w = from; w <= last; w++) {
            const int32_t begin = at > w * each ? at : w * each;
            const int32_t until = end < (w + 1) * each ? end : (w + 1) * each;
            const dsd_ring_segment x = {.feature =
                                            items[i].row * s->block_i + items[i].tile * s->tile,
                                        .steps = items[i].steps ? until - begin : 0,
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

static bsk_status tables_make(simt_device *d, const bsk_problem *problem, const shape *s,
                              const bski_lines *lines, tables *t, state *st)
{
    const int64_t tiles = (int64_t)lines->grid * (s->block_i / s->tile) * (s->columns / 16);
    const int32_t units = d->props.compute_units, blocks = tiles < units ? (int32_t)tiles : units;
    TRY(host_array(d->host, &t->items, tiles, sizeof *t->items));
    TRY(host_array(d->host, &t->loads, blocks, sizeof *t->loads));
    TRY(host_array(d->host, &t->steps, blocks, sizeof *t->steps));
    items_fill(problem, s, lines, blocks, t);
    st->count = t->count < blocks ? t->count : blocks;
    blocks_fill(s, st->count, t);
    st->arg.stride = 1;
    for (int32_t i = 0; i < st->count; i++)
        st->arg.stride = steps_each(t, i) > st->arg.stride ? steps_each(t, i) : st->arg.stride;
    const int64_t warp = (int64_t)st->arg.stride * DSD_RING_STEP; /* runs of one */
    const int64_t runs = st->count * DSD_RING_WARPS * warp;
    TRY(host_array(d->host, &t->runs, runs, sizeof *t->runs));
    TRY(host_array(d->host, &t->shares, (int64_t)st->count * DSD_RING_WARPS, sizeof *t->shares));
    TRY(host_array(d->host, &t->segments, (int64_t)t->count + st->count * DSD_RING_WARPS,
                   sizeof *t->segments));
    for (int64_t i = 0; i < runs; i++)
        t->runs[i] = (dsd_ring_run){.s = DSD_RING_NONE};
    for (int32_t i = 0, end; i < t->count; i = end) {
        const int32_t block = t->items[i].block;
        places to = {.runs = t->runs + block * DSD_RING_WARPS * warp,
                     .each = steps_each(t, block),
                     .stride = st->arg.stride};
        for (end = i; end < t->count && t->items[end].block == block; end++)
            runs_fill(problem, s, lines, &t->items[end], &to);
        shares_fill(s, block, t->items + i, end - i, t);
    }
    return tables_place(d, t, runs, st);
}

static bsk_status tables_put(simt_device *d, const bsk_problem *problem, const shape *s, state *st)
{
    const bski_lines lines = bski_layout_lines(problem->layout, s->flip);
    tables t = {0};
    const bsk_status status = tables_make(d, problem, s, &lines, &t, st);
    host_drop(d->host, t.items);
    host_drop(d->host, t.loads);
    host_drop(d->host, t.steps);
    host_drop(d->host, t.runs);
    host_drop(d->host, t.shares);
    host_drop(d->host, t.segments);
    return status;
}

/* --- Plans --- */

static void arg_fill(const bsk_problem *problem, const shape *s, dsd_ring_arg *a)
{
    const bsk_dsd_params *p = problem->params;
    a->b_pitch = (int32_t)(p->b.strides[s->along_k ? 1 : 0] * 2);
    a->s_pitch = (s->flip ? s->block_i : s->block_k) * 2;
    bski_cuda_epilogue_fill(problem, &a->end);
}

static bsk_status plan_make(bski_cuda_device *d, const bsk_problem *problem, state *st)
{
    const bsk_dsd_params *p = problem->params;
    const shape s = shape_of(problem);
    st->kernel = kernel_find(problem->dtype, &s);
    if (!st->kernel)
        return d->simt.host->fail(d->simt.host->context, BSK_E_INTERNAL,
                                  "cuda: an unaccepted product");
    st->shared_bytes = DSD_RING_WARPS * (size_t)DSD_RING_WARP_BYTES(s.tile, s.columns);
    arg_fill(problem, &s, &st->arg);
    if (!p->c.dims[1])
        return BSK_OK;
    TRY(bski_cuda_kernel(d, st->kernel->function, st->shared_bytes, st->kernel->name));
    return tables_put(&d->simt, problem, &s, st);
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
    const bsk_dsd_args *run_args = args;
    const state *st = prepared->state;
    dsd_ring_arg arg = st->arg;
    arg.s = bsk_mem_address(run_args->s);
    arg.b = bsk_mem_address(run_args->b);
    bski_cuda_epilogue_bind(run_args, &arg.end);
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
