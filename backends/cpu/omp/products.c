/* The block-sparse products, dsd and sdd, in f32 and in f64 arithmetic. */
#include <stdbool.h>

#include "act.h"
#include "isa.h"
#include "rows.h"

/* Bytes of packed operands at a time, of S in one task, and of B in a first-level cache. */
enum { DSD_PACKED = 64 << 20, DSD_TASK = 256 << 10, DSD_SLICE = 24 << 10 };

#define T        float
#define V        vec_f32
#define FN(name) name##_f32
#define OWN      BSK_F32
#include "tile.h"
#include "dsd.h"
#undef T
#undef V
#undef OWN
#undef FN

#define T        double
#define V        vec_f64
#define FN(name) name##_f64
#define OWN      BSK_F64
#include "tile.h"
#include "dsd.h"
#undef T
#undef V
#undef OWN
#undef FN

#define DSD_ENTRY(type)                                                                           \
    OMP_DECLARE(dsd_##type);                                                              \
    OMP_ACCEPT(dsd_##type)                                                         \
    {                                                                                             \
        (void)props;                                                                              \
        return dsd_accept_##type(problem);                                                        \
    }                                                                                             \
    OMP_PREPARE(dsd_##type)                                                        \
    {                                                                                             \
        dsd_##type d;                                                                             \
        (void)device;                                                                             \
        return dsd_shape_##type(prepared->problem, &d, &prepared->workspace_bytes)                \
                   ? BSK_OK                                                                       \
                   : BSK_E_UNSUPPORTED;                                                       \
    }                                                                                             \
    OMP_LAUNCH(dsd_##type)                                                         \
    {                                                                                             \
        dsd_run_##type(prepared, ((const bski_cpu_queue *)queue)->threads, args);                 \
        return BSK_OK;                                                                            \
    }

DSD_ENTRY(f32)
DSD_ENTRY(f64)
