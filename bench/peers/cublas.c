/* cuBLAS: dense products in bf16, f16, f32 and f64 with f32 (f64) sums; as a second peer, f32
 * operands rounded to tf32. */
#include <stdio.h>
#include <stdlib.h>

#include <cublas_v2.h>

#include "bench/peers/cuda_streams.h"

typedef struct blas_state {
    cublasHandle_t handle;
    bench_gemm gemm;
    cudaDataType_t type;
    cublasComputeType_t compute;
} blas_state;

static const char *blas_version(void)
{
    static char text[32];
    int major = 0, minor = 0, patch = 0;
    cublasGetProperty(MAJOR_VERSION, &major);
    cublasGetProperty(MINOR_VERSION, &minor);
    cublasGetProperty(PATCH_LEVEL, &patch);
    snprintf(text, sizeof text, "%d.%d.%d", major, minor, patch);
    return text;
}

static void *blas_open(void *stream)
{
    cublasHandle_t handle = NULL;
    if (cublasCreate(&handle))
        return NULL;
    if (cublasSetStream(handle, stream)) {
        cublasDestroy(handle);
        return NULL;
    }
    return handle;
}

static void blas_close(void *library)
{
    cublasDestroy(library);
}

static const struct {
    bsk_dtype dtype;
    cudaDataType_t type;
    cublasComputeType_t compute;
} kinds[] = {
    {BSK_BF16, CUDA_R_16BF, CUBLAS_COMPUTE_32F},
    {BSK_F16, CUDA_R_16F, CUBLAS_COMPUTE_32F},
    {BSK_F32, CUDA_R_32F, CUBLAS_COMPUTE_32F},
    {BSK_F64, CUDA_R_64F, CUBLAS_COMPUTE_64F},
};

static void *blas_prepare(void *library, const bench_gemm *gemm, const bench_blocks *blocks)
{
    (void)blocks;
    if (!library || gemm->m > INT32_MAX || gemm->n > INT32_MAX || gemm->k > INT32_MAX)
        return NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (kinds[i].dtype != gemm->dtype)
            continue;
        blas_state *s = malloc(sizeof *s);
        if (s)
            *s = (blas_state){library, *gemm, kinds[i].type, kinds[i].compute};
        return s;
    }
    return NULL;
}

static void *tf32_prepare(void *library, const bench_gemm *gemm, const bench_blocks *blocks)
{
    blas_state *s = gemm->dtype == BSK_F32 ? blas_prepare(library, gemm, blocks) : NULL;
    if (s)
        s->compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    return s;
}

/* The library stores matrices by columns: the same memory holds the transposed product. */
static bool blas_run(void *p, const void *a, const void *b, void *c)
{
    const blas_state *s = p;
    const bench_gemm *g = &s->gemm;
    const float one = 1, zero = 0;
    const double one64 = 1, zero64 = 0;
    const bool is_f64 = g->dtype == BSK_F64;
    int m = (int)g->m, n = (int)g->n, k = (int)g->k;
    return cublasGemmEx(s->handle, g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                        g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k,
                        is_f64 ? (const void *)&one64 : &one, b, s->type, g->trans_b ? k : n, a,
                        s->type, g->trans_a ? m : k, is_f64 ? (const void *)&zero64 : &zero, c,
                        s->type, n, s->compute, CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS;
}

const bench_peer *bench_peer_query(int index)
{
    static const bench_peer peers[] = {
        {"cublas", "cuda", false, 0, &bench_cuda_streams, blas_version, blas_open, blas_close,
         blas_prepare, blas_run, free},
        {"cublas-tf32", "cuda", false, 0x1p-11, &bench_cuda_streams, blas_version, blas_open,
         blas_close, tf32_prepare, blas_run, free},
    };
    return index < 2 ? &peers[index] : NULL;
}
