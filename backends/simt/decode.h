/* Attention of a few queries over a paged cache; the host (decode.c) includes this file without
 * SIMT_T for the structs of scalars. A group meets DECODE_ROWS rows, queries of heads that share
 * keys and values, with one part of their list; the parts are joined in their order. */
#define SIMT_SINGLES
#ifdef SIMT_T
#include "lanes.h"
#endif

#include "attention_rules.h"

#ifndef BSKI_SIMT_DECODE_H
#define BSKI_SIMT_DECODE_H

/* The longest head, the rows of a group, and keys that it meets at a time. */
enum { DECODE_HEAD = 256, DECODE_ROWS = 8, DECODE_KEYS = 128 };

typedef struct decode_arg {
    rules_arg rules;            /* without a layout */
    i64 q[3], k[3], v[3], o[3]; /* strides */
    i64 index[4], count[3];     /* strides, 0 where they repeat */
    i64 pages, page, columns;
    i64 block, q_block, blocks, capacity;
    i64 lists, tiles;        /* tiles of rows of a list */
    i64 parts, part_entries; /* of a list; entries that are worth a part */
    i32 d, dv;
    i32 kv_heads, group; /* group: query heads of one of keys and values */
    i32 type, o_type, pad;
    i32 vector; /* runs of keys are aligned */
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

/* Rows of a set, which share what is read of a key; features of keys in local memory at a time, and
 * the distance of keys there; lanes of a row that find its largest score. */
#undef SET
#undef SETS
#undef DEPTH
#undef PITCH
#undef SHARES
#undef AHEAD
#define SET    4
#define SETS   (DECODE_ROWS / SET)
#define DEPTH  (SIMT_CODE == 1 && LANES > 1 ? 8 : 16)
#define PITCH  (DEPTH + 4)
#define SHARES 16
#define AHEAD  16 /* keys whose values are loaded before the first is used */

/* What a lane has of a chunk of keys, its sums, of SET rows and a feature each, and loops over
 * them, which a compiler for lanes unrolls to keep them in registers. */
#undef RUNS
#undef OWN
#undef SPREAD
#define RUNS (DECODE_KEYS * (DEPTH / VEC) / LANES)
#define OWN  (SETS * DECODE_HEAD / LANES)
#if LANES == 1
#define SPREAD NO_UNROLL
#else
#define SPREAD UNROLL
#endif

/* The number of a key of a list and its page; false: there is none. */
DEVICE i32 decode_find(const decode_arg *a, const GLOBAL i32 *table, const GLOBAL i32 *list,
                       const rules_member *m, i64 slot, i32 *key, i64 *page)
{
    const i64 entry = slot / a->block, block = list ? list[entry * a->index[3]] : entry;
    const i64 at = block * a->block + slot % a->block;
    if (block < 0 || block >= a->blocks || at >= m->keys)
        return 0;
    *key = (i32)at;
    *page = table ? table[m->number * a->columns + at / a->page] : m->number;
    return *page >= 0 && *page < a->pages;
}

/* Where the numbers of a part of a row begin. */
DEVICE i64 decode_part(const decode_arg *a, const rules_member *m, i32 head, i32 time, i64 part)
{
    const i64 row = (m->number * a->rules.heads + head) * a->rules.q_time + time;
    return (row * a->parts + part) * (a->dv + 2);
}

/* What a group knows of its rows and of the keys that they meet. */
typedef struct NAME(decode_room) {
    LOCAL_ARG R *query, *stage; /* [DECODE_ROWS][DECODE_HEAD], [DECODE_KEYS][PITCH] */
    LOCAL_ARG R *score;         /* [DECODE_KEYS][DECODE_ROWS] */
    LOCAL_ARG R *share;         /* [DECODE_ROWS][SHARES] */
    LOCAL_ARG R *most, *sum, *shrink;
    LOCAL_ARG i32 *head, *time; /* of a row; -1: there is none */
    LOCAL_ARG i32 *key;         /* -1: there is none */
    LOCAL_ARG i64 *k_at, *v_at;
    i32 rows, sets; /* sets: with rows */
} NAME(decode_room);

/* Features from `from` on of a lane's runs of keys. */
DEVICE void NAME(decode_fetch)(const decode_arg *a, const NAME(decode_room) * x, const GLOBAL u8 *k,
                               i32 from, R *v)
{
    SPREAD
    for (i32 u = 0; u < RUNS; u++) {
        const i32 n = LANE + u * LANES, key = n / (DEPTH / VEC), f = from + n % (DEPTH / VEC) * VEC;
        const i32 left = x->key[key] < 0 ? 0 : run_length(a->d, f, VEC);
        NAME(load_part)(SINGLE_TYPE(a->type), k, x->k_at[key] + f, 1, left, a->vector, v + u * VEC);
    }
}

/* Products of the rows and the keys. */
DEVICE void NAME(decode_products)(const decode_arg *a, const NAME(decode_room) * x,
                                  const GLOBAL u8 *k)
{
    R next[RUNS * VEC];
    for (i32 n = LANE; n < DECODE_KEYS * DECODE_ROWS; n += LANES)
        x->score[n] = 0;
    SYNC();
    NAME(decode_fetch)(a, x, k, 0, next);
    for (i32 from = 0; from < a->d; from += DEPTH) {
        SYNC();
        SPREAD
        for (i32 u = 0; u < RUNS; u++) {
            const i32 n = LANE + u * LANES;
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                x->stage[n / (DEPTH / VEC) * PITCH + n % (DEPTH / VEC) * VEC + e] =
                    next[u * VEC + e];
        }
        SYNC();
        if (from + DEPTH < a->d)
            NAME(decode_fetch)(a, x, k, from + DEPTH, next);
        for (i32 n = LANE; n < DECODE_KEYS * x->sets; n += LANES) {
            const i32 key = n % DECODE_KEYS, row = n / DECODE_KEYS * SET;
            R sum[SET];
            NAME(local_load4)(x->score + key * DECODE_ROWS + row, sum);
            UNROLL
            for (i32 f = 0; f < DEPTH; f += 4) {
                R other[4];
                NAME(local_load4)(x->stage + key * PITCH + f, other);
                UNROLL
                for (i32 r = 0; r < SET; r++) {
                    R own[4];
                    NAME(local_load4)(x->query + (row + r) * DECODE_HEAD + from + f, own);
                    UNROLL
                    for (i32 e = 0; e < 4; e++)
                        sum[r] += own[e] * other[e];
                }
            }
            NAME(local_store4)(x->score + key * DECODE_ROWS + row, sum);
        }
    }
    SYNC();
}

/* Scores from products, and from scores their shares of the largest so far. */
DEVICE void NAME(decode_shares)(const decode_arg *a, const rules_data *data, const rules_member *m,
                                const NAME(decode_room) * x)
{
    const i32 rows = x->sets * SET, shares = rows * SHARES;
    for (i32 n = LANE; n < shares; n += LANES) {
        const i32 row = n % rows, share = n / rows, time = x->time[row];
        R high = -(R)INFINITY;
        for (i32 j = share; j < DECODE_KEYS; j += SHARES) {
            const i32 key = x->key[j], at = j * DECODE_ROWS + row;
            R v = -(R)INFINITY;
            if (key >= 0 && time >= 0 && rules_visible(&a->rules, data, m, time, key))
                v = NAME(rules_score)(&a->rules, data, m, x->head[row], time, key, x->score[at]);
            high = v > high || v != v ? v : high;
            x->score[at] = v;
        }
        x->share[row * SHARES + share] = high;
    }
    SYNC();
    for (i32 row = LANE; row < rows; row += LANES) {
        const R before = x->most[row];
        R high = before;
        for (i32 n = 0; n < SHARES; n++) {
            const R v = x->share[row * SHARES + n];
            high = v > high || v != v ? v : high;
        }
        x->most[row] = high;
        x->shrink[row] = before == -(R)INFINITY ? (R)0 : MATH(exp)(before - high);
    }
    SYNC();
    for (i32 n = LANE; n < shares; n += LANES) {
        const i32 row = n % rows, share = n / rows;
        const R from = x->most[row] == -(R)INFINITY ? (R)0 : x->most[row];
        R sum = 0;
        for (i32 j = share; j < DECODE_KEYS; j += SHARES) {
            const i32 at = j * DECODE_ROWS + row;
            x->score[at] = MATH(exp)(x->score[at] - from);
            sum += x->score[at];
        }
        x->share[row * SHARES + share] = sum;
    }
    SYNC();
    for (i32 row = LANE; row < rows; row += LANES) {
        R sum = x->sum[row] * x->shrink[row];
        for (i32 n = 0; n < SHARES; n++)
            sum += x->share[row * SHARES + n];
        x->sum[row] = sum;
    }
}

/* Feature f of the values of AHEAD keys. */
DEVICE void NAME(decode_ahead)(i32 type, const GLOBAL u8 *v, const LOCAL_ARG i32 *key,
                               const LOCAL_ARG i64 *at, i32 f, R *value)
{
#define EACH(load)                                                                                 \
    UNROLL                                                                                         \
    for (i32 j = 0; j < AHEAD; j++)                                                                \
        value[j] = key[j] < 0 ? (R)0 : load;
    if (type == SIMT_CODE) {
        EACH(((const GLOBAL R *)v)[at[j] + f])
    } else if (type == SIMT_F16) {
        EACH(f16_load((const GLOBAL u16 *)v + at[j] + f))
    } else {
        EACH(bf16_load((const GLOBAL u16 *)v + at[j] + f))
    }
#undef EACH
}

/* Adds the values of the keys, by their shares, to the sums of a lane: SET of them for each number
 * that it has of the sets' features. */
DEVICE void NAME(decode_values)(const decode_arg *a, const NAME(decode_room) * x,
                                const GLOBAL u8 *v, i32 keys, R *o)
{
    const i32 width = a->dv > 0 ? a->dv : 1;
    SPREAD
    for (i32 u = 0; u < OWN; u++) {
        const i32 n = LANE + u * LANES, row = n / width * SET, f = n % width;
        if (row >= x->sets * SET || f >= a->dv)
            continue;
        UNROLL
        for (i32 r = 0; r < SET; r++)
            o[u * SET + r] *= x->shrink[row + r];
        for (i32 from = 0; from < keys; from += AHEAD) {
            R value[AHEAD];
            NAME(decode_ahead)(SINGLE_TYPE(a->type), v, x->key + from, x->v_at + from, f, value);
            UNROLL
            for (i32 j = 0; j < AHEAD; j++) {
                R share[SET];
                NAME(local_load4)(x->score + (from + j) * DECODE_ROWS + row, share);
                UNROLL
                for (i32 r = 0; r < SET; r++)
                    o[u * SET + r] += share[r] * value[j];
            }
        }
    }
}

/* Stores what a part makes of its rows. */
DEVICE void NAME(decode_put)(const decode_arg *a, const rules_member *m,
                             const NAME(decode_room) * x, const R *o, GLOBAL R *partial, i64 part)
{
    const i32 width = a->dv > 0 ? a->dv : 1;
    for (i32 row = LANE; row < x->rows; row += LANES) {
        GLOBAL R *const to = partial + decode_part(a, m, x->head[row], x->time[row], part);
        to[a->dv] = x->most[row];
        to[a->dv + 1] = x->sum[row];
    }
    SPREAD
    for (i32 u = 0; u < OWN; u++) {
        UNROLL
        for (i32 r = 0; r < SET; r++) {
            const i32 n = LANE + u * LANES, row = n / width * SET + r, f = n % width;
            if (row < x->rows && f < a->dv)
                partial[decode_part(a, m, x->head[row], x->time[row], part) + f] = o[u * SET + r];
        }
    }
}

KERNEL(decode_parts, LANES)
(BUF(const u8, q), BUF(const u8, k), BUF(const u8, v), BUF(const u8, slopes), BUF(const i32, q_len),
 BUF(const i32, k_len), BUF(const i32, table), BUF(const i32, index), BUF(const i32, count),
 BUF(R, partial), const decode_arg a)
{
    QUEUE_WAIT();
    LOCAL R query[DECODE_ROWS * DECODE_HEAD] ALIGNED;
    LOCAL R stage[DECODE_KEYS * PITCH] ALIGNED;
    LOCAL R score[DECODE_KEYS * DECODE_ROWS] ALIGNED;
    LOCAL R share[DECODE_ROWS * SHARES];
    LOCAL R most[DECODE_ROWS];
    LOCAL R sum[DECODE_ROWS];
    LOCAL R shrink[DECODE_ROWS];
    LOCAL i32 head[DECODE_ROWS];
    LOCAL i32 time[DECODE_ROWS];
    LOCAL i32 key[DECODE_KEYS];
    LOCAL i64 k_at[DECODE_KEYS];
    LOCAL i64 v_at[DECODE_KEYS];
    OPEN(const u8, q);
    OPEN(const u8, k);
    OPEN(const u8, v);
    OPEN(const u8, slopes);
    OPEN(const i32, q_len);
    OPEN(const i32, k_len);
    OPEN(const i32, table);
    OPEN(const i32, index);
    OPEN(const i32, count);
    OPEN(R, partial);
    const rules_data data = {0, slopes, q_len, k_len, 0, 0, 0, 0, 0};
    const i64 part = GROUP(0) % a.parts, tile = GROUP(0) / a.parts;
    const i64 list = tile / a.tiles % a.lists, owner = tile / a.tiles / a.lists;
    const i64 kv_head = owner % a.kv_heads;
    rules_member m;
    rules_member_of(&a.rules, &data, owner / a.kv_heads, &m);
    const i64 entries = decode_entries(&a, index, count, &m, kv_head, list);
    const i64 first = list * a.q_block, number = tile % a.tiles * DECODE_ROWS;
    const i64 queries = run_length(a.rules.q_time, first, (i32)a.q_block);
    const i32 rows = run_length(a.group * queries, number, DECODE_ROWS);
    const i64 end = first < m.queries ? decode_begin(&a, entries, part + 1) : 0;
    const GLOBAL i32 *const blocks =
        index ? index + m.number * a.index[0] + kv_head * a.index[1] + list * a.index[2] : 0;
    R o[OWN * SET];
    NAME(decode_room) x;
    x.query = query;
    x.stage = stage;
    x.score = score;
    x.share = share;
    x.most = most;
    x.sum = sum;
    x.shrink = shrink;
    x.head = head;
    x.time = time;
    x.key = key;
    x.k_at = k_at;
    x.v_at = v_at;
    x.rows = rows;
    x.sets = (rows + SET - 1) / SET;
    for (i32 row = LANE; row < DECODE_ROWS; row += LANES) {
        head[row] = row < rows ? (i32)(kv_head * a.group + (number + row) / queries) : -1;
        time[row] = row < rows ? (i32)(first + (number + row) % queries) : -1;
        most[row] = -(R)INFINITY;
        sum[row] = 0;
    }
    SYNC();
    for (i32 n = LANE; n < DECODE_ROWS * DECODE_HEAD; n += LANES) {
        const i32 row = n / DECODE_HEAD, f = n % DECODE_HEAD;
        query[n] = 0;
        if (f < a.d && row < rows)
            query[n] =
                NAME(load_r)(SINGLE_TYPE(a.type), q,
                             m.number * a.q[0] + head[row] * a.q[1] + time[row] * a.q[2] + f);
    }
    SPREAD
    for (i32 u = 0; u < OWN * SET; u++)
        o[u] = 0;
    for (i64 base = decode_begin(&a, entries, part); base < end; base += DECODE_KEYS) {
        const i32 keys = run_length(end, base, DECODE_KEYS);
        SYNC();
        for (i32 j = LANE; j < DECODE_KEYS; j += LANES) {
            i32 number = 0;
            i64 page = 0;
            key[j] = -1;
            k_at[j] = v_at[j] = 0;
            if (j < keys && decode_find(&a, table, blocks, &m, base + j, &number, &page)) {
                k_at[j] = page * a.k[0] + kv_head * a.k[1] + number % a.page * a.k[2];
                v_at[j] = page * a.v[0] + kv_head * a.v[1] + number % a.page * a.v[2];
                key[j] = number;
            }
        }
        NAME(decode_products)(&a, &x, k);
        NAME(decode_shares)(&a, &data, &m, &x);
        SYNC();
        NAME(decode_values)(&a, &x, v, keys, o);
    }
    SYNC();
    NAME(decode_put)(&a, &m, &x, o, partial, part);
}

KERNEL(decode_join, LANES)
(BUF(const R, partial), BUF(u8, o), BUF(R, lse), const decode_arg a)
{
    QUEUE_WAIT();
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
