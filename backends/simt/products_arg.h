/* Scalars of the product kernels: one definition for the device and the host, which defines i64 and
 * i32 before. Strides count elements. */
#ifndef BSKI_SIMT_PRODUCTS_ARG_H
#define BSKI_SIMT_PRODUCTS_ARG_H

typedef struct dsd_arg {
    i64 alpha, beta;                    /* NUM */
    i64 s_group, s_block, s_row, s_col; /* op(S) within a block */
    i64 b_batch, b_row, b_col;
    i64 c_batch, c_row, c_col;
    i64 d_batch, d_row, d_col;             /* residual */
    i64 rows, cols, depth;                 /* of op(S): rows and depth; of C: rows and cols */
    i64 tiles_n;                           /* groups of a batch member: row tiles x tiles_n */
    i64 members;                           /* of the batch */
    i32 grid_rows, block_rows, block_cols; /* of op(S) */
    i32 tiles_m;                           /* tiles of one block row */
    i32 heads, groups;
    i32 act, c_type, d_type;
    i32 s_along_k, b_along_n, c_along_n; /* the contiguous axis of each */
    i32 s_vector, b_vector;              /* their quads are aligned */
    i32 plain; /* C is alpha times the product, in its type, and its quads are aligned */
    i32 type;  /* of S and B, where their kernels serve both of 16 bits */
    i32 tile_rows, splits; /* few columns: rows of a tile, parts of a list */
    i32 whole;             /* no gates, and all quads whole, aligned, and counted in 32 bits */
} dsd_arg;

/* A block row of op(S), and which entries it has; those of a head lie by their number, most first, so
 * that short ones are left when groups run out. */
typedef struct dsd_list {
    i32 row, first, last;
} dsd_list;

/* Neighbours in a block row, of which sdd computes a tile: `units` tiles of blocks from tile number
 * `tile` of entry number `entry` on. */
typedef struct sdd_strip {
    i32 row, head, entry, tile, units;
} sdd_strip;

/* A block of the wide form, and of that of few samples. */
typedef struct sdd_block {
    i32 row, col, head, slot;
} sdd_block;

typedef struct sdd_arg {
    i64 alpha, beta; /* NUM */
    i64 a_batch, a_row, a_k;
    i64 b_batch, b_k, b_col;
    i64 s_group, w_group;
    i64 rows, cols, n;
    i64 nnz;
    i64 part;    /* elements of one partial result: groups x nnz x block */
    i64 members; /* of the batch that add up to one block */
    i32 block_rows, block_cols;
    i32 tiles_m, tiles_n;      /* tiles of one block */
    i32 heads, groups, splits; /* splits: partial results over n */
    i32 gate_mode, s_type;
    i32 a_along_k, b_along_k;
    i32 direct;     /* stores s; otherwise partial results */
    i32 accumulate; /* adds to the partial results of the pair before */
    i32 strips;
    i32 a_vector, b_vector, s_vector; /* their quads are aligned; s_vector: or the parts' */
    i32 type;                         /* of a, b and w */
    /* Few samples: elements of a lane's patch, 0 in other forms; patches of a block down, across until
     * those below come, and in all; blocks that a group has at a time, of which there are `strips`. The
     * kernel multiplies with 2^31 / x instead of dividing by x. */
    i32 patch, octs, across, cells, at_once;
    i32 by_octs, by_across, by_cells;
} sdd_arg;

/* Sums of the columns of b, in `splits` partial results. */
typedef struct bsum_arg {
    i64 b_batch, b_k, b_col;
    i64 n, cols, batch;
    i32 splits, along_k;
    i32 accumulate, type;
} bsum_arg;

/* Partial results [splits][rows][cols] to a matrix of any type; `ways` lanes share those of an
 * element. */
typedef struct finish_arg {
    i64 alpha, beta; /* NUM */
    i64 rows, cols, row_stride, col_stride;
    i32 splits, ways, type, pad;
} finish_arg;

/* A copy in f32 of lines of f8, each of which begins a quad: [lines][pitch]. `member` lines of the source
 * are a member of its batch. */
typedef struct widen_arg {
    i64 batch, line; /* strides of the source */
    i64 lines, member, length, pitch;
    i32 type, vector; /* vector: its quads are aligned */
} widen_arg;

typedef struct norm_arg {
    i64 x_n, x_feature;
    i64 n, features;
    i32 block, norm;
    i32 along_n, type;
} norm_arg;

typedef struct reduced_arg {
    i64 n, rows, cols;
    i32 splits, accumulate;
} reduced_arg;

/* A copy in the type of the arithmetic, by panels of columns: [panels][rows][panel], or with pairs of
 * rows [panels][rows / 2, rounded up][panel][2]. */
typedef struct spread_arg {
    i64 outer_stride, inner_stride, row_stride, col_stride; /* of the source */
    i64 inner, rows, cols;                                  /* any number of outer members */
    i64 panel;
    i32 type, pairs;
} spread_arg;

#endif
