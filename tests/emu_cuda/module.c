/* The CUDA backend's entries and host side on the emulated device, under a name of its own. */
#define bsk_backend_query_v1 cuda_backend_query
#include <backends/cuda/module.c>
#undef bsk_backend_query_v1

BSK_API const bsk_backend *bsk_backend_query_v1(const bsk_host *host);

const bsk_backend *bsk_backend_query_v1(const bsk_host *host)
{
    static bsk_backend emulated;
    const bsk_backend *real = cuda_backend_query(host);
    if (!real)
        return NULL;
    emulated = *real;
    emulated.name = "cuda_emu";
    return &emulated;
}
