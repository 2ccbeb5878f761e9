/* Kernels of cast. The host's side (cast.c) includes this file without SIMT_T for the structs of
 * scalars. Integers have kernels of f32, and are i64 in between; numbers of 8 bits are f32 in between,
 * which holds all of them. */
#define SIMT_SINGLES
#include "map.h"

#ifndef BSKI_SIMT_CAST_H
#define BSKI_SIMT_CAST_H

/* Tensors whose neighbours lie along different dimensions pass through a square of local memory:
 * sides of 64 elements, of 32 for f64. Dimensions: those of neither, that of y, that of x. */
enum { TILE_SIDE = 64, TILE_SIDE_F64 = 32 };

typedef struct cast_tile_arg {
    i64 size[SHAPE_RANK], x[SHAPE_RANK], y[SHAPE_RANK]; /* strides */
    i32 x_type, y_type;
} cast_tile_arg;

#ifdef SIMT_T
#include "bytes.h"

/* The nearest number of 8 bits, of two the even one; the largest for what is beyond it. NaN stays NaN,
 * and is 0 as i8. Additions of floats align small numbers, and round them. */
DEVICE u32 number_byte(i32 type, f32 v)
{
    const u32 sign = F32_AS_U32(v) >> 24 & 0x80u, a = F32_AS_U32(v) & 0x7fffffffu;
    if (type == SIMT_I8) {
        const f32 near = v < -128 ? -128 : v > 127 ? 127 : v;
        return v != v ? 0 : F32_AS_U32(near + 12582912.0f) & 0xffu; /* 3 * 2^22 */
    }
    const i32 e4m3 = type == SIMT_F8E4M3;
    const u32 shift = e4m3 ? 20 : 21, low = e4m3 ? 121 : 113; /* exponents from 1 on, in f32 */
    const u32 grid = (low + shift) << 23;
    const u32 up = (1u << (shift - 1)) - 1 + (a >> shift & 1u);
    u32 b = (a + up - ((low - 1) << 23)) >> shift;
    b = a < low << 23 ? F32_AS_U32(U32_AS_F32(a) + U32_AS_F32(grid)) - grid : b;
    b = a >= (e4m3 ? 0x43e00000u : 0x47600000u) ? (e4m3 ? 0x7eu : 0x7bu) : b;
    return sign | (a > 0x7f800000u ? 0x7fu : b);
}
#endif

#endif

#ifdef SIMT_T
/* The whole number next to v on the side of 0, or the nearest limit of i64; 0 for NaN. */
DEVICE i64 NAME(cast_whole_of)(R v)
{
    const R limit = (R)9223372036854775808.0;
    const i64 most = (i64)(~(u64)0 >> 1);
    if (v != v)
        return 0;
    return v >= limit ? most : v <= -limit ? -most - 1 : (i64)v;
}

DEVICE void NAME(cast_store_whole)(i32 type, GLOBAL u8 *y, i64 i, i64 v)
{
    const i64 low = type == SIMT_I32 ? -2147483647 - 1 : 0;
    const i64 high = type == SIMT_I32 ? 2147483647 : type == SIMT_U16 ? 65535 : 255;
    if (type == SIMT_I64) {
        ((GLOBAL i64 *)y)[i] = v;
        return;
    }
    v = v < low ? low : v > high ? high : v;
    if (type == SIMT_I32)
        ((GLOBAL i32 *)y)[i] = (i32)v;
    else if (type == SIMT_U16)
        ((GLOBAL u16 *)y)[i] = (u16)v;
    else
        y[i] = (u8)v;
}

/* Numbers, one at a time. */
DEVICE R NAME(cast_get)(i32 type, const GLOBAL u8 *x, i64 i)
{
    return is_byte(type) ? (R)byte_number(type, x[i]) : NAME(load_r)(type, x, i);
}

DEVICE void NAME(cast_put)(i32 type, GLOBAL u8 *y, i64 i, R v)
{
#if SIMT_CODE == 1
    const f32 near = is_byte(type) ? f64_to_odd(v) : 0;
#else
    const f32 near = v;
#endif
    if (is_byte(type))
        y[i] = (u8)number_byte(type, near);
    else
        NAME(store_r)(type, y, i, v);
}

/* A run of numbers, as map_load. */
DEVICE void NAME(cast_load)(const map_arg *a, const GLOBAL u8 *const *x, const shape_walk *w,
                            i32 inputs, const RAW *q, R (*v)[VEC])
{
    const view_arg *t = &a->x[0];
    if (SIMT_CODE == 1 || !is_byte(t->type)) {
        NAME(map_load)(a, x, w, inputs, q, v);
        return;
    }
    const i32 count = run_length(a->shape.size[SHAPE_LAST], w->at[SHAPE_LAST] * VEC, VEC);
    const GLOBAL u8 *p = x[0] + shape_offset(w->at, w->rank, VEC, t->stride);
    u32 b[VEC];
#if LANES > 1
    if (t->run == RUN_VECTOR && count == VEC) {
        const u32 word = *(const GLOBAL u32 *)p;
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            b[e] = word >> 8 * e & 0xffu;
    } else
#endif
    {
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            b[e] = e < count ? p[e * t->stride[SHAPE_LAST]] : 0;
    }
    UNROLL
    for (i32 e = 0; e < VEC; e++)
        v[0][e] = byte_number(t->type, b[e]);
}

/* A run of numbers, also to whole ones. */
DEVICE void NAME(cast_run)(const map_arg *a, const shape_walk *w, GLOBAL u8 *y, R *v)
{
    if (a->y.type < SIMT_I64) {
        NAME(map_store)(a, w, y, v);
        return;
    }
    const i32 count = run_length(a->shape.size[SHAPE_LAST], w->at[SHAPE_LAST] * VEC, VEC);
    const i64 at = shape_offset(w->at, w->rank, VEC, a->y.stride);
    const i64 step = a->y.stride[SHAPE_LAST];
#if LANES > 1 && SIMT_CODE == 2
    if (is_byte(a->y.type) && a->y.run == RUN_VECTOR && count == VEC) {
        u32 word = 0;
        UNROLL
        for (i32 e = 0; e < VEC; e++)
            word |= number_byte(a->y.type, v[e]) << 8 * e;
        *(GLOBAL u32 *)(y + at) = word;
        return;
    }
#endif
    UNROLL
    for (i32 e = 0; e < VEC; e++) {
        if (e < count && is_byte(a->y.type))
            NAME(cast_put)(a->y.type, y, at + e * step, v[e]);
        else if (e < count)
            NAME(cast_store_whole)(a->y.type, y, at + e * step, NAME(cast_whole_of)(v[e]));
    }
}

KERNEL(cast, LANES)(BUF(const u8, x0), BUF(u8, y), const map_arg a)
{
    QUEUE_WAIT();
    OPEN(const u8, x0);
    OPEN(u8, y);
    const GLOBAL u8 *const x[1] = {x0};
    MAP_EACH_BY(NAME(cast_load), 1, NAME(cast_run)(&a, &w, y, v[0]);)
}

/* Between numbers. A group takes one square. */
#undef SIDE
#define SIDE (SIMT_CODE == 1 ? TILE_SIDE_F64 : TILE_SIDE)
#if LANES > 1
KERNEL(cast_tile, LANES)(BUF(const u8, x), BUF(u8, y), const cast_tile_arg a)
{
    QUEUE_WAIT();
    LOCAL R tile[SIDE][SIDE + 1];
    OPEN(const u8, x);
    OPEN(u8, y);
    const i64 across = (a.size[3] + SIDE - 1) / SIDE, down = (a.size[4] + SIDE - 1) / SIDE;
    const i32 col = LANE % SIDE, row = LANE / SIDE;
    i64 place = GROUP(0), x_at = 0, y_at = 0;
    const i64 y_first = place % across * SIDE;
    place /= across;
    const i64 x_first = place % down * SIDE;
    place /= down;
    UNROLL
    for (i32 d = 2; d >= 0; d--) {
        x_at += place % a.size[d] * a.x[d];
        y_at += place % a.size[d] * a.y[d];
        place /= a.size[d];
    }
    UNROLL
    for (i32 r = 0; r < SIDE; r += LANES / SIDE) {
        const i64 i = y_first + row + r, j = x_first + col;
        if (i < a.size[3] && j < a.size[4])
            tile[row + r][col] = NAME(cast_get)(a.x_type, x, x_at + i * a.x[3] + j * a.x[4]);
    }
    BARRIER();
    UNROLL
    for (i32 r = 0; r < SIDE; r += LANES / SIDE) {
        const i64 i = y_first + col, j = x_first + row + r;
        if (i < a.size[3] && j < a.size[4])
            NAME(cast_put)(a.y_type, y, y_at + i * a.y[3] + j * a.y[4], tile[col][row + r]);
    }
}
#endif

#if SIMT_CODE == 2
/* v in 24 bits or fewer, times a power of two: nothing is lost that a rounding to fewer needs. */
DEVICE f32 whole_to_odd(i64 v)
{
    u64 size = v < 0 ? (u64)0 - (u64)v : (u64)v;
    f32 scale = v < 0 ? -1 : 1;
    for (; size >> 24; scale *= 256)
        size = size >> 8 | ((size & 255) != 0);
    return (f32)(u32)size * scale;
}

/* From whole numbers. */
KERNEL(cast_whole, LANES)(BUF(const u8, x), BUF(u8, y), const map_arg a)
{
    QUEUE_WAIT();
    OPEN(const u8, x);
    OPEN(u8, y);
    shape_walk w;
    NO_UNROLL
    for (shape_start(&w, &a.shape, VEC, LANES); w.left > 0; shape_next(&w)) {
        const i32 count = run_length(a.shape.size[SHAPE_LAST], w.at[SHAPE_LAST] * VEC, VEC);
        i64 from = shape_offset(w.at, w.rank, VEC, a.x[0].stride);
        i64 to = shape_offset(w.at, w.rank, VEC, a.y.stride);
        for (i32 e = 0; e < count; e++) {
            const i64 v = load_index(a.x[0].type, x, from);
            if (is_byte(a.y.type))
                NAME(cast_put)(a.y.type, y, to, whole_to_odd(v));
            else if (a.y.type >= SIMT_I64)
                NAME(cast_store_whole)(a.y.type, y, to, v);
#ifdef SIMT_HAS_F64
            else if (a.y.type == SIMT_F64)
                ((GLOBAL f64 *)y)[to] = (f64)v;
#endif
            else
                store_as(a.y.type, y, to, a.y.type == SIMT_F32 ? (f32)v : whole_to_odd(v));
            from += a.x[0].stride[SHAPE_LAST];
            to += a.y.stride[SHAPE_LAST];
        }
    }
}
#endif
#endif
