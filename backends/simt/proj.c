/* Host side of the sparse projections. */
#include <backends/simt/entry.h>

#include <backends/simt/proj.h>

enum { INVERSE, GATHER, SCATTER };

/* Strides of a matrix in the walk's order of axes. */
#define WALK_STRIDES(arg, name, t, inner)                                                          \
    ((arg)->name##_row = (t)->strides[1 - (inner)], (arg)->name##_col = (t)->strides[inner])

/* Walks y; features lie on dimension 1 (NC) or 0 (CN). */
static proj_arg walk_of(const bsk_tensor *y, const bsk_tensor *other, bsk_axis axis, int *inner)
{
    const bsk_tensor *const tensors[] = {y, other};
    *inner = bski_simt_inner(tensors, 2);
    proj_arg arg = {.rows = y->dims[1 - *inner],
                    .cols = y->dims[*inner],
                    .by_row = *inner != (axis == BSK_NC ? 1 : 0),
                    .type = (i32)y->dtype};
    WALK_STRIDES(&arg, y, y, *inner);
    return arg;
}

static i64 features_of(const bsk_tensor *t, bsk_axis axis)
{
    return t->dims[axis == BSK_NC ? 1 : 0];
}

static i64 grid_of(const void *queue, const proj_arg *arg)
{
    return bski_simt_groups(queue_device(queue), arg->rows * arg->cols);
}

/* Room for the inverse of index. Its entries are i32, as those of index are. */
static bsk_status prepare_inverse(bsk_prepared *prepared, const bsk_tensor *large, bsk_axis axis)
{
    size_t at;
    return bski_simt_space(&prepared->workspace_bytes, features_of(large, axis), sizeof(i32), &at)
               ? BSK_OK
               : BSK_E_NOMEM;
}

static bsk_status launch_inverse(const bsk_prepared *prepared, void *queue, bsk_mem index,
                                 bsk_mem inverse, i64 small, i64 large)
{
    const simt_device *d = queue_device(queue);
    const proj_arg clear = {.large = large}, fill = {.large = large, .small = small, .mode = 1};
    TRY(LAUNCH(INVERSE, bski_simt_groups(d, large), 1, clear, index, inverse));
    return LAUNCH(INVERSE, bski_simt_groups(d, small), 1, fill, index, inverse);
}

static const simt_need needs = {.file = "proj",
                                .kernels = {"proj_inverse", "proj_gather", "proj_scatter"}};

SIMT_RELEASE(proj_gather)
SIMT_RELEASE(proj_scatter)
SIMT_RELEASE(proj_scatter_add)
SIMT_RELEASE(proj_scatter_mul)
SIMT_RELEASE(proj_scatter_mul_grad)

SIMT_ACCEPT(proj_gather)
{
    const bsk_proj_params *p = problem->params;
    return ACCEPT(&p->x);
}

SIMT_PREPARE(proj_gather)
{
    return bski_simt_prepare(device, prepared, &needs);
}

SIMT_LAUNCH(proj_gather)
{
    const bsk_proj_params *p = prepared->problem->params;
    const bsk_proj_args *a = args;
    int inner;
    proj_arg arg = walk_of(&p->y, &p->x, p->axis, &inner);
    arg.large = features_of(&p->x, p->axis);
    WALK_STRIDES(&arg, x, &p->x, inner);
    return LAUNCH(GATHER, grid_of(queue, &arg), 1, arg, a->x, mem_none(), a->index, a->y);
}

SIMT_ACCEPT(proj_scatter)
{
    const bsk_proj_params *p = problem->params;
    return ACCEPT(&p->x);
}

SIMT_PREPARE(proj_scatter)
{
    const bsk_proj_params *p = prepared->problem->params;
    TRY(prepare_inverse(prepared, &p->y, p->axis));
    return bski_simt_prepare(device, prepared, &needs);
}

SIMT_LAUNCH(proj_scatter)
{
    const bsk_proj_params *p = prepared->problem->params;
    const bsk_proj_args *a = args;
    int inner;
    proj_arg arg = walk_of(&p->y, &p->x, p->axis, &inner);
    WALK_STRIDES(&arg, v, &p->x, inner);
    TRY(launch_inverse(prepared, queue, a->index, a->workspace, p->index.dims[0],
                       features_of(&p->y, p->axis)));
    return LAUNCH(SCATTER, grid_of(queue, &arg), 1, arg, mem_none(), a->x, a->workspace, a->y);
}

static bsk_status scatter_op_launch(const bsk_prepared *prepared, void *queue,
                                    const bsk_proj_scatter_op_args *a, i32 mode)
{
    const bsk_proj_scatter_op_params *p = prepared->problem->params;
    int inner;
    proj_arg arg = walk_of(&p->y, &p->x, p->axis, &inner);
    arg.mode = mode;
    WALK_STRIDES(&arg, x, &p->x, inner);
    WALK_STRIDES(&arg, v, &p->v, inner);
    TRY(launch_inverse(prepared, queue, a->index, a->workspace, p->index.dims[0],
                       features_of(&p->y, p->axis)));
    return LAUNCH(SCATTER, grid_of(queue, &arg), 1, arg, a->x, a->v, a->workspace, a->y);
}

SIMT_ACCEPT(proj_scatter_add)
{
    const bsk_proj_scatter_op_params *p = problem->params;
    return ACCEPT(&p->x);
}

SIMT_PREPARE(proj_scatter_add)
{
    const bsk_proj_scatter_op_params *p = prepared->problem->params;
    TRY(prepare_inverse(prepared, &p->y, p->axis));
    return bski_simt_prepare(device, prepared, &needs);
}

SIMT_LAUNCH(proj_scatter_add)
{
    return scatter_op_launch(prepared, queue, args, PROJ_ADD);
}

SIMT_ACCEPT(proj_scatter_mul)
{
    return simt_proj_scatter_add_accept(problem, props);
}

SIMT_PREPARE(proj_scatter_mul)
{
    return simt_proj_scatter_add_prepare(device, prepared);
}

SIMT_LAUNCH(proj_scatter_mul)
{
    return scatter_op_launch(prepared, queue, args, PROJ_MUL);
}

SIMT_ACCEPT(proj_scatter_mul_grad)
{
    const bsk_proj_scatter_mul_grad_params *p = problem->params;
    return ACCEPT(&p->dy);
}

SIMT_PREPARE(proj_scatter_mul_grad)
{
    const bsk_proj_scatter_mul_grad_params *p = prepared->problem->params;
    TRY(prepare_inverse(prepared, &p->dx, p->axis));
    return bski_simt_prepare(device, prepared, &needs);
}

/* dv first: dx may be dy. */
SIMT_LAUNCH(proj_scatter_mul_grad)
{
    const bsk_proj_scatter_mul_grad_params *p = prepared->problem->params;
    const bsk_proj_scatter_mul_grad_args *a = args;
    const i64 large = features_of(&p->dx, p->axis);
    int inner;
    proj_arg arg = walk_of(&p->dv, &p->x, p->axis, &inner);
    arg.large = large;
    arg.alpha = simt_num(prepared, a->alpha);
    arg.beta = simt_num(prepared, a->beta);
    WALK_STRIDES(&arg, x, &p->dy, inner);
    WALK_STRIDES(&arg, v, &p->x, inner);
    TRY(LAUNCH(GATHER, grid_of(queue, &arg), 1, arg, a->dy, a->x, a->index, a->dv));

    arg = walk_of(&p->dx, &p->dy, p->axis, &inner);
    arg.mode = PROJ_MUL_GRAD;
    arg.alpha = simt_num(prepared, a->alpha);
    arg.beta = simt_num(prepared, a->beta);
    WALK_STRIDES(&arg, x, &p->dy, inner);
    WALK_STRIDES(&arg, v, &p->v, inner);
    TRY(launch_inverse(prepared, queue, a->index, a->workspace, p->index.dims[0], large));
    return LAUNCH(SCATTER, grid_of(queue, &arg), 1, arg, a->dy, a->v, a->workspace, a->dx);
}
