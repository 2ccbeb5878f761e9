/* What the kernels of dsd for a small minibatch (dsd_ring.cu, dsd_narrow.cu, dsd_stream.cu and
 * dsd_stream_mma.cu) and the C code that plans them share. */
#ifndef BSKI_CUDA_DSD_FEW_H
#define BSKI_CUDA_DSD_FEW_H

#include <backends/cuda/epilogue.h>

enum {
    DSD_FEW_COLUMNS = 64, /* samples of a launch, at most */
    DSD_FEW_STEP = 4,     /* runs along the depth that a warp multiplies at once */
    DSD_FEW_PLACE = 28    /* bits of a run's place in b */
};

/* Sixteen bytes of the depth of a tile, eight of it, of f32 four, of f8 sixteen: where they begin in b
 * and in the values, 16 bytes each. Of b the upper four bits are the tile's parts of 16 samples:
 * without any there is none. The runs of a tile follow each other, and are filled up to whole steps. */
typedef struct dsd_few_run {
    uint32_t b;
    uint32_t s; /* DSD_FEW_NONE: none */
} dsd_few_run;

#define DSD_FEW_NONE UINT32_MAX

typedef struct dsd_few_operands {
    const void *s, *b;
    int32_t b_pitch; /* from a line of b, k or sample, to the next: bytes */
    int32_t s_pitch; /* the same of the lines of a block */
    dsd_epilogue end;
} dsd_few_operands;

#endif
