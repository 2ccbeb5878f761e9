/* How the kernels of memory-bound ops share work: lanes that handle VEC neighbours at a time, walks
 * over matrices, access through types known at run time, sums by trees of a fixed shape.
 *
 * LANES is the size of a group: GROUP_LANES, which the including file may set. The form for CPUs
 * behind OpenCL has LANES = 1: groups then walk over contiguous ranges in plain loops, which the
 * compiler turns into vectors. One translation unit holds either that form or others. */
#ifndef GROUP_LANES
#define GROUP_LANES 256
#endif
#undef LANES
#ifdef WIDE
#define LANES 1
#else
#define LANES GROUP_LANES
#endif

#undef SYNC
#undef GLOBAL_SYNC
#if LANES == 1
#define SYNC()
#define GLOBAL_SYNC()
#else
#define SYNC()        BARRIER()
#define GLOBAL_SYNC() GLOBAL_BARRIER()
#endif

/* --- once ----------------------------------------------------------------------------------- */
#ifndef BSKI_SIMT_LANES_H
#define BSKI_SIMT_LANES_H

#define LOWEST     (-(R)INFINITY)
#define SHARE_COLS (LANES == 1 ? 1 : 32) /* elements whose shares a group adds up */

/* A lane's walk over the runs of VEC elements of a matrix, row by row; the last run of a row may be
 * shorter. Steps are divided into rows and runs once, at the start. */
typedef struct walk {
    i64 row, run;
    i64 step_rows, step_runs, runs;
    i64 left; /* of this lane, this one included */
} walk;

#define walk_start(rows, cols, vec) walk_begin(rows, cols, vec, LANES)

DEVICE walk walk_begin(i64 rows, i64 cols, i32 vec, i32 lanes)
{
    walk w;
    w.runs = (cols + vec - 1) / vec;
    const i64 total = rows * w.runs;
#if LANES == 1
    const i64 first = total / GROUPS(0) * GROUP(0) + total % GROUPS(0) * GROUP(0) / GROUPS(0);
    const i64 next =
        total / GROUPS(0) * (GROUP(0) + 1) + total % GROUPS(0) * (GROUP(0) + 1) / GROUPS(0);
    const i64 step = lanes;
    w.left = next - first;
#else
    const i64 first = GROUP(0) * lanes + LANE, step = GROUPS(0) * lanes;
    w.left = first < total ? QUOTIENT(total - first - 1, step) + 1 : 0;
#endif
    w.row = w.runs ? QUOTIENT(first, w.runs) : 0;
    w.run = first - w.row * w.runs;
    w.step_rows = w.runs ? QUOTIENT(step, w.runs) : 0;
    w.step_runs = step - w.step_rows * w.runs;
    return w;
}

DEVICE void walk_next(walk *w)
{
    w->left--;
    w->row += w->step_rows;
    w->run += w->step_runs;
    if (w->run >= w->runs) {
        w->run -= w->runs;
        w->row++;
    }
}

/* What is long and called for single elements: apart, but where a lane's elements are to become vectors. */
#if LANES > 1
#define LANE_APART DEVICE_APART
#else
#define LANE_APART DEVICE
#endif

/* Elements of a run that starts at column col. */
DEVICE i32 run_length(i64 cols, i64 col, i32 vec)
{
    return cols - col < vec ? (i32)(cols - col) : vec;
}

#endif

/* --- once for each type --------------------------------------------------------------------- */
#undef VEC
#if LANES == 1
#define VEC 16
#elif SIMT_CODE == 1
#define VEC 2
#elif SIMT_CODE == 2
#define VEC 4
#else
#define VEC 8
#endif

/* A scalar argument: the bits of an R in an i64. */
#undef NUM
#if SIMT_CODE == 1
#define NUM(bits) I64_AS_F64(bits)
#else
#define NUM(bits) U32_AS_F32((u32)(bits))
#endif

/* The type of R, for access by type. */
#undef R_TYPE
#if SIMT_CODE == 1
#define R_TYPE SIMT_F64
#else
#define R_TYPE SIMT_F32
#endif

/* The type of an array that is of a kernel's own. In files that define SIMT_HALVES kernels of bf16
 * serve f16 as well, and in those that define SIMT_SINGLES kernels of f32 serve both. */
#undef HALF_TYPE
#undef SINGLE_TYPE
#if SIMT_CODE == 4 && defined(SIMT_HALVES)
#define HALF_TYPE(type) (type)
#else
#define HALF_TYPE(type) SIMT_CODE
#endif
#if SIMT_CODE == 2 && defined(SIMT_SINGLES)
#define SINGLE_TYPE(type) (type)
#else
#define SINGLE_TYPE(type) SIMT_CODE
#endif

#undef SIMT_LANES_NEW
#if SIMT_CODE == 1
#ifndef SIMT_LANES_F64
#define SIMT_LANES_F64
#define SIMT_LANES_NEW
#endif
#elif SIMT_CODE == 2
#ifndef SIMT_LANES_F32
#define SIMT_LANES_F32
#define SIMT_LANES_NEW
#endif
#elif SIMT_CODE == 3
#ifndef SIMT_LANES_F16
#define SIMT_LANES_F16
#define SIMT_LANES_NEW
#endif
#else
#ifndef SIMT_LANES_BF16
#define SIMT_LANES_BF16
#define SIMT_LANES_NEW
#endif
#endif

#ifdef SIMT_LANES_NEW

/* exp(x) for x whose own rounding error matters as much: |x| units of relative error. What is below
 * the smallest normal number may become 0. */
DEVICE R NAME(fast_exp)(R x)
{
#if SIMT_CODE == 1
    return MATH(exp)(x);
#else
    return FAST_EXP2(x * 1.44269504088896341f);
#endif
}

DEVICE R NAME(fast_exp2)(R x)
{
#if SIMT_CODE == 1
    return MATH(exp2)(x);
#else
    return FAST_EXP2(x);
#endif
}

/* a / b to a few units, for b that is not beyond 2^126. */
DEVICE R NAME(fast_divide)(R a, R b)
{
#if SIMT_CODE == 1
    return a / b;
#else
    return FAST_DIVIDE(a, b);
#endif
}

/* exp(x - shift). Both may be near the largest number, so their difference comes first. */
#define exp_scale ((R)1.44269504088896340736)
DEVICE R NAME(exp_above)(R x, R shift)
{
#if SIMT_CODE == 1
    return MATH(exp)(x - shift);
#else
    return MATH(exp2)((x - shift) * exp_scale);
#endif
}

DEVICE R NAME(fast_exp_above)(R x, R shift)
{
#if SIMT_CODE == 1
    return MATH(exp)(x - shift);
#else
    return FAST_EXP2((x - shift) * exp_scale);
#endif
}

/* Four aligned neighbours in local memory. */
DEVICE void NAME(local_load4)(const LOCAL_ARG R *p, R *v)
{
#if SIMT_CODE == 1
    UNROLL
    for (i32 e = 0; e < 4; e++)
        v[e] = p[e];
#else
    f32_load4_local(p, v);
#endif
}

DEVICE void NAME(local_store4)(LOCAL_ARG R *p, const R *v)
{
#if SIMT_CODE == 1
    UNROLL
    for (i32 e = 0; e < 4; e++)
        p[e] = v[e];
#else
    u32x4 q;
    q.x = F32_AS_U32(v[0]);
    q.y = F32_AS_U32(v[1]);
    q.z = F32_AS_U32(v[2]);
    q.w = F32_AS_U32(v[3]);
    u32x4_store_local((LOCAL_ARG u32x4 *)p, q);
#endif
}

/* Element i of an array of any float type. */
DEVICE R NAME(load_r)(i32 type, const GLOBAL void *p, i64 i)
{
#if SIMT_CODE == 1
    if (type == SIMT_F64)
        return ((const GLOBAL f64 *)p)[i];
#endif
    return (R)load_as(type, p, i);
}

#if SIMT_CODE == 1
/* To f32 by rounding to odd, which keeps what a later rounding to 16 bits needs. */
DEVICE f32 f64_to_odd(f64 v)
{
    const f32 f = (f32)v;
    const u32 u = F32_AS_U32(f);
    if ((f64)f == v || v != v || v - v != 0)
        return f;
    if ((u & 0x7fffffffu) == 0x7f800000u)
        return U32_AS_F32(u - 1);
    if (u & 1u)
        return f;
    return U32_AS_F32(MATH(fabs)((f64)f) > MATH(fabs)(v) ? u - 1 : u + 1);
}
#endif

DEVICE void NAME(store_r)(i32 type, GLOBAL void *p, i64 i, R v)
{
#if SIMT_CODE == 1
    if (type == SIMT_F64)
        ((GLOBAL f64 *)p)[i] = v;
    else
        store_as(type, p, i, type == SIMT_F32 ? (f32)v : f64_to_odd(v));
#else
    store_as(type, p, i, v);
#endif
}

/* VEC neighbours from element i on, at an aligned address (wide form: at any). */
DEVICE void NAME(load_run)(i32 type, const GLOBAL void *p, i64 i, R *v)
{
#if LANES == 1 || SIMT_CODE == 1
    if (type == R_TYPE)
        for (i32 e = 0; e < VEC; e++)
            v[e] = ((const GLOBAL R *)p)[i + e];
    else if (type == SIMT_F16)
        for (i32 e = 0; e < VEC; e++)
            v[e] = f16_load((const GLOBAL u16 *)p + i + e);
    else if (type == SIMT_BF16)
        for (i32 e = 0; e < VEC; e++)
            v[e] = bf16_load((const GLOBAL u16 *)p + i + e);
    else
        for (i32 e = 0; e < VEC; e++)
            v[e] = NAME(load_r)(type, p, i + e);
#else
    if (type == SIMT_F32) {
        f32_load4((const GLOBAL f32 *)p + i, v);
#if VEC == 8
        f32_load4((const GLOBAL f32 *)p + i + 4, v + 4);
    } else if (type == SIMT_F16) {
        f16_load8((const GLOBAL u16 *)p + i, v);
    } else if (type == SIMT_BF16) {
        bf16_load8((const GLOBAL u16 *)p + i, v);
#else
    } else if (type == SIMT_F16) {
        f16_load4((const GLOBAL u16 *)p + i, v);
    } else if (type == SIMT_BF16) {
        bf16_load4((const GLOBAL u16 *)p + i, v);
#endif
    } else {
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            v[e] = NAME(load_r)(type, p, i + e);
    }
#endif
}

DEVICE void NAME(store_run)(i32 type, GLOBAL void *p, i64 i, const R *v)
{
#if LANES == 1 || SIMT_CODE == 1
    if (type == R_TYPE)
        for (i32 e = 0; e < VEC; e++)
            ((GLOBAL R *)p)[i + e] = v[e];
#if SIMT_CODE != 1 /* which rounds twice */
    else if (type == SIMT_F16)
        for (i32 e = 0; e < VEC; e++)
            f16_store((GLOBAL u16 *)p + i + e, v[e]);
    else if (type == SIMT_BF16)
        for (i32 e = 0; e < VEC; e++)
            bf16_store((GLOBAL u16 *)p + i + e, v[e]);
#endif
    else
        for (i32 e = 0; e < VEC; e++)
            NAME(store_r)(type, p, i + e, v[e]);
#else
    if (type == SIMT_F32) {
        f32_store4((GLOBAL f32 *)p + i, v);
#if VEC == 8
        f32_store4((GLOBAL f32 *)p + i + 4, v + 4);
    } else if (type == SIMT_F16) {
        f16_store8((GLOBAL u16 *)p + i, v);
    } else if (type == SIMT_BF16) {
        bf16_store8((GLOBAL u16 *)p + i, v);
#else
    } else if (type == SIMT_F16) {
        f16_store4((GLOBAL u16 *)p + i, v);
    } else if (type == SIMT_BF16) {
        bf16_store4((GLOBAL u16 *)p + i, v);
#endif
    } else {
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            NAME(store_r)(type, p, i + e, v[e]);
    }
#endif
}

/* A run as it is loaded. */
#undef RAW
#if LANES > 1
#define RAW u32x4
#else
typedef struct NAME(raw) {
    R v[VEC];
} NAME(raw);
#define RAW NAME(raw)
#endif

DEVICE RAW NAME(load_raw)(i32 type, const GLOBAL T *p)
{
#if LANES > 1
    return *(const GLOBAL u32x4 *)p;
#else
    NAME(raw) q;
    NAME(load_run)(HALF_TYPE(type), p, 0, q.v);
    return q;
#endif
}

/* Its elements. Registers hold more runs before that than after it. */
DEVICE void NAME(unpack_run)(i32 type, RAW q, R *v)
{
#if LANES == 1
    for (i32 e = 0; e < VEC; e++)
        v[e] = q.v[e];
#elif SIMT_CODE == 1
    v[0] = I64_AS_F64((i64)(q.x | (u64)q.y << 32));
    v[1] = I64_AS_F64((i64)(q.z | (u64)q.w << 32));
#elif SIMT_CODE == 2
    v[0] = U32_AS_F32(q.x);
    v[1] = U32_AS_F32(q.y);
    v[2] = U32_AS_F32(q.z);
    v[3] = U32_AS_F32(q.w);
#else
    if (HALF_TYPE(type) == SIMT_F16) {
        f16_unpack8(q, v);
    } else {
        bf16_unpack(q.x, v);
        bf16_unpack(q.y, v + 2);
        bf16_unpack(q.z, v + 4);
        bf16_unpack(q.w, v + 6);
    }
#endif
}

DEVICE void NAME(add_raw)(i32 type, RAW q, R *sum)
{
    R v[VEC];
    NAME(unpack_run)(type, q, v);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        sum[e] += v[e];
}

/* The first element of a run, in which the others move up: for loops over elements that are not
 * written out, as registers have constant numbers. */
DEVICE R NAME(run_turn)(R *v)
{
    const R first = v[0];
    UNROLL
    for (i32 e = 1; e < VEC; e++)
        v[e - 1] = v[e];
    return first;
}

/* Types whose aligned runs are loaded and stored in place. With functions of their own for elements
 * these are the usual ones: the rest goes by elements. */
#undef IN_PLACE
#ifndef PARTS_APART
#define IN_PLACE(type) 1
#elif SIMT_CODE == 1
#define IN_PLACE(type) ((type) == SIMT_F64)
#else
#define IN_PLACE(type) ((type) == SIMT_F32 || (type) == SIMT_F16 || (type) == SIMT_BF16)
#endif

DEVICE void NAME(load_elements)(i32 type, const GLOBAL void *p, i64 i, i64 stride, i32 count, R *v)
{
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        v[e] = e < count ? NAME(load_r)(type, p, i + e * stride) : (R)0;
}

DEVICE void NAME(store_elements)(i32 type, GLOBAL void *p, i64 i, i64 stride, i32 count, const R *v)
{
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        if (e < count)
            NAME(store_r)(type, p, i + e * stride, v[e]);
}

#ifdef PARTS_APART
typedef struct NAME(part) {
    R v[VEC];
} NAME(part);

DEVICE_APART NAME(part) NAME(load_apart)(i32 type, const void *p, i64 i, i64 stride, i32 count)
{
    NAME(part) part;
    NAME(load_elements)(type, p, i, stride, count, part.v);
    return part;
}

DEVICE_APART void NAME(store_apart)(i32 type, void *p, i64 i, i64 stride, i32 count,
                                    NAME(part) part)
{
    NAME(store_elements)(type, p, i, stride, count, part.v);
}
#endif

/* `count` elements at a stride, as one run where `vector` says that they are VEC aligned
 * neighbours. What lies beyond count is 0. */
DEVICE void NAME(load_part)(i32 type, const GLOBAL void *p, i64 i, i64 stride, i32 count,
                            i32 vector, R *v)
{
    if (vector && count == VEC && IN_PLACE(type)) {
        NAME(load_run)(type, p, i, v);
        return;
    }
#ifdef PARTS_APART
    const NAME(part) part = NAME(load_apart)(type, p, i, stride, count);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        v[e] = part.v[e];
#else
    NAME(load_elements)(type, p, i, stride, count, v);
#endif
}

DEVICE void NAME(store_part)(i32 type, GLOBAL void *p, i64 i, i64 stride, i32 count, i32 vector,
                             const R *v)
{
    if (vector && count == VEC && IN_PLACE(type)) {
        NAME(store_run)(type, p, i, v);
        return;
    }
#ifdef PARTS_APART
    NAME(part) part;
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        part.v[e] = v[e];
    NAME(store_apart)(type, p, i, stride, count, part);
#else
    NAME(store_elements)(type, p, i, stride, count, v);
#endif
}

/* The same for alpha * v + beta * what is there; beta = 0 reads nothing. */
DEVICE void NAME(blend_part)(i32 type, GLOBAL void *p, i64 i, i64 stride, i32 count, i32 vector,
                             R alpha, R beta, const R *v)
{
    R d[VEC], old[VEC];
    if (beta != 0)
        NAME(load_part)(type, p, i, stride, count, vector, old);
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        d[e] = beta != 0 ? FMA(beta, old[e], alpha * v[e]) : alpha * v[e];
    NAME(store_part)(type, p, i, stride, count, vector, d);
}

/* The sum of v over `lanes` lanes (a power of two), of which this is number `lane`; scratch is
 * their part of local memory. The whole group calls it, and every lane gets its sum. Each level of
 * the tree joins up to TREE_WAYS parts: a barrier costs more than a few additions. */
#undef TREE_WAYS
#define TREE_WAYS 8
DEVICE R NAME(tree_sum)(LOCAL_ARG R *scratch, i32 lane, i32 lanes, R v)
{
#if LANES > 1
    scratch[lane] = v;
    BARRIER();
    for (i32 parts = lanes, left; parts > 1; parts = left) {
        left = parts > TREE_WAYS ? parts / TREE_WAYS : 1;
        if (lane < left) {
            for (i32 from = lane + left; from < parts; from += left)
                v += scratch[from];
            scratch[lane] = v;
        }
        BARRIER();
    }
    v = scratch[0];
    BARRIER();
#endif
    return v;
}

/* The same for the largest; a NaN stays. */
DEVICE R NAME(tree_max)(LOCAL_ARG R *scratch, i32 lane, i32 lanes, R v)
{
#if LANES > 1
    scratch[lane] = v;
    BARRIER();
    for (i32 parts = lanes, left; parts > 1; parts = left) {
        left = parts > TREE_WAYS ? parts / TREE_WAYS : 1;
        if (lane < left) {
            for (i32 from = lane + left; from < parts; from += left) {
                const R other = scratch[from];
                v = other > v || other != other ? other : v;
            }
            scratch[lane] = v;
        }
        BARRIER();
    }
    v = scratch[0];
    BARRIER();
#endif
    return v;
}

/* Joins runs of the lanes that are `lanes` apart, in a fixed order; all of them get the sums. */
DEVICE void NAME(column_join)(LOCAL_ARG R *scratch, i32 lanes, R *v)
{
#if LANES > 1
    const i32 part = LANE / lanes;
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        scratch[e * LANES + LANE] = v[e];
    BARRIER();
    for (i32 reach = LANES / lanes / 2; reach > 0; reach /= 2) {
        if (part < reach) {
            UNROLL
            for (i32 e = 0; e < VEC; e++)
                scratch[e * LANES + LANE] += scratch[e * LANES + LANE + reach * lanes];
        }
        BARRIER();
    }
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        v[e] = scratch[e * LANES + LANE % lanes];
    BARRIER();
#endif
}

/* The sum of element i of `shares` arrays of `count` numbers; LANES / cols lanes take it, cols
 * apart, and the first of them gets it. The whole group calls it. */
DEVICE R NAME(shares_sum)(LOCAL_ARG R *scratch, i32 cols, const GLOBAL R *partial, i64 shares,
                          i64 count, i64 i)
{
    const i32 parts = LANES / cols, part = LANE / cols;
    R sum = 0;
    for (i64 s = part; i < count && s < shares; s += 4 * parts) {
        UNROLL
        for (i32 u = 0; u < 4; u++)
            sum += s + u * parts < shares ? partial[(s + u * parts) * count + i] : (R)0;
    }
    scratch[LANE] = sum;
    SYNC();
    for (i32 other = 1; part == 0 && other < parts; other++)
        sum += scratch[other * cols + LANE];
    SYNC();
    return sum;
}

#endif
