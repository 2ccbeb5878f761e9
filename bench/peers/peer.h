/* What a peer module offers: matrix products by another library, to race against. Each module
 * exports bench_peer_query and is loaded at run time, so that the tool does not depend on it. */
#ifndef BSK_BENCH_PEER_H
#define BSK_BENCH_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <bsk/tensor.h>

/* c [m, n] = op(a) [m, k] op(b) [k, n], row-major without gaps, all of one type. */
typedef struct bench_gemm {
    bsk_dtype dtype;
    int64_t m, n, k;
    bool trans_a, trans_b; /* a is stored [k, m], b is stored [n, k] */
    int threads;
} bench_gemm;

/* The block-sparse factor of the same product, in host memory, so that it is the left one: a, or b
 * transposed, without any further transposition. Square blocks, sorted by row, then column. */
typedef struct bench_blocks {
    bool is_b; /* the factor is b transposed: c transposed = blocks * (a transposed) */
    int32_t size, grid_rows, grid_cols;
    int32_t width; /* blocks in the longest block row */
    const int32_t *row_start, *col;
    const uint8_t *values; /* [row_start[grid_rows]][size][size] */
} bench_blocks;

/* Streams of a device, for peers whose operands are device pointers. */
typedef struct bench_streams {
    void *(*create)(int device); /* NULL on failure */
    void (*destroy)(void *stream);
    /* Enqueues a copy within the device's memory. */
    bool (*copy)(void *stream, void *dst, const void *src, size_t bytes);
} bench_streams;

typedef struct bench_peer {
    const char *name;
    const char *backend;  /* "cpu", "cuda": whose memory the operands are in */
    bool sparse;          /* computes with the blocks only, and is not what eta is relative to */
    double operand_error; /* relative error of an operand when it is multiplied: tf32 */
    const bench_streams *streams; /* NULL: host pointers, and run returns when the work is done */
    const char *(*version)(void);
    /* Once for all products, with the stream into which run enqueues. NULL: no library state. */
    void *(*open)(void *stream);
    void (*close)(void *library);
    /* NULL if the library cannot do it. blocks is NULL where the case is a gradient of blocks. */
    void *(*prepare)(void *library, const bench_gemm *gemm, const bench_blocks *blocks);
    bool (*run)(void *state, const void *a, const void *b, void *c);
    void (*release)(void *state);
} bench_peer;

/* The module's peers: index from 0, NULL past the end. */
typedef const bench_peer *(*bench_peer_query_fn)(int index);
#define BENCH_PEER_SYMBOL "bench_peer_query"

__attribute__((visibility("default"))) const bench_peer *bench_peer_query(int index);

#endif
