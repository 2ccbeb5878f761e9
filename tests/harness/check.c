/* bsk check: every case on every accepting entry of the chosen devices, and the other suites. */
#include <argp.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "api/src/internal.h"
#include "tests/harness/test.h"

struct test_session {
    char **filters;
    int filter_count;
    const char *device, *json;
    test_tier tier;
    uint64_t seed;
    bool list, verbose;
    uint64_t passed, failed, skipped, refused;
    cJSON *cases;
    double reported;           /* when the last result came */
    unsigned char *reached[8]; /* by device and entry */
    bool lost[8];              /* devices that a kernel has broken: nothing more runs there */
};

/* --- Crashes ------------------------------------------------------------------------------- */

static const int crash_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
static struct sigaction crash_before[TEST_COUNT(crash_signals)];
static char crash_name[2 * TEST_NAME]; /* what runs now, for the handler */

static void crash_write(const char *text)
{
    size_t n = strlen(text);
    while (n) {
        ssize_t done = write(STDERR_FILENO, text, n);
        if (done <= 0)
            return;
        text += done;
        n -= (size_t)done;
    }
}

/* Names the case; then the signal's former action gets its turn when the instruction repeats. */
static void crash_handler(int number)
{
    crash_write("\nCRASH  ");
    crash_write(crash_name);
    crash_write("\n");
    for (int i = 0; i < TEST_COUNT(crash_signals); i++)
        sigaction(crash_signals[i], &crash_before[i], NULL);
    if (number == SIGABRT)
        raise(number);
}

static void crash_install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = crash_handler;
    for (int i = 0; i < TEST_COUNT(crash_signals); i++)
        sigaction(crash_signals[i], &action, &crash_before[i]);
}

/* --- Results ------------------------------------------------------------------------------- */

static const char *const tier_names[] = {"quick", "ci", "full"};

static void full_name(char *out, size_t size, const char *name, const char *device,
                      const char *entry)
{
    snprintf(out, size, "%s%s%s%s%s", name, device[0] ? " @" : "", device, entry[0] ? " " : "",
             entry);
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void test_report(test_session *s, const char *name, const test_device *d, const char *entry,
                 const test_result *result)
{
    static const char *const words[] = {"passed", "failed", "n/a"};
    char full[2 * TEST_NAME];
    full_name(full, sizeof full, name, d->info.id, entry);
    s->passed += result->status == TEST_PASS;
    s->failed += result->status == TEST_FAIL;
    s->refused += result->status == TEST_NA;
    if (result->status == TEST_FAIL)
        printf("FAIL   %s\n       %s\n       repeat: bsk check --tier %s '%s'\n", full, result->why,
               tier_names[s->tier], full);
    else if (s->verbose)
        printf("%-6s %s%s%s\n", words[result->status], full, result->why[0] ? ": " : "",
               result->why);
    const double before = s->reported;
    s->reported = seconds_now();
    if (!s->cases)
        return;
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "name", name);
    cJSON_AddStringToObject(row, "device", d->info.id);
    cJSON_AddStringToObject(row, "entry", entry);
    cJSON_AddStringToObject(row, "status", words[result->status]);
    cJSON_AddNumberToObject(row, "error", result->error);
    cJSON_AddNumberToObject(row, "bound", result->bound);
    cJSON_AddNumberToObject(row, "seconds", s->reported - before);
    if (result->why[0])
        cJSON_AddStringToObject(row, "why", result->why);
    cJSON_AddItemToArray(s->cases, row);
}

bool test_wanted(test_session *s, const char *name)
{
    if (!test_filter(name, s->filters, s->filter_count))
        return false;
    snprintf(crash_name, sizeof crash_name, "%s", name);
    if (s->list)
        printf("%s\n", name);
    return !s->list;
}

/* --- Devices ------------------------------------------------------------------------------- */

typedef struct contexts {
    bsk_context *all, *one;
    test_device devices[8];
    int count;
} contexts;

static bool context_make(int32_t threads, bsk_context **context)
{
    bsk_context_params p = BSK_INIT(bsk_context_params);
    p.num_threads = threads;
    if (bsk_context_create(&p, context) == BSK_OK)
        return true;
    fprintf(stderr, "bsk: %s\n", bsk_last_error());
    return false;
}

static bool device_add(contexts *c, const bsk_device *device)
{
    test_device *d = &c->devices[c->count];
    memset(d, 0, sizeof *d);
    d->device = device;
    d->info.struct_size = sizeof d->info;
    if (c->count == TEST_COUNT(c->devices) || bsk_device_query(device, &d->info) ||
        bsk_queue_create(device, &d->queue))
        return false;
    c->count++;
    /* thread counts are the CPU backend's */
    if (strcmp(d->info.backend, "cpu") == 0 &&
        (bsk_context_find_device(c->one, d->info.id, &d->device_one) ||
         bsk_queue_create(d->device_one, &d->queue_one)))
        return false;
    return true;
}

/* At least two threads, so that the comparison with one thread means something. */
static bool devices_open(contexts *c, const char *which)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int32_t threads = getenv("BSK_NUM_THREADS") ? 0 : cores < 2 ? 2 : (int32_t)cores;
    memset(c, 0, sizeof *c);
    if (!context_make(threads, &c->all) || !context_make(1, &c->one))
        return false;
    if (which && strcmp(which, "all") == 0) {
        for (size_t i = 0; i < bsk_context_device_count(c->all); i++)
            if (!device_add(c, bsk_context_device(c->all, i)))
                return false;
        return true;
    }
    const bsk_device *device = NULL;
    if (bsk_context_find_device(c->all, which, &device)) {
        fprintf(stderr, "bsk: %s\n", bsk_last_error());
        return true; /* no device: nothing runs, which is a skip */
    }
    return device_add(c, device);
}

static void devices_close(contexts *c)
{
    for (int i = 0; i < c->count; i++) {
        bsk_queue_destroy(&c->devices[i].queue);
        bsk_queue_destroy(&c->devices[i].queue_one);
    }
    bsk_context_destroy(&c->all);
    bsk_context_destroy(&c->one);
}

/* --- Cases --------------------------------------------------------------------------------- */

bool test_has_entry(const test_device *d, const char *op)
{
    const bski_op_info *info = bski_op_find(op);
    const bsk_backend *backend = d->device->backend->api;
    for (size_t i = 0; info && i < backend->entry_count; i++)
        if (backend->entries[i].op == info->kernel_op)
            return true;
    return false;
}

static bool entry_runs_here(const bsk_device *d, const bsk_entry *e)
{
    return (!e->arch_min || e->arch_min <= d->props.arch) &&
           (!e->arch_max || e->arch_max >= d->props.arch) && e->arch_min <= d->backend->max_arch;
}

/* Every later call fails, and says nothing about its own entry. */
static bool device_lost(const test_device *d)
{
    if (bsk_queue_sync(d->queue) == BSK_OK)
        return false;
    printf("LOST   %s: no more is run there: %s\n", d->info.id, bsk_last_error());
    return true;
}

/* All entries of the case's kernel op on one device. The case is built when the first is wanted.
 * False if the device is lost. */
static bool case_on_device(test_session *s, const test_spec *spec, const char *name,
                           const test_device *d, unsigned char *reached, test_case **c)
{
    const bski_op_info *op = bski_op_find(spec->op);
    const bsk_backend *backend = d->device->backend->api;
    int ran = 0, wanted = 0;
    for (size_t i = 0; op && i < backend->entry_count; i++) {
        const bsk_entry *e = &backend->entries[i];
        char full[2 * TEST_NAME];
        if (e->op != op->kernel_op)
            continue;
        full_name(full, sizeof full, name, d->info.id, e->name);
        if (!test_filter(full, s->filters, s->filter_count))
            continue;
        snprintf(crash_name, sizeof crash_name, "%s", full);
        wanted++;
        if (!*c && !(*c = test_case_make(spec, false))) {
            s->failed++;
            return true;
        }
        test_result result = test_run(*c, d, e->name);
        test_report(s, name, d, e->name, &result);
        ran += result.status != TEST_NA;
        reached[i] |= result.status != TEST_NA;
        if (result.status == TEST_FAIL && device_lost(d))
            return false;
    }
    s->skipped += wanted && !ran;
    return true;
}

static bool case_listed(test_session *s, const test_spec *spec, const char *name,
                        const contexts *ctx)
{
    const bski_op_info *op = bski_op_find(spec->op);
    for (int d = 0; op && d < ctx->count; d++) {
        const bsk_backend *backend = ctx->devices[d].device->backend->api;
        for (size_t i = 0; i < backend->entry_count; i++) {
            char full[2 * TEST_NAME];
            if (backend->entries[i].op != op->kernel_op)
                continue;
            full_name(full, sizeof full, name, ctx->devices[d].info.id, backend->entries[i].name);
            if (test_filter(full, s->filters, s->filter_count))
                return true;
        }
    }
    return false;
}

/* Some cases of every op once more with inputs that repeat their elements. */
static void cases_repeated(test_list *list)
{
    enum { EACH = 12, LEFT_OUT = OPT_INPLACE | OPT_TRANS };
    const size_t count = list->count;
    for (int32_t i = 0; test_op_at(i); i++) {
        const char *op = test_op_at(i)->name;
        size_t of_op = 0, seen = 0;
        for (size_t k = 0; k < count; k++)
            of_op += strcmp(list->specs[k].op, op) == 0;
        const size_t step = of_op / EACH | 1;
        for (size_t k = 0; k < count; k++) {
            test_spec spec = list->specs[k];
            if (strcmp(spec.op, op) || seen++ % step || (spec.options & LEFT_OUT))
                continue;
            spec.options |= seen / step % 2 ? OPT_REPEAT : OPT_SPLAT;
            test_emit(list, spec);
        }
    }
}

static void run_cases(test_session *s, contexts *ctx)
{
    test_list list = {.tier = s->tier};
    cases_products(&list);
    cases_products_tiles(&list);
    cases_products_formats(&list);
    cases_weights(&list);
    cases_ops(&list);
    cases_optim(&list);
    cases_elementwise(&list);
    cases_select(&list);
    cases_norms(&list);
    cases_training(&list);
    cases_specials(&list);
    cases_attention(&list);
    cases_decode(&list);
    cases_grouped(&list);
    cases_conv(&list);
    cases_repeated(&list);
    for (size_t i = 0; i < list.count; i++) {
        char name[TEST_NAME];
        test_case *c = NULL;
        if (s->seed)
            list.specs[i].seed = s->seed;
        test_spec_name(&list.specs[i], name);
        if (s->list) {
            if (case_listed(s, &list.specs[i], name, ctx))
                printf("%s\n", name);
            continue;
        }
        for (int d = 0; d < ctx->count; d++)
            if (!s->lost[d])
                s->lost[d] =
                    !case_on_device(s, &list.specs[i], name, &ctx->devices[d], s->reached[d], &c);
        test_case_free(c);
    }
    free(list.specs);
}

/* Entries that the device can run and no case reached. */
static void prove_dispatch(test_session *s, const contexts *ctx)
{
    for (int d = 0; d < ctx->count; d++) {
        const test_device *device = &ctx->devices[d];
        const bsk_backend *backend = device->device->backend->api;
        for (size_t i = 0; i < backend->entry_count && !s->lost[d]; i++)
            if (!s->reached[d][i] && entry_runs_here(device->device, &backend->entries[i])) {
                test_result r = {TEST_FAIL, "no case reached this entry", 0, 0};
                test_report(s, "dispatch", device, backend->entries[i].name, &r);
            }
    }
}

/* --- Command line -------------------------------------------------------------------------- */

static int parse_tier(const char *text, test_tier *tier)
{
    for (int i = 0; i < TEST_COUNT(tier_names); i++)
        if (strcmp(text, tier_names[i]) == 0) {
            *tier = (test_tier)i;
            return 0;
        }
    return -1;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    test_session *s = state->input;
    char *end;
    switch (key) {
    case 'd':
        s->device = arg;
        break;
    case 't':
        if (parse_tier(arg, &s->tier))
            argp_error(state, "--tier is quick, ci or full, not %s", arg);
        break;
    case 's':
        s->seed = strtoull(arg, &end, 10);
        if (*end || !s->seed)
            argp_error(state, "--seed is a positive number, not %s", arg);
        break;
    case 'l':
        s->list = true;
        break;
    case 'v':
        s->verbose = true;
        break;
    case 'j':
        s->json = arg;
        break;
    case ARGP_KEY_ARGS:
        s->filters = state->argv + state->next;
        s->filter_count = state->argc - state->next;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp_option options[] = {
    {"device", 'd', "ID", 0, "Device to check, such as cpu:0, or all (the default device)", 0},
    {"tier", 't', "TIER", 0, "quick, ci or full (quick)", 0},
    {"seed", 's', "N", 0, "Seed of every case, instead of its own", 0},
    {"list", 'l', 0, 0, "Print the names of the cases and run none", 0},
    {"verbose", 'v', 0, 0, "Print every result", 0},
    {"json", 'j', "FILE", 0, "Write all results to FILE", 0},
    {0},
};

static const struct argp parser = {
    options,
    parse_option,
    "[FILTER...]",
    "Runs the conformance cases on every kernel entry that accepts them."
    "\vEach word of a FILTER is a glob that must match a word of the case's name, \"@DEVICE\" or "
    "the entry's name, or with a ! before it must match none; in 'A|B' the words of A or those of "
    "B. Exit status: 0 all passed, 1 failures, 2 wrong usage, 77 nothing ran.",
    NULL,
    NULL,
    NULL};

static bool json_write(const test_session *s)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "passed", (double)s->passed);
    cJSON_AddNumberToObject(root, "failed", (double)s->failed);
    cJSON_AddNumberToObject(root, "skipped", (double)s->skipped);
    cJSON_AddNumberToObject(root, "not_applicable", (double)s->refused);
    cJSON_AddItemToObject(root, "cases", s->cases);
    char *text = cJSON_Print(root);
    FILE *f = fopen(s->json, "w");
    bool good = f && text && fputs(text, f) >= 0 && fputc('\n', f) != EOF;
    if (f && fclose(f))
        good = false;
    if (!good)
        perror(s->json);
    free(text);
    cJSON_Delete(root);
    return good;
}

static void run_all(test_session *s, contexts *ctx)
{
    for (int d = 0; d < ctx->count; d++)
        s->reached[d] = calloc(ctx->devices[d].device->backend->api->entry_count + 1, 1);
    run_cases(s, ctx);
    for (int d = 0; d < ctx->count; d++) {
        if (s->lost[d])
            continue;
        suite_arguments(s, &ctx->devices[d]);
        suite_gradients(s, &ctx->devices[d]);
        suite_allocation(s, &ctx->devices[d]);
    }
    if (s->tier != TIER_QUICK && !s->filter_count && !s->list)
        prove_dispatch(s, ctx);
    for (int d = 0; d < ctx->count; d++)
        free(s->reached[d]);
}

int bsk_check_main(int argc, char **argv)
{
    test_session s = {.tier = TIER_QUICK};
    contexts ctx;
    argp_err_exit_status = 2;
    argp_parse(&parser, argc, argv, 0, NULL, &s);
    s.cases = s.json ? cJSON_CreateArray() : NULL;
    const double start = seconds_now();
    if (!devices_open(&ctx, s.device))
        return 1;
    crash_install();
    s.reported = seconds_now();
    run_all(&s, &ctx);
    devices_close(&ctx);
    if (s.list)
        return 0;
    const double seconds = seconds_now() - start;
    bool written = !s.json || json_write(&s);
    printf("%.1f s; %" PRIu64 " pairs of case and entry refused\n", seconds, s.refused);
    printf("%" PRIu64 " passed, %" PRIu64 " failed, %" PRIu64 " skipped\n", s.passed, s.failed,
           s.skipped);
    return s.failed || !written ? 1 : s.passed ? 0 : 77;
}
