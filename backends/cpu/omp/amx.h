/* The kernels on matrix tiles. dsd: 16 or 32 features by a panel of two tiles of n, over tiles of S
 * as they are packed. A block that is as deep as a tile, or a multiple, meets B where it lies; parts
 * of shallower ones are put together. Included by dsd.h after its types, once for each kind of
 * arithmetic. */

/* Tiles 0 to 3 are sums, of two tiles of rows by two of columns; 4 and 5 are of S, 6 and 7 of B: 16
 * rows of 64 bytes, or 8 rows of the first six for blocks of 8 features. The compiler wants their
 * numbers as they are. TILE_PRODUCT: the instruction that multiplies them. */

/* PARTS: of B in the making at a time. A tile is not loaded before what it is of was stored, and the
 * next one's stores need not wait for that. */
enum { FN(TILE) = DSD_MR * TILE_DEPTH, FN(PARTS) = 4 };

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

/* `lines`: how many of what S needs next each step fetches, from the first piece's `fetch` + ahead
 * on. */
OMP_INLINE void FN(tile_pieces)(T *restrict buffer, const FN(piece) * piece, int64_t count,
                                const T *restrict b, int64_t lines, int64_t block_depth,
                                int64_t ahead, bool resume, const int features, const bool wide)
{
    const bool tall = features > DSD_MR;
    const int64_t place = min_i64(block_depth, TILE_DEPTH), line = TILE_BYTES / (int64_t)sizeof(T);
    T part[FN(PARTS)][TILE_DEPTH * FN(NR)] __attribute__((aligned(64)));
    const T *fetch = piece[0].fetch + ahead;

    if (resume) {
        FN(sums_load)(buffer, tall, wide);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t e = 0, turn = 0; e < count; turn++) {
        const T *s = piece[e].s;
        int64_t k = 0, filled = 0;
        for (; k + TILE_DEPTH <= piece[e].depth; k += TILE_DEPTH, s += features * TILE_DEPTH) {
            for (int64_t i = 0; i < lines; i++, fetch += line)
                __builtin_prefetch(fetch, 0, 2);
            FN(tiles_multiply)(s, b + (piece[e].first + k) * FN(NR), tall, wide);
        }
        if (k == piece[e].depth) {
            e++;
            continue;
        }
        /* What is left of this block, and the next ones where they fit beside it. */
        T *rows = part[turn % FN(PARTS)];
        for (int64_t i = 0; i < lines; i++, fetch += line)
            __builtin_prefetch(fetch, 0, 2);
        do {
            FN(rows_gather)
            (rows + filled * FN(NR), b + (piece[e].first + k) * FN(NR), piece[e].depth - k, place,
             wide);
            filled += place;
            e++;
            k = 0;
        } while (e < count && filled + place <= TILE_DEPTH);
        FN(rows_gather)(rows + filled * FN(NR), rows, 0, TILE_DEPTH - filled, wide);
        FN(tiles_multiply)(s, rows, tall, wide);
    }
    FN(sums_store)(buffer, tall, wide);
}

#define DSD_TILES(name, features, wide)                                                            \
    static void FN(name)(T *restrict buffer, const FN(piece) * piece, int64_t count,               \
                         const T *restrict b, int64_t lines, int64_t block_depth, int64_t ahead,   \
                         bool resume)                                                              \
    {                                                                                              \
        FN(tile_pieces)                                                                            \
        (buffer, piece, count, b, lines, block_depth, ahead, resume, features, wide);              \
    }
DSD_TILES(tile_8_wide, 8, true)
DSD_TILES(tile_8_narrow, 8, false)
DSD_TILES(tile_16_wide, 16, true)
DSD_TILES(tile_16_narrow, 16, false)
DSD_TILES(tile_32_wide, 32, true)
DSD_TILES(tile_32_narrow, 32, false)
#undef DSD_TILES

static FN(tile_fn) FN(tile_choose)(const FN(dsd) * d, bool copy, bool narrow)
{
    static const FN(tile_fn) tiles[][2] = {{FN(tile_8_wide), FN(tile_8_narrow)},
                                           {FN(tile_16_wide), FN(tile_16_narrow)},
                                           {FN(tile_32_wide), FN(tile_32_narrow)}};
    (void)copy;
    return tiles[d->tall / DSD_MR][narrow];
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

/* The same for two strips by two row groups, whose results are in out0 and out1. */
static void FN(sdd_tall)(T *restrict out0, T *restrict out1, const T *restrict a0,
                         const T *restrict a1, const T *restrict b0, const T *restrict b1,
                         int64_t steps, bool resume)
{
    if (resume) {
        _tile_loadd(0, out0, TILE_BYTES);
        _tile_loadd(1, out0 + FN(TILE), TILE_BYTES);
        _tile_loadd(2, out1, TILE_BYTES);
        _tile_loadd(3, out1 + FN(TILE), TILE_BYTES);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < steps; k += TILE_DEPTH) {
        _tile_loadd(4, a0 + k * SDD_MR, TILE_BYTES);
        _tile_loadd(6, b0 + k * FN(VL), TILE_BYTES);
        TILE_PRODUCT(0, 4, 6);
        _tile_loadd(7, b1 + k * FN(VL), TILE_BYTES);
        TILE_PRODUCT(1, 4, 7);
        _tile_loadd(5, a1 + k * SDD_MR, TILE_BYTES);
        TILE_PRODUCT(2, 5, 6);
        TILE_PRODUCT(3, 5, 7);
    }
    _tile_stored(0, out0, TILE_BYTES);
    _tile_stored(1, out0 + FN(TILE), TILE_BYTES);
    _tile_stored(2, out1, TILE_BYTES);
    _tile_stored(3, out1 + FN(TILE), TILE_BYTES);
}
