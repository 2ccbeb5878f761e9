/* A model with its layouts and the state of its training in a file, little-endian everywhere:
 *
 *     "BSKLM\r\n\0"  u32 version
 *     u32 numbers of the config; for each: u8 length of its name, the name, f64 value
 *     i64 step  f64 seconds
 *     u32 layouts; for each: u32 bytes of the serialized layout, the layout
 *     u32 tensors; for each: u32 type, u64 elements, the elements
 *     u64 FNV-1a of everything before
 *
 * Tensors: the arrays of the parameters, then what the rows of a batch remember. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "options.h"

/* Whether a checkpoint can be written there: 0, or -1 after a message. */
int checkpoint_check(const char *path);
/* Written beside the file and renamed over it when it is whole. Returns 0, or -1 after a message. */
int checkpoint_save(const char *path, model *m, double seconds);

typedef struct checkpoint {
    uint8_t *bytes;
    size_t size, at;
    config c;
    int64_t step;
    double seconds;
    bsk_layout **layouts;
    int layout_count;
} checkpoint;

/* Reads and checks everything up to the tensors: the file may come from anywhere. */
int checkpoint_open(const char *path, bsk_context *context, checkpoint *file);
/* Makes the model of the file. c: the file's, perhaps with other options of the training. */
int checkpoint_load(checkpoint *file, machine *on, const config *c, model *m);
void checkpoint_close(checkpoint *file);

#endif
