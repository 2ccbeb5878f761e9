/* Shared by the dense ops: rows of f32 numbers in short buffers, so that one loop serves every
 * storage type. Buffers hold whole vectors; what lies behind the row's end is padding, which sums
 * expect to be neutral. Work is shared out in pieces that depend on shapes only, and each piece is
 * summed in one order: results do not depend on the number of threads. */
#ifndef BSKI_OMP_DENSE_H
#define BSKI_OMP_DENSE_H

#include <stdbool.h>

#include "act.h"
#include "rows.h"

/* Elements of a buffer; of the part of one that is loaded, worked on and written at once where memory
 * is the limit, so small that it is read and written all the time; of the longest row that is kept in
 * one; and of the padding's unit. */
enum { CHUNK = 1024, STRETCH = 256, ROW = 4096, PAD = 4 * F32_LANES };

/* Outputs of this many bytes go past the caches, which they would only sweep out. */
enum { STREAM_BYTES = 16 << 20 };

/* Entries that need no workspace. */
#define OMP_PREPARE_NONE(stem)                                                                     \
    OMP_PREPARE(stem)                                                                              \
    {                                                                                              \
        (void)device;                                                                              \
        (void)prepared;                                                                            \
        return BSK_OK;                                                                             \
    }

static inline bool axis_contiguous(const bsk_tensor *t, int32_t axis)
{
    return t->dtype == BSK_NONE || t->dims[axis] <= 1 || t->strides[axis] == 1;
}

/* Absent, or a float that f32 holds. */
static inline bool is_narrow(const bsk_tensor *t)
{
    return t->dtype == BSK_NONE || t->dtype == BSK_F32 || t->dtype == BSK_F16 ||
           t->dtype == BSK_BF16;
}

/* Bytes of an element of any type. */
static inline size_t element_size(bsk_dtype type)
{
    return type == BSK_I64 ? 8 : type == BSK_I32 ? 4 : type >= BSK_U8 ? 1 : type_size(type);
}

/* The axis along which all the matrices are contiguous, or -1. */
static inline int32_t common_axis(const bsk_tensor *const *tensors, int count)
{
    for (int32_t axis = 1; axis >= 0; axis--) {
        bool all = true;
        for (int i = 0; i < count; i++)
            all = all && axis_contiguous(tensors[i], axis);
        if (all)
            return axis;
    }
    return -1;
}

/* Ops on activations walk `outer` rows of `inner` contiguous elements. */
typedef struct act_shape {
    int32_t axis; /* the contiguous one */
    int64_t outer, inner;
    bool features_inner;
} act_shape;

static inline act_shape act_shape_of(const bsk_tensor *t, bsk_axis axis, int32_t contiguous)
{
    return (act_shape){contiguous, t->dims[1 - contiguous], t->dims[contiguous],
                       contiguous == (axis == BSK_NC ? 1 : 0)};
}

static inline int64_t row_at(const bsk_tensor *t, const act_shape *s, int64_t outer, int64_t inner)
{
    return outer * t->strides[1 - s->axis] + inner;
}

static inline bool streams(bsk_dtype type, int64_t rows, int64_t count)
{
    return count >= CHUNK && rows >= (int64_t)(STREAM_BYTES / type_size(type)) / count;
}

/* --- rows ------------------------------------------------------------------------------------- */

#define EACH_VECTOR(i, count) for (int64_t i = 0; i < (count); i += F32_LANES)

/* Fills up the last PAD elements. */
static inline void row_pad(float *row, int64_t count, float value)
{
    for (; count % PAD; count++)
        row[count] = value;
}

/* Asks for elements that are loaded later, while the processor works on others: its own foresight
 * ends with a page. Passes over memory ask for as much as they have just loaded, a good way ahead, so
 * that reading never stops while they compute and write. */
static inline void row_fetch(bsk_dtype type, const void *src, int64_t index, int64_t count)
{
    const char *from = (const char *)src + index * (int64_t)type_size(type);
    for (int64_t i = 0; i < count * (int64_t)type_size(type); i += 64)
        __builtin_prefetch(from + i, 0, 2);
}

static inline void row_load_padded(float *restrict row, bsk_dtype type, const void *src,
                                   int64_t index, int64_t count, float value)
{
    row_load_f32(row, type, src, index, count);
    row_pad(row, count, value);
}

OMP_INLINE float lanes_sum(vec_f32 v)
{
#if defined(BSK_ISA_AVX512)
    return _mm512_reduce_add_ps((__m512)v);
#else
    float sum = 0;
    for (int k = 0; k < F32_LANES; k++)
        sum += v[k];
    return sum;
#endif
}

/* The larger one; NaN of x is passed over. */
OMP_INLINE vec_f32 larger_f32(vec_f32 x, vec_f32 than)
{
#if defined(BSK_ISA_AVX512)
    return (vec_f32)_mm512_max_ps((__m512)x, (__m512)than);
#elif defined(BSK_ISA_AVX2)
    return (vec_f32)_mm256_max_ps((__m256)x, (__m256)than);
#else
    return select_f32(x > than, x, than);
#endif
}

/* Of numbers. */
OMP_INLINE float lanes_max(vec_f32 v)
{
#if defined(BSK_ISA_AVX512)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float max = v[0];
    for (int k = 1; k < F32_LANES; k++)
        max = v[k] > max ? v[k] : max;
    return max;
#endif
}

/* The sum of a row padded with zeros. */
static inline float row_sum(const float *row, int64_t count)
{
    vec_f32 sum[4] = {{0}};
    for (int64_t i = 0; i < count; i += PAD)
        for (int k = 0; k < 4; k++)
            sum[k] += load_f32(row + i + k * F32_LANES);
    return lanes_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* The same of products. */
static inline float row_dot(const float *x, const float *y, int64_t count)
{
    vec_f32 sum[4] = {{0}};
    for (int64_t i = 0; i < count; i += PAD)
        for (int k = 0; k < 4; k++)
            sum[k] += load_f32(x + i + k * F32_LANES) * load_f32(y + i + k * F32_LANES);
    return lanes_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* The sum of (x - mean)^2 of a row padded with the mean. */
static inline float row_square(const float *row, int64_t count, float mean)
{
    vec_f32 sum[4] = {{0}};
    for (int64_t i = 0; i < count; i += PAD)
        for (int k = 0; k < 4; k++) {
            const vec_f32 d = load_f32(row + i + k * F32_LANES) - mean;
            sum[k] += d * d;
        }
    return lanes_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* The sum of squares, in f64: those of small and of large numbers leave the range of f32. */
static inline double row_squares(const float *row, int64_t count)
{
    enum { LANES = 16 };
    double lane[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int k = 0; k < LANES; k++)
            lane[k] += (double)row[i + k] * (double)row[i + k];
    for (; i < count; i++)
        lane[i % LANES] += (double)row[i] * (double)row[i];
    for (int k = 0; k < LANES; k++)
        sum += lane[k];
    return sum;
}

/* The largest element of a row padded with -infinity, and max; NaN is left to the sum. */
static inline float row_max(const float *row, int64_t count, float max)
{
    vec_f32 best[4];
    for (int k = 0; k < 4; k++)
        best[k] = splat_f32(max);
    for (int64_t i = 0; i < count; i += PAD)
        for (int k = 0; k < 4; k++)
            best[k] = larger_f32(load_f32(row + i + k * F32_LANES), best[k]);
    return lanes_max(larger_f32(larger_f32(best[0], best[1]), larger_f32(best[2], best[3])));
}

/* row = e^(row - max), and the sum; the padding, of -infinity, becomes 0. */
static inline float row_exp(float *restrict row, int64_t count, float max)
{
    vec_f32 sum[4] = {{0}};
    for (int64_t i = 0; i < count; i += PAD)
        for (int k = 0; k < 4; k++) {
            const vec_f32 x = (load_f32(row + i + k * F32_LANES) - max) * LOG_BASE;
            const vec_f32 e = power_lifted(x, false, false);
            store_f32(row + i + k * F32_LANES, e);
            sum[k] += e;
        }
    return lanes_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* row = alpha * row + beta * what dst holds, for at most ROW elements. */
static inline void row_blend(float *restrict row, double alpha, double beta, bsk_dtype type,
                             const void *dst, int64_t index, int64_t count)
{
    const float scale = (float)alpha, keep = (float)beta;
    float old[CHUNK];
    for (int64_t i = 0; alpha != 1 && i < count; i++)
        row[i] *= scale;
    for (int64_t i = 0; beta != 0 && i < count; i += CHUNK) {
        const int64_t part = min_i64(CHUNK, count - i);
        row_load_f32(old, type, dst, index + i, part);
        for (int64_t k = 0; k < part; k++)
            row[i + k] += keep * old[k];
    }
}

/* --- stores past the caches ------------------------------------------------------------------- */

#if defined(BSK_ISA_AVX512)
OMP_INLINE void vector_stream(void *dst, const void *src)
{
    _mm512_stream_si512(dst, _mm512_loadu_si512(src));
}
#elif defined(BSK_ISA_AVX2)
OMP_INLINE void vector_stream(void *dst, const void *src)
{
    _mm256_stream_si256(dst, _mm256_loadu_si256(src));
}
#endif

#if defined(BSK_ISA_AVX512) || defined(BSK_ISA_AVX2)
static inline void bytes_stream(void *dst, const void *src, size_t bytes)
{
    enum { LINE = 64 };
    char *d = dst;
    const char *s = src;
    size_t head = -(uintptr_t)d & (LINE - 1);
    head = head < bytes ? head : bytes;
    row_copy(d, s, head);
    d += head, s += head, bytes -= head;
    for (; bytes >= LINE; bytes -= LINE, d += LINE, s += LINE)
        for (int i = 0; i < LINE; i += VEC_BYTES)
            vector_stream(d + i, s + i);
    row_copy(d, s, bytes);
}

/* Makes a thread's streamed stores visible to others. */
static inline void stream_fence(void)
{
    _mm_sfence();
}
#else
OMP_INLINE void vector_stream(void *dst, const void *src)
{
    memcpy(dst, src, VEC_BYTES);
}

static inline void bytes_stream(void *dst, const void *src, size_t bytes)
{
    row_copy(dst, src, bytes);
}

static inline void stream_fence(void)
{
}
#endif

/* A vector, past the caches if `stream`; then dst is aligned. */
OMP_INLINE void vector_put(void *dst, const void *src, bool stream)
{
    if (stream)
        vector_stream(dst, src);
    else
        memcpy(dst, src, VEC_BYTES);
}

/* Of bf16, whose rounding takes as long as the memory: without a buffer between, where it can. */
static inline void bf16_stream(uint16_t *restrict dst, const float *restrict row, int64_t count)
{
    uint16_t half[CHUNK];
    int64_t i = 0;
#if defined(BSK_ISA_AVX512)
    if ((uintptr_t)dst % 64 == 0)
        for (; i + BF16_LINE <= count; i += BF16_LINE)
            _mm512_stream_si512((void *)(dst + i), line_bf16(row + i));
#endif
    for (; i < count; i += CHUNK) {
        const int64_t part = min_i64(CHUNK, count - i);
        f32_to_bf16_row(half, row + i, part);
        bytes_stream(dst + i, half, (size_t)part * sizeof *half);
    }
}

/* row_store_f32, past the caches if `stream`. */
static inline void row_put(const float *restrict row, bsk_dtype type, void *dst, int64_t index,
                           int64_t count, bool stream)
{
    const size_t size = type_size(type);
    uint16_t half[CHUNK];
    if (!stream) {
        row_store_f32(row, type, dst, index, count);
    } else if (type == BSK_F32) {
        bytes_stream((float *)dst + index, row, (size_t)count * size);
    } else if (type == BSK_BF16) {
        bf16_stream((uint16_t *)dst + index, row, count);
    } else {
        for (int64_t i = 0; i < count; i += CHUNK) {
            const int64_t part = min_i64(CHUNK, count - i);
            row_store_f32(row + i, type, half, 0, part);
            bytes_stream((uint16_t *)dst + index + i, half, (size_t)part * size);
        }
    }
}

/* count elements from one type to another, rounded once; a missing source gives zeros. */
static inline void row_convert(bsk_dtype from, const void *src, int64_t src_at, bsk_dtype to,
                               void *dst, int64_t dst_at, int64_t count)
{
    const size_t size = element_size(to);
    float narrow[CHUNK];
    double wide[CHUNK];

    if (count == 0) /* then there need be no memory either */
        return;
    if (!src)
        memset((char *)dst + (size_t)dst_at * size, 0, (size_t)count * size);
    else if (from == to)
        memcpy((char *)dst + (size_t)dst_at * size, (const char *)src + (size_t)src_at * size,
               (size_t)count * size);
    else
        for (int64_t i = 0; i < count; i += CHUNK) {
            const int64_t n = min_i64(CHUNK, count - i);
            if (from == BSK_F64) {
                row_load_f64(wide, from, src, src_at + i, n);
                row_store_f64(wide, to, dst, dst_at + i, n);
            } else {
                row_load_f32(narrow, from, src, src_at + i, n);
                row_store_f32(narrow, to, dst, dst_at + i, n);
            }
        }
}

#endif
