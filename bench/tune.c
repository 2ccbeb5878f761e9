/* bsk tune: times every entry that accepts a problem, and records the fastest for later plans. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/src/internal.h"
#include "bench/bench.h"

/* Runs that get the weights, and those that bring them packed. */
enum { PLAIN, PACKED, WAYS };

typedef struct tune {
    char **filters;
    int filter_count;
    const char *device_id, *set;
    double budget; /* milliseconds of measuring per entry */
    const bsk_device *device;
    bsk_queue *queue;
    bench_timer timer;
    size_t cache;
    int tuned, failures;
} tune;

/* One run on copy number `turn`, or with its packed image. */
static bool run_once(const tune *t, const test_case *c, const bsk_plan *plan,
                     const bench_rotation *r, bool packed, int turn)
{
    const struct bench_copy *copy = &r->copies[turn % r->count];
    return c->op->run(plan, t->queue, packed ? copy->packed_args : copy->args) == BSK_OK;
}

/* The median time of a run in milliseconds; negative on failure. */
static double measure(tune *t, const test_case *c, const bsk_plan *plan, const bench_rotation *r,
                      bool packed)
{
    enum { WARM = 3, LEAST_SAMPLES = 7 };
    static bench_samples samples;
    double spent = 0, host;
    int turn = 0;
    samples.count = 0;
    while (turn < WARM)
        if (!run_once(t, c, plan, r, packed, turn++))
            return -1;
    while (samples.count < BENCH_SAMPLES && (spent < t->budget || samples.count < LEAST_SAMPLES)) {
        if (!bench_timer_start(&t->timer) || !run_once(t, c, plan, r, packed, turn++))
            return -1;
        double ms = bench_timer_stop(&t->timer, &host);
        if (ms < 0)
            return -1;
        samples.ms[samples.count++] = ms;
        spent += ms;
    }
    return bench_median(&samples);
}

/* Milliseconds of one entry, and of runs that bring packed weights, which are the same where it has
 * no image; false if it refuses or fails. *plan stays with the caller. */
static bool try_entry(tune *t, test_case *c, const char *entry, bsk_plan **plan, double ms[WAYS])
{
    ms[PLAIN] = ms[PACKED] = -1;
    if (test_plan(c, t->device, entry, plan))
        return false;
    bench_rotation r = {.device = t->device};
    if (bench_rotation_open(&r, c, *plan, *plan, t->queue, t->cache)) {
        ms[PLAIN] = measure(t, c, *plan, &r, false);
        ms[PACKED] = r.copies[0].packed.kind ? measure(t, c, *plan, &r, true) : ms[PLAIN];
    }
    const bool good = ms[PLAIN] >= 0 && ms[PACKED] >= 0;
    if (!good) {
        fprintf(stderr, "bsk: %s: %s: %s\n", c->name, entry, bsk_last_error());
        t->failures++;
    }
    bench_rotation_close(&r);
    return good;
}

/* The record of a problem, or of the same with packed weights. */
static void record(tune *t, const bsk_plan *plan, int way, const char *entry, double ms)
{
    bsk_problem problem = plan->problem;
    problem.packed = way == PACKED;
    if (!bski_tuning_put(t->device, &problem, entry, 1e3 * ms))
        return;
    fprintf(stderr, "bsk: %s\n", bsk_last_error());
    t->failures++;
}

static void tune_case(tune *t, const test_spec *spec)
{
    char name[TEST_NAME], best_name[WAYS][80] = {"", ""};
    double best[WAYS] = {0, 0}, ms[WAYS];
    test_spec_name(spec, name);
    if (!test_filter(name, t->filters, t->filter_count))
        return;
    test_case *c = test_case_make(spec, true);
    if (!c) {
        t->failures++;
        return;
    }
    printf("%s\n", name);
    const bsk_backend *backend = t->device->backend->api;
    const int ways = c->op->prepack ? WAYS : 1;
    for (size_t i = 0; i < backend->entry_count; i++) {
        const bsk_entry *e = &backend->entries[i];
        bsk_plan *plan = NULL;
        if (e->op != c->about->kernel_op || e->flags & BSK_ENTRY_REFERENCE || e->priority < 0)
            continue;
        const bool good = try_entry(t, c, e->name, &plan, ms);
        if (good && ms[PACKED] != ms[PLAIN])
            printf("  %-32s %10.1f us, packed %10.1f us\n", e->name, 1e3 * ms[PLAIN],
                   1e3 * ms[PACKED]);
        else if (good)
            printf("  %-32s %10.1f us\n", e->name, 1e3 * ms[PLAIN]);
        for (int way = PLAIN; good && way < ways; way++)
            if (!*best_name[way] || ms[way] < best[way]) {
                best[way] = ms[way];
                snprintf(best_name[way], sizeof best_name[way], "%s", e->name);
                record(t, plan, way, e->name, ms[way]);
            }
        bsk_plan_destroy(&plan);
        fflush(stdout);
    }
    if (*best_name[PLAIN])
        t->tuned++;
    printf("  -> %s", *best_name[PLAIN] ? best_name[PLAIN] : "no entry accepts");
    if (strcmp(best_name[PLAIN], best_name[ways - 1]) != 0)
        printf(", packed %s", best_name[PACKED]);
    putchar('\n');
    test_case_free(c);
}

/* --- Command line ---------------------------------------------------------------------------- */

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    tune *t = state->input;
    switch (key) {
    case 'd':
        t->device_id = arg;
        break;
    case 's':
        t->set = arg;
        break;
    case 'b':
        t->budget = atof(arg) * 1e3;
        if (!(t->budget > 0))
            argp_error(state, "--seconds is a positive number, not %s", arg);
        break;
    case ARGP_KEY_ARGS:
        t->filters = state->argv + state->next;
        t->filter_count = state->argc - state->next;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp_option options[] = {
    {"device", 'd', "ID", 0, "Device to tune for (the default device)", 0},
    {"set", 's', "NAME", 0, "Cases, as in bsk bench (smoke)", 0},
    {"seconds", 'b', "S", 0, "Time for each entry, with and without packed weights (0.05)", 0},
    {0},
};

static const struct argp parser = {
    options,
    parse_option,
    "[FILTER...]",
    "Times every entry that accepts a problem and records the fastest, apart for runs that bring "
    "packed weights."
    "\vLater plans for such problems prefer the recorded entry. Records are in the file BSK_TUNING "
    "(`tuning` in the cache directory) and count for this device, its driver and this version of "
    "the library. Exit status: 0 recorded, 1 failures, 2 wrong usage, 77 nothing ran.",
    NULL,
    NULL,
    NULL};

static void tune_set(tune *t)
{
    test_list list = {.tier = TIER_BENCH};
    if (!bench_set(t->set, &list)) {
        fprintf(stderr, "bsk: there is no set %s: %s\n", t->set, bench_set_names());
        exit(2);
    }
    bsk_device_info info = BSK_INIT(bsk_device_info);
    bsk_device_query(t->device, &info);
    t->cache = bench_cache_bytes(&info);
    bench_timer_open(&t->timer, t->device, t->queue);
    for (size_t i = 0; i < list.count; i++)
        tune_case(t, &list.specs[i]);
    bench_timer_close(&t->timer);
    free(list.specs);
}

int bsk_tune_main(int argc, char **argv)
{
    tune t = {.set = "smoke", .budget = 50};
    bsk_context *context = NULL;
    argp_err_exit_status = 2;
    argp_parse(&parser, argc, argv, 0, NULL, &t);
    if (bsk_context_create(NULL, &context) ||
        bsk_context_find_device(context, t.device_id, &t.device) ||
        bsk_queue_create(t.device, &t.queue)) {
        fprintf(stderr, "bsk: %s\n", bsk_last_error());
        bsk_context_destroy(&context);
        return 77;
    }
    tune_set(&t);
    if (t.tuned && bski_tuning_save(context)) {
        fprintf(stderr, "bsk: %s\n", bsk_last_error());
        t.failures++;
    } else if (t.tuned) {
        printf("%d problems recorded in %s\n", t.tuned, context->settings.tuning);
    }
    bsk_queue_destroy(&t.queue);
    bsk_context_destroy(&context);
    return t.failures ? 1 : t.tuned ? 0 : 77;
}
