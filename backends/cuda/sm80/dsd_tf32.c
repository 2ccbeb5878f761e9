/* Plans and launches dsd for sm80 of f32 operands, rounded to tf32 where that is allowed. */
#include <backends/cuda/sm80/dsd_host.h>

#define TF32_KERNELS(X)                 X(8, 256) X(16, 256) X(32, 256) X(64, 256) X(128, 128)
#define TF32_DECLARE(features, columns) extern const char sm80_dsd_tf32_##features[];
TF32_KERNELS(TF32_DECLARE)

enum { STAGES = 4 };

#define TF32_ROW(features, columns)                                                                \
    KERNEL_ROW(sm80_dsd_tf32_##features, BSK_F32, features, columns, STAGES)
static const kernel_row tf32_rows[] = {TF32_KERNELS(TF32_ROW){0}};

static bsk_reason tf32_accept(const bsk_problem *problem)
{
    const bsk_dsd_params *p = problem->params;
    return p->precision == BSK_PRECISION_TF32 ? bski_dsd80_accept(problem) : BSK_REFUSE_OPTION;
}

FAMILY(bski_dsd80, sm80_dsd_tf32, tf32_accept, tf32_rows)
