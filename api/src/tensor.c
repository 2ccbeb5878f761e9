/* Types, tensor descriptions and their measures. */
#include <stdio.h>
#include <string.h>

#include "api/src/internal.h"
#include "common/checked.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[BSK_DTYPE_COUNT] = {
    [BSK_NONE] = {"none", 0},     [BSK_F64] = {"f64", 8},       [BSK_F32] = {"f32", 4},
    [BSK_F16] = {"f16", 2},       [BSK_BF16] = {"bf16", 2},     [BSK_I64] = {"i64", 8},
    [BSK_I32] = {"i32", 4},       [BSK_U16] = {"u16", 2},       [BSK_U8] = {"u8", 1},
    [BSK_F8E4M3] = {"f8e4m3", 1}, [BSK_F8E5M2] = {"f8e5m2", 1}, [BSK_I8] = {"i8", 1},
};

size_t bsk_dtype_size(bsk_dtype dtype)
{
    return (unsigned)dtype < BSK_DTYPE_COUNT ? dtypes[dtype].size : 0;
}

const char *bsk_dtype_name(bsk_dtype dtype)
{
    return (unsigned)dtype < BSK_DTYPE_COUNT ? dtypes[dtype].name : "?";
}

bsk_dtype bsk_dtype_parse(const char *name)
{
    for (int i = 1; name && i < BSK_DTYPE_COUNT; i++)
        if (!strcmp(name, dtypes[i].name))
            return (bsk_dtype)i;
    return BSK_NONE;
}

bsk_status bski_dtype_check(const char *op, const char *name, bsk_dtype dtype, uint32_t mask)
{
    if ((unsigned)dtype < BSK_DTYPE_COUNT && mask >> dtype & 1)
        return BSK_OK;
    char legal[80] = "";
    for (int i = 1; i < BSK_DTYPE_COUNT; i++)
        if (mask >> i & 1) {
            const size_t used = strlen(legal);
            snprintf(legal + used, sizeof(legal) - used, " %s", bsk_dtype_name((bsk_dtype)i));
        }
    return bski_fail(BSK_E_INVALID, "%s: %s.dtype is %s (%d); legal are%s", op, name,
                     bsk_dtype_name(dtype), (int)dtype, legal);
}

void bski_tensor_normalise(bsk_tensor *tensor)
{
    for (int i = 0; i < tensor->rank; i++)
        if (tensor->strides[i])
            return;
    int64_t stride = 1;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        tensor->strides[i] = stride;
        stride *= tensor->dims[i] > 0 ? tensor->dims[i] : 1;
    }
}

bsk_status bski_tensor_check(const char *op, const char *name, const bsk_tensor *tensor,
                             int64_t *elements, size_t *bytes)
{
    size_t size = bsk_dtype_size(tensor->dtype);
    if (!size)
        return bski_fail(BSK_E_INVALID, "%s: %s.dtype is %d; legal are 1 to %d", op, name,
                         (int)tensor->dtype, BSK_DTYPE_COUNT - 1);
    if (tensor->rank < 0 || tensor->rank > BSK_MAX_RANK)
        return bski_fail(BSK_E_INVALID, "%s: %s.rank is %d; legal are 0 to %d", op, name,
                         (int)tensor->rank, BSK_MAX_RANK);
    bool contiguous = true;
    for (int i = 0; i < tensor->rank; i++)
        contiguous &= tensor->strides[i] == 0;

    int64_t count = 1, last = 0, stride = 1, total = (int64_t)size;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        int64_t dim = tensor->dims[i], step = contiguous ? stride : tensor->strides[i];
        if (dim < 0)
            return bski_fail(BSK_E_INVALID, "%s: %s.dims[%d] is %lld; must not be negative", op,
                             name, i, (long long)dim);
        if (step < 0)
            return bski_fail(BSK_E_INVALID, "%s: %s.strides[%d] is %lld; must not be negative", op,
                             name, i, (long long)step);
        int64_t reach = 0;
        const bool fits =
            bski_mul_i64(count, dim, &count) && bski_mul_i64(stride, dim > 0 ? dim : 1, &stride) &&
            bski_mul_i64(dim > 0 ? dim - 1 : 0, step, &reach) && bski_add_i64(last, reach, &last) &&
            bski_add_i64(last, 1, &total) && bski_mul_i64(total, (int64_t)size, &total) &&
            (uint64_t)total <= SIZE_MAX / 2;
        if (!fits)
            return bski_fail(BSK_E_INVALID,
                             "%s: %s.dims[%d] is %lld with a stride of %lld; legal is a tensor of "
                             "at most %zu bytes",
                             op, name, i, (long long)dim, (long long)step, SIZE_MAX / 2);
    }
    if (elements)
        *elements = count;
    *bytes = count ? (size_t)total : 0;
    return BSK_OK;
}

bool bski_is_contiguous(const bsk_tensor *t, int first)
{
    int64_t stride = 1;
    for (int i = t->rank - 1; i >= first; i--) {
        if (t->dims[i] > 1 && t->strides[i] != stride)
            return false;
        stride *= t->dims[i] > 0 ? t->dims[i] : 1;
    }
    return true;
}

bsk_status bsk_tensor_bytes(const bsk_tensor *tensor, size_t *bytes)
{
    if (!tensor || !bytes)
        return bski_fail(BSK_E_INVALID, "bsk_tensor_bytes: %s is NULL",
                         tensor ? "bytes" : "tensor");
    return bski_tensor_check("bsk_tensor_bytes", "tensor", tensor, NULL, bytes);
}
