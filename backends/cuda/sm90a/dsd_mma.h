/* What the kernels of dsd_mma.cu and the C code that plans them share. */
#ifndef BSKI_CUDA_DSD_MMA_H
#define BSKI_CUDA_DSD_MMA_H

#include <backends/cuda/epilogue.h>

enum {
    DSD_MMA_STAGE = 512, /* bytes of a sample's features in a stage, or a half or a quarter */
    DSD_MMA_WARP_OUTPUTS = 32,
    DSD_MMA_PRODUCERS = 4,   /* warps that fill the ring, at most its stages; of few samples one */
    DSD_MMA_MAX_STAGES = 16, /* of the ring */
    DSD_MMA_RING = 1024,     /* bytes before it: barriers */
    DSD_MMA_PACK_WARPS = 8   /* of a block of the packing kernel */
};

/* Tiles, samples x outputs: 64 x 512, 128 x 256, and 96 x 384, whose warps are fewer, with longer
 * steps; these are never parts of the depth. Of few samples (dsd_mma_few), all of up to 64 or 32 x
 * 256, 128 or 64. */
enum { DSD_MMA_WIDE, DSD_MMA_SQUARE, DSD_MMA_TALL, DSD_MMA_FEW, DSD_MMA_FEWER };
enum { DSD_MMA_PART_SUMS = 32768 /* of a tile that may be a part */ };

/* Warps that multiply (of few samples: at most), samples that each owns, by 32 outputs, and threads
 * with the producers. */
#define DSD_MMA_WARPS(tile)        ((tile) == DSD_MMA_TALL ? 12 : 16)
#define DSD_MMA_WARP_SAMPLES(tile) ((tile) == DSD_MMA_TALL ? 96 : (tile) == DSD_MMA_FEWER ? 32 : 64)
#define DSD_MMA_THREADS(tile)      ((DSD_MMA_WARPS(tile) + DSD_MMA_PRODUCERS) * 32)

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

/* What one warp finds in a stage, two words. Units of 16 and 32: steps as bits by their place in
 * the window, those with weights for the first 16 of a warp's outputs alone and, above, for the
 * others alone; those for both, for which activations are read once (units of 32 have only these),
 * and above where the first one's weights lie from the stage's on, in steps. Units of 8: the number
 * of slices of 8 features whose first unit is each; where the weights lie. */
enum {
    DSD_MMA_KIND_BITS = 16,
    DSD_MMA_KIND = 0xffff,
    DSD_MMA_SLICE_UNITS = 4, /* units of 8 of a warp */
    DSD_MMA_COUNT_BITS = 6,
    DSD_MMA_COUNT = 63,
    DSD_MMA_PART_WORDS = 2
};

/* The image of a stage with units of 8 begins with codes, in the order of the slices: where the
 * activations of a slice lie, in bytes, and as bits which units besides the first have a block
 * there. The last 128 bytes are zeros: what is read beyond a list. */
enum {
    DSD_MMA_PLACE = 0xffff,
    DSD_MMA_OTHERS_AT = 16,
    DSD_MMA_WARP_CODES = 128, /* bytes of a warp: 32 codes */
    DSD_MMA_CODE_PIECE = 128  /* that are packed at once */
};
#define DSD_MMA_CODE_BYTES(warp_cols) ((warp_cols)*DSD_MMA_WARP_CODES + DSD_MMA_CODE_PIECE)

/* Of few samples. Two warps that have the same outputs take stages by turns, and the blocks of a
 * cluster share the depth. Units of 8 have no codes: a warp finds bits of each, and then where the
 * weights lie. */
enum {
    DSD_MMA_TURNS = 2,
    DSD_MMA_CLUSTER = 2,
    DSD_MMA_MASK_BITS = 32,
    DSD_MMA_MASKS_WORDS = 8, /* five are used */
    /* Of a warp's slices in a stage, at most, and two more that are read. */
    DSD_MMA_PLACES = DSD_MMA_SLICE_UNITS * DSD_MMA_MASK_BITS + 2,
    DSD_MMA_FEW_HEAD = 6 << 10 /* bytes before the ring: barriers, the places of 16 warps */
};

/* Steps that a warp packs, 1 or 2 KB. */
#define DSD_MMA_PACK_STEPS(unit) ((unit) == 8 ? 8 : 2)

/* One step of weights, to be packed: the operand of a product over 16 features, or 8 for units of 8
 * and for tf32. */
typedef struct dsd_mma_step {
    uint32_t to;     /* in the image, 16 bytes each */
    uint32_t source; /* element / 8 of its corner */
    uint32_t valid;  /* features that are in the matrix; 0: a piece of codes, which source counts */
    uint32_t unused;
} dsd_mma_step;

typedef struct dsd_mma_pack_arg {
    const void *source;
    void *image;
    const dsd_mma_step *steps;
    const uint32_t *codes;
    int64_t count;
    int64_t row_stride, feature_stride; /* of an element within a block of op(S) */
} dsd_mma_pack_arg;

typedef struct dsd_mma_arg {
    const char *image;
    const dsd_mma_stage *stages;
    const uint32_t *parts;  /* panel by panel, in it by warp side by side, then by stage */
    const int32_t *columns; /* first output of each unit, panel by panel; -1: none. Units of 32 of
                               tf32 have two. */
    const dsd_mma_tile *tiles;
    const int32_t *tile_start; /* [blocks + 1] */
    int32_t slots;             /* stages of the ring */
    uint32_t slot_bytes;
    uint32_t depth; /* features of a stage: 256, 128 or 64, of tf32 half as many */
    int32_t panels;
    int32_t warp_cols; /* of few samples: warps side by side */
    int32_t stride;    /* of few samples: from one panel's first stage to the next one's */
    float *sums;       /* of tiles that are parts: see below; NULL: all are whole */
    dsd_epilogue epilogue;
} dsd_mma_arg;

/* Where the depth is split, tiles leave their sums as lanes have them,
 *
 *   [tile along the samples][panel][warp][run][half of it][lane][4],
 *
 * and a second kernel, of which a warp has a run of each lane, adds up panels that differ in their
 * part of the depth, `across` of a part, and ends the product. */
enum { DSD_MMA_SUMS_THREADS = 256 /* the runs of a warp of the first */ };

typedef struct dsd_mma_sums_arg {
    const float *sums;
    const int32_t *columns; /* as above, of the first part */
    int32_t across, parts, warp_cols;
    dsd_epilogue epilogue;
} dsd_mma_sums_arg;

#endif
