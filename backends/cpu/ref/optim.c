/* Reference entries of optim.h. */
#include "ref.h"

#include <common/philox.h>

/* What all elements of one run share. */
typedef struct adam_scalars {
    double beta1, beta2, eps;
    double grad_scale; /* of the caller and of norm_scale together */
    double correction; /* sqrt(1 - beta2^step) / (1 - beta1^step) */
    double lr, weight_decay, clip_sigma;
    bool stochastic;
    uint64_t seed, offset;
} adam_scalars;

typedef struct adam_views {
    ref_view param, grad, m, v, copy;
} adam_views;

/* --- the state in 16 bits ------------------------------------------------------------------- */

/* The formats of m and v in u16: codes of a magnitude are exponent and fraction side by side. */
enum { CODE_EXPONENT = 60, CODE_TOP = 3, M_FRACTION = 9, V_FRACTION = 10, M_SIGN = 0x8000 };

static double code_value(unsigned code, int fraction)
{
    const unsigned one = 1u << fraction;
    return code ? ldexp((double)(one + code % one),
                        (int)(code >> fraction) - CODE_EXPONENT - fraction)
                : 0;
}

static unsigned code_of(double v, int fraction)
{
    const double most = ldexp(2 - ldexp(1, -fraction), CODE_TOP);
    if (!(v < most))
        v = most;
    if (v < ldexp(1, -CODE_EXPONENT))
        return 0;
    int e = ilogb(v);
    double steps = floor(ldexp(v, fraction - e) + 0.5);
    if (steps >= ldexp(2, fraction)) {
        steps /= 2;
        e++;
    }
    return ((unsigned)(e + CODE_EXPONENT) << fraction) + (unsigned)steps - (1u << fraction);
}

static double state_get(const ref_view *state, int64_t i, int fraction)
{
    if (state->dtype != BSK_U16)
        return view_get1(state, i);
    const unsigned code = ((const uint16_t *)state->data)[i];
    if (fraction == V_FRACTION)
        return code_value(code, fraction);
    const double v = code_value(code % M_SIGN, fraction);
    return code & M_SIGN ? -v : v;
}

/* Rounds away from zero if the 16 bits that are cut off, plus as many random ones, overflow. */
static uint16_t stochastic_bf16(float v, uint32_t random)
{
    const uint32_t bits = bski_f32_bits(v);
    if ((bits & 0x7f800000u) == 0x7f800000u)
        return bski_f32_to_bf16(v);
    return (uint16_t)((bits + (random >> 16)) >> 16);
}

/* word: 0 for m, 1 for v. */
static void state_set(const adam_scalars *s, const ref_view *state, int64_t i, int word, double v)
{
    const int fraction = word ? V_FRACTION : M_FRACTION;
    if (state->dtype == BSK_U16) {
        const unsigned code = code_of(fabs(v), fraction);
        ((uint16_t *)state->data)[i] = (uint16_t)(!word && v < 0 && code ? code | M_SIGN : code);
    } else if (s->stochastic) {
        const uint32_t random =
            bski_philox_u32(s->seed, s->offset, 2 * (uint64_t)i + (uint64_t)word);
        ((uint16_t *)state->data)[i] = stochastic_bf16((float)v, random);
    } else {
        view_set1(state, i, v);
    }
}

/* --- adam ----------------------------------------------------------------------------------- */

static void adam_element(const adam_scalars *s, const adam_views *x, int64_t i)
{
    double g = view_get1(&x->grad, i) * s->grad_scale;
    double v = s->beta2 * state_get(&x->v, i, V_FRACTION) + (1 - s->beta2) * g * g;
    double sigma = sqrt(v);
    if (s->clip_sigma > 0)
        g = at_most(at_least(g, -s->clip_sigma * sigma), s->clip_sigma * sigma);
    double m = s->beta1 * state_get(&x->m, i, M_FRACTION) + (1 - s->beta1) * g;
    double old = view_get1(&x->param, i);
    double step = m * s->correction / (sigma + s->eps) + s->weight_decay * old;
    state_set(s, &x->m, i, 0, m);
    state_set(s, &x->v, i, 1, v);
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

/* What the runs of adam and adam_n have in common: both have these params and args. */
#define SCALARS_OF(p, a)                                                                           \
    {                                                                                              \
        .beta1 = (p)->beta1, .beta2 = (p)->beta2, .eps = (p)->eps,                                 \
        .grad_scale = (a)->grad_scale != 0 ? (a)->grad_scale : 1, .lr = (a)->lr,                   \
        .weight_decay = (a)->weight_decay, .clip_sigma = (a)->clip_sigma,                          \
        .stochastic = (p)->stochastic != 0, .seed = (a)->seed, .offset = (a)->offset               \
    }

/* Takes the numbers on the device into account. Returns whether the step is to be made. */
static bool adam_begin(adam_scalars *s, int64_t step, const ref_view *norm_scale,
                       const ref_view *steps)
{
    const double norm = view_given(norm_scale) ? view_get1(norm_scale, 0) : 1;
    const double count = (double)step + (double)(view_given(steps) ? view_get_int(steps, 0) : 0);
    s->grad_scale *= norm;
    s->correction = sqrt(1 - pow(s->beta2, count)) / (1 - pow(s->beta1, count));
    return norm != 0 && isfinite(norm);
}

REF_OP(adam, adam)
{
    const ref_view norm_scale = view_of(&p->norm_scale, a->norm_scale);
    const ref_view steps = view_of(&p->steps, a->steps), gate = view_of(&p->gate, a->gate);
    const adam_views x = {view_flat(&p->param, a->param), view_flat(&p->grad, a->grad),
                          view_flat(&p->m, a->m), view_flat(&p->v, a->v),
                          view_flat(&p->copy, a->copy)};
    adam_scalars s = SCALARS_OF(p, a);
    if (!adam_begin(&s, a->step, &norm_scale, &steps))
        return;
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

REF_OP(adam_n, adam_n)
{
    const ref_view norm_scale = view_of(&p->norm_scale, a->norm_scale);
    const ref_view steps = view_of(&p->steps, a->steps);
    adam_scalars s = SCALARS_OF(p, a);
    if (!adam_begin(&s, a->step, &norm_scale, &steps))
        return;
    const int64_t count = shape_count(&p->param);
    for (int32_t t = 0; count && t < p->pairs; t++) {
        const bool copied = p->copy.dtype != BSK_NONE;
        const adam_views x = {view_flat(&p->param, a->param[t]), view_flat(&p->grad, a->grad[t]),
                              view_flat(&p->m, a->m[t]), view_flat(&p->v, a->v[t]),
                              copied ? view_flat(&p->copy, a->copy[t]) : (ref_view){0}};
        s.offset = a->offset + (uint64_t)t;
        for (int64_t i = 0; i < count; i++)
            adam_element(&s, &x, i);
    }
}
