/* The portable kernels of one file for one storage type, in all variants of instances.inc. Beside what
 * portable.h asks for, the build sets SIMT_EMULATOR, SIMT_T, EMU_UNIT (ops_f32), and EMU_HAS_<unit> to
 * 1. */
#include <backends/simt/portable.h>

/* EMU_IF(flag) is EMU_ROW where the flag is 1, and EMU_NO_ROW where it is not defined. */
#define EMU_MARK_1             ~, EMU_ROW
#define EMU_SECOND_(a, b, ...) b
#define EMU_SECOND(...)        EMU_SECOND_(__VA_ARGS__)
#define EMU_IF_(flag)          EMU_SECOND(EMU_MARK_##flag, EMU_NO_ROW, ~)
#define EMU_IF(flag)           EMU_IF_(flag)
#define EMU_NO_ROW(file, kernel, type, variant)
#define SIMT_KERNEL(file, kernel, type, variant)                                                   \
    EMU_IF(EMU_HAS_##file##_##type)(file, kernel, type, variant)

static const simt_kernel rows[] = {
#include <backends/simt/instances.inc>
};

EMU_UNIT_JOIN(rows)
