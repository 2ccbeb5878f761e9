/* The words that describe a product of tcgen05 and its operands in shared memory. */
#ifndef BSKI_CUDA_SM100A_DESCRIPTOR_H
#define BSKI_CUDA_SM100A_DESCRIPTOR_H

#include <backends/cuda/ptx.h>

/* An operand in rows of 128 bytes, swizzled, in groups of 8 rows (1024 bytes, aligned so). K-major:
 * a step of 16 along K is 32 bytes. M- or N-major: groups of 8 k follow each other, `leading` is
 * from 64 features to the next 64, and a step of 16 along K is 2048 bytes. */
PTX_FN uint64_t tensor_operand(uint32_t address, uint32_t leading)
{
    enum { GROUP = 1024, VERSION = 1, SWIZZLE = 2 };
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(GROUP >> 4) << 32 | (uint64_t)VERSION << 46 | (uint64_t)SWIZZLE << 61;
}

/* A product's kind: f32 sums of `rows` (64 or 128) x `columns` of a 16-bit type. */
PTX_FN uint32_t tensor_kind(bool bf16, bool a_m_major, bool b_n_major, uint32_t rows,
                            uint32_t columns)
{
    enum { SUMS_F32 = 1 };
    const uint32_t type = bf16;
    return SUMS_F32 << 4 | type << 7 | type << 10 | (uint32_t)a_m_major << 15 |
           (uint32_t)b_n_major << 16 | columns >> 3 << 17 | rows >> 4 << 24;
}

#endif
