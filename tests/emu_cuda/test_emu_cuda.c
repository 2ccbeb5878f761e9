/* The emulator finds what is wrong with the kernels of planted.h, and nothing else. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdlib.h>

#include <backends/cuda/cuda.h>
#include <tests/unit/unit.h>

#include "machine.h"
#include "planted.h"

enum { SEEDS = 8, SIZE = PLANTED_SIZE, SUMS = SIZE * SIZE };

extern const char planted_lanes[], planted_product[], planted_cluster[], planted_store[],
    planted_tensor[], planted_tensor_64[];

typedef struct planted_row {
    const void *function;
    planted_fault fault;
    const char *text; /* of the message; NULL: a wrong result */
} planted_row;

static const planted_row rows[] = {
    {planted_lanes, NO_BARRIER, NULL},
    {planted_lanes, NO_ASYNC_WAIT, NULL},
    {planted_lanes, HALF_BARRIER, "deadlock"},
    {planted_lanes, OUT_OF_BOUNDS, "out of bounds"},
    {planted_lanes, OUT_OF_MEMORY, "not memory of the device"},
    {planted_lanes, PAST_SHARED, "which is no memory"},
    {planted_lanes, PAST_MEMORY, "which is no memory"},
    {planted_lanes, MISALIGNED, "is no multiple of 16"},
    {planted_lanes, WRONG_MASK, "without the calling lane"},
    {planted_lanes, DIVERGENT, "divergence"},
    {planted_lanes, REGISTERS, "waits for registers"},
    {planted_product, NO_INIT, "no barrier at"},
    {planted_product, NO_COPY_WAIT, "a copy to a block that has returned"},
    {planted_product, FEW_BYTES, "lacks 0 arrivals of 1 and -16 bytes"},
    {planted_product, MANY_BYTES, "lacks 0 arrivals of 1 and 16 bytes"},
    {planted_product, MISPLACED, "is no multiple of 128"},
    {planted_product, UNSWIZZLED, NULL},
    {planted_product, WRONG_STRIDE, NULL},
    {planted_product, NO_FENCE, "without wgmma.fence"},
    {planted_product, NO_PRODUCT_WAIT, "wgmma are under way"},
    {planted_product, EARLY_READ, NULL},
    {planted_product, EARLY_STORE, NULL},
    {planted_product, LANES_DIFFER, "lanes of a warp differ"},
    {planted_cluster, NO_FIRST_SYNC, "no barrier at"},
    {planted_cluster, NO_LAST_SYNC, "which has returned"},
    {planted_cluster, OTHER_MASK, "of a cluster of 2"},
    {planted_store, NO_STORE_WAIT, "may still read"},
    {planted_store, OVERWRITTEN, NULL},
    {planted_tensor, OTHER_LANES, "by a warp that reaches lanes"},
    {planted_tensor, EARLY_COLUMNS, "tcgen05.ld of columns that a tcgen05.mma under way writes"},
    {planted_tensor, NO_FENCE_BEFORE, "without tcgen05.fence::before_thread_sync"},
    {planted_tensor, NO_FENCE_AFTER, "without tcgen05.fence::after_thread_sync"},
    {planted_tensor, NO_COLUMNS_WAIT, "of columns that a tcgen05.st under way writes"},
    {planted_tensor, EARLY_COLUMNS_STORE, "tcgen05.st of columns that a tcgen05.mma under way"},
    {planted_tensor, EARLY_OPERAND_STORE, NULL},
    {planted_tensor, NO_COMMIT, "deadlock"},
    {planted_tensor, NOT_GIVEN, "returns without tcgen05.dealloc"},
    {planted_tensor, HALF_GIVEN, "of what was not taken"},
    {planted_tensor, TAKEN_LATE, "after tcgen05.relinquish_alloc_permit"},
    {planted_tensor, NOT_TAKEN, "which are not taken"},
    {planted_tensor, RESERVED_KIND, "reserved bits of the instruction descriptor"},
    {planted_tensor, RESERVED_OPERAND, "reserved bits of the descriptor"},
    {planted_tensor, ODD_COLUMNS, "of 128 x 56"},
    {planted_tensor, WRONG_MAJOR, NULL},
    {planted_tensor, WHOLE_WARP, "tcgen05.mma of column"},
    {planted_tensor, OTHER_SUMS, "tcgen05.mma of column"},
    {planted_tensor, SUMS_READ, "tcgen05.mma of column"},
};

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static void *driver_find(const char *name)
{
    enum cudaDriverEntryPointQueryResult found;
    void *function = NULL;
    cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
    return function;
}

typedef CUresult (*launch_fn)(const CUlaunchConfig *, CUfunction, void **, void **);

static CUtensorMap map_of(void *matrix)
{
    CUtensorMap map;
    const cuuint64_t dims[] = {SIZE, SIZE}, strides[] = {SIZE * 2};
    const cuuint32_t box[] = {SIZE, SIZE}, steps[] = {1, 1};
    const encode_fn encode = (encode_fn)(uintptr_t)driver_find("cuTensorMapEncodeTiled");
    CHECK(cudaSetDevice(0) == cudaSuccess);
    CHECK(encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, matrix, dims, strides, box, steps,
                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                 CU_TENSOR_MAP_L2_PROMOTION_NONE,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
    return map;
}

/* Numbers of 1 to 7 with an order in them, as bf16, and their products. */
static int number(int matrix, int row, int column)
{
    return 1 + (row * (5 + matrix) + column * 3 + row * column / 7) % 7;
}

static void matrices_fill(uint16_t *a, uint16_t *b, float *want)
{
    for (int i = 0; i < SUMS; i++) {
        const float x = (float)number(0, i / SIZE, i % SIZE),
                    y = (float)number(1, i / SIZE, i % SIZE);
        uint32_t bits[2];
        memcpy(&bits[0], &x, sizeof x);
        memcpy(&bits[1], &y, sizeof y);
        a[i] = (uint16_t)(bits[0] >> 16);
        b[i] = (uint16_t)(bits[1] >> 16);
        want[i] = 0;
        for (int k = 0; k < SIZE; k++)
            want[i] += (float)(number(0, i / SIZE, k) * number(1, i % SIZE, k));
    }
}

typedef struct fixture {
    uint16_t *a, *b;
    float *x, *y, product[SUMS];
} fixture;

static fixture fixture_make(void)
{
    fixture f;
    CHECK(cudaMalloc((void **)&f.a, SUMS * 2) == cudaSuccess);
    CHECK(cudaMalloc((void **)&f.b, SUMS * 2) == cudaSuccess);
    CHECK(cudaMalloc((void **)&f.x, PLANTED_LANES * 4) == cudaSuccess);
    CHECK(cudaMalloc((void **)&f.y, SUMS * 4) == cudaSuccess);
    matrices_fill(f.a, f.b, f.product);
    for (int i = 0; i < PLANTED_LANES; i++)
        f.x[i] = (float)i;
    return f;
}

/* How a kernel is launched. */
typedef struct planted_kernel {
    const void *function;
    unsigned blocks, threads, shared, cluster;
    bool product; /* y is the product, else x, by `shift` further */
    int shift;
} planted_kernel;

static const planted_kernel kernels[] = {
    {planted_lanes, 1, PLANTED_LANES, PLANTED_LANES * 4, 1, false, 3},
    {planted_product, 1, 128, SUMS * 4 + 8, 1, true, 0},
    {planted_cluster, 2, 32, PLANTED_LANES * 4 + 8, 2, false, 0},
    {planted_store, 1, PLANTED_LANES, PLANTED_LANES * 4, 1, false, 0},
    {planted_tensor, 1, 128, SUMS * 6 + 32, 1, true, 0},
    {planted_tensor_64, 1, 128, SUMS * 6 + 32, 1, true, 0},
};

static const planted_kernel *kernel_of(const void *function)
{
    const planted_kernel *k = kernels;
    while (k->function != function)
        k++;
    return k;
}

static bool result_right(const fixture *f, const planted_kernel *k)
{
    const int count = k->product ? SUMS : (int)k->blocks * PLANTED_LANES;
    for (int i = 0; i < count; i++)
        if (f->y[i] != (k->product ? f->product[i] : (float)((i + k->shift) % PLANTED_LANES)))
            return false;
    return true;
}

static cudaError_t run(fixture *f, const planted_kernel *k, planted_fault fault, int seed)
{
    planted_arg arg = {f->x, f->y, (int32_t)fault};
    CUtensorMap a = map_of(f->a), b = map_of(f->b);
    void *one[] = {&arg}, *three[] = {&a, &b, &arg};
    const launch_fn launch = (launch_fn)(uintptr_t)driver_find("cuLaunchKernelEx");
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                   .value.clusterDim = {k->cluster, 1, 1}};
    const CUlaunchConfig config = {
        .gridDimX = k->blocks,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = k->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = k->shared,
        .attrs = &attribute,
        .numAttrs = k->cluster > 1 ? 1 : 0,
    };
    memset(f->y, 0xff, SUMS * 4);
    gpu_schedule((uint64_t)seed);
    CHECK(cudaSetDevice(0) == cudaSuccess && bski_cuda_load(k->function) == cudaSuccess);
    return (cudaError_t)launch(&config, (CUfunction)(uintptr_t)bski_cuda_loaded(k->function),
                               k->product ? three : one, NULL);
}

static void test_sound(fixture *f, const planted_kernel *k)
{
    for (int seed = 1; seed <= SEEDS; seed++) {
        if (!CHECK(run(f, k, SOUND, seed) == cudaSuccess))
            fprintf(stderr, "%s\n", cudaGetErrorString(cudaErrorLaunchFailure));
        CHECK(result_right(f, k));
    }
}

/* One of the orders shows the fault, and none shows another one. */
static void test_fault(fixture *f, const planted_row *row)
{
    const planted_kernel *k = kernel_of(row->function);
    int found = 0;
    for (int seed = 1; seed <= SEEDS; seed++) {
        const cudaError_t error = run(f, k, row->fault, seed);
        if (error && row->text && strstr(cudaGetErrorString(error), row->text))
            found++;
        else if (error)
            fprintf(stderr, "fault %d: %s\n", (int)row->fault, cudaGetErrorString(error));
        else if (!row->text && !result_right(f, k))
            found++;
    }
    if (!CHECK(found > 0))
        fprintf(stderr, "fault %d is not found\n", (int)row->fault);
}

int main(void)
{
    fixture f = fixture_make();
    for (size_t i = 0; i < UNIT_COUNT(kernels); i++)
        test_sound(&f, &kernels[i]);
    for (size_t i = 0; i < UNIT_COUNT(rows); i++)
        test_fault(&f, &rows[i]);
    cudaFree(f.a);
    cudaFree(f.b);
    cudaFree(f.x);
    cudaFree(f.y);
    return unit_report();
}
