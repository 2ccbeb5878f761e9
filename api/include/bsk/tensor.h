/* Types, tensor descriptions and memory views. Part of bsk; include <bsk/bsk.h>. */
#ifndef BSK_TENSOR_H
#define BSK_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include <bsk/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Storage types. Arithmetic is f32 for every float of 32 bits or fewer, f64 for f64, and i32 for
 * products of i8. */
typedef enum bsk_dtype {
    BSK_NONE = 0, /* an absent tensor */
    BSK_F64 = 1,
    BSK_F32 = 2,
    BSK_F16 = 3,  /* IEEE binary16; stores overflow to infinity */
    BSK_BF16 = 4, /* upper half of a binary32, rounded to nearest even; of norms, softmax and their
                   * gradients, which are rounded before, what then lies halfway may go either way */
    BSK_I64 = 5,
    BSK_I32 = 6,
    BSK_U16 = 7,
    BSK_U8 = 8,
    BSK_F8E4M3 = 9,  /* 8 bits, no infinity: up to 448; stores saturate */
    BSK_F8E5M2 = 10, /* 8 bits, the upper half of a binary16: up to 57344; stores saturate */
    BSK_I8 = 11,     /* a number, not an index: stores round to nearest even and saturate */
    BSK_DTYPE_COUNT = 12,
    BSK_DTYPE_FORCE_INT = 0x7fffffff
} bsk_dtype;

/* Which axis of an activation tensor holds the features.
 * BSK_NC: [N, features], features contiguous. BSK_CN: [features, N], N contiguous. */
typedef enum bsk_axis { BSK_NC = 0, BSK_CN = 1, BSK_AXIS_FORCE_INT = 0x7fffffff } bsk_axis;

enum { BSK_MAX_RANK = 5 };

/* A tensor's description: type, shape and strides, without memory. Given at plan time.
 * Strides count elements; if all are zero the tensor is contiguous, last dimension fastest.
 * A stride of zero in a dimension larger than 1 repeats the data and is legal for inputs only.
 * Negative strides are not legal. dtype BSK_NONE means that an optional tensor is absent.
 * Thread-safety: a plain value. */
typedef struct bsk_tensor {
    bsk_dtype dtype;
    int32_t rank;
    int64_t dims[BSK_MAX_RANK];
    int64_t strides[BSK_MAX_RANK];
} bsk_tensor;

static inline bsk_tensor bsk_tensor_1d(bsk_dtype dtype, int64_t d0)
{
    bsk_tensor t = {dtype, 1, {d0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}};
    return t;
}

static inline bsk_tensor bsk_tensor_2d(bsk_dtype dtype, int64_t d0, int64_t d1)
{
    bsk_tensor t = {dtype, 2, {d0, d1, 0, 0, 0}, {0, 0, 0, 0, 0}};
    return t;
}

static inline bsk_tensor bsk_tensor_3d(bsk_dtype dtype, int64_t d0, int64_t d1, int64_t d2)
{
    bsk_tensor t = {dtype, 3, {d0, d1, d2, 0, 0}, {0, 0, 0, 0, 0}};
    return t;
}

/* A matrix with a leading dimension: element (i, j) lies at i * ld + j. */
static inline bsk_tensor bsk_tensor_ld(bsk_dtype dtype, int64_t rows, int64_t cols, int64_t ld)
{
    bsk_tensor t = {dtype, 2, {rows, cols, 0, 0, 0}, {ld, 1, 0, 0, 0}};
    return t;
}

/* Bytes of one element; 0 for BSK_NONE and unknown values. */
BSK_API size_t bsk_dtype_size(bsk_dtype dtype);

/* "f32", "bf16" ...; "none" and "?" for the rest. */
BSK_API const char *bsk_dtype_name(bsk_dtype dtype);

/* The inverse of bsk_dtype_name; BSK_NONE if the name is unknown. */
BSK_API bsk_dtype bsk_dtype_parse(const char *name);

/* Bytes from the first to one past the last element that the description reaches.
 * Errors: INVALID for a bad type, rank, dimension or stride, or when the size overflows. */
BSK_API bsk_status bsk_tensor_bytes(const bsk_tensor *tensor, size_t *bytes);

/* Where a memory view points. */
typedef enum bsk_mem_kind {
    BSK_MEM_NULL = 0,   /* no memory: an absent optional argument */
    BSK_MEM_HOST = 1,   /* handle is a host pointer */
    BSK_MEM_DEVICE = 2, /* handle is a device pointer (CUDA, HIP, OpenCL SVM) */
    BSK_MEM_CL = 3,     /* handle is a cl_mem */
    BSK_MEM_KIND_FORCE_INT = 0x7fffffff
} bsk_mem_kind;

/* A view of memory. Owns nothing. size is the number of usable bytes after offset; where it is
 * given, runs check it against the tensor's description; 0 means unknown, which is legal for operands
 * but not for a workspace or a packed image.
 * Thread-safety: a plain value. */
typedef struct bsk_mem {
    bsk_mem_kind kind;
    void *handle;
    size_t offset; /* bytes */
    size_t size;   /* bytes after offset, or 0 */
} bsk_mem;

/* Views of a host pointer, and of a device pointer, of unknown size. */
static inline bsk_mem bsk_host_ptr(const void *pointer)
{
    bsk_mem m = {BSK_MEM_NULL, NULL, 0, 0};
    if (pointer) {
        m.kind = BSK_MEM_HOST;
        m.handle = (void *)(uintptr_t)pointer;
    }
    return m;
}

static inline bsk_mem bsk_device_ptr(const void *pointer)
{
    bsk_mem m = bsk_host_ptr(pointer);
    if (pointer)
        m.kind = BSK_MEM_DEVICE;
    return m;
}

/* The same memory, from byte offset on. Sizes shrink accordingly; an offset beyond a known size
 * gives a view that no run accepts. */
static inline bsk_mem bsk_mem_at(bsk_mem m, size_t offset)
{
    if (m.size && offset >= m.size) {
        m.kind = BSK_MEM_NULL;
        m.handle = NULL;
        m.size = 0;
        return m;
    }
    m.offset += offset;
    if (m.size)
        m.size -= offset;
    return m;
}

/* Initialiser of every params and args struct: sets struct_size, and zero, which means the
 * default, in all other fields. BSK_INIT_ALPHA also sets alpha = 1, for args with alpha, beta.
 *     bsk_matmul_params p = BSK_INIT(bsk_matmul_params);
 *     bsk_matmul_args a = BSK_INIT_ALPHA(bsk_matmul_args); */
#ifdef __cplusplus
extern "C++" {
template <class T> inline T bsk_init_struct(void)
{
    T t = T();
    t.struct_size = sizeof(T);
    return t;
}
template <class T> inline T bsk_init_alpha_struct(void)
{
    T t = bsk_init_struct<T>();
    t.alpha = 1.0;
    return t;
}
}
#define BSK_INIT(type)       bsk_init_struct<type>()
#define BSK_INIT_ALPHA(type) bsk_init_alpha_struct<type>()
#else /* by name, so that compilers do not warn of the fields that are left out */
#define BSK_INIT(type)                                                                             \
    {                                                                                              \
        .struct_size = sizeof(type)                                                                \
    }
#define BSK_INIT_ALPHA(type)                                                                       \
    {                                                                                              \
        .struct_size = sizeof(type), .alpha = 1.0                                                  \
    }
#endif

#ifdef __cplusplus
}
#endif
#endif
