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

static void image_put(const ref_view *v, const int64_t stride[3], const walk *w, double value)
{
    bski_store(v->dtype, v->data,
               w->n * v->stride[0] + w->channel * v->stride[1] + w->at[0] * stride[0] +
                   w->at[1] * stride[1] + w->at[2] * stride[2],
               value);
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
        image_put(y, stride, &to, alpha * blocks_sum(s, a, back, x, w, &to) + old);
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

/* --- conv_edge_bias --- */

/* The gain of an element, or the bias, or `otherwise` away from the edges. */
static double edge_number(const ref_view *gains, int64_t sets, const ref_view *edges,
                          const bski_conv_axes *a, const walk *at, double otherwise)
{
    const int64_t q = (at->at[0] * a->outputs[1] + at->at[1]) * a->outputs[2] + at->at[2];
    const int64_t e = view_get_int(edges, q);
    return e >= 0 && e < sets ? bski_load(gains->dtype, gains->data,
                                          at->channel * gains->stride[0] + e * gains->stride[1])
                              : otherwise;
}

REF_OP(conv_edge_bias, conv_edge_bias)
{
    const ref_view x = view_of(&p->x, a->x), y = view_of(&p->y, a->y);
    const ref_view edges = view_of(&p->edges, a->edges);
    const ref_view gain = view_of(&p->gain, a->gain), bias = view_of(&p->bias, a->bias);
    const int64_t count = shape_count(&p->x), sets = p->gain.dims[1];
    bski_conv_axes axes;
    bski_conv_axes_alone(&axes, &p->x, &p->y);
    for (int64_t i = 0; i < count; i++) {
        const walk at = walk_at(i, &p->x, axes.outputs);
        const double v = image_get(&x, axes.x_stride, at.n, at.channel, at.at);
        image_put(&y, axes.y_stride, &at,
                  v * edge_number(&gain, sets, &edges, &axes, &at, 1) +
                      edge_number(&bias, sets, &edges, &axes, &at, -0.0));
    }
}

/* The gradients of a gain and of its bias. */
static void edge_sums(const bsk_conv_edge_bias_grad_params *p, const bski_conv_axes *axes,
                      const ref_view *dy, const ref_view *x, const ref_view *edges, int64_t channel,
                      int64_t set, double sums[2])
{
    const bsk_tensor one = {.dims = {1, 1}};
    const int64_t images = p->dy.dims[0];
    sums[0] = sums[1] = 0;
    for (int64_t q = 0; q < p->edges.dims[0]; q++) {
        if (view_get_int(edges, q) != set)
            continue;
        const walk at = walk_at(q, &one, axes->outputs);
        for (int64_t n = 0; n < images; n++) {
            const double d = image_get(dy, axes->y_stride, n, channel, at.at);
            sums[0] += d * image_get(x, axes->x_stride, n, channel, at.at);
            sums[1] += d;
        }
    }
}

static void gains_put(const ref_view *v, int64_t at, double sum, double alpha, double beta)
{
    const double old = beta != 0 ? beta * bski_load(v->dtype, v->data, at) : 0;
    bski_store(v->dtype, v->data, at, alpha * sum + old);
}

REF_OP(conv_edge_bias_grad, conv_edge_bias_grad)
{
    const ref_view dy = view_of(&p->dy, a->dy), x = view_of(&p->x, a->x);
    const ref_view edges = view_of(&p->edges, a->edges), gain = view_of(&p->gain, a->gain);
    const ref_view dx = view_of(&p->dx, a->dx);
    const ref_view dgain = view_of(&p->dgain, a->dgain), dbias = view_of(&p->dbias, a->dbias);
    const int64_t count = shape_count(&p->dy), sets = p->gain.dims[1];
    bski_conv_axes axes, results;
    bski_conv_axes_alone(&axes, &p->x, &p->dy);
    bski_conv_axes_alone(&results, &p->dx, &p->dy);
    /* First, since dx may lie where dy does. */
    for (int64_t c = 0; c < p->gain.dims[0]; c++)
        for (int64_t e = 0; e < sets; e++) {
            double sums[2];
            edge_sums(p, &axes, &dy, &x, &edges, c, e, sums);
            gains_put(&dgain, c * dgain.stride[0] + e * dgain.stride[1], sums[0], a->alpha,
                      a->beta);
            gains_put(&dbias, c * dbias.stride[0] + e * dbias.stride[1], sums[1], a->alpha,
                      a->beta);
        }
    for (int64_t i = 0; i < count; i++) {
        const walk at = walk_at(i, &p->dy, axes.outputs);
        image_put(&dx, results.x_stride, &at,
                  image_get(&dy, axes.y_stride, at.n, at.channel, at.at) *
                      edge_number(&gain, sets, &edges, &axes, &at, 1));
    }
}
