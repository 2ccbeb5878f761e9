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

/* Rows of blocks of 1 << block_bits lines, which are 1 << line_bits aligned runs, all in one type. A
 * group takes 1 << row_bits neighbours among the rows of one head, GROUP(1). factor: scale, and
 * alpha * scale in the gradient, where x is dy. */
typedef struct scores_packed_arg {
    i64 x_batch, x_group, y_batch, y_group, dx_batch, dx_group;
    i64 factor; /* NUM */
    i32 rows, heads, per_head, grid_rows;
    i32 lanes, row_bits, block_bits, line_bits;
} scores_packed_arg;

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
        rules_member m;
        rules_member_of(&a.rules, &data, l.b, &m);
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

#if LANES > 1
/* Runs of a packed row that a lane holds: those of a second array take as many registers. What of a
 * row is beyond them is read again. */
#undef SCORES_RUNS
#define SCORES_RUNS 6
#undef SLOPE_RUNS
#define SLOPE_RUNS 4

/* A lane's share of a packed row: neighbours in a group have neighbours in a block, so that a group
 * reads all of each block that it takes. Its runs lie in every `step`-th entry from `entry` on. */
typedef struct scores_lane {
    i64 x, y, dx;  /* of its line's run, for slot 0 */
    i64 number;    /* of the row; -1: none */
    i32 lane, row; /* of the row, in the group */
    i32 entry, step;
    i32 runs, size; /* size: of a block */
} scores_lane;

DEVICE scores_lane NAME(scores_lane_of)(const scores_packed_arg *a, const GLOBAL i64 *start)
{
    const i32 member = (i32)GROUP(1), h = member % a->heads, b = member / a->heads;
    const i32 group = h / a->per_head, shared = h - group * a->per_head;
    const i32 in_line = LANE & ((1 << a->line_bits) - 1), over = LANE >> a->line_bits;
    scores_lane l;
    l.row = over & ((1 << a->row_bits) - 1);
    const i32 p = ((i32)GROUP(0) << a->row_bits) + l.row, first = over >> a->row_bits;
    const i32 line = p & ((1 << a->block_bits) - 1);
    const i64 in_block = ((line << a->line_bits) + in_line) * VEC;
    l.lane = (first << a->line_bits) + in_line;
    l.number = p < a->rows ? (i64)member * a->rows + p : -1;
    l.step = a->lanes >> a->line_bits;
    l.size = VEC << (a->block_bits + a->line_bits);
    l.x = b * a->x_batch + shared * a->x_group + in_block;
    l.y = b * a->y_batch + shared * a->y_group + in_block;
    l.dx = b * a->dx_batch + shared * a->dx_group + in_block;
    l.entry = l.runs = 0;
    if (p < a->rows) {
        const i64 at = group * ((i64)a->grid_rows + 1) + (p >> a->block_bits);
        l.entry = (i32)start[at] + first;
        l.runs = ((i32)start[at + 1] - l.entry + l.step - 1) / l.step;
    }
    return l;
}

/* Where run u of the lane lies in an array whose block 0 begins there. */
DEVICE i64 NAME(scores_offset)(const scores_lane *l, const GLOBAL i32 *slot, i32 u)
{
    return (i64)slot[l->entry + u * l->step] * l->size;
}

/* The first `held` runs of an array. */
DEVICE void NAME(scores_hold)(const GLOBAL T *x, const scores_lane *l, const GLOBAL i32 *slot,
                              i32 held, RAW *q)
{
    UNROLL
    for (i32 u = 0; u < held; u++)
        if (u < l->runs)
            q[u] = NAME(load_raw)(x + NAME(scores_offset)(l, slot, u));
}

/* exp about `shift`, times 2^24 for types of 16 bits: so small shares are not flushed, and what that
 * costs in accuracy is less than the type shows. */
#undef SCORES_LIFT
#define SCORES_LIFT ((R)(SIMT_CODE > 2 ? 16777216 : 1))

DEVICE R NAME(scores_power)(R shift, R *v)
{
    R sum = 0;
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
#if SIMT_CODE > 2
        v[e] = FAST_EXP2(FMA(v[e] - shift, exp_scale, 24.0f));
#else
        v[e] = NAME(fast_exp_above)(v[e], shift);
#endif
        sum += v[e];
    }
    return sum;
}

/* Scores of a run, and the largest of them and `most`. */
DEVICE R NAME(scores_scale)(RAW q, R factor, R most, R *v)
{
    NAME(unpack_run)(q, v);
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
        v[e] *= factor;
        most = NAME(row_join)(1, most, v[e]);
    }
    return most;
}

DEVICE void NAME(scores_put)(GLOBAL T *y, R scale, R *v)
{
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        v[e] *= scale;
    NAME(store_run)(SIMT_CODE, y, 0, v);
}

/* All elements are visible, and scores are scaled products. */
KERNEL_GROUPS(block_softmax_packed, LANES, 3)
(BUF(const T, x), BUF(T, y), BUF(R, lse), BUF(const i64, start), BUF(const i32, slot),
 const scores_packed_arg a)
{
    LOCAL R scratch[ROW_SCRATCH] ALIGNED;
    OPEN(const T, x);
    OPEN(T, y);
    OPEN(R, lse);
    OPEN(const i64, start);
    OPEN(const i32, slot);
    const scores_lane l = NAME(scores_lane_of)(&a, start);
    const i32 rows = 1 << a.row_bits;
    const R factor = NUM(a.factor);
    RAW q[SCORES_RUNS];
    R v[SCORES_RUNS][VEC], w[VEC], most = LOWEST, sum = 0;
    NAME(scores_hold)(x + l.x, &l, slot, SCORES_RUNS, q);
    UNROLL
    for (i32 u = 0; u < SCORES_RUNS; u++)
        if (u < l.runs)
            most = NAME(scores_scale)(q[u], factor, most, v[u]);
    NO_UNROLL
    for (i32 u = SCORES_RUNS; u < l.runs; u++)
        most = NAME(scores_scale)(NAME(load_raw)(x + l.x + NAME(scores_offset)(&l, slot, u)),
                                  factor, most, w);
    NAME(row_reduce_across)(scratch, l.lane, l.row, rows, a.lanes, 1, 1, &most);
    const R shift = most == LOWEST ? (R)0 : most;
    UNROLL
    for (i32 u = 0; u < SCORES_RUNS; u++)
        if (u < l.runs)
            sum += NAME(scores_power)(shift, v[u]);
    NO_UNROLL
    for (i32 u = SCORES_RUNS; u < l.runs; u++) {
        NAME(scores_scale)
        (NAME(load_raw)(x + l.x + NAME(scores_offset)(&l, slot, u)), factor, most, w);
        sum += NAME(scores_power)(shift, w);
    }
    NAME(row_reduce_across)(scratch, l.lane, l.row, rows, a.lanes, 0, 1, &sum);
    const R scale = sum == 0 ? (R)0 : 1 / sum;
    UNROLL
    for (i32 u = 0; u < SCORES_RUNS; u++)
        if (u < l.runs)
            NAME(scores_put)(y + l.y + NAME(scores_offset)(&l, slot, u), scale, v[u]);
    NO_UNROLL
    for (i32 u = SCORES_RUNS; u < l.runs; u++) {
        const i64 offset = NAME(scores_offset)(&l, slot, u);
        NAME(scores_scale)(NAME(load_raw)(x + l.x + offset), factor, most, w);
        NAME(scores_power)(shift, w);
        NAME(scores_put)(y + l.y + offset, scale, w);
    }
    if (lse && l.lane == 0 && l.number >= 0)
        lse[l.number] = sum == 0 ? LOWEST : most + MATH(log)(sum / SCORES_LIFT);
}

DEVICE R NAME(scores_dot)(RAW q, RAW s)
{
    R v[VEC], share[VEC], sum = 0;
    NAME(unpack_run)(q, v);
    NAME(unpack_run)(s, share);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        sum += share[e] != 0 ? v[e] * share[e] : (R)0;
    return sum;
}

DEVICE void NAME(scores_slope)(GLOBAL T *dx, RAW q, RAW s, R sum, R factor)
{
    R v[VEC], share[VEC];
    NAME(unpack_run)(q, v);
    NAME(unpack_run)(s, share);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        v[e] = share[e] != 0 ? (v[e] - sum) * share[e] * factor : (R)0;
    NAME(store_run)(SIMT_CODE, dx, 0, v);
}

/* The same for the gradient, without softcap and an old dx. */
KERNEL_GROUPS(block_softmax_grad_packed, LANES, 4)
(BUF(const T, dy), BUF(const T, y), BUF(T, dx), BUF(const i64, start), BUF(const i32, slot),
 const scores_packed_arg a)
{
    LOCAL R scratch[ROW_SCRATCH] ALIGNED;
    OPEN(const T, dy);
    OPEN(const T, y);
    OPEN(T, dx);
    OPEN(const i64, start);
    OPEN(const i32, slot);
    const scores_lane l = NAME(scores_lane_of)(&a, start);
    const R factor = NUM(a.factor);
    RAW q[SLOPE_RUNS], s[SLOPE_RUNS];
    R sum = 0;
    NAME(scores_hold)(dy + l.x, &l, slot, SLOPE_RUNS, q);
    NAME(scores_hold)(y + l.y, &l, slot, SLOPE_RUNS, s);
    UNROLL
    for (i32 u = 0; u < SLOPE_RUNS; u++)
        if (u < l.runs)
            sum += NAME(scores_dot)(q[u], s[u]);
    NO_UNROLL
    for (i32 u = SLOPE_RUNS; u < l.runs; u++) {
        const i64 offset = NAME(scores_offset)(&l, slot, u);
        sum +=
            NAME(scores_dot)(NAME(load_raw)(dy + l.x + offset), NAME(load_raw)(y + l.y + offset));
    }
    NAME(row_reduce_across)(scratch, l.lane, l.row, 1 << a.row_bits, a.lanes, 0, 1, &sum);
    UNROLL
    for (i32 u = 0; u < SLOPE_RUNS; u++)
        if (u < l.runs)
            NAME(scores_slope)
    (dx + l.dx + NAME(scores_offset)(&l, slot, u), q[u], s[u], sum, factor);
    NO_UNROLL
    for (i32 u = SLOPE_RUNS; u < l.runs; u++) {
        const i64 offset = NAME(scores_offset)(&l, slot, u);
        NAME(scores_slope)
        (dx + l.dx + offset, NAME(load_raw)(dy + l.x + offset), NAME(load_raw)(y + l.y + offset),
         sum, factor);
    }
}
#endif
#endif
