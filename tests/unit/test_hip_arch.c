/* Which of the listed architectures an AMD device counts as, by its name or by its compute capability
 * alone. */
#include <backends/hip/arch.h>

#include "unit.h"

static const struct {
    const char *name;
    int major, minor;
    int32_t rank;
} devices[] = {
    /* named */
    {"gfx906:sramecc-:xnack-", 9, 0, 0x906},
    {"gfx90a:sramecc+:xnack-", 9, 0, 0x90a},
    {"gfx942", 9, 4, 0x942},
    {"gfx1036", 10, 3, 0x1030},
    {"gfx1100", 11, 0, 0x1100},
    {"gfx1201", 12, 0, 0x1200},
    {"gfx900", 9, 0, 0x906}, /* older than all that are listed */
    {"gfx1300", 13, 0, 0x1200},
    /* by capability: at most what the device is */
    {"", 9, 0, 0x906},
    {"", 9, 4, 0x90a},
    {"", 9, 5, 0x950},
    {"", 10, 3, 0x1030},
    {"", 11, 0, 0x1100},
    {"", 11, 5, 0x1100},
    {"", 12, 0, 0x1200},
    {"no name", 10, 3, 0x1030},
};

int main(void)
{
    for (size_t i = 0; i < UNIT_COUNT(devices); i++) {
        const int32_t rank = bski_hip_arch(devices[i].name, devices[i].major, devices[i].minor);
        CHECK(rank == devices[i].rank);
    }
    for (int i = 1; i < BSKI_HIP_ARCHS; i++)
        CHECK(bski_hip_archs[i - 1].rank < bski_hip_archs[i].rank);
    return unit_report();
}
