/* Tiles of attention on f32 buffers: products, packing, scores and their powers. Shared by the
 * fused ops (attention.c) and those on stored scores (scores.c). */
#ifndef BSKI_OMP_ATTENTION_H
#define BSKI_OMP_ATTENTION_H

#include "dense.h"

#include "../ref/attention.h"

/* Rows of a tile of queries, columns of a tile of keys, the longest head, and by how many rows copies
 * fetch ahead: heads lie side by side, so that a head's rows are short and far apart. */
enum { TILE_ROWS = 32, TILE_COLS = 64, HEAD_MAX = 256, AHEAD = 32 };

/* Powers are relative to a largest score that may lag behind by this much: no sum then overflows,
 * and hardly ever has what was summed to be brought to a new one. */
enum { MAX_LAG = 16 };

static inline int64_t lanes_up(int64_t count)
{
    return (count + F32_LANES - 1) / F32_LANES * F32_LANES;
}

/* --- products of tiles ------------------------------------------------------------------------ */

#if defined(BSK_ISA_AVX512) || defined(BSK_ISA_NEON)
enum { MR = 8 };
#else
enum { MR = 4 };
#endif

/* c (+)= a b for m rows and n vectors of columns, both constants at each call. Element (i, k) of a
 * lies at i * ai + k * ak. */
OMP_INLINE void product_tile(float *restrict c, int64_t ldc, const float *restrict a, int64_t ai,
                             int64_t ak, const float *restrict b, int64_t ldb, int64_t depth,
                             bool add, const int m, const int n)
{
    vec_f32 sum[8][2];
    _Pragma("GCC unroll 8") for (int i = 0; i < m; i++)
        _Pragma("GCC unroll 2") for (int v = 0; v < n; v++) sum[i][v] =
            add ? load_f32(c + i * ldc + v * F32_LANES) : (vec_f32){0};
    for (int64_t k = 0; k < depth; k++) {
        vec_f32 row[2];
        _Pragma("GCC unroll 2") for (int v = 0; v < n; v++) row[v] =
            load_f32(b + k * ldb + v * F32_LANES);
        _Pragma("GCC unroll 8") for (int i = 0; i < m; i++)
        {
            const float x = a[i * ai + k * ak];
            _Pragma("GCC unroll 2") for (int v = 0; v < n; v++) sum[i][v] += x * row[v];
        }
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < m; i++)
        _Pragma("GCC unroll 2") for (int v = 0; v < n; v++)
            store_f32(c + i * ldc + v * F32_LANES, sum[i][v]);
}

/* A column strip of one or two vectors. */
OMP_INLINE void product_strip(float *c, int64_t ldc, const float *a, int64_t ai, int64_t ak,
                              const float *b, int64_t ldb, int64_t rows, int64_t depth, bool add,
                              const int n)
{
    int64_t i = 0;
    for (; i + MR <= rows; i += MR)
        product_tile(c + i * ldc, ldc, a + i * ai, ai, ak, b, ldb, depth, add, MR, n);
    for (; i + 2 <= rows; i += 2)
        product_tile(c + i * ldc, ldc, a + i * ai, ai, ak, b, ldb, depth, add, 2, n);
    if (i < rows)
        product_tile(c + i * ldc, ldc, a + i * ai, ai, ak, b, ldb, depth, add, 1, n);
}

/* c [rows][cols] (+)= a [rows][depth] b [depth][cols]; cols is a multiple of the lanes. */
static inline void product(float *c, int64_t ldc, const float *a, int64_t ai, int64_t ak,
                           const float *b, int64_t ldb, int64_t rows, int64_t cols, int64_t depth,
                           bool add)
{
    int64_t j = 0;
    for (; j + 2 * F32_LANES <= cols; j += 2 * F32_LANES)
        product_strip(c + j, ldc, a, ai, ak, b + j, ldb, rows, depth, add, 2);
    if (j < cols)
        product_strip(c + j, ldc, a, ai, ak, b + j, ldb, rows, depth, add, 1);
}

/* --- packing ---------------------------------------------------------------------------------- */

/* One of q, k, v ... in the order of the layout's lines: [member][line][width], or, turned, a block
 * after another as [member][block][d][side]. Padding reads as zero. member counts batch and
 * heads. */
typedef struct packed {
    const bsk_tensor *tensor;
    const void *data;
    const ref_view *length; /* of the members of the batch */
    int64_t lines, side, grid, interleave;
    int64_t d, width; /* size of a head; that rounded up, or turned the side rounded up */
    bool turned;
    float *to;
} packed;

static inline int64_t packed_member(const packed *p)
{
    return p->turned ? p->grid * p->d * p->width : p->lines * p->width;
}

/* Sets all but data and to, and adds what is needed to *total; false on overflow. */
static inline bool packed_plan(packed *p, const bsk_tensor *tensor, const bsk_layout_tables *t,
                               bool keys, bool turned, int64_t interleave, int64_t *total)
{
    const int64_t lines = keys ? t->cols : t->rows, side = keys ? t->block_cols : t->block_rows;
    *p = (packed){.tensor = tensor,
                  .lines = lines,
                  .side = side,
                  .grid = keys ? t->grid_cols : t->grid_rows,
                  .interleave = interleave,
                  .d = tensor->dims[3],
                  .width = lanes_up(turned ? side : tensor->dims[3]),
                  .turned = turned};
    int64_t count;
    return bski_mul_i64(tensor->dims[0], tensor->dims[1], &count) &&
           bski_mul_i64(count, turned ? p->grid : lines, &count) &&
           bski_mul_i64(count, p->width, &count) &&
           bski_mul_i64(count, turned ? p->d : 1, &count) && bski_add_i64(*total, count, total);
}

/* to[k][i + r] = run[r][k] for SQUARE_f32 lines. */
static inline void pack_turned(const packed *p, const float *run, int64_t i, float *to)
{
    int64_t k = 0;
    for (; k + SQUARE_f32 <= p->d; k += SQUARE_f32)
        transpose_square_f32(to + k * p->width + i, p->width, run + k, HEAD_MAX);
    for (; k < p->d; k++)
        for (int64_t r = 0; r < SQUARE_f32; r++)
            to[k * p->width + i + r] = run[r * HEAD_MAX + k];
}

static inline void pack_block(const packed *p, int64_t member, int64_t block)
{
    const int64_t *strides = p->tensor->strides, heads = p->tensor->dims[1];
    const int64_t b = member / heads, count = block_extent(p->lines, block, p->side);
    const int64_t length = length_of(p->length, b, p->tensor->dims[2]);
    const int64_t origin = b * strides[0] + member % heads * strides[1];
    float *to = p->to + member * packed_member(p) + (p->turned ? block * p->d * p->width : 0);
    float run[SQUARE_f32 * HEAD_MAX];
    if (p->turned && count < p->width)
        memset(to, 0, (size_t)(p->d * p->width) * sizeof *to);
    for (int64_t i = 0; i < count; i++) {
        const int64_t line = block * p->side + i, turn = i % SQUARE_f32;
        const int64_t time = time_of(p->lines, p->interleave, line);
        const int64_t d = time < length ? p->d : 0, width = p->turned ? p->d : p->width;
        float *row = p->turned ? run + turn * HEAD_MAX : to + line * p->width;
        if (d) {
            const int64_t later = min_i64(time + AHEAD * p->interleave, length - 1);
            row_fetch(p->tensor->dtype, p->data, origin + later * strides[2], d);
            row_load_f32(row, p->tensor->dtype, p->data, origin + time * strides[2], d);
        }
        memset(row + d, 0, (size_t)(width - d) * sizeof *row);
        if (p->turned && i + 1 == count)
            for (int64_t r = turn + 1; r < SQUARE_f32; r++)
                memset(run + r * HEAD_MAX, 0, (size_t)p->d * sizeof *run);
        if (p->turned && (turn + 1 == SQUARE_f32 || i + 1 == count))
            pack_turned(p, run, i - turn, to);
    }
}

static inline void pack_all(const packed *p, int threads)
{
    const int64_t tasks = p->tensor->dims[0] * p->tensor->dims[1] * p->grid;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t task = 0; task < tasks; task++)
        pack_block(p, task / p->grid, task % p->grid);
}

/* Rows from `line` on, and columns from `line` on of a turned block. */
static inline const float *packed_rows(const packed *p, int64_t member, int64_t line)
{
    return p->to + member * packed_member(p) + line * p->width;
}

static inline const float *packed_turned(const packed *p, int64_t member, int64_t block,
                                         int64_t col)
{
    return p->to + member * packed_member(p) + block * p->d * p->width + col;
}

/* --- tiles of scores -------------------------------------------------------------------------- */

/* Query rows [p, p + rows) of head h against columns [c, c + cols) of the block in slot. */
typedef struct tile {
    query q[TILE_ROWS];
    int64_t rows, slot, c, cols;
} tile;

/* PLAIN: all is visible, and scores are multiples of products. RUNS: the same of what is visible,
 * in each row one run of columns. MIXED: each element is asked about. */
typedef enum tile_kind { TILE_HIDDEN, TILE_PLAIN, TILE_RUNS, TILE_MIXED } tile_kind;

static inline void tile_rows(tile *x, const scoring *s, int64_t b, int64_t h, int64_t first,
                             int64_t rows)
{
    const int64_t run = s->t->rows / s->interleave, length = length_of(&s->q_len, b, s->q_time);
    x->rows = rows;
    for (int64_t i = 0; i < rows; i++) {
        if (i == 0 || (first + i) % run == 0) {
            x->q[i] = query_of(s, b, h, first + i);
            continue;
        }
        /* inside one residue, times ascend by the interleave */
        x->q[i] = x->q[i - 1];
        x->q[i].p++;
        x->q[i].time += s->interleave;
        x->q[i].pos += s->interleave;
        x->q[i].live = x->q[i].time < length;
    }
}

static inline bool is_modified(const scoring *s)
{
    return s->softcap > 0 || view_given(&s->bias) || view_given(&s->slopes);
}

static inline bool has_mask(const scoring *s, int64_t slot)
{
    if (view_given(&s->k_segment))
        return true;
    if (!view_given(&s->bits))
        return false;
    const int64_t mask = view_given(&s->bits_index) ? view_get_int(&s->bits_index, slot) : slot;
    return mask >= 0 && mask < s->masks;
}

static inline tile_kind tile_kind_of(const scoring *s, const tile *x)
{
    const bsk_layout_tables *t = s->t;
    const query *first = &x->q[0], *last = &x->q[x->rows - 1];
    const int64_t q_run = t->rows / s->interleave, k_run = t->cols / s->interleave;
    const int64_t residue = first->p / q_run, end = x->c + x->cols - 1;
    /* inside one residue, times ascend */
    if (last->p / q_run != residue || x->c / k_run != residue || end / k_run != residue)
        return TILE_MIXED;
    const int64_t low = time_of(t->cols, s->interleave, x->c);
    const int64_t high = time_of(t->cols, s->interleave, end);
    if (s->causal && low > last->pos && !view_given(&s->prefix))
        return TILE_HIDDEN;
    if (is_modified(s) || has_mask(s, x->slot))
        return TILE_MIXED;
    if (!last->live || high >= last->keys || (s->causal && high > first->pos) ||
        (s->window > 0 && (last->pos - low >= s->window || high - first->pos >= s->window)))
        return view_given(&s->prefix) ? TILE_MIXED : TILE_RUNS;
    return TILE_PLAIN;
}

/* Columns [from, to) of a tile. */
typedef struct run {
    int64_t from, to;
} run;

/* What row i of a tile of that kind sees, which is not MIXED. */
static inline run visible_run(const scoring *s, const tile *x, tile_kind kind, int64_t i)
{
    if (kind == TILE_PLAIN)
        return (run){0, x->cols};
    const query *q = &x->q[i];
    const int64_t step = s->interleave, low = time_of(s->t->cols, step, x->c);
    int64_t first = low, end = q->live ? q->keys : low; /* times */
    if (s->causal)
        end = min_i64(end, q->pos + 1);
    if (s->window > 0) {
        const int64_t window = min_i64(s->window, INT64_MAX / 2);
        first = max_i64(first, q->pos - window + 1);
        end = min_i64(end, q->pos + window);
    }
    const int64_t to = min_i64(x->cols, bski_ceil_div(max_i64(end - low, 0), step));
    return (run){min_i64(to, bski_ceil_div(first - low, step)), to};
}

/* Sets what lies outside of the run. */
static inline void row_hide(float *row, run seen, int64_t width, float value)
{
    for (int64_t j = 0; j < seen.from; j++)
        row[j] = value;
    for (int64_t j = seen.to; j < width; j++)
        row[j] = value;
}

/* From products of a query and keys of one block to scores, -infinity where not visible. */
static inline void masked_scores(const scoring *s, const query *q, int64_t slot, int64_t c,
                                 int64_t cols, float *score)
{
    for (int64_t j = 0; j < cols; j++) {
        const int64_t key = time_of(s->t->cols, s->interleave, c + j);
        score[j] = is_visible(s, q, slot, c + j) ? (float)score_of(s, q, key, score[j]) : -INFINITY;
    }
}

/* The same for a tile, and -infinity in the padding up to whole vectors. */
static inline void tile_scores(const scoring *s, const tile *x, tile_kind kind, float *score)
{
    const float scale = (float)s->scale;
    const int64_t width = lanes_up(x->cols);
    for (int64_t i = 0; i < x->rows; i++, score += TILE_COLS) {
        run seen = {0, x->cols};
        if (kind == TILE_MIXED) {
            masked_scores(s, &x->q[i], x->slot, x->c, x->cols, score);
        } else {
            for (int64_t j = 0; j < width; j += F32_LANES)
                store_f32(score + j, scale * load_f32(score + j));
            seen = visible_run(s, x, kind, i);
        }
        row_hide(score, seen, width, -INFINITY);
    }
}

static inline float row_largest(const float *row, int64_t width, float most)
{
    vec_f32 best = splat_f32(most);
    for (int64_t j = 0; j < width; j += F32_LANES) {
        const vec_f32 x = load_f32(row + j);
        best = select_f32(x > best, x, best);
    }
    return lanes_max(best);
}

/* e^x, but 0 where that is denormal: processors are slow to make such numbers, and next to the largest
 * of a row they are nothing. */
OMP_INLINE vec_f32 power_f32(vec_f32 x)
{
    const float least = -87.0f;
    vec_f32 n;
    const vec_f32 p = exp_split(clamp_f32(x, least, 89.0f), &n) + 1.0f;
    return select_f32(x < least, (vec_f32){0}, scale_f32(p, n));
}

/* row = e^(row - from); returns the sum. */
static inline float row_power(float *row, int64_t width, float from)
{
    vec_f32 sum = {0};
    for (int64_t j = 0; j < width; j += F32_LANES) {
        const vec_f32 e = power_f32(load_f32(row + j) - from);
        store_f32(row + j, e);
        sum += e;
    }
    return lanes_sum(sum);
}

/* The running softmax of a tile of rows. */
typedef struct running {
    _Alignas(64) float score[TILE_ROWS * TILE_COLS];
    _Alignas(64) float o[TILE_ROWS * HEAD_MAX];
    _Alignas(64) float q[TILE_ROWS * HEAD_MAX];
    float max[TILE_ROWS], sum[TILE_ROWS];
    tile x;
} running;

/* Scores, `width` in a row, become powers; what was summed is brought to the new maximum. */
static inline void running_power(running *r, int64_t width, int64_t dv)
{
    for (int64_t i = 0; i < r->x.rows; i++) {
        float *row = r->score + i * TILE_COLS, *o = r->o + i * dv;
        const float most = row_largest(row, width, r->max[i]);
        const float max = most > r->max[i] + MAX_LAG ? most : r->max[i];
        const float from = max == -INFINITY ? 0 : max;
        if (max > r->max[i] && r->max[i] != -INFINITY) {
            const float shrink = expf(r->max[i] - max);
            r->sum[i] *= shrink;
            for (int64_t j = 0; j < dv; j += F32_LANES)
                store_f32(o + j, shrink * load_f32(o + j));
        }
        r->max[i] = max;
        r->sum[i] += row_power(row, width, from);
    }
}

/* One row of the result: its sums of values, its largest score, and the sum of its powers. */
static inline void store_result(const bsk_tensor *o, bsk_mem o_mem, const bsk_tensor *lse,
                                bsk_mem lse_mem, const query *q, const float *sums, float max,
                                float sum)
{
    const bool empty = max == -INFINITY && sum == 0;
    const float share = empty ? 0 : 1 / sum;
    float row[HEAD_MAX];
    for (int64_t j = 0; j < o->dims[3]; j++)
        row[j] = sums[j] * share;
    row_store_f32(row, o->dtype, bsk_mem_address(o_mem),
                  q->b * o->strides[0] + q->h * o->strides[1] + q->time * o->strides[2],
                  o->dims[3]);
    if (lse->dtype != BSK_NONE)
        ((float *)bsk_mem_address(lse_mem))[(q->b * o->dims[1] + q->h) * o->dims[2] + q->time] =
            empty ? -INFINITY : max + logf(sum);
}

/* --- what entries share ----------------------------------------------------------------------- */

static inline bool heads_fit(const bsk_tensor *q, const bsk_tensor *v)
{
    return q->dims[3] >= 1 && q->dims[3] <= HEAD_MAX && v->dims[3] >= 1 && v->dims[3] <= HEAD_MAX;
}

static inline bsk_status ask_floats(bsk_prepared *prepared, bool good, int64_t count)
{
    return good && bski_mul_size((size_t)count, sizeof(float), &prepared->workspace_bytes)
               ? BSK_OK
               : BSK_E_UNSUPPORTED;
}

static inline void load_rows(const bsk_tensor *t, bsk_mem mem, const tile *x, float *to, int64_t ld)
{
    for (int64_t i = 0; i < x->rows; i++) {
        const query *q = &x->q[i];
        memset(to + i * ld, 0, (size_t)ld * sizeof *to);
        if (q->live)
            row_load_f32(to + i * ld, t->dtype, bsk_mem_address(mem),
                         q->b * t->strides[0] + q->h * t->strides[1] + q->time * t->strides[2],
                         t->dims[3]);
    }
}

/* Tiles of all block rows of a head. */
static inline int64_t tiles_of(const bsk_layout_tables *t)
{
    return t->grid_rows * bski_ceil_div(t->block_rows, TILE_ROWS);
}

/* Positions alone: no masks. */
static inline scoring places_of(const bsk_layout_tables *t, int64_t interleave, int64_t heads,
                                int64_t q_time, int64_t k_time)
{
    return (scoring){.t = t,
                     .interleave = interleave,
                     .heads = heads,
                     .q_time = q_time,
                     .k_time = k_time,
                     .scale = 1};
}

/* The first row of a tile and the number of its rows, 0 where the last block is cut short. */
static inline int64_t tile_place(const bsk_layout_tables *t, int64_t number, int64_t *rows)
{
    const int64_t each = bski_ceil_div(t->block_rows, TILE_ROWS), block = number / each;
    const int64_t offset = number % each * TILE_ROWS;
    *rows = max_i64(0, min_i64(TILE_ROWS, block_extent(t->rows, block, t->block_rows) - offset));
    return block * t->block_rows + offset;
}

#endif
