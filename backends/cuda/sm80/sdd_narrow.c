/* Plans and launches sdd for a small minibatch: the lists by block row as cells, which warps take in
 * equal runs, so that a warp's rows seldom change. */
#include <backends/cuda/sm80/host.h>
#include <backends/cuda/sm80/sdd_narrow.h>

CUDA_FUNCTIONS(sm80_sdd_narrow)

/* --- Kernels --- */

typedef struct kernel {
    const void *function; /* NULL behind the last one */
    const char *name;
    bsk_dtype dtype;
    int32_t rows, cols, samples; /* of a cell; samples at most */
    int32_t cells;               /* that a warp takes at a time */
    int32_t warps;               /* of a compute unit */
    bool along_n;
} kernel;

#define DECLARE(rows, samples, axis, along_n, type, dtype)                                         \
    extern const char sm80_sdd_narrow_##rows##_##samples##_##axis##_##type[];
#define ROW(rows, samples, axis, along_n, type, dtype)                                             \
    {sm80_sdd_narrow_##rows##_##samples##_##axis##_##type,                                         \
     "sm80_sdd_narrow_" #rows "_" #samples "_" #axis "_" #type,                                    \
     dtype,                                                                                        \
     rows,                                                                                         \
     SDD_NARROW_COLS(rows, samples),                                                               \
     samples,                                                                                      \
     SDD_NARROW_CELLS(rows),                                                                       \
     SDD_NARROW_WARPS(rows, samples),                                                              \
     along_n},
#define KERNELS(X)                                                                                 \
    SDD_NARROW_SHAPES(X, nc, false, bf16, BSK_BF16)                                                \
    SDD_NARROW_SHAPES(X, cn, true, bf16, BSK_BF16)                                                 \
    SDD_NARROW_SHAPES(X, nc, false, f16, BSK_F16)                                                  \
    SDD_NARROW_SHAPES(X, cn, true, f16, BSK_F16)
KERNELS(DECLARE)
static const kernel kernels[] = {KERNELS(ROW){0}};

/* Whether the axis of samples, or of features, is contiguous in both operands. */
static bool contiguous(const bsk_sdd_params *p, bool along_n)
{
    return p->a.strides[along_n] == 1 && p->b.strides[!along_n] == 1;
}

/* The kernel for whole blocks, of which one of 64 or 128 is several cells. */
static const kernel *kernel_of(const bsk_problem *problem)
{
    const bsk_sdd_params *p = problem->params;
    const int32_t side = problem->layout->block_rows;
    const bool along_n = !contiguous(p, false);
    for (const kernel *k = kernels; k->function; k++)
        if (k->dtype == problem->dtype && k->along_n == along_n &&
            k->rows == (side < 32 ? side : 32) && k->samples >= p->a.dims[1])
            return k;
    return NULL;
}

/* --- What is taken --- */

/* Elements from a feature of an operand to the next, or from a sample. */
static int64_t pitch_of(const bsk_tensor *t, bool along_n, int feature)
{
    return t->strides[along_n ? feature : 1 - feature];
}

/* Whether a lane's loads are aligned: 8 samples of a feature, or `run` features of a sample. */
static bsk_reason pitch_accept(const bsk_tensor *t, bool along_n, int feature, int32_t run)
{
    const int64_t pitch = pitch_of(t, along_n, feature);
    if (t->dims[along_n ? feature : 1 - feature] <= 1)
        return BSK_ACCEPT;
    if (!aligned(pitch, along_n ? DSD_RUN : run))
        return BSK_REFUSE_STRIDE;
    return pitch > SDD_NARROW_PITCH / 2 ? BSK_REFUSE_LIMIT : BSK_ACCEPT;
}

bsk_reason cuda_sm80_sdd_narrow_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_sdd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const int32_t unit_blocks = t->block_rows * t->block_cols / SDD_NARROW_UNIT;
    (void)props;
    if (p->s.dtype != problem->dtype && p->s.dtype != BSK_F32)
        return BSK_REFUSE_DTYPE;
    if (t->block_rows != t->block_cols)
        return BSK_REFUSE_BLOCK;
    if (p->a.rank != 2 || p->s.rank != 3 || t->heads != 1)
        return BSK_REFUSE_RANK;
    if (p->gate.dtype != BSK_NONE || p->dgate.dtype != BSK_NONE || p->bsum.dtype != BSK_NONE)
        return BSK_REFUSE_OPTION;
    const bool along_n = !contiguous(p, false);
    if (p->a.dims[1] > SDD_NARROW_SAMPLES || (along_n && p->a.dims[1] % DSD_RUN) ||
        t->rows % t->block_rows || t->cols % t->block_cols)
        return BSK_REFUSE_SHAPE;
    if (!contiguous(p, along_n))
        return BSK_REFUSE_STRIDE;
    if (p->pairs > SDD_NARROW_PAIRS || t->nnz > INT32_MAX / unit_blocks)
        return BSK_REFUSE_LIMIT;
    const kernel *k = kernel_of(problem);
    const bsk_reason reason = pitch_accept(&p->a, along_n, 0, k->rows / 4);
    return reason ? reason : pitch_accept(&p->b, along_n, 1, k->cols / 4);
}

double cuda_sm80_sdd_narrow_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    /* A launch and the chain of a warp's first loads; bytes a second that come from L2, and that are
     * written to it, of a device of so many units. */
    static const double launch = 3e-6, read = 7e12, written = 3.5e12, units = 132;
    const bsk_sdd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const kernel *k = kernel_of(problem);
    const double cells = (double)t->nnz * (t->block_rows / k->rows) * (t->block_cols / k->cols);
    const double sample = 2.0 * (double)p->a.dims[1] * p->pairs;
    /* The rows once for each warp and block row; 16 bytes of a sample are read as 32. */
    const double runs = (double)props->compute_units * k->warps + (double)t->rows / k->rows;
    const double rows = p->pairs > 1 || cells < runs ? cells : runs;
    const double lines = k->rows == 8 && !k->along_n ? 2 : 1;
    const double from = lines * sample * (cells * k->cols + rows * k->rows);
    const double to =
        (double)t->nnz * t->block_rows * t->block_cols * (p->s.dtype == BSK_F32 ? 4 : 2);
    return launch + (from / read + to / written) * units / props->compute_units;
}

/* --- Plans --- */

typedef struct sdd_plan {
    const kernel *kernel;
    bsk_mem cells;
    sdd_narrow_arg arg;
} sdd_plan;

static void arg_fill(const bsk_problem *problem, const kernel *k, sdd_narrow_arg *a)
{
    const bsk_sdd_params *p = problem->params;
    a->a_pitch = (int32_t)(2 * pitch_of(&p->a, k->along_n, 0));
    a->b_pitch = (int32_t)(2 * pitch_of(&p->b, k->along_n, 1));
    a->n = (int32_t)p->a.dims[1];
    a->pairs = p->pairs;
    a->s_pitch = problem->layout->block_cols;
    a->s_f32 = p->s.dtype == BSK_F32;
}

/* Turns of a row of cells: of so many blocks. */
static int64_t turn_count(const bsk_layout_tables *t, const kernel *k, int64_t blocks)
{
    return bski_ceil_div(blocks * (t->block_cols / k->cols), k->cells);
}

/* Row after row of cells, each filled up to whole turns. */
static void cells_fill(const bsk_layout_tables *t, const kernel *k, sdd_narrow_cell *to)
{
    const int32_t high = t->block_rows / k->rows, wide = t->block_cols / k->cols;
    const int32_t units = t->block_rows * t->block_cols / SDD_NARROW_UNIT;
    for (int32_t row = 0; row < t->grid_rows * high; row++) {
        const int64_t first = t->row_start[row / high], end = t->row_start[row / high + 1];
        const int32_t top = row % high * k->rows * t->block_cols;
        sdd_narrow_cell *next = to + turn_count(t, k, end - first) * k->cells;
        for (int64_t e = first; e < end; e++)
            for (int32_t x = 0; x < wide; x++)
                *to++ = (sdd_narrow_cell){.row = row,
                                          .column = t->row_col[e] * wide + x,
                                          .place = t->row_slot[e] * units +
                                                   (top + x * k->cols) / SDD_NARROW_UNIT};
        while (to < next)
            *to++ = (sdd_narrow_cell){.row = row, .place = -1};
    }
}

static bsk_status plan_fill(bski_cuda_device *device, const bsk_problem *problem, sdd_plan *plan)
{
    simt_device *d = &device->simt;
    const bsk_layout_tables *t = problem->layout;
    const kernel *k = kernel_of(problem);
    sdd_narrow_arg *a = &plan->arg;
    sdd_narrow_cell *cells;
    int64_t turns = 0;
    plan->kernel = k;
    arg_fill(problem, k, a);
    for (int32_t row = 0; row < t->grid_rows; row++)
        turns +=
            turn_count(t, k, t->row_start[row + 1] - t->row_start[row]) * (t->block_rows / k->rows);
    const int32_t most = d->props.compute_units * k->warps;
    a->turns = (int32_t)turns;
    a->warps = turns < most ? (int32_t)turns : most;
    TRY(bski_cuda_kernel(device, k->function, 0, k->name));
    TRY(host_array(d->host, &cells, turns * k->cells, sizeof *cells));
    cells_fill(t, k, cells);
    const bsk_status status =
        table_place(d, cells, turns * k->cells, sizeof *cells, &plan->cells, &a->cells);
    host_drop(d->host, cells);
    return status;
}

bsk_status cuda_sm80_sdd_narrow_prepare(void *device, bsk_prepared *prepared)
{
    simt_device *d = device;
    TRY(state_new(d, sizeof(sdd_plan), prepared));
    const bsk_status status = plan_fill(device, prepared->problem, prepared->state);
    if (status)
        cuda_sm80_sdd_narrow_release(device, prepared);
    return status;
}

bsk_status cuda_sm80_sdd_narrow_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_sdd_args *from = args;
    const sdd_plan *plan = prepared->state;
    sdd_narrow_arg a = plan->arg;
    void *arguments[] = {&a};
    for (int32_t i = 0; i < a.pairs; i++) {
        a.a[i] = bsk_mem_address(from->a[i]);
        a.b[i] = bsk_mem_address(from->b[i]);
    }
    a.s = bsk_mem_address(from->s);
    a.alpha = (float)from->alpha;
    a.beta = (float)from->beta;
    const bski_cuda_run run = {.function = plan->kernel->function,
                               .name = plan->kernel->name,
                               .grid = {(unsigned)bski_ceil_div(a.warps, SDD_NARROW_TEAM), 1, 1},
                               .threads = 32 * SDD_NARROW_TEAM,
                               .arguments = arguments,
                               .early = starts_early(queue)};
    return bski_cuda_launch(queue, &run);
}

void cuda_sm80_sdd_narrow_release(void *device, bsk_prepared *prepared)
{
    simt_device *d = device;
    sdd_plan *plan = prepared->state;
    if (!plan)
        return;
    table_drop(d, &plan->cells);
    state_free(d, prepared);
}
