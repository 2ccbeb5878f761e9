/* Lists of kept blocks; the host (dynamic.c) includes this file without SIMT_T for the structs of
 * scalars. A group writes the list of one row after another. */
#ifndef BSKI_SIMT_DYNAMIC_H
#define BSKI_SIMT_DYNAMIC_H

enum { LIST_DIMS = 3 };

/* Rows are numbered over LIST_DIMS dimensions, the last of which runs fastest. */
typedef struct list_arg {
    i64 rows, columns, capacity;
    i64 dims[LIST_DIMS], strides[LIST_DIMS], along;
    i64 k, first, last; /* of layout_topk */
} list_arg;

#endif

#ifdef SIMT_T
#undef LANES
#ifdef WIDE
#define LANES 1
#else
#define LANES 256
#endif
#include "lanes.h"

#ifndef BSKI_SIMT_DYNAMIC_ONCE
#define BSKI_SIMT_DYNAMIC_ONCE

DEVICE i64 list_row(const list_arg *a, i64 row)
{
    i64 at = 0;
    for (i32 d = LIST_DIMS - 1; d >= 0; d--) {
        at += row % a->dims[d] * a->strides[d];
        row /= a->dims[d];
    }
    return at;
}

/* Appends the columns of the lanes that keep theirs; returns how many there are then. */
DEVICE i64 list_append(const list_arg *a, LOCAL_ARG i32 *flags, GLOBAL i32 *index, i64 kept,
                       i64 column, i32 keep)
{
    i64 to = kept;
    flags[LANE] = keep;
    SYNC();
    for (i32 l = 0; l < LANES; l++) {
        to += l < LANE ? flags[l] : 0;
        kept += flags[l];
    }
    if (keep && to < a->capacity)
        index[to] = (i32)column;
    SYNC();
    return kept;
}

DEVICE void list_close(const list_arg *a, GLOBAL i32 *index, GLOBAL i32 *count, i64 kept)
{
    for (i64 e = kept + LANE; e < a->capacity; e += LANES)
        index[e] = -1;
    if (LANE == 0)
        *count = (i32)kept;
}

#endif

/* Whether x comes before y: larger first, NaN largest, of equal ones the first. */
DEVICE i32 NAME(list_before)(R x, i64 x_at, R y, i64 y_at)
{
    const i32 larger = x > y || (x != x && y == y), smaller = y > x || (y != y && x == x);
    return larger || (!smaller && x_at < y_at);
}

KERNEL(layout_topk, LANES)
(BUF(const T, scores), BUF(i32, index), BUF(i32, count), BUF(const i32, limit), const list_arg a)
{
    LOCAL i32 flags[LANES];
    OPEN(const T, scores);
    OPEN(i32, index);
    OPEN(i32, count);
    OPEN(const i32, limit);
    for (i64 row = GROUP(0); row < a.rows; row += GROUPS(0)) {
        const i64 wanted = limit ? limit[row] : a.columns, at = list_row(&a, row);
        const i64 end = wanted < 0 ? 0 : wanted < a.columns ? wanted : a.columns;
        const i64 first = a.first < end ? a.first : end;
        const i64 last = end - a.last > first ? end - a.last : first;
        i64 kept = 0;
        for (i64 base = 0; base < end; base += LANES) {
            const i64 column = base + LANE;
            i32 keep = column < end;
            if (column >= first && column < last) {
                const R own = LD(scores, at + column * a.along);
                i64 before = first + end - last;
                keep = own != -(R)INFINITY;
                for (i64 other = first; other < last && keep; other++) {
                    const R x = LD(scores, at + other * a.along);
                    before += x != -(R)INFINITY && NAME(list_before)(x, other, own, column);
                    keep = before < a.k;
                }
            }
            kept = list_append(&a, flags, index + row * a.capacity, kept, column, keep);
        }
        list_close(&a, index + row * a.capacity, count + row, kept);
    }
}

#if SIMT_CODE == 2
KERNEL(layout_mask, LANES)
(BUF(const u8, mask), BUF(i32, index), BUF(i32, count), const list_arg a)
{
    LOCAL i32 flags[LANES];
    OPEN(const u8, mask);
    OPEN(i32, index);
    OPEN(i32, count);
    for (i64 row = GROUP(0); row < a.rows; row += GROUPS(0)) {
        const i64 at = list_row(&a, row);
        i64 kept = 0;
        for (i64 base = 0; base < a.columns; base += LANES) {
            const i64 column = base + LANE;
            const i32 keep = column < a.columns && mask[at + column * a.along] != 0;
            kept = list_append(&a, flags, index + row * a.capacity, kept, column, keep);
        }
        list_close(&a, index + row * a.capacity, count + row, kept);
    }
}
#endif

#endif
