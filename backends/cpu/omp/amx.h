/* The kernels on matrix tiles. dsd: 16 or 32 features by a panel of two tiles of n, over tiles of S
 * as they are packed. A block that is as deep as a tile, or a multiple, meets B where it lies; parts
 * of shallower ones are put together. Included by dsd.h after its types, once for each kind of
 * arithmetic. */

/* Tiles 0 to 3 are sums, of two tiles of rows by two of columns; 4 and 5 are of S, 6 and 7 of B: 16
 * rows of 64 bytes, or 8 rows of the first six for blocks of 8 features. The compiler wants their
 * numbers as they are. TILE_PRODUCT: the instruction that multiplies them. */

/* LEAD, PARTS: see tiles_of_parts; of a tile each. */
enum { FN(TILE) = DSD_MR * TILE_DEPTH, FN(LEAD) = 2, FN(PARTS) = 4 };

/* Configures the thread's tiles for blocks of `rows` features. */
static void FN(tiles_open)(int64_t rows)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.bytes[i] = TILE_BYTES;
        config.rows[i] = (uint8_t)(i > 5 ? TILE_DEPTH : min_i64(rows, DSD_MR));
    }
    /* To GCC 12 the instruction reads 8 bytes, so that stores to the others might be left out. */
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

static void FN(tiles_close)(void)
{
    _tile_release();
}

/* sums += s b for a tile of S, or two if `tall`, and a tile of B, or two if `wide`, from a panel. It
 * goes past the first-level cache, which S and the sums need. */
OMP_INLINE void FN(tiles_multiply)(const T *s, const T *b, bool tall, bool wide)
{
    const int64_t step = FN(NR) * (int64_t)sizeof(T);
    _tile_loadd(4, s, TILE_BYTES);
    _tile_stream_loadd(6, b, step);
    TILE_PRODUCT(0, 4, 6);
    if (wide) {
        _tile_stream_loadd(7, b + FN(VL), step);
        TILE_PRODUCT(1, 4, 7);
    }
    if (tall) {
        _tile_loadd(5, s + FN(TILE), TILE_BYTES);
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

/* Tiles of sums, between registers and rows of a strip. */
OMP_INLINE void FN(sums_load)(const T *buffer, bool tall, bool wide)
{
    const int64_t step = FN(NR) * (int64_t)sizeof(T);
    _tile_loadd(0, buffer, step);
    if (wide)
        _tile_loadd(1, buffer + FN(VL), step);
    if (tall)
        _tile_loadd(2, buffer + DSD_MR * FN(NR), step);
    if (tall && wide)
        _tile_loadd(3, buffer + DSD_MR * FN(NR) + FN(VL), step);
}

OMP_INLINE void FN(sums_store)(T *buffer, bool tall, bool wide)
{
    const int64_t step = FN(NR) * (int64_t)sizeof(T);
    _tile_stored(0, buffer, step);
    if (wide)
        _tile_stored(1, buffer + FN(VL), step);
    if (tall)
        _tile_stored(2, buffer + DSD_MR * FN(NR), step);
    if (tall && wide)
        _tile_stored(3, buffer + DSD_MR * FN(NR) + FN(VL), step);
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

/* Blocks that are as deep as a tile, or a multiple; what is left of one at the edge of the matrix is
 * put together with zeros. Each step fetches `lines` lines of what S needs next. */
OMP_INLINE void FN(tiles_whole)(const FN(piece) * piece, int64_t count, const T *restrict b,
                                const T *fetch, int64_t lines, const int features, const bool wide)
{
    T rest[TILE_DEPTH * FN(NR)] __attribute__((aligned(64)));
    for (int64_t e = 0; e < count; e++) {
        const T *s = piece[e].s, *rows = b + piece[e].first * FN(NR);
        int64_t k = 0;
        for (; k + TILE_DEPTH <= piece[e].depth; k += TILE_DEPTH, s += features * TILE_DEPTH) {
            fetch = FN(lines_fetch)(fetch, lines);
            FN(tiles_multiply)(s, rows + k * FN(NR), features > DSD_MR, wide);
        }
        if (k == piece[e].depth)
            continue;
        fetch = FN(lines_fetch)(fetch, lines);
        FN(rows_gather)(rest, rows + k * FN(NR), piece[e].depth - k, TILE_DEPTH, wide);
        FN(tiles_multiply)(s, rest, features > DSD_MR, wide);
    }
}

/* Blocks of which a tile holds several, `place` deep: their rows of B are put together LEAD steps
 * before they are loaded, as loads wait for stores to leave the processor. */
OMP_INLINE void FN(tiles_of_parts)(const FN(piece) * piece, int64_t count, const T *restrict b,
                                   const T *fetch, int64_t lines, const int64_t place,
                                   const int features, const bool wide)
{
    const int64_t fit = TILE_DEPTH / place, steps = bski_ceil_div(count, fit);
    T part[FN(PARTS)][TILE_DEPTH * FN(NR)] __attribute__((aligned(64)));

    for (int64_t t = 0; t < steps + FN(LEAD); t++) {
        for (int64_t i = 0; t < steps && i < fit; i++) {
            T *rows = part[t % FN(PARTS)] + i * place * FN(NR);
            const int64_t e = t * fit + i, depth = e < count ? piece[e].depth : 0;
            const T *from = depth ? b + piece[e].first * FN(NR) : b;
            if (depth == place)
                FN(rows_gather)(rows, from, place, place, wide);
            else
                FN(rows_gather)(rows, from, depth, place, wide);
        }
        fetch = FN(lines_fetch)(fetch, t < steps ? lines : 0);
        if (t >= FN(LEAD)) {
            const int64_t step = t - FN(LEAD);
            FN(tiles_multiply)
            (piece[0].s + step * features * TILE_DEPTH, part[step % FN(PARTS)], features > DSD_MR,
             wide);
        }
    }
}

OMP_INLINE void FN(tile_pieces)(T *restrict buffer, const FN(piece) * piece, int64_t count,
                                const T *restrict b, int64_t lines, int64_t block_depth,
                                int64_t from, bool resume, const int features, const bool wide)
{
    const bool tall = features > DSD_MR;
    const T *fetch = count > 0 ? piece[0].fetch + from : NULL;

    if (resume)
        FN(sums_load)(buffer, tall, wide);
    else
        FN(sums_clear)();
    if (block_depth >= TILE_DEPTH)
        FN(tiles_whole)(piece, count, b, fetch, lines, features, wide);
    else if (block_depth == 8)
        FN(tiles_of_parts)(piece, count, b, fetch, lines, 8, features, wide);
    else if (block_depth == 4)
        FN(tiles_of_parts)(piece, count, b, fetch, lines, 4, features, wide);
    else
        FN(tiles_of_parts)(piece, count, b, fetch, lines, block_depth, features, wide);
    FN(sums_store)(buffer, tall, wide);
}

/* A row group of two tiles, from s on, times `steps` tiles of B of each of `panels` panels: at[i]
 * is where the tile of step i lies in a panel, and at[steps] is free. Tiles are loaded as soon as
 * the products that need their place are under way, those of the next panel during the last
 * products of one; and each step fetches `lines` lines of what follows in S between its products. */
static void FN(panels_multiply)(T *restrict strips, int64_t strip_size, const T *s, int64_t *at,
                                int64_t steps, const T *b, int64_t panel_size, int64_t panels,
                                int64_t lines, bool resume)
{
    const int64_t row = FN(NR) * (int64_t)sizeof(T);
    const T *fetch = s + 2 * steps * FN(TILE);

    _tile_loadd(4, s, TILE_BYTES);
    _tile_loadd(5, s + FN(TILE), TILE_BYTES);
    _tile_stream_loadd(6, b + at[0], row);
    _tile_stream_loadd(7, b + at[0] + FN(VL), row);
    for (int64_t q = 0; q < panels; q++, b += panel_size, strips += strip_size) {
        at[steps] = at[0] + (q + 1 < panels ? panel_size : 0);
        if (resume)
            FN(sums_load)(strips, true, true);
        else
            FN(sums_clear)();
        for (int64_t i = 1; i <= steps; i++) {
            const T *next_s = i < steps ? s + 2 * i * FN(TILE) : s, *next_b = b + at[i];
            TILE_PRODUCT(0, 4, 6);
            fetch = FN(lines_fetch)(fetch, (lines + 3) / 4);
            TILE_PRODUCT(1, 4, 7);
            fetch = FN(lines_fetch)(fetch, (lines + 2) / 4);
            _tile_loadd(4, next_s, TILE_BYTES);
            TILE_PRODUCT(2, 5, 6);
            fetch = FN(lines_fetch)(fetch, (lines + 1) / 4);
            _tile_stream_loadd(6, next_b, row);
            TILE_PRODUCT(3, 5, 7);
            fetch = FN(lines_fetch)(fetch, lines / 4);
            _tile_loadd(5, next_s + FN(TILE), TILE_BYTES);
            _tile_stream_loadd(7, next_b + FN(VL), row);
        }
        FN(sums_store)(strips, true, true);
    }
}

#define DSD_TILES(name, features, wide)                                                            \
    static void FN(name)(T *restrict buffer, const FN(piece) * piece, int64_t count,               \
                         const T *restrict b, int64_t shift, int64_t block_depth, int64_t from,    \
                         int64_t lines, bool resume)                                               \
    {                                                                                              \
        (void)shift;                                                                               \
        FN(tile_pieces)                                                                            \
        (buffer, piece, count, b, lines, block_depth, from, resume, features, wide);               \
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

/* The same for two row groups by pairs of strips: a0, a1 by b[2 p], b[2 p + 1] from step `at` on,
 * of which results are in out + p * out_size, for a0 and then a1. Tiles are loaded as in
 * panels_multiply. */
static void FN(sdd_tall)(T *restrict out, int64_t out_size, const T *restrict a0,
                         const T *restrict a1, const T *const *b, int64_t at, int64_t pairs,
                         int64_t steps, bool resume)
{
    const T *next0 = b[0] + at * FN(VL), *next1 = b[1] + at * FN(VL);
    _tile_loadd(4, a0, TILE_BYTES);
    _tile_loadd(5, a1, TILE_BYTES);
    _tile_stream_loadd(6, next0, TILE_BYTES);
    _tile_stream_loadd(7, next1, TILE_BYTES);
    for (int64_t p = 0; p < pairs; p++, out += out_size) {
        if (resume) {
            _tile_loadd(0, out, TILE_BYTES);
            _tile_loadd(1, out + FN(TILE), TILE_BYTES);
            _tile_loadd(2, out + 2 * FN(TILE), TILE_BYTES);
            _tile_loadd(3, out + 3 * FN(TILE), TILE_BYTES);
        } else {
            FN(sums_clear)();
        }
        for (int64_t k = TILE_DEPTH; k <= steps; k += TILE_DEPTH) {
            const int64_t next = k < steps ? k * SDD_MR : 0;
            if (k < steps) {
                next0 += TILE_DEPTH * FN(VL);
                next1 += TILE_DEPTH * FN(VL);
            } else if (p + 1 < pairs) {
                next0 = b[2 * p + 2] + at * FN(VL);
                next1 = b[2 * p + 3] + at * FN(VL);
            }
            TILE_PRODUCT(0, 4, 6);
            TILE_PRODUCT(1, 4, 7);
            _tile_loadd(4, a0 + next, TILE_BYTES);
            TILE_PRODUCT(2, 5, 6);
            _tile_stream_loadd(6, next0, TILE_BYTES);
            TILE_PRODUCT(3, 5, 7);
            _tile_loadd(5, a1 + next, TILE_BYTES);
            _tile_stream_loadd(7, next1, TILE_BYTES);
        }
        _tile_stored(0, out, TILE_BYTES);
        _tile_stored(1, out + FN(TILE), TILE_BYTES);
        _tile_stored(2, out + 2 * FN(TILE), TILE_BYTES);
        _tile_stored(3, out + 3 * FN(TILE), TILE_BYTES);
    }
}
