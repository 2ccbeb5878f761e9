/* Plans and launches the kernels of dsd_narrow.cu, dsd_stream.cu and dsd_stream_mma.cu: one launch a run,
 * and its parts all at work at once, as a launch costs as much as reading some megabytes. */
#include <stdlib.h>

#include <backends/cuda/sm90a/dsd_pieces.h>
#include <common/checked.h>

typedef struct state {
    const dsd_few_kernel *kernel;
    bsk_mem runs, pieces;
    dsd_narrow_arg arg;
    int32_t count; /* thread blocks along x */
    size_t shared_bytes;
} state;

/* A tile's list, and into how many parts it is cut. */
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

/* Where the steps of each tile are among those of all: a block row has so many. */
static int32_t rows_fill(const bsk_problem *problem, const bski_lines *lines, int32_t tiles,
                         row_plan *plan)
{
    int32_t at = 0;
    for (int32_t i = 0; i < lines->grid * tiles; i++) {
        plan[i] = (row_plan){.row = i, .parts = 1, .first = at};
        plan[i].steps = bski_dsd_few_row_steps(problem, lines, i / tiles);
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
    enum { PART = 16 }; /* samples, of which runs say that they have them */
    dsd_few_shape shape = bski_dsd_few_shape(problem);
    shape.tile = st->kernel->tile;
    const int32_t tiles = shape.block_i / shape.tile, rows = lines->grid * tiles;
    const int32_t parts = (1 << bski_ceil_div(st->kernel->columns, PART)) - 1;
    TRY(host_array(d->host, &t->plan, rows, sizeof *t->plan));
    const int32_t steps = rows_fill(problem, lines, tiles, t->plan);
    TRY(host_array(d->host, &t->runs, (int64_t)steps * DSD_FEW_STEP, sizeof *t->runs));
    for (int32_t i = 0; i < rows; i++)
        bski_dsd_few_runs(problem, &shape, lines, i / tiles, i % tiles, parts,
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

/* What kernels for so few samples need beside what all have. */
static void stream_fill(const bsk_problem *problem, dsd_narrow_arg *a)
{
    const bsk_dsd_params *p = problem->params;
    const int64_t bytes = bski_dsd_few_shape(problem).bytes;
    a->k_pitch = (int32_t)(p->b.strides[0] * bytes);
    a->n_pitch = (int32_t)(p->b.strides[1] * bytes);
    a->s_e5m2 = p->s.dtype == BSK_F8E5M2;
    a->b_e5m2 = p->b.dtype == BSK_F8E5M2;
}

static bsk_status plan_make(bski_cuda_device *d, const bsk_problem *problem, int32_t slots,
                            state *st)
{
    enum { LEAST = 8 }; /* samples that there is room for */
    const bsk_dsd_params *p = problem->params;
    const dsd_few_kernel *k = st->kernel;
    if (!k)
        return d->simt.host->fail(d->simt.host->context, BSK_E_INTERNAL,
                                  "cuda: an unaccepted product");
    const int32_t columns = k->columns > LEAST ? k->columns : LEAST;
    st->shared_bytes = DSD_NARROW_WARPS * (sizeof(float) * DSD_NARROW_SCRATCH(k->tile, columns) +
                                           (size_t)slots * DSD_STREAM_SLOT_BYTES);
    bski_dsd_few_fill(problem, &st->arg.operands);
    stream_fill(problem, &st->arg);
    if (!p->c.dims[1])
        return BSK_OK;
    TRY(bski_cuda_kernel(d, k->function, st->shared_bytes, k->name));
    return tables_put(&d->simt, problem, st);
}

bsk_status bski_dsd_pieces_prepare(bski_cuda_device *device, bsk_prepared *prepared,
                                   const dsd_few_kernel *kernel, int32_t slots)
{
    TRY(state_new(&device->simt, sizeof(state), prepared));
    state *st = prepared->state;
    st->kernel = kernel;
    const bsk_status status = plan_make(device, prepared->problem, slots, st);
    if (status)
        bski_dsd_pieces_release(device, prepared);
    return status;
}

void bski_dsd_pieces_release(bski_cuda_device *device, bsk_prepared *prepared)
{
    state *st = prepared->state;
    if (!st)
        return;
    table_drop(&device->simt, &st->runs);
    table_drop(&device->simt, &st->pieces);
    state_free(&device->simt, prepared);
}

bsk_status bski_dsd_pieces_launch(const bsk_prepared *prepared, void *queue, const void *args)
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
