/* reduced_wgrad: the norms of both operands' blocks are made once, with samples outermost, and then
 * multiplied and added up as in a dense product, which leaves out what is not finite. */
#include "dense.h"

/* Samples whose norms are made at a time; bytes of norms at a time; rows and columns of G whose sums
 * stay in registers. */
enum { STEPS = 128, NORMS = 256 << 10, HIGH = 4, WIDE = 2 * F32_LANES };

OMP_DECLARE(reduced_wgrad);

typedef struct reduced {
    const bsk_reduced_wgrad_params *p;
    int64_t samples, chunk;        /* of these, norms at a time */
    int64_t features[2], block[2]; /* of x and of dy */
    int64_t blocks[2], pitch[2];   /* norms of a sample; places, the rest of which is unset */
    float *norms[2], *sums;        /* [chunk][pitch], and [pitch[0]][pitch[1]] */
} reduced;

/* An activation as [samples, features]. */
typedef struct operand {
    bsk_dtype type;
    const void *data;
    int64_t by_sample, by_feature;
    bool beside; /* features lie side by side, else samples */
} operand;

static operand operand_of(const bsk_tensor *t, bsk_mem mem, int n)
{
    return (operand){t->dtype, bsk_mem_address(mem), t->strides[n], t->strides[1 - n],
                     axis_contiguous(t, 1 - n)};
}

/* False if sizes overflow. */
static bool reduced_shape(reduced *d, const bsk_problem *problem, size_t *bytes)
{
    const bsk_reduced_wgrad_params *p = problem->params;
    const int n = p->axis == BSK_NC ? 0 : 1;
    size_t norms, sums;
    *d = (reduced){.p = p,
                   .samples = p->x.dims[n],
                   .features = {p->x.dims[1 - n], p->dy.dims[1 - n]},
                   .block = {p->block_rows, p->block_cols},
                   .blocks = {p->g.dims[0], p->g.dims[1]}};
    for (int i = 0; i < 2; i++)
        d->pitch[i] = bski_ceil_div(d->blocks[i], WIDE) * WIDE;
    const int64_t each = (d->pitch[0] + d->pitch[1]) * (int64_t)sizeof(float);
    d->chunk =
        bski_ceil_div(min_i64(max_i64(NORMS / max_i64(each, 1), 1), d->samples), STEPS) * STEPS;
    return bski_mul_size((size_t)d->chunk, (size_t)each, &norms) &&
           bski_mul_size((size_t)d->pitch[0], (size_t)d->pitch[1] * sizeof(float), &sums) &&
           bski_add_size(norms, sums, bytes);
}

OMP_ACCEPT(reduced_wgrad)
{
    const bsk_reduced_wgrad_params *p = problem->params;
    reduced d;
    size_t bytes;
    (void)props;
    if (!is_narrow(&p->x) || !is_narrow(&p->dy))
        return BSK_REFUSE_DTYPE;
    return reduced_shape(&d, problem, &bytes) ? BSK_ACCEPT : BSK_REFUSE_LIMIT;
}

OMP_PREPARE(reduced_wgrad)
{
    reduced d;
    (void)device;
    reduced_shape(&d, prepared->problem, &prepared->workspace_bytes);
    return BSK_OK;
}

/* --- norms ------------------------------------------------------------------------------------ */

/* The larger of two numbers without sign; NaN, whose bits are larger than those of any, stays. */
OMP_INLINE vec_f32 larger_bits(vec_f32 x, vec_f32 y)
{
    return select_f32((vec_i32)x > (vec_i32)y, x, y);
}

/* One more number of each lane's block. */
OMP_INLINE vec_f32 lanes_join(vec_f32 sum, vec_f32 x, bool squares)
{
    return squares ? sum + x * x : larger_bits(abs_f32(x), sum);
}

/* A norm of a sum of squares, which f32 may not hold. */
static float root_of(const operand *o, int64_t sample, int64_t first, int64_t width, float squares)
{
    double sum = 0;
    if (squares > 1e-20f && squares < 1e37f)
        return sqrtf(squares);
    for (int64_t f = first; f < first + width; f++) {
        float x;
        row_load_f32(&x, o->type, o->data, sample * o->by_sample + f * o->by_feature, 1);
        sum += (double)x * x;
    }
    return (float)sqrt(sum);
}

/* Features of a block lie side by side: of one sample. */
static float norm_beside(const operand *o, int64_t sample, int64_t first, int64_t width,
                         bool squares)
{
    float line[STRETCH];
    vec_f32 lanes = splat_f32(0);
    for (int64_t f = 0; f < width; f += STRETCH) {
        const int64_t count = min_i64(STRETCH, width - f);
        row_load_padded(line, o->type, o->data, sample * o->by_sample + first + f, count, 0);
        EACH_VECTOR(i, count)
        lanes = lanes_join(lanes, load_f32(line + i), squares);
    }
    if (squares)
        return root_of(o, sample, first, width, lanes_sum(lanes));
    for (int half = F32_LANES / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++)
            if (((vec_i32)lanes)[k + half] > ((vec_i32)lanes)[k])
                lanes[k] = lanes[k + half];
    return lanes[0];
}

/* Samples lie side by side: norms of one block, by so many floats. */
static void norms_beside(const operand *o, int64_t sample, int64_t steps, int64_t first,
                         int64_t width, bool squares, float *to, int64_t by)
{
    float line[STEPS + PAD], sum[STEPS + PAD] = {0};
    for (int64_t f = first; f < first + width; f++) {
        row_load_padded(line, o->type, o->data, sample + f * o->by_feature, steps, 0);
        EACH_VECTOR(i, steps)
        store_f32(sum + i, lanes_join(load_f32(sum + i), load_f32(line + i), squares));
    }
    for (int64_t i = 0; i < steps; i++)
        to[i * by] = squares ? root_of(o, sample + i, first, width, sum[i]) : sum[i];
}

/* Of samples [sample, sample + steps) and up to WIDE blocks of one operand. */
static void norms_make(const reduced *d, int which, const operand *o, int64_t sample, int64_t steps,
                       int64_t blocks, float *to)
{
    const bool squares = d->p->norm == BSK_NORM_L2;
    const int64_t pitch = d->pitch[which], block = d->block[which];
    for (int64_t b = blocks; b < min_i64(blocks + WIDE, d->blocks[which]); b++) {
        const int64_t first = b * block, width = min_i64(block, d->features[which] - first);
        if (!o->beside)
            norms_beside(o, sample, steps, first, width, squares, to + b, pitch);
        else
            for (int64_t i = 0; i < steps; i++)
                to[i * pitch + b] = norm_beside(o, sample + i, first, width, squares);
    }
}

/* --- their product ---------------------------------------------------------------------------- */

/* sums [HIGH][WIDE] += the products of some samples' norms that are finite. */
static void tile_add(const reduced *d, int64_t row, int64_t col, int64_t steps)
{
    const float *x = d->norms[0] + row, *y = d->norms[1] + col;
    float *to = d->sums + row * d->pitch[1] + col;
    vec_f32 sum[HIGH][2];
    for (int r = 0; r < HIGH; r++)
        for (int v = 0; v < 2; v++)
            sum[r][v] = load_f32(to + r * d->pitch[1] + v * F32_LANES);
    for (int64_t k = 0; k < steps; k++, x += d->pitch[0], y += d->pitch[1])
        _Pragma("GCC unroll 4") for (int r = 0; r < HIGH; r++)
            _Pragma("GCC unroll 2") for (int v = 0; v < 2; v++)
        {
            const vec_f32 product = x[r] * load_f32(y + v * F32_LANES);
            sum[r][v] += (vec_f32)((vec_i32)(product - product == 0) & (vec_i32)product);
        }
    for (int r = 0; r < HIGH; r++)
        for (int v = 0; v < 2; v++)
            store_f32(to + r * d->pitch[1] + v * F32_LANES, sum[r][v]);
}

OMP_LAUNCH(reduced_wgrad)
{
    const bsk_reduced_wgrad_args *a = args;
    reduced d;
    size_t bytes;
    reduced_shape(&d, prepared->problem, &bytes);
    const bsk_reduced_wgrad_params *p = d.p;
    const int n = p->axis == BSK_NC ? 0 : 1;
    d.norms[0] = bsk_mem_address(a->workspace);
    d.norms[1] = d.norms[0] + d.chunk * d.pitch[0];
    d.sums = d.norms[1] + d.chunk * d.pitch[1];
    memset(d.sums, 0, (size_t)(d.pitch[0] * d.pitch[1]) * sizeof *d.sums);
    const int64_t groups[2] = {d.pitch[0] / WIDE, d.pitch[1] / WIDE};
    const int64_t tiles = d.pitch[0] / HIGH * groups[1];
#pragma omp parallel num_threads(queue_threads(queue))
    {
        for (int32_t pair = 0; pair < p->pairs; pair++) {
            const operand o[2] = {operand_of(&p->x, a->x[pair], n),
                                  operand_of(&p->dy, a->dy[pair], n)};
            for (int64_t first = 0; first < d.samples; first += d.chunk) {
                const int64_t count = min_i64(d.chunk, d.samples - first);
                const int64_t runs = bski_ceil_div(count, STEPS);
#pragma omp for schedule(dynamic)
                for (int64_t i = 0; i < runs * (groups[0] + groups[1]); i++) {
                    const int which = i >= runs * groups[0];
                    const int64_t task = i - which * runs * groups[0];
                    const int64_t at = task / groups[which] * STEPS;
                    norms_make(&d, which, &o[which], first + at, min_i64(STEPS, count - at),
                               task % groups[which] * WIDE, d.norms[which] + at * d.pitch[which]);
                }
#pragma omp for schedule(static)
                for (int64_t i = 0; i < tiles; i++)
                    tile_add(&d, i / groups[1] * HIGH, i % groups[1] * WIDE, count);
            }
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < d.blocks[0]; i++) {
            float *row = d.sums + i * d.pitch[1];
            const int64_t to = i * p->g.strides[0];
            row_blend(row, a->alpha, a->beta, p->g.dtype, bsk_mem_address(a->g), to, d.blocks[1]);
            row_store_f32(row, p->g.dtype, bsk_mem_address(a->g), to, d.blocks[1]);
        }
    }
    return BSK_OK;
}
