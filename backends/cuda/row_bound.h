/* The log-sum-exp of a row of scores as the kernels of attention's gradients use it. */
#ifndef BSKI_CUDA_ROW_BOUND_H
#define BSKI_CUDA_ROW_BOUND_H

#define LOG2_E 1.44269504088896341f

/* In units of the binary logarithm; infinity makes all shares of a row that sees nothing 0. */
static __device__ __forceinline__ float row_bound(float lse)
{
    return lse == -INFINITY ? INFINITY : lse * LOG2_E;
}

#endif
