/* Plans and launches sdd for sm80. */
#include <backends/cuda/sm80/sdd_host.h>

enum { SUM_COLUMNS = 64, SUM_THREADS = 256, LEAST_SAMPLES = 256 };
enum { THREADS = 256, STAGES = 4, DEPTH_BYTES = 64, MAX_PARTS = 32, FINISH_THREADS = 128 };

#define SDD_KERNELS(X)                                                                             \
    X(8, 256, f16, BSK_F16)                                                                        \
    X(16, 256, f16, BSK_F16)                                                                       \
    X(32, 256, f16, BSK_F16)                                                                       \
    X(64, 128, f16, BSK_F16)                                                                       \
    X(128, 128, f16, BSK_F16)                                                                      \
    X(8, 256, bf16, BSK_BF16)                                                                      \
    X(16, 256, bf16, BSK_BF16)                                                                     \
    X(32, 256, bf16, BSK_BF16)                                                                     \
    X(64, 128, bf16, BSK_BF16)                                                                     \
    X(128, 128, bf16, BSK_BF16)                                                                    \
    X(8, 256, tf32, BSK_F32)                                                                       \
    X(16, 256, tf32, BSK_F32)                                                                      \
    X(32, 256, tf32, BSK_F32)                                                                      \
    X(64, 128, tf32, BSK_F32)                                                                      \
    X(128, 128, tf32, BSK_F32)
#define SDD_DECLARE(features, columns, type, dtype)                                                \
    extern const char sm80_sdd_mma_##features##_##type[];
SDD_KERNELS(SDD_DECLARE)
extern const char sm80_sdd_finish[], sm80_sdd_columns[], sm80_sdd_columns_finish[];

#define SDD_ROW(features, columns, type, dtype)                                                    \
    KERNEL_ROW(sm80_sdd_mma_##features##_##type, dtype, features, columns, STAGES)
static const kernel_row sdd_rows[] = {SDD_KERNELS(SDD_ROW){0}};

typedef struct sdd_plan {
    const kernel_row *kernel;
    bsk_mem tiles, blocks, slot_row, slot_col;
    sdd_arg arg;
    unsigned grid[3], finish_blocks, sum_blocks;
    size_t shared_bytes, sums; /* sums: in the workspace */
} sdd_plan;

/* --- The problem --- */

static const kernel_row *kernel_of(const bsk_problem *problem)
{
    return kernel_find(sdd_rows, problem->dtype, problem->layout->block_rows, 0);
}

static int64_t batch_stride(const bsk_tensor *t, int32_t plain_rank)
{
    return t->rank > plain_rank && t->dims[0] > 1 ? t->strides[0] : 0;
}

/* Whether runs along the contiguous axis are aligned: the other axis's and the batch's strides
 * decide. */
static bool runs_aligned(const bsk_tensor *t, int32_t other)
{
    const int32_t run = run_elements(t->dtype);
    return aligned(batch_stride(t, 2), run) &&
           (t->dims[other] <= 1 || aligned(t->strides[other], run));
}

static void arg_fill(const bsk_problem *problem, sdd_arg *a)
{
    const bsk_sdd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const int32_t x = p->a.rank - 2, y = p->a.rank - 1;
    const int64_t unit = p->s.dtype == BSK_F32 ? 4 : 8;
    a->a_batch = batch_stride(&p->a, 2);
    a->a_row = p->a.strides[x];
    a->a_k = p->a.strides[y];
    a->b_batch = batch_stride(&p->b, 2);
    a->b_k = p->b.strides[x];
    a->b_col = p->b.strides[y];
    a->s_group = batch_stride(&p->s, 3);
    a->w_group = p->w.dtype == BSK_NONE ? 0 : batch_stride(&p->w, 3);
    a->rows = t->rows;
    a->cols = t->cols;
    a->n = p->a.dims[y];
    a->nnz = t->nnz;
    a->pairs = p->pairs;
    a->heads = t->heads;
    a->groups = p->s.rank == 4 ? (int32_t)p->s.dims[0] : 1;
    a->members = a->groups > 1 || p->a.rank == 2 ? 1 : (int32_t)(p->a.dims[0] / t->heads);
    a->block_rows = t->block_rows;
    a->block_cols = t->block_cols;
    a->column_shift = bski_bits((uint64_t)(t->block_cols / DSD_RUN));
    a->gate_mode = (int32_t)p->gate_mode;
    a->a_along_k = a->a_row != 1;
    a->b_along_k = a->b_col != 1;
    a->a_vector = runs_aligned(&p->a, a->a_along_k ? x : y);
    a->b_vector = runs_aligned(&p->b, a->b_along_k ? y : x);
    a->type = (int32_t)problem->dtype;
    a->batch = p->b.rank == 3 ? p->b.dims[0] : 1;
    a->s = (dsd_matrix){.type = (int32_t)p->s.dtype, .wide = a->s_group % unit == 0};
}

/* Samples of a stage. */
static int32_t stage_depth(const sdd_arg *a)
{
    return DEPTH_BYTES / 16 * run_elements((bsk_dtype)a->type);
}

/* Stages of all samples of a block. */
static bool stage_count(const sdd_arg *a, int64_t *stages)
{
    return bski_mul_i64(bski_ceil_div(a->n, stage_depth(a)), (int64_t)a->members * a->pairs,
                        stages) &&
           *stages < INT32_MAX;
}

bsk_reason bski_sdd80_accept(const bsk_problem *problem)
{
    enum { MAX_GROUPS = 65535 };
    const bsk_sdd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const int32_t x = p->a.rank - 2, y = p->a.rank - 1;
    sdd_arg a = {0};
    int64_t stages, blocks;
    if (p->s.dtype != BSK_F32 && p->s.dtype != BSK_F16 && p->s.dtype != BSK_BF16)
        return BSK_REFUSE_DTYPE;
    if ((p->a.strides[x] != 1 && p->a.strides[y] != 1) ||
        (p->b.strides[x] != 1 && p->b.strides[y] != 1) ||
        (p->w.dtype != BSK_NONE && !aligned(batch_stride(&p->w, 3), DSD_RUN)))
        return BSK_REFUSE_STRIDE;
    if (p->pairs > SDD80_PAIRS || (p->s.rank == 4 && p->s.dims[0] > MAX_GROUPS) ||
        t->rows > INT32_MAX || t->cols > INT32_MAX)
        return BSK_REFUSE_LIMIT;
    arg_fill(problem, &a);
    if (!stage_count(&a, &stages) || !bski_mul_i64(a.nnz, a.groups, &blocks) || blocks > INT32_MAX)
        return BSK_REFUSE_LIMIT;
    return BSK_ACCEPT;
}

/* --- Tiles --- */

static int64_t list_length(const bsk_layout_tables *t, int32_t head, int32_t row)
{
    const int64_t *start = t->row_start + (int64_t)head * (t->grid_rows + 1) + row;
    return start[1] - start[0];
}

static int64_t tile_count(const bsk_layout_tables *t, int32_t most)
{
    int64_t tiles = 0;
    for (int32_t h = 0; h < t->heads; h++)
        for (int32_t row = 0; row < t->grid_rows; row++)
            tiles += bski_ceil_div(list_length(t, h, row), most);
    return tiles;
}

/* Into how many parts the samples are cut: what fills whole waves of thread blocks best. */
static int32_t part_count(int64_t tiles, int64_t stages, int32_t units)
{
    enum { LEAST_STAGES = 16, RESIDENT = 2 };
    static const double part_cost = 0.03; /* of adding up, by part */
    const double slots = (double)RESIDENT * units;
    double best = 1e30;
    int32_t parts = 1;
    for (int32_t p = 1; p <= MAX_PARTS && (p == 1 || stages / p >= LEAST_STAGES); p++) {
        const double waves = (double)tiles * p / slots;
        const double whole = (double)bski_ceil_div(tiles * p, (int64_t)slots);
        const double cost = waves > 0 ? whole / waves + (p > 1 ? part_cost * p : 0) : 1;
        if (cost < best) {
            best = cost;
            parts = p;
        }
    }
    return parts;
}

/* Cuts each block row's list evenly into tiles of at most `most` blocks. */
static void tiles_fill(const bsk_layout_tables *t, int32_t most, sdd_tile *tiles)
{
    for (int32_t h = 0; h < t->heads; h++)
        for (int32_t row = 0; row < t->grid_rows; row++) {
            const int64_t first = t->row_start[(int64_t)h * (t->grid_rows + 1) + row];
            const int64_t length = list_length(t, h, row), pieces = bski_ceil_div(length, most);
            for (int64_t i = 0; i < pieces; i++) {
                const int64_t from = length * i / pieces, to = length * (i + 1) / pieces;
                *tiles++ = (sdd_tile){
                    .first = first + from, .count = (int32_t)(to - from), .row = row, .head = h};
            }
        }
}

static bsk_status tables_put(simt_device *d, const bsk_layout_tables *t, int64_t count,
                             int32_t most, sdd_plan *plan)
{
    const bsk_host *host = d->host;
    sdd_arg *a = &plan->arg;
    sdd_tile *tiles;
    sdd_block *blocks;
    TRY(host_array(host, &tiles, count, sizeof *tiles));
    tiles_fill(t, most, tiles);
    bsk_status status = table_place(d, tiles, count, sizeof *tiles, &plan->tiles, &a->tiles);
    host_drop(host, tiles);
    TRY(status);
    TRY(host_array(host, &blocks, t->nnz, sizeof *blocks));
    for (int64_t e = 0; e < t->nnz; e++)
        blocks[e] = (sdd_block){t->row_col[e], t->row_slot[e]};
    status = table_place(d, blocks, t->nnz, sizeof *blocks, &plan->blocks, &a->blocks);
    host_drop(host, blocks);
    TRY(status);
    TRY(table_place(d, t->slot_row, t->nnz, sizeof *t->slot_row, &plan->slot_row, &a->slot_row));
    return table_place(d, t->slot_col, t->nnz, sizeof *t->slot_col, &plan->slot_col, &a->slot_col);
}

/* --- Plans --- */

/* Room for `count` floats at the end of the workspace. */
static bool space(bsk_prepared *prepared, int64_t count, size_t *at)
{
    enum { LINE = 256 };
    size_t bytes;
    *at = prepared->workspace_bytes;
    return bski_mul_size((size_t)count, sizeof(float), &bytes) &&
           bski_add_size(bytes, LINE - 1, &bytes) &&
           bski_add_size(*at, bytes / LINE * LINE, &prepared->workspace_bytes);
}

/* The parts of the product, and of the sums of columns. */
static bsk_status workspace_plan(bski_cuda_device *device, bsk_prepared *prepared, sdd_plan *plan)
{
    const bsk_host *host = device->simt.host;
    const bsk_sdd_params *p = prepared->problem->params;
    sdd_arg *a = &plan->arg;
    const bool gates = p->dgate.dtype != BSK_NONE, sums = p->bsum.dtype != BSK_NONE;
    int64_t parts;
    size_t at;
    a->direct = a->splits == 1 && !gates;
    bool fits = bski_mul_i64((int64_t)a->splits * a->groups, a->nnz, &parts) &&
                bski_mul_i64(parts, (int64_t)a->block_rows * a->block_cols, &parts);
    if (fits && !a->direct) {
        fits = space(prepared, parts, &at);
        plan->finish_blocks = (unsigned)(gates ? a->nnz : a->nnz * a->groups);
        TRY(bski_cuda_kernel(device, sm80_sdd_finish, 0, "sm80_sdd_finish"));
    }
    if (fits && sums) {
        plan->sum_blocks = (unsigned)bski_ceil_div(a->cols, SUM_COLUMNS);
        const int64_t wanted = 4 * device->simt.props.compute_units / (plan->sum_blocks + 1) + 1;
        const int64_t most = bski_ceil_div(a->n, LEAST_SAMPLES) + (a->n == 0);
        a->sum_splits = (int32_t)(wanted < most ? wanted : most);
        fits = space(prepared, a->sum_splits * a->cols, &plan->sums);
        TRY(bski_cuda_kernel(device, sm80_sdd_columns, 0, "sm80_sdd_columns"));
        TRY(bski_cuda_kernel(device, sm80_sdd_columns_finish, 0, "sm80_sdd_columns_finish"));
    }
    return fits ? BSK_OK
                : host->fail(host->context, BSK_E_UNSUPPORTED,
                             "sdd: the workspace is larger than can be counted");
}

static bsk_status plan_fill(bski_cuda_device *device, bsk_prepared *prepared, sdd_plan *plan)
{
    simt_device *d = &device->simt;
    const bsk_problem *problem = prepared->problem;
    const bsk_layout_tables *t = problem->layout;
    sdd_arg *a = &plan->arg;
    int64_t stages = 0;
    plan->shared_bytes = (size_t)plan->kernel->stage_bytes * STAGES;
    arg_fill(problem, a);
    const int32_t most = plan->kernel->columns / t->block_cols;
    const int64_t tiles = tile_count(t, most);
    stage_count(a, &stages);
    a->splits = part_count(tiles * a->groups, stages, d->props.compute_units);
    TRY(workspace_plan(device, prepared, plan));
    plan->grid[0] = (unsigned)tiles;
    plan->grid[1] = (unsigned)a->splits;
    plan->grid[2] = (unsigned)a->groups;
    TRY(bski_cuda_kernel(device, plan->kernel->function, plan->shared_bytes, plan->kernel->name));
    return tables_put(d, t, tiles, most, plan);
}

bsk_status bski_sdd80_prepare(void *device, bsk_prepared *prepared, const kernel_row *k)
{
    simt_device *d = device;
    TRY(state_new(d, sizeof(sdd_plan), prepared));
    sdd_plan *plan = prepared->state;
    plan->kernel = k;
    const bsk_status status = plan_fill(device, prepared, plan);
    if (status)
        bski_sdd80_release(device, prepared);
    return status;
}

static bsk_status sums_launch(const sdd_plan *plan, const bski_cuda_queue *queue, void **arguments)
{
    const bski_cuda_run sums = {.function = sm80_sdd_columns,
                                .name = "sm80_sdd_columns",
                                .grid = {plan->sum_blocks, (unsigned)plan->arg.sum_splits, 1},
                                .threads = SUM_THREADS,
                                .arguments = arguments};
    const unsigned blocks = (unsigned)bski_ceil_div(plan->arg.cols, SUM_THREADS);
    const bski_cuda_run finish = {.function = sm80_sdd_columns_finish,
                                  .name = "sm80_sdd_columns_finish",
                                  .grid = {blocks, 1, 1},
                                  .threads = SUM_THREADS,
                                  .arguments = arguments};
    TRY(bski_cuda_launch(queue, &sums));
    return bski_cuda_launch(queue, &finish);
}

bsk_status bski_sdd80_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_sdd_args *from = args;
    const sdd_plan *plan = prepared->state;
    sdd_arg a = plan->arg;
    void *arguments[] = {&a};
    for (int32_t i = 0; i < a.pairs; i++) {
        a.a[i] = bsk_mem_address(from->a[i]);
        a.b[i] = bsk_mem_address(from->b[i]);
    }
    a.gate = bsk_mem_address(from->gate);
    a.scales[0] = bsk_mem_address(from->a_scale);
    a.scales[1] = bsk_mem_address(from->b_scale);
    a.w = bsk_mem_address(from->w);
    a.dgate = bsk_mem_address(from->dgate);
    a.s.data = bsk_mem_address(from->s);
    a.bsum = bsk_mem_address(from->bsum);
    a.parts = bsk_mem_address(from->workspace);
    if (plan->sum_blocks)
        a.sums = (float *)((char *)bsk_mem_address(from->workspace) + plan->sums);
    a.alpha = (float)from->alpha;
    a.beta = (float)from->beta;
    const bski_cuda_run product = {.function = plan->kernel->function,
                                   .name = plan->kernel->name,
                                   .grid = {plan->grid[0], plan->grid[1], plan->grid[2]},
                                   .threads = THREADS,
                                   .shared_bytes = plan->shared_bytes,
                                   .arguments = arguments};
    const bski_cuda_run finish = {.function = sm80_sdd_finish,
                                  .name = "sm80_sdd_finish",
                                  .grid = {plan->finish_blocks, 1, 1},
                                  .threads = FINISH_THREADS,
                                  .arguments = arguments};
    TRY(bski_cuda_launch(queue, &product));
    TRY(bski_cuda_launch(queue, &finish));
    return plan->sum_blocks ? sums_launch(plan, queue, arguments) : BSK_OK;
}

void bski_sdd80_release(void *device, bsk_prepared *prepared)
{
    simt_device *d = device;
    sdd_plan *plan = prepared->state;
    if (!plan)
        return;
    table_drop(d, &plan->tiles);
    table_drop(d, &plan->blocks);
    table_drop(d, &plan->slot_row);
    table_drop(d, &plan->slot_col);
    state_free(d, prepared);
}

/* --- Entries --- */

/* f32 operands are rounded to tf32 where that is allowed. */
static bsk_reason tf32_accept(const bsk_problem *problem)
{
    const bsk_sdd_params *p = problem->params;
    if (p->precision != BSK_PRECISION_TF32)
        return BSK_REFUSE_OPTION;
    return sdd_is_portable(p) ? BSK_REFUSE_SHAPE : bski_sdd80_accept(problem);
}

FAMILY(bski_sdd80, sm80_sdd_mma, bski_sdd80_accept, kernel_of(problem))
FAMILY(bski_sdd80, sm80_sdd_tf32, tf32_accept, kernel_of(problem))
