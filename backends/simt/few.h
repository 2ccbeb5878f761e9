/* Products with few samples, bound by reading or writing the blocks once, on devices with lanes.
 * Variants:
 *     -DTM=8, 16    dsd_few_<TM>, for so many columns at a time
 *     -DTM=32, 64   sdd_few_<TM>, by patches of so many elements; 64 not of f64
 *     none          few_finish, which adds up what parts of the lists of dsd left
 *
 * In dsd a group has a tile of up to 32 rows of a block row and a part of its list. A lane takes patches
 * of 4 rows by a quad of the depth, with sums of 4 rows by TM columns; lanes with the same rows take the
 * list's quads in turn, and add their sums up at the end. */
#define SIMT_HALVES
#define SIMT_SINGLES
#include "products_arg.h"

#define GROUP_LANES 128
#include "lanes.h"

#include "products_form.h"

#ifndef QUAD_OWN
#define QUAD_TYPE HALF_TYPE
#define QUAD_OWN  (SIMT_CODE <= 2)
#include "quads.h"
#endif

#if defined(TM) && TM <= 16
#include "products_dsd.h"

#undef FEW_GROUPS
#define FEW_GROUPS (SIMT_CODE == 1 ? 2 : TM == 8 ? 4 : 3) /* whose registers hold the sums */

#ifndef FEW_TURN
#define FEW_TURN 2 /* patches of S that a lane has under way, or at hand */

/* A quad of the depth of a block; beyond the list one of its last block. */
typedef struct NAME(few_place) {
    i32 slot, col, quad;
} NAME(few_place);

/* A lane's way through the quads of a list that is not empty: the next one, and how far it is to the
 * one after. */
typedef struct NAME(few_walk) {
    i32 entry, last, quad;
    i32 entries, quads;
} NAME(few_walk);

DEVICE NAME(few_place)
    NAME(few_next)(NAME(few_walk) * w, i32 quads, const GLOBAL i32 *col, const GLOBAL i32 *slot)
{
    NAME(few_place) p;
    const i32 entry = w->entry < w->last ? w->entry : w->last - 1;
    p.slot = slot[entry];
    p.col = col[entry];
    p.quad = w->quad;
    w->entry += w->entries;
    w->quad += w->quads;
    if (w->quad >= quads) {
        w->quad -= quads;
        w->entry++;
    }
    return p;
}

/* How much of the quad is in the depth. */
DEVICE i32 NAME(few_left)(const NAME(few_place) * p, const dsd_arg *a)
{
    const i64 left = a->depth - (i64)p->col * a->block_cols - 4 * p->quad;
    return left < 0 ? 0 : left < 4 ? (i32)left : 4;
}

/* The patch of S as it lies: four rows along the depth, or four of the depth along the rows. Where all
 * is whole nothing is asked. */
DEVICE void NAME(few_patch)(NAME(quad) * q, i32 type, const GLOBAL T *s, const dsd_arg *a,
                            const NAME(few_place) * p, i32 whole)
{
    const i32 step = (i32)(a->s_along_k ? a->s_row : a->s_col);
    const i32 left = whole ? 4 : NAME(few_left)(p, a);
    s += (i64)p->slot * (i32)a->s_block + 4 * p->quad * (i32)a->s_col;
    if (whole || (left == 4 && a->s_vector)) {
        UNROLL
        for (i32 i = 0; i < 4; i++)
            q[i] = NAME(quad_whole)(type, s, i * step);
    } else {
        UNROLL
        for (i32 i = 0; i < 4; i++)
            q[i] = NAME(quad_part)(type, s, i * step, 1, a->s_along_k ? left : i < left ? 4 : 0, 0);
    }
}

/* Columns n to n + 3 of B at a quad of the depth, as they lie; of whole quads of the depth, too, those
 * that are not there are the last one again. */
DEVICE void NAME(few_columns)(NAME(quad) * q, i32 type, const GLOBAL T *b, const dsd_arg *a, i32 n,
                              i32 cols, i32 left, i32 whole)
{
    UNROLL
    for (i32 i = 0; i < 4; i++) {
        if (whole) {
            const i32 column = n + i < cols ? n + i : cols - 1;
            q[i] = NAME(quad_whole)(type, b,
                                    a->b_along_n ? i * (i32)a->b_row + n : column * (i32)a->b_col);
        } else {
            const i64 at = a->b_along_n ? i * a->b_row + n * a->b_col : (n + i) * a->b_col;
            const i32 lines = a->b_along_n ? left - i : cols - n - i;
            q[i] = NAME(quad_part)(type, b, at, 1,
                                   lines <= 0     ? 0
                                   : a->b_along_n ? cols - n
                                                  : left,
                                   a->b_vector);
        }
    }
}
#endif

/* Adds the products of a patch, lines[i][k] or lines[k][i], with four columns from n on. */
DEVICE void FN(few_add)(R acc[4][TM], R lines[4][4], i32 type, const NAME(quad) * columns, i32 n,
                        i32 s_along_k, i32 b_along_n)
{
    R w[4][4];
    UNROLL
    for (i32 i = 0; i < 4; i++)
        NAME(quad_numbers)(type, columns[i], w[i]);
    UNROLL
    for (i32 k = 0; k < 4; k++)
        UNROLL
    for (i32 i = 0; i < 4; i++)
        UNROLL
    for (i32 e = 0; e < 4; e++)
        acc[i][n + e] = FMA(s_along_k ? lines[i][k] : lines[k][i], b_along_n ? w[k][e] : w[e][k],
                            acc[i][n + e]);
}

/* The products of a patch. The loads of eight columns come first. */
DEVICE void FN(few_multiply)(R acc[4][TM], i32 type, const NAME(quad) * patch, const GLOBAL T *b,
                             const dsd_arg *a, i32 left, R gate, i32 cols, i32 whole)
{
    R lines[4][4];
    UNROLL
    for (i32 i = 0; i < 4; i++)
        NAME(quad_numbers)(type, patch[i], lines[i]);
    UNROLL
    for (i32 i = 0; i < 4; i++)
        UNROLL
    for (i32 e = 0; e < 4; e++)
        lines[i][e] = whole ? lines[i][e] : gate * lines[i][e];
    UNROLL
    for (i32 n = 0; n < TM; n += 8)
        if (n < cols) {
            NAME(quad) columns[2][4];
            NAME(few_columns)(columns[0], type, b, a, n, cols, left, whole);
            if (n + 4 < cols)
                NAME(few_columns)(columns[1], type, b, a, n + 4, cols, left, whole);
            UNROLL
            for (i32 h = 0; h < 2; h++) {
                const i32 at = n + 4 * h, there = at < cols;
                if (there && a->s_along_k && a->b_along_n)
                    FN(few_add)(acc, lines, type, columns[h], at, 1, 1);
                else if (there && a->s_along_k)
                    FN(few_add)(acc, lines, type, columns[h], at, 1, 0);
                else if (there && a->b_along_n)
                    FN(few_add)(acc, lines, type, columns[h], at, 0, 1);
                else if (there)
                    FN(few_add)(acc, lines, type, columns[h], at, 0, 0);
            }
        }
}

/* The products of every `slices`-th of `left` quads. */
DEVICE void FN(few_list)(R acc[4][TM], NAME(few_walk) w, i32 left, i32 slices, const GLOBAL T *s,
                         const GLOBAL T *b, const GLOBAL R *gate, const GLOBAL i32 *col,
                         const GLOBAL i32 *slot, const dsd_arg *a, i32 cols)
{
    const i32 type = HALF_TYPE(a->type);
    for (; left > 0; left -= slices) {
        const NAME(few_place) at = NAME(few_next)(&w, a->block_cols / 4, col, slot);
        const R scale = gate ? gate[at.slot] : 1;
        NAME(quad) patch[4];
        NAME(few_patch)(patch, type, s, a, &at, 0);
        if (scale != 0)
            FN(few_multiply)
        (acc, type, patch, b + ((i64)at.col * a->block_cols + 4 * at.quad) * a->b_row, a,
         NAME(few_left)(&at, a), scale, cols, 0);
    }
}

/* The same where all is whole: S is fetched FEW_TURN - 1 patches ahead, and the block before that
 * looked up. So many rounds are written out, so that what comes stays where it came to. */
DEVICE void FN(few_whole)(R acc[4][TM], NAME(few_walk) w, i32 left, i32 slices, const GLOBAL T *s,
                          const GLOBAL T *b, const GLOBAL i32 *col, const GLOBAL i32 *slot,
                          const dsd_arg *a, i32 cols)
{
    const i32 quads = a->block_cols / 4, type = HALF_TYPE(a->type);
    NAME(few_place) places[FEW_TURN];
    NAME(quad) patch[FEW_TURN][4];
    UNROLL
    for (i32 t = 0; t < FEW_TURN; t++)
        places[t] = NAME(few_next)(&w, quads, col, slot);
    UNROLL
    for (i32 t = 0; t < FEW_TURN - 1; t++)
        NAME(few_patch)(patch[t], type, s, a, &places[t], 1);
    while (left > 0) {
        UNROLL
        for (i32 t = 0; t < FEW_TURN; t++) {
            const i32 last = (t + FEW_TURN - 1) % FEW_TURN;
            if (left > 0) {
                NAME(few_patch)(patch[last], type, s, a, &places[last], 1);
                const i32 k = places[t].col * a->block_cols + 4 * places[t].quad;
                places[t] = NAME(few_next)(&w, quads, col, slot);
                FN(few_multiply)(acc, type, patch[t], b + k * (i32)a->b_row, a, 4, 1, cols, 1);
                left -= slices;
            }
        }
    }
}

KERNEL_GROUPS(FORMED(dsd_few), LANES, FEW_GROUPS)
(DSD_BUFFERS(T), BUF(R, parts), const dsd_arg a)
{
    QUEUE_WAIT();
    LOCAL R pool[LANES * 17] ALIGNED;
    DSD_OPEN(T);
    OPEN(R, parts);

    /* Parts of a list are neighbours, then tiles of its rows. */
    const i64 tiles = (i64)a.grid_rows * a.tiles_m * a.splits;
    const i64 across = QUOTIENT(GROUP(0), tiles), tile = GROUP(0) - across * tiles;
    const i64 m = QUOTIENT(across, a.tiles_n), place = QUOTIENT(tile, a.splits);
    const i32 split = (i32)(tile - place * a.splits);
    const i64 number = QUOTIENT(place, a.tiles_m);
    const i64 in_block = (place - number * a.tiles_m) * a.tile_rows;
    const i64 member = QUOTIENT(m, a.heads), head = m - member * a.heads;
    const dsd_list list = lists[head * a.grid_rows + number];
    const i64 row0 = (i64)list.row * a.block_rows + in_block;
    const i64 n0 = (across - m * a.tiles_n) * TM;
    const i64 block_left = a.block_rows - in_block, rows_left = a.rows - row0;
    i32 rows = (i32)(block_left < a.tile_rows ? block_left : a.tile_rows);
    const i32 cols = (i32)(a.cols - n0 < TM ? a.cols - n0 : TM);

    /* The lane's rows, and which of the lanes that have them it is: neighbours lie along what is
     * contiguous. */
    const i32 fours = rows / 4, slices = LANES / fours, quads = a.block_cols / 4;
    const i32 slice = a.s_along_k ? LANE % slices : LANE / fours;
    const i32 own = a.s_along_k ? LANE / slices : LANE % fours;
    const i32 works = slice < slices && own < fours;
    s += (a.groups > 1 ? member : 0) * a.s_group + (in_block + 4 * own) * a.s_row;
    b += m * a.b_batch + n0 * a.b_col;

    const i64 length = list.last - list.first;
    NAME(few_walk) w;
    w.entry = list.first + (i32)(length * split / a.splits);
    w.last = list.first + (i32)(length * (split + 1) / a.splits);
    i32 left = works ? (w.last - w.entry) * quads - slice : 0; /* until none is the lane's */
    w.entry += slice / quads;
    w.quad = slice % quads;
    w.entries = slices / quads;
    w.quads = slices % quads;

    R acc[4][TM];
    UNROLL
    for (i32 i = 0; i < 4; i++)
        UNROLL
    for (i32 n = 0; n < TM; n++)
        acc[i][n] = 0;

    if (left > 0 && a.whole)
        FN(few_whole)(acc, w, left, slices, s, b, col, slot, &a, cols);
    else
        FN(few_list)(acc, w, left, slices, s, b, gate, col, slot, &a, cols);

    /* Four columns at a time, whose place the next ones take: each of `ways` lanes adds up its share of
     * an element's sums, and the first of them those of the others. */
    const i32 outputs = 4 * rows, ways = LANES / outputs > 0 ? LANES / outputs : 1;
    const i32 share = (slices + ways - 1) / ways, way = LANE / outputs, out = LANE % outputs;
    rows = (i32)(rows_left < rows ? rows_left : rows);
    NO_UNROLL
    for (i32 n = 0; n < cols; n += 4) {
        BARRIER();
        UNROLL
        for (i32 i = 0; i < 4; i++) {
            if (works)
                NAME(local_store4)(pool + (slice * fours + own) * 16 + 4 * i, acc[i]);
            UNROLL
            for (i32 next = 4; next < TM; next++)
                acc[i][next - 4] = acc[i][next];
        }
        BARRIER();
        R sum = 0;
        for (i32 i = way * share; i < (way + 1) * share && i < slices && way < ways; i++)
            sum += pool[i * outputs + out];
        pool[LANES * 16 + LANE] = sum;
        BARRIER();
        const i32 r = out / 4, at = n + out % 4;
        if (way == 0 && r < rows && at < cols) {
            for (i32 i = 1; i < ways; i++)
                sum += pool[LANES * 16 + i * outputs + out];
            if (a.splits == 1)
                FN(dsd_store)
            (&a, c, bias, residual, row_scale, col_scale, m, row0 + r, n0 + at, sum);
            else parts[((split * a.members + m) * a.rows + row0 + r) * a.cols + n0 + at] = sum;
        }
    }
}

#elif defined(TM) && (SIMT_CODE != 1 || TM != 64)
#include "few_sdd.h"

#elif !defined(TM) && SIMT_CODE <= 2
#include "products_dsd.h"

/* C from the sums of parts of the lists, in their order. */
KERNEL(few_finish, LANES)
(BUF(const R, parts), BUF(u8, c), BUF(const R, bias), BUF(const u8, residual),
 BUF(const R, row_scale), BUF(const R, col_scale), const dsd_arg a)
{
    QUEUE_WAIT();
    OPEN(const R, parts);
    OPEN(u8, c);
    OPEN(const R, bias);
    OPEN(const u8, residual);
    OPEN(const R, row_scale);
    OPEN(const R, col_scale);
    const i64 member = a.rows * a.cols, all = a.members * member;
    const i64 at = GROUP(0) * LANES + LANE;
    if (at >= all)
        return;
    const i64 m = QUOTIENT(at, member), row = QUOTIENT(at - m * member, a.cols);
    R sum = 0;
    for (i32 i = 0; i < a.splits; i++)
        sum += parts[i * all + at];
    FN(dsd_store)
    (&a, c, bias, residual, row_scale, col_scale, m, row, at - m * member - row * a.cols, sum);
}
#endif
