/* Layouts by text: every pattern of the library with its parameters. */
#include "tests/harness/pattern.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef enum value_type {
    VALUE_I32,
    VALUE_I64,
    VALUE_U64,
    VALUE_REAL,
    VALUE_FLAG,  /* i32; without a value: 1 */
    VALUE_PAIR,  /* two i32: N, or NxM */
    VALUE_TWICE, /* two i64 of one value */
    VALUE_LIST   /* N/N/... */
} value_type;

typedef struct key {
    const char *name;
    value_type type;
    size_t offset;
} key;

#define KEY(name, type, field)                                                                     \
    {                                                                                              \
        name, VALUE_##type, offsetof(test_layout_text, field)                                      \
    }
#define KEYS(...)                                                                                  \
    (const key[])                                                                                  \
    {                                                                                              \
        __VA_ARGS__,                                                                               \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

struct test_layout_kind {
    const char *name;
    const key *keys; /* beside those of the geometry */
    bsk_status (*make)(const test_layout_text *t, bsk_layout **layout);
    bool (*visible)(const test_layout_text *t, int64_t row, int64_t col); /* NULL: all */
};

/* --- Constructors ---------------------------------------------------------------------------- */

static bsk_status make_causal(const test_layout_text *t, bsk_layout **layout)
{
    return bsk_layout_causal(NULL, &t->params, t->shift, layout);
}

static bsk_status make_local(const test_layout_text *t, bsk_layout **layout)
{
    return bsk_layout_local(NULL, &t->params, t->window, t->shift, layout);
}

static bsk_status make_sink_local(const test_layout_text *t, bsk_layout **layout)
{
    return bsk_layout_sink_local(NULL, &t->params, t->sink, t->window, t->shift, layout);
}

static bsk_status make_strided(const test_layout_text *t, bsk_layout **layout)
{
    return bsk_layout_strided(NULL, &t->params, t->stride, layout);
}

static bsk_status make_sliding(const test_layout_text *t, bsk_layout **layout)
{
    return bsk_layout_sliding(NULL, &t->params, t->blocks, t->causal, layout);
}

static bsk_status make_fixed(const test_layout_text *t, bsk_layout **layout)
{
    return bsk_layout_fixed(NULL, &t->params, &t->fixed, layout);
}

static bsk_global_pattern global_of(const test_layout_text *t)
{
    bsk_global_pattern p = t->global;
    p.struct_size = sizeof p;
    p.causal = t->causal;
    p.count = t->start.count;
    p.start = t->start.value;
    p.end = t->end.count ? t->end.value : NULL;
    p.windows = t->windows.value;
    p.window_count = t->windows.count;
    return p;
}

static bsk_status make_bigbird(const test_layout_text *t, bsk_layout **layout)
{
    const bsk_global_pattern p = global_of(t);
    return bsk_layout_bigbird(NULL, &t->params, &p, layout);
}

static bsk_status make_longformer(const test_layout_text *t, bsk_layout **layout)
{
    const bsk_global_pattern p = global_of(t);
    return bsk_layout_longformer(NULL, &t->params, &p, layout);
}

static bsk_status make_variable(const test_layout_text *t, bsk_layout **layout)
{
    const bsk_global_pattern p = global_of(t);
    return bsk_layout_variable(NULL, &t->params, &p, layout);
}

static bsk_status make_conv(const test_layout_text *t, bsk_layout **layout)
{
    return bsk_layout_conv(NULL, &t->params, &t->conv, layout);
}

static bsk_status make_deconv(const test_layout_text *t, bsk_layout **layout)
{
    return bsk_layout_deconv(NULL, &t->params, &t->conv, layout);
}

static bsk_status make_random(const test_layout_text *t, bsk_layout **layout)
{
    return bsk_layout_random(NULL, &t->params, t->density, t->seed, layout);
}

static bsk_status make_barabasi(const test_layout_text *t, bsk_layout **layout)
{
    return bsk_layout_barabasi_albert(NULL, &t->params, t->m, t->seed, layout);
}

static bsk_status make_watts(const test_layout_text *t, bsk_layout **layout)
{
    return bsk_layout_watts_strogatz(NULL, &t->params, t->k, t->p, t->seed, layout);
}

/* --- Visible elements ------------------------------------------------------------------------ */

static bool visible_causal(const test_layout_text *t, int64_t row, int64_t col)
{
    return col <= row + t->shift;
}

static bool visible_local(const test_layout_text *t, int64_t row, int64_t col)
{
    const int64_t distance = row + t->shift - col;
    return distance >= 0 && (distance < t->window || col < t->sink);
}

/* Lines are in the order of the interleave: runs of one residue. */
static bool visible_strided(const test_layout_text *t, int64_t row, int64_t col)
{
    const int64_t run = t->params.rows / t->stride;
    return row / run == col / run && col <= row;
}

static bool visible_past(const test_layout_text *t, int64_t row, int64_t col)
{
    return !t->causal || col <= row;
}

/* Rows of their own in full, and what is drawn from all columns, are not for the causal mask. */
static bool visible_fixed(const test_layout_text *t, int64_t row, int64_t col)
{
    return t->fixed.bidirectional || t->fixed.horizontal || col <= row;
}

static bool visible_variable(const test_layout_text *t, int64_t row, int64_t col)
{
    return t->global.horizontal || t->global.random || visible_past(t, row, col);
}

static bool visible_conv(const test_layout_text *t, int64_t row, int64_t col)
{
    bsk_conv_pattern p = t->conv;
    return bsk_conv_visible(&p, 0, row, col) != 0;
}

static bool visible_deconv(const test_layout_text *t, int64_t row, int64_t col)
{
    bsk_conv_pattern p = t->conv;
    return bsk_deconv_visible(&p, 0, row, col) != 0;
}

/* --- Names ----------------------------------------------------------------------------------- */

static const key geometry_keys[] = {
    KEY("time", TWICE, params.rows), KEY("rows", I64, params.rows),
    KEY("cols", I64, params.cols),   KEY("block", PAIR, params.block_rows),
    KEY("heads", I32, params.heads), {0},
};

#define CONV_KEYS                                                                                  \
    KEYS(KEY("height", I32, conv.height), KEY("width", I32, conv.width),                           \
         KEY("filter", PAIR, conv.filter_height), KEY("stride", I32, conv.stride),                 \
         KEY("causal", FLAG, conv.causal))

static const struct test_layout_kind kinds[] = {
    {"causal", KEYS(KEY("shift", I64, shift)), make_causal, visible_causal},
    {"local", KEYS(KEY("window", I64, window), KEY("shift", I64, shift)), make_local,
     visible_local},
    {"sink_local",
     KEYS(KEY("sink", I64, sink), KEY("window", I64, window), KEY("shift", I64, shift)),
     make_sink_local, visible_local},
    {"strided", KEYS(KEY("stride", I64, stride)), make_strided, visible_strided},
    {"sliding", KEYS(KEY("blocks", I32, blocks), KEY("causal", FLAG, causal)), make_sliding,
     visible_past},
    {"fixed",
     KEYS(KEY("local", I32, fixed.local), KEY("global", I32, fixed.global),
          KEY("patterns", I32, fixed.patterns), KEY("bidirectional", FLAG, fixed.bidirectional),
          KEY("horizontal", FLAG, fixed.horizontal), KEY("deepspeed", FLAG, fixed.deepspeed)),
     make_fixed, visible_fixed},
    {"bigbird",
     KEYS(KEY("window", I32, global.window), KEY("first", I32, global.first),
          KEY("random", I32, global.random), KEY("causal", FLAG, causal),
          KEY("seed", U64, global.seed)),
     make_bigbird, visible_past},
    {"longformer",
     KEYS(KEY("window", I32, global.window), KEY("start", LIST, start), KEY("end", LIST, end),
          KEY("causal", FLAG, causal)),
     make_longformer, visible_past},
    {"variable",
     KEYS(KEY("windows", LIST, windows), KEY("start", LIST, start), KEY("end", LIST, end),
          KEY("horizontal", FLAG, global.horizontal), KEY("random", I32, global.random),
          KEY("causal", FLAG, causal), KEY("seed", U64, global.seed)),
     make_variable, visible_variable},
    {"conv", CONV_KEYS, make_conv, visible_conv},
    {"deconv", CONV_KEYS, make_deconv, visible_deconv},
    {"random", KEYS(KEY("density", REAL, density), KEY("seed", U64, seed)), make_random, NULL},
    {"barabasi_albert", KEYS(KEY("m", I32, m), KEY("seed", U64, seed)), make_barabasi, NULL},
    {"watts_strogatz", KEYS(KEY("k", I32, k), KEY("p", REAL, p), KEY("seed", U64, seed)),
     make_watts, NULL},
};

enum { KINDS = sizeof kinds / sizeof kinds[0] };

static void print_keys(FILE *to, const key *keys)
{
    static const char *const forms[] = {
        [VALUE_I32] = "=N",   [VALUE_I64] = "=N",       [VALUE_U64] = "=N",
        [VALUE_REAL] = "=X",  [VALUE_FLAG] = "",        [VALUE_PAIR] = "=N or NxM",
        [VALUE_TWICE] = "=N", [VALUE_LIST] = "=N/N/..",
    };
    for (int i = 0; keys[i].name; i++)
        fprintf(to, "%s%s%s", i ? ", " : "", keys[i].name, forms[keys[i].type]);
    fputc('\n', to);
}

void test_layout_help(FILE *to)
{
    for (int i = 0; i < KINDS; i++) {
        fprintf(to, "  %-16s ", kinds[i].name);
        print_keys(to, kinds[i].keys);
    }
    fprintf(to, "  %-16s ", "all of them");
    print_keys(to, geometry_keys);
}

/* --- Reading --------------------------------------------------------------------------------- */

typedef struct reader {
    test_layout_text *out;
    char *why;
    size_t size;
} reader;

static bool refuse(const reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool refuse(const reader *r, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(r->why, r->size, format, list);
    va_end(list);
    return false;
}

/* A whole number at *text, which is left behind it. */
static bool read_integer(const char **text, int64_t low, int64_t high, int64_t *value)
{
    char *end;
    errno = 0;
    const long long v = strtoll(*text, &end, 10);
    if (end == *text || errno || v < low || v > high)
        return false;
    *text = end;
    *value = v;
    return true;
}

static bool read_list(const char **text, test_list_value *list)
{
    int64_t v;
    list->count = 0;
    do {
        if (list->count == TEST_LIST || !read_integer(text, INT32_MIN, INT32_MAX, &v))
            return false;
        list->value[list->count++] = (int32_t)v;
    } while (**text == '/' && (*text)++);
    return true;
}

static bool read_value(const char *text, value_type type, void *to)
{
    int64_t v = 0;
    char *end = NULL;
    bool good = true;
    switch (type) {
    case VALUE_LIST:
        good = read_list(&text, to);
        break;
    case VALUE_REAL:
        *(double *)to = strtod(text, &end);
        good = end != text;
        text = end;
        break;
    case VALUE_I64:
    case VALUE_U64:
    case VALUE_TWICE:
        good = read_integer(&text, type == VALUE_U64 ? 0 : INT64_MIN, INT64_MAX, &v);
        ((int64_t *)to)[0] = v;
        if (type == VALUE_TWICE)
            ((int64_t *)to)[1] = v;
        break;
    case VALUE_I32:
    case VALUE_FLAG:
    case VALUE_PAIR:
        good = read_integer(&text, INT32_MIN, INT32_MAX, &v);
        ((int32_t *)to)[0] = (int32_t)v;
        if (type == VALUE_PAIR && good && *text == 'x') {
            text++;
            good = read_integer(&text, INT32_MIN, INT32_MAX, &v);
        }
        if (type == VALUE_PAIR)
            ((int32_t *)to)[1] = (int32_t)v;
        break;
    }
    return good && !*text;
}

static const key *find_key(const key *keys, const char *name)
{
    while (keys->name && strcmp(keys->name, name) != 0)
        keys++;
    return keys->name ? keys : NULL;
}

/* KEY or KEY=VALUE. */
static bool read_key(const reader *r, char *text)
{
    char *equals = strchr(text, '=');
    if (equals)
        *equals = 0;
    const key *k = find_key(r->out->kind->keys, text);
    if (!k)
        k = find_key(geometry_keys, text);
    if (!k)
        return refuse(r, "%s has no key '%s'", r->out->kind->name, text);
    if (!equals && k->type != VALUE_FLAG)
        return refuse(r, "%s needs a value: %s=...", text, text);
    if (!read_value(equals ? equals + 1 : "1", k->type, (char *)r->out + k->offset))
        return refuse(r, "%s=%s: not a value of that key", text, equals + 1);
    return true;
}

/* The geometry of a convolution is that of its images. */
static void conv_geometry(test_layout_text *t)
{
    const bsk_conv_pattern *p = &t->conv;
    const int64_t sx = p->stride > 0 ? p->stride : 1, sy = p->height == 1 ? 1 : sx;
    const int64_t high = (int64_t)p->height * p->width, low = high / sx / sy;
    const bool turned = t->kind->make == make_deconv;
    t->params.rows = turned ? high : low;
    t->params.cols = turned ? low : high;
}

bool test_layout_read(const char *text, const bsk_layout_params *geometry, test_layout_text *out,
                      char *why, size_t size)
{
    char copy[256], *rest = copy;
    const reader r = {out, why, size};
    memset(out, 0, sizeof *out);
    out->fixed.struct_size = sizeof out->fixed;
    out->conv.struct_size = sizeof out->conv;
    out->params = geometry ? *geometry : (bsk_layout_params){sizeof out->params, 128, 128, 8, 8, 1,
                                                             BSK_ORDER_ROW};
    if (strlen(text) >= sizeof copy)
        return refuse(&r, "longer than %zu characters", sizeof copy - 1);
    strcpy(copy, text);
    const char *name = strsep(&rest, ":");
    for (int i = 0; i < KINDS; i++)
        if (strcmp(kinds[i].name, name) == 0)
            out->kind = &kinds[i];
    if (!out->kind)
        return refuse(&r, "there is no pattern '%s'", name);
    while (rest)
        if (!read_key(&r, strsep(&rest, ",")))
            return false;
    if (out->end.count && out->end.count != out->start.count)
        return refuse(&r, "end has %d numbers, and start %d", out->end.count, out->start.count);
    if (out->kind->make == make_conv || out->kind->make == make_deconv)
        conv_geometry(out);
    return true;
}

bsk_status test_layout_make(const test_layout_text *t, bsk_layout **layout)
{
    return t->kind->make(t, layout);
}

bool test_layout_has_rule(const test_layout_text *t)
{
    return t->kind->visible != NULL;
}

int test_layout_visible(void *user, int32_t head, int64_t row, int64_t col)
{
    const test_layout_text *t = user;
    (void)head;
    return t->kind->visible(t, row, col);
}
