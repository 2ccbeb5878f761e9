/* Shared by the reference entries. They define the ops: scalar, single-threaded, f64 arithmetic,
 * one rounding at each store. Whoever wants to know what an op computes reads these files. */
#ifndef BSKI_CPU_REF_H
#define BSKI_CPU_REF_H

#include <math.h>
#include <stdbool.h>

#include <backends/cpu/cpu.h>
#include <common/dtype.h>

/* REF_OP(op, type) { ... } defines ref_<op>_launch; the body sees the op's params p and args a.
 * REF_LAYOUT_OP is the same for ops on a layout, whose tables are t. */
#define REF_OP(op, type)                                                                           \
    static void op##_compute(const bsk_##type##_params *p, const bsk_##type##_args *a);            \
    BSKI_CPU_LAUNCH(ref_##op)                                                                      \
    {                                                                                              \
        (void)queue;                                                                               \
        op##_compute(prepared->problem->params, args);                                             \
        return BSK_OK;                                                                             \
    }                                                                                              \
    static void op##_compute(const bsk_##type##_params *p, const bsk_##type##_args *a)

#define REF_LAYOUT_OP(op, type)                                                                    \
    static void op##_compute(const bsk_layout_tables *t, const bsk_##type##_params *p,             \
                             const bsk_##type##_args *a);                                          \
    BSKI_CPU_LAUNCH(ref_##op)                                                                      \
    {                                                                                              \
        (void)queue;                                                                               \
        op##_compute(prepared->problem->layout, prepared->problem->params, args);                  \
        return BSK_OK;                                                                             \
    }                                                                                              \
    static void op##_compute(const bsk_layout_tables *t, const bsk_##type##_params *p,             \
                             const bsk_##type##_args *a)

/* A tensor and its memory. Strides beyond the rank are zero. */
typedef struct ref_view {
    bsk_dtype dtype;
    void *data;
    int64_t base; /* elements before the first one */
    int64_t stride[BSK_MAX_RANK];
} ref_view;

static inline ref_view view_of(const bsk_tensor *tensor, bsk_mem mem)
{
    ref_view v = {.dtype = tensor->dtype, .data = bsk_mem_address(mem)};
    for (int32_t d = 0; d < tensor->rank; d++)
        v.stride[d] = tensor->strides[d];
    return v;
}

/* An optional tensor is absent if it has no type; its memory may be NULL when it has no elements. */
static inline bool view_given(const ref_view *v)
{
    return v->dtype != BSK_NONE;
}

/* Member i of the first dimension, as a view of one dimension less. */
static inline ref_view view_sub(const ref_view *v, int64_t i)
{
    ref_view sub = {.dtype = v->dtype, .data = v->data, .base = v->base + i * v->stride[0]};
    for (int d = 0; d + 1 < BSK_MAX_RANK; d++)
        sub.stride[d] = v->stride[d + 1];
    return sub;
}

/* A matrix with its axes exchanged. */
static inline ref_view view_transpose(const ref_view *v)
{
    ref_view r = *v;
    r.stride[0] = v->stride[1];
    r.stride[1] = v->stride[0];
    return r;
}

/* Activations as [N, features], on whichever axis they lie. */
static inline ref_view view_rows(const bsk_tensor *tensor, bsk_mem mem, bsk_axis axis)
{
    ref_view v = view_of(tensor, mem);
    return axis == BSK_NC ? v : view_transpose(&v);
}

static inline int64_t rows_count(const bsk_tensor *tensor, bsk_axis axis)
{
    return tensor->dims[axis == BSK_NC ? 0 : 1];
}

static inline int64_t features_count(const bsk_tensor *tensor, bsk_axis axis)
{
    return tensor->dims[axis == BSK_NC ? 1 : 0];
}

static inline double view_get1(const ref_view *v, int64_t i)
{
    return bski_load(v->dtype, v->data, v->base + i * v->stride[0]);
}

static inline double view_get2(const ref_view *v, int64_t i, int64_t j)
{
    return bski_load(v->dtype, v->data, v->base + i * v->stride[0] + j * v->stride[1]);
}

static inline double view_get3(const ref_view *v, int64_t i, int64_t j, int64_t k)
{
    return bski_load(v->dtype, v->data,
                     v->base + i * v->stride[0] + j * v->stride[1] + k * v->stride[2]);
}

/* `count` elements, `step` apart. */
static inline void view_line(const ref_view *v, int64_t at, int64_t step, int64_t count,
                             double *restrict line)
{
#define LINE(type)                                                                                 \
    case type:                                                                                     \
        for (int64_t i = 0; i < count; i++)                                                        \
            line[i] = bski_load(type, v->data, at + i * step);                                     \
        break
    switch (v->dtype) {
        LINE(BSK_F64);
        LINE(BSK_F32);
        LINE(BSK_F16);
        LINE(BSK_BF16);
        LINE(BSK_I8);
    default:
        for (int64_t i = 0; i < count; i++)
            line[i] = bski_load(v->dtype, v->data, at + i * step);
    }
#undef LINE
}

static inline int64_t view_get_int(const ref_view *v, int64_t i)
{
    return bski_load_int(v->dtype, v->data, v->base + i * v->stride[0]);
}

static inline void view_set1(const ref_view *v, int64_t i, double value)
{
    bski_store(v->dtype, v->data, v->base + i * v->stride[0], value);
}

static inline void view_set2(const ref_view *v, int64_t i, int64_t j, double value)
{
    bski_store(v->dtype, v->data, v->base + i * v->stride[0] + j * v->stride[1], value);
}

static inline void view_set3(const ref_view *v, int64_t i, int64_t j, int64_t k, double value)
{
    bski_store(v->dtype, v->data, v->base + i * v->stride[0] + j * v->stride[1] + k * v->stride[2],
               value);
}

/* beta * dst, which is not read when beta is 0: it may hold anything then. */
static inline double view_scaled1(const ref_view *dst, int64_t i, double beta)
{
    return beta != 0 ? beta * view_get1(dst, i) : 0;
}

static inline double view_scaled2(const ref_view *dst, int64_t i, int64_t j, double beta)
{
    return beta != 0 ? beta * view_get2(dst, i, j) : 0;
}

static inline double view_scaled3(const ref_view *dst, int64_t i, int64_t j, int64_t k, double beta)
{
    return beta != 0 ? beta * view_get3(dst, i, j, k) : 0;
}

/* --- tensors of any rank: loops over a shape in row-major order ------------------------------
 *     int64_t index[BSK_MAX_RANK] = {0};
 *     for (int64_t left = shape_count(&shape); left > 0; left--, shape_next(&shape, index)) */

static inline int64_t shape_count(const bsk_tensor *t)
{
    int64_t count = 1;
    for (int32_t d = 0; d < t->rank; d++)
        count *= t->dims[d];
    return count;
}

static inline void shape_next(const bsk_tensor *t, int64_t index[BSK_MAX_RANK])
{
    for (int32_t d = t->rank - 1; d >= 0 && ++index[d] == t->dims[d]; d--)
        index[d] = 0;
}

/* A tensor whose dimensions of size 1 repeat along those of a larger shape. */
static inline ref_view view_repeated(const bsk_tensor *tensor, bsk_mem mem)
{
    ref_view v = view_of(tensor, mem);
    for (int32_t d = 0; d < tensor->rank; d++)
        if (tensor->dims[d] == 1)
            v.stride[d] = 0;
    return v;
}

/* A contiguous tensor as a vector. */
static inline ref_view view_flat(const bsk_tensor *tensor, bsk_mem mem)
{
    ref_view v = view_of(tensor, mem);
    v.stride[0] = 1;
    return v;
}

static inline int64_t view_at(const ref_view *v, const int64_t index[BSK_MAX_RANK])
{
    int64_t at = v->base;
    for (int d = 0; d < BSK_MAX_RANK; d++)
        at += index[d] * v->stride[d];
    return at;
}

static inline double view_get(const ref_view *v, const int64_t index[BSK_MAX_RANK])
{
    return bski_load(v->dtype, v->data, view_at(v, index));
}

static inline void view_set(const ref_view *v, const int64_t index[BSK_MAX_RANK], double value)
{
    bski_store(v->dtype, v->data, view_at(v, index), value);
}

/* beta * dst, as view_scaled1. */
static inline double view_scaled(const ref_view *dst, const int64_t index[BSK_MAX_RANK],
                                 double beta)
{
    return beta != 0 ? beta * view_get(dst, index) : 0;
}

/* An index that the caller has found to fit the type. */
static inline void store_index(bsk_dtype t, void *data, int64_t i, int64_t value)
{
    switch (t) {
    case BSK_I64:
        ((int64_t *)data)[i] = value;
        break;
    case BSK_I32:
        ((int32_t *)data)[i] = (int32_t)value;
        break;
    case BSK_U16:
        ((uint16_t *)data)[i] = (uint16_t)value;
        break;
    default: /* BSK_U8 */
        ((uint8_t *)data)[i] = (uint8_t)value;
        break;
    }
}

/* Order of maxima and of the k largest: NaN is larger than any number. */
static inline bool is_larger(double x, double y)
{
    return x > y || (x != x && y == y);
}

/* Elements of block number `block` that lie inside a dimension of `size` elements. */
static inline int64_t block_extent(int64_t size, int64_t block, int64_t block_size)
{
    int64_t left = size - block * block_size;
    return left < block_size ? left : block_size;
}

static inline int64_t slot_height(const bsk_layout_tables *t, int64_t slot)
{
    return block_extent(t->rows, t->slot_row[slot], t->block_rows);
}

static inline int64_t slot_width(const bsk_layout_tables *t, int64_t slot)
{
    return block_extent(t->cols, t->slot_col[slot], t->block_cols);
}

/* The number of an element of w [nnz, r, c], by which it draws its random number. */
static inline uint64_t slot_element(const bsk_layout_tables *t, int64_t slot, int64_t i, int64_t j)
{
    return ((uint64_t)slot * (uint64_t)t->block_rows + (uint64_t)i) * (uint64_t)t->block_cols +
           (uint64_t)j;
}

/* Comparisons are written so that NaN passes through. */
static inline double at_least(double x, double low)
{
    return x < low ? low : x;
}

static inline double at_most(double x, double high)
{
    return x > high ? high : x;
}

static inline double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* An element of a row and its place in the order of topk: larger first, then lower positions. */
typedef struct ref_rank {
    double value;
    int64_t at;
} ref_rank;

/* Whether x comes before y. */
static inline bool ranks_before(ref_rank x, ref_rank y)
{
    return is_larger(x.value, y.value) || (!is_larger(y.value, x.value) && x.at < y.at);
}

/* A row of numbers scale * mask * x; without a mask 1 stands for it. Elements whose mask is 0 are
 * not part of the row. */
typedef struct ref_row {
    ref_view x, mask; /* of one dimension */
    double scale;
    int64_t count;
} ref_row;

bool bski_ref_row_has(const ref_row *row, int64_t i);
double bski_ref_row_get(const ref_row *row, int64_t i);
/* The first element in the order of topk, or the first one after *before; at = -1: there is none. */
ref_rank bski_ref_row_next(const ref_row *row, const ref_rank *before);
/* The k-th of that order, or the last one. */
ref_rank bski_ref_row_kth(const ref_row *row, int64_t k);

/* act(x) and act'(x). */
double bski_ref_act(bsk_act act, double x);
double bski_ref_act_slope(bsk_act act, double x);

#endif
