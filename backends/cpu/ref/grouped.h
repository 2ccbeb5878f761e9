/* Rows of groups whose numbers are in memory: shared by the reference and the tuned entries. */
#ifndef BSKI_CPU_GROUPED_H
#define BSKI_CPU_GROUPED_H

#include "ref.h"

/* A piece of the rows 0 to T - 1: those before all groups, of a group, or behind all groups. */
typedef struct group_span {
    int64_t number; /* of the span; of the group it is one more */
    int64_t begin, end;
} group_span;

/* Spans are numbers 0 to groups + 1; the first one is group_next of {-1, 0, 0}. */
static inline group_span group_next(const int32_t *offsets, int64_t groups, int64_t rows,
                                    group_span last)
{
    group_span s = {last.number + 1, last.end, rows};
    if (s.number <= groups) {
        const int64_t offset = offsets[s.number] < rows ? offsets[s.number] : rows;
        s.end = offset > s.begin ? offset : s.begin;
    }
    return s;
}

/* The group of a span, or -1. */
static inline int64_t span_group(const group_span *s, int64_t groups)
{
    return s->number <= groups ? s->number - 1 : -1;
}

#endif
