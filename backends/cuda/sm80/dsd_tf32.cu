/* dsd for sm80 of f32 operands that are rounded to tf32. */
#include <backends/cuda/sm80/dsd_mma.h>

DSD_MMA(sm80_dsd_tf32_8, float, 8, 256, 8, 32, 4)
DSD_MMA(sm80_dsd_tf32_16, float, 16, 256, 16, 32, 4)
DSD_MMA(sm80_dsd_tf32_32, float, 32, 256, 32, 32, 4)
DSD_MMA(sm80_dsd_tf32_64, float, 64, 256, 32, 64, 4)
DSD_MMA(sm80_dsd_tf32_128, float, 128, 128, 32, 64, 4)
