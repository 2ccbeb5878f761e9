/* The softmax of stored scores, and its gradient. Rows are met in groups, of which a few vectors of
 * each kept block make up whole rows, or else strip by strip. */
#include "attention.h"
#include "lines.h"

/* --- rows of scores, in strips ---------------------------------------------------------------- */

/* A strip is what a tile of rows has in some of its blocks, side by side: pieces of blocks. */
enum { STRIP = 512, STRIP_PIECES = STRIP / 8 };

typedef struct strip_piece {
    int64_t slot, c, offset, cols; /* first column, and that within the block */
    tile_kind kind;
} strip_piece;

typedef struct strip {
    tile x;
    int64_t next, next_offset,
        end; /* entry and column where the next strip starts; the list's end */
    int64_t pieces, cols;
    bool plain; /* each piece is */
    strip_piece piece[STRIP_PIECES];
} strip;

static void strip_begin(strip *r, const query *line)
{
    r->next = line->first;
    r->end = line->end;
    r->next_offset = 0;
}

/* Takes pieces until the strip is full; false at the end of the list. */
static bool strip_next(strip *r, const scoring *s)
{
    const bsk_layout_tables *t = s->t;
    r->pieces = r->cols = 0;
    r->plain = true;
    while (r->next < r->end && r->pieces < STRIP_PIECES && r->cols < STRIP) {
        strip_piece *piece = &r->piece[r->pieces];
        const int64_t block = t->row_col[r->next];
        const int64_t left = block_extent(t->cols, block, t->block_cols) - r->next_offset;
        if (left > STRIP - r->cols && r->cols)
            break;
        piece->slot = t->row_slot[r->next];
        piece->offset = r->next_offset;
        piece->c = block * t->block_cols + r->next_offset;
        piece->cols = min_i64(left, STRIP);
        r->x.slot = piece->slot;
        r->x.c = piece->c;
        r->x.cols = piece->cols;
        piece->kind = tile_kind_of(s, &r->x);
        r->plain = r->plain && piece->kind == TILE_PLAIN;
        r->cols += piece->cols;
        r->pieces++;
        r->next_offset = piece->cols < left ? r->next_offset + piece->cols : 0;
        r->next += r->next_offset == 0;
    }
    return r->pieces > 0;
}

/* Copies the pieces of row i out of a score array, or into it. */
static void strip_copy(const strip *r, const bsk_layout_tables *t, int64_t group,
                       const bsk_tensor *s, bsk_mem mem, int64_t i, char *row, bool in)
{
    const query *q = &r->x.q[i];
    const int64_t first =
        q->b * s->strides[0] + q->h % group * s->strides[1] + q->p % t->block_rows * s->strides[3];
    const size_t size = bsk_dtype_size(s->dtype);
    for (int64_t p = 0; p < r->pieces; p++) {
        const strip_piece *piece = &r->piece[p];
        const size_t bytes = (size_t)piece->cols * size;
        char *at = (char *)bsk_mem_address(mem) +
                   (size_t)(first + piece->slot * s->strides[2] + piece->offset) * size;
        row_copy(in ? at : row, in ? row : at, bytes);
        row += bytes;
    }
}

static void strip_load(const strip *r, const bsk_layout_tables *t, int64_t group,
                       const bsk_tensor *s, bsk_mem mem, int64_t i, float *row)
{
    double raw[STRIP];
    strip_copy(r, t, group, s, mem, i, (char *)raw, false);
    row_load_f32(row, s->dtype, raw, 0, r->cols);
}

static void strip_store(const strip *r, const bsk_layout_tables *t, int64_t group,
                        const bsk_tensor *s, bsk_mem mem, int64_t i, const float *row)
{
    double raw[STRIP];
    row_store_f32(row, s->dtype, raw, 0, r->cols);
    strip_copy(r, t, group, s, mem, i, (char *)raw, true);
}

/* --- rows of scores, in groups ---------------------------------------------------------------- */

/* What a group of rows has in a block lies side by side: four vectors, or for blocks that are wider
 * steps of as many. So nothing is copied, and each lane stays with one row. Scores of a group wait in
 * the first or second level of the cache. */
enum { GROUP_VECTORS = 4, GROUP = GROUP_VECTORS * F32_LANES, GROUP_SCORES = 16384 };

/* How blocks are cut into groups. Neighbouring lanes belong to one row, and neighbouring vectors: all
 * powers of two. `split`: the vectors of a pair have elements in turn, see lines.h. */
typedef struct grouping {
    const scoring *s;
    int64_t rows, steps; /* of a group; in each block */
    int lanes, vectors;
    bool split, open; /* open: all is visible, and scores are multiples of what is stored */
    int64_t heads;    /* of a head of the layout */
} grouping;

/* What a group has at one step. */
typedef struct group_part {
    vec_f32 v[GROUP_VECTORS];
} group_part;

/* The rows of a group, and its place in a block. */
typedef struct group_place {
    int64_t b, h, row, first, end; /* entries */
} group_place;

static inline int clamp_int(int64_t x, int low, int high)
{
    return x < low ? low : x > high ? high : (int)x;
}

static bool sees_all(const scoring *s)
{
    return s->interleave == 1 && !s->causal && s->window <= 0 && !is_modified(s) &&
           !view_given(&s->q_len) && !view_given(&s->k_len) && !view_given(&s->k_segment) &&
           !view_given(&s->bits);
}

/* Whether the rows of each block lie side by side, and f32 holds what they have. */
static bool is_packed(const bsk_tensor *s, const bsk_layout_tables *t)
{
    return is_narrow(s) && s->strides[3] == t->block_cols;
}

/* Whether groups go past the caches: what is large, of which each is whole lines. */
static bool group_streams(const bsk_tensor *s, const void *data)
{
    const int64_t size = (int64_t)type_size(s->dtype);
    int64_t bytes = size;
    bool whole = (uintptr_t)data % 64 == 0;
    for (int32_t i = 0; i < s->rank; i++)
        bytes *= s->dims[i];
    for (int32_t i = 0; i < 3; i++)
        whole = whole && s->strides[i] * size % 64 == 0;
    return whole && bytes >= STREAM_BYTES;
}

/* False where blocks are cut, or their sides do not fit. split: all tensors are bf16. */
static bool grouping_of(grouping *g, const scoring *s, bool split)
{
    const bsk_layout_tables *t = s->t;
    const int64_t width = t->block_cols;
    *g = (grouping){.s = s,
                    .rows = max_i64(1, GROUP / width),
                    .steps = max_i64(1, width / GROUP),
                    .open = sees_all(s),
                    .heads = s->heads / t->heads};
    g->split = split && g->open;
    g->lanes = clamp_int(g->split ? width / 2 : width, 1, F32_LANES);
    g->vectors = clamp_int(width / F32_LANES, g->split ? 2 : 1, GROUP_VECTORS);
    return width >= 8 && !(width & (width - 1)) && t->cols % width == 0 &&
           t->rows % t->block_rows == 0 && t->block_rows % g->rows == 0;
}

/* The first element of a group in the first block of a tensor. */
static inline int64_t group_origin(const grouping *g, const bsk_tensor *s, const group_place *at)
{
    return at->b * s->strides[0] + at->h % g->heads * s->strides[1] +
           at->row % g->s->t->block_rows * s->strides[3];
}

OMP_INLINE group_part group_load(bsk_dtype type, const void *src, int64_t at, bool split)
{
    const line_pair a = pair_load(type, src, at, split), b = pair_load(type, src, at + PAIR, split);
    return (group_part){{a.v[0], a.v[1], b.v[0], b.v[1]}};
}

OMP_INLINE void group_put(bsk_dtype type, void *dst, int64_t at, group_part x, bool split,
                          bool stream)
{
    pair_put_near(type, dst, at, (line_pair){{x.v[0], x.v[1]}}, split, stream);
    pair_put_near(type, dst, at + PAIR, (line_pair){{x.v[2], x.v[3]}}, split, stream);
}

/* Asks for a group that is loaded later. */
OMP_INLINE void group_fetch(bsk_dtype type, const void *src, int64_t at)
{
    line_fetch(type, src, at);
    line_fetch(type, src, at + PAIR);
}

/* Lane l has what lane l ^ distance had. */
OMP_INLINE vec_f32 lanes_across(vec_f32 v, int distance)
{
#if defined(BSK_ISA_AVX512)
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i from = _mm512_xor_si512(lane, _mm512_set1_epi32(distance));
    return (vec_f32)_mm512_permutexvar_ps(from, (__m512)v);
#elif defined(BSK_ISA_AVX2)
    const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    const __m256i from = _mm256_xor_si256(lane, _mm256_set1_epi32(distance));
    return (vec_f32)_mm256_permutevar8x32_ps((__m256)v, from);
#else
    vec_f32 to;
    for (int k = 0; k < F32_LANES; k++)
        to[k] = v[k ^ distance];
    return to;
#endif
}

OMP_INLINE vec_f32 larger_or_sum(vec_f32 a, vec_f32 b, bool largest)
{
    return largest ? larger_f32(a, b) : a + b;
}

/* The largest, or the sum, of what belongs to a row, in all of its lanes. */
OMP_INLINE group_part group_fold(const grouping *g, group_part x, bool largest)
{
    for (int near = 1; near < g->vectors; near *= 2)
        for (int i = 0; i < GROUP_VECTORS; i += 2 * near)
            for (int k = i; k < i + near; k++)
                x.v[k] = x.v[k + near] = larger_or_sum(x.v[k], x.v[k + near], largest);
    for (int near = 1; near < g->lanes; near *= 2)
        for (int i = 0; i < GROUP_VECTORS; i++)
            x.v[i] = larger_or_sum(x.v[i], lanes_across(x.v[i], near), largest);
    return x;
}

/* What belongs to row r of a group that has been folded. */
static inline float group_row(const grouping *g, const group_part *x, int64_t r)
{
    const int64_t at = r * g->s->t->block_cols;
    if (g->split)
        return x->v[at / PAIR * 2][at % PAIR / 2];
    return x->v[at / F32_LANES][at % F32_LANES];
}

/* --- block_softmax ---------------------------------------------------------------------------- */

OMP_DECLARE(block_softmax_f32);
OMP_PREPARE_NONE(block_softmax_f32)

OMP_ACCEPT(block_softmax_f32)
{
    (void)problem;
    (void)props;
    return BSK_ACCEPT;
}

/* Loads a row and makes it scores, -infinity where not visible and up to whole vectors. */
static void strip_scores(const strip *r, const scoring *s, const bsk_block_softmax_params *p,
                         const bsk_block_softmax_args *a, int64_t i, float *row)
{
    const float scale = (float)s->scale;
    strip_load(r, s->t, s->heads / s->t->heads, &p->x, a->x, i, row);
    if (r->plain)
        for (int64_t j = 0; j < r->cols; j++)
            row[j] *= scale;
    float *at = row;
    for (int64_t n = 0; !r->plain && n < r->pieces; at += r->piece[n++].cols)
        masked_scores(s, &r->x.q[i], r->piece[n].slot, r->piece[n].c, r->piece[n].cols, at);
    for (int64_t j = r->cols; j < lanes_up(r->cols); j++)
        row[j] = -INFINITY;
}

/* The largest score of a row, and the sum of the powers of their distances from it. */
typedef struct softmax_row {
    float max, sum;
} softmax_row;

static void softmax_add(softmax_row *to, float *row, int64_t width)
{
    const float max = row_largest(row, width, to->max);
    if (max > to->max)
        to->sum *= to->max == -INFINITY ? 1 : expf(to->max - max);
    to->max = max;
    to->sum += row_power(row, width, max == -INFINITY ? 0 : max);
}

static float row_lse(const softmax_row *r)
{
    const bool empty = r->max == -INFINITY && r->sum == 0;
    return empty ? -INFINITY : r->max + logf(r->sum);
}

/* e^(score - lse), rounded once where it is denormal; 0 where not visible, in rows of NaN as well.
 * lse is taken in two parts: in one its rounding error would grow with the scores. */
static void softmax_store(const strip *r, const bsk_layout_tables *t, int64_t group,
                          const bsk_tensor *y, bsk_mem mem, int64_t i, const softmax_row *whole,
                          float *row)
{
    const vec_f32 hidden = splat_f32(-INFINITY);
    const float max = whole->max, rest = logf(whole->sum);
    for (int64_t j = 0; j < lanes_up(r->cols); j += F32_LANES) {
        const vec_f32 x = load_f32(row + j);
        store_f32(row + j, select_f32(x == hidden, (vec_f32){0}, exp_f32(x - max - rest)));
    }
    strip_store(r, t, group, y, mem, i, row);
}

/* Rows are met strip by strip, twice: sums, then results. */
static void softmax_strips(const scoring *s, const bsk_block_softmax_params *p,
                           const bsk_block_softmax_args *a, int64_t b, int64_t h, int64_t first,
                           int64_t rows)
{
    const bsk_layout_tables *t = s->t;
    const query line = query_of(s, b, h, first);
    _Alignas(64) float row[STRIP];
    softmax_row whole[TILE_ROWS];
    strip r;
    tile_rows(&r.x, s, b, h, first, rows);
    for (int64_t i = 0; i < rows; i++)
        whole[i] = (softmax_row){-INFINITY, 0};
    for (int pass = 0; pass < 2; pass++)
        for (strip_begin(&r, &line); strip_next(&r, s);)
            for (int64_t i = 0; i < rows; i++) {
                strip_scores(&r, s, p, a, i, row);
                if (pass == 0)
                    softmax_add(&whole[i], row, lanes_up(r.cols));
                else
                    softmax_store(&r, t, s->heads / t->heads, &p->y, a->y, i, &whole[i], row);
            }
    for (int64_t i = 0; p->lse.dtype != BSK_NONE && i < rows; i++)
        ((float *)bsk_mem_address(a->lse))[(b * s->heads + h) * t->rows + first + i] =
            row_lse(&whole[i]);
}

typedef struct softmax_job {
    grouping g;
    const void *x;
    void *y;
    float *lse; /* or NULL */
    const bsk_tensor *x_at, *y_at;
    bool grouped, stream;
} softmax_job;

/* Scores of a block that is not visible as a whole, out of what is stored. */
static __attribute__((noinline)) void group_scores(const grouping *g, const tile *x, tile_kind kind,
                                                   float *score)
{
    const int64_t width = g->s->t->block_cols;
    for (int64_t i = 0; kind == TILE_HIDDEN && i < x->rows * width; i++)
        score[i] = -INFINITY;
    for (int64_t r = 0; kind != TILE_HIDDEN && r < x->rows; r++)
        masked_scores(g->s, &x->q[r], x->slot, x->c, width, score + r * width);
}

/* A group's scores, and the largest of each row. */
OMP_INLINE group_part softmax_scores(const softmax_job *j, const group_place *at, float *score,
                                     bsk_dtype type, bool split)
{
    const grouping *g = &j->g;
    const bsk_layout_tables *t = g->s->t;
    const float scale = (float)g->s->scale;
    const int64_t origin = group_origin(g, j->x_at, at), side = g->steps * GROUP;
    const int64_t ahead = t->block_rows * t->block_cols == GROUP ? 16 * GROUP : 2 * side;
    const vec_f32 none = splat_f32(-INFINITY);
    group_part most = {{none, none, none, none}};
    tile x;
    if (!g->open)
        tile_rows(&x, g->s, at->b, at->h, at->row, g->rows);
    for (int64_t e = at->first; e < at->end; e++, score += side) {
        const int64_t from = origin + t->row_slot[e] * j->x_at->strides[2];
        tile_kind kind = TILE_PLAIN;
        if (!g->open) {
            x.slot = t->row_slot[e];
            x.c = (int64_t)t->row_col[e] * t->block_cols;
            x.cols = t->block_cols;
            kind = tile_kind_of(g->s, &x);
        }
        for (int64_t k = 0; k < side; k += GROUP) {
            group_part v = group_load(type, j->x, from + k, split);
            group_fetch(type, j->x, from + k + ahead);
            for (int i = 0; i < GROUP_VECTORS; i++) {
                v.v[i] *= kind == TILE_PLAIN ? scale : 1.0f;
                store_f32(score + k + i * F32_LANES, v.v[i]);
            }
            if (kind == TILE_PLAIN)
                for (int i = 0; i < GROUP_VECTORS; i++)
                    most.v[i] = larger_f32(v.v[i], most.v[i]);
        }
        if (kind == TILE_PLAIN)
            continue;
        group_scores(g, &x, kind, score);
        for (int64_t k = 0; k < side; k += F32_LANES)
            most.v[k / F32_LANES % GROUP_VECTORS] =
                larger_f32(load_f32(score + k), most.v[k / F32_LANES % GROUP_VECTORS]);
    }
    return group_fold(g, most, true);
}

/* The shares of a group of rows; false where there are NaN among the scores, or infinity. */
OMP_INLINE bool softmax_group(const softmax_job *j, const group_place *at, float *score,
                              bsk_dtype x_type, bsk_dtype y_type, bool split)
{
    const grouping *g = &j->g;
    const bsk_layout_tables *t = g->s->t;
    const int64_t side = g->steps * GROUP, count = (at->end - at->first) * side;
    group_part base = softmax_scores(j, at, score, x_type, split), sum = {{{0}}}, factor;
    vec_f32 check = {0};
    for (int i = 0; i < GROUP_VECTORS; i++) /* nothing visible: the sum is 0 */
        base.v[i] = select_f32(base.v[i] == -INFINITY, (vec_f32){0}, base.v[i]);
    for (int64_t k = 0; k < count; k += GROUP)
        for (int i = 0; i < GROUP_VECTORS; i++) {
            float *x = score + k + i * F32_LANES;
            const vec_f32 e = power_lifted((load_f32(x) - base.v[i]) * LOG_BASE, split, true);
            store_f32(x, e);
            sum.v[i] += e;
        }
    sum = group_fold(g, sum, false);
    for (int i = 0; i < GROUP_VECTORS; i++) {
        factor.v[i] = select_f32(sum.v[i] == 0.0f, (vec_f32){0}, 1.0f / sum.v[i]);
        check += sum.v[i];
    }
    if (isnan(lanes_sum(check)))
        return false;
    const int64_t origin = group_origin(g, j->y_at, at);
    for (int64_t e = at->first; e < at->end; e++, score += side) {
        const int64_t to = origin + t->row_slot[e] * j->y_at->strides[2];
        for (int64_t k = 0; k < side; k += GROUP) {
            group_part v = group_load(BSK_F32, score, k, false);
            for (int i = 0; i < GROUP_VECTORS; i++)
                v.v[i] *= factor.v[i];
            group_put(y_type, j->y, to + k, v, split, j->stream);
        }
    }
    for (int64_t r = 0; j->lse && r < g->rows; r++) {
        const softmax_row whole = {group_row(g, &base, r), ldexpf(group_row(g, &sum, r), -LIFT)};
        j->lse[(at->b * g->s->heads + at->h) * t->rows + at->row + r] =
            whole.sum == 0 ? -INFINITY : row_lse(&whole);
    }
    return true;
}

static bool softmax_group_any(const softmax_job *j, const group_place *at, float *score)
{
    const bsk_dtype x = j->x_at->dtype, y = j->y_at->dtype;
    if (j->g.split)
        return softmax_group(j, at, score, BSK_BF16, BSK_BF16, true);
    if (x == BSK_F32 && y == BSK_F32)
        return softmax_group(j, at, score, BSK_F32, BSK_F32, false);
    return softmax_group(j, at, score, x, y, false);
}

static void softmax_tile(const softmax_job *j, const scoring *s, const bsk_block_softmax_params *p,
                         const bsk_block_softmax_args *a, int64_t b, int64_t h, int64_t first,
                         int64_t rows)
{
    const query line = query_of(s, b, h, first);
    const int64_t each = j->grouped ? j->g.rows : rows;
    _Alignas(64) float score[GROUP_SCORES];
    for (int64_t row = first; row < first + rows; row += each) {
        const group_place at = {b, h, row, line.first, line.end};
        if (!j->grouped || (line.end - line.first) * j->g.steps > GROUP_SCORES / GROUP ||
            !softmax_group_any(j, &at, score))
            softmax_strips(s, p, a, b, h, row, each);
    }
}

OMP_LAUNCH(block_softmax_f32)
{
    const bsk_layout_tables *t = prepared->problem->layout;
    const bsk_block_softmax_params *p = prepared->problem->params;
    const bsk_block_softmax_args *a = args;
    const int64_t heads = p->x.dims[1] * t->heads, tiles = tiles_of(t);
    const scoring s = SCORING(t, p, a, heads, t->rows, t->cols, a->scale != 0 ? a->scale : 1);
    softmax_job j = {.x = bsk_mem_address(a->x),
                     .y = bsk_mem_address(a->y),
                     .lse = p->lse.dtype != BSK_NONE ? bsk_mem_address(a->lse) : NULL,
                     .x_at = &p->x,
                     .y_at = &p->y};
    j.grouped = is_packed(&p->x, t) && is_packed(&p->y, t) &&
                grouping_of(&j.g, &s, p->x.dtype == BSK_BF16 && p->y.dtype == BSK_BF16);
    j.stream = group_streams(&p->y, j.y);
#pragma omp parallel num_threads(queue_threads(queue))
    {
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < p->x.dims[0] * heads * tiles; task++) {
            int64_t rows;
            const int64_t first = tile_place(t, task % tiles, &rows), member = task / tiles;
            if (rows > 0)
                softmax_tile(&j, &s, p, a, member / heads, member % heads, first, rows);
        }
        stream_fence();
    }
    return BSK_OK;
}

/* --- block_softmax_grad ----------------------------------------------------------------------- */

OMP_DECLARE(block_softmax_grad_f32);
OMP_PREPARE_NONE(block_softmax_grad_f32)

OMP_ACCEPT(block_softmax_grad_f32)
{
    (void)problem;
    (void)props;
    return BSK_ACCEPT;
}

/* The sums of dy * y, then dx. */
static void softmax_grad_strips(const scoring *s, const bsk_block_softmax_grad_params *p,
                                const bsk_block_softmax_grad_args *a, int64_t b, int64_t h,
                                int64_t first, int64_t rows)
{
    const bsk_layout_tables *t = s->t;
    const int64_t group = s->heads / t->heads;
    const query line = query_of(s, b, h, first);
    const float scale = (float)s->scale;
    _Alignas(64) float dy[STRIP], y[STRIP];
    float x[STRIP], sum[TILE_ROWS] = {0};
    strip r;
    tile_rows(&r.x, s, b, h, first, rows);
    for (int pass = 0; pass < 2; pass++)
        for (strip_begin(&r, &line); strip_next(&r, s);)
            for (int64_t i = 0; i < rows; i++) {
                strip_load(&r, t, group, &p->dy, a->dy, i, dy);
                strip_load(&r, t, group, &p->y, a->y, i, y);
                if (pass == 0) {
                    const vec_f32 zero = {0};
                    vec_f32 part = zero;
                    for (int64_t j = r.cols; j < lanes_up(r.cols); j++)
                        dy[j] = y[j] = 0;
                    for (int64_t j = 0; j < r.cols; j += F32_LANES) {
                        const vec_f32 share = load_f32(y + j);
                        part += select_f32(share == zero, zero, load_f32(dy + j) * share);
                    }
                    sum[i] += lanes_sum(part);
                    continue;
                }
                if (s->softcap > 0)
                    strip_load(&r, t, group, &p->x, a->x, i, x);
                for (int64_t j = 0; s->softcap > 0 && j < r.cols; j++)
                    dy[j] = (dy[j] - sum[i]) * (float)score_slope(s, x[j]);
                for (int64_t j = 0; !(s->softcap > 0) && j < r.cols; j++)
                    dy[j] = (dy[j] - sum[i]) * scale;
                for (int64_t j = 0; j < r.cols; j++)
                    y[j] = y[j] != 0 ? y[j] * dy[j] : 0;
                for (int64_t j = 0; a->alpha != 1 && j < r.cols; j++)
                    y[j] *= (float)a->alpha;
                if (a->beta != 0)
                    strip_load(&r, t, group, &p->dx, a->dx, i, dy);
                for (int64_t j = 0; a->beta != 0 && j < r.cols; j++)
                    y[j] += (float)a->beta * dy[j];
                strip_store(&r, t, group, &p->dx, a->dx, i, y);
            }
}

typedef struct softmax_grad_job {
    grouping g;
    const void *dy, *y;
    void *dx;
    const bsk_tensor *dy_at, *y_at, *dx_at;
    float scale, alpha;
    bool grouped, stream;
} softmax_grad_job;

/* The same for a group of rows, without a cap and an older dx. */
OMP_INLINE void softmax_grad_group(const softmax_grad_job *j, const group_place *at,
                                   bsk_dtype dy_type, bsk_dtype y_type, bsk_dtype dx_type,
                                   bool split)
{
    const grouping *g = &j->g;
    const bsk_layout_tables *t = g->s->t;
    const int64_t side = g->steps * GROUP;
    const int64_t ahead = t->block_rows * t->block_cols == GROUP ? 16 * GROUP : 2 * side;
    const int64_t dy_origin = group_origin(g, j->dy_at, at),
                  y_origin = group_origin(g, j->y_at, at);
    const int64_t dx_origin = group_origin(g, j->dx_at, at);
    const vec_f32 zero = {0};
    group_part sum = {{{0}}};
    for (int64_t e = at->first; e < at->end; e++) {
        const int64_t slot = t->row_slot[e], dy_from = dy_origin + slot * j->dy_at->strides[2];
        const int64_t y_from = y_origin + slot * j->y_at->strides[2];
        for (int64_t k = 0; k < side; k += GROUP) {
            const group_part dy = group_load(dy_type, j->dy, dy_from + k, split);
            const group_part y = group_load(y_type, j->y, y_from + k, split);
            group_fetch(dy_type, j->dy, dy_from + k + ahead);
            group_fetch(y_type, j->y, y_from + k + ahead);
            for (int i = 0; i < GROUP_VECTORS; i++)
                sum.v[i] += select_f32(y.v[i] == zero, zero, dy.v[i] * y.v[i]);
        }
    }
    sum = group_fold(g, sum, false);
    for (int64_t e = at->first; e < at->end; e++) {
        const int64_t slot = t->row_slot[e], dy_from = dy_origin + slot * j->dy_at->strides[2];
        const int64_t y_from = y_origin + slot * j->y_at->strides[2];
        const int64_t to = dx_origin + slot * j->dx_at->strides[2];
        for (int64_t k = 0; k < side; k += GROUP) {
            const group_part dy = group_load(dy_type, j->dy, dy_from + k, split);
            group_part y = group_load(y_type, j->y, y_from + k, split);
            for (int i = 0; i < GROUP_VECTORS; i++) {
                const vec_f32 slope = (dy.v[i] - sum.v[i]) * j->scale;
                y.v[i] = select_f32(y.v[i] == zero, zero, y.v[i] * slope * j->alpha);
            }
            group_put(dx_type, j->dx, to + k, y, split, j->stream);
        }
    }
}

static void softmax_grad_tile(const softmax_grad_job *j, const scoring *s,
                              const bsk_block_softmax_grad_params *p,
                              const bsk_block_softmax_grad_args *a, int64_t b, int64_t h,
                              int64_t first, int64_t rows)
{
    const query line = query_of(s, b, h, first);
    const bsk_dtype dy = p->dy.dtype, y = p->y.dtype, dx = p->dx.dtype;
    if (!j->grouped) {
        softmax_grad_strips(s, p, a, b, h, first, rows);
        return;
    }
    for (int64_t row = first; row < first + rows; row += j->g.rows) {
        const group_place at = {b, h, row, line.first, line.end};
        if (j->g.split)
            softmax_grad_group(j, &at, BSK_BF16, BSK_BF16, BSK_BF16, true);
        else if (dy == BSK_F32 && y == BSK_F32 && dx == BSK_F32)
            softmax_grad_group(j, &at, BSK_F32, BSK_F32, BSK_F32, false);
        else
            softmax_grad_group(j, &at, dy, y, dx, false);
    }
}

OMP_LAUNCH(block_softmax_grad_f32)
{
    const bsk_layout_tables *t = prepared->problem->layout;
    const bsk_block_softmax_grad_params *p = prepared->problem->params;
    const bsk_block_softmax_grad_args *a = args;
    scoring s = places_of(t, 1, p->dy.dims[1] * t->heads, t->rows, t->cols);
    s.softcap = p->softcap;
    s.scale = a->scale != 0 ? a->scale : 1;
    softmax_grad_job j = {.dy = bsk_mem_address(a->dy),
                          .y = bsk_mem_address(a->y),
                          .dx = bsk_mem_address(a->dx),
                          .dy_at = &p->dy,
                          .y_at = &p->y,
                          .dx_at = &p->dx,
                          .scale = plain_f32((float)s.scale),
                          .alpha = plain_f32((float)a->alpha)};
    j.grouped =
        !(p->softcap > 0) && a->beta == 0 && is_packed(&p->dy, t) && is_packed(&p->y, t) &&
        is_packed(&p->dx, t) &&
        grouping_of(&j.g, &s,
                    p->dy.dtype == BSK_BF16 && p->y.dtype == BSK_BF16 && p->dx.dtype == BSK_BF16);
    j.stream = group_streams(&p->dx, j.dx);
    const int64_t tiles = tiles_of(t);
#pragma omp parallel num_threads(queue_threads(queue))
    {
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < p->dy.dims[0] * s.heads * tiles; task++) {
            int64_t rows;
            const int64_t first = tile_place(t, task % tiles, &rows), member = task / tiles;
            if (rows > 0)
                softmax_grad_tile(&j, &s, p, a, member / s.heads, member % s.heads, first, rows);
        }
        stream_fence();
    }
    return BSK_OK;
}
