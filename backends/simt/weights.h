/* Kernels of the weight ops. The host's side (init.c, weights.c) includes this file without
 * SIMT_T for the structs of scalars. */
#define SIMT_HALVES
#ifndef BSKI_SIMT_WEIGHTS_H
#define BSKI_SIMT_WEIGHTS_H

/* The matrix of a layout, its kept blocks [count][block_rows][block_cols] and how they are shared
 * out: kernels that work by block give each block `lanes` lanes, a power of two. */
typedef struct block_arg {
    i64 rows, cols, count;
    i64 alpha;        /* NUM, or what a kernel says */
    i64 seed, offset; /* of random numbers */
    i32 block_rows, block_cols, grid_rows, grid_cols;
    i32 lanes, mode;
    i32 type, pad; /* of the blocks, as below */
} block_arg;

/* Block columns: lists of entries by column, as in bsk_layout_tables. */
typedef struct column_arg {
    i64 rows, cols;
    i64 eps, alpha, beta; /* NUM */
    i32 block_rows, block_cols, grid_cols;
    i32 lanes; /* columns that a group takes at a time */
    i32 dy_type, y_type, type, pad;
} column_arg;

typedef struct orthogonal_arg {
    i64 rows, cols;
    i64 alpha; /* NUM */
    i64 seed;
    i32 block_rows, block_cols, grid_cols, type;
} orthogonal_arg;

typedef struct vector_arg {
    i64 count;
    i64 seed, offset;
    i64 low, range, eps, rest, rate, alpha, beta; /* NUM */
    i64 keep;
} vector_arg;

typedef struct renew_arg {
    i64 rows, cols, count;
    i64 alpha; /* NUM */
    i64 seed;
    i32 block_rows, block_cols;
    i32 parts; /* partial sums; 0: none are needed */
    i32 mode;  /* bsk_renew */
    i32 type, pad;
} renew_arg;

enum { RENEW_ZERO = 0, RENEW_NORMAL = 1, RENEW_UNIFORM = 2, RENEW_PARTS = 256 };
enum { NORM_MAX = 0, NORM_L2 = 1 };

/* Elements of block number `block` inside a dimension of `size` elements. */
#ifdef SIMT_T
DEVICE i32 block_extent(i64 size, i32 block, i32 block_size)
{
    const i64 left = size - (i64)block * block_size;
    return left < block_size ? (i32)left : block_size;
}
#endif

#endif

#ifdef SIMT_T
#include "lanes.h"
#include "philox.h"

/* A walk over blocks of w: row is the slot, run the element. inside: it belongs to the matrix. */
#undef BLOCK_WALK
#define BLOCK_WALK(w, a)                                                                           \
    for (walk w = walk_start((a).count, (i64)(a).block_rows * (a).block_cols, 1); w.left > 0;      \
         walk_next(&w))

/* ======================================================================== initialisers ==== */

/* alpha holds the bits of the scale in T. */
KERNEL(weight_identity, LANES)
(BUF(T, w), BUF(const i32, slot_row), BUF(const i32, slot_col), const block_arg a)
{
    QUEUE_WAIT();
    OPEN(T, w);
    OPEN(const i32, slot_row);
    OPEN(const i32, slot_col);
#if SIMT_CODE == 1
    const T one = I64_AS_F64(a.alpha);
#elif SIMT_CODE == 2
    const T one = U32_AS_F32((u32)a.alpha);
#else
    const T one = (T)a.alpha;
#endif
    BLOCK_WALK(at, a)
    {
        const i32 row = slot_row[at.row], col = slot_col[at.row];
        const i32 i = (i32)((u32)at.run / (u32)a.block_cols),
                  j = (i32)((u32)at.run % (u32)a.block_cols);
        if (i < block_extent(a.rows, row, a.block_rows) &&
            j < block_extent(a.cols, col, a.block_cols))
            w[at.row * at.runs + at.run] =
                row % a.grid_cols == col % a.grid_rows && i == j ? one : (T)0;
    }
}

KERNEL(weight_normal, LANES)
(BUF(T, w), BUF(const i32, slot_row), BUF(const i32, slot_col), const block_arg a)
{
    QUEUE_WAIT();
    OPEN(T, w);
    OPEN(const i32, slot_row);
    OPEN(const i32, slot_col);
    BLOCK_WALK(at, a)
    {
        const i32 i = (i32)((u32)at.run / (u32)a.block_cols),
                  j = (i32)((u32)at.run % (u32)a.block_cols);
        const u64 element = (u64)(at.row * at.runs + at.run);
        if (i < block_extent(a.rows, slot_row[at.row], a.block_rows) &&
            j < block_extent(a.cols, slot_col[at.row], a.block_cols))
            NAME(store_r)
        (HALF_TYPE(a.type), w, element, NUM(a.alpha) * NORMAL((u64)a.seed, element));
    }
}

#if SIMT_CODE == 2
KERNEL(weight_checker, LANES)
(BUF(f32, gate), BUF(const i32, slot_row), BUF(const i32, slot_col), const block_arg a)
{
    QUEUE_WAIT();
    OPEN(f32, gate);
    OPEN(const i32, slot_row);
    OPEN(const i32, slot_col);
    for (walk at = walk_start(a.count, 1, 1); at.left > 0; walk_next(&at))
        gate[at.row] = (slot_row[at.row] ^ slot_col[at.row]) & 1 ? 0 : 1;
}
#endif

/* A block column as `count` vectors of `length` in the workspace: its columns, or its rows where
 * there are fewer of those. */
typedef struct NAME(block_column) {
    GLOBAL R *vectors, *dots;
    i64 count, length;
    i32 by_rows;
} NAME(block_column);

DEVICE R NAME(vector_square)(const GLOBAL R *x, i64 length, LOCAL_ARG R *scratch)
{
    R sum = 0;
    for (i64 i = LANE; i < length; i += LANES)
        sum += x[i] * x[i];
    return NAME(tree_sum)(scratch, LANE, LANES, sum);
}

/* Removes the directions of vectors 0 .. k - 1 from vector k, twice, and scales it to length 1;
 * 0 if too little was left. Classical Gram-Schmidt: done twice it is as good as the modified one,
 * and its dot products do not wait for each other. */
DEVICE i32 NAME(vector_orthonormalize)(const NAME(block_column) * c, i64 k, LOCAL_ARG R *scratch)
{
    GLOBAL R *x = c->vectors + k * c->length;
    const R before = NAME(vector_square)(x, c->length, scratch);
    for (i32 pass = 0; pass < 2; pass++) {
        for (i64 q = LANE; q < k; q += LANES) {
            R dot = 0;
            for (i64 i = 0; i < c->length; i++)
                dot += c->vectors[q * c->length + i] * x[i];
            c->dots[q] = dot;
        }
        GLOBAL_SYNC();
        for (i64 i = LANE; i < c->length; i += LANES) {
            R sum = 0;
            for (i64 q = 0; q < k; q++)
                sum += c->dots[q] * c->vectors[q * c->length + i];
            x[i] -= sum;
        }
        GLOBAL_SYNC();
    }
    const R square = NAME(vector_square)(x, c->length, scratch);
    /* what rounding leaves of a vector in the span of the others is far below this share */
    const i32 good = square > (SIMT_CODE == 1 ? (R)1e-20 : (R)1e-8) * before;
    const R scale = good ? 1 / MATH(sqrt)(square) : (R)0;
    for (i64 i = LANE; good && i < c->length; i += LANES)
        x[i] *= scale;
    GLOBAL_SYNC();
    return good;
}

/* One group for each block column of each head; place: where its vectors begin in the workspace. */
KERNEL(weight_orthogonal, LANES)
(BUF(T, w), BUF(R, space), BUF(const i64, place), BUF(const i64, col_start),
 BUF(const i32, col_row), BUF(const i32, col_slot), const orthogonal_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(T, w);
    OPEN(R, space);
    OPEN(const i64, place);
    OPEN(const i64, col_start);
    OPEN(const i32, col_row);
    OPEN(const i32, col_slot);
    const i32 col = (i32)(GROUP(0) % a.grid_cols);
    const i64 line = GROUP(0) / a.grid_cols * (a.grid_cols + 1) + col;
    const i64 first = col_start[line], last = col_start[line + 1];
    const i32 width = block_extent(a.cols, col, a.block_cols);
    i64 height = 0;
    for (i64 e = first; e < last; e++)
        height += block_extent(a.rows, col_row[e], a.block_rows);
    NAME(block_column) c;
    c.by_rows = width > height;
    c.count = c.by_rows ? height : width;
    c.length = c.by_rows ? width : height;
    c.vectors = space + place[GROUP(0)];
    c.dots = c.vectors + c.count * c.length;
    const i64 step_row = c.by_rows ? c.length : 1, step_col = c.by_rows ? 1 : c.length;

    for (i32 store = 0; store < 2; store++) {
        /* draws first, the scaled result after */
        i64 top = 0;
        for (i64 e = first; e < last; e++) {
            const i32 rows = block_extent(a.rows, col_row[e], a.block_rows);
            for (i64 x = LANE; x < (i64)rows * width; x += LANES) {
                const i64 i = x / width, j = x % width;
                const i64 element = ((i64)col_slot[e] * a.block_rows + i) * a.block_cols + j;
                const i64 at = (top + i) * step_row + j * step_col;
                if (store)
                    NAME(store_r)
                (HALF_TYPE(a.type), w, element, NUM(a.alpha) * c.vectors[at]);
                else c.vectors[at] = NORMAL((u64)a.seed, (u64)element);
            }
            top += rows;
        }
        if (store)
            break;
        GLOBAL_SYNC();
        for (i64 k = 0; k < c.count; k++) {
            i32 done = NAME(vector_orthonormalize)(&c, k, scratch);
            /* A draw that depends on its predecessors becomes the first unit vector that does
             * not: there are no more vectors than dimensions, so one exists. */
            for (i64 unit = 0; !done && unit < c.length; unit++) {
                for (i64 i = LANE; i < c.length; i += LANES)
                    c.vectors[k * c.length + i] = i == unit;
                GLOBAL_SYNC();
                done = NAME(vector_orthonormalize)(&c, k, scratch);
            }
        }
    }
}

/* ======================================================================== l2_normalize ==== */

/* A group's part of a block column: `lanes` columns from `first_col` on, over which LANES / lanes
 * rows at a time are walked through all entries. */
typedef struct NAME(column_part) {
    i64 first, last; /* entries */
    i64 col;         /* this lane's column of the matrix */
    i32 j;           /* the same within the block; inside: it exists */
    i32 inside, lane_row, lanes_row;
} NAME(column_part);

DEVICE NAME(column_part) NAME(column_of)(const column_arg *a, const GLOBAL i64 *col_start)
{
    NAME(column_part) c;
    const i32 block = (i32)GROUP(0);
    c.first = col_start[block];
    c.last = col_start[block + 1];
    c.j = (i32)GROUP(1) * a->lanes + LANE % a->lanes;
    c.col = (i64)block * a->block_cols + c.j;
    c.inside = c.j < block_extent(a->cols, block, a->block_cols);
    c.lane_row = LANE / a->lanes;
    c.lanes_row = LANES / a->lanes;
    return c;
}

/* Offset in w of row number r of the entries' rows, or -1 beyond the matrix. */
DEVICE i64 NAME(column_at)(const column_arg *a, const NAME(column_part) * c,
                           const GLOBAL i32 *col_row, const GLOBAL i32 *col_slot, i64 r)
{
    const i64 e = c->first + r / a->block_rows;
    const i32 i = (i32)(r % a->block_rows);
    if (i >= block_extent(a->rows, col_row[e], a->block_rows))
        return -1;
    return ((i64)col_slot[e] * a->block_rows + i) * a->block_cols + c->j;
}

/* Sums over the lanes of one column: scratch is [rows][lanes]. */
DEVICE R NAME(column_sum)(const column_arg *a, const NAME(column_part) * c, LOCAL_ARG R *scratch,
                          R sum)
{
#if LANES > 1
    scratch[LANE] = sum;
    BARRIER();
    for (i32 reach = c->lanes_row / 2; reach > 0; reach /= 2) {
        if (c->lane_row < reach)
            scratch[LANE] += scratch[LANE + reach * a->lanes];
        BARRIER();
    }
    sum = scratch[LANE % a->lanes];
    BARRIER();
#endif
    return sum;
}

KERNEL(l2_normalize, LANES)
(BUF(const T, w), BUF(u8, y), BUF(const R, gain), BUF(R, saved), BUF(const i64, col_start),
 BUF(const i32, col_row), BUF(const i32, col_slot), const column_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const T, w);
    OPEN(u8, y);
    OPEN(const R, gain);
    OPEN(R, saved);
    OPEN(const i64, col_start);
    OPEN(const i32, col_row);
    OPEN(const i32, col_slot);
    const NAME(column_part) c = NAME(column_of)(&a, col_start);
    const i64 rows = c.inside ? (c.last - c.first) * a.block_rows : 0;
    R sum = 0;
    for (i64 r = c.lane_row; r < rows; r += c.lanes_row) {
        const i64 at = NAME(column_at)(&a, &c, col_row, col_slot, r);
        const R v = at >= 0 ? NAME(load_r)(HALF_TYPE(a.type), w, at) : (R)0;
        sum += v * v;
    }
    sum = NAME(column_sum)(&a, &c, scratch, sum);
    if (!c.inside)
        return;
    if (saved && c.lane_row == 0)
        saved[c.col] = sum;
    const R scale = (gain ? gain[c.col] : (R)1) / MATH(sqrt)(sum < NUM(a.eps) ? NUM(a.eps) : sum);
    for (i64 r = c.lane_row; r < rows; r += c.lanes_row) {
        const i64 at = NAME(column_at)(&a, &c, col_row, col_slot, r);
        if (at >= 0)
            NAME(store_r)(a.y_type, y, at, NAME(load_r)(HALF_TYPE(a.type), w, at) * scale);
    }
}

KERNEL(l2_normalize_grad, LANES)
(BUF(const u8, dy), BUF(const T, w), BUF(const R, saved), BUF(u8, dw), BUF(const R, gain),
 BUF(R, dgain), BUF(const i64, col_start), BUF(const i32, col_row), BUF(const i32, col_slot),
 const column_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const u8, dy);
    OPEN(const T, w);
    OPEN(const R, saved);
    OPEN(u8, dw);
    OPEN(const R, gain);
    OPEN(R, dgain);
    OPEN(const i64, col_start);
    OPEN(const i32, col_row);
    OPEN(const i32, col_slot);
    const NAME(column_part) c = NAME(column_of)(&a, col_start);
    const i64 rows = c.inside ? (c.last - c.first) * a.block_rows : 0;
    const R alpha = NUM(a.alpha), beta = NUM(a.beta), eps = NUM(a.eps);
    R dot = 0;
    for (i64 r = c.lane_row; r < rows; r += c.lanes_row) {
        const i64 at = NAME(column_at)(&a, &c, col_row, col_slot, r);
        if (at >= 0)
            dot += NAME(load_r)(a.dy_type, dy, at) * NAME(load_r)(HALF_TYPE(a.type), w, at);
    }
    dot = NAME(column_sum)(&a, &c, scratch, dot);
    if (!c.inside)
        return;
    const R s = saved[c.col], square = s < eps ? eps : s, inverse = 1 / MATH(sqrt)(square);
    const R g = gain ? gain[c.col] : (R)1, along = s < eps ? (R)0 : g * dot / square;
    for (i64 r = c.lane_row; r < rows; r += c.lanes_row) {
        const i64 at = NAME(column_at)(&a, &c, col_row, col_slot, r);
        if (at < 0)
            continue;
        const R own = NAME(load_r)(HALF_TYPE(a.type), w, at);
        R v = alpha * (g * NAME(load_r)(a.dy_type, dy, at) - along * own) * inverse;
        if (beta != 0)
            v += beta * NAME(load_r)(a.y_type, dw, at);
        NAME(store_r)(a.y_type, dw, at, v);
    }
    if (dgain && c.lane_row == 0)
        dgain[c.col] = alpha * dot * inverse + (beta != 0 ? beta * dgain[c.col] : (R)0);
}

/* ============================================================== norms, pruning and decay ==== */

/* A lane's share of the blocks of a group: `lanes` lanes for each. */
typedef struct NAME(block_part) {
    i64 slot, first; /* first: the block's offset in w */
    i32 inside, lane, height, width;
} NAME(block_part);

DEVICE NAME(block_part) NAME(block_of)(const block_arg *a, const GLOBAL i32 *slot_row,
                                       const GLOBAL i32 *slot_col, i64 group)
{
    NAME(block_part) b;
    b.slot = group * (LANES / a->lanes) + LANE / a->lanes;
    b.lane = LANE % a->lanes;
    b.inside = b.slot < a->count;
    b.first = b.slot * a->block_rows * a->block_cols;
    b.height = b.inside ? block_extent(a->rows, slot_row[b.slot], a->block_rows) : 0;
    b.width = b.inside ? block_extent(a->cols, slot_col[b.slot], a->block_cols) : 0;
    return b;
}

/* Offset in w of element x of the part of a block that lies in the matrix. */
DEVICE i64 NAME(block_at)(const block_arg *a, const NAME(block_part) * b, i64 x)
{
    return b->first + (b->width == a->block_cols ? x : x / b->width * a->block_cols + x % b->width);
}

DEVICE R NAME(block_measure)(const block_arg *a, const NAME(block_part) * b, const GLOBAL T *w,
                             LOCAL_ARG R *scratch)
{
    R sum = 0;
    for (i64 x = b->lane; x < (i64)b->height * b->width; x += a->lanes) {
        const R v = NAME(load_r)(HALF_TYPE(a->type), w, NAME(block_at)(a, b, x));
        const R size = MATH(fabs)(v);
        if (a->mode == NORM_L2)
            sum += v * v;
        else if (size > sum || size != size)
            sum = size;
    }
    scratch += LANE - b->lane;
    return a->mode == NORM_L2 ? NAME(tree_sum)(scratch, b->lane, a->lanes, sum)
                              : NAME(tree_max)(scratch, b->lane, a->lanes, sum);
}

KERNEL(block_norm, LANES)
(BUF(const T, w), BUF(R, norm), BUF(const i32, slot_row), BUF(const i32, slot_col),
 const block_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const T, w);
    OPEN(R, norm);
    OPEN(const i32, slot_row);
    OPEN(const i32, slot_col);
    const i64 groups = (a.count + LANES / a.lanes - 1) / (LANES / a.lanes);
    for (i64 g = GROUP(0); g < groups; g += GROUPS(0)) {
        const NAME(block_part) b = NAME(block_of)(&a, slot_row, slot_col, g);
        const R measure = NAME(block_measure)(&a, &b, w, scratch);
        if (b.inside && b.lane == 0)
            norm[b.slot] = a.mode == NORM_L2 ? MATH(sqrt)(measure) : measure;
    }
}

/* alpha: the rate; offset: eps. */
KERNEL(block_l2_decay, LANES)
(BUF(T, w), BUF(const f32, gate), BUF(const i32, slot_row), BUF(const i32, slot_col),
 const block_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(T, w);
    OPEN(const f32, gate);
    OPEN(const i32, slot_row);
    OPEN(const i32, slot_col);
    const i64 groups = (a.count + LANES / a.lanes - 1) / (LANES / a.lanes);
    for (i64 g = GROUP(0); g < groups; g += GROUPS(0)) {
        NAME(block_part) b = NAME(block_of)(&a, slot_row, slot_col, g);
        if (b.inside && gate && gate[b.slot] == 0)
            b.height = 0;
        const R square = NAME(block_measure)(&a, &b, w, scratch);
        const R ratio = NUM(a.alpha) / MATH(sqrt)(square + NUM(a.offset));
        const R share = ratio > 1 ? (R)1 : ratio;
        for (i64 x = b.lane; x < (i64)b.height * b.width; x += a.lanes) {
            const i64 at = NAME(block_at)(&a, &b, x);
            const R v = NAME(load_r)(HALF_TYPE(a.type), w, at);
            NAME(store_r)(HALF_TYPE(a.type), w, at, v - v * share);
        }
    }
}

#if SIMT_CODE <= 2 /* norms and gates are f32 or f64 */

#if SIMT_CODE == 1
#define KEY      u64
#define KEY_BITS 64
#else
#define KEY      u32
#define KEY_BITS 32
#endif

/* An unsigned number in the order of the norms, where NaN is infinity and both zeros are one. */
DEVICE KEY NAME(prune_key)(T v)
{
    v = v != v ? (T)INFINITY : v == 0 ? (T)0 : v;
#if SIMT_CODE == 1
    const KEY bits = F64_AS_U64(v);
#else
    const KEY bits = F32_AS_U32(v);
#endif
    return bits >> (KEY_BITS - 1) ? ~bits : bits | (KEY)1 << (KEY_BITS - 1);
}

/* One group finds the key of the last block that is kept, bit by bit from the top: the largest key
 * that at least `keep` blocks reach. Of the blocks with that very key the lower slots are kept, as
 * many as are still missing. Reads the norms once for each bit: 32 n / LANES steps. */
KERNEL(prune_sparsity, LANES)(BUF(const T, norm), BUF(f32, gate), const vector_arg a)
{
    QUEUE_WAIT();
    LOCAL i32 scratch[LANES];
    OPEN(const T, norm);
    OPEN(f32, gate);
    KEY last = 0;
    i64 above = 0; /* blocks with a larger key */
    for (i32 bit = KEY_BITS - 1; a.keep > 0 && bit >= 0; bit--) {
        const KEY candidate = last | (KEY)1 << bit;
        i32 count = 0;
        for (i64 i = LANE; i < a.count; i += LANES)
            count += NAME(prune_key)(norm[i]) >= candidate;
        scratch[LANE] = count;
        SYNC();
        for (i32 reach = LANES / 2; reach > 0; reach /= 2) {
            if (LANE < reach)
                scratch[LANE] += scratch[LANE + reach];
            SYNC();
        }
        count = scratch[0];
        SYNC();
        if (count >= a.keep)
            last = candidate;
        else
            above = count; /* the last such count is that of last + 1 */
    }
    i64 missing = a.keep - above;
    for (i64 first = 0; first < a.count; first += LANES) {
        const i64 i = first + LANE;
        const KEY key = i < a.count ? NAME(prune_key)(norm[i]) : 0;
        const i32 same = i < a.count && a.keep > 0 && key == last;
        i32 before = 0, all = 0;
        scratch[LANE] = same;
        SYNC();
        if (missing > 0)
            for (i32 l = 0; l < LANES; l++) {
                before += l < LANE ? scratch[l] : 0;
                all += scratch[l];
            }
        SYNC();
        if (i < a.count)
            gate[i] = a.keep > 0 && (key > last || (same && before < missing)) ? 1 : 0;
        missing -= all;
    }
}

/* low: the value, rounded up to T. */
KERNEL(prune_threshold, LANES)(BUF(const T, norm), BUF(f32, gate), const vector_arg a)
{
    QUEUE_WAIT();
    OPEN(const T, norm);
    OPEN(f32, gate);
    for (walk w = walk_start(a.count, 1, 1); w.left > 0; walk_next(&w)) {
        const T v = norm[w.row];
        gate[w.row] = v >= NUM(a.low) || v != v ? 1 : 0;
    }
}

#undef KEY
#undef KEY_BITS

/* ======================================================================= concrete gates ==== */

DEVICE R NAME(gate_clamp)(R v)
{
    v = v < 0 ? (R)0 : v;
    return v > 1 ? (R)1 : v;
}

/* rest: 1 - 2 eps; rate: 1 / temperature. */
KERNEL(concrete_gate, LANES)
(BUF(const T, loga), BUF(T, gate), BUF(T, concrete), const vector_arg a)
{
    QUEUE_WAIT();
    OPEN(const T, loga);
    OPEN(T, gate);
    OPEN(T, concrete);
    for (walk w = walk_start(a.count, 1, 1); w.left > 0; walk_next(&w)) {
        const R u =
            philox_uniform((u64)a.seed, (u64)a.offset, (u64)w.row) * NUM(a.rest) + NUM(a.eps);
        const R logit = MATH(log)(u) - MATH(log)(1 - u) + loga[w.row];
        const R c = 1 / (1 + MATH(exp)(-logit * NUM(a.rate)));
        concrete[w.row] = c;
        gate[w.row] = NAME(gate_clamp)(c * NUM(a.range) + NUM(a.low));
    }
}

KERNEL(concrete_gate_grad, LANES)
(BUF(const T, dgate), BUF(const T, concrete), BUF(T, dloga), const vector_arg a)
{
    QUEUE_WAIT();
    OPEN(const T, dgate);
    OPEN(const T, concrete);
    OPEN(T, dloga);
    const R alpha = NUM(a.alpha), beta = NUM(a.beta);
    for (walk w = walk_start(a.count, 1, 1); w.left > 0; walk_next(&w)) {
        const R c = concrete[w.row], stretched = c * NUM(a.range) + NUM(a.low);
        R d = 0;
        if (!(stretched < 0 || stretched > 1))
            d = alpha * dgate[w.row] * NUM(a.range) * c * (1 - c) * NUM(a.rate);
        dloga[w.row] = beta != 0 ? d + beta * dloga[w.row] : d;
    }
}

KERNEL(concrete_gate_infer, LANES)(BUF(const T, loga), BUF(T, gate), const vector_arg a)
{
    QUEUE_WAIT();
    OPEN(const T, loga);
    OPEN(T, gate);
    for (walk w = walk_start(a.count, 1, 1); w.left > 0; walk_next(&w)) {
        const R c = 1 / (1 + MATH(exp)(-loga[w.row]));
        gate[w.row] = NAME(gate_clamp)(c * NUM(a.range) + NUM(a.low));
    }
}
#endif

/* ========================================================================= block_renew ==== */

/* The sum of the first `parts` partial results, by the whole group. */
DEVICE R NAME(renew_total)(const GLOBAL R *partial, i32 parts, LOCAL_ARG R *scratch)
{
    R sum = 0;
    for (i32 p = LANE; p < parts; p += LANES)
        sum += partial[p];
    return NAME(tree_sum)(scratch, LANE, LANES, sum);
}

/* Over the kept blocks. mode 0: sums and counts of elements; 1: sums of squares about the mean,
 * which follows from the former. partial is [3][parts]: sums, counts, squares. */
KERNEL(renew_moments, LANES)
(BUF(const T, w), BUF(const u8, keep), BUF(R, partial), BUF(const i32, slot_row),
 BUF(const i32, slot_col), const renew_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const T, w);
    OPEN(const u8, keep);
    OPEN(R, partial);
    OPEN(const i32, slot_row);
    OPEN(const i32, slot_col);
    R mean = 0;
    if (a.mode) {
        const R total = NAME(renew_total)(partial, a.parts, scratch);
        const R number = NAME(renew_total)(partial + a.parts, a.parts, scratch);
        mean = number > 0 ? total / number : (R)0;
    }
    R sum = 0, count = 0;
    BLOCK_WALK(at, a)
    {
        const i32 i = (i32)((u32)at.run / (u32)a.block_cols),
                  j = (i32)((u32)at.run % (u32)a.block_cols);
        if (!keep[at.row] || i >= block_extent(a.rows, slot_row[at.row], a.block_rows) ||
            j >= block_extent(a.cols, slot_col[at.row], a.block_cols))
            continue;
        const R d = NAME(load_r)(HALF_TYPE(a.type), w, at.row * at.runs + at.run) - mean;
        sum += a.mode ? d * d : d;
        count += 1;
    }
    sum = NAME(tree_sum)(scratch, LANE, LANES, sum);
    count = NAME(tree_sum)(scratch, LANE, LANES, count);
    if (LANE == 0) {
        partial[(a.mode ? 2 * a.parts : 0) + GROUP(0)] = sum;
        if (!a.mode)
            partial[a.parts + GROUP(0)] = count;
    }
}

KERNEL(block_renew, LANES)
(BUF(T, w), BUF(const u8, keep), BUF(const R, partial), BUF(const i32, slot_row),
 BUF(const i32, slot_col), const renew_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(T, w);
    OPEN(const u8, keep);
    OPEN(const R, partial);
    OPEN(const i32, slot_row);
    OPEN(const i32, slot_col);
    R mean = 0, deviation = 0;
    if (a.parts) {
        const R total = NAME(renew_total)(partial, a.parts, scratch);
        const R number = NAME(renew_total)(partial + a.parts, a.parts, scratch);
        const R squares = NAME(renew_total)(partial + 2 * a.parts, a.parts, scratch);
        mean = number > 0 ? total / number : (R)0;
        deviation = number > 0 ? MATH(sqrt)(squares / number) : (R)0;
    }
    BLOCK_WALK(at, a)
    {
        const i32 i = (i32)((u32)at.run / (u32)a.block_cols),
                  j = (i32)((u32)at.run % (u32)a.block_cols);
        if (keep[at.row] || i >= block_extent(a.rows, slot_row[at.row], a.block_rows) ||
            j >= block_extent(a.cols, slot_col[at.row], a.block_cols))
            continue;
        const u64 element = (u64)(at.row * at.runs + at.run);
        R v = 0;
        if (a.mode == RENEW_NORMAL)
            v = NUM(a.alpha) * (mean + deviation * NORMAL((u64)a.seed, element));
        else if (a.mode == RENEW_UNIFORM)
            v = NUM(a.alpha) * deviation * (2 * (R)philox_uniform((u64)a.seed, 0, element) - 1);
        NAME(store_r)(HALF_TYPE(a.type), w, (i64)element, v);
    }
}

#endif
