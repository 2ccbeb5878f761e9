/* Names of cases: made from the spec, matched by filters. */
#include <fnmatch.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/test.h"

/* In the order of the OPT_ bits. */
static const char *const option_names[] = {
    "gate",   "bias",  "residual", "rowscale", "colscale", "ld",    "trans",  "inplace",
    "offset", "dgate", "dbias",    "gain",     "saved",    "lazy",  "copy",   "normscale",
    "skip",   "clip",  "decay",    "smooth",   "ignore",   "dloss", "noloss", "nograd",
    "shared", "tiny",  "ld8",      "scales",   "repeat",   "splat", "blend"};

/* In the order of the RULE_ bits. */
static const char *const rule_names[] = {"causal",  "end",     "window",     "prefix",  "documents",
                                         "keymask", "ragged",  "bits",       "indexed", "rowbias",
                                         "alibi",   "softcap", "dropout",    "packed",  "gqa",
                                         "mqa",     "dv",      "interleave", "short",   "additive"};

static const char *const act_names[] = {"", "relu", "gelu", "gelu_erf", "silu", "quick_gelu"};
static const char *const gate_names[] = {"", "gskip", "gscale"};
static const char *const precision_names[] = {"", "tf32"};
static const char *const norm_names[] = {"max", "l2"};
static const char *const order_names[] = {"", "colmajor", "morton", "given"};
static const char *const renew_names[] = {"zero", "normal", "uniform"};

/* What kind means, by the beginning of the op's name; the first that fits counts. */
static const struct {
    const char *op;
    const char *words[16];
} kind_names[] = {
    {"adam", {"", "stochastic"}},
    {"binary", {"add", "sub", "mul", "div", "max", "min"}},
    {"unary",
     {"neg", "rcp", "sqr", "sqrt", "exp", "log", "sigmoid", "tanh", "relu", "elu", "gelu",
      "gelu_erf", "swish"}},
    {"cross_entropy", {"", "masked"}},
    {"cwise_linear", {"", "bias_first"}},
    {"filter", {"", "zero_infs", "zero_nans", "zero_both"}},
    {"sparse_relu_grad", {"", "constant"}},
    {"rectified_topk", {"", "rebase", "constant", "rebase_constant"}},
    {"masked_softmax_grad", {"", "over_y"}},
    {"block_softmax_grad", {"", "over_y", "f32_dy"}},
    {"batch_norm_grad", {"", "infer"}},
    {"lstm_gates", {"merged", "split"}},
    {"quantize", {"", "stochastic", "flush", "stochastic_flush"}},
    {"attention_decode", {"", "counted", "default", "by_head", "by_member"}},
    {"layout_mask", {"", "none", "all"}},
    {"grouped_", {"", "one", "short", "astray", "even"}},
    {"moe_route", {"", "one", "none"}},
    {"conv",
     {"line", "stride", "dilation", "far", "image", "uneven", "wide", "volume", "gaps", "none",
      "large", "long"}},
};

static const char *const fill_names[] = {"", "int", "special", "huge", "bits", "near"};

static void add(char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(char *name, const char *format, ...)
{
    size_t used = strlen(name);
    if (used + 2 > TEST_NAME)
        return;
    if (used)
        name[used++] = ' ';
    va_list list;
    va_start(list, format);
    vsnprintf(name + used, TEST_NAME - used, format, list);
    va_end(list);
}

static void add_word(char *name, const char *word)
{
    if (word[0])
        add(name, "%s", word);
}

static void add_geometry(char *name, const test_spec *s)
{
    if (s->br && s->br == s->bc)
        add(name, "b%d", s->br);
    else if (s->br)
        add(name, "b%dx%d", s->br, s->bc);
    if (s->n >= 0)
        add(name, "n%" PRId64, s->n);
    if (s->k)
        add(name, "k%" PRId64, s->k);
    if (s->m)
        add(name, "m%" PRId64, s->m);
    if (s->heads > 1)
        add(name, "h%d", s->heads);
    if (s->groups)
        add(name, "g%d", s->groups);
    if (!s->br)
        return;
    switch (s->pattern) {
    case PATTERN_RANDOM:
        add(name, "d%.2f", s->pattern_value);
        break;
    case PATTERN_FULL:
        add(name, "full");
        break;
    case PATTERN_EMPTY:
        add(name, "empty");
        break;
    case PATTERN_ONE:
        add(name, "one");
        break;
    case PATTERN_DIAGONAL:
        add(name, "diagonal");
        break;
    case PATTERN_BARABASI:
        add(name, "ba%.0f", s->pattern_value);
        break;
    case PATTERN_WATTS:
        add(name, "ws%.0f", s->pattern_value);
        break;
    case PATTERN_UNEVEN:
        add(name, "uneven");
        break;
    case PATTERN_BANDED:
        add(name, "band%.2f", s->pattern_value);
        break;
    case PATTERN_SKEWED:
        add(name, "skew%.2f", s->pattern_value);
        break;
    case PATTERN_TEXT:
        add(name, "%s", s->layout);
        break;
    }
    add_word(name, order_names[s->order]);
}

static bool has_axis(const char *op)
{
    return strncmp(op, "matmul", 6) == 0 || strncmp(op, "bias_act", 8) == 0 ||
           strncmp(op, "proj_", 5) == 0 || strcmp(op, "dense_wgrad") == 0 ||
           strncmp(op, "layer_norm", 10) == 0 || strncmp(op, "rms_norm", 8) == 0 ||
           strncmp(op, "grouped_", 8) == 0 || strncmp(op, "conv", 4) == 0 ||
           strncmp(op, "lstm_gates", 10) == 0 || strncmp(op, "sparse_relu", 11) == 0 ||
           strcmp(op, "split4") == 0 || strcmp(op, "concat4") == 0 ||
           strcmp(op, "reduced_wgrad") == 0;
}

static void add_kind(char *name, const test_spec *s)
{
    for (int i = 0; i < TEST_COUNT(kind_names); i++)
        if (strncmp(s->op, kind_names[i].op, strlen(kind_names[i].op)) == 0) {
            add_word(name, kind_names[i].words[s->kind]);
            return;
        }
}

void test_spec_name(const test_spec *s, char name[TEST_NAME])
{
    name[0] = 0;
    add(name, "%s %s", s->op, bsk_dtype_name(s->dtype));
    if (s->out && s->out != s->dtype)
        add(name, "to_%s", bsk_dtype_name(s->out));
    if (s->other && s->other != s->dtype)
        add(name, "by_%s", bsk_dtype_name(s->other));
    add_word(name, precision_names[s->precision]);
    if (s->index)
        add(name, "%s", bsk_dtype_name(s->index));
    add_geometry(name, s);
    if (has_axis(s->op))
        add(name, "%s", s->axis == BSK_NC ? "nc" : "cn");
    if (s->transpose)
        add(name, "t");
    add_word(name, act_names[s->act]);
    add_word(name, gate_names[s->gate_mode]);
    if (strcmp(s->op, "block_norm") == 0 || strcmp(s->op, "reduced_wgrad") == 0)
        add_word(name, norm_names[s->norm]);
    if (strcmp(s->op, "block_renew") == 0)
        add_word(name, renew_names[s->renew]);
    add_kind(name, s);
    if (s->count)
        add(name, "c%d", s->count);
    if (s->pairs > 1)
        add(name, "p%d", s->pairs);
    for (int i = 0; i < TEST_COUNT(option_names); i++)
        if (s->options >> i & 1)
            add_word(name, option_names[i]);
    for (int i = 0; i < TEST_COUNT(rule_names); i++)
        if (s->rules >> i & 1)
            add_word(name, rule_names[i]);
    if (s->alpha != 0 && s->alpha != 1)
        add(name, "alpha%g", s->alpha);
    if (s->beta != 0)
        add(name, "beta%g", s->beta);
    if (s->value != 0)
        add(name, "value%g", s->value);
    add_word(name, fill_names[s->fill]);
    add(name, "seed%" PRIu64, s->seed);
}

/* Whether one word of the name matches the glob. */
static bool word_match(const char *name, const char *glob, size_t length)
{
    char pattern[TEST_NAME], word[TEST_NAME];
    if (length >= sizeof pattern)
        return false;
    memcpy(pattern, glob, length);
    pattern[length] = 0;
    while (*name) {
        size_t n = strcspn(name, " ");
        memcpy(word, name, n);
        word[n] = 0;
        if (fnmatch(pattern, word, 0) == 0)
            return true;
        name += n + (name[n] == ' ');
    }
    return false;
}

/* Every word of one alternative of a filter holds. */
static bool words_match(const char *name, const char *words, size_t length)
{
    for (const char *f = words, *end = words + length; f < end;) {
        const size_t left = (size_t)(end - f), word = strcspn(f, " "),
                     n = word < left ? word : left, banned = *f == '!';
        if (n && word_match(name, f + banned, n - banned) == (bool)banned)
            return false;
        f += n + (n < left);
    }
    return true;
}

bool test_filter(const char *name, char *const *filters, int count)
{
    for (int i = 0; i < count; i++) {
        bool matches = false;
        for (const char *f = filters[i]; f && !matches;) {
            const char *next = strchr(f, '|');
            matches = words_match(name, f, next ? (size_t)(next - f) : strlen(f));
            f = next ? next + 1 : NULL;
        }
        if (!matches)
            return false;
    }
    return true;
}

void test_emit(test_list *list, test_spec spec)
{
    if (list->count == list->capacity) {
        list->capacity = list->capacity ? 2 * list->capacity : 1024;
        list->specs = realloc(list->specs, list->capacity * sizeof *list->specs);
        if (!list->specs) {
            perror("bsk");
            exit(1);
        }
    }
    if (!spec.seed)
        spec.seed = 1;
    list->specs[list->count++] = spec;
}
