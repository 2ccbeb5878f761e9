/* Block-sparse matrix products. Part of bsk; include <bsk/bsk.h>.
 *
 * Rules of every op in bsk (this header, weights.h, ops.h, optim.h):
 *  - bsk_<op>_plan takes shapes and choices and returns a plan; bsk_<op>_run takes memory and
 *    scalars. A tensor that is absent in the params (dtype BSK_NONE) must be absent in the args.
 *  - Memory must be aligned to its element, and to 16 bytes where the plan's entry relies on it:
 *    options.alignment of a plan says how much less to rely on.
 *  - dst = alpha * op + beta * dst wherever alpha and beta occur; with beta = 0 dst is not read.
 *    Make such args with BSK_INIT_ALPHA.
 *  - An output must not overlap an input or another output unless the op's "In place" line allows
 *    it, and the workspace must not overlap any of them.
 *  - Strides are free but where a "Strides" line says otherwise. Vectors ([n]) are contiguous, and
 *    the axes of an output nest: each stride steps over all that smaller ones reach. A plan is
 *    refused (INVALID) where that is not so.
 *  - Empty is defined: nnz = 0, N = 0 or an empty block row give zeros (plus the epilogue), never
 *    stale memory.
 *  - Results are deterministic, and do not depend on the number of threads.
 *  - Errors: INVALID names the argument, its value and the legal range; nothing is written then.
 */
#ifndef BSK_MATMUL_H
#define BSK_MATMUL_H

#include <bsk/layout.h>
#include <bsk/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Activation in an epilogue. gelu is the tanh form, gelu_erf the exact one; silu(x) = x *
 * sigmoid(x), quick_gelu(x) = x * sigmoid(1.702 x) (R1's "fast gelu"). NaN gives NaN, in relu and
 * in the derivatives too. In f32 all but the reference may give 0 where what x is multiplied with is
 * below 2^-126, here and wherever an op takes a bsk_act: results below 1.1e-36 may be lost. */
typedef enum bsk_act {
    BSK_ACT_NONE = 0,
    BSK_ACT_RELU = 1,
    BSK_ACT_GELU = 2,
    BSK_ACT_GELU_ERF = 3,
    BSK_ACT_SILU = 4,
    BSK_ACT_QUICK_GELU = 5,
    BSK_ACT_COUNT = 6,
    BSK_ACT_FORCE_INT = 0x7fffffff
} bsk_act;

/* How operands of type f32 may be multiplied. Without effect on other types. */
typedef enum bsk_precision {
    BSK_PRECISION_FULL = 0, /* as they are */
    BSK_PRECISION_TF32 = 1, /* may be rounded to tf32 (11 significant bits, f32's range) first: at
                               most 2^-10 |x| |w| more of error a product, and numbers from
                               0x1.ffep127 on may become infinite. A permission: entries that
                               multiply in f32 still count */
    BSK_PRECISION_FORCE_INT = 0x7fffffff
} bsk_precision;

/* ---------------------------------------------------------------------------------------------
 * matmul: Y = X W, or Y = X W^T, with W block-sparse [K, M] on a layout of K = rows, M = cols.
 *
 * pre = alpha * (X W) * row_scale * col_scale + bias + beta * Y_old
 * Y   = act(pre) + residual
 *
 * Shapes    (transpose_w = 0; with 1, K and M change places in everything but W)
 *           NC: x [N, K], y and residual [N, M]; CN: x [K, N], y and residual [M, N].
 *           w [nnz, r, c]; gate [nnz]; bias and col_scale [M]; row_scale [N].
 * Dtypes    x and w: f64, f32, f16, bf16, i8, equal, or f8 (e4m3, e5m2) both; y and residual: f64,
 *           f32, f16 or bf16. gate, bias and scales: f32, or f64 where x is f64.
 * f8, i8    x_scale and w_scale, f32 [1], multiply the stored numbers of x and w; absent they are
 *           1. row_scale and col_scale are the scales of single rows of x and columns of W.
 * Layout    params.layout, one head.
 * Strides   of x, y, residual: any with the feature or the N axis contiguous. w contiguous.
 * In place  residual = y's memory is allowed when dtype and strides agree.
 * Gate      scales block W[i]; a gate of exactly 0 skips the block, so that NaN and infinity in a
 *           skipped block do not reach Y.
 * Numerics  f32 accumulation (f64 for f64), rounded once to y's type; see bsk_precision. Sums of i8
 *           products without gates are exact integers, which become f32 before anything else.
 *           Instructions for bf16 of x86 processors (AVX512-BF16, AMX) take denormal operands as 0
 *           and leave no denormal sums; all others keep denormals.
 * Source    openai/blocksparse fprop; pytorch_block_sparse reverse_matmul. */
typedef struct bsk_matmul_params {
    size_t struct_size;
    const bsk_layout *layout;
    bsk_axis axis;
    int32_t transpose_w;
    bsk_act act;
    bsk_tensor x, w, y;
    bsk_tensor gate, bias, residual, row_scale, col_scale; /* optional */
    bsk_precision precision;
    bsk_tensor x_scale, w_scale; /* optional, 8-bit operands only */
} bsk_matmul_params;

typedef struct bsk_matmul_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem x, w, y;
    bsk_mem gate, bias, residual, row_scale, col_scale;
    bsk_mem packed; /* optional: made by bsk_matmul_prepack; w is not read then and may be absent */
    bsk_mem x_scale, w_scale;
} bsk_matmul_args;

BSK_API bsk_status bsk_matmul_plan(const bsk_device *device, const bsk_matmul_params *params,
                                   const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_matmul_run(const bsk_plan *plan, bsk_queue *queue,
                                  const bsk_matmul_args *args);

/* Enqueues the packing of w into an image in the order in which the plan's entry reads it. Runs that
 * get it as args.packed have the same results, bit for bit but in NaN, and save the time of packing; it
 * serves every plan of the same entry that was made with equal params and layout on the same device. The
 * image has bsk_plan_info.packed_bytes bytes; INVALID for plans without one (0 bytes), which gain
 * nothing by it. It must be made anew when w changes. A plan with options.packed is of the entry that
 * is fastest with an image. */
BSK_API bsk_status bsk_matmul_prepack(const bsk_plan *plan, bsk_queue *queue, bsk_mem w,
                                      bsk_mem packed);

/* ---------------------------------------------------------------------------------------------
 * matmul_dgrad: dX = alpha * dY W^T + beta * dX (with transpose_w: dY W), gates as in matmul.
 *
 * Shapes    NC: dy [N, M], dx [N, K]; CN: dy [M, N], dx [K, N]. w and gate as in matmul.
 * Dtypes    dy and w equal floats, i8 both or f8 both; dx any float. f8, i8, numerics: as matmul.
 * Strides   the feature or the N axis of dy and dx contiguous. w contiguous.
 * Source    openai/blocksparse bprop. The same kernels as matmul, through the transposed lists. */
typedef struct bsk_matmul_dgrad_params {
    size_t struct_size;
    const bsk_layout *layout;
    bsk_axis axis;
    int32_t transpose_w;
    bsk_tensor dy, w, dx;
    bsk_tensor gate; /* optional */
    bsk_precision precision;
    bsk_tensor dy_scale, w_scale; /* optional, 8-bit operands only */
} bsk_matmul_dgrad_params;

typedef struct bsk_matmul_dgrad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem dy, w, dx;
    bsk_mem gate;
    bsk_mem packed; /* optional, as in matmul: made by bsk_matmul_dgrad_prepack */
    bsk_mem dy_scale, w_scale;
} bsk_matmul_dgrad_args;

BSK_API bsk_status bsk_matmul_dgrad_plan(const bsk_device *device,
                                         const bsk_matmul_dgrad_params *params,
                                         const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_matmul_dgrad_run(const bsk_plan *plan, bsk_queue *queue,
                                        const bsk_matmul_dgrad_args *args);
BSK_API bsk_status bsk_matmul_dgrad_prepack(const bsk_plan *plan, bsk_queue *queue, bsk_mem w,
                                            bsk_mem packed);

/* What a gate does to a weight gradient. */
typedef enum bsk_gate_mode {
    BSK_GATE_IGNORE = 0, /* dW is the gradient of the gated weight, as if all gates were 1 */
    BSK_GATE_SKIP = 1,  /* blocks with gate 0 are not computed: alpha * op counts as 0 (dw_gated) */
    BSK_GATE_SCALE = 2, /* alpha * op is multiplied by the gate: the gradient of the stored W; a
                           gate of 0 gives 0 even where op is not finite */
    BSK_GATE_MODE_FORCE_INT = 0x7fffffff
} bsk_gate_mode;

/* ---------------------------------------------------------------------------------------------
 * matmul_wgrad: dW = alpha * sum over p of X_p^T dY_p + beta * dW on the kept blocks.
 *
 * Also, where given: dgate[i] = alpha * sum over the block of (sum_p X_p^T dY_p) o W + beta * dgate
 * (before any gate is applied; 0 for blocks that BSK_GATE_SKIP skips), and dbias = alpha * sum
 * over p and n of dY_p + beta * dbias.
 *
 * Shapes    pairs >= 1 (0 means 1) tensors x and dy of the same description, as in matmul;
 *           dw and w [nnz, r, c]; gate, dgate [nnz]; dbias [M], with transpose_w = 0 only
 *           (bias_act_grad sums dY for both).
 * Dtypes    x, dy equal floats, or i8 or f8 both, without dgate; dw any float; w as x; gate, dgate,
 *           dbias f32 (f64 with f64).
 * Strides   the feature or the N axis of x and dy contiguous. dw and w contiguous.
 * Memory    args.x and args.dy point to arrays of `pairs` views, read during the call only.
 * Source    openai/blocksparse updat (at most 8 pairs there), gate gradient. */
typedef struct bsk_matmul_wgrad_params {
    size_t struct_size;
    const bsk_layout *layout;
    bsk_axis axis;
    int32_t transpose_w;
    int32_t pairs; /* at most 65536; 0 means 1 */
    bsk_gate_mode gate_mode;
    bsk_tensor x, dy, dw;
    bsk_tensor gate, w, dgate, dbias; /* optional; dgate needs w */
    bsk_precision precision;          /* of the products, not of dgate's */
    bsk_tensor x_scale, dy_scale;     /* optional, 8-bit operands only; the same for all pairs */
} bsk_matmul_wgrad_params;

typedef struct bsk_matmul_wgrad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    const bsk_mem *x, *dy;
    bsk_mem dw;
    bsk_mem gate, w, dgate, dbias;
    bsk_mem x_scale, dy_scale;
} bsk_matmul_wgrad_args;

BSK_API bsk_status bsk_matmul_wgrad_plan(const bsk_device *device,
                                         const bsk_matmul_wgrad_params *params,
                                         const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_matmul_wgrad_run(const bsk_plan *plan, bsk_queue *queue,
                                        const bsk_matmul_wgrad_args *args);

/* ---------------------------------------------------------------------------------------------
 * dsd: C = op(S) B with S block-sparse; the general form behind matmul and matmul_dgrad.
 *
 * pre = alpha * (op(S) B) * row_scale * col_scale + bias + beta * C_old
 * C   = act(pre) + residual
 *
 * Shapes    op(S) [I, J]: the layout's rows x cols, or cols x rows with transpose_s.
 *           b [J, n], c and residual [I, n]; transposes of the dense operands are strides.
 *           Batched: b and c rank 3 [batch, ...]; s [nnz, r, c], or [groups, nnz, r, c] with groups
 *           = batch / heads; batch member i uses head i mod heads and group i / heads; with one
 *           group s is shared. heads must divide batch.
 *           gate [nnz]; bias and row_scale [I]; col_scale [n].
 * Dtypes    s and b equal floats, or i8 or f8 both, as in matmul; c and residual any float; the
 *           rest f32 (f64 with f64).
 * Strides   one of the last two axes of b, c and residual contiguous. Blocks contiguous; the
 *           group stride of s is free and may be 0.
 * In place  residual = c's memory, as in matmul.
 * Source    pytorch_block_sparse, STK. */
typedef struct bsk_dsd_params {
    size_t struct_size;
    const bsk_layout *layout;
    int32_t transpose_s;
    bsk_act act;
    bsk_tensor s, b, c;
    bsk_tensor gate, bias, residual, row_scale, col_scale; /* optional */
    bsk_precision precision;
    bsk_tensor s_scale, b_scale; /* optional, 8-bit operands only */
} bsk_dsd_params;

typedef struct bsk_dsd_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem s, b, c;
    bsk_mem gate, bias, residual, row_scale, col_scale;
    bsk_mem packed; /* optional, as in matmul: made by bsk_dsd_prepack */
    bsk_mem s_scale, b_scale;
} bsk_dsd_args;

BSK_API bsk_status bsk_dsd_plan(const bsk_device *device, const bsk_dsd_params *params,
                                const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_dsd_run(const bsk_plan *plan, bsk_queue *queue, const bsk_dsd_args *args);
BSK_API bsk_status bsk_dsd_prepack(const bsk_plan *plan, bsk_queue *queue, bsk_mem s,
                                   bsk_mem packed);

/* ---------------------------------------------------------------------------------------------
 * dds: C = A op(S), the mirror image of dsd: a [n, I], c and residual [n, J], bias and col_scale
 * [J], row_scale [n], where op(S) is [I, J]. Everything else as in dsd. */
typedef struct bsk_dds_params {
    size_t struct_size;
    const bsk_layout *layout;
    int32_t transpose_s;
    bsk_act act;
    bsk_tensor a, s, c;
    bsk_tensor gate, bias, residual, row_scale, col_scale; /* optional */
    bsk_precision precision;
    bsk_tensor a_scale, s_scale; /* optional, 8-bit operands only */
} bsk_dds_params;

typedef struct bsk_dds_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem a, s, c;
    bsk_mem gate, bias, residual, row_scale, col_scale;
    bsk_mem packed; /* optional, as in matmul: made by bsk_dds_prepack */
    bsk_mem a_scale, s_scale;
} bsk_dds_args;

BSK_API bsk_status bsk_dds_plan(const bsk_device *device, const bsk_dds_params *params,
                                const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_dds_run(const bsk_plan *plan, bsk_queue *queue, const bsk_dds_args *args);
BSK_API bsk_status bsk_dds_prepack(const bsk_plan *plan, bsk_queue *queue, bsk_mem s,
                                   bsk_mem packed);

/* ---------------------------------------------------------------------------------------------
 * sdd: S = alpha * sum over p of A_p B_p + beta * S on the kept blocks; the general form behind
 * matmul_wgrad.
 *
 * Shapes    a [rows, n], b [n, cols] of the layout, or rank 3 with a leading batch; s as in dsd
 *           (with [nnz, r, c] and several groups, the groups' products are summed).
 *           gate, dgate [nnz]; w as s but of a's type; bsum [cols]: alpha * sum over p, batch and
 *           n of b, plus beta * bsum.
 * Dtypes    a and b equal floats, or i8 or f8 both, without dgate; s any float; gate, dgate, bsum
 *           f32 (f64 with f64).
 * Strides   as dsd.
 * Memory    args.a and args.b point to arrays of `pairs` views. */
typedef struct bsk_sdd_params {
    size_t struct_size;
    const bsk_layout *layout;
    int32_t pairs; /* at most 65536; 0 means 1 */
    bsk_gate_mode gate_mode;
    bsk_tensor a, b, s;
    bsk_tensor gate, w, dgate, bsum; /* optional; dgate needs w */
    bsk_precision precision;         /* as in matmul_wgrad */
    bsk_tensor a_scale, b_scale;     /* optional, 8-bit operands only; the same for all pairs */
} bsk_sdd_params;

typedef struct bsk_sdd_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    const bsk_mem *a, *b;
    bsk_mem s;
    bsk_mem gate, w, dgate, bsum;
    bsk_mem a_scale, b_scale;
} bsk_sdd_args;

BSK_API bsk_status bsk_sdd_plan(const bsk_device *device, const bsk_sdd_params *params,
                                const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_sdd_run(const bsk_plan *plan, bsk_queue *queue, const bsk_sdd_args *args);

/* ---------------------------------------------------------------------------------------------
 * reduced_wgrad: the dense block-level gradient G [grid_rows][grid_cols] for growing patterns.
 *
 * G = alpha * sum over p and n of rx_p[n, i] * ry_p[n, j] + beta * G, where rx and ry are the
 * norms of each activation's block of features. Products that are not finite, as f32 numbers where
 * x is not f64, count as 0.
 *
 * Shapes    x, dy as in matmul_wgrad with block_rows and block_cols features a block (the last may
 *           be cut short); g [ceil(K / block_rows), ceil(M / block_cols)].
 * Dtypes    x, dy equal floats; g f32 (f64 with f64). The reduced values are kept in f32 (R1
 *           rounds them to f16).
 * Strides   the feature or the N axis of x and dy contiguous; the last axis of g contiguous.
 * Source    openai/blocksparse BlocksparseReducedDW. */
typedef struct bsk_reduced_wgrad_params {
    size_t struct_size;
    bsk_axis axis;
    int32_t pairs; /* at most 65536; 0 means 1 */
    int32_t block_rows, block_cols;
    bsk_norm norm;
    bsk_tensor x, dy, g;
} bsk_reduced_wgrad_params;

typedef struct bsk_reduced_wgrad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    const bsk_mem *x, *dy;
    bsk_mem g;
} bsk_reduced_wgrad_args;

BSK_API bsk_status bsk_reduced_wgrad_plan(const bsk_device *device,
                                          const bsk_reduced_wgrad_params *params,
                                          const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_reduced_wgrad_run(const bsk_plan *plan, bsk_queue *queue,
                                         const bsk_reduced_wgrad_args *args);

#ifdef __cplusplus
}
#endif
#endif
