/* Clocks and order statistics. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench/bench.h"
#include "bench/pages.h"

/* Bytes that a thread reads to see whether it is alone, and how much longer than the shortest time
 * they may take then. */
enum { CALM_READ = 32 << 20 };
#define CALM_SLACK 1.15

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

double bench_least(bench_samples *s)
{
    return quantile(s, 0);
}

double bench_spread(bench_samples *s)
{
    double median = bench_median(s);
    return median > 0 ? (quantile(s, 0.75) - quantile(s, 0.25)) / 2 / median : 0;
}

size_t bench_cache_bytes(const bsk_device_info *device)
{
    /* more than the second-level cache of any GPU */
    if (!device->host_memory)
        return (size_t)128 << 20;
    long bytes = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    return bytes > 0 ? (size_t)bytes : (size_t)64 << 20;
}

/* Lines of `bytes`, again and again. */
static uint64_t read_lines(const uint64_t *data, size_t bytes)
{
    enum { LINE = 64 / sizeof *data };
    uint64_t sum = 0;
    for (size_t done = 0; done < CALM_READ; done += bytes)
        for (size_t i = 0; i < bytes / sizeof *data; i += LINE)
            sum += data[i];
    return sum;
}

void bench_calm_open(bench_calm *c, int threads)
{
    enum { FIRST_CHECKS = 200 };
    long bytes = 0;
#ifdef _SC_LEVEL2_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    *c = (bench_calm){.threads = threads, .bytes = (bytes > 0 ? (size_t)bytes : 1 << 19) / 2};
    c->data = pages_alloc((size_t)threads * c->bytes);
    if (c->data) /* pages that nobody wrote are all one */
        memset(c->data, 1, (size_t)threads * c->bytes);
    for (int i = 0; i < FIRST_CHECKS; i++)
        bench_calm_check(c);
}

bool bench_calm_check(bench_calm *c)
{
    if (!c->data)
        return true;
    const double start = bench_now();
    uint64_t sum = 0;
#pragma omp parallel for num_threads(c->threads) schedule(static) reduction(+ : sum)
    for (int t = 0; t < c->threads; t++)
        sum += read_lines(c->data + (size_t)t * (c->bytes / sizeof *c->data), c->bytes);
    const double ms = bench_now() - start + (sum == 1 ? 1 : 0); /* the sum is needed */
    if (c->best == 0 || ms < c->best)
        c->best = ms;
    c->busy = ms > CALM_SLACK * c->best;
    return !c->busy;
}

void bench_calm_close(bench_calm *c)
{
    free(c->data);
    *c = (bench_calm){0};
}

void bench_timer_open(bench_timer *t, const bsk_device *device, bsk_queue *queue)
{
    bsk_device_info info = BSK_INIT(bsk_device_info);
    *t = (bench_timer){.queue = queue};
    bsk_device_query(device, &info);
    if (!info.host_memory &&
        (bsk_event_create(device, &t->start) || bsk_event_create(device, &t->stop)))
        bench_timer_close(t);
}

void bench_timer_close(bench_timer *t)
{
    bsk_event_destroy(&t->start);
    bsk_event_destroy(&t->stop);
}

bool bench_timer_start(bench_timer *t)
{
    if (t->start ? bsk_event_record(t->start, t->queue) : bsk_queue_sync(t->queue))
        return false;
    t->began = bench_now();
    return true;
}

double bench_timer_stop(bench_timer *t, double *host_ms)
{
    double ms = -1;
    *host_ms = bench_now() - t->began;
    if (t->stop)
        return bsk_event_record(t->stop, t->queue) || bsk_event_elapsed(t->start, t->stop, &ms)
                   ? -1
                   : ms;
    return bsk_queue_sync(t->queue) ? -1 : bench_now() - t->began;
}
