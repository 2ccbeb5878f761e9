#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

const char usage[] =
    "usage: lm [OPTION]...\n"
    "Trains a byte-level language model with block-sparse layers.\n"
    "\n"
    "  --model KIND        transformer, lstm or mlp (transformer)\n"
    "  --text FILE         the text to learn, any bytes; default: sources and documents below\n"
    "  --root DIR          this folder (.)\n"
    "  --seconds S         training time of each model (60); 0 only evaluates\n"
    "  --steps N           stop after N steps instead: the result does not depend on the clock\n"
    "  --device ID         cpu:0, cuda:0, opencl:0 ...; default: the library's choice\n"
    "  --compare           train a dense model with as many parameters as well, in turns\n"
    "  --dense             only the dense one\n"
    "\n"
    "  --time T            bytes that a row of a batch holds\n"
    "  --layers N --width D --hidden H      sizes; H: of feed-forward layers, cells, units\n"
    "  --block B --density D                blocks of weights, share of them that is kept (0.25)\n"
    "  --heads N --attention-block B --pattern all|local|strided|fixed|bigbird --stride S\n"
    "  --dropout P\n"
    "  --context C --buckets B              mlp: bytes seen one by one; 2^B hashed contexts\n"
    "\n"
    "  --batch N --accumulate K             rows of a batch; batches of a step\n"
    "  --lr R --warm-up N --clip C --beta2 B --weight-decay W   (B 0: the default, 0.999)\n"
    "  --ema D             evaluate an average of the weights with this decay\n"
    "  --dtype T           type of products: f32, bf16, f16 or f64 (f32)\n"
    "  --evolve N          every N steps move the --evolve-share weakest blocks elsewhere ...\n"
    "  --prune-to D        ... and drop blocks, down to this density at the end\n"
    "  --prune-by norm|l0|lasso             weak: by norm; l0: with gates that the penalty\n"
    "  --prune-rate R      closes, which drops the block; lasso: with norms that it shortens "
    "(0.1)\n"
    "  --seed N\n"
    "\n"
    "  --save FILE         write a checkpoint (with --compare, of the sparse model) at the end, "
    "on\n"
    "                      Ctrl-C, and\n"
    "  --save-every N      every N steps\n"
    "  --stop-after N      end after N steps, to go on later\n"
    "  --resume FILE       go on from a checkpoint; its sizes replace the options\n"
    "  --generate N        print N bytes that the model makes up after --prompt TEXT,\n"
    "  --temperature T     drawn at this temperature (0.8)\n"
    "  --html FILE         write a page with curves and layouts (plots need gnuplot)\n"
    "  --log FILE          write a line of JSON for each step and each evaluation\n"
    "  --profile           print what the ops of a step take, without the first steps\n"
    "  --require-gzip      exit with 1 unless every model needs fewer bits than gzip -9\n"
    "\n"
    "Every tenth chunk of 4 KiB of the text is held out. No training step sees it, and contexts\n"
    "do not reach from one side of the split into the other. Bits per byte are those of the\n"
    "held-out text; gzip -9 gets exactly the same bytes, joined.\n";

typedef enum option_kind { FLAG, STRING, NUMBER, WHOLE, NAME } option_kind;
/* Options of the structure cannot be given with --resume; those of the training can. */
typedef enum option_use { OF_RUN, OF_TRAINING, OF_STRUCTURE } option_use;

static const char *const dtype_names[] = {"?", "f64", "f32", "f16", "bf16", NULL};
static const char *const pattern_names[] = {"all", "local", "strided", "fixed", "bigbird", NULL};
static const char *const prune_names[] = {"norm", "l0", "lasso", NULL};

#define RUN(field)       OF_RUN, offsetof(options, field)
#define TRAINING(field)  OF_TRAINING, offsetof(options, c.field)
#define STRUCTURE(field) OF_STRUCTURE, offsetof(options, c.field)

static const struct option_row {
    const char *name;
    option_kind kind;
    option_use use;
    size_t at; /* in options: int for FLAG, WHOLE and NAME, double for NUMBER */
    double low, high;
    const char *const *names; /* of NAME; NULL: of the kinds of models */
} rows[] = {
    {"model", NAME, STRUCTURE(kind), 0, MODEL_KINDS - 1, NULL},
    {"time", WHOLE, STRUCTURE(time), 1, 1 << 20, NULL},
    {"layers", WHOLE, STRUCTURE(layers), 1, 40, NULL},
    {"width", WHOLE, STRUCTURE(width), 8, 16384, NULL},
    {"hidden", WHOLE, STRUCTURE(hidden), 8, 65536, NULL},
    {"heads", WHOLE, STRUCTURE(heads), 1, 256, NULL},
    {"block", WHOLE, STRUCTURE(block), 1, 1024, NULL},
    {"pattern", NAME, STRUCTURE(pattern), 0, PATTERN_COUNT - 1, pattern_names},
    {"attention-block", WHOLE, STRUCTURE(attention_block), 1, 1024, NULL},
    {"stride", WHOLE, STRUCTURE(stride), 1, 1 << 20, NULL},
    {"context", WHOLE, STRUCTURE(context), 1, TEXT_PAD / 2, NULL},
    {"buckets", WHOLE, STRUCTURE(buckets_log2), 1, 24, NULL},
    {"dtype", NAME, STRUCTURE(dtype), BSK_F64, BSK_BF16, dtype_names},
    {"batch", WHOLE, STRUCTURE(batch), 1, 1 << 20, NULL},
    {"accumulate", WHOLE, STRUCTURE(accumulate), 1, 65536, NULL},
    {"seed", WHOLE, STRUCTURE(seed), 0, INT32_MAX, NULL},
    {"density", NUMBER, STRUCTURE(density), 1e-4, 1, NULL},
    {"dropout", NUMBER, STRUCTURE(dropout), 0, 0.9, NULL},
    {"ema", NUMBER, STRUCTURE(ema), 0, 0.999999, NULL},
    {"prune-by", NAME, STRUCTURE(prune_by), 0, PRUNE_COUNT - 1, prune_names},
    {"steps", WHOLE, TRAINING(steps), 0, 1e9, NULL},
    {"warm-up", WHOLE, TRAINING(warm_up), 0, 1e9, NULL},
    {"evolve", WHOLE, TRAINING(evolve), 0, 1e9, NULL},
    {"lr", NUMBER, TRAINING(lr), 0, 10, NULL},
    {"clip", NUMBER, TRAINING(clip), 0, 1e9, NULL},
    {"beta2", NUMBER, TRAINING(beta2), 0, 0.999999, NULL},
    {"weight-decay", NUMBER, TRAINING(weight_decay), 0, 100, NULL},
    {"evolve-share", NUMBER, TRAINING(evolve_share), 0, 1, NULL},
    {"prune-to", NUMBER, TRAINING(prune_to), 0, 1, NULL},
    {"prune-rate", NUMBER, TRAINING(prune_rate), 0, 1e6, NULL},
    {"text", STRING, RUN(text), 0, 0, NULL},
    {"root", STRING, RUN(root), 0, 0, NULL},
    {"device", STRING, RUN(device), 0, 0, NULL},
    {"save", STRING, RUN(save), 0, 0, NULL},
    {"resume", STRING, RUN(resume), 0, 0, NULL},
    {"html", STRING, RUN(html), 0, 0, NULL},
    {"log", STRING, RUN(log), 0, 0, NULL},
    {"prompt", STRING, RUN(prompt), 0, 0, NULL},
    {"seconds", NUMBER, RUN(seconds), 0, 1e7, NULL},
    {"temperature", NUMBER, RUN(temperature), 0.01, 100, NULL},
    {"save-every", WHOLE, RUN(save_every), 1, 1e9, NULL},
    {"stop-after", WHOLE, RUN(stop_after), 1, 1e9, NULL},
    {"generate", WHOLE, RUN(generate), 0, 1e6, NULL},
    {"dense", FLAG, RUN(dense), 0, 0, NULL},
    {"compare", FLAG, RUN(compare), 0, 0, NULL},
    {"require-gzip", FLAG, RUN(require_gzip), 0, 0, NULL},
    {"profile", FLAG, RUN(profile), 0, 0, NULL},
    {"help", FLAG, RUN(help), 0, 0, NULL},
};
enum { OPTIONS = sizeof rows / sizeof *rows };

/* Sizes that suit the kinds on a small machine. */
static const config defaults[MODEL_KINDS] = {
    {.time = 128,
     .layers = 2,
     .width = 128,
     .hidden = 1024,
     .heads = 4,
     .block = 32,
     .pattern = PATTERN_STRIDED,
     .attention_block = 16,
     .stride = 32,
     .context = 8,
     .buckets_log2 = 14,
     .batch = 8,
     .lr = 3e-3},
    {.kind = 1,
     .time = 32,
     .layers = 1,
     .width = 64,
     .hidden = 512,
     .heads = 1,
     .block = 32,
     .attention_block = 16,
     .stride = 64,
     .context = 8,
     .buckets_log2 = 14,
     .batch = 32,
     .lr = 4e-3},
    {.kind = 2,
     .time = 1,
     .layers = 2,
     .width = 32,
     .hidden = 512,
     .heads = 1,
     .block = 32,
     .attention_block = 16,
     .stride = 64,
     .context = 8,
     .buckets_log2 = 14,
     .batch = 1024,
     .lr = 1e-2},
};

static void *field(options *o, const struct option_row *row)
{
    return (char *)o + row->at;
}

static int number_set(options *o, const struct option_row *row, double number)
{
    if (!(number >= row->low && number <= row->high) ||
        (row->kind != NUMBER && number != floor(number)))
        return -1;
    if (row->kind == NUMBER)
        memcpy(field(o, row), &number, sizeof number);
    else
        *(int *)field(o, row) = (int)number;
    return 0;
}

static const char *name_of(const struct option_row *row, int value)
{
    return row->names ? row->names[value] : model_kinds[value]->name;
}

static int option_set(options *o, const struct option_row *row, const char *value)
{
    char *end;
    errno = 0;
    switch (row->kind) {
    case FLAG:
        *(int *)field(o, row) = 1;
        return 0;
    case STRING:
        memcpy(field(o, row), &value, sizeof value);
        return 0;
    case NAME:
        for (int i = (int)row->low; i <= (int)row->high; i++)
            if (strcmp(name_of(row, i), value) == 0)
                return number_set(o, row, i);
        fprintf(stderr, "lm: --%s %s: want", row->name, value);
        for (int i = (int)row->low; i <= (int)row->high; i++)
            fprintf(stderr, " %s", name_of(row, i));
        fputs("\n", stderr);
        return -1;
    default:
        break;
    }
    const double number = strtod(value, &end);
    if (errno || end == value || *end || number_set(o, row, number)) {
        fprintf(stderr, "lm: --%s %s: want a %s from %g to %g\n", row->name, value,
                row->kind == WHOLE ? "whole number" : "number", row->low, row->high);
        return -1;
    }
    return 0;
}

/* Goes through the command line; with `first` only for what decides about the defaults. */
static int options_walk(int argc, char **argv, options *o, int first, int *structural)
{
    struct option list[OPTIONS + 1] = {{NULL, 0, NULL, 0}};
    for (int i = 0; i < OPTIONS; i++)
        list[i] = (struct option){rows[i].name, rows[i].kind != FLAG, NULL, i};
    optind = 1;
    for (int i; (i = getopt_long(argc, argv, "", list, NULL)) != -1;) {
        if (i == '?')
            return -1;
        *structural |= rows[i].use == OF_STRUCTURE;
        const void *at = field(o, &rows[i]);
        const int decides =
            at == &o->c.kind || at == &o->resume || at == &o->device || at == &o->help;
        if ((decides || !first) && option_set(o, &rows[i], optarg))
            return -1;
    }
    if (optind < argc) {
        fprintf(stderr, "lm: %s is not an option\n", argv[optind]);
        return -1;
    }
    return 0;
}

static int options_fail(void)
{
    fputs("lm: try --help\n", stderr);
    return -1;
}

int options_begin(int argc, char **argv, options *o)
{
    int structural = 0;
    memset(o, 0, sizeof *o);
    if (options_walk(argc, argv, o, 1, &structural))
        return options_fail();
    o->c = defaults[o->c.kind];
    o->c.dtype = BSK_F32;
    o->c.accumulate = o->c.seed = 1;
    o->c.density = 0.25;
    o->c.clip = 1;
    o->c.warm_up = 50;
    o->c.evolve_share = o->c.prune_rate = 0.1;
    o->root = ".";
    o->prompt = "";
    o->seconds = 60;
    o->temperature = 0.8;
    return 0;
}

int options_parse(int argc, char **argv, options *o)
{
    int structural = 0;
    if (options_walk(argc, argv, o, 0, &structural))
        return options_fail();
    if (o->resume && (structural || o->compare || o->dense)) {
        fputs("lm: with --resume the checkpoint says what the model is\n", stderr);
        return options_fail();
    }
    if (o->compare && o->dense) {
        fputs("lm: --dense and --compare exclude each other\n", stderr);
        return options_fail();
    }
    return config_check(&o->c);
}

static int is_saved(const struct option_row *row)
{
    return row->use != OF_RUN;
}

const char *config_name(int i)
{
    for (int k = 0; k < OPTIONS; k++)
        if (is_saved(&rows[k]) && i-- == 0)
            return rows[k].name;
    return NULL;
}

static const struct option_row *saved_row(const char *name)
{
    for (int i = 0; i < OPTIONS; i++)
        if (is_saved(&rows[i]) && strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

double config_get(const config *c, const char *name)
{
    const struct option_row *row = saved_row(name);
    options o = {.c = *c};
    double number;
    if (row->kind != NUMBER)
        return *(const int *)field(&o, row);
    memcpy(&number, field(&o, row), sizeof number);
    return number;
}

int config_set(config *c, const char *name, double value)
{
    const struct option_row *row = saved_row(name);
    options o = {.c = *c};
    if (!row || number_set(&o, row, value))
        return -1;
    *c = o.c;
    return 0;
}

int config_check(const config *c)
{
    const double labels = (double)c->batch * (c->kind == 2 ? 1 : c->time);
    const double features = c->hidden > 4 * c->width ? c->hidden : 4 * c->width;
    if (labels * features * c->layers > 0x1p33) {
        fputs("lm: --batch times --time times the model's size is too large\n", stderr);
        return -1;
    }
    if (c->evolve && c->dtype == BSK_F64) {
        fputs("lm: --evolve needs masters of type f32\n", stderr);
        return -1;
    }
    if (c->evolve && c->prune_to > 0 && c->density >= 1) {
        fputs("lm: --prune-to needs --density below 1\n", stderr);
        return -1;
    }
    if (c->kind == 1 && (double)c->time * c->layers > 1 << 14) {
        fputs("lm: --time times --layers is too large for an lstm\n", stderr);
        return -1;
    }
    const double grid = (double)c->time / c->attention_block;
    if (grid * grid * c->heads > 0x1p24) {
        fputs("lm: --attention-block is too small for --time\n", stderr);
        return -1;
    }
    return 0;
}
