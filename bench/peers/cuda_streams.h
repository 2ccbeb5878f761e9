/* CUDA streams for the peers that work on device memory. */
#ifndef BSK_BENCH_CUDA_STREAMS_H
#define BSK_BENCH_CUDA_STREAMS_H

#include "bench/peers/peer.h"

extern const bench_streams bench_cuda_streams;

#endif
