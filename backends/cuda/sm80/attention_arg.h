/* The arguments of the attention kernels of sm80, and how their tiles are described. */
#ifndef BSKI_CUDA_SM80_ATTENTION_ARG_H
#define BSKI_CUDA_SM80_ATTENTION_ARG_H

/* Lines of a square: of what is decided at once whether it is kept and visible. */
enum { SQUARE = 16 };
enum { DELTA_THREADS = 256, DELTA_ROW = 8 /* threads of a row */ };

/* Strides of one of q, k, v ... */
typedef struct attention80_heads {
    i64 batch, head, time;
    i32 type, pad;
} attention80_heads;

/* A result's tiles of own lines, query rows or key columns, and for each the list of other lines
 * that it meets, in pieces of a block: piece p begins with line[p], and its
 * block has with block number i of the tile's own lines the slot slot[p * subs + i]; -1: there is
 * no such block. */
typedef struct attention80_tiles {
    const i32 *start; /* list l has the pieces start[l] to start[l + 1] - 1 */
    const i32 *line, *slot;
    const i32 *order;  /* of a head's tiles: the longest lists first */
    i32 tiles, lists;  /* of a head of the layout */
    i32 each, subs;    /* tiles that share a block's list, or blocks that share a tile's */
    i32 piece;         /* lines of a piece: their binary logarithm */
    i32 side, other;   /* lines of a block, own and others */
    i32 lines, others; /* all of them */
    i32 heads, batch;  /* of the result */
    i32 together;      /* heads whose tiles take turns: they share a cache */
} attention80_tiles;

/* O = softmax(Q K^T) V: own lines are queries. */
typedef struct attention80_arg {
    rules_arg rules;
    attention80_tiles tiles;
    attention80_heads q, k, v, o;
    const u16 *q_data, *k_data, *v_data;
    u8 *o_data;
    f32 *lse; /* or NULL */
    const i32 *q_len, *k_len, *prefix, *q_segment, *k_segment, *bits_index;
    const u8 *bits;
    const f32 *slopes;
    f32 scale;
    i32 d, dv;
    i32 group; /* query heads of one of keys and values */
} attention80_arg;

/* The gradient for own lines, from tiles x of Q (own) or K and x2 of dO or V, and other lines y of K
 * or Q and y2 of V or dO: out = alpha * dS y + beta * out, and where keys own the tiles
 * out2 = alpha * P y2 + beta * out2. */
typedef struct attention80_grad_arg {
    rules_arg rules;
    attention80_tiles tiles;
    attention80_heads x, y, x2, y2, out, out2;
    const u16 *x_data, *y_data, *x2_data, *y2_data;
    u8 *out_data, *out2_data;
    const f32 *lse, *delta;
    const i32 *q_len, *k_len, *prefix, *q_segment, *k_segment, *bits_index;
    const u8 *bits;
    const f32 *slopes;
    f32 scale, alpha, beta;
    f32 slope, rest; /* as attention_slope says */
    i32 d, dv;
    i32 group;
} attention80_grad_arg;

/* delta [batch][heads][pad] = slope * sum of O dO along a row. With `bound`, of the same shape, that
 * is the row's log-sum-exp in powers of two, or +infinity where the row sees nothing; rows from
 * q_len on, and the padding, have infinity, and 0 as delta. */
typedef struct attention80_delta_arg {
    attention80_heads o, dout;
    const u16 *o_data, *dout_data;
    f32 *delta, *bound; /* bound: or NULL */
    const f32 *lse;
    const i32 *q_len; /* or NULL */
    i64 rows;         /* with the padding */
    i32 heads, time, pad;
    i32 dv, bf16;
    f32 slope;
} attention80_delta_arg;

#endif
