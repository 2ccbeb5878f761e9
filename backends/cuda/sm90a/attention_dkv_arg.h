/* What the host plans for dK and dV and the kernels of attention_dkv.cu follow. */
#ifndef BSKI_CUDA_SM90A_ATTENTION_DKV_ARG_H
#define BSKI_CUDA_SM90A_ATTENTION_DKV_ARG_H

#include <backends/cuda/sm90a/attention.h>

/* A warpgroup has 64 keys, and a step multiplies them with 64 queries of one head: a piece of a
 * list, or several where blocks are smaller. What is visible of a piece is told for each part of
 * the keys: those of a warpgroup, or of a block. Parts are many where blocks have less than 32. */
enum { DKV_KEYS = 64, DKV_STEP = 64, DKV_LEAST = 8 /* side of the smallest blocks */ };
#define DKV_PIECE(side) ((side) < DKV_STEP ? (side) : DKV_STEP)
#define DKV_MANY(side)  ((side) < 32)
/* Heads whose sums for 64 keys do not fit into the registers of one warpgroup: two have a tile
 * together, one of which makes dV and tells its shares to the other, which makes dK. */
#define DKV_WIDE(width) ((width) > 128)

enum {
    DKV_SUM_BYTES = DKV_STEP * 4,
    DKV_STEP_BYTES = 2 * DKV_SUM_BYTES + 48, /* bounds, deltas, and what the step is */
    DKV_TILES = 4,                           /* that consumers know of at a time */
    DKV_TILE_BYTES = 32,
    DKV_BARRIER_BYTES = 8
};

/* Forms of the kernels: the width of a head, which smaller ones are padded to; warpgroups that
 * multiply; rings of queries and dO, each read by one warpgroup or by all; slots of a ring, for
 * one of queries and dO each; steps that a ring knows of; buffers of a ring's keys and values.
 * X(suffix of the name, width, groups, rings, slots, steps, buffers, the fewest keys of a block) */
#define DKV_FORMS(X)                                                                               \
    X(64, 64, 3, 3, 5, 3, 2, 64)                                                                   \
    X(128, 128, 2, 2, 5, 2, 1, 64)                                                                 \
    X(128_shared, 128, 2, 1, 6, 3, 2, 128)                                                         \
    X(64_union, 64, 2, 2, 8, 3, 2, 32)                                                             \
    X(128_union, 128, 2, 2, 5, 2, 1, 32)                                                           \
    X(64_by16, 64, 2, 2, 8, 3, 2, 16)                                                              \
    X(128_by16, 128, 2, 2, 5, 2, 1, 16)                                                            \
    X(64_by8, 64, 2, 2, 8, 3, 2, 8)                                                                \
    X(128_by8, 128, 2, 2, 5, 2, 1, 8)                                                              \
    X(192, 192, 2, 1, 6, 3, 1, 64)                                                                 \
    X(192_union, 192, 2, 1, 6, 3, 1, 32)                                                           \
    X(256, 256, 2, 1, 4, 3, 1, 64)                                                                 \
    X(256_union, 256, 2, 1, 4, 3, 1, 32)                                                           \
    X(256_by16, 256, 2, 1, 4, 3, 1, 16)                                                            \
    X(256_by8, 256, 2, 1, 4, 3, 1, 8)

#define DKV_THREADS(groups)    (((groups) + 1) * 128)
#define DKV_SHARE_BYTES(width) (DKV_WIDE(width) ? DKV_KEYS * DKV_STEP * 4 : 0)
#define DKV_BARRIERS(width, slots, steps, buffers)                                                 \
    (2 * ((slots) + (steps) + 2 * (buffers)) + 1 + (DKV_WIDE(width) ? 2 : 0))
#define DKV_TILE_KEYS(width, groups, rings)                                                        \
    (DKV_WIDE(width) ? DKV_KEYS : (groups) / (rings)*DKV_KEYS)
#define DKV_ORDER_BYTES(side) (DKV_MANY(side) ? 4 * 32 : 0)
#define DKV_SHARED_BYTES(width, groups, rings, slots, steps, buffers, side)                        \
    ((rings) *                                                                                     \
     ((width)*2 * (2 * (buffers)*DKV_TILE_KEYS(width, groups, rings) + (slots)*DKV_STEP) +         \
      DKV_SHARE_BYTES(width) + (steps)*DKV_STEP_BYTES + DKV_TILES * DKV_TILE_BYTES +               \
      DKV_BARRIERS(width, slots, steps, buffers) * DKV_BARRIER_BYTES + DKV_ORDER_BYTES(side)))

/* Queries of a kept block. */
typedef struct attention_piece {
    int32_t row; /* the first query */
    /* Of the blocks with each part of the keys; -1: there is none. Of many parts: bit i of the
     * first, whether there is one with part i; slots are a table of their own. */
    int32_t slot[2];
    int32_t unused;
} attention_piece;

/* Sums of P^T dO, and of dS^T Q, where shares P = 2^(scale Q K^T - bound) and slopes
 * dS = P (slope dO V^T - delta). Of `all`, tables are not used but for tile_start and, by piece and
 * part of many, slots; nor the result. */
typedef struct attention_dkv_arg {
    attention_arg all;
    const attention_piece *pieces;
    const int32_t *list_start; /* [layout heads][lists], and the end: pieces, ascending */
    const int32_t *order;      /* head of keys of all members * tiles + tile, by ring */
    attention_in dout;
    attention_out dk, dv;
    const float *bound, *delta; /* by run and row; [heads of all members][pad] */
    int32_t pad;                /* rows of a head, a multiple of ATTENTION_ROWS */
    int32_t per_head;           /* query heads of one of the layout */
    int32_t key_heads;          /* of a member */
    int32_t tiles, lists, each; /* of a head: tiles, lists; tiles of a list */
    int32_t run_tiles;          /* tiles of a run of a head */
    float slope;
    float dk_factor, dv_factor, beta; /* results are so many times the sums and the old */
} attention_dkv_arg;

#endif
