/* What the host hands to the kernels of dsd for sm100a beside the argument of those for sm80: how
 * the copy engine sees both operands. One definition for both sides. */
#ifndef BSKI_CUDA_SM100A_DSD_ARG_H
#define BSKI_CUDA_SM100A_DSD_ARG_H

#include <cuda.h>

#include <backends/cuda/sm80/dsd_arg.h>

/* A copy: 64 rows of 64 16-bit elements, 128 bytes. */
enum { BOX = 64, BOX_BYTES = 2 * BOX * BOX, STAGE_DEPTH = 64, TILE_COLUMNS = 256 };

typedef struct dsd_maps {
    /* s: columns, rows and group of the blocks as they are stored, one below the other. b: its
     * contiguous axis, the other one and the member of the batch. */
    CUtensorMap s, b;
} dsd_maps;

#endif
