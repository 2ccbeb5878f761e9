/* Staged fallback: a plan of one device, executed by the CPU on host copies.
 *
 * This is the slow path that keeps a program correct where a backend lacks an entry. It allocates
 * and waits, as bsk_plan_info says of such plans. */
#include <string.h>

#include <common/checked.h>

#include "api/src/internal.h"

enum { STAGE_ALIGN = 64 };

/* One view of one argument, and its host copy. */
typedef struct copy {
    const bsk_tensor *desc;
    bsk_mem device;
    size_t bytes;
    bool output;
    int64_t elements;
    void *block; /* the allocation */
    char *host;  /* its aligned part */
    char *now;   /* of outputs with gaps: as many bytes again, for what lies in them by then */
} copy;

/* Whether other outputs may lie between the elements of this one. */
static bool has_gaps(const copy *c)
{
    return c->output && (size_t)c->elements * bsk_dtype_size(c->desc->dtype) != c->bytes;
}

static bool copy_alloc(const bsk_allocator *allocator, copy *c, bool twice)
{
    size_t bytes;
    if (!bski_mul_size(c->bytes, twice ? 2 : 1, &bytes) ||
        !bski_add_size(bytes, STAGE_ALIGN, &bytes))
        return false;
    c->block = bski_alloc(allocator, bytes);
    if (!c->block)
        return false;
    c->host = (char *)c->block + (STAGE_ALIGN - (uintptr_t)c->block % STAGE_ALIGN);
    c->now = twice ? c->host + c->bytes : NULL;
    return true;
}

/* Lists the views of all present arguments in args, which are rewritten to the copies' addresses
 * by stage_bind. list views are written to `views`, which has room for all of them. */
static size_t stage_list(const bsk_plan *plan, const bski_op_info *op, const void *args,
                         copy *copies)
{
    size_t count = 0;
    for (int i = 0; i < op->arg_count; i++) {
        const bski_arg *a = &op->args[i];
        const bsk_tensor *t = bski_arg_tensor(op, plan->kernel_params, i);
        size_t bytes = 0;
        if (t->dtype != BSK_NONE)
            bsk_tensor_bytes(t, &bytes); /* was checked when the plan was made */
        const char *field = (const char *)args + a->mem;
        const bsk_mem *views = (const bsk_mem *)(const void *)field;
        if (a->list)
            memcpy(&views, field, sizeof(views));
        for (int p = 0; p < (a->list ? plan->pairs : 1); p++) {
            copies[count] =
                (copy){.desc = t, .bytes = bytes, .output = a->role != BSKI_IN, .elements = 1};
            for (int axis = 0; axis < t->rank; axis++)
                copies[count].elements *= t->dims[axis];
            if (bytes)
                copies[count].device = views[p];
            count++;
        }
    }
    return count;
}

static void stage_bind(const bsk_plan *plan, const bski_op_info *op, const copy *copies,
                       bsk_mem *views, void *args)
{
    size_t n = 0;
    for (int i = 0; i < op->arg_count; i++) {
        const bski_arg *a = &op->args[i];
        char *field = (char *)args + a->mem;
        int count = a->list ? plan->pairs : 1;
        for (int p = 0; p < count; p++) {
            views[n + p] = bsk_host_ptr(copies[n + p].host);
            views[n + p].size = copies[n + p].bytes;
        }
        if (a->list) {
            const bsk_mem *first = &views[n];
            memcpy(field, &first, sizeof(first));
        } else {
            memcpy(field, &views[n], sizeof(bsk_mem));
        }
        n += count;
    }
}

/* The elements of a strided tensor from one copy of its memory to another. */
static void elements_copy(const copy *c, char *to, const char *from)
{
    const bsk_tensor *t = c->desc;
    const size_t size = bsk_dtype_size(t->dtype);
    for (int64_t i = 0; i < c->elements; i++) {
        int64_t left = i, at = 0;
        for (int axis = t->rank - 1; axis >= 0; axis--) {
            at += left % t->dims[axis] * t->strides[axis];
            left /= t->dims[axis];
        }
        memcpy(to + (size_t)at * size, from + (size_t)at * size, size);
    }
}

/* Another output may lie between the strided elements of this one, and have been written since. */
static bsk_status output_upload(bsk_queue *queue, const copy *c)
{
    if (!c->now)
        return bsk_mem_upload(queue, c->device, c->host, c->bytes);
    BSKI_TRY(bsk_mem_download(queue, c->now, c->device, c->bytes));
    BSKI_TRY(bsk_queue_sync(queue));
    elements_copy(c, c->now, c->host);
    return bsk_mem_upload(queue, c->device, c->now, c->bytes);
}

static bsk_status copies_alloc(const bsk_plan *plan, copy *copies, size_t count, copy *workspace)
{
    const bsk_allocator *allocator = &plan->device->context->allocator;
    workspace->bytes = plan->prepared.workspace_bytes + plan->prepared.workspace_alignment;
    bool ok = copy_alloc(allocator, workspace, false);
    for (size_t i = 0; ok && i < count; i++)
        ok = !copies[i].bytes || copy_alloc(allocator, &copies[i], has_gaps(&copies[i]));
    return ok ? BSK_OK : bski_fail(BSK_E_NOMEM, "%s: no host memory for staging", plan->op->name);
}

/* All memory is there before the launch, and so before the first output is written. */
static bsk_status stage_run(const bsk_plan *plan, bsk_queue *queue, const bski_op_info *op,
                            copy *copies, size_t count, copy *workspace, bsk_mem *views, void *args)
{
    BSKI_TRY(copies_alloc(plan, copies, count, workspace));
    for (size_t i = 0; i < count; i++) /* outputs too: many are added to */
        if (copies[i].bytes)
            BSKI_TRY(bsk_mem_download(queue, copies[i].host, copies[i].device, copies[i].bytes));
    BSKI_TRY(bsk_queue_sync(queue));

    stage_bind(plan, op, copies, views, args);
    size_t align = plan->prepared.workspace_alignment;
    size_t skip = (align - (uintptr_t)workspace->host % align) % align;
    bsk_mem w = bsk_host_ptr(workspace->host + skip);
    w.size = plan->prepared.workspace_bytes;
    memcpy((char *)args + op->workspace, &w, sizeof(w));

    const bsk_backend *cpu = plan->executor->backend->api;
    void *cpu_queue = NULL;
    BSKI_TRY(cpu->queue_create(plan->executor->handle, &cpu_queue));
    bsk_status status = plan->entry->launch(&plan->prepared, cpu_queue, args);
    cpu->queue_destroy(cpu_queue);
    if (status)
        return status;
    for (size_t i = 0; i < count; i++)
        if (copies[i].output && copies[i].bytes)
            BSKI_TRY(output_upload(queue, &copies[i]));
    return bsk_queue_sync(queue);
}

/* What the queue has been given may still read and write the copies. */
static void wait_after(bsk_queue *queue)
{
    const bski_error why = bski_error_save();
    bsk_queue_sync(queue);
    bski_error_restore(&why);
}

bsk_status bski_staged_run(const bsk_plan *plan, bsk_queue *queue, const void *args)
{
    const bsk_allocator *allocator = &plan->device->context->allocator;
    const bski_op_info *op = bski_kernel_op(plan->problem.op);
    size_t most = (size_t)op->arg_count * (size_t)(plan->pairs > 1 ? plan->pairs : 1);
    copy *copies = bski_calloc(allocator, most * sizeof(*copies));
    bsk_mem *views = bski_calloc(allocator, most * sizeof(*views));
    void *host_args = bski_calloc(allocator, op->args_size);
    copy workspace = {0};
    bsk_status status = BSK_OK;
    size_t count = 0;
    if (!copies || !views || !host_args) {
        status = bski_fail(BSK_E_NOMEM, "%s: no host memory for staging", plan->op->name);
    } else {
        memcpy(host_args, args, op->args_size);
        count = stage_list(plan, op, args, copies);
        status = stage_run(plan, queue, op, copies, count, &workspace, views, host_args);
        if (status)
            wait_after(queue);
    }
    for (size_t i = 0; i < count; i++)
        bski_free(allocator, copies[i].block);
    bski_free(allocator, workspace.block);
    bski_free(allocator, host_args);
    bski_free(allocator, views);
    bski_free(allocator, copies);
    return status;
}
