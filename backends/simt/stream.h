/* store_part of what is not read soon. Included after lanes.h. */
DEVICE void NAME(stream_part)(i32 type, GLOBAL void *p, i64 i, i64 stride, i32 count, i32 vector,
                              const R *v)
{
#if LANES > 1 && (SIMT_CODE == 2 || SIMT_CODE == 4)
    if (vector && count == VEC && type == SIMT_CODE) {
        u32x4 q;
#if SIMT_CODE == 2
        q.x = F32_AS_U32(v[0]);
        q.y = F32_AS_U32(v[1]);
        q.z = F32_AS_U32(v[2]);
        q.w = F32_AS_U32(v[3]);
#else
        q.x = bf16_pack(v);
        q.y = bf16_pack(v + 2);
        q.z = bf16_pack(v + 4);
        q.w = bf16_pack(v + 6);
#endif
        u32x4_stream((GLOBAL u32x4 *)((GLOBAL T *)p + i), q);
        return;
    }
#endif
    NAME(store_part)(type, p, i, stride, count, vector, v);
}
