/* What a peer module offers: dense matrix products by another library, to race against. Each module
 * exports bench_peer_query and is loaded at run time, so that the tool does not depend on it. */
#ifndef BSK_BENCH_PEER_H
#define BSK_BENCH_PEER_H

#include <stdbool.h>
#include <stdint.h>

#include <bsk/tensor.h>

/* c [m, n] = op(a) [m, k] op(b) [k, n], row-major without gaps, all of one type. */
typedef struct bench_gemm {
    bsk_dtype dtype;
    int64_t m, n, k;
    bool trans_a, trans_b; /* a is stored [k, m], b is stored [n, k] */
    int threads;
} bench_gemm;

typedef struct bench_peer {
    const char *name;
    const char *(*version)(void);
    /* NULL if the library cannot do it. */
    void *(*prepare)(const bench_gemm *gemm);
    bool (*run)(void *state, const void *a, const void *b, void *c);
    void (*release)(void *state);
} bench_peer;

typedef const bench_peer *(*bench_peer_query_fn)(void);
#define BENCH_PEER_SYMBOL "bench_peer_query"

__attribute__((visibility("default"))) const bench_peer *bench_peer_query(void);

#endif
