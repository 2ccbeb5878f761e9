/* Host side of the dense softmax. */
#include <backends/simt/entry.h>

#include <backends/simt/softmax.h>

enum { HELD_RUNS = 4 }; /* ROW_RUNS of softmax.h */

/* --- rows --- */

enum { SOFTMAX_TENSORS = 4 };

/* The leading dimensions of up to four tensors of one shape, as few as their strides allow. */
typedef struct softmax_shape {
    i64 rows, count, dims[SOFTMAX_DIMS], stride[SOFTMAX_TENSORS][SOFTMAX_DIMS];
    i32 rank;
} softmax_shape;

/* A stride along which a tensor of one member repeats is 0. */
static i64 stride_of(const bsk_tensor *t, int d)
{
    return t->dtype == BSK_NONE || t->dims[d] == 1 ? 0 : t->strides[d];
}

static softmax_shape shape_of(const bsk_tensor *const *tensors, int count)
{
    const bsk_tensor *whole = tensors[0];
    const int last = whole->rank - 1;
    softmax_shape s = {.rows = 1, .count = whole->dims[last]};
    for (int d = 0; d < last; d++) {
        const i64 size = whole->dims[d];
        s.rows *= size;
        if (size == 1)
            continue;
        bool joins = s.rank > 0;
        for (int t = 0; joins && t < count; t++)
            joins = s.stride[t][s.rank - 1] == stride_of(tensors[t], d) * size;
        const int at = joins ? s.rank - 1 : s.rank++;
        s.dims[at] = joins ? s.dims[at] * size : size;
        for (int t = 0; t < count; t++)
            s.stride[t][at] = stride_of(tensors[t], d);
    }
    return s;
}

static void dims_copy(i64 *to, const i64 *from)
{
    for (int d = 0; d < SOFTMAX_DIMS; d++)
        to[d] = from[d];
}

/* Whether runs of all rows of tensor t may be loaded as vectors. */
static bool rows_vector(const simt_device *d, bsk_dtype type, const softmax_shape *s, int t,
                        const bsk_tensor *tensor, bsk_mem mem)
{
    const i64 last = tensor->dtype == BSK_NONE ? 1 : tensor->strides[tensor->rank - 1];
    bool vector = tensor->dtype == BSK_NONE || d->wide || simt_aligned(mem);
    for (int i = 0; i < s->rank; i++)
        vector &= d->wide || s->stride[t][i] % simt_vec(d, type) == 0;
    return vector && (last == 1 || s->count <= 1);
}

/* Lanes for a row: as few as hold it, so that each has much under way. */
static i32 lanes_of(const simt_device *d, bsk_dtype type, i64 count)
{
    const i64 runs = simt_runs(count, simt_vec(d, type));
    i32 lanes = 1;
    while (lanes < simt_lanes(d) && (i64)lanes * HELD_RUNS < runs)
        lanes *= 2;
    return lanes;
}

static i64 packed_groups(const softmax_shape *s, i32 lanes)
{
    return bski_ceil_div(s->rows, SIMT_LANES / lanes);
}

/* Whether rows of whole runs fit into registers, one group for each batch of them. */
static bool fits(const simt_device *d, bsk_dtype type, const softmax_shape *s)
{
    const i64 vec = simt_vec(d, type);
    return !d->wide && s->rank <= 1 && s->count % vec == 0 &&
           s->count / vec <= (i64)HELD_RUNS * SIMT_LANES &&
           packed_groups(s, lanes_of(d, type, s->count)) <= SIMT_MAX_GROUPS;
}

/* A group for every few rows: rows cost the same, and the device keeps itself busy. */
static i64 groups_of(const simt_device *d, const softmax_shape *s, i32 lanes)
{
    const i64 each = simt_lanes(d) / lanes;
    return s->count > 0 ? bski_simt_groups_most(d, bski_ceil_div(s->rows, each), d->wide ? 4 : 4096)
                        : 0;
}

/* --- masked_softmax --- */

enum { ANY, PACKED };

SIMT_RELEASE(masked_softmax)

SIMT_PREPARE(masked_softmax)
{
    static const simt_need need = {.file = "softmax",
                                   .kernels = {"masked_softmax", "masked_softmax_packed"}};
    static const simt_need wide = {.file = "softmax", .kernels = {"masked_softmax"}};
    return bski_simt_prepare(device, prepared, ((simt_device *)device)->wide ? &wide : &need);
}

/* The k largest are counted with 32 bits. */
SIMT_ACCEPT(masked_softmax)
{
    const bsk_masked_softmax_params *p = problem->params;
    if (p->k > 0 && p->x.dims[p->x.rank - 1] > INT32_MAX)
        return BSK_REFUSE_LIMIT;
    return ACCEPT(&p->x, &p->y, &p->mask);
}

SIMT_LAUNCH(masked_softmax)
{
    const simt_device *d = queue_device(queue);
    const bsk_masked_softmax_params *p = prepared->problem->params;
    const bsk_masked_softmax_args *a = args;
    const bsk_dtype type = p->x.dtype;
    const bsk_tensor *const tensors[] = {&p->x, &p->y, &p->mask};
    const softmax_shape s = shape_of(tensors, 3);
    const bsk_mem mask = mem_of(&p->mask, a->mask);
    softmax_arg arg = {
        .rows = s.rows,
        .count = s.count,
        .k = p->k,
        .mask_last = p->mask.dtype == BSK_NONE ? 0 : p->mask.strides[p->mask.rank - 1],
        .scale = simt_num(prepared, a->scale != 0 ? a->scale : 1),
        .rank = s.rank,
        .lanes = lanes_of(d, type, s.count),
        .x_type = (i32)type,
        .y_type = (i32)p->y.dtype,
        .mask_type = (i32)p->mask.dtype,
        .x_vector = rows_vector(d, type, &s, 0, &p->x, a->x),
        .y_vector = rows_vector(d, type, &s, 1, &p->y, a->y),
        .mask_vector = rows_vector(d, type, &s, 2, &p->mask, mask),
    };
    const bool packed = fits(d, type, &s) && arg.x_vector && arg.y_vector && p->y.dtype == type &&
                        p->mask.dtype == BSK_NONE && p->k == 0;
    dims_copy(arg.dims, s.dims);
    dims_copy(arg.x, s.stride[0]);
    dims_copy(arg.y, s.stride[1]);
    dims_copy(arg.mask, s.stride[2]);
    if (packed) {
        const softmax_packed_arg rows = {.rows = s.rows,
                                         .x_row = s.stride[0][0],
                                         .y_row = s.stride[1][0],
                                         .factor = arg.scale,
                                         .runs = (i32)(s.count / simt_vec(d, type)),
                                         .lanes = arg.lanes,
                                         .type = (i32)type};
        return LAUNCH(PACKED, packed_groups(&s, arg.lanes), 1, rows, a->x, a->y);
    }
    return LAUNCH(ANY, groups_of(d, &s, arg.lanes), 1, arg, a->x, mask, a->y);
}

/* --- masked_softmax_grad --- */

SIMT_RELEASE(masked_softmax_grad)

SIMT_PREPARE(masked_softmax_grad)
{
    static const simt_need need = {
        .file = "softmax", .kernels = {"masked_softmax_grad", "masked_softmax_grad_packed"}};
    static const simt_need wide = {.file = "softmax", .kernels = {"masked_softmax_grad"}};
    return bski_simt_prepare(device, prepared, ((simt_device *)device)->wide ? &wide : &need);
}

SIMT_ACCEPT(masked_softmax_grad)
{
    const bsk_masked_softmax_grad_params *p = problem->params;
    return ACCEPT(&p->dy, &p->y, &p->dx, &p->mask);
}

SIMT_LAUNCH(masked_softmax_grad)
{
    const simt_device *d = queue_device(queue);
    const bsk_masked_softmax_grad_params *p = prepared->problem->params;
    const bsk_masked_softmax_grad_args *a = args;
    const bsk_dtype type = p->dy.dtype;
    const bsk_tensor *const tensors[] = {&p->dy, &p->y, &p->dx, &p->mask};
    const softmax_shape s = shape_of(tensors, SOFTMAX_TENSORS);
    const bsk_mem mask = mem_of(&p->mask, a->mask);
    softmax_grad_arg arg = {
        .rows = s.rows,
        .count = s.count,
        .mask_last = p->mask.dtype == BSK_NONE ? 0 : p->mask.strides[p->mask.rank - 1],
        .factor = simt_num(prepared, a->alpha * (a->scale != 0 ? a->scale : 1)),
        .beta = simt_num(prepared, a->beta),
        .rank = s.rank,
        .lanes = lanes_of(d, type, s.count),
        .dy_type = (i32)type,
        .y_type = (i32)p->y.dtype,
        .dx_type = (i32)p->dx.dtype,
        .mask_type = (i32)p->mask.dtype,
        .dy_vector = rows_vector(d, type, &s, 0, &p->dy, a->dy),
        .y_vector = rows_vector(d, type, &s, 1, &p->y, a->y),
        .dx_vector = rows_vector(d, type, &s, 2, &p->dx, a->dx),
        .mask_vector = rows_vector(d, type, &s, 3, &p->mask, mask),
    };
    const bool packed = fits(d, type, &s) && arg.dy_vector && arg.y_vector && arg.dx_vector &&
                        p->y.dtype == type && p->dx.dtype == type && p->mask.dtype == BSK_NONE &&
                        a->beta == 0;
    dims_copy(arg.dims, s.dims);
    dims_copy(arg.dy, s.stride[0]);
    dims_copy(arg.y, s.stride[1]);
    dims_copy(arg.dx, s.stride[2]);
    dims_copy(arg.mask, s.stride[3]);
    if (packed) {
        const softmax_packed_arg rows = {.rows = s.rows,
                                         .x_row = s.stride[0][0],
                                         .y_row = s.stride[1][0],
                                         .dx_row = s.stride[2][0],
                                         .factor = arg.factor,
                                         .runs = (i32)(s.count / simt_vec(d, type)),
                                         .lanes = arg.lanes,
                                         .type = (i32)type};
        return LAUNCH(PACKED, packed_groups(&s, arg.lanes), 1, rows, a->dy, a->y, a->dx);
    }
    return LAUNCH(ANY, groups_of(d, &s, arg.lanes), 1, arg, a->dy, a->y, mask, a->dx);
}
