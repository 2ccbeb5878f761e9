/* Tuning records: which entry was the fastest for a problem on a device, as `bsk tune` measured it.
 *
 * A record counts for its device (name and driver), this version of the library, and problems of
 * the same description: types, shapes, strides and choices, with the layout's size, blocks and
 * density, and whether runs bring packed weights. It only says which of the accepting entries to
 * prefer, so a wrong record costs time and nothing else. The file is untrusted all the same: one that
 * is not a regular file of the process's own user, that others can write, or that does not parse,
 * counts as absent. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "api/src/internal.h"
#include "common/parents.h"

enum { MAX_FILE = 4 << 20, MAX_RECORDS = 8192, FORMAT = 1 };

/* --- Keys ------------------------------------------------------------------------------------- */

/* FNV-1a, over the bytes of a number in a fixed order. */
static uint64_t mix(uint64_t hash, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        hash = (hash ^ (v >> (8 * i) & 0xff)) * 0x100000001b3;
    return hash;
}

static uint64_t mix_text(uint64_t hash, const char *text)
{
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3;
    return mix(hash, 0);
}

/* An axis that never counts blocks: the last two of more than one. */
static bool element_axis(const bsk_tensor *t, int axis)
{
    return t->rank > 1 && axis + 2 >= t->rank;
}

/* nnz: kept blocks, or -1. They count roughly, by bski_tuning_key: an axis of as many is left out, and
 * so are strides of contiguous tensors, which follow from the sizes. */
static uint64_t mix_tensor(uint64_t hash, const bsk_tensor *t, int64_t nnz)
{
    hash = mix(hash, (uint64_t)t->dtype);
    if (t->dtype == BSK_NONE)
        return hash;
    hash = mix(hash, (uint64_t)t->rank);
    for (int i = 0; i < t->rank; i++)
        hash = mix(hash, (uint64_t)(t->dims[i] == nnz && !element_axis(t, i) ? -1 : t->dims[i]));
    if (!bski_is_contiguous(t, 0))
        for (int i = 0; i < t->rank; i++)
            hash = mix(hash, (uint64_t)t->strides[i]);
    return hash;
}

uint64_t bski_tuning_key(const bsk_problem *problem)
{
    const bski_op_info *op = bski_kernel_op(problem->op);
    const bsk_layout_tables *l = problem->layout;
    uint64_t hash = mix_text(0xcbf29ce484222325, op->name);
    for (int i = 0; i < op->arg_count; i++)
        hash = mix_tensor(hash, bski_arg_tensor(op, problem->params, i), l ? l->nnz : -1);
    for (int i = 0; i < op->attr_count; i++) {
        uint64_t bits;
        double v = bski_field_value(&op->attrs[i], problem->params);
        memcpy(&bits, &v, sizeof(bits));
        hash = mix(hash, bits);
    }
    if (problem->packed)
        hash = mix(hash, 1);
    if (!l)
        return hash;
    hash = mix(mix(hash, (uint64_t)l->rows), (uint64_t)l->cols);
    hash = mix(mix(hash, (uint64_t)l->block_rows), (uint64_t)l->block_cols);
    /* Steps of a sixteenth of an octave: patterns that grow and shrink keep their record. */
    return mix(mix(hash, (uint64_t)l->heads),
               l->nnz ? (uint64_t)lround(16 * log2((double)l->nnz)) : UINT64_MAX);
}

/* Name and driver of a device, without what separates fields. */
static void device_text(const bsk_device *d, char out[BSKI_TUNING_DEVICE])
{
    snprintf(out, BSKI_TUNING_DEVICE, "%s, %s", d->props.name, d->props.driver);
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < ' ')
            *p = ' ';
}

const char *bski_tuning_find(const bsk_device *device, const bsk_problem *problem)
{
    const bski_tuning *t = &device->context->tuning;
    if (!t->count)
        return NULL;
    char name[BSKI_TUNING_DEVICE];
    device_text(device, name);
    const uint64_t key = bski_tuning_key(problem);
    for (size_t i = 0; i < t->count; i++)
        if (t->records[i].key == key && !strcmp(t->records[i].device, name))
            return t->records[i].entry;
    return NULL;
}

/* --- The file --------------------------------------------------------------------------------- */

/* A number with a point, whatever the locale of the program has. False for other texts. */
static bool parse_number(const char *text, double *value)
{
    static const char digits[] = "0123456789";
    const size_t whole = strspn(text, digits), point = text[whole] == '.';
    const size_t part = point ? strspn(text + whole + 1, digits) : 0;
    double unit = 1;
    *value = 0;
    for (size_t i = 0; i < whole; i++)
        *value = 10 * *value + (text[i] - '0');
    for (size_t i = 0; i < part; i++)
        *value += (unit /= 10) * (text[whole + 1 + i] - '0');
    return whole > 0 && !text[whole + point + part];
}

/* A line: device, key, entry and microseconds, separated by tabs. */
static bool parse_line(char *line, bski_tuning_record *r)
{
    char *field[4] = {line};
    for (int i = 1; i < 4; i++) {
        char *tab = strchr(field[i - 1], '\t');
        if (!tab)
            return false;
        *tab = 0;
        field[i] = tab + 1;
    }
    memset(r, 0, sizeof(*r));
    if (strlen(field[0]) >= sizeof(r->device) || strlen(field[1]) != 16 || !*field[2] ||
        strlen(field[2]) >= sizeof(r->entry))
        return false;
    strcpy(r->device, field[0]);
    strcpy(r->entry, field[2]);
    if (strspn(field[1], "0123456789abcdef") != 16)
        return false;
    r->key = strtoull(field[1], NULL, 16);
    return parse_number(field[3], &r->microseconds) && r->microseconds > 0 &&
           isfinite(r->microseconds);
}

static void heading(char *out, size_t size)
{
    snprintf(out, size, "bsk tuning %d for %s", FORMAT, bsk_version());
}

/* Whether only the process's own user can have written the file. */
static bool is_private(int file, off_t *bytes)
{
    struct stat s;
    if (fstat(file, &s) || !S_ISREG(s.st_mode) || s.st_uid != geteuid() ||
        s.st_mode & (S_IWGRP | S_IWOTH) || s.st_size < 0 || s.st_size > MAX_FILE)
        return false;
    *bytes = s.st_size;
    return true;
}

/* `bytes` of an open file into text, or fewer if it ends before, and a zero. */
static bool read_bytes(int file, char *text, off_t bytes)
{
    ssize_t got = 1;
    off_t at = 0;
    while (got > 0 && at < bytes) {
        got = read(file, text + at, (size_t)(bytes - at));
        at += got > 0 ? got : 0;
    }
    text[at] = 0;
    return got >= 0;
}

/* The whole file with a zero at its end; NULL if it is absent or cannot be trusted. */
static bsk_status read_file(const bsk_context *c, const char *path, char **text)
{
    *text = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    off_t bytes = 0;
    bsk_status status = BSK_OK;
    if (file < 0)
        return BSK_OK;
    if (!is_private(file, &bytes))
        bski_log(c, BSK_LOG_WARN, "%s: not a private regular file of at most %d bytes; ignored",
                 path, MAX_FILE);
    else if (!(*text = bski_alloc(&c->allocator, (size_t)bytes + 1)))
        status = bski_fail(BSK_E_NOMEM, "no memory for tuning records");
    else if (!read_bytes(file, *text, bytes))
        status = BSK_E_INVALID;
    close(file);
    if (status) {
        bski_free(&c->allocator, *text);
        *text = NULL;
    }
    return status;
}

static bsk_status parse_text(const bsk_context *c, char *text, bski_tuning *t)
{
    char first[80];
    heading(first, sizeof(first));
    char *rest = strchr(text, '\n');
    if (!rest)
        return BSK_OK;
    *rest++ = 0;
    if (strcmp(text, first)) {
        bski_log(c, BSK_LOG_INFO, "tuning records of another version are ignored");
        return BSK_OK;
    }
    size_t lines = 0;
    for (const char *p = rest; *p && lines < MAX_RECORDS; p++)
        lines += *p == '\n';
    t->records = bski_calloc(&c->allocator, (lines + 1) * sizeof(*t->records));
    if (!t->records)
        return bski_fail(BSK_E_NOMEM, "no memory for tuning records");
    for (char *line = rest, *end; t->count < lines && (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        t->count += parse_line(line, &t->records[t->count]);
    }
    return BSK_OK;
}

/* The records of the file into t, which is empty. BSK_E_INVALID, without a message, if it cannot be
 * read. */
static bsk_status load_file(const bsk_context *c, bski_tuning *t)
{
    char *text;
    BSKI_TRY(read_file(c, c->settings.tuning, &text));
    bsk_status status = text ? parse_text(c, text, t) : BSK_OK;
    bski_free(&c->allocator, text);
    return status;
}

bsk_status bski_tuning_load(bsk_context *c)
{
    bsk_status status = c->settings.tuning ? load_file(c, &c->tuning) : BSK_OK;
    if (status != BSK_E_INVALID)
        return status;
    bski_log(c, BSK_LOG_WARN, "%s: cannot be read; ignored", c->settings.tuning);
    return BSK_OK;
}

static void free_records(const bsk_context *c, bski_tuning *t)
{
    bski_free(&c->allocator, t->records);
    *t = (bski_tuning){0};
}

void bski_tuning_free(bsk_context *c)
{
    free_records(c, &c->tuning);
}

/* Drops the oldest record that this context has not measured itself, if there is one. */
static bool drop_record(bski_tuning *t)
{
    size_t i = 0;
    while (i < t->count && t->records[i].fresh)
        i++;
    if (i == t->count)
        return false;
    memmove(t->records + i, t->records + i + 1, (t->count - i - 1) * sizeof(*t->records));
    t->count--;
    return true;
}

/* Adds a record, or puts it in the place of that of the same problem. */
static bsk_status put_record(const bsk_context *c, bski_tuning *t, const bski_tuning_record *r)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->records[i].key == r->key && !strcmp(t->records[i].device, r->device)) {
            t->records[i] = *r;
            return BSK_OK;
        }
    if (t->count == MAX_RECORDS && !drop_record(t))
        return bski_fail(BSK_E_UNSUPPORTED, "tuning: there are %d records; no more are legal",
                         MAX_RECORDS);
    bski_tuning_record *grown =
        c->allocator.resize(c->allocator.user, t->records, (t->count + 1) * sizeof(*grown));
    if (!grown)
        return bski_fail(BSK_E_NOMEM, "no memory for tuning records");
    t->records = grown;
    t->records[t->count++] = *r;
    return BSK_OK;
}

bsk_status bski_tuning_put(const bsk_device *device, const bsk_problem *problem, const char *entry,
                           double microseconds)
{
    bsk_context *c = device->context;
    bski_tuning_record r = {
        .key = bski_tuning_key(problem), .microseconds = microseconds, .fresh = true};
    device_text(device, r.device);
    snprintf(r.entry, sizeof(r.entry), "%s", entry);
    return put_record(c, &c->tuning, &r);
}

static bool write_records(const bski_tuning *t, FILE *f)
{
    char first[80];
    heading(first, sizeof(first));
    bool good = fprintf(f, "%s\n", first) > 0;
    for (size_t i = 0; i < t->count; i++) {
        const bski_tuning_record *r = &t->records[i];
        const int64_t nanoseconds = llround(fmin(fmax(1000 * r->microseconds, 1), 1e15));
        good &= fprintf(f, "%s\t%016" PRIx64 "\t%s\t%" PRId64 ".%03d\n", r->device, r->key,
                        r->entry, nanoseconds / 1000, (int)(nanoseconds % 1000)) > 0;
    }
    return good;
}

/* Through a file beside it, so that readers see the old records or the new ones. */
static bsk_status write_file(const char *path, const bski_tuning *t)
{
    char fresh[4096];
    if ((size_t)snprintf(fresh, sizeof(fresh), "%s.XXXXXX", path) >= sizeof(fresh))
        return bski_fail(BSK_E_INVALID, "tuning: the path %s is too long", path);
    int file = mkstemp(fresh);
    if (file < 0)
        return bski_fail(BSK_E_INVALID, "tuning: %s: %s", fresh, strerror(errno));
    fcntl(file, F_SETFD, FD_CLOEXEC);
    FILE *f = fdopen(file, "w");
    bool good = f && write_records(t, f);
    if (f)
        good &= !fclose(f);
    else
        close(file);
    if (good && !rename(fresh, path))
        return BSK_OK;
    bsk_status status = bski_fail(BSK_E_INVALID, "tuning: %s: %s", path, strerror(errno));
    unlink(fresh);
    return status;
}

/* Locks the directory of a file, which it makes if need be, until the result is closed; -1 where that
 * can't be, as on some file systems, or takes more than a second: then who saves last wins. */
static int lock_directory(const char *path)
{
    enum { TURNS = 100 };
    static const struct timespec turn = {.tv_nsec = 10 * 1000 * 1000};
    char above[4096];
    if ((size_t)snprintf(above, sizeof(above), "%s", path) >= sizeof(above))
        return -1;
    bski_make_parents(above);
    char *end = strrchr(above, '/'); /* paths are absolute */
    end[end == above] = 0;
    int directory = open(above, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < TURNS && directory >= 0; i++) {
        if (!flock(directory, LOCK_EX | LOCK_NB))
            return directory;
        nanosleep(&turn, NULL);
    }
    if (directory >= 0)
        close(directory);
    return -1;
}

/* What others have saved meanwhile stays, but for the problems of this context's own records. */
bsk_status bski_tuning_save(const bsk_context *c)
{
    const char *path = c->settings.tuning;
    bski_tuning all = {0};
    if (!path)
        return bski_fail(BSK_E_INVALID, "tuning: BSK_TUNING is off or there is no cache directory");
    const int directory = lock_directory(path);
    bsk_status status = load_file(c, &all);
    if (status == BSK_E_INVALID)
        bski_fail(status, "tuning: %s cannot be read", path);
    for (size_t i = 0; i < c->tuning.count && !status; i++)
        if (c->tuning.records[i].fresh)
            status = put_record(c, &all, &c->tuning.records[i]);
    if (!status)
        status = write_file(path, &all);
    free_records(c, &all);
    if (directory >= 0)
        close(directory);
    return status;
}
