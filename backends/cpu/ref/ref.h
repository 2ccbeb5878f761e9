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

/* act(x) and act'(x). */
double bski_ref_act(bsk_act act, double x);
double bski_ref_act_slope(bsk_act act, double x);

#endif
