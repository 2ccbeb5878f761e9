/* A slow, obvious second implementation of layouts, and their invariants. */
#ifndef LAYOUT_TWIN_H
#define LAYOUT_TWIN_H

#include <bsk/backend.h>

/* Blocks as a caller lists them. */
typedef struct twin_blocks {
    int64_t count;
    const int32_t *head, *row, *col;
} twin_blocks;

/* NULL if the tables hold every property that bsk/backend.h promises, else what is wrong. */
const char *twin_invariants(const bsk_layout_tables *tables);

/* NULL if the tables are those that the blocks make with slots in the given order, else the first
 * difference. Works on the whole grid: for small ones only. */
const char *twin_compare(const bsk_layout_tables *tables, const twin_blocks *blocks,
                         bsk_order order);

/* NULL if two layouts are the same in every field and table, else the name of one that differs. */
const char *twin_same(const bsk_layout_tables *a, const bsk_layout_tables *b);

#endif
