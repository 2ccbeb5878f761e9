/* bsk: block-sparse deep-learning kernels for NVIDIA, AMD, OpenCL and CPU.
 *
 * The order of a program: create a context, pick a device, make layouts, make plans (slow: choose,
 * compile, upload), then run plans on queues (fast: no allocation, no lock).
 *
 * General rules:
 *  - Params and args structs begin with their size, are made with BSK_INIT or BSK_INIT_ALPHA, and
 *    live only during the call. Zero means the default.
 *  - Destroy and release functions take a pointer to the handle, accept NULL and clear it.
 *  - The library never aborts, exits or prints, unless BSK_VERBOSE asks it to log to stderr.
 */
#ifndef BSK_BSK_H
#define BSK_BSK_H

#include <bsk/status.h>
#include <bsk/tensor.h>
#include <bsk/context.h>
#include <bsk/queue.h>
#include <bsk/layout.h>
#include <bsk/patterns.h>
#include <bsk/matmul.h>
#include <bsk/weights.h>
#include <bsk/ops.h>
#include <bsk/elementwise.h>
#include <bsk/select.h>
#include <bsk/norms.h>
#include <bsk/softmax.h>
#include <bsk/lstm.h>
#include <bsk/optim.h>
#include <bsk/training.h>
#include <bsk/quantize.h>
#include <bsk/attention.h>
#include <bsk/dynamic.h>
#include <bsk/comm.h>
#include <bsk/grouped.h>
#include <bsk/conv.h>

#define BSK_VERSION_MAJOR  0
#define BSK_VERSION_MINOR  1
#define BSK_VERSION_PATCH  0
#define BSK_VERSION_STRING "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library that is running, "0.1.0". */
BSK_API const char *bsk_version(void);

#ifdef __cplusplus
}
#endif
#endif
