/* What the kernels of dsd_ring.cu and the C code that plans them share. */
#ifndef BSKI_CUDA_DSD_RING_H
#define BSKI_CUDA_DSD_RING_H

#include <backends/cuda/epilogue.h>

enum {
    DSD_RING_WARPS = 8,
    DSD_RING_THREADS = DSD_RING_WARPS * 32,
    DSD_RING_STEP = 4,  /* runs of 8 along the depth that a warp multiplies at once */
    DSD_RING_BATCH = 8, /* steps whose runs a warp reads at once */
    DSD_RING_COLUMNS = 64
};

/* Shared memory of a thread block for tiles of so many features and samples. Of a warp: a ring of
 * steps, a part of a tile's sums, and 16 samples of one on their way to C. */
#define DSD_RING_SLOT_BYTES(features, samples) (((features) + (samples)) * 64)
#define DSD_RING_PART_BYTES(features, samples) ((features) * (samples)*4)
#define DSD_RING_LINE_BYTES(features)          (16 * ((features) + 1) * 4 + 64) /* 128 a unit */
#define DSD_RING_ROOM                          (230400 / DSD_RING_WARPS)
#define DSD_RING_FIT(features, samples)                                                            \
    ((DSD_RING_ROOM - DSD_RING_PART_BYTES(features, samples) - DSD_RING_LINE_BYTES(features)) /    \
     DSD_RING_SLOT_BYTES(features, samples))
#define DSD_RING_SLOTS(features, samples)                                                          \
    (DSD_RING_FIT(features, samples) < 8 ? DSD_RING_FIT(features, samples) : 8)
#define DSD_RING_WARP_BYTES(features, samples)                                                     \
    (DSD_RING_SLOTS(features, samples) * DSD_RING_SLOT_BYTES(features, samples) +                  \
     DSD_RING_PART_BYTES(features, samples) + DSD_RING_LINE_BYTES(features))

/* Eight of the depth of a tile: where they begin in b and in the values, 16 bytes each. Of b the
 * upper four bits are the tile's parts of 16 samples: without any there is none. */
typedef struct dsd_ring_run {
    uint32_t b;
    uint32_t s; /* DSD_RING_NONE: none */
} dsd_ring_run;

#define DSD_RING_NONE UINT32_MAX
enum { DSD_RING_PLACE = 28 /* bits of a place in b */ };

/* Steps of one tile: part number `part` of `parts`, which neighbouring warps have. */
typedef struct dsd_ring_segment {
    int32_t feature; /* the tile's first */
    int32_t steps;
    int16_t part, parts;
    int32_t rows; /* bits: parts of 16 samples */
} dsd_ring_segment;

/* A warp's share: how many steps, and of which tiles they are: the first, and those from number
 * `others` of a table on. */
typedef struct dsd_ring_share {
    int32_t steps, segments, others, unused;
    dsd_ring_segment head;
} dsd_ring_share;

typedef struct dsd_ring_arg {
    const void *s, *b;
    const dsd_ring_run *runs; /* `stride` steps for each warp */
    const dsd_ring_share *shares;
    const dsd_ring_segment *segments;
    int32_t stride;
    int32_t b_pitch; /* from a line of b, k or sample, to the next: bytes */
    int32_t s_pitch; /* the same of the lines of a block */
    dsd_epilogue end;
} dsd_ring_arg;

#endif
