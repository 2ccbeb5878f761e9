/* The host side of the shared epilogue of dsd. */
#include <stdbool.h>

#include <backends/cuda/epilogue.h>

enum { WIDE_BYTES = 16 };

static int64_t type_bytes(bsk_dtype dtype)
{
    return dtype == BSK_F32 ? 4 : 2;
}

static bool type_runs(bsk_dtype dtype)
{
    return dtype == BSK_F32 || dtype == BSK_F16 || dtype == BSK_BF16;
}

bsk_reason bski_cuda_epilogue_accept(const bsk_problem *problem)
{
    const bsk_dsd_params *p = problem->params;
    const bool residual = p->residual.dtype != BSK_NONE;
    if (!type_runs(p->c.dtype) || (residual && !type_runs(p->residual.dtype)))
        return BSK_REFUSE_DTYPE;
    return BSK_ACCEPT;
}

static dsd_matrix matrix_of(const bsk_tensor *t, bool along_n)
{
    dsd_matrix m = {.type = (int32_t)t->dtype};
    if (t->dtype == BSK_NONE)
        return m;
    const int32_t f = t->rank - 2, n = t->rank - 1;
    m.feature = t->strides[f];
    m.n = t->strides[n];
    m.batch = t->rank == 3 && t->dims[0] > 1 ? t->strides[0] : 0;
    /* Runs begin at multiples of DSD_RUN, so the other axes decide. */
    const int64_t unit = WIDE_BYTES / type_bytes(t->dtype), other = along_n ? m.feature : m.n;
    const int64_t lines = along_n ? t->dims[f] : t->dims[n];
    m.wide = (along_n ? m.n : m.feature) == 1 && (lines <= 1 || other % unit == 0) &&
             m.batch % unit == 0;
    return m;
}

/* Activations as x * sigmoid(linear * x + cubic * x^3); gelu: (1 + tanh(u)) / 2 = sigmoid(2 u). */
static const struct {
    float linear, cubic;
} sigmoids[BSK_ACT_COUNT] = {
    [BSK_ACT_GELU] = {1.59576912160573071f, 0.0713548162726f},
    [BSK_ACT_SILU] = {1, 0},
    [BSK_ACT_QUICK_GELU] = {1.702f, 0},
};
#define BY_LOG_2 1.44269504088896341f

void bski_cuda_epilogue_fill(const bsk_problem *problem, dsd_epilogue *e)
{
    const bsk_dsd_params *p = problem->params;
    const int32_t f = p->c.rank - 2, n = p->c.rank - 1;
    *e = (dsd_epilogue){0};
    /* Where both axes count as contiguous, one of them has length 1. */
    e->along_n = p->c.strides[f] != 1 || (p->c.strides[n] == 1 && p->c.dims[f] == 1);
    e->c = matrix_of(&p->c, e->along_n);
    e->residual = matrix_of(&p->residual, e->along_n);
    e->features = p->c.dims[f];
    e->n = p->c.dims[n];
    e->act = (int32_t)p->act;
    e->linear = sigmoids[p->act].linear * BY_LOG_2;
    e->cubic = sigmoids[p->act].cubic * BY_LOG_2;
}

void bski_cuda_epilogue_bind(const bsk_dsd_args *args, dsd_epilogue *e)
{
    e->c.data = bsk_mem_address(args->c);
    e->residual.data = bsk_mem_address(args->residual);
    e->bias = bsk_mem_address(args->bias);
    e->row_scale = bsk_mem_address(args->row_scale);
    e->col_scale = bsk_mem_address(args->col_scale);
    e->scales[0] = bsk_mem_address(args->s_scale);
    e->scales[1] = bsk_mem_address(args->b_scale);
    e->alpha = (float)args->alpha;
    e->beta = (float)args->beta;
    const bool runs = (e->along_n ? e->n : e->features) % DSD_RUN == 0;
    const bool plain = e->c.wide && runs && e->beta == 0 && e->act != BSK_ACT_GELU_ERF &&
                       e->residual.type == BSK_NONE && !e->row_scale && !e->col_scale;
    const bool half = e->c.type != BSK_F32;
    e->lines = !e->along_n && e->act != BSK_ACT_GELU_ERF && e->c.wide &&
               e->features % DSD_RUN == 0 && !e->row_scale && !e->col_scale &&
               (e->residual.type == BSK_NONE || e->residual.wide);
    e->plain = plain && half && !e->along_n;
    e->plain_n = plain && half && e->along_n;
    e->plain_f32 = plain && !half;
    e->bare = bski_cuda_epilogue_linear(e) && !e->bias;
}
