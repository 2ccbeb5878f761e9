/* What the files of the core share. */
#ifndef BSKI_INTERNAL_H
#define BSKI_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include <bsk/transport.h>
#include "api/src/op.h"

/* --- status.c --------------------------------------------------------------------------------- */

/* Sets the thread's last error to the formatted text and returns status. */
bsk_status bski_fail(bsk_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A backend may fail without a word: then the thread's last error would be an older one. Status of the
 * call, with words if none came since bski_failures() was `before`. */
unsigned bski_failures(void);
bsk_status bski_explained(unsigned before, bsk_status status, const char *call);

#define BSKI_TRY_BACKEND(name, call)                                                               \
    do {                                                                                           \
        const unsigned before_ = bski_failures();                                                  \
        BSKI_TRY(bski_explained(before_, call, name));                                             \
    } while (0)

/* The thread's last error, to be put back by a call that fails inside but succeeds in the end. */
typedef struct bski_error {
    char text[512];
} bski_error;

bski_error bski_error_save(void);
void bski_error_restore(const bski_error *error);

/* --- memory ----------------------------------------------------------------------------------- */

const bsk_allocator *bski_context_allocator(const bsk_context *context);
void *bski_alloc(const bsk_allocator *allocator, size_t bytes);
/* NULL-filled. */
void *bski_calloc(const bsk_allocator *allocator, size_t bytes);
char *bski_strdup(const bsk_allocator *allocator, const char *text);
void bski_free(const bsk_allocator *allocator, void *pointer);

/* --- env.c ------------------------------------------------------------------------------------ */

/* The settings of a context after parameters, environment and defaults were merged.
 * Strings are owned. */
typedef struct bski_settings {
    bsk_log_level log_level;
    bool log_stderr; /* BSK_VERBOSE without a log callback */
    char *backends, *device, *max_arch, *kernels, *plugin_path, *cache_dir;
    char *tuning; /* path of the records' file; NULL: none are read */
    /* The status of a bad value, by where it came from. */
    bsk_status device_error, kernels_error, max_arch_error;
    bsk_fallback fallback;
    int32_t num_threads;
} bski_settings;

bsk_status bski_settings_read(const bsk_context_params *params, const bsk_allocator *allocator,
                              bski_settings *settings);
void bski_settings_free(const bsk_allocator *allocator, bski_settings *settings);

/* --- registry.c ------------------------------------------------------------------------------- */

/* The modules that a context opens: a query function and where it came from. */
typedef struct bski_module {
    bsk_backend_query_fn query;
    char *path; /* owned; NULL for a builtin */
} bski_module;

/* Lists builtin modules, those of the install directory and of plugin_path. Each module is opened
 * once in the process and never unloaded. Failures are lines in *notes. */
bsk_status bski_registry_list(const bsk_allocator *allocator, const char *plugin_path,
                              bski_module **modules, size_t *count, char **notes);
void bski_registry_free(const bsk_allocator *allocator, bski_module *modules, size_t count);
/* The first module of a transport that there is in these places; NULL without one. */
bsk_status bski_registry_transport(const bsk_allocator *allocator, const char *plugin_path,
                                   const char *name, bsk_transport_query_fn *query, char **notes);
/* Appends a line to an owned text; keeps the old text if memory is short. */
bsk_status bski_note(const bsk_allocator *allocator, char **notes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* --- objects ---------------------------------------------------------------------------------- */

typedef struct bski_backend {
    const bsk_backend *api;
    const bsk_entry **entries; /* by falling priority, ties in the module's order */
    int32_t max_arch;          /* rank of BSK_MAX_ARCH, or INT32_MAX */
} bski_backend;

enum { BSKI_TUNING_DEVICE = 200, BSKI_TUNING_ENTRY = 80 };

typedef struct bski_tuning_record {
    uint64_t key;
    double microseconds;
    char device[BSKI_TUNING_DEVICE], entry[BSKI_TUNING_ENTRY];
    bool fresh; /* measured since the file was read */
} bski_tuning_record;

typedef struct bski_tuning {
    bski_tuning_record *records;
    size_t count;
} bski_tuning;

struct bsk_device {
    bsk_context *context;
    const bski_backend *backend;
    void *handle;
    bsk_device_props props;
    char id[32];
};

struct bsk_context {
    bsk_allocator allocator;
    bsk_log_fn log;
    void *log_user;
    bski_settings settings;
    bsk_host host;
    bski_module *modules;
    size_t module_count;
    bski_backend *backends;
    size_t backend_count;
    bsk_device **devices;
    size_t device_count;
    bsk_device *cpu; /* for staged fallbacks; may be hidden from the device list */
    bool cpu_listed;
    const bsk_device *default_device;
    bski_tuning tuning;
    char *notes;
    char *heard; /* while named backends are opened: the last line that one said, or NULL */
    uint64_t warned[BSK_OP_COUNT]; /* atomic; bit per device: the fallback warning was given */
};

struct bsk_queue {
    const bsk_device *device;
    void *handle;
};

struct bsk_event {
    const bsk_device *device;
    void *handle;
    bool recorded;
};

struct bsk_plan {
    const bski_op_info *op;
    const bsk_device *device;   /* whose queues run it */
    const bsk_device *executor; /* whose entry it is: device, or the CPU for a staged plan */
    const bsk_entry *entry;
    bsk_layout *layout;
    void *list;          /* a copy of the op's list on the host, for params */
    void *params;        /* public params, normalised */
    void *kernel_params; /* the same pointer where nothing is lowered */
    bsk_problem problem;
    bsk_prepared prepared;
    int32_t pairs;
    size_t extents[BSKI_MAX_ARGS]; /* bytes that each argument reaches; 0: absent or empty */
    double flops, bytes;
};

struct bsk_comm {
    const bsk_device *device;
    const bsk_transport *transport;
    void *handle;
    int32_t rank, size;
};

void bski_log(const bsk_context *context, bsk_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool bski_log_enabled(const bsk_context *context, bsk_log_level level);

/* --- tensor.c --------------------------------------------------------------------------------- */

/* Whether axes first .. rank - 1 lie in row-major order without gaps. */
bool bski_is_contiguous(const bsk_tensor *t, int first);

/* Fills in row-major strides where all are zero. The shape must be valid. */
void bski_tensor_normalise(bsk_tensor *tensor);
/* Checks and measures: elements and bytes from the first to one past the last. On a bad field a
 * message about `name` is set. */
bsk_status bski_tensor_check(const char *op, const char *name, const bsk_tensor *tensor,
                             int64_t *elements, size_t *bytes);
/* INVALID, naming the legal types, unless bit 1 << dtype of the mask is set. */
bsk_status bski_dtype_check(const char *op, const char *name, bsk_dtype dtype, uint32_t mask);

/* --- queue.c ---------------------------------------------------------------------------------- */

/* INVALID, about the view `name`, unless the device accepts memory of that kind. */
bsk_status bski_kind_check(const char *function, const char *name, const bsk_device *device,
                           bsk_mem_kind kind);
/* An address, or an offset in a buffer object: objects themselves are aligned well enough. */
uintptr_t bski_address(const bsk_mem *mem);
bsk_status bski_alignment_check(const char *function, const char *name, const bsk_mem *mem,
                                size_t align, const char *what);
/* Of a workspace or a packed image: plain bytes of known size. */
bsk_status bski_bytes_check(const char *function, const char *name, const bsk_device *device,
                            const bsk_mem *mem, size_t need, size_t align);

/* --- dispatch.c ------------------------------------------------------------------------------- */

const char *bski_reason_name(bsk_reason reason);
/* Finds the best entry of device for problem. UNSUPPORTED, with the reasons, if none accepts. */
bsk_status bski_dispatch(const bsk_device *device, const bsk_problem *problem,
                         const bsk_plan_options *options, bsk_fallback fallback,
                         const bsk_entry **entry);
/* Checks a list of forced and banned entries: each pattern must match an entry of some backend. */
bsk_status bski_kernels_check(const bsk_context *context, const char *kernels, bsk_status error,
                              const char *name);

/* --- tuning.c --------------------------------------------------------------------------------- */

/* Reads the records of settings.tuning, if it is there. Contexts keep them unchanged, but for
 * those that a tool puts in before it makes plans. */
bsk_status bski_tuning_load(bsk_context *context);
void bski_tuning_free(bsk_context *context);
/* What records know a problem by. */
uint64_t bski_tuning_key(const bsk_problem *problem);
/* The name of the entry that a record prefers, or NULL. */
const char *bski_tuning_find(const bsk_device *device, const bsk_problem *problem);
bsk_status bski_tuning_put(const bsk_device *device, const bsk_problem *problem, const char *entry,
                           double microseconds);
bsk_status bski_tuning_save(const bsk_context *context);

/* --- fallback.c ------------------------------------------------------------------------------- */

/* Runs a plan whose executor is the CPU on a queue of another device: downloads operands, runs,
 * uploads results; waits. args are the kernel op's. */
bsk_status bski_staged_run(const bsk_plan *plan, bsk_queue *queue, const void *args);

/* --- comm.c ----------------------------------------------------------------------------------- */

/* The types that can be added, also through f32. */
uint32_t bski_comm_sums(const bsk_comm *comm);
/* Runs calls of a communicator's transport in the order of a queue. */
bsk_status bski_comm_run(const bsk_comm *comm, bsk_queue *queue, const char *op,
                         const bsk_transport_call *calls, size_t count);

/* --- plan.c ----------------------------------------------------------------------------------- */

/* The value of a field of a params or args struct. */
double bski_field_value(const bski_field *field, const void *base);

/* Copies a caller's struct of any known size into a full-size one, with zeros for what is missing.
 * INVALID for sizes that cannot be, VERSION for set fields that this library does not know. */
bsk_status bski_struct_read(const char *name, const void *source, size_t full_size, void *full);
/* Fills a caller's info struct of any known size from a full-size one; struct_size stays the
 * caller's. INVALID for sizes that cannot be. */
bsk_status bski_struct_write(const char *name, const void *full, size_t full_size, void *out);

#endif
