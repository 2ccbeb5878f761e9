/* What the host hands to the kernel that makes f16 of operands of f8: one definition for both sides.
 * Every number of f8 is one of f16. */
#ifndef BSKI_CUDA_SM90A_WIDE_F8_H
#define BSKI_CUDA_SM90A_WIDE_F8_H

#include <stdint.h>

#include <backends/cuda/sm90a/sdd.h>

/* A *run* is eight numbers of a line, of which a thread has some. */
enum {
    WIDE_RUN = 8,
    WIDE_THREADS = 256,
    WIDE_EACH = 4, /* runs of a thread */
    WIDE_BLOCK = WIDE_THREADS * WIDE_EACH,
    WIDE_PARTS = 2 * SDD_MAX_PAIRS
};

/* An operand: lines of contiguous numbers, and its copy, whose lines are whole runs and follow each
 * other. */
typedef struct wide_part {
    const uint8_t *from;
    void *to;
    int64_t length, line, batch; /* of a line; strides of `from`, elements */
    uint32_t lines;              /* of a member of the batch */
    uint32_t line_runs, runs;    /* of a line, and of all; with the last, cut ones */
    int32_t e5m2;                /* else e4m3 */
    uint32_t first;              /* thread block */
} wide_part;

/* Gates that stand for the scales of both operands, too: to[i] = scale[0] * scale[1] * gate[i], but 0
 * where a gate is. */
typedef struct wide_gates {
    const float *scale[2], *gate; /* each or NULL: 1 */
    float *to;
    uint32_t count, first; /* first: thread block */
    int32_t skip;          /* gates that are not 0 count as 1 */
} wide_gates;

typedef struct wide_arg {
    wide_part part[WIDE_PARTS];
    wide_gates gates;
    int32_t parts;
} wide_arg;

#endif
