/* Trains a character model with block-sparse layers and compares it with gzip. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "process.h"
#include "report.h"
#include "weights_file.h"

typedef struct options {
    const char *text, *root, *device, *save, *load, *html;
    double density, seconds, lr;
    int block, hidden, width, batch, context, buckets_log2, steps, seed;
    int dense, compare, require_gzip, help;
} options;

static const char usage[] =
    "usage: textmodel [OPTION]...\n"
    "Trains a character model with two block-sparse layers on text.\n"
    "\n"
    "  --text FILE       the text to learn; default: sources and documents below --root\n"
    "  --root DIR        default: the current folder\n"
    "  --seconds S       training time of each model (60); 0 only evaluates\n"
    "  --steps N         stop after N steps instead: the result does not depend on the clock\n"
    "  --density D       share of kept blocks in the two layers, above 0, at most 1 (0.25)\n"
    "  --block B         block size (32)\n"
    "  --hidden H        units of a layer (512)\n"
    "  --width W         size of an embedding (32)\n"
    "  --context C       characters that are seen one by one, 1 to 32 (8)\n"
    "  --buckets B       2^B embeddings for each kind of hashed context, 1 to 24 (14)\n"
    "  --batch N         characters in a step (1024)\n"
    "  --lr R            learning rate (0.006)\n"
    "  --seed N          (1)\n"
    "  --dense           density 1, with as many units as give the same parameter count\n"
    "  --compare         both, in turns\n"
    "  --device ID       cpu:0, cuda:0 ...; default: the library's choice\n"
    "  --save FILE       write the (sparse) model, layouts included\n"
    "  --load FILE       start from such a file; its sizes replace the options\n"
    "  --html FILE       write a page with curves and layouts (plots need gnuplot)\n"
    "  --require-gzip    exit with 1 unless every model needs fewer bits than gzip -9\n"
    "\n"
    "Every tenth chunk of 4 KiB of the text is held out. No training step sees it, and contexts\n"
    "do not reach from one side of the split into the other. Bits per character are those of the\n"
    "held-out text; gzip -9 gets exactly the same bytes, joined.\n";

typedef enum option_kind { FLAG, STRING, NUMBER, WHOLE } option_kind;

static const struct option_row {
    const char *name;
    option_kind kind;
    size_t at; /* in options: int for FLAG and WHOLE, double for NUMBER */
    double low, high;
} option_rows[] = {
    {"text", STRING, offsetof(options, text), 0, 0},
    {"root", STRING, offsetof(options, root), 0, 0},
    {"seconds", NUMBER, offsetof(options, seconds), 0, 1e6},
    {"steps", WHOLE, offsetof(options, steps), 1, 1e9},
    {"density", NUMBER, offsetof(options, density), 1e-4, 1},
    {"block", WHOLE, offsetof(options, block), 1, 1024},
    {"hidden", WHOLE, offsetof(options, hidden), 1, 16384},
    {"width", WHOLE, offsetof(options, width), 1, 1024},
    {"context", WHOLE, offsetof(options, context), 1, TEXT_PAD / 2},
    {"buckets", WHOLE, offsetof(options, buckets_log2), 1, 24},
    {"batch", WHOLE, offsetof(options, batch), 1, 65536},
    {"lr", NUMBER, offsetof(options, lr), 0, 10},
    {"seed", WHOLE, offsetof(options, seed), 0, INT32_MAX},
    {"dense", FLAG, offsetof(options, dense), 0, 0},
    {"compare", FLAG, offsetof(options, compare), 0, 0},
    {"device", STRING, offsetof(options, device), 0, 0},
    {"save", STRING, offsetof(options, save), 0, 0},
    {"load", STRING, offsetof(options, load), 0, 0},
    {"html", STRING, offsetof(options, html), 0, 0},
    {"require-gzip", FLAG, offsetof(options, require_gzip), 0, 0},
    {"help", FLAG, offsetof(options, help), 0, 0},
};
enum { OPTIONS = sizeof option_rows / sizeof *option_rows };

static int option_set(options *o, const struct option_row *row, const char *value)
{
    void *field = (char *)o + row->at;
    if (row->kind == FLAG)
        *(int *)field = 1;
    if (row->kind == STRING)
        *(const char **)field = value;
    if (row->kind == FLAG || row->kind == STRING)
        return 0;

    char *end;
    errno = 0;
    const double number = strtod(value, &end);
    if (errno || end == value || *end || !(number >= row->low && number <= row->high) ||
        (row->kind == WHOLE && number != floor(number))) {
        fprintf(stderr, "textmodel: --%s %s: want a %s from %g to %g\n", row->name, value,
                row->kind == WHOLE ? "whole number" : "number", row->low, row->high);
        return -1;
    }
    if (row->kind == WHOLE)
        *(int *)field = (int)number;
    else
        *(double *)field = number;
    return 0;
}

/* Returns 0, or -1 after a message to stderr. */
static int options_parse(int argc, char **argv, options *o)
{
    struct option list[OPTIONS + 1] = {{NULL, 0, NULL, 0}};
    for (int i = 0; i < OPTIONS; i++)
        list[i] = (struct option){option_rows[i].name, option_rows[i].kind != FLAG, NULL, i};
    for (int i; (i = getopt_long(argc, argv, "", list, NULL)) != -1;)
        if (i == '?' || option_set(o, &option_rows[i], optarg)) {
            fputs("textmodel: try --help\n", stderr);
            return -1;
        }
    if (optind < argc) {
        fprintf(stderr, "textmodel: %s is not an option; try --help\n", argv[optind]);
        return -1;
    }
    if ((o->load && (o->compare || o->dense)) || (o->compare && o->dense)) {
        fputs("textmodel: --load, --dense and --compare exclude each other\n", stderr);
        return -1;
    }
    return 0;
}

/* Everything that the training loop shares between its runs. */
typedef struct session {
    options o;
    alphabet letters;
    text_part train, held;
    uint32_t *order; /* training positions, shuffled */
    double seconds;  /* of each run */
    run runs[MAX_RUNS];
    int run_count;
    int terminal;
} session;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The dense model's width: as many parameters in the layers as the sparse model has. */
static int hidden_dense(const model_shape *sparse)
{
    const double target = model_layer_parameters(sparse, sparse->hidden, sparse->density);
    int best = 4;
    for (int hidden = 4; hidden <= sparse->hidden; hidden += 4)
        if (fabs(model_layer_parameters(sparse, hidden, 1) - target) <
            fabs(model_layer_parameters(sparse, best, 1) - target))
            best = hidden;
    return best;
}

static int run_is_done(const session *s, const run *r)
{
    return s->o.steps ? r->model.step >= s->o.steps : r->seconds >= s->o.seconds;
}

static double run_progress(const session *s, const run *r)
{
    const double done =
        s->o.steps ? (double)r->model.step / (double)s->o.steps : r->seconds / s->o.seconds;
    return done < 1 ? done : 1;
}

/* The curve is drawn from a sample; the last number is that of all of the held-out text. */
static void run_evaluate(session *s, run *r)
{
    enum { CURVE_SAMPLE = 4096 };
    const size_t stride = s->held.count / CURVE_SAMPLE + 1;
    r->held_bits = model_bits(&r->model, &s->letters, &s->held, stride);
    if (r->point_count == MAX_POINTS)
        r->point_count--;
    r->points[r->point_count++] = (run_point){r->seconds, r->held_bits};
    if (run_is_done(s, r))
        r->held_bits = model_bits(&r->model, &s->letters, &s->held, 1);
}

static void order_shuffle(session *s)
{
    uint64_t state = (uint64_t)s->o.seed;
    for (size_t i = s->train.count - 1; i > 0; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const size_t j = (size_t)(state >> 33) % (i + 1);
        const uint32_t t = s->order[i];
        s->order[i] = s->order[j];
        s->order[j] = t;
    }
}

static void run_step(session *s, run *r)
{
    const double start = now();
    model *m = &r->model;
    // All runs read the training positions in the same order.
    for (int i = 0; i < m->batch; i++) {
        const uint64_t at = (uint64_t)m->step * (uint64_t)m->batch + (uint64_t)i;
        model_put(m, &s->letters, &s->train, i, s->order[at % s->train.count]);
    }
    enum { WARM_UP = 50 };
    const double warm = m->step < WARM_UP ? (double)(m->step + 1) / WARM_UP : 1;
    const double decay = 0.02 + 0.98 * 0.5 * (1 + cos(3.14159265358979 * run_progress(s, r)));
    const double lr = s->o.lr * warm * decay;
    const double bits = model_train(m, lr, 2 * lr) / log(2.0);
    r->train_bits = m->step == 1 ? bits : 0.98 * r->train_bits + 0.02 * bits;
    r->tokens += m->batch;
    r->seconds += now() - start;
}

/* Rewrites one line on a terminal; elsewhere prints a line for every 5 %. *shown is the last. */
static void progress_show(const session *s, int *shown)
{
    enum { WIDTH = 28, LINES = 20 };
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
        printf("%s%s %.3f bits, %.0f chars/s", i ? "  |  " : "", x->name, x->held_bits,
               x->seconds > 0 ? x->tokens / x->seconds : 0);
    }
    fputs(s->terminal ? "   " : "\n", stdout);
    fflush(stdout);
}

static void session_train(session *s)
{
    enum { SLICES = 40 };
    int shown = 0;
    for (int i = 0; i < s->run_count; i++)
        run_evaluate(s, &s->runs[i]);
    for (;;) {
        // The runs take turns, so that what else the machine does disturbs both alike.
        run *r = NULL;
        for (int i = 0; i < s->run_count; i++)
            if (!run_is_done(s, &s->runs[i]) &&
                (!r || run_progress(s, &s->runs[i]) < run_progress(s, r)))
                r = &s->runs[i];
        if (!r)
            break;
        const int slice = (int)(run_progress(s, r) * SLICES);
        while (!run_is_done(s, r) && (int)(run_progress(s, r) * SLICES) == slice)
            run_step(s, r);
        run_evaluate(s, r);
        progress_show(s, &shown);
    }
    if (s->terminal)
        putchar('\n');
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

static void print_summary(const report *r)
{
    printf("\n%-8s %7s %8s %12s %8s %10s %12s %12s\n", "model", "hidden", "density", "parameters",
           "seconds", "chars/s", "train bits", "held-out bits");
    for (int i = 0; i < r->run_count; i++) {
        const run *x = &r->runs[i];
        printf("%-8s %7d %8.2f %12.0f %8.1f %10.0f %12.3f %12.3f\n", x->name, x->model.shape.hidden,
               x->model.shape.density, model_parameters(&x->model), x->seconds,
               x->seconds > 0 ? x->tokens / x->seconds : 0, x->train_bits, x->held_bits);
    }
    if (r->gzip_bits > 0)
        printf("%-8s %77.3f\n", "gzip -9", r->gzip_bits);
    else
        puts("gzip is missing: nothing to compare with");
}

static void session_models(session *s, bsk_context *context, const bsk_device *device,
                           weights_file *file)
{
    model_shape shape = {.input = {.context = s->o.context,
                                   .codes = alphabet_classes(&s->letters) + 1,
                                   .buckets_log2 = s->o.buckets_log2},
                         .width = s->o.width,
                         .hidden = s->o.hidden,
                         .block = s->o.block,
                         .density = s->o.density,
                         .classes = alphabet_classes(&s->letters)};
    model_shape dense = shape;
    dense.hidden = hidden_dense(&shape);
    dense.density = 1;
    if (s->o.load)
        shape = file->shape;

    s->run_count = 0;
    if (!s->o.dense) {
        run *r = &s->runs[s->run_count++];
        r->name = "sparse";
        model_create(&r->model, context, device, &shape, s->o.batch, (uint64_t)s->o.seed,
                     s->o.load ? file->layouts : NULL);
    }
    if (s->o.dense || s->o.compare) {
        run *r = &s->runs[s->run_count++];
        r->name = "dense";
        model_create(&r->model, context, device, &dense, s->o.batch, (uint64_t)s->o.seed, NULL);
    }
}

static int session_text(session *s, text *t, const weights_file *file, uint8_t **held_bytes,
                        size_t *held_size)
{
    if (s->o.text ? text_read_file(t, s->o.text) : text_read_tree(t, s->o.root))
        return -1;
    if (t->size < (size_t)TEXT_CHUNK * TEXT_EVERY) {
        fprintf(stderr, "textmodel: the text has %zu bytes, at least %d are needed\n", t->size,
                TEXT_CHUNK * TEXT_EVERY);
        return -1;
    }
    if (s->o.load)
        s->letters = file->known;
    if (text_split(t, &s->letters, s->o.load != NULL, &s->train, &s->held, held_bytes, held_size))
        return -1;
    s->order = check_alloc(s->train.count * sizeof *s->order);
    memcpy(s->order, s->train.position, s->train.count * sizeof *s->order);
    order_shuffle(s);
    return 0;
}

/* What is known before the training, for the terminal and the page. */
static void report_begin(report *r, session *s, const bsk_device *device, const text *t)
{
    bsk_device_info info = BSK_INIT(bsk_device_info);
    bsk_plan_info plan = BSK_INIT(bsk_plan_info);
    CHECK(bsk_device_query(device, &info));
    CHECK(bsk_plan_query(s->runs[0].model.layers[0].forward, &plan));
    r->runs = s->runs;
    r->run_count = s->run_count;
    r->device = info.name;
    r->entry = plan.entry;
    r->text_size = t->size;
    r->files = t->files;
    printf("text: %d files, %zu bytes, %zu held out, %d kinds of bytes\n", t->files, t->size,
           r->held_size, s->letters.escape);
    printf("device: %s, %s, kernel %s\n", info.id, info.name, plan.entry);
}

/* Writes what was asked for, and decides about --require-gzip. */
static int report_end(const report *r, session *s)
{
    int result = 0;
    print_summary(r);
    if (s->o.save)
        result = weights_save(s->o.save, &s->runs[0].model, &s->letters);
    if (s->o.html && report_write(s->o.html, r))
        result = -1;
    for (int i = 0; i < s->run_count && s->o.require_gzip; i++)
        if (!(s->runs[i].held_bits < r->gzip_bits)) {
            fprintf(stderr, "textmodel: %s is not better than gzip -9\n", s->runs[i].name);
            result = -1;
        }
    return result;
}

static int session_run(session *s, bsk_context *context, const bsk_device *device,
                       weights_file *file)
{
    text t = {NULL, 0, 0};
    uint8_t *held_bytes = NULL;
    report r = {.runs = NULL};
    int result = session_text(s, &t, file, &held_bytes, &r.held_size);
    if (result == 0) {
        session_models(s, context, device, file);
        report_begin(&r, s, device, &t);
        r.gzip_bits = gzip_bits(held_bytes, r.held_size);
        result = s->o.load ? weights_load(file, &s->runs[0].model) : 0;
    }
    if (result == 0) {
        session_train(s);
        result = report_end(&r, s);
    }
    for (int i = 0; i < s->run_count; i++)
        model_destroy(&s->runs[i].model);
    text_part_free(&s->train);
    text_part_free(&s->held);
    free(s->order);
    free(held_bytes);
    text_free(&t);
    return result;
}

int main(int argc, char **argv)
{
    static session s;
    s.o = (options){.root = ".",
                    .density = 0.25,
                    .seconds = 60,
                    .lr = 0.006,
                    .block = 32,
                    .hidden = 512,
                    .width = 32,
                    .batch = 1024,
                    .context = 8,
                    .buckets_log2 = 14,
                    .seed = 1};
    if (options_parse(argc, argv, &s.o))
        return 2;
    if (s.o.help) {
        fputs(usage, stdout);
        return 0;
    }
    s.terminal = isatty(STDOUT_FILENO);

    bsk_context *context = NULL;
    const bsk_device *device = NULL;
    CHECK(bsk_context_create(NULL, &context));
    CHECK(bsk_context_find_device(context, s.o.device, &device));
    weights_file file = {NULL};
    int result = s.o.load ? weights_open(s.o.load, context, &file) : 0;
    if (result == 0)
        result = session_run(&s, context, device, &file);
    weights_close(&file);
    bsk_context_destroy(&context);
    return result ? 1 : 0;
}
