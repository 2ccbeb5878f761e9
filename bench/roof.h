/* What this machine can do at most: the figures that measured rates are divided by. */
#ifndef BSKI_ROOF_H
#define BSKI_ROOF_H

#include <bsk/tensor.h>

/* Multiply-add rate in FLOP/s (two per multiply-add) of `threads` threads that work in registers
 * only, with the widest instructions of the processor that entries for `arch` (a rank of the CPU
 * backend) may use. type: BSK_F64; BSK_BF16 or BSK_I8, for the rate of their dot products or matrix
 * tiles where there are any; or any other narrower float for the f32 rate, in which all of them are
 * computed. The best of several short runs. */
double bski_roof_flops(int threads, bsk_dtype type, int32_t arch);

/* Copy rate in bytes per second, read and written bytes counted, of `threads` threads over arrays
 * of 512 MiB together. 0 if there is no memory for them. */
double bski_roof_bytes(int threads);

/* Rate at which they read alone, over 256 MiB, with the help of prefetches or without, whichever is
 * faster. 0 if there is no memory for them. */
double bski_roof_read(int threads);

#endif
