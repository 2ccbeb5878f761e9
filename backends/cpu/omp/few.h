/* C = op(S) B for few columns, with S packed in the order in which it is used.
 * Included by dsd.h once for each kind of arithmetic that has it.
 * S is cut into row groups of DSD_MR features. Some of these pass over a slice of the depth in turn,
 * for which B stays near beside their sums: then S alone comes from further away, and the processor
 * foresees it. The sums of one group are a chain for each column, which may take longer than reading;
 * so two groups go side by side where columns are fewest. The packed form is
 * [groups in turn][slice][pair of groups][entry of its lists][depth][DSD_MR], entries of two groups
 * one by one, as long as both have some. Each output is one sum in the order of the depth, as without
 * packing. */

enum {
    FN(FEW_MOST) = 32,        /* columns */
    FN(FEW_PAIRED) = 8,       /* columns up to which groups go side by side */
    FN(FEW_GROUPS) = 32,      /* row groups in turn, at most */
    FN(FEW_SUMS) = 8 << 10,   /* bytes of their sums, at most */
    FN(FEW_SLICE) = 32 << 10, /* bytes of B in a slice */
    FN(FEW_FETCH) = 16 << 10  /* bytes from what is used to what is fetched */
};

/* How one run is tiled. */
typedef struct FN(few) {
    int64_t ldx;    /* columns, rounded up to a power of 2 */
    int64_t side;   /* row groups side by side */
    int64_t turn;   /* row groups in turn */
    int64_t groups; /* row groups of a block row */
    int64_t all;    /* of one batch member */
    int64_t slice;  /* blocks of the depth */
} FN(few);

/* Whether S is packed so for d, and how. Where it is not, S is read as fast by gemv.h where it lies,
 * or by tiles. */
static bool FN(few_choose)(const FN(dsd) * d, FN(few) * f)
{
    const int64_t block = d->block_i;
    FN(gemv) gemv;
    int64_t cols = 1;
    if (d->n < 1 || d->n > FN(FEW_MOST) || block % DSD_MR != 0 || d->p->gate.dtype != BSK_NONE ||
        (d->n > 16 && block > 32))
        return false;
    const bool lies =
        d->n > 8 ? block > 32 * UNIT : block > 8 || (UNIT == 1 && (d->n == 1 || d->n > 4));
    if (lies && FN(gemv_lies)(d) && FN(gemv_choose)(d, &gemv))
        return false;
    while (cols < d->n)
        cols *= 2;
    const int64_t bytes = cols * (int64_t)sizeof(T);
    *f = (FN(few)){.ldx = cols,
                   .side = cols <= FN(FEW_PAIRED) ? 2 : 1,
                   .turn = min_i64(FN(FEW_GROUPS), FN(FEW_SUMS) / (DSD_MR * bytes)),
                   .groups = d->block_i / DSD_MR,
                   .all = d->block_i / DSD_MR * d->grid_i,
                   .slice = max_i64(1, FN(FEW_SLICE) / (bytes * d->block_j))};
    if (cols == FN(FEW_MOST)) /* sums would come and go too often */
        f->slice = INT32_MAX;
    return true;
}

/* Row groups in turn: what is left of the list of each. */
typedef struct FN(few_turn) {
    int64_t first[FN(FEW_GROUPS)], end[FN(FEW_GROUPS)];
} FN(few_turn);

/* Groups from number `group` on; start: the lists of the head. Returns the entries of all before. */
static int64_t FN(few_begin)(const FN(few) * f, const int64_t *start, int64_t group,
                             FN(few_turn) * turn)
{
    const int64_t *list = start + group / f->groups;
    for (int64_t k = 0; k < f->turn; k++) {
        const int64_t row = (group + k) / f->groups;
        turn->first[k] = group + k < f->all ? start[row] : 0;
        turn->end[k] = group + k < f->all ? start[row + 1] : 0;
    }
    return list[0] * f->groups + group % f->groups * (list[1] - list[0]);
}

/* What one group, or two side by side, do in one slice. */
typedef struct FN(few_part) {
    const T *s;
    const int32_t *other[2];
    int64_t count[2];
    int64_t ahead; /* Ts from what is used to what is fetched */
} FN(few_part);

/* The entries of groups k .. for blocks of the depth before `limit`. */
static void FN(few_next)(const FN(dsd) * d, const FN(few) * f, FN(few_turn) * turn, int64_t k,
                         int64_t limit, FN(few_part) * part)
{
    for (int64_t h = 0; h < f->side; h++) {
        int64_t e = turn->first[k + h];
        part->other[h] = d->other + e;
        while (e < turn->end[k + h] && d->other[e] < limit)
            e++;
        part->count[h] = e - turn->first[k + h];
        turn->first[k + h] = e;
    }
}

/* sum += S x; x: [J][columns]. */
typedef void (*FN(few_tile))(const FN(dsd) *, const FN(few_part) *, const T *, T *);

/* sum + x y, for y over and over: GCC broadcasts pairs of bf16 only by an instruction that takes a unit
 * of the arithmetic. */
#if UNIT == 1
#define FEW_MADD(sum, x, y, lanes) (sum) += (x) * (y)
#else
#define FEW_MADD(sum, x, y, lanes)                                                                 \
    __asm__("vdpbf16ps %2%{1to" lanes "%},%1,%0" : "+v"(sum) : "v"(x), "m"(y))
#endif
#define FEW_EACH(I, COUNT) _Pragma("GCC unroll 32") for (int I = 0; I < (COUNT); I++)
/* A step of vectors along the features, of which one has a row group: C columns. */
#define FEW_ALONG(C)                                                                               \
    {                                                                                              \
        FN(half) w;                                                                                \
        memcpy(&w, s, sizeof w);                                                                   \
        FEW_EACH(c, C) FEW_MADD(acc[c], w, x[c], "8");                                             \
        s += DSD_MR;                                                                               \
        x += (C);                                                                                  \
    }
/* A step of vectors along the columns. */
#define FEW_ACROSS(C)                                                                              \
    {                                                                                              \
        V xv[(C) / FN(VL)];                                                                        \
        FEW_EACH(v, (C) / FN(VL)) xv[v] = FN(vload)(x + v * FN(VL));                               \
        FEW_EACH(i, DSD_MR)                                                                        \
        {                                                                                          \
            FEW_EACH(v, (C) / FN(VL))                                                              \
            FEW_MADD(acc[i * ((C) / FN(VL)) + v], xv[v], s[i], "16");                              \
        }                                                                                          \
        s += DSD_MR;                                                                               \
        x += (C);                                                                                  \
    }
/* SUMS vectors of type VECTOR hold the sums of a group. */
#define FEW_TILE(C, SIDE, VECTOR, SUMS, STEP)                                                      \
    OMP_INLINE void FN(few_block_##C)(VECTOR * acc, const T *s, const T *x, int64_t depth,         \
                                      int64_t ahead)                                               \
    {                                                                                              \
        for (; depth >= 4; depth -= 4) {                                                           \
            for (int i = 0; i < 4 * DSD_MR; i += FN(PER_LINE))                                     \
                __builtin_prefetch(s + ahead + i, 0, 2);                                           \
            FEW_EACH(u, 4) STEP(C);                                                                \
        }                                                                                          \
        for (; depth > 0; depth--)                                                                 \
            STEP(C);                                                                               \
    }                                                                                              \
    static void FN(few_##C)(const FN(dsd) * d, const FN(few_part) * part, const T *x, T *sum)      \
    {                                                                                              \
        const int64_t block = d->block_j, deep = d->J, size = block * DSD_MR;                      \
        const int64_t both = (SIDE) > 1 ? min_i64(part->count[0], part->count[1]) : 0;             \
        const T *s = part->s;                                                                      \
        enum { LANES = (int)(sizeof(VECTOR) / sizeof(T)) };                                        \
        VECTOR acc[SIDE][SUMS];                                                                    \
        FEW_EACH(h, SIDE)                                                                          \
        FEW_EACH(i, SUMS) memcpy(&acc[h][i], sum + (h * (SUMS) + i) * LANES, sizeof acc[h][i]);    \
        for (int64_t e = 0; e < both; e++)                                                         \
            FEW_EACH(h, SIDE)                                                                      \
            {                                                                                      \
                const int64_t first = part->other[h][e] * block;                                   \
                FN(few_block_##C)                                                                  \
                (acc[h], s, x + first * (C), min_i64(block, deep - first), part->ahead);           \
                s += size;                                                                         \
            }                                                                                      \
        FEW_EACH(h, SIDE)                                                                          \
        for (int64_t e = both; e < part->count[h]; e++) {                                          \
            const int64_t first = part->other[h][e] * block;                                       \
            FN(few_block_##C)                                                                      \
            (acc[h], s, x + first * (C), min_i64(block, deep - first), part->ahead);               \
            s += size;                                                                             \
        }                                                                                          \
        FEW_EACH(h, SIDE)                                                                          \
        FEW_EACH(i, SUMS) memcpy(sum + (h * (SUMS) + i) * LANES, &acc[h][i], sizeof acc[h][i]);    \
    }
FEW_TILE(1, 2, FN(half), 1, FEW_ALONG)
FEW_TILE(2, 2, FN(half), 2, FEW_ALONG)
FEW_TILE(4, 2, FN(half), 4, FEW_ALONG)
FEW_TILE(8, 2, FN(half), 8, FEW_ALONG)
FEW_TILE(16, 1, V, DSD_MR, FEW_ACROSS)
FEW_TILE(32, 1, V, 2 * DSD_MR, FEW_ACROSS)
#undef FEW_TILE
#undef FEW_ALONG
#undef FEW_ACROSS
#undef FEW_EACH
#undef FEW_MADD

/* Packs S for all row groups. */
static void FN(few_make)(const FN(dsd) * d, const FN(few) * f, int threads, T *image)
{
    const int64_t heads = d->t->heads, turns = bski_ceil_div(f->all, f->turn);
    const int64_t size = d->block_j * DSD_MR, grid = bski_ceil_div(d->J, d->block_j);

#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t i = 0; i < FN(s_groups)(d) * heads * turns; i++) {
        const int64_t first = i % turns * f->turn, head = i / turns % heads;
        const int64_t member = i / turns / heads;
        FN(few_turn) turn;
        FN(few_part) part;
        FN(band) band = {.s = d->s};
        if (member)
            band.s += (size_t)(member * d->p->s.strides[0]) * type_size(d->p->s.dtype);
        T *to = image + member * d->image_size +
                size * FN(few_begin)(f, d->start + head * (d->grid_i + 1), first, &turn);
        for (int64_t j = 0; j < grid; j += f->slice)
            for (int64_t k = 0; k < f->turn; k += f->side) {
                FN(few_next)(d, f, &turn, k, j + f->slice, &part);
                const int64_t both = f->side > 1 ? min_i64(part.count[0], part.count[1]) : 0;
                for (int64_t h = 0; h < f->side; h++) {
                    const int64_t row = (first + k + h) % f->groups * DSD_MR;
                    const int64_t height =
                        min_i64(d->block_i, d->I - (first + k + h) / f->groups * d->block_i);
                    for (int64_t e = 0; e < part.count[h]; e++) {
                        const int64_t at = part.other[h][e] * d->block_j;
                        const FN(piece) piece = {.first = at,
                                                 .depth = (int32_t)min_i64(d->block_j, d->J - at),
                                                 .slot = d->slot[part.other[h] - d->other + e]};
                        FN(image_put)
                        (d, &band, &piece, row, max_i64(0, min_i64(DSD_MR, height - row)),
                         to + (e < both ? f->side * e + h : both + e) * size, 0, false);
                    }
                }
                to += (part.count[0] + (f->side > 1 ? part.count[1] : 0)) * size;
            }
    }
}

/* Row groups from number `first` on, in turn, of one batch member; x: its packed B. */
static void FN(few_turns)(const FN(dsd) * d, const FN(few) * f, FN(few_tile) tile, int64_t member,
                          const T *x, int64_t first)
{
    enum { TOGETHER = FN(STRIP) / DSD_MR };
    const int64_t head = member % d->t->heads, grid = bski_ceil_div(d->J, d->block_j);
    const int64_t size = d->block_j * DSD_MR, each = DSD_MR * f->ldx;
    const int64_t count = min_i64(f->turn, f->all - first);
    T sums[FN(FEW_SUMS) / sizeof(T)] __attribute__((aligned(64)));
    T strip[FN(STRIP) * FN(NR)] = {0};
    FN(few_turn) turn;
    FN(few_part) part = {.s = d->image};

    const int64_t begin = size * FN(few_begin)(f, d->start + head * (d->grid_i + 1), first, &turn);
    int64_t left = d->image_size - begin; /* Ts of the packed form */
    part.s += begin;
    if (FN(s_groups)(d) > 1)
        part.s += member / d->t->heads * d->image_size;
    memset(sums, 0, (size_t)(f->turn * each) * sizeof(T));
    for (int64_t j = 0; j < grid; j += f->slice)
        for (int64_t k = 0; k < count; k += f->side) {
            FN(few_next)(d, f, &turn, k, j + f->slice, &part);
            const int64_t used = (part.count[0] + part.count[1]) * size;
            left -= used;
            part.ahead = min_i64(left, FN(FEW_FETCH) / (int64_t)sizeof(T));
            tile(d, &part, x, sums + k * each);
            part.s += used;
        }
    for (int64_t k = 0; k < count; k += TOGETHER) {
        const int64_t top = (first + k) * DSD_MR, groups = min_i64(TOGETHER, count - k);
        for (int64_t h = 0; h < groups; h++) {
            const T *own = sums + (k + h) * each;
            T *to = strip + h * DSD_MR * FN(NR);
            if (f->side > 1)
                FN(transpose)(to, FN(NR), own, DSD_MR, DSD_MR, f->ldx);
            for (int64_t i = 0; f->side == 1 && i < DSD_MR; i++)
                memcpy(to + i * FN(NR), own + i * f->ldx, (size_t)f->ldx * sizeof(T));
        }
        if (top < d->I)
            FN(strip_finish)
        (d, member, strip, NULL, top, min_i64(groups * DSD_MR, d->I - top), 0, d->n);
    }
}

/* All of C. */
static void FN(few_run)(const FN(dsd) * d, const FN(few) * f, int threads)
{
    static const FN(few_tile)
        tiles[] = {FN(few_1), FN(few_2), FN(few_4), FN(few_8), FN(few_16), FN(few_32)};
    const int64_t size = d->J * f->ldx;
    const int64_t turns = bski_ceil_div(f->all, f->turn);
    int log = 0;
    while (1 << log < f->ldx)
        log++;
    for (int64_t m0 = 0; m0 < d->batch; m0 += d->chunk) {
        const int64_t count = min_i64(d->chunk, d->batch - m0);
#pragma omp parallel num_threads(threads)
        {
            FN(gemv_pack_all)(d, f->ldx, m0, count);
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < count * turns; i++)
                FN(few_turns)
            (d, f, tiles[log], m0 + i / turns, d->packed + i / turns * size, i % turns * f->turn);
        }
    }
}
