/* The lists of the attention kernels of sm80: every square of a kept block once, by its slot. */
#include "tests/unit/unit.h"

#include <stdbool.h>

#include "backends/cuda/sm80/attention_plan.h"
#include "common/layout.h"

enum { SQUARE = 16 };

static unit_heap heap = {0, -1};
static int failures;

static bsk_status fail(void *context, bsk_status status, const char *format, ...)
{
    (void)context;
    (void)format;
    failures++;
    return status;
}

static const bsk_host host = {
    .struct_size = sizeof host, .allocator = {unit_resize, &heap}, .fail = fail};

/* Squares [heads][rows][cols] of a layout: the slot of each, or -1. */
typedef struct squares {
    int64_t rows, cols;
    int32_t *slot;
} squares;

static squares squares_make(const bsk_layout_tables *t)
{
    squares s = {(t->rows + SQUARE - 1) / SQUARE, (t->cols + SQUARE - 1) / SQUARE, NULL};
    const size_t count = (size_t)(t->heads * s.rows * s.cols);
    s.slot = malloc((count + 1) * sizeof *s.slot);
    if (!s.slot)
        abort();
    for (size_t i = 0; i < count; i++)
        s.slot[i] = -1;
    return s;
}

static squares squares_of(const bsk_layout_tables *t)
{
    const squares s = squares_make(t);
    for (int32_t h = 0; h < t->heads; h++)
        for (int64_t slot = t->head_start[h]; slot < t->head_start[h + 1]; slot++)
            for (int64_t i = 0; i < t->block_rows / SQUARE; i++)
                for (int64_t j = 0; j < t->block_cols / SQUARE; j++) {
                    const int64_t row = (int64_t)t->slot_row[slot] * t->block_rows / SQUARE + i;
                    const int64_t col = (int64_t)t->slot_col[slot] * t->block_cols / SQUARE + j;
                    if (row < s.rows && col < s.cols)
                        s.slot[(h * s.rows + row) * s.cols + col] = (int32_t)slot;
                }
    return s;
}

/* The squares that the lists name, and how many they name twice or outside. */
static squares squares_listed(const bsk_layout_tables *t, const attention80_lists *l, int *wrong)
{
    const squares s = squares_make(t);
    const int32_t side = l->turned ? t->block_cols : t->block_rows;
    const int64_t lines = l->turned ? s.cols : s.rows, others = l->turned ? s.rows : s.cols;
    for (int32_t h = 0; h < t->heads; h++)
        for (int32_t tile = 0; tile < l->tiles; tile++) {
            const int32_t list = h * l->lists + tile / l->each;
            for (int32_t p = l->start[list]; p < l->start[list + 1]; p++)
                for (int32_t n = 0; n < l->own / SQUARE * (l->piece / SQUARE); n++) {
                    const int32_t down = n / (l->piece / SQUARE), across = n % (l->piece / SQUARE);
                    const int32_t block = l->subs > 1 ? down * SQUARE / side : 0;
                    const int32_t slot = l->slot[(int64_t)p * l->subs + block];
                    const int64_t own = (int64_t)tile * (l->own / SQUARE) + down;
                    const int64_t other = l->line[p] / SQUARE + across;
                    if (slot < 0 || own >= lines || other >= others)
                        continue;
                    int32_t *at = s.slot + (l->turned ? (h * s.rows + other) * s.cols + own
                                                      : (h * s.rows + own) * s.cols + other);
                    *wrong += *at >= 0;
                    *at = slot;
                }
        }
    return s;
}

/* Each head's order names every tile once, the longest lists first. */
static int order_wrong(const bsk_layout_tables *t, const attention80_lists *l)
{
    int wrong = 0;
    uint8_t *seen = calloc((size_t)l->tiles + 1, 1);
    if (!seen)
        abort();
    for (int32_t h = 0; h < t->heads; h++) {
        int32_t before = INT32_MAX;
        memset(seen, 0, (size_t)l->tiles);
        for (int32_t i = 0; i < l->tiles; i++) {
            const int32_t tile = l->order[h * l->tiles + i];
            const int32_t *start = l->start + h * l->lists + tile / l->each;
            wrong += seen[tile]++ || start[1] - start[0] > before;
            before = start[1] - start[0];
        }
    }
    free(seen);
    return wrong;
}

static void check_lists(const bsk_layout_tables *t, bool turned, int32_t own, int32_t step)
{
    attention80_lists l = bski_attention80_measure(t, turned, own, step);
    int wrong = 0;
    CHECK(bski_attention80_fits(t));
    CHECK(l.piece % SQUARE == 0 && step % l.piece == 0);
    CHECK((int64_t)l.tiles * own >= (turned ? t->cols : t->rows));
    if (!CHECK(bski_attention80_fill(&host, t, &l) == BSK_OK))
        return;
    const squares want = squares_of(t), got = squares_listed(t, &l, &wrong);
    const size_t count = (size_t)(t->heads * want.rows * want.cols);
    CHECK(!wrong);
    CHECK(!memcmp(want.slot, got.slot, count * sizeof *want.slot));
    CHECK(l.start[0] == 0 && l.start[t->heads * l.lists] == l.pieces);
    CHECK(!order_wrong(t, &l));
    free(want.slot);
    free(got.slot);
    unit_resize(&heap, l.start, 0);
}

static bsk_layout *layout_make(int32_t block_rows, int32_t block_cols, int32_t heads,
                               double density)
{
    bsk_layout_params p = BSK_INIT(bsk_layout_params);
    bsk_layout *l = NULL;
    p.rows = 419; /* cut blocks at both ends */
    p.cols = 355;
    p.block_rows = block_rows;
    p.block_cols = block_cols;
    p.heads = heads;
    CHECK_OK(bsk_layout_random(NULL, &p, density, 5, &l));
    return l;
}

static void test_lists(void)
{
    static const int32_t sides[] = {16, 32, 64, 128}, owns[] = {32, 64, 128}, steps[] = {32, 64};
    static const double densities[] = {0, 0.2, 1};
    for (size_t i = 0; i < UNIT_COUNT(sides) * UNIT_COUNT(sides) * UNIT_COUNT(densities); i++) {
        bsk_layout *l =
            layout_make(sides[i % 4], sides[i / 4 % 4], i % 3 ? 1 : 3, densities[i / 16]);
        for (size_t n = 0; l && n < 2 * UNIT_COUNT(owns) * UNIT_COUNT(steps); n++)
            check_lists(&l->tables, n % 2, owns[n / 4], steps[n / 2 % 2]);
        bsk_layout_release(&l);
    }
}

static void test_no_memory(void)
{
    bsk_layout *layout = layout_make(32, 32, 1, 0.5);
    for (long at = 0; layout && at < 2; at++) {
        attention80_lists l = bski_attention80_measure(&layout->tables, false, 64, 64);
        failures = 0;
        atomic_store(&heap.countdown, at);
        CHECK(bski_attention80_fill(&host, &layout->tables, &l) == BSK_E_NOMEM);
        atomic_store(&heap.countdown, -1);
        CHECK(failures == 1);
        CHECK(atomic_load(&heap.live) == 0);
    }
    bsk_layout_release(&layout);
}

/* Layouts that no memory holds: only their sizes are looked at. */
static void test_limits(void)
{
    static const struct {
        int32_t block_rows, block_cols, heads, grid;
        int64_t nnz;
        bool fits;
    } sizes[] = {
        {64, 64, 1, 1 << 15, 500000000, true},  {64, 64, 1, 1 << 15, 600000000, false},
        {16, 16, 1, 1 << 15, 260000000, true},  {16, 16, 1, 1 << 15, 270000000, false},
        {16, 128, 1, 1 << 14, 60000000, true},  {128, 16, 1, 1 << 14, 70000000, false},
        {64, 64, 1 << 10, 1 << 19, 1000, true}, {64, 64, 1 << 10, 1 << 20, 1000, false},
    };
    for (size_t i = 0; i < UNIT_COUNT(sizes); i++) {
        const bsk_layout_tables t = {.block_rows = sizes[i].block_rows,
                                     .block_cols = sizes[i].block_cols,
                                     .grid_rows = sizes[i].grid,
                                     .grid_cols = sizes[i].grid,
                                     .heads = sizes[i].heads,
                                     .nnz = sizes[i].nnz};
        CHECK(bski_attention80_fits(&t) == sizes[i].fits);
    }
}

int main(void)
{
    test_lists();
    test_limits();
    test_no_memory();
    CHECK(atomic_load(&heap.live) == 0);
    return unit_report();
}
