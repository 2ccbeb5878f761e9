/* The forms for CPUs behind OpenCL: one work item computes the tile that a group of the tiled forms
 * does, in pieces whose sums stay in registers. */
#define DOT_SIDE   4 /* attn_scores: pieces of 4 x 4 elements, each with sums of every 16th term */
#define APPLY_SIDE 8 /* attn_apply: pieces of 8 x 32 elements */
#define APPLY_WIDE 32
#define APPLY_TN   64 /* columns of a tile */

/* acc += the products of four rows of each, which begin at these elements. */
DEVICE void NAME(attn_dots)(i32 type, const GLOBAL u8 *q, const i64 *left, const GLOBAL u8 *k,
                            const i64 *right, i64 depth, R (*acc)[DOT_SIDE][VEC])
{
    i64 f = 0;
    for (; f + VEC <= depth; f += VEC) {
        R x[DOT_SIDE][VEC], y[DOT_SIDE][VEC];
        UNROLL
        for (i32 i = 0; i < DOT_SIDE; i++) {
            NAME(load_run)(type, q, left[i] + f, x[i]);
            NAME(load_run)(type, k, right[i] + f, y[i]);
        }
        UNROLL
        for (i32 i = 0; i < DOT_SIDE; i++)
            UNROLL
        for (i32 j = 0; j < DOT_SIDE; j++)
            for (i32 e = 0; e < VEC; e++)
                acc[i][j][e] += x[i][e] * y[j][e];
    }
    for (; f < depth; f++)
        UNROLL
    for (i32 i = 0; i < DOT_SIDE; i++)
        UNROLL
    for (i32 j = 0; j < DOT_SIDE; j++)
        acc[i][j][0] += NAME(load_r)(type, q, left[i] + f) * NAME(load_r)(type, k, right[j] + f);
}

KERNEL(attn_scores_wide, LANES)(ATTN_SCORES_BUFFERS, const attn_scores_arg a)
{
    QUEUE_WAIT();
    ATTN_SCORES_OPEN;
    const i64 member = GROUP(0) / a.strips / a.tiles_m;
    const attn_strip strip = strips[GROUP(0) % a.strips];
    const i32 in_row = (i32)(GROUP(0) / a.strips % a.tiles_m) * a.tile;
    const i32 group = (i32)(member % a.per_head);
    const i64 b = member / a.per_head, h = (i64)strip.head * a.per_head + group;
    const i32 row0 = strip.row * a.block_rows + in_row;
    const i32 rows = attn_tile_rows(a.rows, a.block_rows, strip.row, in_row, a.tile);
    const i64 block = (i64)a.block_rows * a.block_cols;
    const i64 q_at = b * a.q_batch + h * a.q_head;
    const i64 k_at = b * a.k_batch + h / a.kv_share * a.k_head;

    for (i32 n = 0; n < strip.count * a.unit_cols; n += DOT_SIDE) {
        const attn_columns c = attn_columns_at(&a, &strip, n, col, slot);
        i64 keys[DOT_SIDE];
        i32 there[DOT_SIDE];
        for (i32 j = 0; j < DOT_SIDE; j++) {
            const i32 time = j < c.count ? rules_time(a.cols, a.interleave, c.line + j) : a.k_time;
            there[j] = time < a.k_time;
            keys[j] = k_at + (there[j] ? time * a.k_row : 0);
        }
        for (i32 r = 0; c.count > 0 && r < rows; r += DOT_SIDE) {
            i64 queries[DOT_SIDE];
            R acc[DOT_SIDE][DOT_SIDE][VEC];
            i32 live[DOT_SIDE];
            for (i32 i = 0; i < DOT_SIDE; i++) {
                const i32 time =
                    r + i < rows ? rules_time(a.rows, a.interleave, row0 + r + i) : a.q_time;
                live[i] = time < a.q_time;
                queries[i] = q_at + (live[i] ? time * a.q_row : 0);
                for (i32 j = 0; j < DOT_SIDE; j++)
                    for (i32 e = 0; e < VEC; e++)
                        acc[i][j][e] = 0;
            }
            NAME(attn_dots)(SINGLE_TYPE(a.type), q, queries, k, keys, a.depth, acc);
            for (i32 i = 0; i < DOT_SIDE && r + i < rows; i++) {
                R v[DOT_SIDE];
                for (i32 j = 0; j < DOT_SIDE; j++) {
                    for (i32 half = VEC / 2; half > 0; half /= 2)
                        for (i32 e = 0; e < half; e++)
                            acc[i][j][e] += acc[i][j][e + half];
                    v[j] = live[i] && there[j] ? acc[i][j][0] : (R)0;
                }
                NAME(attn_store4)
                (a.s_type, s,
                 b * a.s_batch + group * a.s_group + c.slot * block +
                     (i64)(in_row + r + i) * a.block_cols + c.in_block,
                 c.count, a.s_vector, NUM(a.alpha), NUM(a.beta), v);
            }
        }
    }
}

/* acc += S V for up to 8 lines and 32 columns of y, over a block. */
DEVICE void NAME(attn_apply_block)(const attn_apply_arg *a, const attn_walk *w, const GLOBAL u8 *s,
                                   const GLOBAL u8 *v, i64 n, i64 s_at, i32 rows, i32 cols,
                                   R (*acc)[APPLY_WIDE])
{
    for (i32 k = 0; k < w->left; k++) {
        const i32 time = rules_time(a->others, a->interleave, w->line + k);
        R right[APPLY_WIDE];
        if (time >= a->v_time)
            continue;
        for (i32 j = 0; j < APPLY_WIDE; j += VEC)
            NAME(load_part)
        (SINGLE_TYPE(a->v_type), v, w->v_at + time * a->v_row + n + j, 1,
         cols - j < VEC ? cols - j : VEC, 1, right + j);
        for (i32 i = 0; i < APPLY_SIDE && i < rows; i++) {
            const R left = NAME(load_r)(a->s_type, s, w->s_at + s_at + i * a->s_row + k * a->s_col);
            for (i32 j = 0; j < APPLY_WIDE; j++)
                acc[i][j] += left * right[j];
        }
    }
}

KERNEL(attn_apply_wide, LANES)(ATTN_APPLY_BUFFERS, const attn_apply_arg a)
{
    QUEUE_WAIT();
    ATTN_APPLY_OPEN;
    const i64 n0 = GROUP(0) % a.tiles_n * APPLY_TN, tile = GROUP(0) / a.tiles_n;
    const i32 in_block = (i32)(tile % a.tiles_m) * a.tile;
    const i32 block = (i32)(tile / a.tiles_m % a.grid);
    const i64 member = tile / a.tiles_m / a.grid, b = member / a.y_heads;
    const i32 head = (i32)(member % a.y_heads);
    const i32 rows = attn_tile_rows(a.lines, a.side, block, in_block, a.tile);
    for (i64 n = n0; n < n0 + APPLY_TN && n < a.width; n += APPLY_WIDE)
        for (i32 r = 0; r < rows; r += APPLY_SIDE) {
            const i32 cols = (i32)(a.width - n < APPLY_WIDE ? a.width - n : APPLY_WIDE);
            R acc[APPLY_SIDE][APPLY_WIDE];
            attn_walk w;
            for (i32 i = 0; i < APPLY_SIDE; i++)
                for (i32 j = 0; j < APPLY_WIDE; j++)
                    acc[i][j] = 0;
            attn_walk_start(&w, &a, b, head, block, start, col, slot);
            while (w.h < w.h_end) {
                NAME(attn_apply_block)
                (&a, &w, s, v, n, (in_block + r) * a.s_row, rows - r, cols, acc);
                w.entry++;
                attn_walk_enter(&w, &a, b, block, start, col, slot);
            }
            for (i32 i = 0; i < APPLY_SIDE && r + i < rows; i++) {
                const i32 line = block * a.side + in_block + r + i;
                const i32 time = rules_time(a.lines, a.interleave, line);
                for (i32 j = 0; time < a.y_time && j < cols; j += 4)
                    NAME(attn_store4)
                (a.y_type, y, b * a.y_batch + head * a.y_head + time * a.y_row + n + j, cols - j,
                 a.y_vector, NUM(a.alpha), NUM(a.beta), acc[i] + j);
            }
        }
}
