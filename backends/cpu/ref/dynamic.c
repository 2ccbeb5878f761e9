/* Reference entries of dynamic.h. */
#include "dynamic.h"

static bool is_candidate(const topk_row *r, int64_t column)
{
    return is_always_kept(r, column) || view_get1(&r->scores, column) != -INFINITY;
}

static ref_rank topk_rank(const topk_row *r, int64_t column)
{
    return is_always_kept(r, column) ? (ref_rank){NAN, -1}
                                     : (ref_rank){view_get1(&r->scores, column), column};
}

REF_OP(layout_topk, layout_topk)
{
    for (int64_t n = 0; n < shape_count(&p->count); n++) {
        const topk_row r = topk_row_of(p, a, n);
        list l = list_of(&p->index, a->index, a->count, n);
        for (int64_t column = 0; column < r.end; column++) {
            int64_t before = 0;
            for (int64_t other = 0; other < r.end; other++)
                before += is_candidate(&r, other) &&
                          ranks_before(topk_rank(&r, other), topk_rank(&r, column));
            if (is_candidate(&r, column) && before < topk_of(p))
                list_add(&l, column);
        }
        list_close(&l);
    }
}

REF_OP(layout_mask, layout_mask)
{
    for (int64_t n = 0; n < shape_count(&p->count); n++) {
        const ref_view mask = row_of(&p->mask, a->mask, n);
        list l = list_of(&p->index, a->index, a->count, n);
        for (int64_t column = 0; column < p->mask.dims[p->mask.rank - 1]; column++)
            if (view_get_int(&mask, column) != 0)
                list_add(&l, column);
        list_close(&l);
    }
}
