/* The list of all public ops. A new op is one line here, or, where it is a kernel op, one line in
 * BSK_KERNEL_OPS. */
#include <string.h>

#include "api/src/op.h"

#define LOWERED_OPS(X)                                                                             \
    X(matmul)                                                                                      \
    X(matmul_dgrad)                                                                                \
    X(matmul_wgrad)                                                                                \
    X(dds)                                                                                         \
    X(assign_add)                                                                                  \
    X(transpose_2d)                                                                                \
    X(transpose_0213)                                                                              \
    X(reduce_max_grad)                                                                             \
    X(fancy_gather)                                                                                \
    X(fancy_gather_grad)                                                                           \
    X(topk_grad)                                                                                   \
    X(rms_norm)                                                                                    \
    X(rms_norm_grad)                                                                               \
    X(masked_topk_softmax)                                                                         \
    X(attn_apply_t)

#define DECLARE(name)                        extern const bski_op_info bski_op_##name;
#define DECLARE_KERNEL(upper, lower, params) DECLARE(lower)
LOWERED_OPS(DECLARE)
BSK_KERNEL_OPS(DECLARE_KERNEL)

#define ADDRESS(name)                        &bski_op_##name,
#define ADDRESS_KERNEL(upper, lower, params) &bski_op_##lower,
/* Kernel ops first, in the order of bsk_op. */
const bski_op_info *const bski_ops[] = {BSK_KERNEL_OPS(ADDRESS_KERNEL) LOWERED_OPS(ADDRESS)};
const size_t bski_op_count = BSKI_COUNT(bski_ops);

const bski_op_info *bski_kernel_op(bsk_op op)
{
    return bski_ops[op];
}

const bski_op_info *bski_op_find(const char *name)
{
    for (size_t i = 0; i < bski_op_count; i++)
        if (!strcmp(bski_ops[i]->name, name))
            return bski_ops[i];
    return NULL;
}
