/* C = op(S) B for few columns, where neighbours along a block row's features are neighbours in
 * memory. Included by dsd.h, once for each kind of arithmetic; lists and epilogue are its own.
 * What counts is the rate at which S arrives: vectors lie along the features, so that an element
 * of S takes no more than its share of a load, and a tile of NV vectors and NC columns stays in
 * registers while a chunk of the list passes. Each output is one sum in the order of the list. */

enum {
    FN(GEMV_COLS) = 8,                 /* columns of a tile, at most */
    FN(GEMV_MOST) = 2 * FN(GEMV_COLS), /* columns for which this is the faster way */
    FN(GEMV_WIDTH) = 4 * FN(VL),       /* features of a tile, at most */
    FN(GEMV_CHUNK) = 16 << 10,         /* bytes of S that the tiles of a block row take in turn */
    FN(GEMV_FETCH) = 8 << 10           /* bytes of S from what is used to what is fetched */
};

/* Vectors, whole ones and halves for small blocks: of S from its stored form, and times one T. */
#if UNIT == 1
#define GEMV_VECTOR(W, LANES)                                                                      \
    typedef T FN(W) __attribute__((vector_size((LANES) * sizeof(T))));                             \
    OMP_INLINE FN(W) FN(W##_load)(const T *s, int64_t stride)                                      \
    {                                                                                              \
        FN(W) w;                                                                                   \
        (void)stride;                                                                              \
        memcpy(&w, s, sizeof w);                                                                   \
        return w;                                                                                  \
    }                                                                                              \
    OMP_INLINE FN(W) FN(W##_madd)(FN(W) sum, FN(W) w, T x)                                         \
    {                                                                                              \
        return sum + w * x;                                                                        \
    }
#else
#define GEMV_VECTOR(W, LANES)                                                                      \
    typedef T FN(W) __attribute__((vector_size((LANES) * sizeof(T))));                             \
    OMP_INLINE FN(W) FN(W##_load)(const uint16_t *s, int64_t stride)                               \
    {                                                                                              \
        typedef uint16_t narrow __attribute__((vector_size((LANES)*2)));                           \
        typedef pair_bits wide __attribute__((vector_size((LANES)*4)));                            \
        narrow low, high;                                                                          \
        memcpy(&low, s, sizeof low);                                                               \
        memcpy(&high, s + stride, sizeof high);                                                    \
        return (FN(W))(__builtin_convertvector(low, wide) | __builtin_convertvector(high, wide)    \
                                                                << 16);                            \
    }
#endif
GEMV_VECTOR(whole, FN(VL))
#ifdef BSK_ISA_AVX512
GEMV_VECTOR(half, FN(VL) / 2)
#endif
#undef GEMV_VECTOR

#if UNIT == 2
OMP_INLINE vec_f32 whole_madd_bf16(vec_f32 sum, vec_f32 w, float x)
{
    return madd_bf16(sum, w, vsplat_bf16(x));
}

OMP_INLINE half_bf16 half_madd_bf16(half_bf16 sum, half_bf16 w, float x)
{
    const __m512 splat = (__m512)vsplat_bf16(x);
    return (half_bf16)_mm256_dpbf16_ps((__m256)sum, (__m256bh)w,
                                       (__m256bh)_mm512_castps512_ps256(splat));
}
#endif

/* sum[NC][NV] += S x over the pieces, from feature `shift` of the block on. x: [depth][ldx]. Rows
 * of a block lie `stride` apart. */
typedef void (*FN(gemv_tile))(T *restrict, const FN(piece) *, int64_t, int64_t, const T *restrict,
                              int64_t, int64_t);

#define GEMV_TILE(W, LANES, NC, NV)                                                                \
    static void FN(W##_##NC##_##NV)(T *restrict sum, const FN(piece) * piece, int64_t count,       \
                                    int64_t shift, const T *restrict x, int64_t ldx,               \
                                    int64_t stride)                                                \
    {                                                                                              \
        FN(W) acc[NC][NV];                                                                         \
        _Pragma("GCC unroll 8") for (int c = 0; c < NC; c++)                                       \
            _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++)                                   \
                memcpy(&acc[c][v], sum + c * FN(GEMV_WIDTH) + v * (LANES), sizeof acc[c][v]);      \
        for (int64_t e = 0; e < count; e++) {                                                      \
            const S_STORED *s = (const S_STORED *)(const void *)piece[e].s + shift;                \
            const S_STORED *fetch = (const S_STORED *)(const void *)piece[e].fetch + shift;        \
            const T *row = x + piece[e].first * ldx;                                               \
            _Pragma("GCC unroll 4") for (int64_t k = 0; k < piece[e].depth; k++)                   \
            {                                                                                      \
                FN(W) w[NV];                                                                       \
                _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++)                               \
                {                                                                                  \
                    for (int r = 0; r < UNIT; r++)                                                 \
                        __builtin_prefetch(fetch + r * stride + v * (LANES));                      \
                    w[v] = FN(W##_load)(s + v * (LANES), stride);                                  \
                }                                                                                  \
                _Pragma("GCC unroll 8") for (int c = 0; c < NC; c++)                               \
                    _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++) acc[c][v] =               \
                        FN(W##_madd)(acc[c][v], w[v], row[c]);                                     \
                s += UNIT * stride;                                                                \
                fetch += UNIT * stride;                                                            \
                row += ldx;                                                                        \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 8") for (int c = 0; c < NC; c++)                                       \
            _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++)                                   \
                memcpy(sum + c * FN(GEMV_WIDTH) + v * (LANES), &acc[c][v], sizeof acc[c][v]);      \
    }
#define GEMV_TILES(W, LANES, NV)                                                                   \
    GEMV_TILE(W, LANES, 1, NV)                                                                     \
    GEMV_TILE(W, LANES, 2, NV)                                                                     \
    GEMV_TILE(W, LANES, 4, NV)
GEMV_TILES(whole, FN(VL), 1)
GEMV_TILES(whole, FN(VL), 2)
GEMV_TILES(whole, FN(VL), 4)
GEMV_TILE(whole, FN(VL), 8, 1)
GEMV_TILE(whole, FN(VL), 8, 2)
#ifdef BSK_ISA_AVX512
GEMV_TILES(half, FN(VL) / 2, 1)
GEMV_TILE(half, FN(VL) / 2, 8, 1)
#endif
#undef GEMV_TILES
#undef GEMV_TILE

/* How one run is tiled. */
typedef struct FN(gemv) {
    FN(gemv_tile) tile;
    int64_t cols, width; /* of a tile: columns, features */
    int64_t ldx;         /* columns, rounded up to whole tiles */
    int64_t chunk;       /* blocks that the tiles take in turn */
    int64_t ahead;       /* blocks from what is used to what is fetched */
} FN(gemv);

/* Tiles that suit the block and the number of columns; false if there are none. */
static bool FN(gemv_choose)(const FN(dsd) * d, FN(gemv) * g)
{
    /* by vectors of features, widest first, then by log2 of the columns */
    static const struct {
        int64_t width;
        FN(gemv_tile) tile[4];
    } kinds[] = {
        {4 * FN(VL), {FN(whole_1_4), FN(whole_2_4), FN(whole_4_4), NULL}},
        {2 * FN(VL), {FN(whole_1_2), FN(whole_2_2), FN(whole_4_2), FN(whole_8_2)}},
        {FN(VL), {FN(whole_1_1), FN(whole_2_1), FN(whole_4_1), FN(whole_8_1)}},
#ifdef BSK_ISA_AVX512
        {FN(VL) / 2, {FN(half_1_1), FN(half_2_1), FN(half_4_1), FN(half_8_1)}},
#endif
    };
    const int64_t bytes = d->block_i * d->block_j * UNIT * (int64_t)sizeof(S_STORED);
    int log = 0;
    if (d->n < 1 || d->n > min_i64(FN(GEMV_MOST), FN(NR)) || d->stride_i != 1 || d->image ||
        d->gate || d->p->s.dtype != STORED || d->depth_end % UNIT != 0)
        return false;
    while (1 << log < min_i64(d->n, FN(GEMV_COLS)))
        log++;
    *g = (FN(gemv)){.cols = 1 << log,
                    .ldx = bski_ceil_div(d->n, 1 << log) * (1 << log),
                    .chunk = max_i64(1, min_i64(FN(PIECES), FN(GEMV_CHUNK) / bytes)),
                    .ahead = max_i64(1, FN(GEMV_FETCH) / bytes)};
    for (size_t k = 0; !g->tile && k < sizeof kinds / sizeof *kinds; k++)
        if (d->block_i % kinds[k].width == 0) {
            g->tile = kinds[k].tile[log];
            g->width = kinds[k].width;
        }
    return g->tile != NULL;
}

/* Lists the blocks of a chunk, from entry `first` of the lists on. */
static void FN(gemv_list)(const FN(dsd) * d, const FN(gemv) * g, const FN(band) * band,
                          int64_t first, int64_t count, FN(piece) * piece)
{
    const int64_t bytes = d->block_i * d->block_j * UNIT * (int64_t)sizeof(S_STORED);
    for (int64_t e = 0; e < count; e++) {
        const int64_t row = d->other[first + e] * d->block_j;
        piece[e] = (FN(piece)){
            .first = row, .depth = (int32_t)min_i64(d->block_j, d->J - row), .entry = first + e};
        piece[e].s = (const T *)(const void *)(band->s + d->slot[first + e] * bytes);
        const int64_t later = min_i64(first + e + g->ahead, d->t->nnz - 1);
        piece[e].fetch = (const T *)(const void *)(band->s + d->slot[later] * bytes);
    }
}

/* Block rows first .. last - 1 of one batch member; x: its packed B. */
static void FN(gemv_rows)(const FN(dsd) * d, const FN(gemv) * g, int64_t member, const T *x,
                          int64_t first, int64_t last)
{
    const int64_t head = member % d->t->heads;
    const int64_t *start = d->start + head * (d->grid_i + 1);
    FN(band) band = {.s = d->s};
    FN(piece) piece[FN(PIECES)];
    T sum[FN(GEMV_MOST) * FN(GEMV_WIDTH)] __attribute__((aligned(64)));
    T strip[FN(GEMV_WIDTH) * FN(NR)] = {0};

    if (FN(s_groups)(d) > 1)
        band.s += (size_t)(member / d->t->heads * d->p->s.strides[0]) * sizeof(S_STORED);
    for (int64_t block = first; block < last; block++) {
        const int64_t height = min_i64(d->block_i, d->I - block * d->block_i);
        for (int64_t row = 0; row < height; row += g->width) {
            const int64_t rows = min_i64(g->width, height - row);
            memset(sum, 0, (size_t)(g->ldx * FN(GEMV_WIDTH)) * sizeof(T));
            for (int64_t e = start[block]; e < start[block + 1]; e += g->chunk) {
                const int64_t count = min_i64(g->chunk, start[block + 1] - e);
                FN(gemv_list)(d, g, &band, e, count, piece);
                for (int64_t c = 0; c < g->ldx; c += g->cols)
                    g->tile(sum + c * FN(GEMV_WIDTH), piece, count, row, x + c, g->ldx,
                            d->stride_j);
            }
            FN(transpose)(strip, FN(NR), sum, FN(GEMV_WIDTH), rows, d->n);
            FN(strip_finish)(d, member, strip, NULL, block * d->block_i + row, rows, 0, d->n);
        }
    }
}

/* B of one batch member: [J][ldx], in parts that the threads share out. */
static void FN(gemv_pack)(const FN(dsd) * d, const FN(gemv) * g, int64_t member, int64_t row, T *x)
{
    const int64_t rows = min_i64(FN(PACK_DEEP), d->J - row);
    FN(matrix) b = d->b;
    b.data += (size_t)(member * d->b_member) * type_size(b.type);
    x += row * g->ldx;
    if (d->n < g->ldx)
        memset(x, 0, (size_t)(rows * g->ldx) * sizeof(T));
    FN(depth_load)(x, g->ldx, &b, row, 0, rows, d->n, d->depth_end);
}

/* All of C; tasks are ranges of block rows, as in dsd_run. */
static void FN(gemv_run)(const FN(dsd) * d, const FN(gemv) * g, int threads)
{
    const int64_t parts = bski_ceil_div(d->J, FN(PACK_DEEP)), size = d->J * FN(NR);
    for (int64_t m0 = 0; m0 < d->batch; m0 += d->chunk) {
        const int64_t count = min_i64(d->chunk, d->batch - m0);
#pragma omp parallel num_threads(threads)
        {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < count * parts; i++)
                FN(gemv_pack)
            (d, g, m0 + i / parts, i % parts * FN(PACK_DEEP), d->packed + i / parts * size);
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < count * d->ranges; i++) {
                const int64_t member = m0 + i / d->ranges, range = i % d->ranges;
                const int64_t *start = d->start + member % d->t->heads * (d->grid_i + 1);
                FN(gemv_rows)
                (d, g, member, d->packed + i / d->ranges * size,
                 range_start(start, d->grid_i, range, d->ranges),
                 range_start(start, d->grid_i, range + 1, d->ranges));
            }
        }
    }
}
