/* Tensor maps for the copy engine. */
#include <backends/cuda/tensor_map.h>
#include <common/checked.h>

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* What the hardware takes. */
enum { STRIDE_UNIT = 16 };
static const int64_t max_dim = INT64_C(1) << 32, max_stride = INT64_C(1) << 40;

bsk_status bski_cuda_encoder_find(const simt_device *device, bski_cuda_encoder *encoder)
{
    encoder->device = (const bski_cuda_device *)device;
    return bski_cuda_driver_find(device->host, "cuTensorMapEncodeTiled", 12000, &encoder->function);
}

typedef struct type_row {
    bsk_dtype dtype;
    CUtensorMapDataType type;
    int64_t size;
} type_row;

static const type_row *type_find(bsk_dtype dtype)
{
    static const type_row rows[] = {
        {BSK_F16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2},
        {BSK_BF16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2},
        {BSK_F32, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].dtype == dtype)
            return &rows[i];
    return NULL;
}

static CUtensorMapSwizzle swizzle_of(int32_t bytes)
{
    return bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
           : bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
           : bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                         : CU_TENSOR_MAP_SWIZZLE_NONE;
}

bool bski_cuda_tensor_fits(const bski_cuda_tensor *t)
{
    const type_row *type = type_find(t->dtype);
    if (!type || t->rank < 1 || t->rank > BSKI_TENSOR_MAX_RANK)
        return false;
    for (int32_t i = 0; i < t->rank; i++) {
        int64_t bytes;
        if (t->dims[i] < 1 || t->dims[i] > max_dim)
            return false;
        if (i == 0 || t->dims[i] == 1)
            continue;
        if (!bski_mul_i64(t->strides[i], type->size, &bytes) || bytes <= 0 || bytes >= max_stride ||
            bytes % STRIDE_UNIT)
            return false;
    }
    return true;
}

bsk_status bski_cuda_tensor_map(const bski_cuda_encoder *encoder, const bski_cuda_tensor *t,
                                void *address, CUtensorMap *map)
{
    /* The driver encodes for threads that have a context. */
    static _Thread_local bool awake;
    const type_row *type = type_find(t->dtype);
    cuuint64_t dims[BSKI_TENSOR_MAX_RANK], strides[BSKI_TENSOR_MAX_RANK];
    cuuint32_t box[BSKI_TENSOR_MAX_RANK], steps[BSKI_TENSOR_MAX_RANK];
    for (int32_t i = 0; i < t->rank; i++) {
        dims[i] = (cuuint64_t)t->dims[i];
        box[i] = (cuuint32_t)t->box[i];
        steps[i] = 1;
        if (i) /* the encoder has none for axis 0, and wants one for axes of length 1 */
            strides[i - 1] =
                t->dims[i] > 1 ? (cuuint64_t)(t->strides[i] * type->size) : STRIDE_UNIT;
    }
    const encode_fn encode = (encode_fn)(uintptr_t)encoder->function;
    const bool plain = t->exact && t->dtype == BSK_F32;
    const CUtensorMapDataType kind = plain ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : type->type;
    CUresult result = CUDA_ERROR_INVALID_CONTEXT;
    for (int i = 0; i < 2 && result == CUDA_ERROR_INVALID_CONTEXT; i++) {
        if (i || !awake)
            TRY(bski_cuda_wake(encoder->device));
        awake = true;
        result = encode(map, kind, (cuuint32_t)t->rank, address, dims, strides, box, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(t->swizzle),
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    }
    const bsk_host *host = encoder->device->simt.host;
    if (result != CUDA_SUCCESS)
        return host->fail(host->context, BSK_E_DEVICE, "cuda: a tensor map: error %d", (int)result);
    return BSK_OK;
}
