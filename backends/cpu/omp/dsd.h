/* C = op(S) B with S block-sparse. Included by products.c once for each kind of arithmetic: T is what
 * the tiles load, and holds UNIT elements that are neighbours along the depth, which are S_STORED in
 * memory; FN(madd) multiplies and adds. All depths below count Ts. INTEGER: see ints.h.
 *
 * B is packed into panels [J][NR] of T. A tile of MR features and NR columns stays in registers
 * while the list of its block row is walked; so each output is one sum in the order of the list,
 * whoever computes it. */

enum {
    FN(NR) = DSD_NV * FN(VL),
    FN(PANELS) = STREAMED ? 8 : 4, /* panels of a group, at most: they share each fetch of S */
    FN(BAND) = STREAMED ? DSD_TALL : 64, /* features of a block row that share each fetch of B */
    FN(STRIP) = STREAMED ? 128 : 32,     /* features that the epilogue takes at once, at most */
    FN(SLICE) = DSD_SLICE / (FN(NR) * (int)sizeof(T)), /* depth over which they do */
    FN(PIECES) = 128,                                  /* pieces listed at a time */
    FN(COPIES) = FN(SLICE) > FN(PIECES) ? FN(SLICE) : FN(PIECES),
    FN(DEEPEST) = 64,                     /* blocks on matrix tiles */
    FN(PER_LINE) = 64 / (int)sizeof(T),   /* Ts of a line of the cache */
    FN(LINES) = 8 * DSD_MR / FN(PER_LINE) /* lines of S that a row group takes for eight steps */
};

/* A piece of a block: all its features by depth, against rows of the packed B from `first` on. */
typedef struct FN(piece) {
    const T *s; /* NULL if S has to be expanded */
    int64_t first;
    int32_t depth;
    int32_t slot, skip; /* where it was cut out: at this depth of the block */
    int64_t entry;      /* in the lists */
    const T *fetch;     /* S that is needed a slice later */
} FN(piece);

typedef struct FN(dsd) {
    const bsk_dsd_params *p;
    const bsk_layout_tables *t;
    const int64_t *start; /* the lists of op(S)'s block rows */
    const int32_t *other, *slot;
    int64_t I, J, n;   /* op(S) is [I, J] */
    int64_t depth_end; /* J in elements */
    int64_t block_i, block_j, grid_i;
    int64_t tall;                  /* features of a row group: see ROW_GROUP */
    int64_t deep;                  /* steps of a matrix tile of S */
    int64_t stride_i, stride_j;    /* of an element within a block */
    int64_t step_i;                /* stride_i in Ts, where S is used as it lies */
    int64_t batch, panels, groups; /* panels and groups of panels of one batch member */
    int64_t group_panels, chunk;   /* panels of a group, groups packed at a time */
    int64_t ranges;                /* of block rows: the second factor of the tasks */
    int64_t strip;                 /* features that the epilogue takes at once, or more */
    bool expand;                   /* S cannot be used as it lies */
    int64_t image_size;            /* Ts in the packed form of one group of S */
    const T *image;                /* S packed, or NULL */
    T alpha, beta;
    const char *s;
    const T *gate, *bias, *row_scale, *col_scale;
    FN(matrix) b, c, residual;
    int64_t b_member, c_member, residual_member; /* strides of the batch */
    T *packed;
} FN(dsd);

/* The first column of a panel. A last panel that would have one vector of columns of three takes
 * another from the one before it. */
static int64_t FN(panel_col)(const FN(dsd) * d, int64_t panel)
{
    const bool alone = DSD_NV > 2 && bski_ceil_div(d->n, FN(VL)) % DSD_NV == 1;
    return panel * FN(NR) - (alone && panel > 0 && panel == d->panels - 1 ? FN(VL) : 0);
}

static int64_t FN(panel_cols)(const FN(dsd) * d, int64_t panel)
{
    return min_i64(d->n, FN(panel_col)(d, panel + 1)) - FN(panel_col)(d, panel);
}

/* Features that a kernel takes at once. */
#ifndef ROW_GROUP
#define ROW_GROUP(d) (STREAMED ? (d)->tall : (int64_t)DSD_MR)
#endif

typedef void (*FN(tile_fn))(T *restrict, const FN(piece) *, int64_t, const T *restrict, int64_t,
                            int64_t, int64_t, int64_t, bool);

#ifdef MATRIX_TILES
#include MATRIX_TILES
#else
/* One step along the depth: acc[MR][NV] += s[.][k] b[k][.]. Of B's vectors only the last is read again
 * for each feature, if registers are few: GCC would read others too, more than there are ports for. */
#define DSD_STEP(NV, step_i, step_j)                                                               \
    {                                                                                              \
        V xv[NV];                                                                                  \
        _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++) xv[v] = FN(vload)(x + v * FN(VL));    \
        _Pragma("GCC unroll 4") for (int v = 0; v < NV - 1; v++) KEEP_VECTOR(xv[v]);               \
        _Pragma("GCC unroll 8") for (int i = 0; i < DSD_MR; i++)                                   \
        {                                                                                          \
            V w = FN(vsplat)(s[i * (step_i)]);                                                     \
            _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++) acc[i][v] =                       \
                FN(madd)(acc[i][v], w, xv[v]);                                                     \
        }                                                                                          \
        s += (step_j);                                                                             \
        x += FN(NR);                                                                               \
    }

/* acc[MR][NV] += s b over the pieces. step_i, step_j: strides of s. S comes from main memory, in
 * an order that no hardware foresees: each eight steps fetch `lines` lines of what a later slice
 * needs, which lie as these steps do, and begin `from` behind the piece's. */
#define DSD_TILE(name, NV, step_i, step_j)                                                         \
    static void FN(name)(T *restrict buffer, const FN(piece) * piece, int64_t count,               \
                         const T *restrict b, int64_t shift, int64_t stride, int64_t from,         \
                         int64_t lines, bool resume)                                               \
    {                                                                                              \
        V acc[DSD_MR][NV];                                                                         \
        (void)stride;                                                                              \
        _Pragma("GCC unroll 8") for (int i = 0; i < DSD_MR; i++)                                   \
            _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++) acc[i][v] =                       \
                resume ? FN(vload)(buffer + i * FN(NR) + v * FN(VL)) : (V){0};                     \
        for (int64_t e = 0; e < count; e++) {                                                      \
            const T *restrict s = piece[e].s + shift;                                              \
            const T *restrict x = b + piece[e].first * FN(NR);                                     \
            const T *fetch = piece[e].fetch + from;                                                \
            for (int64_t k = piece[e].depth; k > 0; k -= 8) {                                      \
                for (int64_t i = 0; i < lines; i++)                                                \
                    __builtin_prefetch(fetch + i * FN(PER_LINE));                                  \
                fetch += FN(LINES) * FN(PER_LINE);                                                 \
                if (k < 8) {                                                                       \
                    for (int64_t u = 0; u < k; u++)                                                \
                        DSD_STEP(NV, step_i, step_j)                                               \
                    break;                                                                         \
                }                                                                                  \
                _Pragma("GCC unroll 8") for (int u = 0; u < 8; u++) DSD_STEP(NV, step_i, step_j)   \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 8") for (int i = 0; i < DSD_MR; i++)                                   \
            _Pragma("GCC unroll 4") for (int v = 0; v < NV; v++)                                   \
                FN(vstore)(buffer + i * FN(NR) + v * FN(VL), acc[i][v]);                           \
    }

/* By rows of the stored block, by its columns, and from a copy; for as many vectors of columns as
 * a panel has. */
#define DSD_TILES(NV)                                                                              \
    DSD_TILE(tile_rows_##NV, NV, stride, 1)                                                        \
    DSD_TILE(tile_cols_##NV, NV, 1, stride)                                                        \
    DSD_TILE(tile_copy_##NV, NV, 1, DSD_MR)
DSD_TILES(1)
DSD_TILES(2)
#if DSD_NV > 2
DSD_TILES(3)
#define DSD_FORMS(name)                                                                            \
    {                                                                                              \
        FN(name##_1), FN(name##_2), FN(name##_3)                                                   \
    }
#else
#define DSD_FORMS(name)                                                                            \
    {                                                                                              \
        FN(name##_1), FN(name##_2)                                                                 \
    }
#endif
#undef DSD_TILES
#undef DSD_STEP
#undef DSD_TILE

static FN(tile_fn) FN(tile_choose)(const FN(dsd) * d, bool copy, int64_t vectors)
{
    static const FN(tile_fn)
        tiles[][DSD_NV] = {DSD_FORMS(tile_rows), DSD_FORMS(tile_cols), DSD_FORMS(tile_copy)};
    return tiles[copy ? 2 : d->stride_j != 1][vectors - 1];
}
#undef DSD_FORMS

#endif

/* A band: up to BAND features of one block row, in row groups of MR. */
typedef struct FN(band) {
    const char *s;       /* of the group that the batch member uses */
    int64_t image;       /* where that group begins in the packed form */
    int64_t block;       /* row, counted over all heads */
    int64_t first, end;  /* its list */
    int64_t list, skip;  /* the walk: an entry of the list, and a depth within it */
    int64_t row, rows;   /* within the block; all inside the matrix */
    int64_t after;       /* block rows of the range behind it */
    const int64_t *next; /* where their lists begin */
} FN(band);

#ifdef MATRIX_TILES
/* Where a row group of a block row begins in the packed form of S: for each block row, in the order
 * of the list, [row group][tile][MR][deep], where tiles may hold several blocks and each row
 * group starts a new one. */
static int64_t FN(image_at)(const FN(dsd) * d, int64_t row, int64_t first, int64_t end,
                            int64_t group)
{
    const int64_t groups = bski_ceil_div(d->block_i, ROW_GROUP(d)), pad = TILE_DEPTH - 1;
    const int64_t depth = bski_ceil_div((end - first) * d->block_j, d->deep) * d->deep;
    return ((first * d->block_j + row * pad) * groups + group * depth) * ROW_GROUP(d);
}

/* Of a depth within a row group, counted over its list. */
static int64_t FN(image_depth)(const FN(dsd) * d, int64_t depth)
{
    return depth / d->deep * d->deep * ROW_GROUP(d);
}

/* Where the band's first row group lies in the packed form. Blocks are of whole tiles, as deep as they
 * are times the features of a row group. */
static const T *FN(image_of)(const FN(dsd) * d, const FN(band) * band)
{
    const int64_t group = band->row / ROW_GROUP(d);
    return d->image + band->image + FN(image_at)(d, band->block, band->first, band->end, group);
}

#if !STREAMED
/* From there to the next row group. */
static int64_t FN(image_step)(const FN(dsd) * d, const FN(band) * band)
{
    return FN(image_at)(d, 0, 0, band->end - band->first, 1);
}
#endif

#if STREAMED
/* Pieces of a row group, which are whole blocks, with the tiles of S, which begin with entry `list`. */
static void FN(slice_locate)(const FN(dsd) * d, const T *const *tile, int64_t list,
                             const FN(piece) * piece, int64_t count, FN(piece) * copy)
{
    const int64_t per_block = bski_ceil_div(d->block_j, d->deep);
    for (int64_t e = 0; e < count; e++) {
        copy[e] = piece[e];
        copy[e].s = tile[(piece[e].entry - list) * per_block];
    }
}
#else
/* Pieces of the band's first row group where they lie in the packed form. */
static void FN(slice_locate)(const FN(dsd) * d, const FN(band) * band, const FN(piece) * piece,
                             int64_t count, FN(piece) * copy)
{
    const T *s = count > 0 ? FN(image_of)(d, band) : NULL;
    for (int64_t e = 0; e < count; e++) {
        const int64_t depth = (piece[e].entry - band->first) * d->block_j + piece[e].skip;
        copy[e] = piece[e];
        copy[e].s = s + depth * ROW_GROUP(d);
    }
}
#endif
#else
/* Where a block begins in the packed form of S: [entry of the lists][row group][depth][MR]. */
static int64_t FN(image_at)(const FN(dsd) * d, int64_t entry)
{
    return entry * d->block_j * bski_ceil_div(d->block_i, DSD_MR) * DSD_MR;
}

static int64_t FN(image_step)(const FN(dsd) * d, const FN(band) * band)
{
    (void)band;
    return d->block_j * DSD_MR;
}
#endif

/* Lists pieces from the walk's position on, at most PIECES, and moves it on. What is fetched while
 * they are used are blocks that come a slice later in the lists, maybe in the next block row; each
 * row group of each panel fetches its share of them. */
static int64_t FN(pieces_list)(const FN(dsd) * d, FN(band) * band, FN(piece) *restrict piece)
{
    if (band->list >= band->end) /* S may have no address */
        return 0;
    const int32_t *slot_of = d->slot, *other = d->other;
    const T *gate = d->gate;
    const int64_t block = d->block_j, deep = d->J, gate_step = d->p->gate.strides[0];
    const int64_t end = band->end;
    int64_t count = 0, list = band->list, skip = band->skip;
#ifndef MATRIX_TILES
    const bool image = d->image != NULL;
    const int64_t size = block * d->block_i * UNIT * (int64_t)type_size(d->p->s.dtype);
    const int64_t step = image ? FN(image_at)(d, 1) * (int64_t)sizeof(T) : size;
    const int64_t skip_step = image ? DSD_MR : d->stride_j, row = band->row * (int64_t)sizeof(T);
    const int64_t last = d->t->nnz - 1, later = max_i64(1, FN(SLICE) / block);
    const char *base = image ? (const char *)(d->image + band->image) : band->s;
    const char *s = base + row * (image ? block : d->step_i), *fetch = base + row * block;
#endif

    while (list < end && count < FN(PIECES)) {
        const int32_t slot = slot_of[list];
        const int64_t first = other[list] * block, depth = min_i64(block, deep - first);
        if (!gate || gate[slot * gate_step] != 0) {
            FN(piece) *next = &piece[count++];
            next->first = first + skip;
            next->depth = (int32_t)min_i64(depth - skip, FN(SLICE));
            next->slot = slot;
            next->skip = (int32_t)skip;
            next->entry = list;
#ifndef MATRIX_TILES
            const int64_t then = min_i64(list + later, last);
            next->s =
                (const T *)(const void *)(s + (image ? list : slot) * step) + skip * skip_step;
            next->fetch = (const T *)(const void *)(fetch + (image ? then : slot_of[then]) * step);
#endif
            skip += next->depth;
            if (skip < depth)
                continue;
        }
        skip = 0;
        list++;
    }
    band->list = list;
    band->skip = skip;
    return count;
}

/* expanded[k][MR] = features row .. row + rows - 1 of a piece, times its gate, then zeros. */
static void FN(piece_expand)(const FN(dsd) * d, const FN(band) * band, const FN(piece) * piece,
                             int64_t row, int64_t rows, T *restrict expanded)
{
    const bsk_dtype type = d->p->s.dtype;
    const int64_t size = d->block_i * d->block_j * UNIT;
    const size_t origin = (size_t)(piece->slot * size) * type_size(type);
    const FN(matrix)
        block = {type, d->stride_j, d->stride_i, (char *)(uintptr_t)(band->s + origin)};

    if (rows < ROW_GROUP(d))
        memset(expanded, 0, (size_t)(piece->depth * ROW_GROUP(d)) * sizeof(T));
    FN(depth_load)
    (expanded, ROW_GROUP(d), &block, piece->skip, row, piece->depth, rows,
     d->depth_end - (piece->first - piece->skip) * UNIT);
    if (d->gate) {
        const T gate = d->gate[piece->slot * d->p->gate.strides[0]];
        for (int64_t i = 0; i < piece->depth * ROW_GROUP(d); i++)
            expanded[i] *= gate;
    }
}

#if !STREAMED
/* Pieces of one row group of a band, as copies. */
static void FN(slice_expand)(const FN(dsd) * d, const FN(band) * band, const FN(piece) * piece,
                             int64_t count, int64_t row, FN(piece) * copy, T *restrict expanded)
{
    const int64_t rows = min_i64(DSD_MR, band->rows - row);
#if UNIT > 1
    const bool plain = d->stride_i == 1 && rows == DSD_MR;
    const int64_t size = d->block_i * d->block_j * UNIT;
#endif
    for (int64_t e = 0; e < count; e++) {
        copy[e] = piece[e];
        copy[e].s = expanded;
#if UNIT > 1
        if (plain && (piece[e].first + piece[e].depth) * UNIT <= d->depth_end)
            FN(group_load)
        (expanded,
         (const S_STORED *)(const void *)band->s + piece[e].slot * size + band->row + row +
             UNIT * piece[e].skip * d->stride_j,
         d->stride_j, piece[e].depth);
        else
#endif
            FN(piece_expand)(d, band, &piece[e], band->row + row, rows, expanded);
        expanded += piece[e].depth * DSD_MR;
    }
}
#endif

/* Packs a block's part of a row group, at a depth of the group's list. last: nothing follows. */
#ifdef MATRIX_TILES
static void FN(image_put)(const FN(dsd) * d, const FN(band) * band, const FN(piece) * piece,
                          int64_t row, int64_t rows, T *restrict group, int64_t depth, bool last)
{
    T part[(FN(DEEPEST) + TILE_DEPTH) * DSD_TALL];
    const int64_t group_rows = ROW_GROUP(d);
    const int64_t end =
        last ? bski_ceil_div(depth + d->block_j, d->deep) * d->deep : depth + d->block_j;
    const bool whole = d->p->s.dtype == STORED && rows == group_rows &&
                       end - depth == piece->depth &&
                       (piece->first + piece->depth) * UNIT <= d->depth_end;
    /* Where the depth is contiguous, rows of S are pieces of rows of tiles. */
    const bool rows_lie = whole && d->stride_j == 1;
    const char *s = band->s + (piece->slot * d->block_i + row) * d->block_j * (int64_t)sizeof(T);
    int64_t n = 0;

#ifdef TURNS
    /* Where the features are, numbers are transposed as they are stored. */
    const int64_t most = FN(turn_rows)(group_rows, d->deep * UNIT, d->block_i);
    if (whole && d->stride_i == 1 && most > 0) {
        const S_STORED *from = (const S_STORED *)(const void *)band->s +
                               piece->slot * d->block_i * d->block_j * UNIT + row;
        for (int64_t k = 0; k < end - depth; k += d->deep, from += d->deep * UNIT * d->block_i)
            for (int64_t i = 0; i < rows; i += most)
                FN(turn)
        (group + FN(image_depth)(d, depth + k) + i * d->deep, from + i, d->block_i, d->deep * UNIT);
        return;
    }
#endif
    if (!rows_lie) {
        FN(piece_expand)(d, band, piece, row, rows, part);
        memset(part + piece->depth * group_rows, 0,
               (size_t)((end - depth - piece->depth) * group_rows) * sizeof(T));
    }
    for (int64_t k = 0; k < end - depth; k += n) {
        T *to = group + FN(image_depth)(d, depth + k) + (depth + k) % d->deep;
        n = min_i64(end - depth - k, d->deep - (depth + k) % d->deep);
        if (!rows_lie)
            FN(transpose)(to, d->deep, part + k * group_rows, group_rows, group_rows, n);
        for (int64_t i = 0; rows_lie && i < group_rows; i++)
            row_copy(to + i * d->deep, s + (i * d->block_j + k) * (int64_t)sizeof(T),
                     (size_t)n * sizeof(T));
    }
}
#else
static void FN(image_put)(const FN(dsd) * d, const FN(band) * band, const FN(piece) * piece,
                          int64_t row, int64_t rows, T *restrict group, int64_t depth, bool last)
{
    (void)last;
    (void)depth;
    FN(piece_expand)(d, band, piece, row, rows, group);
}
#endif

/* The epilogue and the store of features row .. row + rows - 1 of one panel. shift: by which sums are
 * too large, with INT_SHIFT. */
static void FN(strip_finish)(const FN(dsd) * d, int64_t member, T *restrict x, const int32_t *shift,
                             int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    const bsk_dsd_params *p = d->p;
    const int64_t row_step = p->row_scale.strides[0], col_step = p->col_scale.strides[0];
    T other[FN(STRIP) + FN(BAND)][FN(NR)];
    FN(matrix) c = d->c, residual = d->residual;

    c.data += (size_t)(member * d->c_member) * type_size(c.type);
#ifdef INTEGER
    for (int64_t r = 0; r < rows; r++)
        FN(numbers)(x + r * FN(NR), FN(NR), shift ? shift[r] : 0);
#else
    (void)shift;
#endif
    if (d->alpha != 1 || d->row_scale)
        for (int64_t r = 0; r < rows; r++) {
            const T scale = d->row_scale ? d->row_scale[(row + r) * row_step] : 1;
            for (int64_t j = 0; j < FN(NR); j++)
                x[r * FN(NR) + j] = d->alpha * x[r * FN(NR) + j] * scale;
        }
    if (d->col_scale)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < cols; j++)
                x[r * FN(NR) + j] *= d->col_scale[(col + j) * col_step];
    if (d->bias)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < FN(NR); j++)
                x[r * FN(NR) + j] += d->bias[(row + r) * p->bias.strides[0]];
    if (d->beta != 0) {
        FN(tile_load)(other[0], FN(NR), &c, row, col, rows, cols);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < cols; j++)
                x[r * FN(NR) + j] += d->beta * other[r][j];
    }
    if (p->act != BSK_ACT_NONE)
        for (int64_t r = 0; r < rows; r++)
            FN(act_row)(p->act, x + r * FN(NR), cols);
    if (residual.type != BSK_NONE) {
        residual.data += (size_t)(member * d->residual_member) * type_size(residual.type);
        FN(tile_load)(other[0], FN(NR), &residual, row, col, rows, cols);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < cols; j++)
                x[r * FN(NR) + j] += other[r][j];
    }
    FN(tile_store)(x, FN(NR), &c, row, col, rows, cols);
}

/* What rows_compute works in: one per thread, on its stack. */
typedef struct FN(scratch) {
    T strip[FN(PANELS)][(FN(STRIP) + FN(BAND) + DSD_TALL) * FN(NR)];
    FN(piece) piece[FN(PIECES)];
    FN(piece) copy[FN(COPIES)];
#if STREAMED
    int64_t at[FN(COPIES) + 1];                   /* see steps_list */
    const T *tile[FN(COPIES)];                    /* where the tiles of S for each step lie */
    const T *from[FN(COPIES)], *then[FN(COPIES)]; /* where in S those of slices behind it begin */
    T own[2][DSD_SLICE / (int)sizeof(T) + FN(DEEPEST) * DSD_TALL] __attribute__((aligned(64)));
    int turn;                    /* which of own holds the slice in use */
    int64_t made_list, made_row; /* the walk's position that the other one holds */
#else
    T expanded[FN(SLICE) * DSD_MR];
    FN(tile_fn) tile[FN(PANELS)][2]; /* for each panel: on copies, and on S as it lies */
    int64_t lines;                   /* that each panel fetches of S in eight steps, at most */
#endif
#if INT_SHIFT
    int32_t shift[FN(STRIP) + FN(BAND) + DSD_TALL];
#endif
} FN(scratch);

#if STREAMED
#include "slices.h"
#else
/* A row group of a band, from `row` on, times pieces for panel q of a group: results go to, or are
 * added to, strip + filled rows. They lie as in memory if not `copied`. */
static void FN(tile_compute)(const FN(dsd) * d, const FN(band) * band, FN(scratch) * scratch,
                             const FN(piece) * piece, int64_t count, int64_t filled, int64_t row,
                             const T *packed, int64_t q, bool copied, bool resume)
{
    const int64_t block_stride = d->stride_j == 1 ? d->step_i : d->stride_j;
    const int64_t stride = TILE_DEPTH > 1 ? d->block_j : block_stride; /* tiles ask for the depth */
    const int64_t image = d->image ? row / DSD_MR * FN(image_step)(d, band) : 0;
    const int64_t first = q * scratch->lines;
    scratch->tile[q][!copied](scratch->strip[q] + (filled + row) * FN(NR), piece, count,
                              packed + q * d->J * FN(NR), copied ? image : row * d->step_i, stride,
                              row * d->block_j + first * FN(PER_LINE),
                              max_i64(0, min_i64(scratch->lines, FN(LINES) - first)), resume);
}

/* A band times pieces of its list, for each panel of a group. A panel's part of B stays in the
 * first-level cache from row group to row group, unless S has to be copied for each of these. */
static void FN(slice_compute)(const FN(dsd) * d, const FN(band) * band, FN(scratch) * scratch,
                              const FN(piece) * piece, int64_t count, int64_t filled,
                              const T *packed, int64_t panel0, int64_t panels, bool resume)
{
    const bool apart = d->expand && !d->image;
    const FN(piece) *located = piece;
    (void)panel0;
#ifdef MATRIX_TILES
    FN(slice_locate)(d, band, piece, count, scratch->copy);
    located = scratch->copy;
#endif
    for (int64_t row = 0; row < band->rows; row += DSD_MR) {
        const bool copied = apart || (!d->image && band->rows - row < DSD_MR);
        if (copied)
            FN(slice_expand)(d, band, piece, count, row, scratch->copy, scratch->expanded);
#if INT_SHIFT
        const FN(piece) *of = copied ? scratch->copy : piece;
        const int64_t at = d->image ? row / DSD_MR * FN(image_step)(d, band) : 0;
        int32_t *shift = scratch->shift + filled + row;
        if (!resume)
            memset(shift, 0, DSD_MR * sizeof *shift);
        for (int64_t e = 0; e < count; e++)
            shift_sum_i8(shift, of[e].s + at, of[e].depth, DSD_MR);
#endif
        for (int64_t q = 0; q < panels && copied; q++)
            FN(tile_compute)
        (d, band, scratch, scratch->copy, count, filled, row, packed, q, true, resume);
    }
    for (int64_t q = 0; q < panels && !apart; q++)
        for (int64_t row = 0; row < band->rows; row += DSD_MR)
            if (d->image || band->rows - row >= DSD_MR)
                FN(tile_compute)
    (d, band, scratch, located, count, filled, row, packed, q, d->image, resume);
}
#endif

#if STREAMED
static void FN(band_compute)(const FN(dsd) * d, FN(band) * band, FN(scratch) * scratch,
                             int64_t filled, const T *packed, int64_t panel0, int64_t panels)
{
    bool resume = false;

    do {
        const int64_t count = FN(slice_count)(d, band);
        FN(slice_compute)(d, band, scratch, count, filled, packed, panel0, panels, resume);
        band->list += count;
        resume = true;
    } while (band->list < band->end);
}
#else
static void FN(band_compute)(const FN(dsd) * d, FN(band) * band, FN(scratch) * scratch,
                             int64_t filled, const T *packed, int64_t panel0, int64_t panels)
{
    bool resume = false;

    while (!resume || band->list < band->end) {
        const int64_t count = FN(pieces_list)(d, band, scratch->piece);
        for (int64_t e = 0; e < count || !resume;) {
            int64_t depth = 0, n = 0;
            while (e + n < count && depth + scratch->piece[e + n].depth <= FN(SLICE))
                depth += scratch->piece[e + n++].depth;
            FN(slice_compute)
            (d, band, scratch, scratch->piece + e, n, filled, packed, panel0, panels, resume);
            resume = true;
            e += n;
        }
    }
}
#endif

/* Groups of S: members of the batch may share one. */
static int64_t FN(s_groups)(const FN(dsd) * d)
{
    return d->p->s.rank == 4 ? d->p->s.dims[0] : 1;
}

/* Block rows first .. last - 1 of one group of panels. */
static void FN(rows_compute)(const FN(dsd) * d, int64_t member, int64_t group, const T *packed,
                             int64_t first, int64_t last)
{
    const int64_t head = member % d->t->heads, panel0 = group * d->group_panels;
    const int64_t panels = min_i64(d->group_panels, d->panels - panel0);
    const int64_t *start = d->start + head * (d->grid_i + 1);
    const char *s = d->s;
    int64_t image = 0;
    FN(scratch) scratch __attribute__((aligned(64)));
#if STREAMED
    scratch.turn = 0;
    scratch.made_list = -1;
#endif
    int64_t filled = 0, top = first * d->block_i;
#if INT_SHIFT
    const int32_t *shift = scratch.shift;
#else
    const int32_t *shift = NULL;
#endif
#ifdef MATRIX_TILES
    FN(tiles_open)(d->block_i, d->deep);
#endif
#if !STREAMED
    scratch.lines = bski_ceil_div(FN(LINES), panels);
    for (int64_t q = 0; q < panels; q++)
        for (int64_t as = 0; as < 2; as++)
            scratch.tile[q][as] =
                FN(tile_choose)(d, as == 0, bski_ceil_div(FN(panel_cols)(d, panel0 + q), FN(VL)));
#endif

    if (FN(s_groups)(d) > 1) {
        const int64_t group_first = member / d->t->heads * d->p->s.strides[0];
        s = s ? s + (size_t)group_first * type_size(d->p->s.dtype) : NULL;
        image = member / d->t->heads * d->image_size;
    }
    for (int64_t block = first; block < last; block++) {
        const int64_t height = min_i64(d->block_i, d->I - block * d->block_i);
        for (int64_t row = 0; row < height; row += FN(BAND)) {
            FN(band)
            band = {s,
                    image,
                    head * d->grid_i + block,
                    start[block],
                    start[block + 1],
                    start[block],
                    0,
                    row,
                    min_i64(FN(BAND), height - row),
                    last - block - 1,
                    start + block + 1};
            FN(band_compute)(d, &band, &scratch, filled, packed, panel0, panels);
            filled += band.rows;
            if (filled < d->strip && (block + 1 < last || row + FN(BAND) < height))
                continue;
            for (int64_t q = 0; q < panels; q++) {
                const int64_t col = FN(panel_col)(d, panel0 + q);
                const int64_t cols = FN(panel_cols)(d, panel0 + q);
                FN(strip_finish)(d, member, scratch.strip[q], shift, top, filled, col, cols);
            }
            top += filled;
            filled = 0;
        }
    }
#ifdef MATRIX_TILES
    FN(tiles_close)();
#endif
#ifdef TRANSPOSE_LARGE
    if (d->c.past)
        _mm_sfence();
#endif
}

/* Rows of B that are packed at once, for all panels of a group where columns are contiguous. */
enum { FN(PACK_DEEP) = 256, FN(PACK_WIDE) = 32 };

static bool FN(panels_beside)(const FN(dsd) * d)
{
    return d->b.col_stride == 1;
}

static int64_t FN(pack_rows)(const FN(dsd) * d)
{
    return FN(panels_beside)(d) ? FN(PACK_WIDE) : FN(PACK_DEEP);
}

/* Packs rows of B for one panel; columns beyond n are zero. */
static void FN(panel_pack)(const FN(dsd) * d, int64_t member, int64_t panel, int64_t row, T *dst)
{
    const int64_t col = FN(panel_col)(d, panel), cols = FN(panel_cols)(d, panel);
    const int64_t rows = min_i64(FN(pack_rows)(d), d->J - row);
    FN(matrix) b = d->b;

    b.data += (size_t)(member * d->b_member) * type_size(b.type);
    dst += row * FN(NR);
    if (cols < FN(NR))
        memset(dst, 0, (size_t)(rows * FN(NR)) * sizeof(T));
    FN(depth_load)(dst, FN(NR), &b, row, col, rows, cols, d->depth_end);
#if INT_SHIFT
    shift_i8(dst, rows * FN(NR));
#endif
}

/* The same for all panels of a group. dst: of the first one. */
static void FN(panels_pack)(const FN(dsd) * d, int64_t member, int64_t group, int64_t row, T *dst)
{
    const int64_t first = group * d->group_panels, size = d->J * FN(NR);
    const int64_t panels = min_i64(d->group_panels, d->panels - first);
    int64_t q = 0;
#ifdef PANELS_SPREAD
    const int64_t rows = min_i64(FN(pack_rows)(d), d->J - row);
    const S_STORED *b = (const S_STORED *)(const void *)d->b.data + member * d->b_member;
    if (d->b.type == STORED && (row + rows) * UNIT <= d->depth_end) {
        while (q < panels && FN(panel_cols)(d, first + q) == FN(NR))
            q++;
        PANELS_SPREAD((void *)(dst + row * FN(NR)), FN(NR), size,
                      b + row * UNIT * d->b.row_stride + first * FN(NR), d->b.row_stride, rows, q);
    }
#endif
    for (; q < panels; q++)
        FN(panel_pack)(d, member, first + q, row, dst + q * size);
}

/* Packs S for all row groups of all block rows. */
static void FN(image_make)(const FN(dsd) * d, int threads, T *image)
{
    const int64_t groups = bski_ceil_div(d->block_i, ROW_GROUP(d)), heads = d->t->heads;

#pragma omp parallel for schedule(dynamic, 8) num_threads(threads)
    for (int64_t i = 0; i < FN(s_groups)(d) * heads * d->grid_i; i++) {
        const int64_t block = i % d->grid_i, head = i / d->grid_i % heads;
        const int64_t group = i / d->grid_i / heads;
        const int64_t *start = d->start + head * (d->grid_i + 1) + block;
        const int64_t height = min_i64(d->block_i, d->I - block * d->block_i);
        FN(band) band = {.s = d->s};
        if (group)
            band.s += (size_t)(group * d->p->s.strides[0]) * type_size(d->p->s.dtype);
        for (int64_t g = 0; g < groups; g++) {
#ifdef MATRIX_TILES
            T *dst = image + group * d->image_size +
                     FN(image_at)(d, head * d->grid_i + block, start[0], start[1], g);
#endif
            const int64_t rows = max_i64(0, min_i64(ROW_GROUP(d), height - g * ROW_GROUP(d)));
            for (int64_t e = start[0]; e < start[1]; e++) {
                const int64_t first = d->other[e] * d->block_j;
                const FN(piece) piece = {.first = first,
                                         .depth = (int32_t)min_i64(d->block_j, d->J - first),
                                         .slot = d->slot[e]};
#ifndef MATRIX_TILES
                T *dst =
                    image + group * d->image_size + FN(image_at)(d, e) + g * DSD_MR * d->block_j;
#endif
                FN(image_put)
                (d, &band, &piece, g * ROW_GROUP(d), rows, dst, (e - start[0]) * d->block_j,
                 e + 1 == start[1]);
            }
        }
    }
}

#ifdef INTEGER
/* Whether i32 holds the sums over each block row's list. */
static bool FN(sums_fit)(const FN(dsd) * d)
{
    const int64_t most = INT_DEEPEST / (d->block_j * UNIT);
    if (d->depth_end <= INT_DEEPEST)
        return true;
    for (int64_t h = 0; h < d->t->heads; h++) {
        const int64_t *start = d->start + h * (d->grid_i + 1);
        for (int64_t i = 0; i < d->grid_i; i++)
            if (start[i + 1] - start[i] > most)
                return false;
    }
    return true;
}
#endif

/* Sizes that depend on shapes only. False if they overflow, or sums may. */
static bool FN(dsd_shape)(const bsk_problem *problem, FN(dsd) * d, size_t *bytes)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bool swap = p->transpose_s != 0;
    const int32_t axis = p->b.rank - 2;
    size_t panel, group;

    memset(d, 0, sizeof *d);
    d->p = p;
    d->t = t;
    d->start = swap ? t->col_start : t->row_start;
    d->other = swap ? t->col_row : t->row_col;
    d->slot = swap ? t->col_slot : t->row_slot;
    d->I = swap ? t->cols : t->rows;
    d->depth_end = swap ? t->rows : t->cols;
    d->J = bski_ceil_div(d->depth_end, UNIT);
    d->n = p->b.dims[axis + 1];
    d->block_i = swap ? t->block_cols : t->block_rows;
    d->block_j = (swap ? t->block_rows : t->block_cols) / UNIT;
    d->tall = min_i64(d->block_i, DSD_TALL);
    d->deep = min_i64(d->block_j, TILE_DEPTH);
    d->grid_i = swap ? t->grid_cols : t->grid_rows;
    d->stride_i = swap ? 1 : t->block_cols;
    d->stride_j = swap ? t->block_cols : 1;
    d->batch = axis ? p->b.dims[0] : 1;
    d->panels = bski_ceil_div(d->n, FN(NR));
    if (!bski_mul_size((size_t)d->J, FN(NR) * sizeof(T), &panel))
        return false;
    /* Where S is slow to fetch, or bands reuse B from the first-level cache, more panels share a
     * fetch of S than the second level holds. */
    const bool far = !STREAMED;
    const size_t near = far ? 2 * (size_t)NEAR : NEAR;
    d->group_panels = max_i64(1, min_i64(FN(PANELS), (int64_t)(near / panel)));
    d->groups = bski_ceil_div(d->panels, d->group_panels);
    if (d->groups) /* of about the same size */
        d->group_panels = bski_ceil_div(d->panels, d->groups);
    d->chunk = d->batch * d->groups;
    if (!bski_mul_size(panel, (size_t)d->group_panels, &group))
        return false;
    d->chunk = max_i64(1, min_i64(d->chunk, (int64_t)(DSD_PACKED / group)));
    d->step_i = d->stride_i / UNIT;
#ifdef INTEGER
    const bool copies = true; /* which sums of rows, or words of 16 bits, are made of */
#else
    const bool copies = false;
#endif
    d->expand = copies || p->s.dtype != STORED || p->gate.dtype != BSK_NONE ||
                (UNIT > 1 && (d->stride_j != 1 || d->depth_end % UNIT != 0 ||
                              (FN(s_groups)(d) > 1 && p->s.strides[0] % UNIT != 0)));
#ifdef INTEGER
    if (!FN(sums_fit)(d))
        return false;
#endif
    return bski_mul_i64(t->nnz, d->block_j, &d->image_size) &&
           bski_add_i64(d->image_size, t->heads * d->grid_i * (TILE_DEPTH - 1), &d->image_size) &&
           bski_mul_i64(d->image_size, bski_ceil_div(d->block_i, ROW_GROUP(d)) * ROW_GROUP(d),
                        &d->image_size) &&
           bski_mul_size(group, (size_t)d->chunk, bytes);
}

#ifdef GEMV
#include "gemv.h"
#endif
#ifdef FEW
#include "few.h"
#endif

/* Whether columns are so few that the entry without tiles is faster, by gemv.h: that one need not pack
 * S. */
static bool FN(dsd_gemv)(const FN(dsd) * d)
{
    return STREAMED && UNIT == 2 && d->n <= 4 && d->stride_i == 1 && d->p->s.dtype == STORED &&
           d->block_i % (FN(VL) / 2) == 0 && d->depth_end % UNIT == 0;
}

/* Makes the workspace hold what gemv.h keeps in it: B of each batch member, then the sums. A run with a
 * gate uses the panels instead. */
static bool FN(gemv_room)(const FN(dsd) * d, size_t *bytes)
{
#ifdef GEMV
    FN(gemv) gemv;
    size_t few, sums;
    if (!FN(gemv_choose)(d, &gemv))
        return true;
    if (!bski_mul_size((size_t)d->J, (size_t)gemv.ldx * sizeof(T), &few) ||
        !bski_mul_size((size_t)FN(gemv_sums)(d, &gemv) * sizeof(T), (size_t)d->grid_i, &sums) ||
        !bski_add_size(few, sums, &few) || !bski_mul_size(few, (size_t)d->chunk, &few))
        return false;
    *bytes = few > *bytes ? few : *bytes;
#else
    (void)d;
    (void)bytes;
#endif
    return true;
}

/* Bytes of S packed; 0 where it has no such form: gates are not known when it is made, and few columns
 * are often multiplied as fast with S as it is. */
static size_t FN(image_bytes)(const FN(dsd) * d)
{
    size_t bytes = 0;
#ifdef GEMV
    FN(gemv) gemv;
    bool none = FN(gemv_lies)(d) && FN(gemv_choose)(d, &gemv);
#ifdef FEW
    FN(few) few;
    none = none && !FN(few_choose)(d, &few);
#endif
    if (none)
        return 0;
#endif
    const bool fits = bski_mul_size((size_t)d->image_size, sizeof(T), &bytes) &&
                      bski_mul_size(bytes, (size_t)FN(s_groups)(d), &bytes);
    return fits && d->p->gate.dtype == BSK_NONE ? bytes : 0;
}

/* Whether a run without the packed form of S makes one in its workspace: on matrix tiles, but where S
 * is used as it lies, or is packed while it is used, for which it is passed over a few times at most. */
static bool FN(image_own)(const FN(dsd) * d)
{
    bool without = TILE_DEPTH == 1;
#if STREAMED
    without = d->p->s.dtype == STORED && d->stride_j == 1;
#endif
#ifdef TURNS
    enum { PASSES = 2 };
    without = without || (d->p->s.dtype == STORED &&
                          d->batch * d->groups <= PASSES * d->t->heads * FN(s_groups)(d) &&
                          FN(turn_rows)(d->tall, d->deep * UNIT, d->block_i) > 0);
#endif
    (void)d;
    return !without;
}

static void FN(dsd_pack)(const bsk_prepared *prepared, int threads, bsk_mem s, bsk_mem image)
{
    FN(dsd) d;
    size_t bytes = 0;
    FN(dsd_shape)(prepared->problem, &d, &bytes);
    d.s = bsk_mem_address(s);
#ifdef FEW
    FN(few) few;
    if (FN(few_choose)(&d, &few)) {
        FN(few_make)(&d, &few, threads, bsk_mem_address(image));
        return;
    }
#endif
    FN(image_make)(&d, threads, bsk_mem_address(image));
}

/* The first block row of a task. Results that go past the caches begin with a line of these there. */
static int64_t FN(range_first)(const FN(dsd) * d, const int64_t *start, int64_t range)
{
    const bool lines = d->c.past && d->c.row_stride == 1;
    const int64_t line = lines ? 64 / (int64_t)type_size(d->c.type) : 1; /* features */
    const int64_t together = max_i64(1, line / d->block_i);              /* block rows */
    const int64_t first = range_start(start, d->grid_i, range, d->ranges);
    return range < d->ranges ? first / together * together : first;
}

static void FN(dsd_run)(const bsk_prepared *prepared, int threads, const bsk_dsd_args *a)
{
    FN(dsd) d;
    size_t bytes = 0;
    FN(dsd_shape)(prepared->problem, &d, &bytes);
    d.alpha = (T)a->alpha * FN(operand_scale)(a->s_scale, a->b_scale);
    d.beta = (T)a->beta;
    d.s = bsk_mem_address(a->s);
    d.expand = d.expand || (uintptr_t)d.s % sizeof(T) != 0; /* pairs may begin anywhere */
    d.gate = bsk_mem_address(a->gate);
    d.bias = bsk_mem_address(a->bias);
    d.row_scale = bsk_mem_address(a->row_scale);
    d.col_scale = bsk_mem_address(a->col_scale);
    d.b = FN(matrix_of)(&d.p->b, a->b, &d.b_member);
    d.c = FN(matrix_of)(&d.p->c, a->c, &d.c_member);
    d.residual = FN(matrix_of)(&d.p->residual, a->residual, &d.residual_member);
    d.packed = bsk_mem_address(a->workspace);
    d.image = bsk_mem_address(a->packed);
#ifdef MATRIX_TILES
    if (!d.image && FN(image_own)(&d)) {
        T *image = (T *)(void *)((char *)d.packed + bytes);
        FN(image_make)(&d, threads, image);
        d.image = image;
    }
#endif
    /* Tasks of about DSD_TASK bytes of weights, and some for each thread. */
    const int64_t groups = d.batch * d.groups;
    const double weights = (double)(d.t->nnz / d.t->heads) * (double)(d.block_i * d.block_j);
    d.ranges = (int64_t)(weights * (double)sizeof(T) / DSD_TASK) + 1;
    d.ranges = max_i64(d.ranges, bski_ceil_div(4 * threads, max_i64(groups, 1)));
    d.ranges = min_i64(d.ranges, d.grid_i);
#ifdef FEW
    FN(few) few;
    if (d.image && FN(few_choose)(&d, &few)) {
        FN(few_run)(&d, &few, threads);
        return;
    }
#endif
#ifdef GEMV
    FN(gemv) gemv;
    if (FN(gemv_choose)(&d, &gemv)) {
        FN(gemv_run)(&d, &gemv, threads);
        return;
    }
#endif
    /* Outputs that lie along the features are stored in long runs; of others few features at a time
     * find their sums in the first-level cache. */
    d.strip = d.c.row_stride == 1 ? FN(STRIP) : min_i64(FN(STRIP), 32);
    d.c.past = d.beta == 0 && (double)d.I * (double)d.n * (double)type_size(d.c.type) >= DSD_PAST;
    const int64_t parts = bski_ceil_div(d.J, FN(pack_rows)(&d));
    const bool beside = FN(panels_beside)(&d);
    const int64_t units = beside ? parts : parts * d.group_panels;
    const int64_t panel_size = d.J * FN(NR), group_size = panel_size * d.group_panels;
    /* What a thread packs at a time stays in its second-level cache. */
    const int64_t each = max_i64(1, NEAR / max_i64(1, group_size * (int64_t)sizeof(T)));
    d.chunk = min_i64(d.chunk, each * threads);
    for (int64_t g0 = 0; g0 < groups; g0 += d.chunk) {
        const int64_t count = min_i64(d.chunk, groups - g0);
        deal tasks;
        deal_open(&tasks, count, d.ranges, threads);
#pragma omp parallel num_threads(threads)
        {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < count * units; i++) {
                const int64_t slot = i / units, g = g0 + slot, q = i % units / parts;
                const int64_t row = i % parts * FN(pack_rows)(&d);
                const int64_t group = g % d.groups, panel = group * d.group_panels + q;
                T *to = d.packed + slot * group_size;
                if (beside)
                    FN(panels_pack)(&d, g / d.groups, group, row, to);
                else if (panel < d.panels)
                    FN(panel_pack)(&d, g / d.groups, panel, row, to + q * panel_size);
            }
#pragma omp for schedule(static, 1)
            for (int thread = 0; thread < threads; thread++)
                for (int64_t i, hands = 0; (i = deal_take(&tasks, thread, threads, &hands)) >= 0;) {
                    const int64_t slot = i / d.ranges, range = i % d.ranges;
                    const int64_t g = g0 + slot, member = g / d.groups;
                    const int64_t *start = d.start + member % d.t->heads * (d.grid_i + 1);
                    FN(rows_compute)
                    (&d, member, g % d.groups, d.packed + slot * group_size,
                     FN(range_first)(&d, start, range), FN(range_first)(&d, start, range + 1));
                }
        }
    }
}
