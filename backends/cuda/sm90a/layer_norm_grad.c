/* Plans and launches layer_norm_grad_sm90a. */
#include <backends/cuda/sm90a/layer_norm_grad.h>
#include <backends/cuda/sm90a/rows.h>

CUDA_SOLE_FUNCTIONS(sm90a_layer_norm_grad)

/* A kernel for rows of up to threads * ROW_RUN features. */
typedef struct slope_kernel {
    const void *functions[2]; /* f16, bf16 */
    int32_t threads, resident;
} slope_kernel;

#define SLOPE_DECLARE(threads, resident)                                                           \
    extern const char sm90a_layer_norm_grad_##threads##_f16[],                                     \
        sm90a_layer_norm_grad_##threads##_bf16[];
#define SLOPE_KERNEL(threads, resident)                                                            \
    {{sm90a_layer_norm_grad_##threads##_f16, sm90a_layer_norm_grad_##threads##_bf16},              \
     threads,                                                                                      \
     resident},
LAYER_NORM_GRAD_KERNELS(SLOPE_DECLARE)
static const slope_kernel kernels[] = {LAYER_NORM_GRAD_KERNELS(SLOPE_KERNEL)};
enum { KERNELS = sizeof kernels / sizeof *kernels };

/* Features of a segment; shorter ones leave most threads idle. */
enum { MIN_FEATURES = 512 };

static int64_t features_of(const bsk_layer_norm_grad_params *p)
{
    return p->dy.dims[1] / p->segments;
}

/* The first that is wide enough; NULL: none. */
static const slope_kernel *kernel_of(const bsk_layer_norm_grad_params *p)
{
    for (int i = 0; i < KERNELS; i++)
        if (features_of(p) <= kernels[i].threads * ROW_RUN)
            return &kernels[i];
    return NULL;
}

static const void *function_of(const bsk_layer_norm_grad_params *p)
{
    return kernel_of(p)->functions[p->dy.dtype == BSK_BF16];
}

static bool has_sums(const bsk_layer_norm_grad_params *p)
{
    return p->dgain.dtype != BSK_NONE || p->dbias.dtype != BSK_NONE;
}

/* Thread blocks of a segment: all of them run at once, and none where there is no row. */
static int64_t shares_of(const bsk_layer_norm_grad_params *p, const bsk_device_props *props)
{
    const int64_t steps = bski_ceil_div(p->dy.dims[0], NORM_ROWS);
    const int64_t resident = (int64_t)props->compute_units * kernel_of(p)->resident;
    const int64_t most = bski_ceil_div(resident, p->segments);
    return steps < most ? steps : most;
}

bsk_reason cuda_sm90a_layer_norm_grad_accept(const bsk_problem *problem,
                                             const bsk_device_props *props)
{
    const bsk_layer_norm_grad_params *p = problem->params;
    const bsk_dtype type = p->dy.dtype;
    (void)props;
    if (p->axis != BSK_NC || p->dx_blend || p->relu || p->dx.dtype == BSK_NONE)
        return BSK_REFUSE_OPTION;
    if (p->x.dtype != type || p->dx.dtype != type)
        return BSK_REFUSE_DTYPE;
    if (features_of(p) % ROW_RUN || features_of(p) < MIN_FEATURES || !kernel_of(p))
        return BSK_REFUSE_SHAPE;
    if (p->segments > UINT16_MAX)
        return BSK_REFUSE_LIMIT;
    return rows_aligned(&p->dy) && rows_aligned(&p->x) && rows_aligned(&p->dx) ? BSK_ACCEPT
                                                                               : BSK_REFUSE_STRIDE;
}

bsk_status cuda_sm90a_layer_norm_grad_prepare(void *device, bsk_prepared *prepared)
{
    const bsk_layer_norm_grad_params *p = prepared->problem->params;
    const simt_device *d = device;
    if (has_sums(p)) {
        prepared->workspace_bytes =
            (size_t)(COLUMN_OUTS * shares_of(p, &d->props) * p->dy.dims[1]) * sizeof(float);
        TRY(bski_cuda_column_sums_prepare(device));
    }
    return bski_cuda_kernel(device, function_of(p), NORM_GRAD_SHARED(kernel_of(p)->threads),
                            "sm90a_layer_norm_grad");
}

bsk_status cuda_sm90a_layer_norm_grad_launch(const bsk_prepared *prepared, void *queue,
                                             const void *args)
{
    const bsk_layer_norm_grad_params *p = prepared->problem->params;
    const bsk_layer_norm_grad_args *a = args;
    const bski_cuda_queue *q = queue;
    const int64_t shares = shares_of(p, &q->simt.device->props);
    layer_norm_grad_arg arg = {
        .dy = bsk_mem_address(a->dy),
        .x = bsk_mem_address(a->x),
        .dx = bsk_mem_address(a->dx),
        .mean = row_address(&p->mean, a->mean),
        .rstd = bsk_mem_address(a->rstd),
        .gain = row_address(&p->gain, a->gain),
        .partial = has_sums(p) && shares > 0 ? bsk_mem_address(a->workspace) : NULL,
        .rows = p->dy.dims[0],
        .dy_row = p->dy.strides[0] * 2,
        .x_row = p->x.strides[0] * 2,
        .dx_row = p->dx.strides[0] * 2,
        .runs = (int32_t)(features_of(p) / ROW_RUN),
        .rms = p->rms,
        .inverse = (float)(1 / (double)features_of(p)),
    };
    void *arguments[] = {&arg};
    const bski_cuda_run run = {.function = function_of(p),
                               .name = "sm90a_layer_norm_grad",
                               .grid = {(unsigned)shares, (unsigned)p->segments, 1},
                               .threads = (unsigned)kernel_of(p)->threads,
                               .shared_bytes = NORM_GRAD_SHARED(kernel_of(p)->threads),
                               .arguments = arguments};
    TRY(bski_cuda_launch(queue, &run));
    if (!has_sums(p))
        return BSK_OK;
    const column_sums_arg sums = {
        .partial = arg.partial,
        .out = {row_address(&p->dgain, a->dgain), row_address(&p->dbias, a->dbias)},
        .shares = (int32_t)shares,
        .features = (int32_t)p->dy.dims[1],
        .alpha = (float)a->alpha,
        .beta = (float)a->beta};
    return bski_cuda_column_sums(queue, &sums);
}

void cuda_sm90a_layer_norm_grad_release(void *device, bsk_prepared *prepared)
{
    (void)device;
    (void)prepared;
}
