/* The kernels on matrix tiles. dsd: DSD_MR features by a panel of DSD_NV tiles of n, over tiles of S
 * as they are packed. A block that is as deep as a tile, or a multiple, meets B where it lies; parts
 * of shallower ones are put together. Included by dsd.h after its types, once for each kind of
 * arithmetic. */

/* Tiles 0 to 3 are sums, 4 is of S, and 5 and 6 are of B: 16 rows of 64 bytes, or 8 rows of the
 * first five for blocks of 8 features. The compiler wants their numbers as they are.
 * TILE_PRODUCT: the instruction that multiplies them. */

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
        config.rows[i] = (uint8_t)(i > 4 ? TILE_DEPTH : min_i64(rows, DSD_MR));
    }
    _tile_loadconfig(&config);
}

static void FN(tiles_close)(void)
{
    _tile_release();
}

/* sums += s b for one tile of S and `wide` tiles of B, whose rows are `step` bytes apart. */
OMP_INLINE void FN(tiles_multiply)(const T *s, const T *b, bool wide)
{
    const int64_t step = FN(NR) * (int64_t)sizeof(T);
    _tile_loadd(4, s, TILE_BYTES);
    _tile_loadd(5, b, step);
    TILE_PRODUCT(0, 4, 5);
    if (!wide)
        return;
    _tile_loadd(6, b + FN(VL), step);
    TILE_PRODUCT(1, 4, 6);
    _tile_loadd(5, b + 2 * FN(VL), step);
    TILE_PRODUCT(2, 4, 5);
    _tile_loadd(6, b + 3 * FN(VL), step);
    TILE_PRODUCT(3, 4, 6);
}

/* Rows of B for a tile: `depth` of them from b, and zeros up to `end`. */
OMP_INLINE void FN(rows_gather)(T *restrict dst, const T *restrict b, int64_t depth, int64_t end,
                                bool wide)
{
    const int64_t vectors = wide ? DSD_NV : 1;
    for (int64_t k = 0; k < end; k++)
        for (int64_t v = 0; v < vectors; v++)
            FN(vstore)
    (dst + k * FN(NR) + v * FN(VL), k < depth ? FN(vload)(b + k * FN(NR) + v * FN(VL)) : (V){0});
}

OMP_INLINE void FN(tile_pieces)(T *restrict buffer, const FN(piece) * piece, int64_t count,
                                const T *restrict b, int64_t block_depth, bool resume, bool wide)
{
    const int64_t step = FN(NR) * (int64_t)sizeof(T);
    T part[TILE_DEPTH * FN(NR)] __attribute__((aligned(64)));

    if (resume) {
        _tile_loadd(0, buffer, step);
        if (wide) {
            _tile_loadd(1, buffer + FN(VL), step);
            _tile_loadd(2, buffer + 2 * FN(VL), step);
            _tile_loadd(3, buffer + 3 * FN(VL), step);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t e = 0; e < count;) {
        const T *s = piece[e].s;
        int64_t k = 0, filled = 0;
        for (; k + TILE_DEPTH <= piece[e].depth; k += TILE_DEPTH, s += TILE_DEPTH * DSD_MR)
            FN(tiles_multiply)(s, b + (piece[e].first + k) * FN(NR), wide);
        if (k == piece[e].depth) {
            e++;
            continue;
        }
        /* What is left of this block, and the next ones where they fit beside it. */
        const int64_t place = min_i64(block_depth, TILE_DEPTH);
        do {
            FN(rows_gather)
            (part + filled * FN(NR), b + (piece[e].first + k) * FN(NR), piece[e].depth - k, place,
             wide);
            filled += place;
            e++;
            k = 0;
        } while (e < count && filled + place <= TILE_DEPTH);
        FN(rows_gather)(part + filled * FN(NR), part, 0, TILE_DEPTH - filled, wide);
        FN(tiles_multiply)(s, part, wide);
    }
    _tile_stored(0, buffer, step);
    if (wide) {
        _tile_stored(1, buffer + FN(VL), step);
        _tile_stored(2, buffer + 2 * FN(VL), step);
        _tile_stored(3, buffer + 3 * FN(VL), step);
    }
}

static void FN(tile_wide)(T *restrict buffer, const FN(piece) * piece, int64_t count,
                          const T *restrict b, int64_t shift, int64_t block_depth, int64_t ahead,
                          bool resume)
{
    (void)shift;
    (void)ahead;
    FN(tile_pieces)(buffer, piece, count, b, block_depth, resume, true);
}

static void FN(tile_narrow)(T *restrict buffer, const FN(piece) * piece, int64_t count,
                            const T *restrict b, int64_t shift, int64_t block_depth, int64_t ahead,
                            bool resume)
{
    (void)shift;
    (void)ahead;
    FN(tile_pieces)(buffer, piece, count, b, block_depth, resume, false);
}

/* --- sdd ------------------------------------------------------------------------------------- */

/* out: two tiles [MR][VL] += a b over steps, a multiple of TILE_DEPTH; a in tiles of its own. */
OMP_INLINE void FN(sdd_tiles_multiply)(T *restrict out, const T *restrict a, const T *restrict b0,
                                       const T *restrict b1, int64_t steps, bool resume, bool two)
{
    if (resume) {
        _tile_loadd(0, out, TILE_BYTES);
        _tile_loadd(1, out + SDD_MR * FN(VL), TILE_BYTES);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    for (int64_t k = 0; k < steps; k += TILE_DEPTH) {
        _tile_loadd(4, a + k * SDD_MR, TILE_BYTES);
        _tile_loadd(5, b0 + k * FN(VL), TILE_BYTES);
        TILE_PRODUCT(0, 4, 5);
        if (two) {
            _tile_loadd(6, b1 + k * FN(VL), TILE_BYTES);
            TILE_PRODUCT(1, 4, 6);
        }
    }
    _tile_stored(0, out, TILE_BYTES);
    _tile_stored(1, out + SDD_MR * FN(VL), TILE_BYTES);
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
