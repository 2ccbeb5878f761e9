/* Plans and launches dsd for sm80 of f32 operands, rounded to tf32 where that is allowed. */
#include <backends/cuda/sm80/dsd_host.h>

FAMILY(sm80_dsd_tf32)

#define TF32_KERNELS(X)                 X(8, 256) X(16, 256) X(32, 256) X(64, 256) X(128, 128)
#define TF32_DECLARE(features, columns) extern const char sm80_dsd_tf32_##features[];
TF32_KERNELS(TF32_DECLARE)

enum { STAGES = 4 };

#define TF32_ROW(features, columns)                                                                \
    {sm80_dsd_tf32_##features,                                                                     \
     "sm80_dsd_tf32_" #features,                                                                   \
     BSK_F32,                                                                                      \
     features,                                                                                     \
     columns,                                                                                      \
     STAGE_BYTES(features, columns),                                                               \
     STAGES},
static const kernel_row tf32_rows[] = {TF32_KERNELS(TF32_ROW){0}};

bsk_reason cuda_sm80_dsd_tf32_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_dsd_params *p = problem->params;
    (void)props;
    return p->precision == BSK_PRECISION_TF32 ? bski_dsd80_accept(problem) : BSK_REFUSE_OPTION;
}

double cuda_sm80_dsd_tf32_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    return bski_dsd80_mma_seconds(problem, props, tf32_rows);
}

bsk_status cuda_sm80_dsd_tf32_prepare(void *device, bsk_prepared *prepared)
{
    return bski_dsd80_mma_prepare(device, prepared, tf32_rows);
}

bsk_status cuda_sm80_dsd_tf32_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    return bski_dsd80_mma_launch(prepared, queue, args);
}

void cuda_sm80_dsd_tf32_release(void *device, bsk_prepared *prepared)
{
    bski_dsd80_plan_free(device, prepared);
}
