/* Host side of the gradients of repeated operands: maps where nothing is summed, else sums. */
#include <backends/simt/maps.h>
#include <backends/simt/sums.h>

enum { MAP_KERNEL, SUMS_KERNEL, FINISH_KERNEL };

/* How a sum is shared out. */
typedef struct sums_plan {
    simt_dims kept, summed;
    i64 across; /* groups along the kept dimensions */
    simt_shares cut;
    i32 kept_lanes;
    bool runs_kept;
} sums_plan;

static i64 positions(const simt_dims *s, i64 unit)
{
    i64 count = 1;
    for (int d = 0; d < s->rank; d++)
        count *= d == s->rank - 1 ? simt_runs(s->size[d], unit) : s->size[d];
    return count;
}

/* Tensors as bski_simt_dims_add, of which the first one is full; out: the result, with 1 along the
 * dimensions that are summed. */
static sums_plan sums_of(const simt_device *d, bsk_dtype type, const bsk_tensor *const *tensors,
                         int count, const bsk_tensor *out)
{
    const i64 vec = simt_vec(d, type), lanes = simt_lanes(d);
    bool summed[SHAPE_RANK];
    sums_plan s = {.kept = bski_simt_dims(tensors[0]), .kept_lanes = 1};
    for (int k = 0; k < count; k++)
        bski_simt_dims_add(&s.kept, tensors[k]);
    bski_simt_dims_add(&s.kept, out);
    for (int i = 0; i < s.kept.rank; i++)
        summed[i] = out->dims[i] == 1 && tensors[0]->dims[i] != 1;
    const int inner = bski_simt_dims_inner(&s.kept);
    int kept_inner = -1, summed_inner = -1;
    for (int i = 0, kept = 0, gone = 0; i < s.kept.rank; i++) {
        if (i == inner && summed[i])
            summed_inner = gone;
        if (i == inner && !summed[i])
            kept_inner = kept;
        kept += !summed[i];
        gone += summed[i];
    }
    s.summed = bski_simt_dims_take(&s.kept, summed);
    s.runs_kept = summed_inner < 0;
    bski_simt_dims_join(&s.kept, s.runs_kept ? kept_inner : bski_simt_dims_inner(&s.kept));
    bski_simt_dims_join(&s.summed, s.runs_kept ? bski_simt_dims_inner(&s.summed) : summed_inner);

    const i64 slots = positions(&s.kept, s.runs_kept ? vec : 1);
    const i64 terms = positions(&s.summed, s.runs_kept ? 1 : vec);
    if (s.runs_kept)
        s.kept_lanes = simt_lanes_across(d, slots, 32);
    else
        for (i64 used = lanes; used / 2 >= terms && used > 1; used /= 2)
            s.kept_lanes *= 2;
    s.across = bski_ceil_div(slots, s.kept_lanes);
    s.cut = bski_simt_shares(d, terms, lanes / s.kept_lanes, s.across, 16);
    return s;
}

/* Adds the workspace of `sums` sums. */
static bool sums_space(const sums_plan *s, bsk_dtype type, int sums, size_t *total)
{
    i64 count;
    size_t at;
    return bski_mul_i64(s->cut.shares * sums, bski_simt_dims_count(&s->kept), &count) &&
           bski_simt_space(total, count, simt_num_size(type), &at);
}

static sums_arg sums_arguments(const sums_plan *s, const simt_device *d, bsk_dtype type,
                               const bsk_tensor *const *tensors, const bsk_mem *mems, int count)
{
    const i64 vec = simt_vec(d, type);
    const simt_dims *const other = s->runs_kept ? &s->summed : &s->kept;
    sums_arg arg = {
        .kept = bski_simt_dims_shape(&s->kept),
        .summed = bski_simt_dims_shape(&s->summed),
        .share = s->cut.share,
        .shares = s->cut.shares,
        .kept_lanes = s->kept_lanes,
        .runs_kept = s->runs_kept,
    };
    for (int k = 0; k < count; k++) {
        const view_arg kept = bski_simt_dims_view(&s->kept, k, d, type, tensors[k], mems[k]);
        const view_arg summed = bski_simt_dims_view(&s->summed, k, d, type, tensors[k], mems[k]);
        for (int i = 0; i < SHAPE_RANK; i++) {
            arg.x[k].kept[i] = kept.stride[i];
            arg.x[k].summed[i] = summed.stride[i];
        }
        arg.x[k].type = (i32)tensors[k]->dtype;
        arg.x[k].run = s->runs_kept ? kept.run : summed.run;
        if (arg.x[k].run == RUN_VECTOR && !d->wide && !bski_simt_dims_aligned(other, k, vec, false))
            arg.x[k].run = RUN_STRIDED;
    }
    return arg;
}

/* y = alpha * sum number `number` + beta * y; y is tensor number k of the plan. */
static bsk_status sums_finish(const bsk_prepared *prepared, void *queue, const sums_plan *s,
                              int number, int k, const bsk_tensor *y, bsk_mem mem, bsk_mem partial,
                              double alpha, double beta)
{
    const simt_device *d = queue_device(queue);
    const bsk_dtype type = simt_map_kernel_type(prepared);
    const sums_finish_arg arg = {
        .shape = bski_simt_dims_shape(&s->kept),
        .y = bski_simt_dims_view(&s->kept, k, d, type, y, mem),
        .count = bski_simt_dims_count(&s->kept),
        .shares = s->cut.shares,
        .alpha = bski_simt_num(type, alpha),
        .beta = bski_simt_num(type, beta),
    };
    const size_t at = (size_t)(number * s->cut.shares * arg.count) * simt_num_size(type);
    return LAUNCH(FINISH_KERNEL, simt_finish_groups(d, arg.count), 1, arg, bsk_mem_at(partial, at),
                  mem);
}

/* --- binary_grad --- */

static bool is_summed(const bsk_tensor *full, const bsk_tensor *out)
{
    bool summed = false;
    for (int i = 0; i < full->rank; i++)
        summed |= out->dims[i] != full->dims[i];
    return summed;
}

SIMT_ACCEPT(binary_grad)
{
    const bsk_binary_grad_params *p = problem->params;
    return ACCEPT(&p->dz, &p->x, &p->y, &p->dx, &p->dy);
}

SIMT_RELEASE(binary_grad)

/* Both sums use the same workspace, one after the other. */
SIMT_PREPARE(binary_grad)
{
    static const simt_need need = {
        .file = "sums", .kernels = {"binary_grad", "binary_sums", "sums_finish"}, .single = true};
    const bsk_binary_grad_params *p = prepared->problem->params;
    const bsk_tensor *const tensors[] = {&p->dz, &p->x, &p->y, &p->dx, &p->dy};
    const bsk_dtype type = simt_single(bski_simt_map_type(prepared, tensors, 5));
    for (int i = 3; i < 5; i++) {
        if (tensors[i]->dtype == BSK_NONE || !is_summed(&p->dz, tensors[i]))
            continue;
        const sums_plan s = sums_of(device, type, tensors, 3, tensors[i]);
        size_t bytes = 0;
        if (!sums_space(&s, type, 1, &bytes))
            return BSK_E_NOMEM;
        if (prepared->workspace_bytes < bytes)
            prepared->workspace_bytes = bytes;
    }
    return bski_simt_map_prepare(device, prepared, &need, tensors, 5);
}

/* The gradient of one operand. */
static bsk_status operand_launch(const bsk_prepared *prepared, void *queue,
                                 const bsk_binary_grad_args *a, const bsk_tensor *out, bsk_mem mem,
                                 bool of_x)
{
    const simt_device *d = queue_device(queue);
    const bsk_binary_grad_params *p = prepared->problem->params;
    const bsk_dtype type = simt_map_kernel_type(prepared);
    if (out->dtype == BSK_NONE)
        return BSK_OK;
    if (!is_summed(&p->dz, out)) {
        const simt_map m = {
            .y = {out, mem},
            .x = {{&p->dz, a->dz}, {&p->x, a->x}, {&p->y, a->y}},
            .inputs = 3,
        };
        map_arg arg = bski_simt_map(prepared, queue, &m);
        arg.kind = (i32)p->kind;
        arg.option = of_x;
        arg.alpha = bski_simt_num(type, a->alpha);
        arg.beta = bski_simt_num(type, a->beta);
        return bski_simt_map_launch(prepared, queue, &m, &arg);
    }
    const bsk_tensor *const tensors[] = {&p->dz, &p->x, &p->y};
    const bsk_mem mems[] = {a->dz, mem_of(&p->x, a->x), mem_of(&p->y, a->y)};
    const sums_plan s = sums_of(d, type, tensors, 3, out);
    sums_arg arg = sums_arguments(&s, d, type, tensors, mems, 3);
    arg.kind = (i32)p->kind;
    arg.option = of_x;
    TRY(LAUNCH(SUMS_KERNEL, s.across, s.cut.shares, arg, mems[0], mems[1], mems[2], mem_none(),
               a->workspace));
    return sums_finish(prepared, queue, &s, 0, 3, out, mem, a->workspace, a->alpha, a->beta);
}

SIMT_LAUNCH(binary_grad)
{
    const bsk_binary_grad_params *p = prepared->problem->params;
    const bsk_binary_grad_args *a = args;
    TRY(operand_launch(prepared, queue, a, &p->dx, a->dx, true));
    return operand_launch(prepared, queue, a, &p->dy, a->dy, false);
}

/* --- cwise_linear_grad --- */

enum { CWISE_TENSORS = 4 };

/* dy, x, gain and bias, in the shape of dy. */
typedef struct cwise_inputs {
    bsk_tensor gain, bias, sum;
    const bsk_tensor *tensors[CWISE_TENSORS];
} cwise_inputs;

static void cwise_inputs_of(const bsk_cwise_linear_grad_params *p, cwise_inputs *c)
{
    const bsk_tensor *out = p->dgain.dtype != BSK_NONE ? &p->dgain : &p->dbias;
    c->gain = simt_channels(&p->gain);
    c->bias = simt_channels(&p->bias);
    c->sum = simt_channels(out);
    c->tensors[0] = &p->dy;
    c->tensors[1] = &p->x;
    c->tensors[2] = &c->gain;
    c->tensors[3] = &c->bias;
}

SIMT_ACCEPT(cwise_linear_grad)
{
    const bsk_cwise_linear_grad_params *p = problem->params;
    return ACCEPT(&p->dy, &p->x, &p->dx);
}

SIMT_RELEASE(cwise_linear_grad)

SIMT_PREPARE(cwise_linear_grad)
{
    static const simt_need need = {.file = "sums",
                                   .kernels = {"cwise_linear_grad", "cwise_sums", "sums_finish"},
                                   .single = true};
    const bsk_cwise_linear_grad_params *p = prepared->problem->params;
    const bsk_tensor *const tensors[] = {&p->dy, &p->x, &p->dx};
    const bsk_dtype type = simt_single(bski_simt_map_type(prepared, tensors, 3));
    if (p->dgain.dtype != BSK_NONE || p->dbias.dtype != BSK_NONE) {
        cwise_inputs c;
        cwise_inputs_of(p, &c);
        const sums_plan s = sums_of(device, type, c.tensors, CWISE_TENSORS, &c.sum);
        if (!sums_space(&s, type, 2, &prepared->workspace_bytes))
            return BSK_E_NOMEM;
    }
    return bski_simt_map_prepare(device, prepared, &need, tensors, 3);
}

/* The sums come first: dx may be dy. */
SIMT_LAUNCH(cwise_linear_grad)
{
    const simt_device *d = queue_device(queue);
    const bsk_cwise_linear_grad_params *p = prepared->problem->params;
    const bsk_cwise_linear_grad_args *a = args;
    const bsk_dtype type = simt_map_kernel_type(prepared);
    const i32 option = (p->relu ? CWISE_RELU : 0) | (p->bias_first ? CWISE_BIAS_FIRST : 0) |
                       (p->gain.dtype != BSK_NONE ? CWISE_GAIN : 0);
    const bsk_tensor *const outs[] = {&p->dgain, &p->dbias};
    const bsk_mem out_mems[] = {a->dgain, a->dbias};
    cwise_inputs c;
    cwise_inputs_of(p, &c);
    const bsk_mem mems[] = {a->dy, mem_of(&p->x, a->x), mem_of(&p->gain, a->gain),
                            mem_of(&p->bias, a->bias)};
    if (c.sum.dtype != BSK_NONE) {
        const sums_plan s = sums_of(d, type, c.tensors, CWISE_TENSORS, &c.sum);
        sums_arg arg = sums_arguments(&s, d, type, c.tensors, mems, CWISE_TENSORS);
        arg.option = option;
        TRY(LAUNCH(SUMS_KERNEL, s.across, s.cut.shares, arg, mems[0], mems[1], mems[2], mems[3],
                   a->workspace));
        for (int i = 0; i < 2; i++)
            if (outs[i]->dtype != BSK_NONE)
                TRY(sums_finish(prepared, queue, &s, i, CWISE_TENSORS, outs[i], out_mems[i],
                                a->workspace, a->alpha, a->beta));
    }
    if (p->dx.dtype == BSK_NONE)
        return BSK_OK;
    const simt_map m = {
        .y = {&p->dx, a->dx},
        .x = {{c.tensors[0], mems[0]},
              {c.tensors[1], mems[1]},
              {c.tensors[2], mems[2]},
              {c.tensors[3], mems[3]}},
        .inputs = CWISE_TENSORS,
    };
    map_arg arg = bski_simt_map(prepared, queue, &m);
    arg.option = option;
    arg.alpha = bski_simt_map_num(prepared, a->dx_alpha);
    arg.beta = bski_simt_map_num(prepared, a->dx_beta);
    return bski_simt_map_launch(prepared, queue, &m, &arg);
}
