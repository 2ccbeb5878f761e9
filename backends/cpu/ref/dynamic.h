/* Rows of scores and masks, and the lists that they become: shared by the reference entries and the
 * tuned ones. */
#ifndef BSKI_CPU_REF_DYNAMIC_H
#define BSKI_CPU_REF_DYNAMIC_H

#include "ref.h"

/* Row n of a tensor [..., rows, columns], as a vector. */
static inline ref_view row_of(const bsk_tensor *tensor, bsk_mem mem, int64_t n)
{
    ref_view v = view_of(tensor, mem);
    for (int32_t d = tensor->rank - 2; d >= 0; d--) {
        v.base += n % tensor->dims[d] * v.stride[d];
        n /= tensor->dims[d];
    }
    v.stride[0] = v.stride[tensor->rank - 1];
    return v;
}

/* A list that is being written. */
typedef struct list {
    int32_t *index, *count;
    int64_t number, capacity, kept;
} list;

static inline list list_of(const bsk_tensor *index, bsk_mem index_mem, bsk_mem count_mem, int64_t n)
{
    return (list){bsk_mem_address(index_mem), bsk_mem_address(count_mem), n,
                  index->dims[index->rank - 1], 0};
}

/* What has no room is counted only. */
static inline void list_add(list *l, int64_t column)
{
    if (l->kept < l->capacity)
        l->index[l->number * l->capacity + l->kept] = (int32_t)column;
    l->kept++;
}

static inline void list_close(const list *l)
{
    for (int64_t e = l->kept; e < l->capacity; e++)
        l->index[l->number * l->capacity + e] = -1;
    l->count[l->number] = (int32_t)l->kept;
}

/* The columns of a row up to its limit: those before `first` and from `last` on are always kept. */
typedef struct topk_row {
    ref_view scores;
    int64_t first, last, end;
} topk_row;

static inline topk_row topk_row_of(const bsk_layout_topk_params *p, const bsk_layout_topk_args *a,
                                   int64_t n)
{
    const int64_t columns = p->scores.dims[p->scores.rank - 1];
    const int64_t limit =
        p->limit.dtype != BSK_NONE ? ((const int32_t *)bsk_mem_address(a->limit))[n] : columns;
    const int64_t end = limit < 0 ? 0 : limit < columns ? limit : columns;
    return (topk_row){row_of(&p->scores, a->scores, n), p->first, end - p->last, end};
}

static inline int64_t topk_of(const bsk_layout_topk_params *p)
{
    return p->k > 0 ? p->k : p->index.dims[p->index.rank - 1];
}

static inline bool is_always_kept(const topk_row *r, int64_t column)
{
    return column < r->first || column >= r->last;
}

#endif
