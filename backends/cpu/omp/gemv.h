/* C = op(S) B for few columns, where neighbours along a block row's features are neighbours in
 * memory. Included by dsd.h, once for each kind of arithmetic; the epilogue is its own. What counts
 * is the rate at which S arrives. So S is read in the order in which it lies in memory, where that
 * is by the block rows of S, and sums of all of C wait in the second-level cache. Vectors lie along
 * the features, so that an element of S takes no more than its share of a load; where a block has half
 * as many of these, two columns share a vector. Each output is one sum in the order of the depth,
 * whichever way S is walked. Numbers of 16 bits are widened on the way, where GEMV_HALVES is defined:
 * half of the bytes arrive. */

enum {
    FN(GEMV_MOST) = 16,   /* columns for which this is the faster way */
    FN(GEMV_WIDENED) = 4, /* the same where S may be widened and packed before */
    FN(GEMV_COLS) = VEC_BYTES == 64 ? 16 : 8, /* columns of a tile, at most: as registers allow */
    FN(GEMV_WIDTH) = 4 * FN(VL),              /* features of a tile, at most */
    FN(GEMV_CHUNK) = 4 << 10                  /* bytes of S that tiles take in turn */
};

/* A block of S, what it is multiplied by and what it is added to, and the block to fetch. */
typedef struct FN(share) {
    const char *s;
    const char *fetch;
    const T *x;
    T *sum;
    int64_t depth;
} FN(share);

/* Vectors: whole ones; halves and duos, of two columns, for small blocks; bf16 and f16, whole ones of
 * these. `load` reads `count` of S from its stored form, `madd` multiplies one by what T are at x. COLS:
 * columns of a vector; S: what it is read from. */
enum {
    FN(whole_COLS) = 1,
    FN(half_COLS) = 1,
    FN(duo_COLS) = 2,
    FN(bf16_COLS) = 1,
    FN(f16_COLS) = 1
};
typedef S_STORED FN(whole_S), FN(half_S), FN(duo_S);
typedef uint16_t FN(bf16_S), FN(f16_S);
#if UNIT == 1
#define GEMV_VECTOR(W, LANES)                                                                      \
    typedef T FN(W) __attribute__((vector_size((LANES) * sizeof(T))));                             \
    OMP_INLINE void FN(W##_load)(FN(W) * w, const T *s, int64_t stride, int count)                 \
    {                                                                                              \
        (void)stride;                                                                              \
        _Pragma("GCC unroll 4") for (int v = 0; v < count; v++) /* at once, GCC goes by memory */  \
            memcpy(&w[v], s + v * (LANES), sizeof *w);                                             \
    }                                                                                              \
    OMP_INLINE FN(W) FN(W##_madd)(FN(W) sum, FN(W) w, const T *x)                                  \
    {                                                                                              \
        return sum + w * *x;                                                                       \
    }
GEMV_VECTOR(whole, FN(VL))
#if defined(BSK_ISA_AVX512)
GEMV_VECTOR(half, FN(VL) / 2)
#endif
#undef GEMV_VECTOR
#ifdef GEMV_HALVES
#if defined(BSK_ISA_AVX512) || defined(BSK_ISA_AVX2) || defined(BSK_ISA_NEON)
#define GEMV_F16 /* there is an instruction */
#endif
typedef FN(whole) FN(bf16), FN(f16);
OMP_INLINE void FN(bf16_load)(FN(bf16) * w, const uint16_t *s, int64_t stride, int count)
{
    typedef uint16_t line __attribute__((vector_size(FN(VL) * sizeof(uint16_t))));
    typedef uint32_t wide __attribute__((vector_size(FN(VL) * sizeof(uint32_t))));
    (void)stride;
    _Pragma("GCC unroll 4") for (int v = 0; v < count; v++)
    {
        line l;
        memcpy(&l, s + v * FN(VL), sizeof l);
        w[v] = (FN(bf16))(__builtin_convertvector(l, wide) << 16);
    }
}

OMP_INLINE FN(bf16) FN(bf16_madd)(FN(bf16) sum, FN(bf16) w, const T *x)
{
    return sum + w * *x;
}

#ifdef GEMV_F16
OMP_INLINE void FN(f16_load)(FN(f16) * w, const uint16_t *s, int64_t stride, int count)
{
    (void)stride;
    _Pragma("GCC unroll 4") for (int v = 0; v < count; v++)
    {
#if defined(BSK_ISA_AVX512)
        w[v] = (FN(f16))_mm512_cvtph_ps(_mm256_loadu_si256((const void *)(s + v * FN(VL))));
#elif defined(BSK_ISA_AVX2)
        w[v] = (FN(f16))_mm256_cvtph_ps(_mm_loadu_si128((const void *)(s + v * FN(VL))));
#else
        w[v] = (FN(f16))vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(s + v * FN(VL))));
#endif
    }
}

OMP_INLINE FN(f16) FN(f16_madd)(FN(f16) sum, FN(f16) w, const T *x)
{
    return sum + w * *x;
}
#endif
#endif
#if defined(BSK_ISA_AVX512) && PAIRS
OMP_INLINE void duo_load_f32(vec_f32 *w, const float *s, int64_t stride, int count)
{
    const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    (void)stride, (void)count;
    *w = (vec_f32)_mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(s)));
}

OMP_INLINE vec_f32 duo_madd_f32(vec_f32 sum, vec_f32 w, const float *x)
{
    return sum + w * splat_pair_f32(x);
}
#endif
#else /* bf16: two rows of S, whose numbers take turns in a vector */
typedef vec_f32 whole_bf16;
typedef float half_bf16 __attribute__((vector_size(VEC_BYTES / 2)));

OMP_INLINE void whole_load_bf16(vec_f32 *w, const uint16_t *s, int64_t stride, int count)
{
    const uint16_t *t = s + stride;
    if (count == 1) {
        const __m512i turns =
            _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                             22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)s));
        const __m256i high = _mm256_loadu_si256((const void *)t);
        *w = (vec_f32)_mm512_permutexvar_epi16(turns, _mm512_inserti64x4(low, high, 1));
        return;
    }
    const __m512i first =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                         37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    _Pragma("GCC unroll 4") for (int v = 0; v + 1 < count; v += 2)
    {
        const __m512i low = _mm512_loadu_si512(s + v * FN(VL));
        const __m512i high = _mm512_loadu_si512(t + v * FN(VL));
        w[v] = (vec_f32)_mm512_permutex2var_epi16(low, first, high);
        w[v + 1] = (vec_f32)_mm512_permutex2var_epi16(low, second, high);
    }
}

OMP_INLINE vec_f32 whole_madd_bf16(vec_f32 sum, vec_f32 w, const float *x)
{
    return madd_bf16(sum, w, vsplat_bf16(*x));
}

/* Eight numbers of each of two rows. */
OMP_INLINE __m256i two_eights(const uint16_t *s, int64_t stride)
{
    const __m256i low = _mm256_castsi128_si256(_mm_loadu_si128((const void *)s));
    return _mm256_inserti128_si256(low, _mm_loadu_si128((const void *)(s + stride)), 1);
}

OMP_INLINE void half_load_bf16(half_bf16 *w, const uint16_t *s, int64_t stride, int count)
{
    const __m256i turns = _mm256_set_epi16(15, 7, 14, 6, 13, 5, 12, 4, 11, 3, 10, 2, 9, 1, 8, 0);
    (void)count;
    *w = (half_bf16)_mm256_permutexvar_epi16(turns, two_eights(s, stride));
}

OMP_INLINE half_bf16 half_madd_bf16(half_bf16 sum, half_bf16 w, const float *x)
{
    const __m512 splat = (__m512)vsplat_bf16(*x);
    return (half_bf16)_mm256_dpbf16_ps((__m256)sum, (__m256bh)w,
                                       (__m256bh)_mm512_castps512_ps256(splat));
}

OMP_INLINE void duo_load_bf16(vec_f32 *w, const uint16_t *s, int64_t stride, int count)
{
    const __m512i turns = _mm512_set_epi16(15, 7, 15, 7, 14, 6, 14, 6, 13, 5, 13, 5, 12, 4, 12, 4,
                                           11, 3, 11, 3, 10, 2, 10, 2, 9, 1, 9, 1, 8, 0, 8, 0);
    (void)count;
    *w = (vec_f32)_mm512_permutexvar_epi16(turns, _mm512_castsi256_si512(two_eights(s, stride)));
}

OMP_INLINE vec_f32 duo_madd_bf16(vec_f32 sum, vec_f32 w, const float *x)
{
    return madd_bf16(sum, w, splat_pair_bf16(x));
}
#endif
#if defined(BSK_ISA_AVX512) && PAIRS
typedef V FN(duo);
#endif

/* One of the passes over a few blocks: `strip` features and `col` columns further on than these begin,
 * and where its sums lie. Rows of a block are `stride` apart. A step of the depth fetches `step` bytes
 * of a block that comes later, from `from` on: all passes together fetch it from begin to end. */
typedef struct FN(pass) {
    int64_t strip, col, sums, ldx, stride, from, step;
} FN(pass);

/* sum[NC][NV] += S x for each share; neighbours often add to the same sums. x: [depth][ldx]. */
typedef void (*FN(gemv_tile))(const FN(share) *, int64_t, const FN(pass) *);

/* NC: columns; NV: vectors along the features, of which each has WIDTH. */
#define GEMV_EACH(NC, NV)                                                                          \
    _Pragma("GCC unroll 16") for (int c = 0; c < (NC); c++)                                        \
        _Pragma("GCC unroll 4") for (int v = 0; v < (NV); v++)
#define GEMV_TILE(W, WIDTH, NC, NV)                                                                \
    static void FN(W##_##NC##_##NV)(const FN(share) * share, int64_t count, const FN(pass) * pass) \
    {                                                                                              \
        enum { BYTES = (NV) * (WIDTH)*UNIT * (int)sizeof(FN(W##_S)) };                             \
        enum { COLS = FN(W##_COLS), GROUPS = (NC) / COLS };                                        \
        const int64_t stride = pass->stride, ldx = pass->ldx, step = pass->step;                   \
        FN(W) acc[GROUPS][NV];                                                                     \
        T *held = share[0].sum + pass->sums;                                                       \
        GEMV_EACH(GROUPS, NV)                                                                      \
        memcpy(&acc[c][v], held + (c * (NV) + v) * (WIDTH)*COLS, sizeof acc[c][v]);                \
        for (int64_t e = 0; e < count; e++) {                                                      \
            const FN(W##_S) *s = (const FN(W##_S) *)(const void *)share[e].s + pass->strip;        \
            const char *fetch = share[e].fetch + pass->from;                                       \
            const T *x = share[e].x + pass->col;                                                   \
            T *sum = share[e].sum + pass->sums;                                                    \
            if (sum != held) {                                                                     \
                GEMV_EACH(GROUPS, NV)                                                              \
                memcpy(held + (c * (NV) + v) * (WIDTH)*COLS, &acc[c][v], sizeof acc[c][v]);        \
                held = sum;                                                                        \
                GEMV_EACH(GROUPS, NV)                                                              \
                memcpy(&acc[c][v], held + (c * (NV) + v) * (WIDTH)*COLS, sizeof acc[c][v]);        \
            }                                                                                      \
            _Pragma("GCC unroll 4") for (int64_t k = 0; k < share[e].depth; k++)                   \
            {                                                                                      \
                FN(W) w[NV];                                                                       \
                _Pragma("GCC unroll 4") for (int i = 0; i < BYTES; i += 64)                        \
                    __builtin_prefetch(fetch + i, 0, 2);                                           \
                FN(W##_load)(w, s, stride, NV);                                                    \
                GEMV_EACH(GROUPS, NV)                                                              \
                acc[c][v] = FN(W##_madd)(acc[c][v], w[v], x + c * COLS);                           \
                s += UNIT * stride;                                                                \
                fetch += step;                                                                     \
                x += ldx;                                                                          \
            }                                                                                      \
        }                                                                                          \
        GEMV_EACH(GROUPS, NV)                                                                      \
        memcpy(held + (c * (NV) + v) * (WIDTH)*COLS, &acc[c][v], sizeof acc[c][v]);                \
    }
#define GEMV_TILES(W, LANES, NV)                                                                   \
    GEMV_TILE(W, LANES, 1, NV)                                                                     \
    GEMV_TILE(W, LANES, 2, NV)                                                                     \
    GEMV_TILE(W, LANES, 4, NV)
#if REGISTERS == 32
#define GEMV_MORE(W)                                                                               \
    GEMV_TILE(W, FN(VL), 4, 4)                                                                     \
    GEMV_TILE(W, FN(VL), 8, 2)
#define GEMV_IF_MORE(tile) FN(tile)
#else
#define GEMV_MORE(W)
#define GEMV_IF_MORE(tile) NULL
#endif
#ifdef BSK_ISA_AVX512
#define GEMV_MOST_OF(W)    GEMV_TILE(W, FN(VL), 16, 1)
#define GEMV_IF_MOST(tile) FN(tile)
#else
#define GEMV_MOST_OF(W)
#define GEMV_IF_MOST(tile) NULL
#endif
#define GEMV_WHOLE(W)                                                                              \
    GEMV_TILES(W, FN(VL), 1)                                                                       \
    GEMV_TILES(W, FN(VL), 2)                                                                       \
    GEMV_TILE(W, FN(VL), 1, 4)                                                                     \
    GEMV_TILE(W, FN(VL), 2, 4)                                                                     \
    GEMV_TILE(W, FN(VL), 8, 1)                                                                     \
    GEMV_MORE(W)                                                                                   \
    GEMV_MOST_OF(W)
GEMV_WHOLE(whole)
#ifdef GEMV_HALVES
GEMV_WHOLE(bf16)
#endif
#ifdef GEMV_F16
GEMV_WHOLE(f16)
#endif
#ifdef BSK_ISA_AVX512
GEMV_TILE(half, FN(VL) / 2, 1, 1)
#define GEMV_SMALL(W)                                                                              \
    GEMV_TILE(W, FN(VL) / 2, 2, 1)                                                                 \
    GEMV_TILE(W, FN(VL) / 2, 4, 1)                                                                 \
    GEMV_TILE(W, FN(VL) / 2, 8, 1)                                                                 \
    GEMV_TILE(W, FN(VL) / 2, 16, 1)
#if PAIRS
#define SMALL(NC) FN(duo_##NC##_1)
GEMV_SMALL(duo)
#else
#define SMALL(NC) FN(half_##NC##_1)
GEMV_SMALL(half)
#endif
#undef GEMV_SMALL
#endif
#undef GEMV_WHOLE
#undef GEMV_MOST_OF
#undef GEMV_MORE
#undef GEMV_TILES
#undef GEMV_TILE
#undef GEMV_EACH

/* How one run is tiled. */
typedef struct FN(gemv) {
    FN(gemv_tile) tile;
    int64_t cols, width; /* of a tile: columns, features */
    int64_t ldx;         /* columns, rounded up to whole tiles */
    int64_t chunk;       /* blocks that the tiles take in turn */
    int64_t ahead;       /* blocks from what is used to what is fetched */
    int64_t element;     /* bytes of S at a step of the depth, of one feature */
    bool duo;            /* two columns share a vector */
} FN(gemv);

/* Bytes of S from what is used to what is fetched. None where AMD's processors had better fetch by
 * themselves: they read one stream faster so, if what is done with it takes less time than that. */
static int64_t FN(gemv_fetch)(const FN(dsd) * d, int64_t cols)
{
#ifdef __x86_64__
    if (d->block_i > 8 && cols <= 4 && cols * 4 * UNIT <= d->block_i && __builtin_cpu_is("amd"))
        return 0;
#endif
    (void)d;
    return cols > 4 ? 32 << 10 : 16 << 10;
}

/* Tiles by the stored type: by vectors of features, widest first, then by log2 of the columns. */
typedef struct FN(gemv_kind) {
    int64_t width;
    FN(gemv_tile) tile[5];
} FN(gemv_kind);

#define GEMV_KINDS(W)                                                                              \
    {4 * FN(VL), {FN(W##_1_4), FN(W##_2_4), GEMV_IF_MORE(W##_4_4), NULL, NULL}},                   \
        {2 * FN(VL), {FN(W##_1_2), FN(W##_2_2), FN(W##_4_2), GEMV_IF_MORE(W##_8_2)}},              \
    {                                                                                              \
        FN(VL),                                                                                    \
        {                                                                                          \
            FN(W##_1_1), FN(W##_2_1), FN(W##_4_1), FN(W##_8_1), GEMV_IF_MOST(W##_16_1)             \
        }                                                                                          \
    }

/* The first of those of a type, which end with a width of 0; NULL if there are none. */
static const FN(gemv_kind) * FN(gemv_kinds)(bsk_dtype stored)
{
    static const FN(gemv_kind)
        own[] = {GEMV_KINDS(whole),
#ifdef BSK_ISA_AVX512
                 {FN(VL) / 2, {FN(half_1_1), SMALL(2), SMALL(4), SMALL(8), SMALL(16)}},
#endif
                 {0}};
#ifdef GEMV_HALVES
    static const FN(gemv_kind) bf16[] = {GEMV_KINDS(bf16), {0}};
    if (stored == BSK_BF16)
        return bf16;
#endif
#ifdef GEMV_F16
    static const FN(gemv_kind) f16[] = {GEMV_KINDS(f16), {0}};
    if (stored == BSK_F16)
        return f16;
#endif
    return stored == STORED ? own : NULL;
}

/* Tiles that suit the block and the number of columns; false if there are none. */
static bool FN(gemv_choose)(const FN(dsd) * d, FN(gemv) * g)
{
    const bsk_dtype stored = d->p->s.dtype;
    const FN(gemv_kind) *kind = FN(gemv_kinds)(stored);
    const int64_t element = UNIT * (int64_t)type_size(stored);
    const int64_t bytes = d->block_i * d->block_j * element;
    int log = 0;
    if (d->n < 1 || d->n > min_i64(FN(GEMV_MOST), FN(NR)) || d->stride_i != 1 || d->image ||
        d->gate || !kind || d->depth_end % UNIT != 0)
        return false;
    while (1 << log < min_i64(d->n, FN(GEMV_COLS)))
        log++;
    *g = (FN(gemv)){.cols = 1 << log,
                    .ldx = bski_ceil_div(d->n, 1 << log) * (1 << log),
                    .chunk = max_i64(1, min_i64(FN(PIECES), FN(GEMV_CHUNK) / bytes)),
                    .ahead = bski_ceil_div(FN(gemv_fetch)(d, 1 << log), bytes),
                    .element = element};
    for (; !g->tile && kind->width; kind++)
        if (d->block_i % kind->width == 0) {
            g->tile = kind->tile[log];
            g->width = kind->width;
            g->duo = PAIRS && log > 0 && g->width < FN(VL);
        }
    return g->tile != NULL;
}
#undef GEMV_F16
#undef GEMV_KINDS
#undef GEMV_IF_MOST
#undef GEMV_IF_MORE
#undef SMALL

/* Whether S is read as fast as it lies as packed before, which widens it once. */
static bool FN(gemv_lies)(const FN(dsd) * d)
{
    return d->p->s.dtype == STORED || d->n <= FN(GEMV_WIDENED);
}

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
    const int64_t size = d->block_i * d->block_j * g->element, last = d->t->nnz - 1;
    const int32_t *slot = across ? d->t->row_slot : d->slot;
    const int32_t *other = across ? d->t->row_col : d->other;
    const int64_t passes = d->block_i / g->width * (g->ldx / g->cols);
    const int64_t step = size / (passes * d->block_j);
    FN(share) share[FN(PIECES)];

    for (; first < end; first += g->chunk) {
        const int64_t count = min_i64(g->chunk, end - first);
        for (int64_t e = 0; e < count; e++) {
            const int64_t at = first + e, i = across ? other[at] : line;
            const int64_t j = (across ? line : other[at]) * d->block_j;
            const int64_t later =
                at + g->ahead < end ? at + g->ahead : min_i64(next + at + g->ahead - end, last);
            share[e] = (FN(share)){work->s + slot[at] * size, work->s + slot[later] * size,
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
        work.s += (size_t)(member / d->t->heads * d->p->s.strides[0] * g->element / UNIT);
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
            const T *own = sum + i * size + row * g->ldx;
            for (int64_t e = 0; g->duo && e < rows * bski_ceil_div(d->n, 2); e++)
                memcpy(strip + e % rows * FN(NR) + e / rows * 2,
                       own + (e / rows * g->width + e % rows) * 2, 2 * sizeof *own);
            if (!g->duo)
                FN(transpose)(strip, FN(NR), own, g->width, rows, d->n);
            FN(strip_finish)(d, member, strip, NULL, i * d->block_i + row, rows, 0, d->n);
        }
    }
}

/* B of one batch member: [J][ldx], in parts that the threads share out. */
static void FN(gemv_pack)(const FN(dsd) * d, int64_t ldx, int64_t member, int64_t row, T *x)
{
    const int64_t rows = min_i64(FN(PACK_DEEP), d->J - row);
    FN(matrix) b = d->b;
    b.data += (size_t)(member * d->b_member) * type_size(b.type);
    x += row * ldx;
    if (d->n < ldx)
        memset(x, 0, (size_t)(rows * ldx) * sizeof(T));
    FN(depth_load)(x, ldx, &b, row, 0, rows, d->n, d->depth_end);
}

/* B of `count` members from number m0 on; called by all threads. */
static void FN(gemv_pack_all)(const FN(dsd) * d, int64_t ldx, int64_t m0, int64_t count)
{
    const int64_t parts = bski_ceil_div(d->J, FN(PACK_DEEP));
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count * parts; i++)
        FN(gemv_pack)
    (d, ldx, m0 + i / parts, i % parts * FN(PACK_DEEP), d->packed + i / parts * d->J * ldx);
}

/* All of C; tasks are ranges of block rows, as many as keep the threads busy: each walks all lists. */
static void FN(gemv_run)(const FN(dsd) * d, const FN(gemv) * g, int threads)
{
    const int64_t size = d->J * g->ldx;
    const int64_t ranges = FN(gemv_across)(d)
                               ? min_i64(d->grid_i, bski_ceil_div(threads, max_i64(1, d->batch)))
                               : d->ranges;
    const int64_t rows = d->grid_i * FN(gemv_sums)(d, g);
    T *sums = d->packed + size * d->chunk;
    for (int64_t m0 = 0; m0 < d->batch; m0 += d->chunk) {
        const int64_t count = min_i64(d->chunk, d->batch - m0);
#pragma omp parallel num_threads(threads)
        {
            FN(gemv_pack_all)(d, g->ldx, m0, count);
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
