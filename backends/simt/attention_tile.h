/* Tiles of attention: a group holds TM lines of its own, and walks along the other lines that its
 * block row or block column meets, TX * rn at a time, whatever the blocks' sides are. Lane (ty, tx)
 * has lines ty, ty + TY ... of the tile, of a product of lines the other lines tx, tx + TX ..., and
 * of the result fours of features. */
#ifndef FORMED
#ifdef WIDE
#define FORMED(x) SIMT_JOIN(x, wide)
#else
#define FORMED(x) SIMT_JOIN(x, TM)
#endif
#define FN(x) NAME(FORMED(x))

/* Loops that the wide form leaves to the compiler: those over registers, and those around them, which
 * are long enough as they are. */
#if LANES == 1
#define SPREAD
#define ROLLED
#else
#define SPREAD UNROLL
#define ROLLED NO_UNROLL
#endif

#define RM (LANES == 1 ? TM : 4)
#define TY (TM / RM)
#define TX (LANES / TY)

/* Features of a chunk of a product of lines, and the distance of its lines in a stage. */
#define DEPTH (SIMT_CODE == 1 && LANES > 1 ? 8 : 16)
#define PITCH (DEPTH + 4)

/* Features of a result, fours of a lane, and the lines of a chunk on the way to it. */
#define WIDTH (LANES == 1 ? 64 : SIMT_CODE == 1 ? 128 : 256)
#define FOURS (WIDTH / (4 * TX))
#define CHUNK ((SIMT_CODE == 1 ? 1024 : 2048) / WIDTH)

#define STAGE(rn)                                                                                  \
    ((TM + TX * (rn)) * PITCH > CHUNK * WIDTH ? (TM + TX * (rn)) * PITCH : CHUNK * WIDTH)
#define SHARE_PITCH(rn) (TX * (rn) + 4)

/* Local memory of a kernel: a chunk of lines, the shares of a tile, and what its lines are. */
#define TILE_LOCALS(rn)                                                                            \
    LOCAL R stage[STAGE(rn)] ALIGNED;                                                              \
    LOCAL R share[TM * SHARE_PITCH(rn)] ALIGNED;                                                   \
    LOCAL i32 own_time[TM];                                                                        \
    LOCAL i32 time[TX * (rn)];                                                                     \
    LOCAL i32 slot[TX * (rn)];                                                                     \
    LOCAL i32 place[TX * (rn)]

/* The other lines of TILE_LOCALS. One by one: a list of such addresses would be a constant to clang
 * for AMD devices, which has no form for it. */
#define OTHER_LINES(lines)                                                                         \
    other_lines lines;                                                                             \
    lines.time = time;                                                                             \
    lines.slot = slot;                                                                             \
    lines.place = place

/* Whether a tile is all visible, what of it is there, and where the walk stands. */
typedef struct line_walk {
    i32 entry, last, off; /* off: into the block */
    i32 count, whole;
} line_walk;

/* Other lines: their times, or -1 where there is nothing to read, their slots, and their places in
 * the blocks. */
typedef struct other_lines {
    LOCAL_ARG i32 *time, *slot, *place;
} other_lines;

/* A tile's own lines: the block, the first of them in it and in all, and how many there are. */
typedef struct own_lines {
    i64 b;
    i32 head, part;
    i32 block, in_block, first, count;
} own_lines;

DEVICE void own_from(own_lines *t, const tiles_arg *a, i64 group, i32 tm)
{
    const i64 rest = QUOTIENT(group, a->count), head = QUOTIENT(rest, a->parts);
    const i32 tile = (i32)(group - rest * a->count);
    t->part = (i32)(rest - head * a->parts);
    t->b = QUOTIENT(head, a->heads);
    t->head = (i32)(head - t->b * a->heads);
    t->block = tile / a->each;
    t->in_block = tile % a->each * tm;
    t->first = t->block * a->side + t->in_block;
    t->count = a->side - t->in_block < tm ? a->side - t->in_block : tm;
    if (a->lines - t->first < t->count)
        t->count = a->lines - t->first;
}

/* A walk along the list of a block row or block column; none where a tile has no lines. */
DEVICE void walk_from(line_walk *w, const own_lines *own, const GLOBAL i64 *start)
{
    w->entry = (i32)start[0];
    w->last = own->count > 0 ? (i32)start[1] : w->entry;
    w->off = w->count = w->whole = 0;
}
#endif

/* Lines of a head, the first of which is element `first` of an array of a type. */
typedef struct FN(lines) {
    const GLOBAL u8 *array;
    i64 first, stride;
    i32 width, vector, type;
} FN(lines);

DEVICE void FN(lines_from)(FN(lines) * l, const GLOBAL u8 *p, const heads_arg *h, i64 b, i64 head,
                           i32 width)
{
    l->array = p;
    l->first = heads_at(h, b, head);
    l->stride = h->time;
    l->width = width;
    l->vector = h->vector;
    l->type = h->type;
}

DEVICE void FN(local_run)(LOCAL_ARG R *p, const R *v)
{
#if SIMT_CODE == 1
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        p[e] = v[e];
#else
    UNROLL
    for (i32 e = 0; e < VEC; e += 4)
        NAME(local_store4)(p + e, v + e);
#endif
}

/* Features first .. first + width - 1 of `count` lines into a stage; those at or beyond `used` are
 * left out. What a line or a head has not is 0. */
DEVICE void FN(stage_lines)(LOCAL_ARG R *stage, i32 pitch, const FN(lines) * l,
                            const LOCAL_ARG i32 *times, i32 count, i32 first, i32 width, i32 used)
{
    const i32 runs = width / VEC;
    for (i32 n = LANE; n < count * runs; n += LANES) {
        const i32 line = n / runs, at = n % runs * VEC, left = l->width - first - at;
        const i32 time = times[line];
        R v[VEC];
        if (at >= used)
            continue;
        NAME(load_part)
        (SINGLE_TYPE(l->type), l->array, l->first + time * l->stride + first + at, 1,
         time < 0 || left < 0 ? 0
         : left < VEC         ? left
                              : VEC,
         l->vector, v);
        FN(local_run)(stage + line * pitch + at, v);
    }
}

/* Sum [RM][rn]: the products of a tile's own lines x with TX * rn others, y. */
DEVICE void FN(line_products)(R *sum, i32 rn, LOCAL_ARG R *stage, const FN(lines) * x,
                              const LOCAL_ARG i32 *x_time, const FN(lines) * y,
                              const LOCAL_ARG i32 *y_time)
{
    const LOCAL_ARG R *const own = stage + LANE / TX * PITCH;
    const LOCAL_ARG R *const other = stage + (TM + LANE % TX) * PITCH;
    SPREAD
    for (i32 i = 0; i < RM * rn; i++)
        sum[i] = 0;
    i32 first = 0;
    do {
        SYNC();
        FN(stage_lines)(stage, PITCH, x, x_time, TM, first, DEPTH, DEPTH);
        FN(stage_lines)(stage + TM * PITCH, PITCH, y, y_time, TX * rn, first, DEPTH, DEPTH);
        SYNC();
        ROLLED
        for (i32 k = 0; k < DEPTH; k += 4) {
            R left[RM][4];
            SPREAD
            for (i32 i = 0; i < RM; i++)
                NAME(local_load4)(own + i * TY * PITCH + k, left[i]);
            SPREAD
            for (i32 j = 0; j < rn; j++) {
                R right[4];
                NAME(local_load4)(other + j * TX * PITCH + k, right);
                SPREAD
                for (i32 e = 0; e < 4; e++)
                    SPREAD
                for (i32 i = 0; i < RM; i++)
                    sum[i * rn + j] = FMA(left[i][e], right[e], sum[i * rn + j]);
            }
        }
        first += DEPTH;
    } while (first < x->width);
}

/* A lane's part of such products, in local memory. */
DEVICE void FN(share_put)(LOCAL_ARG R *share, i32 rn, const R *products)
{
    LOCAL_ARG R *const own = share + LANE / TX * SHARE_PITCH(rn) + LANE % TX;
    SPREAD
    for (i32 i = 0; i < RM; i++)
        SPREAD
    for (i32 j = 0; j < rn; j++)
        own[i * TY * SHARE_PITCH(rn) + j * TX] = products[i * rn + j];
}

/* Adds share [TM][count] z to sum, from feature `first` on. */
DEVICE void FN(share_product)(R (*sum)[4 * FOURS], const LOCAL_ARG R *share, i32 pitch,
                              LOCAL_ARG R *stage, const FN(lines) * z, const LOCAL_ARG i32 *time,
                              i32 count, i32 first)
{
    const i32 left = z->width - first;
    const i32 used = left < WIDTH ? (left + 4 * TX - 1) / (4 * TX) * (4 * TX) : WIDTH;
    const LOCAL_ARG R *const own = share + LANE / TX * pitch;
    for (i32 n = 0; n < count; n += CHUNK) {
        SYNC();
        FN(stage_lines)(stage, WIDTH, z, time + n, CHUNK, first, WIDTH, used);
        SYNC();
        ROLLED
        for (i32 k = 0; k < CHUNK; k += 4) {
            R w[RM][4];
            SPREAD
            for (i32 i = 0; i < RM; i++)
                NAME(local_load4)(own + i * TY * pitch + n + k, w[i]);
            SPREAD
            for (i32 c = 0; c < FOURS; c++)
                if (c * 4 * TX < used) {
                    SPREAD
                    for (i32 u = 0; u < 4; u++) {
                        R v[4];
                        NAME(local_load4)(stage + (k + u) * WIDTH + (c * TX + LANE % TX) * 4, v);
                        SPREAD
                        for (i32 e = 0; e < 4; e++)
                            SPREAD
                        for (i32 i = 0; i < RM; i++)
                            sum[i][4 * c + e] = FMA(w[i][u], v[e], sum[i][4 * c + e]);
                    }
                }
        }
    }
}

/* A row of a result, `times` what a lane's sums are: sum [4 * FOURS], by way of its part of the
 * stage, so that there is one piece of code for all of its runs. Their array has it at element `at`,
 * which keeps beta of what it has. */
DEVICE void FN(row_store)(LOCAL_ARG R *stage, const R *sum, R times, R beta, const heads_arg *h,
                          GLOBAL u8 *p, i64 at, i32 width, i32 feature)
{
    SPREAD
    for (i32 c = 0; c < 4 * FOURS; c++)
        stage[c * LANES + LANE] = times != 0 ? times * sum[c] : (R)0;
    NO_UNROLL
    for (i32 c = 0; c < 4 * FOURS; c += VEC) {
        const i32 f = feature + (c / 4 * TX + LANE % TX) * 4 + c % 4;
        const i32 count = width - f < VEC ? width - f : VEC;
        R v[VEC], old[VEC];
        if (count <= 0)
            break;
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] = stage[(c + e) * LANES + LANE];
        if (beta != 0) {
            NAME(load_part)(h->type, p, at + f, 1, count, h->vector, old);
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                v[e] += beta * old[e];
        }
        NAME(store_part)(h->type, p, at + f, 1, count, h->vector, v);
    }
}

/* The sums of the next row take the place of the first: registers have constant numbers. */
DEVICE void FN(next_row)(R (*sum)[4 * FOURS])
{
#if LANES > 1
    UNROLL
    for (i32 i = 1; i < RM; i++)
        UNROLL
    for (i32 c = 0; c < 4 * FOURS; c++)
        sum[i - 1][c] = sum[i][c];
#endif
}

/* Gathers the next `most` other lines of which something is visible. */
DEVICE void FN(walk_on)(line_walk *w, const rules_arg *a, const rules_data *d,
                        const rules_member *m, const own_lines *own, i32 turned,
                        const GLOBAL i32 *index, const GLOBAL i32 *slots, i32 most,
                        const other_lines *o)
{
    const i32 side = turned ? a->block_rows : a->block_cols;
    const i32 lines = turned ? a->rows : a->cols, there = turned ? m->queries : m->keys;
    w->count = 0;
    w->whole = 1;
    while (w->count < most && w->entry < w->last) {
        const i32 start = index[w->entry] * side, number = slots[w->entry];
        const i32 left = (lines - start < side ? lines - start : side) - w->off;
        const i32 take = left < most - w->count ? left : most - w->count;
        const i32 line = start + w->off;
        const i32 kind = turned ? rules_block(a, d, m, number, line, take, own->first, own->count)
                                : rules_block(a, d, m, number, own->first, own->count, line, take);
        if (kind != RULES_EMPTY) {
            for (i32 n = LANE; n < w->count + take; n += LANES)
                if (n >= w->count) {
                    const i32 t = rules_time(lines, a->interleave, line + n - w->count);
                    o->time[n] = t < there ? t : -1;
                    o->slot[n] = number;
                    o->place[n] = w->off + n - w->count;
                }
            w->count += take;
            w->whole &= kind == RULES_FULL;
        }
        w->off = take < left ? w->off + take : 0;
        w->entry += take == left;
    }
    for (i32 n = LANE; n < most; n += LANES)
        if (n >= w->count) {
            o->time[n] = -1;
            o->slot[n] = 0;
            o->place[n] = 0;
        }
}

/* Whether a query sees a key, at (row, col) of the block of a slot. */
DEVICE i32 FN(pair_seen)(const line_walk *w, const rules_arg *a, const rules_data *d,
                         const rules_member *m, i32 query, i32 key, i32 slot, i32 row, i32 col)
{
    return query >= 0 && key >= 0 &&
           (w->whole || (rules_visible(a, d, m, query, key) &&
                         rules_bit(a, d, rules_mask(a, d, slot), row, col)));
}

/* The times of the tile's own lines; -1 where there is nothing to read. */
DEVICE void FN(own_times)(const own_lines *own, const rules_arg *a, const rules_member *m,
                          i32 turned, LOCAL_ARG i32 *time)
{
    const i32 lines = turned ? a->cols : a->rows, there = turned ? m->keys : m->queries;
    for (i32 n = LANE; n < TM; n += LANES) {
        const i32 t = n < own->count ? rules_time(lines, a->interleave, own->first + n) : -1;
        time[n] = t < there ? t : -1;
    }
}
