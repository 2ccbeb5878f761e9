/* Functions of one number, and dropout. */
#include "random.h"
#include "walk.h"

/* row[i] = expression of x = row[i], for whole vectors. */
#define ROW_OF(expression)                                                                         \
    EACH_VECTOR(i_, count)                                                                         \
    {                                                                                              \
        const vec_f32 x = load_f32(row + i_);                                                      \
        store_f32(row + i_, expression);                                                           \
    }                                                                                              \
    break

/* --- unary ------------------------------------------------------------------------------------ */

static void sqrt_row(float *row, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        row[i] = sqrtf(row[i]);
}

static void unary_row(bsk_unary_kind kind, float c, float *row, int64_t count)
{
    const vec_f32 zero = {0};
    switch (kind) {
    case BSK_UNARY_NEG:
        ROW_OF(-x);
    case BSK_UNARY_RCP:
        ROW_OF(1.0f / x);
    case BSK_UNARY_SQR:
        ROW_OF((x * x));
    case BSK_UNARY_SQRT:
        sqrt_row(row, count);
        break;
    case BSK_UNARY_EXP:
        ROW_OF(exp_f32(x));
    case BSK_UNARY_LOG:
        ROW_OF(log_f32(x));
    case BSK_UNARY_SIGMOID:
        ROW_OF(sigmoid_f32(x));
    case BSK_UNARY_TANH:
        ROW_OF(tanh_f32(x));
    case BSK_UNARY_RELU:
        ROW_OF(select_f32(x <= zero, zero, x));
    case BSK_UNARY_ELU:
        ROW_OF(select_f32(x > zero, x, c * expm1_f32(select_f32(x > zero, zero, x))));
    case BSK_UNARY_GELU:
        act_row_f32(BSK_ACT_GELU, row, count);
        break;
    case BSK_UNARY_GELU_ERF:
        act_row_f32(BSK_ACT_GELU_ERF, row, count);
        break;
    default: /* BSK_UNARY_SWISH */
        ROW_OF(x / (exp_f32(-c * x) + 1.0f));
    }
}

/* e^-|x| / (1 + e^-|x|)^2, the derivative of the sigmoid. */
OMP_INLINE vec_f32 sigmoid_slope(vec_f32 x)
{
    const vec_f32 e = exp_f32(-abs_f32(x)), s = 1.0f / (e + 1.0f);
    return e * s * s;
}

/* The derivative, from the input. */
static void unary_slope_row(bsk_unary_kind kind, float c, float *row, int64_t count)
{
    const vec_f32 zero = {0}, one = splat_f32(1);
    switch (kind) {
    case BSK_UNARY_NEG:
        EACH_VECTOR(i, count) store_f32(row + i, -one);
        break;
    case BSK_UNARY_RCP:
        ROW_OF(-(one / x) * (one / x));
    case BSK_UNARY_SQR:
        ROW_OF(x + x);
    case BSK_UNARY_SQRT:
        sqrt_row(row, count);
        ROW_OF(0.5f / x);
    case BSK_UNARY_EXP:
        ROW_OF(exp_f32(x));
    case BSK_UNARY_LOG:
        ROW_OF(1.0f / x);
    case BSK_UNARY_SIGMOID:
        ROW_OF(sigmoid_slope(x));
    case BSK_UNARY_TANH:
        ROW_OF(4.0f * sigmoid_slope(x + x));
    case BSK_UNARY_RELU:
        act_slope_row_f32(BSK_ACT_RELU, row, count);
        break;
    case BSK_UNARY_ELU:
        ROW_OF(select_f32(x > zero, one, c * exp_f32(x)));
    case BSK_UNARY_GELU:
        act_slope_row_f32(BSK_ACT_GELU, row, count);
        break;
    case BSK_UNARY_GELU_ERF:
        act_slope_row_f32(BSK_ACT_GELU_ERF, row, count);
        break;
    default: /* BSK_UNARY_SWISH */
        ROW_OF(gated_slope(x, c * x, splat_f32(c)));
    }
}

/* The derivative, from the output. */
static void unary_output_slope_row(bsk_unary_kind kind, float c, float *row, int64_t count)
{
    const vec_f32 zero = {0}, one = splat_f32(1);
    switch (kind) {
    case BSK_UNARY_RCP:
        ROW_OF(-x * x);
    case BSK_UNARY_SQRT:
        ROW_OF(0.5f / x);
    case BSK_UNARY_EXP:
        break;
    case BSK_UNARY_SIGMOID:
        ROW_OF(x * (one - x));
    case BSK_UNARY_TANH:
        ROW_OF((one - x) * (one + x));
    case BSK_UNARY_ELU:
        ROW_OF(select_f32(x > zero, one, x + c));
    default: /* BSK_UNARY_NEG and BSK_UNARY_RELU, which need not tell the two apart */
        unary_slope_row(kind, c, row, count);
    }
}

OMP_WALK(unary, &p->y, &p->x)

OMP_LAUNCH(unary)
{
    const bsk_unary_params *p = prepared->problem->params;
    const bsk_unary_args *a = args;
    const void *x = bsk_mem_address(a->x);
    void *y = bsk_mem_address(a->y);
    walk w;

    unary_walk(p, &w);
    const bool stream = streams(p->y.dtype, w.rows, w.inner);
#pragma omp parallel num_threads(queue_threads(queue))
    {
        float row[CHUNK];
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < walk_pieces(&w); i++) {
            const walk_piece at = walk_at(&w, i);
            walk_load(&w, &at, 1, p->x.dtype, x, row);
            unary_row(p->kind, (float)p->coefficient, row, at.count);
            row_put(row, p->y.dtype, y, at.at[0], at.count, stream);
        }
        stream_fence();
    }
    return BSK_OK;
}

OMP_WALK(unary_grad, &p->dx, &p->dy, &p->x, &p->y)

OMP_LAUNCH(unary_grad)
{
    const bsk_unary_grad_params *p = prepared->problem->params;
    const bsk_unary_grad_args *a = args;
    const void *dy = bsk_mem_address(a->dy), *x = bsk_mem_address(a->x);
    const void *y = bsk_mem_address(a->y);
    void *dx = bsk_mem_address(a->dx);
    const bool output = p->y.dtype != BSK_NONE, input = !output && p->x.dtype != BSK_NONE;
    const float c = (float)p->coefficient;
    walk w;

    unary_grad_walk(p, &w);
    const bool stream = a->beta == 0 && streams(p->dx.dtype, w.rows, w.inner);
#pragma omp parallel num_threads(queue_threads(queue))
    {
        float row[CHUNK], slope[CHUNK] = {0};
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < walk_pieces(&w); i++) {
            const walk_piece at = walk_at(&w, i);
            walk_load(&w, &at, 1, p->dy.dtype, dy, row);
            if (output)
                walk_load(&w, &at, 3, p->y.dtype, y, slope);
            else if (input)
                walk_load(&w, &at, 2, p->x.dtype, x, slope);
            (output ? unary_output_slope_row : unary_slope_row)(p->kind, c, slope, at.count);
            EACH_VECTOR(k, at.count)
            store_f32(row + k, load_f32(row + k) * load_f32(slope + k));
            row_blend(row, a->alpha, a->beta, p->dx.dtype, dx, at.at[0], at.count);
            row_put(row, p->dx.dtype, dx, at.at[0], at.count, stream);
        }
        stream_fence();
    }
    return BSK_OK;
}

/* --- dropout ---------------------------------------------------------------------------------- */

OMP_DECLARE(dropout);
OMP_PREPARE_NONE(dropout)

OMP_ACCEPT(dropout)
{
    const bsk_dropout_params *p = problem->params;
    walk w;
    (void)props;
    if (!is_narrow(&p->x) || !is_narrow(&p->y))
        return BSK_REFUSE_DTYPE;
    return walk_numbered(&w, &p->y, &p->x, p->shared) ? BSK_ACCEPT : BSK_REFUSE_STRIDE;
}

/* A uniform number of 24 bits is below keep if it is below this. */
static int32_t keep_limit(double keep)
{
    return (int32_t)ceil(keep * 0x1p24);
}

static void row_drop(float *restrict row, const uint32_t *words, int32_t limit, float scale,
                     int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const int32_t kept = -((int32_t)(words[i] >> 8) < limit);
        row[i] = bski_bits_f32(bski_f32_bits(row[i] * scale) & (uint32_t)kept);
    }
}

OMP_LAUNCH(dropout)
{
    const bsk_dropout_params *p = prepared->problem->params;
    const bsk_dropout_args *a = args;
    const void *x = bsk_mem_address(a->x);
    void *y = bsk_mem_address(a->y);
    const int32_t limit = keep_limit(a->keep);
    const float scale = a->keep > 0 ? (float)(1 / a->keep) : 0;
    walk w;

    walk_numbered(&w, &p->y, &p->x, p->shared);
    const bool stream = streams(p->y.dtype, w.rows, w.inner);
#pragma omp parallel num_threads(queue_threads(queue))
    {
        float row[CHUNK];
        uint32_t buffer[CHUNK + RANDOM_SLACK];
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < walk_pieces(&w); i++) {
            const walk_piece at = walk_at(&w, i);
            const uint64_t element = (uint64_t)at.at[2];
            walk_load(&w, &at, 1, p->x.dtype, x, row);
            if (w.step[2] || at.count == 1)
                row_drop(row, random_words(a->seed, a->offset, element, at.count, buffer), limit,
                         scale, at.count);
            else if ((int32_t)(bski_philox_u32(a->seed, a->offset, element) >> 8) < limit)
                EACH_VECTOR(k, at.count) store_f32(row + k, scale * load_f32(row + k));
            else
                memset(row, 0, sizeof row);
            row_put(row, p->y.dtype, y, at.at[0], at.count, stream);
        }
        stream_fence();
    }
    return BSK_OK;
}
