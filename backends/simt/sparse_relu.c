/* Host side of sparse_relu. */
#include <backends/simt/maps.h>
#include <backends/simt/sums.h>

/* Rows as the kernels see them. */
static matrix_arg rows_of(const simt_device *d, bsk_dtype type, const bsk_tensor *t, bsk_mem mem,
                          bsk_axis axis)
{
    const int feature = axis == BSK_NC ? 1 : 0;
    return (matrix_arg){
        .row = t->strides[1 - feature],
        .col = t->strides[feature],
        .type = (i32)t->dtype,
        .vector = bski_simt_vector(d, type, t, mem, feature),
    };
}

/* Lanes go along the features where these are neighbours, and along N where its elements are. */
static sparse_relu_arg arguments(const simt_device *d, bsk_dtype type, const bsk_tensor *x,
                                 bsk_mem x_mem, bsk_axis axis, double sigmas)
{
    const int feature = axis == BSK_NC ? 1 : 0;
    sparse_relu_arg arg = {
        .rows = x->dims[1 - feature],
        .features = x->dims[feature],
        .x = rows_of(d, type, x, x_mem, axis),
        .sigmas = bski_simt_num(type, sigmas),
        .group_rows = 1,
    };
    const i64 runs = simt_runs(arg.features, simt_vec(d, type));
    arg.rows_inner = arg.x.col != 1 && arg.x.row == 1;
    if (arg.rows_inner)
        while (arg.group_rows < simt_lanes(d) && arg.group_rows < 32 && arg.group_rows < arg.rows)
            arg.group_rows *= 2;
    else
        while (arg.group_rows < simt_lanes(d) && simt_lanes(d) / arg.group_rows / 2 >= runs)
            arg.group_rows *= 2;
    return arg;
}

static i64 groups_of(const simt_device *d, const sparse_relu_arg *arg)
{
    return bski_simt_groups_most(
        d, arg->features > 0 ? bski_ceil_div(arg->rows, arg->group_rows) : 0, 8);
}

SIMT_ACCEPT(sparse_relu)
{
    const bsk_sparse_relu_params *p = problem->params;
    return ACCEPT(&p->x, &p->y);
}

SIMT_RELEASE(sparse_relu)

SIMT_PREPARE(sparse_relu)
{
    static const simt_need need = {.file = "sums", .kernels = {"sparse_relu"}, .single = true};
    const bsk_sparse_relu_params *p = prepared->problem->params;
    return bski_simt_map_prepare(device, prepared, &need, (const bsk_tensor *const[]){&p->x}, 1);
}

SIMT_LAUNCH(sparse_relu)
{
    const simt_device *d = queue_device(queue);
    const bsk_sparse_relu_params *p = prepared->problem->params;
    const bsk_sparse_relu_args *a = args;
    const bsk_dtype type = simt_map_kernel_type(prepared);
    sparse_relu_arg arg = arguments(d, type, &p->x, a->x, p->axis, a->sigmas);
    arg.y = rows_of(d, type, &p->y, a->y, p->axis);
    return LAUNCH(0, groups_of(d, &arg), 1, arg, a->x, a->y);
}

SIMT_ACCEPT(sparse_relu_grad)
{
    const bsk_sparse_relu_grad_params *p = problem->params;
    return ACCEPT(&p->dy, &p->x, &p->dx);
}

SIMT_RELEASE(sparse_relu_grad)

SIMT_PREPARE(sparse_relu_grad)
{
    static const simt_need need = {.file = "sums", .kernels = {"sparse_relu_grad"}, .single = true};
    const bsk_sparse_relu_grad_params *p = prepared->problem->params;
    return bski_simt_map_prepare(device, prepared, &need,
                                 (const bsk_tensor *const[]){&p->dy, &p->x}, 2);
}

SIMT_LAUNCH(sparse_relu_grad)
{
    const simt_device *d = queue_device(queue);
    const bsk_sparse_relu_grad_params *p = prepared->problem->params;
    const bsk_sparse_relu_grad_args *a = args;
    const bsk_dtype type = simt_map_kernel_type(prepared);
    sparse_relu_arg arg = arguments(d, type, &p->x, a->x, p->axis, a->sigmas);
    arg.dy = rows_of(d, type, &p->dy, a->dy, p->axis);
    arg.y = rows_of(d, type, &p->dx, a->dx, p->axis);
    arg.alpha = bski_simt_num(type, a->alpha);
    arg.beta = bski_simt_num(type, a->beta);
    arg.constant_cut = p->constant_cut;
    return LAUNCH(0, groups_of(d, &arg), 1, arg, a->dy, a->x, a->dx);
}
