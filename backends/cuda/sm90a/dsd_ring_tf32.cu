/* The kernels of dsd_ring_device.h for f32 that is rounded to tf32, with blocks of 8 for b along the
 * depth too: of 16-bit types dsd_narrow has these. */
#include <backends/cuda/sm90a/dsd_ring_device.h>

RING_NARROW(tf32, float)
RING_SIZES(float, tf32, false, rows, true, nc, 8)
RING_SIZES(float, tf32, true, cols, true, nc, 8)
