/* Attention patterns, and bit masks inside blocks. What they are: bsk/patterns.h.
 *
 * A pattern marks the kept columns of one block row at a time. */
#include <string.h>

#include "common/checked.h"
#include "common/layout.h"
#include "common/philox.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The first and one past the last element of block number `block`. */
static int64_t block_first(int64_t block, int64_t size)
{
    return block * size;
}

static int64_t block_end(int64_t block, int64_t size, int64_t elements)
{
    return least((block + 1) * size, elements);
}

/* --- rows of marks ---------------------------------------------------------------------------- */

/* The marks of one block row. */
typedef struct marks {
    uint8_t *col;
    int64_t count; /* columns */
} marks;

/* Marks columns [first, end), as far as they exist. */
static void mark(marks *m, int64_t first, int64_t end)
{
    first = most(first, 0);
    end = least(end, m->count);
    if (first < end)
        memset(m->col + first, 1, (size_t)(end - first));
}

typedef void (*mark_row)(const bski_geometry *g, const void *pattern, int32_t head, int32_t row,
                         marks *m);

/* Makes the layout whose block rows `row` marks. */
static bsk_status layout_of_marks(const bsk_allocator *allocator, const bski_geometry *g,
                                  bsk_order order, mark_row row, const void *pattern,
                                  bsk_layout **layout, bski_diag *diag)
{
    marks m = {bski_table_alloc(allocator, g->grid_cols, 1), g->grid_cols};
    bsk_layout *l = NULL;
    bski_duplicate duplicate;
    int64_t nnz = 0;
    *layout = NULL;
    if (!m.col)
        return bski_diag_set(diag, BSK_E_NOMEM, "no memory for a row of blocks");
    bsk_status status = BSK_OK;
    /* first they are counted, then stored */
    for (int pass = 0; pass < 2 && status == BSK_OK; pass++) {
        bski_writable w = {0};
        int64_t slot = 0;
        if (pass) {
            status = bski_layout_new(allocator, g, nnz, &l, diag);
            if (status != BSK_OK)
                break;
            w = bski_layout_writable(l);
            w.head_start[0] = 0;
        }
        for (int32_t h = 0; h < g->heads; h++) {
            for (int32_t i = 0; i < g->grid_rows; i++) {
                memset(m.col, 0, (size_t)m.count);
                row(g, pattern, h, i, &m);
                for (int32_t j = 0; j < g->grid_cols; j++) {
                    if (!m.col[j])
                        continue;
                    if (pass && slot < nnz) {
                        w.slot_row[slot] = i;
                        w.slot_col[slot] = j;
                    }
                    slot++;
                }
            }
            if (pass)
                w.head_start[h + 1] = slot;
        }
        if (pass && slot != nnz)
            status = bski_diag_set(diag, BSK_E_INVALID,
                                   "visible must answer the same when it is asked again");
        nnz = slot;
    }
    bski_table_free(allocator, m.col);
    if (status == BSK_OK)
        status = bski_layout_index(l, order == BSK_ORDER_GIVEN ? BSK_ORDER_ROW : order, &duplicate,
                                   diag);
    if (status == BSK_OK)
        *layout = l;
    else
        bski_layout_free(l);
    return status;
}

/* --- patterns of elements --------------------------------------------------------------------- */

typedef struct local_pattern {
    int64_t sink, window, shift; /* window 0: none */
} local_pattern;

static void mark_local(const bski_geometry *g, const void *pattern, int32_t head, int32_t row,
                       marks *m)
{
    (void)head;
    const local_pattern *p = pattern;
    /* positions of the block row's queries */
    const int64_t first = block_first(row, g->block_rows) + p->shift;
    const int64_t last = block_end(row, g->block_rows, g->rows) - 1 + p->shift;
    const int64_t end = last < 0 ? 0 : last / g->block_cols + 1;
    const int64_t low = p->window ? most(first - p->window + 1, 0) : 0;
    if (low < g->cols) /* the last block may be cut short */
        mark(m, low / g->block_cols, end);
    mark(m, 0, least(bski_ceil_div(p->sink, g->block_cols), end));
}

/* Far from where sums of positions overflow. */
#define MOST_ELEMENTS ((int64_t)1 << 48)

static bsk_status check_count(const char *name, int64_t value, int64_t low, bski_diag *diag)
{
    return value >= low && value <= MOST_ELEMENTS
               ? BSK_OK
               : bski_diag_set(diag, BSK_E_INVALID, "%s = %lld must be in [%lld, %lld]", name,
                               (long long)value, (long long)low, (long long)MOST_ELEMENTS);
}

bsk_status bski_layout_causal(const bsk_allocator *allocator, const bski_geometry *g,
                              bsk_order order, int64_t shift, bsk_layout **layout, bski_diag *diag)
{
    const local_pattern p = {.shift = shift};
    bsk_status status = check_count("shift", shift, -MOST_ELEMENTS, diag);
    return status == BSK_OK ? layout_of_marks(allocator, g, order, mark_local, &p, layout, diag)
                            : status;
}

bsk_status bski_layout_local(const bsk_allocator *allocator, const bski_geometry *g,
                             bsk_order order, int64_t sink, int64_t window, int64_t shift,
                             bsk_layout **layout, bski_diag *diag)
{
    const local_pattern p = {sink, window, shift};
    bsk_status status = check_count("sink", sink, 0, diag);
    if (status == BSK_OK)
        status = check_count("window", window, 1, diag);
    if (status == BSK_OK)
        status = check_count("shift", shift, -MOST_ELEMENTS, diag);
    return status == BSK_OK ? layout_of_marks(allocator, g, order, mark_local, &p, layout, diag)
                            : status;
}

/* Runs of `run` rows, one for each residue: a triangle each. */
static void mark_strided(const bski_geometry *g, const void *pattern, int32_t head, int32_t row,
                         marks *m)
{
    (void)head;
    const int64_t stride = *(const int64_t *)pattern, run = g->rows / stride;
    const int64_t first = block_first(row, g->block_rows);
    const int64_t end = block_end(row, g->block_rows, g->rows);
    for (int64_t residue = first / run; residue <= (end - 1) / run; residue++) {
        const int64_t last = least(end, (residue + 1) * run) - 1; /* of this residue in the block */
        mark(m, residue * run / g->block_cols, last / g->block_cols + 1);
    }
}

bsk_status bski_layout_strided(const bsk_allocator *allocator, const bski_geometry *g,
                               bsk_order order, int64_t stride, bsk_layout **layout,
                               bski_diag *diag)
{
    if (g->rows != g->cols)
        return bski_diag_set(diag, BSK_E_INVALID, "params.cols = %lld must be params.rows = %lld",
                             (long long)g->cols, (long long)g->rows);
    if (stride < 1 || g->rows % stride)
        return bski_diag_set(diag, BSK_E_INVALID, "stride = %lld must divide params.rows = %lld",
                             (long long)stride, (long long)g->rows);
    return layout_of_marks(allocator, g, order, mark_strided, &stride, layout, diag);
}

/* --- patterns of blocks ----------------------------------------------------------------------- */

typedef struct sliding_pattern {
    int32_t blocks, causal;
} sliding_pattern;

static void mark_sliding(const bski_geometry *g, const void *pattern, int32_t head, int32_t row,
                         marks *m)
{
    (void)g, (void)head;
    const sliding_pattern *p = pattern;
    const int64_t half = p->blocks / 2;
    mark(m, row - half, p->causal ? (int64_t)row + 1 : row + half + 1);
}

bsk_status bski_layout_sliding(const bsk_allocator *allocator, const bski_geometry *g,
                               bsk_order order, int32_t blocks, int32_t causal, bsk_layout **layout,
                               bski_diag *diag)
{
    const sliding_pattern p = {blocks, causal};
    if (blocks < 0)
        return bski_diag_set(diag, BSK_E_INVALID, "blocks = %d must not be negative", blocks);
    return layout_of_marks(allocator, g, order, mark_sliding, &p, layout, diag);
}

/* One group of verticals, columns [first, end), in row `row`. */
static void mark_verticals(const bsk_fixed_pattern *p, int32_t row, int64_t first, int64_t end,
                           marks *m)
{
    if (p->horizontal && row >= first && row < end)
        mark(m, 0, m->count);
    if (p->bidirectional)
        mark(m, first, end);
    else if (row >= first)
        mark(m, first, p->deepspeed ? end : least(end, (int64_t)row + 1));
}

static void mark_fixed(const bski_geometry *g, const void *pattern, int32_t head, int32_t row,
                       marks *m)
{
    const bsk_fixed_pattern *p = pattern;
    const int64_t stripe = row / p->local * (int64_t)p->local;
    const int64_t offset = p->local - (1 + (int64_t)head % p->patterns) * p->global;
    const int64_t whole = p->deepspeed ? g->grid_cols - g->grid_cols % p->local : g->grid_cols;
    mark(m, stripe, p->bidirectional ? stripe + p->local : (int64_t)row + 1);
    for (int64_t s = 0; s < whole; s += p->local)
        mark_verticals(p, row, s + offset, s + offset + p->global, m);
    if (whole < g->grid_cols) {
        const int64_t first = most(least(whole + offset, (int64_t)g->grid_cols - p->global), 0);
        mark_verticals(p, row, first, first + p->global, m);
    }
}

bsk_status bski_layout_fixed(const bsk_allocator *allocator, const bski_geometry *g,
                             bsk_order order, const bsk_fixed_pattern *pattern, bsk_layout **layout,
                             bski_diag *diag)
{
    bsk_fixed_pattern p = *pattern;
    p.patterns = p.patterns ? p.patterns : 1;
    if (p.local < 1 || p.global < 1 || p.patterns < 1 || (int64_t)p.patterns * p.global > p.local)
        return bski_diag_set(diag, BSK_E_INVALID,
                             "pattern: local = %d, global = %d and patterns = %d must be at least "
                             "1, and %d * %d at most %d",
                             p.local, p.global, p.patterns, p.patterns, p.global, p.local);
    return layout_of_marks(allocator, g, order, mark_fixed, &p, layout, diag);
}

/* Numbers below `bound` >= 1, by their place. */
static int64_t draw_below(uint64_t seed, int32_t head, uint64_t place, int64_t bound)
{
    const uint64_t offset = (uint64_t)1 << 40 | (uint32_t)head;
    return (int64_t)((uint64_t)bski_philox_u32(seed, offset, place) * (uint64_t)bound >> 32);
}

/* Marks `count` distinct columns below limit that are drawn for a row (Floyd's method); drawn has
 * room for count numbers. */
static void mark_random(const bsk_global_pattern *p, int32_t head, int32_t row, int64_t limit,
                        marks *m)
{
    const int64_t count = least(p->random, limit);
    /* what is drawn is told from what other rules marked by the value 2 */
    for (int64_t k = 0; k < count; k++) {
        const int64_t j = limit - count + k;
        const uint64_t place = (uint64_t)row * (uint64_t)p->random + (uint64_t)k;
        int64_t t = draw_below(p->seed, head, place, j + 1);
        if (m->col[t] == 2)
            t = j;
        m->col[t] = 2;
    }
}

static int64_t range_end(const bsk_global_pattern *p, int32_t k)
{
    return p->end ? p->end[k] : (int64_t)p->start[k] + 1;
}

/* J > I: not for the past. */
static void clear_future(int32_t row, marks *m)
{
    if ((int64_t)row + 1 < m->count)
        memset(m->col + row + 1, 0, (size_t)(m->count - row - 1));
}

static void mark_bigbird(const bski_geometry *g, const void *pattern, int32_t head, int32_t row,
                         marks *m)
{
    const bsk_global_pattern *p = pattern;
    mark_random(p, head, row, p->causal ? least((int64_t)row + 1, g->grid_cols) : g->grid_cols, m);
    mark(m, (int64_t)row - p->window / 2, (int64_t)row + p->window / 2 + 1);
    mark(m, 0, row < p->first ? g->grid_cols : p->first);
    if (p->causal)
        clear_future(row, m);
}

static void mark_longformer(const bski_geometry *g, const void *pattern, int32_t head, int32_t row,
                            marks *m)
{
    (void)head;
    const bsk_global_pattern *p = pattern;
    mark(m, (int64_t)row - p->window / 2, (int64_t)row + p->window / 2 + 1);
    for (int32_t k = 0; k < p->count; k++) {
        const bool inside = row >= p->start[k] && row < range_end(p, k);
        mark(m, inside ? 0 : p->start[k], inside ? g->grid_cols : range_end(p, k));
    }
    if (p->causal)
        clear_future(row, m);
}

static void mark_variable(const bski_geometry *g, const void *pattern, int32_t head, int32_t row,
                          marks *m)
{
    const bsk_global_pattern *p = pattern;
    int64_t first = 0;
    int32_t k = 0;
    while (p->window_count > 0 && row >= first + p->windows[k]) {
        first += p->windows[k];
        k += k + 1 < p->window_count;
    }
    mark_random(p, head, row, g->grid_cols, m);
    if (p->window_count > 0)
        mark(m, first, p->causal ? (int64_t)row + 1 : first + p->windows[k]);
    for (int32_t r = 0; r < p->count; r++) {
        if (p->horizontal && row >= p->start[r] && row < range_end(p, r))
            mark(m, 0, g->grid_cols);
        if (!p->causal || row >= p->start[r])
            mark(m, p->start[r], range_end(p, r));
    }
}

/* The fields that a kind of pattern does not have must be 0. */
static bsk_status check_unnamed(bski_global_kind kind, const bsk_global_pattern *p, bski_diag *diag)
{
    enum { BIGBIRD = 1 << BSKI_BIGBIRD, LONGFORMER = 1 << BSKI_LONGFORMER };
    enum { VARIABLE = 1 << BSKI_VARIABLE };
    const struct {
        const char *name;
        int kinds;
        int32_t value;
    } fields[] = {
        {"window", BIGBIRD | LONGFORMER, p->window}, {"first", BIGBIRD, p->first},
        {"count", LONGFORMER | VARIABLE, p->count},  {"horizontal", VARIABLE, p->horizontal},
        {"random", BIGBIRD | VARIABLE, p->random},   {"window_count", VARIABLE, p->window_count},
    };
    static const char *const names[] = {
        [BSKI_BIGBIRD] = "bigbird", [BSKI_LONGFORMER] = "longformer", [BSKI_VARIABLE] = "variable"};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].value && !(fields[i].kinds >> kind & 1))
            return bski_diag_set(diag, BSK_E_INVALID,
                                 "pattern.%s = %d must be 0: %s does not have it", fields[i].name,
                                 fields[i].value, names[kind]);
    return BSK_OK;
}

static bsk_status check_global(const bski_geometry *g, const bsk_global_pattern *p, bski_diag *diag)
{
    if (p->window < 0 || p->first < 0 || p->count < 0 || p->random < 0 || p->window_count < 0 ||
        p->random > g->grid_cols)
        return bski_diag_set(diag, BSK_E_INVALID,
                             "pattern: window = %d, first = %d, count = %d, random = %d and "
                             "window_count = %d must not be negative, random at most %d",
                             p->window, p->first, p->count, p->random, p->window_count,
                             g->grid_cols);
    if ((p->count && !p->start) || (p->window_count && !p->windows))
        return bski_diag_set(diag, BSK_E_INVALID, "pattern.%s must not be NULL",
                             p->count && !p->start ? "start" : "windows");
    for (int32_t k = 0; k < p->count; k++)
        if (p->start[k] < 0 || range_end(p, k) <= p->start[k])
            return bski_diag_set(diag, BSK_E_INVALID,
                                 "pattern: range %d is [%d, %lld); it must not be empty or begin "
                                 "below 0",
                                 k, p->start[k], (long long)range_end(p, k));
    for (int32_t k = 0; k < p->window_count; k++)
        if (p->windows[k] < 1)
            return bski_diag_set(diag, BSK_E_INVALID, "pattern.windows[%d] = %d must be at least 1",
                                 k, p->windows[k]);
    return BSK_OK;
}

bsk_status bski_layout_global(const bsk_allocator *allocator, const bski_geometry *g,
                              bsk_order order, bski_global_kind kind, const bsk_global_pattern *p,
                              bsk_layout **layout, bski_diag *diag)
{
    static const mark_row rows[] = {[BSKI_BIGBIRD] = mark_bigbird,
                                    [BSKI_LONGFORMER] = mark_longformer,
                                    [BSKI_VARIABLE] = mark_variable};
    bsk_status status = check_unnamed(kind, p, diag);
    if (status == BSK_OK)
        status = check_global(g, p, diag);
    return status == BSK_OK ? layout_of_marks(allocator, g, order, rows[kind], p, layout, diag)
                            : status;
}

/* --- convolutions ----------------------------------------------------------------------------- */

static int64_t conv_stride_y(const bsk_conv_pattern *p)
{
    return p->height == 1 || !p->stride ? 1 : p->stride;
}

static int64_t conv_stride_x(const bsk_conv_pattern *p)
{
    return p->stride ? p->stride : 1;
}

/* Whether pixel (y, x) lies in the window of the pixel at (top, left) of the same resolution. */
static bool conv_window(const bsk_conv_pattern *p, int64_t top, int64_t left, int64_t y, int64_t x)
{
    top -= (p->filter_height - 1) / 2;
    left -= (p->filter_width - 1) / 2;
    return y >= top && y < top + p->filter_height && x >= left && x < left + p->filter_width;
}

bool bski_conv_visible(const bsk_conv_pattern *p, bool turned, int64_t row, int64_t col)
{
    const int64_t low = turned ? col : row, high = turned ? row : col;
    const int64_t width = p->width / conv_stride_x(p);
    const int64_t top = low / width * conv_stride_y(p), left = low % width * conv_stride_x(p);
    if (!conv_window(p, top, left, high / p->width, high % p->width))
        return false;
    const int64_t raster = top * p->width + left;
    return !p->causal || (turned ? high >= raster : raster >= high);
}

bsk_status bski_conv_check(const bski_geometry *g, const bsk_conv_pattern *p, bool turned,
                           bski_diag *diag)
{
    const int64_t sy = conv_stride_y(p), sx = conv_stride_x(p);
    if (p->height < 1 || p->width < 1 || p->filter_height < 1 || p->filter_width < 1 ||
        p->stride < 0 || p->height % sy || p->width % sx)
        return bski_diag_set(diag, BSK_E_INVALID,
                             "pattern: height = %d, width = %d and the filter's %d x %d must be at "
                             "least 1, and stride = %d must divide the former",
                             p->height, p->width, p->filter_height, p->filter_width, p->stride);
    if ((p->filter_height % 2 == 0 && sy != 2) || (p->filter_width % 2 == 0 && sx != 2))
        return bski_diag_set(diag, BSK_E_INVALID,
                             "pattern: the filter is %d x %d; even sizes need a stride of 2",
                             p->filter_height, p->filter_width);
    const int64_t high = (int64_t)p->height * p->width, low = high / sy / sx;
    const int64_t rows = turned ? high : low, cols = turned ? low : high;
    if (g->rows != rows || g->cols != cols)
        return bski_diag_set(
            diag, BSK_E_INVALID, "params: the layout is %lld x %lld; the pattern needs %lld x %lld",
            (long long)g->rows, (long long)g->cols, (long long)rows, (long long)cols);
    return BSK_OK;
}

/* --- masks of elements ------------------------------------------------------------------------ */

typedef struct element_pattern {
    bsk_element_fn visible;
    void *user;
} element_pattern;

static bool block_has_visible(const bski_geometry *g, const element_pattern *p, int32_t head,
                              int64_t row, int64_t col)
{
    for (int64_t i = row * g->block_rows; i < block_end(row, g->block_rows, g->rows); i++)
        for (int64_t j = col * g->block_cols; j < block_end(col, g->block_cols, g->cols); j++)
            if (p->visible(p->user, head, i, j))
                return true;
    return false;
}

static void mark_elements(const bski_geometry *g, const void *pattern, int32_t head, int32_t row,
                          marks *m)
{
    for (int32_t j = 0; j < g->grid_cols; j++)
        m->col[j] = block_has_visible(g, pattern, head, row, j);
}

bsk_status bski_layout_from_elements(const bsk_allocator *allocator, const bski_geometry *g,
                                     bsk_order order, bsk_element_fn visible, void *user,
                                     bsk_layout **layout, bski_diag *diag)
{
    const element_pattern p = {visible, user};
    return layout_of_marks(allocator, g, order, mark_elements, &p, layout, diag);
}

/* Writes the mask of a block; true if all that lies inside the matrix is visible. */
static bool block_mask(const bski_geometry *g, const element_pattern *p, int32_t head, int64_t row,
                       int64_t col, uint8_t *mask)
{
    const int64_t bytes = ((int64_t)g->block_cols + 7) / 8;
    bool full = true;
    memset(mask, 0, (size_t)(g->block_rows * bytes));
    for (int64_t i = row * g->block_rows; i < block_end(row, g->block_rows, g->rows); i++)
        for (int64_t j = col * g->block_cols; j < block_end(col, g->block_cols, g->cols); j++) {
            const int64_t at = i % g->block_rows * bytes + j % g->block_cols / 8;
            if (p->visible(p->user, head, i, j))
                mask[at] |= (uint8_t)(1u << j % g->block_cols % 8);
            else
                full = false;
        }
    return full;
}

/* Distinct masks: their bytes, and a table of their numbers by checksum (-1: free). */
typedef struct mask_set {
    uint8_t *bytes;
    int64_t size, count; /* of a mask; masks */
    int32_t *table;
    uint32_t top; /* of a place */
} mask_set;

/* The number of a mask, which is added if it is new. */
static int32_t mask_number(mask_set *set, const uint8_t *mask)
{
    uint32_t place = bski_crc32c(mask, (size_t)set->size) & set->top;
    for (; set->table[place] >= 0; place = (place + 1) & set->top)
        if (!memcmp(set->bytes + set->table[place] * set->size, mask, (size_t)set->size))
            return set->table[place];
    memcpy(set->bytes + set->count * set->size, mask, (size_t)set->size);
    set->table[place] = (int32_t)set->count;
    return (int32_t)set->count++;
}

bsk_status bski_layout_element_bits(const bsk_layout *layout, bsk_element_fn visible, void *user,
                                    int32_t *index, uint8_t *bits, int64_t *masks, bski_diag *diag)
{
    const bsk_allocator *allocator = &layout->allocator;
    const bsk_layout_tables *t = &layout->tables;
    const bski_geometry g = bski_layout_geometry(layout);
    const element_pattern p = {visible, user};
    const int64_t places = (int64_t)1 << bski_bits(2 * (uint64_t)t->nnz + 2);
    mask_set set = {.size = g.block_rows * (((int64_t)g.block_cols + 7) / 8),
                    .top = (uint32_t)(places - 1)};
    bsk_status status = BSK_OK;
    int64_t total;
    /* one more: the mask that is looked at */
    set.bytes =
        bski_mul_i64(t->nnz + 1, set.size, &total) ? bski_table_alloc(allocator, total, 1) : NULL;
    set.table = bski_table_alloc(allocator, places, sizeof *set.table);
    int32_t *numbers = bski_table_alloc(allocator, t->nnz, sizeof *numbers);
    if (set.bytes && set.table && numbers) {
        memset(set.table, 0xff, (size_t)places * sizeof *set.table);
        uint8_t *mask = set.bytes + t->nnz * set.size;
        for (int64_t slot = 0; slot < t->nnz; slot++) {
            const int32_t head = bski_layout_head(t, slot);
            const bool full = block_mask(&g, &p, head, t->slot_row[slot], t->slot_col[slot], mask);
            numbers[slot] = full ? -1 : mask_number(&set, mask);
        }
        if (bits && *masks < set.count) {
            status = bski_diag_set(diag, BSK_E_INVALID, "masks = %lld; %lld are needed",
                                   (long long)*masks, (long long)set.count);
        } else {
            if (bits)
                memcpy(bits, set.bytes, (size_t)(set.count * set.size));
            if (t->nnz)
                memcpy(index, numbers, (size_t)t->nnz * sizeof *index);
        }
        *masks = set.count;
    } else {
        status = bski_diag_set(diag, BSK_E_NOMEM, "no memory for the masks");
    }
    bski_table_free(allocator, numbers);
    bski_table_free(allocator, set.table);
    bski_table_free(allocator, set.bytes);
    return status;
}
