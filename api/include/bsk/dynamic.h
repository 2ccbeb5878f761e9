/* Patterns that change while a program runs. Part of bsk; include <bsk/bsk.h>.
 * The rules at the top of matmul.h hold here too.
 *
 * A pattern in device memory is a list of kept blocks for each block row, in room of a fixed size:
 *   index  [..., rows, capacity] i32: the block columns that the row keeps, ascending; -1 beyond
 *   count  [..., rows] i32: how many they are
 * The leading dimensions are whatever has patterns of its own: heads, members of a batch. The ops
 * below write such lists and attention_decode reads them (block_index, block_count), so that a
 * pattern can be made and used on one queue without the host seeing it, also in a captured graph. A
 * bsk_layout needs the host, and is for patterns that last. */
#ifndef BSK_DYNAMIC_H
#define BSK_DYNAMIC_H

#include <bsk/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- layout_topk: the lists of the k best-scored blocks of each block row ------------------------
 * A row keeps its first `first` blocks, its last `last` blocks (sinks and neighbours), and of the
 * others those of the largest scores, k in all or all that there are. Of equal scores the lower
 * column comes first; NaN is larger than any number; a score of -infinity is not kept. With limit,
 * row i ends before block limit[i] (clamped to the columns): limit[i] = i + 1 is causal.
 * Shapes    scores [..., rows, columns] of rank 2 to 4; index the same with capacity in place of
 *           columns; count and limit the same without it. 1 <= k <= capacity; first + last <= k.
 * Dtypes    scores any float; index, count, limit i32.
 * Strides   index, count and limit contiguous. */
typedef struct bsk_layout_topk_params {
    size_t struct_size;
    int64_t k; /* 0: the capacity */
    int64_t first, last;
    bsk_tensor scores, index, count;
    bsk_tensor limit; /* optional */
} bsk_layout_topk_params;

typedef struct bsk_layout_topk_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem scores, index, count;
    bsk_mem limit;
} bsk_layout_topk_args;

BSK_API bsk_status bsk_layout_topk_plan(const bsk_device *device,
                                        const bsk_layout_topk_params *params,
                                        const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_layout_topk_run(const bsk_plan *plan, bsk_queue *queue,
                                       const bsk_layout_topk_args *args);

/* --- layout_mask: the lists of a mask of blocks --------------------------------------------------
 * A row keeps the blocks whose mask is not 0. Where these are more than the capacity, index holds
 * the first of them and count says how many there are: readers use what is stored.
 * Shapes    mask [..., rows, columns] of rank 2 to 4; index and count as layout_topk.
 * Dtypes    mask u8; index, count i32.
 * Strides   index and count contiguous. */
typedef struct bsk_layout_mask_params {
    size_t struct_size;
    bsk_tensor mask, index, count;
} bsk_layout_mask_params;

typedef struct bsk_layout_mask_args {
    size_t struct_size;
    bsk_mem workspace;
    bsk_mem mask, index, count;
} bsk_layout_mask_args;

BSK_API bsk_status bsk_layout_mask_plan(const bsk_device *device,
                                        const bsk_layout_mask_params *params,
                                        const bsk_plan_options *options, bsk_plan **plan);
BSK_API bsk_status bsk_layout_mask_run(const bsk_plan *plan, bsk_queue *queue,
                                       const bsk_layout_mask_args *args);

#ifdef __cplusplus
}
#endif
#endif
