/* Reference entries of select.h. */
#include "ref.h"

/* --- rows in the order of topk ------------------------------------------------------------ */

bool bski_ref_row_has(const ref_row *row, int64_t i)
{
    return !view_given(&row->mask) || view_get1(&row->mask, i) != 0;
}

double bski_ref_row_get(const ref_row *row, int64_t i)
{
    const double factor = view_given(&row->mask) ? view_get1(&row->mask, i) : 1;
    return view_get1(&row->x, i) * factor * row->scale;
}

ref_rank bski_ref_row_next(const ref_row *row, const ref_rank *before)
{
    ref_rank best = {0, -1};
    for (int64_t i = 0; i < row->count; i++) {
        if (!bski_ref_row_has(row, i))
            continue;
        const ref_rank r = {bski_ref_row_get(row, i), i};
        if ((!before || ranks_before(*before, r)) && (best.at < 0 || ranks_before(r, best)))
            best = r;
    }
    return best;
}

ref_rank bski_ref_row_kth(const ref_row *row, int64_t k)
{
    ref_rank last = bski_ref_row_next(row, NULL);
    for (int64_t j = 1; j < k && last.at >= 0; j++) {
        const ref_rank next = bski_ref_row_next(row, &last);
        if (next.at < 0)
            break;
        last = next;
    }
    return last;
}

/* Row n of a matrix as it is. */
static ref_row plain_row(const ref_view *x, int64_t n, int64_t count)
{
    return (ref_row){.x = view_sub(x, n), .scale = 1, .count = count};
}

/* --- maxima and gathers ------------------------------------------------------------------- */

REF_OP(reduce_max, reduce_max)
{
    const ref_view x = view_of(&p->x, a->x), y = view_of(&p->y, a->y);
    const ref_view argmax = view_of(&p->argmax, a->argmax);
    for (int64_t i = 0; i < p->y.dims[0]; i++)
        for (int64_t k = 0; k < p->y.dims[1]; k++) {
            int64_t best = 0;
            for (int64_t j = 1; j < p->x.dims[1]; j++)
                if (is_larger(view_get3(&x, i, j, k), view_get3(&x, i, best, k)))
                    best = j;
            view_set2(&y, i, k, view_get3(&x, i, best, k));
            if (view_given(&argmax))
                store_index(argmax.dtype, argmax.data, i * argmax.stride[0] + k * argmax.stride[1],
                            best);
        }
}

static int64_t index_at(const ref_view *index, int64_t i, int64_t j, int64_t k)
{
    return bski_load_int(index->dtype, index->data,
                         i * index->stride[0] + j * index->stride[1] + k * index->stride[2]);
}

REF_OP(take_along, take_along)
{
    const ref_view x = view_of(&p->x, a->x), y = view_of(&p->y, a->y);
    const ref_view index = view_of(&p->index, a->index);
    for (int64_t i = 0; i < p->y.dims[0]; i++)
        for (int64_t j = 0; j < p->y.dims[1]; j++)
            for (int64_t k = 0; k < p->y.dims[2]; k++) {
                const int64_t from = index_at(&index, i, j, k);
                const bool inside = from >= 0 && from < p->x.dims[1];
                const int64_t at[BSK_MAX_RANK] = {i, inside ? from : 0, k},
                              to[BSK_MAX_RANK] = {i, j, k};
                if (x.dtype == BSK_I32)
                    store_index(y.dtype, y.data, view_at(&y, to),
                                inside ? bski_load_int(x.dtype, x.data, view_at(&x, at)) : 0);
                else
                    view_set(&y, to, inside ? view_get(&x, at) : 0);
            }
}

REF_OP(take_along_grad, take_along_grad)
{
    const ref_view dy = view_of(&p->dy, a->dy), dx = view_of(&p->dx, a->dx);
    const ref_view index = view_of(&p->index, a->index);
    for (int64_t i = 0; i < p->dx.dims[0]; i++)
        for (int64_t b = 0; b < p->dx.dims[1]; b++)
            for (int64_t k = 0; k < p->dx.dims[2]; k++) {
                double sum = 0;
                for (int64_t j = 0; j < p->dy.dims[1]; j++)
                    if (index_at(&index, i, j, k) == b)
                        sum += view_get3(&dy, i, j, k);
                view_set3(&dx, i, b, k, a->alpha * sum + view_scaled3(&dx, i, b, k, a->beta));
            }
}

/* --- the k largest ------------------------------------------------------------------------ */

REF_OP(topk, topk)
{
    const ref_view x = view_of(&p->x, a->x), values = view_of(&p->values, a->values);
    const ref_view index = view_of(&p->index, a->index);
    for (int64_t n = 0; n < p->x.dims[0]; n++) {
        const ref_row row = plain_row(&x, n, p->x.dims[1]);
        ref_rank r = {0, -1};
        for (int64_t j = 0; j < p->values.dims[1]; j++) {
            r = bski_ref_row_next(&row, j ? &r : NULL);
            view_set2(&values, n, j, r.value);
            if (view_given(&index))
                store_index(index.dtype, index.data, n * index.stride[0] + j * index.stride[1],
                            r.at);
        }
    }
}

/* What rectified_topk subtracts. */
static double cut_of(ref_rank kth, bool rebase)
{
    return rebase ? at_least(kth.value, 0) : 0;
}

REF_OP(rectified_topk, rectified_topk)
{
    const ref_view x = view_of(&p->x, a->x), y = view_of(&p->y, a->y);
    for (int64_t n = 0; n < p->x.dims[0]; n++) {
        const ref_row row = plain_row(&x, n, p->x.dims[1]);
        const ref_rank kth = bski_ref_row_kth(&row, p->k);
        const double cut = cut_of(kth, p->rebase);
        for (int64_t d = 0; d < p->x.dims[1]; d++) {
            const ref_rank r = {view_get2(&x, n, d), d};
            view_set2(&y, n, d,
                      ranks_before(kth, r) ? 0 : bski_ref_act(BSK_ACT_RELU, r.value - cut));
        }
    }
}

REF_OP(rectified_topk_grad, rectified_topk_grad)
{
    const ref_view dy = view_of(&p->dy, a->dy), x = view_of(&p->x, a->x);
    const ref_view dx = view_of(&p->dx, a->dx);
    for (int64_t n = 0; n < p->x.dims[0]; n++) {
        const ref_row row = plain_row(&x, n, p->x.dims[1]);
        const ref_rank kth = bski_ref_row_kth(&row, p->k);
        const double cut = cut_of(kth, p->rebase);
        const bool moves = p->rebase && !p->constant_cut && kth.value > 0;
        double sum = 0;
        for (int64_t d = 0; d < p->x.dims[1]; d++) {
            const ref_rank r = {view_get2(&x, n, d), d};
            if (moves && !ranks_before(kth, r))
                sum += view_get2(&dy, n, d) * bski_ref_act_slope(BSK_ACT_RELU, r.value - cut);
        }
        for (int64_t d = 0; d < p->x.dims[1]; d++) {
            const ref_rank r = {view_get2(&x, n, d), d};
            double g = 0;
            if (!ranks_before(kth, r))
                g = view_get2(&dy, n, d) * bski_ref_act_slope(BSK_ACT_RELU, r.value - cut);
            if (moves && d == kth.at)
                g -= sum;
            view_set2(&dx, n, d, a->alpha * g + view_scaled2(&dx, n, d, a->beta));
        }
    }
}
