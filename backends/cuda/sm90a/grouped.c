/* Plans and launches the kernels of grouped_wgmma.cu. */
#include <backends/cuda/host.h>
#include <backends/cuda/sm90a/grouped.h>
#include <backends/cuda/tensor_map.h>
#include <common/checked.h>

CUDA_SOLE_FUNCTIONS(sm90a_grouped_matmul)
CUDA_SOLE_FUNCTIONS(sm90a_grouped_wgrad)

typedef struct state {
    bski_cuda_encoder encoder;
    bski_cuda_tensor left, right;
    const void *kernel;
    unsigned blocks;
    grouped_wgmma_arg arg;
} state;

/* The address of the symbol that the compiler makes for a kernel stands for it. */
#define SYMBOLS(type)                                                                              \
    extern const char grouped_matmul_km_sm90a_##type[], grouped_matmul_mk_sm90a_##type[],          \
        grouped_wgrad_sm90a_##type[];
SYMBOLS(bf16)
SYMBOLS(f16)

static const char name[] = "grouped_sm90a";

/* --- What both have --- */

/* Rows of features, contiguous, in parts of one matrix. */
static bski_cuda_tensor rows_of(const bsk_tensor *t, int32_t rank)
{
    return (bski_cuda_tensor){.dtype = t->dtype,
                              .rank = rank,
                              .dims = {t->dims[1], t->dims[0], 1},
                              .strides = {1, t->strides[0], 0},
                              .box = {GROUPED_PART, GROUPED_PART, 1},
                              .swizzle = 128};
}

/* The units of so many rows and columns of tiles, at most. */
static int64_t units_of(int64_t rows, int64_t cols)
{
    return bski_ceil_div(rows * cols + rows, 2);
}

static bool limits_hold(int64_t features, int64_t more, int64_t groups)
{
    return features <= INT32_MAX / 2 && more <= INT32_MAX / 2 && groups <= GROUPED_MOST;
}

/* The end of state_new, for so many units. */
static bsk_status prepare(void *device, bsk_prepared *prepared, int64_t units)
{
    simt_device *d = device;
    state *s = prepared->state;
    const int64_t clusters = d->props.compute_units / GROUPED_CLUSTER;
    s->blocks = (unsigned)(units < clusters ? units : clusters) * GROUPED_CLUSTER;
    s->arg.end.along_n = 0;
    bsk_status status = bski_cuda_encoder_find(d, &s->encoder);
    if (!status)
        status = bski_cuda_kernel(device, s->kernel, GROUPED_SHARED_BYTES, name);
    if (status)
        state_free(d, prepared);
    return status;
}

static bsk_status launch(const state *s, void *queue, bsk_mem left, bsk_mem right,
                         grouped_wgmma_arg *arg)
{
    CUtensorMap l, r;
    TRY(bski_cuda_tensor_map(&s->encoder, &s->left, bsk_mem_address(left), &l));
    TRY(bski_cuda_tensor_map(&s->encoder, &s->right, bsk_mem_address(right), &r));
    void *arguments[] = {&l, &r, arg};
    const bski_cuda_run run = {.function = s->kernel,
                               .name = name,
                               .grid = {s->blocks, 1, 1},
                               .threads = GROUPED_THREADS,
                               .cluster = GROUPED_CLUSTER,
                               .shared_bytes = GROUPED_SHARED_BYTES,
                               .arguments = arguments,
                               .early = true};
    return bski_cuda_launch(queue, &run);
}

/* --- grouped_matmul --- */

/* Whether W lies along the features, not along the depth. */
static bool is_across(const bsk_grouped_matmul_params *p)
{
    return p->w.strides[2] == 1;
}

static bski_cuda_tensor w_of(const bsk_grouped_matmul_params *p)
{
    const bsk_tensor *w = &p->w;
    const int inner = is_across(p) ? 2 : 1, outer = 3 - inner;
    return (bski_cuda_tensor){.dtype = w->dtype,
                              .rank = 3,
                              .dims = {w->dims[inner], w->dims[outer], w->dims[0]},
                              .strides = {1, w->strides[outer], w->strides[0]},
                              .box = {GROUPED_PART, GROUPED_PART, 1},
                              .swizzle = 128};
}

/* In the words of dsd's epilogue y is [features, rows]. */
static bsk_dsd_params y_of(const bsk_grouped_matmul_params *p)
{
    const bsk_tensor *y = &p->y;
    return (bsk_dsd_params){.act = p->act,
                            .c = {.dtype = y->dtype,
                                  .rank = 2,
                                  .dims = {y->dims[1], y->dims[0]},
                                  .strides = {y->strides[1], y->strides[0]}}};
}

/* At most so many units: each span may have a tile of rows that is not full. */
static int64_t matmul_units(const bsk_grouped_matmul_params *p)
{
    return units_of(bski_ceil_div(p->x.dims[0], GROUPED_TILE_ROWS) + p->w.dims[0] + 1,
                    bski_ceil_div(p->y.dims[1], GROUPED_TILE_COLS));
}

bsk_reason cuda_sm90a_grouped_matmul_accept(const bsk_problem *problem,
                                            const bsk_device_props *props)
{
    const bsk_grouped_matmul_params *p = problem->params;
    const bsk_dsd_params y = y_of(p);
    (void)props;
    if (p->y.dims[0] == 0 || p->y.dims[1] == 0 || p->x.dims[1] == 0 || p->w.dims[0] == 0)
        return BSK_REFUSE_SHAPE;
    if (!limits_hold(p->x.dims[1], p->y.dims[1], p->w.dims[0]) || matmul_units(p) > INT32_MAX)
        return BSK_REFUSE_LIMIT;
    const bski_cuda_tensor x = rows_of(&p->x, 2), w = w_of(p);
    if (p->x.strides[1] != 1 || (!is_across(p) && p->w.strides[1] != 1) || p->y.strides[1] != 1 ||
        !bski_cuda_tensor_fits(&x) || !bski_cuda_tensor_fits(&w))
        return BSK_REFUSE_STRIDE;
    return bski_cuda_epilogue_accept(&(bsk_problem){.params = &y});
}

bsk_status cuda_sm90a_grouped_matmul_prepare(void *device, bsk_prepared *prepared)
{
    const bsk_grouped_matmul_params *p = prepared->problem->params;
    const bsk_dsd_params y = y_of(p);
    TRY(state_new(device, sizeof(state), prepared));
    state *s = prepared->state;
    s->left = rows_of(&p->x, 2);
    s->right = w_of(p);
    if (p->x.dtype == BSK_BF16)
        s->kernel = is_across(p) ? grouped_matmul_km_sm90a_bf16 : grouped_matmul_mk_sm90a_bf16;
    else
        s->kernel = is_across(p) ? grouped_matmul_km_sm90a_f16 : grouped_matmul_mk_sm90a_f16;
    bski_cuda_epilogue_fill(&(bsk_problem){.params = &y}, &s->arg.end);
    s->arg.all = (int32_t)p->x.dims[0];
    s->arg.groups = (int32_t)p->w.dims[0];
    s->arg.cols = (int32_t)bski_ceil_div(p->y.dims[1], GROUPED_TILE_COLS);
    s->arg.stages = (int32_t)bski_ceil_div(p->x.dims[1], GROUPED_DEPTH);
    return prepare(device, prepared, matmul_units(p));
}

void cuda_sm90a_grouped_matmul_release(void *device, bsk_prepared *prepared)
{
    state_free(device, prepared);
}

bsk_status cuda_sm90a_grouped_matmul_launch(const bsk_prepared *prepared, void *queue,
                                            const void *args)
{
    const bsk_grouped_matmul_args *a = args;
    const state *s = prepared->state;
    const bsk_dsd_args end = {.alpha = a->alpha, .beta = a->beta, .c = a->y, .bias = a->bias};
    grouped_wgmma_arg arg = s->arg;
    arg.offsets = bsk_mem_address(a->offsets);
    bski_cuda_epilogue_bind(&end, &arg.end);
    return launch(s, queue, a->x, a->w, &arg);
}

/* --- grouped_wgrad --- */

/* In the words of dsd's epilogue dw is a batch of [columns, rows]. */
static bsk_dsd_params dw_of(const bsk_grouped_wgrad_params *p)
{
    const bsk_tensor *dw = &p->dw;
    return (bsk_dsd_params){.c = {.dtype = dw->dtype,
                                  .rank = 3,
                                  .dims = {dw->dims[0], dw->dims[2], dw->dims[1]},
                                  .strides = {dw->strides[0], dw->strides[2], dw->strides[1]}}};
}

static int64_t wgrad_units(const bsk_grouped_wgrad_params *p)
{
    return p->dw.dims[0] * units_of(bski_ceil_div(p->x.dims[1], GROUPED_TILE_ROWS),
                                    bski_ceil_div(p->dy.dims[1], GROUPED_TILE_COLS));
}

bsk_reason cuda_sm90a_grouped_wgrad_accept(const bsk_problem *problem,
                                           const bsk_device_props *props)
{
    const bsk_grouped_wgrad_params *p = problem->params;
    const bsk_dsd_params dw = dw_of(p);
    (void)props;
    if (p->x.dims[0] == 0 || p->dy.dims[1] == 0 || p->x.dims[1] == 0 || p->dw.dims[0] == 0)
        return BSK_REFUSE_SHAPE;
    if (!limits_hold(p->x.dims[1], p->dy.dims[1], p->dw.dims[0]) || wgrad_units(p) > INT32_MAX)
        return BSK_REFUSE_LIMIT;
    const bski_cuda_tensor x = rows_of(&p->x, 2), dy = rows_of(&p->dy, 3);
    if (p->x.strides[1] != 1 || p->dy.strides[1] != 1 || p->dw.strides[2] != 1 ||
        !bski_cuda_tensor_fits(&x) || !bski_cuda_tensor_fits(&dy))
        return BSK_REFUSE_STRIDE;
    return bski_cuda_epilogue_accept(&(bsk_problem){.params = &dw});
}

bsk_status cuda_sm90a_grouped_wgrad_prepare(void *device, bsk_prepared *prepared)
{
    const bsk_grouped_wgrad_params *p = prepared->problem->params;
    const bsk_dsd_params dw = dw_of(p);
    TRY(state_new(device, sizeof(state), prepared));
    state *s = prepared->state;
    s->left = rows_of(&p->x, 2);
    s->right = rows_of(&p->dy, 3);
    s->kernel = p->x.dtype == BSK_BF16 ? grouped_wgrad_sm90a_bf16 : grouped_wgrad_sm90a_f16;
    bski_cuda_epilogue_fill(&(bsk_problem){.params = &dw}, &s->arg.end);
    s->arg.all = (int32_t)p->x.dims[0];
    s->arg.groups = (int32_t)p->dw.dims[0];
    s->arg.rows = (int32_t)bski_ceil_div(p->x.dims[1], GROUPED_TILE_ROWS);
    s->arg.cols = (int32_t)bski_ceil_div(p->dy.dims[1], GROUPED_TILE_COLS);
    s->arg.bf16 = p->x.dtype == BSK_BF16;
    return prepare(device, prepared, wgrad_units(p));
}

void cuda_sm90a_grouped_wgrad_release(void *device, bsk_prepared *prepared)
{
    state_free(device, prepared);
}

bsk_status cuda_sm90a_grouped_wgrad_launch(const bsk_prepared *prepared, void *queue,
                                           const void *args)
{
    const bsk_grouped_wgrad_args *a = args;
    const state *s = prepared->state;
    const bsk_dsd_args end = {.alpha = a->alpha, .beta = a->beta, .c = a->dw};
    grouped_wgmma_arg arg = s->arg;
    arg.offsets = bsk_mem_address(a->offsets);
    arg.dbias = bsk_mem_address(a->dbias);
    bski_cuda_epilogue_bind(&end, &arg.end);
    return launch(s, queue, a->x, a->dy, &arg);
}
