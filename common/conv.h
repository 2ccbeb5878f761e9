/* The blocks of channels of convolutions, and the positions that their taps read. */
#ifndef BSKI_CONV_H
#define BSKI_CONV_H

#include <stdbool.h>

#include <bsk/conv.h>

/* A block of a list: inputs and outputs, and the pairs of channels in all blocks before it. */
typedef struct bski_conv_block {
    int64_t pairs, next; /* next: the place of the one behind it in the list */
    int64_t ins, outs;
    const int32_t *in, *out;
} bski_conv_block;

/* From {0} to the first block, and on to the next one; false behind the last. */
static inline bool bski_conv_next(const bsk_conv_shape *s, bski_conv_block *b)
{
    if (b->next >= s->blocks_size)
        return false;
    const int32_t *at = s->blocks + b->next;
    b->pairs += b->ins * b->outs;
    b->ins = at[0];
    b->outs = at[1];
    b->in = at + 2;
    b->out = b->in + b->ins;
    b->next += 2 + b->ins + b->outs;
    return true;
}

/* What a channel of the result gets from a block: `count` channels of the other side from place `list`
 * of the list on, with filters from element `filter` of w on, `step` apart. */
typedef struct bski_conv_entry {
    int64_t list, count, filter, step;
} bski_conv_entry;

/* The channels on the side of the result that a block has, and the others. */
typedef struct bski_conv_side {
    const int32_t *own, *others;
    int64_t count, other_count;
} bski_conv_side;

static inline bski_conv_side bski_conv_side_of(const bski_conv_block *b, bool back)
{
    return back ? (bski_conv_side){b->in, b->out, b->ins, b->outs}
                : (bski_conv_side){b->out, b->in, b->outs, b->ins};
}

/* start [channels + 1], and the entries of each channel in the order of the blocks, of which a number
 * of the list has one at most. back: of conv_dgrad. */
static inline void bski_conv_entries(const bsk_conv_shape *s, bool back, int64_t channels,
                                     int64_t taps, int64_t *start, bski_conv_entry *entries)
{
    for (int64_t k = 0; k <= channels; k++)
        start[k] = 0;
    for (bski_conv_block b = {0}; bski_conv_next(s, &b);) {
        const bski_conv_side side = bski_conv_side_of(&b, back);
        for (int64_t i = 0; side.other_count && i < side.count; i++)
            start[side.own[i] + 1]++;
    }
    for (int64_t k = 0; k < channels; k++)
        start[k + 1] += start[k];
    for (bski_conv_block b = {0}; bski_conv_next(s, &b);) {
        const bski_conv_side side = bski_conv_side_of(&b, back);
        for (int64_t i = 0; side.other_count && i < side.count; i++)
            entries[start[side.own[i]]++] = (bski_conv_entry){
                .list = side.others - s->blocks,
                .count = side.other_count,
                .filter = (b.pairs + (back ? i : i * b.ins)) * taps,
                .step = back ? b.ins * taps : taps,
            };
    }
    /* Each start is now that of the next channel. */
    for (int64_t k = channels; k > 0; k--)
        start[k] = start[k - 1];
    start[0] = 0;
}

static inline int64_t bski_conv_taps(const bsk_conv_shape *s, const bsk_tensor *x)
{
    int64_t taps = 1;
    for (int32_t d = 0; d < x->rank - 2; d++)
        taps *= s->filter[d];
    return taps;
}

/* An image as three spatial dimensions, of which the first ones may be missing. */
typedef struct bski_conv_axes {
    int64_t inputs[3], outputs[3]; /* sizes of x and y */
    int64_t filter[3], stride[3], dilation[3], pad[3];
    int64_t x_stride[3], y_stride[3];
    int64_t taps;
} bski_conv_axes;

static inline void bski_conv_axes_fill(bski_conv_axes *a, const bsk_conv_shape *s,
                                       const bsk_tensor *x, const bsk_tensor *y)
{
    const int missing = 5 - x->rank;
    a->taps = 1;
    for (int d = 0; d < 3; d++) {
        const bool there = d >= missing;
        const int from = there ? d - missing : 0;
        a->inputs[d] = there ? x->dims[2 + from] : 1;
        a->outputs[d] = there ? y->dims[2 + from] : 1;
        a->filter[d] = there ? s->filter[from] : 1;
        a->stride[d] = there ? s->stride[from] : 1;
        a->dilation[d] = there ? s->dilation[from] : 1;
        a->pad[d] = there ? s->pad[from] : 0;
        a->x_stride[d] = there ? x->strides[2 + from] : 0;
        a->y_stride[d] = there ? y->strides[2 + from] : 0;
        a->taps *= a->filter[d];
    }
}

/* Of images alone, at whose positions a filter of one tap reads the same position. */
static inline void bski_conv_axes_alone(bski_conv_axes *a, const bsk_tensor *x, const bsk_tensor *y)
{
    static const bsk_conv_shape one = {
        .filter = {1, 1, 1}, .stride = {1, 1, 1}, .dilation = {1, 1, 1}};
    bski_conv_axes_fill(a, &one, x, y);
}

/* The input position that tap t of output position q reads in dimension d, or -1. */
static inline int64_t bski_conv_input(const bski_conv_axes *a, int d, int64_t q, int64_t t)
{
    const int64_t p = q * a->stride[d] + t * a->dilation[d] - a->pad[d];
    return p < a->inputs[d] ? p < 0 ? -1 : p : -1;
}

/* The output position whose tap t reads input position p, or -1. */
static inline int64_t bski_conv_output(const bski_conv_axes *a, int d, int64_t p, int64_t t)
{
    const int64_t q = p + a->pad[d] - t * a->dilation[d];
    return q >= 0 && q % a->stride[d] == 0 && q / a->stride[d] < a->outputs[d] ? q / a->stride[d]
                                                                               : -1;
}

#endif
