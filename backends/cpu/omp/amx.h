/* The kernels on matrix tiles. dsd: 8, 16 or 32 features by two or four tiles of n, over tiles of S,
 * which are as deep as a block or as a tile can be, and so meet B where it lies.
 * Included by dsd.h after its types, once for each kind of arithmetic. */

/* Tiles 0 to 3 are sums: two tiles of rows by two of columns, or one by four. 4 is of S, 6 and 7 are
 * of B, and 5 is of S where there are two tiles of rows. The compiler wants their numbers as they
 * are. TILE_PRODUCT: the instruction that multiplies them. */

/* TILE: of S or of sums in sdd. AWAKE: rows of S, at most, by which each of four tiles of sums is
 * multiplied between two stores of them: after about 2,000 cycles without a store of a tile the next
 * one takes 800 more. */
enum { FN(TILE) = DSD_MR * TILE_DEPTH, FN(AWAKE) = 20 * DSD_MR };

/* Configures the thread's tiles for blocks of `rows` features, and products `depth` deep. */
static void FN(tiles_open)(int64_t rows, int64_t depth)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        const bool of_b = i > 5 || (i == 5 && rows <= DSD_MR), of_s = i > 3 && !of_b;
        config.bytes[i] = of_s ? (uint16_t)(depth * (int64_t)sizeof(T)) : TILE_BYTES;
        config.rows[i] = (uint8_t)(of_b ? depth : min_i64(rows, DSD_MR));
    }
    /* To GCC 12 the instruction reads 8 bytes, so that stores to the others might be left out. */
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

static void FN(tiles_close)(void)
{
    _tile_release();
}

/* sums += s b for a tile of S, or two if `tall`, and a tile of B, or two if `wide`, from a
 * panel. It goes past the first-level cache, which S and the sums need. */
OMP_INLINE void FN(tiles_multiply)(const T *s, int64_t s_row, const T *b, bool tall, bool wide)
{
    const int64_t step = FN(NR) * (int64_t)sizeof(T), s_step = s_row * (int64_t)sizeof(T);
    _tile_loadd(4, s, s_step);
    _tile_stream_loadd(6, b, step);
    TILE_PRODUCT(0, 4, 6);
    if (wide) {
        _tile_stream_loadd(7, b + FN(VL), step);
        TILE_PRODUCT(1, 4, 7);
    }
    if (tall) {
        _tile_loadd(5, s + DSD_MR * s_row, s_step);
        TILE_PRODUCT(2, 5, 6);
        if (wide)
            TILE_PRODUCT(3, 5, 7);
    }
}

/* Rows of B for a tile: `depth` of them from b, and zeros up to `end`. */
OMP_INLINE void FN(rows_gather)(T *restrict dst, const T *restrict b, int64_t depth, int64_t end,
                                bool wide)
{
    const int64_t vectors = wide ? DSD_NV : 1;
    for (int64_t k = 0; k < depth; k++)
        for (int64_t v = 0; v < vectors; v++)
            FN(vstore)(dst + k * FN(NR) + v * FN(VL), FN(vload)(b + k * FN(NR) + v * FN(VL)));
    for (int64_t k = depth; k < end; k++)
        for (int64_t v = 0; v < vectors; v++)
            FN(vstore)(dst + k * FN(NR) + v * FN(VL), (V){0});
}

/* Tiles of sums, between registers and rows of strips: 0 and 1 at `at`, 2 and 3 at `second`, if
 * there are such. */
OMP_INLINE void FN(sums_load)(const T *at, const T *second, bool wide)
{
    const int64_t step = FN(NR) * (int64_t)sizeof(T);
    _tile_loadd(0, at, step);
    if (wide)
        _tile_loadd(1, at + FN(VL), step);
    if (second)
        _tile_loadd(2, second, step);
    if (second && wide)
        _tile_loadd(3, second + FN(VL), step);
}

OMP_INLINE void FN(sums_store)(T *at, T *second, bool wide)
{
    const int64_t step = FN(NR) * (int64_t)sizeof(T);
    _tile_stored(0, at, step);
    if (wide)
        _tile_stored(1, at + FN(VL), step);
    if (second)
        _tile_stored(2, second, step);
    if (second && wide)
        _tile_stored(3, second + FN(VL), step);
}

OMP_INLINE void FN(sums_clear)(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* Asks for `lines` lines, and returns what follows them. */
OMP_INLINE const T *FN(lines_fetch)(const T *fetch, int64_t lines)
{
    for (int64_t i = 0; i < lines; i++, fetch += TILE_BYTES / (int64_t)sizeof(T))
        __builtin_prefetch(fetch, 0, 2);
    return fetch;
}

/* The same in four pages at once, of which each is a quarter behind the one before it: the second
 * level's own prefetcher runs 20 lines ahead within a page, and in one page alone these are needed
 * sooner than memory brings them. Lines are counted from address 0, so that a call goes on where the
 * one before it ended. */
enum { FN(PAGE) = 4096 / TILE_BYTES, FN(PAGES) = 4 };
typedef struct FN(fetch) {
    const char *at[FN(PAGES)];
    int64_t lines; /* of each page in a step */
} FN(fetch);

/* lines: of a step. */
static FN(fetch) FN(fetch_open)(const T *from, int64_t lines)
{
    const intptr_t line = (intptr_t)from / TILE_BYTES;
    FN(fetch) f = {.lines = bski_ceil_div(lines, FN(PAGES))};
    for (int64_t i = 0; i < FN(PAGES); i++) {
        const intptr_t own = line / FN(PAGES) + i * FN(PAGE) / FN(PAGES);
        const intptr_t page = own / FN(PAGE) * FN(PAGES) + i;
        f.at[i] = (const char *)((page * FN(PAGE) + own % FN(PAGE)) * TILE_BYTES);
    }
    return f;
}

/* A step's lines of one page. */
OMP_INLINE void FN(page_fetch)(FN(fetch) * f, int i)
{
    const char *at = f->at[i];
    for (int64_t n = f->lines; n > 0; n--) {
        __builtin_prefetch(at, 0, 2);
        at += TILE_BYTES;
        if ((intptr_t)at % (FN(PAGE) * TILE_BYTES) == 0)
            at += (FN(PAGES) - 1) * FN(PAGE) * TILE_BYTES;
    }
    f->at[i] = at;
}

/* Tiles of S are s_row from row to row: packed ones follow each other, others lie in a block's rows. What
 * is left of a block at the edge of the matrix is put together with zeros. Each step fetches `lines`
 * lines of what S needs next. */
OMP_INLINE void FN(tile_pieces)(T *restrict buffer, const FN(piece) * piece, int64_t count,
                                const T *restrict b, int64_t s_row, int64_t lines,
                                int64_t block_depth, int64_t from, bool resume, const int features,
                                const bool wide)
{
    const bool tall = features > DSD_MR;
    const int64_t deep = min_i64(block_depth, TILE_DEPTH);
    const T *fetch = count > 0 ? piece[0].fetch + from : NULL;
    T *second = tall ? buffer + DSD_MR * FN(NR) : NULL;
    T rest[TILE_DEPTH * FN(NR)] __attribute__((aligned(64)));

    if (resume)
        FN(sums_load)(buffer, second, wide);
    else
        FN(sums_clear)();
    for (int64_t e = 0; e < count; e++) {
        const T *s = piece[e].s, *rows = b + piece[e].first * FN(NR);
        int64_t k = 0;
        for (; k + deep <= piece[e].depth; k += deep, s += s_row == deep ? features * deep : deep) {
            fetch = FN(lines_fetch)(fetch, lines);
            FN(tiles_multiply)(s, s_row, rows + k * FN(NR), tall, wide);
        }
        if (k == piece[e].depth)
            continue;
        fetch = FN(lines_fetch)(fetch, lines);
        FN(rows_gather)(rest, rows + k * FN(NR), piece[e].depth - k, deep, wide);
        FN(tiles_multiply)(s, s_row, rest, tall, wide);
    }
    FN(sums_store)(buffer, second, wide);
}

/* Work for slices that follow, which the steps of one share: see slice_ahead. */
typedef struct FN(turning) {
    const T *const *from, *const *then; /* where in S the steps of the next slice that is packed
                                         * begin, and those of the one whose lines are asked for */
    T *to;
    int64_t rows, deep, most, ld; /* tiles of the former: see turn_rows */
    int64_t parts, rate, row;     /* of `most` rows: left to do, at a time; the next one's row */
    int64_t then_steps, line_step, lines; /* of the latter: lines of a step at a time */
} FN(turning);

/* What the products of one slice of a row group's list with several panels need. */
typedef struct FN(slice) {
    const T *const *tile;       /* of each step */
    int64_t s_row, steps, size; /* Ts from row to row of a tile, steps, Ts of one */
    const T *b;
    int64_t panel_size, panels;
    int64_t lines; /* of what follows in S that each step fetches */
    bool resume;
    FN(turning) * turning; /* of S that is packed as it is used, or NULL */
} FN(slice);

/* A share of that work: parts of the next slice, and lines `first` and on of a step of another. */
OMP_INLINE void FN(turn_ahead)(FN(turning) * t, int64_t step, int64_t first)
{
    if (step < t->then_steps) {
        const T *at = t->then[step] + first * t->line_step;
        for (int64_t i = t->lines; i > 0; i--, at += t->line_step)
            __builtin_prefetch(at, 0, 2);
    }
#ifdef TURNS
    for (int64_t i = t->rate; i > 0 && t->parts > 0; i--, t->parts--) {
        FN(turn)
        (t->to, (const S_STORED *)(const void *)*t->from + t->row, t->ld, t->deep * UNIT);
        t->to += t->most * t->deep;
        t->row += t->most;
        if (t->row == t->rows) {
            t->row = 0;
            t->from++;
        }
    }
#endif
}

/* What a slice's steps have left of it; all: they did nothing. */
static void FN(turn_rest)(FN(turning) * t, bool all)
{
    for (int64_t step = 0; step < t->then_steps && all; step++)
        FN(turn_ahead)(t, step, 0);
    while (t->parts > 0)
        FN(turn_ahead)(t, t->then_steps, 0);
}

/* A row group of two tiles times a slice for each panel: at[i] is where the tile of step i lies in a
 * panel, and at[steps] is free. Tiles are loaded as soon as the products that need their place are
 * under way, those of the next panel during the last products of one, and lines of S are fetched
 * between products. */
OMP_INLINE void FN(tall_steps)(const FN(slice) * x, T *restrict strips, int64_t strip_size,
                               int64_t *at, const bool turns)
{
    const int64_t row = FN(NR) * (int64_t)sizeof(T), s_row = x->s_row * (int64_t)sizeof(T);
    const int64_t steps = x->steps, low = DSD_MR * x->s_row;
    const T *const *s = x->tile, *b = x->b;
    FN(fetch) fetch = FN(fetch_open)(s[0] + steps * x->size, x->lines);

    _tile_loadd(4, s[0], s_row);
    _tile_loadd(5, s[0] + low, s_row);
    _tile_stream_loadd(6, b + at[0], row);
    _tile_stream_loadd(7, b + at[0] + FN(VL), row);
    for (int64_t q = 0; q < x->panels; q++, b += x->panel_size, strips += strip_size) {
        at[steps] = at[0] + (q + 1 < x->panels ? x->panel_size : 0);
        if (x->resume)
            FN(sums_load)(strips, strips + DSD_MR * FN(NR), true);
        else
            FN(sums_clear)();
        for (int64_t i = 1; i <= steps; i++) {
            const T *next_s = s[i < steps ? i : 0], *next_b = b + at[i];
            TILE_PRODUCT(0, 4, 6);
            if (!turns)
                FN(page_fetch)(&fetch, 0);
            TILE_PRODUCT(1, 4, 7);
            if (!turns)
                FN(page_fetch)(&fetch, 1);
            _tile_loadd(4, next_s, s_row);
            TILE_PRODUCT(2, 5, 6);
            if (!turns)
                FN(page_fetch)(&fetch, 2);
            _tile_stream_loadd(6, next_b, row);
            TILE_PRODUCT(3, 5, 7);
            if (turns)
                FN(turn_ahead)(x->turning, i - 1, q * x->turning->lines);
            else
                FN(page_fetch)(&fetch, 3);
            _tile_loadd(5, next_s + low, s_row);
            _tile_stream_loadd(7, next_b + FN(VL), row);
        }
        FN(sums_store)(strips, strips + DSD_MR * FN(NR), true);
    }
}

static void FN(tall_multiply)(const FN(slice) * x, T *restrict strips, int64_t strip_size,
                              int64_t *at)
{
    if (x->panels == 0)
        return;
    if (x->turning)
        FN(tall_steps)(x, strips, strip_size, at, true);
    else
        FN(tall_steps)(x, strips, strip_size, at, false);
}

/* A step of a row group of one tile by four tiles of columns, of which three are in tiles x, y and z
 * and the last is at `fourth`; and loads for the next step, which has its first three in y, z and x. */
#define LOW_STEP(x, y, z, fourth, row, next_s, s_row, first, second, third)                        \
    do {                                                                                           \
        TILE_PRODUCT(0, 4, x);                                                                     \
        _tile_stream_loadd(x, fourth, row);                                                        \
        TILE_PRODUCT(1, 4, y);                                                                     \
        _tile_stream_loadd(y, first, row);                                                         \
        TILE_PRODUCT(2, 4, z);                                                                     \
        _tile_stream_loadd(z, second, row);                                                        \
        TILE_PRODUCT(3, 4, x);                                                                     \
        _tile_loadd(4, next_s, s_row);                                                             \
        _tile_stream_loadd(x, third, row);                                                         \
    } while (0)

/* The same for a row group of one tile, by two panels at once: products that add to the sums of one
 * alone would wait for each other. */
static void FN(low_multiply)(const FN(slice) * x, T *restrict strips, int64_t strip_size,
                             int64_t *at)
{
    const int64_t row = FN(NR) * (int64_t)sizeof(T), s_row = x->s_row * (int64_t)sizeof(T);
    const int64_t steps = x->steps;
    const T *fetch = x->tile[0] + steps * x->size, *b = x->b;

    at[steps] = at[0];
    for (int64_t q = 0; q < x->panels; q += 2, b += 2 * x->panel_size, strips += 2 * strip_size) {
        const T *right = b + x->panel_size;
        if (x->resume)
            FN(sums_load)(strips, strips + strip_size, true);
        else
            FN(sums_clear)();
        _tile_loadd(4, x->tile[0], s_row);
        _tile_stream_loadd(5, b + at[0], row);
        _tile_stream_loadd(6, b + at[0] + FN(VL), row);
        _tile_stream_loadd(7, right + at[0], row);
#define DSD_LOW(first, second, third, step)                                                        \
    if ((step) < steps) {                                                                          \
        const T *left = b + at[(step) + 1], *fourth = right + at[step] + FN(VL);                   \
        const T *s = x->tile[(step) + 1 < steps ? (step) + 1 : 0];                                 \
        if (x->turning)                                                                            \
            FN(turn_ahead)(x->turning, step, q / 2 * x->turning->lines);                           \
        else                                                                                       \
            fetch = FN(lines_fetch)(fetch, x->lines);                                              \
        LOW_STEP(first, second, third, fourth, row, s, s_row, left, left + FN(VL),                 \
                 left + x->panel_size);                                                            \
    }
        for (int64_t i = 0; i < steps; i += 3) {
            DSD_LOW(5, 6, 7, i)
            DSD_LOW(6, 7, 5, i + 1)
            DSD_LOW(7, 5, 6, i + 2)
        }
#undef DSD_LOW
        FN(sums_store)(strips, strips + strip_size, true);
    }
}

#define DSD_TILES(name, features, wide)                                                            \
    static void FN(name)(T *restrict buffer, const FN(piece) * piece, int64_t count,               \
                         const T *restrict b, int64_t s_row, int64_t block_depth, int64_t from,    \
                         int64_t lines, bool resume)                                               \
    {                                                                                              \
        FN(tile_pieces)                                                                            \
        (buffer, piece, count, b, s_row, lines, block_depth, from, resume, features, wide);        \
    }
DSD_TILES(tile_8_wide, 8, true)
DSD_TILES(tile_8_narrow, 8, false)
DSD_TILES(tile_16_wide, 16, true)
DSD_TILES(tile_16_narrow, 16, false)
DSD_TILES(tile_32_wide, 32, true)
DSD_TILES(tile_32_narrow, 32, false)
#undef DSD_TILES

static FN(tile_fn) FN(tile_choose)(const FN(dsd) * d, bool copy, int64_t vectors)
{
    static const FN(tile_fn) tiles[][2] = {{FN(tile_8_wide), FN(tile_8_narrow)},
                                           {FN(tile_16_wide), FN(tile_16_narrow)},
                                           {FN(tile_32_wide), FN(tile_32_narrow)}};
    (void)copy;
    return tiles[d->tall / DSD_MR][vectors == 1];
}

/* --- sdd ------------------------------------------------------------------------------------- */

/* out: two tiles [MR][VL] += a b over steps, a multiple of TILE_DEPTH; a in tiles of its own. */
OMP_INLINE void FN(sdd_tiles_multiply)(T *restrict out, const T *restrict a, const T *restrict b0,
                                       const T *restrict b1, int64_t steps, bool resume, bool two)
{
    if (resume) {
        _tile_loadd(0, out, TILE_BYTES);
        _tile_loadd(1, out + FN(TILE), TILE_BYTES);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    for (int64_t k = 0; k < steps; k += TILE_DEPTH) {
        _tile_loadd(4, a + k * SDD_MR, TILE_BYTES);
        _tile_loadd(6, b0 + k * FN(VL), TILE_BYTES);
        TILE_PRODUCT(0, 4, 6);
        if (two) {
            _tile_loadd(7, b1 + k * FN(VL), TILE_BYTES);
            TILE_PRODUCT(1, 4, 7);
        }
    }
    _tile_stored(0, out, TILE_BYTES);
    _tile_stored(1, out + FN(TILE), TILE_BYTES);
}

static void FN(sdd_tile_one)(T *restrict out, const T *restrict a, const T *restrict b0,
                             const T *restrict b1, int64_t steps, bool resume)
{
    FN(sdd_tiles_multiply)(out, a, b0, b1, steps, resume, false);
}

static void FN(sdd_tile_two)(T *restrict out, const T *restrict a, const T *restrict b0,
                             const T *restrict b1, int64_t steps, bool resume)
{
    FN(sdd_tiles_multiply)(out, a, b0, b1, steps, resume, true);
}

/* The same for `pairs` pairs of strips: a row group, or two, by b[2 p], b[2 p + 1] from step `at` on,
 * of which results are in out + p * out_size, for each row group. Each step fetches `lines` lines of
 * what follows for each of the row groups. */
typedef struct FN(sdd_slice) {
    const T *a[2], *fetch[2];
    const T *const *b;
    int64_t at, pairs, steps, lines;
    bool resume;
} FN(sdd_slice);

OMP_INLINE void FN(tiles_load)(const T *at, const T *second)
{
    _tile_loadd(0, at, TILE_BYTES);
    _tile_loadd(1, at + FN(TILE), TILE_BYTES);
    _tile_loadd(2, second, TILE_BYTES);
    _tile_loadd(3, second + FN(TILE), TILE_BYTES);
}

OMP_INLINE void FN(tiles_store)(T *at, T *second)
{
    _tile_stored(0, at, TILE_BYTES);
    _tile_stored(1, at + FN(TILE), TILE_BYTES);
    _tile_stored(2, second, TILE_BYTES);
    _tile_stored(3, second + FN(TILE), TILE_BYTES);
}

/* Two row groups. Tiles are loaded as in tall_multiply. */
static void FN(sdd_tall)(const FN(sdd_slice) * x, T *restrict out, int64_t out_size)
{
    const T *const *b = x->b, *fetch0 = x->fetch[0], *fetch1 = x->fetch[1];
    const T *next0 = b[0] + x->at * FN(VL), *next1 = b[1] + x->at * FN(VL);
    _tile_loadd(4, x->a[0], TILE_BYTES);
    _tile_loadd(5, x->a[1], TILE_BYTES);
    _tile_stream_loadd(6, next0, TILE_BYTES);
    _tile_stream_loadd(7, next1, TILE_BYTES);
    for (int64_t p = 0; p < x->pairs; p++, out += out_size) {
        if (x->resume)
            FN(tiles_load)(out, out + 2 * FN(TILE));
        else
            FN(sums_clear)();
        for (int64_t k = TILE_DEPTH; k <= x->steps; k += TILE_DEPTH) {
            const int64_t next = k < x->steps ? k * SDD_MR : 0;
            if (k < x->steps) {
                next0 += TILE_DEPTH * FN(VL);
                next1 += TILE_DEPTH * FN(VL);
            } else if (p + 1 < x->pairs) {
                next0 = b[2 * p + 2] + x->at * FN(VL);
                next1 = b[2 * p + 3] + x->at * FN(VL);
            }
            TILE_PRODUCT(0, 4, 6);
            fetch0 = FN(lines_fetch)(fetch0, x->lines);
            TILE_PRODUCT(1, 4, 7);
            _tile_loadd(4, x->a[0] + next, TILE_BYTES);
            TILE_PRODUCT(2, 5, 6);
            fetch1 = FN(lines_fetch)(fetch1, x->lines);
            _tile_stream_loadd(6, next0, TILE_BYTES);
            TILE_PRODUCT(3, 5, 7);
            _tile_loadd(5, x->a[1] + next, TILE_BYTES);
            _tile_stream_loadd(7, next1, TILE_BYTES);
        }
        FN(tiles_store)(out, out + 2 * FN(TILE));
    }
}

/* One row group, by two pairs at once. */
static void FN(sdd_low)(const FN(sdd_slice) * x, T *restrict out, int64_t out_size)
{
    const int64_t steps = x->steps / TILE_DEPTH, size = TILE_DEPTH * FN(VL);
    const T *fetch = x->fetch[0];
    for (int64_t p = 0; p < x->pairs; p += 2, out += 2 * out_size) {
        const T *b[4];
        for (int v = 0; v < 4; v++)
            b[v] = x->b[2 * p + v] + x->at * FN(VL);
        if (x->resume)
            FN(tiles_load)(out, out + out_size);
        else
            FN(sums_clear)();
        _tile_loadd(4, x->a[0], TILE_BYTES);
        _tile_stream_loadd(5, b[0], TILE_BYTES);
        _tile_stream_loadd(6, b[1], TILE_BYTES);
        _tile_stream_loadd(7, b[2], TILE_BYTES);
#define SDD_LOW(first, second, third, step)                                                        \
    if ((step) < steps) {                                                                          \
        const int64_t at = (step)*size, then = (step) + 1 < steps ? at + size : 0;                 \
        fetch = FN(lines_fetch)(fetch, x->lines);                                                  \
        LOW_STEP(first, second, third, b[3] + at, TILE_BYTES, x->a[0] + then, TILE_BYTES,          \
                 b[0] + then, b[1] + then, b[2] + then);                                           \
    }
        for (int64_t i = 0; i < steps; i += 3) {
            SDD_LOW(5, 6, 7, i)
            SDD_LOW(6, 7, 5, i + 1)
            SDD_LOW(7, 5, 6, i + 2)
        }
#undef SDD_LOW
        FN(tiles_store)(out, out + out_size);
    }
}
