#include "bench/peers/cuda_streams.h"

#include <cuda_runtime_api.h>

static void *stream_create(int device)
{
    cudaStream_t stream = NULL;
    if (cudaSetDevice(device) || cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking))
        return NULL;
    return stream;
}

static void stream_destroy(void *stream)
{
    cudaStreamDestroy(stream);
}

static bool stream_copy(void *stream, void *dst, const void *src, size_t bytes)
{
    return cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream) == cudaSuccess;
}

const bench_streams bench_cuda_streams = {stream_create, stream_destroy, stream_copy};
