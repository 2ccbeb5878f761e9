/* Plans and launches attention for sm100a. Lists and order are those of sm80. */
#include <backends/cuda/sm80/host.h>
#include <backends/cuda/sm90a/attention_plan.h>
#include <backends/simt/attention_host.h>

#include <backends/simt/attention_rules.h>

typedef uint16_t u16;
typedef uint8_t u8;
typedef float f32;
#include <backends/cuda/sm80/attention_arg.h>
#include <backends/cuda/sm80/attention_pass.h>

#include <backends/cuda/sm100a/attention_arg.h>

CUDA_SOLE_FUNCTIONS(sm80_attention)
CUDA_SOLE_FUNCTIONS(sm100a_attention)

enum { LANES = 32 };

typedef struct attention100_kernel {
    const void *function;
    const char *name;
    bsk_dtype dtype;
    int32_t rows, d;
    size_t shared_bytes;
} attention100_kernel;

#define BSK_DTYPE_f16                   BSK_F16
#define BSK_DTYPE_bf16                  BSK_BF16
#define DECLARE(type, rows, d, buffers) extern const char sm100a_attention_##rows##_##d##_##type[];
#define ROW(type, rows, d, buffers)                                                                \
    {sm100a_attention_##rows##_##d##_##type,                                                       \
     "sm100a_attention_" #rows "_" #d "_" #type,                                                   \
     BSK_DTYPE_##type,                                                                             \
     rows,                                                                                         \
     d,                                                                                            \
     ATTENTION100_BYTES(rows, d, buffers)},
ATTENTION100_KERNELS(DECLARE)
static const attention100_kernel kernels[] = {ATTENTION100_KERNELS(ROW)};

/* Of an accepted problem. */
static const attention100_kernel *kernel_of(const bsk_problem *problem)
{
    const bsk_attention_params *p = problem->params;
    const bool wide = p->q.dims[3] > 64 || p->v.dims[3] > 64;
    const attention100_kernel *k = kernels;
    while (k->dtype != problem->dtype || k->rows != problem->layout->block_rows ||
           (k->d > 64) != wide)
        k++;
    return k;
}

static bool has_queries(const bsk_attention_params *p)
{
    return p->q.dims[0] > 0 && p->q.dims[1] > 0 && p->q.dims[2] > 0;
}

bsk_reason cuda_sm100a_attention_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_attention_params *p = problem->params;
    const bsk_reason reason = cuda_sm80_attention_accept(problem, props);
    if (reason != BSK_ACCEPT)
        return reason;
    if (p->softcap != 0 || attention90_given(&p->slopes) || p->interleave != 1)
        return BSK_REFUSE_OPTION;
    if (p->k.dims[2] < 1)
        return BSK_REFUSE_SHAPE;
    const bski_cuda_tensor q = attention90_tensor(&p->q, problem->layout->block_rows, 1);
    const bski_cuda_tensor k = attention90_tensor(&p->k, PIECE, 1);
    const bski_cuda_tensor v = attention90_tensor(&p->v, PIECE, 1);
    if (has_queries(p) &&
        (!bski_cuda_tensor_fits(&q) || !bski_cuda_tensor_fits(&k) || !bski_cuda_tensor_fits(&v)))
        return BSK_REFUSE_STRIDE;
    return BSK_ACCEPT;
}

/* State of a plan. */
typedef struct attention100_plan {
    const attention100_kernel *kernel;
    attention80_tables tables;
    bski_cuda_encoder encoder;
    bski_cuda_tensor q, k, v;
} attention100_plan;

static bsk_status plan_fill(bski_cuda_device *device, const bsk_problem *problem,
                            attention100_plan *plan)
{
    const bsk_attention_params *p = problem->params;
    const attention100_kernel *kernel = plan->kernel = kernel_of(problem);
    attention80_lists lists = bski_attention80_measure(problem->layout, false, kernel->rows, PIECE);
    plan->q = attention90_tensor(&p->q, kernel->rows, 1);
    plan->k = attention90_tensor(&p->k, PIECE, 1);
    plan->v = attention90_tensor(&p->v, PIECE, 1);
    TRY(bski_cuda_encoder_find(&device->simt, &plan->encoder));
    TRY(bski_attention80_tables(&device->simt, problem->layout, &lists, &p->o, &plan->tables));
    return bski_cuda_kernel(device, kernel->function, kernel->shared_bytes, kernel->name);
}

bsk_status cuda_sm100a_attention_prepare(void *device, bsk_prepared *prepared)
{
    TRY(state_new(device, sizeof(attention100_plan), prepared));
    const bsk_status status = plan_fill(device, prepared->problem, prepared->state);
    if (status)
        cuda_sm100a_attention_release(device, prepared);
    return status;
}

bsk_status cuda_sm100a_attention_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_attention_params *p = prepared->problem->params;
    const bsk_attention_args *a = args;
    const attention100_plan *plan = prepared->state;
    if (!has_queries(p))
        return BSK_OK;
    CUtensorMap q, k, v;
    TRY(bski_cuda_tensor_map(&plan->encoder, &plan->q, bsk_mem_address(a->q), &q));
    TRY(bski_cuda_tensor_map(&plan->encoder, &plan->k, bsk_mem_address(a->k), &k));
    TRY(bski_cuda_tensor_map(&plan->encoder, &plan->v, bsk_mem_address(a->v), &v));
    attention80_arg arg = ATTENTION80_ARG(prepared->problem, p, a, plan->tables.tiles);
    void *arguments[] = {&q, &k, &v, &arg};
    const bski_cuda_run run = {.function = plan->kernel->function,
                               .name = plan->kernel->name,
                               .grid = {plan->tables.grid, 1, 1},
                               .threads = ATTENTION_WARPS * LANES,
                               .shared_bytes = plan->kernel->shared_bytes,
                               .arguments = arguments};
    return bski_cuda_launch(queue, &run);
}

void cuda_sm100a_attention_release(void *device, bsk_prepared *prepared)
{
    attention100_plan *plan = prepared->state;
    if (plan)
        table_drop(device, &plan->tables.memory);
    state_free(device, prepared);
}
