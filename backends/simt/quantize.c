/* Host side of quantize and tensor_stats. */
#include <backends/simt/maps.h>

#include <backends/simt/quantize.h>

/* --- quantize --- */

SIMT_ACCEPT(quantize)
{
    const bsk_quantize_params *p = problem->params;
    return ACCEPT(&p->x, &p->y);
}

SIMT_RELEASE(quantize)

SIMT_PREPARE(quantize)
{
    static const simt_need need = {.file = "quantize", .kernels = {"quantize"}, .single = true};
    const bsk_quantize_params *p = prepared->problem->params;
    return bski_simt_map_prepare(device, prepared, &need, (const bsk_tensor *const[]){&p->x}, 1);
}

SIMT_LAUNCH(quantize)
{
    const simt_device *d = queue_device(queue);
    const bsk_quantize_params *p = prepared->problem->params;
    const bsk_quantize_args *a = args;
    const simt_map m = {
        .y = {&p->y, a->y}, .x = {{&p->x, a->x}}, .inputs = 1, .random = p->stochastic};
    map_arg arg = bski_simt_map(prepared, queue, &m);
    arg.kind = p->ebits << 5 | p->fbits;
    arg.option = (p->stochastic ? QUANTIZE_STOCHASTIC : 0) | (p->flush ? QUANTIZE_FLUSH : 0);
    arg.limit = (i32)a->emax;
    arg.seed = (i64)a->seed;
    arg.offset = (i64)a->offset;
    return LAUNCH(0, bski_simt_map_groups(d, simt_map_kernel_type(prepared), &arg.shape), 1, arg,
                  a->x, mem_of(&p->exponent, a->exponent), a->y);
}

/* --- tensor_stats --- */

enum { PARTS_KERNEL, JOIN_KERNEL, SQUARES_KERNEL, FINISH_KERNEL };

static stats_arg stats_of(const simt_device *d, bsk_dtype type, const bsk_tensor *t, bsk_mem mem)
{
    simt_dims s = bski_simt_dims(t);
    bski_simt_dims_add(&s, t);
    bski_simt_dims_join(&s, bski_simt_dims_inner(&s));
    stats_arg arg = {
        .shape = bski_simt_dims_shape(&s),
        .x = bski_simt_dims_view(&s, 0, d, type, t, mem),
        .count = bski_simt_dims_count(&s),
    };
    arg.parts = (i32)bski_simt_map_groups(d, type, &arg.shape);
    return arg;
}

SIMT_ACCEPT(tensor_stats)
{
    const bsk_tensor_stats_params *p = problem->params;
    return ACCEPT(&p->x);
}

SIMT_RELEASE(tensor_stats)

SIMT_PREPARE(tensor_stats)
{
    static const simt_need need = {
        .file = "quantize",
        .kernels = {"stats_parts", "stats_join", "stats_squares", "stats_finish"},
        .single = true};
    const bsk_tensor_stats_params *p = prepared->problem->params;
    const stats_arg arg =
        stats_of(device, simt_single(p->x.dtype), &p->x, (bsk_mem){.kind = BSK_MEM_NULL});
    size_t at;
    if (!bski_simt_space(&prepared->workspace_bytes, (i64)STATS_PARTS * arg.parts,
                         simt_num_size(p->x.dtype), &at))
        return BSK_E_NOMEM;
    return bski_simt_prepare(device, prepared, &need);
}

/* A limit with which numbers of a type are compared. */
static i64 limit_num(bsk_dtype type, double limit)
{
    return bski_simt_num(type, type == BSK_F64 ? limit : (double)bski_f32_up(limit));
}

SIMT_LAUNCH(tensor_stats)
{
    const simt_device *d = queue_device(queue);
    const bsk_tensor_stats_params *p = prepared->problem->params;
    const bsk_tensor_stats_args *a = args;
    const bsk_dtype type = simt_single(p->x.dtype);
    stats_arg arg = stats_of(d, type, &p->x, a->x);
    arg.saturate = limit_num(type, a->saturate > 0 ? a->saturate : 65504);
    arg.tiny = limit_num(type, a->tiny > 0 ? a->tiny : 0x1p-24);
    arg.spread = bski_simt_num(type, p->spread);
    arg.bias_pad = p->bias_pad;
    TRY(LAUNCH(PARTS_KERNEL, arg.parts, 1, arg, a->x, a->workspace));
    TRY(LAUNCH(JOIN_KERNEL, 1, 1, arg, a->workspace, a->stats));
    TRY(LAUNCH(SQUARES_KERNEL, arg.parts, 1, arg, a->x, a->stats, a->workspace));
    return LAUNCH(FINISH_KERNEL, 1, 1, arg, a->workspace, a->stats,
                  mem_of(&p->exponent, a->exponent));
}
