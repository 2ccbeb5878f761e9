/* What the host plans and the kernels of attention.cu and attention_dq.cu follow. */
#ifndef BSKI_CUDA_ATTENTION_H
#define BSKI_CUDA_ATTENTION_H

#include <stdint.h>

/* A warpgroup has 64 rows of queries. Keys are listed in units of 64, or less where blocks have less
 * rows and columns. A step multiplies the rows of a tile with some units. The rows of a tile are one
 * band, which sees a unit or not, or several: those of as many block rows. */
enum {
    ATTENTION_BANDS = 8, /* the most */
    ATTENTION_UNIT = 64,
    ATTENTION_ROWS = 128,       /* the most of a tile */
    ATTENTION_PLACES = 1 << 16, /* of a list, as views of many bands tell them */
};

/* Of shared memory: barriers, and what consumers are told. */
#define ATTENTION_CONTROL_BYTES(width) ((width) > 64 ? 2048 : 3072)

/* Forms of a kernel: keys of a step; the width of a head, which smaller ones are padded to;
 * warpgroups that multiply; rings of keys and values, each read by one warpgroup or by all; slots
 * of a ring; buffers of queries; keys of a unit; bands of a tile.
 * X(suffix of the name, step, width, groups, rings, slots, buffers, side, bands) */
#define ATTENTION_FORMS(X)                                                                         \
    X(64, 64, 64, 4, 4, 6, 1, 64, 1)                                                               \
    X(128, 64, 128, 2, 2, 6, 1, 64, 1)                                                             \
    X(128_pair, 64, 128, 2, 1, 12, 1, 64, 2)                                                       \
    X(128_shared, 128, 128, 2, 1, 6, 1, 64, 1)                                                     \
    X(64_union, 64, 64, 3, 3, 8, 1, 32, 2)                                                         \
    X(128_union, 64, 128, 2, 2, 6, 1, 32, 2)                                                       \
    X(64_by16, 64, 64, 3, 3, 8, 1, 16, 4)                                                          \
    X(128_by16, 64, 128, 2, 2, 6, 1, 16, 4)                                                        \
    X(64_by8, 64, 64, 3, 3, 6, 1, 8, 8)                                                            \
    X(128_by8, 64, 128, 2, 2, 6, 1, 8, 8)                                                          \
    X(192, 64, 192, 2, 2, 3, 1, 64, 1)                                                             \
    X(192_pair, 64, 192, 2, 1, 7, 1, 64, 2)                                                        \
    X(192_shared, 64, 192, 2, 1, 7, 1, 64, 1)                                                      \
    X(192_union, 64, 192, 2, 2, 3, 1, 32, 2)                                                       \
    X(256, 32, 256, 2, 2, 5, 1, 32, 1)                                                             \
    X(256_pair, 64, 256, 2, 1, 5, 1, 64, 2)                                                        \
    X(256_shared, 64, 256, 2, 1, 5, 1, 64, 1)                                                      \
    X(256_union, 32, 256, 2, 2, 5, 1, 32, 2)                                                       \
    X(256_by16, 32, 256, 2, 2, 5, 1, 16, 4)                                                        \
    X(256_by8, 32, 256, 2, 2, 5, 1, 8, 8)
#define ATTENTION_DQ_FORMS(X)                                                                      \
    X(64, 64, 64, 3, 3, 8, 1, 64, 1)                                                               \
    X(128, 64, 128, 2, 2, 6, 1, 64, 1)                                                             \
    X(128_shared, 64, 128, 2, 1, 12, 1, 64, 1)                                                     \
    X(64_union, 64, 64, 2, 2, 8, 1, 32, 2)                                                         \
    X(128_union, 64, 128, 2, 2, 6, 1, 32, 2)                                                       \
    X(64_by16, 64, 64, 2, 2, 8, 1, 16, 4)                                                          \
    X(128_by16, 64, 128, 2, 2, 6, 1, 16, 4)                                                        \
    X(64_by8, 64, 64, 2, 2, 8, 1, 8, 8)                                                            \
    X(128_by8, 64, 128, 2, 2, 6, 1, 8, 8)                                                          \
    X(192, 32, 192, 2, 1, 14, 1, 32, 1)                                                            \
    X(192_union, 32, 192, 2, 1, 14, 1, 32, 2)                                                      \
    X(256, 32, 256, 2, 1, 10, 1, 32, 1)                                                            \
    X(256_union, 32, 256, 2, 1, 10, 1, 32, 2)                                                      \
    X(256_by16, 32, 256, 2, 1, 10, 1, 16, 4)                                                       \
    X(256_by8, 32, 256, 2, 1, 10, 1, 8, 8)

/* Warpgroups that have the same rows of such a form, and steps in turn. */
#define ATTENTION_DQ_TEAM(width) ((width) > 128 ? 2 : 1)

#define ATTENTION_THREADS(groups) (((groups) + 1) * 128)
#define ATTENTION_SHARED_BYTES(step, width, groups, rings, slots, buffers)                         \
    ((width)*2 * ((groups) * (buffers)*ATTENTION_UNIT + (rings) * (slots) * (step)) +              \
     ATTENTION_CONTROL_BYTES(width))

/* A kept block's share of 64 keys. Those of a block row follow each other, ascending. */
typedef struct attention_unit {
    int32_t key; /* the first */
    int32_t slot;
} attention_unit;

/* The keys of a block that some of a tile's block rows keep. */
typedef struct attention_union {
    int32_t key;  /* the first */
    int32_t kept; /* bit i: by the row of band i */
} attention_union;

/* Times are those of a *run*: with an interleave of w > 1 the times that leave one remainder when
 * divided by w see each other and no others, so that rows and keys are counted within them; else
 * all times are one run. */

/* Rows of one run of a head: 64, or where warpgroups share a ring 64 for each. */
typedef struct attention_tile {
    int32_t head;                 /* of all members' */
    int32_t first, count;         /* units, or unions where there are several bands */
    int32_t row[ATTENTION_BANDS]; /* the first of each band */
    int32_t run;
} attention_tile;

/* Strides in elements; time: of a run's. */
typedef struct attention_in {
    const void *data; /* bf16 or f16 */
    int64_t batch, head, run, time;
    int32_t width;
} attention_in;

typedef struct attention_out {
    void *data;
    int64_t batch, head, run, time;
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
    int32_t q_time, k_time, runs;
    int32_t block_rows, block_cols;    /* powers of two */
    int32_t causal, align_end, window; /* window: times of a run */
    float scale;                       /* of products, so that 2^score is the share; never 0 */
    const attention_union *unions;     /* or units, by the bands */
    const int32_t *slots;              /* [unions][bands]: blocks; where there are masks */
    attention_in q, k, v;              /* q; the others beside unions */
} attention_arg;

/* The gradient of queries: with shares P = 2^(scale Q K^T - bound) the sums of dS K, where dS = P
 * (slope dO V^T - delta), go to all.o as alpha * sum + beta * old. */
typedef struct attention_dq_arg {
    attention_arg all;
    attention_in dout;
    float *bound, *delta; /* written, by run and row; [heads of all members][pad] */
    int32_t pad;          /* rows of a head, a multiple of ATTENTION_ROWS */
    float slope, alpha, beta;
} attention_dq_arg;

#endif
