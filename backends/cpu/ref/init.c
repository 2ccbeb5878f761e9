/* Reference entries of weights.h: initialisers and block_renew. */
#include "ref.h"

#include <common/checked.h>
#include <common/philox.h>

REF_LAYOUT_OP(weight_identity, weight_init)
{
    const ref_view w = view_of(&p->w, a->w);
    for (int64_t slot = 0; slot < t->nnz; slot++) {
        bool diagonal = t->slot_row[slot] % t->grid_cols == t->slot_col[slot] % t->grid_rows;
        for (int64_t i = 0; i < slot_height(t, slot); i++)
            for (int64_t j = 0; j < slot_width(t, slot); j++)
                view_set3(&w, slot, i, j, diagonal && i == j ? a->alpha : 0);
    }
}

REF_LAYOUT_OP(weight_normal, weight_init)
{
    const ref_view w = view_of(&p->w, a->w);
    for (int64_t slot = 0; slot < t->nnz; slot++)
        for (int64_t i = 0; i < slot_height(t, slot); i++)
            for (int64_t j = 0; j < slot_width(t, slot); j++) {
                double z = bski_philox_normal(a->seed, 0, slot_element(t, slot, i, j));
                view_set3(&w, slot, i, j, a->alpha * z);
            }
}

REF_LAYOUT_OP(weight_checker, weight_init)
{
    const ref_view gate = view_of(&p->w, a->w);
    for (int64_t slot = 0; slot < t->nnz; slot++)
        view_set1(&gate, slot, t->slot_row[slot] % 2 == t->slot_col[slot] % 2);
}

/* The kept part of one block column as a dense matrix of height x width elements. It is held as
 * `count` vectors of `length`: the columns, or the rows where there are fewer of those. */
typedef struct block_column {
    const bsk_layout_tables *t;
    int64_t first, last; /* entries of the column lists */
    int64_t height, width;
    bool by_rows;
    int64_t count, length;
} block_column;

static block_column column_of(const bsk_layout_tables *t, int64_t head, int64_t col)
{
    const int64_t *start = t->col_start + head * (t->grid_cols + 1) + col;
    block_column c = {.t = t, .first = start[0], .last = start[1]};
    for (int64_t e = c.first; e < c.last; e++)
        c.height += block_extent(t->rows, t->col_row[e], t->block_rows);
    c.width = block_extent(t->cols, col, t->block_cols);
    c.by_rows = c.width > c.height;
    c.count = c.by_rows ? c.height : c.width;
    c.length = c.by_rows ? c.width : c.height;
    return c;
}

/* The place of kept element (i, j) of a block column among its vectors. */
static int64_t column_index(const block_column *c, int64_t i, int64_t j)
{
    return c->by_rows ? i * c->length + j : j * c->length + i;
}

static void column_draw(const block_column *c, uint64_t seed, double *v)
{
    int64_t row = 0;
    for (int64_t e = c->first; e < c->last; e++) {
        int64_t slot = c->t->col_slot[e], height = slot_height(c->t, slot);
        for (int64_t i = 0; i < height; i++)
            for (int64_t j = 0; j < c->width; j++)
                v[column_index(c, row + i, j)] =
                    bski_philox_normal(seed, 0, slot_element(c->t, slot, i, j));
        row += height;
    }
}

static void column_store(const block_column *c, const double *v, double scale, const ref_view *w)
{
    int64_t row = 0;
    for (int64_t e = c->first; e < c->last; e++) {
        int64_t slot = c->t->col_slot[e], height = slot_height(c->t, slot);
        for (int64_t i = 0; i < height; i++)
            for (int64_t j = 0; j < c->width; j++)
                view_set3(w, slot, i, j, scale * v[column_index(c, row + i, j)]);
        row += height;
    }
}

static double vector_dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* Removes the first `count` vectors' directions from x, twice: once leaves what rounding added
 * back. Then scales x to length 1; false if too little of it was left to give a direction. */
static bool vector_orthonormalize(double *x, const double *vectors, int64_t count, int64_t length)
{
    double before = vector_dot(x, x, length);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t k = 0; k < count; k++) {
            const double *q = vectors + k * length;
            double d = vector_dot(q, x, length);
            for (int64_t i = 0; i < length; i++)
                x[i] -= d * q[i];
        }
    double norm = sqrt(vector_dot(x, x, length));
    if (!(norm * norm > 1e-20 * before))
        return false;
    for (int64_t i = 0; i < length; i++)
        x[i] /= norm;
    return true;
}

/* Modified Gram-Schmidt. A draw that depends on its predecessors is replaced by the first unit
 * vector that does not; one always exists, as there are no more vectors than dimensions. */
static void column_orthonormalize(const block_column *c, double *v)
{
    for (int64_t k = 0; k < c->count; k++) {
        double *x = v + k * c->length;
        bool done = vector_orthonormalize(x, v, k, c->length);
        for (int64_t unit = 0; !done && unit < c->length; unit++) {
            for (int64_t i = 0; i < c->length; i++)
                x[i] = i == unit;
            done = vector_orthonormalize(x, v, k, c->length);
        }
    }
}

/* Room for the largest block column in f64. */
BSKI_CPU_PREPARE(ref_weight_orthogonal)
{
    (void)device;
    const bsk_layout_tables *t = prepared->problem->layout;
    size_t largest = 0;
    for (int64_t head = 0; head < t->heads; head++)
        for (int64_t col = 0; col < t->grid_cols; col++) {
            block_column c = column_of(t, head, col);
            size_t bytes;
            if (!bski_mul_size((size_t)c.count, (size_t)c.length, &bytes) ||
                !bski_mul_size(bytes, sizeof(double), &bytes))
                return BSK_E_NOMEM;
            largest = bytes > largest ? bytes : largest;
        }
    prepared->workspace_bytes = largest;
    return BSK_OK;
}

REF_LAYOUT_OP(weight_orthogonal, weight_init)
{
    const ref_view w = view_of(&p->w, a->w);
    double *v = bsk_mem_address(a->workspace);
    for (int64_t head = 0; head < t->heads; head++)
        for (int64_t col = 0; col < t->grid_cols; col++) {
            block_column c = column_of(t, head, col);
            column_draw(&c, a->seed, v);
            column_orthonormalize(&c, v);
            column_store(&c, v, a->alpha, &w);
        }
}

/* Mean and standard deviation (of the population) of the kept blocks of all heads, in one pass
 * that does not cancel; 0 if there are none. */
static void kept_moments(const bsk_layout_tables *t, const ref_view *w, const ref_view *keep,
                         double *mean, double *std)
{
    double count = 0, squares = 0;
    *mean = 0;
    for (int64_t slot = 0; slot < t->nnz; slot++) {
        if (!view_get_int(keep, slot))
            continue;
        for (int64_t i = 0; i < slot_height(t, slot); i++)
            for (int64_t j = 0; j < slot_width(t, slot); j++) {
                double x = view_get3(w, slot, i, j), d = x - *mean;
                count += 1;
                *mean += d / count;
                squares += d * (x - *mean);
            }
    }
    *std = count > 0 ? sqrt(squares / count) : 0;
}

REF_LAYOUT_OP(block_renew, block_renew)
{
    const ref_view w = view_of(&p->w, a->w), keep = view_of(&p->keep, a->keep);
    double mean = 0, std = 0;
    if (p->renew != BSK_RENEW_ZERO)
        kept_moments(t, &w, &keep, &mean, &std);

    for (int64_t slot = 0; slot < t->nnz; slot++) {
        if (view_get_int(&keep, slot))
            continue;
        for (int64_t i = 0; i < slot_height(t, slot); i++)
            for (int64_t j = 0; j < slot_width(t, slot); j++) {
                uint64_t element = slot_element(t, slot, i, j);
                double v = 0;
                if (p->renew == BSK_RENEW_NORMAL)
                    v = a->alpha * (mean + std * bski_philox_normal(a->seed, 0, element));
                else if (p->renew == BSK_RENEW_UNIFORM)
                    v = a->alpha * std * (2.0 * bski_philox_uniform(a->seed, 0, element) - 1);
                view_set3(&w, slot, i, j, v);
            }
    }
}
