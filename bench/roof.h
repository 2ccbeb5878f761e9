/* What this machine can do at most: the figures that measured rates are divided by. */
#ifndef BSKI_ROOF_H
#define BSKI_ROOF_H

#include <stdbool.h>
#include <stddef.h>

#include <bsk/tensor.h>

/* Multiply-add rate in FLOP/s (two per multiply-add) of `threads` threads that work in registers
 * only, with the widest instructions of the processor that entries for `arch` (a rank of the CPU
 * backend) may use. type: BSK_F64; BSK_BF16 or BSK_I8, for the rate of their dot products or matrix
 * tiles where there are any; or any other narrower float for the f32 rate, in which all of them are
 * computed. The best of several short runs. */
double bski_roof_flops(int threads, bsk_dtype type, int32_t arch);

/* Passes over memory far beyond the caches, as `threads` threads. */
typedef struct bski_stream {
    char *from, *to; /* 256 MiB each; NULL where there was no memory */
    size_t part;     /* bytes of a thread */
    int threads;
} bski_stream;

/* Each in two forms, of which now one and now the other is faster: stores through the caches or past
 * them, reads with the help of prefetches or without. */
typedef enum bski_pass {
    BSKI_COPY,
    BSKI_COPY_PAST,
    BSKI_READ,
    BSKI_READ_AHEAD,
} bski_pass;

bool bski_stream_open(bski_stream *s, int threads);
void bski_stream_close(bski_stream *s);
void bski_stream_run(const bski_stream *s, bski_pass pass);
/* Of a pass, read and written bytes counted. */
double bski_stream_bytes(const bski_stream *s, bski_pass pass);
/* Bytes per second of the better form of BSKI_COPY or BSKI_READ, the best of several passes. */
double bski_stream_rate(const bski_stream *s, bski_pass pass);

#endif
