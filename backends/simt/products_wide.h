/* The products for CPUs behind OpenCL: one work item computes a tile with vectors, and what it
 * walks over repeatedly lies packed in private memory. Operands are in the type of the arithmetic,
 * and contiguous along the result's columns: spread_wide makes them so. */

#ifndef V
#define WIDE_JOIN_(r) r##x16
#define WIDE_JOIN(r)  WIDE_JOIN_(r)
#define V             WIDE_JOIN(R)
#endif
#define WIDE_TM 32 /* rows of a tile */
#define WIDE_KC 32 /* depth of a packed chunk */
#define WIDE_RM 8  /* rows of the part of a tile that stays in registers, 2 vectors wide */
#define DSD_NV  4  /* vectors in a row of a tile */
#define SDD_NV  2

/* `count` elements from p on, as vectors; 0 beyond. */
DEVICE void FN(row_pack)(V *to, i32 vectors, const GLOBAL R *p, i64 count)
{
    for (i32 v = 0; v < vectors; v++)
        if (count >= (v + 1) * 16) {
            to[v] = WIDE_LOAD(V, p + v * 16);
        } else {
            R *part = (R *)(to + v);
            for (i32 j = 0; j < 16; j++)
                part[j] = v * 16 + j < count ? p[v * 16 + j] : 0;
        }
}

/* acc += left right for 8 rows and 2 vectors; acc's rows are `stride` vectors apart. */
DEVICE void FN(tile_add)(V *acc, i32 stride, const R *left, const V *right, i32 right_stride,
                         i32 depth)
{
    V c0[WIDE_RM], c1[WIDE_RM];
    UNROLL
    for (i32 i = 0; i < WIDE_RM; i++) {
        c0[i] = acc[i * stride];
        c1[i] = acc[i * stride + 1];
    }
    for (i32 k = 0; k < depth; k++) {
        const V r0 = right[k * right_stride], r1 = right[k * right_stride + 1];
        UNROLL
        for (i32 i = 0; i < WIDE_RM; i++) {
            c0[i] += left[k * WIDE_TM + i] * r0;
            c1[i] += left[k * WIDE_TM + i] * r1;
        }
    }
    UNROLL
    for (i32 i = 0; i < WIDE_RM; i++) {
        acc[i * stride] = c0[i];
        acc[i * stride + 1] = c1[i];
    }
}

KERNEL(dsd_wide, LANES)(DSD_BUFFERS(R), const dsd_arg a)
{
    DSD_OPEN(R);
    V acc[WIDE_TM * DSD_NV], right[WIDE_KC * DSD_NV];
    R left[WIDE_KC * WIDE_TM];

    const i64 tiles = (i64)a.grid_rows * a.tiles_m;
    const i64 m = GROUP(0) / (tiles * a.tiles_n), tile = GROUP(0) % tiles;
    const i64 block_row = tile / a.tiles_m, in_block = tile % a.tiles_m * WIDE_TM;
    const i64 row0 = block_row * a.block_rows + in_block;
    const i64 n0 = GROUP(0) / tiles % a.tiles_n * (DSD_NV * 16);
    const i64 block_left = a.block_rows - in_block, rows_left = a.rows - row0;
    i32 rows = (i32)(rows_left < block_left ? rows_left : block_left);
    rows = rows < WIDE_TM ? rows : WIDE_TM;
    const i32 cols = (i32)(a.cols - n0 < DSD_NV * 16 ? a.cols - n0 : DSD_NV * 16);
    const GLOBAL i64 *range = start + m % a.heads * (a.grid_rows + 1) + block_row;

    s += (a.groups > 1 ? m / a.heads : 0) * a.s_group + in_block * a.s_row;
    b += m * a.b_batch + n0;
    for (i32 x = 0; x < WIDE_TM * DSD_NV; x++)
        acc[x] = 0;
    for (i32 x = 0; x < WIDE_KC * WIDE_TM; x++)
        left[x] = 0;
    for (i64 e = range[0]; e < range[1]; e++) {
        const R g = gate ? gate[slot[e]] : 1;
        const i64 k0 = (i64)col[e] * a.block_cols;
        const i64 width = a.depth - k0 < a.block_cols ? a.depth - k0 : a.block_cols;
        const GLOBAL R *from = s + slot[e] * a.s_block;
        if (g == 0)
            continue;
        for (i64 k1 = 0; k1 < width; k1 += WIDE_KC) {
            const i32 depth = (i32)(width - k1 < WIDE_KC ? width - k1 : WIDE_KC);
            for (i32 k = 0; k < depth; k++) {
                FN(row_pack)(right + k * DSD_NV, DSD_NV, b + (k0 + k1 + k) * a.b_row, cols);
                for (i32 r = 0; r < rows; r++)
                    left[k * WIDE_TM + r] = g * from[(k1 + k) * a.s_col + r];
            }
            for (i32 r = 0; r < rows; r += WIDE_RM)
                for (i32 v = 0; v * 16 < cols; v += 2)
                    FN(tile_add)(acc + r * DSD_NV + v, DSD_NV, left + r, right + v, DSD_NV, depth);
        }
    }
    const R *sums = (const R *)acc;
    if (a.c_along_n)
        for (i32 r = 0; r < rows; r++)
            for (i32 n = 0; n < cols; n++)
                FN(dsd_store)
    (&a, c, bias, residual, row_scale, col_scale, m, row0 + r, n0 + n, sums[r * DSD_NV * 16 + n]);
    else for (i32 n = 0; n < cols; n++) for (i32 r = 0; r < rows; r++)
        FN(dsd_store)(&a, c, bias, residual, row_scale, col_scale, m, row0 + r, n0 + n,
                      sums[r * DSD_NV * 16 + n]);
}

KERNEL(sdd_wide, LANES)
(BUF(const R, a_rows), BUF(const R, b_rows), BUF(u8, s), BUF(R, parts), BUF(const R, gate),
 BUF(const i32, slot_row), BUF(const i32, slot_col), BUF(const i32, slot_head), const sdd_arg a)
{
    OPEN(const R, a_rows);
    OPEN(const R, b_rows);
    OPEN(u8, s);
    OPEN(R, parts);
    OPEN(const R, gate);
    OPEN(const i32, slot_row);
    OPEN(const i32, slot_col);
    OPEN(const i32, slot_head);
    V acc[WIDE_TM * SDD_NV], right[WIDE_KC * SDD_NV];
    V left[WIDE_KC * SDD_NV]; /* rows, as many as columns */

    const i32 tiles = a.tiles_m * a.tiles_n, tile = (i32)(GROUP(0) % tiles);
    const i64 slot = GROUP(0) / tiles % a.nnz;
    const i64 group = GROUP(0) / tiles / a.nnz % a.groups;
    const i64 split = GROUP(0) / tiles / a.nnz / a.groups;
    const R g = gate ? gate[slot] : 1;
    const i32 in_row = tile / a.tiles_n * WIDE_TM, in_col = tile % a.tiles_n * WIDE_TM;
    const i64 row0 = (i64)slot_row[slot] * a.block_rows + in_row;
    const i64 col0 = (i64)slot_col[slot] * a.block_cols + in_col;
    const i64 rows_left = a.rows - row0, cols_left = a.cols - col0;
    i32 rows = (i32)(rows_left < a.block_rows - in_row ? rows_left : a.block_rows - in_row);
    i32 cols = (i32)(cols_left < a.block_cols - in_col ? cols_left : a.block_cols - in_col);
    rows = rows < WIDE_TM ? rows : WIDE_TM;
    cols = cols < WIDE_TM ? cols : WIDE_TM;
    const i64 first = FN(sdd_first)(&a, group, slot_head ? slot_head[slot] : 0);
    const i64 begin = a.n / a.splits * split + a.n % a.splits * split / a.splits;
    i64 end = a.n / a.splits * (split + 1) + a.n % a.splits * (split + 1) / a.splits;

    if (a.gate_mode && g == 0 && (a.direct || a.gate_mode == 1))
        end = begin;
    for (i32 x = 0; x < WIDE_TM * SDD_NV; x++)
        acc[x] = 0;
    for (i64 m = 0; m < a.members; m++) {
        const GLOBAL R *at = a_rows + (first + m * a.heads) * a.a_batch + row0;
        const GLOBAL R *bt = b_rows + (first + m * a.heads) * a.b_batch + col0;
        for (i64 k0 = begin; k0 < end; k0 += WIDE_KC) {
            const i32 depth = (i32)(end - k0 < WIDE_KC ? end - k0 : WIDE_KC);
            for (i32 k = 0; k < depth; k++) {
                FN(row_pack)(left + k * SDD_NV, SDD_NV, at + (k0 + k) * a.a_k, rows);
                FN(row_pack)(right + k * SDD_NV, SDD_NV, bt + (k0 + k) * a.b_k, cols);
            }
            for (i32 r = 0; r < rows; r += WIDE_RM)
                FN(tile_add)(acc + r * SDD_NV, SDD_NV, (const R *)left + r, right, SDD_NV, depth);
        }
    }
    if (a.gate_mode == 1 && g == 0 && !a.direct)
        return;
    const R *sums = (const R *)acc;
    for (i32 r = 0; r < rows; r++)
        for (i32 n = 0; n < cols; n++)
            FN(sdd_store)
    (&a, s, parts, split, group, slot, (i64)(in_row + r) * a.block_cols + in_col + n, g,
     sums[r * SDD_NV * 16 + n]);
}

/* to[m][r][c] = from, in the type of the arithmetic and without gaps: tiles of 32 x 32. */
KERNEL(spread_wide, LANES)(BUF(const T, from), BUF(R, to), const spread_arg a)
{
    OPEN(const T, from);
    OPEN(R, to);
    const i64 tiles_n = (a.cols + 31) / 32, tiles = (a.rows + 31) / 32 * tiles_n;
    const i64 m = GROUP(0) / tiles, tile = GROUP(0) % tiles;
    const i64 row0 = tile / tiles_n * 32, col0 = tile % tiles_n * 32;
    const i32 rows = (i32)(a.rows - row0 < 32 ? a.rows - row0 : 32);
    const i32 cols = (i32)(a.cols - col0 < 32 ? a.cols - col0 : 32);
    from += m / a.inner * a.outer_stride + m % a.inner * a.inner_stride + row0 * a.row_stride +
            col0 * a.col_stride;
    to += (m * a.rows + row0) * a.cols + col0;
    if (a.row_stride == 1)
        for (i32 c = 0; c < cols; c++)
            for (i32 r = 0; r < rows; r++)
                to[r * a.cols + c] = LD(from, r + c * a.col_stride);
    else
        for (i32 r = 0; r < rows; r++)
            for (i32 c = 0; c < cols; c++)
                to[r * a.cols + c] = LD(from, r * a.row_stride + c * a.col_stride);
}
