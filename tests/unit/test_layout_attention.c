/* Attention patterns against their formulas, entry by entry, and bit masks. */
#include "tests/unit/unit.h"

#include <stdbool.h>

#include "common/layout.h"
#include "tests/unit/layout_twin.h"

static void *make(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count + 1, size);
    if (!memory)
        abort();
    return memory;
}

static bsk_layout_params params_of(int64_t rows, int64_t cols, int32_t block_rows,
                                   int32_t block_cols, int32_t heads)
{
    bsk_layout_params p = BSK_INIT(bsk_layout_params);
    p.rows = rows;
    p.cols = cols;
    p.block_rows = block_rows;
    p.block_cols = block_cols;
    p.heads = heads;
    return p;
}

/* Whether block (i, j) of a head is kept, by formula. */
typedef bool (*formula)(const void *about, const bski_geometry *g, int32_t head, int64_t i,
                        int64_t j);

/* Compares every block with the formula, and releases the layout. */
static void check_blocks(bsk_layout *l, formula kept, const void *about, int line)
{
    if (!unit_check(l != NULL, __FILE__, line, "a layout", ""))
        return;
    const bski_geometry g = bski_layout_geometry(l);
    const char *why = twin_invariants(&l->tables);
    unit_check(!why, __FILE__, line, "invariants", why ? why : "");
    int64_t wrong = 0;
    for (int32_t h = 0; h < g.heads; h++)
        for (int32_t i = 0; i < g.grid_rows; i++)
            for (int32_t j = 0; j < g.grid_cols; j++)
                wrong += (bski_layout_find(&l->tables, h, i, j) >= 0) != kept(about, &g, h, i, j);
    unit_check(wrong == 0, __FILE__, line, "blocks as the formula", "");
    bsk_layout_release(&l);
}

#define CHECK_BLOCKS(call, kept, about)                                                            \
    do {                                                                                           \
        bsk_layout *layout = NULL;                                                                 \
        CHECK_OK(call);                                                                            \
        check_blocks(layout, kept, about, __LINE__);                                               \
    } while (0)

/* --- patterns of elements --------------------------------------------------------------------- */

typedef struct elements {
    int64_t sink, window, shift, stride;
} elements;

static bool element_visible(const elements *e, const bski_geometry *g, int64_t i, int64_t j)
{
    if (e->stride) {
        const int64_t run = g->rows / e->stride; /* from lines to times */
        const int64_t ti = i % run * e->stride + i / run, tj = j % run * e->stride + j / run;
        return tj <= ti && (ti - tj) % e->stride == 0;
    }
    const int64_t distance = i + e->shift - j;
    return distance >= 0 && (!e->window || distance < e->window || j < e->sink);
}

static bool any_visible(const void *about, const bski_geometry *g, int32_t head, int64_t i,
                        int64_t j)
{
    (void)head;
    for (int64_t r = i * g->block_rows; r < (i + 1) * g->block_rows && r < g->rows; r++)
        for (int64_t c = j * g->block_cols; c < (j + 1) * g->block_cols && c < g->cols; c++)
            if (element_visible(about, g, r, c))
                return true;
    return false;
}

static void test_elements(void)
{
    static const int32_t sizes[][4] = {
        {24, 24, 4, 4}, {21, 30, 5, 4}, {30, 17, 4, 7}, {9, 9, 16, 2}};
    static const int64_t windows[] = {1, 3, 4, 8, 13, 100}, shifts[] = {0, 6, -5, 40, -40};
    for (size_t s = 0; s < UNIT_COUNT(sizes); s++) {
        const bsk_layout_params p =
            params_of(sizes[s][0], sizes[s][1], sizes[s][2], sizes[s][3], 1 + (int32_t)(s % 2));
        for (size_t k = 0; k < UNIT_COUNT(shifts); k++) {
            elements e = {.shift = shifts[k]};
            CHECK_BLOCKS(bsk_layout_causal(NULL, &p, e.shift, &layout), any_visible, &e);
            for (size_t w = 0; w < UNIT_COUNT(windows); w++) {
                e.window = windows[w];
                e.sink = 0;
                CHECK_BLOCKS(bsk_layout_local(NULL, &p, e.window, e.shift, &layout), any_visible,
                             &e);
                e.sink = (int64_t)(w * 3);
                CHECK_BLOCKS(bsk_layout_sink_local(NULL, &p, e.sink, e.window, e.shift, &layout),
                             any_visible, &e);
            }
        }
    }
    for (int64_t stride = 1; stride <= 24; stride++)
        for (int32_t block = 1; block <= 24; block++) {
            const bsk_layout_params p = params_of(stride * 6, stride * 6, block, 1 + block % 5, 1);
            const elements e = {.stride = stride};
            CHECK_BLOCKS(bsk_layout_strided(NULL, &p, stride, &layout), any_visible, &e);
        }
}

/* --- openai/sparse_attention ------------------------------------------------------------------ */

typedef struct stripes {
    int64_t width; /* in blocks: of the window, the stripe, the chunk */
    int32_t verticals, groups;
} stripes;

static bool r3_local(const void *about, const bski_geometry *g, int32_t head, int64_t i, int64_t j)
{
    (void)g, (void)head;
    return j <= i && i - j <= ((const stripes *)about)->width;
}

static bool r3_strided(const void *about, const bski_geometry *g, int32_t head, int64_t i,
                       int64_t j)
{
    (void)g, (void)head;
    const int64_t chunk = ((const stripes *)about)->width;
    return j <= i && i / chunk == j / chunk;
}

static bool r3_fixed(const void *about, const bski_geometry *g, int32_t head, int64_t i, int64_t j)
{
    (void)g;
    const stripes *s = about;
    const int64_t group = head % s->groups;
    bool vertical = false;
    for (int32_t x = 0; x < s->verticals; x++)
        vertical |= j % s->width == s->width - 1 - group * s->verticals - x;
    return j <= i && (i / s->width == j / s->width || vertical);
}

static void test_sparse_attention(void)
{
    for (int64_t blocks = 1; blocks <= 12; blocks++)
        for (int32_t block = 2; block <= 16; block *= 2)
            for (int64_t w = 1; w <= blocks; w++) {
                const int64_t n = blocks * block;
                const bsk_layout_params p = params_of(n, n, block, block, 1);
                const stripes local = {.width = w};
                CHECK_BLOCKS(bsk_layout_local(NULL, &p, w * block, 0, &layout), r3_local, &local);
                if (blocks % w) /* w times in a row, each of n / w elements in whole blocks */
                    continue;
                const stripes chunk = {.width = blocks / w};
                CHECK_BLOCKS(bsk_layout_strided(NULL, &p, w, &layout), r3_strided, &chunk);
            }
    for (int32_t blocks = 1; blocks <= 13; blocks++)
        for (int32_t s = 1; s <= 8; s++)
            for (int32_t size = 1; size <= s; size++)
                for (int32_t groups = 1; groups * size <= s; groups++) {
                    const bsk_layout_params p = params_of(8 * blocks, 8 * blocks, 8, 8, 4);
                    const stripes about = {s, size, groups};
                    bsk_fixed_pattern f = BSK_INIT(bsk_fixed_pattern);
                    f.local = s;
                    f.global = size;
                    f.patterns = groups;
                    CHECK_BLOCKS(bsk_layout_fixed(NULL, &p, &f, &layout), r3_fixed, &about);
                }
}

/* --- DeepSpeed -------------------------------------------------------------------------------- */

static bool in_window(int64_t i, int64_t j, int32_t window)
{
    return i - j <= window / 2 && j - i <= window / 2;
}

static bool ds_sliding(const void *about, const bski_geometry *g, int32_t head, int64_t i,
                       int64_t j)
{
    (void)g, (void)head;
    const bsk_global_pattern *p = about;
    return in_window(i, j, p->window) && !(p->causal && j > i);
}

static bool ds_fixed(const void *about, const bski_geometry *g, int32_t head, int64_t i, int64_t j)
{
    const bsk_fixed_pattern *f = about;
    const int64_t n = g->grid_cols, whole = n - n % f->local;
    const int64_t first = f->local - (1 + head % f->patterns) * f->global;
    bool kept = i / f->local == j / f->local && (f->bidirectional || j <= i);
    for (int64_t x = first; x < whole + f->local; x += f->local) {
        int64_t start = x; /* the last one fits itself into a short stripe */
        if (x >= whole) {
            if (whole == n)
                break;
            start = whole + first < n - f->global ? whole + first : n - f->global;
        }
        const bool column = j >= start && j < start + f->global;
        const bool row = i >= start && i < start + f->global;
        kept |= column && (f->bidirectional || i >= start);
        kept |= row && f->horizontal;
    }
    return kept;
}

/* As DeepSpeed's in whole stripes, without future blocks unless bidirectional or horizontal. Rows
 * of verticals end with the stripes that have columns. */
static bool plain_fixed(const void *about, const bski_geometry *g, int32_t head, int64_t i,
                        int64_t j)
{
    const bsk_fixed_pattern *f = about;
    const int64_t first = f->local - (1 + head % f->patterns) * f->global;
    const bool column = j % f->local >= first && j % f->local < first + f->global;
    const bool row = i % f->local >= first && i % f->local < first + f->global &&
                     i - i % f->local < g->grid_cols;
    return ((i / f->local == j / f->local || column) && (f->bidirectional || j <= i)) ||
           (f->horizontal && row);
}

static bool in_ranges(const bsk_global_pattern *p, int64_t block, int32_t *range)
{
    for (int32_t k = 0; k < p->count; k++)
        if (block >= p->start[k] && block < (p->end ? p->end[k] : p->start[k] + 1)) {
            *range = k;
            return true;
        }
    return false;
}

static bool ds_bigbird(const void *about, const bski_geometry *g, int32_t head, int64_t i,
                       int64_t j)
{
    (void)g, (void)head;
    const bsk_global_pattern *p = about;
    return (in_window(i, j, p->window) || i < p->first || j < p->first) && !(p->causal && j > i);
}

static bool ds_longformer(const void *about, const bski_geometry *g, int32_t head, int64_t i,
                          int64_t j)
{
    (void)g, (void)head;
    const bsk_global_pattern *p = about;
    int32_t k;
    return (in_window(i, j, p->window) || in_ranges(p, i, &k) || in_ranges(p, j, &k)) &&
           !(p->causal && j > i);
}

static int32_t window_of(const bsk_global_pattern *p, int64_t block)
{
    int32_t window = 0;
    for (int64_t first = 0;; window++) {
        first += p->windows[window < p->window_count ? window : p->window_count - 1];
        if (block < first)
            return window;
    }
}

static bool ds_variable(const void *about, const bski_geometry *g, int32_t head, int64_t i,
                        int64_t j)
{
    (void)g, (void)head;
    const bsk_global_pattern *p = about;
    int32_t k;
    bool kept = window_of(p, i) == window_of(p, j) && (!p->causal || j <= i);
    kept |= in_ranges(p, j, &k) && (!p->causal || i >= p->start[k]);
    return kept || (p->horizontal && in_ranges(p, i, &k));
}

static void test_deepspeed(void)
{
    static const int32_t start[] = {1, 4, 9}, end[] = {2, 7, 10}, windows[] = {3, 1, 4};
    for (int32_t n = 10; n <= 17; n++)
        for (int32_t bits = 0; bits < 8; bits++) {
            /* as many columns as rows, more, or less; the last blocks cut short */
            const bsk_layout_params p =
                params_of(4 * n - bits, 4 * n + 5 * (bits % 3 - 1), 4, 4, 3);
            bsk_global_pattern q = BSK_INIT(bsk_global_pattern);
            q.causal = bits & 1;
            for (q.window = 0; q.window < 6; q.window++) {
                CHECK_BLOCKS(bsk_layout_sliding(NULL, &p, q.window, q.causal, &layout), ds_sliding,
                             &q);
                q.first = bits / 2;
                q.count = 0;
                CHECK_BLOCKS(bsk_layout_bigbird(NULL, &p, &q, &layout), ds_bigbird, &q);
                q.first = 0;
                q.count = 3;
                q.start = start;
                q.end = bits & 2 ? end : NULL;
                CHECK_BLOCKS(bsk_layout_longformer(NULL, &p, &q, &layout), ds_longformer, &q);
            }
            q.window = 0;
            q.horizontal = bits >> 2;
            q.windows = windows;
            q.window_count = 1 + bits % 3;
            CHECK_BLOCKS(bsk_layout_variable(NULL, &p, &q, &layout), ds_variable, &q);
            for (int32_t local = 1; local <= 5; local++)
                for (int32_t global = 1; global <= local; global++) {
                    bsk_fixed_pattern f = BSK_INIT(bsk_fixed_pattern);
                    f.local = local;
                    f.global = global;
                    f.patterns = local / global;
                    f.bidirectional = bits & 1;
                    f.horizontal = bits >> 1 & 1;
                    f.deepspeed = 1;
                    CHECK_BLOCKS(bsk_layout_fixed(NULL, &p, &f, &layout), ds_fixed, &f);
                    f.deepspeed = 0;
                    CHECK_BLOCKS(bsk_layout_fixed(NULL, &p, &f, &layout), plain_fixed, &f);
                }
        }
}

/* Random blocks: the right number of them, each seed its own, the same every time. */
static void test_random_blocks(void)
{
    enum { N = 40, DRAWN = 5 };
    const bsk_layout_params p = params_of(N, N, 1, 1, 2);
    bsk_global_pattern q = BSK_INIT(bsk_global_pattern);
    q.random = DRAWN;
    for (q.causal = 0; q.causal < 2; q.causal++)
        for (q.seed = 1; q.seed < 20; q.seed++) {
            bsk_layout *l = NULL, *again = NULL, *plain = NULL;
            CHECK_OK(bsk_layout_variable(NULL, &p, &q, &l));
            CHECK_OK(bsk_layout_variable(NULL, &p, &q, &again));
            CHECK(!twin_same(&l->tables, &again->tables));
            CHECK(l->tables.nnz == 2 * N * DRAWN);
            bsk_layout_release(&l);
            bsk_layout_release(&again);
            q.window = 1;
            CHECK_OK(bsk_layout_bigbird(NULL, &p, &q, &l));
            q.window = 0;
            for (int32_t i = 0; i < N; i++) {
                const int64_t count = l->tables.row_start[i + 1] - l->tables.row_start[i];
                CHECK(count == (q.causal && i < DRAWN ? i + 1 : DRAWN) || count == DRAWN + 1);
                CHECK(!q.causal || l->tables.row_col[l->tables.row_start[i + 1] - 1] <= i);
            }
            q.seed += 1000;
            CHECK_OK(bsk_layout_bigbird(NULL, &p, &q, &plain));
            CHECK(twin_same(&l->tables, &plain->tables) != NULL);
            q.seed -= 1000;
            bsk_layout_release(&plain);
            bsk_layout_release(&l);
        }
}

/* --- convolutions and masks ------------------------------------------------------------------- */

/* Whether output pixel q of the convolution sees input pixel k, from the definition of a padded
 * convolution. */
static bool conv_sees(const bsk_conv_pattern *p, int64_t q, int64_t k, bool turned)
{
    const int64_t sx = p->stride ? p->stride : 1, sy = p->height == 1 ? 1 : sx;
    const int64_t y = q / (p->width / sx), x = q % (p->width / sx);
    bool inside = false;
    for (int32_t fy = 0; fy < p->filter_height; fy++)
        for (int32_t fx = 0; fx < p->filter_width; fx++) {
            const int64_t ky = y * sy + fy - (p->filter_height - 1) / 2;
            const int64_t kx = x * sx + fx - (p->filter_width - 1) / 2;
            inside |=
                ky >= 0 && ky < p->height && kx >= 0 && kx < p->width && ky * p->width + kx == k;
        }
    const int64_t raster = y * sy * p->width + x * sx;
    return inside && (!p->causal || (turned ? k >= raster : k <= raster));
}

typedef struct convolution {
    bsk_conv_pattern pattern;
    bool turned;
} convolution;

static bool conv_element(const convolution *c, int64_t i, int64_t j)
{
    return c->turned ? conv_sees(&c->pattern, j, i, true) : conv_sees(&c->pattern, i, j, false);
}

static bool conv_block(const void *about, const bski_geometry *g, int32_t head, int64_t i,
                       int64_t j)
{
    (void)head;
    for (int64_t r = i * g->block_rows; r < (i + 1) * g->block_rows && r < g->rows; r++)
        for (int64_t c = j * g->block_cols; c < (j + 1) * g->block_cols && c < g->cols; c++)
            if (conv_element(about, r, c))
                return true;
    return false;
}

/* Every element of the kept blocks, by the masks. */
static void check_bits(const bsk_layout *l, convolution *c)
{
    const bsk_layout_tables *t = &l->tables;
    const int64_t bytes = (t->block_cols + 7) / 8, size = t->block_rows * bytes;
    int32_t *index = make(t->nnz, sizeof *index);
    int64_t masks = 0, wrong = 0;
    bsk_element_fn visible = c->turned ? bsk_deconv_visible : bsk_conv_visible;
    CHECK_OK(bsk_layout_element_bits(l, visible, &c->pattern, index, NULL, &masks));
    uint8_t *bits = make(masks * size, 1);
    CHECK_OK(bsk_layout_element_bits(l, visible, &c->pattern, index, bits, &masks));
    for (int64_t s = 0; s < t->nnz; s++)
        for (int64_t i = 0; i < t->block_rows; i++)
            for (int64_t j = 0; j < t->block_cols; j++) {
                const int64_t row = (int64_t)t->slot_row[s] * t->block_rows + i;
                const int64_t col = (int64_t)t->slot_col[s] * t->block_cols + j;
                if (row >= t->rows || col >= t->cols)
                    continue;
                const bool bit =
                    index[s] < 0 || (bits[index[s] * size + i * bytes + j / 8] >> j % 8 & 1);
                wrong += bit != conv_element(c, row, col);
            }
    CHECK(wrong == 0);
    for (int64_t a = 0; a < masks; a++)
        for (int64_t b = 0; b < a; b++)
            CHECK(memcmp(bits + a * size, bits + b * size, (size_t)size) != 0);
    if (masks) {
        int64_t few = masks - 1;
        CHECK(bsk_layout_element_bits(l, visible, &c->pattern, index, bits, &few) == BSK_E_INVALID);
    }
    free(index), free(bits);
}

static void test_convolutions(void)
{
    static const int32_t shapes[][5] = {{1, 24, 1, 3, 1}, {1, 24, 1, 5, 3}, {6, 8, 3, 3, 1},
                                        {6, 8, 3, 5, 2},  {6, 8, 4, 4, 2},  {6, 8, 2, 2, 2},
                                        {1, 24, 1, 4, 2}, {6, 9, 5, 1, 3}};
    for (size_t s = 0; s < UNIT_COUNT(shapes); s++)
        for (int bits = 0; bits < 4; bits++) {
            convolution c = {.pattern = BSK_INIT(bsk_conv_pattern), .turned = bits & 1};
            bsk_conv_pattern *q = &c.pattern;
            q->height = shapes[s][0];
            q->width = shapes[s][1];
            q->filter_height = shapes[s][2];
            q->filter_width = shapes[s][3];
            if (q->height == 1 && q->filter_height != 1)
                continue;
            q->stride = shapes[s][4];
            q->causal = bits >> 1;
            const int64_t high = (int64_t)q->height * q->width;
            const int64_t low = high / q->stride / (q->height == 1 ? 1 : q->stride);
            const bsk_layout_params p =
                params_of(c.turned ? high : low, c.turned ? low : high, 4, 10, 1);
            bsk_layout *l = NULL;
            CHECK_OK(c.turned ? bsk_layout_deconv(NULL, &p, q, &l)
                              : bsk_layout_conv(NULL, &p, q, &l));
            if (l)
                check_bits(l, &c);
            check_blocks(l, conv_block, &c, __LINE__);
        }
}

static int sees_past(void *user, int32_t head, int64_t row, int64_t col)
{
    (void)user;
    return col <= row + head;
}

/* One mask serves all blocks of a diagonal. */
static void test_shared_masks(void)
{
    const bsk_layout_params p = params_of(64, 64, 8, 8, 2);
    bsk_layout *l = NULL;
    int32_t index[2 * 64];
    int64_t masks = 0;
    CHECK_OK(bsk_layout_from_elements(NULL, &p, sees_past, NULL, &l));
    CHECK(l->tables.nnz == 36 + 36 + 7);
    CHECK_OK(bsk_layout_element_bits(l, sees_past, NULL, index, NULL, &masks));
    CHECK(masks == 3); /* the diagonal of each head, and the corner beside that of head 1 */
    for (int64_t s = 0; s < l->tables.nnz; s++)
        CHECK((index[s] < 0) == (l->tables.slot_col[s] < l->tables.slot_row[s]));
    int32_t before[2 * 64];
    uint8_t bits[2 * 8];
    memset(index, 7, sizeof index);
    memcpy(before, index, sizeof index);
    masks = 2;
    CHECK(bsk_layout_element_bits(l, sees_past, NULL, index, bits, &masks) == BSK_E_INVALID);
    CHECK(masks == 3 && !memcmp(index, before, sizeof index));
    bsk_layout_release(&l);
}

/* --- bad input -------------------------------------------------------------------------------- */

/* The first calls give no blocks, later ones all. */
static int changes(void *user, int32_t head, int64_t row, int64_t col)
{
    int *calls = user;
    (void)head, (void)row, (void)col;
    return (*calls)++ >= 32 * 48;
}

static void test_errors(void)
{
    /* fields that a constructor does not name */
    static const struct {
        bsk_status (*make)(bsk_context *, const bsk_layout_params *, const bsk_global_pattern *,
                           bsk_layout **);
        size_t field;
        const char *name;
    } unnamed[] = {
        {bsk_layout_bigbird, offsetof(bsk_global_pattern, count), "count"},
        {bsk_layout_bigbird, offsetof(bsk_global_pattern, horizontal), "horizontal"},
        {bsk_layout_bigbird, offsetof(bsk_global_pattern, window_count), "window_count"},
        {bsk_layout_longformer, offsetof(bsk_global_pattern, first), "first"},
        {bsk_layout_longformer, offsetof(bsk_global_pattern, horizontal), "horizontal"},
        {bsk_layout_longformer, offsetof(bsk_global_pattern, random), "random"},
        {bsk_layout_longformer, offsetof(bsk_global_pattern, window_count), "window_count"},
        {bsk_layout_variable, offsetof(bsk_global_pattern, window), "window"},
        {bsk_layout_variable, offsetof(bsk_global_pattern, first), "first"},
    };
    static const int32_t one = 1, ones[] = {1};
    const bsk_layout_params p = params_of(32, 48, 8, 8, 1), square = params_of(32, 32, 8, 8, 1);
    bsk_layout *l = NULL;
    static const int32_t backwards[] = {3}, none[] = {0};
    bsk_fixed_pattern f = BSK_INIT(bsk_fixed_pattern);
    bsk_global_pattern g = BSK_INIT(bsk_global_pattern);
    bsk_conv_pattern c = BSK_INIT(bsk_conv_pattern);
    CHECK(bsk_layout_local(NULL, &p, 0, 0, &l) == BSK_E_INVALID && !l);
    CHECK(bsk_layout_sink_local(NULL, &p, -1, 4, 0, &l) == BSK_E_INVALID);
    CHECK(bsk_layout_causal(NULL, &p, INT64_MAX, &l) == BSK_E_INVALID);
    CHECK(bsk_layout_strided(NULL, &p, 4, &l) == BSK_E_INVALID);
    CHECK(bsk_layout_strided(NULL, &square, 5, &l) == BSK_E_INVALID);
    CHECK(bsk_layout_strided(NULL, &square, 0, &l) == BSK_E_INVALID);
    CHECK(bsk_layout_sliding(NULL, &p, -1, 0, &l) == BSK_E_INVALID);
    CHECK(bsk_layout_fixed(NULL, &p, NULL, &l) == BSK_E_INVALID);
    CHECK(bsk_layout_fixed(NULL, &p, &f, &l) == BSK_E_INVALID);
    f.local = 4;
    f.global = 2;
    f.patterns = 3;
    CHECK(bsk_layout_fixed(NULL, &p, &f, &l) == BSK_E_INVALID);
    g.random = 7;
    CHECK(bsk_layout_bigbird(NULL, &p, &g, &l) == BSK_E_INVALID);
    g.random = 0;
    g.count = 1;
    CHECK(bsk_layout_longformer(NULL, &p, &g, &l) == BSK_E_INVALID);
    g.start = g.end = backwards;
    CHECK(bsk_layout_longformer(NULL, &p, &g, &l) == BSK_E_INVALID);
    g.count = 0;
    g.window_count = 1;
    CHECK(bsk_layout_variable(NULL, &p, &g, &l) == BSK_E_INVALID);
    g.windows = none;
    CHECK(bsk_layout_variable(NULL, &p, &g, &l) == BSK_E_INVALID);
    for (size_t i = 0; i < sizeof unnamed / sizeof unnamed[0]; i++) {
        g = (bsk_global_pattern)BSK_INIT(bsk_global_pattern);
        memcpy((char *)&g + unnamed[i].field, &one, sizeof one);
        g.start = g.windows = ones;
        CHECK(unnamed[i].make(NULL, &p, &g, &l) == BSK_E_INVALID && !l);
        CHECK(strstr(bsk_last_error(), unnamed[i].name));
    }
    CHECK(bsk_layout_conv(NULL, &p, &c, &l) == BSK_E_INVALID);
    c.height = 4;
    c.width = 8;
    c.filter_height = c.filter_width = 2;
    CHECK(bsk_layout_conv(NULL, &square, &c, &l) == BSK_E_INVALID); /* even, stride 1 */
    c.filter_height = c.filter_width = 3;
    CHECK(bsk_layout_conv(NULL, &p, &c, &l) == BSK_E_INVALID); /* 32 x 32 */
    CHECK(bsk_layout_from_elements(NULL, &p, NULL, NULL, &l) == BSK_E_INVALID);
    int calls = 0;
    CHECK(bsk_layout_from_elements(NULL, &p, changes, &calls, &l) == BSK_E_INVALID);
    CHECK(!l);
}

int main(void)
{
    test_elements();
    test_sparse_attention();
    test_deepspeed();
    test_random_blocks();
    test_convolutions();
    test_shared_masks();
    test_errors();
    return unit_report();
}
