/* Attention, forward and backward. Keys, values and for the backward queries and output gradients
 * are first packed as f32 in the order of the layout's rows and columns; a tile of query rows then
 * meets its kept blocks one after another. Each output is summed by one thread in one order. */
#include "attention.h"

/* --- forward ---------------------------------------------------------------------------------- */

/* What a run needs: the two operands of the keys. */
typedef struct forward {
    const bsk_attention_params *p;
    const bsk_attention_args *a;
    scoring s;
    packed k, v;
} forward;

static bool forward_plan(forward *f, const bsk_layout_tables *t, const bsk_attention_params *p,
                         int64_t *total)
{
    f->p = p;
    return packed_plan(&f->k, &p->k, t, true, true, p->interleave, total) &&
           packed_plan(&f->v, &p->v, t, true, false, p->interleave, total);
}

OMP_DECLARE(attention_f32);

OMP_ACCEPT(attention_f32)
{
    const bsk_attention_params *p = problem->params;
    (void)props;
    return heads_fit(&p->q, &p->v) ? BSK_ACCEPT : BSK_REFUSE_LIMIT;
}

OMP_PREPARE(attention_f32)
{
    forward f;
    int64_t total = 0;
    (void)device;
    const bool good =
        forward_plan(&f, prepared->problem->layout, prepared->problem->params, &total);
    return ask_floats(prepared, good, total);
}

static void tile_drop(const scoring *s, const drop *d, const tile *x, float *p)
{
    const bsk_layout_tables *t = s->t;
    for (int64_t i = 0; d->on && i < x->rows; i++)
        for (int64_t j = 0; j < x->cols; j++)
            p[i * TILE_COLS + j] *=
                (float)drop_factor(d, t, s->heads, &x->q[i], x->slot, x->q[i].p % t->block_rows,
                                   (x->c + j) % t->block_cols);
}

static void forward_store(const forward *f, const running *r, int64_t ld)
{
    for (int64_t i = 0; i < r->x.rows; i++)
        if (r->x.q[i].time < f->s.q_time)
            store_result(&f->p->o, f->a->o, &f->p->lse, f->a->lse, &r->x.q[i], r->o + i * ld,
                         r->max[i], r->sum[i]);
}

/* Tiles whose scores lie side by side in the rows of a `running`: small blocks share its passes
 * over rows. */
typedef struct gathered {
    struct {
        int64_t slot, c, cols, at; /* at: the first column of its scores */
    } part[TILE_COLS / F32_LANES];
    int64_t count, width;
} gathered;

/* Adds what the gathered tiles have to the sums of the rows. */
static void forward_add(const forward *f, const drop *d, running *r, gathered *g, int64_t member)
{
    const int64_t ld = f->v.width;
    if (g->count)
        running_power(r, g->width, ld);
    for (int64_t i = 0; i < g->count; i++) {
        float *share = r->score + g->part[i].at;
        r->x.slot = g->part[i].slot;
        r->x.c = g->part[i].c;
        r->x.cols = g->part[i].cols;
        tile_drop(&f->s, d, &r->x, share);
        product(r->o, ld, share, TILE_COLS, 1, packed_rows(&f->v, member, r->x.c), ld, r->x.rows,
                ld, r->x.cols, true);
    }
    g->count = g->width = 0;
}

/* Rows [first, first + rows) of one block row. */
static void forward_tile(const forward *f, int64_t b, int64_t h, int64_t first, int64_t rows)
{
    const bsk_layout_tables *t = f->s.t;
    const int64_t kv_heads = f->p->k.dims[1], member = b * kv_heads + h / (f->s.heads / kv_heads);
    const int64_t d = f->p->q.dims[3], ld = f->v.width;
    const drop dropout = DROP_OF(f->p, f->a);
    gathered g = {.count = 0};
    running r;
    tile_rows(&r.x, &f->s, b, h, first, rows);
    load_rows(&f->p->q, f->a->q, &r.x, r.q, d);
    memset(r.o, 0, (size_t)(rows * ld) * sizeof *r.o);
    for (int64_t i = 0; i < rows; i++) {
        r.max[i] = -INFINITY;
        r.sum[i] = 0;
    }
    for (int64_t e = r.x.q[0].first; e < r.x.q[0].end; e++) {
        const int64_t block = t->row_col[e], width = block_extent(t->cols, block, t->block_cols);
        for (int64_t c = 0; c < width; c += TILE_COLS) {
            const int64_t cols = min_i64(TILE_COLS, width - c), lanes = lanes_up(cols);
            if (g.width + lanes > TILE_COLS)
                forward_add(f, &dropout, &r, &g, member);
            r.x.slot = t->row_slot[e];
            r.x.c = block * t->block_cols + c;
            r.x.cols = cols;
            const tile_kind kind = tile_kind_of(&f->s, &r.x);
            if (kind == TILE_HIDDEN)
                continue;
            product(r.score + g.width, TILE_COLS, r.q, d, 1, packed_turned(&f->k, member, block, c),
                    f->k.width, rows, lanes, d, false);
            tile_scores(&f->s, &r.x, kind, r.score + g.width);
            g.part[g.count].slot = r.x.slot;
            g.part[g.count].c = r.x.c;
            g.part[g.count].cols = r.x.cols;
            g.part[g.count++].at = g.width;
            g.width += lanes;
        }
    }
    forward_add(f, &dropout, &r, &g, member);
    forward_store(f, &r, ld);
}

OMP_LAUNCH(attention_f32)
{
    const bsk_layout_tables *t = prepared->problem->layout;
    const bsk_attention_params *p = prepared->problem->params;
    const bsk_attention_args *a = args;
    const int threads = queue_threads(queue);
    const int64_t heads = p->q.dims[1], tiles = tiles_of(t), tasks = p->q.dims[0] * heads * tiles;
    int64_t total = 0;
    forward f = {.a = a};
    forward_plan(&f, t, p, &total);
    f.s = (scoring)SCORING(t, p, a, heads, p->q.dims[2], p->k.dims[2],
                           scale_of(a->scale, p->q.dims[3]));
    f.k.data = bsk_mem_address(a->k);
    f.v.data = bsk_mem_address(a->v);
    f.k.length = f.v.length = &f.s.k_len;
    f.k.to = bsk_mem_address(a->workspace);
    f.v.to = f.k.to + p->k.dims[0] * p->k.dims[1] * packed_member(&f.k);
    pack_all(&f.k, threads);
    pack_all(&f.v, threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t task = 0; task < tasks; task++) {
        int64_t rows;
        const int64_t first = tile_place(t, task % tiles, &rows), member = task / tiles;
        if (rows > 0)
            forward_tile(&f, member / heads, member % heads, first, rows);
    }
    return BSK_OK;
}

/* --- backward --------------------------------------------------------------------------------- */

/* Queries, keys and output gradients by rows; keys and values turned. */
typedef struct backward {
    const bsk_attention_grad_params *p;
    const bsk_attention_grad_args *a;
    scoring s;
    drop dropout;
    packed q, dout, k, k_turned, v_turned;
    float *rest; /* [batch, heads, rows]: the sum of dO * O of each row */
    float *dq;   /* [batch, heads, rows, width]: see backward_member */
} backward;

enum { BACKWARD_PACKS = 5 };

static bool backward_plan(backward *w, const bsk_layout_tables *t,
                          const bsk_attention_grad_params *p, int64_t *total)
{
    const int64_t i = p->interleave;
    int64_t rest, dq;
    w->p = p;
    return packed_plan(&w->q, &p->q, t, false, false, i, total) &&
           packed_plan(&w->dout, &p->dout, t, false, false, i, total) &&
           packed_plan(&w->k, &p->k, t, true, false, i, total) &&
           packed_plan(&w->k_turned, &p->k, t, true, true, i, total) &&
           packed_plan(&w->v_turned, &p->v, t, true, true, i, total) &&
           bski_mul_i64(p->q.dims[0] * p->q.dims[1], t->rows, &rest) &&
           bski_mul_i64(rest, lanes_up(p->q.dims[3]), &dq) && bski_add_i64(*total, rest, total) &&
           bski_add_i64(*total, dq, total);
}

OMP_DECLARE(attention_grad_f32);

OMP_ACCEPT(attention_grad_f32)
{
    const bsk_attention_grad_params *p = problem->params;
    (void)props;
    return heads_fit(&p->q, &p->v) ? BSK_ACCEPT : BSK_REFUSE_LIMIT;
}

OMP_PREPARE(attention_grad_f32)
{
    backward w;
    int64_t total = 0;
    (void)device;
    const bool good =
        backward_plan(&w, prepared->problem->layout, prepared->problem->params, &total);
    return ask_floats(prepared, good, total);
}

/* Packs all, and sums dO * O by row. */
static void backward_pack(backward *w, int threads)
{
    const bsk_attention_grad_params *p = w->p;
    packed *packs[BACKWARD_PACKS] = {&w->q, &w->dout, &w->k, &w->k_turned, &w->v_turned};
    const bsk_mem from[BACKWARD_PACKS] = {w->a->q, w->a->dout, w->a->k, w->a->k, w->a->v};
    float *to = bsk_mem_address(w->a->workspace);
    for (int i = 0; i < BACKWARD_PACKS; i++) {
        packs[i]->data = bsk_mem_address(from[i]);
        packs[i]->length = i < 2 ? &w->s.q_len : &w->s.k_len;
        packs[i]->to = to;
        to += packs[i]->tensor->dims[0] * packs[i]->tensor->dims[1] * packed_member(packs[i]);
        pack_all(packs[i], threads);
    }
    const int64_t rows = w->s.t->rows, count = p->q.dims[0] * w->s.heads * rows;
    w->rest = to;
    w->dq = to + count;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t at = 0; at < count; at++) {
        const query q = query_of(&w->s, at / rows / w->s.heads, at / rows % w->s.heads, at % rows);
        float o[HEAD_MAX], sum = 0;
        if (q.live) {
            const float *dout = packed_rows(&w->dout, at / rows, q.p);
            row_load_f32(o, p->o.dtype, bsk_mem_address(w->a->o),
                         q.b * p->o.strides[0] + q.h * p->o.strides[1] + q.time * p->o.strides[2],
                         p->o.dims[3]);
            for (int64_t f = 0; f < p->o.dims[3]; f++)
                sum += o[f] * dout[f];
        }
        w->rest[at] = sum;
    }
}

/* A tile's probabilities after dropout, and the gradients of its products. */
typedef struct grads {
    _Alignas(64) float p[TILE_ROWS * TILE_COLS];
    _Alignas(64) float dx[TILE_ROWS * TILE_COLS];
    tile x;
} grads;

static void grads_mixed(const backward *w, grads *g, int64_t i, float lse, float rest)
{
    const tile *x = &g->x;
    const query *q = &x->q[i];
    const bsk_layout_tables *t = w->s.t;
    float *p = g->p + i * TILE_COLS, *dx = g->dx + i * TILE_COLS;
    for (int64_t j = 0; j < x->cols; j++) {
        const int64_t c = x->c + j, key = time_of(t->cols, w->s.interleave, c);
        if (lse == -INFINITY || !is_visible(&w->s, q, x->slot, c)) {
            p[j] = dx[j] = 0;
            continue;
        }
        const double product = p[j], share = exp(score_of(&w->s, q, key, product) - (double)lse);
        const double factor = drop_factor(&w->dropout, t, w->s.heads, q, x->slot,
                                          q->p % t->block_rows, c % t->block_cols);
        p[j] = (float)(factor * share);
        dx[j] = (float)(share * (factor * dx[j] - (double)rest) * score_slope(&w->s, product));
    }
}

/* Of what is visible, where no element is asked about. */
static void grads_run(const backward *w, grads *g, int64_t i, run seen, float lse, float rest)
{
    const float scale = (float)w->s.scale;
    const int64_t width = lanes_up(g->x.cols);
    float *p = g->p + i * TILE_COLS, *dx = g->dx + i * TILE_COLS;
    if (lse == -INFINITY)
        seen.from = seen.to;
    for (int64_t j = 0; j < width; j += F32_LANES) {
        const vec_f32 share = power_f32(scale * load_f32(p + j) - lse);
        store_f32(p + j, share);
        store_f32(dx + j, share * (load_f32(dx + j) - rest) * scale);
    }
    row_hide(p, seen, width, 0);
    row_hide(dx, seen, width, 0);
}

/* Fills g for its rows of member (b, h) and columns of `block`; false if nothing is visible. */
static bool grads_fill(const backward *w, grads *g, int64_t block)
{
    const query *q = &g->x.q[0];
    const int64_t kv_heads = w->p->k.dims[1], member = q->b * w->s.heads + q->h;
    const int64_t kv_member = q->b * kv_heads + q->h / (w->s.heads / kv_heads);
    const int64_t offset = g->x.c - block * w->s.t->block_cols, cols = lanes_up(g->x.cols);
    const tile_kind kind = tile_kind_of(&w->s, &g->x);
    const float *lse = bsk_mem_address(w->a->lse);
    if (kind == TILE_HIDDEN)
        return false;
    product(g->p, TILE_COLS, packed_rows(&w->q, member, q->p), w->q.width, 1,
            packed_turned(&w->k_turned, kv_member, block, offset), w->k_turned.width, g->x.rows,
            cols, w->q.d, false);
    product(g->dx, TILE_COLS, packed_rows(&w->dout, member, q->p), w->dout.width, 1,
            packed_turned(&w->v_turned, kv_member, block, offset), w->v_turned.width, g->x.rows,
            cols, w->dout.d, false);
    for (int64_t i = 0; i < g->x.rows; i++) {
        const query *row = &g->x.q[i];
        const float from = row->live ? lse[member * w->s.q_time + row->time] : -INFINITY;
        const float rest = w->rest[member * w->s.t->rows + row->p];
        if (kind == TILE_MIXED || w->dropout.on)
            grads_mixed(w, g, i, from, rest);
        else
            grads_run(w, g, i, visible_run(&w->s, &g->x, kind, i), from, rest);
    }
    return true;
}

static void gradient_store(const backward *w, const bsk_tensor *t, bsk_mem mem, int64_t index,
                           float *row)
{
    const float alpha = (float)w->a->alpha, beta = (float)w->a->beta;
    float old[HEAD_MAX];
    if (beta != 0)
        row_load_f32(old, t->dtype, bsk_mem_address(mem), index, t->dims[3]);
    for (int64_t f = 0; f < t->dims[3]; f++)
        row[f] = alpha * row[f] + (beta != 0 ? beta * old[f] : 0);
    row_store_f32(row, t->dtype, bsk_mem_address(mem), index, t->dims[3]);
}

/* The gradient of one row of queries. */
static void query_store(const backward *w, const query *q, float *row)
{
    const bsk_tensor *dq = &w->p->dq;
    if (q->time < w->s.q_time)
        gradient_store(w, dq, w->a->dq,
                       q->b * dq->strides[0] + q->h * dq->strides[1] + q->time * dq->strides[2],
                       row);
}

static void backward_queries(const backward *w, int64_t b, int64_t h, int64_t first, int64_t rows)
{
    const bsk_layout_tables *t = w->s.t;
    const int64_t kv_heads = w->p->k.dims[1], ld = w->k.width;
    const int64_t kv_member = b * kv_heads + h / (w->s.heads / kv_heads);
    _Alignas(64) float sum[TILE_ROWS * HEAD_MAX];
    const query line = query_of(&w->s, b, h, first);
    grads g;
    memset(sum, 0, (size_t)(rows * ld) * sizeof *sum);
    tile_rows(&g.x, &w->s, b, h, first, rows);
    for (int64_t e = line.first; e < line.end; e++) {
        const int64_t block = t->row_col[e], width = block_extent(t->cols, block, t->block_cols);
        g.x.slot = t->row_slot[e];
        for (int64_t c = 0; c < width; c += TILE_COLS) {
            g.x.c = block * t->block_cols + c;
            g.x.cols = min_i64(TILE_COLS, width - c);
            if (grads_fill(w, &g, block))
                product(sum, ld, g.dx, TILE_COLS, 1, packed_rows(&w->k, kv_member, g.x.c), ld, rows,
                        ld, g.x.cols, true);
        }
    }
    for (int64_t i = 0; i < rows; i++)
        query_store(w, &g.x.q[i], sum + i * ld);
}

/* The accumulators of a tile of keys. */
typedef struct key_sums {
    _Alignas(64) float dk[TILE_COLS * HEAD_MAX];
    _Alignas(64) float dv[TILE_COLS * HEAD_MAX];
    grads g;
} key_sums;

/* Adds what query head h has of columns [c, c + cols) of a block column, and to dq, if given, what
 * its queries have of them. */
static void key_sums_add(const backward *w, key_sums *k, int64_t b, int64_t h, int64_t block,
                         float *dq)
{
    const bsk_layout_tables *t = w->s.t;
    const int64_t member = b * w->s.heads + h, ld = w->k.width;
    const int64_t kv_heads = w->p->k.dims[1];
    const int64_t kv_member = b * kv_heads + h / (w->s.heads / kv_heads);
    const int64_t *start =
        t->col_start + h / (w->s.heads / t->heads) * ((int64_t)t->grid_cols + 1) + block;
    grads *g = &k->g;
    for (int64_t e = start[0]; e < start[1]; e++) {
        const int64_t first = (int64_t)t->col_row[e] * t->block_rows;
        const int64_t height = block_extent(t->rows, t->col_row[e], t->block_rows);
        g->x.slot = t->col_slot[e];
        for (int64_t i = 0; i < height; i += TILE_ROWS) {
            const int64_t rows = min_i64(TILE_ROWS, height - i);
            tile_rows(&g->x, &w->s, b, h, first + i, rows);
            if (!grads_fill(w, g, block))
                continue;
            product(k->dk, w->q.width, g->dx, 1, TILE_COLS, packed_rows(&w->q, member, first + i),
                    w->q.width, g->x.cols, w->q.width, rows, true);
            product(k->dv, w->dout.width, g->p, 1, TILE_COLS,
                    packed_rows(&w->dout, member, first + i), w->dout.width, g->x.cols,
                    w->dout.width, rows, true);
            if (dq)
                product(dq + (member * t->rows + first + i) * ld, ld, g->dx, TILE_COLS, 1,
                        packed_rows(&w->k, kv_member, g->x.c), ld, rows, ld, g->x.cols, true);
        }
    }
}

static void backward_keys(const backward *w, int64_t b, int64_t kv_head, int64_t block,
                          int64_t offset, float *dq)
{
    const bsk_layout_tables *t = w->s.t;
    const bsk_tensor *dk = &w->p->dk, *dv = &w->p->dv;
    const int64_t group = w->s.heads / w->p->k.dims[1];
    const int64_t width = block_extent(t->cols, block, t->block_cols);
    key_sums k;
    k.g.x.c = block * t->block_cols + offset;
    k.g.x.cols = min_i64(TILE_COLS, width - offset);
    memset(k.dk, 0, (size_t)(k.g.x.cols * w->q.width) * sizeof *k.dk);
    memset(k.dv, 0, (size_t)(k.g.x.cols * w->dout.width) * sizeof *k.dv);
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++)
        key_sums_add(w, &k, b, h, block, dq);
    for (int64_t j = 0; j < k.g.x.cols; j++) {
        const int64_t key = time_of(t->cols, w->s.interleave, k.g.x.c + j);
        if (key >= w->s.k_time)
            continue;
        gradient_store(w, dk, w->a->dk,
                       b * dk->strides[0] + kv_head * dk->strides[1] + key * dk->strides[2],
                       k.dk + j * w->q.width);
        gradient_store(w, dv, w->a->dv,
                       b * dv->strides[0] + kv_head * dv->strides[1] + key * dv->strides[2],
                       k.dv + j * w->dout.width);
    }
}

/* All columns of keys of one block of them. */
static void backward_column(const backward *w, int64_t b, int64_t kv_head, int64_t block, float *dq)
{
    const int64_t width = block_extent(w->s.t->cols, block, w->s.t->block_cols);
    for (int64_t offset = 0; offset < width; offset += TILE_COLS)
        backward_keys(w, b, kv_head, block, offset, dq);
}

/* The gradients of one head of keys and of its queries, from one walk along the columns. It adds to
 * the rows of dq in the order in which backward_queries does, so that the results are the same. */
static void backward_member(const backward *w, int64_t b, int64_t kv_head)
{
    const int64_t rows = w->s.t->rows, group = w->s.heads / w->p->k.dims[1], ld = w->k.width;
    const int64_t first = kv_head * group, member = b * w->s.heads + first;
    memset(w->dq + member * rows * ld, 0, (size_t)(group * rows * ld) * sizeof *w->dq);
    for (int64_t block = 0; block < w->s.t->grid_cols; block++)
        backward_column(w, b, kv_head, block, w->dq);
    for (int64_t i = 0; i < group * rows; i++) {
        const query q = query_of(&w->s, b, first + i / rows, i % rows);
        query_store(w, &q, w->dq + (member * rows + i) * ld);
    }
}

OMP_LAUNCH(attention_grad_f32)
{
    const bsk_layout_tables *t = prepared->problem->layout;
    const bsk_attention_grad_params *p = prepared->problem->params;
    const bsk_attention_grad_args *a = args;
    const int threads = queue_threads(queue);
    const int64_t heads = p->q.dims[1], kv_heads = p->k.dims[1], tiles = tiles_of(t);
    const bool queries = p->dq.dtype != BSK_NONE, keys = p->dk.dtype != BSK_NONE;
    const int64_t members = p->q.dims[0] * kv_heads;
    const bool whole = queries && keys && members >= 2 * threads;
    const int64_t q_tasks = queries && !whole ? p->q.dims[0] * heads * tiles : 0;
    const int64_t k_tasks = keys && !whole ? members * t->grid_cols : 0;
    int64_t total = 0;
    backward w = {.a = a, .dropout = DROP_OF(p, a)};
    backward_plan(&w, t, p, &total);
    w.s = (scoring)SCORING(t, p, a, heads, p->q.dims[2], p->k.dims[2],
                           scale_of(a->scale, p->q.dims[3]));
    backward_pack(&w, threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t task = 0; task < q_tasks; task++) {
        int64_t rows;
        const int64_t first = tile_place(t, task % tiles, &rows), member = task / tiles;
        if (rows > 0)
            backward_queries(&w, member / heads, member % heads, first, rows);
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t task = 0; task < k_tasks; task++) {
        const int64_t member = task / t->grid_cols;
        backward_column(&w, member / kv_heads, member % kv_heads, task % t->grid_cols, NULL);
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t member = 0; member < (whole ? members : 0); member++)
        backward_member(&w, member / kv_heads, member % kv_heads);
    return BSK_OK;
}
