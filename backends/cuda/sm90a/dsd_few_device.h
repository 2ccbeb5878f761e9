/* What the kernels of dsd for a small minibatch share on the device. */
#ifndef BSKI_CUDA_SM90A_DSD_FEW_DEVICE_H
#define BSKI_CUDA_SM90A_DSD_FEW_DEVICE_H

#include <string.h>

#include <backends/cuda/mma.h>
#include <backends/cuda/ptx.h>
#include <backends/cuda/sm90a/dsd_few.h>

/* Where a run's weights begin. */
PTX_FN const char *weights_address(const char *base, uint32_t run)
{
    return base + (uint64_t)run * 16;
}

/* Where a run's activations begin: the upper bits fall out of 32 bits with the place in bytes. */
PTX_FN const char *lines_address(const char *base, uint32_t run)
{
    return base + (run << 4);
}

/* Stores a run of sums. The plain end apart: all that dsd_finish can do takes long to fetch. */
PTX_FN void run_store(const dsd_epilogue &e, float (&v)[DSD_RUN], int64_t feature, int64_t n)
{
    if ((!e.plain && !e.plain_n) || e.bias) {
        dsd_finish(e, v, feature, n, 0);
        return;
    }
    if (feature >= e.features)
        return;
#pragma unroll
    for (int i = 0; i < DSD_RUN; i++)
        v[i] *= e.alpha;
    const bool bf16 = e.c.type == BSK_BF16;
    *(uint4 *)(e.c.data + (feature * e.c.feature + n * e.c.n) * 2) =
        make_uint4(dsd_pack(bf16, v[0], v[1]), dsd_pack(bf16, v[2], v[3]),
                   dsd_pack(bf16, v[4], v[5]), dsd_pack(bf16, v[6], v[7]));
}

#endif
