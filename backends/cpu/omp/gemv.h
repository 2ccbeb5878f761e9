/* C = op(S) B for few columns, where neighbours along a block row's features are neighbours in
 * memory. Included by dsd.h, once for each kind of arithmetic; the epilogue is its own. What counts
 * is the rate at which S arrives. So S is read in the order in which it lies in memory, where that
 * is by the block rows of S, and sums of all of C wait in the second-level cache. Vectors lie along
 * the features, so that an element of S takes no more than its share of a load. Each output is one
 * sum in the order of the depth, whichever way S is walked. */

enum {
    FN(GEMV_MOST) = 16,                       /* columns for which this is the faster way */
    FN(GEMV_COLS) = VEC_BYTES == 64 ? 16 : 8, /* columns of a tile, at most: as registers allow */
    FN(GEMV_WIDTH) = 4 * FN(VL),              /* features of a tile, at most */
    FN(GEMV_CHUNK) = 4 << 10                  /* bytes of S that tiles take in turn */
};

/* A block of S, what it is multiplied by and what it is added to, and the block to fetch. */
typedef struct FN(share) {
    const S_STORED *s;
    const char *fetch;
    const T *x;
    T *sum;
    int64_t depth;
} FN(share);

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

/* One of the passes over a few blocks: `strip` features and `col` columns further on than these begin,
 * and where its sums lie. Rows of a block are `stride` apart. A step of the depth fetches `step` bytes
 * of a block that comes later, from `from` on: all passes together fetch it from begin to end. */
typedef struct FN(pass) {
    int64_t strip, col, sums, ldx, stride, from, step;
} FN(pass);

/* sum[NC][NV] += S x for each share. x: [depth][ldx]. */
typedef void (*FN(gemv_tile))(const FN(share) *, int64_t, const FN(pass) *);

#define GEMV_TILE(W, LANES, NC, NV)                                                                \
    static void FN(W##_##NC##_##NV)(const FN(share) * share, int64_t count, const FN(pass) * pass) \
    {                                                                                              \
        enum { BYTES = (NV) * (LANES)*UNIT * (int)sizeof(S_STORED) };                              \
        const int64_t stride = pass->stride, ldx = pass->ldx, step = pass->step;                   \
        for (int64_t e = 0; e < count; e++) {                                                      \
            const S_STORED *s = share[e].s + pass->strip;                                          \
            const char *fetch = share[e].fetch + pass->from;                                       \
            const T *x = share[e].x + pass->col;                                                   \
            T *sum = share[e].sum + pass->sums;                                                    \
            FN(W) acc[NC][NV];                                                                     \
            _Pragma("GCC unroll 16") for (int c = 0; c < NC; c++)                                  \
                _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++)                               \
                    memcpy(&acc[c][v], sum + (c * (NV) + v) * (LANES), sizeof acc[c][v]);          \
            _Pragma("GCC unroll 4") for (int64_t k = 0; k < share[e].depth; k++)                   \
            {                                                                                      \
                FN(W) w[NV];                                                                       \
                _Pragma("GCC unroll 4") for (int i = 0; i < BYTES; i += 64)                        \
                    __builtin_prefetch(fetch + i, 0, 2);                                           \
                _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++) w[v] =                        \
                    FN(W##_load)(s + v * (LANES), stride);                                         \
                _Pragma("GCC unroll 16") for (int c = 0; c < NC; c++)                              \
                    _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++) acc[c][v] =               \
                        FN(W##_madd)(acc[c][v], w[v], x[c]);                                       \
                s += UNIT * stride;                                                                \
                fetch += step;                                                                     \
                x += ldx;                                                                          \
            }                                                                                      \
            _Pragma("GCC unroll 16") for (int c = 0; c < NC; c++)                                  \
                _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++)                               \
                    memcpy(sum + (c * (NV) + v) * (LANES), &acc[c][v], sizeof acc[c][v]);          \
        }                                                                                          \
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
GEMV_TILE(whole, FN(VL), 16, 1)
GEMV_TILES(half, FN(VL) / 2, 1)
GEMV_TILE(half, FN(VL) / 2, 8, 1)
GEMV_TILE(half, FN(VL) / 2, 16, 1)
#define GEMV_16(W) FN(W##_16_1)
#else
#define GEMV_16(W) NULL
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

/* Bytes of S from what is used to what is fetched. None where AMD's processors had better fetch by
 * themselves: they read one stream faster so, if what is done with it takes less time than that. */
static int64_t FN(gemv_fetch)(const FN(dsd) * d, int64_t cols)
{
#ifdef __x86_64__
    if (d->block_i > 8 && cols <= 4 && cols * 8 * UNIT <= d->block_i && __builtin_cpu_is("amd"))
        return 0;
#endif
    (void)d;
    return cols > 4 ? 32 << 10 : 16 << 10;
}

/* Tiles that suit the block and the number of columns; false if there are none. */
static bool FN(gemv_choose)(const FN(dsd) * d, FN(gemv) * g)
{
    /* by vectors of features, widest first, then by log2 of the columns */
    static const struct {
        int64_t width;
        FN(gemv_tile) tile[5];
    } kinds[] = {
        {4 * FN(VL), {FN(whole_1_4), FN(whole_2_4), FN(whole_4_4), NULL, NULL}},
        {2 * FN(VL), {FN(whole_1_2), FN(whole_2_2), FN(whole_4_2), FN(whole_8_2), NULL}},
        {FN(VL), {FN(whole_1_1), FN(whole_2_1), FN(whole_4_1), FN(whole_8_1), GEMV_16(whole)}},
#ifdef BSK_ISA_AVX512
        {FN(VL) / 2, {FN(half_1_1), FN(half_2_1), FN(half_4_1), FN(half_8_1), GEMV_16(half)}},
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
                    .ahead = bski_ceil_div(FN(gemv_fetch)(d, 1 << log), bytes)};
    for (size_t k = 0; !g->tile && k < sizeof kinds / sizeof *kinds; k++)
        if (d->block_i % kinds[k].width == 0) {
            g->tile = kinds[k].tile[log];
            g->width = kinds[k].width;
        }
    return g->tile != NULL;
}
#undef GEMV_16

/* Whether S is walked by the lists of the depth, as it lies in memory. */
static bool FN(gemv_across)(const FN(dsd) * d)
{
    return d->t->ordered && d->p->transpose_s;
}

/* Ts of the sums of one block row: for each strip of features [ldx][width]. */
static int64_t FN(gemv_sums)(const FN(dsd) * d, const FN(gemv) * g)
{
    return d->block_i * g->ldx;
}

/* What a run for one batch member works with. sum: of the rows from the first one on. */
typedef struct FN(gemv_work) {
    const char *s;
    const T *x;
    T *sum;
} FN(gemv_work);

/* Entries first .. end - 1 of the lists by which S is walked, of block row `line` of these, then those
 * from `next` on. across: they are lists of the depth. */
static void FN(gemv_add)(const FN(dsd) * d, const FN(gemv) * g, const FN(gemv_work) * work,
                         int64_t line, int64_t first, int64_t end, int64_t next, bool across)
{
    const int64_t size = d->block_i * d->block_j * UNIT, last = d->t->nnz - 1;
    const int32_t *slot = across ? d->t->row_slot : d->slot;
    const int32_t *other = across ? d->t->row_col : d->other;
    const S_STORED *s = (const S_STORED *)(const void *)work->s;
    const int64_t passes = d->block_i / g->width * (g->ldx / g->cols);
    const int64_t step = size * (int64_t)sizeof(S_STORED) / (passes * d->block_j);
    FN(share) share[FN(PIECES)];

    for (; first < end; first += g->chunk) {
        const int64_t count = min_i64(g->chunk, end - first);
        for (int64_t e = 0; e < count; e++) {
            const int64_t at = first + e, i = across ? other[at] : line;
            const int64_t j = (across ? line : other[at]) * d->block_j;
            const int64_t later =
                at + g->ahead < end ? at + g->ahead : min_i64(next + at + g->ahead - end, last);
            share[e] = (FN(share)){s + slot[at] * size, (const char *)(s + slot[later] * size),
                                   work->x + j * g->ldx, work->sum + i * FN(gemv_sums)(d, g),
                                   min_i64(d->block_j, d->J - j)};
        }
        int64_t from = 0;
        for (int64_t row = 0; row < d->block_i; row += g->width)
            for (int64_t c = 0; c < g->ldx; c += g->cols) {
                const FN(pass)
                    pass = {row, c, row * g->ldx + c * g->width, g->ldx, d->stride_j, from, step};
                g->tile(share, count, &pass);
                from += step * d->block_j;
            }
    }
}

/* Block rows first .. last - 1 of one batch member; x: its packed B. */
static void FN(gemv_rows)(const FN(dsd) * d, const FN(gemv) * g, int64_t member, const T *x, T *sum,
                          int64_t first, int64_t last)
{
    const int64_t head = member % d->t->heads, size = FN(gemv_sums)(d, g);
    const int64_t *start = d->start + head * (d->grid_i + 1);
    const int64_t *row_start = d->t->row_start + head * (d->t->grid_rows + 1);
    const int32_t *row_col = d->t->row_col;
    FN(gemv_work) work = {d->s, x, sum};
    T strip[FN(GEMV_WIDTH) * FN(NR)] = {0};

    if (FN(s_groups)(d) > 1)
        work.s += (size_t)(member / d->t->heads * d->p->s.strides[0]) * sizeof(S_STORED);
    memset(sum + first * size, 0, (size_t)((last - first) * size) * sizeof(T));
    if (FN(gemv_across)(d)) {
        int64_t next = 0;
        for (int64_t r = 0; r < d->t->grid_rows; r++) {
            const int64_t *at = row_start + r;
            const int64_t from = r ? next : list_find(row_col, at[0], at[1], first);
            const int64_t end = list_find(row_col, from, at[1], last);
            next = r + 1 < d->t->grid_rows ? list_find(row_col, at[1], at[2], first) : end;
            FN(gemv_add)(d, g, &work, r, from, end, next, true);
        }
    } else {
        for (int64_t i = first; i < last; i++)
            FN(gemv_add)(d, g, &work, i, start[i], start[i + 1], start[i + 1], false);
    }
    for (int64_t i = first; i < last; i++) {
        const int64_t height = min_i64(d->block_i, d->I - i * d->block_i);
        for (int64_t row = 0; row < height; row += g->width) {
            const int64_t rows = min_i64(g->width, height - row);
            FN(transpose)
            (strip, FN(NR), sum + i * size + row * g->ldx, g->width, rows, d->n);
            FN(strip_finish)(d, member, strip, NULL, i * d->block_i + row, rows, 0, d->n);
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

/* All of C; tasks are ranges of block rows, as many as keep the threads busy: each walks all lists. */
static void FN(gemv_run)(const FN(dsd) * d, const FN(gemv) * g, int threads)
{
    const int64_t parts = bski_ceil_div(d->J, FN(PACK_DEEP)), size = d->J * g->ldx;
    const int64_t ranges = FN(gemv_across)(d)
                               ? min_i64(d->grid_i, bski_ceil_div(threads, max_i64(1, d->batch)))
                               : d->ranges;
    const int64_t rows = d->grid_i * FN(gemv_sums)(d, g);
    T *sums = d->packed + size * d->chunk;
    for (int64_t m0 = 0; m0 < d->batch; m0 += d->chunk) {
        const int64_t count = min_i64(d->chunk, d->batch - m0);
#pragma omp parallel num_threads(threads)
        {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < count * parts; i++)
                FN(gemv_pack)
            (d, g, m0 + i / parts, i % parts * FN(PACK_DEEP), d->packed + i / parts * size);
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < count * ranges; i++) {
                const int64_t member = m0 + i / ranges, range = i % ranges;
                const int64_t *start = d->start + member % d->t->heads * (d->grid_i + 1);
                FN(gemv_rows)
                (d, g, member, d->packed + i / ranges * size, sums + i / ranges * rows,
                 range_start(start, d->grid_i, range, ranges),
                 range_start(start, d->grid_i, range + 1, ranges));
            }
        }
    }
}
