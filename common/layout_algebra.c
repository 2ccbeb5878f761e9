/* Layouts made from layouts, and queries. */
#include <string.h>

#include "common/checked.h"
#include "common/layout.h"

/* Completes a layout whose blocks are known to be distinct and hands it out. */
static bsk_status finish_distinct(bsk_layout *l, bsk_order order, bsk_layout **layout,
                                  bski_diag *diag)
{
    bski_duplicate duplicate;
    bsk_status status = bski_layout_index(l, order, &duplicate, diag);
    if (status != BSK_OK) {
        if (duplicate.head >= 0)
            bski_diag_set(diag, BSK_E_INTERNAL, "block (%d, %d) of head %d was made twice",
                          duplicate.row, duplicate.col, duplicate.head);
        bski_layout_free(l);
        return diag->status;
    }
    *layout = l;
    return BSK_OK;
}

/* --- union and intersection ------------------------------------------------------------------- */

static bsk_status geometry_agree(const bsk_layout_tables *a, const bsk_layout_tables *b,
                                 bski_diag *diag)
{
    const struct {
        const char *name;
        int64_t a, b;
    } fields[] = {
        {"rows", a->rows, b->rows},
        {"cols", a->cols, b->cols},
        {"block_rows", a->block_rows, b->block_rows},
        {"block_cols", a->block_cols, b->block_cols},
        {"heads", a->heads, b->heads},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].a != fields[i].b)
            return bski_diag_set(diag, BSK_E_INVALID, "b.%s = %lld must be a.%s = %lld",
                                 fields[i].name, (long long)fields[i].b, fields[i].name,
                                 (long long)fields[i].a);
    return BSK_OK;
}

/* A sorted run of columns. */
typedef struct run {
    const int32_t *col;
    int64_t count;
} run;

/* Merges two runs; writes the columns if out is not NULL and returns their number. */
static int64_t runs_merge(run a, run b, bool intersect, int32_t *out)
{
    int64_t i = 0, j = 0, n = 0;
    while (i < a.count || j < b.count) {
        bool from_a = j == b.count || (i < a.count && a.col[i] <= b.col[j]);
        bool from_b = i == a.count || (j < b.count && b.col[j] <= a.col[i]);
        if (!intersect || (from_a && from_b)) {
            if (out)
                out[n] = from_a ? a.col[i] : b.col[j];
            n++;
        }
        i += from_a;
        j += from_b;
    }
    return n;
}

static run row_run(const bsk_layout_tables *t, int32_t head, int32_t row)
{
    const int64_t *start = t->row_start + head * ((int64_t)t->grid_rows + 1) + row;
    run r = {t->row_col + start[0], start[1] - start[0]};
    return r;
}

bsk_status bski_layout_combine(const bsk_layout *a, const bsk_layout *b, bool intersect,
                               bsk_layout **layout, bski_diag *diag)
{
    *layout = NULL;
    const bsk_layout_tables *ta = &a->tables, *tb = &b->tables;
    bsk_status status = geometry_agree(ta, tb, diag);
    if (status != BSK_OK)
        return status;
    int64_t nnz = 0;
    for (int32_t h = 0; h < ta->heads; h++)
        for (int32_t r = 0; r < ta->grid_rows; r++)
            nnz += runs_merge(row_run(ta, h, r), row_run(tb, h, r), intersect, NULL);

    bski_geometry g = bski_layout_geometry(a);
    bsk_layout *l;
    status = bski_layout_new(&a->allocator, &g, nnz, &l, diag);
    if (status != BSK_OK)
        return status;
    bski_writable w = bski_layout_writable(l);
    int64_t s = 0;
    w.head_start[0] = 0;
    for (int32_t h = 0; h < ta->heads; h++) {
        for (int32_t r = 0; r < ta->grid_rows; r++) {
            int64_t n = runs_merge(row_run(ta, h, r), row_run(tb, h, r), intersect, w.slot_col + s);
            for (int64_t i = 0; i < n; i++)
                w.slot_row[s + i] = r;
            s += n;
        }
        w.head_start[h + 1] = s;
    }
    return finish_distinct(l, BSK_ORDER_ROW, layout, diag);
}

/* --- crop ------------------------------------------------------------------------------------- */

typedef struct window {
    int32_t row, rows, col, cols;
} window;

/* Calls for each kept block in the window, row by row: writes the slots of the result, if l is not
 * NULL, and source_slot, if that is not. Returns the number of blocks. */
static int64_t window_walk(const bsk_layout_tables *t, const window *v, bsk_layout *l,
                           int32_t *source_slot)
{
    bski_writable w = {0};
    if (l)
        w = bski_layout_writable(l);
    int64_t n = 0;
    for (int32_t h = 0; h < t->heads; h++) {
        const int64_t *start = t->row_start + h * ((int64_t)t->grid_rows + 1) + v->row;
        for (int32_t r = 0; r < v->rows; r++)
            for (int64_t e = start[r]; e < start[r + 1]; e++) {
                int32_t c = t->row_col[e] - v->col;
                if (c < 0 || c >= v->cols)
                    continue;
                if (l) {
                    w.slot_row[n] = r;
                    w.slot_col[n] = c;
                }
                if (source_slot)
                    source_slot[n] = t->row_slot[e];
                n++;
            }
        if (l)
            w.head_start[h + 1] = n;
    }
    if (l)
        w.head_start[0] = 0;
    return n;
}

static bsk_status window_check(const char *name, int32_t first, int32_t count, int32_t grid,
                               bski_diag *diag)
{
    if (first < 0 || first >= grid)
        return bski_diag_set(diag, BSK_E_INVALID, "%s = %d must be in [0, %d]", name, first,
                             grid - 1);
    if (count < 1 || count > grid - first)
        return bski_diag_set(diag, BSK_E_INVALID, "%ss = %d must be in [1, %d]", name, count,
                             grid - first);
    return BSK_OK;
}

/* Elements of blocks [first, first + count): the last block of the matrix may be cut short. */
static int64_t window_elements(int64_t size, int32_t block, int32_t first, int32_t count)
{
    int64_t begin = (int64_t)first * block, end = begin + (int64_t)count * block;
    return (end < size ? end : size) - begin;
}

bsk_status bski_layout_crop(const bsk_layout *source, int32_t row, int32_t rows, int32_t col,
                            int32_t cols, int32_t *source_slot, bsk_layout **layout,
                            bski_diag *diag)
{
    *layout = NULL;
    const bsk_layout_tables *t = &source->tables;
    bsk_status status = window_check("row", row, rows, t->grid_rows, diag);
    if (status == BSK_OK)
        status = window_check("col", col, cols, t->grid_cols, diag);
    if (status != BSK_OK)
        return status;
    window v = {row, rows, col, cols};
    bski_geometry g = bski_layout_geometry(source);
    g.rows = window_elements(t->rows, t->block_rows, row, rows);
    g.cols = window_elements(t->cols, t->block_cols, col, cols);
    g.grid_rows = rows;
    g.grid_cols = cols;
    bsk_layout *l;
    status = bski_layout_new(&source->allocator, &g, window_walk(t, &v, NULL, NULL), &l, diag);
    if (status != BSK_OK)
        return status;
    window_walk(t, &v, l, NULL);
    status = finish_distinct(l, BSK_ORDER_ROW, layout, diag);
    if (status == BSK_OK)
        window_walk(t, &v, NULL, source_slot);
    return status;
}

/* --- split ------------------------------------------------------------------------------------ */

/* Lines to be cut, with the most blocks that a part may have. */
typedef struct cutting {
    const bsk_layout_tables *tables;
    bski_lines lines;
    int64_t most;
} cutting;

/* The blocks of lines [0, line) of all heads. */
static int64_t blocks_before(const cutting *c, int32_t line)
{
    int64_t n = 0;
    for (int64_t h = 0; h < c->tables->heads; h++) {
        const int64_t *start = c->lines.start + h * ((int64_t)c->lines.grid + 1);
        n += start[line] - start[0];
    }
    return n;
}

/* The longest line, over all heads. */
static int64_t longest_line(const cutting *c)
{
    int64_t longest = 0, before = 0;
    for (int32_t line = 0; line < c->lines.grid; line++) {
        int64_t next = blocks_before(c, line + 1);
        longest = next - before > longest ? next - before : longest;
        before = next;
    }
    return longest;
}

/* Where a part that starts at a line ends at the latest. */
static int32_t latest_end(const cutting *c, int32_t start)
{
    int64_t limit = blocks_before(c, start) + c->most;
    int32_t low = start, high = c->lines.grid;
    while (low < high) {
        int32_t middle = high - (high - low) / 2;
        if (blocks_before(c, middle) <= limit)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Where a part that ends before a line starts at the earliest. */
static int32_t earliest_start(const cutting *c, int32_t end)
{
    int64_t limit = blocks_before(c, end) - c->most;
    int32_t low = 0, high = end;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (blocks_before(c, middle) >= limit)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bool parts_suffice(const cutting *c, int32_t parts)
{
    int32_t end = 0;
    for (int32_t p = 0; p < parts && end < c->lines.grid; p++)
        end = latest_end(c, end);
    return end == c->lines.grid;
}

bsk_status bski_layout_split(const bsk_layout_tables *tables, bool by_cols, int32_t parts,
                             int32_t *first, bski_diag *diag)
{
    cutting c = {tables, bski_layout_lines(tables, by_cols), 0};
    int32_t grid = c.lines.grid;
    if (parts < 1 || parts > grid)
        return bski_diag_set(diag, BSK_E_INVALID, "parts = %d must be in [1, %d]", parts, grid);
    /* The least that suffices: from an even share on, to one that a whole line overfills. */
    int64_t low = (tables->nnz + parts - 1) / parts, high = low + longest_line(&c);
    while (low < high) {
        c.most = low + (high - low) / 2;
        if (parts_suffice(&c, parts))
            high = c.most;
        else
            low = c.most + 1;
    }
    c.most = low;
    /* The earliest place of each cut, from the end on; then the chosen ones, from the start. Later
     * ones leave a line for each part after them, since even shares do. */
    first[parts] = grid;
    for (int32_t p = parts - 1; p > 0; p--) {
        int32_t start = earliest_start(&c, first[p + 1]);
        first[p] = start > p ? start : p;
    }
    first[0] = 0;
    for (int32_t p = 1; p < parts; p++) {
        int32_t start = first[p - 1], latest = latest_end(&c, start);
        int32_t even = start + (grid - start - 1) / (parts - p + 1) + 1;
        int32_t choice = even < latest ? even : latest;
        first[p] = choice > first[p] ? choice : first[p];
    }
    return BSK_OK;
}

/* --- transpose, broadcast --------------------------------------------------------------------- */

static size_t list_bytes(int64_t count)
{
    return (size_t)count * sizeof(int32_t);
}

bsk_status bski_layout_transpose(const bsk_layout *source, bsk_layout **layout, bski_diag *diag)
{
    *layout = NULL;
    const bsk_layout_tables *t = &source->tables;
    bski_geometry g = {t->cols,      t->rows,      t->block_cols, t->block_rows,
                       t->grid_cols, t->grid_rows, t->heads};
    bsk_layout *l;
    bsk_status status = bski_layout_new(&source->allocator, &g, t->nnz, &l, diag);
    if (status != BSK_OK)
        return status;
    bski_writable w = bski_layout_writable(l);
    memcpy(w.head_start, t->head_start, ((size_t)t->heads + 1) * sizeof *w.head_start);
    memcpy(w.slot_row, t->slot_col, list_bytes(t->nnz));
    memcpy(w.slot_col, t->slot_row, list_bytes(t->nnz));
    return finish_distinct(l, BSK_ORDER_GIVEN, layout, diag);
}

bsk_status bski_layout_broadcast(const bsk_layout *source, int32_t heads, bsk_layout **layout,
                                 bski_diag *diag)
{
    *layout = NULL;
    const bsk_layout_tables *t = &source->tables;
    if (t->heads != 1)
        return bski_diag_set(diag, BSK_E_INVALID, "source has %d heads but must have one",
                             t->heads);
    if (heads < 1)
        return bski_diag_set(diag, BSK_E_INVALID, "heads = %d must be at least 1", heads);
    if (t->nnz * heads > INT32_MAX) /* both factors are below 2^31 */
        return bski_diag_set(diag, BSK_E_INVALID,
                             "heads = %d must be in [1, %lld], with %lld kept blocks in each",
                             heads, (long long)(INT32_MAX / t->nnz), (long long)t->nnz);
    bski_geometry g = bski_layout_geometry(source);
    g.heads = heads;
    bsk_layout *l;
    bsk_status status = bski_layout_new(&source->allocator, &g, t->nnz * heads, &l, diag);
    if (status != BSK_OK)
        return status;
    bski_writable w = bski_layout_writable(l);
    w.head_start[0] = 0;
    for (int32_t h = 0; h < heads; h++) {
        memcpy(w.slot_row + h * t->nnz, t->slot_row, list_bytes(t->nnz));
        memcpy(w.slot_col + h * t->nnz, t->slot_col, list_bytes(t->nnz));
        w.head_start[h + 1] = (h + 1) * t->nnz;
    }
    return finish_distinct(l, BSK_ORDER_GIVEN, layout, diag);
}

/* --- move_blocks ------------------------------------------------------------------------------ */

typedef struct moves {
    int64_t count;
    const int32_t *slot, *row, *col;
} moves;

static bsk_status moves_check(const bsk_layout_tables *t, const moves *m, bski_diag *diag)
{
    const struct {
        const char *name;
        const int32_t *value;
        int64_t limit;
    } inputs[] = {
        {"slot", m->slot, t->nnz},
        {"row", m->row, t->grid_rows},
        {"col", m->col, t->grid_cols},
    };
    if (m->count < 0 || m->count > t->nnz)
        return bski_diag_set(diag, BSK_E_INVALID, "count = %lld must be in [0, %lld]",
                             (long long)m->count, (long long)t->nnz);
    for (size_t k = 0; k < sizeof inputs / sizeof inputs[0] && m->count; k++) {
        if (!inputs[k].value)
            return bski_diag_set(diag, BSK_E_INVALID, "%s must not be NULL", inputs[k].name);
        for (int64_t i = 0; i < m->count; i++)
            if (inputs[k].value[i] < 0 || inputs[k].value[i] >= inputs[k].limit)
                return bski_diag_set(diag, BSK_E_INVALID, "%s[%lld] = %d must be in [0, %lld]",
                                     inputs[k].name, (long long)i, inputs[k].value[i],
                                     (long long)inputs[k].limit - 1);
    }
    return BSK_OK;
}

/* Writes the new coordinates. The by-row list is not made yet and serves to mark moved slots. */
static bsk_status moves_apply(bsk_layout *l, const moves *m, bski_diag *diag)
{
    bski_writable w = bski_layout_writable(l);
    if (l->tables.nnz)
        memset(w.row_slot, 0, list_bytes(l->tables.nnz));
    for (int64_t i = 0; i < m->count; i++) {
        int32_t s = m->slot[i];
        if (w.row_slot[s])
            return bski_diag_set(diag, BSK_E_INVALID, "slot[%lld] = %d was given before at %d",
                                 (long long)i, s, w.row_slot[s] - 1);
        w.row_slot[s] = (int32_t)(i + 1);
        w.slot_row[s] = m->row[i];
        w.slot_col[s] = m->col[i];
    }
    return BSK_OK;
}

/* Says why two blocks share a place. At least one of them was moved there. */
static bsk_status moves_collision(const bsk_layout_tables *t, const moves *m,
                                  const bski_duplicate *d, bski_diag *diag)
{
    int64_t first = -1;
    for (int64_t i = 0; i < m->count; i++) {
        if (m->row[i] != d->row || m->col[i] != d->col ||
            bski_layout_head(t, m->slot[i]) != d->head)
            continue;
        if (first >= 0)
            return bski_diag_set(
                diag, BSK_E_INVALID,
                "row, col: elements %lld and %lld both go to block (%d, %d) of head %d",
                (long long)first, (long long)i, d->row, d->col, d->head);
        first = i;
    }
    return bski_diag_set(
        diag, BSK_E_INVALID,
        "row[%lld], col[%lld] = (%d, %d) of head %d must be empty, but slot %lld is there",
        (long long)first, (long long)first, d->row, d->col, d->head,
        (long long)bski_layout_find(t, d->head, d->row, d->col));
}

bsk_status bski_layout_move_blocks(const bsk_layout *source, int64_t count, const int32_t *slot,
                                   const int32_t *row, const int32_t *col, bsk_layout **layout,
                                   bski_diag *diag)
{
    *layout = NULL;
    const bsk_layout_tables *t = &source->tables;
    const moves m = {count, slot, row, col};
    bski_geometry g = bski_layout_geometry(source);
    bsk_layout *l = NULL;
    bsk_status status = moves_check(t, &m, diag);
    if (status == BSK_OK)
        status = bski_layout_new(&source->allocator, &g, t->nnz, &l, diag);
    if (status != BSK_OK)
        return status;
    bski_writable w = bski_layout_writable(l);
    memcpy(w.head_start, t->head_start, ((size_t)t->heads + 1) * sizeof *w.head_start);
    memcpy(w.slot_row, t->slot_row, list_bytes(t->nnz));
    memcpy(w.slot_col, t->slot_col, list_bytes(t->nnz));
    status = moves_apply(l, &m, diag);
    if (status == BSK_OK) {
        bski_duplicate duplicate;
        status = bski_layout_index(l, BSK_ORDER_GIVEN, &duplicate, diag);
        if (status != BSK_OK && duplicate.head >= 0)
            moves_collision(t, &m, &duplicate, diag);
    }
    if (status != BSK_OK) {
        bski_layout_free(l);
        return status;
    }
    *layout = l;
    return BSK_OK;
}

/* --- compact ---------------------------------------------------------------------------------- */

bsk_status bski_layout_compact(const bsk_layout *source, const float *gate, int32_t *source_slot,
                               bsk_layout **layout, bski_diag *diag)
{
    *layout = NULL;
    const bsk_layout_tables *t = &source->tables;
    if (t->nnz && !gate)
        return bski_diag_set(diag, BSK_E_INVALID, "gate must not be NULL");
    int64_t nnz = 0;
    for (int64_t s = 0; s < t->nnz; s++)
        nnz += gate[s] != 0;
    bski_geometry g = bski_layout_geometry(source);
    bsk_layout *l;
    bsk_status status = bski_layout_new(&source->allocator, &g, nnz, &l, diag);
    if (status != BSK_OK)
        return status;
    bski_writable w = bski_layout_writable(l);
    int64_t n = 0;
    w.head_start[0] = 0;
    for (int32_t h = 0; h < t->heads; h++) {
        for (int64_t s = t->head_start[h]; s < t->head_start[h + 1]; s++)
            if (gate[s] != 0) {
                w.slot_row[n] = t->slot_row[s];
                w.slot_col[n] = t->slot_col[s];
                n++;
            }
        w.head_start[h + 1] = n;
    }
    status = finish_distinct(l, BSK_ORDER_GIVEN, layout, diag);
    if (status != BSK_OK || !source_slot)
        return status;
    n = 0;
    for (int64_t s = 0; s < t->nnz; s++)
        if (gate[s] != 0)
            source_slot[n++] = (int32_t)s;
    return BSK_OK;
}

/* --- queries ---------------------------------------------------------------------------------- */

/* Longest line, and the number of empty ones (at most INT32_MAX). */
static void lines_measure(const bsk_layout_tables *t, bool by_cols, int32_t *longest,
                          int32_t *empty)
{
    bski_lines lines = bski_layout_lines(t, by_cols);
    int64_t most = 0, none = 0;
    for (int64_t h = 0; h < t->heads; h++) {
        const int64_t *start = lines.start + h * ((int64_t)lines.grid + 1);
        for (int32_t i = 0; i < lines.grid; i++) {
            int64_t n = start[i + 1] - start[i];
            most = n > most ? n : most;
            none += n == 0;
        }
    }
    *longest = (int32_t)most;
    *empty = (int32_t)(none < INT32_MAX ? none : INT32_MAX);
}

void bski_layout_describe(const bsk_layout_tables *tables, bsk_layout_info *info)
{
    const bsk_layout_tables *t = tables;
    size_t size = info->struct_size;
    *info = (bsk_layout_info){
        .struct_size = size,
        .rows = t->rows,
        .cols = t->cols,
        .block_rows = t->block_rows,
        .block_cols = t->block_cols,
        .grid_rows = t->grid_rows,
        .grid_cols = t->grid_cols,
        .heads = t->heads,
        .nnz = t->nnz,
        .density = (double)t->nnz / ((double)t->heads * t->grid_rows * t->grid_cols),
        .ordered = t->ordered,
    };
    lines_measure(t, false, &info->max_row_blocks, &info->empty_rows);
    lines_measure(t, true, &info->max_col_blocks, &info->empty_cols);
}

int32_t bski_layout_head(const bsk_layout_tables *tables, int64_t slot)
{
    int32_t low = 0, high = tables->heads - 1; /* the last head that starts at or before slot */
    while (low < high) {
        int32_t middle = high - (high - low) / 2;
        if (tables->head_start[middle] <= slot)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

int64_t bski_layout_find(const bsk_layout_tables *tables, int32_t head, int32_t row, int32_t col)
{
    const int64_t *start = tables->row_start + head * ((int64_t)tables->grid_rows + 1) + row;
    int64_t low = start[0], high = start[1];
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (tables->row_col[middle] < col)
            low = middle + 1;
        else
            high = middle;
    }
    return low < start[1] && tables->row_col[low] == col ? tables->row_slot[low] : -1;
}

bsk_status bski_layout_reach(const bsk_layout_tables *tables, int32_t row, int32_t rows,
                             uint8_t *cols, bski_diag *diag)
{
    const bsk_layout_tables *t = tables;
    bsk_status status = window_check("row", row, rows, t->grid_rows, diag);
    if (status != BSK_OK)
        return status;
    memset(cols, 0, (size_t)t->heads * (size_t)t->grid_cols);
    for (int64_t h = 0; h < t->heads; h++) {
        const int64_t *start = t->row_start + h * ((int64_t)t->grid_rows + 1) + row;
        for (int64_t e = start[0]; e < start[rows]; e++)
            cols[h * t->grid_cols + t->row_col[e]] = 1;
    }
    return BSK_OK;
}
