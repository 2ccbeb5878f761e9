/* Lists of kept blocks, and of the rows of experts; the host (dynamic.c) includes this file without
 * SIMT_T for the structs of scalars. A group writes the list of one row after another, or the places of
 * a chunk of slots. */
#define SIMT_SINGLES
#ifndef BSKI_SIMT_DYNAMIC_H
#define BSKI_SIMT_DYNAMIC_H

enum { LIST_DIMS = 3 };

/* Rows are numbered over LIST_DIMS dimensions, the last of which runs fastest. */
typedef struct list_arg {
    i64 rows, columns, capacity;
    i64 dims[LIST_DIMS], strides[LIST_DIMS], along;
    i64 k, first, last; /* of layout_topk */
    i32 type, pad;      /* of the scores */
} list_arg;

/* Slots of a chunk, at most. */
enum { ROUTE_MOST = 1024 };

typedef struct route_arg {
    i64 slots, choices, experts, chunks;
    i32 chunk, pad; /* slots of each but the last */
} route_arg;

#endif

#ifdef SIMT_T
#include "lanes.h"

#include "rows.h"

#include "rank.h"

#ifndef BSKI_SIMT_DYNAMIC_ONCE
#define BSKI_SIMT_DYNAMIC_ONCE

/* Numbers that are summed in local memory by each lane. */
#define LIST_WAYS (LANES < 16 ? 1 : 16)

DEVICE i64 list_row(const list_arg *a, i64 row)
{
    i64 at = 0;
    for (i32 d = LIST_DIMS - 1; d >= 0; d--) {
        at += row % a->dims[d] * a->strides[d];
        row /= a->dims[d];
    }
    return at;
}

/* The sum of all lanes' numbers, through room for 2 * LANES of them. */
DEVICE i32 list_total(LOCAL_ARG i32 *room, i32 mine)
{
#if LANES > 1
    const i32 left = LANES / LIST_WAYS;
    room[LANE] = mine;
    BARRIER();
    if (LANE < left) {
        for (i32 way = 1; way < LIST_WAYS; way++)
            mine += room[LANE + way * left];
        room[LANES + LANE] = mine;
    }
    BARRIER();
    mine = 0;
    for (i32 l = 0; l < left; l++)
        mine += room[LANES + l];
#endif
    return mine;
}

/* The sum of the numbers of the lanes before this one, and of all. */
DEVICE i32 list_before(LOCAL_ARG i32 *room, i32 mine, i32 *total)
{
    i32 sum = mine;
#if LANES > 1
    i32 side = 0;
    BARRIER();
    for (i32 reach = 1; reach < LANES; reach *= 2, side = LANES - side) {
        room[side + LANE] = sum;
        BARRIER();
        sum += LANE >= reach ? room[side + LANE - reach] : 0;
    }
    room[side + LANE] = sum;
    BARRIER();
    *total = room[side + LANES - 1];
    BARRIER();
#else
    *total = sum;
#endif
    return sum - mine;
}

DEVICE void list_close(const list_arg *a, GLOBAL i32 *index, GLOBAL i32 *count, i64 kept)
{
    for (i64 e = kept + LANE; e < a->capacity; e += LANES)
        index[e] = -1;
    if (LANE == 0)
        *count = (i32)kept;
}

#endif

/* Keys of the blocks between the first and the last ones, 0 for a score of -infinity. Up to
 * LIST_KEYS of them are held in local memory, longer rows are read each time. */
#undef LIST_KEYS
#define LIST_KEYS (12288 / (KEY_BITS / 8))

typedef struct NAME(list_keys) {
    const GLOBAL u8 *scores;
    LOCAL_ARG KEY *held;
    i64 at, along, first, count;
    i32 type;
} NAME(list_keys);

DEVICE KEY NAME(list_key)(const NAME(list_keys) * l, i64 i)
{
    const R v = NAME(load_r)(SINGLE_TYPE(l->type), l->scores, l->at + (l->first + i) * l->along);
    return v == LOWEST ? 0 : NAME(rank_key)(v);
}

/* The same, once they are held. */
DEVICE KEY NAME(list_own)(const NAME(list_keys) * l, i64 i)
{
    return l->count > LIST_KEYS ? NAME(list_key)(l, i) : l->held[i];
}

/* How many are not below `low`. */
DEVICE i64 NAME(list_count)(const NAME(list_keys) * l, LOCAL_ARG i32 *room, KEY low)
{
    i32 count = 0;
    for (i64 i = LANE; i < l->count; i += LANES)
        count += NAME(list_own)(l, i) >= low;
    return list_total(room, count);
}

/* The key of number `wanted` from above, or any that as many are not below; 0 where there are
 * fewer. *equal: how many of those with that key count, the first ones. */
DEVICE KEY NAME(list_cut)(const NAME(list_keys) * l, LOCAL_ARG i32 *room, i64 wanted, i64 *equal)
{
    KEY cut = wanted > 0 ? 0 : ~(KEY)0;
    for (i32 bit = KEY_BITS - 1; bit >= 0 && wanted > 0; bit--) {
        const KEY next = cut | (KEY)1 << bit;
        const i64 count = NAME(list_count)(l, room, next);
        if (count >= wanted)
            cut = next;
        if (count == wanted)
            break;
    }
    *equal = wanted;
    if (wanted > 0 && cut != ~(KEY)0)
        *equal -= NAME(list_count)(l, room, cut + 1);
    return cut;
}

KERNEL(layout_topk, LANES)
(BUF(const u8, scores), BUF(i32, index), BUF(i32, count), BUF(const i32, limit), const list_arg a)
{
    QUEUE_WAIT();
    LOCAL i32 room[2 * LANES];
    LOCAL KEY held[LIST_KEYS];
    OPEN(const u8, scores);
    OPEN(i32, index);
    OPEN(i32, count);
    OPEN(const i32, limit);
    for (i64 row = GROUP(0); row < a.rows; row += GROUPS(0)) {
        const i64 wanted = limit ? limit[row] : a.columns;
        const i64 end = wanted < 0 ? 0 : wanted < a.columns ? wanted : a.columns;
        const i64 first = a.first < end ? a.first : end;
        const i64 last = end - a.last > first ? end - a.last : first;
        NAME(list_keys) keys;
        i64 kept = 0, equal;
        keys.scores = scores;
        keys.held = held;
        keys.type = a.type;
        keys.at = list_row(&a, row);
        keys.along = a.along;
        keys.first = first;
        keys.count = last - first;
        for (i64 i = LANE; i < keys.count && keys.count <= LIST_KEYS; i += LANES)
            held[i] = NAME(list_key)(&keys, i);
        SYNC();
        const KEY cut = NAME(list_cut)(&keys, room, a.k - first - (end - last), &equal);
        for (i64 base = 0; base < end; base += LANES) {
            const i64 column = base + LANE;
            const i32 listed = column >= first && column < last;
            const KEY key = listed ? NAME(list_own)(&keys, column - first) : 0;
            const i32 above = column < end && (!listed || key > cut);
            const i32 same = listed && key == cut && key != 0;
            i32 total;
            const i32 before = list_before(room, above << 16 | same, &total);
            const i64 ties = (before & 0xffff) < equal ? before & 0xffff : equal;
            const i64 to = kept + (before >> 16) + ties;
            if ((above || (same && ties < equal)) && to < a.capacity)
                index[row * a.capacity + to] = (i32)column;
            const i64 taken = (total & 0xffff) < equal ? total & 0xffff : equal;
            kept += (total >> 16) + taken;
            equal -= taken;
        }
        list_close(&a, index + row * a.capacity, count + row, kept);
    }
}

#if SIMT_CODE == 2
KERNEL(layout_mask, LANES)
(BUF(const u8, mask), BUF(i32, index), BUF(i32, count), const list_arg a)
{
    QUEUE_WAIT();
    LOCAL i32 room[2 * LANES];
    OPEN(const u8, mask);
    OPEN(i32, index);
    OPEN(i32, count);
    for (i64 row = GROUP(0); row < a.rows; row += GROUPS(0)) {
        const i64 at = list_row(&a, row);
        i64 kept = 0;
        for (i64 base = 0; base < a.columns; base += LANES) {
            const i64 column = base + LANE;
            const i32 keep = column < a.columns && mask[at + column * a.along] != 0;
            i32 total;
            const i64 to = kept + list_before(room, keep, &total);
            if (keep && to < a.capacity)
                index[row * a.capacity + to] = (i32)column;
            kept += total;
        }
        list_close(&a, index + row * a.capacity, count + row, kept);
    }
}

/* The experts of a group's chunk of slots, into local memory; how many there are. */
DEVICE i32 route_load(const route_arg *a, const GLOBAL i32 *experts, LOCAL_ARG i32 *chunk)
{
    const i64 first = GROUP(0) * a->chunk, left = a->slots - first;
    const i32 n = left < a->chunk ? (i32)left : a->chunk;
    for (i32 i = LANE; i < n; i += LANES)
        chunk[i] = experts[first + i];
    BARRIER();
    return n;
}

/* How many slots of each chunk chose each expert: count[chunk][expert]. */
KERNEL(route_count, LANES)
(BUF(const i32, experts), BUF(i32, count), const route_arg a)
{
    QUEUE_WAIT();
    LOCAL i32 chunk[ROUTE_MOST];
    OPEN(const i32, experts);
    OPEN(i32, count);
    const i32 n = route_load(&a, experts, chunk);
    for (i64 e = LANE; e < a.experts; e += LANES) {
        i32 own = 0;
        for (i32 i = 0; i < n; i++)
            own += chunk[i] == e;
        count[GROUP(0) * a.experts + e] = own;
    }
}

/* Where the slots of a chunk go: a lane has an expert, behind those before it and behind the earlier
 * chunks of its own, and takes its slots in their order. */
KERNEL(route_place, LANES)
(BUF(const i32, experts), BUF(const i32, count), BUF(i32, offsets), BUF(i32, order),
 BUF(i32, token), BUF(i32, place), const route_arg a)
{
    QUEUE_WAIT();
    LOCAL i32 chunk[ROUTE_MOST];
    LOCAL i32 to[ROUTE_MOST]; /* of the chunk's slots; -1: of no expert */
    LOCAL i32 room[2 * LANES];
    OPEN(const i32, experts);
    OPEN(const i32, count);
    OPEN(i32, offsets);
    OPEN(i32, order);
    OPEN(i32, token);
    OPEN(i32, place);
    const i64 first = GROUP(0) * a.chunk;
    for (i32 i = LANE; i < a.chunk; i += LANES)
        to[i] = -1;
    const i32 n = route_load(&a, experts, chunk);
    i64 base = 0;
    for (i64 head = 0; head < a.experts; head += LANES) {
        const i64 e = head + LANE;
        i32 before = 0, all = 0, total;
        if (e < a.experts)
            for (i64 c = 0; c < a.chunks; c++) {
                const i32 own = count[c * a.experts + e];
                before += c < GROUP(0) ? own : 0;
                all += own;
            }
        const i64 at = base + list_before(room, all, &total);
        base += total;
        if (e >= a.experts)
            continue;
        if (GROUP(0) == 0)
            offsets[e] = (i32)at;
        i32 next = (i32)at + before;
        for (i32 i = 0; i < n; i++)
            if (chunk[i] == e)
                to[i] = next++;
    }
    if (GROUP(0) == 0 && LANE == 0)
        offsets[a.experts] = (i32)base;
    BARRIER();
    for (i32 i = LANE; i < n; i += LANES) {
        const i32 at = to[i];
        if (place)
            place[first + i] = at;
        if (at < 0)
            continue;
        order[at] = (i32)(first + i);
        if (token)
            token[at] = (i32)((first + i) / a.choices);
    }
    for (i64 at = base + GROUP(0) * LANES + LANE; at < a.slots; at += a.chunks * LANES) {
        order[at] = -1;
        if (token)
            token[at] = -1;
    }
}
#endif

#endif
