/* Host side of the LSTM cells, of split4 and of concat4. */
#include <backends/simt/maps.h>

#include <backends/simt/lstm.h>

/* The walk's inner axis, and what all tensors of a plan are seen through. */
typedef struct axes {
    const simt_device *d;
    bsk_dtype type;
    int inner;
} axes;

static matrix_arg matrix_of(const axes *x, const bsk_tensor *t, bsk_mem mem)
{
    return (matrix_arg){
        .row = t->strides[1 - x->inner],
        .col = t->strides[x->inner],
        .type = (i32)t->dtype,
        .vector = bski_simt_vector(x->d, x->type, t, mem, x->inner),
    };
}

static axes axes_of(const bsk_prepared *prepared, void *queue, const bsk_tensor *lead)
{
    return (axes){
        .d = queue_device(queue),
        .type = simt_map_kernel_type(prepared),
        .inner = bski_simt_inner(&lead, 1),
    };
}

/* Quarter q of a tensor of four times the features. */
static bsk_mem quarter_of(const bsk_tensor *t, bsk_mem mem, bsk_axis axis, int q)
{
    const int f = axis == BSK_NC ? 1 : 0;
    const i64 element = q * (t->dims[f] / 4) * t->strides[f];
    return bsk_mem_at(mem, (size_t)element * simt_size(t->dtype));
}

/* The four gates, merged or split, and their memory. */
typedef struct gate_list {
    const bsk_tensor *tensor[GATES];
    bsk_mem mem[GATES];
} gate_list;

static gate_list gates_of(const bsk_tensor *merged, bsk_mem merged_mem, gate_list split,
                          bsk_axis axis)
{
    for (int g = 0; g < GATES && merged->dtype != BSK_NONE; g++) {
        split.tensor[g] = merged;
        split.mem[g] = quarter_of(merged, merged_mem, axis, g);
    }
    return split;
}

static i64 groups_of(const axes *x, i64 rows, i64 cols)
{
    return bski_simt_groups(x->d, rows * simt_runs(cols, simt_vec(x->d, x->type)));
}

static lstm_arg cell_of(const axes *x, bsk_axis axis, const bsk_tensor *c, bsk_mem c_mem,
                        const gate_list *gates, const bsk_tensor *bias, bsk_mem bias_mem,
                        double forget)
{
    const int f = axis == BSK_NC ? 1 : 0;
    lstm_arg arg = {
        .rows = c->dims[1 - x->inner],
        .cols = c->dims[x->inner],
        .features = c->dims[f],
        .forget = bski_simt_num(x->type, forget),
        .c = matrix_of(x, c, c_mem),
        .bias = bias->dtype == BSK_NONE ? GATE_BIAS_NONE
                : f == x->inner         ? GATE_BIAS_COL
                                        : GATE_BIAS_ROW,
        .bias_vector =
            bski_simt_vector_rows(x->d, x->type, mem_of(bias, bias_mem), GATES, c->dims[f]),
    };
    for (int g = 0; g < GATES; g++)
        arg.gate[g] = matrix_of(x, gates->tensor[g], gates->mem[g]);
    return arg;
}

/* --- lstm_gates --- */

/* The bias is of the arithmetic of the type of c, and so are the kernels. */
SIMT_ACCEPT(lstm_gates)
{
    const bsk_lstm_gates_params *p = problem->params;
    return ACCEPT(&p->c, &p->c_next, &p->h_next, &p->gates, &p->i, &p->u, &p->f, &p->o);
}

SIMT_RELEASE(lstm_gates)

SIMT_PREPARE(lstm_gates)
{
    static const simt_need need = {.file = "lstm", .kernels = {"lstm_gates"}, .single = true};
    return bski_simt_map_prepare(device, prepared, &need, NULL, 0);
}

SIMT_LAUNCH(lstm_gates)
{
    const bsk_lstm_gates_params *p = prepared->problem->params;
    const bsk_lstm_gates_args *a = args;
    const axes x = axes_of(prepared, queue, &p->c);
    const gate_list gates =
        gates_of(&p->gates, a->gates,
                 (gate_list){{&p->i, &p->u, &p->f, &p->o}, {a->i, a->u, a->f, a->o}}, p->axis);
    const bsk_mem *const g = gates.mem;
    lstm_arg arg = cell_of(&x, p->axis, &p->c, a->c, &gates, &p->bias, a->bias, a->forget_bias);
    arg.c_next = matrix_of(&x, &p->c_next, a->c_next);
    arg.h_next = matrix_of(&x, &p->h_next, a->h_next);
    return LAUNCH(0, groups_of(&x, arg.rows, arg.cols), 1, arg, a->c, g[GATE_I], g[GATE_U],
                  g[GATE_F], g[GATE_O], mem_of(&p->bias, a->bias), a->c_next, a->h_next);
}

/* --- lstm_gates_grad --- */

SIMT_ACCEPT(lstm_gates_grad)
{
    const bsk_lstm_gates_grad_params *p = problem->params;
    return ACCEPT(&p->dh, &p->c, &p->dc_next, &p->dc, &p->gates, &p->i, &p->u, &p->f, &p->o,
                  &p->dgates, &p->di, &p->du, &p->df, &p->do_);
}

SIMT_RELEASE(lstm_gates_grad)

SIMT_PREPARE(lstm_gates_grad)
{
    static const simt_need need = {.file = "lstm", .kernels = {"lstm_gates_grad"}, .single = true};
    return bski_simt_map_prepare(device, prepared, &need, NULL, 0);
}

SIMT_LAUNCH(lstm_gates_grad)
{
    const bsk_lstm_gates_grad_params *p = prepared->problem->params;
    const bsk_lstm_gates_grad_args *a = args;
    const axes x = axes_of(prepared, queue, &p->dh);
    const gate_list gates =
        gates_of(&p->gates, a->gates,
                 (gate_list){{&p->i, &p->u, &p->f, &p->o}, {a->i, a->u, a->f, a->o}}, p->axis);
    const gate_list dgates = gates_of(
        &p->dgates, a->dgates,
        (gate_list){{&p->di, &p->du, &p->df, &p->do_}, {a->di, a->du, a->df, a->do_}}, p->axis);
    const bsk_mem *const g = gates.mem, *const dg = dgates.mem;
    lstm_grad_arg arg = {
        .cell = cell_of(&x, p->axis, &p->c, a->c, &gates, &p->bias, a->bias, a->forget_bias),
        .dh = matrix_of(&x, &p->dh, a->dh),
        .dc_next = matrix_of(&x, &p->dc_next, a->dc_next),
        .dc = matrix_of(&x, &p->dc, a->dc),
        .alpha = bski_simt_num(x.type, a->alpha),
        .beta = bski_simt_num(x.type, a->beta),
    };
    for (int i = 0; i < GATES; i++)
        arg.dgate[i] = matrix_of(&x, dgates.tensor[i], dg[i]);
    return LAUNCH(0, groups_of(&x, arg.cell.rows, arg.cell.cols), 1, arg, a->dh, a->c,
                  mem_of(&p->dc_next, a->dc_next), g[GATE_I], g[GATE_U], g[GATE_F], g[GATE_O],
                  mem_of(&p->bias, a->bias), mem_of(&p->dc, a->dc), dg[GATE_I], dg[GATE_U],
                  dg[GATE_F], dg[GATE_O]);
}

/* --- split4, concat4 --- */

static bsk_status quarters_launch(const bsk_prepared *prepared, void *queue, bsk_axis axis,
                                  const bsk_tensor *whole, bsk_mem whole_mem,
                                  const gate_list *parts, bool concat)
{
    const axes x = axes_of(prepared, queue, whole);
    const bsk_tensor *first = parts->tensor[0];
    const int f = axis == BSK_NC ? 1 : 0;
    quarters_arg arg = {
        .rows = first->dims[1 - x.inner],
        .cols = first->dims[x.inner],
        .step = first->dims[f] * whole->strides[f],
        .whole = matrix_of(&x, whole, whole_mem),
        .concat = concat,
    };
    arg.whole.vector = arg.whole.vector && (x.d->wide || arg.step % simt_vec(x.d, x.type) == 0);
    for (int q = 0; q < GATES; q++)
        arg.quarter[q] = matrix_of(&x, parts->tensor[q], parts->mem[q]);
    return LAUNCH(0, groups_of(&x, arg.rows, arg.cols), GATES, arg, whole_mem, parts->mem[0],
                  parts->mem[1], parts->mem[2], parts->mem[3]);
}

SIMT_ACCEPT(split4)
{
    const bsk_split4_params *p = problem->params;
    return ACCEPT(&p->x, &p->y0, &p->y1, &p->y2, &p->y3);
}

SIMT_RELEASE(split4)

SIMT_PREPARE(split4)
{
    static const simt_need need = {.file = "lstm", .kernels = {"quarters"}, .single = true};
    const bsk_split4_params *p = prepared->problem->params;
    return bski_simt_map_prepare(device, prepared, &need, (const bsk_tensor *const[]){&p->x}, 1);
}

SIMT_LAUNCH(split4)
{
    const bsk_split4_params *p = prepared->problem->params;
    const bsk_split4_args *a = args;
    const gate_list parts = {{&p->y0, &p->y1, &p->y2, &p->y3}, {a->y0, a->y1, a->y2, a->y3}};
    return quarters_launch(prepared, queue, p->axis, &p->x, a->x, &parts, false);
}

SIMT_ACCEPT(concat4)
{
    const bsk_concat4_params *p = problem->params;
    return ACCEPT(&p->x0, &p->x1, &p->x2, &p->x3, &p->y);
}

SIMT_RELEASE(concat4)

SIMT_PREPARE(concat4)
{
    static const simt_need need = {.file = "lstm", .kernels = {"quarters"}, .single = true};
    const bsk_concat4_params *p = prepared->problem->params;
    return bski_simt_map_prepare(device, prepared, &need,
                                 (const bsk_tensor *const[]){&p->x0, &p->x1, &p->x2, &p->x3}, 4);
}

SIMT_LAUNCH(concat4)
{
    const bsk_concat4_params *p = prepared->problem->params;
    const bsk_concat4_args *a = args;
    const gate_list parts = {{&p->x0, &p->x1, &p->x2, &p->x3}, {a->x0, a->x1, a->x2, a->x3}};
    return quarters_launch(prepared, queue, p->axis, &p->y, a->y, &parts, true);
}
