/* Reference entries of softmax.h. */
#include "ref.h"

/* The row that begins at an index, as a view of one dimension. */
static ref_view row_at(const bsk_tensor *t, bsk_mem mem, const int64_t index[BSK_MAX_RANK])
{
    const ref_view all = view_repeated(t, mem);
    ref_view row = {.dtype = all.dtype, .data = all.data, .base = view_at(&all, index)};
    if (t->rank > 0)
        row.stride[0] = t->strides[t->rank - 1];
    return row;
}

/* The shape of all rows: 1 in the last dimension. */
static bsk_tensor rows_shape(const bsk_tensor *t)
{
    bsk_tensor rows = *t;
    rows.dims[t->rank - 1] = 1;
    return rows;
}

static void softmax_row(const ref_row *row, const ref_view *y, int64_t k)
{
    const ref_rank kth = k ? bski_ref_row_kth(row, k) : (ref_rank){-INFINITY, row->count};
    const ref_rank first = bski_ref_row_next(row, NULL);
    double sum = 0;
    for (int64_t i = 0; i < row->count; i++) {
        const ref_rank r = {bski_ref_row_get(row, i), i};
        if (bski_ref_row_has(row, i) && !ranks_before(kth, r))
            sum += exp(r.value - first.value);
    }
    for (int64_t i = 0; i < row->count; i++) {
        const ref_rank r = {bski_ref_row_get(row, i), i};
        const bool live =
            bski_ref_row_has(row, i) && !ranks_before(kth, r) && first.value != -INFINITY;
        view_set1(y, i, live ? exp(r.value - first.value) / sum : 0);
    }
}

REF_OP(masked_softmax, masked_softmax)
{
    const bsk_tensor rows = rows_shape(&p->x);
    const int64_t count = p->x.dims[p->x.rank - 1];
    int64_t i[BSK_MAX_RANK] = {0};
    for (int64_t left = shape_count(&rows); count > 0 && left > 0; left--, shape_next(&rows, i)) {
        const ref_row row = {.x = row_at(&p->x, a->x, i),
                             .mask = row_at(&p->mask, a->mask, i),
                             .scale = a->scale != 0 ? a->scale : 1,
                             .count = count};
        const ref_view y = row_at(&p->y, a->y, i);
        softmax_row(&row, &y, p->k);
    }
}

REF_OP(masked_softmax_grad, masked_softmax_grad)
{
    const bsk_tensor rows = rows_shape(&p->dy);
    const int64_t count = p->dy.dims[p->dy.rank - 1];
    const double scale = a->scale != 0 ? a->scale : 1;
    int64_t i[BSK_MAX_RANK] = {0};
    for (int64_t left = shape_count(&rows); count > 0 && left > 0; left--, shape_next(&rows, i)) {
        const ref_view dy = row_at(&p->dy, a->dy, i), y = row_at(&p->y, a->y, i);
        const ref_view dx = row_at(&p->dx, a->dx, i), mask = row_at(&p->mask, a->mask, i);
        double sum = 0;
        for (int64_t j = 0; j < count; j++)
            if (view_get1(&y, j) != 0)
                sum += view_get1(&dy, j) * view_get1(&y, j);
        for (int64_t j = 0; j < count; j++) {
            const double share = view_get1(&y, j);
            const double factor = view_given(&mask) ? view_get1(&mask, j) * scale : scale;
            const double d = share != 0 ? (view_get1(&dy, j) - sum) * share * factor : 0;
            view_set1(&dx, j, a->alpha * d + view_scaled1(&dx, j, a->beta));
        }
    }
}
