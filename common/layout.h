/* The layout core: pure functions from block lists to the tables that every backend uses.
 * No I/O, no globals; memory comes from the allocator that is passed in.
 *
 * Functions that can fail return a status, describe the cause in *diag (never NULL) and leave
 * their outputs alone, except that *layout is set to NULL. Pointers to arrays of zero length may be
 * NULL. Arguments that are not checked here are said to be so. */
#ifndef BSKI_LAYOUT_H
#define BSKI_LAYOUT_H

#include <stdbool.h>

#include <bsk/backend.h>

/* What went wrong, for a caller that turns it into a status and a message. */
typedef struct bski_diag {
    bsk_status status;
    char text[240];
} bski_diag;

/* Fills *diag and returns status. */
bsk_status bski_diag_set(bski_diag *diag, bsk_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A layout: the tables and what owns them. All arrays lie in the same allocation. */
struct bsk_layout {
    bsk_layout_tables tables; /* first: backends see only this */
    bsk_allocator allocator;
    int refs; /* atomic */
};

/* --- layout_build.c: the one builder, and the constructors from block lists --- */

/* Checked layout parameters. */
typedef struct bski_geometry {
    int64_t rows, cols;
    int32_t block_rows, block_cols;
    int32_t grid_rows, grid_cols;
    int32_t heads;
} bski_geometry;

/* Checks params (in full size) and derives the grid. */
bsk_status bski_geometry_set(bski_geometry *geometry, const bsk_layout_params *params,
                             bski_diag *diag);

/* The geometry of an existing layout. */
bski_geometry bski_layout_geometry(const bsk_layout *layout);

/* Allocates the tables. The caller fills bski_writable(layout).head_start, slot_row and slot_col,
 * with coordinates in range, and calls bski_layout_index. */
bsk_status bski_layout_new(const bsk_allocator *allocator, const bski_geometry *geometry,
                           int64_t nnz, bsk_layout **layout, bski_diag *diag);

/* The arrays of a layout under construction. */
typedef struct bski_writable {
    int64_t *head_start, *row_start, *col_start;
    int32_t *row_col, *row_slot, *col_row, *col_slot, *slot_row, *slot_col;
} bski_writable;

bski_writable bski_layout_writable(bsk_layout *layout);

/* A block that is listed twice. head is -1 if there is none. */
typedef struct bski_duplicate {
    int32_t head, row, col;
} bski_duplicate;

/* Completes a layout from its slots in O(nnz + lines). Slots are renumbered in the given order;
 * BSK_ORDER_GIVEN keeps them. A block that appears twice gives INVALID and is put in *duplicate, so
 * that the caller can name it in terms of its own input; only then is *diag without a text. */
bsk_status bski_layout_index(bsk_layout *layout, bsk_order order, bski_duplicate *duplicate,
                             bski_diag *diag);

/* Frees a layout that was not handed out. NULL is allowed. */
void bski_layout_free(bsk_layout *layout);

bsk_status bski_layout_from_mask(const bsk_allocator *allocator, const bski_geometry *geometry,
                                 bsk_order order, const uint8_t *mask, bsk_layout **layout,
                                 bski_diag *diag);
bsk_status bski_layout_from_coo(const bsk_allocator *allocator, const bski_geometry *geometry,
                                bsk_order order, int64_t count, const int32_t *head,
                                const int32_t *row, const int32_t *col, bsk_layout **layout,
                                bski_diag *diag);

/* from_bsr, or from_csc where by_cols: start is then col_start and index the block rows. */
bsk_status bski_layout_from_lists(const bsk_allocator *allocator, const bski_geometry *geometry,
                                  bsk_order order, bool by_cols, const int64_t *start,
                                  const int32_t *index, const int32_t *slot, bsk_layout **layout,
                                  bski_diag *diag);

/* Lists with checked offsets: one set of lines (block rows, or block columns) of a layout. */
typedef struct bski_lines {
    int32_t grid, other;  /* lines of a head; length of a line in blocks */
    const int64_t *start; /* [heads * (grid + 1)] */
    const int32_t *index; /* [nnz] position along the line, ascending */
    const int32_t *slot;  /* [nnz] */
} bski_lines;

bski_lines bski_layout_lines(const bsk_layout_tables *tables, bool by_cols);

/* Stable radix sort by the low `bits` bits of key. scratch has room for count pairs. */
typedef struct bski_pair {
    uint64_t key;
    uint32_t value;
} bski_pair;

void bski_sort_pairs(bski_pair *pairs, bski_pair *scratch, int64_t count, int bits);

/* The Morton code with the bits of `even` at even positions. */
uint64_t bski_morton(uint32_t even, uint32_t odd);

/* The number of bits that hold every value below n, n >= 1. */
int bski_bits(uint64_t n);

/* allocator->resize for count items of size bytes each: NULL on overflow and when there is no
 * memory. At least one byte is asked for. */
void *bski_table_alloc(const bsk_allocator *allocator, int64_t count, size_t size);
void bski_table_free(const bsk_allocator *allocator, void *pointer);

/* --- layout_algebra.c: layouts from layouts, and queries. What they do: bsk/layout.h --- */

bsk_status bski_layout_combine(const bsk_layout *a, const bsk_layout *b, bool intersect,
                               bsk_layout **layout, bski_diag *diag);
bsk_status bski_layout_crop(const bsk_layout *source, int32_t row, int32_t rows, int32_t col,
                            int32_t cols, int32_t *source_slot, bsk_layout **layout,
                            bski_diag *diag);
bsk_status bski_layout_split(const bsk_layout_tables *tables, bool by_cols, int32_t parts,
                             int32_t *first, bski_diag *diag);
bsk_status bski_layout_transpose(const bsk_layout *source, bsk_layout **layout, bski_diag *diag);
bsk_status bski_layout_broadcast(const bsk_layout *source, int32_t heads, bsk_layout **layout,
                                 bski_diag *diag);
bsk_status bski_layout_move_blocks(const bsk_layout *source, int64_t count, const int32_t *slot,
                                   const int32_t *row, const int32_t *col, bsk_layout **layout,
                                   bski_diag *diag);
bsk_status bski_layout_compact(const bsk_layout *source, const float *gate, int32_t *source_slot,
                               bsk_layout **layout, bski_diag *diag);

/* Fills every field but struct_size. */
void bski_layout_describe(const bsk_layout_tables *tables, bsk_layout_info *info);
/* The head that owns slot, which must be in range. */
int32_t bski_layout_head(const bsk_layout_tables *tables, int64_t slot);
/* The slot of a block in range, or -1. */
int64_t bski_layout_find(const bsk_layout_tables *tables, int32_t head, int32_t row, int32_t col);
bsk_status bski_layout_reach(const bsk_layout_tables *tables, int32_t row, int32_t rows,
                             uint8_t *cols, bski_diag *diag);

/* --- layout_patterns.c: layouts from data and from random numbers. See bsk/layout.h --- */

bsk_status bski_layout_from_dense(const bsk_allocator *allocator, const bski_geometry *geometry,
                                  bsk_order order, const bsk_tensor *desc, const void *data,
                                  bsk_norm norm, double threshold, int64_t keep,
                                  bsk_layout **layout, bski_diag *diag);
bsk_status bski_layout_random(const bsk_allocator *allocator, const bski_geometry *geometry,
                              bsk_order order, double density, uint64_t seed, bsk_layout **layout,
                              bski_diag *diag);
bsk_status bski_layout_barabasi_albert(const bsk_allocator *allocator,
                                       const bski_geometry *geometry, bsk_order order, int32_t m,
                                       uint64_t seed, bsk_layout **layout, bski_diag *diag);
bsk_status bski_layout_watts_strogatz(const bsk_allocator *allocator, const bski_geometry *geometry,
                                      bsk_order order, int32_t k, double p, uint64_t seed,
                                      bsk_layout **layout, bski_diag *diag);

/* bsk_pattern_evolve of bsk/weights.h. */
bsk_status bski_layout_evolve(const bsk_layout *source, const float *norm, double fraction,
                              uint64_t seed, uint8_t *keep, bsk_layout **layout, bski_diag *diag);

/* --- layout_attention.c: attention patterns and masks inside blocks. See bsk/patterns.h --- */

bsk_status bski_layout_causal(const bsk_allocator *allocator, const bski_geometry *geometry,
                              bsk_order order, int64_t shift, bsk_layout **layout, bski_diag *diag);
bsk_status bski_layout_local(const bsk_allocator *allocator, const bski_geometry *geometry,
                             bsk_order order, int64_t sink, int64_t window, int64_t shift,
                             bsk_layout **layout, bski_diag *diag);
bsk_status bski_layout_strided(const bsk_allocator *allocator, const bski_geometry *geometry,
                               bsk_order order, int64_t stride, bsk_layout **layout,
                               bski_diag *diag);
bsk_status bski_layout_sliding(const bsk_allocator *allocator, const bski_geometry *geometry,
                               bsk_order order, int32_t blocks, int32_t causal, bsk_layout **layout,
                               bski_diag *diag);
bsk_status bski_layout_fixed(const bsk_allocator *allocator, const bski_geometry *geometry,
                             bsk_order order, const bsk_fixed_pattern *pattern, bsk_layout **layout,
                             bski_diag *diag);

typedef enum bski_global_kind { BSKI_BIGBIRD, BSKI_LONGFORMER, BSKI_VARIABLE } bski_global_kind;

bsk_status bski_layout_global(const bsk_allocator *allocator, const bski_geometry *geometry,
                              bsk_order order, bski_global_kind kind,
                              const bsk_global_pattern *pattern, bsk_layout **layout,
                              bski_diag *diag);

/* The elements of conv, or where turned of deconv; the pattern must have passed the check. */
bsk_status bski_conv_check(const bski_geometry *geometry, const bsk_conv_pattern *pattern,
                           bool turned, bski_diag *diag);
bool bski_conv_visible(const bsk_conv_pattern *pattern, bool turned, int64_t row, int64_t col);

bsk_status bski_layout_from_elements(const bsk_allocator *allocator, const bski_geometry *geometry,
                                     bsk_order order, bsk_element_fn visible, void *user,
                                     bsk_layout **layout, bski_diag *diag);
bsk_status bski_layout_element_bits(const bsk_layout *layout, bsk_element_fn visible, void *user,
                                    int32_t *index, uint8_t *bits, int64_t *masks, bski_diag *diag);

/* --- layout_serialize.c: bytes and other formats --- */

/* Size of the serialized form. */
size_t bski_layout_bytes(const bsk_layout_tables *tables);
/* Writes bski_layout_bytes() bytes. */
void bski_layout_serialize(const bsk_layout_tables *tables, uint8_t *data);
bsk_status bski_layout_deserialize(const bsk_allocator *allocator, const uint8_t *data,
                                   size_t bytes, bsk_layout **layout, bski_diag *diag);
/* CRC-32C (Castagnoli) of data. */
uint32_t bski_crc32c(const uint8_t *data, size_t bytes);

void bski_layout_to_bsr(const bsk_layout_tables *tables, int64_t *row_start, int32_t *col,
                        int32_t *slot);
void bski_layout_to_coo(const bsk_layout_tables *tables, int32_t *head, int32_t *row, int32_t *col);
void bski_layout_to_mask(const bsk_layout_tables *tables, uint8_t *mask);
bsk_status bski_layout_to_ell(const bsk_layout_tables *tables, int32_t width, int32_t *col,
                              int32_t *slot, bski_diag *diag);

/* --- layout_schedule.c: orders of work. Pure functions of the tables and their parameters ---
 *
 * A *line* is a block row, or with by_cols a block column. Lines of all heads are numbered through:
 * line l is line l % grid of head l / grid. Results are the same on every machine. */

/* Groups: a permutation of one head's lines in which each run of `group` >= 1 lines has similar
 * lists of blocks. Greedy: lines are first sorted by a min-hash of their lists; each group starts
 * with the first line that is left and takes, one by one, the line with the largest Jaccard
 * similarity to the group's union among the next `window` >= 1 lines. Costs O(window * nnz).
 * order has grid elements. */
bsk_status bski_schedule_groups(const bsk_layout_tables *tables, bool by_cols, int32_t head,
                                int32_t group, int32_t window, const bsk_allocator *allocator,
                                int32_t *order, bski_diag *diag);

/* What grouping saves: the sum over groups of `group` lines of `order` (NULL: the natural order) of
 * the number of distinct positions in their lists. */
bsk_status bski_schedule_group_cost(const bsk_layout_tables *tables, bool by_cols, int32_t head,
                                    int32_t group, const int32_t *order,
                                    const bsk_allocator *allocator, int64_t *cost, bski_diag *diag);

#endif
