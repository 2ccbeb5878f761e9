/* Plans and launches dsd_sm90a_narrow: small minibatches, blocks as they are. One launch a run, and
 * its parts all at work at once, as a launch costs as much as reading some megabytes. */
#include <stdlib.h>
#include <string.h>

#include <backends/cuda/host.h>
#include <backends/cuda/sm90a/dsd_few_host.h>
#include <backends/cuda/sm90a/dsd_narrow.h>
#include <common/checked.h>

CUDA_FUNCTIONS(sm90a_dsd_narrow)

enum { MAX_TILE = 16 };

bsk_reason cuda_sm90a_dsd_narrow_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    (void)props;
    const bsk_reason reason = bski_dsd_few_refusal(problem, DSD_FEW_COLUMNS);
    if (reason)
        return reason;
    const dsd_few_shape s = bski_dsd_few_shape(problem);
    if (s.block_i > MAX_TILE)
        return BSK_REFUSE_BLOCK;
    return s.along_k ? BSK_ACCEPT : BSK_REFUSE_STRIDE;
}

double cuda_sm90a_dsd_narrow_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    /* A launch and the chain of accesses of a thread block, longer for 64 columns; bytes a second
     * from memory; a multiprocessor's time for a step, for one whose weights lie across the depth,
     * and for each sample. Measured. */
    static const double launch[] = {6e-6, 12e-6}, memory = 3.8e12;
    static const double step = 12e-9, across = 25e-9, sample = 1.73e-9;
    const bsk_layout_tables *t = problem->layout;
    const bsk_dsd_params *p = problem->params;
    const double kept = (double)t->nnz * t->block_rows * t->block_cols;
    const double n = (double)p->c.dims[p->c.rank - 1];
    const double work = bski_dsd_few_steps(problem) / props->compute_units *
                        ((p->transpose_s ? across : step) + sample * n);
    return launch[n > 32] + (work > 2 * kept / memory ? work : 2 * kept / memory);
}

/* --- Kernels --- */

#define SIZES(X, type, dtype, order, flip)                                                         \
    X(type, dtype, order, flip, 8, 16, 6)                                                          \
    X(type, dtype, order, flip, 8, 32, 6)                                                          \
    X(type, dtype, order, flip, 8, 64, 6)                                                          \
    X(type, dtype, order, flip, 16, 16, 6)                                                         \
    X(type, dtype, order, flip, 16, 32, 6)                                                         \
    X(type, dtype, order, flip, 16, 64, 4)
#define ORDERS(X, type, dtype)                                                                     \
    SIZES(X, type, dtype, rows, false)                                                             \
    SIZES(X, type, dtype, cols, true)
#define KERNELS(X)                                                                                 \
    ORDERS(X, bf16, BSK_BF16)                                                                      \
    ORDERS(X, f16, BSK_F16)

/* The address of the symbol that the compiler makes for a kernel stands for it. */
#define KERNEL(type, order, tile, columns) dsd_sm90a_narrow_##tile##_##columns##_##order##_##type
#define DECLARE(type, dtype, order, flip, tile, columns, blocks)                                   \
    extern const char KERNEL(type, order, tile, columns)[];
KERNELS(DECLARE)
#undef DECLARE
#define ROW(type, dtype, order, flip, tile, columns, blocks)                                       \
    {KERNEL(type, order, tile, columns),                                                           \
     "dsd_sm90a_narrow_" #tile "_" #columns "_" #order "_" #type,                                  \
     dtype,                                                                                        \
     flip,                                                                                         \
     true,                                                                                         \
     tile,                                                                                         \
     columns,                                                                                      \
     blocks},
static const dsd_few_kernel kernels[] = {KERNELS(ROW)};
#undef ROW

/* --- Pieces --- */

typedef struct state {
    const dsd_few_kernel *kernel;
    bsk_mem runs, pieces;
    dsd_narrow_arg arg;
    int32_t count; /* thread blocks along x */
    size_t shared_bytes;
} state;

/* A block row's list, and into how many parts it is cut. */
typedef struct row_plan {
    int32_t row, parts;
    int32_t first, steps;
} row_plan;

/* Rows of many parts first, then long ones: so clusters have rows of like lengths. */
static int longer(const void *x, const void *y)
{
    const row_plan *a = x, *b = y;
    if (a->parts != b->parts)
        return a->parts > b->parts ? -1 : 1;
    if (a->steps != b->steps)
        return a->steps > b->steps ? -1 : 1;
    return a->row - b->row;
}

/* Where each row's steps are among those of all. */
static int32_t rows_fill(const bsk_problem *problem, const bski_lines *lines, row_plan *plan)
{
    int32_t at = 0;
    for (int32_t i = 0; i < lines->grid; i++) {
        plan[i] = (row_plan){.row = i, .parts = 1, .first = at};
        plan[i].steps = bski_dsd_few_row_steps(problem, lines, i);
        at += plan[i].steps;
    }
    return at;
}

/* Cuts lists that are much longer than what a thread block should do for all of them to fit on the
 * device at a time: into powers of two, so that rows fill clusters without gaps. Clusters have a
 * price, so that lists that are a little too long stay whole. The largest number of parts. */
static int32_t rows_cut(int32_t steps, int32_t rows, int32_t slots, row_plan *plan)
{
    enum { LEAST = 2 /* steps of a warp */, LONG = 3 };
    const int64_t each = steps / ((int64_t)slots * DSD_NARROW_WARPS) + 1;
    const int64_t limit = (each > LEAST ? each : LEAST) * DSD_NARROW_WARPS;
    int32_t most = 1, longest = 0;
    for (int32_t i = 0; i < rows; i++)
        longest = plan[i].steps > longest ? plan[i].steps : longest;
    if (longest < LONG * limit && (int64_t)rows * 2 > slots)
        return most;
    for (int32_t i = 0; i < rows; i++) {
        while (plan[i].parts < DSD_NARROW_CLUSTER &&
               2 * (int64_t)plan[i].steps > 3 * limit * plan[i].parts)
            plan[i].parts *= 2;
        most = plan[i].parts > most ? plan[i].parts : most;
    }
    return most;
}

static void pieces_fill(const row_plan *plan, int32_t rows, dsd_narrow_piece *to)
{
    for (int32_t r = 0; r < rows; r++)
        for (int32_t i = 0; i < plan[r].parts; i++) {
            const int32_t from = (int32_t)((int64_t)plan[r].steps * i / plan[r].parts);
            const int32_t end = (int32_t)((int64_t)plan[r].steps * (i + 1) / plan[r].parts);
            *to++ = (dsd_narrow_piece){.first = plan[r].first + from,
                                       .steps = end - from,
                                       .row = plan[r].row,
                                       .part = (int16_t)i,
                                       .parts = (int16_t)plan[r].parts};
        }
}

/* The tables of a plan, on their way to the device. */
typedef struct tables {
    dsd_few_run *runs;
    dsd_narrow_piece *pieces;
    row_plan *plan;
} tables;

static bsk_status tables_make(simt_device *d, const bsk_problem *problem, const bski_lines *lines,
                              tables *t, state *st)
{
    const dsd_few_shape shape = bski_dsd_few_shape(problem);
    const int32_t rows = lines->grid, parts = (1 << st->kernel->columns / 16) - 1;
    TRY(host_array(d->host, &t->plan, rows, sizeof *t->plan));
    const int32_t steps = rows_fill(problem, lines, t->plan);
    TRY(host_array(d->host, &t->runs, (int64_t)steps * DSD_FEW_STEP, sizeof *t->runs));
    for (int32_t i = 0; i < rows; i++)
        bski_dsd_few_runs(problem, &shape, lines, i, 0, parts,
                          t->runs + (int64_t)t->plan[i].first * DSD_FEW_STEP);
    st->arg.cluster = rows_cut(steps, rows, d->props.compute_units * st->kernel->blocks, t->plan);
    int64_t count = 0;
    for (int32_t i = 0; i < rows; i++)
        count += t->plan[i].parts;
    qsort(t->plan, (size_t)rows, sizeof *t->plan, longer);
    st->count = (int32_t)(bski_ceil_div(count, st->arg.cluster) * st->arg.cluster);
    TRY(host_array(d->host, &t->pieces, st->count, sizeof *t->pieces));
    pieces_fill(t->plan, rows, t->pieces);
    for (; count < st->count; count++)
        t->pieces[count] = (dsd_narrow_piece){.row = -1, .parts = 1};
    TRY(table_place(d, t->runs, (int64_t)steps * DSD_FEW_STEP, sizeof *t->runs, &st->runs,
                    &st->arg.runs));
    return table_place(d, t->pieces, st->count, sizeof *t->pieces, &st->pieces, &st->arg.pieces);
}

static bsk_status tables_put(simt_device *d, const bsk_problem *problem, state *st)
{
    const bski_lines lines = bski_layout_lines(problem->layout, st->kernel->flip);
    tables t = {0};
    const bsk_status status = tables_make(d, problem, &lines, &t, st);
    host_drop(d->host, t.runs);
    host_drop(d->host, t.pieces);
    host_drop(d->host, t.plan);
    return status;
}

/* --- Plans --- */

static bsk_status plan_make(bski_cuda_device *d, const bsk_problem *problem, state *st)
{
    const bsk_dsd_params *p = problem->params;
    const dsd_few_shape shape = bski_dsd_few_shape(problem);
    st->kernel =
        bski_dsd_few_find(kernels, sizeof kernels / sizeof *kernels, problem->dtype, &shape);
    if (!st->kernel)
        return d->simt.host->fail(d->simt.host->context, BSK_E_INTERNAL,
                                  "cuda: an unaccepted product");
    st->shared_bytes = sizeof(float) * DSD_NARROW_WARPS *
                       (size_t)DSD_NARROW_SCRATCH(st->kernel->tile, st->kernel->columns);
    bski_dsd_few_fill(problem, &st->arg.operands);
    if (!p->c.dims[1])
        return BSK_OK;
    TRY(bski_cuda_kernel(d, st->kernel->function, st->shared_bytes, st->kernel->name));
    return tables_put(&d->simt, problem, st);
}

bsk_status cuda_sm90a_dsd_narrow_prepare(void *device, bsk_prepared *prepared)
{
    bski_cuda_device *d = device;
    TRY(state_new(&d->simt, sizeof(state), prepared));
    const bsk_status status = plan_make(d, prepared->problem, prepared->state);
    if (status)
        cuda_sm90a_dsd_narrow_release(device, prepared);
    return status;
}

void cuda_sm90a_dsd_narrow_release(void *device, bsk_prepared *prepared)
{
    bski_cuda_device *d = device;
    state *st = prepared->state;
    if (!st)
        return;
    table_drop(&d->simt, &st->runs);
    table_drop(&d->simt, &st->pieces);
    state_free(&d->simt, prepared);
}

bsk_status cuda_sm90a_dsd_narrow_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const state *st = prepared->state;
    dsd_narrow_arg arg = st->arg;
    bski_dsd_few_bind(args, &arg.operands);
    void *arguments[] = {&arg};
    const bski_cuda_run run = {
        .function = st->kernel->function,
        .name = st->kernel->name,
        .grid = {(unsigned)st->count, 1, 1},
        .threads = DSD_NARROW_THREADS,
        .cluster = (unsigned)arg.cluster,
        .shared_bytes = st->shared_bytes,
        .arguments = arguments,
        .early = true,
    };
    return bski_cuda_launch(queue, &run);
}
