/* Layouts from data and random numbers, evolution, schedules, speed. The builder itself:
 * test_layout.c; bad input: test_layout_errors.c. */
#include "tests/unit/unit.h"

#include <math.h>
#include <stdbool.h>
#include <time.h>

#include "common/dtype.h"
#include "common/layout.h"
#include "tests/unit/layout_twin.h"

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

#define CHECK_SAME(call)                                                                           \
    do {                                                                                           \
        const char *why_ = (call);                                                                 \
        unit_check(!why_, __FILE__, __LINE__, #call, why_ ? why_ : "");                            \
    } while (0)

static bsk_layout_params grid_params(int64_t grid_rows, int64_t grid_cols, int32_t heads)
{
    bsk_layout_params p = BSK_INIT(bsk_layout_params);
    p.rows = grid_rows;
    p.cols = grid_cols;
    p.block_rows = p.block_cols = 1;
    p.heads = heads;
    return p;
}

/* Fingerprint of the blocks by slot. */
static uint32_t fingerprint(const bsk_layout *l)
{
    const bsk_layout_tables *t = &l->tables;
    size_t bytes = (size_t)t->nnz * 4;
    return bski_crc32c((const uint8_t *)t->slot_row, bytes) ^
           bski_crc32c((const uint8_t *)t->slot_col, bytes) * 3;
}

/* --- from_dense ------------------------------------------------------------------------------- */

/* 2 heads of 5 x 7 elements in blocks of 2 x 3: a grid of 3 x 3 with ragged edges. */
enum { D_HEADS = 2, D_ROWS = 5, D_COLS = 7 };

static double dense_value(int h, int r, int c)
{
    /* small integers: exact in every type; block norms differ except for two pairs */
    return h == 0 ? (r / 2) * 3 + c / 3 + 1 : (r + c) % 2 ? -4 : 2;
}

/* The matrix in one type, with padded strides. */
static void *dense_make(bsk_dtype dtype, bsk_tensor *desc, bool padded)
{
    *desc = bsk_tensor_3d(dtype, D_HEADS, D_ROWS, D_COLS);
    int64_t row = padded ? 2 * D_COLS + 3 : D_COLS, col = padded ? 2 : 1;
    int64_t head = padded ? D_ROWS * row + 5 : D_ROWS * D_COLS;
    if (padded) {
        desc->strides[0] = head;
        desc->strides[1] = row;
        desc->strides[2] = col;
    }
    void *data = make(D_HEADS * head, 8);
    for (int64_t i = 0; i < D_HEADS * head; i++)
        bski_store(dtype, data, i, 1000); /* between the elements: must not count */
    for (int h = 0; h < D_HEADS; h++)
        for (int r = 0; r < D_ROWS; r++)
            for (int c = 0; c < D_COLS; c++)
                bski_store(dtype, data, h * head + r * row + c * col, dense_value(h, r, c));
    return data;
}

static void check_dense_mask(const bsk_layout_params *p, const bsk_tensor *desc, const void *data,
                             bsk_norm norm, double threshold, int64_t keep, const char *want)
{
    bsk_layout *l = NULL;
    uint8_t mask[18];
    char got[19] = "";
    CHECK_OK(bsk_layout_from_dense(NULL, p, desc, data, norm, threshold, keep, &l));
    if (!CHECK(l))
        return;
    CHECK_SAME(twin_invariants(&l->tables));
    CHECK_OK(bsk_layout_to_mask(l, mask));
    for (int i = 0; i < 18; i++)
        got[i] = mask[i] ? 'x' : '.';
    CHECK_TEXT(got, want);
    bsk_layout_release(&l);
}

static void test_dense(void)
{
    static const bsk_dtype dtypes[] = {BSK_F64, BSK_F32, BSK_F16, BSK_BF16};
    bsk_layout_params p = BSK_INIT(bsk_layout_params);
    p.rows = D_ROWS;
    p.cols = D_COLS;
    p.block_rows = 2;
    p.block_cols = 3;
    p.heads = D_HEADS;
    for (size_t i = 0; i < 2 * UNIT_COUNT(dtypes); i++) {
        bsk_tensor desc;
        void *data = dense_make(dtypes[i / 2], &desc, i % 2);
        /* head 0: largest magnitudes 1 to 9 by block; head 1: 4, but 2 in the last corner */
        check_dense_mask(&p, &desc, data, BSK_NORM_MAX, 0, -1, "xxxxxxxxxxxxxxxxxx");
        check_dense_mask(&p, &desc, data, BSK_NORM_MAX, 4, -1, "....xxxxx.........");
        check_dense_mask(&p, &desc, data, BSK_NORM_MAX, 3.5, -1, "...xxxxxxxxxxxxxx.");
        check_dense_mask(&p, &desc, data, BSK_NORM_MAX, INFINITY, -1, "..................");
        check_dense_mask(&p, &desc, data, BSK_NORM_MAX, NAN, 2, ".......xxxx.......");
        check_dense_mask(&p, &desc, data, BSK_NORM_MAX, 0, 0, "..................");
        check_dense_mask(&p, &desc, data, BSK_NORM_MAX, 0, 9, "xxxxxxxxxxxxxxxxxx");
        /* head 0 has 6 6 2, 6 6 2, 3 3 1 elements by block: over 144 are 6 * 25, 3 * 49, 3 * 64 */
        check_dense_mask(&p, &desc, data, BSK_NORM_L2, 12, -1, "....x.xx..........");
        check_dense_mask(&p, &desc, data, BSK_NORM_L2, 0, 2, "....x..x.xx.......");
        free(data);
    }

    /* NaN is infinite; far exponents neither overflow nor vanish in the 2-norm */
    const double far[12] = {0, NAN, 1e300,  1e-300, 0,     -INFINITY,
                            3, 4,   3e-310, 4e-310, 3e200, 4e200};
    bsk_layout_params q = grid_params(2, 6, 1);
    q.block_cols = 2;
    bsk_tensor desc = bsk_tensor_2d(BSK_F64, 2, 6);
    const struct {
        double threshold;
        int64_t keep;
        const char *want;
    } cases[] = {
        {0, -1, "xxxxxx"},       {4.9e-310, -1, "xxxxxx"}, {5.1e-310, -1, "xxxx.x"},
        {4.9, -1, "xxxx.x"},     {5, -1, "xxx..x"},        {4.9e200, -1, "xxx..x"},
        {5.1e200, -1, "xxx..."}, {1e306, -1, "x.x..."},    {0, 1, "x....."},
        {0, 3, "xxx..."},
    };
    for (size_t i = 0; i < UNIT_COUNT(cases); i++) {
        bsk_layout *l = NULL;
        uint8_t mask[6];
        char got[7] = "";
        CHECK_OK(bsk_layout_from_dense(NULL, &q, &desc, far, BSK_NORM_L2, cases[i].threshold,
                                       cases[i].keep, &l));
        CHECK_OK(bsk_layout_to_mask(l, mask));
        for (int k = 0; k < 6; k++)
            got[k] = mask[k] ? 'x' : '.';
        CHECK_TEXT(got, cases[i].want);
        bsk_layout_release(&l);
    }
}

/* --- random patterns -------------------------------------------------------------------------- */

static void test_random(void)
{
    static const double densities[] = {0, 0.001, 0.1, 0.3, 0.5, 0.77, 0.999, 1};
    for (size_t d = 0; d < UNIT_COUNT(densities); d++)
        for (int order = BSK_ORDER_ROW; order <= BSK_ORDER_GIVEN; order++) {
            bsk_layout_params p = grid_params(37, 53, 3);
            bsk_layout *l = NULL, *again = NULL, *other = NULL;
            p.order = (bsk_order)order;
            CHECK_OK(bsk_layout_random(NULL, &p, densities[d], 5, &l));
            CHECK_OK(bsk_layout_random(NULL, &p, densities[d], 5, &again));
            CHECK_OK(bsk_layout_random(NULL, &p, densities[d], 6, &other));
            CHECK_SAME(twin_invariants(&l->tables));
            CHECK_SAME(twin_same(&l->tables, &again->tables));
            int64_t want = llround(densities[d] * 37 * 53);
            for (int h = 0; h < 3; h++)
                CHECK(l->tables.head_start[h + 1] - l->tables.head_start[h] == want);
            if (want > 0 && want < 37 * 53) {
                CHECK(twin_same(&l->tables, &other->tables) != NULL);
                /* heads differ too */
                CHECK(memcmp(l->tables.row_col, l->tables.row_col + want, (size_t)want * 4) != 0);
            }
            bsk_layout_release(&l);
            bsk_layout_release(&again);
            bsk_layout_release(&other);
        }
}

/* Every cell is as likely as any other, for each way of drawing. */
static void test_random_uniform(void)
{
    static const struct {
        int32_t rows, cols, rounds;
        double density;
    } cases[] = {{4, 5, 4000, 0.3}, {4, 5, 4000, 0.7}, {16, 16, 20000, 0.0078125}};
    for (size_t i = 0; i < UNIT_COUNT(cases); i++) {
        int32_t cells = cases[i].rows * cases[i].cols, rounds = cases[i].rounds;
        int32_t *hits = make(cells, sizeof *hits);
        bsk_layout_params p = grid_params(cases[i].rows, cases[i].cols, 1);
        int64_t count = 0;
        for (int32_t seed = 0; seed < rounds; seed++) {
            bsk_layout *l = NULL;
            bsk_layout_random(NULL, &p, cases[i].density, (uint64_t)seed, &l);
            count = l->tables.nnz;
            for (int64_t s = 0; s < count; s++)
                hits[l->tables.slot_row[s] * cases[i].cols + l->tables.slot_col[s]]++;
            bsk_layout_release(&l);
        }
        double rate = (double)count / cells, mean = rounds * rate, chi = 0;
        for (int32_t c = 0; c < cells; c++)
            chi += (hits[c] - mean) * (hits[c] - mean) / (mean * (1 - rate));
        /* about chi-squared with `cells` degrees; six standard deviations */
        CHECK(fabs(chi - cells) < 6 * sqrt(2.0 * cells));
        free(hits);
    }
}

/* Grids far larger than what is kept. */
static void test_large_grids(void)
{
    enum { GRID = 100000, COUNT = 1000 };
    int32_t *row = make(COUNT, 4), *col = make(COUNT, 4);
    bsk_layout_params p = grid_params(GRID, GRID, 1);
    bsk_layout *l = NULL;
    for (int32_t i = 0; i < COUNT; i++) {
        row[i] = (int32_t)((int64_t)i * 7919 % GRID);
        col[i] = (int32_t)((int64_t)i * 104729 % GRID);
    }
    for (int order = 0; order <= BSK_ORDER_GIVEN; order++) {
        p.order = (bsk_order)order;
        CHECK_OK(bsk_layout_from_coo(NULL, &p, COUNT, NULL, row, col, &l));
        CHECK(l->tables.nnz == COUNT);
        CHECK_SAME(twin_invariants(&l->tables));
        for (int32_t i = 0; i < COUNT; i++)
            CHECK(bski_layout_find(&l->tables, 0, row[i], col[i]) >= 0);
        bsk_layout_release(&l);
    }
    CHECK_OK(bsk_layout_random(NULL, &p, 1e-7, 3, &l));
    CHECK(l->tables.nnz == 1000);
    CHECK_SAME(twin_invariants(&l->tables));
    bsk_layout_release(&l);
    free(row), free(col);
}

/* Symmetric, with the whole diagonal. */
static void check_graph(const bsk_layout *l)
{
    const bsk_layout_tables *t = &l->tables;
    bsk_layout *turned = NULL;
    CHECK_SAME(twin_invariants(t));
    CHECK_OK(bsk_layout_transpose(l, &turned));
    CHECK(!memcmp(t->row_col, turned->tables.row_col, (size_t)t->nnz * 4));
    CHECK(!memcmp(t->row_start, turned->tables.row_start,
                  (size_t)t->heads * ((size_t)t->grid_rows + 1) * 8));
    for (int32_t h = 0; h < t->heads; h++)
        for (int32_t i = 0; i < t->grid_rows; i++)
            CHECK(bski_layout_find(t, h, i, i) >= 0);
    bsk_layout_release(&turned);
}

static void test_barabasi(void)
{
    static const int32_t sizes[][2] = {{2, 1}, {3, 2}, {20, 1}, {20, 19}, {50, 25}, {160, 5}};
    for (size_t i = 0; i < UNIT_COUNT(sizes); i++) {
        int32_t n = sizes[i][0], m = sizes[i][1];
        bsk_layout_params p = grid_params(n, n, 2);
        bsk_layout *l = NULL, *again = NULL;
        CHECK_OK(bsk_layout_barabasi_albert(NULL, &p, m, 11, &l));
        CHECK_OK(bsk_layout_barabasi_albert(NULL, &p, m, 11, &again));
        check_graph(l);
        CHECK_SAME(twin_same(&l->tables, &again->tables));
        int64_t each = 2 * (int64_t)m * (n - m) + (n - m) + (int64_t)m * m;
        CHECK(l->tables.head_start[1] == each && l->tables.nnz == 2 * each);
        for (int32_t r = 0; r < n; r++) {
            int32_t earlier = 0; /* each new node chose m earlier ones */
            for (int32_t c = 0; c < r; c++)
                earlier += bski_layout_find(&l->tables, 1, r, c) >= 0;
            CHECK(earlier == (r < m ? r : m));
        }
        bsk_layout_release(&l);
        bsk_layout_release(&again);
    }
    /* attachment by degree: early nodes end up with many times the degree of late ones */
    bsk_layout_params p = grid_params(2000, 2000, 1);
    bsk_layout *l = NULL;
    CHECK_OK(bsk_layout_barabasi_albert(NULL, &p, 3, 1, &l));
    const int64_t *start = l->tables.row_start;
    CHECK(start[20] - start[0] > 5 * (start[2000] - start[1980]));
    bsk_layout_release(&l);
}

static void test_watts(void)
{
    static const int32_t sizes[][2] = {{3, 2}, {10, 4}, {11, 10}, {40, 38}, {200, 6}};
    static const double rewire[] = {0, 0.2, 1};
    for (size_t i = 0; i < UNIT_COUNT(sizes); i++)
        for (size_t r = 0; r < UNIT_COUNT(rewire); r++) {
            int32_t n = sizes[i][0], k = sizes[i][1];
            bsk_layout_params p = grid_params(n, n, 2);
            bsk_layout *l = NULL;
            CHECK_OK(bsk_layout_watts_strogatz(NULL, &p, k, rewire[r], 21, &l));
            check_graph(l);
            CHECK(l->tables.nnz == 2 * ((int64_t)n * k + n));
            int64_t near = 0;
            for (int32_t a = 0; a < n; a++)
                for (int32_t j = 1; j <= k / 2; j++)
                    near += bski_layout_find(&l->tables, 0, a, (a + j) % n) >= 0;
            if (r == 0)
                CHECK(near == (int64_t)n * k / 2);
            if (n == 200) /* about 80 % and 0 % of 600 edges stay on the ring */
                CHECK(r == 0 || (r == 1 ? near > 420 && near < 540 : near < 60));
            bsk_layout_release(&l);
        }
}

/* The same numbers on every machine, for ever. */
static void test_fixed_patterns(void)
{
    bsk_layout_params p = grid_params(64, 64, 1);
    bsk_layout *l[4] = {NULL, NULL, NULL, NULL};
    CHECK_OK(bsk_layout_random(NULL, &p, 0.1, 7, &l[0]));
    CHECK_OK(bsk_layout_random(NULL, &p, 0.01, 7, &l[1]));
    CHECK_OK(bsk_layout_barabasi_albert(NULL, &p, 5, 7, &l[2]));
    CHECK_OK(bsk_layout_watts_strogatz(NULL, &p, 6, 0.2, 7, &l[3]));
    static const uint32_t want[4] = {0x8fb856a2, 0xb17269c8, 0xb5f89bab, 0x18c438c1};
    for (int i = 0; i < 4; i++) {
        char text[32], expected[32];
        snprintf(text, sizeof text, "%08x", fingerprint(l[i]));
        snprintf(expected, sizeof expected, "%08x", want[i]);
        CHECK_TEXT(text, expected);
        bsk_layout_release(&l[i]);
    }
}

/* --- evolution -------------------------------------------------------------------------------- */

static void check_evolve(int32_t rows, int32_t cols, double density, double fraction, bool ties)
{
    bsk_layout_params p = grid_params(rows, cols, 2);
    bsk_layout *l = NULL, *evolved = NULL, *again = NULL;
    p.order = BSK_ORDER_MORTON;
    CHECK_OK(bsk_layout_random(NULL, &p, density, 9, &l));
    const bsk_layout_tables *t = &l->tables;
    float *norm = make(t->nnz, sizeof *norm);
    uint8_t *keep = make(t->nnz, 1), *keep_again = make(t->nnz, 1);
    for (int64_t s = 0; s < t->nnz; s++)
        norm[s] = ties ? (s % 6 == 3 ? -0.0f : (float)(s % 3)) : (float)((s * 7919) % 10007);
    if (t->nnz > 2)
        norm[1] = NAN;
    CHECK_OK(bsk_pattern_evolve(l, norm, fraction, 4, keep, &evolved));
    CHECK_OK(bsk_pattern_evolve(l, norm, fraction, 4, keep_again, &again));
    CHECK_SAME(twin_same(&evolved->tables, &again->tables));
    CHECK(!memcmp(keep, keep_again, (size_t)t->nnz));
    const bsk_layout_tables *e = &evolved->tables;
    CHECK_SAME(twin_invariants(e));
    CHECK(e->nnz == t->nnz && !memcmp(e->head_start, t->head_start, 3 * sizeof(int64_t)));
    for (int32_t h = 0; h < 2; h++) {
        int64_t count = t->head_start[h + 1] - t->head_start[h], moved = 0;
        int64_t want = (int64_t)(fraction * (double)count), empty = (int64_t)rows * cols - count;
        for (int64_t s = t->head_start[h]; s < t->head_start[h + 1]; s++) {
            if (keep[s]) {
                CHECK(e->slot_row[s] == t->slot_row[s] && e->slot_col[s] == t->slot_col[s]);
                continue;
            }
            moved++;
            CHECK(bski_layout_find(t, h, e->slot_row[s], e->slot_col[s]) == -1);
            /* nothing that stays is smaller, or equal with a lower slot */
            for (int64_t k = t->head_start[h]; k < t->head_start[h + 1]; k++)
                if (keep[k] && !isnan(norm[k]))
                    if (isnan(norm[s]) || norm[k] < norm[s] || (norm[k] == norm[s] && k < s)) {
                        CHECK(!"a smaller block stays");
                        break;
                    }
        }
        CHECK(moved == (want < empty ? want : empty));
    }
    bsk_layout_release(&l);
    bsk_layout_release(&evolved);
    bsk_layout_release(&again);
    free(norm), free(keep), free(keep_again);
}

static void test_evolve(void)
{
    static const double densities[] = {0, 0.02, 0.2, 0.5, 0.9, 1};
    static const double fractions[] = {0, 0.1, 0.5, 1};
    for (size_t d = 0; d < UNIT_COUNT(densities); d++)
        for (size_t f = 0; f < UNIT_COUNT(fractions); f++)
            for (int ties = 0; ties < 2; ties++) {
                check_evolve(13, 17, densities[d], fractions[f], ties);
                check_evolve(1, 40, densities[d], fractions[f], ties);
                check_evolve(40, 1, densities[d], fractions[f], ties);
            }
    check_evolve(3000, 3000, 1e-5, 0.5, false); /* drawn with a set */

    bsk_layout_params p = grid_params(4, 4, 1);
    bsk_layout *l = NULL, *e = NULL;
    uint8_t keep[8];
    float norm[8] = {0};
    CHECK_OK(bsk_layout_random(NULL, &p, 0.5, 1, &l));
    memset(keep, 0x33, sizeof keep);
    CHECK_ERROR(bsk_pattern_evolve(l, norm, 1.01, 1, keep, &e), BSK_E_INVALID, "fraction = 1.01");
    CHECK_ERROR(bsk_pattern_evolve(l, norm, NAN, 1, keep, &e), BSK_E_INVALID, "fraction");
    CHECK_ERROR(bsk_pattern_evolve(l, NULL, 0.5, 1, keep, &e), BSK_E_INVALID, "norm");
    CHECK_ERROR(bsk_pattern_evolve(l, norm, 0.5, 1, NULL, &e), BSK_E_INVALID, "keep");
    CHECK_ERROR(bsk_pattern_evolve(NULL, norm, 0.5, 1, keep, &e), BSK_E_INVALID, "layout");
    CHECK_ERROR(bsk_pattern_evolve(l, norm, 0.5, 1, keep, NULL), BSK_E_INVALID, "evolved");
    CHECK(!e && keep[0] == 0x33 && keep[7] == 0x33);
    bsk_layout_release(&l);
}

/* --- schedules -------------------------------------------------------------------------------- */

static void check_permutation(const int32_t *list, int64_t first, int64_t end)
{
    uint8_t *seen = make(end - first, 1);
    bool good = true;
    for (int64_t i = first; i < end; i++)
        good = good && list[i] >= first && list[i] < end && !seen[list[i] - first]++;
    CHECK(good);
    free(seen);
}

static void check_groups(const bsk_layout_tables *t, bool by_cols, const bsk_allocator *allocator)
{
    bski_lines lines = bski_layout_lines(t, by_cols);
    int32_t *order = make(lines.grid, sizeof *order);
    bski_diag diag;
    for (int32_t h = 0; h < t->heads; h++)
        for (int32_t group = 1; group < 9; group += 3) {
            CHECK_OK(bski_schedule_groups(t, by_cols, h, group, 8, allocator, order, &diag));
            check_permutation(order, 0, lines.grid);
        }
    free(order);
}

/* Lines that come from few templates, scattered: grouping must find them all. */
static void check_templates(bool by_cols, const bsk_allocator *allocator)
{
    enum { GRID = 64, KINDS = 16, GROUP = 4, LENGTH = 6 };
    int32_t row[GRID * LENGTH], col[GRID * LENGTH], order[GRID];
    bsk_layout_params p = grid_params(GRID, GRID, 1);
    bsk_layout *l = NULL;
    int64_t cost = 0, before = 0;
    bski_diag diag;
    for (int32_t i = 0; i < GRID; i++)
        for (int32_t k = 0; k < LENGTH; k++) {
            int32_t at = ((i % KINDS) * 11 + k * k * 5) % GRID;
            (by_cols ? col : row)[i * LENGTH + k] = i;
            (by_cols ? row : col)[i * LENGTH + k] = at;
        }
    CHECK_OK(bsk_layout_from_coo(NULL, &p, GRID * LENGTH, NULL, row, col, &l));
    CHECK_OK(
        bski_schedule_groups(&l->tables, by_cols, 0, GROUP, 2 * GROUP, allocator, order, &diag));
    CHECK_OK(
        bski_schedule_group_cost(&l->tables, by_cols, 0, GROUP, NULL, allocator, &before, &diag));
    CHECK_OK(
        bski_schedule_group_cost(&l->tables, by_cols, 0, GROUP, order, allocator, &cost, &diag));
    CHECK(cost == KINDS * LENGTH && before > 2 * cost);
    for (int32_t i = 0; i < GRID; i++)
        CHECK(order[i] % KINDS == order[i / GROUP * GROUP] % KINDS);
    bsk_layout_release(&l);
}

static void test_schedules(void)
{
    static const double densities[] = {0, 0.05, 0.4, 1};
    unit_heap heap = {0};
    atomic_store(&heap.countdown, -1);
    bsk_allocator allocator = unit_allocator(&heap);
    for (size_t d = 0; d < UNIT_COUNT(densities); d++)
        for (int shape = 0; shape < 4; shape++) {
            static const int32_t shapes[4][3] = {{1, 1, 1}, {29, 7, 3}, {5, 33, 2}, {40, 40, 1}};
            bsk_layout_params p = grid_params(shapes[shape][0], shapes[shape][1], shapes[shape][2]);
            bsk_layout *l = NULL;
            p.order = BSK_ORDER_COL;
            CHECK_OK(bsk_layout_random(NULL, &p, densities[d], 31, &l));
            for (int by_cols = 0; by_cols < 2; by_cols++)
                check_groups(&l->tables, by_cols, &allocator);
            bsk_layout_release(&l);
        }
    check_templates(false, &allocator);
    check_templates(true, &allocator);
    CHECK(atomic_load(&heap.live) == 0);
}

/* --- speed ------------------------------------------------------------------------------------ */

/* Processor time: what else the machine does must not count. */
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The target is 100 ms; slower machines get more. Builds that are slow on purpose only report. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer) ||                         \
    __has_feature(thread_sanitizer)
#define SLOW_BUILD 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
#define SLOW_BUILD 1
#endif
#ifdef SLOW_BUILD
static const double speed_limit = 60;
#else
static const double speed_limit = 0.4;
#endif

/* 4096 x 4096 blocks at 10 %, from a mask. */
static void test_speed(double limit)
{
    enum { GRID = 4096 };
    bsk_layout_params p = grid_params(GRID, GRID, 1);
    bsk_layout *l = NULL;
    uint8_t *mask = make((int64_t)GRID * GRID, 1);
    double best = 1e9, start = seconds();
    CHECK_OK(bsk_layout_random(NULL, &p, 0.1, 1, &l));
    printf("random 4096 x 4096 at 10 %%: %.1f ms\n", (seconds() - start) * 1e3);
    CHECK_OK(bsk_layout_to_mask(l, mask));
    bsk_layout_release(&l);
    for (int i = 0; i < 5; i++) {
        start = seconds();
        CHECK_OK(bsk_layout_from_mask(NULL, &p, mask, &l));
        double took = seconds() - start;
        best = took < best ? took : best;
        CHECK(l->tables.nnz == 1677722);
        bsk_layout_release(&l);
    }
    printf("from_mask 4096 x 4096 at 10 %%: %.1f ms\n", best * 1e3);
    CHECK(best < limit);
    free(mask);
}

int main(int argc, char **argv)
{
    test_dense();
    test_random();
    test_random_uniform();
    test_large_grids();
    test_barabasi();
    test_watts();
    test_fixed_patterns();
    test_evolve();
    test_schedules();
    test_speed(argc > 1 && !strcmp(argv[1], "slow") ? 600 : speed_limit); /* slow: for valgrind */
    return unit_report();
}
