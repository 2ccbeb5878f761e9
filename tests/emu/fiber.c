#include "fiber.h"

#include <stdint.h>

#include "emu.h"

#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

/* Where resume was called; where a fiber that begins was switched to from, if its bounds are not
 * known yet. */
static emu_fiber outside, *unknown;
static void (*fiber_entry)(void);

#ifdef EMU_ASAN
/* Announces a switch; what follows it is switch_done in the other stack. */
static void switch_begin(emu_fiber *from, const emu_fiber *to)
{
    __sanitizer_start_switch_fiber(&from->fake, to->stack, to->bytes);
}

static void switch_done(emu_fiber *here, emu_fiber *before)
{
    const void *stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(here->fake, &stack, &bytes);
    if (before) { /* the bounds of the thread's own stack are learned here */
        before->stack = (void *)(uintptr_t)stack;
        before->bytes = bytes;
    }
}
#else
static void switch_begin(emu_fiber *from, const emu_fiber *to)
{
    (void)from;
    (void)to;
}

static void switch_done(emu_fiber *here, emu_fiber *before)
{
    (void)here;
    (void)before;
}
#endif

static void fiber_begin(void)
{
    switch_done(&(emu_fiber){0}, unknown);
    fiber_entry();
}

#ifdef EMU_OWN_SWITCH
/* Stores the registers that a call keeps on the stack, and the stack pointer in *save; goes on with
 * those that lie at load. */
void emu_switch_stack(void **save, void *load);

#if defined(__x86_64__)
__asm__(".text\n"
        ".p2align 4\n"
        ".globl emu_switch_stack\n"
        ".hidden emu_switch_stack\n"
        ".type emu_switch_stack, @function\n"
        "emu_switch_stack:\n"
        "push %rbp\n"
        "push %rbx\n"
        "push %r12\n"
        "push %r13\n"
        "push %r14\n"
        "push %r15\n"
        "mov %rsp, (%rdi)\n"
        "mov %rsi, %rsp\n"
        "pop %r15\n"
        "pop %r14\n"
        "pop %r13\n"
        "pop %r12\n"
        "pop %rbx\n"
        "pop %rbp\n"
        "ret\n"
        ".size emu_switch_stack, . - emu_switch_stack\n");

/* Registers that the first switch loads; the return address is an aligned word from the top. */
enum { FRAME_WORDS = 6, FRAME_RETURN = 6, FRAME_ABOVE = 2 };
#else
__asm__(".text\n"
        ".p2align 4\n"
        ".globl emu_switch_stack\n"
        ".hidden emu_switch_stack\n"
        ".type emu_switch_stack, %function\n"
        "emu_switch_stack:\n"
        "sub sp, sp, #160\n"
        "stp x19, x20, [sp, #0]\n"
        "stp x21, x22, [sp, #16]\n"
        "stp x23, x24, [sp, #32]\n"
        "stp x25, x26, [sp, #48]\n"
        "stp x27, x28, [sp, #64]\n"
        "stp x29, x30, [sp, #80]\n"
        "stp d8, d9, [sp, #96]\n"
        "stp d10, d11, [sp, #112]\n"
        "stp d12, d13, [sp, #128]\n"
        "stp d14, d15, [sp, #144]\n"
        "mov x2, sp\n"
        "str x2, [x0]\n"
        "mov sp, x1\n"
        "ldp x19, x20, [sp, #0]\n"
        "ldp x21, x22, [sp, #16]\n"
        "ldp x23, x24, [sp, #32]\n"
        "ldp x25, x26, [sp, #48]\n"
        "ldp x27, x28, [sp, #64]\n"
        "ldp x29, x30, [sp, #80]\n"
        "ldp d8, d9, [sp, #96]\n"
        "ldp d10, d11, [sp, #112]\n"
        "ldp d12, d13, [sp, #128]\n"
        "ldp d14, d15, [sp, #144]\n"
        "add sp, sp, #160\n"
        "ret\n"
        ".size emu_switch_stack, . - emu_switch_stack\n");

enum { FRAME_WORDS = 20, FRAME_RETURN = 11, FRAME_ABOVE = 0 };
#endif

void emu_fiber_make(emu_fiber *fiber, void *stack, size_t bytes, void (*entry)(void))
{
    fiber->stack = stack;
    fiber->bytes = bytes;
    fiber->fake = NULL;
    fiber_entry = entry;
#ifdef EMU_ASAN
    __asan_unpoison_memory_region(stack, bytes);
#endif
    uintptr_t top = ((uintptr_t)stack + bytes) & ~(uintptr_t)15;
    uintptr_t *frame = (uintptr_t *)top - FRAME_ABOVE - FRAME_WORDS;
    for (uintptr_t *word = frame; word < (uintptr_t *)top; word++)
        *word = 0;
    frame[FRAME_RETURN] = (uintptr_t)fiber_begin;
    fiber->pointer = frame;
}

static void switch_to(emu_fiber *from, emu_fiber *to)
{
    emu_switch_stack(&from->pointer, to->pointer);
}
#else
void emu_fiber_make(emu_fiber *fiber, void *stack, size_t bytes, void (*entry)(void))
{
    fiber->stack = stack;
    fiber->bytes = bytes;
    fiber->fake = NULL;
    fiber_entry = entry;
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = stack;
    fiber->context.uc_stack.ss_size = bytes;
    fiber->context.uc_link = NULL;
    makecontext(&fiber->context, fiber_begin, 0);
}

static void switch_to(emu_fiber *from, emu_fiber *to)
{
    swapcontext(&from->context, &to->context);
}
#endif

void emu_fiber_resume(emu_fiber *fiber)
{
    unknown = &outside;
    switch_begin(&outside, fiber);
    switch_to(&outside, fiber);
    switch_done(&outside, NULL);
}

void emu_fiber_yield(emu_fiber *fiber)
{
    switch_begin(fiber, &outside);
    switch_to(fiber, &outside);
    switch_done(fiber, unknown);
}

void emu_fiber_switch(emu_fiber *fiber, emu_fiber *to)
{
    unknown = NULL;
    switch_begin(fiber, to);
    switch_to(fiber, to);
    switch_done(fiber, NULL);
}
