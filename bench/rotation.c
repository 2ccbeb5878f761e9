/* Memory of a case that is timed. */
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"

static size_t case_bytes(const test_case *c)
{
    size_t bytes = 0;
    for (int32_t i = 0; i < c->about->arg_count; i++)
        bytes += c->t[i].bytes * (size_t)c->t[i].views;
    return bytes ? bytes : 1;
}

/* An argument's views in one copy: contents for what is read, NaN for what is only written. */
static bool argument_make(bench_rotation *r, struct bench_copy *copy, test_case *c, int32_t i,
                          bsk_queue *queue)
{
    const test_tensor *t = &c->t[i];
    const size_t skew = c->spec.options & OPT_OFFSET ? bsk_dtype_size(t->desc.dtype) : 0;
    for (int32_t v = 0; v < t->views; v++) {
        bsk_mem *whole = &copy->whole[i][v], *view = &copy->views[i][v];
        if (t->alias >= 0) {
            *view = copy->views[t->alias][v];
            continue;
        }
        if (bsk_mem_alloc(r->device, t->bytes + skew, whole))
            return false;
        *view = bsk_mem_at(*whole, skew);
        if (test_reads_old(c, t)
                ? bsk_mem_upload(queue, *view, t->init + (size_t)v * t->bytes, t->bytes)
                : bsk_mem_fill(queue, *view, 0xff, t->bytes))
            return false;
    }
    const bsk_mem *list = copy->views[i];
    if (t->info->list)
        memcpy(copy->args + t->info->mem, &list, sizeof list);
    else
        memcpy(copy->args + t->info->mem, list, sizeof *list);
    return true;
}

static bool copy_make(bench_rotation *r, struct bench_copy *copy, test_case *c,
                      const bsk_plan *packed, size_t packed_bytes, bsk_queue *queue)
{
    memcpy(copy->args, c->args, sizeof copy->args);
    memcpy(copy->args + c->about->workspace, &r->workspace, sizeof r->workspace);
    for (int32_t i = 0; i < c->about->arg_count; i++)
        if (c->t[i].desc.dtype && !argument_make(r, copy, c, i, queue))
            return false;
    if (!packed_bytes || !c->op->prepack)
        return bsk_queue_sync(queue) == BSK_OK;
    const size_t weights = c->about->args[BSKI_PACKED].mem;
    if (bsk_mem_alloc(r->device, packed_bytes, &copy->packed) ||
        c->op->prepack(packed, queue, copy->views[BSKI_PACKED][0], copy->packed))
        return false;
    memcpy(copy->packed_args, copy->args, sizeof copy->args);
    memset(copy->packed_args + weights, 0, sizeof(bsk_mem));
    memcpy(copy->packed_args + c->about->packed, &copy->packed, sizeof copy->packed);
    return bsk_queue_sync(queue) == BSK_OK;
}

bool bench_rotation_open(bench_rotation *r, test_case *c, const bsk_plan *plan,
                         const bsk_plan *packed, bsk_queue *queue, size_t cache)
{
    const size_t cap = (size_t)1 << 30, target = 2 * cache < cap ? 2 * cache : cap;
    const size_t wanted = target / case_bytes(c) + 1;
    const int count = wanted > 64 ? 64 : (int)wanted;
    bsk_plan_info info = BSK_INIT(bsk_plan_info), packed_info = info;
    bsk_plan_query(plan, &info);
    bsk_plan_query(packed, &packed_info);
    const size_t space = info.workspace_bytes > packed_info.workspace_bytes
                             ? info.workspace_bytes
                             : packed_info.workspace_bytes;
    r->copies = calloc((size_t)count, sizeof *r->copies);
    if (!r->copies || (space && bsk_mem_alloc(r->device, space, &r->workspace)))
        return false;
    for (r->count = 0; r->count < count;)
        if (!copy_make(r, &r->copies[r->count++], c, packed, packed_info.packed_bytes, queue))
            return false;
    return true;
}

static void memory_free(const bsk_device *device, bsk_mem *mem)
{
    if (mem->kind)
        bsk_mem_free(device, mem);
}

void bench_rotation_close(bench_rotation *r)
{
    for (int n = 0; n < r->count; n++) {
        struct bench_copy *copy = &r->copies[n];
        for (int32_t i = 0; i < TEST_ARGS; i++)
            for (int32_t v = 0; v < TEST_VIEWS; v++)
                memory_free(r->device, &copy->whole[i][v]);
        memory_free(r->device, &copy->packed);
    }
    memory_free(r->device, &r->workspace);
    free(r->copies);
    memset(r, 0, sizeof *r);
}
