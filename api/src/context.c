/* Contexts: settings, backends and devices. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/src/internal.h"

/* --- memory ----------------------------------------------------------------------------------- */

static void *default_resize(void *user, void *pointer, size_t bytes)
{
    (void)user;
    if (!bytes) {
        free(pointer);
        return NULL;
    }
    return realloc(pointer, bytes);
}

static const bsk_allocator default_allocator = {default_resize, NULL};

const bsk_allocator *bski_context_allocator(const bsk_context *context)
{
    return context ? &context->allocator : &default_allocator;
}

void *bski_alloc(const bsk_allocator *allocator, size_t bytes)
{
    return allocator->resize(allocator->user, NULL, bytes ? bytes : 1);
}

void *bski_calloc(const bsk_allocator *allocator, size_t bytes)
{
    void *p = bski_alloc(allocator, bytes);
    if (p)
        memset(p, 0, bytes);
    return p;
}

char *bski_strdup(const bsk_allocator *allocator, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = bski_alloc(allocator, bytes);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

void bski_free(const bsk_allocator *allocator, void *pointer)
{
    if (pointer)
        allocator->resize(allocator->user, pointer, 0);
}

/* --- log -------------------------------------------------------------------------------------- */

bool bski_log_enabled(const bsk_context *context, bsk_log_level level)
{
    return level <= context->settings.log_level && (context->log || context->settings.log_stderr);
}

/* What compilers say may have several lines. */
static void log_va(const bsk_context *context, bsk_log_level level, const char *format,
                   va_list args)
{
    if (!bski_log_enabled(context, level))
        return;
    char text[1024];
    vsnprintf(text, sizeof(text), format, args);
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        if (context->log)
            context->log(context->log_user, level, line);
        else
            fprintf(stderr, "bsk: %s\n", line);
    }
}

void bski_log(const bsk_context *context, bsk_log_level level, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_va(context, level, format, args);
    va_end(args);
}

/* --- what backends call ----------------------------------------------------------------------- */

enum { HEARD = 256 };

static void host_log(void *context, bsk_log_level level, const char *format, ...)
{
    const bsk_context *c = context;
    va_list args;
    if (c->heard) {
        va_start(args, format);
        vsnprintf(c->heard, HEARD, format, args);
        va_end(args);
    }
    va_start(args, format);
    log_va(context, level, format, args);
    va_end(args);
}

static bsk_status host_fail(void *context, bsk_status status, const char *format, ...)
{
    (void)context;
    char line[480];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    return bski_fail(status, "%s", line);
}

/* --- backends and devices --------------------------------------------------------------------- */

static bool list_has(const char *names, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = names; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (!strncmp(p, name, n) && (!p[n] || p[n] == ','))
            return true;
    return false;
}

/* What an incompatible or careless module gets wrong, or NULL. */
static const char *backend_defect(const bsk_backend *b)
{
    if (b->abi != BSK_BACKEND_ABI || b->struct_size < sizeof(bsk_backend))
        return "other ABI version";
    if (!b->name || !b->probe || !b->device_open || !b->device_close || !b->queue_create ||
        !b->queue_destroy || !b->queue_sync || !b->mem_alloc || !b->mem_free || !b->mem_upload ||
        !b->mem_download || !b->mem_fill || !b->archs || (b->entry_count && !b->entries))
        return "a required function is missing";
    if (!b->event_create != !b->event_destroy || !b->event_create != !b->event_record ||
        !b->event_create != !b->event_elapsed)
        return "some functions of events are missing";
    for (size_t i = 0; i < b->entry_count; i++)
        if (!b->entries[i].name || !b->entries[i].launch ||
            (unsigned)b->entries[i].op >= BSK_OP_COUNT)
            return "a bad entry";
    return NULL;
}

/* Insertion sort by falling priority: stable, and the lists are short. */
static void sort_entries(const bsk_entry **entries, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        const bsk_entry *e = entries[i];
        size_t j = i;
        for (; j && entries[j - 1]->priority < e->priority; j--)
            entries[j] = entries[j - 1];
        entries[j] = e;
    }
}

static bsk_status backend_add(bsk_context *c, const bsk_backend *api)
{
    bski_backend *b = &c->backends[c->backend_count];
    b->api = api;
    b->max_arch = INT32_MAX;
    b->entries = bski_alloc(&c->allocator, (api->entry_count + 1) * sizeof(*b->entries));
    if (!b->entries)
        return bski_fail(BSK_E_NOMEM, "no memory for the entries of %s", api->name);
    for (size_t i = 0; i < api->entry_count; i++)
        b->entries[i] = &api->entries[i];
    sort_entries(b->entries, api->entry_count);
    c->backend_count++;
    return BSK_OK;
}

static bsk_status load_backends(bsk_context *c)
{
    c->backends = bski_calloc(&c->allocator, (c->module_count + 1) * sizeof(*c->backends));
    if (!c->backends)
        return bski_fail(BSK_E_NOMEM, "no memory for backends");
    for (size_t i = 0; i < c->module_count; i++) {
        const char *path = c->modules[i].path ? c->modules[i].path : "builtin backend";
        const bsk_backend *api = c->modules[i].query(&c->host);
        const char *defect = api ? backend_defect(api) : "other ABI version";
        for (size_t j = 0; !defect && j < c->backend_count; j++)
            if (!strcmp(c->backends[j].api->name, api->name))
                defect = "a backend of this name is loaded already";
        if (defect)
            BSKI_TRY(bski_note(&c->allocator, &c->notes, "%s: %s (this library has ABI %d)", path,
                               defect, BSK_BACKEND_ABI));
        else
            BSKI_TRY(backend_add(c, api));
    }
    return BSK_OK;
}

static bsk_status device_add(bsk_context *c, const bski_backend *b, int32_t index, bool listed)
{
    bsk_device **grown = bski_calloc(&c->allocator, (c->device_count + 1) * sizeof(*grown));
    bsk_device *d = bski_calloc(&c->allocator, sizeof(*d));
    bsk_status status = grown && d ? BSK_OK : bski_fail(BSK_E_NOMEM, "no memory for devices");
    if (!status) {
        d->context = c;
        d->backend = b;
        d->props.struct_size = sizeof(d->props);
        snprintf(d->id, sizeof(d->id), "%.18s:%d", b->api->name, (int)index);
        const unsigned before = bski_failures();
        status = b->api->device_open(&c->host, index, &d->handle, &d->props);
        status = bski_explained(before, status, "device_open");
    }
    if (status) {
        bski_free(&c->allocator, grown);
        bski_free(&c->allocator, d);
        return status;
    }
    if (!strcmp(b->api->name, "cpu"))
        c->cpu = d;
    if (!listed) {
        bski_free(&c->allocator, grown);
        return BSK_OK;
    }
    if (c->device_count)
        memcpy(grown, c->devices, c->device_count * sizeof(*grown));
    bski_free(&c->allocator, c->devices);
    c->devices = grown;
    c->devices[c->device_count++] = d;
    c->cpu_listed |= d == c->cpu;
    return BSK_OK;
}

/* Opens the devices of one backend. A fault is a note, unless memory is short. */
static bsk_status open_devices(bsk_context *c, const bski_backend *b)
{
    int32_t count = 0;
    const unsigned before = bski_failures();
    bsk_status status = b->api->probe(&c->host, &count);
    status = bski_explained(before, status, "probe");
    if (status == BSK_E_NOMEM)
        return status;
    if (status)
        return bski_note(&c->allocator, &c->notes, "%s: %s", b->api->name, bsk_last_error());
    for (int32_t i = 0; i < count; i++) {
        status = device_add(c, b, i, true);
        if (status == BSK_E_NOMEM)
            return status;
        if (status)
            BSKI_TRY(bski_note(&c->allocator, &c->notes, "%s:%d: %s", b->api->name, (int)i,
                               bsk_last_error()));
    }
    return BSK_OK;
}

static bool backend_opened(const bsk_context *c, const bski_backend *b)
{
    for (size_t i = 0; i < c->device_count; i++)
        if (c->devices[i]->backend == b)
            return true;
    return false;
}

/* BSK_E_PLUGIN, with the notes in the same line, as far as there is room. */
static bsk_status fail_noted(const bsk_context *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bsk_status fail_noted(const bsk_context *c, const char *format, ...)
{
    char line[sizeof(bski_error)];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    size_t used = strlen(line);
    const char *between = ": ";
    for (const char *p = c->notes; p && *p && used < sizeof(line) - 1; between = "; ") {
        const int n = (int)strcspn(p, "\n");
        used += (size_t)snprintf(line + used, sizeof(line) - used, "%s%.*s", between, n, p);
        p += n + (p[n] != 0);
    }
    return bski_fail(BSK_E_PLUGIN, "%s", line);
}

static bsk_status open_named(bsk_context *c, const char *names)
{
    for (const char *p = names; *p;) {
        size_t n = strcspn(p, ",");
        const bski_backend *found = NULL;
        for (size_t i = 0; i < c->backend_count; i++)
            if (strlen(c->backends[i].api->name) == n && !strncmp(c->backends[i].api->name, p, n))
                found = &c->backends[i];
        if (!found)
            return fail_noted(c, "backend \"%.*s\" is not there", (int)n, p);
        p += n + (p[n] == ',');
        if (backend_opened(c, found)) /* named twice */
            continue;
        size_t before = c->device_count;
        char heard[HEARD] = "";
        c->heard = heard;
        bsk_status status = open_devices(c, found);
        c->heard = NULL;
        if (status)
            return status;
        if (c->device_count == before)
            return fail_noted(c, "backend \"%s\" has no device%s%s", found->api->name,
                              *heard ? ": " : "", heard);
    }
    return BSK_OK;
}

/* All devices in the order of the list, or accelerators before the CPU. */
static bsk_status enumerate_devices(bsk_context *c)
{
    if (c->settings.backends) {
        BSKI_TRY(open_named(c, c->settings.backends));
    } else {
        for (size_t i = 0; i < c->backend_count; i++)
            if (strcmp(c->backends[i].api->name, "cpu"))
                BSKI_TRY(open_devices(c, &c->backends[i]));
        for (size_t i = 0; i < c->backend_count; i++)
            if (!strcmp(c->backends[i].api->name, "cpu"))
                BSKI_TRY(open_devices(c, &c->backends[i]));
    }
    for (size_t i = 0; !c->cpu && i < c->backend_count; i++)
        if (!strcmp(c->backends[i].api->name, "cpu") && !list_has(c->settings.backends, "cpu"))
            BSKI_TRY(device_add(c, &c->backends[i], 0, false));
    return BSK_OK;
}

static bsk_status apply_max_arch(bsk_context *c)
{
    const char *name = c->settings.max_arch;
    char known[256] = "";
    bool found = !name;
    for (size_t i = 0; name && i < c->backend_count; i++) {
        const bsk_backend *api = c->backends[i].api;
        for (size_t a = 0; a < api->arch_count; a++) {
            size_t used = strlen(known);
            snprintf(known + used, sizeof(known) - used, " %s", api->archs[a].name);
            if (!strcmp(api->archs[a].name, name)) {
                c->backends[i].max_arch = api->archs[a].rank;
                found = true;
            }
        }
    }
    return found ? BSK_OK
                 : bski_fail(c->settings.max_arch_error, "%s is \"%s\"; legal are%s",
                             c->settings.max_arch_error == BSK_E_ENVIRONMENT ? "BSK_MAX_ARCH"
                                                                             : "params.max_arch",
                             name, known);
}

static bsk_status choose_default(bsk_context *c)
{
    if (!c->device_count)
        return fail_noted(c, "no device");
    c->default_device = c->devices[0];
    if (!c->settings.device)
        return BSK_OK;
    bsk_status status = bsk_context_find_device(c, c->settings.device, &c->default_device);
    if (!status)
        return BSK_OK;
    bski_error why = bski_error_save();
    return bski_fail(c->settings.device_error, "%s: %s",
                     c->settings.device_error == BSK_E_ENVIRONMENT ? "BSK_DEVICE" : "params.device",
                     why.text);
}

static bsk_status context_fill(bsk_context *c, const bsk_context_params *params)
{
    BSKI_TRY(bski_settings_read(params, &c->allocator, &c->settings));
    c->host = (bsk_host){
        .struct_size = sizeof(bsk_host),
        .abi = BSK_BACKEND_ABI,
        .context = c,
        .allocator = c->allocator,
        .num_threads = c->settings.num_threads,
        .cache_dir = c->settings.cache_dir,
        .log = host_log,
        .fail = host_fail,
    };
    BSKI_TRY(bski_registry_list(&c->allocator, c->settings.plugin_path, &c->modules,
                                &c->module_count, &c->notes));
    BSKI_TRY(load_backends(c));
    BSKI_TRY(apply_max_arch(c));
    if (c->settings.kernels)
        BSKI_TRY(bski_kernels_check(
            c, c->settings.kernels, c->settings.kernels_error,
            c->settings.kernels_error == BSK_E_ENVIRONMENT ? "BSK_KERNEL" : "params.kernels"));
    BSKI_TRY(enumerate_devices(c));
    BSKI_TRY(choose_default(c));
    BSKI_TRY(bski_tuning_load(c));
    for (const char *p = c->notes; p && *p;) {
        const size_t n = strcspn(p, "\n");
        bski_log(c, BSK_LOG_INFO, "%.*s", (int)n, p);
        p += n + (p[n] != 0);
    }
    return BSK_OK;
}

bsk_status bsk_context_create(const bsk_context_params *params, bsk_context **context)
{
    if (!context)
        return bski_fail(BSK_E_INVALID, "bsk_context_create: context is NULL");
    *context = NULL;
    bsk_context_params p = BSK_INIT(bsk_context_params);
    if (params)
        BSKI_TRY(bski_struct_read("bsk_context_create: params", params, sizeof(p), &p));
    bsk_allocator allocator = p.allocator.resize ? p.allocator : default_allocator;
    bsk_context *c = bski_calloc(&allocator, sizeof(*c));
    if (!c)
        return bski_fail(BSK_E_NOMEM, "no memory for a context");
    bski_error before = bski_error_save();
    c->allocator = allocator;
    c->log = p.log;
    c->log_user = p.log_user;
    bsk_status status = context_fill(c, &p);
    if (status) {
        bsk_context_destroy(&c);
        return status;
    }
    bski_error_restore(&before); /* devices that failed to open are notes */
    *context = c;
    return BSK_OK;
}

void bsk_context_destroy(bsk_context **context)
{
    if (!context || !*context)
        return;
    bsk_context *c = *context;
    if (c->cpu && !c->cpu_listed) {
        c->cpu->backend->api->device_close(c->cpu->handle);
        bski_free(&c->allocator, c->cpu);
    }
    for (size_t i = c->device_count; i-- > 0;) {
        c->devices[i]->backend->api->device_close(c->devices[i]->handle);
        bski_free(&c->allocator, c->devices[i]);
    }
    bski_free(&c->allocator, c->devices);
    for (size_t i = 0; i < c->backend_count; i++)
        bski_free(&c->allocator, (void *)c->backends[i].entries);
    bski_free(&c->allocator, c->backends);
    bski_registry_free(&c->allocator, c->modules, c->module_count);
    bski_tuning_free(c);
    bski_settings_free(&c->allocator, &c->settings);
    bski_free(&c->allocator, c->notes);
    bsk_allocator allocator = c->allocator;
    bski_free(&allocator, c);
    *context = NULL;
}

/* --- queries ---------------------------------------------------------------------------------- */

size_t bsk_context_device_count(const bsk_context *context)
{
    return context ? context->device_count : 0;
}

const bsk_device *bsk_context_device(const bsk_context *context, size_t index)
{
    return context && index < context->device_count ? context->devices[index] : NULL;
}

bsk_status bsk_context_find_device(const bsk_context *context, const char *id,
                                   const bsk_device **device)
{
    if (device)
        *device = NULL;
    if (!context || !device)
        return bski_fail(BSK_E_INVALID, "bsk_context_find_device: %s is NULL",
                         context ? "device" : "context");
    if (!id) {
        *device = context->default_device;
        return BSK_OK;
    }
    char known[256] = "";
    for (size_t i = 0; i < context->device_count; i++) {
        if (!strcmp(context->devices[i]->id, id)) {
            *device = context->devices[i];
            return BSK_OK;
        }
        size_t used = strlen(known);
        snprintf(known + used, sizeof(known) - used, " %s", context->devices[i]->id);
    }
    return bski_fail(BSK_E_INVALID, "no device \"%s\"; there are%s", id, known);
}

static const char *arch_name(const bsk_backend *api, int32_t rank)
{
    for (size_t i = 0; i < api->arch_count; i++)
        if (api->archs[i].rank == rank)
            return api->archs[i].name;
    return "";
}

bsk_status bsk_device_query(const bsk_device *device, bsk_device_info *info)
{
    if (!device || !info)
        return bski_fail(BSK_E_INVALID, "bsk_device_query: %s is NULL", device ? "info" : "device");
    bsk_device_info full = {
        .id = device->id,
        .backend = device->backend->api->name,
        .name = device->props.name,
        .arch = arch_name(device->backend->api, device->props.arch),
        .driver = device->props.driver,
        .memory_bytes = device->props.memory_bytes,
        .compute_units = device->props.compute_units,
        .host_memory = device->props.host_memory,
    };
    return bski_struct_write("bsk_device_query: info", &full, sizeof(full), info);
}

bsk_status bsk_context_entry(const bsk_context *context, size_t index, bsk_entry_info *info)
{
    if (!context || !info)
        return bski_fail(BSK_E_INVALID, "bsk_context_entry: %s is NULL",
                         context ? "info" : "context");
    size_t left = index;
    for (size_t i = 0; i < context->backend_count; i++) {
        const bsk_backend *api = context->backends[i].api;
        if (left >= api->entry_count) {
            left -= api->entry_count;
            continue;
        }
        const bsk_entry *e = context->backends[i].entries[left];
        bsk_entry_info full = {
            .name = e->name,
            .op = bski_kernel_op(e->op)->name,
            .backend = api->name,
            .arch = arch_name(api, e->arch_min),
            .dtypes = e->dtypes,
            .blocks = e->blocks,
            .reference = (e->flags & BSK_ENTRY_REFERENCE) != 0,
            .by_name = e->priority < 0,
        };
        return bski_struct_write("bsk_context_entry: info", &full, sizeof(full), info);
    }
    return bski_fail(BSK_E_INVALID, "bsk_context_entry: index is %zu; legal are 0 to %zu", index,
                     index - left - 1);
}

const char *bsk_context_backend_notes(const bsk_context *context)
{
    return context && context->notes ? context->notes : "";
}
