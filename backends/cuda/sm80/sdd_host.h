/* The host side that the entries of sdd by these kernels share. */
#ifndef BSKI_CUDA_SM80_SDD_HOST_H
#define BSKI_CUDA_SM80_SDD_HOST_H

#include <backends/cuda/sm80/host.h>
#include <backends/cuda/sm80/sdd_arg.h>

bsk_reason bski_sdd80_accept(const bsk_problem *problem);
bsk_status bski_sdd80_prepare(void *device, bsk_prepared *prepared, const kernel_row *k);
bsk_status bski_sdd80_launch(const bsk_prepared *prepared, void *queue, const void *args);
void bski_sdd80_release(void *device, bsk_prepared *prepared);

#endif
