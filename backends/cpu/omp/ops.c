/* Embedding, bias and activation, cross-entropy, Adam. */
#include "walk.h"

/* --- embedding ------------------------------------------------------------------------------- */

OMP_DECLARE(embedding);
OMP_PREPARE_NONE(embedding)

OMP_ACCEPT(embedding)
{
    const bsk_embedding_params *p = problem->params;
    (void)props;
    return axis_contiguous(&p->table, 1) && axis_contiguous(&p->y, 1) ? BSK_ACCEPT
                                                                      : BSK_REFUSE_STRIDE;
}

OMP_LAUNCH(embedding)
{
    const bsk_embedding_params *p = prepared->problem->params;
    const bsk_embedding_args *a = args;
    const void *table = bsk_mem_address(a->table), *index = bsk_mem_address(a->index);
    void *y = bsk_mem_address(a->y);

#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t n = 0; n < p->y.dims[0]; n++) {
        const int64_t v = bski_load_int(p->index.dtype, index, n * p->index.strides[0]);
        const bool inside = v >= 0 && v < p->table.dims[0];
        row_convert(p->table.dtype, inside ? table : NULL, inside ? v * p->table.strides[0] : 0,
                    p->y.dtype, y, n * p->y.strides[0], p->y.dims[1]);
    }
    return BSK_OK;
}

/* --- embedding_grad --------------------------------------------------------------------------- */

OMP_DECLARE(embedding_grad);

OMP_ACCEPT(embedding_grad)
{
    const bsk_embedding_grad_params *p = problem->params;
    (void)props;
    return axis_contiguous(&p->dy, 1) && axis_contiguous(&p->dtable, 1) ? BSK_ACCEPT
                                                                        : BSK_REFUSE_STRIDE;
}

/* Workspace: start[V + 1] and order[N], the positions of each table row in ascending order. */
OMP_PREPARE(embedding_grad)
{
    const bsk_embedding_grad_params *p = prepared->problem->params;
    int64_t count;
    (void)device;
    if (!bski_add_i64(p->dtable.dims[0], p->index.dims[0], &count) ||
        !bski_add_i64(count, 1, &count) ||
        !bski_mul_size((size_t)count, sizeof(int64_t), &prepared->workspace_bytes))
        return BSK_E_UNSUPPORTED;
    return BSK_OK;
}

/* A counting sort. start[v] ends as the end of row v's list and is moved back by the caller. */
static void index_sort(const bsk_tensor *t, const void *index, int64_t rows, int64_t *start,
                       int64_t *order)
{
    memset(start, 0, (size_t)(rows + 1) * sizeof *start);
    for (int64_t n = 0; n < t->dims[0]; n++) {
        const int64_t v = bski_load_int(t->dtype, index, n * t->strides[0]);
        if (v >= 0 && v < rows)
            start[v + 1]++;
    }
    for (int64_t v = 0; v < rows; v++)
        start[v + 1] += start[v];
    for (int64_t n = 0; n < t->dims[0]; n++) {
        const int64_t v = bski_load_int(t->dtype, index, n * t->strides[0]);
        if (v >= 0 && v < rows)
            order[start[v]++] = n;
    }
}

#define EMBEDDING_SUM(name, type, load, store)                                                     \
    static void name(const bsk_embedding_grad_params *p, const bsk_embedding_grad_args *a,         \
                     int64_t v, int64_t col, int64_t count, const int64_t *order, int64_t uses)    \
    {                                                                                              \
        const void *dy = bsk_mem_address(a->dy);                                                   \
        void *dtable = bsk_mem_address(a->dtable);                                                 \
        const int64_t at = v * p->dtable.strides[0] + col;                                         \
        const type alpha = (type)a->alpha, beta = (type)a->beta;                                   \
        type sum[CHUNK] = {0}, row[CHUNK];                                                         \
        for (int64_t u = 0; u < uses; u++) {                                                       \
            load(row, p->dy.dtype, dy, order[u] * p->dy.strides[0] + col, count);                  \
            for (int64_t i = 0; i < count; i++)                                                    \
                sum[i] += row[i];                                                                  \
        }                                                                                          \
        for (int64_t i = 0; i < count; i++)                                                        \
            sum[i] *= alpha;                                                                       \
        if (beta != 0) {                                                                           \
            load(row, p->dtable.dtype, dtable, at, count);                                         \
            for (int64_t i = 0; i < count; i++)                                                    \
                sum[i] += beta * row[i];                                                           \
        }                                                                                          \
        store(sum, p->dtable.dtype, dtable, at, count);                                            \
    }
EMBEDDING_SUM(embedding_sum_f32, float, row_load_f32, row_store_f32)
EMBEDDING_SUM(embedding_sum_f64, double, row_load_f64, row_store_f64)
#undef EMBEDDING_SUM

OMP_LAUNCH(embedding_grad)
{
    const bsk_embedding_grad_params *p = prepared->problem->params;
    const bsk_embedding_grad_args *a = args;
    const int64_t rows = p->dtable.dims[0], cols = p->dtable.dims[1];
    const int64_t parts = bski_ceil_div(cols, CHUNK);
    const bool wide = p->dy.dtype == BSK_F64 || p->dtable.dtype == BSK_F64;
    int64_t *start = bsk_mem_address(a->workspace), *order = start + rows + 1;

    index_sort(&p->index, bsk_mem_address(a->index), rows, start, order);
#pragma omp parallel for schedule(dynamic, 16) num_threads(queue_threads(queue))
    for (int64_t i = 0; i < rows * parts; i++) {
        const int64_t v = i / parts, col = i % parts * CHUNK;
        const int64_t first = v ? start[v - 1] : 0, uses = start[v] - first;
        if (uses || a->beta != 1)
            (wide ? embedding_sum_f64 : embedding_sum_f32)(p, a, v, col, min_i64(CHUNK, cols - col),
                                                           order + first, uses);
    }
    return BSK_OK;
}

/* --- bias_act --------------------------------------------------------------------------------- */

/* x += bias, which lies along or across the row. */
static void bias_add(float *restrict x, const act_shape *s, const float *bias, int64_t stride,
                     int64_t outer, int64_t at, int64_t count)
{
    if (!s->features_inner) {
        const float b = bias[outer * stride];
        for (int64_t i = 0; i < count; i++)
            x[i] += b;
    } else if (stride == 1) {
        for (int64_t i = 0; i < count; i++)
            x[i] += bias[at + i];
    } else {
        for (int64_t i = 0; i < count; i++)
            x[i] += bias[(at + i) * stride];
    }
}

OMP_DECLARE(bias_act);
OMP_PREPARE_NONE(bias_act)

static int32_t bias_act_axis(const bsk_bias_act_params *p)
{
    const bsk_tensor *const tensors[] = {&p->x, &p->y};
    return common_axis(tensors, 2);
}

OMP_ACCEPT(bias_act)
{
    (void)props;
    return bias_act_axis(problem->params) < 0 ? BSK_REFUSE_STRIDE : BSK_ACCEPT;
}

OMP_LAUNCH(bias_act)
{
    const bsk_bias_act_params *p = prepared->problem->params;
    const bsk_bias_act_args *a = args;
    const act_shape s = act_shape_of(&p->x, p->axis, bias_act_axis(p));
    const int64_t parts = bski_ceil_div(s.inner, CHUNK), most = s.outer * parts - 1;
    const void *x = bsk_mem_address(a->x);
    const float *bias = bsk_mem_address(a->bias);
    void *y = bsk_mem_address(a->y);
    const bool stream = is_narrow(&p->y) && streams(p->y.dtype, s.outer, s.inner);

#pragma omp parallel num_threads(queue_threads(queue))
    {
        float row[STRETCH];
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < s.outer * parts; i++) {
            const int64_t outer = i / parts, first = i % parts * CHUNK;
            const int64_t end = min_i64(first + CHUNK, s.inner), later = min_i64(i + AHEAD, most);
            for (int64_t at = first; at < end; at += STRETCH) {
                const int64_t count = min_i64(STRETCH, end - at);
                const int64_t ahead = later % parts * CHUNK + at - first;
                row_fetch(p->x.dtype, x, row_at(&p->x, &s, later / parts, ahead),
                          min_i64(count, s.inner - ahead));
                row_load_f32(row, p->x.dtype, x, row_at(&p->x, &s, outer, at), count);
                if (p->bias.dtype != BSK_NONE)
                    bias_add(row, &s, bias, p->bias.strides[0], outer, at, count);
                act_row_f32(p->act, row, count);
                row_put(row, p->y.dtype, y, row_at(&p->y, &s, outer, at), count, stream);
            }
        }
        stream_fence();
    }
    return BSK_OK;
}

/* --- bias_act_grad ---------------------------------------------------------------------------- */

/* dbias is summed over bands of rows, at most BANDS of them, whose sums are then added in order. */
enum { BANDS = 64, BAND_ROWS = 64 };

OMP_DECLARE(bias_act_grad);

static int32_t bias_act_grad_axis(const bsk_bias_act_grad_params *p)
{
    const bsk_tensor *const tensors[] = {&p->dy, &p->x, &p->dx};
    return common_axis(tensors, 3);
}

OMP_ACCEPT(bias_act_grad)
{
    (void)props;
    return bias_act_grad_axis(problem->params) < 0 ? BSK_REFUSE_STRIDE : BSK_ACCEPT;
}

/* Rows of a band, and how many bands. Without features along the rows each row is a sum of its own
 * and no band is needed. */
static int64_t band_rows(const act_shape *s)
{
    return s->features_inner ? max_i64(BAND_ROWS, bski_ceil_div(s->outer, BANDS)) : 1;
}

OMP_PREPARE(bias_act_grad)
{
    const bsk_bias_act_grad_params *p = prepared->problem->params;
    const act_shape s = act_shape_of(&p->dy, p->axis, bias_act_grad_axis(p));
    size_t bytes = 0;
    (void)device;
    if (p->dbias.dtype != BSK_NONE && s.features_inner &&
        (!bski_mul_size((size_t)s.inner, sizeof(float), &bytes) ||
         !bski_mul_size(bytes, (size_t)bski_ceil_div(s.outer, band_rows(&s)), &bytes)))
        return BSK_E_UNSUPPORTED;
    prepared->workspace_bytes = bytes;
    return BSK_OK;
}

/* row = g of one piece of a row; dx is stored where it is wanted. */
static void slope_row(const bsk_bias_act_grad_params *p, const bsk_bias_act_grad_args *a,
                      const act_shape *s, int64_t outer, int64_t at, int64_t count, bool stream,
                      float *restrict row)
{
    float slope[CHUNK];
    row_load_f32(row, p->dy.dtype, bsk_mem_address(a->dy), row_at(&p->dy, s, outer, at), count);
    if (p->act != BSK_ACT_NONE) {
        row_load_f32(slope, p->x.dtype, bsk_mem_address(a->x), row_at(&p->x, s, outer, at), count);
        if (p->bias.dtype != BSK_NONE)
            bias_add(slope, s, bsk_mem_address(a->bias), p->bias.strides[0], outer, at, count);
        act_slope_row_f32(p->act, slope, count);
        for (int64_t i = 0; i < count; i++)
            row[i] *= slope[i];
    }
    if (p->dx.dtype == BSK_NONE)
        return;
    void *dx = bsk_mem_address(a->dx);
    const int64_t to = row_at(&p->dx, s, outer, at);
    const float *from = row;
    if (p->dx_blend) {
        row_copy(slope, row, (size_t)count * sizeof *row);
        row_blend(slope, a->dx_alpha, a->dx_beta, p->dx.dtype, dx, to, count);
        from = slope;
    }
    row_put(from, p->dx.dtype, dx, to, count, stream);
}

static void dbias_store(const bsk_bias_act_grad_params *p, const bsk_bias_act_grad_args *a,
                        int64_t feature, float sum)
{
    float *to = (float *)bsk_mem_address(a->dbias) + feature * p->dbias.strides[0];
    *to = (float)a->alpha * sum + (a->beta == 0 ? 0 : (float)a->beta * *to);
}

/* One band of rows and one piece of features; sums: of this band, or NULL. */
static void slope_band(const bsk_bias_act_grad_params *p, const bsk_bias_act_grad_args *a,
                       const act_shape *s, int64_t band, int64_t at, bool stream, float *sums)
{
    const int64_t rows = band_rows(s), count = min_i64(CHUNK, s->inner - at);
    float row[CHUNK];
    if (sums)
        memset(sums + at, 0, (size_t)count * sizeof *sums);
    for (int64_t outer = band * rows; outer < min_i64(s->outer, (band + 1) * rows); outer++) {
        if (outer + 1 < s->outer) {
            row_fetch(p->dy.dtype, bsk_mem_address(a->dy), row_at(&p->dy, s, outer + 1, at), count);
            if (p->act != BSK_ACT_NONE)
                row_fetch(p->x.dtype, bsk_mem_address(a->x), row_at(&p->x, s, outer + 1, at),
                          count);
        }
        slope_row(p, a, s, outer, at, count, stream, row);
        for (int64_t i = 0; sums && i < count; i++)
            sums[at + i] += row[i];
    }
}

OMP_LAUNCH(bias_act_grad)
{
    const bsk_bias_act_grad_params *p = prepared->problem->params;
    const bsk_bias_act_grad_args *a = args;
    const act_shape s = act_shape_of(&p->dy, p->axis, bias_act_grad_axis(p));
    const int64_t parts = bski_ceil_div(s.inner, CHUNK),
                  bands = bski_ceil_div(s.outer, band_rows(&s));
    const bool sums = p->dbias.dtype != BSK_NONE;
    const bool stream =
        p->dx.dtype != BSK_NONE && is_narrow(&p->dx) && streams(p->dx.dtype, s.outer, s.inner);
    float *work = bsk_mem_address(a->workspace);

#pragma omp parallel num_threads(queue_threads(queue))
    if (s.features_inner) {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < bands * parts; i++)
            slope_band(p, a, &s, i / parts, i % parts * CHUNK, stream,
                       sums ? work + i / parts * s.inner : NULL);
        stream_fence();
#pragma omp for schedule(static)
        for (int64_t f = 0; f < (sums ? s.inner : 0); f++) {
            float sum = 0;
            for (int64_t band = 0; band < bands; band++)
                sum += work[band * s.inner + f];
            dbias_store(p, a, f, sum);
        }
    } else {
#pragma omp for schedule(static)
        for (int64_t f = 0; f < s.outer; f++) {
            float row[CHUNK], sum = 0;
            for (int64_t at = 0; at < s.inner; at += CHUNK) {
                const int64_t count = min_i64(CHUNK, s.inner - at);
                slope_row(p, a, &s, f, at, count, stream, row);
                row_pad(row, count, 0);
                sum += row_sum(row, count);
            }
            if (sums)
                dbias_store(p, a, f, sum);
        }
        stream_fence();
    }
    return BSK_OK;
}

/* --- cross_entropy ---------------------------------------------------------------------------- */

OMP_DECLARE(cross_entropy);
OMP_PREPARE_NONE(cross_entropy)

OMP_ACCEPT(cross_entropy)
{
    const bsk_cross_entropy_params *p = problem->params;
    (void)props;
    return axis_contiguous(&p->logits, 1) && axis_contiguous(&p->dlogits, 1) ? BSK_ACCEPT
                                                                             : BSK_REFUSE_STRIDE;
}

/* What one row of logits comes to. */
typedef struct softmax_row {
    float max;
    double sum;   /* of e^(x - max); 0 where all are -infinity */
    double total; /* of x - pivot, each times its share */
} softmax_row;

static softmax_row softmax_scan(bsk_dtype type, const void *logits, int64_t at, int64_t cols,
                                float share, float pivot)
{
    softmax_row r = {-INFINITY, 0, 0};
    float row[CHUNK], scaled[CHUNK];
    for (int64_t i = 0; i < cols; i += CHUNK) {
        const int64_t count = min_i64(CHUNK, cols - i);
        row_load_padded(row, type, logits, at + i, count, -INFINITY);
        const float before = r.max;
        r.max = row_max(row, count, before);
        if (r.max > before)
            r.sum *= exp((double)before - (double)r.max);
        if (share > 0) {
            for (int64_t k = 0; k < count; k++) /* by halves: x - pivot may be beyond f32 */
                scaled[k] = (row[k] * 0.5f - pivot * 0.5f) * (2 * share);
            row_pad(scaled, count, 0);
            r.total += (double)row_sum(scaled, count);
        }
        r.sum += (double)row_exp(row, count, r.max == -INFINITY ? 0 : r.max);
    }
    return r;
}

static void cross_entropy_row(const bsk_cross_entropy_params *p, const bsk_cross_entropy_args *a,
                              int64_t n)
{
    const int64_t cols = p->logits.dims[1], at = n * p->logits.strides[0];
    const int64_t label =
        bski_load_int(p->labels.dtype, bsk_mem_address(a->labels), n * p->labels.strides[0]);
    bool used = label >= 0 && label < cols && !(p->use_ignore_index && label == p->ignore_index);
    const void *logits = bsk_mem_address(a->logits);
    void *dlogits = bsk_mem_address(a->dlogits);
    const double even = p->smoothing / (double)cols, hit = 1 - p->smoothing;
    softmax_row r = {0, 1, 0};

    double chosen = used ? bski_load(p->logits.dtype, logits, at + label) : 0, pivot = 0;
    if (used && isfinite(chosen))
        pivot = chosen;
    if (used)
        r = softmax_scan(p->logits.dtype, logits, at, cols, (float)even, (float)pivot);
    used = used && r.sum != 0;
    if (p->loss.dtype != BSK_NONE) {
        double loss = 0;
        if (used) {
            loss = log(r.sum) + hit * ((double)r.max - chosen);
            if (p->smoothing > 0)
                loss += p->smoothing * ((double)r.max - pivot) - r.total;
        }
        ((float *)bsk_mem_address(a->loss))[n * p->loss.strides[0]] = (float)loss;
    }
    if (p->dlogits.dtype == BSK_NONE)
        return;
    double scale = a->alpha;
    if (p->dloss.dtype != BSK_NONE)
        scale *= (double)((const float *)bsk_mem_address(a->dloss))[n * p->dloss.strides[0]];
    const float gain = (float)scale, inverse = (float)(1 / r.sum), base = (float)even;
    float row[CHUNK];
    for (int64_t i = 0; i < cols; i += CHUNK) {
        const int64_t count = min_i64(CHUNK, cols - i);
        if (!used) {
            memset(row, 0, sizeof row);
        } else {
            row_load_padded(row, p->logits.dtype, logits, at + i, count, -INFINITY);
            row_exp(row, count, r.max);
            const int64_t own = label >= i && label < i + count ? label - i : -1;
            const float at_label = own >= 0 ? row[own] * inverse - base - (float)hit : 0;
            for (int64_t k = 0; k < count; k++)
                row[k] = (row[k] * inverse - base) * gain;
            if (own >= 0)
                row[own] = at_label * gain;
        }
        const int64_t to = n * p->dlogits.strides[0] + i;
        row_blend(row, 1, a->beta, p->dlogits.dtype, dlogits, to, count);
        row_store_f32(row, p->dlogits.dtype, dlogits, to, count);
    }
}

OMP_LAUNCH(cross_entropy)
{
    const bsk_cross_entropy_params *p = prepared->problem->params;
#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t n = 0; n < p->logits.dims[0]; n++)
        cross_entropy_row(p, args, n);
    return BSK_OK;
}

/* --- adam ------------------------------------------------------------------------------------- */

OMP_DECLARE(adam);
OMP_PREPARE_NONE(adam)

OMP_ACCEPT(adam)
{
    (void)problem;
    (void)props;
    return BSK_ACCEPT;
}

/* The scalars of one step, and the memory. */
typedef struct adam_step {
    bsk_dtype grad_type, copy_type;
    const void *grad;
    void *copy;
    float *param, *m, *v;
    float scale, beta1, beta2, rest1, rest2, eps, sigma, rate, decay;
    bool clip;
} adam_step;

static void adam_chunk(const adam_step *s, int64_t at, int64_t count)
{
    float *restrict p = s->param + at, *restrict m = s->m + at, *restrict v = s->v + at;
    float grad[CHUNK];

    row_load_f32(grad, s->grad_type, s->grad, at, count);
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * s->scale;
        const float vi = s->beta2 * v[i] + s->rest2 * g * g, root = sqrtf(vi);
        const float limit = s->clip ? s->sigma * root : INFINITY;
        g = g > limit ? limit : g < -limit ? -limit : g;
        const float mi = s->beta1 * m[i] + s->rest1 * g;
        v[i] = vi;
        m[i] = mi;
        p[i] -= s->rate * (mi / (root + s->eps)) + s->decay * p[i];
    }
    if (s->copy_type != BSK_NONE)
        row_store_f32(p, s->copy_type, s->copy, at, count);
}

static bool row_is_zero(const adam_step *s, int64_t at, int64_t count)
{
    float grad[CHUNK];
    for (int64_t i = 0; i < count; i += CHUNK) {
        const int64_t part = min_i64(CHUNK, count - i);
        bool zero = true;
        row_load_f32(grad, s->grad_type, s->grad, at + i, part);
        for (int64_t k = 0; k < part; k++)
            zero = zero && grad[k] == 0;
        if (!zero)
            return false;
    }
    return true;
}

static adam_step adam_step_of(const bsk_adam_params *p, const bsk_adam_args *a, double norm_scale)
{
    const bool counted = p->steps.dtype != BSK_NONE; /* on the device */
    const int64_t before = counted ? *(const int64_t *)bsk_mem_address(a->steps) : 0;
    const double step = (double)a->step + (double)before;
    const double correction = sqrt(1 - pow(p->beta2, step)) / (1 - pow(p->beta1, step));
    return (adam_step){
        .grad_type = p->grad.dtype,
        .copy_type = p->copy.dtype,
        .grad = bsk_mem_address(a->grad),
        .copy = bsk_mem_address(a->copy),
        .param = bsk_mem_address(a->param),
        .m = bsk_mem_address(a->m),
        .v = bsk_mem_address(a->v),
        .scale = (float)((a->grad_scale == 0 ? 1 : a->grad_scale) * norm_scale),
        .beta1 = (float)p->beta1,
        .beta2 = (float)p->beta2,
        .rest1 = (float)(1 - p->beta1),
        .rest2 = (float)(1 - p->beta2),
        .eps = bski_f32_eps(p->eps),
        .sigma = (float)a->clip_sigma,
        .rate = (float)(a->lr * correction),
        .decay = (float)(a->lr * a->weight_decay),
        .clip = a->clip_sigma > 0,
    };
}

/* Whether the step is to be made, and by which factor its gradients are. */
static bool adam_factor(const bsk_tensor *t, bsk_mem mem, double *factor)
{
    *factor = t->dtype == BSK_NONE ? 1 : (double)*(const float *)bsk_mem_address(mem);
    return *factor != 0 && isfinite(*factor);
}

OMP_LAUNCH(adam)
{
    const bsk_adam_params *p = prepared->problem->params;
    const bsk_adam_args *a = args;
    const float *gate = bsk_mem_address(a->gate);
    double norm_scale;
    int64_t outer = 1, inner = 1;

    if (!adam_factor(&p->norm_scale, a->norm_scale, &norm_scale))
        return BSK_OK;
    /* Rows matter to gates and to lazy steps only. */
    const bool rows = p->lazy || p->gate.dtype != BSK_NONE;
    for (int32_t d = 0; d < p->param.rank; d++)
        *(rows && d == 0 ? &outer : &inner) *= p->param.dims[d];

    const adam_step s = adam_step_of(p, a, norm_scale);
    const int64_t width = p->lazy ? inner : CHUNK, parts = bski_ceil_div(inner, max_i64(width, 1));
#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t i = 0; i < outer * parts; i++) {
        const int64_t row = i / parts, first = i % parts * width;
        const int64_t count = min_i64(width, inner - first), at = row * inner + first;
        if (p->gate.dtype != BSK_NONE && gate[row * p->gate.strides[0]] == 0)
            continue;
        if (p->lazy && row_is_zero(&s, at, count))
            continue;
        for (int64_t k = 0; k < count; k += CHUNK)
            adam_chunk(&s, at + k, min_i64(CHUNK, count - k));
    }
    return BSK_OK;
}

/* --- adam_n ----------------------------------------------------------------------------------- */

OMP_DECLARE(adam_n);
OMP_PREPARE_NONE(adam_n)

OMP_ACCEPT(adam_n)
{
    (void)problem;
    (void)props;
    return BSK_ACCEPT;
}

/* Every tensor of the lists, by the step that all have. */
OMP_LAUNCH(adam_n)
{
    const bsk_adam_n_params *p = prepared->problem->params;
    const bsk_adam_n_args *a = args;
    const bsk_adam_params params = {.beta1 = p->beta1,
                                    .beta2 = p->beta2,
                                    .eps = p->eps,
                                    .grad = p->grad,
                                    .copy = p->copy,
                                    .steps = p->steps};
    const bsk_adam_args scalars = {.lr = a->lr,
                                   .grad_scale = a->grad_scale,
                                   .weight_decay = a->weight_decay,
                                   .clip_sigma = a->clip_sigma,
                                   .step = a->step,
                                   .steps = a->steps};
    double norm_scale;
    int64_t size = 1;
    if (!adam_factor(&p->norm_scale, a->norm_scale, &norm_scale))
        return BSK_OK;
    for (int32_t d = 0; d < p->param.rank; d++)
        size *= p->param.dims[d];
    const adam_step one = adam_step_of(&params, &scalars, norm_scale);
    const int64_t parts = bski_ceil_div(size, CHUNK);
#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t i = 0; i < p->pairs * parts; i++) {
        const int64_t tensor = i / parts, first = i % parts * CHUNK;
        adam_step s = one;
        s.param = bsk_mem_address(a->param[tensor]);
        s.grad = bsk_mem_address(a->grad[tensor]);
        s.m = bsk_mem_address(a->m[tensor]);
        s.v = bsk_mem_address(a->v[tensor]);
        if (s.copy_type != BSK_NONE)
            s.copy = bsk_mem_address(a->copy[tensor]);
        adam_chunk(&s, first, min_i64(CHUNK, size - first));
    }
    return BSK_OK;
}
