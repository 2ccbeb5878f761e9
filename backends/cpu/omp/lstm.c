/* LSTM cells, and splitting and joining their gates. */
#include "dense.h"

enum { GATE_I, GATE_U, GATE_F, GATE_O, GATES };

/* The gates or their gradients: merged, or split into four tensors. */
typedef struct gate_set {
    const bsk_tensor *merged, *split[GATES];
    bsk_mem merged_mem, split_mem[GATES];
} gate_set;

/* One gate's memory, and the index of a piece of its rows. */
typedef struct gate_at {
    bsk_dtype type;
    void *data;
    int64_t at;
} gate_at;

static gate_at gate_of(const gate_set *s, const act_shape *shape, int gate, int64_t outer,
                       int64_t inner)
{
    if (s->merged->dtype == BSK_NONE)
        return (gate_at){s->split[gate]->dtype, bsk_mem_address(s->split_mem[gate]),
                         row_at(s->split[gate], shape, outer, inner)};
    if (shape->features_inner)
        inner += gate * shape->inner;
    else
        outer += gate * shape->outer;
    return (gate_at){s->merged->dtype, bsk_mem_address(s->merged_mem),
                     row_at(s->merged, shape, outer, inner)};
}

/* Whether matrices and sets of gates are served, and their contiguous axis. */
static bsk_reason cell_axis(const bsk_tensor *const *tensors, int count, int32_t *axis)
{
    *axis = common_axis(tensors, count);
    for (int i = 0; i < count; i++)
        if (!is_narrow(tensors[i]))
            return BSK_REFUSE_DTYPE;
    return *axis < 0 ? BSK_REFUSE_STRIDE : BSK_ACCEPT;
}

/* Activated gates of a piece of a row, padding included. */
typedef struct cell {
    float gate[GATES][CHUNK];
} cell;

static void cell_load(cell *v, const gate_set *s, const act_shape *shape, const float *bias,
                      double forget_bias, int64_t outer, int64_t inner, int64_t count)
{
    for (int g = 0; g < GATES; g++) {
        const gate_at from = gate_of(s, shape, g, outer, inner);
        const float extra = g == GATE_F ? (float)forget_bias : 0;
        float *restrict row = v->gate[g];
        row_load_padded(row, from.type, from.data, from.at, count, 0);
        if (bias && shape->features_inner)
            for (int64_t i = 0; i < count; i++)
                row[i] += bias[g * shape->inner + inner + i];
        else if (bias)
            for (int64_t i = 0; i < count; i++)
                row[i] += bias[g * shape->outer + outer];
        EACH_VECTOR(i, count)
        {
            const vec_f32 x = load_f32(row + i) + extra;
            store_f32(row + i, g == GATE_U ? tanh_f32(x) : sigmoid_f32(x));
        }
    }
}

/* --- lstm_gates ------------------------------------------------------------------------------- */

OMP_DECLARE(lstm_gates);
OMP_PREPARE_NONE(lstm_gates)

static bsk_reason lstm_axis(const bsk_lstm_gates_params *p, int32_t *axis)
{
    const bsk_tensor *const tensors[] = {&p->c, &p->c_next, &p->h_next, &p->gates,
                                         &p->i, &p->u,      &p->f,      &p->o};
    return cell_axis(tensors, 8, axis);
}

OMP_ACCEPT(lstm_gates)
{
    int32_t axis;
    (void)props;
    return lstm_axis(problem->params, &axis);
}

OMP_LAUNCH(lstm_gates)
{
    const bsk_lstm_gates_params *p = prepared->problem->params;
    const bsk_lstm_gates_args *a = args;
    const gate_set gates = {
        &p->gates, {&p->i, &p->u, &p->f, &p->o}, a->gates, {a->i, a->u, a->f, a->o}};
    int32_t axis;
    lstm_axis(p, &axis);
    const act_shape s = act_shape_of(&p->c, p->axis, axis);
    const float *bias = p->bias.dtype != BSK_NONE ? bsk_mem_address(a->bias) : NULL;
    const int64_t parts = bski_ceil_div(s.inner, CHUNK);

#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t n = 0; n < s.outer * parts; n++) {
        const int64_t outer = n / parts, inner = n % parts * CHUNK;
        const int64_t count = min_i64(CHUNK, s.inner - inner);
        float c[CHUNK], h[CHUNK];
        cell v;
        cell_load(&v, &gates, &s, bias, a->forget_bias, outer, inner, count);
        row_load_padded(c, p->c.dtype, bsk_mem_address(a->c), row_at(&p->c, &s, outer, inner),
                        count, 0);
        EACH_VECTOR(i, count)
        {
            const vec_f32 next = load_f32(v.gate[GATE_F] + i) * load_f32(c + i) +
                                 load_f32(v.gate[GATE_I] + i) * load_f32(v.gate[GATE_U] + i);
            store_f32(c + i, next);
            store_f32(h + i, load_f32(v.gate[GATE_O] + i) * tanh_f32(next));
        }
        row_store_f32(c, p->c_next.dtype, bsk_mem_address(a->c_next),
                      row_at(&p->c_next, &s, outer, inner), count);
        row_store_f32(h, p->h_next.dtype, bsk_mem_address(a->h_next),
                      row_at(&p->h_next, &s, outer, inner), count);
    }
    return BSK_OK;
}

/* --- lstm_gates_grad -------------------------------------------------------------------------- */

OMP_DECLARE(lstm_gates_grad);
OMP_PREPARE_NONE(lstm_gates_grad)

static bsk_reason lstm_grad_axis(const bsk_lstm_gates_grad_params *p, int32_t *axis)
{
    const bsk_tensor *const tensors[] = {&p->c,  &p->dh, &p->dc_next, &p->dc, &p->gates,
                                         &p->i,  &p->u,  &p->f,       &p->o,  &p->dgates,
                                         &p->di, &p->du, &p->df,      &p->do_};
    return cell_axis(tensors, 14, axis);
}

OMP_ACCEPT(lstm_gates_grad)
{
    int32_t axis;
    (void)props;
    return lstm_grad_axis(problem->params, &axis);
}

/* The gates become their gradients, d, the gradient of c_next, that of c. */
static void cell_grad(cell *v, const float *dh, const float *c, float *d, int64_t count)
{
    EACH_VECTOR(k, count)
    {
        const vec_f32 i = load_f32(v->gate[GATE_I] + k), u = load_f32(v->gate[GATE_U] + k);
        const vec_f32 f = load_f32(v->gate[GATE_F] + k), o = load_f32(v->gate[GATE_O] + k);
        const vec_f32 old = load_f32(c + k), upper = load_f32(dh + k);
        const vec_f32 t = tanh_f32(f * old + i * u);
        const vec_f32 all = upper * o * (1.0f - t * t) + load_f32(d + k);
        store_f32(v->gate[GATE_I] + k, all * u * i * (1.0f - i));
        store_f32(v->gate[GATE_U] + k, all * i * (1.0f - u * u));
        store_f32(v->gate[GATE_F] + k, all * old * f * (1.0f - f));
        store_f32(v->gate[GATE_O] + k, upper * t * o * (1.0f - o));
        store_f32(d + k, all * f);
    }
}

OMP_LAUNCH(lstm_gates_grad)
{
    const bsk_lstm_gates_grad_params *p = prepared->problem->params;
    const bsk_lstm_gates_grad_args *a = args;
    const gate_set gates = {
        &p->gates, {&p->i, &p->u, &p->f, &p->o}, a->gates, {a->i, a->u, a->f, a->o}};
    const gate_set dgates = {
        &p->dgates, {&p->di, &p->du, &p->df, &p->do_}, a->dgates, {a->di, a->du, a->df, a->do_}};
    int32_t axis;
    lstm_grad_axis(p, &axis);
    const act_shape s = act_shape_of(&p->c, p->axis, axis);
    const float *bias = p->bias.dtype != BSK_NONE ? bsk_mem_address(a->bias) : NULL;
    const int64_t parts = bski_ceil_div(s.inner, CHUNK);

#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t n = 0; n < s.outer * parts; n++) {
        const int64_t outer = n / parts, inner = n % parts * CHUNK;
        const int64_t count = min_i64(CHUNK, s.inner - inner);
        float c[CHUNK], dh[CHUNK], d[CHUNK] = {0};
        cell v;
        cell_load(&v, &gates, &s, bias, a->forget_bias, outer, inner, count);
        row_load_padded(c, p->c.dtype, bsk_mem_address(a->c), row_at(&p->c, &s, outer, inner),
                        count, 0);
        row_load_padded(dh, p->dh.dtype, bsk_mem_address(a->dh), row_at(&p->dh, &s, outer, inner),
                        count, 0);
        if (p->dc_next.dtype != BSK_NONE)
            row_load_f32(d, p->dc_next.dtype, bsk_mem_address(a->dc_next),
                         row_at(&p->dc_next, &s, outer, inner), count);
        cell_grad(&v, dh, c, d, count);
        for (int g = 0; g < GATES; g++) {
            const gate_at to = gate_of(&dgates, &s, g, outer, inner);
            row_blend(v.gate[g], a->alpha, a->beta, to.type, to.data, to.at, count);
            row_store_f32(v.gate[g], to.type, to.data, to.at, count);
        }
        if (p->dc.dtype != BSK_NONE) {
            void *dc = bsk_mem_address(a->dc);
            const int64_t at = row_at(&p->dc, &s, outer, inner);
            row_blend(d, a->alpha, a->beta, p->dc.dtype, dc, at, count);
            row_store_f32(d, p->dc.dtype, dc, at, count);
        }
    }
    return BSK_OK;
}

/* --- split4, concat4 -------------------------------------------------------------------------- */

/* Between a merged matrix and its quarters, in either direction. */
static void quarters_copy(const gate_set *s, bsk_axis axis, int32_t contiguous, bool split,
                          int threads)
{
    const act_shape shape = act_shape_of(s->split[0], axis, contiguous);
    const gate_set whole = {.merged = s->merged, .merged_mem = s->merged_mem};
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t n = 0; n < shape.outer * GATES; n++) {
        const int q = (int)(n % GATES);
        const gate_at all = gate_of(&whole, &shape, q, n / GATES, 0);
        const gate_at part = {s->split[q]->dtype, bsk_mem_address(s->split_mem[q]),
                              row_at(s->split[q], &shape, n / GATES, 0)};
        const gate_at *from = split ? &all : &part, *to = split ? &part : &all;
        row_convert(from->type, from->data, from->at, to->type, to->data, to->at, shape.inner);
    }
}

OMP_DECLARE(split4);
OMP_PREPARE_NONE(split4)

static int32_t split4_axis(const bsk_split4_params *p)
{
    const bsk_tensor *const tensors[] = {&p->x, &p->y0, &p->y1, &p->y2, &p->y3};
    return common_axis(tensors, 5);
}

OMP_ACCEPT(split4)
{
    (void)props;
    return split4_axis(problem->params) < 0 ? BSK_REFUSE_STRIDE : BSK_ACCEPT;
}

OMP_LAUNCH(split4)
{
    const bsk_split4_params *p = prepared->problem->params;
    const bsk_split4_args *a = args;
    const gate_set s = {
        &p->x, {&p->y0, &p->y1, &p->y2, &p->y3}, a->x, {a->y0, a->y1, a->y2, a->y3}};
    quarters_copy(&s, p->axis, split4_axis(p), true, queue_threads(queue));
    return BSK_OK;
}

OMP_DECLARE(concat4);
OMP_PREPARE_NONE(concat4)

static int32_t concat4_axis(const bsk_concat4_params *p)
{
    const bsk_tensor *const tensors[] = {&p->y, &p->x0, &p->x1, &p->x2, &p->x3};
    return common_axis(tensors, 5);
}

OMP_ACCEPT(concat4)
{
    (void)props;
    return concat4_axis(problem->params) < 0 ? BSK_REFUSE_STRIDE : BSK_ACCEPT;
}

OMP_LAUNCH(concat4)
{
    const bsk_concat4_params *p = prepared->problem->params;
    const bsk_concat4_args *a = args;
    const gate_set s = {
        &p->y, {&p->x0, &p->x1, &p->x2, &p->x3}, a->y, {a->x0, a->x1, a->x2, a->x3}};
    quarters_copy(&s, p->axis, concat4_axis(p), false, queue_threads(queue));
    return BSK_OK;
}
