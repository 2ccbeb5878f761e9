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
 * group takes LANES >> lane_bits neighbours among the rows of one head of the layout, for `share` of
 * its members one after the other: GROUP(1) counts shares of heads. Lanes of a row are 1 << near_bits
 * apart, between those of its neighbours. factor: scale, and alpha * scale in the gradient, where x
 * is dy. */
typedef struct scores_packed_arg {
    i64 x_batch, x_group, y_batch, y_group, dx_batch, dx_group;
    i64 factor; /* NUM */
    i32 rows, heads, per_head, grid_rows;
    i32 members, share, shares; /* members: of a head */
    i32 lane_bits, near_bits, block_bits, line_bits, type;
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
        const i64 member = QUOTIENT(number, r->rows);
        l.p = (i32)(number - member * r->rows);
        l.b = QUOTIENT(member, r->heads);
        l.h = (i32)(member - l.b * r->heads);
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
    NO_UNROLL
    for (i32 e = 0; e < VEC; e++) { /* what an element may ask for is long */
        const i32 key = rules_time(r->cols, r->interleave, q->col + e);
        R score = NAME(run_turn)(v);
        if (e < q->count && (a->whole || (rules_visible(r, d, m, time, key) &&
                                          rules_bit(r, d, mask, l->in_block, q->in_block + e)))) {
            score = NAME(rules_score)(r, d, m, l->h, time, key, score);
            live |= 1u << e;
        }
        v[VEC - 1] = score;
    }
    return live;
}

/* A pass for the largest and the sum about what a lane has met of it, a pass that writes. */
KERNEL(block_softmax, LANES)
(BUF(const T, x), BUF(u8, y), BUF(R, lse), BUF(const i64, start), BUF(const i32, col),
 BUF(const i32, slot), RULES_BUFFERS, const block_softmax_arg a)
{
    QUEUE_WAIT();
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
                (HALF_TYPE(a.x.type), x, scores_at(&a.x, &a.rules, &l, &q), 1, q.count, a.x.vector,
                 v);
                const u32 live = NAME(scores_make)(&a, &data, &m, &l, &q, v);
                if (pass) {
                    const R shift = most == LOWEST ? (R)0 : most;
                    UNROLL
                    for (i32 e = 0; e < VEC; e++)
                        v[e] = live >> e & 1 ? NAME(row_share)(v[e], shift, scale) : (R)0;
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

/* A pass for the sum of dy * y, a pass that writes. dy has the kernel's type, or any beside f64. */
KERNEL(block_softmax_grad, LANES)
(BUF(const u8, dy), BUF(const u8, y), BUF(const u8, x), BUF(u8, dx), BUF(const i64, start),
 BUF(const i32, col), BUF(const i32, slot), const block_softmax_grad_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[ROW_SCRATCH] ALIGNED;
    OPEN(const u8, dy);
    OPEN(const u8, y);
    OPEN(const u8, x);
    OPEN(u8, dx);
    OPEN(const i64, start);
    OPEN(const i32, col);
    OPEN(const i32, slot);
    const i32 parts = LANES / a.lanes;
    const i32 dy_type = SIMT_CODE == 1 ? a.dy.type : HALF_TYPE(a.dy.type);
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
                (dy_type, dy, scores_at(&a.dy, &a.rules, &l, &q), 1, q.count, a.dy.vector, v);
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
/* Runs of a packed row that a lane holds. What of a row is beyond them is read again. */
#undef SCORES_RUNS
#define SCORES_RUNS 5

/* A lane's share of a packed row. Its runs lie in every `step`-th entry from `entry` on. */
typedef struct scores_lane {
    i32 lane, first; /* of the row; where its lanes begin in local memory */
    i32 p;           /* the row; -1: none */
    i32 in_block;    /* the lane's run in its blocks, of `size` runs */
    i32 entry, step;
    i32 runs, size;
} scores_lane;

/* A member that a group visits, of the `left` that are to come. */
typedef struct scores_member {
    i32 b, shared, left;
} scores_member;

DEVICE scores_lane scores_lane_of(const scores_packed_arg *a, i32 head, const GLOBAL i64 *start)
{
    const i32 near = 1 << a->near_bits, lanes = 1 << a->lane_bits, over = LANE >> a->near_bits;
    const i32 row = (over >> a->lane_bits << a->near_bits) + (LANE & (near - 1));
    const i32 p = (i32)GROUP(0) * (LANES >> a->lane_bits) + row;
    scores_lane l;
    l.lane = over & (lanes - 1);
    l.first = row << a->lane_bits;
    l.p = p < a->rows ? p : -1;
    l.size = 1 << (a->block_bits + a->line_bits);
    l.in_block = ((p << a->line_bits) & (l.size - 1)) + (l.lane & ((1 << a->line_bits) - 1));
    l.step = lanes >> a->line_bits;
    l.entry = l.runs = 0;
    if (p < a->rows) {
        const i64 at = head * ((i64)a->grid_rows + 1) + (p >> a->block_bits);
        l.entry = (i32)start[at] + (l.lane >> a->line_bits);
        l.runs = ((i32)start[at + 1] - l.entry + l.step - 1) / l.step;
    }
    return l;
}

DEVICE scores_member scores_member_of(const scores_packed_arg *a, i32 share)
{
    const i32 begin = share * a->share, end = begin + a->share;
    scores_member m;
    m.b = begin / a->per_head;
    m.shared = begin % a->per_head;
    m.left = (end < a->members ? end : a->members) - begin;
    return m;
}

DEVICE void scores_member_next(const scores_packed_arg *a, scores_member *m)
{
    m->left--;
    m->shared++;
    if (m->shared == a->per_head) {
        m->shared = 0;
        m->b++;
    }
}

/* Run u of the lane, counted from where an array's block 0 begins. */
DEVICE i32 scores_run_of(const scores_lane *l, const GLOBAL i32 *slot, i32 u)
{
    return slot[l->entry + u * l->step] * l->size + l->in_block;
}

/* The first SCORES_RUNS of them, which are the same for all members. */
DEVICE void scores_places(const scores_lane *l, const GLOBAL i32 *slot, i32 *place)
{
    UNROLL
    for (i32 u = 0; u < SCORES_RUNS; u++)
        place[u] = u < l->runs ? scores_run_of(l, slot, u) : 0;
}

DEVICE const GLOBAL RAW *NAME(scores_in)(const GLOBAL T *x, const scores_member *m, i64 batch,
                                         i64 group)
{
    return (const GLOBAL RAW *)(x + m->b * batch + m->shared * group);
}

DEVICE GLOBAL T *NAME(scores_out)(GLOBAL T *y, const scores_member *m, i64 batch, i64 group)
{
    return y + m->b * batch + m->shared * group;
}

/* The elements of a run, and the largest of them and `most`. */
DEVICE R NAME(scores_most)(i32 type, RAW q, R most, R *v)
{
    NAME(unpack_run)(type, q, v);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        most = NAME(row_join)(1, most, v[e]);
    return most;
}

DEVICE void NAME(scores_put)(i32 type, GLOBAL T *y, i32 run, R scale, R *v)
{
    NAME(row_shares)(scale, v);
    NAME(store_run)(HALF_TYPE(type), (GLOBAL u8 *)y, (i64)run * VEC, v);
}

/* A run of which nothing takes part. */
DEVICE RAW NAME(scores_none)(i32 type)
{
    RAW q;
#if SIMT_CODE == 1
    q.x = q.z = 0;
    q.y = q.w = 0xfff00000u;
#else
    q.x = q.y = q.z = q.w = SIMT_CODE == 2                ? 0xff800000u
                            : HALF_TYPE(type) == SIMT_F16 ? 0xfc00fc00u
                                                          : 0xff80ff80u;
#endif
    return q;
}

/* The first runs of a row: all but the last of SCORES_RUNS are computed with also where the row is
 * shorter, so that they have no branches. */
#undef SCORES_TAKE
#define SCORES_TAKE(u) ((u) + 1 < SCORES_RUNS || (u) < l.runs)

DEVICE void NAME(scores_load)(i32 type, const GLOBAL RAW *in, i32 runs, const i32 *place, RAW *q)
{
    UNROLL
    for (i32 u = 0; u < SCORES_RUNS; u++) {
        q[u] = NAME(scores_none)(type);
        if (u < runs)
            q[u] = in[place[u]];
    }
}

/* All elements are visible, and scores are products times a positive factor. */
KERNEL_GROUPS(block_softmax_packed, LANES, 3)
(BUF(const T, x), BUF(T, y), BUF(R, lse), BUF(const i64, start), BUF(const i32, slot),
 const scores_packed_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[ROW_SCRATCH] ALIGNED;
    OPEN(const T, x);
    OPEN(T, y);
    OPEN(R, lse);
    OPEN(const i64, start);
    OPEN(const i32, slot);
    const i32 head = (i32)GROUP(1) / a.shares, lanes = 1 << a.lane_bits, near = 1 << a.near_bits;
    const R factor = NUM(a.factor);
    const scores_lane l = scores_lane_of(&a, head, start);
    scores_member m = scores_member_of(&a, (i32)GROUP(1) % a.shares);
    i32 place[SCORES_RUNS];
    RAW q[SCORES_RUNS];
    scores_places(&l, slot, place);
    NO_UNROLL
    for (; m.left > 0; scores_member_next(&a, &m)) {
        const GLOBAL RAW *const in = NAME(scores_in)(x, &m, a.x_batch, a.x_group);
        GLOBAL T *const out = NAME(scores_out)(y, &m, a.y_batch, a.y_group);
        const i64 number = ((i64)m.b * a.heads + head * a.per_head + m.shared) * a.rows + l.p;
        R v[SCORES_RUNS][VEC], w[VEC], most = LOWEST, sum = 0;
        NAME(scores_load)(a.type, in, l.runs, place, q);
        UNROLL
        for (i32 u = 0; u < SCORES_RUNS; u++)
            if (SCORES_TAKE(u))
                most = NAME(scores_most)(a.type, q[u], most, v[u]);
        NO_UNROLL
        for (i32 u = SCORES_RUNS; u < l.runs; u++)
            most = NAME(scores_most)(a.type, in[scores_run_of(&l, slot, u)], most, w);
        NAME(row_reduce_turn)(scratch, 0, l.lane, l.first, near, lanes, 1, 1, &most);
        const R shift = most == LOWEST ? (R)0 : most;
        UNROLL
        for (i32 u = 0; u < SCORES_RUNS; u++)
            if (SCORES_TAKE(u))
                sum += NAME(row_powers)(factor, shift, v[u]);
        NO_UNROLL
        for (i32 u = SCORES_RUNS; u < l.runs; u++) {
            NAME(unpack_run)(a.type, in[scores_run_of(&l, slot, u)], w);
            sum += NAME(row_powers)(factor, shift, w);
        }
        NAME(row_reduce_turn)(scratch, 1, l.lane, l.first, near, lanes, 0, 1, &sum);
        const R scale = sum == 0 ? (R)0 : 1 / sum;
        UNROLL
        for (i32 u = 0; u < SCORES_RUNS; u++)
            if (u < l.runs)
                NAME(scores_put)(a.type, out, place[u], scale, v[u]);
        NO_UNROLL
        for (i32 u = SCORES_RUNS; u < l.runs; u++) {
            const i32 run = scores_run_of(&l, slot, u);
            NAME(unpack_run)(a.type, in[run], w);
            NAME(row_powers)(factor, shift, w);
            NAME(scores_put)(a.type, out, run, scale, w);
        }
        if (lse && l.lane == 0 && l.p >= 0)
            lse[number] = sum == 0 ? LOWEST : most * factor + MATH(log)(sum / ROW_LIFT);
    }
}

DEVICE R NAME(scores_dot)(i32 type, RAW q, RAW s)
{
    R v[VEC], share[VEC], sum = 0;
    NAME(unpack_run)(type, q, v);
    NAME(unpack_run)(type, s, share);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        sum += share[e] != 0 ? v[e] * share[e] : (R)0;
    return sum;
}

DEVICE void NAME(scores_slope)(i32 type, GLOBAL T *dx, i32 run, RAW q, RAW s, R sum, R factor)
{
    R v[VEC], share[VEC];
    NAME(unpack_run)(type, q, v);
    NAME(unpack_run)(type, s, share);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        v[e] = share[e] != 0 ? (v[e] - sum) * share[e] * factor : (R)0;
    NAME(store_run)(HALF_TYPE(type), (GLOBAL u8 *)dx, (i64)run * VEC, v);
}

/* The same for the gradient, without softcap and an old dx. */
KERNEL_GROUPS(block_softmax_grad_packed, LANES, 3)
(BUF(const T, dy), BUF(const T, y), BUF(T, dx), BUF(const i64, start), BUF(const i32, slot),
 const scores_packed_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[ROW_SCRATCH] ALIGNED;
    OPEN(const T, dy);
    OPEN(const T, y);
    OPEN(T, dx);
    OPEN(const i64, start);
    OPEN(const i32, slot);
    const i32 head = (i32)GROUP(1) / a.shares, lanes = 1 << a.lane_bits, near = 1 << a.near_bits;
    const R factor = NUM(a.factor);
    const scores_lane l = scores_lane_of(&a, head, start);
    scores_member m = scores_member_of(&a, (i32)GROUP(1) % a.shares);
    i32 place[SCORES_RUNS], turn = 0;
    scores_places(&l, slot, place);
    NO_UNROLL
    for (; m.left > 0; scores_member_next(&a, &m)) {
        const GLOBAL RAW *const slope = NAME(scores_in)(dy, &m, a.x_batch, a.x_group);
        const GLOBAL RAW *const share = NAME(scores_in)(y, &m, a.y_batch, a.y_group);
        GLOBAL T *const out = NAME(scores_out)(dx, &m, a.dx_batch, a.dx_group);
        RAW q[SCORES_RUNS], s[SCORES_RUNS];
        R sum = 0;
        UNROLL
        for (i32 u = 0; u < SCORES_RUNS; u++)
            if (u < l.runs) {
                q[u] = slope[place[u]];
                s[u] = share[place[u]];
            }
        UNROLL
        for (i32 u = 0; u < SCORES_RUNS; u++)
            if (u < l.runs)
                sum += NAME(scores_dot)(a.type, q[u], s[u]);
        NO_UNROLL
        for (i32 u = SCORES_RUNS; u < l.runs; u++) {
            const i32 run = scores_run_of(&l, slot, u);
            sum += NAME(scores_dot)(a.type, slope[run], share[run]);
        }
        NAME(row_reduce_turn)(scratch, turn, l.lane, l.first, near, lanes, 0, 1, &sum);
        turn ^= 1;
        UNROLL
        for (i32 u = 0; u < SCORES_RUNS; u++)
            if (u < l.runs)
                NAME(scores_slope)(a.type, out, place[u], q[u], s[u], sum, factor);
        NO_UNROLL
        for (i32 u = SCORES_RUNS; u < l.runs; u++) {
            const i32 run = scores_run_of(&l, slot, u);
            NAME(scores_slope)(a.type, out, run, slope[run], share[run], sum, factor);
        }
    }
}
#endif
#endif
