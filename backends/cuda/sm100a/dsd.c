/* Plans and launches dsd for sm100a. Lists, epilogue and order are those of sm80. */
#include <backends/cuda/sm100a/dsd_arg.h>
#include <backends/cuda/sm80/dsd_host.h>
#include <backends/cuda/tensor_map.h>

CUDA_SOLE_FUNCTIONS(sm100a_dsd_tcgen05)

enum { THREADS = 128, STEP = 16, SWIZZLE = 128 };

#define TCGEN05_KERNELS(X)                                                                         \
    X(64, 5, f16, BSK_F16)                                                                         \
    X(128, 4, f16, BSK_F16) X(64, 5, bf16, BSK_BF16) X(128, 4, bf16, BSK_BF16)
#define TCGEN05_DECLARE(features, stages, type, dtype)                                             \
    extern const char sm100a_dsd_##features##_##type[];
TCGEN05_KERNELS(TCGEN05_DECLARE)

#define TCGEN05_ROW(features, stages, type, dtype)                                                 \
    {sm100a_dsd_##features##_##type,                                                               \
     "sm100a_dsd_" #features "_" #type,                                                            \
     dtype,                                                                                        \
     features,                                                                                     \
     TILE_COLUMNS,                                                                                 \
     ((features) + TILE_COLUMNS) * 2 * STAGE_DEPTH,                                                \
     stages},
static const kernel_row tcgen05_rows[] = {TCGEN05_KERNELS(TCGEN05_ROW){0}};

/* State of a plan. */
typedef struct tcgen05_plan {
    bsk_prepared lists; /* those of sm80 */
    bski_cuda_encoder encoder;
    bski_cuda_tensor s, b;
} tcgen05_plan;

/* The blocks as they are stored, one below the other, by group. */
static bski_cuda_tensor blocks_tensor(const bsk_problem *problem)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bool groups = p->s.rank == 4;
    return (bski_cuda_tensor){
        .dtype = problem->dtype,
        .rank = 3,
        .dims = {t->block_cols, t->nnz * t->block_rows, groups ? p->s.dims[0] : 1},
        .strides = {1, t->block_cols, groups ? p->s.strides[0] : 0},
        .box = {BOX, BOX, 1},
        .swizzle = SWIZZLE};
}

/* B: its contiguous axis, the other one, and the member of the batch. */
static bski_cuda_tensor dense_tensor(const bsk_problem *problem)
{
    const bsk_tensor *b = &((const bsk_dsd_params *)problem->params)->b;
    const int32_t row = b->rank - 2, col = b->rank - 1;
    const int32_t inner = b->strides[row] == 1 ? row : col, outer = inner == row ? col : row;
    return (bski_cuda_tensor){
        .dtype = problem->dtype,
        .rank = 3,
        .dims = {b->dims[inner], b->dims[outer], b->rank == 3 ? b->dims[0] : 1},
        .strides = {1, b->strides[outer], b->rank == 3 ? b->strides[0] : 0},
        .box = {BOX, BOX, 1},
        .swizzle = SWIZZLE};
}

bsk_reason cuda_sm100a_dsd_tcgen05_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_dsd_params *p = problem->params;
    const bski_cuda_tensor s = blocks_tensor(problem), b = dense_tensor(problem);
    (void)props;
    if (p->gate.dtype != BSK_NONE)
        return BSK_REFUSE_OPTION;
    if (p->b.dims[p->b.rank - 2] % STEP || problem->layout->nnz == 0)
        return BSK_REFUSE_SHAPE;
    if (!bski_cuda_tensor_fits(&s) || !bski_cuda_tensor_fits(&b))
        return BSK_REFUSE_STRIDE;
    if (s.dims[1] > INT32_MAX || b.dims[0] > INT32_MAX / 2 || b.dims[1] > INT32_MAX / 2)
        return BSK_REFUSE_LIMIT;
    return bski_dsd80_accept(problem);
}

static bsk_status plan_fill(void *device, bsk_prepared *prepared, tcgen05_plan *plan)
{
    const simt_device *d = device;
    plan->lists.problem = prepared->problem;
    plan->s = blocks_tensor(prepared->problem);
    plan->b = dense_tensor(prepared->problem);
    TRY(bski_cuda_encoder_find(d, &plan->encoder));
    return bski_dsd80_prepare(device, &plan->lists, tcgen05_rows);
}

bsk_status cuda_sm100a_dsd_tcgen05_prepare(void *device, bsk_prepared *prepared)
{
    const simt_device *d = device;
    TRY(state_new(d, sizeof(tcgen05_plan), prepared));
    const bsk_status status = plan_fill(device, prepared, prepared->state);
    if (status)
        cuda_sm100a_dsd_tcgen05_release(device, prepared);
    return status;
}

bsk_status cuda_sm100a_dsd_tcgen05_launch(const bsk_prepared *prepared, void *queue,
                                          const void *args)
{
    const tcgen05_plan *plan = prepared->state;
    const bsk_dsd_args *from = args;
    dsd_maps maps;
    TRY(bski_cuda_tensor_map(&plan->encoder, &plan->s, bsk_mem_address(from->s), &maps.s));
    TRY(bski_cuda_tensor_map(&plan->encoder, &plan->b, bsk_mem_address(from->b), &maps.b));
    return bski_dsd80_launch_with(&plan->lists, queue, args, THREADS, &maps);
}

void cuda_sm100a_dsd_tcgen05_release(void *device, bsk_prepared *prepared)
{
    simt_device *d = device;
    tcgen05_plan *plan = prepared->state;
    if (!plan)
        return;
    bski_dsd80_release(d, &plan->lists);
    state_free(d, prepared);
}
