/* What the unit tests share: checks that count, a log that collects, an allocator that fails on
 * command. A test program ends with `return unit_report();`, which prints the line that the test
 * scripts add up. */
#ifndef UNIT_H
#define UNIT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <bsk/bsk.h>

/* --- Checks: usable from any thread --- */

static atomic_int unit_passed, unit_failed, unit_skipped;

static inline int unit_check(int good, const char *file, int line, const char *what,
                             const char *detail)
{
    if (good) {
        atomic_fetch_add(&unit_passed, 1);
        return 1;
    }
    atomic_fetch_add(&unit_failed, 1);
    fprintf(stderr, "%s:%d: failed: %s%s%s\n", file, line, what, *detail ? ": " : "", detail);
    return 0;
}

#define CHECK(condition) unit_check(!!(condition), __FILE__, __LINE__, #condition, "")

static inline int unit_check_status(bsk_status got, bsk_status want, const char *file, int line,
                                    const char *what)
{
    char detail[640];
    snprintf(detail, sizeof detail, "%s instead of %s (\"%s\")", bsk_status_name(got),
             bsk_status_name(want), bsk_last_error());
    return unit_check(got == want, file, line, what, detail);
}

#define CHECK_STATUS(call, want) unit_check_status((call), (want), __FILE__, __LINE__, #call)
#define CHECK_OK(call)           CHECK_STATUS(call, BSK_OK)

static inline int unit_check_text(const char *text, const char *part, const char *file, int line,
                                  const char *what)
{
    char detail[1024];
    snprintf(detail, sizeof detail, "no \"%s\" in \"%.700s\"", part, text ? text : "(null)");
    return unit_check(text && strstr(text, part), file, line, what, detail);
}

/* text contains part; and a call answers a status with a message that contains part. */
#define CHECK_TEXT(text, part) unit_check_text((text), (part), __FILE__, __LINE__, #text)
#define CHECK_ERROR(call, want, part)                                                              \
    do {                                                                                           \
        if (CHECK_STATUS(call, want))                                                              \
            CHECK_TEXT(bsk_last_error(), part);                                                    \
    } while (0)

#define UNIT_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* The last line. 77 tells the test runner that nothing was tested. */
static inline int unit_report(void)
{
    int passed = atomic_load(&unit_passed), failed = atomic_load(&unit_failed);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, atomic_load(&unit_skipped));
    return failed ? 1 : passed ? 0 : 77;
}

/* --- A log callback that keeps its lines --- */

typedef struct unit_log {
    pthread_mutex_t lock;
    int lines[BSK_LOG_LAUNCH + 1];
    size_t length;
    char text[1 << 18];
} unit_log;

static inline void unit_log_line(void *user, bsk_log_level level, const char *line)
{
    unit_log *log = user;
    pthread_mutex_lock(&log->lock);
    if (level >= BSK_LOG_ERROR && level <= BSK_LOG_LAUNCH)
        log->lines[level]++;
    size_t n = strlen(line);
    if (log->length + n + 2 <= sizeof log->text) {
        memcpy(log->text + log->length, line, n);
        log->length += n;
        log->text[log->length++] = '\n';
        log->text[log->length] = 0;
    }
    pthread_mutex_unlock(&log->lock);
}

static inline unit_log *unit_log_new(void)
{
    unit_log *log = calloc(1, sizeof *log);
    if (!log)
        abort();
    pthread_mutex_init(&log->lock, NULL);
    return log;
}

static inline void unit_log_clear(unit_log *log)
{
    pthread_mutex_lock(&log->lock);
    memset(log->lines, 0, sizeof log->lines);
    log->length = 0;
    log->text[0] = 0;
    pthread_mutex_unlock(&log->lock);
}

static inline void unit_log_free(unit_log *log)
{
    pthread_mutex_destroy(&log->lock);
    free(log);
}

/* --- An allocator that counts, and fails when its countdown ends --- */

typedef struct unit_heap {
    atomic_long live;      /* blocks */
    atomic_long countdown; /* allocations until the one that fails; negative: never */
} unit_heap;

static inline void *unit_resize(void *user, void *pointer, size_t bytes)
{
    unit_heap *heap = user;
    if (!bytes) {
        if (pointer)
            atomic_fetch_sub(&heap->live, 1);
        free(pointer);
        return NULL;
    }
    if (atomic_load(&heap->countdown) >= 0 && atomic_fetch_sub(&heap->countdown, 1) == 0) {
        atomic_store(&heap->countdown, 0); /* and all later ones fail too */
        return NULL;
    }
    void *block = realloc(pointer, bytes);
    if (block && !pointer)
        atomic_fetch_add(&heap->live, 1);
    return block;
}

static inline bsk_allocator unit_allocator(unit_heap *heap)
{
    bsk_allocator allocator = {unit_resize, heap};
    return allocator;
}

/* --- Small requests that most tests need --- */

/* A context that no environment variable influences. */
static inline bsk_context_params unit_params(void)
{
    bsk_context_params params = BSK_INIT(bsk_context_params);
    params.ignore_environment = 1;
    params.num_threads = 1;
    return params;
}

/* y = relu(x + bias) for x [rows, cols]. */
static inline bsk_bias_act_params unit_bias_act(bsk_dtype dtype, int64_t rows, int64_t cols)
{
    bsk_bias_act_params p = BSK_INIT(bsk_bias_act_params);
    p.act = BSK_ACT_RELU;
    p.x = p.y = bsk_tensor_2d(dtype, rows, cols);
    p.bias = bsk_tensor_1d(dtype == BSK_F64 ? BSK_F64 : BSK_F32, cols);
    return p;
}

/* The entry that a plan of bias_act gets on the device, "" if there is none. The name is a copy. */
static inline const char *unit_chosen(const bsk_device *device, const bsk_plan_options *options,
                                      bsk_dtype dtype, char name[64])
{
    bsk_bias_act_params p = unit_bias_act(dtype, 4, 8);
    bsk_plan *plan = NULL;
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    name[0] = 0;
    if (bsk_bias_act_plan(device, &p, options, &plan) == BSK_OK &&
        bsk_plan_query(plan, &info) == BSK_OK)
        snprintf(name, 64, "%s", info.entry);
    bsk_plan_destroy(&plan);
    return name;
}

#endif
