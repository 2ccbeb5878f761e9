/* Tensor memory and the products of tcgen05, ordered as the PTX ISA says and no better. Products
 * are done late, or earlier by chance, of one accumulator in their order; stores at their wait.
 *
 * Part of a column: 16 lanes. For each part it is known who wrote and read it last and when, in
 * events of this file: an access by others must follow a fence::before of that warp (a commit has
 * one in it) and its own fence::after. That they wait for each other between these is not looked
 * at. */
#include <stdlib.h>
#include <string.h>

#include "machine.h"

enum {
    COLUMNS = 512,
    LANES = 128,
    PART = 16,
    PARTS = LANES / PART,
    UNIT = 32, /* of allocations */
    STEP = 16, /* of a product along k */
    A_COLUMNS = STEP / 2,
    MOST_LOADED = 128
};

/* Columns of some parts. */
typedef struct region {
    uint32_t first, count, parts;
} region;

/* The last use of a part, by a warp or by a product. */
typedef struct use {
    uint64_t when; /* 0: not used */
    const gpu_warp *warp;
    const gpu_lane *lane; /* that issued the product */
    uint64_t sums;        /* address and shape of its accumulator */
} use;

typedef struct cell {
    use write, read;
} cell;

typedef struct product {
    int m, n;
    bool a_in_memory, accumulate;
    region d, a_from; /* a_from: if in tensor memory */
    gpu_operand a, b;
    gpu_type type;
    uint32_t lane; /* of row 0 */
    uint64_t sums;
} product;

/* A product, or the arrival of a commit. */
typedef struct job {
    const gpu_lane *lane;
    uint64_t due; /* a step; NEVER: when nobody can run */
    bool done, commit;
    uint32_t bar;
    product product;
} job;

typedef struct store {
    const gpu_warp *warp;
    region to;
    float v[MOST_LOADED][GPU_LANES];
} store;

struct gpu_tensor_memory {
    float words[COLUMNS][LANES];
    cell cells[COLUMNS][PARTS];
    region taken[COLUMNS / UNIT];
    int taken_count;
    bool relinquished;
    job *jobs;
    int job_count, job_room;
    store *stores;
    int store_count, store_room;
    uint64_t first_due;
};

#define NEVER UINT64_MAX

static uint64_t events;

void gpu_tensor_begin(gpu_block *b)
{
    gpu_tensor_memory *t = b->tensor;
    if (!t)
        return;
    t->taken_count = t->job_count = t->store_count = 0;
    t->relinquished = false;
    t->first_due = NEVER;
}

/* --- Regions --- */

static bool overlap(region x, region y)
{
    return x.parts & y.parts && x.first < y.first + y.count && y.first < x.first + x.count;
}

/* The block's memory; a fault if it does not have these columns. */
static gpu_tensor_memory *memory_with(const char *what, region r)
{
    gpu_tensor_memory *t = gpu.lane->warp->block->tensor;
    for (int i = 0; t && i < t->taken_count; i++)
        if (r.first >= t->taken[i].first &&
            r.first + r.count <= t->taken[i].first + t->taken[i].count)
            return t;
    gpu_fault("%s of columns %u to %u of tensor memory, which are not taken", what, r.first,
              r.first + r.count - 1);
}

static region columns_of(uint32_t address, uint32_t count, uint32_t parts)
{
    return (region){address & 0xffff, count, parts};
}

/* --- Order --- */

static uint64_t fence_of(const gpu_warp *w, bool after)
{
    uint64_t last = 0;
    for (int i = 0; i < GPU_LANES; i++) {
        const uint64_t one = after ? w->lanes[i].tensor_after : w->lanes[i].tensor_before;
        last = one > last ? one : last;
    }
    return last;
}

/* Faults if a use by `self`, whose last fence::after was at `after`, need not follow u. */
static void use_check(const char *what, const use *u, const gpu_warp *self, uint64_t after,
                      uint32_t column)
{
    if (!u->when || u->warp == self)
        return;
    if (u->warp && fence_of(u->warp, false) < u->when)
        gpu_fault("%s of column %u without tcgen05.fence::before_thread_sync by the warp that used "
                  "it",
                  what, column);
    if (after < u->when)
        gpu_fault("%s of column %u without tcgen05.fence::after_thread_sync since it was used",
                  what, column);
}

static void region_check(const char *what, const gpu_tensor_memory *t, region r,
                         const gpu_warp *self, uint64_t after, bool writes)
{
    for (uint32_t column = r.first; column < r.first + r.count; column++)
        for (int part = 0; part < PARTS; part++)
            if (r.parts >> part & 1) {
                const cell *c = &t->cells[column][part];
                use_check(what, &c->write, self, after, column);
                if (writes)
                    use_check(what, &c->read, self, after, column);
            }
}

static void region_use(gpu_tensor_memory *t, region r, use u, bool writes)
{
    for (uint32_t column = r.first; column < r.first + r.count; column++)
        for (int part = 0; part < PARTS; part++)
            if (r.parts >> part & 1) {
                cell *c = &t->cells[column][part];
                *(writes ? &c->write : &c->read) = u;
            }
}

static void stores_check(const char *what, const gpu_tensor_memory *t, region r)
{
    for (int i = 0; i < t->store_count; i++)
        if (overlap(t->stores[i].to, r))
            gpu_fault("%s of columns that a tcgen05.st under way writes", what);
}

/* An access by a warp, beside products under way. */
static void jobs_check(const char *what, const gpu_tensor_memory *t, region r, bool writes)
{
    for (int i = 0; i < t->job_count; i++) {
        const job *j = &t->jobs[i];
        if (j->commit || j->done)
            continue;
        if (overlap(j->product.d, r))
            gpu_fault("%s of columns that a tcgen05.mma under way writes", what);
        if (writes && overlap(j->product.a_from, r))
            gpu_fault("%s of columns that a tcgen05.mma under way reads", what);
    }
}

void gpu_tensor_fence(bool after)
{
    *(after ? &gpu.lane->tensor_after : &gpu.lane->tensor_before) = ++events;
}

/* --- Columns that a block takes and gives back --- */

typedef struct warp_slot {
    uint32_t address, count;
    uint32_t *v;
} warp_slot;

/* True in one lane, when all are there with the same address and count. */
static bool warp_gather(const char *what, warp_slot *mine)
{
    if (!gpu_gather(what, ~0u, mine))
        return false;
    void **slots = gpu_slots();
    for (int i = 0; i < GPU_LANES; i++) {
        const warp_slot *s = slots[i];
        if (s->address != mine->address || s->count != mine->count)
            gpu_fault("lanes of a warp differ in the address or size of a %s", what);
    }
    return true;
}

static bool size_right(uint32_t columns)
{
    return columns >= UNIT && columns <= COLUMNS && !(columns & (columns - 1));
}

static gpu_tensor_memory *memory_of(gpu_block *b)
{
    if (!b->tensor) {
        b->tensor = calloc(1, sizeof *b->tensor);
        gpu_tensor_begin(b);
    }
    return b->tensor;
}

/* The first is anywhere, since nothing says that it is at column 0. */
static uint32_t place_find(const gpu_tensor_memory *t, uint32_t columns)
{
    const uint32_t places = COLUMNS / columns, start = t->taken_count ? 0 : gpu_random(places);
    for (uint32_t i = 0; i < places; i++) {
        const region r = {(start + i) % places * columns, columns, 1};
        bool is_free = true;
        for (int j = 0; j < t->taken_count; j++)
            is_free = is_free && !overlap(r, t->taken[j]);
        if (is_free)
            return r.first;
    }
    gpu_fault("tcgen05.alloc of %u columns: the block waits for itself", columns);
}

void gpu_columns_take(uint32_t to, uint32_t columns)
{
    warp_slot slot = {to, columns, NULL};
    if (!warp_gather("tcgen05.alloc", &slot))
        return;
    gpu_tensor_memory *t = memory_of(gpu.lane->warp->block);
    if (!size_right(columns))
        gpu_fault("tcgen05.alloc of %u columns", columns);
    if (t->relinquished)
        gpu_fault("tcgen05.alloc after tcgen05.relinquish_alloc_permit");
    const region r = {place_find(t, columns), columns, ~0u};
    t->taken[t->taken_count++] = r;
    memset(t->words[r.first], 0xff, columns * sizeof t->words[0]); /* NaN */
    memset(t->cells[r.first], 0, columns * sizeof t->cells[0]);
    memcpy(gpu_shared(to, 4, 4), &r.first, 4);
    gpu_release();
}

void gpu_columns_relinquish(void)
{
    if (!gpu_gather("tcgen05.relinquish_alloc_permit", ~0u, NULL))
        return;
    memory_of(gpu.lane->warp->block)->relinquished = true;
    gpu_release();
}

void gpu_columns_give(uint32_t address, uint32_t columns)
{
    static const char what[] = "tcgen05.dealloc";
    warp_slot slot = {address, columns, NULL};
    if (!warp_gather(what, &slot))
        return;
    gpu_tensor_memory *t = memory_of(gpu.lane->warp->block);
    int i = 0;
    while (i < t->taken_count && (t->taken[i].first != address || t->taken[i].count != columns))
        i++;
    if (i == t->taken_count)
        gpu_fault("%s of what was not taken: %u columns at 0x%x", what, columns, address);
    jobs_check(what, t, t->taken[i], true);
    stores_check(what, t, t->taken[i]);
    t->taken[i] = t->taken[--t->taken_count];
    gpu_release();
}

/* --- Loads and stores --- */

/* The warp's lanes of these columns. */
static region warp_region(const char *what, const gpu_warp *w, const warp_slot *s)
{
    const uint32_t lane = w->lanes->number % LANES;
    if (s->address >> 16 != lane)
        gpu_fault("%s at lane %u by a warp that reaches lanes %u to %u", what, s->address >> 16,
                  lane, lane + GPU_LANES - 1);
    return columns_of(s->address, s->count, 3u << lane / PART);
}

void gpu_columns_load(uint32_t address, uint32_t *v, int count)
{
    static const char what[] = "tcgen05.ld";
    warp_slot slot = {address, (uint32_t)count, v};
    if (!warp_gather(what, &slot))
        return;
    const gpu_warp *w = gpu.lane->warp;
    const region r = warp_region(what, w, &slot);
    gpu_tensor_memory *t = memory_with(what, r);
    jobs_check(what, t, r, false);
    stores_check(what, t, r);
    region_check(what, t, r, w, fence_of(w, true), false);
    void **slots = gpu_slots();
    for (uint32_t i = 0; i < r.count; i++)
        for (uint32_t lane = 0; lane < GPU_LANES; lane++)
            memcpy(((const warp_slot *)slots[lane])->v + i,
                   &t->words[r.first + i][(address >> 16) + lane], 4);
    region_use(t, r, (use){.when = ++events, .warp = w}, false);
    gpu_release();
}

static store *store_new(gpu_tensor_memory *t)
{
    if (t->store_count == t->store_room) {
        t->store_room = t->store_room ? 2 * t->store_room : 8;
        t->stores = realloc(t->stores, (size_t)t->store_room * sizeof *t->stores);
    }
    return &t->stores[t->store_count++];
}

void gpu_columns_store(uint32_t address, const uint32_t *v, int count)
{
    static const char what[] = "tcgen05.st";
    uint32_t copy[MOST_LOADED];
    warp_slot slot = {address, (uint32_t)count, copy};
    memcpy(copy, v, (size_t)count * sizeof *v);
    if (!warp_gather(what, &slot))
        return;
    const gpu_warp *w = gpu.lane->warp;
    const region r = warp_region(what, w, &slot);
    gpu_tensor_memory *t = memory_with(what, r);
    jobs_check(what, t, r, true);
    stores_check(what, t, r);
    region_check(what, t, r, w, fence_of(w, true), true);
    store *s = store_new(t);
    s->warp = w;
    s->to = r;
    void **slots = gpu_slots();
    for (uint32_t i = 0; i < r.count; i++)
        for (uint32_t lane = 0; lane < GPU_LANES; lane++)
            memcpy(&s->v[i][lane], ((const warp_slot *)slots[lane])->v + i, 4);
    gpu_release();
}

void gpu_columns_store_wait(void)
{
    if (!gpu_gather("tcgen05.wait::st", ~0u, NULL))
        return;
    const gpu_warp *w = gpu.lane->warp;
    gpu_tensor_memory *t = w->block->tensor;
    int left = 0;
    for (int i = 0; t && i < t->store_count; i++) {
        const store *s = &t->stores[i];
        if (s->warp != w) {
            t->stores[left++] = *s;
            continue;
        }
        for (uint32_t j = 0; j < s->to.count; j++)
            memcpy(&t->words[s->to.first + j][w->lanes->number % LANES], s->v[j], sizeof s->v[j]);
        region_use(t, s->to, (use){.when = ++events, .warp = w}, true);
    }
    if (t)
        t->store_count = left;
    gpu_release();
}

/* --- What words say of a product --- */

static uint32_t bits(uint64_t word, int first, int last)
{
    return (uint32_t)(word >> first & ((UINT64_C(2) << (last - first)) - 1));
}

/* The fixed values of a descriptor, and how it says that an operand lies. */
static gpu_operand operand_of(uint64_t word, gpu_type type, bool trans)
{
    static const uint32_t widths[] = {[0] = 16, [2] = 128, [4] = 64, [6] = 32};
    const uint32_t swizzle = bits(word, 61, 63);
    if (bits(word, 14, 15) || bits(word, 30, 31) || bits(word, 46, 48) != 1 || bits(word, 52, 60))
        gpu_fault("tcgen05.mma: reserved bits of the descriptor 0x%llx", (unsigned long long)word);
    if (bits(word, 49, 51))
        gpu_fault("tcgen05.mma: a descriptor with a base offset");
    if (swizzle % 2) /* 1 is for 32-bit numbers that are not K-major */
        gpu_fault("tcgen05.mma: swizzle %u of 16-bit numbers", swizzle);
    return gpu_operand_form(type, trans, bits(word, 0, 13) << 4, bits(word, 16, 29) << 4,
                            bits(word, 32, 45) << 4, widths[swizzle]);
}

static gpu_type type_of(uint32_t number)
{
    if (number > 1)
        gpu_fault("tcgen05.mma: type %u of kind::f16", number);
    return number ? GPU_BF16 : GPU_F16;
}

/* Types and shape, by the instruction descriptor. */
static void kind_read(product *p, uint32_t kind)
{
    if (bits(kind, 0, 3) || bits(kind, 6, 6) || bits(kind, 23, 23) || bits(kind, 29, 31))
        gpu_fault("tcgen05.mma: reserved bits of the instruction descriptor 0x%x", kind);
    if (bits(kind, 4, 5) != 1 || bits(kind, 13, 14) || bits(kind, 7, 9) != bits(kind, 10, 12))
        gpu_fault("tcgen05.mma of kind 0x%x: f16 sums, negation and mixed types are not emulated",
                  kind);
    p->type = type_of(bits(kind, 7, 9));
    p->n = (int)bits(kind, 17, 22) * 8;
    p->m = (int)bits(kind, 24, 28) * 16;
    if ((p->m != 64 && p->m != 128) || !p->n || p->n > 256 || p->n % (p->m / 8))
        gpu_fault("tcgen05.mma of %d x %d", p->m, p->n);
}

static product product_of(const gpu_tensor_op *op)
{
    const bool a_trans = bits(op->kind, 15, 15), b_trans = bits(op->kind, 16, 16);
    product p = {.a_in_memory = op->a_in_memory,
                 .accumulate = op->accumulate,
                 .lane = op->d >> 16,
                 .sums = (uint64_t)(op->kind & 0x1f7e0000) << 32 | op->d};
    kind_read(&p, op->kind);
    if (p.lane && (p.m == 128 || p.lane != PART))
        gpu_fault("tcgen05.mma of %d rows at lane %u", p.m, p.lane);
    /* 64 rows take half of the lanes of each warp. */
    const uint32_t parts = p.m == 128 ? 0xff : p.lane ? 0xaa : 0x55;
    p.d = columns_of(op->d, (uint32_t)p.n, parts);
    p.b = operand_of(op->b, p.type, b_trans);
    if (!op->a_in_memory) {
        p.a = operand_of(op->a, p.type, a_trans);
        return p;
    }
    if (a_trans)
        gpu_fault("tcgen05.mma: an M-major operand in tensor memory");
    if (op->a >> 16 != p.lane)
        gpu_fault("tcgen05.mma: operands at lanes %u and %u", (unsigned)(op->a >> 16), p.lane);
    p.a_from = columns_of((uint32_t)op->a, A_COLUMNS, parts);
    return p;
}

/* --- Products --- */

/* Only products of one thread to one accumulator, and what an earlier one reads, are in order. */
static void product_check(const gpu_tensor_memory *t, const product *p)
{
    static const char what[] = "tcgen05.mma";
    const gpu_lane *l = gpu.lane;
    if (overlap(p->a_from, p->d))
        gpu_fault("%s that writes what it reads", what);
    for (int i = 0; i < t->job_count; i++) {
        const job *j = &t->jobs[i];
        if (j->commit || j->done)
            continue;
        if (overlap(j->product.d, p->d) && (j->lane != l || j->product.sums != p->sums))
            gpu_fault("%s of column %u beside one under way of other shape, place or thread", what,
                      p->d.first);
        if (overlap(j->product.d, p->a_from))
            gpu_fault("%s of column %u, which one under way writes", what, p->a_from.first);
        if (overlap(j->product.a_from, p->d) && j->lane != l)
            gpu_fault("%s of column %u, which one of another thread reads", what, p->d.first);
    }
    stores_check(what, t, p->d);
    stores_check(what, t, p->a_from);
}

/* The same for products that are done, which nobody need have waited for. */
static void product_order_check(const gpu_tensor_memory *t, const product *p)
{
    static const char what[] = "tcgen05.mma";
    const gpu_lane *l = gpu.lane;
    region_check(what, t, p->a_from, l->warp, l->tensor_after, false);
    for (uint32_t column = p->d.first; column < p->d.first + p->d.count; column++)
        for (int part = 0; part < PARTS; part++) {
            const cell *c = &t->cells[column][part];
            if (!(p->d.parts >> part & 1))
                continue;
            if (c->write.lane != l || c->write.sums != p->sums)
                use_check(what, &c->write, l->warp, l->tensor_after, column);
            if (c->read.lane != l)
                use_check(what, &c->read, l->warp, l->tensor_after, column);
        }
}

static void product_do(gpu_block *b, const job *j)
{
    const product *p = &j->product;
    gpu_tensor_memory *t = b->tensor;
    float a[STEP * GPU_ROWS], second[256 * STEP];
    gpu_operand_load(second, &p->b, b->rank, 0, p->n, false);
    for (int row = 0; row < p->m; row += GPU_ROWS) {
        const uint32_t lane = p->lane + (uint32_t)(p->m == 128 ? row : 2 * row);
        if (!p->a_in_memory)
            gpu_operand_load(a, &p->a, b->rank, row, GPU_ROWS, true);
        for (uint32_t k = 0; p->a_in_memory && k < STEP; k++)
            for (uint32_t i = 0; i < GPU_ROWS; i++) {
                uint32_t word;
                memcpy(&word, &t->words[p->a_from.first + k / 2][lane + i], sizeof word);
                a[k * GPU_ROWS + i] = gpu_element(p->type, word, (int)(k % 2));
            }
        for (int n = 0; n < p->n && !p->accumulate; n++)
            memset(&t->words[p->d.first + (uint32_t)n][lane], 0, GPU_ROWS * sizeof(float));
        gpu_multiply_rows(&t->words[p->d.first][lane], LANES, a, second, p->n, STEP);
    }
    const use u = {.when = ++events, .lane = j->lane, .sums = p->sums};
    region_use(t, p->d, u, true);
    region_use(t, p->a_from, u, false);
}

/* Whether a job comes before a later one of the list. */
static bool job_before(const job *j, const job *later)
{
    if (later->commit)
        return j->lane == later->lane;
    return !j->commit && (overlap(j->product.d, later->product.d) ||
                          overlap(j->product.a_from, later->product.d));
}

/* With all that comes before it. */
static void job_do(gpu_block *b, int which)
{
    job *one = &b->tensor->jobs[which];
    for (int i = 0; i < which; i++)
        if (!b->tensor->jobs[i].done && job_before(&b->tensor->jobs[i], one))
            job_do(b, i);
    one->done = true;
    if (one->commit)
        gpu_mbar_arrive_at(b, one->bar);
    else
        product_do(b, one);
}

/* Forgets the jobs that are done. */
static void jobs_close(gpu_tensor_memory *t)
{
    int left = 0;
    t->first_due = NEVER;
    for (int i = 0; i < t->job_count; i++) {
        if (t->jobs[i].done)
            continue;
        if (t->jobs[i].due < t->first_due)
            t->first_due = t->jobs[i].due;
        if (left != i)
            t->jobs[left] = t->jobs[i];
        left++;
    }
    t->job_count = left;
}

static void jobs_due(gpu_block *b)
{
    gpu_tensor_memory *t = b->tensor;
    for (int i = 0; i < t->job_count; i++)
        if (!t->jobs[i].done && t->jobs[i].due <= gpu.step)
            job_do(b, i);
    jobs_close(t);
}

bool gpu_tensor_advance(bool idle)
{
    for (uint32_t i = 0; i < gpu.cluster; i++) {
        gpu_block *b = &gpu.blocks[i];
        gpu_tensor_memory *t = b->tensor;
        if (!t || !t->job_count)
            continue;
        if (idle) {
            job_do(b, (int)gpu_random((uint32_t)t->job_count));
            jobs_close(t);
            return true;
        }
        if (t->first_due <= gpu.step)
            jobs_due(b);
    }
    return false;
}

/* When a job is done at the latest: at once, some steps later, or when nobody else can go on. The
 * products up to a commit share one such time. */
static uint64_t due_of(const gpu_tensor_memory *t, const job *j)
{
    const job *last = t->job_count ? &t->jobs[t->job_count - 1] : NULL;
    const uint32_t when = gpu_random(8);
    if (last && !last->commit && !j->commit && last->lane == j->lane)
        return last->due;
    return when == 0 ? gpu.step : when < 4 ? gpu.step + 1 + gpu_random(64) : NEVER;
}

static void job_put(gpu_tensor_memory *t, job *j)
{
    j->lane = gpu.lane;
    j->due = due_of(t, j);
    if (t->job_count == t->job_room) {
        t->job_room = t->job_room ? 2 * t->job_room : 64;
        t->jobs = realloc(t->jobs, (size_t)t->job_room * sizeof *t->jobs);
    }
    t->jobs[t->job_count++] = *j;
    if (j->due < t->first_due)
        t->first_due = j->due;
    if (j->due <= gpu.step)
        jobs_due(gpu.lane->warp->block);
}

void gpu_tensor_multiply(const gpu_tensor_op *op)
{
    static const char what[] = "tcgen05.mma";
    job j = {.product = product_of(op)};
    gpu_tensor_memory *t = memory_with(what, j.product.d);
    if (op->a_in_memory)
        memory_with(what, j.product.a_from);
    product_check(t, &j.product);
    product_order_check(t, &j.product);
    job_put(t, &j);
}

void gpu_tensor_commit(uint32_t bar)
{
    job j = {.commit = true, .bar = bar};
    job_put(memory_of(gpu.lane->warp->block), &j);
}

/* --- The end of a block --- */

void gpu_tensor_check(const gpu_lane *l)
{
    const gpu_tensor_memory *t = l->warp->block->tensor;
    if (!t)
        return;
    for (int i = 0; i < t->store_count; i++)
        if (t->stores[i].warp == l->warp)
            gpu_fault("returns while a tcgen05.st is under way");
    if (l->warp->block->live > 1)
        return;
    if (t->taken_count)
        gpu_fault("the block returns without tcgen05.dealloc");
    if (t->job_count)
        gpu_fault("the block returns while %d tcgen05.mma or their commits are under way",
                  t->job_count);
}
