/* Reference entries of matmul.h. matmul, matmul_dgrad and dds arrive here as dsd, matmul_wgrad as
 * sdd. */
#include "ref.h"

/* Products are formed a tile at a time, each element's terms in their order. */
enum { TILE = 32 };

static int64_t tile_extent(int64_t size, int64_t from)
{
    return size - from < TILE ? size - from : TILE;
}

/* sum[i][j] += x[i] * y[j] */
static void tile_add(double sum[TILE][TILE], int64_t rows, int64_t cols, const double *restrict x,
                     const double *restrict y)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            sum[i][j] += x[i] * y[j];
}

/* The blocks of op(S) by block row: the layout's rows, or its columns where S is transposed. */
typedef struct op_lists {
    const int64_t *start;      /* [heads][grid + 1] */
    const int32_t *col, *slot; /* by entry */
    int32_t grid;
    int32_t block_rows, block_cols;
    int64_t cols;
    bool transpose;
} op_lists;

static op_lists lists_of(const bsk_layout_tables *t, bool transpose)
{
    if (transpose)
        return (op_lists){t->col_start,  t->col_row,    t->col_slot, t->grid_cols,
                          t->block_cols, t->block_rows, t->rows,     true};
    return (op_lists){t->row_start,  t->row_col,    t->row_slot, t->grid_rows,
                      t->block_rows, t->block_cols, t->cols,     false};
}

/* (op(S) B) from [i][j] on, of one head and within a block row: s [nnz, r, c], b [J, n]. */
static void dsd_tile(const op_lists *l, const ref_view *s, const ref_view *b, const ref_view *gate,
                     int64_t head, int64_t i, int64_t rows, int64_t j, int64_t cols,
                     double sum[TILE][TILE])
{
    const int64_t *start = l->start + head * (l->grid + 1) + i / l->block_rows;
    const int64_t along_row = s->stride[l->transpose ? 1 : 2];
    const int64_t along_col = s->stride[l->transpose ? 2 : 1];
    memset(sum, 0, sizeof(double[TILE][TILE]));
    for (int64_t e = start[0]; e < start[1]; e++) {
        const double g = view_given(gate) ? view_get1(gate, l->slot[e]) : 1;
        const int64_t width = block_extent(l->cols, l->col[e], l->block_cols);
        const int64_t block = s->base + l->slot[e] * s->stride[0] + i % l->block_rows * along_col;
        double part[TILE][TILE] = {{0}}, w[TILE], x[TILE];
        if (g == 0)
            continue;
        for (int64_t k = 0; k < width; k++) {
            const int64_t row = (int64_t)l->col[e] * l->block_cols + k;
            view_line(s, block + k * along_row, along_col, rows, w);
            view_line(b, b->base + row * b->stride[0] + j * b->stride[1], b->stride[1], cols, x);
            tile_add(part, rows, cols, w, x);
        }
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++)
                sum[r][c] += g * part[r][c];
    }
}

/* What follows a sum takes it in the type of the arithmetic: that of exact integers is f32. */
static double rounded_sum(const bsk_tensor *operand, double sum)
{
    return operand->dtype == BSK_I8 ? (float)sum : sum;
}

/* A batched operand's member, or the operand itself where it is not batched. */
static ref_view batch_member(const bsk_tensor *tensor, bsk_mem mem, int32_t plain_rank, int64_t m)
{
    ref_view v = view_of(tensor, mem);
    return tensor->rank > plain_rank ? view_sub(&v, m) : v;
}

/* Member m of the groups of a block array; one group is shared by all. */
static ref_view block_group(const bsk_tensor *tensor, bsk_mem mem, int64_t m)
{
    return batch_member(tensor, mem, 3, tensor->rank == 4 && tensor->dims[0] > 1 ? m : 0);
}

/* What multiplies the stored numbers of two operands. */
static double operand_scale(const bsk_tensor *x, bsk_mem x_mem, const bsk_tensor *y, bsk_mem y_mem)
{
    const ref_view scale[2] = {view_of(x, x_mem), view_of(y, y_mem)};
    double v = 1;
    for (int i = 0; i < 2; i++)
        v *= view_given(&scale[i]) ? view_get1(&scale[i], 0) : 1;
    return v;
}

static int64_t batch_count(const bsk_tensor *tensor)
{
    return tensor->rank == 3 ? tensor->dims[0] : 1;
}

/* What follows the sums, and the store. */
typedef struct dsd_epilogue {
    ref_view row_scale, col_scale, bias, residual, c;
    double alpha, beta;
    bsk_act act;
} dsd_epilogue;

static void dsd_store(const dsd_epilogue *d, int64_t i, int64_t j, double sum)
{
    double v = d->alpha * sum;
    if (view_given(&d->row_scale))
        v *= view_get1(&d->row_scale, i);
    if (view_given(&d->col_scale))
        v *= view_get1(&d->col_scale, j);
    if (view_given(&d->bias))
        v += view_get1(&d->bias, i);
    v = bski_ref_act(d->act, v + view_scaled2(&d->c, i, j, d->beta));
    if (view_given(&d->residual))
        v += view_get2(&d->residual, i, j);
    view_set2(&d->c, i, j, v);
}

REF_LAYOUT_OP(dsd, dsd)
{
    const op_lists lists = lists_of(t, p->transpose_s);
    const ref_view gate = view_of(&p->gate, a->gate);
    const int64_t rows = p->c.dims[p->c.rank - 2], cols = p->c.dims[p->c.rank - 1];
    dsd_epilogue d = {
        .row_scale = view_of(&p->row_scale, a->row_scale),
        .col_scale = view_of(&p->col_scale, a->col_scale),
        .bias = view_of(&p->bias, a->bias),
        .alpha = a->alpha * operand_scale(&p->s_scale, a->s_scale, &p->b_scale, a->b_scale),
        .beta = a->beta,
        .act = p->act,
    };
    double sum[TILE][TILE];

    for (int64_t m = 0; m < batch_count(&p->c); m++) {
        const ref_view s = block_group(&p->s, a->s, m / t->heads);
        const ref_view b = batch_member(&p->b, a->b, 2, m);
        d.c = batch_member(&p->c, a->c, 2, m);
        d.residual = batch_member(&p->residual, a->residual, 2, m);
        for (int64_t i = 0, height; i < rows; i += height) {
            const int64_t left = lists.block_rows - i % lists.block_rows;
            height = tile_extent(left < rows - i ? left : rows - i, 0);
            for (int64_t j = 0; j < cols; j += TILE) {
                const int64_t width = tile_extent(cols, j);
                dsd_tile(&lists, &s, &b, &gate, m % t->heads, i, height, j, width, sum);
                for (int64_t r = 0; r < height; r++)
                    for (int64_t c = 0; c < width; c++)
                        dsd_store(&d, i + r, j + c, rounded_sum(&p->s, sum[r][c]));
            }
        }
    }
}

/* The members of the batch that contribute to block array member `group` of head `head`. */
typedef struct batch_range {
    int64_t first, last, step;
} batch_range;

static batch_range batch_of(const bsk_sdd_params *p, int64_t heads, int64_t head, int64_t group)
{
    int64_t groups = p->s.rank == 4 ? p->s.dims[0] : 1;
    if (groups > 1)
        return (batch_range){group * heads + head, group * heads + head + 1, heads};
    return (batch_range){head, batch_count(&p->a), heads};
}

/* (sum over pairs and batch of A B) from [i][j] on. */
static void sdd_tile(const bsk_sdd_params *p, const bsk_sdd_args *args, batch_range range,
                     int64_t i, int64_t rows, int64_t j, int64_t cols, double sum[TILE][TILE])
{
    const int64_t n = p->a.dims[p->a.rank - 1];
    double x[TILE], y[TILE];
    memset(sum, 0, sizeof(double[TILE][TILE]));
    for (int32_t pair = 0; pair < p->pairs; pair++)
        for (int64_t m = range.first; m < range.last; m += range.step) {
            const ref_view a = batch_member(&p->a, args->a[pair], 2, m);
            const ref_view b = batch_member(&p->b, args->b[pair], 2, m);
            for (int64_t k = 0; k < n; k++) {
                view_line(&a, a.base + i * a.stride[0] + k * a.stride[1], a.stride[0], rows, x);
                view_line(&b, b.base + k * b.stride[0] + j * b.stride[1], b.stride[1], cols, y);
                tile_add(sum, rows, cols, x, y);
            }
        }
}

/* One kept block, in every group; returns the sum of (A B) o W over it. */
static double sdd_block(const bsk_layout_tables *t, const bsk_sdd_params *p, const bsk_sdd_args *a,
                        int64_t head, int64_t slot, double gate)
{
    double dot = 0;
    const bool skip = p->gate_mode == BSK_GATE_SKIP && gate == 0;
    /* a gate of 0 gives 0 even where the product is not finite */
    const bool zero = gate == 0 && p->gate_mode != BSK_GATE_IGNORE;
    const double scale = (p->gate_mode == BSK_GATE_SCALE ? gate : 1) *
                         operand_scale(&p->a_scale, a->a_scale, &p->b_scale, a->b_scale);
    const int64_t groups = p->s.rank == 4 ? p->s.dims[0] : 1;
    const int64_t row = (int64_t)t->slot_row[slot] * t->block_rows, height = slot_height(t, slot);
    const int64_t col = (int64_t)t->slot_col[slot] * t->block_cols, width = slot_width(t, slot);
    double sum[TILE][TILE];

    for (int64_t group = 0; group < groups; group++) {
        const ref_view s = block_group(&p->s, a->s, group);
        const ref_view w = block_group(&p->w, a->w, group);
        const batch_range range = batch_of(p, t->heads, head, group);
        for (int64_t i = 0; i < height; i += TILE)
            for (int64_t j = 0; j < width; j += TILE) {
                const int64_t rows = tile_extent(height, i), cols = tile_extent(width, j);
                if (!skip)
                    sdd_tile(p, a, range, row + i, rows, col + j, cols, sum);
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t c = 0; c < cols; c++) {
                        const double value = skip ? 0 : rounded_sum(&p->a, sum[r][c]);
                        if (p->dgate.dtype != BSK_NONE && !skip)
                            dot += value * view_get3(&w, slot, i + r, j + c);
                        const double v = zero ? 0 : a->alpha * value * scale;
                        view_set3(&s, slot, i + r, j + c,
                                  v + view_scaled3(&s, slot, i + r, j + c, a->beta));
                    }
            }
    }
    return dot;
}

/* bsum[j] = alpha * sum over pairs, batch and n of b + beta * bsum[j]. */
static void sdd_column_sums(const bsk_sdd_params *p, const bsk_sdd_args *a, const ref_view *bsum)
{
    const int64_t n = p->b.dims[p->b.rank - 2], cols = p->b.dims[p->b.rank - 1];
    const ref_view scale = view_of(&p->b_scale, a->b_scale);
    const double alpha = a->alpha * (view_given(&scale) ? view_get1(&scale, 0) : 1);
    for (int64_t j = 0; j < cols; j++) {
        double sum = 0;
        for (int32_t pair = 0; pair < p->pairs; pair++)
            for (int64_t m = 0; m < batch_count(&p->b); m++) {
                const ref_view b = batch_member(&p->b, a->b[pair], 2, m);
                for (int64_t k = 0; k < n; k++)
                    sum += view_get2(&b, k, j);
            }
        view_set1(bsum, j, alpha * sum + view_scaled1(bsum, j, a->beta));
    }
}

REF_LAYOUT_OP(sdd, sdd)
{
    const ref_view gate = view_of(&p->gate, a->gate), dgate = view_of(&p->dgate, a->dgate);
    const ref_view bsum = view_of(&p->bsum, a->bsum);

    for (int64_t head = 0; head < t->heads; head++)
        for (int64_t slot = t->head_start[head]; slot < t->head_start[head + 1]; slot++) {
            double g = view_given(&gate) ? view_get1(&gate, slot) : 1;
            double dot = sdd_block(t, p, a, head, slot, g);
            if (view_given(&dgate))
                view_set1(&dgate, slot, a->alpha * dot + view_scaled1(&dgate, slot, a->beta));
        }
    if (view_given(&bsum))
        sdd_column_sums(p, a, &bsum);
}

/* The norm of features first .. first + count - 1 of row n, in the type of the arithmetic. */
static double feature_norm(const ref_view *x, bsk_norm norm, int64_t n, int64_t first,
                           int64_t count)
{
    double max = 0, squares = 0;
    for (int64_t f = first; f < first + count; f++) {
        double v = fabs(view_get2(x, n, f));
        if (v > max || v != v)
            max = v;
        squares += v * v;
    }
    double value = norm == BSK_NORM_MAX ? max : sqrt(squares);
    return x->dtype == BSK_F64 ? value : (float)value;
}

REF_OP(reduced_wgrad, reduced_wgrad)
{
    const ref_view g = view_of(&p->g, a->g);
    const int64_t rows = rows_count(&p->x, p->axis);
    const int64_t in = features_count(&p->x, p->axis), out = features_count(&p->dy, p->axis);

    for (int64_t i = 0; i < p->g.dims[0]; i++)
        for (int64_t j = 0; j < p->g.dims[1]; j++) {
            double sum = 0;
            for (int32_t pair = 0; pair < p->pairs; pair++) {
                const ref_view x = view_rows(&p->x, a->x[pair], p->axis);
                const ref_view dy = view_rows(&p->dy, a->dy[pair], p->axis);
                for (int64_t n = 0; n < rows; n++) {
                    double product = feature_norm(&x, p->norm, n, i * p->block_rows,
                                                  block_extent(in, i, p->block_rows)) *
                                     feature_norm(&dy, p->norm, n, j * p->block_cols,
                                                  block_extent(out, j, p->block_cols));
                    /* finite in the arithmetic's type, which every backend can tell */
                    if (isfinite(p->x.dtype == BSK_F64 ? product : (float)product))
                        sum += product;
                }
            }
            view_set2(&g, i, j, a->alpha * sum + view_scaled2(&g, i, j, a->beta));
        }
}
