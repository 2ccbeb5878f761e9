/* The fake backend. Its device memory is host memory behind addresses that no code may follow:
 * each handle is the true address plus a large bias, so that a core that touches device memory
 * without asking the backend crashes at once. Every access is checked against the live
 * allocations. It has real entries for one op only; all others exercise the fallback. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>

#include <bsk/backend.h>

#include "fake.h"

#define EXPORT __attribute__((visibility("default")))

/* Not a legal address on any 64-bit machine that runs these tests. */
static const uintptr_t bias = (uintptr_t)1 << 62;

enum { MAX_ALLOCATIONS = 512, MAX_WAITING = 16, DEVICE_COUNT = 2 };

/* Ranks of the architectures below. */
enum { ARCH_F1 = 1, ARCH_F2 = 2 };

typedef struct fault {
    bsk_status status; /* BSK_OK: none is set */
    int skip;
} fault;

typedef struct allocation {
    char *memory;
    size_t size;
} allocation;

static struct {
    pthread_mutex_t lock;
    fault faults[FAKE_POINT_COUNT];
    allocation allocations[MAX_ALLOCATIONS];
    fake_counts counts;
    int lost;
    int device_count;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .device_count = DEVICE_COUNT};

static atomic_int refusal, silence;

typedef struct fake_device {
    const bsk_host *host;
    int32_t index;
} fake_device;

/* Copies wait until something needs them done, so that whoever frees their memory before is found. */
typedef struct fake_copy {
    void *to;
    const void *from;
    size_t bytes;
} fake_copy;

typedef struct fake_queue {
    fake_device *device;
    fake_copy waiting[MAX_WAITING];
    int count;
} fake_queue;

typedef struct fake_event {
    fake_device *device;
    int recorded;
} fake_event;

static void count_add(int *counter, int n)
{
    pthread_mutex_lock(&state.lock);
    *counter += n;
    pthread_mutex_unlock(&state.lock);
}

/* The status that a call of this point is to answer. */
static bsk_status fault_take(fake_point point)
{
    pthread_mutex_lock(&state.lock);
    fault *f = &state.faults[point];
    bsk_status status = BSK_OK;
    if (state.lost)
        status = BSK_E_DEVICE_LOST;
    else if (f->status != BSK_OK && f->skip-- <= 0) {
        status = f->status;
        f->status = BSK_OK;
        state.lost = status == BSK_E_DEVICE_LOST;
    }
    pthread_mutex_unlock(&state.lock);
    return status;
}

static const char *const point_names[] = {
#define FAKE_POINT_NAME(upper, lower) #lower,
    FAKE_POINTS(FAKE_POINT_NAME)
#undef FAKE_POINT_NAME
};

static bsk_status point_check(const bsk_host *host, fake_point point)
{
    bsk_status status = fault_take(point);
    if (status == BSK_OK || atomic_load(&silence))
        return status;
    return host->fail(host->context, status, "fake: %s fails as told", point_names[point]);
}

/* The true address of bytes bytes, or NULL if they do not lie within one live allocation. */
static void *memory_resolve(bsk_mem mem, size_t bytes)
{
    void *found = NULL;
    uintptr_t address = (uintptr_t)mem.handle + mem.offset - bias;
    pthread_mutex_lock(&state.lock);
    for (int i = 0; i < MAX_ALLOCATIONS && !found; i++) {
        const allocation *a = &state.allocations[i];
        uintptr_t start = (uintptr_t)a->memory;
        if (a->memory && address >= start && address - start <= a->size &&
            bytes <= a->size - (address - start))
            found = a->memory + (address - start);
    }
    if (!found || mem.kind != BSK_MEM_DEVICE) {
        state.counts.violations++;
        found = NULL;
    }
    pthread_mutex_unlock(&state.lock);
    return found;
}

static void *object_new(size_t bytes, int *counter)
{
    void *object = calloc(1, bytes);
    if (object)
        count_add(counter, 1);
    return object;
}

static void object_delete(void *object, int *counter)
{
    if (object)
        count_add(counter, -1);
    free(object);
}

/* --- Devices and queues --- */

static bsk_status fake_probe(const bsk_host *host, int32_t *count)
{
    pthread_mutex_lock(&state.lock);
    *count = state.device_count;
    pthread_mutex_unlock(&state.lock);
    return point_check(host, FAKE_PROBE);
}

static bsk_status fake_open(const bsk_host *host, int32_t index, void **device,
                            bsk_device_props *props)
{
    bsk_status status = point_check(host, FAKE_OPEN);
    if (status != BSK_OK)
        return status;
    fake_device *d = object_new(sizeof *d, &state.counts.devices);
    if (!d)
        return host->fail(host->context, BSK_E_NOMEM, "fake: no memory for a device");
    d->host = host;
    d->index = index;
    strcpy(props->name, index ? "Fake One" : "Fake Two");
    strcpy(props->driver, "fake 1.0");
    props->arch = index ? ARCH_F1 : ARCH_F2;
    props->compute_units = 1;
    props->memory_bytes = 1 << 20;
    props->mem_kinds = 1u << BSK_MEM_DEVICE;
    props->dtypes = BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_I32);
    *device = d;
    return BSK_OK;
}

static void fake_close(void *device)
{
    object_delete(device, &state.counts.devices);
}

static bsk_status fake_queue_create(void *device, void **queue)
{
    fake_device *d = device;
    bsk_status status = point_check(d->host, FAKE_QUEUE);
    if (status != BSK_OK)
        return status;
    fake_queue *q = object_new(sizeof *q, &state.counts.queues);
    if (!q)
        return d->host->fail(d->host->context, BSK_E_NOMEM, "fake: no memory for a queue");
    q->device = d;
    *queue = q;
    return BSK_OK;
}

static void copies_finish(fake_queue *q)
{
    for (int i = 0; i < q->count; i++)
        memcpy(q->waiting[i].to, q->waiting[i].from, q->waiting[i].bytes);
    q->count = 0;
}

static void copy_later(fake_queue *q, void *to, const void *from, size_t bytes)
{
    if (q->count == MAX_WAITING)
        copies_finish(q);
    q->waiting[q->count++] = (fake_copy){to, from, bytes};
}

static void fake_queue_destroy(void *queue)
{
    if (queue)
        copies_finish(queue);
    object_delete(queue, &state.counts.queues);
}

/* Waits also where it then fails. */
static bsk_status fake_queue_sync(void *queue)
{
    fake_queue *q = queue;
    copies_finish(q);
    return point_check(q->device->host, FAKE_SYNC);
}

/* --- Memory --- */

static bsk_status fake_alloc(void *device, size_t bytes, bsk_mem *mem)
{
    const bsk_host *host = ((fake_device *)device)->host;
    bsk_status status = point_check(host, FAKE_ALLOC);
    if (status != BSK_OK)
        return status;
    size_t rounded = bytes > SIZE_MAX - 512 ? 0 : (bytes + 256) / 256 * 256;
    char *memory = rounded ? aligned_alloc(256, rounded) : NULL;
    if (memory)
        memset(memory, 0xa5, rounded);
    pthread_mutex_lock(&state.lock);
    int slot = 0;
    while (slot < MAX_ALLOCATIONS && state.allocations[slot].memory)
        slot++;
    if (memory && slot < MAX_ALLOCATIONS) {
        state.allocations[slot].memory = memory;
        state.allocations[slot].size = bytes;
        state.counts.allocations++;
    }
    pthread_mutex_unlock(&state.lock);
    if (!memory || slot == MAX_ALLOCATIONS) {
        free(memory);
        return host->fail(host->context, BSK_E_DEVICE_NOMEM, "fake: no room for %zu bytes", bytes);
    }
    mem->kind = BSK_MEM_DEVICE;
    mem->handle = (void *)((uintptr_t)memory + bias);
    mem->offset = 0;
    mem->size = bytes;
    return BSK_OK;
}

static void fake_free(void *device, bsk_mem mem)
{
    (void)device;
    char *memory = NULL;
    pthread_mutex_lock(&state.lock);
    for (int i = 0; i < MAX_ALLOCATIONS && !memory; i++) {
        allocation *a = &state.allocations[i];
        if (!a->memory || (uintptr_t)a->memory + bias != (uintptr_t)mem.handle)
            continue;
        memory = a->memory;
        a->memory = NULL;
        state.counts.allocations--;
    }
    if (!memory)
        state.counts.violations++;
    pthread_mutex_unlock(&state.lock);
    free(memory);
}

static bsk_status memory_refuse(const bsk_host *host, const char *what)
{
    return host->fail(host->context, BSK_E_DEVICE, "fake: %s outside an allocation", what);
}

static bsk_status fake_upload(void *queue, bsk_mem dst, const void *src, size_t bytes)
{
    const bsk_host *host = ((fake_queue *)queue)->device->host;
    bsk_status status = point_check(host, FAKE_UPLOAD);
    if (status != BSK_OK)
        return status;
    void *to = memory_resolve(dst, bytes);
    if (!to)
        return memory_refuse(host, "upload");
    copy_later(queue, to, src, bytes);
    return BSK_OK;
}

static bsk_status fake_download(void *queue, void *dst, bsk_mem src, size_t bytes)
{
    const bsk_host *host = ((fake_queue *)queue)->device->host;
    bsk_status status = point_check(host, FAKE_DOWNLOAD);
    if (status != BSK_OK)
        return status;
    const void *from = memory_resolve(src, bytes);
    if (!from)
        return memory_refuse(host, "download");
    copy_later(queue, dst, from, bytes);
    return BSK_OK;
}

static bsk_status fake_fill(void *queue, bsk_mem dst, uint8_t byte, size_t bytes)
{
    const bsk_host *host = ((fake_queue *)queue)->device->host;
    bsk_status status = point_check(host, FAKE_FILL);
    if (status != BSK_OK)
        return status;
    void *to = memory_resolve(dst, bytes);
    if (!to)
        return memory_refuse(host, "fill");
    copies_finish(queue);
    memset(to, byte, bytes);
    return BSK_OK;
}

/* --- Events: time is counted in recordings --- */

static bsk_status fake_event_create(void *device, void **event)
{
    fake_device *d = device;
    bsk_status status = point_check(d->host, FAKE_EVENT);
    if (status != BSK_OK)
        return status;
    fake_event *e = object_new(sizeof *e, &state.counts.events);
    if (!e)
        return d->host->fail(d->host->context, BSK_E_NOMEM, "fake: no memory for an event");
    e->device = d;
    *event = e;
    return BSK_OK;
}

static void fake_event_destroy(void *event)
{
    object_delete(event, &state.counts.events);
}

static bsk_status fake_event_record(void *event, void *queue)
{
    (void)queue;
    fake_event *e = event;
    e->recorded++;
    return point_check(e->device->host, FAKE_RECORD);
}

static bsk_status fake_event_elapsed(void *start, void *stop, double *milliseconds)
{
    const fake_event *a = start, *b = stop;
    bsk_status status = point_check(a->device->host, FAKE_ELAPSED);
    if (status == BSK_OK)
        *milliseconds = (double)b->recorded / 1000.0;
    return status;
}

static bsk_status fake_lend(void *device, void *queue, bsk_stream_use_fn use, void *argument)
{
    const bsk_host *host = ((fake_device *)device)->host;
    bsk_status status = point_check(host, FAKE_LEND);
    return status ? status : use(argument, queue);
}

/* --- Entries: bias_act for contiguous f32 in NC form, relu or nothing --- */

static bsk_reason bias_act_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    (void)props;
    const bsk_bias_act_params *p = problem->params;
    int reason = atomic_load(&refusal);
    if (reason)
        return (bsk_reason)reason;
    if (p->y.dtype != BSK_F32)
        return BSK_REFUSE_DTYPE;
    if (p->axis != BSK_NC)
        return BSK_REFUSE_OPTION;
    if (p->act != BSK_ACT_NONE && p->act != BSK_ACT_RELU)
        return BSK_REFUSE_EPILOGUE;
    const bsk_tensor *both[] = {&p->x, &p->y};
    for (int i = 0; i < 2; i++)
        if (both[i]->strides[1] != 1 || both[i]->strides[0] != both[i]->dims[1])
            return BSK_REFUSE_STRIDE;
    return BSK_ACCEPT;
}

/* Asks for a workspace with an alignment of its own, to prove that both reach the caller. */
static bsk_status bias_act_prepare(void *device, bsk_prepared *prepared)
{
    const bsk_host *host = ((fake_device *)device)->host;
    bsk_status status = point_check(host, FAKE_PREPARE);
    if (status != BSK_OK)
        return status;
    const bsk_bias_act_params *p = prepared->problem->params;
    prepared->state = object_new(1, &state.counts.prepared);
    if (!prepared->state)
        return host->fail(host->context, BSK_E_NOMEM, "fake: no memory for a plan");
    prepared->workspace_bytes = (size_t)p->x.dims[1] * sizeof(float);
    prepared->workspace_alignment = 128;
    return BSK_OK;
}

static void bias_act_release(void *device, bsk_prepared *prepared)
{
    (void)device;
    object_delete(prepared->state, &state.counts.prepared);
    prepared->state = NULL;
}

static bsk_status bias_act_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_host *host = ((fake_queue *)queue)->device->host;
    const bsk_bias_act_params *p = prepared->problem->params;
    const bsk_bias_act_args *a = args;
    bsk_status status = point_check(host, FAKE_LAUNCH);
    if (status != BSK_OK)
        return status;
    size_t n = (size_t)p->x.dims[0], f = (size_t)p->x.dims[1], bytes = n * f * sizeof(float);
    if (!bytes)
        return BSK_OK;
    const float *x = memory_resolve(a->x, bytes);
    float *y = memory_resolve(a->y, bytes);
    float *shift = memory_resolve(a->workspace, f * sizeof(float));
    const float *given = p->bias.dtype ? memory_resolve(a->bias, f * sizeof(float)) : NULL;
    if (!x || !y || !shift || (p->bias.dtype && !given) || (uintptr_t)shift % 128)
        return memory_refuse(host, "launch");
    copies_finish(queue);
    for (size_t j = 0; j < f; j++)
        shift[j] = given ? given[j] : 0;
    for (size_t i = 0; i < n * f; i++) {
        float v = x[i] + shift[i % f];
        y[i] = p->act == BSK_ACT_RELU && v < 0 ? 0 : v;
    }
    count_add(&state.counts.launches, 1);
    return BSK_OK;
}

/* A reference entry that computes nothing: tests plan it only, to see when it may be chosen. */
static bsk_status nothing_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    (void)prepared;
    (void)args;
    return point_check(((fake_queue *)queue)->device->host, FAKE_LAUNCH);
}

#define BIAS_ACT                                                                                   \
    .accept = bias_act_accept, .prepare = bias_act_prepare, .launch = bias_act_launch,             \
    .release = bias_act_release

static const bsk_entry entries[] = {
    {.name = "bias_act_f32_f2",
     .op = BSK_OP_BIAS_ACT,
     .dtypes = BSK_DTYPE_BIT(BSK_F32),
     .arch_min = ARCH_F2,
     .priority = 20,
     BIAS_ACT},
    {.name = "bias_act_f32_f1",
     .op = BSK_OP_BIAS_ACT,
     .dtypes = BSK_DTYPE_BIT(BSK_F32),
     .arch_min = ARCH_F1,
     .priority = 10,
     .flags = BSK_ENTRY_NONDETERMINISTIC,
     BIAS_ACT},
    {.name = "bias_act_f32_unproven",
     .op = BSK_OP_BIAS_ACT,
     .dtypes = BSK_DTYPE_BIT(BSK_F32),
     .arch_min = ARCH_F1,
     .priority = -1,
     BIAS_ACT},
    {.name = "fake_ref_bias_act_grad",
     .op = BSK_OP_BIAS_ACT_GRAD,
     .flags = BSK_ENTRY_REFERENCE | BSK_ENTRY_NOT_CAPTURABLE,
     .launch = nothing_launch},
};

static const bsk_arch archs[] = {{"f1", ARCH_F1}, {"f2", ARCH_F2}};

static const bsk_backend backend = {
    .struct_size = sizeof(bsk_backend),
    .abi = BSK_BACKEND_ABI,
    .name = "fake",
    .archs = archs,
    .arch_count = sizeof archs / sizeof *archs,
    .entries = entries,
    .entry_count = sizeof entries / sizeof *entries,
    .probe = fake_probe,
    .device_open = fake_open,
    .device_close = fake_close,
    .queue_create = fake_queue_create,
    .queue_destroy = fake_queue_destroy,
    .queue_sync = fake_queue_sync,
    .mem_alloc = fake_alloc,
    .mem_free = fake_free,
    .mem_upload = fake_upload,
    .mem_download = fake_download,
    .mem_fill = fake_fill,
    .event_create = fake_event_create,
    .event_destroy = fake_event_destroy,
    .event_record = fake_event_record,
    .event_elapsed = fake_event_elapsed,
    .lend = fake_lend,
};

/* --- Control --- */

static void control_reset(void)
{
    pthread_mutex_lock(&state.lock);
    memset(state.faults, 0, sizeof state.faults);
    state.lost = 0;
    state.device_count = DEVICE_COUNT;
    state.counts.violations = 0;
    state.counts.launches = 0;
    pthread_mutex_unlock(&state.lock);
    atomic_store(&refusal, 0);
    atomic_store(&silence, 0);
}

static void control_fail(fake_point point, bsk_status status, int skip)
{
    pthread_mutex_lock(&state.lock);
    state.faults[point].status = status;
    state.faults[point].skip = skip;
    pthread_mutex_unlock(&state.lock);
}

static void control_silent(int on)
{
    atomic_store(&silence, on);
}

static void control_refuse(int reason)
{
    atomic_store(&refusal, reason);
}

static void control_devices(int count)
{
    pthread_mutex_lock(&state.lock);
    state.device_count = count;
    pthread_mutex_unlock(&state.lock);
}

static fake_counts control_counts(void)
{
    pthread_mutex_lock(&state.lock);
    fake_counts counts = state.counts;
    pthread_mutex_unlock(&state.lock);
    return counts;
}

static const fake_control control = {control_reset,  control_fail,    control_silent,
                                     control_refuse, control_devices, control_counts};

EXPORT const fake_control *bsk_fake_control(void);
EXPORT const bsk_backend *bsk_backend_query_v1(const bsk_host *host);

const fake_control *bsk_fake_control(void)
{
    return &control;
}

const bsk_backend *bsk_backend_query_v1(const bsk_host *host)
{
    return host->abi == BSK_BACKEND_ABI ? &backend : NULL;
}
