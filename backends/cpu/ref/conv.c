/* Reference entries of conv.h. */
#include <common/conv.h>

#include "ref.h"

typedef struct walk {
    int64_t n, channel, at[3];
} walk;

/* Element number i of [N, channels, sizes]. */
static walk walk_at(int64_t i, const bsk_tensor *t, const int64_t sizes[3])
{
    walk w;
    for (int d = 2; d >= 0; d--) {
        w.at[d] = i % sizes[d];
        i /= sizes[d];
    }
    w.channel = i % t->dims[1];
    w.n = i / t->dims[1];
    return w;
}

static double image_get(const ref_view *v, const int64_t stride[3], int64_t n, int64_t channel,
                        const int64_t at[3])
{
    return bski_load(v->dtype, v->data,
                     n * v->stride[0] + channel * v->stride[1] + at[0] * stride[0] +
                         at[1] * stride[1] + at[2] * stride[2]);
}

/* Where tap number `tap` of position `from` is on the other side; false if outside. */
static bool tap_at(const bski_conv_axes *a, bool back, const int64_t from[3], int64_t tap,
                   int64_t to[3])
{
    for (int d = 2; d >= 0; d--) {
        const int64_t t = tap % a->filter[d];
        to[d] = back ? bski_conv_output(a, d, from[d], t) : bski_conv_input(a, d, from[d], t);
        if (to[d] < 0)
            return false;
        tap /= a->filter[d];
    }
    return true;
}

/* What a pair of channels gives to an output of conv, or, if back, to an input: w from `filter` on, and
 * the other channel of x or dy. */
static double pair_sum(const bski_conv_axes *a, bool back, const ref_view *x, const ref_view *w,
                       const walk *to, int64_t other, int64_t filter)
{
    double sum = 0;
    int64_t from[3];
    for (int64_t tap = 0; tap < a->taps; tap++)
        if (tap_at(a, back, to->at, tap, from))
            sum += view_get1(w, filter + tap) *
                   image_get(x, back ? a->y_stride : a->x_stride, to->n, other, from);
    return sum;
}

static double blocks_sum(const bsk_conv_shape *s, const bski_conv_axes *a, bool back,
                         const ref_view *x, const ref_view *w, const walk *to)
{
    double sum = 0;
    for (bski_conv_block b = {0}; bski_conv_next(s, &b);)
        for (int64_t k = 0; k < b.outs; k++)
            for (int64_t c = 0; c < b.ins; c++)
                if ((back ? b.in[c] : b.out[k]) == to->channel)
                    sum += pair_sum(a, back, x, w, to, back ? b.out[k] : b.in[c],
                                    (b.pairs + k * b.ins + c) * a->taps);
    return sum;
}

/* y of x and w, or, if back, dx of dy and w. */
static void compute(const bsk_conv_shape *s, const bski_conv_axes *a, bool back, const ref_view *x,
                    const ref_view *w, const bsk_tensor *y_desc, const ref_view *y, double alpha,
                    double beta)
{
    const int64_t *sizes = back ? a->inputs : a->outputs;
    const int64_t *stride = back ? a->x_stride : a->y_stride, count = shape_count(y_desc);
    for (int64_t i = 0; i < count; i++) {
        const walk to = walk_at(i, y_desc, sizes);
        const double old = beta != 0 ? beta * image_get(y, stride, to.n, to.channel, to.at) : 0;
        bski_store(y->dtype, y->data,
                   to.n * y->stride[0] + to.channel * y->stride[1] + to.at[0] * stride[0] +
                       to.at[1] * stride[1] + to.at[2] * stride[2],
                   alpha * blocks_sum(s, a, back, x, w, &to) + old);
    }
}

REF_OP(conv, conv)
{
    const ref_view x = view_of(&p->x, a->x), w = view_of(&p->w, a->w), y = view_of(&p->y, a->y);
    bski_conv_axes axes;
    bski_conv_axes_fill(&axes, &p->shape, &p->x, &p->y);
    compute(&p->shape, &axes, false, &x, &w, &p->y, &y, a->alpha, a->beta);
}

REF_OP(conv_dgrad, conv_dgrad)
{
    const ref_view dy = view_of(&p->dy, a->dy), w = view_of(&p->w, a->w);
    const ref_view dx = view_of(&p->dx, a->dx);
    bski_conv_axes axes;
    bski_conv_axes_fill(&axes, &p->shape, &p->dx, &p->dy);
    compute(&p->shape, &axes, true, &dy, &w, &p->dx, &dx, a->alpha, a->beta);
}

/* The gradient of one tap of a pair of channels. */
static double filter_sum(const bski_conv_axes *a, int64_t images, const ref_view *x, int64_t c,
                         const ref_view *dy, int64_t k, int64_t tap)
{
    const bsk_tensor one = {.dims = {1, 1}};
    const int64_t positions = a->outputs[0] * a->outputs[1] * a->outputs[2];
    double sum = 0;
    int64_t from[3];
    for (int64_t n = 0; n < (positions ? images : 0); n++)
        for (int64_t i = 0; i < positions; i++) {
            const walk q = walk_at(i, &one, a->outputs);
            if (tap_at(a, false, q.at, tap, from))
                sum +=
                    image_get(x, a->x_stride, n, c, from) * image_get(dy, a->y_stride, n, k, q.at);
        }
    return sum;
}

REF_OP(conv_wgrad, conv_wgrad)
{
    const ref_view x = view_of(&p->x, a->x), dy = view_of(&p->dy, a->dy);
    const ref_view dw = view_of(&p->dw, a->dw);
    bski_conv_axes axes;
    bski_conv_axes_fill(&axes, &p->shape, &p->x, &p->dy);
    for (bski_conv_block b = {0}; bski_conv_next(&p->shape, &b);)
        for (int64_t k = 0; k < b.outs; k++)
            for (int64_t c = 0; c < b.ins; c++)
                for (int64_t tap = 0; tap < axes.taps; tap++) {
                    const int64_t e = (b.pairs + k * b.ins + c) * axes.taps + tap;
                    const double sum =
                        filter_sum(&axes, p->x.dims[0], &x, b.in[c], &dy, b.out[k], tap);
                    view_set1(&dw, e, a->alpha * sum + view_scaled1(&dw, e, a->beta));
                }
}
