/* Plans and launches sdd for sm89 of 8-bit types. */
#include <backends/cuda/sm80/sdd_host.h>

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
    KERNEL_ROW(sm89_sdd_##features##_##types, dtype, features, columns, STAGES)
/* By the type of b in the rows, by that of a in the tables. */
static const kernel_row e4m3_rows[] = {F8_KERNELS(F8_ROW, e4m3){0}};
static const kernel_row e5m2_rows[] = {F8_KERNELS(F8_ROW, e5m2){0}};

static const kernel_row *kernel_of(const bsk_problem *problem)
{
    const bsk_sdd_params *p = problem->params;
    return kernel_find(p->a.dtype == BSK_F8E5M2 ? e5m2_rows : e4m3_rows, p->b.dtype,
                       problem->layout->block_rows, 0);
}

static bsk_reason f8_accept(const bsk_problem *problem)
{
    const bsk_sdd_params *p = problem->params;
    /* the sums of columns are not written for these types */
    return p->bsum.dtype != BSK_NONE ? BSK_REFUSE_OPTION : bski_sdd80_accept(problem);
}

FAMILY(bski_sdd80, sm89_sdd_f8, f8_accept, kernel_of(problem))
