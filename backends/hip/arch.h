/* The architectures that entries name. */
#ifndef BSKI_HIP_ARCH_H
#define BSKI_HIP_ARCH_H

#include <bsk/backend.h>

enum { BSKI_HIP_ARCHS = 8 };

extern const bsk_arch bski_hip_archs[BSKI_HIP_ARCHS];

/* The rank of the newest of them that is not newer than a device. name: "gfx90a:sramecc+" or the like,
 * or empty where the runtime does not tell: then the compute capability counts, in which the last digit
 * of the name is missing. */
int32_t bski_hip_arch(const char *name, int major, int minor);

#endif
