/* The command line, and the part of it that is saved with a model. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "model.h"

typedef struct options {
    config c;
    const char *text, *root, *device, *save, *resume, *html, *log, *prompt;
    double seconds, temperature;
    int save_every, stop_after, generate, dense, compare, require_gzip, profile, help;
} options;

extern const char usage[];

/* First the defaults of the kind of model, --help, --device, and --resume, whose checkpoint then gives
 * o->c; after that the rest. Return 0, or -1 after a message to stderr. */
int options_begin(int argc, char **argv, options *o);
int options_parse(int argc, char **argv, options *o);

/* The numbers that are saved, each under the name of its option; NULL past the end. */
const char *config_name(int i);
double config_get(const config *c, const char *name);
/* Return 0, or -1 for a name that is not theirs or a number out of range. */
int config_set(config *c, const char *name, double value);
/* Whether the numbers go together; -1 after a message to stderr. */
int config_check(const config *c);

#endif
