/* Kernels of sparse_relu, in the unit of sums.h. */
#ifndef BSKI_SIMT_SPARSE_RELU_H
#define BSKI_SIMT_SPARSE_RELU_H

/* Rows are what N counts, whichever axis it is, and columns the features. A group takes
 * `group_rows` rows at a time, whose lanes are next to each other where rows_inner is set. */
typedef struct sparse_relu_arg {
    i64 rows, features;
    matrix_arg x, dy, y;     /* y: or dx */
    i64 sigmas, alpha, beta; /* NUM */
    i32 group_rows, rows_inner, constant_cut, pad;
} sparse_relu_arg;

#endif

#ifdef SIMT_T
/* Where a lane is: its row, the first of its runs, and lanes that share the row. */
typedef struct NAME(row_lane) {
    i64 row, runs; /* runs: 0 beyond the last row */
    i32 lane, lanes;
    LOCAL_ARG R *scratch;
} NAME(row_lane);

typedef struct NAME(row_cut) {
    R mean, std, cut;
} NAME(row_cut);

DEVICE NAME(row_lane) NAME(row_find)(const sparse_relu_arg *a, i64 first, LOCAL_ARG R *scratch)
{
    NAME(row_lane) r;
    r.lanes = LANES / a->group_rows;
    r.lane = a->rows_inner ? LANE / a->group_rows : LANE % r.lanes;
    const i32 at = a->rows_inner ? LANE % a->group_rows : LANE / r.lanes;
    r.row = first + at;
    r.runs = r.row < a->rows ? (a->features + VEC - 1) / VEC : 0;
    r.scratch = scratch + at * r.lanes;
    return r;
}

/* Mean and standard deviation of a row, in two passes. */
DEVICE NAME(row_cut)
    NAME(row_cut_of)(const sparse_relu_arg *a, const GLOBAL u8 *x, const NAME(row_lane) * r)
{
    NAME(row_cut) c;
    R v[VEC], sum = 0, square = 0;
    NO_UNROLL
    for (i64 run = r->lane; run < r->runs; run += r->lanes) {
        const i32 count = run_length(a->features, run * VEC, VEC);
        NAME(matrix_load)(&a->x, x, r->row, run * VEC, count, v);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            sum += v[e];
    }
    c.mean = NAME(tree_sum)(r->scratch, r->lane, r->lanes, sum) / (R)a->features;
    NO_UNROLL
    for (i64 run = r->lane; run < r->runs; run += r->lanes) {
        const i32 count = run_length(a->features, run * VEC, VEC);
        NAME(matrix_load)(&a->x, x, r->row, run * VEC, count, v);
        UNROLL
        for (i32 e = 0; e < VEC; e++) {
            const R d = v[e] - c.mean;
            square += e < count ? d * d : (R)0;
        }
    }
    square = NAME(tree_sum)(r->scratch, r->lane, r->lanes, square) / (R)a->features;
    c.std = MATH(sqrt)(square);
    /* 0 times a deviation beyond R is not NaN; one of NaN is */
    c.cut = NUM(a->sigmas) == 0 && c.std == c.std ? c.mean : c.mean + NUM(a->sigmas) * c.std;
    return c;
}

KERNEL(sparse_relu, LANES)(BUF(const u8, x), BUF(u8, y), const sparse_relu_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const u8, x);
    OPEN(u8, y);
    for (i64 first = GROUP(0) * a.group_rows; first < a.rows; first += GROUPS(0) * a.group_rows) {
        const NAME(row_lane) r = NAME(row_find)(&a, first, scratch);
        const NAME(row_cut) c = NAME(row_cut_of)(&a, x, &r);
        NO_UNROLL
        for (i64 run = r.lane; run < r.runs; run += r.lanes) {
            const i32 count = run_length(a.features, run * VEC, VEC);
            R v[VEC];
            NAME(matrix_load)(&a.x, x, r.row, run * VEC, count, v);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                v[e] = NAME(act_of)(ACT_RELU, v[e] - c.cut);
            NAME(matrix_store)(&a.y, y, r.row, run * VEC, count, v);
        }
    }
}

KERNEL(sparse_relu_grad, LANES)
(BUF(const u8, dy), BUF(const u8, x), BUF(u8, dx), const sparse_relu_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const u8, dy);
    OPEN(const u8, x);
    OPEN(u8, dx);
    const R alpha = NUM(a.alpha), beta = NUM(a.beta), sigmas = NUM(a.sigmas);
    for (i64 first = GROUP(0) * a.group_rows; first < a.rows; first += GROUPS(0) * a.group_rows) {
        const NAME(row_lane) r = NAME(row_find)(&a, first, scratch);
        const NAME(row_cut) c = NAME(row_cut_of)(&a, x, &r);
        const R inverse = c.std > 0 ? 1 / c.std : (R)0;
        R v[VEC], g[VEC], old[VEC], sum = 0;
        NO_UNROLL
        for (i64 run = r.lane; !a.constant_cut && run < r.runs; run += r.lanes) {
            const i32 count = run_length(a.features, run * VEC, VEC);
            NAME(matrix_load)(&a.x, x, r.row, run * VEC, count, v);
            NAME(matrix_load)(&a.dy, dy, r.row, run * VEC, count, g);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                sum += e < count ? g[e] * NAME(act_slope)(ACT_RELU, v[e] - c.cut) : (R)0;
        }
        if (!a.constant_cut)
            sum = NAME(tree_sum)(r.scratch, r.lane, r.lanes, sum) / (R)a.features;
        NO_UNROLL
        for (i64 run = r.lane; run < r.runs; run += r.lanes) {
            const i32 count = run_length(a.features, run * VEC, VEC);
            NAME(matrix_load)(&a.x, x, r.row, run * VEC, count, v);
            NAME(matrix_load)(&a.dy, dy, r.row, run * VEC, count, g);
            UNROLL
            for (i32 e = 0; e < VEC; e++) {
                const R live = g[e] * NAME(act_slope)(ACT_RELU, v[e] - c.cut);
                g[e] = alpha * (live - sum * (1 + sigmas * ((v[e] - c.mean) * inverse)));
            }
            if (beta != 0) {
                NAME(matrix_load)(&a.y, dx, r.row, run * VEC, count, old);
                UNROLL
                for (i32 e = 0; e < VEC; e++)
                    g[e] += beta * old[e];
            }
            NAME(matrix_store)(&a.y, dx, r.row, run * VEC, count, g);
        }
    }
}
#endif
