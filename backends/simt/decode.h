/* Attention of a few queries over a paged cache; the host (decode.c) includes this file without
 * SIMT_T for the structs of scalars. A group meets one query of one head with one part of its list;
 * the parts are joined in their order. */
#ifdef SIMT_T
#include "lanes.h"
#endif

#include "attention_rules.h"

#ifndef BSKI_SIMT_DECODE_H
#define BSKI_SIMT_DECODE_H

/* The longest head, and keys that a group scores at a time. */
enum { DECODE_HEAD = 256, DECODE_KEYS = 256 };

typedef struct decode_arg {
    rules_arg rules;            /* without a layout */
    i64 q[3], k[3], v[3], o[3]; /* strides */
    i64 index[4], count[3];     /* strides, 0 where they repeat */
    i64 pages, page, columns;
    i64 block, q_block, blocks, capacity;
    i64 parts, part_entries; /* of a list; entries that are worth a part */
    i32 d, dv;
    i32 group, o_type; /* group: query heads of one of keys and values */
} decode_arg;

#endif

#ifdef SIMT_T

/* The entries of a list that count. */
DEVICE i64 decode_entries(const decode_arg *a, const GLOBAL i32 *index, const GLOBAL i32 *count,
                          const rules_member *m, i64 kv_head, i64 list)
{
    if (count) {
        const i64 n = count[m->number * a->count[0] + kv_head * a->count[1] + list * a->count[2]];
        return n < 0 ? 0 : n < a->capacity ? n : a->capacity;
    }
    const i64 live = (m->keys + a->block - 1) / a->block;
    return index ? a->capacity : live < a->capacity ? live : a->capacity;
}

/* Where a part of a list begins, in keys of its blocks. */
DEVICE i64 decode_begin(const decode_arg *a, i64 entries, i64 part)
{
    const i64 even = (entries + a->parts - 1) / a->parts;
    const i64 first = part * (even > a->part_entries ? even : a->part_entries);
    return (first < entries ? first : entries) * a->block;
}

/* The number of a key of a list that is visible, and its page; false: there is none. */
DEVICE i32 decode_find(const decode_arg *a, const rules_data *data, const GLOBAL i32 *table,
                       const GLOBAL i32 *list, const rules_member *m, i32 time, i64 slot, i32 *key,
                       i64 *page)
{
    const i64 entry = slot / a->block, block = list ? list[entry * a->index[3]] : entry;
    const i64 at = block * a->block + slot % a->block;
    if (block < 0 || block >= a->blocks || at >= m->keys)
        return 0;
    *key = (i32)at;
    *page = table ? table[m->number * a->columns + at / a->page] : m->number;
    return *page >= 0 && *page < a->pages && rules_visible(&a->rules, data, m, time, *key);
}

KERNEL(decode_parts, LANES)
(BUF(const T, q), BUF(const T, k), BUF(const T, v), BUF(const u8, slopes), BUF(const i32, q_len),
 BUF(const i32, k_len), BUF(const i32, table), BUF(const i32, index), BUF(const i32, count),
 BUF(R, partial), const decode_arg a)
{
    LOCAL R query[DECODE_HEAD];
    LOCAL R score[DECODE_KEYS];
    LOCAL i64 where[DECODE_KEYS];
    LOCAL R scratch[LANES];
    OPEN(const T, q);
    OPEN(const T, k);
    OPEN(const T, v);
    OPEN(const u8, slopes);
    OPEN(const i32, q_len);
    OPEN(const i32, k_len);
    OPEN(const i32, table);
    OPEN(const i32, index);
    OPEN(const i32, count);
    OPEN(R, partial);
    const rules_data data = {0, slopes, q_len, k_len, 0, 0, 0, 0, 0};
    const i64 part = GROUP(0) % a.parts, row = GROUP(0) / a.parts;
    const i32 time = (i32)(row % a.rules.q_time);
    const i32 head = (i32)(row / a.rules.q_time % a.rules.heads);
    const rules_member m = rules_member_of(&a.rules, &data, row / a.rules.q_time / a.rules.heads);
    const i64 kv_head = head / a.group, list = time / a.q_block;
    const i64 entries = decode_entries(&a, index, count, &m, kv_head, list);
    const i64 end = time < m.queries ? decode_begin(&a, entries, part + 1) : 0;
    const GLOBAL i32 *const blocks =
        index ? index + m.number * a.index[0] + kv_head * a.index[1] + list * a.index[2] : 0;
    const i32 own = a.dv > LANE ? (a.dv - LANE - 1) / LANES + 1 : 0;
    R most = -(R)INFINITY, sum = 0, o[DECODE_HEAD / LANES];
    for (i32 f = LANE; f < a.d; f += LANES)
        query[f] = LD(q, m.number * a.q[0] + head * a.q[1] + time * a.q[2] + f);
    for (i32 u = 0; u < own; u++)
        o[u] = 0;
    SYNC();
    for (i64 base = decode_begin(&a, entries, part); base < end; base += DECODE_KEYS) {
        const i32 keys = run_length(end, base, DECODE_KEYS);
        R high = -(R)INFINITY;
        for (i32 j = LANE; j < keys; j += LANES) {
            i32 key = 0;
            i64 page = 0;
            R x = 0;
            where[j] = -1;
            if (!decode_find(&a, &data, table, blocks, &m, time, base + j, &key, &page))
                continue;
            const i64 at = page * a.k[0] + kv_head * a.k[1] + key % a.page * a.k[2];
            for (i32 f = 0; f < a.d; f++)
                x += query[f] * LD(k, at + f);
            x = NAME(rules_score)(&a.rules, &data, &m, head, time, key, x);
            high = x > high || x != x ? x : high;
            score[j] = x;
            where[j] = page * a.v[0] + kv_head * a.v[1] + key % a.page * a.v[2];
        }
        const R top = NAME(tree_max)(scratch, LANE, LANES, high);
        if (top == -(R)INFINITY)
            continue;
        const R next = top > most || top != top ? top : most;
        const R shrink = most == -(R)INFINITY ? (R)0 : MATH(exp)(most - next);
        sum *= shrink;
        for (i32 j = LANE; j < keys; j += LANES) {
            if (where[j] < 0)
                continue;
            score[j] = MATH(exp)(score[j] - next);
            sum += score[j];
        }
        SYNC();
        for (i32 u = 0; u < own; u++)
            o[u] *= shrink;
        for (i32 j = 0; j < keys; j++)
            for (i32 u = 0; u < own && where[j] >= 0; u++)
                o[u] += score[j] * LD(v, where[j] + LANE + u * LANES);
        most = next;
        SYNC();
    }
    sum = NAME(tree_sum)(scratch, LANE, LANES, sum);
    const i64 to = GROUP(0) * (a.dv + 2);
    for (i32 u = 0; u < own; u++)
        partial[to + LANE + u * LANES] = o[u];
    if (LANE == 0) {
        partial[to + a.dv] = most;
        partial[to + a.dv + 1] = sum;
    }
}

KERNEL(decode_join, LANES)
(BUF(const R, partial), BUF(u8, o), BUF(R, lse), const decode_arg a)
{
    OPEN(const R, partial);
    OPEN(u8, o);
    OPEN(R, lse);
    const i64 row = GROUP(0), width = a.dv + 2, first = row * a.parts * width;
    const i64 time = row % a.rules.q_time, head = row / a.rules.q_time % a.rules.heads;
    const i64 at = row / a.rules.q_time / a.rules.heads * a.o[0] + head * a.o[1] + time * a.o[2];
    R most = -(R)INFINITY, sum = 0;
    for (i64 part = 0; part < a.parts; part++) {
        const R high = partial[first + part * width + a.dv];
        most = high > most || high != high ? high : most;
    }
    const R from = most == -(R)INFINITY ? (R)0 : most;
    for (i64 part = 0; part < a.parts; part++)
        sum += MATH(exp)(partial[first + part * width + a.dv] - from) *
               partial[first + part * width + a.dv + 1];
    for (i32 f = LANE; f < a.dv; f += LANES) {
        R total = 0;
        for (i64 part = 0; part < a.parts; part++)
            total += MATH(exp)(partial[first + part * width + a.dv] - from) *
                     partial[first + part * width + f];
        NAME(store_r)(a.o_type, o, at + f, sum == 0 ? (R)0 : total / sum);
    }
    if (LANE == 0 && lse)
        lse[row] = sum == 0 ? -(R)INFINITY : most + MATH(log)(sum);
}

#endif
