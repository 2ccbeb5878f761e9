/* Plans and launches attention_decode for sm80. */
#include <backends/cuda/sm80/host.h>
#include <backends/simt/attention_host.h>

#include <backends/simt/attention_rules.h>

typedef uint16_t u16;
typedef uint8_t u8;
typedef float f32;
#include <backends/cuda/sm80/decode_arg.h>
#include <backends/cuda/sm80/attention_host.h>

/* Keys of an entry where there are no lists, and those that are worth a part; rounds of thread
 * blocks where lists alone nearly fill the device. */
enum { OWN_BLOCK = 64, PART_KEYS = 128, ROUNDS = 4, MAX_D = 256, LANES = 32, STAGES = 2 };

/* A kernel for heads of up to d features, with `warps` that take `step` keys at a time, and thread
 * blocks of which `resident` run on a multiprocessor. */
typedef struct decode_kernel {
    const void *function;
    const char *name;
    bsk_dtype dtype;
    int32_t d, warps, step, resident;
} decode_kernel;

/* Of a type from small heads to large ones. */
#define DECODE_KERNELS(X, type, dtype)                                                             \
    X(sm80_decode_64_##type, dtype, 64, 4, 32, 3)                                                  \
    X(sm80_decode_128_##type, dtype, 128, 4, 16, 3)                                                \
    X(sm80_decode_256_##type, dtype, 256, 2, 16, 3)
#define DECODE_DECLARE(symbol, ...) extern const char symbol[];
#define DECODE_ROW(symbol, ...)     {symbol, #symbol, __VA_ARGS__},
DECODE_KERNELS(DECODE_DECLARE, f16, BSK_F16)
DECODE_KERNELS(DECODE_DECLARE, bf16, BSK_BF16)
extern const char sm80_decode_join[];

static const decode_kernel kernels[] = {DECODE_KERNELS(DECODE_ROW, f16, BSK_F16)
                                            DECODE_KERNELS(DECODE_ROW, bf16, BSK_BF16)};
enum { KERNELS = sizeof kernels / sizeof *kernels };

/* The first that is wide enough; NULL: none. */
static const decode_kernel *kernel_of(const bsk_attention_decode_params *p)
{
    for (int i = 0; i < KERNELS; i++)
        if (kernels[i].dtype == p->q.dtype && kernels[i].d >= p->q.dims[3] &&
            kernels[i].d >= p->v.dims[3])
            return &kernels[i];
    return NULL;
}

/* --- Sizes --- */

/* What the sizes of a problem say, all of 32 bits. */
typedef struct decode_work {
    i64 keys, block, blocks, capacity, q_block, lists, tiles, parts, part_entries;
    i64 rows, grid;
} decode_work;

/* Parts for as many thread blocks as run at a time, `resident`, and no more: another round would
 * not be full. False: a size has more than 32 bits. */
static bool work_of(const bsk_attention_decode_params *p, int64_t resident, decode_work *w)
{
    const bool listed = p->block_index.dtype != BSK_NONE, paged = p->table.dtype != BSK_NONE;
    const i64 q_time = p->q.dims[2], page = p->k.dims[2], kv_heads = p->k.dims[1];
    i64 rows, tasks, all;
    *w = (decode_work){.q_block = p->q_block > 0 && p->q_block < q_time ? p->q_block : q_time};
    if (!bski_mul_i64(page, paged ? p->table.dims[1] : 1, &w->keys) || w->keys >= RULES_TIMES ||
        page >= RULES_TIMES || q_time >= RULES_TIMES || p->k.dims[0] > INT32_MAX ||
        p->q.dims[1] > INT32_MAX)
        return false;
    w->q_block = w->q_block > 0 ? w->q_block : 1;
    /* no entry has keys of several pages */
    w->block =
        listed ? (p->block > 0 ? p->block : page) : (paged && page % OWN_BLOCK ? page : OWN_BLOCK);
    if (listed && w->block > w->keys) /* nothing of a block lies beyond the keys */
        w->block = w->keys;
    w->block = w->block > 0 ? w->block : 1;
    w->blocks = bski_ceil_div(w->keys, w->block);
    w->capacity = listed ? p->block_index.dims[3] : w->blocks;
    w->lists = bski_ceil_div(q_time, w->q_block);
    w->part_entries = bski_ceil_div(PART_KEYS, w->block);
    rows = kv_heads > 0 ? p->q.dims[1] / kv_heads * w->q_block : 0;
    w->tiles = bski_ceil_div(rows, DECODE_ROWS);
    if (!bski_mul_i64(p->q.dims[0], kv_heads, &tasks) || !bski_mul_i64(tasks, w->lists, &tasks) ||
        !bski_mul_i64(tasks, w->tiles, &tasks) || tasks > INT32_MAX || w->capacity > INT32_MAX / 2)
        return false;
    w->parts = tasks > 0 ? resident * (tasks > resident / 2 ? ROUNDS : 1) / tasks : 1;
    all = bski_ceil_div(w->capacity, w->part_entries);
    w->parts = w->parts < all ? w->parts : all;
    w->parts = w->parts < DECODE_PARTS ? w->parts : DECODE_PARTS;
    w->parts = w->parts > 1 ? w->parts : 1;
    return bski_mul_i64(tasks, w->parts, &w->grid) && w->grid <= INT32_MAX &&
           attention_rows(&p->q, &w->rows) && w->rows <= INT32_MAX;
}

static bool plan_work(const bsk_attention_decode_params *p, const bsk_device_props *props,
                      decode_work *w)
{
    return work_of(p, (int64_t)props->compute_units * kernel_of(p)->resident, w);
}

/* The rows' sums, and Q with two stages of K and V for each warp. */
static size_t shared_bytes(const decode_kernel *k)
{
    const int32_t lines = DECODE_ROWS + k->warps * STAGES * 2 * k->step;
    return (size_t)lines * (size_t)k->d * sizeof(uint16_t);
}

/* --- The entry --- */

CUDA_SOLE_FUNCTIONS(sm80_decode)

static bsk_reason accept_input(const bsk_tensor *t)
{
    const int32_t run = 8; /* elements of 16 bytes */
    if (t->dims[3] % run || t->dims[3] > MAX_D)
        return BSK_REFUSE_SHAPE;
    for (int axis = 0; axis < 3; axis++)
        if (t->dims[axis] > 1 && !aligned(t->strides[axis], run))
            return BSK_REFUSE_STRIDE;
    return BSK_ACCEPT;
}

bsk_reason cuda_sm80_decode_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_attention_decode_params *p = problem->params;
    const bsk_tensor *const in[] = {&p->q, &p->k, &p->v};
    decode_work w;
    for (int i = 0; i < 3; i++) {
        const bsk_reason reason = accept_input(in[i]);
        if (reason != BSK_ACCEPT)
            return reason;
    }
    if (p->o.dtype != BSK_F32 && p->o.dtype != BSK_F16 && p->o.dtype != BSK_BF16)
        return BSK_REFUSE_DTYPE;
    for (int axis = 0; axis < 3; axis++)
        if (p->o.dims[axis] > 1 && !aligned(p->o.strides[axis], 2))
            return BSK_REFUSE_STRIDE;
    return plan_work(p, props, &w) ? BSK_ACCEPT : BSK_REFUSE_LIMIT;
}

bsk_status cuda_sm80_decode_prepare(void *device, bsk_prepared *prepared)
{
    const bsk_attention_decode_params *p = prepared->problem->params;
    const simt_device *dev = device;
    const decode_kernel *kernel = kernel_of(p);
    decode_work w;
    i64 numbers = 0;
    plan_work(p, &dev->props, &w); /* as accepted */
    if (w.parts > 1 && (!bski_mul_i64(w.rows, w.parts * (p->v.dims[3] + 2), &numbers) ||
                        !bski_mul_size((size_t)numbers, sizeof(f32), &prepared->workspace_bytes)))
        return dev->host->fail(dev->host->context, BSK_E_NOMEM,
                               "attention_decode: the workspace is too large");
    if (w.parts > 1)
        TRY(bski_cuda_kernel(device, sm80_decode_join, 0, "sm80_decode_join"));
    return bski_cuda_kernel(device, kernel->function, shared_bytes(kernel), kernel->name);
}

static void set_strides(i64 *to, const bsk_tensor *t, int count)
{
    for (int i = 0; i < count; i++)
        to[i] = rules_stride(t, i);
}

static const double log2_e = 1.44269504088896340736;

static decode80_arg arg_of(const bsk_attention_decode_params *p, const bsk_attention_decode_args *a,
                           const decode_work *w)
{
    const double scale = attention_scale(a->scale, p->q.dims[3]);
    decode80_arg arg = {
        .rules = {.scale = bski_simt_num(p->q.dtype, scale),
                  .softcap = bski_simt_num(p->q.dtype, p->softcap),
                  .q_time = (i32)p->q.dims[2],
                  .k_time = (i32)w->keys,
                  .heads = (i32)p->q.dims[1],
                  .interleave = 1,
                  .window = p->window < RULES_TIMES ? (i32)p->window : 0,
                  .causal = p->causal,
                  .align_end = 1},
        .q = heads_of(&p->q),
        .k = heads_of(&p->k),
        .v = heads_of(&p->v),
        .o = heads_of(&p->o),
        .q_data = bsk_mem_address(a->q),
        .k_data = bsk_mem_address(a->k),
        .v_data = bsk_mem_address(a->v),
        .o_data = bsk_mem_address(a->o),
        .lse = (f32 *)address_of(&p->lse, a->lse),
        .partial = w->parts > 1 ? bsk_mem_address(a->workspace) : NULL,
        .q_len = address_of(&p->q_len, a->q_len),
        .k_len = address_of(&p->k_len, a->k_len),
        .table = address_of(&p->table, a->table),
        .index_data = address_of(&p->block_index, a->block_index),
        .count_data = address_of(&p->block_count, a->block_count),
        .slopes = address_of(&p->slopes, a->slopes),
        .scale = (f32)(scale * log2_e),
        .d = (i32)p->q.dims[3],
        .dv = (i32)p->v.dims[3],
        .kv_heads = (i32)p->k.dims[1],
        .group = attention_group(&p->q, &p->k),
        .pages = (i32)p->k.dims[0],
        .page = (i32)p->k.dims[2],
        .columns = p->table.dtype != BSK_NONE ? (i32)p->table.dims[1] : 1,
        .block = (i32)w->block,
        .blocks = (i32)w->blocks,
        .capacity = (i32)w->capacity,
        .q_block = (i32)w->q_block,
        .lists = (i32)w->lists,
        .tiles = (i32)w->tiles,
        .parts = (i32)w->parts,
        .part_entries = (i32)w->part_entries,
    };
    set_strides(arg.index, &p->block_index, 4);
    set_strides(arg.count, &p->block_count, 3);
    return arg;
}

bsk_status cuda_sm80_decode_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_attention_decode_params *p = prepared->problem->params;
    const bski_cuda_queue *q = queue;
    const decode_kernel *kernel = kernel_of(p);
    decode_work w;
    plan_work(p, &q->simt.device->props, &w); /* as accepted */
    decode80_arg arg = arg_of(p, args, &w);
    void *arguments[] = {&arg};
    const bski_cuda_run parts = {.function = kernel->function,
                                 .name = kernel->name,
                                 .grid = {(unsigned)w.grid, 1, 1},
                                 .threads = (unsigned)kernel->warps * LANES,
                                 .shared_bytes = shared_bytes(kernel),
                                 .arguments = arguments};
    const bski_cuda_run join = {.function = sm80_decode_join,
                                .name = "sm80_decode_join",
                                .grid = {(unsigned)w.rows, 1, 1},
                                .threads = DECODE_PARTS,
                                .arguments = arguments,
                                .early = starts_early(queue)};
    TRY(bski_cuda_launch(queue, &parts));
    return w.parts > 1 ? bski_cuda_launch(queue, &join) : BSK_OK;
}

void cuda_sm80_decode_release(void *device, bsk_prepared *prepared)
{
    (void)device;
    (void)prepared;
}
