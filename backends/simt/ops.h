/* Kernels of the dense companions and the optimizers. The host's side (ops.c, adam.c) includes this
 * file without SIMT_T for the structs of scalars. */
#ifndef BSKI_SIMT_OPS_H
#define BSKI_SIMT_OPS_H

/* Matrices are walked by rows (outer) and columns (inner, where runs of VEC elements lie);
 * <name>_row and <name>_col are strides. `vector`: every run is aligned and of stride 1. */

typedef struct embedding_arg {
    i64 rows, cols, table_rows;
    i64 table_row, table_col, y_row, y_col;
    i32 index_type, y_type, vector;
} embedding_arg;

/* Sorting the indices by table row: stable, eight bits a pass. Digits are counted for each chunk of
 * SORT_TILE * tiles indices; counts are [256][chunks]. Indices outside the table become the key
 * table_rows, which comes last. */
enum { SORT_TILE = 256, SORT_DIGITS = 256 };

typedef struct sort_arg {
    i64 count, table_rows;
    i32 chunks, tiles, shift, first, index_type;
} sort_arg;

/* Sums over the sorted list. Table rows that occur more than PART_COUNT times get partial sums, two
 * for each PART_COUNT positions: of the row that holds the first one, and of the row that holds the
 * last one. */
enum { PART_COUNT = 256 };

typedef struct embedding_grad_arg {
    i64 count, parts, rows, cols;
    i64 dy_row, dtable_row;
    i64 alpha, beta; /* NUM */
    i32 dy_type, dtable_type, dy_vector, dtable_vector;
} embedding_grad_arg;

/* Values of bsk_act. */
enum { ACT_NONE = 0, ACT_RELU = 1, ACT_GELU = 2, ACT_GELU_ERF = 3, ACT_SILU = 4,
       ACT_QUICK_GELU = 5 };

/* Which axis of the walk the features lie on. */
enum { BIAS_NONE = 0, BIAS_COL = 1, BIAS_ROW = 2 };

typedef struct bias_act_arg {
    i64 rows, cols;
    i64 x_row, x_col, y_row, y_col;
    i32 act, bias, y_type, vector;
} bias_act_arg;

/* Sums by feature: a group takes `lanes_run` runs next to each other and LANES / lanes_run rows at
 * a time of its share of the rows. partial is [shares][features]. */
typedef struct bias_act_grad_arg {
    i64 rows, cols;
    i64 dy_row, dy_col, x_row, x_col, dx_row, dx_col;
    i64 share; /* rows (features are columns) or runs (features are rows) of a share */
    i32 act, bias, x_type, dx_type, vector;
    i32 lanes_run;
} bias_act_grad_arg;

typedef struct dbias_arg {
    i64 features, shares;
    i64 alpha, beta; /* NUM */
} dbias_arg;

typedef struct cross_entropy_arg {
    i64 rows, classes, logits_row, dlogits_row, ignore_index;
    i64 alpha, smoothing; /* NUM */
    i32 use_ignore_index, label_type, dlogits_type, vector, dlogits_vector;
} cross_entropy_arg;

typedef struct adam_arg {
    i64 rows, cols;
    i64 beta1, rest1, beta2, rest2, eps, grad_scale, rate, decay, clip_sigma; /* NUM */
    i32 grad_type, copy_type, vector;
} adam_arg;

typedef struct adam_live_arg {
    i64 rows, cols;
    i32 grad_type, vector;
} adam_live_arg;

#endif

#ifdef SIMT_T
#undef LANES
#ifdef WIDE
#define LANES 1
#else
#define LANES 256
#endif
#include "lanes.h"

/* Runs that a lane has under way. */
#ifndef UNDERWAY
#define UNDERWAY 4
#endif

/* ================================================================================ embedding ==== */

KERNEL(embedding, LANES)
(BUF(const T, table), BUF(const u8, index), BUF(u8, y), const embedding_arg a)
{
    OPEN(const T, table);
    OPEN(const u8, index);
    OPEN(u8, y);
    walk w = walk_start(a.rows, a.cols, VEC);
    while (w.left > 0) {
        R v[UNDERWAY][VEC];
        walk at[UNDERWAY];
        UNROLL
        for (i32 u = 0; u < UNDERWAY; u++) {
            at[u] = w;
            if (w.left > 0) {
                const i64 col = w.run * VEC, from = load_index(a.index_type, index, w.row);
                const i32 inside = from >= 0 && from < a.table_rows;
                NAME(load_part)(SIMT_CODE, table,
                                (inside ? from * a.table_row : 0) + col * a.table_col, a.table_col,
                                inside ? run_length(a.cols, col, VEC) : 0, a.vector, v[u]);
            }
            walk_next(&w);
        }
        UNROLL
        for (i32 u = 0; u < UNDERWAY; u++)
            if (at[u].left > 0) {
                const i64 col = at[u].run * VEC;
                NAME(store_part)(a.y_type, y, at[u].row * a.y_row + col * a.y_col, a.y_col,
                                 run_length(a.cols, col, VEC), a.vector, v[u]);
            }
    }
}

/* Blocks and rows as they are: the bits move unchanged. */
KERNEL(copy_rows, LANES)
(BUF(const T, table), BUF(const u8, index), BUF(T, y), const embedding_arg a)
{
    OPEN(const T, table);
    OPEN(const u8, index);
    OPEN(T, y);
    for (walk w = walk_start(a.rows, a.cols, VEC); w.left > 0; walk_next(&w)) {
        const i64 col = w.run * VEC, from = load_index(a.index_type, index, w.row);
        const i32 inside = from >= 0 && from < a.table_rows;
        const i32 count = run_length(a.cols, col, VEC);
        const i64 x_at = (inside ? from * a.table_row : 0) + col * a.table_col;
        const i64 y_at = w.row * a.y_row + col * a.y_col;
#if LANES > 1
        if (a.vector && count == VEC) {
            u32x4 q = {0, 0, 0, 0};
            if (inside)
                q = *(const GLOBAL u32x4 *)(table + x_at);
            *(GLOBAL u32x4 *)(y + y_at) = q;
            continue;
        }
#endif
        for (i32 e = 0; e < count; e++)
            y[y_at + e * a.y_col] = inside ? table[x_at + e * a.table_col] : 0;
    }
}

/* =========================================================================== embedding_grad ==== */

DEVICE i32 NAME(sort_key)(const sort_arg *a, const GLOBAL u8 *index, const GLOBAL i32 *keys, i64 i)
{
    if (!a->first)
        return keys[i];
    const i64 row = load_index(a->index_type, index, i);
    return (i32)(row >= 0 && row < a->table_rows ? row : a->table_rows);
}

/* Digits of the tile that starts at position `first`; SORT_DIGITS past the end. */
DEVICE void NAME(sort_tile)(const sort_arg *a, const GLOBAL u8 *index, const GLOBAL i32 *keys,
                            i64 first, LOCAL_ARG i32 *tile)
{
    for (i32 l = LANE; l < SORT_TILE; l += LANES)
        tile[l] = first + l < a->count
                      ? NAME(sort_key)(a, index, keys, first + l) >> a->shift & (SORT_DIGITS - 1)
                      : SORT_DIGITS;
}

DEVICE i32 NAME(sort_matches)(const LOCAL_ARG i32 *tile, i32 count, i32 digit)
{
    i32 sum = 0;
    for (i32 l = 0; l < count; l++)
        sum += tile[l] == digit;
    return sum;
}

KERNEL(sort_count, LANES)
(BUF(const u8, index), BUF(const i32, keys), BUF(i32, counts), const sort_arg a)
{
    LOCAL i32 tile[SORT_TILE];
    LOCAL i32 sum[SORT_DIGITS];
    OPEN(const u8, index);
    OPEN(const i32, keys);
    OPEN(i32, counts);
    for (i32 d = LANE; d < SORT_DIGITS; d += LANES)
        sum[d] = 0;
    for (i32 t = 0; t < a.tiles; t++) {
        NAME(sort_tile)(&a, index, keys, (GROUP(0) * a.tiles + t) * SORT_TILE, tile);
        SYNC();
        for (i32 d = LANE; d < SORT_DIGITS; d += LANES)
            sum[d] += NAME(sort_matches)(tile, SORT_TILE, d);
        SYNC();
    }
    for (i32 d = LANE; d < SORT_DIGITS; d += LANES)
        counts[(i64)d * a.chunks + GROUP(0)] = sum[d];
}

/* Counts become positions: digit by digit, within a digit chunk by chunk. One group. */
KERNEL(sort_scan, LANES)(BUF(i32, counts), const sort_arg a)
{
    LOCAL i32 start[SORT_DIGITS];
    OPEN(i32, counts);
    for (i32 d = LANE; d < SORT_DIGITS; d += LANES) {
        i32 sum = 0;
        for (i32 c = 0; c < a.chunks; c++)
            sum += counts[(i64)d * a.chunks + c];
        start[d] = sum;
    }
    SYNC();
    if (LANE == 0) {
        i32 sum = 0;
        for (i32 d = 0; d < SORT_DIGITS; d++) {
            const i32 count = start[d];
            start[d] = sum;
            sum += count;
        }
    }
    SYNC();
    for (i32 d = LANE; d < SORT_DIGITS; d += LANES) {
        i32 sum = start[d];
        for (i32 c = 0; c < a.chunks; c++) {
            const i32 count = counts[(i64)d * a.chunks + c];
            counts[(i64)d * a.chunks + c] = sum;
            sum += count;
        }
    }
}

KERNEL(sort_move, LANES)
(BUF(const u8, index), BUF(const i32, keys), BUF(const i32, values), BUF(const i32, counts),
 BUF(i32, keys_out), BUF(i32, values_out), const sort_arg a)
{
    LOCAL i32 tile[SORT_TILE];
    LOCAL i32 next[SORT_DIGITS];
    OPEN(const u8, index);
    OPEN(const i32, keys);
    OPEN(const i32, values);
    OPEN(const i32, counts);
    OPEN(i32, keys_out);
    OPEN(i32, values_out);
    for (i32 d = LANE; d < SORT_DIGITS; d += LANES)
        next[d] = counts[(i64)d * a.chunks + GROUP(0)];
    for (i32 t = 0; t < a.tiles; t++) {
        const i64 first = (GROUP(0) * a.tiles + t) * SORT_TILE;
        NAME(sort_tile)(&a, index, keys, first, tile);
        SYNC();
        for (i32 l = LANE; l < SORT_TILE && first + l < a.count; l += LANES) {
            const i32 to = next[tile[l]] + NAME(sort_matches)(tile, l, tile[l]);
            keys_out[to] = NAME(sort_key)(&a, index, keys, first + l);
            values_out[to] = a.first ? (i32)(first + l) : values[first + l];
        }
        SYNC();
        for (i32 d = LANE; d < SORT_DIGITS; d += LANES)
            next[d] += NAME(sort_matches)(tile, SORT_TILE, d);
        SYNC();
    }
}

/* start[v]: the first position of the sorted keys that is not below v, v = 0 .. rows. */
KERNEL(embedding_starts, LANES)
(BUF(const i32, keys), BUF(i32, start), const embedding_grad_arg a)
{
    OPEN(const i32, keys);
    OPEN(i32, start);
    for (walk w = walk_start(a.rows + 1, 1, 1); w.left > 0; walk_next(&w)) {
        i64 low = 0, high = a.count;
        while (low < high) {
            const i64 middle = (low + high) / 2;
            if (keys[middle] < w.row)
                low = middle + 1;
            else
                high = middle;
        }
        start[w.row] = (i32)low;
    }
}

/* The sum of dy over positions first .. last - 1 of the sorted list, in that order. */
DEVICE void NAME(embedding_sum)(const embedding_grad_arg *a, const GLOBAL u8 *dy,
                                const GLOBAL i32 *values, i64 first, i64 last, i64 col, R *sum)
{
    const i32 count = run_length(a->cols, col, VEC);
    for (i32 e = 0; e < VEC; e++)
        sum[e] = 0;
    for (i64 p = first; p < last; p += UNDERWAY) {
        R v[UNDERWAY][VEC];
        UNROLL
        for (i32 u = 0; u < UNDERWAY; u++)
            if (p + u < last)
                NAME(load_part)(a->dy_type, dy, (i64)values[p + u] * a->dy_row + col, 1, count,
                                a->dy_vector, v[u]);
        UNROLL
        for (i32 u = 0; u < UNDERWAY; u++)
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                if (p + u < last)
                    sum[e] += v[u][e];
    }
}

KERNEL(embedding_parts, LANES)
(BUF(const u8, dy), BUF(const i32, keys), BUF(const i32, values), BUF(const i32, start),
 BUF(R, partial), const embedding_grad_arg a)
{
    OPEN(const u8, dy);
    OPEN(const i32, keys);
    OPEN(const i32, values);
    OPEN(const i32, start);
    OPEN(R, partial);
    for (walk w = walk_start(2 * a.parts, a.cols, VEC); w.left > 0; walk_next(&w)) {
        const i64 part = w.row / 2 * PART_COUNT;
        const i64 end = part + PART_COUNT < a.count ? part + PART_COUNT : a.count;
        const i32 row = keys[w.row & 1 ? end - 1 : part];
        if (row >= a.rows || start[row + 1] - start[row] <= PART_COUNT)
            continue;
        const i64 first = start[row] > part ? start[row] : part;
        const i64 last = start[row + 1] < end ? start[row + 1] : end;
        R sum[VEC];
        NAME(embedding_sum)(&a, dy, values, first, last, w.run * VEC, sum);
        const i32 count = run_length(a.cols, w.run * VEC, VEC);
        for (i32 e = 0; e < VEC; e++)
            if (e < count)
                partial[w.row * a.cols + w.run * VEC + e] = sum[e];
    }
}

KERNEL(embedding_grad, LANES)
(BUF(const u8, dy), BUF(const i32, values), BUF(const i32, start), BUF(const R, partial),
 BUF(u8, dtable), const embedding_grad_arg a)
{
    OPEN(const u8, dy);
    OPEN(const i32, values);
    OPEN(const i32, start);
    OPEN(const R, partial);
    OPEN(u8, dtable);
    const R alpha = NUM(a.alpha), beta = NUM(a.beta);
    for (walk w = walk_start(a.rows, a.cols, VEC); w.left > 0; walk_next(&w)) {
        const i64 col = w.run * VEC, first = start[w.row], last = start[w.row + 1];
        const i64 at = w.row * a.dtable_row + col;
        const i32 count = run_length(a.cols, col, VEC);
        R sum[VEC], old[VEC];
        if (last - first <= PART_COUNT)
            NAME(embedding_sum)(&a, dy, values, first, last, col, sum);
        else {
            /* The first part may hold other rows: then this one is its last. */
            i64 p = first / PART_COUNT, slot = 2 * p + (first % PART_COUNT != 0);
            for (i32 e = 0; e < VEC; e++)
                sum[e] = 0;
            for (; p <= (last - 1) / PART_COUNT; slot = 2 * ++p)
                for (i32 e = 0; e < VEC; e++)
                    if (e < count)
                        sum[e] += partial[slot * a.cols + col + e];
        }
        if (beta != 0)
            NAME(load_part)(a.dtable_type, dtable, at, 1, count, a.dtable_vector, old);
        for (i32 e = 0; e < VEC; e++)
            sum[e] = beta != 0 ? alpha * sum[e] + beta * old[e] : alpha * sum[e];
        NAME(store_part)(a.dtable_type, dtable, at, 1, count, a.dtable_vector, sum);
    }
}

/* ================================================================================= bias_act ==== */

#undef SQRT_2_OVER_PI
#undef SQRT_1_OVER_2
#define SQRT_2_OVER_PI ((R)0.79788456080286535588)
#define SQRT_1_OVER_2  ((R)0.70710678118654752440)

/* v(x) and v'(x) of an activation x * sigmoid(v(x)). */
DEVICE R NAME(act_argument)(i32 act, R x, R *slope)
{
    const R cubic = (R)0.044715;
    if (act == ACT_GELU) {
        *slope = 2 * SQRT_2_OVER_PI * (1 + 3 * cubic * x * x);
        return 2 * SQRT_2_OVER_PI * x * (1 + cubic * x * x);
    }
    *slope = act == ACT_SILU ? (R)1 : (R)1.702;
    return *slope * x;
}

DEVICE R NAME(act_of)(i32 act, R x)
{
    R slope;
    if (act == ACT_NONE)
        return x;
    if (act == ACT_RELU)
        return x <= 0 ? (R)0 : x; /* keeps NaN */
    if (act == ACT_GELU_ERF)
        return (R)0.5 * x * MATH(erfc)(-x * SQRT_1_OVER_2);
    return x / (1 + NAME(fast_exp)(-NAME(act_argument)(act, x, &slope)));
}

DEVICE R NAME(act_slope)(i32 act, R x)
{
    if (act == ACT_NONE)
        return 1;
    if (act == ACT_RELU)
        return x > 0 ? (R)1 : x <= 0 ? (R)0 : x;
    if (act == ACT_GELU_ERF)
        return (R)0.5 * MATH(erfc)(-x * SQRT_1_OVER_2) +
               x * ((R)0.5 * SQRT_2_OVER_PI) * NAME(fast_exp)((R)-0.5 * x * x);
    /* sigmoid(v) and sigmoid(-v), both without cancellation */
    R slope;
    const R v = NAME(act_argument)(act, x, &slope), t = NAME(fast_exp)(-MATH(fabs)(v));
    const R high = 1 / (1 + t), low = t * high, bend = high * low;
    return (v >= 0 ? high : v < 0 ? low : v) + (bend > 0 ? x * bend * slope : (R)0);
}

/* The bias of a run. */
DEVICE void NAME(bias_run)(i32 on, const GLOBAL R *bias, const walk *w, i32 count, R *b)
{
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        b[e] = on == BIAS_COL ? (e < count ? bias[w->run * VEC + e] : (R)0)
               : on == BIAS_ROW ? bias[w->row] : (R)0;
}

/* Branches on act once for a run. */
DEVICE void NAME(act_run)(i32 act, R *v)
{
#define EACH(code)                                                                                 \
    if (act == code) {                                                                       \
        UNROLL                                                                                     \
        for (i32 e = 0; e < VEC; e++)                                                              \
            v[e] = NAME(act_of)(code, v[e]);                                                 \
    }
    EACH(ACT_RELU)
    EACH(ACT_GELU)
    EACH(ACT_GELU_ERF)
    EACH(ACT_SILU)
    EACH(ACT_QUICK_GELU)
#undef EACH
}

/* d *= act'(v), element by element. */
DEVICE void NAME(slope_run)(i32 act, const R *v, R *d)
{
#define EACH(code)                                                                                 \
    if (act == code) {                                                                       \
        UNROLL                                                                                     \
        for (i32 e = 0; e < VEC; e++)                                                              \
            d[e] *= NAME(act_slope)(code, v[e]);                                             \
    }
    EACH(ACT_RELU)
    EACH(ACT_GELU)
    EACH(ACT_GELU_ERF)
    EACH(ACT_SILU)
    EACH(ACT_QUICK_GELU)
#undef EACH
}

KERNEL(bias_act, LANES)
(BUF(const T, x), BUF(const R, bias), BUF(u8, y), const bias_act_arg a)
{
    OPEN(const T, x);
    OPEN(const R, bias);
    OPEN(u8, y);
    walk w = walk_start(a.rows, a.cols, VEC);
    while (w.left > 0) {
        R v[UNDERWAY][VEC];
        walk at[UNDERWAY];
        UNROLL
        for (i32 u = 0; u < UNDERWAY; u++) {
            at[u] = w;
            if (w.left > 0)
                NAME(load_part)(SIMT_CODE, x, w.row * a.x_row + w.run * VEC * a.x_col, a.x_col,
                                run_length(a.cols, w.run * VEC, VEC), a.vector, v[u]);
            walk_next(&w);
        }
        UNROLL
        for (i32 u = 0; u < UNDERWAY; u++)
            if (at[u].left > 0) {
                const i32 count = run_length(a.cols, at[u].run * VEC, VEC);
                R b[VEC];
                NAME(bias_run)(a.bias, bias, &at[u], count, b);
                UNROLL
                for (i32 e = 0; e < VEC; e++)
                    v[u][e] += b[e];
                NAME(act_run)(a.act, v[u]);
                NAME(store_part)(a.y_type, y, at[u].row * a.y_row + at[u].run * VEC * a.y_col,
                                 a.y_col, count, a.vector, v[u]);
            }
    }
}

/* One run of dx, which is 0 past the end. x is not read where the activation is none. */
DEVICE void NAME(slope_part)(const bias_act_grad_arg *a, const GLOBAL T *dy, const GLOBAL u8 *x,
                             const GLOBAL R *bias, const walk *w, R *d)
{
    const i64 col = w->run * VEC;
    const i32 count = run_length(a->cols, col, VEC);
    R v[VEC], b[VEC];
    NAME(load_part)(SIMT_CODE, dy, w->row * a->dy_row + col * a->dy_col, a->dy_col, count,
                    a->vector, d);
    if (a->act == ACT_NONE)
        return;
    NAME(load_part)(a->x_type, x, w->row * a->x_row + col * a->x_col, a->x_col, count, a->vector,
                    v);
    NAME(bias_run)(a->bias, bias, w, count, b);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        v[e] += b[e];
    NAME(slope_run)(a->act, v, d);
}

DEVICE void NAME(slope_store)(const bias_act_grad_arg *a, const walk *w, GLOBAL u8 *dx, const R *d)
{
    const i64 col = w->run * VEC;
    NAME(store_part)(a->dx_type, dx, w->row * a->dx_row + col * a->dx_col, a->dx_col,
                     run_length(a->cols, col, VEC), a->vector, d);
}

KERNEL(bias_act_grad, LANES)
(BUF(const T, dy), BUF(const u8, x), BUF(const R, bias), BUF(u8, dx), const bias_act_grad_arg a)
{
    OPEN(const T, dy);
    OPEN(const u8, x);
    OPEN(const R, bias);
    OPEN(u8, dx);
    walk w = walk_start(a.rows, a.cols, VEC);
    while (w.left > 0) {
        R d[2][VEC];
        walk at[2];
        UNROLL
        for (i32 u = 0; u < 2; u++) {
            at[u] = w;
            if (w.left > 0)
                NAME(slope_part)(&a, dy, x, bias, &w, d[u]);
            walk_next(&w);
        }
        UNROLL
        for (i32 u = 0; u < 2; u++)
            if (at[u].left > 0)
                NAME(slope_store)(&a, &at[u], dx, d[u]);
    }
}

/* dx, where given, and partial sums of it; features are columns. Group (i, j): runs from
 * i * lanes_run on, share j of the rows. */
KERNEL(bias_act_grad_cols, LANES)
(BUF(const T, dy), BUF(const u8, x), BUF(const R, bias), BUF(u8, dx), BUF(R, partial),
 const bias_act_grad_arg a)
{
    LOCAL R scratch[LANES * VEC];
    OPEN(const T, dy);
    OPEN(const u8, x);
    OPEN(const R, bias);
    OPEN(u8, dx);
    OPEN(R, partial);
    const i32 lanes_row = LANES / a.lanes_run, lane_row = LANE / a.lanes_run;
    const i64 end = (GROUP(1) + 1) * a.share < a.rows ? (GROUP(1) + 1) * a.share : a.rows;
    walk w;
    w.run = GROUP(0) * a.lanes_run + LANE % a.lanes_run;
    R sum[VEC];
    for (i32 e = 0; e < VEC; e++)
        sum[e] = 0;
    if (w.run * VEC < a.cols)
        for (w.row = GROUP(1) * a.share + lane_row; w.row < end;) {
            R d[2][VEC];
            walk at[2];
            UNROLL
            for (i32 u = 0; u < 2; u++) {
                at[u] = w;
                if (w.row < end)
                    NAME(slope_part)(&a, dy, x, bias, &w, d[u]);
                w.row += lanes_row;
            }
            UNROLL
            for (i32 u = 0; u < 2; u++)
                if (at[u].row < end) {
                    UNROLL
                    for (i32 e = 0; e < VEC; e++)
                        sum[e] += d[u][e];
                    if (dx)
                        NAME(slope_store)(&a, &at[u], dx, d[u]);
                }
        }
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        scratch[e * LANES + LANE] = sum[e];
    SYNC();
    for (i32 half = lanes_row / 2; half > 0; half /= 2) {
        if (lane_row < half)
            for (i32 e = 0; e < VEC; e++)
                scratch[e * LANES + LANE] += scratch[e * LANES + LANE + half * a.lanes_run];
        SYNC();
    }
    for (i32 e = 0; lane_row == 0 && e < VEC && w.run * VEC + e < a.cols; e++)
        partial[GROUP(1) * a.cols + w.run * VEC + e] = scratch[e * LANES + LANE];
}

/* The same where features are rows. Group (i, j): row i, share j of its runs. */
KERNEL(bias_act_grad_rows, LANES)
(BUF(const T, dy), BUF(const u8, x), BUF(const R, bias), BUF(u8, dx), BUF(R, partial),
 const bias_act_grad_arg a)
{
    LOCAL R scratch[LANES];
    OPEN(const T, dy);
    OPEN(const u8, x);
    OPEN(const R, bias);
    OPEN(u8, dx);
    OPEN(R, partial);
    const i64 runs = (a.cols + VEC - 1) / VEC;
    const i64 end = (GROUP(1) + 1) * a.share < runs ? (GROUP(1) + 1) * a.share : runs;
    walk w;
    w.row = GROUP(0);
    R sum = 0;
    for (w.run = GROUP(1) * a.share + LANE; w.run < end; w.run += LANES) {
        R d[VEC];
        NAME(slope_part)(&a, dy, x, bias, &w, d);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            sum += d[e];
        if (dx)
            NAME(slope_store)(&a, &w, dx, d);
    }
    sum = NAME(tree_sum)(scratch, LANE, LANES, sum);
    if (LANE == 0)
        partial[GROUP(1) * a.rows + w.row] = sum;
}

KERNEL(dbias_finish, LANES)(BUF(const R, partial), BUF(R, dbias), const dbias_arg a)
{
    OPEN(const R, partial);
    OPEN(R, dbias);
    const R alpha = NUM(a.alpha), beta = NUM(a.beta);
    for (walk w = walk_start(a.features, 1, 1); w.left > 0; walk_next(&w)) {
        R sum = 0;
        for (i64 s = 0; s < a.shares; s++)
            sum += partial[s * a.features + w.row];
        dbias[w.row] = beta != 0 ? alpha * sum + beta * dbias[w.row] : alpha * sum;
    }
}

/* ============================================================================ cross_entropy ==== */

#undef LOWEST
#define LOWEST (-(R)INFINITY)

/* One row to a group at a time: a pass for the maximum and the sum of exp, rescaled whenever a
 * larger maximum is met, and a pass for the gradient, which finds the row in the cache. */
KERNEL(cross_entropy, LANES)
(BUF(const T, logits), BUF(const u8, labels), BUF(R, loss), BUF(u8, dlogits), BUF(const R, dloss),
 const cross_entropy_arg a)
{
    LOCAL R scratch[LANES];
    OPEN(const T, logits);
    OPEN(const u8, labels);
    OPEN(R, loss);
    OPEN(u8, dlogits);
    OPEN(const R, dloss);
    const i64 runs = (a.classes + VEC - 1) / VEC;
    const R alpha = NUM(a.alpha), smoothing = NUM(a.smoothing), base = smoothing / (R)a.classes;
    for (i64 n = GROUP(0); n < a.rows; n += GROUPS(0)) {
        const i64 label = load_index(a.label_type, labels, n);
        const i32 counts = label >= 0 && label < a.classes &&
                           !(a.use_ignore_index && label == a.ignore_index);
        R most = LOWEST, sum = 0, total = 0, chosen = 0;
        for (i64 r = LANE; counts && r < runs; r += UNDERWAY * LANES) {
            R v[UNDERWAY][VEC];
            UNROLL
            for (i32 u = 0; u < UNDERWAY; u++)
                if (r + u * LANES < runs)
                    NAME(load_part)(SIMT_CODE, logits, n * a.logits_row + (r + u * LANES) * VEC, 1,
                                    run_length(a.classes, (r + u * LANES) * VEC, VEC), a.vector,
                                    v[u]);
            UNROLL
            for (i32 u = 0; u < UNDERWAY; u++)
                if (r + u * LANES < runs) {
                    const i32 count = run_length(a.classes, (r + u * LANES) * VEC, VEC);
                    R high = most;
                    UNROLL
                    for (i32 e = 0; e < VEC; e++)
                        high = e < count && v[u][e] > high ? v[u][e] : high;
                    if (high > most)
                        sum *= NAME(fast_exp)(most - high);
                    most = high;
                    const R shift = most == LOWEST ? (R)0 : most;
                    UNROLL
                    for (i32 e = 0; e < VEC; e++)
                        if (e < count) {
                            sum += NAME(fast_exp)(v[u][e] - shift);
                            total += v[u][e];
                        }
                }
        }
        if (counts && LANE == 0)
            chosen = LD(logits, n * a.logits_row + label);
        GLOBAL_SYNC(); /* dlogits may be logits */
        const R row_most = NAME(tree_max)(scratch, LANE, LANES, most);
        if (most < row_most)
            sum *= NAME(fast_exp)(most - row_most);
        sum = NAME(tree_sum)(scratch, LANE, LANES, sum);
        if (smoothing > 0)
            total = NAME(tree_sum)(scratch, LANE, LANES, total);
        if (row_most == LOWEST)
            sum = row_most - row_most; /* only -infinity: NaN */
        if (loss && LANE == 0) {
            R l = MATH(log)(sum) - (1 - smoothing) * (chosen - row_most);
            if (smoothing > 0)
                l -= base * (total - (R)a.classes * row_most);
            loss[n] = counts ? l : (R)0;
        }
        if (!dlogits)
            continue;
        const R factor = !counts ? (R)0 : dloss ? alpha * dloss[n] : alpha, scale = 1 / sum;
        for (i64 r = LANE; r < runs; r += UNDERWAY * LANES) {
            R v[UNDERWAY][VEC];
            UNROLL
            for (i32 u = 0; u < UNDERWAY; u++)
                if (counts && r + u * LANES < runs)
                    NAME(load_part)(SIMT_CODE, logits, n * a.logits_row + (r + u * LANES) * VEC, 1,
                                    run_length(a.classes, (r + u * LANES) * VEC, VEC), a.vector,
                                    v[u]);
            UNROLL
            for (i32 u = 0; u < UNDERWAY; u++)
                if (r + u * LANES < runs) {
                    const i64 first = (r + u * LANES) * VEC;
                    UNROLL
                    for (i32 e = 0; e < VEC; e++) {
                        const R t = first + e == label ? base + (1 - smoothing) : base;
                        v[u][e] = counts ? factor *
                                               (NAME(fast_exp)(v[u][e] - row_most) * scale - t)
                                         : (R)0;
                    }
                    NAME(store_part)(a.dlogits_type, dlogits, n * a.dlogits_row + first, 1,
                                     run_length(a.classes, first, VEC), a.dlogits_vector, v[u]);
                }
        }
    }
}

/* ===================================================================================== adam ==== */
#if SIMT_CODE <= 2 /* moments are f32 or f64 */

/* live[k] = 1 if the gradient of row k has an element that is not 0. */
KERNEL(adam_live, LANES)(BUF(const u8, grad), BUF(i32, live), const adam_live_arg a)
{
    LOCAL R scratch[LANES];
    OPEN(const u8, grad);
    OPEN(i32, live);
    for (i64 k = GROUP(0); k < a.rows; k += GROUPS(0)) {
        R any = 0;
        for (i64 col = (i64)LANE * VEC; col < a.cols; col += LANES * VEC) {
            R g[VEC];
            NAME(load_part)(a.grad_type, grad, k * a.cols + col, 1, run_length(a.cols, col, VEC),
                            a.vector, g);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                any = g[e] != 0 ? (R)1 : any;
        }
        any = NAME(tree_max)(scratch, LANE, LANES, any);
        if (LANE == 0)
            live[k] = any != 0;
    }
}

KERNEL(adam, LANES)
(BUF(T, param), BUF(const u8, grad), BUF(T, m), BUF(T, v), BUF(const f32, norm_scale),
 BUF(const f32, gate), BUF(u8, copy), BUF(const i32, live), const adam_arg a)
{
    OPEN(T, param);
    OPEN(const u8, grad);
    OPEN(T, m);
    OPEN(T, v);
    OPEN(const f32, norm_scale);
    OPEN(const f32, gate);
    OPEN(u8, copy);
    OPEN(const i32, live);
    const f32 norm = norm_scale ? norm_scale[0] : 1;
    if (norm == 0 || norm - norm != 0) /* infinite or NaN */
        return;
    const R beta1 = NUM(a.beta1), rest1 = NUM(a.rest1), beta2 = NUM(a.beta2);
    const R rest2 = NUM(a.rest2), eps = NUM(a.eps), rate = NUM(a.rate), decay = NUM(a.decay);
    const R grad_scale = NUM(a.grad_scale) * norm, clip = NUM(a.clip_sigma);
    for (walk w = walk_start(a.rows, a.cols, VEC); w.left > 0; walk_next(&w)) {
        if ((gate && gate[w.row] == 0) || (live && !live[w.row]))
            continue;
        const i64 i = w.row * a.cols + w.run * VEC;
        const i32 count = run_length(a.cols, w.run * VEC, VEC);
        R g[VEC], mv[VEC], vv[VEC], pv[VEC];
        NAME(load_part)(a.grad_type, grad, i, 1, count, a.vector, g);
        NAME(load_part)(SIMT_CODE, m, i, 1, count, a.vector, mv);
        NAME(load_part)(SIMT_CODE, v, i, 1, count, a.vector, vv);
        NAME(load_part)(SIMT_CODE, param, i, 1, count, a.vector, pv);
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
        NAME(store_part)(SIMT_CODE, v, i, 1, count, a.vector, vv);
        NAME(store_part)(SIMT_CODE, m, i, 1, count, a.vector, mv);
        NAME(store_part)(SIMT_CODE, param, i, 1, count, a.vector, pv);
        if (copy)
            NAME(store_part)(a.copy_type, copy, i, 1, count, a.vector, pv);
    }
}

#endif
#endif
