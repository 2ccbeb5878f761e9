/* Failing allocations: the n-th request of a context, a layout or a plan returns NULL, for every n.
 * The answer must be NOMEM or success, and nothing may leak. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/test.h"

typedef struct failing {
    int64_t live, until; /* until: requests before the failing one; negative: none fails */
    bool failed;
} failing;

static void *failing_resize(void *user, void *pointer, size_t bytes)
{
    failing *f = user;
    if (!bytes) {
        f->live -= pointer != NULL;
        free(pointer);
        return NULL;
    }
    if (__atomic_fetch_sub(&f->until, 1, __ATOMIC_RELAXED) == 0) {
        f->failed = true;
        return NULL;
    }
    void *grown = realloc(pointer, bytes);
    f->live += !pointer && grown;
    return grown;
}

typedef bsk_status (*step)(bsk_context *context, const bsk_device *device, const test_spec *spec);

static bsk_status step_layout(bsk_context *context, const bsk_device *device, const test_spec *spec)
{
    (void)device;
    (void)spec;
    bsk_layout_params p = BSK_INIT(bsk_layout_params);
    bsk_layout *layout = NULL, *cut = NULL, *copy = NULL, *graph = NULL;
    uint8_t bytes[8192];
    size_t size = sizeof bytes;
    p.rows = p.cols = 64;
    p.block_rows = p.block_cols = 8;
    bsk_status status = bsk_layout_random(context, &p, 0.5, 1, &layout);
    if (!status)
        status = bsk_layout_crop(layout, 1, 4, 2, 5, NULL, &cut);
    if (!status)
        status = bsk_layout_serialize(layout, bytes, &size);
    if (!status)
        status = bsk_layout_deserialize(context, bytes, size, &copy);
    if (!status)
        status = bsk_layout_barabasi_albert(context, &p, 2, 1, &graph);
    bsk_layout_release(&layout);
    bsk_layout_release(&cut);
    bsk_layout_release(&copy);
    bsk_layout_release(&graph);
    return status;
}

static bsk_status step_plan(bsk_context *context, const bsk_device *device, const test_spec *spec)
{
    (void)context;
    test_case *c = test_case_make(spec, true);
    bsk_plan *plan = NULL;
    bsk_queue *queue = NULL;
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    options.fallback = BSK_FALLBACK_DEVICE;
    if (!c)
        return BSK_E_INTERNAL;
    bsk_status status = bsk_queue_create(device, &queue);
    if (!status)
        status = c->op->plan(device, c->params, &options, &plan);
    bsk_plan_destroy(&plan);
    bsk_queue_destroy(&queue);
    test_case_free(c);
    return status;
}

/* One attempt: creates a context, arms the failure before or after that, runs the step. */
static bsk_status attempt(failing *f, const char *device_id, step work, const test_spec *spec,
                          int64_t until)
{
    bsk_context *context = NULL;
    bsk_context_params p = BSK_INIT(bsk_context_params);
    const bsk_device *device = NULL;
    memset(f, 0, sizeof *f);
    f->until = work ? -1 : until;
    p.allocator.resize = failing_resize;
    p.allocator.user = f;
    bsk_status status = bsk_context_create(&p, &context);
    if (!status && work) {
        status = bsk_context_find_device(context, device_id, &device);
        f->until = until;
        if (!status)
            status = work(context, device, spec);
        f->until = -1;
    }
    bsk_context_destroy(&context);
    return status;
}

static void countdown(test_session *s, const test_device *d, const char *name, step work,
                      const test_spec *spec)
{
    if (!test_wanted(s, name))
        return;
    test_result r = {TEST_PASS, "", 0, 0};
    failing f;
    int64_t n = 0;
    do {
        bsk_status status = attempt(&f, d->info.id, work, spec, n);
        if (status != BSK_OK && status != BSK_E_NOMEM)
            test_fail(&r, "request %lld failed: status %s: %s", (long long)n,
                      bsk_status_name(status), bsk_last_error());
        else if (status && !f.failed)
            test_fail(&r, "NOMEM without a failure");
        else if (f.live)
            test_fail(&r, "request %lld failed: %lld allocations leak", (long long)n,
                      (long long)f.live);
        n++;
    } while (f.failed && r.status == TEST_PASS && n < 10000);
    if (r.status == TEST_PASS && n < 2)
        test_fail(&r, "the allocator was never asked");
    test_report(s, name, d, "", &r);
}

void suite_allocation(test_session *s, const test_device *d)
{
    static const test_spec specs[] = {
        {.op = "matmul",
         .dtype = BSK_F32,
         .n = 6,
         .br = 8,
         .bc = 8,
         .k = 24,
         .m = 32,
         .pattern_value = 0.5,
         .seed = 1},
        {.op = "matmul_wgrad",
         .dtype = BSK_F32,
         .n = 6,
         .br = 8,
         .bc = 8,
         .k = 24,
         .m = 32,
         .pattern_value = 0.5,
         .seed = 1},
        {.op = "weight_orthogonal",
         .dtype = BSK_F32,
         .n = -1,
         .br = 8,
         .bc = 8,
         .k = 24,
         .m = 32,
         .pattern_value = 0.5,
         .seed = 1},
        {.op = "adam", .dtype = BSK_F32, .n = -1, .k = 6, .m = 5, .seed = 1},
    };
    countdown(s, d, "allocation context", NULL, NULL);
    countdown(s, d, "allocation layout", step_layout, NULL);
    for (int i = 0; i < TEST_COUNT(specs); i++) {
        char name[TEST_NAME];
        snprintf(name, sizeof name, "allocation plan %s", specs[i].op);
        countdown(s, d, name, step_plan, &specs[i]);
    }
}
