/* dsd for sm120a: the kernels of sm80 in tiles of which two have room in the 100 KB of shared
 * memory of a compute unit. */
#include <backends/cuda/sm80/dsd_mma.h>

#define DSD_MMA_SIZES(type, T)                                                                     \
    DSD_MMA(sm120a_dsd_mma_64_##type, T, 64, 128, 32, 32, 4)                                       \
    DSD_MMA(sm120a_dsd_mma_128_##type, T, 128, 128, 32, 64, 3)
FOR_HALVES(DSD_MMA_SIZES)
