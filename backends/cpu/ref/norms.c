/* Reference entries of norms.h. */
#include "ref.h"

static double optional1(const ref_view *v, int64_t i, double otherwise)
{
    return view_given(v) ? view_get1(v, i) : otherwise;
}

/* --- layer_norm --------------------------------------------------------------------------- */

typedef struct moments {
    double mean, rstd;
} moments;

static moments moments_of(const ref_view *x, int64_t n, int64_t first, int64_t count, bool rms,
                          double eps)
{
    moments m = {0};
    double square = 0;
    for (int64_t f = first; !rms && f < first + count; f++)
        m.mean += view_get2(x, n, f) / (double)count;
    for (int64_t f = first; f < first + count; f++)
        square += pow(view_get2(x, n, f) - m.mean, 2) / (double)count;
    m.rstd = 1 / sqrt(square + eps);
    return m;
}

REF_OP(layer_norm, layer_norm)
{
    const ref_view x = view_rows(&p->x, a->x, p->axis), y = view_rows(&p->y, a->y, p->axis);
    const ref_view gain = view_of(&p->gain, a->gain), bias = view_of(&p->bias, a->bias);
    const ref_view mean = view_of(&p->mean, a->mean), rstd = view_of(&p->rstd, a->rstd);
    const int64_t count = features_count(&p->x, p->axis) / p->segments;
    for (int64_t n = 0; n < rows_count(&p->x, p->axis); n++)
        for (int64_t s = 0; s < p->segments; s++) {
            const moments m = moments_of(&x, n, s * count, count, p->rms, p->eps);
            for (int64_t f = s * count; f < (s + 1) * count; f++) {
                const double h = (view_get2(&x, n, f) - m.mean) * m.rstd;
                const double v = h * optional1(&gain, f, 1) + optional1(&bias, f, 0);
                view_set2(&y, n, f, p->relu ? bski_ref_act(BSK_ACT_RELU, v) : v);
            }
            if (view_given(&mean))
                view_set2(&mean, s, n, m.mean);
            if (view_given(&rstd))
                view_set2(&rstd, s, n, m.rstd);
        }
}

typedef struct layer_grad {
    ref_view dy, x, mean, rstd, gain, bias;
    bool relu;
} layer_grad;

static double layer_h(const layer_grad *v, int64_t s, int64_t n, int64_t f)
{
    const double mean = view_given(&v->mean) ? view_get2(&v->mean, s, n) : 0;
    return (view_get2(&v->x, n, f) - mean) * view_get2(&v->rstd, s, n);
}

/* The gradient before gain. */
static double layer_g(const layer_grad *v, int64_t s, int64_t n, int64_t f)
{
    const double pre = layer_h(v, s, n, f) * optional1(&v->gain, f, 1) + optional1(&v->bias, f, 0);
    const double g = view_get2(&v->dy, n, f);
    return v->relu ? g * bski_ref_act_slope(BSK_ACT_RELU, pre) : g;
}

REF_OP(layer_norm_grad, layer_norm_grad)
{
    const layer_grad v = {view_rows(&p->dy, a->dy, p->axis),
                          view_rows(&p->x, a->x, p->axis),
                          view_of(&p->mean, a->mean),
                          view_of(&p->rstd, a->rstd),
                          view_of(&p->gain, a->gain),
                          view_of(&p->bias, a->bias),
                          p->relu != 0};
    const ref_view dx = view_rows(&p->dx, a->dx, p->axis);
    const ref_view dgain = view_of(&p->dgain, a->dgain), dbias = view_of(&p->dbias, a->dbias);
    const int64_t rows = rows_count(&p->dy, p->axis), features = features_count(&p->dy, p->axis);
    const int64_t count = features / p->segments;

    for (int64_t f = 0; f < features; f++) { /* first: dx may be dy */
        double sum_gain = 0, sum_bias = 0;
        for (int64_t n = 0; n < rows; n++) {
            sum_gain += layer_g(&v, f / count, n, f) * layer_h(&v, f / count, n, f);
            sum_bias += layer_g(&v, f / count, n, f);
        }
        if (view_given(&dgain))
            view_set1(&dgain, f, a->alpha * sum_gain + view_scaled1(&dgain, f, a->beta));
        if (view_given(&dbias))
            view_set1(&dbias, f, a->alpha * sum_bias + view_scaled1(&dbias, f, a->beta));
    }
    for (int64_t n = 0; view_given(&dx) && n < rows; n++)
        for (int64_t s = 0; s < p->segments; s++) {
            double sum = 0, sum_h = 0;
            for (int64_t f = s * count; f < (s + 1) * count; f++) {
                const double t = layer_g(&v, s, n, f) * optional1(&v.gain, f, 1);
                sum += p->rms ? 0 : t;
                sum_h += t * layer_h(&v, s, n, f);
            }
            for (int64_t f = s * count; f < (s + 1) * count; f++) {
                const double t = layer_g(&v, s, n, f) * optional1(&v.gain, f, 1);
                const double mean = (sum + layer_h(&v, s, n, f) * sum_h) / (double)count;
                const double d = (t - mean) * view_get2(&v.rstd, s, n);
                view_set2(&dx, n, f, a->dx_alpha * d + view_scaled2(&dx, n, f, a->dx_beta));
            }
        }
}

/* --- batch_norm --------------------------------------------------------------------------- */

/* How many n of x [N, C, S] have elements: none, however many there are, where S is 0. */
static int64_t channel_rows(const bsk_tensor *shape)
{
    return shape->dims[2] > 0 ? shape->dims[0] : 0;
}

/* Sums over a channel of x [N, C, S]: of x - mean, to the given power. */
static double channel_sum(const bsk_tensor *shape, const ref_view *x, int64_t c, double mean,
                          int power)
{
    double sum = 0;
    for (int64_t n = 0; n < channel_rows(shape); n++)
        for (int64_t s = 0; s < shape->dims[2]; s++)
            sum += pow(view_get3(x, n, c, s) - mean, power);
    return sum;
}

/* y of one channel. */
static void channel_norm(const bsk_tensor *shape, const ref_view *x, const ref_view *y, int64_t c,
                         double mean, double scale, double bias)
{
    for (int64_t n = 0; n < channel_rows(shape); n++)
        for (int64_t s = 0; s < shape->dims[2]; s++)
            view_set3(y, n, c, s, (view_get3(x, n, c, s) - mean) * scale + bias);
}

REF_OP(batch_norm, batch_norm)
{
    const ref_view x = view_of(&p->x, a->x), y = view_of(&p->y, a->y);
    const ref_view mean = view_of(&p->mean, a->mean), var = view_of(&p->var, a->var);
    const ref_view gain = view_of(&p->gain, a->gain), bias = view_of(&p->bias, a->bias);
    const double count = (double)p->x.dims[0] * (double)p->x.dims[2];
    for (int64_t c = 0; c < p->x.dims[1]; c++) {
        const double m = count > 0 ? channel_sum(&p->x, &x, c, 0, 1) / count : 0;
        const double v = count > 0 ? channel_sum(&p->x, &x, c, m, 2) / count : 0;
        channel_norm(&p->x, &x, &y, c, m, optional1(&gain, c, 1) / sqrt(v + p->eps),
                     optional1(&bias, c, 0));
        view_set1(&mean, c, m);
        view_set1(&var, c, v);
    }
}

REF_OP(batch_norm_infer, batch_norm_infer)
{
    const ref_view x = view_of(&p->x, a->x), y = view_of(&p->y, a->y);
    const ref_view mean = view_of(&p->mean, a->mean), var = view_of(&p->var, a->var);
    const ref_view gain = view_of(&p->gain, a->gain), bias = view_of(&p->bias, a->bias);
    for (int64_t c = 0; c < p->x.dims[1]; c++)
        channel_norm(&p->x, &x, &y, c, view_get1(&mean, c),
                     optional1(&gain, c, 1) / sqrt(view_get1(&var, c) + p->eps),
                     optional1(&bias, c, 0));
}

REF_OP(batch_norm_grad, batch_norm_grad)
{
    const ref_view dy = view_of(&p->dy, a->dy), x = view_of(&p->x, a->x);
    const ref_view mean = view_of(&p->mean, a->mean), var = view_of(&p->var, a->var);
    const ref_view gain = view_of(&p->gain, a->gain), dx = view_of(&p->dx, a->dx);
    const ref_view dgain = view_of(&p->dgain, a->dgain), dbias = view_of(&p->dbias, a->dbias);
    const double count = (double)p->x.dims[0] * (double)p->x.dims[2];
    const int64_t rows = channel_rows(&p->x);
    for (int64_t c = 0; c < p->x.dims[1]; c++) {
        const double m = view_get1(&mean, c), rstd = 1 / sqrt(view_get1(&var, c) + p->eps);
        const double scale = optional1(&gain, c, 1) * rstd;
        double sum = 0, sum_h = 0;
        for (int64_t n = 0; n < rows; n++)
            for (int64_t s = 0; s < p->x.dims[2]; s++) {
                sum += view_get3(&dy, n, c, s);
                sum_h += view_get3(&dy, n, c, s) * (view_get3(&x, n, c, s) - m) * rstd;
            }
        for (int64_t n = 0; view_given(&dx) && n < rows; n++)
            for (int64_t s = 0; s < p->x.dims[2]; s++) {
                const double h = (view_get3(&x, n, c, s) - m) * rstd;
                const double part = p->infer ? 0 : (sum + h * sum_h) / count;
                const double d = scale * (view_get3(&dy, n, c, s) - part);
                view_set3(&dx, n, c, s, a->dx_alpha * d + view_scaled3(&dx, n, c, s, a->dx_beta));
            }
        if (view_given(&dgain))
            view_set1(&dgain, c, a->alpha * sum_h + view_scaled1(&dgain, c, a->beta));
        if (view_given(&dbias))
            view_set1(&dbias, c, a->alpha * sum + view_scaled1(&dbias, c, a->beta));
    }
}
