/* The dialect of the portable GPU kernels: one text for CUDA, HIP, OpenCL C 1.2 and the host
 * emulator. Vendor conditionals live here and nowhere else.
 *
 * A kernel file is included (CUDA, HIP, emulator) or compiled (OpenCL) once for each storage type,
 * after SIMT_T is set to f32, f64, f16 or bf16 and type.h was included, which defines
 *     T            storage type            R             arithmetic type, float or double
 *     LD(p, i)     element i as R          ST(p, i, v)   the rounded store
 *     NAME(x)      x_<type>
 * Include this header before any other macro is set: vendor headers use short names too.
 *
 * Kernels take buffers, then one struct of scalars by value:
 *     KERNEL(dsd, 256)(BUF(const T, s), BUF(T, c), const dsd_arg a)
 *     {
 *         QUEUE_WAIT();
 *         OPEN(const T, s);
 *         OPEN(T, c);
 * BUF is a pointer, and in OpenCL a pointer with a byte offset, since a cl_mem has no address; OPEN
 * joins the two. An absent buffer is NULL. Structs of scalars hold i64, i32, f32 and f64 only,
 * widest first, so that every compiler lays them out alike. QUEUE_WAIT comes first in every kernel:
 * groups may start before the queue's earlier work has ended, and wait there until it has.
 *
 * Groups are one-dimensional; grids have three axes. Local arrays are declared at the top of a
 * kernel: LOCAL float tile[16][64]; nothing assumes a wave size but
 * what knows WAVE, below, and does without it.
 * BARRIER() orders local memory, GLOBAL_BARRIER() local and global memory within the group. */
#ifndef BSKI_SIMT_H
#define BSKI_SIMT_H

/* ============================================================================ OpenCL C 1.2 ==== */
#if defined(__OPENCL_VERSION__)

#ifdef SIMT_HAS_F64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
typedef double f64;
#endif

typedef float f32;
typedef long i64;
typedef ulong u64;
typedef int i32;
typedef uint u32;
typedef ushort u16;
typedef uchar u8;

#define GLOBAL          __global
#define LOCAL           __local
#define LOCAL_ARG       __local
#define DEVICE          static inline
#define DEVICE_APART    __attribute__((noinline)) static
#define BUF(type, name) __global type *name##_base, const i64 name##_byte
#define OPEN(type, name)                                                                           \
    __global type *name =                                                                          \
        (__global type *)(name##_base ? (__global char *)name##_base + name##_byte : 0)
#define KERNEL(name, size)                                                                         \
    __kernel __attribute__((reqd_work_group_size(size, 1, 1))) void NAME(name)
#define GROUP(axis)      ((i64)get_group_id(axis))
#define GROUPS(axis)     ((i64)get_num_groups(axis))
#define LANE             ((i32)get_local_id(0))
#define BARRIER()        barrier(CLK_LOCAL_MEM_FENCE)
#define GLOBAL_BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define U32_AS_F32       as_float
#define F32_AS_U32       as_uint
#define FMA(a, b, c)     mad(a, b, c)
#define MATH(fn)         fn /* one name for float and double */
#define I64_AS_F64       as_double
#define F64_AS_U64       as_ulong
#define UNROLL           _Pragma("unroll")
#define NO_UNROLL        _Pragma("unroll 1")
#ifndef SIMT_NVIDIA /* compute capability as 90 for 9.0; the host sets it, to 0 for other makers */
#define SIMT_NVIDIA 0
#endif
#if SIMT_NVIDIA
/* Without its size, from which NVIDIA's compiler would infer how many registers it may take, instead
 * of from the host's option. */
#define KERNEL_DENSE(name, size) __kernel void NAME(name)
#else
#define FAST_DIVIDE(a, b) native_divide(a, b) /* f32, a few units; b is not beyond 2^126 */
#define FAST_EXP2(x)      native_exp2(x)      /* f32; may flush what is below 2^-126 */
#endif

typedef uint2 u32x2;
typedef uint4 u32x4;

DEVICE void u32x2_store(__global u32x2 *p, u32x2 q)
{
    *p = q;
}

DEVICE void u32x4_store(__global u32x4 *p, u32x4 q)
{
    *p = q;
}

DEVICE void u32x4_store_local(__local u32x4 *p, u32x4 q)
{
    *p = q;
}

DEVICE void f32_load4_local(const __local f32 *p, f32 *v)
{
    vstore4(*(const __local float4 *)p, 0, v);
}

DEVICE f32 f16_load(const __global u16 *p)
{
    return vload_half(0, (const __global half *)p);
}

DEVICE void f16_store(__global u16 *p, f32 v)
{
    vstore_half_rte(v, 0, (__global half *)p);
}

DEVICE void f16_load4(const GLOBAL u16 *p, f32 *v)
{
    vstore4(vloada_half4(0, (const __global half *)p), 0, v);
}

DEVICE void f16_load8(const GLOBAL u16 *p, f32 *v)
{
    vstore8(vloada_half8(0, (const __global half *)p), 0, v);
}

/* Eight f16 numbers in a register. */
DEVICE void f16_unpack8(u32x4 q, f32 *v)
{
    vstore8(vload_half8(0, (const __private half *)&q), 0, v);
}

/* Two of them in a word. */
DEVICE void f16_unpack(u32 word, f32 *v)
{
    vstore2(vload_half2(0, (const __private half *)&word), 0, v);
}

DEVICE void f16_store4(GLOBAL u16 *p, const f32 *v)
{
    vstorea_half4_rte(vload4(0, v), 0, (__global half *)p);
}

DEVICE void f16_store8(GLOBAL u16 *p, const f32 *v)
{
    vstorea_half8_rte(vload8(0, v), 0, (__global half *)p);
}

/* Vectors of 16, for the forms that run on a CPU. */
typedef float16 f32x16;
#ifdef SIMT_HAS_F64
typedef double16 f64x16;
#endif
#define WIDE_LOAD(type, p) vload16(0, p)
/* two elements, 8 times */
#define WIDE_PAIRS(type, p)                                                                        \
    ((type)(vload2(0, p), vload2(0, p), vload2(0, p), vload2(0, p), vload2(0, p), vload2(0, p),    \
            vload2(0, p), vload2(0, p)))

#define half half_ /* a keyword from here on no more: kernels use it as a name */

/* ======================================================================= CUDA, HIP, emulator ==== */
#else

#include <stdint.h>

typedef float f32;
typedef double f64;
typedef long long i64;
typedef unsigned long long u64;
typedef int32_t i32;
typedef uint32_t u32;
typedef uint16_t u16;
typedef uint8_t u8;

#define SIMT_HAS_F64 1
#define GLOBAL
#define BUF(type, name)  type *name##_base
#define OPEN(type, name) type *name = name##_base
#define FMA(a, b, c)     ((a) * (b) + (c)) /* contracted by the compiler */

#define LOCAL_ARG /* of a pointer to local memory that a function takes */

#if defined(SIMT_EMULATOR)
#include "emulator.h" /* LOCAL DEVICE KERNEL GROUP GROUPS LANE BARRIERs FAST_ and the conversions */
#define UNROLL
#define NO_UNROLL

typedef f32 f32x16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef f64 f64x16 __attribute__((vector_size(128), aligned(8), may_alias));
#define WIDE_LOAD(type, p) (*(const type *)(p))

typedef struct __attribute__((aligned(8))) u32x2 {
    u32 x, y;
} u32x2;

typedef struct __attribute__((aligned(16))) u32x4 {
    u32 x, y, z, w;
} u32x4;

DEVICE f64 I64_AS_F64(i64 bits)
{
    union {
        i64 bits;
        f64 value;
    } u = {bits};
    return u.value;
}

DEVICE u64 F64_AS_U64(f64 value)
{
    union {
        f64 value;
        u64 bits;
    } u = {value};
    return u.bits;
}
#elif defined(__HIP__)
#include "dialect.h"
#else

#define LOCAL              __shared__
#define DEVICE             static __device__ __forceinline__
#define DEVICE_APART       static __device__ __noinline__
#define KERNEL(name, size) extern "C" __global__ __launch_bounds__(size) void NAME(name)
#if defined(__CUDA_ARCH__)
/* Three groups of a multiprocessor hide more than what a few registers in memory cost. */
#define KERNEL_DENSE(name, size)                                                                   \
    extern "C" __global__ __launch_bounds__(size, 384 / (size)) void NAME(name)
/* Registers of a multiprocessor for that many groups at least. */
#define KERNEL_GROUPS(name, size, groups)                                                          \
    extern "C" __global__ __launch_bounds__(size, groups) void NAME(name)
#endif
#define GROUP(axis)        ((i64)SIMT_AXIS(blockIdx, axis))
#define GROUPS(axis)       ((i64)SIMT_AXIS(gridDim, axis))
#define SIMT_AXIS(v, axis) ((axis) == 0 ? v.x : (axis) == 1 ? v.y : v.z)
#define LANE               ((i32)threadIdx.x)
#define BARRIER()          __syncthreads()
#define GLOBAL_BARRIER()   __syncthreads()
#define U32_AS_F32         __uint_as_float
#define F32_AS_U32         __float_as_uint
#define MATH(fn)           fn /* overloaded for float and double */
#define I64_AS_F64         __longlong_as_double
#define F64_AS_U64(v)      ((u64)__double_as_longlong(v))
#define UNROLL             _Pragma("unroll")
#define NO_UNROLL          _Pragma("unroll 1")
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 /* where device.c lets groups start early */
#define QUEUE_WAIT() asm volatile("griddepcontrol.wait;" ::: "memory")
#endif
#if !defined(__CUDA_ARCH__)
#define FAST_DIVIDE(a, b) __fdividef(a, b)
#define FAST_EXP2(x)      exp2f(x)
#endif

typedef uint2 u32x2;
typedef uint4 u32x4;

#if defined(__CUDA_ARCH__)
/* nvcc takes many a store of a uint4 apart, and does not always join the parts again. */
#define SIMT_STORES
DEVICE void u32x2_store(u32x2 *p, u32x2 q)
{
    asm volatile("st.global.v2.u32 [%0], {%1, %2};"
                 :
                 : "l"(__cvta_generic_to_global(p)), "r"(q.x), "r"(q.y)
                 : "memory");
}

DEVICE void u32x4_store(u32x4 *p, u32x4 q)
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(p)), "r"(q.x), "r"(q.y), "r"(q.z), "r"(q.w)
                 : "memory");
}

DEVICE void u32x4_store_local(u32x4 *p, u32x4 q)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"((u32)__cvta_generic_to_shared(p)), "r"(q.x), "r"(q.y), "r"(q.z), "r"(q.w)
                 : "memory");
}
#endif

/* By instructions where the header that has functions for them is not there: it takes a compiler
 * long. */
DEVICE f32 f16_load(const u16 *p)
{
#if defined(__CUDA_FP16_H__)
    return __half2float(__ushort_as_half(*p));
#else
    f32 v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(*p));
    return v;
#endif
}

DEVICE void f16_store(u16 *p, f32 v)
{
#if defined(__CUDA_FP16_H__)
    *p = __half_as_ushort(__float2half_rn(v));
#else
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    *p = h;
#endif
}

#endif

/* Four aligned neighbours in local memory. */
DEVICE void f32_load4_local(const f32 *p, f32 *v)
{
    const u32x4 q = *(const u32x4 *)p;
    v[0] = U32_AS_F32(q.x);
    v[1] = U32_AS_F32(q.y);
    v[2] = U32_AS_F32(q.z);
    v[3] = U32_AS_F32(q.w);
}

#ifndef SIMT_STORES
DEVICE void u32x2_store(u32x2 *p, u32x2 q)
{
    *p = q;
}

DEVICE void u32x4_store(u32x4 *p, u32x4 q)
{
    *p = q;
}

DEVICE void u32x4_store_local(u32x4 *p, u32x4 q)
{
    *p = q;
}
#endif

/* Four and eight f16 numbers at an address aligned to their size. The conversions work on memory,
 * so the words that were loaded at once lie in an array of the lane's own. */
DEVICE void f16_load4(const u16 *p, f32 *v)
{
    u32x2 q = *(const u32x2 *)p;
    const u16 h[4] = {(u16)q.x, (u16)(q.x >> 16), (u16)q.y, (u16)(q.y >> 16)};
    UNROLL
    for (i32 e = 0; e < 4; e++)
        v[e] = f16_load(h + e);
}

DEVICE void f16_unpack8(u32x4 q, f32 *v)
{
    const u16 h[8] = {(u16)q.x, (u16)(q.x >> 16), (u16)q.y, (u16)(q.y >> 16),
                      (u16)q.z, (u16)(q.z >> 16), (u16)q.w, (u16)(q.w >> 16)};
    UNROLL
    for (i32 e = 0; e < 8; e++)
        v[e] = f16_load(h + e);
}

DEVICE void f16_unpack(u32 word, f32 *v)
{
    const u16 h[2] = {(u16)word, (u16)(word >> 16)};
    UNROLL
    for (i32 e = 0; e < 2; e++)
        v[e] = f16_load(h + e);
}

DEVICE void f16_load8(const u16 *p, f32 *v)
{
    f16_unpack8(*(const u32x4 *)p, v);
}

DEVICE void f16_store4(u16 *p, const f32 *v)
{
    u16 h[4];
    UNROLL
    for (i32 e = 0; e < 4; e++)
        f16_store(h + e, v[e]);
    u32x2 q = {h[0] | (u32)h[1] << 16, h[2] | (u32)h[3] << 16};
    u32x2_store((u32x2 *)p, q);
}

DEVICE void f16_store8(u16 *p, const f32 *v)
{
    u16 h[8];
    UNROLL
    for (i32 e = 0; e < 8; e++)
        f16_store(h + e, v[e]);
    u32x4 q = {h[0] | (u32)h[1] << 16, h[2] | (u32)h[3] << 16, h[4] | (u32)h[5] << 16,
               h[6] | (u32)h[7] << 16};
    u32x4_store((u32x4 *)p, q);
}
#endif

/* ================================================================================== common ==== */

/* Of a local array from which vectors are loaded. */
#define ALIGNED __attribute__((aligned(16)))

/* A kernel that holds much in registers, in groups of 128. */
#ifndef KERNEL_DENSE
#define KERNEL_DENSE KERNEL
#endif
/* One of which several groups on a unit hide what each waits for. */
#ifndef KERNEL_GROUPS
#define KERNEL_GROUPS(name, size, groups) KERNEL(name, size)
#endif

/* Elsewhere groups start when the queue's earlier work has ended. */
#ifndef QUEUE_WAIT
#define QUEUE_WAIT() ((void)0)
#endif

/* Loops over the runs that a lane has under way. Where they are not written out, run u is the first
 * one, RUN_NOW(u), and the next takes its place at the end of a round. */
#ifdef ROLLED_RUNS
#define UNROLL_RUNS NO_UNROLL
#define RUN_NOW(u)  0
#else
#define UNROLL_RUNS UNROLL
#define RUN_NOW(u)  (u)
#endif

/* The quotient of numbers of 64 bits that are not negative. */
#ifndef QUOTIENT
#define QUOTIENT(a, b) ((a) / (b))
#endif

/* A function of its own: for what is long and seldom called, and would cost its callers registers. */
#ifndef DEVICE_APART
#define DEVICE_APART DEVICE
#endif

/* Instructions that NVIDIA's compilers make of no expression, or with others around them. */
#if defined(__CUDA_ARCH__)
#define SIMT_NVIDIA (__CUDA_ARCH__ / 10)
#elif !defined(SIMT_NVIDIA)
#define SIMT_NVIDIA 0
#endif
#if SIMT_NVIDIA
#define FAST_EXP2         exp2_flushed
#define FAST_DIVIDE(a, b) ((a)*inverse_flushed(b))
DEVICE f32 exp2_flushed(f32 x)
{
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE f32 inverse_flushed(f32 x)
{
    f32 y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Both halves of a product at once. */
DEVICE u32 u32_multiply(u32 a, u32 b, u32 *high)
{
    u32 low, upper;
    asm("{ .reg .u64 p; mul.wide.u32 p, %2, %3; mov.b64 {%0, %1}, p; }"
        : "=r"(low), "=r"(upper)
        : "r"(b), "r"(a));
    *high = upper;
    return low;
}
#else
DEVICE u32 u32_multiply(u32 a, u32 b, u32 *high)
{
    const u64 product = (u64)a * b;
    *high = (u32)(product >> 32);
    return (u32)product;
}
#endif
/* WAVE: so many lanes, from a multiple of it on, exchange numbers without local memory. Dialects that
 * promise no such number leave it undefined. All lanes of a wave call these functions, which return
 * what lane LANE ^ reach has; reach < WAVE. */
#if SIMT_NVIDIA
#define WAVE 32
DEVICE f32 f32_across(f32 v, i32 reach)
{
    f32 other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;"
                 : "=f"(other)
                 : "f"(v), "r"(reach));
    return other;
}

#ifdef SIMT_HAS_F64
DEVICE f64 f64_across(f64 v, i32 reach)
{
    f64 other;
    asm volatile("{ .reg .b32 low, high; mov.b64 {low, high}, %1;"
                 "shfl.sync.bfly.b32 low, low, %2, 0x1f, 0xffffffff;"
                 "shfl.sync.bfly.b32 high, high, %2, 0x1f, 0xffffffff;"
                 "mov.b64 %0, {low, high}; }"
                 : "=d"(other)
                 : "d"(v), "r"(reach));
    return other;
}
#endif
#endif
#if SIMT_NVIDIA >= 80 /* one instruction rounds two numbers */
#define SIMT_BF16_PACK bf16_round_pair
DEVICE u32 bf16_round_pair(f32 low, f32 high)
{
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
#endif

/* A store of what is not read soon: the caches are left to the rest. */
#if defined(__CUDA_ARCH__)
DEVICE void u32x4_stream(u32x4 *p, u32x4 q)
{
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(p)), "r"(q.x), "r"(q.y), "r"(q.z), "r"(q.w)
                 : "memory");
}
#else
#define u32x4_stream u32x4_store
#endif

/* Values of bsk_dtype, for arguments whose type is known at run time only. */
enum {
    SIMT_F64 = 1,
    SIMT_F32 = 2,
    SIMT_F16 = 3,
    SIMT_BF16 = 4,
    SIMT_I64 = 5,
    SIMT_I32 = 6,
    SIMT_U16 = 7,
    SIMT_U8 = 8,
    SIMT_F8E4M3 = 9,
    SIMT_F8E5M2 = 10,
    SIMT_I8 = 11
};

DEVICE f32 bf16_load(const GLOBAL u16 *p)
{
    return U32_AS_F32((u32)*p << 16);
}

DEVICE u32 bf16_bits(f32 v)
{
    u32 u = F32_AS_U32(v);
    return (u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

DEVICE void bf16_store(GLOBAL u16 *p, f32 v)
{
    *p = (u16)bf16_bits(v);
}

/* Two neighbours in a word. */
DEVICE void bf16_unpack(u32 word, f32 *v)
{
    v[0] = U32_AS_F32(word << 16);
    v[1] = U32_AS_F32(word & 0xffff0000u);
}

DEVICE u32 bf16_pack(const f32 *v)
{
#ifdef SIMT_BF16_PACK
    return SIMT_BF16_PACK(v[0], v[1]);
#else
    return bf16_bits(v[0]) | bf16_bits(v[1]) << 16;
#endif
}

DEVICE void bf16_load4(const GLOBAL u16 *p, f32 *v)
{
    u32x2 q = *(const GLOBAL u32x2 *)p;
    bf16_unpack(q.x, v);
    bf16_unpack(q.y, v + 2);
}

DEVICE void bf16_load8(const GLOBAL u16 *p, f32 *v)
{
    u32x4 q = *(const GLOBAL u32x4 *)p;
    bf16_unpack(q.x, v);
    bf16_unpack(q.y, v + 2);
    bf16_unpack(q.z, v + 4);
    bf16_unpack(q.w, v + 6);
}

DEVICE void bf16_store4(GLOBAL u16 *p, const f32 *v)
{
    u32x2 q;
    q.x = bf16_pack(v);
    q.y = bf16_pack(v + 2);
    u32x2_store((GLOBAL u32x2 *)p, q);
}

DEVICE void bf16_store8(GLOBAL u16 *p, const f32 *v)
{
    u32x4 q;
    q.x = bf16_pack(v);
    q.y = bf16_pack(v + 2);
    q.z = bf16_pack(v + 4);
    q.w = bf16_pack(v + 6);
    u32x4_store((GLOBAL u32x4 *)p, q);
}

DEVICE void f32_unpack4(u32x4 q, f32 *v)
{
    v[0] = U32_AS_F32(q.x);
    v[1] = U32_AS_F32(q.y);
    v[2] = U32_AS_F32(q.z);
    v[3] = U32_AS_F32(q.w);
}

DEVICE void f32_load4(const GLOBAL f32 *p, f32 *v)
{
    f32_unpack4(*(const GLOBAL u32x4 *)p, v);
}

DEVICE void f32_store4(GLOBAL f32 *p, const f32 *v)
{
    u32x4 q;
    q.x = F32_AS_U32(v[0]);
    q.y = F32_AS_U32(v[1]);
    q.z = F32_AS_U32(v[2]);
    q.w = F32_AS_U32(v[3]);
    u32x4_store((GLOBAL u32x4 *)p, q);
}

/* Loads and stores through a type that is an argument. */
DEVICE f32 load_as(i32 type, const GLOBAL void *p, i64 i)
{
    if (type == SIMT_F32)
        return ((const GLOBAL f32 *)p)[i];
    if (type == SIMT_F16)
        return f16_load((const GLOBAL u16 *)p + i);
#ifdef SIMT_HAS_F64
    if (type == SIMT_F64)
        return (f32)((const GLOBAL f64 *)p)[i];
#endif
    return bf16_load((const GLOBAL u16 *)p + i);
}

DEVICE void store_as(i32 type, GLOBAL void *p, i64 i, f32 v)
{
    if (type == SIMT_F32)
        ((GLOBAL f32 *)p)[i] = v;
    else if (type == SIMT_F16)
        f16_store((GLOBAL u16 *)p + i, v);
#ifdef SIMT_HAS_F64
    else if (type == SIMT_F64)
        ((GLOBAL f64 *)p)[i] = v;
#endif
    else
        bf16_store((GLOBAL u16 *)p + i, v);
}

DEVICE i64 load_index(i32 type, const GLOBAL void *p, i64 i)
{
    return type == SIMT_I64   ? ((const GLOBAL i64 *)p)[i]
           : type == SIMT_I32 ? ((const GLOBAL i32 *)p)[i]
           : type == SIMT_U16 ? ((const GLOBAL u16 *)p)[i]
                              : ((const GLOBAL u8 *)p)[i];
}

#endif
