/* The CPU backend: one device, host memory, queues that execute before a call returns. */
#define _GNU_SOURCE /* sched_getaffinity */

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <backends/cpu/cpu.h>
#include <common/checked.h>
#include <common/dtype.h>

/* --- Entries --- */

#define BSK_REF(lower, OP)                                                                         \
    {.name = "ref_" #lower,                                                                        \
     .op = BSK_OP_##OP,                                                                            \
     .flags = BSK_ENTRY_REFERENCE,                                                                 \
     .launch = ref_##lower##_launch},
#define BSK_REF_PREPARE(lower, OP)                                                                 \
    {.name = "ref_" #lower,                                                                        \
     .op = BSK_OP_##OP,                                                                            \
     .flags = BSK_ENTRY_REFERENCE,                                                                 \
     .prepare = ref_##lower##_prepare,                                                             \
     .launch = ref_##lower##_launch},
#define BSK_OMP(stem, isa, arch, OP, types, sizes, rank)                                           \
    {.name = #stem "_" #isa,                                                                       \
     .op = BSK_OP_##OP,                                                                            \
     .dtypes = (types),                                                                            \
     .blocks = (sizes),                                                                            \
     .arch_min = (arch),                                                                           \
     .priority = (rank),                                                                           \
     .accept = stem##_##isa##_accept,                                                              \
     .prepare = stem##_##isa##_prepare,                                                            \
     .launch = stem##_##isa##_launch},
#define BSK_OMP_PACKED(stem, isa, arch, OP, types, sizes, rank)                                    \
    {.name = #stem "_" #isa,                                                                       \
     .op = BSK_OP_##OP,                                                                            \
     .dtypes = (types),                                                                            \
     .blocks = (sizes),                                                                            \
     .arch_min = (arch),                                                                           \
     .priority = (rank),                                                                           \
     .accept = stem##_##isa##_accept,                                                              \
     .prepare = stem##_##isa##_prepare,                                                            \
     .launch = stem##_##isa##_launch,                                                              \
     .pack = stem##_##isa##_pack},
static const bsk_entry entries[] = {
#include "kernels.inc"
};
#undef BSK_REF
#undef BSK_REF_PREPARE
#undef BSK_OMP
#undef BSK_OMP_PACKED

/* Every op has a definition. */
#define BSK_REF(op, OP)         +1
#define BSK_REF_PREPARE(op, OP) +1
#define BSK_OMP(name, isa, arch, op, dtypes, blocks, priority)
#define BSK_OMP_PACKED(name, isa, arch, op, dtypes, blocks, priority)
enum {
    REFERENCE_COUNT = 0
#include "kernels.inc"
};
_Static_assert(REFERENCE_COUNT == (int)BSK_OP_COUNT, "kernels.inc lacks a reference entry");
#undef BSK_REF
#undef BSK_REF_PREPARE
#undef BSK_OMP
#undef BSK_OMP_PACKED

static const bsk_arch archs[] = {
    {"base", BSK_CPU_BASE},
#if defined(__aarch64__)
    {"neon", BSK_CPU_NEON},
    {"neonbf16", BSK_CPU_NEONBF16},
#else
    {"avx2", BSK_CPU_AVX2},
    {"avx512", BSK_CPU_AVX512},
    {"avx512vnni", BSK_CPU_AVX512VNNI},
    {"avx512bf16", BSK_CPU_AVX512BF16},
    {"amx", BSK_CPU_AMX},
#endif
};

/* --- Device --- */

typedef struct cpu_device {
    const bsk_host *host;
    int threads;
    pid_t process; /* that opened it */
} cpu_device;

typedef struct cpu_queue {
    bski_cpu_queue launch; /* first: what entries see */
    const cpu_device *device;
} cpu_queue;

typedef struct cpu_event {
    const cpu_device *device;
    struct timespec time;
    bool recorded;
} cpu_event;

static void *host_alloc(const bsk_host *host, size_t bytes)
{
    return host->allocator.resize(host->allocator.user, NULL, bytes);
}

static void host_free(const bsk_host *host, void *pointer)
{
    if (pointer)
        host->allocator.resize(host->allocator.user, pointer, 0);
}

static bsk_status fail_nomem(const bsk_host *host, const char *what, size_t bytes)
{
    return host->fail(host->context, BSK_E_NOMEM, "cpu: no memory for %s of %zu bytes", what,
                      bytes);
}

#if defined(__x86_64__)
static bool cpu_has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

/* Matrix tiles for bf16 and i8: the processor's, and leave of the system to use them, once a process. */
static bool cpu_has_tiles(void)
{
    unsigned eax, ebx, ecx, edx;
    const unsigned wanted = 1u << 22 | 1u << 24 | 1u << 25; /* AMX-BF16, AMX-TILE, AMX-INT8 */
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & wanted) == wanted &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

/* __builtin_cpu_supports also asks whether the system saves the wide registers; F16C has no state
 * of its own beyond AVX. */
static int32_t cpu_arch(void)
{
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
    if (vnni && __builtin_cpu_supports("avx512bf16"))
        return cpu_has_tiles() ? BSK_CPU_AMX : BSK_CPU_AVX512BF16;
    return vnni ? BSK_CPU_AVX512VNNI : avx512 ? BSK_CPU_AVX512 : avx2 ? BSK_CPU_AVX2 : BSK_CPU_BASE;
}

/* The brand string: 48 bytes in three leaves, padded with blanks in front on some processors. */
static void cpu_name(char *name, size_t size)
{
    unsigned words[13] = {0};
    char text[sizeof words];
    for (unsigned leaf = 0; leaf < 3; leaf++)
        if (!__get_cpuid(0x80000002u + leaf, &words[4 * leaf], &words[4 * leaf + 1],
                         &words[4 * leaf + 2], &words[4 * leaf + 3]))
            words[4 * leaf] = 0;
    memcpy(text, words, sizeof text);
    const char *start = text + strspn(text, " ");
    size_t length = strlen(start);
    while (length > 0 && start[length - 1] == ' ')
        length--;
    snprintf(name, size, "%.*s", (int)length, start);
}
#else
static int32_t cpu_arch(void)
{
#if defined(__aarch64__)
    if (getauxval(AT_HWCAP2) & HWCAP2_BF16)
        return BSK_CPU_NEONBF16;
    if (getauxval(AT_HWCAP) & HWCAP_ASIMD)
        return BSK_CPU_NEON;
#endif
    return BSK_CPU_BASE;
}

static void cpu_name(char *name, size_t size)
{
    struct utsname system;
    snprintf(name, size, "%s", uname(&system) == 0 ? system.machine : "");
}
#endif

/* Cores that the process may run on. */
static int cpu_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more processors than the set has room for */
    return online > 0 ? (int)online : 1;
}

static uint64_t cpu_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}

static bsk_status cpu_probe(const bsk_host *host, int32_t *count)
{
    (void)host;
    *count = 1;
    return BSK_OK;
}

static bsk_status cpu_device_open(const bsk_host *host, int32_t index, void **device,
                                  bsk_device_props *props)
{
    *device = NULL;
    if (index != 0)
        return host->fail(host->context, BSK_E_INVALID, "cpu: device %d does not exist", index);
    cpu_device *d = host_alloc(host, sizeof *d);
    if (!d)
        return fail_nomem(host, "a device", sizeof *d);
    const int cores = cpu_cores();
    d->host = host;
    d->threads = 1;
    d->process = getpid();
    *props = (bsk_device_props){
        .struct_size = sizeof *props,
        .arch = cpu_arch(),
        .compute_units = cores,
        .memory_bytes = cpu_memory(),
        .host_memory = 1,
        .mem_kinds = 1u << BSK_MEM_HOST,
        .dtypes = BSKI_FLOATS | BSKI_SCALED | BSKI_INDICES,
    };
    cpu_name(props->name, sizeof props->name);
    if (!props->name[0])
        snprintf(props->name, sizeof props->name, "CPU");
#ifdef _OPENMP
    d->threads = host->num_threads > 0 ? host->num_threads : cores;
    snprintf(props->driver, sizeof props->driver, "OpenMP %d", _OPENMP);
#endif
    *device = d;
    return BSK_OK;
}

static void cpu_device_close(void *device)
{
    cpu_device *d = device;
    if (d)
        host_free(d->host, d);
}

/* --- Queues: a call is done when it returns --- */

static bsk_status cpu_queue_create(void *device, void **queue)
{
    const cpu_device *d = device;
    cpu_queue *q = host_alloc(d->host, sizeof *q);
    *queue = q;
    if (!q)
        return fail_nomem(d->host, "a queue", sizeof *q);
    q->launch.threads = d->threads;
    q->launch.process = d->process;
    q->device = d;
    return BSK_OK;
}

static void cpu_queue_destroy(void *queue)
{
    cpu_queue *q = queue;
    if (q)
        host_free(q->device->host, q);
}

static bsk_status cpu_queue_sync(void *queue)
{
    (void)queue;
    return BSK_OK;
}

/* --- Memory. The allocator promises malloc's alignment only, so a block is moved up to the next
 * multiple of MEM_ALIGNMENT, and the pointer to free lies just before it. --- */

enum { MEM_ALIGNMENT = 256, MEM_HUGE = 2 << 20 };

/* Asks for large pages under a buffer that has room for one: walks over it, and over many parts of
 * it at once, then miss the processor's table of pages far less. Without them all works as well. */
static void pages_enlarge(char *start, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = (uintptr_t)start & ~(page - 1);
    if (bytes >= MEM_HUGE)
        (void)madvise((void *)first, (uintptr_t)start + bytes - first, MADV_HUGEPAGE);
#else
    (void)start;
    (void)bytes;
#endif
}

static bsk_status cpu_mem_alloc(void *device, size_t bytes, bsk_mem *mem)
{
    const cpu_device *d = device;
    size_t total;
    char *block = NULL;
    *mem = (bsk_mem){BSK_MEM_NULL, NULL, 0, 0};
    if (bski_add_size(bytes, MEM_ALIGNMENT + sizeof block, &total))
        block = host_alloc(d->host, total);
    if (!block)
        return fail_nomem(d->host, "a buffer", bytes);
    size_t past = (uintptr_t)(block + sizeof block) % MEM_ALIGNMENT;
    char *start = block + sizeof block + (past ? MEM_ALIGNMENT - past : 0);
    pages_enlarge(start, bytes);
    memcpy(start - sizeof block, &block, sizeof block);
    *mem = (bsk_mem){BSK_MEM_HOST, start, 0, bytes};
    return BSK_OK;
}

static void cpu_mem_free(void *device, bsk_mem mem)
{
    const cpu_device *d = device;
    char *block;
    if (!mem.handle)
        return;
    memcpy(&block, (const char *)mem.handle - sizeof block, sizeof block);
    host_free(d->host, block);
}

static bsk_status cpu_mem_upload(void *queue, bsk_mem dst, const void *src, size_t bytes)
{
    (void)queue;
    if (bytes)
        memcpy(bsk_mem_address(dst), src, bytes);
    return BSK_OK;
}

static bsk_status cpu_mem_download(void *queue, void *dst, bsk_mem src, size_t bytes)
{
    (void)queue;
    if (bytes)
        memcpy(dst, bsk_mem_address(src), bytes);
    return BSK_OK;
}

static bsk_status cpu_mem_fill(void *queue, bsk_mem dst, uint8_t byte, size_t bytes)
{
    (void)queue;
    if (bytes)
        memset(bsk_mem_address(dst), byte, bytes);
    return BSK_OK;
}

/* --- Events --- */

static bsk_status cpu_event_create(void *device, void **event)
{
    const cpu_device *d = device;
    cpu_event *e = host_alloc(d->host, sizeof *e);
    *event = e;
    if (!e)
        return fail_nomem(d->host, "an event", sizeof *e);
    *e = (cpu_event){.device = d};
    return BSK_OK;
}

static void cpu_event_destroy(void *event)
{
    cpu_event *e = event;
    if (e)
        host_free(e->device->host, e);
}

static bsk_status cpu_event_record(void *event, void *queue)
{
    cpu_event *e = event;
    (void)queue;
    const bsk_host *host = e->device->host;
    if (clock_gettime(CLOCK_MONOTONIC, &e->time) != 0)
        return host->fail(host->context, BSK_E_DEVICE, "cpu: the monotonic clock failed");
    e->recorded = true;
    return BSK_OK;
}

static bsk_status cpu_event_elapsed(void *start, void *stop, double *milliseconds)
{
    const cpu_event *from = start, *to = stop;
    const bsk_host *host = from->device->host;
    if (!from->recorded || !to->recorded)
        return host->fail(host->context, BSK_E_INVALID, "cpu: an event was not recorded");
    *milliseconds = 1e3 * (double)(to->time.tv_sec - from->time.tv_sec) +
                    1e-6 * (double)(to->time.tv_nsec - from->time.tv_nsec);
    return BSK_OK;
}

static const bsk_backend backend = {
    .struct_size = sizeof backend,
    .abi = BSK_BACKEND_ABI,
    .name = "cpu",
    .archs = archs,
    .arch_count = sizeof archs / sizeof *archs,
    .entries = entries,
    .entry_count = sizeof entries / sizeof *entries,
    .probe = cpu_probe,
    .device_open = cpu_device_open,
    .device_close = cpu_device_close,
    .queue_create = cpu_queue_create,
    .queue_destroy = cpu_queue_destroy,
    .queue_sync = cpu_queue_sync,
    .mem_alloc = cpu_mem_alloc,
    .mem_free = cpu_mem_free,
    .mem_upload = cpu_mem_upload,
    .mem_download = cpu_mem_download,
    .mem_fill = cpu_mem_fill,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_elapsed = cpu_event_elapsed,
};

const bsk_backend *bski_cpu_backend_query(const bsk_host *host)
{
    return host->abi == BSK_BACKEND_ABI ? &backend : NULL;
}
