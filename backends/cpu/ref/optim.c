/* Reference entries of optim.h. */
#include "ref.h"

/* What all elements of one run share. */
typedef struct adam_scalars {
    double beta1, beta2, eps;
    double grad_scale; /* of the caller and of norm_scale together */
    double correction; /* sqrt(1 - beta2^step) / (1 - beta1^step) */
    double lr, weight_decay, clip_sigma;
} adam_scalars;

typedef struct adam_views {
    ref_view param, grad, m, v, copy;
} adam_views;

static void adam_element(const adam_scalars *s, const adam_views *x, int64_t i)
{
    double g = view_get1(&x->grad, i) * s->grad_scale;
    double v = s->beta2 * view_get1(&x->v, i) + (1 - s->beta2) * g * g, sigma = sqrt(v);
    if (s->clip_sigma > 0)
        g = at_most(at_least(g, -s->clip_sigma * sigma), s->clip_sigma * sigma);
    double m = s->beta1 * view_get1(&x->m, i) + (1 - s->beta1) * g;
    double old = view_get1(&x->param, i);
    double step = m * s->correction / (sigma + s->eps) + s->weight_decay * old;
    view_set1(&x->v, i, v);
    view_set1(&x->m, i, m);
    view_set1(&x->param, i, old - s->lr * step);
    if (view_given(&x->copy)) /* of the stored parameter, so that the two always agree */
        view_set1(&x->copy, i, view_get1(&x->param, i));
}

static bool grad_is_zero(const ref_view *grad, int64_t first, int64_t count)
{
    for (int64_t i = first; i < first + count; i++)
        if (view_get1(grad, i) != 0)
            return false;
    return true;
}

/* A contiguous tensor as a vector. */
static ref_view view_flat(const bsk_tensor *tensor, bsk_mem mem)
{
    ref_view v = view_of(tensor, mem);
    v.stride[0] = 1;
    return v;
}

REF_OP(adam, adam)
{
    const ref_view norm_scale = view_of(&p->norm_scale, a->norm_scale);
    const ref_view gate = view_of(&p->gate, a->gate);
    const double norm = view_given(&norm_scale) ? view_get1(&norm_scale, 0) : 1;
    if (norm == 0 || !isfinite(norm))
        return;
    const adam_views x = {view_flat(&p->param, a->param), view_flat(&p->grad, a->grad),
                          view_flat(&p->m, a->m), view_flat(&p->v, a->v),
                          view_flat(&p->copy, a->copy)};
    const adam_scalars s = {
        .beta1 = p->beta1,
        .beta2 = p->beta2,
        .eps = p->eps,
        .grad_scale = (a->grad_scale != 0 ? a->grad_scale : 1) * norm,
        .correction =
            sqrt(1 - pow(p->beta2, (double)a->step)) / (1 - pow(p->beta1, (double)a->step)),
        .lr = a->lr,
        .weight_decay = a->weight_decay,
        .clip_sigma = a->clip_sigma,
    };
    int64_t member = 1; /* elements of one member of the first dimension */
    for (int32_t d = 1; d < p->param.rank; d++)
        member *= p->param.dims[d];

    for (int64_t k = 0; k < p->param.dims[0]; k++) {
        if (view_given(&gate) && view_get1(&gate, k) == 0)
            continue;
        if (p->lazy && grad_is_zero(&x.grad, k * member, member))
            continue;
        for (int64_t i = k * member; i < (k + 1) * member; i++)
            adam_element(&s, &x, i);
    }
}
