/* bsk bench: the same cases as bsk check, timed beside dense libraries. */
#include <argp.h>
#include <fnmatch.h>
#include <math.h>
#include <signal.h>
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
    char *command;
    double budget; /* milliseconds of measuring per entry */
    bool warm;     /* whether the device has been at work */
    const bsk_device *device;
    bsk_queue *queue;
    bench_team team;
    bench_program program;
    bench_host host;
    bench_calm calm;
    bski_stream stream; /* of devices that share the host's memory */
    bench_row *rows;
    int row_count, row_capacity;
    int failures;
    bool lost; /* the device does not answer any more */
} bench;

/* --- Timing --------------------------------------------------------------------------------- */

/* Who is timed in turn: the entry, the entry with prepacked weights, both forms of the pass over
 * memory that bounds them, the peers. */
enum { PLAIN, PACKED, ENTRIES, STREAM = ENTRIES, STREAM_END = STREAM + 2 };
enum { FIRST_PEER = STREAM_END, CONTESTANTS = FIRST_PEER + BENCH_PEERS };

typedef struct contestant {
    bool in;
    int repeat;           /* runs of a sample */
    double host_ms;       /* shortest time of the calls of one run */
    double spent, waited; /* on samples that count, and on those that were set aside */
    int calm;             /* samples beside which nobody else was busy */
    bench_samples samples;
} contestant;

typedef struct runner {
    bench *b;
    test_case *c;
    const bsk_plan *plan[ENTRIES];
    bsk_plan_info info[ENTRIES];
    bski_pass pass; /* the first form of it */
    bool streams;   /* it takes part */
    bench_rotation rotation;
    bench_race race;
    bench_timer timer;
    contestant who[CONTESTANTS];
} runner;

static bool run_once(runner *r, int who, int turn)
{
    struct bench_copy *copy = &r->rotation.copies[turn % r->rotation.count];
    if (who >= FIRST_PEER)
        return bench_race_run(&r->race, who - FIRST_PEER, turn);
    if (who >= STREAM) {
        bski_stream_run(&r->b->stream, r->pass + (bski_pass)(who - STREAM));
        return true;
    }
    return r->c->op->run(r->plan[who], r->b->queue,
                         who == PACKED ? copy->packed_args : copy->args) == BSK_OK;
}

/* Threads of other libraries spin for a while after their work: between two contestants the tool
 * rests. */
static void settle(const runner *r)
{
    const struct timespec rest = {0, 3000000};
    if (r->race.count && r->b->host.device.host_memory)
        nanosleep(&rest, NULL);
}

/* One sample: milliseconds of a run, the gaps between runs included; negative on failure. A run
 * that is not counted goes first: on the CPU it wakes the threads, and on a device it keeps the
 * queue busy while the host gets ahead. */
static double sample(runner *r, int who, int turn)
{
    contestant *w = &r->who[who];
    double host_ms;
    if (!run_once(r, who, turn) || !bench_timer_start(&r->timer))
        return -1;
    for (int i = 1; i <= w->repeat; i++)
        if (!run_once(r, who, turn + i))
            return -1;
    const double ms = bench_timer_stop(&r->timer, &host_ms);
    if (w->host_ms == 0 || host_ms / w->repeat < w->host_ms)
        w->host_ms = host_ms / w->repeat;
    settle(r);
    return ms < 0 ? ms : ms / w->repeat;
}

/* Runs of a sample, so that it lasts long enough for the clock, and on a device for the gap after
 * the first run to count little. */
static int repeats(const runner *r, double ms)
{
    const double least = r->b->host.device.host_memory ? 0.25 : 1.5;
    const int most = 64;
    int n = ms <= 0 || ms >= least ? 1 : (int)(least / ms) + 1;
    return n < most ? n : most;
}

/* Samples and runs that the least figure of a contestant rests on. */
enum { LEAST_SAMPLES = 5, LEAST_RUNS = 20 };

/* Whether a contestant needs more samples. Peers, which may take much longer than the entry, and
 * the CPU need not have many runs. Passes over memory keep the entry's pace, from its first sample to
 * its last. */
static bool wants_more(const runner *r, int who)
{
    const contestant *w = &r->who[who];
    const bool counts_runs = who < FIRST_PEER && !r->b->host.device.host_memory;
    if (!w->in || w->samples.count >= BENCH_SAMPLES)
        return false;
    if (who >= STREAM && who < STREAM_END && w->samples.count >= LEAST_SAMPLES &&
        w->spent > r->who[PLAIN].spent)
        return false;
    if (w->samples.count < LEAST_SAMPLES || w->spent < r->b->budget)
        return true;
    return counts_runs && w->samples.count * w->repeat < LEAST_RUNS;
}

/* Sparse peers of a device are timed by themselves: where they leave it idle its clock rises, and
 * the dense rate beside them would not be the one that the entry meets. */
static bool is_apart(const runner *r, int who)
{
    return who >= FIRST_PEER && !r->b->host.device.host_memory &&
           r->race.racers[who - FIRST_PEER].peer && r->race.racers[who - FIRST_PEER].peer->sparse;
}

/* Counts a sample, or sets it aside where the processor's caches were not ours alone before or after it;
 * but for some time only. */
static void sample_count(runner *r, contestant *w, double ms)
{
    enum { PATIENCE = 8 };
    const bool before = !r->b->calm.busy, calm = bench_calm_check(&r->b->calm) && before;
    if (!calm && w->waited < PATIENCE * r->b->budget) {
        w->waited += ms * w->repeat;
        return;
    }
    w->spent += ms * w->repeat;
    w->calm += calm;
    w->samples.ms[w->samples.count++] = ms;
}

/* Interleaved rounds, one sample of each contestant that wants more, until the entry, or all of
 * those apart, have enough. */
static bool rounds(runner *r, bool apart)
{
    bool again = true;
    for (int turn = 2; again; turn++) {
        again = false;
        for (int k = 0; k < CONTESTANTS; k++) {
            contestant *w = &r->who[k];
            if (is_apart(r, k) != apart || !wants_more(r, k))
                continue;
            const double ms = sample(r, k, turn);
            if (ms < 0 && k < ENTRIES)
                return false;
            if (ms >= 0)
                sample_count(r, w, ms);
            w->in = ms >= 0;
            again |= apart || k < ENTRIES;
        }
    }
    return true;
}

/* Before the first row of a device: a chip that was idle runs faster than one at work, and dense
 * products more so than others. */
static bool warm_up(runner *r)
{
    enum { ROWS = 16 }; /* as long as so many take */
    double spent = 0;
    for (int turn = 2; !r->b->warm && spent < ROWS * r->b->budget; turn++)
        for (int k = 0; k < CONTESTANTS; k++) {
            if (!r->who[k].in || is_apart(r, k))
                continue;
            const double ms = sample(r, k, turn);
            if (ms < 0)
                return false;
            spent += ms * r->who[k].repeat;
        }
    r->b->warm = true;
    return true;
}

/* Finds how many runs a sample takes, and goes through the rounds. */
static bool measure(runner *r)
{
    for (int k = 0; k < CONTESTANTS; k++) {
        contestant *w = &r->who[k];
        w->in = k == PLAIN || (k == PACKED && r->rotation.copies[0].packed.kind) ||
                (k >= STREAM && k < STREAM_END && r->streams) ||
                (k >= FIRST_PEER && k - FIRST_PEER < r->race.count &&
                 r->race.racers[k - FIRST_PEER].state);
        double ms = 0;
        w->repeat = 1;
        for (int n = 0; w->in && n < 2; n++)
            ms = sample(r, k, n);
        if (ms < 0 && k < ENTRIES)
            return false;
        if (ms < 0)
            fprintf(stderr, "bsk: %s: %s fails\n", r->c->name,
                    r->race.racers[k - FIRST_PEER].peer->name);
        w->in &= ms >= 0;
        w->repeat = repeats(r, ms);
        w->host_ms = 0;
    }
    const bool warm = r->b->host.device.host_memory || warm_up(r);
    return warm && rounds(r, false) && rounds(r, true);
}

/* --- Rows ----------------------------------------------------------------------------------- */

/* Operations a second of the host, or of the device beside whose dense peer the row ran; 0: not
 * known. */
static double peak_of(const bench_host *h, const bench_row *row)
{
    const bsk_dtype type = row->spec.dtype;
    const double peak = type == BSK_F64    ? h->roof_f64
                        : type == BSK_BF16 ? h->roof_bf16
                        : type == BSK_I8   ? h->roof_i8
                                           : h->roof_f32;
    return peak == 0 && row->dense_ms > 0 ? row->dense_flops / row->dense_ms * 1e3 : peak;
}

/* The least seconds for an amount at a rate, which is 0 if it is not known. */
static double seconds_at(double amount, double rate)
{
    return rate > 0 ? amount / rate : 0;
}

/* Which pass over memory bounds the row, by the rates of this run; false where arithmetic does. */
static bool bound_by_memory(const bench_host *h, const bench_row *row, bski_pass *pass)
{
    const double copy = seconds_at(row->bytes, h->roof_bytes);
    const double read = seconds_at(row->bytes_read, h->roof_read);
    *pass = read > copy ? BSKI_READ : BSKI_COPY;
    return fmax(copy, read) > seconds_at(row->flops, peak_of(h, row));
}

/* The share of what arithmetic and memory allow. On a host that others use memory has no one rate,
 * so where it decides, its rate is the one in turn with the row. */
static double roof_share(const bench_host *h, const bench_row *row)
{
    const double copy = seconds_at(row->bytes, h->roof_bytes);
    const double read = seconds_at(row->bytes_read, h->roof_read);
    double memory = fmax(copy, read);
    if (row->beside > 0)
        memory = (row->beside_reads ? row->bytes_read : row->bytes) / row->beside;
    return seconds_at(fmax(seconds_at(row->flops, peak_of(h, row)), memory), row->ms * 1e-3);
}

/* Of all outputs of a case. */
static double written_bytes(const test_case *c)
{
    double bytes = 0;
    for (int i = 0; i < c->about->arg_count; i++)
        if (c->t[i].output && c->t[i].desc.dtype != BSK_NONE)
            bytes += (double)(c->t[i].elems * c->t[i].views) *
                     (double)bsk_dtype_size(c->t[i].desc.dtype);
    return bytes;
}

/* Whether a row's rate is seen beside the peer's: where it may round its operands, too, or that does
 * not. */
static bool is_measure(const bench_row *row, const bench_peer *peer)
{
    const bool rounds = row->spec.precision == BSK_PRECISION_TF32;
    return !peer->sparse && (rounds || peer->operand_error == 0);
}

static void row_peers(bench_row *row, runner *r)
{
    for (int i = 0; i < r->race.count; i++) {
        const bench_racer *p = &r->race.racers[i];
        bench_samples *s = &r->who[FIRST_PEER + i].samples;
        if (!s->count)
            continue;
        int k = row->peer_count++;
        snprintf(row->peers[k].name, sizeof row->peers[k].name, "%s", p->peer->name);
        row->peers[k].ms = bench_median(s);
        row->peers[k].least = bench_least(s);
        row->peers[k].spread = bench_spread(s);
        row->peers[k].verified = p->verified;
        row->peers[k].sparse = p->peer->sparse;
        if (is_measure(row, p->peer) && (row->dense_ms == 0 || row->peers[k].ms < row->dense_ms))
            row->dense_ms = row->peers[k].ms;
    }
    row->dense_flops = row->dense_ms > 0 ? bench_gemm_flops(&r->race.gemm) : 0;
}

/* What the case is and moves, before anything is timed. */
static void row_begin(bench_row *row, const runner *r, int who)
{
    memset(row, 0, sizeof *row);
    snprintf(row->name, sizeof row->name, "%s", r->c->name);
    snprintf(row->entry, sizeof row->entry, "%s", r->info[who].entry);
    row->spec = r->c->spec;
    row->device = r->b->host.device.id;
    row->packed = who == PACKED;
    row->density = r->c->layout ? r->c->info.density : 1;
    row->flops = r->info[who].flops * bench_visible_share(r->c);
    row->bytes = r->info[who].bytes;
    row->bytes_read = fmax(0, row->bytes - written_bytes(r->c));
}

static void row_fill(bench_row *row, runner *r, int who)
{
    contestant *w = &r->who[who];
    row_begin(row, r, who);
    row->ms = bench_median(&w->samples);
    row->least = bench_least(&w->samples);
    row->spread = bench_spread(&w->samples);
    row->samples = w->samples.count;
    row->calm = (double)w->calm / w->samples.count;
    row->launches = w->samples.count * w->repeat;
    row->host_us = w->host_ms * 1e3;
    for (int k = STREAM; k < STREAM_END; k++)
        if (r->who[k].samples.count)
            row->beside = fmax(row->beside, bski_stream_bytes(&r->b->stream, r->pass) /
                                                (bench_median(&r->who[k].samples) * 1e-3));
    row->beside_reads = r->pass == BSKI_READ;
    row_peers(row, r);
    row->roof = roof_share(&r->b->host, row);
    if (row->dense_ms > 0 && row->ms > 0)
        row->eta = row->flops / row->ms / (row->dense_flops / row->dense_ms);
}

/* Runs the first copy once more and downloads its output, which every peer has computed too. */
static void verify(runner *r, int who)
{
    test_case *c = r->c;
    if (r->race.count && !run_once(r, who, 0)) {
        fprintf(stderr, "bsk: %s: %s\n", c->name, bsk_last_error());
        r->b->failures++;
        return;
    }
    for (int32_t i = 0; r->race.count && i < c->about->arg_count; i++) {
        const test_tensor *t = &c->t[i];
        if (!t->output || !t->desc.dtype)
            continue;
        uint8_t *mine = malloc(t->bytes + 1);
        if (mine &&
            !bsk_mem_download(r->b->queue, mine, r->rotation.copies[0].views[i][0], t->bytes) &&
            !bsk_queue_sync(r->b->queue))
            for (int p = 0; p < r->race.count; p++)
                if (r->who[FIRST_PEER + p].samples.count &&
                    !bench_race_verify(&r->race, p, c, mine, r->b->queue)) {
                    fprintf(stderr, "bsk: %s: results of %s differ from %s\n", c->name,
                            r->race.racers[p].peer->name, r->info[who].entry);
                    r->b->failures++;
                }
        free(mine);
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

/* packed: the plan of runs with prepacked weights. */
static void bench_plan(bench *b, test_case *c, const bsk_plan *plan, const bsk_plan *packed)
{
    runner *r = calloc(1, sizeof *r);
    bench_row row;
    if (!r)
        return;
    r->b = b;
    r->c = c;
    r->plan[PLAIN] = plan;
    r->plan[PACKED] = packed;
    for (int who = PLAIN; who < ENTRIES; who++) {
        r->info[who].struct_size = sizeof r->info[who];
        bsk_plan_query(r->plan[who], &r->info[who]);
    }
    row_begin(&row, r, PLAIN);
    r->streams = bound_by_memory(&b->host, &row, &r->pass) && b->stream.from;
    r->rotation.device = b->device;
    bench_timer_open(&r->timer, b->device, b->queue);
    bool good = bench_rotation_open(&r->rotation, c, plan, packed, b->queue, b->host.cache);
    if (good)
        bench_race_open(&r->race, c, &b->team, &r->rotation, b->queue, b->host.threads);
    if (good && measure(r)) {
        for (int who = PLAIN; who < ENTRIES; who++) {
            if (!r->who[who].samples.count)
                continue;
            verify(r, who);
            row_fill(&row, r, who);
            if (who == PLAIN && !bench_program_ask(&b->program, &row))
                b->failures++;
            bench_row_print(&row, stdout);
            row_add(b, &row);
        }
        fflush(stdout);
    } else {
        fprintf(stderr, "bsk: %s: %s\n", c->name, bsk_last_error());
        b->failures++;
    }
    b->lost = bsk_queue_sync(b->queue) != BSK_OK;
    bench_race_close(&r->race);
    bench_rotation_close(&r->rotation);
    bench_timer_close(&r->timer);
    free(r);
}

/* The winner, or with --entry every entry that matches, the reference included if it is named. */
static void bench_case(bench *b, const test_spec *spec)
{
    char name[TEST_NAME];
    bsk_plan *plan = NULL, *packed = NULL;
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
    bsk_status status =
        b->entry ? BSK_E_UNSUPPORTED : c->op->plan(b->device, c->params, &options, &plan);
    options.packed = 1;
    if (status == BSK_OK && c->op->prepack)
        status = c->op->plan(b->device, c->params, &options, &packed);
    if (status == BSK_OK)
        bench_plan(b, c, plan, packed ? packed : plan);
    else if (!b->entry)
        printf("%-64s n/a: %s\n", name, bsk_last_error());
    b->failures += status && status != BSK_E_UNSUPPORTED;
    bsk_plan_destroy(&packed);
    bsk_plan_destroy(&plan);
    for (size_t i = 0; b->entry && i < backend->entry_count; i++) {
        const bsk_entry *e = &backend->entries[i];
        if (e->op != c->about->kernel_op || fnmatch(b->entry, e->name, 0) != 0 ||
            ((e->flags & BSK_ENTRY_REFERENCE) && strncmp(b->entry, "ref", 3) != 0))
            continue;
        if (test_plan(c, b->device, e->name, &plan) == BSK_OK)
            bench_plan(b, c, plan, plan);
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
    read_line("/proc/cpuinfo", "model name", h->cpu, sizeof h->cpu);
    read_line("/proc/cpuinfo", "cpu MHz", clock, sizeof clock);
    h->clock_mhz = atof(clock);
    snprintf(h->governor, sizeof h->governor, "unknown");
    read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "", h->governor,
              sizeof h->governor);
    if (uname(&name) == 0)
        snprintf(h->kernel, sizeof h->kernel, "%s %s", name.sysname, name.release);
    snprintf(h->commit, sizeof h->commit, "%s", BENCH_COMMIT);
    for (int i = 0; i < b->team.count; i++)
        snprintf(h->peers + strlen(h->peers), sizeof h->peers - strlen(h->peers), "%s%s %s",
                 i ? ", " : "", b->team.peer[i]->name, b->team.peer[i]->version());
    h->cache = bench_cache_bytes(&h->device);
    h->threads = b->device->context->settings.num_threads;
    if (h->threads < 1)
        h->threads = h->device.compute_units;
    /* OpenCL devices that are this processor carry its name */
    if (!h->device.host_memory && !(h->cpu[0] && strstr(h->device.name, h->cpu))) {
        h->roof_bytes = bench_team_copy_rate(&b->team, b->device, b->queue);
        return;
    }
    /* Entries above params.max_arch are hidden, so their instructions make no roof. */
    const bool own = strcmp(h->device.backend, "cpu") == 0;
    const int32_t arch = own ? b->device->backend->max_arch : INT32_MAX;
    h->roof_f32 = bski_roof_flops(h->threads, BSK_F32, arch);
    h->roof_bf16 = bski_roof_flops(h->threads, BSK_BF16, arch);
    h->roof_i8 = bski_roof_flops(h->threads, BSK_I8, arch);
    h->roof_f64 = bski_roof_flops(h->threads, BSK_F64, arch);
    if (bski_stream_open(&b->stream, h->threads)) {
        h->roof_bytes = bski_stream_rate(&b->stream, BSKI_COPY);
        h->roof_read = bski_stream_rate(&b->stream, BSKI_READ);
    }
    bench_calm_open(&b->calm, h->threads);
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
    case 'c':
        b->command = arg;
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
    {"peer", 'p', "NAME", 0,
     "Race against these: openblas, onednn, libxsmm, cublas, cublas-tf32, cusparse-ell, "
     "cusparse-bsr (with commas), or all",
     0},
    {"command", 'c', "COMMAND", 0,
     "Ask this program for the times of other libraries, case by case: "
     "'python3 bench/torch_peers.py' with the sets memory and moe",
     0},
    {"set", 's', "NAME", 0, "Cases to measure (smoke); an unknown name lists the sets", 0},
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
    "of what arithmetic and memory allow. SIGINT and SIGTERM end it after the case at work, and "
    "reports are written. Exit status: 0 measured, 1 failures or interrupted, 2 wrong usage, 77 "
    "nothing ran.",
    NULL,
    NULL,
    NULL};

/* Set by a signal: the case at work is the last one. Another signal ends the process. */
static volatile sig_atomic_t interrupted;

static void interrupt(int number)
{
    interrupted = number;
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
}

static void run_set(bench *b)
{
    test_list list = {.tier = TIER_BENCH};
    if (!bench_set(b->set, &list)) {
        fprintf(stderr, "bsk: there is no set %s: %s\n", b->set, bench_set_names());
        exit(2);
    }
    bench_host_print(&b->host, stdout);
    bench_heading_print(stdout);
    for (size_t i = 0; i < list.count && !b->lost && !interrupted; i++)
        bench_case(b, &list.specs[i]);
    b->failures += interrupted != 0;
    if (b->lost)
        fprintf(stderr, "bsk: the device is lost: %s\n", bsk_last_error());
    else if (interrupted)
        fprintf(stderr, "bsk: interrupted after %d rows, which the reports have\n", b->row_count);
    else if (strcmp(b->set, "attention") == 0)
        bench_attention_memory(b->device, stdout);
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
    const struct sigaction first = {.sa_handler = interrupt, .sa_flags = SA_RESTART};
    bench b = {.set = "smoke", .budget = 500};
    bsk_context *context = NULL;
    argp_err_exit_status = 2;
    argp_parse(&parser, argc, argv, 0, NULL, &b);
    peer_environment();
    b.host.device.struct_size = sizeof b.host.device;
    if (bsk_context_create(NULL, &context) ||
        bsk_context_find_device(context, b.device_id, &b.device) ||
        bsk_device_query(b.device, &b.host.device)) {
        fprintf(stderr, "bsk: %s\n", bsk_last_error());
        bsk_context_destroy(&context);
        return 77;
    }
    if (!bench_team_open(&b.team, b.peer, &b.host.device)) {
        bsk_context_destroy(&context);
        return 2;
    }
    if (b.command && !bench_program_open(&b.program, b.command)) {
        bench_team_close(&b.team);
        bsk_context_destroy(&context);
        return 2;
    }
    /* the entries run in the stream of the peers, if they have one */
    if (b.team.stream ? bsk_queue_wrap(b.device, b.team.stream, &b.queue)
                      : bsk_queue_create(b.device, &b.queue)) {
        fprintf(stderr, "bsk: %s\n", bsk_last_error());
        bench_team_close(&b.team);
        bsk_context_destroy(&context);
        return 77;
    }
    sigaction(SIGINT, &first, NULL);
    sigaction(SIGTERM, &first, NULL);
    host_describe(&b);
    run_set(&b);
    if ((b.json && !bench_write_json(b.json, &b.host, b.rows, b.row_count)) ||
        (b.html && !bench_write_html(b.html, &b.host, b.rows, b.row_count)))
        b.failures++;
    b.failures += bench_program_close(&b.program) != 0;
    bski_stream_close(&b.stream);
    bench_calm_close(&b.calm);
    bsk_queue_destroy(&b.queue);
    bench_team_close(&b.team);
    bsk_context_destroy(&context);
    int rows = b.row_count;
    free(b.rows);
    return b.failures ? 1 : rows ? 0 : 77;
}
