#include "weights_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

static const char magic[8] = {'B', 'S', 'K', 'T', 'E', 'X', 'T', '\n'};
enum { VERSION = 1, MAX_HIDDEN = 1 << 14, MAX_LAYOUT_BYTES = 1 << 28 };
static const size_t max_file = (size_t)1 << 31;

static uint64_t fnv1a(const uint8_t *bytes, size_t size)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        h = (h ^ bytes[i]) * 0x100000001b3u;
    return h;
}

/* --- Writing: into memory first, so that a full disk leaves no half-written file behind. --- */

typedef struct writer {
    uint8_t *bytes;
    size_t size, room;
} writer;

static void put_bytes(writer *w, const void *bytes, size_t size)
{
    if (size > w->room - w->size) {
        w->room = 2 * w->room + size;
        w->bytes = realloc(w->bytes, w->room);
        if (!w->bytes) {
            fprintf(stderr, "textmodel: out of memory\n");
            exit(1);
        }
    }
    memcpy(w->bytes + w->size, bytes, size);
    w->size += size;
}

static void put_uint(writer *w, uint64_t value, int size)
{
    uint8_t bytes[8];
    for (int i = 0; i < size; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
    put_bytes(w, bytes, (size_t)size);
}

static void put_tensor(writer *w, model *m, bsk_mem memory, size_t count)
{
    float *values = check_alloc(count * sizeof *values);
    CHECK(bsk_mem_download(m->queue, values, memory, count * sizeof *values));
    CHECK(bsk_queue_sync(m->queue));
    put_uint(w, count, 8);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        put_uint(w, bits, 4);
    }
    free(values);
}

static int write_file(const char *path, const writer *w)
{
    FILE *file = fopen(path, "wb");
    int failed = !file || fwrite(w->bytes, 1, w->size, file) != w->size;
    if (file && fclose(file))
        failed = 1;
    if (failed)
        fprintf(stderr, "textmodel: %s: %s\n", path, strerror(errno));
    return failed ? -1 : 0;
}

int weights_save(const char *path, model *m, const alphabet *a)
{
    const model_shape *s = &m->shape;
    writer w = {NULL, 0, 0};
    put_bytes(&w, magic, sizeof magic);
    const int fields[] = {VERSION,  s->input.context, s->input.buckets_log2, s->width, s->hidden,
                          s->block, a->escape};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        put_uint(&w, (uint32_t)fields[i], 4);
    uint64_t bits;
    memcpy(&bits, &s->density, sizeof bits);
    put_uint(&w, bits, 8);
    put_bytes(&w, a->byte_of, (size_t)a->escape);
    for (int i = 0; i < LAYERS; i++) {
        size_t bytes = 0;
        CHECK(bsk_layout_serialize(m->layers[i].layout, NULL, &bytes));
        void *data = check_alloc(bytes);
        CHECK(bsk_layout_serialize(m->layers[i].layout, data, &bytes));
        put_uint(&w, bytes, 4);
        put_bytes(&w, data, bytes);
        free(data);
    }
    put_tensor(&w, m, m->weights.value, m->weights.count);
    put_tensor(&w, m, m->table.value, m->table.count);
    put_uint(&w, fnv1a(w.bytes, w.size), 8);
    const int result = write_file(path, &w);
    free(w.bytes);
    return result;
}

/* --- Reading --- */

static size_t bytes_left(const weights_file *f)
{
    return f->size - f->at;
}

/* The next `size` bytes, or NULL. */
static const uint8_t *get_bytes(weights_file *f, size_t size)
{
    if (size > bytes_left(f))
        return NULL;
    f->at += size;
    return f->bytes + f->at - size;
}

static int get_uint(weights_file *f, int size, uint64_t *value)
{
    const uint8_t *bytes = get_bytes(f, (size_t)size);
    if (!bytes)
        return -1;
    *value = 0;
    for (int i = 0; i < size; i++)
        *value |= (uint64_t)bytes[i] << 8 * i;
    return 0;
}

static int get_int(weights_file *f, int low, int high, int *value)
{
    uint64_t v;
    if (get_uint(f, 4, &v) || v > INT32_MAX || (int)v < low || (int)v > high)
        return -1;
    *value = (int)v;
    return 0;
}

static int read_file(const char *path, weights_file *f)
{
    FILE *file = fopen(path, "rb");
    long end = -1;
    if (file && fseek(file, 0, SEEK_END) == 0 && (end = ftell(file)) >= 0)
        rewind(file);
    if (end < 0 || (size_t)end > max_file) {
        fprintf(stderr, "textmodel: %s: %s\n", path, end < 0 ? strerror(errno) : "too large");
        if (file)
            fclose(file);
        return -1;
    }
    f->bytes = check_alloc((size_t)end);
    f->size = fread(f->bytes, 1, (size_t)end, file);
    fclose(file);
    return 0;
}

static int get_header(weights_file *f)
{
    int version;
    const uint8_t *start = get_bytes(f, sizeof magic);
    if (!start || memcmp(start, magic, sizeof magic) || get_int(f, VERSION, VERSION, &version))
        return -1;
    // The checksum guards against accidents only, so every field is checked as well.
    if (f->size < 8 + f->at)
        return -1;
    const size_t at = f->at;
    uint64_t sum;
    f->at = f->size - 8;
    if (get_uint(f, 8, &sum) || sum != fnv1a(f->bytes, f->size - 8))
        return -1;
    f->at = at;
    f->size -= 8;

    model_shape *s = &f->shape;
    alphabet *a = &f->known;
    uint64_t bits;
    if (get_int(f, 1, TEXT_PAD / 2, &s->input.context) ||
        get_int(f, 1, 24, &s->input.buckets_log2) || get_int(f, 1, 1024, &s->width) ||
        get_int(f, 1, MAX_HIDDEN, &s->hidden) || get_int(f, 1, 1024, &s->block) ||
        get_int(f, 1, 256, &a->escape) || get_uint(f, 8, &bits))
        return -1;
    memcpy(&s->density, &bits, sizeof bits);
    const uint8_t *bytes = get_bytes(f, (size_t)a->escape);
    if (!bytes || !(s->density > 0 && s->density <= 1))
        return -1;
    for (int b = 0; b < 256; b++)
        a->class_of[b] = (uint16_t)a->escape;
    for (int c = 0; c < a->escape; c++) {
        if (a->class_of[bytes[c]] != a->escape)
            return -1;
        a->class_of[bytes[c]] = (uint16_t)c;
        a->byte_of[c] = bytes[c];
    }
    s->classes = alphabet_classes(a);
    s->input.codes = s->classes + 1;
    return 0;
}

static int get_layouts(weights_file *f, bsk_context *context)
{
    const model_shape *s = &f->shape;
    const int64_t inputs = (int64_t)features_count(&s->input) * s->width;
    const int64_t rows[LAYERS] = {inputs, s->hidden, 2 * (int64_t)s->hidden};
    const int64_t cols[LAYERS] = {s->hidden, s->hidden, s->classes};
    double floats = (double)features_rows(&s->input) * s->width;
    for (int i = 0; i < LAYERS; i++) {
        uint64_t size;
        const uint8_t *data = get_uint(f, 4, &size) == 0 && size <= MAX_LAYOUT_BYTES
                                  ? get_bytes(f, (size_t)size)
                                  : NULL;
        if (!data)
            return -1;
        // The library trusts no byte of this either.
        if (bsk_layout_deserialize(context, data, (size_t)size, &f->layouts[i])) {
            fprintf(stderr, "textmodel: layout %d: %s\n", i, bsk_last_error());
            return -1;
        }
        bsk_layout_info info = BSK_INIT(bsk_layout_info);
        CHECK(bsk_layout_query(f->layouts[i], &info));
        if (info.rows != rows[i] || info.cols != cols[i] || info.heads != 1)
            return -1;
        floats += (double)info.nnz * info.block_rows * info.block_cols;
    }
    // A few bytes must not make the program allocate a large model.
    return (double)bytes_left(f) < floats * sizeof(float) ? -1 : 0;
}

int weights_open(const char *path, bsk_context *context, weights_file *file)
{
    memset(file, 0, sizeof *file);
    if (read_file(path, file))
        return -1;
    if (get_header(file) || get_layouts(file, context)) {
        fprintf(stderr, "textmodel: %s: not a model of this program, or damaged\n", path);
        weights_close(file);
        return -1;
    }
    return 0;
}

static int get_tensor(weights_file *f, model *m, bsk_mem memory, size_t count)
{
    uint64_t stored;
    const uint8_t *bytes = get_uint(f, 8, &stored) == 0 && stored == count
                               ? get_bytes(f, count * sizeof(float))
                               : NULL;
    if (!bytes)
        return -1;
    float *values = check_alloc(count * sizeof *values);
    int finite = 1;
    for (size_t i = 0; i < count; i++, bytes += 4) {
        const uint32_t bits = bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
                              (uint32_t)bytes[3] << 24;
        memcpy(&values[i], &bits, sizeof bits);
        finite &= isfinite(values[i]) != 0;
    }
    if (finite) {
        CHECK(bsk_mem_upload(m->queue, memory, values, count * sizeof *values));
        CHECK(bsk_queue_sync(m->queue));
    }
    free(values);
    return finite ? 0 : -1;
}

int weights_load(weights_file *file, model *m)
{
    if (get_tensor(file, m, m->weights.value, m->weights.count) ||
        get_tensor(file, m, m->table.value, m->table.count) || bytes_left(file)) {
        fprintf(stderr, "textmodel: the weights do not fit the layouts in the file\n");
        return -1;
    }
    return 0;
}

void weights_close(weights_file *file)
{
    free(file->bytes);
    for (int i = 0; i < LAYERS; i++)
        bsk_layout_release(&file->layouts[i]);
    memset(file, 0, sizeof *file);
}
