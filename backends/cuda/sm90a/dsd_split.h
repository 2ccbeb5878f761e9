/* Products of fewer tiles than there are multiprocessors: several thread blocks share the depth of a
 * tile. Each leaves its sums, in f32, in the workspace, and a second kernel adds them up in the order
 * of the depth. */
#ifndef BSKI_CUDA_DSD_SPLIT_H
#define BSKI_CUDA_DSD_SPLIT_H

#include <bsk/backend.h>

/* How the depth of a product is shared. */
typedef struct dsd_split {
    int32_t parts; /* 1: it is not */
    int64_t each;  /* steps of the depth that a part has; the last may have fewer */
    int64_t sums;  /* of all parts */
} dsd_split;

/* For a product of so many tiles of `tile` sums, whose depth has so many steps; `least`: of a part. */
dsd_split bski_dsd_split_of(int64_t tiles, int64_t tile, int64_t steps, int64_t least,
                            int32_t compute_units);

/* What the second kernel takes; 0 without parts. */
double bski_dsd_split_seconds(const dsd_split *split);

#endif
