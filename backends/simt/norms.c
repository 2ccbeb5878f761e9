/* Host side of the normalisations. */
#include <backends/simt/entry.h>

#include <backends/simt/norms.h>

/* Runs of a packed row that a lane holds: NORM_RUNS and GRAD_RUNS of norms_layer.h. */
enum { NORM_RUNS = 4 };

static i64 grad_runs(const simt_device *d, bsk_dtype type)
{
    return simt_vec(d, type) == 8 ? 2 : 4;
}

/* 1 / count as an argument; sums over nothing stay 0. */
static i64 inverse_of(const bsk_prepared *prepared, i64 count)
{
    return simt_num(prepared, count > 0 ? 1 / (double)count : 0);
}

/* Lanes for `runs` runs, of which each holds `held`. */
static i32 lanes_for(const simt_device *d, i64 runs, i64 held)
{
    i32 lanes = 1;
    while (lanes < simt_lanes(d) && lanes * held < runs)
        lanes *= 2;
    return lanes;
}

/* Lanes next to each other along a dimension that is not reduced: as many as a line of the cache
 * takes. */
static i32 lanes_across(const simt_device *d, i64 runs)
{
    return simt_lanes_across(d, runs, 8);
}

/* Many groups, since rows cost the same and the device keeps itself busy. */
static i64 row_groups(const simt_device *d, i64 items)
{
    return bski_simt_groups_most(d, items, d->wide ? 4 : 4096);
}

/* --- sums by feature --- */

/* How the sums are shared out. */
typedef struct sums_plan {
    bool by_cols; /* lanes are along the features */
    i32 lanes;
    i64 features, outer, inner, across;
    simt_shares cut;
} sums_plan;

static sums_plan sums_of(const simt_device *d, bsk_dtype type, bool by_cols, i64 features,
                         i64 outer, i64 inner)
{
    const i64 vec = simt_vec(d, type);
    const i64 length = by_cols ? outer * inner : outer * simt_runs(inner, vec);
    sums_plan s = {.by_cols = by_cols, .features = features, .outer = outer, .inner = inner};
    s.lanes = by_cols ? lanes_across(d, simt_runs(features, vec)) : simt_lanes(d);
    s.across = by_cols ? bski_ceil_div(simt_runs(features, vec), s.lanes) : features;
    s.cut = bski_simt_shares(d, length, simt_lanes(d) / (by_cols ? s.lanes : 1), s.across, 16);
    return s;
}

static norm_sums_arg sums_arg(const sums_plan *s)
{
    return (norm_sums_arg){.features = s->features,
                           .outer = s->outer,
                           .inner = s->inner,
                           .segment = 1,
                           .share = s->cut.share,
                           .lanes = s->lanes};
}

/* The kernels of an op by number; those that it shares come first. */
enum { SUMS_COLS, SUMS_ROWS, FINISH, OWN };
#define SUMS_KERNELS "norm_sums_cols", "norm_sums_rows", "norm_finish"

static bsk_status sums_finish(const bsk_prepared *prepared, void *queue, i64 features, i64 shares,
                              double alpha, double beta, bsk_mem partial, bsk_mem first,
                              bsk_mem second)
{
    const simt_device *d = queue_device(queue);
    const norm_finish_arg arg = {.features = features,
                                 .shares = shares,
                                 .alpha = simt_num(prepared, alpha),
                                 .beta = simt_num(prepared, beta)};
    return LAUNCH(FINISH, simt_finish_groups(d, features), second.kind == BSK_MEM_NULL ? 1 : 2, arg,
                  partial, first, second);
}

/* --- layer_norm --- */

SIMT_RELEASE(layer_norm)

SIMT_ACCEPT(layer_norm)
{
    const bsk_layer_norm_params *p = problem->params;
    return ACCEPT(&p->x, &p->y);
}

enum { NORM, NORM_COLS, NORM_PACKED };

SIMT_PREPARE(layer_norm)
{
    static const simt_need need = {
        .file = "norms", .kernels = {"layer_norm", "layer_norm_cols", "layer_norm_packed"}};
    static const simt_need wide = {.file = "norms", .kernels = {"layer_norm", "layer_norm_cols"}};
    const simt_device *d = device;
    return bski_simt_prepare(device, prepared, d->wide ? &wide : &need);
}

/* Whether segments of `count` features consist of whole runs, of which lanes hold `held`. */
static bool segments_fit(const simt_device *d, bsk_dtype type, i64 count, i64 held)
{
    const i64 vec = simt_vec(d, type);
    return !d->wide && count > 0 && count % vec == 0 && count / vec <= held * SIMT_LANES;
}

SIMT_LAUNCH(layer_norm)
{
    const simt_device *d = queue_device(queue);
    const bsk_layer_norm_params *p = prepared->problem->params;
    const bsk_layer_norm_args *a = args;
    const bsk_dtype type = p->x.dtype;
    const bsk_tensor *const tensors[] = {&p->x, &p->y};
    const int feature = p->axis == BSK_NC ? 1 : 0, inner = bski_simt_inner(tensors, 2);
    const i64 features = p->x.dims[feature], count = features / p->segments;
    const bsk_mem gain = mem_of(&p->gain, a->gain), bias = mem_of(&p->bias, a->bias);
    const bsk_mem mean = mem_of(&p->mean, a->mean), rstd = mem_of(&p->rstd, a->rstd);
    const bool whole = p->segments == 1 || count % simt_vec(d, type) == 0;
    layer_norm_arg arg = {
        .rows = p->x.dims[1 - feature],
        .segments = p->segments,
        .count = count,
        .x_row = p->x.strides[1 - feature],
        .x_col = p->x.strides[feature],
        .y_row = p->y.strides[1 - feature],
        .y_col = p->y.strides[feature],
        .eps = simt_eps(prepared, p->eps),
        .inverse = inverse_of(prepared, count),
        .rms = p->rms,
        .relu = p->relu,
        .x_type = (i32)type,
        .y_type = (i32)p->y.dtype,
        .x_vector = bski_simt_vector(d, type, &p->x, a->x, inner),
        .y_vector = bski_simt_vector(d, type, &p->y, a->y, inner),
        .vector = bski_simt_vector_rows(d, type, gain, 1, 0) &&
                  bski_simt_vector_rows(d, type, bias, 1, 0),
    };
    if (inner != feature) {
        const i64 runs = simt_runs(arg.rows, simt_vec(d, type));
        arg.lanes = lanes_across(d, runs);
        return LAUNCH(NORM_COLS, row_groups(d, bski_ceil_div(runs, arg.lanes) * p->segments), 1,
                      arg, a->x, gain, bias, mean, rstd, a->y);
    }
    if (!whole && !d->wide)
        arg.x_vector = arg.y_vector = arg.vector = 0;
    const bool packed =
        segments_fit(d, type, count, NORM_RUNS) && arg.x_vector && arg.y_vector && arg.vector;
    arg.lanes = lanes_for(d, simt_runs(count, simt_vec(d, type)), NORM_RUNS);
    while (1 << arg.lanes_log < arg.lanes)
        arg.lanes_log++;
    const i64 batches = bski_ceil_div(arg.rows * p->segments, simt_lanes(d) / arg.lanes);
    if (packed && batches <= SIMT_MAX_GROUPS)
        return LAUNCH(NORM_PACKED, batches, 1, arg, a->x, gain, bias, mean, rstd, a->y);
    return LAUNCH(NORM, row_groups(d, batches), 1, arg, a->x, gain, bias, mean, rstd, a->y);
}

/* --- layer_norm_grad --- */

SIMT_RELEASE(layer_norm_grad)

/* How the work is shared out: the packed form's groups, and the sums of the others. */
typedef struct layer_plan {
    int feature, inner;
    i64 rows, features, count;
    i32 lanes, parts; /* the packed form's */
    simt_shares cut;
    bool fits;
    sums_plan sums;
    size_t bytes;
} layer_plan;

static bool layer_of(const simt_device *d, const bsk_layer_norm_grad_params *p, layer_plan *l)
{
    const bsk_dtype type = p->dy.dtype;
    const bsk_tensor *const tensors[] = {&p->dy, &p->x, &p->dx};
    const i64 vec = simt_vec(d, type), held = grad_runs(d, type);
    *l = (layer_plan){.feature = p->axis == BSK_NC ? 1 : 0, .inner = bski_simt_inner(tensors, 3)};
    l->rows = p->dy.dims[1 - l->feature];
    l->features = p->dy.dims[l->feature];
    l->count = l->features / p->segments;
    l->lanes = lanes_for(d, simt_runs(l->count, vec), held);
    l->parts = simt_lanes(d) / l->lanes;
    /* segments are an axis of the packed form's grid, of which devices take that many groups */
    l->fits = l->inner == l->feature && p->segments <= UINT16_MAX &&
              segments_fit(d, type, l->count, held);
    /* in steps of all parts, and all groups at once */
    l->cut = bski_simt_shares(d, bski_ceil_div(l->rows, l->parts), 1, p->segments, 2);
    l->cut.share *= l->parts;
    const bool by_cols = l->inner == l->feature;
    l->sums = sums_of(d, type, by_cols, l->features, by_cols ? l->rows : 1, by_cols ? 1 : l->rows);
    if (p->dgain.dtype == BSK_NONE && p->dbias.dtype == BSK_NONE)
        return true;
    const i64 packed = l->fits ? l->cut.shares * l->parts : 0;
    size_t at;
    i64 planes;
    return bski_mul_i64(2 * (packed > l->sums.cut.shares ? packed : l->sums.cut.shares),
                        l->features, &planes) &&
           bski_simt_space(&l->bytes, planes, simt_num_size(type), &at);
}

SIMT_ACCEPT(layer_norm_grad)
{
    const bsk_layer_norm_grad_params *p = problem->params;
    return ACCEPT(&p->dy, &p->x, &p->dx);
}

enum { SLOPE = OWN, SLOPE_COLS, SLOPE_PACKED, SLOPE_RELU_PACKED, SLOPE_MIXED };

/* Whether x and dx are of the type in which dy of 16 bits is computed with. */
static bool is_mixed(const bsk_layer_norm_grad_params *p)
{
    return (p->dy.dtype == BSK_F16 || p->dy.dtype == BSK_BF16) && p->x.dtype == BSK_F32 &&
           (p->dx.dtype == BSK_F32 || p->dx.dtype == BSK_NONE) && !p->relu;
}

SIMT_PREPARE(layer_norm_grad)
{
    static const simt_need need = {.file = "norms",
                                   .kernels = {SUMS_KERNELS, "layer_norm_grad",
                                               "layer_norm_grad_cols", "layer_norm_grad_packed",
                                               "layer_norm_grad_relu_packed"}};
    static const simt_need need_mixed = {
        .file = "norms",
        .kernels = {SUMS_KERNELS, "layer_norm_grad", "layer_norm_grad_cols",
                    "layer_norm_grad_packed", "layer_norm_grad_relu_packed",
                    "layer_norm_grad_mixed"}};
    static const simt_need wide = {
        .file = "norms", .kernels = {SUMS_KERNELS, "layer_norm_grad", "layer_norm_grad_cols"}};
    const simt_device *d = device;
    const bsk_layer_norm_grad_params *p = prepared->problem->params;
    layer_plan l;
    if (!layer_of(d, p, &l))
        return BSK_E_NOMEM;
    prepared->workspace_bytes = l.bytes;
    return bski_simt_prepare(device, prepared, d->wide ? &wide : is_mixed(p) ? &need_mixed : &need);
}

/* dgain and dbias where a kernel of their own sums them: before dx, which may be dy. */
static bsk_status layer_sums(const bsk_prepared *prepared, void *queue, const layer_plan *l,
                             const layer_norm_grad_arg *arg, const bsk_layer_norm_grad_args *a)
{
    const bsk_layer_norm_grad_params *p = prepared->problem->params;
    const sums_plan *s = &l->sums;
    norm_sums_arg sums = sums_arg(s);
    sums.segment = l->count;
    sums.what = SUM_LAYER;
    sums.relu = p->relu;
    sums.dy_feature = arg->dy_col;
    sums.x_feature = arg->x_col;
    sums.dy_outer = s->by_cols ? arg->dy_row : 0;
    sums.x_outer = s->by_cols ? arg->x_row : 0;
    sums.dy_inner = s->by_cols ? 0 : arg->dy_row;
    sums.x_inner = s->by_cols ? 0 : arg->x_row;
    sums.dy_type = arg->dy_type;
    sums.x_type = arg->x_type;
    sums.dy_vector = arg->dy_vector;
    sums.x_vector = arg->x_vector;
    return LAUNCH(s->by_cols ? SUMS_COLS : SUMS_ROWS, s->across, s->cut.shares, sums, a->dy, a->x,
                  mem_of(&p->mean, a->mean), a->rstd, mem_of(&p->gain, a->gain),
                  mem_of(&p->bias, a->bias), a->workspace);
}

static bsk_status layer_finish(const bsk_prepared *prepared, void *queue, const layer_plan *l,
                               i64 shares, const bsk_layer_norm_grad_args *a)
{
    const bsk_layer_norm_grad_params *p = prepared->problem->params;
    return sums_finish(prepared, queue, l->features, shares, a->alpha, a->beta, a->workspace,
                       mem_of(&p->dgain, a->dgain), mem_of(&p->dbias, a->dbias));
}

SIMT_LAUNCH(layer_norm_grad)
{
    const simt_device *d = queue_device(queue);
    const bsk_layer_norm_grad_params *p = prepared->problem->params;
    const bsk_layer_norm_grad_args *a = args;
    const bsk_dtype type = p->dy.dtype;
    const i64 vec = simt_vec(d, type);
    layer_plan l;
    if (!layer_of(d, p, &l))
        return bski_simt_unplanned(queue, "layer_norm_grad");
    const int f = l.feature, n = 1 - f;
    const bool sums = p->dgain.dtype != BSK_NONE || p->dbias.dtype != BSK_NONE;
    const bsk_mem mean = mem_of(&p->mean, a->mean), gain = mem_of(&p->gain, a->gain);
    const bsk_mem bias = mem_of(&p->bias, a->bias), dx = mem_of(&p->dx, a->dx);
    layer_norm_grad_arg arg = {
        .rows = l.rows,
        .segments = p->segments,
        .count = l.count,
        .dy_row = p->dy.strides[n],
        .dy_col = p->dy.strides[f],
        .x_row = p->x.strides[n],
        .x_col = p->x.strides[f],
        .dx_row = p->dx.strides[n],
        .dx_col = p->dx.strides[f],
        .share = l.cut.share,
        .inverse = inverse_of(prepared, l.count),
        .dx_alpha = simt_num(prepared, a->dx_alpha),
        .dx_beta = simt_num(prepared, a->dx_beta),
        .rms = p->rms,
        .relu = p->relu,
        .lanes = l.lanes,
        .dy_type = (i32)type,
        .x_type = (i32)p->x.dtype,
        .dx_type = (i32)p->dx.dtype,
        .dy_vector = bski_simt_vector(d, type, &p->dy, a->dy, l.inner),
        .x_vector = bski_simt_vector(d, type, &p->x, a->x, l.inner),
        .dx_vector = bski_simt_vector(d, type, &p->dx, dx, l.inner),
        .vector = bski_simt_vector_rows(d, type, gain, 1, 0) &&
                  bski_simt_vector_rows(d, type, bias, 1, 0),
    };
    const bool same = p->x.dtype == type && (p->dx.dtype == type || p->dx.dtype == BSK_NONE);
    if (l.fits && !p->dx_blend && arg.dy_vector && arg.x_vector && arg.dx_vector && arg.vector &&
        (same || is_mixed(p))) {
        const int kernel = !same ? SLOPE_MIXED : p->relu ? SLOPE_RELU_PACKED : SLOPE_PACKED;
        TRY(LAUNCH(kernel, l.cut.shares, p->segments, arg, a->dy, a->x, mean, a->rstd, gain, bias,
                   dx, sums ? a->workspace : mem_none()));
        return sums ? layer_finish(prepared, queue, &l, l.cut.shares * l.parts, a) : BSK_OK;
    }
    if (sums) {
        TRY(layer_sums(prepared, queue, &l, &arg, a));
        TRY(layer_finish(prepared, queue, &l, l.sums.cut.shares, a));
    }
    if (p->dx.dtype == BSK_NONE)
        return BSK_OK;
    if (l.inner != f) {
        const i64 runs = simt_runs(l.rows, vec);
        arg.lanes = lanes_across(d, runs);
        return LAUNCH(SLOPE_COLS, row_groups(d, bski_ceil_div(runs, arg.lanes) * p->segments), 1,
                      arg, a->dy, a->x, mean, a->rstd, gain, bias, dx);
    }
    if (!d->wide && p->segments > 1 && l.count % vec)
        arg.dy_vector = arg.x_vector = arg.dx_vector = arg.vector = 0;
    return LAUNCH(SLOPE, row_groups(d, bski_ceil_div(l.rows * p->segments, l.parts)), 1, arg, a->dy,
                  a->x, mean, a->rstd, gain, bias, dx);
}

/* --- batch_norm --- */

/* The walk: columns are the channels, or S. */
static bool channels_inner(const bsk_tensor *x)
{
    if (x->dims[2] > 1 && x->strides[2] == 1)
        return false;
    return x->dims[1] > 1 && (x->strides[1] == 1 || x->dims[1] >= x->dims[2]);
}

static sums_plan channel_sums(const simt_device *d, const bsk_tensor *x)
{
    return sums_of(d, x->dtype, channels_inner(x), x->dims[1], x->dims[0], x->dims[2]);
}

static batch_norm_arg batch_of(const bsk_prepared *prepared, const bsk_tensor *main, double eps)
{
    const bool by_col = channels_inner(main);
    return (batch_norm_arg){
        .outer = main->dims[0],
        .middle = main->dims[by_col ? 2 : 1],
        .cols = main->dims[by_col ? 1 : 2],
        .eps = simt_eps(prepared, eps),
        .inverse = inverse_of(prepared, main->dims[0] * main->dims[2]),
        .by_col = by_col,
    };
}

static i64 batch_groups(const bsk_prepared *prepared, const simt_device *d,
                        const batch_norm_arg *arg)
{
    const i64 vec = simt_vec(d, prepared->problem->dtype);
    return bski_simt_groups(d, arg->outer * arg->middle * simt_runs(arg->cols, vec));
}

/* y from x and the statistics; kernel number `kernel` of the plan. */
static bsk_status batch_apply(const bsk_prepared *prepared, void *queue, int kernel,
                              const bsk_batch_norm_params *p, const bsk_batch_norm_args *a)
{
    const simt_device *d = queue_device(queue);
    batch_norm_arg arg = batch_of(prepared, &p->x, p->eps);
    const int inner = arg.by_col ? 1 : 2, middle = 3 - inner;
    arg.x_outer = p->x.strides[0];
    arg.x_middle = p->x.strides[middle];
    arg.x_col = p->x.strides[inner];
    arg.y_outer = p->y.strides[0];
    arg.y_middle = p->y.strides[middle];
    arg.y_col = p->y.strides[inner];
    arg.x_type = (i32)p->x.dtype;
    arg.y_type = (i32)p->y.dtype;
    arg.x_vector = bski_simt_vector(d, p->x.dtype, &p->x, a->x, inner);
    arg.y_vector = bski_simt_vector(d, p->x.dtype, &p->y, a->y, inner);
    return LAUNCH(kernel, batch_groups(prepared, d, &arg), 1, arg, a->x, a->mean, a->var,
                  mem_of(&p->gain, a->gain), mem_of(&p->bias, a->bias), a->y);
}

SIMT_RELEASE(batch_norm)

SIMT_ACCEPT(batch_norm)
{
    const bsk_batch_norm_params *p = problem->params;
    return ACCEPT(&p->x, &p->y);
}

SIMT_PREPARE(batch_norm)
{
    static const simt_need need = {.file = "norms", .kernels = {SUMS_KERNELS, "batch_norm"}};
    const bsk_batch_norm_params *p = prepared->problem->params;
    const sums_plan s = channel_sums(device, &p->x);
    i64 count;
    size_t at;
    if (!bski_mul_i64(s.cut.shares, s.features, &count) ||
        !bski_simt_space(&prepared->workspace_bytes, count, simt_num_size(p->x.dtype), &at))
        return BSK_E_NOMEM;
    return bski_simt_prepare(device, prepared, &need);
}

SIMT_LAUNCH(batch_norm)
{
    const simt_device *d = queue_device(queue);
    const bsk_batch_norm_params *p = prepared->problem->params;
    const bsk_batch_norm_args *a = args;
    const sums_plan s = channel_sums(d, &p->x);
    const double count = (double)p->x.dims[0] * (double)p->x.dims[2];
    norm_sums_arg sums = sums_arg(&s);
    sums.dy_outer = p->x.strides[0];
    sums.dy_feature = p->x.strides[1];
    sums.dy_inner = p->x.strides[2];
    sums.dy_type = (i32)p->x.dtype;
    sums.dy_vector = bski_simt_vector(d, p->x.dtype, &p->x, a->x, s.by_cols ? 1 : 2);
    for (int pass = 0; pass < 2; pass++) {
        sums.what = pass ? SUM_SQUARES : SUM_PLAIN;
        TRY(LAUNCH(s.by_cols ? SUMS_COLS : SUMS_ROWS, s.across, s.cut.shares, sums, a->x,
                   mem_none(), pass ? a->mean : mem_none(), mem_none(), mem_none(), mem_none(),
                   a->workspace));
        TRY(sums_finish(prepared, queue, s.features, s.cut.shares, count > 0 ? 1 / count : 0, 0,
                        a->workspace, pass ? a->var : a->mean, mem_none()));
    }
    return batch_apply(prepared, queue, OWN, p, a);
}

SIMT_PREPARE_BY(batch_norm_infer, .file = "norms", .kernels = {"batch_norm"})

SIMT_ACCEPT(batch_norm_infer)
{
    const bsk_batch_norm_infer_params *p = problem->params;
    return ACCEPT(&p->x, &p->y);
}

SIMT_LAUNCH(batch_norm_infer)
{
    const bsk_batch_norm_infer_params *p = prepared->problem->params;
    const bsk_batch_norm_infer_args *a = args;
    const bsk_batch_norm_params params = {.eps = p->eps,
                                          .x = p->x,
                                          .y = p->y,
                                          .mean = p->mean,
                                          .var = p->var,
                                          .gain = p->gain,
                                          .bias = p->bias};
    const bsk_batch_norm_args same = {
        .x = a->x, .y = a->y, .mean = a->mean, .var = a->var, .gain = a->gain, .bias = a->bias};
    return batch_apply(prepared, queue, 0, &params, &same);
}

/* --- batch_norm_grad --- */

SIMT_RELEASE(batch_norm_grad)

SIMT_ACCEPT(batch_norm_grad)
{
    const bsk_batch_norm_grad_params *p = problem->params;
    return ACCEPT(&p->dy, &p->x, &p->dx);
}

/* What the workspace holds: the partial sums, and the sums that dx takes. */
typedef struct batch_plan {
    sums_plan sums;
    size_t partial, total, bytes;
} batch_plan;

static bool batch_plan_of(const simt_device *d, const bsk_batch_norm_grad_params *p, batch_plan *b)
{
    const size_t size = simt_num_size(p->dy.dtype);
    i64 count;
    *b = (batch_plan){.sums = channel_sums(d, &p->dy)};
    return bski_mul_i64(2 * b->sums.cut.shares, b->sums.features, &count) &&
           bski_simt_space(&b->bytes, count, size, &b->partial) &&
           bski_simt_space(&b->bytes, 2 * b->sums.features, size, &b->total);
}

SIMT_PREPARE(batch_norm_grad)
{
    static const simt_need need = {.file = "norms", .kernels = {SUMS_KERNELS, "batch_norm_grad"}};
    batch_plan b;
    if (!batch_plan_of(device, prepared->problem->params, &b))
        return BSK_E_NOMEM;
    prepared->workspace_bytes = b.bytes;
    return bski_simt_prepare(device, prepared, &need);
}

static bsk_status batch_sums(const bsk_prepared *prepared, void *queue, const batch_plan *b,
                             const bsk_batch_norm_grad_args *a)
{
    const simt_device *d = queue_device(queue);
    const bsk_batch_norm_grad_params *p = prepared->problem->params;
    const sums_plan *s = &b->sums;
    const int inner = s->by_cols ? 1 : 2;
    const bsk_mem partial = bsk_mem_at(a->workspace, b->partial);
    norm_sums_arg sums = sums_arg(s);
    sums.dy_outer = p->dy.strides[0];
    sums.dy_feature = p->dy.strides[1];
    sums.dy_inner = p->dy.strides[2];
    sums.x_outer = p->x.strides[0];
    sums.x_feature = p->x.strides[1];
    sums.x_inner = p->x.strides[2];
    sums.eps = simt_eps(prepared, p->eps);
    sums.what = SUM_BATCH;
    sums.dy_type = (i32)p->dy.dtype;
    sums.x_type = (i32)p->x.dtype;
    sums.dy_vector = bski_simt_vector(d, p->dy.dtype, &p->dy, a->dy, inner);
    sums.x_vector = bski_simt_vector(d, p->dy.dtype, &p->x, a->x, inner);
    return LAUNCH(s->by_cols ? SUMS_COLS : SUMS_ROWS, s->across, s->cut.shares, sums, a->dy, a->x,
                  a->mean, a->var, mem_none(), mem_none(), partial);
}

SIMT_LAUNCH(batch_norm_grad)
{
    const simt_device *d = queue_device(queue);
    const bsk_batch_norm_grad_params *p = prepared->problem->params;
    const bsk_batch_norm_grad_args *a = args;
    const bool outputs = p->dgain.dtype != BSK_NONE || p->dbias.dtype != BSK_NONE;
    const bool moves = p->dx.dtype != BSK_NONE && !p->infer;
    batch_plan b;
    if (!batch_plan_of(d, p, &b))
        return bski_simt_unplanned(queue, "batch_norm_grad");
    const sums_plan *s = &b.sums;
    const bsk_mem partial = bsk_mem_at(a->workspace, b.partial);
    const bsk_mem total = bsk_mem_at(a->workspace, b.total);
    const size_t second = (size_t)s->features * simt_num_size(p->dy.dtype);
    if (outputs || moves)
        TRY(batch_sums(prepared, queue, &b, a));
    if (outputs)
        TRY(sums_finish(prepared, queue, s->features, s->cut.shares, a->alpha, a->beta, partial,
                        mem_of(&p->dgain, a->dgain), mem_of(&p->dbias, a->dbias)));
    if (moves)
        TRY(sums_finish(prepared, queue, s->features, s->cut.shares, 1, 0, partial, total,
                        bsk_mem_at(total, second)));
    if (p->dx.dtype == BSK_NONE)
        return BSK_OK;
    batch_norm_arg arg = batch_of(prepared, &p->dy, p->eps);
    const int inner = arg.by_col ? 1 : 2, middle = 3 - inner;
    arg.dy_outer = p->dy.strides[0];
    arg.dy_middle = p->dy.strides[middle];
    arg.dy_col = p->dy.strides[inner];
    arg.x_outer = p->x.strides[0];
    arg.x_middle = p->x.strides[middle];
    arg.x_col = p->x.strides[inner];
    arg.y_outer = p->dx.strides[0];
    arg.y_middle = p->dx.strides[middle];
    arg.y_col = p->dx.strides[inner];
    arg.dy_type = (i32)p->dy.dtype;
    arg.x_type = (i32)p->x.dtype;
    arg.y_type = (i32)p->dx.dtype;
    arg.dx_alpha = simt_num(prepared, a->dx_alpha);
    arg.dx_beta = simt_num(prepared, a->dx_beta);
    arg.dy_vector = bski_simt_vector(d, p->dy.dtype, &p->dy, a->dy, inner);
    arg.x_vector = bski_simt_vector(d, p->dy.dtype, &p->x, a->x, inner);
    arg.y_vector = bski_simt_vector(d, p->dy.dtype, &p->dx, a->dx, inner);
    return LAUNCH(OWN, batch_groups(prepared, d, &arg), 1, arg, a->dy, a->x, a->mean, a->var,
                  mem_of(&p->gain, a->gain), moves ? total : mem_none(), a->dx);
}
