/* Host side of the convolutions over blocks of channels. */
#include <backends/simt/entry.h>
#include <backends/simt/plan.h>
#include <common/conv.h>

#include <backends/simt/conv.h>

/* --- Tables --- */

static bsk_status tables_put(void *device, bsk_prepared *prepared, const bsk_conv_shape *s,
                             const bsk_tensor *out, bool back)
{
    const bsk_host *host = ((const simt_device *)device)->host;
    const i64 channels = out->dims[1];
    i64 *start;
    TRY(host_array(host, &start, channels + 1 + CONV_ENTRY * s->blocks_size, sizeof *start));
    bski_conv_entries(s, back, channels, bski_conv_taps(s, out), start,
                      (bski_conv_entry *)(void *)(start + channels + 1));
    bsk_status status = bski_simt_table(device, prepared, OWN_TABLE, start,
                                        channels + 1 + CONV_ENTRY * start[channels], sizeof *start);
    host_drop(host, start);
    return status ? status
                  : bski_simt_table(device, prepared, OWN_LIST, s->blocks, s->blocks_size,
                                    sizeof *s->blocks);
}

/* The channels of x and dy of each pair. */
static bsk_status pairs_put(void *device, bsk_prepared *prepared, const bsk_conv_shape *s,
                            i64 count)
{
    const bsk_host *host = ((const simt_device *)device)->host;
    int32_t *pairs;
    TRY(host_array(host, &pairs, 2 * count + 1, sizeof *pairs));
    for (bski_conv_block b = {0}; bski_conv_next(s, &b);)
        for (i64 i = 0; i < b.ins * b.outs; i++) {
            pairs[2 * (b.pairs + i)] = b.in[i % b.ins];
            pairs[2 * (b.pairs + i) + 1] = b.out[i / b.ins];
        }
    bsk_status status =
        bski_simt_table(device, prepared, OWN_TABLE, pairs, 2 * count, sizeof *pairs);
    host_drop(host, pairs);
    return status;
}

/* --- What launches share --- */

/* What is read at taps and where these belong. */
static conv_arg arg_of(const bsk_conv_shape *s, const bsk_tensor *in, const bsk_tensor *out)
{
    bski_conv_axes axes;
    bski_conv_axes_fill(&axes, s, in, out);
    conv_arg arg = {.images = out->dims[0],
                    .channels = out->dims[1],
                    .in_image = in->strides[0],
                    .in_channel = in->strides[1],
                    .out_image = out->strides[0],
                    .out_channel = out->strides[1],
                    .type = (i32)in->dtype,
                    .channels_inner = out->strides[1] < out->strides[out->rank - 1]};
    for (int d = 0; d < CONV_DIMS; d++) {
        arg.in_size[d] = axes.inputs[d];
        arg.out_size[d] = axes.outputs[d];
        arg.in_stride[d] = axes.x_stride[d];
        arg.out_stride[d] = axes.y_stride[d];
        arg.filter[d] = (i32)axes.filter[d];
        arg.stride[d] = (i32)axes.stride[d];
        arg.dilation[d] = (i32)axes.dilation[d];
        arg.pad[d] = (i32)axes.pad[d];
    }
    return arg;
}

static i64 elements_of(const bsk_tensor *t)
{
    i64 count = 1;
    for (int d = t->rank - 1; d >= 0; d--)
        count *= t->dims[d];
    return count;
}

static bsk_status conv_launch(const bsk_prepared *prepared, void *queue, conv_arg *arg,
                              const bsk_tensor *out, bsk_mem in, bsk_mem w, bsk_mem to)
{
    arg->count = elements_of(out);
    arg->out_type = (i32)out->dtype;
    return LAUNCH(0, bski_simt_groups(queue_device(queue), arg->count), 1, *arg, in, w, to,
                  table_of(prepared, OWN_TABLE), table_of(prepared, OWN_LIST));
}

static const simt_need needs = {.file = "conv", .single = true, .kernels = {"conv"}};

/* --- conv --- */

SIMT_RELEASE(conv)

SIMT_ACCEPT(conv)
{
    const bsk_conv_params *p = problem->params;
    return ACCEPT(&p->x, &p->y);
}

SIMT_PREPARE(conv)
{
    const bsk_conv_params *p = prepared->problem->params;
    TRY(bski_simt_prepare(device, prepared, &needs));
    return tables_put(device, prepared, &p->shape, &p->y, false);
}

SIMT_LAUNCH(conv)
{
    const bsk_conv_params *p = prepared->problem->params;
    const bsk_conv_args *a = args;
    conv_arg arg = arg_of(&p->shape, &p->x, &p->y);
    arg.alpha = simt_num(prepared, a->alpha);
    arg.beta = simt_num(prepared, a->beta);
    return conv_launch(prepared, queue, &arg, &p->y, a->x, a->w, a->y);
}

/* --- conv_dgrad --- */

SIMT_RELEASE(conv_dgrad)

SIMT_ACCEPT(conv_dgrad)
{
    const bsk_conv_dgrad_params *p = problem->params;
    return ACCEPT(&p->dy, &p->dx);
}

SIMT_PREPARE(conv_dgrad)
{
    const bsk_conv_dgrad_params *p = prepared->problem->params;
    TRY(bski_simt_prepare(device, prepared, &needs));
    return tables_put(device, prepared, &p->shape, &p->dx, true);
}

SIMT_LAUNCH(conv_dgrad)
{
    const bsk_conv_dgrad_params *p = prepared->problem->params;
    const bsk_conv_dgrad_args *a = args;
    conv_arg arg = arg_of(&p->shape, &p->dy, &p->dx);
    arg.alpha = simt_num(prepared, a->alpha);
    arg.beta = simt_num(prepared, a->beta);
    arg.back = 1;
    return conv_launch(prepared, queue, &arg, &p->dx, a->dy, a->w, a->dx);
}

/* --- conv_wgrad --- */

SIMT_RELEASE(conv_wgrad)

SIMT_ACCEPT(conv_wgrad)
{
    const bsk_conv_wgrad_params *p = problem->params;
    return ACCEPT(&p->x, &p->dw);
}

SIMT_PREPARE(conv_wgrad)
{
    static const simt_need need = {.file = "conv", .single = true, .kernels = {"conv_wgrad"}};
    const bsk_conv_wgrad_params *p = prepared->problem->params;
    TRY(bski_simt_prepare(device, prepared, &need));
    return pairs_put(device, prepared, &p->shape, p->dw.dims[0] / bski_conv_taps(&p->shape, &p->x));
}

SIMT_LAUNCH(conv_wgrad)
{
    const bsk_conv_wgrad_params *p = prepared->problem->params;
    const bsk_conv_wgrad_args *a = args;
    const simt_device *d = queue_device(queue);
    conv_arg arg = arg_of(&p->shape, &p->x, &p->dy);
    arg.alpha = simt_num(prepared, a->alpha);
    arg.beta = simt_num(prepared, a->beta);
    arg.count = p->dw.dims[0];
    arg.out_type = (i32)p->dw.dtype;
    return LAUNCH(0, bski_simt_groups_most(d, arg.count, d->wide ? 4 : 8), 1, arg, a->x, a->dy,
                  a->dw, table_of(prepared, OWN_TABLE));
}

/* --- conv_edge_bias --- */

static image_view view_of(const bsk_tensor *t)
{
    bski_conv_axes axes;
    bski_conv_axes_alone(&axes, t, t);
    image_view v = {.image = t->strides[0], .channel = t->strides[1], .type = (i32)t->dtype};
    for (int d = 0; d < CONV_DIMS; d++)
        v.stride[d] = axes.x_stride[d];
    return v;
}

static edge_arg edge_arg_of(const bsk_tensor *x, const bsk_tensor *y, const bsk_tensor *gain,
                            const bsk_tensor *bias)
{
    bski_conv_axes axes;
    bski_conv_axes_alone(&axes, x, y);
    edge_arg arg = {.images = y->dims[0],
                    .channels = y->dims[1],
                    .positions = 1,
                    .sets = gain->dims[1],
                    .gain = {gain->strides[0], gain->strides[1]},
                    .bias = {bias->strides[0], bias->strides[1]},
                    .x = view_of(x),
                    .y = view_of(y),
                    .channels_inner = y->strides[1] < y->strides[y->rank - 1]};
    for (int d = 0; d < CONV_DIMS; d++) {
        arg.size[d] = axes.outputs[d];
        arg.positions *= axes.outputs[d];
    }
    return arg;
}

SIMT_RELEASE(conv_edge_bias)

SIMT_ACCEPT(conv_edge_bias)
{
    const bsk_conv_edge_bias_params *p = problem->params;
    return ACCEPT(&p->x, &p->y);
}

SIMT_PREPARE(conv_edge_bias)
{
    static const simt_need need = {.file = "conv", .single = true, .kernels = {"conv_edge_bias"}};
    return bski_simt_prepare(device, prepared, &need);
}

SIMT_LAUNCH(conv_edge_bias)
{
    const bsk_conv_edge_bias_params *p = prepared->problem->params;
    const bsk_conv_edge_bias_args *a = args;
    const edge_arg arg = edge_arg_of(&p->x, &p->y, &p->gain, &p->bias);
    return LAUNCH(0, bski_simt_groups(queue_device(queue), elements_of(&p->y)), 1, arg, a->x,
                  a->edges, a->gain, a->bias, a->y);
}

/* --- conv_edge_bias_grad --- */

SIMT_RELEASE(conv_edge_bias_grad)

SIMT_ACCEPT(conv_edge_bias_grad)
{
    const bsk_conv_edge_bias_grad_params *p = problem->params;
    return ACCEPT(&p->dy, &p->x, &p->dx);
}

SIMT_PREPARE(conv_edge_bias_grad)
{
    static const simt_need need = {
        .file = "conv", .single = true, .kernels = {"conv_edge_sums", "conv_edge_bias"}};
    return bski_simt_prepare(device, prepared, &need);
}

SIMT_LAUNCH(conv_edge_bias_grad)
{
    const bsk_conv_edge_bias_grad_params *p = prepared->problem->params;
    const bsk_conv_edge_bias_grad_args *a = args;
    const simt_device *d = queue_device(queue);
    edge_arg sums = edge_arg_of(&p->dy, &p->x, &p->dgain, &p->dbias);
    sums.alpha = simt_num(prepared, a->alpha);
    sums.beta = simt_num(prepared, a->beta);
    /* First, since dx may lie where dy does. */
    TRY(LAUNCH(0, bski_simt_groups_most(d, elements_of(&p->dgain), d->wide ? 4 : 8), 1, sums, a->dy,
               a->x, a->edges, a->dgain, a->dbias));
    const edge_arg arg = edge_arg_of(&p->dy, &p->dx, &p->gain, &p->gain);
    return LAUNCH(1, bski_simt_groups(d, elements_of(&p->dx)), 1, arg, a->dy, a->edges, a->gain,
                  (bsk_mem){0}, a->dx);
}
