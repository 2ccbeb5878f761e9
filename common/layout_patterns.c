/* Layouts from dense data and from random numbers.
 *
 * Random choices use integers only, so that every machine makes the same layout. Each head has its
 * own stream of Philox words. */
#include <math.h>
#include <string.h>

#include "common/checked.h"
#include "common/dtype.h"
#include "common/layout.h"
#include "common/philox.h"

static bsk_status no_memory(bski_diag *diag, const char *what)
{
    return bski_diag_set(diag, BSK_E_NOMEM, "no memory for %s", what);
}

/* Completes a layout and hands it out. order GIVEN means row-major: there is no caller's list. */
static bsk_status pattern_finish(bsk_layout *l, bsk_order order, bsk_layout **layout,
                                 bski_diag *diag)
{
    bski_duplicate duplicate;
    if (order == BSK_ORDER_GIVEN)
        order = BSK_ORDER_ROW;
    bsk_status status = bski_layout_index(l, order, &duplicate, diag);
    if (status != BSK_OK) {
        if (duplicate.head >= 0)
            bski_diag_set(diag, BSK_E_INTERNAL, "block (%d, %d) of head %d was drawn twice",
                          duplicate.row, duplicate.col, duplicate.head);
        bski_layout_free(l);
        return diag->status;
    }
    *layout = l;
    return BSK_OK;
}

/* --- random numbers --------------------------------------------------------------------------- */

/* One stream per use and head, so that equal seeds do not repeat choices. */
typedef enum stream_use { USE_RANDOM, USE_BARABASI, USE_WATTS, USE_EVOLVE } stream_use;

typedef struct stream {
    uint64_t seed, offset, index;
    uint32_t words[4];
    int left;
} stream;

static stream stream_open(uint64_t seed, stream_use use, int32_t head)
{
    stream s = {.seed = seed, .offset = (uint64_t)use << 32 | (uint32_t)head};
    return s;
}

static uint32_t stream_next(stream *s)
{
    if (!s->left) {
        bski_philox(s->seed, s->offset, s->index++, s->words);
        s->left = 4;
    }
    return s->words[4 - s->left--];
}

/* Uniform in [0, bound), bound >= 1, without bias. */
static uint64_t stream_below(stream *s, uint64_t bound)
{
    if (bound <= UINT32_MAX) {
        /* the upper half of a product is uniform once the few short lower halves are redrawn */
        uint32_t b = (uint32_t)bound;
        uint64_t product = (uint64_t)stream_next(s) * b;
        if ((uint32_t)product < b)
            for (uint32_t limit = (0u - b) % b; (uint32_t)product < limit;)
                product = (uint64_t)stream_next(s) * b;
        return product >> 32;
    }
    uint64_t mask = bound - 1, value;
    for (int shift = 1; shift < 64; shift *= 2)
        mask |= mask >> shift;
    do {
        value = stream_next(s);
        value = (value << 32 | stream_next(s)) & mask;
    } while (value >= bound);
    return value;
}

/* --- a set of 64-bit numbers ------------------------------------------------------------------ */

/* Open addressing with room for a fixed number of keys. A removed key keeps its place. */
enum { KEY_ABSENT = 0, KEY_REMOVED = 1, KEY_PRESENT = 2 };

typedef struct key_set {
    uint64_t *key;
    uint8_t *state;
    uint64_t mask;
} key_set;

/* Room for `most` distinct keys, at most half full. */
static bool set_open(key_set *set, const bsk_allocator *allocator, uint64_t most)
{
    uint64_t places = (uint64_t)1 << bski_bits(2 * most + 2);
    memset(set, 0, sizeof *set);
    char *memory = bski_table_alloc(allocator, (int64_t)places, sizeof *set->key + 1);
    if (!memory)
        return false;
    set->key = (uint64_t *)memory;
    set->state = (uint8_t *)(set->key + places);
    set->mask = places - 1;
    memset(set->state, KEY_ABSENT, places);
    return true;
}

/* The place of key, or the free one where it would go. */
static uint64_t set_place(const key_set *set, uint64_t key)
{
    uint64_t hash = key * 0x9e3779b97f4a7c15u;
    uint64_t i = (hash ^ hash >> 29) & set->mask;
    while (set->state[i] != KEY_ABSENT && set->key[i] != key)
        i = (i + 1) & set->mask;
    return i;
}

static bool set_has(const key_set *set, uint64_t key)
{
    return set->state[set_place(set, key)] == KEY_PRESENT;
}

/* True if key was not there before. */
static bool set_add(key_set *set, uint64_t key)
{
    uint64_t i = set_place(set, key);
    if (set->state[i] == KEY_PRESENT)
        return false;
    set->key[i] = key;
    set->state[i] = KEY_PRESENT;
    return true;
}

static void set_remove(key_set *set, uint64_t key)
{
    uint64_t i = set_place(set, key);
    if (set->state[i] == KEY_PRESENT)
        set->state[i] = KEY_REMOVED;
}

/* --- drawing without replacement -------------------------------------------------------------- */

/* Floyd's method: for each of the last `count` numbers j, a number up to j, or j itself if that one
 * is taken. Every set of that size is equally likely, after exactly `count` draws. */

/* With a bit for every number; ascending. Draws the numbers to leave out if they are fewer. */
static bool draw_dense(stream *s, const bsk_allocator *allocator, uint64_t n, uint64_t count,
                       bski_pair *out)
{
    int64_t words = (int64_t)(n / 64 + 1);
    uint64_t *bits = bski_table_alloc(allocator, words, sizeof *bits);
    if (!bits)
        return false;
    memset(bits, 0, (size_t)words * sizeof *bits);
    bool invert = count > n / 2;
    for (uint64_t j = invert ? count : n - count; j < n; j++) {
        uint64_t t = stream_below(s, j + 1);
        if (bits[t / 64] >> t % 64 & 1)
            t = j;
        bits[t / 64] |= (uint64_t)1 << t % 64;
    }
    for (int64_t i = 0; i < words; i++) {
        uint64_t word = invert ? ~bits[i] : bits[i];
        for (; word; word &= word - 1) {
            uint64_t t = 64 * (uint64_t)i + (uint64_t)__builtin_ctzll(word);
            if (t < n) /* the inverted last word has bits beyond */
                (out++)->key = t;
        }
    }
    bski_table_free(allocator, bits);
    return true;
}

/* With a set of the drawn numbers; then sorted. */
static bool draw_sparse(stream *s, const bsk_allocator *allocator, uint64_t n, uint64_t count,
                        bski_pair *out)
{
    key_set set;
    if (!set_open(&set, allocator, count))
        return false;
    bski_pair *scratch = bski_table_alloc(allocator, (int64_t)count, sizeof *scratch);
    if (scratch) {
        for (uint64_t i = 0; i < count; i++) {
            uint64_t j = n - count + i, t = stream_below(s, j + 1);
            if (!set_add(&set, t)) {
                t = j;
                set_add(&set, t);
            }
            out[i] = (bski_pair){t, 0};
        }
        bski_sort_pairs(out, scratch, (int64_t)count, bski_bits(n));
        bski_table_free(allocator, scratch);
    }
    bski_table_free(allocator, set.key);
    return scratch != NULL;
}

/* Writes the keys of `count` distinct numbers below n, ascending. False without memory. */
static bool draw_distinct(stream *s, const bsk_allocator *allocator, uint64_t n, uint64_t count,
                          bski_pair *out)
{
    enum { SPARSE = 64 }; /* beyond this ratio a bit per number costs more than the set */
    if (!count)
        return true;
    return n / count < SPARSE ? draw_dense(s, allocator, n, count, out)
                              : draw_sparse(s, allocator, n, count, out);
}

/* --- selection -------------------------------------------------------------------------------- */

/* The count-th smallest key, 1 <= count <= n, by one digit at a time; *ties is how many keys of
 * that value belong to the count smallest. */
static uint64_t select_smallest(const uint64_t *key, int64_t n, int64_t count, int64_t *ties)
{
    uint64_t prefix = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        uint64_t known = shift == 56 ? 0 : ~(uint64_t)0 << (shift + 8);
        int64_t histogram[256] = {0};
        for (int64_t i = 0; i < n; i++)
            if ((key[i] & known) == prefix)
                histogram[key[i] >> shift & 255]++;
        uint64_t digit = 0;
        while (histogram[digit] < count)
            count -= histogram[digit++];
        prefix |= digit << shift;
    }
    *ties = count;
    return prefix;
}

/* --- from a dense matrix ---------------------------------------------------------------------- */

/* A dense matrix of some heads with its strides filled in. */
typedef struct dense {
    bsk_dtype dtype;
    const void *data;
    int64_t head_stride, row_stride, col_stride;
} dense;

static bsk_status dense_strides(const bsk_tensor *desc, int64_t strides[3], size_t element,
                                bski_diag *diag)
{
    int64_t reach = 1, step = 1;
    bool contiguous = true;
    for (int i = 0; i < desc->rank; i++) {
        contiguous &= desc->strides[i] == 0;
        strides[i] = desc->strides[i];
    }
    for (int i = desc->rank - 1; i >= 0; i--) {
        if (contiguous)
            strides[i] = step;
        int64_t span;
        size_t bytes;
        if (strides[i] < 0)
            return bski_diag_set(diag, BSK_E_INVALID,
                                 "desc.strides[%d] = %lld must not be negative", i,
                                 (long long)strides[i]);
        if (!bski_mul_i64(desc->dims[i] - 1, strides[i], &span) ||
            !bski_add_i64(reach, span, &reach) || !bski_mul_size((size_t)reach, element, &bytes) ||
            bytes > PTRDIFF_MAX || (contiguous && !bski_mul_i64(step, desc->dims[i], &step)))
            return bski_diag_set(diag, BSK_E_INVALID, "desc: its size overflows at dimension %d",
                                 i);
    }
    return BSK_OK;
}

static bsk_status dense_open(dense *d, const bski_geometry *g, const bsk_tensor *desc,
                             const void *data, bski_diag *diag)
{
    static const size_t element_of[BSK_DTYPE_COUNT] = {
        [BSK_F64] = 8, [BSK_F32] = 4, [BSK_F16] = 2, [BSK_BF16] = 2};
    if (!desc || !data)
        return bski_diag_set(diag, BSK_E_INVALID, "%s must not be NULL", desc ? "data" : "desc");
    size_t element = (unsigned)desc->dtype < BSK_DTYPE_COUNT ? element_of[desc->dtype] : 0;
    if (!element)
        return bski_diag_set(diag, BSK_E_INVALID, "desc.dtype = %d must be f64, f32, f16 or bf16",
                             (int)desc->dtype);
    if (desc->rank != 3 && !(desc->rank == 2 && g->heads == 1))
        return bski_diag_set(diag, BSK_E_INVALID, "desc.rank = %d must be 3%s", desc->rank,
                             g->heads == 1 ? " or 2" : " with several heads");
    const int64_t want[3] = {g->heads, g->rows, g->cols};
    for (int i = 0; i < desc->rank; i++)
        if (desc->dims[i] != want[i + 3 - desc->rank])
            return bski_diag_set(diag, BSK_E_INVALID, "desc.dims[%d] = %lld must be %lld", i,
                                 (long long)desc->dims[i], (long long)want[i + 3 - desc->rank]);
    int64_t strides[3] = {0};
    bsk_status status = dense_strides(desc, strides, element, diag);
    if (status != BSK_OK)
        return status;
    const int64_t *last = strides + desc->rank - 2;
    *d = (dense){desc->dtype, data, desc->rank == 3 ? strides[0] : 0, last[0], last[1]};
    return BSK_OK;
}

/* The norm of elements [rows) x [cols) from element `at` on; infinity if one is NaN. */
static double dense_norm(const dense *d, int64_t at, int64_t rows, int64_t cols, bsk_norm norm)
{
    double most = 0, sum = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            double v =
                fabs(bski_load(d->dtype, d->data, at + i * d->row_stride + j * d->col_stride));
            if (isnan(v))
                return INFINITY;
            most = v > most ? v : most;
            sum += v * v;
        }
    if (norm == BSK_NORM_MAX || isinf(most))
        return most;
    if (most == 0 || (most > 0x1p-400 && most < 0x1p400))
        return sqrt(sum);
    /* squares would overflow or vanish: scale first */
    sum = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            double v =
                bski_load(d->dtype, d->data, at + i * d->row_stride + j * d->col_stride) / most;
            sum += v * v;
        }
    return most * sqrt(sum);
}

/* The complement of a norm's bits: ascending keys are descending norms. */
static uint64_t norm_key(double norm)
{
    uint64_t bits;
    memcpy(&bits, &norm, sizeof bits);
    return ~bits;
}

static void dense_keys(const dense *d, const bski_geometry *g, int32_t head, bsk_norm norm,
                       uint64_t *key)
{
    for (int64_t r = 0; r < g->rows; r += g->block_rows) {
        int64_t rows = g->rows - r < g->block_rows ? g->rows - r : g->block_rows;
        for (int64_t c = 0; c < g->cols; c += g->block_cols) {
            int64_t cols = g->cols - c < g->block_cols ? g->cols - c : g->block_cols;
            int64_t at = head * d->head_stride + r * d->row_stride + c * d->col_stride;
            *key++ = norm_key(dense_norm(d, at, rows, cols, norm));
        }
    }
}

/* Marks the keys that are to be kept. */
static void keys_choose(const uint64_t *key, int64_t n, double threshold, int64_t keep,
                        uint8_t *mask)
{
    if (keep == 0) {
        memset(mask, 0, (size_t)n);
        return;
    }
    int64_t ties = 0;
    uint64_t limit = keep > 0 ? select_smallest(key, n, keep, &ties) : norm_key(threshold);
    for (int64_t i = 0; i < n; i++)
        mask[i] = key[i] < limit || (key[i] == limit && ties-- > 0);
}

bsk_status bski_layout_from_dense(const bsk_allocator *allocator, const bski_geometry *geometry,
                                  bsk_order order, const bsk_tensor *desc, const void *data,
                                  bsk_norm norm, double threshold, int64_t keep,
                                  bsk_layout **layout, bski_diag *diag)
{
    *layout = NULL;
    const bski_geometry *g = geometry;
    int64_t grid = (int64_t)g->grid_rows * g->grid_cols;
    dense d = {0};
    bsk_status status = dense_open(&d, g, desc, data, diag);
    if (status != BSK_OK)
        return status;
    if (norm != BSK_NORM_MAX && norm != BSK_NORM_L2)
        return bski_diag_set(diag, BSK_E_INVALID, "norm = %d must be in [%d, %d]", (int)norm,
                             BSK_NORM_MAX, BSK_NORM_L2);
    if (keep > grid)
        return bski_diag_set(diag, BSK_E_INVALID, "keep = %lld must be at most %lld",
                             (long long)keep, (long long)grid);
    if (keep < 0 && !(threshold >= 0))
        return bski_diag_set(diag, BSK_E_INVALID, "threshold = %g must be at least 0", threshold);
    int64_t all;
    uint8_t *mask = bski_mul_i64(grid, g->heads, &all) ? bski_table_alloc(allocator, all, 1) : NULL;
    uint64_t *key = mask ? bski_table_alloc(allocator, grid, sizeof *key) : NULL;
    if (key) {
        for (int32_t h = 0; h < g->heads; h++) {
            dense_keys(&d, g, h, norm, key);
            keys_choose(key, grid, threshold + 0.0, keep, mask + h * grid); /* -0 becomes 0 */
        }
        status = bski_layout_from_mask(allocator, g, order, mask, layout, diag);
    } else {
        status = no_memory(diag, "the norms of the blocks");
    }
    bski_table_free(allocator, key);
    bski_table_free(allocator, mask);
    return status;
}

/* --- random ----------------------------------------------------------------------------------- */

bsk_status bski_layout_random(const bsk_allocator *allocator, const bski_geometry *geometry,
                              bsk_order order, double density, uint64_t seed, bsk_layout **layout,
                              bski_diag *diag)
{
    *layout = NULL;
    const bski_geometry *g = geometry;
    int64_t grid = (int64_t)g->grid_rows * g->grid_cols, nnz;
    if (!(density >= 0 && density <= 1))
        return bski_diag_set(diag, BSK_E_INVALID, "density = %g must be in [0, 1]", density);
    /* grids beyond 2^53 blocks round up as doubles */
    double wanted = round(density * (double)grid);
    int64_t count = wanted < (double)grid ? (int64_t)wanted : grid;
    if (!bski_mul_i64(count, g->heads, &nnz))
        nnz = INT64_MAX;
    bsk_layout *l;
    bsk_status status = bski_layout_new(allocator, g, nnz, &l, diag);
    if (status != BSK_OK)
        return status;
    bski_pair *drawn = bski_table_alloc(allocator, count, sizeof *drawn);
    bool good = drawn != NULL;
    bski_writable w = bski_layout_writable(l);
    w.head_start[0] = 0;
    for (int32_t h = 0; h < g->heads && good; h++) {
        stream s = stream_open(seed, USE_RANDOM, h);
        good = draw_distinct(&s, allocator, (uint64_t)grid, (uint64_t)count, drawn);
        for (int64_t i = 0; i < count && good; i++) {
            w.slot_row[h * count + i] = (int32_t)(drawn[i].key / (uint32_t)g->grid_cols);
            w.slot_col[h * count + i] = (int32_t)(drawn[i].key % (uint32_t)g->grid_cols);
        }
        w.head_start[h + 1] = (h + 1) * count;
    }
    bski_table_free(allocator, drawn);
    if (!good) {
        bski_layout_free(l);
        return no_memory(diag, "the drawn blocks");
    }
    return pattern_finish(l, order, layout, diag);
}

/* --- graphs ----------------------------------------------------------------------------------- */

static bsk_status graph_check(const bski_geometry *g, bski_diag *diag)
{
    if (g->grid_rows != g->grid_cols)
        return bski_diag_set(diag, BSK_E_INVALID,
                             "params: the grid is %d x %d blocks but must be square", g->grid_rows,
                             g->grid_cols);
    return BSK_OK;
}

/* Blocks of one head, appended. */
typedef struct block_list {
    int32_t *row, *col;
    int64_t count;
} block_list;

static void blocks_add(block_list *b, int32_t row, int32_t col)
{
    b->row[b->count] = row;
    b->col[b->count++] = col;
}

static void blocks_add_both(block_list *b, int32_t row, int32_t col)
{
    blocks_add(b, row, col);
    blocks_add(b, col, row);
}

/* Draws the edges. ends lists each edge's two nodes, so that a uniform choice from it is a choice
 * by degree; met holds the last node that chose each node. */
static void barabasi_draw(stream *s, int32_t n, int32_t m, int32_t *ends, int32_t *met,
                          block_list *blocks)
{
    int64_t count = 0;
    for (int32_t i = 0; i < n; i++)
        met[i] = -1;
    for (int32_t node = m; node < n; node++) {
        int64_t known = count; /* edges of this node do not attract more of them */
        for (int32_t k = 0; k < m; k++) {
            int32_t target = k; /* the first node takes all m that there are */
            if (node > m)
                do
                    target = ends[stream_below(s, (uint64_t)known)];
                while (met[target] == node);
            met[target] = node;
            ends[count++] = node;
            ends[count++] = target;
            blocks_add_both(blocks, node, target);
        }
    }
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < m && i < m; j++)
            blocks_add(blocks, i, j);
    for (int32_t i = m; i < n; i++)
        blocks_add(blocks, i, i);
}

bsk_status bski_layout_barabasi_albert(const bsk_allocator *allocator,
                                       const bski_geometry *geometry, bsk_order order, int32_t m,
                                       uint64_t seed, bsk_layout **layout, bski_diag *diag)
{
    *layout = NULL;
    const bski_geometry *g = geometry;
    bsk_status status = graph_check(g, diag);
    if (status != BSK_OK)
        return status;
    int32_t n = g->grid_rows;
    if (m < 1 || m >= n)
        return bski_diag_set(diag, BSK_E_INVALID, "m = %d must be in [1, %d]", m, n - 1);
    int64_t ends_count = 2 * (int64_t)m * (n - m), nnz;
    int64_t count = ends_count + (n - m) + (int64_t)m * m;
    if (!bski_mul_i64(count, g->heads, &nnz))
        nnz = INT64_MAX;
    bsk_layout *l;
    status = bski_layout_new(allocator, g, nnz, &l, diag);
    if (status != BSK_OK)
        return status;
    int32_t *ends = bski_table_alloc(allocator, ends_count + n, sizeof *ends);
    if (!ends) {
        bski_layout_free(l);
        return no_memory(diag, "the graph");
    }
    bski_writable w = bski_layout_writable(l);
    w.head_start[0] = 0;
    for (int32_t h = 0; h < g->heads; h++) {
        stream s = stream_open(seed, USE_BARABASI, h);
        block_list blocks = {w.slot_row + h * count, w.slot_col + h * count, 0};
        barabasi_draw(&s, n, m, ends, ends + ends_count, &blocks);
        w.head_start[h + 1] = (h + 1) * count;
    }
    bski_table_free(allocator, ends);
    return pattern_finish(l, order, layout, diag);
}

/* An undirected edge as a number. */
static uint64_t edge_key(int32_t n, int32_t a, int32_t b)
{
    return a < b ? (uint64_t)a * (uint64_t)n + (uint64_t)b
                 : (uint64_t)b * (uint64_t)n + (uint64_t)a;
}

/* Makes the ring, then moves the far end of edges: rewire is the probability times 2^32. */
static void watts_draw(stream *s, int32_t n, int32_t k, uint64_t rewire, key_set *edges,
                       int32_t *degree)
{
    for (int32_t a = 0; a < n; a++) {
        degree[a] = k;
        for (int32_t j = 1; j <= k / 2; j++)
            set_add(edges, edge_key(n, a, (int32_t)(((int64_t)a + j) % n)));
    }
    for (int32_t j = 1; j <= k / 2; j++)
        for (int32_t a = 0; a < n; a++) {
            /* a node that has every neighbour keeps its edge */
            if (stream_next(s) >= rewire || degree[a] >= n - 1)
                continue;
            int32_t b = (int32_t)(((int64_t)a + j) % n), c;
            do
                c = (int32_t)stream_below(s, (uint64_t)n);
            while (c == a || set_has(edges, edge_key(n, a, c)));
            set_remove(edges, edge_key(n, a, b));
            set_add(edges, edge_key(n, a, c));
            degree[b]--;
            degree[c]++;
        }
}

bsk_status bski_layout_watts_strogatz(const bsk_allocator *allocator, const bski_geometry *geometry,
                                      bsk_order order, int32_t k, double p, uint64_t seed,
                                      bsk_layout **layout, bski_diag *diag)
{
    *layout = NULL;
    const bski_geometry *g = geometry;
    bsk_status status = graph_check(g, diag);
    if (status != BSK_OK)
        return status;
    int32_t n = g->grid_rows;
    if (k < 2 || k >= n || k % 2)
        return bski_diag_set(diag, BSK_E_INVALID, "k = %d must be even and in [2, %d]", k, n - 1);
    if (!(p >= 0 && p <= 1))
        return bski_diag_set(diag, BSK_E_INVALID, "p = %g must be in [0, 1]", p);
    int64_t count = (int64_t)n * k + n, nnz;
    if (!bski_mul_i64(count, g->heads, &nnz))
        nnz = INT64_MAX;
    bsk_layout *l;
    status = bski_layout_new(allocator, g, nnz, &l, diag);
    if (status != BSK_OK)
        return status;
    int32_t *degree = bski_table_alloc(allocator, n, sizeof *degree);
    bool good = degree != NULL;
    bski_writable w = bski_layout_writable(l);
    w.head_start[0] = 0;
    for (int32_t h = 0; h < g->heads && good; h++) {
        stream s = stream_open(seed, USE_WATTS, h);
        key_set edges;
        good = set_open(&edges, allocator, (uint64_t)n * (uint64_t)k); /* each is moved once */
        if (!good)
            break;
        watts_draw(&s, n, k, (uint64_t)(p * 0x1p32), &edges, degree);
        block_list blocks = {w.slot_row + h * count, w.slot_col + h * count, 0};
        for (uint64_t i = 0; i <= edges.mask; i++)
            if (edges.state[i] == KEY_PRESENT)
                blocks_add_both(&blocks, (int32_t)(edges.key[i] / (uint32_t)n),
                                (int32_t)(edges.key[i] % (uint32_t)n));
        for (int32_t i = 0; i < n; i++)
            blocks_add(&blocks, i, i);
        w.head_start[h + 1] = (h + 1) * count;
        bski_table_free(allocator, edges.key);
    }
    bski_table_free(allocator, degree);
    if (!good) {
        bski_layout_free(l);
        return no_memory(diag, "the graph");
    }
    return pattern_finish(l, order, layout, diag);
}

/* --- evolution -------------------------------------------------------------------------------- */

/* Ascending keys are ascending norms; NaN is infinite, and the zeros are equal. */
static uint64_t evolve_key(float norm)
{
    uint32_t bits = bski_f32_bits(isnan(norm) ? INFINITY : norm + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* Puts the blocks of head h with the `moved` smallest norms on drawn empty places: drawn[i].key is
 * a rank among the empty places of the head, ascending. Uses keep to mark what stays. */
static void evolve_move(const bsk_layout_tables *t, int32_t h, const uint64_t *key, int64_t moved,
                        const bski_pair *drawn, bski_writable *w, uint8_t *keep)
{
    int64_t ties, s = t->head_start[h], count = t->head_start[h + 1] - s;
    uint64_t limit = select_smallest(key, count, moved, &ties);
    const int64_t *start = t->row_start + h * ((int64_t)t->grid_rows + 1);
    uint64_t passed = 0; /* empty places before the current row */
    int32_t row = 0;
    int64_t i = 0, e = start[0];
    for (int64_t k = 0; k < count; k++, s++) {
        if (key[k] > limit || (key[k] == limit && ties-- <= 0))
            continue;
        uint64_t rank = drawn[i++].key;
        while (rank - passed >= (uint64_t)(t->grid_cols - (start[row + 1] - start[row]))) {
            passed += (uint64_t)(t->grid_cols - (start[row + 1] - start[row]));
            e = start[++row];
        }
        /* the column of an empty place is its rank in the row plus the kept blocks before it */
        while (e < start[row + 1] && t->row_col[e] - (e - start[row]) <= (int64_t)(rank - passed))
            e++;
        w->slot_row[s] = row;
        w->slot_col[s] = (int32_t)((int64_t)(rank - passed) + e - start[row]);
        keep[s] = 0;
    }
}

/* One head: how many blocks move, their keys, the draw. */
static bool evolve_head(const bsk_layout *source, int32_t h, const float *norm, double fraction,
                        uint64_t seed, bski_writable *w, uint8_t *keep)
{
    const bsk_layout_tables *t = &source->tables;
    const bsk_allocator *allocator = &source->allocator;
    int64_t first = t->head_start[h], count = t->head_start[h + 1] - first;
    int64_t empty = (int64_t)t->grid_rows * t->grid_cols - count;
    int64_t moved = (int64_t)floor(fraction * (double)count);
    if (moved > empty)
        moved = empty;
    if (!moved)
        return true;
    uint64_t *key = bski_table_alloc(allocator, count, sizeof *key);
    bski_pair *drawn = key ? bski_table_alloc(allocator, moved, sizeof *drawn) : NULL;
    stream s = stream_open(seed, USE_EVOLVE, h);
    bool good = drawn && draw_distinct(&s, allocator, (uint64_t)empty, (uint64_t)moved, drawn);
    if (good) {
        for (int64_t k = 0; k < count; k++)
            key[k] = evolve_key(norm[first + k]);
        evolve_move(t, h, key, moved, drawn, w, keep);
    }
    bski_table_free(allocator, drawn);
    bski_table_free(allocator, key);
    return good;
}

bsk_status bski_layout_evolve(const bsk_layout *source, const float *norm, double fraction,
                              uint64_t seed, uint8_t *keep, bsk_layout **layout, bski_diag *diag)
{
    *layout = NULL;
    const bsk_layout_tables *t = &source->tables;
    if (!(fraction >= 0 && fraction <= 1))
        return bski_diag_set(diag, BSK_E_INVALID, "fraction = %g must be in [0, 1]", fraction);
    if (t->nnz && (!norm || !keep))
        return bski_diag_set(diag, BSK_E_INVALID, "%s must not be NULL", norm ? "keep" : "norm");
    bski_geometry g = bski_layout_geometry(source);
    bsk_layout *l;
    bsk_status status = bski_layout_new(&source->allocator, &g, t->nnz, &l, diag);
    if (status != BSK_OK)
        return status;
    uint8_t *stays = bski_table_alloc(&source->allocator, t->nnz, 1);
    bool good = stays != NULL;
    if (good) {
        bski_writable w = bski_layout_writable(l);
        size_t bytes = (size_t)t->nnz * sizeof *w.slot_row;
        memcpy(w.head_start, t->head_start, ((size_t)t->heads + 1) * sizeof *w.head_start);
        memcpy(w.slot_row, t->slot_row, bytes);
        memcpy(w.slot_col, t->slot_col, bytes);
        memset(stays, 1, (size_t)t->nnz);
        for (int32_t h = 0; h < t->heads && good; h++)
            good = evolve_head(source, h, norm, fraction, seed, &w, stays);
    }
    if (good) {
        /* blocks keep their slots, whatever their order was */
        bski_duplicate duplicate;
        status = bski_layout_index(l, BSK_ORDER_GIVEN, &duplicate, diag);
        if (status != BSK_OK && duplicate.head >= 0)
            bski_diag_set(diag, BSK_E_INTERNAL, "block (%d, %d) of head %d was drawn twice",
                          duplicate.row, duplicate.col, duplicate.head);
    } else {
        status = no_memory(diag, "the new positions");
    }
    if (status == BSK_OK) {
        if (t->nnz)
            memcpy(keep, stays, (size_t)t->nnz);
        *layout = l;
    } else {
        bski_layout_free(l);
    }
    bski_table_free(&source->allocator, stays);
    return status;
}
