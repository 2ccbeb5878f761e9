/* Ops by channel on x [N, C, S]: batch_norm, cwise_linear and their gradients. Rows are the S
 * elements of one channel of one n, or, where S is 1, the channels of one n. */
#include "dense.h"

/* Rows of a group where rows hold all channels, and how many groups, about. */
enum { GROUP_ROWS = 32, GROUPS = 64 };

typedef struct channels {
    int64_t n, c, s;
    bool across;             /* rows hold channels */
    int64_t groups, members; /* sums are formed in groups of so many rows, or of one */
    int64_t pieces;
} channels;

/* False if a tensor has gaps along the rows. */
static bool channels_make(channels *v, const bsk_tensor *const *tensors, int count)
{
    const int64_t *dims = tensors[0]->dims;
    *v = (channels){.n = dims[0], .c = dims[1], .s = dims[2], .across = dims[2] == 1};
    v->members = v->across ? max_i64(GROUP_ROWS, bski_ceil_div(v->n, GROUPS)) : 1;
    v->groups = bski_ceil_div(v->n, v->members);
    v->pieces = v->groups * (v->across ? bski_ceil_div(v->c, CHUNK) : v->c);
    for (int i = 0; i < count; i++)
        if (!axis_contiguous(tensors[i], v->across ? 1 : 2))
            return false;
    return true;
}

/* What is done at once: rows first .. last of a group, and of those the channels from c on. */
typedef struct channel_piece {
    int64_t group, first, last, c, width;
} channel_piece;

static channel_piece piece_at(const channels *v, int64_t i)
{
    const int64_t parts = v->across ? bski_ceil_div(v->c, CHUNK) : v->c;
    channel_piece p = {.group = i / parts, .c = i % parts, .width = v->s};
    p.first = p.group * v->members;
    p.last = min_i64(v->n, p.first + v->members);
    if (v->across) {
        p.c *= CHUNK;
        p.width = min_i64(CHUNK, v->c - p.c);
    }
    return p;
}

static int64_t channel_at(const bsk_tensor *t, int64_t n, int64_t c, int64_t i)
{
    return n * t->strides[0] + c * t->strides[1] + i;
}

static bsk_reason channels_accept(const bsk_tensor *const *tensors, int count)
{
    channels v;
    for (int i = 0; i < count; i++)
        if (!is_narrow(tensors[i]))
            return BSK_REFUSE_DTYPE;
    return channels_make(&v, tensors, count) ? BSK_ACCEPT : BSK_REFUSE_STRIDE;
}

/* The workspace: vectors of channels, and two numbers of each group and channel. */
enum { CENTER, UNIT, SCALE, SHIFT, PART, PART_H, VECTORS };

typedef struct channel_work {
    float *vector[VECTORS], *sums;
} channel_work;

static bsk_status channels_prepare(bsk_prepared *prepared, const bsk_tensor *t, bool sums)
{
    channels v;
    size_t bytes;
    channels_make(&v, &t, 1);
    if (!bski_mul_size((size_t)v.c, sizeof(float), &bytes) ||
        !bski_mul_size(bytes, VECTORS + (sums ? 2 * (size_t)v.groups : 0), &bytes))
        return BSK_E_UNSUPPORTED;
    prepared->workspace_bytes = bytes;
    return BSK_OK;
}

/* Accept and prepare of an entry with these tensors of its params p, the first of which is there. */
#define CHANNELS_ENTRY(op, sums, first, ...)                                                       \
    OMP_DECLARE(op);                                                                               \
    OMP_ACCEPT(op)                                                                                 \
    {                                                                                              \
        const bsk_##op##_params *p = problem->params;                                              \
        const bsk_tensor *const tensors[] = {first, __VA_ARGS__};                                  \
        (void)props;                                                                               \
        return channels_accept(tensors, (int)(sizeof tensors / sizeof *tensors));                  \
    }                                                                                              \
    OMP_PREPARE(op)                                                                                \
    {                                                                                              \
        const bsk_##op##_params *p = prepared->problem->params;                                    \
        (void)device;                                                                              \
        return channels_prepare(prepared, first, sums);                                            \
    }

static channel_work work_of(const channels *v, bsk_mem mem)
{
    float *base = bsk_mem_address(mem);
    channel_work w = {.sums = base};
    for (int i = 0; base && i < VECTORS; i++, w.sums += v->c)
        w.vector[i] = w.sums;
    return w;
}

/* An optional vector's element. */
static float vector_at(bsk_dtype type, bsk_mem mem, int64_t c, float otherwise)
{
    return type == BSK_NONE ? otherwise : ((const float *)bsk_mem_address(mem))[c];
}

/* --- y = act((x - center) * scale + shift) ---------------------------------------------------- */

/* step: 1 where the coefficients run along the row. */
OMP_INLINE void apply_row(float *restrict row, int64_t count, const float *restrict center,
                          const float *restrict scale, const float *restrict shift, bool relu,
                          const int64_t step)
{
    const float low = relu ? 0 : -INFINITY;
    for (int64_t i = 0; i < count; i++) {
        const float y = (row[i] - center[i * step]) * scale[i * step] + shift[i * step];
        row[i] = y <= low ? low : y;
    }
}

static void channels_apply(const channels *v, const channel_work *w, channel_piece p,
                           const bsk_tensor *x, bsk_mem x_mem, const bsk_tensor *y, bsk_mem y_mem,
                           bool relu, bool stream)
{
    const float *center = w->vector[CENTER] + p.c, *scale = w->vector[SCALE] + p.c;
    const float *shift = w->vector[SHIFT] + p.c;
    float row[CHUNK];
    for (int64_t n = p.first; n < p.last; n++)
        for (int64_t i = 0; i < p.width; i += CHUNK) {
            const int64_t count = min_i64(CHUNK, p.width - i);
            row_load_f32(row, x->dtype, bsk_mem_address(x_mem), channel_at(x, n, p.c, i), count);
            if (v->across)
                apply_row(row, count, center, scale, shift, relu, 1);
            else
                apply_row(row, count, center, scale, shift, relu, 0);
            row_put(row, y->dtype, bsk_mem_address(y_mem), channel_at(y, n, p.c, i), count, stream);
        }
}

static bool channels_stream(const channels *v, bsk_dtype type)
{
    return v->across ? streams(type, v->n, v->c) : streams(type, v->n * v->c, v->s);
}

/* --- batch_norm ------------------------------------------------------------------------------- */

/* Mean and sum of squares around it of one piece's channels. */
static void piece_moments(const channels *v, channel_piece p, const bsk_tensor *x, bsk_mem mem,
                          float *restrict mean, float *restrict square)
{
    const float terms = (float)max_i64(v->across ? p.last - p.first : p.width, 1);
    float row[CHUNK];
    for (int pass = 0; pass < 2; pass++) {
        float *to = pass ? square : mean;
        double total = 0;
        memset(to, 0, (size_t)(v->across ? p.width : 1) * sizeof *to);
        for (int64_t n = p.first; n < p.last; n++)
            for (int64_t i = 0; i < p.width; i += CHUNK) {
                const int64_t count = min_i64(CHUNK, p.width - i);
                row_load_f32(row, x->dtype, bsk_mem_address(mem), channel_at(x, n, p.c, i), count);
                for (int64_t k = 0; v->across && k < count; k++) {
                    const float d = pass ? row[k] - mean[k] : row[k];
                    to[k] += pass ? d * d : d;
                }
                if (v->across)
                    continue;
                row_pad(row, count, pass ? *mean : 0);
                total += (double)(pass ? row_square(row, count, *mean) : row_sum(row, count));
            }
        if (!v->across)
            *to = (float)total;
        for (int64_t k = 0; !pass && k < (v->across ? p.width : 1); k++)
            to[k] /= terms;
    }
}

/* The moments of channel c from those of the groups. */
static void channel_moments(const channels *v, const channel_work *w, int64_t c, float *mean,
                            float *var)
{
    const double total = (double)v->n * (double)v->s;
    double sum = 0, square = 0;
    for (int64_t g = 0; g < v->groups; g++) {
        const int64_t rows = min_i64(v->n, (g + 1) * v->members) - g * v->members;
        sum += (double)w->sums[2 * g * v->c + c] * (double)(rows * v->s);
    }
    *mean = total > 0 ? (float)(sum / total) : 0;
    for (int64_t g = 0; g < v->groups; g++) {
        const int64_t rows = min_i64(v->n, (g + 1) * v->members) - g * v->members;
        const double d = (double)w->sums[2 * g * v->c + c] - (double)*mean;
        square += (double)w->sums[(2 * g + 1) * v->c + c] + (double)(rows * v->s) * d * d;
    }
    *var = total > 0 ? (float)(square / total) : 0;
}

CHANNELS_ENTRY(batch_norm, true, &p->x, &p->y)

OMP_LAUNCH(batch_norm)
{
    const bsk_batch_norm_params *p = prepared->problem->params;
    const bsk_batch_norm_args *a = args;
    const bsk_tensor *const tensors[] = {&p->x, &p->y};
    float *mean = bsk_mem_address(a->mean), *var = bsk_mem_address(a->var);
    channels v;
    channels_make(&v, tensors, 2);
    const channel_work w = work_of(&v, a->workspace);
    const bool stream = channels_stream(&v, p->y.dtype);

#pragma omp parallel num_threads(queue_threads(queue))
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < v.pieces; i++) {
            const channel_piece piece = piece_at(&v, i);
            float *sums = w.sums + 2 * piece.group * v.c + piece.c;
            piece_moments(&v, piece, &p->x, a->x, sums, sums + v.c);
        }
#pragma omp for schedule(static)
        for (int64_t c = 0; c < v.c; c++) {
            channel_moments(&v, &w, c, &mean[c], &var[c]);
            w.vector[CENTER][c] = mean[c];
            w.vector[SCALE][c] = (float)(1 / sqrt((double)var[c] + (double)bski_f32_eps(p->eps))) *
                                 vector_at(p->gain.dtype, a->gain, c, 1);
            w.vector[SHIFT][c] = vector_at(p->bias.dtype, a->bias, c, 0);
        }
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < v.pieces; i++)
            channels_apply(&v, &w, piece_at(&v, i), &p->x, a->x, &p->y, a->y, false, stream);
        stream_fence();
    }
    return BSK_OK;
}

CHANNELS_ENTRY(batch_norm_infer, false, &p->x, &p->y)

OMP_LAUNCH(batch_norm_infer)
{
    const bsk_batch_norm_infer_params *p = prepared->problem->params;
    const bsk_batch_norm_infer_args *a = args;
    const bsk_tensor *const tensors[] = {&p->x, &p->y};
    channels v;
    channels_make(&v, tensors, 2);
    const channel_work w = work_of(&v, a->workspace);
    const bool stream = channels_stream(&v, p->y.dtype);

    for (int64_t c = 0; c < v.c; c++) {
        const float var = ((const float *)bsk_mem_address(a->var))[c];
        w.vector[CENTER][c] = ((const float *)bsk_mem_address(a->mean))[c];
        w.vector[SCALE][c] = (float)(1 / sqrt((double)var + (double)bski_f32_eps(p->eps))) *
                             vector_at(p->gain.dtype, a->gain, c, 1);
        w.vector[SHIFT][c] = vector_at(p->bias.dtype, a->bias, c, 0);
    }
#pragma omp parallel num_threads(queue_threads(queue))
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < v.pieces; i++)
            channels_apply(&v, &w, piece_at(&v, i), &p->x, a->x, &p->y, a->y, false, stream);
        stream_fence();
    }
    return BSK_OK;
}

/* --- cwise_linear ----------------------------------------------------------------------------- */

/* (x + bias) * gain, or x * gain + bias. */
static void linear_coefficients(const channel_work *w, int64_t c, float gain, float bias,
                                bool bias_first)
{
    w->vector[CENTER][c] = bias_first ? -bias : 0;
    w->vector[UNIT][c] = 1;
    w->vector[SCALE][c] = gain;
    w->vector[SHIFT][c] = bias_first ? 0 : bias;
}

CHANNELS_ENTRY(cwise_linear, false, &p->x, &p->y)

OMP_LAUNCH(cwise_linear)
{
    const bsk_cwise_linear_params *p = prepared->problem->params;
    const bsk_cwise_linear_args *a = args;
    const bsk_tensor *const tensors[] = {&p->x, &p->y};
    channels v;
    channels_make(&v, tensors, 2);
    const channel_work w = work_of(&v, a->workspace);
    const bool stream = channels_stream(&v, p->y.dtype);

    for (int64_t c = 0; c < v.c; c++)
        linear_coefficients(&w, c, vector_at(p->gain.dtype, a->gain, c, 1),
                            vector_at(p->bias.dtype, a->bias, c, 0), p->bias_first != 0);
#pragma omp parallel num_threads(queue_threads(queue))
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < v.pieces; i++)
            channels_apply(&v, &w, piece_at(&v, i), &p->x, a->x, &p->y, a->y, p->relu != 0, stream);
        stream_fence();
    }
    return BSK_OK;
}

/* --- gradients -------------------------------------------------------------------------------- */

/* What the two gradients share. With h = (x - center) * unit: sums over g and g * h, where g is dy
 * behind the relu, and dx = scale * (g - part - h * part_h). */
typedef struct channel_grad {
    channels v;
    channel_work w;
    const bsk_tensor *dy, *x, *dx;
    bsk_mem dy_mem, x_mem, dx_mem;
    double dx_alpha, dx_beta;
    bool relu, sums, stream;
} channel_grad;

OMP_INLINE void grad_row(const channel_work *w, int64_t c, float *restrict g, float *restrict h,
                         int64_t count, bool relu, const int64_t step)
{
    const float *restrict center = w->vector[CENTER] + c, *restrict unit = w->vector[UNIT] + c;
    const float *restrict scale = w->vector[SCALE] + c, *restrict shift = w->vector[SHIFT] + c;
    for (int64_t i = 0; i < count; i++) {
        h[i] = (h[i] - center[i * step]) * unit[i * step];
        if (relu) {
            const float pre = h[i] * scale[i * step] + shift[i * step];
            g[i] *= pre > 0 ? 1 : pre <= 0 ? 0 : pre;
        }
    }
}

OMP_INLINE void grad_apply(const channel_work *w, int64_t c, float *restrict g,
                           const float *restrict h, int64_t count, bool parts, const int64_t step)
{
    const float *restrict scale = w->vector[SCALE] + c, *restrict part = w->vector[PART] + c;
    const float *restrict part_h = w->vector[PART_H] + c;
    for (int64_t i = 0; i < count; i++)
        g[i] = scale[i * step] * (parts ? g[i] - (part[i * step] + h[i] * part_h[i * step]) : g[i]);
}

/* One piece: its sums, if there are any to be formed, and dx, with what its parts take away. */
static void grad_piece(const channel_grad *d, int64_t i, bool sum, bool store, bool parts)
{
    const channels *v = &d->v;
    const channel_piece p = piece_at(v, i);
    const bool reads_x = d->x->dtype != BSK_NONE;
    float g[CHUNK], h[CHUNK] = {0};
    float *total = sum ? d->w.sums + 2 * p.group * v->c + p.c : NULL;
    float *total_h = sum ? total + v->c : NULL;
    double along = 0, along_h = 0;

    if (sum && v->across) {
        memset(total, 0, (size_t)p.width * sizeof *total);
        memset(total_h, 0, (size_t)p.width * sizeof *total);
    }
    for (int64_t n = p.first; n < p.last; n++)
        for (int64_t k = 0; k < p.width; k += CHUNK) {
            const int64_t count = min_i64(CHUNK, p.width - k);
            row_load_padded(g, d->dy->dtype, bsk_mem_address(d->dy_mem),
                            channel_at(d->dy, n, p.c, k), count, 0);
            if (reads_x)
                row_load_padded(h, d->x->dtype, bsk_mem_address(d->x_mem),
                                channel_at(d->x, n, p.c, k), count, 0);
            if (reads_x && v->across)
                grad_row(&d->w, p.c, g, h, count, d->relu, 1);
            else if (reads_x)
                grad_row(&d->w, p.c, g, h, count, d->relu, 0);
            for (int64_t e = 0; sum && v->across && e < count; e++) {
                total[e] += g[e];
                total_h[e] += g[e] * h[e];
            }
            if (sum && !v->across) {
                along += (double)row_sum(g, count);
                along_h += (double)row_dot(g, h, count);
            }
            if (!store)
                continue;
            if (v->across)
                grad_apply(&d->w, p.c, g, h, count, parts, 1);
            else
                grad_apply(&d->w, p.c, g, h, count, parts, 0);
            void *dx = bsk_mem_address(d->dx_mem);
            const int64_t to = channel_at(d->dx, n, p.c, k);
            row_blend(g, d->dx_alpha, d->dx_beta, d->dx->dtype, dx, to, count);
            row_put(g, d->dx->dtype, dx, to, count, d->stream);
        }
    if (sum && !v->across) {
        *total = (float)along;
        *total_h = (float)along_h;
    }
}

/* The sums of channel c over the groups: of g in [0], of g * h in [1]. */
static void channel_sums(const channel_grad *d, int64_t c, double sum[2])
{
    sum[0] = sum[1] = 0;
    for (int64_t g = 0; d->sums && g < d->v.groups; g++)
        for (int i = 0; i < 2; i++)
            sum[i] += (double)d->w.sums[(2 * g + i) * d->v.c + c];
}

static void vector_blend(bsk_dtype type, bsk_mem mem, int64_t c, double alpha, double beta,
                         double value)
{
    float *to = bsk_mem_address(mem);
    if (type != BSK_NONE)
        to[c] = (float)(alpha * value + (beta != 0 ? beta * (double)to[c] : 0));
}

CHANNELS_ENTRY(cwise_linear_grad, true, &p->dy, &p->x, &p->dx)

OMP_LAUNCH(cwise_linear_grad)
{
    const bsk_cwise_linear_grad_params *p = prepared->problem->params;
    const bsk_cwise_linear_grad_args *a = args;
    channel_grad d = {.dy = &p->dy,
                      .x = &p->x,
                      .dx = &p->dx,
                      .dy_mem = a->dy,
                      .x_mem = a->x,
                      .dx_mem = a->dx,
                      .dx_alpha = a->dx_alpha,
                      .dx_beta = a->dx_beta,
                      .relu = p->relu != 0,
                      .sums = p->dgain.dtype != BSK_NONE || p->dbias.dtype != BSK_NONE};
    const bool store = p->dx.dtype != BSK_NONE;
    channels_make(&d.v, &d.dy, 1);
    d.w = work_of(&d.v, a->workspace);
    d.stream = store && channels_stream(&d.v, p->dx.dtype);

    for (int64_t c = 0; c < d.v.c; c++)
        linear_coefficients(&d.w, c, vector_at(p->gain.dtype, a->gain, c, 1),
                            vector_at(p->bias.dtype, a->bias, c, 0), p->bias_first != 0);
#pragma omp parallel num_threads(queue_threads(queue))
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < d.v.pieces; i++)
            grad_piece(&d, i, d.sums, store, false);
        stream_fence();
    }
    for (int64_t c = 0; c < d.v.c; c++) {
        double sum[2];
        channel_sums(&d, c, sum);
        vector_blend(p->dgain.dtype, a->dgain, c, a->alpha, a->beta, sum[1]);
        vector_blend(p->dbias.dtype, a->dbias, c, a->alpha, a->beta,
                     p->bias_first ? sum[0] * (double)d.w.vector[SCALE][c] : sum[0]);
    }
    return BSK_OK;
}

CHANNELS_ENTRY(batch_norm_grad, true, &p->dy, &p->x, &p->dx)

OMP_LAUNCH(batch_norm_grad)
{
    const bsk_batch_norm_grad_params *p = prepared->problem->params;
    const bsk_batch_norm_grad_args *a = args;
    const bool store = p->dx.dtype != BSK_NONE, train = store && !p->infer;
    channel_grad d = {.dy = &p->dy,
                      .x = &p->x,
                      .dx = &p->dx,
                      .dy_mem = a->dy,
                      .x_mem = a->x,
                      .dx_mem = a->dx,
                      .dx_alpha = a->dx_alpha,
                      .dx_beta = a->dx_beta,
                      .sums = train || p->dgain.dtype != BSK_NONE || p->dbias.dtype != BSK_NONE};
    channels_make(&d.v, &d.dy, 1);
    d.w = work_of(&d.v, a->workspace);
    d.stream = store && channels_stream(&d.v, p->dx.dtype);
    const double count = (double)d.v.n * (double)d.v.s;

    for (int64_t c = 0; c < d.v.c; c++) {
        const double var = (double)((const float *)bsk_mem_address(a->var))[c];
        d.w.vector[CENTER][c] = ((const float *)bsk_mem_address(a->mean))[c];
        d.w.vector[UNIT][c] = (float)(1 / sqrt(var + (double)bski_f32_eps(p->eps)));
        d.w.vector[SCALE][c] = vector_at(p->gain.dtype, a->gain, c, 1) * d.w.vector[UNIT][c];
    }
#pragma omp parallel num_threads(queue_threads(queue))
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < (d.sums || !train ? d.v.pieces : 0); i++)
            grad_piece(&d, i, d.sums, store && !train, false);
#pragma omp for schedule(static)
        for (int64_t c = 0; c < d.v.c; c++) {
            double sum[2];
            channel_sums(&d, c, sum);
            d.w.vector[PART][c] = (float)(sum[0] / count);
            d.w.vector[PART_H][c] = (float)(sum[1] / count);
            vector_blend(p->dgain.dtype, a->dgain, c, a->alpha, a->beta, sum[1]);
            vector_blend(p->dbias.dtype, a->dbias, c, a->alpha, a->beta, sum[0]);
        }
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < (train ? d.v.pieces : 0); i++)
            grad_piece(&d, i, false, true, true);
        stream_fence();
    }
    return BSK_OK;
}
