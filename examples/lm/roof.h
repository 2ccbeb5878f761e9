/* What a device can do at most. */
#ifndef ROOF_H
#define ROOF_H

#include "program.h"

/* FLOP/s of a dense product of this type that is large enough to fill the device: the best of some
 * runs, which take a quarter of a second. */
double machine_roof(machine *m, bsk_dtype type);

#endif
