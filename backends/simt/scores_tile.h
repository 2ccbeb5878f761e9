/* The tiled forms. A group of 128 lanes holds a tile of the result in registers, RM x 4 elements a
 * lane, and walks along the sum in chunks of KC, which it stages in local memory twice: while it
 * computes from one stage it fetches for the other. */
#ifndef SCORES_TY
/* attn_scores: the lanes as SCORES_TY x SCORES_TX. f64 has half the local memory. */
#define SCORES_TY    4
#define SCORES_TX    (LANES / SCORES_TY)
#define SCORES_RM    (TM / SCORES_TY)
#define SCORES_TN    (4 * SCORES_TX)
#define SCORES_KC    (SIMT_CODE == 1 ? 8 : 16)
#define SCORES_STAGE (SCORES_KC * (STAGE_PITCH(TM) + STAGE_PITCH(SCORES_TN)))
/* attn_apply. */
#define APPLY_TY    8
#define APPLY_TX    (LANES / APPLY_TY)
#define APPLY_RM    (TM / APPLY_TY)
#define APPLY_TN    (4 * APPLY_TX)
#define APPLY_KC    8
#define APPLY_STAGE (APPLY_KC * (STAGE_PITCH(TM) + STAGE_PITCH(APPLY_TN)))

/* A chunk of `depth` x `width` numbers has rows of STAGE_PITCH(width), which keeps vector loads
 * aligned, and is fetched in quads of neighbours: number LANE, LANE + LANES ... */
#define STAGE_PITCH(width)        ((width) + 4)
#define STAGE_QUADS(depth, width) (((depth) * (width) / 4 + LANES - 1) / LANES)

/* A lane's place in a tile: neighbours differ in both directions, so that few addresses are read at
 * a time. Its rows come in fours where it has as many. */
#define TILE_Y(ty) (LANE / 2 % (ty))
#define TILE_X(ty) (LANE % 2 + LANE / (2 * (ty)) * 2)
#define TILE_ROW(r, y, ty, rm)                                                                     \
    ((rm) < 4 ? (y) * (rm) + (r) : (r) / 4 * 4 * (ty) + 4 * (y) + (r) % 4)

#define JOIN_FORM(x) SIMT_JOIN(x, TM)

#define QUAD_TYPE SINGLE_TYPE
#define QUAD_OWN  (SIMT_CODE == 1)
#include "quads.h"

/* The first `count` of four neighbours, the others are 0. */
DEVICE void NAME(attn_load4)(i32 type, const GLOBAL void *p, i64 i, i32 count, i32 vector, R *v)
{
#if SIMT_CODE != 1
    if (vector && count >= 4 && type != SIMT_F64) {
        if (type == SIMT_F32)
            f32_load4((const GLOBAL f32 *)p + i, v);
        else if (type == SIMT_F16)
            f16_load4((const GLOBAL u16 *)p + i, v);
        else
            bf16_load4((const GLOBAL u16 *)p + i, v);
        return;
    }
#endif
    UNROLL
    for (i32 e = 0; e < 4; e++)
        v[e] = e < count ? NAME(load_r)(type, p, i + e) : (R)0;
}

/* acc += the product of two staged chunks. */
DEVICE void NAME(tile_add)(const LOCAL_ARG R *left, i32 left_pitch, const LOCAL_ARG R *right,
                           i32 right_pitch, i32 depth, i32 y, i32 ty, i32 rm, i32 x, R (*acc)[4])
{
    NO_UNROLL
    for (i32 k = 0; k < depth; k++) {
        R rows[8], cols[4];
        if (rm < 4) {
            UNROLL
            for (i32 i = 0; i < rm; i++)
                rows[i] = left[k * left_pitch + y * rm + i];
        } else {
            UNROLL
            for (i32 i = 0; i < rm; i += 4)
                NAME(local_load4)(left + k * left_pitch + i * ty + 4 * y, rows + i);
        }
        NAME(local_load4)(right + k * right_pitch + 4 * x, cols);
        UNROLL
        for (i32 i = 0; i < rm; i++)
            UNROLL
        for (i32 j = 0; j < 4; j++)
            acc[i][j] = FMA(rows[i], cols[j], acc[i][j]);
    }
}
#endif

KERNEL(JOIN_FORM(attn_scores), LANES)(ATTN_SCORES_BUFFERS, const attn_scores_arg a)
{
    QUEUE_WAIT();
    LOCAL R pool[2 * SCORES_STAGE] ALIGNED;
    ATTN_SCORES_OPEN;
    const i64 tile = QUOTIENT(GROUP(0), a.strips), member = QUOTIENT(tile, a.tiles_m);
    const attn_strip strip = strips[GROUP(0) - tile * a.strips];
    const i32 in_row = (i32)(tile - member * a.tiles_m) * TM;
    const i64 b = QUOTIENT(member, a.per_head);
    const i32 group = (i32)(member - b * a.per_head);
    const i64 h = (i64)strip.head * a.per_head + group;
    const i32 row0 = strip.row * a.block_rows + in_row;
    const i32 rows = attn_tile_rows(a.rows, a.block_rows, strip.row, in_row, TM);
    const i32 y = TILE_Y(SCORES_TY), x = TILE_X(SCORES_TY);
    if (rows <= 0)
        return;

    /* Where the quads of a lane start; -1: they are 0. */
    const i32 quad_k = LANE % (SCORES_KC / 4) * 4, first = LANE / (SCORES_KC / 4);
    const i32 step = LANES / (SCORES_KC / 4);
    i64 q_at[STAGE_QUADS(SCORES_KC, TM)], k_at[STAGE_QUADS(SCORES_KC, SCORES_TN)];
    UNROLL
    for (i32 i = 0; i < STAGE_QUADS(SCORES_KC, TM); i++) {
        const i32 r = first + i * step;
        const i32 time = r < rows ? rules_time(a.rows, a.interleave, row0 + r) : a.q_time;
        q_at[i] = time < a.q_time ? b * a.q_batch + h * a.q_head + time * a.q_row + quad_k : -1;
    }
    UNROLL
    for (i32 i = 0; i < STAGE_QUADS(SCORES_KC, SCORES_TN); i++) {
        const attn_columns c = attn_columns_at(&a, &strip, first + i * step, col, slot);
        const i32 time = c.count > 0 ? rules_time(a.cols, a.interleave, c.line) : a.k_time;
        k_at[i] = time < a.k_time
                      ? b * a.k_batch + h / a.kv_share * a.k_head + time * a.k_row + quad_k
                      : -1;
    }

    R acc[SCORES_RM][4];
    UNROLL
    for (i32 i = 0; i < SCORES_RM; i++)
        UNROLL
    for (i32 j = 0; j < 4; j++)
        acc[i][j] = 0;

    /* Round i fetches chunk i and computes chunk i - 1. */
    i64 f = 0;
    for (i32 round = 0;; round++, f += SCORES_KC) {
        const i32 now = round & 1, more = f < a.depth;
        const i64 far = a.depth - f - quad_k;
        const i32 left = far > 4 ? 4 : (i32)far;
        NAME(quad) fetched_q[STAGE_QUADS(SCORES_KC, TM)];
        NAME(quad) fetched_k[STAGE_QUADS(SCORES_KC, SCORES_TN)];
        if (more) {
            UNROLL
            for (i32 i = 0; i < STAGE_QUADS(SCORES_KC, TM); i++)
                fetched_q[i] =
                    NAME(quad_part)(a.type, q, q_at[i] + f, 1, q_at[i] < 0 ? 0 : left, a.q_vector);
            UNROLL
            for (i32 i = 0; i < STAGE_QUADS(SCORES_KC, SCORES_TN); i++)
                fetched_k[i] =
                    NAME(quad_part)(a.type, k, k_at[i] + f, 1, k_at[i] < 0 ? 0 : left, a.k_vector);
        }
        if (round) {
            const LOCAL_ARG R *stage = pool + (1 - now) * SCORES_STAGE;
            NAME(tile_add)
            (stage, STAGE_PITCH(TM), stage + SCORES_KC * STAGE_PITCH(TM), STAGE_PITCH(SCORES_TN),
             SCORES_KC, y, SCORES_TY, SCORES_RM, x, acc);
        }
        if (!more)
            break;
        LOCAL_ARG R *q_stage = pool + now * SCORES_STAGE + quad_k * STAGE_PITCH(TM);
        LOCAL_ARG R *k_stage = pool + now * SCORES_STAGE + SCORES_KC * STAGE_PITCH(TM) +
                               quad_k * STAGE_PITCH(SCORES_TN);
        UNROLL
        for (i32 i = 0; i < STAGE_QUADS(SCORES_KC, TM); i++) {
            R numbers[4];
            NAME(quad_numbers)(a.type, fetched_q[i], numbers);
            if (first + i * step < TM)
                UNROLL
            for (i32 e = 0; e < 4; e++)
                q_stage[e * STAGE_PITCH(TM) + first + i * step] = numbers[e];
        }
        UNROLL
        for (i32 i = 0; i < STAGE_QUADS(SCORES_KC, SCORES_TN); i++) {
            R numbers[4];
            NAME(quad_numbers)(a.type, fetched_k[i], numbers);
            UNROLL
            for (i32 e = 0; e < 4; e++)
                k_stage[e * STAGE_PITCH(SCORES_TN) + first + i * step] = numbers[e];
        }
        BARRIER();
    }

    /* Four columns of a lane are neighbours in one block; scores of missing times are 0. */
    const attn_columns c = attn_columns_at(&a, &strip, 4 * x, col, slot);
    const i64 block = (i64)a.block_rows * a.block_cols;
    const i64 at = b * a.s_batch + group * a.s_group + c.slot * block + c.in_block;
    i32 there[4];
    UNROLL
    for (i32 j = 0; j < 4; j++)
        there[j] = j < c.count && rules_time(a.cols, a.interleave, c.line + j) < a.k_time;
    if (c.count == 0)
        return;
    /* Row by row, as a store is long: the sums of the next row take the place of the first. */
    NO_UNROLL
    for (i32 i = 0; i < SCORES_RM; i++) {
        const i32 r = TILE_ROW(i, y, SCORES_TY, SCORES_RM);
        if (r < rows) {
            const i32 live = rules_time(a.rows, a.interleave, row0 + r) < a.q_time;
            R v[4];
            UNROLL
            for (i32 j = 0; j < 4; j++)
                v[j] = live && there[j] ? acc[0][j] : (R)0;
            NAME(attn_store4)
            (a.s_type, s, at + (i64)(in_row + r) * a.block_cols, c.count, a.s_vector, NUM(a.alpha),
             NUM(a.beta), v);
        }
        UNROLL
        for (i32 next = 1; next < SCORES_RM; next++)
            UNROLL
        for (i32 j = 0; j < 4; j++)
            acc[next - 1][j] = acc[next][j];
    }
}

KERNEL(JOIN_FORM(attn_apply), LANES)(ATTN_APPLY_BUFFERS, const attn_apply_arg a)
{
    QUEUE_WAIT();
    LOCAL R pool[2 * APPLY_STAGE] ALIGNED;
    ATTN_APPLY_OPEN;
    const i64 tile = QUOTIENT(GROUP(0), a.tiles_n), n0 = (GROUP(0) - tile * a.tiles_n) * APPLY_TN;
    const i64 row = QUOTIENT(tile, a.tiles_m), member = QUOTIENT(row, a.grid);
    const i32 in_block = (i32)(tile - row * a.tiles_m) * TM, block = (i32)(row - member * a.grid);
    const i64 b = QUOTIENT(member, a.y_heads);
    const i32 head = (i32)(member - b * a.y_heads);
    const i32 rows = attn_tile_rows(a.lines, a.side, block, in_block, TM);
    const i32 cols = (i32)(a.width - n0 < APPLY_TN ? a.width - n0 : APPLY_TN);
    const i32 y_lane = TILE_Y(APPLY_TY), x = TILE_X(APPLY_TY), missing = a.v_time < a.others;
    if (rows <= 0)
        return;

    /* A lane's quad of S, and its place in the chunk; and its quad of V. */
    const i32 s_k = a.along_k ? LANE % 2 * 4 : LANE / (TM / 4);
    const i32 s_row = a.along_k ? LANE / 2 : LANE % (TM / 4) * 4;
    const i32 s_mine = LANE < TM * APPLY_KC / 4;
    const i32 v_k = LANE / APPLY_TX, v_col = LANE % APPLY_TX * 4;
    const i64 s_at = (in_block + s_row) * a.s_row + s_k * a.s_col;

    R acc[APPLY_RM][4];
    UNROLL
    for (i32 i = 0; i < APPLY_RM; i++)
        UNROLL
    for (i32 j = 0; j < 4; j++)
        acc[i][j] = 0;
    attn_walk w;
    attn_walk_start(&w, &a, b, head, block, start, col, slot);

    /* Round i fetches chunk i and computes chunk i - 1. */
    for (i32 round = 0;; round++) {
        const i32 now = round & 1, more = w.h < w.h_end;
        R fetched_s[4], fetched_v[4];
        if (more) {
            const i32 s_left =
                a.along_k ? (s_row < rows ? w.left - s_k : 0) : (s_k < w.left ? rows - s_row : 0);
            const i32 line = w.line + w.k;
            const i32 v_time = v_k < w.left ? rules_time(a.others, a.interleave, line + v_k) : 0;
            const i32 v_live = v_k < w.left && v_time < a.v_time;
            if (s_mine)
                NAME(attn_load4)
            (a.s_type, s, w.s_at + w.k * a.s_col + s_at, s_left, a.s_vector, fetched_s);
            NAME(attn_load4)
            (SINGLE_TYPE(a.v_type), v, w.v_at + v_time * a.v_row + n0 + v_col,
             v_live ? cols - v_col : 0, a.v_vector, fetched_v);
            if (missing && s_mine) {
                UNROLL
                for (i32 e = 0; e < 4; e++) {
                    const i32 k = s_k + (a.along_k ? e : 0);
                    if (k >= w.left || rules_time(a.others, a.interleave, line + k) >= a.v_time)
                        fetched_s[e] = 0;
                }
            }
            w.k += APPLY_KC;
            w.left -= APPLY_KC;
            if (w.left <= 0) {
                w.entry++;
                attn_walk_enter(&w, &a, b, block, start, col, slot);
            }
        }
        if (round) {
            const LOCAL_ARG R *stage = pool + (1 - now) * APPLY_STAGE;
            NAME(tile_add)
            (stage, STAGE_PITCH(TM), stage + APPLY_KC * STAGE_PITCH(TM), STAGE_PITCH(APPLY_TN),
             APPLY_KC, y_lane, APPLY_TY, APPLY_RM, x, acc);
        }
        if (!more)
            break;
        LOCAL_ARG R *s_stage = pool + now * APPLY_STAGE + s_k * STAGE_PITCH(TM) + s_row;
        LOCAL_ARG R *v_stage = pool + now * APPLY_STAGE + APPLY_KC * STAGE_PITCH(TM) +
                               v_k * STAGE_PITCH(APPLY_TN) + v_col;
        if (s_mine && a.along_k) {
            UNROLL
            for (i32 e = 0; e < 4; e++)
                s_stage[e * STAGE_PITCH(TM)] = fetched_s[e];
        } else if (s_mine) {
            NAME(local_store4)(s_stage, fetched_s);
        }
        NAME(local_store4)(v_stage, fetched_v);
        BARRIER();
    }

    /* Row by row, as above. */
    NO_UNROLL
    for (i32 i = 0; i < APPLY_RM; i++) {
        const i32 r = TILE_ROW(i, y_lane, APPLY_TY, APPLY_RM);
        const i32 time =
            r < rows ? rules_time(a.lines, a.interleave, block * a.side + in_block + r) : a.y_time;
        if (time < a.y_time && 4 * x < cols)
            NAME(attn_store4)
        (a.y_type, y, b * a.y_batch + head * a.y_head + time * a.y_row + n0 + 4 * x, cols - 4 * x,
         a.y_vector, NUM(a.alpha), NUM(a.beta), acc[0]);
        UNROLL
        for (i32 next = 1; next < APPLY_RM; next++)
            UNROLL
        for (i32 j = 0; j < 4; j++)
            acc[next - 1][j] = acc[next][j];
    }
}
