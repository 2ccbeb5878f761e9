/* Reference entries of weights.h: sparse projections. Views are [N, features] on either axis. */
#include "ref.h"

/* The row on the large side of small row i, or -1 if it is unmapped. */
static int64_t proj_target(const ref_view *index, int64_t i, int64_t large)
{
    int64_t target = view_get_int(index, i);
    return target >= 0 && target < large ? target : -1;
}

/* The small row that maps to row f of the large side, or -1. */
static int64_t proj_source(const ref_view *index, int64_t f, int64_t small)
{
    for (int64_t i = 0; i < small; i++)
        if (view_get_int(index, i) == f)
            return i;
    return -1;
}

REF_OP(proj_gather, proj)
{
    const ref_view x = view_rows(&p->x, a->x, p->axis), y = view_rows(&p->y, a->y, p->axis);
    const ref_view index = view_of(&p->index, a->index);
    const int64_t large = features_count(&p->x, p->axis);
    for (int64_t n = 0; n < rows_count(&p->y, p->axis); n++)
        for (int64_t i = 0; i < features_count(&p->y, p->axis); i++) {
            int64_t target = proj_target(&index, i, large);
            view_set2(&y, n, i, target >= 0 ? view_get2(&x, n, target) : 0);
        }
}

REF_OP(proj_scatter, proj)
{
    const ref_view x = view_rows(&p->x, a->x, p->axis), y = view_rows(&p->y, a->y, p->axis);
    const ref_view index = view_of(&p->index, a->index);
    const int64_t large = features_count(&p->y, p->axis);
    for (int64_t n = 0; n < rows_count(&p->y, p->axis); n++) {
        for (int64_t f = 0; f < large; f++)
            view_set2(&y, n, f, 0);
        for (int64_t i = 0; i < features_count(&p->x, p->axis); i++) {
            int64_t target = proj_target(&index, i, large);
            if (target >= 0)
                view_set2(&y, n, target, view_get2(&x, n, i));
        }
    }
}

REF_OP(proj_scatter_add, proj_scatter_op)
{
    const ref_view x = view_rows(&p->x, a->x, p->axis), y = view_rows(&p->y, a->y, p->axis);
    const ref_view v = view_rows(&p->v, a->v, p->axis), index = view_of(&p->index, a->index);
    const int64_t large = features_count(&p->y, p->axis);
    for (int64_t n = 0; n < rows_count(&p->y, p->axis); n++) {
        for (int64_t f = 0; f < large; f++)
            view_set2(&y, n, f, view_get2(&x, n, f));
        for (int64_t i = 0; i < features_count(&p->v, p->axis); i++) {
            int64_t target = proj_target(&index, i, large);
            if (target >= 0)
                view_set2(&y, n, target, view_get2(&y, n, target) + view_get2(&v, n, i));
        }
    }
}

REF_OP(proj_scatter_mul, proj_scatter_op)
{
    const ref_view x = view_rows(&p->x, a->x, p->axis), y = view_rows(&p->y, a->y, p->axis);
    const ref_view v = view_rows(&p->v, a->v, p->axis), index = view_of(&p->index, a->index);
    const int64_t large = features_count(&p->y, p->axis);
    for (int64_t n = 0; n < rows_count(&p->y, p->axis); n++) {
        for (int64_t f = 0; f < large; f++)
            view_set2(&y, n, f, view_get2(&x, n, f));
        for (int64_t i = 0; i < features_count(&p->v, p->axis); i++) {
            int64_t target = proj_target(&index, i, large);
            if (target >= 0)
                view_set2(&y, n, target, view_get2(&y, n, target) * view_get2(&v, n, i));
        }
    }
}

REF_OP(proj_scatter_mul_grad, proj_scatter_mul_grad)
{
    const ref_view dy = view_rows(&p->dy, a->dy, p->axis), x = view_rows(&p->x, a->x, p->axis);
    const ref_view v = view_rows(&p->v, a->v, p->axis), index = view_of(&p->index, a->index);
    const ref_view dx = view_rows(&p->dx, a->dx, p->axis), dv = view_rows(&p->dv, a->dv, p->axis);
    const int64_t large = features_count(&p->dx, p->axis);
    const int64_t small = features_count(&p->dv, p->axis);
    const int64_t rows = rows_count(&p->dx, p->axis);
    for (int64_t i = 0; i < small; i++) { /* first: dx may be dy */
        int64_t target = proj_target(&index, i, large);
        for (int64_t n = 0; n < rows; n++) {
            double d = target >= 0 ? view_get2(&dy, n, target) * view_get2(&x, n, target) : 0;
            view_set2(&dv, n, i, a->alpha * d + view_scaled2(&dv, n, i, a->beta));
        }
    }
    for (int64_t f = 0; f < large; f++) {
        int64_t i = proj_source(&index, f, small);
        for (int64_t n = 0; n < rows; n++) {
            double d = view_get2(&dy, n, f) * (i >= 0 ? view_get2(&v, n, i) : 1);
            view_set2(&dx, n, f, a->alpha * d + view_scaled2(&dx, n, f, a->beta));
        }
    }
}
