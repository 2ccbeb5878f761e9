/* Plans and launches dsd for sm75, in f16. */
#include <backends/cuda/sm80/dsd_host.h>

#define MMA_KERNELS(X)                 X(8, 256) X(16, 256) X(32, 256) X(64, 256) X(128, 128)
#define MMA_DECLARE(features, columns) extern const char sm75_dsd_mma_##features##_f16[];
MMA_KERNELS(MMA_DECLARE)

enum { STAGES = 2 };

#define MMA_ROW(features, columns)                                                                 \
    KERNEL_ROW(sm75_dsd_mma_##features##_f16, BSK_F16, features, columns, STAGES)
static const kernel_row mma_rows[] = {MMA_KERNELS(MMA_ROW){0}};

FAMILY(bski_dsd80, sm75_dsd_mma, bski_dsd80_accept, mma_rows)
