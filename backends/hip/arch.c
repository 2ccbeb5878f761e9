/* Ranks are the hexadecimal numbers of the names. */
#include <stdio.h>

#include <backends/hip/arch.h>

const bsk_arch bski_hip_archs[BSKI_HIP_ARCHS] = {
    {"gfx906", 0x906}, {"gfx908", 0x908},   {"gfx90a", 0x90a},   {"gfx942", 0x942},
    {"gfx950", 0x950}, {"gfx1030", 0x1030}, {"gfx1100", 0x1100}, {"gfx1200", 0x1200},
};

int32_t bski_hip_arch(const char *name, int major, int minor)
{
    unsigned generation;
    if (sscanf(name, "gfx%x", &generation) != 1)
        generation = (unsigned)((major / 10 * 16 + major % 10) << 8 | minor << 4);
    int32_t rank = bski_hip_archs[0].rank;
    for (int i = 0; i < BSKI_HIP_ARCHS; i++)
        if ((unsigned)bski_hip_archs[i].rank <= generation)
            rank = bski_hip_archs[i].rank;
    return rank;
}
