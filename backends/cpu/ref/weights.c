/* Reference entries of weights.h: norms, gates, pruning, block_gather. */
#include "ref.h"

#include <common/checked.h>
#include <common/philox.h>

/* The sum of x y over the kept elements of column k of two block arrays. */
static double column_dot(const bsk_layout_tables *t, const ref_view *x, const ref_view *y,
                         int64_t k)
{
    double sum = 0;
    const int64_t *start = t->col_start + k / t->block_cols;
    for (int64_t e = start[0]; e < start[1]; e++) {
        int64_t slot = t->col_slot[e];
        for (int64_t i = 0; i < slot_height(t, slot); i++)
            sum +=
                view_get3(x, slot, i, k % t->block_cols) * view_get3(y, slot, i, k % t->block_cols);
    }
    return sum;
}

REF_LAYOUT_OP(l2_normalize, l2_normalize)
{
    const ref_view w = view_of(&p->w, a->w), y = view_of(&p->y, a->y);
    const ref_view gain = view_of(&p->gain, a->gain), saved = view_of(&p->saved, a->saved);

    for (int64_t k = 0; k < t->cols; k++) {
        double s = column_dot(t, &w, &w, k);
        double g = view_given(&gain) ? view_get1(&gain, k) : 1;
        if (view_given(&saved))
            view_set1(&saved, k, s);
        const int64_t *start = t->col_start + k / t->block_cols;
        for (int64_t e = start[0]; e < start[1]; e++) {
            int64_t slot = t->col_slot[e], j = k % t->block_cols;
            for (int64_t i = 0; i < slot_height(t, slot); i++)
                view_set3(&y, slot, i, j,
                          g * view_get3(&w, slot, i, j) / sqrt(at_least(s, p->eps)));
        }
    }
}

REF_LAYOUT_OP(l2_normalize_grad, l2_normalize_grad)
{
    const ref_view dy = view_of(&p->dy, a->dy), w = view_of(&p->w, a->w);
    const ref_view dw = view_of(&p->dw, a->dw), saved = view_of(&p->saved, a->saved);
    const ref_view gain = view_of(&p->gain, a->gain), dgain = view_of(&p->dgain, a->dgain);

    for (int64_t k = 0; k < t->cols; k++) {
        double s = view_get1(&saved, k), length2 = at_least(s, p->eps), length = sqrt(length2);
        double g = view_given(&gain) ? view_get1(&gain, k) : 1;
        double dot = column_dot(t, &dy, &w, k); /* before dw, which may be dy, is written */
        double along = s < p->eps ? 0 : g * dot / length2;
        const int64_t *start = t->col_start + k / t->block_cols;
        for (int64_t e = start[0]; e < start[1]; e++) {
            int64_t slot = t->col_slot[e], j = k % t->block_cols;
            for (int64_t i = 0; i < slot_height(t, slot); i++) {
                double v = g * view_get3(&dy, slot, i, j) - along * view_get3(&w, slot, i, j);
                view_set3(&dw, slot, i, j,
                          a->alpha * v / length + view_scaled3(&dw, slot, i, j, a->beta));
            }
        }
        if (view_given(&dgain))
            view_set1(&dgain, k, a->alpha * dot / length + view_scaled1(&dgain, k, a->beta));
    }
}

static double block_squares(const bsk_layout_tables *t, const ref_view *w, int64_t slot)
{
    double sum = 0;
    for (int64_t i = 0; i < slot_height(t, slot); i++)
        for (int64_t j = 0; j < slot_width(t, slot); j++)
            sum += view_get3(w, slot, i, j) * view_get3(w, slot, i, j);
    return sum;
}

static double block_max(const bsk_layout_tables *t, const ref_view *w, int64_t slot)
{
    double max = 0;
    for (int64_t i = 0; i < slot_height(t, slot); i++)
        for (int64_t j = 0; j < slot_width(t, slot); j++) {
            double v = fabs(view_get3(w, slot, i, j));
            if (v > max || v != v)
                max = v;
        }
    return max;
}

REF_LAYOUT_OP(block_norm, block_norm)
{
    const ref_view w = view_of(&p->w, a->w), norm = view_of(&p->norm, a->norm);
    for (int64_t slot = 0; slot < t->nnz; slot++)
        view_set1(&norm, slot,
                  p->type == BSK_NORM_MAX ? block_max(t, &w, slot)
                                          : sqrt(block_squares(t, &w, slot)));
}

/* Whether block x comes after block y in the order of pruning: smaller norm, then higher slot. */
static bool prune_after(const ref_view *norm, int64_t x, int64_t y)
{
    double nx = view_get1(norm, x), ny = view_get1(norm, y);
    nx = nx != nx ? INFINITY : nx;
    ny = ny != ny ? INFINITY : ny;
    return nx != ny ? nx < ny : x > y;
}

/* Restores the heap below node i: every parent comes after its children. */
static void heap_sift(int64_t *heap, int64_t count, int64_t i, const ref_view *norm)
{
    for (int64_t child = 2 * i + 1; child < count; child = 2 * i + 1) {
        if (child + 1 < count && prune_after(norm, heap[child + 1], heap[child]))
            child++;
        if (!prune_after(norm, heap[child], heap[i]))
            return;
        int64_t swap = heap[i];
        heap[i] = heap[child];
        heap[child] = swap;
        i = child;
    }
}

/* Sorts the block numbers in order[0 .. count - 1], the largest norm first. */
static void prune_sort(int64_t *order, int64_t count, const ref_view *norm)
{
    for (int64_t i = count / 2 - 1; i >= 0; i--)
        heap_sift(order, count, i, norm);
    for (int64_t last = count - 1; last > 0; last--) {
        int64_t swap = order[0];
        order[0] = order[last];
        order[last] = swap;
        heap_sift(order, last, 0, norm);
    }
}

/* Room for the sorted block numbers. */
BSKI_CPU_PREPARE(ref_prune_sparsity)
{
    (void)device;
    const bsk_prune_params *p = prepared->problem->params;
    if (!bski_mul_size((size_t)p->norm.dims[0], sizeof(int64_t), &prepared->workspace_bytes))
        return BSK_E_NOMEM;
    return BSK_OK;
}

REF_OP(prune_sparsity, prune)
{
    const ref_view norm = view_of(&p->norm, a->norm), gate = view_of(&p->gate, a->gate);
    const int64_t count = p->norm.dims[0];
    const int64_t keep = (int64_t)round((double)count * (1 - a->value));
    int64_t *order = bsk_mem_address(a->workspace);
    for (int64_t i = 0; i < count; i++)
        order[i] = i;
    prune_sort(order, count, &norm);
    for (int64_t i = 0; i < count; i++)
        view_set1(&gate, order[i], i < keep);
}

REF_OP(prune_threshold, prune)
{
    const ref_view norm = view_of(&p->norm, a->norm), gate = view_of(&p->gate, a->gate);
    for (int64_t i = 0; i < p->norm.dims[0]; i++) {
        double v = view_get1(&norm, i);
        view_set1(&gate, i, v >= a->value || v != v);
    }
}

REF_LAYOUT_OP(block_l2_decay, block_l2_decay)
{
    const ref_view w = view_of(&p->w, a->w), gate = view_of(&p->gate, a->gate);
    for (int64_t slot = 0; slot < t->nnz; slot++) {
        if (view_given(&gate) && view_get1(&gate, slot) == 0)
            continue;
        double share = at_most(a->rate / sqrt(block_squares(t, &w, slot) + p->eps), 1);
        for (int64_t i = 0; i < slot_height(t, slot); i++)
            for (int64_t j = 0; j < slot_width(t, slot); j++) {
                double v = view_get3(&w, slot, i, j);
                view_set3(&w, slot, i, j, v - v * share);
            }
    }
}

static double concrete_temperature(double temperature)
{
    return temperature != 0 ? temperature : 2.0 / 3;
}

static double gate_clamp(double stretched)
{
    return at_most(at_least(stretched, 0), 1);
}

REF_OP(concrete_gate, concrete_gate)
{
    const ref_view loga = view_of(&p->loga, a->loga), gate = view_of(&p->gate, a->gate);
    const ref_view concrete = view_of(&p->concrete, a->concrete);
    const double temperature = concrete_temperature(a->temperature);

    for (int64_t i = 0; i < p->loga.dims[0]; i++) {
        double u = bski_philox_uniform(a->seed, a->offset, (uint64_t)i) * (1 - 2 * p->eps) + p->eps;
        double c = sigmoid((log(u) - log(1 - u) + view_get1(&loga, i)) / temperature);
        view_set1(&concrete, i, c);
        view_set1(&gate, i, gate_clamp(c * (p->limit_b - p->limit_a) + p->limit_a));
    }
}

REF_OP(concrete_gate_grad, concrete_gate_grad)
{
    const ref_view dgate = view_of(&p->dgate, a->dgate), dloga = view_of(&p->dloga, a->dloga);
    const ref_view concrete = view_of(&p->concrete, a->concrete);
    const double temperature = concrete_temperature(a->temperature);
    const double range = p->limit_b - p->limit_a;

    for (int64_t i = 0; i < p->dgate.dims[0]; i++) {
        double c = view_get1(&concrete, i), stretched = c * range + p->limit_a, d = 0;
        if (!(stretched < 0 || stretched > 1))
            d = view_get1(&dgate, i) * range * c * (1 - c) / temperature;
        view_set1(&dloga, i, a->alpha * d + view_scaled1(&dloga, i, a->beta));
    }
}

REF_OP(concrete_gate_infer, concrete_gate_infer)
{
    const ref_view loga = view_of(&p->loga, a->loga), gate = view_of(&p->gate, a->gate);
    for (int64_t i = 0; i < p->loga.dims[0]; i++) {
        double c = sigmoid(view_get1(&loga, i));
        view_set1(&gate, i, gate_clamp(c * (p->limit_b - p->limit_a) + p->limit_a));
    }
}

/* Bits move unchanged, NaN payloads included. */
REF_OP(block_gather, block_gather)
{
    const ref_view index = view_of(&p->index, a->index);
    const char *x = bsk_mem_address(a->x);
    char *y = bsk_mem_address(a->y);
    const size_t block_bytes = (size_t)(p->y.dims[1] * p->y.dims[2]) * bsk_dtype_size(p->y.dtype);

    for (int64_t i = 0; block_bytes && i < p->y.dims[0]; i++) {
        int64_t source = view_get_int(&index, i);
        if (source >= 0 && source < p->x.dims[0])
            memcpy(y + (size_t)i * block_bytes, x + (size_t)source * block_bytes, block_bytes);
        else
            memset(y + (size_t)i * block_bytes, 0, block_bytes);
    }
}
