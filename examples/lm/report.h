/* The page with the results: a table, the learning curves and pictures of the layouts. */
#ifndef REPORT_H
#define REPORT_H

#include "model.h"

enum { MAX_RUNS = 2, MAX_POINTS = 256 };

typedef struct run_point {
    double seconds, step, bits;
} run_point;

/* One model and what became of it. */
typedef struct run {
    const char *name;
    model model;
    double seconds;              /* of training, without evaluations */
    double before;               /* those of earlier processes */
    double tokens, steps, flops; /* of this process */
    double train_bits;           /* moving average over recent batches */
    double held_bits;            /* the last evaluation */
    run_point points[MAX_POINTS];
    int point_count;
    double roof; /* FLOP/s of dense products */
} run;

typedef struct report {
    run *runs;
    int run_count;
    const char *device;
    size_t text_size, held_size;
    int files;
    double gzip_bits; /* for each held-out byte; 0 if gzip is not there */
} report;

double run_rate(const run *r);   /* bytes of text a second */
double run_gflops(const run *r); /* useful operations, 1e9 a second */
double run_share(const run *r);  /* of the roof, in percent */

/* Whether the page can be written there, of which an older one is left alone: 0, or -1 after a message
 * to stderr. */
int report_check(const char *path);
/* Writes the page; plots come from gnuplot, and a sentence takes their place where it is missing.
 * Returns 0, or -1 after a message to stderr. */
int report_write(const char *path, const report *r);

#endif
