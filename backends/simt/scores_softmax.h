/* Kernels of the softmax of stored scores. The host's side (scores.c) includes this file without
 * SIMT_T for the structs of scalars. */
#ifdef SIMT_T
#include "lanes.h"

#include "rows.h"
#endif

#include "attention_rules.h"

#ifndef BSKI_SIMT_SCORES_SOFTMAX_H
#define BSKI_SIMT_SCORES_SOFTMAX_H

/* Where a score array lies: strides, and whether runs are aligned. */
typedef struct scores_view {
    i64 batch, group;
    i32 type, vector;
} scores_view;

/* Rows are numbered over batch, query heads and rows of the layout; `lanes` lanes take one. */
typedef struct block_softmax_arg {
    rules_arg rules;
    scores_view x, y;
    i64 rows;
    i32 grid_rows, lanes;
    i32 whole, plain; /* all elements are visible; and scores are scaled products */
} block_softmax_arg;

/* Of the rules only sizes, scale and softcap count. */
typedef struct block_softmax_grad_arg {
    rules_arg rules;
    scores_view dy, y, dx, x;
    i64 rows;
    i64 alpha, beta; /* NUM */
    i32 grid_rows, lanes;
} block_softmax_grad_arg;

#endif

#ifdef SIMT_T
/* A row of scores. */
typedef struct scores_line {
    i64 b;
    i32 h, p, in_block;
    i32 first, runs, per_block; /* its entries; runs of the row, and of one block */
} scores_line;

DEVICE scores_line scores_line_at(const rules_arg *r, i32 grid_rows, const GLOBAL i64 *start,
                                  i64 number, i64 rows, i32 vec)
{
    scores_line l;
    l.b = 0;
    l.h = l.p = l.in_block = l.first = l.runs = 0;
    l.per_block = (r->block_cols + vec - 1) / vec;
    if (number < rows) {
        const i64 member = number / r->rows;
        l.p = (i32)(number % r->rows);
        l.h = (i32)(member % r->heads);
        l.b = member / r->heads;
        l.in_block = l.p % r->block_rows;
        const i64 at = l.h / r->per_head * ((i64)grid_rows + 1) + l.p / r->block_rows;
        l.first = (i32)start[at];
        l.runs = (i32)(start[at + 1] - l.first) * l.per_block;
    }
    return l;
}

/* A run of a row: its first column in the layout and in its block. */
typedef struct scores_run {
    i64 slot;
    i32 col, in_block, count;
} scores_run;

DEVICE scores_run scores_run_at(const rules_arg *r, const scores_line *l, i32 run, i32 vec,
                                const GLOBAL i32 *col, const GLOBAL i32 *slot)
{
    const i32 entry = l->first + run / l->per_block;
    scores_run q;
    q.slot = slot[entry];
    q.in_block = run % l->per_block * vec;
    q.col = col[entry] * r->block_cols + q.in_block;
    q.count = r->block_cols - q.in_block < vec ? r->block_cols - q.in_block : vec;
    q.count = r->cols - q.col < q.count ? r->cols - q.col : q.count;
    return q;
}

DEVICE i64 scores_at(const scores_view *v, const rules_arg *r, const scores_line *l,
                     const scores_run *q)
{
    return l->b * v->batch + l->h % r->per_head * v->group +
           (q->slot * r->block_rows + l->in_block) * r->block_cols + q->in_block;
}

/* Makes scores of a run of products; returns a bit for each that is visible. */
DEVICE u32 NAME(scores_make)(const block_softmax_arg *a, const rules_data *d, const rules_member *m,
                             const scores_line *l, const scores_run *q, R *v)
{
    const rules_arg *r = &a->rules;
    if (a->plain) {
        const R scale = NUM(r->scale);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] *= scale;
        return q->count > 0 ? (1u << q->count) - 1 : 0; /* runs may lie beyond the last column */
    }
    const i32 time = rules_time(r->rows, r->interleave, l->p);
    const i64 mask = rules_mask(r, d, q->slot);
    u32 live = 0;
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
        const i32 key = rules_time(r->cols, r->interleave, q->col + e);
        if (e < q->count && (a->whole || (rules_visible(r, d, m, time, key) &&
                                          rules_bit(r, d, mask, l->in_block, q->in_block + e)))) {
            v[e] = NAME(rules_score)(r, d, m, l->h, time, key, v[e]);
            live |= 1u << e;
        }
    }
    return live;
}

/* scale * exp(x - shift). What is denormal is rounded once, and not flushed. */
DEVICE R NAME(scores_share)(R x, R shift, R scale)
{
#if SIMT_CODE == 1
    return MATH(exp)(x - shift) * scale;
#else
    const R power = (x - shift) * exp_scale;
    const i32 deep = power < -64;
    const R share = FAST_EXP2(deep ? power + 64 : power) * scale;
    return deep ? share * 5.4210108624275222e-20f : share; /* 2^-64 */
#endif
}

/* A pass for the largest and the sum about what a lane has met of it, a pass that writes. */
KERNEL(block_softmax, LANES)
(BUF(const T, x), BUF(u8, y), BUF(R, lse), BUF(const i64, start), BUF(const i32, col),
 BUF(const i32, slot), RULES_BUFFERS, const block_softmax_arg a)
{
    LOCAL R scratch[ROW_SCRATCH] ALIGNED;
    OPEN(const T, x);
    OPEN(u8, y);
    OPEN(R, lse);
    OPEN(const i64, start);
    OPEN(const i32, col);
    OPEN(const i32, slot);
    RULES_OPEN(data);
    const i32 parts = LANES / a.lanes;
    for (i64 group = GROUP(0) * parts; group < a.rows; group += GROUPS(0) * parts) {
        const i64 number = group + LANE / a.lanes;
        const scores_line l = scores_line_at(&a.rules, a.grid_rows, start, number, a.rows, VEC);
        const rules_member m = rules_member_of(&a.rules, &data, l.b);
        R most = LOWEST, sum = 0, scale = 0;
        NO_UNROLL
        for (i32 pass = 0; pass < 2; pass++) {
            NO_UNROLL
            for (i32 run = LANE % a.lanes; run < l.runs; run += a.lanes) {
                const scores_run q = scores_run_at(&a.rules, &l, run, VEC, col, slot);
                R v[VEC], high = most;
                NAME(load_part)
                (SIMT_CODE, x, scores_at(&a.x, &a.rules, &l, &q), 1, q.count, a.x.vector, v);
                const u32 live = NAME(scores_make)(&a, &data, &m, &l, &q, v);
                if (pass) {
                    const R shift = most == LOWEST ? (R)0 : most;
                    UNROLL
                    for (i32 e = 0; e < VEC; e++)
                        v[e] = live >> e & 1 ? NAME(scores_share)(v[e], shift, scale) : (R)0;
                    NAME(store_part)
                    (a.y.type, y, scores_at(&a.y, &a.rules, &l, &q), 1, q.count, a.y.vector, v);
                    continue;
                }
                UNROLL
                for (i32 e = 0; e < VEC; e++)
                    high = NAME(row_join)(1, high, live >> e & 1 ? v[e] : LOWEST);
                if (high > most)
                    sum *= NAME(fast_exp)(most - high);
                most = high;
                sum += NAME(row_exp)(live, most, v);
            }
            if (pass)
                continue;
            const R mine = most;
            most = NAME(row_max)(scratch, a.lanes, mine);
            if (mine < most)
                sum *= NAME(fast_exp)(mine - most);
            sum = NAME(row_sum)(scratch, a.lanes, sum);
            scale = sum == 0 ? (R)0 : 1 / sum;
        }
        if (lse && number < a.rows && LANE % a.lanes == 0)
            lse[number] = sum == 0 ? LOWEST : most + MATH(log)(sum);
    }
}

/* A pass for the sum of dy * y, a pass that writes. */
KERNEL(block_softmax_grad, LANES)
(BUF(const T, dy), BUF(const u8, y), BUF(const u8, x), BUF(u8, dx), BUF(const i64, start),
 BUF(const i32, col), BUF(const i32, slot), const block_softmax_grad_arg a)
{
    LOCAL R scratch[ROW_SCRATCH] ALIGNED;
    OPEN(const T, dy);
    OPEN(const u8, y);
    OPEN(const u8, x);
    OPEN(u8, dx);
    OPEN(const i64, start);
    OPEN(const i32, col);
    OPEN(const i32, slot);
    const i32 parts = LANES / a.lanes;
    for (i64 group = GROUP(0) * parts; group < a.rows; group += GROUPS(0) * parts) {
        const i64 number = group + LANE / a.lanes;
        const scores_line l = scores_line_at(&a.rules, a.grid_rows, start, number, a.rows, VEC);
        R sum = 0;
        NO_UNROLL
        for (i32 pass = 0; pass < 2; pass++) {
            NO_UNROLL
            for (i32 run = LANE % a.lanes; run < l.runs; run += a.lanes) {
                const scores_run q = scores_run_at(&a.rules, &l, run, VEC, col, slot);
                const i64 dx_at = scores_at(&a.dx, &a.rules, &l, &q);
                R v[VEC], share[VEC], more[VEC];
                NAME(load_part)
                (SIMT_CODE, dy, scores_at(&a.dy, &a.rules, &l, &q), 1, q.count, a.dy.vector, v);
                NAME(load_part)
                (a.y.type, y, scores_at(&a.y, &a.rules, &l, &q), 1, q.count, a.y.vector, share);
                if (!pass) {
                    UNROLL
                    for (i32 e = 0; e < VEC; e++)
                        sum += share[e] != 0 ? v[e] * share[e] : (R)0;
                    continue;
                }
                if (x)
                    NAME(load_part)
                (a.x.type, x, scores_at(&a.x, &a.rules, &l, &q), 1, q.count, a.x.vector, more);
                UNROLL
                for (i32 e = 0; e < VEC; e++) {
                    const R slope = NAME(rules_slope)(&a.rules, x ? more[e] : (R)0);
                    v[e] = share[e] != 0 ? NUM(a.alpha) * ((v[e] - sum) * share[e] * slope) : (R)0;
                }
                if (NUM(a.beta) != 0) {
                    NAME(load_part)(a.dx.type, dx, dx_at, 1, q.count, a.dx.vector, more);
                    UNROLL
                    for (i32 e = 0; e < VEC; e++)
                        v[e] += NUM(a.beta) * more[e];
                }
                NAME(store_part)(a.dx.type, dx, dx_at, 1, q.count, a.dx.vector, v);
            }
            if (!pass)
                sum = NAME(row_sum)(scratch, a.lanes, sum);
        }
    }
}
#endif
