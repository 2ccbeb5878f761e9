/* Directories for files that are to be made. */
#ifndef BSKI_PARENTS_H
#define BSKI_PARENTS_H

#include <string.h>
#include <sys/stat.h>

/* Makes what lies above `path`, for its user alone; opening the file tells what could not be made. */
static inline void bski_make_parents(char *path)
{
    for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        mkdir(path, 0700);
        *p = '/';
    }
}

#endif
