/* Layouts: bad input is named, failing memory leaks nothing, references count. */
#include "tests/unit/unit.h"

#include <math.h>
#include <stdbool.h>

#include "common/layout.h"

static bsk_layout_params grid_params(int64_t grid_rows, int64_t grid_cols, int32_t heads)
{
    bsk_layout_params p = BSK_INIT(bsk_layout_params);
    p.rows = grid_rows;
    p.cols = grid_cols;
    p.block_rows = p.block_cols = 1;
    p.heads = heads;
    return p;
}

/* --- bad input -------------------------------------------------------------------------------- */

static void test_bad_params(void)
{
    static const struct {
        int64_t rows, cols;
        int32_t br, bc, heads;
        int order;
        const char *message;
    } cases[] = {
        {0, 8, 8, 8, 1, 0, "params.rows = 0 must be at least 1"},
        {8, 0, 8, 8, 1, 0, "params.cols = 0 must be at least 1"},
        {-8, 8, 8, 8, 1, 0, "params.rows = -8"},
        {8, 8, 0, 8, 1, 0, "params.block_rows = 0 must be in [1, 65"},
        {8, 8, 8, -1, 1, 0, "params.block_cols = -1"},
        {8, 8, 65537, 8, 1, 0, "params.block_rows = 65537"},
        {8, 8, 8, 8, -1, 0, "params.heads = -1"},
        {8, 8, 8, 8, 1, 4, "params.order = 4 must be in [0, 3]"},
        {8, 8, 8, 8, 1, -1, "params.order = -1"},
        {0x80000000, 8, 1, 8, 1, 0, "a grid of 2147483648, more than 2147483647"},
        {INT64_MAX, 8, 1, 8, 1, 0, "a grid of"},
    };
    uint8_t mask[1] = {1};
    for (size_t i = 0; i < UNIT_COUNT(cases); i++) {
        bsk_layout_params p = BSK_INIT(bsk_layout_params);
        p.rows = cases[i].rows;
        p.cols = cases[i].cols;
        p.block_rows = cases[i].br;
        p.block_cols = cases[i].bc;
        p.heads = cases[i].heads;
        p.order = (bsk_order)cases[i].order;
        bsk_layout *l = (bsk_layout *)(uintptr_t)mask;
        CHECK_ERROR(bsk_layout_from_mask(NULL, &p, mask, &l), BSK_E_INVALID, cases[i].message);
        CHECK(!l);
    }
    bsk_layout_params p = grid_params(1, 1, 1);
    bsk_layout *l = NULL;
    CHECK_ERROR(bsk_layout_from_mask(NULL, NULL, mask, &l), BSK_E_INVALID, "params");
    CHECK_ERROR(bsk_layout_from_mask(NULL, &p, NULL, &l), BSK_E_INVALID, "mask");
    CHECK_ERROR(bsk_layout_from_mask(NULL, &p, mask, NULL), BSK_E_INVALID, "layout");
    p.struct_size = 4;
    CHECK_ERROR(bsk_layout_from_mask(NULL, &p, mask, &l), BSK_E_INVALID, "struct_size");
    struct {
        bsk_layout_params p;
        int64_t newer;
    } longer = {grid_params(1, 1, 1), 1};
    longer.p.struct_size = sizeof longer;
    CHECK_STATUS(bsk_layout_from_mask(NULL, &longer.p, mask, &l), BSK_E_VERSION);
    longer.newer = 0;
    CHECK_OK(bsk_layout_from_mask(NULL, &longer.p, mask, &l));
    bsk_layout_release(&l);
    bsk_layout_release(&l);
    bsk_layout_release(NULL);
    CHECK(bsk_layout_retain(NULL) == NULL);
}

static void test_bad_lists(void)
{
    static const struct {
        int64_t count;
        int32_t head[3], row[3], col[3];
        const char *message;
    } coo[] = {
        {2, {0, 0}, {0, 4}, {0, 0}, "row[1] = 4 must be in [0, 3]"},
        {1, {0}, {-1}, {0}, "row[0] = -1 must be in [0, 3]"},
        {3, {0, 0, 0}, {0, 1, 2}, {0, 0, 5}, "col[2] = 5 must be in [0, 4]"},
        {1, {2}, {0}, {0}, "head[0] = 2 must be in [0, 1]"},
        {3, {0, 1, 0}, {3, 3, 3}, {2, 2, 2}, "elements 0 and 2 are the same block"},
        {3,
         {0, 1, 1},
         {3, 3, 3},
         {2, 2, 2},
         "elements 1 and 2 are the same block (3, "
         "2) of head 1"},
        {-1, {0}, {0}, {0}, "count = -1 must be in [0, 2147483647]"},
        {0x80000000, {0}, {0}, {0}, "count = 2147483648"},
    };
    bsk_layout_params p = grid_params(4, 5, 2);
    bsk_layout *l = NULL;
    for (size_t i = 0; i < UNIT_COUNT(coo); i++)
        CHECK_ERROR(
            bsk_layout_from_coo(NULL, &p, coo[i].count, coo[i].head, coo[i].row, coo[i].col, &l),
            BSK_E_INVALID, coo[i].message);
    CHECK_ERROR(bsk_layout_from_coo(NULL, &p, 1, NULL, coo[0].row, coo[0].col, &l), BSK_E_INVALID,
                "head must not be NULL with 2 heads");
    CHECK_ERROR(bsk_layout_from_coo(NULL, &p, 1, coo[0].head, NULL, coo[0].col, &l), BSK_E_INVALID,
                "row must not be NULL");
    CHECK_OK(bsk_layout_from_coo(NULL, &p, 0, NULL, NULL, NULL, &l));
    bsk_layout_release(&l);
    p.order = BSK_ORDER_GIVEN;
    CHECK_ERROR(bsk_layout_from_coo(NULL, &p, 3, (const int32_t[]){0, 1, 0},
                                    (const int32_t[]){0, 0, 1}, (const int32_t[]){0, 0, 0}, &l),
                BSK_E_INVALID, "head[2] = 0 must be at least head[1] = 1");

    static const struct {
        int64_t start[6]; /* two heads of two lines */
        int32_t index[3], slot[3];
        const char *bsr, *csc;
    } lists[] = {
        {{1, 1, 1, 1, 1, 1}, {0}, {0}, "row_start[0] = 1 must be 0", "col_start[0] = 1"},
        {{0, 2, 1, 1, 1, 1}, {0}, {0}, "row_start[0][2] = 1 must be in [2, ", "col_start[0][2]"},
        {{0, 1, 1, 0, 1, 1}, {0}, {0}, "row_start[1][0] = 0 must be in [1, 1]", "col_start[1][0]"},
        {{0, 0, 0, 0, 0, 0x80000000}, {0}, {0}, "row_start[1][2] = 2147483648", "col_start[1]"},
        {{0, 1, 2, 2, 2, 2}, {0, 2}, {0, 1}, "col[1] = 2 must be in [0, 1]", "row[1] = 2"},
        {{0, 2, 2, 2, 2, 2},
         {1, 1},
         {0, 1},
         "col[0] and col[1] are the same block (0, 1)",
         "row[0] and row[1] are the same block (1, 0)"},
        {{0, 2, 2, 2, 2, 2}, {0, 1}, {0, 2}, "slot[1] = 2 must be in [0, 1] (head 0)", "slot[1]"},
        {{0, 2, 2, 2, 2, 2}, {0, 1}, {0, -1}, "slot[1] = -1 must be in [0, 1]", "slot[1]"},
        {{0, 2, 2, 2, 2, 2}, {0, 1}, {1, 1}, "slot[1] = 1 is given twice", "slot[1]"},
        {{0, 1, 1, 1, 2, 2}, {0, 0}, {1, 0}, "slot[0] = 1 must be in [0, 0] (head 0)", "slot[0]"},
    };
    p = grid_params(2, 2, 2);
    for (size_t i = 0; i < UNIT_COUNT(lists); i++) {
        CHECK_ERROR(
            bsk_layout_from_bsr(NULL, &p, lists[i].start, lists[i].index, lists[i].slot, &l),
            BSK_E_INVALID, lists[i].bsr);
        CHECK_ERROR(
            bsk_layout_from_csc(NULL, &p, lists[i].start, lists[i].index, lists[i].slot, &l),
            BSK_E_INVALID, lists[i].csc);
    }
    CHECK_ERROR(bsk_layout_from_bsr(NULL, &p, NULL, lists[0].index, NULL, &l), BSK_E_INVALID,
                "row_start must not be NULL");
    CHECK_ERROR(bsk_layout_from_csc(NULL, &p, lists[9].start, NULL, NULL, &l), BSK_E_INVALID,
                "row must not be NULL");
}

static void test_bad_generators(void)
{
    bsk_layout_params p = grid_params(8, 8, 1), wide = grid_params(8, 9, 1);
    bsk_layout *l = NULL;
    CHECK_ERROR(bsk_layout_random(NULL, &p, 1.5, 1, &l), BSK_E_INVALID, "density = 1.5");
    CHECK_ERROR(bsk_layout_random(NULL, &p, -0.1, 1, &l), BSK_E_INVALID, "density = -0.1");
    CHECK_ERROR(bsk_layout_random(NULL, &p, NAN, 1, &l), BSK_E_INVALID, "density");
    CHECK_ERROR(bsk_layout_barabasi_albert(NULL, &wide, 2, 1, &l), BSK_E_INVALID, "square");
    CHECK_ERROR(bsk_layout_barabasi_albert(NULL, &p, 0, 1, &l), BSK_E_INVALID, "m = 0");
    CHECK_ERROR(bsk_layout_barabasi_albert(NULL, &p, 8, 1, &l), BSK_E_INVALID, "[1, 7]");
    CHECK_ERROR(bsk_layout_watts_strogatz(NULL, &wide, 2, 0, 1, &l), BSK_E_INVALID, "square");
    CHECK_ERROR(bsk_layout_watts_strogatz(NULL, &p, 3, 0, 1, &l), BSK_E_INVALID, "even");
    CHECK_ERROR(bsk_layout_watts_strogatz(NULL, &p, 8, 0, 1, &l), BSK_E_INVALID, "[2, 7]");
    CHECK_ERROR(bsk_layout_watts_strogatz(NULL, &p, 2, 1.1, 1, &l), BSK_E_INVALID, "p = 1.1");
    /* too many blocks, and grids whose tables cannot exist, without overflow */
    bsk_layout_params huge = grid_params(INT32_MAX, INT32_MAX, 1);
    CHECK_ERROR(bsk_layout_random(NULL, &huge, 0.5, 1, &l), BSK_E_INVALID,
                "legal are at most 2147483647");
    huge.heads = INT32_MAX;
    CHECK_STATUS(bsk_layout_from_coo(NULL, &huge, 0, NULL, NULL, NULL, &l), BSK_E_NOMEM);
    CHECK_STATUS(bsk_layout_random(NULL, &huge, 0, 1, &l), BSK_E_NOMEM);

    float data[64] = {0};
    bsk_tensor d = bsk_tensor_2d(BSK_F32, 8, 8), bad;
    CHECK_ERROR(bsk_layout_from_dense(NULL, &p, NULL, data, BSK_NORM_MAX, 0, -1, &l), BSK_E_INVALID,
                "desc");
    CHECK_ERROR(bsk_layout_from_dense(NULL, &p, &d, NULL, BSK_NORM_MAX, 0, -1, &l), BSK_E_INVALID,
                "data");
    CHECK_ERROR(bsk_layout_from_dense(NULL, &p, &d, data, (bsk_norm)2, 0, -1, &l), BSK_E_INVALID,
                "norm = 2");
    CHECK_ERROR(bsk_layout_from_dense(NULL, &p, &d, data, BSK_NORM_MAX, -1, -1, &l), BSK_E_INVALID,
                "threshold = -1");
    CHECK_ERROR(bsk_layout_from_dense(NULL, &p, &d, data, BSK_NORM_MAX, NAN, -1, &l), BSK_E_INVALID,
                "threshold");
    CHECK_ERROR(bsk_layout_from_dense(NULL, &p, &d, data, BSK_NORM_MAX, 0, 65, &l), BSK_E_INVALID,
                "keep = 65 must be at most 64");
    bad = bsk_tensor_2d(BSK_I32, 8, 8);
    CHECK_ERROR(bsk_layout_from_dense(NULL, &p, &bad, data, BSK_NORM_MAX, 0, 1, &l), BSK_E_INVALID,
                "dtype");
    bad = bsk_tensor_2d(BSK_F32, 8, 9);
    CHECK_ERROR(bsk_layout_from_dense(NULL, &p, &bad, data, BSK_NORM_MAX, 0, 1, &l), BSK_E_INVALID,
                "desc.dims[1] = 9 must be 8");
    bad = bsk_tensor_1d(BSK_F32, 64);
    CHECK_ERROR(bsk_layout_from_dense(NULL, &p, &bad, data, BSK_NORM_MAX, 0, 1, &l), BSK_E_INVALID,
                "rank = 1");
    bad = bsk_tensor_ld(BSK_F32, 8, 8, -8);
    CHECK_ERROR(bsk_layout_from_dense(NULL, &p, &bad, data, BSK_NORM_MAX, 0, 1, &l), BSK_E_INVALID,
                "strides[0] = -8");
    bad = bsk_tensor_ld(BSK_F32, 8, 8, INT64_MAX / 4);
    CHECK_ERROR(bsk_layout_from_dense(NULL, &p, &bad, data, BSK_NORM_MAX, 0, 1, &l), BSK_E_INVALID,
                "overflows");
}

static void test_bad_algebra(void)
{
    bsk_layout_params p = grid_params(6, 5, 1);
    bsk_layout *a = NULL, *b = NULL, *l = NULL;
    int64_t slot = 77;
    int32_t first[2] = {77, 77};
    uint8_t cols[5] = {77};
    bsk_layout_random(NULL, &p, 0.5, 1, &a);
    p.block_cols = 2;
    bsk_layout_random(NULL, &p, 0.5, 1, &b);
    CHECK_ERROR(bsk_layout_union(a, b, &l), BSK_E_INVALID, "b.block_cols = 2 must be");
    CHECK_ERROR(bsk_layout_intersect(a, NULL, &l), BSK_E_INVALID, "b must not be NULL");
    CHECK_ERROR(bsk_layout_crop(a, 6, 1, 0, 1, NULL, &l), BSK_E_INVALID,
                "row = 6 must be in [0, 5]");
    CHECK_ERROR(bsk_layout_crop(a, 0, 0, 0, 1, NULL, &l), BSK_E_INVALID, "rows = 0");
    CHECK_ERROR(bsk_layout_crop(a, 2, 1, 3, 3, NULL, &l), BSK_E_INVALID,
                "cols = 3 must be in [1, 2]");
    CHECK_ERROR(bsk_layout_crop(a, 2, INT32_MAX, 3, 1, NULL, &l), BSK_E_INVALID, "rows");
    CHECK_ERROR(bsk_layout_split(a, 0, 0, first), BSK_E_INVALID, "parts = 0 must be in [1, 6]");
    CHECK_ERROR(bsk_layout_split(a, 0, 7, first), BSK_E_INVALID, "parts = 7 must be in [1, 6]");
    CHECK_ERROR(bsk_layout_split(a, 1, 6, first), BSK_E_INVALID, "parts = 6 must be in [1, 5]");
    CHECK_ERROR(bsk_layout_split(a, 1, -1, first), BSK_E_INVALID, "parts = -1");
    CHECK_ERROR(bsk_layout_split(NULL, 0, 1, first), BSK_E_INVALID, "source must not be NULL");
    CHECK_ERROR(bsk_layout_split(a, 0, 1, NULL), BSK_E_INVALID, "first must not be NULL");
    CHECK_ERROR(bsk_layout_reach(a, -1, 1, cols), BSK_E_INVALID, "row = -1 must be in [0, 5]");
    CHECK_ERROR(bsk_layout_reach(a, 4, 3, cols), BSK_E_INVALID, "rows = 3 must be in [1, 2]");
    CHECK_ERROR(bsk_layout_reach(NULL, 0, 1, cols), BSK_E_INVALID, "layout must not be NULL");
    CHECK_ERROR(bsk_layout_reach(a, 0, 1, NULL), BSK_E_INVALID, "cols must not be NULL");
    CHECK_ERROR(bsk_layout_broadcast(a, 0, &l), BSK_E_INVALID, "heads = 0");
    CHECK_ERROR(bsk_layout_broadcast(a, INT32_MAX, &l), BSK_E_INVALID,
                "heads = 2147483647 must be in [1, 143165576]");
    CHECK_ERROR(bsk_layout_compact(a, NULL, NULL, &l), BSK_E_INVALID, "gate");
    CHECK_ERROR(bsk_layout_find(a, 0, 6, 0, &slot), BSK_E_INVALID, "row = 6");
    CHECK_ERROR(bsk_layout_find(a, 1, 0, 0, &slot), BSK_E_INVALID, "head = 1");
    CHECK_ERROR(bsk_layout_find(a, 0, 0, -1, &slot), BSK_E_INVALID, "col = -1");
    CHECK_ERROR(bsk_layout_block_coord(a, 15, NULL, NULL, NULL), BSK_E_INVALID, "[0, 14]");
    CHECK_ERROR(bsk_layout_block_coord(a, -1, NULL, NULL, NULL), BSK_E_INVALID, "slot = -1");
    CHECK_ERROR(bsk_layout_query(NULL, NULL), BSK_E_INVALID, "layout");
    CHECK(slot == 77 && first[0] == 77 && first[1] == 77 && cols[0] == 77 && !l);
    bsk_layout_params none = BSK_INIT(bsk_layout_params);
    none.rows = none.cols = none.block_rows = none.block_cols = 8;
    CHECK_OK(bsk_layout_random(NULL, &none, 0, 1, &l));
    CHECK_ERROR(bsk_layout_block_coord(l, 0, NULL, NULL, NULL), BSK_E_INVALID, "no blocks");
    bsk_layout_release(&l);
    bsk_layout_release(&a);
    bsk_layout_release(&b);
}

/* --- failing memory --------------------------------------------------------------------------- */

enum { OPERATIONS = 14 };

/* One operation of each kind; source was made before with the same heap. */
static bsk_status operation(int which, const bsk_allocator *allocator, const bsk_layout *source,
                            bsk_layout **l, bski_diag *diag)
{
    static const int32_t row[] = {5, 0, 3}, col[] = {1, 2, 0};
    static const int64_t start[] = {0, 2, 2, 3, 3, 3, 3, 3, 3};
    bski_geometry g = {8, 8, 1, 1, 8, 8, 1};
    uint8_t keep[64], bytes[1024];
    float value[64];
    for (int i = 0; i < 64; i++)
        value[i] = (float)(i % 5);
    int32_t slot = 0, order[64];
    bsk_tensor desc = bsk_tensor_2d(BSK_F32, 8, 8);
    size_t size = bski_layout_bytes(&source->tables);
    switch (which) {
    case 0:
        memset(keep, 1, sizeof keep);
        return bski_layout_from_mask(allocator, &g, BSK_ORDER_MORTON, keep, l, diag);
    case 1:
        return bski_layout_from_coo(allocator, &g, BSK_ORDER_MORTON, 3, NULL, row, col, l, diag);
    case 2:
        return bski_layout_from_lists(allocator, &g, BSK_ORDER_MORTON, false, start, col, NULL, l,
                                      diag);
    case 3:
        return bski_layout_from_dense(allocator, &g, BSK_ORDER_MORTON, &desc, value, BSK_NORM_L2, 2,
                                      -1, l, diag);
    case 4:
        return bski_layout_random(allocator, &g, BSK_ORDER_MORTON, 0.5, 1, l, diag);
    case 5:
        return bski_layout_random(allocator, &g, BSK_ORDER_MORTON, 0.015, 1, l, diag);
    case 6:
        return bski_layout_barabasi_albert(allocator, &g, BSK_ORDER_MORTON, 2, 1, l, diag);
    case 7:
        return bski_layout_watts_strogatz(allocator, &g, BSK_ORDER_MORTON, 4, 0.5, 1, l, diag);
    case 8:
        return bski_layout_combine(source, source, false, l, diag);
    case 9:
        return bski_layout_crop(source, 1, 5, 1, 6, NULL, l, diag);
    case 10:
        bski_layout_serialize(&source->tables, bytes);
        return bski_layout_deserialize(allocator, bytes, size, l, diag);
    case 11:
        return bski_layout_move_blocks(source, 1, &slot, &source->tables.slot_row[0],
                                       &source->tables.slot_col[0], l, diag);
    case 12:
        return bski_layout_evolve(source, value, 0.5, 1, keep, l, diag);
    default:
        *l = NULL;
        return bski_schedule_groups(&source->tables, true, 0, 4, 8, allocator, order, diag);
    }
}

static void test_failing_memory(void)
{
    unit_heap heap = {0};
    atomic_store(&heap.countdown, -1);
    bsk_allocator allocator = unit_allocator(&heap);
    bski_geometry g = {8, 8, 1, 1, 8, 8, 1};
    bsk_layout *source = NULL;
    bski_diag diag;
    CHECK_OK(bski_layout_random(&allocator, &g, BSK_ORDER_COL, 0.5, 3, &source, &diag));
    for (int which = 0; which < OPERATIONS; which++) {
        bool done = false;
        for (long after = 0; !done && after < 100; after++) {
            bsk_layout *l = (bsk_layout *)(uintptr_t)&heap;
            atomic_store(&heap.countdown, after);
            bsk_status status = operation(which, &allocator, source, &l, &diag);
            atomic_store(&heap.countdown, -1);
            done = status == BSK_OK;
            if (!done) {
                CHECK(status == BSK_E_NOMEM && !l && strstr(diag.text, "no memory"));
                CHECK(atomic_load(&heap.live) == 1);
            }
            CHECK(!done || after > 0);
            bsk_layout_release(&l);
        }
        CHECK(done && atomic_load(&heap.live) == 1);
    }
    bsk_layout_release(&source);
    CHECK(atomic_load(&heap.live) == 0);
}

/* --- references ------------------------------------------------------------------------ */

static void *hold_and_drop(void *argument)
{
    for (int i = 0; i < 10000; i++) {
        bsk_layout *mine = bsk_layout_retain(argument);
        bsk_layout_release(&mine);
    }
    bsk_layout *given = argument;
    bsk_layout_release(&given);
    return NULL;
}

static void test_references(void)
{
    unit_heap heap = {0};
    atomic_store(&heap.countdown, -1);
    bsk_allocator allocator = unit_allocator(&heap);
    bski_geometry g = {8, 8, 1, 1, 8, 8, 1};
    bski_diag diag;
    bsk_layout *l = NULL;
    pthread_t threads[4];
    CHECK_OK(bski_layout_random(&allocator, &g, BSK_ORDER_ROW, 0.5, 3, &l, &diag));
    for (int i = 0; i < 4; i++) {
        bsk_layout_retain(l);
        CHECK(pthread_create(&threads[i], NULL, hold_and_drop, l) == 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK(l->refs == 1 && atomic_load(&heap.live) == 1);
    bsk_layout_release(&l);
    CHECK(atomic_load(&heap.live) == 0);
}

int main(void)
{
    test_bad_params();
    test_bad_lists();
    test_bad_generators();
    test_bad_algebra();
    test_failing_memory();
    test_references();
    return unit_report();
}
