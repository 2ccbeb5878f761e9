/* The host side of fused attention by wgmma: lists of units, and who has which tiles. */
#include <float.h>
#include <math.h>
#include <string.h>

#include <backends/cuda/cuda.h>
#include <backends/cuda/sm90a/attention.h>
#include <backends/cuda/tensor_map.h>
#include <common/checked.h>

CUDA_FUNCTIONS(sm90a_attention)

/* --- Forms --- */

typedef struct form {
    int32_t width, groups, rings;
    bool bf16;
    size_t shared_bytes;
    const char *name;
    const void *function;
} form;

/* The address of the symbol that the compiler makes for a kernel stands for it. */
#define FORM_EXTERN(suffix, ...)                                                                   \
    extern const char cuda_attention_bf16_##suffix[], cuda_attention_f16_##suffix[];
ATTENTION_FORMS(FORM_EXTERN)
#undef FORM_EXTERN
#define FORM_ROW(is_bf16, symbol, width, groups, rings, slots, buffers)                            \
    {                                                                                              \
        width,                                                                                     \
        groups,                                                                                    \
        rings,                                                                                     \
        is_bf16,                                                                                   \
        ATTENTION_SHARED_BYTES(width, groups, rings, slots, buffers),                              \
        #symbol,                                                                                   \
        symbol},
#define FORM_ROWS(suffix, ...)                                                                     \
    FORM_ROW(true, cuda_attention_bf16_##suffix, __VA_ARGS__)                                      \
    FORM_ROW(false, cuda_attention_f16_##suffix, __VA_ARGS__)
static const form forms[] = {ATTENTION_FORMS(FORM_ROWS)};
#undef FORM_ROWS
#undef FORM_ROW

/* Warpgroups share keys and values where blocks have rows for all of them. */
static bool can_share(const form *f, const bsk_layout_tables *t)
{
    return f->rings < f->groups && t->block_rows % (f->groups / f->rings * ATTENTION_UNIT) == 0;
}

/* The narrowest that holds a head, shared if it can be. */
static const form *form_of(const bsk_problem *problem)
{
    const bsk_attention_params *p = problem->params;
    const int64_t width = p->q.dims[3] > p->v.dims[3] ? p->q.dims[3] : p->v.dims[3];
    const form *best = NULL;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const form *f = &forms[i];
        const bool shares = f->rings < f->groups;
        if (f->bf16 != (problem->dtype == BSK_BF16) || f->width < width ||
            (shares && !can_share(f, problem->layout)) || (best && f->width > best->width))
            continue;
        best = f;
    }
    return best;
}

/* --- Accepting --- */

/* One of q, k and v as the copy engine sees it: a unit of 64 times, 64 features at a time. */
static bski_cuda_tensor tensor_of(const bsk_tensor *t)
{
    return (bski_cuda_tensor){
        .dtype = t->dtype,
        .rank = 4,
        .dims = {t->dims[3], t->dims[2], t->dims[1], t->dims[0]},
        .strides = {1, t->strides[2], t->strides[1], t->strides[0]},
        .box = {64, ATTENTION_UNIT, 1, 1},
        .swizzle = 128,
    };
}

static bool is_given(const bsk_tensor *t)
{
    return t->dtype != BSK_NONE;
}

/* Stores have 8 bytes. */
static bool out_fits(const bsk_tensor *o)
{
    const int64_t run = o->dtype == BSK_F32 ? 2 : 4;
    for (int axis = 0; axis < 3; axis++)
        if (o->dims[axis] > 1 && o->strides[axis] % run)
            return false;
    return true;
}

/* Tiles of 64 rows of all heads, at most. */
static bool count_rows(const bsk_problem *problem, int64_t *tiles)
{
    const bsk_attention_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    return bski_mul_i64(t->grid_rows, bski_ceil_div(t->block_rows, ATTENTION_UNIT), tiles) &&
           bski_mul_i64(*tiles, p->q.dims[0], tiles) && bski_mul_i64(*tiles, p->q.dims[1], tiles) &&
           *tiles <= INT32_MAX;
}

bsk_reason cuda_sm90a_attention_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    enum { TIMES = 1 << 29 }; /* so that distances have 32 bits */
    const bsk_attention_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bski_cuda_tensor q = tensor_of(&p->q), k = tensor_of(&p->k), v = tensor_of(&p->v);
    int64_t tiles, units;
    (void)props; /* every device of the generation has the shared memory */
    if (p->interleave != 1 || p->dropout || p->softcap != 0 || is_given(&p->bias) ||
        is_given(&p->slopes) || is_given(&p->prefix) || is_given(&p->k_segment))
        return BSK_REFUSE_OPTION;
    if (p->o.dtype != BSK_BF16 && p->o.dtype != BSK_F16 && p->o.dtype != BSK_F32)
        return BSK_REFUSE_DTYPE;
    if (!form_of(problem) || p->q.dims[3] < 1 || p->v.dims[3] < 1 || p->v.dims[3] % 8 ||
        p->k.dims[2] < 1)
        return BSK_REFUSE_SHAPE;
    if (p->q.dims[0] == 0 || p->q.dims[1] == 0 || p->q.dims[2] == 0)
        return BSK_ACCEPT;
    if (!bski_cuda_tensor_fits(&q) || !bski_cuda_tensor_fits(&k) || !bski_cuda_tensor_fits(&v) ||
        !out_fits(&p->o))
        return BSK_REFUSE_STRIDE;
    return t->rows < TIMES && t->cols < TIMES && count_rows(problem, &tiles) &&
                   bski_mul_i64(t->nnz, t->block_cols / ATTENTION_UNIT, &units) &&
                   units <= INT32_MAX
               ? BSK_ACCEPT
               : BSK_REFUSE_LIMIT;
}

/* --- The model --- */

/* Of one multiprocessor of an H200: as measured for long lists. */
double cuda_sm90a_attention_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    static const double product_rate = 4.5e12, launch_seconds = 6e-6, tile_seconds = 1.5e-6;
    const bsk_attention_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const double heads = (double)p->q.dims[0] * (double)p->q.dims[1];
    const double pairs =
        heads / t->heads * (double)t->nnz * (double)t->block_rows * (double)t->block_cols;
    const form *f = form_of(problem);
    const double tiles =
        heads * (double)t->rows / ATTENTION_UNIT / (f->groups * (double)props->compute_units);
    return launch_seconds + 4 * pairs * f->width / (product_rate * props->compute_units) +
           ceil(tiles) * tile_seconds;
}

/* --- Plans --- */

typedef struct state {
    const bsk_host *host;
    bski_cuda_encoder encoder;
    bski_cuda_tensor q, k, v;
    const form *form;
    int32_t blocks;                   /* of threads */
    bsk_mem units, tiles, tile_start; /* device */
    attention_arg arg;
} state;

/* A ring's load so far. Of equals the one whose turn it is comes first. */
typedef struct load {
    double steps;
    int32_t turn;
} load;

typedef struct builder {
    simt_device *device;
    const bsk_host *host;
    const bsk_attention_params *p;
    const bsk_layout_tables *t;
    state *out;
    /* host memory while a plan is made */
    attention_unit *units;
    attention_tile *tiles, *sorted; /* [tiles] of all rings; by ring */
    int32_t *steps;                 /* [layout heads][row tiles] of a tile without lengths */
    int32_t *ring;                  /* [tiles] */
    int32_t *start;                 /* [rings + 1] */
    int32_t *order;                 /* [row tiles of a group of heads] */
    int32_t *places;                /* [most steps + 2] */
    load *heap;                     /* [rings], the least loaded first */
    int32_t row_tiles, rows, rings, most;
    int64_t tile_count;
} builder;

static bsk_status host_array(const builder *b, void *array, int64_t count, size_t size)
{
    size_t bytes;
    void *memory = NULL;
    if (count >= 0 && bski_mul_size((size_t)count, size, &bytes))
        memory = b->host->allocator.resize(b->host->allocator.user, NULL, bytes ? bytes : 1);
    memcpy(array, &memory, sizeof memory);
    if (!memory)
        return b->host->fail(b->host->context, BSK_E_NOMEM, "attention: no memory for a schedule");
    memset(memory, 0, bytes);
    return BSK_OK;
}

static void scratch_free(builder *b)
{
    void *all[] = {b->units, b->tiles, b->sorted, b->steps, b->ring,
                   b->start, b->order, b->places, b->heap};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i])
            b->host->allocator.resize(b->host->allocator.user, all[i], 0);
}

/* The lists of the layout in units: entry e of those by row has units e * n .. e * n + n - 1. */
static void list_units(builder *b)
{
    const bsk_layout_tables *t = b->t;
    const int32_t n = t->block_cols / ATTENTION_UNIT;
    for (int64_t e = 0; e < t->nnz; e++)
        for (int32_t i = 0; i < n; i++)
            b->units[e * n + i] = (attention_unit){
                t->row_col[e] * t->block_cols + i * ATTENTION_UNIT, t->row_slot[e]};
}

/* The list of row tile i of a layout's head. */
static void list_of(const builder *b, int32_t head, int32_t i, int64_t *first, int64_t *end)
{
    const bsk_layout_tables *t = b->t;
    const int32_t n = t->block_cols / ATTENTION_UNIT;
    const int64_t line = (int64_t)head * (t->grid_rows + 1) + (int64_t)i * b->rows / t->block_rows;
    *first = t->row_start[line] * n;
    *end = t->row_start[line + 1] * n;
}

/* Steps of a tile whose member has all times. */
static int32_t count_steps(const builder *b, int32_t head, int32_t i)
{
    const attention_arg *a = &b->out->arg;
    const int64_t row = (int64_t)i * b->rows, shift = a->align_end ? a->k_time - a->q_time : 0;
    const int64_t row_end = row + b->rows < a->q_time ? row + b->rows - 1 : a->q_time - 1;
    int64_t first, end;
    int32_t units = 0;
    list_of(b, head, i, &first, &end);
    for (int64_t u = first; u < end; u++) {
        const int64_t near = row + shift - b->units[u].key - ATTENTION_UNIT + 1;
        const int64_t far = row_end + shift - b->units[u].key;
        units += b->units[u].key < a->k_time && (!a->causal || far >= 0) &&
                 (!a->window || (near < a->window && -far < a->window));
    }
    return units > 0 ? (units + 1) / 2 : 1;
}

/* The ring whose turn it is: first one of each thread block, then the next of each. */
static int32_t ring_of(const builder *b, int32_t turn)
{
    return turn % b->out->blocks * b->out->form->rings + turn / b->out->blocks;
}

static bool is_before(const load *x, const load *y)
{
    return x->steps < y->steps || (x->steps <= y->steps && x->turn < y->turn);
}

/* Puts the first ring of a heap, whose load has grown, where it belongs. */
static void sift(load *heap, int32_t count)
{
    const load mine = heap[0];
    int32_t at = 0;
    for (int32_t next = 1; next < count; next = 2 * at + 1) {
        if (next + 1 < count && is_before(&heap[next + 1], &heap[next]))
            next++;
        if (is_before(&mine, &heap[next]))
            break;
        heap[at] = heap[next];
        at = next;
    }
    heap[at] = mine;
}

/* Hands out the tiles of heads first .. last - 1, the longest first, each to the ring that has
 * least to do. */
static void assign(builder *b, int32_t first, int32_t last)
{
    static const double tile_steps = 0.5; /* what a tile costs beside its steps */
    const int32_t heads = (int32_t)b->p->q.dims[1], per_head = heads / b->t->heads;
    const int32_t count = (last - first) * b->row_tiles;
    memset(b->places, 0, (size_t)(b->most + 2) * sizeof *b->places);
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < count; i++) {
            const int32_t head = (first + i / b->row_tiles) % heads / per_head;
            const int32_t less = b->most - b->steps[head * b->row_tiles + i % b->row_tiles];
            if (pass)
                b->order[b->places[less]++] = i;
            else
                b->places[less + 1]++;
        }
        for (int32_t i = 0; !pass && i <= b->most; i++)
            b->places[i + 1] += b->places[i];
    }
    for (int32_t n = 0; n < count; n++) {
        const int32_t head = first + b->order[n] / b->row_tiles, i = b->order[n] % b->row_tiles;
        const int32_t of = head % heads / per_head;
        int64_t begin, end;
        list_of(b, of, i, &begin, &end);
        b->tiles[b->tile_count] =
            (attention_tile){head, i * b->rows, (int32_t)begin, (int32_t)(end - begin)};
        const int32_t ring = ring_of(b, b->heap[0].turn);
        b->ring[b->tile_count++] = ring;
        b->start[ring + 1]++;
        b->heap[0].steps += b->steps[of * b->row_tiles + i] + tile_steps;
        sift(b->heap, b->rings);
    }
}

/* Heads by groups, so that the keys and values that are in use at a time fit into the L2 cache. */
static int32_t heads_at_once(const builder *b)
{
    enum { AT_ONCE = 4 };
    const int32_t group = (int32_t)(b->p->q.dims[1] / b->p->k.dims[1]);
    return group > AT_ONCE ? group : AT_ONCE;
}

static bsk_status build_schedule(builder *b)
{
    const int32_t heads = (int32_t)(b->p->q.dims[0] * b->p->q.dims[1]), layout_heads = b->t->heads;
    const int64_t tiles = (int64_t)heads * b->row_tiles; /* fits: accepted */
    int32_t group = heads_at_once(b);
    group = group < heads ? group : heads;
    b->out->blocks =
        tiles < b->device->props.compute_units ? (int32_t)tiles : b->device->props.compute_units;
    b->rings = b->out->blocks * b->out->form->rings;
    TRY(host_array(b, &b->tiles, tiles, sizeof *b->tiles));
    TRY(host_array(b, &b->sorted, tiles, sizeof *b->sorted));
    TRY(host_array(b, &b->ring, tiles, sizeof *b->ring));
    TRY(host_array(b, &b->start, (int64_t)b->rings + 1, sizeof *b->start));
    TRY(host_array(b, &b->heap, b->rings, sizeof *b->heap));
    TRY(host_array(b, &b->order, (int64_t)group * b->row_tiles, sizeof *b->order));
    TRY(host_array(b, &b->steps, (int64_t)layout_heads * b->row_tiles, sizeof *b->steps));
    for (int32_t head = 0; head < layout_heads; head++)
        for (int32_t i = 0; i < b->row_tiles; i++) {
            const int32_t steps = count_steps(b, head, i);
            b->steps[head * b->row_tiles + i] = steps;
            b->most = steps > b->most ? steps : b->most;
        }
    TRY(host_array(b, &b->places, (int64_t)b->most + 2, sizeof *b->places));
    for (int32_t i = 0; i < b->rings; i++)
        b->heap[i].turn = i;
    for (int32_t head = 0; head < heads; head += group)
        assign(b, head, head + group < heads ? head + group : heads);
    for (int32_t r = 0; r < b->rings; r++)
        b->start[r + 1] += b->start[r];
    /* start serves as the next free place of each ring, and is then one ring ahead. */
    for (int64_t i = 0; i < tiles; i++)
        b->sorted[b->start[b->ring[i]]++] = b->tiles[i];
    memmove(b->start + 1, b->start, (size_t)b->rings * sizeof *b->start);
    b->start[0] = 0;
    return BSK_OK;
}

static bsk_status put(const builder *b, const void *data, int64_t count, size_t size, bsk_mem *mem,
                      void *address)
{
    if (count > 0)
        TRY(b->device->api->table(b->device, data, (size_t)count * size, mem));
    void *at = bsk_mem_address(*mem);
    memcpy(address, &at, sizeof at);
    return BSK_OK;
}

static void fill_arg(builder *b)
{
    const bsk_attention_params *p = b->p;
    const int64_t far = INT64_C(1) << 30; /* no two times are so far apart */
    b->out->arg = (attention_arg){
        .o = {.batch = p->o.strides[0],
              .head = p->o.strides[1],
              .time = p->o.strides[2],
              .type = (int32_t)p->o.dtype,
              .width = (int32_t)p->o.dims[3]},
        .masks = p->bits.dims[0],
        .heads = (int32_t)p->q.dims[1],
        .group = (int32_t)(p->q.dims[1] / p->k.dims[1]),
        .q_time = (int32_t)p->q.dims[2],
        .k_time = (int32_t)p->k.dims[2],
        .block_rows = b->t->block_rows,
        .block_cols = b->t->block_cols,
        .causal = p->causal != 0,
        .align_end = p->align == BSK_ALIGN_END,
        .window = p->window < far ? (int32_t)p->window : 0,
    };
}

static bsk_status build(builder *b, const bsk_problem *problem)
{
    const bsk_attention_params *p = problem->params;
    state *s = b->out;
    s->host = b->host;
    s->form = form_of(problem);
    s->q = tensor_of(&p->q);
    s->k = tensor_of(&p->k);
    s->v = tensor_of(&p->v);
    TRY(bski_cuda_encoder_find(b->host, &s->encoder));
    TRY(bski_cuda_kernel((const bski_cuda_device *)b->device, s->form->function,
                         s->form->shared_bytes, s->form->name));
    if (p->q.dims[0] == 0 || p->q.dims[1] == 0 || p->q.dims[2] == 0)
        return BSK_OK; /* no thread blocks */
    fill_arg(b);
    b->rows = s->form->groups / s->form->rings * ATTENTION_UNIT;
    b->row_tiles = (int32_t)bski_ceil_div(p->q.dims[2], b->rows);
    const int64_t units = b->t->nnz * (b->t->block_cols / ATTENTION_UNIT); /* fits: accepted */
    TRY(host_array(b, &b->units, units, sizeof *b->units));
    list_units(b);
    TRY(build_schedule(b));
    TRY(put(b, b->units, units, sizeof *b->units, &s->units, &s->arg.units));
    TRY(put(b, b->sorted, b->tile_count, sizeof *b->sorted, &s->tiles, &s->arg.tiles));
    return put(b, b->start, (int64_t)b->rings + 1, sizeof *b->start, &s->tile_start,
               &s->arg.tile_start);
}

bsk_status cuda_sm90a_attention_prepare(void *device, bsk_prepared *prepared)
{
    simt_device *d = device;
    builder b = {.device = d,
                 .host = d->host,
                 .p = prepared->problem->params,
                 .t = prepared->problem->layout};
    TRY(host_array(&b, &b.out, 1, sizeof *b.out));
    prepared->state = b.out;
    const bsk_status status = build(&b, prepared->problem);
    scratch_free(&b);
    if (status)
        cuda_sm90a_attention_release(device, prepared);
    return status;
}

void cuda_sm90a_attention_release(void *device, bsk_prepared *prepared)
{
    simt_device *d = device;
    state *s = prepared->state;
    if (!s)
        return;
    bsk_mem *all[] = {&s->units, &s->tiles, &s->tile_start};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->kind != BSK_MEM_NULL)
            d->api->table_free(d, all[i]);
    d->host->allocator.resize(d->host->allocator.user, s, 0);
    prepared->state = NULL;
}

/* --- Running --- */

/* What the products are multiplied with to be powers of two. The kernel masks by an infinity of its
 * sign, so it stays a number other than 0. */
static float scale_of(double scale, int64_t width)
{
    const double log2_e = 1.44269504088896340736;
    const double x = (scale != 0 ? scale : 1 / sqrt((double)width)) * log2_e;
    const double size = fmin(fmax(fabs(x), FLT_MIN), FLT_MAX);
    return (float)copysign(size, x);
}

bsk_status cuda_sm90a_attention_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_attention_params *p = prepared->problem->params;
    const bsk_attention_args *a = args;
    const state *s = prepared->state;
    if (s->blocks == 0)
        return BSK_OK;
    CUtensorMap q, k, v;
    TRY(bski_cuda_tensor_map(s->host, &s->encoder, &s->q, bsk_mem_address(a->q), &q));
    TRY(bski_cuda_tensor_map(s->host, &s->encoder, &s->k, bsk_mem_address(a->k), &k));
    TRY(bski_cuda_tensor_map(s->host, &s->encoder, &s->v, bsk_mem_address(a->v), &v));
    attention_arg arg = s->arg;
    arg.o.data = bsk_mem_address(a->o);
    arg.lse = is_given(&p->lse) ? bsk_mem_address(a->lse) : NULL;
    arg.q_len = is_given(&p->q_len) ? bsk_mem_address(a->q_len) : NULL;
    arg.k_len = is_given(&p->k_len) ? bsk_mem_address(a->k_len) : NULL;
    arg.bits = is_given(&p->bits) ? bsk_mem_address(a->bits) : NULL;
    arg.bits_index = is_given(&p->bits_index) ? bsk_mem_address(a->bits_index) : NULL;
    arg.scale = scale_of(a->scale, p->q.dims[3]);
    void *arguments[] = {&q, &k, &v, &arg};
    const bski_cuda_run run = {.function = s->form->function,
                               .name = s->form->name,
                               .grid = {(unsigned)s->blocks, 1, 1},
                               .threads = ATTENTION_THREADS((unsigned)s->form->groups),
                               .shared_bytes = s->form->shared_bytes,
                               .arguments = arguments};
    return bski_cuda_launch(queue, &run);
}
