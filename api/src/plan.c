/* Plans and runs, once for all ops: every check follows the op's descriptor. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/src/internal.h"
#include "common/checked.h"
#include "common/dtype.h"
#include "common/layout.h"

/* Of any version's params, args or info struct, in bytes. */
enum { MAX_STRUCT = 65536 };

/* Any version's size is a multiple of the alignment; others would cut a field in two. */
static bsk_status check_size(const char *name, size_t size)
{
    if (size >= sizeof(size_t) && size <= MAX_STRUCT && size % _Alignof(size_t) == 0)
        return BSK_OK;
    return bski_fail(BSK_E_INVALID,
                     "%s.struct_size is %zu; legal are multiples of %zu from %zu to %d", name, size,
                     _Alignof(size_t), sizeof(size_t), MAX_STRUCT);
}

bsk_status bski_struct_read(const char *name, const void *source, size_t full_size, void *full)
{
    size_t size;
    memcpy(&size, source, sizeof(size));
    BSKI_TRY(check_size(name, size));
    for (size_t i = full_size; i < size; i++)
        if (((const char *)source)[i])
            return bski_fail(BSK_E_VERSION,
                             "%s sets a field at byte %zu that this library (%zu bytes) does not "
                             "know",
                             name, i, full_size);
    memset(full, 0, full_size);
    memcpy(full, source, size < full_size ? size : full_size);
    memcpy(full, &full_size, sizeof(full_size));
    return BSK_OK;
}

bsk_status bski_struct_write(const char *name, const void *full, size_t full_size, void *out)
{
    size_t size;
    memcpy(&size, out, sizeof(size));
    BSKI_TRY(check_size(name, size));
    memset((char *)out + sizeof(size), 0, size - sizeof(size));
    memcpy((char *)out + sizeof(size), (const char *)full + sizeof(size),
           (size < full_size ? size : full_size) - sizeof(size));
    return BSK_OK;
}

/* --- checks at plan time ---------------------------------------------------------------------- */

double bski_field_value(const bski_field *f, const void *base)
{
    const char *p = (const char *)base + f->offset;
    switch (f->kind) {
    case BSKI_I32: {
        int32_t v;
        memcpy(&v, p, sizeof(v));
        return v;
    }
    case BSKI_I64: {
        int64_t v;
        memcpy(&v, p, sizeof(v));
        return (double)v;
    }
    case BSKI_U64: {
        uint64_t v;
        memcpy(&v, p, sizeof(v));
        return (double)v;
    }
    default: {
        double v;
        memcpy(&v, p, sizeof(v));
        return v;
    }
    }
}

static bsk_status check_field(const char *op, const bski_field *f, const void *base)
{
    double v = bski_field_value(f, base);
    if (v >= f->low && (f->open ? v < f->high : v <= f->high))
        return BSK_OK;
    return bski_fail(BSK_E_INVALID, "%s: %s is %.17g; legal are %.10g to %.10g%s", op, f->name, v,
                     f->low, f->high, f->open ? " (excluded)" : "");
}

static void fill_default(const bski_field *f, void *base)
{
    char *p = (char *)base + f->offset;
    if (f->zero_means == 0 || bski_field_value(f, base) != 0)
        return;
    if (f->kind == BSKI_F64) {
        memcpy(p, &f->zero_means, sizeof(double));
    } else if (f->kind == BSKI_I32) {
        int32_t v = (int32_t)f->zero_means;
        memcpy(p, &v, sizeof(v));
    } else {
        int64_t v = (int64_t)f->zero_means;
        memcpy(p, &v, sizeof(v));
    }
}

/* The types that an argument may have, as a mask, given the main argument's type. */
static uint32_t legal_dtypes(const bski_arg *a, bsk_dtype main)
{
    uint32_t mask = a->dtypes & ~(BSKI_SAME | BSKI_SIDE);
    if (a->dtypes & BSKI_SAME)
        mask |= BSK_DTYPE_BIT(main) & BSKI_F8 ? BSKI_F8 : BSK_DTYPE_BIT(main);
    if (a->dtypes & BSKI_SIDE)
        mask |= BSK_DTYPE_BIT(main == BSK_F64 ? BSK_F64 : BSK_F32);
    return mask;
}

static bsk_status check_dtype(const bski_op_info *op, const bski_arg *a, const bsk_tensor *t,
                              bsk_dtype main)
{
    return bski_dtype_check(op->name, a->name, t->dtype, legal_dtypes(a, main));
}

static bool is_unit_axis(const bsk_tensor *t, int axis)
{
    return axis < 0 || t->dims[axis] <= 1 || t->strides[axis] == 1;
}

static const char *const stride_rules[] = {
    [BSKI_ANY_STRIDE] = "",
    [BSKI_CONTIGUOUS] = "the tensor must be contiguous",
    [BSKI_UNIT_AXIS] = "one of the last two axes must have stride 1",
    [BSKI_DENSE_BLOCKS] = "the blocks must be contiguous",
    [BSKI_UNIT_LAST] = "the last axis must have stride 1",
};

static bool strides_ok(const bski_arg *a, const bsk_tensor *t)
{
    switch (a->strides) {
    case BSKI_CONTIGUOUS:
        return bski_is_contiguous(t, 0);
    case BSKI_UNIT_AXIS:
        return is_unit_axis(t, t->rank - 1) || is_unit_axis(t, t->rank - 2);
    case BSKI_DENSE_BLOCKS:
        return bski_is_contiguous(t, t->rank > 3 ? t->rank - 3 : 0);
    case BSKI_UNIT_LAST:
        return is_unit_axis(t, t->rank - 1);
    default:
        return true;
    }
}

/* Whether two different indices of a tensor may reach the same element, as far as is looked for: sorting
 * the axes by stride, each must step over everything below it. */
static bool overlaps_itself(const bsk_tensor *t)
{
    int64_t reach = 1;
    bool used[BSK_MAX_RANK] = {false};
    for (int n = 0; n < t->rank; n++) {
        int best = -1;
        for (int i = 0; i < t->rank; i++)
            if (!used[i] && (best < 0 || t->strides[i] < t->strides[best]))
                best = i;
        used[best] = true;
        if (t->dims[best] <= 1)
            continue;
        if (t->strides[best] < reach)
            return true;
        reach = t->strides[best] * (t->dims[best] - 1) + reach;
    }
    return false;
}

static bsk_status bad_strides(const bski_op_info *op, const bski_arg *a, const bsk_tensor *t,
                              const char *rule)
{
    char text[BSK_MAX_RANK * 24] = "";
    for (int i = 0; i < t->rank; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, sizeof(text) - used, "%s%lld", i ? ", " : "",
                 (long long)t->strides[i]);
    }
    return bski_fail(BSK_E_INVALID, "%s: %s.strides are %s: %s", op->name, a->name, text, rule);
}

static bsk_status check_arg(const bski_op_info *op, int i, bsk_plan *plan)
{
    const bski_arg *a = &op->args[i];
    bsk_tensor *t = (bsk_tensor *)((char *)plan->params + a->desc);
    if (t->dtype == BSK_NONE) {
        memset(t, 0, sizeof(*t));
        return a->optional
                   ? BSK_OK
                   : bski_fail(BSK_E_INVALID, "%s: %s is absent but required", op->name, a->name);
    }
    bsk_dtype main = bski_arg_tensor(op, plan->params, op->main)->dtype;
    BSKI_TRY(check_dtype(op, a, t, main));
    if (t->rank < a->rank_min || t->rank > a->rank_max)
        return bski_fail(BSK_E_INVALID, "%s: %s.rank is %d; legal are %d to %d", op->name, a->name,
                         (int)t->rank, a->rank_min, a->rank_max);
    int64_t elements;
    BSKI_TRY(bski_tensor_check(op->name, a->name, t, &elements, &plan->extents[i]));
    bski_tensor_normalise(t);
    if (elements && !strides_ok(a, t))
        return bad_strides(op, a, t, stride_rules[a->strides]);
    if (elements && a->role != BSKI_IN && overlaps_itself(t))
        return bad_strides(op, a, t,
                           "an output's must each be at least the reach of the smaller ones");
    plan->bytes += (double)elements * (double)bsk_dtype_size(t->dtype) *
                   (a->list ? plan->pairs : 1) * (a->role == BSKI_INOUT ? 2 : 1);
    return BSK_OK;
}

/* --- making a plan ---------------------------------------------------------------------------- */

/* In bytes: of workspaces and packed images unless an entry says otherwise; what plans promise of
 * addresses unless their options do, and the most that they may promise. */
enum { DEFAULT_ALIGNMENT = 64, PROMISED_ALIGNMENT = 16, MAX_ALIGNMENT = 4096 };

static bsk_status take_layout(bsk_plan *plan)
{
    const bski_op_info *op = plan->op;
    if (!op->layout)
        return BSK_OK;
    bsk_layout *layout;
    memcpy(&layout, (char *)plan->params + op->layout, sizeof(layout));
    if (!layout)
        return bski_fail(BSK_E_INVALID, "%s: params.layout is NULL", op->name);
    if (layout->tables.heads > 1 && !op->heads)
        return bski_fail(BSK_E_INVALID, "%s: the layout has %d heads; legal is 1", op->name,
                         (int)layout->tables.heads);
    plan->layout = bsk_layout_retain(layout);
    return BSK_OK;
}

/* Keeps a copy of the op's list, which params then point to. */
static bsk_status take_list(bsk_plan *plan)
{
    const bski_op_info *op = plan->op;
    const int32_t *list;
    int64_t size;
    size_t bytes;
    if (!op->list)
        return BSK_OK;
    char *field = (char *)plan->params + op->list;
    memcpy(&list, field, sizeof list);
    memcpy(&size, (char *)plan->params + op->list_size, sizeof size);
    if (size < 0 || !bski_mul_size((size_t)size, sizeof *list, &bytes))
        return bski_fail(BSK_E_INVALID, "%s: the size of its list is %lld; legal are 0 to %zu",
                         op->name, (long long)size, SIZE_MAX / 2 / sizeof *list);
    if (size && !list)
        return bski_fail(BSK_E_INVALID, "%s: its list is NULL; %lld numbers are needed", op->name,
                         (long long)size);
    plan->list = bski_calloc(&plan->device->context->allocator, bytes + sizeof *list);
    if (!plan->list)
        return bski_fail(BSK_E_NOMEM, "%s: no memory for a plan", op->name);
    if (size)
        memcpy(plan->list, list, bytes);
    memcpy(field, &plan->list, sizeof plan->list);
    return BSK_OK;
}

static bsk_status check_problem(bsk_plan *plan)
{
    const bski_op_info *op = plan->op;
    for (int i = 0; i < op->attr_count; i++) {
        BSKI_TRY(check_field(op->name, &op->attrs[i], plan->params));
        fill_default(&op->attrs[i], plan->params);
    }
    plan->pairs = 1;
    if (op->pairs)
        memcpy(&plan->pairs, (char *)plan->params + op->pairs, sizeof(plan->pairs));
    BSKI_TRY(take_layout(plan));
    BSKI_TRY(take_list(plan));
    /* The main argument first: the types of others follow its. */
    BSKI_TRY(check_arg(op, op->main, plan));
    for (int i = 0; i < op->arg_count; i++)
        if (i != op->main)
            BSKI_TRY(check_arg(op, i, plan));
    return op->check(op, plan->params, plan->layout ? &plan->layout->tables : NULL);
}

static bsk_dtype problem_dtype(const bski_op_info *op, const void *params)
{
    for (int i = 0; i < op->arg_count; i++)
        if (op->widens >> i & 1 && bski_arg_tensor(op, params, i)->dtype == BSK_F64)
            return BSK_F64;
    return bski_arg_tensor(op, params, op->main)->dtype;
}

static bsk_status fill_problem(bsk_plan *plan, const bsk_plan_options *options)
{
    const bski_op_info *op = plan->op, *kernel = bski_kernel_op(op->kernel_op);
    plan->kernel_params = plan->params;
    if (op->lower_params) {
        plan->kernel_params = bski_calloc(&plan->device->context->allocator, kernel->params_size);
        if (!plan->kernel_params)
            return bski_fail(BSK_E_NOMEM, "%s: no memory for a plan", op->name);
        size_t size = kernel->params_size;
        memcpy(plan->kernel_params, &size, sizeof(size));
        op->lower_params(plan->params, plan->kernel_params);
    }
    plan->problem = (bsk_problem){
        .struct_size = sizeof(bsk_problem),
        .op = op->kernel_op,
        .dtype = problem_dtype(op, plan->params),
        .params = plan->kernel_params,
        .layout = plan->layout ? &plan->layout->tables : NULL,
        .packed = op->packed && options->packed,
    };
    if (op->flops)
        plan->flops = op->flops(plan->params, plan->problem.layout);
    return BSK_OK;
}

/* Warns once for each op and device. Later plans of the same kind stay silent. */
static void warn_fallback(const bsk_plan *plan)
{
    bsk_context *c = plan->device->context;
    size_t index = 0;
    while (index < c->device_count && c->devices[index] != plan->device)
        index++;
    uint64_t bit = (uint64_t)1 << (index < 63 ? index : 63);
    uint64_t before = __atomic_fetch_or(&c->warned[plan->problem.op], bit, __ATOMIC_RELAXED);
    if (!(before & bit))
        bski_log(c, BSK_LOG_WARN, "%s: %s has no entry; runs on the CPU with staged copies (%s)",
                 plan->op->name, plan->device->id, bsk_last_error());
}

static bsk_status choose_entry(bsk_plan *plan, const bsk_plan_options *options)
{
    const bsk_device *d = plan->device;
    bsk_context *c = d->context;
    bsk_fallback fallback = options->fallback ? options->fallback : c->settings.fallback;
    plan->executor = d;
    bsk_status status = bski_dispatch(d, &plan->problem, options, fallback, &plan->entry);
    if (status == BSK_E_UNSUPPORTED && fallback == BSK_FALLBACK_ALLOW && d != c->cpu && c->cpu) {
        warn_fallback(plan);
        plan->executor = c->cpu;
        plan->problem.packed = 0; /* staged runs take no image */
        status = bski_dispatch(c->cpu, &plan->problem, options, fallback, &plan->entry);
    }
    return status;
}

static bsk_status prepare_entry(bsk_plan *plan)
{
    const bsk_entry *e = plan->entry;
    const unsigned before = bski_failures();
    plan->prepared.problem = &plan->problem;
    bsk_status status = e->prepare ? e->prepare(plan->executor->handle, &plan->prepared) : BSK_OK;
    if (status) {
        plan->entry = NULL; /* nothing to release */
        return bski_failures() != before
                   ? status
                   : bski_fail(status, "%s: %s cannot be prepared: %s", plan->op->name, e->name,
                               bsk_status_name(status));
    }
    if (!plan->prepared.workspace_alignment)
        plan->prepared.workspace_alignment = DEFAULT_ALIGNMENT;
    if (!plan->prepared.packed_alignment)
        plan->prepared.packed_alignment = DEFAULT_ALIGNMENT;
    return BSK_OK;
}

static bsk_status plan_fill(bsk_plan *plan, const void *params, const bsk_plan_options *options)
{
    BSKI_TRY(bski_struct_read(plan->op->name, params, plan->op->params_size, plan->params));
    BSKI_TRY(check_problem(plan));
    BSKI_TRY(fill_problem(plan, options));
    BSKI_TRY(choose_entry(plan, options));
    return prepare_entry(plan);
}

static bsk_status read_options(const bski_op_info *op, const bsk_device *device,
                               const bsk_plan_options *from, bsk_plan_options *options)
{
    memset(options, 0, sizeof(*options));
    options->alignment = PROMISED_ALIGNMENT;
    if (!from)
        return BSK_OK;
    BSKI_TRY(bski_struct_read("options", from, sizeof(*options), options));
    if (!options->alignment)
        options->alignment = PROMISED_ALIGNMENT;
    if (options->alignment < 1 || options->alignment > MAX_ALIGNMENT ||
        options->alignment & (options->alignment - 1))
        return bski_fail(BSK_E_INVALID,
                         "%s: options.alignment is %d; legal are powers of two from 1 to %d",
                         op->name, (int)options->alignment, MAX_ALIGNMENT);
    if (options->packed < 0 || options->packed > 1)
        return bski_fail(BSK_E_INVALID, "%s: options.packed is %d; legal are 0 and 1", op->name,
                         (int)options->packed);
    if (options->reserved)
        return bski_fail(BSK_E_INVALID, "%s: options.reserved is %d; legal is 0", op->name,
                         (int)options->reserved);
    if (options->fallback < BSK_FALLBACK_DEFAULT || options->fallback > BSK_FALLBACK_FORBID)
        return bski_fail(BSK_E_INVALID, "%s: options.fallback is %d; legal are 0 to %d", op->name,
                         (int)options->fallback, (int)BSK_FALLBACK_FORBID);
    return options->kernels ? bski_kernels_check(device->context, options->kernels, BSK_E_INVALID,
                                                 "options.kernels")
                            : BSK_OK;
}

bsk_status bski_plan_create(const bski_op_info *op, const bsk_device *device, const void *params,
                            const bsk_plan_options *options, bsk_plan **plan)
{
    if (!plan)
        return bski_fail(BSK_E_INVALID, "%s: plan is NULL", op->name);
    *plan = NULL;
    if (!device || !params)
        return bski_fail(BSK_E_INVALID, "%s: %s is NULL", op->name, device ? "params" : "device");
    bsk_plan_options chosen;
    BSKI_TRY(read_options(op, device, options, &chosen));

    const bsk_allocator *allocator = &device->context->allocator;
    bsk_plan *p = bski_calloc(allocator, sizeof(*p));
    if (p)
        p->params = bski_calloc(allocator, op->params_size);
    if (!p || !p->params) {
        bski_free(allocator, p);
        return bski_fail(BSK_E_NOMEM, "%s: no memory for a plan", op->name);
    }
    p->op = op;
    p->device = device;
    const bski_error before = bski_error_save();
    bsk_status status = plan_fill(p, params, &chosen);
    if (status) {
        bsk_plan_destroy(&p);
        return status;
    }
    bski_error_restore(&before); /* a fallback, or an entry that first tried another kernel */
    *plan = p;
    return BSK_OK;
}

void bsk_plan_destroy(bsk_plan **plan)
{
    if (!plan || !*plan)
        return;
    bsk_plan *p = *plan;
    const bsk_allocator *allocator = &p->device->context->allocator;
    if (p->entry && p->entry->release)
        p->entry->release(p->executor->handle, &p->prepared);
    bsk_layout_release(&p->layout);
    if (p->kernel_params != p->params)
        bski_free(allocator, p->kernel_params);
    bski_free(allocator, p->list);
    bski_free(allocator, p->params);
    bski_free(allocator, p);
    *plan = NULL;
}

/* Of the workspace that runs of the plan take. Staged ones have their own. */
static size_t workspace_bytes(const bsk_plan *plan)
{
    return plan->executor == plan->device ? plan->prepared.workspace_bytes : 0;
}

/* Of the packed image that runs of the plan take; 0: none. */
static size_t packed_bytes(const bsk_plan *plan)
{
    const bool has = plan->op->packed && plan->executor == plan->device && plan->entry->pack;
    return has ? plan->prepared.packed_bytes : 0;
}

bsk_status bsk_plan_query(const bsk_plan *plan, bsk_plan_info *info)
{
    if (!plan || !info)
        return bski_fail(BSK_E_INVALID, "bsk_plan_query: %s is NULL", plan ? "info" : "plan");
    bool staged = plan->executor != plan->device;
    bsk_plan_info full = {
        .op = plan->op->name,
        .entry = plan->entry->name,
        .backend = plan->executor->backend->api->name,
        .workspace_bytes = workspace_bytes(plan),
        .workspace_alignment = staged ? 1 : plan->prepared.workspace_alignment,
        .deterministic = !(plan->entry->flags & BSK_ENTRY_NONDETERMINISTIC),
        .capture_safe = !staged && !(plan->entry->flags & BSK_ENTRY_NOT_CAPTURABLE),
        .synchronous = staged || plan->device->props.host_memory,
        .staged = staged,
        .flops = plan->flops,
        .bytes = plan->bytes,
        .packed_bytes = packed_bytes(plan),
        .packed_alignment = staged ? 1 : plan->prepared.packed_alignment,
    };
    return bski_struct_write("bsk_plan_query: info", &full, sizeof(full), info);
}

/* --- running a plan --------------------------------------------------------------------------- */

/* The views of argument i: one, or pairs of them. */
static const bsk_mem *arg_views(const bski_arg *a, const void *args)
{
    const char *field = (const char *)args + a->mem;
    if (!a->list)
        return (const bsk_mem *)(const void *)field;
    const bsk_mem *views;
    memcpy(&views, field, sizeof(views));
    return views;
}

static bsk_status check_view(const bsk_plan *plan, int i, const bsk_mem *m)
{
    const bski_arg *a = &plan->op->args[i];
    const bsk_tensor *t = bski_arg_tensor(plan->op, plan->params, i);
    size_t need = plan->extents[i];
    if (m->kind == BSK_MEM_NULL || !m->handle) {
        if (!need)
            return BSK_OK;
        return bski_fail(BSK_E_INVALID, "%s: args.%s is NULL; %zu bytes are needed", plan->op->name,
                         a->name, need);
    }
    if (t->dtype == BSK_NONE)
        return bski_fail(BSK_E_INVALID, "%s: args.%s is given, but the plan was made without it",
                         plan->op->name, a->name);
    BSKI_TRY(bski_kind_check(plan->op->name, a->name, plan->device, m->kind));
    BSKI_TRY(bski_alignment_check(plan->op->name, a->name, m, bsk_dtype_size(t->dtype),
                                  "its element's size"));
    const int32_t promised = plan->executor == plan->device ? plan->entry->alignment : 0;
    if (promised)
        BSKI_TRY(
            bski_alignment_check(plan->op->name, a->name, m, (size_t)promised,
                                 "what the plan relies on; options.alignment may promise less"));
    if (m->size && m->size < need)
        return bski_fail(BSK_E_INVALID, "%s: args.%s.size is %zu bytes; at least %zu are needed",
                         plan->op->name, a->name, m->size, need);
    return BSK_OK;
}

/* From its first element on, the bytes of each period of `pitch` bytes that a tensor reaches into: all
 * axes step over whole periods or within one. 0 where that is not so. */
static size_t width_within(const bsk_tensor *t, size_t pitch)
{
    const size_t size = bsk_dtype_size(t->dtype);
    size_t width = size;
    for (int i = 0; i < t->rank; i++) {
        const size_t stride = (size_t)t->strides[i] * size;
        if (t->dims[i] > 1 && stride % pitch)
            width += stride * (size_t)(t->dims[i] - 1);
    }
    return width <= pitch ? width : 0;
}

/* Whether two strided views of one memory reach a common element, as far as can be told cheaply:
 * views with a common row pitch that occupy different column ranges do not. */
static bool views_meet(const bsk_tensor *x, size_t x_bytes, const bsk_mem *mx, const bsk_tensor *y,
                       size_t y_bytes, const bsk_mem *my)
{
    if (mx->handle != my->handle && (mx->kind == BSK_MEM_CL || my->kind == BSK_MEM_CL))
        return false;
    const uintptr_t a = bski_address(mx), b = bski_address(my);
    if (!x_bytes || !y_bytes || a + x_bytes <= b || b + y_bytes <= a)
        return false;
    const bsk_tensor *const both[] = {x, y};
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < both[side]->rank; i++) {
            const size_t pitch = (size_t)both[side]->strides[i] * bsk_dtype_size(both[side]->dtype);
            const size_t wx = pitch ? width_within(x, pitch) : 0;
            const size_t wy = pitch ? width_within(y, pitch) : 0;
            const size_t shift = !pitch   ? 0
                                 : b >= a ? (b - a) % pitch
                                          : (pitch - (a - b) % pitch) % pitch;
            if (wx && wy && shift >= wx && shift + wy <= pitch)
                return false;
        }
    return true;
}

/* Where a view begins, in a number that tells those in one memory apart. */
static uintptr_t place_of(const bsk_mem *m)
{
    return (uintptr_t)m->handle + m->offset;
}

/* Whether two views are the same elements at the same places. */
static bool same_view(const bsk_tensor *x, const bsk_mem *mx, const bsk_tensor *y,
                      const bsk_mem *my)
{
    bool same = mx->kind == my->kind && place_of(mx) == place_of(my) && x->dtype == y->dtype &&
                x->rank == y->rank;
    for (int i = 0; same && i < x->rank; i++)
        same = x->dims[i] == y->dims[i] && (x->dims[i] == 1 || x->strides[i] == y->strides[i]);
    return same;
}

/* A packed image as views_meet takes it. */
static bsk_tensor image_bytes(size_t bytes)
{
    return (bsk_tensor){.dtype = BSK_U8, .rank = 1, .dims = {(int64_t)bytes}, .strides = {1}};
}

/* How many views argument i has. */
static int view_count(const bsk_plan *plan, int i)
{
    return plan->op->args[i].list ? plan->pairs : 1;
}

/* Whether a view of output o and one of argument i overlap in a way that the op does not allow. */
static bool views_clash(const bsk_plan *plan, int o, const bsk_mem *mo, int i, const bsk_mem *mi)
{
    const bski_op_info *op = plan->op;
    const bsk_tensor *out = bski_arg_tensor(op, plan->params, o);
    const bsk_tensor *in = bski_arg_tensor(op, plan->params, i);
    return views_meet(out, plan->extents[o], mo, in, plan->extents[i], mi) &&
           !(op->args[o].alias & 1u << i && same_view(out, mo, in, mi));
}

typedef struct place {
    uintptr_t at; /* place_of */
    int view;
} place;

/* Views of a long list are compared with all others in groups of so many. The others are looked at
 * one by one only in spans, of so many in a row, whose places come near those of the group. */
enum { MAX_PLACES = 512, SPAN_VIEWS = 1024, MAX_SPANS = BSKI_MAX_PAIRS / SPAN_VIEWS };

/* Views of output o from number `first` on, by their places. */
typedef struct group {
    int o, first, count;
    place places[MAX_PLACES];
} group;

/* The first and the last place in a span of a list. */
typedef struct span {
    uintptr_t low, high;
} span;

/* By address. Runs do not allocate, as qsort may. */
static void places_sort(place *p, int count)
{
    for (int gap = count / 2; gap > 0; gap /= 2)
        for (int i = gap; i < count; i++) {
            const place moved = p[i];
            int to = i;
            for (; to >= gap && p[to - gap].at > moved.at; to -= gap)
                p[to] = p[to - gap];
            p[to] = moved;
        }
}

/* The first of some places in order whose view of so many bytes reaches beyond an address. */
static int places_find(const place *p, int count, size_t bytes, uintptr_t at)
{
    int low = 0;
    while (low < count) {
        const int middle = low + (count - low) / 2;
        if (p[middle].at + bytes > at)
            count = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The spans of argument i. */
static void spans_fill(const bsk_plan *plan, const bsk_mem *views, int i, span *spans)
{
    for (int p = 0; p < view_count(plan, i); p++) {
        const uintptr_t at = place_of(&views[p]);
        span *s = &spans[p / SPAN_VIEWS];
        if (p % SPAN_VIEWS == 0)
            *s = (span){at, at};
        s->low = at < s->low ? at : s->low;
        s->high = at > s->high ? at : s->high;
    }
}

/* Whether view p of argument i clashes with one of the group. */
static bool group_clashes(const bsk_plan *plan, const group *g, const bsk_mem *mo, int i, int p,
                          const bsk_mem *mi)
{
    const uintptr_t at = place_of(mi);
    for (int k = places_find(g->places, g->count, plan->extents[g->o], at);
         k < g->count && g->places[k].at < at + plan->extents[i]; k++)
        if (!(i == g->o && p <= g->places[k].view) &&
            views_clash(plan, g->o, &mo[g->places[k].view], i, mi))
            return true;
    return false;
}

/* Compares a group with the views of argument i that it has not been compared with. */
static bsk_status check_group(const bsk_plan *plan, const void *args, const group *g, int i,
                              const span *spans)
{
    const bski_op_info *op = plan->op;
    const bsk_mem *mo = arg_views(&op->args[g->o], args), *mi = arg_views(&op->args[i], args);
    const uintptr_t low = g->places[0].at;
    const uintptr_t end = g->places[g->count - 1].at + plan->extents[g->o];
    for (int p = i == g->o ? g->first : 0; p < view_count(plan, i); p++) {
        const span *s = &spans[p / SPAN_VIEWS];
        if (s->high + plan->extents[i] <= low || s->low >= end)
            p |= SPAN_VIEWS - 1; /* on to the next span */
        else if (group_clashes(plan, g, mo, i, p, &mi[p]))
            return bski_fail(BSK_E_INVALID, "%s: args.%s overlaps args.%s", op->name,
                             op->args[g->o].name, op->args[i].name);
    }
    return BSK_OK;
}

/* Compares views of output o, from number `first` on, with all that they have not been compared
 * with. */
static bsk_status check_output(const bsk_plan *plan, const void *args, const bsk_mem *packed, int o,
                               int first, span (*spans)[MAX_SPANS])
{
    const bski_op_info *op = plan->op;
    const bsk_tensor *out = bski_arg_tensor(op, plan->params, o);
    const bsk_mem *mo = arg_views(&op->args[o], args) + first;
    const size_t image = packed ? plan->prepared.packed_bytes : 0;
    const bsk_tensor image_desc = image_bytes(image);
    const int left = view_count(plan, o) - first;
    group g; /* filling all of it would take as long as a short run */
    g.o = o;
    g.first = first;
    g.count = left < MAX_PLACES ? left : MAX_PLACES;
    for (int k = 0; k < g.count; k++) {
        if (packed && views_meet(out, plan->extents[o], &mo[k], &image_desc, image, packed))
            return bski_fail(BSK_E_INVALID, "%s: args.%s overlaps args.packed", op->name,
                             op->args[o].name);
        g.places[k] = (place){place_of(&mo[k]), first + k};
    }
    places_sort(g.places, g.count);
    for (int i = 0; i < op->arg_count; i++)
        if (plan->extents[i] && (op->args[i].role == BSKI_IN || i >= o) &&
            !(packed && i == BSKI_PACKED))
            BSKI_TRY(check_group(plan, args, &g, i, spans[i]));
    return BSK_OK;
}

/* Compares each output with every other argument. */
static bsk_status check_overlap(const bsk_plan *plan, const void *args, const bsk_mem *packed)
{
    const bski_op_info *op = plan->op;
    span spans[BSKI_MAX_ARGS][MAX_SPANS];
    for (int i = 0; i < op->arg_count; i++)
        if (plan->extents[i] && !(packed && i == BSKI_PACKED))
            spans_fill(plan, arg_views(&op->args[i], args), i, spans[i]);
    for (int o = 0; o < op->arg_count; o++)
        for (int64_t v = 0; v < view_count(plan, o); v += MAX_PLACES)
            if (op->args[o].role != BSKI_IN && plan->extents[o])
                BSKI_TRY(check_output(plan, args, packed, o, (int)v, spans));
    return BSK_OK;
}

/* The workspace is scratched while operands are read: it must lie apart from all of them. */
static bsk_status check_workspace(const bsk_plan *plan, const void *args, const bsk_mem *packed)
{
    const bski_op_info *op = plan->op;
    const bsk_mem *w = (const bsk_mem *)(const void *)((const char *)args + op->workspace);
    const size_t need = workspace_bytes(plan), image = plan->prepared.packed_bytes;
    const bsk_tensor scratch = image_bytes(need), image_desc = image_bytes(image);
    if (!need)
        return BSK_OK;
    BSKI_TRY(bski_bytes_check(op->name, "workspace", plan->device, w, need,
                              plan->prepared.workspace_alignment));
    if (packed && views_meet(&scratch, need, w, &image_desc, image, packed))
        return bski_fail(BSK_E_INVALID, "%s: args.workspace overlaps args.packed", op->name);
    for (int i = 0; i < op->arg_count; i++) {
        const bsk_tensor *t = bski_arg_tensor(op, plan->params, i);
        const bsk_mem *views = arg_views(&op->args[i], args);
        for (int p = 0; plan->extents[i] && p < view_count(plan, i); p++)
            if (!(packed && i == BSKI_PACKED) &&
                views_meet(&scratch, need, w, t, plan->extents[i], &views[p]))
                return bski_fail(BSK_E_INVALID, "%s: args.workspace overlaps args.%s", op->name,
                                 op->args[i].name);
    }
    return BSK_OK;
}

static bsk_status check_packed(const bsk_plan *plan, const bsk_mem *packed)
{
    size_t need = packed_bytes(plan);
    if (!need)
        return bski_fail(BSK_E_INVALID,
                         "%s: entry %s takes no packed image here; args.packed is legal where "
                         "bsk_plan_info.packed_bytes is not 0",
                         plan->op->name, plan->entry->name);
    return bski_bytes_check(plan->op->name, "packed", plan->device, packed, need,
                            plan->prepared.packed_alignment);
}

/* The packed image of a run; NULL if it has none. */
static const bsk_mem *packed_view(const bski_op_info *op, const void *args)
{
    const bsk_mem *m = (const bsk_mem *)(const void *)((const char *)args + op->packed);
    return op->packed && m->kind != BSK_MEM_NULL ? m : NULL;
}

static bsk_status check_args(const bsk_plan *plan, const void *args)
{
    const bski_op_info *op = plan->op;
    const bsk_mem *packed = packed_view(op, args);
    for (int i = 0; i < op->scalar_count; i++)
        BSKI_TRY(check_field(op->name, &op->scalars[i], args));
    if (packed)
        BSKI_TRY(check_packed(plan, packed));
    for (int i = 0; i < op->arg_count; i++) {
        const bski_arg *a = &op->args[i];
        if (packed && i == BSKI_PACKED)
            continue;
        const bsk_mem *views = arg_views(a, args);
        if (!views) {
            if (plan->extents[i])
                return bski_fail(BSK_E_INVALID, "%s: args.%s is NULL", op->name, a->name);
            continue;
        }
        for (int p = 0; p < view_count(plan, i); p++)
            BSKI_TRY(check_view(plan, i, &views[p]));
    }
    BSKI_TRY(check_workspace(plan, args, packed));
    return check_overlap(plan, args, packed);
}

/* Room for one args struct of any op, aligned for its fields. */
typedef union args_buffer {
    max_align_t align;
    char bytes[BSKI_MAX_STRUCT];
} args_buffer;

/* Whether a plan of an op goes with a queue. */
static bsk_status check_call(const bski_op_info *op, const bsk_plan *plan, const bsk_queue *queue)
{
    if (!plan || !queue)
        return bski_fail(BSK_E_INVALID, "%s: %s is NULL", op->name, plan ? "queue" : "plan");
    if (plan->op != op)
        return bski_fail(BSK_E_INVALID, "%s: the plan was made for %s", op->name, plan->op->name);
    if (queue->device != plan->device)
        return bski_fail(BSK_E_INVALID, "%s: the plan is for %s, the queue is of %s", op->name,
                         plan->device->id, queue->device->id);
    return BSK_OK;
}

bsk_status bski_plan_prepack(const bski_op_info *op, const bsk_plan *plan, bsk_queue *queue,
                             bsk_mem unpacked, bsk_mem packed)
{
    BSKI_TRY(check_call(op, plan, queue));
    BSKI_TRY(check_packed(plan, &packed));
    BSKI_TRY(check_view(plan, BSKI_PACKED, &unpacked));
    const bsk_tensor image = image_bytes(plan->prepared.packed_bytes);
    if (views_meet(bski_arg_tensor(op, plan->params, BSKI_PACKED), plan->extents[BSKI_PACKED],
                   &unpacked, &image, plan->prepared.packed_bytes, &packed))
        return bski_fail(BSK_E_INVALID, "%s: args.packed overlaps args.%s", op->name,
                         op->args[BSKI_PACKED].name);
    BSKI_TRY_BACKEND(plan->entry->name,
                     plan->entry->pack(&plan->prepared, queue->handle, unpacked, packed));
    return BSK_OK;
}

/* Whether all outputs are empty. Entries would still walk the rows of operands without elements, of
 * which there may be any number. */
static bool writes_nothing(const bsk_plan *plan)
{
    for (int i = 0; i < plan->op->arg_count; i++)
        if (plan->op->args[i].role != BSKI_IN && plan->extents[i])
            return false;
    return true;
}

bsk_status bski_plan_run(const bski_op_info *op, const bsk_plan *plan, bsk_queue *queue,
                         const void *args)
{
    BSKI_TRY(check_call(op, plan, queue));
    if (!args)
        return bski_fail(BSK_E_INVALID, "%s: args is NULL", op->name);
    args_buffer full, lowered;
    size_t size;
    memcpy(&size, args, sizeof(size));
    if (size != op->args_size) {
        BSKI_TRY(bski_struct_read("args", args, op->args_size, full.bytes));
        args = full.bytes;
    }
    BSKI_TRY(check_args(plan, args));
    if (writes_nothing(plan))
        return BSK_OK;
    if (op->lower_args) {
        size = bski_kernel_op(op->kernel_op)->args_size;
        memset(lowered.bytes, 0, size);
        memcpy(lowered.bytes, &size, sizeof(size));
        op->lower_args(plan->params, args, lowered.bytes);
        args = lowered.bytes;
    }
    if (bski_log_enabled(plan->device->context, BSK_LOG_LAUNCH))
        bski_log(plan->device->context, BSK_LOG_LAUNCH, "%s on %s by %s", op->name,
                 plan->device->id, plan->entry->name);
    if (plan->executor != plan->device)
        return bski_staged_run(plan, queue, args);
    BSKI_TRY_BACKEND(plan->entry->name, plan->entry->launch(&plan->prepared, queue->handle, args));
    return BSK_OK;
}
