/* Functions that the special function unit has as instructions. Results that are denormal are 0. */
#ifndef BSKI_CUDA_APPROX_H
#define BSKI_CUDA_APPROX_H

/* 2^x to about two units in the last place. */
static __device__ __forceinline__ float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1 / x to one unit in the last place. */
static __device__ __forceinline__ float reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
