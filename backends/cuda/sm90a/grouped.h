/* What the kernels of grouped_wgmma.cu and the C code that launches them share. */
#ifndef BSKI_CUDA_SM90A_GROUPED_H
#define BSKI_CUDA_SM90A_GROUPED_H

#include <backends/cuda/epilogue.h>

/* A thread block's tile of the result, and how much of the depth a stage has of it. Operands come in
 * parts of 64 x 64, swizzled: two of the left one, a tile's rows, four of the right one, its columns. */
enum { GROUPED_TILE_ROWS = 128, GROUPED_TILE_COLS = 256, GROUPED_DEPTH = 64, GROUPED_PART = 64 };
enum { GROUPED_LEFT_PARTS = 2, GROUPED_RIGHT_PARTS = 4, GROUPED_PART_BYTES = 64 * 64 * 2 };
enum { GROUPED_STAGES = 4, GROUPED_THREADS = 384, GROUPED_CONSUMERS = 8 /* warps */ };
/* Thread blocks of a cluster, which share one of their operands. */
enum { GROUPED_CLUSTER = 2 };
/* Pairs of tiles along the rows that meet the same columns before the next ones come. */
enum { GROUPED_BAND = 8 };
/* Spans are what lies before all groups, the groups, and the rest. */
enum { GROUPED_MOST = 1024, GROUPED_SPANS = GROUPED_MOST + 2 };

/* Shared memory: stages, lines of sums of each warp, of each span its first row and first unit,
 * barriers. */
enum {
    GROUPED_RIGHT_AT = GROUPED_LEFT_PARTS * GROUPED_PART_BYTES,
    GROUPED_STAGE_BYTES = GROUPED_RIGHT_AT + GROUPED_RIGHT_PARTS * GROUPED_PART_BYTES,
    GROUPED_PITCH = 40, /* of lines of 32 numbers, which so meet all banks */
    GROUPED_LINE_BYTES = 16 * GROUPED_PITCH * 4,
    GROUPED_LINES_AT = GROUPED_STAGES * GROUPED_STAGE_BYTES,
    GROUPED_SPANS_AT = GROUPED_LINES_AT + GROUPED_CONSUMERS * GROUPED_LINE_BYTES,
    GROUPED_BARRIERS_AT = GROUPED_SPANS_AT + 2 * (GROUPED_SPANS + 2) * 4,
    GROUPED_SHARED_BYTES = GROUPED_BARRIERS_AT + 2 * GROUPED_STAGES * 8
};

typedef struct grouped_wgmma_arg {
    const int32_t *offsets;
    int32_t all, groups; /* rows of x */
    int32_t rows, cols;  /* in tiles: of a dw (of grouped_matmul 0); of the result's columns */
    int32_t stages;      /* of grouped_matmul's depth */
    int32_t bf16;        /* the operands */
    float *dbias;        /* NULL: none */
    dsd_epilogue end;    /* of grouped_matmul with the features of the first group's bias */
} grouped_wgmma_arg;

#endif
