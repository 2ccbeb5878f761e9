/* Status codes and the per-thread error message. Part of bsk; include <bsk/bsk.h>. */
#ifndef BSK_STATUS_H
#define BSK_STATUS_H

#if defined(_WIN32)
#define BSK_API __declspec(dllexport)
#elif defined(__GNUC__)
#define BSK_API __attribute__((visibility("default")))
#else
#define BSK_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Every function that can fail returns one of these. Zero is success, errors are negative, and
 * values are never renumbered. On an error no output was written, except that handles are set to
 * NULL. Errors of asynchronous work on a queue appear at the next call on that queue, or through
 * bsk_queue_sync(). */
typedef enum bsk_status {
    BSK_OK = 0,
    BSK_E_INVALID = -1,      /* an argument breaks the contract; the message names it */
    BSK_E_UNSUPPORTED = -2,  /* no entry of the device accepts the problem: a normal answer */
    BSK_E_NOMEM = -3,        /* host memory */
    BSK_E_DEVICE_NOMEM = -4, /* device memory */
    BSK_E_DEVICE = -5,       /* the device or its driver refused or failed */
    BSK_E_DEVICE_LOST = -6,  /* the device is gone; its queues stay in error */
    BSK_E_PLUGIN = -7,       /* a backend module is missing, broken or of another version */
    BSK_E_VERSION = -8,      /* a params struct or serialized object is newer than the library */
    BSK_E_CORRUPT = -9,      /* serialized bytes fail their checks */
    BSK_E_ENVIRONMENT = -10, /* an environment variable has a value that is not legal */
    BSK_E_INTERNAL = -11,    /* a defect of the library */
    BSK_STATUS_FORCE_INT = 0x7fffffff
} bsk_status;

/* The name of a status: "BSK_OK", "BSK_E_INVALID" ... Never NULL; a static string. */
BSK_API const char *bsk_status_name(bsk_status status);

/* One line about the last error that a call made on this thread reported: the argument, the
 * value that was given and the legal range. Valid until the next failing call on the same
 * thread; "" if there was none. A successful call leaves it alone. */
BSK_API const char *bsk_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
