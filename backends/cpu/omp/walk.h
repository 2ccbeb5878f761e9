/* Element-wise walks over tensors of one shape and any strides: neighbouring dimensions merge where
 * they can, and what is left is rows along which a tensor is contiguous or repeats an element. */
#ifndef BSKI_OMP_WALK_H
#define BSKI_OMP_WALK_H

#include "dense.h"

enum { WALK_TENSORS = 6 };

typedef struct walk {
    int32_t rank; /* of the space of rows */
    int32_t count;
    int64_t rows, inner; /* rows, and elements of each */
    int64_t dims[BSK_MAX_RANK];
    int64_t strides[WALK_TENSORS][BSK_MAX_RANK];
    int64_t step[WALK_TENSORS]; /* 1, or 0 where a row repeats one element */
} walk;

static inline void walk_swap(walk *w, int32_t i, int32_t k)
{
    const int64_t dim = w->dims[i];
    w->dims[i] = w->dims[k];
    w->dims[k] = dim;
    for (int32_t t = 0; t < w->count; t++) {
        const int64_t stride = w->strides[t][i];
        w->strides[t][i] = w->strides[t][k];
        w->strides[t][k] = stride;
    }
}

/* Whether dimension d continues dimension d - 1 in every tensor. */
static inline bool walk_merges(const walk *w, int32_t d)
{
    for (int32_t t = 0; t < w->count; t++)
        if (w->strides[t][d - 1] != w->strides[t][d] * w->dims[d])
            return false;
    return true;
}

/* Orders the dimensions by the first tensor's strides, merges them, and makes the last one the
 * rows. False if a tensor has gaps along these. */
static inline bool walk_finish(walk *w)
{
    for (int32_t i = 1; i < w->rank; i++)
        for (int32_t k = i; k > 0 && w->strides[0][k - 1] < w->strides[0][k]; k--)
            walk_swap(w, k - 1, k);
    for (int32_t d = w->rank - 1; d > 0; d--)
        if (walk_merges(w, d)) {
            w->dims[d - 1] *= w->dims[d];
            for (int32_t t = 0; t < w->count; t++)
                w->strides[t][d - 1] = w->strides[t][d];
            for (int32_t k = d; k + 1 < w->rank; k++)
                walk_swap(w, k, k + 1);
            w->rank--;
        }
    w->inner = w->rows = 1;
    if (w->rank > 0)
        w->inner = w->dims[--w->rank];
    for (int32_t d = 0; d < w->rank; d++)
        w->rows *= w->dims[d];
    bool dense = true;
    for (int32_t t = 0; t < w->count; t++) {
        w->step[t] = w->inner > 1 ? w->strides[t][w->rank] : 0;
        dense = dense && w->step[t] <= 1;
    }
    return dense && (w->inner <= 1 || w->step[0] == 1);
}

/* The tensors, the first of which, an output, has the full shape; dimensions of 1 repeat in the
 * others, and absent ones count as one element. */
static inline void walk_begin(walk *w, const bsk_tensor *const *tensors, int32_t count)
{
    *w = (walk){.count = count};
    for (int32_t d = 0; d < tensors[0]->rank; d++) {
        if (tensors[0]->dims[d] == 1)
            continue;
        w->dims[w->rank] = tensors[0]->dims[d];
        for (int32_t t = 0; t < count; t++)
            w->strides[t][w->rank] = tensors[t]->dtype == BSK_NONE || tensors[t]->dims[d] == 1
                                         ? 0
                                         : tensors[t]->strides[d];
        w->rank++;
    }
}

static inline bool walk_make(walk *w, const bsk_tensor *const *tensors, int32_t count)
{
    walk_begin(w, tensors, count);
    return walk_finish(w);
}

/* The same with a third tensor whose elements are their own numbers: of the shape of x, but 1 along
 * the dimensions of the bits in `shared`. */
static inline bool walk_numbered(walk *w, const bsk_tensor *y, const bsk_tensor *x, int32_t shared)
{
    bsk_tensor number = *x;
    int64_t stride = 1;
    for (int32_t d = number.rank - 1; d >= 0; d--) {
        if (shared >> d & 1)
            number.dims[d] = 1;
        number.strides[d] = stride;
        stride *= number.dims[d];
    }
    const bsk_tensor *const tensors[] = {y, x, &number};
    return walk_make(w, tensors, 3);
}

/* The same where the rows are the last dimension as it is. */
static inline void walk_lines(walk *w, const bsk_tensor *const *tensors, int32_t count)
{
    bsk_tensor lines[WALK_TENSORS];
    const bsk_tensor *each[WALK_TENSORS];
    const int32_t last = tensors[0]->rank - 1;
    for (int32_t t = 0; t < count; t++) {
        lines[t] = *tensors[t];
        lines[t].dims[last] = 1;
        each[t] = &lines[t];
    }
    walk_begin(w, each, count);
    w->inner = tensors[0]->dims[last];
    w->rows = 1;
    for (int32_t d = 0; d < w->rank; d++)
        w->rows *= w->dims[d];
}

/* Accepts what can be walked in f32. */
static inline bsk_reason walk_accept(walk *w, const bsk_tensor *const *tensors, int32_t count)
{
    const bool walks = walk_make(w, tensors, count);
    for (int32_t t = 0; t < count; t++)
        if (!is_narrow(tensors[t]))
            return BSK_REFUSE_DTYPE;
    return walks ? BSK_ACCEPT : BSK_REFUSE_STRIDE;
}

/* An entry that walks over these tensors of its params p, the output first, and needs no workspace;
 * op_walk makes the walk. */
#define OMP_WALK(op, ...)                                                                          \
    static bsk_reason op##_walk(const bsk_##op##_params *p, walk *w)                               \
    {                                                                                              \
        const bsk_tensor *const tensors[] = {__VA_ARGS__};                                         \
        return walk_accept(w, tensors, (int32_t)(sizeof tensors / sizeof *tensors));               \
    }                                                                                              \
    OMP_DECLARE(op);                                                                               \
    OMP_PREPARE_NONE(op)                                                                           \
    OMP_ACCEPT(op)                                                                                 \
    {                                                                                              \
        walk w;                                                                                    \
        (void)props;                                                                               \
        return op##_walk(problem->params, &w);                                                     \
    }

/* Where row number `row` begins in each tensor. */
static inline void walk_row(const walk *w, int64_t row, int64_t at[WALK_TENSORS])
{
    for (int32_t t = 0; t < w->count; t++)
        at[t] = 0;
    for (int32_t d = w->rank - 1; d >= 0; d--) {
        const int64_t i = row % w->dims[d];
        row /= w->dims[d];
        for (int32_t t = 0; t < w->count; t++)
            at[t] += i * w->strides[t][d];
    }
}

/* Whether every row of tensor t is whole lines of the cache. */
static inline bool walk_whole(const walk *w, int32_t t, bsk_dtype type, const void *data)
{
    const int64_t line = 64 / (int64_t)type_size(type);
    bool whole = (uintptr_t)data % 64 == 0 && w->inner % line == 0;
    for (int32_t d = 0; d < w->rank; d++)
        whole = whole && w->strides[t][d] % line == 0;
    return whole;
}

/* A piece of a row, of at most CHUNK elements; pieces are numbered row by row. */
typedef struct walk_piece {
    int64_t at[WALK_TENSORS];
    int64_t count;
} walk_piece;

static inline int64_t walk_pieces(const walk *w)
{
    return w->inner ? w->rows * bski_ceil_div(w->inner, CHUNK) : 0;
}

static inline walk_piece walk_at(const walk *w, int64_t piece)
{
    const int64_t parts = bski_ceil_div(w->inner, CHUNK), first = piece % parts * CHUNK;
    walk_piece p = {.count = min_i64(CHUNK, w->inner - first)};
    walk_row(w, piece / parts, p.at);
    for (int32_t t = 0; t < w->count; t++)
        p.at[t] += first * w->step[t];
    return p;
}

/* How many pieces ahead memory is asked for. */
enum { AHEAD = 4 };

/* The piece that lies so far ahead, or the last one. */
static inline walk_piece walk_ahead(const walk *w, int64_t piece)
{
    return walk_at(w, min_i64(piece + AHEAD, walk_pieces(w) - 1));
}

static inline walk_piece walk_part(const walk *w, const walk_piece *p, int64_t first)
{
    walk_piece part = {.count = min_i64(STRETCH, p->count - first)};
    for (int32_t t = 0; t < w->count; t++)
        part.at[t] = p->at[t] + first * w->step[t];
    return part;
}

/* One piece of tensor t in f32, padded with its last element. */
static inline void walk_load(const walk *w, const walk_piece *p, int32_t t, bsk_dtype type,
                             const void *src, float *restrict row)
{
    if (w->step[t] || p->count == 1) {
        row_load_f32(row, type, src, p->at[t], p->count);
        row_pad(row, p->count, row[p->count - 1]);
    } else {
        float x;
        row_load_f32(&x, type, src, p->at[t], 1);
        EACH_VECTOR(i, p->count) store_f32(row + i, splat_f32(x));
        row_pad(row, p->count, x);
    }
}

#endif
