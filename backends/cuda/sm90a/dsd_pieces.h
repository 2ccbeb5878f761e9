/* The host side that dsd_sm90a_narrow and dsd_sm90a_stream share: lists of tiles, cut into pieces of a
 * thread block each. */
#ifndef BSKI_CUDA_SM90A_DSD_PIECES_H
#define BSKI_CUDA_SM90A_DSD_PIECES_H

#include <backends/cuda/sm90a/dsd_few_host.h>
#include <backends/cuda/sm90a/dsd_narrow.h>

/* By a kernel, whose tile may be narrower than a block; NULL: none takes the problem. A warp has room for
 * so many loads under way. */
bsk_status bski_dsd_pieces_prepare(bski_cuda_device *device, bsk_prepared *prepared,
                                   const dsd_few_kernel *kernel, int32_t slots);
void bski_dsd_pieces_release(bski_cuda_device *device, bsk_prepared *prepared);
bsk_status bski_dsd_pieces_launch(const bsk_prepared *prepared, void *queue, const void *args);

#endif
