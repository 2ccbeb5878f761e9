/* What attention_decode reads: lists of blocks and pages of keys. Shared by the reference entry and
 * the tuned one. */
#ifndef BSKI_CPU_REF_DECODE_H
#define BSKI_CPU_REF_DECODE_H

#include <common/checked.h>

#include "attention.h"

typedef struct decode {
    scoring s; /* without a layout; k_time is what a member can have */
    ref_view table, block_index, block_count;
    int64_t pages, page;    /* of the pool; keys of each */
    int64_t block, q_block; /* keys of a block, queries of a list */
    int64_t blocks, lists, capacity;
} decode;

/* The sizes alone: all that plans know. */
static inline decode decode_sizes(const bsk_attention_decode_params *p)
{
    decode d = {.pages = p->k.dims[0], .page = p->k.dims[2]};
    const int64_t q_time = p->q.dims[2];
    d.block = p->block > 0 ? p->block : d.page;
    d.q_block = p->q_block > 0 ? p->q_block : q_time > 0 ? q_time : 1;
    d.s.heads = p->q.dims[1];
    d.s.q_time = q_time;
    d.s.k_time = d.page * (p->table.dtype != BSK_NONE ? p->table.dims[1] : 1);
    /* Nothing of a block lies beyond the keys. */
    d.block = d.block < d.s.k_time ? d.block : d.s.k_time;
    d.block = d.block > 0 ? d.block : 1;
    d.lists = bski_ceil_div(q_time, d.q_block);
    d.blocks = bski_ceil_div(d.s.k_time, d.block);
    d.capacity = p->block_index.dtype != BSK_NONE ? p->block_index.dims[3] : d.blocks;
    return d;
}

static inline decode decode_of(const bsk_attention_decode_params *p,
                               const bsk_attention_decode_args *a)
{
    decode d = decode_sizes(p);
    d.s.window = p->window;
    d.s.causal = p->causal != 0;
    d.s.softcap = p->softcap;
    d.s.scale = scale_of(a->scale, p->q.dims[3]);
    d.s.slopes = view_of(&p->slopes, a->slopes);
    d.s.q_len = view_of(&p->q_len, a->q_len);
    d.s.k_len = view_of(&p->k_len, a->k_len);
    d.table = view_of(&p->table, a->table);
    d.block_index = view_repeated(&p->block_index, a->block_index);
    d.block_count = view_repeated(&p->block_count, a->block_count);
    return d;
}

/* Query i of member b and head h. */
static inline query decode_query(const decode *d, int64_t b, int64_t h, int64_t i)
{
    const int64_t queries = length_of(&d->s.q_len, b, d->s.q_time);
    query q = {.b = b, .h = h, .time = i, .keys = length_of(&d->s.k_len, b, d->s.k_time)};
    q.pos = i + q.keys - queries;
    q.live = i < queries;
    return q;
}

/* Entries of a list that count. */
static inline int64_t decode_entries(const decode *d, int64_t b, int64_t kv_head, int64_t list)
{
    if (!view_given(&d->block_count))
        return d->capacity;
    const int64_t index[BSK_MAX_RANK] = {b, kv_head, list};
    const int64_t n = bski_load_int(BSK_I32, d->block_count.data, view_at(&d->block_count, index));
    return n < 0 ? 0 : n > d->capacity ? d->capacity : n;
}

/* The block that an entry names, or -1. */
static inline int64_t decode_block(const decode *d, int64_t b, int64_t kv_head, int64_t list,
                                   int64_t entry)
{
    if (!view_given(&d->block_index))
        return entry;
    const int64_t index[BSK_MAX_RANK] = {b, kv_head, list, entry};
    const int64_t n = bski_load_int(BSK_I32, d->block_index.data, view_at(&d->block_index, index));
    return n >= 0 && n < d->blocks ? n : -1;
}

/* The page with a key of member b, or -1. */
static inline int64_t decode_page(const decode *d, int64_t b, int64_t key)
{
    if (!view_given(&d->table))
        return b;
    const int64_t n = bski_load_int(BSK_I32, d->table.data,
                                    b * d->table.stride[0] + key / d->page * d->table.stride[1]);
    return n >= 0 && n < d->pages ? n : -1;
}

/* Whether a query sees a key, which has a page. */
static inline bool decode_sees(const decode *d, const query *q, int64_t key)
{
    const int64_t distance = q->pos - key;
    return q->live && key < q->keys && !(d->s.causal && distance < 0) &&
           !(d->s.window > 0 && (distance >= d->s.window || -distance >= d->s.window));
}

#endif
