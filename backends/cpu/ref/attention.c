/* Reference entries of attention.h. */
#include <common/checked.h>

#include "decode.h"

/* The maximum and the sum of exponentials of a row, met one score at a time. */
typedef struct row_sum {
    double max, sum;
} row_sum;

static double row_lse(const row_sum *r)
{
    return r->max == -INFINITY ? -INFINITY : r->max + log(r->sum);
}

static void row_max(row_sum *r, double score)
{
    if (score > r->max || score != score)
        r->max = score;
}

static double row_share(const row_sum *r, double score)
{
    return r->max == -INFINITY ? 0 : exp(score - r->max) / r->sum;
}

/* --- products --------------------------------------------------------------------------------- */

/* A block array [batch, heads / L, nnz, r, c] as the matrix of one block of query head h. */
static ref_view block_of(const bsk_tensor *tensor, bsk_mem mem, const bsk_layout_tables *t,
                         int64_t heads, int64_t b, int64_t h, int64_t slot)
{
    ref_view v = view_of(tensor, mem);
    v.base = b * v.stride[0] + h % (heads / t->heads) * v.stride[1] + slot * v.stride[2];
    v.stride[0] = v.stride[3];
    v.stride[1] = v.stride[4];
    return v;
}

/* [time, d] of one head of [batch, heads, time, d]. */
static ref_view head_of(const bsk_tensor *tensor, bsk_mem mem, int64_t b, int64_t h)
{
    const ref_view v = view_of(tensor, mem), member = view_sub(&v, b);
    return view_sub(&member, h);
}

static double dot(const ref_view *x, int64_t i, const ref_view *y, int64_t j, int64_t d)
{
    enum { PART = 64 };
    double sum = 0, line[2][PART];
    for (int64_t k = 0; k < d; k += PART) {
        const int64_t count = d - k < PART ? d - k : PART;
        view_line(x, x->base + i * x->stride[0] + k * x->stride[1], x->stride[1], count, line[0]);
        view_line(y, y->base + j * y->stride[0] + k * y->stride[1], y->stride[1], count, line[1]);
        for (int64_t e = 0; e < count; e++)
            sum += line[0][e] * line[1][e];
    }
    return sum;
}

/* The head of the layout of slot. */
static int64_t slot_head(const bsk_layout_tables *t, int64_t slot)
{
    int64_t head = 0;
    while (slot >= t->head_start[head + 1])
        head++;
    return head;
}

REF_LAYOUT_OP(attn_scores, attn_scores)
{
    const int64_t heads = p->q.dims[1], group = heads / t->heads, d = p->q.dims[3];
    for (int64_t b = 0; b < p->q.dims[0]; b++)
        for (int64_t slot = 0; slot < t->nnz; slot++)
            for (int64_t g = 0; g < group; g++) {
                const int64_t h = slot_head(t, slot) * group + g;
                const ref_view s = block_of(&p->s, a->s, t, heads, b, h, slot);
                const ref_view q = head_of(&p->q, a->q, b, h);
                const ref_view k = head_of(&p->k, a->k, b, h / (heads / p->k.dims[1]));
                for (int64_t i = 0; i < slot_height(t, slot); i++)
                    for (int64_t j = 0; j < slot_width(t, slot); j++) {
                        const int64_t row = (int64_t)t->slot_row[slot] * t->block_rows + i;
                        const int64_t col = (int64_t)t->slot_col[slot] * t->block_cols + j;
                        const int64_t qi = time_of(t->rows, p->interleave, row);
                        const int64_t kj = time_of(t->cols, p->interleave, col);
                        const bool there = qi < p->q.dims[2] && kj < p->k.dims[2];
                        const double x = there ? a->alpha * dot(&q, qi, &k, kj, d) : 0;
                        view_set2(&s, i, j, x + view_scaled2(&s, i, j, a->beta));
                    }
            }
}

/* (S V)[p][f] of query head h, or (S^T V)[p][f]: p is a row, or a column, of the layout. */
static double apply_element(const bsk_layout_tables *t, const bsk_attn_apply_params *p,
                            const bsk_attn_apply_args *a, int64_t heads, int64_t b, int64_t h,
                            int64_t line, int64_t f)
{
    const bool turned = p->transpose != 0;
    const int64_t v_heads = p->v.dims[1];
    const ref_view v = head_of(&p->v, a->v, b, turned ? h : h / (heads / v_heads));
    const int64_t grid = turned ? t->grid_cols : t->grid_rows;
    const int64_t side = turned ? t->block_cols : t->block_rows;
    const int64_t other = turned ? t->block_rows : t->block_cols;
    const int64_t others = turned ? t->rows : t->cols;
    const int64_t *start =
        (turned ? t->col_start : t->row_start) + h / (heads / t->heads) * (grid + 1) + line / side;
    double sum = 0;
    for (int64_t e = start[0]; e < start[1]; e++) {
        const int64_t block = turned ? t->col_row[e] : t->row_col[e];
        const ref_view s =
            block_of(&p->s, a->s, t, heads, b, h, turned ? t->col_slot[e] : t->row_slot[e]);
        for (int64_t k = 0; k < block_extent(others, block, other); k++) {
            const int64_t time = time_of(others, p->interleave, block * other + k);
            const double x = turned ? view_get2(&s, k, line % side) : view_get2(&s, line % side, k);
            if (time < p->v.dims[2])
                sum += x * view_get2(&v, time, f);
        }
    }
    return sum;
}

REF_LAYOUT_OP(attn_apply, attn_apply)
{
    const int64_t heads = p->transpose ? p->v.dims[1] : p->y.dims[1];
    const int64_t sum_heads = p->y.dims[1] > 0 ? heads / p->y.dims[1] : 0; /* of one head of y */
    const int64_t lines = p->transpose ? t->cols : t->rows;
    for (int64_t b = 0; b < p->y.dims[0]; b++)
        for (int64_t h = 0; h < p->y.dims[1]; h++) {
            const ref_view y = head_of(&p->y, a->y, b, h);
            for (int64_t line = 0; line < lines; line++) {
                const int64_t time = time_of(lines, p->interleave, line);
                for (int64_t f = 0; time < p->y.dims[2] && f < p->y.dims[3]; f++) {
                    double sum = 0;
                    for (int64_t g = 0; g < sum_heads; g++)
                        sum += apply_element(t, p, a, heads, b, h * sum_heads + g, line, f);
                    view_set2(&y, time, f, a->alpha * sum + view_scaled2(&y, time, f, a->beta));
                }
            }
        }
}

/* --- the softmax of stored scores ------------------------------------------------------------- */

static void softmax_row(const scoring *s, const query *q, const bsk_block_softmax_params *p,
                        const bsk_block_softmax_args *a)
{
    const bsk_layout_tables *t = s->t;
    row_sum r = {-INFINITY, 0};
    /* the maximum, the sum, the result */
    for (int pass = 0; pass < 3; pass++)
        for (int64_t e = q->first; e < q->end; e++) {
            const int64_t slot = t->row_slot[e], i = q->p % t->block_rows;
            const ref_view x = block_of(&p->x, a->x, t, s->heads, q->b, q->h, slot);
            const ref_view y = block_of(&p->y, a->y, t, s->heads, q->b, q->h, slot);
            for (int64_t j = 0; j < slot_width(t, slot); j++) {
                const int64_t c = (int64_t)t->row_col[e] * t->block_cols + j;
                const bool visible = is_visible(s, q, slot, c);
                const int64_t key = time_of(t->cols, s->interleave, c);
                const double score = visible ? score_of(s, q, key, view_get2(&x, i, j)) : -INFINITY;
                if (pass == 0 && visible)
                    row_max(&r, score);
                else if (pass == 1 && visible)
                    r.sum += exp(score - r.max);
                else if (pass == 2)
                    view_set2(&y, i, j, visible ? row_share(&r, score) : 0);
            }
        }
    if (p->lse.dtype != BSK_NONE) {
        const ref_view lse = view_of(&p->lse, a->lse);
        view_set3(&lse, q->b, q->h, q->p, row_lse(&r));
    }
}

REF_LAYOUT_OP(block_softmax, block_softmax)
{
    const int64_t heads = p->x.dims[1] * t->heads;
    const scoring s = SCORING(t, p, a, heads, t->rows, t->cols, a->scale != 0 ? a->scale : 1);
    for (int64_t b = 0; b < p->x.dims[0]; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t row = 0; row < t->rows; row++) {
                const query q = query_of(&s, b, h, row);
                softmax_row(&s, &q, p, a);
            }
}

static void softmax_grad_row(const bsk_layout_tables *t, const query *q, const scoring *s,
                             const bsk_block_softmax_grad_params *p,
                             const bsk_block_softmax_grad_args *a)
{
    double sum = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t e = q->first; e < q->end; e++) {
            const int64_t slot = t->row_slot[e], i = q->p % t->block_rows;
            const ref_view dy = block_of(&p->dy, a->dy, t, s->heads, q->b, q->h, slot);
            const ref_view y = block_of(&p->y, a->y, t, s->heads, q->b, q->h, slot);
            const ref_view dx = block_of(&p->dx, a->dx, t, s->heads, q->b, q->h, slot);
            const ref_view x = block_of(&p->x, a->x, t, s->heads, q->b, q->h, slot);
            for (int64_t j = 0; j < slot_width(t, slot); j++) {
                const double share = view_get2(&y, i, j);
                if (pass == 0) {
                    sum += share != 0 ? view_get2(&dy, i, j) * share : 0;
                    continue;
                }
                const double slope = score_slope(s, view_given(&x) ? view_get2(&x, i, j) : 0);
                const double d = share != 0 ? (view_get2(&dy, i, j) - sum) * share * slope : 0;
                view_set2(&dx, i, j, a->alpha * d + view_scaled2(&dx, i, j, a->beta));
            }
        }
}

REF_LAYOUT_OP(block_softmax_grad, block_softmax_grad)
{
    const scoring s = {.t = t,
                       .interleave = 1,
                       .q_time = t->rows,
                       .k_time = t->cols,
                       .heads = p->dy.dims[1] * t->heads,
                       .softcap = p->softcap,
                       .scale = a->scale != 0 ? a->scale : 1};
    for (int64_t b = 0; b < p->dy.dims[0]; b++)
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t row = 0; row < t->rows; row++) {
                const query q = query_of(&s, b, h, row);
                softmax_grad_row(t, &q, &s, p, a);
            }
}

/* --- attention -------------------------------------------------------------------------------- */

/* Room for `rows` of numbers, in f64. */
static bsk_status ask_workspace(bsk_prepared *prepared, int64_t numbers)
{
    return bski_mul_size((size_t)numbers, sizeof(double), &prepared->workspace_bytes) ? BSK_OK
                                                                                      : BSK_E_NOMEM;
}

BSKI_CPU_PREPARE(ref_attention)
{
    (void)device;
    const bsk_attention_params *p = prepared->problem->params;
    return ask_workspace(prepared, p->v.dims[3]);
}

static void attention_row(const scoring *s, const query *q, const bsk_attention_params *p,
                          const bsk_attention_args *a, double *o)
{
    const bsk_layout_tables *t = s->t;
    const int64_t d = p->q.dims[3], dv = p->v.dims[3];
    const int64_t kv_head = q->h / (s->heads / p->k.dims[1]);
    const ref_view qs = head_of(&p->q, a->q, q->b, q->h), out = head_of(&p->o, a->o, q->b, q->h);
    const ref_view k = head_of(&p->k, a->k, q->b, kv_head), v = head_of(&p->v, a->v, q->b, kv_head);
    const drop dropout = DROP_OF(p, a);
    row_sum r = {-INFINITY, 0};
    for (int64_t f = 0; f < dv; f++)
        o[f] = 0;
    for (int pass = 0; pass < 3; pass++)
        for (int64_t e = q->first; e < q->end; e++) {
            const int64_t slot = t->row_slot[e], i = q->p % t->block_rows;
            for (int64_t j = 0; j < slot_width(t, slot); j++) {
                const int64_t c = (int64_t)t->row_col[e] * t->block_cols + j;
                const int64_t key = time_of(t->cols, s->interleave, c);
                if (!is_visible(s, q, slot, c))
                    continue;
                const double score = score_of(s, q, key, dot(&qs, q->time, &k, key, d));
                if (pass == 0)
                    row_max(&r, score);
                else if (pass == 1)
                    r.sum += exp(score - r.max);
                else {
                    const double share =
                        row_share(&r, score) * drop_factor(&dropout, t, s->heads, q, slot, i, j);
                    for (int64_t f = 0; f < dv; f++)
                        o[f] += share * view_get2(&v, key, f);
                }
            }
        }
    for (int64_t f = 0; f < dv; f++)
        view_set2(&out, q->time, f, o[f]);
    if (p->lse.dtype != BSK_NONE) {
        const ref_view lse = view_of(&p->lse, a->lse);
        view_set3(&lse, q->b, q->h, q->time, row_lse(&r));
    }
}

REF_LAYOUT_OP(attention, attention)
{
    const scoring s = SCORING(t, p, a, p->q.dims[1], p->q.dims[2], p->k.dims[2],
                              scale_of(a->scale, p->q.dims[3]));
    double *o = bsk_mem_address(a->workspace);
    for (int64_t b = 0; b < p->q.dims[0]; b++)
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t row = 0; row < t->rows; row++) {
                const query q = query_of(&s, b, h, row);
                if (q.time < s.q_time)
                    attention_row(&s, &q, p, a, o);
            }
}

/* The views of one query head and of its key/value head. */
typedef struct grad_head {
    ref_view q, k, v, o, dout, lse; /* lse [time] */
} grad_head;

static grad_head grad_head_of(const bsk_attention_grad_params *p, const bsk_attention_grad_args *a,
                              int64_t b, int64_t h)
{
    const int64_t kv_head = h / (p->q.dims[1] / p->k.dims[1]);
    return (grad_head){head_of(&p->q, a->q, b, h),       head_of(&p->k, a->k, b, kv_head),
                       head_of(&p->v, a->v, b, kv_head), head_of(&p->o, a->o, b, h),
                       head_of(&p->dout, a->dout, b, h), head_of(&p->lse, a->lse, b, h)};
}

/* What each row's gradients of products have in common: sum(dout * o), by head and time. */
static void grad_rests(const bsk_attention_grad_params *p, const bsk_attention_grad_args *a,
                       int64_t b, double *rest)
{
    for (int64_t h = 0; h < p->q.dims[1]; h++) {
        const grad_head g = grad_head_of(p, a, b, h);
        for (int64_t time = 0; time < p->q.dims[2]; time++)
            *rest++ = dot(&g.dout, time, &g.o, time, p->v.dims[3]);
    }
}

/* One visible element: its probability after dropout, and the gradient of its product. rest: of its
 * row. */
typedef struct grad_element {
    double p, dx;
} grad_element;

static grad_element grad_of(const scoring *s, const query *q, const bsk_attention_grad_params *p,
                            const bsk_attention_grad_args *a, const grad_head *g, double rest,
                            int64_t slot, int64_t c)
{
    const bsk_layout_tables *t = s->t;
    const drop dropout = DROP_OF(p, a);
    const int64_t key = time_of(t->cols, s->interleave, c), d = p->q.dims[3], dv = p->v.dims[3];
    const double lse = view_get1(&g->lse, q->time);
    if (lse == -INFINITY || !is_visible(s, q, slot, c))
        return (grad_element){0, 0};
    const double x = dot(&g->q, q->time, &g->k, key, d);
    const double share = exp(score_of(s, q, key, x) - lse);
    const double factor =
        drop_factor(&dropout, t, s->heads, q, slot, q->p % t->block_rows, c % t->block_cols);
    const double dp = dot(&g->dout, q->time, &g->v, key, dv);
    return (grad_element){factor * share, share * (factor * dp - rest) * score_slope(s, x)};
}

BSKI_CPU_PREPARE(ref_attention_grad)
{
    (void)device;
    const bsk_attention_grad_params *p = prepared->problem->params;
    return ask_workspace(prepared, p->q.dims[1] * p->q.dims[2] + p->q.dims[3] + p->v.dims[3]);
}

static void grad_store(const ref_view *to, int64_t time, const double *sum, int64_t count,
                       const bsk_attention_grad_args *a)
{
    for (int64_t f = 0; f < count; f++)
        view_set2(to, time, f, a->alpha * sum[f] + view_scaled2(to, time, f, a->beta));
}

/* dQ of one row. */
static void grad_query(const scoring *s, const query *q, const bsk_attention_grad_params *p,
                       const bsk_attention_grad_args *a, const double *rest, double *sum)
{
    const bsk_layout_tables *t = s->t;
    const int64_t d = p->q.dims[3];
    const grad_head g = grad_head_of(p, a, q->b, q->h);
    const ref_view dq = head_of(&p->dq, a->dq, q->b, q->h);
    for (int64_t f = 0; f < d; f++)
        sum[f] = 0;
    for (int64_t e = q->first; e < q->end; e++)
        for (int64_t j = 0; j < slot_width(t, t->row_slot[e]); j++) {
            const int64_t c = (int64_t)t->row_col[e] * t->block_cols + j;
            const grad_element x =
                grad_of(s, q, p, a, &g, rest[q->h * s->q_time + q->time], t->row_slot[e], c);
            for (int64_t f = 0; f < d && x.dx != 0; f++)
                sum[f] += x.dx * view_get2(&g.k, time_of(t->cols, s->interleave, c), f);
        }
    grad_store(&dq, q->time, sum, d, a);
}

/* dK and dV of one column from one query head, added to the sums. */
static void grad_key_add(const scoring *s, const bsk_attention_grad_params *p,
                         const bsk_attention_grad_args *a, const double *rest, int64_t b, int64_t h,
                         int64_t c, double *dk, double *dv)
{
    const bsk_layout_tables *t = s->t;
    const grad_head g = grad_head_of(p, a, b, h);
    const int64_t *start =
        t->col_start + h / (s->heads / t->heads) * ((int64_t)t->grid_cols + 1) + c / t->block_cols;
    for (int64_t e = start[0]; e < start[1]; e++)
        for (int64_t i = 0; i < slot_height(t, t->col_slot[e]); i++) {
            const query q = query_of(s, b, h, (int64_t)t->col_row[e] * t->block_rows + i);
            if (!q.live)
                continue;
            const grad_element x =
                grad_of(s, &q, p, a, &g, rest[h * s->q_time + q.time], t->col_slot[e], c);
            for (int64_t f = 0; f < p->q.dims[3] && x.dx != 0; f++)
                dk[f] += x.dx * view_get2(&g.q, q.time, f);
            for (int64_t f = 0; f < p->v.dims[3] && x.p != 0; f++)
                dv[f] += x.p * view_get2(&g.dout, q.time, f);
        }
}

static void grad_keys(const scoring *s, const bsk_attention_grad_params *p,
                      const bsk_attention_grad_args *a, const double *rest, int64_t b,
                      int64_t kv_head, double *sum)
{
    const bsk_layout_tables *t = s->t;
    const int64_t group = s->heads / p->k.dims[1], d = p->q.dims[3], width = d + p->v.dims[3];
    const ref_view dk = head_of(&p->dk, a->dk, b, kv_head);
    const ref_view dv = head_of(&p->dv, a->dv, b, kv_head);
    for (int64_t c = 0; c < t->cols; c++) {
        const int64_t key = time_of(t->cols, s->interleave, c);
        if (key >= s->k_time)
            continue;
        for (int64_t f = 0; f < width; f++)
            sum[f] = 0;
        for (int64_t g = 0; g < group; g++)
            grad_key_add(s, p, a, rest, b, kv_head * group + g, c, sum, sum + d);
        grad_store(&dk, key, sum, d, a);
        grad_store(&dv, key, sum + d, width - d, a);
    }
}

REF_LAYOUT_OP(attention_grad, attention_grad)
{
    const scoring s = SCORING(t, p, a, p->q.dims[1], p->q.dims[2], p->k.dims[2],
                              scale_of(a->scale, p->q.dims[3]));
    double *rest = bsk_mem_address(a->workspace), *sum = rest + s.heads * s.q_time;
    for (int64_t b = 0; b < p->q.dims[0]; b++) {
        grad_rests(p, a, b, rest);
        for (int64_t h = 0; p->dq.dtype != BSK_NONE && h < s.heads; h++)
            for (int64_t row = 0; row < t->rows; row++) {
                const query q = query_of(&s, b, h, row);
                if (q.time < s.q_time)
                    grad_query(&s, &q, p, a, rest, sum);
            }
        for (int64_t h = 0; p->dk.dtype != BSK_NONE && h < p->k.dims[1]; h++)
            grad_keys(&s, p, a, rest, b, h, sum);
    }
}

/* --- attention_decode ------------------------------------------------------------------------- */

BSKI_CPU_PREPARE(ref_attention_decode)
{
    (void)device;
    const bsk_attention_decode_params *p = prepared->problem->params;
    return ask_workspace(prepared, p->v.dims[3]);
}

static void decode_row(const decode *dec, const query *q, const bsk_attention_decode_params *p,
                       const bsk_attention_decode_args *a, double *o)
{
    const int64_t d = p->q.dims[3], dv = p->v.dims[3], list = q->time / dec->q_block;
    const int64_t kv_head = q->h / (dec->s.heads / p->k.dims[1]);
    const int64_t entries = decode_entries(dec, q->b, kv_head, list);
    const ref_view qs = head_of(&p->q, a->q, q->b, q->h), out = head_of(&p->o, a->o, q->b, q->h);
    row_sum r = {-INFINITY, 0};
    for (int64_t f = 0; f < dv; f++)
        o[f] = 0;
    for (int pass = 0; pass < 3; pass++)
        for (int64_t e = 0; e < entries; e++) {
            const int64_t block = decode_block(dec, q->b, kv_head, list, e);
            for (int64_t j = 0; block >= 0 && j < dec->block; j++) {
                const int64_t key = block * dec->block + j;
                const int64_t page = key < q->keys ? decode_page(dec, q->b, key) : -1;
                if (page < 0 || !decode_sees(dec, q, key))
                    continue;
                const ref_view k = head_of(&p->k, a->k, page, kv_head);
                const ref_view v = head_of(&p->v, a->v, page, kv_head);
                const int64_t at = key % dec->page;
                const double score = score_of(&dec->s, q, key, dot(&qs, q->time, &k, at, d));
                if (pass == 0)
                    row_max(&r, score);
                else if (pass == 1)
                    r.sum += exp(score - r.max);
                else
                    for (int64_t f = 0; f < dv; f++)
                        o[f] += row_share(&r, score) * view_get2(&v, at, f);
            }
        }
    for (int64_t f = 0; f < dv; f++)
        view_set2(&out, q->time, f, o[f]);
    if (p->lse.dtype != BSK_NONE) {
        const ref_view lse = view_of(&p->lse, a->lse);
        view_set3(&lse, q->b, q->h, q->time, row_lse(&r));
    }
}

REF_OP(attention_decode, attention_decode)
{
    const decode d = decode_of(p, a);
    double *o = bsk_mem_address(a->workspace);
    for (int64_t b = 0; b < p->q.dims[0]; b++)
        for (int64_t h = 0; h < d.s.heads; h++)
            for (int64_t i = 0; i < d.s.q_time; i++) {
                const query q = decode_query(&d, b, h, i);
                decode_row(&d, &q, p, a, o);
            }
}
