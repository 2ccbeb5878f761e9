/* layer_norm. Rows are taken a few at a time, and stay in a cache from their load to
 * their store; rows that lie across memory, a band of columns at a time. */
#include "norms.h"

/* --- layer_norm ------------------------------------------------------------------------------- */

OMP_DECLARE(layer_norm);
OMP_PREPARE_NONE(layer_norm)

static int32_t layer_norm_axis(const bsk_layer_norm_params *p)
{
    const bsk_tensor *const tensors[] = {&p->x, &p->y};
    return common_axis(tensors, 2);
}

OMP_ACCEPT(layer_norm)
{
    const bsk_layer_norm_params *p = problem->params;
    (void)props;
    if (!is_narrow(&p->x) || !is_narrow(&p->y))
        return BSK_REFUSE_DTYPE;
    return layer_norm_axis(p) < 0 ? BSK_REFUSE_STRIDE : BSK_ACCEPT;
}

typedef struct layer_norm {
    const bsk_layer_norm_params *p;
    const bsk_layer_norm_args *a;
    act_shape shape;
    int64_t rows, count; /* of a segment */
    bool stream;
} layer_norm;

static void moments_store(const layer_norm *v, int64_t s, int64_t n, float mean, float rstd)
{
    if (v->p->mean.dtype != BSK_NONE)
        ((float *)bsk_mem_address(v->a->mean))[s * v->rows + n] = mean;
    if (v->p->rstd.dtype != BSK_NONE)
        ((float *)bsk_mem_address(v->a->rstd))[s * v->rows + n] = rstd;
}

/* What relu cuts off, or nothing. */
static float lowest(bool relu)
{
    return relu ? 0 : -INFINITY;
}

/* Rows on their way: first their sums are taken, of distances from about their middle; then they
 * are written. */
typedef struct norm_lines {
    int count;
    int64_t first, s[LINES], x[LINES], y[LINES]; /* the first line; segments; where they begin */
    float shift[LINES], mean[LINES], rstd[LINES];
    vec_f32 sum[LINES], square[LINES];
} norm_lines;

/* The lines from number `first` on, a line being a row's segment. */
static void norm_lines_at(const layer_norm *v, norm_lines *l, int64_t first)
{
    const bsk_layer_norm_params *p = v->p;
    const int64_t segments = p->segments;
    l->first = first;
    l->count = (int)max_i64(0, min_i64(LINES, v->rows * segments - first));
    for (int r = 0; r < l->count; r++) {
        const int64_t n = (first + r) / segments;
        l->s[r] = (first + r) % segments;
        l->x[r] = row_at(&p->x, &v->shape, n, l->s[r] * v->count);
        l->y[r] = row_at(&p->y, &v->shape, n, l->s[r] * v->count);
    }
}

/* The mean of the first elements: from all the others it differs by a few deviations at most, or
 * there are few of those. */
static void norm_begin(const layer_norm *v, norm_lines *l)
{
    const int64_t count = min_i64(PIECE, v->count);
    float row[PIECE];
    for (int r = 0; r < l->count; r++) {
        l->shift[r] = 0;
        l->sum[r] = l->square[r] = (vec_f32){0};
        if (v->p->rms || !count)
            continue;
        row_load_padded(row, v->p->x.dtype, bsk_mem_address(v->a->x), l->x[r], count, 0);
        const float middle = row_sum(row, count) / (float)count;
        l->shift[r] = isfinite(middle) ? middle : 0;
    }
}

/* Where a piece of some lines is, and of which type; `split`: whether its pairs are. */
typedef struct norm_from {
    bsk_dtype type;
    bool split;
    const void *x;
    int64_t at[LINES];
} norm_from;

typedef struct norm_sums {
    vec_f32 sum[LINES], square[LINES];
} norm_sums;

/* The pairs at k of lines 0 .. rows - 1. */
OMP_INLINE void norm_take(norm_sums *s, const norm_from *from, const float *shift, int rows,
                          int64_t k)
{
    _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++)
    {
        const line_pair x = pair_load(from->type, from->x, from->at[r] + k, from->split);
        const vec_f32 a = x.v[0] - shift[r], b = x.v[1] - shift[r];
        s->sum[r] += a + b;
        s->square[r] += a * a;
        s->square[r] += b * b;
    }
}

/* A piece of line r alone. */
OMP_INLINE void norm_take_line(norm_lines *l, int r, bsk_dtype type, const void *x, int64_t at,
                               int64_t count, bool split)
{
    norm_sums s = {.sum = {l->sum[r]}, .square = {l->square[r]}};
    const norm_from from = {type, split, x, {at}};
    for (int64_t k = 0; k < count; k += PAIR)
        norm_take(&s, &from, &l->shift[r], 1, k);
    l->sum[r] = s.sum[0];
    l->square[r] = s.square[0];
}

/* The sum of (x - mean)^2 of a line, by a pass of its own. */
static double norm_square(const layer_norm *v, const norm_lines *l, int r, float mean)
{
    float row[CHUNK];
    double square = 0;
    for (int64_t i = 0; i < v->count; i += CHUNK) {
        const int64_t count = min_i64(CHUNK, v->count - i);
        row_load_padded(row, v->p->x.dtype, bsk_mem_address(v->a->x), l->x[r] + i, count, mean);
        square += (double)row_square(row, count, mean);
    }
    return square;
}

/* The moments by the sums about the shift. Where they are far apart the difference of sums would
 * have lost too much. */
static void norm_end(const layer_norm *v, norm_lines *l)
{
    const double terms = (double)max_i64(v->count, 1), far = 3;
    for (int r = 0; r < l->count; r++) {
        const double part = v->p->rms ? 0 : (double)lanes_sum(l->sum[r]) / terms;
        double square = (double)lanes_sum(l->square[r]) / terms - part * part;
        l->mean[r] = (float)((double)l->shift[r] + part);
        if (part * part > far * square)
            square = norm_square(v, l, r, l->mean[r]) / terms;
        l->rstd[r] = (float)(1 / sqrt(square + (double)bski_f32_eps(v->p->eps)));
        moments_store(v, l->s[r], (l->first + r) / v->p->segments, l->mean[r], l->rstd[r]);
    }
}

/* Where a piece of some lines goes; at: where it is. */
typedef struct norm_to {
    bsk_dtype type, y_type;
    bool split, relu, stream;
    const void *x;
    void *y;
    const float *gain, *bias;
    int64_t at[LINES], to[LINES];
    int64_t ahead[LINES]; /* what is to be read later, to ask for */
    normal n;
} norm_to;

/* y = act((x - mean) * rstd * gain + bias) of the pairs at k of lines 0 .. rows - 1. */
OMP_INLINE void norm_put(const norm_to *d, int rows, int64_t k)
{
    const line_pair gain = pair_load(BSK_F32, d->gain, k, false);
    const line_pair bias = pair_load(BSK_F32, d->bias, k, false);
    _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++)
    {
        line_pair p = pair_load(d->type, d->x, d->at[r] + k, d->split);
        line_fetch(d->type, d->x, d->ahead[r] + k);
        for (int j = 0; j < 2; j++) {
            p.v[j] = normal_f32(&d->n, r, p.v[j]) * gain.v[j] + bias.v[j];
            if (d->relu)
                p.v[j] = larger_f32(splat_f32(0), p.v[j]);
        }
        pair_put(d->y_type, d->y, d->to[r] + k, p, d->split, d->stream);
    }
}

/* A piece of line r alone. */
OMP_INLINE void norm_put_line(const norm_lines *l, int r, norm_to *d, int64_t count)
{
    normal_at(&d->n, 0, l->mean[r], l->rstd[r]);
    for (int64_t k = 0; k < count; k += PAIR)
        norm_put(d, 1, k);
}

/* The last piece of the lines, at i, which is shorter and takes the way through a buffer. */
static void norm_rest(const layer_norm *v, norm_lines *l, const norm_lines *late, affine *f,
                      int64_t i)
{
    const bsk_layer_norm_params *p = v->p;
    const int64_t count = v->count - i;
    float row[PIECE];
    for (int r = 0; r < l->count; r++) {
        row_load_f32(row, p->x.dtype, bsk_mem_address(v->a->x), l->x[r] + i, count);
        for (int64_t k = count; k % PAIR; k++)
            row[k] = l->shift[r];
        norm_take_line(l, r, BSK_F32, row, 0, count, false);
    }
    for (int r = 0; r < late->count; r++) {
        const int64_t feature = late->s[r] * v->count + i;
        affine_at(f, feature, count, false);
        norm_to d = {.type = BSK_F32,
                     .y_type = BSK_F32,
                     .relu = p->relu != 0,
                     .x = row,
                     .y = row,
                     .gain = f->gain,
                     .bias = f->bias};
        row_load_f32(row, p->x.dtype, bsk_mem_address(v->a->x), late->x[r] + i, count);
        for (int64_t k = count; k % PAIR; k++)
            row[k] = 0;
        norm_put_line(late, r, &d, count);
        row_store_f32(row, p->y.dtype, bsk_mem_address(v->a->y), late->y[r] + i, count);
    }
}

/* How many numbers of a line are read before as many are written: few, since stores past the caches
 * and requests wait where they come in large numbers; but each of the two has a loop of its own, which
 * its constants stay in registers for. */
enum { STEP = 2 * PAIR };

/* Whole pieces at i of all the lines: together where there are as many as usual, and of one segment. */
OMP_INLINE void norm_piece(const layer_norm *v, norm_lines *l, const norm_lines *late,
                           const norm_lines *next, affine *f, int64_t i, bsk_dtype type,
                           bsk_dtype y_type, bool split)
{
    const bsk_layer_norm_params *p = v->p;
    const void *x = bsk_mem_address(v->a->x);
    norm_from from = {type, split, x, {0}};
    norm_to d; /* filling all of it would take as long as a piece */
    d.type = type;
    d.y_type = y_type;
    d.split = split;
    d.relu = p->relu != 0;
    d.stream = v->stream;
    d.n.early = split && !d.relu;
    d.x = x;
    d.y = bsk_mem_address(v->a->y);
    if (l->count == LINES && late->count == LINES && p->segments == 1) {
        float shift[LINES];
        norm_sums s;
        memcpy(s.sum, l->sum, sizeof s.sum);
        memcpy(s.square, l->square, sizeof s.square);
        affine_at(f, i, PIECE, split);
        d.gain = f->gain;
        d.bias = f->bias;
        for (int r = 0; r < LINES; r++) {
            shift[r] = l->shift[r];
            normal_at(&d.n, r, late->mean[r], late->rstd[r]);
            from.at[r] = l->x[r] + i;
            d.at[r] = late->x[r] + i;
            d.to[r] = late->y[r] + i;
            d.ahead[r] = next->x[r] + i;
        }
        for (int64_t step = 0; step < PIECE; step += STEP) {
            _Pragma("GCC unroll 1") for (int64_t k = step; k < step + STEP; k += PAIR)
                norm_take(&s, &from, shift, LINES, k);
            keep_order();
            _Pragma("GCC unroll 1") for (int64_t k = step; k < step + STEP; k += PAIR)
                norm_put(&d, LINES, k);
        }
        memcpy(l->sum, s.sum, sizeof s.sum);
        memcpy(l->square, s.square, sizeof s.square);
        return;
    }
    for (int r = 0; r < l->count; r++)
        norm_take_line(l, r, type, x, l->x[r] + i, PIECE, split);
    for (int r = 0; r < late->count; r++) {
        const int64_t feature = late->s[r] * v->count + i;
        if (r == 0 || late->s[r] != late->s[r - 1])
            affine_at(f, feature, PIECE, split);
        d.gain = f->gain;
        d.bias = f->bias;
        d.at[0] = late->x[r] + i;
        d.to[0] = late->y[r] + i;
        d.ahead[0] = d.at[0];
        norm_put_line(late, r, &d, PIECE);
    }
}

/* Reads some lines, while the ones before them are written; asks for the next. */
OMP_INLINE void norm_pass(const layer_norm *v, norm_lines *l, const norm_lines *late, affine *f,
                          bsk_dtype type, bsk_dtype y_type, bool split)
{
    norm_lines next;
    int64_t i = 0;
    norm_lines_at(v, &next, l->first + LINES);
    for (int r = next.count; r < l->count; r++) /* nothing else to ask for */
        next.x[r] = l->x[r];
    norm_begin(v, l);
    for (; i + PIECE <= v->count; i += PIECE)
        norm_piece(v, l, late, &next, f, i, type, y_type, split);
    if (i < v->count)
        norm_rest(v, l, late, f, i);
    norm_end(v, l);
}

#define NORM_PASS(name, type, y_type, split)                                                       \
    static void name(const layer_norm *v, norm_lines *l, const norm_lines *late, affine *f)        \
    {                                                                                              \
        norm_pass(v, l, late, f, type, y_type, split);                                             \
    }
NORM_PASS(norm_pass_f32, BSK_F32, BSK_F32, false)
NORM_PASS(norm_pass_f16, BSK_F16, BSK_F16, false)
NORM_PASS(norm_pass_bf16, BSK_BF16, BSK_BF16, true)
NORM_PASS(norm_pass_mixed, v->p->x.dtype, v->p->y.dtype, false)

typedef void norm_pass_fn(const layer_norm *v, norm_lines *l, const norm_lines *late, affine *f);

static norm_pass_fn *norm_pass_of(const bsk_layer_norm_params *p)
{
    const bsk_dtype type = p->x.dtype;
    if (type != p->y.dtype)
        return norm_pass_mixed;
    return type == BSK_F32 ? norm_pass_f32 : type == BSK_BF16 ? norm_pass_bf16 : norm_pass_f16;
}

/* Groups of lines; every thread has two on their way. */
static void layer_norm_rows(const layer_norm *v)
{
    norm_pass_fn *const pass = norm_pass_of(v->p);
    norm_lines lines[2] = {{.count = 0}, {.count = 0}};
    affine f;
    int turn = 0;
    affine_begin(&f, optional(v->p->gain.dtype, v->a->gain, 0),
                 optional(v->p->bias.dtype, v->a->bias, 0), v->shape.inner, v->p->segments,
                 pass == norm_pass_bf16);
#pragma omp for schedule(static) nowait
    for (int64_t g = 0; g < bski_ceil_div(v->rows * v->p->segments, LINES); g++) {
        norm_lines_at(v, &lines[turn], g * LINES);
        pass(v, &lines[turn], &lines[!turn], &f);
        turn = !turn;
    }
    norm_lines_at(v, &lines[turn], v->rows * v->p->segments);
    pass(v, &lines[turn], &lines[!turn], &f);
}

/* total += the sum over the features of a segment of (x - mean)^power, column by column. */
static void columns_sum(const layer_norm *v, int64_t s, int64_t n, int64_t count, const float *mean,
                        bool square, float *restrict total)
{
    const bsk_layer_norm_params *p = v->p;
    float row[COLUMNS];
    for (int64_t f = s * v->count; f < (s + 1) * v->count;) {
        const int64_t end = min_i64((s + 1) * v->count, f + COLUMN_PART);
        float sum[COLUMNS] = {0};
        for (; f < end; f++) {
            row_load_f32(row, p->x.dtype, bsk_mem_address(v->a->x), row_at(&p->x, &v->shape, f, n),
                         count);
            for (int64_t i = 0; i < count; i++) {
                const float d = row[i] - mean[i];
                sum[i] += square ? d * d : d;
            }
        }
        for (int64_t i = 0; i < count; i++)
            total[i] += sum[i];
    }
}

/* Rows n .. n + count, which lie side by side. */
static void layer_norm_columns(const layer_norm *v, int64_t s, int64_t n, int64_t count)
{
    const bsk_layer_norm_params *p = v->p;
    const float terms = (float)max_i64(v->count, 1), low = lowest(p->relu != 0);
    float mean[COLUMNS] = {0}, rstd[COLUMNS] = {0}, total[COLUMNS] = {0}, row[COLUMNS];

    if (!p->rms)
        columns_sum(v, s, n, count, mean, false, total);
    for (int64_t i = 0; i < count; i++)
        mean[i] = total[i] / terms;
    columns_sum(v, s, n, count, mean, true, rstd);
    for (int64_t i = 0; i < count; i++) {
        rstd[i] = 1 / sqrtf(rstd[i] / terms + bski_f32_eps(p->eps));
        moments_store(v, s, n + i, mean[i], rstd[i]);
    }
    for (int64_t f = s * v->count; f < (s + 1) * v->count; f++) {
        const float *gain = optional(p->gain.dtype, v->a->gain, f);
        const float *bias = optional(p->bias.dtype, v->a->bias, f);
        const float g = gain ? *gain : 1, b = bias ? *bias : 0;
        row_load_f32(row, p->x.dtype, bsk_mem_address(v->a->x), row_at(&p->x, &v->shape, f, n),
                     count);
        for (int64_t i = 0; i < count; i++) {
            const float y = (row[i] - mean[i]) * rstd[i] * g + b;
            row[i] = y <= low ? low : y;
        }
        row_store_f32(row, p->y.dtype, bsk_mem_address(v->a->y), row_at(&p->y, &v->shape, f, n),
                      count);
    }
}

OMP_LAUNCH(layer_norm)
{
    const bsk_layer_norm_params *p = prepared->problem->params;
    layer_norm v = {p, args, .shape = act_shape_of(&p->x, p->axis, layer_norm_axis(p))};
    const act_shape *s = &v.shape;
    const int64_t size = band_columns(s), segments = p->segments;
    v.rows = s->features_inner ? s->outer : s->inner;
    v.count = (s->features_inner ? s->inner : s->outer) / segments;
    v.stream = streams(p->y.dtype, s->outer, s->inner) && (segments == 1 || v.count % PIECE == 0) &&
               lines_whole(&p->y, s->axis, bsk_mem_address(v.a->y));

#pragma omp parallel num_threads(queue_threads(queue))
    {
        if (s->features_inner) {
            layer_norm_rows(&v);
        } else {
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < band_count(s) * segments; i++) {
                const int64_t n = i / segments * size;
                layer_norm_columns(&v, i % segments, n, min_i64(size, v.rows - n));
            }
        }
        stream_fence();
    }
    return BSK_OK;
}
