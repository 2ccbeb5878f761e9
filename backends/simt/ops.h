/* Kernels of the dense companions. The host's side (ops.c) includes this file without SIMT_T for
 * the structs of scalars. */
#ifndef BSKI_SIMT_OPS_H
#define BSKI_SIMT_OPS_H

/* Matrices are walked by rows (outer) and columns (inner, where runs of VEC elements lie);
 * <name>_row and <name>_col are strides. `vector`: every run is aligned and of stride 1. */

typedef struct embedding_arg {
    i64 rows, cols, table_rows;
    i64 table_row, table_col, y_row, y_col;
    i32 index_type, y_type, vector;
    i32 lanes_run; /* of copy_slices: lanes next to each other */
    i32 table_type, pad;
} embedding_arg;

/* Sorting the indices by table row: stable, eight bits a pass. Digits are counted for each chunk of
 * SORT_TILE * tiles indices; counts are [chunks][256]. Indices outside the table become the key
 * table_rows, which comes last. */
enum { SORT_TILE = 256, SORT_DIGITS = 256 };

typedef struct sort_arg {
    i64 count, table_rows;
    i32 chunks, tiles, shift, first, index_type;
} sort_arg;

/* Sums over the sorted list. Table rows that occur more than PART_COUNT times get partial sums, two
 * for each PART_COUNT positions: of the row that holds the first one, and of the row that holds the
 * last one. */
enum { PART_COUNT = 128 };
/* Rows that a lane of copy_slices copies a run of, and rows of the table that a lane of
 * embedding_grad_packed sums, all of them under way at once. */
enum { COPY_ROWS = 4, SUM_ROWS = 2 };
/* Bytes of a run of copy_bytes. */
enum { COPY_BYTES = 16 };

typedef struct embedding_grad_arg {
    i64 count, parts, rows, cols;
    i64 dy_row, dtable_row;
    i64 alpha, beta; /* NUM */
    i32 dy_type, dtable_type, dy_vector, dtable_vector;
    i32 packed;    /* dy: whole runs, aligned, of the kernel's type */
    i32 lanes_run; /* of the sums: lanes next to each other */
} embedding_grad_arg;

/* `packed`: the common case, in which all runs are whole, aligned and of one type, the bias too.
 * Its loops hold runs as they were loaded, so that registers have room for several under way. */

/* Which axis of the walk the features lie on. */
enum { BIAS_NONE = 0, BIAS_COL = 1, BIAS_ROW = 2 };

typedef struct bias_act_arg {
    i64 rows, cols;
    i64 x_row, x_col, y_row, y_col;
    i64 share; /* packed: rows of a share */
    i32 act, bias, y_type, vector, bias_vector;
    i32 lanes_run; /* packed: lanes next to each other */
    i32 x_type, pad;
} bias_act_arg;

/* Sums by feature: a group takes `lanes_run` runs next to each other and LANES / lanes_run rows at
 * a time of its share of the rows; where features are rows, lanes_run is LANES. partial is
 * [shares][features]. */
typedef struct bias_act_grad_arg {
    i64 rows, cols;
    i64 dy_row, dy_col, x_row, x_col, dx_row, dx_col;
    i64 share;             /* rows (features are columns) or runs (features are rows) of a share */
    i64 dx_alpha, dx_beta; /* NUM; packed: 1 and 0 alone */
    i32 act, bias, x_type, dx_type, vector, bias_vector;
    i32 packed;
    i32 lanes_run;
    i32 dy_type, pad;
} bias_act_grad_arg;

typedef struct dbias_arg {
    i64 features, shares;
    i64 alpha, beta; /* NUM */
} dbias_arg;

#endif

#ifdef SIMT_T
#include "lanes.h"

/* Runs that a lane has under way. */
#undef UNDERWAY
#define UNDERWAY (VEC == 8 ? 2 : 4)

#include "stream.h"

#include "ops_embedding.h"

#include "ops_act.h"

#include "ops_bias.h"

#endif
