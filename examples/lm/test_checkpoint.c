/* Checkpoints beyond their checksum: every field is changed, with a checksum that fits, and must be
 * refused where it cannot be right; other changed bytes may be read, but must not crash. Each file is
 * read by a process of its own, as a refusal may end it. */
#include <math.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "checkpoint.h"

enum { TEXT_SIZE = 2000, SAMPLES = 160, SECONDS = 20 };

static int passed, failed;
static char path[] = "/tmp/bsk-checkpoint-XXXXXX";

static const struct test_row {
    const char *name;
    config c;
} tests[] = {
    {"transformer bf16",
     {.time = 8,
      .layers = 1,
      .width = 16,
      .hidden = 32,
      .heads = 2,
      .block = 8,
      .pattern = PATTERN_STRIDED,
      .attention_block = 4,
      .stride = 4,
      .dtype = BSK_BF16,
      .ema = 0.5,
      .prune_by = PRUNE_L0,
      .prune_rate = 0.1}},
    {"lstm f16",
     {.kind = 1,
      .time = 4,
      .layers = 1,
      .width = 8,
      .hidden = 16,
      .heads = 1,
      .block = 8,
      .attention_block = 4,
      .stride = 4,
      .dtype = BSK_F16}},
    {"mlp f32",
     {.kind = 2,
      .time = 1,
      .layers = 1,
      .width = 8,
      .hidden = 16,
      .heads = 1,
      .block = 8,
      .attention_block = 4,
      .stride = 4,
      .dtype = BSK_F32}},
};

/* --- The file, read by the format's description alone --- */

typedef struct image {
    uint8_t *bytes;
    size_t size;
    size_t numbers, first_name, step, seconds, layouts, tensors; /* where they begin */
} image;

static uint64_t number_at(const image *f, size_t at, int size)
{
    uint64_t value = 0;
    for (int i = 0; i < size; i++)
        value |= (uint64_t)f->bytes[at + (size_t)i] << 8 * i;
    return value;
}

static void number_put(image *f, size_t at, int size, uint64_t value)
{
    for (int i = 0; i < size; i++)
        f->bytes[at + (size_t)i] = (uint8_t)(value >> 8 * i);
}

static void double_put(image *f, size_t at, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    number_put(f, at, 8, bits);
}

/* The value of a number of the config, or with NULL what follows the last one. */
static size_t config_at(const image *f, const char *name)
{
    size_t at = f->first_name;
    for (uint64_t i = 0; i < number_at(f, f->numbers, 4); i++) {
        const size_t length = f->bytes[at];
        if (name && strlen(name) == length && memcmp(f->bytes + at + 1, name, length) == 0)
            return at + 1 + length;
        at += 1 + length + 8;
    }
    return name ? 0 : at;
}

static image image_read(void)
{
    image f = {0};
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END))
        exit(1);
    f.size = (size_t)ftell(file);
    rewind(file);
    f.bytes = check_alloc(f.size);
    if (fread(f.bytes, 1, f.size, file) != f.size)
        exit(1);
    fclose(file);
    f.numbers = 12;
    f.first_name = 16;
    f.step = config_at(&f, NULL);
    f.seconds = f.step + 8;
    f.layouts = f.seconds + 8;
    f.tensors = f.layouts + 4;
    for (uint64_t i = 0; i < number_at(&f, f.layouts, 4); i++)
        f.tensors += 4 + number_at(&f, f.tensors, 4);
    return f;
}

static void image_write(image *f, size_t size)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size - 8; i++)
        h = (h ^ f->bytes[i]) * 0x100000001b3u;
    number_put(f, size - 8, 8, h);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(f->bytes, 1, size, file) != size || fclose(file))
        exit(1);
}

/* --- What a process makes of it --- */

/* What no failure exits with; and how the program ends where memory is limited. */
enum { REFUSED = 42, TOO_LARGE = 1 };

static text_part text_make(void)
{
    text_part part = {check_alloc(TEXT_SIZE * sizeof(uint16_t)), TEXT_SIZE, TEXT_SIZE - TEXT_PAD};
    for (size_t i = 0; i < TEXT_SIZE; i++)
        part.code[i] = i < TEXT_PAD ? TEXT_NONE : (uint16_t)(i * i % 7 + 'a');
    return part;
}

/* Loads it and makes a step with batches as large as the text allows. */
static int child(void)
{
    machine on;
    checkpoint file;
    model m;
    const text_part part = text_make();
    machine_create(&on, "cpu:0");
    if (checkpoint_open(path, on.context, &file) || checkpoint_load(&file, &on, &file.c, &m))
        return REFUSED;
    if ((size_t)m.kind->row_labels(&m.c) < TEXT_SIZE / 2)
        model_step(&m, &part, 1e-4);
    return 0;
}

/* 0: read; REFUSED: with a message; else it gave up, crashed or hung. */
static int outcome(void)
{
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit seconds = {SECONDS, SECONDS};
        setrlimit(RLIMIT_CPU, &seconds);
        if (!freopen("/dev/null", "w", stderr))
            _exit(3);
        _exit(child());
    }
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        exit(1);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void expect(const char *test, const char *what, double value, int got, int good)
{
    passed += good;
    failed += !good;
    if (!good)
        fprintf(stderr, "%s: %s %g: status %d\n", test, what, value, got);
}

/* Writes the image, whose changes must be refused, and undoes them. */
static void refused(const char *test, const char *what, double value, image *f, size_t size,
                    const uint8_t *original)
{
    image_write(f, size);
    const int got = outcome();
    expect(test, what, value, got, got == REFUSED);
    memcpy(f->bytes, original, f->size);
}

static void bad_config(const char *test, int kind, image *f, const uint8_t *original)
{
    const double bad[] = {-1e9, 1e300, NAN, INFINITY};
    const char *name;
    for (int i = 0; (name = config_name(i)); i++)
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            double_put(f, config_at(f, name), bad[k]);
            refused(test, name, bad[k], f, f->size, original);
        }
    // fractions; sizes that the tensors of the file do not have, or that nothing has the memory for
    enum { ALL = 7, BY_TIME = 3, MLP = 4 };
    static const struct {
        const char *name;
        double value;
        int kinds;
    } wrong[] = {{"time", 8.5, ALL},     {"model", 3, ALL},       {"dtype", BSK_F64, ALL},
                 {"width", 24, ALL},     {"hidden", 64, ALL},     {"block", 4, ALL},
                 {"layers", 2, BY_TIME}, {"layers", 40, BY_TIME}, {"time", 1 << 20, BY_TIME},
                 {"buckets", 24, MLP},   {"accumulate", 0, ALL}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (wrong[i].kinds >> kind & 1) {
            double_put(f, config_at(f, wrong[i].name), wrong[i].value);
            refused(test, wrong[i].name, wrong[i].value, f, f->size, original);
        }
    double_put(f, config_at(f, "batch"), 1e6);
    image_write(f, f->size);
    const int got = outcome();
    expect(test, "batch", 1e6, got, got == TOO_LARGE);
    memcpy(f->bytes, original, f->size);
    // a name twice, an unknown one, one number less
    f->bytes[config_at(f, "time") - 1]++;
    refused(test, "unknown name", 0, f, f->size, original);
    memcpy(f->bytes + config_at(f, "steps") - 2, "ed", 2);
    memcpy(f->bytes + config_at(f, "width") - 5, "steps", 5);
    refused(test, "doubled name", 0, f, f->size, original);
    number_put(f, f->numbers, 4, number_at(f, f->numbers, 4) - 1);
    refused(test, "fewer numbers", 0, f, f->size, original);
}

static void bad_counts(const char *test, image *f, const uint8_t *original)
{
    const uint64_t bad[] = {0, 1, 0x7fffffff, 0xffffffff};
    const struct {
        const char *what;
        size_t at;
    } counts[] = {{"version", 8},
                  {"numbers", f->numbers},
                  {"layouts", f->layouts},
                  {"layout bytes", f->layouts + 4},
                  {"tensors", f->tensors},
                  {"type", f->tensors + 4},
                  {"elements", f->tensors + 8}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            number_put(f, counts[i].at, 4, bad[k]);
            refused(test, counts[i].what, (double)bad[k], f, f->size, original);
        }
    number_put(f, f->tensors + 12, 4, 1); // 2^32 elements more
    refused(test, "elements above", 1, f, f->size, original);
    number_put(f, f->step, 8, UINT64_MAX);
    refused(test, "step", -1, f, f->size, original);
    double_put(f, f->seconds, -1);
    refused(test, "seconds", -1, f, f->size, original);
    refused(test, "an element less", 0, f, f->size - 4, original);
    refused(test, "tensors cut", 0, f, f->tensors + 8, original);
}

/* Numbers that no training leaves behind, in every tensor. */
static void bad_elements(const char *test, image *f, const uint8_t *original)
{
    enum { V = 2, SCALE, GOOD, STEPS };
    size_t at = f->tensors + 4;
    for (uint64_t i = 0; i < number_at(f, f->tensors, 4); i++) {
        const bsk_dtype type = (bsk_dtype)number_at(f, at, 4);
        const uint64_t elements = number_at(f, at + 4, 8);
        const int size = (int)bsk_dtype_size(type);
        const size_t last = at + 12 + (size_t)(elements - 1) * (size_t)size;
        const uint64_t infinity = type == BSK_F32    ? 0x7f800000
                                  : type == BSK_BF16 ? 0x7f80
                                  : type == BSK_F16  ? 0x7c00
                                                     : UINT64_MAX;
        number_put(f, last, size, infinity);
        refused(test, "infinity or -1 in tensor", (double)i, f, f->size, original);
        number_put(f, last, size, infinity + 1);
        if (type == BSK_F32 || type == BSK_BF16 || type == BSK_F16)
            refused(test, "NaN in tensor", (double)i, f, f->size, original);
        if (i == V || i == SCALE) {
            number_put(f, last, size, 0xbf800000);
            refused(test, "-1 in tensor", (double)i, f, f->size, original);
        }
        memcpy(f->bytes, original, f->size);
        at += 12 + (size_t)elements * (size_t)size;
    }
}

static void any_bytes(const char *test, image *f, const uint8_t *original, uint64_t seed)
{
    for (uint64_t i = 0; i < SAMPLES; i++) {
        // mostly where the structure is
        const size_t range = i % 4 ? f->tensors + 16 : f->size - 8;
        const size_t at = seed_mix(seed, 2 * i) % range;
        f->bytes[at] ^= (uint8_t)(1 + seed_mix(seed, 2 * i + 1) % 255);
        image_write(f, f->size);
        const int got = outcome();
        expect(test, "byte", (double)at, got, got == 0 || got == REFUSED);
        memcpy(f->bytes, original, f->size);
    }
}

/* A process of its own saves the model, so that this one never starts threads. */
static void model_save(const config *c)
{
    fflush(stdout);
    const pid_t pid = fork();
    int status = -1;
    if (pid == 0) {
        machine on;
        model m;
        const text_part part = text_make();
        machine_create(&on, "cpu:0");
        if (model_declare(&m, &on, c, NULL, 0))
            _exit(1);
        model_allocate(&m);
        for (int i = 0; i < 3; i++)
            model_step(&m, &part, 1e-3);
        _exit(checkpoint_save(path, &m, 1) ? 1 : 0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
        exit(1);
}

int main(void)
{
    close(mkstemp(path));
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        config c = tests[i].c;
        c.context = 3;
        c.buckets_log2 = 4;
        c.batch = 2;
        c.accumulate = c.seed = 1;
        c.density = 0.5;
        c.steps = 10;
        c.lr = 1e-3;
        model_save(&c);
        image f = image_read();
        uint8_t *original = check_alloc(f.size);
        memcpy(original, f.bytes, f.size);
        image_write(&f, f.size);
        const int got = outcome();
        expect(tests[i].name, "unchanged", 0, got, got == 0);
        memcpy(f.bytes, original, f.size);
        bad_config(tests[i].name, c.kind, &f, original);
        bad_counts(tests[i].name, &f, original);
        bad_elements(tests[i].name, &f, original);
        any_bytes(tests[i].name, &f, original, i);
        free(original);
        free(f.bytes);
    }
    remove(path);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
