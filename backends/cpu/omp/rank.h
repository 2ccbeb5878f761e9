/* The k largest elements of a row in the order of topk: NaN first, then larger ones, and of equal
 * ones the first. */
#ifndef BSKI_OMP_RANK_H
#define BSKI_OMP_RANK_H

#include "isa.h"

enum { RANKS = 1024 }; /* the largest k */

/* An element's place as an integer that grows with its rank: value above, position below. */
typedef uint64_t rank_key;

/* Monotone in the value; the two zeros are equal, as are all NaN. */
OMP_INLINE uint32_t rank_value(float x)
{
    const uint32_t bits = bski_f32_bits(x), order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return x != x ? 0xffffffffu : x == 0 ? 0x80000000u : order;
}

static inline rank_key rank_of(float x, int64_t at)
{
    return (rank_key)rank_value(x) << 32 | (uint32_t) ~(uint32_t)at;
}

static inline int64_t rank_at(rank_key key)
{
    return (int64_t)(uint32_t) ~(uint32_t)key;
}

/* The best keys so far: a heap with the least one on top. */
typedef struct rank_heap {
    int64_t count, limit;
    rank_key key[RANKS];
} rank_heap;

/* Puts key where key[i] was. */
static inline void heap_sink(rank_heap *h, int64_t i, rank_key key)
{
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= h->count)
            break;
        if (child + 1 < h->count && h->key[child + 1] < h->key[child])
            child++;
        if (key <= h->key[child])
            break;
        h->key[i] = h->key[child];
        i = child;
    }
    h->key[i] = key;
}

static inline void heap_add(rank_heap *h, rank_key key)
{
    if (h->count < h->limit) {
        int64_t i = h->count++;
        for (; i > 0 && h->key[(i - 1) / 2] > key; i = (i - 1) / 2)
            h->key[i] = h->key[(i - 1) / 2];
        h->key[i] = key;
    } else if (key > h->key[0]) {
        heap_sink(h, 0, key);
    }
}

/* Elements first .. first + count of a row, in order; those with live[i] = 0 do not count. */
static inline void heap_add_row(rank_heap *h, const float *row, const float *live, int64_t first,
                                int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        /* an equal value further on ranks behind the top */
        const bool full = h->count == h->limit;
        if ((!full || rank_value(row[i]) > h->key[0] >> 32) && (!live || live[i] != 0))
            heap_add(h, rank_of(row[i], first + i));
    }
}

/* The keys in falling order. */
static inline void heap_sort(rank_heap *h)
{
    const int64_t count = h->count;
    while (h->count > 1) {
        const rank_key least = h->key[0], last = h->key[--h->count];
        heap_sink(h, 0, last);
        h->key[h->count] = least;
    }
    h->count = count;
}

#endif
