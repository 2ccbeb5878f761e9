/* bsk bench: the same cases as bsk check, timed beside dense libraries. */
#include <argp.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "api/src/internal.h"
#include "bench/bench.h"
#include "bench/roof.h"
#include "commit.h"

typedef struct bench {
    char **filters;
    int filter_count;
    const char *device_id, *peer, *set, *json, *html, *entry;
    double budget; /* milliseconds of measuring per entry */
    const bsk_device *device;
    bsk_queue *queue;
    const bench_peer *peers[BENCH_PEERS];
    int peer_count;
    bench_host host;
    bench_row *rows;
    int row_count, row_capacity;
    int failures;
} bench;

/* --- Rotating buffers ----------------------------------------------------------------------- */

/* Copies of a case's memory, together larger than the last-level cache. */
typedef struct rotation {
    test_memory *copies;
    unsigned char (*args)[BSKI_MAX_STRUCT];
    int count;
} rotation;

static size_t case_bytes(const test_case *c)
{
    size_t bytes = 0;
    for (int32_t i = 0; i < c->about->arg_count; i++)
        bytes += c->t[i].bytes * (size_t)c->t[i].views;
    return bytes ? bytes : 1;
}

static void rotation_close(rotation *r)
{
    for (int i = 0; i < r->count; i++)
        test_memory_free(&r->copies[i]);
    free(r->copies);
    free(r->args);
    memset(r, 0, sizeof *r);
}

static bool rotation_open(rotation *r, test_case *c, const bench *b, size_t workspace)
{
    const size_t cap = (size_t)1 << 30;
    size_t target = 2 * b->host.cache < cap ? 2 * b->host.cache : cap;
    size_t wanted = target / case_bytes(c) + 1;
    int count = wanted > 64 ? 64 : wanted < 2 ? 2 : (int)wanted;
    r->copies = calloc((size_t)count, sizeof *r->copies);
    r->args = calloc((size_t)count, sizeof *r->args);
    r->count = 0;
    if (!r->copies || !r->args)
        return false;
    for (int i = 0; i < count; i++) {
        if (!test_memory_make(&r->copies[i], c, b->device, workspace))
            return false;
        r->count++;
        if (test_memory_load(&r->copies[i], c, b->queue, 0xff))
            return false;
        memcpy(r->args[i], c->args, sizeof r->args[i]);
    }
    return true;
}

/* --- Timing --------------------------------------------------------------------------------- */

typedef struct runner {
    bench *b;
    test_case *c;
    const bsk_plan *plan;
    rotation rotation;
    bench_race race;
    bench_samples samples;
} runner;

/* Threads of other libraries spin for a while after their work: between two contestants the tool
 * rests, and each starts with a run that is not counted. */
static void settle(void)
{
    const struct timespec rest = {0, 3000000};
    nanosleep(&rest, NULL);
}

/* One sample of `repeat` runs; negative on failure. The clock of the host is right where calls
 * return when the work is done, or after a wait for the queue. */
static double sample_own(runner *r, int turn, int repeat)
{
    if (r->race.count) {
        settle();
        r->c->op->run(r->plan, r->b->queue, r->rotation.args[turn % r->rotation.count]);
        bsk_queue_sync(r->b->queue);
    }
    double start = bench_now();
    for (int i = 1; i <= repeat; i++)
        if (r->c->op->run(r->plan, r->b->queue, r->rotation.args[(turn + i) % r->rotation.count]))
            return -1;
    if (bsk_queue_sync(r->b->queue))
        return -1;
    return (bench_now() - start) / repeat;
}

static double sample_peer(runner *r, int peer, int turn, int repeat)
{
    settle();
    bench_race_run(&r->race, peer, turn);
    double start = bench_now();
    for (int i = 1; i <= repeat; i++)
        if (!bench_race_run(&r->race, peer, turn + i))
            return -1;
    return (bench_now() - start) / repeat;
}

/* Runs of a sample, so that it lasts a quarter of a millisecond at least. */
static int repeats(double ms)
{
    return ms <= 0 ? 1 : ms >= 0.25 ? 1 : (int)(0.25 / ms) + 1;
}

/* Interleaved rounds: one sample of the entry, one of each peer; warm-up first. */
static bool measure(runner *r)
{
    double own = 0, peer[BENCH_PEERS] = {0};
    for (int w = 0; w < 2; w++) {
        own = sample_own(r, w, 1);
        for (int i = 0; i < r->race.count; i++)
            if (r->race.racers[i].state && (peer[i] = sample_peer(r, i, w, 1)) < 0)
                r->race.racers[i].state = NULL;
    }
    if (own < 0)
        return false;
    int own_repeat = repeats(own), turn = 2;
    double spent = 0;
    while (r->samples.count < BENCH_SAMPLES && (spent < r->b->budget || r->samples.count < 5)) {
        double ms = sample_own(r, turn, own_repeat);
        if (ms < 0)
            return false;
        r->samples.ms[r->samples.count++] = ms;
        spent += ms * own_repeat;
        for (int i = 0; i < r->race.count; i++) {
            bench_racer *p = &r->race.racers[i];
            if (!p->state || (p->samples.count >= 5 && spent > r->b->budget))
                continue;
            ms = sample_peer(r, i, turn, repeats(peer[i]));
            if (ms >= 0)
                p->samples.ms[p->samples.count++] = ms;
        }
        turn += own_repeat;
    }
    return true;
}

/* --- Rows ----------------------------------------------------------------------------------- */

static double roof_share(const bench_host *h, const bench_row *row)
{
    double seconds = row->ms * 1e-3;
    double peak = row->dtype == BSK_F64 ? h->roof_f64 : h->roof_f32;
    double least = row->bytes / h->roof_bytes;
    if (row->flops > 0 && row->flops / peak > least)
        least = row->flops / peak;
    return seconds > 0 && h->roof_bytes > 0 ? least / seconds : 0;
}

static void row_fill(bench_row *row, runner *r, const bsk_plan_info *info)
{
    const test_spec *s = &r->c->spec;
    memset(row, 0, sizeof *row);
    snprintf(row->name, sizeof row->name, "%s", r->c->name);
    snprintf(row->entry, sizeof row->entry, "%s", info->entry);
    row->op = s->op;
    row->device = r->b->host.device.id;
    row->dtype = s->dtype;
    row->br = s->br;
    row->bc = s->bc;
    row->density = r->c->layout ? r->c->info.density : 1;
    row->ms = bench_median(&r->samples);
    row->spread = bench_spread(&r->samples);
    row->samples = r->samples.count;
    row->flops = info->flops;
    row->bytes = info->bytes;
    row->roof = roof_share(&r->b->host, row);
    double best = 0;
    for (int i = 0; i < r->race.count; i++) {
        bench_racer *p = &r->race.racers[i];
        if (!p->samples.count)
            continue;
        int k = row->peer_count++;
        row->peers[k].name = p->peer->name;
        row->peers[k].ms = bench_median(&p->samples);
        row->peers[k].spread = bench_spread(&p->samples);
        row->peers[k].verified = p->verified;
        best = best == 0 || row->peers[k].ms < best ? row->peers[k].ms : best;
    }
    if (best > 0 && row->ms > 0)
        row->eta = row->flops / row->ms / (bench_gemm_flops(&r->race.gemm) / best);
}

/* Downloads the first copy's output, which every peer has computed too. */
static void verify(runner *r)
{
    test_case *c = r->c;
    for (int32_t i = 0; i < c->about->arg_count; i++) {
        test_buffer *b = &r->rotation.copies[0].buffer[i][0];
        if (!c->t[i].output || !b->image)
            continue;
        if (bsk_mem_download(r->b->queue, b->image, b->whole, b->total) ||
            bsk_queue_sync(r->b->queue))
            return;
        for (int p = 0; p < r->race.count; p++) {
            if (!r->race.racers[p].samples.count)
                continue;
            bench_race_verify(&r->race, p, c, b->image + b->lead);
            if (!r->race.racers[p].verified) {
                fprintf(stderr, "bsk: %s: results of %s differ\n", c->name,
                        r->race.racers[p].peer->name);
                r->b->failures++;
            }
        }
        return;
    }
}

static bool row_add(bench *b, const bench_row *row)
{
    if (b->row_count == b->row_capacity) {
        int capacity = b->row_capacity ? 2 * b->row_capacity : 64;
        bench_row *rows = realloc(b->rows, (size_t)capacity * sizeof *rows);
        if (!rows)
            return false;
        b->rows = rows;
        b->row_capacity = capacity;
    }
    b->rows[b->row_count++] = *row;
    return true;
}

static void bench_plan(bench *b, test_case *c, bsk_plan *plan)
{
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    runner *r = calloc(1, sizeof *r);
    bench_row row;
    if (!r)
        return;
    r->b = b;
    r->c = c;
    r->plan = plan;
    bsk_plan_query(plan, &info);
    bench_race_open(&r->race, c, b->peers, b->peer_count, b->host.threads, b->host.cache);
    if (rotation_open(&r->rotation, c, b, info.workspace_bytes) && measure(r)) {
        verify(r);
        row_fill(&row, r, &info);
        bench_row_print(&row, stdout);
        fflush(stdout);
        row_add(b, &row);
    } else {
        fprintf(stderr, "bsk: %s: %s\n", c->name, bsk_last_error());
        b->failures++;
    }
    rotation_close(&r->rotation);
    bench_race_close(&r->race);
    free(r);
}

/* The winner, or with --entry every entry that matches, the reference included if it is named. */
static void bench_case(bench *b, const test_spec *spec)
{
    char name[TEST_NAME];
    bsk_plan *plan = NULL;
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    options.fallback = BSK_FALLBACK_FORBID;
    test_spec_name(spec, name);
    if (!test_filter(name, b->filters, b->filter_count))
        return;
    test_case *c = test_case_make(spec, true);
    if (!c) {
        b->failures++;
        return;
    }
    const bsk_backend *backend = b->device->backend->api;
    if (!b->entry && c->op->plan(b->device, c->params, &options, &plan) == BSK_OK)
        bench_plan(b, c, plan);
    else if (!b->entry)
        printf("%-64s n/a: %s\n", name, bsk_last_error());
    bsk_plan_destroy(&plan);
    for (size_t i = 0; b->entry && i < backend->entry_count; i++) {
        const bsk_entry *e = &backend->entries[i];
        if (e->op != c->about->kernel_op || fnmatch(b->entry, e->name, 0) != 0 ||
            ((e->flags & BSK_ENTRY_REFERENCE) && strncmp(b->entry, "ref", 3) != 0))
            continue;
        if (test_plan(c, b->device, e->name, &plan) == BSK_OK)
            bench_plan(b, c, plan);
        bsk_plan_destroy(&plan);
    }
    test_case_free(c);
}

/* --- Host ----------------------------------------------------------------------------------- */

static void read_line(const char *path, const char *key, char *out, size_t size)
{
    char line[512];
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *value = key[0] ? strchr(line, ':') : line;
        if (strncmp(line, key, strlen(key)) != 0 || !value)
            continue;
        value += key[0] ? 1 + strspn(value + 1, " \t") : 0;
        snprintf(out, size, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    if (f)
        fclose(f);
}

static void host_describe(bench *b)
{
    bench_host *h = &b->host;
    struct utsname name;
    char clock[40] = "0";
    h->device.struct_size = sizeof h->device;
    bsk_device_query(b->device, &h->device);
    read_line("/proc/cpuinfo", "model name", h->cpu, sizeof h->cpu);
    read_line("/proc/cpuinfo", "cpu MHz", clock, sizeof clock);
    h->clock_mhz = atof(clock);
    snprintf(h->governor, sizeof h->governor, "unknown");
    read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "", h->governor,
              sizeof h->governor);
    if (uname(&name) == 0)
        snprintf(h->kernel, sizeof h->kernel, "%s %s", name.sysname, name.release);
    snprintf(h->commit, sizeof h->commit, "%s", BENCH_COMMIT);
    for (int i = 0; i < b->peer_count; i++)
        snprintf(h->peers + strlen(h->peers), sizeof h->peers - strlen(h->peers), "%s%s %s",
                 i ? ", " : "", b->peers[i]->name, b->peers[i]->version());
    h->cache = bench_cache_bytes();
    h->threads = b->device->context->settings.num_threads;
    if (h->threads < 1)
        h->threads = h->device.compute_units;
    h->roof_f32 = bski_roof_flops(h->threads, BSK_F32);
    h->roof_f64 = bski_roof_flops(h->threads, BSK_F64);
    h->roof_bytes = bski_roof_bytes(h->threads);
}

/* --- Command line ---------------------------------------------------------------------------- */

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    bench *b = state->input;
    switch (key) {
    case 'd':
        b->device_id = arg;
        break;
    case 'p':
        b->peer = arg;
        break;
    case 's':
        b->set = arg;
        break;
    case 'e':
        b->entry = arg;
        break;
    case 'b':
        b->budget = atof(arg) * 1e3;
        if (!(b->budget > 0))
            argp_error(state, "--seconds is a positive number, not %s", arg);
        break;
    case 'j':
        b->json = arg;
        break;
    case 'h':
        b->html = arg;
        break;
    case ARGP_KEY_ARGS:
        b->filters = state->argv + state->next;
        b->filter_count = state->argc - state->next;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp_option options[] = {
    {"device", 'd', "ID", 0, "Device to measure (the default device)", 0},
    {"peer", 'p', "NAME", 0, "Race against openblas, onednn or all", 0},
    {"set", 's', "NAME", 0, "Cases: cpu, half, ops or smoke (smoke)", 0},
    {"entry", 'e', "GLOB", 0, "Measure these entries instead of the one that is chosen", 0},
    {"seconds", 'b', "S", 0, "Time for each entry (0.5)", 0},
    {"json", 'j', "FILE", 0, "Write the rows to FILE", 0},
    {"html", 'h', "FILE", 0, "Write a report page to FILE", 0},
    {0},
};

static const struct argp parser = {
    options,
    parse_option,
    "[FILTER...]",
    "Measures kernel entries on buffers beyond the last-level cache."
    "\veta is the useful rate over the best dense peer's rate at the same shape; roof is the share "
    "of what arithmetic and memory allow. Exit status: 0 measured, 1 failures, 2 wrong usage, 77 "
    "nothing ran.",
    NULL,
    NULL,
    NULL};

static void run_set(bench *b)
{
    test_list list = {.tier = TIER_BENCH};
    if (!bench_set(b->set, &list)) {
        fprintf(stderr, "bsk: there is no set %s: %s\n", b->set, bench_set_names());
        exit(2);
    }
    bench_host_print(&b->host, stdout);
    bench_heading_print(stdout);
    for (size_t i = 0; i < list.count; i++)
        bench_case(b, &list.specs[i]);
    free(list.specs);
}

/* Read by OpenBLAS when it is loaded. A preset core type is ignored; where the processor has
 * AVX-512 the tool names such a core itself, because versions that do not know a newer processor
 * fall back to SSE3. The report shows the core in use. */
static void peer_environment(void)
{
    unsetenv("OPENBLAS_CORETYPE");
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl"))
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 1);
#endif
}

int bsk_bench_main(int argc, char **argv)
{
    bench b = {.set = "smoke", .budget = 500};
    bsk_context *context = NULL;
    argp_err_exit_status = 2;
    argp_parse(&parser, argc, argv, 0, NULL, &b);
    peer_environment();
    if (!bench_peers_load(b.peer, b.peers, &b.peer_count)) {
        fprintf(stderr, "bsk: there is no peer %s\n", b.peer);
        return 2;
    }
    if (bsk_context_create(NULL, &context) ||
        bsk_context_find_device(context, b.device_id, &b.device) ||
        bsk_queue_create(b.device, &b.queue)) {
        fprintf(stderr, "bsk: %s\n", bsk_last_error());
        bsk_context_destroy(&context);
        return 77;
    }
    host_describe(&b);
    run_set(&b);
    if ((b.json && !bench_write_json(b.json, &b.host, b.rows, b.row_count)) ||
        (b.html && !bench_write_html(b.html, &b.host, b.rows, b.row_count)))
        b.failures++;
    bsk_queue_destroy(&b.queue);
    bsk_context_destroy(&context);
    int rows = b.row_count;
    free(b.rows);
    return b.failures ? 1 : rows ? 0 : 77;
}
