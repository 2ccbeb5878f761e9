/* Plans and launches dsd for sm120a. */
#include <backends/cuda/sm80/dsd_host.h>

#define MMA_KERNELS(X)                                                                             \
    X(64, 4, f16, BSK_F16)                                                                         \
    X(128, 3, f16, BSK_F16)                                                                        \
    X(64, 4, bf16, BSK_BF16)                                                                       \
    X(128, 3, bf16, BSK_BF16)
#define MMA_DECLARE(features, stages, type, dtype)                                                 \
    extern const char sm120a_dsd_mma_##features##_##type[];
MMA_KERNELS(MMA_DECLARE)

enum { COLUMNS = 128 };

#define MMA_ROW(features, stages, type, dtype)                                                     \
    KERNEL_ROW(sm120a_dsd_mma_##features##_##type, dtype, features, COLUMNS, stages)
static const kernel_row mma_rows[] = {MMA_KERNELS(MMA_ROW){0}};

FAMILY(bski_dsd80, sm120a_dsd_mma, bski_dsd80_accept, mma_rows)
