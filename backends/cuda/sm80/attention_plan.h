/* The lists of the attention kernels of sm80, from a layout: pure functions of the host. */
#ifndef BSKI_CUDA_SM80_ATTENTION_PLAN_H
#define BSKI_CUDA_SM80_ATTENTION_PLAN_H

#include <stdbool.h>

#include <bsk/backend.h>
#include <bsk/attention.h>

/* See attention80_tiles. Sides of blocks are powers of two from 16 on. */
typedef struct attention80_lists {
    bool turned;   /* own lines are columns */
    int32_t own;   /* lines of a tile */
    int32_t piece; /* lines of a piece */
    int32_t tiles, lists, each, subs;
    int32_t pieces;                       /* of all lists */
    int32_t *start, *line, *slot, *order; /* in one array of the host's, which begins with start */
} attention80_lists;

/* Tiles of so many lines, and other lines of a step, in powers of two. */
enum { ATTENTION80_OWN_MIN = 32, ATTENTION80_OWN_MAX = 128, ATTENTION80_STEP_MIN = 32 };

/* Whether 32 bits count tiles and entries of the lists, whatever the tiles. */
bool bski_attention80_fits(const bsk_layout_tables *t);
/* The sizes, all but the arrays, for a layout that fits. */
attention80_lists bski_attention80_measure(const bsk_layout_tables *t, bool turned, int32_t own,
                                           int32_t step);
/* Allocates and fills the arrays; to be freed by host_drop(lists->start). */
bsk_status bski_attention80_fill(const bsk_host *host, const bsk_layout_tables *t,
                                 attention80_lists *lists);

/* The pass over rows of queries that comes before the gradients. */
typedef struct attention80_delta {
    int64_t pad; /* rows of a head, q_time at least */
    float *delta,
        *bound; /* [heads of all members][pad]; bound: or NULL. See attention80_delta_arg. */
    const int32_t *q_len; /* rows from there on are padding; or NULL */
    float slope;          /* what sums are multiplied with */
} attention80_delta;

/* Whether such rows can be counted. */
bool bski_attention80_delta_rows(const bsk_tensor *q, int64_t pad, int64_t *rows);
/* device: a bski_cuda_device */
bsk_status bski_attention80_delta_prepare(void *device);
bsk_status bski_attention80_delta_launch(const bsk_attention_grad_params *p,
                                         const bsk_attention_grad_args *a, void *queue,
                                         const attention80_delta *to);

#endif
