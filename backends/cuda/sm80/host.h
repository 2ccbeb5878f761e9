/* What the host sides of the sm80 products share. */
#ifndef BSKI_CUDA_SM80_HOST_H
#define BSKI_CUDA_SM80_HOST_H

#include <backends/cuda/epilogue.h>
#include <backends/cuda/host.h>
#include <common/checked.h>

/* A kernel for tiles of so many features and columns. The address of the symbol that the compiler
 * makes for a kernel stands for it. */
typedef struct kernel_row {
    const void *function; /* NULL behind the last row */
    const char *name;
    bsk_dtype dtype;
    int32_t features, columns;
    int32_t stage_bytes, stages;
} kernel_row;

/* Bytes of a stage, which is 64 bytes of the depth. */
#define STAGE_BYTES(features, columns) (((features) + (columns)) * 64)
#define KERNEL_ROW(symbol, dtype, features, columns, stages)                                       \
    {symbol, #symbol, dtype, features, columns, STAGE_BYTES(features, columns), stages},

/* A family with kernels and perhaps conditions of its own, and all else of `base`. kernels: an
 * expression, which may name the problem. */
#define FAMILY(base, name, accepts, kernels)                                                       \
    CUDA_SOLE_FUNCTIONS(name)                                                                      \
    bsk_reason cuda_##name##_accept(const bsk_problem *problem, const bsk_device_props *props)     \
    {                                                                                              \
        (void)props;                                                                               \
        return accepts(problem);                                                                   \
    }                                                                                              \
    bsk_status cuda_##name##_prepare(void *device, bsk_prepared *prepared)                         \
    {                                                                                              \
        const bsk_problem *problem = prepared->problem;                                            \
        (void)problem;                                                                             \
        return base##_prepare(device, prepared, kernels);                                          \
    }                                                                                              \
    bsk_status cuda_##name##_launch(const bsk_prepared *prepared, void *queue, const void *args)   \
    {                                                                                              \
        return base##_launch(prepared, queue, args);                                               \
    }                                                                                              \
    void cuda_##name##_release(void *device, bsk_prepared *prepared)                               \
    {                                                                                              \
        base##_release(device, prepared);                                                          \
    }

/* The first kernel for tiles of so many features and at least so many columns. */
static inline const kernel_row *kernel_find(const kernel_row *rows, bsk_dtype dtype,
                                            int32_t features, int64_t columns)
{
    for (; rows->function; rows++)
        if (rows->dtype == dtype && rows->features == features && rows->columns >= columns)
            return rows;
    return NULL;
}

/* Elements of 16 bytes. */
static inline int32_t run_elements(bsk_dtype dtype)
{
    return dtype == BSK_F32 ? 4 : dtype == BSK_F8E4M3 || dtype == BSK_F8E5M2 ? 16 : 8;
}

/* Whether runs of so many elements that are a stride apart are aligned alike. */
static inline bool aligned(int64_t stride, int32_t run)
{
    return stride % run == 0;
}

/* Whether the device runs code that was compiled for sm90, where kernels wait for earlier ones
 * themselves. */
static inline bool starts_early(const bski_cuda_queue *queue)
{
#ifdef CUDA_SM80_WAITS
    return queue->simt.device->props.arch == 90;
#else
    (void)queue;
    return false;
#endif
}

#endif
