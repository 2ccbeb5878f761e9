/* Lists of kept blocks: a row is one thread's. */
#include "rank.h"
#include "rows.h"

#include "../ref/dynamic.h"

/* --- layout_topk ------------------------------------------------------------------------------ */

OMP_DECLARE(layout_topk_f32);

OMP_ACCEPT(layout_topk_f32)
{
    const bsk_layout_topk_params *p = problem->params;
    (void)props;
    return topk_of(p) <= RANKS ? BSK_ACCEPT : BSK_REFUSE_LIMIT;
}

OMP_PREPARE(layout_topk_f32)
{
    (void)device;
    (void)prepared;
    return BSK_OK;
}

enum { SCORES = 256 };

/* Up to SCORES scores of a row from `first` on; how many they are. */
static int64_t load_scores(const topk_row *r, int64_t first, float *to)
{
    const ref_view *v = &r->scores;
    const int64_t count = min_i64(SCORES, r->end - first);
    if (v->stride[0] == 1)
        row_load_f32(to, v->dtype, v->data, v->base + first, count);
    else
        for (int64_t i = 0; i < count; i++)
            to[i] = (float)view_get1(v, first + i);
    return count;
}

/* The best of a row that are not kept anyway, then those that are as good as the last of them. */
static void topk_one(const topk_row *r, int64_t k, list *l)
{
    const int64_t first = min_i64(r->first, r->end), last = max_i64(first, r->last);
    float score[SCORES];
    rank_heap h;
    h.count = 0;
    h.limit = k - first - (r->end - last);
    for (int64_t at = first; at < last && h.limit > 0; at += SCORES) {
        const int64_t count = min_i64(load_scores(r, at, score), last - at);
        for (int64_t i = 0; i < count; i++)
            if (score[i] != -INFINITY)
                heap_add(&h, rank_of(score[i], at + i));
    }
    for (int64_t j = 0; j < first; j++)
        list_add(l, j);
    for (int64_t at = first; at < last && h.count > 0; at += SCORES) {
        const int64_t count = min_i64(load_scores(r, at, score), last - at);
        for (int64_t i = 0; i < count; i++)
            if (score[i] != -INFINITY && rank_of(score[i], at + i) >= h.key[0])
                list_add(l, at + i);
    }
    for (int64_t j = last; j < r->end; j++)
        list_add(l, j);
    list_close(l);
}

OMP_LAUNCH(layout_topk_f32)
{
    const bsk_layout_topk_params *p = prepared->problem->params;
    const bsk_layout_topk_args *a = args;
    const int threads = queue_threads(queue);
    const int64_t rows = shape_count(&p->count);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t n = 0; n < rows; n++) {
        const topk_row r = topk_row_of(p, a, n);
        list l = list_of(&p->index, a->index, a->count, n);
        topk_one(&r, topk_of(p), &l);
    }
    return BSK_OK;
}

/* --- layout_mask ------------------------------------------------------------------------------ */

OMP_DECLARE(layout_mask);

OMP_ACCEPT(layout_mask)
{
    (void)problem;
    (void)props;
    return BSK_ACCEPT;
}

OMP_PREPARE(layout_mask)
{
    (void)device;
    (void)prepared;
    return BSK_OK;
}

OMP_LAUNCH(layout_mask)
{
    const bsk_layout_mask_params *p = prepared->problem->params;
    const bsk_layout_mask_args *a = args;
    const int threads = queue_threads(queue);
    const int64_t rows = shape_count(&p->count), columns = p->mask.dims[p->mask.rank - 1];
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t n = 0; n < rows; n++) {
        const ref_view mask = row_of(&p->mask, a->mask, n);
        list l = list_of(&p->index, a->index, a->count, n);
        for (int64_t column = 0; column < columns; column++)
            if (((const uint8_t *)mask.data)[mask.base + column * mask.stride[0]])
                list_add(&l, column);
        list_close(&l);
    }
    return BSK_OK;
}
