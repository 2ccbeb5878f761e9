/* A tensor map, as the emulated encoder leaves it in the 128 bytes of a CUtensorMap. */
#ifndef BSK_EMU_CUDA_TENSOR_H
#define BSK_EMU_CUDA_TENSOR_H

#include <stdint.h>

enum { TENSOR_RANK = 5, TENSOR_ROW_BYTES = 1024 };
#define TENSOR_MARK UINT64_C(0x746e736f7220706d)

typedef struct tensor_map {
    uint64_t mark;
    char *address;
    uint64_t strides[TENSOR_RANK - 1]; /* bytes; axis 0 is contiguous */
    uint64_t dims[TENSOR_RANK];
    uint16_t box[TENSOR_RANK];
    uint8_t size, rank; /* size: of an element */
    uint8_t swizzle;    /* address bits 4 to 6 that change: 0, 1, 3 or 7 */
    uint8_t tf32;       /* f32 that loads round */
} tensor_map;

_Static_assert(sizeof(tensor_map) <= 128, "fits a CUtensorMap");

#endif
