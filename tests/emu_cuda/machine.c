#define _GNU_SOURCE /* dl_iterate_phdr, MAP_ANONYMOUS */
/* Runs launches: clusters one after the other, lanes as fibers. */
#include "machine.h"

#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

gpu_place gpu_now;
gpu_machine gpu;

/* What `extern __shared__` arrays are on the host: a pointer to those of the running block. */
__attribute__((visibility("hidden"), aligned(1024))) _Thread_local void *gpu_dynamic_shared;

enum {
    MAX_THREADS = 1024,
    MAX_LANES = GPU_MAX_CLUSTER * MAX_THREADS,
    MAX_WARPS = MAX_LANES / GPU_LANES,
    MAX_BARS = 256,
    MAX_SHARED = 228 << 10,
    STACK_BYTES = 128 << 10,
    GUARD_BYTES = 4 << 10,
    SHARED_STRIDE = 256 << 10,
    REGISTERS = 64 << 10, /* of a multiprocessor */
    PATIENCE = 1 << 14,   /* rounds in which all that happens is that lanes ask again */
};

struct gpu_mbar {
    uint32_t address, expected, pending, phase;
    int64_t bytes; /* still to come */
    uint64_t warps[MAX_WARPS / 64];
};

static struct {
    char *stacks, *shared;
    char *statics; /* static shared arrays: the thread's variables of this module */
    size_t static_bytes;
    gpu_lane *lanes;
    gpu_warp *warps;
    uint64_t ready[MAX_WARPS / 64]; /* warps with lanes that can run */
    uint32_t lane_count, warp_count, live;
    uint32_t cluster_arrived;
    uint64_t random, rounds;
    void **arguments;
    pthread_t thread; /* that runs the launch */
    struct sigaction before;
} run = {.random = 1};

static pthread_mutex_t launch_lock = PTHREAD_MUTEX_INITIALIZER;

/* --- Chance --- */

void gpu_schedule(uint64_t seed)
{
    run.random = seed;
}

uint32_t gpu_random(uint32_t below) /* splitmix64 */
{
    uint64_t x = run.random += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ x >> 31) % below);
}

/* --- Faults --- */

_Noreturn void gpu_fault(const char *format, ...)
{
    va_list list;
    int n = snprintf(gpu.message, sizeof gpu.message,
                     "%s, block %u %u %u, thread %u: ", gpu.kernel->name, gpu_now.block.x,
                     gpu_now.block.y, gpu_now.block.z, gpu_now.thread.x);
    va_start(list, format);
    vsnprintf(gpu.message + n, sizeof gpu.message - (size_t)n, format, list);
    va_end(list);
    gpu.fault = true;
    for (;;) /* never resumed */
        emu_fiber_yield(&gpu.lane->fiber);
}

/* A line for each group of neighbouring lanes that wait for the same. */
static int deadlock_lanes(char *text, size_t size)
{
    int n = 0;
    for (uint32_t i = 0; i < run.lane_count && n < (int)size - 256; i++) {
        const gpu_lane *l = &run.lanes[i];
        uint32_t last = i;
        if (l->done)
            continue;
        while (last + 1 < run.lane_count && run.lanes[last + 1].warp->block == l->warp->block &&
               run.lanes[last + 1].waits == l->waits && run.lanes[last + 1].detail == l->detail &&
               !run.lanes[last + 1].done)
            last++;
        n += snprintf(text + n, size - (size_t)n, "; block %u threads %u-%u: %s 0x%llx",
                      l->warp->block->index.x, l->number, run.lanes[last].number,
                      l->waits ? l->waits : "runs", (unsigned long long)l->detail);
        if (l->bar)
            n += snprintf(text + n, size - (size_t)n,
                          " (phase %u lacks %u arrivals of %u and %lld bytes)", l->bar->phase & 1,
                          l->bar->pending, l->bar->expected, (long long)l->bar->bytes);
        i = last;
    }
    return n;
}

static void deadlock(void)
{
    const int n = snprintf(gpu.message, sizeof gpu.message, "%s: deadlock: nobody can go on",
                           gpu.kernel->name);
    deadlock_lanes(gpu.message + n, sizeof gpu.message - (size_t)n);
    gpu.fault = true;
}

/* --- Who runs --- */

static void warp_ready(gpu_warp *w, uint32_t lanes)
{
    w->ready |= lanes;
    run.ready[w->number / 64] |= UINT64_C(1) << w->number % 64;
}

void gpu_wake(gpu_lane *l)
{
    l->waits = NULL;
    l->polls = false;
    l->bar = NULL;
    warp_ready(l->warp, 1u << l->number % GPU_LANES);
}

static gpu_lane *lane_of(gpu_warp *w)
{
    const uint32_t at = w->running, after = w->reverse ? (1u << at) - 1 : ~1u << at;
    const uint32_t left = w->ready & after ? w->ready & after : w->ready;
    w->running = w->reverse ? 31 - (uint32_t)__builtin_clz(left) : (uint32_t)__builtin_ctz(left);
    return &w->lanes[w->running];
}

/* A warp that can run, by chance; NULL: none. */
static gpu_warp *warp_next(void)
{
    const uint32_t words = (run.warp_count + 63) / 64, start = gpu_random(run.warp_count);
    for (uint32_t i = 0; i <= words; i++) {
        const uint32_t word = (start / 64 + i) % words;
        uint64_t ready = run.ready[word];
        if (i == 0)
            ready &= ~UINT64_C(0) << start % 64;
        while (ready) {
            const int at = __builtin_ctzll(ready);
            gpu_warp *w = &run.warps[word * 64 + (uint32_t)at];
            if (w->ready)
                return w;
            run.ready[word] &= ~(UINT64_C(1) << at);
            ready &= ready - 1;
        }
    }
    return NULL;
}

/* Nobody can run: late copies and products are done, then those that ask again and again may do so. */
static bool idle(void)
{
    const bool copies_first = gpu_random(2);
    if ((copies_first && gpu_copies_advance(true)) || gpu_tensor_advance(true) ||
        gpu_copies_advance(true)) {
        run.rounds = 0;
        return true;
    }
    bool any = false;
    if (++run.rounds < PATIENCE)
        for (uint32_t i = 0; i < run.lane_count; i++)
            if (run.lanes[i].polls) {
                gpu_wake(&run.lanes[i]);
                any = true;
            }
    return any;
}

static gpu_lane *lane_next(void)
{
    gpu_warp *w = gpu.lane->warp;
    if (w->ready)
        return lane_of(w);
    gpu.step++;
    gpu_copies_advance(false);
    gpu_tensor_advance(false);
    while (!(w = warp_next()))
        if (gpu.fault || !idle())
            return NULL;
    w->reverse = gpu_random(2);
    w->running = w->reverse ? 0 : 31;
    return lane_of(w);
}

static void lane_show(gpu_lane *l)
{
    const gpu_block *b = l->warp->block;
    if (!gpu.lane || gpu.lane->warp->block != b) {
        gpu_now.block = b->index;
        gpu_dynamic_shared = b->shared;
    }
    gpu_now.thread.x = l->number;
    gpu.lane = l;
}

/* From the running lane to the next one. */
static void pass_on(void)
{
    gpu_lane *from = gpu.lane, *to = run.live ? lane_next() : NULL;
    if (!to) {
        if (run.live && !gpu.fault)
            deadlock();
        emu_fiber_yield(&from->fiber);
    } else if (to != from) {
        lane_show(to);
        emu_fiber_switch(&from->fiber, &to->fiber);
    }
}

void gpu_sleep(const char *what, uint64_t detail)
{
    gpu_lane *l = gpu.lane;
    l->waits = what;
    l->detail = detail;
    l->warp->ready &= ~(1u << l->number % GPU_LANES);
    pass_on();
}

void gpu_pause(void)
{
    gpu.lane->polls = true;
    gpu_sleep("pauses", 0);
}

/* --- Meetings --- */

bool gpu_gather(const char *what, uint32_t mask, void *slot)
{
    gpu_lane *l = gpu.lane;
    gpu_warp *w = l->warp;
    const uint32_t at = l->number % GPU_LANES, bit = 1u << at;
    gpu_meeting *m = NULL;
    if (!(mask & bit))
        gpu_fault("%s with a mask 0x%x without the calling lane", what, mask);
    for (int i = 0; i < GPU_MEETINGS; i++) {
        if (w->meetings[i].arrived && w->meetings[i].mask & mask) {
            m = &w->meetings[i];
            break;
        }
        if (!w->meetings[i].arrived)
            m = &w->meetings[i];
    }
    if (!m)
        gpu_fault("%s: more than %d groups of lanes wait in a warp", what, GPU_MEETINGS);
    if (m->arrived && (m->mask != mask || m->what != what))
        gpu_fault("divergence: %s with mask 0x%x meets %s with mask 0x%x", what, mask, m->what,
                  m->mask);
    m->what = what;
    m->mask = mask;
    m->arrived |= bit;
    w->slots[at] = slot;
    if (m->arrived == mask) {
        w->last = m;
        return true;
    }
    gpu_sleep(what, mask);
    return false;
}

void **gpu_slots(void)
{
    return gpu.lane->warp->slots;
}

void gpu_release(void)
{
    gpu_warp *w = gpu.lane->warp;
    const uint32_t self = 1u << gpu.lane->number % GPU_LANES;
    for (uint32_t others = w->last->mask & ~self; others; others &= others - 1)
        w->lanes[__builtin_ctz(others)].waits = NULL;
    warp_ready(w, w->last->mask & ~self);
    w->last->arrived = 0;
}

/* --- Barriers of a block and of a cluster --- */

static const char barrier_waits[] = "waits at barrier";
static const char cluster_waits[] = "waits at the barrier of the cluster";

static void block_wake(const gpu_block *b, const char *what, uint64_t detail)
{
    for (uint32_t i = 0; i < gpu.threads; i++) {
        gpu_lane *l = &run.lanes[b->rank * gpu.threads + i];
        if (l->waits == what && l->detail == detail)
            gpu_wake(l);
    }
}

static void barrier_open(const gpu_block *b, uint32_t id, gpu_barrier_state *s)
{
    s->result = s->any;
    s->any = false;
    s->arrived = 0;
    s->threads = 0;
    block_wake(b, barrier_waits, id);
}

/* Whether the calling lane is the last one that a barrier waits for. */
static bool barrier_arrive(uint32_t id, uint32_t threads, bool condition)
{
    gpu_block *b = gpu.lane->warp->block;
    if (id >= GPU_BARRIERS)
        gpu_fault("barrier %u: there are %d", id, GPU_BARRIERS);
    gpu_barrier_state *s = &b->barriers[id];
    if (threads % GPU_LANES || threads > gpu.threads)
        gpu_fault("barrier %u for %u threads", id, threads);
    if (s->arrived && s->threads != threads)
        gpu_fault("barrier %u for %u threads, and for %u", id, threads, s->threads);
    s->threads = threads;
    s->any |= condition;
    const bool last = ++s->arrived == (threads ? threads : b->live);
    if (last)
        barrier_open(b, id, s);
    return last;
}

bool gpu_barrier(uint32_t id, uint32_t threads, bool condition)
{
    if (!barrier_arrive(id, threads, condition))
        gpu_sleep(barrier_waits, id);
    return gpu.lane->warp->block->barriers[id].result;
}

void gpu_barrier_arrive(uint32_t id, uint32_t threads)
{
    barrier_arrive(id, threads, false);
}

void gpu_cluster_sync(void)
{
    if (++run.cluster_arrived < run.live) {
        gpu_sleep(cluster_waits, 0);
        return;
    }
    run.cluster_arrived = 0;
    for (uint32_t i = 0; i < gpu.cluster; i++)
        block_wake(&gpu.blocks[i], cluster_waits, 0);
}

uint32_t gpu_cluster_rank(void)
{
    return gpu.lane->warp->block->rank;
}

/* --- Registers --- */

static const char registers_wait[] = "waits for registers";

void gpu_registers(uint32_t count, bool raise)
{
    if (!gpu_gather("setmaxnreg", ~0u, NULL))
        return;
    gpu_warp *w = gpu.lane->warp;
    gpu_block *b = w->block;
    if (count % 8 || count < 24 || count > 256)
        gpu_fault("setmaxnreg to %u", count);
    if (raise ? count < w->registers : count > w->registers)
        gpu_fault("setmaxnreg.%s from %u to %u", raise ? "inc" : "dec", w->registers, count);
    if (raise)
        while (b->free_registers < (count - w->registers) * GPU_LANES)
            gpu_sleep(registers_wait, count);
    b->free_registers += (w->registers - count) * GPU_LANES; /* modulo 2^32: taken or given */
    w->registers = count;
    if (!raise)
        for (uint32_t i = 0; i < gpu.threads; i++) {
            gpu_lane *l = &run.lanes[b->rank * gpu.threads + i];
            if (l->waits == registers_wait)
                gpu_wake(l);
        }
    gpu_release();
}

/* --- Shared memory --- */

uint32_t gpu_shared_address(const void *p)
{
    const gpu_block *b = gpu.lane->warp->block;
    const uintptr_t at = (uintptr_t)p;
    if (at - (uintptr_t)b->shared <= gpu.shared_bytes)
        return (b->rank << GPU_WINDOW_AT) + GPU_DYNAMIC + (uint32_t)(at - (uintptr_t)b->shared);
    if (at - (uintptr_t)run.statics >= run.static_bytes)
        gpu_fault("an address in shared memory of something that lies elsewhere");
    if (gpu.cluster > 1)
        gpu_fault("the blocks of an emulated cluster share static arrays");
    return GPU_STATIC + (uint32_t)(at - (uintptr_t)run.statics);
}

/* Without the number of a block of the cluster. */
static uint32_t own_address(uint32_t address)
{
    if (address >> GPU_WINDOW_AT >= gpu.cluster)
        gpu_fault("shared address 0x%x: of no block of the cluster", address);
    return address & ((1u << GPU_WINDOW_AT) - 1);
}

static void *shared_at(const gpu_block *b, uint32_t address, uint32_t bytes, uint32_t alignment)
{
    address = own_address(address);
    if (address % alignment)
        gpu_fault("shared address 0x%x is no multiple of %u", address, alignment);
    if (address >= GPU_STATIC) {
        if (address - GPU_STATIC + bytes <= run.static_bytes)
            return run.statics + (address - GPU_STATIC);
    } else if (address >= GPU_DYNAMIC && address - GPU_DYNAMIC + bytes <= gpu.shared_bytes) {
        return b->shared + (address - GPU_DYNAMIC);
    }
    gpu_fault("out of bounds: %u bytes at byte %d of %u bytes of dynamic shared memory", bytes,
              (int)(address - GPU_DYNAMIC), gpu.shared_bytes);
}

void *gpu_shared(uint32_t address, uint32_t bytes, uint32_t alignment)
{
    return shared_at(gpu.lane->warp->block, address, bytes, alignment);
}

static gpu_block *block_of(uint32_t rank)
{
    if (rank >= gpu.cluster)
        gpu_fault("block %u of a cluster of %u", rank, gpu.cluster);
    if (!gpu.blocks[rank].live)
        gpu_fault("shared memory of block %u of the cluster, which has returned", rank);
    return &gpu.blocks[rank];
}

void *gpu_shared_of(uint32_t rank, uint32_t address, uint32_t bytes, uint32_t alignment)
{
    return shared_at(block_of(rank), address, bytes, alignment);
}

void gpu_global_check(const void *p, size_t bytes)
{
    if (bytes && !gpu_global_has(p, bytes))
        gpu_fault("%zu bytes of what is not memory of the device", bytes);
}

/* --- Barriers in shared memory --- */

/* What lies in memory in place of a barrier's state: overwriting it shows. */
static uint64_t bar_mark(uint32_t address)
{
    return UINT64_C(0xba55ba55) << 32 | address;
}

static gpu_mbar *bar_find(gpu_block *b, uint32_t address)
{
    address = own_address(address);
    const uint64_t *word = shared_at(b, address, 8, 8);
    if (*word == bar_mark(address))
        for (int i = 0; i < b->bar_count; i++)
            if (b->bars[i].address == address)
                return &b->bars[i];
    gpu_fault("no barrier at shared address 0x%x: not initialized, or overwritten", address);
}

void gpu_mbar_init(uint32_t bar, uint32_t arrivals)
{
    gpu_block *b = gpu.lane->warp->block;
    uint64_t *word = shared_at(b, bar, 8, 8);
    gpu_mbar *m = NULL;
    bar = own_address(bar);
    if (!arrivals || arrivals >= 1 << 20)
        gpu_fault("a barrier of %u arrivals", arrivals);
    for (int i = 0; i < b->bar_count; i++)
        if (b->bars[i].address == bar)
            m = &b->bars[i];
    if (!m && b->bar_count == MAX_BARS)
        gpu_fault("more than %d barriers", MAX_BARS);
    if (!m)
        m = &b->bars[b->bar_count++];
    *m = (gpu_mbar){.address = bar, .expected = arrivals, .pending = arrivals};
    *word = bar_mark(bar);
}

static void bar_check(gpu_mbar *m)
{
    if (m->pending || m->bytes)
        return;
    m->phase++;
    m->pending = m->expected;
    run.rounds = 0;
    for (int i = 0; i < MAX_WARPS / 64; i++) {
        for (uint64_t warps = m->warps[i]; warps; warps &= warps - 1) {
            gpu_warp *w = &run.warps[i * 64 + __builtin_ctzll(warps)];
            for (int j = 0; j < GPU_LANES; j++)
                if (w->lanes[j].bar == m)
                    gpu_wake(&w->lanes[j]);
        }
        m->warps[i] = 0;
    }
}

static void bar_arrive(gpu_block *b, uint32_t bar, uint32_t bytes)
{
    gpu_mbar *m = bar_find(b, bar);
    if (!m->pending)
        gpu_fault("more than %u arrivals at the barrier at 0x%x", m->expected, bar);
    m->bytes += bytes;
    m->pending--;
    bar_check(m);
}

void gpu_mbar_arrive(uint32_t bar, uint32_t expected_bytes)
{
    bar_arrive(gpu.lane->warp->block, bar, expected_bytes);
}

void gpu_mbar_arrive_remote(uint32_t bar, uint32_t rank)
{
    bar_arrive(block_of(rank), bar, 0);
}

void gpu_mbar_arrive_at(gpu_block *b, uint32_t bar)
{
    bar_arrive(b, bar, 0);
}

void gpu_mbar_complete(gpu_block *b, uint32_t bar, uint32_t bytes)
{
    gpu_mbar *m = bar_find(b, bar);
    m->bytes -= bytes;
    if (m->bytes < -(1 << 20))
        gpu_fault("the barrier at 0x%x got bytes that it does not expect", bar);
    bar_check(m);
}

/* Whether the phase is over; if not, after a wait for it, or, when polling, for all others. */
static bool bar_wait(uint32_t bar, uint32_t parity, bool polls)
{
    gpu_lane *l = gpu.lane;
    gpu_mbar *m = bar_find(l->warp->block, bar);
    if ((m->phase & 1) != (parity & 1))
        return true;
    m->warps[l->warp->number / 64] |= UINT64_C(1) << l->warp->number % 64;
    l->bar = m;
    l->polls = polls;
    gpu_sleep("waits for mbarrier", bar);
    return (m->phase & 1) != (parity & 1);
}

bool gpu_mbar_try_wait(uint32_t bar, uint32_t parity)
{
    return bar_wait(bar, parity, true);
}

void gpu_mbar_wait(uint32_t bar, uint32_t parity)
{
    while (!bar_wait(bar, parity, false))
        ;
}

/* --- Launches --- */

static void lane_main(void)
{
    gpu.kernel->call(run.arguments);
    gpu_lane *l = gpu.lane;
    gpu_block *b = l->warp->block;
    gpu_copies_check(l);
    gpu_products_check(l);
    gpu_tensor_check(l);
    l->done = true;
    l->waits = "has returned";
    l->warp->ready &= ~(1u << l->number % GPU_LANES);
    run.live--;
    b->live--;
    /* Those that wait for all of the block need not wait for this lane. */
    for (uint32_t id = 0; id < GPU_BARRIERS; id++)
        if (b->barriers[id].arrived && !b->barriers[id].threads &&
            b->barriers[id].arrived == b->live)
            barrier_open(b, id, &b->barriers[id]);
    if (run.cluster_arrived && run.cluster_arrived == run.live) {
        run.cluster_arrived = 0;
        for (uint32_t i = 0; i < gpu.cluster; i++)
            block_wake(&gpu.blocks[i], cluster_waits, 0);
    }
    pass_on();
}

static int statics_find(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    bool here = false;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_LOAD && (uintptr_t)&gpu_now - info->dlpi_addr - p->p_vaddr < p->p_memsz)
            here = true;
    }
    for (int i = 0; here && i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS) {
            run.statics = info->dlpi_tls_data;
            run.static_bytes = info->dlpi_phdr[i].p_memsz;
        }
    return here;
}

static char *memory_make(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static bool machine_make(void)
{
    if (!run.lanes) {
        run.stacks = memory_make((size_t)MAX_LANES * STACK_BYTES);
        run.shared = memory_make((size_t)(GPU_MAX_CLUSTER + 1) * SHARED_STRIDE);
        run.lanes = calloc(MAX_LANES, sizeof *run.lanes);
        run.warps = calloc(MAX_WARPS, sizeof *run.warps);
        for (int i = 0; i < GPU_MAX_CLUSTER; i++)
            gpu.blocks[i].bars = calloc(MAX_BARS, sizeof(gpu_mbar));
        for (size_t i = 0; run.stacks && i < MAX_LANES; i++)
            mprotect(run.stacks + i * STACK_BYTES, GUARD_BYTES, PROT_NONE);
        for (size_t i = 0; run.shared && i <= GPU_MAX_CLUSTER; i++)
            mprotect(run.shared + i * SHARED_STRIDE, GUARD_BYTES, PROT_NONE);
    }
    gpu_dynamic_shared = NULL; /* makes the thread's variables, too */
    dl_iterate_phdr(statics_find, NULL);
    return run.stacks && run.shared && run.lanes && run.warps;
}

static void lane_make(gpu_lane *l, gpu_warp *w, uint32_t number, size_t index)
{
    gpu_copies *copies = l->copies;
    /* Tops of stacks apart, so that lanes do not meet in the same lines of the host's cache. */
    const size_t skip = index % 61 * 64;
    char *stack = run.stacks + index * STACK_BYTES;
    *l = (gpu_lane){.warp = w, .number = number, .copies = copies};
    gpu_lane_copies_begin(l);
    emu_fiber_make(&l->fiber, stack + GUARD_BYTES, STACK_BYTES - GUARD_BYTES - skip, lane_main);
}

static void block_make(gpu_block *b, uint32_t rank, uint3 index)
{
    gpu_mbar *bars = b->bars;
    gpu_tensor_memory *tensor = b->tensor;
    const uint32_t bound = (uint32_t)(gpu.kernel->max_threads * gpu.kernel->min_blocks);
    const uint32_t registers = REGISTERS / bound / 8 * 8 < 255 ? REGISTERS / bound / 8 * 8 : 255;
    /* The end of what the launch asked for is the end of a page, or close to it. */
    const size_t page = 4096, used = (gpu.shared_bytes + page - 1) / page * page;
    char *end = run.shared + (size_t)(rank + 1) * SHARED_STRIDE;
    char *first = end - used + (used - gpu.shared_bytes) / 1024 * 1024;
    *b = (gpu_block){.index = index,
                     .rank = rank,
                     .live = gpu.threads,
                     .shared = first,
                     .bars = bars,
                     .tensor = tensor};
    gpu_tensor_begin(b);
    memset(first, 0xff, gpu.shared_bytes); /* NaN in every type */
    for (uint32_t i = 0; i < gpu.threads / GPU_LANES; i++) {
        const uint32_t number = rank * (gpu.threads / GPU_LANES) + i;
        gpu_warp *w = &run.warps[number];
        gpu_products *products = w->products;
        *w = (gpu_warp){.block = b,
                        .lanes = &run.lanes[number * GPU_LANES],
                        .number = (int)number,
                        .registers = registers,
                        .products = products};
        gpu_products_begin(w, (int)number);
        for (uint32_t j = 0; j < GPU_LANES; j++)
            lane_make(&w->lanes[j], w, i * GPU_LANES + j, number * GPU_LANES + j);
        warp_ready(w, ~0u);
    }
}

static void cluster_run(uint3 first)
{
    run.lane_count = run.live = gpu.cluster * gpu.threads;
    run.warp_count = run.lane_count / GPU_LANES;
    run.cluster_arrived = 0;
    run.rounds = 0;
    memset(run.ready, 0, sizeof run.ready);
    if (run.statics)
        memset(run.statics, 0xff, run.static_bytes);
    gpu_copies_begin();
    for (uint32_t i = 0; i < gpu.cluster; i++)
        block_make(&gpu.blocks[i], i, (uint3){first.x + i, first.y, first.z});
    gpu.lane = NULL;
    lane_show(&run.lanes[0]);
    run.warps[0].running = 0;
    emu_fiber_resume(&run.lanes[0].fiber);
    if (!gpu.fault && !gpu_copies_end()) {
        snprintf(gpu.message, sizeof gpu.message, "%s: a copy to a block that has returned",
                 gpu.kernel->name);
        gpu.fault = true;
    }
}

/* A plain access to what is no memory: a fault of the lane, whose stack is never used again. */
static void access_handler(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (gpu.lane && pthread_equal(pthread_self(), run.thread))
        gpu_fault("access to address %p, which is no memory", info->si_addr);
    sigaction(number, &run.before, NULL); /* and once more */
}

static void launch_locked(dim3 grid)
{
    struct sigaction handler = {.sa_sigaction = access_handler,
                                .sa_flags = SA_SIGINFO | SA_NODEFER};
    run.thread = pthread_self();
    gpu.lane = NULL;
    sigaction(SIGSEGV, &handler, &run.before);
    gpu.fault = false;
    gpu_now.blocks = grid;
    gpu_now.threads = (dim3){gpu.threads, 1, 1};
    gpu_now.thread = (uint3){0, 0, 0};
    for (uint32_t z = 0; z < grid.z; z++)
        for (uint32_t y = 0; y < grid.y; y++)
            for (uint32_t x = 0; x < grid.x && !gpu.fault; x += gpu.cluster)
                cluster_run((uint3){x, y, z});
    gpu.lane = NULL;
    sigaction(SIGSEGV, &run.before, NULL);
}

bool gpu_launch(const gpu_kernel *kernel, dim3 grid, uint32_t threads, uint32_t cluster,
                uint32_t shared_bytes, void **arguments)
{
    cluster = cluster ? cluster : 1;
    if (!threads || threads % GPU_LANES || threads > (uint32_t)kernel->max_threads ||
        cluster > GPU_MAX_CLUSTER || grid.x % cluster || shared_bytes > MAX_SHARED)
        return false;
    pthread_mutex_lock(&launch_lock);
    gpu.kernel = kernel;
    gpu.threads = threads;
    gpu.cluster = cluster;
    gpu.shared_bytes = shared_bytes;
    run.arguments = arguments;
    if (machine_make()) {
        launch_locked(grid);
    } else {
        snprintf(gpu.message, sizeof gpu.message, "no memory for stacks");
        gpu.fault = true;
    }
    pthread_mutex_unlock(&launch_lock);
    return true;
}
