/* Numbers of f8 as f16, for kernels of sm90a. */
#ifndef BSKI_CUDA_SM90A_F8_DEVICE_H
#define BSKI_CUDA_SM90A_F8_DEVICE_H

#include <backends/cuda/ptx.h>

/* Four numbers. e5m2 is the upper half of f16. */
PTX_FN uint2 f8_to_f16(uint32_t four, bool e5m2)
{
    if (e5m2)
        return make_uint2(__byte_perm(four, 0, 0x1404), __byte_perm(four, 0, 0x3424));
    return make_uint2(e4m3_to_f16((uint16_t)four), e4m3_to_f16((uint16_t)(four >> 16)));
}

#endif
