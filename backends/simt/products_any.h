/* What the products need beside the products themselves: the end of sdd, sums of columns, and the
 * block norms of reduced_wgrad. */

/* Adds up the partial results of a block of sdd. With dgate, one group sees the block in every
 * member of s, since their sums belong to one gate. */
KERNEL(sdd_finish, LANES)
(BUF(const R, parts), BUF(u8, s), BUF(const u8, w), BUF(const R, gate), BUF(R, dgate),
 BUF(const i32, slot_row), BUF(const i32, slot_col), const sdd_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const R, parts);
    OPEN(u8, s);
    OPEN(const u8, w);
    OPEN(const R, gate);
    OPEN(R, dgate);
    OPEN(const i32, slot_row);
    OPEN(const i32, slot_col);

    const i64 slot = GROUP(0) % a.nnz;
    const i64 first = dgate ? 0 : GROUP(0) / a.nnz, last = dgate ? a.groups : first + 1;
    const i64 block = (i64)a.block_rows * a.block_cols; /* at most 2^32 */
    const i64 rows = a.rows - (i64)slot_row[slot] * a.block_rows;
    const i64 cols = a.cols - (i64)slot_col[slot] * a.block_cols;
    const R g = gate ? gate[slot] : 1;
    const i32 zero = a.gate_mode && g == 0, skip = zero && a.gate_mode == 1;
    R dot = 0;

    for (i64 group = first; group < last; group++)
        for (i64 e = LANE; e < block; e += LANES) {
            const i64 row = (u32)e / (u32)a.block_cols, col = (u32)e % (u32)a.block_cols;
            if (row >= rows || col >= cols)
                continue;
            R sum = 0;
            if (!skip)
                for (i32 p = 0; p < a.splits; p++)
                    sum += parts[p * a.part + (group * a.nnz + slot) * block + e];
            if (dgate && !skip)
                dot += sum *
                       NAME(load_r)(SINGLE_TYPE(a.type), w, group * a.w_group + slot * block + e);
            const i64 at = group * a.s_group + slot * block + e;
            R v = zero ? 0 : NUM(a.alpha) * sum * (a.gate_mode == 2 ? g : 1);
            if (NUM(a.beta) != 0)
                v += NUM(a.beta) * NAME(load_r)(a.s_type, s, at);
            NAME(store_r)(a.s_type, s, at, v);
        }
    if (dgate) {
        dot = NAME(tree_sum)(scratch, LANE, LANES, dot);
        if (LANE == 0) {
            R v = NUM(a.alpha) * dot;
            if (NUM(a.beta) != 0)
                v += NUM(a.beta) * dgate[slot];
            dgate[slot] = v;
        }
    }
}

/* Sums of 32 columns over a share of n. The lanes are 4 x 32, with 32 along the contiguous axis. */
KERNEL(column_sums, LANES)(BUF(const u8, b), BUF(R, parts), const bsum_arg a)
{
    QUEUE_WAIT();
    LOCAL R sums[32][33];
    OPEN(const u8, b);
    OPEN(R, parts);
    const i64 tiles = (a.cols + 31) / 32, col0 = GROUP(0) % tiles * 32, split = GROUP(0) / tiles;
    const i64 first = a.n / a.splits * split + a.n % a.splits * split / a.splits;
    const i64 last = a.n / a.splits * (split + 1) + a.n % a.splits * (split + 1) / a.splits;
    const i32 x = LANE % 32, y = LANE / 32;
    const i32 own = a.along_k ? 8 : 1; /* columns of a lane */
    const i32 terms = a.along_k ? 32 : 4;

    for (i32 j = 0; j < own; j++) {
        const i32 in_tile = a.along_k ? y + 4 * j : x;
        R sum = 0;
        if (col0 + in_tile < a.cols)
            for (i64 m = 0; m < a.batch; m++)
                for (i64 k = first + (a.along_k ? x : y); k < last; k += terms)
                    sum += NAME(load_r)(SINGLE_TYPE(a.type), b,
                                        m * a.b_batch + k * a.b_k + (col0 + in_tile) * a.b_col);
        sums[in_tile][a.along_k ? x : y] = sum;
    }
    BARRIER();
    if (LANE < 32 && col0 + LANE < a.cols) {
        const i64 at = split * a.cols + col0 + LANE;
        R sum = a.accumulate ? parts[at] : 0;
        for (i32 t = 0; t < terms; t++)
            sum += sums[LANE][t];
        parts[at] = sum;
    }
}

/* out[i] = alpha * the sum of its partial results + beta * out[i]. */
KERNEL(parts_finish, LANES)(BUF(const R, parts), BUF(u8, out), const finish_arg a)
{
    QUEUE_WAIT();
    LOCAL R scratch[LANES];
    OPEN(const R, parts);
    OPEN(u8, out);
    const i32 own = LANES / a.ways; /* elements of the group */
    const i64 i = GROUP(0) * own + LANE % own, size = a.rows * a.cols;
    const R sum = NAME(shares_sum)(scratch, own, parts, a.splits, size, i);
    if (LANE >= own || i >= size)
        return;
    const i64 at = i / a.cols * a.row_stride + i % a.cols * a.col_stride;
    R v = NUM(a.alpha) * sum;
    if (NUM(a.beta) != 0)
        v += NUM(a.beta) * NAME(load_r)(a.type, out, at);
    NAME(store_r)(a.type, out, at, v);
}

/* The norm of each block of features of 32 rows: norms[block][n]. Four lanes share a row; tiles of
 * 32 x 32 come through local memory, so that loads follow the contiguous axis. */
KERNEL(block_norms, LANES)(BUF(const u8, x), BUF(R, norms), const norm_arg a)
{
    QUEUE_WAIT();
    LOCAL R tile[32][33];
    OPEN(const u8, x);
    OPEN(R, norms);
    const i64 tiles = (a.n + 31) / 32, n0 = GROUP(0) % tiles * 32, block = GROUP(0) / tiles;
    const i64 first = block * a.block;
    const i32 width = (i32)(a.features - first < a.block ? a.features - first : a.block);
    const i32 rows = (i32)(a.n - n0 < 32 ? a.n - n0 : 32);
    const i32 row = LANE / 4, part = LANE % 4;
    R max = 0, squares = 0;
#if SIMT_CODE != 1
    R large = 0, small = 0; /* squares beyond the range of f32, scaled */
    const R up = 1.2089258196146292e24f, down = 8.271806125530277e-25f; /* 2^80, 2^-80 */
#endif

    for (i32 f0 = 0; f0 < width; f0 += 32) {
        const i32 left = width - f0 < 32 ? width - f0 : 32;
        for (i32 e = LANE; e < 32 * left; e += LANES) {
            const i32 n = a.along_n ? e % 32 : e / left, f = a.along_n ? e / 32 : e % left;
            if (n < rows)
                tile[n][f] = NAME(load_r)(SINGLE_TYPE(a.type), x,
                                          (n0 + n) * a.x_n + (first + f0 + f) * a.x_feature);
        }
        BARRIER();
        for (i32 f = part; f < left && row < rows; f += 4) {
            const R v = MATH(fabs)(tile[row][f]);
            if (v > max || v != v)
                max = v;
#if SIMT_CODE == 1
            squares += v * v;
#else
            if (v > 1e12f)
                large += v * down * (v * down);
            else if (v < 1e-12f)
                small += v * up * (v * up);
            else
                squares += v * v;
#endif
        }
        BARRIER();
    }
    tile[row][part] = a.norm == 0 ? max : squares;
#if SIMT_CODE != 1
    tile[row][4 + part] = large;
    tile[row][8 + part] = small;
#endif
    BARRIER();
    if (LANE >= rows)
        return;
    if (a.norm == 0) {
        R v = tile[LANE][0];
        for (i32 p = 1; p < 4; p++)
            if (tile[LANE][p] > v || tile[LANE][p] != tile[LANE][p])
                v = tile[LANE][p];
        norms[block * a.n + n0 + LANE] = v;
        return;
    }
    squares = (tile[LANE][0] + tile[LANE][1]) + (tile[LANE][2] + tile[LANE][3]);
#if SIMT_CODE == 1
    norms[block * a.n + n0 + LANE] = MATH(sqrt)(squares);
#else
    large = (tile[LANE][4] + tile[LANE][5]) + (tile[LANE][6] + tile[LANE][7]);
    small = (tile[LANE][8] + tile[LANE][9]) + (tile[LANE][10] + tile[LANE][11]);
    norms[block * a.n + n0 + LANE] = large > 0 ? MATH(sqrt)(large + squares * down * down) * up
                                     : squares == 0 ? MATH(sqrt)(small) * down
                                                    : MATH(sqrt)(squares + small * down * down);
#endif
}

/* parts[split][i][j] = the sum over a share of n of left[i][n] * right[j][n], finite products only;
 * tiles of 8 x 16, one element a lane. */
KERNEL(norm_products, LANES)
(BUF(const R, left), BUF(const R, right), BUF(R, parts), const reduced_arg a)
{
    QUEUE_WAIT();
    LOCAL R left_tile[8][33], right_tile[16][33];
    OPEN(const R, left);
    OPEN(const R, right);
    OPEN(R, parts);
    const i64 tiles_n = (a.cols + 15) / 16, tiles = (a.rows + 7) / 8 * tiles_n;
    const i64 tile = GROUP(0) % tiles, split = GROUP(0) / tiles;
    const i64 row0 = tile / tiles_n * 8, col0 = tile % tiles_n * 16;
    const i64 first = a.n / a.splits * split + a.n % a.splits * split / a.splits;
    const i64 last = a.n / a.splits * (split + 1) + a.n % a.splits * (split + 1) / a.splits;
    const i32 i = LANE / 16, j = LANE % 16;
    R sum = 0;

    for (i64 n0 = first; n0 < last; n0 += 32) {
        for (i32 e = LANE; e < 24 * 32; e += LANES) {
            const i32 r = e / 32, k = e % 32;
            R v = 0;
            if (n0 + k < last && (r < 8 ? row0 + r < a.rows : col0 + r - 8 < a.cols))
                v = r < 8 ? left[(row0 + r) * a.n + n0 + k] : right[(col0 + r - 8) * a.n + n0 + k];
            if (r < 8)
                left_tile[r][k] = v;
            else
                right_tile[r - 8][k] = v;
        }
        BARRIER();
        for (i32 k = 0; k < 32; k++) {
            const R v = left_tile[i][k] * right_tile[j][k];
            sum += v - v == 0 ? v : 0;
        }
        BARRIER();
    }
    if (row0 + i < a.rows && col0 + j < a.cols) {
        const i64 at = (split * a.rows + row0 + i) * a.cols + col0 + j;
        parts[at] = a.accumulate ? parts[at] + sum : sum;
    }
}

#if SIMT_CODE == 2
/* y = x, times a scale if there is one, a quad of a lane at a time. */
KERNEL(widen, LANES)(BUF(const u8, x), BUF(const f32, scale), BUF(f32, y), const widen_arg a)
{
    QUEUE_WAIT();
    OPEN(const u8, x);
    OPEN(const f32, scale);
    OPEN(f32, y);
    const f32 by = scale ? scale[0] : 1;
    for (walk w = walk_start(a.lines, a.length, VEC); w.left > 0; walk_next(&w)) {
        const i64 first = w.run * VEC, member = w.row < a.member ? 0 : QUOTIENT(w.row, a.member);
        const i32 count = run_length(a.length, first, VEC);
        const GLOBAL u8 *from = x + member * a.batch + (w.row - member * a.member) * a.line + first;
        u32 word = 0;
        f32 v[VEC];
        if (a.vector && count == VEC)
            word = *(const GLOBAL u32 *)from;
        else
            for (i32 e = 0; e < count; e++)
                word |= (u32)from[e] << 8 * e;
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] = by * byte_number(a.type, word >> 8 * e & 0xffu);
        f32_store4(y + w.row * a.pitch + first, v);
    }
}
#endif
