/* The functions of the backend's header of this name, on the emulator. */
#ifndef BSKI_CUDA_APPROX_H
#define BSKI_CUDA_APPROX_H

static inline float power_of_two(float x)
{
    return x < -126 ? 0 : exp2f(x);
}

static inline float reciprocal(float x)
{
    return fabsf(x) > 0x1p126f ? copysignf(0, x) : 1 / x;
}

#endif
