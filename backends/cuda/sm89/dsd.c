/* Plans and launches dsd for sm89 of 8-bit types. */
#include <backends/cuda/sm80/dsd_host.h>

#define F8_SIZES(X, b, s, dtype)                                                                   \
    X(16, 256, b##_##s, dtype)                                                                     \
    X(32, 256, b##_##s, dtype)                                                                     \
    X(64, 256, b##_##s, dtype)                                                                     \
    X(128, 128, b##_##s, dtype)
#define F8_KERNELS(X, s)                                                                           \
    F8_SIZES(X, e4m3, s, BSK_F8E4M3)                                                               \
    F8_SIZES(X, e5m2, s, BSK_F8E5M2)
#define F8_DECLARE(features, columns, types, dtype)                                                \
    extern const char sm89_dsd_##features##_##types[];
F8_KERNELS(F8_DECLARE, e4m3)
F8_KERNELS(F8_DECLARE, e5m2)

enum { STAGES = 4 };

#define F8_ROW(features, columns, types, dtype)                                                    \
    KERNEL_ROW(sm89_dsd_##features##_##types, dtype, features, columns, STAGES)
/* By the type of b in the rows, by that of s in the tables. */
static const kernel_row e4m3_rows[] = {F8_KERNELS(F8_ROW, e4m3){0}};
static const kernel_row e5m2_rows[] = {F8_KERNELS(F8_ROW, e5m2){0}};

static const kernel_row *rows_of(const bsk_problem *problem)
{
    return ((const bsk_dsd_params *)problem->params)->s.dtype == BSK_F8E5M2 ? e5m2_rows : e4m3_rows;
}

FAMILY(bski_dsd80, sm89_dsd_f8, bski_dsd80_accept, rows_of(problem))
