/* Reference entries of grouped.h. */
#include "grouped.h"

REF_OP(grouped_matmul, grouped_matmul)
{
    const ref_view x = view_of(&p->x, a->x), w = view_of(&p->w, a->w), y = view_of(&p->y, a->y);
    const ref_view bias = view_of(&p->bias, a->bias);
    const int64_t groups = p->w.dims[0], rows = p->x.dims[0];
    const int32_t *offsets = bsk_mem_address(a->offsets);
    group_span s = {-1, 0, 0};
    do {
        s = group_next(offsets, groups, rows, s);
        const int64_t g = span_group(&s, groups);
        for (int64_t t = s.begin; t < s.end; t++)
            for (int64_t m = 0; m < p->y.dims[1]; m++) {
                double v = view_scaled2(&y, t, m, a->beta), sum = 0;
                if (g >= 0) {
                    for (int64_t k = 0; k < p->x.dims[1]; k++)
                        sum += view_get2(&x, t, k) * view_get3(&w, g, k, m);
                    v += a->alpha * sum + (view_given(&bias) ? view_get2(&bias, g, m) : 0);
                    v = bski_ref_act(p->act, v);
                }
                view_set2(&y, t, m, v);
            }
    } while (s.number <= groups);
}

REF_OP(grouped_wgrad, grouped_wgrad)
{
    const ref_view x = view_of(&p->x, a->x), dy = view_of(&p->dy, a->dy);
    const ref_view dw = view_of(&p->dw, a->dw), dbias = view_of(&p->dbias, a->dbias);
    const int64_t groups = p->dw.dims[0], rows = p->x.dims[0];
    const int32_t *offsets = bsk_mem_address(a->offsets);
    group_span s = group_next(offsets, groups, rows, (group_span){-1, 0, 0});
    for (int64_t g = 0; g < groups; g++) {
        s = group_next(offsets, groups, rows, s);
        for (int64_t m = 0; m < p->dy.dims[1]; m++) {
            for (int64_t k = 0; k < p->x.dims[1]; k++) {
                double sum = 0;
                for (int64_t t = s.begin; t < s.end; t++)
                    sum += view_get2(&x, t, k) * view_get2(&dy, t, m);
                view_set3(&dw, g, k, m, a->alpha * sum + view_scaled3(&dw, g, k, m, a->beta));
            }
            double sum = 0;
            for (int64_t t = s.begin; t < s.end; t++)
                sum += view_get2(&dy, t, m);
            if (view_given(&dbias))
                view_set2(&dbias, g, m, a->alpha * sum + view_scaled2(&dbias, g, m, a->beta));
        }
    }
}

REF_OP(moe_route, moe_route)
{
    const int64_t groups = p->offsets.dims[0] - 1, slots = p->order.dims[0];
    const int32_t *experts = bsk_mem_address(a->experts);
    int32_t *offsets = bsk_mem_address(a->offsets), *order = bsk_mem_address(a->order);
    int32_t *token = p->token.dtype ? bsk_mem_address(a->token) : NULL;
    int32_t *place = p->place.dtype ? bsk_mem_address(a->place) : NULL;
    int32_t at = 0;
    for (int64_t i = 0; place && i < slots; i++)
        place[i] = -1;
    for (int64_t g = 0; g < groups; g++) {
        offsets[g] = at;
        for (int64_t i = 0; i < slots; i++)
            if (experts[i] == g) {
                order[at] = (int32_t)i;
                if (token)
                    token[at] = (int32_t)(i / p->experts.dims[1]);
                if (place)
                    place[i] = at;
                at++;
            }
    }
    offsets[groups] = at;
    for (int64_t i = at; i < slots; i++) {
        order[i] = -1;
        if (token)
            token[i] = -1;
    }
}
