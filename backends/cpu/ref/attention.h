/* What attention sees, what a score is, and what dropout keeps: shared by the reference entries and
 * the tuned ones, which ask here about blocks that are not visible as a whole. */
#ifndef BSKI_CPU_REF_ATTENTION_H
#define BSKI_CPU_REF_ATTENTION_H

#include "ref.h"

#include <common/philox.h>

/* The options that the softmax and both directions of attention share. */
typedef struct scoring {
    const bsk_layout_tables *t;
    int64_t interleave, q_time, k_time, window;
    int64_t heads; /* of the queries */
    bool causal, align_end;
    double softcap, scale;
    int64_t masks;
    ref_view bias, slopes, q_len, k_len, prefix, q_segment, k_segment, bits, bits_index;
} scoring;

#define SCORING(t, p, a, query_heads, queries, keys, factor)                                       \
    {                                                                                              \
        .t = t, .interleave = (p)->interleave, .q_time = queries, .k_time = keys,                  \
        .window = (p)->window, .heads = query_heads, .causal = (p)->causal != 0,                   \
        .align_end = (p)->align == BSK_ALIGN_END, .softcap = (p)->softcap, .scale = factor,        \
        .masks = (p)->bits.dims[0], .bias = view_repeated(&(p)->bias, (a)->bias),                  \
        .slopes = view_of(&(p)->slopes, (a)->slopes), .q_len = view_of(&(p)->q_len, (a)->q_len),   \
        .k_len = view_of(&(p)->k_len, (a)->k_len), .prefix = view_of(&(p)->prefix, (a)->prefix),   \
        .q_segment = view_repeated(&(p)->q_segment, (a)->q_segment),                               \
        .k_segment = view_repeated(&(p)->k_segment, (a)->k_segment),                               \
        .bits = view_of(&(p)->bits, (a)->bits),                                                    \
        .bits_index = view_of(&(p)->bits_index, (a)->bits_index),                                  \
    }

/* The time that line p of `lines` rows or columns stands for. */
static inline int64_t time_of(int64_t lines, int64_t interleave, int64_t p)
{
    const int64_t run = lines / interleave;
    return p % run * interleave + p / run;
}

static inline int64_t length_of(const ref_view *len, int64_t batch, int64_t time)
{
    if (!view_given(len))
        return time;
    const int64_t n = view_get_int(len, batch);
    return n < 0 ? 0 : n > time ? time : n;
}

static inline int64_t segment_of(const ref_view *segment, int64_t batch, int64_t time)
{
    return bski_load_int(segment->dtype, segment->data,
                         batch * segment->stride[0] + time * segment->stride[1]);
}

/* A row of scores: member b, query head h, layout row p. */
typedef struct query {
    int64_t b, h, p;
    int64_t time;       /* of the row */
    int64_t pos;        /* where it stands among the keys */
    int64_t keys;       /* of this member of the batch */
    int64_t first, end; /* entries of its block row */
    bool live;          /* not padding */
} query;

static inline query query_of(const scoring *s, int64_t b, int64_t h, int64_t p)
{
    const bsk_layout_tables *t = s->t;
    const int64_t queries = length_of(&s->q_len, b, s->q_time);
    const int64_t line =
        h / (s->heads / t->heads) * ((int64_t)t->grid_rows + 1) + p / t->block_rows;
    query q = {.b = b,
               .h = h,
               .p = p,
               .time = time_of(t->rows, s->interleave, p),
               .keys = length_of(&s->k_len, b, s->k_time),
               .first = t->row_start[line],
               .end = t->row_start[line + 1]};
    q.pos = q.time + (s->align_end ? q.keys - queries : 0);
    q.live = q.time < queries;
    return q;
}

static inline bool bit_admits(const scoring *s, int64_t slot, int64_t row, int64_t col)
{
    if (!view_given(&s->bits))
        return true;
    const int64_t mask = view_given(&s->bits_index) ? view_get_int(&s->bits_index, slot) : slot;
    if (mask < 0 || mask >= s->masks)
        return true;
    const uint8_t *bytes = s->bits.data;
    return bytes[mask * s->bits.stride[0] + row * s->bits.stride[1] + col / 8] >> col % 8 & 1;
}

static inline bool segment_admits(const scoring *s, const query *q, int64_t key)
{
    if (!view_given(&s->k_segment))
        return true;
    const int64_t k = segment_of(&s->k_segment, q->b, key);
    return k >= 0 && (!view_given(&s->q_segment) || k == segment_of(&s->q_segment, q->b, q->time));
}

/* Whether a row sees layout column c of the block in slot. */
static inline bool is_visible(const scoring *s, const query *q, int64_t slot, int64_t c)
{
    const bsk_layout_tables *t = s->t;
    const int64_t key = time_of(t->cols, s->interleave, c), distance = q->pos - key;
    if (!q->live || key >= q->keys || key % s->interleave != q->time % s->interleave)
        return false;
    if (s->causal && distance < 0 &&
        !(view_given(&s->prefix) && key < view_get_int(&s->prefix, q->b)))
        return false;
    if (s->window > 0 && (distance >= s->window || -distance >= s->window))
        return false;
    return segment_admits(s, q, key) &&
           bit_admits(s, slot, q->p % t->block_rows, c % t->block_cols);
}

/* From a product to a score. */
static inline double score_of(const scoring *s, const query *q, int64_t key, double x)
{
    double score = s->scale * x;
    if (s->softcap > 0)
        score = s->softcap * tanh(score / s->softcap);
    if (view_given(&s->slopes))
        score -= view_get1(&s->slopes, q->h) * fabs((double)(q->pos - key));
    if (view_given(&s->bias)) {
        const int64_t index[BSK_MAX_RANK] = {q->b, q->h, q->time, key};
        score += view_get(&s->bias, index);
    }
    return score;
}

/* d score / d product. */
static inline double score_slope(const scoring *s, double x)
{
    if (!(s->softcap > 0))
        return s->scale;
    const double u = tanh(s->scale * x / s->softcap);
    return s->scale * (1 - u * u);
}

/* What dropout makes of 1 in element (i, j) of a block of query head h. */
typedef struct drop {
    bool on;
    double keep;
    uint64_t seed, offset;
    uint32_t limit;
} drop;

#define DROP_OF(p, a)                                                                              \
    {                                                                                              \
        (p)->dropout != 0, (a)->keep, (a)->seed, (a)->offset,                                      \
            (p)->dropout ? bski_dropout_limit((a)->keep) : 0                                       \
    }

static inline double drop_factor(const drop *d, const bsk_layout_tables *t, int64_t heads,
                                 const query *q, int64_t slot, int64_t i, int64_t j)
{
    if (!d->on)
        return 1;
    const int64_t group = heads / t->heads, array = q->b * group + q->h % group;
    const uint64_t block = (uint64_t)array * (uint64_t)t->nnz + (uint64_t)slot;
    const uint64_t element =
        (block * (uint64_t)t->block_rows + (uint64_t)i) * (uint64_t)t->block_cols + (uint64_t)j;
    return bski_philox_u16(d->seed, d->offset, element) < d->limit ? 1 / d->keep : 0;
}

static inline double scale_of(double scale, int64_t d)
{
    return scale != 0 ? scale : d > 0 ? 1 / sqrt((double)d) : 1;
}

#endif
