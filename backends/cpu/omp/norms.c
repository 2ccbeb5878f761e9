/* layer_norm. A row stays in a cache from its load to its store; rows that lie across memory, a band
 * of columns at a time. */
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

/* A row's segment on its way: first its sums are taken, of distances from about its middle or,
 * by pairs, from 0, which brings it into a cache; then it is written, while the next one is asked for. */
typedef struct norm_line {
    int64_t n, s, x, y; /* row and segment; where they begin */
    float shift, mean, rstd;
} norm_line;

static norm_line norm_line_at(const layer_norm *v, int64_t i)
{
    const bsk_layer_norm_params *p = v->p;
    norm_line l = {.n = i / p->segments, .s = i % p->segments};
    l.x = row_at(&p->x, &v->shape, l.n, l.s * v->count);
    l.y = row_at(&p->y, &v->shape, l.n, l.s * v->count);
    return l;
}

/* The mean of the first elements: from all the others it differs by a few deviations at most, or
 * there are few of those. */
static float norm_shift(const layer_norm *v, const norm_line *l)
{
    const int64_t count = min_i64(PIECE, v->count);
    float row[PIECE];
    if (v->p->rms || !count)
        return 0;
    row_load_padded(row, v->p->x.dtype, bsk_mem_address(v->a->x), l->x, count, 0);
    const float middle = row_sum(row, count) / (float)count;
    return isfinite(middle) ? middle : 0;
}

/* Sums that do not wait for each other. */
enum { CHAINS = 4 };

typedef struct norm_sums {
    vec_f32 sum[CHAINS], square[CHAINS];
} norm_sums;

OMP_INLINE void norm_take(norm_sums *s, int chain, line_pair x, float shift)
{
    const vec_f32 a = x.v[0] - shift, b = x.v[1] - shift;
    s->sum[chain] += a + b;
    s->square[chain] += a * a;
    s->square[chain] += b * b;
}

/* The same of pairs of bf16, about 0, by the instructions that multiply such. */
#if defined(BSK_ISA_AVX512) && defined(PRODUCTS_BF16)
enum { PAIR_PRODUCTS = 1 };

OMP_INLINE void norm_take_pairs(norm_sums *s, int chain, const uint16_t *x)
{
    const __m512bh pairs = (__m512bh)_mm512_loadu_si512(x);
    const __m512bh one = (__m512bh)_mm512_set1_epi16(0x3f80);
    s->sum[chain] = (vec_f32)_mm512_dpbf16_ps((__m512)s->sum[chain], pairs, one);
    s->square[chain] = (vec_f32)_mm512_dpbf16_ps((__m512)s->square[chain], pairs, pairs);
}
#else
enum { PAIR_PRODUCTS = 0 };

OMP_INLINE void norm_take_pairs(norm_sums *s, int chain, const uint16_t *x)
{
    (void)s, (void)chain, (void)x;
}
#endif

/* The sums of a line: of whole pieces from where they lie, of the last elements through a buffer. */
OMP_INLINE norm_sums norm_sum(const layer_norm *v, const norm_line *l, bsk_dtype type, bool split,
                              bool by_pairs)
{
    const void *x = bsk_mem_address(v->a->x);
    const int64_t whole = v->count - v->count % PIECE, rest = v->count - whole;
    const float shift = l->shift;
    float row[PIECE];
    norm_sums s = {0};
    for (int64_t i = 0; i < whole; i += CHAINS * PAIR)
        _Pragma("GCC unroll 4") for (int c = 0; c < CHAINS; c++)
        {
            const int64_t at = l->x + i + c * PAIR;
            if (by_pairs)
                norm_take_pairs(&s, c, (const uint16_t *)x + at);
            else
                norm_take(&s, c, pair_load(type, x, at, split), shift);
        }
    if (rest) {
        row_load_f32(row, v->p->x.dtype, x, l->x + whole, rest);
        for (int64_t k = rest; k % PAIR; k++)
            row[k] = shift;
        for (int64_t k = 0; k < rest; k += PAIR)
            norm_take(&s, 0, pair_load(BSK_F32, row, k, false), shift);
    }
    return s;
}

/* The sum of (x - mean)^2 of a line, by a pass of its own. */
static double norm_square(const layer_norm *v, const norm_line *l)
{
    float row[CHUNK];
    double square = 0;
    for (int64_t i = 0; i < v->count; i += CHUNK) {
        const int64_t count = min_i64(CHUNK, v->count - i);
        row_load_padded(row, v->p->x.dtype, bsk_mem_address(v->a->x), l->x + i, count, l->mean);
        square += (double)row_square(row, count, l->mean);
    }
    return square;
}

/* From sums about the shift: how far the mean is from it, and the mean of squares about the mean. */
typedef struct norm_moments {
    double part, square;
} norm_moments;

static norm_moments norm_reduce(const layer_norm *v, const norm_sums *s)
{
    const double terms = (double)max_i64(v->count, 1);
    const vec_f32 sum = (s->sum[0] + s->sum[1]) + (s->sum[2] + s->sum[3]);
    const vec_f32 squares = (s->square[0] + s->square[1]) + (s->square[2] + s->square[3]);
    const double part = v->p->rms ? 0 : (double)lanes_sum(sum) / terms;
    return (norm_moments){part, (double)lanes_sum(squares) / terms - part * part};
}

/* Too far apart: the difference of sums has lost too much. */
static bool norm_apart(norm_moments m)
{
    const double far = 3;
    return m.part * m.part > far * m.square;
}

static void norm_end(const layer_norm *v, norm_line *l, norm_moments m)
{
    l->mean = (float)((double)l->shift + m.part);
    if (norm_apart(m))
        m.square = norm_square(v, l) / (double)max_i64(v->count, 1);
    l->rstd = (float)(1 / sqrt(m.square + (double)bski_f32_eps(v->p->eps)));
    moments_store(v, l->s, l->n, l->mean, l->rstd);
}

/* The moments of a line. Products of pairs know no shift and take denormal numbers as 0: where that
 * shows, or squares overflow, its sums are taken anew. */
OMP_INLINE void norm_measure(const layer_norm *v, norm_line *l, bsk_dtype type, bool split)
{
    const double tiny = 0x1p-80;
    if (PAIR_PRODUCTS && split) {
        const norm_sums s = norm_sum(v, l, type, split, true);
        const norm_moments m = norm_reduce(v, &s);
        if (isfinite(m.square) && m.square > tiny && !norm_apart(m)) {
            norm_end(v, l, m);
            return;
        }
    }
    l->shift = norm_shift(v, l);
    const norm_sums s = norm_sum(v, l, type, split, false);
    norm_end(v, l, norm_reduce(v, &s));
}

/* y = act((x - mean) * rstd * gain + bias) of a pair. */
OMP_INLINE line_pair norm_pair(const normal *n, line_pair p, bool relu, const float *gain,
                               const float *bias, int64_t at)
{
    const line_pair g = pair_load(BSK_F32, gain, at, false);
    const line_pair b = pair_load(BSK_F32, bias, at, false);
    for (int j = 0; j < 2; j++) {
        p.v[j] = normal_f32(n, 0, p.v[j]) * g.v[j] + b.v[j];
        if (relu)
            p.v[j] = larger_f32(splat_f32(0), p.v[j]);
    }
    return p;
}

/* Whole pieces of a line, from i to end. */
OMP_INLINE void norm_pieces(const layer_norm *v, const norm_line *l, affine *f, int64_t i,
                            int64_t end, bsk_dtype type, bsk_dtype y_type, bool split, bool relu,
                            bool stream)
{
    const int64_t feature = l->s * v->count, x_at = l->x, y_at = l->y;
    const void *x = bsk_mem_address(v->a->x);
    void *y = bsk_mem_address(v->a->y);
    const float *gain, *bias;
    normal n = {.early = split && !relu};
    normal_at(&n, 0, l->mean, l->rstd);
    for (; i < end; i += PIECE) {
        affine_piece(f, &gain, &bias, feature + i, split);
        _Pragma("GCC unroll 4") for (int64_t k = i; k < i + PIECE; k += PAIR)
        {
            const line_pair p = pair_load(type, x, x_at + k, split);
            pair_put_near(y_type, y, y_at + k, norm_pair(&n, p, relu, gain, bias, feature + k),
                          split, stream);
        }
    }
}

/* The same, after as much of the line at `ahead` has been asked for. */
OMP_INLINE void norm_put(const layer_norm *v, const norm_line *l, int64_t ahead, affine *f,
                         int64_t i, int64_t end, bsk_dtype type, bsk_dtype y_type, bool split)
{
    lines_fetch(type, bsk_mem_address(v->a->x), ahead + i, end - i);
    if (v->p->relu)
        norm_pieces(v, l, f, i, end, type, y_type, split, true, v->stream);
    else if (v->stream)
        norm_pieces(v, l, f, i, end, type, y_type, split, false, true);
    else
        norm_pieces(v, l, f, i, end, type, y_type, split, false, false);
}

/* The last elements of a line, through a buffer. */
static void norm_put_rest(const layer_norm *v, const norm_line *l, affine *f, int64_t i)
{
    const bsk_layer_norm_params *p = v->p;
    const int64_t count = v->count - i;
    float row[PIECE];
    normal n = {.early = false};
    normal_at(&n, 0, l->mean, l->rstd);
    affine_at(f, l->s * v->count + i, count, false);
    row_load_f32(row, p->x.dtype, bsk_mem_address(v->a->x), l->x + i, count);
    for (int64_t k = count; k % PAIR; k++)
        row[k] = 0;
    for (int64_t k = 0; k < count; k += PAIR) {
        const line_pair x = pair_load(BSK_F32, row, k, false);
        pair_put(BSK_F32, row, k, norm_pair(&n, x, p->relu != 0, f->gain, f->bias, k), false,
                 false);
    }
    row_store_f32(row, p->y.dtype, bsk_mem_address(v->a->y), l->y + i, count);
}

/* Lines that are written together, so that gain and bias come from the second-level cache once for
 * all of them: so many bytes of each in turn. */
enum { TOGETHER = 2, STRETCH_BYTES = 1024 };

/* Lines from number `first` on. */
OMP_INLINE void norm_pass(const layer_norm *v, int64_t first, int count, affine *f, bsk_dtype type,
                          bsk_dtype y_type, bool split)
{
    const int64_t lines = v->rows * v->p->segments, whole = v->count - v->count % PIECE;
    const int64_t stretch = STRETCH_BYTES / (int64_t)type_size(type);
    norm_line l[TOGETHER];
    int64_t ahead[TOGETHER];
    for (int r = 0; r < count; r++) {
        l[r] = norm_line_at(v, first + r);
        norm_measure(v, &l[r], type, split);
        const int64_t next = first + TOGETHER + r;
        ahead[r] = next < lines ? norm_line_at(v, next).x : l[r].x;
    }
    for (int64_t i = 0; i < whole; i += stretch)
        for (int r = 0; r < count; r++)
            norm_put(v, &l[r], ahead[r], f, i, min_i64(whole, i + stretch), type, y_type, split);
    for (int r = 0; whole < v->count && r < count; r++)
        norm_put_rest(v, &l[r], f, whole);
}

#define NORM_PASS(name, type, y_type, split)                                                       \
    static void name(const layer_norm *v, int64_t first, int count, affine *f)                     \
    {                                                                                              \
        norm_pass(v, first, count, f, type, y_type, split);                                        \
    }
NORM_PASS(norm_pass_f32, BSK_F32, BSK_F32, false)
NORM_PASS(norm_pass_f16, BSK_F16, BSK_F16, false)
NORM_PASS(norm_pass_bf16, BSK_BF16, BSK_BF16, true)
NORM_PASS(norm_pass_mixed, v->p->x.dtype, v->p->y.dtype, false)

typedef void norm_pass_fn(const layer_norm *v, int64_t first, int count, affine *f);

static norm_pass_fn *norm_pass_of(const bsk_layer_norm_params *p)
{
    const bsk_dtype type = p->x.dtype;
    if (type != p->y.dtype)
        return norm_pass_mixed;
    return type == BSK_F32 ? norm_pass_f32 : type == BSK_BF16 ? norm_pass_bf16 : norm_pass_f16;
}

static void layer_norm_rows(const layer_norm *v)
{
    norm_pass_fn *const pass = norm_pass_of(v->p);
    const int64_t lines = v->rows * v->p->segments;
    affine f;
    affine_begin(&f, optional(v->p->gain.dtype, v->a->gain, 0),
                 optional(v->p->bias.dtype, v->a->bias, 0), v->shape.inner, v->p->segments,
                 pass == norm_pass_bf16);
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < lines; i += TOGETHER)
        pass(v, i, (int)min_i64(TOGETHER, lines - i), &f);
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
