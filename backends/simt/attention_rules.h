/* What attention sees, what a score is and what dropout keeps, on the device. To use it: a kernel
 * takes RULES_BUFFERS and a rules_arg (RULES_ARG on the host, with RULES_MEMS and rules_fit), opens
 * them by RULES_OPEN(data), calls rules_member_of once for a member of the batch, then rules_block
 * about a tile and, where that is RULES_PARTIAL, rules_visible and rules_bit about each element.
 *
 * Include after lanes.h, and without SIMT_T on the host. Times are below RULES_TIMES, so that
 * distances have 32 bits. */
#ifndef BSKI_SIMT_ATTENTION_RULES_H
#define BSKI_SIMT_ATTENTION_RULES_H

enum { RULES_TIMES = 1 << 29 };

typedef struct rules_arg {
    i64 scale, softcap; /* NUM; softcap 0: none */
    i64 factor;         /* NUM: what dropout makes of 1 in elements that it keeps */
    i64 seed, offset;
    i64 nnz, masks;
    i64 bias[4];              /* strides, 0 where it repeats */
    i64 q_segment, k_segment; /* from one member of the batch to the next */
    i32 rows, cols;           /* of the layout */
    i32 q_time, k_time;
    i32 block_rows, block_cols;
    i32 heads, per_head; /* query heads, and those of one head of the layout */
    i32 interleave, window;
    i32 causal, align_end;
    i32 dropout, limit; /* limit: an element is kept if its number of 16 bits is below */
    i32 bias_type, pad;
} rules_arg;

#ifndef SIMT_T
/* The scalars for params p and args a of an op with fields of these names. */
#define RULES_ARG(type, t, p, query_heads, queries, keys, factor_of_product)                       \
    {                                                                                              \
        .scale = bski_simt_num(type, factor_of_product),                                           \
        .softcap = bski_simt_num(type, (p)->softcap), .nnz = (t)->nnz, .masks = (p)->bits.dims[0], \
        .bias = {rules_stride(&(p)->bias, 0), rules_stride(&(p)->bias, 1),                         \
                 rules_stride(&(p)->bias, 2), rules_stride(&(p)->bias, 3)},                        \
        .q_segment = rules_stride(&(p)->q_segment, 0),                                             \
        .k_segment = rules_stride(&(p)->k_segment, 0), .rows = (i32)(t)->rows,                     \
        .cols = (i32)(t)->cols, .q_time = (i32)(queries), .k_time = (i32)(keys),                   \
        .block_rows = (t)->block_rows, .block_cols = (t)->block_cols, .heads = (i32)(query_heads), \
        .per_head = (i32)((query_heads) / (t)->heads), .interleave = (p)->interleave,              \
        .window = (p)->window < INT32_MAX ? (i32)(p)->window : 0, .causal = (p)->causal,           \
        .align_end = (p)->align == BSK_ALIGN_END, .bias_type = (i32)(p)->bias.dtype,               \
    }

/* The buffers of RULES_BUFFERS. */
#define RULES_MEMS(p, a)                                                                           \
    mem_of(&(p)->bias, (a)->bias), mem_of(&(p)->slopes, (a)->slopes),                              \
        mem_of(&(p)->q_len, (a)->q_len), mem_of(&(p)->k_len, (a)->k_len),                          \
        mem_of(&(p)->prefix, (a)->prefix), mem_of(&(p)->q_segment, (a)->q_segment),                \
        mem_of(&(p)->k_segment, (a)->k_segment), mem_of(&(p)->bits, (a)->bits),                    \
        mem_of(&(p)->bits_index, (a)->bits_index)

static inline i64 rules_stride(const bsk_tensor *t, int axis)
{
    return t->dtype == BSK_NONE || t->dims[axis] == 1 ? 0 : t->strides[axis];
}

static inline bool rules_fit(const bsk_layout_tables *t, i64 heads)
{
    return t->rows < RULES_TIMES && t->cols < RULES_TIMES && heads <= INT32_MAX;
}
#else

#include "philox.h"

enum { RULES_EMPTY, RULES_PARTIAL, RULES_FULL };

#define RULES_BUFFERS                                                                              \
    BUF(const u8, bias), BUF(const u8, slopes), BUF(const i32, q_len), BUF(const i32, k_len),      \
        BUF(const i32, prefix), BUF(const i32, q_segment), BUF(const i32, k_segment),              \
        BUF(const u8, bits), BUF(const i32, bits_index)
#define RULES_OPEN(data)                                                                           \
    OPEN(const u8, bias);                                                                          \
    OPEN(const u8, slopes);                                                                        \
    OPEN(const i32, q_len);                                                                        \
    OPEN(const i32, k_len);                                                                        \
    OPEN(const i32, prefix);                                                                       \
    OPEN(const i32, q_segment);                                                                    \
    OPEN(const i32, k_segment);                                                                    \
    OPEN(const u8, bits);                                                                          \
    OPEN(const i32, bits_index);                                                                   \
    const rules_data data = {bias,      slopes,    q_len, k_len,     prefix,                       \
                             q_segment, k_segment, bits,  bits_index}

/* Where the optional tensors are; NULL: absent. */
typedef struct rules_data {
    const GLOBAL u8 *bias, *slopes;
    const GLOBAL i32 *q_len, *k_len, *prefix, *q_segment, *k_segment;
    const GLOBAL u8 *bits;
    const GLOBAL i32 *bits_index;
} rules_data;

/* A member of the batch. */
typedef struct rules_member {
    i64 number;
    i32 queries, keys;
    i32 shift;  /* from the time of a query to where it stands among the keys */
    i32 prefix; /* keys before it are seen in spite of causality */
} rules_member;

DEVICE i32 rules_length(const GLOBAL i32 *length, i64 b, i32 time)
{
    const i32 n = length ? length[b] : time;
    return n < 0 ? 0 : n > time ? time : n;
}

DEVICE void rules_member_of(const rules_arg *a, const rules_data *d, i64 b, rules_member *m)
{
    m->number = b;
    m->queries = rules_length(d->q_len, b, a->q_time);
    m->keys = rules_length(d->k_len, b, a->k_time);
    m->shift = a->align_end ? m->keys - m->queries : 0;
    m->prefix = d->prefix ? d->prefix[b] : 0;
}

/* The time that line p of `lines` rows or columns stands for. */
DEVICE i32 rules_time(i32 lines, i32 interleave, i32 p)
{
    if (interleave == 1)
        return p;
    const i32 run = lines / interleave;
    return p % run * interleave + p / run;
}

/* The mask of a block, or -1 if all of it is visible as far as masks go. */
DEVICE i64 rules_mask(const rules_arg *a, const rules_data *d, i64 slot)
{
    const i64 mask = d->bits_index ? d->bits_index[slot] : slot;
    return !d->bits || mask < 0 || mask >= a->masks ? -1 : mask;
}

/* Whether the mask of a block admits its element (i, j). */
DEVICE i32 rules_bit(const rules_arg *a, const rules_data *d, i64 mask, i32 i, i32 j)
{
    if (mask < 0)
        return 1;
    const i64 row_bytes = (a->block_cols + 7) / 8;
    return d->bits[(mask * a->block_rows + i) * row_bytes + j / 8] >> (j % 8) & 1;
}

/* Whether the query at `time` sees the key at `key`, but for missing blocks and their masks. */
DEVICE i32 rules_visible(const rules_arg *a, const rules_data *d, const rules_member *m, i32 time,
                         i32 key)
{
    const i32 distance = time + m->shift - key;
    if (time >= m->queries || key >= m->keys)
        return 0;
    if (a->interleave > 1 && time % a->interleave != key % a->interleave)
        return 0;
    if (a->causal && distance < 0 && key >= m->prefix)
        return 0;
    if (a->window > 0 && (distance >= a->window || -distance >= a->window))
        return 0;
    if (!d->k_segment)
        return 1;
    const i32 segment = d->k_segment[m->number * a->k_segment + key];
    return segment >= 0 &&
           (!d->q_segment || segment == d->q_segment[m->number * a->q_segment + time]);
}

/* How much is visible of `rows` rows and `cols` columns, at least one each, of a block. */
DEVICE i32 rules_block(const rules_arg *a, const rules_data *d, const rules_member *m, i64 slot,
                       i32 row, i32 rows, i32 col, i32 cols)
{
    const i32 row_end = row + rows - 1, col_end = col + cols - 1;
    if (a->interleave > 1) {
        const i32 row_run = a->rows / a->interleave, col_run = a->cols / a->interleave;
        if (row / row_run != row_end / row_run || col / col_run != col_end / col_run)
            return RULES_PARTIAL;
        if (row / row_run != col / col_run)
            return RULES_EMPTY;
    }
    const i32 time = rules_time(a->rows, a->interleave, row);
    const i32 time_end = rules_time(a->rows, a->interleave, row_end);
    const i32 key = rules_time(a->cols, a->interleave, col);
    const i32 key_end = rules_time(a->cols, a->interleave, col_end);
    const i32 near = time + m->shift - key_end, far = time_end + m->shift - key;
    if (time >= m->queries || key >= m->keys)
        return RULES_EMPTY;
    if (a->causal && far < 0 && key >= m->prefix)
        return RULES_EMPTY;
    if (a->window > 0 && (near >= a->window || -far >= a->window))
        return RULES_EMPTY;
    if (time_end >= m->queries || key_end >= m->keys || d->k_segment ||
        (a->causal && near < 0 && key_end >= m->prefix) ||
        (a->window > 0 && (far >= a->window || -near >= a->window)) || rules_mask(a, d, slot) >= 0)
        return RULES_PARTIAL;
    return RULES_FULL;
}

/* 16 bits, as elements of a score array without gaps would draw them. */
DEVICE_APART u32 rules_draw(u64 seed, u64 offset, u64 element)
{
    u32 word[4];
    philox_block(seed, offset, element / 8, word);
    return philox_half(word, (u32)element);
}

/* Whether dropout keeps element (i, j) of the block in slot of query head h. */
DEVICE i32 rules_keeps(const rules_arg *a, const rules_member *m, i32 h, i64 slot, i32 i, i32 j)
{
    const i64 array = m->number * a->per_head + h % a->per_head;
    const u64 block = (u64)array * (u64)a->nnz + (u64)slot;
    const u64 element = (block * (u64)a->block_rows + (u64)i) * (u64)a->block_cols + (u64)j;
    return rules_draw((u64)a->seed, (u64)a->offset, element) < (u32)a->limit;
}

/* The score of the query at `time` and the key at `key` whose product is x. */
DEVICE R NAME(rules_score)(const rules_arg *a, const rules_data *d, const rules_member *m, i32 h,
                           i32 time, i32 key, R x)
{
    const R softcap = NUM(a->softcap);
    R score = NUM(a->scale) * x;
    if (softcap > 0)
        score = softcap * MATH(tanh)(score / softcap);
    if (d->slopes) {
        const R distance = (R)(time + m->shift - key);
        score -= NAME(load_r)(R_TYPE, d->slopes, h) * MATH(fabs)(distance);
    }
    if (d->bias)
        score += NAME(load_r)(a->bias_type, d->bias,
                              m->number * a->bias[0] + h * a->bias[1] + time * a->bias[2] +
                                  key * a->bias[3]);
    return score;
}

/* d score / d product. */
DEVICE R NAME(rules_slope)(const rules_arg *a, R x)
{
    const R scale = NUM(a->scale), softcap = NUM(a->softcap);
    if (!(softcap > 0))
        return scale;
    const R u = MATH(tanh)(scale * x / softcap);
    return scale * (1 - u * u);
}

/* What dropout makes of 1 in an element. */
DEVICE R NAME(rules_drop)(const rules_arg *a, const rules_member *m, i32 h, i64 slot, i32 i, i32 j)
{
    if (!a->dropout)
        return 1;
    return rules_keeps(a, m, h, slot, i, j) ? NUM(a->factor) : (R)0;
}

#endif
#endif
