/* The arguments of the attention_decode kernels of sm80. */
#ifndef BSKI_CUDA_SM80_DECODE_ARG_H
#define BSKI_CUDA_SM80_DECODE_ARG_H

#include <backends/cuda/sm80/attention_arg.h>

/* Rows of a tile, which are queries of the heads that share keys; parts that a list has at most,
 * and the threads that join them. */
enum { DECODE_ROWS = 16, DECODE_PARTS = 128 };

typedef struct decode80_arg {
    rules_arg rules;
    attention80_heads q, k, v, o; /* the batch of k and v: pages */
    i64 index[4], count[3];       /* strides, 0 where they repeat */
    const u16 *q_data, *k_data, *v_data;
    u8 *o_data;
    f32 *lse; /* or NULL */
    /* [row][part]: dv sums, the largest score in powers of two, and the sum of powers. Not used
     * where there is one part. */
    f32 *partial;
    const i32 *q_len, *k_len, *table, *index_data, *count_data; /* or NULL */
    const f32 *slopes;                                          /* or NULL */
    f32 scale;
    i32 d, dv;
    i32 kv_heads, group; /* group: query heads of one of keys and values */
    i32 pages, page, columns;
    i32 block, blocks, capacity;
    i32 q_block, lists, tiles; /* tiles: of a list */
    i32 parts, part_entries;   /* of a list; entries that are worth a part */
} decode80_arg;

#endif
