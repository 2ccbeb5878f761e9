/* The emulator: runs kernels of the dialect (backends/simt/simt.h) on the host. One fiber for each
 * lane of a group; a barrier gives way to the next lane. Groups run one after the other.
 *
 * Kernels are compiled as C++ (portable.cpp, emulator.h) with the accesses to memory instrumented,
 * so that a launch finds, at the first one:
 *     races between lanes of a group and between groups; a barrier orders only what it names
 *     loads of memory that nothing has written, local or global
 *     accesses outside of the kernel's buffers and local arrays, and misaligned ones
 *     barriers that not all lanes of a group reach, exchanges that not all of a wave do
 * Builds with AddressSanitizer leave the instrumentation to it. */
#ifndef BSK_EMU_H
#define BSK_EMU_H

#include <stdbool.h>

#include <backends/simt/launch.h>

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { EMU_MAX_LANES = 1024, EMU_LOCAL_BYTES = 48 << 10, EMU_MESSAGE = 512 };

/* A kernel instance: a line of instances.inc. */
struct simt_kernel {
    const char *file, *name, *type, *variant;
    int32_t lanes;
    int32_t buffers;
    size_t scalar_bytes;
    void (*call)(void *const *buffers, const void *scalars);
};

/* The instances of one object file, in a list that it joins when it is loaded. */
typedef struct emu_unit {
    const simt_kernel *kernels;
    size_t count;
    struct emu_unit *next;
} emu_unit;

void emu_unit_join(emu_unit *unit);
const simt_kernel *emu_kernel_find(const char *file, const char *name, const char *type,
                                   const char *variant);

/* --- Memory: each piece its own block of malloc --- */

void *emu_memory_make(size_t bytes);
void emu_memory_free(void *memory);
/* Says that the host wrote a part. */
void emu_memory_written(const void *at, size_t bytes);

/* --- Launches --- */

typedef enum emu_order { EMU_FORWARD, EMU_REVERSE, EMU_RANDOM } emu_order;

/* The order in which groups run, and between barriers the lanes of a group. */
typedef struct emu_schedule {
    emu_order order;
    uint64_t seed; /* of EMU_RANDOM */
} emu_schedule;

/* From "forward", "reverse", "random" or "random:SEED"; NULL is forward. The module takes it from
 * the environment: BSK_EMU_SCHEDULE. */
bool emu_schedule_parse(const char *text, emu_schedule *schedule);

/* False with a message if the kernel did something wrong; it was stopped there. */
bool emu_launch(const simt_kernel *kernel, const simt_launch *launch, const emu_schedule *schedule,
                char message[EMU_MESSAGE]);

/* --- What kernels call --- */

/* Constant while a lane runs its kernel, which is all that a compiler assumes of them. */
int32_t emu_lane(void) __attribute__((const));
int64_t emu_group(int32_t axis) __attribute__((const));
int64_t emu_groups(int32_t axis) __attribute__((const));
/* place: where in the source. */
void emu_barrier(const char *place, bool global);
/* What lane ^ reach of the same wave gives, in f64, which holds every f32. */
double emu_across(const char *place, int32_t wave, int32_t reach, double number);
/* Announces a local array. */
void emu_local(char *first, char *end);

#ifdef __cplusplus
}
#endif
#endif
