/* A trained model in a file: shape, alphabet, layouts and weights. Little-endian on every machine.
 *
 *     "BSKTEXT\n"  u32 version
 *     u32 context, buckets_log2, width, hidden, block, escape     f64 density
 *     escape bytes of the alphabet
 *     for each layer: u32 bytes of its serialized layout, the layout
 *     u64 floats of the layers, the floats; u64 floats of the table, the floats
 *     u64 FNV-1a of everything before
 *
 * The moments of Adam are not stored. */
#ifndef WEIGHTS_FILE_H
#define WEIGHTS_FILE_H

#include "model.h"

/* Return 0, or -1 after a message to stderr. */
int weights_save(const char *path, model *m, const alphabet *a);

typedef struct weights_file {
    uint8_t *bytes;
    size_t size, at;
    model_shape shape;
    alphabet known;
    bsk_layout *layouts[LAYERS];
} weights_file;

/* Reads and checks everything up to the weights: the file may come from anywhere. */
int weights_open(const char *path, bsk_context *context, weights_file *file);
/* Puts the weights into a model that was made with the file's shape and layouts. */
int weights_load(weights_file *file, model *m);
void weights_close(weights_file *file);

#endif
