/* Plans and launches cross_entropy_sm90a. */
#include <backends/cuda/sm90a/cross_entropy.h>
#include <backends/cuda/sm90a/rows.h>

CUDA_SOLE_FUNCTIONS(sm90a_cross_entropy)

/* Classes of a row: shorter rows stay in registers or caches, longer ones do not fit in the ring. */
enum { MIN_CLASSES = 8192, MAX_CLASSES = CROSS_SLOTS * CROSS_PIECE / 2 };

extern const char sm90a_cross_entropy_f16[], sm90a_cross_entropy_bf16[];

static const void *kernel_of(bsk_dtype type)
{
    return type == BSK_F16 ? sm90a_cross_entropy_f16 : sm90a_cross_entropy_bf16;
}

static int32_t label_bytes(bsk_dtype type)
{
    return type == BSK_I64 ? 8 : type == BSK_I32 ? 4 : type == BSK_U16 ? 2 : 1;
}

bsk_reason cuda_sm90a_cross_entropy_accept(const bsk_problem *problem,
                                           const bsk_device_props *props)
{
    const bsk_cross_entropy_params *p = problem->params;
    const int64_t classes = p->logits.dims[1];
    (void)props;
    if (p->dlogits.dtype != p->logits.dtype)
        return BSK_REFUSE_DTYPE;
    if (classes <= MIN_CLASSES || classes > MAX_CLASSES || classes % ROW_RUN)
        return BSK_REFUSE_SHAPE;
    return rows_aligned(&p->logits) && rows_aligned(&p->dlogits) ? BSK_ACCEPT : BSK_REFUSE_STRIDE;
}

bsk_status cuda_sm90a_cross_entropy_prepare(void *device, bsk_prepared *prepared)
{
    const bsk_cross_entropy_params *p = prepared->problem->params;
    return bski_cuda_kernel(device, kernel_of(p->logits.dtype), CROSS_SHARED,
                            "sm90a_cross_entropy");
}

bsk_status cuda_sm90a_cross_entropy_launch(const bsk_prepared *prepared, void *queue,
                                           const void *args)
{
    const bsk_cross_entropy_params *p = prepared->problem->params;
    const bsk_cross_entropy_args *a = args;
    const bski_cuda_queue *q = queue;
    const int64_t rows = p->logits.dims[0], units = q->simt.device->props.compute_units;
    cross_entropy_arg arg = {
        .logits = bsk_mem_address(a->logits),
        .labels = bsk_mem_address(a->labels),
        .dlogits = bsk_mem_address(a->dlogits),
        .loss = row_address(&p->loss, a->loss),
        .dloss = row_address(&p->dloss, a->dloss),
        .rows = rows,
        .logits_row = p->logits.strides[0] * 2,
        .dlogits_row = p->dlogits.strides[0] * 2,
        .ignore_index = p->ignore_index,
        .classes = (int32_t)p->logits.dims[1],
        .use_ignore_index = p->use_ignore_index,
        .label_bytes = label_bytes(p->labels.dtype),
        .alpha = (float)a->alpha,
        .beta = (float)a->beta,
        .smoothing = (float)p->smoothing,
    };
    void *arguments[] = {&arg};
    const bski_cuda_run run = {.function = kernel_of(p->logits.dtype),
                               .name = "sm90a_cross_entropy",
                               .grid = {(unsigned)(rows < units ? rows : units), 1, 1},
                               .threads = CROSS_THREADS + 32,
                               .shared_bytes = CROSS_SHARED,
                               .arguments = arguments};
    return bski_cuda_launch(queue, &run);
}

void cuda_sm90a_cross_entropy_release(void *device, bsk_prepared *prepared)
{
    (void)device;
    (void)prepared;
}
