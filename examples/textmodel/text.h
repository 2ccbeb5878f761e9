/* The corpus: reading it, splitting it, and turning positions into features. */
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

/* Class numbers of the bytes that the training text contains. All other bytes share the class
 * `escape`, which costs 8 more bits when it has to be coded; `escape + 1` is the padding in front
 * of a stretch of text, which is never predicted. */
typedef struct alphabet {
    uint16_t class_of[256];
    uint8_t byte_of[256]; /* for class numbers below escape */
    int escape;
} alphabet;

static inline int alphabet_classes(const alphabet *a)
{
    return a->escape + 1;
}

/* One side of the split: stretches of text, each after `TEXT_PAD` padding codes, so that no
 * context reaches into the other side. */
typedef struct text_part {
    uint16_t *code;
    size_t size;
    uint32_t *position; /* of the codes that are to be predicted */
    size_t count;
    size_t escapes; /* codes to predict that equal alphabet.escape */
} text_part;

enum { TEXT_PAD = 64, TEXT_CHUNK = 4096, TEXT_EVERY = 10 };

/* Every tenth chunk of 4 KiB, counted from the tenth, is held out; the rest trains. Fills
 * *alphabet from the training chunks if `known` is 0, else uses it as it is. held_bytes receives
 * the held-out bytes, joined, as gzip is to see them (malloc). */
int text_split(const text *t, alphabet *a, int known, text_part *train, text_part *held,
               uint8_t **held_bytes, size_t *held_size);
void text_part_free(text_part *p);

/* The features of a position: its last `context` characters, each with an embedding of its own
 * place, then hashes of the last 2, 3 ... characters and of the words around the position. */
typedef struct features {
    int context; /* 1 .. TEXT_PAD / 2 */
    int codes;   /* classes and the padding */
    int buckets_log2;
} features;

int features_count(const features *f);
int64_t features_rows(const features *f); /* rows of the embedding table */

/* Rows of the table for one position: features_count() numbers. */
void features_fill(const features *f, const alphabet *a, const uint16_t *code, size_t position,
                   int32_t *row);

#endif
