/* Kernels of bias_act and bias_act_grad, for the type that type.h set. */

/* Adds the bias to a run. */
DEVICE void NAME(bias_add)(i32 on, const GLOBAL R *bias, const walk *w, i32 count, i32 vector, R *v)
{
    R b[VEC];
    if (on == BIAS_COL) {
        NAME(load_part)(R_TYPE, bias, w->run * VEC, 1, count, vector, b);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] += b[e];
    } else if (on == BIAS_ROW) {
        b[0] = bias[w->row];
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] += b[0];
    }
}

#if LANES > 1
/* The bias of a run. */
DEVICE void NAME(bias_load_packed)(i32 on, const GLOBAL R *bias, i64 row, i64 run, R *b)
{
    if (on == BIAS_COL)
        NAME(load_run)(R_TYPE, bias, run * VEC, b);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        b[e] = on == BIAS_COL ? b[e] : on == BIAS_ROW ? bias[row] : (R)0;
}

DEVICE void NAME(bias_add_packed)(i32 on, const GLOBAL R *bias, i64 row, i64 run, R *v)
{
    R b[VEC];
    NAME(bias_load_packed)(on, bias, row, run, b);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        v[e] += b[e];
}
#endif

KERNEL(bias_act, LANES)
(BUF(const T, x), BUF(const R, bias), BUF(u8, y), const bias_act_arg a)
{
    QUEUE_WAIT();
    OPEN(const T, x);
    OPEN(const R, bias);
    OPEN(u8, y);
    walk w = walk_start(a.rows, a.cols, VEC);
    NO_UNROLL
    for (; w.left > 0; walk_next(&w)) {
        const i32 count = run_length(a.cols, w.run * VEC, VEC);
        R v[VEC];
        NAME(load_part)
        (HALF_TYPE(a.x_type), x, w.row * a.x_row + w.run * VEC * a.x_col, a.x_col, count, a.vector,
         v);
        NAME(bias_add)(a.bias, bias, &w, count, a.bias_vector, v);
        NAME(act_turn)(a.act, v);
        NAME(store_part)
        (a.y_type, y, w.row * a.y_row + w.run * VEC * a.y_col, a.y_col, count, a.vector, v);
    }
}

#if LANES > 1
/* The same for packed runs. Lanes keep the bias of a column, if features are columns, and go down the
 * rows of their group's share; BIAS_ROWS of them are read at a time. Group (i, j): share i of the
 * rows, lanes_run runs from j * lanes_run on. */
#undef BIAS_ROWS
#define BIAS_ROWS 4
KERNEL(bias_act_packed, LANES)
(BUF(const T, x), BUF(const R, bias), BUF(T, y), const bias_act_arg a)
{
    QUEUE_WAIT();
    OPEN(const T, x);
    OPEN(const R, bias);
    OPEN(T, y);
    const i32 down = LANES / a.lanes_run;
    const i64 run = GROUP(1) * a.lanes_run + LANE % a.lanes_run, end = (GROUP(0) + 1) * a.share;
    const i64 last = run * VEC < a.cols ? (end < a.rows ? end : a.rows) : 0;
    R b[VEC];
    if (a.bias == BIAS_COL && last > 0)
        NAME(bias_load_packed)(BIAS_COL, bias, 0, run, b);
    NO_UNROLL
    for (i64 row = GROUP(0) * a.share + LANE / a.lanes_run; row < last; row += BIAS_ROWS * down) {
        u32x4 q[BIAS_ROWS];
        UNROLL
        for (i32 u = 0; u < BIAS_ROWS; u++)
            if (row + u * down < last)
                q[u] = *(const GLOBAL u32x4 *)(x + (row + u * down) * a.x_row + run * VEC);
        UNROLL_RUNS
        for (i32 u = 0; u < BIAS_ROWS; u++) {
            if (row + u * down < last) {
                R v[VEC];
                NAME(unpack_run)(a.x_type, q[RUN_NOW(u)], v);
                if (a.bias == BIAS_ROW)
                    NAME(bias_load_packed)(BIAS_ROW, bias, row + u * down, run, b);
                UNROLL
                for (i32 e = 0; e < VEC; e++)
                    v[e] += a.bias == BIAS_NONE ? (R)0 : b[e];
                NAME(act_run)(a.act, v);
                NAME(store_run)
                (HALF_TYPE(a.x_type), (GLOBAL u8 *)y, (row + u * down) * a.y_row + run * VEC, v);
            }
#ifdef ROLLED_RUNS
            UNROLL
            for (i32 next = 1; next < BIAS_ROWS; next++)
                q[next - 1] = q[next];
#endif
        }
    }
}
#endif

/* One run of dx, which is 0 past the end. x is not read where the activation is none. */
DEVICE void NAME(slope_part)(const bias_act_grad_arg *a, const GLOBAL T *dy, const GLOBAL u8 *x,
                             const GLOBAL R *bias, const walk *w, R *d)
{
    const i64 col = w->run * VEC;
    const i32 count = run_length(a->cols, col, VEC);
    R v[VEC];
    NAME(load_part)
    (HALF_TYPE(a->dy_type), dy, w->row * a->dy_row + col * a->dy_col, a->dy_col, count, a->vector,
     d);
    if (a->act == ACT_NONE)
        return;
    NAME(load_part)
    (a->x_type, x, w->row * a->x_row + col * a->x_col, a->x_col, count, a->vector, v);
    NAME(bias_add)(a->bias, bias, w, count, a->bias_vector, v);
    NAME(slope_turn)(a->act, v, d);
}

#if LANES > 1
/* The same for a packed run: q[0] of dy, q[1] of x. */
DEVICE void NAME(slope_load)(const bias_act_grad_arg *a, const GLOBAL T *dy, const GLOBAL u8 *x,
                             i64 row, i64 run, u32x4 *q)
{
    q[0] = *(const GLOBAL u32x4 *)(dy + row * a->dy_row + run * VEC);
    if (a->act != ACT_NONE)
        q[1] = *(const GLOBAL u32x4 *)((const GLOBAL T *)x + row * a->x_row + run * VEC);
}

/* The second of two takes the place of the first. */
DEVICE void NAME(slope_next)(u32x4 (*q)[2])
{
#ifdef ROLLED_RUNS
    q[0][0] = q[1][0];
    q[0][1] = q[1][1];
#endif
}

DEVICE void NAME(slope_packed)(const bias_act_grad_arg *a, const R *b, GLOBAL u8 *dx, i64 row,
                               i64 run, const u32x4 *q, R *d)
{
    R v[VEC];
    NAME(unpack_run)(a->dy_type, q[0], d);
    if (a->act != ACT_NONE) {
        NAME(unpack_run)(a->dy_type, q[1], v);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] += b[e];
        NAME(slope_run)(a->act, v, d);
    }
    if (dx)
        NAME(store_run)(a->dx_type, dx, row * a->dx_row + run * VEC, d);
}
#endif

DEVICE void NAME(slope_store)(const bias_act_grad_arg *a, const walk *w, GLOBAL u8 *dx, const R *d)
{
    const i64 col = w->run * VEC;
    NAME(blend_part)
    (a->dx_type, dx, w->row * a->dx_row + col * a->dx_col, a->dx_col, run_length(a->cols, col, VEC),
     a->vector, NUM(a->dx_alpha), NUM(a->dx_beta), d);
}

KERNEL(bias_act_grad, LANES)
(BUF(const T, dy), BUF(const u8, x), BUF(const R, bias), BUF(u8, dx), const bias_act_grad_arg a)
{
    QUEUE_WAIT();
    OPEN(const T, dy);
    OPEN(const u8, x);
    OPEN(const R, bias);
    OPEN(u8, dx);
    walk w = walk_start(a.rows, a.cols, VEC);
    R d[VEC];
#if LANES > 1
    while (a.packed && w.left >= 2) {
        u32x4 q[2][2];
        walk at[2];
        UNROLL
        for (i32 u = 0; u < 2; u++) {
            at[u] = w;
            NAME(slope_load)(&a, dy, x, w.row, w.run, q[u]);
            walk_next(&w);
        }
        UNROLL_RUNS
        for (i32 u = 0; u < 2; u++) {
            R b[VEC];
            NAME(bias_load_packed)
            (a.bias, bias, at[RUN_NOW(u)].row, at[RUN_NOW(u)].run, b);
            NAME(slope_packed)
            (&a, b, dx, at[RUN_NOW(u)].row, at[RUN_NOW(u)].run, q[RUN_NOW(u)], d);
#ifdef ROLLED_RUNS
            at[0] = at[1];
#endif
            NAME(slope_next)(q);
        }
    }
#endif
    NO_UNROLL
    for (; w.left > 0; walk_next(&w)) {
        NAME(slope_part)(&a, dy, x, bias, &w, d);
        NAME(slope_store)(&a, &w, dx, d);
    }
}

/* Rows that a lane of the next kernel has under way. */
#undef ROWS_UNDERWAY
#define ROWS_UNDERWAY 2

/* dx, where given, and partial sums of it; features are columns. Group (i, j): runs from
 * i * lanes_run on, share j of the rows. */
KERNEL(bias_act_grad_cols, LANES)
(BUF(const T, dy), BUF(const u8, x), BUF(const R, bias), BUF(u8, dx), BUF(R, partial),
 const bias_act_grad_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES * VEC];
    OPEN(const T, dy);
    OPEN(const u8, x);
    OPEN(const R, bias);
    OPEN(u8, dx);
    OPEN(R, partial);
    const i32 lanes_row = LANES / a.lanes_run, lane_row = LANE / a.lanes_run;
    walk w;
    w.run = GROUP(0) * a.lanes_run + LANE % a.lanes_run;
    w.row = GROUP(1) * a.share + lane_row;
    i64 end = (GROUP(1) + 1) * a.share < a.rows ? (GROUP(1) + 1) * a.share : a.rows;
    if (w.run * VEC >= a.cols)
        end = 0;
    R sum[VEC], d[VEC];
    for (i32 e = 0; e < VEC; e++)
        sum[e] = 0;
#if LANES > 1
    R b[VEC];
    if (a.packed && w.row < end)
        NAME(bias_load_packed)(a.bias, bias, w.row, w.run, b);
    NO_UNROLL
    for (; a.packed && w.row + (ROWS_UNDERWAY - 1) * lanes_row < end;
         w.row += ROWS_UNDERWAY * lanes_row) {
        u32x4 q[ROWS_UNDERWAY][2];
        UNROLL
        for (i32 u = 0; u < ROWS_UNDERWAY; u++)
            NAME(slope_load)(&a, dy, x, w.row + u * lanes_row, w.run, q[u]);
        UNROLL_RUNS
        for (i32 u = 0; u < ROWS_UNDERWAY; u++) {
            NAME(slope_packed)(&a, b, dx, w.row + u * lanes_row, w.run, q[RUN_NOW(u)], d);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                sum[e] += d[e];
            NAME(slope_next)(q);
        }
    }
#endif
    NO_UNROLL
    for (; w.row < end; w.row += lanes_row) {
        NAME(slope_part)(&a, dy, x, bias, &w, d);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            sum[e] += d[e];
        if (dx)
            NAME(slope_store)(&a, &w, dx, d);
    }
    NAME(column_join)(scratch, a.lanes_run, sum);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        if (lane_row == 0 && w.run * VEC + e < a.cols)
            partial[GROUP(1) * a.cols + w.run * VEC + e] = sum[e];
}

#if LANES > 1
/* Rows that a lane of the next kernel has under way. */
#undef SUMS_UNDERWAY
#define SUMS_UNDERWAY 8

/* Partial sums of packed dy alone. */
KERNEL(bias_grad_cols, LANES)(BUF(const T, dy), BUF(R, partial), const bias_act_grad_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES * VEC];
    OPEN(const T, dy);
    OPEN(R, partial);
    const i32 lanes_row = LANES / a.lanes_run, lane_row = LANE / a.lanes_run;
    const i64 run = GROUP(0) * a.lanes_run + LANE % a.lanes_run;
    const i64 share_end = (GROUP(1) + 1) * a.share < a.rows ? (GROUP(1) + 1) * a.share : a.rows;
    const i64 end = run * VEC < a.cols ? share_end : 0;
    const GLOBAL T *const from = dy + run * VEC;
    i64 row = GROUP(1) * a.share + lane_row;
    R sum[VEC], d[VEC];
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        sum[e] = 0;
    NO_UNROLL
    for (; row < end; row += SUMS_UNDERWAY * lanes_row) {
        u32x4 q[SUMS_UNDERWAY];
        UNROLL
        for (i32 u = 0; u < SUMS_UNDERWAY; u++)
            if (row + u * lanes_row < end)
                q[u] = *(const GLOBAL u32x4 *)(from + (row + u * lanes_row) * a.dy_row);
        UNROLL
        for (i32 u = 0; u < SUMS_UNDERWAY; u++)
            if (row + u * lanes_row < end) {
                NAME(unpack_run)(a.dy_type, q[u], d);
                UNROLL
                for (i32 e = 0; e < VEC; e++)
                    sum[e] += d[e];
            }
    }
    NAME(column_join)(scratch, a.lanes_run, sum);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        if (lane_row == 0 && run * VEC < a.cols)
            partial[GROUP(1) * a.cols + run * VEC + e] = sum[e];
}
#endif

/* The same where features are rows. Group (i, j): row i, share j of its runs. */
KERNEL(bias_act_grad_rows, LANES)
(BUF(const T, dy), BUF(const u8, x), BUF(const R, bias), BUF(u8, dx), BUF(R, partial),
 const bias_act_grad_arg a)
{
    QUEUE_WAIT();
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
    w.run = GROUP(1) * a.share + LANE;
    R sum = 0, d[VEC];
#if LANES > 1
    R b[VEC];
    if (a.packed && w.run < end)
        NAME(bias_load_packed)(a.bias, bias, w.row, w.run, b);
    NO_UNROLL
    for (; a.packed && w.run + a.lanes_run < end; w.run += 2 * a.lanes_run) {
        u32x4 q[2][2];
        UNROLL
        for (i32 u = 0; u < 2; u++)
            NAME(slope_load)(&a, dy, x, w.row, w.run + u * a.lanes_run, q[u]);
        UNROLL_RUNS
        for (i32 u = 0; u < 2; u++) {
            NAME(slope_packed)(&a, b, dx, w.row, w.run + u * a.lanes_run, q[RUN_NOW(u)], d);
            R part = 0;
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                part += d[e];
            sum += part;
            NAME(slope_next)(q);
        }
    }
#endif
    NO_UNROLL
    for (; w.run < end; w.run += a.lanes_run) {
        R part = 0;
        NAME(slope_part)(&a, dy, x, bias, &w, d);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            part += d[e];
        sum += part;
        if (dx)
            NAME(slope_store)(&a, &w, dx, d);
    }
    sum = NAME(tree_sum)(scratch, LANE, LANES, sum);
    if (LANE == 0)
        partial[GROUP(1) * a.rows + w.row] = sum;
}

/* A group sums SHARE_COLS features. */
KERNEL(dbias_finish, LANES)(BUF(const R, partial), BUF(R, dbias), const dbias_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const R, partial);
    OPEN(R, dbias);
    const R alpha = NUM(a.alpha), beta = NUM(a.beta);
    for (i64 first = GROUP(0) * SHARE_COLS; first < a.features; first += GROUPS(0) * SHARE_COLS) {
        const i64 feature = first + LANE % SHARE_COLS;
        const R sum = NAME(shares_sum)(scratch, SHARE_COLS, partial, a.shares, a.features, feature);
        if (LANE < SHARE_COLS && feature < a.features)
            dbias[feature] = beta != 0 ? alpha * sum + beta * dbias[feature] : alpha * sum;
    }
}
