/* dsd for sm75: the kernels of sm80 on the instructions of sm75, with half the shared memory. */
#define MMA_SM75
#include <backends/cuda/sm80/dsd_mma.h>

DSD_MMA(sm75_dsd_mma_8_f16, __half, 8, 256, 8, 32, 2)
DSD_MMA(sm75_dsd_mma_16_f16, __half, 16, 256, 16, 32, 2)
DSD_MMA(sm75_dsd_mma_32_f16, __half, 32, 256, 32, 32, 2)
DSD_MMA(sm75_dsd_mma_64_f16, __half, 64, 256, 32, 64, 2)
DSD_MMA(sm75_dsd_mma_128_f16, __half, 128, 128, 32, 64, 2)
