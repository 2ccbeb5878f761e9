/* Averages, the norm of gradients, and Adafactor. */
#include "dense.h"

/* --- ema -------------------------------------------------------------------------------------- */

OMP_DECLARE(ema);
OMP_PREPARE_NONE(ema)

OMP_ACCEPT(ema)
{
    const bsk_ema_params *p = problem->params;
    (void)props;
    return is_narrow(&p->average) && is_narrow(&p->param) ? BSK_ACCEPT : BSK_REFUSE_DTYPE;
}

OMP_LAUNCH(ema)
{
    const bsk_ema_params *p = prepared->problem->params;
    const bsk_ema_args *a = args;
    const bool gated = p->gate.dtype != BSK_NONE;
    const float *gate = bsk_mem_address(a->gate), rest = (float)(1 - a->decay);
    void *average = bsk_mem_address(a->average);
    int64_t outer = 1, inner = 1;
    for (int32_t d = 0; d < p->average.rank; d++)
        *(gated && d == 0 ? &outer : &inner) *= p->average.dims[d];
    const int64_t parts = bski_ceil_div(inner, CHUNK);

#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t i = 0; i < outer * parts; i++) {
        const int64_t row = i / parts, first = i % parts * CHUNK, at = row * inner + first;
        const int64_t count = min_i64(CHUNK, inner - first);
        float old[CHUNK], now[CHUNK];
        if (gated && gate[row * p->gate.strides[0]] == 0)
            continue;
        row_load_f32(old, p->average.dtype, average, at, count);
        row_load_f32(now, p->param.dtype, bsk_mem_address(a->param), at, count);
        for (int64_t k = 0; k < count; k++)
            old[k] -= rest * (old[k] - now[k]);
        row_store_f32(old, p->average.dtype, average, at, count);
    }
    return BSK_OK;
}

/* --- global_norm ------------------------------------------------------------------------------ */

/* Elements whose squares are summed by one thread. */
enum { PIECE = 32 * CHUNK };

OMP_DECLARE(global_norm);

OMP_ACCEPT(global_norm)
{
    const bsk_global_norm_params *p = problem->params;
    (void)props;
    return is_narrow(&p->x) && p->sum.dtype == BSK_F32 ? BSK_ACCEPT : BSK_REFUSE_DTYPE;
}

static int64_t element_count(const bsk_tensor *t)
{
    int64_t count = 1;
    for (int32_t d = 0; d < t->rank; d++)
        count *= t->dims[d];
    return count;
}

OMP_PREPARE(global_norm)
{
    const bsk_global_norm_params *p = prepared->problem->params;
    const int64_t pieces = bski_ceil_div(element_count(&p->x), PIECE);
    size_t count;
    (void)device;
    return bski_mul_size((size_t)pieces, (size_t)p->pairs, &count) &&
                   bski_mul_size(count, sizeof(double), &prepared->workspace_bytes)
               ? BSK_OK
               : BSK_E_UNSUPPORTED;
}

static double piece_squares(bsk_dtype type, const void *x, int64_t first, int64_t last)
{
    double sum = 0;
    float row[CHUNK];
    for (int64_t i = first; i < last; i += CHUNK) {
        const int64_t count = min_i64(CHUNK, last - i);
        row_load_f32(row, type, x, i, count);
        sum += row_squares(row, count);
    }
    return sum;
}

OMP_LAUNCH(global_norm)
{
    const bsk_global_norm_params *p = prepared->problem->params;
    const bsk_global_norm_args *a = args;
    const double scale = a->grad_scale != 0 ? a->grad_scale : 1;
    const int64_t elements = element_count(&p->x), pieces = bski_ceil_div(elements, PIECE);
    double *work = bsk_mem_address(a->workspace), square = 0;
    float *sum = bsk_mem_address(a->sum);

#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t i = 0; i < pieces * p->pairs; i++) {
        const int64_t first = i % pieces * PIECE;
        work[i] = piece_squares(p->x.dtype, bsk_mem_address(a->x[i / pieces]), first,
                                min_i64(elements, first + PIECE));
    }
    for (int64_t i = 0; i < pieces * p->pairs; i++)
        square += work[i];
    *sum = (float)(square * scale * scale + (a->beta != 0 ? a->beta * (double)*sum : 0));
    const double root = sqrt((double)*sum);
    if (p->norm.dtype != BSK_NONE)
        *(float *)bsk_mem_address(a->norm) = (float)root;
    if (p->norm_scale.dtype != BSK_NONE)
        *(float *)bsk_mem_address(a->norm_scale) = !isfinite(root) || root == 0 ? 0
                                                   : a->clip > 0 && root > a->clip
                                                       ? (float)(a->clip / root)
                                                       : 1;
    return BSK_OK;
}

/* --- adafactor -------------------------------------------------------------------------------- */

/* Rows of a band, and how many bands, about. */
enum { FACTOR_ROWS = 32, FACTOR_BANDS = 64 };

OMP_DECLARE(adafactor);

OMP_ACCEPT(adafactor)
{
    const bsk_adafactor_params *p = problem->params;
    (void)props;
    return is_narrow(&p->param) && is_narrow(&p->grad) ? BSK_ACCEPT : BSK_REFUSE_DTYPE;
}

/* The matrix in bands of rows and parts of columns, and the workspace: the factors by which rows
 * and columns of the gradient are multiplied, and sums of squares. */
typedef struct factored {
    int64_t rows, columns, band, bands, parts;
    double *square;                /* [bands, parts] of the update */
    float *by_row, *by_column;     /* [rows], [columns] */
    float *row_sums, *column_sums; /* [rows, parts], [bands, columns] */
} factored;

static factored factored_of(const bsk_adafactor_params *p)
{
    const bool matrix = p->param.rank == 2;
    factored f = {.rows = matrix ? p->param.dims[0] : 1, .columns = p->param.dims[matrix ? 1 : 0]};
    f.band = max_i64(FACTOR_ROWS, bski_ceil_div(f.rows, FACTOR_BANDS));
    f.bands = bski_ceil_div(f.rows, f.band);
    f.parts = bski_ceil_div(f.columns, CHUNK);
    return f;
}

OMP_PREPARE(adafactor)
{
    const factored f = factored_of(prepared->problem->params);
    size_t rows, columns, squares;
    (void)device;
    if (!bski_mul_size((size_t)f.rows, (size_t)(f.parts + 1) * sizeof(float), &rows) ||
        !bski_mul_size((size_t)f.columns, (size_t)(f.bands + 1) * sizeof(float), &columns) ||
        !bski_mul_size((size_t)f.bands, (size_t)f.parts * sizeof(double), &squares) ||
        !bski_add_size(rows, columns, &rows) ||
        !bski_add_size(rows, squares, &prepared->workspace_bytes))
        return BSK_E_UNSUPPORTED;
    return BSK_OK;
}

static void factored_place(factored *f, bsk_mem workspace)
{
    f->square = bsk_mem_address(workspace);
    f->by_row = (float *)(f->square + f->bands * f->parts);
    f->by_column = f->by_row + f->rows;
    f->row_sums = f->by_column + f->columns;
    f->column_sums = f->row_sums + f->rows * f->parts;
}

/* Sums of squares over the rows and the columns of piece i. */
static void factored_sums(const factored *f, bsk_dtype type, const void *grad, float scale,
                          int64_t i)
{
    const int64_t band = i / f->parts, part = i % f->parts, first = part * CHUNK;
    const int64_t count = min_i64(CHUNK, f->columns - first);
    float *restrict sums = f->column_sums + band * f->columns + first;
    float g[CHUNK];
    memset(sums, 0, (size_t)count * sizeof *sums);
    for (int64_t r = band * f->band; r < min_i64(f->rows, (band + 1) * f->band); r++) {
        row_load_f32(g, type, grad, r * f->columns + first, count);
        for (int64_t k = 0; k < count; k++)
            g[k] *= scale;
        row_pad(g, count, 0);
        for (int64_t k = 0; k < count; k++)
            sums[k] += g[k] * g[k];
        f->row_sums[r * f->parts + part] = row_dot(g, g, count);
    }
}

static void decay_into(float *moment, double decay, double value)
{
    *moment = (float)(decay * (double)*moment + (1 - decay) * value);
}

/* The moments and from them the factors of the update. */
static void factored_moments(const factored *f, double decay, double eps, float *column, float *row)
{
    double mean = 0;
    for (int64_t c = 0; c < f->columns; c++) {
        double sum = 0;
        for (int64_t band = 0; band < f->bands; band++)
            sum += (double)f->column_sums[band * f->columns + c];
        decay_into(&column[c], decay, sum / (double)f->rows + eps);
        f->by_column[c] = (float)(1 / sqrt((double)column[c]));
    }
    for (int64_t r = 0; row && r < f->rows; r++) {
        double sum = 0;
        for (int64_t part = 0; part < f->parts; part++)
            sum += (double)f->row_sums[r * f->parts + part];
        decay_into(&row[r], decay, sum / (double)f->columns + eps);
        mean += (double)row[r] / (double)f->rows;
    }
    for (int64_t r = 0; r < f->rows; r++)
        f->by_row[r] = row ? (float)sqrt(mean / (double)row[r]) : 1;
}

/* Piece i of the update: its sum of squares, or, with a rate, the step itself. */
static double factored_update(const factored *f, bsk_dtype type, const void *grad, float scale,
                              int64_t i, float *param, float rate)
{
    const int64_t band = i / f->parts, first = i % f->parts * CHUNK;
    const int64_t count = min_i64(CHUNK, f->columns - first);
    const float *restrict by_column = f->by_column + first;
    double square = 0;
    float g[CHUNK];
    for (int64_t r = band * f->band; r < min_i64(f->rows, (band + 1) * f->band); r++) {
        const float by_row = f->by_row[r];
        row_load_f32(g, type, grad, r * f->columns + first, count);
        for (int64_t k = 0; k < count; k++)
            g[k] = g[k] * scale * by_row * by_column[k];
        row_pad(g, count, 0);
        if (!param)
            square += (double)row_dot(g, g, count);
        for (int64_t k = 0; param && k < count; k++)
            param[r * f->columns + first + k] -= rate * g[k];
    }
    return square;
}

OMP_LAUNCH(adafactor)
{
    const bsk_adafactor_params *p = prepared->problem->params;
    const bsk_adafactor_args *a = args;
    const void *grad = bsk_mem_address(a->grad);
    const bool counted = p->steps.dtype != BSK_NONE; /* on the device */
    const int64_t before = counted ? *(const int64_t *)bsk_mem_address(a->steps) : 0;
    const double step = (double)a->step + (double)before;
    const double log_beta2 = log(p->beta2); /* 1 - beta2^step would cancel */
    const double decay = p->beta2 * expm1(step * log_beta2) / expm1((step + 1) * log_beta2);
    double norm = 1, square = 0;
    if (p->norm_scale.dtype != BSK_NONE)
        norm = (double)*(const float *)bsk_mem_address(a->norm_scale);
    const float scale = (float)((a->grad_scale != 0 ? a->grad_scale : 1) * norm);
    factored f = factored_of(p);
    if (norm == 0 || !isfinite(norm) || f.rows == 0 || f.columns == 0)
        return BSK_OK;
    factored_place(&f, a->workspace);

#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t i = 0; i < f.bands * f.parts; i++)
        factored_sums(&f, p->grad.dtype, grad, scale, i);
    factored_moments(&f, decay, p->eps, bsk_mem_address(a->col),
                     p->row.dtype != BSK_NONE ? bsk_mem_address(a->row) : NULL);
#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t i = 0; i < f.bands * f.parts; i++)
        f.square[i] = factored_update(&f, p->grad.dtype, grad, scale, i, NULL, 0);
    for (int64_t i = 0; i < f.bands * f.parts; i++)
        square += f.square[i];
    const double rms = sqrt(square / ((double)f.rows * (double)f.columns));
    const float rate = (float)(a->lr / fmax(1, rms / p->clip));
#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t i = 0; i < f.bands * f.parts; i++)
        factored_update(&f, p->grad.dtype, grad, scale, i, bsk_mem_address(a->param), rate);
    return BSK_OK;
}
