/* What the host sides of the portable kernels share: an op's file lists the kernels and tables that
 * it needs, and launches them by number. */
#ifndef BSKI_SIMT_ENTRY_H
#define BSKI_SIMT_ENTRY_H

#include <stdbool.h>

#include <backends/simt/launch.h>
#include <common/checked.h>
#include <common/dtype.h>

/* The types of the structs of scalars. */
typedef int64_t i64;
typedef int32_t i32;

enum { SIMT_LANES = 256, SIMT_LONG_LANES = 512, SIMT_MAX_NEEDS = 8 };

/* What a plan needs: kernels of one file, in the problem's type, and tables of the layout. */
typedef struct simt_need {
    const char *file;
    const char *kernels[SIMT_MAX_NEEDS];
    bool slots;          /* SLOT_ROW, SLOT_COL */
    bool rows;           /* ROW_START, ROW_COL, ROW_SLOT */
    bool cols;           /* COL_START, COL_ROW, COL_SLOT */
    bool single;         /* kernels of simt_single */
    bsk_dtype u16_as;    /* the type whose kernels serve problems of u16 */
    bsk_dtype type;      /* of the kernels, where it is not the problem's */
    const char *variant; /* where it is not the device's own */
} simt_need;

enum {
    SLOT_ROW,
    SLOT_COL,
    ROW_START,
    ROW_COL,
    ROW_SLOT,
    COL_START,
    COL_ROW,
    COL_SLOT,
    OWN_TABLE,
    OWN_LIST,
    SIMT_TABLES
};

/* A plan's state. */
typedef struct simt_state {
    const simt_kernel *kernel[SIMT_MAX_NEEDS];
    bsk_mem table[SIMT_TABLES];
    i64 number[4]; /* the op's own */
} simt_state;

/* Sets prepared->state. On failure nothing stays behind. */
bsk_status bski_simt_prepare(void *device, bsk_prepared *prepared, const simt_need *need);
void bski_simt_release(void *device, bsk_prepared *prepared);
/* One more table; on failure the plan's state is released. */
bsk_status bski_simt_table(void *device, bsk_prepared *prepared, int table, const void *data,
                           i64 count, size_t size);

/* A launch of kernel number `kernel` on a grid of x by y groups. */
typedef struct simt_run {
    const bsk_prepared *prepared;
    void *queue;
    int kernel;
    i32 lanes; /* of a group; 0: simt_lanes() */
    i64 x, y;
    const void *scalars;
    size_t scalar_bytes;
    const bsk_mem *buffers;
    size_t buffer_count;
} simt_run;

bsk_status bski_simt_run(const simt_run *run);
/* BSK_E_INTERNAL with a message, for a launch whose sizes are not those of its plan. */
bsk_status bski_simt_unplanned(const void *queue, const char *op);

#define BUFFERS(...)                                                                               \
    .buffers = (const bsk_mem[]){__VA_ARGS__},                                                     \
    .buffer_count = sizeof((const bsk_mem[]){__VA_ARGS__}) / sizeof(bsk_mem)
/* Launches in the function `NAME_launch(prepared, queue, args)` of an entry. */
#define LAUNCH(number, groups_x, groups_y, arg, ...)                                               \
    LAUNCH_LANES(number, 0, groups_x, groups_y, arg, __VA_ARGS__)
#define LAUNCH_LANES(number, group_lanes, groups_x, groups_y, arg, ...)                            \
    bski_simt_run(&(const simt_run){.prepared = prepared,                                          \
                                    .queue = queue,                                                \
                                    .kernel = (number),                                            \
                                    .lanes = (group_lanes),                                        \
                                    .x = (groups_x),                                               \
                                    .y = (groups_y),                                               \
                                    .scalars = &(arg),                                             \
                                    .scalar_bytes = sizeof(arg),                                   \
                                    BUFFERS(__VA_ARGS__)})

static inline const simt_state *state_of(const bsk_prepared *prepared)
{
    return prepared->state;
}

static inline const simt_device *queue_device(const void *queue)
{
    return ((const simt_queue *)queue)->device;
}

static inline bsk_mem table_of(const bsk_prepared *prepared, int table)
{
    return state_of(prepared)->table[table];
}

/* Lanes of a group, and elements of a lane's run: LANES and VEC of lanes.h. */
static inline i32 simt_lanes(const simt_device *d)
{
    return d->wide ? 1 : SIMT_LANES;
}

/* Bytes of an element of a float type, and of the arithmetic on it. */
static inline size_t simt_size(bsk_dtype type)
{
    return type == BSK_F64 ? sizeof(double) : type == BSK_F32 ? sizeof(float) : sizeof(uint16_t);
}

static inline size_t simt_num_size(bsk_dtype type)
{
    return type == BSK_F64 ? sizeof(double) : sizeof(float);
}

/* LONG_LANES of loss.h. */
static inline i32 simt_long_lanes(const simt_device *d)
{
    return d->wide || d->props.max_group < SIMT_LONG_LANES ? simt_lanes(d) : SIMT_LONG_LANES;
}

static inline i64 simt_vec(const simt_device *d, bsk_dtype type)
{
    return d->wide ? 16 : type == BSK_F64 ? 2 : type == BSK_F32 ? 4 : 8;
}

/* Groups for `items` independent pieces of work for lanes, of which each takes several. */
i64 bski_simt_groups(const simt_device *d, i64 items);
/* At most most groups, of which `resident` run on a compute unit. */
i64 bski_simt_groups_most(const simt_device *d, i64 most, i64 resident);

/* How a sum of `length` terms is shared out among groups, of which there are `across` without that:
 * enough for `resident` on each compute unit, with a few steps of at_once terms each. Fixed by the
 * plan, so that the bits are. */
typedef struct simt_shares {
    i64 share, shares; /* terms of a share */
} simt_shares;

simt_shares bski_simt_shares(const simt_device *d, i64 length, i64 at_once, i64 across,
                             i64 resident);

/* Groups that add up the shares of `count` elements: SHARE_COLS of lanes.h to a group. */
static inline i64 simt_finish_groups(const simt_device *d, i64 count)
{
    return bski_simt_groups_most(d, bski_ceil_div(count, d->wide ? 1 : 32), 16);
}

/* Lanes next to each other for `runs` runs of a row, `most` of them at most. */
static inline i32 simt_lanes_across(const simt_device *d, i64 runs, i32 most)
{
    i32 lanes = 1;
    while (!d->wide && lanes < runs && lanes < most)
        lanes *= 2;
    return lanes;
}

/* A scalar argument: the bits of a number of the type that kernels for `type` compute in. */
i64 bski_simt_num(bsk_dtype type, double v);
/* The same for the problem's type. */
static inline i64 simt_num(const bsk_prepared *prepared, double v)
{
    return bski_simt_num(prepared->problem->dtype, v);
}

/* The same of what keeps a divisor from being 0. */
static inline i64 simt_eps(const bsk_prepared *prepared, double eps)
{
    const bool wide = prepared->problem->dtype == BSK_F64;
    return simt_num(prepared, wide ? eps : (double)bski_f32_eps(eps));
}

static inline i64 simt_runs(i64 cols, i64 vec)
{
    return cols / vec + (cols % vec > 0);
}

/* Groups for a walk over runs of the problem's type. */
static inline i64 simt_walk_groups(const bsk_prepared *prepared, const void *queue, i64 rows,
                                   i64 cols)
{
    const simt_device *d = queue_device(queue);
    return bski_simt_groups(d, rows * simt_runs(cols, simt_vec(d, prepared->problem->dtype)));
}

/* An optional tensor's memory. */
static inline bsk_mem mem_of(const bsk_tensor *t, bsk_mem mem)
{
    return t->dtype == BSK_NONE ? (bsk_mem){BSK_MEM_NULL, NULL, 0, 0} : mem;
}

static inline bsk_mem mem_none(void)
{
    return (bsk_mem){BSK_MEM_NULL, NULL, 0, 0};
}

/* Whether runs of a tensor at mem may be loaded as vectors: unit stride on axis `inner`, every line
 * along it aligned. Absent tensors may. Wide devices take any address. */
bool bski_simt_vector(const simt_device *d, bsk_dtype type, const bsk_tensor *t, bsk_mem mem,
                      int inner);
/* The same for contiguous memory in rows of cols elements. */
bool bski_simt_vector_rows(const simt_device *d, bsk_dtype type, bsk_mem mem, i64 rows, i64 cols);

/* The axis (0 or 1) of matrices along which most of them have stride 1. NULL and absent ones do not
 * count. */
int bski_simt_inner(const bsk_tensor *const *tensors, int count);

/* What all entries ask of a device: the tensors' types of floats, and room for a group. Numbers of 8
 * bits are bytes to it. */
bsk_reason bski_simt_accept(const bsk_device_props *props, const bsk_tensor *const *tensors,
                            size_t count);
#define ACCEPT(...)                                                                                \
    bski_simt_accept(props, (const bsk_tensor *const[]){__VA_ARGS__},                              \
                     sizeof((const bsk_tensor *const[]){__VA_ARGS__}) / sizeof(bsk_tensor *))

/* A piece of workspace of count * size bytes, aligned; false on overflow. *total grows. */
bool bski_simt_space(size_t *total, i64 count, size_t size, size_t *at);

/* The four functions of an entry. Most have nothing of their own to prepare or to release. */
#define SIMT_ACCEPT(op)                                                                            \
    bsk_reason simt_##op##_accept(const bsk_problem *problem, const bsk_device_props *props);      \
    bsk_reason simt_##op##_accept(const bsk_problem *problem, const bsk_device_props *props)
#define SIMT_PREPARE(op)                                                                           \
    bsk_status simt_##op##_prepare(void *device, bsk_prepared *prepared);                          \
    bsk_status simt_##op##_prepare(void *device, bsk_prepared *prepared)
#define SIMT_LAUNCH(op)                                                                            \
    bsk_status simt_##op##_launch(const bsk_prepared *prepared, void *queue, const void *args);    \
    bsk_status simt_##op##_launch(const bsk_prepared *prepared, void *queue, const void *args)
#define SIMT_RELEASE(op)                                                                           \
    void simt_##op##_release(void *device, bsk_prepared *prepared);                                \
    void simt_##op##_release(void *device, bsk_prepared *prepared)                                 \
    {                                                                                              \
        bski_simt_release(device, prepared);                                                       \
    }
#define SIMT_PREPARE_BY(op, ...)                                                                   \
    SIMT_RELEASE(op)                                                                               \
    SIMT_PREPARE(op)                                                                               \
    {                                                                                              \
        static const simt_need need = {__VA_ARGS__};                                               \
        return bski_simt_prepare(device, prepared, &need);                                         \
    }

#endif
