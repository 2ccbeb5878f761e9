/* dsd for sm80: cp.async pipelines. */
#include <backends/cuda/sm80/dsd_mma.h>

#define DSD_MMA_SIZES(type, T)                                                                     \
    DSD_MMA(sm80_dsd_mma_8_##type, T, 8, 256, 8, 32, 4)                                            \
    DSD_MMA(sm80_dsd_mma_16_##type, T, 16, 256, 16, 32, 4)                                         \
    DSD_MMA(sm80_dsd_mma_32_##type, T, 32, 256, 32, 32, 4)                                         \
    DSD_MMA(sm80_dsd_mma_64_##type, T, 64, 256, 32, 64, 4)                                         \
    DSD_MMA(sm80_dsd_mma_128_##type, T, 128, 128, 32, 64, 4)
FOR_HALVES(DSD_MMA_SIZES)
