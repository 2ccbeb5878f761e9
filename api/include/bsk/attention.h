/* Block-sparse attention. Part of bsk; include <bsk/bsk.h>.
 * The rules at the top of matmul.h hold here too.
 *
 * What all ops below share
 *
 * Heads    q and everything of its shape is [batch, heads, q_time, d], k is [batch, kv_heads,
 *          k_time, d], v [batch, kv_heads, k_time, dv]. Other orders in memory are strides:
 *          bsk_tensor_heads describes heads inside a row, [batch, time, heads * d]. kv_heads
 *          divides heads; query head h uses key/value head h / (heads / kv_heads).
 * Layout   its rows are queries and its columns keys. Its number of heads L divides heads; query
 *          head h uses the layout's head h / (heads / L): one pattern for all, one per head, or one
 *          per key/value head. Counts of blocks may differ between heads.
 * Scores   block arrays [batch, heads / L, nnz, r, c]: block `slot` of batch member b and query
 *          head h lies at [b][h % (heads / L)][slot], where slot belongs to the layout's head of h.
 * Time     with interleave = w > 1, row p of a layout with rows = w * T stands for time
 *          p % T * w + p / T, and so do columns: each residue of time modulo w becomes one run of T
 *          rows, and an element is visible only where query and key have the same residue. Dense
 *          tensors keep their order of time: the permutation is part of the addressing. Time need
 *          not be a multiple of w: T is q_time / w rounded up, and k_time / w, and what is missing
 *          is neither read nor written. Without interleave rows are q_time and columns k_time.
 *
 * Which elements of a kept block are visible: those that all of these admit.
 *   q_len, k_len  [batch] i32: member b has q_len[b] queries and k_len[b] keys (clamped to the
 *                 tensors); the rest is padding. Padding of keys and values is never read.
 *   align         where query i stands among the keys: pos(i) = i (BSK_ALIGN_START), or
 *                 i + k_len - q_len, so that the last query meets the last key (BSK_ALIGN_END).
 *   causal        key j <= pos(i), or j < prefix[b]: keys before prefix, [batch] i32, are seen by
 *                 all queries (prefix-LM); prefix is read at each run.
 *   window        if > 0: |pos(i) - j| < window. Prefix keys are not exempt.
 *   q_segment,    [batch or 1, time] i32: documents in one sequence. A key is visible to queries of
 *   k_segment     its own segment; keys with a negative segment to none (key padding). Without
 *                 q_segment every query sees all keys that are not negative.
 *   bits          bit masks of blocks, u8 [masks, r, ceil(c / 8)]: bit j % 8 of byte j / 8 of row i
 *                 admits element (i, j). bits_index [nnz] i32 names the mask of each slot; an index
 *                 outside [0, masks) means that all of the block is visible. Without bits_index,
 *                 slot i has mask i, and masks = nnz. Full and partial blocks are thereby told
 *                 apart, and equal masks are stored once: see bsk_layout_element_bits.
 * All of these tensors are contiguous, and so are slopes.
 * A row that sees nothing gives zeros, and -infinity as its log-sum-exp.
 * Where a mask other than a length or a missing block excludes an element, its key and value are
 * multiplied by 0: they must be finite. Probabilities below the smallest normal number of the
 * arithmetic may count as 0.
 *
 * From a product x = q k^T to a score
 *   s = scale * x; with softcap > 0: s = softcap * tanh(s / softcap);
 *   s += slopes[h] * -|pos(i) - j| (ALiBi; slopes [heads] f32);
 *   s += bias, [batch or 1, heads or 1, q_time or 1, k_time or 1], by time, any float type.
 * scale may be negative. softcap is part of the plan, scale belongs to a run. */
#ifndef BSK_ATTENTION_H
#define BSK_ATTENTION_H

#include <bsk/layout.h>
#include <bsk/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where queries stand among the keys. */
typedef enum bsk_align {
    BSK_ALIGN_START = 0, /* query 0 at key 0 */
    BSK_ALIGN_END = 1,   /* the last query at the last key */
    BSK_ALIGN_FORCE_INT = 0x7fffffff
} bsk_align;

/* [batch, heads, time, d], where a row of memory holds all heads of one time: [batch, time,
 * heads * d]. */
static inline bsk_tensor bsk_tensor_heads(bsk_dtype dtype, int64_t batch, int64_t heads,
                                          int64_t time, int64_t d)
{
    bsk_tensor t = {dtype, 4, {batch, heads, time, d, 0}, {time * heads * d, d, heads * d, 1, 0}};
    return t;
}

/* --- attn_scores: S = alpha * Q K^T + beta * S on the kept blocks ----------------------------
 * Scores of missing times (interleave) are 0; masks and lengths are the softmax's matter.
 * Shapes    q, k, s as above.
 * Dtypes    q and k equal floats; s any float.
 * Strides   the last axis of q and k contiguous; blocks of s contiguous.
 * Gradient  dQ = attn_apply(dS, K), dK = attn_apply_t(dS, Q).
 * Source    openai/blocksparse query_key_op (NT; s in bf16 there). */
typedef struct bsk_attn_scores_params {
    size_t struct_size;
    const bsk_layout *layout;
    int32_t interleave; /* 0 means 1 */
    bsk_tensor q, k, s;
} bsk_attn_scores_params;

typedef struct bsk_attn_scores_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem q, k, s;
} bsk_attn_scores_args;

BSK_API bsk_status bsk_attn_scores_plan(const bsk_device *device,
                                        const bsk_attn_scores_params *params,
                                        const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_attn_scores_run(const bsk_plan *plan, bsk_queue *queue,
                                       const bsk_attn_scores_args *args);

/* --- attn_apply: Y = alpha * S V + beta * Y --------------------------------------------------
 * transpose = 1: Y = alpha * S^T V + beta * Y, as attn_apply_t.
 * Shapes    s as above; v [batch, kv_heads, k_time, dv], y [batch, heads, q_time, dv].
 *           Transposed: v [batch, heads, q_time, dv], y [batch, kv_heads, k_time, dv]: the query
 *           heads of a key/value head are summed.
 * Dtypes    s and v any floats, which may differ; y any float. Arithmetic is f64 if v is f64.
 * Strides   as attn_scores.
 * Gradient  dS = attn_scores(dY, V), dV = attn_apply_t(S, dY).
 * Source    openai/blocksparse weight_value_op (NN), tn_op (TN). */
typedef struct bsk_attn_apply_params {
    size_t struct_size;
    const bsk_layout *layout;
    int32_t interleave; /* 0 means 1 */
    int32_t transpose;
    bsk_tensor s, v, y;
} bsk_attn_apply_params;

typedef struct bsk_attn_apply_args {
    size_t struct_size;
    double alpha, beta;
    bsk_mem workspace;
    bsk_mem s, v, y;
} bsk_attn_apply_args;

BSK_API bsk_status bsk_attn_apply_plan(const bsk_device *device,
                                       const bsk_attn_apply_params *params,
                                       const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_attn_apply_run(const bsk_plan *plan, bsk_queue *queue,
                                      const bsk_attn_apply_args *args);

/* attn_apply_t: attn_apply with transpose = 1, whatever the field says. */
BSK_API bsk_status bsk_attn_apply_t_plan(const bsk_device *device,
                                         const bsk_attn_apply_params *params,
                                         const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_attn_apply_t_run(const bsk_plan *plan, bsk_queue *queue,
                                        const bsk_attn_apply_args *args);

/* --- block_softmax: softmax along each row of scores over the visible elements -----------------
 * y = exp(s - lse), 0 where not visible. Rows of any length. Dropout of y is bsk_dropout on the
 * block array.
 * Shapes    x and y score arrays of one shape; lse [batch, heads, rows], rows those of the layout
 *           (by row, not by time); bias [batch or 1, heads or 1, rows or 1, cols or 1], by time.
 *           q_time and k_time are the layout's rows and columns: where interleave does not divide
 *           the time, give q_len and k_len.
 * Dtypes    x, y any floats; lse, slopes f32 (f64 where x is f64); bias any float.
 * Strides   blocks of x and y contiguous; lse contiguous; of bias any.
 * In place  y = x when types and strides agree.
 * Source    openai/blocksparse masked_softmax, partial_autoregressive_mask (at most 32768 keys, a
 *           positive scale, no empty rows there). */
typedef struct bsk_block_softmax_params {
    size_t struct_size;
    const bsk_layout *layout;
    int32_t interleave; /* 0 means 1 */
    int32_t causal;
    bsk_align align;
    int64_t window; /* 0: none */
    double softcap; /* 0: none */
    bsk_tensor x, y;
    bsk_tensor lse, bias, slopes;    /* optional */
    bsk_tensor q_len, k_len, prefix; /* optional */
    bsk_tensor q_segment, k_segment; /* optional; q_segment needs k_segment */
    bsk_tensor bits, bits_index;     /* optional; bits_index needs bits */
} bsk_block_softmax_params;

typedef struct bsk_block_softmax_args {
    size_t struct_size;
    double scale; /* 0 means 1 */
    bsk_mem workspace;
    bsk_mem x, y;
    bsk_mem lse, bias, slopes;
    bsk_mem q_len, k_len, prefix;
    bsk_mem q_segment, k_segment;
    bsk_mem bits, bits_index;
} bsk_block_softmax_args;

BSK_API bsk_status bsk_block_softmax_plan(const bsk_device *device,
                                          const bsk_block_softmax_params *params,
                                          const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_block_softmax_run(const bsk_plan *plan, bsk_queue *queue,
                                         const bsk_block_softmax_args *args);

/* block_softmax_grad: dx = alpha * scale * cap * y * (dy - sum over the row of dy * y) + beta * dx,
 * where cap is 1, or with softcap 1 - tanh(scale * x / softcap)^2. Elements whose y is 0 add
 * nothing to the sum, and their gradient is 0, whatever dy holds: masks are not needed again.
 * Shapes    dy, y, dx and x score arrays of one shape; x is needed with softcap, and only then.
 * Dtypes    any floats. Arithmetic is f64 if one of dy, y and x is f64.
 * Strides   blocks contiguous.
 * In place  dx = dy or dx = y when types and strides agree. */
typedef struct bsk_block_softmax_grad_params {
    size_t struct_size;
    const bsk_layout *layout;
    double softcap;
    bsk_tensor dy, y, dx;
    bsk_tensor x; /* optional */
} bsk_block_softmax_grad_params;

typedef struct bsk_block_softmax_grad_args {
    size_t struct_size;
    double alpha, beta;
    double scale; /* 0 means 1 */
    bsk_mem workspace;
    bsk_mem dy, y, dx;
    bsk_mem x;
} bsk_block_softmax_grad_args;

BSK_API bsk_status bsk_block_softmax_grad_plan(const bsk_device *device,
                                               const bsk_block_softmax_grad_params *params,
                                               const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_block_softmax_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                              const bsk_block_softmax_grad_args *args);

/* --- attention: O = dropout(softmax(scores)) V, nothing of the size of the scores stored ---------
 * Dropout    with dropout = 1: an element of the probabilities is kept, and divided by keep, as
 *            bsk_dropout does with the same keep, seed and offset on the block array [batch,
 *            heads / L, nnz, r, c] of the unfused op, counted without gaps. lse is that without
 *            dropout.
 * Shapes     q, k, v as above; o [batch, heads, q_time, dv]; lse [batch, heads, q_time].
 * Dtypes     q, k, v equal floats; o any float; lse, slopes f32 (f64 with f64); bias any float.
 * Strides    the last axis of q, k, v and o contiguous; lse contiguous.
 * Numerics   scores, sums and o accumulate in f32 (f64 with f64); entries may round probabilities
 *            to the type of v before their product.
 * Padding    queries beyond q_len get zeros, and -infinity as lse. */
typedef struct bsk_attention_params {
    size_t struct_size;
    const bsk_layout *layout;
    int32_t interleave; /* 0 means 1 */
    int32_t causal;
    bsk_align align;
    int32_t dropout; /* 1: args.keep, seed and offset count */
    int64_t window;  /* 0: none */
    double softcap;  /* 0: none */
    bsk_tensor q, k, v, o;
    bsk_tensor lse, bias, slopes;    /* optional */
    bsk_tensor q_len, k_len, prefix; /* optional */
    bsk_tensor q_segment, k_segment; /* optional; q_segment needs k_segment */
    bsk_tensor bits, bits_index;     /* optional; bits_index needs bits */
} bsk_attention_params;

typedef struct bsk_attention_args {
    size_t struct_size;
    double scale; /* 0 means 1 / sqrt(d) */
    double keep;  /* in [0, 1]; 0 keeps nothing */
    uint64_t seed, offset;
    bsk_mem workspace;
    bsk_mem q, k, v, o;
    bsk_mem lse, bias, slopes;
    bsk_mem q_len, k_len, prefix;
    bsk_mem q_segment, k_segment;
    bsk_mem bits, bits_index;
} bsk_attention_args;

BSK_API bsk_status bsk_attention_plan(const bsk_device *device, const bsk_attention_params *params,
                                      const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_attention_run(const bsk_plan *plan, bsk_queue *queue,
                                     const bsk_attention_args *args);

/* --- attention_grad: dQ, dK, dV from Q, K, V, O, dO and lse --------------------------------------
 *   p = exp(s - lse), 0 where not visible or lse is -infinity; m = dropout's factor, 0 or 1 / keep
 *   dV = alpha * (m p)^T dO + beta * dV
 *   ds = p (m dO V^T - sum of dO * O along the row), dx = scale * cap * ds, cap as
 *   block_softmax_grad dQ = alpha * dx K + beta * dQ, dK = alpha * dx^T Q + beta * dK
 * Query heads of one key/value head add up in dK and dV. The order of all sums is fixed. bias and
 * slopes get no gradient.
 * Shapes     as attention; dout like o, dq like q, dk like k, dv like v. dq, or dk and dv together,
 *            may be absent.
 * Dtypes     q, k, v, o, dout equal floats; dq, dk, dv any floats.
 * Strides    the last axis of all with heads contiguous; lse contiguous.
 * Padding    queries and keys beyond their lengths get 0 (plus beta * old). */
typedef struct bsk_attention_grad_params {
    size_t struct_size;
    const bsk_layout *layout;
    int32_t interleave; /* 0 means 1 */
    int32_t causal;
    bsk_align align;
    int32_t dropout; /* 1: args.keep, seed and offset count */
    int64_t window;  /* 0: none */
    double softcap;  /* 0: none */
    bsk_tensor q, k, v, o, dout, lse;
    bsk_tensor dq, dk, dv;           /* optional */
    bsk_tensor bias, slopes;         /* optional */
    bsk_tensor q_len, k_len, prefix; /* optional */
    bsk_tensor q_segment, k_segment; /* optional; q_segment needs k_segment */
    bsk_tensor bits, bits_index;     /* optional; bits_index needs bits */
} bsk_attention_grad_params;

typedef struct bsk_attention_grad_args {
    size_t struct_size;
    double alpha, beta;
    double scale; /* 0 means 1 / sqrt(d) */
    double keep;  /* in [0, 1]; 0 keeps nothing */
    uint64_t seed, offset;
    bsk_mem workspace;
    bsk_mem q, k, v, o, dout, lse;
    bsk_mem dq, dk, dv;
    bsk_mem bias, slopes;
    bsk_mem q_len, k_len, prefix;
    bsk_mem q_segment, k_segment;
    bsk_mem bits, bits_index;
} bsk_attention_grad_args;

BSK_API bsk_status bsk_attention_grad_plan(const bsk_device *device,
                                           const bsk_attention_grad_params *params,
                                           const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_attention_grad_run(const bsk_plan *plan, bsk_queue *queue,
                                          const bsk_attention_grad_args *args);

/* --- attention_decode: attention of a few queries over a paged cache of keys and values -----------
 * For generation, and for prompts in chunks; with block_index also for patterns that change with
 * every step (see dynamic.h).
 * Cache      k [pages, kv_heads, page, d] and v [pages, kv_heads, page, dv] are pools of pages of
 *            `page` keys; other orders in memory are strides. table [batch, columns] i32: key j of
 *            member b is key j % page of page table[b][j / page], so that a member has up to
 *            columns * page keys. A page outside the pool has no keys. Without table, pages = batch
 *            and member b has page b.
 * Queries    are the last of their member: pos(i) = i + k_len - q_len. q_len and k_len, causal,
 *            window, softcap, slopes and scale are as above.
 * Choice     block_index [batch or 1, kv_heads or 1, lists or 1, capacity] i32 names the blocks of
 *            `block` keys that queries see, in any order: list i holds for the queries from
 *            i * q_block on, and lists = q_time / q_block rounded up. Of a list, the first
 *            block_count [batch or 1, kv_heads or 1, lists or 1] entries count (clamped to the
 *            capacity), without block_count all. An entry outside the blocks of columns * page keys
 *            is passed over; a block that is named twice counts twice. Without block_index all
 *            blocks are seen.
 * Shapes     q [batch, heads, q_time, d], o [batch, heads, q_time, dv], lse [batch, heads, q_time].
 *            With a table and block_index, block divides page.
 * Dtypes     q, k, v equal floats; o any float; lse, slopes f32 (f64 with f64).
 * Strides    the last axis of q, k, v and o contiguous; the rest contiguous.
 * Numerics   as attention. Keys are summed in parts, joined by their log-sum-exp in one order.
 * Unread     keys beyond k_len, of blocks that are not named, and of pages that no member has.
 * Padding    queries beyond q_len, and those that see nothing, get zeros, and -infinity as lse.
 * Operations bsk_plan_info.flops counts full lists of full caches: plans do not see the lengths. */
typedef struct bsk_attention_decode_params {
    size_t struct_size;
    int32_t causal;
    int32_t block;   /* 0: page */
    int64_t q_block; /* 0: q_time, one list for all queries */
    int64_t window;  /* 0: none */
    double softcap;  /* 0: none */
    bsk_tensor q, k, v, o;
    bsk_tensor lse, slopes;              /* optional */
    bsk_tensor table, q_len, k_len;      /* optional */
    bsk_tensor block_index, block_count; /* optional; block_count needs block_index */
} bsk_attention_decode_params;

typedef struct bsk_attention_decode_args {
    size_t struct_size;
    double scale; /* 0 means 1 / sqrt(d) */
    bsk_mem workspace;
    bsk_mem q, k, v, o;
    bsk_mem lse, slopes;
    bsk_mem table, q_len, k_len;
    bsk_mem block_index, block_count;
} bsk_attention_decode_args;

BSK_API bsk_status bsk_attention_decode_plan(const bsk_device *device,
                                             const bsk_attention_decode_params *params,
                                             const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_attention_decode_run(const bsk_plan *plan, bsk_queue *queue,
                                            const bsk_attention_decode_args *args);

#ifdef __cplusplus
}
#endif
#endif
