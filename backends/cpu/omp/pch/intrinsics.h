/* The vectors' header, which takes a compiler longer than most files of this folder: read once for each set. */
#ifndef BSKI_CPU_OMP_INTRINSICS_H
#define BSKI_CPU_OMP_INTRINSICS_H

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#endif
