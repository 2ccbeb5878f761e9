/* Convolutions over blocks of channels; the host (conv.c) includes this file without SIMT_T for the
 * structs of scalars. Kernels of f32 serve all types but f64. A lane has one element of an image after
 * another, a group one element of a gradient that is summed over images. */
#define SIMT_SINGLES
#ifndef BSKI_SIMT_CONV_H
#define BSKI_SIMT_CONV_H

/* Spatial dimensions; the numbers of a bski_conv_entry. */
enum { CONV_DIMS = 3 };
enum { CONV_LIST, CONV_COUNT, CONV_FILTER, CONV_STEP, CONV_ENTRY };

/* `in` is what is read at taps, `out` where the taps belong: of conv x and y, of conv_dgrad dy and dx,
 * of conv_wgrad x and dy. */
typedef struct conv_arg {
    i64 alpha, beta; /* NUM */
    i64 count;       /* elements of the result */
    i64 images, channels;
    i64 in_size[CONV_DIMS], out_size[CONV_DIMS];
    i64 in_image, in_channel, in_stride[CONV_DIMS];
    i64 out_image, out_channel, out_stride[CONV_DIMS];
    i32 filter[CONV_DIMS], stride[CONV_DIMS], dilation[CONV_DIMS], pad[CONV_DIMS];
    i32 back, channels_inner; /* conv_dgrad; neighbours in `out` differ by channel */
    i32 type, out_type;
} conv_arg;

/* An image, [N, C, sizes]. */
typedef struct image_view {
    i64 image, channel, stride[CONV_DIMS];
    i32 type, pad;
} image_view;

/* Of conv_edge_bias x and y, of its gradient dy and dx, or dy and x for the sums. */
typedef struct edge_arg {
    i64 alpha, beta; /* NUM */
    i64 images, channels, size[CONV_DIMS], positions, sets;
    i64 gain[2], bias[2]; /* strides, for the sums those of dgain and dbias */
    image_view x, y;
    i32 channels_inner, pad;
} edge_arg;

#endif

#ifdef SIMT_T
#include "lanes.h"

#ifndef BSKI_SIMT_CONV_ONCE
#define BSKI_SIMT_CONV_ONCE

/* Where tap t of position p lies in `in`, in dimension d, or -1. */
DEVICE i64 conv_from(const conv_arg *a, i32 d, i64 p, i32 t)
{
    if (!a->back) {
        const i64 from = p * a->stride[d] + (i64)t * a->dilation[d] - a->pad[d];
        return from < a->in_size[d] ? from : -1;
    }
    const i64 far = p + a->pad[d] - (i64)t * a->dilation[d];
    const i64 from = far < 0 ? -1 : far / a->stride[d];
    return far >= 0 && from * a->stride[d] == far && from < a->in_size[d] ? from : -1;
}

/* Element number i of images of these sizes: its image, *channel and *p. */
DEVICE i64 conv_place(i64 i, i64 channels, i32 channels_inner, const i64 *size, i64 *channel,
                      i64 *p)
{
    i64 rest = i;
    if (channels_inner) {
        rest = QUOTIENT(i, channels);
        *channel = i - rest * channels;
    }
    for (i32 d = CONV_DIMS - 1; d >= 0; d--) {
        const i64 next = QUOTIENT(rest, size[d]);
        p[d] = rest - next * size[d];
        rest = next;
    }
    if (!channels_inner) {
        const i64 next = QUOTIENT(rest, channels);
        *channel = rest - next * channels;
        rest = next;
    }
    return rest;
}

DEVICE i64 image_at(const image_view *v, i64 image, i64 channel, const i64 *p)
{
    return image * v->image + channel * v->channel + p[0] * v->stride[0] + p[1] * v->stride[1] +
           p[2] * v->stride[2];
}

#endif

/* What an entry of CONV_ENTRY numbers gives to position p of an image at `in_at`. */
DEVICE R NAME(conv_entry)(const conv_arg *a, const GLOBAL i64 *entry, const GLOBAL i32 *list,
                          const GLOBAL u8 *in, i64 in_at, const GLOBAL u8 *w, const i64 *p)
{
    R sum = 0;
    const i64 count = entry[CONV_COUNT], step = entry[CONV_STEP];
    const GLOBAL i32 *channels = list + entry[CONV_LIST];
    for (i32 t0 = 0; t0 < a->filter[0]; t0++) {
        const i64 from0 = conv_from(a, 0, p[0], t0);
        for (i32 t1 = 0; from0 >= 0 && t1 < a->filter[1]; t1++) {
            const i64 from1 = conv_from(a, 1, p[1], t1);
            const i64 at = in_at + from0 * a->in_stride[0] + from1 * a->in_stride[1];
            const i64 tap = ((i64)t0 * a->filter[1] + t1) * a->filter[2] + entry[CONV_FILTER];
            for (i32 t2 = 0; from1 >= 0 && t2 < a->filter[2]; t2++) {
                const i64 from2 = conv_from(a, 2, p[2], t2);
                for (i64 c = 0; from2 >= 0 && c < count; c++)
                    sum = FMA(
                        NAME(load_r)(SINGLE_TYPE(a->type), w, tap + t2 + c * step),
                        NAME(load_r)(SINGLE_TYPE(a->type), in,
                                     at + from2 * a->in_stride[2] + channels[c] * a->in_channel),
                        sum);
            }
        }
    }
    return sum;
}

/* The entries of channel k are start[k] .. start[k + 1] - 1 of those behind `start`. */
KERNEL(conv, LANES)
(BUF(const u8, in), BUF(const u8, w), BUF(u8, out), BUF(const i64, start), BUF(const i32, list),
 const conv_arg a)
{
    QUEUE_WAIT();
    OPEN(const u8, in);
    OPEN(const u8, w);
    OPEN(u8, out);
    OPEN(const i64, start);
    OPEN(const i32, list);
    const GLOBAL i64 *entries = start + a.channels + 1;
    for (i64 i = GROUP(0) * LANES + LANE; i < a.count; i += GROUPS(0) * LANES) {
        i64 k, p[CONV_DIMS];
        const i64 image = conv_place(i, a.channels, a.channels_inner, a.out_size, &k, p);
        R sum = 0;
        for (i64 e = start[k]; e < start[k + 1]; e++)
            sum +=
                NAME(conv_entry)(&a, entries + e * CONV_ENTRY, list, in, image * a.in_image, w, p);
        const i64 at = image * a.out_image + k * a.out_channel + p[0] * a.out_stride[0] +
                       p[1] * a.out_stride[1] + p[2] * a.out_stride[2];
        sum *= NUM(a.alpha);
        if (NUM(a.beta) != 0)
            sum += NUM(a.beta) * NAME(load_r)(a.out_type, out, at);
        NAME(store_r)(a.out_type, out, at, sum);
    }
}

/* pairs[2 * i] and pairs[2 * i + 1] are the channels of x and dy of the pair number i. */
KERNEL(conv_wgrad, LANES)
(BUF(const u8, x), BUF(const u8, dy), BUF(u8, dw), BUF(const i32, pairs), const conv_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const u8, x);
    OPEN(const u8, dy);
    OPEN(u8, dw);
    OPEN(const i32, pairs);
    const i64 positions = a.images * a.out_size[0] * a.out_size[1] * a.out_size[2];
    for (i64 e = GROUP(0); e < a.count; e += GROUPS(0)) {
        i64 pair = e;
        i32 tap[CONV_DIMS];
        for (i32 d = CONV_DIMS - 1; d >= 0; d--) {
            tap[d] = (i32)(pair % a.filter[d]);
            pair /= a.filter[d];
        }
        R sum = 0;
        for (i64 i = LANE; i < positions; i += LANES) {
            i64 rest = i, x_at = pairs[2 * pair] * a.in_channel;
            i64 dy_at = pairs[2 * pair + 1] * a.out_channel;
            i32 inside = 1;
            for (i32 d = CONV_DIMS - 1; d >= 0; d--) {
                const i64 next = QUOTIENT(rest, a.out_size[d]), p = rest - next * a.out_size[d];
                const i64 from = conv_from(&a, d, p, tap[d]);
                inside &= from >= 0;
                x_at += from * a.in_stride[d];
                dy_at += p * a.out_stride[d];
                rest = next;
            }
            if (inside)
                sum = FMA(NAME(load_r)(SINGLE_TYPE(a.type), x, x_at + rest * a.in_image),
                          NAME(load_r)(SINGLE_TYPE(a.type), dy, dy_at + rest * a.out_image), sum);
        }
        sum = NUM(a.alpha) * NAME(tree_sum)(scratch, LANE, LANES, sum);
        if (LANE)
            continue;
        if (NUM(a.beta) != 0)
            sum += NUM(a.beta) * NAME(load_r)(a.out_type, dw, e);
        NAME(store_r)(a.out_type, dw, e, sum);
    }
}

/* Without bias the gradient of x. */
KERNEL(conv_edge_bias, LANES)
(BUF(const u8, x), BUF(const i32, edges), BUF(const R, gain), BUF(const R, bias), BUF(u8, y),
 const edge_arg a)
{
    QUEUE_WAIT();
    OPEN(const u8, x);
    OPEN(const i32, edges);
    OPEN(const R, gain);
    OPEN(const R, bias);
    OPEN(u8, y);
    const i64 count = a.images * a.channels * a.positions;
    for (i64 i = GROUP(0) * LANES + LANE; i < count; i += GROUPS(0) * LANES) {
        i64 c, p[CONV_DIMS];
        const i64 image = conv_place(i, a.channels, a.channels_inner, a.size, &c, p);
        const i32 e = edges[(p[0] * a.size[1] + p[1]) * a.size[2] + p[2]];
        R v = NAME(load_r)(a.x.type, x, image_at(&a.x, image, c, p));
        if (e >= 0 && e < a.sets) {
            v *= gain[c * a.gain[0] + e * a.gain[1]];
            if (bias)
                v += bias[c * a.bias[0] + e * a.bias[1]];
        }
        NAME(store_r)(a.y.type, y, image_at(&a.y, image, c, p), v);
    }
}

/* A group has the gain and the bias of one channel and set after another. */
KERNEL(conv_edge_sums, LANES)
(BUF(const u8, dy), BUF(const u8, x), BUF(const i32, edges), BUF(R, dgain), BUF(R, dbias),
 const edge_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const u8, dy);
    OPEN(const u8, x);
    OPEN(const i32, edges);
    OPEN(R, dgain);
    OPEN(R, dbias);
    for (i64 pair = GROUP(0); pair < a.channels * a.sets; pair += GROUPS(0)) {
        const i64 c = QUOTIENT(pair, a.sets), e = pair - c * a.sets;
        R products = 0, sum = 0;
        for (i64 q = LANE; q < a.positions; q += LANES) {
            i64 p[CONV_DIMS], channel;
            if (edges[q] != e)
                continue;
            conv_place(q, 1, 1, a.size, &channel, p);
            for (i64 n = 0; n < a.images; n++) {
                const R d = NAME(load_r)(a.x.type, dy, image_at(&a.x, n, c, p));
                products = FMA(d, NAME(load_r)(a.y.type, x, image_at(&a.y, n, c, p)), products);
                sum += d;
            }
        }
        products = NUM(a.alpha) * NAME(tree_sum)(scratch, LANE, LANES, products);
        sum = NUM(a.alpha) * NAME(tree_sum)(scratch, LANE, LANES, sum);
        if (LANE)
            continue;
        const i64 gain_at = c * a.gain[0] + e * a.gain[1], bias_at = c * a.bias[0] + e * a.bias[1];
        if (NUM(a.beta) != 0) {
            products += NUM(a.beta) * dgain[gain_at];
            sum += NUM(a.beta) * dbias[bias_at];
        }
        dgain[gain_at] = products;
        dbias[bias_at] = sum;
    }
}
#endif
