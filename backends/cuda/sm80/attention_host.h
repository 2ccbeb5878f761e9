/* What the hosts of attention and of decode say of tensors. Include after attention_arg.h. */
#ifndef BSKI_CUDA_SM80_ATTENTION_HOST_H
#define BSKI_CUDA_SM80_ATTENTION_HOST_H

#include <bsk/backend.h>

static inline attention80_heads heads_of(const bsk_tensor *t)
{
    return (attention80_heads){.batch = t->dims[0] > 1 ? t->strides[0] : 0,
                               .head = t->dims[1] > 1 ? t->strides[1] : 0,
                               .time = t->dims[2] > 1 ? t->strides[2] : 0,
                               .type = (i32)t->dtype};
}

/* NULL where the tensor is left out. */
static inline const void *address_of(const bsk_tensor *t, bsk_mem mem)
{
    return t->dtype == BSK_NONE ? NULL : bsk_mem_address(mem);
}

#endif
