/* Contexts and devices. Part of bsk; include <bsk/bsk.h>. */
#ifndef BSK_CONTEXT_H
#define BSK_CONTEXT_H

#include <stddef.h>
#include <stdint.h>

#include <bsk/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A context holds the settings, the opened backends and their devices. All settings are frozen
 * when it is created; later changes of the environment have no effect.
 * Thread-safety: any thread may use it at any time; destroy it once, after its plans and queues. */
typedef struct bsk_context bsk_context;

/* A device, borrowed from its context and valid as long as that.
 * Thread-safety: immutable, any thread. */
typedef struct bsk_device bsk_device;

typedef enum bsk_log_level {
    BSK_LOG_ERROR = 1,
    BSK_LOG_WARN = 2,
    BSK_LOG_INFO = 3,
    BSK_LOG_DISPATCH = 4, /* each refusal and each choice of an entry */
    BSK_LOG_LAUNCH = 5,   /* each run */
    BSK_LOG_LEVEL_FORCE_INT = 0x7fffffff
} bsk_log_level;

/* Receives one line without a newline. May be called from any thread that uses the context. */
typedef void (*bsk_log_fn)(void *user, bsk_log_level level, const char *line);

/* Host memory for handles, tables and plans. resize(user, NULL, n) allocates, resize(user, p, 0)
 * frees and returns NULL, and resize(user, p, n) changes the size as realloc does: contents stay,
 * and if the answer is NULL so does the block. Memory is aligned as malloc aligns. Must be
 * thread-safe. */
typedef struct bsk_allocator {
    void *(*resize)(void *user, void *pointer, size_t bytes);
    void *user;
} bsk_allocator;

/* What to do when no entry of the chosen device accepts a problem. */
typedef enum bsk_fallback {
    BSK_FALLBACK_DEFAULT = 0, /* as the context, or allow */
    BSK_FALLBACK_ALLOW = 1,   /* run the CPU reference on staged copies, and warn once */
    BSK_FALLBACK_DEVICE = 2,  /* only the device's own entries, reference entries included */
    BSK_FALLBACK_FORBID = 3,  /* only entries written for the device: no reference entry either */
    BSK_FALLBACK_FORCE_INT = 0x7fffffff
} bsk_fallback;

/* Settings of a context. Precedence: a field that is set here, then the environment variable
 * named beside it, then the default. */
typedef struct bsk_context_params {
    size_t struct_size;
    bsk_allocator allocator; /* default: malloc, realloc, free */
    bsk_log_fn log;          /* default: none; BSK_VERBOSE logs to stderr where log is NULL */
    void *log_user;
    bsk_log_level log_level; /* BSK_VERBOSE; default: warn where log is given, else nothing */
    const char *backends;    /* BSK_BACKEND: "cuda,cpu", an allow-list and the order of devices */
    const char *device;      /* BSK_DEVICE: "cpu:0", the default device */
    const char *max_arch;    /* BSK_MAX_ARCH: "avx2", hides entries for newer architectures */
    const char *kernels;     /* BSK_KERNEL: "+name,-glob", forced and banned entries */
    bsk_fallback fallback;   /* BSK_FALLBACK: allow, device, forbid */
    const char *plugin_path; /* BSK_PLUGIN_PATH: more directories of backend modules, by ':' */
    const char *cache_dir;   /* BSK_CACHE_DIR: compiled binaries; "off" keeps none; default:
                              * $XDG_CACHE_HOME/bsk or $HOME/.cache/bsk */
    int32_t num_threads;     /* BSK_NUM_THREADS: of the CPU backend; default: one per core. In a
                              * child of fork() contexts of the parent run with one; one that the
                              * child makes itself needs 1 if the parent has run with more. */
    int32_t ignore_environment; /* nonzero: no environment variable is read */
    const char *tuning;         /* BSK_TUNING: the file of `bsk tune`'s records; "off" reads none;
                              * default: `tuning` in the cache directory */
} bsk_context_params;

/* Creates a context, opens the backends and enumerates their devices. params may be NULL.
 * A backend that is missing or finds no driver is a log line, not an error, unless it was asked
 * for by name. Strings in params are copied.
 * Errors: INVALID, VERSION, ENVIRONMENT, PLUGIN, NOMEM; *context is then NULL. */
BSK_API bsk_status bsk_context_create(const bsk_context_params *params, bsk_context **context);

/* Destroys a context and sets *context to NULL. *context may be NULL. */
BSK_API void bsk_context_destroy(bsk_context **context);

/* Number of devices, and device i in [0, count), or NULL. */
BSK_API size_t bsk_context_device_count(const bsk_context *context);
BSK_API const bsk_device *bsk_context_device(const bsk_context *context, size_t index);

/* Finds a device by its id, such as "cpu:0"; id NULL gives the default device: the one of
 * bsk_context_params.device, or the first. Errors: INVALID names the ids that exist. */
BSK_API bsk_status bsk_context_find_device(const bsk_context *context, const char *id,
                                           const bsk_device **device);

typedef struct bsk_device_info {
    size_t struct_size;
    const char *id;      /* "cpu:0"; strings live as long as the context */
    const char *backend; /* "cpu" */
    const char *name;    /* the maker's name of the device */
    const char *arch;    /* "avx512", "sm90a" */
    const char *driver;  /* driver or runtime version, "" if there is none */
    uint64_t memory_bytes;
    int32_t compute_units; /* cores, multiprocessors, compute units */
    int32_t host_memory;   /* nonzero: the device works on host pointers */
} bsk_device_info;

/* Fills *info, whose struct_size must be set. */
BSK_API bsk_status bsk_device_query(const bsk_device *device, bsk_device_info *info);

/* A kernel entry of the context's backends. */
typedef struct bsk_entry_info {
    size_t struct_size;
    const char *name;    /* "dsd_f32_avx512" */
    const char *op;      /* the kernel op, "dsd" */
    const char *backend; /* "cpu" */
    const char *arch;    /* the oldest architecture that it runs on, "" for any */
    uint32_t dtypes;     /* bit 1 << bsk_dtype for each operand type; 0: any */
    uint32_t blocks;     /* bits 3 to 7 for block sizes 8 to 128, bit 0 for all others; 0: any */
    int32_t reference;   /* nonzero: defines the op, never chosen under BSK_FALLBACK_FORBID
                          * unless it is named */
    int32_t by_name;     /* nonzero: has not passed the checks on a device yet, and is chosen only
                          * where it is named */
} bsk_entry_info;

/* Enumerates entries: index from 0; INVALID past the end. */
BSK_API bsk_status bsk_context_entry(const bsk_context *context, size_t index,
                                     bsk_entry_info *info);

/* Lines about backends that did not load, one each, joined by newlines; "" if all did. */
BSK_API const char *bsk_context_backend_notes(const bsk_context *context);

#ifdef __cplusplus
}
#endif
#endif
