/* Asynchronous copies: when they are done is up to chance, but for what waits allow. */
#include <stdlib.h>
#include <string.h>

#include "machine.h"
#include "tensor.h"

/* --- Groups of a lane (cp.async) --- */

typedef struct async_copy {
    uint32_t to, size, bytes, group;
    const void *from;
} async_copy;

struct gpu_copies {
    async_copy *list;
    int count, room;
    uint32_t group; /* the one that is open */
};

void gpu_lane_copies_begin(gpu_lane *l)
{
    if (!l->copies)
        return;
    l->copies->count = 0;
    l->copies->group = 0;
}

static void async_do(const async_copy *c)
{
    char *to = gpu_shared(c->to, c->size, c->size);
    if (c->bytes)
        memcpy(to, c->from, c->bytes);
    memset(to + c->bytes, 0, c->size - c->bytes);
}

void gpu_async_copy(uint32_t to, const void *from, uint32_t size, uint32_t bytes)
{
    gpu_lane *l = gpu.lane;
    if (!l->copies)
        l->copies = calloc(1, sizeof *l->copies);
    gpu_copies *all = l->copies;
    if (bytes > size)
        gpu_fault("a copy of %u bytes to %u", bytes, size);
    if (bytes && (uintptr_t)from % size)
        gpu_fault("a copy of %u bytes from an address that is %u modulo %u", size,
                  (unsigned)((uintptr_t)from % size), size);
    if (bytes && !gpu_global_has(from, bytes))
        gpu_fault("a copy of %u bytes from what is not memory of the device", bytes);
    const async_copy c = {to, size, bytes, all->group, from};
    gpu_shared(to, size, size);
    if (gpu_random(4) == 0) {
        async_do(&c);
        return;
    }
    if (all->count == all->room) {
        all->room = all->room ? 2 * all->room : 16;
        all->list = realloc(all->list, (size_t)all->room * sizeof *all->list);
    }
    all->list[all->count++] = c;
}

void gpu_async_commit(void)
{
    if (gpu.lane->copies)
        gpu.lane->copies->group++;
}

void gpu_async_wait(uint32_t pending)
{
    gpu_copies *all = gpu.lane->copies;
    int left = 0;
    if (!all)
        return;
    for (int i = 0; i < all->count; i++)
        if (all->list[i].group + pending < all->group)
            async_do(&all->list[i]);
        else
            all->list[left++] = all->list[i];
    all->count = left;
}

/* --- Copies of the copy engine --- */

typedef enum copy_kind { BULK_LOAD, BULK_STORE, TENSOR_LOAD, TENSOR_STORE } copy_kind;

typedef struct copy {
    copy_kind kind;
    uint64_t due; /* a step; NEVER: when nobody can run */
    gpu_block *block;
    gpu_lane *lane; /* of a store */
    int group;
    uint32_t shared, bytes, bar, mask;
    char *global;
    tensor_map map;
    int64_t at[TENSOR_RANK];
} copy;

#define NEVER UINT64_MAX

static struct {
    copy *list;
    int count, room;
    uint64_t first_due;
} engine;

void gpu_copies_begin(void)
{
    engine.count = 0;
    engine.first_due = NEVER;
}

/* A row of a box: where it lies, and which of its elements are inside of the tensor. */
typedef struct box_row {
    char *address; /* of element 0 of the row, if any is inside */
    int64_t first, end;
} box_row;

static box_row row_at(const copy *c, const int64_t *outer)
{
    const tensor_map *m = &c->map;
    box_row r = {m->address, 0, 0};
    for (int i = 1; i < m->rank; i++) {
        const int64_t at = c->at[i] + outer[i];
        if (at < 0 || at >= (int64_t)m->dims[i])
            return r;
        r.address += at * (int64_t)m->strides[i - 1];
    }
    const int64_t left = (int64_t)m->dims[0] - c->at[0];
    r.first = c->at[0] < 0 ? -c->at[0] : 0;
    r.end = left < m->box[0] ? left : m->box[0];
    r.address += c->at[0] * m->size;
    return r;
}

/* The place of 16 bytes of a box. */
static uint32_t swizzled(const tensor_map *m, uint32_t address)
{
    return address ^ (address >> 7 & m->swizzle) << 4;
}

static bool outer_next(const tensor_map *m, int64_t *outer)
{
    for (int i = 1; i < m->rank; i++) {
        if (++outer[i] < m->box[i])
            return true;
        outer[i] = 0;
    }
    return false;
}

uint32_t gpu_tf32(uint32_t bits)
{
    const uint32_t low = 13, infinite = 0x7f800000, magnitude = bits & 0x7fffffff;
    if (magnitude > infinite)
        return 0x7fffe000; /* a NaN */
    return (bits + ((1u << (low - 1)) - 1 + (bits >> low & 1))) >> low << low;
}

static void row_round(char *row, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i += sizeof(uint32_t)) {
        uint32_t bits;
        memcpy(&bits, row + i, sizeof bits);
        bits = gpu_tf32(bits);
        memcpy(row + i, &bits, sizeof bits);
    }
}

static void tensor_load_do(const copy *c, const gpu_block *b)
{
    const tensor_map *m = &c->map;
    const uint32_t row_bytes = (uint32_t)m->box[0] * m->size;
    int64_t outer[TENSOR_RANK] = {0};
    uint32_t to = c->shared;
    char row[TENSOR_ROW_BYTES];
    do {
        const box_row r = row_at(c, outer);
        memset(row, 0, row_bytes);
        if (r.first < r.end)
            memcpy(row + r.first * m->size, r.address + r.first * m->size,
                   (size_t)(r.end - r.first) * m->size);
        if (m->tf32)
            row_round(row, row_bytes);
        for (uint32_t i = 0; i < row_bytes; i += 16, to += 16)
            memcpy(gpu_shared_of(b->rank, swizzled(m, to), 16, 16), row + i, 16);
    } while (outer_next(m, outer));
}

static void tensor_store_do(const copy *c)
{
    const tensor_map *m = &c->map;
    const uint32_t row_bytes = (uint32_t)m->box[0] * m->size;
    int64_t outer[TENSOR_RANK] = {0};
    uint32_t from = c->shared;
    char row[TENSOR_ROW_BYTES];
    do {
        const box_row r = row_at(c, outer);
        for (uint32_t i = 0; i < row_bytes; i += 16, from += 16)
            memcpy(row + i, gpu_shared_of(c->block->rank, swizzled(m, from), 16, 16), 16);
        if (r.first < r.end)
            memcpy(r.address + r.first * m->size, row + r.first * m->size,
                   (size_t)(r.end - r.first) * m->size);
    } while (outer_next(m, outer));
}

static void copy_do(const copy *c)
{
    if (c->kind == BULK_STORE || c->kind == TENSOR_STORE) {
        if (c->kind == BULK_STORE)
            memcpy(c->global, gpu_shared_of(c->block->rank, c->shared, c->bytes, 16), c->bytes);
        else
            tensor_store_do(c);
        c->lane->stores--;
        return;
    }
    for (uint32_t rank = 0; rank < gpu.cluster; rank++) {
        if (!(c->mask >> rank & 1))
            continue;
        if (c->kind == BULK_LOAD)
            memcpy(gpu_shared_of(rank, c->shared, c->bytes, 16), c->global, c->bytes);
        else
            tensor_load_do(c, &gpu.blocks[rank]);
        gpu_mbar_complete(&gpu.blocks[rank], c->bar, c->bytes);
    }
}

static void engine_do(int i)
{
    const copy c = engine.list[i];
    engine.list[i] = engine.list[--engine.count];
    copy_do(&c);
}

bool gpu_copies_advance(bool idle)
{
    if (idle && engine.count) {
        engine_do((int)gpu_random((uint32_t)engine.count));
        return true;
    }
    if (engine.first_due > gpu.step)
        return false;
    engine.first_due = NEVER;
    for (int i = engine.count - 1; i >= 0; i--)
        if (engine.list[i].due <= gpu.step)
            engine_do(i);
        else if (engine.list[i].due < engine.first_due)
            engine.first_due = engine.list[i].due;
    return false;
}

bool gpu_copies_end(void)
{
    return engine.count == 0;
}

/* At once, some steps later, or when nobody else can go on. */
static void engine_put(copy *c)
{
    const uint32_t when = gpu_random(8);
    c->block = gpu.lane->warp->block;
    if (when == 0) {
        copy_do(c);
        return;
    }
    c->due = when < 4 ? gpu.step + 1 + gpu_random(64) : NEVER;
    if (c->due < engine.first_due)
        engine.first_due = c->due;
    if (engine.count == engine.room) {
        engine.room = engine.room ? 2 * engine.room : 64;
        engine.list = realloc(engine.list, (size_t)engine.room * sizeof *engine.list);
    }
    engine.list[engine.count++] = *c;
}

static void load_put(copy *c, uint32_t mask)
{
    const uint32_t own = 1u << gpu_cluster_rank();
    c->mask = mask ? mask : own;
    if (c->mask >> gpu.cluster)
        gpu_fault("a copy to blocks 0x%x of a cluster of %u", c->mask, gpu.cluster);
    engine_put(c);
}

static void store_put(copy *c)
{
    c->lane = gpu.lane;
    c->group = gpu.lane->store_group;
    gpu.lane->stores++;
    engine_put(c);
}

static void bulk_check(const void *global, uint32_t shared, uint32_t bytes)
{
    if (!bytes || bytes % 16 || (uintptr_t)global % 16)
        gpu_fault("a bulk copy of %u bytes, an address that is %u modulo 16", bytes,
                  (unsigned)((uintptr_t)global % 16));
    if (!gpu_global_has(global, bytes))
        gpu_fault("a bulk copy of %u bytes of what is not memory of the device", bytes);
    gpu_shared(shared, bytes, 16);
}

void gpu_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t bar, uint32_t mask)
{
    bulk_check(from, to, bytes);
    copy c = {.kind = BULK_LOAD,
              .shared = to,
              .bytes = bytes,
              .bar = bar,
              .global = (char *)(uintptr_t)from};
    load_put(&c, mask);
}

void gpu_bulk_store(void *to, uint32_t from, uint32_t bytes)
{
    bulk_check(to, from, bytes);
    copy c = {.kind = BULK_STORE, .shared = from, .bytes = bytes, .global = to};
    store_put(&c);
}

static copy tensor_copy(copy_kind kind, const void *map, int rank, const int *at, uint32_t shared)
{
    copy c = {.kind = kind, .shared = shared};
    memcpy(&c.map, map, sizeof c.map);
    if ((uintptr_t)map % 64 || c.map.mark != TENSOR_MARK)
        gpu_fault("a tensor copy by what is not a tensor map");
    if (c.map.rank != rank)
        gpu_fault("a tensor copy with %d coordinates by a map of %d axes", rank, c.map.rank);
    c.bytes = c.map.size;
    for (int i = 0; i < rank; i++) {
        c.at[i] = at[i];
        c.bytes *= c.map.box[i];
    }
    gpu_shared(shared, c.bytes, 128);
    return c;
}

void gpu_tensor_load(uint32_t to, const void *map, int rank, const int *at, uint32_t bar,
                     uint32_t mask)
{
    copy c = tensor_copy(TENSOR_LOAD, map, rank, at, to);
    c.bar = bar;
    load_put(&c, mask);
}

void gpu_tensor_store(const void *map, int rank, const int *at, uint32_t from)
{
    copy c = tensor_copy(TENSOR_STORE, map, rank, at, from);
    store_put(&c);
}

void gpu_store_commit(void)
{
    gpu.lane->store_group++;
}

void gpu_store_wait(uint32_t pending)
{
    const gpu_lane *l = gpu.lane;
    for (int i = engine.count - 1; i >= 0; i--)
        if (engine.list[i].lane == l && engine.list[i].group + (int)pending < l->store_group)
            engine_do(i);
}

/* A lane that returns must have waited for what it started. */
void gpu_copies_check(const gpu_lane *l)
{
    if (l->stores)
        gpu_fault("returns while %d of its stores may still read shared memory", l->stores);
}
