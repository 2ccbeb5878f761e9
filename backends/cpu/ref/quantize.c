/* Reference entries of quantize.h. */
#include "ref.h"

#include <common/philox.h>

/* A number format: exponents of its largest and of its smallest normal number. */
typedef struct format {
    int high, low, fbits;
    bool flush;
} format;

static format format_of(const bsk_quantize_params *p, int64_t exponent)
{
    const int high = exponent < -126 ? -126 : exponent > 127 ? 127 : (int)exponent;
    format f = {.high = high, .fbits = p->fbits, .flush = p->flush != 0};
    f.low = f.high - (1 << p->ebits) + 2;
    if (f.low < -126)
        f.low = -126;
    return f;
}

/* v to the grid of spacing 2^e; chance in [0, 1) decides, or, if it is negative, nearness. */
static double round_to_grid(double v, int e, double chance)
{
    const double scaled = ldexp(v, -e), below = floor(scaled);
    return ldexp(chance < 0 ? rint(scaled) : below + (chance < scaled - below), e);
}

static double quantized(format f, double x, double chance)
{
    if (isnan(x))
        return x;
    const double most = ldexp(2 - ldexp(1, -f.fbits), f.high), v = fabs(x);
    double q = most;
    if (v < 2 * most) {
        const int e = v >= ldexp(1, f.low) ? ilogb(v) : f.low;
        q = at_most(round_to_grid(v, e - f.fbits, chance), most);
    }
    if (f.flush && q < ldexp(1, f.low))
        q = 0;
    return copysign(q, x);
}

REF_OP(quantize, quantize)
{
    const ref_view x = view_of(&p->x, a->x), y = view_of(&p->y, a->y);
    const ref_view exponent = view_of(&p->exponent, a->exponent);
    const format f = format_of(p, view_given(&exponent) ? view_get_int(&exponent, 0) : a->emax);
    int64_t i[BSK_MAX_RANK] = {0};
    uint64_t element = 0;
    for (int64_t left = shape_count(&p->x); left > 0; left--, shape_next(&p->x, i), element++) {
        double chance = -1;
        if (p->stochastic)
            chance = (double)bski_philox_uniform(a->seed, a->offset, element);
        view_set(&y, i, quantized(f, view_get(&x, i), chance));
    }
}

/* |x| with infinity for NaN. */
static double magnitude(double x)
{
    return isnan(x) ? INFINITY : fabs(x);
}

static int64_t exponent_of(double v, int64_t pad)
{
    if (v == 0)
        return -126;
    if (!isfinite(v))
        return 127;
    const int64_t e = ilogb(v) + pad;
    return e < -126 ? -126 : e > 127 ? 127 : e;
}

REF_OP(tensor_stats, tensor_stats)
{
    const ref_view x = view_of(&p->x, a->x), stats = view_of(&p->stats, a->stats);
    const ref_view exponent = view_of(&p->exponent, a->exponent);
    const double saturate = a->saturate > 0 ? a->saturate : 65504;
    const double tiny = a->tiny > 0 ? a->tiny : 0x1p-24;
    const int64_t count = shape_count(&p->x);
    double s[BSK_STATS_COUNT] = {0};
    int64_t i[BSK_MAX_RANK] = {0};
    for (int64_t left = count; left > 0; left--, shape_next(&p->x, i)) {
        const double v = magnitude(view_get(&x, i));
        s[BSK_STATS_MEAN] += v / (double)count;
        s[BSK_STATS_MAX] = v > s[BSK_STATS_MAX] ? v : s[BSK_STATS_MAX];
        s[BSK_STATS_SATURATED] += v >= saturate;
        s[BSK_STATS_FLUSHED] += v > 0 && v < tiny;
    }
    for (int64_t left = count; left > 0; left--, shape_next(&p->x, i)) {
        const double d = magnitude(view_get(&x, i)) - s[BSK_STATS_MEAN];
        s[BSK_STATS_STD] += d * d / (double)count;
    }
    s[BSK_STATS_STD] = isfinite(s[BSK_STATS_MEAN]) ? sqrt(s[BSK_STATS_STD]) : INFINITY;
    for (int k = BSK_STATS_SATURATED; count > 0 && k <= BSK_STATS_FLUSHED; k++)
        s[k] /= (double)count;
    for (int k = 0; k < BSK_STATS_COUNT; k++)
        view_set1(&stats, k, s[k]);
    if (view_given(&exponent)) {
        double v = s[BSK_STATS_MAX];
        if (p->spread > 0)
            v = s[BSK_STATS_MEAN] + p->spread * s[BSK_STATS_STD];
        store_index(BSK_I32, exponent.data, 0, exponent_of(v, p->bias_pad));
    }
}
