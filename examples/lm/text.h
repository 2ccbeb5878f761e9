/* The corpus: reading it and splitting it. */
#ifndef TEXT_H
#define TEXT_H

#include <stddef.h>
#include <stdint.h>

typedef struct text {
    uint8_t *bytes;
    size_t size;
    int files;
} text;

/* Reads one file, or all sources and documents below a folder in the order of their names.
 * Return 0, or -1 after a message to stderr. */
int text_read_file(text *t, const char *path);
int text_read_tree(text *t, const char *root);
void text_free(text *t);

/* TEXT_NONE stands for what is not text: the padding in front of a stretch. It is never predicted.
 * Every tenth chunk of 4 KiB, counted from the tenth, is held out. */
enum { TEXT_NONE = 256, TEXT_CODES = 257, TEXT_PAD = 64, TEXT_CHUNK = 4096, TEXT_EVERY = 10 };

/* One side of the split: stretches of bytes, each after TEXT_PAD codes TEXT_NONE. */
typedef struct text_part {
    uint16_t *code;
    size_t size;
    size_t count; /* of bytes */
} text_part;

/* Behind the last code follow `slack` codes TEXT_NONE. held_bytes receives the held-out bytes,
 * joined, as gzip is to see them (malloc). Returns 0, or -1 after a message to stderr. */
int text_split(const text *t, size_t slack, text_part *train, text_part *held,
               uint8_t **held_bytes);
void text_part_free(text_part *p);

#endif
