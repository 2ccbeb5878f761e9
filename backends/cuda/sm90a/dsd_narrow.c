/* Plans dsd_sm90a_narrow: small minibatches, blocks as they are. */
#include <backends/cuda/sm90a/dsd_pieces.h>

CUDA_FUNCTIONS(sm90a_dsd_narrow)

enum { MAX_TILE = 16 };

bsk_reason cuda_sm90a_dsd_narrow_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    (void)props;
    const bsk_reason reason = bski_dsd_few_refusal(problem, DSD_FEW_COLUMNS);
    if (reason)
        return reason;
    const dsd_few_shape s = bski_dsd_few_shape(problem);
    if (s.block_i > MAX_TILE)
        return BSK_REFUSE_BLOCK;
    return s.along_k ? BSK_ACCEPT : BSK_REFUSE_STRIDE;
}

double cuda_sm90a_dsd_narrow_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    /* A launch and the chain of accesses of a thread block, longer for 64 columns; bytes a second
     * from memory; a multiprocessor's time for a step, for one whose weights lie across the depth,
     * and for each sample. Measured. */
    static const double launch[] = {6e-6, 12e-6}, memory = 3.8e12;
    static const double step = 12e-9, across = 25e-9, sample = 1.73e-9;
    const bsk_layout_tables *t = problem->layout;
    const bsk_dsd_params *p = problem->params;
    const double kept = (double)t->nnz * t->block_rows * t->block_cols;
    const double n = (double)p->c.dims[p->c.rank - 1];
    const double work = bski_dsd_few_steps(problem) / props->compute_units *
                        ((p->transpose_s ? across : step) + sample * n);
    return launch[n > 32] + (work > 2 * kept / memory ? work : 2 * kept / memory);
}

/* --- Kernels --- */

#define SIZES(X, type, dtype, order, flip)                                                         \
    X(type, dtype, order, flip, 8, 16, 6)                                                          \
    X(type, dtype, order, flip, 8, 32, 6)                                                          \
    X(type, dtype, order, flip, 8, 64, 6)                                                          \
    X(type, dtype, order, flip, 16, 16, 6)                                                         \
    X(type, dtype, order, flip, 16, 32, 6)                                                         \
    X(type, dtype, order, flip, 16, 64, 4)
#define ORDERS(X, type, dtype)                                                                     \
    SIZES(X, type, dtype, rows, false)                                                             \
    SIZES(X, type, dtype, cols, true)
#define KERNELS(X)                                                                                 \
    ORDERS(X, bf16, BSK_BF16)                                                                      \
    ORDERS(X, f16, BSK_F16)

/* The address of the symbol that the compiler makes for a kernel stands for it. */
#define KERNEL(type, order, tile, columns) dsd_sm90a_narrow_##tile##_##columns##_##order##_##type
#define DECLARE(type, dtype, order, flip, tile, columns, blocks)                                   \
    extern const char KERNEL(type, order, tile, columns)[];
KERNELS(DECLARE)
#undef DECLARE
#define ROW(type, dtype, order, flip, tile, columns, blocks)                                       \
    {KERNEL(type, order, tile, columns),                                                           \
     "dsd_sm90a_narrow_" #tile "_" #columns "_" #order "_" #type,                                  \
     dtype,                                                                                        \
     flip,                                                                                         \
     true,                                                                                         \
     tile,                                                                                         \
     columns,                                                                                      \
     blocks},
static const dsd_few_kernel kernels[] = {KERNELS(ROW)};
#undef ROW

/* --- Plans --- */

bsk_status cuda_sm90a_dsd_narrow_prepare(void *device, bsk_prepared *prepared)
{
    const dsd_few_shape shape = bski_dsd_few_shape(prepared->problem);
    return bski_dsd_pieces_prepare(device, prepared,
                                   bski_dsd_few_find(kernels, sizeof kernels / sizeof *kernels,
                                                     prepared->problem->dtype, &shape),
                                   0);
}

void cuda_sm90a_dsd_narrow_release(void *device, bsk_prepared *prepared)
{
    bski_dsd_pieces_release(device, prepared);
}

bsk_status cuda_sm90a_dsd_narrow_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    return bski_dsd_pieces_launch(prepared, queue, args);
}
