/* One entry on one case: plan, memory between red zones, poison, comparison, repetition. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/test.h"

/* Bytes around a buffer. A kernel that needs more workspace than its plan asked for writes far
   behind it, by as much as a thread's panels: a wide guard sees that instead of the heap. */
enum { GUARD = 256, GUARD_WORKSPACE = 16384, GUARD_BYTE = 0xA5 };

/* --- Guarded buffers ----------------------------------------------------------------------- */

static bool buffer_make(test_buffer *b, const bsk_device *device, size_t bytes, size_t skew,
                        size_t behind)
{
    memset(b, 0, sizeof *b);
    b->bytes = bytes;
    b->lead = GUARD + skew;
    b->total = b->lead + bytes + behind;
    b->image = malloc(b->total);
    if (!b->image || bsk_mem_alloc(device, b->total, &b->whole))
        return false;
    memset(b->image, GUARD_BYTE, b->total);
    b->view = bsk_mem_at(b->whole, b->lead);
    b->view.size = bytes;
    return true;
}

static void buffer_free(test_buffer *b, const bsk_device *device)
{
    free(b->image);
    if (b->whole.kind)
        bsk_mem_free(device, &b->whole);
    memset(b, 0, sizeof *b);
}

/* False, and where counted from the payload's start, if a guard byte was overwritten. */
static bool buffer_guards(const test_buffer *b, int64_t *where)
{
    for (size_t i = 0; i < b->total; i++) {
        if (i == b->lead)
            i += b->bytes;
        if (i < b->total && b->image[i] != GUARD_BYTE) {
            *where = (int64_t)i - (int64_t)b->lead;
            return false;
        }
    }
    return true;
}

/* --- Memory of a case ---------------------------------------------------------------------- */

bool test_reads_old(const test_case *c, const test_tensor *t)
{
    return t->info->role != BSKI_OUT || c->spec.beta != 0 || t->alias >= 0;
}

/* Payload before a run: the tensor's contents, or poison where it is only written. */
static void buffer_prepare(const test_case *c, const test_tensor *t, int32_t view, test_buffer *b,
                           int poison)
{
    uint8_t *payload = b->image + b->lead;
    size_t size = bsk_dtype_size(t->desc.dtype);
    memset(b->image, GUARD_BYTE, b->total);
    memcpy(payload, t->init + (size_t)view * t->bytes, t->bytes);
    if (test_reads_old(c, t))
        return;
    for (int64_t e = 0; e < t->elems; e++)
        if (t->at[e] >= 0)
            memset(payload + (size_t)t->at[e] * size, poison, size);
}

bool test_memory_make(test_memory *m, test_case *c, const bsk_device *device, size_t workspace)
{
    memset(m, 0, sizeof *m);
    m->device = device;
    for (int32_t i = 0; i < c->about->arg_count; i++) {
        const test_tensor *t = &c->t[i];
        if (!t->desc.dtype || t->alias >= 0)
            continue;
        size_t skew = c->spec.options & OPT_OFFSET ? bsk_dtype_size(t->desc.dtype) : 0;
        for (int32_t v = 0; v < t->views; v++)
            if (!buffer_make(&m->buffer[i][v], device, t->bytes, skew, GUARD))
                return false;
    }
    return !workspace || buffer_make(&m->workspace, device, workspace, 0, GUARD_WORKSPACE);
}

void test_memory_free(test_memory *m)
{
    for (int32_t i = 0; i < TEST_ARGS; i++)
        for (int32_t v = 0; v < TEST_VIEWS; v++)
            buffer_free(&m->buffer[i][v], m->device);
    buffer_free(&m->workspace, m->device);
}

/* Uploads contents and poison, and writes the views into the case's args. */
bsk_status test_memory_load(test_memory *m, test_case *c, bsk_queue *queue, int poison)
{
    bsk_status status = BSK_OK;
    for (int32_t i = 0; !status && i < c->about->arg_count; i++) {
        const test_tensor *t = &c->t[i];
        const bski_arg *arg = t->info;
        if (!t->desc.dtype)
            continue;
        int32_t owner = t->alias >= 0 ? t->alias : i;
        for (int32_t v = 0; !status && v < t->views; v++) {
            test_buffer *b = &m->buffer[i][v];
            m->views[i][v] = m->buffer[owner][v].view;
            if (t->alias >= 0)
                continue;
            buffer_prepare(c, t, v, b, poison);
            status = bsk_mem_upload(queue, b->whole, b->image, b->total);
        }
        const bsk_mem *list = m->views[i];
        if (arg->list)
            memcpy(c->args + arg->mem, &list, sizeof list);
        else
            memcpy(c->args + arg->mem, list, sizeof *list);
    }
    if (!status && m->workspace.bytes) {
        test_buffer *b = &m->workspace;
        memset(b->image, GUARD_BYTE, b->total);
        memset(b->image + b->lead, poison, b->bytes);
        status = bsk_mem_upload(queue, b->whole, b->image, b->total);
    }
    memcpy(c->args + c->about->workspace, &m->workspace.view, sizeof m->workspace.view);
    return status ? status : bsk_queue_sync(queue);
}

static bsk_status memory_download(test_memory *m, bsk_queue *queue)
{
    bsk_status status = BSK_OK;
    for (int32_t i = 0; !status && i < TEST_ARGS; i++)
        for (int32_t v = 0; !status && v < TEST_VIEWS; v++) {
            test_buffer *b = &m->buffer[i][v];
            if (b->image)
                status = bsk_mem_download(queue, b->image, b->whole, b->total);
        }
    test_buffer *w = &m->workspace;
    if (!status && w->image)
        status = bsk_mem_download(queue, w->image, w->whole, w->total);
    return status ? status : bsk_queue_sync(queue);
}

/* --- Checks -------------------------------------------------------------------------------- */

bool test_fail(test_result *r, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(r->why, sizeof r->why, format, list);
    va_end(list);
    r->status = TEST_FAIL;
    return false;
}

static bool owner_is_written(const test_case *c, int32_t owner)
{
    if (c->t[owner].output)
        return true;
    for (int32_t i = 0; i < c->about->arg_count; i++)
        if (c->t[i].desc.dtype && c->t[i].alias == owner)
            return true;
    return false;
}

/* Guards, inputs and the gaps of outputs must be what they were; only the live elements of outputs
 * may differ. */
static bool memory_intact(test_memory *m, const test_case *c, test_result *r)
{
    int64_t where = 0;
    for (int32_t i = 0; i < c->about->arg_count; i++) {
        const test_tensor *t = &c->t[i];
        size_t size = bsk_dtype_size(t->desc.dtype);
        for (int32_t v = 0; t->desc.dtype && t->alias < 0 && v < t->views; v++) {
            const test_buffer *b = &m->buffer[i][v];
            if (!buffer_guards(b, &where))
                return test_fail(r, "wrote outside %s, at byte %" PRId64 " of %zu", t->info->name,
                                 where, t->bytes);
            const uint8_t *before = t->init + (size_t)v * t->bytes, *after = b->image + b->lead;
            if (!owner_is_written(c, i)) {
                if (memcmp(before, after, t->bytes) != 0)
                    return test_fail(r, "input %s was changed", t->info->name);
                continue;
            }
            uint8_t *copy = malloc(t->bytes + 1);
            if (!copy)
                return test_fail(r, "out of memory");
            memcpy(copy, after, t->bytes);
            for (int64_t e = 0; e < t->elems; e++)
                if (t->at[e] >= 0)
                    memcpy(copy + (size_t)t->at[e] * size, before + (size_t)t->at[e] * size, size);
            bool same = memcmp(copy, before, t->bytes) == 0;
            free(copy);
            if (!same)
                return test_fail(r, "wrote into the gaps or the padding of %s", t->info->name);
        }
    }
    if (m->workspace.image && !buffer_guards(&m->workspace, &where))
        return test_fail(r, "wrote outside the workspace, at byte %" PRId64 " of %zu", where,
                         m->workspace.bytes);
    return true;
}

static const uint8_t *view_payload(const test_memory *m, const test_case *c, int32_t arg,
                                   int32_t view)
{
    int32_t owner = c->t[arg].alias >= 0 ? c->t[arg].alias : arg;
    const test_buffer *b = &m->buffer[owner][view];
    return b->image + b->lead;
}

const uint8_t *test_memory_payload(const test_memory *m, const test_case *c, int32_t arg)
{
    return view_payload(m, c, arg, 0);
}

static double round_to(bsk_dtype t, double v)
{
    double cell;
    if (!(BSKI_FLOATS >> t & 1))
        return v;
    bski_store(t, &cell, 0, v);
    return bski_load(t, &cell, 0);
}

static void index_text(const test_tensor *t, int64_t e, char *text, size_t size)
{
    int64_t index[BSK_MAX_RANK];
    for (int i = t->desc.rank - 1; i >= 0; i--) {
        index[i] = e % t->desc.dims[i];
        e /= t->desc.dims[i];
    }
    size_t used = 0;
    for (int i = 0; i < t->desc.rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i ? "," : "", index[i]);
}

static bool output_compare(const test_tensor *t, int32_t view, const uint8_t *payload,
                           test_result *r)
{
    const double *wants = t->want + view * t->elems, *bounds = t->bound + view * t->elems;
    int64_t wrong = 0, first = -1, blank = 0, live = 0;
    double worst = r->bound > 0 ? r->error / r->bound : 0;
    for (int64_t e = 0; e < t->elems; e++) {
        if (t->at[e] < 0)
            continue;
        double got = test_number(t->desc.dtype, payload, t->at[e]);
        double want = round_to(t->desc.dtype, wants[e]);
        bool good;
        live++;
        blank += isfinite(want) && fabs(wants[e]) <= bounds[e]; /* 0 would pass */
        if (isnan(want)) {
            good = isnan(got);
        } else if (isinf(want) || bounds[e] == 0) {
            good = got == want;
        } else {
            double error = fabs(got - wants[e]);
            good = error <= bounds[e] && bounds[e] < INFINITY;
            if (error / bounds[e] > worst) {
                worst = error / bounds[e];
                r->error = error;
                r->bound = bounds[e];
            }
        }
        if (!good && !wrong++)
            first = e;
    }
    if (wrong) {
        char at[96] = "";
        index_text(t, first, at, sizeof at);
        return test_fail(r,
                         "%s[%s] is %.9g, expected %.9g within %.3g; %" PRId64 " of %" PRId64
                         " elements are wrong",
                         t->info->name, at, test_number(t->desc.dtype, payload, t->at[first]),
                         wants[first], bounds[first], wrong, live);
    }
    if (live && blank == live && !t->zero_ok)
        return test_fail(r, "mistrusted: zeros would pass as %s", t->info->name);
    return true;
}

static double *output_values(const test_tensor *t, const uint8_t *payload)
{
    double *v = malloc(((size_t)t->elems + 1) * sizeof *v);
    for (int64_t e = 0; v && e < t->elems; e++)
        v[e] = t->at[e] < 0 ? NAN : test_number(t->desc.dtype, payload, t->at[e]);
    return v;
}

static bool outputs_judge(test_case *c, const test_memory *m, test_result *r)
{
    double *got[TEST_ARGS] = {NULL};
    for (int32_t i = 0; i < c->about->arg_count; i++)
        if (c->t[i].output && c->t[i].desc.dtype)
            got[i] = output_values(&c->t[i], test_memory_payload(m, c, i));
    bool good = c->op->judge(c, got, r->why, sizeof r->why);
    if (!good)
        r->status = TEST_FAIL;
    for (int32_t i = 0; i < TEST_ARGS; i++)
        free(got[i]);
    return good;
}

static bool outputs_check(test_case *c, const test_memory *m, test_result *r)
{
    if (c->op->judge)
        return outputs_judge(c, m, r);
    bool nothing = (c->layout && c->info.nnz == 0) || c->spec.n == 0;
    for (int32_t i = 0; i < c->about->arg_count; i++) {
        test_tensor *t = &c->t[i];
        t->zero_ok |= nothing;
        for (int32_t v = 0; t->output && t->desc.dtype && v < t->views; v++)
            if (!output_compare(t, v, view_payload(m, c, i, v), r))
                return false;
    }
    return true;
}

/* Which NaN a NaN is, is the processor's choice, by the order of an addition's operands. */
static bool view_same(const test_tensor *t, const uint8_t *x, const uint8_t *y, const char *what,
                      test_result *r)
{
    const bsk_dtype dtype = t->desc.dtype;
    size_t size = bsk_dtype_size(dtype);
    for (int64_t e = 0; e < t->elems; e++) {
        const int64_t place = t->at[e];
        if (place < 0 || memcmp(x + (size_t)place * size, y + (size_t)place * size, size) == 0 ||
            (isnan(test_number(dtype, x, place)) && isnan(test_number(dtype, y, place))))
            continue;
        char at[96] = "";
        index_text(t, e, at, sizeof at);
        return test_fail(r, "%s[%s] has other bits %s", t->info->name, at, what);
    }
    return true;
}

/* Live elements of all outputs, bit for bit. */
static bool outputs_same(const test_case *c, const test_memory *a, const test_memory *b,
                         const char *what, test_result *r)
{
    for (int32_t i = 0; i < c->about->arg_count; i++) {
        const test_tensor *t = &c->t[i];
        if (!t->output || !t->desc.dtype)
            continue;
        for (int32_t v = 0; v < t->views; v++)
            if (!view_same(t, view_payload(a, c, i, v), view_payload(b, c, i, v), what, r))
                return false;
    }
    return true;
}

/* --- Runs ---------------------------------------------------------------------------------- */

bsk_status test_plan(test_case *c, const bsk_device *device, const char *entry, bsk_plan **plan)
{
    char force[160];
    snprintf(force, sizeof force, "+%s", entry);
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    options.kernels = force;
    options.fallback = BSK_FALLBACK_FORBID;
    options.alignment = c->spec.options & OPT_OFFSET ? 1 : 0;
    return c->op->plan(device, c->params, &options, plan);
}

/* A run as a thread calls it that has used no device before. */
typedef struct apart {
    const test_case *c;
    const bsk_plan *plan;
    bsk_queue *queue;
    bsk_status status;
    char error[512];
} apart;

static void *apart_run(void *given)
{
    apart *a = given;
    a->status = a->c->op->run(a->plan, a->queue, a->c->args);
    snprintf(a->error, sizeof a->error, "%s", bsk_last_error());
    return NULL;
}

static bool run_apart(const test_case *c, const bsk_plan *plan, bsk_queue *queue, test_result *r)
{
    apart a = {.c = c, .plan = plan, .queue = queue};
    pthread_t thread;
    if (pthread_create(&thread, NULL, apart_run, &a) || pthread_join(thread, NULL))
        return test_fail(r, "no thread to run in");
    return !a.status ||
           test_fail(r, "run by another thread: %s: %s", bsk_status_name(a.status), a.error);
}

/* by_other: another thread calls the run. */
static bool run_once(test_case *c, const bsk_plan *plan, bsk_queue *queue, test_memory *m,
                     int poison, bool by_other, test_result *r)
{
    bsk_status status = test_memory_load(m, c, queue, poison);
    if (status)
        return test_fail(r, "upload: %s: %s", bsk_status_name(status), bsk_last_error());
    if (by_other && !run_apart(c, plan, queue, r))
        return false;
    if (!by_other)
        status = c->op->run(plan, queue, c->args);
    if (!status)
        status = bsk_queue_sync(queue);
    if (status)
        return test_fail(r, "run: %s: %s", bsk_status_name(status), bsk_last_error());
    status = memory_download(m, queue);
    if (status)
        return test_fail(r, "download: %s: %s", bsk_status_name(status), bsk_last_error());
    return memory_intact(m, c, r);
}

/* The same problem on a context of one thread. */
static bool run_one_thread(test_case *c, const test_device *d, const char *entry,
                           const test_memory *first, test_result *r)
{
    bsk_plan *plan = NULL;
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    test_memory *m = malloc(sizeof *m);
    bsk_status status = test_plan(c, d->device_one, entry, &plan);
    bool good = !status && m;
    if (status)
        test_fail(r, "plan with one thread: %s", bsk_last_error());
    if (good) {
        bsk_plan_query(plan, &info);
        good = test_memory_make(m, c, d->device_one, info.workspace_bytes) &&
               run_once(c, plan, d->queue_one, m, 0x01, false, r) &&
               outputs_same(c, first, m, "with one thread", r);
        test_memory_free(m);
    }
    bsk_plan_destroy(&plan);
    free(m);
    return good;
}

/* The packed image of the case's weights, between guards; false with a reason. */
static bool image_make(test_case *c, const bsk_plan *plan, bsk_queue *queue, const test_memory *m,
                       test_buffer *image, test_result *r)
{
    memset(image->image + image->lead, 0xff, image->bytes);
    bsk_status status = bsk_mem_upload(queue, image->whole, image->image, image->total);
    if (!status)
        status = c->op->prepack(plan, queue, m->views[BSKI_PACKED][0], image->view);
    if (!status)
        status = bsk_mem_download(queue, image->image, image->whole, image->total);
    if (!status)
        status = bsk_queue_sync(queue);
    return !status || test_fail(r, "prepack: %s: %s", bsk_status_name(status), bsk_last_error());
}

static bool image_intact(const test_buffer *image, bsk_queue *queue, test_result *r)
{
    int64_t where = 0;
    uint8_t *now = malloc(image->total);
    if (!buffer_guards(image, &where))
        test_fail(r, "wrote outside the packed image, at byte %" PRId64 " of %zu", where,
                  image->bytes);
    else if (!now || bsk_mem_download(queue, now, image->whole, image->total) ||
             bsk_queue_sync(queue))
        test_fail(r, "download of the packed image: %s", bsk_last_error());
    else if (memcmp(now, image->image, image->total) != 0)
        test_fail(r, "a run changed the packed image");
    free(now);
    return r->status == TEST_PASS;
}

/* The same run with a packed image and without the weights. */
static bool run_packed(test_case *c, const test_device *d, const bsk_plan *plan,
                       const bsk_plan_info *info, const test_memory *first, test_result *r)
{
    const bski_arg *weights = &c->about->args[BSKI_PACKED];
    test_buffer image = {0};
    test_memory *m = calloc(1, sizeof *m);
    bool good = m && test_memory_make(m, c, d->device, info->workspace_bytes) &&
                buffer_make(&image, d->device, info->packed_bytes, 0, GUARD);
    if (!good)
        test_fail(r, "no memory for the packed image");
    else if (test_memory_load(m, c, d->queue, 0x33))
        good = test_fail(r, "upload: %s", bsk_last_error());
    if (good && (good = image_make(c, plan, d->queue, m, &image, r))) {
        unsigned char args[BSKI_MAX_STRUCT];
        memcpy(args, c->args, sizeof args);
        memset(c->args + weights->mem, 0, sizeof(bsk_mem));
        memcpy(c->args + c->about->packed, &image.view, sizeof image.view);
        bsk_status status = c->op->run(plan, d->queue, c->args);
        if (!status)
            status = memory_download(m, d->queue);
        memcpy(c->args, args, sizeof args);
        if (status)
            good = test_fail(r, "run with packed weights: %s: %s", bsk_status_name(status),
                             bsk_last_error());
        good = good && memory_intact(m, c, r) &&
               outputs_same(c, first, m, "with packed weights", r) &&
               image_intact(&image, d->queue, r);
    }
    buffer_free(&image, d->device);
    if (m)
        test_memory_free(m);
    free(m);
    return good;
}

static bool plan_check(const test_case *c, const bsk_plan *plan, const char *entry,
                       bsk_plan_info *info, test_result *r)
{
    bsk_status status = bsk_plan_query(plan, info);
    if (status)
        return test_fail(r, "bsk_plan_query: %s", bsk_last_error());
    if (strcmp(info->entry, entry) != 0)
        return test_fail(r, "forced %s, but the plan has %s", entry, info->entry);
    if (info->staged)
        return test_fail(r, "the plan is a staged fallback, although that is forbidden");
    if (info->packed_bytes && !c->op->prepack)
        return test_fail(r, "the plan has a packed image, but %s has no prepack", c->op->name);
    return true;
}

static void run_planned(test_case *c, const test_device *d, const char *entry, const bsk_plan *plan,
                        test_result *r)
{
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    if (!plan_check(c, plan, entry, &info, r))
        return;
    test_memory *a = calloc(2, sizeof *a), *b = a + 1;
    if (!a || !test_memory_make(a, c, d->device, info.workspace_bytes) ||
        !test_memory_make(b, c, d->device, info.workspace_bytes)) {
        test_fail(r, "no memory for the buffers");
    } else {
        bool good =
            run_once(c, plan, d->queue, a, 0xff, false, r) && outputs_check(c, a, r) &&
            run_once(c, plan, d->queue, b, 0x7b, true, r) &&
            (!info.deterministic || outputs_same(c, a, b, "when repeated by another thread", r));
        if (good && info.packed_bytes)
            good = run_packed(c, d, plan, &info, a, r);
        if (good && d->queue_one)
            run_one_thread(c, d, entry, a, r);
    }
    if (a) {
        test_memory_free(a);
        test_memory_free(b);
    }
    free(a);
}

/* The words about one entry in a message "... (NAME: reason; NAME: reason)". */
static void refusal(const char *message, const char *entry, char *why, size_t size)
{
    const char *at = strstr(message, entry);
    size_t n = strlen(entry);
    while (at && strncmp(at + n, ": ", 2) != 0)
        at = strstr(at + n, entry);
    if (at)
        snprintf(why, size, "%.*s", (int)strcspn(at + n + 2, ";)"), at + n + 2);
    else
        snprintf(why, size, "%s", message);
}

test_result test_run(test_case *c, const test_device *d, const char *entry)
{
    test_result r = {TEST_PASS, "", 0, 0};
    bsk_plan *plan = NULL;
    bsk_status status = test_plan(c, d->device, entry, &plan);
    if (status == BSK_E_UNSUPPORTED) {
        r.status = TEST_NA;
        refusal(bsk_last_error(), entry, r.why, sizeof r.why);
        return r;
    }
    if (status) {
        test_fail(&r, "plan: %s: %s", bsk_status_name(status), bsk_last_error());
    } else {
        test_case_expect(c);
        run_planned(c, d, entry, plan, &r);
    }
    bsk_plan_destroy(&plan);
    return r;
}
