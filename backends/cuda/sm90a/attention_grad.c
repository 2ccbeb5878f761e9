/* The host side of the gradient of attention by wgmma: a pass over rows, then dQ and dK with dV. */
#include <backends/cuda/sm80/attention_plan.h>
#include <backends/cuda/sm90a/attention_dkv.h>
#include <backends/cuda/sm90a/attention_plan.h>
#include <common/checked.h>

CUDA_SOLE_FUNCTIONS(sm90a_attention_grad)

#define EXTERN(suffix, ...)                                                                        \
    ATTENTION90_EXTERN(cuda_attention_dq_bf16_##suffix)                                            \
    ATTENTION90_EXTERN(cuda_attention_dq_f16_##suffix)
ATTENTION_DQ_FORMS(EXTERN)
#undef EXTERN
#define ROW(type, symbol, step, width, ...)                                                        \
    ATTENTION90_TEAM_FORM(type, symbol, ATTENTION_DQ_TEAM(width), step, width, __VA_ARGS__)
#define ROWS(suffix, ...)                                                                          \
    ROW(BSK_BF16, cuda_attention_dq_bf16_##suffix, __VA_ARGS__)                                    \
    ROW(BSK_F16, cuda_attention_dq_f16_##suffix, __VA_ARGS__)
static const attention90_form forms[] = {ATTENTION_DQ_FORMS(ROWS)};
#undef ROWS
#undef ROW

static const attention90_form *form_of(const bsk_problem *problem)
{
    const bsk_attention_grad_params *p = problem->params;
    const int64_t width = p->q.dims[3] > p->v.dims[3] ? p->q.dims[3] : p->v.dims[3];
    const attention90_form *f = bski_attention90_form(forms, sizeof forms / sizeof *forms,
                                                      problem->dtype, problem->layout, width);
    if (!f || attention90_readers(f) == 1 || !attention90_is_narrow(p->window, p->causal))
        return f;
    /* Forms whose warpgroups have tiles of their own are listed before. */
    return bski_attention90_form(forms, (size_t)(f - forms), problem->dtype, problem->layout,
                                 width);
}

/* --- Accepting --- */

static bool is_empty(const bsk_attention_grad_params *p)
{
    return p->q.dims[0] == 0 || p->q.dims[1] == 0 || p->q.dims[2] == 0 || p->k.dims[2] == 0;
}

static bool ins_fit(const bsk_attention_grad_params *p)
{
    const bsk_tensor *const in[] = {&p->q, &p->k, &p->v, &p->o, &p->dout};
    for (size_t i = 0; i < sizeof in / sizeof *in; i++) {
        /* the most times */
        const bski_cuda_tensor t = attention90_tensor(in[i], ATTENTION_UNIT, p->interleave);
        if (!bski_cuda_tensor_fits(&t))
            return false;
    }
    return true;
}

static bsk_reason accept_outs(const bsk_attention_grad_params *p)
{
    const bsk_tensor *const out[] = {&p->dq, &p->dk, &p->dv};
    for (size_t i = 0; i < sizeof out / sizeof *out; i++) {
        if (!attention90_given(out[i]))
            continue;
        if (out[i]->dtype != BSK_BF16 && out[i]->dtype != BSK_F16 && out[i]->dtype != BSK_F32)
            return BSK_REFUSE_DTYPE;
        if (!bski_attention90_out_fits(out[i]))
            return BSK_REFUSE_STRIDE;
    }
    return BSK_ACCEPT;
}

/* Rows of a head as the passes see them. */
static int64_t pad_of(const bsk_attention_grad_params *p)
{
    return bski_ceil_div(p->q.dims[2], ATTENTION_ROWS) * ATTENTION_ROWS;
}

bsk_reason cuda_sm90a_attention_grad_accept(const bsk_problem *problem,
                                            const bsk_device_props *props)
{
    const bsk_attention_grad_params *p = problem->params;
    int64_t rows;
    (void)props; /* every device of the generation has the shared memory */
    /* Without dQ another pass makes bounds and deltas, in the order of times. */
    if (!ATTENTION90_TAKES(p) || (p->interleave > 1 && !attention90_given(&p->dq)))
        return BSK_REFUSE_OPTION;
    const attention90_form *f = form_of(problem);
    if (is_empty(p) || !f || !bski_attention90_runs_fit(f, problem->layout, p->interleave) ||
        p->q.dims[3] < 1 || p->q.dims[3] % 8 || p->v.dims[3] < 1 || p->v.dims[3] % 8)
        return BSK_REFUSE_SHAPE;
    const bsk_reason reason = accept_outs(p);
    if (reason != BSK_ACCEPT)
        return reason;
    if (!ins_fit(p))
        return BSK_REFUSE_STRIDE;
    if (!bski_attention90_fits(problem->layout, p->q.dims[0], p->q.dims[1]) ||
        !bski_attention80_delta_rows(&p->q, pad_of(p), &rows))
        return BSK_REFUSE_LIMIT;
    return attention90_given(&p->dk) ? bski_attention90_dkv_accept(problem) : BSK_ACCEPT;
}

/* --- Plans --- */

typedef struct state {
    bski_cuda_encoder encoder;
    bski_cuda_tensor q, dout, o, k, v;
    const attention90_form *form;
    attention90_tables tables;
    attention_dq_arg arg;
    int64_t rows; /* of bound and of delta */
    void *dkv;
} state;

static bsk_status build_dq(simt_device *d, const bsk_problem *problem, state *s)
{
    const bsk_attention_grad_params *p = problem->params;
    s->form = form_of(problem);
    const int32_t box = bski_attention90_box(s->form);
    s->q = attention90_tensor(&p->q, box, p->interleave);
    s->dout = attention90_tensor(&p->dout, box, p->interleave);
    s->o = attention90_tensor(&p->o, box, p->interleave);
    s->k = attention90_tensor(&p->k, s->form->side, p->interleave);
    s->v = attention90_tensor(&p->v, s->form->side, p->interleave);
    s->arg = (attention_dq_arg){.all = {ATTENTION90_ARG(p, problem->layout),
                                        .o = bski_attention90_out(&p->dq, p->interleave)},
                                .dout = bski_attention90_in(&p->dout, p->interleave),
                                .pad = (int32_t)pad_of(p)};
    TRY(bski_cuda_encoder_find(d, &s->encoder));
    TRY(bski_cuda_kernel((const bski_cuda_device *)d, s->form->function, s->form->shared_bytes,
                         s->form->name));
    return bski_attention90_tables(d, problem->layout, s->form, p->q.dims[0], &s->tables,
                                   &s->arg.all);
}

static bsk_status build(simt_device *d, bsk_prepared *prepared)
{
    const bsk_problem *problem = prepared->problem;
    const bsk_attention_grad_params *p = problem->params;
    state *s = prepared->state;
    if (!bski_attention80_delta_rows(&p->q, pad_of(p), &s->rows) ||
        !bski_mul_size((size_t)s->rows, 2 * sizeof(float), &prepared->workspace_bytes))
        return d->host->fail(d->host->context, BSK_E_NOMEM,
                             "attention_grad: the workspace is too large");
    TRY(bski_attention80_delta_prepare(d));
    if (attention90_given(&p->dq))
        TRY(build_dq(d, problem, s));
    if (attention90_given(&p->dk))
        TRY(bski_attention90_dkv_plan((bski_cuda_device *)d, problem, &s->dkv));
    return BSK_OK;
}

bsk_status cuda_sm90a_attention_grad_prepare(void *device, bsk_prepared *prepared)
{
    TRY(state_new(device, sizeof(state), prepared));
    const bsk_status status = build(device, prepared);
    if (status)
        cuda_sm90a_attention_grad_release(device, prepared);
    return status;
}

void cuda_sm90a_attention_grad_release(void *device, bsk_prepared *prepared)
{
    state *s = prepared->state;
    if (s) {
        bski_attention90_tables_free(device, &s->tables);
        bski_attention90_dkv_free(device, s->dkv);
    }
    state_free(device, prepared);
}

/* --- Running --- */

static bsk_status launch_dq(const state *s, const bsk_attention_grad_params *p,
                            const bsk_attention_grad_args *a, const attention80_delta *rows,
                            double rest, void *queue)
{
    CUtensorMap q, dout, o, k, v;
    TRY(bski_cuda_tensor_map(&s->encoder, &s->q, bsk_mem_address(a->q), &q));
    TRY(bski_cuda_tensor_map(&s->encoder, &s->dout, bsk_mem_address(a->dout), &dout));
    TRY(bski_cuda_tensor_map(&s->encoder, &s->o, bsk_mem_address(a->o), &o));
    TRY(bski_cuda_tensor_map(&s->encoder, &s->k, bsk_mem_address(a->k), &k));
    TRY(bski_cuda_tensor_map(&s->encoder, &s->v, bsk_mem_address(a->v), &v));
    attention_dq_arg arg = s->arg;
    ATTENTION90_SET_RUN(&arg.all, p, a);
    arg.all.o.data = bsk_mem_address(a->dq);
    arg.all.lse = bsk_mem_address(a->lse);
    arg.dout.data = bsk_mem_address(a->dout);
    arg.bound = rows->bound;
    arg.delta = rows->delta;
    arg.slope = rows->slope;
    arg.alpha = (float)(a->alpha * rest);
    arg.beta = (float)a->beta;
    void *arguments[] = {&q, &dout, &o, &k, &v, &arg};
    const bski_cuda_run run = {.function = s->form->function,
                               .name = s->form->name,
                               .grid = {(unsigned)s->tables.blocks, 1, 1},
                               .threads = ATTENTION_THREADS((unsigned)s->form->groups),
                               .shared_bytes = s->form->shared_bytes,
                               .arguments = arguments,
                               .early = true};
    return bski_cuda_launch(queue, &run);
}

bsk_status cuda_sm90a_attention_grad_launch(const bsk_prepared *prepared, void *queue,
                                            const void *args)
{
    const bsk_attention_grad_params *p = prepared->problem->params;
    const bsk_attention_grad_args *a = args;
    const state *s = prepared->state;
    double rest;
    const double slope = bski_attention90_slope(a->scale, p->q.dims[3], &rest);
    float *const bound = bsk_mem_address(a->workspace);
    const attention80_delta rows = {.pad = pad_of(p),
                                    .delta = bound + s->rows,
                                    .bound = bound,
                                    .q_len = ATTENTION90_ADDRESS(p, a, q_len),
                                    .slope = (float)slope};
    if (attention90_given(&p->dq))
        TRY(launch_dq(s, p, a, &rows, rest, queue));
    else
        TRY(bski_attention80_delta_launch(p, a, queue, &rows));
    if (attention90_given(&p->dk))
        TRY(bski_attention90_dkv_launch(s->dkv, prepared->problem, queue, a, bound, rows.delta));
    return BSK_OK;
}
