/* attention_decode. A task meets a tile of the queries of one list with one part of that list: it
 * gathers the keys of its blocks, whatever pages they lie in, into tiles. The parts of a list are
 * joined in their order; how many there are follows from sizes and lengths, never from threads. */
#include "attention.h"

#include "../ref/decode.h"

/* Tasks that keep a large processor busy, and keys that are worth a task. */
enum { DECODE_TASKS = 128, PART_KEYS = 512 };

/* Sizes of the work. */
typedef struct work {
    const bsk_attention_decode_params *p;
    const bsk_attention_decode_args *a;
    decode d;
    int64_t kv_heads, group; /* query heads of each */
    int64_t tiles, parts;    /* of a list */
    int64_t width;           /* of a row of sums */
    float *partial;          /* [batch, heads, q_time, parts]: sums, largest score, sum of powers */
} work;

/* Sets all but what belongs to a run, and the tasks and numbers needed; false on overflow. */
static bool work_plan(work *w, const bsk_attention_decode_params *p, decode d, int64_t *tasks,
                      int64_t *numbers)
{
    int64_t rows, keys;
    *w = (work){.p = p, .d = d, .kv_heads = p->k.dims[1], .width = lanes_up(p->v.dims[3])};
    if (p->block_index.dtype == BSK_NONE) {
        w->d.block = TILE_COLS;
        w->d.blocks = w->d.capacity = bski_ceil_div(d.s.k_time, TILE_COLS);
    }
    w->group = w->kv_heads > 0 ? d.s.heads / w->kv_heads : 0;
    if (!bski_mul_i64(w->group, min_i64(d.q_block, d.s.q_time), &rows) ||
        !bski_mul_i64(w->d.capacity, w->d.block, &keys))
        return false;
    w->tiles = bski_ceil_div(rows, TILE_ROWS);
    if (!bski_mul_i64(p->q.dims[0], w->kv_heads, tasks) || !bski_mul_i64(*tasks, d.lists, tasks) ||
        !bski_mul_i64(*tasks, w->tiles, tasks))
        return false;
    w->parts = *tasks > 0 ? bski_ceil_div(DECODE_TASKS, *tasks) : 1;
    w->parts = max_i64(1, min_i64(w->parts, keys / PART_KEYS));
    *numbers = 0;
    return bski_mul_i64(*tasks, w->parts, tasks) &&
           (w->parts == 1 || (bski_mul_i64(p->q.dims[0] * d.s.heads, d.s.q_time, numbers) &&
                              bski_mul_i64(*numbers, w->parts * (w->width + 2), numbers)));
}

OMP_DECLARE(attention_decode_f32);

OMP_ACCEPT(attention_decode_f32)
{
    const bsk_attention_decode_params *p = problem->params;
    (void)props;
    return heads_fit(&p->q, &p->v) ? BSK_ACCEPT : BSK_REFUSE_LIMIT;
}

OMP_PREPARE(attention_decode_f32)
{
    const bsk_attention_decode_params *p = prepared->problem->params;
    int64_t tasks, numbers;
    work w;
    (void)device;
    const bool good = work_plan(&w, p, decode_sizes(p), &tasks, &numbers);
    return ask_floats(prepared, good, numbers);
}

/* Keys that wait to meet the rows. Rows of k and v are padded to whole vectors. */
typedef struct gathered {
    _Alignas(64) float k[TILE_COLS * HEAD_MAX];
    _Alignas(64) float turned[HEAD_MAX * TILE_COLS];
    _Alignas(64) float v[TILE_COLS * HEAD_MAX];
    int64_t key[TILE_COLS];
    running r;
    int64_t low, high; /* positions of the first and the last query that is not padding */
    bool live;         /* there is one */
} gathered;

static void row_padded(float *to, int64_t width, const bsk_tensor *t, bsk_mem mem, int64_t index)
{
    row_load_f32(to, t->dtype, bsk_mem_address(mem), index, t->dims[3]);
    for (int64_t i = t->dims[3]; i < width; i++)
        to[i] = 0;
}

/* Whether all rows that are not padding see all gathered keys, and scores are plain multiples. */
static bool is_plain(const work *w, const gathered *g)
{
    const scoring *s = &w->d.s;
    int64_t first = g->key[0], last = g->key[0];
    for (int64_t j = 1; j < g->r.x.cols; j++) {
        first = min_i64(first, g->key[j]);
        last = max_i64(last, g->key[j]);
    }
    return !is_modified(s) && !(s->causal && last > g->low) &&
           !(s->window > 0 && (g->high - first >= s->window || last - g->low >= s->window));
}

static void meet_scores(const work *w, gathered *g)
{
    const tile *x = &g->r.x;
    const int64_t width = lanes_up(x->cols);
    const float scale = (float)w->d.s.scale;
    const bool plain = is_plain(w, g);
    for (int64_t i = 0; i < x->rows; i++) {
        float *score = g->r.score + i * TILE_COLS;
        if (plain)
            for (int64_t j = 0; j < width; j += F32_LANES)
                store_f32(score + j, scale * load_f32(score + j));
        for (int64_t j = 0; !plain && j < x->cols; j++)
            score[j] = decode_sees(&w->d, &x->q[i], g->key[j])
                           ? (float)score_of(&w->d.s, &x->q[i], g->key[j], score[j])
                           : -INFINITY;
        for (int64_t j = x->cols; j < width; j++)
            score[j] = -INFINITY;
    }
}

/* The rows meet what was gathered. */
static void meet(const work *w, gathered *g)
{
    running *r = &g->r;
    const int64_t d = w->p->q.dims[3], ld = lanes_up(d), cols = lanes_up(r->x.cols);
    if (r->x.cols == 0)
        return;
    memset(g->k + r->x.cols * ld, 0, (size_t)((cols - r->x.cols) * ld) * sizeof *g->k);
    for (int64_t j = 0; j < cols; j += SQUARE_f32)
        for (int64_t f = 0; f < ld; f += SQUARE_f32)
            transpose_square_f32(g->turned + f * TILE_COLS + j, TILE_COLS, g->k + j * ld + f, ld);
    product(r->score, TILE_COLS, r->q, d, 1, g->turned, TILE_COLS, r->x.rows, cols, d, false);
    meet_scores(w, g);
    running_power(r, lanes_up(r->x.cols), w->width);
    product(r->o, w->width, r->score, TILE_COLS, 1, g->v, w->width, r->x.rows, w->width, r->x.cols,
            true);
    r->x.cols = 0;
}

/* Adds keys from `from` on, all of one page. */
static void gather_run(const work *w, gathered *g, int64_t kv_head, int64_t from, int64_t count)
{
    const bsk_tensor *k = &w->p->k, *v = &w->p->v;
    const int64_t page = decode_page(&w->d, g->r.x.q[0].b, from), ld = lanes_up(k->dims[3]);
    for (int64_t i = 0; page >= 0 && i < count; i++) {
        const int64_t j = g->r.x.cols++, at = (from + i) % w->d.page;
        g->key[j] = from + i;
        row_padded(g->k + j * ld, ld, k, w->a->k,
                   page * k->strides[0] + kv_head * k->strides[1] + at * k->strides[2]);
        row_padded(g->v + j * w->width, w->width, v, w->a->v,
                   page * v->strides[0] + kv_head * v->strides[1] + at * v->strides[2]);
        if (g->r.x.cols == TILE_COLS)
            meet(w, g);
    }
}

/* The keys of a block that some row may see. */
static void gather_block(const work *w, gathered *g, int64_t kv_head, int64_t block)
{
    const scoring *s = &w->d.s;
    const int64_t window = min_i64(s->window, INT64_MAX / 2);
    int64_t from = block * w->d.block, end = min_i64(g->r.x.q[0].keys, s->k_time);
    if (end - from > w->d.block)
        end = from + w->d.block;
    if (s->causal)
        end = min_i64(end, g->high + 1);
    if (window > 0) {
        from = max_i64(from, g->low - window + 1);
        end = min_i64(end, g->high + window);
    }
    while (from < end) {
        const int64_t count = min_i64(end - from, w->d.page - from % w->d.page);
        gather_run(w, g, kv_head, from, count);
        from += count;
    }
}

/* Rows of a list from number `first` on: queries of one head after another. */
static void begin_rows(const work *w, gathered *g, int64_t b, int64_t kv_head, int64_t list,
                       int64_t first)
{
    const int64_t start = list * w->d.q_block;
    const int64_t queries = min_i64(w->d.q_block, w->d.s.q_time - start);
    tile *x = &g->r.x;
    x->rows = max_i64(0, min_i64(TILE_ROWS, w->group * queries - first));
    x->cols = 0;
    g->low = INT64_MAX;
    g->high = INT64_MIN;
    for (int64_t i = 0; i < x->rows; i++) {
        x->q[i] = decode_query(&w->d, b, kv_head * w->group + (first + i) / queries,
                               start + (first + i) % queries);
        g->r.max[i] = -INFINITY;
        g->r.sum[i] = 0;
        if (x->q[i].live) {
            g->low = min_i64(g->low, x->q[i].pos);
            g->high = max_i64(g->high, x->q[i].pos);
        }
    }
    g->live = g->low <= g->high;
    memset(g->r.o, 0, (size_t)(x->rows * w->width) * sizeof *g->r.o);
    load_rows(&w->p->q, w->a->q, x, g->r.q, w->p->q.dims[3]);
}

static float *part_of(const work *w, const query *q, int64_t part)
{
    const int64_t row = (q->b * w->d.s.heads + q->h) * w->d.s.q_time + q->time;
    return w->partial + (row * w->parts + part) * (w->width + 2);
}

static void end_rows(const work *w, gathered *g, int64_t part)
{
    for (int64_t i = 0; i < g->r.x.rows; i++) {
        const query *q = &g->r.x.q[i];
        float *sums = g->r.o + i * w->width;
        if (!q->live) {
            memset(sums, 0, (size_t)w->width * sizeof *sums);
            g->r.max[i] = -INFINITY;
            g->r.sum[i] = 0;
        }
        if (w->parts == 1) {
            store_result(&w->p->o, w->a->o, &w->p->lse, w->a->lse, q, sums, g->r.max[i],
                         g->r.sum[i]);
            continue;
        }
        float *to = part_of(w, q, part);
        memcpy(to, sums, (size_t)w->width * sizeof *to);
        to[w->width] = g->r.max[i];
        to[w->width + 1] = g->r.sum[i];
    }
}

static void decode_task(const work *w, int64_t task)
{
    const int64_t part = task % w->parts, number = task / w->parts;
    const int64_t list = number / w->tiles % w->d.lists;
    const int64_t member = number / w->tiles / w->d.lists;
    const int64_t b = member / w->kv_heads, kv_head = member % w->kv_heads;
    gathered g;
    begin_rows(w, &g, b, kv_head, list, number % w->tiles * TILE_ROWS);
    int64_t entries = decode_entries(&w->d, b, kv_head, list);
    if (!view_given(&w->d.block_index) && g.live)
        entries = min_i64(entries, bski_ceil_div(g.r.x.q[0].keys, w->d.block));
    const int64_t each =
        max_i64(bski_ceil_div(entries, w->parts), bski_ceil_div(PART_KEYS, w->d.block));
    const int64_t end = min_i64(entries, (part + 1) * each);
    for (int64_t e = part * each; g.live && e < end; e++) {
        const int64_t block = decode_block(&w->d, b, kv_head, list, e);
        if (block >= 0)
            gather_block(w, &g, kv_head, block);
    }
    meet(w, &g);
    end_rows(w, &g, part);
}

/* One query of one head: its parts, in their order. */
static void join_parts(const work *w, int64_t row)
{
    const int64_t time = row % w->d.s.q_time, head = row / w->d.s.q_time;
    const query q = {.b = head / w->d.s.heads, .h = head % w->d.s.heads, .time = time};
    _Alignas(64) float sums[HEAD_MAX] = {0};
    float max = -INFINITY, sum = 0;
    for (int64_t part = 0; part < w->parts; part++)
        max = fmaxf(max, part_of(w, &q, part)[w->width]);
    for (int64_t part = 0; part < w->parts; part++) {
        const float *from = part_of(w, &q, part);
        const float factor = max == -INFINITY ? 1 : expf(from[w->width] - max);
        sum += factor * from[w->width + 1];
        for (int64_t f = 0; f < w->width; f += F32_LANES)
            store_f32(sums + f, load_f32(sums + f) + factor * load_f32(from + f));
    }
    store_result(&w->p->o, w->a->o, &w->p->lse, w->a->lse, &q, sums, max, sum);
}

OMP_LAUNCH(attention_decode_f32)
{
    const bsk_attention_decode_params *p = prepared->problem->params;
    const int threads = queue_threads(queue);
    int64_t tasks, numbers;
    work w;
    work_plan(&w, p, decode_of(p, args), &tasks, &numbers);
    w.a = args;
    w.partial = bsk_mem_address(w.a->workspace);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t task = 0; task < tasks; task++)
        decode_task(&w, task);
    const int64_t rows = w.parts > 1 ? p->q.dims[0] * w.d.s.heads * w.d.s.q_time : 0;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < rows; row++)
        join_parts(&w, row);
    return BSK_OK;
}
