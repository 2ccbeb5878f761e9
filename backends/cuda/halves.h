/* Kernels of bf16 and f16 that differ in the name of the type in some instructions, and in nothing
 * else. nvcc compiles them once, for a type that C++ cannot calculate with: as bf16, with a mark in
 * each line of PTX that names it, or that is another for f16. types.awk makes f16 of that, which
 * takes no time beside the compiler's; and of kernels for f8 of e4m3 those for its other types. Other
 * compilers have all types. */
#ifndef BSKI_CUDA_HALVES_H
#define BSKI_CUDA_HALVES_H

#include <stdint.h>

#include <bsk/tensor.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define HALVES_FN template <> __device__ __forceinline__

/* The types of wgmma, and those of C++ for them. */
enum { WGMMA_F16, WGMMA_BF16, WGMMA_HALVES, WGMMA_TF32 };
template <int TYPE> struct element;

/* The elements' type in bsk_dtype. */
template <typename T> static __device__ __forceinline__ int dtype_of(void);
/* Two elements in f32, the lower half of the word first. */
template <typename T> static __device__ __forceinline__ float2 numbers_of(uint32_t both);

/* X(name, type), X(name, type, ...) and the latter with the type of wgmma, for each type that there
 * are kernels of; and X(name) for pairs of f8 types. */
#ifdef __NVCC__

#define TYPE_MARK                " /*type*/"
#define FOR_HALVES(X)            X(bf16, halves)
#define FOR_HALVES_WITH(X, ...)  X(bf16, halves, __VA_ARGS__)
#define FOR_HALVES_WGMMA(X, ...) X(bf16, WGMMA_HALVES, __VA_ARGS__)
#define FOR_F8_PAIRS(X)          X(e4m3_e4m3)

struct halves {
    uint16_t bits;
};
template <> struct element<WGMMA_HALVES> {
    typedef halves type;
};

/* A number that nothing else is, for comparisons: types.awk puts the type's there. */
static_assert(BSK_BF16 == 4 && BSK_F16 == 3, "types.awk has these numbers");
HALVES_FN int dtype_of<halves>(void)
{
    return 1212238918;
}

HALVES_FN float2 numbers_of<halves>(uint32_t both)
{
    float2 v;
    asm("shl.b32 %0, %1, 16; /*type: {.reg .b16 low, high; mov.b32 {low, high}, %1; "
        "cvt.f32.f16 %0, low;}*/"
        : "=f"(v.x)
        : "r"(both));
    asm("and.b32 %0, %1, 0xffff0000; /*type: {.reg .b16 low, high; mov.b32 {low, high}, %1; "
        "cvt.f32.f16 %0, high;}*/"
        : "=f"(v.y)
        : "r"(both));
    return v;
}

#else

#define FOR_HALVES(X)            X(bf16, __nv_bfloat16) X(f16, __half)
#define FOR_HALVES_WITH(X, ...)  X(bf16, __nv_bfloat16, __VA_ARGS__) X(f16, __half, __VA_ARGS__)
#define FOR_HALVES_WGMMA(X, ...) X(bf16, WGMMA_BF16, __VA_ARGS__) X(f16, WGMMA_F16, __VA_ARGS__)
#define FOR_F8_PAIRS(X)          X(e4m3_e4m3) X(e4m3_e5m2) X(e5m2_e4m3) X(e5m2_e5m2)

template <> struct element<WGMMA_BF16> {
    typedef __nv_bfloat16 type;
};
template <> struct element<WGMMA_F16> {
    typedef __half type;
};

HALVES_FN int dtype_of<__nv_bfloat16>(void)
{
    return BSK_BF16;
}

HALVES_FN int dtype_of<__half>(void)
{
    return BSK_F16;
}

HALVES_FN float2 numbers_of<__nv_bfloat16>(uint32_t both)
{
    return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000));
}

HALVES_FN float2 numbers_of<__half>(uint32_t both)
{
    return __half22float2(*(const __half2 *)&both);
}

#endif
#undef HALVES_FN

#endif
