/* How many thread blocks share the depth of a tile. */
#include <backends/cuda/sm90a/dsd_split.h>
#include <common/checked.h>

dsd_split bski_dsd_split_of(int64_t tiles, int64_t tile, int64_t steps, int64_t least,
                            int32_t compute_units)
{
    enum { MOST_PARTS = 16 };
    int64_t parts = tiles > 0 ? compute_units / tiles : 1;
    parts = parts < steps / least ? parts : steps / least;
    parts = parts < MOST_PARTS ? parts : MOST_PARTS;
    const int64_t each = parts > 1 ? bski_ceil_div(steps, parts) : steps;
    parts = parts > 1 ? bski_ceil_div(steps, each) : 1;
    return (dsd_split){
        .parts = (int32_t)parts, .each = each, .sums = parts > 1 ? parts * tiles * tile : 0};
}

double bski_dsd_split_seconds(const dsd_split *split)
{
    static const double launch = 6.4e-6, rate = 13e12; /* bytes that are written and read again */
    return split->parts > 1 ? launch + (double)split->sums * (2 * sizeof(float)) / rate : 0;
}
