/* Which lines of a matrix share the loads of a tile in twos. */
#ifndef BSKI_CUDA_DSD_PAIRING_H
#define BSKI_CUDA_DSD_PAIRING_H

#include <stdint.h>

/* Fills order[2 * pairs] with the lines 0 .. 2 * pairs - 1, partners side by side. kept: of each
 * line `words` words, a bit for each slice that it needs. */
void bski_dsd_pairing(const uint64_t *kept, int32_t words, int32_t pairs, int32_t *order);

#endif
