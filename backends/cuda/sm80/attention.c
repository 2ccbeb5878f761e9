/* Plans and launches attention and its gradient for sm80. */
#include <math.h>

#include <backends/cuda/sm80/host.h>
#include <backends/simt/attention_host.h>

#include <backends/simt/attention_rules.h>

typedef uint16_t u16;
typedef uint8_t u8;
typedef float f32;
#include <backends/cuda/sm80/attention_arg.h>
#include <backends/cuda/sm80/attention_pass.h>

enum { LANES = 32, STAGES = 2, MAX_D = 128, TOGETHER = 4 };
enum { FORWARD, DQ, DKV, PASSES };

/* A kernel for heads of up to d features, tiles of up to `own` lines, of which a warp has `lines`,
 * and steps of `step` others. */
typedef struct attention_kernel {
    const void *function;
    const char *name;
    bsk_dtype dtype;
    int32_t pass, d, own, lines, step;
} attention_kernel;

#define ATTENTION_KERNELS(X, type, dtype)                                                          \
    X(sm80_attention_64_##type, dtype, FORWARD, 64, 128, 32, 64)                                   \
    X(sm80_attention_128_##type, dtype, FORWARD, 128, 128, 32, 32)                                 \
    X(sm80_attention_dq_64_##type, dtype, DQ, 64, 64, 32, 32)                                      \
    X(sm80_attention_dq_128_##type, dtype, DQ, 128, 64, 16, 64)                                    \
    X(sm80_attention_dkv_64_##type, dtype, DKV, 64, 64, 32, 32)                                    \
    X(sm80_attention_dkv_128_##type, dtype, DKV, 128, 64, 16, 64)
#define ATTENTION_DECLARE(symbol, ...) extern const char symbol[];
#define ATTENTION_ROW(symbol, ...)     {symbol, #symbol, __VA_ARGS__},
ATTENTION_KERNELS(ATTENTION_DECLARE, f16, BSK_F16)
ATTENTION_KERNELS(ATTENTION_DECLARE, bf16, BSK_BF16)
extern const char sm80_attention_delta[];

static const attention_kernel kernels[] = {ATTENTION_KERNELS(ATTENTION_ROW, f16, BSK_F16)
                                               ATTENTION_KERNELS(ATTENTION_ROW, bf16, BSK_BF16)};

/* One launch with the lists of its tiles. */
typedef struct attention_pass {
    const attention_kernel *kernel; /* NULL: not asked for */
    int32_t own;                    /* lines of a tile */
    attention80_tables tables;
} attention_pass;

typedef struct attention_plan {
    attention_pass pass[PASSES];
} attention_plan;

/* --- What both ops accept --- */

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

static bsk_reason accept_output(const bsk_tensor *t)
{
    if (t->dtype != BSK_NONE && t->dtype != BSK_F32 && t->dtype != BSK_F16 && t->dtype != BSK_BF16)
        return BSK_REFUSE_DTYPE;
    for (int axis = 0; t->dtype != BSK_NONE && axis < 3; axis++)
        if (t->dims[axis] > 1 && !aligned(t->strides[axis], 2))
            return BSK_REFUSE_STRIDE;
    return BSK_ACCEPT;
}

static bsk_reason accept_all(const bsk_tensor *const *in, int ins, const bsk_tensor *const *out,
                             int outs)
{
    for (int i = 0; i < ins + outs; i++) {
        const bsk_reason reason = i < ins ? accept_input(in[i]) : accept_output(out[i - ins]);
        if (reason != BSK_ACCEPT)
            return reason;
    }
    return BSK_ACCEPT;
}

/* The smallest size of kernels that holds the heads. */
static int32_t size_of(int64_t d, int64_t dv)
{
    return d <= 64 && dv <= 64 ? 64 : MAX_D;
}

static bsk_reason accept_layout(const bsk_problem *problem, int64_t heads, int64_t batch)
{
    const bsk_layout_tables *t = problem->layout;
    int64_t all, tiles;
    if (!rules_fit(t, heads) || !bski_attention80_fits(t))
        return BSK_REFUSE_LIMIT;
    /* no tile has fewer lines than a square */
    const int64_t lines = t->rows > t->cols ? t->rows : t->cols;
    if (!bski_mul_i64(heads, batch, &all) ||
        !bski_mul_i64(all + TOGETHER, lines / SQUARE + 8, &tiles) || tiles > INT32_MAX)
        return BSK_REFUSE_LIMIT;
    return BSK_ACCEPT;
}

/* --- Passes --- */

/* Computed squares of lines for each kept one, as far as a tile's blocks do not share others. */
static double tile_waste(const bsk_layout_tables *t, const attention80_lists *l)
{
    return t->nnz > 0 ? (double)l->pieces * l->piece * l->each * l->own /
                            ((double)t->nnz * t->block_rows * t->block_cols)
                      : 1;
}

static const attention_kernel *kernel_of(int pass, bsk_dtype dtype, int32_t d)
{
    const attention_kernel *k = kernels;
    while (k->pass != pass || k->dtype != dtype || k->d != d)
        k++;
    return k;
}

/* The largest tiles whose blocks have much in common; where none have, the smallest. */
static attention80_lists tiles_choose(const bsk_layout_tables *t, const attention_kernel *k)
{
    static const double most_waste = 1.5;
    int32_t own = k->own;
    attention80_lists l = bski_attention80_measure(t, k->pass == DKV, own, k->step);
    while (own > ATTENTION80_OWN_MIN && tile_waste(t, &l) > most_waste) {
        own /= 2;
        l = bski_attention80_measure(t, k->pass == DKV, own, k->step);
    }
    return l;
}

static size_t shared_bytes(const attention_pass *pass)
{
    const attention_kernel *k = pass->kernel;
    const int32_t own = k->pass == FORWARD ? pass->own : 2 * pass->own;
    return (size_t)(own + STAGES * 2 * k->step) * (size_t)k->d * sizeof(uint16_t);
}

bsk_status bski_attention80_tables(simt_device *device, const bsk_layout_tables *t,
                                   attention80_lists *l, const bsk_tensor *result,
                                   attention80_tables *to)
{
    TRY(bski_attention80_fill(device->host, t, l));
    const size_t words = (size_t)(l->order - l->start) + (size_t)t->heads * (size_t)l->tiles;
    const bsk_status status =
        table_put(device, l->start, (int64_t)words, sizeof *l->start, &to->memory);
    const i32 *base = bsk_mem_address(to->memory);
    to->tiles = (attention80_tiles){
        .start = base,
        .line = base + (l->line - l->start),
        .slot = base + (l->slot - l->start),
        .order = base + (l->order - l->start),
        .tiles = l->tiles,
        .lists = l->lists,
        .each = l->each,
        .subs = l->subs,
        .piece = bski_bits((uint64_t)l->piece),
        .side = l->turned ? t->block_cols : t->block_rows,
        .other = l->turned ? t->block_rows : t->block_cols,
        .lines = (i32)(l->turned ? t->cols : t->rows),
        .others = (i32)(l->turned ? t->rows : t->cols),
        .heads = (i32)result->dims[1],
        .batch = (i32)result->dims[0],
        .together = TOGETHER,
    };
    const int64_t sets = bski_ceil_div(result->dims[0] * result->dims[1], TOGETHER);
    to->grid = (unsigned)(sets * TOGETHER * l->tiles); /* as accepted */
    host_drop(device->host, l->start);
    return status;
}

/* result: of the pass, by which its heads are counted. */
static bsk_status pass_prepare(bski_cuda_device *device, const bsk_problem *problem, int number,
                               int32_t d, const bsk_tensor *result, attention_pass *pass)
{
    pass->kernel = kernel_of(number, problem->dtype, d);
    attention80_lists l = tiles_choose(problem->layout, pass->kernel);
    pass->own = l.own;
    TRY(bski_attention80_tables(&device->simt, problem->layout, &l, result, &pass->tables));
    return bski_cuda_kernel(device, pass->kernel->function, shared_bytes(pass), pass->kernel->name);
}

static bsk_status pass_launch(const attention_pass *pass, void *queue, void *arg)
{
    void *arguments[] = {arg};
    const bski_cuda_run run = {.function = pass->kernel->function,
                               .name = pass->kernel->name,
                               .grid = {pass->tables.grid, 1, 1},
                               .threads = (unsigned)(pass->own / pass->kernel->lines) * LANES,
                               .shared_bytes = shared_bytes(pass),
                               .arguments = arguments};
    return bski_cuda_launch(queue, &run);
}

static void plan_release(void *device, bsk_prepared *prepared)
{
    simt_device *d = device;
    attention_plan *plan = prepared->state;
    for (int i = 0; plan && i < PASSES; i++)
        table_drop(d, &plan->pass[i].tables.memory);
    state_free(d, prepared);
}

static bsk_status plan_make(void *device, bsk_prepared *prepared, attention_plan **plan)
{
    TRY(state_new(device, sizeof **plan, prepared));
    *plan = prepared->state;
    return BSK_OK;
}

/* --- attention --- */

CUDA_SOLE_FUNCTIONS(sm80_attention)

bsk_reason cuda_sm80_attention_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_attention_params *p = problem->params;
    const bsk_tensor *const in[] = {&p->q, &p->k, &p->v}, *const out[] = {&p->o};
    (void)props;
    if (p->dropout || p->bias.dtype != BSK_NONE)
        return BSK_REFUSE_OPTION;
    const bsk_reason reason = accept_all(in, 3, out, 1);
    return reason != BSK_ACCEPT ? reason : accept_layout(problem, p->q.dims[1], p->q.dims[0]);
}

bsk_status cuda_sm80_attention_prepare(void *device, bsk_prepared *prepared)
{
    const bsk_attention_params *p = prepared->problem->params;
    attention_plan *plan;
    TRY(plan_make(device, prepared, &plan));
    const bsk_status status =
        pass_prepare(device, prepared->problem, FORWARD, size_of(p->q.dims[3], p->v.dims[3]), &p->o,
                     &plan->pass[FORWARD]);
    if (status)
        plan_release(device, prepared);
    return status;
}

bsk_status cuda_sm80_attention_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_attention_params *p = prepared->problem->params;
    const bsk_attention_args *a = args;
    const attention_plan *plan = prepared->state;
    attention80_arg arg =
        ATTENTION80_ARG(prepared->problem, p, a, plan->pass[FORWARD].tables.tiles);
    return pass_launch(&plan->pass[FORWARD], queue, &arg);
}

void cuda_sm80_attention_release(void *device, bsk_prepared *prepared)
{
    plan_release(device, prepared);
}

/* --- attention_grad --- */

CUDA_SOLE_FUNCTIONS(sm80_attention_grad)

bool bski_attention80_delta_rows(const bsk_tensor *q, int64_t pad, int64_t *rows)
{
    return bski_mul_i64(q->dims[0], q->dims[1], rows) && bski_mul_i64(*rows, pad, rows) &&
           pad <= INT32_MAX && *rows < (int64_t)INT32_MAX * DELTA_ROW;
}

static bool delta_rows(const bsk_tensor *q, int64_t *rows)
{
    return bski_attention80_delta_rows(q, q->dims[2], rows);
}

bsk_reason cuda_sm80_attention_grad_accept(const bsk_problem *problem,
                                           const bsk_device_props *props)
{
    const bsk_attention_grad_params *p = problem->params;
    const bsk_tensor *const in[] = {&p->q, &p->k, &p->v, &p->o, &p->dout};
    const bsk_tensor *const out[] = {&p->dq, &p->dk, &p->dv};
    int64_t rows;
    (void)props;
    if (p->dropout || p->bias.dtype != BSK_NONE)
        return BSK_REFUSE_OPTION;
    if (!p->q.dims[1])
        return BSK_REFUSE_SHAPE;
    const bsk_reason reason = accept_all(in, 5, out, 3);
    if (reason != BSK_ACCEPT)
        return reason;
    if (!delta_rows(&p->q, &rows))
        return BSK_REFUSE_LIMIT;
    return accept_layout(problem, p->q.dims[1], p->q.dims[0]);
}

bsk_status cuda_sm80_attention_grad_prepare(void *device, bsk_prepared *prepared)
{
    const bsk_attention_grad_params *p = prepared->problem->params;
    const bsk_host *host = ((simt_device *)device)->host;
    const int32_t d = size_of(p->q.dims[3], p->v.dims[3]);
    attention_plan *plan;
    int64_t rows = 0;
    if (!delta_rows(&p->q, &rows) ||
        !bski_mul_size((size_t)rows, sizeof(float), &prepared->workspace_bytes))
        return host->fail(host->context, BSK_E_NOMEM, "attention_grad: the workspace is too large");
    TRY(plan_make(device, prepared, &plan));
    bsk_status status = bski_attention80_delta_prepare(device);
    if (!status && p->dq.dtype != BSK_NONE)
        status = pass_prepare(device, prepared->problem, DQ, d, &p->dq, &plan->pass[DQ]);
    if (!status && p->dk.dtype != BSK_NONE)
        status = pass_prepare(device, prepared->problem, DKV, d, &p->dk, &plan->pass[DKV]);
    if (status)
        plan_release(device, prepared);
    return status;
}

bsk_status bski_attention80_delta_prepare(void *device)
{
    return bski_cuda_kernel(device, sm80_attention_delta, 0, "sm80_attention_delta");
}

bsk_status bski_attention80_delta_launch(const bsk_attention_grad_params *p,
                                         const bsk_attention_grad_args *a, void *queue,
                                         const attention80_delta *to)
{
    attention80_delta_arg arg = {
        .o = heads_of(&p->o),
        .dout = heads_of(&p->dout),
        .o_data = bsk_mem_address(a->o),
        .dout_data = bsk_mem_address(a->dout),
        .delta = to->delta,
        .bound = to->bound,
        .lse = bsk_mem_address(a->lse),
        .q_len = to->q_len,
        .heads = (i32)p->q.dims[1],
        .time = (i32)p->q.dims[2],
        .pad = (i32)to->pad,
        .dv = (i32)p->v.dims[3],
        .bf16 = p->q.dtype == BSK_BF16,
        .slope = to->slope,
    };
    void *arguments[] = {&arg};
    bski_attention80_delta_rows(&p->q, to->pad, &arg.rows); /* as accepted */
    const bski_cuda_run run = {
        .function = sm80_attention_delta,
        .name = "sm80_attention_delta",
        .grid = {(unsigned)bski_ceil_div(arg.rows, DELTA_THREADS / DELTA_ROW), 1, 1},
        .threads = DELTA_THREADS,
        .arguments = arguments};
    return bski_cuda_launch(queue, &run);
}

bsk_status cuda_sm80_attention_grad_launch(const bsk_prepared *prepared, void *queue,
                                           const void *args)
{
    const bsk_attention_grad_params *p = prepared->problem->params;
    const bsk_attention_grad_args *a = args;
    const attention_plan *plan = prepared->state;
    double rest;
    const double slope = attention_slope(a->scale, p->q.dims[3], &rest);
    const attention80_grad_arg both = {
        ATTENTION80_RULES(prepared->problem, p, a),
        .lse = bsk_mem_address(a->lse),
        .delta = bsk_mem_address(a->workspace),
        .alpha = (float)a->alpha,
        .beta = (float)a->beta,
        .slope = (float)slope,
        .rest = (float)rest,
    };
    const attention80_delta delta = {
        .pad = p->q.dims[2], .delta = bsk_mem_address(a->workspace), .slope = 1};
    const attention80_heads q = heads_of(&p->q), k = heads_of(&p->k), v = heads_of(&p->v);
    const attention80_heads dout = heads_of(&p->dout);
    const u16 *q_data = bsk_mem_address(a->q), *k_data = bsk_mem_address(a->k);
    const u16 *v_data = bsk_mem_address(a->v), *dout_data = bsk_mem_address(a->dout);
    TRY(bski_attention80_delta_launch(p, a, queue, &delta));
    if (plan->pass[DQ].kernel) {
        attention80_grad_arg arg = both;
        arg.tiles = plan->pass[DQ].tables.tiles;
        arg.x = q, arg.y = k, arg.x2 = dout, arg.y2 = v;
        arg.x_data = q_data, arg.y_data = k_data, arg.x2_data = dout_data, arg.y2_data = v_data;
        arg.out = heads_of(&p->dq);
        arg.out_data = bsk_mem_address(a->dq);
        TRY(pass_launch(&plan->pass[DQ], queue, &arg));
    }
    if (plan->pass[DKV].kernel) {
        attention80_grad_arg arg = both;
        arg.tiles = plan->pass[DKV].tables.tiles;
        arg.x = k, arg.y = q, arg.x2 = v, arg.y2 = dout;
        arg.x_data = k_data, arg.y_data = q_data, arg.x2_data = v_data, arg.y2_data = dout_data;
        arg.out = heads_of(&p->dk);
        arg.out2 = heads_of(&p->dv);
        arg.out_data = bsk_mem_address(a->dk);
        arg.out2_data = bsk_mem_address(a->dv);
        TRY(pass_launch(&plan->pass[DKV], queue, &arg));
    }
    return BSK_OK;
}

void cuda_sm80_attention_grad_release(void *device, bsk_prepared *prepared)
{
    plan_release(device, prepared);
}
