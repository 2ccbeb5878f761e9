/* The products for CPUs behind OpenCL: one work item computes a tile, in strips of 8 rows and up to
 * 2 vectors whose sums stay in registers. Operands are in the type of the arithmetic. dsd broadcasts
 * the elements of S wherever they lie, and reads panels [depth][32] of b, for 32 columns of the
 * result each; sdd reads panels [n][block_rows] and [n][block_cols], one for each row and column of
 * blocks, and for blocks of 8 x 8 panels of pairs, [n / 2][8][2]. spread_wide copies the operands to
 * these forms. */

#ifndef V
#define WIDE_JOIN_(r) r##x16
#define WIDE_JOIN(r)  WIDE_JOIN_(r)
#define V             WIDE_JOIN(R)
#endif
#define WIDE_TYPE (SIMT_CODE == 1 ? 1 : 2) /* the code of R */
#define WIDE_TM   32                       /* rows of a tile */
#define DSD_TN    64                       /* columns of a tile */
#define WIDE_RM   8                        /* rows of a strip */
#define WIDE_RN   32                       /* its columns: 2 vectors */

/* `count` elements from p on, at most a vector; 0 beyond. */
DEVICE V FN(part_load)(const GLOBAL R *p, i32 count)
{
    V v = 0;
    R *part = (R *)&v;
    for (i32 j = 0; j < 16 && j < count; j++)
        part[j] = p[j];
    return v;
}

/* acc0, acc1 += gate * left right over `depth`: left is 8 rows that start where left[i] says, right
 * has `cols` columns. Constants for `cols` and `gate` leave what they need. */
DEVICE void FN(strip_add)(V *acc0, V *acc1, const GLOBAL R *const *left, i64 left_step,
                          const GLOBAL R *right, i64 right_step, i64 depth, i32 cols, R gate)
{
    for (i64 k = 0; k < depth; k++) {
        const GLOBAL R *row = right + k * right_step;
        const V r0 = gate * (cols < 16 ? FN(part_load)(row, cols) : WIDE_LOAD(V, row));
        V r1 = 0;
        if (cols > 16)
            r1 = gate * (cols < 32 ? FN(part_load)(row + 16, cols - 16) : WIDE_LOAD(V, row + 16));
        UNROLL
        for (i32 i = 0; i < WIDE_RM; i++) {
            const R x = left[i][k * left_step];
            acc0[i] += x * r0;
            if (cols > 16)
                acc1[i] += x * r1;
        }
    }
}

/* Asks for the first lines of a block of S that is `WIDE_AHEAD` further on in its list: where S lies the
 * other way, blocks of a list are far apart. By PoCL, whose own prefetch does nothing; Mesa's compiler
 * does not know clang's. */
#define WIDE_AHEAD 4

DEVICE void FN(block_fetch)(const GLOBAL R *p, i32 count)
{
#if defined(POCL_DEVICE_ADDRESS_BITS)
    for (i32 j = 0; j < count && j < 64; j += 16)
        __builtin_prefetch((const void *)(size_t)(p + j), 0, 3);
#endif
}

/* Rows of a strip that lie `step` apart; those beyond the last are the first again. */
#define STRIP_ROWS(left, from, step, count)                                                        \
    const GLOBAL R *left[WIDE_RM];                                                                 \
    UNROLL                                                                                         \
    for (i32 i = 0; i < WIDE_RM; i++)                                                              \
    left[i] = (from) + (i < (count) ? i : 0) * (step)

KERNEL(dsd_wide, LANES)(DSD_BUFFERS(R), const dsd_arg a)
{
    QUEUE_WAIT();
    DSD_OPEN(R);
    const i64 tiles = (i64)a.grid_rows * a.tiles_m;
    const i64 m = GROUP(0) / (tiles * a.tiles_n), tile = GROUP(0) % tiles;
    const dsd_list list = lists[m % a.heads * a.grid_rows + tile / a.tiles_m];
    const i64 in_block = tile % a.tiles_m * WIDE_TM;
    const i64 row0 = (i64)list.row * a.block_rows + in_block;
    const i64 n0 = GROUP(0) / tiles % a.tiles_n * DSD_TN;
    const i64 block_left = a.block_rows - in_block, rows_left = a.rows - row0;
    i32 rows = (i32)(rows_left < block_left ? rows_left : block_left);
    rows = rows < WIDE_TM ? rows : WIDE_TM;
    const i32 plain = !bias && !residual && !row_scale && !col_scale && !a.act &&
                      NUM(a.beta) == 0 && a.c_type == WIDE_TYPE;

    s += (a.groups > 1 ? m / a.heads : 0) * a.s_group + in_block * a.s_row;
    b += m * a.b_batch;
    for (i64 n = n0; n < n0 + DSD_TN && n < a.cols; n += WIDE_RN)
        for (i32 r = 0; r < rows; r += WIDE_RM) {
            const i32 strip = rows - r < WIDE_RM ? rows - r : WIDE_RM;
            const i32 cols = (i32)(a.cols - n < WIDE_RN ? a.cols - n : WIDE_RN);
            V acc0[WIDE_RM], acc1[WIDE_RM], sums[WIDE_RM * 2];
            UNROLL
            for (i32 i = 0; i < WIDE_RM; i++)
                acc0[i] = acc1[i] = 0;
            for (i32 e = list.first; e < list.last; e++) {
                const i64 k0 = (i64)col[e] * a.block_cols;
                const i64 width = a.depth - k0 < a.block_cols ? a.depth - k0 : a.block_cols;
                const GLOBAL R *right = b + k0 * a.b_row + n * a.b_col;
                STRIP_ROWS(left, s + slot[e] * a.s_block + r * a.s_row, a.s_row, strip);
                if (e + WIDE_AHEAD < list.last)
                    FN(block_fetch)
                (s + slot[e + WIDE_AHEAD] * a.s_block, a.block_rows * a.block_cols);
                if (gate && gate[slot[e]] == 0)
                    continue;
                if (gate || cols < WIDE_RN)
                    FN(strip_add)
                (acc0, acc1, left, a.s_col, right, a.b_row, width, cols, gate ? gate[slot[e]] : 1);
                else FN(strip_add)(acc0, acc1, left, a.s_col, right, a.b_row, width, WIDE_RN, 1);
            }
            UNROLL
            for (i32 i = 0; i < WIDE_RM; i++) {
                sums[2 * i] = acc0[i];
                sums[2 * i + 1] = acc1[i];
            }
            const R *sum = (const R *)sums;
            const i64 row = row0 + r;
            if (plain) {
                GLOBAL R *to = (GLOBAL R *)c + m * a.c_batch + row * a.c_row + n * a.c_col;
                if (a.c_along_n)
                    for (i32 i = 0; i < strip; i++)
                        for (i32 j = 0; j < cols; j++)
                            to[i * a.c_row + j] = NUM(a.alpha) * sum[i * WIDE_RN + j];
                else
                    for (i32 j = 0; j < cols; j++)
                        for (i32 i = 0; i < strip; i++)
                            to[i * a.c_row + j * a.c_col] = NUM(a.alpha) * sum[i * WIDE_RN + j];
                continue;
            }
            for (i32 x = 0; x < strip * cols; x++) {
                const i32 i = a.c_along_n ? x / cols : x % strip;
                const i32 j = a.c_along_n ? x % cols : x / strip;
                FN(dsd_store)
                (&a, c, bias, residual, row_scale, col_scale, m, row + i, n + j,
                 sum[i * WIDE_RN + j]);
            }
        }
}

/* The sums of an 8 x 8 tile, in which lanes in turn are of the first n of each pair and of the second:
 * the elements of the left panel are repeated by loads, without a shuffle. */
DEVICE void FN(eights_add)(V *acc, const GLOBAL R *left, const GLOBAL R *right, i64 count)
{
    for (i64 k = 0; k < count; k += 2) {
        const V r = WIDE_LOAD(V, right + k * 8);
        UNROLL
        for (i32 i = 0; i < 8; i++)
            acc[i] += WIDE_PAIRS(V, left + k * 8 + 2 * i) * r;
    }
}

KERNEL(sdd_wide, LANES)
(BUF(const R, a_rows), BUF(const R, b_rows), BUF(u8, s), BUF(R, parts), BUF(const R, gate),
 BUF(const sdd_block, blocks), const sdd_arg a)
{
    QUEUE_WAIT();
    OPEN(const R, a_rows);
    OPEN(const R, b_rows);
    OPEN(u8, s);
    OPEN(R, parts);
    OPEN(const R, gate);
    OPEN(const sdd_block, blocks);

    const i32 tiles = a.tiles_m * a.tiles_n, tile = (i32)(GROUP(0) % tiles);
    const sdd_block block = blocks[GROUP(0) / tiles % a.nnz];
    const i64 slot = block.slot;
    const i64 group = GROUP(0) / tiles / a.nnz % a.groups;
    const i64 split = GROUP(0) / tiles / a.nnz / a.groups;
    const R g = gate ? gate[slot] : 1;
    const i32 in_row = tile / a.tiles_n * WIDE_TM, in_col = tile % a.tiles_n * WIDE_TM;
    const i64 row0 = (i64)block.row * a.block_rows, col0 = (i64)block.col * a.block_cols;
    i32 rows = (i32)(a.rows - row0 < a.block_rows ? a.rows - row0 : a.block_rows) - in_row;
    i32 cols = (i32)(a.cols - col0 < a.block_cols ? a.cols - col0 : a.block_cols) - in_col;
    rows = rows < WIDE_TM ? rows : WIDE_TM;
    cols = cols < WIDE_TM ? cols : WIDE_TM;
    const i32 eights = a.block_rows == 8 && a.block_cols == 8;
    const i32 plain = a.direct && !a.gate_mode && NUM(a.beta) == 0 && a.s_type == WIDE_TYPE;
    const i64 first = FN(sdd_first)(&a, group, block.head);
    const i64 unit = eights ? 2 : 1, units = (a.n + unit - 1) / unit;
    const i64 begin = unit * (units / a.splits * split + units % a.splits * split / a.splits);
    i64 end = unit * (units / a.splits * (split + 1) + units % a.splits * (split + 1) / a.splits);

    if (a.gate_mode == 1 && g == 0 && !a.direct)
        return;
    if (a.gate_mode && g == 0 && a.direct)
        end = begin;
    for (i32 r = 0; r < rows; r += WIDE_RM) {
        const i32 strip = rows - r < WIDE_RM ? rows - r : WIDE_RM;
        V acc0[WIDE_RM], acc1[WIDE_RM], sums[WIDE_RM * 2];
        UNROLL
        for (i32 i = 0; i < WIDE_RM; i++)
            acc0[i] = acc1[i] = 0;
        for (i64 m = 0; m < a.members; m++) {
            const i64 member = first + m * a.heads;
            const GLOBAL R *at =
                a_rows + member * a.a_batch + row0 * a.a_row + begin * a.a_k + in_row + r;
            const GLOBAL R *bt =
                b_rows + member * a.b_batch + col0 * a.b_col + begin * a.b_k + in_col;
            STRIP_ROWS(left, at, 1, strip);
            if (eights)
                FN(eights_add)(acc0, at, bt, end - begin);
            else if (cols == WIDE_RN)
                FN(strip_add)(acc0, acc1, left, a.a_k, bt, a.b_k, end - begin, WIDE_RN, 1);
            else if (cols == 16)
                FN(strip_add)(acc0, acc1, left, a.a_k, bt, a.b_k, end - begin, 16, 1);
            else
                FN(strip_add)(acc0, acc1, left, a.a_k, bt, a.b_k, end - begin, cols, 1);
        }
        UNROLL
        for (i32 i = 0; i < WIDE_RM; i++) {
            sums[2 * i] = acc0[i];
            sums[2 * i + 1] = acc1[i];
        }
        R *sum = (R *)sums;
        if (eights)
            for (i32 x = 0; x < 64; x++) {
                const R *pair = sum + x / 8 * WIDE_RN + x % 8 * 2;
                sum[x / 8 * WIDE_RN + x % 8] = pair[0] + pair[1];
            }
        if (plain) {
            GLOBAL R *to = (GLOBAL R *)s + group * a.s_group + slot * a.block_rows * a.block_cols +
                           (i64)(in_row + r) * a.block_cols + in_col;
            for (i32 i = 0; i < strip; i++)
                for (i32 j = 0; j < cols; j++)
                    to[i * a.block_cols + j] = NUM(a.alpha) * sum[i * WIDE_RN + j];
            continue;
        }
        for (i32 i = 0; i < strip; i++)
            for (i32 j = 0; j < cols; j++) {
                const i64 element = (i64)(in_row + r + i) * a.block_cols + in_col + j;
                FN(sdd_store)(&a, s, parts, split, group, slot, element, g, sum[i * WIDE_RN + j]);
            }
    }
}

/* Copies a tile: row r and column c to to[r * panel + c], or with pairs of rows, whose second is 0
 * after the last, to to[(r / 2 * panel + c) * 2 + r % 2]. */
DEVICE void FN(spread_tile)(const spread_arg *a, const GLOBAL u8 *from, i64 first, GLOBAL R *to,
                            i32 rows, i32 cols, i32 pairs)
{
    const i32 type = SINGLE_TYPE(a->type), wide = pairs ? 2 : 1;
    const i64 panel = a->panel;
    for (i32 r = 0; a->row_stride == 1 && r + 8 <= rows; r += 8)
        for (i32 c = 0; c < cols; c++)
            UNROLL
    for (i32 i = 0; i < 8; i++)
        to[(r + i) / wide * wide * panel + c * wide + i % wide] =
            NAME(load_r)(type, from, first + r + i + c * a->col_stride);
    for (i32 r = a->row_stride == 1 ? rows / 8 * 8 : 0; r < rows; r++)
        for (i32 c = 0; c < cols; c++)
            to[r / wide * wide * panel + c * wide + r % wide] =
                NAME(load_r)(type, from, first + r * a->row_stride + c * a->col_stride);
    for (i32 c = 0; rows % wide && c < cols; c++)
        to[rows / 2 * 2 * panel + c * 2 + 1] = 0;
}

/* to[m] = from, in the type of the arithmetic and by panels of columns; tiles of up to 32 x 32. */
KERNEL(spread_wide, LANES)(BUF(const u8, from), BUF(R, to), const spread_arg a)
{
    QUEUE_WAIT();
    OPEN(const u8, from);
    OPEN(R, to);
    const i64 across = (a.panel + 31) / 32, panels = (a.cols + a.panel - 1) / a.panel;
    const i64 down = (a.rows + 31) / 32, m = GROUP(0) / (across * panels * down);
    const i64 panel = GROUP(0) / across % panels, in_panel = GROUP(0) % across * 32;
    const i64 row0 = GROUP(0) / (across * panels) % down * 32, col0 = panel * a.panel + in_panel;
    const i64 own = a.panel - in_panel, cols_left = a.cols - col0;
    const i32 rows = (i32)(a.rows - row0 < 32 ? a.rows - row0 : 32);
    const i32 width = (i32)(own < 32 ? own : 32);
    const i32 cols = cols_left < width ? (i32)cols_left : width;
    const i64 first = m / a.inner * a.outer_stride + m % a.inner * a.inner_stride +
                      row0 * a.row_stride + col0 * a.col_stride;
    const i64 all_rows = a.pairs ? (a.rows + 1) / 2 * 2 : a.rows;
    to += ((m * panels + panel) * all_rows + row0) * a.panel + in_panel;
    if (a.pairs)
        FN(spread_tile)(&a, from, first, to, rows, cols, 1);
    else
        FN(spread_tile)(&a, from, first, to, rows, cols, 0);
}
