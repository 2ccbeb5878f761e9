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

/* Rows that share what the features need; how much of one is written before the next: a pair where they
 * are written side by side. */
enum { GROUP = LINES > 1 ? LINES : 2, RUN = LINES > 1 ? PAIR : PIECE / GROUP };

/* Rows on their way: first their sums are taken, of t and of t * (x - mean), where t is dy (where relu
 * let it through) times the gain; then part and part_h are their means, the latter times rstd^2, and
 * dx is written, while the sums of the features are taken, which are those of one band. */
struct grad_lines {
    int count;
    int64_t s[GROUP], dy[GROUP], x[GROUP], dx[GROUP];
    float mean[GROUP], rstd[GROUP], part[GROUP], part_h[GROUP];
    float *sums;
    vec_f32 sum[GROUP], sum_h[GROUP];
};

static void grad_lines_at(const layer_grad *v, grad_lines *l, int64_t first, int64_t end,
                          float *sums)
{
    const bsk_layer_norm_grad_params *p = v->p;
    l->count = (int)max_i64(0, min_i64(GROUP, end - first));
    l->sums = sums;
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

/* Where some rows are, and of which types; `split`: whether their pairs are. */
typedef struct grad_piece {
    bsk_dtype dy_type, x_type, dx_type;
    bool split, relu, stream, blend;
    float dx_alpha, dx_beta; /* where dx is blended */
    const float *gain, *bias;
    const void *dy[GROUP], *x[GROUP];
    void *dx[GROUP];
    vec_f32 mean[GROUP], rstd[GROUP], part[GROUP], part_h[GROUP]; /* the latter times rstd */
} grad_piece;

/* The rest is left as it is: a piece takes no longer than filling all of it would. */
OMP_INLINE void grad_types(grad_piece *at, bsk_dtype dy, bsk_dtype x, bsk_dtype dx, bool split,
                           bool relu, bool stream, bool blend)
{
    at->dy_type = dy;
    at->x_type = x;
    at->dx_type = dx;
    at->split = split;
    at->relu = relu;
    at->stream = stream;
    at->blend = blend;
}

/* Line r of l becomes number `to` of what is read, or written. */
OMP_INLINE void grad_line(const layer_grad *v, grad_piece *at, int to, const grad_lines *l, int r,
                          int64_t i)
{
    at->dy[to] = line_at(at->dy_type, bsk_mem_address(v->a->dy), l->dy[r] + i);
    at->x[to] = line_at(at->x_type, bsk_mem_address(v->a->x), l->x[r] + i);
    at->dx[to] = line_at(at->dx_type, bsk_mem_address(v->a->dx), l->dx[r] + i);
    at->mean[to] = splat_f32(l->mean[r]);
    at->rstd[to] = splat_f32(l->rstd[r]);
    at->part[to] = splat_f32(l->rstd[r] * l->part[r]);
    at->part_h[to] = splat_f32(l->rstd[r] * l->part_h[r]);
}

OMP_INLINE vec_f32 relu_slopes(vec_f32 x)
{
    const vec_f32 kept = select_f32(x > 0.0f, splat_f32(1), x);
    return select_f32(x <= 0.0f, splat_f32(0), kept);
}

/* g = dy where relu let it through, and h = x - mean, of the pair at k of row r. */
OMP_INLINE line_pair grad_load(const grad_piece *at, int r, int64_t k, line_pair gain, line_pair *h)
{
    line_pair g = pair_load(at->dy_type, at->dy[r], k, at->split);
    *h = pair_load(at->x_type, at->x[r], k, at->split);
    for (int j = 0; j < 2; j++) {
        h->v[j] -= at->mean[r];
        if (at->relu)
            g.v[j] *= relu_slopes(h->v[j] * at->rstd[r] * gain.v[j] +
                                  load_f32(at->bias + k + j * F32_LANES));
    }
    return g;
}

/* The pairs of a piece of row 0 are added to its sums. */
OMP_INLINE void grad_take(const grad_piece *at, int64_t from, int64_t count, vec_f32 *sum,
                          vec_f32 *sum_h)
{
    _Pragma("GCC unroll 4") for (int64_t k = from; k < from + count; k += PAIR)
    {
        const line_pair gain = pair_load(BSK_F32, at->gain, k, false);
        line_pair h;
        const line_pair g = grad_load(at, 0, k, gain, &h);
        line_fetch_near(at->dy_type, at->dy[0], k);
        line_fetch_near(at->x_type, at->x[0], k);
        for (int j = 0; j < 2; j++) {
            const vec_f32 t = g.v[j] * gain.v[j];
            *sum += t;
            *sum_h += t * h.v[j];
        }
    }
}

/* g = alpha * g + beta * dx, of the pair at k of row r. */
OMP_INLINE void grad_blend(const grad_piece *at, int r, int64_t k, line_pair *g)
{
    line_pair old = {{{0}}};
    if (at->dx_beta != 0)
        old = pair_load(at->dx_type, at->dx[r], k, at->split);
    for (int j = 0; j < 2; j++)
        g->v[j] = g->v[j] * at->dx_alpha + old.v[j] * at->dx_beta;
}

/* dx of the pairs at k of rows first .. end - 1, where `write`; and the sums of the features, g * h and
 * g, unless there is no place for them. */
OMP_INLINE void grad_put(const grad_piece *at, int first, int end, int64_t k, bool write,
                         float *dgain, float *dbias)
{
    const line_pair gain = pair_load(BSK_F32, at->gain, k, false);
    line_pair h, to_gain = {{{0}}}, to_bias = {{{0}}};
    if (dgain) {
        to_gain = pair_load(BSK_F32, dgain, k, false);
        to_bias = pair_load(BSK_F32, dbias, k, false);
    }
    _Pragma("GCC unroll 4") for (int r = first; r < end; r++)
    {
        line_pair g = grad_load(at, r, k, gain, &h);
        for (int j = 0; j < 2; j++) {
            const vec_f32 scaled = g.v[j] * at->rstd[r];
            to_bias.v[j] += g.v[j];
            to_gain.v[j] += scaled * h.v[j];
            g.v[j] = scaled * gain.v[j] - (at->part[r] + h.v[j] * at->part_h[r]);
        }
        if (write && at->blend)
            grad_blend(at, r, k, &g);
        if (write)
            pair_put_near(at->dx_type, at->dx[r], k, g, at->split, at->stream);
    }
    if (dgain) {
        pair_put(BSK_F32, dgain, k, to_gain, false, false);
        pair_put(BSK_F32, dbias, k, to_bias, false, false);
    }
}

/* The numbers from k on of the whole group: RUN of each row. */
OMP_INLINE void grad_put_group(const grad_piece *at, int64_t k, float *dgain, float *dbias)
{
    if (LINES > 1) {
        grad_put(at, 0, GROUP, k, true, dgain, dbias);
        return;
    }
    for (int r = 0; r < GROUP; r++)
        for (int64_t i = k; i < k + RUN; i += PAIR)
            grad_put(at, r, r + 1, i, true, dgain, dbias);
}

static void grad_end(const layer_grad *v, grad_lines *l)
{
    for (int r = 0; r < l->count; r++) {
        l->part[r] = v->p->rms ? 0 : lanes_sum(l->sum[r]) / (float)v->count;
        l->part_h[r] = lanes_sum(l->sum_h[r]) / (float)v->count * l->rstd[r] * l->rstd[r];
    }
}

/* The last piece of line r, at i, which is shorter: by buffers filled up with what adds nothing. */
static void grad_rest(const layer_grad *v, grad_lines *l, int r, affine *f, int64_t i, bool put)
{
    const bsk_layer_norm_grad_params *p = v->p;
    const int64_t count = v->count - i, feature = l->s[r] * v->count + i;
    float dy[PIECE] = {0}, x[PIECE], parts[2][PIECE] = {{0}};
    affine_at(f, feature, count, false);
    grad_piece at;
    grad_types(&at, BSK_F32, BSK_F32, BSK_F32, false, p->relu != 0, false, false);
    grad_line(v, &at, 0, l, r, i);
    at.gain = f->gain;
    at.bias = f->bias;
    at.dy[0] = at.dx[0] = dy;
    at.x[0] = x;
    row_load_f32(dy, p->dy.dtype, bsk_mem_address(v->a->dy), l->dy[r] + i, count);
    row_load_f32(x, p->x.dtype, bsk_mem_address(v->a->x), l->x[r] + i, count);
    for (int64_t k = count; k % PAIR; k++)
        x[k] = l->mean[r];
    if (!put) {
        grad_take(&at, 0, bski_ceil_div(count, PAIR) * PAIR, &l->sum[r], &l->sum_h[r]);
        return;
    }
    for (int64_t k = 0; k < count; k += PAIR)
        grad_put(&at, 0, 1, k, true, l->sums ? parts[0] : NULL, parts[1]);
    if (p->dx.dtype != BSK_NONE) {
        void *dx = bsk_mem_address(v->a->dx);
        row_blend(dy, v->a->dx_alpha, v->a->dx_beta, p->dx.dtype, dx, l->dx[r] + i, count);
        row_store_f32(dy, p->dx.dtype, dx, l->dx[r] + i, count);
    }
    for (int64_t k = 0; l->sums && k < count; k++) {
        l->sums[feature + k] += parts[0][k];
        l->sums[v->features + feature + k] += parts[1][k];
    }
}

/* The whole pieces of as many lines as usual, of one segment. They are read line after line, and by
 * turns with each part of one the pairs of a column of the lines before them are written: as many
 * numbers, and what the features need is loaded once for all of the lines. */
OMP_INLINE void grad_together(const layer_grad *v, grad_lines *l, const grad_lines *late, affine *f,
                              grad_piece *in, grad_piece *out)
{
    enum { PART = GROUP * RUN };
    float *dgain = late->sums, *dbias = dgain ? dgain + v->features : NULL;
    const int64_t whole = v->count - v->count % PIECE;
    int64_t column = 0;
    for (int r = 0; r < GROUP; r++)
        grad_line(v, out, r, late, r, 0);
    for (int r = 0; r < GROUP; r++) {
        vec_f32 sum = l->sum[r], sum_h = l->sum_h[r];
        grad_line(v, in, 0, l, r, 0);
        for (int64_t i = 0; i < whole; i += PART, column += RUN) {
            affine_piece(f, &in->gain, &in->bias, i - i % PIECE, in->split);
            grad_take(in, i, PART, &sum, &sum_h);
            affine_piece(f, &out->gain, &out->bias, column - column % PIECE, out->split);
            if (dgain) /* or the compiler would take the sums late, and keep what they are of */
                grad_put_group(out, column, dgain, dbias);
            else
                grad_put_group(out, column, NULL, NULL);
        }
        l->sum[r] = sum;
        l->sum_h[r] = sum_h;
    }
}

/* Whole pieces of fewer lines, or of several segments. */
OMP_INLINE void grad_one_by_one(const layer_grad *v, grad_lines *l, const grad_lines *late,
                                affine *f, int64_t i, grad_piece *in, grad_piece *out)
{
    for (int r = 0; r < l->count; r++) {
        affine_at(f, l->s[r] * v->count + i, PIECE, in->split);
        in->gain = f->gain;
        in->bias = f->bias;
        grad_line(v, in, 0, l, r, i);
        grad_take(in, 0, PIECE, &l->sum[r], &l->sum_h[r]);
    }
    for (int r = 0; r < late->count; r++) {
        const int64_t feature = late->s[r] * v->count + i;
        float *dgain = late->sums ? late->sums + feature : NULL;
        affine_at(f, feature, PIECE, in->split);
        out->gain = f->gain;
        out->bias = f->bias;
        grad_line(v, out, 0, late, r, i);
        for (int64_t k = 0; k < PIECE; k += PAIR)
            grad_put(out, 0, 1, k, out->dx[0] != NULL, dgain, dgain ? dgain + v->features : NULL);
    }
}

/* Reads the lines from `first` on, which end at `end`, while the ones before them are written. */
OMP_INLINE void grad_pass(const layer_grad *v, grad_lines *l, grad_lines *late, affine *f,
                          int64_t first, int64_t end, float *sums, bsk_dtype dy, bsk_dtype x,
                          bsk_dtype dx, bool split, bool relu, bool blend)
{
    const int64_t whole = v->count - v->count % PIECE;
    grad_piece in, out;
    grad_lines_at(v, l, first, end, sums);
    grad_types(&in, dy, x, dx, split, relu, v->stream, false);
    grad_types(&out, dy, x, dx, split, relu, v->stream, blend);
    out.dx_alpha = (float)v->a->dx_alpha;
    out.dx_beta = (float)v->a->dx_beta;
    if (l->count == GROUP && late->count == GROUP && v->p->segments == 1 &&
        v->p->dx.dtype != BSK_NONE)
        grad_together(v, l, late, f, &in, &out);
    else
        for (int64_t i = 0; i < whole; i += PIECE)
            grad_one_by_one(v, l, late, f, i, &in, &out);
    for (int r = 0; whole < v->count && r < l->count; r++)
        grad_rest(v, l, r, f, whole, false);
    for (int r = 0; whole < v->count && r < late->count; r++)
        grad_rest(v, late, r, f, whole, true);
    grad_end(v, l);
}

#define GRAD_PASS(name, dy, x, dx, split, relu, blend)                                             \
    static void name(const layer_grad *v, grad_lines *l, grad_lines *late, affine *f,              \
                     int64_t first, int64_t end, float *sums)                                      \
    {                                                                                              \
        grad_pass(v, l, late, f, first, end, sums, dy, x, dx, split, relu, blend);                 \
    }
GRAD_PASS(grad_pass_f32, BSK_F32, BSK_F32, BSK_F32, false, v->p->relu != 0, false)
GRAD_PASS(grad_pass_f16, BSK_F16, BSK_F16, BSK_F16, false, v->p->relu != 0, false)
GRAD_PASS(grad_pass_bf16, BSK_BF16, BSK_BF16, BSK_BF16, true, false, false)
GRAD_PASS(grad_pass_bf16_relu, BSK_BF16, BSK_BF16, BSK_BF16, true, true, false)
/* Of any types, with dx blended or not. */
GRAD_PASS(grad_pass_any, v->p->dy.dtype, v->p->x.dtype, v->p->dx.dtype, false, v->p->relu != 0,
          v->p->dx_blend != 0)

static grad_pass_fn *grad_pass_of(const bsk_layer_norm_grad_params *p)
{
    const bsk_dtype type = p->x.dtype;
    if (p->dx_blend || p->dy.dtype != type || (p->dx.dtype != type && p->dx.dtype != BSK_NONE))
        return grad_pass_any;
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
            void *dx_mem = bsk_mem_address(v->a->dx);
            const int64_t to = row_at(&p->dx, &v->shape, f, n);
            row_blend(g, v->a->dx_alpha, v->a->dx_beta, p->dx.dtype, dx_mem, to, count);
            row_store_f32(g, p->dx.dtype, dx_mem, to, count);
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

static void grad_sums_end(const layer_grad *v, float *sums)
{
    if (sums && v->split) {
        grad_sums_merge(v, sums);
        grad_sums_merge(v, sums + v->features);
    }
}

/* One band; sums: its part of the workspace, or NULL; lines: of this thread, whose turn it is to be
 * read first. The others are of the band before it, whose sums are complete when they are written. */
static void layer_grad_band(const layer_grad *v, int64_t band, float *sums, grad_lines lines[2],
                            affine *f, int *turn)
{
    const int64_t size = band_size(&v->shape), end = min_i64(v->rows, (band + 1) * size);
    const int64_t segments = v->p->segments;
    float *before = lines[!*turn].sums;
    if (!v->shape.features_inner) {
        for (int64_t s = 0; s < segments; s++)
            layer_grad_columns(v, s, band * size, end - band * size, sums);
        return;
    }
    if (sums)
        memset(sums, 0, 2 * (size_t)v->features * sizeof *sums);
    for (int64_t i = band * size * segments; i < end * segments; i += GROUP, *turn = !*turn) {
        v->pass(v, &lines[*turn], &lines[!*turn], f, i, end * segments, sums);
        grad_sums_end(v, before);
        before = NULL;
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
        grad_lines lines[2] = {{.count = 0}, {.count = 0}}; /* no sums, either */
        affine f;
        int turn = 0;
        if (s->features_inner)
            affine_begin(&f, optional(p->gain.dtype, a->gain, 0),
                         optional(p->bias.dtype, a->bias, 0), v.features, p->segments, v.split);
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < bands; i++)
            layer_grad_band(&v, i, work ? work + i * 2 * v.features : NULL, lines, &f, &turn);
        v.pass(&v, &lines[turn], &lines[!turn], &f, v.rows * p->segments, 0, NULL);
        grad_sums_end(&v, lines[!turn].sums);
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
