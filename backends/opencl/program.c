/* Programs and kernels: compiled when a plan first asks for them, kept by the device.
 *
 * A program is one kernel file for one storage type and one variant. Its kernels hold arguments
 * between clSetKernelArg and the launch, and OpenCL forbids two threads to set them on one object,
 * so every kernel exists a few times and a launch takes a copy that no other thread is using. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <backends/opencl/opencl.h>

/* Three groups of 128 lanes in a multiprocessor's 65,536 registers: KERNEL_DENSE. */
#define NVIDIA_DENSE " -cl-nv-maxrregcount=168"

enum { KERNEL_COPIES = 4, NAME_BYTES = 128, OPTION_BYTES = 512, FAILURE_BYTES = 320 };

typedef struct kernel_copy {
    atomic_flag busy; /* guards the rest */
    cl_kernel handle;
    uint64_t pointers; /* bit i: buffer i was a pointer of shared virtual memory once */
} kernel_copy;

struct simt_kernel {
    simt_kernel *next;
    kernel_copy *copies; /* KERNEL_COPIES */
    cl_program program;
    cl_uint arguments;
    size_t group_size; /* which the source demands; 0: none */
    char name[NAME_BYTES];
};

struct bski_cl_program {
    bski_cl_program *next;
    cl_program handle; /* NULL: the source does not compile */
    simt_kernel *kernels;
    const bski_cl_source *source;
    char options[OPTION_BYTES];
    char failure[FAILURE_BYTES]; /* what the compiler said */
};

/* --- building --- */

/* The first lines of a build log, in one. */
static void log_cut(const char *log, char *to, size_t size)
{
    size_t n = 0;
    for (const char *p = log + strspn(log, " \n"); *p && n + 3 < size; p++) {
        if (*p != '\n')
            to[n++] = (unsigned char)*p < ' ' ? ' ' : *p;
        else if (n && to[n - 1] != ' ')
            n += (size_t)snprintf(to + n, size - n, "; ");
    }
    while (n && (to[n - 1] == ' ' || to[n - 1] == ';'))
        n--;
    to[n] = 0;
}

/* Keeps the beginning of the log as the program's failure, and logs the whole. */
static void failure_keep(bski_cl_device *d, bski_cl_program *p, cl_program handle)
{
    const bsk_host *host = d->simt.host;
    size_t bytes = 0;
    clGetProgramBuildInfo(handle, d->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
    char *log = bski_cl_alloc(host, bytes + 1);
    if (log && bytes)
        clGetProgramBuildInfo(handle, d->id, CL_PROGRAM_BUILD_LOG, bytes, log, NULL);
    log_cut(log ? log : "", p->failure, sizeof p->failure);
    if (!p->failure[0])
        snprintf(p->failure, sizeof p->failure, "the compiler gave no reason");
    host->log(host->context, BSK_LOG_WARN, "opencl: %s (%s) does not compile: %s", p->source->name,
              p->options, log && log[0] ? log : p->failure);
    bski_cl_free(host, log);
}

static bski_cl_key program_key(const bski_cl_device *d, const bski_cl_program *p)
{
    const bski_cl_part parts[] = {
        {p->source->text, p->source->bytes},
        {p->source->name, strlen(p->source->name)},
        {p->options, strlen(p->options)},
        {d->identity, strlen(d->identity)},
        {BSK_VERSION_STRING, strlen(BSK_VERSION_STRING)},
    };
    return bski_cl_key_make(parts, sizeof parts / sizeof *parts);
}

/* The program as it was compiled before, or NULL. */
static cl_program program_load(bski_cl_device *d, const bski_cl_program *p, const bski_cl_key *key)
{
    const bsk_host *host = d->simt.host;
    size_t bytes;
    unsigned char *binary = bski_cl_cache_read(host, key, &bytes);
    if (!binary)
        return NULL;
    const unsigned char *binaries[] = {binary};
    cl_int status = CL_SUCCESS, error;
    cl_program handle =
        clCreateProgramWithBinary(d->context, 1, &d->id, &bytes, binaries, &status, &error);
    if (error)
        handle = NULL;
    else if (status || clBuildProgram(handle, 1, &d->id, p->options, NULL, NULL)) {
        clReleaseProgram(handle);
        handle = NULL;
    }
    bski_cl_free(host, binary);
    host->log(host->context, BSK_LOG_INFO, "opencl: %s (%s): %s", p->source->name, p->options,
              handle ? "from the cache" : "the driver refuses what the cache has");
    return handle;
}

static void program_save(bski_cl_device *d, cl_program handle, const bski_cl_key *key)
{
    const bsk_host *host = d->simt.host;
    size_t bytes = 0;
    if (clGetProgramInfo(handle, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, NULL) || !bytes)
        return;
    unsigned char *binary = bski_cl_alloc(host, bytes);
    unsigned char *binaries[] = {binary};
    if (binary && !clGetProgramInfo(handle, CL_PROGRAM_BINARIES, sizeof binaries, binaries, NULL))
        bski_cl_cache_write(host, key, binary, bytes);
    bski_cl_free(host, binary);
}

static double seconds(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Compiles from source. A source that the compiler refuses is no error here: p->failure is set. */
static bsk_status program_compile(bski_cl_device *d, bski_cl_program *p)
{
    const bsk_host *host = d->simt.host;
    const char *text = (const char *)p->source->text;
    double start = seconds();
    cl_int error;
    cl_program handle = clCreateProgramWithSource(d->context, 1, &text, &p->source->bytes, &error);
    if (error)
        return bski_cl_fail(host, error, p->source->name);
    error = clBuildProgram(handle, 1, &d->id, p->options, NULL, NULL);
    if (!error) {
        p->handle = handle;
        host->log(host->context, BSK_LOG_INFO, "opencl: %s (%s): compiled in %.2f s",
                  p->source->name, p->options, seconds() - start);
        return BSK_OK;
    }
    if (error == CL_BUILD_PROGRAM_FAILURE)
        failure_keep(d, p, handle);
    clReleaseProgram(handle);
    return error == CL_BUILD_PROGRAM_FAILURE ? BSK_OK : bski_cl_fail(host, error, p->source->name);
}

static bsk_status program_make(bski_cl_device *d, const bski_cl_source *source, const char *options,
                               bski_cl_program **program)
{
    const bsk_host *host = d->simt.host;
    bski_cl_program *p = bski_cl_alloc(host, sizeof *p);
    if (!p)
        return host->fail(host->context, BSK_E_NOMEM, "opencl: no memory for a program");
    p->source = source;
    snprintf(p->options, sizeof p->options, "%s", options);
    bski_cl_key key = program_key(d, p);
    p->handle = program_load(d, p, &key);
    if (!p->handle) {
        bsk_status status = program_compile(d, p);
        if (status) {
            bski_cl_free(host, p);
            return status;
        }
        if (p->handle)
            program_save(d, p->handle, &key);
    }
    p->next = d->programs;
    d->programs = p;
    *program = p;
    return BSK_OK;
}

/* --- kernels --- */

static void kernel_free(const bsk_host *host, simt_kernel *k)
{
    for (int i = 0; k->copies && i < KERNEL_COPIES; i++)
        if (k->copies[i].handle)
            clReleaseKernel(k->copies[i].handle);
    bski_cl_free(host, k->copies);
    bski_cl_free(host, k);
}

/* Reads what launches need, and refuses what the device cannot run. The compiler has built for the
 * size of groups that the source demands, so the device's limit counts; what drivers say of a single
 * kernel can be wrong (rusticl: the lanes of a vector). */
static bsk_status kernel_inspect(const bski_cl_device *d, simt_kernel *k)
{
    const bsk_host *host = d->simt.host;
    cl_kernel handle = k->copies[0].handle;
    size_t demanded[3] = {0};
    const size_t most = (size_t)d->simt.props.max_group;
    cl_ulong local = 0;
    cl_int error =
        clGetKernelInfo(handle, CL_KERNEL_NUM_ARGS, sizeof k->arguments, &k->arguments, NULL);
    if (!error)
        error = clGetKernelWorkGroupInfo(handle, d->id, CL_KERNEL_COMPILE_WORK_GROUP_SIZE,
                                         sizeof demanded, demanded, NULL);
    if (!error)
        error = clGetKernelWorkGroupInfo(handle, d->id, CL_KERNEL_LOCAL_MEM_SIZE, sizeof local,
                                         &local, NULL);
    if (error)
        return bski_cl_fail(host, error, k->name);
    k->group_size = demanded[0];
    if (k->group_size > most || local > d->simt.props.local_bytes)
        return host->fail(host->context, BSK_E_UNSUPPORTED,
                          "opencl: %s needs groups of %zu with %llu bytes of local memory; %s has "
                          "%zu and %llu",
                          k->name, k->group_size, (unsigned long long)local, d->simt.props.name,
                          most, (unsigned long long)d->simt.props.local_bytes);
    return BSK_OK;
}

static bsk_status kernel_make(const bski_cl_device *d, bski_cl_program *p, const char *name,
                              simt_kernel **kernel)
{
    const bsk_host *host = d->simt.host;
    simt_kernel *k = bski_cl_alloc(host, sizeof *k);
    if (k)
        k->copies = bski_cl_alloc(host, KERNEL_COPIES * sizeof *k->copies);
    if (!k || !k->copies) {
        bski_cl_free(host, k);
        return host->fail(host->context, BSK_E_NOMEM, "opencl: no memory for a kernel");
    }
    snprintf(k->name, sizeof k->name, "%s", name);
    bsk_status status = BSK_OK;
    k->program = p->handle;
    for (int i = 0; i < KERNEL_COPIES && !status; i++) {
        cl_int error;
        cl_kernel handle = clCreateKernel(p->handle, name, &error);
        atomic_flag_clear(&k->copies[i].busy);
        k->copies[i].handle = error ? NULL : handle;
        if (error)
            status = bski_cl_fail(host, error, name);
    }
    if (!status)
        status = kernel_inspect(d, k);
    if (status) {
        kernel_free(host, k);
        return status;
    }
    k->next = p->kernels;
    p->kernels = k;
    *kernel = k;
    return BSK_OK;
}

static bsk_status kernel_find(bski_cl_device *d, const bski_cl_source *source, const char *options,
                              const char *name, const simt_kernel **kernel)
{
    const bsk_host *host = d->simt.host;
    bski_cl_program *p = d->programs;
    while (p && (p->source != source || strcmp(p->options, options)))
        p = p->next;
    if (!p) {
        bsk_status status = program_make(d, source, options, &p);
        if (status)
            return status;
    }
    if (!p->handle)
        return host->fail(host->context, BSK_E_DEVICE, "opencl: %s does not compile for %s: %s",
                          source->name, d->simt.props.name, p->failure);
    simt_kernel *k = p->kernels;
    while (k && strcmp(k->name, name))
        k = k->next;
    bsk_status status = k ? BSK_OK : kernel_make(d, p, name, &k);
    *kernel = k;
    return status;
}

/* Names of the storage types in the dialect. */
static const char *const type_names[BSK_DTYPE_COUNT] = {
    [BSK_F64] = "f64", [BSK_F32] = "f32", [BSK_F16] = "f16", [BSK_BF16] = "bf16"};

bsk_status bski_cl_kernel(simt_device *device, const char *file, const char *name, bsk_dtype type,
                          const char *variant, const simt_kernel **kernel)
{
    bski_cl_device *d = (bski_cl_device *)device;
    const bsk_host *host = device->host;
    *kernel = NULL;
    const bski_cl_source *source = NULL;
    for (size_t i = 0; i < bski_cl_source_count; i++)
        if (!strcmp(bski_cl_sources[i].name, file))
            source = &bski_cl_sources[i];
    const char *type_name = (unsigned)type < BSK_DTYPE_COUNT ? type_names[type] : NULL;
    if (!source || !type_name)
        return host->fail(host->context, BSK_E_INTERNAL, "opencl: no kernel %s for type %d in %s",
                          name, (int)type, file);
    bool doubles = device->props.dtypes & BSK_DTYPE_BIT(BSK_F64);
    char options[OPTION_BYTES], full_name[NAME_BYTES];
    int n =
        snprintf(options, sizeof options, "-cl-std=CL1.2%s%s -DSIMT_T=%s%s -DSIMT_NVIDIA=%d%s%s",
                 d->exact_division ? " -cl-fp32-correctly-rounded-divide-sqrt" : "",
                 d->nvidia ? NVIDIA_DENSE : "", type_name, doubles ? " -DSIMT_HAS_F64=1" : "",
                 (int)d->nvidia, *variant ? " " : "", variant);
    int m = snprintf(full_name, sizeof full_name, "%s_%s", name, type_name);
    if (n >= OPTION_BYTES || m >= NAME_BYTES)
        return host->fail(host->context, BSK_E_INTERNAL, "opencl: %s: name or variant too long",
                          name);
    bski_cl_context(d); /* stays from now on */
    /* Held while the compiler runs: a second plan that wants the same program waits for it. */
    pthread_mutex_lock(&d->lock);
    bsk_status status = kernel_find(d, source, options, full_name, kernel);
    pthread_mutex_unlock(&d->lock);
    return status;
}

void bski_cl_programs_free(bski_cl_device *device)
{
    const bsk_host *host = device->simt.host;
    for (bski_cl_program *p = device->programs, *next; p; p = next) {
        next = p->next;
        for (simt_kernel *k = p->kernels, *after; k; k = after) {
            after = k->next;
            kernel_free(host, k);
        }
        if (p->handle)
            clReleaseProgram(p->handle);
        bski_cl_free(host, p);
    }
    device->programs = NULL;
}

/* --- launches --- */

/* How well a copy fits a launch. NVIDIA's driver takes no buffer where a pointer was, so copies keep
 * to one pattern of pointers as long as there are enough of them. */
enum { FIT_SAME, FIT_ALLOWED, FIT_REMADE, FIT_COUNT };

static int copy_fit(const kernel_copy *copy, uint64_t pointers)
{
    if (copy->pointers == pointers)
        return FIT_SAME;
    return copy->pointers & ~pointers ? FIT_REMADE : FIT_ALLOWED;
}

/* A copy of the kernel for this thread alone. With more threads than copies a thread waits for the
 * few calls that another one makes; it holds no lock while the driver works on other kernels. */
static kernel_copy *copy_take(const simt_kernel *kernel, uint64_t pointers)
{
    for (int fit = FIT_SAME;; fit = (fit + 1) % FIT_COUNT) {
        for (int i = 0; i < KERNEL_COPIES; i++) {
            kernel_copy *copy = &kernel->copies[i];
            if (atomic_flag_test_and_set_explicit(&copy->busy, memory_order_acquire))
                continue;
            if (copy_fit(copy, pointers) <= fit)
                return copy;
            atomic_flag_clear_explicit(&copy->busy, memory_order_release);
        }
        if (fit == FIT_REMADE)
            sched_yield();
    }
}

/* A new object where the old one does not fit: rare, since patterns of pointers hardly change. */
static cl_int copy_prepare(const simt_kernel *kernel, kernel_copy *copy, uint64_t pointers)
{
    cl_int error = CL_SUCCESS;
    if (copy_fit(copy, pointers) == FIT_REMADE) {
        cl_kernel handle = clCreateKernel(kernel->program, kernel->name, &error);
        if (error)
            return error;
        clReleaseKernel(copy->handle);
        copy->handle = handle;
    }
    copy->pointers = pointers;
    return error;
}

static void copy_return(kernel_copy *copy)
{
    atomic_flag_clear_explicit(&copy->busy, memory_order_release);
}

/* A buffer is two arguments: the memory, and a byte offset, which an address has in it. */
static cl_int buffer_set(cl_kernel kernel, cl_uint index, const bsk_mem *m)
{
    cl_mem handle = NULL;
    cl_long at = 0;
    cl_int error;
    if (m->kind == BSK_MEM_DEVICE) {
        error = clSetKernelArgSVMPointer(kernel, index, bsk_mem_address(*m));
    } else {
        if (m->kind == BSK_MEM_CL) {
            handle = m->handle;
            at = (cl_long)m->offset;
        }
        error = clSetKernelArg(kernel, index, sizeof handle, handle ? &handle : NULL);
    }
    return error ? error : clSetKernelArg(kernel, index + 1, sizeof at, &at);
}

/* Mesa's rusticl counts a struct without the padding at its end, of which ours have one i32. */
static cl_int scalars_set(cl_kernel kernel, cl_uint index, const simt_launch *l)
{
    cl_int error = clSetKernelArg(kernel, index, l->scalar_bytes, l->scalars);
    if (error == CL_INVALID_ARG_SIZE && l->scalar_bytes > sizeof(int32_t))
        error = clSetKernelArg(kernel, index, l->scalar_bytes - sizeof(int32_t), l->scalars);
    return error;
}

static cl_int launch_enqueue(cl_command_queue queue, cl_kernel kernel, const simt_launch *l)
{
    cl_int error = CL_SUCCESS;
    cl_uint index = 0;
    for (int32_t i = 0; i < l->buffer_count && !error; i++, index += 2)
        error = buffer_set(kernel, index, &l->buffers[i]);
    if (!error && l->scalar_bytes)
        error = scalars_set(kernel, index, l);
    const size_t lanes = (size_t)l->group_size;
    const size_t local[3] = {lanes, 1, 1};
    const size_t global[3] = {(size_t)l->groups[0] * lanes, (size_t)l->groups[1],
                              (size_t)l->groups[2]};
    return error ? error
                 : clEnqueueNDRangeKernel(queue, kernel, 3, NULL, global, local, 0, NULL, NULL);
}

bsk_status bski_cl_launch(simt_queue *queue, const simt_kernel *kernel, const simt_launch *l)
{
    bski_cl_queue *q = (bski_cl_queue *)queue;
    const bsk_host *host = queue->device->host;
    bsk_status status = bski_cl_queue_check(q);
    if (status || l->groups[0] <= 0 || l->groups[1] <= 0 || l->groups[2] <= 0)
        return status;
    cl_uint arguments = 2 * (cl_uint)l->buffer_count + (l->scalar_bytes > 0);
    if (arguments != kernel->arguments || l->group_size < 1 ||
        (kernel->group_size && (size_t)l->group_size != kernel->group_size) ||
        l->groups[0] > INT64_MAX / l->group_size)
        return host->fail(host->context, BSK_E_INTERNAL,
                          "opencl: %s takes %u arguments in groups of %zu, not %u in groups of %d",
                          kernel->name, kernel->arguments, kernel->group_size, arguments,
                          (int)l->group_size);
    uint64_t pointers = 0;
    for (int32_t i = 0; i < l->buffer_count; i++)
        pointers |= (uint64_t)(l->buffers[i].kind == BSK_MEM_DEVICE) << i;
    kernel_copy *copy = copy_take(kernel, pointers);
    cl_int error = copy_prepare(kernel, copy, pointers);
    if (!error)
        error = launch_enqueue(q->handle, copy->handle, l);
    copy_return(copy);
    return error ? bski_cl_queue_fail(q, error, kernel->name) : BSK_OK;
}
