/* The descriptor of each public op: one table row per argument, choice and scalar. The generic
 * plan and run code checks requests by it, tests make bad arguments from it, and the fuzzer fills
 * params through it. */
#ifndef BSKI_OP_H
#define BSKI_OP_H

#include <bsk/backend.h>

typedef enum bski_role {
    BSKI_IN,    /* read */
    BSKI_OUT,   /* written; read only where beta says so */
    BSKI_INOUT, /* read and written: in-place ops */
} bski_role;

typedef enum bski_stride_rule {
    BSKI_ANY_STRIDE,
    BSKI_CONTIGUOUS,   /* row-major without gaps */
    BSKI_UNIT_AXIS,    /* one of the last two axes has stride 1 */
    BSKI_DENSE_BLOCKS, /* the last three axes contiguous, a leading group axis free */
    BSKI_UNIT_LAST,    /* the last axis has stride 1 */
} bski_stride_rule;

/* Beside BSK_DTYPE_BIT masks: types that follow the op's main argument. */
#define BSKI_SAME (1u << 30) /* the main argument's type, or the other f8 type beside an f8 type */
#define BSKI_SIDE (1u << 31) /* f32, or f64 where the main argument is f64 */

typedef struct bski_arg {
    const char *name;
    uint16_t desc; /* offset of the bsk_tensor in params */
    uint16_t mem;  /* offset of the bsk_mem (list: of the const bsk_mem *) in args */
    uint8_t role;  /* bski_role */
    uint8_t optional;
    uint8_t list; /* args hold an array of params.pairs views */
    uint8_t rank_min, rank_max;
    uint8_t strides; /* bski_stride_rule */
    uint16_t alias;  /* bit i: an output that may be the same memory as argument i */
    uint32_t dtypes;
} bski_arg;

typedef enum bski_kind { BSKI_I32, BSKI_I64, BSKI_U64, BSKI_F64 } bski_kind;

/* A field of params (attribute) or args (scalar) with its legal range. */
typedef struct bski_field {
    const char *name;
    uint16_t offset;
    uint8_t kind;      /* bski_kind */
    uint8_t open;      /* the upper end is excluded */
    double low, high;  /* legal range; not finite ends are unbounded. NaN is never legal */
    double zero_means; /* the default that replaces 0 in params; 0: none */
} bski_field;

typedef struct bski_op_info bski_op_info;

struct bski_op_info {
    const char *name;
    bsk_op kernel_op;
    uint16_t params_size, args_size;
    uint16_t layout; /* offset of the layout in params, or 0 */
    /* Offsets in params of a list on the host, const int32_t *, and of its int64_t size, or 0. */
    uint16_t list, list_size;
    uint8_t heads;   /* layouts with several heads are legal */
    uint8_t main;    /* index of the argument whose type is the problem's */
    uint32_t widens; /* bit i: the problem is f64 where argument i is, whatever main's type */
    uint8_t arg_count, attr_count, scalar_count;
    uint16_t pairs;     /* offset of params.pairs, or 0 */
    uint16_t workspace; /* offset in args */
    uint16_t packed;    /* offset in args of the packed image of argument BSKI_PACKED, or 0 */
    const bski_arg *args;
    const bski_field *attrs;
    const bski_field *scalars;
    /* Shapes and relations between arguments; types, ranks and strides have been checked. */
    bsk_status (*check)(const bski_op_info *op, const void *params,
                        const bsk_layout_tables *layout);
    /* To the kernel op's own structs; NULL where the public structs are those. */
    void (*lower_params)(const void *params, void *kernel_params);
    void (*lower_args)(const void *params, const void *args, void *kernel_args);
    /* Useful floating-point operations; NULL: not counted. */
    double (*flops)(const void *params, const bsk_layout_tables *layout);
};

extern const bski_op_info *const bski_ops[];
extern const size_t bski_op_count;

/* The descriptor of a kernel op itself, and its name. */
const bski_op_info *bski_kernel_op(bsk_op op);
/* A public op by name, or NULL. */
const bski_op_info *bski_op_find(const char *name);

/* BSKI_PACKED: the argument that can be replaced by a packed image, of ops that have one. */
enum { BSKI_MAX_ARGS = 20, BSKI_MAX_STRUCT = 2048, BSKI_PACKED = 1 };

static inline const bsk_tensor *bski_arg_tensor(const bski_op_info *op, const void *params, int i)
{
    return (const bsk_tensor *)((const char *)params + op->args[i].desc);
}

/* --- The rows of the tables, in op_*.c ------------------------------------------------------- */

#define BSKI_ARG(group, field)                                                                     \
    .name = #field, .desc = offsetof(bsk_##group##_params, field),                                 \
    .mem = offsetof(bsk_##group##_args, field)

/* Arguments of usual forms: a vector, an activation on either axis, the blocks of a weight. */
#define BSKI_VECTOR(group, field)                                                                  \
    BSKI_ARG(group, field), .rank_min = 1, .rank_max = 1, .strides = BSKI_CONTIGUOUS
#define BSKI_ACTIVATION(group, field)                                                              \
    BSKI_ARG(group, field), .rank_min = 2, .rank_max = 2, .strides = BSKI_UNIT_AXIS
#define BSKI_BLOCKS(group, field)                                                                  \
    BSKI_ARG(group, field), .rank_min = 3, .rank_max = 3, .strides = BSKI_CONTIGUOUS

#define BSKI_ATTR(group, field, type, lo, hi)                                                      \
    {                                                                                              \
        .name = #field, .offset = offsetof(bsk_##group##_params, field), .kind = BSKI_##type,      \
        .low = lo, .high = hi                                                                      \
    }
/* With a default in place of 0; BELOW: the upper end is excluded, and a default of 0 is none. */
#define BSKI_ATTR_OR(group, field, type, lo, hi, otherwise)                                        \
    {                                                                                              \
        .name = #field, .offset = offsetof(bsk_##group##_params, field), .kind = BSKI_##type,      \
        .low = lo, .high = hi, .zero_means = otherwise                                             \
    }
#define BSKI_ATTR_BELOW(group, field, type, lo, hi, otherwise)                                     \
    {                                                                                              \
        .name = #field, .offset = offsetof(bsk_##group##_params, field), .kind = BSKI_##type,      \
        .low = lo, .high = hi, .zero_means = otherwise, .open = 1                                  \
    }
#define BSKI_SCALAR(group, field, type, lo, hi)                                                    \
    {                                                                                              \
        .name = #field, .offset = offsetof(bsk_##group##_args, field), .kind = BSKI_##type,        \
        .low = lo, .high = hi                                                                      \
    }
#define BSKI_COUNT(array) (sizeof(array) / sizeof((array)[0]))
/* A table of a descriptor: rows of kind arg, attr or scalar. */
#define BSKI_TABLE(kind, rows) .kind##s = rows, .kind##_count = BSKI_COUNT(rows)

/* result * alpha + beta * output. */
#define BSKI_ALPHA_BETA(group)                                                                     \
    BSKI_SCALAR(group, alpha, F64, -INFINITY, INFINITY),                                           \
        BSKI_SCALAR(group, beta, F64, -INFINITY, INFINITY)

/* The same for dx beside other gradients, with an attribute that says so. */
#define BSKI_DX_BLEND(group) BSKI_ATTR(group, dx_blend, I32, 0, 1)
#define BSKI_DX_ALPHA_BETA(group)                                                                  \
    BSKI_SCALAR(group, dx_alpha, F64, -INFINITY, INFINITY),                                        \
        BSKI_SCALAR(group, dx_beta, F64, -INFINITY, INFINITY)
/* Without it entries get 1 and 0. */
#define BSKI_DX_LOWER(group)                                                                       \
    static void group##_lower(const void *params, const void *args, void *kernel_args)             \
    {                                                                                              \
        const bsk_##group##_params *p = params;                                                    \
        bsk_##group##_args *k = kernel_args;                                                       \
        memcpy(k, args, sizeof *k);                                                                \
        if (!p->dx_blend) {                                                                        \
            k->dx_alpha = 1;                                                                       \
            k->dx_beta = 0;                                                                        \
        }                                                                                          \
    }

/* Tensors in a list. */
enum { BSKI_MAX_PAIRS = 65536 };
#define BSKI_PAIRS(group) BSKI_ATTR_OR(group, pairs, I32, 0, BSKI_MAX_PAIRS, 1)

/* What every descriptor states about its structs. */
#define BSKI_STRUCTS(group)                                                                        \
    .params_size = sizeof(bsk_##group##_params), .args_size = sizeof(bsk_##group##_args),          \
    .workspace = offsetof(bsk_##group##_args, workspace)

#define BSKI_DEFINE_OP(op, group)                                                                  \
    _Static_assert(sizeof(bsk_##group##_args) <= BSKI_MAX_STRUCT, "a run copies its arguments");   \
    bsk_status bsk_##op##_plan(const bsk_device *device, const bsk_##group##_params *params,       \
                               const bsk_plan_options *options, bsk_plan **plan)                   \
    {                                                                                              \
        return bski_plan_create(&bski_op_##op, device, params, options, plan);                     \
    }                                                                                              \
    bsk_status bsk_##op##_run(const bsk_plan *plan, bsk_queue *queue,                              \
                              const bsk_##group##_args *args)                                      \
    {                                                                                              \
        return bski_plan_run(&bski_op_##op, plan, queue, args);                                    \
    }

/* The function that makes the packed image. */
#define BSKI_DEFINE_PREPACK(op)                                                                    \
    bsk_status bsk_##op##_prepack(const bsk_plan *plan, bsk_queue *queue, bsk_mem unpacked,        \
                                  bsk_mem packed)                                                  \
    {                                                                                              \
        return bski_plan_prepack(&bski_op_##op, plan, queue, unpacked, packed);                    \
    }

bsk_status bski_plan_create(const bski_op_info *op, const bsk_device *device, const void *params,
                            const bsk_plan_options *options, bsk_plan **plan);
bsk_status bski_plan_run(const bski_op_info *op, const bsk_plan *plan, bsk_queue *queue,
                         const void *args);
bsk_status bski_plan_prepack(const bski_op_info *op, const bsk_plan *plan, bsk_queue *queue,
                             bsk_mem unpacked, bsk_mem packed);

/* Fails with a message unless tensor.dims[dim] equals expected: what is the words for the latter. */
bsk_status bski_expect_dim(const bski_op_info *op, const char *name, const bsk_tensor *tensor,
                           int dim, int64_t expected, const char *what);
/* The same for all dimensions of a tensor, which must have that rank. */
bsk_status bski_expect_shape(const bski_op_info *op, const char *name, const bsk_tensor *tensor,
                             int rank, const int64_t *dims, const char *what);

/* The same for an optional vector, and for an optional tensor of the shape of another. */
bsk_status bski_expect_vector(const bski_op_info *op, const char *name, const bsk_tensor *tensor,
                              int64_t size, const char *what);
bsk_status bski_expect_like(const bski_op_info *op, const char *name, const bsk_tensor *tensor,
                            const bsk_tensor *like, const char *what);

/* One element, of rank 0 or 1; absent is fine. */
bsk_status bski_expect_one(const bski_op_info *op, const char *name, const bsk_tensor *tensor);
/* Of the rank of another tensor, each dimension that of the other or 1; absent is fine. */
bsk_status bski_expect_broadcast(const bski_op_info *op, const char *name, const bsk_tensor *tensor,
                                 const bsk_tensor *full, const char *what);

/* Runs a check and returns from the calling function if it fails. */
#define BSKI_TRY(call)                                                                             \
    do {                                                                                           \
        bsk_status try_status = (call);                                                            \
        if (try_status != BSK_OK)                                                                  \
            return try_status;                                                                     \
    } while (0)

#endif
