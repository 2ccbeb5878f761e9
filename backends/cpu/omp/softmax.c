/* The dense softmax and its gradient. A row is read once, and stays in the first-level cache. */
#include "dense.h"
#include "rank.h"
#include "walk.h"

/* --- masked_softmax --------------------------------------------------------------------------- */

OMP_DECLARE(masked_softmax);
OMP_PREPARE_NONE(masked_softmax)

OMP_ACCEPT(masked_softmax)
{
    const bsk_masked_softmax_params *p = problem->params;
    const int32_t last = p->x.rank - 1;
    (void)props;
    if (p->k > RANKS || p->x.dims[last] > UINT32_MAX)
        return BSK_REFUSE_LIMIT;
    if (!is_narrow(&p->x) || !is_narrow(&p->y) || !is_narrow(&p->mask))
        return BSK_REFUSE_DTYPE;
    return axis_contiguous(&p->x, last) && axis_contiguous(&p->y, last) &&
                   axis_contiguous(&p->mask, last)
               ? BSK_ACCEPT
               : BSK_REFUSE_STRIDE;
}

/* A row of scale * mask * x, by pieces of up to ROW elements. Those that rank below kth take no
 * part. */
typedef struct softmax_row {
    const bsk_masked_softmax_params *p;
    const void *x, *mask;
    int64_t x_at, mask_at, count;
    float scale;
    rank_key kth;
} softmax_row;

static void mask_load(const softmax_row *r, int64_t i, int64_t count, float *restrict mask)
{
    row_load_f32(mask, r->p->mask.dtype, r->mask, r->mask_at + i, count);
}

/* What the mask excludes becomes -infinity, as does the padding. */
static void softmax_load(const softmax_row *r, int64_t i, int64_t count, float *restrict row)
{
    float mask[ROW];
    row_load_f32(row, r->p->x.dtype, r->x, r->x_at + i, count);
    if (r->p->mask.dtype != BSK_NONE) {
        mask_load(r, i, count, mask);
        for (int64_t k = 0; k < count; k++)
            row[k] = mask[k] == 0 ? -INFINITY : row[k] * (mask[k] * r->scale);
    } else if (r->scale != 1) {
        for (int64_t k = 0; k < count; k++)
            row[k] *= r->scale;
    }
    row_pad(row, count, -INFINITY);
}

/* The same of what ranks below kth. */
static void softmax_select(const softmax_row *r, int64_t i, int64_t count, float *restrict row)
{
    for (int64_t k = 0; r->kth && k < count; k++)
        row[k] = rank_of(row[k], i + k) < r->kth ? -INFINITY : row[k];
}

/* Elements that take no part are 0 even where the others are not numbers. */
static void softmax_clear(const softmax_row *r, int64_t i, int64_t count, float *restrict row)
{
    const bool masked = r->p->mask.dtype != BSK_NONE;
    float value[ROW], mask[ROW];
    softmax_load(r, i, count, value);
    if (masked)
        mask_load(r, i, count, mask);
    for (int64_t k = 0; k < count; k++)
        if ((masked && mask[k] == 0) || rank_of(value[k], i + k) < r->kth)
            row[k] = 0;
}

/* The k-th largest element that takes part, or the last one; 0: there is none. */
static rank_key softmax_kth(const softmax_row *r)
{
    const bool masked = r->p->mask.dtype != BSK_NONE;
    rank_heap h = {.count = 0, .limit = r->p->k};
    float row[ROW], mask[ROW];
    for (int64_t i = 0; i < r->count; i += ROW) {
        const int64_t count = min_i64(ROW, r->count - i);
        softmax_load(r, i, count, row);
        if (masked)
            mask_load(r, i, count, mask);
        heap_add_row(&h, row, masked ? mask : NULL, i, count);
    }
    return h.count ? h.key[0] : 0;
}

static void softmax_line(const softmax_row *r, void *y, int64_t at, bool stream)
{
    const bool whole = r->count <= ROW;
    float row[ROW], max = -INFINITY;
    double sum = 0;

    for (int64_t i = 0; i < r->count; i += ROW) {
        const int64_t count = min_i64(ROW, r->count - i);
        softmax_load(r, i, count, row);
        softmax_select(r, i, count, row);
        max = row_max(row, count, max);
    }
    if (max == -INFINITY) /* the sum tells an empty row from one that holds NaN */
        max = 0;
    for (int64_t i = 0; i < r->count; i += ROW) {
        const int64_t count = min_i64(ROW, r->count - i);
        if (!whole) {
            softmax_load(r, i, count, row);
            softmax_select(r, i, count, row);
        }
        sum += (double)row_exp(row, count, max);
    }
    const float inverse = sum == 0 ? 0 : (float)(1 / sum);
    for (int64_t i = 0; i < r->count; i += ROW) {
        const int64_t count = min_i64(ROW, r->count - i);
        if (!whole) {
            softmax_load(r, i, count, row);
            softmax_select(r, i, count, row);
            row_exp(row, count, max);
        }
        EACH_VECTOR(k, count) store_f32(row + k, inverse * load_f32(row + k));
        if (sum != sum)
            softmax_clear(r, i, count, row);
        row_put(row, r->p->y.dtype, y, at + i, count, stream);
    }
}

OMP_LAUNCH(masked_softmax)
{
    const bsk_masked_softmax_params *p = prepared->problem->params;
    const bsk_masked_softmax_args *a = args;
    const bsk_tensor *const tensors[] = {&p->y, &p->x, &p->mask};
    walk w;

    walk_lines(&w, tensors, 3);
    const bool stream = streams(p->y.dtype, w.rows, w.inner);
#pragma omp parallel num_threads(queue_threads(queue))
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < w.rows; i++) {
            int64_t at[WALK_TENSORS];
            walk_row(&w, i, at);
            softmax_row r = {.p = p,
                             .x = bsk_mem_address(a->x),
                             .mask = bsk_mem_address(a->mask),
                             .x_at = at[1],
                             .mask_at = at[2],
                             .count = w.inner,
                             .scale = a->scale != 0 ? (float)a->scale : 1};
            if (p->k)
                r.kth = softmax_kth(&r);
            softmax_line(&r, bsk_mem_address(a->y), at[0], stream);
        }
        stream_fence();
    }
    return BSK_OK;
}

/* --- masked_softmax_grad ---------------------------------------------------------------------- */

OMP_DECLARE(masked_softmax_grad);
OMP_PREPARE_NONE(masked_softmax_grad)

OMP_ACCEPT(masked_softmax_grad)
{
    const bsk_masked_softmax_grad_params *p = problem->params;
    const bsk_tensor *const tensors[] = {&p->dy, &p->y, &p->dx, &p->mask};
    (void)props;
    for (int i = 0; i < 4; i++) {
        if (!is_narrow(tensors[i]))
            return BSK_REFUSE_DTYPE;
        if (!axis_contiguous(tensors[i], p->dy.rank - 1))
            return BSK_REFUSE_STRIDE;
    }
    return BSK_ACCEPT;
}

/* One row; at: of dx, dy, y and mask. */
static void softmax_grad_line(const bsk_masked_softmax_grad_params *p,
                              const bsk_masked_softmax_grad_args *a, const int64_t *at,
                              int64_t length, bool stream)
{
    const float scale = (float)(a->alpha * (a->scale != 0 ? a->scale : 1));
    const bool whole = length <= ROW, masked = p->mask.dtype != BSK_NONE;
    void *dx = bsk_mem_address(a->dx);
    float dy[ROW], y[ROW], mask[CHUNK];
    double dot = 0;

    for (int pass = 0; pass < 2; pass++) {
        const float sum = (float)dot;
        for (int64_t i = 0; i < length; i += ROW) {
            const int64_t count = min_i64(ROW, length - i);
            if (!pass || !whole) {
                row_load_padded(dy, p->dy.dtype, bsk_mem_address(a->dy), at[1] + i, count, 0);
                row_load_padded(y, p->y.dtype, bsk_mem_address(a->y), at[2] + i, count, 0);
                for (int64_t k = 0; k < count; k++)
                    dy[k] = y[k] != 0 ? dy[k] : 0;
            }
            if (!pass) {
                dot += (double)row_dot(dy, y, count);
                continue;
            }
            for (int64_t k = 0; k < count; k++)
                dy[k] = y[k] != 0 ? (dy[k] - sum) * y[k] * scale : 0;
            for (int64_t from = 0; masked && from < count; from += CHUNK) {
                const int64_t part = min_i64(CHUNK, count - from);
                row_load_f32(mask, p->mask.dtype, bsk_mem_address(a->mask), at[3] + i + from, part);
                for (int64_t k = 0; k < part; k++)
                    dy[from + k] = y[from + k] != 0 ? dy[from + k] * mask[k] : 0;
            }
            row_blend(dy, 1, a->beta, p->dx.dtype, dx, at[0] + i, count);
            row_put(dy, p->dx.dtype, dx, at[0] + i, count, stream);
        }
    }
}

OMP_LAUNCH(masked_softmax_grad)
{
    const bsk_masked_softmax_grad_params *p = prepared->problem->params;
    const bsk_masked_softmax_grad_args *a = args;
    const bsk_tensor *const tensors[] = {&p->dx, &p->dy, &p->y, &p->mask};
    walk w;

    walk_lines(&w, tensors, 4);
    const bool stream = a->beta == 0 && streams(p->dx.dtype, w.rows, w.inner);
#pragma omp parallel num_threads(queue_threads(queue))
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < w.rows; i++) {
            int64_t at[WALK_TENSORS];
            walk_row(&w, i, at);
            softmax_grad_line(p, a, at, w.inner, stream);
        }
        stream_fence();
    }
    return BSK_OK;
}
