/* Reference entries of training.h. */
#include "ref.h"

/* Whether a step is to be made. */
static bool goes_on(double norm_scale)
{
    return norm_scale != 0 && isfinite(norm_scale);
}

typedef struct factored {
    ref_view param, grad, col, row;
    double scale, decay, eps;
    double row_mean; /* of row, after its update */
} factored;

/* Sum over one row or column of the squares that feed the second moment, as a mean. */
static double square_mean(const factored *f, int64_t first, int64_t step, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        const double g = view_get1(&f->grad, first + i * step) * f->scale;
        sum += g * g + f->eps;
    }
    return sum / (double)count;
}

static void decay_into(const ref_view *moment, int64_t i, double decay, double value)
{
    view_set1(moment, i, decay * view_get1(moment, i) + (1 - decay) * value);
}

/* The update of one element before it is clipped. */
static double factored_step(const factored *f, int64_t r, int64_t c, int64_t columns)
{
    const double g = view_get1(&f->grad, r * columns + c) * f->scale;
    const double col = view_get1(&f->col, c);
    const double row = view_given(&f->row) ? view_get1(&f->row, r) / f->row_mean : 1;
    return g / sqrt(row) / sqrt(col);
}

REF_OP(adafactor, adafactor)
{
    const ref_view norm_scale = view_of(&p->norm_scale, a->norm_scale);
    const ref_view steps = view_of(&p->steps, a->steps);
    const double norm = view_given(&norm_scale) ? view_get1(&norm_scale, 0) : 1;
    const double before = view_given(&steps) ? (double)view_get_int(&steps, 0) : 0;
    const bool matrix = p->param.rank == 2;
    const int64_t rows = matrix ? p->param.dims[0] : 1, columns = p->param.dims[matrix ? 1 : 0];
    const double step = (double)a->step + before, count = (double)rows * (double)columns;
    factored f = {view_flat(&p->param, a->param),
                  view_flat(&p->grad, a->grad),
                  view_flat(&p->col, a->col),
                  view_flat(&p->row, a->row),
                  .scale = (a->grad_scale != 0 ? a->grad_scale : 1) * norm,
                  .eps = p->eps};
    if (!goes_on(norm) || count == 0)
        return;
    const double log_beta2 = log(p->beta2); /* 1 - beta2^step would cancel */
    f.decay = p->beta2 * expm1(step * log_beta2) / expm1((step + 1) * log_beta2);

    for (int64_t c = 0; c < columns; c++)
        decay_into(&f.col, c, f.decay, square_mean(&f, c, columns, rows));
    for (int64_t r = 0; matrix && r < rows; r++) {
        decay_into(&f.row, r, f.decay, square_mean(&f, r * columns, 1, columns));
        f.row_mean += view_get1(&f.row, r) / (double)rows;
    }
    double square = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            square += pow(factored_step(&f, r, c, columns), 2);
    const double rms = sqrt(square / count), rate = a->lr / fmax(1, rms / p->clip);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            const int64_t i = r * columns + c;
            view_set1(&f.param, i,
                      view_get1(&f.param, i) - rate * factored_step(&f, r, c, columns));
        }
}

REF_OP(ema, ema)
{
    const ref_view average = view_flat(&p->average, a->average);
    const ref_view param = view_flat(&p->param, a->param), gate = view_of(&p->gate, a->gate);
    const int64_t count = shape_count(&p->average);
    for (int64_t i = 0; i < count; i++) {
        const double old = view_get1(&average, i);
        if (view_given(&gate) && view_get1(&gate, i / (count / p->average.dims[0])) == 0)
            continue;
        view_set1(&average, i, old - (1 - a->decay) * (old - view_get1(&param, i)));
    }
}

REF_OP(global_norm, global_norm)
{
    const ref_view sum = view_of(&p->sum, a->sum), norm = view_of(&p->norm, a->norm);
    const ref_view norm_scale = view_of(&p->norm_scale, a->norm_scale);
    const double scale = a->grad_scale != 0 ? a->grad_scale : 1;
    const int64_t count = shape_count(&p->x);
    double square = 0;
    for (int32_t n = 0; count && n < p->pairs; n++) {
        const ref_view x = view_flat(&p->x, a->x[n]);
        for (int64_t i = 0; i < count; i++)
            square += pow(view_get1(&x, i) * scale, 2);
    }
    view_set1(&sum, 0, square + view_scaled1(&sum, 0, a->beta));
    const double root = sqrt(view_get1(&sum, 0));
    if (view_given(&norm))
        view_set1(&norm, 0, root);
    if (view_given(&norm_scale))
        view_set1(&norm_scale, 0,
                  !isfinite(root) || root == 0    ? 0
                  : a->clip > 0 && root > a->clip ? a->clip / root
                                                  : 1);
}

REF_OP(loss_scale, loss_scale)
{
    const ref_view scale = view_of(&p->scale, a->scale), good = view_of(&p->good, a->good);
    const ref_view norm_scale = view_of(&p->norm_scale, a->norm_scale);
    const ref_view steps = view_of(&p->steps, a->steps), norm = view_of(&p->norm, a->norm);
    const double old = view_get1(&scale, 0);
    if (view_given(&norm) && view_get1(&norm, 0) == 0)
        return;
    if (!goes_on(view_get1(&norm_scale, 0))) {
        view_set1(&scale, 0, fmax(old * p->backoff, p->low));
        store_index(BSK_I32, good.data, 0, 0);
        return;
    }
    const int64_t streak = view_get_int(&good, 0) + 1;
    if (view_given(&steps))
        store_index(BSK_I64, steps.data, 0, view_get_int(&steps, 0) + 1);
    if (streak >= p->interval)
        view_set1(&scale, 0, fmin(old * p->growth, p->high));
    store_index(BSK_I32, good.data, 0, streak >= p->interval ? 0 : streak);
}
