/* Plans and launches layer_norm_sm90a. */
#include <backends/cuda/sm90a/layer_norm.h>
#include <backends/cuda/sm90a/rows.h>
#include <common/dtype.h>

CUDA_SOLE_FUNCTIONS(sm90a_layer_norm)

/* A kernel for rows of up to `most` features. A thread block takes `items`: `rows` rows of a segment. */
typedef struct norm_kernel {
    const void *functions[2]; /* f16, bf16 */
    int32_t most, rows, items, threads;
} norm_kernel;

#define NORM_DECLARE(name, ...)                                                                    \
    extern const char sm90a_layer_norm_##name##_f16[], sm90a_layer_norm_##name##_bf16[];
#define NORM_ROW(name, warps, held, rows, threads, resident)                                       \
    {{sm90a_layer_norm_##name##_f16, sm90a_layer_norm_##name##_bf16},                              \
     (warps)*32 * (held)*ROW_RUN,                                                                  \
     rows,                                                                                         \
     (threads) / ((warps)*32),                                                                     \
     threads},
LAYER_NORM_KERNELS(NORM_DECLARE)
static const norm_kernel kernels[] = {LAYER_NORM_KERNELS(NORM_ROW)};
enum { KERNELS = sizeof kernels / sizeof *kernels };

/* Features of a segment; shorter ones leave most lanes of a warp idle. */
enum { MIN_FEATURES = 512 };

static int64_t features_of(const bsk_layer_norm_params *p)
{
    return p->x.dims[1] / p->segments;
}

/* The first that is wide enough; NULL: none. */
static const norm_kernel *kernel_of(const bsk_layer_norm_params *p)
{
    for (int i = 0; i < KERNELS; i++)
        if (features_of(p) <= kernels[i].most)
            return &kernels[i];
    return NULL;
}

static const void *function_of(const bsk_layer_norm_params *p)
{
    return kernel_of(p)->functions[p->x.dtype == BSK_BF16];
}

/* Thread blocks, or -1: rows are counted in 32 bits. */
static int64_t blocks_of(const bsk_layer_norm_params *p)
{
    const norm_kernel *kernel = kernel_of(p);
    const int64_t rows = p->x.dims[0], most = INT32_MAX / 2;
    if (rows > most || p->segments > most / (rows > 0 ? rows : 1))
        return -1;
    return bski_ceil_div(bski_ceil_div(rows, kernel->rows) * p->segments, kernel->items);
}

bsk_reason cuda_sm90a_layer_norm_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_layer_norm_params *p = problem->params;
    (void)props;
    if (p->axis != BSK_NC)
        return BSK_REFUSE_OPTION;
    if (p->y.dtype != p->x.dtype)
        return BSK_REFUSE_DTYPE;
    if (features_of(p) % ROW_RUN || features_of(p) < MIN_FEATURES || !kernel_of(p))
        return BSK_REFUSE_SHAPE;
    if (blocks_of(p) < 0)
        return BSK_REFUSE_LIMIT;
    return rows_aligned(&p->x) && rows_aligned(&p->y) ? BSK_ACCEPT : BSK_REFUSE_STRIDE;
}

bsk_status cuda_sm90a_layer_norm_prepare(void *device, bsk_prepared *prepared)
{
    return bski_cuda_kernel(device, function_of(prepared->problem->params), 0, "sm90a_layer_norm");
}

bsk_status cuda_sm90a_layer_norm_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_layer_norm_params *p = prepared->problem->params;
    const bsk_layer_norm_args *a = args;
    layer_norm_arg arg = {
        .x = bsk_mem_address(a->x),
        .y = bsk_mem_address(a->y),
        .gain = row_address(&p->gain, a->gain),
        .bias = row_address(&p->bias, a->bias),
        .mean = row_address(&p->mean, a->mean),
        .rstd = row_address(&p->rstd, a->rstd),
        .rows = (int32_t)p->x.dims[0],
        .x_row = p->x.strides[0] * 2,
        .y_row = p->y.strides[0] * 2,
        .segments = (int32_t)p->segments,
        .runs = (int32_t)(features_of(p) / ROW_RUN),
        .rms = p->rms,
        .relu = p->relu,
        .inverse = (float)(1 / (double)features_of(p)),
        .eps = bski_f32_eps(p->eps),
    };
    void *arguments[] = {&arg};
    const bski_cuda_run run = {.function = function_of(p),
                               .name = "sm90a_layer_norm",
                               .grid = {(unsigned)blocks_of(p), 1, 1},
                               .threads = (unsigned)kernel_of(p)->threads,
                               .arguments = arguments};
    return bski_cuda_launch(queue, &run);
}

void cuda_sm90a_layer_norm_release(void *device, bsk_prepared *prepared)
{
    (void)device;
    (void)prepared;
}
