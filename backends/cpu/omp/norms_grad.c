/* The gradient of layer_norm. Rows are taken a few at a time, and stay in a cache until their results
 * are stored; rows that lie across memory, a band of columns at a time. */
#include "norms.h"

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
    bool stream, split;            /* split: whether whole pieces are */
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
        l->mean[r] = plain_f32(mean_at(v, s, n));
        l->rstd[r] = plain_f32(v->rstd[s * v->rows + n]);
        l->sum[r] = l->sum_h[r] = (vec_f32){0};
    }
}

/* Where a piece of some rows is, and of which types; `split`: whether its pairs are. */
typedef struct grad_piece {
    bsk_dtype dy_type, x_type, dx_type;
    bool split, relu, stream;
    bool early; /* dx straight from x, which is as good for bf16: part and part_h are of x, not h */
    const float *gain, *bias;
    const void *dy[LINES], *x[LINES], *dy_ahead[LINES], *x_ahead[LINES]; /* the latter to ask for */
    void *dx[LINES];
    normal n;
    vec_f32 part[LINES], part_h[LINES]; /* times rstd */
} grad_piece;

/* The rest is left as it is: a piece takes no longer than filling all of it would. */
OMP_INLINE void grad_types(grad_piece *at, bsk_dtype dy, bsk_dtype x, bsk_dtype dx, bool split,
                           bool relu, bool stream)
{
    at->dy_type = dy;
    at->x_type = x;
    at->dx_type = dx;
    at->split = split;
    at->relu = relu;
    at->stream = stream;
    at->n.early = at->early = false;
}

typedef struct grad_sums {
    vec_f32 sum[LINES], sum_h[LINES];
} grad_sums;

OMP_INLINE vec_f32 relu_slopes(vec_f32 x)
{
    const vec_f32 kept = select_f32(x > 0.0f, splat_f32(1), x);
    return select_f32(x <= 0.0f, splat_f32(0), kept);
}

/* g = dy where relu let it through, and h, of the pair at k of row r. */
OMP_INLINE line_pair grad_load(const grad_piece *at, int r, int64_t k, line_pair gain, line_pair *h)
{
    line_pair g = pair_load(at->dy_type, at->dy[r], k, at->split);
    *h = pair_load(at->x_type, at->x[r], k, at->split);
    for (int j = 0; j < 2; j++) {
        h->v[j] = normal_f32(&at->n, r, h->v[j]);
        if (at->relu)
            g.v[j] *= relu_slopes(h->v[j] * gain.v[j] + load_f32(at->bias + k + j * F32_LANES));
    }
    return g;
}

/* The pairs at k of lines 0 .. rows - 1; dgain, dbias: sums of the features, or NULL. */
OMP_INLINE void grad_take(grad_sums *s, const grad_piece *at, int rows, int64_t k, float *dgain,
                          float *dbias)
{
    const line_pair gain = pair_load(BSK_F32, at->gain, k, false);
    line_pair h, to_gain = {{{0}}}, to_bias = {{{0}}};
    if (dgain) {
        to_gain = pair_load(BSK_F32, dgain, k, false);
        to_bias = pair_load(BSK_F32, dbias, k, false);
    }
    _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++)
    {
        const line_pair g = grad_load(at, r, k, gain, &h);
        line_fetch(at->dy_type, at->dy_ahead[r], k);
        line_fetch(at->x_type, at->x_ahead[r], k);
        for (int j = 0; j < 2; j++) {
            const vec_f32 t = g.v[j] * gain.v[j];
            to_gain.v[j] += g.v[j] * h.v[j];
            to_bias.v[j] += g.v[j];
            s->sum[r] += t;
            s->sum_h[r] += t * h.v[j];
        }
    }
    if (dgain) {
        pair_put(BSK_F32, dgain, k, to_gain, false, false);
        pair_put(BSK_F32, dbias, k, to_bias, false, false);
    }
}

static void grad_end(const layer_grad *v, grad_lines *l)
{
    for (int r = 0; r < l->count; r++) {
        l->part[r] = v->p->rms ? 0 : lanes_sum(l->sum[r]) / (float)v->count;
        l->part_h[r] = lanes_sum(l->sum_h[r]) / (float)v->count;
    }
}

/* Line r of l becomes number `to` of the piece: its numbers. */
OMP_INLINE void grad_line(grad_piece *at, int to, const grad_lines *l, int r)
{
    normal_at(&at->n, to, l->mean[r], l->rstd[r]);
    const float part_h = l->rstd[r] * l->part_h[r], slope = l->rstd[r] * part_h;
    at->part[to] = splat_f32(l->rstd[r] * l->part[r] - (at->early ? l->mean[r] * slope : 0));
    at->part_h[to] = splat_f32(at->early ? slope : part_h);
}

/* dx of the pairs at k of lines 0 .. rows - 1. */
OMP_INLINE void grad_put(const grad_piece *at, int rows, int64_t k)
{
    const line_pair gain = pair_load(BSK_F32, at->gain, k, false);
    _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++)
    {
        line_pair g, h;
        if (at->early) {
            g = pair_load(at->dy_type, at->dy[r], k, at->split);
            h = pair_load(at->x_type, at->x[r], k, at->split);
        } else {
            g = grad_load(at, r, k, gain, &h);
        }
        for (int j = 0; j < 2; j++)
            g.v[j] = g.v[j] * gain.v[j] * at->n.scale[r] - (at->part[r] + h.v[j] * at->part_h[r]);
        pair_put(at->dx_type, at->dx[r], k, g, at->split, at->stream);
    }
}

/* A piece of line r alone. */
OMP_INLINE void grad_take_line(grad_lines *l, int r, grad_piece *at, int64_t count, float *dgain,
                               float *dbias)
{
    grad_sums s = {{l->sum[r]}, {l->sum_h[r]}};
    grad_line(at, 0, l, r);
    for (int64_t k = 0; k < count; k += PAIR)
        grad_take(&s, at, 1, k, dgain, dbias);
    l->sum[r] = s.sum[0];
    l->sum_h[r] = s.sum_h[0];
}

OMP_INLINE void grad_put_line(const grad_lines *l, int r, grad_piece *at, int64_t count)
{
    grad_line(at, 0, l, r);
    for (int64_t k = 0; k < count; k += PAIR)
        grad_put(at, 1, k);
}

/* The last piece of line r, at i, which is shorter: by buffers filled up with what adds nothing. */
static void grad_rest(const layer_grad *v, grad_lines *l, int r, affine *f, int64_t i, float *sums,
                      bool put)
{
    const bsk_layer_norm_grad_params *p = v->p;
    const int64_t count = v->count - i, feature = l->s[r] * v->count + i;
    float dy[PIECE] = {0}, x[PIECE], parts[2][PIECE] = {{0}};
    affine_at(f, feature, count, false);
    grad_piece at = {.dy_type = BSK_F32,
                     .x_type = BSK_F32,
                     .dx_type = BSK_F32,
                     .relu = p->relu != 0,
                     .gain = f->gain,
                     .bias = f->bias,
                     .dy = {dy},
                     .x = {x},
                     .dy_ahead = {dy},
                     .x_ahead = {x},
                     .dx = {dy}};
    row_load_f32(dy, p->dy.dtype, bsk_mem_address(v->a->dy), l->dy[r] + i, count);
    row_load_f32(x, p->x.dtype, bsk_mem_address(v->a->x), l->x[r] + i, count);
    for (int64_t k = count; k % PAIR; k++)
        x[k] = l->mean[r];
    if (put) {
        grad_put_line(l, r, &at, count);
        row_store_f32(dy, p->dx.dtype, bsk_mem_address(v->a->dx), l->dx[r] + i, count);
        return;
    }
    grad_take_line(l, r, &at, count, sums ? parts[0] : NULL, parts[1]);
    for (int64_t k = 0; sums && k < count; k++) {
        sums[feature + k] += parts[0][k];
        sums[v->features + feature + k] += parts[1][k];
    }
}

/* Line r of l becomes number `to` of the piece at i: as one that is read, or written. */
OMP_INLINE void grad_read(const layer_grad *v, grad_piece *at, int to, const grad_lines *l,
                          const grad_lines *next, int r, int64_t i)
{
    const void *dy = bsk_mem_address(v->a->dy), *x = bsk_mem_address(v->a->x);
    at->dy[to] = line_at(at->dy_type, dy, l->dy[r] + i);
    at->x[to] = line_at(at->x_type, x, l->x[r] + i);
    at->dy_ahead[to] = line_at(at->dy_type, dy, next->dy[r] + i);
    at->x_ahead[to] = line_at(at->x_type, x, next->x[r] + i);
}

OMP_INLINE void grad_write(const layer_grad *v, grad_piece *at, int to, const grad_lines *l, int r,
                           int64_t i)
{
    at->dy[to] = line_at(at->dy_type, bsk_mem_address(v->a->dy), l->dy[r] + i);
    at->x[to] = line_at(at->x_type, bsk_mem_address(v->a->x), l->x[r] + i);
    at->dx[to] = line_at(at->dx_type, bsk_mem_address(v->a->dx), l->dx[r] + i);
}

/* Whole pieces at i of all the lines, of one segment. */
OMP_INLINE void grad_together(const layer_grad *v, grad_lines *l, const grad_lines *late,
                              const grad_lines *next, int64_t i, float *sums, grad_piece *in,
                              grad_piece *out)
{
    /* split pairs need so many instructions that reading and writing by turns only adds registers */
    const int64_t step = in->split ? PIECE : PAIR;
    grad_sums s;
    memcpy(s.sum, l->sum, sizeof s.sum);
    memcpy(s.sum_h, l->sum_h, sizeof s.sum_h);
    for (int r = 0; r < LINES; r++) {
        grad_read(v, in, r, l, next, r, i);
        grad_write(v, out, r, late, r, i);
        grad_line(in, r, l, r);
        grad_line(out, r, late, r);
    }
    for (int64_t from = 0; from < PIECE; from += step) {

        for (int64_t k = from; k < from + step; k += PAIR)
            grad_take(&s, in, LINES, k, sums ? sums + i : NULL,
                      sums ? sums + v->features + i : NULL);
        for (int64_t k = from; k < from + step; k += PAIR)
            grad_put(out, LINES, k);
    }
    memcpy(l->sum, s.sum, sizeof s.sum);
    memcpy(l->sum_h, s.sum_h, sizeof s.sum_h);
}

/* Whole pieces at i of all the lines: together where there are as many as usual, and of one segment. */
OMP_INLINE void grad_pieces(const layer_grad *v, grad_lines *l, grad_lines *late,
                            const grad_lines *next, affine *f, int64_t i, float *sums, bsk_dtype dy,
                            bsk_dtype x, bsk_dtype dx, bool split, bool relu)
{
    grad_piece in, out;
    grad_types(&in, dy, x, dx, split, relu, v->stream);
    grad_types(&out, dy, x, dx, split, relu, v->stream);
    out.early = split && !relu;
    if (l->count == LINES && late->count == LINES && v->p->segments == 1) {
        affine_at(f, i, PIECE, split);
        in.gain = out.gain = f->gain;
        in.bias = out.bias = f->bias;
        grad_together(v, l, late, next, i, sums, &in, &out);
        return;
    }
    for (int r = 0; r < l->count; r++) {
        const int64_t feature = l->s[r] * v->count + i;
        affine_at(f, feature, PIECE, split);
        in.gain = f->gain;
        in.bias = f->bias;
        grad_read(v, &in, 0, l, next, r, i);
        grad_take_line(l, r, &in, PIECE, sums ? sums + feature : NULL,
                       sums ? sums + v->features + feature : NULL);
    }
    for (int r = 0; r < late->count; r++) {
        affine_at(f, late->s[r] * v->count + i, PIECE, split);
        out.gain = f->gain;
        out.bias = f->bias;
        grad_write(v, &out, 0, late, r, i);
        grad_put_line(late, r, &out, PIECE);
    }
}

/* Reads the lines from `first` on, which end at `end`, while the ones before them are written. */
OMP_INLINE void grad_pass(const layer_grad *v, grad_lines *l, grad_lines *late, affine *f,
                          int64_t first, int64_t end, float *sums, bsk_dtype dy, bsk_dtype x,
                          bsk_dtype dx, bool split, bool relu)
{
    const bsk_layer_norm_grad_params *p = v->p;
    grad_lines next;
    int64_t i = 0;
    grad_lines_at(v, l, first, end);
    grad_lines_at(v, &next, first + LINES, v->rows * p->segments);
    for (int r = next.count; r < l->count; r++) { /* nothing else to ask for */
        next.dy[r] = l->dy[r];
        next.x[r] = l->x[r];
    }
    for (; i + PIECE <= v->count; i += PIECE)
        grad_pieces(v, l, late, &next, f, i, sums, dy, x, dx, split, relu);
    for (int r = 0; i < v->count && r < l->count; r++)
        grad_rest(v, l, r, f, i, sums, false);
    for (int r = 0; i < v->count && r < late->count; r++)
        grad_rest(v, late, r, f, i, NULL, true);
    grad_end(v, l);
    if (p->dx.dtype == BSK_NONE) /* nothing to write */
        l->count = 0;
}

#define GRAD_PASS(name, dy, x, dx, split, relu)                                                    \
    static void name(const layer_grad *v, grad_lines *l, grad_lines *late, affine *f,              \
                     int64_t first, int64_t end, float *sums)                                      \
    {                                                                                              \
        grad_pass(v, l, late, f, first, end, sums, dy, x, dx, split, relu);                        \
    }
GRAD_PASS(grad_pass_f32, BSK_F32, BSK_F32, BSK_F32, false, v->p->relu != 0)
GRAD_PASS(grad_pass_f16, BSK_F16, BSK_F16, BSK_F16, false, v->p->relu != 0)
GRAD_PASS(grad_pass_bf16, BSK_BF16, BSK_BF16, BSK_BF16, true, false)
GRAD_PASS(grad_pass_bf16_relu, BSK_BF16, BSK_BF16, BSK_BF16, true, true)
GRAD_PASS(grad_pass_mixed, v->p->dy.dtype, v->p->x.dtype, v->p->dx.dtype, false, v->p->relu != 0)

static grad_pass_fn *grad_pass_of(const bsk_layer_norm_grad_params *p)
{
    const bsk_dtype type = p->x.dtype;
    if (p->dy.dtype != type || (p->dx.dtype != type && p->dx.dtype != BSK_NONE))
        return grad_pass_mixed;
    if (type == BSK_BF16)
        return p->relu ? grad_pass_bf16_relu : grad_pass_bf16;
    return type == BSK_F32 ? grad_pass_f32 : grad_pass_f16;
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

/* Sums of features whose pairs are split, in order. */
static void grad_sums_merge(const layer_grad *v, float *sums)
{
    float piece[PIECE];
    for (int64_t s = 0; s < v->p->segments; s++)
        for (int64_t i = 0; i + PIECE <= v->count; i += PIECE) {
            float *at = sums + s * v->count + i;
            memcpy(piece, at, sizeof piece);
            pairs_merge(at, piece, PIECE);
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
    if (sums && v->split) {
        grad_sums_merge(v, sums);
        grad_sums_merge(v, sums + v->features);
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
    v.stream = p->dx.dtype != BSK_NONE && streams(p->dx.dtype, s->outer, s->inner) &&
               (p->segments == 1 || v.count % PIECE == 0) &&
               lines_whole(&p->dx, s->axis, bsk_mem_address(a->dx));
    v.pass = grad_pass_of(p);
    v.split = v.pass == grad_pass_bf16 || v.pass == grad_pass_bf16_relu;
    const int64_t bands = band_count(s), parts = bski_ceil_div(v.features, CHUNK);

#pragma omp parallel num_threads(queue_threads(queue))
    {
        grad_lines lines[2] = {{.count = 0}, {.count = 0}};
        affine f;
        int turn = 0;
        if (s->features_inner)
            affine_begin(&f, optional(p->gain.dtype, a->gain, 0),
                         optional(p->bias.dtype, a->bias, 0), v.features, p->segments, v.split);
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
