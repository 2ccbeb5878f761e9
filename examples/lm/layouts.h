/* Which blocks of the weights and of the attention are kept. */
#ifndef LAYOUTS_H
#define LAYOUTS_H

#include <bsk/bsk.h>

/* Every block column keeps equally many block rows, dealt from a shuffled deck, so that every unit
 * has the same number of inputs and every input is used about equally often. density 1: all. */
bsk_layout *layout_weights(bsk_context *context, int64_t rows, int64_t cols, int block,
                           double density, uint64_t seed);

/* Elements of the kept blocks, without the parts of edge blocks that lie outside the matrix. */
double layout_elements(const bsk_layout *layout);

/* Some of the heads of an attention: those that share an interleave and a window. */
typedef struct head_group {
    bsk_layout *layout;
    int heads;
    int32_t interleave;
    int64_t window;
} head_group;

enum { MAX_GROUPS = 2 };

typedef enum pattern {
    PATTERN_ALL,     /* every earlier position */
    PATTERN_LOCAL,   /* the last `stride` positions */
    PATTERN_STRIDED, /* half of the heads local, the others every stride-th position */
    PATTERN_FIXED,   /* the own stripe of `stride` positions, and the ends of earlier ones */
    PATTERN_BIGBIRD, /* a window, the first block, and a random one; different for each head */
    PATTERN_COUNT
} pattern;

/* Fills groups[] and returns their number. time must be a multiple of stride for PATTERN_STRIDED
 * and stride of block for PATTERN_FIXED; -1 after a message where that does not hold. */
int layout_attention(bsk_context *context, pattern kind, int heads, int64_t time, int block,
                     int stride, uint64_t seed, head_group groups[MAX_GROUPS]);

#endif
