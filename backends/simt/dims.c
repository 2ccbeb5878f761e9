/* The dimensions of tensors, ordered and joined. */
#include <backends/simt/dims.h>

#include <string.h>

simt_dims bski_simt_dims(const bsk_tensor *shape)
{
    simt_dims s = {.rank = shape->rank};
    for (int d = 0; d < s.rank; d++)
        s.size[d] = shape->dims[d];
    return s;
}

void bski_simt_dims_add(simt_dims *s, const bsk_tensor *t)
{
    i64 *stride = s->stride[s->count++];
    memset(stride, 0, SHAPE_RANK * sizeof *stride);
    for (int d = 0; t->dtype != BSK_NONE && d < s->rank; d++)
        stride[d] = t->dims[d] == 1 ? 0 : t->strides[d];
}

void bski_simt_dims_add_numbers(simt_dims *s, int32_t shared)
{
    i64 *stride = s->stride[s->count++], step = 1;
    memset(stride, 0, SHAPE_RANK * sizeof *stride);
    for (int d = s->rank - 1; d >= 0; d--)
        if (!(shared >> d & 1)) {
            stride[d] = step;
            step *= s->size[d];
        }
}

static void dim_copy(simt_dims *to, int d, const simt_dims *from, int e)
{
    to->size[d] = from->size[e];
    for (int k = 0; k < from->count; k++)
        to->stride[k][d] = from->stride[k][e];
}

simt_dims bski_simt_dims_take(simt_dims *s, const bool *repeats)
{
    const simt_dims all = *s;
    simt_dims taken = {.count = s->count};
    s->rank = 0;
    for (int d = 0; d < all.rank; d++) {
        simt_dims *to = repeats[d] ? &taken : s;
        dim_copy(to, to->rank++, &all, d);
    }
    return taken;
}

int bski_simt_dims_inner(const simt_dims *s)
{
    int best = -1, best_votes = -1;
    for (int d = 0; d < s->rank; d++) {
        int votes = 0;
        if (s->size[d] <= 1)
            continue;
        for (int k = 0; k < s->count; k++)
            votes += (s->stride[k][d] == 1) * (k == 0 ? 3 : 2);
        if (votes >= best_votes) {
            best = d;
            best_votes = votes;
        }
    }
    return best;
}

/* Whether dimension d comes before dimension e. */
static bool dim_before(const simt_dims *s, int d, int e, int inner)
{
    if (d == inner || e == inner)
        return e == inner;
    return s->stride[0][d] > s->stride[0][e];
}

/* Whether dimensions d and d + 1 are one. */
static bool dim_joins(const simt_dims *s, int d)
{
    for (int k = 0; k < s->count; k++)
        if (s->stride[k][d] != s->stride[k][d + 1] * s->size[d + 1])
            return false;
    return true;
}

static void dim_remove(simt_dims *s, int d)
{
    for (s->rank--; d < s->rank; d++)
        dim_copy(s, d, s, d + 1);
}

void bski_simt_dims_join(simt_dims *s, int inner)
{
    int order[SHAPE_RANK];
    int rank = 0;
    for (int d = 0; d < s->rank; d++) {
        if (s->size[d] == 1)
            continue;
        int at = rank++;
        for (; at > 0 && dim_before(s, d, order[at - 1], inner); at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
    const simt_dims old = *s;
    s->rank = rank;
    for (int d = 0; d < rank; d++)
        dim_copy(s, d, &old, order[d]);
    for (int d = s->rank - 2; d >= 0; d--)
        if (dim_joins(s, d)) {
            const i64 size = s->size[d] * s->size[d + 1];
            dim_remove(s, d);
            s->size[d] = size;
        }
}

i64 bski_simt_dims_count(const simt_dims *s)
{
    i64 count = 1;
    for (int d = 0; d < s->rank; d++)
        count *= s->size[d];
    return count;
}

shape_arg bski_simt_dims_shape(const simt_dims *s)
{
    shape_arg shape = {.rank = s->rank > 0 ? s->rank : 1};
    for (int d = 0; d < SHAPE_RANK; d++) {
        const int from = d - (SHAPE_RANK - s->rank);
        shape.size[d] = from < 0 ? 1 : s->size[from];
    }
    return shape;
}

bool bski_simt_dims_aligned(const simt_dims *s, int k, i64 vec, bool last)
{
    for (int d = 0; d < s->rank - last; d++)
        if (s->stride[k][d] % vec)
            return false;
    return true;
}

view_arg bski_simt_dims_view(const simt_dims *s, int k, const simt_device *d, bsk_dtype type,
                             const bsk_tensor *t, bsk_mem mem)
{
    const i64 vec = simt_vec(d, type);
    view_arg v = {.type = (i32)t->dtype, .run = RUN_STRIDED};
    for (int i = 0; i < s->rank; i++)
        v.stride[i + SHAPE_RANK - s->rank] = s->stride[k][i];
    if (v.stride[SHAPE_LAST] == 0)
        v.run = RUN_SAME;
    else if (v.stride[SHAPE_LAST] == 1 &&
             (d->wide || (simt_aligned(mem) && bski_simt_dims_aligned(s, k, vec, true))))
        v.run = RUN_VECTOR;
    return v;
}
