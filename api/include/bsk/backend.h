/* The interface between the dispatcher and its backends. Not included by <bsk/bsk.h>.
 *
 * A backend is a shared module that exports one symbol, bsk_backend_query_v1, or is linked in with
 * the same function under another name. It lists kernel entries as constant data. The dispatcher
 * checks a request, fills a bsk_problem, asks the entries of the device's backend, best first,
 * and freezes the first that accepts in a plan.
 *
 * Stability: BSK_BACKEND_ABI changes with every incompatible change of this header; a module of
 * another ABI is refused by name. */
#ifndef BSK_BACKEND_H
#define BSK_BACKEND_H

#include <bsk/bsk.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BSK_BACKEND_ABI = 4 };

/* Kernel ops: what entries implement. matmul and matmul_dgrad are lowered to dsd, as is dds;
 * matmul_wgrad to sdd; every other public op is a kernel op of its own. The params and args
 * structs of kernel op x are bsk_<params>_params and bsk_<params>_args. X(enum, name, params) */
#define BSK_KERNEL_OPS(X)                                                                          \
    X(DSD, dsd, dsd)                                                                               \
    X(SDD, sdd, sdd)                                                                               \
    X(REDUCED_WGRAD, reduced_wgrad, reduced_wgrad)                                                 \
    X(WEIGHT_IDENTITY, weight_identity, weight_init)                                               \
    X(WEIGHT_ORTHOGONAL, weight_orthogonal, weight_init)                                           \
    X(WEIGHT_NORMAL, weight_normal, weight_init)                                                   \
    X(WEIGHT_CHECKER, weight_checker, weight_init)                                                 \
    X(L2_NORMALIZE, l2_normalize, l2_normalize)                                                    \
    X(L2_NORMALIZE_GRAD, l2_normalize_grad, l2_normalize_grad)                                     \
    X(BLOCK_NORM, block_norm, block_norm)                                                          \
    X(PRUNE_SPARSITY, prune_sparsity, prune)                                                       \
    X(PRUNE_THRESHOLD, prune_threshold, prune)                                                     \
    X(BLOCK_L2_DECAY, block_l2_decay, block_l2_decay)                                              \
    X(CONCRETE_GATE, concrete_gate, concrete_gate)                                                 \
    X(CONCRETE_GATE_GRAD, concrete_gate_grad, concrete_gate_grad)                                  \
    X(CONCRETE_GATE_INFER, concrete_gate_infer, concrete_gate_infer)                               \
    X(BLOCK_RENEW, block_renew, block_renew)                                                       \
    X(BLOCK_GATHER, block_gather, block_gather)                                                    \
    X(PROJ_GATHER, proj_gather, proj)                                                              \
    X(PROJ_SCATTER, proj_scatter, proj)                                                            \
    X(PROJ_SCATTER_ADD, proj_scatter_add, proj_scatter_op)                                         \
    X(PROJ_SCATTER_MUL, proj_scatter_mul, proj_scatter_op)                                         \
    X(PROJ_SCATTER_MUL_GRAD, proj_scatter_mul_grad, proj_scatter_mul_grad)                         \
    X(EMBEDDING, embedding, embedding)                                                             \
    X(EMBEDDING_GRAD, embedding_grad, embedding_grad)                                              \
    X(BIAS_ACT, bias_act, bias_act)                                                                \
    X(BIAS_ACT_GRAD, bias_act_grad, bias_act_grad)                                                 \
    X(CROSS_ENTROPY, cross_entropy, cross_entropy)                                                 \
    X(ADAM, adam, adam)                                                                            \
    X(BINARY, binary, binary)                                                                      \
    X(BINARY_GRAD, binary_grad, binary_grad)                                                       \
    X(UNARY, unary, unary)                                                                         \
    X(UNARY_GRAD, unary_grad, unary_grad)                                                          \
    X(ADD_N, add_n, add_n)                                                                         \
    X(CAST, cast, cast)                                                                            \
    X(CWISE_LINEAR, cwise_linear, cwise_linear)                                                    \
    X(CWISE_LINEAR_GRAD, cwise_linear_grad, cwise_linear_grad)                                     \
    X(FILTER, filter, filter)                                                                      \
    X(SPARSE_RELU, sparse_relu, sparse_relu)                                                       \
    X(SPARSE_RELU_GRAD, sparse_relu_grad, sparse_relu_grad)                                        \
    X(DROPOUT, dropout, dropout)                                                                   \
    X(REDUCE_MAX, reduce_max, reduce_max)                                                          \
    X(TAKE_ALONG, take_along, take_along)                                                          \
    X(TAKE_ALONG_GRAD, take_along_grad, take_along_grad)                                           \
    X(TOPK, topk, topk)                                                                            \
    X(RECTIFIED_TOPK, rectified_topk, rectified_topk)                                              \
    X(RECTIFIED_TOPK_GRAD, rectified_topk_grad, rectified_topk_grad)                               \
    X(LAYER_NORM, layer_norm, layer_norm)                                                          \
    X(LAYER_NORM_GRAD, layer_norm_grad, layer_norm_grad)                                           \
    X(BATCH_NORM, batch_norm, batch_norm)                                                          \
    X(BATCH_NORM_INFER, batch_norm_infer, batch_norm_infer)                                        \
    X(BATCH_NORM_GRAD, batch_norm_grad, batch_norm_grad)                                           \
    X(MASKED_SOFTMAX, masked_softmax, masked_softmax)                                              \
    X(MASKED_SOFTMAX_GRAD, masked_softmax_grad, masked_softmax_grad)                               \
    X(LSTM_GATES, lstm_gates, lstm_gates)                                                          \
    X(LSTM_GATES_GRAD, lstm_gates_grad, lstm_gates_grad)                                           \
    X(SPLIT4, split4, split4)                                                                      \
    X(CONCAT4, concat4, concat4)                                                                   \
    X(QUANTIZE, quantize, quantize)                                                                \
    X(TENSOR_STATS, tensor_stats, tensor_stats)                                                    \
    X(ADAFACTOR, adafactor, adafactor)                                                             \
    X(EMA, ema, ema)                                                                               \
    X(GLOBAL_NORM, global_norm, global_norm)                                                       \
    X(LOSS_SCALE, loss_scale, loss_scale)                                                          \
    X(DENSE_WGRAD, dense_wgrad, dense_wgrad)                                                       \
    X(ATTN_SCORES, attn_scores, attn_scores)                                                       \
    X(ATTN_APPLY, attn_apply, attn_apply)                                                          \
    X(BLOCK_SOFTMAX, block_softmax, block_softmax)                                                 \
    X(BLOCK_SOFTMAX_GRAD, block_softmax_grad, block_softmax_grad)                                  \
    X(ATTENTION, attention, attention)                                                             \
    X(ATTENTION_GRAD, attention_grad, attention_grad)                                              \
    X(ADAM_N, adam_n, adam_n)                                                                      \
    X(ATTENTION_DECODE, attention_decode, attention_decode)                                        \
    X(LAYOUT_TOPK, layout_topk, layout_topk)                                                       \
    X(LAYOUT_MASK, layout_mask, layout_mask)                                                       \
    X(GROUPED_MATMUL, grouped_matmul, grouped_matmul)                                              \
    X(GROUPED_WGRAD, grouped_wgrad, grouped_wgrad)                                                 \
    X(MOE_ROUTE, moe_route, moe_route)                                                             \
    X(CONV, conv, conv)                                                                            \
    X(CONV_DGRAD, conv_dgrad, conv_dgrad)                                                          \
    X(CONV_WGRAD, conv_wgrad, conv_wgrad)                                                          \
    X(CONV_EDGE_BIAS, conv_edge_bias, conv_edge_bias)                                              \
    X(CONV_EDGE_BIAS_GRAD, conv_edge_bias_grad, conv_edge_bias_grad)

typedef enum bsk_op {
#define BSK_OP_ENUM(upper, lower, params) BSK_OP_##upper,
    BSK_KERNEL_OPS(BSK_OP_ENUM)
#undef BSK_OP_ENUM
        BSK_OP_COUNT
} bsk_op;

/* The canonical structure of a layout, built once in the core and the same for every backend.
 * An *entry* is a position in one of the two sorted lists. Absolute entry and slot numbers run
 * over all heads; head h owns entries and slots head_start[h] .. head_start[h + 1] - 1. */
typedef struct bsk_layout_tables {
    size_t struct_size;
    int64_t rows, cols;             /* elements */
    int32_t block_rows, block_cols; /* elements */
    int32_t grid_rows, grid_cols;   /* blocks: ceil(rows / block_rows) ... */
    int32_t heads;
    int32_t ordered; /* row_slot is the identity */
    int64_t nnz;
    const int64_t *head_start; /* [heads + 1] */
    const int64_t *row_start;  /* [heads * (grid_rows + 1)], entries of block row i of head h:
                                       row_start[h * (grid_rows + 1) + i] .. [... + i + 1] - 1 */
    const int32_t *row_col;    /* [nnz] ascending within a block row */
    const int32_t *row_slot;   /* [nnz] */
    const int64_t *col_start;  /* [heads * (grid_cols + 1)] */
    const int32_t *col_row;    /* [nnz] ascending within a block column */
    const int32_t *col_slot;   /* [nnz] */
    const int32_t *slot_row;   /* [nnz] by slot: the list for weight gradients */
    const int32_t *slot_col;   /* [nnz] */
} bsk_layout_tables;

/* What an entry is asked. params is the kernel op's public params struct in full size, with
 * strides filled in and zeros replaced by the defaults that the header states; all checks that the
 * header promises have passed. Lives as long as the plan. */
typedef struct bsk_problem {
    size_t struct_size;
    bsk_op op;
    bsk_dtype dtype; /* of the op's operands (of its first input or main output) */
    const void *params;
    const bsk_layout_tables *layout; /* NULL where the op has none */
    int32_t packed; /* dsd: runs are expected to bring an image of s (bsk_plan_options): a hint for
                       `seconds`, since runs without it must work too */
} bsk_problem;

/* Why an entry refuses. */
typedef enum bsk_reason {
    BSK_ACCEPT = 0,
    BSK_REFUSE_DTYPE,
    BSK_REFUSE_BLOCK,
    BSK_REFUSE_ARCH,
    BSK_REFUSE_BANNED,
    BSK_REFUSE_REFERENCE, /* reference entries are not chosen under this policy */
    BSK_REFUSE_ALIGNMENT,
    BSK_REFUSE_STRIDE,
    BSK_REFUSE_RANK,
    BSK_REFUSE_SHAPE,
    BSK_REFUSE_LAYOUT,
    BSK_REFUSE_EPILOGUE,
    BSK_REFUSE_OPTION,   /* another field of the params */
    BSK_REFUSE_LIMIT,    /* local memory, group size, index width */
    BSK_REFUSE_UNPROVEN, /* of negative priority: chosen by name only */
    BSK_REASON_COUNT
} bsk_reason;

typedef struct bsk_device_props {
    size_t struct_size;
    char name[128];
    char driver[64];
    int32_t arch; /* rank in bsk_backend.archs */
    int32_t compute_units;
    uint64_t memory_bytes;
    int32_t host_memory;  /* works on BSK_MEM_HOST views */
    uint32_t mem_kinds;   /* accepted views: bit 1 << bsk_mem_kind */
    uint32_t dtypes;      /* arithmetic and storage types: bit 1 << bsk_dtype */
    uint64_t local_bytes; /* shared or local memory of a group; 0 on CPUs */
    int32_t max_group;    /* work items of a group; 0 on CPUs */
    int32_t wave;         /* lanes that execute together; 0 on CPUs and where not known, 1 where a
                             group is one lane: CPUs behind OpenCL */
} bsk_device_props;

/* A plan's share of an entry. problem is set before prepare; the rest is prepare's to fill. */
typedef struct bsk_prepared {
    const bsk_problem *problem;
    void *state; /* the entry's own; NULL if it needs none */
    size_t workspace_bytes;
    size_t workspace_alignment; /* 0 means 64 */
    size_t packed_bytes;        /* of the image that pack makes; 0: this plan has none */
    size_t packed_alignment;    /* 0 means 64 */
} bsk_prepared;

enum {
    BSK_ENTRY_REFERENCE = 1, /* defines the op; accepts everything */
    BSK_ENTRY_NONDETERMINISTIC = 2,
    BSK_ENTRY_NOT_CAPTURABLE = 4
};

/* A kernel entry: constant data and its functions. Unset masks and ranges mean "any". */
typedef struct bsk_entry {
    const char *name; /* file, symbol stem and filter: op_dtype_block_arch_variant */
    bsk_op op;
    uint32_t dtypes; /* bit 1 << bsk_dtype for each accepted problem.dtype */
    uint32_t blocks; /* bsk_block_bit of each accepted size; both sides of a block must be in */
    int32_t arch_min, arch_max; /* ranks of bsk_backend.archs */
    uint32_t flags;
    int32_t priority;  /* larger is better; below 0: by name only */
    int32_t alignment; /* every address must be a multiple of this many bytes; 0: of its element.
                          At most 16: what plans promise unless their options say less */
    /* Pure, no allocation. NULL accepts what the data above admits. */
    bsk_reason (*accept)(const bsk_problem *problem, const bsk_device_props *props);
    /* The model's estimate of one run's time in seconds, pure, for problems that are accepted: of
     * entries of one priority the fastest is chosen. It leaves out the packing of an image where
     * problem.packed is set. NULL: the first that accepts is chosen. */
    double (*seconds)(const bsk_problem *problem, const bsk_device_props *props);
    /* Once per plan, may compile, allocate and upload. NULL: nothing to do. */
    bsk_status (*prepare)(void *device, bsk_prepared *prepared);
    /* Enqueues one run. args is the kernel op's public args struct in full size, checked. No
     * allocation; any thread; leaves the thread's current device as it was. */
    bsk_status (*launch)(const bsk_prepared *prepared, void *queue, const void *args);
    /* dsd: enqueues the making of the image of s that later launches get as args.packed, and then
     * need no s. Under the rules of launch. NULL: the entry has none. */
    bsk_status (*pack)(const bsk_prepared *prepared, void *queue, bsk_mem s, bsk_mem packed);
    /* Frees what prepare made. NULL: nothing to free. */
    void (*release)(void *device, bsk_prepared *prepared);
} bsk_entry;

/* Bits of bsk_entry.blocks: one for each first-class size, one for all others. */
static inline uint32_t bsk_block_bit(int32_t size)
{
    return size == 8     ? 1u << 3
           : size == 16  ? 1u << 4
           : size == 32  ? 1u << 5
           : size == 64  ? 1u << 6
           : size == 128 ? 1u << 7
                         : 1u;
}
#define BSK_DTYPE_BIT(dtype) (1u << (dtype))

typedef struct bsk_arch {
    const char *name; /* "avx512", "sm90a" */
    int32_t rank;     /* ascending within the backend, from 1 */
} bsk_arch;

/* What the dispatcher gives to a backend; valid as long as its context. */
typedef struct bsk_host {
    size_t struct_size;
    uint32_t abi;
    void *context; /* opaque: the first argument of the functions below */
    bsk_allocator allocator;
    int32_t num_threads;   /* 0: automatic */
    const char *cache_dir; /* an absolute directory; NULL or "off": none */
    void (*log)(void *context, bsk_log_level level, const char *format, ...);
    /* Sets the thread's last error and returns status: `return host->fail(host->context, ...)`. */
    bsk_status (*fail)(void *context, bsk_status status, const char *format, ...);
} bsk_host;

/* What a backend calls with a native stream while its device is current. */
typedef bsk_status (*bsk_stream_use_fn)(void *argument, void *stream);

/* A backend. All functions but those marked optional must be set. */
typedef struct bsk_backend {
    size_t struct_size;
    uint32_t abi;     /* BSK_BACKEND_ABI */
    const char *name; /* "cuda"; device ids are "cuda:0" ... */
    const bsk_arch *archs;
    size_t arch_count;
    const bsk_entry *entries;
    size_t entry_count;

    /* Counts devices. A missing driver is BSK_OK with *count = 0 and a log line. */
    bsk_status (*probe)(const bsk_host *host, int32_t *count);
    bsk_status (*device_open)(const bsk_host *host, int32_t index, void **device,
                              bsk_device_props *props);
    void (*device_close)(void *device);

    bsk_status (*queue_create)(void *device, void **queue);
    bsk_status (*queue_wrap)(void *device, void *native, void **queue); /* NULL: UNSUPPORTED */
    void (*queue_destroy)(void *queue);
    bsk_status (*queue_sync)(void *queue);

    bsk_status (*mem_alloc)(void *device, size_t bytes, bsk_mem *mem);
    void (*mem_free)(void *device, bsk_mem mem);
    bsk_status (*mem_upload)(void *queue, bsk_mem dst, const void *src, size_t bytes);
    bsk_status (*mem_download)(void *queue, void *dst, bsk_mem src, size_t bytes);
    bsk_status (*mem_fill)(void *queue, bsk_mem dst, uint8_t byte, size_t bytes);

    /* Optional as a group: without them events are UNSUPPORTED. */
    bsk_status (*event_create)(void *device, void **event);
    void (*event_destroy)(void *event);
    bsk_status (*event_record)(void *event, void *queue);
    bsk_status (*event_elapsed)(void *start, void *stop, double *milliseconds);

    /* Optional: for libraries that enqueue work of their own. Answers use(argument, stream), which is
     * called while the device is the thread's current one, with the queue's native stream, or NULL
     * where queue is NULL. Without it `use` is called as it is, with NULL. */
    bsk_status (*lend)(void *device, void *queue, bsk_stream_use_fn use, void *argument);
} bsk_backend;

/* The one exported symbol of a module. Returns NULL if it cannot serve host->abi. */
typedef const bsk_backend *(*bsk_backend_query_fn)(const bsk_host *host);
#define BSK_BACKEND_SYMBOL "bsk_backend_query_v1"

/* The address of a host or device-pointer view. */
static inline void *bsk_mem_address(bsk_mem m)
{
    return m.handle ? (char *)m.handle + m.offset : NULL;
}

#ifdef __cplusplus
}
#endif
#endif
