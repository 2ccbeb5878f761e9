/* The tiled products. A group of 128 lanes holds a tile of the result in registers, RM x RN
 * elements a lane, and walks along the inner dimension in chunks, which it stages in local memory
 * twice: while it computes from one stage it fetches for the other. */

#undef DSD_RM
#undef DSD_RN
#undef SDD_RM
#undef SDD_RN
#undef SDD_KC

/* Elements of a lane, and the depth of a chunk of sdd; f64 has half the registers and local
 * memory. */
#if SIMT_CODE == 1
#define DSD_RM (TM == 8 ? 2 : TM == 16 ? 4 : 8)
#define DSD_RN 4
#define SDD_RM (TM <= 16 ? 4 : 8)
#define SDD_RN 4
#define SDD_KC (512 / TM)
#else
#define DSD_RM (TM <= 16 ? 4 : 8)
#define DSD_RN (TM == 8 ? 4 : 8)
#define SDD_RM (TM <= 16 ? 4 : 8)
#define SDD_RN (TM <= 16 ? 4 : 8)
#define SDD_KC (TM == 16 ? 32 : TM == 8 ? 64 : 1024 / TM)
#endif

#ifndef DSD_KC
/* dsd: the lanes as DSD_TY x DSD_TX, rows padded so that vector loads stay aligned. */
#define DSD_KC    8
#define DSD_TY    (TM / DSD_RM)
#define DSD_TX    (LANES / DSD_TY)
#define DSD_TN    (DSD_TX * DSD_RN)
#define DSD_SP    (TM + 4)
#define DSD_BP    (DSD_TN + 4)
#define DSD_STAGE (DSD_KC * (DSD_SP + DSD_BP))
#define DSD_SE    ((DSD_KC * TM + LANES - 1) / LANES) /* elements of S that a lane fetches */
#define DSD_BE    (DSD_KC * DSD_TN / LANES)
/* Where element e of a lane lies in a chunk: with neighbouring lanes along k, or along n. */
#define ALONG_K(e, depth)    (LANE % (depth))
#define ALONG_K_AT(e, depth) (LANE / (depth) + (e) * (LANES / (depth)))
#define ALONG_M_K(e)         (LANE / TM + (e) * (LANES / TM))
#define ALONG_M(e)           (LANE % TM)
#define DSD_TQ               (DSD_TN < LANES ? 1 : DSD_TN / LANES)
#define ALONG_N_K(e)         (DSD_TN < LANES ? LANE / DSD_TN + (e) * (LANES / DSD_TN) : (e) / DSD_TQ)
#define ALONG_N(e)           (DSD_TN < LANES ? LANE % DSD_TN : LANE + (e) % DSD_TQ * LANES)

/* sdd: the lanes as SDD_KS x SDD_TX x SDD_TY; each of the SDD_KS slices sums its share of k. */
#define SDD_TY    (TM / SDD_RM)
#define SDD_TX    (TM / SDD_RN)
#define SDD_KS    (LANES / (SDD_TX * SDD_TY))
#define SDD_P     (TM + 4)
#define SDD_STAGE (2 * SDD_KC * SDD_P)
#define SDD_E     (SDD_KC * TM / LANES)
#define SDD_POOL  (2 * SDD_STAGE > TM * TM ? 2 * SDD_STAGE : TM * TM)

/* Column number r of a lane: fours, so that neighbours' loads join. */
#define LANE_COLUMN(r, tx, width) ((r) / 4 * 4 * (width) + 4 * (tx) + (r) % 4)
#endif

/* A group's walk over the blocks of a block row whose gates are not 0, in chunks of DSD_KC. */
typedef struct FN(walk) {
    i64 entry, last;
    i64 s_at, b_at;          /* the chunk's first k: in s and in b */
    i32 left;                /* of the block, from the chunk on */
    i32 next_slot, next_col; /* of the entry after, read in advance */
    R gate;
} FN(walk);

DEVICE void FN(walk_peek)(FN(walk) * w, i64 entry, const GLOBAL i32 *col, const GLOBAL i32 *slot)
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

KERNEL(FORMED(dsd), LANES)(DSD_BUFFERS(T), const dsd_arg a)
{
    LOCAL R pool[2 * DSD_STAGE] ALIGNED;
    DSD_OPEN(T);

    const i64 tiles = (i64)a.grid_rows * a.tiles_m;
    const i64 m = GROUP(0) / (tiles * a.tiles_n);
    const i64 tile = GROUP(0) % tiles;
    const i64 block_row = tile / a.tiles_m;
    const i64 in_block = tile % a.tiles_m * TM; /* the tile's first row in its block row */
    const i64 row0 = block_row * a.block_rows + in_block;
    const i64 n0 = GROUP(0) / tiles % a.tiles_n * DSD_TN;
    const i64 block_left = a.block_rows - in_block, rows_left = a.rows - row0;
    const i32 rows = (i32)(rows_left < block_left ? rows_left : block_left);
    const i32 cols = (i32)(a.cols - n0 < DSD_TN ? a.cols - n0 : DSD_TN);
    const i32 ty = LANE % DSD_TY, tx = LANE / DSD_TY;

    s += (a.groups > 1 ? m / a.heads : 0) * a.s_group + in_block * a.s_row;
    b += m * a.b_batch + n0 * a.b_col;

    FN(walk) w;
    w.entry = start[m % a.heads * (a.grid_rows + 1) + block_row];
    w.last = start[m % a.heads * (a.grid_rows + 1) + block_row + 1];
    w.left = w.next_slot = w.next_col = 0;
    w.s_at = w.b_at = 0;
    w.gate = 0;
    FN(walk_peek)(&w, w.entry, col, slot);
    FN(walk_enter)(&w, &a, gate, col, slot);

    R acc[DSD_RM][DSD_RN];
    UNROLL for (i32 i = 0; i < DSD_RM; i++) UNROLL for (i32 j = 0; j < DSD_RN; j++) acc[i][j] = 0;

    /* A lane's first element of a chunk, and the ways to its others. */
    const i32 whole_tile = rows >= TM && cols == DSD_TN;
    s += a.s_along_k ? ALONG_K(0, DSD_KC) * a.s_col + ALONG_K_AT(0, DSD_KC) * a.s_row
                     : ALONG_M_K(0) * a.s_col + ALONG_M(0) * a.s_row;
    b += a.b_along_n ? ALONG_N_K(0) * a.b_row + ALONG_N(0) * a.b_col
                     : ALONG_K(0, DSD_KC) * a.b_row + ALONG_K_AT(0, DSD_KC) * a.b_col;
    const i64 s_step = a.s_along_k ? LANES / DSD_KC * a.s_row : LANES / TM * a.s_col;
    const i64 b_near = a.b_along_n ? LANES * a.b_col : LANES / DSD_KC * a.b_col;
    const i64 b_far = !a.b_along_n     ? DSD_TQ * (LANES / DSD_KC) * a.b_col
                      : DSD_TN < LANES ? LANES / DSD_TN * a.b_row
                                       : a.b_row;

    /* Round i fetches chunk i and computes chunk i - 1. */
    for (i32 round = 0;; round++) {
        const i32 now = round & 1, more = w.entry < w.last;
        const R scale = w.gate;
        R fetched_s[DSD_SE], fetched_b[DSD_BE];
        if (more && whole_tile && w.left >= DSD_KC) {
            UNROLL for (i32 e = 0; e < DSD_SE; e++) if (DSD_KC * TM >= LANES || LANE < DSD_KC * TM)
                fetched_s[e] = LD(s, w.s_at + e * s_step);
            UNROLL for (i32 e = 0; e < DSD_BE; e++) fetched_b[e] =
                LD(b, w.b_at + (e / DSD_TQ * b_far + e % DSD_TQ * b_near));
        } else if (more) {
            UNROLL for (i32 e = 0; e < DSD_SE; e++)
            {
                const i32 k = a.s_along_k ? ALONG_K(e, DSD_KC) : ALONG_M_K(e);
                const i32 r = a.s_along_k ? ALONG_K_AT(e, DSD_KC) : ALONG_M(e);
                fetched_s[e] = 0;
                if (r < rows && r < TM && k < w.left && k < DSD_KC)
                    fetched_s[e] = LD(s, w.s_at + e * s_step);
            }
            UNROLL for (i32 e = 0; e < DSD_BE; e++)
            {
                const i32 k = a.b_along_n ? ALONG_N_K(e) : ALONG_K(e, DSD_KC);
                const i32 n = a.b_along_n ? ALONG_N(e) : ALONG_K_AT(e, DSD_KC);
                fetched_b[e] = 0;
                if (n < cols && k < w.left)
                    fetched_b[e] = LD(b, w.b_at + (e / DSD_TQ * b_far + e % DSD_TQ * b_near));
            }
        }
        if (more) {
            w.left -= DSD_KC;
            w.s_at += DSD_KC * a.s_col;
            w.b_at += DSD_KC * a.b_row;
            if (w.left <= 0) {
                w.entry++;
                FN(walk_enter)(&w, &a, gate, col, slot);
            }
        }
        if (round) {
            const i32 stage = (1 - now) * DSD_STAGE;
            UNROLL for (i32 k = 0; k < DSD_KC; k++)
            {
                R left[DSD_RM], right[DSD_RN];
                UNROLL for (i32 i = 0; i < DSD_RM; i++) left[i] =
                    pool[stage + k * DSD_SP + ty * DSD_RM + i];
                UNROLL for (i32 j = 0; j < DSD_RN; j++) right[j] =
                    pool[stage + DSD_KC * DSD_SP + k * DSD_BP + LANE_COLUMN(j, tx, DSD_TX)];
                UNROLL for (i32 i = 0; i < DSD_RM; i++) UNROLL for (i32 j = 0; j < DSD_RN; j++)
                    acc[i][j] = FMA(left[i], right[j], acc[i][j]);
            }
        }
        if (!more)
            break;
        const i32 stage = now * DSD_STAGE;
        UNROLL for (i32 e = 0; e < DSD_SE; e++)
        {
            const i32 k = a.s_along_k ? ALONG_K(e, DSD_KC) : ALONG_M_K(e);
            const i32 r = a.s_along_k ? ALONG_K_AT(e, DSD_KC) : ALONG_M(e);
            if (DSD_KC * TM >= LANES || LANE < DSD_KC * TM)
                pool[stage + k * DSD_SP + r] = scale * fetched_s[e];
        }
        if (a.b_along_n)
            UNROLL for (i32 e = 0; e < DSD_BE; e++)
                pool[stage + DSD_KC * DSD_SP + ALONG_N_K(e) * DSD_BP + ALONG_N(e)] = fetched_b[e];
        else
            UNROLL for (i32 e = 0; e < DSD_BE; e++)
                pool[stage + DSD_KC * DSD_SP + ALONG_K(e, DSD_KC) * DSD_BP +
                     ALONG_K_AT(e, DSD_KC)] = fetched_b[e];
        BARRIER();
    }

    /* Through local memory, so that neighbouring lanes store neighbouring elements: one row of
     * each lane at a time, or one column. */
    if (a.c_along_n) {
        UNROLL for (i32 i = 0; i < DSD_RM; i++)
        {
            BARRIER();
            UNROLL for (i32 j = 0; j < DSD_RN; j++) pool[ty * DSD_BP + LANE_COLUMN(j, tx, DSD_TX)] =
                acc[i][j];
            BARRIER();
            for (i32 x = LANE; x < DSD_TY * DSD_TN; x += LANES) {
                const i32 r = x / DSD_TN * DSD_RM + i, n = x % DSD_TN;
                if (r < rows && n < cols)
                    FN(dsd_store)
                (&a, c, bias, residual, row_scale, col_scale, m, row0 + r, n0 + n,
                 pool[x / DSD_TN * DSD_BP + n]);
            }
        }
    } else {
        UNROLL for (i32 j = 0; j < DSD_RN; j++)
        {
            BARRIER();
            UNROLL for (i32 i = 0; i < DSD_RM; i++) pool[tx * (TM + 1) + ty * DSD_RM + i] =
                acc[i][j];
            BARRIER();
            for (i32 x = LANE; x < DSD_TX * TM; x += LANES) {
                const i32 r = x % TM, n = LANE_COLUMN(j, x / TM, DSD_TX);
                if (r < rows && n < cols)
                    FN(dsd_store)
                (&a, c, bias, residual, row_scale, col_scale, m, row0 + r, n0 + n,
                 pool[x / TM * (TM + 1) + r]);
            }
        }
    }
}

KERNEL(FORMED(sdd), LANES)
(BUF(const T, left), BUF(const T, right), BUF(u8, s), BUF(R, parts), BUF(const R, gate),
 BUF(const i32, slot_row), BUF(const i32, slot_col), BUF(const i32, slot_head), const sdd_arg a)
{
    LOCAL R pool[SDD_POOL] ALIGNED;
    OPEN(const T, left);
    OPEN(const T, right);
    OPEN(u8, s);
    OPEN(R, parts);
    OPEN(const R, gate);
    OPEN(const i32, slot_row);
    OPEN(const i32, slot_col);
    OPEN(const i32, slot_head);

    const i32 tiles = a.tiles_m * a.tiles_n, tile = (i32)(GROUP(0) % tiles);
    const i64 slot = GROUP(0) / tiles % a.nnz;
    const i64 group = GROUP(0) / tiles / a.nnz % a.groups;
    const i64 split = GROUP(0) / tiles / a.nnz / a.groups;
    const R g = gate ? gate[slot] : 1;
    const i32 zero = a.gate_mode && g == 0; /* uniform in the group, as all that follows from it */
    if (zero && !a.direct && a.gate_mode == 1)
        return;

    const i32 in_row = tile / a.tiles_n * TM, in_col = tile % a.tiles_n * TM;
    const i64 row0 = (i64)slot_row[slot] * a.block_rows + in_row;
    const i64 col0 = (i64)slot_col[slot] * a.block_cols + in_col;
    const i64 rows_left = a.rows - row0, cols_left = a.cols - col0;
    const i32 rows = (i32)(rows_left < a.block_rows - in_row ? rows_left : a.block_rows - in_row);
    const i32 cols = (i32)(cols_left < a.block_cols - in_col ? cols_left : a.block_cols - in_col);
    const i32 slice = LANE / (SDD_TX * SDD_TY);
    const i32 ty = LANE % SDD_TY, tx = LANE / SDD_TY % SDD_TX;

    /* The chunks of this split, counted over the members of the batch. */
    const i64 chunks = (a.n + SDD_KC - 1) / SDD_KC, all = a.members * chunks;
    i64 chunk = all / a.splits * split + (all % a.splits) * split / a.splits;
    const i64 last = zero && a.direct
                         ? chunk
                         : all / a.splits * (split + 1) + (all % a.splits) * (split + 1) / a.splits;
    const i64 first = FN(sdd_first)(&a, group, slot_head ? slot_head[slot] : 0);

    R acc[SDD_RM][SDD_RN];
    UNROLL for (i32 i = 0; i < SDD_RM; i++) UNROLL for (i32 j = 0; j < SDD_RN; j++) acc[i][j] = 0;

    /* A lane's first element of a chunk, and the way to its next. */
    const i32 whole_tile = rows >= TM && cols >= TM;
    const i64 a_lane = a.a_along_k ? ALONG_K(0, SDD_KC) * a.a_k + ALONG_K_AT(0, SDD_KC) * a.a_row
                                   : ALONG_M_K(0) * a.a_k + ALONG_M(0) * a.a_row;
    const i64 b_lane = a.b_along_k ? ALONG_K(0, SDD_KC) * a.b_k + ALONG_K_AT(0, SDD_KC) * a.b_col
                                   : ALONG_M_K(0) * a.b_k + ALONG_M(0) * a.b_col;
    const i64 a_step = a.a_along_k ? LANES / SDD_KC * a.a_row : LANES / TM * a.a_k;
    const i64 b_step = a.b_along_k ? LANES / SDD_KC * a.b_col : LANES / TM * a.b_k;
    const i32 a_put = a.a_along_k ? ALONG_K(0, SDD_KC) * SDD_P + ALONG_K_AT(0, SDD_KC)
                                  : ALONG_M_K(0) * SDD_P + ALONG_M(0);
    const i32 b_put = a.b_along_k ? ALONG_K(0, SDD_KC) * SDD_P + ALONG_K_AT(0, SDD_KC)
                                  : ALONG_M_K(0) * SDD_P + ALONG_M(0);
    const i32 a_put_step = a.a_along_k ? LANES / SDD_KC : LANES / TM * SDD_P;
    const i32 b_put_step = a.b_along_k ? LANES / SDD_KC : LANES / TM * SDD_P;

    i64 k0 = chunks ? chunk % chunks * SDD_KC : 0;
    const i64 member = first + (chunks ? chunk / chunks : 0) * a.heads;
    const GLOBAL T *at = left + member * a.a_batch + row0 * a.a_row + k0 * a.a_k;
    const GLOBAL T *bt = right + member * a.b_batch + col0 * a.b_col + k0 * a.b_k;
    for (i32 round = 0;; round++, chunk++) {
        const i32 now = round & 1, more = chunk < last;
        R fetched_a[SDD_E], fetched_b[SDD_E];
        if (more) {
            const i64 k_left = a.n - k0;
            if (whole_tile && k_left >= SDD_KC) {
                const GLOBAL T *a_from = at + a_lane, *b_from = bt + b_lane;
                UNROLL for (i32 e = 0; e < SDD_E; e++)
                {
                    fetched_a[e] = LD(a_from, e * a_step);
                    fetched_b[e] = LD(b_from, e * b_step);
                }
            } else {
                UNROLL for (i32 e = 0; e < SDD_E; e++)
                {
                    i32 k = a.a_along_k ? ALONG_K(e, SDD_KC) : ALONG_M_K(e);
                    i32 r = a.a_along_k ? ALONG_K_AT(e, SDD_KC) : ALONG_M(e);
                    fetched_a[e] = fetched_b[e] = 0;
                    if (r < rows && k < k_left)
                        fetched_a[e] = LD(at, r * a.a_row + k * a.a_k);
                    k = a.b_along_k ? ALONG_K(e, SDD_KC) : ALONG_M_K(e);
                    r = a.b_along_k ? ALONG_K_AT(e, SDD_KC) : ALONG_M(e);
                    if (r < cols && k < k_left)
                        fetched_b[e] = LD(bt, r * a.b_col + k * a.b_k);
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
            const i32 stage = (1 - now) * SDD_STAGE;
            UNROLL for (i32 x = 0; x < SDD_KC / SDD_KS; x++)
            {
                const i32 k = x * SDD_KS + slice;
                R rows_of[SDD_RM], cols_of[SDD_RN];
                UNROLL for (i32 i = 0; i < SDD_RM; i++) rows_of[i] =
                    pool[stage + k * SDD_P + ty * SDD_RM + i];
                UNROLL for (i32 j = 0; j < SDD_RN; j++) cols_of[j] =
                    pool[stage + (SDD_KC + k) * SDD_P + LANE_COLUMN(j, tx, SDD_TX)];
                UNROLL for (i32 i = 0; i < SDD_RM; i++) UNROLL for (i32 j = 0; j < SDD_RN; j++)
                    acc[i][j] = FMA(rows_of[i], cols_of[j], acc[i][j]);
            }
        }
        if (!more)
            break;
        const i32 stage = now * SDD_STAGE;
        UNROLL for (i32 e = 0; e < SDD_E; e++)
        {
            pool[stage + a_put + e * a_put_step] = fetched_a[e];
            pool[stage + SDD_KC * SDD_P + b_put + e * b_put_step] = fetched_b[e];
        }
        BARRIER();
    }

    /* The slices add up in their order. */
    for (i32 turn = 0; turn < SDD_KS; turn++) {
        BARRIER();
        if (slice == turn)
            UNROLL for (i32 i = 0; i < SDD_RM; i++) UNROLL for (i32 j = 0; j < SDD_RN; j++)
            {
                const i32 x = (ty * SDD_RM + i) * TM + LANE_COLUMN(j, tx, SDD_TX);
                pool[x] = turn ? pool[x] + acc[i][j] : acc[i][j];
            }
    }
    BARRIER();
    for (i32 x = LANE; x < TM * TM; x += LANES) {
        const i32 r = x / TM, n = x % TM;
        if (r < rows && n < cols)
            FN(sdd_store)
        (&a, s, parts, split, group, slot, (i64)(in_row + r) * a.block_cols + in_col + n, g,
         pool[x]);
    }
}
