/* OpenBLAS: sgemm and dgemm. */
#include <stdlib.h>

#include <cblas.h>

#include "bench/peers/peer.h"

static const char *blas_version(void)
{
    return openblas_get_config();
}

static void *blas_prepare(void *library, const bench_gemm *gemm, const bench_blocks *blocks)
{
    (void)library, (void)blocks;
    if (gemm->dtype != BSK_F32 && gemm->dtype != BSK_F64)
        return NULL;
    if (gemm->m > INT32_MAX || gemm->n > INT32_MAX || gemm->k > INT32_MAX)
        return NULL;
    bench_gemm *state = malloc(sizeof *state);
    if (state)
        *state = *gemm;
    return state;
}

static bool blas_run(void *p, const void *a, const void *b, void *c)
{
    const bench_gemm *g = p;
    blasint m = (blasint)g->m, n = (blasint)g->n, k = (blasint)g->k;
    enum CBLAS_TRANSPOSE ta = g->trans_a ? CblasTrans : CblasNoTrans;
    enum CBLAS_TRANSPOSE tb = g->trans_b ? CblasTrans : CblasNoTrans;
    blasint lda = g->trans_a ? m : k, ldb = g->trans_b ? k : n;
    openblas_set_num_threads(g->threads);
    if (g->dtype == BSK_F32)
        cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1, a, lda, b, ldb, 0, c, n);
    else
        cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, 1, a, lda, b, ldb, 0, c, n);
    return true;
}

const bench_peer *bench_peer_query(int index)
{
    static const bench_peer peer = {.name = "openblas",
                                    .backend = "cpu",
                                    .version = blas_version,
                                    .prepare = blas_prepare,
                                    .run = blas_run,
                                    .release = free};
    return index ? NULL : &peer;
}
