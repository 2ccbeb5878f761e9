/* The host's side of shape.h: dimensions of tensors, before kernels see them. */
#ifndef BSKI_SIMT_DIMS_H
#define BSKI_SIMT_DIMS_H

#include <backends/simt/entry.h>

#include <backends/simt/shape.h>

/* A shape and what is walked along it: the sizes of the dimensions, and their strides in each of
 * `count` tensors. The first tensor tells the order. */
enum { DIMS_MAX = 8 };

typedef struct simt_dims {
    int rank, count;
    i64 size[SHAPE_RANK];
    i64 stride[DIMS_MAX][SHAPE_RANK];
} simt_dims;

/* No tensors yet. */
simt_dims bski_simt_dims(const bsk_tensor *shape);
/* Adds a tensor, whose dimensions of 1 are repeated. An absent one has strides of 0. */
void bski_simt_dims_add(simt_dims *s, const bsk_tensor *t);
/* Adds the row-major numbers of the elements, along dimensions whose bit is not set in `shared`. */
void bski_simt_dims_add_numbers(simt_dims *s, int32_t shared);
/* Takes the dimensions out for which repeats[d] is set, as a shape of their own. */
simt_dims bski_simt_dims_take(simt_dims *s, const bool *repeats);
/* The dimension along which most tensors have stride 1; -1: none has a size beyond 1. */
int bski_simt_dims_inner(const simt_dims *s);
/* Orders the dimensions by the strides of the first tensor, with `inner` last where it is not -1,
 * and joins those that lie on one line in all tensors. */
void bski_simt_dims_join(simt_dims *s, int inner);

i64 bski_simt_dims_count(const simt_dims *s);
shape_arg bski_simt_dims_shape(const simt_dims *s);
/* Tensor number k, at mem, for kernels of `type`. */
view_arg bski_simt_dims_view(const simt_dims *s, int k, const simt_device *d, bsk_dtype type,
                             const bsk_tensor *t, bsk_mem mem);
/* Whether the strides of tensor number k are whole runs of vec elements but for the last one, or,
 * with last = false, all of them. */
bool bski_simt_dims_aligned(const simt_dims *s, int k, i64 vec, bool last);

#endif
