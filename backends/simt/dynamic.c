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

static i64 list_groups(const void *queue, const list_arg *a)
{
    const simt_device *d = queue_device(queue);
    return bski_simt_groups_most(d, a->rows, d->wide ? 4 : 8);
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
    return LAUNCH(0, list_groups(queue, &arg), 1, arg, a->scores, a->index, a->count,
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
    return LAUNCH(0, list_groups(queue, &arg), 1, arg, a->mask, a->index, a->count);
}

/* --- moe_route --- */

/* Chunks that there are where slots are neither few nor more than chunks hold; the least slots of one. */
enum { ROUTE_CHUNKS = 64, ROUTE_LEAST = 128 };

/* False: more than can be counted. */
static bool route_sizes(const bsk_moe_route_params *p, route_arg *a, size_t *bytes)
{
    const i64 slots = p->order.dims[0], share = bski_ceil_div(slots, ROUTE_CHUNKS);
    size_t at;
    *a = (route_arg){.slots = slots,
                     .choices = p->experts.dims[1],
                     .experts = p->offsets.dims[0] - 1,
                     .chunk = share < ROUTE_LEAST  ? ROUTE_LEAST
                              : share > ROUTE_MOST ? ROUTE_MOST
                                                   : (i32)share};
    a->chunks = slots ? bski_ceil_div(slots, a->chunk) : 1;
    i64 counts;
    *bytes = 0;
    return bski_mul_i64(a->chunks, a->experts, &counts) &&
           bski_simt_space(bytes, counts, sizeof(i32), &at);
}

SIMT_RELEASE(moe_route)

SIMT_ACCEPT(moe_route)
{
    const bsk_moe_route_params *p = problem->params;
    route_arg arg;
    size_t bytes;
    return route_sizes(p, &arg, &bytes) ? ACCEPT(&p->experts) : BSK_REFUSE_LIMIT;
}

SIMT_PREPARE(moe_route)
{
    static const simt_need need = {
        .file = "dynamic", .kernels = {"route_count", "route_place"}, .type = BSK_F32};
    route_arg arg;
    if (!route_sizes(prepared->problem->params, &arg, &prepared->workspace_bytes))
        return BSK_E_NOMEM;
    return bski_simt_prepare(device, prepared, &need);
}

SIMT_LAUNCH(moe_route)
{
    const bsk_moe_route_params *p = prepared->problem->params;
    const bsk_moe_route_args *a = args;
    route_arg arg;
    size_t bytes;
    route_sizes(p, &arg, &bytes); /* as accepted */
    if (arg.experts)
        TRY(LAUNCH(0, arg.chunks, 1, arg, a->experts, a->workspace));
    return LAUNCH(1, arg.chunks, 1, arg, a->experts, arg.experts ? a->workspace : mem_none(),
                  a->offsets, a->order, mem_of(&p->token, a->token), mem_of(&p->place, a->place));
}
