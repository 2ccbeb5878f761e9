/* Host side of the lists of kept blocks, and of the rows of experts. */
#include <backends/simt/entry.h>

#include <backends/simt/dynamic.h>

static list_arg list_of(const bsk_tensor *from, const bsk_tensor *index)
{
    const int last = from->rank - 1;
    list_arg a = {.rows = 1,
                  .columns = from->dims[last],
                  .capacity = index->dims[last],
                  .dims = {1, 1, 1},
                  .along = from->strides[last],
                  .type = (i32)from->dtype};
    for (int d = 0; d < last; d++) {
        a.dims[LIST_DIMS - last + d] = from->dims[d];
        a.strides[LIST_DIMS - last + d] = from->strides[d];
        a.rows *= from->dims[d];
    }
    return a;
}

static i64 list_groups(const void *queue, i64 lists)
{
    const simt_device *d = queue_device(queue);
    return bski_simt_groups_most(d, lists, d->wide ? 4 : 8);
}

/* --- layout_topk --- */

SIMT_PREPARE_BY(layout_topk, .file = "dynamic", .single = true, .kernels = {"layout_topk"})

SIMT_ACCEPT(layout_topk)
{
    const bsk_layout_topk_params *p = problem->params;
    return ACCEPT(&p->scores);
}

SIMT_LAUNCH(layout_topk)
{
    const bsk_layout_topk_params *p = prepared->problem->params;
    const bsk_layout_topk_args *a = args;
    list_arg arg = list_of(&p->scores, &p->index);
    arg.k = p->k > 0 ? p->k : arg.capacity;
    arg.first = p->first;
    arg.last = p->last;
    return LAUNCH(0, list_groups(queue, arg.rows), 1, arg, a->scores, a->index, a->count,
                  mem_of(&p->limit, a->limit));
}

/* --- layout_mask --- */

SIMT_PREPARE_BY(layout_mask, .file = "dynamic", .kernels = {"layout_mask"}, .type = BSK_F32)

SIMT_ACCEPT(layout_mask)
{
    const bsk_layout_mask_params *p = problem->params;
    return ACCEPT(&p->mask);
}

SIMT_LAUNCH(layout_mask)
{
    const bsk_layout_mask_params *p = prepared->problem->params;
    const bsk_layout_mask_args *a = args;
    const list_arg arg = list_of(&p->mask, &p->index);
    return LAUNCH(0, list_groups(queue, arg.rows), 1, arg, a->mask, a->index, a->count);
}

/* --- moe_route --- */

SIMT_PREPARE_BY(moe_route, .file = "dynamic", .kernels = {"moe_route"}, .type = BSK_F32)

SIMT_ACCEPT(moe_route)
{
    const bsk_moe_route_params *p = problem->params;
    return ACCEPT(&p->experts);
}

SIMT_LAUNCH(moe_route)
{
    const bsk_moe_route_params *p = prepared->problem->params;
    const bsk_moe_route_args *a = args;
    const route_arg arg = {p->order.dims[0], p->experts.dims[1], p->offsets.dims[0] - 1};
    return LAUNCH(0, list_groups(queue, arg.experts + 1), 1, arg, a->experts, a->offsets, a->order,
                  mem_of(&p->token, a->token), mem_of(&p->place, a->place));
}
