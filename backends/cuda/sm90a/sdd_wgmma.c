/* sdd on Hopper by wgmma: units of panels, and the choice among their shapes.
 *
 * The rows are cut into bands, and the panels of columns that hold a kept block anywhere in a band
 * are dealt to its units. In a *cross* there are two panels of A, and both warpgroups multiply
 * with the same panels of B. Bands of one panel are cut into *shares*, each for a warpgroup, and a
 * unit has any two of them: of two bands, best of such that have panels of B in common, which are
 * copied once; or of one, a *star*. Two thread blocks that make a cluster have a cross each, of
 * the same columns or of the same rows, and either copies half of these for both. Where units are
 * about half as many as thread blocks, two blocks of a cluster have the same unit, and half of the
 * samples each.
 * Blocks smaller than a panel are computed together with what is not kept around them, and only they
 * are stored; that costs as much as a dense product, and no more. */
#include <string.h>

#include <backends/cuda/sm90a/sdd_host.h>
#include <common/checked.h>
#include <common/layout.h>

CUDA_FUNCTIONS(sdd_wgmma)

/* What sdd_wgmma.cu is compiled for. */
enum { THREADS = 384, WARPS = 8, ACCUMULATORS = 128 };
/* Of a unit of the last round at most. */
enum { LAST_PARTS = 8 };
/* A bit of a mask on the stack for each panel of columns. */
enum { MAX_PANEL_COLS = 1 << 15 };

typedef struct kernel {
    const void *function;
    const char *name;
} kernel;

#define KERNEL(name) extern const char name[];
KERNEL(sdd_wgmma_bf16_nc)
KERNEL(sdd_wgmma_bf16_cn)
KERNEL(sdd_wgmma_f16_nc)
KERNEL(sdd_wgmma_f16_cn)
KERNEL(sdd_wgmma_halves_bf16_nc)
KERNEL(sdd_wgmma_halves_bf16_cn)
KERNEL(sdd_wgmma_halves_f16_nc)
KERNEL(sdd_wgmma_halves_f16_cn)
KERNEL(sdd_wgmma_two_bf16_nc)
KERNEL(sdd_wgmma_two_bf16_cn)
KERNEL(sdd_wgmma_two_f16_nc)
KERNEL(sdd_wgmma_two_f16_cn)
KERNEL(sdd_wgmma_tf32_nc)
KERNEL(sdd_wgmma_tf32_cn)
KERNEL(sdd_wgmma_halves_tf32_nc)
KERNEL(sdd_wgmma_halves_tf32_cn)
KERNEL(sdd_wgmma_two_tf32_nc)
KERNEL(sdd_wgmma_two_tf32_cn)
#undef KERNEL

#define KERNEL(name)                                                                               \
    {                                                                                              \
        name, #name                                                                                \
    }
/* Thread blocks that share panels, and the kernels of so many. */
typedef struct form {
    int32_t cluster;
    kernel kernels[3][2]; /* [bf16, f16, f32][features, samples contiguous] */
} form;

static const form forms[] = {
    {1,
     {{KERNEL(sdd_wgmma_bf16_nc), KERNEL(sdd_wgmma_bf16_cn)},
      {KERNEL(sdd_wgmma_f16_nc), KERNEL(sdd_wgmma_f16_cn)},
      {KERNEL(sdd_wgmma_tf32_nc), KERNEL(sdd_wgmma_tf32_cn)}}},
    {2,
     {{KERNEL(sdd_wgmma_two_bf16_nc), KERNEL(sdd_wgmma_two_bf16_cn)},
      {KERNEL(sdd_wgmma_two_f16_nc), KERNEL(sdd_wgmma_two_f16_cn)},
      {KERNEL(sdd_wgmma_two_tf32_nc), KERNEL(sdd_wgmma_two_tf32_cn)}}},
};
/* Of units in halves. */
static const kernel half_kernels[3][2] = {
    {KERNEL(sdd_wgmma_halves_bf16_nc), KERNEL(sdd_wgmma_halves_bf16_cn)},
    {KERNEL(sdd_wgmma_halves_f16_nc), KERNEL(sdd_wgmma_halves_f16_cn)},
    {KERNEL(sdd_wgmma_halves_tf32_nc), KERNEL(sdd_wgmma_halves_tf32_cn)}};
#undef KERNEL

static int type_index(bsk_dtype dtype)
{
    return dtype == BSK_BF16 ? 0 : dtype == BSK_F16 ? 1 : 2;
}

/* Slices of the samples, a panel each. */
static int64_t count_slices(const bsk_problem *problem)
{
    const bool f32 = problem->dtype == BSK_F32;
    return bski_sdd_slices(problem->params, f32 ? SDD_PANEL_F32 : SDD_PANEL);
}

/* --- Shapes of units --- */

/* What an estimate takes units for: thread blocks, panels of rows in a band, and panels of columns at
 * most. */
typedef struct shape {
    int32_t cluster, high, wide;
} shape;

static const shape shapes[] = {{2, 4, 4}, {1, 2, 4}, {1, 1, 4}, {1, 1, 5},
                               {1, 1, 6}, {1, 1, 7}, {1, 1, 8}};
enum { SHAPES = sizeof shapes / sizeof *shapes };
/* Panels of columns of a warpgroup at most: its share of a unit. */
enum { SHARE = 4 };

/* Whether a form's units can be so many panels high. Blocks of a cluster have two each: the same, or
 * their own. */
static bool form_high(const form *f, int32_t high)
{
    return f->cluster == 2 ? high >= 2 : high <= 2;
}

/* Whether the blocks of a cluster have the same rows and columns of their own. */
static bool form_shares_rows(const form *f, int32_t high)
{
    return f->cluster == 2 && high == 2;
}

/* Cycles of a slice: products of 64 x 64 x 64, which two warpgroups do not keep the tensor cores quite
 * busy with, and copies of panels from the L2 cache. */
static const double piece_cycles = 145, panel_cycles = 205;

/* By a thread block of a unit with so many panels of rows and columns, and products. */
static double slice_cycles(const form *f, int32_t high, double wide, double pieces)
{
    const double products = pieces / f->cluster * piece_cycles;
    const double copies = (high + wide) / f->cluster * panel_cycles;
    return products > copies ? products : copies;
}

/* Panels of columns as a set. */
typedef struct panel_set {
    uint64_t bits[MAX_PANEL_COLS / 64];
} panel_set;

/* The panels of columns that hold kept blocks in a band of `high` panels of rows; their number. */
static int32_t band_panels(const bsk_layout_tables *t, int64_t band, int32_t high, panel_set *set)
{
    const int64_t first = band * high * SDD_PANEL, last = first + high * SDD_PANEL - 1;
    const int64_t row_last = last / t->block_rows;
    const int64_t words = bski_ceil_div(bski_ceil_div(t->cols, SDD_PANEL), 64);
    int32_t count = 0;
    memset(set->bits, 0, (size_t)words * sizeof *set->bits);
    for (int64_t row = first / t->block_rows; row <= row_last && row < t->grid_rows; row++)
        for (int64_t e = t->row_start[row]; e < t->row_start[row + 1]; e++) {
            const int64_t col0 = (int64_t)t->row_col[e] * t->block_cols;
            const int64_t end = col0 + t->block_cols < t->cols ? col0 + t->block_cols : t->cols;
            for (int64_t p = col0 / SDD_PANEL; p * SDD_PANEL < end; p++)
                set->bits[p / 64] |= UINT64_C(1) << p % 64;
        }
    for (int64_t i = 0; i < words; i++)
        count += __builtin_popcountll(set->bits[i]);
    return count;
}

static int64_t band_count(const bsk_layout_tables *t, int32_t high)
{
    return bski_ceil_div(t->rows, (int64_t)high * SDD_PANEL);
}

/* What units of each shape there would be. */
typedef struct counts {
    int64_t units[SHAPES], panels[SHAPES]; /* panels: of columns */
} counts;

static counts shapes_count(const bsk_layout_tables *t)
{
    counts c = {{0}, {0}};
    panel_set set;
    for (int32_t high = 1; high <= 4; high *= 2)
        for (int64_t band = 0; band < band_count(t, high); band++) {
            const int32_t count = band_panels(t, band, high, &set);
            for (int32_t i = 0; i < SHAPES; i++)
                if (shapes[i].high == high) {
                    c.units[i] += bski_ceil_div(count, shapes[i].wide);
                    c.panels[i] += count;
                }
        }
    return c;
}

bsk_reason cuda_sdd_wgmma_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    const bsk_reason reason = bski_sdd_refusal(problem, false);
    (void)props;
    if (reason)
        return reason;
    return bski_ceil_div(problem->layout->cols, SDD_PANEL) > MAX_PANEL_COLS ? BSK_REFUSE_LIMIT
                                                                            : BSK_ACCEPT;
}

static double square_root(double x)
{
    double root = x > 1 ? x : 1;
    for (int i = 0; i < 32; i++)
        root = (root + x / root) / 2;
    return root;
}

/* What crosses of matched rows are likely to leave of the copies of stars `wide` panels of columns
 * wide, as if blocks lay at random: an estimate has no memory for the lists. panels: of all rows. */
static double likely_copies(const bsk_layout_tables *t, int64_t panels, double wide)
{
    const double all = (double)bski_ceil_div(t->cols, SDD_PANEL);
    const double count = (double)panels / (double)band_count(t, 1), share = count / all;
    /* of the best of many others: so many deviations more than on average */
    const double common = share * count + 1.8 * square_root(share * count * (1 - share * share));
    const double crosses = common > 2 ? (common - 2) / (common + 2) : 0;
    return 1 - crosses * (1 - 0.75 * wide / (wide + 1));
}

double cuda_sdd_wgmma_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    static const double hertz = 1.6e9, launch = 4e-6; /* at the power limit */
    const int64_t slices = count_slices(problem);
    const bsk_layout_tables *t = problem->layout;
    const counts c = shapes_count(t);
    double best = 1e30;
    for (size_t k = 0; k < sizeof forms / sizeof *forms; k++) {
        const int32_t blocks = props->compute_units / forms[k].cluster;
        for (int32_t i = 0; i < SHAPES; i++) {
            const int32_t high = shapes[i].high;
            if (!blocks || shapes[i].cluster != forms[k].cluster)
                continue;
            const double wide = c.units[i] ? (double)c.panels[i] / (double)c.units[i] : 0;
            const double left = high == 1 ? likely_copies(t, c.panels[i], wide) : 1;
            const double cycles = bski_sdd_estimate(
                c.units[i], left * slice_cycles(&forms[k], high, wide, high * wide), slices, blocks,
                0);
            best = cycles < best ? cycles : best;
        }
    }
    return best / hertz + launch + bski_sdd_turn_seconds(problem, SDD_TURNS_B);
}

/* --- Units --- */

typedef struct unit_list {
    sdd_unit *units;
    double *cost;
    int32_t count;
} unit_list;

/* What units are made for. */
typedef struct maker {
    const bsk_host *host;
    const bsk_layout_tables *layout;
    const form *form;
    int64_t slices;
    bool far;       /* sweeps are long */
    int32_t blocks; /* or clusters */
} maker;

/* A unit of one panel of rows or two (other: -1 for one), and of panels of columns: the first `left`
 * are the first warpgroup's, those from number `at` on, `right` of them, the second's. */
static sdd_unit unit_make(int32_t row, int32_t other, const int32_t *panels, int32_t left,
                          int32_t at, int32_t right)
{
    const int32_t high = other < 0 ? 1 : 2, count = at + right;
    sdd_unit u = {.panels = high + count,
                  .a = {0, high - 1},
                  .b = {high, high + at},
                  .count = {left, right},
                  .feature = {row * SDD_PANEL}};
    if (other >= 0)
        u.feature[1] = other * SDD_PANEL;
    for (int32_t j = 0; j < count; j++)
        u.feature[high + j] = panels[j] * SDD_PANEL | SDD_OF_B;
    return u;
}

static void unit_add(const maker *m, int32_t row, int32_t other, const int32_t *panels,
                     int32_t left, int32_t at, int32_t right, unit_list *list)
{
    const sdd_unit u = unit_make(row, other, panels, left, at, right);
    list->units[list->count] = u;
    list->cost[list->count++] = slice_cycles(m->form, other < 0 ? 1 : 2, at + right, left + right);
}

/* The units of the two blocks of a cluster, which have the rows of a band or half of them, and half
 * of some columns or all. */
static void cluster_add(const maker *m, int32_t high, int32_t row, const int32_t *panels,
                        int32_t count, unit_list *list)
{
    const bool rows = form_shares_rows(m->form, high);
    const int32_t wide = rows ? (count + 1) / 2 : count;
    sdd_unit *units = list->units + 2 * (int64_t)list->count;
    for (int32_t i = 0; i < 2; i++) {
        const int32_t first = rows ? i * wide : 0, top = rows ? row : row + 2 * i;
        const int32_t own = count - first < wide ? count - first : wide;
        units[i] = unit_make(top, top + 1, panels + first, own, 0, own);
        for (int32_t j = rows ? 0 : 2; j < (rows ? 2 : units[i].panels); j++)
            units[i].feature[j] |= SDD_SHARED;
    }
    list->cost[list->count++] = slice_cycles(m->form, high, rows ? 2 * wide : wide, 4 * wide);
}

/* Divides `count` panels of columns of a band among the fewest units of up to `most`, as evenly as
 * possible. */
static void band_units(const maker *m, int32_t high, int32_t row, const int32_t *panels,
                       int32_t count, int32_t most, unit_list *list)
{
    const int32_t grain = form_shares_rows(m->form, high) ? 2 : 1;
    const int32_t parts = (int32_t)bski_ceil_div(count, most);
    const int32_t grains = (int32_t)bski_ceil_div(count, grain);
    for (int32_t i = 0, at = 0; i < parts; i++) {
        const int32_t even = (grains / parts + (i < grains % parts)) * grain;
        const int32_t wide = count - at < even ? count - at : even;
        if (m->form->cluster == 2)
            cluster_add(m, high, row, panels + at, wide, list);
        else
            unit_add(m, row, row + 1, panels + at, wide, 0, wide, list);
        at += wide;
    }
}

/* Units in patches, nearly square in features, of as many units as run at a time, so that these
 * share the panels that they read. */
static bsk_status units_order(const maker *m, int32_t high, unit_list *list)
{
    const bsk_host *host = m->host;
    const bsk_allocator *allocator = &host->allocator;
    const int64_t cols = m->layout->cols, band = high * SDD_PANEL, blocks = m->form->cluster;
    const double bands = (double)bski_ceil_div(m->layout->rows, band);
    const double span = (double)cols * bands / list->count; /* of a unit, features */
    const double square = (double)m->blocks * (double)band * span;
    double side = 1; /* of a patch, in features */
    while (side * side < square)
        side *= 1.0625;
    const int64_t tall = (int64_t)(side / (double)band) + 1, wide = (int64_t)side + 1;
    const int64_t across = bski_ceil_div(cols, wide);
    bski_pair *pairs = bski_table_alloc(allocator, 2 * (int64_t)list->count, sizeof *pairs);
    sdd_unit *units = bski_table_alloc(allocator, list->count * blocks, sizeof *units);
    double *cost = bski_table_alloc(allocator, list->count, sizeof *cost);
    const bool ok = pairs && units && cost;
    if (ok) {
        for (int32_t i = 0; i < list->count; i++) {
            const sdd_unit *u = &list->units[i * blocks];
            const int64_t row = (u->feature[0] & SDD_FEATURE) / band;
            const int64_t col = u->feature[u->b[0]] & SDD_FEATURE;
            pairs[i] = (bski_pair){(uint64_t)(row / tall * across + col / wide), (uint32_t)i};
        }
        bski_sort_pairs(pairs, pairs + list->count, list->count, 64);
        for (int32_t i = 0; i < list->count; i++) {
            memcpy(units + i * blocks, list->units + pairs[i].value * blocks,
                   (size_t)blocks * sizeof *units);
            cost[i] = list->cost[pairs[i].value];
        }
        memcpy(list->units, units, (size_t)(list->count * blocks) * sizeof *units);
        memcpy(list->cost, cost, (size_t)list->count * sizeof *cost);
    }
    bski_table_free(allocator, pairs);
    bski_table_free(allocator, units);
    bski_table_free(allocator, cost);
    return ok ? BSK_OK : host->fail(host->context, BSK_E_NOMEM, "cuda: no memory for units of sdd");
}

/* The panels of columns of all bands. */
typedef struct band_sets {
    uint64_t *bits;   /* [2][bands][words]: all, and what is left while units are made */
    int32_t *partner; /* [bands]: the band with which this one has a unit; -1: none */
    int32_t *shares;  /* [bands]: what is left is for so many warpgroups */
    int32_t *panels;  /* of one list */
    int64_t bands, words;
    int32_t room; /* panels of a unit at most; */
    int32_t wide; /* of a unit of a whole band: those of columns */
} band_sets;

static uint64_t *set_all(const band_sets *s, int64_t band)
{
    return s->bits + band * s->words;
}

static uint64_t *set_left(const band_sets *s, int64_t band)
{
    return s->bits + (s->bands + band) * s->words;
}

/* Takes up to `most` of the panels of a set that are in another, or are not, out of it. */
static int32_t set_take(uint64_t *set, const uint64_t *other, bool in, int64_t words, int32_t most,
                        int32_t *panels)
{
    int32_t count = 0;
    for (int64_t i = 0; i < words; i++)
        for (uint64_t some = set[i] & (in ? other[i] : ~other[i]); some && count < most;
             some &= some - 1) {
            panels[count++] = (int32_t)(i * 64 + __builtin_ctzll(some));
            set[i] &= ~(some & -some);
        }
    return count;
}

static int32_t sets_common(const uint64_t *set, const uint64_t *other, int64_t words)
{
    int32_t count = 0;
    for (int64_t i = 0; i < words; i++)
        count += __builtin_popcountll(set[i] & other[i]);
    return count;
}

static int32_t set_size(const uint64_t *set, int64_t words)
{
    return sets_common(set, set, words);
}

/* In how many shares of up to `most` panels all bands are; their number. */
static int64_t shares_deal(const band_sets *s, double most)
{
    int64_t count = 0;
    for (int64_t i = 0; i < s->bands; i++) {
        const double shares = set_size(set_all(s, i), s->words) / most;
        s->shares[i] = (int32_t)shares + ((int32_t)shares < shares);
        count += s->shares[i];
    }
    return count;
}

/* The size of the smallest shares that so many units have room for. */
static double share_find(const band_sets *s, int64_t units)
{
    double low = 1, high = SHARE;
    while (high - low > 1e-3) {
        const double middle = (low + high) / 2;
        if (shares_deal(s, middle) <= 2 * units)
            high = middle;
        else
            low = middle;
    }
    return high;
}

/* Panels of columns of the next share of a band. */
static int32_t share_size(const band_sets *s, int64_t band)
{
    return (int32_t)bski_ceil_div(set_size(set_left(s, band), s->words), s->shares[band]);
}

/* What the next shares of two bands can have in common; -1 if there is no unit of them. */
static int32_t shares_common(const band_sets *s, int64_t i, int64_t j)
{
    if (!s->shares[i] || !s->shares[j])
        return -1;
    const int32_t common = sets_common(set_left(s, i), set_left(s, j), s->words);
    const int32_t left = share_size(s, i), right = share_size(s, j);
    const int32_t least = left < right ? left : right, same = common < least ? common : least;
    return 2 + left + right - same <= s->room ? same : -1;
}

/* Finds pairs of bands whose next shares have so many columns in common, greedily: a band takes, of
 * the next bands that are free, the one with the most. */
static bool bands_match(const band_sets *s, int32_t least)
{
    enum { WINDOW = 256 };
    bool any = false;
    for (int64_t i = 0; i < s->bands; i++)
        s->partner[i] = -1;
    for (int64_t i = 0; i < s->bands; i++) {
        int32_t most = least - 1, best = -1;
        for (int64_t j = i + 1; s->partner[i] < 0 && j < s->bands && j < i + WINDOW; j++) {
            const int32_t same = s->partner[j] < 0 ? shares_common(s, i, j) : -1;
            if (same <= most)
                continue;
            most = same;
            best = (int32_t)j;
        }
        if (best < 0)
            continue;
        s->partner[i] = best;
        s->partner[best] = (int32_t)i;
        any = true;
    }
    return any;
}

/* A unit of the next shares of two bands, with what they have in common in the middle. */
static void shares_join(const maker *m, const band_sets *s, int64_t i, int64_t j, unit_list *list)
{
    uint64_t *set = set_left(s, i), *other = set_left(s, j);
    const int32_t left = share_size(s, i), right = share_size(s, j);
    const int32_t own = left - shares_common(s, i, j), all = own + right;
    int32_t panels[SDD_MAX_PANELS];
    int32_t count = set_take(set, other, false, s->words, own, panels);
    count += set_take(set, other, true, s->words, left - count, panels + count);
    for (int32_t n = own; n < left; n++)
        other[panels[n] / 64] &= ~(UINT64_C(1) << panels[n] % 64);
    count += set_take(other, set, false, s->words, all - count, panels + count);
    set_take(other, set, true, s->words, all - count, panels + count);
    s->shares[i]--;
    s->shares[j]--;
    unit_add(m, (int32_t)i, (int32_t)j, panels, left, own, right, list);
}

/* Units of pairs of bands while their next shares have so much in common. */
static bool bands_join(const maker *m, const band_sets *s, int32_t least, unit_list *list)
{
    if (!bands_match(s, least))
        return false;
    for (int64_t i = 0; i < s->bands; i++)
        while (s->partner[i] > i && shares_common(s, i, s->partner[i]) >= least)
            shares_join(m, s, i, s->partner[i], list);
    return true;
}

/* A unit of the next two shares of a band, or of one where there is no other or no room for it. */
static void shares_star(const maker *m, const band_sets *s, int64_t band, unit_list *list)
{
    uint64_t *set = set_left(s, band);
    int32_t panels[SDD_MAX_PANELS], size[2] = {0, 0};
    for (int i = 0; i < 2 && s->shares[band]; i++) {
        const int32_t next = share_size(s, band);
        if (1 + size[0] + next > s->room)
            break;
        size[i] = next;
        set_take(set, set, true, s->words, next, panels + i * size[0]);
        s->shares[band]--;
    }
    unit_add(m, (int32_t)band, -1, panels, size[0], size[0], size[1], list);
}

static void sets_start(const band_sets *s)
{
    memcpy(set_left(s, 0), s->bits, (size_t)(s->bands * s->words) * sizeof *s->bits);
}

/* Shares of up to `most` panels, two to a unit: first those of two bands that have much in common,
 * then of one, then what is left. */
static void shares_units(const maker *m, const band_sets *s, double most, unit_list *list)
{
    enum { ROUNDS = 4 };
    sets_start(s);
    shares_deal(s, most);
    for (int32_t least = SHARE; least >= 2; least--)
        for (int i = 0; i < ROUNDS && bands_join(m, s, least, list); i++)
            ;
    for (int64_t i = 0; i < s->bands; i++)
        while (s->shares[i] >= 2 && 1 + 2 * share_size(s, i) <= s->room)
            shares_star(m, s, i, list);
    for (int32_t least = 1; least >= 0; least--)
        bands_join(m, s, least, list);
    for (int64_t i = 0; i < s->bands; i++)
        while (s->shares[i])
            shares_star(m, s, i, list);
}

static void bands_units(const maker *m, int32_t high, const band_sets *s, unit_list *list)
{
    sets_start(s);
    for (int64_t band = 0; band < s->bands; band++) {
        uint64_t *left = set_left(s, band);
        const int32_t count = set_size(left, s->words), row = (int32_t)band * high;
        set_take(left, left, true, s->words, count, s->panels);
        band_units(m, high, row, s->panels, count, s->wide, list);
    }
}

/* Of units at most: none is less than a panel. */
static int64_t units_most(const band_sets *s)
{
    int64_t most = 1;
    for (int64_t i = 0; i < s->bands; i++)
        most += set_size(set_all(s, i), s->words);
    return most;
}

static bool list_make(const bsk_allocator *allocator, int64_t most, int32_t blocks, unit_list *list)
{
    list->units = bski_table_alloc(allocator, most * blocks, sizeof *list->units);
    list->cost = bski_table_alloc(allocator, most, sizeof *list->cost);
    list->count = 0;
    return list->units && list->cost;
}

static void sets_free(const bsk_allocator *allocator, const band_sets *s)
{
    bski_table_free(allocator, s->bits);
    bski_table_free(allocator, s->partner);
    bski_table_free(allocator, s->shares);
    bski_table_free(allocator, s->panels);
}

/* Of bands of `high` panels of rows. */
static bool sets_make(const maker *m, int32_t high, band_sets *s)
{
    const bsk_allocator *allocator = &m->host->allocator;
    const int64_t cols = bski_ceil_div(m->layout->cols, SDD_PANEL);
    panel_set set;
    *s = (band_sets){.bands = band_count(m->layout, high), .words = bski_ceil_div(cols, 64)};
    s->bits = bski_table_alloc(allocator, 2 * s->bands * s->words, sizeof *s->bits);
    s->partner = bski_table_alloc(allocator, s->bands, sizeof *s->partner);
    s->shares = bski_table_alloc(allocator, s->bands, sizeof *s->shares);
    s->panels = bski_table_alloc(allocator, cols, sizeof *s->panels);
    if (!s->bits || !s->partner || !s->shares || !s->panels) {
        sets_free(allocator, s);
        return false;
    }
    for (int64_t band = 0; band < s->bands; band++) {
        band_panels(m->layout, band, high, &set);
        memcpy(set_all(s, band), set.bits, (size_t)s->words * sizeof *s->bits);
    }
    return true;
}

/* --- The choice of a shape --- */

/* Units and their schedule. */
typedef struct way {
    const form *form; /* NULL: there is none yet */
    int32_t high;     /* panels of rows in a band */
    unit_list list;
    bski_sdd_schedule schedule;
    double cycles; /* those of the schedule, and more where stages are few */
} way;

static void way_free(const bsk_host *host, way *w)
{
    bski_table_free(&host->allocator, w->list.units);
    bski_table_free(&host->allocator, w->list.cost);
    bski_sdd_schedule_free(host, &w->schedule);
}

/* More units than blocks, but not many. */
static bool is_few(int32_t units, int32_t blocks)
{
    return units > blocks && units <= 4 * (int64_t)blocks;
}

/* Samples, of all pairs, over which blocks drift too far apart for L2. */
enum { LONG_SWEEP = 16384 };

static bool is_long(const bsk_sdd_params *p)
{
    return bski_sdd_slices(p, 1) >= LONG_SWEEP;
}

/* Whether the units of the last round may be in parts, whose blocks are at different places. */
static bool is_short(int32_t units, int32_t blocks, bool far)
{
    return is_few(units, blocks) && !far;
}

/* Panels of the largest unit. */
static int32_t list_most(const unit_list *list, int32_t blocks)
{
    int32_t most = 1;
    for (int32_t i = 0; i < list->count * blocks; i++)
        most = list->units[i].panels > most ? list->units[i].panels : most;
    return most;
}

/* units: so many of shares; 0: of whole bands. */
static bsk_status way_make(const maker *m, int32_t high, const band_sets *sets, int64_t units,
                           way *w)
{
    enum { FULL_STAGES = 4, STAGES_BYTES = SDD_SHARED_BYTES - SDD_HEAD_BYTES };
    static const double short_ring = 1.06; /* copies are waited for more often */
    const bsk_host *host = m->host;
    *w = (way){.form = m->form, .high = high};
    if (!list_make(&host->allocator, units_most(sets), m->form->cluster, &w->list)) {
        way_free(host, w);
        return host->fail(host->context, BSK_E_NOMEM, "cuda: no memory for units of sdd");
    }
    if (units)
        shares_units(m, sets, share_find(sets, units), &w->list);
    else
        bands_units(m, high, sets, &w->list);
    bsk_status status = BSK_OK;
    if (w->list.count > m->blocks)
        status = units_order(m, high, &w->list);
    /* Stars of many rounds live on their order, those of few on their balance, and cannot do well with
     * tails: others read the same samples together. */
    const bool few = is_few(w->list.count, m->blocks);
    const bool parts = is_short(w->list.count, m->blocks, m->far);
    const bski_sdd_deal deal = {.by_cost = high > 1 || few,
                                .tails = high == 1 && few ? 0.85 : 0.95,
                                .few_tails = high > 1,
                                .halves = m->form->cluster == 1,
                                .last_parts = parts ? LAST_PARTS : 0};
    if (!status)
        status = bski_sdd_schedule_make(host, w->list.cost, w->list.count, (int32_t)m->slices,
                                        m->blocks, &deal, &w->schedule);
    const int32_t most = list_most(&w->list, m->form->cluster);
    const bool full = most * SDD_PANEL_BYTES * FULL_STAGES <= STAGES_BYTES;
    w->cycles = w->schedule.cycles * (full ? 1 : short_ring);
    if (status)
        way_free(host, w);
    return status;
}

/* Keeps the faster one of *best and a new one, by their schedules. */
static bsk_status way_try(const maker *m, int32_t high, const band_sets *sets, int64_t units,
                          way *best)
{
    static const double gain = 0.95; /* less is not worth to leave the order of the matrix */
    way w;
    TRY(way_make(m, high, sets, units, &w));
    const double limit = units && best->form && best->high >= 2 ? gain : 1;
    /* blocks that share rows wait for each other: with several rounds they lost up to a tenth */
    const bool slow = form_shares_rows(m->form, high) && w.list.count > m->blocks;
    const bool better = !slow && w.cycles < limit * best->cycles;
    way_free(m->host, better ? best : &w);
    *best = better ? w : *best;
    return BSK_OK;
}

/* Of shares the fewest units are tried, and more of them, which may fill rounds better; and less
 * room for each, which leaves more stages, but in long sweeps, where it was slower. */
static bsk_status ways_try(const maker *m, int32_t high, band_sets *sets, way *best)
{
    enum { STEPS = 8, LEAST_ROOM = 6 };
    const bool rows = form_shares_rows(m->form, high);
    for (sets->wide = rows ? 2 * SHARE : SHARE; high > 1 && sets->wide >= SHARE; sets->wide -= 2)
        TRY(way_try(m, high, sets, 0, best));
    if (high > 1)
        return BSK_OK;
    const int64_t least = bski_ceil_div(shares_deal(sets, SHARE), 2);
    const int64_t round = bski_ceil_div(least, m->blocks) * m->blocks;
    sets->room = m->far ? SDD_MAX_PANELS : LEAST_ROOM;
    for (; least && sets->room <= SDD_MAX_PANELS; sets->room++) {
        for (int64_t i = 0; i <= STEPS; i++)
            TRY(way_try(m, high, sets, least + least * i / STEPS, best));
        TRY(way_try(m, high, sets, round, best));
        if (2 * least < m->blocks)
            TRY(way_try(m, high, sets, m->blocks / 2, best));
    }
    return BSK_OK;
}

static bsk_status way_find(maker *m, way *best)
{
    const bsk_host *host = m->host;
    bsk_status status = BSK_OK;
    *best = (way){.cycles = 1e30};
    const int32_t units = m->blocks;
    for (size_t k = 0; k < sizeof forms / sizeof *forms; k++)
        for (int32_t high = 4; high >= 1 && !status; high /= 2) {
            band_sets sets;
            m->form = &forms[k];
            m->blocks = units / m->form->cluster;
            if (!form_high(m->form, high) || !m->blocks)
                continue;
            if (sets_make(m, high, &sets)) {
                status = ways_try(m, high, &sets, best);
                sets_free(&host->allocator, &sets);
            } else {
                status = host->fail(host->context, BSK_E_NOMEM, "cuda: no memory for units of sdd");
            }
        }
    if (status)
        way_free(host, best);
    return status;
}

/* --- Plans --- */

typedef struct sdd_state {
    bski_sdd_plan plan;
    bsk_mem units;
    const kernel *kernel;
    int32_t stage_bytes, cluster;
} sdd_state;

static bsk_status state_fill(bski_cuda_device *device, bsk_prepared *prepared, const way *w,
                             sdd_state *state)
{
    const int32_t count = w->list.count;
    state->cluster = w->schedule.halves ? 2 : w->form->cluster;
    /* Stages have room for the largest unit, however small others are: all blocks have the same
     * number under way, and so go through the samples at one pace. */
    state->stage_bytes = list_most(&w->list, w->form->cluster) * SDD_PANEL_BYTES;
    const int32_t samples = prepared->problem->dtype == BSK_F32 ? SDD_PANEL_F32 : SDD_PANEL;
    const bski_sdd_kernel as = {
        SDD_PANEL,          samples,    WARPS * w->form->cluster, ACCUMULATORS,
        state->stage_bytes, SDD_TURNS_B};
    /* stars reread so much that the sweeps must stay together, of f32 in short ones too, and crosses
     * in long ones */
    const int32_t blocks = device->simt.props.compute_units;
    const bool far = is_long(prepared->problem->params), f32 = prepared->problem->dtype == BSK_F32;
    const bool cross = w->high == 2 && w->form->cluster == 1 && far;
    const bool paced = cross || (w->high == 1 && (f32 || !is_short(count, blocks, far)));
    state->plan.work.lead = paced && count > blocks;
    TRY(bski_sdd_plan_make(device, prepared, &w->schedule, &as, &state->plan));
    return table_put(&device->simt, w->list.units, (int64_t)count * w->form->cluster,
                     sizeof *w->list.units, &state->units);
}

bsk_status cuda_sdd_wgmma_prepare(void *device, bsk_prepared *prepared)
{
    bski_cuda_device *d = device;
    const bsk_host *host = d->simt.host;
    const bsk_sdd_params *p = prepared->problem->params;
    TRY(state_new(&d->simt, sizeof(sdd_state), prepared));
    sdd_state *state = prepared->state;
    maker m = {.host = host,
               .layout = prepared->problem->layout,
               .slices = count_slices(prepared->problem),
               .far = is_long(p),
               .blocks = d->simt.props.compute_units};
    const int type = type_index(prepared->problem->dtype);
    way w;
    bsk_status status = way_find(&m, &w);
    if (!status) {
        state->kernel = w.schedule.halves ? half_kernels[type] : w.form->kernels[type];
        state->kernel += bski_sdd_along_n(p);
        status = state_fill(d, prepared, &w, state);
        way_free(host, &w);
    }
    if (!status)
        status =
            bski_cuda_kernel(d, state->kernel->function, SDD_SHARED_BYTES, state->kernel->name);
    if (status)
        cuda_sdd_wgmma_release(device, prepared);
    return status;
}

bsk_status cuda_sdd_wgmma_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const sdd_state *state = prepared->state;
    sdd_wgmma_arg arg;
    if (!state->plan.blocks)
        return BSK_OK;
    memset(&arg, 0, sizeof arg);
    TRY(bski_sdd_arguments(&state->plan, prepared->problem, queue, args, arg.a, arg.b, &arg.work,
                           &arg.out));
    arg.units = bsk_mem_address(state->units);
    arg.stage_bytes = state->stage_bytes;
    void *arguments[] = {&arg};
    const bski_cuda_run run = {.function = state->kernel->function,
                               .name = state->kernel->name,
                               .grid = {(unsigned)(state->plan.blocks * state->cluster), 1, 1},
                               .cluster = (unsigned)state->cluster,
                               .threads = THREADS,
                               .shared_bytes = state->plan.shared_bytes,
                               .arguments = arguments,
                               .early = true};
    return bski_cuda_launch(queue, &run);
}

void cuda_sdd_wgmma_release(void *device, bsk_prepared *prepared)
{
    bski_cuda_device *d = device;
    sdd_state *state = prepared->state;
    if (!state)
        return;
    bski_sdd_plan_free(d, &state->plan);
    table_drop(&d->simt, &state->units);
    state_free(&d->simt, prepared);
}
