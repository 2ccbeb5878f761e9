/* Plans and launches dsd for sm75, in f16. */
#include <backends/cuda/sm80/dsd_host.h>

FAMILY(sm75_dsd_mma)

#define MMA_KERNELS(X)                 X(8, 256) X(16, 256) X(32, 256) X(64, 256) X(128, 128)
#define MMA_DECLARE(features, columns) extern const char sm75_dsd_mma_##features##_f16[];
MMA_KERNELS(MMA_DECLARE)

enum { STAGES = 2 };

#define MMA_ROW(features, columns)                                                                 \
    {sm75_dsd_mma_##features##_f16,                                                                \
     "sm75_dsd_mma_" #features "_f16",                                                             \
     BSK_F16,                                                                                      \
     features,                                                                                     \
     columns,                                                                                      \
     STAGE_BYTES(features, columns),                                                               \
     STAGES},
static const kernel_row mma_rows[] = {MMA_KERNELS(MMA_ROW){0}};

bsk_reason cuda_sm75_dsd_mma_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    (void)props;
    return bski_dsd80_accept(problem);
}

double cuda_sm75_dsd_mma_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    return bski_dsd80_mma_seconds(problem, props, mma_rows);
}

bsk_status cuda_sm75_dsd_mma_prepare(void *device, bsk_prepared *prepared)
{
    return bski_dsd80_mma_prepare(device, prepared, mma_rows);
}

bsk_status cuda_sm75_dsd_mma_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    return bski_dsd80_mma_launch(prepared, queue, args);
}

void cuda_sm75_dsd_mma_release(void *device, bsk_prepared *prepared)
{
    bski_dsd80_plan_free(device, prepared);
}
