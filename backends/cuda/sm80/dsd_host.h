/* The host side that the entries of dsd in this folder share. */
#ifndef BSKI_CUDA_SM80_DSD_HOST_H
#define BSKI_CUDA_SM80_DSD_HOST_H

#include <backends/cuda/sm80/dsd_arg.h>
#include <backends/cuda/sm80/host.h>

/* What all entries ask for. */
bsk_reason bski_dsd80_accept(const bsk_problem *problem);

void bski_dsd80_release(simt_device *d, bsk_prepared *prepared);

/* Entries for any minibatch, by their kernels for each number of features. */
bsk_status bski_dsd80_prepare(void *device, bsk_prepared *prepared, const kernel_row *rows);
bsk_status bski_dsd80_launch(const bsk_prepared *prepared, void *queue, const void *args);
/* The same with `threads` a thread block, and a second argument for the kernel. */
bsk_status bski_dsd80_launch_with(const bsk_prepared *prepared, void *queue, const void *args,
                                  unsigned threads, void *second);

#endif
