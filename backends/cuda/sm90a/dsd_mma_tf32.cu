/* Kernels of dsd_mma_device.h for f32 that is rounded to tf32. */
#include <backends/cuda/sm90a/dsd_mma_device.h>

#define KERNELS_AXIS(axis, cn)                                                                     \
    DSD_MMA_KERNELS(tf32, tf32, 8, axis, cn, wide, DSD_MMA_WIDE)                                   \
    DSD_MMA_KERNELS(tf32, tf32, 16, axis, cn, wide, DSD_MMA_WIDE)                                  \
    DSD_MMA_KERNELS(tf32, tf32, 32, axis, cn, wide, DSD_MMA_WIDE)
KERNELS_AXIS(nc, false)
KERNELS_AXIS(cn, true)
