#include "tests/unit/layout_twin.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* --- invariants ------------------------------------------------------------------------------- */

typedef struct lines {
    int32_t grid, other;
    const int64_t *start;
    const int32_t *index, *slot;
    const int32_t *line_of, *index_of; /* by slot */
} lines;

/* One direction: offsets follow each other through the heads, lists ascend, slots are the head's
 * own and used once, and the list by slot says the same. */
static const char *lines_invariants(const bsk_layout_tables *t, const lines *l, uint8_t *used)
{
    memset(used, 0, (size_t)t->nnz + 1);
    for (int32_t h = 0; h < t->heads; h++) {
        const int64_t *start = l->start + h * ((int64_t)l->grid + 1);
        if (start[0] != t->head_start[h] || start[l->grid] != t->head_start[h + 1])
            return "offsets of a head";
        for (int32_t i = 0; i < l->grid; i++) {
            if (start[i + 1] < start[i] || start[i + 1] > t->nnz)
                return "offsets of a line";
            for (int64_t e = start[i]; e < start[i + 1]; e++) {
                int32_t s = l->slot[e];
                if (l->index[e] < 0 || l->index[e] >= l->other)
                    return "index out of range";
                if (e > start[i] && l->index[e] <= l->index[e - 1])
                    return "indices do not ascend";
                if (s < t->head_start[h] || s >= t->head_start[h + 1] || used[s]++)
                    return "slots are no permutation";
                if (l->line_of[s] != i || l->index_of[s] != l->index[e])
                    return "coordinates by slot";
            }
        }
    }
    return NULL;
}

const char *twin_invariants(const bsk_layout_tables *t)
{
    if (t->struct_size != sizeof *t || t->rows < 1 || t->cols < 1 || t->block_rows < 1 ||
        t->block_rows > 65536 || t->block_cols < 1 || t->block_cols > 65536 || t->heads < 1)
        return "geometry";
    if ((int64_t)t->grid_rows != (t->rows - 1) / t->block_rows + 1 ||
        (int64_t)t->grid_cols != (t->cols - 1) / t->block_cols + 1)
        return "grid";
    if (t->nnz < 0 || t->nnz > INT32_MAX || t->head_start[0] != 0 ||
        t->head_start[t->heads] != t->nnz)
        return "nnz";
    for (int32_t h = 0; h < t->heads; h++)
        if (t->head_start[h + 1] < t->head_start[h])
            return "head_start";
    lines rows = {t->grid_rows, t->grid_cols, t->row_start, t->row_col,
                  t->row_slot,  t->slot_row,  t->slot_col};
    lines cols = {t->grid_cols, t->grid_rows, t->col_start, t->col_row,
                  t->col_slot,  t->slot_col,  t->slot_row};
    bool ordered = true;
    for (int64_t e = 0; e < t->nnz; e++)
        ordered = ordered && t->row_slot[e] == e;
    if (!!t->ordered != ordered)
        return "ordered";
    uint8_t *used = malloc((size_t)t->nnz + 1);
    if (!used)
        return "no memory";
    const char *why = lines_invariants(t, &rows, used);
    if (!why)
        why = lines_invariants(t, &cols, used);
    free(used);
    return why;
}

/* --- the twin --------------------------------------------------------------------------------- */

typedef struct cell {
    int32_t row, col;
} cell;

/* Place of (row, col) in the order, as a number to compare; the code is made bit by bit. */
static uint64_t order_key(bsk_order order, uint64_t row, uint64_t col)
{
    uint64_t code = 0;
    switch (order) {
    case BSK_ORDER_ROW:
        return row << 32 | col;
    case BSK_ORDER_COL:
        return col << 32 | row;
    default:
        for (int bit = 0; bit < 32; bit++)
            code |= (row >> bit & 1) << 2 * bit | (col >> bit & 1) << (2 * bit + 1);
        return code;
    }
}

/* The slot of block i: blocks of earlier heads and those of the same head that come before. */
static int32_t slot_of(const twin_blocks *b, int64_t i, bsk_order order)
{
    int32_t slot = 0;
    uint64_t key = order_key(order, (uint64_t)b->row[i], (uint64_t)b->col[i]);
    if (order == BSK_ORDER_GIVEN)
        return (int32_t)i;
    for (int64_t k = 0; k < b->count; k++) {
        if (b->head[k] < b->head[i])
            slot++;
        else if (b->head[k] == b->head[i])
            slot += order_key(order, (uint64_t)b->row[k], (uint64_t)b->col[k]) < key;
    }
    return slot;
}

/* Compares one head's tables with a grid of slots, -1 where nothing is kept. */
static const char *compare_grid(const bsk_layout_tables *t, int32_t h, const int32_t *grid,
                                int64_t *row_entry, int64_t *col_entry)
{
    const int64_t *row_start = t->row_start + h * ((int64_t)t->grid_rows + 1);
    const int64_t *col_start = t->col_start + h * ((int64_t)t->grid_cols + 1);
    for (int32_t r = 0; r < t->grid_rows; r++) {
        if (row_start[r] != *row_entry)
            return "row_start";
        for (int32_t c = 0; c < t->grid_cols; c++) {
            int32_t slot = grid[(int64_t)r * t->grid_cols + c];
            if (slot < 0)
                continue;
            if (t->row_col[*row_entry] != c || t->row_slot[*row_entry] != slot)
                return "by-row list";
            if (t->slot_row[slot] != r || t->slot_col[slot] != c)
                return "list by slot";
            ++*row_entry;
        }
    }
    for (int32_t c = 0; c < t->grid_cols; c++) {
        if (col_start[c] != *col_entry)
            return "col_start";
        for (int32_t r = 0; r < t->grid_rows; r++) {
            int32_t slot = grid[(int64_t)r * t->grid_cols + c];
            if (slot < 0)
                continue;
            if (t->col_row[*col_entry] != r || t->col_slot[*col_entry] != slot)
                return "by-column list";
            ++*col_entry;
        }
    }
    return row_start[t->grid_rows] == *row_entry && col_start[t->grid_cols] == *col_entry
               ? NULL
               : "last offset";
}

const char *twin_compare(const bsk_layout_tables *t, const twin_blocks *blocks, bsk_order order)
{
    if (t->nnz != blocks->count)
        return "nnz";
    int64_t cells = (int64_t)t->grid_rows * t->grid_cols, row_entry = 0, col_entry = 0;
    int32_t *grid = malloc((size_t)cells * sizeof *grid);
    const char *why = grid ? NULL : "no memory";
    for (int32_t h = 0; h < t->heads && !why; h++) {
        if (t->head_start[h] != row_entry) {
            why = "head_start";
            break;
        }
        for (int64_t i = 0; i < cells; i++)
            grid[i] = -1;
        for (int64_t i = 0; i < blocks->count; i++)
            if (blocks->head[i] == h)
                grid[(int64_t)blocks->row[i] * t->grid_cols + blocks->col[i]] =
                    slot_of(blocks, i, order);
        why = compare_grid(t, h, grid, &row_entry, &col_entry);
    }
    free(grid);
    return why;
}

/* --- equality --------------------------------------------------------------------------------- */

static bool same_list(const void *a, const void *b, int64_t count, size_t size)
{
    return count == 0 || memcmp(a, b, (size_t)count * size) == 0;
}

const char *twin_same(const bsk_layout_tables *a, const bsk_layout_tables *b)
{
    if (a->rows != b->rows || a->cols != b->cols || a->block_rows != b->block_rows ||
        a->block_cols != b->block_cols || a->grid_rows != b->grid_rows ||
        a->grid_cols != b->grid_cols || a->heads != b->heads || a->ordered != b->ordered ||
        a->nnz != b->nnz)
        return "geometry";
    int64_t rows = a->heads * ((int64_t)a->grid_rows + 1);
    int64_t cols = a->heads * ((int64_t)a->grid_cols + 1);
    if (!same_list(a->head_start, b->head_start, a->heads + 1, 8) ||
        !same_list(a->row_start, b->row_start, rows, 8) ||
        !same_list(a->col_start, b->col_start, cols, 8))
        return "offsets";
    if (!same_list(a->row_col, b->row_col, a->nnz, 4) ||
        !same_list(a->row_slot, b->row_slot, a->nnz, 4) ||
        !same_list(a->col_row, b->col_row, a->nnz, 4) ||
        !same_list(a->col_slot, b->col_slot, a->nnz, 4) ||
        !same_list(a->slot_row, b->slot_row, a->nnz, 4) ||
        !same_list(a->slot_col, b->slot_col, a->nnz, 4))
        return "lists";
    return NULL;
}
