/* Plans and launches bias_act_grad_sm90a. */
#include <backends/cuda/sm90a/bias_act_grad.h>
#include <backends/cuda/sm90a/rows.h>

CUDA_SOLE_FUNCTIONS(sm90a_bias_act_grad)

extern const char sm90a_bias_relu_grad_f16[], sm90a_bias_gelu_grad_f16[];
extern const char sm90a_bias_relu_grad_bf16[], sm90a_bias_gelu_grad_bf16[];

static const void *kernel_of(const bsk_bias_act_grad_params *p)
{
    const bool gelu = p->act == BSK_ACT_GELU;
    if (p->dy.dtype == BSK_F16)
        return gelu ? sm90a_bias_gelu_grad_f16 : sm90a_bias_relu_grad_f16;
    return gelu ? sm90a_bias_gelu_grad_bf16 : sm90a_bias_relu_grad_bf16;
}

/* Rounds of thread blocks that run at once, and steps of one of them at least. */
enum { ROUNDS = 10, STEPS = 4 };

/* How the work is shared out: `across` thread blocks along the features, `shares` down the rows. */
typedef struct slope_plan {
    int64_t runs, across, share, shares;
    int32_t lanes;
} slope_plan;

static slope_plan plan_of(const bsk_bias_act_grad_params *p, const bsk_device_props *props)
{
    const int64_t rows = p->dy.dims[0];
    slope_plan s = {.runs = p->dy.dims[1] / ROW_RUN, .lanes = 1};
    while (s.lanes < s.runs && s.lanes < SLOPE_LANES)
        s.lanes *= 2;
    s.across = bski_ceil_div(s.runs, s.lanes);
    const int64_t most = bski_ceil_div(rows, SLOPE_THREADS / s.lanes * SLOPE_ROWS * STEPS);
    const int64_t blocks = (int64_t)props->compute_units * SLOPE_RESIDENT * ROUNDS;
    const int64_t wanted = bski_ceil_div(blocks, s.across);
    const int64_t shares = most < wanted ? most : wanted;
    s.share = shares > 0 ? bski_ceil_div(rows, shares) : 1;
    s.shares = bski_ceil_div(rows, s.share);
    return s;
}

bsk_reason cuda_sm90a_bias_act_grad_accept(const bsk_problem *problem,
                                           const bsk_device_props *props)
{
    const bsk_bias_act_grad_params *p = problem->params;
    const bsk_dtype type = p->dy.dtype;
    (void)props;
    if (p->axis != BSK_NC || p->dx_blend || p->dbias.dtype == BSK_NONE ||
        (p->act != BSK_ACT_RELU && p->act != BSK_ACT_GELU))
        return BSK_REFUSE_OPTION;
    if (p->x.dtype != type || (p->dx.dtype != BSK_NONE && p->dx.dtype != type))
        return BSK_REFUSE_DTYPE;
    if (p->dy.dims[1] % ROW_RUN || p->dy.dims[1] <= 0 || p->dy.dims[1] > INT32_MAX / 2)
        return BSK_REFUSE_SHAPE;
    return rows_aligned(&p->dy) && rows_aligned(&p->x) && rows_aligned(&p->dx) ? BSK_ACCEPT
                                                                               : BSK_REFUSE_STRIDE;
}

bsk_status cuda_sm90a_bias_act_grad_prepare(void *device, bsk_prepared *prepared)
{
    const bsk_bias_act_grad_params *p = prepared->problem->params;
    const simt_device *d = device;
    const slope_plan s = plan_of(p, &d->props);
    prepared->workspace_bytes = (size_t)(s.shares * p->dy.dims[1]) * sizeof(float);
    TRY(bski_cuda_column_sums_prepare(device));
    return bski_cuda_kernel(device, kernel_of(p), 0, "sm90a_bias_act_grad");
}

bsk_status cuda_sm90a_bias_act_grad_launch(const bsk_prepared *prepared, void *queue,
                                           const void *args)
{
    const bsk_bias_act_grad_params *p = prepared->problem->params;
    const bsk_bias_act_grad_args *a = args;
    const bski_cuda_queue *q = queue;
    const slope_plan s = plan_of(p, &q->simt.device->props);
    bias_act_grad_arg arg = {
        .dy = bsk_mem_address(a->dy),
        .x = bsk_mem_address(a->x),
        .bias = row_address(&p->bias, a->bias),
        .dx = row_address(&p->dx, a->dx),
        .partial = s.shares > 0 ? bsk_mem_address(a->workspace) : NULL,
        .rows = p->dy.dims[0],
        .share = s.share,
        .dy_row = p->dy.strides[0] * 2,
        .x_row = p->x.strides[0] * 2,
        .dx_row = p->dx.strides[0] * 2,
        .runs = (int32_t)s.runs,
        .lanes = s.lanes,
    };
    void *arguments[] = {&arg};
    const bski_cuda_run run = {.function = kernel_of(p),
                               .name = "sm90a_bias_act_grad",
                               .grid = {(unsigned)s.across, (unsigned)s.shares, 1},
                               .threads = SLOPE_THREADS,
                               .arguments = arguments};
    TRY(bski_cuda_launch(queue, &run));
    const column_sums_arg sums = {.partial = arg.partial,
                                  .out = {bsk_mem_address(a->dbias)},
                                  .shares = (int32_t)s.shares,
                                  .features = (int32_t)p->dy.dims[1],
                                  .alpha = (float)a->alpha,
                                  .beta = (float)a->beta};
    return bski_cuda_column_sums(queue, &sums);
}

void cuda_sm90a_bias_act_grad_release(void *device, bsk_prepared *prepared)
{
    (void)device;
    (void)prepared;
}
