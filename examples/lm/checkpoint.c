#include "checkpoint.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static const char magic[8] = {'B', 'S', 'K', 'L', 'M', '\r', '\n', 0};
enum { VERSION = 2, MAX_LAYOUT_BYTES = 1 << 28, MAX_NAME = 64 };
/* Device memory that any file may ask for, and then so much for each of its bytes. */
enum { MODEST_BYTES = 1 << 30, BATCH_SHARE = 1024 };

static uint64_t fnv1a(const uint8_t *bytes, size_t size)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        h = (h ^ bytes[i]) * 0x100000001b3u;
    return h;
}

/* The tensors of a model in the order of the file. Returns 0, or -1 past the end. */
static int state_get(const model *m, int i, param_state *state)
{
    int arrays = 0;
    while (params_state(&m->p, arrays, state) == 0)
        if (arrays++ == i)
            return 0;
    if (i - arrays >= m->train.states)
        return -1;
    *state = (param_state){&m->train.state[i - arrays], -INFINITY, INFINITY};
    return 0;
}

static int state_count(const model *m)
{
    int count = 0;
    for (param_state s; state_get(m, count, &s) == 0;)
        count++;
    return count;
}

/* --- Writing: into memory first, then beside the file that is there. --- */

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
            fprintf(stderr, "lm: out of memory\n");
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

static void put_double(writer *w, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_uint(w, bits, 8);
}

static int host_is_little(void)
{
    const uint16_t one = 1;
    uint8_t first;
    memcpy(&first, &one, 1);
    return first;
}

/* Elements to the order of the file, or back. */
static void elements_swap(uint8_t *bytes, size_t count, size_t size)
{
    if (host_is_little())
        return;
    for (size_t i = 0; i < count; i++, bytes += size)
        for (size_t k = 0; k < size / 2; k++) {
            const uint8_t t = bytes[k];
            bytes[k] = bytes[size - 1 - k];
            bytes[size - 1 - k] = t;
        }
}

static void put_config(writer *w, const config *c)
{
    const char *name;
    uint32_t numbers = 0;
    while (config_name((int)numbers))
        numbers++;
    put_uint(w, numbers, 4);
    for (int i = 0; (name = config_name(i)); i++) {
        put_uint(w, strlen(name), 1);
        put_bytes(w, name, strlen(name));
        put_double(w, config_get(c, name));
    }
}

static void put_layouts(writer *w, const model *m)
{
    uint32_t count = 0;
    for (int i = 0; i < m->p.count; i++)
        count += m->p.list[i].layout != NULL;
    put_uint(w, count, 4);
    for (int i = 0; i < m->p.count; i++) {
        const bsk_layout *layout = m->p.list[i].layout;
        if (!layout)
            continue;
        size_t bytes = 0;
        CHECK(bsk_layout_serialize(layout, NULL, &bytes));
        void *data = check_alloc(bytes);
        CHECK(bsk_layout_serialize(layout, data, &bytes));
        put_uint(w, bytes, 4);
        put_bytes(w, data, bytes);
        free(data);
    }
}

/* Element i of an array of any type that states have. */
static double element(const uint8_t *values, size_t i, bsk_dtype type)
{
    uint16_t half;
    uint32_t bits;
    float single;
    double exact;
    int32_t whole;
    int64_t large;
    switch (type) {
    case BSK_F64:
        memcpy(&exact, values + i * sizeof exact, sizeof exact);
        return exact;
    case BSK_F32:
        memcpy(&single, values + i * sizeof single, sizeof single);
        return single;
    case BSK_BF16:
        memcpy(&half, values + i * sizeof half, sizeof half);
        bits = (uint32_t)half << 16;
        memcpy(&single, &bits, sizeof single);
        return single;
    case BSK_F16: // only whether it is finite, and the sign
        memcpy(&half, values + i * sizeof half, sizeof half);
        exact = (half & 0x7c00) == 0x7c00 ? INFINITY : half & 0x7fff;
        return half & 0x8000 ? -exact : exact;
    case BSK_I32:
        memcpy(&whole, values + i * sizeof whole, sizeof whole);
        return whole;
    case BSK_I64:
        memcpy(&large, values + i * sizeof large, sizeof large);
        return (double)large;
    default:
        return NAN;
    }
}

static int all_legal(const uint8_t *values, size_t count, const param_state *s)
{
    for (size_t i = 0; i < count; i++) {
        const double x = element(values, i, s->tensor->desc.dtype);
        if (!isfinite(x) || x < s->low || x > s->high)
            return 0;
    }
    return 1;
}

/* -1: numbers that no checkpoint may have. */
static int put_tensor(writer *w, model *m, const param_state *s)
{
    const tensor *t = s->tensor;
    const size_t count = tensor_size(t), size = bsk_dtype_size(t->desc.dtype);
    uint8_t *values = check_alloc(count * size);
    machine_download(m->machine, values, t->mem, count * size);
    const int fine = all_legal(values, count, s);
    elements_swap(values, count, size);
    put_uint(w, (uint64_t)t->desc.dtype, 4);
    put_uint(w, count, 8);
    put_bytes(w, values, count * size);
    free(values);
    return fine ? 0 : -1;
}

/* Where a checkpoint is written before it takes its name; for free. */
static char *path_beside(const char *path)
{
    static const char suffix[] = ".new";
    const size_t length = strlen(path);
    char *beside = check_alloc(length + sizeof suffix);
    memcpy(beside, path, length);
    memcpy(beside + length, suffix, sizeof suffix);
    return beside;
}

static int write_fails(const char *path)
{
    fprintf(stderr, "lm: %s: %s\n", path, strerror(errno));
    return -1;
}

int checkpoint_check(const char *path)
{
    FILE *old = fopen(path, "r+b"); // a folder cannot be replaced; any file can
    int failed = !old && errno == EISDIR ? write_fails(path) : 0;
    if (old)
        fclose(old);
    char *beside = path_beside(path);
    FILE *file = failed ? NULL : fopen(beside, "wb");
    if (file) {
        fclose(file);
        remove(beside);
    } else if (!failed) {
        failed = write_fails(beside);
    }
    free(beside);
    return failed;
}

static int write_file(const char *path, const writer *w)
{
    char *beside = path_beside(path);
    FILE *file = fopen(beside, "wb");
    int failed = !file || fwrite(w->bytes, 1, w->size, file) != w->size || fflush(file) ||
                 fsync(fileno(file));
    if (file && fclose(file))
        failed = 1;
    if (failed || rename(beside, path)) {
        failed = write_fails(path);
        if (file)
            remove(beside);
    }
    free(beside);
    return failed ? -1 : 0;
}

int checkpoint_save(const char *path, model *m, double seconds)
{
    writer w = {NULL, 0, 0};
    put_bytes(&w, magic, sizeof magic);
    put_uint(&w, VERSION, 4);
    put_config(&w, &m->c);
    put_uint(&w, (uint64_t)m->step, 8);
    put_double(&w, seconds);
    put_layouts(&w, m);
    put_uint(&w, (uint64_t)state_count(m), 4);
    param_state state;
    int bad = 0;
    for (int i = 0; !bad && state_get(m, i, &state) == 0; i++)
        bad = put_tensor(&w, m, &state);
    put_uint(&w, fnv1a(w.bytes, w.size), 8);
    if (bad)
        fprintf(stderr, "lm: %s: not written, as the weights are no longer finite\n", path);
    const int result = bad || write_file(path, &w) ? -1 : 0;
    free(w.bytes);
    return result;
}

/* --- Reading --- */

static size_t bytes_left(const checkpoint *f)
{
    return f->size - f->at;
}

/* The next `size` bytes, or NULL. */
static const uint8_t *get_bytes(checkpoint *f, size_t size)
{
    if (size > bytes_left(f))
        return NULL;
    f->at += size;
    return f->bytes + f->at - size;
}

static int get_uint(checkpoint *f, int size, uint64_t *value)
{
    const uint8_t *bytes = get_bytes(f, (size_t)size);
    if (!bytes)
        return -1;
    *value = 0;
    for (int i = 0; i < size; i++)
        *value |= (uint64_t)bytes[i] << 8 * i;
    return 0;
}

static int get_double(checkpoint *f, double *value)
{
    uint64_t bits;
    if (get_uint(f, 8, &bits))
        return -1;
    memcpy(value, &bits, sizeof bits);
    return isfinite(*value) ? 0 : -1;
}

static int read_file(const char *path, checkpoint *f)
{
    FILE *file = fopen(path, "rb");
    long end = -1;
    if (file && fseek(file, 0, SEEK_END) == 0 && (end = ftell(file)) >= 0)
        rewind(file);
    if (end < 0) {
        fprintf(stderr, "lm: %s: %s\n", path, strerror(errno));
        if (file)
            fclose(file);
        return -1;
    }
    f->bytes = check_alloc((size_t)end);
    f->size = fread(f->bytes, 1, (size_t)end, file);
    fclose(file);
    return 0;
}

/* Every number once, and no other. */
static int get_config(checkpoint *f)
{
    uint64_t numbers, expected = 0, length;
    char name[MAX_NAME], seen[MAX_NAME] = {0};
    double number;
    while (config_name((int)expected))
        expected++;
    if (get_uint(f, 4, &numbers) || numbers != expected || expected > MAX_NAME)
        return -1;
    for (uint64_t i = 0; i < numbers; i++) {
        if (get_uint(f, 1, &length) || length >= MAX_NAME || length > bytes_left(f))
            return -1;
        memcpy(name, get_bytes(f, (size_t)length), (size_t)length);
        name[length] = 0;
        int row = 0;
        while (row < (int)expected && strcmp(config_name(row), name) != 0)
            row++;
        if (row == (int)expected || seen[row]++ || get_double(f, &number) ||
            config_set(&f->c, name, number))
            return -1;
    }
    return config_check(&f->c);
}

static int get_header(checkpoint *f)
{
    uint64_t version, sum, step;
    const uint8_t *start = get_bytes(f, sizeof magic);
    if (!start || memcmp(start, magic, sizeof magic) || get_uint(f, 4, &version) ||
        version != VERSION || bytes_left(f) < 8)
        return -1;
    // The checksum guards against accidents only, so every field is checked as well.
    const size_t at = f->at;
    f->at = f->size - 8;
    if (get_uint(f, 8, &sum) || sum != fnv1a(f->bytes, f->size - 8))
        return -1;
    f->at = at;
    f->size -= 8;

    if (get_config(f) || get_uint(f, 8, &step) || step > INT32_MAX || get_double(f, &f->seconds) ||
        f->seconds < 0)
        return -1;
    f->step = (int64_t)step;
    return 0;
}

static int get_layouts(checkpoint *f, bsk_context *context)
{
    uint64_t count;
    if (get_uint(f, 4, &count) || count > MAX_PARAMS)
        return -1;
    f->layouts = check_alloc((size_t)count * sizeof *f->layouts);
    memset(f->layouts, 0, (size_t)count * sizeof *f->layouts);
    f->layout_count = (int)count;
    for (int i = 0; i < f->layout_count; i++) {
        uint64_t size;
        const uint8_t *data = get_uint(f, 4, &size) == 0 && size <= MAX_LAYOUT_BYTES
                                  ? get_bytes(f, (size_t)size)
                                  : NULL;
        // The library trusts no byte of this either.
        if (!data || bsk_layout_deserialize(context, data, (size_t)size, &f->layouts[i]))
            return -1;
    }
    return 0;
}

static int refuse(const char *what)
{
    fprintf(stderr, "lm: %s: not a checkpoint of this program, or damaged\n", what);
    return -1;
}

int checkpoint_open(const char *path, bsk_context *context, checkpoint *file)
{
    memset(file, 0, sizeof *file);
    if (read_file(path, file))
        return -1;
    if (get_header(file) || get_layouts(file, context)) {
        checkpoint_close(file);
        return refuse(path);
    }
    return 0;
}

static int get_tensor(checkpoint *f, model *m, const param_state *s)
{
    const tensor *t = s->tensor;
    const size_t count = tensor_size(t), size = bsk_dtype_size(t->desc.dtype);
    uint64_t type, stored;
    if (get_uint(f, 4, &type) || type != (uint64_t)t->desc.dtype || get_uint(f, 8, &stored) ||
        stored != count)
        return -1;
    const uint8_t *bytes = get_bytes(f, count * size);
    if (!bytes)
        return -1;
    uint8_t *values = check_alloc(count * size);
    memcpy(values, bytes, count * size);
    elements_swap(values, count, size);
    const int fine = all_legal(values, count, s);
    if (fine)
        machine_upload(m->machine, t->mem, values, count * size);
    free(values);
    return fine ? 0 : -1;
}

/* The model of the file, in memory that is limited. */
static int load(checkpoint *file, model *m)
{
    if (m->given_next != file->layout_count ||
        bytes_left(file) / bsk_dtype_size(m->p.master) / 3 < m->p.total)
        return -1;
    model_allocate(m);
    uint64_t tensors;
    int bad = get_uint(file, 4, &tensors) || tensors != (uint64_t)state_count(m);
    param_state state;
    for (int i = 0; !bad && state_get(m, i, &state) == 0; i++)
        bad = get_tensor(file, m, &state);
    return bad || bytes_left(file) ? -1 : 0;
}

int checkpoint_load(checkpoint *file, machine *on, const config *c, model *m)
{
    if (model_declare(m, on, c, file->layouts, file->layout_count))
        return refuse("the layouts");
    // A few bytes must not make the program allocate as much as there is: what a batch needs is
    // rarely a hundred times what the weights do.
    const size_t limit = on->limit, allowed = on->bytes + MODEST_BYTES;
    if (limit > allowed && (limit - allowed) / BATCH_SHARE > file->size)
        on->limit = allowed + BATCH_SHARE * file->size;
    const int bad = load(file, m);
    on->limit = limit;
    if (bad)
        return refuse("the weights");
    params_refresh(&m->p);
    m->step = file->step;
    return 0;
}

void checkpoint_close(checkpoint *file)
{
    free(file->bytes);
    for (int i = 0; i < file->layout_count; i++)
        bsk_layout_release(&file->layouts[i]);
    free(file->layouts);
    memset(file, 0, sizeof *file);
}
