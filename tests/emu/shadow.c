#define _GNU_SOURCE /* dladdr */
/* The shadow of memory: which lane touched what, and when.
 *
 * Time is counted in intervals: a group begins one, and so does each of its barriers. Two accesses
 * by different lanes of a group to the same place, one of them a store, are a race if no barrier
 * for that memory lies between them; by different groups of a launch they always are one. What is
 * kept of a place is its last store, its last load, and its first load in the launch: enough to
 * find every race of a schedule, if not every pair of lanes in it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef EMU_CHECKED
#include <dlfcn.h>
#endif

#include "machine.h"

/* GRAIN: bytes that share a cell. */
enum { GRAIN = 1, ALIGNMENT = 256 };

/* Intervals 0: never, 1: by the host. */
enum { NEVER, HOST, FIRST_INTERVAL };

enum { MANY_LANES = 0xffff };

typedef struct cell {
    uint32_t stored, loaded, loaded_first;
    uint16_t store_lane, load_lane;
} cell;
_Static_assert(sizeof(cell) == 16, "cells are compared as two words");

/* Device memory. */
typedef struct block {
    struct block *next;
    char *memory;
    size_t bytes;
    cell *cells;
} block;

static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks;

static cell *cells_make(size_t bytes)
{
#ifdef EMU_CHECKED
    return calloc(bytes / GRAIN + 1, sizeof(cell));
#else
    (void)bytes;
    return NULL;
#endif
}

void *emu_memory_make(size_t bytes)
{
    block *b = malloc(sizeof *b);
    void *memory = NULL; /* as aligned as on devices, and not a byte larger than asked for */
    if (posix_memalign(&memory, ALIGNMENT, bytes ? bytes : 1))
        memory = NULL;
    cell *cells = cells_make(bytes);
    bool good = b && memory;
#ifdef EMU_CHECKED
    good = good && cells;
#endif
    if (!good) {
        free(b);
        free(memory);
        free(cells);
        return NULL;
    }
    memset(memory, 0xff, bytes); /* NaN in every type */
    *b = (block){NULL, memory, bytes, cells};
    pthread_mutex_lock(&blocks_lock);
    b->next = blocks;
    blocks = b;
    pthread_mutex_unlock(&blocks_lock);
    return memory;
}

void emu_memory_free(void *memory)
{
    pthread_mutex_lock(&blocks_lock);
    block **at = &blocks;
    while (*at && (*at)->memory != memory)
        at = &(*at)->next;
    block *b = *at;
    if (b)
        *at = b->next;
    pthread_mutex_unlock(&blocks_lock);
    if (!b)
        return;
    free(b->memory);
    free(b->cells);
    free(b);
}

/* The block that an address lies in; its end counts. */
static const block *block_find(const void *at)
{
    pthread_mutex_lock(&blocks_lock);
    const block *b = blocks;
    while (b && (size_t)((uintptr_t)at - (uintptr_t)b->memory) > b->bytes)
        b = b->next;
    pthread_mutex_unlock(&blocks_lock);
    return b;
}

#ifndef EMU_CHECKED

void emu_memory_written(const void *at, size_t bytes)
{
    (void)at;
    (void)bytes;
}

bool emu_shadow_launch(const simt_launch *launch, int32_t *wrong)
{
    for (int32_t i = 0; i < launch->buffer_count; i++) {
        const void *at = bsk_mem_address(launch->buffers[i]);
        if (at && !block_find(at)) {
            *wrong = i;
            return false;
        }
    }
    return true;
}

void emu_shadow_group(void)
{
}

void emu_shadow_barrier(bool global)
{
    (void)global;
}

void emu_shadow_local(char *first, size_t bytes)
{
    (void)first;
    (void)bytes;
}

#else

/* --- What a launch may touch --- */

enum { MAX_LOCALS_SEEN = 1024 };

typedef struct region {
    uintptr_t base;
    size_t bytes;
    cell *cells;
    const uint32_t *phase; /* since when accesses are not ordered by barriers */
    int32_t buffer;        /* its number, or -1: local */
} region;

static struct {
    region regions[SIMT_MAX_BUFFERS + EMU_MAX_LOCALS];
    int32_t count, buffers;
    const region *last; /* the one that was found last */
    uint32_t now, launch_from, group_from, global_from;
} shadow = {.now = FIRST_INTERVAL};

void emu_memory_written(const void *at, size_t bytes)
{
    const block *b = block_find(at);
    if (!b || !bytes)
        return;
    size_t first = (size_t)((const char *)at - b->memory) / GRAIN;
    size_t last = ((size_t)((const char *)at - b->memory) + bytes - 1) / GRAIN;
    for (size_t i = first; i <= last; i++)
        b->cells[i].stored = HOST;
}

bool emu_shadow_launch(const simt_launch *launch, int32_t *wrong)
{
    shadow.count = 0;
    for (int32_t i = 0; i < launch->buffer_count; i++) {
        const void *at = bsk_mem_address(launch->buffers[i]);
        if (!at)
            continue;
        const block *b = block_find(at);
        *wrong = i;
        if (!b)
            return false;
        shadow.regions[shadow.count++] =
            (region){(uintptr_t)b->memory, b->bytes, b->cells, &shadow.global_from, i};
    }
    shadow.buffers = shadow.count;
    shadow.last = NULL;
    shadow.launch_from = shadow.now + 1;
    return true;
}

void emu_shadow_group(void)
{
    shadow.group_from = shadow.global_from = ++shadow.now;
    shadow.count = shadow.buffers; /* local arrays are announced by each group */
    shadow.last = NULL;
}

void emu_shadow_barrier(bool global)
{
    shadow.now++;
    if (global)
        shadow.global_from = shadow.now;
}

/* The cells of a local array, which it keeps; it is found by its address. */
static cell *local_cells(const char *first, size_t bytes)
{
    static struct {
        const char *first;
        cell *cells;
    } seen[MAX_LOCALS_SEEN];
    uint32_t at = (uint32_t)((uintptr_t)first >> 3) * 2654435761u % MAX_LOCALS_SEEN;
    for (int32_t i = 0; i < MAX_LOCALS_SEEN; i++, at = (at + 1) % MAX_LOCALS_SEEN) {
        if (seen[at].first == first)
            return seen[at].cells;
        if (!seen[at].first) {
            seen[at].cells = cells_make(bytes);
            if (seen[at].cells)
                seen[at].first = first;
            return seen[at].cells;
        }
    }
    return NULL;
}

void emu_shadow_local(char *first, size_t bytes)
{
    cell *cells = local_cells(first, bytes);
    if (!cells || shadow.count == SIMT_MAX_BUFFERS + EMU_MAX_LOCALS)
        emu_fault("no room for the shadow of a local array");
    shadow.regions[shadow.count++] = (region){(uintptr_t)first, bytes, cells, &shadow.now, -1};
}

/* --- Accesses --- */

typedef struct access {
    const region *region;
    uintptr_t at;
    size_t bytes;
    const void *code; /* the instruction */
} access;

/* The offset of an instruction in its module, for addr2line. */
static size_t code_offset(const void *code)
{
    Dl_info info;
    return dladdr(code, &info) ? (size_t)((const char *)code - (const char *)info.dli_fbase) : 0;
}

_Noreturn static void access_fault(const access *a, const char *what, uint32_t lane)
{
    char where[64], other[32] = "";
    if (a->region->buffer < 0)
        snprintf(where, sizeof where, "a local array of %zu bytes", a->region->bytes);
    else
        snprintf(where, sizeof where, "buffer %d of %zu bytes", a->region->buffer,
                 a->region->bytes);
    if (lane == MANY_LANES)
        snprintf(other, sizeof other, " several lanes");
    else if (lane < EMU_MAX_LANES)
        snprintf(other, sizeof other, " lane %u", lane);
    emu_fault("%s%s: byte %zu of %s, code +0x%zx", what, other, (size_t)(a->at - a->region->base),
              where, code_offset(a->code));
}

enum { NO_LANE = MANY_LANES - 1 };

#define INLINE static inline __attribute__((always_inline)) /* by the number of bytes */

/* Of `count` cells that are alike. */
INLINE void cells_load(const access *a, cell *c, size_t count)
{
    const region *r = a->region;
    const uint16_t lane = (uint16_t)emu_machine.lane;
    if (c->stored < (r->buffer < 0 ? shadow.group_from : HOST))
        access_fault(a, "load of what nothing has written", NO_LANE);
    if (c->stored >= shadow.launch_from && c->stored < shadow.group_from)
        access_fault(a, "race: load of what another group stored,", c->store_lane);
    if (c->stored >= *r->phase && c->store_lane != lane)
        access_fault(a, "race: load of what was stored since the last barrier by", c->store_lane);
    const uint32_t now = shadow.now;
    const uint32_t first = c->loaded_first < shadow.launch_from ? now : c->loaded_first;
    const uint16_t who = c->loaded >= *r->phase && c->load_lane != lane ? MANY_LANES : lane;
    for (size_t i = 0; i < count; i++) {
        c[i].loaded_first = first;
        c[i].load_lane = who;
        c[i].loaded = now;
    }
}

INLINE void cells_store(const access *a, cell *c, size_t count)
{
    const region *r = a->region;
    const uint16_t lane = (uint16_t)emu_machine.lane;
    if (r->buffer >= 0) {
        if (c->stored >= shadow.launch_from && c->stored < shadow.group_from)
            access_fault(a, "race: store over what another group stored,", c->store_lane);
        if (c->loaded_first >= shadow.launch_from && c->loaded_first < shadow.group_from)
            access_fault(a, "race: store over what another group loaded", NO_LANE);
    }
    if (c->stored >= *r->phase && c->store_lane != lane)
        access_fault(a, "race: store over what was stored since the last barrier by",
                     c->store_lane);
    if (c->loaded >= *r->phase && c->load_lane != lane)
        access_fault(a, "race: store over what was loaded since the last barrier by", c->load_lane);
    const uint32_t now = shadow.now;
    for (size_t i = 0; i < count; i++) {
        c[i].stored = now;
        c[i].store_lane = lane;
    }
}

static bool region_has(const region *r, uintptr_t at, size_t bytes)
{
    return at - r->base < r->bytes && bytes <= r->bytes - (at - r->base);
}

/* Constants of the module itself, which lie below its tables for the dynamic linker. */
static bool constants_have(uintptr_t at)
{
    extern char __ehdr_start[] __attribute__((visibility("hidden")));
    extern char _DYNAMIC[] __attribute__((visibility("hidden")));
    return at >= (uintptr_t)__ehdr_start && at < (uintptr_t)_DYNAMIC;
}

static const region *region_find(const access *a, bool store)
{
    for (int32_t i = shadow.count - 1; i >= 0; i--)
        if (region_has(&shadow.regions[i], a->at, a->bytes))
            return &shadow.regions[i];
    if (!store && constants_have(a->at))
        return NULL;
    for (int32_t i = 0; i < shadow.count; i++) {
        /* The nearest below says most: the access is likely past its end. */
        const region *r = &shadow.regions[i];
        if (a->at + 4096 - r->base < r->bytes + 8192) {
            const access near = {r, a->at, a->bytes, a->code};
            access_fault(&near, store ? "store out of bounds" : "load out of bounds", NO_LANE);
        }
    }
    emu_fault("%s of %zu bytes at an address that is no argument's, code +0x%zx",
              store ? "store" : "load", a->bytes, code_offset(a->code));
}

INLINE void cells_touch(const access *a, cell *c, size_t count, bool store)
{
    if (store)
        cells_store(a, c, count);
    else
        cells_load(a, c, count);
}

INLINE bool cells_same(const cell *c, size_t count)
{
    uint64_t differ = 0;
    for (size_t i = 1; i < count; i++) {
        uint64_t x[2], y[2];
        memcpy(x, c, sizeof x);
        memcpy(y, c + i, sizeof y);
        differ |= (x[0] ^ y[0]) | (x[1] ^ y[1]);
    }
    return differ == 0;
}

INLINE void access_check(const void *at, size_t bytes, bool store, const void *code)
{
    access a = {shadow.last, (uintptr_t)at, bytes, code};
    if (a.at - emu_machine.stacks < emu_machine.stacks_bytes || !bytes)
        return;
    if (!a.region || !region_has(a.region, a.at, bytes)) {
        a.region = region_find(&a, store);
        if (!a.region)
            return;
        shadow.last = a.region;
    }
    const uintptr_t offset = a.at - a.region->base;
    cell *c = a.region->cells + offset / GRAIN;
    const size_t count = (offset + bytes - 1) / GRAIN - offset / GRAIN + 1;
    if (cells_same(c, count)) /* as those of most elements are */
        cells_touch(&a, c, count, store);
    else
        for (size_t i = 0; i < count; i++)
            cells_touch(&a, c + i, 1, store);
}

_Noreturn static void misaligned_fault(const void *at, size_t alignment, const void *code)
{
    emu_fault("misaligned access: an address that is %zu modulo %zu, code +0x%zx",
              (size_t)((uintptr_t)at % alignment), alignment, code_offset(code));
}

/* The functions that instrumented code calls before an access (-fsanitize=thread). */
#define CODE   __builtin_extract_return_addr(__builtin_return_address(0))
#define HOOKS(bytes)                                                                               \
    HOOK(read##bytes, bytes, bytes, false)                                                         \
    HOOK(write##bytes, bytes, bytes, true)                                                         \
    HOOK(unaligned_read##bytes, bytes, 1, false)                                                   \
    HOOK(unaligned_write##bytes, bytes, 1, true)
#define HOOK(name, bytes, alignment, store)                                                        \
    void __tsan_##name(const void *at);                                                            \
    void __tsan_##name(const void *at)                                                             \
    {                                                                                              \
        if ((uintptr_t)at % (alignment))                                                           \
            misaligned_fault(at, alignment, CODE);                                                 \
        access_check(at, bytes, store, CODE);                                                      \
    }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

#define HOOK_RANGE(name, store)                                                                    \
    void __tsan_##name(const void *at, size_t bytes);                                              \
    void __tsan_##name(const void *at, size_t bytes)                                               \
    {                                                                                              \
        access_check(at, bytes, store, CODE);                                                      \
    }
HOOK_RANGE(read_range, false)
HOOK_RANGE(write_range, true)

void __tsan_init(void);
void __tsan_init(void)
{
}
void __tsan_func_entry(void *caller);
void __tsan_func_entry(void *caller)
{
    (void)caller;
}
void __tsan_func_exit(void);
void __tsan_func_exit(void)
{
}

void *__tsan_memcpy(void *to, const void *from, size_t bytes);
void *__tsan_memcpy(void *to, const void *from, size_t bytes)
{
    access_check(from, bytes, false, CODE);
    access_check(to, bytes, true, CODE);
    return memcpy(to, from, bytes);
}

void *__tsan_memmove(void *to, const void *from, size_t bytes);
void *__tsan_memmove(void *to, const void *from, size_t bytes)
{
    access_check(from, bytes, false, CODE);
    access_check(to, bytes, true, CODE);
    return memmove(to, from, bytes);
}

void *__tsan_memset(void *to, int byte, size_t bytes);
void *__tsan_memset(void *to, int byte, size_t bytes)
{
    access_check(to, bytes, true, CODE);
    return memset(to, byte, bytes);
}

/* What code compiled with -fsanitize=alignment calls, where the access itself comes in parts. */
typedef struct alignment_data {
    const char *file;
    uint32_t line, column;
    const void *type;
    unsigned char log_alignment, kind;
} alignment_data;

void __ubsan_handle_type_mismatch_v1(const alignment_data *data, const void *at);
void __ubsan_handle_type_mismatch_v1(const alignment_data *data, const void *at)
{
    misaligned_fault(at, 1u << data->log_alignment, CODE);
}

#endif
