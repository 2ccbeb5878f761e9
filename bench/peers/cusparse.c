/* cuSPARSE: the product of block-sparse and dense matrices in the library's two block formats,
 * Blocked-ELL and, where the version has it, BSR. The factor is given as each format wants it:
 * packing is not timed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <cusparse.h>

#include "bench/peers/cuda_streams.h"

#if CUSPARSE_VERSION >= 12100
#define HAS_BSR 1
#else
#define HAS_BSR 0
#endif

typedef struct sparse_state {
    cusparseHandle_t handle;
    cusparseSpMatDescr_t blocks;
    cusparseDnMatDescr_t in, out;
    void *values, *index, *start, *buffer; /* on the device */
    bool is_b;
} sparse_state;

static const char *sparse_version(void)
{
    static char text[32];
    int major = 0, minor = 0, patch = 0;
    cusparseGetProperty(MAJOR_VERSION, &major);
    cusparseGetProperty(MINOR_VERSION, &minor);
    cusparseGetProperty(PATCH_LEVEL, &patch);
    snprintf(text, sizeof text, "%d.%d.%d", major, minor, patch);
    return text;
}

static void *sparse_open(void *stream)
{
    cusparseHandle_t handle = NULL;
    if (cusparseCreate(&handle))
        return NULL;
    if (cusparseSetStream(handle, stream)) {
        cusparseDestroy(handle);
        return NULL;
    }
    return handle;
}

static void sparse_close(void *library)
{
    cusparseDestroy(library);
}

static void sparse_release(void *p)
{
    sparse_state *s = p;
    if (s->blocks)
        cusparseDestroySpMat(s->blocks);
    if (s->in)
        cusparseDestroyDnMat(s->in);
    if (s->out)
        cusparseDestroyDnMat(s->out);
    cudaFree(s->values);
    cudaFree(s->index);
    cudaFree(s->start);
    cudaFree(s->buffer);
    free(s);
}

static bool upload(void **device, const void *host, size_t bytes)
{
    return cudaMalloc(device, bytes ? bytes : 1) == cudaSuccess &&
           cudaMemcpy(*device, host, bytes, cudaMemcpyHostToDevice) == cudaSuccess;
}

static bool make_bsr(sparse_state *s, const bench_blocks *b, cudaDataType type, size_t block_bytes)
{
#if HAS_BSR
    const int32_t nnz = b->row_start[b->grid_rows];
    return upload(&s->values, b->values, (size_t)nnz * block_bytes) &&
           upload(&s->index, b->col, (size_t)nnz * sizeof *b->col) &&
           upload(&s->start, b->row_start, (size_t)(b->grid_rows + 1) * sizeof *b->row_start) &&
           cusparseCreateBsr(&s->blocks, b->grid_rows, b->grid_cols, nnz, b->size, b->size,
                             s->start, s->index, s->values, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I,
                             CUSPARSE_INDEX_BASE_ZERO, type,
                             CUSPARSE_ORDER_ROW) == CUSPARSE_STATUS_SUCCESS;
#else
    (void)s, (void)b, (void)type, (void)block_bytes;
    return false;
#endif
}

/* One matrix row of the format after the other: row i of all blocks of the block row, each block
 * row padded to the longest with blocks of column -1. */
static bool make_ell(sparse_state *s, const bench_blocks *b, cudaDataType type, size_t block_bytes)
{
    const size_t line = block_bytes / (size_t)b->size, count = (size_t)b->grid_rows * b->width;
    uint8_t *values = calloc(count + 1, block_bytes);
    int32_t *index = malloc((count + 1) * sizeof *index);
    for (int32_t r = 0; values && index && r < b->grid_rows; r++)
        for (int32_t w = 0; w < b->width; w++) {
            const int32_t e = b->row_start[r] + w;
            const bool kept = e < b->row_start[r + 1];
            index[(size_t)r * b->width + w] = kept ? b->col[e] : -1;
            for (int32_t i = 0; kept && i < b->size; i++)
                memcpy(values + (((size_t)r * b->size + i) * b->width + w) * line,
                       b->values + (size_t)e * block_bytes + i * line, line);
        }
    const bool good = values && index && upload(&s->values, values, count * block_bytes) &&
                      upload(&s->index, index, count * sizeof *index) &&
                      cusparseCreateBlockedEll(&s->blocks, (int64_t)b->grid_rows * b->size,
                                               (int64_t)b->grid_cols * b->size, b->size,
                                               (int64_t)b->width * b->size, s->index, s->values,
                                               CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO,
                                               type) == CUSPARSE_STATUS_SUCCESS;
    free(values);
    free(index);
    return good;
}

static const float one = 1, zero = 0;

/* A right operand has its matrices transposed, which makes them matrices by columns. */
static bool make_rest(sparse_state *s, const bench_gemm *g, const bench_blocks *b,
                      cudaDataType type)
{
    const int64_t rows = (int64_t)b->grid_rows * b->size, cols = (int64_t)b->grid_cols * b->size;
    const int64_t samples = b->is_b ? g->m : g->n;
    const cusparseOrder_t order = b->is_b ? CUSPARSE_ORDER_COL : CUSPARSE_ORDER_ROW;
    const cusparseOperation_t as_is = CUSPARSE_OPERATION_NON_TRANSPOSE;
    size_t bytes = 0;
    return cusparseCreateDnMat(&s->in, cols, samples, b->is_b ? cols : samples, &s->values, type,
                               order) == CUSPARSE_STATUS_SUCCESS &&
           cusparseCreateDnMat(&s->out, rows, samples, b->is_b ? rows : samples, &s->values, type,
                               order) == CUSPARSE_STATUS_SUCCESS &&
           cusparseSpMM_bufferSize(s->handle, as_is, as_is, &one, s->blocks, s->in, &zero, s->out,
                                   CUDA_R_32F, CUSPARSE_SPMM_ALG_DEFAULT,
                                   &bytes) == CUSPARSE_STATUS_SUCCESS &&
           cudaMalloc(&s->buffer, bytes + 16) == cudaSuccess;
}

static void *sparse_prepare(void *library, const bench_gemm *g, const bench_blocks *b, bool is_ell)
{
    const cudaDataType type = g->dtype == BSK_BF16  ? CUDA_R_16BF
                              : g->dtype == BSK_F16 ? CUDA_R_16F
                                                    : CUDA_R_32F;
    const size_t element = g->dtype == BSK_F32 ? 4 : 2;
    const size_t block_bytes = b ? (size_t)b->size * b->size * element : 0;
    /* both formats want whole blocks */
    if (!library || !b || g->dtype == BSK_F64 ||
        (int64_t)b->grid_rows * b->size != (b->is_b ? g->n : g->m) ||
        (int64_t)b->grid_cols * b->size != g->k)
        return NULL;
    sparse_state *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->handle = library;
    s->is_b = b->is_b;
    if ((is_ell ? make_ell(s, b, type, block_bytes) : make_bsr(s, b, type, block_bytes)) &&
        make_rest(s, g, b, type))
        return s;
    sparse_release(s);
    return NULL;
}

static void *ell_prepare(void *library, const bench_gemm *gemm, const bench_blocks *blocks)
{
    return sparse_prepare(library, gemm, blocks, true);
}

static void *bsr_prepare(void *library, const bench_gemm *gemm, const bench_blocks *blocks)
{
    return sparse_prepare(library, gemm, blocks, false);
}

static bool sparse_run(void *p, const void *a, const void *b, void *c)
{
    const sparse_state *s = p;
    const cusparseOperation_t as_is = CUSPARSE_OPERATION_NON_TRANSPOSE;
    /* the library takes writable pointers for operands that it only reads */
    void *in = (void *)(uintptr_t)(s->is_b ? a : b);
    return cusparseDnMatSetValues(s->in, in) == CUSPARSE_STATUS_SUCCESS &&
           cusparseDnMatSetValues(s->out, c) == CUSPARSE_STATUS_SUCCESS &&
           cusparseSpMM(s->handle, as_is, as_is, &one, s->blocks, s->in, &zero, s->out, CUDA_R_32F,
                        CUSPARSE_SPMM_ALG_DEFAULT, s->buffer) == CUSPARSE_STATUS_SUCCESS;
}

const bench_peer *bench_peer_query(int index)
{
    static const bench_peer peers[] = {
        {"cusparse-ell", "cuda", true, 0, &bench_cuda_streams, sparse_version, sparse_open,
         sparse_close, ell_prepare, sparse_run, sparse_release},
        {"cusparse-bsr", "cuda", true, 0, &bench_cuda_streams, sparse_version, sparse_open,
         sparse_close, bsr_prepare, sparse_run, sparse_release},
    };
    return index < 1 + HAS_BSR ? &peers[index] : NULL;
}
