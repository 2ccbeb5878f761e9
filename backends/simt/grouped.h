/* Products of groups of rows whose numbers are in device memory; the host (grouped.c) includes this
 * file without SIMT_T for the structs of scalars. Kernels of f32 serve all types but f64. With WIDE,
 * for CPUs behind OpenCL, a group is one lane. */
#define SIMT_SINGLES
#ifndef BSKI_SIMT_GROUPED_H
#define BSKI_SIMT_GROUPED_H

/* Lanes of a group; rows and columns of a tile of the result, and what of it the forms have else. */
enum { GROUPED_LANES = 128, GROUPED_ROWS = 64, GROUPED_COLS = 128, GROUPED_COLS_F64 = 64 };
enum { GROUPED_WIDE_ROWS = 32, GROUPED_WIDE_COLS = 16 };

/* An operand of a product: its strides along rows or columns of the result, and along the sum. */
typedef struct grouped_side {
    i64 line, k;
    i32 along_k, vector; /* contiguous along the sum; in aligned quads */
} grouped_side;

/* The result of a group is the product of left and right. */
typedef struct grouped_arg {
    i64 alpha, beta; /* NUM */
    i64 all, groups; /* rows of x */
    i64 k, cols;     /* features of x, and columns of the result */
    i64 group;       /* from one matrix to the next */
    i64 out_row, out_col;
    i64 tiles_m, tiles_n;
    grouped_side left, right;
    i32 type, out_type;
    i32 out_vector, act;
} grouped_arg;

#endif

#ifdef SIMT_T
#define GROUP_LANES 128
#include "lanes.h"

#ifndef QUAD_OWN
#define QUAD_TYPE SINGLE_TYPE
#define QUAD_OWN  (SIMT_CODE == 1)
#endif
#include "quads.h"

#ifndef FN
#define FN(x) NAME(x)
#endif
#include "act.h"

#ifndef STAGE_PITCH
/* Of a tile: rows, columns, and the depth of a chunk; of a lane: rows and columns, in fours. */
#if LANES == 1
#define TILE_M GROUPED_WIDE_ROWS
#define TILE_N GROUPED_WIDE_COLS
#define TILE_K 32
#define LANE_M TILE_M
#define LANE_N TILE_N
#else
#define TILE_M GROUPED_ROWS
#define TILE_N (SIMT_CODE == 1 ? GROUPED_COLS_F64 : GROUPED_COLS)
#define TILE_K 8
#define LANE_M 8
#define LANE_N (SIMT_CODE == 1 ? 4 : 8)
#endif
#define LANES_M (TILE_M / LANE_M)
#define LANES_N (TILE_N / LANE_N)

/* A chunk in local memory is [k][lines], with a gap that keeps quads aligned. A lane's fours of rows
 * and of columns lie between those of other lanes, which differ in both directions within a wave. */
#define STAGE_PITCH(lines) ((lines) + 4)
#define STAGE_QUADS(lines) ((lines)*TILE_K / 4 / LANES)
#define STAGE_SIZE         (TILE_K * (STAGE_PITCH(TILE_M) + STAGE_PITCH(TILE_N)))
#define LANE_Y             (LANE / 2 % LANES_M)
#define LANE_X             (LANE % 2 + LANE / (2 * LANES_M) * 2)
#define ROW_AT(i, y)       ((i) / 4 * 4 * LANES_M + 4 * (y) + (i) % 4)
#define COL_AT(j, x)       ((j) / 4 * 4 * LANES_N + 4 * (x) + (j) % 4)

/* Halves of the pool; loops over what a lane sums, which the wide form finds by its address. */
#if LANES == 1
#define STAGES          1
#define UNROLL_LANE     NO_UNROLL
#define WIDE_JOIN_(r)   r##x16
#define WIDE_JOIN(r)    WIDE_JOIN_(r)
#define V               WIDE_JOIN(R)
#define SUM_OF(s, i, j) (((const R *)&(s)->tile[i])[j])
#define COLUMN_OF(s, j) (((const R *)&(s)->column)[j])
#else
#define STAGES          2
#define UNROLL_LANE     UNROLL
#define SUM_OF(s, i, j) ((s)->tile[i][j])
#define COLUMN_OF(s, j) ((s)->column[j])
#endif

/* Rows of a group, or of none. */
typedef struct grouped_rows {
    i64 begin, end, group; /* group: -1 for none */
} grouped_rows;

/* The end of span s of the rows, which begins at `begin`: span 0 is what lies before all groups,
 * span g + 1 is group g, and the last one is the rest. */
DEVICE i64 span_end(const grouped_arg *a, const GLOBAL i32 *offsets, i64 s, i64 begin)
{
    if (s > a->groups)
        return a->all;
    const i64 end = offsets[s] < a->all ? offsets[s] : a->all;
    return end > begin ? end : begin;
}

/* Tile number `tile` of the rows. Those of a span begin with it, and have numbers from
 * begin / TILE_M + s on, which leaves enough for each whatever the others are. */
DEVICE void rows_of_tile(const grouped_arg *a, const GLOBAL i32 *offsets, i64 tile, grouped_rows *r)
{
    i64 s = 0;
    r->begin = 0;
    for (; s <= a->groups; s++) {
        r->end = span_end(a, offsets, s, r->begin);
        if (tile <= r->end / TILE_M + s)
            break;
        r->begin = r->end;
    }
    if (s > a->groups)
        r->end = a->all;
    r->begin += (tile - r->begin / TILE_M - s) * TILE_M;
    r->group = s > a->groups ? -1 : s - 1;
}

/* The rows of a group. */
DEVICE void rows_of_group(const grouped_arg *a, const GLOBAL i32 *offsets, i64 group,
                          grouped_rows *r)
{
    r->begin = 0;
    r->group = group;
    for (i64 s = 0; s <= group; s++)
        r->begin = span_end(a, offsets, s, r->begin);
    r->end = span_end(a, offsets, group + 1, r->begin);
}

#endif

/* What a lane sums: its part of a tile, and the columns of `right` that belong to it. */
typedef struct NAME(grouped_sums) {
#if LANES == 1
    V tile[LANE_M], column;
#else
    R tile[LANE_M][LANE_N], column[LANE_N];
#endif
} NAME(grouped_sums);

/* Quad e of a chunk of so many lines: where it lies from the chunk's first number, and how much of it
 * there is. */
DEVICE i64 NAME(chunk_offset)(const grouped_side *side, i32 e, i32 lines)
{
    const i32 k = side->along_k ? e % (TILE_K / 4) * 4 : e / (lines / 4);
    const i32 n = side->along_k ? e / (TILE_K / 4) : e % (lines / 4) * 4;
    return n * side->line + k * side->k;
}

DEVICE i64 NAME(chunk_count)(const grouped_side *side, i32 e, i32 lines, i64 lines_left, i64 k_left)
{
    const i32 k = side->along_k ? e % (TILE_K / 4) * 4 : e / (lines / 4);
    const i32 n = side->along_k ? e / (TILE_K / 4) : e % (lines / 4) * 4;
    const i64 left = side->along_k ? k_left - k : lines_left - n;
    const i64 across = side->along_k ? lines_left - n : k_left - k;
    return across > 0 && left > 0 ? left : 0;
}

/* No function: one that returns a struct is inlined with a mark that oclgrind does not know. */
#define CHUNK_FETCH(side, type, p, at, e, lines, lines_left, k_left)                               \
    NAME(quad_part)                                                                                \
    (SINGLE_TYPE(type), p, (at) + NAME(chunk_offset)(&(side), e, lines),                           \
     (side).along_k ? (side).k : (side).line,                                                      \
     NAME(chunk_count)(&(side), e, lines, lines_left, k_left), (side).vector)

DEVICE void NAME(chunk_stage)(const grouped_side *side, i32 type, LOCAL_ARG R *stage, i32 e,
                              i32 lines, NAME(quad) quad)
{
    R v[4];
    NAME(quad_numbers)(SINGLE_TYPE(type), quad, v);
    if (side->along_k) {
        stage += e % (TILE_K / 4) * 4 * STAGE_PITCH(lines) + e / (TILE_K / 4);
        UNROLL
        for (i32 i = 0; i < 4; i++)
            stage[i * STAGE_PITCH(lines)] = v[i];
    } else {
        NAME(local_store4)(stage + e / (lines / 4) * STAGE_PITCH(lines) + e % (lines / 4) * 4, v);
    }
}

/* sums += what the chunk at `stage` gives. */
DEVICE void NAME(chunk_add)(NAME(grouped_sums) * s, const LOCAL_ARG R *stage, i32 with_columns)
{
    const LOCAL_ARG R *left = stage, *right = stage + TILE_K * STAGE_PITCH(TILE_M);
#if LANES == 1
    for (i32 i = 0; i < LANE_M; i += 8) {
        V acc[8];
        UNROLL
        for (i32 u = 0; u < 8; u++)
            acc[u] = s->tile[i + u];
        for (i32 k = 0; k < TILE_K; k++) {
            const V r = WIDE_LOAD(V, right + k * STAGE_PITCH(TILE_N));
            UNROLL
            for (i32 u = 0; u < 8; u++)
                acc[u] += left[k * STAGE_PITCH(TILE_M) + i + u] * r;
        }
        UNROLL
        for (i32 u = 0; u < 8; u++)
            s->tile[i + u] = acc[u];
    }
    for (i32 k = 0; with_columns && k < TILE_K; k++)
        s->column += WIDE_LOAD(V, right + k * STAGE_PITCH(TILE_N));
#else
    UNROLL
    for (i32 k = 0; k < TILE_K; k++) {
        R l[LANE_M], r[LANE_N];
        UNROLL
        for (i32 i = 0; i < LANE_M; i += 4)
            NAME(local_load4)(left + k * STAGE_PITCH(TILE_M) + ROW_AT(i, LANE_Y), l + i);
        UNROLL
        for (i32 j = 0; j < LANE_N; j += 4)
            NAME(local_load4)(right + k * STAGE_PITCH(TILE_N) + COL_AT(j, LANE_X), r + j);
        UNROLL
        for (i32 i = 0; i < LANE_M; i++)
            UNROLL
        for (i32 j = 0; j < LANE_N; j++)
            s->tile[i][j] = FMA(l[i], r[j], s->tile[i][j]);
        UNROLL
        for (i32 j = 0; j < LANE_N; j++)
            if (with_columns)
                s->column[j] += r[j];
    }
#endif
}

/* sums = the product of rows x depth and depth x cols, which start at left_at and right_at. */
DEVICE void NAME(tile_product)(NAME(grouped_sums) * s, const grouped_arg *a, const GLOBAL u8 *left,
                               i64 left_at, i64 rows, const GLOBAL u8 *right, i64 right_at,
                               i64 cols, i64 depth, LOCAL_ARG R *pool, i32 with_columns)
{
#if LANES == 1
    for (i32 i = 0; i < LANE_M; i++)
        s->tile[i] = 0;
    s->column = 0;
    for (i64 k = 0; k < depth; k += TILE_K) {
        NO_UNROLL
        for (i32 q = 0; q < STAGE_QUADS(TILE_M); q++)
            NAME(chunk_stage)
        (&a->left, a->type, pool, q, TILE_M,
         CHUNK_FETCH(a->left, a->type, left, left_at + k * a->left.k, q, TILE_M, rows, depth - k));
        NO_UNROLL
        for (i32 q = 0; q < STAGE_QUADS(TILE_N); q++)
            NAME(chunk_stage)
        (&a->right, a->type, pool + TILE_K * STAGE_PITCH(TILE_M), q, TILE_N,
         CHUNK_FETCH(a->right, a->type, right, right_at + k * a->right.k, q, TILE_N, cols,
                     depth - k));
        NAME(chunk_add)(s, pool, with_columns);
    }
#else
    UNROLL
    for (i32 j = 0; j < LANE_N; j++) {
        UNROLL
        for (i32 i = 0; i < LANE_M; i++)
            s->tile[i][j] = 0;
        s->column[j] = 0;
    }
    /* Round i fetches chunk i and computes chunk i - 1, which lies in the other half of the pool. */
    for (i64 k = 0;; k += TILE_K) {
        LOCAL_ARG R *stage = pool + (k / TILE_K & 1) * STAGE_SIZE;
        LOCAL_ARG R *before = pool + (~(k / TILE_K) & 1) * STAGE_SIZE;
        NAME(quad) l[STAGE_QUADS(TILE_M)], r[STAGE_QUADS(TILE_N)];
        const i32 more = k < depth;
        if (more) {
            UNROLL
            for (i32 q = 0; q < STAGE_QUADS(TILE_M); q++)
                l[q] = CHUNK_FETCH(a->left, a->type, left, left_at + k * a->left.k,
                                   LANE + q * LANES, TILE_M, rows, depth - k);
            UNROLL
            for (i32 q = 0; q < STAGE_QUADS(TILE_N); q++)
                r[q] = CHUNK_FETCH(a->right, a->type, right, right_at + k * a->right.k,
                                   LANE + q * LANES, TILE_N, cols, depth - k);
        }
        if (k)
            NAME(chunk_add)(s, before, with_columns);
        if (!more)
            return;
        UNROLL
        for (i32 q = 0; q < STAGE_QUADS(TILE_M); q++)
            NAME(chunk_stage)(&a->left, a->type, stage, LANE + q * LANES, TILE_M, l[q]);
        UNROLL
        for (i32 q = 0; q < STAGE_QUADS(TILE_N); q++)
            NAME(chunk_stage)
        (&a->right, a->type, stage + TILE_K * STAGE_PITCH(TILE_M), LANE + q * LANES, TILE_N, r[q]);
        SYNC();
    }
#endif
}

/* out[at ...] = act(v + bias + beta * out), of the first `count` of four neighbours in a row. */
DEVICE void NAME(grouped_store)(const grouped_arg *a, GLOBAL u8 *out, i64 at, i64 count,
                                const GLOBAL R *bias, i32 act, R *v)
{
    UNROLL
    for (i32 e = 0; e < 4; e++)
        if (e < count) {
            if (bias)
                v[e] += bias[e];
            if (NUM(a->beta) != 0)
                v[e] += NUM(a->beta) * NAME(load_r)(a->out_type, out, at + e * a->out_col);
            v[e] = NAME(act_value)(act, v[e]);
        }
    if (a->out_vector && count >= 4) {
        NAME(quad_store)(a->out_type, out, at, v);
    } else {
        UNROLL
        for (i32 e = 0; e < 4; e++)
            if (e < count)
                NAME(store_r)(a->out_type, out, at + e * a->out_col, v[e]);
    }
}

/* A lane's part of a tile of rows x cols at out[at]. Without a product there is beta * out alone. */
DEVICE void NAME(tile_store)(const grouped_arg *a, GLOBAL u8 *out, i64 at, i64 rows, i64 cols,
                             const GLOBAL R *bias, i32 act, const NAME(grouped_sums) * s,
                             i32 product)
{
    UNROLL_LANE
    for (i32 i = 0; i < LANE_M; i++) {
        const i32 row = ROW_AT(i, LANE_Y);
        UNROLL_LANE
        for (i32 j = 0; j < LANE_N; j += 4) {
            const i32 col = COL_AT(j, LANE_X);
            R v[4];
            UNROLL
            for (i32 e = 0; e < 4; e++)
                v[e] = product ? NUM(a->alpha) * SUM_OF(s, i, j + e) : (R)0;
            if (row < rows && col < cols)
                NAME(grouped_store)
            (a, out, at + row * a->out_row + col * a->out_col, cols - col, bias ? bias + col : bias,
             act, v);
        }
    }
}

KERNEL_DENSE(grouped_matmul, LANES)
(BUF(const u8, x), BUF(const i32, offsets), BUF(const u8, w), BUF(u8, y), BUF(const R, bias),
 const grouped_arg a)
{
    QUEUE_WAIT();
    LOCAL R pool[STAGES * STAGE_SIZE] ALIGNED;
    OPEN(const u8, x);
    OPEN(const i32, offsets);
    OPEN(const u8, w);
    OPEN(u8, y);
    OPEN(const R, bias);
    const i64 tile = QUOTIENT(GROUP(0), a.tiles_n), n0 = (GROUP(0) - tile * a.tiles_n) * TILE_N;
    grouped_rows r;
    rows_of_tile(&a, offsets, tile, &r);
    if (r.begin >= r.end)
        return;
    const i32 product = r.group >= 0;
    NAME(grouped_sums) s;
    NAME(tile_product)
    (&s, &a, x, r.begin * a.left.line, r.end - r.begin, w,
     (product ? r.group * a.group : 0) + n0 * a.right.line, a.cols - n0, product ? a.k : 0, pool,
     0);
    NAME(tile_store)
    (&a, y, r.begin * a.out_row + n0 * a.out_col, r.end - r.begin, a.cols - n0,
     bias && product ? bias + r.group * a.cols + n0 : (const GLOBAL R *)0, product ? a.act : 0, &s,
     product);
}

KERNEL_DENSE(grouped_wgrad, LANES)
(BUF(const u8, x), BUF(const i32, offsets), BUF(const u8, dy), BUF(u8, dw), BUF(R, dbias),
 const grouped_arg a)
{
    QUEUE_WAIT();
    LOCAL R pool[STAGES * STAGE_SIZE] ALIGNED;
    OPEN(const u8, x);
    OPEN(const i32, offsets);
    OPEN(const u8, dy);
    OPEN(u8, dw);
    OPEN(R, dbias);
    const i64 strip = QUOTIENT(GROUP(0), a.tiles_n), n0 = (GROUP(0) - strip * a.tiles_n) * TILE_N;
    const i64 group = QUOTIENT(strip, a.tiles_m), m0 = (strip - group * a.tiles_m) * TILE_M;
    grouped_rows r;
    rows_of_group(&a, offsets, group, &r);
    NAME(grouped_sums) s;
    NAME(tile_product)
    (&s, &a, x, r.begin * a.left.k + m0 * a.left.line, a.k - m0, dy,
     r.begin * a.right.k + n0 * a.right.line, a.cols - n0, r.end - r.begin, pool, dbias && m0 == 0);
    NAME(tile_store)
    (&a, dw, group * a.group + m0 * a.out_row + n0 * a.out_col, a.k - m0, a.cols - n0,
     (const GLOBAL R *)0, 0, &s, 1);
    if (!dbias || m0 || LANE_Y)
        return;
    UNROLL_LANE
    for (i32 j = 0; j < LANE_N; j++) {
        const i64 col = n0 + COL_AT(j, LANE_X), at = group * a.cols + col;
        if (col < a.cols)
            dbias[at] = NUM(a.alpha) * COLUMN_OF(&s, j) +
                        (NUM(a.beta) != 0 ? NUM(a.beta) * dbias[at] : (R)0);
    }
}

#endif
