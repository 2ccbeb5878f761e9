/* Layouts: the builder against its twin, conversions, algebra, editing, serialization, bad input.
 * Patterns, evolution and schedules: test_layout_patterns.c; bad input: test_layout_errors.c. */
#include "tests/unit/unit.h"

#include <stdbool.h>

#include "common/layout.h"
#include "tests/unit/layout_twin.h"

/* --- shared pieces ---------------------------------------------------------------------------- */

static uint64_t random_state = 1;

static uint64_t random_next(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int32_t random_in(int32_t low, int32_t high)
{
    return low + (int32_t)(random_next() % (uint64_t)(high - low + 1));
}

static void *must(void *pointer)
{
    if (!pointer)
        abort();
    return pointer;
}

static void *make(int64_t count, size_t size)
{
    return must(calloc((size_t)count + 1, size));
}

/* Passes where why is NULL. */
#define CHECK_SAME(call)                                                                           \
    do {                                                                                           \
        const char *why_ = (call);                                                                 \
        unit_check(!why_, __FILE__, __LINE__, #call, why_ ? why_ : "");                            \
    } while (0)

/* A random grid with its mask and the list of its blocks, row by row. */
typedef struct sample {
    bsk_layout_params params;
    int32_t grid_rows, grid_cols;
    int64_t cells; /* of all heads */
    uint8_t *mask;
    int64_t count;
    int32_t *head, *row, *col;
} sample;

enum { FILL_NONE = 0, FILL_ALL = 1000, FILL_ONE = -1 };

/* density in thousandths, or FILL_ONE. Heads get different counts. */
static sample sample_make(int64_t rows, int64_t cols, int32_t br, int32_t bc, int32_t heads,
                          int32_t density)
{
    sample s = {.params = BSK_INIT(bsk_layout_params)};
    s.params.rows = rows;
    s.params.cols = cols;
    s.params.block_rows = br;
    s.params.block_cols = bc;
    s.params.heads = heads;
    s.grid_rows = (int32_t)((rows + br - 1) / br);
    s.grid_cols = (int32_t)((cols + bc - 1) / bc);
    s.cells = (int64_t)heads * s.grid_rows * s.grid_cols;
    s.mask = make(s.cells, 1);
    for (int64_t i = 0; i < s.cells; i++)
        s.mask[i] = random_in(0, 999) < density ? (uint8_t)random_in(1, 255) : 0;
    if (density == FILL_ONE)
        s.mask[random_in(0, (int32_t)s.cells - 1)] = 1;
    for (int64_t i = 0; i < s.cells; i++)
        s.count += s.mask[i] != 0;
    s.head = make(s.count, sizeof *s.head);
    s.row = make(s.count, sizeof *s.row);
    s.col = make(s.count, sizeof *s.col);
    int64_t n = 0;
    for (int64_t i = 0; i < s.cells; i++)
        if (s.mask[i]) {
            s.head[n] = (int32_t)(i / s.grid_cols / s.grid_rows);
            s.row[n] = (int32_t)(i / s.grid_cols % s.grid_rows);
            s.col[n++] = (int32_t)(i % s.grid_cols);
        }
    return s;
}

static sample sample_random(void)
{
    static const int32_t fills[] = {FILL_NONE, FILL_ALL, FILL_ONE, 30, 100, 300, 500, 900};
    return sample_make(random_in(1, 40), random_in(1, 40), random_in(1, 5), random_in(1, 5),
                       random_in(1, 4), fills[random_in(0, 7)]);
}

static void sample_free(sample *s)
{
    free(s->mask);
    free(s->head);
    free(s->row);
    free(s->col);
}

static void swap_blocks(sample *s, int64_t i, int64_t k)
{
    int32_t *lists[] = {s->head, s->row, s->col};
    for (int j = 0; j < 3; j++) {
        int32_t x = lists[j][i];
        lists[j][i] = lists[j][k];
        lists[j][k] = x;
    }
}

/* Shuffles the list; within_heads keeps the heads ascending. */
static void sample_shuffle(sample *s, bool within_heads)
{
    for (int64_t i = s->count - 1; i > 0; i--) {
        int64_t k = random_in(0, (int32_t)i);
        if (!within_heads || s->head[i] == s->head[k])
            swap_blocks(s, i, k);
    }
}

static twin_blocks sample_blocks(const sample *s)
{
    twin_blocks b = {s->count, s->head, s->row, s->col};
    return b;
}

static bsk_layout *from_mask(const sample *s)
{
    bsk_layout *l = NULL;
    CHECK_OK(bsk_layout_from_mask(NULL, &s->params, s->mask, &l));
    return must(l);
}

/* A layout with shuffled slots; s lists the blocks by slot afterwards. */
static bsk_layout *from_shuffled(sample *s)
{
    bsk_layout *l = NULL;
    sample_shuffle(s, true);
    s->params.order = BSK_ORDER_GIVEN;
    CHECK_OK(bsk_layout_from_coo(NULL, &s->params, s->count, s->head, s->row, s->col, &l));
    return must(l);
}

static bsk_layout_tables tables_of(const bsk_layout *l)
{
    return l->tables;
}

/* --- constructors against the twin ------------------------------------------------------------ */

static void check_and_release(bsk_layout **l, const sample *s, bsk_order order)
{
    if (!CHECK(*l))
        return;
    bsk_layout_tables t = tables_of(*l);
    twin_blocks b = sample_blocks(s);
    CHECK_SAME(twin_invariants(&t));
    CHECK_SAME(twin_compare(&t, &b, order));
    CHECK(t.rows == s->params.rows && t.cols == s->params.cols);
    CHECK(t.grid_rows == s->grid_rows && t.grid_cols == s->grid_cols);
    bsk_layout_release(l);
    CHECK(!*l);
}

/* Offsets and entries by rows or by columns; a line's entries are in the sample's order. */
static void sample_lists(const sample *s, bool by_cols, int64_t *start, int32_t *index)
{
    int32_t grid = by_cols ? s->grid_cols : s->grid_rows;
    int64_t n = 0;
    for (int32_t h = 0; h < s->params.heads; h++)
        for (int32_t i = 0; i <= grid; i++) {
            start[h * ((int64_t)grid + 1) + i] = n;
            for (int64_t k = 0; k < s->count; k++)
                if (s->head[k] == h && (by_cols ? s->col : s->row)[k] == i)
                    index[n++] = (by_cols ? s->row : s->col)[k];
        }
}

/* BSR or CSC, without slots in each order, and with a permutation of slots. */
static void check_lists(sample *s, bool by_cols)
{
    int32_t grid = by_cols ? s->grid_cols : s->grid_rows;
    int64_t *start = make(s->params.heads * ((int64_t)grid + 1), sizeof *start);
    int32_t *index = make(s->count, sizeof *index), *slot = make(s->count, sizeof *slot);
    bsk_status (*construct)(bsk_context *, const bsk_layout_params *, const int64_t *,
                            const int32_t *, const int32_t *, bsk_layout **) =
        by_cols ? bsk_layout_from_csc : bsk_layout_from_bsr;
    bsk_layout *l = NULL;
    sample_shuffle(s, false);
    sample_lists(s, by_cols, start, index);
    for (int order = BSK_ORDER_ROW; order < BSK_ORDER_GIVEN; order++) {
        s->params.order = (bsk_order)order;
        CHECK_OK(construct(NULL, &s->params, start, index, NULL, &l));
        check_and_release(&l, s, s->params.order);
    }

    /* the entries as a list, for which slots are the entries' own index */
    sample entries = *s;
    entries.head = make(s->count, sizeof *slot);
    entries.row = make(s->count, sizeof *slot);
    entries.col = make(s->count, sizeof *slot);
    for (int32_t h = 0; h < s->params.heads; h++)
        for (int32_t i = 0; i < grid; i++)
            for (int64_t e = start[h * ((int64_t)grid + 1) + i];
                 e < start[h * ((int64_t)grid + 1) + i + 1]; e++) {
                entries.head[e] = h;
                entries.row[e] = by_cols ? index[e] : i;
                entries.col[e] = by_cols ? i : index[e];
                slot[e] = (int32_t)e;
            }
    s->params.order = BSK_ORDER_GIVEN;
    CHECK_OK(construct(NULL, &s->params, start, index, NULL, &l));
    check_and_release(&l, &entries, BSK_ORDER_GIVEN);

    sample moved = entries;
    for (int64_t i = s->count - 1; i > 0; i--) {
        int64_t k = random_in(0, (int32_t)i);
        if (entries.head[i] != entries.head[k])
            continue;
        int32_t x = slot[i];
        slot[i] = slot[k];
        slot[k] = x;
    }
    moved.head = make(s->count, sizeof *slot);
    moved.row = make(s->count, sizeof *slot);
    moved.col = make(s->count, sizeof *slot);
    for (int64_t e = 0; e < s->count; e++) {
        moved.head[slot[e]] = entries.head[e];
        moved.row[slot[e]] = entries.row[e];
        moved.col[slot[e]] = entries.col[e];
    }
    s->params.order = (bsk_order)random_in(0, 3); /* slots win over the order */
    CHECK_OK(construct(NULL, &s->params, start, index, slot, &l));
    check_and_release(&l, &moved, BSK_ORDER_GIVEN);
    free(entries.head), free(entries.row), free(entries.col);
    free(moved.head), free(moved.row), free(moved.col);
    free(start), free(index), free(slot);
}

static void test_constructors(void)
{
    for (int i = 0; i < 200; i++) {
        sample s = sample_random();
        bsk_layout *l = NULL;
        for (int order = BSK_ORDER_ROW; order <= BSK_ORDER_GIVEN; order++) {
            s.params.order = (bsk_order)order;
            CHECK_OK(bsk_layout_from_mask(NULL, &s.params, s.mask, &l));
            check_and_release(&l, &s, order == BSK_ORDER_GIVEN ? BSK_ORDER_ROW : s.params.order);
        }
        for (int order = BSK_ORDER_ROW; order <= BSK_ORDER_GIVEN; order++) {
            s.params.order = (bsk_order)order;
            sample_shuffle(&s, order == BSK_ORDER_GIVEN);
            CHECK_OK(bsk_layout_from_coo(NULL, &s.params, s.count,
                                         s.params.heads > 1 ? s.head : NULL, s.row, s.col, &l));
            check_and_release(&l, &s, s.params.order);
            sample_free(&s);
            s = sample_random();
        }
        check_lists(&s, false);
        check_lists(&s, true);
        sample_free(&s);
    }
}

/* The example of a 4 x 2 grid whose tables are known from another library's documentation. */
static void test_worked_example(void)
{
    bsk_layout_params p = BSK_INIT(bsk_layout_params);
    p.rows = 128;
    p.cols = 64;
    p.block_rows = p.block_cols = 32;
    const int32_t row[] = {0, 1, 2, 0}, col[] = {0, 0, 0, 1};
    bsk_layout *l = NULL;
    CHECK_OK(bsk_layout_from_coo(NULL, &p, 4, NULL, row, col, &l));
    const bsk_layout_tables *t = &l->tables;
    static const int64_t row_start[] = {0, 2, 3, 4, 4}, col_start[] = {0, 3, 4};
    static const int32_t row_col[] = {0, 1, 0, 0}, row_slot[] = {0, 1, 2, 3};
    static const int32_t col_row[] = {0, 1, 2, 0}, col_slot[] = {0, 2, 3, 1};
    CHECK(!memcmp(t->row_start, row_start, sizeof row_start));
    CHECK(!memcmp(t->col_start, col_start, sizeof col_start));
    CHECK(!memcmp(t->row_col, row_col, sizeof row_col));
    CHECK(!memcmp(t->row_slot, row_slot, sizeof row_slot));
    CHECK(!memcmp(t->col_row, col_row, sizeof col_row));
    CHECK(!memcmp(t->col_slot, col_slot, sizeof col_slot));
    bsk_layout_release(&l);

    /* Z-order of a full 2 x 4 grid: row bits at even positions */
    uint8_t full[8];
    memset(full, 1, sizeof full);
    p.rows = 64;
    p.cols = 128;
    p.order = BSK_ORDER_MORTON;
    CHECK_OK(bsk_layout_from_mask(NULL, &p, full, &l));
    static const int32_t z_row[] = {0, 1, 0, 1, 0, 1, 0, 1}, z_col[] = {0, 0, 1, 1, 2, 2, 3, 3};
    CHECK(!memcmp(l->tables.slot_row, z_row, sizeof z_row));
    CHECK(!memcmp(l->tables.slot_col, z_col, sizeof z_col));
    CHECK(bski_morton(3, 0) == 5 && bski_morton(0, 3) == 10);
    CHECK(bski_morton(0x80000000u, 0) == (uint64_t)1 << 62);
    bsk_layout_release(&l);
}

/* --- queries and exports ---------------------------------------------------------------------- */

static void check_info(const bsk_layout *l, const sample *s)
{
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    CHECK_OK(bsk_layout_query(l, &info));
    int32_t longest[2] = {0, 0}, empty[2] = {0, 0};
    for (int by_cols = 0; by_cols < 2; by_cols++) {
        int32_t grid = by_cols ? s->grid_cols : s->grid_rows;
        for (int32_t h = 0; h < s->params.heads; h++)
            for (int32_t i = 0; i < grid; i++) {
                int32_t n = 0;
                for (int64_t k = 0; k < s->count; k++)
                    n += s->head[k] == h && (by_cols ? s->col : s->row)[k] == i;
                longest[by_cols] = n > longest[by_cols] ? n : longest[by_cols];
                empty[by_cols] += n == 0;
            }
    }
    CHECK(info.rows == s->params.rows && info.cols == s->params.cols);
    CHECK(info.block_rows == s->params.block_rows && info.block_cols == s->params.block_cols);
    CHECK(info.grid_rows == s->grid_rows && info.grid_cols == s->grid_cols);
    CHECK(info.heads == s->params.heads && info.nnz == s->count);
    CHECK(info.density == (double)s->count / (double)s->cells);
    CHECK(info.max_row_blocks == longest[0] && info.max_col_blocks == longest[1]);
    CHECK(info.empty_rows == empty[0] && info.empty_cols == empty[1]);
    CHECK(info.ordered == l->tables.ordered);

    /* an older caller knows only the first fields; the rest of its memory stays */
    bsk_layout_info old;
    memset(&old, 0x5a, sizeof old);
    old.struct_size = offsetof(bsk_layout_info, nnz);
    CHECK_OK(bsk_layout_query(l, &old));
    CHECK(old.heads == s->params.heads && old.nnz == 0x5a5a5a5a5a5a5a5a);
}

static void check_export(const bsk_layout *l, const sample *s)
{
    uint8_t *mask = make(s->cells, 1);
    int32_t *head = make(s->count, 4), *row = make(s->count, 4), *col = make(s->count, 4);
    int64_t *start = make(s->params.heads * ((int64_t)s->grid_rows + 1), 8);
    int32_t *index = make(s->count, 4), *slot = make(s->count, 4);
    bsk_layout *again = NULL;
    bsk_layout_params p = s->params;

    memset(mask, 0x77, (size_t)s->cells);
    CHECK_OK(bsk_layout_to_mask(l, mask));
    bool same = true;
    for (int64_t i = 0; i < s->cells; i++)
        same &= mask[i] == (s->mask[i] != 0);
    CHECK(same);

    CHECK_OK(bsk_layout_to_coo(l, head, row, col));
    p.order = BSK_ORDER_GIVEN;
    CHECK_OK(bsk_layout_from_coo(NULL, &p, s->count, head, row, col, &again));
    CHECK_SAME(twin_same(&again->tables, &l->tables));
    bsk_layout_release(&again);

    CHECK_OK(bsk_layout_to_bsr(l, start, index, slot));
    CHECK_OK(bsk_layout_from_bsr(NULL, &p, start, index, slot, &again));
    CHECK_SAME(twin_same(&again->tables, &l->tables));
    bsk_layout_release(&again);
    CHECK_OK(bsk_layout_from_csc(NULL, &p, l->tables.col_start, l->tables.col_row,
                                 l->tables.col_slot, &again));
    CHECK_SAME(twin_same(&again->tables, &l->tables));
    bsk_layout_release(&again);

    for (int64_t i = 0; i < s->cells; i++) {
        int32_t h = (int32_t)(i / s->grid_cols / s->grid_rows);
        int32_t r = (int32_t)(i / s->grid_cols % s->grid_rows), c = (int32_t)(i % s->grid_cols);
        int64_t found = -2;
        if (bsk_layout_find(l, h, r, c, &found) != BSK_OK)
            found = -3;
        if (!s->mask[i]) {
            same &= found == -1;
            continue;
        }
        int32_t h2 = -1, r2 = -1, c2 = -1;
        same &= bsk_layout_block_coord(l, found, &h2, &r2, &c2) == BSK_OK && h2 == h && r2 == r &&
                c2 == c;
    }
    CHECK(same);
    free(mask), free(head), free(row), free(col), free(start), free(index), free(slot);
}

static void check_ell(const bsk_layout *l)
{
    const bsk_layout_tables *t = &l->tables;
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    bsk_layout_query(l, &info);
    int32_t width = info.max_row_blocks + random_in(0, 2);
    int64_t n = (int64_t)t->heads * t->grid_rows * width, wrong = 0, kept = 0;
    int32_t *col = make(n, 4), *slot = make(n, 4);
    CHECK_OK(bsk_layout_to_ell(l, width, col, slot));
    for (int64_t i = 0; i < n; i++) {
        if (col[i] < 0) {
            wrong += col[i] != -1 || slot[i] != -1;
            continue;
        }
        kept++;
        int32_t h = (int32_t)(i / width / t->grid_rows), r = (int32_t)(i / width % t->grid_rows);
        wrong += bski_layout_find(t, h, r, col[i]) != slot[i];
        wrong += i % width && (col[i - 1] < 0 || col[i - 1] >= col[i]);
    }
    CHECK(wrong == 0 && kept == t->nnz);
    if (info.max_row_blocks)
        CHECK_ERROR(bsk_layout_to_ell(l, info.max_row_blocks - 1, col, slot), BSK_E_INVALID,
                    "width");
    free(col), free(slot);
}

static void test_queries(void)
{
    for (int i = 0; i < 100; i++) {
        sample s = sample_random();
        bsk_layout *l = i % 2 ? from_shuffled(&s) : from_mask(&s);
        check_info(l, &s);
        check_export(l, &s);
        check_ell(l);
        bsk_layout_release(&l);
        sample_free(&s);
    }
}

/* --- algebra ---------------------------------------------------------------------------------- */

/* Checks a row-major result against a mask of the same geometry. */
static void check_mask(const bsk_layout *l, const sample *like, const uint8_t *mask)
{
    if (!CHECK(l))
        return;
    bsk_layout *want = NULL;
    bsk_layout_params p = like->params;
    p.order = BSK_ORDER_ROW;
    CHECK_OK(bsk_layout_from_mask(NULL, &p, mask, &want));
    CHECK_SAME(twin_same(&l->tables, &want->tables));
    bsk_layout_release(&want);
}

static void check_combine(void)
{
    sample a = sample_random(), b = a;
    b.mask = make(a.cells, 1);
    uint8_t *mask = make(a.cells, 1);
    bsk_layout *la = from_shuffled(&a), *lb = NULL, *l = NULL;
    for (int64_t i = 0; i < a.cells; i++)
        b.mask[i] = random_next() % 3 == 0;
    CHECK_OK(bsk_layout_from_mask(NULL, &b.params, b.mask, &lb));
    for (int64_t i = 0; i < a.cells; i++)
        mask[i] = a.mask[i] || b.mask[i];
    CHECK_OK(bsk_layout_union(la, lb, &l));
    check_mask(l, &a, mask);
    bsk_layout_release(&l);
    for (int64_t i = 0; i < a.cells; i++)
        mask[i] = a.mask[i] && b.mask[i];
    CHECK_OK(bsk_layout_intersect(la, lb, &l));
    check_mask(l, &a, mask);
    bsk_layout_release(&l);
    bsk_layout_release(&la);
    bsk_layout_release(&lb);
    free(mask), free(b.mask);
    sample_free(&a);
}

static void check_crop(void)
{
    sample s = sample_random();
    bsk_layout *source = from_shuffled(&s), *l = NULL;
    int32_t row = random_in(0, s.grid_rows - 1), rows = random_in(1, s.grid_rows - row);
    int32_t col = random_in(0, s.grid_cols - 1), cols = random_in(1, s.grid_cols - col);
    int32_t *from = make(s.count, sizeof *from);
    CHECK_OK(bsk_layout_crop(source, row, rows, col, cols, from, &l));
    sample part = {.params = s.params};
    part.params.rows = rows * (int64_t)s.params.block_rows;
    part.params.cols = cols * (int64_t)s.params.block_cols;
    if (row + rows == s.grid_rows)
        part.params.rows = s.params.rows - row * (int64_t)s.params.block_rows;
    if (col + cols == s.grid_cols)
        part.params.cols = s.params.cols - col * (int64_t)s.params.block_cols;
    part.mask = make((int64_t)s.params.heads * rows * cols, 1);
    int64_t n = 0;
    for (int32_t h = 0; h < s.params.heads; h++)
        for (int32_t r = row; r < row + rows; r++)
            for (int32_t c = col; c < col + cols; c++)
                part.mask[n++] = s.mask[((int64_t)h * s.grid_rows + r) * s.grid_cols + c];
    check_mask(l, &part, part.mask);
    for (int64_t i = 0; l && i < l->tables.nnz; i++) {
        int32_t h = bski_layout_head(&l->tables, i);
        CHECK(from[i] == bski_layout_find(&source->tables, h, l->tables.slot_row[i] + row,
                                          l->tables.slot_col[i] + col));
    }
    free(part.mask), free(from);
    bsk_layout_release(&l);
    bsk_layout_release(&source);
    sample_free(&s);
}

/* The fullest part of the best way to cut lines [start, grid) into parts: all ways are tried. */
static int64_t least_fullest(const int64_t *blocks, int32_t start, int32_t grid, int32_t parts)
{
    int64_t sum = 0, best = INT64_MAX;
    for (int32_t end = start + 1; end <= grid - parts + 1; end++) {
        sum += blocks[end - 1];
        if (parts > 1) {
            int64_t rest = least_fullest(blocks, end, grid, parts - 1);
            int64_t fullest = rest > sum ? rest : sum;
            best = fullest < best ? fullest : best;
        }
    }
    return parts > 1 ? best : sum;
}

/* Whether the cut is the one that the header promises. */
static bool cut_is_right(const int64_t *blocks, int32_t grid, int32_t parts, const int32_t *first)
{
    int64_t fullest = least_fullest(blocks, 0, grid, parts);
    if (first[0] != 0 || first[parts] != grid)
        return false;
    for (int32_t p = 1; p < parts; p++) {
        int32_t start = first[p - 1], left = parts - p, choice = -1;
        int32_t even = start + (grid - start + left) / (left + 1);
        int64_t sum = 0;
        for (int32_t end = start + 1; end <= grid - left; end++) {
            sum += blocks[end - 1];
            if (sum <= fullest && least_fullest(blocks, end, grid, left) <= fullest &&
                (choice < 0 || abs(end - even) < abs(choice - even)))
                choice = end;
        }
        if (first[p] != choice)
            return false;
    }
    return true;
}

/* Rows of very different lengths, some empty. */
static void sample_skew(sample *s)
{
    for (int64_t i = 0; i < s->cells; i++)
        if (random_in(0, s->grid_cols) < i / s->grid_cols % 4 * s->grid_cols / 3)
            s->mask[i] = 0;
}

static void check_split(void)
{
    static const int32_t fills[] = {FILL_NONE, FILL_ALL, FILL_ONE, 100, 500};
    sample s = sample_make(random_in(1, 21), random_in(1, 21), 3, 3, random_in(1, 4),
                           fills[random_in(0, 4)]);
    if (random_next() % 2)
        sample_skew(&s);
    bsk_layout *l = from_mask(&s);
    for (int by_cols = 0; l && by_cols < 2; by_cols++) {
        int32_t grid = by_cols ? s.grid_cols : s.grid_rows, first[9];
        int64_t blocks[7] = {0};
        for (int64_t i = 0; i < s.cells; i++)
            blocks[by_cols ? i % s.grid_cols : i / s.grid_cols % s.grid_rows] += s.mask[i] != 0;
        for (int32_t parts = 1; parts <= grid; parts++) {
            first[parts + 1] = -7;
            CHECK_OK(bsk_layout_split(l, by_cols, parts, first));
            CHECK(cut_is_right(blocks, grid, parts, first));
            CHECK(first[parts + 1] == -7);
        }
    }
    bsk_layout_release(&l);
    sample_free(&s);
}

/* Cuts that were found by hand. */
static void test_split_examples(void)
{
    static const struct {
        int32_t grid, blocks[10], parts, first[5];
    } cases[] = {
        {10, {2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, 4, {0, 3, 6, 8, 10}},
        {10, {0}, 3, {0, 4, 7, 10}},
        {8, {1, 2, 3, 4, 5, 6, 7, 8}, 2, {0, 5, 8}},
        {8, {8, 7, 6, 5, 4, 3, 2, 1}, 3, {0, 2, 5, 8}},
        {6, {0, 0, 9, 0, 1, 1}, 4, {0, 2, 4, 5, 6}},
        {5, {0, 0, 0, 0, 9}, 2, {0, 3, 5}},
    };
    for (size_t i = 0; i < UNIT_COUNT(cases); i++) {
        sample s = sample_make(cases[i].grid, 10, 1, 1, 1, FILL_NONE);
        for (int32_t r = 0; r < cases[i].grid; r++)
            memset(s.mask + 10 * r, 1, (size_t)cases[i].blocks[r]);
        bsk_layout *l = from_mask(&s), *turned = NULL;
        int32_t rows[5], cols[5];
        size_t bytes = ((size_t)cases[i].parts + 1) * sizeof *rows;
        CHECK_OK(bsk_layout_transpose(l, &turned));
        CHECK_OK(bsk_layout_split(l, 0, cases[i].parts, rows));
        CHECK_OK(bsk_layout_split(turned, 1, cases[i].parts, cols));
        CHECK(!memcmp(rows, cases[i].first, bytes));
        CHECK(!memcmp(cols, cases[i].first, bytes));
        bsk_layout_release(&l);
        bsk_layout_release(&turned);
        sample_free(&s);
    }
    /* Many lines: the last has half of all blocks. */
    bsk_layout_params p = BSK_INIT(bsk_layout_params);
    p.rows = 100001;
    p.cols = 100000;
    p.block_rows = p.block_cols = 1;
    int32_t *row = make(200000, 4), *col = make(200000, 4), first[4];
    for (int32_t i = 0; i < 100000; i++) {
        row[i] = col[i] = col[100000 + i] = i;
        row[100000 + i] = 100000;
    }
    bsk_layout *l = NULL;
    CHECK_OK(bsk_layout_from_coo(NULL, &p, 200000, NULL, row, col, &l));
    CHECK_OK(bsk_layout_split(l, 0, 2, first));
    CHECK(first[1] == 100000);
    CHECK_OK(bsk_layout_split(l, 1, 3, first));
    CHECK(first[0] == 0 && first[1] == 33334 && first[2] == 66667 && first[3] == 100000);
    bsk_layout_release(&l);
    free(row), free(col);
}

static void check_reach(void)
{
    sample s = sample_random();
    bsk_layout *l = from_shuffled(&s);
    int32_t row = random_in(0, s.grid_rows - 1), rows = random_in(1, s.grid_rows - row);
    int64_t count = (int64_t)s.params.heads * s.grid_cols;
    uint8_t *cols = make(count, 1), *want = make(count, 1);
    memset(cols, 0x55, (size_t)count + 1);
    for (int64_t i = 0; i < s.count; i++)
        if (s.row[i] >= row && s.row[i] < row + rows)
            want[(int64_t)s.head[i] * s.grid_cols + s.col[i]] = 1;
    want[count] = 0x55;
    CHECK_OK(bsk_layout_reach(l, row, rows, cols));
    CHECK(!memcmp(cols, want, (size_t)count + 1));
    free(cols), free(want);
    bsk_layout_release(&l);
    sample_free(&s);
}

static void check_transpose(void)
{
    sample s = sample_random();
    bsk_layout *l = from_shuffled(&s), *t = NULL, *back = NULL;
    CHECK_OK(bsk_layout_transpose(l, &t));
    CHECK_OK(bsk_layout_transpose(t, &back));
    CHECK_SAME(twin_same(&back->tables, &l->tables));
    CHECK_SAME(twin_invariants(&t->tables));
    CHECK(t->tables.rows == s.params.cols && t->tables.block_rows == s.params.block_cols);
    twin_blocks turned = {s.count, s.head, s.col, s.row};
    CHECK_SAME(twin_compare(&t->tables, &turned, BSK_ORDER_GIVEN));
    bsk_layout_release(&l);
    bsk_layout_release(&t);
    bsk_layout_release(&back);
    sample_free(&s);
}

static void check_compact(void)
{
    sample s = sample_random();
    bsk_layout *l = from_shuffled(&s), *small = NULL;
    float *gate = make(s.count, sizeof *gate);
    int32_t *from = make(s.count, sizeof *from);
    int64_t n = 0;
    for (int64_t i = 0; i < s.count; i++) {
        static const float values[] = {0, -0.0f, 1, 0.25f, -3};
        gate[i] = values[random_in(0, 4)];
    }
    CHECK_OK(bsk_layout_compact(l, gate, from, &small));
    for (int64_t i = 0; i < s.count; i++)
        if (gate[i] != 0) {
            CHECK(from[n] == i);
            s.head[n] = s.head[i];
            s.row[n] = s.row[i];
            s.col[n++] = s.col[i];
        }
    s.count = n;
    twin_blocks b = sample_blocks(&s);
    CHECK_SAME(twin_invariants(&small->tables));
    CHECK_SAME(twin_compare(&small->tables, &b, BSK_ORDER_GIVEN));
    bsk_layout_release(&l);
    bsk_layout_release(&small);
    free(gate), free(from);
    sample_free(&s);
}

static void check_broadcast(void)
{
    sample s = sample_make(random_in(1, 30), random_in(1, 30), 3, 2, 1, 300);
    bsk_layout *l = from_shuffled(&s), *many = NULL;
    int32_t heads = random_in(1, 5);
    CHECK_OK(bsk_layout_broadcast(l, heads, &many));
    sample all = {.count = s.count * heads};
    all.head = make(all.count, 4), all.row = make(all.count, 4), all.col = make(all.count, 4);
    for (int64_t i = 0; i < all.count; i++) {
        all.head[i] = (int32_t)(i / s.count);
        all.row[i] = s.row[i % s.count];
        all.col[i] = s.col[i % s.count];
    }
    twin_blocks b = sample_blocks(&all);
    CHECK_SAME(twin_invariants(&many->tables));
    CHECK_SAME(twin_compare(&many->tables, &b, BSK_ORDER_GIVEN));
    bsk_layout_release(&l);
    if (heads > 1)
        CHECK_ERROR(bsk_layout_broadcast(many, 2, &l), BSK_E_INVALID, "one");
    bsk_layout_release(&many);
    sample_free(&s);
    sample_free(&all);
}

static void test_algebra(void)
{
    for (int i = 0; i < 100; i++) {
        check_combine();
        check_crop();
        check_split();
        check_reach();
        check_transpose();
        check_compact();
        check_broadcast();
    }
}

/* --- move_blocks ------------------------------------------------------------------------------ */

/* Random permutations of the places of some blocks and some empty places. */
static void check_moves(void)
{
    sample s = sample_random();
    bsk_layout *l = from_shuffled(&s), *moved = NULL;
    int32_t *slot = make(s.count, 4), *row = make(s.count, 4), *col = make(s.count, 4);
    int64_t count = 0;
    for (int64_t i = 0; i < s.count; i++)
        if (random_next() % 2)
            slot[count++] = (int32_t)i;
    for (int64_t i = 0; i < count; i++) {
        int64_t k = random_in(0, (int32_t)i);
        if (s.head[slot[i]] == s.head[slot[k]])
            swap_blocks(&s, slot[i], slot[k]);
        int64_t cell = random_in(0, s.grid_rows * s.grid_cols - 1);
        uint8_t *mask = s.mask + (int64_t)s.head[slot[i]] * s.grid_rows * s.grid_cols;
        if (!mask[cell]) {
            mask[cell] = 1; /* taken from now on; the old place stays marked too, which is fine */
            s.row[slot[i]] = (int32_t)(cell / s.grid_cols);
            s.col[slot[i]] = (int32_t)(cell % s.grid_cols);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        row[i] = s.row[slot[i]];
        col[i] = s.col[slot[i]];
    }
    CHECK_OK(bsk_layout_move_blocks(l, count, slot, row, col, &moved));
    twin_blocks b = sample_blocks(&s);
    CHECK_SAME(twin_invariants(&moved->tables));
    CHECK_SAME(twin_compare(&moved->tables, &b, BSK_ORDER_GIVEN));
    bsk_layout_release(&l);
    bsk_layout_release(&moved);
    free(slot), free(row), free(col);
    sample_free(&s);
}

static void test_move_blocks(void)
{
    for (int i = 0; i < 200; i++)
        check_moves();

    bsk_layout_params p = BSK_INIT(bsk_layout_params);
    p.rows = p.cols = 24;
    p.block_rows = p.block_cols = 8;
    p.heads = 2;
    const int32_t head[] = {0, 0, 1}, row[] = {0, 1, 0}, col[] = {0, 1, 0};
    bsk_layout *l = NULL, *m = NULL;
    CHECK_OK(bsk_layout_from_coo(NULL, &p, 3, head, row, col, &l));
    const struct {
        int64_t count;
        int32_t slot[3], row[3], col[3];
        const char *message; /* NULL: legal */
    } cases[] = {
        {2, {0, 1}, {1, 0}, {1, 0}, NULL},
        {1, {2}, {1}, {1}, NULL},
        {1, {0}, {0}, {0}, NULL},
        {0, {0}, {0}, {0}, NULL},
        {1, {0}, {1}, {1}, "row[0], col[0] = (1, 1) of head 0"},
        {2, {0, 1}, {2, 2}, {2, 2}, "elements 0 and 1 both go to block (2, 2)"},
        {2, {0, 0}, {2, 2}, {2, 1}, "slot[1] = 0 was given before at 0"},
        {1, {3}, {0}, {0}, "slot[0] = 3 must be in [0, 2]"},
        {1, {-1}, {0}, {0}, "slot[0] = -1 must be in [0, 2]"},
        {2, {0, 1}, {0, 3}, {0, 0}, "row[1] = 3 must be in [0, 2]"},
        {1, {0}, {0}, {-1}, "col[0] = -1 must be in [0, 2]"},
        {-1, {0}, {0}, {0}, "count = -1 must be in [0, 3]"},
        {4, {0}, {0}, {0}, "count = 4 must be in [0, 3]"},
    };
    for (size_t i = 0; i < UNIT_COUNT(cases); i++) {
        bsk_status status = bsk_layout_move_blocks(l, cases[i].count, cases[i].slot, cases[i].row,
                                                   cases[i].col, &m);
        if (cases[i].message) {
            CHECK_ERROR(status, BSK_E_INVALID, cases[i].message);
            CHECK(!m);
        } else {
            CHECK_OK(status);
        }
        bsk_layout_release(&m);
    }
    CHECK_ERROR(bsk_layout_move_blocks(l, 1, cases[0].slot, NULL, col, &m), BSK_E_INVALID,
                "row must not be NULL");
    bsk_layout_release(&l);
}

/* --- serialization ---------------------------------------------------------------------------- */

/* Whatever is accepted must be a layout with this one form. */
static bool accepted(const uint8_t *data, size_t bytes)
{
    bsk_layout *l = NULL;
    bsk_status status = bsk_layout_deserialize(NULL, data, bytes, &l);
    if (status != BSK_OK) {
        CHECK(!l && (status == BSK_E_CORRUPT || status == BSK_E_VERSION));
        return false;
    }
    CHECK_SAME(twin_invariants(&l->tables));
    uint8_t *again = make((int64_t)bytes, 1);
    size_t size = bytes;
    CHECK_OK(bsk_layout_serialize(l, again, &size));
    CHECK(size == bytes && !memcmp(again, data, bytes));
    free(again);
    bsk_layout_release(&l);
    return true;
}

static uint8_t *serialized(const bsk_layout *l, size_t *bytes)
{
    CHECK_OK(bsk_layout_serialize(l, NULL, bytes));
    uint8_t *data = must(malloc(*bytes));
    CHECK_OK(bsk_layout_serialize(l, data, bytes));
    return data;
}

/* Puts a right checksum at the end. */
static void repair(uint8_t *data, size_t bytes)
{
    uint32_t crc = bski_crc32c(data, bytes - 4);
    for (int i = 0; i < 4; i++)
        data[bytes - 4 + (size_t)i] = (uint8_t)(crc >> 8 * i);
}

/* Every truncation, and every byte changed in several ways, with the old and a right checksum. */
static void check_damage(const uint8_t *data, size_t bytes)
{
    for (size_t n = 0; n < bytes; n++) {
        uint8_t *part = must(malloc(n + !n)); /* its own block, so that tools see reads beyond */
        memcpy(part, data, n);
        CHECK(!accepted(part, n));
        if (n >= 4) {
            repair(part, n);
            CHECK(!accepted(part, n));
        }
        free(part);
    }
    uint8_t *copy = must(malloc(bytes));
    for (size_t i = 0; i < bytes; i++)
        for (int change = 1; change < 256; change++) {
            memcpy(copy, data, bytes);
            copy[i] = (uint8_t)(copy[i] ^ change);
            CHECK(!accepted(copy, bytes));
            repair(copy, bytes);
            accepted(copy, bytes);
        }
    free(copy);
}

static void test_serialize(void)
{
    CHECK(bski_crc32c((const uint8_t *)"123456789", 9) == 0xe3069283u);
    for (int i = 0; i < 100; i++) {
        sample s = sample_random();
        bsk_layout *l = i % 2 ? from_shuffled(&s) : from_mask(&s), *again = NULL;
        size_t bytes;
        uint8_t *data = serialized(l, &bytes);
        CHECK_OK(bsk_layout_deserialize(NULL, data, bytes, &again));
        CHECK_SAME(twin_same(&again->tables, &l->tables));
        bsk_layout_release(&again);
        free(data);
        bsk_layout_release(&l);
        sample_free(&s);
    }
    for (int shuffled = 0; shuffled < 2; shuffled++) {
        sample s = sample_make(10, 13, 4, 5, 2, 500);
        bsk_layout *l = shuffled ? from_shuffled(&s) : from_mask(&s);
        size_t bytes, small;
        uint8_t *data = serialized(l, &bytes), *long_data = make((int64_t)bytes + 1, 1);
        check_damage(data, bytes);
        memcpy(long_data, data, bytes);
        CHECK(!accepted(long_data, bytes + 1));
        small = bytes - 1;
        memset(long_data, 0x11, bytes);
        CHECK_ERROR(bsk_layout_serialize(l, long_data, &small), BSK_E_INVALID, "bytes");
        CHECK(small == bytes && long_data[0] == 0x11);
        if (shuffled) { /* slots in order may not be written out: they would be a second form */
            memcpy(long_data, data, bytes);
            for (int32_t i = 0; i < l->tables.nnz; i++)
                memcpy(long_data + bytes - 4 - 4 * (size_t)(l->tables.nnz - i),
                       (const uint8_t[4]){(uint8_t)i, 0, 0, 0}, 4);
            repair(long_data, bytes);
            bsk_layout *none = NULL;
            CHECK_ERROR(bsk_layout_deserialize(NULL, long_data, bytes, &none), BSK_E_CORRUPT,
                        "slots that are in order");
        }
        bsk_layout_release(&l);
        data[34] ^= 1; /* a block of 65536 rows more */
        repair(data, bytes);
        CHECK_ERROR(bsk_layout_deserialize(NULL, data, bytes, &l), BSK_E_CORRUPT, "block_rows");
        data[8] = 2;
        CHECK_ERROR(bsk_layout_deserialize(NULL, data, bytes, &l), BSK_E_VERSION, "version 2");
        CHECK(!l);
        free(data), free(long_data);
        sample_free(&s);
    }
}

int main(void)
{
    test_constructors();
    test_worked_example();
    test_queries();
    test_algebra();
    test_split_examples();
    test_move_blocks();
    test_serialize();
    return unit_report();
}
