/* Attention with stored scores: the two products. */
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
