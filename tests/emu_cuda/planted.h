/* Kernels with one fault each, for the tests of the emulator, and their sound form (SOUND). */
#ifndef BSK_EMU_CUDA_PLANTED_H
#define BSK_EMU_CUDA_PLANTED_H

#include <stdint.h>

enum { PLANTED_LANES = 64, PLANTED_SIZE = 64 /* of the matrices */ };

typedef enum planted_fault {
    SOUND,
    /* planted_lanes */
    NO_BARRIER,
    NO_ASYNC_WAIT,
    HALF_BARRIER,
    OUT_OF_BOUNDS,
    OUT_OF_MEMORY,
    PAST_SHARED,
    PAST_MEMORY,
    MISALIGNED,
    WRONG_MASK,
    DIVERGENT,
    REGISTERS,
    /* planted_product */
    NO_INIT,
    NO_COPY_WAIT,
    FEW_BYTES,
    MANY_BYTES,
    MISPLACED,
    UNSWIZZLED,
    WRONG_STRIDE,
    NO_FENCE,
    NO_PRODUCT_WAIT,
    EARLY_READ,
    EARLY_STORE,
    LANES_DIFFER,
    /* planted_cluster */
    NO_FIRST_SYNC,
    NO_LAST_SYNC,
    OTHER_MASK,
    /* planted_store */
    NO_STORE_WAIT,
    OVERWRITTEN,
    /* planted_tensor */
    OTHER_LANES,
    EARLY_COLUMNS,
    NO_FENCE_BEFORE,
    NO_FENCE_AFTER,
    NO_COLUMNS_WAIT,
    EARLY_COLUMNS_STORE,
    EARLY_OPERAND_STORE,
    NO_COMMIT,
    NOT_GIVEN,
    HALF_GIVEN,
    TAKEN_LATE,
    NOT_TAKEN,
    RESERVED_KIND,
    RESERVED_OPERAND,
    ODD_COLUMNS,
    WRONG_MAJOR,
    WHOLE_WARP,
    OTHER_SUMS,
    SUMS_READ,
} planted_fault;

typedef struct planted_arg {
    const float *x;
    float *y;
    int32_t fault;
} planted_arg;

#endif
