/* What the kernels of dsd_ring.cu and the C code that plans them share. */
#ifndef BSKI_CUDA_DSD_RING_H
#define BSKI_CUDA_DSD_RING_H

#include <backends/cuda/sm90a/dsd_few.h>

enum {
    DSD_RING_WARPS = 8, /* of a thread block, of narrow tiles */
    DSD_RING_BATCH = 8, /* steps whose runs a team reads at once */
    DSD_RING_FEW = 8    /* steps of a team that are fetched ahead whole */
};

/* A team of warps has steps of its own: of wide tiles two warps, of half of the features each, or
 * four, where samples are many, of half of these too. */
#define DSD_RING_WIDE(features)          ((features) > 32)
#define DSD_RING_TEAM(features, samples) (!DSD_RING_WIDE(features) ? 1 : (samples) > 32 ? 4 : 2)
#define DSD_RING_TEAMS(features)         (DSD_RING_WIDE(features) ? 4 : DSD_RING_WARPS)
#define DSD_RING_THREADS(features, samples)                                                        \
    (DSD_RING_TEAM(features, samples) * DSD_RING_TEAMS(features) * 32)

/* Shared memory of a thread block for tiles of so many features and samples. Of a team: a ring of
 * steps, a part of a tile's sums, and samples of one on their way to C: 16 in f32, or of narrow tiles
 * all of them in 16 bits. Several warps have a slot of the ring for them, which waits for its next
 * step. */
#define DSD_RING_SLOT_BYTES(features, samples) (((features) + (samples)) * 64)
#define DSD_RING_PART_BYTES(features, samples) ((features) * (samples)*4)
#define DSD_RING_LINE_BYTES(features, samples)                                                     \
    ((features) < 32 && (features) * (samples)*2 > 64 * ((features) + 1)                           \
         ? (features) * (samples)*2                                                                \
         : 64 * ((features) + 1))
#define DSD_RING_END_BYTES(features, samples) /* a barrier behind them, 128 a unit */              \
    ((DSD_RING_LINE_BYTES(features, samples) + 8 + 127) / 128 * 128)
#define DSD_RING_REST(features, samples)                                                           \
    (DSD_RING_PART_BYTES(features, samples) +                                                      \
     (DSD_RING_WIDE(features) ? 0 : DSD_RING_END_BYTES(features, samples)))
#define DSD_RING_FIT(features, samples, room)                                                      \
    (((room) / DSD_RING_TEAMS(features) - DSD_RING_REST(features, samples)) /                      \
     DSD_RING_SLOT_BYTES(features, samples))

/* Whether two thread blocks share a multiprocessor, that is those of launches that follow each
 * other: for tiles of 32 features and more, where two slots are left for each warp. */
#define DSD_RING_HALF 115712
#define DSD_RING_PAIR(features, samples)                                                           \
    ((features) >= 32 && DSD_RING_TEAM(features, samples) < 4 &&                                   \
     DSD_RING_FIT(features, samples, DSD_RING_HALF) >= 2)
#define DSD_RING_ROOM(features, samples)                                                           \
    (DSD_RING_PAIR(features, samples) ? DSD_RING_HALF : 2 * DSD_RING_HALF - 1024)
#define DSD_RING_MOST(features, samples)                                                           \
    DSD_RING_FIT(features, samples, DSD_RING_ROOM(features, samples))
#define DSD_RING_SLOTS(features, samples)                                                          \
    (DSD_RING_MOST(features, samples) < 8 ? DSD_RING_MOST(features, samples) : 8)
#define DSD_RING_TEAM_BYTES(features, samples)                                                     \
    (DSD_RING_SLOTS(features, samples) * DSD_RING_SLOT_BYTES(features, samples) +                  \
     DSD_RING_REST(features, samples))

/* Steps of one tile: part number `part` of `parts`, which neighbouring teams have. The first `adders`
 * of these add them up. One of a narrow tile with parts: there are two, and it takes the other. */
typedef struct dsd_ring_segment {
    int32_t feature; /* the tile's first */
    int32_t steps;
    int16_t part, parts;
    int16_t rows; /* bits: parts of 16 samples */
    int16_t adders;
} dsd_ring_segment;

/* A team's share: how many steps, and of which tiles they are: the first, and those from number
 * `others` of a table on. */
typedef struct dsd_ring_share {
    int32_t steps, segments, others, unused;
    dsd_ring_segment head;
} dsd_ring_share;

typedef struct dsd_ring_arg {
    dsd_few_operands operands;
    const dsd_few_run *runs; /* `stride` steps for each team */
    const dsd_ring_share *shares;
    const dsd_ring_segment *segments;
    int32_t stride;
    int32_t near;   /* whether L2 fetches the lines beside weights that lie across the depth */
    uint32_t later; /* 0, or when to fetch what is left of the weights: cycles from the begin */
} dsd_ring_arg;

#endif
