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

#endif
