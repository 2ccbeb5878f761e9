#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
/* Runs launches: groups in the order of the schedule, lanes as fibers. */
#include "machine.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fiber.h"

/* --- Kernels and schedules --- */

static emu_unit *units;

void emu_unit_join(emu_unit *unit)
{
    unit->next = units;
    units = unit;
}

const simt_kernel *emu_kernel_find(const char *file, const char *name, const char *type,
                                   const char *variant)
{
    for (const emu_unit *u = units; u; u = u->next)
        for (size_t i = 0; i < u->count; i++) {
            const simt_kernel *k = &u->kernels[i];
            if (!strcmp(k->name, name) && !strcmp(k->type, type) && !strcmp(k->file, file) &&
                !strcmp(k->variant, variant))
                return k;
        }
    return NULL;
}

bool emu_schedule_parse(const char *text, emu_schedule *schedule)
{
    *schedule = (emu_schedule){EMU_FORWARD, 1};
    if (!text || !strcmp(text, "forward"))
        return true;
    schedule->order = !strcmp(text, "reverse") ? EMU_REVERSE : EMU_RANDOM;
    if (schedule->order == EMU_REVERSE || !strcmp(text, "random"))
        return true;
    char *end;
    if (strncmp(text, "random:", 7) || text[7] < '0' || text[7] > '9')
        return false;
    schedule->seed = strtoull(text + 7, &end, 10);
    return !*end;
}

/* --- A launch --- */

/* What the smallest devices allow; groups in all are far fewer in any test. */
enum { MAX_GROUPS_X = INT32_MAX, MAX_GROUPS_YZ = 65535 };

enum { STACK_BYTES = 256 << 10, GUARD_BYTES = 16 << 10 };

typedef enum lane_state { LANE_NEW, LANE_WAITS, LANE_EXCHANGES, LANE_DONE } lane_state;

typedef struct lane {
    lane_state state;
    emu_fiber *fiber;
    bool goes;         /* runs in the next turn */
    const char *place; /* of the barrier or exchange at which it waits */
    bool global;
    int32_t wave, reach; /* of the exchange */
    double number;       /* given, then received */
} lane;

emu_now emu_machine;

static pthread_mutex_t launch_lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
    emu_fiber fibers[EMU_MAX_LANES];
    emu_fiber *idle[EMU_MAX_LANES]; /* fibers without a lane */
    int32_t idle_count;
    lane lanes[EMU_MAX_LANES];
    int32_t order[EMU_MAX_LANES];
    emu_fiber *running;
    void *address[SIMT_MAX_BUFFERS];
    const void *scalars;
    struct {
        char *first, *end;
    } locals[EMU_MAX_LOCALS]; /* that the group has announced */
    int32_t local_count;
    size_t local_bytes;
    uint64_t random;
    bool fault;
    char message[EMU_MESSAGE];
} run;

int32_t emu_lane(void)
{
    return emu_machine.lane;
}

int64_t emu_group(int32_t axis)
{
    return emu_machine.group[axis];
}

int64_t emu_groups(int32_t axis)
{
    return emu_machine.groups[axis];
}

static void fault_set(const char *format, va_list list)
{
    const int64_t *g = emu_machine.group;
    const int n = snprintf(run.message, sizeof run.message, "%s_%s, group %lld %lld %lld, ",
                           emu_machine.kernel->name, emu_machine.kernel->type, (long long)g[0],
                           (long long)g[1], (long long)g[2]);
    vsnprintf(run.message + n, sizeof run.message - (size_t)n, format, list);
    run.fault = true;
}

static void group_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void group_fault(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fault_set(format, list);
    va_end(list);
}

_Noreturn void emu_fault(const char *format, ...)
{
    char with_lane[EMU_MESSAGE];
    va_list list;
    snprintf(with_lane, sizeof with_lane, "lane %d: %s", (int)emu_machine.lane, format);
    va_start(list, format);
    fault_set(with_lane, list);
    va_end(list);
    for (;;) /* never resumed */
        emu_fiber_yield(run.running);
}

void emu_barrier(const char *place, bool global)
{
    lane *l = &run.lanes[emu_machine.lane];
    l->state = LANE_WAITS;
    l->place = place;
    l->global = global;
    emu_fiber_yield(l->fiber);
}

double emu_across(const char *place, int32_t wave, int32_t reach, double number)
{
    lane *l = &run.lanes[emu_machine.lane];
    l->state = LANE_EXCHANGES;
    l->place = place;
    l->wave = wave;
    l->reach = reach;
    l->number = number;
    emu_fiber_yield(l->fiber);
    return l->number;
}

void emu_local(char *first, char *end)
{
    for (int32_t i = 0; i < run.local_count; i++)
        if (run.locals[i].first == first)
            return;
    const size_t bytes = (size_t)(end - first);
    run.local_bytes += bytes;
    if (run.local_count == EMU_MAX_LOCALS || run.local_bytes > EMU_LOCAL_BYTES)
        emu_fault("more than %d local arrays or %d bytes of local memory", EMU_MAX_LOCALS,
                  EMU_LOCAL_BYTES);
    run.locals[run.local_count].first = first;
    run.locals[run.local_count++].end = end;
    memset(first, 0xff, bytes); /* NaN in every type */
    emu_shadow_local(first, bytes);
}

/* --- Fibers --- */

/* A fiber runs one lane after the other. */
static void fiber_main(void)
{
    for (;;) {
        emu_fiber *self = run.running;
        emu_machine.kernel->call(run.address, run.scalars);
        run.lanes[emu_machine.lane].state = LANE_DONE;
        emu_fiber_yield(self);
    }
}

/* All fibers anew; what a fault left on their stacks is dropped. */
static void fibers_make(void)
{
    for (int32_t i = 0; i < EMU_MAX_LANES; i++) {
        char *stack = (char *)emu_machine.stacks + (size_t)i * STACK_BYTES;
        emu_fiber_make(&run.fibers[i], stack + GUARD_BYTES, STACK_BYTES - GUARD_BYTES, fiber_main);
        run.idle[i] = &run.fibers[i];
    }
    run.idle_count = EMU_MAX_LANES;
}

static bool stacks_make(void)
{
    if (emu_machine.stacks)
        return true;
    const size_t bytes = (size_t)EMU_MAX_LANES * STACK_BYTES;
    char *stacks = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED)
        return false;
    for (int32_t i = 0; i < EMU_MAX_LANES; i++)
        mprotect(stacks + (size_t)i * STACK_BYTES, GUARD_BYTES, PROT_NONE);
    emu_machine.stacks = (uintptr_t)stacks;
    emu_machine.stacks_bytes = bytes;
    fibers_make();
    return true;
}

/* --- Order --- */

static uint64_t random_next(void) /* splitmix64 */
{
    uint64_t x = run.random += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void order_make(int32_t *order, int32_t count, emu_order how)
{
    for (int32_t i = 0; i < count; i++)
        order[i] = how == EMU_REVERSE ? count - 1 - i : i;
    for (int32_t i = count - 1; how == EMU_RANDOM && i > 0; i--) {
        const int32_t j = (int32_t)(random_next() % (uint64_t)(i + 1)), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

/* --- Groups --- */

static void lane_run(int32_t number)
{
    lane *l = &run.lanes[number];
    if (l->state == LANE_NEW)
        l->fiber = run.idle[--run.idle_count];
    l->goes = false;
    emu_machine.lane = number;
    run.running = l->fiber;
    emu_fiber_resume(l->fiber);
    if (l->state == LANE_DONE && !run.fault)
        run.idle[run.idle_count++] = l->fiber;
}

/* Lanes of a wave, all of which have to be at the same exchange, get each other's numbers and go on. */
static void wave_exchange(int32_t first, int32_t count)
{
    const lane *l = &run.lanes[first], *at = l; /* at: one that exchanges */
    double given[EMU_MAX_LANES];
    int32_t apart = 0;
    while (at->state != LANE_EXCHANGES)
        at++;
    for (int32_t i = 0; i < count; i++) {
        given[i] = l[i].number;
        apart += l[i].state != LANE_EXCHANGES || l[i].reach != at->reach ||
                 strcmp(l[i].place, at->place) != 0;
    }
    if (apart) {
        group_fault("divergent exchange: %d of %d lanes of a wave do not take part", (int)apart,
                    (int)count);
        return;
    }
    for (int32_t i = 0; i < count; i++) {
        if ((i ^ l[0].reach) >= count) {
            group_fault("exchange at %s: lane %d does not exist", l[0].place,
                        (int)(first + (i ^ l[0].reach)));
            return;
        }
        run.lanes[first + i].number = given[i ^ l[0].reach];
        run.lanes[first + i].goes = true;
    }
}

/* The same for all waves that are at one; whether there was any. */
static bool lanes_exchange(int32_t count)
{
    int32_t wave = 0;
    for (int32_t i = 0; i < count; i++)
        if (run.lanes[i].state == LANE_EXCHANGES)
            wave = run.lanes[i].wave;
    for (int32_t first = 0; wave && first < count; first += wave) {
        const int32_t size = first + wave < count ? wave : count - first;
        for (int32_t i = first; i < first + size; i++)
            if (run.lanes[i].state == LANE_EXCHANGES) {
                wave_exchange(first, size);
                break;
            }
    }
    return wave != 0;
}

/* All lanes wait at one barrier, or all are done. */
static bool lanes_agree(int32_t count)
{
    const lane *first = &run.lanes[0];
    int32_t waiting = 0, elsewhere = 0;
    for (int32_t i = 0; i < count; i++)
        waiting += run.lanes[i].state == LANE_WAITS;
    for (int32_t i = 0; i < count; i++)
        if (run.lanes[i].state == LANE_WAITS) {
            if (first->state != LANE_WAITS)
                first = &run.lanes[i];
            elsewhere += strcmp(run.lanes[i].place, first->place) != 0;
        }
    if (waiting && waiting < count)
        group_fault("divergent barrier: %d of %d lanes wait at %s, the others returned",
                    (int)waiting, (int)count, first->place);
    else if (elsewhere)
        group_fault("divergent barrier: %d of %d lanes wait elsewhere than at %s", (int)elsewhere,
                    (int)count, first->place);
    return !run.fault;
}

static void group_run(int32_t count, emu_order how)
{
    run.local_count = 0;
    run.local_bytes = 0;
    emu_shadow_group();
    for (int32_t i = 0; i < count; i++) {
        run.lanes[i].state = LANE_NEW;
        run.lanes[i].goes = true;
    }
    for (;;) {
        order_make(run.order, count, how);
        for (int32_t i = 0; i < count && !run.fault; i++)
            if (run.lanes[run.order[i]].goes)
                lane_run(run.order[i]);
        if (!run.fault && lanes_exchange(count))
            continue;
        if (run.fault || !lanes_agree(count) || run.lanes[0].state == LANE_DONE)
            return;
        emu_shadow_barrier(run.lanes[0].global);
        for (int32_t i = 0; i < count; i++)
            run.lanes[i].goes = true;
    }
}

/* Group number i of count in the schedule's order. Random: steps of a large prime, which visit each
 * group once. */
static int64_t group_at(int64_t i, int64_t count, const emu_schedule *s, uint64_t random)
{
    static const uint64_t primes[] = {2147483647, 2147483629, 2147483587, 2147483579};
    if (s->order != EMU_RANDOM)
        return s->order == EMU_REVERSE ? count - 1 - i : i;
    const uint64_t n = (uint64_t)count, prime = primes[random % 4];
    const uint64_t step = prime % n ? prime % n : 1;
    return (int64_t)((random % n + (uint64_t)i % n * step) % n);
}

static void groups_run(const simt_launch *l, const emu_schedule *schedule)
{
    const int64_t count = l->groups[0] * l->groups[1] * l->groups[2];
    const uint64_t random = random_next();
    for (int64_t i = 0; i < count && !run.fault; i++) {
        const int64_t at = group_at(i, count, schedule, random);
        emu_machine.group[0] = at % l->groups[0];
        emu_machine.group[1] = at / l->groups[0] % l->groups[1];
        emu_machine.group[2] = at / l->groups[0] / l->groups[1];
        group_run(l->group_size, schedule->order);
    }
}

static bool launch_locked(const simt_kernel *kernel, const simt_launch *l,
                          const emu_schedule *schedule)
{
    int32_t wrong = 0;
    emu_machine.kernel = kernel;
    memset(emu_machine.group, 0, sizeof emu_machine.group);
    memcpy(emu_machine.groups, l->groups, sizeof emu_machine.groups);
    run.fault = false;
    if (!stacks_make() || !emu_shadow_launch(l, &wrong)) {
        group_fault("buffer %d is not memory of the device", (int)wrong);
        return false;
    }
    for (int32_t i = 0; i < l->buffer_count; i++)
        run.address[i] = bsk_mem_address(l->buffers[i]);
    run.scalars = l->scalars;
    run.random = schedule->seed;
    groups_run(l, schedule);
    if (run.fault)
        fibers_make();
    return !run.fault;
}

bool emu_launch(const simt_kernel *kernel, const simt_launch *l, const emu_schedule *schedule,
                char message[EMU_MESSAGE])
{
    if (l->groups[0] <= 0 || l->groups[1] <= 0 || l->groups[2] <= 0)
        return true;
    if (kernel->buffers != l->buffer_count || kernel->scalar_bytes != l->scalar_bytes ||
        kernel->lanes != l->group_size || kernel->lanes > EMU_MAX_LANES) {
        snprintf(message, EMU_MESSAGE,
                 "%s_%s takes %d buffers, %zu bytes of scalars and %d lanes, not %d, %zu and %d",
                 kernel->name, kernel->type, (int)kernel->buffers, kernel->scalar_bytes,
                 (int)kernel->lanes, (int)l->buffer_count, l->scalar_bytes, (int)l->group_size);
        return false;
    }
    if (l->groups[0] > MAX_GROUPS_X || l->groups[1] > MAX_GROUPS_YZ ||
        l->groups[2] > MAX_GROUPS_YZ) {
        snprintf(message, EMU_MESSAGE, "%s_%s: a grid of %lld x %lld x %lld groups", kernel->name,
                 kernel->type, (long long)l->groups[0], (long long)l->groups[1],
                 (long long)l->groups[2]);
        return false;
    }
    pthread_mutex_lock(&launch_lock);
    const bool good = launch_locked(kernel, l, schedule);
    if (!good)
        memcpy(message, run.message, sizeof run.message);
    pthread_mutex_unlock(&launch_lock);
    return good;
}
