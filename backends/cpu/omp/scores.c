/* Attention with stored scores: the two products and the softmax between them. */
#include "attention.h"

/* The element index of row i of a block in a score array. */
static int64_t score_index(const bsk_tensor *s, const bsk_layout_tables *t, const query *q,
                           int64_t group, int64_t slot)
{
    return q->b * s->strides[0] + q->h % group * s->strides[1] + slot * s->strides[2] +
           q->p % t->block_rows * s->strides[3];
}

/* dst = alpha * row + beta * dst. */
static void blend_store(const bsk_tensor *t, bsk_mem mem, int64_t index, int64_t count,
                        double alpha, double beta, float *row)
{
    row_blend(row, alpha, beta, t->dtype, bsk_mem_address(mem), index, count);
    row_store_f32(row, t->dtype, bsk_mem_address(mem), index, count);
}

/* Positions alone: no masks. */
static scoring places_of(const bsk_layout_tables *t, int64_t interleave, int64_t heads,
                         int64_t q_time, int64_t k_time)
{
    return (scoring){.t = t,
                     .interleave = interleave,
                     .heads = heads,
                     .q_time = q_time,
                     .k_time = k_time,
                     .scale = 1};
}

/* --- attn_scores ------------------------------------------------------------------------------ */

OMP_DECLARE(attn_scores_f32);

OMP_ACCEPT(attn_scores_f32)
{
    const bsk_attn_scores_params *p = problem->params;
    (void)props;
    return heads_fit(&p->q, &p->k) ? BSK_ACCEPT : BSK_REFUSE_LIMIT;
}

OMP_PREPARE(attn_scores_f32)
{
    const bsk_attn_scores_params *p = prepared->problem->params;
    packed k;
    int64_t total = 0;
    (void)device;
    const bool good =
        packed_plan(&k, &p->k, prepared->problem->layout, true, true, p->interleave, &total);
    return ask_floats(prepared, good, total);
}

static void scores_tile(const scoring *s, const bsk_attn_scores_params *p,
                        const bsk_attn_scores_args *a, const packed *k, int64_t b, int64_t h,
                        int64_t first, int64_t rows)
{
    const bsk_layout_tables *t = s->t;
    const int64_t kv_heads = p->k.dims[1], member = b * kv_heads + h / (s->heads / kv_heads);
    const int64_t d = p->q.dims[3], group = s->heads / t->heads;
    const query line = query_of(s, b, h, first);
    _Alignas(64) float q[TILE_ROWS * HEAD_MAX];
    _Alignas(64) float score[TILE_ROWS * TILE_COLS];
    tile x;
    tile_rows(&x, s, b, h, first, rows);
    load_rows(&p->q, a->q, &x, q, d);
    for (int64_t e = line.first; e < line.end; e++) {
        const int64_t block = t->row_col[e], width = block_extent(t->cols, block, t->block_cols);
        for (int64_t c = 0; c < width; c += TILE_COLS) {
            const int64_t cols = min_i64(TILE_COLS, width - c);
            product(score, TILE_COLS, q, d, 1, packed_turned(k, member, block, c), k->width, rows,
                    lanes_up(cols), d, false);
            for (int64_t i = 0; i < rows; i++)
                blend_store(&p->s, a->s, score_index(&p->s, t, &x.q[i], group, t->row_slot[e]) + c,
                            cols, a->alpha, a->beta, score + i * TILE_COLS);
        }
    }
}

OMP_LAUNCH(attn_scores_f32)
{
    const bsk_layout_tables *t = prepared->problem->layout;
    const bsk_attn_scores_params *p = prepared->problem->params;
    const bsk_attn_scores_args *a = args;
    const int threads = queue_threads(queue);
    const int64_t heads = p->q.dims[1], tiles = tiles_of(t), tasks = p->q.dims[0] * heads * tiles;
    const scoring s = places_of(t, p->interleave, heads, p->q.dims[2], p->k.dims[2]);
    int64_t total = 0;
    packed k;
    packed_plan(&k, &p->k, t, true, true, p->interleave, &total);
    k.data = bsk_mem_address(a->k);
    k.length = &s.k_len;
    k.to = bsk_mem_address(a->workspace);
    pack_all(&k, threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t task = 0; task < tasks; task++) {
        int64_t rows;
        const int64_t first = tile_place(t, task % tiles, &rows), member = task / tiles;
        if (rows > 0)
            scores_tile(&s, p, a, &k, member / heads, member % heads, first, rows);
    }
    return BSK_OK;
}

/* --- attn_apply ------------------------------------------------------------------------------- */

OMP_DECLARE(attn_apply_f32);

OMP_ACCEPT(attn_apply_f32)
{
    const bsk_attn_apply_params *p = problem->params;
    (void)props;
    return heads_fit(&p->v, &p->v) ? BSK_ACCEPT : BSK_REFUSE_LIMIT;
}

OMP_PREPARE(attn_apply_f32)
{
    const bsk_attn_apply_params *p = prepared->problem->params;
    packed v;
    int64_t total = 0;
    (void)device;
    const bool good = packed_plan(&v, &p->v, prepared->problem->layout, !p->transpose, false,
                                  p->interleave, &total);
    return ask_floats(prepared, good, total);
}

/* A run of attn_apply: y's lines are the layout's rows, or turned its columns. */
typedef struct applying {
    const bsk_layout_tables *t;
    const bsk_attn_apply_params *p;
    const bsk_attn_apply_args *a;
    packed v;
    bool turned;
    int64_t heads, group; /* of the queries; of those of a layout head */
    int64_t lines, side, grid, other_side;
} applying;

/* Scores of missing times may be anything: they do not count. */
static void scores_present(const applying *w, int64_t line, int64_t count, int64_t rows,
                           float *score)
{
    if (w->v.lines <= w->p->v.dims[2])
        return;
    for (int64_t k = 0; k < count; k++)
        if (time_of(w->v.lines, w->p->interleave, line + k) >= w->p->v.dims[2])
            for (int64_t i = 0; i < rows; i++)
                score[w->turned ? k * TILE_COLS + i : i * TILE_COLS + k] = 0;
}

/* Rows of y from `first` on, from one query head. */
static void apply_add(const applying *w, int64_t b, int64_t h, int64_t first, int64_t rows,
                      float *sum)
{
    const bsk_layout_tables *t = w->t;
    const bsk_tensor *s = &w->p->s;
    const int64_t block = first / w->side, offset = first % w->side, v_heads = w->p->v.dims[1];
    const int64_t member = b * v_heads + (w->turned ? h : h / (w->heads / v_heads));
    const int64_t *start =
        (w->turned ? t->col_start : t->row_start) + h / w->group * (w->grid + 1) + block;
    _Alignas(64) float score[TILE_COLS * TILE_COLS];
    for (int64_t e = start[0]; e < start[1]; e++) {
        const int64_t other = w->turned ? t->col_row[e] : t->row_col[e];
        const int64_t slot = w->turned ? t->col_slot[e] : t->row_slot[e];
        const int64_t origin =
            b * s->strides[0] + h % w->group * s->strides[1] + slot * s->strides[2];
        const int64_t depth = block_extent(w->v.lines, other, w->other_side);
        for (int64_t k = 0; k < depth; k += TILE_COLS) {
            const int64_t count = min_i64(TILE_COLS, depth - k);
            const int64_t height = w->turned ? count : rows, width = w->turned ? rows : count;
            const int64_t row = w->turned ? k : offset, col = w->turned ? offset : k;
            for (int64_t i = 0; i < height; i++)
                row_load_f32(score + i * TILE_COLS, s->dtype, bsk_mem_address(w->a->s),
                             origin + (row + i) * s->strides[3] + col, width);
            scores_present(w, other * w->other_side + k, count, rows, score);
            product(sum, w->v.width, score, w->turned ? 1 : TILE_COLS, w->turned ? TILE_COLS : 1,
                    packed_rows(&w->v, member, other * w->other_side + k), w->v.width, rows,
                    w->v.width, count, true);
        }
    }
}

static void apply_tile(const applying *w, int64_t b, int64_t head, int64_t first, int64_t rows)
{
    const bsk_tensor *y = &w->p->y;
    const int64_t add = w->heads / y->dims[1];
    _Alignas(64) float sum[TILE_ROWS * HEAD_MAX];
    memset(sum, 0, (size_t)(rows * w->v.width) * sizeof *sum);
    for (int64_t h = head * add; h < (head + 1) * add; h++)
        apply_add(w, b, h, first, rows, sum);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t time = time_of(w->lines, w->p->interleave, first + i);
        if (time < y->dims[2])
            blend_store(y, w->a->y, b * y->strides[0] + head * y->strides[1] + time * y->strides[2],
                        y->dims[3], w->a->alpha, w->a->beta, sum + i * w->v.width);
    }
}

OMP_LAUNCH(attn_apply_f32)
{
    const bsk_layout_tables *t = prepared->problem->layout;
    const bsk_attn_apply_params *p = prepared->problem->params;
    const bsk_attn_apply_args *a = args;
    const int threads = queue_threads(queue);
    const bool turned = p->transpose != 0;
    const ref_view whole = {0};
    int64_t total = 0;
    applying w = {.t = t, .p = p, .a = a, .turned = turned};
    w.heads = turned ? p->v.dims[1] : p->y.dims[1];
    w.group = w.heads / t->heads;
    w.lines = turned ? t->cols : t->rows;
    w.side = turned ? t->block_cols : t->block_rows;
    w.grid = turned ? t->grid_cols : t->grid_rows;
    w.other_side = turned ? t->block_rows : t->block_cols;
    packed_plan(&w.v, &p->v, t, !turned, false, p->interleave, &total);
    w.v.data = bsk_mem_address(a->v);
    w.v.length = &whole;
    w.v.to = bsk_mem_address(a->workspace);
    pack_all(&w.v, threads);
    const int64_t each = bski_ceil_div(w.side, TILE_ROWS), tiles = w.grid * each;
    const int64_t y_heads = p->y.dims[1], tasks = p->y.dims[0] * y_heads * tiles;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t task = 0; task < tasks; task++) {
        const int64_t block = task % tiles / each, offset = task % each * TILE_ROWS;
        const int64_t left = block_extent(w.lines, block, w.side) - offset, member = task / tiles;
        if (left > 0)
            apply_tile(&w, member / y_heads, member % y_heads, block * w.side + offset,
                       min_i64(TILE_ROWS, left));
    }
    return BSK_OK;
}

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

/* --- block_softmax ---------------------------------------------------------------------------- */

OMP_DECLARE(block_softmax_f32);

OMP_ACCEPT(block_softmax_f32)
{
    (void)problem;
    (void)props;
    return BSK_ACCEPT;
}

OMP_PREPARE(block_softmax_f32)
{
    (void)device;
    (void)prepared;
    return BSK_OK;
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
static void softmax_tile(const scoring *s, const bsk_block_softmax_params *p,
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

OMP_LAUNCH(block_softmax_f32)
{
    const bsk_layout_tables *t = prepared->problem->layout;
    const bsk_block_softmax_params *p = prepared->problem->params;
    const bsk_block_softmax_args *a = args;
    const int64_t heads = p->x.dims[1] * t->heads, tiles = tiles_of(t);
    const scoring s = SCORING(t, p, a, heads, t->rows, t->cols, a->scale != 0 ? a->scale : 1);
#pragma omp parallel for schedule(dynamic, 1) num_threads(queue_threads(queue))
    for (int64_t task = 0; task < p->x.dims[0] * heads * tiles; task++) {
        int64_t rows;
        const int64_t first = tile_place(t, task % tiles, &rows), member = task / tiles;
        if (rows > 0)
            softmax_tile(&s, p, a, member / heads, member % heads, first, rows);
    }
    return BSK_OK;
}

/* --- block_softmax_grad ----------------------------------------------------------------------- */

OMP_DECLARE(block_softmax_grad_f32);

OMP_ACCEPT(block_softmax_grad_f32)
{
    (void)problem;
    (void)props;
    return BSK_ACCEPT;
}

OMP_PREPARE(block_softmax_grad_f32)
{
    (void)device;
    (void)prepared;
    return BSK_OK;
}

/* The sums of dy * y, then dx. */
static void softmax_grad_tile(const scoring *s, const bsk_block_softmax_grad_params *p,
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

OMP_LAUNCH(block_softmax_grad_f32)
{
    const bsk_layout_tables *t = prepared->problem->layout;
    const bsk_block_softmax_grad_params *p = prepared->problem->params;
    const bsk_block_softmax_grad_args *a = args;
    scoring s = places_of(t, 1, p->dy.dims[1] * t->heads, t->rows, t->cols);
    s.softcap = p->softcap;
    s.scale = a->scale != 0 ? a->scale : 1;
    const int64_t tiles = tiles_of(t);
#pragma omp parallel for schedule(dynamic, 1) num_threads(queue_threads(queue))
    for (int64_t task = 0; task < p->dy.dims[0] * s.heads * tiles; task++) {
        int64_t rows;
        const int64_t first = tile_place(t, task % tiles, &rows), member = task / tiles;
        if (rows > 0)
            softmax_grad_tile(&s, p, a, member / s.heads, member % s.heads, first, rows);
    }
    return BSK_OK;
}
