/* Kernels with one fault each, for the tests of the emulator, and their sound siblings. */
#ifndef BSK_EMU_PLANTED_H
#define BSK_EMU_PLANTED_H

typedef struct planted_arg {
    i64 count;
    i32 shift; /* the neighbour that a lane reads */
    i32 limit; /* lanes from this one on do something else */
} planted_arg;

#endif

#ifdef SIMT_T
#undef LANES
#define LANES 64

/* y[i] = x[i + shift] within a group, through local memory. */
KERNEL(shift, LANES)(BUF(const T, x), BUF(T, y), const planted_arg a)
{
    LOCAL T tile[LANES];
    OPEN(const T, x);
    OPEN(T, y);
    tile[LANE] = x[GROUP(0) * LANES + LANE];
    BARRIER();
    y[GROUP(0) * LANES + LANE] = tile[(LANE + a.shift) % LANES];
}

/* The same with the barrier taken out. */
KERNEL(shift_bare, LANES)(BUF(const T, x), BUF(T, y), const planted_arg a)
{
    LOCAL T tile[LANES];
    OPEN(const T, x);
    OPEN(T, y);
    tile[LANE] = x[GROUP(0) * LANES + LANE];
    y[GROUP(0) * LANES + LANE] = tile[(LANE + a.shift) % LANES];
}

/* Twice through one array, without the barrier that keeps the second store from the first load. */
KERNEL(shift_twice, LANES)(BUF(const T, x), BUF(T, y), const planted_arg a)
{
    LOCAL T tile[LANES];
    OPEN(const T, x);
    OPEN(T, y);
    tile[LANE] = x[GROUP(0) * LANES + LANE];
    BARRIER();
    const T once = tile[(LANE + a.shift) % LANES];
    tile[LANE] = once;
    BARRIER();
    y[GROUP(0) * LANES + LANE] = tile[(LANE + a.shift) % LANES];
}

/* The tile in global memory, which takes a barrier for global memory. */
KERNEL(shift_global, LANES)(BUF(const T, x), BUF(T, tile), BUF(T, y), const planted_arg a)
{
    OPEN(const T, x);
    OPEN(T, tile);
    OPEN(T, y);
    const i64 first = GROUP(0) * LANES;
    tile[first + LANE] = x[first + LANE];
    GLOBAL_BARRIER();
    y[first + LANE] = tile[first + (LANE + a.shift) % LANES];
}

/* The same with a barrier for local memory. */
KERNEL(shift_wrong, LANES)(BUF(const T, x), BUF(T, tile), BUF(T, y), const planted_arg a)
{
    OPEN(const T, x);
    OPEN(T, tile);
    OPEN(T, y);
    const i64 first = GROUP(0) * LANES;
    tile[first + LANE] = x[first + LANE];
    BARRIER();
    y[first + LANE] = tile[first + (LANE + a.shift) % LANES];
}

/* All groups store y[0]. */
KERNEL(one_place, LANES)(BUF(const T, x), BUF(T, y), const planted_arg a)
{
    OPEN(const T, x);
    OPEN(T, y);
    if (LANE == 0)
        y[0] = x[(GROUP(0) * LANES + a.shift) % a.count];
}

/* In place, from the elements of another group. */
KERNEL(in_place, LANES)(BUF(T, y), const planted_arg a)
{
    OPEN(T, y);
    const i64 i = GROUP(0) * LANES + LANE;
    y[i] = y[i] + y[(i + LANES) % a.count];
}

/* Some lanes return before the barrier. */
KERNEL(returns, LANES)(BUF(const T, x), BUF(T, y), const planted_arg a)
{
    LOCAL T tile[LANES];
    OPEN(const T, x);
    OPEN(T, y);
    tile[LANE] = x[GROUP(0) * LANES + LANE];
    if (LANE >= a.limit && GROUP(0) == 1)
        return;
    BARRIER();
    y[GROUP(0) * LANES + LANE] = tile[LANE % a.limit];
}

/* Lanes wait at different barriers. */
KERNEL(branches, LANES)(BUF(T, y), const planted_arg a)
{
    OPEN(T, y);
    if (LANE >= a.limit) {
        BARRIER();
        y[GROUP(0) * LANES + LANE] = 1;
    } else {
        y[GROUP(0) * LANES + LANE] = 2;
        BARRIER();
    }
}

/* y[i] = x[i ^ shift] by exchange, after one wave alone has exchanged twice. */
KERNEL(across, LANES)(BUF(const T, x), BUF(T, y), const planted_arg a)
{
    OPEN(const T, x);
    OPEN(T, y);
    const i64 i = GROUP(0) * LANES + LANE;
    T v = x[i];
    if (LANE < a.limit)
        v = f32_across(f32_across(v, 1), 1);
    BARRIER();
    y[i] = f32_across(v, a.shift);
}

/* Some lanes of a wave take no part. */
KERNEL(across_some, LANES)(BUF(const T, x), BUF(T, y), const planted_arg a)
{
    OPEN(const T, x);
    OPEN(T, y);
    const i64 i = GROUP(0) * LANES + LANE;
    y[i] = LANE < a.shift ? 0 : f32_across(x[i], 1);
}

/* One element past the end. */
KERNEL(store_past, LANES)(BUF(T, y), const planted_arg a)
{
    OPEN(T, y);
    for (i64 i = LANE; i <= a.count; i += LANES)
        y[i] = 1;
}

KERNEL(load_past, LANES)(BUF(const T, x), BUF(T, y), const planted_arg a)
{
    OPEN(const T, x);
    OPEN(T, y);
    y[LANE] = x[a.count - LANES + 1 + LANE];
}

/* A local array is read from end to end, and filled by some lanes only. */
KERNEL(local_unset, LANES)(BUF(const T, x), BUF(T, y), const planted_arg a)
{
    LOCAL T tile[LANES];
    OPEN(const T, x);
    OPEN(T, y);
    if (LANE < a.limit)
        tile[LANE] = x[LANE];
    BARRIER();
    y[LANE] = tile[LANES - 1 - LANE];
}

KERNEL(local_past, LANES)(BUF(T, y), const planted_arg a)
{
    LOCAL T tile[LANES];
    OPEN(T, y);
    tile[LANE + (LANE >= a.limit)] = 1;
    BARRIER();
    y[LANE] = tile[LANE];
}

KERNEL(local_large, LANES)(BUF(T, y), const planted_arg a)
{
    LOCAL T tile[(48 << 10) / sizeof(T) + 1];
    OPEN(T, y);
    tile[LANE] = 1;
    BARRIER();
    y[LANE] = tile[(LANE + a.shift) % LANES];
}

/* Four at a time from an address that is aligned to one. */
KERNEL(misaligned, LANES)(BUF(const T, x), BUF(T, y), const planted_arg a)
{
    OPEN(const T, x);
    OPEN(T, y);
    f32 v[4];
    f32_load4(x + a.shift, v);
    f32_store4(y + 4 * LANE, v);
}

#endif
