/* What the host sides of the sm80 products share: arrays of the host's allocator, tables on the
 * device, and the rates by which they estimate their time. */
#ifndef BSKI_CUDA_SM80_HOST_H
#define BSKI_CUDA_SM80_HOST_H

#include <backends/cuda/cuda.h>
#include <backends/cuda/epilogue.h>
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
    CUDA_FUNCTIONS(name)                                                                           \
    bsk_reason cuda_##name##_accept(const bsk_problem *problem, const bsk_device_props *props)     \
    {                                                                                              \
        (void)props;                                                                               \
        return accepts(problem);                                                                   \
    }                                                                                              \
    double cuda_##name##_seconds(const bsk_problem *problem, const bsk_device_props *props)        \
    {                                                                                              \
        return base##_seconds(problem, props, kernels);                                            \
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

/* Measured rates: multiply-adds of a compute unit in a second, its bytes from the second-level
 * cache, bytes from memory for all units; the time of a launch, and of one for a small minibatch
 * with its look-ups, which nothing hides. */
static const double unit_products = 1.0e12, unit_cache_bytes = 3.4e10, memory_bytes = 4.0e12,
                    launch_seconds = 2.5e-6, narrow_seconds = 6e-6;

/* Multiply-adds of a compute unit by type: f32 stands for tf32. */
static inline double unit_rate(bsk_dtype dtype)
{
    return dtype == BSK_F32 ? unit_products / 2 : unit_products;
}

static inline double maximum(double a, double b)
{
    return a > b ? a : b;
}

static inline void *host_array(const bsk_host *host, int64_t count, size_t size)
{
    size_t bytes;
    if (!bski_mul_size((size_t)(count > 0 ? count : 1), size, &bytes))
        return NULL;
    return host->allocator.resize(host->allocator.user, NULL, bytes);
}

static inline void host_drop(const bsk_host *host, void *array)
{
    if (array)
        host->allocator.resize(host->allocator.user, array, 0);
}

/* A table in device memory; empty ones are never read. */
static inline bsk_status table_put(simt_device *d, const void *data, int64_t count, size_t size,
                                   bsk_mem *mem)
{
    return count > 0 ? d->api->table(d, data, (size_t)count * size, mem) : BSK_OK;
}

static inline void table_drop(simt_device *d, bsk_mem *mem)
{
    if (mem->kind != BSK_MEM_NULL)
        d->api->table_free(d, mem);
}

static inline int32_t log2_of(int32_t v)
{
    int32_t shift = 0;
    while (v >> (shift + 1))
        shift++;
    return shift;
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

#endif
