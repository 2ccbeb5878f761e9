/* The tiled products. A group of 128 lanes holds a tile of the result in registers, RM x RN
 * elements a lane, and walks along the inner dimension in chunks, which it stages in local memory
 * twice: while it computes from one stage it fetches for the other. */

#undef DSD_RM
#undef DSD_RN
#undef SDD_RM
#undef SDD_RN
#undef SDD_UNITS
#undef SDD_KC

/* Elements of a lane; sdd: blocks next to each other in a tile, and the depth of a chunk. f64 has
 * half the registers and local memory. */
#if SIMT_CODE == 1
#define DSD_RM    (TM == 8 ? 2 : TM == 16 ? 4 : 8)
#define DSD_RN    4
#define SDD_RM    (TM <= 16 ? 4 : 8)
#define SDD_RN    4
#define SDD_UNITS (TM == 32 ? 2 : 4)
#define SDD_KC    (TM >= 32 ? 8 : TM == 16 ? 16 : 32)
#else
#define DSD_RM    (TM <= 16 ? 4 : 8)
#define DSD_RN    (TM == 8 ? 4 : 8)
#define SDD_RM    (TM <= 16 ? 4 : 8)
#define SDD_RN    (TM == 8 ? 4 : 8)
#define SDD_UNITS (TM == 64 ? 2 : 4)
#define SDD_KC    (TM == 64 ? 8 : TM == 32 ? 16 : TM == 16 ? 32 : 64)
#endif

#ifndef DSD_KC
/* dsd: the lanes as DSD_TY x DSD_TX. */
#define DSD_KC    8
#define DSD_TY    (TM / DSD_RM)
#define DSD_TX    (LANES / DSD_TY)
#define DSD_TN    (DSD_TX * DSD_RN)
#define DSD_STAGE (DSD_KC * (PITCH(TM) + PITCH(DSD_TN)))
#define DSD_BQ    QUADS(DSD_KC, DSD_TN)

/* sdd: the lanes as SDD_KS x SDD_TX x SDD_TY; each of the SDD_KS slices sums its share of k. */
#define SDD_W     (SDD_UNITS * TM)
#define SDD_TY    (TM / SDD_RM)
#define SDD_TX    (SDD_W / SDD_RN)
#define SDD_KS    (LANES / (SDD_TX * SDD_TY))
#define SDD_STAGE (SDD_KC * (PITCH(TM) + PITCH(SDD_W)))
#define SDD_BQ    QUADS(SDD_KC, SDD_W)
/* Quad q of a lane in B: its column, and how far it is from the lane's first one. */
#define SDD_NEAR    QUAD_NEAR(SDD_KC, SDD_W)
#define SDD_COL(q)  (b_n + QUAD_DN(q, SDD_KC, SDD_W, a.b_along_k))
#define SDD_NEXT(q) (QUAD_DK(q, SDD_KC, SDD_W, a.b_along_k) * a.b_k + b_far[(q) % SDD_NEAR])
#define SDD_SUMS    ((SDD_KS - 1) * TM * SDD_W)
#define SDD_POOL    (2 * SDD_STAGE > SDD_SUMS ? 2 * SDD_STAGE : SDD_SUMS)

/* A staged chunk of `depth` x `width` numbers has rows of PITCH(width), which keeps vector loads
 * aligned; STAGE_COL exchanges eights of columns in every other eight rows. It is fetched in quads,
 * four neighbours along k or along n: number LANE, LANE + LANES ... Along k, QUAD_ROW lanes take the
 * quads of one n, then the next n: whole sectors of global memory, and all banks of the local one.
 * A lane's quads are QUAD_NEAR at different n (along k) or k (along n), and the same again
 * QUAD_DEPTH further along k. */
#define PITCH(width)             ((width) + 4)
#define STAGE_COL(k, col, width) ((width) < 16 ? (col) : (col) ^ ((k)&8))
#define QUADS(depth, width)      (((depth) * (width) / 4 + LANES - 1) / LANES)
#define QUAD_ROW(depth)          ((depth) < 16 ? 2 : 4)
#define QUAD_K(depth, width, along_k)                                                              \
    ((along_k) ? LANE % QUAD_ROW(depth) * 4 + LANE / QUAD_ROW(depth) / (width)*QUAD_ROW(depth) * 4 \
               : LANE / ((width) / 4))
#define QUAD_N(depth, width, along_k)                                                              \
    ((along_k) ? LANE / QUAD_ROW(depth) % (width) : LANE % ((width) / 4) * 4)
#define QUAD_NEAR(depth, width)                                                                    \
    ((width)*QUAD_ROW(depth) > LANES ? (width)*QUAD_ROW(depth) / LANES : 1)
#define QUAD_DEPTH(depth, width) (LANES * 4 * QUAD_NEAR(depth, width) / (width))
/* From a lane's first quad to quad q. */
#define QUAD_DN(q, depth, width, along_k)                                                          \
    ((along_k) ? (q) % QUAD_NEAR(depth, width) * (LANES / QUAD_ROW(depth)) : 0)
#define QUAD_DK(q, depth, width, along_k)                                                          \
    ((q) / QUAD_NEAR(depth, width) * QUAD_DEPTH(depth, width) +                                    \
     ((along_k) ? 0 : (q) % QUAD_NEAR(depth, width) * (LANES * 4 / (width))))
/* Whether a lane takes part at all. */
#define QUAD_MINE(depth, width) ((depth) * (width) >= LANES * 4 || LANE < (depth) * (width) / 4)

/* A lane's place in a tile: neighbours differ in both directions, so that few addresses are read
 * at a time. Its elements come in fours, which join with those of its neighbours. */
#define LANE_Y(lane, ty) ((lane) / 2 % (ty))
#define LANE_X(lane, ty) ((lane) % 2 + (lane) / (2 * (ty)) * 2)
#define PLACE(r, t, count, of)                                                                     \
    ((of) < 4 ? (t) * (of) + (r) : (r) / 4 * 4 * (count) + 4 * (t) + (r) % 4)

#define QUAD_TYPE HALF_TYPE
#define QUAD_OWN  (SIMT_CODE <= 2)
#include "quads.h"
#endif

#undef TILE_KERNEL
#if TM >= 32
#define TILE_KERNEL KERNEL_DENSE
#else
#define TILE_KERNEL KERNEL
#endif

/* A lane's part of a row of a stage. */
DEVICE void FN(stage_load)(const LOCAL_ARG R *row, i32 k, i32 place, i32 places, i32 count, R *v)
{
#if SIMT_CODE == 1
    UNROLL
    for (i32 r = 0; r < count; r++)
        v[r] = row[STAGE_COL(k, PLACE(r, place, places, count), places * count)];
#else
    UNROLL
    for (i32 r = 0; r < count; r += 4)
        f32_load4_local(row + STAGE_COL(k, 4 * place, places * count) + r * places, v + r);
#endif
}

/* Quad q of a lane, times `scale`, into a stage; the lane's first one is at (k, n). */
DEVICE void FN(stage_quad)(LOCAL_ARG R *stage, i32 q, i32 depth, i32 width, i32 along_k, i32 k,
                           i32 n, R scale, i32 type, NAME(quad) quad)
{
    R v[4];
    NAME(quad_numbers)(type, quad, v);
    stage += k * PITCH(width);
    if (along_k) {
        stage += STAGE_COL(k, n, width) + QUAD_DK(q, depth, width, 1) * PITCH(width) +
                 QUAD_DN(q, depth, width, 1);
        UNROLL
        for (i32 e = 0; e < 4; e++)
            stage[e * PITCH(width)] = scale * v[e];
    } else {
        R w[4];
        UNROLL
        for (i32 e = 0; e < 4; e++)
            w[e] = scale * v[e];
        const i32 deeper = QUAD_DK(q, depth, width, 0);
        NAME(local_store4)(stage + deeper * PITCH(width) + STAGE_COL(k ^ deeper, n, width), w);
    }
}

/* A group's walk over the blocks of a block row whose gates are not 0, in chunks of DSD_KC. */
typedef struct FN(walk) {
    i64 s_at, b_at; /* the chunk's first k: in s and in b */
    i32 entry, last;
    i32 left;                /* of the block, from the chunk on */
    i32 next_slot, next_col; /* of the entry after, read in advance */
    R gate;
} FN(walk);

DEVICE void FN(walk_peek)(FN(walk) * w, i32 entry, const GLOBAL i32 *col, const GLOBAL i32 *slot)
{
    if (entry < w->last) {
        w->next_slot = slot[entry];
        w->next_col = col[entry];
    }
}

/* Enters the first block from w->entry on that counts. */
DEVICE void FN(walk_enter)(FN(walk) * w, const dsd_arg *a, const GLOBAL R *gate,
                           const GLOBAL i32 *col, const GLOBAL i32 *slot)
{
    for (; w->entry < w->last; w->entry++) {
        const i64 at = w->next_slot, row = (i64)w->next_col * a->block_cols;
        FN(walk_peek)(w, w->entry + 1, col, slot);
        w->gate = gate ? gate[at] : 1;
        if (w->gate == 0)
            continue;
        w->s_at = at * a->s_block;
        w->b_at = row * a->b_row;
        w->left = a->depth - row < a->block_cols ? (i32)(a->depth - row) : a->block_cols;
        return;
    }
}

TILE_KERNEL(FORMED(dsd), LANES)(DSD_BUFFERS(T), const dsd_arg a)
{
    QUEUE_WAIT();
    LOCAL R pool[2 * DSD_STAGE] ALIGNED;
    DSD_OPEN(T);

    const i64 tiles = (i64)a.grid_rows * a.tiles_m;
    const i64 across = QUOTIENT(GROUP(0), tiles), tile = GROUP(0) - across * tiles;
    const i64 m = QUOTIENT(across, a.tiles_n), number = QUOTIENT(tile, a.tiles_m);
    const i64 in_block = (tile - number * a.tiles_m) * TM; /* the tile's first row there */
    const i64 member = QUOTIENT(m, a.heads), head = m - member * a.heads;
    const dsd_list list = lists[head * a.grid_rows + number];
    const i64 row0 = (i64)list.row * a.block_rows + in_block;
    const i64 n0 = (across - m * a.tiles_n) * DSD_TN;
    const i64 block_left = a.block_rows - in_block, rows_left = a.rows - row0;
    const i32 rows = (i32)(rows_left < block_left ? rows_left : block_left);
    const i32 cols = (i32)(a.cols - n0 < DSD_TN ? a.cols - n0 : DSD_TN);
    const i32 ty = LANE_Y(LANE, DSD_TY), tx = LANE_X(LANE, DSD_TY);

    s += (a.groups > 1 ? member : 0) * a.s_group + in_block * a.s_row;
    b += m * a.b_batch + n0 * a.b_col;

    FN(walk) w;
    w.entry = list.first;
    w.last = list.last;
    w.left = w.next_slot = w.next_col = 0;
    w.s_at = w.b_at = 0;
    w.gate = 0;
    FN(walk_peek)(&w, w.entry, col, slot);
    FN(walk_enter)(&w, &a, gate, col, slot);

    R acc[DSD_RM][DSD_RN];
    UNROLL
    for (i32 i = 0; i < DSD_RM; i++)
        UNROLL
    for (i32 j = 0; j < DSD_RN; j++)
        acc[i][j] = 0;

    /* A lane's first quads. */
    const i32 b_along_k = !a.b_along_n, whole_tile = rows >= TM && cols == DSD_TN;
    const i32 whole = whole_tile && a.s_vector && a.b_vector;
    const i32 s_k = QUAD_K(DSD_KC, TM, a.s_along_k), s_n = QUAD_N(DSD_KC, TM, a.s_along_k);
    const i32 b_k = QUAD_K(DSD_KC, DSD_TN, b_along_k), b_n = QUAD_N(DSD_KC, DSD_TN, b_along_k);
    s += s_k * a.s_col + s_n * a.s_row;
    b += b_k * a.b_row + b_n * a.b_col;

    const i64 b_step =
        b_along_k ? LANES / QUAD_ROW(DSD_KC) * a.b_col : LANES * 4 / DSD_TN * a.b_row;

    /* Round i fetches chunk i and computes chunk i - 1. */
    const i32 type = HALF_TYPE(a.type);
    for (i32 round = 0;; round++) {
        const i32 now = round & 1, more = w.entry < w.last;
        const R scale = w.gate;
        NAME(quad) fetched_s, fetched_b[DSD_BQ];
        if (more) {
            const GLOBAL T *s_from = s + w.s_at, *b_from = b + w.b_at;
            if (whole && w.left >= DSD_KC) {
                if (QUAD_MINE(DSD_KC, TM))
                    fetched_s = NAME(quad_whole)(type, s_from, 0);
                UNROLL
                for (i32 q = 0; q < DSD_BQ; q++)
                    fetched_b[q] = NAME(quad_whole)(type, b_from + q * b_step, 0);
            } else {
                const i32 s_left = s_k < DSD_KC ? w.left - s_k : 0, r_left = rows - s_n;
                fetched_s = NAME(quad_part)(type, s_from, 0, a.s_along_k ? a.s_col : a.s_row,
                                            s_left <= 0 || r_left <= 0 ? 0
                                            : a.s_along_k              ? s_left
                                                                       : r_left,
                                            a.s_vector);
                UNROLL
                for (i32 q = 0; q < DSD_BQ; q++) {
                    const i32 k_left = w.left - b_k - QUAD_DK(q, DSD_KC, DSD_TN, b_along_k);
                    const i32 n_left = cols - b_n - QUAD_DN(q, DSD_KC, DSD_TN, b_along_k);
                    fetched_b[q] =
                        NAME(quad_part)(type, b_from + q * b_step, 0, b_along_k ? a.b_row : a.b_col,
                                        k_left <= 0 || n_left <= 0 ? 0
                                        : b_along_k                ? k_left
                                                                   : n_left,
                                        a.b_vector);
                }
            }
            w.left -= DSD_KC;
            w.s_at += DSD_KC * a.s_col;
            w.b_at += DSD_KC * a.b_row;
            if (w.left <= 0) {
                w.entry++;
                FN(walk_enter)(&w, &a, gate, col, slot);
            }
        }
        if (round) {
            const LOCAL_ARG R *s_stage = pool + (1 - now) * DSD_STAGE;
            const LOCAL_ARG R *b_stage = s_stage + DSD_KC * PITCH(TM);
            UNROLL
            for (i32 k = 0; k < DSD_KC; k++) {
                R left[DSD_RM], right[DSD_RN];
                FN(stage_load)(s_stage + k * PITCH(TM), k, ty, DSD_TY, DSD_RM, left);
                FN(stage_load)(b_stage + k * PITCH(DSD_TN), k, tx, DSD_TX, DSD_RN, right);
                UNROLL
                for (i32 i = 0; i < DSD_RM; i++)
                    UNROLL
                for (i32 j = 0; j < DSD_RN; j++)
                    acc[i][j] = FMA(left[i], right[j], acc[i][j]);
            }
        }
        if (!more)
            break;
        LOCAL_ARG R *s_stage = pool + now * DSD_STAGE, *b_stage = s_stage + DSD_KC * PITCH(TM);
        if (QUAD_MINE(DSD_KC, TM))
            FN(stage_quad)(s_stage, 0, DSD_KC, TM, a.s_along_k, s_k, s_n, scale, type, fetched_s);
        UNROLL
        for (i32 q = 0; q < DSD_BQ; q++)
            FN(stage_quad)
        (b_stage, q, DSD_KC, DSD_TN, b_along_k, b_k, b_n, 1, type, fetched_b[q]);
        BARRIER();
    }

#if SIMT_CODE == 2
    if (a.plain && whole_tile) { /* neighbours of a lane are neighbours in memory */
        const R alpha = NUM(a.alpha);
        const i64 at = m * a.c_batch + row0 * a.c_row + n0 * a.c_col;
        if (a.c_along_n) {
            UNROLL
            for (i32 i = 0; i < DSD_RM; i++)
                UNROLL
            for (i32 j = 0; j < DSD_RN; j += 4) {
                R v[4];
                UNROLL
                for (i32 e = 0; e < 4; e++)
                    v[e] = alpha * acc[i][j + e];
                NAME(quad_store)
                (SIMT_CODE, c,
                 at + PLACE(i, ty, DSD_TY, DSD_RM) * a.c_row + PLACE(j, tx, DSD_TX, DSD_RN), v);
            }
        } else {
            UNROLL
            for (i32 j = 0; j < DSD_RN; j++)
                UNROLL
            for (i32 i = 0; i < DSD_RM; i += 4) {
                R v[4];
                UNROLL
                for (i32 e = 0; e < 4; e++)
                    v[e] = alpha * acc[i + e][j];
                NAME(quad_store)
                (SIMT_CODE, c,
                 at + PLACE(i, ty, DSD_TY, DSD_RM) + PLACE(j, tx, DSD_TX, DSD_RN) * a.c_col, v);
            }
        }
        return;
    }
#endif

    /* Through local memory, so that neighbouring lanes store neighbouring elements: one row of
     * each lane at a time, or one column. The sums of the next one take the place of the first. */
    if (a.c_along_n) {
        NO_UNROLL
        for (i32 i = 0; i < DSD_RM; i++) {
            BARRIER();
            UNROLL
            for (i32 j = 0; j < DSD_RN; j++) {
                pool[ty * PITCH(DSD_TN) + PLACE(j, tx, DSD_TX, DSD_RN)] = acc[0][j];
                UNROLL
                for (i32 next = 1; next < DSD_RM; next++)
                    acc[next - 1][j] = acc[next][j];
            }
            BARRIER();
            for (i32 x = LANE; x < DSD_TY * DSD_TN; x += LANES) {
                const i32 r = PLACE(i, x / DSD_TN, DSD_TY, DSD_RM), n = x % DSD_TN;
                if (r < rows && n < cols)
                    FN(dsd_store)
                (&a, c, bias, residual, row_scale, col_scale, m, row0 + r, n0 + n,
                 pool[x / DSD_TN * PITCH(DSD_TN) + n]);
            }
        }
    } else {
        NO_UNROLL
        for (i32 j = 0; j < DSD_RN; j++) {
            BARRIER();
            UNROLL
            for (i32 i = 0; i < DSD_RM; i++) {
                pool[tx * (TM + 1) + PLACE(i, ty, DSD_TY, DSD_RM)] = acc[i][0];
                UNROLL
                for (i32 next = 1; next < DSD_RN; next++)
                    acc[i][next - 1] = acc[i][next];
            }
            BARRIER();
            for (i32 x = LANE; x < DSD_TX * TM; x += LANES) {
                const i32 r = x % TM, n = PLACE(j, x / TM, DSD_TX, DSD_RN);
                if (r < rows && n < cols)
                    FN(dsd_store)
                (&a, c, bias, residual, row_scale, col_scale, m, row0 + r, n0 + n,
                 pool[x / TM * (TM + 1) + r]);
            }
        }
    }
}

#if SIMT_CODE == 2 || TM != 64
/* sdd_store for the first `count` of four neighbours. */
DEVICE void FN(sdd_store4)(const sdd_arg *a, GLOBAL u8 *s, GLOBAL R *parts, i64 split, i64 group,
                           i64 slot, i64 element, R gate, i32 count, const R *v)
{
    const i64 block = (i64)a->block_rows * a->block_cols;
    R out[4];
    if (!a->s_vector || count < 4) {
        UNROLL
        for (i32 e = 0; e < 4; e++)
            if (e < count)
                FN(sdd_store)(a, s, parts, split, group, slot, element + e, gate, v[e]);
    } else if (a->direct) {
        const i64 at = group * a->s_group + slot * block + element;
        const R factor = a->gate_mode == 2 ? NUM(a->alpha) * gate : NUM(a->alpha);
        UNROLL
        for (i32 e = 0; e < 4; e++) {
            out[e] = a->gate_mode && gate == 0 ? (R)0 : factor * v[e];
            if (NUM(a->beta) != 0)
                out[e] += NUM(a->beta) * NAME(load_r)(a->s_type, s, at + e);
        }
        NAME(quad_store)(a->s_type, s, at, out);
    } else {
        const i64 at = split * a->part + (group * a->nnz + slot) * block + element;
        UNROLL
        for (i32 e = 0; e < 4; e++)
            out[e] = a->accumulate ? parts[at + e] + v[e] : v[e];
        NAME(quad_store)(R_TYPE, parts, at, out);
    }
}

/* A block of a strip, or a tile of a larger one: SDD_UNITS of them lie in a tile of sdd. */
typedef struct FN(unit) {
    i64 slot, col0;
    i32 in_col, cols; /* first column in the block; columns, 0: no such unit */
    R gate;
} FN(unit);

DEVICE FN(unit) FN(unit_at)(const sdd_arg *a, const sdd_strip *strip, i32 number,
                            const GLOBAL i32 *col, const GLOBAL i32 *slot, const GLOBAL R *gate)
{
    FN(unit) u;
    u.slot = u.col0 = 0;
    u.in_col = u.cols = 0;
    u.gate = 0;
    if (number < strip->units) {
        const i32 tile = strip->tile + number, entry = strip->entry + tile / a->tiles_n;
        u.slot = slot[entry];
        u.in_col = tile % a->tiles_n * TM;
        u.col0 = (i64)col[entry] * a->block_cols + u.in_col;
        const i64 left = a->cols - u.col0, block_left = a->block_cols - u.in_col;
        u.cols = (i32)(left < block_left ? left : block_left);
        u.cols = u.cols < TM ? u.cols : TM;
        u.gate = gate ? gate[u.slot] : 1;
    }
    return u;
}

TILE_KERNEL(FORMED(sdd), LANES)
(BUF(const T, left), BUF(const T, right), BUF(u8, s), BUF(R, parts), BUF(const R, gate),
 BUF(const sdd_strip, strips), BUF(const i32, col), BUF(const i32, slot), const sdd_arg a)
{
    QUEUE_WAIT();
    LOCAL R pool[SDD_POOL] ALIGNED;
    OPEN(const T, left);
    OPEN(const T, right);
    OPEN(u8, s);
    OPEN(R, parts);
    OPEN(const R, gate);
    OPEN(const sdd_strip, strips);
    OPEN(const i32, col);
    OPEN(const i32, slot);

    const i64 tiles = (i64)a.strips * a.tiles_m, part = QUOTIENT(GROUP(0), tiles);
    const i64 tile = GROUP(0) - part * tiles, number = QUOTIENT(tile, a.tiles_m);
    const i64 split = QUOTIENT(part, a.groups), group = part - split * a.groups;
    const sdd_strip strip = strips[number];
    const i32 in_row = (i32)(tile - number * a.tiles_m) * TM;
    const i64 row0 = (i64)strip.row * a.block_rows + in_row, rows_left = a.rows - row0;
    const i32 rows = (i32)(rows_left < a.block_rows - in_row ? rows_left : a.block_rows - in_row);

    /* Uniform in the group, as all that follows from it. */
    i32 whole = rows >= TM && a.a_vector && a.b_vector, zero = a.gate_mode != 0;
    NO_UNROLL
    for (i32 u = 0; u < SDD_UNITS; u++) {
        const FN(unit) unit = FN(unit_at)(&a, &strip, u, col, slot, gate);
        whole = whole && unit.cols >= TM;
        zero = zero && unit.gate == 0;
    }
    if (zero && !a.direct && a.gate_mode == 1)
        return;

    /* The chunks of this split, counted over the members of the batch. */
    const i64 chunks = (a.n + SDD_KC - 1) / SDD_KC, all = a.members * chunks;
    const i64 each = QUOTIENT(all, a.splits), more = all - each * a.splits;
    i64 chunk = each * split + QUOTIENT(more * split, a.splits);
    const i64 last =
        zero && a.direct ? chunk : each * (split + 1) + QUOTIENT(more * (split + 1), a.splits);
    const i64 first = FN(sdd_first)(&a, group, strip.head);

    const i32 slice = LANE / (SDD_TX * SDD_TY), place = LANE % (SDD_TX * SDD_TY);
    const i32 ty = LANE_Y(place, SDD_TY), tx = LANE_X(place, SDD_TY);
    R acc[SDD_RM][SDD_RN];
    UNROLL
    for (i32 i = 0; i < SDD_RM; i++)
        UNROLL
    for (i32 j = 0; j < SDD_RN; j++)
        acc[i][j] = 0;

    /* A lane's first quads; those of B lie in several units. */
    const i32 a_k = QUAD_K(SDD_KC, TM, a.a_along_k), a_n = QUAD_N(SDD_KC, TM, a.a_along_k);
    const i32 b_k = QUAD_K(SDD_KC, SDD_W, a.b_along_k), b_n = QUAD_N(SDD_KC, SDD_W, a.b_along_k);
    left += a_k * a.a_k + (row0 + a_n) * a.a_row;
    i32 b_far[SDD_NEAR]; /* from the first quad's unit, which the host keeps within 32 bits */
    u32 b_cols = 0;      /* columns from the quad on, a byte for each */
    i64 b_first = 0;
    UNROLL
    for (i32 q = 0; q < SDD_NEAR; q++) {
        const i32 n = SDD_COL(q);
        const FN(unit) unit = FN(unit_at)(&a, &strip, n / TM, col, slot, gate);
        const i64 at = (unit.col0 + n % TM) * a.b_col;
        b_first = q ? b_first : at;
        b_far[q] = unit.cols ? (i32)(at - b_first) : 0;
        b_cols |= (u32)(unit.cols > n % TM ? unit.cols - n % TM : 0) << 8 * q;
    }
    right += b_k * a.b_k + b_first;

    const i32 type = HALF_TYPE(a.type);
    const i64 before = chunks ? QUOTIENT(chunk, chunks) : 0;
    i64 k0 = (chunk - before * chunks) * SDD_KC;
    const i64 member = first + before * a.heads;
    const GLOBAL T *at = left + member * a.a_batch + k0 * a.a_k;
    const GLOBAL T *bt = right + member * a.b_batch + k0 * a.b_k;
    for (i32 round = 0;; round++, chunk++) {
        const i32 now = round & 1, more = chunk < last;
        NAME(quad) fetched_a, fetched_b[SDD_BQ];
        if (more) {
            if (whole && a.n - k0 >= SDD_KC) {
                if (QUAD_MINE(SDD_KC, TM))
                    fetched_a = NAME(quad_whole)(type, at, 0);
                UNROLL
                for (i32 q = 0; q < SDD_BQ; q++)
                    fetched_b[q] = NAME(quad_whole)(type, bt + SDD_NEXT(q), 0);
            } else {
                const i64 a_left = a_k < SDD_KC ? a.n - k0 - a_k : 0;
                fetched_a = NAME(quad_part)(type, at, 0, a.a_along_k ? a.a_k : a.a_row,
                                            a_left <= 0 || rows <= a_n ? 0
                                            : a.a_along_k              ? a_left
                                                                       : rows - a_n,
                                            a.a_vector);
                UNROLL
                for (i32 q = 0; q < SDD_BQ; q++) {
                    const i64 k_left = a.n - k0 - b_k - QUAD_DK(q, SDD_KC, SDD_W, a.b_along_k);
                    const i32 n_left = (i32)(b_cols >> q % SDD_NEAR * 8 & 255);
                    fetched_b[q] =
                        NAME(quad_part)(type, bt + SDD_NEXT(q), 0, a.b_along_k ? a.b_k : a.b_col,
                                        k_left <= 0 || n_left <= 0 ? 0
                                        : a.b_along_k              ? k_left
                                                                   : n_left,
                                        a.b_vector);
                }
            }
            k0 += SDD_KC;
            at += SDD_KC * a.a_k;
            bt += SDD_KC * a.b_k;
            if (k0 >= a.n) { /* on to the next member */
                at += a.heads * a.a_batch - chunks * SDD_KC * a.a_k;
                bt += a.heads * a.b_batch - chunks * SDD_KC * a.b_k;
                k0 = 0;
            }
        }
        if (round) {
            const LOCAL_ARG R *a_stage = pool + (1 - now) * SDD_STAGE;
            const LOCAL_ARG R *b_stage = a_stage + SDD_KC * PITCH(TM);
            UNROLL
            for (i32 x = 0; x < SDD_KC / SDD_KS; x++) {
                const i32 k = x * SDD_KS + slice; /* bit 3 is that of x * SDD_KS */
                R rows_of[SDD_RM], cols_of[SDD_RN];
                FN(stage_load)
                (a_stage + k * PITCH(TM), x * SDD_KS, ty, SDD_TY, SDD_RM, rows_of);
                FN(stage_load)
                (b_stage + k * PITCH(SDD_W), x * SDD_KS, tx, SDD_TX, SDD_RN, cols_of);
                UNROLL
                for (i32 i = 0; i < SDD_RM; i++)
                    UNROLL
                for (i32 j = 0; j < SDD_RN; j++)
                    acc[i][j] = FMA(rows_of[i], cols_of[j], acc[i][j]);
            }
        }
        if (!more)
            break;
        LOCAL_ARG R *a_stage = pool + now * SDD_STAGE, *b_stage = a_stage + SDD_KC * PITCH(TM);
        if (QUAD_MINE(SDD_KC, TM))
            FN(stage_quad)(a_stage, 0, SDD_KC, TM, a.a_along_k, a_k, a_n, 1, type, fetched_a);
        UNROLL
        for (i32 q = 0; q < SDD_BQ; q++)
            FN(stage_quad)
        (b_stage, q, SDD_KC, SDD_W, a.b_along_k, b_k, b_n, 1, type, fetched_b[q]);
        BARRIER();
    }

    /* The first slice adds the others to its own, in their order. */
    if (SDD_KS > 1) {
        BARRIER();
        if (slice)
            UNROLL
        for (i32 i = 0; i < SDD_RM; i++)
            UNROLL
        for (i32 j = 0; j < SDD_RN; j++)
            pool[((slice - 1) * TM + PLACE(i, ty, SDD_TY, SDD_RM)) * SDD_W +
                 PLACE(j, tx, SDD_TX, SDD_RN)] = acc[i][j];
        BARRIER();
        if (slice)
            return;
        NO_UNROLL
        for (i32 other = 0; other < SDD_KS - 1; other++)
            UNROLL
        for (i32 i = 0; i < SDD_RM; i++)
            UNROLL
        for (i32 j = 0; j < SDD_RN; j++)
            acc[i][j] += pool[(other * TM + PLACE(i, ty, SDD_TY, SDD_RM)) * SDD_W +
                              PLACE(j, tx, SDD_TX, SDD_RN)];
    }
    FN(unit) units[SDD_RN / 4];
    UNROLL
    for (i32 j = 0; j < SDD_RN; j += 4)
        units[j / 4] = FN(unit_at)(&a, &strip, PLACE(j, tx, SDD_TX, SDD_RN) / TM, col, slot, gate);
    /* Row by row, as a store is long: the sums of the next row take the place of the first. */
    NO_UNROLL
    for (i32 i = 0; i < SDD_RM; i++) {
        const i32 r = PLACE(i, ty, SDD_TY, SDD_RM);
        UNROLL
        for (i32 j = 0; j < SDD_RN; j += 4) {
            const FN(unit) *const unit = &units[j / 4];
            const i32 n = PLACE(j, tx, SDD_TX, SDD_RN), count = unit->cols - n % TM;
            if (r < rows && count > 0 && !(a.gate_mode == 1 && !a.direct && unit->gate == 0))
                FN(sdd_store4)
            (&a, s, parts, split, group, unit->slot,
             (i64)(in_row + r) * a.block_cols + unit->in_col + n % TM, unit->gate, count,
             &acc[0][j]);
        }
        UNROLL
        for (i32 next = 1; next < SDD_RM; next++)
            UNROLL
        for (i32 j = 0; j < SDD_RN; j++)
            acc[next - 1][j] = acc[next][j];
    }
}
#endif
