/* sdd of few samples, bound by writing S. Included by few.h once for each type and form.
 *
 * A lane has a patch of a block: 8 rows by PATCH_QUADS quads of columns, whose operands it loads
 * straight to registers, as they are small and stay in caches. Neighbours have quads next to each
 * other, up to a line of S, then rows. A group has several small blocks at a time, or a part of a
 * large one. */
#undef PATCH_QUADS
#undef PATCH_GROUPS
#define PATCH_QUADS  (TM / 32)
#define PATCH_GROUPS (SIMT_CODE == 1 ? 2 : TM == 32 ? 4 : 3) /* whose registers hold the sums */

#ifndef PATCH_ROWS
#define PATCH_ROWS 8

/* x / d from inverse = 2^31 / d, rounded up; x * d < 2^31. */
DEVICE i32 patch_quotient(i32 x, i32 inverse)
{
    u32 high;
    u32_multiply(2 * (u32)x, (u32)inverse, &high);
    return (i32)high;
}
#endif

/* Adds the products of four samples. Operands come as they lie, quads of the samples or for each of
 * them quads of rows, or of columns; all are whole and aligned. */
DEVICE void FN(patch_four)(R acc[PATCH_ROWS][4 * PATCH_QUADS], i32 type, const GLOBAL T *left,
                           const GLOBAL T *right, const sdd_arg *a, i32 a_along_k, i32 b_along_k)
{
    const i32 a_row = (i32)a->a_row, a_k = (i32)a->a_k, b_col = (i32)a->b_col, b_k = (i32)a->b_k;
    NAME(quad) rows[PATCH_ROWS], cols[PATCH_QUADS][4];
    R v[PATCH_ROWS][4], w[4][4];
    UNROLL
    for (i32 i = 0; i < PATCH_ROWS; i++)
        rows[i] =
            NAME(quad_whole)(type, left, a_along_k ? i * a_row : i / 2 * a_k + i % 2 * 4 * a_row);
    UNROLL
    for (i32 q = 0; q < PATCH_QUADS; q++)
        UNROLL
    for (i32 i = 0; i < 4; i++)
        cols[q][i] = NAME(quad_whole)(type, right,
                                      q * 4 * a->across * b_col + i * (b_along_k ? b_col : b_k));
    UNROLL
    for (i32 i = 0; i < PATCH_ROWS; i++)
        NAME(quad_numbers)(type, rows[i], v[i]);
    UNROLL
    for (i32 q = 0; q < PATCH_QUADS; q++) {
        UNROLL
        for (i32 i = 0; i < 4; i++)
            NAME(quad_numbers)(type, cols[q][i], w[i]);
        UNROLL
        for (i32 k = 0; k < 4; k++)
            UNROLL
        for (i32 i = 0; i < PATCH_ROWS; i++)
            UNROLL
        for (i32 e = 0; e < 4; e++)
            acc[i][4 * q + e] = FMA(a_along_k ? v[i][k] : v[2 * k + i / 4][i % 4],
                                    b_along_k ? w[e][k] : w[k][e], acc[i][4 * q + e]);
    }
}

DEVICE void FN(patch_fours)(R acc[PATCH_ROWS][4 * PATCH_QUADS], i32 type, const GLOBAL T *left,
                            const GLOBAL T *right, const sdd_arg *a, i32 fours, i32 a_along_k,
                            i32 b_along_k)
{
    NO_UNROLL
    for (; fours > 0; fours--) {
        FN(patch_four)(acc, type, left, right, a, a_along_k, b_along_k);
        left += 4 * a->a_k;
        right += 4 * a->b_k;
    }
}

/* Two samples of features that are contiguous in both operands. */
typedef struct FN(patch_pair) {
    NAME(quad) rows[2][PATCH_ROWS / 4], cols[2][PATCH_QUADS];
} FN(patch_pair);

DEVICE FN(patch_pair)
    FN(pair_load)(i32 type, const GLOBAL T *left, const GLOBAL T *right, const sdd_arg *a)
{
    FN(patch_pair) p;
    UNROLL
    for (i32 k = 0; k < 2; k++) {
        UNROLL
        for (i32 h = 0; h < PATCH_ROWS / 4; h++)
            p.rows[k][h] = NAME(quad_whole)(type, left, k * (i32)a->a_k + 4 * h);
        UNROLL
        for (i32 q = 0; q < PATCH_QUADS; q++)
            p.cols[k][q] = NAME(quad_whole)(type, right, k * (i32)a->b_k + q * 4 * a->across);
    }
    return p;
}

DEVICE void FN(pair_add)(R acc[PATCH_ROWS][4 * PATCH_QUADS], i32 type, const FN(patch_pair) * p)
{
    UNROLL
    for (i32 k = 0; k < 2; k++) {
        R v[PATCH_ROWS], w[4 * PATCH_QUADS];
        UNROLL
        for (i32 h = 0; h < PATCH_ROWS / 4; h++)
            NAME(quad_numbers)(type, p->rows[k][h], v + 4 * h);
        UNROLL
        for (i32 q = 0; q < PATCH_QUADS; q++)
            NAME(quad_numbers)(type, p->cols[k][q], w + 4 * q);
        UNROLL
        for (i32 i = 0; i < PATCH_ROWS; i++)
            UNROLL
        for (i32 c = 0; c < 4 * PATCH_QUADS; c++)
            acc[i][c] = FMA(v[i], w[c], acc[i][c]);
    }
}

/* Adds those of so many pairs, each of which is fetched while the one before is multiplied; after the
 * last it comes again. */
DEVICE void FN(patch_pairs)(R acc[PATCH_ROWS][4 * PATCH_QUADS], i32 type, const GLOBAL T *left,
                            const GLOBAL T *right, const sdd_arg *a, i32 pairs)
{
    const i32 a_step = 2 * (i32)a->a_k, b_step = 2 * (i32)a->b_k, last = pairs - 1;
    FN(patch_pair) now = FN(pair_load)(type, left, right, a);
    NO_UNROLL
    for (i32 i = 0; i < pairs; i += 2) {
        const i32 first = i + 1 < last ? i + 1 : last, second = i + 2 < last ? i + 2 : last;
        const FN(patch_pair) next =
            FN(pair_load)(type, left + first * a_step, right + first * b_step, a);
        FN(pair_add)(acc, type, &now);
        if (first > i) {
            now = FN(pair_load)(type, left + second * a_step, right + second * b_step, a);
            FN(pair_add)(acc, type, &next);
        }
    }
}

/* Adds those of one sample; what is not there is 0. */
DEVICE void FN(patch_one)(R acc[PATCH_ROWS][4 * PATCH_QUADS], i32 type, const GLOBAL T *left,
                          const GLOBAL T *right, const sdd_arg *a, i32 rows, const i32 *cols)
{
    R v[PATCH_ROWS], w[4 * PATCH_QUADS];
    UNROLL
    for (i32 i = 0; i < PATCH_ROWS; i += 4)
        NAME(quad_numbers)
    (type,
     NAME(quad_part)(type, left, i * a->a_row, a->a_row, rows - i, a->a_vector && !a->a_along_k),
     v + i);
    UNROLL
    for (i32 q = 0; q < PATCH_QUADS; q++)
        NAME(quad_numbers)
    (type,
     NAME(quad_part)(type, right, q * 4 * a->across * a->b_col, a->b_col, cols[q],
                     a->b_vector && !a->b_along_k),
     w + 4 * q);
    UNROLL
    for (i32 i = 0; i < PATCH_ROWS; i++)
        UNROLL
    for (i32 c = 0; c < 4 * PATCH_QUADS; c++)
        acc[i][c] = FMA(v[i], w[c], acc[i][c]);
}

/* Stores `factor` times a patch from element `at` on, plus `beta` times what was there: quads, at
 * aligned addresses. All that is read is under way before any is used. */
DEVICE void FN(patch_store)(R acc[PATCH_ROWS][4 * PATCH_QUADS], i32 type, GLOBAL void *to, i64 at,
                            const sdd_arg *a, i32 rows, const i32 *cols, R factor, R beta)
{
    const i32 step = a->block_cols;
    UNROLL
    for (i32 q = 0; q < PATCH_QUADS; q++, at += 4 * a->across) {
        const i32 there = cols[q] > 0 ? rows : 0;
        R old[PATCH_ROWS][4];
        UNROLL
        for (i32 i = 0; i < PATCH_ROWS; i++)
            UNROLL
        for (i32 e = 0; e < 4; e++)
            acc[i][4 * q + e] *= factor;
        if (beta != 0) {
            UNROLL
            for (i32 i = 0; i < PATCH_ROWS; i++)
                if (i < there)
                    NAME(quad_load)(type, to, at + i * step, old[i]);
            UNROLL
            for (i32 i = 0; i < PATCH_ROWS; i++)
                UNROLL
            for (i32 e = 0; e < 4; e++)
                acc[i][4 * q + e] += i < there ? beta * old[i][e] : 0;
        }
        UNROLL
        for (i32 i = 0; i < PATCH_ROWS; i++)
            if (i < there)
                NAME(quad_store)(type, to, at + i * step, &acc[i][4 * q]);
    }
}

/* The same by elements, for what is cut off or not aligned. Row by row, as that is long: the sums of
 * the next row take the place of the first. */
DEVICE void FN(patch_elements)(R acc[PATCH_ROWS][4 * PATCH_QUADS], i32 type, GLOBAL void *to,
                               i64 at, const sdd_arg *a, i32 rows, const i32 *cols, R factor,
                               R beta)
{
    NO_UNROLL
    for (i32 i = 0; i < rows; i++) {
        UNROLL
        for (i32 c = 0; c < 4 * PATCH_QUADS; c++)
            if (c % 4 < cols[c / 4]) {
                const i64 e = at + i * a->block_cols + c / 4 * 4 * a->across + c % 4;
                const R v = factor * acc[0][c];
                NAME(store_r)(type, to, e, beta != 0 ? v + beta * NAME(load_r)(type, to, e) : v);
            }
        UNROLL
        for (i32 next = 1; next < PATCH_ROWS; next++)
            UNROLL
        for (i32 c = 0; c < 4 * PATCH_QUADS; c++)
            acc[next - 1][c] = acc[next][c];
    }
}

KERNEL_GROUPS(FORMED(sdd_few), LANES, PATCH_GROUPS)
(BUF(const T, left), BUF(const T, right), BUF(u8, s), BUF(R, parts), BUF(const R, gate),
 BUF(const sdd_block, blocks), const sdd_arg a)
{
    QUEUE_WAIT();
    OPEN(const T, left);
    OPEN(const T, right);
    OPEN(u8, s);
    OPEN(R, parts);
    OPEN(const R, gate);
    OPEN(const sdd_block, blocks);

    /* Parts of a block are neighbours. The host counts groups, and so these, in 32 bits. */
    const u32 tiles = (u32)a.strips * (u32)a.tiles_m;
    const u32 group = a.groups > 1 ? (u32)GROUP(0) / tiles : 0;
    const u32 place = (u32)GROUP(0) - group * tiles;
    const u32 set = a.tiles_m > 1 ? place / (u32)a.tiles_m : place;
    const i32 cell = (i32)(place - set * (u32)a.tiles_m) * LANES + LANE;
    const i32 which = patch_quotient(cell, a.by_cells);
    const i64 entry = (i64)set * a.at_once + which;
    if (which >= a.at_once || entry >= a.nnz)
        return;
    const sdd_block block = blocks[entry];

    /* The patch in the block, and what there is of it. */
    const i32 own = cell - which * a.cells, line = patch_quotient(own, a.by_across);
    const i32 strip = patch_quotient(line, a.by_octs);
    const i32 in_row = (line - strip * a.octs) * PATCH_ROWS;
    const i32 in_col = (strip * PATCH_QUADS * a.across + own - line * a.across) * 4;
    const i32 row0 = block.row * a.block_rows + in_row, col0 = block.col * a.block_cols + in_col;
    const i32 rows_left = (i32)a.rows - row0, block_left = a.block_rows - in_row;
    i32 rows = rows_left < block_left ? rows_left : block_left;
    rows = rows < PATCH_ROWS ? rows : PATCH_ROWS;
    i32 cols[PATCH_QUADS];
    i32 whole = rows == PATCH_ROWS && a.a_vector && a.b_vector, aligned = a.s_vector;
    UNROLL
    for (i32 q = 0; q < PATCH_QUADS; q++) {
        const i32 further = q * 4 * a.across, cols_left = (i32)a.cols - col0 - further;
        cols[q] = in_col + further < a.block_cols ? 4 : 0;
        cols[q] = cols_left < cols[q] ? cols_left : cols[q];
        whole = whole && cols[q] == 4;
        aligned = aligned && (cols[q] == 4 || cols[q] <= 0);
    }

    /* A gate of 0 turns off what is stored, but in sums for dgate. */
    const R g = gate ? gate[block.slot] : 1;
    const i32 zero = a.gate_mode && g == 0;
    if (rows <= 0 || (zero && !a.direct && a.gate_mode == 1))
        return;
    R acc[PATCH_ROWS][4 * PATCH_QUADS];
    UNROLL
    for (i32 i = 0; i < PATCH_ROWS; i++)
        UNROLL
    for (i32 c = 0; c < 4 * PATCH_QUADS; c++)
        acc[i][c] = 0;
    const i32 type = SIMT_CODE == 4 && a.type == SIMT_F16 ? SIMT_F16 : SIMT_CODE;
    const i64 first = (a.groups > 1 ? (i64)group * a.heads : 0) + block.head;
    left += first * a.a_batch + (i64)row0 * (i32)a.a_row;
    right += first * a.b_batch + (i64)col0 * (i32)a.b_col;
    const i32 members = zero && a.direct ? 0 : (i32)a.members;
    const i32 pairs = !a.a_along_k && !a.b_along_k, turn = pairs ? 2 : 4;
    const i32 turns = whole ? (i32)a.n / turn : 0; /* others come one by one */
    NO_UNROLL
    for (i32 m = 0; m < members; m++) {
        if (turns && pairs)
            FN(patch_pairs)(acc, type, left, right, &a, turns);
        else if (turns && a.a_along_k && a.b_along_k)
            FN(patch_fours)(acc, type, left, right, &a, turns, 1, 1);
        else if (turns && a.a_along_k)
            FN(patch_fours)(acc, type, left, right, &a, turns, 1, 0);
        else if (turns)
            FN(patch_fours)(acc, type, left, right, &a, turns, 0, 1);
        NO_UNROLL
        for (i32 k = turns * turn; k < (i32)a.n; k++)
            FN(patch_one)
        (acc, type, left + (i64)k * (i32)a.a_k, right + (i64)k * (i32)a.b_k, &a, rows, cols);
        left += a.heads * a.a_batch;
        right += a.heads * a.b_batch;
    }

    /* To S, or to the sums of all pairs. */
    const i64 size = a.block_rows * a.block_cols;
    const i64 at = (a.direct ? group * a.s_group : group * a.nnz * size) + block.slot * size +
                   in_row * a.block_cols + in_col;
    GLOBAL void *const to = a.direct ? (GLOBAL void *)s : (GLOBAL void *)parts;
    const i32 to_type = a.direct ? a.s_type : R_TYPE;
    const R alpha = zero ? 0 : a.gate_mode == 2 ? NUM(a.alpha) * g : NUM(a.alpha);
    const R factor = a.direct ? alpha : 1;
    const R beta = a.direct ? NUM(a.beta) : (R)a.accumulate;
    if (!aligned)
        FN(patch_elements)(acc, to_type, to, at, &a, rows, cols, factor, beta);
    else if (to_type == R_TYPE)
        FN(patch_store)(acc, R_TYPE, to, at, &a, rows, cols, factor, beta);
    else if (to_type == SIMT_BF16)
        FN(patch_store)(acc, SIMT_BF16, to, at, &a, rows, cols, factor, beta);
    else
        FN(patch_store)(acc, to_type, to, at, &a, rows, cols, factor, beta);
}
