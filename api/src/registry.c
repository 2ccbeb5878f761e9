/* Modules of backends, the builtin ones among them, and of transports: from the install directory and
 * BSK_PLUGIN_PATH.
 *
 * A module stays open until the process ends, since its kernels and static data may be in use by
 * objects that outlive a context. The dynamic loader counts references itself, so that nothing of
 * this needs to be kept here, and there is no mutable global. */
#include <dirent.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/src/internal.h"
#include "backends/cpu/cpu.h"

enum { PATH_BYTES = 4096 };

/* How the names of transports' modules begin, which are opened only when one is asked for. */
#define TRANSPORT_PREFIX "bsk_comm_"

/* Backends of the install directory; anything else there is ignored. */
static const char *const installed[] = {"bsk_cuda.so", "bsk_hip.so", "bsk_opencl.so"};

bsk_status bski_note(const bsk_allocator *allocator, char **notes, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    size_t old = *notes ? strlen(*notes) : 0;
    char *text = bski_alloc(allocator, old + strlen(line) + 2);
    if (!text)
        return bski_fail(BSK_E_NOMEM, "no memory for notes");
    if (old) {
        memcpy(text, *notes, old);
        text[old++] = '\n';
    }
    strcpy(text + old, line);
    bski_free(allocator, *notes);
    *notes = text;
    return BSK_OK;
}

typedef struct list {
    const bsk_allocator *allocator;
    bski_module *modules;
    size_t count, capacity;
    char **notes;
} list;

static bsk_status list_add(list *l, bsk_backend_query_fn query, const char *path)
{
    if (l->count == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 8;
        bski_module *grown = bski_calloc(l->allocator, capacity * sizeof(*grown));
        if (!grown)
            return bski_fail(BSK_E_NOMEM, "no memory for the list of modules");
        if (l->count)
            memcpy(grown, l->modules, l->count * sizeof(*grown));
        bski_free(l->allocator, l->modules);
        l->modules = grown;
        l->capacity = capacity;
    }
    char *copy = path ? bski_strdup(l->allocator, path) : NULL;
    if (path && !copy)
        return bski_fail(BSK_E_NOMEM, "no memory for the list of modules");
    l->modules[l->count++] = (bski_module){query, copy};
    return BSK_OK;
}

/* The address of a symbol in a module, which then stays open; NULL, with a note, without it. */
static bsk_status find_symbol(const bsk_allocator *allocator, char **notes, const char *path,
                              const char *symbol, void **address)
{
    *address = NULL;
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module)
        return bski_note(allocator, notes, "%s: %s", path, dlerror());
    *address = dlsym(module, symbol);
    if (*address)
        return BSK_OK;
    dlclose(module);
    return bski_note(allocator, notes, "%s: no symbol %s", path, symbol);
}

static bsk_status open_module(list *l, const char *path)
{
    for (size_t i = 0; i < l->count; i++)
        if (l->modules[i].path && !strcmp(l->modules[i].path, path))
            return BSK_OK;
    void *address;
    bsk_backend_query_fn query;
    BSKI_TRY(find_symbol(l->allocator, l->notes, path, BSK_BACKEND_SYMBOL, &address));
    /* The way POSIX shows to turn an object pointer into a function pointer. */
    *(void **)&query = address;
    return query ? list_add(l, query, path) : BSK_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_module_name(const char *name)
{
    size_t n = strlen(name);
    return n > 7 && !strncmp(name, "bsk_", 4) && !strcmp(name + n - 3, ".so") &&
           strncmp(name, TRANSPORT_PREFIX, strlen(TRANSPORT_PREFIX));
}

/* Opens the modules of a directory in the order of their names. */
static bsk_status open_directory(list *l, const char *path)
{
    enum { MAX_MODULES = 64 };
    char *names[MAX_MODULES];
    size_t count = 0;
    DIR *directory = opendir(path);
    if (!directory)
        return bski_note(l->allocator, l->notes, "%s: cannot be read", path);
    bsk_status status = BSK_OK;
    for (struct dirent *e; !status && (e = readdir(directory));) {
        if (!is_module_name(e->d_name))
            continue;
        if (count == MAX_MODULES) {
            status = bski_note(l->allocator, l->notes, "%s: more than %d modules; others are left",
                               path, MAX_MODULES);
            break;
        }
        names[count] = bski_strdup(l->allocator, e->d_name);
        if (names[count])
            count++;
        else
            status = bski_fail(BSK_E_NOMEM, "no memory for the list of modules");
    }
    closedir(directory);
    qsort(names, count, sizeof(names[0]), compare_names);
    for (size_t i = 0; i < count; i++) {
        char file[PATH_BYTES];
        const bool fits = snprintf(file, sizeof(file), "%s/%s", path, names[i]) < (int)sizeof(file);
        if (!status && fits)
            status = open_module(l, file);
        else if (!status)
            status = bski_note(l->allocator, l->notes, "%.200s ...: too long a path", path);
        bski_free(l->allocator, names[i]);
    }
    return status;
}

static bool is_there(const char *file)
{
    FILE *there = fopen(file, "rb");
    if (there)
        fclose(there);
    return there != NULL;
}

/* Takes the first directory off a list of them; "" where that is empty or too long, with a note. */
static bsk_status take_directory(const bsk_allocator *allocator, char **notes, const char **paths,
                                 char directory[PATH_BYTES])
{
    const char *p = *paths;
    const size_t n = strcspn(p, ":");
    *paths += n + (p[n] == ':');
    *directory = 0;
    if (n >= PATH_BYTES)
        return bski_note(allocator, notes, "%.200s ...: too long a path", p);
    memcpy(directory, p, n);
    directory[n] = 0;
    return BSK_OK;
}

static bsk_status open_all(list *l, const char *plugin_path)
{
    BSKI_TRY(list_add(l, bski_cpu_backend_query, NULL));
    for (size_t i = 0; i < BSKI_COUNT(installed); i++) {
        char file[PATH_BYTES];
        snprintf(file, sizeof(file), "%s/%s", BSK_PLUGIN_DIR, installed[i]);
        if (is_there(file)) /* an absent backend is not worth a note */
            BSKI_TRY(open_module(l, file));
    }
    for (const char *p = plugin_path; p && *p;) {
        char directory[PATH_BYTES];
        BSKI_TRY(take_directory(l->allocator, l->notes, &p, directory));
        if (*directory)
            BSKI_TRY(open_directory(l, directory));
    }
    return BSK_OK;
}

bsk_status bski_registry_transport(const bsk_allocator *allocator, const char *plugin_path,
                                   const char *name, bsk_transport_query_fn *query, char **notes)
{
    char directory[PATH_BYTES] = BSK_PLUGIN_DIR;
    void *address = NULL;
    for (const char *p = plugin_path ? plugin_path : ""; !address;) {
        char file[PATH_BYTES + 64];
        snprintf(file, sizeof(file), "%s/" TRANSPORT_PREFIX "%s.so", directory, name);
        if (*directory && is_there(file))
            BSKI_TRY(find_symbol(allocator, notes, file, BSK_TRANSPORT_SYMBOL, &address));
        if (!*p)
            break;
        BSKI_TRY(take_directory(allocator, notes, &p, directory));
    }
    *(void **)query = address;
    return BSK_OK;
}

bsk_status bski_registry_list(const bsk_allocator *allocator, const char *plugin_path,
                              bski_module **modules, size_t *count, char **notes)
{
    list l = {.allocator = allocator, .notes = notes};
    bsk_status status = open_all(&l, plugin_path);
    *modules = l.modules;
    *count = l.count;
    return status;
}

void bski_registry_free(const bsk_allocator *allocator, bski_module *modules, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bski_free(allocator, modules[i].path);
    bski_free(allocator, modules);
}
