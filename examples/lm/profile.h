/* What the calls of training steps take by the device's clock, by op, entry and size. */
#ifndef PROFILE_H
#define PROFILE_H

#include <bsk/bsk.h>

typedef struct profile profile;

profile *profile_create(const bsk_device *device);
/* May be NULL. */
void profile_destroy(profile *x);

/* Before each call of a program, with its plan; NULL: after the last one, which waits. */
void profile_mark(profile *x, bsk_queue *queue, const bsk_plan *plan);
/* A step took this long, calls and all else. */
void profile_step(profile *x, double seconds);
/* A line for each row, the longest first; nothing without a step. */
void profile_print(const profile *x);

#endif
