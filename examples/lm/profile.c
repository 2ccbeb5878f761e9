#include "profile.h"

#include <string.h>

#include "check.h"

enum { MAX_CALLS = 4096, MAX_ROWS = 256 };

typedef struct profile_row {
    char op[32], entry[48];
    double flops, bytes; /* of one call */
    double milliseconds; /* of all */
    int calls;
} profile_row;

struct profile {
    const bsk_device *device;
    bsk_event *events[MAX_CALLS + 1];
    const bsk_plan *plans[MAX_CALLS];
    int marked;
    profile_row rows[MAX_ROWS];
    int row_count, steps;
    double seconds; /* of all steps */
};

profile *profile_create(const bsk_device *device)
{
    profile *x = check_alloc(sizeof *x);
    memset(x, 0, sizeof *x);
    x->device = device;
    return x;
}

void profile_destroy(profile *x)
{
    for (int i = 0; x && i <= MAX_CALLS; i++)
        bsk_event_destroy(&x->events[i]);
    free(x);
}

static profile_row *row_of(profile *x, const bsk_plan *plan)
{
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    CHECK(bsk_plan_query(plan, &info));
    for (int i = 0; i < x->row_count; i++) {
        profile_row *row = &x->rows[i];
        if (strcmp(row->op, info.op) == 0 && strcmp(row->entry, info.entry) == 0 &&
            row->flops == info.flops && row->bytes == info.bytes)
            return row;
    }
    if (x->row_count == MAX_ROWS)
        return NULL;
    profile_row *row = &x->rows[x->row_count++];
    snprintf(row->op, sizeof row->op, "%s", info.op);
    snprintf(row->entry, sizeof row->entry, "%s", info.entry);
    row->flops = info.flops;
    row->bytes = info.bytes;
    return row;
}

static void collect(profile *x)
{
    for (int i = 0; i < x->marked; i++) {
        double milliseconds;
        CHECK(bsk_event_elapsed(x->events[i], x->events[i + 1], &milliseconds));
        profile_row *row = row_of(x, x->plans[i]);
        if (!row)
            continue;
        row->milliseconds += milliseconds;
        row->calls++;
    }
    x->marked = 0;
}

void profile_mark(profile *x, bsk_queue *queue, const bsk_plan *plan)
{
    const int last = x->marked == MAX_CALLS;
    bsk_event **event = &x->events[x->marked];
    if (!*event)
        CHECK(bsk_event_create(x->device, event));
    CHECK(bsk_event_record(*event, queue));
    if (!plan || last)
        collect(x);
    if (plan && last)
        profile_mark(x, queue, plan);
    else if (plan)
        x->plans[x->marked++] = plan;
}

void profile_step(profile *x, double seconds)
{
    x->steps++;
    x->seconds += seconds;
}

static int by_time(const void *a, const void *b)
{
    const double left = ((const profile_row *)a)->milliseconds;
    const double right = ((const profile_row *)b)->milliseconds;
    return (left < right) - (left > right);
}

void profile_print(const profile *x)
{
    if (!x->steps)
        return;
    profile_row rows[MAX_ROWS];
    memcpy(rows, x->rows, sizeof rows);
    qsort(rows, (size_t)x->row_count, sizeof *rows, by_time);
    double sum = 0;
    for (int i = 0; i < x->row_count; i++)
        sum += rows[i].milliseconds / x->steps;
    printf("\na step of %d: %.3f ms, of which its calls take %.3f\n", x->steps,
           1e3 * x->seconds / x->steps, sum);
    printf("%-18s %-34s %6s %9s %7s %8s %8s %9s %9s\n", "op", "entry", "calls", "ms", "of all",
           "GFLOP", "MB", "GFLOP/s", "GB/s");
    for (int i = 0; i < x->row_count; i++) {
        const profile_row *r = &rows[i];
        const double seconds = 1e-3 * r->milliseconds / r->calls;
        printf("%-18s %-34s %6.4g %9.3f %5.1f %% %8.2f %8.1f %9.1f %9.1f\n", r->op, r->entry,
               (double)r->calls / x->steps, r->milliseconds / x->steps,
               100 * r->milliseconds / x->steps / sum, 1e-9 * r->flops, 1e-6 * r->bytes,
               1e-9 * r->flops / seconds, 1e-9 * r->bytes / seconds);
    }
}
