/* Descriptors of the weight ops: initialisers, norms, gates, pruning, projections. */
#include <math.h>

#include "api/src/internal.h"
#include "common/dtype.h"

#define FLOATS BSKI_FLOATS

/* --- shared checks -------------------------------------------------------------------- */

static bsk_status expect_blocks(const bski_op_info *op, const char *name, const bsk_tensor *t,
                                const bsk_layout_tables *l)
{
    int64_t dims[3] = {l->nnz, l->block_rows, l->block_cols};
    return bski_expect_shape(op, name, t, 3, dims, "nnz, block rows, block columns of the layout");
}

/* --- initialisers ------------------------------------------------------------------------- */

static const bski_arg weight_init_args[] = {
    {BSKI_BLOCKS(weight_init, w), .role = BSKI_OUT, .dtypes = FLOATS},
};

static const bski_arg weight_checker_args[] = {
    {BSKI_VECTOR(weight_init, w), .role = BSKI_OUT, .dtypes = BSK_DTYPE_BIT(BSK_F32)},
};

static const bski_field weight_init_scalars[] = {
    BSKI_SCALAR(weight_init, alpha, F64, -INFINITY, INFINITY),
};

static bsk_status weight_init_check(const bski_op_info *op, const void *params,
                                    const bsk_layout_tables *l)
{
    const bsk_weight_init_params *p = params;
    return expect_blocks(op, "w", &p->w, l);
}

static bsk_status weight_checker_check(const bski_op_info *op, const void *params,
                                       const bsk_layout_tables *l)
{
    const bsk_weight_init_params *p = params;
    return bski_expect_vector(op, "w", &p->w, l->nnz, "kept blocks of the layout");
}

const bski_op_info bski_op_weight_identity = {
    .name = "weight_identity",
    .kernel_op = BSK_OP_WEIGHT_IDENTITY,
    BSKI_STRUCTS(weight_init),
    .layout = offsetof(bsk_weight_init_params, layout),
    .heads = 1,
    BSKI_TABLE(arg, weight_init_args),
    BSKI_TABLE(scalar, weight_init_scalars),
    .check = weight_init_check,
};
BSKI_DEFINE_OP(weight_identity, weight_init)

const bski_op_info bski_op_weight_orthogonal = {
    .name = "weight_orthogonal",
    .kernel_op = BSK_OP_WEIGHT_ORTHOGONAL,
    BSKI_STRUCTS(weight_init),
    .layout = offsetof(bsk_weight_init_params, layout),
    .heads = 1,
    BSKI_TABLE(arg, weight_init_args),
    BSKI_TABLE(scalar, weight_init_scalars),
    .check = weight_init_check,
};
BSKI_DEFINE_OP(weight_orthogonal, weight_init)

const bski_op_info bski_op_weight_normal = {
    .name = "weight_normal",
    .kernel_op = BSK_OP_WEIGHT_NORMAL,
    BSKI_STRUCTS(weight_init),
    .layout = offsetof(bsk_weight_init_params, layout),
    .heads = 1,
    BSKI_TABLE(arg, weight_init_args),
    BSKI_TABLE(scalar, weight_init_scalars),
    .check = weight_init_check,
};
BSKI_DEFINE_OP(weight_normal, weight_init)

const bski_op_info bski_op_weight_checker = {
    .name = "weight_checker",
    .kernel_op = BSK_OP_WEIGHT_CHECKER,
    BSKI_STRUCTS(weight_init),
    .layout = offsetof(bsk_weight_init_params, layout),
    .heads = 1,
    BSKI_TABLE(arg, weight_checker_args),
    BSKI_TABLE(scalar, weight_init_scalars),
    .check = weight_checker_check,
};
BSKI_DEFINE_OP(weight_checker, weight_init)

/* --- l2_normalize ------------------------------------------------------------------------- */

static const bski_arg l2_normalize_args[] = {
    {BSKI_BLOCKS(l2_normalize, w), .dtypes = FLOATS},
    {BSKI_BLOCKS(l2_normalize, y), .role = BSKI_OUT, .alias = 1 << 0, .dtypes = FLOATS},
    {BSKI_VECTOR(l2_normalize, gain), .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(l2_normalize, saved), .role = BSKI_OUT, .optional = 1, .dtypes = BSKI_SIDE},
};

static const bski_field l2_normalize_attrs[] = {
    BSKI_ATTR_BELOW(l2_normalize, eps, F64, 0, INFINITY, 1e-12),
};

static bsk_status l2_normalize_check(const bski_op_info *op, const void *params,
                                     const bsk_layout_tables *l)
{
    const bsk_l2_normalize_params *p = params;
    BSKI_TRY(expect_blocks(op, "w", &p->w, l));
    BSKI_TRY(expect_blocks(op, "y", &p->y, l));
    BSKI_TRY(bski_expect_vector(op, "gain", &p->gain, l->cols, "columns of the layout"));
    return bski_expect_vector(op, "saved", &p->saved, l->cols, "columns of the layout");
}

const bski_op_info bski_op_l2_normalize = {
    .name = "l2_normalize",
    .kernel_op = BSK_OP_L2_NORMALIZE,
    BSKI_STRUCTS(l2_normalize),
    .layout = offsetof(bsk_l2_normalize_params, layout),
    BSKI_TABLE(arg, l2_normalize_args),
    BSKI_TABLE(attr, l2_normalize_attrs),
    .check = l2_normalize_check,
};
BSKI_DEFINE_OP(l2_normalize, l2_normalize)

static const bski_arg l2_normalize_grad_args[] = {
    {BSKI_BLOCKS(l2_normalize_grad, dy), .dtypes = FLOATS},
    {BSKI_BLOCKS(l2_normalize_grad, w), .dtypes = FLOATS},
    {BSKI_VECTOR(l2_normalize_grad, saved), .dtypes = BSKI_SIDE},
    {BSKI_BLOCKS(l2_normalize_grad, dw), .role = BSKI_OUT, .alias = 1 << 0, .dtypes = FLOATS},
    {BSKI_VECTOR(l2_normalize_grad, gain), .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_VECTOR(l2_normalize_grad, dgain), .role = BSKI_OUT, .optional = 1, .dtypes = BSKI_SIDE},
};

static const bski_field l2_normalize_grad_attrs[] = {
    BSKI_ATTR_BELOW(l2_normalize_grad, eps, F64, 0, INFINITY, 1e-12),
};

static const bski_field l2_normalize_grad_scalars[] = {
    BSKI_ALPHA_BETA(l2_normalize_grad),
};

static bsk_status l2_normalize_grad_check(const bski_op_info *op, const void *params,
                                          const bsk_layout_tables *l)
{
    const bsk_l2_normalize_grad_params *p = params;
    if (p->dgain.dtype != BSK_NONE && p->gain.dtype == BSK_NONE)
        return bski_fail(BSK_E_INVALID, "%s: gain is absent; dgain needs it", op->name);
    BSKI_TRY(expect_blocks(op, "dy", &p->dy, l));
    BSKI_TRY(expect_blocks(op, "w", &p->w, l));
    BSKI_TRY(expect_blocks(op, "dw", &p->dw, l));
    BSKI_TRY(bski_expect_vector(op, "saved", &p->saved, l->cols, "columns of the layout"));
    BSKI_TRY(bski_expect_vector(op, "gain", &p->gain, l->cols, "columns of the layout"));
    return bski_expect_vector(op, "dgain", &p->dgain, l->cols, "columns of the layout");
}

const bski_op_info bski_op_l2_normalize_grad = {
    .name = "l2_normalize_grad",
    .kernel_op = BSK_OP_L2_NORMALIZE_GRAD,
    BSKI_STRUCTS(l2_normalize_grad),
    .layout = offsetof(bsk_l2_normalize_grad_params, layout),
    .main = 1,
    BSKI_TABLE(arg, l2_normalize_grad_args),
    BSKI_TABLE(attr, l2_normalize_grad_attrs),
    BSKI_TABLE(scalar, l2_normalize_grad_scalars),
    .check = l2_normalize_grad_check,
};
BSKI_DEFINE_OP(l2_normalize_grad, l2_normalize_grad)

/* --- norms, pruning and decay ------------------------------------------------------------- */

static const bski_arg block_norm_args[] = {
    {BSKI_BLOCKS(block_norm, w), .dtypes = FLOATS},
    {BSKI_VECTOR(block_norm, norm), .role = BSKI_OUT, .dtypes = BSKI_SIDE},
};

static const bski_field block_norm_attrs[] = {
    BSKI_ATTR(block_norm, type, I32, 0, BSK_NORM_L2),
};

static bsk_status block_norm_check(const bski_op_info *op, const void *params,
                                   const bsk_layout_tables *l)
{
    const bsk_block_norm_params *p = params;
    BSKI_TRY(expect_blocks(op, "w", &p->w, l));
    return bski_expect_vector(op, "norm", &p->norm, l->nnz, "kept blocks of the layout");
}

const bski_op_info bski_op_block_norm = {
    .name = "block_norm",
    .kernel_op = BSK_OP_BLOCK_NORM,
    BSKI_STRUCTS(block_norm),
    .layout = offsetof(bsk_block_norm_params, layout),
    .heads = 1,
    BSKI_TABLE(arg, block_norm_args),
    BSKI_TABLE(attr, block_norm_attrs),
    .check = block_norm_check,
};
BSKI_DEFINE_OP(block_norm, block_norm)

static const bski_arg prune_args[] = {
    {BSKI_VECTOR(prune, norm), .dtypes = BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_F64)},
    {BSKI_VECTOR(prune, gate), .role = BSKI_OUT, .dtypes = BSK_DTYPE_BIT(BSK_F32)},
};

static const bski_field prune_sparsity_scalars[] = {
    BSKI_SCALAR(prune, value, F64, 0, 1),
};

static const bski_field prune_threshold_scalars[] = {
    BSKI_SCALAR(prune, value, F64, 0, INFINITY),
};

static bsk_status prune_check(const bski_op_info *op, const void *params,
                              const bsk_layout_tables *l)
{
    (void)l;
    const bsk_prune_params *p = params;
    return bski_expect_like(op, "gate", &p->gate, &p->norm, "as norm");
}

const bski_op_info bski_op_prune_sparsity = {
    .name = "prune_sparsity",
    .kernel_op = BSK_OP_PRUNE_SPARSITY,
    BSKI_STRUCTS(prune),
    BSKI_TABLE(arg, prune_args),
    BSKI_TABLE(scalar, prune_sparsity_scalars),
    .check = prune_check,
};
BSKI_DEFINE_OP(prune_sparsity, prune)

const bski_op_info bski_op_prune_threshold = {
    .name = "prune_threshold",
    .kernel_op = BSK_OP_PRUNE_THRESHOLD,
    BSKI_STRUCTS(prune),
    BSKI_TABLE(arg, prune_args),
    BSKI_TABLE(scalar, prune_threshold_scalars),
    .check = prune_check,
};
BSKI_DEFINE_OP(prune_threshold, prune)

static const bski_arg block_l2_decay_args[] = {
    {BSKI_BLOCKS(block_l2_decay, w), .role = BSKI_INOUT, .dtypes = FLOATS},
    {BSKI_VECTOR(block_l2_decay, gate), .optional = 1, .dtypes = BSK_DTYPE_BIT(BSK_F32)},
};

static const bski_field block_l2_decay_attrs[] = {
    BSKI_ATTR_BELOW(block_l2_decay, eps, F64, 0, INFINITY, 1e-12),
};

static const bski_field block_l2_decay_scalars[] = {
    BSKI_SCALAR(block_l2_decay, rate, F64, 0, INFINITY),
};

static bsk_status block_l2_decay_check(const bski_op_info *op, const void *params,
                                       const bsk_layout_tables *l)
{
    const bsk_block_l2_decay_params *p = params;
    BSKI_TRY(expect_blocks(op, "w", &p->w, l));
    return bski_expect_vector(op, "gate", &p->gate, l->nnz, "kept blocks of the layout");
}

const bski_op_info bski_op_block_l2_decay = {
    .name = "block_l2_decay",
    .kernel_op = BSK_OP_BLOCK_L2_DECAY,
    BSKI_STRUCTS(block_l2_decay),
    .layout = offsetof(bsk_block_l2_decay_params, layout),
    .heads = 1,
    BSKI_TABLE(arg, block_l2_decay_args),
    BSKI_TABLE(attr, block_l2_decay_attrs),
    BSKI_TABLE(scalar, block_l2_decay_scalars),
    .check = block_l2_decay_check,
};
BSKI_DEFINE_OP(block_l2_decay, block_l2_decay)

/* --- concrete gate ------------------------------------------------------------------------ */

static const bski_arg concrete_gate_args[] = {
    {BSKI_VECTOR(concrete_gate, loga), .dtypes = BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_F64)},
    {BSKI_VECTOR(concrete_gate, gate), .role = BSKI_OUT, .dtypes = BSKI_SAME},
    {BSKI_VECTOR(concrete_gate, concrete), .role = BSKI_OUT, .dtypes = BSKI_SAME},
};

static const bski_field concrete_gate_attrs[] = {
    BSKI_ATTR_OR(concrete_gate, limit_a, F64, -INFINITY, 0, -0.1),
    BSKI_ATTR_OR(concrete_gate, limit_b, F64, 0, INFINITY, 1.1),
    BSKI_ATTR_BELOW(concrete_gate, eps, F64, 0, 0.5, 1e-6),
};

static const bski_field concrete_gate_scalars[] = {
    BSKI_SCALAR(concrete_gate, temperature, F64, 0, INFINITY),
};

static bsk_status concrete_gate_check(const bski_op_info *op, const void *params,
                                      const bsk_layout_tables *l)
{
    (void)l;
    const bsk_concrete_gate_params *p = params;
    BSKI_TRY(bski_expect_like(op, "gate", &p->gate, &p->loga, "as loga"));
    return bski_expect_like(op, "concrete", &p->concrete, &p->loga, "as loga");
}

const bski_op_info bski_op_concrete_gate = {
    .name = "concrete_gate",
    .kernel_op = BSK_OP_CONCRETE_GATE,
    BSKI_STRUCTS(concrete_gate),
    BSKI_TABLE(arg, concrete_gate_args),
    BSKI_TABLE(attr, concrete_gate_attrs),
    BSKI_TABLE(scalar, concrete_gate_scalars),
    .check = concrete_gate_check,
};
BSKI_DEFINE_OP(concrete_gate, concrete_gate)

static const bski_arg concrete_gate_grad_args[] = {
    {BSKI_VECTOR(concrete_gate_grad, dgate),
     .dtypes = BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_F64)},
    {BSKI_VECTOR(concrete_gate_grad, concrete), .dtypes = BSKI_SAME},
    {BSKI_VECTOR(concrete_gate_grad, dloga), .role = BSKI_OUT, .dtypes = BSKI_SAME},
};

static const bski_field concrete_gate_grad_attrs[] = {
    BSKI_ATTR_OR(concrete_gate_grad, limit_a, F64, -INFINITY, 0, -0.1),
    BSKI_ATTR_OR(concrete_gate_grad, limit_b, F64, 0, INFINITY, 1.1),
};

static const bski_field concrete_gate_grad_scalars[] = {
    BSKI_ALPHA_BETA(concrete_gate_grad),
    BSKI_SCALAR(concrete_gate_grad, temperature, F64, 0, INFINITY),
};

static bsk_status concrete_gate_grad_check(const bski_op_info *op, const void *params,
                                           const bsk_layout_tables *l)
{
    (void)l;
    const bsk_concrete_gate_grad_params *p = params;
    BSKI_TRY(bski_expect_like(op, "concrete", &p->concrete, &p->dgate, "as dgate"));
    return bski_expect_like(op, "dloga", &p->dloga, &p->dgate, "as dgate");
}

const bski_op_info bski_op_concrete_gate_grad = {
    .name = "concrete_gate_grad",
    .kernel_op = BSK_OP_CONCRETE_GATE_GRAD,
    BSKI_STRUCTS(concrete_gate_grad),
    BSKI_TABLE(arg, concrete_gate_grad_args),
    BSKI_TABLE(attr, concrete_gate_grad_attrs),
    BSKI_TABLE(scalar, concrete_gate_grad_scalars),
    .check = concrete_gate_grad_check,
};
BSKI_DEFINE_OP(concrete_gate_grad, concrete_gate_grad)

static const bski_arg concrete_gate_infer_args[] = {
    {BSKI_VECTOR(concrete_gate_infer, loga),
     .dtypes = BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_F64)},
    {BSKI_VECTOR(concrete_gate_infer, gate), .role = BSKI_OUT, .dtypes = BSKI_SAME},
};

static const bski_field concrete_gate_infer_attrs[] = {
    BSKI_ATTR_OR(concrete_gate_infer, limit_a, F64, -INFINITY, 0, -0.1),
    BSKI_ATTR_OR(concrete_gate_infer, limit_b, F64, 0, INFINITY, 1.1),
};

static bsk_status concrete_gate_infer_check(const bski_op_info *op, const void *params,
                                            const bsk_layout_tables *l)
{
    (void)l;
    const bsk_concrete_gate_infer_params *p = params;
    return bski_expect_like(op, "gate", &p->gate, &p->loga, "as loga");
}

const bski_op_info bski_op_concrete_gate_infer = {
    .name = "concrete_gate_infer",
    .kernel_op = BSK_OP_CONCRETE_GATE_INFER,
    BSKI_STRUCTS(concrete_gate_infer),
    BSKI_TABLE(arg, concrete_gate_infer_args),
    BSKI_TABLE(attr, concrete_gate_infer_attrs),
    .check = concrete_gate_infer_check,
};
BSKI_DEFINE_OP(concrete_gate_infer, concrete_gate_infer)

/* --- moving blocks ------------------------------------------------------------------------ */

static const bski_arg block_renew_args[] = {
    {BSKI_BLOCKS(block_renew, w), .role = BSKI_INOUT, .dtypes = FLOATS | BSK_DTYPE_BIT(BSK_U16)},
    {BSKI_VECTOR(block_renew, keep), .dtypes = BSK_DTYPE_BIT(BSK_U8)},
};

static const bski_field block_renew_attrs[] = {
    BSKI_ATTR(block_renew, renew, I32, 0, BSK_RENEW_UNIFORM),
};

static const bski_field block_renew_scalars[] = {
    BSKI_SCALAR(block_renew, alpha, F64, -INFINITY, INFINITY),
};

static bsk_status block_renew_check(const bski_op_info *op, const void *params,
                                    const bsk_layout_tables *l)
{
    const bsk_block_renew_params *p = params;
    BSKI_TRY(expect_blocks(op, "w", &p->w, l));
    if (p->w.dtype == BSK_U16 && p->renew != BSK_RENEW_ZERO)
        return bski_fail(BSK_E_INVALID, "%s: renew is %d; w of u16 needs %d (zeros)", op->name,
                         (int)p->renew, (int)BSK_RENEW_ZERO);
    return bski_expect_vector(op, "keep", &p->keep, l->nnz, "kept blocks of the layout");
}

const bski_op_info bski_op_block_renew = {
    .name = "block_renew",
    .kernel_op = BSK_OP_BLOCK_RENEW,
    BSKI_STRUCTS(block_renew),
    .layout = offsetof(bsk_block_renew_params, layout),
    .heads = 1,
    BSKI_TABLE(arg, block_renew_args),
    BSKI_TABLE(attr, block_renew_attrs),
    BSKI_TABLE(scalar, block_renew_scalars),
    .check = block_renew_check,
};
BSKI_DEFINE_OP(block_renew, block_renew)

static const bski_arg block_gather_args[] = {
    {BSKI_BLOCKS(block_gather, x), .dtypes = FLOATS | BSKI_SCALED | BSK_DTYPE_BIT(BSK_U16)},
    {BSKI_VECTOR(block_gather, index), .dtypes = BSK_DTYPE_BIT(BSK_I32)},
    {BSKI_BLOCKS(block_gather, y), .role = BSKI_OUT, .dtypes = BSKI_SAME},
};

static bsk_status block_gather_check(const bski_op_info *op, const void *params,
                                     const bsk_layout_tables *l)
{
    (void)l;
    const bsk_block_gather_params *p = params;
    if (p->y.dtype != p->x.dtype) /* of two f8 types */
        return bski_fail(BSK_E_INVALID, "%s: y.dtype is %s; legal is that of x, %s", op->name,
                         bsk_dtype_name(p->y.dtype), bsk_dtype_name(p->x.dtype));
    BSKI_TRY(bski_expect_dim(op, "y", &p->y, 0, p->index.dims[0], "as index"));
    BSKI_TRY(bski_expect_dim(op, "y", &p->y, 1, p->x.dims[1], "as x"));
    return bski_expect_dim(op, "y", &p->y, 2, p->x.dims[2], "as x");
}

const bski_op_info bski_op_block_gather = {
    .name = "block_gather",
    .kernel_op = BSK_OP_BLOCK_GATHER,
    BSKI_STRUCTS(block_gather),
    BSKI_TABLE(arg, block_gather_args),
    .check = block_gather_check,
};
BSKI_DEFINE_OP(block_gather, block_gather)

/* --- projections -------------------------------------------------------------------------- */

/* An activation with the features of one side, and N as another activation has it. */
static bsk_status expect_side(const bski_op_info *op, const char *name, const bsk_tensor *t,
                              bsk_axis axis, int64_t n, int64_t features, const char *what)
{
    BSKI_TRY(bski_expect_dim(op, name, t, axis == BSK_NC ? 0 : 1, n, "N of x"));
    return features < 0 ? BSK_OK
                        : bski_expect_dim(op, name, t, axis == BSK_NC ? 1 : 0, features, what);
}

static const bski_arg proj_args[] = {
    {BSKI_ACTIVATION(proj, x), .dtypes = FLOATS},
    {BSKI_VECTOR(proj, index), .dtypes = BSK_DTYPE_BIT(BSK_I32)},
    {BSKI_ACTIVATION(proj, y), .role = BSKI_OUT, .dtypes = BSKI_SAME},
};

static const bski_field proj_attrs[] = {
    BSKI_ATTR(proj, axis, I32, 0, 1),
};

static bsk_status proj_gather_check(const bski_op_info *op, const void *params,
                                    const bsk_layout_tables *l)
{
    (void)l;
    const bsk_proj_params *p = params;
    int64_t n = p->x.dims[p->axis == BSK_NC ? 0 : 1];
    return expect_side(op, "y", &p->y, p->axis, n, p->index.dims[0], "entries of index");
}

static bsk_status proj_scatter_check(const bski_op_info *op, const void *params,
                                     const bsk_layout_tables *l)
{
    (void)l;
    const bsk_proj_params *p = params;
    int64_t n = p->x.dims[p->axis == BSK_NC ? 0 : 1];
    BSKI_TRY(expect_side(op, "x", &p->x, p->axis, n, p->index.dims[0], "entries of index"));
    return expect_side(op, "y", &p->y, p->axis, n, -1, "");
}

const bski_op_info bski_op_proj_gather = {
    .name = "proj_gather",
    .kernel_op = BSK_OP_PROJ_GATHER,
    BSKI_STRUCTS(proj),
    BSKI_TABLE(arg, proj_args),
    BSKI_TABLE(attr, proj_attrs),
    .check = proj_gather_check,
};
BSKI_DEFINE_OP(proj_gather, proj)

const bski_op_info bski_op_proj_scatter = {
    .name = "proj_scatter",
    .kernel_op = BSK_OP_PROJ_SCATTER,
    BSKI_STRUCTS(proj),
    BSKI_TABLE(arg, proj_args),
    BSKI_TABLE(attr, proj_attrs),
    .check = proj_scatter_check,
};
BSKI_DEFINE_OP(proj_scatter, proj)

static const bski_arg proj_scatter_op_args[] = {
    {BSKI_ACTIVATION(proj_scatter_op, x), .dtypes = FLOATS},
    {BSKI_ACTIVATION(proj_scatter_op, v), .dtypes = BSKI_SAME},
    {BSKI_VECTOR(proj_scatter_op, index), .dtypes = BSK_DTYPE_BIT(BSK_I32)},
    {BSKI_ACTIVATION(proj_scatter_op, y), .role = BSKI_OUT, .alias = 1 << 0, .dtypes = BSKI_SAME},
};

static const bski_field proj_scatter_op_attrs[] = {
    BSKI_ATTR(proj_scatter_op, axis, I32, 0, 1),
};

static bsk_status proj_scatter_op_check(const bski_op_info *op, const void *params,
                                        const bsk_layout_tables *l)
{
    (void)l;
    const bsk_proj_scatter_op_params *p = params;
    int64_t n = p->x.dims[p->axis == BSK_NC ? 0 : 1];
    BSKI_TRY(expect_side(op, "v", &p->v, p->axis, n, p->index.dims[0], "entries of index"));
    return bski_expect_like(op, "y", &p->y, &p->x, "as x");
}

const bski_op_info bski_op_proj_scatter_add = {
    .name = "proj_scatter_add",
    .kernel_op = BSK_OP_PROJ_SCATTER_ADD,
    BSKI_STRUCTS(proj_scatter_op),
    BSKI_TABLE(arg, proj_scatter_op_args),
    BSKI_TABLE(attr, proj_scatter_op_attrs),
    .check = proj_scatter_op_check,
};
BSKI_DEFINE_OP(proj_scatter_add, proj_scatter_op)

const bski_op_info bski_op_proj_scatter_mul = {
    .name = "proj_scatter_mul",
    .kernel_op = BSK_OP_PROJ_SCATTER_MUL,
    BSKI_STRUCTS(proj_scatter_op),
    BSKI_TABLE(arg, proj_scatter_op_args),
    BSKI_TABLE(attr, proj_scatter_op_attrs),
    .check = proj_scatter_op_check,
};
BSKI_DEFINE_OP(proj_scatter_mul, proj_scatter_op)

static const bski_arg proj_scatter_mul_grad_args[] = {
    {BSKI_ACTIVATION(proj_scatter_mul_grad, dy), .dtypes = FLOATS},
    {BSKI_ACTIVATION(proj_scatter_mul_grad, x), .dtypes = BSKI_SAME},
    {BSKI_ACTIVATION(proj_scatter_mul_grad, v), .dtypes = BSKI_SAME},
    {BSKI_VECTOR(proj_scatter_mul_grad, index), .dtypes = BSK_DTYPE_BIT(BSK_I32)},
    {BSKI_ACTIVATION(proj_scatter_mul_grad, dx), .role = BSKI_OUT, .alias = 1 << 0,
     .dtypes = BSKI_SAME},
    {BSKI_ACTIVATION(proj_scatter_mul_grad, dv), .role = BSKI_OUT, .dtypes = BSKI_SAME},
};

static const bski_field proj_scatter_mul_grad_attrs[] = {
    BSKI_ATTR(proj_scatter_mul_grad, axis, I32, 0, 1),
};

static const bski_field proj_scatter_mul_grad_scalars[] = {
    BSKI_ALPHA_BETA(proj_scatter_mul_grad),
};

static bsk_status proj_scatter_mul_grad_check(const bski_op_info *op, const void *params,
                                              const bsk_layout_tables *l)
{
    (void)l;
    const bsk_proj_scatter_mul_grad_params *p = params;
    int64_t n = p->dy.dims[p->axis == BSK_NC ? 0 : 1];
    BSKI_TRY(bski_expect_like(op, "x", &p->x, &p->dy, "as dy"));
    BSKI_TRY(bski_expect_like(op, "dx", &p->dx, &p->dy, "as dy"));
    BSKI_TRY(expect_side(op, "v", &p->v, p->axis, n, p->index.dims[0], "entries of index"));
    return bski_expect_like(op, "dv", &p->dv, &p->v, "as v");
}

const bski_op_info bski_op_proj_scatter_mul_grad = {
    .name = "proj_scatter_mul_grad",
    .kernel_op = BSK_OP_PROJ_SCATTER_MUL_GRAD,
    BSKI_STRUCTS(proj_scatter_mul_grad),
    BSKI_TABLE(arg, proj_scatter_mul_grad_args),
    BSKI_TABLE(attr, proj_scatter_mul_grad_attrs),
    BSKI_TABLE(scalar, proj_scatter_mul_grad_scalars),
    .check = proj_scatter_mul_grad_check,
};
BSKI_DEFINE_OP(proj_scatter_mul_grad, proj_scatter_mul_grad)
