/* Choosing elements: maxima, gathers, the k largest. */
#include "dense.h"
#include "rank.h"

static void index_store(bsk_dtype type, void *data, int64_t at, int64_t value)
{
    switch (type) {
    case BSK_NONE:
        break;
    case BSK_I64:
        ((int64_t *)data)[at] = value;
        break;
    case BSK_I32:
        ((int32_t *)data)[at] = (int32_t)value;
        break;
    case BSK_U16:
        ((uint16_t *)data)[at] = (uint16_t)value;
        break;
    default: /* BSK_U8 */
        ((uint8_t *)data)[at] = (uint8_t)value;
        break;
    }
}

/* Whether [A, B, C] is contiguous along C, or along B where C is 1. */
static bool is_lined(const bsk_tensor *t)
{
    return axis_contiguous(t, t->dims[2] == 1 ? 1 : 2);
}

static int64_t at3(const bsk_tensor *t, int64_t i, int64_t j, int64_t k)
{
    return i * t->strides[0] + j * t->strides[1] + k * t->strides[2];
}

/* --- reduce_max ------------------------------------------------------------------------------- */

OMP_DECLARE(reduce_max);
OMP_PREPARE_NONE(reduce_max)

OMP_ACCEPT(reduce_max)
{
    const bsk_reduce_max_params *p = problem->params;
    (void)props;
    if (!is_narrow(&p->x) || !is_narrow(&p->y))
        return BSK_REFUSE_DTYPE;
    if (p->x.dims[1] > INT32_MAX)
        return BSK_REFUSE_LIMIT;
    return is_lined(&p->x) && axis_contiguous(&p->y, 1) ? BSK_ACCEPT : BSK_REFUSE_STRIDE;
}

/* Nothing is larger than NaN, and of equal ones the first counts. */
OMP_INLINE bool is_larger(float x, float y)
{
    return x > y || (x != x && y == y);
}

/* The largest along a row that lies in memory as it is. */
static void reduce_line(const bsk_reduce_max_params *p, const void *x, int64_t i, float *best,
                        int32_t *where)
{
    float row[CHUNK];
    *where = -1;
    for (int64_t j = 0; j < p->x.dims[1]; j += CHUNK) {
        const int64_t count = min_i64(CHUNK, p->x.dims[1] - j);
        row_load_f32(row, p->x.dtype, x, at3(&p->x, i, j, 0), count);
        for (int64_t k = 0; k < count; k++)
            if (*where < 0 || is_larger(row[k], *best)) {
                *best = row[k];
                *where = (int32_t)(j + k);
            }
    }
}

/* The largest of count neighbouring columns. */
static void reduce_columns(const bsk_reduce_max_params *p, const void *x, int64_t i, int64_t first,
                           int64_t count, float *restrict best, int32_t *restrict where)
{
    float row[CHUNK];
    row_load_f32(best, p->x.dtype, x, at3(&p->x, i, 0, first), count);
    memset(where, 0, (size_t)count * sizeof *where);
    for (int64_t j = 1; j < p->x.dims[1]; j++) {
        row_load_f32(row, p->x.dtype, x, at3(&p->x, i, j, first), count);
        for (int64_t k = 0; k < count; k++) {
            const bool larger = is_larger(row[k], best[k]);
            where[k] = larger ? (int32_t)j : where[k];
            best[k] = larger ? row[k] : best[k];
        }
    }
}

OMP_LAUNCH(reduce_max)
{
    const bsk_reduce_max_params *p = prepared->problem->params;
    const bsk_reduce_max_args *a = args;
    const void *x = bsk_mem_address(a->x);
    const int64_t parts = bski_ceil_div(p->x.dims[2], CHUNK);

#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t n = 0; n < p->x.dims[0] * parts; n++) {
        const int64_t i = n / parts, first = n % parts * CHUNK;
        const int64_t count = min_i64(CHUNK, p->x.dims[2] - first);
        float best[CHUNK];
        int32_t where[CHUNK];
        if (p->x.dims[2] == 1)
            reduce_line(p, x, i, best, where);
        else
            reduce_columns(p, x, i, first, count, best, where);
        row_store_f32(best, p->y.dtype, bsk_mem_address(a->y),
                      i * p->y.strides[0] + first * p->y.strides[1], count);
        for (int64_t k = 0; p->argmax.dtype != BSK_NONE && k < count; k++)
            index_store(p->argmax.dtype, bsk_mem_address(a->argmax),
                        i * p->argmax.strides[0] + (first + k) * p->argmax.strides[1], where[k]);
    }
    return BSK_OK;
}

/* --- take_along ------------------------------------------------------------------------------- */

OMP_DECLARE(take_along);
OMP_PREPARE_NONE(take_along)

OMP_ACCEPT(take_along)
{
    const bsk_take_along_params *p = problem->params;
    (void)props;
    return axis_contiguous(&p->x, 2) && axis_contiguous(&p->y, 2) ? BSK_ACCEPT : BSK_REFUSE_STRIDE;
}

OMP_LAUNCH(take_along)
{
    const bsk_take_along_params *p = prepared->problem->params;
    const bsk_take_along_args *a = args;
    const void *x = bsk_mem_address(a->x), *index = bsk_mem_address(a->index);
    void *y = bsk_mem_address(a->y);
    const int64_t columns = p->y.dims[2];
    /* i32 moves as f32 does */
    const bsk_dtype from = p->x.dtype == BSK_I32 ? BSK_F32 : p->x.dtype;
    const bsk_dtype to = p->y.dtype == BSK_I32 ? BSK_F32 : p->y.dtype;
    /* elements that share an index are taken together */
    const int64_t width = p->index.strides[2] == 0 ? columns : 1;

#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t n = 0; n < p->y.dims[0] * p->y.dims[1]; n++) {
        const int64_t i = n / p->y.dims[1], j = n % p->y.dims[1];
        for (int64_t k = 0; k < columns; k += width) {
            const int64_t b = bski_load_int(p->index.dtype, index, at3(&p->index, i, j, k));
            const bool inside = b >= 0 && b < p->x.dims[1];
            row_convert(from, inside ? x : NULL, inside ? at3(&p->x, i, b, k) : 0, to, y,
                        at3(&p->y, i, j, k), width);
        }
    }
    return BSK_OK;
}

OMP_DECLARE(take_along_grad);

/* dx[i] is cut into tiles of rows x columns that are summed side by side. The elements of dy whose
 * columns are those of a tile make a unit. Of a few tiles each looks at all of its unit; of many
 * each first gets a list of its own elements, in their order, from `shares` pieces of a unit. */
typedef struct take_plan {
    int64_t rows, columns, down, right;
    int64_t units, shares, width, most; /* width: entries of a j; most: entries of a unit */
    bool listed;
} take_plan;

static take_plan take_plan_of(const bsk_take_along_grad_params *p)
{
    enum { WIDTH = 64, SHARES = 64, FEW = 16 };
    take_plan t = {.columns = max_i64(1, min_i64(WIDTH, p->dx.dims[2]))};
    t.rows = ROW / t.columns;
    t.right = bski_ceil_div(p->dx.dims[2], t.columns);
    t.down = bski_ceil_div(p->dx.dims[1], t.rows);
    t.units = p->dx.dims[0] * t.right;
    t.shares = max_i64(1, min_i64(p->dy.dims[1], SHARES / max_i64(1, t.units)));
    t.width = p->index.strides[2] == 0 ? 1 : t.columns;
    t.most = min_i64(p->dy.dims[1], INT32_MAX) * t.width; /* more is refused */
    t.listed = t.units > 0 && t.down > FEW && p->dy.dims[1] > t.rows;
    return t;
}

OMP_ACCEPT(take_along_grad)
{
    const bsk_take_along_grad_params *p = problem->params;
    (void)props;
    if (!is_narrow(&p->dy) || !is_narrow(&p->dx))
        return BSK_REFUSE_DTYPE;
    if (p->dy.dims[1] > INT32_MAX / take_plan_of(p).width)
        return BSK_REFUSE_LIMIT;
    return is_lined(&p->dx) ? BSK_ACCEPT : BSK_REFUSE_STRIDE;
}

/* The lists: where the share of a tile begins, [unit][tile][share], and entries j * width + k. */
OMP_PREPARE(take_along_grad)
{
    const take_plan t = take_plan_of(prepared->problem->params);
    int64_t count, starts;
    (void)device;
    if (!t.listed)
        return BSK_OK;
    return bski_mul_i64(t.down, t.shares, &starts) && bski_add_i64(starts, t.most, &count) &&
                   bski_mul_i64(count, t.units, &count) &&
                   bski_mul_size((size_t)count, sizeof(int32_t), &prepared->workspace_bytes)
               ? BSK_OK
               : BSK_E_UNSUPPORTED;
}

/* Entries of a share of a unit: counts those of each tile, or with a list appends them. */
static void take_share(const bsk_take_along_grad_params *p, const void *index, const take_plan *t,
                       int64_t unit, int64_t share, int32_t *start, int32_t *list)
{
    const int64_t i = unit / t->right, first = unit % t->right * t->columns, all = p->dy.dims[1];
    const int64_t width = min_i64(t->width, p->dx.dims[2] - first);
    for (int64_t j = all * share / t->shares; j < all * (share + 1) / t->shares; j++)
        for (int64_t k = 0; k < width; k++) {
            const int64_t b = bski_load_int(p->index.dtype, index, at3(&p->index, i, j, first + k));
            if (b < 0 || b >= p->dx.dims[1])
                continue;
            int32_t *at = &start[b / t->rows * t->shares + share];
            if (list)
                list[*at] = (int32_t)(j * t->width + k);
            ++*at;
        }
}

/* Afterwards a share's start is where the next one begins. */
static void take_sort(const bsk_take_along_grad_params *p, const void *index, const take_plan *t,
                      int32_t *starts, int32_t *lists, int threads)
{
    const int64_t each = t->down * t->shares;
    memset(starts, 0, (size_t)(t->units * each) * sizeof *starts);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t n = 0; n < t->units * t->shares; n++)
        take_share(p, index, t, n / t->shares, n % t->shares, starts + n / t->shares * each, NULL);
    for (int64_t unit = 0; unit < t->units; unit++)
        for (int64_t n = 0, sum = 0; n < each; n++) {
            const int32_t count = starts[unit * each + n];
            starts[unit * each + n] = (int32_t)sum;
            sum += count;
        }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t n = 0; n < t->units * t->shares; n++)
        take_share(p, index, t, n / t->shares, n % t->shares, starts + n / t->shares * each,
                   lists + n / t->shares * t->most);
}

/* Rows b .. and columns k .. of one dx[i], in at most ROW numbers. */
typedef struct take_tile {
    int64_t i, b, k, rows, columns;
    const int32_t *list; /* NULL: all entries */
    int64_t count;
} take_tile;

/* Adds dy of the entry (j, k), or of all columns of j from k on. */
OMP_INLINE void take_add(const bsk_take_along_grad_params *p, const void *index, const void *dy,
                         const take_tile t, int64_t j, int64_t k, int64_t width, float *sum)
{
    const int64_t b = bski_load_int(p->index.dtype, index, at3(&p->index, t.i, j, t.k + k)) - t.b;
    if (b >= 0 && b < t.rows)
        for (int64_t e = k; e < k + width; e++)
            sum[b * t.columns + e] +=
                (float)bski_load(p->dy.dtype, dy, at3(&p->dy, t.i, j, t.k + e));
}

static void take_tile_run(const bsk_take_along_grad_params *p, const bsk_take_along_grad_args *a,
                          const take_plan *plan, const take_tile t)
{
    const void *dy = bsk_mem_address(a->dy), *index = bsk_mem_address(a->index);
    void *dx = bsk_mem_address(a->dx);
    const bool line = p->dx.dims[2] == 1; /* the tile is one row of memory */
    const bool whole = plan->width == 1;  /* an entry is a row of dy */
    const int64_t rows = line ? 1 : t.rows, columns = line ? t.rows : t.columns;
    float sum[ROW] = {0};

    for (int64_t n = 0; t.list && n < t.count; n++) {
        const int64_t entry = t.list[n];
        if (whole)
            take_add(p, index, dy, t, entry, 0, t.columns, sum);
        else
            take_add(p, index, dy, t, entry / plan->width, entry % plan->width, 1, sum);
    }
    for (int64_t j = 0; !t.list && j < p->dy.dims[1]; j++)
        for (int64_t k = 0; k < t.columns; k += whole ? t.columns : 1)
            take_add(p, index, dy, t, j, k, whole ? t.columns : 1, sum);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = at3(&p->dx, t.i, t.b + r, t.k);
        row_blend(sum + r * columns, a->alpha, a->beta, p->dx.dtype, dx, at, columns);
        row_store_f32(sum + r * columns, p->dx.dtype, dx, at, columns);
    }
}

OMP_LAUNCH(take_along_grad)
{
    const bsk_take_along_grad_params *p = prepared->problem->params;
    const bsk_take_along_grad_args *a = args;
    const take_plan plan = take_plan_of(p);
    const int threads = queue_threads(queue);
    const int64_t each = plan.down * plan.shares;
    int32_t *starts = NULL, *lists = NULL;
    if (plan.listed) {
        starts = bsk_mem_address(a->workspace);
        lists = starts + plan.units * each;
        take_sort(p, bsk_mem_address(a->index), &plan, starts, lists, threads);
    }

#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t n = 0; n < plan.units * plan.down; n++) {
        const int64_t tile = n / plan.right % plan.down, i = n / plan.right / plan.down;
        const int64_t unit = i * plan.right + n % plan.right;
        take_tile t = {.i = i, .b = tile * plan.rows, .k = n % plan.right * plan.columns};
        t.rows = min_i64(plan.rows, p->dx.dims[1] - t.b);
        t.columns = min_i64(plan.columns, p->dx.dims[2] - t.k);
        if (lists) {
            const int32_t *end = starts + unit * each + (tile + 1) * plan.shares - 1;
            const int32_t first = tile > 0 ? end[-plan.shares] : 0;
            t.list = lists + unit * plan.most + first;
            t.count = *end - first;
        }
        take_tile_run(p, a, &plan, t);
    }
    return BSK_OK;
}

/* --- topk ------------------------------------------------------------------------------------- */

/* The k largest of row n. */
static void row_ranks(rank_heap *h, int64_t k, const bsk_tensor *t, const void *x, int64_t n)
{
    float row[CHUNK];
    h->count = 0;
    h->limit = k;
    for (int64_t i = 0; i < t->dims[1]; i += CHUNK) {
        const int64_t count = min_i64(CHUNK, t->dims[1] - i);
        row_load_f32(row, t->dtype, x, n * t->strides[0] + i, count);
        heap_add_row(h, row, NULL, i, count);
    }
}

/* What all three ops ask. */
static bsk_reason ranks_accept(const bsk_tensor *const *tensors, int count, int64_t k)
{
    for (int i = 0; i < count; i++) {
        if (!is_narrow(tensors[i]))
            return BSK_REFUSE_DTYPE;
        if (!axis_contiguous(tensors[i], 1))
            return BSK_REFUSE_STRIDE;
    }
    return k > RANKS || tensors[0]->dims[1] > UINT32_MAX ? BSK_REFUSE_LIMIT : BSK_ACCEPT;
}

OMP_DECLARE(topk);
OMP_PREPARE_NONE(topk)

OMP_ACCEPT(topk)
{
    const bsk_topk_params *p = problem->params;
    const bsk_tensor *const tensors[] = {&p->x, &p->values};
    (void)props;
    return ranks_accept(tensors, 2, p->values.dims[1]);
}

OMP_LAUNCH(topk)
{
    const bsk_topk_params *p = prepared->problem->params;
    const bsk_topk_args *a = args;
    const void *x = bsk_mem_address(a->x);
    const int64_t k = p->values.dims[1];

#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t n = 0; n < (k ? p->x.dims[0] : 0); n++) {
        rank_heap h;
        row_ranks(&h, k, &p->x, x, n);
        heap_sort(&h);
        for (int64_t j = 0; j < k; j++) {
            const int64_t at = rank_at(h.key[j]);
            row_convert(p->x.dtype, x, n * p->x.strides[0] + at, p->values.dtype,
                        bsk_mem_address(a->values), n * p->values.strides[0] + j, 1);
            if (p->index.dtype != BSK_NONE)
                index_store(p->index.dtype, bsk_mem_address(a->index),
                            n * p->index.strides[0] + j * p->index.strides[1], at);
        }
    }
    return BSK_OK;
}

/* --- rectified_topk --------------------------------------------------------------------------- */

/* What the ops subtract; NaN stays. */
static float rank_cut(bsk_dtype type, const void *x, int64_t at, bool rebase)
{
    float kth;
    row_load_f32(&kth, type, x, at, 1);
    return rebase ? (kth < 0 ? 0 : kth) : 0;
}

OMP_DECLARE(rectified_topk);
OMP_PREPARE_NONE(rectified_topk)

OMP_ACCEPT(rectified_topk)
{
    const bsk_rectified_topk_params *p = problem->params;
    const bsk_tensor *const tensors[] = {&p->x, &p->y};
    (void)props;
    return ranks_accept(tensors, 2, p->k);
}

OMP_LAUNCH(rectified_topk)
{
    const bsk_rectified_topk_params *p = prepared->problem->params;
    const bsk_rectified_topk_args *a = args;
    const void *x = bsk_mem_address(a->x);

#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t n = 0; n < (p->x.dims[1] ? p->x.dims[0] : 0); n++) {
        const int64_t at = n * p->x.strides[0];
        rank_heap h;
        float row[CHUNK];
        row_ranks(&h, p->k, &p->x, x, n);
        const rank_key kth = h.key[0];
        const float cut = rank_cut(p->x.dtype, x, at + rank_at(kth), p->rebase != 0);
        for (int64_t i = 0; i < p->x.dims[1]; i += CHUNK) {
            const int64_t count = min_i64(CHUNK, p->x.dims[1] - i);
            row_load_f32(row, p->x.dtype, x, at + i, count);
            for (int64_t d = 0; d < count; d++) {
                const float v = row[d] - cut;
                row[d] = rank_of(row[d], i + d) < kth || v <= 0 ? 0 : v;
            }
            row_store_f32(row, p->y.dtype, bsk_mem_address(a->y), n * p->y.strides[0] + i, count);
        }
    }
    return BSK_OK;
}

OMP_DECLARE(rectified_topk_grad);
OMP_PREPARE_NONE(rectified_topk_grad)

OMP_ACCEPT(rectified_topk_grad)
{
    const bsk_rectified_topk_grad_params *p = problem->params;
    const bsk_tensor *const tensors[] = {&p->x, &p->dy, &p->dx};
    (void)props;
    return ranks_accept(tensors, 3, p->k);
}

/* dy = g of a piece of row n. */
static void rectified_slope(const bsk_rectified_topk_grad_params *p,
                            const bsk_rectified_topk_grad_args *a, int64_t n, int64_t i,
                            int64_t count, rank_key kth, float cut, float *restrict dy)
{
    float x[CHUNK];
    row_load_f32(x, p->x.dtype, bsk_mem_address(a->x), n * p->x.strides[0] + i, count);
    row_load_f32(dy, p->dy.dtype, bsk_mem_address(a->dy), n * p->dy.strides[0] + i, count);
    for (int64_t d = 0; d < count; d++) {
        const float v = x[d] - cut, slope = v > 0 ? 1 : v <= 0 ? 0 : v;
        dy[d] = rank_of(x[d], i + d) < kth ? 0 : dy[d] * slope;
    }
}

OMP_LAUNCH(rectified_topk_grad)
{
    const bsk_rectified_topk_grad_params *p = prepared->problem->params;
    const bsk_rectified_topk_grad_args *a = args;
    const void *x = bsk_mem_address(a->x);
    void *dx = bsk_mem_address(a->dx);
    const int64_t columns = p->x.dims[1];

#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t n = 0; n < (columns ? p->x.dims[0] : 0); n++) {
        rank_heap h;
        float row[CHUNK];
        double sum = 0;
        row_ranks(&h, p->k, &p->x, x, n);
        const rank_key kth = h.key[0];
        const int64_t last = rank_at(kth);
        const float cut = rank_cut(p->x.dtype, x, n * p->x.strides[0] + last, p->rebase != 0);
        const bool moves = !p->constant_cut && cut > 0;
        for (int64_t i = 0; moves && i < columns; i += CHUNK) {
            const int64_t count = min_i64(CHUNK, columns - i);
            rectified_slope(p, a, n, i, count, kth, cut, row);
            row_pad(row, count, 0);
            sum += (double)row_sum(row, count);
        }
        for (int64_t i = 0; i < columns; i += CHUNK) {
            const int64_t count = min_i64(CHUNK, columns - i), to = n * p->dx.strides[0] + i;
            rectified_slope(p, a, n, i, count, kth, cut, row);
            if (moves && last >= i && last < i + count)
                row[last - i] -= (float)sum;
            row_blend(row, a->alpha, a->beta, p->dx.dtype, dx, to, count);
            row_store_f32(row, p->dx.dtype, dx, to, count);
        }
    }
    return BSK_OK;
}
