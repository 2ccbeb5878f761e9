/* Number formats and statistics. Part of bsk; include <bsk/bsk.h>.
 * The rules at the top of matmul.h hold here too. */
#ifndef BSK_QUANTIZE_H
#define BSK_QUANTIZE_H

#include <bsk/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- quantize: y = x rounded to a format of ebits exponent and fbits fraction bits -----------
 * The largest number of the format is 2^e (2 - 2^-fbits) with e = exponent; its smallest normal
 * number 2^b with b = max(e - 2^ebits + 2, -126). It has no codes for infinity and NaN: larger
 * magnitudes, infinity among them, become the largest number; NaN stays NaN. Below 2^b the spacing
 * is that at 2^b, 2^(b - fbits), or, with flush = 1, what is below 2^b after rounding becomes 0.
 * Rounded to nearest even; with stochastic = 1 away from zero if a uniform number in [0, 1) from
 * (seed, offset, i) is below the fraction of the spacing that x lies above the smaller magnitude,
 * i the row-major number of the element.
 * Shapes    x and y of one shape of any rank; exponent, optional, one element: replaces args.emax,
 *           and lies on the device, where tensor_stats writes it; beyond -126 or 127 it counts as
 *           these.
 * Dtypes    x and y any floats, y such that it holds the format (ebits <= 8, fbits <= 23: f32), which
 *           is not checked: what it does not hold is rounded once more, to infinity beyond its range;
 *           exponent i32.
 * In place  y = x when types and strides agree.
 * Gradient  dy as it is (straight through), or quantize of dy with a format of its own.
 * Source    openai/blocksparse Quantize, which rounds ties away from zero and denormals twice. */
typedef struct bsk_quantize_params {
    size_t struct_size;
    int32_t ebits;
    int32_t fbits;
    int32_t stochastic;
    int32_t flush; /* no denormals */
    bsk_tensor x, y;
    bsk_tensor exponent; /* optional */
} bsk_quantize_params;

typedef struct bsk_quantize_args {
    size_t struct_size;
    int64_t emax;
    uint64_t seed, offset;
    bsk_mem workspace;
    bsk_mem x, y;
    bsk_mem exponent;
} bsk_quantize_args;

BSK_API bsk_status bsk_quantize_plan(const bsk_device *device, const bsk_quantize_params *params,
                                     const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_quantize_run(const bsk_plan *plan, bsk_queue *queue,
                                    const bsk_quantize_args *args);

/* Where tensor_stats writes what. */
enum {
    BSK_STATS_MEAN = 0,      /* of |x| */
    BSK_STATS_STD = 1,       /* of |x|, of the population */
    BSK_STATS_MAX = 2,       /* of |x| */
    BSK_STATS_SATURATED = 3, /* share of the elements with |x| >= saturate */
    BSK_STATS_FLUSHED = 4,   /* share of the elements with 0 < |x| < tiny */
    BSK_STATS_COUNT = 5
};

/* --- tensor_stats: what a choice of number format needs to know ------------------------------
 * NaN counts as infinity. Without elements all numbers are 0.
 * exponent, for quantize: that of v, the largest power of two not above it, plus bias_pad, within
 * -126 to 127; v is the maximum, or, with spread > 0, mean + spread * std. -126 for v = 0, 127
 * where v is not finite.
 * Shapes    x of any rank; stats [BSK_STATS_COUNT]; exponent, optional, one element.
 * Dtypes    x any float; stats f32 (f64 where x is f64); exponent i32.
 * Source    openai/blocksparse quantize statistics and log_stats. */
typedef struct bsk_tensor_stats_params {
    size_t struct_size;
    int32_t bias_pad;
    double spread;
    bsk_tensor x, stats;
    bsk_tensor exponent; /* optional */
} bsk_tensor_stats_params;

typedef struct bsk_tensor_stats_args {
    size_t struct_size;
    double saturate; /* 0 means 65504 */
    double tiny;     /* 0 means 2^-24 */
    bsk_mem workspace;
    bsk_mem x, stats;
    bsk_mem exponent;
} bsk_tensor_stats_args;

BSK_API bsk_status bsk_tensor_stats_plan(const bsk_device *device,
                                         const bsk_tensor_stats_params *params,
                                         const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_tensor_stats_run(const bsk_plan *plan, bsk_queue *queue,
                                        const bsk_tensor_stats_args *args);

#ifdef __cplusplus
}
#endif
#endif
