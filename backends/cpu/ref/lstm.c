/* Reference entries of lstm.h. */
#include "ref.h"

enum { GATE_I, GATE_U, GATE_F, GATE_O, GATES };

/* Quarter number q of a tensor of four times the features, as [N, K]. */
static ref_view quarter(const ref_view *rows, int64_t features, int q)
{
    ref_view v = *rows;
    v.base += q * features * v.stride[1];
    return v;
}

/* The gates as four tensors [N, K], whichever way they are given. */
static void gates_of(ref_view gates[GATES], const bsk_tensor *merged, bsk_mem merged_mem,
                     const bsk_tensor *const split[GATES], const bsk_mem *const split_mem[GATES],
                     bsk_axis axis, int64_t features)
{
    const ref_view whole = view_rows(merged, merged_mem, axis);
    for (int g = 0; g < GATES; g++)
        gates[g] = view_given(&whole) ? quarter(&whole, features, g)
                                      : view_rows(split[g], *split_mem[g], axis);
}

/* The activated gates of one element. */
typedef struct cell {
    double i, u, f, o;
} cell;

static cell cell_of(const ref_view gates[GATES], const ref_view *bias, int64_t features, int64_t n,
                    int64_t k, double forget_bias)
{
    double v[GATES];
    for (int g = 0; g < GATES; g++)
        v[g] =
            view_get2(&gates[g], n, k) + (view_given(bias) ? view_get1(bias, g * features + k) : 0);
    return (cell){sigmoid(v[GATE_I]), tanh(v[GATE_U]), sigmoid(v[GATE_F] + forget_bias),
                  sigmoid(v[GATE_O])};
}

REF_OP(lstm_gates, lstm_gates)
{
    const ref_view c = view_rows(&p->c, a->c, p->axis);
    const ref_view c_next = view_rows(&p->c_next, a->c_next, p->axis);
    const ref_view h_next = view_rows(&p->h_next, a->h_next, p->axis);
    const ref_view bias = view_of(&p->bias, a->bias);
    const bsk_tensor *const split[GATES] = {&p->i, &p->u, &p->f, &p->o};
    const bsk_mem *const split_mem[GATES] = {&a->i, &a->u, &a->f, &a->o};
    const int64_t features = features_count(&p->c, p->axis);
    ref_view gates[GATES];
    gates_of(gates, &p->gates, a->gates, split, split_mem, p->axis, features);

    for (int64_t n = 0; n < rows_count(&p->c, p->axis); n++)
        for (int64_t k = 0; k < features; k++) {
            const cell s = cell_of(gates, &bias, features, n, k, a->forget_bias);
            const double next = s.f * view_get2(&c, n, k) + s.i * s.u;
            view_set2(&c_next, n, k, next);
            view_set2(&h_next, n, k, s.o * tanh(next));
        }
}

REF_OP(lstm_gates_grad, lstm_gates_grad)
{
    const ref_view dh = view_rows(&p->dh, a->dh, p->axis), c = view_rows(&p->c, a->c, p->axis);
    const ref_view dc_next = view_rows(&p->dc_next, a->dc_next, p->axis);
    const ref_view dc = view_rows(&p->dc, a->dc, p->axis), bias = view_of(&p->bias, a->bias);
    const bsk_tensor *const split[GATES] = {&p->i, &p->u, &p->f, &p->o};
    const bsk_mem *const split_mem[GATES] = {&a->i, &a->u, &a->f, &a->o};
    const bsk_tensor *const dsplit[GATES] = {&p->di, &p->du, &p->df, &p->do_};
    const bsk_mem *const dsplit_mem[GATES] = {&a->di, &a->du, &a->df, &a->do_};
    const int64_t features = features_count(&p->c, p->axis);
    ref_view gates[GATES], dgates[GATES];
    gates_of(gates, &p->gates, a->gates, split, split_mem, p->axis, features);
    gates_of(dgates, &p->dgates, a->dgates, dsplit, dsplit_mem, p->axis, features);

    for (int64_t n = 0; n < rows_count(&p->c, p->axis); n++)
        for (int64_t k = 0; k < features; k++) {
            const cell s = cell_of(gates, &bias, features, n, k, a->forget_bias);
            const double old = view_get2(&c, n, k), t = tanh(s.f * old + s.i * s.u);
            const double upper = view_get2(&dh, n, k);
            double d = upper * s.o * (1 - t * t);
            if (view_given(&dc_next))
                d += view_get2(&dc_next, n, k);
            const double grads[GATES] = {d * s.u * s.i * (1 - s.i), d * s.i * (1 - s.u * s.u),
                                         d * old * s.f * (1 - s.f), upper * t * s.o * (1 - s.o)};
            for (int g = 0; g < GATES; g++)
                view_set2(&dgates[g], n, k,
                          a->alpha * grads[g] + view_scaled2(&dgates[g], n, k, a->beta));
            if (view_given(&dc))
                view_set2(&dc, n, k, a->alpha * d * s.f + view_scaled2(&dc, n, k, a->beta));
        }
}

/* [N, K] from one tensor to another. */
static void copy_rows(const ref_view *from, const ref_view *to, int64_t rows, int64_t features)
{
    for (int64_t n = 0; n < rows; n++)
        for (int64_t k = 0; k < features; k++)
            view_set2(to, n, k, view_get2(from, n, k));
}

REF_OP(split4, split4)
{
    const ref_view x = view_rows(&p->x, a->x, p->axis);
    const bsk_tensor *const split[GATES] = {&p->y0, &p->y1, &p->y2, &p->y3};
    const bsk_mem *const split_mem[GATES] = {&a->y0, &a->y1, &a->y2, &a->y3};
    const int64_t features = features_count(&p->y0, p->axis);
    for (int q = 0; q < GATES; q++) {
        const ref_view from = quarter(&x, features, q);
        const ref_view to = view_rows(split[q], *split_mem[q], p->axis);
        copy_rows(&from, &to, rows_count(&p->x, p->axis), features);
    }
}

REF_OP(concat4, concat4)
{
    const ref_view y = view_rows(&p->y, a->y, p->axis);
    const bsk_tensor *const split[GATES] = {&p->x0, &p->x1, &p->x2, &p->x3};
    const bsk_mem *const split_mem[GATES] = {&a->x0, &a->x1, &a->x2, &a->x3};
    const int64_t features = features_count(&p->x0, p->axis);
    for (int q = 0; q < GATES; q++) {
        const ref_view from = view_rows(split[q], *split_mem[q], p->axis);
        const ref_view to = quarter(&y, features, q);
        copy_rows(&from, &to, rows_count(&p->y, p->axis), features);
    }
}
