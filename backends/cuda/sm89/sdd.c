/* Plans and launches sdd for sm89 of 8-bit types. */
#include <backends/cuda/sm80/sdd_host.h>

FAMILY(sm89_sdd_f8)

#define F8_SIZES(X, b, a, dtype)                                                                   \
    X(16, 256, b##_##a, dtype)                                                                     \
    X(32, 256, b##_##a, dtype)                                                                     \
    X(64, 128, b##_##a, dtype)                                                                     \
    X(128, 128, b##_##a, dtype)
#define F8_KERNELS(X, a)                                                                           \
    F8_SIZES(X, e4m3, a, BSK_F8E4M3)                                                               \
    F8_SIZES(X, e5m2, a, BSK_F8E5M2)
#define F8_DECLARE(features, columns, types, dtype)                                                \
    extern const char sm89_sdd_##features##_##types[];
F8_KERNELS(F8_DECLARE, e4m3)
F8_KERNELS(F8_DECLARE, e5m2)

enum { STAGES = 4 };

#define F8_ROW(features, columns, types, dtype)                                                    \
    {sm89_sdd_##features##_##types,                                                                \
     "sm89_sdd_" #features "_" #types,                                                             \
     dtype,                                                                                        \
     features,                                                                                     \
     columns,                                                                                      \
     STAGE_BYTES(features, columns),                                                               \
     STAGES},
/* By the type of b in the rows, by that of a in the tables. */
static const kernel_row e4m3_rows[] = {F8_KERNELS(F8_ROW, e4m3){0}};
static const kernel_row e5m2_rows[] = {F8_KERNELS(F8_ROW, e5m2){0}};

static const kernel_row *kernel_of(const bsk_problem *problem)
{
    const bsk_sdd_params *p = problem->params;
    return kernel_find(p->a.dtype == BSK_F8E5M2 ? e5m2_rows : e4m3_rows, p->b.dtype,
                       problem->layout->block_rows, 0);
}

bsk_reason cuda_sm89_sdd_f8_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_sdd_params *p = problem->params;
    (void)props;
    /* the sums of columns are not written for these types */
    return p->bsum.dtype != BSK_NONE ? BSK_REFUSE_OPTION : bski_sdd80_accept(problem);
}

double cuda_sm89_sdd_f8_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    return bski_sdd80_seconds(problem, props, kernel_of(problem));
}

bsk_status cuda_sm89_sdd_f8_prepare(void *device, bsk_prepared *prepared)
{
    return bski_sdd80_prepare(device, prepared, kernel_of(prepared->problem));
}

bsk_status cuda_sm89_sdd_f8_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    return bski_sdd80_launch(prepared, queue, args);
}

void cuda_sm89_sdd_f8_release(void *device, bsk_prepared *prepared)
{
    bski_sdd80_release(device, prepared);
}
