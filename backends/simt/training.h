/* Kernels of the optimizers, of averages and norms, and of the loss scale. The host's side
 * (training.c) includes this file without SIMT_T for the structs of scalars. */
#define SIMT_HALVES
#ifndef BSKI_SIMT_TRAINING_H
#define BSKI_SIMT_TRAINING_H

/* Tensors of a list that one launch takes. */
enum { LIST_TENSORS = 8 };

/* How adam stores m and v. */
enum { STATE_FLOAT = 0, STATE_RANDOM = 1, STATE_CODE = 2 };

/* Tensors are matrices of members of the first dimension; `vector`: runs of VEC elements are
 * aligned. */
typedef struct adam_arg {
    i64 rows, cols;
    i64 beta1, rest1, beta2, rest2, eps, grad_scale, rate, decay, clip_sigma; /* NUM */
    i64 log_beta1, log_beta2;                                                 /* NUM */
    i64 step;                                                                 /* beside steps */
    i64 seed, offset;
    i32 grad_type, copy_type, vector, state;
} adam_arg;

typedef struct adam_live_arg {
    i64 rows, cols;
    i32 grad_type, vector;
} adam_live_arg;

typedef struct ema_arg {
    i64 rows, cols;
    i64 rest; /* NUM: 1 - decay */
    i32 average_type, param_type, vector, pad;
} ema_arg;

/* Sums of squares: of tensor t of the list, share s is number t * shares + s. */
typedef struct global_norm_parts_arg {
    i64 count, first, shares;
    i64 grad_scale; /* NUM */
    i32 type, vector;
} global_norm_parts_arg;

typedef struct global_norm_finish_arg {
    i64 parts;
    i64 beta, clip; /* NUM */
} global_norm_finish_arg;

typedef struct loss_scale_arg {
    i64 growth, backoff, low, high; /* NUM */
    i64 interval;
} loss_scale_arg;

/* Sums of columns: a group takes lanes_run runs next to each other and LANES / lanes_run rows at a
 * time of its share of the rows; they are [shares][cols]. row_parts and square_parts are the numbers
 * of groups that summed row and the squares of the steps. */
typedef struct adafactor_arg {
    i64 rows, cols, share, shares, row_parts, square_parts;
    i64 grad_scale, decay, rest, eps, rate, clip; /* NUM */
    i64 log_beta2;                                /* NUM */
    i64 step;                                     /* beside steps */
    i32 grad_type, vector, col_vector, lanes_run;
} adafactor_arg;

#endif

#ifdef SIMT_T
#include "lanes.h"

#include "philox.h"

/* The factor of gradients that lives on the device; 0: the step is skipped. */
#ifndef BSKI_SIMT_TRAINING_ONCE
#define BSKI_SIMT_TRAINING_ONCE
DEVICE f32 norm_scale_of(const GLOBAL f32 *norm_scale)
{
    const f32 norm = norm_scale ? norm_scale[0] : 1;
    return norm - norm == 0 ? norm : 0;
}

/* Calls of a macro for each tensor of a list, and the one of them with number i. */
#define LIST_BUFFERS(type, name)                                                                   \
    BUF(type, name##0), BUF(type, name##1), BUF(type, name##2), BUF(type, name##3),                \
        BUF(type, name##4), BUF(type, name##5), BUF(type, name##6), BUF(type, name##7)
#define LIST_OPEN(type, name, i)                                                                   \
    OPEN(type, name##0);                                                                           \
    OPEN(type, name##1);                                                                           \
    OPEN(type, name##2);                                                                           \
    OPEN(type, name##3);                                                                           \
    OPEN(type, name##4);                                                                           \
    OPEN(type, name##5);                                                                           \
    OPEN(type, name##6);                                                                           \
    OPEN(type, name##7);                                                                           \
    GLOBAL type *name = (i) == 0   ? name##0                                                       \
                        : (i) == 1 ? name##1                                                       \
                        : (i) == 2 ? name##2                                                       \
                        : (i) == 3 ? name##3                                                       \
                        : (i) == 4 ? name##4                                                       \
                        : (i) == 5 ? name##5                                                       \
                        : (i) == 6 ? name##6                                                       \
                                   : name##7
#endif

/* ================================================================================ adam ==== */
/* Moments are f32, f64 or bf16, or u16 in the form of bf16. */

/* live[k] = 1 if the gradient of row k has an element that is not 0. */
KERNEL(adam_live, LANES)(BUF(const u8, grad), BUF(i32, live), const adam_live_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const u8, grad);
    OPEN(i32, live);
    for (i64 k = GROUP(0); k < a.rows; k += GROUPS(0)) {
        R any = 0;
        for (i64 col = (i64)LANE * VEC; col < a.cols; col += LANES * VEC) {
            R g[VEC];
            NAME(load_part)
            (a.grad_type, grad, k * a.cols + col, 1, run_length(a.cols, col, VEC), a.vector, g);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                any = g[e] != 0 ? (R)1 : any;
        }
        any = NAME(tree_max)(scratch, LANE, LANES, any);
        if (LANE == 0)
            live[k] = any != 0;
    }
}

#if SIMT_CODE == 4
/* Magnitudes in u16: a code is exponent and fraction side by side, as the upper bits of f32 are. */
enum { CODE_BIAS = 127 - 60, M_FRACTION = 9, V_FRACTION = 10, M_SIGN = 0x8000 };

DEVICE f32 code_value(u32 code, i32 fraction)
{
    return code ? U32_AS_F32((code << (23 - fraction)) + ((u32)CODE_BIAS << 23)) : 0;
}

/* Of what lies below 2^-60: 0. Larger magnitudes and NaN have the largest code. */
DEVICE u32 code_of(f32 v, i32 fraction)
{
    const u32 bits = F32_AS_U32(v), low = (u32)CODE_BIAS << 23, most = (1u << (6 + fraction)) - 1;
    if (bits < low)
        return 0;
    const u32 code = ((bits - low) + (1u << (22 - fraction))) >> (23 - fraction);
    return code < most ? code : most;
}

/* The upper half of v, rounded by chance. */
DEVICE u32 random_bf16(f32 v, u32 random)
{
    const u32 bits = F32_AS_U32(v);
    return (bits & 0x7f800000u) == 0x7f800000u ? bf16_bits(v) : (bits + (random >> 16)) >> 16;
}

/* Loaded as bf16, whose bits are the codes. */
DEVICE void state_decode(f32 *m, f32 *v)
{
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
        const u32 code = F32_AS_U32(m[e]) >> 16;
        const f32 size = code_value(code & (M_SIGN - 1), M_FRACTION);
        m[e] = code & M_SIGN ? -size : size;
        v[e] = code_value(F32_AS_U32(v[e]) >> 16, V_FRACTION);
    }
}

/* The stored words of a run that starts at element i. */
DEVICE void state_words(const adam_arg *a, i64 offset, i64 i, const f32 *m, const f32 *v,
                        u32 *m_word, u32 *v_word)
{
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        if (a->state == STATE_CODE) {
            const u32 code = code_of(MATH(fabs)(m[e]), M_FRACTION);
            m_word[e] = m[e] < 0 && code ? code | M_SIGN : code;
            v_word[e] = code_of(MATH(fabs)(v[e]), V_FRACTION);
        } else {
            const philox_words words = philox((u64)a->seed, (u64)offset, 2 * (u64)(i + e));
            m_word[e] = random_bf16(m[e], words.a);
            v_word[e] = random_bf16(v[e], words.b);
        }
}

DEVICE void words_store(GLOBAL u16 *p, i32 count, i32 vector, const u32 *word)
{
#if LANES > 1
    if (vector && count == VEC) {
        u32x4 q;
        q.x = word[0] | word[1] << 16;
        q.y = word[2] | word[3] << 16;
        q.z = word[4] | word[5] << 16;
        q.w = word[6] | word[7] << 16;
        u32x4_store((GLOBAL u32x4 *)p, q);
        return;
    }
#endif
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        if (e < count)
            p[e] = (u16)word[e];
}
#endif

/* The learning rate with the bias correction. */
DEVICE R NAME(adam_rate)(const adam_arg *a, const GLOBAL i64 *steps)
{
    if (!steps)
        return NUM(a->rate);
    const R step = (R)a->step + (R)steps[0];
    return NUM(a->rate) * MATH(sqrt)(-MATH(expm1)(step * NUM(a->log_beta2))) /
           -MATH(expm1)(step * NUM(a->log_beta1));
}

DEVICE void NAME(adam_tensor)(const adam_arg *a, i64 offset, GLOBAL R *param, const GLOBAL u8 *grad,
                              GLOBAL T *m, GLOBAL T *v, GLOBAL u8 *copy, f32 norm,
                              const GLOBAL f32 *gate, const GLOBAL i32 *live,
                              const GLOBAL i64 *steps)
{
    const R beta1 = NUM(a->beta1), rest1 = NUM(a->rest1), beta2 = NUM(a->beta2);
    const R rest2 = NUM(a->rest2), eps = NUM(a->eps), decay = NUM(a->decay);
    const R grad_scale = NUM(a->grad_scale) * norm, clip = NUM(a->clip_sigma);
    const R rate = NAME(adam_rate)(a, steps);
    for (walk w = walk_start(a->rows, a->cols, VEC); w.left > 0; walk_next(&w)) {
        if ((gate && gate[w.row] == 0) || (live && !live[w.row]))
            continue;
        const i64 i = w.row * a->cols + w.run * VEC;
        const i32 count = run_length(a->cols, w.run * VEC, VEC);
        R g[VEC], mv[VEC], vv[VEC], pv[VEC];
        NAME(load_part)(a->grad_type, grad, i, 1, count, a->vector, g);
        NAME(load_part)(SIMT_CODE, m, i, 1, count, a->vector, mv);
        NAME(load_part)(SIMT_CODE, v, i, 1, count, a->vector, vv);
        NAME(load_part)(R_TYPE, param, i, 1, count, a->vector, pv);
#if SIMT_CODE == 4
        if (a->state == STATE_CODE)
            state_decode(mv, vv);
#endif
        UNROLL
        for (i32 e = 0; e < VEC; e++) {
            R x = g[e] * grad_scale;
            vv[e] = beta2 * vv[e] + rest2 * x * x;
            const R sigma = MATH(sqrt)(vv[e]);
            if (clip > 0) {
                x = x < -clip * sigma ? -clip * sigma : x;
                x = x > clip * sigma ? clip * sigma : x;
            }
            mv[e] = beta1 * mv[e] + rest1 * x;
            pv[e] -= rate * (mv[e] / (sigma + eps)) + decay * pv[e];
        }
#if SIMT_CODE == 4
        if (a->state != STATE_FLOAT) {
            u32 m_word[VEC], v_word[VEC];
            state_words(a, offset, i, mv, vv, m_word, v_word);
            words_store(m + i, count, a->vector, m_word);
            words_store(v + i, count, a->vector, v_word);
        } else
#endif
        {
            NAME(store_part)(SIMT_CODE, v, i, 1, count, a->vector, vv);
            NAME(store_part)(SIMT_CODE, m, i, 1, count, a->vector, mv);
        }
        NAME(store_part)(R_TYPE, param, i, 1, count, a->vector, pv);
        if (copy)
            NAME(store_part)(a->copy_type, copy, i, 1, count, a->vector, pv);
    }
}

KERNEL(adam, LANES)
(BUF(R, param), BUF(const u8, grad), BUF(T, m), BUF(T, v), BUF(const f32, norm_scale),
 BUF(const f32, gate), BUF(u8, copy), BUF(const i32, live), BUF(const i64, steps), const adam_arg a)
{
    QUEUE_WAIT();
    OPEN(R, param);
    OPEN(const u8, grad);
    OPEN(T, m);
    OPEN(T, v);
    OPEN(const f32, norm_scale);
    OPEN(const f32, gate);
    OPEN(u8, copy);
    OPEN(const i32, live);
    OPEN(const i64, steps);
    const f32 norm = norm_scale_of(norm_scale);
    if (norm != 0)
        NAME(adam_tensor)(&a, a.offset, param, grad, m, v, copy, norm, gate, live, steps);
}

/* The same for tensors of a list, without choices by row. Group (i, j) works on tensor j. */
KERNEL(adam_n, LANES)
(BUF(const f32, norm_scale), BUF(const i64, steps), LIST_BUFFERS(R, param),
 LIST_BUFFERS(const u8, grad), LIST_BUFFERS(T, m), LIST_BUFFERS(T, v), LIST_BUFFERS(u8, copy),
 const adam_arg a)
{
    QUEUE_WAIT();
    OPEN(const f32, norm_scale);
    OPEN(const i64, steps);
    LIST_OPEN(R, param, GROUP(1));
    LIST_OPEN(const u8, grad, GROUP(1));
    LIST_OPEN(T, m, GROUP(1));
    LIST_OPEN(T, v, GROUP(1));
    LIST_OPEN(u8, copy, GROUP(1));
    const f32 norm = norm_scale_of(norm_scale);
    if (norm != 0)
        NAME(adam_tensor)(&a, a.offset + GROUP(1), param, grad, m, v, copy, norm, 0, 0, steps);
}

/* ================================================================================= ema ==== */

KERNEL(ema, LANES)
(BUF(T, average), BUF(const u8, param), BUF(const f32, gate), const ema_arg a)
{
    QUEUE_WAIT();
    OPEN(T, average);
    OPEN(const u8, param);
    OPEN(const f32, gate);
    const R rest = NUM(a.rest);
    for (walk w = walk_start(a.rows, a.cols, VEC); w.left > 0; walk_next(&w)) {
        const i64 i = w.row * a.cols + w.run * VEC;
        const i32 count = run_length(a.cols, w.run * VEC, VEC);
        R v[VEC], p[VEC];
        if (gate && gate[w.row] == 0)
            continue;
        NAME(load_part)(HALF_TYPE(a.average_type), average, i, 1, count, a.vector, v);
        NAME(load_part)(a.param_type, param, i, 1, count, a.vector, p);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] -= rest * (v[e] - p[e]);
        NAME(store_part)(HALF_TYPE(a.average_type), average, i, 1, count, a.vector, v);
    }
}

/* ========================================================================= global_norm ==== */

DEVICE R NAME(square_sum)(i32 type, const GLOBAL T *x, i64 i, i32 count, i32 vector, R scale)
{
    R v[VEC], sum = 0;
    NAME(load_part)(HALF_TYPE(type), x, i, 1, count, vector, v);
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
        const R g = v[e] * scale;
        sum += g * g;
    }
    return sum;
}

/* Group (i, j): share i of tensor j of the list. */
KERNEL(global_norm_parts, LANES)
(LIST_BUFFERS(const T, x), BUF(R, parts), const global_norm_parts_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    LIST_OPEN(const T, x, GROUP(1));
    OPEN(R, parts);
    const R scale = NUM(a.grad_scale);
    R sum = 0;
    walk w = walk_start(1, a.count, VEC);
    while (a.vector && w.left > 4) { /* whole runs */
        R part[4];
        UNROLL
        for (i32 u = 0; u < 4; u++) {
            part[u] = NAME(square_sum)(a.type, x, w.run * VEC, VEC, 1, scale);
            walk_next(&w);
        }
        UNROLL
        for (i32 u = 0; u < 4; u++)
            sum += part[u];
    }
    for (; w.left > 0; walk_next(&w))
        sum += NAME(square_sum)(a.type, x, w.run * VEC, run_length(a.count, w.run * VEC, VEC),
                                a.vector, scale);
    sum = NAME(tree_sum)(scratch, LANE, LANES, sum);
    if (LANE == 0)
        parts[(a.first + GROUP(1)) * a.shares + GROUP(0)] = sum;
}

/* The sum of a list of numbers, by all lanes of a group. */
DEVICE R NAME(list_sum)(LOCAL_ARG R *scratch, const GLOBAL R *list, i64 count)
{
    R sum = 0;
    for (i64 p = LANE; p < count; p += 4 * LANES) {
        UNROLL
        for (i32 u = 0; u < 4; u++)
            sum += p + u * LANES < count ? list[p + u * LANES] : (R)0;
    }
    return NAME(tree_sum)(scratch, LANE, LANES, sum);
}

/* One group. */
KERNEL(global_norm_finish, LANES)
(BUF(const R, parts), BUF(R, sum), BUF(R, norm), BUF(f32, norm_scale),
 const global_norm_finish_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const R, parts);
    OPEN(R, sum);
    OPEN(R, norm);
    OPEN(f32, norm_scale);
    R total = NAME(list_sum)(scratch, parts, a.parts);
    if (LANE != 0)
        return;
    if (NUM(a.beta) != 0)
        total += NUM(a.beta) * sum[0];
    sum[0] = total;
    const R root = MATH(sqrt)(total), clip = NUM(a.clip);
    if (norm)
        norm[0] = root;
    if (norm_scale)
        norm_scale[0] = root - root != 0 || root == 0 ? 0
                        : clip > 0 && root > clip     ? (f32)(clip / root)
                                                      : 1;
}

/* ========================================================================== loss_scale ==== */
#if SIMT_CODE == 2

KERNEL(loss_scale, LANES)
(BUF(f32, scale), BUF(const f32, norm_scale), BUF(i32, good), BUF(i64, steps), BUF(const f32, norm),
 const loss_scale_arg a)
{
    QUEUE_WAIT();
    OPEN(f32, scale);
    OPEN(const f32, norm_scale);
    OPEN(i32, good);
    OPEN(i64, steps);
    OPEN(const f32, norm);
    if (LANE != 0 || (norm && norm[0] == 0))
        return;
    if (norm_scale_of(norm_scale) == 0) {
        scale[0] = MATH(fmax)(scale[0] * NUM(a.backoff), NUM(a.low));
        good[0] = 0;
        return;
    }
    const i64 streak = (i64)good[0] + 1;
    if (steps)
        steps[0]++;
    if (streak >= a.interval)
        scale[0] = MATH(fmin)(scale[0] * NUM(a.growth), NUM(a.high));
    good[0] = streak >= a.interval ? 0 : (i32)streak;
}
#endif

/* =========================================================================== adafactor ==== */
#if SIMT_CODE <= 2 /* moments are f32 or f64 */

/* A run of scaled gradients of row k. */
DEVICE void NAME(factor_load)(const adafactor_arg *a, const GLOBAL u8 *grad, R scale, i64 k,
                              i64 run, R *g)
{
    const i64 col = run * VEC;
    NAME(load_part)
    (a->grad_type, grad, k * a->cols + col, 1, run_length(a->cols, col, VEC), a->vector, g);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        g[e] *= scale;
}

/* The factors of what a moment was and of what is new. With steps on the device those in the
 * arguments are beta2 and 1 - beta2. */
DEVICE void NAME(factor_decay)(const adafactor_arg *a, const GLOBAL i64 *steps, R *decay, R *rest)
{
    *decay = NUM(a->decay);
    *rest = NUM(a->rest);
    if (steps) {
        const R step = (R)a->step + (R)steps[0], log_beta2 = NUM(a->log_beta2);
        const R bias = MATH(expm1)((step + 1) * log_beta2);
        *decay *= MATH(expm1)(step * log_beta2) / bias;
        *rest /= -bias;
    }
}

/* Rows to groups: the moments by row, and the sum of those of a group. */
KERNEL(adafactor_rows, LANES)
(BUF(const u8, grad), BUF(const f32, norm_scale), BUF(const i64, steps), BUF(R, row),
 BUF(R, row_parts), const adafactor_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const u8, grad);
    OPEN(const f32, norm_scale);
    OPEN(const i64, steps);
    OPEN(R, row);
    OPEN(R, row_parts);
    const f32 norm = norm_scale_of(norm_scale);
    const R scale = NUM(a.grad_scale) * norm, eps = NUM(a.eps);
    R total = 0, decay, rest;
    if (norm == 0)
        return;
    NAME(factor_decay)(&a, steps, &decay, &rest);
    for (i64 k = GROUP(0); k < a.rows; k += GROUPS(0)) {
        R sum = 0;
        for (i64 run = LANE; run * VEC < a.cols; run += LANES) {
            const i32 count = run_length(a.cols, run * VEC, VEC);
            R g[VEC];
            NAME(factor_load)(&a, grad, scale, k, run, g);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                sum += e < count ? g[e] * g[e] + eps : (R)0;
        }
        sum = NAME(tree_sum)(scratch, LANE, LANES, sum);
        if (LANE == 0) {
            const R v = decay * row[k] + rest * (sum / (R)a.cols);
            row[k] = v;
            total += v;
        }
    }
    if (LANE == 0)
        row_parts[GROUP(0)] = total;
}

/* Sums over a share of the rows. */
KERNEL(adafactor_cols, LANES)
(BUF(const u8, grad), BUF(const f32, norm_scale), BUF(R, parts), const adafactor_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES * VEC];
    OPEN(const u8, grad);
    OPEN(const f32, norm_scale);
    OPEN(R, parts);
    const f32 norm = norm_scale_of(norm_scale);
    const R scale = NUM(a.grad_scale) * norm, eps = NUM(a.eps);
    const i32 lanes_row = LANES / a.lanes_run, lane_row = LANE / a.lanes_run;
    const i64 run = GROUP(0) * a.lanes_run + LANE % a.lanes_run;
    const i64 end = (GROUP(1) + 1) * a.share < a.rows ? (GROUP(1) + 1) * a.share : a.rows;
    R sum[VEC];
    if (norm == 0)
        return;
    for (i32 e = 0; e < VEC; e++)
        sum[e] = 0;
    for (i64 k = GROUP(1) * a.share + lane_row; run * VEC < a.cols && k < end; k += lanes_row) {
        R g[VEC];
        NAME(factor_load)(&a, grad, scale, k, run, g);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            sum[e] += g[e] * g[e] + eps;
    }
    NAME(column_join)(scratch, a.lanes_run, sum);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        if (lane_row == 0 && run * VEC + e < a.cols)
            parts[GROUP(1) * a.cols + run * VEC + e] = sum[e];
}

/* The moments by column. A group sums SHARE_COLS columns. */
KERNEL(adafactor_col, LANES)
(BUF(const R, parts), BUF(const f32, norm_scale), BUF(const i64, steps), BUF(R, col),
 const adafactor_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const R, parts);
    OPEN(const f32, norm_scale);
    OPEN(const i64, steps);
    OPEN(R, col);
    R decay, rest;
    if (norm_scale_of(norm_scale) == 0)
        return;
    NAME(factor_decay)(&a, steps, &decay, &rest);
    for (i64 first = GROUP(0) * SHARE_COLS; first < a.cols; first += GROUPS(0) * SHARE_COLS) {
        const i64 c = first + LANE % SHARE_COLS;
        const R sum = NAME(shares_sum)(scratch, SHARE_COLS, parts, a.shares, a.cols, c);
        if (LANE < SHARE_COLS && c < a.cols)
            col[c] = decay * col[c] + rest * (sum / (R)a.rows);
    }
}

/* What divides the gradients of row k. */
DEVICE R NAME(factor_row)(const GLOBAL R *row, i64 k, R mean)
{
    return row ? MATH(sqrt)(row[k] / mean) : (R)1;
}

/* A run of steps before they are clipped; 0 past the end. */
DEVICE void NAME(factor_step)(const adafactor_arg *a, const GLOBAL u8 *grad, const GLOBAL R *col,
                              const GLOBAL R *row, R scale, R mean, const walk *w, R *x)
{
    const i32 count = run_length(a->cols, w->run * VEC, VEC);
    const R by_row = NAME(factor_row)(row, w->row, mean);
    R c[VEC];
    NAME(factor_load)(a, grad, scale, w->row, w->run, x);
    NAME(load_part)(SIMT_CODE, col, w->run * VEC, 1, count, a->col_vector, c);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        x[e] = e < count ? x[e] / by_row / MATH(sqrt)(c[e]) : (R)0;
}

/* The sum of the squares of a group's steps. */
KERNEL(adafactor_square, LANES)
(BUF(const u8, grad), BUF(const f32, norm_scale), BUF(const R, col), BUF(const R, row),
 BUF(const R, row_parts), BUF(R, square_parts), const adafactor_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const u8, grad);
    OPEN(const f32, norm_scale);
    OPEN(const R, col);
    OPEN(const R, row);
    OPEN(const R, row_parts);
    OPEN(R, square_parts);
    const f32 norm = norm_scale_of(norm_scale);
    if (norm == 0)
        return;
    const R mean = NAME(list_sum)(scratch, row_parts, row ? a.row_parts : 0) / (R)a.rows;
    const R scale = NUM(a.grad_scale) * norm;
    R sum = 0;
    for (walk w = walk_start(a.rows, a.cols, VEC); w.left > 0; walk_next(&w)) {
        R x[VEC];
        NAME(factor_step)(&a, grad, col, row, scale, mean, &w, x);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            sum += x[e] * x[e];
    }
    sum = NAME(tree_sum)(scratch, LANE, LANES, sum);
    if (LANE == 0)
        square_parts[GROUP(0)] = sum;
}

KERNEL(adafactor_step, LANES)
(BUF(R, param), BUF(const u8, grad), BUF(const f32, norm_scale), BUF(const R, col),
 BUF(const R, row), BUF(const R, row_parts), BUF(const R, square_parts), const adafactor_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(R, param);
    OPEN(const u8, grad);
    OPEN(const f32, norm_scale);
    OPEN(const R, col);
    OPEN(const R, row);
    OPEN(const R, row_parts);
    OPEN(const R, square_parts);
    const f32 norm = norm_scale_of(norm_scale);
    if (norm == 0)
        return;
    const R mean = NAME(list_sum)(scratch, row_parts, row ? a.row_parts : 0) / (R)a.rows;
    const R square = NAME(list_sum)(scratch, square_parts, a.square_parts);
    const R rms = MATH(sqrt)(square / ((R)a.rows * (R)a.cols));
    const R rate = NUM(a.rate) / MATH(fmax)((R)1, rms / NUM(a.clip));
    const R scale = NUM(a.grad_scale) * norm;
    for (walk w = walk_start(a.rows, a.cols, VEC); w.left > 0; walk_next(&w)) {
        const i64 i = w.row * a.cols + w.run * VEC;
        const i32 count = run_length(a.cols, w.run * VEC, VEC);
        R x[VEC], p[VEC];
        NAME(factor_step)(&a, grad, col, row, scale, mean, &w, x);
        NAME(load_part)(SIMT_CODE, param, i, 1, count, a.vector, p);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            p[e] -= rate * x[e];
        NAME(store_part)(SIMT_CODE, param, i, 1, count, a.vector, p);
    }
}
#endif

#endif
