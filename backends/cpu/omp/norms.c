/* layer_norm and its gradient. A row stays in the first-level cache from its load to its store;
 * rows that lie across memory are taken a band of columns at a time, which stays in the second. */
#include "dense.h"

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

OMP_INLINE void row_affine(float *restrict row, float mean, float rstd, const float *restrict gain,
                           const float *restrict bias, float low, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const float h = (row[i] - mean) * rstd;
        const float y = h * (gain ? gain[i] : 1) + (bias ? bias[i] : 0);
        row[i] = y <= low ? low : y;
    }
}

/* row = act((row - mean) * rstd * gain + bias); gain and bias may be NULL. */
static void row_normalize(float *restrict row, float mean, float rstd, const float *gain,
                          const float *bias, bool relu, int64_t count)
{
    const float low = lowest(relu);
    if (gain && bias)
        row_affine(row, mean, rstd, gain, bias, low, count);
    else if (gain)
        row_affine(row, mean, rstd, gain, NULL, low, count);
    else if (bias)
        row_affine(row, mean, rstd, NULL, bias, low, count);
    else
        row_affine(row, mean, rstd, NULL, NULL, low, count);
}

static void layer_norm_row(const layer_norm *v, int64_t n, int64_t s)
{
    const bsk_layer_norm_params *p = v->p;
    const void *x = bsk_mem_address(v->a->x);
    const int64_t at = row_at(&p->x, &v->shape, n, s * v->count);
    const int64_t to = row_at(&p->y, &v->shape, n, s * v->count);
    const double terms = (double)max_i64(v->count, 1);
    const bool whole = v->count <= ROW;
    double sum = 0, square = 0;
    float row[ROW];

    for (int64_t i = 0; i < v->count && (whole || !p->rms); i += ROW) {
        const int64_t count = min_i64(ROW, v->count - i);
        row_load_padded(row, p->x.dtype, x, at + i, count, 0);
        if (!p->rms)
            sum += (double)row_sum(row, count);
    }
    const float mean = (float)(sum / terms);
    if (whole && n + 1 < v->rows)
        row_fetch(p->x.dtype, x, row_at(&p->x, &v->shape, n + 1, s * v->count), v->count);
    for (int64_t i = 0; i < v->count; i += ROW) {
        const int64_t count = min_i64(ROW, v->count - i);
        if (!whole)
            row_load_f32(row, p->x.dtype, x, at + i, count);
        row_pad(row, count, mean);
        square += (double)row_square(row, count, mean);
    }
    const float rstd = (float)(1 / sqrt(square / terms + p->eps));
    for (int64_t i = 0; i < v->count; i += ROW) {
        const int64_t count = min_i64(ROW, v->count - i), feature = s * v->count + i;
        if (!whole)
            row_load_f32(row, p->x.dtype, x, at + i, count);
        row_normalize(row, mean, rstd, optional(p->gain.dtype, v->a->gain, feature),
                      optional(p->bias.dtype, v->a->bias, feature), p->relu != 0, count);
        row_put(row, p->y.dtype, bsk_mem_address(v->a->y), to + i, count, v->stream);
    }
    moments_store(v, s, n, mean, rstd);
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
    v.stream = streams(p->y.dtype, s->outer, s->inner);

#pragma omp parallel num_threads(queue_threads(queue))
    {
        if (s->features_inner) {
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < v.rows * segments; i++)
                layer_norm_row(&v, i / segments, i % segments);
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

typedef struct layer_grad {
    const bsk_layer_norm_grad_params *p;
    const bsk_layer_norm_grad_args *a;
    act_shape shape;
    int64_t rows, features, count; /* count: of a segment */
    const float *mean, *rstd;      /* mean: NULL with rms */
    bool stream;
} layer_grad;

static float mean_at(const layer_grad *v, int64_t s, int64_t n)
{
    return v->mean ? v->mean[s * v->rows + n] : 0;
}

/* g = dy, h = x. */
static void grad_load(const layer_grad *v, int64_t outer, int64_t inner, int64_t count,
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

OMP_INLINE void relu_affine(float *restrict g, const float *restrict h, const float *restrict gain,
                            const float *restrict bias, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        g[i] *= relu_slope(h[i] * (gain ? gain[i] : 1) + (bias ? bias[i] : 0));
}

/* g = g times the slope of relu at h * gain + bias. */
static void relu_row(float *restrict g, const float *restrict h, const float *gain,
                     const float *bias, int64_t count)
{
    if (gain && bias)
        relu_affine(g, h, gain, bias, count);
    else if (gain)
        relu_affine(g, h, gain, NULL, count);
    else if (bias)
        relu_affine(g, h, NULL, bias, count);
    else
        relu_affine(g, h, NULL, NULL, count);
}

/* g before gain and h of a piece of a row; adds them to the sums of the features, and leaves t in
 * g. gain, bias and the sums may be NULL. */
static void grad_row(float *restrict g, float *restrict h, float mean, float rstd,
                     const float *restrict gain, const float *restrict bias, bool relu,
                     float *restrict dgain, float *restrict dbias, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        h[i] = (h[i] - mean) * rstd;
    if (relu)
        relu_row(g, h, gain, bias, count);
    for (int64_t i = 0; dgain && i < count; i++) {
        dgain[i] += g[i] * h[i];
        dbias[i] += g[i];
    }
    for (int64_t i = 0; gain && i < count; i++)
        g[i] *= gain[i];
}

static void layer_grad_row(const layer_grad *v, int64_t n, int64_t s, float *sums)
{
    const bsk_layer_norm_grad_params *p = v->p;
    const float mean = mean_at(v, s, n), rstd = v->rstd[s * v->rows + n];
    const bool whole = v->count <= ROW, dx = p->dx.dtype != BSK_NONE;
    double sum = 0, sum_h = 0;
    float g[ROW], h[ROW];

    for (int pass = 0; pass < 1 + dx; pass++)
        for (int64_t i = 0; i < v->count; i += ROW) {
            const int64_t count = min_i64(ROW, v->count - i), feature = s * v->count + i;
            float *dgain = pass || !sums ? NULL : sums + feature;
            if (!pass || !whole) {
                grad_load(v, n, feature, count, g, h);
                grad_row(g, h, mean, rstd, optional(p->gain.dtype, v->a->gain, feature),
                         optional(p->bias.dtype, v->a->bias, feature), p->relu != 0, dgain,
                         dgain ? dgain + v->features : NULL, count);
            }
            if (!pass && dx) {
                sum += p->rms ? 0 : (double)row_sum(g, count);
                sum_h += (double)row_dot(g, h, count);
                if (whole && n + 1 < v->rows) {
                    row_fetch(p->dy.dtype, bsk_mem_address(v->a->dy),
                              row_at(&p->dy, &v->shape, n + 1, feature), count);
                    row_fetch(p->x.dtype, bsk_mem_address(v->a->x),
                              row_at(&p->x, &v->shape, n + 1, feature), count);
                }
            } else if (pass) {
                const float part = (float)(sum / (double)v->count);
                const float part_h = (float)(sum_h / (double)v->count);
                for (int64_t k = 0; k < count; k++)
                    g[k] = rstd * (g[k] - (part + h[k] * part_h));
                row_put(g, p->dx.dtype, bsk_mem_address(v->a->dx),
                        row_at(&p->dx, &v->shape, n, feature), count, v->stream);
            }
        }
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
            grad_load(v, f, n, count, g, h);
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

/* One band; sums: its part of the workspace, or NULL. */
static void layer_grad_band(const layer_grad *v, int64_t band, float *sums)
{
    const int64_t size = band_size(&v->shape), end = min_i64(v->rows, (band + 1) * size);
    const int64_t segments = v->p->segments;
    if (sums && v->shape.features_inner)
        memset(sums, 0, 2 * (size_t)v->features * sizeof *sums);
    if (v->shape.features_inner) {
        for (int64_t i = band * size * segments; i < end * segments; i++)
            layer_grad_row(v, i / segments, i % segments, sums);
    } else {
        for (int64_t s = 0; s < segments; s++)
            layer_grad_columns(v, s, band * size, end - band * size, sums);
    }
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
    v.stream = p->dx.dtype != BSK_NONE && streams(p->dx.dtype, s->outer, s->inner);
    const int64_t bands = band_count(s), parts = bski_ceil_div(v.features, CHUNK);

#pragma omp parallel num_threads(queue_threads(queue))
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < bands; i++)
            layer_grad_band(&v, i, work ? work + i * 2 * v.features : NULL);
        stream_fence();
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
