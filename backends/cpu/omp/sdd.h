/* S = A B on the kept blocks. Included by products.c once for each kind of arithmetic, as dsd.h: here n
 * is the depth, and its steps count Ts.
 *
 * Pairs and batch members that add to the same blocks are joined to one long axis n, which is cut
 * into chunks. Both operands of a chunk are packed with n outermost: a in groups of MR rows, b in
 * strips of one vector of columns. A block narrower than half a vector takes two steps of n side by
 * side instead (`pair` = 2), and the two halves are added in the end. So each element of S is one
 * sum in an order that depends on shapes only. */

/* Whether S of bf16 leaves in pairs of rows, or in whole lines. */
#if defined(BSK_ISA_AVX512) && UNIT == 2 && !defined(INTEGER)
#define SDD_HALVES 1
#else
#define SDD_HALVES 0
#endif

enum {
    FN(CHUNK) = 1024, /* steps of n packed at a time, at most */
    /* Vectors of a strip that a kernel walks at once, and the row groups and pairs of strips that
     * take turns with them: what is of one pair stays in the first-level cache for all row groups,
     * or where it is STREAMED, what is of these for all pairs. */
    FN(STEPS) = STREAMED ? 128 : 256,
    FN(TALL) = STREAMED ? 2 : 8,
    FN(LINE) = STREAMED ? 8 : 1,
    FN(PACK_N) = 64, /* steps of n and columns of a unit of packing */
    FN(SPAN) = 64,
    FN(FLAT_N) = 16, /* the same where columns are contiguous */
    FN(FLAT_SPAN) = FN(PACK_N) * FN(SPAN) / FN(FLAT_N)
};

typedef struct FN(sdd) {
    const bsk_sdd_params *p;
    const bsk_sdd_args *args;
    const bsk_layout_tables *t;
    int64_t n, end;             /* of one member: steps, elements */
    int64_t batch, groups;      /* groups of S */
    int64_t members;            /* batch members that add to the same block */
    int64_t length;             /* of the joined axis n */
    int64_t chunk;              /* of it, a multiple of align */
    int64_t pair, width;        /* columns of a strip: width * pair lanes */
    int64_t align;              /* steps are packed in multiples of it */
    int64_t row_groups, strips; /* of a block */
    size_t a_bytes, b_bytes;    /* packed */
    bool sums;                  /* blocks pass through `sum` before they reach S */
    bool past;                  /* blocks go past the caches, where they are of whole lines */
    int64_t ranges, wide;       /* tasks: ranges of block rows, and block columns of one range */
    T alpha, beta;
    const T *gate;
    T *a, *b, *sum;
#if INT_SHIFT
    int32_t *shift; /* by which sums over the chunk are too large, by row */
#endif
} FN(sdd);

/* One output: a head and a group of S, and the part of its axis n in work. */
typedef struct FN(target) {
    int64_t head, group;
    int64_t from, count; /* on the joined axis */
    bool first, last;    /* chunk */
} FN(target);

/* Two strips, or one, of one block column each. */
typedef struct FN(stream) {
    const T *b;
    int64_t slot, col; /* columns within the block */
} FN(stream);

#ifndef MATRIX_TILES
/* acc[MR][2] += a b over steps; out: two tiles [MR][VL]. */
#define SDD_TILE(name, COUNT, PAIR, splat)                                                         \
    static void FN(name)(T *restrict out, const T *restrict a, const T *restrict b0,               \
                         const T *restrict b1, int64_t steps, bool resume)                         \
    {                                                                                              \
        V acc[SDD_MR][COUNT];                                                                      \
        (void)b1;                                                                                  \
        _Pragma("GCC unroll 8") for (int i = 0; i < SDD_MR; i++)                                   \
            _Pragma("GCC unroll 2") for (int v = 0; v < COUNT; v++) acc[i][v] =                    \
                resume ? FN(vload)(out + (v * SDD_MR + i) * FN(VL)) : (V){0};                      \
        _Pragma("GCC unroll 4") for (int64_t k = 0; k < steps; k++)                                \
        {                                                                                          \
            V x[COUNT];                                                                            \
            _Pragma("GCC unroll 2") for (int v = 0; v < COUNT; v++) x[v] =                         \
                FN(vload)((v ? b1 : b0) + k * FN(VL));                                             \
            _Pragma("GCC unroll 8") for (int i = 0; i < SDD_MR; i++)                               \
            {                                                                                      \
                V w = splat(a[(k * SDD_MR + i) * (PAIR)]);                                         \
                _Pragma("GCC unroll 2") for (int v = 0; v < COUNT; v++) acc[i][v] =                \
                    FN(madd)(acc[i][v], w, x[v]);                                                  \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 8") for (int i = 0; i < SDD_MR; i++)                                   \
            _Pragma("GCC unroll 2") for (int v = 0; v < COUNT; v++)                                \
                FN(vstore)(out + (v * SDD_MR + i) * FN(VL), acc[i][v]);                            \
    }
#define SDD_SPLAT(element)      FN(vsplat)(element)
#define SDD_SPLAT_PAIR(element) splat_pair_f32(&(element))
SDD_TILE(sdd_tile_one, 1, 1, SDD_SPLAT)
SDD_TILE(sdd_tile_two, 2, 1, SDD_SPLAT)
#if PAIRS
SDD_TILE(sdd_pair_one, 1, 2, SDD_SPLAT_PAIR)
SDD_TILE(sdd_pair_two, 2, 2, SDD_SPLAT_PAIR)
#endif
#undef SDD_TILE
#undef SDD_SPLAT
#undef SDD_SPLAT_PAIR
#endif

typedef void (*FN(sdd_tile))(T *restrict, const T *restrict, const T *restrict, const T *restrict,
                             int64_t, bool);

/* By pair - 1 and the number of strips - 1. */
static const FN(sdd_tile) FN(sdd_tiles)[][2] = {
    {FN(sdd_tile_one), FN(sdd_tile_two)},
#if PAIRS
    {FN(sdd_pair_one), FN(sdd_pair_two)},
#endif
};

/* Steps k0 .. k0 + rows - 1 of a unit, of `width` columns, from a buffer to the packed form. */
static void FN(pack_steps)(T *restrict dst, const T *restrict src, int64_t ld, int64_t width,
                           int64_t k0, int64_t rows)
{
    for (int64_t k = 0; k < rows; k++)
        row_copy(dst + (k0 + k) * width, src + k * ld, (size_t)width * sizeof(T));
}

static void FN(pack_pairs)(T *restrict dst, const T *restrict src, int64_t ld, int64_t width,
                           int64_t k0, int64_t rows)
{
    int64_t k = 0;
    for (; k < rows; k++) {
        T *d = dst + (k0 + k) / 2 * 2 * width + ((k0 + k) & 1);
        const T *x = src + k * ld;
        if (((k0 + k) & 1) == 0 && k + 1 < rows) {
            for (int64_t c = 0; c < width; c++) {
                d[2 * c] = x[c];
                d[2 * c + 1] = x[ld + c];
            }
            k++;
        } else {
            for (int64_t c = 0; c < width; c++)
                d[2 * c] = x[c];
        }
    }
}

/* The same for a row group in matrix tiles [TILE_DEPTH steps][MR][TILE_DEPTH]. */
static void FN(pack_tiles)(T *restrict dst, const T *restrict src, int64_t ld, int64_t width,
                           int64_t k0, int64_t rows)
{
    int64_t count = 0;
    for (int64_t k = 0; k < rows; k += count) {
        const int64_t within = (k0 + k) % TILE_DEPTH;
        count = min_i64(rows - k, TILE_DEPTH - within);
        FN(transpose)
        (dst + (k0 + k - within) * width + within, TILE_DEPTH, src + k * ld, ld, width, count);
    }
}

/* What a packed operand looks like: units (row groups, strips) of `width` columns, per_block units
 * for each block of `block` columns of a matrix with `cols`, each unit `size` elements. */
typedef struct FN(packing) {
    const bsk_tensor *tensor;
    const bsk_mem *views; /* one of each pair */
    bool transposed;      /* n is the last axis */
    bool direct, tiles;   /* steps as they come, or in matrix tiles; else in pairs */
    bool shifted;         /* with INT_SHIFT: has no sign */
    int64_t block, cols, width, per_block, size;
    T *dst;
    int64_t steps, span; /* of a unit of packing: PACK_N and SPAN, or FLAT_N and FLAT_SPAN */
} FN(packing);

static FN(matrix) FN(operand)(const FN(packing) * o, int64_t pair, int64_t batch)
{
    int64_t member = 0;
    FN(matrix) m = FN(matrix_of)(o->tensor, o->views[pair], &member);
    m.data += (size_t)(batch * member) * type_size(m.type);
    if (o->transposed) {
        const int64_t stride = m.row_stride;
        m.row_stride = m.col_stride;
        m.col_stride = stride;
    }
    return m;
}

/* Loads the columns of units first .. last - 1 side by side, or of one, and packs them. A unit that is
 * wider than its block gets columns of the next one too, which make results that nobody reads. No
 * data: zeros. at: the chunk's step that rows begin with. */
static void FN(units_pack)(const FN(sdd) * d, const FN(packing) * o, const FN(matrix) * m,
                           int64_t first, int64_t last, int64_t inside, int64_t at, int64_t rows)
{
    const int64_t within = first % o->per_block * o->width;
    const int64_t col = first / o->per_block * o->block + within;
    const int64_t own = min_i64(o->width, o->block - within), most = (last - first) * own;
    const int64_t wide = most - own + o->width;
    const int64_t cols = max_i64(0, min_i64(most, o->cols - col));
    T part[FN(PACK_N) * FN(SPAN)];

    for (int64_t r = 0; r < rows && (cols < wide || !m); r++)
        memset(part + r * o->span, 0, (size_t)wide * sizeof(T));
    if (m)
        FN(depth_load)(part, o->span, m, inside, col, rows, cols, d->end);
#if INT_SHIFT
    if (o->shifted)
        shift_i8(part, rows * o->span);
#endif
    for (int64_t u = first; u < last; u++)
        (o->tiles    ? FN(pack_tiles)
         : o->direct ? FN(pack_steps)
                     : FN(pack_pairs))(o->dst + u * o->size, part + (u - first) * own, o->span,
                                       o->width, at, rows);
}

/* Whether a matrix is units side by side, of as many columns each. */
static bool FN(units_beside)(const FN(packing) * o)
{
    return o->per_block == 1 || o->per_block * o->width == o->block;
}

/* Packs steps k0 .. k0 + count - 1 of the chunk, for units first .. last - 1: at most `steps` by
 * `span` of the operand. */
static void FN(operand_pack)(const FN(sdd) * d, const FN(target) * g, const FN(packing) * o,
                             int64_t first, int64_t last, int64_t k0, int64_t count)
{
    const int64_t end = k0 + count;
    const int64_t step = FN(units_beside)(o) ? last - first : 1;

    while (k0 < end) {
        /* Beyond the joined axis are zeros, up to a multiple of align. */
        const bool data = k0 < g->count;
        const int64_t v = g->from + k0, inside = v % max_i64(d->n, 1),
                      segment = data ? v / d->n : 0;
        const int64_t rows = data ? min_i64(min_i64(end, g->count) - k0, d->n - inside) : end - k0;
        const int64_t index = segment % d->members;
        const int64_t batch =
            d->groups > 1 ? g->group * d->t->heads + g->head : index * d->t->heads + g->head;
        const FN(matrix) m = FN(operand)(o, data ? segment / d->members : 0, batch);
        for (int64_t u = first; u < last; u += step)
            FN(units_pack)(d, o, data ? &m : NULL, u, u + step, inside, k0, rows);
        k0 += rows;
    }
}

/* What products of a block are multiplied by. */
static T FN(block_scale)(const FN(sdd) * d, int64_t slot)
{
    const bool gated = d->p->gate_mode == BSK_GATE_SCALE && d->gate;
    return gated ? d->alpha * d->gate[slot * d->p->gate.strides[0]] : d->alpha;
}

/* Whether a gate of 0 makes the block 0, which is more than times 0: products need not be finite. */
static bool FN(block_off)(const FN(sdd) * d, int64_t slot)
{
    return d->p->gate_mode == BSK_GATE_SCALE && d->gate &&
           d->gate[slot * d->p->gate.strides[0]] == 0;
}

/* S, or the sums, of rows row .. row + rows - 1 and one strip of a block. tile: [MR][VL]. */
static void FN(tile_finish)(const FN(sdd) * d, const FN(target) * g, const FN(stream) * stream,
                            int64_t row, int64_t rows, int64_t cols, T *restrict tile)
{
    const bsk_sdd_params *p = d->p;
    const int64_t bc = d->t->block_cols, size = d->t->block_rows * bc;
    if (d->pair == 2)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t c = 0; c < FN(VL) / 2; c++)
                tile[i * FN(VL) + c] =
                    FN(plus)(tile[i * FN(VL) + 2 * c], tile[i * FN(VL) + 2 * c + 1]);
    if (d->sums) {
        T *sum =
            d->sum + (stream->slot - d->t->head_start[g->head]) * size + row * bc + stream->col;
        for (int64_t i = 0; i < rows; i++)
            for (int64_t c = 0; c < cols; c++)
                sum[i * bc + c] = FN(plus)(tile[i * FN(VL) + c], g->first ? 0 : sum[i * bc + c]);
        return;
    }
#ifdef INTEGER
    FN(numbers)(tile, rows * FN(VL), 0);
#endif
    const int64_t base = d->groups > 1 ? g->group * p->s.strides[0] : 0;
    const FN(matrix) s = {p->s.dtype, bc, 1,
                          (char *)bsk_mem_address(d->args->s) +
                              (size_t)(base + stream->slot * size) * type_size(p->s.dtype),
                          d->past};
    const T scale = FN(block_scale)(d, stream->slot);
    if (FN(block_off)(d, stream->slot))
        memset(tile, 0, (size_t)(rows * FN(VL)) * sizeof *tile);
    else if (scale != 1)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t c = 0; c < FN(VL); c++)
                tile[i * FN(VL) + c] *= scale;
    if (d->beta != 0) {
        T old[SDD_MR * FN(VL)];
        FN(tile_load)(old, FN(VL), &s, row, stream->col, rows, cols);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t c = 0; c < cols; c++)
                tile[i * FN(VL) + c] += d->beta * old[i * FN(VL) + c];
    }
    FN(tile_store)(tile, FN(VL), &s, row, stream->col, rows, cols);
}

#if SDD_HALVES
/* Whether two strips are whole lines of S that may go past the caches. */
static bool FN(lines_whole)(const FN(sdd) * d, const FN(stream) * stream, int64_t row)
{
    const int64_t rows = d->t->block_rows, cols = d->t->block_cols, slot = stream->slot;
    return d->past && stream->col + 2 * FN(VL) <= cols && row + SDD_MR <= rows &&
           (d->t->slot_row[slot] + 1) * rows <= d->t->rows &&
           (d->t->slot_col[slot] + 1) * cols <= d->t->cols;
}

/* Where row `row` and what columns of a block a strip has lie in S of 16 bits. */
static uint16_t *FN(half_at)(const FN(sdd) * d, const FN(target) * g, const FN(stream) * stream,
                             int64_t row)
{
    const int64_t bc = d->t->block_cols, size = d->t->block_rows * bc;
    const int64_t base = d->groups > 1 ? g->group * d->p->s.strides[0] : 0;
    return (uint16_t *)bsk_mem_address(d->args->s) + base + stream->slot * size + row * bc +
           stream->col;
}

/* tile_finish for 8 or 16 columns of bf16 that nothing is added to: true if they are. The two halves
 * of a sum lie side by side where `pair` is 2. */
static bool FN(half_finish)(const FN(sdd) * d, const FN(target) * g, const FN(stream) * stream,
                            int64_t row, int64_t rows, int64_t cols, const T *restrict tile)
{
    const int64_t bc = d->t->block_cols;
    const __m512 scale = _mm512_set1_ps(FN(block_scale)(d, stream->slot));
    const __m512i order = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i next = _mm512_or_epi32(order, _mm512_set1_epi32(1));

    if (d->p->s.dtype != BSK_BF16 || d->sums || d->beta != 0 || rows % 2 != 0 ||
        (cols != 8 && cols != FN(VL)) || FN(block_off)(d, stream->slot))
        return false;
    uint16_t *s = FN(half_at)(d, g, stream, row);
    for (int64_t i = 0; i < rows; i += 2, s += 2 * bc) {
        __m512 row0 = _mm512_loadu_ps(tile + i * FN(VL));
        __m512 row1 = _mm512_loadu_ps(tile + (i + 1) * FN(VL));
        if (d->pair == 2) {
            row0 = _mm512_add_ps(_mm512_permutexvar_ps(order, row0),
                                 _mm512_permutexvar_ps(next, row0));
            row1 = _mm512_add_ps(_mm512_permutexvar_ps(order, row1),
                                 _mm512_permutexvar_ps(next, row1));
        }
        const __m512i two = pair_bf16(_mm512_mul_ps(scale, row0), _mm512_mul_ps(scale, row1));
        if (cols == 8) {
            _mm_storeu_si128((void *)s, _mm512_castsi512_si128(two));
            _mm_storeu_si128((void *)(s + bc), _mm512_extracti32x4_epi32(two, 2));
        } else {
            _mm256_storeu_si256((void *)s, _mm512_castsi512_si256(two));
            _mm256_storeu_si256((void *)(s + bc), _mm512_extracti64x4_epi64(two, 1));
        }
    }
    return true;
}

/* Rows of S from `row` of a block on, for two strips side by side: true if that could be done in
 * whole lines. tiles: [2][MR][VL]. */
static bool FN(lines_finish)(const FN(sdd) * d, const FN(target) * g, const FN(stream) * stream,
                             int64_t row, const T *restrict tiles)
{
    const int64_t bc = d->t->block_cols;
    const __m512 scale = _mm512_set1_ps(FN(block_scale)(d, stream->slot));

    if (!FN(lines_whole)(d, stream, row) || FN(block_off)(d, stream->slot))
        return false;
    uint16_t *s = FN(half_at)(d, g, stream, row);
    for (int64_t i = 0; i < SDD_MR; i++) {
        const __m512 low = _mm512_mul_ps(scale, _mm512_loadu_ps(tiles + i * FN(VL)));
        const __m512 high = _mm512_mul_ps(scale, _mm512_loadu_ps(tiles + (SDD_MR + i) * FN(VL)));
        _mm512_stream_si512((void *)(s + i * bc), pair_bf16(low, high));
    }
    return true;
}
#endif

static bool FN(slot_skipped)(const FN(sdd) * d, int64_t slot)
{
    return d->p->gate_mode == BSK_GATE_SKIP && d->gate &&
           d->gate[slot * d->p->gate.strides[0]] == 0;
}

#if INT_SHIFT
/* The shift of the row group that is unit number u of a, over `steps` of the chunk. */
static void FN(shift_make)(const FN(sdd) * d, int64_t u, int64_t steps)
{
    const T *a = d->a + u * d->chunk * SDD_MR;
    int32_t *shift = d->shift + u * SDD_MR, sum[2 * SDD_MR] = {0};
    for (int64_t p = 0; p < d->pair; p++)
        shift_sum_i8(sum + p * SDD_MR, a + p * SDD_MR, steps, SDD_MR * d->pair);
    for (int64_t i = 0; i < SDD_MR; i++)
        shift[i] = d->pair == 2 ? sum[2 * i] + sum[2 * i + 1] : sum[i];
}

/* Tiles that sums begin with: what they will be too large by, taken away. */
static void FN(tiles_begin)(const FN(sdd) * d, T *restrict tiles, const int32_t *shift)
{
    int_sum *to = (int_sum *)tiles;
    for (int64_t i = 0; i < 2 * SDD_MR; i++)
        for (int64_t c = 0; c < FN(VL); c++)
            to[i * FN(VL) + c] = c % d->pair ? 0 : -shift[i % SDD_MR];
}
#endif

/* `part` steps from k on of one or two strips times row groups first .. first + groups - 1. */
static void FN(pair_compute)(const FN(sdd) * d, const FN(stream) * stream, int64_t count,
                             int64_t first, int64_t groups, int64_t k, int64_t part,
                             T (*restrict tile)[2 * SDD_MR * FN(VL)])
{
    const int64_t unit = d->chunk * SDD_MR;
    const T *a = d->a + first * unit + k * SDD_MR * d->pair;
    const T *b0 = stream[0].b + k * FN(VL), *b1 = stream[count - 1].b + k * FN(VL);
    const bool resume = k > 0 || (INT_SHIFT && part > 0);

    for (int64_t r = 0; r < groups; r++) {
        FN(sdd_tiles)[d->pair - 1][count - 1](tile[r], a + r * unit, b0, b1, part, resume);
    }
}

/* The same for `count` strips. */
static void FN(line_compute)(const FN(sdd) * d, const FN(stream) * stream, int64_t count,
                             int64_t first, int64_t groups, int64_t k, int64_t part, bool last,
                             T (*restrict tile)[FN(TALL)][2 * SDD_MR * FN(VL)])
{
    int64_t p = 0;
    (void)last;
#if STREAMED
    const int64_t turn = groups == FN(TALL) ? 1 : 2; /* pairs at once */
    p = part > 0 ? count / 2 / turn * turn : 0;
    if (p > 0) {
        const int64_t unit = d->chunk * SDD_MR;
        const T *a = d->a + first * unit + k * SDD_MR, *b[2 * FN(LINE)];
        const T *next = last ? d->a + (first + groups) * unit : a + part * SDD_MR;
        for (int64_t v = 0; v < 2 * p; v++)
            b[v] = stream[v].b;
        const FN(sdd_slice) slice = {{a, a + unit},
                                     {next, next + unit},
                                     b,
                                     k,
                                     p,
                                     part,
                                     bski_ceil_div(TILE_DEPTH, p / turn),
                                     k > 0 || INT_SHIFT};
        (turn == 1 ? FN(sdd_tall) : FN(sdd_low))(&slice, tile[0][0], tile[1][0] - tile[0][0]);
    }
#endif
    for (; 2 * p < count; p++)
        FN(pair_compute)
    (d, stream + 2 * p, min_i64(2, count - 2 * p), first, groups, k, part, tile[p]);
}

/* Up to 2 LINE strips times row groups of one block row. */
static void FN(streams_compute)(const FN(sdd) * d, const FN(target) * g, const FN(stream) * stream,
                                int64_t count, int64_t block_row, int64_t steps)
{
    const int64_t block = d->t->block_rows, stored = min_i64(block, d->t->rows - block_row * block);
    T tile[FN(LINE)][FN(TALL)][2 * SDD_MR * FN(VL)] __attribute__((aligned(64)));

    for (int64_t top = 0; top < stored; top += FN(TALL) * SDD_MR) {
        const int64_t groups = min_i64(FN(TALL), bski_ceil_div(stored - top, SDD_MR));
        const int64_t first = block_row * d->row_groups + top / SDD_MR;
#if INT_SHIFT
        for (int64_t r = 0; steps > 0 && r < groups; r++)
            FN(tiles_begin)(d, tile[0][r], d->shift + (first + r) * SDD_MR);
#endif
        const int64_t most = STREAMED ? FN(STEPS) * FN(TALL) / groups : FN(STEPS);
        for (int64_t k = 0; k < steps || k == 0; k += most)
            FN(line_compute)
        (d, stream, count, first, groups, k, min_i64(most, steps - k), k + most >= steps, tile);
        for (int64_t i = 0; i < count * groups; i++) {
            const int64_t v = i / groups, r = i % groups;
#if SDD_HALVES
            if (v % 2 == 0 && v + 1 < count &&
                FN(lines_finish)(d, g, &stream[v], top + r * SDD_MR, tile[v / 2][r]))
                continue;
            if (v % 2 == 1 && FN(lines_whole)(d, &stream[v - 1], top + r * SDD_MR))
                continue;
#endif
            const int64_t row = top + r * SDD_MR, rows = min_i64(SDD_MR, stored - row);
            const int64_t col = stream[v].col, block_col = d->t->slot_col[stream[v].slot];
            const int64_t cols =
                min_i64(d->t->block_cols, d->t->cols - block_col * d->t->block_cols) - col;
            T *sums = tile[v / 2][r] + v % 2 * SDD_MR * FN(VL);
#if SDD_HALVES
            if (FN(half_finish)(d, g, &stream[v], row, rows, min_i64(cols, d->width), sums))
                continue;
#endif
            if (cols > 0)
                FN(tile_finish)(d, g, &stream[v], row, rows, min_i64(cols, d->width), sums);
        }
    }
}

/* The blocks of one block row within block columns first .. last - 1. */
static void FN(row_compute)(const FN(sdd) * d, const FN(target) * g, int64_t row, int64_t first,
                            int64_t last)
{
    const bsk_layout_tables *t = d->t;
    const int64_t *start = t->row_start + g->head * (t->grid_rows + 1) + row;
    const int64_t entry = list_find(t->row_col, start[0], start[1], first);
    const int64_t steps = bski_ceil_div(g->count, d->align) * (d->align / d->pair),
                  unit = d->chunk * d->width;
    FN(stream) stream[2 * FN(LINE)];
    int64_t count = 0;

    for (int64_t e = entry; e < start[1] && t->row_col[e] < last; e++) {
        const int64_t slot = t->row_slot[e];
        const bool skip = FN(slot_skipped)(d, slot);
        for (int64_t s = 0; s < d->strips; s++) {
            const FN(stream)
                next = {d->b + (t->row_col[e] * d->strips + s) * unit, slot, s * d->width};
            if (skip) {
                FN(streams_compute)(d, g, &next, 1, row, 0);
                continue;
            }
            stream[count++] = next;
            if (count == 2 * FN(LINE)) {
                FN(streams_compute)(d, g, stream, count, row, steps);
                count = 0;
            }
        }
    }
    if (count)
        FN(streams_compute)(d, g, stream, count, row, steps);
#ifdef TRANSPOSE_LARGE
    if (d->past)
        _mm_sfence();
#endif
}

/* The last step for one block that went through the sums: S and the gradient of its gate. */
static void FN(block_finish)(const FN(sdd) * d, const FN(target) * g, int64_t slot)
{
    const bsk_sdd_params *p = d->p;
    const bsk_layout_tables *t = d->t;
    const int64_t bc = t->block_cols, size = t->block_rows * bc;
    const int64_t rows =
        min_i64(t->block_rows, t->rows - (int64_t)t->slot_row[slot] * t->block_rows);
    const int64_t cols = min_i64(bc, t->cols - (int64_t)t->slot_col[slot] * bc);
    const bool skip = FN(slot_skipped)(d, slot), grouped = d->groups > 1;
    const T *sum = d->sum + (slot - t->head_start[g->head]) * size;
    char *s =
        (char *)bsk_mem_address(d->args->s) +
        (size_t)((grouped ? g->group * p->s.strides[0] : 0) + slot * size) * type_size(p->s.dtype);
    const T *w = bsk_mem_address(d->args->w);
    const T scale = FN(block_scale)(d, slot);
    const bool off = skip || FN(block_off)(d, slot);
    T product = 0, x[FN(RUN)], old[FN(RUN)];

    if (w && p->w.rank == 4 && p->w.dims[0] > 1)
        w = (const T *)(const void *)((const char *)w +
                                      (size_t)(g->group * p->w.strides[0]) * type_size(p->w.dtype));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c += FN(RUN)) {
            const int64_t at = r * bc + c, count = min_i64(FN(RUN), cols - c);
            for (int64_t i = 0; i < count; i++)
                x[i] = off ? 0 : scale * FN(number)(sum[at + i]);
            if (d->beta != 0) {
                FN(row_load)(old, p->s.dtype, s, at, count);
                for (int64_t i = 0; i < count; i++)
                    x[i] += d->beta * old[i];
            }
            FN(row_store)(x, p->s.dtype, s, at, count);
            if (p->dgate.dtype == BSK_NONE || skip)
                continue;
            FN(row_load)(old, p->w.dtype, w, slot * size + at, count);
            for (int64_t i = 0; i < count; i++)
                product += sum[at + i] * old[i];
        }
    if (p->dgate.dtype != BSK_NONE) {
        T *to = (T *)bsk_mem_address(d->args->dgate) + slot * p->dgate.strides[0];
        const T factor = g->group == 0 ? d->beta : 1;
        *to = d->alpha * product + (factor == 0 ? 0 : factor * *to);
    }
}

/* bsum of columns col .. col + cols - 1, at most SPAN, by sums of PACK_N rows: of millions of rows in
 * f32 the last would not count. */
static void FN(columns_sum)(const FN(sdd) * d, const FN(packing) * b, int64_t col, int64_t cols)
{
    T part[FN(PACK_N) * FN(SPAN)];
    double sum[FN(SPAN)] = {0};
    for (int64_t pair = 0; pair < d->p->pairs; pair++)
        for (int64_t batch = 0; batch < d->batch; batch++) {
            const FN(matrix) m = FN(operand)(b, pair, batch);
            for (int64_t k = 0; k < d->end; k += FN(PACK_N)) {
                const int64_t rows = min_i64(FN(PACK_N), d->end - k);
                FN(tile_load)(part, FN(SPAN), &m, k, col, rows, cols);
                for (int64_t r = 1; r < rows; r++)
                    for (int64_t c = 0; c < cols; c++)
                        part[c] += part[r * FN(SPAN) + c];
                for (int64_t c = 0; c < cols; c++)
                    sum[c] += part[c];
            }
        }
    const bsk_mem none = {0};
    const T alpha = (T)d->args->alpha * FN(operand_scale)(d->args->b_scale, none);
    for (int64_t c = 0; c < cols; c++) {
        T *to = (T *)bsk_mem_address(d->args->bsum) + (col + c) * d->p->bsum.strides[0];
        *to = alpha * (T)sum[c] + (d->beta == 0 ? 0 : d->beta * *to);
    }
}

/* Sizes that depend on shapes only. False if they overflow, or sums may. */
static bool FN(sdd_shape)(const bsk_problem *problem, FN(sdd) * d, size_t *bytes)
{
    const bsk_sdd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const int32_t axis = p->b.rank - 2;
    size_t step, sum = 0;
    int64_t largest = 0;

    memset(d, 0, sizeof *d);
    d->p = p;
    d->t = t;
    d->end = p->b.dims[axis];
    d->n = bski_ceil_div(d->end, UNIT);
    d->batch = axis ? p->b.dims[0] : 1;
    d->groups = p->s.rank == 4 && p->s.dims[0] > 1 ? p->s.dims[0] : 1;
    d->members = d->groups > 1 ? 1 : max_i64(1, d->batch / t->heads);
    if (!bski_mul_i64(d->n, d->batch ? d->members * p->pairs : 0, &d->length))
        return false;
#ifdef INTEGER
    if (d->length > INT_DEEPEST / UNIT)
        return false;
#endif
    d->pair = PAIRS && t->block_cols <= FN(VL) / 2 ? 2 : 1;
    d->width = FN(VL) / d->pair;
    d->align = max_i64(d->pair, TILE_DEPTH);
    d->row_groups = bski_ceil_div(t->block_rows, SDD_MR);
    d->strips = bski_ceil_div(t->block_cols, d->width);

    /* Bytes that one step of n takes, packed. */
    const size_t a_step = (size_t)t->grid_rows * (size_t)d->row_groups * SDD_MR * sizeof(T);
    const size_t b_step = (size_t)t->grid_cols * (size_t)(d->strips * d->width) * sizeof(T);
    if (!bski_add_size(a_step, b_step, &step))
        return false;
    d->chunk = min_i64(FN(CHUNK), max_i64(16, (int64_t)(PACKED / step) & ~(int64_t)15));
    d->chunk = min_i64(d->chunk, max_i64(1, bski_ceil_div(d->length, d->align)) * d->align);
    d->sums = d->length > d->chunk || p->dgate.dtype != BSK_NONE;
    for (int32_t h = 0; h < t->heads; h++)
        largest = max_i64(largest, t->head_start[h + 1] - t->head_start[h]);
    if (d->sums && (!bski_mul_size((size_t)largest, (size_t)t->block_rows, &sum) ||
                    !bski_mul_size(sum, (size_t)t->block_cols * sizeof(T), &sum)))
        return false;
    if (!bski_mul_size(a_step, (size_t)d->chunk, &d->a_bytes) ||
        !bski_mul_size(b_step, (size_t)d->chunk, &d->b_bytes) ||
        !bski_add_size(d->a_bytes, 63, &d->a_bytes) || !bski_add_size(d->b_bytes, 63, &d->b_bytes))
        return false;
    d->a_bytes &= ~(size_t)63;
    d->b_bytes &= ~(size_t)63;
    /* behind them, what the kernels of i8 keep by row */
    const size_t kept = INT_SHIFT ? a_step : 0;
    return bski_add_size(d->a_bytes, d->b_bytes, &step) && bski_add_size(step, kept, &step) &&
           bski_add_size(step, sum, bytes);
}

/* One chunk of one output, by the threads of the enclosing parallel region. */
static void FN(chunk_run)(const FN(sdd) * d, const FN(target) * g, const FN(packing) * operand,
                          deal *tiles, int threads)
{
    const int64_t count = bski_ceil_div(g->count, d->align) * d->align;
    int64_t units[2], parts[2], per[2], tasks[2];
    for (int i = 0; i < 2; i++) {
        units[i] = (i ? d->t->grid_cols : d->t->grid_rows) * operand[i].per_block;
        parts[i] = bski_ceil_div(count, operand[i].steps);
        per[i] = operand[i].span / operand[i].width;
        tasks[i] = bski_ceil_div(units[i], per[i]) * parts[i];
    }
#pragma omp single nowait
    deal_open(tiles, bski_ceil_div(d->t->grid_cols, d->wide), d->ranges, threads);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < tasks[0] + tasks[1]; i++) {
        const int b = i >= tasks[0];
        const int64_t at = i - (b ? tasks[0] : 0), steps = operand[b].steps;
        const int64_t k0 = at % parts[b] * steps, first = at / parts[b] * per[b];
        FN(operand_pack)
        (d, g, &operand[b], first, min_i64(first + per[b], units[b]), k0,
         min_i64(steps, count - k0));
    }
#if INT_SHIFT
#pragma omp for schedule(static)
    for (int64_t u = 0; u < units[0]; u++)
        FN(shift_make)(d, u, count / d->pair);
#endif
    const int64_t *start = d->t->row_start + g->head * (d->t->grid_rows + 1);
#pragma omp for schedule(static, 1)
    for (int thread = 0; thread < threads; thread++)
        for (int64_t i, hands = 0; (i = deal_take(tiles, thread, threads, &hands)) >= 0;) {
            const int64_t range = i % d->ranges, col = i / d->ranges * d->wide;
            const int64_t last = range_start(start, d->t->grid_rows, range + 1, d->ranges);
            for (int64_t r = range_start(start, d->t->grid_rows, range, d->ranges); r < last; r++)
                FN(row_compute)(d, g, r, col, min_i64(col + d->wide, d->t->grid_cols));
        }
    if (g->last && d->sums) {
#pragma omp for schedule(static)
        for (int64_t slot = d->t->head_start[g->head]; slot < d->t->head_start[g->head + 1]; slot++)
            FN(block_finish)(d, g, slot);
    }
}

#ifdef TRANSPOSE_LARGE
/* Whether S is so large that what is stored of it would be swept out of the caches for nothing, and,
 * where pairs of strips are stored at once, its blocks begin with lines. */
static bool FN(goes_past)(const FN(sdd) * d)
{
    const int64_t numbers = VEC_BYTES / 2; /* of a line */
    const int64_t size = d->t->block_rows * d->t->block_cols;
    const int64_t group = d->groups > 1 ? d->p->s.strides[0] : 0;
    const bool lines = d->t->block_cols % numbers == 0 && group % numbers == 0 &&
                       (uintptr_t)bsk_mem_address(d->args->s) % VEC_BYTES == 0;
    const bool whole =
        SDD_HALVES ? d->p->s.dtype == BSK_BF16 && lines : !STREAMED && d->p->s.dtype == OWN;
    return whole && d->beta == 0 && !d->sums &&
           d->t->nnz * size * (int64_t)type_size(d->p->s.dtype) >= DSD_PAST;
}
#endif

static void FN(sdd_run)(const bsk_prepared *prepared, int threads, const bsk_sdd_args *args)
{
    FN(sdd) d;
    size_t bytes;
    FN(sdd_shape)(prepared->problem, &d, &bytes);
    const bsk_sdd_params *p = d.p;
    const bsk_layout_tables *t = d.t;
    char *workspace = bsk_mem_address(args->workspace);

    d.args = args;
    d.alpha = (T)args->alpha * FN(operand_scale)(args->a_scale, args->b_scale);
    d.beta = (T)args->beta;
    d.gate = bsk_mem_address(args->gate);
#ifdef TRANSPOSE_LARGE
    d.past = FN(goes_past)(&d);
#endif
    d.a = (T *)(void *)workspace;
    d.b = (T *)(void *)(workspace + d.a_bytes);
    d.sum = (T *)(void *)(workspace + d.a_bytes + d.b_bytes);
#if INT_SHIFT
    d.shift = (int32_t *)(void *)d.sum;
    d.sum += t->grid_rows * d.row_groups * SDD_MR;
#endif

    /* A task's strips stay in the second-level cache while its rows pass. */
    const int64_t column = d.strips * d.width * d.chunk * (int64_t)sizeof(T);
    d.wide = max_i64(1, min_i64(t->grid_cols, NEAR / column));
    d.ranges = min_i64(t->grid_rows, max_i64(4 * threads, 16));

    FN(packing)
    operand[2] = {{&p->a, args->a, true, d.pair == 1 && TILE_DEPTH == 1, TILE_DEPTH > 1, false,
                   t->block_rows, t->rows, SDD_MR, d.row_groups, SDD_MR * d.chunk, d.a, 0, 0},
                  {&p->b, args->b, false, d.pair == 1, false, true, t->block_cols, t->cols, d.width,
                   d.strips, d.width * d.chunk, d.b, 0, 0}};
    for (int i = 0; i < 2; i++) {
        const FN(packing) *o = &operand[i];
        const bool flat = FN(units_beside)(o) && FN(operand)(o, 0, 0).col_stride == 1;
        operand[i].steps = flat ? FN(FLAT_N) : FN(PACK_N);
        operand[i].span = flat ? FN(FLAT_SPAN) : FN(SPAN);
    }
    deal tiles;
#pragma omp parallel num_threads(threads)
    {
#ifdef MATRIX_TILES
        FN(tiles_open)(t->block_rows, TILE_DEPTH);
#endif
        for (int64_t output = 0; output < t->heads * d.groups; output++)
            for (int64_t v = 0; v < d.length || v == 0; v += d.chunk) {
                const FN(target) g = {output % t->heads,
                                      output / t->heads,
                                      v,
                                      min_i64(d.chunk, d.length - v),
                                      v == 0,
                                      v + d.chunk >= d.length};
                FN(chunk_run)(&d, &g, operand, &tiles, threads);
            }
        if (p->bsum.dtype != BSK_NONE) {
#pragma omp for schedule(static)
            for (int64_t col = 0; col < t->cols; col += FN(SPAN))
                FN(columns_sum)(&d, &operand[1], col, min_i64(FN(SPAN), t->cols - col));
        }
#ifdef MATRIX_TILES
        FN(tiles_close)();
#endif
    }
}
#undef SDD_HALVES
