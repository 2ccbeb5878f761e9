/* Attention with a running softmax: the scores of a tile pass through local memory, where
 * SHARED_BY lanes take a row. */
#ifndef FORWARD_RN
#define FORWARD_RN   (LANES == 1 ? 32 : SIMT_CODE == 1 ? TM / 8 : TM / 4)
#define FORWARD_COLS (TX * FORWARD_RN)
#define SHARED_BY    (LANES == 1 ? 1 : LANES / TM)
#define EACH_ROWS    (TM * SHARED_BY / LANES) /* rows of a lane: 1, or all in the wide form */
#endif

/* A row's state, in all of its lanes but for sum, which is a lane's part. */
typedef struct FN(running) {
    R most, sum;
} FN(running);

DEVICE R FN(larger)(R a, R b)
{
    return b > a || b != b ? b : a;
}

/* Makes scores of a lane's part of the products in a row, and shares of those. Returns what the
 * sums so far have to be multiplied with. */
DEVICE R FN(row_shares)(FN(running) * state, LOCAL_ARG R *row, LOCAL_ARG R *scratch,
                        const rules_arg *a, const rules_data *d, const rules_member *m, i32 h,
                        i32 time, i32 i, const line_walk *w, const other_lines *cols)
{
    const i32 part = LANE % SHARED_BY;
    R most = -INFINITY;
    NO_UNROLL
    for (i32 n = part; n < FORWARD_COLS; n += SHARED_BY) {
        const i32 key = cols->time[n];
        R score = -INFINITY;
        if (FN(pair_seen)(w, a, d, m, time, key, cols->slot[n], i, cols->place[n]))
            score = NAME(rules_score)(a, d, m, h, time, key, row[n]);
        row[n] = score;
        most = FN(larger)(most, score);
    }
    scratch[LANE] = most;
    SYNC();
    most = state->most;
    SPREAD
    for (i32 l = 0; l < SHARED_BY; l++)
        most = FN(larger)(most, scratch[LANE - part + l]);
    const R factor = state->most == -INFINITY ? (R)0
                     : state->most == most    ? (R)1 /* without the rounding of each tile */
                                              : NAME(fast_exp_above)(state->most, most);
    R sum = 0;
    NO_UNROLL
    for (i32 n = part; n < FORWARD_COLS; n += SHARED_BY) {
        const R score = row[n];
        R share = score == -INFINITY ? (R)0 : NAME(fast_exp_above)(score, most);
        sum += share;
        if (a->dropout && share != 0)
            share *= NAME(rules_drop)(a, m, h, cols->slot[n], i, cols->place[n]);
        row[n] = share;
    }
    state->most = most;
    state->sum = state->sum * factor + sum;
    return factor;
}

KERNEL_DENSE(FORMED(attention), LANES)
(BUF(const u8, q), BUF(const u8, k), BUF(const u8, v), BUF(u8, o), BUF(R, lse), RULES_BUFFERS,
 BUF(const i64, start), BUF(const i32, index), BUF(const i32, slots), const attention_arg a)
{
    QUEUE_WAIT();
    TILE_LOCALS(FORWARD_RN);
    LOCAL R scratch[LANES];
    LOCAL R row_factor[TM];
    OPEN(const u8, q);
    OPEN(const u8, k);
    OPEN(const u8, v);
    OPEN(u8, o);
    OPEN(R, lse);
    OPEN(const i64, start);
    OPEN(const i32, index);
    OPEN(const i32, slots);
    RULES_OPEN(data);
    const i32 ty = LANE / TX, pitch = SHARE_PITCH(FORWARD_RN);
    own_lines own;
    own_from(&own, &a.tiles, GROUP(0), TM);
    rules_member m;
    rules_member_of(&a.rules, &data, own.b, &m);
    FN(lines) qs;
    FN(lines_from)(&qs, q, &a.q, own.b, own.head, a.d);
    FN(lines) ks;
    FN(lines_from)(&ks, k, &a.k, own.b, own.head / a.group, a.d);
    FN(lines) vs;
    FN(lines_from)(&vs, v, &a.v, own.b, own.head / a.group, a.dv);
    const i64 list = own.head / a.rules.per_head * ((i64)a.tiles.grid + 1) + own.block;
    const i32 feature = own.part * WIDTH;
    OTHER_LINES(cols);
    line_walk w;
    FN(running) state[EACH_ROWS];
    R sum[RM][4 * FOURS];
    walk_from(&w, &own, start + list);
    for (i32 u = 0; u < EACH_ROWS; u++) {
        state[u].most = -INFINITY;
        state[u].sum = 0;
    }
    SPREAD
    for (i32 i = 0; i < RM; i++)
        SPREAD
    for (i32 c = 0; c < 4 * FOURS; c++)
        sum[i][c] = 0;
    FN(own_times)(&own, &a.rules, &m, 0, own_time);

    for (;;) {
        R products[RM * FORWARD_RN];
        FN(walk_on)
        (&w, &a.rules, &data, &m, &own, 0, index, slots, FORWARD_COLS, &cols);
        if (w.count == 0)
            break;
        FN(line_products)(products, FORWARD_RN, stage, &qs, own_time, &ks, time);
        FN(share_put)(share, FORWARD_RN, products);
        SYNC();
        SPREAD
        for (i32 u = 0; u < EACH_ROWS; u++) {
            const i32 row = LANE / SHARED_BY + u;
            const R factor =
                FN(row_shares)(&state[u], share + row * pitch, scratch, &a.rules, &data, &m,
                               own.head, own_time[row], own.in_block + row, &w, &cols);
            if (LANE % SHARED_BY == 0)
                row_factor[row] = factor;
        }
        SYNC();
        SPREAD
        for (i32 i = 0; i < RM; i++) {
            const R each = row_factor[ty + i * TY];
            SPREAD
            for (i32 c = 0; c < 4 * FOURS; c++)
                sum[i][c] *= each;
        }
        FN(share_product)(sum, share, pitch, stage, &vs, time, w.count, feature);
    }

    SYNC();
    for (i32 u = 0; u < EACH_ROWS; u++) {
        const i32 row = LANE / SHARED_BY + u;
        const i32 query = rules_time(a.rules.rows, a.rules.interleave, own.first + row);
        const i32 none = state[u].most == -INFINITY;
        R total = 0;
        scratch[LANE] = state[u].sum;
        SYNC();
        if (LANE % SHARED_BY == 0) {
            SPREAD
            for (i32 l = 0; l < SHARED_BY; l++)
                total += scratch[LANE + l];
            row_factor[row] = none ? (R)0 : 1 / total;
            if (lse && own.part == 0 && row < own.count && query < a.rules.q_time)
                lse[(own.b * a.rules.heads + own.head) * a.rules.q_time + query] =
                    none ? -INFINITY : state[u].most + MATH(log)(total);
        }
    }
    SYNC();
    /* Row by row, as a store is long. */
    NO_UNROLL
    for (i32 i = 0; i < RM; i++) {
        const i32 line = ty + i * TY;
        const R *const row_sum = sum[LANES == 1 ? i : 0];
        const i32 query = rules_time(a.rules.rows, a.rules.interleave, own.first + line);
        if (line < own.count && query < a.rules.q_time) {
            FN(row_store)
            (stage, row_sum, row_factor[line], 0, &a.o, o,
             heads_at(&a.o, own.b, own.head) + query * a.o.time, a.dv, feature);
        }
        FN(next_row)(sum);
    }
}
