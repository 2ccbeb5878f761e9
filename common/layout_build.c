/* The builder that all layouts come from, and the constructors from block lists.
 *
 * A constructor allocates a layout, writes the coordinates of its blocks by slot, and calls
 * bski_layout_index. That sorts them by counting, in the layout's own arrays: the line offsets
 * serve as cursors, and each list as scratch for the other. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/checked.h"
#include "common/layout.h"

enum { MAX_BLOCK = 65536 };

bsk_status bski_diag_set(bski_diag *diag, bsk_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(diag->text, sizeof diag->text, format, list);
    va_end(list);
    diag->status = status;
    return status;
}

void *bski_table_alloc(const bsk_allocator *allocator, int64_t count, size_t size)
{
    size_t bytes;
    if (count < 0 || !bski_mul_size((size_t)count, size, &bytes) || bytes > PTRDIFF_MAX)
        return NULL;
    return allocator->resize(allocator->user, NULL, bytes ? bytes : 1);
}

void bski_table_free(const bsk_allocator *allocator, void *pointer)
{
    if (pointer)
        allocator->resize(allocator->user, pointer, 0);
}

/* --- geometry --------------------------------------------------------------------------------- */

static bsk_status grid_set(const char *name, int64_t size, int32_t block, int32_t *grid,
                           bski_diag *diag)
{
    if (size < 1)
        return bski_diag_set(diag, BSK_E_INVALID, "params.%s = %lld must be at least 1", name,
                             (long long)size);
    if (block < 1 || block > MAX_BLOCK)
        return bski_diag_set(diag, BSK_E_INVALID, "params.block_%s = %d must be in [1, %d]", name,
                             block, MAX_BLOCK);
    int64_t blocks = bski_ceil_div(size, block);
    if (blocks > INT32_MAX)
        return bski_diag_set(diag, BSK_E_INVALID,
                             "params.%s = %lld in blocks of %d makes a grid of %lld, more than %d",
                             name, (long long)size, block, (long long)blocks, INT32_MAX);
    *grid = (int32_t)blocks;
    return BSK_OK;
}

bsk_status bski_geometry_set(bski_geometry *geometry, const bsk_layout_params *params,
                             bski_diag *diag)
{
    bski_geometry g = {params->rows,
                       params->cols,
                       params->block_rows,
                       params->block_cols,
                       0,
                       0,
                       params->heads ? params->heads : 1};
    bsk_status status = grid_set("rows", g.rows, g.block_rows, &g.grid_rows, diag);
    if (status == BSK_OK)
        status = grid_set("cols", g.cols, g.block_cols, &g.grid_cols, diag);
    if (status != BSK_OK)
        return status;
    if (g.heads < 1)
        return bski_diag_set(diag, BSK_E_INVALID, "params.heads = %d must not be negative",
                             g.heads);
    if ((int)params->order < BSK_ORDER_ROW || (int)params->order > BSK_ORDER_GIVEN)
        return bski_diag_set(diag, BSK_E_INVALID, "params.order = %d must be in [%d, %d]",
                             (int)params->order, BSK_ORDER_ROW, BSK_ORDER_GIVEN);
    *geometry = g;
    return BSK_OK;
}

bski_geometry bski_layout_geometry(const bsk_layout *layout)
{
    const bsk_layout_tables *t = &layout->tables;
    bski_geometry g = {t->rows,      t->cols,      t->block_rows, t->block_cols,
                       t->grid_rows, t->grid_cols, t->heads};
    return g;
}

/* --- allocation ------------------------------------------------------------------------------- */

/* Adds count items of size bytes to *bytes. */
static bool layout_grow(size_t *bytes, int64_t count, size_t size)
{
    size_t more;
    return bski_mul_size((size_t)count, size, &more) && bski_add_size(*bytes, more, bytes);
}

bsk_status bski_layout_new(const bsk_allocator *allocator, const bski_geometry *geometry,
                           int64_t nnz, bsk_layout **layout, bski_diag *diag)
{
    *layout = NULL;
    const bski_geometry *g = geometry;
    if (nnz > INT32_MAX)
        return bski_diag_set(diag, BSK_E_INVALID,
                             "%lld kept blocks of %d heads together; legal are at most %d",
                             (long long)nnz, g->heads, INT32_MAX);
    /* at most 2^62 each, so these sums do not overflow */
    int64_t row_starts = (int64_t)g->heads * ((int64_t)g->grid_rows + 1);
    int64_t col_starts = (int64_t)g->heads * ((int64_t)g->grid_cols + 1);
    size_t bytes = sizeof(bsk_layout);
    bool fits = layout_grow(&bytes, (int64_t)g->heads + 1, sizeof(int64_t)) &&
                layout_grow(&bytes, row_starts, sizeof(int64_t)) &&
                layout_grow(&bytes, col_starts, sizeof(int64_t)) &&
                layout_grow(&bytes, 6 * nnz, sizeof(int32_t)) && bytes <= PTRDIFF_MAX;
    bsk_layout *l = fits ? allocator->resize(allocator->user, NULL, bytes) : NULL;
    if (!l)
        return bski_diag_set(diag, BSK_E_NOMEM,
                             "no memory for the tables of %d x %d x %d blocks with %lld kept",
                             g->heads, g->grid_rows, g->grid_cols, (long long)nnz);

    memset(l, 0, sizeof *l);
    int64_t *offsets = (int64_t *)(l + 1);
    int32_t *lists = (int32_t *)(offsets + g->heads + 1 + row_starts + col_starts);
    l->tables = (bsk_layout_tables){
        .struct_size = sizeof l->tables,
        .rows = g->rows,
        .cols = g->cols,
        .block_rows = g->block_rows,
        .block_cols = g->block_cols,
        .grid_rows = g->grid_rows,
        .grid_cols = g->grid_cols,
        .heads = g->heads,
        .nnz = nnz,
        .head_start = offsets,
        .row_start = offsets + g->heads + 1,
        .col_start = offsets + g->heads + 1 + row_starts,
        .row_col = lists,
        .row_slot = lists + nnz,
        .col_row = lists + 2 * nnz,
        .col_slot = lists + 3 * nnz,
        .slot_row = lists + 4 * nnz,
        .slot_col = lists + 5 * nnz,
    };
    l->allocator = *allocator;
    l->refs = 1;
    *layout = l;
    return BSK_OK;
}

bski_writable bski_layout_writable(bsk_layout *layout)
{
    /* the tables are const for their users; this is their owner */
    const bsk_layout_tables *t = &layout->tables;
    bski_writable w = {(int64_t *)t->head_start, (int64_t *)t->row_start, (int64_t *)t->col_start,
                       (int32_t *)t->row_col,    (int32_t *)t->row_slot,  (int32_t *)t->col_row,
                       (int32_t *)t->col_slot,   (int32_t *)t->slot_row,  (int32_t *)t->slot_col};
    return w;
}

void bski_layout_free(bsk_layout *layout)
{
    if (!layout)
        return;
    bsk_allocator allocator = layout->allocator;
    allocator.resize(allocator.user, layout, 0);
}

bski_lines bski_layout_lines(const bsk_layout_tables *tables, bool by_cols)
{
    const bsk_layout_tables *t = tables;
    bski_lines rows = {t->grid_rows, t->grid_cols, t->row_start, t->row_col, t->row_slot};
    bski_lines cols = {t->grid_cols, t->grid_rows, t->col_start, t->col_row, t->col_slot};
    return by_cols ? cols : rows;
}

/* --- sorting ---------------------------------------------------------------------------------- */

void bski_sort_pairs(bski_pair *pairs, bski_pair *scratch, int64_t count, int bits)
{
    enum { DIGIT = 8, RADIX = 1 << DIGIT };
    bski_pair *from = pairs, *to = scratch;
    for (int shift = 0; shift < bits; shift += DIGIT) {
        int64_t cursor[RADIX] = {0};
        for (int64_t i = 0; i < count; i++)
            cursor[from[i].key >> shift & (RADIX - 1)]++;
        int64_t sum = 0;
        for (int d = 0; d < RADIX; d++) {
            int64_t n = cursor[d];
            cursor[d] = sum;
            sum += n;
        }
        for (int64_t i = 0; i < count; i++)
            to[cursor[from[i].key >> shift & (RADIX - 1)]++] = from[i];
        bski_pair *swap = from;
        from = to;
        to = swap;
    }
    if (from != pairs && count)
        memcpy(pairs, from, (size_t)count * sizeof *pairs);
}

/* Puts a zero between each two bits. */
static uint64_t morton_spread(uint32_t x)
{
    uint64_t v = x;
    v = (v | v << 16) & 0x0000ffff0000ffffu;
    v = (v | v << 8) & 0x00ff00ff00ff00ffu;
    v = (v | v << 4) & 0x0f0f0f0f0f0f0f0fu;
    v = (v | v << 2) & 0x3333333333333333u;
    v = (v | v << 1) & 0x5555555555555555u;
    return v;
}

uint64_t bski_morton(uint32_t even, uint32_t odd)
{
    return morton_spread(even) | morton_spread(odd) << 1;
}

int bski_bits(uint64_t n)
{
    int bits = 0;
    while (bits < 64 && (n - 1) >> bits)
        bits++;
    return bits;
}

/* --- the index -------------------------------------------------------------------------------- */

/* One head of a layout under construction: start points to its own offsets, lists to all entries.
 * Offsets and slots are absolute. */
typedef struct head_view {
    int32_t grid_rows, grid_cols;
    int64_t first, end;
    int64_t *row_start, *col_start;
    bski_writable w;
} head_view;

/* Turns coordinates into offsets: start[i] is the first entry of line i. */
static void lines_count(int64_t *start, int32_t grid, const int32_t *line, int64_t first,
                        int64_t end)
{
    memset(start, 0, ((size_t)grid + 1) * sizeof *start);
    for (int64_t s = first; s < end; s++)
        start[line[s]]++;
    int64_t sum = first;
    for (int64_t i = 0; i <= grid; i++) {
        int64_t n = start[i];
        start[i] = sum;
        sum += n;
    }
}

/* After a scatter that used the offsets as cursors, start[i] is the end of line i: the start of
 * line i + 1. */
static void lines_restore(int64_t *start, int32_t grid, int64_t first)
{
    memmove(start + 1, start, (size_t)grid * sizeof *start);
    start[0] = first;
}

static bool head_sorted(const head_view *v)
{
    const int32_t *row = v->w.slot_row, *col = v->w.slot_col;
    bool sorted = true;
    for (int64_t s = v->first + 1; s < v->end; s++)
        sorted &= row[s] > row[s - 1] || (row[s] == row[s - 1] && col[s] > col[s - 1]);
    return sorted;
}

/* Makes the by-row list: a stable sort by column into the by-column arrays, then one by row. */
static void head_sort_rows(const head_view *v)
{
    const bski_writable *w = &v->w;
    for (int64_t s = v->first; s < v->end; s++) {
        int64_t e = v->col_start[w->slot_col[s]]++;
        w->col_slot[e] = (int32_t)s;
    }
    lines_restore(v->col_start, v->grid_cols, v->first);
    for (int64_t i = v->first; i < v->end; i++) {
        int32_t s = w->col_slot[i];
        int64_t e = v->row_start[w->slot_row[s]]++;
        w->row_slot[e] = s;
        w->row_col[e] = w->slot_col[s];
    }
    lines_restore(v->row_start, v->grid_rows, v->first);
}

/* True if no row lists a column twice; else the block that comes first. */
static bool head_distinct(const head_view *v, bski_duplicate *duplicate)
{
    for (int32_t r = 0; r < v->grid_rows; r++)
        for (int64_t e = v->row_start[r] + 1; e < v->row_start[r + 1]; e++)
            if (v->w.row_col[e] == v->w.row_col[e - 1]) {
                duplicate->row = r;
                duplicate->col = v->w.row_col[e];
                return false;
            }
    return true;
}

/* Renumbers the slots row by row. */
static void head_number_rows(const head_view *v)
{
    for (int32_t r = 0; r < v->grid_rows; r++)
        for (int64_t e = v->row_start[r]; e < v->row_start[r + 1]; e++) {
            v->w.row_slot[e] = (int32_t)e;
            v->w.slot_row[e] = r;
            v->w.slot_col[e] = v->w.row_col[e];
        }
}

/* Renumbers the slots along the Z-order curve. */
static bool head_number_morton(const head_view *v, const bsk_allocator *allocator)
{
    int64_t count = v->end - v->first;
    int64_t longer = v->grid_rows > v->grid_cols ? v->grid_rows : v->grid_cols;
    bski_pair *pairs = bski_table_alloc(allocator, 2 * count, sizeof *pairs);
    if (!pairs)
        return false;
    for (int32_t r = 0; r < v->grid_rows; r++)
        for (int64_t e = v->row_start[r]; e < v->row_start[r + 1]; e++) {
            uint64_t key = bski_morton((uint32_t)r, (uint32_t)v->w.row_col[e]);
            pairs[e - v->first] = (bski_pair){key, (uint32_t)e};
            v->w.row_slot[e] = r; /* the entry's row, until its slot is known */
        }
    bski_sort_pairs(pairs, pairs + count, count, 2 * bski_bits((uint64_t)longer));
    for (int64_t i = 0; i < count; i++) {
        int64_t e = pairs[i].value, s = v->first + i;
        v->w.slot_row[s] = v->w.row_slot[e];
        v->w.slot_col[s] = v->w.row_col[e];
        v->w.row_slot[e] = (int32_t)s;
    }
    bski_table_free(allocator, pairs);
    return true;
}

/* Makes the by-column list from the by-row list; rows come out ascending. With renumber, slots
 * follow it. */
static void head_sort_cols(const head_view *v, bool renumber)
{
    const bski_writable *w = &v->w;
    for (int32_t r = 0; r < v->grid_rows; r++)
        for (int64_t e = v->row_start[r]; e < v->row_start[r + 1]; e++) {
            int64_t position = v->col_start[w->row_col[e]]++;
            w->col_row[position] = r;
            if (renumber) {
                w->row_slot[e] = (int32_t)position;
                w->slot_row[position] = r;
                w->slot_col[position] = w->row_col[e];
            }
            w->col_slot[position] = w->row_slot[e];
        }
    lines_restore(v->col_start, v->grid_cols, v->first);
}

static bsk_status head_index(const head_view *v, bsk_order order, const bsk_allocator *allocator,
                             bski_duplicate *duplicate, bski_diag *diag)
{
    lines_count(v->row_start, v->grid_rows, v->w.slot_row, v->first, v->end);
    lines_count(v->col_start, v->grid_cols, v->w.slot_col, v->first, v->end);
    bool sorted = head_sorted(v);
    if (sorted) {
        for (int64_t s = v->first; s < v->end; s++) {
            v->w.row_col[s] = v->w.slot_col[s];
            v->w.row_slot[s] = (int32_t)s;
        }
    } else {
        head_sort_rows(v);
        if (!head_distinct(v, duplicate))
            return BSK_E_INVALID;
        if (order == BSK_ORDER_ROW)
            head_number_rows(v);
    }
    if (order == BSK_ORDER_MORTON && !head_number_morton(v, allocator))
        return bski_diag_set(diag, BSK_E_NOMEM, "no memory to sort %lld blocks",
                             (long long)(v->end - v->first));
    head_sort_cols(v, order == BSK_ORDER_COL);
    return BSK_OK;
}

bsk_status bski_layout_index(bsk_layout *layout, bsk_order order, bski_duplicate *duplicate,
                             bski_diag *diag)
{
    bsk_layout_tables *t = &layout->tables;
    head_view v = {
        .grid_rows = t->grid_rows, .grid_cols = t->grid_cols, .w = bski_layout_writable(layout)};
    *duplicate = (bski_duplicate){-1, -1, -1};
    for (int32_t h = 0; h < t->heads; h++) {
        v.first = t->head_start[h];
        v.end = t->head_start[h + 1];
        v.row_start = v.w.row_start + h * ((int64_t)t->grid_rows + 1);
        v.col_start = v.w.col_start + h * ((int64_t)t->grid_cols + 1);
        bsk_status status = head_index(&v, order, &layout->allocator, duplicate, diag);
        if (status != BSK_OK) {
            if (duplicate->row >= 0)
                duplicate->head = h;
            return status;
        }
    }
    bool ordered = true;
    for (int64_t e = 0; e < t->nnz; e++)
        ordered &= t->row_slot[e] == e;
    t->ordered = ordered;
    return BSK_OK;
}

/* --- from a mask ------------------------------------------------------------------------------ */

/* Counts the nonzero bytes. Runs of 128 have sums that fit a byte, so that compilers can add whole
 * vectors of bytes. */
static int64_t mask_count(const uint8_t *mask, int64_t n)
{
    int64_t total = 0;
    for (int64_t i = 0; i < n;) {
        int64_t end = n - i > 128 ? i + 128 : n;
        uint8_t sum = 0;
        for (; i < end; i++)
            sum = (uint8_t)(sum + (mask[i] != 0));
        total += sum;
    }
    return total;
}

/* Lists one row's blocks, without a branch per byte: each write is overwritten unless the byte is
 * nonzero. `room` is the number of slots left; there is nothing to list beyond it. */
static int64_t mask_row(const uint8_t *mask, int32_t cols, int32_t row, int32_t *slot_row,
                        int32_t *slot_col, int64_t room)
{
    int64_t n = 0;
    for (int32_t c = 0; c < cols && n < room; c++) {
        slot_col[n] = c;
        n += mask[c] != 0;
    }
    for (int64_t i = 0; i < n; i++)
        slot_row[i] = row;
    return n;
}

bsk_status bski_layout_from_mask(const bsk_allocator *allocator, const bski_geometry *geometry,
                                 bsk_order order, const uint8_t *mask, bsk_layout **layout,
                                 bski_diag *diag)
{
    *layout = NULL;
    if (!mask)
        return bski_diag_set(diag, BSK_E_INVALID, "mask must not be NULL");
    int64_t grid = (int64_t)geometry->grid_rows * geometry->grid_cols, all;
    if (!bski_mul_i64(grid, geometry->heads, &all))
        return bski_diag_set(diag, BSK_E_INVALID, "mask: %d x %d x %d bytes cannot exist",
                             geometry->heads, geometry->grid_rows, geometry->grid_cols);
    bsk_layout *l;
    bsk_status status = bski_layout_new(allocator, geometry, mask_count(mask, all), &l, diag);
    if (status != BSK_OK)
        return status;
    bski_writable w = bski_layout_writable(l);
    int64_t s = 0, nnz = l->tables.nnz;
    w.head_start[0] = 0;
    for (int32_t h = 0; h < geometry->heads; h++) {
        const uint8_t *m = mask + h * grid;
        for (int32_t r = 0; r < geometry->grid_rows; r++, m += geometry->grid_cols)
            s += mask_row(m, geometry->grid_cols, r, w.slot_row + s, w.slot_col + s, nnz - s);
        w.head_start[h + 1] = s;
    }
    bski_duplicate duplicate; /* cannot be */
    status = bski_layout_index(l, order, &duplicate, diag);
    if (status != BSK_OK) {
        bski_layout_free(l);
        return status;
    }
    *layout = l;
    return BSK_OK;
}

/* --- from coordinates ------------------------------------------------------------------------- */

static bsk_status index_check(const char *name, const int32_t *value, int64_t count, int32_t limit,
                              bski_diag *diag)
{
    for (int64_t i = 0; i < count; i++)
        if (value[i] < 0 || value[i] >= limit)
            return bski_diag_set(diag, BSK_E_INVALID, "%s[%lld] = %d must be in [0, %d]", name,
                                 (long long)i, value[i], limit - 1);
    return BSK_OK;
}

/* Names the first two elements of the input that are the same block. */
static bsk_status coo_duplicate(const bski_duplicate *d, int64_t count, const int32_t *head,
                                const int32_t *row, const int32_t *col, bski_diag *diag)
{
    int64_t first = -1;
    for (int64_t i = 0; i < count; i++) {
        if (row[i] != d->row || col[i] != d->col || (head && head[i] != d->head))
            continue;
        if (first >= 0)
            return bski_diag_set(
                diag, BSK_E_INVALID,
                "row, col: elements %lld and %lld are the same block (%d, %d) of head %d",
                (long long)first, (long long)i, d->row, d->col, d->head);
        first = i;
    }
    return bski_diag_set(diag, BSK_E_INTERNAL, "a duplicate block was not found again");
}

/* Checks the input of from_coo. */
static bsk_status coo_check(const bski_geometry *g, bsk_order order, int64_t count,
                            const int32_t *head, const int32_t *row, const int32_t *col,
                            bski_diag *diag)
{
    if (count < 0 || count > INT32_MAX)
        return bski_diag_set(diag, BSK_E_INVALID, "count = %lld must be in [0, %d]",
                             (long long)count, INT32_MAX);
    if (count && (!row || !col))
        return bski_diag_set(diag, BSK_E_INVALID, "%s must not be NULL", row ? "col" : "row");
    if (count && !head && g->heads > 1)
        return bski_diag_set(diag, BSK_E_INVALID, "head must not be NULL with %d heads", g->heads);
    bsk_status status = index_check("row", row, count, g->grid_rows, diag);
    if (status == BSK_OK)
        status = index_check("col", col, count, g->grid_cols, diag);
    if (status == BSK_OK && head)
        status = index_check("head", head, count, g->heads, diag);
    if (status != BSK_OK || !head || order != BSK_ORDER_GIVEN)
        return status;
    for (int64_t i = 1; i < count; i++)
        if (head[i] < head[i - 1])
            return bski_diag_set(diag, BSK_E_INVALID,
                                 "head[%lld] = %d must be at least head[%lld] = %d, because the "
                                 "order is the given one",
                                 (long long)i, head[i], (long long)(i - 1), head[i - 1]);
    return BSK_OK;
}

/* Sorts the input by head, stably, into the slots. */
static void coo_fill(bsk_layout *l, int64_t count, const int32_t *head, const int32_t *row,
                     const int32_t *col)
{
    bski_writable w = bski_layout_writable(l);
    int32_t heads = l->tables.heads;
    memset(w.head_start, 0, ((size_t)heads + 1) * sizeof *w.head_start);
    for (int64_t i = 0; head && i < count; i++)
        w.head_start[head[i]]++;
    int64_t sum = 0;
    for (int32_t h = 0; head && h <= heads; h++) {
        int64_t n = w.head_start[h];
        w.head_start[h] = sum;
        sum += n;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t s = w.head_start[head ? head[i] : 0]++;
        w.slot_row[s] = row[i];
        w.slot_col[s] = col[i];
    }
    lines_restore(w.head_start, heads, 0);
}

bsk_status bski_layout_from_coo(const bsk_allocator *allocator, const bski_geometry *geometry,
                                bsk_order order, int64_t count, const int32_t *head,
                                const int32_t *row, const int32_t *col, bsk_layout **layout,
                                bski_diag *diag)
{
    *layout = NULL;
    bsk_layout *l;
    bsk_status status = coo_check(geometry, order, count, head, row, col, diag);
    if (status == BSK_OK)
        status = bski_layout_new(allocator, geometry, count, &l, diag);
    if (status != BSK_OK)
        return status;
    coo_fill(l, count, head, row, col);
    bski_duplicate duplicate;
    status = bski_layout_index(l, order, &duplicate, diag);
    if (status != BSK_OK) {
        bski_layout_free(l);
        return duplicate.head < 0 ? status : coo_duplicate(&duplicate, count, head, row, col, diag);
    }
    *layout = l;
    return BSK_OK;
}

/* --- from BSR and CSC ------------------------------------------------------------------------- */

typedef struct list_names {
    const char *start, *index;
} list_names;

static const list_names list_names_of[2] = {{"row_start", "col"}, {"col_start", "row"}};

/* Checks the offsets and gives the number of blocks. */
static bsk_status lists_check(const list_names *names, const int64_t *start, int64_t grid,
                              int32_t heads, int64_t *nnz, bski_diag *diag)
{
    int64_t last = 0;
    if (start[0] != 0)
        return bski_diag_set(diag, BSK_E_INVALID, "%s[0] = %lld must be 0", names->start,
                             (long long)start[0]);
    for (int32_t h = 0; h < heads; h++)
        for (int64_t i = 0; i <= grid; i++) {
            int64_t k = h * (grid + 1) + i;
            if (start[k] < last || start[k] > INT32_MAX || (i == 0 && start[k] != last))
                return bski_diag_set(diag, BSK_E_INVALID,
                                     "%s[%d][%lld] = %lld must be in [%lld, %lld]", names->start, h,
                                     (long long)i, (long long)start[k], (long long)last,
                                     (long long)(i ? INT32_MAX : last));
            last = start[k];
        }
    *nnz = last;
    return BSK_OK;
}

/* Writes the coordinates of one head's entries to their slots. */
static bsk_status lists_fill_head(bsk_layout *l, int32_t h, bool by_cols, const int64_t *start,
                                  const int32_t *index, const int32_t *slot, bski_diag *diag)
{
    bski_writable w = bski_layout_writable(l);
    int32_t *line_of = by_cols ? w.slot_col : w.slot_row;
    int32_t *index_of = by_cols ? w.slot_row : w.slot_col;
    int32_t grid = by_cols ? l->tables.grid_cols : l->tables.grid_rows;
    start += h * ((int64_t)grid + 1);
    int64_t first = start[0], end = start[grid];
    for (int64_t e = first; e < end; e++)
        line_of[e] = -1; /* the slot is free */
    for (int32_t i = 0; i < grid; i++)
        for (int64_t e = start[i]; e < start[i + 1]; e++) {
            int64_t s = slot ? slot[e] : e;
            if (s < first || s >= end)
                return bski_diag_set(
                    diag, BSK_E_INVALID, "slot[%lld] = %lld must be in [%lld, %lld] (head %d)",
                    (long long)e, (long long)s, (long long)first, (long long)(end - 1), h);
            if (line_of[s] >= 0)
                return bski_diag_set(
                    diag, BSK_E_INVALID,
                    "slot[%lld] = %lld is given twice, but slots are a permutation of [%lld, %lld]",
                    (long long)e, (long long)s, (long long)first, (long long)(end - 1));
            line_of[s] = i;
            index_of[s] = index[e];
        }
    w.head_start[h] = first;
    w.head_start[h + 1] = end;
    return BSK_OK;
}

/* Names the two entries of a line that are the same block. */
static bsk_status lists_duplicate(const bski_duplicate *d, const list_names *names, bool by_cols,
                                  int64_t grid, const int64_t *start, const int32_t *index,
                                  bski_diag *diag)
{
    int64_t line = by_cols ? d->col : d->row, found = -1;
    int32_t wanted = by_cols ? d->row : d->col;
    start += d->head * (grid + 1) + line;
    for (int64_t e = start[0]; e < start[1]; e++) {
        if (index[e] != wanted)
            continue;
        if (found >= 0)
            return bski_diag_set(diag, BSK_E_INVALID,
                                 "%s[%lld] and %s[%lld] are the same block (%d, %d) of head %d",
                                 names->index, (long long)found, names->index, (long long)e, d->row,
                                 d->col, d->head);
        found = e;
    }
    return bski_diag_set(diag, BSK_E_INTERNAL, "a duplicate block was not found again");
}

bsk_status bski_layout_from_lists(const bsk_allocator *allocator, const bski_geometry *geometry,
                                  bsk_order order, bool by_cols, const int64_t *start,
                                  const int32_t *index, const int32_t *slot, bsk_layout **layout,
                                  bski_diag *diag)
{
    *layout = NULL;
    const list_names *names = &list_names_of[by_cols];
    int32_t grid = by_cols ? geometry->grid_cols : geometry->grid_rows;
    int32_t other = by_cols ? geometry->grid_rows : geometry->grid_cols;
    int64_t nnz = 0;
    if (!start)
        return bski_diag_set(diag, BSK_E_INVALID, "%s must not be NULL", names->start);
    bsk_status status = lists_check(names, start, grid, geometry->heads, &nnz, diag);
    if (status != BSK_OK)
        return status;
    if (nnz && !index)
        return bski_diag_set(diag, BSK_E_INVALID, "%s must not be NULL", names->index);
    status = index_check(names->index, index, nnz, other, diag);
    bsk_layout *l = NULL;
    if (status == BSK_OK)
        status = bski_layout_new(allocator, geometry, nnz, &l, diag);
    for (int32_t h = 0; h < geometry->heads && status == BSK_OK; h++)
        status = lists_fill_head(l, h, by_cols, start, index, slot, diag);
    if (status == BSK_OK) {
        bski_duplicate duplicate;
        status = bski_layout_index(l, slot ? BSK_ORDER_GIVEN : order, &duplicate, diag);
        if (status != BSK_OK && duplicate.head >= 0)
            lists_duplicate(&duplicate, names, by_cols, grid, start, index, diag);
    }
    if (status != BSK_OK) {
        bski_layout_free(l);
        return status;
    }
    *layout = l;
    return BSK_OK;
}
