/* The kernels of dsd_ring_device.h for 16-bit types. */
#include <backends/cuda/sm90a/dsd_ring_device.h>

#define RING_ORDERS(type, T)                                                                       \
    RING_NARROW(type, T)                                                                           \
    RING_SIZES(T, type, false, rows, true, nc, 64)                                                 \
    RING_SIZES(T, type, true, cols, true, nc, 64)                                                  \
    RING(T, type, false, rows, false, cn, 64, 16)                                                  \
    RING(T, type, false, rows, false, cn, 64, 32)                                                  \
    RING(T, type, true, cols, false, cn, 64, 16)                                                   \
    RING(T, type, true, cols, false, cn, 64, 32)
FOR_HALVES(RING_ORDERS)
