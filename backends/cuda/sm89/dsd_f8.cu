/* dsd for sm89 of 8-bit types: the kernels of sm80 on m16n8k32. */
#include <backends/cuda/sm80/dsd_mma.h>

/* Of B, and of S. */
typedef mma_f8<false, false> e4m3_e4m3;
typedef mma_f8<false, true> e4m3_e5m2;
typedef mma_f8<true, false> e5m2_e4m3;
typedef mma_f8<true, true> e5m2_e5m2;

#define DSD_F8(types)                                                                              \
    DSD_MMA(sm89_dsd_16_##types, types, 16, 256, 16, 32, 4)                                        \
    DSD_MMA(sm89_dsd_32_##types, types, 32, 256, 32, 32, 4)                                        \
    DSD_MMA(sm89_dsd_64_##types, types, 64, 256, 32, 64, 4)                                        \
    DSD_MMA(sm89_dsd_128_##types, types, 128, 128, 32, 64, 4)
FOR_F8_PAIRS(DSD_F8)
