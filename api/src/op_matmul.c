/* Descriptors of the products: matmul, its gradients, dsd, dds, sdd and reduced_wgrad. */
#include <math.h>

#include "api/src/internal.h"
#include "common/checked.h"
#include "common/dtype.h"

/* Results of any float type, operands of 8 bits too; side vectors are f32, or f64 beside f64. */
#define FLOATS   BSKI_FLOATS
#define OPERANDS (BSKI_FLOATS | BSKI_SCALED)

/* --- counts ----------------------------------------------------------------------------------- */

/* Kept elements that lie inside the matrix, over all heads. */
static double kept_elements(const bsk_layout_tables *l)
{
    double sum = 0;
    int64_t last_rows = l->rows - (int64_t)(l->grid_rows - 1) * l->block_rows;
    int64_t last_cols = l->cols - (int64_t)(l->grid_cols - 1) * l->block_cols;
    if (last_rows == l->block_rows && last_cols == l->block_cols)
        return (double)l->nnz * l->block_rows * l->block_cols;
    for (int64_t s = 0; s < l->nnz; s++) {
        int64_t r = l->slot_row[s] == l->grid_rows - 1 ? last_rows : l->block_rows;
        int64_t c = l->slot_col[s] == l->grid_cols - 1 ? last_cols : l->block_cols;
        sum += (double)(r * c);
    }
    return sum;
}

static double batches(const bsk_tensor *t, const bsk_layout_tables *l)
{
    return t->rank == 3 ? (double)t->dims[0] / l->heads : 1;
}

/* --- shared checks ---------------------------------------------------------------------------- */

static bsk_status expect_blocks(const bski_op_info *op, const char *name, const bsk_tensor *t,
                                const bsk_layout_tables *l, int64_t groups)
{
    if (t->dtype == BSK_NONE)
        return BSK_OK;
    if (t->rank == 4) {
        BSKI_TRY(bski_expect_dim(op, name, t, 0, groups, "batch / heads"));
        BSKI_TRY(bski_expect_dim(op, name, t, 1, l->nnz, "kept blocks of the layout"));
        BSKI_TRY(bski_expect_dim(op, name, t, 2, l->block_rows, "block rows of the layout"));
        return bski_expect_dim(op, name, t, 3, l->block_cols, "block columns of the layout");
    }
    BSKI_TRY(bski_expect_dim(op, name, t, 0, l->nnz, "kept blocks of the layout"));
    BSKI_TRY(bski_expect_dim(op, name, t, 1, l->block_rows, "block rows of the layout"));
    return bski_expect_dim(op, name, t, 2, l->block_cols, "block columns of the layout");
}

/* An activation [N, features] or [features, N]. */
static bsk_status expect_activation(const bski_op_info *op, const char *name, const bsk_tensor *t,
                                    bsk_axis axis, int64_t n, int64_t features)
{
    if (t->dtype == BSK_NONE)
        return BSK_OK;
    int64_t dims[2] = {axis == BSK_NC ? n : features, axis == BSK_NC ? features : n};
    return bski_expect_shape(op, name, t, 2, dims, axis == BSK_NC ? "N, features" : "features, N");
}

/* The dense operand or result of a general product: optional batch, then rows and columns. */
static bsk_status expect_dense(const bski_op_info *op, const char *name, const bsk_tensor *t,
                               const bsk_tensor *like, int64_t rows, int64_t cols)
{
    if (t->dtype == BSK_NONE)
        return BSK_OK;
    int64_t dims[3] = {like->dims[0], rows, cols};
    return bski_expect_shape(op, name, t, like->rank, like->rank == 3 ? dims : dims + 1,
                             "batch, rows, columns");
}

/* Heads divide the batch, and several heads need one. */
static bsk_status expect_batch(const bski_op_info *op, const char *name, const bsk_tensor *t,
                               const bsk_layout_tables *l, int64_t *groups)
{
    int64_t batch = t->rank == 3 ? t->dims[0] : 1;
    if (batch % l->heads)
        return bski_fail(BSK_E_INVALID,
                         "%s: the batch of %s is %lld; must be a multiple of the layout's %d heads",
                         op->name, name, (long long)batch, (int)l->heads);
    *groups = batch / l->heads;
    return BSK_OK;
}

/* Scales belong to operands of 8 bits. */
static bsk_status expect_scale(const bski_op_info *op, const char *name, const bsk_tensor *scale,
                               const bsk_tensor *operand)
{
    if (scale->dtype != BSK_NONE && !(BSK_DTYPE_BIT(operand->dtype) & BSKI_SCALED))
        return bski_fail(BSK_E_INVALID,
                         "%s: %s is given with operands of type %s; legal with f8 and i8", op->name,
                         name, bsk_dtype_name(operand->dtype));
    return bski_expect_one(op, name, scale);
}

/* The transposed view of a matrix, or of each matrix of a batch. */
static bsk_tensor transposed(bsk_tensor t)
{
    if (t.dtype == BSK_NONE)
        return t;
    int i = t.rank - 1, j = t.rank - 2;
    int64_t dim = t.dims[i], stride = t.strides[i];
    t.dims[i] = t.dims[j];
    t.strides[i] = t.strides[j];
    t.dims[j] = dim;
    t.strides[j] = stride;
    return t;
}

/* The [features, N] view of an activation, and the [N, features] view. */
static bsk_tensor feature_rows(bsk_tensor t, bsk_axis axis)
{
    return axis == BSK_NC ? transposed(t) : t;
}

static bsk_tensor feature_cols(bsk_tensor t, bsk_axis axis)
{
    return axis == BSK_NC ? t : transposed(t);
}

/* --- matmul ----------------------------------------------------------------------------------- */

#define EPILOGUE_ARGS(group, out)                                                                  \
    {BSKI_ARG(group, gate),      .optional = 1,      .rank_min = 1, .rank_max = 1,                 \
     .strides = BSKI_CONTIGUOUS, .dtypes = BSKI_SIDE},                                             \
        {BSKI_ARG(group, bias),      .optional = 1,      .rank_min = 1, .rank_max = 1,             \
         .strides = BSKI_CONTIGUOUS, .dtypes = BSKI_SIDE},                                         \
        {BSKI_ARG(group, residual), .optional = 1,   .rank_min = 2, .rank_max = 3,                 \
         .strides = BSKI_UNIT_AXIS, .dtypes = FLOATS},                                             \
        {BSKI_ARG(group, row_scale), .optional = 1,      .rank_min = 1, .rank_max = 1,             \
         .strides = BSKI_CONTIGUOUS, .dtypes = BSKI_SIDE},                                         \
    {                                                                                              \
        BSKI_ARG(group, col_scale), .optional = 1, .rank_min = 1, .rank_max = 1,                   \
                                    .strides = BSKI_CONTIGUOUS, .dtypes = BSKI_SIDE                \
    }
/* The number that multiplies all of an operand. */
#define SCALE_ARG(group, field)                                                                    \
    {                                                                                              \
        BSKI_ARG(group, field), .optional = 1, .rank_max = 1, .strides = BSKI_CONTIGUOUS,          \
                                .dtypes = BSK_DTYPE_BIT(BSK_F32)                                   \
    }

/* The residual is argument 5 in all of them. */
enum { RESIDUAL = 5 };

static const bski_arg matmul_args[] = {
    {BSKI_ACTIVATION(matmul, x), .dtypes = OPERANDS},
    {BSKI_BLOCKS(matmul, w), .dtypes = BSKI_SAME},
    {BSKI_ACTIVATION(matmul, y), .role = BSKI_OUT, .alias = 1 << RESIDUAL, .dtypes = FLOATS},
    EPILOGUE_ARGS(matmul, y),
    SCALE_ARG(matmul, x_scale),
    SCALE_ARG(matmul, w_scale),
};

#define PRECISION(group) BSKI_ATTR(group, precision, I32, 0, BSK_PRECISION_TF32)

static const bski_field matmul_attrs[] = {
    BSKI_ATTR(matmul, axis, I32, 0, 1),
    BSKI_ATTR(matmul, transpose_w, I32, 0, 1),
    BSKI_ATTR(matmul, act, I32, 0, BSK_ACT_COUNT - 1),
    PRECISION(matmul),
};

static const bski_field matmul_scalars[] = {BSKI_ALPHA_BETA(matmul)};

static bsk_status matmul_check(const bski_op_info *op, const void *params,
                               const bsk_layout_tables *l)
{
    const bsk_matmul_params *p = params;
    int64_t n = p->x.dims[p->axis == BSK_NC ? 0 : 1];
    int64_t in = p->transpose_w ? l->cols : l->rows, out = p->transpose_w ? l->rows : l->cols;
    BSKI_TRY(expect_activation(op, "x", &p->x, p->axis, n, in));
    BSKI_TRY(expect_activation(op, "y", &p->y, p->axis, n, out));
    BSKI_TRY(expect_activation(op, "residual", &p->residual, p->axis, n, out));
    BSKI_TRY(expect_blocks(op, "w", &p->w, l, 1));
    BSKI_TRY(bski_expect_vector(op, "gate", &p->gate, l->nnz, "kept blocks of the layout"));
    BSKI_TRY(bski_expect_vector(op, "bias", &p->bias, out, "output features"));
    BSKI_TRY(bski_expect_vector(op, "row_scale", &p->row_scale, n, "N"));
    BSKI_TRY(expect_scale(op, "x_scale", &p->x_scale, &p->x));
    BSKI_TRY(expect_scale(op, "w_scale", &p->w_scale, &p->w));
    return bski_expect_vector(op, "col_scale", &p->col_scale, out, "output features");
}

static void matmul_lower_params(const void *params, void *kernel_params)
{
    const bsk_matmul_params *p = params;
    bsk_dsd_params *k = kernel_params;
    k->layout = p->layout;
    k->transpose_s = !p->transpose_w;
    k->act = p->act;
    k->s = p->w;
    k->b = feature_rows(p->x, p->axis);
    k->c = feature_rows(p->y, p->axis);
    k->gate = p->gate;
    k->bias = p->bias;
    k->residual = feature_rows(p->residual, p->axis);
    k->row_scale = p->col_scale; /* features are the rows of the kernel's result */
    k->col_scale = p->row_scale;
    k->precision = p->precision;
    k->s_scale = p->w_scale;
    k->b_scale = p->x_scale;
}

static void matmul_lower_args(const void *params, const void *args, void *kernel_args)
{
    (void)params;
    const bsk_matmul_args *a = args;
    bsk_dsd_args *k = kernel_args;
    k->alpha = a->alpha;
    k->beta = a->beta;
    k->workspace = a->workspace;
    k->s = a->w;
    k->b = a->x;
    k->c = a->y;
    k->gate = a->gate;
    k->bias = a->bias;
    k->residual = a->residual;
    k->row_scale = a->col_scale;
    k->col_scale = a->row_scale;
    k->packed = a->packed;
    k->s_scale = a->w_scale;
    k->b_scale = a->x_scale;
}

static double matmul_flops(const void *params, const bsk_layout_tables *l)
{
    const bsk_matmul_params *p = params;
    return 2 * kept_elements(l) * (double)p->x.dims[p->axis == BSK_NC ? 0 : 1];
}

const bski_op_info bski_op_matmul = {
    .name = "matmul",
    .kernel_op = BSK_OP_DSD,
    BSKI_STRUCTS(matmul),
    .packed = offsetof(bsk_matmul_args, packed),
    .layout = offsetof(bsk_matmul_params, layout),
    BSKI_TABLE(arg, matmul_args),
    BSKI_TABLE(attr, matmul_attrs),
    BSKI_TABLE(scalar, matmul_scalars),
    .check = matmul_check,
    .lower_params = matmul_lower_params,
    .lower_args = matmul_lower_args,
    .flops = matmul_flops,
};
BSKI_DEFINE_OP(matmul, matmul)
BSKI_DEFINE_PREPACK(matmul)

/* --- matmul_dgrad ----------------------------------------------------------------------------- */

static const bski_arg matmul_dgrad_args[] = {
    {BSKI_ACTIVATION(matmul_dgrad, dy), .dtypes = OPERANDS},
    {BSKI_BLOCKS(matmul_dgrad, w), .dtypes = BSKI_SAME},
    {BSKI_ACTIVATION(matmul_dgrad, dx), .role = BSKI_OUT, .dtypes = FLOATS},
    {BSKI_VECTOR(matmul_dgrad, gate), .optional = 1, .dtypes = BSKI_SIDE},
    SCALE_ARG(matmul_dgrad, dy_scale),
    SCALE_ARG(matmul_dgrad, w_scale),
};

static const bski_field matmul_dgrad_attrs[] = {
    BSKI_ATTR(matmul_dgrad, axis, I32, 0, 1),
    BSKI_ATTR(matmul_dgrad, transpose_w, I32, 0, 1),
    PRECISION(matmul_dgrad),
};

static const bski_field matmul_dgrad_scalars[] = {BSKI_ALPHA_BETA(matmul_dgrad)};

static bsk_status matmul_dgrad_check(const bski_op_info *op, const void *params,
                                     const bsk_layout_tables *l)
{
    const bsk_matmul_dgrad_params *p = params;
    int64_t n = p->dy.dims[p->axis == BSK_NC ? 0 : 1];
    BSKI_TRY(expect_activation(op, "dy", &p->dy, p->axis, n, p->transpose_w ? l->rows : l->cols));
    BSKI_TRY(expect_activation(op, "dx", &p->dx, p->axis, n, p->transpose_w ? l->cols : l->rows));
    BSKI_TRY(expect_blocks(op, "w", &p->w, l, 1));
    BSKI_TRY(expect_scale(op, "dy_scale", &p->dy_scale, &p->dy));
    BSKI_TRY(expect_scale(op, "w_scale", &p->w_scale, &p->w));
    return bski_expect_vector(op, "gate", &p->gate, l->nnz, "kept blocks of the layout");
}

static void matmul_dgrad_lower_params(const void *params, void *kernel_params)
{
    const bsk_matmul_dgrad_params *p = params;
    bsk_dsd_params *k = kernel_params;
    k->layout = p->layout;
    k->transpose_s = p->transpose_w;
    k->s = p->w;
    k->b = feature_rows(p->dy, p->axis);
    k->c = feature_rows(p->dx, p->axis);
    k->gate = p->gate;
    k->precision = p->precision;
    k->s_scale = p->w_scale;
    k->b_scale = p->dy_scale;
}

static void matmul_dgrad_lower_args(const void *params, const void *args, void *kernel_args)
{
    (void)params;
    const bsk_matmul_dgrad_args *a = args;
    bsk_dsd_args *k = kernel_args;
    k->alpha = a->alpha;
    k->beta = a->beta;
    k->workspace = a->workspace;
    k->s = a->w;
    k->b = a->dy;
    k->c = a->dx;
    k->gate = a->gate;
    k->packed = a->packed;
    k->s_scale = a->w_scale;
    k->b_scale = a->dy_scale;
}

static double matmul_dgrad_flops(const void *params, const bsk_layout_tables *l)
{
    const bsk_matmul_dgrad_params *p = params;
    return 2 * kept_elements(l) * (double)p->dy.dims[p->axis == BSK_NC ? 0 : 1];
}

const bski_op_info bski_op_matmul_dgrad = {
    .name = "matmul_dgrad",
    .kernel_op = BSK_OP_DSD,
    BSKI_STRUCTS(matmul_dgrad),
    .packed = offsetof(bsk_matmul_dgrad_args, packed),
    .layout = offsetof(bsk_matmul_dgrad_params, layout),
    BSKI_TABLE(arg, matmul_dgrad_args),
    BSKI_TABLE(attr, matmul_dgrad_attrs),
    BSKI_TABLE(scalar, matmul_dgrad_scalars),
    .check = matmul_dgrad_check,
    .lower_params = matmul_dgrad_lower_params,
    .lower_args = matmul_dgrad_lower_args,
    .flops = matmul_dgrad_flops,
};
BSKI_DEFINE_OP(matmul_dgrad, matmul_dgrad)
BSKI_DEFINE_PREPACK(matmul_dgrad)

/* --- matmul_wgrad ----------------------------------------------------------------------------- */

#define GRADIENT_ARGS(group)                                                                       \
    {BSKI_ARG(group, gate),      .optional = 1,      .rank_min = 1, .rank_max = 1,                 \
     .strides = BSKI_CONTIGUOUS, .dtypes = BSKI_SIDE},                                             \
        {BSKI_ARG(group, w),           .optional = 1,      .rank_min = 3, .rank_max = 4,           \
         .strides = BSKI_DENSE_BLOCKS, .dtypes = BSKI_SAME},                                       \
    {                                                                                              \
        BSKI_ARG(group, dgate), .role = BSKI_OUT, .optional = 1, .rank_min = 1, .rank_max = 1,     \
                                .strides = BSKI_CONTIGUOUS, .dtypes = BSKI_SIDE                    \
    }

static const bski_arg matmul_wgrad_args[] = {
    {BSKI_ACTIVATION(matmul_wgrad, x), .list = 1, .dtypes = OPERANDS},
    {BSKI_ACTIVATION(matmul_wgrad, dy), .list = 1, .dtypes = BSKI_SAME},
    {BSKI_BLOCKS(matmul_wgrad, dw), .role = BSKI_OUT, .dtypes = FLOATS},
    GRADIENT_ARGS(matmul_wgrad),
    {BSKI_VECTOR(matmul_wgrad, dbias), .role = BSKI_OUT, .optional = 1, .dtypes = BSKI_SIDE},
    SCALE_ARG(matmul_wgrad, x_scale),
    SCALE_ARG(matmul_wgrad, dy_scale),
};

static const bski_field matmul_wgrad_attrs[] = {
    BSKI_ATTR(matmul_wgrad, axis, I32, 0, 1),
    BSKI_ATTR(matmul_wgrad, transpose_w, I32, 0, 1),
    BSKI_PAIRS(matmul_wgrad),
    BSKI_ATTR(matmul_wgrad, gate_mode, I32, 0, BSK_GATE_SCALE),
    PRECISION(matmul_wgrad),
};

static const bski_field matmul_wgrad_scalars[] = {BSKI_ALPHA_BETA(matmul_wgrad)};

/* What gate, gate_mode, w and dgate demand of each other. */
static bsk_status check_gate_gradient(const bski_op_info *op, bsk_gate_mode mode,
                                      const bsk_tensor *gate, const bsk_tensor *w,
                                      const bsk_tensor *dgate)
{
    if (mode != BSK_GATE_IGNORE && gate->dtype == BSK_NONE)
        return bski_fail(BSK_E_INVALID, "%s: gate is absent; gate_mode %d needs it", op->name,
                         (int)mode);
    if (dgate->dtype != BSK_NONE && BSK_DTYPE_BIT(w->dtype) & BSKI_SCALED)
        return bski_fail(BSK_E_INVALID,
                         "%s: dgate is given with %s operands; legal with wider ones", op->name,
                         bsk_dtype_name(w->dtype));
    if (dgate->dtype != BSK_NONE && w->dtype == BSK_NONE)
        return bski_fail(BSK_E_INVALID, "%s: w is absent; dgate needs it", op->name);
    return BSK_OK;
}

static bsk_status matmul_wgrad_check(const bski_op_info *op, const void *params,
                                     const bsk_layout_tables *l)
{
    const bsk_matmul_wgrad_params *p = params;
    int64_t n = p->x.dims[p->axis == BSK_NC ? 0 : 1];
    int64_t in = p->transpose_w ? l->cols : l->rows, out = p->transpose_w ? l->rows : l->cols;
    BSKI_TRY(expect_activation(op, "x", &p->x, p->axis, n, in));
    BSKI_TRY(expect_activation(op, "dy", &p->dy, p->axis, n, out));
    BSKI_TRY(expect_blocks(op, "dw", &p->dw, l, 1));
    BSKI_TRY(expect_blocks(op, "w", &p->w, l, 1));
    BSKI_TRY(bski_expect_vector(op, "gate", &p->gate, l->nnz, "kept blocks of the layout"));
    BSKI_TRY(bski_expect_vector(op, "dgate", &p->dgate, l->nnz, "kept blocks of the layout"));
    BSKI_TRY(bski_expect_vector(op, "dbias", &p->dbias, out, "output features"));
    if (p->dbias.dtype != BSK_NONE && p->transpose_w)
        return bski_fail(BSK_E_INVALID,
                         "%s: dbias is given with transpose_w = 1; legal with transpose_w = 0 "
                         "(bias_act_grad computes it for both)",
                         op->name);
    BSKI_TRY(expect_scale(op, "x_scale", &p->x_scale, &p->x));
    BSKI_TRY(expect_scale(op, "dy_scale", &p->dy_scale, &p->dy));
    return check_gate_gradient(op, p->gate_mode, &p->gate, &p->w, &p->dgate);
}

static void matmul_wgrad_lower_params(const void *params, void *kernel_params)
{
    const bsk_matmul_wgrad_params *p = params;
    bsk_sdd_params *k = kernel_params;
    k->layout = p->layout;
    k->pairs = p->pairs;
    k->gate_mode = p->gate_mode;
    k->a = feature_rows(p->transpose_w ? p->dy : p->x, p->axis);
    k->b = feature_cols(p->transpose_w ? p->x : p->dy, p->axis);
    k->s = p->dw;
    k->gate = p->gate;
    k->w = p->w;
    k->dgate = p->dgate;
    k->bsum = p->dbias;
    k->precision = p->precision;
    k->a_scale = p->transpose_w ? p->dy_scale : p->x_scale;
    k->b_scale = p->transpose_w ? p->x_scale : p->dy_scale;
}

static void matmul_wgrad_lower_args(const void *params, const void *args, void *kernel_args)
{
    const bsk_matmul_wgrad_params *p = params;
    const bsk_matmul_wgrad_args *a = args;
    bsk_sdd_args *k = kernel_args;
    k->alpha = a->alpha;
    k->beta = a->beta;
    k->workspace = a->workspace;
    k->a = p->transpose_w ? a->dy : a->x;
    k->b = p->transpose_w ? a->x : a->dy;
    k->s = a->dw;
    k->gate = a->gate;
    k->w = a->w;
    k->dgate = a->dgate;
    k->bsum = a->dbias;
    k->a_scale = p->transpose_w ? a->dy_scale : a->x_scale;
    k->b_scale = p->transpose_w ? a->x_scale : a->dy_scale;
}

static double matmul_wgrad_flops(const void *params, const bsk_layout_tables *l)
{
    const bsk_matmul_wgrad_params *p = params;
    return 2 * kept_elements(l) * (double)p->x.dims[p->axis == BSK_NC ? 0 : 1] * p->pairs;
}

const bski_op_info bski_op_matmul_wgrad = {
    .name = "matmul_wgrad",
    .kernel_op = BSK_OP_SDD,
    BSKI_STRUCTS(matmul_wgrad),
    .layout = offsetof(bsk_matmul_wgrad_params, layout),
    .pairs = offsetof(bsk_matmul_wgrad_params, pairs),
    BSKI_TABLE(arg, matmul_wgrad_args),
    BSKI_TABLE(attr, matmul_wgrad_attrs),
    BSKI_TABLE(scalar, matmul_wgrad_scalars),
    .check = matmul_wgrad_check,
    .lower_params = matmul_wgrad_lower_params,
    .lower_args = matmul_wgrad_lower_args,
    .flops = matmul_wgrad_flops,
};
BSKI_DEFINE_OP(matmul_wgrad, matmul_wgrad)

/* --- dsd and dds ------------------------------------------------------------------------------ */

static const bski_arg dsd_args[] = {
    {BSKI_ARG(dsd, b), .rank_min = 2, .rank_max = 3, .strides = BSKI_UNIT_AXIS, .dtypes = OPERANDS},
    {BSKI_ARG(dsd, s), .rank_min = 3, .rank_max = 4, .strides = BSKI_DENSE_BLOCKS,
     .dtypes = BSKI_SAME},
    {BSKI_ARG(dsd, c), .role = BSKI_OUT, .rank_min = 2, .rank_max = 3, .strides = BSKI_UNIT_AXIS,
     .alias = 1 << RESIDUAL, .dtypes = FLOATS},
    EPILOGUE_ARGS(dsd, c),
    SCALE_ARG(dsd, s_scale),
    SCALE_ARG(dsd, b_scale),
};

static const bski_field dsd_attrs[] = {
    BSKI_ATTR(dsd, transpose_s, I32, 0, 1),
    BSKI_ATTR(dsd, act, I32, 0, BSK_ACT_COUNT - 1),
    PRECISION(dsd),
};

static const bski_field dsd_scalars[] = {BSKI_ALPHA_BETA(dsd)};

static bsk_status dsd_check(const bski_op_info *op, const void *params, const bsk_layout_tables *l)
{
    const bsk_dsd_params *p = params;
    int64_t i = p->transpose_s ? l->cols : l->rows, j = p->transpose_s ? l->rows : l->cols;
    int64_t n = p->b.dims[p->b.rank - 1], groups = 1;
    BSKI_TRY(expect_batch(op, "b", &p->b, l, &groups));
    BSKI_TRY(expect_dense(op, "b", &p->b, &p->b, j, n));
    BSKI_TRY(expect_dense(op, "c", &p->c, &p->b, i, n));
    BSKI_TRY(expect_dense(op, "residual", &p->residual, &p->b, i, n));
    BSKI_TRY(expect_blocks(op, "s", &p->s, l, groups));
    BSKI_TRY(bski_expect_vector(op, "gate", &p->gate, l->nnz, "kept blocks of the layout"));
    BSKI_TRY(bski_expect_vector(op, "bias", &p->bias, i, "rows of op(S)"));
    BSKI_TRY(bski_expect_vector(op, "row_scale", &p->row_scale, i, "rows of op(S)"));
    BSKI_TRY(expect_scale(op, "s_scale", &p->s_scale, &p->s));
    BSKI_TRY(expect_scale(op, "b_scale", &p->b_scale, &p->b));
    return bski_expect_vector(op, "col_scale", &p->col_scale, n, "columns of b");
}

static double dsd_flops(const void *params, const bsk_layout_tables *l)
{
    const bsk_dsd_params *p = params;
    return 2 * kept_elements(l) * (double)p->b.dims[p->b.rank - 1] * batches(&p->b, l);
}

const bski_op_info bski_op_dsd = {
    .name = "dsd",
    .kernel_op = BSK_OP_DSD,
    BSKI_STRUCTS(dsd),
    .packed = offsetof(bsk_dsd_args, packed),
    .layout = offsetof(bsk_dsd_params, layout),
    .heads = 1,
    BSKI_TABLE(arg, dsd_args),
    BSKI_TABLE(attr, dsd_attrs),
    BSKI_TABLE(scalar, dsd_scalars),
    .check = dsd_check,
    .flops = dsd_flops,
};
BSKI_DEFINE_OP(dsd, dsd)
BSKI_DEFINE_PREPACK(dsd)

static const bski_arg dds_args[] = {
    {BSKI_ARG(dds, a), .rank_min = 2, .rank_max = 3, .strides = BSKI_UNIT_AXIS, .dtypes = OPERANDS},
    {BSKI_ARG(dds, s), .rank_min = 3, .rank_max = 4, .strides = BSKI_DENSE_BLOCKS,
     .dtypes = BSKI_SAME},
    {BSKI_ARG(dds, c), .role = BSKI_OUT, .rank_min = 2, .rank_max = 3, .strides = BSKI_UNIT_AXIS,
     .alias = 1 << RESIDUAL, .dtypes = FLOATS},
    EPILOGUE_ARGS(dds, c),
    SCALE_ARG(dds, a_scale),
    SCALE_ARG(dds, s_scale),
};

static const bski_field dds_attrs[] = {
    BSKI_ATTR(dds, transpose_s, I32, 0, 1),
    BSKI_ATTR(dds, act, I32, 0, BSK_ACT_COUNT - 1),
    PRECISION(dds),
};

static const bski_field dds_scalars[] = {BSKI_ALPHA_BETA(dds)};

static bsk_status dds_check(const bski_op_info *op, const void *params, const bsk_layout_tables *l)
{
    const bsk_dds_params *p = params;
    int64_t i = p->transpose_s ? l->cols : l->rows, j = p->transpose_s ? l->rows : l->cols;
    int64_t n = p->a.dims[p->a.rank - 2], groups = 1;
    BSKI_TRY(expect_batch(op, "a", &p->a, l, &groups));
    BSKI_TRY(expect_dense(op, "a", &p->a, &p->a, n, i));
    BSKI_TRY(expect_dense(op, "c", &p->c, &p->a, n, j));
    BSKI_TRY(expect_dense(op, "residual", &p->residual, &p->a, n, j));
    BSKI_TRY(expect_blocks(op, "s", &p->s, l, groups));
    BSKI_TRY(bski_expect_vector(op, "gate", &p->gate, l->nnz, "kept blocks of the layout"));
    BSKI_TRY(bski_expect_vector(op, "bias", &p->bias, j, "columns of op(S)"));
    BSKI_TRY(bski_expect_vector(op, "row_scale", &p->row_scale, n, "rows of a"));
    BSKI_TRY(expect_scale(op, "a_scale", &p->a_scale, &p->a));
    BSKI_TRY(expect_scale(op, "s_scale", &p->s_scale, &p->s));
    return bski_expect_vector(op, "col_scale", &p->col_scale, j, "columns of op(S)");
}

/* C = A op(S) is C^T = op(S)^T A^T. */
static void dds_lower_params(const void *params, void *kernel_params)
{
    const bsk_dds_params *p = params;
    bsk_dsd_params *k = kernel_params;
    k->layout = p->layout;
    k->transpose_s = !p->transpose_s;
    k->act = p->act;
    k->s = p->s;
    k->b = transposed(p->a);
    k->c = transposed(p->c);
    k->gate = p->gate;
    k->bias = p->bias;
    k->residual = transposed(p->residual);
    k->row_scale = p->col_scale;
    k->col_scale = p->row_scale;
    k->precision = p->precision;
    k->s_scale = p->s_scale;
    k->b_scale = p->a_scale;
}

static void dds_lower_args(const void *params, const void *args, void *kernel_args)
{
    (void)params;
    const bsk_dds_args *a = args;
    bsk_dsd_args *k = kernel_args;
    k->alpha = a->alpha;
    k->beta = a->beta;
    k->workspace = a->workspace;
    k->s = a->s;
    k->b = a->a;
    k->c = a->c;
    k->gate = a->gate;
    k->bias = a->bias;
    k->residual = a->residual;
    k->row_scale = a->col_scale;
    k->col_scale = a->row_scale;
    k->packed = a->packed;
    k->s_scale = a->s_scale;
    k->b_scale = a->a_scale;
}

static double dds_flops(const void *params, const bsk_layout_tables *l)
{
    const bsk_dds_params *p = params;
    return 2 * kept_elements(l) * (double)p->a.dims[p->a.rank - 2] * batches(&p->a, l);
}

const bski_op_info bski_op_dds = {
    .name = "dds",
    .kernel_op = BSK_OP_DSD,
    BSKI_STRUCTS(dds),
    .packed = offsetof(bsk_dds_args, packed),
    .layout = offsetof(bsk_dds_params, layout),
    .heads = 1,
    BSKI_TABLE(arg, dds_args),
    BSKI_TABLE(attr, dds_attrs),
    BSKI_TABLE(scalar, dds_scalars),
    .check = dds_check,
    .lower_params = dds_lower_params,
    .lower_args = dds_lower_args,
    .flops = dds_flops,
};
BSKI_DEFINE_OP(dds, dds)
BSKI_DEFINE_PREPACK(dds)

/* --- sdd -------------------------------------------------------------------------------------- */

static const bski_arg sdd_args[] = {
    {BSKI_ARG(sdd, a), .list = 1, .rank_min = 2, .rank_max = 3, .strides = BSKI_UNIT_AXIS,
     .dtypes = OPERANDS},
    {BSKI_ARG(sdd, b), .list = 1, .rank_min = 2, .rank_max = 3, .strides = BSKI_UNIT_AXIS,
     .dtypes = BSKI_SAME},
    {BSKI_ARG(sdd, s), .role = BSKI_OUT, .rank_min = 3, .rank_max = 4, .strides = BSKI_DENSE_BLOCKS,
     .dtypes = FLOATS},
    GRADIENT_ARGS(sdd),
    {BSKI_VECTOR(sdd, bsum), .role = BSKI_OUT, .optional = 1, .dtypes = BSKI_SIDE},
    SCALE_ARG(sdd, a_scale),
    SCALE_ARG(sdd, b_scale),
};

static const bski_field sdd_attrs[] = {
    BSKI_PAIRS(sdd),
    BSKI_ATTR(sdd, gate_mode, I32, 0, BSK_GATE_SCALE),
    PRECISION(sdd),
};

static const bski_field sdd_scalars[] = {BSKI_ALPHA_BETA(sdd)};

static bsk_status sdd_check(const bski_op_info *op, const void *params, const bsk_layout_tables *l)
{
    const bsk_sdd_params *p = params;
    int64_t n = p->a.dims[p->a.rank - 1], groups = 1;
    BSKI_TRY(expect_batch(op, "a", &p->a, l, &groups));
    BSKI_TRY(expect_dense(op, "a", &p->a, &p->a, l->rows, n));
    BSKI_TRY(expect_dense(op, "b", &p->b, &p->a, n, l->cols));
    BSKI_TRY(expect_blocks(op, "s", &p->s, l, groups));
    BSKI_TRY(expect_blocks(op, "w", &p->w, l, groups));
    if (p->w.dtype != BSK_NONE && p->w.rank != p->s.rank)
        return bski_fail(BSK_E_INVALID, "%s: w.rank is %d; must be %d, as s", op->name,
                         (int)p->w.rank, (int)p->s.rank);
    BSKI_TRY(bski_expect_vector(op, "gate", &p->gate, l->nnz, "kept blocks of the layout"));
    BSKI_TRY(bski_expect_vector(op, "dgate", &p->dgate, l->nnz, "kept blocks of the layout"));
    BSKI_TRY(bski_expect_vector(op, "bsum", &p->bsum, l->cols, "columns of the layout"));
    BSKI_TRY(expect_scale(op, "a_scale", &p->a_scale, &p->a));
    BSKI_TRY(expect_scale(op, "b_scale", &p->b_scale, &p->b));
    return check_gate_gradient(op, p->gate_mode, &p->gate, &p->w, &p->dgate);
}

static double sdd_flops(const void *params, const bsk_layout_tables *l)
{
    const bsk_sdd_params *p = params;
    return 2 * kept_elements(l) * (double)p->a.dims[p->a.rank - 1] * batches(&p->a, l) * p->pairs;
}

const bski_op_info bski_op_sdd = {
    .name = "sdd",
    .kernel_op = BSK_OP_SDD,
    BSKI_STRUCTS(sdd),
    .layout = offsetof(bsk_sdd_params, layout),
    .heads = 1,
    .pairs = offsetof(bsk_sdd_params, pairs),
    BSKI_TABLE(arg, sdd_args),
    BSKI_TABLE(attr, sdd_attrs),
    BSKI_TABLE(scalar, sdd_scalars),
    .check = sdd_check,
    .flops = sdd_flops,
};
BSKI_DEFINE_OP(sdd, sdd)

/* --- reduced_wgrad ---------------------------------------------------------------------------- */

static const bski_arg reduced_wgrad_args[] = {
    {BSKI_ACTIVATION(reduced_wgrad, x), .list = 1, .dtypes = FLOATS},
    {BSKI_ACTIVATION(reduced_wgrad, dy), .list = 1, .dtypes = BSKI_SAME},
    {BSKI_ARG(reduced_wgrad, g), .role = BSKI_OUT, .rank_min = 2, .rank_max = 2,
     .strides = BSKI_UNIT_LAST, .dtypes = BSKI_SIDE},
};

static const bski_field reduced_wgrad_attrs[] = {
    BSKI_ATTR(reduced_wgrad, axis, I32, 0, 1),
    BSKI_PAIRS(reduced_wgrad),
    BSKI_ATTR(reduced_wgrad, block_rows, I32, 1, 65536),
    BSKI_ATTR(reduced_wgrad, block_cols, I32, 1, 65536),
    BSKI_ATTR(reduced_wgrad, norm, I32, 0, BSK_NORM_L2),
};

static const bski_field reduced_wgrad_scalars[] = {BSKI_ALPHA_BETA(reduced_wgrad)};

static bsk_status reduced_wgrad_check(const bski_op_info *op, const void *params,
                                      const bsk_layout_tables *l)
{
    (void)l;
    const bsk_reduced_wgrad_params *p = params;
    int n = p->axis == BSK_NC ? 0 : 1, features = 1 - n;
    BSKI_TRY(bski_expect_dim(op, "dy", &p->dy, n, p->x.dims[n], "N of x"));
    BSKI_TRY(bski_expect_dim(op, "g", &p->g, 0, bski_ceil_div(p->x.dims[features], p->block_rows),
                             "blocks of x's features"));
    return bski_expect_dim(op, "g", &p->g, 1, bski_ceil_div(p->dy.dims[features], p->block_cols),
                           "blocks of dy's features");
}

const bski_op_info bski_op_reduced_wgrad = {
    .name = "reduced_wgrad",
    .kernel_op = BSK_OP_REDUCED_WGRAD,
    BSKI_STRUCTS(reduced_wgrad),
    .pairs = offsetof(bsk_reduced_wgrad_params, pairs),
    BSKI_TABLE(arg, reduced_wgrad_args),
    BSKI_TABLE(attr, reduced_wgrad_attrs),
    BSKI_TABLE(scalar, reduced_wgrad_scalars),
    .check = reduced_wgrad_check,
};
BSKI_DEFINE_OP(reduced_wgrad, reduced_wgrad)
