/* Four neighbours of an array as they are loaded: numbers of 16 bits in pairs, so that no load waits
 * for the conversion of the one before. Included after lanes.h, once for each type, by a file that
 * defines QUAD_TYPE(type) as HALF_TYPE or SINGLE_TYPE; QUAD_OWN if that is of one type and no other. */
#undef QUAD_WORDS
#define QUAD_WORDS(type) (QUAD_TYPE(type) == SIMT_F32)

typedef struct NAME(quad) {
#if QUAD_OWN
    R v[4];
#else
    u32 v[4];
#endif
} NAME(quad);

/* Element i and its neighbours, at an aligned address. */
DEVICE NAME(quad) NAME(quad_whole)(i32 type, const GLOBAL void *p, i64 i)
{
    NAME(quad) q;
#if QUAD_OWN && SIMT_CODE == 2
    f32_load4((const GLOBAL f32 *)p + i, q.v);
#elif QUAD_OWN
    const GLOBAL u32x4 *const at = (const GLOBAL u32x4 *)((const GLOBAL f64 *)p + i);
    UNROLL
    for (i32 e = 0; e < 2; e++) {
        const u32x4 two = at[e];
        q.v[2 * e] = I64_AS_F64((i64)(two.x | (u64)two.y << 32));
        q.v[2 * e + 1] = I64_AS_F64((i64)(two.z | (u64)two.w << 32));
    }
#else
    if (QUAD_WORDS(type)) {
        const u32x4 four = *(const GLOBAL u32x4 *)((const GLOBAL u32 *)p + i);
        q.v[0] = four.x;
        q.v[1] = four.y;
        q.v[2] = four.z;
        q.v[3] = four.w;
    } else {
        const u32x2 pairs = *(const GLOBAL u32x2 *)((const GLOBAL u16 *)p + i);
        q.v[0] = pairs.x;
        q.v[1] = pairs.y;
        q.v[2] = q.v[3] = 0;
    }
#endif
    return q;
}

/* The first `count` of four at a stride, the others are 0. */
DEVICE NAME(quad)
    NAME(quad_part)(i32 type, const GLOBAL void *p, i64 i, i64 step, i64 count, i32 vector)
{
    NAME(quad) q;
    if (vector && count >= 4)
        return NAME(quad_whole)(type, p, i);
#if QUAD_OWN
    UNROLL
    for (i32 e = 0; e < 4; e++)
        q.v[e] = e < count ? ((const GLOBAL R *)p)[i + e * step] : (R)0;
#else
    u32 bits[4];
    UNROLL
    for (i32 e = 0; e < 4; e++) {
        bits[e] = 0;
        if (e < count)
            bits[e] = QUAD_WORDS(type) ? ((const GLOBAL u32 *)p)[i + e * step]
                                       : ((const GLOBAL u16 *)p)[i + e * step];
    }
    q.v[0] = QUAD_WORDS(type) ? bits[0] : bits[0] | bits[1] << 16;
    q.v[1] = QUAD_WORDS(type) ? bits[1] : bits[2] | bits[3] << 16;
    q.v[2] = bits[2];
    q.v[3] = bits[3];
#endif
    return q;
}

DEVICE void NAME(quad_numbers)(i32 type, NAME(quad) q, R *v)
{
#if QUAD_OWN
    UNROLL
    for (i32 e = 0; e < 4; e++)
        v[e] = q.v[e];
#else
    if (QUAD_WORDS(type)) {
        UNROLL
        for (i32 e = 0; e < 4; e++)
            v[e] = U32_AS_F32(q.v[e]);
    } else if (type == SIMT_BF16) {
        bf16_unpack(q.v[0], v);
        bf16_unpack(q.v[1], v + 2);
    } else {
        f16_unpack(q.v[0], v);
        f16_unpack(q.v[1], v + 2);
    }
#endif
}

/* Four neighbours of an array of any float type, at an aligned address. */
DEVICE void NAME(quad_load)(i32 type, const GLOBAL void *p, i64 i, R *v)
{
#if SIMT_CODE != 1
    if (type == SIMT_F32)
        f32_load4((const GLOBAL f32 *)p + i, v);
    else if (type == SIMT_F16)
        f16_load4((const GLOBAL u16 *)p + i, v);
    else if (type == SIMT_BF16)
        bf16_load4((const GLOBAL u16 *)p + i, v);
    else
#endif
        UNROLL
    for (i32 e = 0; e < 4; e++)
        v[e] = NAME(load_r)(type, p, i + e);
}

DEVICE void NAME(quad_store)(i32 type, GLOBAL void *p, i64 i, const R *v)
{
#if SIMT_CODE == 1
    UNROLL
    for (i32 e = 0; e < 4; e++)
        NAME(store_r)(type, p, i + e, v[e]);
#else
    if (type == SIMT_F32)
        f32_store4((GLOBAL f32 *)p + i, v);
    else if (type == SIMT_F16)
        f16_store4((GLOBAL u16 *)p + i, v);
    else if (type == SIMT_BF16)
        bf16_store4((GLOBAL u16 *)p + i, v);
    else
        for (i32 e = 0; e < 4; e++)
            NAME(store_r)(type, p, i + e, v[e]);
#endif
}
