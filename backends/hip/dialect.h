/* The dialect for HIP: what simt.h leaves to it. HIP's own headers take a compiler longer than most
 * files of kernels do, once for each architecture, so kernels are compiled without them (-nogpuinc)
 * and use the compiler's builtins and the device library that those headers use too. */
#ifndef BSKI_HIP_DIALECT_H
#define BSKI_HIP_DIALECT_H

#define HIP_DEVICE __attribute__((device))

#define INFINITY     __builtin_inff()
#define LOCAL        __attribute__((shared))
#define DEVICE       static HIP_DEVICE inline __attribute__((always_inline))
#define DEVICE_APART static HIP_DEVICE __attribute__((noinline))
#define KERNEL(name, size)                                                                         \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, size))) void NAME(name)
#define GROUP(axis)       ((i64)HIP_AXIS(__builtin_amdgcn_workgroup_id, axis))
#define HIP_AXIS(f, axis) ((axis) == 0 ? f##_x() : (axis) == 1 ? f##_y() : f##_z())
#define GROUPS(axis)      ((i64)(u32)__ockl_get_num_groups(axis))
#define LANE              ((i32)__builtin_amdgcn_workitem_id_x())
#define BARRIER()         hip_barrier()
#define GLOBAL_BARRIER()  hip_barrier()
#define U32_AS_F32(v)     __builtin_bit_cast(f32, (u32)(v))
#define F32_AS_U32(v)     __builtin_bit_cast(u32, (f32)(v))
#define I64_AS_F64(v)     __builtin_bit_cast(f64, (i64)(v))
#define F64_AS_U64(v)     __builtin_bit_cast(u64, (f64)(v))
#define MATH(fn)          hip_##fn /* overloaded for float and double */
#define FAST_DIVIDE(a, b) ((a) / (b))
#define FAST_EXP2(x)      hip_exp2(x)
#define UNROLL            _Pragma("unroll")
#define NO_UNROLL         _Pragma("unroll 1")
#define ROLLED_RUNS       /* compiling takes as long as kernels are */

/* Elements at run-time types and strides are loaded and stored by functions of their own: in place
 * they took the compiler most of its time. */
#define PARTS_APART

typedef u32 u32x2 __attribute__((ext_vector_type(2)));
typedef u32 u32x4 __attribute__((ext_vector_type(4)));

/* What the compiler calls on the host for a kernel, by this name. */
struct hip_dim3 {
    u32 x, y, z;
};
extern "C" int hipLaunchKernel(const void *function, hip_dim3 groups, hip_dim3 lanes, void **args,
                               __SIZE_TYPE__ local_bytes, struct ihipStream_t *stream);

extern "C" HIP_DEVICE __attribute__((const)) __SIZE_TYPE__ __ockl_get_num_groups(u32 axis);

/* Written out, a division takes more room than most of what is around it. */
#define QUOTIENT hip_quotient
DEVICE_APART i64 hip_quotient(i64 a, i64 b)
{
    return (i64)((u64)a / (u64)b);
}

DEVICE void hip_barrier(void)
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

/* Functions of the device library. */
#define HIP_LIBRARY(attribute, name)                                                               \
    extern "C" HIP_DEVICE __attribute__((attribute)) f32 __ocml_##name##_f32(f32);                 \
    extern "C" HIP_DEVICE __attribute__((attribute)) f64 __ocml_##name##_f64(f64);                 \
    DEVICE f64 hip_##name(f64 x)                                                                   \
    {                                                                                              \
        return __ocml_##name##_f64(x);                                                             \
    }                                                                                              \
    DEVICE f32 hip_##name(f32 x)
#define HIP_MATH(attribute, name)                                                                  \
    HIP_LIBRARY(attribute, name)                                                                   \
    {                                                                                              \
        return __ocml_##name##_f32(x);                                                             \
    }
/* Those that the compiler knows itself, in f32 exactly enough since clang 18. */
#if __clang_major__ >= 18
#define HIP_MATH_KNOWN(attribute, name)                                                            \
    HIP_LIBRARY(attribute, name)                                                                   \
    {                                                                                              \
        return __builtin_##name##f(x);                                                             \
    }
#else
#define HIP_MATH_KNOWN HIP_MATH
#endif

HIP_MATH(pure, cos)
HIP_MATH(pure, erfc)
HIP_MATH(pure, expm1)
HIP_MATH(pure, log)
HIP_MATH(pure, log1p)
HIP_MATH(pure, sin)
HIP_MATH(pure, tanh)
HIP_MATH_KNOWN(pure, exp)
HIP_MATH_KNOWN(pure, exp2)
HIP_MATH_KNOWN(const, sqrt)
#undef HIP_MATH_KNOWN
#undef HIP_MATH
#undef HIP_LIBRARY

#define HIP_BUILTIN(name, type, suffix, parameters, ...)                                           \
    DEVICE type hip_##name parameters                                                              \
    {                                                                                              \
        return __builtin_##name##suffix(__VA_ARGS__);                                              \
    }
HIP_BUILTIN(fabs, f32, f, (f32 x), x)
HIP_BUILTIN(fabs, f64, , (f64 x), x)
HIP_BUILTIN(fmax, f32, f, (f32 x, f32 y), x, y)
HIP_BUILTIN(fmax, f64, , (f64 x, f64 y), x, y)
HIP_BUILTIN(fmin, f32, f, (f32 x, f32 y), x, y)
HIP_BUILTIN(fmin, f64, , (f64 x, f64 y), x, y)
#undef HIP_BUILTIN

DEVICE f32 f16_load(const u16 *p)
{
    const _Float16 h = __builtin_bit_cast(_Float16, *p);
    return (f32)h;
}

DEVICE void f16_store(u16 *p, f32 v)
{
    *p = __builtin_bit_cast(u16, (_Float16)v);
}

#endif
