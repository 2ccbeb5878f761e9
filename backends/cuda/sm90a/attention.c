/* The host side of fused attention by wgmma. */
#include <backends/cuda/sm90a/attention_plan.h>

CUDA_SOLE_FUNCTIONS(sm90a_attention)

#define EXTERN(suffix, ...)                                                                        \
    ATTENTION90_EXTERN(cuda_attention_bf16_##suffix)                                               \
    ATTENTION90_EXTERN(cuda_attention_f16_##suffix)
ATTENTION_FORMS(EXTERN)
#undef EXTERN
#define ROWS(suffix, ...)                                                                          \
    ATTENTION90_FORM(BSK_BF16, cuda_attention_bf16_##suffix, __VA_ARGS__)                          \
    ATTENTION90_FORM(BSK_F16, cuda_attention_f16_##suffix, __VA_ARGS__)
static const attention90_form forms[] = {ATTENTION_FORMS(ROWS)};
#undef ROWS

static const attention90_form *form_of(const bsk_problem *problem)
{
    const bsk_attention_params *p = problem->params;
    const int64_t width = p->q.dims[3] > p->v.dims[3] ? p->q.dims[3] : p->v.dims[3];
    return bski_attention90_form(forms, sizeof forms / sizeof *forms, problem->dtype,
                                 problem->layout, width);
}

static bool is_empty(const bsk_attention_params *p)
{
    return p->q.dims[0] == 0 || p->q.dims[1] == 0 || p->q.dims[2] == 0;
}

bsk_reason cuda_sm90a_attention_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_attention_params *p = problem->params;
    const attention90_form *f = form_of(problem);
    (void)props; /* every device of the generation has the shared memory */
    if (!ATTENTION90_TAKES(p))
        return BSK_REFUSE_OPTION;
    if (p->o.dtype != BSK_BF16 && p->o.dtype != BSK_F16 && p->o.dtype != BSK_F32)
        return BSK_REFUSE_DTYPE;
    /* Queries that are multiplied again are loaded in pairs of features. */
    if (!f || p->q.dims[3] < 1 || p->q.dims[3] % 2 || p->v.dims[3] < 1 || p->v.dims[3] % 8 ||
        p->k.dims[2] < 1 || !bski_attention90_runs_fit(f, problem->layout, p->interleave))
        return BSK_REFUSE_SHAPE;
    if (is_empty(p))
        return BSK_ACCEPT;
    const bski_cuda_tensor q = attention90_tensor(&p->q, bski_attention90_box(f), p->interleave);
    const bski_cuda_tensor k = attention90_tensor(&p->k, f->side, p->interleave);
    const bski_cuda_tensor v = attention90_tensor(&p->v, f->side, p->interleave);
    if (!bski_cuda_tensor_fits(&q) || !bski_cuda_tensor_fits(&k) || !bski_cuda_tensor_fits(&v) ||
        !bski_attention90_out_fits(&p->o))
        return BSK_REFUSE_STRIDE;
    return bski_attention90_fits(problem->layout, p->q.dims[0], p->q.dims[1]) ? BSK_ACCEPT
                                                                              : BSK_REFUSE_LIMIT;
}

typedef struct state {
    bski_cuda_encoder encoder;
    bski_cuda_tensor q, k, v;
    const attention90_form *form;
    attention90_tables tables;
    attention_arg arg;
} state;

static bsk_status build(simt_device *d, const bsk_problem *problem, state *s)
{
    const bsk_attention_params *p = problem->params;
    s->form = form_of(problem);
    s->q = attention90_tensor(&p->q, bski_attention90_box(s->form), p->interleave);
    s->k = attention90_tensor(&p->k, s->form->side, p->interleave);
    s->v = attention90_tensor(&p->v, s->form->side, p->interleave);
    TRY(bski_cuda_encoder_find(d, &s->encoder));
    TRY(bski_cuda_kernel((const bski_cuda_device *)d, s->form->function, s->form->shared_bytes,
                         s->form->name));
    if (is_empty(p))
        return BSK_OK; /* no thread blocks */
    s->arg = (attention_arg){ATTENTION90_ARG(p, problem->layout),
                             .o = bski_attention90_out(&p->o, p->interleave)};
    return bski_attention90_tables(d, problem->layout, s->form, p->q.dims[0], &s->tables, &s->arg);
}

bsk_status cuda_sm90a_attention_prepare(void *device, bsk_prepared *prepared)
{
    TRY(state_new(device, sizeof(state), prepared));
    const bsk_status status = build(device, prepared->problem, prepared->state);
    if (status)
        cuda_sm90a_attention_release(device, prepared);
    return status;
}

void cuda_sm90a_attention_release(void *device, bsk_prepared *prepared)
{
    state *s = prepared->state;
    if (s)
        bski_attention90_tables_free(device, &s->tables);
    state_free(device, prepared);
}

bsk_status cuda_sm90a_attention_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_attention_params *p = prepared->problem->params;
    const bsk_attention_args *a = args;
    const state *s = prepared->state;
    if (s->tables.blocks == 0)
        return BSK_OK;
    CUtensorMap q, k, v;
    TRY(bski_cuda_tensor_map(&s->encoder, &s->q, bsk_mem_address(a->q), &q));
    TRY(bski_cuda_tensor_map(&s->encoder, &s->k, bsk_mem_address(a->k), &k));
    TRY(bski_cuda_tensor_map(&s->encoder, &s->v, bsk_mem_address(a->v), &v));
    attention_arg arg = s->arg;
    ATTENTION90_SET_RUN(&arg, p, a);
    arg.o.data = bsk_mem_address(a->o);
    arg.lse = ATTENTION90_ADDRESS(p, a, lse);
    void *arguments[] = {&q, &k, &v, &arg};
    const bski_cuda_run run = {.function = s->form->function,
                               .name = s->form->name,
                               .grid = {(unsigned)s->tables.blocks, 1, 1},
                               .threads = ATTENTION_THREADS((unsigned)s->form->groups),
                               .shared_bytes = s->form->shared_bytes,
                               .arguments = arguments,
                               .early = true};
    return bski_cuda_launch(queue, &run);
}
