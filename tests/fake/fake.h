/* Control of the fake backend: a module whose devices refuse, fail and vanish on command. Test
 * programs load the module with dlopen, fetch FAKE_CONTROL_SYMBOL and steer it through this
 * struct; the library sees an ordinary backend named "fake" with two devices. */
#ifndef FAKE_H
#define FAKE_H

#include <stddef.h>

#include <bsk/bsk.h>

/* The places where a fault can be set. */
#define FAKE_POINTS(X)                                                                             \
    X(PROBE, probe)                                                                                \
    X(OPEN, open)                                                                                  \
    X(LEND, lend)                                                                                  \
    X(QUEUE, queue)                                                                                \
    X(SYNC, sync)                                                                                  \
    X(ALLOC, alloc)                                                                                \
    X(UPLOAD, upload)                                                                              \
    X(DOWNLOAD, download)                                                                          \
    X(FILL, fill)                                                                                  \
    X(PREPARE, prepare)                                                                            \
    X(LAUNCH, launch)                                                                              \
    X(EVENT, event)                                                                                \
    X(RECORD, record)                                                                              \
    X(ELAPSED, elapsed)

typedef enum fake_point {
#define FAKE_POINT_ENUM(upper, lower) FAKE_##upper,
    FAKE_POINTS(FAKE_POINT_ENUM)
#undef FAKE_POINT_ENUM
        FAKE_POINT_COUNT
} fake_point;

/* What is alive, and what went wrong. */
typedef struct fake_counts {
    int devices, queues, allocations, events, prepared;
    int launches;   /* since the last reset */
    int violations; /* since the last reset: accesses outside an allocation, doubled frees ... */
} fake_counts;

/* Thread-safety: every function may be called from any thread. */
typedef struct fake_control {
    /* Back to a healthy backend; violations and launches become 0. */
    void (*reset)(void);
    /* The next skip calls of point succeed, the one after that answers status once. status
     * BSK_E_DEVICE_LOST loses the device for good: all later calls answer it too. */
    void (*fail)(fake_point point, bsk_status status, int skip);
    /* Nonzero: faults answer a status and leave no message. */
    void (*silent)(int on);
    /* Nonzero: every entry refuses, for the reason given (a bsk_reason). */
    void (*refuse)(int reason);
    /* Number of devices that the next probe finds, 0 to 2. */
    void (*devices)(int count);
    fake_counts (*counts)(void);
} fake_control;

#define FAKE_CONTROL_SYMBOL "bsk_fake_control"
typedef const fake_control *(*fake_control_fn)(void);

#endif
