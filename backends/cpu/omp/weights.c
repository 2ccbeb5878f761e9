/* Ops that read all weights and do little with each: l2_normalize, block_norm, block_l2_decay. Squares
 * are summed in f64, since those of small and of large numbers leave the range of f32. */
#include "dense.h"

/* Elements of memory that are asked for before they are loaded. */
enum { AHEAD = 4 * CHUNK };

/* --- columns ---------------------------------------------------------------------------------- */

/* Columns of a part at most. */
enum { WIDTH = 256 };

/* Some columns of a block column, which one thread walks chunk by chunk: each of some rows of a block,
 * of more than one only if they are whole, so that a chunk lies along memory. Chunks are summed element
 * by element, and their rows last: a loop over a chunk does not know of rows. */
typedef struct column_part {
    const bsk_layout_tables *t;
    int64_t first, end;             /* in the list of blocks */
    int64_t column, feature, width; /* the first column, in a block and in the matrix; columns */
    int64_t rows, ahead;            /* of a chunk; blocks to the one that is asked for */
} column_part;

typedef struct chunk {
    int64_t entry, row; /* of the list, of its block */
    int64_t at, count;  /* elements */
} chunk;

static int64_t column_parts(const bsk_layout_tables *t)
{
    return bski_ceil_div(t->block_cols, WIDTH);
}

static column_part part_of(const bsk_layout_tables *t, int64_t i)
{
    const int64_t parts = column_parts(t), q = i / parts, column = i % parts * WIDTH;
    column_part p = {
        .t = t, .first = t->col_start[q], .end = t->col_start[q + 1], .column = column};
    p.feature = q * t->block_cols + column;
    p.width = min_i64(min_i64(WIDTH, t->block_cols - column), max_i64(0, t->cols - p.feature));
    p.rows = p.width == t->block_cols ? min_i64(CHUNK / p.width, t->block_rows) : 1;
    p.ahead = max_i64(1, AHEAD / ((int64_t)t->block_rows * t->block_cols));
    return p;
}

static int64_t element_of(const column_part *p, int64_t entry, int64_t row)
{
    return (p->t->col_slot[entry] * (int64_t)p->t->block_rows + row) * p->t->block_cols + p->column;
}

/* The chunk at an entry and a row, or the next one if these are behind the last. */
static bool chunk_at(const column_part *p, chunk *c)
{
    for (; c->entry < p->end; c->entry++, c->row = 0) {
        const int64_t above = p->t->slot_row[p->t->col_slot[c->entry]] * (int64_t)p->t->block_rows;
        const int64_t left = min_i64(p->t->block_rows, p->t->rows - above) - c->row;
        if (left <= 0)
            continue;
        c->at = element_of(p, c->entry, c->row);
        c->count = min_i64(p->rows, left) * p->width;
        return true;
    }
    return false;
}

#define EACH_CHUNK(p, c)                                                                           \
    for (chunk c = {.entry = (p)->first}; (p)->width > 0 && chunk_at(p, &c); c.row += (p)->rows)

/* Asks for the chunk of a later block that is like this one. */
static void chunk_fetch(const column_part *p, const chunk *c, bsk_dtype type, const void *src)
{
    if (c->entry + p->ahead < p->end)
        row_fetch(type, src, element_of(p, c->entry + p->ahead, c->row), c->count);
}

/* Elements as f32: where they lie, or in the buffer. */
static const float *chunk_load(float *restrict buffer, bsk_dtype type, const void *src, int64_t at,
                               int64_t count)
{
    if (type == BSK_F32)
        return (const float *)src + at;
    row_load_f32(buffer, type, src, at, count);
    return buffer;
}

/* sum[j] = the sum of x y over column j of the part. */
static void part_dot(const column_part *p, bsk_dtype x_type, const void *x, bsk_dtype y_type,
                     const void *y, double *restrict sum)
{
    double all[CHUNK];
    float x_buffer[CHUNK], y_buffer[CHUNK];
    memset(all, 0, (size_t)(p->rows * p->width) * sizeof *all);
    EACH_CHUNK(p, c)
    {
        const float *a = chunk_load(x_buffer, x_type, x, c.at, c.count), *b = a;
        chunk_fetch(p, &c, x_type, x);
        if (y != x) {
            b = chunk_load(y_buffer, y_type, y, c.at, c.count);
            chunk_fetch(p, &c, y_type, y);
        }
        for (int64_t i = 0; i < c.count; i++)
            all[i] += (double)a[i] * (double)b[i];
    }
    for (int64_t j = 0; j < p->width; j++)
        sum[j] = all[j];
    for (int64_t r = 1; r < p->rows; r++)
        for (int64_t j = 0; j < p->width; j++)
            sum[j] += all[r * p->width + j];
}

/* By what the columns of a part are multiplied, one by one and for all elements of a chunk. */
typedef struct factors {
    double column[WIDTH];
    float chunk[CHUNK];
    bool narrow; /* all of them are 0, not finite, or normal numbers of f32 */
} factors;

static void factors_spread(const column_part *p, factors *f)
{
    f->narrow = true;
    for (int64_t j = 0; j < p->width; j++) {
        const double size = fabs(f->column[j]);
        if ((size > 0 && size < 0x1p-126) || (size > 0x1p127 && size < (double)INFINITY))
            f->narrow = false;
    }
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t j = 0; j < p->width; j++)
            f->chunk[r * p->width + j] = (float)f->column[j];
}

/* out = x f, or with y x f - y g. */
static void chunk_scale(const column_part *p, int64_t count, float *restrict out, const float *x,
                        const factors *f, const float *y, const factors *g)
{
    if (f->narrow && !y) {
        for (int64_t i = 0; i < count; i++)
            out[i] = x[i] * f->chunk[i];
    } else if (f->narrow && g->narrow) {
        for (int64_t i = 0; i < count; i++)
            out[i] = x[i] * f->chunk[i] - y[i] * g->chunk[i];
    } else {
        for (int64_t i = 0; i < count; i += p->width)
            for (int64_t j = 0; j < p->width; j++) {
                const double less = y ? (double)y[i + j] * g->column[j] : 0;
                out[i + j] = (float)((double)x[i + j] * f->column[j] - less);
            }
    }
}

/* Outputs that no input shares, of many bytes, go past the caches. */
static bool weights_stream(const bsk_tensor *out, bsk_mem mem, bsk_mem in)
{
    return bsk_mem_address(mem) != bsk_mem_address(in) &&
           streams(out->dtype, out->dims[0], out->dims[1] * out->dims[2]);
}

/* Comparisons are written so that NaN passes through. */
static double at_least(double x, double low)
{
    return x < low ? low : x;
}

/* A vector's element, or 1 where there is none. */
static double gain_at(const bsk_tensor *t, bsk_mem gain, int64_t i)
{
    return t->dtype == BSK_NONE ? 1 : (double)((const float *)bsk_mem_address(gain))[i];
}

/* --- l2_normalize ----------------------------------------------------------------------------- */

OMP_DECLARE(l2_normalize);
OMP_PREPARE_NONE(l2_normalize)

OMP_ACCEPT(l2_normalize)
{
    const bsk_l2_normalize_params *p = problem->params;
    (void)props;
    return is_narrow(&p->w) && is_narrow(&p->y) ? BSK_ACCEPT : BSK_REFUSE_DTYPE;
}

static void normalize_part(const bsk_l2_normalize_params *p, const bsk_l2_normalize_args *a,
                           const column_part *part, factors *f, bool stream)
{
    const void *w = bsk_mem_address(a->w);
    float *saved = p->saved.dtype != BSK_NONE ? bsk_mem_address(a->saved) : NULL;
    float in[CHUNK], out[CHUNK];
    part_dot(part, p->w.dtype, w, p->w.dtype, w, f->column);
    for (int64_t j = 0; j < part->width; j++) {
        const double s = f->column[j];
        if (saved)
            saved[part->feature + j] = (float)s;
        f->column[j] = gain_at(&p->gain, a->gain, part->feature + j) / sqrt(at_least(s, p->eps));
    }
    factors_spread(part, f);
    EACH_CHUNK(part, c)
    {
        const float *x = chunk_load(in, p->w.dtype, w, c.at, c.count);
        chunk_scale(part, c.count, out, x, f, NULL, NULL);
        row_put(out, p->y.dtype, bsk_mem_address(a->y), c.at, c.count, stream);
    }
}

OMP_LAUNCH(l2_normalize)
{
    const bsk_l2_normalize_params *p = prepared->problem->params;
    const bsk_l2_normalize_args *a = args;
    const bsk_layout_tables *t = prepared->problem->layout;
    const bool stream = weights_stream(&p->y, a->y, a->w);
#pragma omp parallel num_threads(queue_threads(queue))
    {
        factors f;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < t->grid_cols * column_parts(t); i++) {
            const column_part part = part_of(t, i);
            normalize_part(p, a, &part, &f, stream);
        }
        if (stream)
            stream_fence();
    }
    return BSK_OK;
}

/* --- l2_normalize_grad ------------------------------------------------------------------------ */

OMP_DECLARE(l2_normalize_grad);
OMP_PREPARE_NONE(l2_normalize_grad)

OMP_ACCEPT(l2_normalize_grad)
{
    const bsk_l2_normalize_grad_params *p = problem->params;
    (void)props;
    return is_narrow(&p->dy) && is_narrow(&p->w) && is_narrow(&p->dw) ? BSK_ACCEPT
                                                                      : BSK_REFUSE_DTYPE;
}

/* dw = dy f - w g + beta dw. */
static void normalize_grad_part(const bsk_l2_normalize_grad_params *p,
                                const bsk_l2_normalize_grad_args *a, const column_part *part,
                                factors *f, factors *g, bool stream)
{
    const void *dy = bsk_mem_address(a->dy), *w = bsk_mem_address(a->w);
    const float *saved = bsk_mem_address(a->saved);
    float *dgain = p->dgain.dtype != BSK_NONE ? bsk_mem_address(a->dgain) : NULL;
    float dy_buffer[CHUNK], w_buffer[CHUNK], out[CHUNK];
    part_dot(part, p->dy.dtype, dy, p->w.dtype, w, g->column);
    for (int64_t j = 0; j < part->width; j++) {
        const int64_t k = part->feature + j;
        const double s = (double)saved[k], square = at_least(s, p->eps), length = sqrt(square);
        const double gain = gain_at(&p->gain, a->gain, k), dot = g->column[j];
        if (dgain)
            dgain[k] =
                (float)(a->alpha * dot / length + (a->beta != 0 ? a->beta * (double)dgain[k] : 0));
        f->column[j] = a->alpha * gain / length;
        g->column[j] = s < p->eps ? 0 : a->alpha * (gain * dot / square) / length;
    }
    factors_spread(part, f);
    factors_spread(part, g);
    EACH_CHUNK(part, c)
    {
        const float *x = chunk_load(dy_buffer, p->dy.dtype, dy, c.at, c.count);
        const float *y = chunk_load(w_buffer, p->w.dtype, w, c.at, c.count);
        chunk_scale(part, c.count, out, x, f, y, g);
        row_blend(out, 1, a->beta, p->dw.dtype, bsk_mem_address(a->dw), c.at, c.count);
        row_put(out, p->dw.dtype, bsk_mem_address(a->dw), c.at, c.count, stream);
    }
}

OMP_LAUNCH(l2_normalize_grad)
{
    const bsk_l2_normalize_grad_params *p = prepared->problem->params;
    const bsk_l2_normalize_grad_args *a = args;
    const bsk_layout_tables *t = prepared->problem->layout;
    const bool stream = a->beta == 0 && weights_stream(&p->dw, a->dw, a->dy);
#pragma omp parallel num_threads(queue_threads(queue))
    {
        factors f, g;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < t->grid_cols * column_parts(t); i++) {
            const column_part part = part_of(t, i);
            normalize_grad_part(p, a, &part, &f, &g, stream);
        }
        if (stream)
            stream_fence();
    }
    return BSK_OK;
}

/* --- blocks ----------------------------------------------------------------------------------- */

/* What of a block lies inside the matrix: all of it along memory, or rows. */
typedef struct block {
    int64_t at, runs, length;
} block;

static block block_of(const bsk_layout_tables *t, int64_t slot)
{
    const int64_t r = t->block_rows, c = t->block_cols;
    const int64_t height = min_i64(r, t->rows - t->slot_row[slot] * r);
    const int64_t width = min_i64(c, t->cols - t->slot_col[slot] * c);
    return width == c ? (block){slot * r * c, 1, height * c} : (block){slot * r * c, height, width};
}

/* Pieces of a block of at most CHUNK elements: where they begin, and how many there are. */
#define EACH_PIECE(t, b, at, count)                                                                \
    for (int64_t run_ = 0; run_ < (b)->runs; run_++)                                               \
        for (int64_t i_ = 0, at = (b)->at + run_ * (t)->block_cols, count;                         \
             count = min_i64(CHUNK, (b)->length - i_), i_ < (b)->length; i_ += CHUNK, at += CHUNK)

static double block_squares(const bsk_layout_tables *t, const block *b, bsk_dtype type,
                            const void *w)
{
    float buffer[CHUNK];
    double sum = 0;
    EACH_PIECE(t, b, at, count)
    {
        sum += row_squares(chunk_load(buffer, type, w, at, count), count);
        row_fetch(type, w, at + AHEAD, count);
    }
    return sum;
}

/* The largest size; NaN, whose bits without the sign are the largest, if there is one. */
static float block_max(const bsk_layout_tables *t, const block *b, bsk_dtype type, const void *w)
{
    float buffer[CHUNK], max;
    int32_t most = 0;
    EACH_PIECE(t, b, at, count)
    {
        const float *row = chunk_load(buffer, type, w, at, count);
        for (int64_t i = 0; i < count; i++) {
            const int32_t bits = (int32_t)(bski_f32_bits(row[i]) & 0x7fffffff);
            most = bits > most ? bits : most;
        }
        row_fetch(type, w, at + AHEAD, count);
    }
    memcpy(&max, &most, sizeof max);
    return max;
}

OMP_DECLARE(block_norm);
OMP_PREPARE_NONE(block_norm)

OMP_ACCEPT(block_norm)
{
    const bsk_block_norm_params *p = problem->params;
    (void)props;
    return is_narrow(&p->w) && is_narrow(&p->norm) ? BSK_ACCEPT : BSK_REFUSE_DTYPE;
}

OMP_LAUNCH(block_norm)
{
    const bsk_block_norm_params *p = prepared->problem->params;
    const bsk_block_norm_args *a = args;
    const bsk_layout_tables *t = prepared->problem->layout;
    const void *w = bsk_mem_address(a->w);
    float *norm = bsk_mem_address(a->norm);
#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t slot = 0; slot < t->nnz; slot++) {
        const block b = block_of(t, slot);
        norm[slot] = p->type == BSK_NORM_MAX ? block_max(t, &b, p->w.dtype, w)
                                             : (float)sqrt(block_squares(t, &b, p->w.dtype, w));
    }
    return BSK_OK;
}

OMP_DECLARE(block_l2_decay);
OMP_PREPARE_NONE(block_l2_decay)

OMP_ACCEPT(block_l2_decay)
{
    const bsk_block_l2_decay_params *p = problem->params;
    (void)props;
    return is_narrow(&p->w) ? BSK_ACCEPT : BSK_REFUSE_DTYPE;
}

/* w -= w share. */
static void block_decay(const bsk_layout_tables *t, const block *b, bsk_dtype type, void *w,
                        double rate, double eps)
{
    const double ratio = rate / sqrt(block_squares(t, b, type, w) + eps);
    const float share = (float)(ratio > 1 ? 1 : ratio);
    float buffer[CHUNK], row[CHUNK];
    EACH_PIECE(t, b, at, count)
    {
        const float *v = chunk_load(buffer, type, w, at, count);
        for (int64_t i = 0; i < count; i++)
            row[i] = v[i] - v[i] * share;
        row_store_f32(row, type, w, at, count);
    }
}

OMP_LAUNCH(block_l2_decay)
{
    const bsk_block_l2_decay_params *p = prepared->problem->params;
    const bsk_block_l2_decay_args *a = args;
    const bsk_layout_tables *t = prepared->problem->layout;
    const float *gate = p->gate.dtype != BSK_NONE ? bsk_mem_address(a->gate) : NULL;
#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t slot = 0; slot < t->nnz; slot++) {
        const block b = block_of(t, slot);
        if (!gate || gate[slot] != 0)
            block_decay(t, &b, p->w.dtype, bsk_mem_address(a->w), a->rate, p->eps);
    }
    return BSK_OK;
}
