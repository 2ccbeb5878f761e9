/* Plans and launches dsd_sm90a_narrow: small minibatches, blocks as they are. One launch a run, and
 * its parts all at work at once, as a launch costs as much as reading some megabytes. */
#include <stdlib.h>
#include <string.h>

#include <backends/cuda/host.h>
#include <backends/cuda/sm90a/dsd_narrow.h>
#include <common/checked.h>
#include <common/layout.h>

CUDA_FUNCTIONS(sm90a_dsd_narrow)

enum { MAX_TILE = 16, MIN_COLUMNS = 16, UNIT_BYTES = 16 /* of offsets */ };
#define MOST_BYTES ((double)UNIT_BYTES * (UINT32_MAX - 1))

/* --- The problem --- */

typedef struct shape {
    int32_t tile, block_k; /* of op(S): features of a tile are those of a block */
    int32_t columns;       /* samples of a tile */
    bool flip;
} shape;

static shape shape_of(const bsk_problem *problem)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const int64_t n = p->c.dims[p->c.rank - 1];
    shape s = {.flip = p->transpose_s != 0};
    s.tile = s.flip ? t->block_cols : t->block_rows;
    s.block_k = s.flip ? t->block_rows : t->block_cols;
    s.columns = MIN_COLUMNS;
    while (s.columns < n)
        s.columns *= 2;
    return s;
}

bsk_reason cuda_sm90a_dsd_narrow_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bsk_tensor *b = &p->b;
    (void)props;
    if (p->c.rank != 2 || t->heads != 1 || (p->s.rank == 4 && p->s.dims[0] != 1))
        return BSK_REFUSE_RANK;
    if (p->gate.dtype != BSK_NONE)
        return BSK_REFUSE_OPTION;
    if (p->c.dims[1] > DSD_NARROW_COLUMNS)
        return BSK_REFUSE_SHAPE;
    const shape s = shape_of(problem);
    if (s.tile > MAX_TILE)
        return BSK_REFUSE_BLOCK;
    if (b->strides[0] != 1 || (b->dims[1] > 1 && b->strides[1] % DSD_RUN != 0))
        return BSK_REFUSE_STRIDE;
    if (b->dims[0] % DSD_RUN != 0)
        return BSK_REFUSE_SHAPE;
    if ((double)t->nnz * t->block_rows * t->block_cols * 2 >= MOST_BYTES ||
        (double)b->dims[0] * (double)b->strides[0] * 2 >= MOST_BYTES ||
        (double)t->nnz * s.block_k / DSD_RUN >= INT32_MAX / 4 || b->strides[0] >= INT32_MAX / 2 ||
        b->strides[1] >= INT32_MAX / 16)
        return BSK_REFUSE_LIMIT;
    return bski_cuda_epilogue_accept(problem);
}

double cuda_sm90a_dsd_narrow_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    /* A launch and the chain of accesses of a thread block; bytes a second from memory; a
     * multiprocessor's time for a step, for one whose weights lie across the depth, and for each
     * sample. Measured. */
    static const double launch = 6e-6, memory = 3.8e12;
    static const double step = 12e-9, across = 25e-9, sample = 1.73e-9;
    const bsk_layout_tables *t = problem->layout;
    const bsk_dsd_params *p = problem->params;
    const shape s = shape_of(problem);
    const double kept = (double)t->nnz * t->block_rows * t->block_cols;
    const double steps = kept / (s.tile * DSD_NARROW_STEP * DSD_RUN) / props->compute_units;
    const double work =
        steps * ((s.flip ? across : step) + sample * (double)p->c.dims[p->c.rank - 1]);
    return launch + (work > 2 * kept / memory ? work : 2 * kept / memory);
}

/* --- Kernels --- */

typedef struct kernel_row {
    const void *function;
    const char *name;
    bsk_dtype dtype;
    bool flip;
    int32_t tile, columns;
    int32_t blocks; /* of a multiprocessor at a time */
} kernel_row;

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
     tile,                                                                                         \
     columns,                                                                                      \
     blocks},
static const kernel_row kernels[] = {KERNELS(ROW)};
#undef ROW

static const kernel_row *kernel_find(bsk_dtype dtype, const shape *s)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        const kernel_row *k = &kernels[i];
        if (k->dtype == dtype && k->flip == s->flip && k->tile == s->tile &&
            k->columns == s->columns)
            return k;
    }
    return NULL;
}

/* --- Pieces --- */

typedef struct state {
    const kernel_row *kernel;
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

/* The runs of all rows, and where each row's are. Runs beyond the depth are left out. */
static int32_t runs_fill(const bsk_problem *problem, const shape *s, const bski_lines *lines,
                         dsd_narrow_run *runs, row_plan *plan)
{
    const bsk_dsd_params *p = problem->params;
    const int64_t block = (int64_t)s->tile * s->block_k, depth = p->b.dims[0];
    const int64_t pitch = s->flip ? s->tile : 1; /* of the values, along the depth */
    int64_t at = 0;
    for (int32_t i = 0; i < lines->grid; i++) {
        plan[i] = (row_plan){.row = i, .parts = 1, .first = (int32_t)(at / DSD_NARROW_STEP)};
        for (int64_t e = lines->start[i]; e < lines->start[i + 1]; e++)
            for (int32_t inner = 0; inner < s->block_k; inner += DSD_RUN) {
                const int64_t k = (int64_t)lines->index[e] * s->block_k + inner;
                const int64_t value = lines->slot[e] * block + inner * pitch;
                if (k < depth)
                    runs[at++] = (dsd_narrow_run){(uint32_t)(k * p->b.strides[0] * 2 / UNIT_BYTES),
                                                  (uint32_t)(value * 2 / UNIT_BYTES)};
            }
        while (at % DSD_NARROW_STEP)
            runs[at++] = (dsd_narrow_run){DSD_NARROW_NONE, DSD_NARROW_NONE};
        plan[i].steps = (int32_t)(at / DSD_NARROW_STEP) - plan[i].first;
    }
    return (int32_t)(at / DSD_NARROW_STEP);
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
    dsd_narrow_run *runs;
    dsd_narrow_piece *pieces;
    row_plan *plan;
} tables;

static bsk_status tables_make(simt_device *d, const bsk_problem *problem, const shape *s,
                              const bski_lines *lines, tables *t, state *st)
{
    const int32_t rows = lines->grid;
    const int64_t most =
        problem->layout->nnz * (s->block_k / DSD_RUN) + (int64_t)rows * DSD_NARROW_STEP;
    TRY(host_array(d->host, &t->runs, most, sizeof *t->runs));
    TRY(host_array(d->host, &t->plan, rows, sizeof *t->plan));
    const int32_t steps = runs_fill(problem, s, lines, t->runs, t->plan);
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
    TRY(table_place(d, t->runs, (int64_t)steps * DSD_NARROW_STEP, sizeof *t->runs, &st->runs,
                    &st->arg.runs));
    return table_place(d, t->pieces, st->count, sizeof *t->pieces, &st->pieces, &st->arg.pieces);
}

static bsk_status tables_put(simt_device *d, const bsk_problem *problem, const shape *s, state *st)
{
    const bski_lines lines = bski_layout_lines(problem->layout, s->flip);
    tables t = {0};
    const bsk_status status = tables_make(d, problem, s, &lines, &t, st);
    host_drop(d->host, t.runs);
    host_drop(d->host, t.pieces);
    host_drop(d->host, t.plan);
    return status;
}

/* --- Plans --- */

static void arg_fill(const bsk_problem *problem, const shape *s, dsd_narrow_arg *a)
{
    const bsk_dsd_params *p = problem->params;
    a->b_n = p->b.strides[1];
    a->block_k = s->block_k;
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
    st->shared_bytes =
        sizeof(float) * DSD_NARROW_WARPS * (size_t)DSD_NARROW_SCRATCH(s.tile, s.columns);
    arg_fill(problem, &s, &st->arg);
    if (!p->c.dims[1])
        return BSK_OK;
    TRY(bski_cuda_kernel(d, st->kernel->function, st->shared_bytes, st->kernel->name));
    return tables_put(&d->simt, problem, &s, st);
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
    const bsk_dsd_args *run_args = args;
    const state *st = prepared->state;
    dsd_narrow_arg arg = st->arg;
    arg.s = bsk_mem_address(run_args->s);
    arg.b = bsk_mem_address(run_args->b);
    bski_cuda_epilogue_bind(run_args, &arg.end);
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
