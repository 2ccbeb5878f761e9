/* What the host plans and the kernels of attention.cu follow. */
#ifndef BSKI_CUDA_ATTENTION_H
#define BSKI_CUDA_ATTENTION_H

#include <stdint.h>

/* Keys are listed in units of 64, and a warpgroup has 64 rows of queries. A step multiplies the
 * rows of a tile with two units. */
enum {
    ATTENTION_UNIT = 64,
    ATTENTION_STEP = 2 * ATTENTION_UNIT,
    ATTENTION_CONTROL_BYTES = 2048 /* of shared memory: barriers, and what consumers are told */
};

/* Forms of the kernel: the width of a head, which smaller ones are padded to; warpgroups that
 * multiply; rings of keys and values, each read by one warpgroup or by all; slots of a ring;
 * buffers of queries.
 * X(suffix of the name, width, groups, rings, slots, buffers) */
#define ATTENTION_FORMS(X)                                                                         \
    X(64, 64, 3, 3, 4, 1)                                                                          \
    X(128, 128, 2, 2, 3, 1)                                                                        \
    X(128_shared, 128, 2, 1, 5, 2)

#define ATTENTION_THREADS(groups) (((groups) + 1) * 128)
#define ATTENTION_SHARED_BYTES(width, groups, rings, slots, buffers)                               \
    ((width)*2 * ((groups) * (buffers)*ATTENTION_UNIT + (rings) * (slots)*ATTENTION_STEP) +        \
     ATTENTION_CONTROL_BYTES)

/* A kept block's share of 64 keys. Those of a block row follow each other, ascending. */
typedef struct attention_unit {
    int32_t key; /* the first */
    int32_t slot;
} attention_unit;

/* Rows of one head: 64, or where warpgroups share a ring 64 for each. */
typedef struct attention_tile {
    int32_t head;         /* of all members' */
    int32_t row;          /* the first */
    int32_t first, count; /* units */
} attention_tile;

/* Strides in elements. */
typedef struct attention_out {
    void *data;
    int64_t batch, head, time;
    int32_t type; /* bsk_dtype: bf16, f16 or f32 */
    int32_t width;
} attention_out;

typedef struct attention_arg {
    const attention_unit *units;
    const attention_tile *tiles;
    const int32_t *tile_start; /* by ring of all thread blocks, and the end */
    attention_out o;
    float *lse;
    const int32_t *q_len, *k_len;
    const uint8_t *bits;
    const int32_t *bits_index;
    int64_t masks;
    int32_t heads, group; /* group: query heads of one of keys and values */
    int32_t q_time, k_time;
    int32_t block_rows, block_cols; /* powers of two */
    int32_t causal, align_end, window;
    float scale; /* of products, so that 2^score is the share; never 0 */
} attention_arg;

#endif
