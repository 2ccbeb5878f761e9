/* Rings of slots in shared memory, which barriers hand from producers to consumers and back. */
#ifndef BSKI_CUDA_SM90A_RING_H
#define BSKI_CUDA_SM90A_RING_H

#include <stdint.h>

/* A position in a ring; parity is that of the round. */
template <int SLOTS> struct cursor {
    int slot;
    uint32_t parity;

    __device__ void next()
    {
        if (++slot == SLOTS) {
            slot = 0;
            parity ^= 1;
        }
    }
};

#endif
