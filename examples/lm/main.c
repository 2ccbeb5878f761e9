/* Trains a byte-level language model with block-sparse layers; see options.c. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "checkpoint.h"
#include "process.h"
#include "report.h"
#include "roof.h"

/* Everything that the training loop shares between its runs. */
typedef struct session {
    options o;
    machine machine;
    profile *profile; /* NULL: not asked for */
    text_part train, held;
    run runs[MAX_RUNS];
    int run_count;
    int terminal;
    FILE *log;
} session;

static volatile sig_atomic_t interrupted;

/* The step in hand is finished, and the checkpoint written; a second Ctrl-C ends at once. */
static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What a model of this config has; negative after a message. Takes no device memory. */
static double config_parameters(machine *on, const config *c)
{
    model m;
    const double count = model_declare(&m, on, c, NULL, 0) ? -1 : model_parameters(&m);
    model_destroy(&m);
    return count;
}

/* All blocks and all earlier positions, and as many parameters as the sparse model has. */
static int config_dense(machine *on, const config *sparse, config *dense)
{
    const double wanted = config_parameters(on, sparse);
    *dense = *sparse;
    dense->density = 1;
    dense->pattern = PATTERN_ALL;
    dense->evolve = 0;
    enum { UNIT = 8 };
    int low = 1, high = sparse->hidden / UNIT; // in units; the smallest that is large enough
    while (low < high && wanted >= 0) {
        const int middle = (low + high) / 2;
        dense->hidden = middle * UNIT;
        const double count = config_parameters(on, dense);
        if (count < 0)
            return -1;
        if (count < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    dense->hidden = low * UNIT;
    return wanted < 0 ? -1 : 0;
}

/* Nothing of the training is left, for a later process either. */
static int run_is_complete(const session *s, const run *r)
{
    return r->model.c.steps ? r->model.step >= r->model.c.steps : r->seconds >= s->o.seconds;
}

static int run_is_done(const session *s, const run *r)
{
    return interrupted || (s->o.stop_after && r->steps >= s->o.stop_after) || run_is_complete(s, r);
}

static double run_progress(const session *s, const run *r)
{
    const double done = r->model.c.steps ? (double)r->model.step / (double)r->model.c.steps
                                         : r->seconds / s->o.seconds;
    return done < 1 ? done : 1;
}

/* JSON has no infinities: the norm of gradients that overflowed is one. */
static const char *json_number(char room[32], double x)
{
    snprintf(room, 32, "%.9g", x);
    return isfinite(x) ? room : "null";
}

static void run_log(const session *s, const run *r)
{
    char train[32], held[32], norm[32];
    if (!s->log)
        return;
    fprintf(s->log,
            "{\"model\": \"%s\", \"step\": %lld, \"seconds\": %.3f, \"train_bits\": %s, "
            "\"held_bits\": %s, \"norm\": %s, \"bytes_per_second\": %.1f, \"gflops\": %.2f, "
            "\"roof_gflops\": %.2f, \"device_bytes\": %zu}\n",
            r->name, (long long)r->model.step, r->seconds, json_number(train, r->train_bits),
            json_number(held, r->held_bits), json_number(norm, r->model.norm), run_rate(r),
            run_gflops(r), 1e-9 * r->roof, r->model.machine->peak_bytes);
    fflush(s->log);
}

/* The curve is drawn from a sample; the last number is that of all of the held-out text. */
static void run_evaluate(session *s, run *r)
{
    enum { CURVE_SAMPLE = 4096 };
    const int done = run_is_done(s, r) && !interrupted;
    r->held_bits = model_bits(&r->model, &s->held, done ? s->held.size : CURVE_SAMPLE);
    if (r->point_count == MAX_POINTS)
        r->point_count--;
    r->points[r->point_count++] = (run_point){r->seconds, (double)r->model.step, r->held_bits};
    run_log(s, r);
}

static void run_step(session *s, run *r)
{
    enum { PROFILE_SKIP = 3 };
    model *m = &r->model;
    profile *const timed = r->steps < PROFILE_SKIP ? NULL : s->profile;
    m->machine->profile = timed;
    const double start = now();
    const double warm = m->step < m->c.warm_up ? (double)(m->step + 1) / (double)m->c.warm_up : 1;
    const double decay = 0.02 + 0.98 * 0.5 * (1 + cos(3.14159265358979 * run_progress(s, r)));
    const double loss = model_step(m, &s->train, m->c.lr * warm * decay), bits = loss / log(2.0);
    r->flops += model_step_flops(m);
    if (m->c.evolve && m->step % m->c.evolve == 0 && !run_is_complete(s, r))
        model_evolve(m, run_progress(s, r));
    r->train_bits = r->steps == 0 ? bits : 0.98 * r->train_bits + 0.02 * bits;
    r->steps++;
    r->tokens += (double)m->train.labels_count * m->c.accumulate;
    const double seconds = now() - start;
    r->seconds += seconds;
    m->machine->profile = NULL;
    if (timed)
        profile_step(timed, seconds);
    char number[32];
    if (s->log)
        fprintf(s->log, "{\"model\": \"%s\", \"step\": %lld, \"seconds\": %.6f, \"loss\": %s}\n",
                r->name, (long long)m->step, r->seconds, json_number(number, loss));
}

static int run_save(const session *s, run *r)
{
    // With --steps nothing depends on the clock, not even the file.
    const double seconds = r->model.c.steps ? 0 : r->seconds;
    return s->o.save && r == s->runs ? checkpoint_save(s->o.save, &r->model, seconds) : 0;
}

static void print_eta(const session *s, double progress, double started)
{
    const double left = progress > 0.01 ? (now() - started) * (1 / progress - 1) : s->o.seconds;
    printf("  %d:%02d left", (int)left / 60, (int)left % 60);
}

/* Rewrites one line on a terminal; elsewhere prints a line for every 5 %. *shown is the last. */
static void progress_show(const session *s, int *shown, double started)
{
    enum { WIDTH = 24, LINES = 20 };
    double total = 0;
    for (int i = 0; i < s->run_count; i++)
        total += run_progress(s, &s->runs[i]) / s->run_count;
    if (!s->terminal && (int)(total * LINES) == *shown)
        return;
    *shown = (int)(total * LINES);
    char bar[WIDTH + 1] = "";
    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < total * WIDTH ? '#' : '.';
    printf("%s[%s] %3.0f %%  ", s->terminal ? "\r" : "", bar, 100 * total);
    for (int i = 0; i < s->run_count; i++) {
        const run *x = &s->runs[i];
        printf("%s%s %.3f bits, %.0f bytes/s, %.0f %% of roof", i ? "  |  " : "", x->name,
               x->held_bits, run_rate(x), run_share(x));
    }
    print_eta(s, total, started);
    fputs(s->terminal ? "   " : "\n", stdout);
    fflush(stdout);
}

/* A part of a run between two evaluations. */
static int run_slice(session *s, run *r)
{
    enum { SLICES = 20 };
    const int slice = (int)(run_progress(s, r) * SLICES);
    int result = 0;
    while (!run_is_done(s, r) && (int)(run_progress(s, r) * SLICES) == slice && result == 0) {
        run_step(s, r);
        if (s->o.save_every && r->model.step % s->o.save_every == 0)
            result = run_save(s, r);
    }
    run_evaluate(s, r);
    return result;
}

static int session_train(session *s)
{
    int shown = 0, result = 0;
    const double started = now();
    for (int i = 0; i < s->run_count; i++)
        run_evaluate(s, &s->runs[i]);
    while (result == 0) {
        // The runs take turns, so that what else the machine does disturbs both alike.
        run *r = NULL;
        for (int i = 0; i < s->run_count; i++)
            if (!run_is_done(s, &s->runs[i]) &&
                (!r || run_progress(s, &s->runs[i]) < run_progress(s, r)))
                r = &s->runs[i];
        if (!r)
            break;
        result = run_slice(s, r);
        progress_show(s, &shown, started);
    }
    if (s->terminal)
        putchar('\n');
    return run_save(s, &s->runs[0]) ? -1 : result;
}

static double gzip_bits(const uint8_t *bytes, size_t size)
{
    static const char *const gzip[] = {"gzip", "-9", "-c", "-n", NULL};
    uint8_t *packed;
    size_t packed_size;
    if (process_filter(gzip, bytes, size, &packed, &packed_size))
        return 0;
    free(packed);
    return 8.0 * (double)packed_size / (double)size;
}

static void print_summary(const session *s, const report *r)
{
    printf("\n%-7s %6s %7s %10s %6s %7s %8s %7s %7s %10s %13s\n", "model", "hidden", "density",
           "parameters", "steps", "seconds", "bytes/s", "GFLOP/s", "of roof", "train bits",
           "held-out bits");
    for (int i = 0; i < r->run_count; i++) {
        const run *x = &r->runs[i];
        printf("%-7s %6d %7.2f %10.0f %6lld %7.1f %8.0f %7.1f %5.0f %% %10.3f %13.3f\n", x->name,
               x->model.c.hidden, x->model.c.density, model_parameters(&x->model),
               (long long)x->model.step, x->seconds, run_rate(x), run_gflops(x), run_share(x),
               x->train_bits, x->held_bits);
    }
    if (r->gzip_bits > 0)
        printf("%-7s %90.3f\n", "gzip -9", r->gzip_bits);
    else
        puts("gzip is missing: nothing to compare with");
    printf("device memory: %.1f MB at most; roof, a dense product: %.1f GFLOP/s\n",
           1e-6 * (double)s->machine.peak_bytes, 1e-9 * s->runs[0].roof);
}

static int run_create(session *s, const char *name, const config *c, checkpoint *file)
{
    run *r = &s->runs[s->run_count++];
    r->name = name;
    if (file) {
        r->seconds = r->before = file->seconds;
        return checkpoint_load(file, &s->machine, c, &r->model);
    }
    if (config_check(c) || model_declare(&r->model, &s->machine, c, NULL, 0))
        return -1;
    model_allocate(&r->model);
    return 0;
}

static int session_models(session *s, checkpoint *file)
{
    const double roof = machine_roof(&s->machine, (bsk_dtype)s->o.c.dtype);
    s->runs[0].roof = s->runs[1].roof = roof;
    int result = 0;
    if (!s->o.dense)
        result = run_create(s, s->o.resume ? "resumed" : "sparse", &s->o.c, file);
    if (result == 0 && (s->o.dense || s->o.compare)) {
        config dense;
        result = config_dense(&s->machine, &s->o.c, &dense);
        if (result == 0)
            result = run_create(s, "dense", &dense, NULL);
    }
    return result;
}

static int session_text(session *s, text *t, uint8_t **held_bytes)
{
    if (s->o.text ? text_read_file(t, s->o.text) : text_read_tree(t, s->o.root))
        return -1;
    const config *c = &s->o.c;
    const size_t labels = (size_t)model_kinds[c->kind]->row_labels(c);
    if (t->size < (size_t)TEXT_CHUNK * TEXT_EVERY ||
        t->size < (size_t)TEXT_EVERY * (labels + 2 * TEXT_PAD)) {
        fprintf(stderr, "lm: the text has %zu bytes: too few\n", t->size);
        return -1;
    }
    return text_split(t, labels + 1, &s->train, &s->held, held_bytes);
}

/* Writes what was asked for, and decides about --require-gzip. */
static int report_end(const report *r, session *s)
{
    int result = 0;
    print_summary(s, r);
    if (s->profile)
        profile_print(s->profile);
    if (s->o.generate) {
        puts("");
        fputs(s->o.prompt, stdout);
        model_generate(&s->runs[0].model, s->o.prompt, s->o.generate, s->o.temperature,
                       (uint64_t)s->o.c.seed);
    }
    if (s->o.html && report_write(s->o.html, r))
        result = -1;
    for (int i = 0; i < s->run_count && s->o.require_gzip; i++)
        if (!(s->runs[i].held_bits < r->gzip_bits)) {
            fprintf(stderr, "lm: %s is not better than gzip -9\n", s->runs[i].name);
            result = -1;
        }
    return result;
}

/* What cannot be written is better known before the training than after it. */
static int session_outputs(session *s)
{
    if ((s->o.save && checkpoint_check(s->o.save)) || (s->o.html && report_check(s->o.html)))
        return -1;
    if (s->o.log && !(s->log = fopen(s->o.log, "a"))) {
        fprintf(stderr, "lm: %s: %s\n", s->o.log, strerror(errno));
        return -1;
    }
    return 0;
}

static int session_run(session *s, checkpoint *file)
{
    text t = {NULL, 0, 0};
    uint8_t *held_bytes = NULL;
    report r = {.runs = s->runs};
    int result = session_outputs(s);
    if (result == 0)
        result = session_text(s, &t, &held_bytes);
    if (result == 0)
        result = session_models(s, file);
    if (result == 0) {
        bsk_device_info info = BSK_INIT(bsk_device_info);
        CHECK(bsk_device_query(s->machine.device, &info));
        r.run_count = s->run_count;
        r.device = info.name;
        r.text_size = t.size;
        r.held_size = s->held.count;
        r.files = t.files;
        r.gzip_bits = gzip_bits(held_bytes, r.held_size);
        printf("text: %d files, %zu bytes, %zu held out\ndevice: %s, %s\n", t.files, t.size,
               r.held_size, info.id, info.name);
        result = session_train(s);
    }
    if (result == 0)
        result = report_end(&r, s);
    if (s->log)
        fclose(s->log);
    for (int i = 0; i < s->run_count; i++)
        model_destroy(&s->runs[i].model);
    text_part_free(&s->train);
    text_part_free(&s->held);
    free(held_bytes);
    text_free(&t);
    return result;
}

int main(int argc, char **argv)
{
    static session s;
    if (options_begin(argc, argv, &s.o))
        return 2;
    if (s.o.help) {
        fputs(usage, stdout);
        return 0;
    }
    machine_create(&s.machine, s.o.device);
    checkpoint file = {.bytes = NULL};
    int result = 0;
    if (s.o.resume) {
        result = checkpoint_open(s.o.resume, s.machine.context, &file);
        s.o.c = file.c;
    }
    if (result == 0 && options_parse(argc, argv, &s.o))
        result = 2;
    if (result == 0) {
        if (s.o.profile)
            s.profile = profile_create(s.machine.device);
        s.terminal = isatty(STDOUT_FILENO);
        const struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
        sigaction(SIGINT, &action, NULL);
        result = session_run(&s, s.o.resume ? &file : NULL);
    }
    checkpoint_close(&file);
    profile_destroy(s.profile);
    machine_destroy(&s.machine);
    return result < 0 ? 1 : interrupted && result == 0 ? 130 : result;
}
