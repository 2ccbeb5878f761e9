/* Block layouts: which blocks of a matrix are kept. Part of bsk; include <bsk/bsk.h>. */
#ifndef BSK_LAYOUT_H
#define BSK_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include <bsk/context.h>
#include <bsk/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A grid of grid_rows x grid_cols blocks of block_rows x block_cols elements, of which nnz are
 * kept, optionally one grid for each of several heads (counts may differ between heads).
 *
 * A block matrix stores its kept blocks as [nnz][block_rows][block_cols]; the index of a block in
 * that array is its *slot*. Heads follow each other: head h owns the slots from head_start[h] to
 * head_start[h + 1] - 1. Within a head, slots are numbered row-major, or in the order that the
 * caller gave or chose (bsk_order).
 *
 * rows and cols are the matrix's size in elements and need not be multiples of the block: the
 * last block of a dimension may be cut short; its missing part reads as zero and is never written.
 *
 * Every layout is checked once, when it is made: ranges, duplicates, overflow. Indices are 32 bits
 * wide, offsets 64: a grid has up to 2^31 - 1 block rows and columns, and nnz < 2^31.
 *
 * Thread-safety: immutable and reference counted; any thread. */
typedef struct bsk_layout bsk_layout;

/* Storage order of blocks within a head. */
typedef enum bsk_order {
    BSK_ORDER_ROW = 0,    /* by (row, column) */
    BSK_ORDER_COL = 1,    /* by (column, row) */
    BSK_ORDER_MORTON = 2, /* Morton code, row bits at even positions (openai/blocksparse) */
    BSK_ORDER_GIVEN = 3,  /* as the input lists them; for masks the same as BSK_ORDER_ROW */
    BSK_ORDER_FORCE_INT = 0x7fffffff
} bsk_order;

/* The geometry that all constructors share. */
typedef struct bsk_layout_params {
    size_t struct_size;
    int64_t rows, cols;             /* matrix size in elements, at least 1 */
    int32_t block_rows, block_cols; /* block size in elements, 1 to 65536 */
    int32_t heads;                  /* 0 means 1 */
    bsk_order order;
} bsk_layout_params;

/* Takes one more reference; returns its argument. NULL is allowed. */
BSK_API bsk_layout *bsk_layout_retain(bsk_layout *layout);

/* Drops one reference and sets *layout to NULL. The last one frees. *layout may be NULL. */
BSK_API void bsk_layout_release(bsk_layout **layout);

/* --- Constructors. context may be NULL: then the default allocator is used. Inputs are copied.
 * All return INVALID with a message for bad input, NOMEM, and set *layout to NULL then. --- */

/* mask: bytes [heads][grid_rows][grid_cols], nonzero = kept. */
BSK_API bsk_status bsk_layout_from_mask(bsk_context *context, const bsk_layout_params *params,
                                        const uint8_t *mask, bsk_layout **layout);

/* count block coordinates in any order; head may be NULL when there is one head.
 * Duplicates are rejected. With BSK_ORDER_GIVEN the heads must come in ascending order. */
BSK_API bsk_status bsk_layout_from_coo(bsk_context *context, const bsk_layout_params *params,
                                       int64_t count, const int32_t *head, const int32_t *row,
                                       const int32_t *col, bsk_layout **layout);

/* One CSR of blocks per head: row_start [heads][grid_rows + 1] are offsets into col, continuing
 * from head to head (row_start[0][0] = 0). Columns within a row in any order. slot gives the slot
 * of each entry, a permutation within each head, or NULL: with BSK_ORDER_GIVEN the entry's own
 * index, else by order. */
BSK_API bsk_status bsk_layout_from_bsr(bsk_context *context, const bsk_layout_params *params,
                                       const int64_t *row_start, const int32_t *col,
                                       const int32_t *slot, bsk_layout **layout);

/* The same by columns: col_start [heads][grid_cols + 1], row and slot by entry. */
BSK_API bsk_status bsk_layout_from_csc(bsk_context *context, const bsk_layout_params *params,
                                       const int64_t *col_start, const int32_t *row,
                                       const int32_t *slot, bsk_layout **layout);

/* How bsk_layout_from_dense and the pruning ops measure a block. */
typedef enum bsk_norm {
    BSK_NORM_MAX = 0, /* largest magnitude */
    BSK_NORM_L2 = 1,  /* square root of the sum of squares */
    BSK_NORM_FORCE_INT = 0x7fffffff
} bsk_norm;

/* Keeps the blocks of a dense host matrix [heads][rows][cols] (f64, f32, f16 or bf16; strides
 * allowed) whose norm exceeds threshold, or, if keep >= 0, the keep largest of each head (ties: the
 * lower row-major index). threshold is ignored when keep >= 0; it must be >= 0 otherwise. */
BSK_API bsk_status bsk_layout_from_dense(bsk_context *context, const bsk_layout_params *params,
                                         const bsk_tensor *desc, const void *data, bsk_norm norm,
                                         double threshold, int64_t keep, bsk_layout **layout);

/* --- Seeded generators. The same arguments give the same layout on every machine. --- */

/* round(density * grid) blocks of each head, drawn without replacement. density in [0, 1]. */
BSK_API bsk_status bsk_layout_random(bsk_context *context, const bsk_layout_params *params,
                                     double density, uint64_t seed, bsk_layout **layout);

/* Barabasi-Albert preferential attachment on a square grid: symmetric adjacency of a graph that
 * starts with m nodes and gives each new node m distinct neighbours, drawn by degree, plus the
 * diagonal, plus the dense m x m corner (R1's experiments). 1 <= m < grid_rows. */
BSK_API bsk_status bsk_layout_barabasi_albert(bsk_context *context, const bsk_layout_params *params,
                                              int32_t m, uint64_t seed, bsk_layout **layout);

/* Watts-Strogatz small world on a square grid: each node joined to its k nearest on a ring (k
 * even), each edge rewired with probability p, plus the diagonal. 2 <= k < grid_rows. */
BSK_API bsk_status bsk_layout_watts_strogatz(bsk_context *context, const bsk_layout_params *params,
                                             int32_t k, double p, uint64_t seed,
                                             bsk_layout **layout);

/* --- Algebra. Results are new layouts in row-major order unless said; values do not move. --- */

/* Blocks that either, or both, keep. Geometry and heads must agree. */
BSK_API bsk_status bsk_layout_union(const bsk_layout *a, const bsk_layout *b, bsk_layout **layout);
BSK_API bsk_status bsk_layout_intersect(const bsk_layout *a, const bsk_layout *b,
                                        bsk_layout **layout);

/* The blocks of grid rows [row, row + rows) and columns [col, col + cols). source_slot, if not
 * NULL, has room for the result's nnz (at most the source's) and receives each kept block's slot
 * in the source. */
BSK_API bsk_status bsk_layout_crop(const bsk_layout *source, int32_t row, int32_t rows, int32_t col,
                                   int32_t cols, int32_t *source_slot, bsk_layout **layout);

/* Cuts the grid between block rows, or with by_cols between block columns, into parts ranges for as
 * many devices: range p is [first[p], first[p + 1]), first has parts + 1 elements. Each has at least
 * one line, 1 <= parts <= lines, and the fullest has as few kept blocks of all heads as any such cut
 * allows. Of the cuts that do, each range in turn takes the number of lines nearest to its even
 * share, rounded up, of those that are left. bsk_layout_crop makes each range's layout, and its
 * source_slot moves the weights with bsk_block_gather_run. */
BSK_API bsk_status bsk_layout_split(const bsk_layout *source, int32_t by_cols, int32_t parts,
                                    int32_t *first);

/* Rows and columns change places; every block keeps its slot, and its values are to be read
 * transposed. */
BSK_API bsk_status bsk_layout_transpose(const bsk_layout *source, bsk_layout **layout);

/* One head repeated heads times, each with the source's order of slots. The source must have one
 * head. */
BSK_API bsk_status bsk_layout_broadcast(const bsk_layout *source, int32_t heads,
                                        bsk_layout **layout);

/* Gives stored blocks new positions without moving their values: the block in slot[i] goes to
 * (row[i], col[i]) of its own head. Targets must be empty, or be freed by the same call.
 * All blocks keep their slots. */
BSK_API bsk_status bsk_layout_move_blocks(const bsk_layout *source, int64_t count,
                                          const int32_t *slot, const int32_t *row,
                                          const int32_t *col, bsk_layout **layout);

/* Drops the blocks whose gate is zero: a new layout in which the kept blocks keep their relative
 * order. source_slot as for bsk_layout_crop. gate: host f32 [nnz]. Move the weights with
 * bsk_block_gather_run. */
BSK_API bsk_status bsk_layout_compact(const bsk_layout *source, const float *gate,
                                      int32_t *source_slot, bsk_layout **layout);

/* --- Queries --- */

typedef struct bsk_layout_info {
    size_t struct_size;
    int64_t rows, cols;
    int32_t block_rows, block_cols;
    int32_t grid_rows, grid_cols;
    int32_t heads;
    int64_t nnz;            /* kept blocks of all heads */
    double density;         /* nnz / (heads * grid_rows * grid_cols) */
    int32_t max_row_blocks; /* longest block row and block column */
    int32_t max_col_blocks;
    int32_t empty_rows; /* block rows and columns without blocks, over all heads */
    int32_t empty_cols;
    int32_t ordered; /* nonzero: slots are row-major, no indirection */
} bsk_layout_info;

/* Fills *info, whose struct_size must be set. */
BSK_API bsk_status bsk_layout_query(const bsk_layout *layout, bsk_layout_info *info);

/* The head and block coordinate of a slot. Any output may be NULL. */
BSK_API bsk_status bsk_layout_block_coord(const bsk_layout *layout, int64_t slot, int32_t *head,
                                          int32_t *row, int32_t *col);

/* The slot of a block, or -1 in *slot if it is not kept. */
BSK_API bsk_status bsk_layout_find(const bsk_layout *layout, int32_t head, int32_t row, int32_t col,
                                   int64_t *slot);

/* The block columns that grid rows [row, row + rows) need: bytes [heads][grid_cols], 1 where one of
 * these rows keeps a block, 0 elsewhere. Of attention, the keys and values that a device with these
 * queries has to be sent. */
BSK_API bsk_status bsk_layout_reach(const bsk_layout *layout, int32_t row, int32_t rows,
                                    uint8_t *cols);

/* --- Export. Arrays are the caller's, of the sizes given; any may be NULL to leave it out. --- */

/* row_start [heads][grid_rows + 1] as in bsk_layout_from_bsr; col and slot [nnz], columns
 * ascending within a row. */
BSK_API bsk_status bsk_layout_to_bsr(const bsk_layout *layout, int64_t *row_start, int32_t *col,
                                     int32_t *slot);

/* Coordinates by slot: head, row and col [nnz]. */
BSK_API bsk_status bsk_layout_to_coo(const bsk_layout *layout, int32_t *head, int32_t *row,
                                     int32_t *col);

/* mask: bytes [heads][grid_rows][grid_cols]. */
BSK_API bsk_status bsk_layout_to_mask(const bsk_layout *layout, uint8_t *mask);

/* Blocked-ELL: col and slot [heads][grid_rows][width], columns ascending, padded with -1. width
 * must be at least max_row_blocks. */
BSK_API bsk_status bsk_layout_to_ell(const bsk_layout *layout, int32_t width, int32_t *col,
                                     int32_t *slot);

/* --- Serialization: little-endian, versioned, with a checksum; portable between machines. --- */

/* Writes at most *bytes bytes and sets *bytes to the size needed. With data NULL only the size is
 * given. INVALID if *bytes is too small. */
BSK_API bsk_status bsk_layout_serialize(const bsk_layout *layout, void *data, size_t *bytes);

/* Accepts any bytes: CORRUPT for what is not a layout, VERSION for a newer format. Memory use is
 * bounded by a small multiple of bytes. */
BSK_API bsk_status bsk_layout_deserialize(bsk_context *context, const void *data, size_t bytes,
                                          bsk_layout **layout);

#ifdef __cplusplus
}
#endif
#endif
