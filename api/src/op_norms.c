/* Descriptors of the normalisations. */
#include <math.h>
#include <string.h>

#include "api/src/internal.h"
#include "common/dtype.h"

#define FLOATS BSKI_FLOATS

/* --- layer_norm --------------------------------------------------------------------------- */

extern const bski_op_info bski_op_layer_norm, bski_op_layer_norm_grad;

/* Features of x by axis, and the number of rows. */
static int64_t features_of(const bsk_tensor *x, bsk_axis axis)
{
    return x->dims[axis == BSK_NC ? 1 : 0];
}

static int64_t rows_of(const bsk_tensor *x, bsk_axis axis)
{
    return x->dims[axis == BSK_NC ? 0 : 1];
}

/* Without features, any number divides them; of segments of all rows there are no more than can be
 * counted. */
static bsk_status expect_segments(const bski_op_info *op, int64_t segments, int64_t features,
                                  int64_t rows)
{
    const int64_t most = INT64_MAX / (rows > 0 ? rows : 1);
    if (segments > most)
        return bski_fail(BSK_E_INVALID, "%s: segments is %lld; legal are up to %lld with %lld rows",
                         op->name, (long long)segments, (long long)most, (long long)rows);
    if (features % segments == 0)
        return BSK_OK;
    return bski_fail(BSK_E_INVALID, "%s: segments is %lld; must divide the %lld features", op->name,
                     (long long)segments, (long long)features);
}

/* mean and rstd: [segments, rows]. */
static bsk_status expect_statistics(const bski_op_info *op, const char *name, const bsk_tensor *t,
                                    int64_t segments, int64_t rows)
{
    const int64_t dims[2] = {segments, rows};
    return t->dtype == BSK_NONE ? BSK_OK
                                : bski_expect_shape(op, name, t, 2, dims, "segments, rows");
}

static bsk_status layer_norm_check(const bski_op_info *op, const void *params,
                                   const bsk_layout_tables *l)
{
    (void)l;
    const bsk_layer_norm_params *p = params;
    const int64_t features = features_of(&p->x, p->axis), rows = rows_of(&p->x, p->axis);
    if (p->mean.dtype != BSK_NONE && (p->rms || op != &bski_op_layer_norm))
        return bski_fail(BSK_E_INVALID, "%s: mean is given; it counts as 0 here", op->name);
    BSKI_TRY(expect_segments(op, p->segments, features, rows));
    BSKI_TRY(bski_expect_like(op, "y", &p->y, &p->x, "as x"));
    BSKI_TRY(bski_expect_vector(op, "gain", &p->gain, features, "features"));
    BSKI_TRY(bski_expect_vector(op, "bias", &p->bias, features, "features"));
    BSKI_TRY(expect_statistics(op, "mean", &p->mean, p->segments, rows));
    return expect_statistics(op, "rstd", &p->rstd, p->segments, rows);
}

static const bski_arg layer_norm_args[] = {
    {BSKI_ACTIVATION(layer_norm, x), .dtypes = FLOATS},
    {BSKI_ACTIVATION(layer_norm, y), .role = BSKI_OUT, .alias = 1 << 0, .dtypes = FLOATS},
    {BSKI_VECTOR(layer_norm, gain), .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(layer_norm, bias), .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_ARG(layer_norm, mean), .role = BSKI_OUT, .optional = 1, .rank_min = 2, .rank_max = 2,
     .strides = BSKI_CONTIGUOUS, .dtypes = BSKI_SIDE},
    {BSKI_ARG(layer_norm, rstd), .role = BSKI_OUT, .optional = 1, .rank_min = 2, .rank_max = 2,
     .strides = BSKI_CONTIGUOUS, .dtypes = BSKI_SIDE},
};

static const bski_field layer_norm_attrs[] = {
    BSKI_ATTR(layer_norm, axis, I32, 0, 1),
    BSKI_ATTR_OR(layer_norm, segments, I64, 0, INFINITY, 1),
    BSKI_ATTR(layer_norm, relu, I32, 0, 1),
    BSKI_ATTR(layer_norm, rms, I32, 0, 1),
    BSKI_ATTR_BELOW(layer_norm, eps, F64, 0, INFINITY, 1e-6),
};

const bski_op_info bski_op_layer_norm = {
    .name = "layer_norm",
    .kernel_op = BSK_OP_LAYER_NORM,
    BSKI_STRUCTS(layer_norm),
    BSKI_TABLE(arg, layer_norm_args),
    BSKI_TABLE(attr, layer_norm_attrs),
    .check = layer_norm_check,
};
BSKI_DEFINE_OP(layer_norm, layer_norm)

static bsk_status layer_norm_grad_check(const bski_op_info *op, const void *params,
                                        const bsk_layout_tables *l)
{
    (void)l;
    const bsk_layer_norm_grad_params *p = params;
    const int64_t features = features_of(&p->dy, p->axis), rows = rows_of(&p->dy, p->axis);
    const bool rms = p->rms || op != &bski_op_layer_norm_grad;
    if (p->dx.dtype == BSK_NONE && p->dgain.dtype == BSK_NONE && p->dbias.dtype == BSK_NONE)
        return bski_fail(BSK_E_INVALID, "%s: dx, dgain and dbias are absent; one is needed",
                         op->name);
    if (rms ? p->mean.dtype != BSK_NONE : p->mean.dtype == BSK_NONE)
        return bski_fail(BSK_E_INVALID, "%s: mean is %s", op->name,
                         rms ? "given; it counts as 0 here" : "absent but required");
    BSKI_TRY(expect_segments(op, p->segments, features, rows));
    BSKI_TRY(bski_expect_like(op, "x", &p->x, &p->dy, "as dy"));
    BSKI_TRY(bski_expect_like(op, "dx", &p->dx, &p->dy, "as dy"));
    BSKI_TRY(expect_statistics(op, "rstd", &p->rstd, p->segments, rows));
    BSKI_TRY(expect_statistics(op, "mean", &p->mean, p->segments, rows));
    BSKI_TRY(bski_expect_vector(op, "gain", &p->gain, features, "features"));
    BSKI_TRY(bski_expect_vector(op, "bias", &p->bias, features, "features"));
    BSKI_TRY(bski_expect_vector(op, "dgain", &p->dgain, features, "features"));
    return bski_expect_vector(op, "dbias", &p->dbias, features, "features");
}

static const bski_arg layer_norm_grad_args[] = {
    {BSKI_ACTIVATION(layer_norm_grad, dy), .dtypes = FLOATS},
    {BSKI_ACTIVATION(layer_norm_grad, x), .dtypes = FLOATS},
    {BSKI_ARG(layer_norm_grad, rstd), .rank_min = 2, .rank_max = 2, .strides = BSKI_CONTIGUOUS,
     .dtypes = BSKI_SIDE},
    {BSKI_ARG(layer_norm_grad, mean), .optional = 1, .rank_min = 2, .rank_max = 2,
     .strides = BSKI_CONTIGUOUS, .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(layer_norm_grad, gain), .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(layer_norm_grad, bias), .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_ACTIVATION(layer_norm_grad, dx), .role = BSKI_OUT, .optional = 1, .alias = 1 << 0,
     .dtypes = FLOATS},
    {BSKI_VECTOR(layer_norm_grad, dgain), .role = BSKI_OUT, .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(layer_norm_grad, dbias), .role = BSKI_OUT, .optional = 1, .dtypes = BSKI_SIDE},
};

static const bski_field layer_norm_grad_attrs[] = {
    BSKI_ATTR(layer_norm_grad, axis, I32, 0, 1),
    BSKI_ATTR_OR(layer_norm_grad, segments, I64, 0, INFINITY, 1),
    BSKI_ATTR(layer_norm_grad, relu, I32, 0, 1),
    BSKI_ATTR(layer_norm_grad, rms, I32, 0, 1),
    BSKI_DX_BLEND(layer_norm_grad),
};

static const bski_field layer_norm_grad_scalars[] = {
    BSKI_ALPHA_BETA(layer_norm_grad),
    BSKI_DX_ALPHA_BETA(layer_norm_grad),
};

BSKI_DX_LOWER(layer_norm_grad)

const bski_op_info bski_op_layer_norm_grad = {
    .name = "layer_norm_grad",
    .kernel_op = BSK_OP_LAYER_NORM_GRAD,
    BSKI_STRUCTS(layer_norm_grad),
    BSKI_TABLE(arg, layer_norm_grad_args),
    BSKI_TABLE(attr, layer_norm_grad_attrs),
    BSKI_TABLE(scalar, layer_norm_grad_scalars),
    .check = layer_norm_grad_check,
    .lower_args = layer_norm_grad_lower,
};
BSKI_DEFINE_OP(layer_norm_grad, layer_norm_grad)

static void rms_norm_params(const void *params, void *kernel_params)
{
    bsk_layer_norm_params *k = kernel_params;
    memcpy(k, params, sizeof *k);
    k->rms = 1;
}

static void rms_norm_lower(const void *params, const void *args, void *kernel_args)
{
    (void)params;
    memcpy(kernel_args, args, sizeof(bsk_layer_norm_args));
}

const bski_op_info bski_op_rms_norm = {
    .name = "rms_norm",
    .kernel_op = BSK_OP_LAYER_NORM,
    BSKI_STRUCTS(layer_norm),
    BSKI_TABLE(arg, layer_norm_args),
    BSKI_TABLE(attr, layer_norm_attrs),
    .check = layer_norm_check,
    .lower_params = rms_norm_params,
    .lower_args = rms_norm_lower,
};
BSKI_DEFINE_OP(rms_norm, layer_norm)

static void rms_norm_grad_params(const void *params, void *kernel_params)
{
    bsk_layer_norm_grad_params *k = kernel_params;
    memcpy(k, params, sizeof *k);
    k->rms = 1;
}

const bski_op_info bski_op_rms_norm_grad = {
    .name = "rms_norm_grad",
    .kernel_op = BSK_OP_LAYER_NORM_GRAD,
    BSKI_STRUCTS(layer_norm_grad),
    BSKI_TABLE(arg, layer_norm_grad_args),
    BSKI_TABLE(attr, layer_norm_grad_attrs),
    BSKI_TABLE(scalar, layer_norm_grad_scalars),
    .check = layer_norm_grad_check,
    .lower_params = rms_norm_grad_params,
    .lower_args = layer_norm_grad_lower,
};
BSKI_DEFINE_OP(rms_norm_grad, layer_norm_grad)

/* --- batch_norm --------------------------------------------------------------------------- */

/* The vectors of the three batch_norm ops. */
static bsk_status expect_channels(const bski_op_info *op, const bsk_tensor *x,
                                  const bsk_tensor *const *vectors, const char *const *names,
                                  int count)
{
    for (int i = 0; i < count; i++)
        BSKI_TRY(bski_expect_vector(op, names[i], vectors[i], x->dims[1], "channels"));
    return BSK_OK;
}

static const bski_arg batch_norm_args[] = {
    {BSKI_ARG(batch_norm, x), .rank_min = 3, .rank_max = 3, .dtypes = FLOATS},
    {BSKI_ARG(batch_norm, y), .role = BSKI_OUT, .rank_min = 3, .rank_max = 3, .alias = 1 << 0,
     .dtypes = FLOATS},
    {BSKI_VECTOR(batch_norm, mean), .role = BSKI_OUT, .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(batch_norm, var), .role = BSKI_OUT, .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(batch_norm, gain), .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(batch_norm, bias), .optional = 1, .dtypes = BSKI_SIDE},
};

static const bski_field batch_norm_attrs[] = {
    BSKI_ATTR_BELOW(batch_norm, eps, F64, 0, INFINITY, 1e-6),
};

static bsk_status batch_norm_check(const bski_op_info *op, const void *params,
                                   const bsk_layout_tables *l)
{
    (void)l;
    const bsk_batch_norm_params *p = params;
    static const char *const names[] = {"mean", "var", "gain", "bias"};
    const bsk_tensor *const vectors[] = {&p->mean, &p->var, &p->gain, &p->bias};
    BSKI_TRY(bski_expect_like(op, "y", &p->y, &p->x, "as x"));
    return expect_channels(op, &p->x, vectors, names, BSKI_COUNT(names));
}

const bski_op_info bski_op_batch_norm = {
    .name = "batch_norm",
    .kernel_op = BSK_OP_BATCH_NORM,
    BSKI_STRUCTS(batch_norm),
    BSKI_TABLE(arg, batch_norm_args),
    BSKI_TABLE(attr, batch_norm_attrs),
    .check = batch_norm_check,
};
BSKI_DEFINE_OP(batch_norm, batch_norm)

static const bski_arg batch_norm_infer_args[] = {
    {BSKI_ARG(batch_norm_infer, x), .rank_min = 3, .rank_max = 3, .dtypes = FLOATS},
    {BSKI_ARG(batch_norm_infer, y), .role = BSKI_OUT, .rank_min = 3, .rank_max = 3, .alias = 1 << 0,
     .dtypes = FLOATS},
    {BSKI_VECTOR(batch_norm_infer, mean), .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(batch_norm_infer, var), .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(batch_norm_infer, gain), .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(batch_norm_infer, bias), .optional = 1, .dtypes = BSKI_SIDE},
};

static const bski_field batch_norm_infer_attrs[] = {
    BSKI_ATTR_BELOW(batch_norm_infer, eps, F64, 0, INFINITY, 1e-6),
};

static bsk_status batch_norm_infer_check(const bski_op_info *op, const void *params,
                                         const bsk_layout_tables *l)
{
    (void)l;
    const bsk_batch_norm_infer_params *p = params;
    static const char *const names[] = {"mean", "var", "gain", "bias"};
    const bsk_tensor *const vectors[] = {&p->mean, &p->var, &p->gain, &p->bias};
    BSKI_TRY(bski_expect_like(op, "y", &p->y, &p->x, "as x"));
    return expect_channels(op, &p->x, vectors, names, BSKI_COUNT(names));
}

const bski_op_info bski_op_batch_norm_infer = {
    .name = "batch_norm_infer",
    .kernel_op = BSK_OP_BATCH_NORM_INFER,
    BSKI_STRUCTS(batch_norm_infer),
    BSKI_TABLE(arg, batch_norm_infer_args),
    BSKI_TABLE(attr, batch_norm_infer_attrs),
    .check = batch_norm_infer_check,
};
BSKI_DEFINE_OP(batch_norm_infer, batch_norm_infer)

static const bski_arg batch_norm_grad_args[] = {
    {BSKI_ARG(batch_norm_grad, dy), .rank_min = 3, .rank_max = 3, .dtypes = FLOATS},
    {BSKI_ARG(batch_norm_grad, x), .rank_min = 3, .rank_max = 3, .dtypes = FLOATS},
    {BSKI_VECTOR(batch_norm_grad, mean), .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(batch_norm_grad, var), .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(batch_norm_grad, gain), .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_ARG(batch_norm_grad, dx), .role = BSKI_OUT, .optional = 1, .rank_min = 3, .rank_max = 3,
     .alias = 1 << 0, .dtypes = FLOATS},
    {BSKI_VECTOR(batch_norm_grad, dgain), .role = BSKI_OUT, .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(batch_norm_grad, dbias), .role = BSKI_OUT, .optional = 1, .dtypes = BSKI_SIDE},
};

static const bski_field batch_norm_grad_attrs[] = {
    BSKI_ATTR(batch_norm_grad, infer, I32, 0, 1),
    BSKI_DX_BLEND(batch_norm_grad),
    BSKI_ATTR_BELOW(batch_norm_grad, eps, F64, 0, INFINITY, 1e-6),
};

static const bski_field batch_norm_grad_scalars[] = {
    BSKI_ALPHA_BETA(batch_norm_grad),
    BSKI_DX_ALPHA_BETA(batch_norm_grad),
};

BSKI_DX_LOWER(batch_norm_grad)

static bsk_status batch_norm_grad_check(const bski_op_info *op, const void *params,
                                        const bsk_layout_tables *l)
{
    (void)l;
    const bsk_batch_norm_grad_params *p = params;
    static const char *const names[] = {"mean", "var", "gain", "dgain", "dbias"};
    const bsk_tensor *const vectors[] = {&p->mean, &p->var, &p->gain, &p->dgain, &p->dbias};
    if (p->dx.dtype == BSK_NONE && p->dgain.dtype == BSK_NONE && p->dbias.dtype == BSK_NONE)
        return bski_fail(BSK_E_INVALID, "%s: dx, dgain and dbias are absent; one is needed",
                         op->name);
    BSKI_TRY(bski_expect_like(op, "x", &p->x, &p->dy, "as dy"));
    BSKI_TRY(bski_expect_like(op, "dx", &p->dx, &p->dy, "as dy"));
    return expect_channels(op, &p->dy, vectors, names, BSKI_COUNT(names));
}

const bski_op_info bski_op_batch_norm_grad = {
    .name = "batch_norm_grad",
    .kernel_op = BSK_OP_BATCH_NORM_GRAD,
    BSKI_STRUCTS(batch_norm_grad),
    BSKI_TABLE(arg, batch_norm_grad_args),
    BSKI_TABLE(attr, batch_norm_grad_attrs),
    BSKI_TABLE(scalar, batch_norm_grad_scalars),
    .check = batch_norm_grad_check,
    .lower_args = batch_norm_grad_lower,
};
BSKI_DEFINE_OP(batch_norm_grad, batch_norm_grad)
