/* The OpenCL backend without the library round it: devices, queues, memory, events, kernels, the
 * cache of compiled programs, and faults. Argument: "none" if there must be no device, else the
 * least number of devices that there must be, 0 to skip without one. */
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <dirent.h>

#include <backends/opencl/opencl.h>
#include <common/dtype.h>

#include "unit.h"

/* --- A host that counts what the backend says --- */

typedef struct test_host {
    bsk_host host;
    unit_heap heap;
    unit_log *log;
    bsk_status failed; /* of the last failure */
    char message[512];
} test_host;

static void host_log(void *context, bsk_log_level level, const char *format, ...)
{
    test_host *t = context;
    char line[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    unit_log_line(t->log, level, line);
}

static bsk_status host_fail(void *context, bsk_status status, const char *format, ...)
{
    test_host *t = context;
    va_list args;
    va_start(args, format);
    vsnprintf(t->message, sizeof t->message, format, args);
    va_end(args);
    t->failed = status;
    return status;
}

static void host_start(test_host *t, const char *cache_dir)
{
    memset(t, 0, sizeof *t);
    atomic_store(&t->heap.countdown, -1);
    t->log = unit_log_new();
    t->host = (bsk_host){
        .struct_size = sizeof t->host,
        .abi = BSK_BACKEND_ABI,
        .context = t,
        .allocator = unit_allocator(&t->heap),
        .cache_dir = cache_dir,
        .log = host_log,
        .fail = host_fail,
    };
}

static void host_end(test_host *t)
{
    CHECK(atomic_load(&t->heap.live) == 0);
    unit_log_free(t->log);
}

#define CHECK_FAILS(t, call, want, part)                                                           \
    do {                                                                                           \
        CHECK((call) == (want));                                                                   \
        CHECK_TEXT((t)->message, part);                                                            \
    } while (0)

#define CHECK_GOOD(t, call) unit_check((call) == BSK_OK, __FILE__, __LINE__, #call, (t)->message)

static bski_cl_device *device_open(test_host *t, int32_t index, bsk_device_props *props)
{
    void *device = NULL;
    CHECK(bski_cl_device_open(&t->host, index, &device, props) == BSK_OK);
    return device;
}

/* --- The test kernel --- */

typedef struct scale_arg {
    int64_t n;
    float alpha;
    int32_t repeat;
} scale_arg;

enum { SCALE_GROUP = 64 };

static const simt_kernel *scale_kernel(bski_cl_device *d, bsk_dtype type, const char *variant)
{
    const simt_kernel *k = NULL;
    CHECK(d->simt.api->kernel(&d->simt, "scale", "scale", type, variant, &k) == BSK_OK);
    return k;
}

static bsk_status scale_launch(void *queue, const simt_kernel *k, const scale_arg *a, bsk_mem x,
                               bsk_mem bias, bsk_mem y)
{
    simt_queue *q = queue;
    int64_t groups = (a->n + SCALE_GROUP - 1) / SCALE_GROUP;
    /* Over all axes, with some groups that have nothing to do. */
    simt_launch l = {.groups = {groups / 6 + 1, 3, 2},
                     .group_size = SCALE_GROUP,
                     .buffer_count = 3,
                     .buffers = (const bsk_mem[]){x, bias, y},
                     .scalars = a,
                     .scalar_bytes = sizeof *a};
    return q->device->api->launch(q, k, &l);
}

static size_t type_bytes(bsk_dtype type)
{
    return type == BSK_F64 ? 8 : type == BSK_F32 ? 4 : 2;
}

/* Runs the kernel at byte offsets that are not zero, and checks every element and what surrounds
 * the output. */
static void scale_check(bski_cl_device *d, void *queue, bsk_dtype type, bool bias)
{
    enum { N = 1000, PAD = 24 };
    const scale_arg a = {N, 0.5f, 2};
    const simt_kernel *k = scale_kernel(d, type, "");
    size_t element = type_bytes(type), bytes = (N + 2 * PAD) * element;
    char *x = malloc(bytes), *y = malloc(bytes);
    bsk_mem mx, my, mb = {BSK_MEM_NULL, NULL, 0, 0};
    if (!x || !y || !k)
        abort();
    for (int i = 0; i < N + 2 * PAD; i++)
        bski_store(type, x, i, (i % 37 - 18) * 0.25);
    CHECK(bski_cl_mem_alloc(d, bytes, &mx) == BSK_OK);
    CHECK(bski_cl_mem_alloc(d, bytes, &my) == BSK_OK);
    CHECK(bski_cl_mem_upload(queue, mx, x, bytes) == BSK_OK);
    CHECK(bski_cl_mem_fill(queue, my, 0x5a, bytes) == BSK_OK);
    if (bias)
        mb = bsk_mem_at(mx, 3 * element);
    CHECK(scale_launch(queue, k, &a, bsk_mem_at(mx, PAD * element), mb,
                       bsk_mem_at(my, PAD * element)) == BSK_OK);
    CHECK(bski_cl_mem_download(queue, y, my, bytes) == BSK_OK);
    CHECK(bski_cl_queue_sync(queue) == BSK_OK);
    int wrong = 0;
    for (int i = 0; i < N; i++) {
        double b = bias ? bski_load(type, x, i + 3) : 0;
        wrong += bski_load(type, y, PAD + i) != 0.5 * bski_load(type, x, PAD + i) + b;
    }
    for (size_t i = 0; i < PAD * element; i++)
        wrong += y[i] != 0x5a || y[bytes - 1 - i] != 0x5a;
    CHECK(wrong == 0);
    bski_cl_mem_free(d, mx);
    bski_cl_mem_free(d, my);
    free(x);
    free(y);
}

static void test_kernels(bski_cl_device *d, const bsk_device_props *props, void *queue)
{
    for (bsk_dtype type = BSK_F64; type <= BSK_BF16; type++)
        if (props->dtypes & BSK_DTYPE_BIT(type)) {
            scale_check(d, queue, type, false);
            scale_check(d, queue, type, true);
        }
    CHECK(scale_kernel(d, BSK_F32, "") == scale_kernel(d, BSK_F32, ""));
    CHECK(scale_kernel(d, BSK_F32, "") != scale_kernel(d, BSK_F32, "-DTM=4"));
    CHECK(scale_kernel(d, BSK_F32, "") != scale_kernel(d, BSK_BF16, ""));

    /* A grid without groups does nothing. */
    const simt_kernel *k = scale_kernel(d, BSK_F32, "");
    const scale_arg a = {4, 1, 1};
    const bsk_mem none[3] = {{BSK_MEM_NULL, NULL, 0, 0}};
    simt_launch l = {.groups = {0, 1, 1},
                     .group_size = SCALE_GROUP,
                     .buffer_count = 3,
                     .buffers = none,
                     .scalars = &a,
                     .scalar_bytes = sizeof a};
    CHECK(d->simt.api->launch(queue, k, &l) == BSK_OK);
    l.groups[0] = 1;
    l.groups[2] = 0;
    CHECK(d->simt.api->launch(queue, k, &l) == BSK_OK);
    CHECK(bski_cl_queue_sync(queue) == BSK_OK);
}

static void test_kernel_faults(test_host *t, bski_cl_device *d, void *queue)
{
    const simt_kernel *k = NULL;
    for (int i = 0; i < 2; i++) { /* the second answer comes without the compiler */
        CHECK_FAILS(t, d->simt.api->kernel(&d->simt, "broken", "broken", BSK_F32, "", &k),
                    BSK_E_DEVICE, "no_such_function");
        CHECK(!k);
    }
    CHECK_FAILS(t, d->simt.api->kernel(&d->simt, "absent", "scale", BSK_F32, "", &k),
                BSK_E_INTERNAL, "absent");
    CHECK_FAILS(t, d->simt.api->kernel(&d->simt, "scale", "absent", BSK_F32, "", &k), BSK_E_DEVICE,
                "absent_f32: INVALID_KERNEL_NAME");
    CHECK_FAILS(t, d->simt.api->kernel(&d->simt, "scale", "scale", BSK_I32, "", &k), BSK_E_INTERNAL,
                "type 6");
    /* A launch that does not fit the kernel. */
    const simt_kernel *scale = scale_kernel(d, BSK_F32, "");
    const bsk_mem none[2] = {{BSK_MEM_NULL, NULL, 0, 0}};
    const simt_launch l = {
        .groups = {1, 1, 1}, .group_size = SCALE_GROUP, .buffer_count = 2, .buffers = none};
    CHECK_FAILS(t, d->simt.api->launch(queue, scale, &l), BSK_E_INTERNAL, "scale_f32");
    scale_check(d, queue, BSK_F32, true);
}

/* --- Tables, memory, events --- */

static void test_memory(test_host *t, bski_cl_device *d, const bsk_device_props *props, void *queue)
{
    const char text[] = "a table";
    char back[sizeof text] = "";
    bsk_mem m = {BSK_MEM_NULL, NULL, 0, 0};
    CHECK(d->simt.api->table(&d->simt, text, sizeof text, &m) == BSK_OK);
    CHECK(bski_cl_mem_download(queue, back, m, sizeof text) == BSK_OK);
    CHECK(bski_cl_queue_sync(queue) == BSK_OK);
    CHECK(!strcmp(text, back));
    d->simt.api->table_free(&d->simt, &m);
    CHECK(m.kind == BSK_MEM_NULL && !m.handle);

    CHECK(bski_cl_mem_alloc(d, 0, &m) == BSK_OK);
    CHECK(m.kind == BSK_MEM_CL && m.size == 0);
    CHECK(bski_cl_mem_upload(queue, m, text, 0) == BSK_OK);
    bski_cl_mem_free(d, m);

    CHECK_FAILS(t, bski_cl_mem_alloc(d, (size_t)1 << 60, &m), BSK_E_DEVICE_NOMEM, "bytes");
    CHECK(m.kind == BSK_MEM_NULL);
    CHECK(bski_cl_mem_alloc(d, 16, &m) == BSK_OK);
    CHECK_FAILS(t,
                bski_cl_mem_upload(queue, bsk_mem_at((bsk_mem){m.kind, m.handle, 0, 0}, 12), text,
                                   sizeof text),
                BSK_E_INVALID, "an upload: INVALID_VALUE");
    bski_cl_mem_free(d, m);

    if (props->mem_kinds & 1u << BSK_MEM_DEVICE) {
        enum { N = 256 };
        float x[N], y[N] = {0};
        int wrong = 0;
        for (int i = 0; i < N; i++)
            x[i] = (float)i;
        float *shared = clSVMAlloc(d->context, CL_MEM_READ_WRITE, 3 * sizeof x, 0);
        CHECK(shared != NULL);
        const scale_arg a = {N, 2, 1};
        bsk_mem in = bsk_device_ptr(shared), out = bsk_mem_at(in, 2 * sizeof x);
        CHECK(bski_cl_mem_upload(queue, in, x, sizeof x) == BSK_OK);
        CHECK(bski_cl_mem_fill(queue, out, 0xff, sizeof x) == BSK_OK);
        CHECK(scale_launch(queue, scale_kernel(d, BSK_F32, ""), &a, in,
                           (bsk_mem){BSK_MEM_NULL, NULL, 0, 0}, out) == BSK_OK);
        CHECK(bski_cl_mem_download(queue, y, out, sizeof y) == BSK_OK);
        CHECK(bski_cl_queue_sync(queue) == BSK_OK);
        for (int i = 0; i < N; i++)
            wrong += y[i] != 2 * x[i];
        CHECK(wrong == 0);
        /* Buffers and pointers in one launch, and each in the other's place. */
        bsk_mem other;
        CHECK_GOOD(t, bski_cl_mem_alloc(d, sizeof x, &m));
        CHECK_GOOD(t, bski_cl_mem_alloc(d, sizeof x, &other));
        CHECK_GOOD(t, bski_cl_mem_upload(queue, m, x, sizeof x));
        for (int i = 0; i < 8; i++) { /* more patterns than there are copies of a kernel */
            bsk_mem p = i & 1 ? in : m, q = i & 2 ? in : m, r = i & 4 ? out : other;
            CHECK_GOOD(t, scale_launch(queue, scale_kernel(d, BSK_F32, ""), &a, p, q, r));
        }
        CHECK_GOOD(t, scale_launch(queue, scale_kernel(d, BSK_F32, ""), &a, out, other, m));
        CHECK_GOOD(t, bski_cl_mem_download(queue, y, m, sizeof y));
        CHECK_GOOD(t, bski_cl_queue_sync(queue));
        for (int i = 0; i < N; i++)
            wrong += y[i] != 9 * x[i];
        CHECK(wrong == 0);
        bski_cl_mem_free(d, m);
        bski_cl_mem_free(d, other);
        clSVMFree(d->context, shared);
    }
}

static void test_events(test_host *t, bski_cl_device *d, void *queue)
{
    enum { N = 1 << 16 };
    void *start = NULL, *stop = NULL;
    double ms = -1;
    bsk_mem x, y;
    CHECK(bski_cl_event_create(d, &start) == BSK_OK && bski_cl_event_create(d, &stop) == BSK_OK);
    CHECK_FAILS(t, bski_cl_event_elapsed(start, stop, &ms), BSK_E_INVALID, "not recorded");
    CHECK(bski_cl_mem_alloc(d, N * sizeof(float), &x) == BSK_OK);
    CHECK(bski_cl_mem_alloc(d, N * sizeof(float), &y) == BSK_OK);
    CHECK(bski_cl_mem_fill(queue, x, 0, N * sizeof(float)) == BSK_OK);
    const simt_kernel *k = scale_kernel(d, BSK_F32, "");
    double times[2];
    for (int i = 0; i < 2; i++) { /* recording again moves the point */
        const scale_arg a = {N, 1, i ? 200 : 1};
        CHECK(bski_cl_event_record(start, queue) == BSK_OK);
        CHECK_GOOD(t, scale_launch(queue, k, &a, x, x, y));
        CHECK(bski_cl_event_record(stop, queue) == BSK_OK);
        CHECK(bski_cl_event_elapsed(start, stop, &times[i]) == BSK_OK);
    }
    CHECK(times[0] >= 0 && times[1] > 0 && times[1] < 60e3);
    bski_cl_event_destroy(start);
    bski_cl_event_destroy(stop);
    bski_cl_mem_free(d, x);
    bski_cl_mem_free(d, y);
}

/* --- Wrapped queues --- */

static void test_wrap(test_host *t, int32_t index)
{
    bsk_device_props props;
    bski_cl_device *d = device_open(t, index, &props);
    void *queue = NULL;
    cl_int error;
    CHECK_FAILS(t, bski_cl_queue_wrap(d, NULL, &queue), BSK_E_INVALID, "NULL");

    /* The device moves into the context of the first wrapped queue ... */
    cl_context theirs = clCreateContext(NULL, 1, &d->id, NULL, NULL, &error);
    CHECK(!error);
    cl_command_queue native = clCreateCommandQueue(theirs, d->id, 0, &error);
    CHECK(!error);
    CHECK(bski_cl_queue_wrap(d, native, &queue) == BSK_OK);
    CHECK(d->context == theirs);
    cl_context other = clCreateContext(NULL, 1, &d->id, NULL, NULL, &error);
    cl_command_queue foreign = clCreateCommandQueue(other, d->id, 0, &error);
    void *second = NULL;
    CHECK_FAILS(t, bski_cl_queue_wrap(d, foreign, &second), BSK_E_INVALID, "another cl_context");
    CHECK(!second);
    scale_check(d, queue, BSK_F32, true);

    /* ... where buffers of the program work ... */
    enum { N = 200 };
    float x[N], y[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    cl_mem buffer = clCreateBuffer(theirs, CL_MEM_COPY_HOST_PTR, sizeof x, x, &error);
    CHECK(!error);
    bsk_mem m = {BSK_MEM_CL, buffer, 0, sizeof x};
    const scale_arg a = {N, 3, 1};
    CHECK(scale_launch(queue, scale_kernel(d, BSK_F32, ""), &a, m,
                       (bsk_mem){BSK_MEM_NULL, NULL, 0, 0}, m) == BSK_OK);
    CHECK(!clEnqueueReadBuffer(native, buffer, CL_TRUE, 0, sizeof y, y, 0, NULL, NULL));
    int wrong = 0;
    for (int i = 0; i < N; i++)
        wrong += y[i] != 3 * x[i];
    CHECK(wrong == 0);
    clReleaseMemObject(buffer);

    /* ... and stays there. */
    CHECK_FAILS(t, bski_cl_queue_wrap(d, foreign, &second), BSK_E_INVALID, "another cl_context");
    CHECK(!second);
    cl_command_queue unordered =
        clCreateCommandQueue(theirs, d->id, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &error);
    if (!error) {
        CHECK_FAILS(t, bski_cl_queue_wrap(d, unordered, &second), BSK_E_INVALID, "out of order");
        clReleaseCommandQueue(unordered);
    }
    bski_cl_queue_destroy(queue);
    CHECK(!clFinish(native)); /* still the caller's */
    bski_cl_device_close(d);
    clReleaseCommandQueue(foreign);
    clReleaseContext(other);
    clReleaseCommandQueue(native);
    clReleaseContext(theirs);
}

/* A queue of another device. */
static void test_wrap_device(test_host *t)
{
    bsk_device_props props;
    bski_cl_device *a = device_open(t, 0, &props), *b = device_open(t, 1, &props);
    void *queue = NULL;
    cl_int error;
    cl_command_queue native = clCreateCommandQueue(a->context, a->id, 0, &error);
    CHECK(!error);
    CHECK_FAILS(t, bski_cl_queue_wrap(b, native, &queue), BSK_E_INVALID, "another device");
    clReleaseCommandQueue(native);
    bski_cl_device_close(a);
    bski_cl_device_close(b);
}

/* --- Threads: one kernel object, many queues --- */

typedef struct worker {
    pthread_t thread;
    bski_cl_device *device;
    const simt_kernel *kernel;
    int number, wrong;
} worker;

/* Many launches without a wait, each to a place of its own: arguments that another thread set in
 * between would leave a place unwritten. */
static void *worker_run(void *user)
{
    enum { N = 64, ROUNDS = 1000 };
    static const bsk_mem none = {BSK_MEM_NULL, NULL, 0, 0};
    worker *w = user;
    const scale_arg a = {N, (float)(w->number + 1), 1};
    const size_t bytes = N * sizeof(float);
    void *queue = NULL;
    bsk_mem x, y;
    float in[N], *out = malloc(ROUNDS * bytes);
    if (!out)
        abort();
    for (int i = 0; i < N; i++)
        in[i] = (float)i;
    w->wrong = bski_cl_queue_create(w->device, &queue) != BSK_OK;
    w->wrong += bski_cl_mem_alloc(w->device, bytes, &x) != BSK_OK;
    w->wrong += bski_cl_mem_alloc(w->device, ROUNDS * bytes, &y) != BSK_OK;
    w->wrong += bski_cl_mem_upload(queue, x, in, bytes) != BSK_OK;
    w->wrong += bski_cl_mem_fill(queue, y, 0xff, ROUNDS * bytes) != BSK_OK;
    for (int r = 0; r < ROUNDS; r++)
        w->wrong +=
            scale_launch(queue, w->kernel, &a, x, none, bsk_mem_at(y, (size_t)r * bytes)) != BSK_OK;
    w->wrong += bski_cl_mem_download(queue, out, y, ROUNDS * bytes) != BSK_OK;
    w->wrong += bski_cl_queue_sync(queue) != BSK_OK;
    for (int i = 0; i < N * ROUNDS; i++)
        w->wrong += out[i] != a.alpha * in[i % N];
    bski_cl_mem_free(w->device, x);
    bski_cl_mem_free(w->device, y);
    bski_cl_queue_destroy(queue);
    free(out);
    return NULL;
}

static void test_threads(bski_cl_device *d)
{
    worker workers[6]; /* more than there are copies of a kernel */
    const simt_kernel *k = scale_kernel(d, BSK_F32, "");
    for (int i = 0; i < 6; i++) {
        workers[i] = (worker){.device = d, .kernel = k, .number = i};
        if (pthread_create(&workers[i].thread, NULL, worker_run, &workers[i]))
            abort();
    }
    for (int i = 0; i < 6; i++) {
        pthread_join(workers[i].thread, NULL);
        CHECK(workers[i].wrong == 0);
    }
}

/* --- The cache --- */

static int cache_path(const char *directory, char path[512])
{
    int count = 0;
    DIR *d = opendir(directory);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') {
            snprintf(path, 512, "%s/%s", directory, e->d_name);
            count++;
        }
    if (d)
        closedir(d);
    return count;
}

static void cache_clear(const char *directory)
{
    char path[512];
    while (cache_path(directory, path))
        if (unlink(path) && rmdir(path))
            abort();
}

/* Opens the device afresh, runs the kernel and says whether its program came from the cache. */
static bool cache_use(const char *directory, int32_t index)
{
    test_host t;
    bsk_device_props props;
    void *queue = NULL;
    host_start(&t, directory);
    bski_cl_device *d = device_open(&t, index, &props);
    CHECK(bski_cl_queue_create(d, &queue) == BSK_OK);
    scale_check(d, queue, BSK_F32, true);
    bool cached = strstr(t.log->text, "from the cache"), compiled = strstr(t.log->text, "compiled");
    CHECK(cached != compiled);
    bski_cl_queue_destroy(queue);
    bski_cl_device_close(d);
    host_end(&t);
    return cached;
}

static void byte_flip(const char *path, off_t at)
{
    int fd = open(path, O_RDWR);
    char byte;
    if (fd < 0 || pread(fd, &byte, 1, at) != 1)
        abort();
    byte ^= 0x10;
    if (pwrite(fd, &byte, 1, at) != 1)
        abort();
    close(fd);
}

/* Each does one kind of damage to the only file. */
static void damage_magic(const char *path)
{
    byte_flip(path, 0);
}
static void damage_key(const char *path)
{
    byte_flip(path, 20);
}
static void damage_size(const char *path)
{
    byte_flip(path, 41);
}
static void damage_sum(const char *path)
{
    byte_flip(path, 50);
}
static void damage_payload(const char *path)
{
    byte_flip(path, 200);
}
static void damage_end(const char *path)
{
    struct stat s;
    if (stat(path, &s) || truncate(path, s.st_size - 1))
        abort();
}
static void damage_most(const char *path)
{
    if (truncate(path, 40))
        abort();
}
static void damage_all(const char *path)
{
    if (truncate(path, 0))
        abort();
}
static void damage_tail(const char *path)
{
    int fd = open(path, O_WRONLY | O_APPEND);
    if (fd < 0 || write(fd, "x", 1) != 1)
        abort();
    close(fd);
}
static void damage_world(const char *path)
{
    if (chmod(path, 0606))
        abort();
}
static void damage_group(const char *path)
{
    if (chmod(path, 0660))
        abort();
}
static void damage_link(const char *path)
{
    char aside[600];
    snprintf(aside, sizeof aside, "%s.aside", path);
    if (rename(path, aside) || symlink(aside, path))
        abort();
}
static void damage_pipe(const char *path)
{
    if (unlink(path) || mkfifo(path, 0600))
        abort();
}
static void damage_directory(const char *path)
{
    if (unlink(path) || mkdir(path, 0700))
        abort();
}

static const struct {
    const char *name;
    void (*apply)(const char *path);
    bool heals; /* the next program writes a good file in its place */
} damages[] = {
    {"magic", damage_magic, true},     {"key", damage_key, true},
    {"size", damage_size, true},       {"sum", damage_sum, true},
    {"payload", damage_payload, true}, {"end", damage_end, true},
    {"most", damage_most, true},       {"all", damage_all, true},
    {"tail", damage_tail, true},       {"world", damage_world, true},
    {"group", damage_group, true},     {"link", damage_link, true},
    {"pipe", damage_pipe, true},       {"directory", damage_directory, false},
};

/* Files of which one too many is there: of the cache, but for the last, and used one after the other. */
static void test_cache_room(const char *directory, int32_t index)
{
    enum { FILES = 5, OTHER = FILES };
    const struct timespec never[] = {{1, 0}, {1, 0}};
    char path[FILES + 1][160], own[512];
    struct stat s;
    cache_clear(directory);
    CHECK(!cache_use(directory, index) && cache_path(directory, own) == 1);
    CHECK(!utimensat(AT_FDCWD, own, never, 0));
    CHECK(cache_use(directory, index));
    CHECK(!stat(own, &s) && s.st_mtim.tv_sec > 1); /* a use counts */
    cache_clear(directory);
    for (int i = 0; i <= OTHER; i++) {
        const struct timespec used[] = {{100 - i % 2, i}, {100 - i % 2, i}};
        snprintf(path[i], sizeof path[i], i < OTHER ? "%s/%064d.bin" : "%s/%064d.txt", directory,
                 i);
        const int fd = open(path[i], O_WRONLY | O_CREAT | O_EXCL, 0600);
        CHECK(fd >= 0 && !ftruncate(fd, 120 << 20) && !futimens(fd, used) && !close(fd));
    }
    CHECK(!cache_use(directory, index));
    for (int i = 0; i <= OTHER; i++)
        CHECK((access(path[i], F_OK) == 0) == (i != 1));
    CHECK(cache_path(directory, own) == FILES + 1 && cache_use(directory, index));
    cache_clear(directory);
}

static void test_cache(int32_t index)
{
    char base[] = "/tmp/bsk-test-XXXXXX", directory[64], path[512], link[80];
    struct stat s;
    if (!mkdtemp(base))
        abort();
    snprintf(directory, sizeof directory, "%s/a/b", base);

    CHECK(!cache_use(directory, index));
    CHECK(cache_path(directory, path) == 1);
    CHECK(!stat(directory, &s) && (s.st_mode & 07777) == 0700);
    CHECK(!stat(path, &s) && (s.st_mode & 07777) == 0600);
    CHECK(cache_use(directory, index));

    for (size_t i = 0; i < UNIT_COUNT(damages); i++) {
        cache_clear(directory);
        CHECK(!cache_use(directory, index));
        CHECK(cache_path(directory, path) == 1);
        damages[i].apply(path);
        bool reused = cache_use(directory, index), healed = cache_use(directory, index);
        if (!CHECK(!reused) || !CHECK(healed == damages[i].heals))
            fprintf(stderr, "  damage: %s\n", damages[i].name);
    }

    test_cache_room(directory, index);

    /* A directory that others can write, or that is reached by a link, is not used. */
    cache_clear(directory);
    CHECK(!chmod(directory, 0777));
    CHECK(!cache_use(directory, index) && !cache_use(directory, index));
    CHECK(cache_path(directory, path) == 0);
    CHECK(!chmod(directory, 0700));
    snprintf(link, sizeof link, "%s/link", base);
    CHECK(!symlink(directory, link));
    CHECK(!cache_use(link, index) && !cache_use(link, index));
    CHECK(!unlink(link));

    /* Nothing is kept where there is no directory to keep it in. */
    CHECK(!cache_use("off", index) && !cache_use(NULL, index));
    CHECK(!cache_use("/proc/nonexistent/cache", index));
    CHECK(cache_path(directory, path) == 0);

    char upper[64];
    snprintf(upper, sizeof upper, "%s/a", base);
    CHECK(!rmdir(directory) && !rmdir(upper) && !rmdir(base));
}

/* Known answers of SHA-256 round the ends of a block: of nothing, and of an eight-byte length and
 * as many letters. */
static void test_keys(void)
{
    static const char letters[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    static const struct {
        size_t bytes;
        uint8_t start[4];
    } known[] = {
        {47, {0x90, 0xed, 0xb9, 0x7b}},
        {48, {0x96, 0xf3, 0x41, 0x8e}},
        {56, {0xf0, 0xd1, 0x26, 0xdf}},
    };
    bski_cl_key key = bski_cl_key_make(NULL, 0);
    CHECK(!memcmp(key.bytes, (const uint8_t[]){0xe3, 0xb0, 0xc4, 0x42}, 4));
    for (size_t i = 0; i < UNIT_COUNT(known); i++) {
        const bski_cl_part part = {letters, known[i].bytes};
        key = bski_cl_key_make(&part, 1);
        CHECK(!memcmp(key.bytes, known[i].start, 4));
    }
    const bski_cl_part halves[] = {{letters, 28}, {letters + 28, 28}};
    bski_cl_key other = bski_cl_key_make(halves, 2);
    CHECK(memcmp(&key, &other, sizeof key));
}

/* --- Host memory that runs out --- */

static void test_nomem(int32_t index)
{
    for (long n = 0, good = 0; !good && n < 100; n++) {
        test_host t;
        bsk_device_props props;
        void *device = NULL, *queue = NULL, *event = NULL;
        const simt_kernel *k = NULL;
        int32_t count;
        host_start(&t, "off");
        atomic_store(&t.heap.countdown, n);
        bsk_status status = bski_cl_probe(&t.host, &count);
        if (!status)
            status = bski_cl_device_open(&t.host, index, &device, &props);
        if (!status)
            status = bski_cl_queue_create(device, &queue);
        if (!status)
            status = bski_cl_event_create(device, &event);
        if (!status)
            status = bski_cl_kernel(device, "scale", "scale", BSK_F32, "", &k);
        good = !status;
        CHECK(good || (status == BSK_E_NOMEM && t.failed == status));
        bski_cl_event_destroy(event);
        bski_cl_queue_destroy(queue);
        bski_cl_device_close(device);
        host_end(&t);
        CHECK(n < 99);
    }
}

static void test_device(test_host *t, int32_t index)
{
    bsk_device_props props;
    void *queue = NULL;
    bski_cl_device *d = device_open(t, index, &props);
    CHECK(props.name[0] && props.driver[0] && props.compute_units > 0 && props.memory_bytes > 0);
    CHECK(props.local_bytes >= 32768 && props.max_group >= SCALE_GROUP);
    CHECK(props.mem_kinds & 1u << BSK_MEM_CL && !(props.mem_kinds & 1u << BSK_MEM_HOST));
    CHECK(bski_cl_queue_create(d, &queue) == BSK_OK);
    test_kernels(d, &props, queue);
    test_kernel_faults(t, d, queue);
    test_memory(t, d, &props, queue);
    test_events(t, d, queue);
    test_threads(d);
    bski_cl_queue_destroy(queue);
    bski_cl_device_close(d);
    bski_cl_device_close(NULL);
    test_wrap(t, index);
}

int main(int argc, char **argv)
{
    const char *want = argc > 1 ? argv[1] : "0";
    test_host t;
    int32_t count = -1;
    host_start(&t, "off");
    CHECK(bski_cl_probe(&t.host, &count) == BSK_OK);
    if (!strcmp(want, "none")) {
        void *device = &t;
        bsk_device_props props;
        CHECK(count == 0);
        CHECK_TEXT(t.log->text, "no platform");
        CHECK_FAILS(&t, bski_cl_device_open(&t.host, 0, &device, &props), BSK_E_INVALID,
                    "does not exist");
        CHECK(!device);
    } else if (count || strcmp(want, "0")) {
        CHECK(count >= atoi(want));
        for (int32_t i = 0; i < count; i++)
            test_device(&t, i);
        if (count > 1)
            test_wrap_device(&t);
        test_cache(0);
        test_nomem(0);
    } else {
        atomic_fetch_add(&unit_skipped, 1);
    }
    test_keys();
    host_end(&t);
    return unit_report();
}
