/* Reference entries of ops.h. */
#include "ref.h"

#include <common/checked.h>

REF_OP(embedding, embedding)
{
    const ref_view table = view_of(&p->table, a->table), y = view_of(&p->y, a->y);
    const ref_view index = view_of(&p->index, a->index);
    for (int64_t n = 0; n < p->y.dims[0]; n++) {
        int64_t v = view_get_int(&index, n);
        bool inside = v >= 0 && v < p->table.dims[0];
        for (int64_t d = 0; d < p->y.dims[1]; d++)
            view_set2(&y, n, d, inside ? view_get2(&table, v, d) : 0);
    }
}

/* Room for one row of sums. */
BSKI_CPU_PREPARE(ref_embedding_grad)
{
    (void)device;
    const bsk_embedding_grad_params *p = prepared->problem->params;
    if (!bski_mul_size((size_t)p->dtable.dims[1], sizeof(double), &prepared->workspace_bytes))
        return BSK_E_NOMEM;
    return BSK_OK;
}

REF_OP(embedding_grad, embedding_grad)
{
    const ref_view dy = view_of(&p->dy, a->dy), dtable = view_of(&p->dtable, a->dtable);
    const ref_view index = view_of(&p->index, a->index);
    double *sum = bsk_mem_address(a->workspace);
    const int64_t width = p->dtable.dims[1];

    for (int64_t v = 0; v < p->dtable.dims[0]; v++) {
        for (int64_t d = 0; d < width; d++)
            sum[d] = 0;
        for (int64_t n = 0; n < p->dy.dims[0]; n++)
            for (int64_t d = 0; view_get_int(&index, n) == v && d < width; d++)
                sum[d] += view_get2(&dy, n, d);
        for (int64_t d = 0; d < width; d++)
            view_set2(&dtable, v, d, a->alpha * sum[d] + view_scaled2(&dtable, v, d, a->beta));
    }
}

REF_OP(dense_wgrad, dense_wgrad)
{
    const ref_view x = view_rows(&p->x, a->x, p->axis), dy = view_rows(&p->dy, a->dy, p->axis);
    const ref_view dw = view_of(&p->dw, a->dw);
    for (int64_t c = 0; c < p->dw.dims[0]; c++)
        for (int64_t k = 0; k < p->dw.dims[1]; k++) {
            double sum = 0;
            for (int64_t n = 0; n < rows_count(&p->x, p->axis); n++)
                sum += view_get2(&x, n, c) * view_get2(&dy, n, k);
            view_set2(&dw, c, k, a->alpha * sum + view_scaled2(&dw, c, k, a->beta));
        }
}

REF_OP(bias_act, bias_act)
{
    const ref_view x = view_rows(&p->x, a->x, p->axis), y = view_rows(&p->y, a->y, p->axis);
    const ref_view bias = view_of(&p->bias, a->bias);
    for (int64_t n = 0; n < rows_count(&p->x, p->axis); n++)
        for (int64_t f = 0; f < features_count(&p->x, p->axis); f++) {
            double v = view_get2(&x, n, f) + (view_given(&bias) ? view_get1(&bias, f) : 0);
            view_set2(&y, n, f, bski_ref_act(p->act, v));
        }
}

REF_OP(bias_act_grad, bias_act_grad)
{
    const ref_view dy = view_rows(&p->dy, a->dy, p->axis), x = view_rows(&p->x, a->x, p->axis);
    const ref_view dx = view_rows(&p->dx, a->dx, p->axis), bias = view_of(&p->bias, a->bias);
    const ref_view dbias = view_of(&p->dbias, a->dbias);

    for (int64_t f = 0; f < features_count(&p->dy, p->axis); f++) {
        double b = view_given(&bias) ? view_get1(&bias, f) : 0, sum = 0;
        for (int64_t n = 0; n < rows_count(&p->dy, p->axis); n++) {
            double d = view_get2(&dy, n, f);
            if (p->act != BSK_ACT_NONE)
                d *= bski_ref_act_slope(p->act, view_get2(&x, n, f) + b);
            sum += d;
            if (view_given(&dx))
                view_set2(&dx, n, f, a->dx_alpha * d + view_scaled2(&dx, n, f, a->dx_beta));
        }
        if (view_given(&dbias))
            view_set1(&dbias, f, a->alpha * sum + view_scaled1(&dbias, f, a->beta));
    }
}

/* softmax(x)[v] = exp(x[v] - max) / sum. NaN or +infinity in a row makes its sum NaN; the sum of a
 * row of nothing but -infinity is 0. */
typedef struct softmax_row {
    double max, sum;
} softmax_row;

static softmax_row softmax_of(const ref_view *x, int64_t n, int64_t classes)
{
    softmax_row row = {-INFINITY, 0};
    for (int64_t v = 0; v < classes; v++)
        row.max = fmax(row.max, view_get2(x, n, v));
    for (int64_t v = 0; v < classes; v++)
        row.sum += exp(view_get2(x, n, v) - (row.max == -INFINITY ? 0 : row.max));
    return row;
}

/* -sum_v t[v] log softmax[v], where sum_v t[v] = 1. A class of weight 0 may have logit -infinity. */
static double cross_entropy_loss(const ref_view *x, int64_t n, int64_t classes, int64_t label,
                                 double smoothing, softmax_row row)
{
    double loss = log(row.sum) - (1 - smoothing) * (view_get2(x, n, label) - row.max);
    for (int64_t v = 0; smoothing > 0 && v < classes; v++)
        loss -= smoothing / (double)classes * (view_get2(x, n, v) - row.max);
    return loss;
}

REF_OP(cross_entropy, cross_entropy)
{
    const ref_view logits = view_of(&p->logits, a->logits), labels = view_of(&p->labels, a->labels);
    const ref_view loss = view_of(&p->loss, a->loss), dloss = view_of(&p->dloss, a->dloss);
    const ref_view dlogits = view_of(&p->dlogits, a->dlogits);
    const int64_t classes = p->logits.dims[1];

    for (int64_t n = 0; n < p->logits.dims[0]; n++) {
        int64_t label = view_get_int(&labels, n);
        const softmax_row row = softmax_of(&logits, n, classes);
        bool counts = label >= 0 && label < classes &&
                      !(p->use_ignore_index && label == p->ignore_index) && row.sum != 0;
        if (view_given(&loss))
            view_set1(&loss, n,
                      counts ? cross_entropy_loss(&logits, n, classes, label, p->smoothing, row)
                             : 0);
        for (int64_t v = 0; view_given(&dlogits) && v < classes; v++) {
            double t = p->smoothing / (double)classes + (v == label ? 1 - p->smoothing : 0);
            double d = a->alpha * (exp(view_get2(&logits, n, v) - row.max) / row.sum - t);
            if (view_given(&dloss))
                d *= view_get1(&dloss, n);
            view_set2(&dlogits, n, v, (counts ? d : 0) + view_scaled2(&dlogits, n, v, a->beta));
        }
    }
}
