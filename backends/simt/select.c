/* Host side of the ops that choose elements. */
#include <backends/simt/entry.h>

#include <backends/simt/select.h>

/* A power of two of lanes, at most `most`, for `runs` runs. */
static i32 lanes_for(const simt_device *d, i64 runs, i32 most)
{
    i32 lanes = 1;
    while (!d->wide && lanes < most && lanes < runs)
        lanes *= 2;
    return lanes;
}

/* --- reduce_max --- */

SIMT_PREPARE_BY(reduce_max, .file = "select", .single = true, .kernels = {"reduce_max"})

/* Positions have 32 bits. */
SIMT_ACCEPT(reduce_max)
{
    const bsk_reduce_max_params *p = problem->params;
    return p->x.dims[1] > INT32_MAX ? BSK_REFUSE_LIMIT : ACCEPT(&p->x, &p->y);
}

SIMT_LAUNCH(reduce_max)
{
    const simt_device *d = queue_device(queue);
    const bsk_reduce_max_params *p = prepared->problem->params;
    const bsk_reduce_max_args *a = args;
    const i64 runs = simt_runs(p->x.dims[2], simt_vec(d, simt_single(p->x.dtype)));
    const reduce_max_arg arg = {
        .outer = p->x.dims[0],
        .count = p->x.dims[1],
        .cols = p->x.dims[2],
        .x_outer = p->x.strides[0],
        .x_along = p->x.strides[1],
        .x_col = p->x.strides[2],
        .y_outer = p->y.strides[0],
        .y_col = p->y.strides[1],
        .at_outer = p->argmax.strides[0],
        .at_col = p->argmax.strides[1],
        .lanes = lanes_for(d, runs, 8),
        .x_type = (i32)p->x.dtype,
        .y_type = (i32)p->y.dtype,
        .at_type = (i32)p->argmax.dtype,
        .x_vector = bski_simt_vector(d, simt_single(p->x.dtype), &p->x, a->x, 2),
        .y_vector = bski_simt_vector(d, simt_single(p->x.dtype), &p->y, a->y, 1),
    };
    const i64 items = arg.outer * bski_ceil_div(runs, arg.lanes);
    return LAUNCH(0, bski_simt_groups_most(d, items, d->wide ? 4 : 64), 1, arg, a->x, a->y,
                  mem_of(&p->argmax, a->argmax));
}

/* --- take_along --- */

SIMT_PREPARE_BY(take_along, .file = "select", .single = true, .kernels = {"take_along"})

SIMT_ACCEPT(take_along)
{
    const bsk_take_along_params *p = problem->params;
    return ACCEPT(&p->x, &p->y);
}

/* Integers are moved as the f32 numbers that have their bits. */
static i32 moved_type(bsk_dtype type)
{
    return (i32)(type == BSK_I32 ? BSK_F32 : type);
}

SIMT_LAUNCH(take_along)
{
    const simt_device *d = queue_device(queue);
    const bsk_take_along_params *p = prepared->problem->params;
    const bsk_take_along_args *a = args;
    const take_along_arg arg = {
        .outer = p->y.dims[0],
        .along = p->y.dims[1],
        .count = p->x.dims[1],
        .cols = p->y.dims[2],
        .x_outer = p->x.strides[0],
        .x_along = p->x.strides[1],
        .x_col = p->x.strides[2],
        .index_outer = p->index.strides[0],
        .index_along = p->index.strides[1],
        .index_col = p->index.strides[2],
        .y_outer = p->y.strides[0],
        .y_along = p->y.strides[1],
        .y_col = p->y.strides[2],
        .shared = p->index.strides[2] == 0 || p->index.dims[2] == 1,
        .x_type = moved_type(p->x.dtype),
        .index_type = (i32)p->index.dtype,
        .y_type = moved_type(p->y.dtype),
        .x_vector = bski_simt_vector(d, simt_single(p->x.dtype), &p->x, a->x, 2),
        .y_vector = bski_simt_vector(d, simt_single(p->x.dtype), &p->y, a->y, 2),
    };
    return LAUNCH(0, simt_walk_groups(prepared, queue, arg.outer * arg.along, arg.cols), 1, arg,
                  a->x, a->index, a->y);
}

SIMT_PREPARE_BY(take_along_grad, .file = "select", .single = true, .kernels = {"take_along_grad"})

SIMT_ACCEPT(take_along_grad)
{
    const bsk_take_along_grad_params *p = problem->params;
    return ACCEPT(&p->dy, &p->dx);
}

SIMT_LAUNCH(take_along_grad)
{
    const simt_device *d = queue_device(queue);
    const bsk_take_along_grad_params *p = prepared->problem->params;
    const bsk_take_along_grad_args *a = args;
    const bool by_along = p->dx.dims[2] == 1 || (p->dx.strides[1] == 1 && p->dx.strides[2] != 1);
    const take_along_grad_arg arg = {
        .outer = p->dx.dims[0],
        .along = p->dy.dims[1],
        .count = p->dx.dims[1],
        .cols = p->dx.dims[2],
        .dy_outer = p->dy.strides[0],
        .dy_along = p->dy.strides[1],
        .dy_col = p->dy.strides[2],
        .index_outer = p->index.strides[0],
        .index_along = p->index.strides[1],
        .index_col = p->index.strides[2],
        .dx_outer = p->dx.strides[0],
        .dx_along = p->dx.strides[1],
        .dx_col = p->dx.strides[2],
        .alpha = simt_num(prepared, a->alpha),
        .beta = simt_num(prepared, a->beta),
        .by_along = by_along,
        .dy_type = (i32)p->dy.dtype,
        .index_type = (i32)p->index.dtype,
        .dx_type = (i32)p->dx.dtype,
        .dx_vector = bski_simt_vector(d, simt_single(p->dy.dtype), &p->dx, a->dx, by_along ? 1 : 2),
    };
    const i64 rows = arg.outer * (by_along ? arg.cols : arg.count);
    return LAUNCH(0, simt_walk_groups(prepared, queue, rows, by_along ? arg.count : arg.cols), 1,
                  arg, a->dy, a->index, a->dx);
}

/* --- topk --- */

SIMT_RELEASE(topk)

/* The groups and what each needs to sort. */
typedef struct topk_plan {
    i64 groups, size;
    size_t keys, places, bytes;
} topk_plan;

static bool topk_of(const simt_device *d, const bsk_topk_params *p, topk_plan *t)
{
    const i64 places = (i64)1 << 24; /* of all groups, if one needs less */
    *t = (topk_plan){.size = 1};
    while (t->size < p->values.dims[1])
        t->size *= 2;
    t->groups = bski_simt_groups_most(d, p->x.dims[0], d->wide ? 4 : 8);
    if (t->groups > places / t->size)
        t->groups = places > t->size ? places / t->size : t->groups > 0;
    if (p->values.dims[1] == 0)
        t->groups = 0;
    return bski_simt_space(&t->bytes, t->groups * t->size, simt_num_size(p->x.dtype), &t->keys) &&
           bski_simt_space(&t->bytes, t->groups * t->size, sizeof(i32), &t->places);
}

SIMT_ACCEPT(topk)
{
    const bsk_topk_params *p = problem->params;
    return p->x.dims[1] > INT32_MAX ? BSK_REFUSE_LIMIT : ACCEPT(&p->x, &p->values);
}

SIMT_PREPARE(topk)
{
    static const simt_need need = {.file = "select", .single = true, .kernels = {"topk"}};
    topk_plan t;
    if (!topk_of(device, prepared->problem->params, &t))
        return BSK_E_NOMEM;
    prepared->workspace_bytes = t.bytes;
    return bski_simt_prepare(device, prepared, &need);
}

SIMT_LAUNCH(topk)
{
    const simt_device *d = queue_device(queue);
    const bsk_topk_params *p = prepared->problem->params;
    const bsk_topk_args *a = args;
    topk_plan t;
    if (!topk_of(d, p, &t))
        return bski_simt_unplanned(queue, "topk");
    const topk_arg arg = {
        .rows = p->x.dims[0],
        .count = p->x.dims[1],
        .k = p->values.dims[1],
        .size = t.size,
        .x_row = p->x.strides[0],
        .values_row = p->values.strides[0],
        .index_row = p->index.strides[0],
        .x_type = (i32)p->x.dtype,
        .values_type = (i32)p->values.dtype,
        .index_type = (i32)p->index.dtype,
        .x_vector = bski_simt_vector(d, simt_single(p->x.dtype), &p->x, a->x, 1),
    };
    return LAUNCH(0, t.groups, 1, arg, a->x, a->values, mem_of(&p->index, a->index),
                  bsk_mem_at(a->workspace, t.keys), bsk_mem_at(a->workspace, t.places));
}

/* --- rectified_topk --- */

static i64 topk_groups(const simt_device *d, const rectified_topk_arg *arg)
{
    const i64 batches = bski_ceil_div(arg->rows, simt_lanes(d) / arg->lanes);
    return arg->count > 0 ? bski_simt_groups_most(d, batches, d->wide ? 4 : 64) : 0;
}

SIMT_PREPARE_BY(rectified_topk, .file = "select", .single = true, .kernels = {"rectified_topk"})

SIMT_ACCEPT(rectified_topk)
{
    const bsk_rectified_topk_params *p = problem->params;
    return p->x.dims[1] > INT32_MAX ? BSK_REFUSE_LIMIT : ACCEPT(&p->x, &p->y);
}

SIMT_LAUNCH(rectified_topk)
{
    const simt_device *d = queue_device(queue);
    const bsk_rectified_topk_params *p = prepared->problem->params;
    const bsk_rectified_topk_args *a = args;
    const bsk_dtype type = simt_single(p->x.dtype);
    const rectified_topk_arg arg = {
        .rows = p->x.dims[0],
        .count = p->x.dims[1],
        .k = p->k,
        .x_row = p->x.strides[0],
        .y_row = p->y.strides[0],
        .rebase = p->rebase,
        .lanes = lanes_for(d, simt_runs(p->x.dims[1], simt_vec(d, type)), SIMT_LANES),
        .x_type = (i32)p->x.dtype,
        .y_type = (i32)p->y.dtype,
        .x_vector = bski_simt_vector(d, type, &p->x, a->x, 1),
        .y_vector = bski_simt_vector(d, type, &p->y, a->y, 1),
    };
    return LAUNCH(0, topk_groups(d, &arg), 1, arg, a->x, a->y);
}

SIMT_PREPARE_BY(rectified_topk_grad, .file = "select", .single = true,
                .kernels = {"rectified_topk_grad"})

SIMT_ACCEPT(rectified_topk_grad)
{
    const bsk_rectified_topk_grad_params *p = problem->params;
    return p->x.dims[1] > INT32_MAX ? BSK_REFUSE_LIMIT : ACCEPT(&p->dy, &p->x, &p->dx);
}

SIMT_LAUNCH(rectified_topk_grad)
{
    const simt_device *d = queue_device(queue);
    const bsk_rectified_topk_grad_params *p = prepared->problem->params;
    const bsk_rectified_topk_grad_args *a = args;
    const bsk_dtype type = simt_single(p->dy.dtype);
    const rectified_topk_arg arg = {
        .rows = p->x.dims[0],
        .count = p->x.dims[1],
        .k = p->k,
        .x_row = p->x.strides[0],
        .dy_row = p->dy.strides[0],
        .y_row = p->dx.strides[0],
        .alpha = simt_num(prepared, a->alpha),
        .beta = simt_num(prepared, a->beta),
        .rebase = p->rebase,
        .constant_cut = p->constant_cut,
        .lanes = lanes_for(d, simt_runs(p->x.dims[1], simt_vec(d, type)), SIMT_LANES),
        .x_type = (i32)p->x.dtype,
        .dy_type = (i32)p->dy.dtype,
        .y_type = (i32)p->dx.dtype,
        .x_vector = bski_simt_vector(d, type, &p->x, a->x, 1),
        .dy_vector = bski_simt_vector(d, type, &p->dy, a->dy, 1),
        .y_vector = bski_simt_vector(d, type, &p->dx, a->dx, 1),
    };
    return LAUNCH(0, topk_groups(d, &arg), 1, arg, a->dy, a->x, a->dx);
}
