/* Expectations about shapes that the descriptors' check functions share. */
#include "api/src/internal.h"

bsk_status bski_expect_dim(const bski_op_info *op, const char *name, const bsk_tensor *tensor,
                           int dim, int64_t expected, const char *what)
{
    if (tensor->dims[dim] == expected)
        return BSK_OK;
    return bski_fail(BSK_E_INVALID, "%s: %s.dims[%d] is %lld; must be %lld (%s)", op->name, name,
                     dim, (long long)tensor->dims[dim], (long long)expected, what);
}

bsk_status bski_expect_shape(const bski_op_info *op, const char *name, const bsk_tensor *tensor,
                             int rank, const int64_t *dims, const char *what)
{
    if (tensor->rank != rank)
        return bski_fail(BSK_E_INVALID, "%s: %s.rank is %d; must be %d (%s)", op->name, name,
                         (int)tensor->rank, rank, what);
    for (int i = 0; i < rank; i++)
        BSKI_TRY(bski_expect_dim(op, name, tensor, i, dims[i], what));
    return BSK_OK;
}

bsk_status bski_expect_vector(const bski_op_info *op, const char *name, const bsk_tensor *tensor,
                              int64_t size, const char *what)
{
    return tensor->dtype == BSK_NONE ? BSK_OK : bski_expect_dim(op, name, tensor, 0, size, what);
}

bsk_status bski_expect_like(const bski_op_info *op, const char *name, const bsk_tensor *tensor,
                            const bsk_tensor *like, const char *what)
{
    return tensor->dtype == BSK_NONE
               ? BSK_OK
               : bski_expect_shape(op, name, tensor, like->rank, like->dims, what);
}

bsk_status bski_expect_broadcast(const bski_op_info *op, const char *name, const bsk_tensor *tensor,
                                 const bsk_tensor *full, const char *what)
{
    bsk_tensor expected = *full;
    if (tensor->dtype == BSK_NONE)
        return BSK_OK;
    for (int i = 0; i < full->rank; i++)
        if (tensor->dims[i] == 1)
            expected.dims[i] = 1;
    return bski_expect_shape(op, name, tensor, full->rank, expected.dims, what);
}

bsk_status bski_expect_one(const bski_op_info *op, const char *name, const bsk_tensor *tensor)
{
    return tensor->dtype == BSK_NONE || tensor->rank == 0
               ? BSK_OK
               : bski_expect_dim(op, name, tensor, 0, 1, "one element");
}
