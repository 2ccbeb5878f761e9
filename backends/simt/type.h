/* Defines T, R, LD, ST and NAME for the storage type SIMT_T. No include guard: a kernel file is
 * compiled once per type. */
#undef T
#undef R
#undef LD
#undef ST

#ifndef SIMT_JOIN
#define SIMT_JOIN_(a, b) a##_##b
#define SIMT_JOIN(a, b)  SIMT_JOIN_(a, b)
#define NAME(x)          SIMT_JOIN(x, SIMT_T)
#define SIMT_CODE_f64    1
#define SIMT_CODE_f32    2
#define SIMT_CODE_f16    3
#define SIMT_CODE_bf16   4
#define SIMT_CODE        SIMT_JOIN(SIMT_CODE, SIMT_T)
#endif

#if SIMT_CODE == 1
#define T           f64
#define R           f64
#define LD(p, i)    ((p)[i])
#define ST(p, i, v) ((p)[i] = (v))
#elif SIMT_CODE == 2
#define T           f32
#define R           f32
#define LD(p, i)    ((p)[i])
#define ST(p, i, v) ((p)[i] = (v))
#elif SIMT_CODE == 3
#define T           u16
#define R           f32
#define LD(p, i)    f16_load((p) + (i))
#define ST(p, i, v) f16_store((p) + (i), v)
#else
#define T           u16
#define R           f32
#define LD(p, i)    bf16_load((p) + (i))
#define ST(p, i, v) bf16_store((p) + (i), v)
#endif
