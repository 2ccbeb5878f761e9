/* Tensor maps: how the copy engine of Hopper and newer sees a matrix in device memory. */
#ifndef BSKI_CUDA_TENSOR_MAP_H
#define BSKI_CUDA_TENSOR_MAP_H

#include <cuda.h>

#include <backends/cuda/cuda.h>

enum { BSKI_TENSOR_MAX_RANK = 5, BSKI_TENSOR_MAX_BOX = 256 };

/* The driver's encoder, which a plan looks up once: the library does not link with the driver. */
typedef struct bski_cuda_encoder {
    const bski_cuda_device *device;
    const void *function;
} bski_cuda_encoder;

bsk_status bski_cuda_encoder_find(const simt_device *device, bski_cuda_encoder *encoder);

/* A tensor and the box that one copy moves; axes from the innermost, which is contiguous, on.
 * Elements outside of the tensor are read as 0 and not written. f32 is rounded to tf32 on the way, to
 * the nearest, of two the even one, as products of tf32 want it, unless it is to be exact. */
typedef struct bski_cuda_tensor {
    bsk_dtype dtype;
    int32_t rank;
    int64_t dims[BSKI_TENSOR_MAX_RANK];    /* elements, 1 to 2^32 */
    int64_t strides[BSKI_TENSOR_MAX_RANK]; /* elements, multiples of 16 bytes; that of an axis of
                                              length 1 and of axis 0 is not looked at */
    int32_t box[BSKI_TENSOR_MAX_RANK];     /* elements, 1 to 256 */
    int32_t swizzle;                       /* bytes: 0, 32, 64 or 128, and the box's width */
    bool exact;                            /* f32 as it is */
} bski_cuda_tensor;

/* Whether the copy engine takes the tensor at an address that is a multiple of 16. Pure. */
bool bski_cuda_tensor_fits(const bski_cuda_tensor *tensor);

/* Encodes the map of a tensor that fits. Runs on the host alone, so launches may do it. */
bsk_status bski_cuda_tensor_map(const bski_cuda_encoder *encoder, const bski_cuda_tensor *tensor,
                                void *address, CUtensorMap *map);

#endif
