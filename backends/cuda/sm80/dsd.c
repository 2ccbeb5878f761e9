/* Plans and launches dsd for sm80: dsd_mma for any minibatch, dsd_narrow for small ones. Both read
 * the blocks as they are, through tables of the lists by block row of op(S). */
#include <math.h>
#include <stdlib.h>

#include <backends/cuda/sm80/dsd_host.h>

CUDA_FUNCTIONS(sm80_dsd_narrow)

/* --- Kernels --- */

/* MMA_SCRATCH: through which a tile of sums is stored. */
enum {
    MMA_THREADS = 256,
    MMA_SCRATCH = 8 * 32 * 33 * 4,
    MMA_STAGES = 4,
    NARROW_COLUMNS = 64,
    NARROW_RUNS = 4
};

#define MMA_KERNELS(X)                                                                             \
    X(8, 256, f16, BSK_F16)                                                                        \
    X(16, 256, f16, BSK_F16)                                                                       \
    X(32, 256, f16, BSK_F16)                                                                       \
    X(64, 256, f16, BSK_F16)                                                                       \
    X(128, 128, f16, BSK_F16)                                                                      \
    X(8, 256, bf16, BSK_BF16)                                                                      \
    X(16, 256, bf16, BSK_BF16)                                                                     \
    X(32, 256, bf16, BSK_BF16)                                                                     \
    X(64, 256, bf16, BSK_BF16)                                                                     \
    X(128, 128, bf16, BSK_BF16)
#define NARROW_SIZES(X, type, dtype)                                                               \
    X(8, 16, type, dtype, 4)                                                                       \
    X(16, 16, type, dtype, 4)                                                                      \
    X(32, 16, type, dtype, 4)                                                                      \
    X(8, 32, type, dtype, 3)                                                                       \
    X(16, 32, type, dtype, 3)                                                                      \
    X(32, 32, type, dtype, 3)                                                                      \
    X(8, 64, type, dtype, 3)                                                                       \
    X(16, 64, type, dtype, 3)                                                                      \
    X(32, 64, type, dtype, 3)
#define NARROW_KERNELS(X)                                                                          \
    NARROW_SIZES(X, f16, BSK_F16)                                                                  \
    NARROW_SIZES(X, bf16, BSK_BF16)

/* The address of the symbol that the compiler makes for a kernel stands for it. */
#define MMA_DECLARE(features, columns, type, dtype)                                                \
    extern const char sm80_dsd_mma_##features##_##type[];
MMA_KERNELS(MMA_DECLARE)
#define NARROW_DECLARE(features, columns, type, dtype, stages)                                     \
    extern const char sm80_dsd_narrow_##features##_##columns##_##type[];
NARROW_KERNELS(NARROW_DECLARE)
extern const char sm80_dsd_narrow_finish[];

#define MMA_ROW(features, columns, type, dtype)                                                    \
    KERNEL_ROW(sm80_dsd_mma_##features##_##type, dtype, features, columns, MMA_STAGES)
static const kernel_row mma_rows[] = {MMA_KERNELS(MMA_ROW){0}};
#define NARROW_ROW(features, columns, type, dtype, stages)                                         \
    KERNEL_ROW(sm80_dsd_narrow_##features##_##columns##_##type, dtype, features, columns, stages)
static const kernel_row narrow_rows[] = {NARROW_KERNELS(NARROW_ROW){0}};

/* --- The problem --- */

/* The lists that op(S) follows. */
typedef struct lists {
    const int64_t *start; /* [heads][rows + 1] */
    const int32_t *column, *slot;
    int32_t rows, columns; /* of the grid of op(S) */
    int32_t block_rows, block_cols;
} lists;

static lists lists_of(const bsk_problem *problem)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    if (p->transpose_s)
        return (lists){t->col_start, t->col_row,    t->col_slot,  t->grid_cols,
                       t->grid_rows, t->block_cols, t->block_rows};
    return (lists){t->row_start, t->row_col,    t->row_slot,  t->grid_rows,
                   t->grid_cols, t->block_rows, t->block_cols};
}

static int64_t list_length(const lists *l, int32_t head, int32_t row)
{
    const int64_t *start = l->start + (int64_t)head * (l->rows + 1) + row;
    return start[1] - start[0];
}

static int64_t member_count(const bsk_dsd_params *p)
{
    return p->c.rank == 3 ? p->c.dims[0] : 1;
}

static int64_t column_count(const bsk_dsd_params *p)
{
    return p->c.dims[p->c.rank - 1];
}

static void arg_fill(const bsk_problem *problem, dsd_arg *a)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const lists l = lists_of(problem);
    const int32_t j = p->b.rank - 2, n = p->b.rank - 1;
    a->s_group = p->s.rank == 4 && p->s.dims[0] > 1 ? p->s.strides[0] : 0;
    a->b_batch = p->b.rank == 3 && p->b.dims[0] > 1 ? p->b.strides[0] : 0;
    a->b_row = p->b.strides[j];
    a->b_col = p->b.strides[n];
    a->b_along_k = a->b_row == 1;
    const int32_t run = run_elements(problem->dtype);
    const int64_t lines = p->b.dims[a->b_along_k ? n : j];
    a->b_vector = aligned(a->b_batch, run) &&
                  (lines <= 1 || aligned(a->b_along_k ? a->b_col : a->b_row, run));
    a->cols = column_count(p);
    a->depth = p->b.dims[j];
    a->block_rows = l.block_rows;
    a->block_cols = l.block_cols;
    a->granule_shift = bski_bits((uint64_t)(l.block_cols / run));
    a->heads = t->heads;
    a->groups = p->s.rank == 4 ? (int32_t)p->s.dims[0] : 1;
    a->s_flip = p->transpose_s != 0;
    bski_cuda_epilogue_fill(problem, &a->end);
}

/* What both families ask for. */
bsk_reason bski_dsd80_accept(const bsk_problem *problem)
{
    enum { MAX_GRID = 65535 };
    const bsk_dsd_params *p = problem->params;
    const lists l = lists_of(problem);
    const int32_t j = p->b.rank - 2, n = p->b.rank - 1;
    const bsk_reason reason = bski_cuda_epilogue_accept(problem);
    if (reason)
        return reason;
    if (p->b.strides[j] != 1 && p->b.strides[n] != 1)
        return BSK_REFUSE_STRIDE;
    const int32_t run = run_elements(problem->dtype);
    if (p->s.rank == 4 && p->s.dims[0] > 1 && !aligned(p->s.strides[0], run))
        return BSK_REFUSE_STRIDE;
    if (member_count(p) > MAX_GRID ||
        bski_ceil_div(column_count(p), mma_rows[4].columns) > MAX_GRID ||
        (int64_t)l.columns * l.block_cols > INT32_MAX / 2 ||
        (int64_t)l.rows * l.block_rows > INT32_MAX)
        return BSK_REFUSE_LIMIT;
    return BSK_ACCEPT;
}

/* --- Segments --- */

/* State of a plan. */
typedef struct dsd_plan {
    const kernel_row *kernel;
    bsk_mem blocks, segments, segment_start, cuts, cut_start;
    dsd_arg arg;
    unsigned grid[3], cut_grid[3];
    unsigned threads; /* of dsd_narrow */
    size_t shared_bytes;
} dsd_plan;

/* The segments of all heads, and the rows that were cut; arrays belong to the host's allocator. */
typedef struct schedule {
    dsd_segment *segments, *cuts;
    int32_t *segment_start, *cut_start;
    int32_t parts;                    /* of the rows that were cut */
    int32_t most_segments, most_cuts; /* of a head */
} schedule;

static void schedule_free(const bsk_host *host, schedule *s)
{
    host_drop(host, s->segments);
    host_drop(host, s->cuts);
    host_drop(host, s->segment_start);
    host_drop(host, s->cut_start);
}

/* Longest first, then in the order of the rows. */
static int longer(const void *x, const void *y)
{
    const dsd_segment *a = x, *b = y;
    if (a->count != b->count)
        return a->count > b->count ? -1 : 1;
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    return a->row - b->row;
}

/* How many segments a list of so many blocks makes. */
static int32_t cut_count(int64_t length, int64_t limit)
{
    return length > limit + limit / 2 ? (int32_t)bski_ceil_div(length, limit) : 1;
}

static void row_cut(const lists *l, int32_t head, int32_t row, int64_t limit, schedule *s,
                    int32_t *segments, int32_t *cuts)
{
    const int64_t first = l->start[(int64_t)head * (l->rows + 1) + row];
    const int64_t length = list_length(l, head, row);
    const int32_t pieces = cut_count(length, limit);
    for (int32_t i = 0; i < pieces; i++) {
        const int64_t from = length * i / pieces, to = length * (i + 1) / pieces;
        s->segments[(*segments)++] = (dsd_segment){.first = first + from,
                                                   .count = (int32_t)(to - from),
                                                   .row = row,
                                                   .part = pieces > 1 ? s->parts + i : -1};
    }
    if (pieces > 1) {
        s->cuts[(*cuts)++] = (dsd_segment){.count = pieces, .row = row, .part = s->parts};
        s->parts += pieces;
    }
}

/* Cuts lists that are longer than 1.5 `limit` blocks. */
static bsk_status schedule_make(const bsk_host *host, const lists *l, int32_t heads, int64_t limit,
                                schedule *s)
{
    int64_t segments = 0, cuts = 0;
    for (int32_t h = 0; h < heads; h++)
        for (int32_t row = 0; row < l->rows; row++) {
            const int32_t pieces = cut_count(list_length(l, h, row), limit);
            segments += pieces;
            cuts += pieces > 1;
        }
    *s = (schedule){0};
    if (segments > INT32_MAX)
        return host->fail(host->context, BSK_E_UNSUPPORTED, "dsd: more block rows than %d",
                          INT32_MAX);
    TRY(host_array(host, &s->segments, segments, sizeof *s->segments));
    TRY(host_array(host, &s->cuts, cuts, sizeof *s->cuts));
    TRY(host_array(host, &s->segment_start, (int64_t)heads + 1, sizeof *s->segment_start));
    TRY(host_array(host, &s->cut_start, (int64_t)heads + 1, sizeof *s->cut_start));
    int32_t at = 0, cut = 0;
    for (int32_t h = 0; h < heads; h++) {
        const int32_t first = at, first_cut = cut;
        for (int32_t row = 0; row < l->rows; row++)
            row_cut(l, h, row, limit, s, &at, &cut);
        qsort(s->segments + first, (size_t)(at - first), sizeof *s->segments, longer);
        s->segment_start[h + 1] = at;
        s->cut_start[h + 1] = cut;
        s->most_segments = at - first > s->most_segments ? at - first : s->most_segments;
        s->most_cuts = cut - first_cut > s->most_cuts ? cut - first_cut : s->most_cuts;
    }
    return BSK_OK;
}

static bsk_status blocks_put(simt_device *d, const lists *l, int64_t nnz, dsd_plan *plan)
{
    const bsk_host *host = d->host;
    dsd_block *blocks;
    TRY(host_array(host, &blocks, nnz, sizeof *blocks));
    for (int64_t e = 0; e < nnz; e++)
        blocks[e] = (dsd_block){l->column[e], l->slot[e]};
    const bsk_status status =
        table_place(d, blocks, nnz, sizeof *blocks, &plan->blocks, &plan->arg.blocks);
    host_drop(host, blocks);
    return status;
}

static bsk_status tables_put(simt_device *d, const bsk_problem *problem, const schedule *s,
                             dsd_plan *plan)
{
    const bsk_layout_tables *t = problem->layout;
    const lists l = lists_of(problem);
    const int64_t starts = (int64_t)t->heads + 1;
    dsd_arg *a = &plan->arg;
    TRY(blocks_put(d, &l, t->nnz, plan));
    TRY(table_place(d, s->segments, s->segment_start[t->heads], sizeof *s->segments,
                    &plan->segments, &a->segments));
    TRY(table_place(d, s->segment_start, starts, sizeof *s->segment_start, &plan->segment_start,
                    &a->segment_start));
    TRY(table_place(d, s->cuts, s->cut_start[t->heads], sizeof *s->cuts, &plan->cuts, &a->cuts));
    return table_place(d, s->cut_start, starts, sizeof *s->cut_start, &plan->cut_start,
                       &a->cut_start);
}

/* --- Plans --- */

static bsk_status plan_new(simt_device *d, bsk_prepared *prepared, dsd_plan **plan)
{
    TRY(state_new(d, sizeof **plan, prepared));
    *plan = prepared->state;
    arg_fill(prepared->problem, &(*plan)->arg);
    return BSK_OK;
}

void bski_dsd80_release(simt_device *d, bsk_prepared *prepared)
{
    dsd_plan *plan = prepared->state;
    if (!plan)
        return;
    bsk_mem *tables[] = {&plan->blocks, &plan->segments, &plan->segment_start, &plan->cuts,
                         &plan->cut_start};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        table_drop(d, tables[i]);
    state_free(d, prepared);
}

/* Cuts lists at `limit` blocks, and uploads the tables. */
static bsk_status plan_tables(bski_cuda_device *device, bsk_prepared *prepared, int64_t limit,
                              dsd_plan *plan, schedule *s)
{
    simt_device *d = &device->simt;
    const lists l = lists_of(prepared->problem);
    TRY(bski_cuda_kernel(device, plan->kernel->function, plan->shared_bytes, plan->kernel->name));
    TRY(schedule_make(d->host, &l, prepared->problem->layout->heads, limit, s));
    return tables_put(d, prepared->problem, s, plan);
}

static dsd_arg arg_bind(const dsd_plan *plan, const bsk_dsd_args *args)
{
    dsd_arg a = plan->arg;
    a.s = bsk_mem_address(args->s);
    a.b = bsk_mem_address(args->b);
    a.gate = bsk_mem_address(args->gate);
    a.parts = bsk_mem_address(args->workspace);
    bski_cuda_epilogue_bind(args, &a.end);
    a.bare = a.end.beta == 0 && a.end.act == BSK_ACT_NONE && a.end.residual.type == BSK_NONE &&
             !a.end.bias && !a.end.row_scale && !a.end.col_scale;
    return a;
}

static bsk_status plan_run(const dsd_plan *plan, const bski_cuda_queue *queue, unsigned threads,
                           void **arguments, bool early)
{
    const bski_cuda_run run = {.function = plan->kernel->function,
                               .name = plan->kernel->name,
                               .grid = {plan->grid[0], plan->grid[1], plan->grid[2]},
                               .threads = threads,
                               .shared_bytes = plan->shared_bytes,
                               .arguments = arguments,
                               .early = early};
    return bski_cuda_launch(queue, &run);
}

/* --- Estimates --- */

static double kept_elements(const bsk_problem *problem)
{
    const bsk_layout_tables *t = problem->layout;
    const bsk_dsd_params *p = problem->params;
    return (double)t->nnz * t->block_rows * t->block_cols * (double)(member_count(p) / t->heads);
}

/* --- dsd_mma --- */

bsk_status bski_dsd80_prepare(void *device, bsk_prepared *prepared, const kernel_row *rows)
{
    simt_device *d = device;
    const bsk_problem *problem = prepared->problem;
    const bsk_dsd_params *p = problem->params;
    schedule s = {0};
    dsd_plan *plan;
    TRY(plan_new(d, prepared, &plan));
    plan->kernel = kernel_find(rows, problem->dtype, plan->arg.block_rows, 0);
    plan->arg.tiles = 1;
    plan->shared_bytes = (size_t)plan->kernel->stage_bytes * (size_t)plan->kernel->stages;
    if (plan->shared_bytes < MMA_SCRATCH)
        plan->shared_bytes = MMA_SCRATCH;
    bsk_status status = plan_tables(device, prepared, INT64_MAX / 4, plan, &s);
    plan->grid[0] = (unsigned)s.most_segments;
    plan->grid[1] = (unsigned)bski_ceil_div(column_count(p), plan->kernel->columns);
    plan->grid[2] = (unsigned)member_count(p);
    schedule_free(d->host, &s);
    if (status)
        bski_dsd80_release(d, prepared);
    return status;
}

bsk_status bski_dsd80_launch_with(const bsk_prepared *prepared, void *queue, const void *args,
                                  unsigned threads, void *second)
{
    const dsd_plan *plan = prepared->state;
    dsd_arg a = arg_bind(plan, args);
    void *arguments[] = {&a, second};
    return plan_run(plan, queue, threads, arguments, false);
}

bsk_status bski_dsd80_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    return bski_dsd80_launch_with(prepared, queue, args, MMA_THREADS, NULL);
}

FAMILY(bski_dsd80, sm80_dsd_mma, bski_dsd80_accept, mma_rows)

/* --- dsd_narrow --- */

enum { FEW_WARPS = 4, MANY_WARPS = 8, MANY_STAGES = 16, UNIT_BLOCKS = 4, FINISH_THREADS = 128 };

static const kernel_row *narrow_kernel(const bsk_problem *problem)
{
    const lists l = lists_of(problem);
    return kernel_find(narrow_rows, problem->dtype, l.block_rows < 32 ? l.block_rows : 32,
                       column_count(problem->params));
}

bsk_reason cuda_sm80_dsd_narrow_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    (void)props;
    if (column_count(problem->params) > NARROW_COLUMNS)
        return BSK_REFUSE_SHAPE;
    return bski_dsd80_accept(problem);
}

/* Stages of all lists, for one member of each head. */
static double stage_count(const bsk_problem *problem, const kernel_row *kernel)
{
    const lists l = lists_of(problem);
    const double runs = (double)problem->layout->nnz * l.block_cols / DSD_RUN;
    return runs / NARROW_RUNS * (l.block_rows / kernel->features);
}

double cuda_sm80_dsd_narrow_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    /* A launch with its look-ups, which nothing hides; bytes from memory a second. Measured. */
    static const double launch_seconds = 6e-6, memory_bytes = 4.0e12;
    /* A compute unit's time for a stage, and for each column of it: the rows of columns that are
     * contiguous along the depth lie apart, and single runs of them still more so. */
    static const double stage_seconds = 34e-9, across = 1.2e-9, along = 2.2e-9, scattered = 3.3e-9;
    const bsk_dsd_params *p = problem->params;
    const lists l = lists_of(problem);
    const kernel_row *k = narrow_kernel(problem);
    const bool along_k = p->b.strides[p->b.rank - 2] == 1;
    const double column = !along_k ? across : l.block_cols == DSD_RUN ? scattered : along;
    const double groups = (double)(member_count(p) / problem->layout->heads);
    const double stages = stage_count(problem, k) * groups / props->compute_units;
    const double bytes = 2 * kept_elements(problem);
    return launch_seconds +
           fmax(bytes / memory_bytes, stages * (stage_seconds + k->columns * column));
}

/* Long lists are cut into pieces of about twice an even share. */
static int64_t narrow_limit(const bsk_problem *problem, const simt_device *d, const dsd_plan *plan)
{
    const dsd_arg *a = &plan->arg;
    const double groups = (double)(member_count(problem->params) / a->heads);
    const double share = stage_count(problem, plan->kernel) * groups /
                         ((double)d->props.compute_units * UNIT_BLOCKS);
    const double chunks = fmax(2 * share, 4 * MANY_WARPS);
    const double blocks = chunks * NARROW_RUNS * DSD_RUN / a->block_cols;
    return blocks > 1 ? (int64_t)blocks : 1;
}

/* The workspace of the parts of rows that are cut. */
static bsk_status narrow_space(const bsk_host *host, bsk_prepared *prepared, const schedule *s,
                               dsd_plan *plan)
{
    dsd_arg *a = &plan->arg;
    const int64_t members = member_count(prepared->problem->params);
    const int64_t tile = (int64_t)a->tile_rows * a->tile_features * a->tiles;
    int64_t bytes;
    if (!bski_mul_i64(s->parts, tile, &a->part_stride) ||
        !bski_mul_i64(a->part_stride, members * (int64_t)sizeof(float), &bytes))
        return host->fail(host->context, BSK_E_UNSUPPORTED,
                          "dsd: the workspace is larger than can be counted");
    prepared->workspace_bytes = (size_t)bytes;
    return BSK_OK;
}

/* A plan for thread blocks of so many warps. */
static bsk_status narrow_plan(void *device, bsk_prepared *prepared, const kernel_row *k,
                              int32_t warps, size_t shared_bytes)
{
    simt_device *d = device;
    const bsk_problem *problem = prepared->problem;
    const bsk_dsd_params *p = problem->params;
    schedule s = {0};
    dsd_plan *plan;
    TRY(plan_new(d, prepared, &plan));
    dsd_arg *a = &plan->arg;
    plan->kernel = k;
    plan->threads = 32 * (unsigned)warps;
    plan->shared_bytes = shared_bytes;
    a->tiles = a->block_rows / k->features;
    a->tile_rows = k->columns;
    a->tile_features = k->features;
    bsk_status status = plan_tables(device, prepared, narrow_limit(problem, d, plan), plan, &s);
    if (!status)
        status = narrow_space(d->host, prepared, &s, plan);
    if (!status && s.most_cuts)
        status = bski_cuda_kernel(device, sm80_dsd_narrow_finish, 0, "sm80_dsd_narrow_finish");
    const unsigned some = column_count(p) > 0, members = (unsigned)member_count(p);
    plan->grid[0] = (unsigned)s.most_segments * (unsigned)a->tiles;
    plan->grid[1] = some;
    plan->grid[2] = members;
    plan->cut_grid[0] = (unsigned)s.most_cuts * (unsigned)a->tiles;
    plan->cut_grid[1] =
        some * (unsigned)bski_ceil_div((int64_t)k->columns * k->features / DSD_RUN, FINISH_THREADS);
    plan->cut_grid[2] = members;
    schedule_free(d->host, &s);
    if (status)
        bski_dsd80_release(d, prepared);
    return status;
}

/* The shared memory of so many warps. */
static size_t narrow_bytes(const kernel_row *k, int32_t warps)
{
    return (size_t)(warps * k->stages) * ((size_t)k->stage_bytes + NARROW_RUNS * sizeof(float));
}

bsk_status cuda_sm80_dsd_narrow_prepare(void *device, bsk_prepared *prepared)
{
    const bski_cuda_device *d = device;
    const bsk_problem *problem = prepared->problem;
    const lists l = lists_of(problem);
    const kernel_row *k = narrow_kernel(problem);
    const double tiles = (double)l.rows * problem->layout->heads * (l.block_rows / k->features);
    /* the largest tile has registers for few warps only, and 8.6 has less shared memory than 8.0 */
    const bool many = stage_count(problem, k) > MANY_STAGES * tiles &&
                      k->features * k->columns < 32 * NARROW_COLUMNS &&
                      narrow_bytes(k, MANY_WARPS) <= d->shared_bytes;
    const int32_t warps = many ? MANY_WARPS : FEW_WARPS;
    return narrow_plan(device, prepared, k, warps, narrow_bytes(k, warps));
}

bsk_status cuda_sm80_dsd_narrow_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const dsd_plan *plan = prepared->state;
    dsd_arg a = arg_bind(plan, args);
    void *arguments[] = {&a};
    const bski_cuda_run finish = {.function = sm80_dsd_narrow_finish,
                                  .name = "sm80_dsd_narrow_finish",
                                  .grid = {plan->cut_grid[0], plan->cut_grid[1], plan->cut_grid[2]},
                                  .threads = FINISH_THREADS,
                                  .arguments = arguments,
                                  .early = starts_early(queue)};
    TRY(plan_run(plan, queue, plan->threads, arguments, starts_early(queue)));
    return bski_cuda_launch(queue, &finish);
}

void cuda_sm80_dsd_narrow_release(void *device, bsk_prepared *prepared)
{
    bski_dsd80_release(device, prepared);
}
