/* The dense softmax and its gradient. A row is read from memory once, and stays in a cache. */
#include "lines.h"
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

/* --- lines: whole rows, of which all elements take part, scaled by a positive number --- */

/* Elements of a line for one pair whose largest is looked for. */
enum { SAMPLE = 256 };

/* A line on its way, or none. Exponentials are relative to the largest of some elements, which is found
 * before it is passed over. */
typedef struct softmax_way {
    bool some;
    int64_t x, y;
    float base, factor; /* what exponents begin at; what results take */
    vec_f32 sum;
} softmax_way;

typedef struct softmax_job {
    const void *x;
    void *y;
    bsk_dtype x_type, y_type;
    int64_t count;
    float scale, unit; /* of x; the same for the exponents of power_lifted */
    bool stream;
} softmax_job;

static softmax_way softmax_way_of(const walk *w, int64_t row)
{
    softmax_way l = {.some = row < w->rows};
    int64_t at[WALK_TENSORS];
    if (l.some) {
        walk_row(w, row, at);
        l.y = at[0];
        l.x = at[1];
    }
    return l;
}

/* Pieces of a line, and of what to ask for; `split`: whether its pairs are. */
typedef struct softmax_from {
    bsk_dtype type;
    bool split;
    const void *x;
    int64_t at, ahead;
} softmax_from;

/* Where the same of the line before it go. */
typedef struct softmax_to {
    bsk_dtype type;
    bool split, stream;
    void *y;
    int64_t at;
    float factor;
} softmax_to;

/* What the exponents of a line begin at, from one pair of each SAMPLE elements. */
OMP_INLINE void softmax_base(const softmax_job *j, softmax_way *l, const void *x, int64_t at,
                             int64_t count, bsk_dtype type, bool split)
{
    vec_f32 best = splat_f32(-INFINITY);
    for (int64_t k = 0; k < count; k += SAMPLE) {
        const line_pair v = pair_load(type, x, at + k, split);
        best = larger_f32(v.v[0], larger_f32(v.v[1], best));
    }
    const float base = lanes_max(best) * j->unit;
    l->base = isfinite(base) ? base : 0;
}

/* The pair at k, as it is written. */
OMP_INLINE void softmax_put(const softmax_to *to, const float *e, int64_t k)
{
    line_pair v = pair_load(BSK_F32, e, k, false);
    v.v[0] *= to->factor;
    v.v[1] *= to->factor;
    pair_put_near(to->type, to->y, to->at + k, v, to->split, to->stream);
}

/* e = the exponentials, which are added to the sum, after what was there has been written, if there is
 * where to. */
OMP_INLINE void softmax_power(softmax_way *l, const softmax_from *from, int64_t count, float unit,
                              float *e, const softmax_to *to)
{
    line_pair sum = {{l->sum}};
    for (int64_t k = 0; k < count; k += PAIR) {
        if (k % PIECE == 0)
            lines_fetch(from->type, from->x, from->ahead + k, PIECE);
        line_pair v = pair_load(from->type, from->x, from->at + k, from->split);
        if (to)
            softmax_put(to, e, k);
        for (int j = 0; j < 2; j++) {
            v.v[j] = power_lifted(v.v[j] * unit - l->base, from->split, false);
            sum.v[j] += v.v[j];
        }
        pair_put(BSK_F32, e, k, v, false, false);
    }
    l->sum = sum.v[0] + sum.v[1];
}

/* The exponentials of a line once more, relative to its largest element, and their sum. */
static __attribute__((noinline)) float softmax_again(const softmax_job *j, int64_t at, float *e,
                                                     bool split)
{
    float row[ROW];
    row_load_f32(row, j->x_type, j->x, at, j->count);
    for (int64_t k = 0; k < j->count; k++)
        row[k] *= j->scale;
    row_pad(row, j->count, -INFINITY);
    const float max = row_max(row, j->count, -INFINITY);
    const float sum = row_exp(row, j->count, max == -INFINITY ? 0 : max);
    memcpy(e, row, (size_t)j->count * sizeof *e);
    if (split)
        pairs_split(e, row, j->count - j->count % PIECE);
    return sum;
}

/* Where all that was looked at is far below the rest, or nothing, exponentials may have left the
 * range of f32; and from exponents of 32 on what is lost of their fraction shows, but not in bf16. */
static void softmax_end(const softmax_job *j, softmax_way *l, float *e, bool split)
{
    const float most = split ? 0x1p100f : 0x1p32f;
    float sum = lanes_sum(l->sum);
    if (!(sum > 0.5f && sum < most))
        sum = softmax_again(j, l->x, e, split);
    l->factor = plain_f32(sum == 0 ? 0 : 1 / sum);
}

/* What is left of both lines from i on. */
static void softmax_rest(const softmax_job *j, softmax_way *l, const softmax_way *late, float *e,
                         int64_t i)
{
    const int64_t part = j->count - i;
    float rest[PIECE];
    if (late->some) {
        const softmax_to to = {.type = BSK_F32, .y = rest, .factor = late->factor};
        for (int64_t k = 0; k < part; k += PAIR)
            softmax_put(&to, e + i, k);
        row_store_f32(rest, j->y_type, j->y, late->y + i, part);
    }
    if (l->some) {
        const softmax_from from = {.type = BSK_F32, .x = rest};
        row_load_f32(rest, j->x_type, j->x, l->x + i, part);
        for (int64_t k = part; k % PAIR; k++)
            rest[k] = -INFINITY;
        if (!i)
            softmax_base(j, l, rest, 0, part, BSK_F32, false);
        softmax_power(l, &from, part, j->unit, e + i, NULL);
    }
}

/* The first `count` elements of both lines. */
OMP_INLINE void softmax_both(const softmax_job *j, softmax_way *l, const softmax_way *late,
                             const softmax_way *next, float *e, int64_t count, bsk_dtype x_type,
                             bsk_dtype y_type, bool split)
{
    const softmax_from from = {x_type, split, j->x, l->x, next->some ? next->x : l->x};
    const softmax_to to = {y_type, split, j->stream, j->y, late->y, late->factor};
    if (l->some)
        softmax_base(j, l, j->x, l->x, count, x_type, split);
    if (l->some && late->some) {
        softmax_power(l, &from, count, j->unit, e, &to);
        return;
    }
    for (int64_t k = 0; late->some && k < count; k += PAIR)
        softmax_put(&to, e, k);
    if (l->some)
        softmax_power(l, &from, count, j->unit, e, NULL);
}

/* Reads a line, while the one before it is written; e: the exponentials of both. */
OMP_INLINE void softmax_pass(const softmax_job *j, softmax_way *l, const softmax_way *late,
                             const softmax_way *next, float *e, bsk_dtype x_type, bsk_dtype y_type,
                             bool split)
{
    const int64_t whole = j->count - j->count % PIECE;
    if (whole)
        softmax_both(j, l, late, next, e, whole, x_type, y_type, split);
    if (whole < j->count)
        softmax_rest(j, l, late, e, whole);
    if (l->some)
        softmax_end(j, l, e, split);
}

typedef void softmax_pass_fn(const softmax_job *j, softmax_way *l, const softmax_way *late,
                             const softmax_way *next, float *e);
#define SOFTMAX_PASS(name, x_type, y_type, split)                                                  \
    static void name(const softmax_job *j, softmax_way *l, const softmax_way *late,                \
                     const softmax_way *next, float *e)                                            \
    {                                                                                              \
        softmax_pass(j, l, late, next, e, x_type, y_type, split);                                  \
    }
SOFTMAX_PASS(softmax_pass_f32, BSK_F32, BSK_F32, false)
SOFTMAX_PASS(softmax_pass_f16, BSK_F16, BSK_F16, false)
SOFTMAX_PASS(softmax_pass_bf16, BSK_BF16, BSK_BF16, true)
SOFTMAX_PASS(softmax_pass_mixed, j->x_type, j->y_type, false)

/* By one of the threads; every one has two lines on their way, and the exponentials of one, which leave room
 * for its elements in the first-level cache. */
static void softmax_rows(const softmax_job *j, const walk *w)
{
    softmax_pass_fn *const pass = j->x_type != j->y_type  ? softmax_pass_mixed
                                  : j->x_type == BSK_F32  ? softmax_pass_f32
                                  : j->x_type == BSK_BF16 ? softmax_pass_bf16
                                                          : softmax_pass_f16;
    const softmax_way none = {0};
    softmax_way late = none;
    float e[ROW] __attribute__((aligned(64)));
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < w->rows; i++) {
        const softmax_way next = softmax_way_of(w, i + 1);
        softmax_way line = softmax_way_of(w, i);
        pass(j, &line, &late, &next, e);
        late = line;
    }
    softmax_way end = none;
    pass(j, &end, &late, &none, e);
}

/* --- any row --- */

static void softmax_line_by_line(const bsk_masked_softmax_params *p,
                                 const bsk_masked_softmax_args *a, const walk *w, float scale,
                                 bool stream)
{
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < w->rows; i++) {
        int64_t at[WALK_TENSORS];
        walk_row(w, i, at);
        softmax_row r = {.p = p,
                         .x = bsk_mem_address(a->x),
                         .mask = bsk_mem_address(a->mask),
                         .x_at = at[1],
                         .mask_at = at[2],
                         .count = w->inner,
                         .scale = scale};
        if (p->k)
            r.kth = softmax_kth(&r);
        softmax_line(&r, bsk_mem_address(a->y), at[0], stream);
    }
}

OMP_LAUNCH(masked_softmax)
{
    const bsk_masked_softmax_params *p = prepared->problem->params;
    const bsk_masked_softmax_args *a = args;
    const bsk_tensor *const tensors[] = {&p->y, &p->x, &p->mask};
    const float scale = a->scale != 0 ? (float)a->scale : 1;
    walk w;

    walk_lines(&w, tensors, 3);
    const bool stream = streams(p->y.dtype, w.rows, w.inner);
    const softmax_job job = {.x = bsk_mem_address(a->x),
                             .y = bsk_mem_address(a->y),
                             .x_type = p->x.dtype,
                             .y_type = p->y.dtype,
                             .count = w.inner,
                             .scale = scale,
                             .unit = scale * LOG_BASE,
                             .stream =
                                 stream && walk_whole(&w, 0, p->y.dtype, bsk_mem_address(a->y))};
    const bool lines = p->mask.dtype == BSK_NONE && !p->k && w.inner <= ROW && scale > 0;
#pragma omp parallel num_threads(queue_threads(queue))
    {
        if (lines)
            softmax_rows(&job, &w);
        else
            softmax_line_by_line(p, a, &w, scale, stream);
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
static void softmax_grad_row(const bsk_masked_softmax_grad_params *p,
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

/* --- lines: without a mask, and where dx is only written --- */

typedef struct softmax_grad_lines {
    int count;
    int64_t dx[LINES], dy[LINES], y[LINES];
    float dot[LINES];
    vec_f32 sum[LINES];
} softmax_grad_lines;

static void softmax_grad_lines_at(const walk *w, softmax_grad_lines *l, int64_t first)
{
    l->count = (int)max_i64(0, min_i64(LINES, w->rows - first));
    for (int r = 0; r < l->count; r++) {
        int64_t at[WALK_TENSORS] = {0};
        walk_row(w, first + r, at);
        l->dx[r] = at[0];
        l->dy[r] = at[1];
        l->y[r] = at[2];
        l->sum[r] = (vec_f32){0};
    }
}

typedef struct softmax_grad_job {
    const void *dy, *y;
    void *dx;
    bsk_dtype dy_type, y_type, dx_type;
    int64_t count;
    float scale;
    bool stream;
} softmax_grad_job;

/* A piece of dy and y of some lines, and where dx goes; `split`: whether its pairs are. */
typedef struct softmax_grad_piece {
    bsk_dtype dy_type, y_type, dx_type;
    bool split, stream;
    float scale;
    const void *dy[LINES], *y[LINES], *dy_ahead[LINES], *y_ahead[LINES]; /* the latter to ask for */
    void *dx[LINES];
} softmax_grad_piece;

/* The pairs at k of lines 0 .. rows - 1 are added to the sums of y * dy. */
OMP_INLINE void softmax_grad_take(vec_f32 *sum, const softmax_grad_piece *at, int rows, int64_t k)
{
    _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++)
    {
        const line_pair y = pair_load(at->y_type, at->y[r], k, at->split);
        const line_pair dy = pair_load(at->dy_type, at->dy[r], k, at->split);
        for (int j = 0; j < 2; j++)
            sum[r] += select_f32(y.v[j] != 0.0f, dy.v[j], (vec_f32){0}) * y.v[j];
    }
}

OMP_INLINE void softmax_grad_put(const float *dot, const softmax_grad_piece *at, int rows,
                                 int64_t k)
{
    _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++)
    {
        const line_pair y = pair_load(at->y_type, at->y[r], k, at->split);
        line_pair dx = pair_load(at->dy_type, at->dy[r], k, at->split);
        line_fetch(at->dy_type, at->dy_ahead[r], k);
        line_fetch(at->y_type, at->y_ahead[r], k);
        for (int j = 0; j < 2; j++)
            dx.v[j] =
                select_f32(y.v[j] != 0.0f, (dx.v[j] - dot[r]) * y.v[j] * at->scale, (vec_f32){0});
        pair_put_near(at->dx_type, at->dx[r], k, dx, at->split, at->stream);
    }
}

/* A piece of line r alone. */
OMP_INLINE void softmax_grad_line(softmax_grad_lines *l, int r, const softmax_grad_piece *at,
                                  int64_t count, bool put)
{
    vec_f32 sum = l->sum[r];
    for (int64_t k = 0; k < count; k += PAIR) {
        if (put)
            softmax_grad_put(&l->dot[r], at, 1, k);
        else
            softmax_grad_take(&sum, at, 1, k);
    }
    l->sum[r] = sum;
}

/* The last piece of a row, which is shorter. */
static void softmax_grad_rest(const softmax_grad_job *j, softmax_grad_lines *l, int r, int64_t i,
                              bool put)
{
    const int64_t part = j->count - i;
    float dy[PIECE] = {0}, y[PIECE] = {0};
    const softmax_grad_piece at = {BSK_F32, BSK_F32, BSK_F32, false, false, j->scale,
                                   {dy},    {y},     {dy},    {y},   {dy}};
    row_load_f32(dy, j->dy_type, j->dy, l->dy[r] + i, part);
    row_load_f32(y, j->y_type, j->y, l->y[r] + i, part);
    softmax_grad_line(l, r, &at, part, put);
    if (put)
        row_store_f32(dy, j->dx_type, j->dx, l->dx[r] + i, part);
}

/* Line r of l becomes number `to` of the piece at i. */
OMP_INLINE void softmax_grad_at(const softmax_grad_job *j, softmax_grad_piece *at, int to,
                                const softmax_grad_lines *l, const softmax_grad_lines *next, int r,
                                int64_t i)
{
    at->dy[to] = line_at(at->dy_type, j->dy, l->dy[r] + i);
    at->y[to] = line_at(at->y_type, j->y, l->y[r] + i);
    at->dx[to] = line_at(at->dx_type, j->dx, l->dx[r] + i);
    at->dy_ahead[to] = line_at(at->dy_type, j->dy, next->dy[r] + i);
    at->y_ahead[to] = line_at(at->y_type, j->y, next->y[r] + i);
}

/* Whole pieces at i of all the lines: together where there are as many as usual. */
OMP_INLINE void softmax_grad_pieces(const softmax_grad_job *j, softmax_grad_lines *l,
                                    softmax_grad_lines *late, const softmax_grad_lines *next,
                                    int64_t i, bsk_dtype dy_type, bsk_dtype y_type,
                                    bsk_dtype dx_type, bool split)
{
    softmax_grad_piece in = {dy_type, y_type, dx_type, split, j->stream, j->scale,
                             {0},     {0},    {0},     {0},   {0}};
    softmax_grad_piece out = in;
    if (l->count == LINES && late->count == LINES) {
        vec_f32 sum[LINES];
        memcpy(sum, l->sum, sizeof sum);
        for (int r = 0; r < LINES; r++) {
            softmax_grad_at(j, &in, r, l, next, r, i);
            softmax_grad_at(j, &out, r, late, next, r, i);
        }
        for (int64_t k = 0; k < PIECE; k += PAIR) {
            softmax_grad_take(sum, &in, LINES, k);
            softmax_grad_put(late->dot, &out, LINES, k);
        }
        memcpy(l->sum, sum, sizeof sum);
        return;
    }
    for (int r = 0; r < l->count; r++) {
        softmax_grad_at(j, &in, 0, l, next, r, i);
        softmax_grad_line(l, r, &in, PIECE, false);
    }
    for (int r = 0; r < late->count; r++) {
        softmax_grad_at(j, &out, 0, late, late, r, i);
        softmax_grad_line(late, r, &out, PIECE, true);
    }
}

OMP_INLINE void softmax_grad_pass(const softmax_grad_job *j, softmax_grad_lines *l,
                                  softmax_grad_lines *late, const softmax_grad_lines *next,
                                  bsk_dtype dy_type, bsk_dtype y_type, bsk_dtype dx_type,
                                  bool split)
{
    int64_t i = 0;
    for (; i + PIECE <= j->count; i += PIECE)
        softmax_grad_pieces(j, l, late, next, i, dy_type, y_type, dx_type, split);
    for (int r = 0; i < j->count && r < l->count; r++)
        softmax_grad_rest(j, l, r, i, false);
    for (int r = 0; i < j->count && r < late->count; r++)
        softmax_grad_rest(j, late, r, i, true);
    for (int r = 0; r < l->count; r++)
        l->dot[r] = lanes_sum(l->sum[r]);
}

#define SOFTMAX_GRAD_PASS(name, dy_type, y_type, dx_type, split)                                   \
    static void name(const softmax_grad_job *j, softmax_grad_lines *l, softmax_grad_lines *late,   \
                     const softmax_grad_lines *next)                                               \
    {                                                                                              \
        softmax_grad_pass(j, l, late, next, dy_type, y_type, dx_type, split);                      \
    }
SOFTMAX_GRAD_PASS(softmax_grad_pass_f32, BSK_F32, BSK_F32, BSK_F32, false)
SOFTMAX_GRAD_PASS(softmax_grad_pass_f16, BSK_F16, BSK_F16, BSK_F16, false)
SOFTMAX_GRAD_PASS(softmax_grad_pass_bf16, BSK_BF16, BSK_BF16, BSK_BF16, true)
SOFTMAX_GRAD_PASS(softmax_grad_pass_mixed, j->dy_type, j->y_type, j->dx_type, false)

static void softmax_grad_rows(const softmax_grad_job *j, const walk *w)
{
    void (*const pass)(const softmax_grad_job *, softmax_grad_lines *, softmax_grad_lines *,
                       const softmax_grad_lines *) =
        j->dy_type != j->y_type || j->dy_type != j->dx_type ? softmax_grad_pass_mixed
        : j->y_type == BSK_F32                              ? softmax_grad_pass_f32
        : j->y_type == BSK_BF16                             ? softmax_grad_pass_bf16
                                                            : softmax_grad_pass_f16;
    softmax_grad_lines lines[2] = {{.count = 0}, {.count = 0}}, next;
    int turn = 0;
#pragma omp for schedule(static) nowait
    for (int64_t g = 0; g < bski_ceil_div(w->rows, LINES); g++) {
        softmax_grad_lines_at(w, &lines[turn], g * LINES);
        softmax_grad_lines_at(w, &next, (g + 1) * LINES);
        for (int r = next.count; r < lines[turn].count; r++) { /* nothing else to ask for */
            next.dy[r] = lines[turn].dy[r];
            next.y[r] = lines[turn].y[r];
        }
        pass(j, &lines[turn], &lines[!turn], &next);
        turn = !turn;
    }
    lines[turn].count = next.count = 0;
    pass(j, &lines[turn], &lines[!turn], &next);
}

OMP_LAUNCH(masked_softmax_grad)
{
    const bsk_masked_softmax_grad_params *p = prepared->problem->params;
    const bsk_masked_softmax_grad_args *a = args;
    const bsk_tensor *const tensors[] = {&p->dx, &p->dy, &p->y, &p->mask};
    walk w;

    walk_lines(&w, tensors, 4);
    const bool stream = a->beta == 0 && streams(p->dx.dtype, w.rows, w.inner);
    const softmax_grad_job job = {.dy = bsk_mem_address(a->dy),
                                  .y = bsk_mem_address(a->y),
                                  .dx = bsk_mem_address(a->dx),
                                  .dy_type = p->dy.dtype,
                                  .y_type = p->y.dtype,
                                  .dx_type = p->dx.dtype,
                                  .count = w.inner,
                                  .scale = (float)(a->alpha * (a->scale != 0 ? a->scale : 1)),
                                  .stream = stream &&
                                            walk_whole(&w, 0, p->dx.dtype, bsk_mem_address(a->dx))};
    const bool lines = p->mask.dtype == BSK_NONE && a->beta == 0;
#pragma omp parallel num_threads(queue_threads(queue))
    {
        if (lines) {
            softmax_grad_rows(&job, &w);
        } else {
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < w.rows; i++) {
                int64_t at[WALK_TENSORS];
                walk_row(&w, i, at);
                softmax_grad_row(p, a, at, w.inner, stream);
            }
        }
        stream_fence();
    }
    return BSK_OK;
}
