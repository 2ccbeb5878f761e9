/* Between machine.c, which runs launches, and shadow.c, which knows what happened to memory. */
#ifndef BSK_EMU_MACHINE_H
#define BSK_EMU_MACHINE_H

#include "emu.h"

enum { EMU_MAX_LOCALS = 16 }; /* local arrays of a kernel */

/* What runs now. One launch at a time in the process: local arrays are static variables. */
typedef struct emu_now {
    const simt_kernel *kernel;
    int32_t lane;
    int64_t group[3], groups[3];
    uintptr_t stacks; /* of all lanes */
    size_t stacks_bytes;
} emu_now;

extern emu_now emu_machine;

/* Ends the launch with a message, from a lane. */
_Noreturn void emu_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A launch begins: its buffers. False if number *wrong is not memory of the device. */
bool emu_shadow_launch(const simt_launch *launch, int32_t *wrong);
void emu_shadow_group(void);
void emu_shadow_barrier(bool global);
/* A local array of the group. */
void emu_shadow_local(char *first, size_t bytes);

#endif
