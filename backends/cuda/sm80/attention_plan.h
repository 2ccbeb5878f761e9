/* The lists of the attention kernels of sm80, from a layout: pure functions of the host. */
#ifndef BSKI_CUDA_SM80_ATTENTION_PLAN_H
#define BSKI_CUDA_SM80_ATTENTION_PLAN_H

#include <stdbool.h>

#include <bsk/backend.h>

/* See attention80_tiles. Sides of blocks are powers of two from 16 on. */
typedef struct attention80_lists {
    bool turned;   /* own lines are columns */
    int32_t own;   /* lines of a tile */
    int32_t piece; /* lines of a piece */
    int32_t tiles, lists, each, subs;
    int32_t pieces;                       /* of all lists */
    int32_t *start, *line, *slot, *order; /* in one array of the host's, which begins with start */
} attention80_lists;

/* The sizes: all but the arrays. False: more than 32 bits count. */
bool bski_attention80_measure(const bsk_layout_tables *t, bool turned, int32_t own, int32_t step,
                              attention80_lists *lists);
/* Allocates and fills the arrays; to be freed by host_drop(lists->start). */
bsk_status bski_attention80_fill(const bsk_host *host, const bsk_layout_tables *t,
                                 attention80_lists *lists);

#endif
