/* Fibers: stacks of their own that one thread switches between. */
#ifndef BSK_EMU_FIBER_H
#define BSK_EMU_FIBER_H

#include <stddef.h>

#if defined(__ELF__) && (defined(__x86_64__) || defined(__aarch64__)) && !defined(EMU_UCONTEXT)
#define EMU_OWN_SWITCH 1
#else
#include <ucontext.h>
#endif

typedef struct emu_fiber {
    void *stack;
    size_t bytes;
#ifdef EMU_OWN_SWITCH
    void *pointer; /* the stack pointer while it does not run */
#else
    ucontext_t context;
#endif
    void *fake; /* AddressSanitizer's */
} emu_fiber;

/* Prepares a fiber on a stack. The first resume calls entry, which must not return. What ran on the
 * stack before is dropped. */
void emu_fiber_make(emu_fiber *fiber, void *stack, size_t bytes, void (*entry)(void));
/* From the thread's own stack: runs the fiber until it yields. */
void emu_fiber_resume(emu_fiber *fiber);
/* From the running fiber, back to its resume. */
void emu_fiber_yield(emu_fiber *fiber);
/* From the running fiber to another one, which may yield in its place. */
void emu_fiber_switch(emu_fiber *fiber, emu_fiber *to);

#endif
