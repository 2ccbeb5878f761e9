/* Rounding to narrow formats, in integers, and the statistics of a tensor. */
#include "random.h"
#include "walk.h"

/* --- quantize --------------------------------------------------------------------------------- */

OMP_DECLARE(quantize);
OMP_PREPARE_NONE(quantize)

OMP_ACCEPT(quantize)
{
    const bsk_quantize_params *p = problem->params;
    walk w;
    (void)props;
    if (!is_narrow(&p->x) || !is_narrow(&p->y))
        return BSK_REFUSE_DTYPE;
    return walk_numbered(&w, &p->y, &p->x, 0) ? BSK_ACCEPT : BSK_REFUSE_STRIDE;
}

/* A format in f32. Numbers from `normal` on lose the low `drop` bits of their fraction; smaller
 * ones are multiples of `unit`, by which up[0] * up[1] divides. */
typedef struct number_format {
    float most, normal, unit, up[2];
    int32_t drop;
    bool flush;
} number_format;

static number_format number_format_of(const bsk_quantize_params *p, int64_t exponent)
{
    const int high = (int)max_i64(-126, min_i64(127, exponent));
    const int low = (int)max_i64(-126, high - (1 << p->ebits) + 2);
    const int steps = p->fbits - low; /* from -127 to 149 */
    return (number_format){.most = (float)ldexp(2 - ldexp(1, -p->fbits), high),
                           .normal = (float)ldexp(1, low),
                           .unit = (float)ldexp(1, -steps),
                           .up = {(float)ldexp(1, steps / 2), (float)ldexp(1, steps - steps / 2)},
                           .drop = 23 - p->fbits,
                           .flush = p->flush != 0};
}

/* Every step is exact but the rounding itself. random: 24 bits each, or NULL for nearness. */
OMP_INLINE void quantize_row(const number_format *f, float *restrict row,
                             const uint32_t *restrict random, bool stochastic, int64_t count)
{
    const int32_t drop = f->drop;
    const uint32_t mask = (1u << drop) - 1, odd = drop ? 1 : 0;
    const float magic = 8388608.0f, most = f->most, normal = f->normal, unit = f->unit;
    const float least = f->flush ? normal : 0, up0 = f->up[0], up1 = f->up[1];
    for (int64_t i = 0; i < count; i++) {
        const uint32_t sign = bski_f32_bits(row[i]) & 0x80000000u;
        const uint32_t bits = bski_f32_bits(row[i]) & 0x7fffffffu;
        const float v = bski_bits_f32(bits);
        const float scaled = (v < normal ? v : 0) * up0 * up1;
        uint32_t large;
        float small;
        if (stochastic) {
            const uint32_t chance = random[i] >> 8, rest = (bits & mask) << (24 - drop);
            const float below = (float)(int32_t)scaled;
            const float share = (float)(int32_t)chance * 0x1p-24f, above = scaled - below;
            large = (bits & ~mask) + (chance < rest ? mask + 1 : 0);
            small = below + (share < above ? 1.0f : 0.0f);
        } else {
            /* without fraction bits the last one kept is the leading one, which is not stored */
            large = (bits + mask / 2 + (drop == 23 ? 1 : bits >> drop & odd)) & ~mask;
            small = (scaled + magic) - magic;
        }
        small *= unit;
        float q = v < normal ? small : bski_bits_f32(large);
        q = ((bits >= 0x7f800000u) | (q > most)) ? most : q;
        q = q < least ? 0 : q;
        q = bits > 0x7f800000u ? v : q;
        row[i] = bski_bits_f32(bski_f32_bits(q) | sign);
    }
}

OMP_LAUNCH(quantize)
{
    const bsk_quantize_params *p = prepared->problem->params;
    const bsk_quantize_args *a = args;
    const bool given = p->exponent.dtype != BSK_NONE;
    const number_format f =
        number_format_of(p, given ? *(const int32_t *)bsk_mem_address(a->exponent) : a->emax);
    walk w;

    walk_numbered(&w, &p->y, &p->x, 0);
    const bool stream = streams(p->y.dtype, w.rows, w.inner);
#pragma omp parallel num_threads(queue_threads(queue))
    {
        float row[CHUNK];
        uint32_t buffer[CHUNK + RANDOM_SLACK] __attribute__((aligned(64)));
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < walk_pieces(&w); i++) {
            const walk_piece at = walk_at(&w, i);
            walk_load(&w, &at, 1, p->x.dtype, bsk_mem_address(a->x), row);
            if (p->stochastic)
                quantize_row(&f, row,
                             random_words(a->seed, a->offset, (uint64_t)at.at[2], at.count, buffer),
                             true, at.count);
            else
                quantize_row(&f, row, NULL, false, at.count);
            row_put(row, p->y.dtype, bsk_mem_address(a->y), at.at[0], at.count, stream);
        }
        stream_fence();
    }
    return BSK_OK;
}

/* --- tensor_stats ----------------------------------------------------------------------------- */

OMP_DECLARE(tensor_stats);

/* Of the magnitudes of one piece. */
typedef struct piece_stats {
    double mean, square; /* square: the sum around the mean */
    float max;
    int32_t count, saturated, flushed;
} piece_stats;

static bool stats_walk(const bsk_tensor_stats_params *p, walk *w)
{
    /* the shape stands in for an output */
    const bsk_tensor *const tensors[] = {&p->x};
    return walk_make(w, tensors, 1);
}

OMP_ACCEPT(tensor_stats)
{
    const bsk_tensor_stats_params *p = problem->params;
    walk w;
    (void)props;
    return stats_walk(p, &w) ? BSK_ACCEPT : BSK_REFUSE_STRIDE;
}

OMP_PREPARE(tensor_stats)
{
    const bsk_tensor_stats_params *p = prepared->problem->params;
    walk w;
    (void)device;
    stats_walk(p, &w);
    return bski_mul_size((size_t)walk_pieces(&w), sizeof(piece_stats), &prepared->workspace_bytes)
               ? BSK_OK
               : BSK_E_UNSUPPORTED;
}

/* The smallest f32 number that is not below v: x >= v exactly if x >= it. */
static float not_below(double v)
{
    const float f = (float)v;
    return (double)f < v ? nextafterf(f, INFINITY) : f;
}

static piece_stats stats_of(float *restrict row, int64_t count, float saturate, float tiny)
{
    piece_stats s = {.count = (int32_t)count};
    for (int64_t i = 0; i < count; i++) {
        const float v = fabsf(row[i]);
        row[i] = v != v ? INFINITY : v;
        s.saturated += row[i] >= saturate;
        s.flushed += (row[i] > 0) & (row[i] < tiny);
    }
    row_pad(row, count, 0);
    s.max = row_max(row, count, 0);
    /* about 1 at most, so that neither sums nor squares leave the range of f32 */
    const int e = s.max > 0 && s.max < INFINITY ? (int)max_i64(ilogbf(s.max), -126) : 0;
    const float scale = ldexpf(1, -e);
    EACH_VECTOR(i, count) store_f32(row + i, scale * load_f32(row + i));
    const double mean = (double)row_sum(row, count) / (double)count;
    row_pad(row, count, (float)mean);
    s.mean = ldexp(mean, e);
    s.square = ldexp((double)row_square(row, count, (float)mean), 2 * e);
    return s;
}

static int32_t exponent_of(double v, int64_t pad)
{
    if (v == 0)
        return -126;
    if (!isfinite(v))
        return 127;
    return (int32_t)max_i64(-126, min_i64(127, ilogb(v) + pad));
}

OMP_LAUNCH(tensor_stats)
{
    const bsk_tensor_stats_params *p = prepared->problem->params;
    const bsk_tensor_stats_args *a = args;
    const float saturate = not_below(a->saturate > 0 ? a->saturate : 65504);
    const float tiny = not_below(a->tiny > 0 ? a->tiny : 0x1p-24);
    piece_stats *pieces = bsk_mem_address(a->workspace);
    double s[BSK_STATS_COUNT] = {0}, count = 0;
    walk w;

    stats_walk(p, &w);
#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t i = 0; i < walk_pieces(&w); i++) {
        const walk_piece at = walk_at(&w, i);
        float row[CHUNK];
        row_load_f32(row, p->x.dtype, bsk_mem_address(a->x), at.at[0], at.count);
        pieces[i] = stats_of(row, at.count, saturate, tiny);
    }
    for (int64_t i = 0; i < walk_pieces(&w); i++) {
        count += pieces[i].count;
        s[BSK_STATS_MEAN] += pieces[i].mean * pieces[i].count;
        s[BSK_STATS_MAX] = fmax(s[BSK_STATS_MAX], (double)pieces[i].max);
        s[BSK_STATS_SATURATED] += pieces[i].saturated;
        s[BSK_STATS_FLUSHED] += pieces[i].flushed;
    }
    const double terms = fmax(count, 1);
    s[BSK_STATS_MEAN] /= terms;
    for (int64_t i = 0; i < walk_pieces(&w); i++) {
        const double d = pieces[i].mean - s[BSK_STATS_MEAN];
        s[BSK_STATS_STD] += pieces[i].square + pieces[i].count * d * d;
    }
    s[BSK_STATS_STD] = isfinite(s[BSK_STATS_MEAN]) ? sqrt(s[BSK_STATS_STD] / terms) : INFINITY;
    s[BSK_STATS_SATURATED] /= terms;
    s[BSK_STATS_FLUSHED] /= terms;

    float *stats = bsk_mem_address(a->stats);
    for (int k = 0; k < BSK_STATS_COUNT; k++)
        stats[k * p->stats.strides[0]] = (float)s[k];
    if (p->exponent.dtype != BSK_NONE) {
        const double wide = s[BSK_STATS_MEAN] + p->spread * s[BSK_STATS_STD];
        *(int32_t *)bsk_mem_address(a->exponent) =
            exponent_of(p->spread > 0 ? wide : s[BSK_STATS_MAX], p->bias_pad);
    }
    return BSK_OK;
}
