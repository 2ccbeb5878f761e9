/* What the host plans for dK and dV and the kernels of attention_dkv.cu follow. */
#ifndef BSKI_CUDA_SM90A_ATTENTION_DKV_ARG_H
#define BSKI_CUDA_SM90A_ATTENTION_DKV_ARG_H

#include <backends/cuda/sm90a/attention.h>

/* A warpgroup has 64 keys, and a step multiplies them with 64 queries of one head: a piece of a
 * list, or two where blocks are smaller. What is visible of a piece is told for each warpgroup's
 * keys, or for each half of them. */
enum { DKV_KEYS = 64, DKV_STEP = 64, DKV_SMALL = 32 /* side of the smallest blocks */ };
#define DKV_PIECE(side) ((side) < DKV_STEP ? DKV_SMALL : DKV_STEP)

enum {
    DKV_SUM_BYTES = DKV_STEP * 4,
    DKV_STEP_BYTES = 2 * DKV_SUM_BYTES + 32, /* bounds, deltas, and what the step is */
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
    X(128_union, 128, 2, 2, 5, 2, 1, 32)

#define DKV_THREADS(groups)                 (((groups) + 1) * 128)
#define DKV_BARRIERS(slots, steps, buffers) (2 * ((slots) + (steps) + 2 * (buffers)) + 1)
#define DKV_SHARED_BYTES(width, groups, rings, slots, steps, buffers)                              \
    ((width)*2 * (2 * (groups) * (buffers)*DKV_KEYS + (rings) * (slots)*DKV_STEP) +                \
     (rings) * ((steps)*DKV_STEP_BYTES + DKV_TILES * DKV_TILE_BYTES +                              \
                DKV_BARRIERS(slots, steps, buffers) * DKV_BARRIER_BYTES))

/* Queries of a kept block. slot: of the blocks with each part of the keys; -1: there is none. */
typedef struct attention_piece {
    int32_t row; /* the first query */
    int32_t slot[2];
    int32_t unused;
} attention_piece;

/* Sums of P^T dO, and of dS^T Q, where shares P = 2^(scale Q K^T - bound) and slopes
 * dS = P (slope dO V^T - delta). Of `all`, tables are not used but for tile_start, nor the
 * result. */
typedef struct attention_dkv_arg {
    attention_arg all;
    const attention_piece *pieces;
    const int32_t *list_start; /* [layout heads][lists], and the end: pieces, ascending */
    const int32_t *order;      /* head of keys of all members * tiles + tile, by ring */
    attention_in dout;
    attention_out dk, dv;
    const float *bound, *delta; /* by row; [heads of all members][pad] */
    int32_t pad;                /* rows of a head, a multiple of ATTENTION_ROWS */
    int32_t per_head;           /* query heads of one of the layout */
    int32_t key_heads;          /* of a member */
    int32_t tiles, lists, each; /* of a head: tiles, lists; tiles of a list */
    float slope;
    float dk_factor, dv_factor, beta; /* results are so many times the sums and the old */
} attention_dkv_arg;

#endif
