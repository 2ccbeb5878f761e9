/* Bytes through another program. */
#ifndef PROCESS_H
#define PROCESS_H

#include <stddef.h>
#include <stdint.h>

/* Runs argv[0], found on PATH, with `input` as its standard input. *output (malloc) receives its
 * standard output and a final 0 that *output_size does not count. Returns 0, or -1 if the program
 * is missing or fails. */
int process_filter(const char *const argv[], const void *input, size_t input_size, uint8_t **output,
                   size_t *output_size);

#endif
