/* Clock and order statistics. */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "bench/bench.h"

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(bench_samples *s, double share)
{
    if (!s->count)
        return 0;
    qsort(s->ms, (size_t)s->count, sizeof s->ms[0], by_value);
    double at = share * (s->count - 1);
    int low = (int)at, high = low + 1 < s->count ? low + 1 : low;
    return s->ms[low] + (at - low) * (s->ms[high] - s->ms[low]);
}

double bench_median(bench_samples *s)
{
    return quantile(s, 0.5);
}

double bench_spread(bench_samples *s)
{
    double median = bench_median(s);
    return median > 0 ? (quantile(s, 0.75) - quantile(s, 0.25)) / 2 / median : 0;
}

size_t bench_cache_bytes(void)
{
    long bytes = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    return bytes > 0 ? (size_t)bytes : (size_t)64 << 20;
}
