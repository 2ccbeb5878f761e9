/* layer_norm and its gradient. Rows are taken a few at a time, and stay in a cache from their load to
 * their store; rows that lie across memory, a band of columns at a time. */
#include "lines.h"

/* Columns of a band, at most; partial sums of a column; rows of a band, and how many bands. */
enum { COLUMNS = 512, COLUMN_UNIT = 16, COLUMN_PART = 64, BAND_ROWS = 32, BANDS = 64 };

/* Columns of a band of so many features: as much as stays near, but enough bands to share out. */
static int64_t band_columns(const act_shape *s)
{
    const int64_t near = NEAR / (int64_t)sizeof(float) / max_i64(s->outer, 1);
    const int64_t share = bski_ceil_div(s->inner, BANDS / 2);
    const int64_t units = bski_ceil_div(min_i64(near, share), COLUMN_UNIT);
    return min_i64(COLUMNS, max_i64(units, 1) * COLUMN_UNIT);
}

/* Bands of rows, or of columns where the features lie across. */
static int64_t band_size(const act_shape *s)
{
    return s->features_inner ? max_i64(BAND_ROWS, bski_ceil_div(s->outer, BANDS)) : band_columns(s);
}

static int64_t band_count(const act_shape *s)
{
    return bski_ceil_div(s->features_inner ? s->outer : s->inner, band_size(s));
}

static const float *optional(bsk_dtype type, bsk_mem mem, int64_t at)
{
    return type == BSK_NONE ? NULL : (const float *)bsk_mem_address(mem) + at;
}

/* The gain and the bias of a piece: 1 and 0 where there are none, and behind the end of a row. */
typedef struct affine {
    const float *gain, *bias;
    float one[PIECE], zero[PIECE], gains[PIECE], biases[PIECE];
} affine;

static void affine_begin(affine *f)
{
    for (int64_t k = 0; k < PIECE; k++)
        f->gains[k] = f->one[k] = 1, f->biases[k] = f->zero[k] = 0;
}

static void affine_at(affine *f, const float *gain, const float *bias, int64_t count)
{
    f->gain = gain ? gain : f->one;
    f->bias = bias ? bias : f->zero;
    if (count == PIECE)
        return;
    memcpy(f->gains, f->gain, (size_t)count * sizeof *f->gains);
    memcpy(f->biases, f->bias, (size_t)count * sizeof *f->biases);
    f->gain = f->gains;
    f->bias = f->biases;
}

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

/* A piece of line r, which begins at x[at]; what begins at x[ahead] is asked for. */
OMP_INLINE void norm_take(norm_lines *l, int r, bsk_dtype type, const void *x, int64_t at,
                          int64_t ahead, int64_t count)
{
    const float shift = l->shift[r];
    vec_f32 sum = l->sum[r], square = l->square[r];
    for (int64_t k = 0; k < count; k += PAIR) {
        const vec_f32 a = line_load(type, x, at + k) - shift;
        const vec_f32 b = line_load(type, x, at + k + F32_LANES) - shift;
        line_fetch(type, x, ahead + k);
        sum += a + b;
        square += a * a;
        square += b * b;
    }
    l->sum[r] = sum;
    l->square[r] = square;
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
        l->rstd[r] = (float)(1 / sqrt(square + v->p->eps));
        moments_store(v, l->s[r], (l->first + r) / v->p->segments, l->mean[r], l->rstd[r]);
    }
}

/* y = act((x - mean) * rstd * gain + bias) of a piece of line r. */
OMP_INLINE void norm_put(const norm_lines *l, int r, const affine *f, float low, bsk_dtype type,
                         const void *x, int64_t at, bsk_dtype y_type, void *y, int64_t to,
                         int64_t count, bool stream)
{
    const float mean = l->mean[r], rstd = l->rstd[r];
    for (int64_t k = 0; k < count; k += PAIR) {
        vec_f32 z[2];
        for (int j = 0; j < 2; j++) {
            const int64_t i = k + j * F32_LANES;
            const vec_f32 h = (line_load(type, x, at + i) - mean) * rstd;
            z[j] = larger_f32(splat_f32(low), h * load_f32(f->gain + i) + load_f32(f->bias + i));
        }
        line_put(y_type, y, to + k, z[0], z[1], stream);
    }
}

/* The same for pieces at i of all the lines; the last one of a row may be shorter, and takes the
 * way through a buffer. */
OMP_INLINE void norm_piece(const layer_norm *v, norm_lines *l, const norm_lines *late,
                           const norm_lines *next, affine *f, int64_t i, bsk_dtype type,
                           bsk_dtype y_type)
{
    const bsk_layer_norm_params *p = v->p;
    const void *x = bsk_mem_address(v->a->x);
    void *y = bsk_mem_address(v->a->y);
    const int64_t count = min_i64(PIECE, v->count - i);
    const float low = lowest(p->relu != 0);
    float row[PIECE];
    for (int r = 0; r < l->count; r++) {
        if (count == PIECE) {
            norm_take(l, r, type, x, l->x[r] + i, next->x[r] + i, PIECE);
        } else {
            row_load_f32(row, p->x.dtype, x, l->x[r] + i, count);
            for (int64_t k = count; k % PAIR; k++)
                row[k] = l->shift[r];
            norm_take(l, r, BSK_F32, row, 0, 0, count);
        }
    }
    for (int r = 0; r < late->count; r++) {
        const int64_t feature = late->s[r] * v->count + i;
        if (r == 0 || late->s[r] != late->s[r - 1])
            affine_at(f, optional(p->gain.dtype, v->a->gain, feature),
                      optional(p->bias.dtype, v->a->bias, feature), count);
        if (count == PIECE) {
            norm_put(late, r, f, low, type, x, late->x[r] + i, y_type, y, late->y[r] + i, PIECE,
                     v->stream);
        } else {
            row_load_f32(row, p->x.dtype, x, late->x[r] + i, count);
            for (int64_t k = count; k % PAIR; k++)
                row[k] = 0;
            norm_put(late, r, f, low, BSK_F32, row, 0, BSK_F32, row, 0, count, false);
            row_store_f32(row, p->y.dtype, y, late->y[r] + i, count);
        }
    }
}

/* Reads some lines, while the ones before them are written; asks for the next. */
OMP_INLINE void norm_pass(const layer_norm *v, norm_lines *l, const norm_lines *late, affine *f,
                          bsk_dtype type, bsk_dtype y_type)
{
    norm_lines next;
    norm_lines_at(v, &next, l->first + LINES);
    for (int r = next.count; r < l->count; r++) /* nothing else to ask for */
        next.x[r] = l->x[r];
    norm_begin(v, l);
    for (int64_t i = 0; i < v->count; i += PIECE)
        norm_piece(v, l, late, &next, f, i, type, y_type);
    norm_end(v, l);
}

#define NORM_PASS(name, type, y_type)                                                              \
    static void name(const layer_norm *v, norm_lines *l, const norm_lines *late, affine *f)        \
    {                                                                                              \
        norm_pass(v, l, late, f, type, y_type);                                                    \
    }
NORM_PASS(norm_pass_f32, BSK_F32, BSK_F32)
NORM_PASS(norm_pass_f16, BSK_F16, BSK_F16)
NORM_PASS(norm_pass_bf16, BSK_BF16, BSK_BF16)
NORM_PASS(norm_pass_mixed, v->p->x.dtype, v->p->y.dtype)

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
    affine_begin(&f);
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
        rstd[i] = 1 / sqrtf(rstd[i] / terms + (float)p->eps);
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

/* --- layer_norm_grad -------------------------------------------------------------------------- */

OMP_DECLARE(layer_norm_grad);

static int32_t layer_norm_grad_axis(const bsk_layer_norm_grad_params *p)
{
    const bsk_tensor *const tensors[] = {&p->dy, &p->x, &p->dx};
    return common_axis(tensors, 3);
}

OMP_ACCEPT(layer_norm_grad)
{
    const bsk_layer_norm_grad_params *p = problem->params;
    (void)props;
    if (!is_narrow(&p->dy) || !is_narrow(&p->x) || !is_narrow(&p->dx))
        return BSK_REFUSE_DTYPE;
    return layer_norm_grad_axis(p) < 0 ? BSK_REFUSE_STRIDE : BSK_ACCEPT;
}

static bool wants_sums(const bsk_layer_norm_grad_params *p)
{
    return p->dgain.dtype != BSK_NONE || p->dbias.dtype != BSK_NONE;
}

/* Workspace: of each band the features' sums of g * h, and of g. */
OMP_PREPARE(layer_norm_grad)
{
    const bsk_layer_norm_grad_params *p = prepared->problem->params;
    const act_shape s = act_shape_of(&p->dy, p->axis, layer_norm_grad_axis(p));
    const int64_t features = s.features_inner ? s.inner : s.outer;
    size_t bytes = 0;
    (void)device;
    if (wants_sums(p) && (!bski_mul_size((size_t)features, 2 * sizeof(float), &bytes) ||
                          !bski_mul_size(bytes, (size_t)max_i64(band_count(&s), 1), &bytes)))
        return BSK_E_UNSUPPORTED;
    prepared->workspace_bytes = bytes;
    return BSK_OK;
}

typedef struct layer_grad layer_grad;
typedef struct grad_lines grad_lines;
typedef void grad_pass_fn(const layer_grad *v, grad_lines *l, grad_lines *late, affine *f,
                          int64_t first, int64_t end, float *sums);

struct layer_grad {
    const bsk_layer_norm_grad_params *p;
    const bsk_layer_norm_grad_args *a;
    act_shape shape;
    int64_t rows, features, count; /* count: of a segment */
    const float *mean, *rstd;      /* mean: NULL with rms */
    bool stream;
    grad_pass_fn *pass;
};

static float mean_at(const layer_grad *v, int64_t s, int64_t n)
{
    return v->mean ? v->mean[s * v->rows + n] : 0;
}

/* --- rows --- */

/* Rows on their way, as above; part and part_h are the means of t and of t * h, where h is the
 * normalized x, and t is dy (where relu let it through) times the gain. */
struct grad_lines {
    int count;
    int64_t s[LINES], dy[LINES], x[LINES], dx[LINES];
    float mean[LINES], rstd[LINES], part[LINES], part_h[LINES];
    vec_f32 sum[LINES], sum_h[LINES];
};

static void grad_lines_at(const layer_grad *v, grad_lines *l, int64_t first, int64_t end)
{
    const bsk_layer_norm_grad_params *p = v->p;
    l->count = (int)max_i64(0, min_i64(LINES, end - first));
    for (int r = 0; r < l->count; r++) {
        const int64_t n = (first + r) / p->segments, s = (first + r) % p->segments;
        l->s[r] = s;
        l->dy[r] = row_at(&p->dy, &v->shape, n, s * v->count);
        l->x[r] = row_at(&p->x, &v->shape, n, s * v->count);
        l->dx[r] = row_at(&p->dx, &v->shape, n, s * v->count);
        l->mean[r] = mean_at(v, s, n);
        l->rstd[r] = v->rstd[s * v->rows + n];
        l->sum[r] = l->sum_h[r] = (vec_f32){0};
    }
}

/* Where a piece of a row is, and of which types; slopes: of relu. */
typedef struct grad_piece {
    bsk_dtype dy_type, x_type, dx_type;
    const void *dy, *x;
    void *dx;
    const affine *f;
    bool relu, stream;
    const void *dy_ahead, *x_ahead; /* what to ask for */
} grad_piece;

OMP_INLINE vec_f32 relu_slopes(vec_f32 x)
{
    const vec_f32 kept = select_f32(x > 0.0f, splat_f32(1), x);
    return select_f32(x <= 0.0f, splat_f32(0), kept);
}

/* g = dy where relu let it through, and h, of one vector. */
OMP_INLINE vec_f32 grad_load(const grad_piece *at, int64_t k, float mean, float rstd, vec_f32 *h)
{
    const vec_f32 g = line_load(at->dy_type, at->dy, k);
    *h = (line_load(at->x_type, at->x, k) - mean) * rstd;
    return at->relu ? g * relu_slopes(*h * load_f32(at->f->gain + k) + load_f32(at->f->bias + k))
                    : g;
}

/* A piece of line r; sums: those of the features, dgain before dbias, or NULL. */
OMP_INLINE void grad_take(grad_lines *l, int r, const grad_piece *at, int64_t count, float *dgain,
                          float *dbias)
{
    const float mean = l->mean[r], rstd = l->rstd[r];
    vec_f32 sum = l->sum[r], sum_h = l->sum_h[r];
    for (int64_t k = 0; k < count; k += F32_LANES) {
        vec_f32 h;
        const vec_f32 g = grad_load(at, k, mean, rstd, &h), t = g * load_f32(at->f->gain + k);
        if (k % PAIR == 0) {
            line_fetch(at->dy_type, at->dy_ahead, k);
            line_fetch(at->x_type, at->x_ahead, k);
        }
        if (dgain) {
            store_f32(dgain + k, load_f32(dgain + k) + g * h);
            store_f32(dbias + k, load_f32(dbias + k) + g);
        }
        sum += t;
        sum_h += t * h;
    }
    l->sum[r] = sum;
    l->sum_h[r] = sum_h;
}

static void grad_end(const layer_grad *v, grad_lines *l)
{
    for (int r = 0; r < l->count; r++) {
        l->part[r] = v->p->rms ? 0 : lanes_sum(l->sum[r]) / (float)v->count;
        l->part_h[r] = lanes_sum(l->sum_h[r]) / (float)v->count;
    }
}

OMP_INLINE void grad_put(const grad_lines *l, int r, const grad_piece *at, int64_t count)
{
    const float mean = l->mean[r], rstd = l->rstd[r], part = l->part[r], part_h = l->part_h[r];
    for (int64_t k = 0; k < count; k += PAIR) {
        vec_f32 z[2];
        for (int j = 0; j < 2; j++) {
            const int64_t i = k + j * F32_LANES;
            vec_f32 h;
            const vec_f32 t = grad_load(at, i, mean, rstd, &h) * load_f32(at->f->gain + i);
            z[j] = rstd * (t - (part + h * part_h));
        }
        line_put(at->dx_type, at->dx, k, z[0], z[1], at->stream);
    }
}

/* The last piece of a row, which is shorter: by buffers filled up with what adds nothing. */
static void grad_rest(const layer_grad *v, grad_lines *l, int r, const affine *f, int64_t i,
                      int64_t count, float *dgain, float *dbias, bool put)
{
    const bsk_layer_norm_grad_params *p = v->p;
    float dy[PIECE] = {0}, x[PIECE], sums[2][PIECE] = {{0}};
    const grad_piece at = {BSK_F32, BSK_F32, BSK_F32, dy, x, dy, f, p->relu != 0, false, dy, x};
    row_load_f32(dy, p->dy.dtype, bsk_mem_address(v->a->dy), l->dy[r] + i, count);
    row_load_f32(x, p->x.dtype, bsk_mem_address(v->a->x), l->x[r] + i, count);
    for (int64_t k = count; k % PAIR; k++)
        x[k] = l->mean[r];
    if (put) {
        grad_put(l, r, &at, count);
        row_store_f32(dy, p->dx.dtype, bsk_mem_address(v->a->dx), l->dx[r] + i, count);
        return;
    }
    grad_take(l, r, &at, count, dgain ? sums[0] : NULL, sums[1]);
    for (int64_t k = 0; dgain && k < count; k++) {
        dgain[k] += sums[0][k];
        dbias[k] += sums[1][k];
    }
}

/* Pieces at i of all the lines. */
OMP_INLINE void grad_pieces(const layer_grad *v, grad_lines *l, grad_lines *late,
                            const grad_lines *next, affine *f, int64_t i, float *sums, bsk_dtype dy,
                            bsk_dtype x, bsk_dtype dx)
{
    const bsk_layer_norm_grad_params *p = v->p;
    const int64_t count = min_i64(PIECE, v->count - i);
    for (int side = 0; side < 2; side++) {
        grad_lines *each = side ? late : l;
        for (int r = 0; r < each->count; r++) {
            const int64_t feature = each->s[r] * v->count + i;
            float *dgain = sums ? sums + feature : NULL, *dbias = sums ? dgain + v->features : NULL;
            affine_at(f, optional(p->gain.dtype, v->a->gain, feature),
                      optional(p->bias.dtype, v->a->bias, feature), count);
            if (count < PIECE) {
                grad_rest(v, each, r, f, i, count, dgain, dbias, side);
                continue;
            }
            const grad_piece at = {dy,
                                   x,
                                   dx,
                                   line_at(dy, bsk_mem_address(v->a->dy), each->dy[r] + i),
                                   line_at(x, bsk_mem_address(v->a->x), each->x[r] + i),
                                   line_at(dx, bsk_mem_address(v->a->dx), each->dx[r] + i),
                                   f,
                                   p->relu != 0,
                                   v->stream,
                                   line_at(dy, bsk_mem_address(v->a->dy), next->dy[r] + i),
                                   line_at(x, bsk_mem_address(v->a->x), next->x[r] + i)};
            if (side)
                grad_put(each, r, &at, PIECE);
            else
                grad_take(each, r, &at, PIECE, dgain, dbias);
        }
    }
}

/* Reads the lines from `first` on, which end at `end`, while the ones before them are written. */
OMP_INLINE void grad_pass(const layer_grad *v, grad_lines *l, grad_lines *late, affine *f,
                          int64_t first, int64_t end, float *sums, bsk_dtype dy, bsk_dtype x,
                          bsk_dtype dx)
{
    const bsk_layer_norm_grad_params *p = v->p;
    grad_lines next;
    grad_lines_at(v, l, first, end);
    grad_lines_at(v, &next, first + LINES, v->rows * p->segments);
    for (int r = next.count; r < l->count; r++) { /* nothing else to ask for */
        next.dy[r] = l->dy[r];
        next.x[r] = l->x[r];
    }
    for (int64_t i = 0; i < v->count; i += PIECE)
        grad_pieces(v, l, late, &next, f, i, sums, dy, x, dx);
    grad_end(v, l);
    if (p->dx.dtype == BSK_NONE) /* nothing to write */
        l->count = 0;
}

#define GRAD_PASS(name, dy, x, dx)                                                                 \
    static void name(const layer_grad *v, grad_lines *l, grad_lines *late, affine *f,              \
                     int64_t first, int64_t end, float *sums)                                      \
    {                                                                                              \
        grad_pass(v, l, late, f, first, end, sums, dy, x, dx);                                     \
    }
GRAD_PASS(grad_pass_f32, BSK_F32, BSK_F32, BSK_F32)
GRAD_PASS(grad_pass_f16, BSK_F16, BSK_F16, BSK_F16)
GRAD_PASS(grad_pass_bf16, BSK_BF16, BSK_BF16, BSK_BF16)
GRAD_PASS(grad_pass_mixed, v->p->dy.dtype, v->p->x.dtype, v->p->dx.dtype)

static grad_pass_fn *grad_pass_of(const bsk_layer_norm_grad_params *p)
{
    const bsk_dtype type = p->x.dtype;
    if (p->dy.dtype != type || (p->dx.dtype != type && p->dx.dtype != BSK_NONE))
        return grad_pass_mixed;
    return type == BSK_F32 ? grad_pass_f32 : type == BSK_BF16 ? grad_pass_bf16 : grad_pass_f16;
}

/* --- columns --- */

/* g = dy, h = x. */
static void columns_load(const layer_grad *v, int64_t outer, int64_t inner, int64_t count,
                         float *restrict g, float *restrict h)
{
    const bsk_layer_norm_grad_params *p = v->p;
    row_load_padded(g, p->dy.dtype, bsk_mem_address(v->a->dy),
                    row_at(&p->dy, &v->shape, outer, inner), count, 0);
    row_load_padded(h, p->x.dtype, bsk_mem_address(v->a->x), row_at(&p->x, &v->shape, outer, inner),
                    count, 0);
}

OMP_INLINE float relu_slope(float x)
{
    return x > 0 ? 1 : x <= 0 ? 0 : x;
}

/* Rows n .. n + count, which lie side by side. */
static void layer_grad_columns(const layer_grad *v, int64_t s, int64_t n, int64_t count,
                               float *sums)
{
    const bsk_layer_norm_grad_params *p = v->p;
    const bool dx = p->dx.dtype != BSK_NONE;
    const float terms = (float)v->count;
    float sum[COLUMNS] = {0}, sum_h[COLUMNS] = {0}, g[COLUMNS], h[COLUMNS];
    float mean[COLUMNS];
    const float *rstd = v->rstd + s * v->rows + n;
    for (int64_t i = 0; i < count; i++)
        mean[i] = mean_at(v, s, n + i);

    for (int pass = 0; pass < 1 + dx; pass++)
        for (int64_t f = s * v->count; f < (s + 1) * v->count; f++) {
            const float *gain_at = optional(p->gain.dtype, v->a->gain, f);
            const float *bias_at = optional(p->bias.dtype, v->a->bias, f);
            const float gain = gain_at ? *gain_at : 1, bias = bias_at ? *bias_at : 0;
            columns_load(v, f, n, count, g, h);
            for (int64_t i = 0; i < count; i++)
                h[i] = (h[i] - mean[i]) * rstd[i];
            for (int64_t i = 0; p->relu && i < count; i++)
                g[i] *= relu_slope(h[i] * gain + bias);
            if (!pass && sums) {
                sums[f] = row_dot(g, h, count);
                sums[f + v->features] = row_sum(g, count);
            }
            for (int64_t i = 0; !pass && dx && i < count; i++) {
                sum[i] += p->rms ? 0 : g[i] * gain;
                sum_h[i] += g[i] * gain * h[i];
            }
            if (!pass)
                continue;
            for (int64_t i = 0; i < count; i++)
                g[i] = rstd[i] * (g[i] * gain - (sum[i] + h[i] * sum_h[i]) / terms);
            row_store_f32(g, p->dx.dtype, bsk_mem_address(v->a->dx),
                          row_at(&p->dx, &v->shape, f, n), count);
        }
}

/* One band; sums: its part of the workspace, or NULL; lines: of this thread, whose turn it is to be
 * read first. */
static void layer_grad_band(const layer_grad *v, int64_t band, float *sums, grad_lines lines[2],
                            affine *f, int *turn)
{
    const int64_t size = band_size(&v->shape), end = min_i64(v->rows, (band + 1) * size);
    const int64_t segments = v->p->segments;
    if (!v->shape.features_inner) {
        for (int64_t s = 0; s < segments; s++)
            layer_grad_columns(v, s, band * size, end - band * size, sums);
        return;
    }
    if (sums)
        memset(sums, 0, 2 * (size_t)v->features * sizeof *sums);
    for (int64_t i = band * size * segments; i < end * segments; i += LINES, *turn = !*turn)
        v->pass(v, &lines[*turn], &lines[!*turn], f, i, end * segments, sums);
}

/* The sums over the bands of up to CHUNK features. */
static void bands_sum(const float *work, int64_t bands, int64_t width, int64_t count, double alpha,
                      double beta, float *restrict to)
{
    float sum[CHUNK] = {0};
    for (int64_t band = 0; band < bands; band++)
        for (int64_t i = 0; i < count; i++)
            sum[i] += work[band * width + i];
    row_blend(sum, alpha, beta, BSK_F32, to, 0, count);
    memcpy(to, sum, (size_t)count * sizeof *to);
}

OMP_LAUNCH(layer_norm_grad)
{
    const bsk_layer_norm_grad_params *p = prepared->problem->params;
    const bsk_layer_norm_grad_args *a = args;
    layer_grad v = {p, a, .shape = act_shape_of(&p->dy, p->axis, layer_norm_grad_axis(p))};
    const act_shape *s = &v.shape;
    float *work = wants_sums(p) ? bsk_mem_address(a->workspace) : NULL;
    float *out[2] = {bsk_mem_address(a->dgain), bsk_mem_address(a->dbias)};
    const bool wanted[2] = {p->dgain.dtype != BSK_NONE, p->dbias.dtype != BSK_NONE};
    v.rows = s->features_inner ? s->outer : s->inner;
    v.features = s->features_inner ? s->inner : s->outer;
    v.count = v.features / p->segments;
    v.mean = optional(p->mean.dtype, a->mean, 0);
    v.rstd = bsk_mem_address(a->rstd);
    v.stream = p->dx.dtype != BSK_NONE && streams(p->dx.dtype, s->outer, s->inner) &&
               (p->segments == 1 || v.count % PIECE == 0) &&
               lines_whole(&p->dx, s->axis, bsk_mem_address(a->dx));
    v.pass = grad_pass_of(p);
    const int64_t bands = band_count(s), parts = bski_ceil_div(v.features, CHUNK);

#pragma omp parallel num_threads(queue_threads(queue))
    {
        grad_lines lines[2] = {{.count = 0}, {.count = 0}};
        affine f;
        int turn = 0;
        affine_begin(&f);
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < bands; i++)
            layer_grad_band(&v, i, work ? work + i * 2 * v.features : NULL, lines, &f, &turn);
        v.pass(&v, &lines[turn], &lines[!turn], &f, v.rows * p->segments, 0, NULL);
        stream_fence();
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t i = 0; i < (work ? 2 * parts : 0); i++) {
            const int64_t at = i / 2 * CHUNK, o = i % 2;
            if (wanted[o])
                bands_sum(work + o * v.features + at, bands, 2 * v.features,
                          min_i64(CHUNK, v.features - at), a->alpha, a->beta, out[o] + at);
        }
    }
    return BSK_OK;
}
