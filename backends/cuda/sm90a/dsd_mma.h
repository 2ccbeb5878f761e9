/* What the kernels of dsd_mma.cu and the C code that plans them share. */
#ifndef BSKI_CUDA_DSD_MMA_H
#define BSKI_CUDA_DSD_MMA_H

#include <backends/cuda/epilogue.h>

enum {
    DSD_MMA_DEPTH = 128,   /* features of a stage, or half as many */
    DSD_MMA_TILE = 32768,  /* sums of a tile: 64 x 512 or 128 x 256 */
    DSD_MMA_PRODUCERS = 4, /* warps that fill the ring; at most its stages */
    DSD_MMA_WARPS = 16,    /* that multiply: 64 x 32 sums each */
    DSD_MMA_THREADS = (DSD_MMA_WARPS + DSD_MMA_PRODUCERS) * 32,
    DSD_MMA_MAX_STAGES = 16, /* of the ring */
    DSD_MMA_RING = 7168,     /* bytes before it: barriers and zeros */
    DSD_MMA_ZEROS = 512,     /* where they begin: 128 bytes in each of four times 2048 */
    DSD_MMA_PIECE = 256,     /* bytes of codes that are packed at once */
    DSD_MMA_PACK_WARPS = 8   /* of a block of the packing kernel: one step each */
};

/* Marks a step without a second block. */
#define DSD_MMA_NO_SECOND 0x8000u

/* A tile of a block's list. */
typedef struct dsd_mma_tile {
    int32_t stage, stages; /* the first, and how many */
    int32_t sample;        /* the first */
    int32_t panel;
} dsd_mma_tile;

/* What the producers copy for one stage: the activations from a feature on, and weights. */
typedef struct dsd_mma_stage {
    int32_t feature;
    uint32_t weights; /* in the image, 16 bytes each */
    uint32_t bytes;   /* of weights */
    uint32_t unused;
} dsd_mma_stage;

/* Steps of units of 16 and 32 are bits, by their place among the features of a window: those with
 * weights for the first 16 of a warp's outputs alone, for the others alone, and for both, for which
 * activations are read once. Units of 32 have only the last. */
enum { DSD_MMA_KINDS = 3, DSD_MMA_BOTH = 2, DSD_MMA_KIND_BITS = 8 };

/* What one warp finds in a stage. The steps of units of 8 follow unit by unit; each is for any two
 * blocks of 8 features of the stage, which its code gives: in each half, where they lie in the
 * activations, in bytes. */
typedef struct dsd_mma_part {
    uint32_t steps;   /* units of 8: their number, four bits for each unit; else bits */
    uint16_t weights; /* of the first step: from the stage's weights on, 256 bytes each */
    uint16_t codes;   /* the same, 4 bytes each */
} dsd_mma_part;

/* One step of weights, the operand of a product over 16 features, to be packed. */
typedef struct dsd_mma_step {
    uint32_t to;     /* in the image, 16 bytes each */
    uint32_t first;  /* the source: element / 8 of its corner; of features 0 to 7 for units of 8 */
    uint32_t second; /* units of 8: features 8 to 15 */
    uint32_t valid;  /* features that are in the matrix, by half a byte each for units of 8;
                        0: this is a copy of 256 bytes of codes, and first counts such pieces */
} dsd_mma_step;

typedef struct dsd_mma_pack_arg {
    const void *source;
    void *image;
    const dsd_mma_step *steps;
    const void *codes;
    int64_t count;
    int64_t row_stride, feature_stride; /* of an element within a block of op(S) */
} dsd_mma_pack_arg;

typedef struct dsd_mma_arg {
    const char *image;
    const dsd_mma_stage *stages;
    const dsd_mma_part *parts; /* panel by panel, in it by warp side by side, then by stage */
    const int32_t *columns;    /* first output of each unit, panel by panel; -1: none */
    const dsd_mma_tile *tiles;
    const int32_t *tile_start; /* [blocks + 1] */
    int32_t slots;             /* stages of the ring */
    uint32_t slot_bytes;
    uint32_t depth; /* features of a stage: 128 or 64 */
    dsd_epilogue epilogue;
} dsd_mma_arg;

#endif
