/* Convolutions over blocks of channels in f32: images are copied to planes of f32, unless their lines
 * are, and lines of the result summed up in the first-level cache. */
#include <common/conv.h>

#include "dense.h"

/* Elements of a line of the result that are summed at a time; channels whose terms come together. */
enum { LINE = 1024, AT_ONCE = 4, SPACE_ALIGNMENT = 64 };

/* Images of f32 whose lines are contiguous. */
typedef struct planes {
    const float *data;
    int64_t image, channel, by[2];
} planes;

static int64_t line_stride(const bsk_tensor *t)
{
    return t->dims[t->rank - 1] > 1 ? t->strides[t->rank - 1] : 1;
}

static bool is_planar(const bsk_tensor *t)
{
    return t->dtype == BSK_F32 && line_stride(t) == 1;
}

/* Positions of an image. */
static int64_t positions_of(const bsk_tensor *t)
{
    int64_t count = 1;
    for (int32_t d = 2; d < t->rank; d++)
        count *= t->dims[d];
    return count;
}

/* Adds room for the planes of t, if it needs any. */
static bool space_planes(const bsk_tensor *t, size_t *total)
{
    size_t bytes = sizeof(float);
    if (is_planar(t))
        return true;
    for (int32_t d = t->rank - 1; d >= 0; d--)
        if (!bski_mul_size(bytes, (size_t)t->dims[d], &bytes))
            return false;
    return bski_add_size(bytes, SPACE_ALIGNMENT - 1, &bytes) &&
           bski_add_size(*total, bytes & ~(size_t)(SPACE_ALIGNMENT - 1), total);
}

/* The element where position number i of an image begins. */
static int64_t position_at(const bsk_tensor *t, int64_t i)
{
    int64_t at = 0;
    for (int32_t d = t->rank - 1; d >= 2; d--) {
        at += i % t->dims[d] * t->strides[d];
        i /= t->dims[d];
    }
    return at;
}

/* One image by its lines, or, where channels are contiguous, by runs of these. */
static void image_copy(const bsk_tensor *t, const void *from, int64_t n, int64_t positions,
                       float *to)
{
    float run[CHUNK];
    const int64_t channels = t->dims[1], line = t->dims[t->rank - 1], stride = line_stride(t);
    if (stride == 1) {
        for (int64_t c = 0; c < channels; c++)
            for (int64_t i = 0; i < positions; i += line)
                row_load_f32(to + c * positions + i, t->dtype, from,
                             n * t->strides[0] + c * t->strides[1] + position_at(t, i), line);
        return;
    }
    const int64_t length = channels <= 1 || t->strides[1] == 1 ? CHUNK : 1;
    for (int64_t i = 0; i < positions; i++)
        for (int64_t c = 0; c < channels; c += length) {
            const int64_t count = min_i64(length, channels - c);
            row_load_f32(run, t->dtype, from,
                         n * t->strides[0] + c * t->strides[1] + position_at(t, i), count);
            for (int64_t k = 0; k < count; k++)
                to[(c + k) * positions + i] = run[k];
        }
}

/* The planes of t; *space moves behind the room that they take. */
static planes planes_make(const bsk_tensor *t, bsk_mem mem, char **space, int threads)
{
    planes p = {.image = t->strides[0], .channel = t->strides[1]};
    const int64_t images = t->dims[0], channels = t->dims[1];
    for (int d = 0; d < 2; d++)
        p.by[d] = t->rank - 3 + d >= 2 ? t->strides[t->rank - 3 + d] : 0;
    if (is_planar(t)) {
        p.data = bsk_mem_address(mem);
        return p;
    }
    const int64_t positions = images && channels ? positions_of(t) : 0;
    float *to = (float *)(void *)*space;
    p.data = to;
    p.channel = positions;
    p.image = channels * positions;
    p.by[1] = t->rank > 3 ? t->dims[t->rank - 1] : 0;
    p.by[0] = t->rank > 4 ? p.by[1] * t->dims[t->rank - 2] : 0;
#pragma omp parallel for num_threads(threads)
    for (int64_t n = 0; n < (p.image ? images : 0); n++)
        image_copy(t, bsk_mem_address(mem), n, positions, to + n * p.image);
    *space += ((size_t)(images * p.image) * sizeof(float) + SPACE_ALIGNMENT - 1) &
              ~(size_t)(SPACE_ALIGNMENT - 1);
    return p;
}

/* Adds room for the entries of all channels of the result. */
static bool space_entries(const bsk_conv_shape *s, const bsk_tensor *out, size_t *total)
{
    size_t starts, entries;
    return bski_mul_size((size_t)out->dims[1] + 1, sizeof(int64_t), &starts) &&
           bski_mul_size((size_t)s->blocks_size, sizeof(bski_conv_entry), &entries) &&
           bski_add_size(starts, entries, &starts) &&
           bski_add_size(starts, SPACE_ALIGNMENT - 1, &starts) &&
           bski_add_size(*total, starts & ~(size_t)(SPACE_ALIGNMENT - 1), total);
}

/* --- conv and conv_dgrad ---------------------------------------------------------------------- */

/* `in` is what is read at taps, `out` where they belong. */
typedef struct conv_work {
    bski_conv_axes axes; /* x: in, y: out */
    bool back;
    const bsk_conv_shape *shape;
    const bsk_tensor *in_desc, *w_desc, *out_desc;
    planes in;
    const void *w;
    void *out;
    double alpha, beta;
    const int64_t *start;
    const bski_conv_entry *entries;
} conv_work;

static int64_t floor_div(int64_t a, int64_t b)
{
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}

/* The positions of `in` that tap t of position p reads in dimension d, or -1. */
static int64_t read_at(const conv_work *w, int d, int64_t p, int64_t t)
{
    const bski_conv_axes *a = &w->axes;
    if (!w->back)
        return bski_conv_input(a, d, p, t);
    const int64_t far = p + a->pad[d] - t * a->dilation[d];
    return far >= 0 && far % a->stride[d] == 0 && far / a->stride[d] < a->inputs[d]
               ? far / a->stride[d]
               : -1;
}

/* What tap t has of a part of a line of the result: `count` sums from `to` on, `to_step` apart, of what
 * is read from `from` on, `from_step` apart. */
typedef struct tap_span {
    int64_t to, to_step, from, from_step, count;
} tap_span;

static tap_span span_of(const conv_work *w, int64_t t, int64_t first, int64_t length)
{
    const bski_conv_axes *a = &w->axes;
    const int64_t stride = a->stride[2], shift = t * a->dilation[2] - a->pad[2];
    tap_span s = {.to_step = 1, .from_step = stride};
    if (!w->back) {
        const int64_t low = max_i64(first, -floor_div(shift, stride));
        const int64_t high =
            min_i64(first + length, floor_div(a->inputs[2] - 1 - shift, stride) + 1);
        s.to = low - first;
        s.from = low * stride + shift;
        s.count = high - low;
    } else {
        const int64_t low = max_i64(0, -floor_div(shift - first, stride));
        const int64_t high =
            min_i64(a->inputs[2], floor_div(first + length - 1 - shift, stride) + 1);
        s.to_step = stride;
        s.from_step = 1;
        s.to = low * stride + shift - first;
        s.from = low;
        s.count = high - low;
    }
    return s;
}

/* line += the sum over `count` channels of factor * what they have. */
OMP_INLINE void span_add(float *restrict line, const tap_span *s, const float *const *from,
                         const float *factor, int count)
{
    float *to = line + s->to;
    if (s->to_step == 1 && s->from_step == 1 && count == AT_ONCE) {
        const float *a = from[0] + s->from, *b = from[1] + s->from, *c = from[2] + s->from,
                    *d = from[3] + s->from;
        for (int64_t i = 0; i < s->count; i++)
            to[i] += (factor[0] * a[i] + factor[1] * b[i]) + (factor[2] * c[i] + factor[3] * d[i]);
        return;
    }
    for (int k = 0; k < count; k++) {
        const float *a = from[k] + s->from;
        if (s->to_step == 1 && s->from_step == 1)
            for (int64_t i = 0; i < s->count; i++)
                to[i] += factor[k] * a[i];
        else
            for (int64_t i = 0; i < s->count; i++)
                to[i * s->to_step] += factor[k] * a[i * s->from_step];
    }
}

/* What the last dimension's taps of an entry give to a part of a line, from the lines at in_at of its
 * channels. */
static void entry_add(const conv_work *w, const bski_conv_entry *e, int64_t tap, int64_t in_at,
                      float *line, int64_t first, int64_t length)
{
    const int32_t *channels = w->shape->blocks + e->list;
    for (int64_t t = 0; t < w->axes.filter[2]; t++) {
        const tap_span s = span_of(w, t, first, length);
        if (s.count <= 0)
            continue;
        for (int64_t c = 0; c < e->count; c += AT_ONCE) {
            const float *from[AT_ONCE];
            float factor[AT_ONCE];
            const int count = (int)min_i64(AT_ONCE, e->count - c);
            for (int k = 0; k < count; k++) {
                from[k] = w->in.data + in_at + channels[c + k] * w->in.channel;
                row_load_f32(factor + k, w->w_desc->dtype, w->w,
                             e->filter + (c + k) * e->step + tap + t, 1);
            }
            span_add(line, &s, from, factor, count);
        }
    }
}

static void line_store(const conv_work *w, float *line, int64_t at, int64_t stride, int64_t count)
{
    const int64_t length = stride == 1 ? count : 1;
    for (int64_t i = 0; i < count; i += length) {
        row_blend(line + i, w->alpha, w->beta, w->out_desc->dtype, w->out, at + i * stride, length);
        row_store_f32(line + i, w->out_desc->dtype, w->out, at + i * stride, length);
    }
}

/* A part of line (p0, p1) of channel k of image n. */
static void line_make(const conv_work *w, int64_t n, int64_t k, const int64_t p[2], int64_t first,
                      int64_t length)
{
    const bski_conv_axes *a = &w->axes;
    float line[LINE] = {0};
    for (int64_t e = w->start[k]; e < w->start[k + 1]; e++)
        for (int64_t t0 = 0; t0 < a->filter[0]; t0++) {
            const int64_t from0 = read_at(w, 0, p[0], t0);
            for (int64_t t1 = 0; from0 >= 0 && t1 < a->filter[1]; t1++) {
                const int64_t from1 = read_at(w, 1, p[1], t1);
                if (from1 >= 0)
                    entry_add(w, &w->entries[e], (t0 * a->filter[1] + t1) * a->filter[2],
                              n * w->in.image + from0 * w->in.by[0] + from1 * w->in.by[1], line,
                              first, length);
            }
        }
    const int64_t stride = line_stride(w->out_desc);
    line_store(w, line,
               n * w->out_desc->strides[0] + k * w->out_desc->strides[1] + p[0] * a->y_stride[0] +
                   p[1] * a->y_stride[1] + first * stride,
               stride, length);
}

static bsk_status conv_run(conv_work *w, bsk_mem in, bsk_mem workspace, void *queue)
{
    const int threads = queue_threads(queue);
    char *space = bsk_mem_address(workspace);
    const int64_t channels = w->out_desc->dims[1], images = w->out_desc->dims[0];
    int64_t *start = (int64_t *)(void *)space;
    bski_conv_entry *entries = (bski_conv_entry *)(void *)(start + channels + 1);
    bski_conv_axes_fill(&w->axes, w->shape, w->in_desc, w->out_desc);
    bski_conv_entries(w->shape, w->back, channels, w->axes.taps, start, entries);
    w->start = start;
    w->entries = entries;
    size_t used = 0;
    if (!space_entries(w->shape, w->out_desc, &used))
        return BSK_E_NOMEM;
    space += used;
    w->in = planes_make(w->in_desc, in, &space, threads);
    const int64_t *sizes = w->axes.outputs, parts = bski_ceil_div(sizes[2], LINE);
    const int64_t lines = parts * sizes[1] * sizes[0] * channels * images;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4)
    for (int64_t i = 0; i < lines; i++) {
        const int64_t part = i % parts, line = i / parts, row = line / sizes[1];
        const int64_t channel = row / sizes[0], p[] = {row % sizes[0], line % sizes[1]};
        line_make(w, channel / channels, channel % channels, p, part * LINE,
                  min_i64(LINE, sizes[2] - part * LINE));
    }
    return BSK_OK;
}

#define CONV_ENTRY(op, IN, OUT, is_back)                                                           \
    OMP_DECLARE(op);                                                                               \
    OMP_ACCEPT(op)                                                                                 \
    {                                                                                              \
        const bsk_##op##_params *p = problem->params;                                              \
        (void)props;                                                                               \
        return is_narrow(&p->IN) && is_narrow(&p->OUT) ? BSK_ACCEPT : BSK_REFUSE_DTYPE;            \
    }                                                                                              \
    OMP_PREPARE(op)                                                                                \
    {                                                                                              \
        const bsk_##op##_params *p = prepared->problem->params;                                    \
        (void)device;                                                                              \
        if (!space_entries(&p->shape, &p->OUT, &prepared->workspace_bytes) ||                      \
            !space_planes(&p->IN, &prepared->workspace_bytes))                                     \
            return BSK_E_NOMEM;                                                                    \
        return BSK_OK;                                                                             \
    }                                                                                              \
    OMP_LAUNCH(op)                                                                                 \
    {                                                                                              \
        const bsk_##op##_params *p = prepared->problem->params;                                    \
        const bsk_##op##_args *a = args;                                                           \
        conv_work w = {.back = is_back,                                                            \
                       .shape = &p->shape,                                                         \
                       .in_desc = &p->IN,                                                          \
                       .w_desc = &p->w,                                                            \
                       .out_desc = &p->OUT,                                                        \
                       .w = bsk_mem_address(a->w),                                                 \
                       .out = bsk_mem_address(a->OUT),                                             \
                       .alpha = a->alpha,                                                          \
                       .beta = a->beta};                                                           \
        return conv_run(&w, a->IN, a->workspace, queue);                                           \
    }

CONV_ENTRY(conv, x, y, false)
CONV_ENTRY(conv_dgrad, dy, dx, true)

/* --- conv_wgrad ------------------------------------------------------------------------------- */

OMP_INLINE float dot(const float *a, int64_t a_step, const float *b, int64_t count)
{
    int64_t i = 0;
    float sum = 0;
    if (a_step == 1) {
        vec_f32 sums = splat_f32(0);
        for (; i + F32_LANES <= count; i += F32_LANES)
            sums += load_f32(a + i) * load_f32(b + i);
        sum = lanes_sum(sums);
    }
    for (; i < count; i++)
        sum += a[i * a_step] * b[i];
    return sum;
}

typedef struct wgrad_work {
    bski_conv_axes axes;
    planes x, dy;
    int64_t images;
} wgrad_work;

/* The sum of a tap over all lines, of channels at x_at and dy_at. */
static float tap_sum(const wgrad_work *w, int64_t x_at, int64_t dy_at, const int64_t t[3])
{
    const bski_conv_axes *a = &w->axes;
    const int64_t stride = a->stride[2], shift = t[2] * a->dilation[2] - a->pad[2];
    const int64_t low = max_i64(0, -floor_div(shift, stride));
    const int64_t high = min_i64(a->outputs[2], floor_div(a->inputs[2] - 1 - shift, stride) + 1);
    float sum = 0;
    for (int64_t n = 0; high > low && n < w->images; n++)
        for (int64_t q0 = 0; q0 < a->outputs[0]; q0++) {
            const int64_t from0 = bski_conv_input(a, 0, q0, t[0]);
            for (int64_t q1 = 0; from0 >= 0 && q1 < a->outputs[1]; q1++) {
                const int64_t from1 = bski_conv_input(a, 1, q1, t[1]);
                if (from1 < 0)
                    continue;
                sum += dot(w->x.data + x_at + n * w->x.image + from0 * w->x.by[0] +
                               from1 * w->x.by[1] + low * stride + shift,
                           stride,
                           w->dy.data + dy_at + n * w->dy.image + q0 * w->dy.by[0] +
                               q1 * w->dy.by[1] + low,
                           high - low);
            }
        }
    return sum;
}

OMP_DECLARE(conv_wgrad);

OMP_ACCEPT(conv_wgrad)
{
    const bsk_conv_wgrad_params *p = problem->params;
    (void)props;
    return is_narrow(&p->x) && is_narrow(&p->dw) ? BSK_ACCEPT : BSK_REFUSE_DTYPE;
}

OMP_PREPARE(conv_wgrad)
{
    const bsk_conv_wgrad_params *p = prepared->problem->params;
    (void)device;
    return space_planes(&p->x, &prepared->workspace_bytes) &&
                   space_planes(&p->dy, &prepared->workspace_bytes)
               ? BSK_OK
               : BSK_E_NOMEM;
}

OMP_LAUNCH(conv_wgrad)
{
    const bsk_conv_wgrad_params *p = prepared->problem->params;
    const bsk_conv_wgrad_args *a = args;
    const int threads = queue_threads(queue);
    char *space = bsk_mem_address(a->workspace);
    wgrad_work w = {.images = positions_of(&p->dy) ? p->x.dims[0] : 0};
    bski_conv_axes_fill(&w.axes, &p->shape, &p->x, &p->dy);
    w.x = planes_make(&p->x, a->x, &space, threads);
    w.dy = planes_make(&p->dy, a->dy, &space, threads);
    void *dw = bsk_mem_address(a->dw);
    const int64_t *filter = w.axes.filter;
#pragma omp parallel num_threads(threads)
    for (bski_conv_block b = {0}; bski_conv_next(&p->shape, &b);)
#pragma omp for nowait
        for (int64_t i = 0; i < b.ins * b.outs * w.axes.taps; i++) {
            const int64_t pair = i / w.axes.taps, tap = i % w.axes.taps;
            const int64_t at = b.pairs * w.axes.taps + i;
            float sum =
                tap_sum(&w, b.in[pair % b.ins] * w.x.channel, b.out[pair / b.ins] * w.dy.channel,
                        (const int64_t[]){tap / filter[2] / filter[1], tap / filter[2] % filter[1],
                                          tap % filter[2]});
            row_blend(&sum, a->alpha, a->beta, p->dw.dtype, dw, at, 1);
            row_store_f32(&sum, p->dw.dtype, dw, at, 1);
        }
    return BSK_OK;
}

/* --- conv_edge_bias --------------------------------------------------------------------------- */

/* x and y of conv_edge_bias, or dy and dx of its gradient, which has no bias. Runs are of channels of a
 * position, where these are neighbours, or of positions of a line. */
typedef struct edge_work {
    const bsk_tensor *x_desc, *y_desc;
    const void *x;
    void *y;
    const int32_t *edges;
    const float *gain, *bias;
    const int64_t *gain_stride, *bias_stride;
    int64_t sets;
    bool by_channel;
} edge_work;

/* `count` elements from channel c of position q on. */
static void edge_run(const edge_work *w, int64_t n, int64_t c, int64_t q, int64_t count)
{
    float run[CHUNK];
    const bsk_tensor *x = w->x_desc, *y = w->y_desc;
    row_load_f32(run, x->dtype, w->x, n * x->strides[0] + c * x->strides[1] + position_at(x, q),
                 count);
    for (int64_t i = 0; i < count; i++) {
        const int64_t e = w->edges[w->by_channel ? q : q + i], k = w->by_channel ? c + i : c;
        if (e < 0 || e >= w->sets)
            continue;
        run[i] *= w->gain[k * w->gain_stride[0] + e * w->gain_stride[1]];
        if (w->bias)
            run[i] += w->bias[k * w->bias_stride[0] + e * w->bias_stride[1]];
    }
    row_store_f32(run, y->dtype, w->y, n * y->strides[0] + c * y->strides[1] + position_at(y, q),
                  count);
}

static void edges_run(edge_work *w, int threads)
{
    const bsk_tensor *x = w->x_desc, *y = w->y_desc;
    const int64_t positions = positions_of(y), channels = y->dims[1];
    if (!positions || !channels)
        return;
    w->by_channel = x->strides[1] == 1 && y->strides[1] == 1;
    const bool by_line = line_stride(x) == 1 && line_stride(y) == 1;
    const int64_t row = w->by_channel ? channels : y->dims[y->rank - 1];
    const int64_t rows = channels * positions / row, most = w->by_channel || by_line ? CHUNK : 1;
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < rows * y->dims[0]; i++) {
        const int64_t n = i / rows, first = i % rows * row;
        for (int64_t at = 0; at < row; at += most) {
            const int64_t count = min_i64(most, row - at);
            if (w->by_channel)
                edge_run(w, n, at, i % rows, count);
            else
                edge_run(w, n, first / positions, first % positions + at, count);
        }
    }
}

OMP_DECLARE(conv_edge_bias);

OMP_ACCEPT(conv_edge_bias)
{
    const bsk_conv_edge_bias_params *p = problem->params;
    (void)props;
    return is_narrow(&p->x) && is_narrow(&p->y) ? BSK_ACCEPT : BSK_REFUSE_DTYPE;
}

OMP_PREPARE(conv_edge_bias)
{
    (void)device;
    (void)prepared;
    return BSK_OK;
}

OMP_LAUNCH(conv_edge_bias)
{
    const bsk_conv_edge_bias_params *p = prepared->problem->params;
    const bsk_conv_edge_bias_args *a = args;
    edge_work w = {.x_desc = &p->x,
                   .y_desc = &p->y,
                   .x = bsk_mem_address(a->x),
                   .y = bsk_mem_address(a->y),
                   .edges = bsk_mem_address(a->edges),
                   .gain = bsk_mem_address(a->gain),
                   .bias = bsk_mem_address(a->bias),
                   .gain_stride = p->gain.strides,
                   .bias_stride = p->bias.strides,
                   .sets = p->gain.dims[1]};
    edges_run(&w, queue_threads(queue));
    return BSK_OK;
}

/* --- conv_edge_bias_grad ---------------------------------------------------------------------- */

static void edge_sums(const bsk_conv_edge_bias_grad_params *p,
                      const bsk_conv_edge_bias_grad_args *a, int64_t channel, int64_t set,
                      float *products, float *sum)
{
    const int32_t *edges = bsk_mem_address(a->edges);
    const bsk_tensor *dy = &p->dy, *x = &p->x;
    *products = *sum = 0;
    for (int64_t q = 0; q < p->edges.dims[0]; q++) {
        if (edges[q] != set)
            continue;
        const int64_t dy_at = channel * dy->strides[1] + position_at(dy, q);
        const int64_t x_at = channel * x->strides[1] + position_at(x, q);
        for (int64_t n = 0; n < dy->dims[0]; n++) {
            float d, v;
            row_load_f32(&d, dy->dtype, bsk_mem_address(a->dy), dy_at + n * dy->strides[0], 1);
            row_load_f32(&v, x->dtype, bsk_mem_address(a->x), x_at + n * x->strides[0], 1);
            *products += d * v;
            *sum += d;
        }
    }
}

static void gain_store(const bsk_tensor *t, void *data, int64_t at, float sum, double alpha,
                       double beta)
{
    row_blend(&sum, alpha, beta, t->dtype, data, at, 1);
    row_store_f32(&sum, t->dtype, data, at, 1);
}

OMP_DECLARE(conv_edge_bias_grad);

OMP_ACCEPT(conv_edge_bias_grad)
{
    const bsk_conv_edge_bias_grad_params *p = problem->params;
    (void)props;
    return is_narrow(&p->dy) && is_narrow(&p->x) && is_narrow(&p->dx) ? BSK_ACCEPT
                                                                      : BSK_REFUSE_DTYPE;
}

OMP_PREPARE(conv_edge_bias_grad)
{
    (void)device;
    (void)prepared;
    return BSK_OK;
}

OMP_LAUNCH(conv_edge_bias_grad)
{
    const bsk_conv_edge_bias_grad_params *p = prepared->problem->params;
    const bsk_conv_edge_bias_grad_args *a = args;
    const int threads = queue_threads(queue);
    const int64_t sets = p->gain.dims[1];
    /* First, since dx may lie where dy does. */
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < p->gain.dims[0] * sets; i++) {
        const int64_t c = i / sets, e = i % sets;
        float products, sum;
        edge_sums(p, a, c, e, &products, &sum);
        gain_store(&p->dgain, bsk_mem_address(a->dgain),
                   c * p->dgain.strides[0] + e * p->dgain.strides[1], products, a->alpha, a->beta);
        gain_store(&p->dbias, bsk_mem_address(a->dbias),
                   c * p->dbias.strides[0] + e * p->dbias.strides[1], sum, a->alpha, a->beta);
    }
    edge_work w = {.x_desc = &p->dy,
                   .y_desc = &p->dx,
                   .x = bsk_mem_address(a->dy),
                   .y = bsk_mem_address(a->dx),
                   .edges = bsk_mem_address(a->edges),
                   .gain = bsk_mem_address(a->gain),
                   .gain_stride = p->gain.strides,
                   .sets = sets};
    edges_run(&w, threads);
    return BSK_OK;
}
