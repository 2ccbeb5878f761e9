/* oneDNN: the matmul primitive in f32, bf16 and f16. */
#include <stdio.h>
#include <stdlib.h>

#include <dnnl.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "bench/peers/peer.h"

typedef struct dnn_state {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c;
} dnn_state;

static const char *dnn_version(void)
{
    static char text[32];
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, sizeof text, "%d.%d.%d", v->major, v->minor, v->patch);
    return text;
}

static void dnn_release(void *p)
{
    dnn_state *s = p;
    if (!s)
        return;
    dnnl_memory_destroy(s->a);
    dnnl_memory_destroy(s->b);
    dnnl_memory_destroy(s->c);
    dnnl_primitive_destroy(s->primitive);
    dnnl_stream_destroy(s->stream);
    dnnl_engine_destroy(s->engine);
    free(s);
}

static bool matrix(dnnl_memory_desc_t *md, int64_t rows, int64_t cols, bool trans,
                   dnnl_data_type_t type)
{
    dnnl_dims_t dims = {rows, cols}, strides = {trans ? 1 : cols, trans ? rows : 1};
    return dnnl_memory_desc_init_by_strides(md, 2, dims, type, strides) == dnnl_success;
}

static bool dnn_build(dnn_state *s, const bench_gemm *g, dnnl_data_type_t type)
{
    dnnl_memory_desc_t a, b, c;
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t description = NULL;
    bool good =
        dnnl_engine_create(&s->engine, dnnl_cpu, 0) == dnnl_success &&
        dnnl_stream_create(&s->stream, s->engine, dnnl_stream_default_flags) == dnnl_success &&
        matrix(&a, g->m, g->k, g->trans_a, type) && matrix(&b, g->k, g->n, g->trans_b, type) &&
        matrix(&c, g->m, g->n, false, type) &&
        dnnl_matmul_desc_init(&matmul, &a, &b, NULL, &c) == dnnl_success &&
        dnnl_primitive_desc_create(&description, &matmul, NULL, s->engine, NULL) == dnnl_success &&
        dnnl_primitive_create(&s->primitive, description) == dnnl_success &&
        dnnl_memory_create(&s->a, &a, s->engine, DNNL_MEMORY_NONE) == dnnl_success &&
        dnnl_memory_create(&s->b, &b, s->engine, DNNL_MEMORY_NONE) == dnnl_success &&
        dnnl_memory_create(&s->c, &c, s->engine, DNNL_MEMORY_NONE) == dnnl_success;
    if (description)
        dnnl_primitive_desc_destroy(description);
    return good;
}

static void *dnn_prepare(void *library, const bench_gemm *g, const bench_blocks *blocks)
{
    (void)library, (void)blocks;
    dnnl_data_type_t type = g->dtype == BSK_F32    ? dnnl_f32
                            : g->dtype == BSK_BF16 ? dnnl_bf16
                            : g->dtype == BSK_F16  ? dnnl_f16
                                                   : dnnl_data_type_undef;
    if (type == dnnl_data_type_undef)
        return NULL;
#ifdef _OPENMP
    omp_set_num_threads(g->threads);
#endif
    dnn_state *s = calloc(1, sizeof *s);
    if (s && !dnn_build(s, g, type)) {
        dnn_release(s);
        s = NULL;
    }
    return s;
}

/* The library takes writable pointers for operands that it only reads. */
static void *writable(const void *p)
{
    return (void *)(uintptr_t)p;
}

static bool dnn_run(void *p, const void *a, const void *b, void *c)
{
    dnn_state *s = p;
    dnnl_exec_arg_t args[3] = {
        {DNNL_ARG_SRC, s->a}, {DNNL_ARG_WEIGHTS, s->b}, {DNNL_ARG_DST, s->c}};
    return dnnl_memory_set_data_handle(s->a, writable(a)) == dnnl_success &&
           dnnl_memory_set_data_handle(s->b, writable(b)) == dnnl_success &&
           dnnl_memory_set_data_handle(s->c, c) == dnnl_success &&
           dnnl_primitive_execute(s->primitive, s->stream, 3, args) == dnnl_success &&
           dnnl_stream_wait(s->stream) == dnnl_success;
}

const bench_peer *bench_peer_query(int index)
{
    static const bench_peer peer = {.name = "onednn",
                                    .backend = "cpu",
                                    .version = dnn_version,
                                    .prepare = dnn_prepare,
                                    .run = dnn_run,
                                    .release = dnn_release};
    return index ? NULL : &peer;
}
