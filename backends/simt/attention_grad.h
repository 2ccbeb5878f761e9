/* The gradient of attention for one operand: dQ by tiles of rows, dK and dV by tiles of columns,
 * where the query heads of a head of keys and values come one after the other. */
#ifndef GRAD_RN
#define GRAD_RN    (LANES == 1 ? 32 : SIMT_CODE == 1 ? 2 : 4)
#define GRAD_LINES (TX * GRAD_RN)
#define GRAD_MOST  (GRAD_LINES > TM ? GRAD_LINES : TM)
#endif

/* Of queries, which are a tile's own lines or the other ones. */
typedef struct FN(query_sums) {
    LOCAL_ARG R *lse, *delta;
} FN(query_sums);

DEVICE void FN(query_load)(const FN(query_sums) * s, const GLOBAL R *lse, const GLOBAL R *delta,
                           const LOCAL_ARG i32 *time, i32 count, i64 head, i32 q_time)
{
    for (i32 n = LANE; n < count; n += LANES) {
        const i32 t = time[n];
        s->lse[n] = t < 0 ? -INFINITY : lse[head * q_time + t];
        s->delta[n] = t < 0 ? (R)0 : delta[head * q_time + t];
    }
}

KERNEL_DENSE(FORMED(attention_grad), LANES)
(BUF(const u8, x), BUF(const u8, y), BUF(const u8, x2), BUF(const u8, y2), BUF(const u8, z),
 BUF(u8, out), BUF(const R, lse), BUF(const R, delta), RULES_BUFFERS, BUF(const i64, start),
 BUF(const i32, index), BUF(const i32, slots), const attention_grad_arg a)
{
    QUEUE_WAIT();
    TILE_LOCALS(GRAD_RN);
    LOCAL R steep[TM * SHARE_PITCH(GRAD_RN)];
    LOCAL R query_lse[GRAD_MOST];
    LOCAL R query_delta[GRAD_MOST];
    OPEN(const u8, x);
    OPEN(const u8, y);
    OPEN(const u8, x2);
    OPEN(const u8, y2);
    OPEN(const u8, z);
    OPEN(u8, out);
    OPEN(const R, lse);
    OPEN(const R, delta);
    OPEN(const i64, start);
    OPEN(const i32, index);
    OPEN(const i32, slots);
    RULES_OPEN(data);
    const i32 ty = LANE / TX, tx = LANE % TX, turned = a.tiles.turned;
    OTHER_LINES(others);
    own_lines own;
    own_from(&own, &a.tiles, GROUP(0), TM);
    rules_member m;
    rules_member_of(&a.rules, &data, own.b, &m);
    FN(lines) xs;
    FN(lines_from)(&xs, x, &a.x, own.b, own.head, a.d);
    FN(lines) x2s;
    FN(lines_from)(&x2s, x2, &a.x2, own.b, own.head, a.dv);
    const i32 feature = own.part * WIDTH;
    FN(query_sums) sums;
    R sum[RM][4 * FOURS];
    SPREAD
    for (i32 i = 0; i < RM; i++)
        SPREAD
    for (i32 c = 0; c < 4 * FOURS; c++)
        sum[i][c] = 0;
    sums.lse = query_lse;
    sums.delta = query_delta;
    FN(own_times)(&own, &a.rules, &m, turned, own_time);
    if (!turned) { /* a lane reads what it wrote, here and below */
        FN(query_load)
        (&sums, lse, delta, own_time, TM, own.b * a.rules.heads + own.head, a.rules.q_time);
    }

    for (i32 g = 0; g < (turned ? a.group : 1); g++) {
        const i32 h = turned ? own.head * a.group + g : own.head;
        const i32 other = turned ? h : h / a.group;
        FN(lines) ys;
        FN(lines_from)(&ys, y, &a.y, own.b, other, a.d);
        FN(lines) y2s;
        FN(lines_from)(&y2s, y2, &a.y2, own.b, other, a.dv);
        FN(lines) zs;
        FN(lines_from)(&zs, z, &a.z, own.b, other, a.width);
        const i64 list = h / a.rules.per_head * ((i64)a.tiles.grid + 1) + own.block;
        line_walk w;
        walk_from(&w, &own, start + list);
        for (;;) {
            FN(walk_on)
            (&w, &a.rules, &data, &m, &own, turned, index, slots, GRAD_LINES, &others);
            if (w.count == 0)
                break;
            if (turned) {
                FN(query_load)
                (&sums, lse, delta, time, GRAD_LINES, own.b * a.rules.heads + h, a.rules.q_time);
            }
            /* Of both kinds by one piece of code, which is long. */
            FN(lines) left = xs, right = ys;
            LOCAL_ARG R *to = share;
            NO_UNROLL
            for (i32 kind = a.values; kind < 2; kind++) {
                R products[RM * GRAD_RN];
                FN(line_products)(products, GRAD_RN, stage, &left, own_time, &right, time);
                FN(share_put)(to, GRAD_RN, products);
                left = x2s;
                right = y2s;
                to = steep;
            }
            NO_UNROLL
            for (i32 e = 0; e < RM * GRAD_RN; e++) { /* a lane reads what it wrote */
                const i32 line = ty + e / GRAD_RN * TY, n = tx + e % GRAD_RN * TX;
                const i32 at = line * SHARE_PITCH(GRAD_RN) + n, query = turned ? n : line;
                const i32 q_time = turned ? time[n] : own_time[line];
                const i32 key = turned ? own_time[line] : time[n];
                const i32 row = turned ? place[n] : own.in_block + line;
                const i32 col = turned ? own.in_block + line : place[n];
                const R row_lse = query_lse[query], product = share[at];
                R value = 0;
                if (row_lse != -INFINITY &&
                    FN(pair_seen)(&w, &a.rules, &data, &m, q_time, key, slot[n], row, col)) {
                    const R score = NAME(rules_score)(&a.rules, &data, &m, h, q_time, key, product);
                    const R p = NAME(fast_exp_above)(score, row_lse);
                    const R kept = NAME(rules_drop)(&a.rules, &m, h, slot[n], row, col);
                    value = a.values ? kept * p
                                     : p * (kept * steep[at] - query_delta[query]) *
                                           NAME(rules_slope)(&a.rules, product);
                }
                share[at] = value;
            }
            FN(share_product)
            (sum, share, SHARE_PITCH(GRAD_RN), stage, &zs, time, w.count, feature);
        }
    }

    SYNC();
    /* Row by row, as a store is long. */
    NO_UNROLL
    for (i32 i = 0; i < RM; i++) {
        const i32 line = ty + i * TY;
        const R *const row_sum = sum[LANES == 1 ? i : 0];
        const i32 at = rules_time(a.tiles.lines, a.rules.interleave, own.first + line);
        if (line < own.count && at < (turned ? a.rules.k_time : a.rules.q_time)) {
            FN(row_store)
            (stage, row_sum, NUM(a.alpha), NUM(a.beta), &a.out, out,
             heads_at(&a.out, own.b, own.head) + at * a.out.time, a.width, feature);
        }
        FN(next_row)(sum);
    }
}
