/* Functions of two numbers with repetition, their gradients, sums, and filters. */
#include "walk.h"

/* --- binary ----------------------------------------------------------------------------------- */

OMP_WALK(binary, &p->z, &p->x, &p->y)

/* NaN if either is. */
OMP_INLINE float larger_of(float x, float y)
{
    const float larger = x > y ? x : y;
    return x != x ? x : larger;
}

/* x[i] = expression of x[i] and y[i]. */
#define PAIRS_OF(expression)                                                                       \
    for (int64_t i = 0; i < count; i++)                                                            \
        x[i] = expression;                                                                         \
    break

static void binary_row(bsk_binary_kind kind, float *restrict x, const float *restrict y,
                       int64_t count)
{
    switch (kind) {
    case BSK_BINARY_ADD:
        PAIRS_OF(x[i] + y[i]);
    case BSK_BINARY_SUB:
        PAIRS_OF(x[i] - y[i]);
    case BSK_BINARY_MUL:
        PAIRS_OF(x[i] * y[i]);
    case BSK_BINARY_DIV:
        PAIRS_OF(x[i] / y[i]);
    case BSK_BINARY_MAX:
        PAIRS_OF(larger_of(x[i], y[i]));
    default: /* BSK_BINARY_MIN */
        PAIRS_OF(-larger_of(-x[i], -y[i]));
    }
}

OMP_LAUNCH(binary)
{
    const bsk_binary_params *p = prepared->problem->params;
    const bsk_binary_args *a = args;
    walk w;

    binary_walk(p, &w);
    const bool stream = streams(p->z.dtype, w.rows, w.inner);
#pragma omp parallel num_threads(queue_threads(queue))
    {
        float x[CHUNK], y[CHUNK];
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < walk_pieces(&w); i++) {
            const walk_piece at = walk_at(&w, i);
            walk_load(&w, &at, 1, p->x.dtype, bsk_mem_address(a->x), x);
            walk_load(&w, &at, 2, p->y.dtype, bsk_mem_address(a->y), y);
            binary_row(p->kind, x, y, at.count);
            row_put(x, p->z.dtype, bsk_mem_address(a->z), at.at[0], at.count, stream);
        }
        stream_fence();
    }
    return BSK_OK;
}

/* --- binary_grad ------------------------------------------------------------------------------ */

OMP_DECLARE(binary_grad);

/* One gradient. The walk over dz, x, y and the gradient falls into its elements, in `items` of at
 * most CHUNK, and the dimensions that it sums over, in `units`. Units are summed in bands; how many
 * depends on the sizes only. */
typedef struct reduction {
    walk w;
    bool along; /* the rows are summed over, not kept */
    bool kept[BSK_MAX_RANK];
    int64_t parts, items, units, bands, elements;
} reduction;

enum { GRAD_DZ, GRAD_X, GRAD_Y, GRAD_OUT, GRAD_TENSORS };
enum { REDUCE_BANDS = 64, REDUCE_UNITS = 16, REDUCE_ITEMS = 256 };

static bool reduction_make(reduction *r, const bsk_binary_grad_params *p, const bsk_tensor *out)
{
    const bsk_tensor *const tensors[GRAD_TENSORS] = {&p->dz, &p->x, &p->y, out};
    walk *w = &r->w;
    if (!walk_make(w, tensors, GRAD_TENSORS))
        return false;
    r->along = w->inner > 1 && w->step[GRAD_OUT] == 0;
    r->parts = bski_ceil_div(w->inner, CHUNK);
    r->items = r->along ? 1 : r->parts;
    r->units = r->along ? r->parts : 1;
    r->elements = r->along ? 1 : w->inner;
    for (int32_t d = 0; d < w->rank; d++) {
        r->kept[d] = w->strides[GRAD_OUT][d] != 0;
        *(r->kept[d] ? &r->items : &r->units) *= w->dims[d];
        r->elements *= r->kept[d] ? w->dims[d] : 1;
    }
    r->bands = 1;
    if (r->items < REDUCE_ITEMS)
        r->bands = max_i64(1, min_i64(REDUCE_BANDS, r->units / REDUCE_UNITS));
    return true;
}

/* Where a unit of an item lies in each tensor. */
static walk_piece reduction_at(const reduction *r, int64_t item, int64_t unit)
{
    const walk *w = &r->w;
    int64_t *part = r->along ? &unit : &item;
    const int64_t first = *part % r->parts * CHUNK;
    walk_piece p = {.count = min_i64(CHUNK, w->inner - first)};
    *part /= r->parts;
    for (int32_t t = 0; t < GRAD_TENSORS; t++)
        p.at[t] = first * w->step[t];
    for (int32_t d = w->rank - 1; d >= 0; d--) {
        int64_t *rest = r->kept[d] ? &item : &unit;
        for (int32_t t = 0; t < GRAD_TENSORS; t++)
            p.at[t] += *rest % w->dims[d] * w->strides[t][d];
        *rest /= w->dims[d];
    }
    return p;
}

/* The number of an item's first element among the gradient's. */
static int64_t reduction_element(const reduction *r, int64_t item)
{
    return r->along ? item : item / r->parts * r->w.inner + item % r->parts * CHUNK;
}

static bool reduction_bytes(const reduction *r, size_t *bytes)
{
    return bski_mul_size((size_t)r->elements, (size_t)r->bands * sizeof(float), bytes);
}

OMP_ACCEPT(binary_grad)
{
    const bsk_binary_grad_params *p = problem->params;
    const bsk_tensor *const tensors[] = {&p->dz, &p->x, &p->y, &p->dx, &p->dy};
    reduction r;
    (void)props;
    for (int i = 0; i < 5; i++)
        if (!is_narrow(tensors[i]))
            return BSK_REFUSE_DTYPE;
    for (int32_t d = 0; d < p->dz.rank; d++)
        if (p->dz.dims[d] == 0)
            return BSK_REFUSE_SHAPE;
    for (int i = 3; i < 5; i++)
        if (tensors[i]->dtype != BSK_NONE && !reduction_make(&r, p, tensors[i]))
            return BSK_REFUSE_STRIDE;
    return BSK_ACCEPT;
}

/* Workspace: the sums of the bands, for one gradient at a time. */
OMP_PREPARE(binary_grad)
{
    const bsk_binary_grad_params *p = prepared->problem->params;
    const bsk_tensor *const outs[] = {&p->dx, &p->dy};
    reduction r;
    (void)device;
    for (int i = 0; i < 2; i++) {
        size_t bytes = 0;
        if (outs[i]->dtype == BSK_NONE || !reduction_make(&r, p, outs[i]) || r.bands == 1)
            continue;
        if (!reduction_bytes(&r, &bytes))
            return BSK_E_UNSUPPORTED;
        if (bytes > prepared->workspace_bytes)
            prepared->workspace_bytes = bytes;
    }
    return BSK_OK;
}

/* What x gets where max takes x or y; for min both change their signs. */
OMP_INLINE float larger_share(float x, float y)
{
    return x > y ? 1 : x < y ? 0 : x == y ? 0.5f : NAN;
}

#define SLOPES_OF(expression)                                                                      \
    for (int64_t i = 0; i < count; i++)                                                            \
        dz[i] *= expression;                                                                       \
    break

/* dz = dz times the derivative by x, or by y. */
static void slope_row(bsk_binary_kind kind, bool of_x, float *restrict dz, const float *restrict x,
                      const float *restrict y, int64_t count)
{
    const float sign = kind == BSK_BINARY_MIN ? -1 : 1;
    switch (kind) {
    case BSK_BINARY_ADD:
        break;
    case BSK_BINARY_SUB:
        SLOPES_OF((of_x ? 1 : -1));
    case BSK_BINARY_MUL:
        SLOPES_OF((of_x ? y[i] : x[i]));
    case BSK_BINARY_DIV:
        SLOPES_OF((of_x ? 1 / y[i] : -(x[i] / y[i]) / y[i]));
    default: /* BSK_BINARY_MAX, BSK_BINARY_MIN */
        SLOPES_OF((of_x ? larger_share(sign * x[i], sign * y[i])
                        : larger_share(sign * y[i], sign * x[i])));
    }
}

/* Units first .. last of an item: their sum, row by row or, along rows, as one number. */
static int64_t reduce_units(const reduction *r, const bsk_binary_grad_params *p,
                            const bsk_binary_grad_args *a, bool of_x, int64_t item, int64_t first,
                            int64_t last, float *restrict sum)
{
    enum { PART = 64 };
    float dz[CHUNK], x[CHUNK] = {0}, y[CHUNK] = {0}, part[CHUNK] = {0};
    walk_piece at = {.count = 0};
    double total = 0;
    memset(sum, 0, CHUNK * sizeof *sum);
    for (int64_t unit = first; unit < last; unit++) {
        at = reduction_at(r, item, unit);
        walk_load(&r->w, &at, GRAD_DZ, p->dz.dtype, bsk_mem_address(a->dz), dz);
        if (p->x.dtype != BSK_NONE)
            walk_load(&r->w, &at, GRAD_X, p->x.dtype, bsk_mem_address(a->x), x);
        if (p->y.dtype != BSK_NONE)
            walk_load(&r->w, &at, GRAD_Y, p->y.dtype, bsk_mem_address(a->y), y);
        slope_row(p->kind, of_x, dz, x, y, at.count);
        if (r->along) {
            row_pad(dz, at.count, 0);
            total += (double)row_sum(dz, at.count);
            continue;
        }
        for (int64_t i = 0; i < at.count; i++)
            part[i] += dz[i];
        if ((unit + 1) % PART && unit + 1 < last)
            continue;
        for (int64_t i = 0; i < at.count; i++)
            sum[i] += part[i];
        memset(part, 0, sizeof part);
    }
    if (r->along)
        sum[0] = (float)total;
    return r->along ? 1 : at.count;
}

/* An item's elements, from its only band or from the workspace. */
static void reduce_item(const reduction *r, const bsk_binary_grad_params *p,
                        const bsk_binary_grad_args *a, bool of_x, int64_t item, const float *work)
{
    const bsk_tensor *out = of_x ? &p->dx : &p->dy;
    void *dst = bsk_mem_address(of_x ? a->dx : a->dy);
    const walk_piece at = reduction_at(r, item, 0);
    const int64_t count = r->along ? 1 : at.count, element = reduction_element(r, item);
    float sum[CHUNK] = {0};
    if (r->bands == 1)
        reduce_units(r, p, a, of_x, item, 0, r->units, sum);
    for (int64_t band = 0; r->bands > 1 && band < r->bands; band++)
        for (int64_t i = 0; i < count; i++)
            sum[i] += work[band * r->elements + element + i];
    row_blend(sum, a->alpha, a->beta, out->dtype, dst, at.at[GRAD_OUT], count);
    row_store_f32(sum, out->dtype, dst, at.at[GRAD_OUT], count);
}

static void binary_reduce(const bsk_binary_grad_params *p, const bsk_binary_grad_args *a, bool of_x,
                          int threads)
{
    float *work = bsk_mem_address(a->workspace);
    reduction r;
    reduction_make(&r, p, of_x ? &p->dx : &p->dy);
    const int64_t items = r.items;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < (r.bands > 1 ? items * r.bands : 0); i++) {
            const int64_t band = i / items, item = i % items;
            float sum[CHUNK];
            const int64_t count = reduce_units(&r, p, a, of_x, item, band * r.units / r.bands,
                                               (band + 1) * r.units / r.bands, sum);
            memcpy(work + band * r.elements + reduction_element(&r, item), sum,
                   (size_t)count * sizeof *sum);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < items; i++)
            reduce_item(&r, p, a, of_x, i, work);
    }
}

OMP_LAUNCH(binary_grad)
{
    const bsk_binary_grad_params *p = prepared->problem->params;
    if (p->dx.dtype != BSK_NONE)
        binary_reduce(p, args, true, queue_threads(queue));
    if (p->dy.dtype != BSK_NONE)
        binary_reduce(p, args, false, queue_threads(queue));
    return BSK_OK;
}

/* --- add_n ------------------------------------------------------------------------------------ */

OMP_WALK(add_n, &p->y, &p->x)

OMP_LAUNCH(add_n)
{
    const bsk_add_n_params *p = prepared->problem->params;
    const bsk_add_n_args *a = args;
    void *y = bsk_mem_address(a->y);
    walk w;

    add_n_walk(p, &w);
    const bool stream = a->beta == 0 && streams(p->y.dtype, w.rows, w.inner);
#pragma omp parallel num_threads(queue_threads(queue))
    {
        float sum[CHUNK], x[CHUNK];
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < walk_pieces(&w); i++) {
            const walk_piece at = walk_at(&w, i);
            walk_load(&w, &at, 1, p->x.dtype, bsk_mem_address(a->x[0]), sum);
            for (int32_t n = 1; n < p->pairs; n++) {
                walk_load(&w, &at, 1, p->x.dtype, bsk_mem_address(a->x[n]), x);
                EACH_VECTOR(k, at.count)
                store_f32(sum + k, load_f32(sum + k) + load_f32(x + k));
            }
            row_blend(sum, a->alpha, a->beta, p->y.dtype, y, at.at[0], at.count);
            row_put(sum, p->y.dtype, y, at.at[0], at.count, stream);
        }
        stream_fence();
    }
    return BSK_OK;
}

/* --- filter ----------------------------------------------------------------------------------- */

OMP_WALK(filter, &p->y, &p->x)

static void filter_row(const bsk_filter_params *p, const bsk_filter_args *a, float *row,
                       int64_t count)
{
    const float scale = a->scale != 0 ? (float)a->scale : 1;
    const float high = a->saturate > 0 ? (float)a->saturate : INFINITY;
    const bool infs = p->zero_infs != 0, nans = p->zero_nans != 0;
    for (int64_t i = 0; i < count; i++) {
        float v = row[i];
        const float size = fabsf(v);
        v = infs && size == INFINITY ? 0 : v;
        v = nans && size != size ? 0 : v;
        v *= scale;
        v = v > high ? high : v;
        row[i] = v < -high ? -high : v;
    }
}

OMP_LAUNCH(filter)
{
    const bsk_filter_params *p = prepared->problem->params;
    const bsk_filter_args *a = args;
    walk w;

    filter_walk(p, &w);
    const bool stream = streams(p->y.dtype, w.rows, w.inner);
#pragma omp parallel num_threads(queue_threads(queue))
    {
        float row[CHUNK];
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < walk_pieces(&w); i++) {
            const walk_piece at = walk_at(&w, i);
            walk_load(&w, &at, 1, p->x.dtype, bsk_mem_address(a->x), row);
            filter_row(p, a, row, at.count);
            row_put(row, p->y.dtype, bsk_mem_address(a->y), at.at[0], at.count, stream);
        }
        stream_fence();
    }
    return BSK_OK;
}
