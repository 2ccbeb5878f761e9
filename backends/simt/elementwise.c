/* Host side of the element-wise maps and of add_n. */
#include <backends/simt/dims.h>
#include <backends/simt/elementwise.h>
#include <backends/simt/maps.h>
#include <common/philox.h>

/* --- binary --- */

SIMT_ACCEPT(binary)
{
    const bsk_binary_params *p = problem->params;
    return ACCEPT(&p->x, &p->y, &p->z);
}

SIMT_RELEASE(binary)

SIMT_PREPARE(binary)
{
    const bsk_binary_params *p = prepared->problem->params;
    return MAP_PREPARE("binary", &p->x, &p->y, &p->z);
}

SIMT_LAUNCH(binary)
{
    const bsk_binary_params *p = prepared->problem->params;
    const bsk_binary_args *a = args;
    const simt_map m = {.y = {&p->z, a->z}, .x = {{&p->x, a->x}, {&p->y, a->y}}, .inputs = 2};
    map_arg arg = bski_simt_map(prepared, queue, &m);
    arg.kind = (i32)p->kind;
    return bski_simt_map_launch(prepared, queue, &m, &arg);
}

/* --- unary --- */

SIMT_ACCEPT(unary)
{
    const bsk_unary_params *p = problem->params;
    return ACCEPT(&p->x, &p->y);
}

SIMT_RELEASE(unary)

SIMT_PREPARE(unary)
{
    const bsk_unary_params *p = prepared->problem->params;
    return MAP_PREPARE_WHOLE("unary", &p->x, &p->y);
}

SIMT_LAUNCH(unary)
{
    const bsk_unary_params *p = prepared->problem->params;
    const bsk_unary_args *a = args;
    const simt_map m = {.y = {&p->y, a->y}, .x = {{&p->x, a->x}}, .inputs = 1, .whole = true};
    map_arg arg = bski_simt_map(prepared, queue, &m);
    arg.kind = (i32)p->kind;
    arg.c = bski_simt_map_num(prepared, p->coefficient);
    return bski_simt_map_launch(prepared, queue, &m, &arg);
}

SIMT_ACCEPT(unary_grad)
{
    const bsk_unary_grad_params *p = problem->params;
    return ACCEPT(&p->dy, &p->dx, &p->x, &p->y);
}

SIMT_RELEASE(unary_grad)

SIMT_PREPARE(unary_grad)
{
    const bsk_unary_grad_params *p = prepared->problem->params;
    return MAP_PREPARE_WHOLE("unary_grad", &p->dy, &p->dx, &p->x, &p->y);
}

SIMT_LAUNCH(unary_grad)
{
    const bsk_unary_grad_params *p = prepared->problem->params;
    const bsk_unary_grad_args *a = args;
    const bool output = p->y.dtype != BSK_NONE;
    const simt_map m = {
        .y = {&p->dx, a->dx},
        .x = {{&p->dy, a->dy}, {output ? &p->y : &p->x, output ? a->y : a->x}},
        .inputs = 2,
        .whole = true,
    };
    map_arg arg = bski_simt_map(prepared, queue, &m);
    arg.kind = (i32)p->kind;
    arg.option = output ? UNARY_OF_OUTPUT : 0;
    arg.c = bski_simt_map_num(prepared, p->coefficient);
    arg.alpha = bski_simt_map_num(prepared, a->alpha);
    arg.beta = bski_simt_map_num(prepared, a->beta);
    return bski_simt_map_launch(prepared, queue, &m, &arg);
}

/* --- cwise_linear: gain and bias are repeated along the first and the last dimension --- */

SIMT_ACCEPT(cwise_linear)
{
    const bsk_cwise_linear_params *p = problem->params;
    return ACCEPT(&p->x, &p->y);
}

SIMT_RELEASE(cwise_linear)

SIMT_PREPARE(cwise_linear)
{
    const bsk_cwise_linear_params *p = prepared->problem->params;
    return MAP_PREPARE("cwise_linear", &p->x, &p->y);
}

SIMT_LAUNCH(cwise_linear)
{
    const bsk_cwise_linear_params *p = prepared->problem->params;
    const bsk_cwise_linear_args *a = args;
    const bsk_tensor gain = simt_channels(&p->gain), bias = simt_channels(&p->bias);
    const simt_map m = {
        .y = {&p->y, a->y},
        .x = {{&p->x, a->x}, {&gain, a->gain}, {&bias, a->bias}},
        .inputs = 3,
    };
    map_arg arg = bski_simt_map(prepared, queue, &m);
    arg.option = (p->relu ? CWISE_RELU : 0) | (p->bias_first ? CWISE_BIAS_FIRST : 0) |
                 (p->gain.dtype != BSK_NONE ? CWISE_GAIN : 0);
    return bski_simt_map_launch(prepared, queue, &m, &arg);
}

/* --- filter, dropout --- */

SIMT_ACCEPT(filter)
{
    const bsk_filter_params *p = problem->params;
    return ACCEPT(&p->x, &p->y);
}

SIMT_RELEASE(filter)

SIMT_PREPARE(filter)
{
    const bsk_filter_params *p = prepared->problem->params;
    return MAP_PREPARE("filter", &p->x, &p->y);
}

SIMT_LAUNCH(filter)
{
    const bsk_filter_params *p = prepared->problem->params;
    const bsk_filter_args *a = args;
    const simt_map m = {.y = {&p->y, a->y}, .x = {{&p->x, a->x}}, .inputs = 1};
    map_arg arg = bski_simt_map(prepared, queue, &m);
    arg.option = (p->zero_infs ? FILTER_INFS : 0) | (p->zero_nans ? FILTER_NANS : 0);
    arg.c = bski_simt_map_num(prepared, a->scale != 0 ? a->scale : 1);
    arg.d = bski_simt_map_num(prepared, a->saturate);
    return bski_simt_map_launch(prepared, queue, &m, &arg);
}

SIMT_ACCEPT(dropout)
{
    const bsk_dropout_params *p = problem->params;
    return ACCEPT(&p->x, &p->y);
}

SIMT_RELEASE(dropout)

SIMT_PREPARE(dropout)
{
    const bsk_dropout_params *p = prepared->problem->params;
    return MAP_PREPARE_WHOLE("dropout", &p->x, &p->y);
}

SIMT_LAUNCH(dropout)
{
    const bsk_dropout_params *p = prepared->problem->params;
    const bsk_dropout_args *a = args;
    const simt_map m = {
        .y = {&p->y, a->y},
        .x = {{&p->x, a->x}},
        .inputs = 1,
        .random = true,
        .shared = p->shared,
        .whole = true,
    };
    map_arg arg = bski_simt_map(prepared, queue, &m);
    arg.c = bski_simt_map_num(prepared, a->keep > 0 ? 1 / a->keep : 0);
    arg.limit = (i32)bski_dropout_limit(a->keep);
    arg.seed = (i64)a->seed;
    arg.offset = (i64)a->offset;
    return bski_simt_map_launch(prepared, queue, &m, &arg);
}

/* --- add_n --- */

SIMT_ACCEPT(add_n)
{
    const bsk_add_n_params *p = problem->params;
    return ACCEPT(&p->x, &p->y);
}

SIMT_RELEASE(add_n)

/* A long list is summed up in the workspace. */
SIMT_PREPARE(add_n)
{
    const bsk_add_n_params *p = prepared->problem->params;
    const simt_dims s = bski_simt_dims(&p->y);
    const bsk_dtype type = bski_simt_map_type(prepared, (const bsk_tensor *[]){&p->x, &p->y}, 2);
    size_t at;
    if (p->pairs > ADD_TENSORS &&
        !bski_simt_space(&prepared->workspace_bytes, bski_simt_dims_count(&s), simt_num_size(type),
                         &at))
        return BSK_E_NOMEM;
    return MAP_PREPARE("add_n", &p->x, &p->y);
}

SIMT_LAUNCH(add_n)
{
    const simt_device *d = queue_device(queue);
    const bsk_add_n_params *p = prepared->problem->params;
    const bsk_add_n_args *a = args;
    const bsk_dtype type = simt_map_kernel_type(prepared);
    const bsk_tensor partial = {.dtype = type == BSK_F64 ? BSK_F64 : BSK_F32};
    simt_dims s = bski_simt_dims(&p->y);
    bski_simt_dims_add(&s, &p->y);
    bski_simt_dims_add(&s, &p->x);
    bski_simt_dims_add_numbers(&s, 0);
    bski_simt_dims_join(&s, bski_simt_dims_inner(&s));
    for (i32 first = 0; first < p->pairs; first += ADD_TENSORS) {
        const i32 left = p->pairs - first;
        add_n_arg arg = {
            .shape = bski_simt_dims_shape(&s),
            .y = bski_simt_dims_view(&s, 0, d, type, &p->y, a->y),
            .x = bski_simt_dims_view(&s, 1, d, type, &p->x, a->x[first]),
            .partial = bski_simt_dims_view(&s, 2, d, type, &partial, a->workspace),
            .alpha = bski_simt_num(type, a->alpha),
            .beta = bski_simt_num(type, a->beta),
            .count = left < ADD_TENSORS ? left : ADD_TENSORS,
            .first = first == 0,
            .last = left <= ADD_TENSORS,
        };
        bsk_mem x[ADD_TENSORS];
        for (i32 k = 0; k < ADD_TENSORS; k++) {
            x[k] = k < arg.count ? a->x[first + k] : mem_none();
            if (k < arg.count && !d->wide && !simt_aligned(x[k]) && arg.x.run == RUN_VECTOR)
                arg.x.run = RUN_STRIDED;
        }
        if (!d->wide && arg.shape.rank == 1 && arg.x.run == RUN_VECTOR && p->x.dtype == type)
            arg.whole = arg.shape.size[SHAPE_LAST] / simt_vec(d, type);
        const bsk_mem part = p->pairs > ADD_TENSORS ? a->workspace : mem_none();
        TRY(LAUNCH(0, bski_simt_map_groups(d, type, &arg.shape), 1, arg, x[0], x[1], x[2], x[3],
                   x[4], x[5], x[6], x[7], a->y, part));
    }
    return BSK_OK;
}
