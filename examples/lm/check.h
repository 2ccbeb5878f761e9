/* Errors of the library end the program with the library's own message. */
#ifndef CHECK_H
#define CHECK_H

#include <bsk/bsk.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call) check_status((call), #call, __FILE__, __LINE__)

static inline void check_status(bsk_status status, const char *call, const char *file, int line)
{
    if (status == BSK_OK)
        return;
    fprintf(stderr, "%s:%d: %s\n  %s: %s\n", file, line, call, bsk_status_name(status),
            bsk_last_error());
    exit(1);
}

static inline void *check_alloc(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "lm: out of memory\n");
        exit(1);
    }
    return memory;
}

#endif
