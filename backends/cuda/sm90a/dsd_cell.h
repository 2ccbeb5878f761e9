/* How weights lie in a cell of dsd_wgmma: for what packs them and what multiplies. */
#ifndef BSKI_CUDA_SM90A_DSD_CELL_H
#define BSKI_CUDA_SM90A_DSD_CELL_H

#include <backends/cuda/ptx.h>
#include <backends/cuda/sm90a/dsd_wgmma.h>

/* Features' order in a cell, by halves of 32: the feature at column x of the products, so that a
 * thread, which has columns 8 j + 2 q + e, has runs of 16 bytes. */
template <typename WORD> PTX_FN int feature_of(int x)
{
    const int j = x / 8, q = x % 8 / 2, e = x % 2;
    return sizeof(WORD) == 2 ? q * 8 + j * 2 + e : j / 2 * 16 + q * 4 + j % 2 * 2 + e;
}

/* And the column of a feature. */
template <typename WORD> PTX_FN int column_of(int feature)
{
    const int f = feature;
    return sizeof(WORD) == 2 ? f % 8 / 2 * 8 + f / 8 * 2 + f % 2
                             : (f / 16 * 2 + f % 4 / 2) * 8 + f % 16 / 4 * 2 + f % 2;
}

/* Where the number at k lies along k in a cell. */
template <typename WORD> PTX_FN int place_along(const dsd_parts &parts, int k)
{
    return sizeof(WORD) == 4 && parts.halves ? k / 8 * 8 + k % 2 * 4 + k % 8 / 2 : k;
}

#endif
