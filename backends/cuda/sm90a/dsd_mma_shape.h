/* The shape of a product by dsd_mma, as its lists and its model need it. */
#ifndef BSKI_CUDA_DSD_MMA_SHAPE_H
#define BSKI_CUDA_DSD_MMA_SHAPE_H

#include <backends/cuda/sm90a/dsd_image.h>
#include <backends/cuda/sm90a/dsd_mma.h>
#include <backends/cuda/sm90a/dsd_split.h>

enum { DSD_MMA_SHARED_BYTES = 227 << 10 };

typedef struct dsd_mma_shape {
    int32_t size;             /* bytes of an element: 2, or 4 of f32 that is rounded to tf32 */
    int32_t unit, step;       /* outputs of a unit; features of a bit of its masks: 16 or 8 */
    int32_t columns;          /* of a unit: where runs of its outputs begin */
    int32_t depth;            /* features of a window: 256, 128 or 64, of tf32 half as many */
    int32_t warp_units;       /* units of a warp */
    int32_t warp_cols;        /* warps side by side in a tile */
    int32_t part_words;       /* what a warp finds in a stage */
    int32_t panel_units;      /* units of a tile */
    int32_t samples;          /* rows of a tile */
    int32_t block_i, block_j; /* of op(S) */
    int64_t row_stride, feature_stride; /* of an element in a block */
    int64_t outputs, features, n;
    int64_t units, windows, row_tiles;
    int64_t across, panels; /* of a part of the depth, which has `windows`; of all */
    dsd_split split;
    double seconds; /* that it takes, with weights packed before */
    int32_t tile;   /* DSD_MMA_WIDE, _SQUARE, _TALL, _FEW or _FEWER */
    bool cn;
    bski_cuda_tensor b;
} dsd_mma_shape;

/* Whether all samples are in a tile, of which a cluster's blocks have parts of the depth. */
static inline bool is_few(const dsd_mma_shape *s)
{
    return s->tile >= DSD_MMA_FEW;
}

/* Whether a warp finds its units' bits in a stage, and no codes come with the weights. */
static inline bool has_masks(const dsd_mma_shape *s)
{
    return s->part_words == DSD_MMA_MASKS_WORDS;
}

/* Bytes of shared memory before the ring's slots, and of these. */
static inline int32_t head_bytes(const dsd_mma_shape *s)
{
    return is_few(s) ? DSD_MMA_FEW_HEAD : DSD_MMA_RING;
}

static inline int32_t ring_bytes(const dsd_mma_shape *s)
{
    return DSD_MMA_SHARED_BYTES - head_bytes(s);
}

/* Bytes of activations of a stage. */
static inline int64_t x_bytes(const dsd_mma_shape *s)
{
    return (int64_t)s->samples * s->depth * s->size;
}

/* The fewest slots of a ring of stages with so many bytes of a sample's features: warps with more
 * to do must not stop the others. Of few samples two for each turn. */
static inline int32_t least_slots(const dsd_mma_shape *s, int32_t bytes)
{
    return bytes == DSD_MMA_STAGE && !is_few(s) ? 3 : 4;
}

/* The shape on a device with so many multiprocessors; or why the kernels do not take it. */
bsk_reason bski_dsd_mma_shape(const bsk_problem *problem, int32_t compute_units, dsd_mma_shape *s);

#endif
