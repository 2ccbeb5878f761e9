/* Block-sparse weights: initialisers, norms, gates, pruning, pattern search, projections.
 * Part of bsk; include <bsk/bsk.h>. The rules at the top of matmul.h hold here too.
 *
 * w stands for the kept blocks [nnz][r][c] of params.layout. Parts of edge blocks that lie outside
 * the matrix are neither read nor written. Arrays of blocks are contiguous in all ops below. */
#ifndef BSK_WEIGHTS_H
#define BSK_WEIGHTS_H

#include <bsk/layout.h>
#include <bsk/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- Initialisers ----------------------------------------------------------------------------
 * weight_identity    block (i, j) gets scale on its diagonal when i mod grid_cols = j mod grid_rows,
 *                    else zeros: rectangular matrices tile identities
 * weight_orthogonal  scale times columns that are orthonormal within each block column of the kept
 *                    blocks (rows instead, where a block column is wider than its kept height)
 * weight_normal      scale times standard normal numbers (Philox, element i depends on seed and i,
 *                    its position in the array w)
 * weight_checker     a gate: 1 where block row and column have the same parity, else 0; no scale
 *
 * Shapes    w [nnz, r, c]; for weight_checker w is the gate [nnz]. One head or several.
 * Dtypes    f64, f32, f16, bf16; the gate f32.
 * Source    openai/blocksparse identity_init, ortho_init (broken there), checker_init. */
typedef struct bsk_weight_init_params {
    size_t struct_size;
    const bsk_layout *layout;
    bsk_tensor w;
} bsk_weight_init_params;

typedef struct bsk_weight_init_args {
    size_t struct_size;
    double alpha; /* the scale; BSK_INIT_ALPHA sets 1 */
    bsk_mem workspace;
    bsk_mem w;
    uint64_t seed;
} bsk_weight_init_args;

BSK_API bsk_status bsk_weight_identity_plan(const bsk_device *device,
                                            const bsk_weight_init_params *params,
                                            const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_weight_identity_run(const bsk_plan *plan, bsk_queue *queue,
                                           const bsk_weight_init_args *args);
BSK_API bsk_status bsk_weight_orthogonal_plan(const bsk_device *device,
                                              const bsk_weight_init_params *params,
                                              const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_weight_orthogonal_run(const bsk_plan *plan, bsk_queue *queue,
                                             const bsk_weight_init_args *args);
BSK_API bsk_status bsk_weight_normal_plan(const bsk_device *device,
                                          const bsk_weight_init_params *params,
                                          const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_weight_normal_run(const bsk_plan *plan, bsk_queue *queue,
                                         const bsk_weight_init_args *args);
BSK_API bsk_status bsk_weight_checker_plan(const bsk_device *device,
                                           const bsk_weight_init_params *params,
                                           const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_weight_checker_run(const bsk_plan *plan, bsk_queue *queue,
                                          const bsk_weight_init_args *args);

/* --- l2_normalize ----------------------------------------------------------------------------
 * s[k] = sum of w^2 over the kept elements of column k of the matrix
 * y    = gain[k] * w / sqrt(max(s[k], eps))
 *
 * Shapes    w, y [nnz, r, c]; gain, saved [cols]. One head.
 * Dtypes    w, y any float; gain, saved f32 (f64 where w is f64).
 * Saved     s goes to `saved` where given; the gradient needs it.
 * In place  y = w is allowed when the types agree.
 * Source    openai/blocksparse L2NormalizeCK, eps 1e-12 (params.eps = 0 means that); where sums are f32,
 *           an eps below the least normal number of f32 may count as that. */
typedef struct bsk_l2_normalize_params {
    size_t struct_size;
    const bsk_layout *layout;
    double eps;
    bsk_tensor w, y;
    bsk_tensor gain, saved; /* optional */
} bsk_l2_normalize_params;

typedef struct bsk_l2_normalize_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem w, y;
    bsk_mem gain, saved;
} bsk_l2_normalize_args;

BSK_API bsk_status bsk_l2_normalize_plan(const bsk_device *device,
                                         const bsk_l2_normalize_params *params,
                                         const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_l2_normalize_run(const bsk_plan *plan, bsk_queue *queue,
                                        const bsk_l2_normalize_args *args);

/* dw = alpha * (g dy - [s >= eps] w sum_k(g dy w) / max(s, eps)) / sqrt(max(s, eps)) + beta * dw
 * dgain = alpha * sum_k(dy w) / sqrt(max(s, eps)) + beta * dgain
 * In place: dw = dy when the types agree. */
typedef struct bsk_l2_normalize_grad_params {
    size_t struct_size;
    const bsk_layout *layout;
    double eps;
    bsk_tensor dy, w, saved, dw;
    bsk_tensor gain, dgain; /* optional */
} bsk_l2_normalize_grad_params;

typedef struct bsk_l2_normalize_grad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem dy, w, saved, dw;
    bsk_mem gain, dgain;
} bsk_l2_normalize_grad_args;

BSK_API bsk_status bsk_l2_normalize_grad_plan(const bsk_device *device,
                                              const bsk_l2_normalize_grad_params *params,
                                              const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_l2_normalize_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                             const bsk_l2_normalize_grad_args *args);

/* --- block_norm: norm[i] of each block, f32 [nnz] (f64 where w is f64) ------------------------ */
typedef struct bsk_block_norm_params {
    size_t struct_size;
    const bsk_layout *layout;
    bsk_norm type;
    bsk_tensor w, norm;
} bsk_block_norm_params;

typedef struct bsk_block_norm_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem w, norm;
} bsk_block_norm_args;

BSK_API bsk_status bsk_block_norm_plan(const bsk_device *device,
                                       const bsk_block_norm_params *params,
                                       const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_block_norm_run(const bsk_plan *plan, bsk_queue *queue,
                                      const bsk_block_norm_args *args);

/* --- prune_sparsity, prune_threshold ---------------------------------------------------------
 * prune_sparsity   gate = 1 for the round(nnz * (1 - value)) blocks of largest norm (halves round
 *                  up), 0 for the others (ties: the lower slot is kept); value in [0, 1]
 * prune_threshold  gate = 1 where norm >= value, else 0; value >= 0. A block may come back.
 * NaN norms count as infinity: such a block is kept.
 *
 * Shapes    norm, gate [n]; norm f32 or f64, gate f32.
 * Source    openai/blocksparse blocksparse_prune. The step and frequency logic is the caller's. */
typedef struct bsk_prune_params {
    size_t struct_size;
    bsk_tensor norm, gate;
} bsk_prune_params;

typedef struct bsk_prune_args {
    size_t struct_size;
    double value;
    bsk_mem workspace;
    bsk_mem norm, gate;
} bsk_prune_args;

BSK_API bsk_status bsk_prune_sparsity_plan(const bsk_device *device, const bsk_prune_params *params,
                                           const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_prune_sparsity_run(const bsk_plan *plan, bsk_queue *queue,
                                          const bsk_prune_args *args);
BSK_API bsk_status bsk_prune_threshold_plan(const bsk_device *device,
                                            const bsk_prune_params *params,
                                            const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_prune_threshold_run(const bsk_plan *plan, bsk_queue *queue,
                                           const bsk_prune_args *args);

/* --- block_l2_decay: w -= w * min(rate / sqrt(sum of the block's w^2 + eps), 1), in place -------
 * Blocks whose gate is 0 are left alone. eps 0 means 1e-12. rate >= 0.
 * Source: openai/blocksparse BlocksparseL2Decay (group lasso). */
typedef struct bsk_block_l2_decay_params {
    size_t struct_size;
    const bsk_layout *layout;
    double eps;
    bsk_tensor w;
    bsk_tensor gate; /* optional, f32 [nnz] */
} bsk_block_l2_decay_params;

typedef struct bsk_block_l2_decay_args {
    size_t struct_size;
    double rate;
    bsk_mem workspace;
    bsk_mem w, gate;
} bsk_block_l2_decay_args;

BSK_API bsk_status bsk_block_l2_decay_plan(const bsk_device *device,
                                           const bsk_block_l2_decay_params *params,
                                           const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_block_l2_decay_run(const bsk_plan *plan, bsk_queue *queue,
                                          const bsk_block_l2_decay_args *args);

/* --- concrete_gate: the hard-concrete (L0) gate ----------------------------------------------
 * u = U (1 - 2 eps) + eps with U uniform in [0, 1) from (seed, offset, i)
 * concrete = sigmoid((log u - log(1 - u) + loga) / temperature)
 * gate     = clamp(concrete * (limit_b - limit_a) + limit_a, 0, 1)
 * Gradient: dloga = alpha * [0 <= stretched <= 1] dgate (limit_b - limit_a) c (1 - c) / temperature
 *           + beta * dloga.
 * Inference: gate = clamp(sigmoid(loga) * (limit_b - limit_a) + limit_a, 0, 1).
 *
 * Shapes    all [n], all f32 or all f64. Zero in limit_a, limit_b, eps means -0.1, 1.1, 1e-6;
 *           temperature 0 means 2/3.
 * Source    openai/blocksparse concrete_gate. */
typedef struct bsk_concrete_gate_params {
    size_t struct_size;
    double limit_a, limit_b, eps;
    bsk_tensor loga, gate, concrete; /* concrete: saved for the gradient */
} bsk_concrete_gate_params;

typedef struct bsk_concrete_gate_args {
    size_t struct_size;
    double temperature;
    bsk_mem workspace;
    bsk_mem loga, gate, concrete;
    uint64_t seed, offset;
} bsk_concrete_gate_args;

BSK_API bsk_status bsk_concrete_gate_plan(const bsk_device *device,
                                          const bsk_concrete_gate_params *params,
                                          const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_concrete_gate_run(const bsk_plan *plan, bsk_queue *queue,
                                         const bsk_concrete_gate_args *args);

typedef struct bsk_concrete_gate_grad_params {
    size_t struct_size;
    double limit_a, limit_b;
    bsk_tensor dgate, concrete, dloga;
} bsk_concrete_gate_grad_params;

typedef struct bsk_concrete_gate_grad_args {
    size_t struct_size;
    double alpha, beta;
    double temperature;
    bsk_mem workspace;
    bsk_mem dgate, concrete, dloga;
} bsk_concrete_gate_grad_args;

BSK_API bsk_status bsk_concrete_gate_grad_plan(const bsk_device *device,
                                               const bsk_concrete_gate_grad_params *params,
                                               const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_concrete_gate_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                              const bsk_concrete_gate_grad_args *args);

typedef struct bsk_concrete_gate_infer_params {
    size_t struct_size;
    double limit_a, limit_b;
    bsk_tensor loga, gate;
} bsk_concrete_gate_infer_params;

typedef struct bsk_concrete_gate_infer_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem loga, gate;
} bsk_concrete_gate_infer_args;

BSK_API bsk_status bsk_concrete_gate_infer_plan(const bsk_device *device,
                                                const bsk_concrete_gate_infer_params *params,
                                                const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_concrete_gate_infer_run(const bsk_plan *plan, bsk_queue *queue,
                                               const bsk_concrete_gate_infer_args *args);

/* --- Pattern search ---------------------------------------------------------------------------
 * bsk_pattern_evolve frees the floor(fraction * nnz of the head) blocks of smallest norm of each
 * head (ties: the lower slot) and gives their slots new random positions among those that were
 * empty before (all of them, if there are fewer). Host only.
 *   norm  host f32 [nnz], as bsk_block_norm_run computes it; NaN counts as infinity
 *   keep  host bytes [nnz], written: 1 for blocks that stayed, 0 for those that moved; feed it to
 *         bsk_block_renew for the weights and for every optimizer state
 * Errors: INVALID for a fraction outside [0, 1]; NOMEM.
 * Source: pytorch_block_sparse SparseOptimizer, magnitude strategy. */
BSK_API bsk_status bsk_pattern_evolve(const bsk_layout *layout, const float *norm, double fraction,
                                      uint64_t seed, uint8_t *keep, bsk_layout **evolved);

/* Where the numbers of a renewed block come from; mean and std are those of the kept blocks. */
typedef enum bsk_renew {
    BSK_RENEW_ZERO = 0,    /* zeros: for optimizer states */
    BSK_RENEW_NORMAL = 1,  /* scale * (mean + std * z), z standard normal */
    BSK_RENEW_UNIFORM = 2, /* scale * std * u, u uniform in [-1, 1) */
    BSK_RENEW_FORCE_INT = 0x7fffffff
} bsk_renew;

/* block_renew: rewrites, in place, the blocks of w with keep = 0. w [nnz, r, c] any float, or, with
 * BSK_RENEW_ZERO, u16 (moments of adam, whose code 0 is 0); keep u8 [nnz]. args.alpha is the scale.
 * mean and std (of the population) are over the kept blocks of all heads, 0 if there are none; an
 * element draws the number of its position in w. */
typedef struct bsk_block_renew_params {
    size_t struct_size;
    const bsk_layout *layout;
    bsk_renew renew;
    bsk_tensor w, keep;
} bsk_block_renew_params;

typedef struct bsk_block_renew_args {
    size_t struct_size;
    double alpha;
    bsk_mem workspace;
    bsk_mem w, keep;
    uint64_t seed;
} bsk_block_renew_args;

BSK_API bsk_status bsk_block_renew_plan(const bsk_device *device,
                                        const bsk_block_renew_params *params,
                                        const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_block_renew_run(const bsk_plan *plan, bsk_queue *queue,
                                       const bsk_block_renew_args *args);

/* block_gather: y[i] = x[index[i]], block by block; zeros where index[i] is -1 or out of range.
 * Moves weights and states after bsk_layout_compact, _crop or a change of order.
 * Shapes: x [n, r, c], y [m, r, c] of one type, index i32 [m].
 * Dtypes: any float, f8, i8, u16 (moments of adam). The bits move unchanged. */
typedef struct bsk_block_gather_params {
    size_t struct_size;
    bsk_tensor x, index, y;
} bsk_block_gather_params;

typedef struct bsk_block_gather_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, index, y;
} bsk_block_gather_args;

BSK_API bsk_status bsk_block_gather_plan(const bsk_device *device,
                                         const bsk_block_gather_params *params,
                                         const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_block_gather_run(const bsk_plan *plan, bsk_queue *queue,
                                        const bsk_block_gather_args *args);

/* --- Sparse projections (R1 SparseProj) --------------------------------------------------------
 * index maps the rows of the small side to distinct rows of the large side; entries outside
 * [0, large) are unmapped. Features lie on `axis`, both axes are served.
 *
 * proj_gather       y = x[index], unmapped: 0                     x [large], y [small]
 * proj_scatter      y = 0, then y[index] = x                      x [small], y [large]
 * proj_scatter_add  y = x, then y[index] += v                     x, y [large], v [small]
 * proj_scatter_mul  y = x, then y[index] *= v                     x, y [large], v [small]
 * proj_scatter_mul_grad  d = dy, then d[index] *= v; dx = alpha * d + beta * dx,
 *                        dv = alpha * dy[index] * x[index] + beta * dv; unmapped: beta * dv
 * The gradients of gather, scatter and add are scatter, gather, and (copy, gather).
 *
 * Shapes    NC: x [N, large] and so on; CN: [large, N]. index i32 [small].
 * Dtypes    all data of one float type.
 * Strides   the feature or the N axis of all data contiguous.
 * In place  y = x, dx = dy (add, mul, mul_grad). Duplicate entries in index are the caller's error:
 *           the result at such rows is then unspecified (but memory stays safe).
 * Source    openai/blocksparse SparseProj. */
typedef struct bsk_proj_params {
    size_t struct_size;
    bsk_axis axis;
    bsk_tensor x, index, y;
} bsk_proj_params;

typedef struct bsk_proj_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, index, y;
} bsk_proj_args;

typedef struct bsk_proj_scatter_op_params {
    size_t struct_size;
    bsk_axis axis;
    bsk_tensor x, v, index, y;
} bsk_proj_scatter_op_params;

typedef struct bsk_proj_scatter_op_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem x, v, index, y;
} bsk_proj_scatter_op_args;

typedef struct bsk_proj_scatter_mul_grad_params {
    size_t struct_size;
    bsk_axis axis;
    bsk_tensor dy, x, v, index, dx, dv;
} bsk_proj_scatter_mul_grad_params;

typedef struct bsk_proj_scatter_mul_grad_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem dy, x, v, index, dx, dv;
} bsk_proj_scatter_mul_grad_args;

BSK_API bsk_status bsk_proj_gather_plan(const bsk_device *device, const bsk_proj_params *params,
                                        const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_proj_gather_run(const bsk_plan *plan, bsk_queue *queue,
                                       const bsk_proj_args *args);
BSK_API bsk_status bsk_proj_scatter_plan(const bsk_device *device, const bsk_proj_params *params,
                                         const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_proj_scatter_run(const bsk_plan *plan, bsk_queue *queue,
                                        const bsk_proj_args *args);
BSK_API bsk_status bsk_proj_scatter_add_plan(const bsk_device *device,
                                             const bsk_proj_scatter_op_params *params,
                                             const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_proj_scatter_add_run(const bsk_plan *plan, bsk_queue *queue,
                                            const bsk_proj_scatter_op_args *args);
BSK_API bsk_status bsk_proj_scatter_mul_plan(const bsk_device *device,
                                             const bsk_proj_scatter_op_params *params,
                                             const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_proj_scatter_mul_run(const bsk_plan *plan, bsk_queue *queue,
                                            const bsk_proj_scatter_op_args *args);
BSK_API bsk_status bsk_proj_scatter_mul_grad_plan(const bsk_device *device,
                                                  const bsk_proj_scatter_mul_grad_params *params,
                                                  const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_proj_scatter_mul_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                                 const bsk_proj_scatter_mul_grad_args *args);

#ifdef __cplusplus
}
#endif
#endif
