/* Settings: parameters, then environment, then defaults. The only file that reads the
 * environment. Each variable is a row of the table at the end. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/src/internal.h"

/* Where a text came from, for messages. */
typedef struct source {
    const char *name;  /* "BSK_VERBOSE" or "params.log_level" */
    bsk_status status; /* of a bad value */
} source;

static const char *const level_names[] = {"error", "warn", "info", "dispatch", "launch"};
static const char *const fallback_names[] = {"allow", "device", "forbid"};

enum { MAX_THREADS = 4096 };

static int word_index(const char *text, const char *const *words, int count)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(text, words[i]))
            return i;
    return -1;
}

static bsk_status parse_level(const source *from, const char *text, const bsk_allocator *allocator,
                              bski_settings *s)
{
    (void)allocator;
    int i = word_index(text, level_names, BSKI_COUNT(level_names));
    if (i < 0)
        return bski_fail(from->status,
                         "%s is \"%s\"; legal are error, warn, info, dispatch, launch", from->name,
                         text);
    s->log_level = (bsk_log_level)(BSK_LOG_ERROR + i);
    s->log_stderr = true;
    return BSK_OK;
}

static bsk_status parse_fallback(const source *from, const char *text,
                                 const bsk_allocator *allocator, bski_settings *s)
{
    (void)allocator;
    int i = word_index(text, fallback_names, BSKI_COUNT(fallback_names));
    if (i < 0)
        return bski_fail(from->status, "%s is \"%s\"; legal are allow, device, forbid", from->name,
                         text);
    s->fallback = (bsk_fallback)(BSK_FALLBACK_ALLOW + i);
    return BSK_OK;
}

static bsk_status parse_threads(const source *from, const char *text,
                                const bsk_allocator *allocator, bski_settings *s)
{
    (void)allocator;
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (errno || text[0] < '0' || text[0] > '9' || *end || n < 1 || n > MAX_THREADS)
        return bski_fail(from->status, "%s is \"%s\"; legal are 1 to %d", from->name, text,
                         MAX_THREADS);
    s->num_threads = (int32_t)n;
    return BSK_OK;
}

static bsk_status keep_text(const char *text, const bsk_allocator *allocator, char **out)
{
    *out = bski_strdup(allocator, text);
    return *out ? BSK_OK : bski_fail(BSK_E_NOMEM, "no memory for settings");
}

/* Letters, digits and '_' from text, up to end or a separator. */
static size_t word_length(const char *text)
{
    return strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
}

static bsk_status parse_backends(const source *from, const char *text,
                                 const bsk_allocator *allocator, bski_settings *s)
{
    for (const char *p = text;; p++) {
        size_t n = word_length(p);
        p += n;
        if (!n || (*p && *p != ','))
            return bski_fail(from->status,
                             "%s is \"%s\"; legal are backend names separated by ',', as in "
                             "\"cuda,cpu\"",
                             from->name, text);
        if (!*p)
            return keep_text(text, allocator, &s->backends);
    }
}

static bsk_status parse_device(const source *from, const char *text, const bsk_allocator *allocator,
                               bski_settings *s)
{
    size_t n = word_length(text);
    size_t digits = text[n] == ':' ? strspn(text + n + 1, "0123456789") : 0;
    if (!n || !digits || digits > 4 || text[n + 1 + digits])
        return bski_fail(from->status,
                         "%s is \"%s\"; legal is a backend, ':' and an index, as in \"cpu:0\"",
                         from->name, text);
    s->device_error = from->status; /* whether it exists is known after the devices opened */
    return keep_text(text, allocator, &s->device);
}

static bsk_status parse_arch(const source *from, const char *text, const bsk_allocator *allocator,
                             bski_settings *s)
{
    if (!word_length(text) || text[word_length(text)])
        return bski_fail(from->status, "%s is \"%s\"; legal is an architecture, as in \"avx2\"",
                         from->name, text);
    s->max_arch_error = from->status; /* whether it exists is known after the backends loaded */
    return keep_text(text, allocator, &s->max_arch);
}

static bsk_status parse_kernels(const source *from, const char *text,
                                const bsk_allocator *allocator, bski_settings *s)
{
    s->kernels_error = from->status; /* it is checked after the backends loaded */
    return keep_text(text, allocator, &s->kernels);
}

static bsk_status parse_plugin_path(const source *from, const char *text,
                                    const bsk_allocator *allocator, bski_settings *s)
{
    for (const char *p = text;;) {
        size_t n = strcspn(p, ":");
        if (*p != '/') /* relative paths would make loading depend on the current directory */
            return bski_fail(from->status,
                             "%s is \"%s\"; legal are absolute directories separated by ':'",
                             from->name, text);
        p += n;
        if (!*p++)
            return keep_text(text, allocator, &s->plugin_path);
    }
}

static bsk_status parse_cache_dir(const source *from, const char *text,
                                  const bsk_allocator *allocator, bski_settings *s)
{
    if (strcmp(text, "off") && text[0] != '/')
        return bski_fail(from->status, "%s is \"%s\"; legal are an absolute directory and \"off\"",
                         from->name, text);
    return keep_text(text, allocator, &s->cache_dir);
}

static bsk_status parse_tuning(const source *from, const char *text, const bsk_allocator *allocator,
                               bski_settings *s)
{
    if (strcmp(text, "off") && text[0] != '/')
        return bski_fail(from->status, "%s is \"%s\"; legal are an absolute path and \"off\"",
                         from->name, text);
    return keep_text(text, allocator, &s->tuning);
}

typedef bsk_status (*parse_fn)(const source *from, const char *text, const bsk_allocator *allocator,
                               bski_settings *settings);

/* One row per setting. Texts in the parameters go through the same parser as the variable; numbers
 * there were checked, and leave the variable unread. */
#define NO_TEXT SIZE_MAX
static const struct {
    const char *variable, *parameter;
    size_t text; /* offset of the text in bsk_context_params */
    parse_fn parse;
} rows[] = {
    {"BSK_BACKEND", "params.backends", offsetof(bsk_context_params, backends), parse_backends},
    {"BSK_DEVICE", "params.device", offsetof(bsk_context_params, device), parse_device},
    {"BSK_MAX_ARCH", "params.max_arch", offsetof(bsk_context_params, max_arch), parse_arch},
    {"BSK_KERNEL", "params.kernels", offsetof(bsk_context_params, kernels), parse_kernels},
    {"BSK_FALLBACK", "params.fallback", NO_TEXT, parse_fallback},
    {"BSK_VERBOSE", "params.log_level", NO_TEXT, parse_level},
    {"BSK_CACHE_DIR", "params.cache_dir", offsetof(bsk_context_params, cache_dir), parse_cache_dir},
    {"BSK_TUNING", "params.tuning", offsetof(bsk_context_params, tuning), parse_tuning},
    {"BSK_PLUGIN_PATH", "params.plugin_path", offsetof(bsk_context_params, plugin_path),
     parse_plugin_path},
    {"BSK_NUM_THREADS", "params.num_threads", NO_TEXT, parse_threads},
};

/* Whether the parameters have a number for the setting. BSK_VERBOSE does more than its number. */
static bool is_given(parse_fn parse, const bsk_context_params *params)
{
    return (parse == parse_fallback && params->fallback) ||
           (parse == parse_threads && params->num_threads);
}

static bsk_status read_rows(const bsk_context_params *params, const bsk_allocator *allocator,
                            bski_settings *s)
{
    for (size_t i = 0; i < BSKI_COUNT(rows); i++) {
        const char *text = NULL;
        source from = {rows[i].parameter, BSK_E_INVALID};
        if (rows[i].text != NO_TEXT)
            memcpy(&text, (const char *)params + rows[i].text, sizeof(text));
        if (!text && !params->ignore_environment && !is_given(rows[i].parse, params)) {
            text = getenv(rows[i].variable);
            from = (source){rows[i].variable, BSK_E_ENVIRONMENT};
        }
        if (text)
            BSKI_TRY(rows[i].parse(&from, text, allocator, s));
    }
    return BSK_OK;
}

/* "off" becomes NULL; without a word the records are in the cache. */
static bsk_status tuning_default(const bsk_allocator *allocator, bski_settings *s)
{
    static const char below[] = "/tuning";
    if (s->tuning && !strcmp(s->tuning, "off")) {
        bski_free(allocator, s->tuning);
        s->tuning = NULL;
        return BSK_OK;
    }
    if (s->tuning || !s->cache_dir || !strcmp(s->cache_dir, "off"))
        return BSK_OK;
    size_t bytes = strlen(s->cache_dir) + sizeof(below);
    s->tuning = bski_alloc(allocator, bytes);
    if (!s->tuning)
        return bski_fail(BSK_E_NOMEM, "no memory for settings");
    snprintf(s->tuning, bytes, "%s%s", s->cache_dir, below);
    return BSK_OK;
}

/* Where programs of the user keep what they can make again: $XDG_CACHE_HOME, which counts if it is
 * absolute, or $HOME/.cache. Without either there is no cache. */
static bsk_status cache_dir_default(const bsk_allocator *allocator, bski_settings *s)
{
    const char *base = getenv("XDG_CACHE_HOME"), *below = "/bsk";
    if (!base || base[0] != '/') {
        base = getenv("HOME");
        below = "/.cache/bsk";
    }
    if (!base || base[0] != '/')
        return BSK_OK;
    size_t bytes = strlen(base) + strlen(below) + 1;
    s->cache_dir = bski_alloc(allocator, bytes);
    if (!s->cache_dir)
        return bski_fail(BSK_E_NOMEM, "no memory for settings");
    snprintf(s->cache_dir, bytes, "%s%s", base, below);
    return BSK_OK;
}

bsk_status bski_settings_read(const bsk_context_params *params, const bsk_allocator *allocator,
                              bski_settings *s)
{
    memset(s, 0, sizeof(*s));
    if (params->num_threads < 0 || params->num_threads > MAX_THREADS)
        return bski_fail(BSK_E_INVALID, "params.num_threads is %d; legal are 0 to %d",
                         (int)params->num_threads, MAX_THREADS);
    if (params->fallback < BSK_FALLBACK_DEFAULT || params->fallback > BSK_FALLBACK_FORBID)
        return bski_fail(BSK_E_INVALID, "params.fallback is %d; legal are 0 to %d",
                         (int)params->fallback, (int)BSK_FALLBACK_FORBID);
    if (params->log_level < 0 || params->log_level > BSK_LOG_LAUNCH)
        return bski_fail(BSK_E_INVALID, "params.log_level is %d; legal are 0 to %d",
                         (int)params->log_level, (int)BSK_LOG_LAUNCH);

    BSKI_TRY(read_rows(params, allocator, s));
    if (!s->cache_dir && !params->ignore_environment)
        BSKI_TRY(cache_dir_default(allocator, s));
    BSKI_TRY(tuning_default(allocator, s));
    /* Numbers that the parameters set win over what the environment said. */
    if (params->num_threads)
        s->num_threads = params->num_threads;
    if (params->fallback)
        s->fallback = params->fallback;
    if (params->log_level)
        s->log_level = params->log_level;
    if (!s->fallback)
        s->fallback = BSK_FALLBACK_ALLOW;
    if (!s->log_level && params->log)
        s->log_level = BSK_LOG_WARN;
    return BSK_OK;
}

void bski_settings_free(const bsk_allocator *allocator, bski_settings *s)
{
    char *texts[] = {s->backends,    s->device,    s->max_arch, s->kernels,
                     s->plugin_path, s->cache_dir, s->tuning};
    for (size_t i = 0; i < BSKI_COUNT(texts); i++)
        bski_free(allocator, texts[i]);
    memset(s, 0, sizeof(*s));
}
