/* What the host sides of kernels that go through rows of 16-bit numbers share. */
#ifndef BSKI_CUDA_SM90A_ROWS_H
#define BSKI_CUDA_SM90A_ROWS_H

#include <backends/cuda/cuda.h>
#include <backends/cuda/sm90a/column_sums.h>
#include <common/checked.h>

enum { ROW_RUN = 8 }; /* numbers of 16 bytes */

/* Rows of neighbours, each of which begins at 16 bytes; or an absent tensor. */
static inline bool rows_aligned(const bsk_tensor *t)
{
    return t->dtype == BSK_NONE ||
           (t->strides[1] == 1 && (t->dims[0] <= 1 || t->strides[0] % ROW_RUN == 0));
}

/* The address of an optional argument. */
static inline void *row_address(const bsk_tensor *t, bsk_mem mem)
{
    return t->dtype == BSK_NONE ? NULL : bsk_mem_address(mem);
}

bsk_status bski_cuda_column_sums_prepare(void *device);
bsk_status bski_cuda_column_sums(const bski_cuda_queue *queue, const column_sums_arg *arg);

#endif
