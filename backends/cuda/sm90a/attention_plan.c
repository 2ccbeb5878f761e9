/* Lists of units of keys, and who has which tiles. */
#include <float.h>
#include <math.h>

#include <backends/cuda/sm90a/attention_plan.h>
#include <backends/simt/attention_host.h>
#include <common/checked.h>

/* --- Forms --- */

static int32_t rows_of(const attention90_form *f)
{
    return attention90_readers(f) * ATTENTION_UNIT;
}

int32_t bski_attention90_box(const attention90_form *f)
{
    const int32_t band = rows_of(f) / f->bands;
    return band < ATTENTION_UNIT ? band : ATTENTION_UNIT;
}

bool bski_attention90_runs_fit(const attention90_form *f, const bsk_layout_tables *t, int32_t runs)
{
    return attention90_runs_fit(t, runs, rows_of(f), f->side);
}

/* The run of a block row; there is but one, where rows may lie beyond the grid. */
static int32_t run_of(const bsk_layout_tables *t, const attention_arg *a, int32_t row)
{
    return a->runs > 1 ? (int32_t)((int64_t)row * t->block_rows / a->q_time) : 0;
}

/* The blocks of a block row whose keys are of its run, from *at on; answers where they end. A row
 * beyond the grid has none. */
static int64_t blocks_of(const bsk_layout_tables *t, const attention_arg *a, int32_t head,
                         int32_t row, int64_t *at)
{
    const int64_t *start = t->row_start + (int64_t)head * (t->grid_rows + 1);
    *at = start[row];
    if (row >= t->grid_rows)
        return *at;
    const int64_t key = run_of(t, a, row) * (int64_t)a->k_time;
    int64_t end = start[row + 1];
    while (*at < end && (int64_t)t->row_col[*at] * t->block_cols < key)
        ++*at;
    while (*at < end && (int64_t)t->row_col[end - 1] * t->block_cols >= key + a->k_time)
        end--;
    return end;
}

/* The lists of several block rows of a run in one, by columns, and the slots of their blocks. */
static int32_t unite(const bsk_layout_tables *t, const attention_arg *a, int32_t head,
                     const int32_t *row, int32_t bands, attention_union *to, int32_t *slots)
{
    const int32_t first = run_of(t, a, row[0]) * a->k_time;
    int64_t at[ATTENTION_BANDS], end[ATTENTION_BANDS];
    for (int i = 0; i < bands; i++)
        end[i] = blocks_of(t, a, head, row[i], &at[i]);
    for (int32_t count = 0;; count++, slots += bands) {
        int32_t col = INT32_MAX;
        for (int i = 0; i < bands; i++)
            if (at[i] < end[i] && t->row_col[at[i]] < col)
                col = t->row_col[at[i]];
        if (col == INT32_MAX)
            return count;
        to[count] = (attention_union){.key = col * t->block_cols - first};
        for (int i = 0; i < bands; i++) {
            const bool kept = at[i] < end[i] && t->row_col[at[i]] == col;
            slots[i] = kept ? t->row_slot[at[i]++] : -1;
            to[count].kept |= kept << i;
        }
    }
}

/* Whether neighbouring block rows are alike: what both multiply then, each with the blocks of
 * either, is little more than what they keep, and is read once. */
static bool rows_alike(const bsk_layout_tables *t)
{
    int64_t alone = 0;
    for (int32_t h = 0; h < t->heads; h++)
        for (int32_t row = 0; row + 1 < t->grid_rows; row += 2) {
            const int64_t *start = t->row_start + (int64_t)h * (t->grid_rows + 1) + row;
            int64_t x = start[0], y = start[1];
            alone += start[2] - start[0];
            while (x < start[1] && y < start[2]) {
                const int32_t a = t->row_col[x], b = t->row_col[y];
                alone -= a == b ? 2 : 0;
                x += a <= b;
                y += b <= a;
            }
        }
    return alone * 16 <= t->nnz;
}

/* Whether the rows of a tile see what the form's lists can say, in steps that blocks fill. */
static bool rows_fit(const attention90_form *f, const bsk_layout_tables *t)
{
    if (f->bands == 1)
        return t->block_rows % rows_of(f) == 0 &&
               t->block_cols % (attention90_readers(f) > 1 ? f->side : f->step) == 0;
    const int32_t side = rows_of(f) / f->bands;
    return t->block_rows == side && t->block_cols == f->side &&
           (attention90_readers(f) == 1 || rows_alike(t));
}

const attention90_form *bski_attention90_form(const attention90_form *forms, size_t count,
                                              bsk_dtype dtype, const bsk_layout_tables *layout,
                                              int64_t width)
{
    const attention90_form *best = NULL;
    for (size_t i = 0; i < count; i++) {
        const attention90_form *f = &forms[i];
        if (f->dtype != dtype || f->width < width || (best && f->width > best->width) ||
            !rows_fit(f, layout))
            continue;
        best = f;
    }
    return best;
}

/* --- Schedules --- */

/* While a schedule is made. */
typedef struct hand_out {
    attention90_schedule *s;
    int32_t *given;  /* [tiles of all heads] in the order in which they are handed out */
    int32_t *ring;   /* [the same]: whose they are */
    int32_t *order;  /* [tiles of a group of heads] */
    int32_t *places; /* [most steps + 2] */
    load *loads;     /* [rings] */
    double *work;    /* [rings] of each */
    int32_t count, rings, most;
} hand_out;

/* The ring whose turn it is: first one of each thread block, then the next of each. */
static int32_t ring_of(const attention90_schedule *s, int32_t turn)
{
    return turn % s->blocks * s->rings + turn / s->blocks;
}

static int32_t steps_of(const attention90_schedule *s, int32_t tile)
{
    return s->steps[tile / s->tiles % s->period / s->each * s->tiles + tile % s->tiles];
}

static double work_of(const attention90_schedule *s, int32_t tile)
{
    static const double tile_steps = 0.5; /* what a tile costs beside its steps */
    return steps_of(s, tile) + tile_steps;
}

/* Tiles first .. first + count - 1, the longest first. */
static void sort_tiles(const hand_out *b, int32_t first, int32_t count)
{
    memset(b->places, 0, (size_t)(b->most + 2) * sizeof *b->places);
    for (int32_t i = 0; i < count; i++)
        b->places[b->most - steps_of(b->s, first + i) + 1]++;
    for (int32_t i = 0; i <= b->most; i++)
        b->places[i + 1] += b->places[i];
    for (int32_t i = 0; i < count; i++)
        b->order[b->places[b->most - steps_of(b->s, first + i)]++] = first + i;
}

static void assign(hand_out *b, int32_t first, int32_t count)
{
    sort_tiles(b, first, count);
    for (int32_t i = 0; i < count; i++) {
        const int32_t tile = b->order[i];
        const int32_t ring = ring_of(b->s, loads_give(b->loads, b->rings, work_of(b->s, tile)));
        b->given[b->count] = tile;
        b->ring[b->count++] = ring;
        b->s->start[ring + 1]++;
    }
}

/* Of all exchanges of a tile of ring x for one of y that runs at about the same time, so that they
 * are of heads that are in use then, the one that leaves the two nearest to each other. False: none
 * does any good. */
static bool exchange(const hand_out *b, int32_t x, int32_t y)
{
    const attention90_schedule *s = b->s;
    const int32_t x_end = s->start[x + 1], y_end = s->start[y + 1];
    const double gap = b->work[x] - b->work[y];
    double moved = 0;
    int32_t from = 0, to = 0;
    for (int32_t at = s->start[x]; at < x_end; at++)
        for (int32_t i = x_end - at - 1; i <= x_end - at + 1; i++) {
            const int32_t by = y_end - i;
            if (by < s->start[y] || by >= y_end)
                continue;
            const double more = work_of(s, s->order[at]) - work_of(s, s->order[by]);
            if (fabs(gap - 2 * more) < fabs(gap - 2 * moved)) {
                moved = more;
                from = at;
                to = by;
            }
        }
    if (moved <= 0)
        return false;
    const int32_t tile = s->order[from];
    s->order[from] = s->order[to];
    s->order[to] = tile;
    b->work[x] -= moved;
    b->work[y] += moved;
    return true;
}

/* Who is given the longest tile of the last group has a few steps more than others: tiles are
 * exchanged between the rings with most and with least to do. */
static void even_out(const hand_out *b)
{
    const attention90_schedule *s = b->s;
    for (int32_t r = 0; r < b->rings; r++) {
        b->work[r] = 0;
        for (int32_t i = s->start[r]; i < s->start[r + 1]; i++)
            b->work[r] += work_of(s, s->order[i]);
    }
    for (int32_t n = 0; n < 2 * b->rings; n++) {
        int32_t most = 0, least = 0;
        for (int32_t r = 1; r < b->rings; r++) {
            most = b->work[r] > b->work[most] ? r : most;
            least = b->work[r] < b->work[least] ? r : least;
        }
        if (!exchange(b, most, least))
            return;
    }
}

static bsk_status hand_out_all(const bsk_host *host, hand_out *b)
{
    attention90_schedule *s = b->s;
    const int32_t tiles = s->heads * s->tiles; /* fits, as promised */
    const int32_t group = (s->together < s->heads ? s->together : s->heads) * s->tiles;
    s->blocks = tiles < s->blocks ? tiles : s->blocks;
    b->rings = s->blocks * s->rings;
    for (int32_t i = 0; i < tiles; i++)
        b->most = steps_of(s, i) > b->most ? steps_of(s, i) : b->most;
    TRY(host_array(host, &s->order, tiles, sizeof *s->order));
    TRY(host_array(host, &s->start, (int64_t)b->rings + 1, sizeof *s->start));
    TRY(host_array(host, &b->given, tiles, sizeof *b->given));
    TRY(host_array(host, &b->ring, tiles, sizeof *b->ring));
    TRY(host_array(host, &b->order, group, sizeof *b->order));
    TRY(host_array(host, &b->places, (int64_t)b->most + 2, sizeof *b->places));
    TRY(host_array(host, &b->loads, b->rings, sizeof *b->loads));
    TRY(host_array(host, &b->work, b->rings, sizeof *b->work));
    loads_open(b->loads, b->rings);
    for (int32_t first = 0; first < tiles; first += group)
        assign(b, first, first + group < tiles ? group : tiles - first);
    for (int32_t r = 0; r < b->rings; r++)
        s->start[r + 1] += s->start[r];
    /* start serves as the next free place of each ring, and is then one ring ahead. */
    for (int32_t i = 0; i < tiles; i++)
        s->order[s->start[b->ring[i]]++] = b->given[i];
    memmove(s->start + 1, s->start, (size_t)b->rings * sizeof *s->start);
    s->start[0] = 0;
    even_out(b);
    return BSK_OK;
}

bsk_status bski_attention90_schedule(const bsk_host *host, attention90_schedule *s)
{
    hand_out b = {.s = s};
    s->order = s->start = NULL;
    const bsk_status status = hand_out_all(host, &b);
    void *all[] = {b.given, b.ring, b.order, b.places, b.loads, b.work};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        host_drop(host, all[i]);
    return status;
}

/* --- Lists of passes that own query rows --- */

/* While the tables of a pass are made. Line l of a head of the layout has the units start[l] to
 * start[l + 1] - 1, for `line_rows` rows. */
typedef struct builder {
    simt_device *device;
    const bsk_layout_tables *t;
    const attention90_form *form;
    const attention_arg *arg;
    int32_t step; /* units */
    int32_t rows; /* of a tile */
    int32_t lines, line_rows;
    int32_t *rows_of;      /* [layout heads][lines][bands]: block rows of a tile */
    int32_t *start;        /* [layout heads * lines + 1] */
    attention_unit *units; /* one of these two */
    attention_union *unions;
    int32_t *slots;        /* [unions][bands] */
    int32_t *steps;        /* [layout heads][tiles] */
    attention_tile *tiles; /* by ring */
    attention90_schedule schedule;
} builder;

static bool is_union(const builder *b)
{
    return b->form->bands > 1;
}

/* Kept blocks in units of the form's. */
static bsk_status list_units(builder *b)
{
    const bsk_layout_tables *t = b->t;
    const int32_t side = b->form->side, n = t->block_cols / side;
    int32_t count = 0; /* fits */
    TRY(host_array(b->device->host, &b->units, t->nnz * n, sizeof *b->units));
    for (int32_t h = 0; h < t->heads; h++)
        for (int32_t l = 0; l < b->lines; l++) {
            int64_t at;
            const int64_t end = blocks_of(t, b->arg, h, l, &at);
            const int32_t first = run_of(t, b->arg, l) * b->arg->k_time;
            b->start[(int64_t)h * b->lines + l] = count;
            for (; at < end; at++)
                for (int32_t i = 0; i < n; i++)
                    b->units[count++] = (attention_unit){
                        t->row_col[at] * t->block_cols + i * side - first, t->row_slot[at]};
        }
    b->start[(int64_t)t->heads * b->lines] = count;
    return BSK_OK;
}

/* Which block rows share a tile: any of a single run that have much in common, if warpgroups have
 * lists of their own and that saves more than some percent, or neighbours. Rows that are left over
 * have the end of the grid beside them. */
static bsk_status group_rows(const builder *b, int32_t head, int32_t *order)
{
    enum { WINDOW = 64 };
    const bsk_layout_tables *t = b->t;
    const int32_t bands = b->form->bands;
    const bsk_host *host = b->device->host;
    bski_diag diag = {BSK_OK, ""};
    int64_t cost = 1, natural = 0;
    for (int32_t i = t->grid_rows; i < b->lines * bands; i++)
        order[i] = t->grid_rows;
    if (attention90_readers(b->form) == 1 && b->arg->runs == 1 &&
        (bski_schedule_groups(t, false, head, bands, WINDOW, &host->allocator, order, &diag) ||
         bski_schedule_group_cost(t, false, head, bands, order, &host->allocator, &cost, &diag) ||
         bski_schedule_group_cost(t, false, head, bands, NULL, &host->allocator, &natural, &diag)))
        return host->fail(host->context, diag.status, "attention: %s", diag.text);
    for (int32_t i = 0; i < t->grid_rows && cost * 33 > natural * 32; i++)
        order[i] = i;
    return BSK_OK;
}

static bsk_status list_unions(builder *b)
{
    const bsk_layout_tables *t = b->t;
    const bsk_host *host = b->device->host;
    const int64_t bands = b->form->bands;
    int32_t count = 0;
    TRY(host_array(host, &b->unions, t->nnz, sizeof *b->unions));
    TRY(host_array(host, &b->slots, t->nnz * bands, sizeof *b->slots));
    TRY(host_array(host, &b->rows_of, t->heads * bands * b->lines, sizeof *b->rows_of));
    for (int32_t h = 0; h < t->heads; h++) {
        int32_t *rows = b->rows_of + h * bands * b->lines;
        TRY(group_rows(b, h, rows));
        for (int32_t l = 0; l < b->lines; l++) {
            b->start[(int64_t)h * b->lines + l] = count;
            count += unite(t, b->arg, h, rows + bands * l, b->form->bands, b->unions + count,
                           b->slots + bands * count);
        }
    }
    b->start[(int64_t)t->heads * b->lines] = count;
    return BSK_OK;
}

static const int32_t *list_of(const builder *b, int32_t head, int32_t tile)
{
    return b->start + (int64_t)head * b->lines + (int64_t)tile * b->rows / b->line_rows;
}

/* The run of a tile. */
static int32_t run_of_tile(const builder *b, int32_t tile)
{
    return run_of(b->t, b->arg, (int32_t)((int64_t)tile * b->rows / b->t->block_rows));
}

/* The first row of a tile's band. */
static int32_t row_of(const builder *b, int32_t head, int32_t tile, int32_t band)
{
    const int32_t first = run_of_tile(b, tile) * b->arg->q_time;
    if (!is_union(b))
        return tile * b->rows - first;
    const int64_t line = (int64_t)head * b->lines + tile;
    return b->rows_of[line * b->form->bands + band] * b->t->block_rows - first;
}

/* Whether a band sees some of a unit, if its member has all times. */
static bool is_seen(const builder *b, int64_t row, int64_t key)
{
    const attention_arg *a = b->arg;
    const int64_t end = row + b->rows / b->form->bands;
    const int64_t shift = a->align_end ? a->k_time - a->q_time : 0;
    const int64_t near = row + shift - (key + b->form->side - 1);
    const int64_t far = (end < a->q_time ? end : a->q_time) - 1 + shift - key;
    return row < a->q_time && key < a->k_time && (!a->causal || far >= 0) &&
           (!a->window || (near < a->window && -far < a->window));
}

/* Steps of such a tile. */
static int32_t count_steps(const builder *b, int32_t head, int32_t tile)
{
    const int32_t *list = list_of(b, head, tile);
    int32_t units = 0;
    for (int32_t u = list[0]; u < list[1]; u++) {
        bool seen = !is_union(b) && is_seen(b, row_of(b, head, tile, 0), b->units[u].key);
        for (int band = 0; is_union(b) && band < b->form->bands; band++)
            seen = seen || (b->unions[u].kept >> band & 1 &&
                            is_seen(b, row_of(b, head, tile, band), b->unions[u].key));
        units += seen;
    }
    return units > 0 ? (units + b->step - 1) / b->step : 1;
}

static bsk_status make_schedule(builder *b, int64_t batch)
{
    const attention_arg *a = b->arg;
    const int32_t at_once =
        b->form->width > 64 ? 2 : 4; /* heads whose keys and values stay in L2 */
    const int32_t tiles = (int32_t)bski_ceil_div(b->t->rows, b->rows);
    b->schedule = (attention90_schedule){
        .heads = (int32_t)batch * a->heads, /* fits: accepted */
        .tiles = tiles,
        .together = a->group > at_once ? a->group : at_once,
        .rings = b->form->rings,
        .period = a->heads,
        .each = a->heads / b->t->heads,
        .blocks = b->device->props.compute_units,
    };
    TRY(host_array(b->device->host, &b->steps, (int64_t)b->t->heads * tiles, sizeof *b->steps));
    for (int32_t head = 0; head < b->t->heads; head++)
        for (int32_t i = 0; i < tiles; i++)
            b->steps[(int64_t)head * tiles + i] = count_steps(b, head, i);
    b->schedule.steps = b->steps;
    return bski_attention90_schedule(b->device->host, &b->schedule);
}

static bsk_status make_tiles(builder *b)
{
    const attention90_schedule *s = &b->schedule;
    const int32_t count = s->heads * s->tiles;
    TRY(host_array(b->device->host, &b->tiles, count, sizeof *b->tiles));
    for (int32_t n = 0; n < count; n++) {
        const int32_t head = s->order[n] / s->tiles, i = s->order[n] % s->tiles;
        const int32_t pattern = head % s->period / s->each;
        const int32_t *list = list_of(b, pattern, i);
        b->tiles[n] = (attention_tile){head, list[0], list[1] - list[0], {0}, run_of_tile(b, i)};
        for (int32_t band = 0; band < b->form->bands; band++)
            b->tiles[n].row[band] = row_of(b, pattern, i, band);
    }
    return BSK_OK;
}

static bsk_status build(builder *b, int64_t batch, attention90_tables *tables, attention_arg *arg)
{
    simt_device *d = b->device;
    const attention90_schedule *s = &b->schedule;
    TRY(host_array(d->host, &b->start, (int64_t)b->t->heads * b->lines + 1, sizeof *b->start));
    TRY(is_union(b) ? list_unions(b) : list_units(b));
    TRY(make_schedule(b, batch));
    TRY(make_tiles(b));
    const int64_t units = b->start[(int64_t)b->t->heads * b->lines];
    if (is_union(b) && arg->masks > 0)
        TRY(table_place(d, b->slots, units * b->form->bands, sizeof *b->slots, &tables->slots,
                        &arg->slots));
    TRY(is_union(b)
            ? table_place(d, b->unions, units, sizeof *b->unions, &tables->units, &arg->unions)
            : table_place(d, b->units, units, sizeof *b->units, &tables->units, &arg->units));
    TRY(table_place(d, b->tiles, (int64_t)s->heads * s->tiles, sizeof *b->tiles, &tables->tiles,
                    &arg->tiles));
    tables->blocks = s->blocks;
    return table_place(d, s->start, (int64_t)s->blocks * s->rings + 1, sizeof *s->start,
                       &tables->tile_start, &arg->tile_start);
}

bsk_status bski_attention90_tables(simt_device *device, const bsk_layout_tables *layout,
                                   const attention90_form *form, int64_t batch,
                                   attention90_tables *tables, attention_arg *arg)
{
    builder b = {.device = device,
                 .t = layout,
                 .form = form,
                 .arg = arg,
                 .step = form->step / form->side,
                 .rows = rows_of(form)};
    b.line_rows = form->bands * layout->block_rows;
    b.lines = (int32_t)bski_ceil_div(layout->grid_rows, form->bands);
    const bsk_status status = build(&b, batch, tables, arg);
    void *all[] = {b.start, b.units, b.unions,         b.slots,         b.rows_of,
                   b.steps, b.tiles, b.schedule.order, b.schedule.start};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        host_drop(device->host, all[i]);
    return status;
}

void bski_attention90_tables_free(simt_device *device, attention90_tables *tables)
{
    table_drop(device, &tables->units);
    table_drop(device, &tables->slots);
    table_drop(device, &tables->tiles);
    table_drop(device, &tables->tile_start);
}

bool bski_attention90_fits(const bsk_layout_tables *t, int64_t batch, int64_t heads)
{
    enum { TIMES = 1 << 29 }; /* so that distances have 32 bits */
    int64_t tiles, units;
    return t->rows < TIMES && t->cols < TIMES &&
           (t->block_rows >= ATTENTION_UNIT / 2 || t->grid_cols <= ATTENTION_PLACES) &&
           bski_mul_i64(bski_ceil_div(t->rows, ATTENTION_UNIT), batch, &tiles) &&
           bski_mul_i64(tiles, heads, &tiles) && tiles <= INT32_MAX &&
           bski_mul_i64(t->nnz, bski_ceil_div(t->block_cols, ATTENTION_UNIT / 2), &units) &&
           units <= INT32_MAX;
}

/* --- Problems --- */

bool bski_attention90_out_fits(const bsk_tensor *o)
{
    const int64_t run = o->dtype == BSK_F32 ? 2 : 4;
    for (int axis = 0; axis < 3; axis++)
        if (o->dims[axis] > 1 && o->strides[axis] % run)
            return false;
    return true;
}

attention_out bski_attention90_out(const bsk_tensor *o, int32_t runs)
{
    return (attention_out){.batch = o->strides[0],
                           .head = o->strides[1],
                           .run = o->strides[2],
                           .time = o->strides[2] * runs,
                           .type = (int32_t)o->dtype,
                           .width = (int32_t)o->dims[3]};
}

attention_in bski_attention90_in(const bsk_tensor *x, int32_t runs)
{
    return (attention_in){.batch = x->strides[0],
                          .head = x->strides[1],
                          .run = x->strides[2],
                          .time = x->strides[2] * runs,
                          .width = (int32_t)x->dims[3]};
}

float bski_attention90_scale(double scale, int64_t width)
{
    const double log2_e = 1.44269504088896340736;
    const double x = attention_scale(scale, width) * log2_e;
    const double size = fmin(fmax(fabs(x), FLT_MIN), FLT_MAX);
    return (float)copysign(size, x);
}

double bski_attention90_slope(double scale, int64_t width, double *rest)
{
    const double x = attention_scale(scale, width), slope = fabs(x) <= 1 ? x : 1;
    *rest = x / slope;
    return slope;
}
