/* Tuning records: what is saved is found again and decides among the entries that accept; a file
 * that is damaged, of another version or not private changes nothing. */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api/src/internal.h"
#include "unit.h"

enum { GRID = 16, BLOCK = 16, SIZE = GRID * BLOCK };

static char folder[] = "/tmp/bsk-tuning-XXXXXX", path[64], other[64];
static unit_log *lines;

/* A context that reads the records in `path`. */
static bsk_context *open_context(void)
{
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    params.tuning = path;
    params.log = unit_log_line;
    params.log_user = lines;
    params.log_level = BSK_LOG_INFO;
    CHECK_OK(bsk_context_create(&params, &context));
    return context;
}

/* Keeps that many of 256 blocks. */
static bsk_layout *make_layout(int kept)
{
    uint8_t mask[GRID * GRID];
    for (int i = 0; i < GRID * GRID; i++)
        mask[i] = i * 37 % (GRID * GRID) < kept;
    bsk_layout_params params = BSK_INIT(bsk_layout_params);
    params.rows = params.cols = SIZE;
    params.block_rows = params.block_cols = BLOCK;
    bsk_layout *layout = NULL;
    CHECK_OK(bsk_layout_from_mask(NULL, &params, mask, &layout));
    return layout;
}

/* A product with n rows of activations. packed: as the plan's option. */
static bsk_plan *make_plan(bsk_context *context, int64_t n, int kept, int32_t packed)
{
    bsk_layout *layout = make_layout(kept);
    bsk_plan *plan = NULL;
    bsk_matmul_params params = BSK_INIT(bsk_matmul_params);
    params.layout = layout;
    params.x = bsk_tensor_2d(BSK_F32, n, SIZE);
    params.w = bsk_tensor_3d(BSK_F32, kept, BLOCK, BLOCK);
    params.y = bsk_tensor_2d(BSK_F32, n, SIZE);
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    options.packed = packed;
    CHECK_OK(bsk_matmul_plan(bsk_context_device(context, 0), &params, &options, &plan));
    bsk_layout_release(&layout);
    return plan;
}

static void check_plan(bsk_context *context, int64_t n, int kept, int32_t packed, const char *entry,
                       bool same)
{
    bsk_plan *plan = make_plan(context, n, kept, packed);
    CHECK((strcmp(plan->entry->name, entry) == 0) == same);
    bsk_plan_destroy(&plan);
}

static void check_entry(bsk_context *context, int64_t n, int kept, const char *entry, bool same)
{
    check_plan(context, n, kept, 0, entry, same);
}

static void write_text(const char *text, mode_t mode)
{
    FILE *f = fopen(path, "w");
    if (!CHECK(f))
        return;
    fputs(text, f);
    fclose(f);
    CHECK(!chmod(path, mode));
}

/* With tuned entries the reference is never the first choice, so that a record of it is seen. */
#define RECORDED "ref_dsd"
#ifdef UNIT_CPU_TUNED
enum { BY_DEFAULT = 0 };
#else
enum { BY_DEFAULT = 1 };
#endif

static void test_round_trip(void)
{
    bsk_context *context = open_context();
    CHECK(context->tuning.count == 0);
    check_entry(context, 64, 128, RECORDED, BY_DEFAULT);
    bsk_plan *plan = make_plan(context, 64, 128, 0);
    const bsk_device *device = bsk_context_device(context, 0);
    CHECK_OK(bski_tuning_put(device, &plan->problem, "dsd_first_try", 12.5));
    CHECK_OK(bski_tuning_put(device, &plan->problem, RECORDED, 10.25));
    CHECK(context->tuning.count == 1);
    CHECK_OK(bski_tuning_save(context));
    bsk_plan_destroy(&plan);
    bsk_context_destroy(&context);

    struct stat s;
    CHECK(!stat(path, &s) && (s.st_mode & 0777) == 0600);
    context = open_context();
    CHECK(context->tuning.count == 1);
    check_entry(context, 64, 128, RECORDED, true);
    /* Another N or a far density is another problem; a near density is the same. */
    check_entry(context, 65, 128, RECORDED, BY_DEFAULT);
    check_entry(context, 64, 64, RECORDED, BY_DEFAULT);
    check_entry(context, 64, 129, RECORDED, true);
    /* So are runs that bring packed weights, which have records of their own. */
    check_plan(context, 64, 128, 1, RECORDED, BY_DEFAULT);
    plan = make_plan(context, 64, 129, 1);
    CHECK_OK(bski_tuning_put(bsk_context_device(context, 0), &plan->problem, RECORDED, 3));
    bsk_plan_destroy(&plan);
    CHECK(context->tuning.count == 2);
    check_plan(context, 64, 128, 1, RECORDED, true);
    bsk_context_destroy(&context);
}

/* Two that tune at a time keep each other's records, and of one problem the last to save wins. */
static void test_together(void)
{
    unlink(path);
    bsk_context *context[2] = {open_context(), open_context()};
    for (int i = 0; i < 2; i++)
        for (int64_t n = 64; n < 67; n += 1 + i) {
            bsk_plan *plan = make_plan(context[i], n, 128, 0);
            CHECK_OK(bski_tuning_put(bsk_context_device(context[i], 0), &plan->problem,
                                     i ? "dsd_second" : "dsd_first", 1));
            bsk_plan_destroy(&plan);
        }
    for (int i = 0; i < 2; i++)
        CHECK_OK(bski_tuning_save(context[i]));
    bsk_context_destroy(&context[0]);
    bsk_context_destroy(&context[1]);
    context[0] = open_context();
    if (CHECK(context[0]->tuning.count == 3))
        for (int i = 0; i < 3; i++)
            CHECK(
                !strcmp(context[0]->tuning.records[i].entry, i == 1 ? "dsd_first" : "dsd_second"));
    bsk_context_destroy(&context[0]);
    unlink(path);
}

/* Who saves waits for another that does: a child that holds the directory sees no file before it lets
 * go. */
static void test_lock(void)
{
    int ready[2], status = -1;
    char byte = 0;
    bsk_context *context = open_context();
    unlink(path);
    if (!CHECK(!pipe(ready)))
        return;
    const pid_t child = fork();
    if (child == 0) {
        static const struct timespec while_held = {.tv_nsec = 50 * 1000 * 1000};
        const int directory = open(folder, O_RDONLY | O_DIRECTORY);
        const bool locked = directory >= 0 && !flock(directory, LOCK_EX);
        if (write(ready[1], &byte, 1) != 1)
            _exit(2);
        nanosleep(&while_held, NULL);
        _exit(locked && access(path, F_OK) ? 0 : 1);
    }
    CHECK(child > 0 && read(ready[0], &byte, 1) == 1);
    CHECK_OK(bski_tuning_save(context));
    CHECK(!access(path, F_OK));
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(ready[0]);
    close(ready[1]);
    bsk_context_destroy(&context);
    unlink(path);
}

/* Numbers of blocks count roughly in all of a problem's tensors: gates and stored scores have them on
 * other axes than weights. */
static void test_near_density(void)
{
    bsk_context *context = open_context();
    const size_t before = context->tuning.count;
    const bsk_device *device = bsk_context_device(context, 0);
    for (int kept = 128; kept < 130; kept++) {
        bsk_layout *layout = make_layout(kept);
        bsk_plan *plan = NULL;
        bsk_matmul_params gated = BSK_INIT(bsk_matmul_params);
        gated.layout = layout;
        gated.x = gated.y = bsk_tensor_2d(BSK_F32, 64, SIZE);
        gated.w = bsk_tensor_3d(BSK_F32, kept, BLOCK, BLOCK);
        gated.gate = bsk_tensor_1d(BSK_F32, kept);
        CHECK_OK(bsk_matmul_plan(device, &gated, NULL, &plan));
        if (kept == 128)
            CHECK_OK(bski_tuning_put(device, &plan->problem, RECORDED, 1));
        else
            CHECK(!strcmp(plan->entry->name, RECORDED));
        bsk_plan_destroy(&plan);

        bsk_attn_scores_params scores = BSK_INIT(bsk_attn_scores_params);
        scores.layout = layout;
        scores.q = scores.k = (bsk_tensor){BSK_F32, 4, {2, 1, SIZE, 8}, {0}};
        scores.s = (bsk_tensor){BSK_F32, 5, {2, 1, kept, BLOCK, BLOCK}, {0}};
        CHECK_OK(bsk_attn_scores_plan(device, &scores, NULL, &plan));
        if (kept == 128)
            CHECK_OK(bski_tuning_put(device, &plan->problem, "ref_attn_scores", 1));
        else
            CHECK(!strcmp(plan->entry->name, "ref_attn_scores"));
        bsk_plan_destroy(&plan);
        bsk_layout_release(&layout);
    }
    CHECK(context->tuning.count == before + 2);
    bsk_context_destroy(&context);
}

/* A record never makes a plan of an entry that is banned or refuses. */
static void test_limits(void)
{
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    params.tuning = path;
    params.fallback = BSK_FALLBACK_FORBID;
#ifdef UNIT_CPU_TUNED
    CHECK_OK(bsk_context_create(&params, &context));
    check_entry(context, 64, 128, RECORDED, false);
    bsk_context_destroy(&context);
    params.fallback = BSK_FALLBACK_ALLOW;
    params.kernels = "-" RECORDED;
    CHECK_OK(bsk_context_create(&params, &context));
    check_entry(context, 64, 128, RECORDED, false);
    bsk_context_destroy(&context);
#endif
    params.fallback = BSK_FALLBACK_ALLOW;
    params.kernels = NULL;
    params.tuning = "off";
    CHECK_OK(bsk_context_create(&params, &context));
    CHECK(context->tuning.count == 0 && !context->settings.tuning);
    CHECK_ERROR(bski_tuning_save(context), BSK_E_INVALID, "BSK_TUNING");
    bsk_context_destroy(&context);
}

/* Changes the saved file and counts the records that are still believed. */
static void check_file(const char *text, mode_t mode, size_t records)
{
    write_text(text, mode);
    bsk_context *context = open_context();
    if (!CHECK(context->tuning.count == records))
        fprintf(stderr, "  %zu records of: %s\n", context->tuning.count, text);
    bsk_context_destroy(&context);
}

static void test_bad_files(void)
{
    char head[64], text[2048];
    snprintf(head, sizeof head, "bsk tuning 1 for %s\n", bsk_version());
#define WITH_HEAD(body) (snprintf(text, sizeof text, "%s%s", head, body), text)
#define GOOD_LINE       "dev\t0123456789abcdef\tentry\t1.5\n"
    check_file(WITH_HEAD(GOOD_LINE), 0600, 1);
    check_file(WITH_HEAD(GOOD_LINE GOOD_LINE), 0644, 2);
    check_file(WITH_HEAD(GOOD_LINE), 0620, 0);
    check_file(WITH_HEAD(GOOD_LINE), 0602, 0);
    check_file("", 0600, 0);
    check_file("bsk tuning 1 for 99.0.0\n" GOOD_LINE, 0600, 0);
    check_file(GOOD_LINE, 0600, 0);
    static const char *const bad_lines[] = {
        "\n",
        "dev\n",
        "dev\t0123456789abcdef\tentry\n",
        "dev\t0123456789abcde\tentry\t1\n",
        "dev\t0123456789abcdeg\tentry\t1\n",
        "dev\t0123456789abcdef\t\t1\n",
        "dev\t0123456789abcdef\tentry\tfast\n",
        "dev\t0123456789abcdef\tentry\t-1\n",
        "dev\t0123456789abcdef\tentry\tinf\n",
        "dev\t0123456789abcdef\tentry\t1", /* cut off */
    };
    for (size_t i = 0; i < UNIT_COUNT(bad_lines); i++) {
        snprintf(text, sizeof text, "%s" GOOD_LINE "%s", head, bad_lines[i]);
        check_file(text, 0600, 1);
    }
    /* Fields longer than a record has room for. */
    for (int field = 0; field < 2; field++) {
        char longest[400];
        memset(longest, 'x', sizeof longest - 1);
        longest[sizeof longest - 1] = 0;
        snprintf(text, sizeof text, "%s%s\t0123456789abcdef\t%s\t1\n", head,
                 field ? "dev" : longest, field ? longest : "entry");
        check_file(text, 0600, 0);
    }
    /* Not a regular file; a link to one; no file. */
    unlink(path);
    CHECK(!mkdir(path, 0700));
    bsk_context *context = open_context();
    CHECK(context->tuning.count == 0);
    bsk_context_destroy(&context);
    rmdir(path);
    write_text(WITH_HEAD(GOOD_LINE), 0600);
    CHECK(!rename(path, other) && !symlink(other, path));
    context = open_context();
    CHECK(context->tuning.count == 0);
    bsk_context_destroy(&context);
    unlink(path);
    unlink(other);
    context = open_context();
    CHECK(context->tuning.count == 0);
    bsk_context_destroy(&context);
}

/* In place of the system's: a disk that fails after so many bytes; negative: never. */
static ssize_t read_left = -1;

ssize_t read(int file, void *buffer, size_t bytes)
{
    if (read_left == 0) {
        errno = EIO;
        return -1;
    }
    if (read_left > 0 && bytes > (size_t)read_left)
        bytes = (size_t)read_left;
    const ssize_t got = readv(file, &(struct iovec){buffer, bytes}, 1);
    if (read_left > 0 && got > 0)
        read_left -= got;
    return got;
}

/* What cannot be read counts as absent, and is not written over. */
static void test_read_error(void)
{
    char text[256];
    snprintf(text, sizeof text, "bsk tuning 1 for %s\n%s%s", bsk_version(), GOOD_LINE, GOOD_LINE);
    const size_t lengths[] = {0, 1, strlen(text) - 3};
    for (size_t i = 0; i < UNIT_COUNT(lengths); i++) {
        write_text(text, 0600);
        bsk_context_params params = unit_params();
        bsk_context *context = NULL;
        params.tuning = path;
        read_left = (ssize_t)lengths[i];
        CHECK_OK(bsk_context_create(&params, &context));
        CHECK(context && context->tuning.count == 0);
        read_left = (ssize_t)lengths[i];
        CHECK_ERROR(bski_tuning_save(context), BSK_E_INVALID, "cannot be read");
        read_left = -1;
        bsk_context_destroy(&context);
        context = open_context();
        CHECK(context->tuning.count == 2 || context->tuning.count == 1);
        bsk_context_destroy(&context);
    }
    unlink(path);
}

/* Records are the same file in a program whose numbers have a decimal comma. */
static void test_locale(void)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    for (size_t i = 0; i < UNIT_COUNT(names); i++)
        if (setlocale(LC_NUMERIC, names[i]))
            break;
    if (strcmp(localeconv()->decimal_point, ",")) {
        atomic_fetch_add(&unit_skipped, 1);
        setlocale(LC_NUMERIC, "C");
        return;
    }
    char text[256];
    snprintf(text, sizeof text, "bsk tuning 1 for %s\n" GOOD_LINE, bsk_version());
    check_file(text, 0600, 1);
    bsk_context *context = open_context();
    CHECK(context->tuning.count == 1 && context->tuning.records[0].microseconds == 1.5);
    CHECK_OK(bski_tuning_save(context));
    bsk_context_destroy(&context);
    setlocale(LC_NUMERIC, "C");
    context = open_context();
    CHECK(context->tuning.count == 1 && context->tuning.records[0].microseconds == 1.5);
    bsk_context_destroy(&context);
    unlink(path);
}

/* Any number of records that is legal, with names as long as they may be and with any times. */
static void test_full(void)
{
    enum { MOST = 8192 };
    bsk_context *context = open_context();
    bski_tuning *t = &context->tuning;
    t->records = calloc(MOST, sizeof *t->records);
    if (CHECK(t->records)) {
        t->count = MOST;
        for (size_t i = 0; i < MOST; i++) {
            bski_tuning_record *r = &t->records[i];
            r->key = i;
            r->microseconds = i % 3 == 0 ? 1e30 : i % 3 == 1 ? 1e-9 : 1.5;
            memset(r->device, 'd', sizeof r->device - 1);
            memset(r->entry, 'e', sizeof r->entry - 1);
            r->fresh = true;
        }
        CHECK_OK(bski_tuning_save(context));
    }
    bsk_context_destroy(&context);
    context = open_context();
    CHECK(context->tuning.count == MOST);
    /* One more takes the place of the oldest that was read. */
    bsk_plan *plan = make_plan(context, 64, 128, 0);
    CHECK_OK(bski_tuning_put(bsk_context_device(context, 0), &plan->problem, RECORDED, 1));
    CHECK(context->tuning.count == MOST && context->tuning.records[0].key == 1);
    check_entry(context, 64, 128, RECORDED, true);
    bsk_plan_destroy(&plan);
    /* Of those of this context none gives way. */
    for (size_t i = 0; i < MOST; i++)
        context->tuning.records[i].fresh = true;
    plan = make_plan(context, 65, 128, 0);
    CHECK_ERROR(bski_tuning_put(bsk_context_device(context, 0), &plan->problem, RECORDED, 1),
                BSK_E_UNSUPPORTED, "8192");
    bsk_plan_destroy(&plan);
    bsk_context_destroy(&context);
    unlink(path);
}

/* In a directory that is yet to be made, beside what a process of the same number left behind. */
static void test_places(void)
{
    char deep[256], left[320];
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    snprintf(deep, sizeof deep, "%s/a/b/tuning", folder);
    snprintf(left, sizeof left, "%s.%ld", deep, (long)getpid());
    params.tuning = deep;
    CHECK_OK(bsk_context_create(&params, &context));
    CHECK_OK(bski_tuning_save(context));
    FILE *f = fopen(left, "w");
    CHECK(f && !fclose(f));
    CHECK_OK(bski_tuning_save(context));
    bsk_context_destroy(&context);
    CHECK(!unlink(left) && !unlink(deep));
    for (int level = 0; level < 2; level++) {
        *strrchr(deep, '/') = 0;
        CHECK(!rmdir(deep)); /* with nothing else in it */
    }
}

int main(void)
{
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/tuning", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    lines = unit_log_new();
    test_round_trip();
    test_near_density();
    test_together();
    test_lock();
    test_limits();
    test_bad_files();
    test_read_error();
    test_locale();
    test_full();
    test_places();
    unit_log_free(lines);
    rmdir(folder);
    return unit_report();
}
