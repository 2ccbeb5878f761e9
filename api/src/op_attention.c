/* Descriptors of block-sparse attention. */
#include <math.h>
#include <string.h>

#include "api/src/internal.h"
#include "common/checked.h"
#include "common/dtype.h"

#define FLOATS BSKI_FLOATS
#define I32S   (1u << BSK_I32)

/* --- what the ops share ------------------------------------------------------------------- */

#define INTERLEAVE(group) BSKI_ATTR_OR(group, interleave, I32, 0, INT32_MAX, 1)

/* The choices of the softmax. */
#define MASK_ATTRS(group)                                                                          \
    INTERLEAVE(group), BSKI_ATTR(group, causal, I32, 0, 1),                                        \
        BSKI_ATTR(group, align, I32, 0, BSK_ALIGN_END),                                            \
        BSKI_ATTR(group, window, I64, 0, INFINITY), SOFTCAP(group)

#define SOFTCAP(group) BSKI_ATTR_BELOW(group, softcap, F64, 0, INFINITY, 0)

#define HEADS_ARG(group, field)                                                                    \
    BSKI_ARG(group, field), .rank_min = 4, .rank_max = 4, .strides = BSKI_UNIT_LAST

#define SCORES_ARG(group, field)                                                                   \
    BSKI_ARG(group, field), .rank_min = 5, .rank_max = 5, .strides = BSKI_DENSE_BLOCKS,            \
                            .dtypes = FLOATS

#define LSE_ARG(group)                                                                             \
    BSKI_ARG(group, lse), .rank_min = 3, .rank_max = 3, .strides = BSKI_CONTIGUOUS,                \
                          .dtypes = BSKI_SIDE

#define INTS_ARG(group, field, rank)                                                               \
    {                                                                                              \
        BSKI_ARG(group, field), .optional = 1, .rank_min = rank, .rank_max = rank,                 \
                                .strides = BSKI_CONTIGUOUS, .dtypes = I32S                         \
    }

/* Choices and scalars of the fused ops. */
#define ATTENTION_ATTRS(group) MASK_ATTRS(group), BSKI_ATTR(group, dropout, I32, 0, 1)
#define ATTENTION_SCALARS(group)                                                                   \
    BSKI_SCALAR(group, scale, F64, -INFINITY, INFINITY), BSKI_SCALAR(group, keep, F64, 0, 1),      \
        BSKI_SCALAR(group, seed, U64, -INFINITY, INFINITY),                                        \
        BSKI_SCALAR(group, offset, U64, -INFINITY, INFINITY)

/* Queries, keys and values. */
#define QKV_ARGS(group)                                                                            \
    {HEADS_ARG(group, q), .dtypes = FLOATS}, {HEADS_ARG(group, k), .dtypes = BSKI_SAME},           \
    {                                                                                              \
        HEADS_ARG(group, v), .dtypes = BSKI_SAME                                                   \
    }

/* What modifies and masks the scores. */
#define MASK_ARGS(group)                                                                           \
    {BSKI_ARG(group, bias), .optional = 1, .rank_min = 4, .rank_max = 4, .dtypes = FLOATS},        \
        {BSKI_ARG(group, slopes),    .optional = 1,      .rank_min = 1, .rank_max = 1,             \
         .strides = BSKI_CONTIGUOUS, .dtypes = BSKI_SIDE},                                         \
        INTS_ARG(group, q_len, 1), INTS_ARG(group, k_len, 1), INTS_ARG(group, prefix, 1),          \
        INTS_ARG(group, q_segment, 2), INTS_ARG(group, k_segment, 2),                              \
        {BSKI_ARG(group, bits),      .optional = 1,         .rank_min = 3, .rank_max = 3,          \
         .strides = BSKI_CONTIGUOUS, .dtypes = 1u << BSK_U8},                                      \
        INTS_ARG(group, bits_index, 1)

/* Sizes of a problem. */
typedef struct shape {
    int64_t batch, heads, q_time, k_time;
} shape;

/* The optional tensors of a softmax, from any of the three params structs that have them. */
typedef struct masks {
    const bsk_tensor *bias, *slopes, *q_len, *k_len, *prefix, *q_segment, *k_segment;
    const bsk_tensor *bits, *bits_index;
} masks;

#define MASKS_OF(p)                                                                                \
    {                                                                                              \
        &(p)->bias, &(p)->slopes, &(p)->q_len, &(p)->k_len, &(p)->prefix, &(p)->q_segment,         \
            &(p)->k_segment, &(p)->bits, &(p)->bits_index                                          \
    }

/* A layout's rows or columns against the time that they stand for. */
static bsk_status expect_time(const bski_op_info *op, const char *what, int64_t lines, int64_t time,
                              int64_t interleave)
{
    int64_t wanted = 0;
    if (bski_mul_i64(bski_ceil_div(time, interleave), interleave, &wanted) && wanted == lines)
        return BSK_OK;
    return bski_fail(BSK_E_INVALID,
                     "%s: the layout has %lld %s; a time of %lld with interleave %lld needs %lld",
                     op->name, (long long)lines, what, (long long)time, (long long)interleave,
                     (long long)wanted);
}

/* heads, from `name`, against those of the layout. */
static bsk_status expect_heads(const bski_op_info *op, const char *name, int64_t heads,
                               const bsk_layout_tables *l)
{
    if (heads % l->heads == 0)
        return BSK_OK;
    return bski_fail(BSK_E_INVALID,
                     "%s: %s.dims[1] is %lld; must be a multiple of the %d heads of "
                     "the layout",
                     op->name, name, (long long)heads, (int)l->heads);
}

/* Key/value heads, from `name`, against query heads. */
static bsk_status expect_kv_heads(const bski_op_info *op, const char *name, const bsk_tensor *t,
                                  int64_t heads)
{
    if (t->dims[1] > 0 ? heads % t->dims[1] == 0 : heads == 0)
        return BSK_OK;
    return bski_fail(BSK_E_INVALID, "%s: %s.dims[1] is %lld; must divide the %lld query heads",
                     op->name, name, (long long)t->dims[1], (long long)heads);
}

/* [batch, heads / L, nnz, r, c]. */
static bsk_status expect_scores(const bski_op_info *op, const char *name, const bsk_tensor *s,
                                const shape *z, const bsk_layout_tables *l)
{
    const int64_t dims[5] = {z->batch, z->heads / l->heads, l->nnz, l->block_rows, l->block_cols};
    return bski_expect_shape(op, name, s, 5, dims, "batch, heads per layout head, blocks");
}

/* Heads in all, of scores whose own dimension counts them per head of the layout. */
static bsk_status score_heads(const bski_op_info *op, const char *name, const bsk_tensor *s,
                              const bsk_layout_tables *l, int64_t *heads)
{
    if (bski_mul_i64(s->dims[1], l->heads, heads))
        return BSK_OK;
    return bski_fail(BSK_E_INVALID, "%s: %s has %lld heads for each of the layout's %d: too many",
                     op->name, name, (long long)s->dims[1], (int)l->heads);
}

/* [batch or 1, time], absent is fine. */
static bsk_status expect_segment(const bski_op_info *op, const char *name, const bsk_tensor *t,
                                 int64_t batch, int64_t time)
{
    if (t->dtype == BSK_NONE)
        return BSK_OK;
    if (t->dims[0] != 1)
        BSKI_TRY(bski_expect_dim(op, name, t, 0, batch, "batch, or 1"));
    return bski_expect_dim(op, name, t, 1, time, "time");
}

static bsk_status expect_bits(const bski_op_info *op, const masks *m, const bsk_layout_tables *l)
{
    if (m->bits->dtype == BSK_NONE)
        return m->bits_index->dtype == BSK_NONE
                   ? BSK_OK
                   : bski_fail(BSK_E_INVALID, "%s: bits_index is given without bits", op->name);
    if (m->bits_index->dtype == BSK_NONE)
        BSKI_TRY(bski_expect_dim(op, "bits", m->bits, 0, l->nnz, "kept blocks"));
    BSKI_TRY(bski_expect_dim(op, "bits", m->bits, 1, l->block_rows, "rows of a block"));
    BSKI_TRY(bski_expect_dim(op, "bits", m->bits, 2, ((int64_t)l->block_cols + 7) / 8,
                             "bytes of a row of a block"));
    return bski_expect_vector(op, "bits_index", m->bits_index, l->nnz, "kept blocks");
}

static bsk_status expect_masks(const bski_op_info *op, const masks *m, const shape *z,
                               const bsk_layout_tables *l)
{
    const bsk_tensor scores = {BSK_F32, 4, {z->batch, z->heads, z->q_time, z->k_time}, {0}};
    if (m->q_segment->dtype != BSK_NONE && m->k_segment->dtype == BSK_NONE)
        return bski_fail(BSK_E_INVALID, "%s: q_segment is given without k_segment", op->name);
    BSKI_TRY(bski_expect_broadcast(op, "bias", m->bias, &scores, "batch, heads, q_time, k_time"));
    BSKI_TRY(bski_expect_vector(op, "slopes", m->slopes, z->heads, "heads"));
    BSKI_TRY(bski_expect_vector(op, "q_len", m->q_len, z->batch, "batch"));
    BSKI_TRY(bski_expect_vector(op, "k_len", m->k_len, z->batch, "batch"));
    BSKI_TRY(bski_expect_vector(op, "prefix", m->prefix, z->batch, "batch"));
    BSKI_TRY(expect_segment(op, "q_segment", m->q_segment, z->batch, z->q_time));
    BSKI_TRY(expect_segment(op, "k_segment", m->k_segment, z->batch, z->k_time));
    return expect_bits(op, m, l);
}

/* q [batch, heads, q_time, d], k [batch, kv_heads, k_time, d], by their names. */
static bsk_status expect_pair(const bski_op_info *op, const bsk_tensor *q, const char *k_name,
                              const bsk_tensor *k, const bsk_layout_tables *l, int64_t interleave)
{
    BSKI_TRY(expect_heads(op, "q", q->dims[1], l));
    BSKI_TRY(bski_expect_dim(op, k_name, k, 0, q->dims[0], "batch"));
    BSKI_TRY(expect_kv_heads(op, k_name, k, q->dims[1]));
    BSKI_TRY(expect_time(op, "rows", l->rows, q->dims[2], interleave));
    return expect_time(op, "columns", l->cols, k->dims[2], interleave);
}

/* Elements of the kept blocks of all query heads of the batch. */
static double score_elements(const bsk_layout_tables *l, int64_t batch, int64_t heads)
{
    return (double)l->nnz * l->block_rows * l->block_cols * (double)batch * (double)heads /
           (double)l->heads;
}

/* --- attn_scores -------------------------------------------------------------------------- */

static const bski_arg attn_scores_args[] = {
    {HEADS_ARG(attn_scores, q), .dtypes = FLOATS},
    {HEADS_ARG(attn_scores, k), .dtypes = BSKI_SAME},
    {SCORES_ARG(attn_scores, s), .role = BSKI_OUT},
};

static const bski_field attn_scores_attrs[] = {INTERLEAVE(attn_scores)};

static const bski_field attn_scores_scalars[] = {
    BSKI_ALPHA_BETA(attn_scores),
};

static bsk_status attn_scores_check(const bski_op_info *op, const void *params,
                                    const bsk_layout_tables *l)
{
    const bsk_attn_scores_params *p = params;
    const shape z = {p->q.dims[0], p->q.dims[1], p->q.dims[2], p->k.dims[2]};
    BSKI_TRY(expect_pair(op, &p->q, "k", &p->k, l, p->interleave));
    BSKI_TRY(bski_expect_dim(op, "k", &p->k, 3, p->q.dims[3], "as q"));
    return expect_scores(op, "s", &p->s, &z, l);
}

static double attn_scores_flops(const void *params, const bsk_layout_tables *l)
{
    const bsk_attn_scores_params *p = params;
    return 2 * score_elements(l, p->q.dims[0], p->q.dims[1]) * (double)p->q.dims[3];
}

const bski_op_info bski_op_attn_scores = {
    .name = "attn_scores",
    .kernel_op = BSK_OP_ATTN_SCORES,
    BSKI_STRUCTS(attn_scores),
    .layout = offsetof(bsk_attn_scores_params, layout),
    .heads = 1,
    BSKI_TABLE(arg, attn_scores_args),
    BSKI_TABLE(attr, attn_scores_attrs),
    BSKI_TABLE(scalar, attn_scores_scalars),
    .check = attn_scores_check,
    .flops = attn_scores_flops,
};
BSKI_DEFINE_OP(attn_scores, attn_scores)

/* --- attn_apply --------------------------------------------------------------------------- */

enum { APPLY_V = 1 };

static const bski_arg attn_apply_args[] = {
    {SCORES_ARG(attn_apply, s)},
    {HEADS_ARG(attn_apply, v), .dtypes = FLOATS},
    {HEADS_ARG(attn_apply, y), .role = BSKI_OUT, .dtypes = FLOATS},
};

static const bski_field attn_apply_attrs[] = {
    INTERLEAVE(attn_apply),
    BSKI_ATTR(attn_apply, transpose, I32, 0, 1),
};

static const bski_field attn_apply_scalars[] = {
    BSKI_ALPHA_BETA(attn_apply),
};

extern const bski_op_info bski_op_attn_apply_t;

static bool is_transposed(const bski_op_info *op, const bsk_attn_apply_params *p)
{
    return p->transpose || op == &bski_op_attn_apply_t;
}

static bsk_status attn_apply_check(const bski_op_info *op, const void *params,
                                   const bsk_layout_tables *l)
{
    const bsk_attn_apply_params *p = params;
    const bool transposed = is_transposed(op, p);
    const bsk_tensor *q = transposed ? &p->v : &p->y, *k = transposed ? &p->y : &p->v;
    const char *q_name = transposed ? "v" : "y", *k_name = transposed ? "y" : "v";
    const shape z = {p->v.dims[0], q->dims[1], q->dims[2], k->dims[2]};
    BSKI_TRY(expect_heads(op, q_name, z.heads, l));
    BSKI_TRY(expect_kv_heads(op, k_name, k, z.heads));
    BSKI_TRY(bski_expect_dim(op, "y", &p->y, 0, z.batch, "batch"));
    BSKI_TRY(bski_expect_dim(op, "y", &p->y, 3, p->v.dims[3], "as v"));
    BSKI_TRY(expect_time(op, "rows", l->rows, z.q_time, p->interleave));
    BSKI_TRY(expect_time(op, "columns", l->cols, z.k_time, p->interleave));
    return expect_scores(op, "s", &p->s, &z, l);
}

static double attn_apply_flops(const void *params, const bsk_layout_tables *l)
{
    const bsk_attn_apply_params *p = params;
    return 2 * score_elements(l, p->s.dims[0], p->s.dims[1] * l->heads) * (double)p->v.dims[3];
}

#define ATTN_APPLY                                                                                 \
    .kernel_op = BSK_OP_ATTN_APPLY, BSKI_STRUCTS(attn_apply),                                      \
    .layout = offsetof(bsk_attn_apply_params, layout), .heads = 1, .main = APPLY_V,                \
    BSKI_TABLE(arg, attn_apply_args), BSKI_TABLE(attr, attn_apply_attrs),                          \
    BSKI_TABLE(scalar, attn_apply_scalars), .check = attn_apply_check, .flops = attn_apply_flops

const bski_op_info bski_op_attn_apply = {.name = "attn_apply", ATTN_APPLY};
BSKI_DEFINE_OP(attn_apply, attn_apply)

static void attn_apply_t_params(const void *params, void *kernel_params)
{
    bsk_attn_apply_params *k = kernel_params;
    memcpy(k, params, sizeof *k);
    k->transpose = 1;
}

static void attn_apply_t_lower(const void *params, const void *args, void *kernel_args)
{
    (void)params;
    memcpy(kernel_args, args, sizeof(bsk_attn_apply_args));
}

const bski_op_info bski_op_attn_apply_t = {
    .name = "attn_apply_t",
    ATTN_APPLY,
    .lower_params = attn_apply_t_params,
    .lower_args = attn_apply_t_lower,
};
BSKI_DEFINE_OP(attn_apply_t, attn_apply)

/* --- block_softmax ------------------------------------------------------------------------ */

static const bski_arg block_softmax_args[] = {
    {SCORES_ARG(block_softmax, x)},
    {SCORES_ARG(block_softmax, y), .role = BSKI_OUT, .alias = 1 << 0},
    {LSE_ARG(block_softmax), .role = BSKI_OUT, .optional = 1},
    MASK_ARGS(block_softmax),
};

static const bski_field block_softmax_attrs[] = {MASK_ATTRS(block_softmax)};

static const bski_field block_softmax_scalars[] = {
    BSKI_SCALAR(block_softmax, scale, F64, -INFINITY, INFINITY),
};

static bsk_status block_softmax_check(const bski_op_info *op, const void *params,
                                      const bsk_layout_tables *l)
{
    const bsk_block_softmax_params *p = params;
    const masks m = MASKS_OF(p);
    shape z = {p->x.dims[0], 0, l->rows, l->cols};
    BSKI_TRY(score_heads(op, "x", &p->x, l, &z.heads));
    BSKI_TRY(expect_time(op, "rows", l->rows, l->rows, p->interleave));
    BSKI_TRY(expect_time(op, "columns", l->cols, l->cols, p->interleave));
    BSKI_TRY(expect_scores(op, "x", &p->x, &z, l));
    BSKI_TRY(expect_scores(op, "y", &p->y, &z, l));
    if (p->lse.dtype != BSK_NONE) {
        const int64_t dims[3] = {z.batch, z.heads, l->rows};
        BSKI_TRY(bski_expect_shape(op, "lse", &p->lse, 3, dims, "batch, heads, rows"));
    }
    return expect_masks(op, &m, &z, l);
}

const bski_op_info bski_op_block_softmax = {
    .name = "block_softmax",
    .kernel_op = BSK_OP_BLOCK_SOFTMAX,
    BSKI_STRUCTS(block_softmax),
    .layout = offsetof(bsk_block_softmax_params, layout),
    .heads = 1,
    BSKI_TABLE(arg, block_softmax_args),
    BSKI_TABLE(attr, block_softmax_attrs),
    BSKI_TABLE(scalar, block_softmax_scalars),
    .check = block_softmax_check,
};
BSKI_DEFINE_OP(block_softmax, block_softmax)

enum { SOFTMAX_GRAD_DY, SOFTMAX_GRAD_Y, SOFTMAX_GRAD_DX, SOFTMAX_GRAD_X };

static const bski_arg block_softmax_grad_args[] = {
    {SCORES_ARG(block_softmax_grad, dy)},
    {SCORES_ARG(block_softmax_grad, y)},
    {SCORES_ARG(block_softmax_grad, dx), .role = BSKI_OUT,
     .alias = 1 << SOFTMAX_GRAD_DY | 1 << SOFTMAX_GRAD_Y},
    {SCORES_ARG(block_softmax_grad, x), .optional = 1},
};

static const bski_field block_softmax_grad_attrs[] = {SOFTCAP(block_softmax_grad)};

static const bski_field block_softmax_grad_scalars[] = {
    BSKI_ALPHA_BETA(block_softmax_grad),
    BSKI_SCALAR(block_softmax_grad, scale, F64, -INFINITY, INFINITY),
};

static bsk_status block_softmax_grad_check(const bski_op_info *op, const void *params,
                                           const bsk_layout_tables *l)
{
    const bsk_block_softmax_grad_params *p = params;
    shape z = {p->dy.dims[0], 0, l->rows, l->cols};
    if ((p->softcap > 0) != (p->x.dtype != BSK_NONE))
        return bski_fail(BSK_E_INVALID, "%s: x is %s softcap", op->name,
                         p->softcap > 0 ? "absent but required with" : "given without");
    BSKI_TRY(score_heads(op, "dy", &p->dy, l, &z.heads));
    BSKI_TRY(expect_scores(op, "dy", &p->dy, &z, l));
    BSKI_TRY(expect_scores(op, "y", &p->y, &z, l));
    BSKI_TRY(expect_scores(op, "dx", &p->dx, &z, l));
    return bski_expect_like(op, "x", &p->x, &p->dy, "as dy");
}

const bski_op_info bski_op_block_softmax_grad = {
    .name = "block_softmax_grad",
    .kernel_op = BSK_OP_BLOCK_SOFTMAX_GRAD,
    BSKI_STRUCTS(block_softmax_grad),
    .layout = offsetof(bsk_block_softmax_grad_params, layout),
    .heads = 1,
    .widens = 1 << SOFTMAX_GRAD_Y | 1 << SOFTMAX_GRAD_X,
    BSKI_TABLE(arg, block_softmax_grad_args),
    BSKI_TABLE(attr, block_softmax_grad_attrs),
    BSKI_TABLE(scalar, block_softmax_grad_scalars),
    .check = block_softmax_grad_check,
};
BSKI_DEFINE_OP(block_softmax_grad, block_softmax_grad)

/* --- attention ---------------------------------------------------------------------------- */

static const bski_arg attention_args[] = {
    QKV_ARGS(attention),
    {HEADS_ARG(attention, o), .role = BSKI_OUT, .dtypes = FLOATS},
    {LSE_ARG(attention), .role = BSKI_OUT, .optional = 1},
    MASK_ARGS(attention),
};

static const bski_field attention_attrs[] = {ATTENTION_ATTRS(attention)};

static const bski_field attention_scalars[] = {ATTENTION_SCALARS(attention)};

/* The tensors that both directions have. */
static bsk_status expect_attention(const bski_op_info *op, const bsk_tensor *q, const bsk_tensor *k,
                                   const bsk_tensor *v, const bsk_tensor *o, const bsk_tensor *lse,
                                   const masks *m, int64_t interleave, const bsk_layout_tables *l)
{
    const shape z = {q->dims[0], q->dims[1], q->dims[2], k->dims[2]};
    const int64_t v_dims[4] = {z.batch, k->dims[1], z.k_time, v->dims[3]};
    const int64_t o_dims[4] = {z.batch, z.heads, z.q_time, v->dims[3]};
    BSKI_TRY(expect_pair(op, q, "k", k, l, interleave));
    BSKI_TRY(bski_expect_dim(op, "k", k, 3, q->dims[3], "as q"));
    BSKI_TRY(bski_expect_shape(op, "v", v, 4, v_dims, "batch, kv_heads, k_time, dv"));
    BSKI_TRY(bski_expect_shape(op, "o", o, 4, o_dims, "batch, heads, q_time, dv"));
    if (lse->dtype != BSK_NONE)
        BSKI_TRY(bski_expect_shape(op, "lse", lse, 3, q->dims, "batch, heads, q_time"));
    return expect_masks(op, m, &z, l);
}

static bsk_status attention_check(const bski_op_info *op, const void *params,
                                  const bsk_layout_tables *l)
{
    const bsk_attention_params *p = params;
    const masks m = MASKS_OF(p);
    return expect_attention(op, &p->q, &p->k, &p->v, &p->o, &p->lse, &m, p->interleave, l);
}

static double attention_flops(const void *params, const bsk_layout_tables *l)
{
    const bsk_attention_params *p = params;
    return 2 * score_elements(l, p->q.dims[0], p->q.dims[1]) *
           (double)(p->q.dims[3] + p->v.dims[3]);
}

const bski_op_info bski_op_attention = {
    .name = "attention",
    .kernel_op = BSK_OP_ATTENTION,
    BSKI_STRUCTS(attention),
    .layout = offsetof(bsk_attention_params, layout),
    .heads = 1,
    BSKI_TABLE(arg, attention_args),
    BSKI_TABLE(attr, attention_attrs),
    BSKI_TABLE(scalar, attention_scalars),
    .check = attention_check,
    .flops = attention_flops,
};
BSKI_DEFINE_OP(attention, attention)

static const bski_arg attention_grad_args[] = {
    QKV_ARGS(attention_grad),
    {HEADS_ARG(attention_grad, o), .dtypes = BSKI_SAME},
    {HEADS_ARG(attention_grad, dout), .dtypes = BSKI_SAME},
    {LSE_ARG(attention_grad)},
    {HEADS_ARG(attention_grad, dq), .role = BSKI_OUT, .optional = 1, .dtypes = FLOATS},
    {HEADS_ARG(attention_grad, dk), .role = BSKI_OUT, .optional = 1, .dtypes = FLOATS},
    {HEADS_ARG(attention_grad, dv), .role = BSKI_OUT, .optional = 1, .dtypes = FLOATS},
    MASK_ARGS(attention_grad),
};

static const bski_field attention_grad_attrs[] = {ATTENTION_ATTRS(attention_grad)};

static const bski_field attention_grad_scalars[] = {
    BSKI_ALPHA_BETA(attention_grad),
    ATTENTION_SCALARS(attention_grad),
};

static bsk_status attention_grad_check(const bski_op_info *op, const void *params,
                                       const bsk_layout_tables *l)
{
    const bsk_attention_grad_params *p = params;
    const masks m = MASKS_OF(p);
    if ((p->dk.dtype == BSK_NONE) != (p->dv.dtype == BSK_NONE))
        return bski_fail(BSK_E_INVALID, "%s: %s is absent; dk and dv come together", op->name,
                         p->dk.dtype == BSK_NONE ? "dk" : "dv");
    if (p->dq.dtype == BSK_NONE && p->dk.dtype == BSK_NONE)
        return bski_fail(BSK_E_INVALID, "%s: dq, dk and dv are absent; some are needed", op->name);
    BSKI_TRY(expect_attention(op, &p->q, &p->k, &p->v, &p->o, &p->lse, &m, p->interleave, l));
    BSKI_TRY(bski_expect_like(op, "dout", &p->dout, &p->o, "as o"));
    BSKI_TRY(bski_expect_like(op, "dq", &p->dq, &p->q, "as q"));
    BSKI_TRY(bski_expect_like(op, "dk", &p->dk, &p->k, "as k"));
    return bski_expect_like(op, "dv", &p->dv, &p->v, "as v");
}

/* Five products; without one side, three. */
static double attention_grad_flops(const void *params, const bsk_layout_tables *l)
{
    const bsk_attention_grad_params *p = params;
    const double d = (double)p->q.dims[3], dv = (double)p->v.dims[3];
    const double queries = p->dq.dtype != BSK_NONE ? d : 0;
    const double keys = p->dk.dtype != BSK_NONE ? d + dv : 0;
    return 2 * score_elements(l, p->q.dims[0], p->q.dims[1]) * (d + dv + queries + keys);
}

const bski_op_info bski_op_attention_grad = {
    .name = "attention_grad",
    .kernel_op = BSK_OP_ATTENTION_GRAD,
    BSKI_STRUCTS(attention_grad),
    .layout = offsetof(bsk_attention_grad_params, layout),
    .heads = 1,
    BSKI_TABLE(arg, attention_grad_args),
    BSKI_TABLE(attr, attention_grad_attrs),
    BSKI_TABLE(scalar, attention_grad_scalars),
    .check = attention_grad_check,
    .flops = attention_grad_flops,
};
BSKI_DEFINE_OP(attention_grad, attention_grad)

/* --- attention_decode --------------------------------------------------------------------- */

static const bski_arg attention_decode_args[] = {
    QKV_ARGS(attention_decode),
    {HEADS_ARG(attention_decode, o), .role = BSKI_OUT, .dtypes = FLOATS},
    {LSE_ARG(attention_decode), .role = BSKI_OUT, .optional = 1},
    {BSKI_VECTOR(attention_decode, slopes), .optional = 1, .dtypes = BSKI_SIDE},
    INTS_ARG(attention_decode, table, 2),
    INTS_ARG(attention_decode, q_len, 1),
    INTS_ARG(attention_decode, k_len, 1),
    INTS_ARG(attention_decode, block_index, 4),
    INTS_ARG(attention_decode, block_count, 3),
};

static const bski_field attention_decode_attrs[] = {
    BSKI_ATTR(attention_decode, causal, I32, 0, 1),
    BSKI_ATTR(attention_decode, block, I32, 0, INT32_MAX),
    BSKI_ATTR(attention_decode, q_block, I64, 0, INFINITY),
    BSKI_ATTR(attention_decode, window, I64, 0, INFINITY),
    SOFTCAP(attention_decode),
};

static const bski_field attention_decode_scalars[] = {
    BSKI_SCALAR(attention_decode, scale, F64, -INFINITY, INFINITY),
};

/* Lists of blocks, by member, key/value head and block of queries. */
static bsk_status expect_lists(const bski_op_info *op, const bsk_attention_decode_params *p)
{
    const int64_t q_time = p->q.dims[2], each = p->q_block > 0 ? p->q_block : q_time;
    const int64_t lists = each > 0 ? bski_ceil_div(q_time, each) : 0;
    const bsk_tensor counts = {BSK_I32, 3, {p->q.dims[0], p->k.dims[1], lists}, {0}};
    bsk_tensor entries = counts;
    entries.rank = 4;
    entries.dims[3] = p->block_index.dims[3];
    if (p->block_count.dtype != BSK_NONE && p->block_index.dtype == BSK_NONE)
        return bski_fail(BSK_E_INVALID, "%s: block_count is given without block_index", op->name);
    if (p->block_index.dtype != BSK_NONE && p->table.dtype != BSK_NONE && p->block > 0 &&
        p->k.dims[2] % p->block != 0)
        return bski_fail(BSK_E_INVALID, "%s: block is %d; must divide the %lld keys of a page",
                         op->name, (int)p->block, (long long)p->k.dims[2]);
    BSKI_TRY(bski_expect_broadcast(op, "block_index", &p->block_index, &entries,
                                   "batch, kv_heads, lists"));
    return bski_expect_broadcast(op, "block_count", &p->block_count, &counts,
                                 "batch, kv_heads, lists");
}

static bsk_status attention_decode_check(const bski_op_info *op, const void *params,
                                         const bsk_layout_tables *l)
{
    const bsk_attention_decode_params *p = params;
    const int64_t batch = p->q.dims[0], heads = p->q.dims[1];
    const int64_t v_dims[4] = {p->k.dims[0], p->k.dims[1], p->k.dims[2], p->v.dims[3]};
    const int64_t o_dims[4] = {batch, heads, p->q.dims[2], p->v.dims[3]};
    const bool paged = p->table.dtype != BSK_NONE;
    int64_t keys;
    (void)l;
    BSKI_TRY(expect_kv_heads(op, "k", &p->k, heads));
    BSKI_TRY(bski_expect_dim(op, "k", &p->k, 3, p->q.dims[3], "as q"));
    BSKI_TRY(bski_expect_shape(op, "v", &p->v, 4, v_dims, "pages, kv_heads, page, dv"));
    BSKI_TRY(bski_expect_shape(op, "o", &p->o, 4, o_dims, "batch, heads, q_time, dv"));
    if (p->lse.dtype != BSK_NONE)
        BSKI_TRY(bski_expect_shape(op, "lse", &p->lse, 3, p->q.dims, "batch, heads, q_time"));
    if (!paged)
        BSKI_TRY(bski_expect_dim(op, "k", &p->k, 0, batch, "batch, without a table"));
    else if (!bski_mul_i64(p->table.dims[1], p->k.dims[2], &keys))
        return bski_fail(BSK_E_INVALID,
                         "%s: table.dims[1] is %lld; too many for pages of %lld keys", op->name,
                         (long long)p->table.dims[1], (long long)p->k.dims[2]);
    else
        BSKI_TRY(bski_expect_dim(op, "table", &p->table, 0, batch, "batch"));
    BSKI_TRY(bski_expect_vector(op, "slopes", &p->slopes, heads, "heads"));
    BSKI_TRY(bski_expect_vector(op, "q_len", &p->q_len, batch, "batch"));
    BSKI_TRY(bski_expect_vector(op, "k_len", &p->k_len, batch, "batch"));
    return expect_lists(op, p);
}

/* Of all keys that a member can have, or of full lists. */
static double attention_decode_flops(const void *params, const bsk_layout_tables *l)
{
    const bsk_attention_decode_params *p = params;
    const double page = (double)p->k.dims[2], block = p->block > 0 ? p->block : page;
    const double all = page * (p->table.dtype != BSK_NONE ? (double)p->table.dims[1] : 1);
    const double listed =
        p->block_index.dtype != BSK_NONE ? block * (double)p->block_index.dims[3] : all;
    (void)l;
    return 2 * fmin(all, listed) * (double)p->q.dims[0] * (double)p->q.dims[1] *
           (double)p->q.dims[2] * (double)(p->q.dims[3] + p->v.dims[3]);
}

const bski_op_info bski_op_attention_decode = {
    .name = "attention_decode",
    .kernel_op = BSK_OP_ATTENTION_DECODE,
    BSKI_STRUCTS(attention_decode),
    BSKI_TABLE(arg, attention_decode_args),
    BSKI_TABLE(attr, attention_decode_attrs),
    BSKI_TABLE(scalar, attention_decode_scalars),
    .check = attention_decode_check,
    .flops = attention_decode_flops,
};
BSKI_DEFINE_OP(attention_decode, attention_decode)
