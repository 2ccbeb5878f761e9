/* Numbers of 8 bits as f32, which holds all of them. */
#ifndef BSKI_SIMT_BYTES_H
#define BSKI_SIMT_BYTES_H

DEVICE i32 is_byte(i32 type)
{
    return type > SIMT_U8;
}

/* The number of 8 bits that b holds. e4m3 has one NaN and no infinity. */
DEVICE f32 byte_number(i32 type, u32 b)
{
    const u32 sign = (b & 0x80u) << 24, a = b & 0x7fu;
    u32 u;
    if (type == SIMT_I8)
        return (f32)((i32)(b ^ 0x80u) - 128);
    if (type == SIMT_F8E4M3) {
        u = a < 8 ? F32_AS_U32((f32)a * (1.0f / 512)) : (a << 20) + (120u << 23);
        u = a == 0x7fu ? 0x7fc00000u : u;
    } else {
        u = a < 4 ? F32_AS_U32((f32)a * (1.0f / 65536)) : (a << 21) + (112u << 23);
        u = a > 0x7cu ? 0x7fc00000u | a << 21 : a == 0x7cu ? 0x7f800000u : u;
    }
    return U32_AS_F32(sign | u);
}

#endif
