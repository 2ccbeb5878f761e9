/* The dialect for the emulator: what backends/simt/simt.h leaves to it. C++17.
 *
 * A local array is a static variable in a section of its own, so that its bounds are known. Under
 * AddressSanitizer it is an ordinary static variable, around which that puts its red zones. */
#ifndef BSK_EMU_EMULATOR_H
#define BSK_EMU_EMULATOR_H

#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include <common/dtype.h>

#include "emu.h"

#define EMU_TEXT_(x) #x
#define EMU_TEXT(x)  EMU_TEXT_(x)

#ifdef EMU_ASAN
#define LOCAL static
#else
/* EMU_UNIT is the object file's own name, set by the build. The linker names the two ends of a
 * section. */
#define LOCAL           EMU_LOCAL(EMU_UNIT, __COUNTER__)
#define EMU_LOCAL(u, n) EMU_LOCAL_(u, n)
#define EMU_LOCAL_(u, n)                                                                           \
    extern char emu_first_##n[] __asm__("__start_emu_" #u "_" #n);                                 \
    extern char emu_end_##n[] __asm__("__stop_emu_" #u "_" #n);                                    \
    emu_local(emu_first_##n, emu_end_##n);                                                         \
    static __attribute__((section("emu_" #u "_" #n)))
#endif

#define PARTS_APART              /* as HIP's dialect */
#define DEVICE                   static inline
#define KERNEL(name, size)       EMU_KERNEL(NAME(name), size)
#define EMU_KERNEL(symbol, size) EMU_KERNEL_(symbol, size)
#define EMU_KERNEL_(symbol, size)                                                                  \
    enum { symbol##_lanes = (size) };                                                              \
    static __attribute__((noinline)) void symbol
#define GROUP(axis)       ((i64)emu_group(axis))
#define GROUPS(axis)      ((i64)emu_groups(axis))
#define LANE              ((i32)emu_lane())
#define BARRIER()         emu_barrier(__FILE__ ":" EMU_TEXT(__LINE__), false)
#define GLOBAL_BARRIER()  emu_barrier(__FILE__ ":" EMU_TEXT(__LINE__), true)
#define U32_AS_F32        bski_bits_f32
#define F32_AS_U32        bski_f32_bits
#define MATH(fn)          std::fn
#define FAST_EXP2(x)      emu_flushed(exp2f(x))
#define FAST_DIVIDE(a, b) ((a)*emu_flushed(1 / emu_flushed(b)))

/* Units of some types have waves. */
#ifdef EMU_WAVE
#define WAVE                 EMU_WAVE
#define f32_across(v, reach) ((f32)f64_across(v, reach))
#define f64_across(v, reach) emu_across(__FILE__ ":" EMU_TEXT(__LINE__), WAVE, reach, v)
#endif

/* As the fast instructions of GPUs may: denormal numbers are 0. */
DEVICE f32 emu_flushed(f32 x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

DEVICE f32 f16_load(const u16 *p)
{
    return bski_f16_to_f32(*p);
}

DEVICE void f16_store(u16 *p, f32 v)
{
    *p = bski_f32_to_f16(v);
}

/* Calls a kernel with arguments from an array of buffers and a struct. */
template <auto kernel> struct emu_call;

template <typename... A, void (*kernel)(A...)> struct emu_call<kernel> {
    static constexpr int32_t buffers = (0 + ... + (std::is_pointer_v<A> ? 1 : 0));
    static constexpr size_t scalar_bytes = (0 + ... + (std::is_pointer_v<A> ? 0 : sizeof(A)));

    template <typename X>
    __attribute__((no_sanitize("thread"))) static X take(void *const *at, const void *scalars)
    {
        if constexpr (std::is_pointer_v<X>)
            return static_cast<X>(*at);
        else
            return *static_cast<const X *>(scalars);
    }

    template <size_t... i>
    static void spread(void *const *at, const void *scalars, std::index_sequence<i...>)
    {
        kernel(take<A>(at + i, scalars)...);
    }

    static void call(void *const *at, const void *scalars)
    {
        spread(at, scalars, std::index_sequence_for<A...>());
    }
};

/* A row of a unit's table. */
#define EMU_ROW(file, kernel, type, variant)                                                       \
    {#file,                                                                                        \
     #kernel,                                                                                      \
     #type,                                                                                        \
     variant,                                                                                      \
     kernel##_##type##_lanes,                                                                      \
     emu_call<kernel##_##type>::buffers,                                                           \
     emu_call<kernel##_##type>::scalar_bytes,                                                      \
     emu_call<kernel##_##type>::call},

/* Ends an object file: its kernels join the list. */
#define EMU_UNIT_JOIN(rows)                                                                        \
    static emu_unit unit = {rows, sizeof rows / sizeof *rows, nullptr};                            \
    __attribute__((constructor)) static void unit_join()                                           \
    {                                                                                              \
        emu_unit_join(&unit);                                                                      \
    }

#endif
