/* sparse_relu: rows cut at a threshold of their own. */
#include "dense.h"

/* Mean, deviation and threshold of a row. */
typedef struct row_cut {
    float mean, std, cut;
} row_cut;

static row_cut cut_of(bsk_dtype type, const void *x, int64_t at, int64_t features, double sigmas)
{
    double sum = 0, square = 0;
    float row[CHUNK];
    for (int64_t i = 0; i < features; i += CHUNK) {
        const int64_t count = min_i64(CHUNK, features - i);
        row_load_padded(row, type, x, at + i, count, 0);
        sum += (double)row_sum(row, count);
    }
    const double mean = sum / (double)features;
    for (int64_t i = 0; i < features; i += CHUNK) {
        const int64_t count = min_i64(CHUNK, features - i);
        row_load_padded(row, type, x, at + i, count, (float)mean);
        square += (double)row_square(row, count, (float)mean);
    }
    const double std = sqrt(square / (double)features);
    /* 0 times a deviation beyond f32 is not NaN; one of NaN is */
    const double above = sigmas == 0 && !isnan(std) ? 0 : sigmas * std;
    return (row_cut){(float)mean, (float)std, (float)(mean + above)};
}

/* Whether rows of features lie along memory in all tensors. */
static bool rows_along(const bsk_tensor *const *tensors, int count, bsk_axis axis)
{
    for (int i = 0; i < count; i++)
        if (!axis_contiguous(tensors[i], axis == BSK_NC ? 1 : 0))
            return false;
    return true;
}

OMP_DECLARE(sparse_relu);
OMP_PREPARE_NONE(sparse_relu)

OMP_ACCEPT(sparse_relu)
{
    const bsk_sparse_relu_params *p = problem->params;
    const bsk_tensor *const tensors[] = {&p->x, &p->y};
    (void)props;
    if (!is_narrow(&p->x) || !is_narrow(&p->y))
        return BSK_REFUSE_DTYPE;
    return rows_along(tensors, 2, p->axis) ? BSK_ACCEPT : BSK_REFUSE_STRIDE;
}

OMP_LAUNCH(sparse_relu)
{
    const bsk_sparse_relu_params *p = prepared->problem->params;
    const bsk_sparse_relu_args *a = args;
    const act_shape s = act_shape_of(&p->x, p->axis, p->axis == BSK_NC ? 1 : 0);
    const void *x = bsk_mem_address(a->x);

#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t n = 0; n < (s.inner ? s.outer : 0); n++) {
        const row_cut c = cut_of(p->x.dtype, x, row_at(&p->x, &s, n, 0), s.inner, a->sigmas);
        float row[CHUNK];
        for (int64_t i = 0; i < s.inner; i += CHUNK) {
            const int64_t count = min_i64(CHUNK, s.inner - i);
            row_load_f32(row, p->x.dtype, x, row_at(&p->x, &s, n, i), count);
            for (int64_t k = 0; k < count; k++) {
                const float v = row[k] - c.cut;
                row[k] = v <= 0 ? 0 : v;
            }
            row_store_f32(row, p->y.dtype, bsk_mem_address(a->y), row_at(&p->y, &s, n, i), count);
        }
    }
    return BSK_OK;
}

OMP_DECLARE(sparse_relu_grad);
OMP_PREPARE_NONE(sparse_relu_grad)

OMP_ACCEPT(sparse_relu_grad)
{
    const bsk_sparse_relu_grad_params *p = problem->params;
    const bsk_tensor *const tensors[] = {&p->dy, &p->x, &p->dx};
    (void)props;
    if (!is_narrow(&p->dy) || !is_narrow(&p->x) || !is_narrow(&p->dx))
        return BSK_REFUSE_DTYPE;
    return rows_along(tensors, 3, p->axis) ? BSK_ACCEPT : BSK_REFUSE_STRIDE;
}

/* One piece of a row: g, and x. */
static void cut_slope(const bsk_sparse_relu_grad_params *p, const bsk_sparse_relu_grad_args *a,
                      const act_shape *s, int64_t n, int64_t i, int64_t count, float cut,
                      float *restrict g, float *restrict x)
{
    row_load_f32(g, p->dy.dtype, bsk_mem_address(a->dy), row_at(&p->dy, s, n, i), count);
    row_load_f32(x, p->x.dtype, bsk_mem_address(a->x), row_at(&p->x, s, n, i), count);
    for (int64_t k = 0; k < count; k++) {
        const float v = x[k] - cut;
        g[k] *= v > 0 ? 1 : v <= 0 ? 0 : v;
    }
}

OMP_LAUNCH(sparse_relu_grad)
{
    const bsk_sparse_relu_grad_params *p = prepared->problem->params;
    const bsk_sparse_relu_grad_args *a = args;
    const act_shape s = act_shape_of(&p->dy, p->axis, p->axis == BSK_NC ? 1 : 0);
    const float sigmas = (float)a->sigmas;

#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t n = 0; n < (s.inner ? s.outer : 0); n++) {
        const row_cut c =
            cut_of(p->x.dtype, bsk_mem_address(a->x), row_at(&p->x, &s, n, 0), s.inner, a->sigmas);
        const float inverse = c.std > 0 ? 1 / c.std : 0;
        float g[CHUNK], x[CHUNK];
        double sum = 0;
        for (int64_t i = 0; !p->constant_cut && i < s.inner; i += CHUNK) {
            const int64_t count = min_i64(CHUNK, s.inner - i);
            cut_slope(p, a, &s, n, i, count, c.cut, g, x);
            row_pad(g, count, 0);
            sum += (double)row_sum(g, count);
        }
        const float share = (float)(sum / (double)s.inner);
        for (int64_t i = 0; i < s.inner; i += CHUNK) {
            const int64_t count = min_i64(CHUNK, s.inner - i), to = row_at(&p->dx, &s, n, i);
            cut_slope(p, a, &s, n, i, count, c.cut, g, x);
            for (int64_t k = 0; k < count; k++)
                g[k] -= share * (1 + sigmas * ((x[k] - c.mean) * inverse));
            row_blend(g, a->alpha, a->beta, p->dx.dtype, bsk_mem_address(a->dx), to, count);
            row_store_f32(g, p->dx.dtype, bsk_mem_address(a->dx), to, count);
        }
    }
    return BSK_OK;
}
