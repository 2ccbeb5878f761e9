/* Collectives: plans that check shapes and lay out buckets, and runs that cast, pack and call. */
#include <stdio.h>
#include <string.h>

#include "api/src/internal.h"
#include "common/checked.h"

/* In bytes: of a workspace and its parts; what plans of casts promise of addresses; of a bucket unless
 * the caller says otherwise. */
enum { PART_ALIGNMENT = 256, PROMISED_ALIGNMENT = 16, BUCKET_BYTES = 32 << 20 };

/* Calls that are handed to the transport at once. */
enum { MAX_CALLS = 64 };

enum { MAX_TENSORS = 65536 };

#define FLOATS                                                                                     \
    (BSK_DTYPE_BIT(BSK_F64) | BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_F16) |                    \
     BSK_DTYPE_BIT(BSK_BF16))
#define ALL_TYPES (~0u << BSK_F64) /* and not BSK_NONE */

/* A cast of contiguous elements, shared by all of a plan that ask for the same one. */
typedef struct cast {
    bsk_dtype from, to;
    int64_t elements;
    int32_t alignment;
    bsk_plan *plan;
} cast;

typedef struct tensor {
    bsk_dtype dtype;
    int32_t bucket; /* where it is packed; -1: nowhere */
    int64_t elements;
    size_t bytes, offset;    /* offset in its bucket */
    bsk_plan *pack, *unpack; /* NULL: added where it is */
} tensor;

/* What one call of the transport works on. */
typedef struct bucket {
    bsk_dtype dtype;
    int32_t tensors;
    int64_t count;            /* as in bsk_transport_call */
    size_t bytes;             /* of count elements */
    bsk_plan *widen, *narrow; /* to f32 and back, where the transport does not add dtype */
} bucket;

struct bsk_comm_plan {
    bsk_comm *comm;
    const char *op;
    bsk_collective kind;
    bool list;
    int32_t root, count, bucket_count;
    size_t alignment; /* of the workspace, and of tensors that are cast */
    tensor *tensors;  /* [count]: of the list, or x and y */
    bucket *buckets;  /* [bucket_count] */
    int32_t *order;   /* [count]: by the addresses of the last run, since those seldom change */
    cast *casts;
    size_t cast_count, cast_capacity;
    /* The parts of the workspace, in this order. */
    size_t cast_bytes, packed_bytes, wide_bytes;
    size_t wide_out; /* where in the wide part the result of reduce_scatter lies */
    size_t workspace_bytes;
    int32_t calls, capture_safe;
    double bytes;
};

/* --- plans: casts ----------------------------------------------------------------------------- */

static bsk_status too_large(const bsk_comm_plan *p)
{
    return bski_fail(BSK_E_INVALID,
                     "%s: the workspace would be larger than %zu bytes; legal are "
                     "smaller tensors",
                     p->op, SIZE_MAX / 2);
}

/* Rounded up to parts. */
static bsk_status part_bytes(const bsk_comm_plan *p, size_t bytes, size_t *rounded)
{
    if (!bski_add_size(bytes, PART_ALIGNMENT - 1, rounded) || *rounded > SIZE_MAX / 2)
        return too_large(p);
    *rounded -= *rounded % PART_ALIGNMENT;
    return BSK_OK;
}

static bsk_status cast_room(bsk_comm_plan *p)
{
    if (p->cast_count < p->cast_capacity)
        return BSK_OK;
    const bsk_allocator *allocator = &p->comm->device->context->allocator;
    const size_t capacity = p->cast_capacity ? 2 * p->cast_capacity : 8;
    cast *grown = bski_calloc(allocator, capacity * sizeof(*grown));
    if (!grown)
        return bski_fail(BSK_E_NOMEM, "%s: no memory for a plan", p->op);
    if (p->cast_count)
        memcpy(grown, p->casts, p->cast_count * sizeof(*grown));
    bski_free(allocator, p->casts);
    p->casts = grown;
    p->cast_capacity = capacity;
    return BSK_OK;
}

/* Casts run on the device: a staged one would wait and allocate. */
static bsk_status cast_make(bsk_comm_plan *p, cast *c)
{
    const bsk_device *device = p->comm->device;
    bsk_cast_params params = BSK_INIT(bsk_cast_params);
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    params.x = bsk_tensor_1d(c->from, c->elements);
    params.y = bsk_tensor_1d(c->to, c->elements);
    options.alignment = c->alignment;
    options.fallback = device->context->settings.fallback == BSK_FALLBACK_FORBID
                           ? BSK_FALLBACK_FORBID
                           : BSK_FALLBACK_DEVICE;
    BSKI_TRY(bsk_cast_plan(device, &params, &options, &c->plan));
    BSKI_TRY(bsk_plan_query(c->plan, &info));
    size_t bytes = 0;
    BSKI_TRY(part_bytes(p, info.workspace_bytes, &bytes));
    p->cast_bytes = bytes > p->cast_bytes ? bytes : p->cast_bytes;
    p->alignment =
        info.workspace_alignment > p->alignment ? info.workspace_alignment : p->alignment;
    p->capture_safe &= info.capture_safe;
    return BSK_OK;
}

static bsk_status cast_find(bsk_comm_plan *p, bsk_dtype from, bsk_dtype to, int64_t elements,
                            int32_t alignment, bsk_plan **plan)
{
    for (size_t i = 0; i < p->cast_count; i++) {
        const cast *c = &p->casts[i];
        if (c->from == from && c->to == to && c->elements == elements &&
            c->alignment == alignment) {
            *plan = c->plan;
            return BSK_OK;
        }
    }
    BSKI_TRY(cast_room(p));
    cast *c = &p->casts[p->cast_count];
    *c = (cast){from, to, elements, alignment, NULL};
    bsk_status status = cast_make(p, c);
    p->cast_count += c->plan != NULL; /* to be freed with the others, whatever came then */
    *plan = c->plan;
    return status;
}

/* --- plans: tensors and buckets --------------------------------------------------------------- */

static bsk_status check_tensor(const bsk_comm_plan *p, const char *name, const bsk_tensor *t,
                               uint32_t dtypes, tensor *out)
{
    bsk_tensor full = *t;
    BSKI_TRY(bski_dtype_check(p->op, name, t->dtype, dtypes));
    BSKI_TRY(bski_tensor_check(p->op, name, t, &out->elements, &out->bytes));
    bski_tensor_normalise(&full);
    if (out->elements && !bski_is_contiguous(&full, 0))
        return bski_fail(BSK_E_INVALID,
                         "%s: %s is not contiguous; legal are strides of row-major "
                         "order without gaps",
                         p->op, name);
    out->dtype = t->dtype;
    out->bucket = -1;
    return BSK_OK;
}

/* Decides how a filled bucket is added, and makes room for that. */
static bsk_status finish_bucket(bsk_comm_plan *p, bucket *b)
{
    size_t in = b->bytes, wide = 0;
    int64_t from = b->count; /* elements that go in */
    if (p->kind == BSK_REDUCE_SCATTER && (!bski_mul_i64(from, p->comm->size, &from) ||
                                          !bski_mul_size(in, (size_t)p->comm->size, &in)))
        return too_large(p);
    p->calls++;
    if (p->kind == BSK_ALL_GATHER || p->comm->transport->sums >> b->dtype & 1) {
        p->bytes += (double)in;
        return BSK_OK;
    }
    /* A rank's part of one tensor lies anywhere. */
    const int32_t align = p->list ? PROMISED_ALIGNMENT : (int32_t)bsk_dtype_size(b->dtype);
    BSKI_TRY(cast_find(p, b->dtype, BSK_F32, from, align, &b->widen));
    BSKI_TRY(cast_find(p, BSK_F32, b->dtype, b->count, align, &b->narrow));
    if (!bski_mul_size((size_t)from, sizeof(float), &wide))
        return too_large(p);
    p->bytes += (double)wide;
    BSKI_TRY(part_bytes(p, wide, &wide));
    if (p->kind == BSK_REDUCE_SCATTER) {
        p->wide_out = wide;
        if (!bski_add_size(wide, (size_t)b->count * sizeof(float), &wide))
            return too_large(p);
        BSKI_TRY(part_bytes(p, wide, &wide));
    }
    p->wide_bytes = wide > p->wide_bytes ? wide : p->wide_bytes;
    return BSK_OK;
}

/* The type in which a tensor of the list is added. */
static bsk_dtype wire_type(const bsk_group_all_reduce_params *params, bsk_dtype dtype)
{
    return params->wire && FLOATS >> dtype & 1 ? params->wire : dtype;
}

/* Puts tensors of one type on the way into buckets. */
static bsk_status fill_buckets(bsk_comm_plan *p, const bsk_group_all_reduce_params *params,
                               bsk_dtype wire)
{
    bucket *b = NULL;
    for (int32_t i = 0; i < p->count; i++) {
        tensor *t = &p->tensors[i];
        size_t bytes, sum = 0;
        if (!t->elements || wire_type(params, t->dtype) != wire)
            continue;
        if (!bski_mul_size((size_t)t->elements, bsk_dtype_size(wire), &bytes))
            return too_large(p);
        if (!b || !bski_add_size(b->bytes, bytes, &sum) || sum > (size_t)params->bucket_bytes)
            b = &p->buckets[p->bucket_count++];
        b->dtype = wire;
        t->bucket = (int32_t)(b - p->buckets);
        t->offset = b->bytes;
        b->tensors++;
        b->bytes += bytes;
        b->count += t->elements;
    }
    return BSK_OK;
}

/* What of addresses is sure in a bucket whose own is a multiple of PART_ALIGNMENT. */
static int32_t offset_alignment(size_t offset)
{
    const size_t bit = offset & (0 - offset);
    return bit && bit < PROMISED_ALIGNMENT ? (int32_t)bit : PROMISED_ALIGNMENT;
}

static bsk_status fill_group(bsk_comm_plan *p, const bsk_group_all_reduce_params *params)
{
    for (int d = BSK_F64; d < BSK_DTYPE_COUNT; d++)
        BSKI_TRY(fill_buckets(p, params, (bsk_dtype)d));
    for (int32_t i = 0; i < p->bucket_count; i++)
        BSKI_TRY(finish_bucket(p, &p->buckets[i]));
    for (int32_t i = 0; i < p->count; i++) {
        tensor *t = &p->tensors[i];
        const bucket *b = t->bucket < 0 ? NULL : &p->buckets[t->bucket];
        if (!b || (b->tensors == 1 && b->dtype == t->dtype))
            continue;
        const int32_t alignment = offset_alignment(t->offset);
        size_t bytes = 0;
        BSKI_TRY(cast_find(p, t->dtype, b->dtype, t->elements, alignment, &t->pack));
        BSKI_TRY(cast_find(p, b->dtype, t->dtype, t->elements, alignment, &t->unpack));
        BSKI_TRY(part_bytes(p, b->bytes, &bytes));
        p->packed_bytes = bytes > p->packed_bytes ? bytes : p->packed_bytes;
    }
    return BSK_OK;
}

/* x and y of one tensor's collective: equal but for the first dimension, of which one has a part for
 * each rank. */
static bsk_status check_pair(const bsk_comm_plan *p, const bsk_collective_params *params)
{
    const bsk_tensor *x = &params->x, *y = &params->y;
    const bool split = p->kind != BSK_ALL_REDUCE, gathers = p->kind == BSK_ALL_GATHER;
    if (x->dtype != y->dtype)
        return bski_fail(BSK_E_INVALID, "%s: y.dtype is %s; must be %s (that of x)", p->op,
                         bsk_dtype_name(y->dtype), bsk_dtype_name(x->dtype));
    if (x->rank < split)
        return bski_fail(BSK_E_INVALID, "%s: x.rank is %d; legal are 1 to %d", p->op, (int)x->rank,
                         BSK_MAX_RANK);
    if (x->rank != y->rank)
        return bski_fail(BSK_E_INVALID, "%s: y.rank is %d; must be %d (that of x)", p->op,
                         (int)y->rank, (int)x->rank);
    for (int i = 0; i < x->rank; i++) {
        const bool cut = split && i == 0;
        const int64_t part = gathers ? x->dims[i] : y->dims[i];
        int64_t whole = part;
        if (cut && !bski_mul_i64(part, p->comm->size, &whole))
            return too_large(p);
        if ((gathers ? y->dims[i] : x->dims[i]) != whole)
            return bski_fail(BSK_E_INVALID, "%s: x.dims[%d] is %lld and y.dims[%d] %lld; %s", p->op,
                             i, (long long)x->dims[i], i, (long long)y->dims[i],
                             !cut      ? "must be equal"
                             : gathers ? "y's must be x's by the number of ranks"
                                       : "x's must be y's by the number of ranks");
    }
    return BSK_OK;
}

/* --- plans: making and freeing ---------------------------------------------------------------- */

void bsk_comm_plan_destroy(bsk_comm_plan **plan)
{
    if (!plan || !*plan)
        return;
    bsk_comm_plan *p = *plan;
    const bsk_allocator *allocator = &p->comm->device->context->allocator;
    for (size_t i = 0; i < p->cast_count; i++)
        bsk_plan_destroy(&p->casts[i].plan);
    bski_free(allocator, p->casts);
    bski_free(allocator, p->order);
    bski_free(allocator, p->buckets);
    bski_free(allocator, p->tensors);
    bski_free(allocator, p);
    *plan = NULL;
}

/* A plan without its contents; *plan is NULL where that fails. */
static bsk_status plan_new(bsk_comm *comm, const char *op, bsk_collective kind, int32_t count,
                           bsk_comm_plan **plan)
{
    const bsk_allocator *allocator = &comm->device->context->allocator;
    bsk_comm_plan *p = bski_calloc(allocator, sizeof(*p));
    if (!p)
        return bski_fail(BSK_E_NOMEM, "%s: no memory for a plan", op);
    const size_t n = count ? (size_t)count : 1;
    p->comm = comm;
    p->op = op;
    p->kind = kind;
    p->count = count;
    p->alignment = PART_ALIGNMENT;
    p->capture_safe = comm->transport->capture_safe;
    p->tensors = bski_calloc(allocator, n * sizeof(*p->tensors));
    p->buckets = bski_calloc(allocator, n * sizeof(*p->buckets));
    p->order = bski_calloc(allocator, n * sizeof(*p->order));
    for (int32_t i = 0; p->order && i < count; i++)
        p->order[i] = i;
    *plan = p;
    if (p->tensors && p->buckets && p->order)
        return BSK_OK;
    bsk_comm_plan_destroy(plan);
    return bski_fail(BSK_E_NOMEM, "%s: no memory for a plan", op);
}

/* Ends the making of a plan whose contents got this status. */
static bsk_status plan_end(bsk_comm_plan *p, bsk_status status, bsk_comm_plan **plan)
{
    size_t bytes = 0;
    if (!status && (!bski_add_size(p->packed_bytes, p->wide_bytes, &bytes) ||
                    !bski_add_size(bytes, p->cast_bytes, &p->workspace_bytes)))
        status = too_large(p);
    if (status)
        bsk_comm_plan_destroy(&p);
    *plan = p;
    return status;
}

static bsk_status check_plan_call(const char *op, const bsk_comm *comm, const void *params,
                                  bsk_comm_plan **plan)
{
    if (!plan)
        return bski_fail(BSK_E_INVALID, "%s: plan is NULL", op);
    *plan = NULL;
    if (!comm || !params)
        return bski_fail(BSK_E_INVALID, "%s: %s is NULL", op, comm ? "params" : "comm");
    return BSK_OK;
}

static bsk_status pair_fill(bsk_comm_plan *p, const bsk_collective_params *params)
{
    const bool gathers = p->kind == BSK_ALL_GATHER;
    const uint32_t dtypes = gathers ? ALL_TYPES : bski_comm_sums(p->comm);
    BSKI_TRY(check_tensor(p, "x", &params->x, dtypes, &p->tensors[0]));
    BSKI_TRY(check_tensor(p, "y", &params->y, dtypes, &p->tensors[1]));
    BSKI_TRY(check_pair(p, params));
    const tensor *part = &p->tensors[!gathers];
    if (!part->elements)
        return BSK_OK;
    bucket *b = &p->buckets[p->bucket_count++];
    b->dtype = gathers ? BSK_U8 : part->dtype;
    b->count = gathers ? (int64_t)part->bytes : part->elements;
    b->bytes = part->bytes;
    return finish_bucket(p, b);
}

static bsk_status pair_plan(const char *op, bsk_collective kind, bsk_comm *comm,
                            const bsk_collective_params *params, bsk_comm_plan **plan)
{
    bsk_collective_params full;
    bsk_comm_plan *p = NULL;
    BSKI_TRY(check_plan_call(op, comm, params, plan));
    BSKI_TRY(bski_struct_read(op, params, sizeof(full), &full));
    BSKI_TRY(plan_new(comm, op, kind, 2, &p));
    return plan_end(p, pair_fill(p, &full), plan);
}

/* A plan of a list, with the tensors checked. */
static bsk_status list_new(bsk_comm *comm, const char *op, bsk_collective kind, int32_t count,
                           const bsk_tensor *tensors, bsk_comm_plan **plan)
{
    if (count < 0 || count > MAX_TENSORS)
        return bski_fail(BSK_E_INVALID, "%s: count is %d; legal are 0 to %d", op, (int)count,
                         MAX_TENSORS);
    if (count && !tensors)
        return bski_fail(BSK_E_INVALID, "%s: params.tensors is NULL", op);
    BSKI_TRY(plan_new(comm, op, kind, count, plan));
    bsk_comm_plan *p = *plan;
    p->list = true;
    const uint32_t dtypes = kind == BSK_BROADCAST ? ALL_TYPES : bski_comm_sums(comm);
    bsk_status status = BSK_OK;
    for (int32_t i = 0; !status && i < count; i++) {
        char name[32];
        snprintf(name, sizeof(name), "tensors[%d]", (int)i);
        status = check_tensor(p, name, &tensors[i], dtypes, &p->tensors[i]);
    }
    if (status)
        bsk_comm_plan_destroy(plan);
    return status;
}

bsk_status bsk_all_reduce_plan(bsk_comm *comm, const bsk_collective_params *params,
                               bsk_comm_plan **plan)
{
    return pair_plan("all_reduce", BSK_ALL_REDUCE, comm, params, plan);
}

bsk_status bsk_reduce_scatter_plan(bsk_comm *comm, const bsk_collective_params *params,
                                   bsk_comm_plan **plan)
{
    return pair_plan("reduce_scatter", BSK_REDUCE_SCATTER, comm, params, plan);
}

bsk_status bsk_all_gather_plan(bsk_comm *comm, const bsk_collective_params *params,
                               bsk_comm_plan **plan)
{
    return pair_plan("all_gather", BSK_ALL_GATHER, comm, params, plan);
}

bsk_status bsk_group_all_reduce_plan(bsk_comm *comm, const bsk_group_all_reduce_params *params,
                                     bsk_comm_plan **plan)
{
    const char *op = "group_all_reduce";
    bsk_group_all_reduce_params full;
    bsk_comm_plan *p = NULL;
    BSKI_TRY(check_plan_call(op, comm, params, plan));
    BSKI_TRY(bski_struct_read(op, params, sizeof(full), &full));
    if (full.wire)
        BSKI_TRY(bski_dtype_check(op, "wire", full.wire, FLOATS & bski_comm_sums(comm)));
    if (full.bucket_bytes < 0)
        return bski_fail(BSK_E_INVALID, "%s: bucket_bytes is %lld; legal are 0 to %lld", op,
                         (long long)full.bucket_bytes, (long long)INT64_MAX);
    if (!full.bucket_bytes)
        full.bucket_bytes = BUCKET_BYTES;
    BSKI_TRY(list_new(comm, op, BSK_ALL_REDUCE, full.count, full.tensors, &p));
    return plan_end(p, fill_group(p, &full), plan);
}

bsk_status bsk_broadcast_plan(bsk_comm *comm, const bsk_broadcast_params *params,
                              bsk_comm_plan **plan)
{
    const char *op = "broadcast";
    bsk_broadcast_params full;
    bsk_comm_plan *p = NULL;
    BSKI_TRY(check_plan_call(op, comm, params, plan));
    BSKI_TRY(bski_struct_read(op, params, sizeof(full), &full));
    if (full.root < 0 || full.root >= comm->size)
        return bski_fail(BSK_E_INVALID, "%s: root is %d; legal are 0 to %d", op, (int)full.root,
                         (int)comm->size - 1);
    BSKI_TRY(list_new(comm, op, BSK_BROADCAST, full.count, full.tensors, &p));
    p->root = full.root;
    for (int32_t i = 0; i < p->count; i++) {
        p->calls += p->tensors[i].bytes != 0;
        p->bytes += (double)p->tensors[i].bytes;
    }
    return plan_end(p, BSK_OK, plan);
}

bsk_status bsk_comm_plan_query(const bsk_comm_plan *plan, bsk_comm_plan_info *info)
{
    if (!plan || !info)
        return bski_fail(BSK_E_INVALID, "bsk_comm_plan_query: %s is NULL", plan ? "info" : "plan");
    bsk_comm_plan_info full = {
        .op = plan->op,
        .workspace_bytes = plan->workspace_bytes,
        .workspace_alignment = plan->alignment,
        .calls = plan->calls,
        .capture_safe = plan->capture_safe,
        .bytes = plan->bytes,
    };
    return bski_struct_write("bsk_comm_plan_query: info", &full, sizeof(full), info);
}

/* --- runs: checks ----------------------------------------------------------------------------- */

static bsk_status check_view(const bsk_comm_plan *p, const tensor *t, const char *name,
                             const bsk_mem *m, size_t align)
{
    if (!t->bytes)
        return BSK_OK;
    if (m->kind == BSK_MEM_NULL || !m->handle)
        return bski_fail(BSK_E_INVALID, "%s: args.%s is NULL; %zu bytes are needed", p->op, name,
                         t->bytes);
    BSKI_TRY(bski_kind_check(p->op, name, p->comm->device, m->kind));
    BSKI_TRY(
        bski_alignment_check(p->op, name, m, align, "an element, or 16 bytes for casts of lists"));
    if (m->size && m->size < t->bytes)
        return bski_fail(BSK_E_INVALID, "%s: args.%s.size is %zu bytes; at least %zu are needed",
                         p->op, name, m->size, t->bytes);
    return BSK_OK;
}

static bool ranges_meet(uintptr_t a, size_t a_bytes, uintptr_t b, size_t b_bytes)
{
    return a_bytes && b_bytes && a < b + b_bytes && b < a + a_bytes;
}

/* Of a plan's views, in the order of its tensors. */
static bsk_status check_views(const bsk_comm_plan *p, const bsk_mem *views,
                              const bsk_mem *workspace)
{
    const bool casts = p->list && p->cast_count;
    for (int32_t i = 0; i < p->count; i++) {
        const tensor *t = &p->tensors[i];
        const size_t align = casts ? PROMISED_ALIGNMENT : bsk_dtype_size(t->dtype);
        const char *name = p->list ? "tensors" : i ? "y" : "x";
        if (!check_view(p, t, name, &views[i], align))
            continue;
        char numbered[32]; /* made only where somebody reads it */
        snprintf(numbered, sizeof(numbered), "tensors[%d]", (int)i);
        return check_view(p, t, p->list ? numbered : name, &views[i], align);
    }
    if (!p->workspace_bytes)
        return BSK_OK;
    BSKI_TRY(bski_bytes_check(p->op, "workspace", p->comm->device, workspace, p->workspace_bytes,
                              p->alignment));
    for (int32_t i = 0; i < p->count; i++)
        if (ranges_meet(bski_address(workspace), p->workspace_bytes, bski_address(&views[i]),
                        p->tensors[i].bytes))
            return bski_fail(BSK_E_INVALID, "%s: args.workspace overlaps args.%s", p->op,
                             p->list ? "tensors"
                             : i     ? "y"
                                     : "x");
    return BSK_OK;
}

/* Whether x and y lie apart, or as the collective allows it. */
static bsk_status check_pair_views(const bsk_comm_plan *p, const bsk_mem *views)
{
    const uintptr_t x = bski_address(&views[0]), y = bski_address(&views[1]);
    const size_t part = p->bucket_count ? p->buckets[0].bytes * (size_t)p->comm->rank : 0;
    const bool in_place = p->kind == BSK_ALL_REDUCE       ? x == y
                          : p->kind == BSK_REDUCE_SCATTER ? y == x + part
                                                          : x == y + part;
    if (in_place || !ranges_meet(x, p->tensors[0].bytes, y, p->tensors[1].bytes))
        return BSK_OK;
    return bski_fail(BSK_E_INVALID, "%s: args.y overlaps args.x in a way that is not in place",
                     p->op);
}

/* Whether the tensors of a list lie apart: neighbours by address do. Insertion sort, since the order
 * is mostly that of the run before. */
static bsk_status check_list_views(const bsk_comm_plan *p, const bsk_mem *views)
{
    uintptr_t end = 0;
    for (int32_t i = 1; i < p->count; i++) {
        const int32_t moved = p->order[i];
        int32_t to = i;
        for (; to && bski_address(&views[p->order[to - 1]]) > bski_address(&views[moved]); to--)
            p->order[to] = p->order[to - 1];
        p->order[to] = moved;
    }
    for (int32_t i = 0; i < p->count; i++) {
        const int32_t k = p->order[i];
        const uintptr_t at = bski_address(&views[k]);
        if (!p->tensors[k].bytes)
            continue;
        if (at < end)
            return bski_fail(BSK_E_INVALID, "%s: args.tensors[%d] overlaps another one", p->op,
                             (int)k);
        end = at + p->tensors[k].bytes;
    }
    return BSK_OK;
}

static bsk_status check_run(const char *op, const bsk_comm_plan *p, const bsk_queue *queue,
                            const void *args)
{
    if (!p || !queue || !args)
        return bski_fail(BSK_E_INVALID, "%s: %s is NULL", op,
                         !p       ? "plan"
                         : !queue ? "queue"
                                  : "args");
    if (strcmp(p->op, op))
        return bski_fail(BSK_E_INVALID, "%s: the plan was made for %s", op, p->op);
    if (queue->device != p->comm->device)
        return bski_fail(BSK_E_INVALID, "%s: the communicator is of %s, the queue of %s", op,
                         p->comm->device->id, queue->device->id);
    return BSK_OK;
}

/* --- runs: work ------------------------------------------------------------------------------- */

/* Where a part of the workspace begins. */
static bsk_mem part_at(const bsk_mem *workspace, size_t offset)
{
    bsk_mem part = *workspace;
    part.offset += offset;
    part.size -= part.size < offset ? part.size : offset;
    return part;
}

static bsk_status run_cast(const bsk_plan *plan, bsk_queue *queue, const bsk_mem *workspace,
                           bsk_mem x, bsk_mem y)
{
    bsk_cast_args args = BSK_INIT(bsk_cast_args);
    args.workspace = *workspace;
    args.x = x;
    args.y = y;
    return bsk_cast_run(plan, queue, &args);
}

static bsk_status run_call(const bsk_comm_plan *p, bsk_queue *queue, const bucket *b,
                           bsk_dtype dtype, bsk_mem x, bsk_mem y)
{
    const bsk_transport_call call = {.kind = p->kind,
                                     .dtype = dtype,
                                     .x = bsk_mem_address(x),
                                     .y = bsk_mem_address(y),
                                     .count = (size_t)b->count};
    return bski_comm_run(p->comm, queue, p->op, &call, 1);
}

/* x to y through the transport, in f32 where it does not add the type. */
static bsk_status run_bucket(const bsk_comm_plan *p, bsk_queue *queue, const bucket *b,
                             const bsk_mem *workspace, bsk_mem x, bsk_mem y)
{
    if (!b->widen)
        return run_call(p, queue, b, b->dtype, x, y);
    const bsk_mem wide = part_at(workspace, p->cast_bytes + p->packed_bytes);
    const bsk_mem sum = part_at(&wide, p->wide_out);
    BSKI_TRY(run_cast(b->widen, queue, workspace, x, wide));
    BSKI_TRY(run_call(p, queue, b, BSK_F32, wide, sum));
    return run_cast(b->narrow, queue, workspace, sum, y);
}

static bsk_status run_pair(const char *op, const bsk_comm_plan *p, bsk_queue *queue,
                           const bsk_collective_args *args)
{
    bsk_collective_args a;
    BSKI_TRY(check_run(op, p, queue, args));
    BSKI_TRY(bski_struct_read(op, args, sizeof(a), &a));
    const bsk_mem views[2] = {a.x, a.y};
    BSKI_TRY(check_views(p, views, &a.workspace));
    BSKI_TRY(check_pair_views(p, views));
    return p->bucket_count ? run_bucket(p, queue, &p->buckets[0], &a.workspace, a.x, a.y) : BSK_OK;
}

bsk_status bsk_all_reduce_run(const bsk_comm_plan *plan, bsk_queue *queue,
                              const bsk_collective_args *args)
{
    return run_pair("all_reduce", plan, queue, args);
}

bsk_status bsk_reduce_scatter_run(const bsk_comm_plan *plan, bsk_queue *queue,
                                  const bsk_collective_args *args)
{
    return run_pair("reduce_scatter", plan, queue, args);
}

bsk_status bsk_all_gather_run(const bsk_comm_plan *plan, bsk_queue *queue,
                              const bsk_collective_args *args)
{
    return run_pair("all_gather", plan, queue, args);
}

static bsk_status read_list(const char *op, const bsk_comm_plan *p, const bsk_queue *queue,
                            const bsk_tensor_list_args *args, bsk_tensor_list_args *full)
{
    BSKI_TRY(check_run(op, p, queue, args));
    BSKI_TRY(bski_struct_read(op, args, sizeof(*full), full));
    if (p->count && !full->tensors)
        return bski_fail(BSK_E_INVALID, "%s: args.tensors is NULL", op);
    BSKI_TRY(check_views(p, full->tensors, &full->workspace));
    return check_list_views(p, full->tensors);
}

/* Packs the tensors of bucket i, or brings them back. *only: one that is added where it is. */
static bsk_status move_tensors(const bsk_comm_plan *p, bsk_queue *queue, int32_t i, bool back,
                               const bsk_tensor_list_args *a, const bsk_mem *packed, bsk_mem *only)
{
    for (int32_t k = 0, left = p->buckets[i].tensors; left; k++) {
        const tensor *t = &p->tensors[k];
        if (t->bucket != i)
            continue;
        left--;
        const bsk_mem place = part_at(packed, t->offset);
        if (!t->pack)
            *only = a->tensors[k];
        else if (back)
            BSKI_TRY(run_cast(t->unpack, queue, &a->workspace, place, a->tensors[k]));
        else
            BSKI_TRY(run_cast(t->pack, queue, &a->workspace, a->tensors[k], place));
    }
    return BSK_OK;
}

bsk_status bsk_group_all_reduce_run(const bsk_comm_plan *plan, bsk_queue *queue,
                                    const bsk_tensor_list_args *args)
{
    bsk_tensor_list_args a;
    BSKI_TRY(read_list("group_all_reduce", plan, queue, args, &a));
    const bsk_mem packed = part_at(&a.workspace, plan->cast_bytes);
    for (int32_t i = 0; i < plan->bucket_count; i++) {
        bsk_mem sum = packed;
        BSKI_TRY(move_tensors(plan, queue, i, false, &a, &packed, &sum));
        BSKI_TRY(run_bucket(plan, queue, &plan->buckets[i], &a.workspace, sum, sum));
        BSKI_TRY(move_tensors(plan, queue, i, true, &a, &packed, &sum));
    }
    return BSK_OK;
}

bsk_status bsk_broadcast_run(const bsk_comm_plan *plan, bsk_queue *queue,
                             const bsk_tensor_list_args *args)
{
    bsk_tensor_list_args a;
    bsk_transport_call calls[MAX_CALLS];
    size_t count = 0;
    BSKI_TRY(read_list("broadcast", plan, queue, args, &a));
    for (int32_t i = 0; i < plan->count; i++) {
        void *at = bsk_mem_address(a.tensors[i]);
        if (!plan->tensors[i].bytes)
            continue;
        if (count == MAX_CALLS) {
            BSKI_TRY(bski_comm_run(plan->comm, queue, plan->op, calls, count));
            count = 0;
        }
        calls[count++] = (bsk_transport_call){.kind = BSK_BROADCAST,
                                              .dtype = BSK_U8,
                                              .x = at,
                                              .y = at,
                                              .count = plan->tensors[i].bytes,
                                              .root = plan->root};
    }
    return count ? bski_comm_run(plan->comm, queue, plan->op, calls, count) : BSK_OK;
}
