/* Kernels of embedding, block_gather and embedding_grad, for the type that type.h set. */

KERNEL(embedding, LANES)
(BUF(const T, table), BUF(const u8, index), BUF(u8, y), const embedding_arg a)
{
    QUEUE_WAIT();
    OPEN(const T, table);
    OPEN(const u8, index);
    OPEN(u8, y);
    walk w = walk_start(a.rows, a.cols, VEC);
    while (w.left > 0) {
        R v[UNDERWAY][VEC];
        walk at[UNDERWAY];
        UNROLL
        for (i32 u = 0; u < UNDERWAY; u++) {
            at[u] = w;
            if (w.left > 0) {
                const i64 col = w.run * VEC, from = load_index(a.index_type, index, w.row);
                const i32 inside = from >= 0 && from < a.table_rows;
                NAME(load_part)
                (HALF_TYPE(a.table_type), table,
                 (inside ? from * a.table_row : 0) + col * a.table_col, a.table_col,
                 inside ? run_length(a.cols, col, VEC) : 0, a.vector, v[u]);
            }
            walk_next(&w);
        }
        UNROLL
        for (i32 u = 0; u < UNDERWAY; u++)
            if (at[u].left > 0) {
                const i64 col = at[u].run * VEC;
                NAME(store_part)
                (a.y_type, y, at[u].row * a.y_row + col * a.y_col, a.y_col,
                 run_length(a.cols, col, VEC), a.vector, v[u]);
            }
    }
}

/* Blocks and rows as they are: the bits move unchanged. */
KERNEL(copy_rows, LANES)
(BUF(const T, table), BUF(const u8, index), BUF(T, y), const embedding_arg a)
{
    QUEUE_WAIT();
    OPEN(const T, table);
    OPEN(const u8, index);
    OPEN(T, y);
    walk w = walk_start(a.rows, a.cols, VEC);
    NO_UNROLL
    for (; w.left > 0; walk_next(&w)) {
        const i64 col = w.run * VEC, from = load_index(a.index_type, index, w.row);
        const i32 inside = from >= 0 && from < a.table_rows;
        const i32 count = run_length(a.cols, col, VEC);
        const i64 x_at = (inside ? from * a.table_row : 0) + col * a.table_col;
        const i64 y_at = w.row * a.y_row + col * a.y_col;
#if LANES > 1
        if (a.vector && count == VEC) {
            u32x4 q = {0, 0, 0, 0};
            if (inside)
                q = *(const GLOBAL u32x4 *)(table + x_at);
            u32x4_stream((GLOBAL u32x4 *)(y + y_at), q);
            continue;
        }
#endif
        for (i32 e = 0; e < count; e++)
            y[y_at + e * a.y_col] = inside ? table[x_at + e * a.table_col] : 0;
    }
}

#if SIMT_CODE == 4
/* The same for types of one byte, which have no kernels of their own. */
KERNEL(copy_bytes, LANES)
(BUF(const u8, table), BUF(const u8, index), BUF(u8, y), const embedding_arg a)
{
    QUEUE_WAIT();
    OPEN(const u8, table);
    OPEN(const u8, index);
    OPEN(u8, y);
    walk w = walk_start(a.rows, a.cols, COPY_BYTES);
    NO_UNROLL
    for (; w.left > 0; walk_next(&w)) {
        const i64 col = w.run * COPY_BYTES, from = load_index(a.index_type, index, w.row);
        const i32 inside = from >= 0 && from < a.table_rows;
        const i32 count = run_length(a.cols, col, COPY_BYTES);
        const i64 x_at = (inside ? from * a.table_row : 0) + col, y_at = w.row * a.y_row + col;
#if LANES > 1
        if (a.vector) {
            u32x4 q = {0, 0, 0, 0};
            if (inside)
                q = *(const GLOBAL u32x4 *)(table + x_at);
            u32x4_stream((GLOBAL u32x4 *)(y + y_at), q);
            continue;
        }
#endif
        for (i32 e = 0; e < count; e++)
            y[y_at + e] = inside ? table[x_at + e] : 0;
    }
}
#endif

#if LANES > 1
/* Rows of whole aligned runs as they are, slice by slice of the table, so that the slice that groups
 * are at stays in the cache. Group (i, j): lanes_run runs from j * lanes_run on, share i of the
 * rows. */
KERNEL(copy_slices, LANES)
(BUF(const T, table), BUF(const u8, index), BUF(T, y), const embedding_arg a)
{
    QUEUE_WAIT();
    OPEN(const T, table);
    OPEN(const u8, index);
    OPEN(T, y);
    const i64 down = LANES / a.lanes_run, col = (GROUP(1) * a.lanes_run + LANE % a.lanes_run) * VEC;
    const i64 row = GROUP(0) * COPY_ROWS * down + LANE / a.lanes_run;
    i64 from[COPY_ROWS];
    u32x4 q[COPY_ROWS];
    UNROLL
    for (i32 u = 0; u < COPY_ROWS; u++) {
        from[u] = -1;
        if (row + u * down < a.rows && col < a.cols)
            from[u] = load_index(a.index_type, index, row + u * down);
    }
    UNROLL
    for (i32 u = 0; u < COPY_ROWS; u++) {
        q[u].x = q[u].y = q[u].z = q[u].w = 0;
        if (from[u] >= 0 && from[u] < a.table_rows)
            q[u] = *(const GLOBAL u32x4 *)(table + from[u] * a.table_row + col);
    }
    UNROLL
    for (i32 u = 0; u < COPY_ROWS; u++)
        if (row + u * down < a.rows && col < a.cols)
            u32x4_stream((GLOBAL u32x4 *)(y + (row + u * down) * a.y_row + col), q[u]);
}
#endif

/* ====================================================================== embedding_grad ==== */

DEVICE i32 NAME(sort_key)(const sort_arg *a, const GLOBAL u8 *index, const GLOBAL i32 *keys, i64 i)
{
    if (!a->first)
        return keys[i];
    const i64 row = load_index(a->index_type, index, i);
    return (i32)(row >= 0 && row < a->table_rows ? row : a->table_rows);
}

/* Digits of the tile that starts at position `first`; SORT_DIGITS past the end. */
DEVICE void NAME(sort_tile)(const sort_arg *a, const GLOBAL u8 *index, const GLOBAL i32 *keys,
                            i64 first, LOCAL_ARG i32 *tile)
{
    for (i32 l = LANE; l < SORT_TILE; l += LANES)
        tile[l] = first + l < a->count
                      ? NAME(sort_key)(a, index, keys, first + l) >> a->shift & (SORT_DIGITS - 1)
                      : SORT_DIGITS;
}

/* How many of the first `count` digits of a tile are `digit`. */
DEVICE i32 NAME(sort_matches)(const LOCAL_ARG i32 *tile, i32 count, i32 digit)
{
    i32 sum = 0;
    for (i32 l = 0; l < count; l += 16) {
        UNROLL
        for (i32 u = 0; u < 16; u++)
            sum += l + u < count && tile[l + u] == digit;
    }
    return sum;
}

KERNEL(sort_count, LANES)
(BUF(const u8, index), BUF(const i32, keys), BUF(i32, counts), const sort_arg a)
{
    QUEUE_WAIT();
    LOCAL i32 tile[SORT_TILE];
    LOCAL i32 sum[SORT_DIGITS];
    OPEN(const u8, index);
    OPEN(const i32, keys);
    OPEN(i32, counts);
    for (i32 d = LANE; d < SORT_DIGITS; d += LANES)
        sum[d] = 0;
    for (i32 t = 0; t < a.tiles; t++) {
        NAME(sort_tile)(&a, index, keys, (GROUP(0) * a.tiles + t) * SORT_TILE, tile);
        SYNC();
        for (i32 d = LANE; d < SORT_DIGITS; d += LANES)
            sum[d] += NAME(sort_matches)(tile, SORT_TILE, d);
        SYNC();
    }
    for (i32 d = LANE; d < SORT_DIGITS; d += LANES)
        counts[GROUP(0) * SORT_DIGITS + d] = sum[d];
}

/* How often digit d occurs in all chunks, and in those before `chunk`. */
DEVICE i32 NAME(sort_before)(const GLOBAL i32 *counts, i32 chunks, i32 chunk, i32 d, i32 *before)
{
    i32 sum = 0, first = 0;
    for (i32 c = 0; c < chunks; c += 32) {
        i32 count[32];
        UNROLL
        for (i32 u = 0; u < 32; u++)
            count[u] = c + u < chunks ? counts[(c + u) * SORT_DIGITS + d] : 0;
        UNROLL
        for (i32 u = 0; u < 32; u++) {
            sum += count[u];
            first += c + u < chunk ? count[u] : 0;
        }
    }
    *before = first;
    return sum;
}

/* Positions: digit by digit, within a digit chunk by chunk. */
KERNEL(sort_move, LANES)
(BUF(const u8, index), BUF(const i32, keys), BUF(const i32, values), BUF(const i32, counts),
 BUF(i32, keys_out), BUF(i32, values_out), const sort_arg a)
{
    QUEUE_WAIT();
    LOCAL i32 tile[SORT_TILE];
    LOCAL i32 next[SORT_DIGITS];
    OPEN(const u8, index);
    OPEN(const i32, keys);
    OPEN(const i32, values);
    OPEN(const i32, counts);
    OPEN(i32, keys_out);
    OPEN(i32, values_out);
    const i32 chunk = (i32)GROUP(0);
#if LANES == 1
    for (i32 d = 0, start = 0; d < SORT_DIGITS; d++) {
        i32 before;
        const i32 sum = NAME(sort_before)(counts, a.chunks, chunk, d, &before);
        next[d] = start + before;
        start += sum;
    }
#else
    i32 before;
    const i32 own = NAME(sort_before)(counts, a.chunks, chunk, LANE, &before);
    i32 sum = own; /* becomes that of all digits up to this one */
    tile[LANE] = sum;
    SYNC();
    for (i32 step = 1; step < SORT_DIGITS; step *= 2) {
        sum += LANE >= step ? tile[LANE - step] : 0;
        SYNC();
        tile[LANE] = sum;
        SYNC();
    }
    next[LANE] = sum - own + before;
#endif
    for (i32 t = 0; t < a.tiles; t++) {
        const i64 first = (GROUP(0) * a.tiles + t) * SORT_TILE;
        SYNC();
        NAME(sort_tile)(&a, index, keys, first, tile);
        SYNC();
        for (i32 l = LANE; l < SORT_TILE && first + l < a.count; l += LANES) {
            const i32 to = next[tile[l]] + NAME(sort_matches)(tile, l, tile[l]);
            keys_out[to] = NAME(sort_key)(&a, index, keys, first + l);
            values_out[to] = a.first ? (i32)(first + l) : values[first + l];
        }
        SYNC();
        for (i32 d = LANE; t + 1 < a.tiles && d < SORT_DIGITS; d += LANES)
            next[d] += NAME(sort_matches)(tile, SORT_TILE, d);
    }
}

/* start[v]: the first position of the sorted keys that is not below v, v = 0 .. rows. */
KERNEL(embedding_starts, LANES)
(BUF(const i32, keys), BUF(i32, start), const embedding_grad_arg a)
{
    QUEUE_WAIT();
    OPEN(const i32, keys);
    OPEN(i32, start);
    for (walk w = walk_start(a.rows + 1, 1, 1); w.left > 0; walk_next(&w)) {
        i64 low = 0, high = a.count;
        while (low < high) { /* sixteen places at a time, since one costs as much */
            const i64 step = (high - low + 15) / 16;
            i32 below = 0;
            UNROLL
            for (i32 k = 1; k <= 16; k++)
                below += low + k * step <= high && keys[low + k * step - 1] < w.row;
            const i64 end = low + (below + 1) * step - 1;
            low += below * step;
            high = end < high ? end : high;
        }
        start[w.row] = (i32)low;
    }
}

/* The rows of dy at positions first .. last - 1 of the sorted list, as many as `ways`. */
DEVICE void NAME(embedding_rows)(const GLOBAL i32 *values, i64 first, i64 last, i32 ways, i32 *rows)
{
    UNROLL
    for (i32 u = 0; u < ways; u++)
        rows[u] = first + u < last ? values[first + u] : 0;
}

/* Adds dy over positions first .. last - 1 of the sorted list, in that order; `ways` (8 at most) are
 * under way. */
DEVICE void NAME(embedding_add)(const embedding_grad_arg *a, const GLOBAL u8 *dy,
                                const GLOBAL i32 *values, i64 first, i64 last, i64 col, i32 ways,
                                R *sum)
{
    const i32 count = run_length(a->cols, col, VEC);
    i64 p = first;
    i32 rows[8];
    if (a->packed)
        NAME(embedding_rows)(values, p, last, ways, rows);
    NO_UNROLL
    for (; a->packed && p < last; p += ways) {
        RAW q[8];
        UNROLL
        for (i32 u = 0; u < ways; u++)
            if (p + u < last)
                q[u] = NAME(load_raw)(a->dy_type,
                                      (const GLOBAL T *)dy + (i64)rows[u] * a->dy_row + col);
        NAME(embedding_rows)(values, p + ways, last, ways, rows);
        UNROLL
        for (i32 u = 0; u < ways; u++)
            if (p + u < last)
                NAME(add_raw)(a->dy_type, q[u], sum);
    }
    NO_UNROLL
    for (; p < last; p++) {
        R v[VEC];
        NAME(load_part)
        (a->dy_type, dy, (i64)values[p] * a->dy_row + col, 1, count, a->dy_vector, v);
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            sum[e] += v[e];
    }
}

/* Partial sums under way. */
#undef JOIN_WAYS
#define JOIN_WAYS (16 / VEC)

/* Adds the partial sums of a table row that occurs at first .. last - 1. The first part may
 * hold other rows: then this one is its last. */
DEVICE void NAME(embedding_join)(const embedding_grad_arg *a, const GLOBAL R *partial, i64 first,
                                 i64 last, i64 col, R *sum)
{
    const i32 count = run_length(a->cols, col, VEC);
    const i64 p = first / PART_COUNT, slot = 2 * p + (first % PART_COUNT != 0);
    const i64 parts = (last - 1) / PART_COUNT - p + 1;
    NO_UNROLL
    for (i64 q = 0; q < parts; q += JOIN_WAYS) {
        R v[JOIN_WAYS][VEC];
        UNROLL
        for (i32 u = 0; u < JOIN_WAYS; u++) {
            const i64 from = q + u == 0 ? slot : 2 * (p + q + u);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                v[u][e] = q + u < parts && e < count ? partial[from * a->cols + col + e] : (R)0;
        }
        UNROLL
        for (i32 u = 0; u < JOIN_WAYS; u++)
            UNROLL
        for (i32 e = 0; e < VEC; e++)
            sum[e] += v[u][e];
    }
}

KERNEL(embedding_parts, LANES)
(BUF(const u8, dy), BUF(const i32, keys), BUF(const i32, values), BUF(const i32, start),
 BUF(R, partial), const embedding_grad_arg a)
{
    QUEUE_WAIT();
    OPEN(const u8, dy);
    OPEN(const i32, keys);
    OPEN(const i32, values);
    OPEN(const i32, start);
    OPEN(R, partial);
    for (walk w = walk_start(2 * a.parts, a.cols, VEC); w.left > 0; walk_next(&w)) {
        const i64 part = w.row / 2 * PART_COUNT;
        const i64 end = part + PART_COUNT < a.count ? part + PART_COUNT : a.count;
        const i32 row = keys[w.row & 1 ? end - 1 : part];
        if (row >= a.rows || start[row + 1] - start[row] <= PART_COUNT)
            continue;
        const i64 first = start[row] > part ? start[row] : part;
        const i64 last = start[row + 1] < end ? start[row + 1] : end;
        R sum[VEC];
        for (i32 e = 0; e < VEC; e++)
            sum[e] = 0;
        NAME(embedding_add)(&a, dy, values, first, last, w.run * VEC, 8, sum);
        const i32 count = run_length(a.cols, w.run * VEC, VEC);
        for (i32 e = 0; e < VEC; e++)
            if (e < count)
                partial[w.row * a.cols + w.run * VEC + e] = sum[e];
    }
}

/* dtable = alpha * sum + beta * dtable, for a run. */
DEVICE void NAME(embedding_put)(const embedding_grad_arg *a, GLOBAL u8 *dtable, i64 row, i64 col,
                                R *sum)
{
    const R alpha = NUM(a->alpha), beta = NUM(a->beta);
    const i64 at = row * a->dtable_row + col;
    const i32 count = run_length(a->cols, col, VEC);
    R old[VEC];
    if (beta != 0)
        NAME(load_part)(a->dtable_type, dtable, at, 1, count, a->dtable_vector, old);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        sum[e] = beta != 0 ? alpha * sum[e] + beta * old[e] : alpha * sum[e];
    NAME(stream_part)(a->dtable_type, dtable, at, 1, count, a->dtable_vector, sum);
}

/* Group (i, j): a row for every lanes_run lanes, and all that are GROUPS(0) times as many further on;
 * lanes_run runs from j * lanes_run on, and so forth. */
KERNEL(embedding_grad, LANES)
(BUF(const u8, dy), BUF(const i32, values), BUF(const i32, start), BUF(const R, partial),
 BUF(u8, dtable), const embedding_grad_arg a)
{
    QUEUE_WAIT();
    OPEN(const u8, dy);
    OPEN(const i32, values);
    OPEN(const i32, start);
    OPEN(const R, partial);
    OPEN(u8, dtable);
    const i64 down = LANES / a.lanes_run, runs = (a.cols + VEC - 1) / VEC;
    for (i64 run = GROUP(1) * a.lanes_run + LANE % a.lanes_run; run < runs;
         run += GROUPS(1) * a.lanes_run) {
        NO_UNROLL
        for (i64 row = GROUP(0) * down + LANE / a.lanes_run; row < a.rows;
             row += GROUPS(0) * down) {
            const i32 first = start[row], last = start[row + 1];
            R sum[VEC];
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                sum[e] = 0;
            if (last - first > PART_COUNT)
                NAME(embedding_join)(&a, partial, first, last, run * VEC, sum);
            else
                NAME(embedding_add)(&a, dy, values, first, last, run * VEC, 2, sum);
            NAME(embedding_put)(&a, dtable, row, run * VEC, sum);
        }
    }
}

#if LANES > 1
/* Rows of dy that are under way for each row of the table. */
#undef SUM_TERMS
#define SUM_TERMS 2

/* Where the terms of SUM_ROWS rows of the table begin and end. */
DEVICE void NAME(sum_starts)(const embedding_grad_arg *a, const GLOBAL i32 *start, i64 row,
                             i32 *from)
{
    UNROLL
    for (i32 k = 0; k <= SUM_ROWS; k++)
        from[k] = start[row + k < a->rows ? row + k : a->rows];
}

DEVICE void NAME(sum_terms)(const GLOBAL i32 *values, const i32 *from, i32 (*term)[SUM_TERMS])
{
    UNROLL
    for (i32 k = 0; k < SUM_ROWS; k++)
        NAME(embedding_rows)(values, from[k], from[k + 1], SUM_TERMS, term[k]);
}

/* The sum of a row whose terms are at first .. last - 1, the first of them in q. */
DEVICE void NAME(sum_packed)(const embedding_grad_arg *a, const GLOBAL T *dy,
                             const GLOBAL i32 *values, const GLOBAL R *partial, i32 first, i32 last,
                             i64 col, const RAW *q, R *sum)
{
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        sum[e] = 0;
    if (last - first > PART_COUNT) {
        NAME(embedding_join)(a, partial, first, last, col, sum);
        return;
    }
    UNROLL
    for (i32 u = 0; u < SUM_TERMS; u++)
        if (first + u < last)
            NAME(add_raw)(a->dy_type, q[u], sum);
    NO_UNROLL
    for (i32 p = first + SUM_TERMS; p < last; p++)
        NAME(add_raw)
    (a->dy_type, NAME(load_raw)(a->dy_type, dy + (i64)values[p] * a->dy_row + col), sum);
}

/* The same for packed rows of one type: SUM_ROWS neighbours for every lanes_run lanes. Where the
 * terms are is read ahead: a step for their places, two steps for what the places are found by. */
KERNEL_GROUPS(embedding_grad_packed, LANES, 3)
(BUF(const T, dy), BUF(const i32, values), BUF(const i32, start), BUF(const R, partial),
 BUF(T, dtable), const embedding_grad_arg a)
{
    QUEUE_WAIT();
    OPEN(const T, dy);
    OPEN(const i32, values);
    OPEN(const i32, start);
    OPEN(const R, partial);
    OPEN(T, dtable);
    const i64 down = LANES / a.lanes_run * SUM_ROWS, step = GROUPS(0) * down;
    const i64 col = (GROUP(1) * a.lanes_run + LANE % a.lanes_run) * VEC;
    const R alpha = NUM(a.alpha), beta = NUM(a.beta);
    i64 row = GROUP(0) * down + LANE / a.lanes_run * SUM_ROWS;
    i32 from[SUM_ROWS + 1], next[SUM_ROWS + 1], term[SUM_ROWS][SUM_TERMS];
    if (col >= a.cols)
        return;
    NAME(sum_starts)(&a, start, row, from);
    NAME(sum_starts)(&a, start, row + step, next);
    NAME(sum_terms)(values, from, term);
    NO_UNROLL
    for (; row < a.rows; row += step) {
        i32 now[SUM_ROWS + 1];
        RAW q[SUM_ROWS][SUM_TERMS];
        UNROLL
        for (i32 k = 0; k < SUM_ROWS; k++) {
            UNROLL
            for (i32 u = 0; u < SUM_TERMS; u++)
                if (from[k] + u < from[k + 1])
                    q[k][u] = NAME(load_raw)(a.dy_type, dy + (i64)term[k][u] * a.dy_row + col);
        }
        NAME(sum_terms)(values, next, term);
        UNROLL
        for (i32 k = 0; k <= SUM_ROWS; k++) {
            now[k] = from[k];
            from[k] = next[k];
        }
        NAME(sum_starts)(&a, start, row + 2 * step, next);
        UNROLL
        for (i32 k = 0; k < SUM_ROWS; k++) {
            const i64 at = (row + k) * a.dtable_row + col;
            R sum[VEC], old[VEC];
            if (row + k >= a.rows)
                continue;
            NAME(sum_packed)(&a, dy, values, partial, now[k], now[k + 1], col, q[k], sum);
            if (beta != 0)
                NAME(load_run)(HALF_TYPE(a.dtable_type), dtable, at, old);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                sum[e] = beta != 0 ? alpha * sum[e] + beta * old[e] : alpha * sum[e];
            NAME(stream_part)
            (HALF_TYPE(a.dtable_type), (GLOBAL u8 *)dtable, at, 1, VEC, 1, sum);
        }
    }
}
#endif
