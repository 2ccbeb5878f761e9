/* The products of attention with stored scores. Kernels of f32 serve all types but f64. Variants:
 *     -DTM=16, 32          tiled forms attn_scores_<TM> and attn_apply_<TM> for blocks of up to TM
 *                          lines, or tiles of larger ones
 *     -DWIDE=1             attn_scores_wide and attn_apply_wide for CPUs behind OpenCL
 * The name of a kernel contains its variant, so that one program can hold them all. The host's side
 * (scores.c) includes this file without SIMT_T for the structs of scalars. */
#define SIMT_SINGLES
#ifndef BSKI_SIMT_SCORES_H
#define BSKI_SIMT_SCORES_H

/* Neighbours in a block row, of which attn_scores computes a tile. Blocks are cut into units of
 * unit_cols columns; the strip has `count` of them, from number `unit` of entry `entry` on. */
typedef struct attn_strip {
    i32 row, head, entry, unit, count;
} attn_strip;

/* Strides count elements. Query head h uses key/value head h / kv_share. */
typedef struct attn_scores_arg {
    i64 alpha, beta; /* NUM */
    i64 q_batch, q_head, q_row;
    i64 k_batch, k_head, k_row;
    i64 s_batch, s_group;
    i64 depth, strips;
    i32 rows, cols; /* of the layout */
    i32 q_time, k_time;
    i32 block_rows, block_cols;
    i32 per_head, kv_share;
    i32 interleave, unit_cols;
    i32 tile, tiles_m, tiles_n; /* rows of a tile; tiles and units of a block */
    i32 s_type;
    i32 q_vector, k_vector; /* their quads are aligned */
    i32 s_vector, type;     /* type: of q and k */
} attn_scores_arg;

/* Lines are those of y: rows of the layout, or columns where S is transposed. A head of y sums
 * `add` query heads. */
typedef struct attn_apply_arg {
    i64 alpha, beta;           /* NUM */
    i64 s_batch, s_group;      /* op(S), */
    i64 s_block, s_row, s_col; /* and within it a block and its elements */
    i64 v_batch, v_head, v_row;
    i64 y_batch, y_head, y_row;
    i64 width, tiles_n;
    i32 lines, others; /* of the layout */
    i32 y_time, v_time;
    i32 side, other_side; /* of a block, along lines and across */
    i32 grid, tile, tiles_m;
    i32 y_heads, add, v_share, per_head;
    i32 interleave;
    i32 along_k; /* S is contiguous along the sum */
    i32 s_type, v_type, y_type;
    i32 s_vector, v_vector, y_vector; /* their quads are aligned */
} attn_apply_arg;

#endif

#ifdef SIMT_T
#define GROUP_LANES 128
#include "lanes.h"

#ifndef BSKI_SIMT_SCORES_ONCE
#define BSKI_SIMT_SCORES_ONCE
#include "attention_rules.h"

/* Columns of a strip from its column n on. */
typedef struct attn_columns {
    i64 slot;
    i32 line, in_block; /* the first, in the layout and in its block */
    i32 count;          /* to the end of the block; 0: none */
} attn_columns;

DEVICE attn_columns attn_columns_at(const attn_scores_arg *a, const attn_strip *strip, i32 n,
                                    const GLOBAL i32 *col, const GLOBAL i32 *slot)
{
    const i32 unit = n / a->unit_cols, number = strip->unit + unit;
    attn_columns c;
    c.slot = 0;
    c.line = c.in_block = c.count = 0;
    if (unit < strip->count) {
        const i32 entry = strip->entry + number / a->tiles_n;
        c.slot = slot[entry];
        c.in_block = number % a->tiles_n * a->unit_cols + n % a->unit_cols;
        c.line = col[entry] * a->block_cols + c.in_block;
        c.count = a->cols - c.line < a->block_cols - c.in_block ? a->cols - c.line
                                                                : a->block_cols - c.in_block;
        c.count = c.count > 0 ? c.count : 0;
    }
    return c;
}

/* Rows of a tile, which may lie beyond its block or the layout: then 0 or less. */
DEVICE i32 attn_tile_rows(i32 lines, i32 side, i32 block, i32 in_block, i32 tile)
{
    const i32 left = lines - block * side - in_block, own = side - in_block;
    const i32 rows = left < own ? left : own;
    return rows < tile ? rows : tile;
}

/* The blocks that a tile of attn_apply sums, for one query head after the other. */
typedef struct attn_walk {
    i64 s_head, s_at, v_at;
    i32 h, h_end, entry, last;
    i32 line, k, left;       /* of the block: its first line; where the walk is, what is left */
    i32 next_slot, next_col; /* of the entry after, read in advance */
} attn_walk;

DEVICE void attn_walk_peek(attn_walk *w, i32 entry, const GLOBAL i32 *col, const GLOBAL i32 *slot)
{
    if (entry < w->last) {
        w->next_slot = slot[entry];
        w->next_col = col[entry];
    }
}

/* Enters the block of w->entry, or the first one of the next head that has any; w->h is w->h_end
 * after the last. */
DEVICE void attn_walk_enter(attn_walk *w, const attn_apply_arg *a, i64 b, i32 block,
                            const GLOBAL i64 *start, const GLOBAL i32 *col, const GLOBAL i32 *slot)
{
    while (w->entry >= w->last) {
        if (++w->h >= w->h_end)
            return;
        const i64 at = w->h / a->per_head * ((i64)a->grid + 1) + block;
        w->entry = (i32)start[at];
        w->last = (i32)start[at + 1];
        w->s_head = b * a->s_batch + w->h % a->per_head * a->s_group;
        w->v_at = b * a->v_batch + w->h / a->v_share * a->v_head;
        attn_walk_peek(w, w->entry, col, slot);
    }
    w->s_at = w->s_head + w->next_slot * a->s_block;
    w->line = w->next_col * a->other_side;
    w->k = 0;
    w->left = a->others - w->line < a->other_side ? a->others - w->line : a->other_side;
    attn_walk_peek(w, w->entry + 1, col, slot);
}

DEVICE void attn_walk_start(attn_walk *w, const attn_apply_arg *a, i64 b, i32 y_head, i32 block,
                            const GLOBAL i64 *start, const GLOBAL i32 *col, const GLOBAL i32 *slot)
{
    w->s_head = w->s_at = w->v_at = 0;
    w->h = y_head * a->add - 1;
    w->h_end = (y_head + 1) * a->add;
    w->entry = w->last = w->line = w->k = w->left = w->next_slot = w->next_col = 0;
    attn_walk_enter(w, a, b, block, start, col, slot);
}

/* alpha * v + beta * what is at p, for `count` of four neighbours. */
DEVICE void NAME(attn_store4)(i32 type, GLOBAL void *p, i64 i, i32 count, i32 vector, R alpha,
                              R beta, const R *v)
{
    R out[4];
    UNROLL
    for (i32 e = 0; e < 4; e++)
        if (e < count)
            out[e] = alpha * v[e] + (beta != 0 ? beta * NAME(load_r)(type, p, i + e) : (R)0);
#if SIMT_CODE != 1
    if (vector && count >= 4 && type != SIMT_F64) {
        if (type == SIMT_F32)
            f32_store4((GLOBAL f32 *)p + i, out);
        else if (type == SIMT_F16)
            f16_store4((GLOBAL u16 *)p + i, out);
        else
            bf16_store4((GLOBAL u16 *)p + i, out);
        return;
    }
#endif
    UNROLL
    for (i32 e = 0; e < 4; e++)
        if (e < count)
            NAME(store_r)(type, p, i + e, out[e]);
}
#endif

#define ATTN_SCORES_BUFFERS                                                                        \
    BUF(const u8, q), BUF(const u8, k), BUF(u8, s), BUF(const attn_strip, strips),                 \
        BUF(const i32, col), BUF(const i32, slot)
#define ATTN_SCORES_OPEN                                                                           \
    OPEN(const u8, q);                                                                             \
    OPEN(const u8, k);                                                                             \
    OPEN(u8, s);                                                                                   \
    OPEN(const attn_strip, strips);                                                                \
    OPEN(const i32, col);                                                                          \
    OPEN(const i32, slot)
#define ATTN_APPLY_BUFFERS                                                                         \
    BUF(const u8, s), BUF(const u8, v), BUF(u8, y), BUF(const i64, start), BUF(const i32, col),    \
        BUF(const i32, slot)
#define ATTN_APPLY_OPEN                                                                            \
    OPEN(const u8, s);                                                                             \
    OPEN(const u8, v);                                                                             \
    OPEN(u8, y);                                                                                   \
    OPEN(const i64, start);                                                                        \
    OPEN(const i32, col);                                                                          \
    OPEN(const i32, slot)

#if defined(WIDE)
#include "scores_wide.h"
#elif TM == 16 || TM == 32
#include "scores_tile.h"
#endif
#endif
