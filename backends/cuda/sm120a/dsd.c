/* Plans and launches dsd for sm120a. */
#include <backends/cuda/sm80/dsd_host.h>

FAMILY(sm120a_dsd_mma)

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
    {sm120a_dsd_mma_##features##_##type,                                                           \
     "sm120a_dsd_mma_" #features "_" #type,                                                        \
     dtype,                                                                                        \
     features,                                                                                     \
     COLUMNS,                                                                                      \
     STAGE_BYTES(features, COLUMNS),                                                               \
     stages},
static const kernel_row mma_rows[] = {MMA_KERNELS(MMA_ROW){0}};

bsk_reason cuda_sm120a_dsd_mma_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    (void)props;
    return bski_dsd80_accept(problem);
}

double cuda_sm120a_dsd_mma_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    return bski_dsd80_mma_seconds(problem, props, mma_rows);
}

bsk_status cuda_sm120a_dsd_mma_prepare(void *device, bsk_prepared *prepared)
{
    return bski_dsd80_mma_prepare(device, prepared, mma_rows);
}

bsk_status cuda_sm120a_dsd_mma_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    return bski_dsd80_mma_launch(prepared, queue, args);
}

void cuda_sm120a_dsd_mma_release(void *device, bsk_prepared *prepared)
{
    bski_dsd80_plan_free(device, prepared);
}
