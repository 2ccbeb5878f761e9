/* sdd for sm89 of 8-bit types: the kernels of sm80 on m16n8k32. */
#include <backends/cuda/sm80/sdd_mma.h>

/* Of B, whose columns are the products' rows, and of A. */
typedef mma_f8<false, false> e4m3_e4m3;
typedef mma_f8<false, true> e4m3_e5m2;
typedef mma_f8<true, false> e5m2_e4m3;
typedef mma_f8<true, true> e5m2_e5m2;

#define SDD_F8(types)                                                                              \
    SDD_MMA(sm89_sdd_16_##types, types, 16, 256, 16, 32)                                           \
    SDD_MMA(sm89_sdd_32_##types, types, 32, 256, 32, 32)                                           \
    SDD_MMA(sm89_sdd_64_##types, types, 64, 128, 32, 32)                                           \
    SDD_MMA(sm89_sdd_128_##types, types, 128, 128, 32, 64)
FOR_F8_PAIRS(SDD_F8)
